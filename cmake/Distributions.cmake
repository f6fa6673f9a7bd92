# The distributions that are released (distributions.json), all imported as scanrnn.
#
# SCANRNN_DISTRIBUTION chooses one. It is an environment variable: the build backend
# (distribution_backend.py) names the wheel after it and hands it to CMake. Without it the wheel is
# called scanrnn and has what this machine allows.
set(SCANRNN_DISTRIBUTIONS_FILE ${CMAKE_CURRENT_LIST_DIR}/distributions.json)

# The CUDA version of a distribution (0: none) and its architectures, real code for each and PTX of
# the last one for what comes after it.
function(scanrnn_read_distribution name out_cuda out_architectures)
    file(READ ${SCANRNN_DISTRIBUTIONS_FILE} text)
    string(JSON cuda ERROR_VARIABLE unknown GET "${text}" "${name}" cuda)
    if(unknown)
        string(JSON count LENGTH "${text}")
        math(EXPR last "${count} - 1")
        set(names)
        foreach(index RANGE ${last})
            string(JSON known MEMBER "${text}" ${index})
            list(APPEND names ${known})
        endforeach()
        list(JOIN names ", " names)
        message(FATAL_ERROR " scanrnn: SCANRNN_DISTRIBUTION is '${name}', expected one of ${names}")
    endif()
    string(JSON count LENGTH "${text}" "${name}" architectures)
    set(architectures)
    if(count GREATER 0)
        math(EXPR last "${count} - 1")
        foreach(index RANGE ${last})
            string(JSON architecture GET "${text}" "${name}" architectures ${index})
            list(APPEND architectures ${architecture})
        endforeach()
    endif()
    set(${out_cuda} ${cuda} PARENT_SCOPE)
    set(${out_architectures} "${architectures}" PARENT_SCOPE)
endfunction()
