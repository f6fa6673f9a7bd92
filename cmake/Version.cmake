# Reads the version from include/scanrnn/version.hpp, the one place where it is written.
function(scanrnn_read_version out)
    set(header ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/scanrnn/version.hpp)
    file(READ ${header} text)
    set(numbers)
    foreach(part MAJOR MINOR PATCH)
        if(NOT text MATCHES "#define SCANRNN_VERSION_${part} ([0-9]+)")
            message(
                FATAL_ERROR
                " scanrnn: no SCANRNN_VERSION_${part} in include/scanrnn/version.hpp"
            )
        endif()
        list(APPEND numbers ${CMAKE_MATCH_1})
    endforeach()
    list(JOIN numbers "." version)
    set(${out} ${version} PARENT_SCOPE)
    # A new version must reach the next configure without being asked.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
endfunction()
