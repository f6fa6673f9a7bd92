# Decides whether the CUDA backend is built (SCANRNN_HAS_CUDA) and for which architectures.
#
# AUTO takes it when it can be had and says in one line when it can't; ON fails with one line that
# says what to do.
set(SCANRNN_HAS_CUDA OFF)
file(GLOB_RECURSE scanrnn_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)

function(scanrnn_no_cuda reason advice)
    if(SCANRNN_CUDA STREQUAL "ON")
        set(setting SCANRNN_CUDA=ON)
        if(SCANRNN_DISTRIBUTION)
            set(setting SCANRNN_DISTRIBUTION=${SCANRNN_DISTRIBUTION})
            string(REPLACE SCANRNN_CUDA=OFF SCANRNN_DISTRIBUTION=scanrnn advice "${advice}")
        endif()
        message(FATAL_ERROR " scanrnn: ${setting}, but ${reason}; ${advice}")
    endif()
    message(STATUS "scanrnn: building for the CPU only (${reason})")
endfunction()

# Why CMake found no CUDA compiler that works: there is none, or one that refuses the host compiler.
function(scanrnn_why_no_compiler out_reason out_advice)
    set(reason "no working CUDA compiler was found")
    set(advice "install nvcc, point CUDACXX at it, or set SCANRNN_CUDA=OFF")
    set(wanted $ENV{CUDACXX})
    if(NOT wanted)
        set(wanted nvcc)
    endif()
    find_program(nvcc ${wanted} HINTS ENV CUDA_PATH ENV CUDA_HOME PATH_SUFFIXES bin NO_CACHE)
    if(nvcc)
        set(host "$ENV{CUDAHOSTCXX}")
        if(CMAKE_CUDA_HOST_COMPILER)
            set(host "${CMAKE_CUDA_HOST_COMPILER}")
        endif()
        set(flags)
        if(host)
            set(flags -ccbin ${host})
        endif()
        set(source ${PROJECT_BINARY_DIR}/CMakeFiles/scanrnn_nvcc.cu)
        file(WRITE ${source} "int main() {}\n")
        execute_process(
            COMMAND ${nvcc} ${flags} -c ${source} -o ${source}.o
            OUTPUT_VARIABLE text
            ERROR_VARIABLE text
            RESULT_VARIABLE status
        )
        if(NOT status EQUAL 0)
            if(NOT host)
                set(host "the default host compiler")
            endif()
            set(reason "${nvcc} does not work")
            if(text MATCHES "unsupported [A-Za-z]+ version|host compiler|ccbin")
                set(reason "${nvcc} refuses ${host}")
            endif()
            string(REGEX MATCH "(error|fatal)[^\n;]*" message "${text}")
            if(message)
                string(APPEND reason " (${message})")
            endif()
            set(advice
                "point CUDAHOSTCXX at a host compiler that it accepts, CUDACXX at another nvcc, or set SCANRNN_CUDA=OFF"
            )
        endif()
    endif()
    set(${out_reason} "${reason}" PARENT_SCOPE)
    set(${out_advice} "${advice}" PARENT_SCOPE)
endfunction()

if(NOT SCANRNN_CUDA STREQUAL "OFF")
    if(NOT scanrnn_cuda_sources)
        scanrnn_no_cuda(
            "version ${PROJECT_VERSION} has no CUDA backend yet"
            "leave the option out to build for the CPU"
        )
    else()
        scanrnn_check_requested_architectures()
        include(CheckLanguage)
        check_language(CUDA)
        scanrnn_find_gpus(scanrnn_gpus)
        if(
            CMAKE_CUDA_COMPILER
            AND SCANRNN_CUDA STREQUAL "AUTO"
            AND NOT scanrnn_gpus
            AND NOT CMAKE_CUDA_ARCHITECTURES
            AND NOT DEFINED ENV{CUDAARCHS}
        )
            # Code for every GPU there is takes half an hour: nobody wants it unasked.
            scanrnn_no_cuda("no GPU is visible" "")
        elseif(CMAKE_CUDA_COMPILER)
            scanrnn_choose_architectures()
            enable_language(CUDA)
            set(SCANRNN_HAS_CUDA ON)
            message(STATUS "scanrnn: CUDA architectures ${CMAKE_CUDA_ARCHITECTURES}")
        else()
            scanrnn_why_no_compiler(reason advice)
            scanrnn_no_cuda("${reason}" "${advice}")
        endif()
    endif()
endif()
