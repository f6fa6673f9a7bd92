# The CPU kernels: one source, compiled once for each instruction set, chosen at run time.
#
# Every copy is compiled with SCANRNN_ISA=<name> and lives in namespace scanrnn::cpu::<name>; the
# rest of the library gets SCANRNN_HAVE_<NAME> for each, so that the dispatcher knows what it has.
include(CheckCXXCompilerFlag)

set(SCANRNN_FLAGS_SSE2)
set(SCANRNN_FLAGS_AVX2 -mavx2 -mfma -mf16c -mbmi2)
set(SCANRNN_FLAGS_AVX512
    -mavx512f
    -mavx512bw
    -mavx512dq
    -mavx512vl
    ${SCANRNN_FLAGS_AVX2}
    -mprefer-vector-width=512
)
set(SCANRNN_FLAGS_NEON)
set(SCANRNN_FLAGS_GENERIC)

# The instruction sets that this compiler can build for this processor, lowest first.
function(scanrnn_find_isas out)
    set(processor ${CMAKE_SYSTEM_PROCESSOR})
    if(APPLE AND CMAKE_OSX_ARCHITECTURES)
        # A list of more than one (a universal binary) matches neither branch: generic code.
        set(processor "${CMAKE_OSX_ARCHITECTURES}")
    endif()
    if(processor MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
        set(isas sse2)
        foreach(isa AVX2 AVX512)
            string(JOIN " " flags ${SCANRNN_FLAGS_${isa}})
            check_cxx_compiler_flag("${flags}" SCANRNN_COMPILER_HAS_${isa})
            if(SCANRNN_COMPILER_HAS_${isa})
                string(TOLOWER ${isa} name)
                list(APPEND isas ${name})
            endif()
        endforeach()
    elseif(processor MATCHES "^(aarch64|arm64|ARM64)$")
        set(isas neon)
    else()
        set(isas generic)
    endif()
    set(${out} ${isas} PARENT_SCOPE)
endfunction()

# Adds the sources to a library, compiled for each instruction set.
function(scanrnn_add_cpu_kernels target)
    scanrnn_find_isas(isas)
    if(SCANRNN_ISAS_WANTED)
        foreach(isa ${SCANRNN_ISAS_WANTED})
            if(NOT isa IN_LIST isas)
                message(
                    FATAL_ERROR
                    "scanrnn: SCANRNN_ISAS_WANTED names ${isa}, expected some of ${isas}"
                )
            endif()
        endforeach()
        set(isas ${SCANRNN_ISAS_WANTED})
    endif()
    message(STATUS "scanrnn: CPU kernels for ${isas}")
    foreach(isa ${isas})
        string(TOUPPER ${isa} upper)
        target_compile_definitions(${target} PRIVATE SCANRNN_HAVE_${upper})
        add_library(scanrnn_cpu_${isa} OBJECT ${ARGN})
        target_compile_definitions(scanrnn_cpu_${isa} PRIVATE SCANRNN_ISA=${isa})
        target_compile_options(scanrnn_cpu_${isa} PRIVATE ${SCANRNN_FLAGS_${upper}})
        target_compile_features(scanrnn_cpu_${isa} PRIVATE cxx_std_17)
        target_include_directories(
            scanrnn_cpu_${isa}
            PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
        )
        scanrnn_configure_target(scanrnn_cpu_${isa})
        # A kernel is many small functions inlined into one, and poisons the variables of each as it
        # leaves it: 50 s instead of 28 for one file. The rest of the library is checked for that too.
        if(SCANRNN_SANITIZE MATCHES "address")
            target_compile_options(scanrnn_cpu_${isa} PRIVATE -fno-sanitize-address-use-after-scope)
        endif()
        # GCC 12's own AVX-512 intrinsics start from a variable initialised with itself (GCC bug
        # 105593), which it then warns of.
        target_compile_options(
            scanrnn_cpu_${isa}
            PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
        )
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:scanrnn_cpu_${isa}>)
    endforeach()
    set(SCANRNN_ISAS ${isas} PARENT_SCOPE)
endfunction()
