# Which GPUs the CUDA backend is compiled for.
#
# What the user gives (CMAKE_CUDA_ARCHITECTURES or the variable CUDAARCHS) wins. Otherwise those of
# the distribution, if one is named; the GPUs of this machine; on a machine without one, those of
# the distribution for this compiler.

include(${CMAKE_CURRENT_LIST_DIR}/Distributions.cmake)

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

# The major version of nvcc; empty for another compiler.
function(scanrnn_nvcc_major out)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE text ERROR_QUIET)
    set(major)
    if(text MATCHES "release ([0-9]+)\\.")
        set(major ${CMAKE_MATCH_1})
    endif()
    set(${out} "${major}" PARENT_SCOPE)
endfunction()

# Drops the architectures that the compiler doesn't know (before 12.8: 100 and 120), and leaves the
# last one with PTX. A compiler that can't say what it knows is believed to know all.
function(scanrnn_keep_known architectures out)
    execute_process(
        COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code
        OUTPUT_VARIABLE text
        RESULT_VARIABLE status
        ERROR_QUIET
    )
    if(status EQUAL 0 AND text MATCHES "sm_")
        string(REGEX MATCHALL "sm_[0-9]+" known "${text}")
        set(kept)
        foreach(architecture ${architectures})
            string(REGEX REPLACE "-real$" "" number ${architecture})
            if("sm_${number}" IN_LIST known)
                list(APPEND kept ${number}-real)
            endif()
        endforeach()
        list(POP_BACK kept last)
        string(REGEX REPLACE "-real$" "" last "${last}")
        set(architectures ${kept} ${last})
    endif()
    set(${out} "${architectures}" PARENT_SCOPE)
endfunction()

# Sets CMAKE_CUDA_ARCHITECTURES unless the user did. CMAKE_CUDA_COMPILER must be known.
function(scanrnn_choose_architectures)
    scanrnn_nvcc_major(major)
    if(SCANRNN_DISTRIBUTION)
        scanrnn_read_distribution(${SCANRNN_DISTRIBUTION} cuda chosen)
        if(NOT major STREQUAL cuda)
            message(
                FATAL_ERROR
                " scanrnn: ${SCANRNN_DISTRIBUTION} takes nvcc ${cuda}, but ${CMAKE_CUDA_COMPILER} is of CUDA ${major}; point CUDACXX at another"
            )
        endif()
    endif()
    if(CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
        return()
    endif()
    if(NOT SCANRNN_DISTRIBUTION)
        scanrnn_find_gpus(chosen)
    endif()
    if(NOT chosen)
        if(major AND major LESS 13)
            scanrnn_read_distribution(scanrnn-cu12 cuda all)
        else()
            scanrnn_read_distribution(scanrnn-cu13 cuda all)
        endif()
        scanrnn_keep_known("${all}" chosen)
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${chosen}" CACHE STRING "GPUs to build for" FORCE)
endfunction()
