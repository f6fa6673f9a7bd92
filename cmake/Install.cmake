# The install tree: headers, the library, and a CMake package that find_package(scanrnn) finds.
include(CMakePackageConfigHelpers)

set(scanrnn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/scanrnn)

install(
    TARGETS scanrnn scanrnn_custom_cell
    EXPORT scanrnnTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
)
install(
    DIRECTORY ${PROJECT_SOURCE_DIR}/include/scanrnn
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING
    PATTERN "*.hpp"
    PATTERN "*.cuh"
)
# Kernels, for cells that aren't the library's.
foreach(backend cpu cuda)
    install(
        DIRECTORY ${PROJECT_SOURCE_DIR}/src/${backend}
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/scanrnn/internal
        FILES_MATCHING
        PATTERN "*.hpp"
        PATTERN "*.cuh"
    )
endforeach()
install(EXPORT scanrnnTargets NAMESPACE scanrnn:: DESTINATION ${scanrnn_package_dir})
configure_package_config_file(
    ${CMAKE_CURRENT_LIST_DIR}/scanrnnConfig.cmake.in
    ${PROJECT_BINARY_DIR}/scanrnnConfig.cmake
    INSTALL_DESTINATION ${scanrnn_package_dir}
    NO_SET_AND_CHECK_MACRO
)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(
    ${PROJECT_BINARY_DIR}/scanrnnConfigVersion.cmake
    COMPATIBILITY SameMinorVersion
)
install(
    FILES ${PROJECT_BINARY_DIR}/scanrnnConfig.cmake ${PROJECT_BINARY_DIR}/scanrnnConfigVersion.cmake
    DESTINATION ${scanrnn_package_dir}
)
