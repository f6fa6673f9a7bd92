# What a user can choose, and the settings every target of the library shares.
include(GNUInstallDirs)

if(MSVC)
    message(FATAL_ERROR " scanrnn: this compiler is not supported; use GCC or Clang")
endif()

# Without a build type a single-configuration generator would build an unoptimised library.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

# scikit-build-core sets SKBUILD: then a user runs `pip install`, and neither wants tests nor a
# build that a newer compiler's new warning can break.
if(SKBUILD)
    set(scanrnn_developing OFF)
else()
    set(scanrnn_developing ${PROJECT_IS_TOP_LEVEL})
endif()
if(SKBUILD AND PROJECT_IS_TOP_LEVEL)
    set(scanrnn_packaging ON)
else()
    set(scanrnn_packaging OFF)
endif()

set(SCANRNN_DISTRIBUTION "" CACHE STRING "The released distribution to build (distributions.json)")
set(SCANRNN_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE SCANRNN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SCANRNN_ISAS_WANTED "" CACHE STRING "The CPU kernels to build, as sse2;avx2; empty: all")
option(DEBUG_MERGE "Make every merge of the scan report what it changed (slow)" OFF)
option(SCANRNN_BUILD_TESTS "Build the C++ tests" ${scanrnn_developing})
option(SCANRNN_BUILD_BENCHMARKS "Build the C++ benchmarks" OFF)
option(SCANRNN_BUILD_PYTHON "Build the Python extension module" ${scanrnn_packaging})
option(SCANRNN_INSTALL "Generate the install target" ${PROJECT_IS_TOP_LEVEL})
option(
    SCANRNN_SHARED
    "Build the library as a shared one, which the extension module and C++ programs have in common"
    OFF
)
option(SCANRNN_WERROR "Treat warnings as errors" ${scanrnn_developing})
set(SCANRNN_SANITIZE "" CACHE STRING "Sanitizers to build with, for example address,undefined")
set(SCANRNN_XLA_FFI AUTO CACHE STRING "Build the JAX (XLA FFI) handlers: AUTO, ON or OFF")
set_property(CACHE SCANRNN_XLA_FFI PROPERTY STRINGS AUTO ON OFF)
set(SCANRNN_PYTHON_OUTPUT_DIR
    ""
    CACHE PATH
    "Folder the Python extension module is written to (empty: the build folder)"
)

# Turns AUTO|ON|OFF, and whatever else CMake takes for a boolean, into exactly one of the three.
function(scanrnn_tristate name)
    string(TOUPPER "${${name}}" value)
    if(NOT value STREQUAL "AUTO")
        if(value MATCHES "^(ON|TRUE|YES|Y|1)$")
            set(value ON)
        elseif(value MATCHES "^(OFF|FALSE|NO|N|0)$")
            set(value OFF)
        else()
            message(FATAL_ERROR " scanrnn: ${name} is '${${name}}', expected AUTO, ON or OFF")
        endif()
    endif()
    set(${name} ${value} PARENT_SCOPE)
endfunction()

scanrnn_tristate(SCANRNN_CUDA)
if(SCANRNN_DISTRIBUTION)
    scanrnn_read_distribution(${SCANRNN_DISTRIBUTION} scanrnn_cuda scanrnn_architectures)
    set(SCANRNN_CUDA OFF)
    if(scanrnn_cuda)
        set(SCANRNN_CUDA ON)
        # Code for all GPUs is what a wheel weighs. A static library beside the extension module
        # would carry it twice.
        set(SCANRNN_SHARED ON)
    endif()
endif()
scanrnn_tristate(SCANRNN_XLA_FFI)

# Flags of everything that is compiled into the library, whatever its instruction set.
function(scanrnn_configure_target target)
    set_target_properties(
        ${target}
        PROPERTIES
            CXX_STANDARD 17
            CXX_STANDARD_REQUIRED ON
            CXX_EXTENSIONS OFF
            CXX_VISIBILITY_PRESET hidden
            VISIBILITY_INLINES_HIDDEN ON
            POSITION_INDEPENDENT_CODE ON
    )
    # Contraction is off so that a product and a sum round the same in every instruction set
    # unless the source asks for a fused one. Nothing of -ffast-math: it would also switch the
    # whole process to flush subnormals to zero when linked into a shared object.
    target_compile_options(
        ${target}
        PRIVATE
            $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
            $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>
    )
    # RelWithDebInfo alone would compile at -O2. More than -O1 on instrumented code only costs build
    # time: 46 s instead of 32 for the largest kernel file.
    set(level -O3)
    if(SCANRNN_SANITIZE)
        set(level -O1)
    endif()
    target_compile_options(
        ${target}
        PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:${level}>
    )
    scanrnn_enable_warnings(${target})
    scanrnn_enable_sanitizers(${target})
endfunction()

# What a shared library shows: the functions of namespace scanrnn, and nothing of CUDA's runtime or of
# the standard library's templates.
function(scanrnn_export_symbols target)
    set(script ${PROJECT_SOURCE_DIR}/cmake/scanrnn.map)
    set_target_properties(
        ${target}
        PROPERTIES CXX_VISIBILITY_PRESET default DEFINE_SYMBOL "" LINK_DEPENDS ${script}
    )
    if(NOT APPLE)
        target_link_options(${target} PRIVATE -Wl,--version-script=${script} -Wl,--no-undefined)
    endif()
endfunction()

function(scanrnn_enable_warnings target)
    target_compile_options(
        ${target}
        PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
    )
    set_target_properties(${target} PROPERTIES COMPILE_WARNING_AS_ERROR ${SCANRNN_WERROR})
endfunction()

function(scanrnn_enable_sanitizers target)
    if(SCANRNN_SANITIZE)
        set(flags -fsanitize=${SCANRNN_SANITIZE} -fno-sanitize-recover=all)
        # Lines and functions are what a report shows; more symbols only cost build time.
        target_compile_options(${target} PRIVATE ${flags} -fno-omit-frame-pointer -g1)
        # GCC inlines a check a load and store; calls keep functions that are large already small.
        if(SCANRNN_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
            target_compile_options(
                ${target}
                PRIVATE --param=asan-instrumentation-with-call-threshold=0
            )
        endif()
        target_link_options(${target} PUBLIC ${flags})
    endif()
endfunction()
