# The Python extension module scanrnn._core. Works under scikit-build-core and, for development, in
# a plain build:
#   cmake -S . -B build -DSCANRNN_BUILD_PYTHON=ON -DSCANRNN_PYTHON_OUTPUT_DIR=$PWD/python/scanrnn
set(scanrnn_python_components Interpreter Development.Module)
if(SKBUILD)
    # Development.SABIModule when a wheel for the stable ABI is asked for, else nothing.
    list(APPEND scanrnn_python_components ${SKBUILD_SABI_COMPONENT})
endif()
find_package(Python 3.11 REQUIRED COMPONENTS ${scanrnn_python_components})

execute_process(
    COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE scanrnn_nanobind_hint
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
)
find_package(nanobind 3.1 CONFIG QUIET HINTS "${scanrnn_nanobind_hint}")
if(NOT nanobind_FOUND)
    message(
        FATAL_ERROR
        " scanrnn: ${Python_EXECUTABLE} has no nanobind; install it with 'pip install nanobind>=3.1'"
    )
endif()

file(GLOB scanrnn_python_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} python/src/*.cpp)

# STABLE_ABI has an effect from Python 3.12 on, and only when the component above was found.
nanobind_add_module(
    _core
    STABLE_ABI
    NB_STATIC
    NB_SUPPRESS_WARNINGS
    NB_DOMAIN
    scanrnn
    ${scanrnn_python_sources}
)
target_link_libraries(_core PRIVATE scanrnn::scanrnn)
if(NOT APPLE)
    # The static libraries in the extension are nobody else's to bind to.
    target_link_options(_core PRIVATE -Wl,--exclude-libs,ALL)
endif()
target_compile_features(_core PRIVATE cxx_std_17)
scanrnn_enable_warnings(_core)

# The handlers for JAX need only headers, which come with jaxlib.
if(NOT SCANRNN_XLA_FFI STREQUAL "OFF")
    execute_process(
        COMMAND
            ${Python_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('jaxlib').submodule_search_locations[0])"
        OUTPUT_VARIABLE scanrnn_jaxlib
        OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_QUIET
    )
    if(scanrnn_jaxlib AND EXISTS ${scanrnn_jaxlib}/include/xla/ffi/api/ffi.h)
        target_include_directories(_core SYSTEM PRIVATE ${scanrnn_jaxlib}/include)
        target_compile_definitions(_core PRIVATE SCANRNN_XLA_FFI)
    elseif(SCANRNN_XLA_FFI STREQUAL "ON")
        message(
            FATAL_ERROR
            " scanrnn: SCANRNN_XLA_FFI=ON, but ${Python_EXECUTABLE} has no jaxlib; install it or set SCANRNN_XLA_FFI=OFF"
        )
    else()
        message(
            STATUS
            "scanrnn: building without the JAX handlers (no jaxlib to take the XLA headers from)"
        )
    endif()
endif()

if(SCANRNN_PYTHON_OUTPUT_DIR)
    set_target_properties(_core PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${SCANRNN_PYTHON_OUTPUT_DIR})
endif()

if(SCANRNN_SHARED)
    set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN/${CMAKE_INSTALL_LIBDIR}")
endif()

if(SKBUILD)
    # scikit-build-core's install prefix is the package folder (wheel.install-dir).
    install(TARGETS _core LIBRARY DESTINATION .)
endif()
