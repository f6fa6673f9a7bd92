# Decides whether the CUDA backend is built (SCANRNN_HAS_CUDA) and for which architectures.
#
# AUTO takes it when it can be had and says in one line when it can't; ON fails with one line that
# says what to do.
set(SCANRNN_HAS_CUDA OFF)
file(GLOB_RECURSE scanrnn_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)

function(scanrnn_no_cuda reason advice)
    if(SCANRNN_CUDA STREQUAL "ON")
        message(FATAL_ERROR " scanrnn: SCANRNN_CUDA=ON, but ${reason}; ${advice}")
    endif()
    message(STATUS "scanrnn: building for the CPU only (${reason})")
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
            scanrnn_no_cuda(
                "no working CUDA compiler was found"
                "install nvcc, point CUDACXX at it (and CUDAHOSTCXX at a host compiler that it accepts), or set SCANRNN_CUDA=OFF"
            )
        endif()
    endif()
endif()
