# Which GPUs the CUDA backend is compiled for.
#
# What the user gives (CMAKE_CUDA_ARCHITECTURES or the variable CUDAARCHS) wins. Otherwise the GPUs
# of this machine; on a machine without one, the list of the release wheels.

# Real code for each, and PTX of the last one for what comes after it. CUDA 13 dropped sm_70.
set(SCANRNN_ARCHITECTURES_CUDA12
    70-real
    75-real
    80-real
    86-real
    89-real
    90
)
set(SCANRNN_ARCHITECTURES_CUDA13
    75-real
    80-real
    86-real
    89-real
    90-real
    100-real
    120
)

# The compute capabilities of the visible GPUs as CMake writes them (80;90), or an empty list.
function(scanrnn_find_gpus out)
    set(found)
    find_program(SCANRNN_NVIDIA_SMI nvidia-smi)
    mark_as_advanced(SCANRNN_NVIDIA_SMI)
    if(SCANRNN_NVIDIA_SMI)
        execute_process(
            COMMAND ${SCANRNN_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
            OUTPUT_VARIABLE text
            RESULT_VARIABLE status
            ERROR_QUIET
        )
        if(status EQUAL 0)
            string(REGEX MATCHALL "[0-9]+\\.[0-9]+" found "${text}")
            list(TRANSFORM found REPLACE "\\." "")
            list(REMOVE_DUPLICATES found)
            list(SORT found COMPARE NATURAL)
        endif()
    endif()
    set(${out} ${found} PARENT_SCOPE)
endfunction()

# Fails, in our words, where CMake's or the compiler's would only come later and say less.
function(scanrnn_check_requested_architectures)
    set(requested "${CMAKE_CUDA_ARCHITECTURES}")
    if(NOT requested)
        set(requested "$ENV{CUDAARCHS}")
    endif()
    if(requested MATCHES "native")
        scanrnn_find_gpus(gpus)
        if(NOT gpus)
            message(
                FATAL_ERROR
                " scanrnn: CMAKE_CUDA_ARCHITECTURES=native, but no GPU is visible; name the architectures, for example 80;90"
            )
        endif()
    endif()
endfunction()

# Sets CMAKE_CUDA_ARCHITECTURES unless the user did. CMAKE_CUDA_COMPILER must be known.
function(scanrnn_choose_architectures)
    if(CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
        return()
    endif()
    scanrnn_find_gpus(chosen)
    if(NOT chosen)
        execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE text ERROR_QUIET)
        if(text MATCHES "release ([0-9]+)\\." AND CMAKE_MATCH_1 LESS 13)
            set(chosen ${SCANRNN_ARCHITECTURES_CUDA12})
        else()
            set(chosen ${SCANRNN_ARCHITECTURES_CUDA13})
        endif()
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${chosen}" CACHE STRING "GPUs to build for" FORCE)
endfunction()
