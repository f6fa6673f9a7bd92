// The version of the library. This is the only place it is written: CMake and pyproject.toml read
// the three numbers from here.
#ifndef SCANRNN_VERSION_HPP
#define SCANRNN_VERSION_HPP

#define SCANRNN_VERSION_MAJOR 0
#define SCANRNN_VERSION_MINOR 1
#define SCANRNN_VERSION_PATCH 0

#define SCANRNN_STRINGIZE_IMPL(x) #x
#define SCANRNN_STRINGIZE(x) SCANRNN_STRINGIZE_IMPL(x)

// "0.1.0" as a string literal.
#define SCANRNN_VERSION_STRING                \
    SCANRNN_STRINGIZE(SCANRNN_VERSION_MAJOR)  \
    "." SCANRNN_STRINGIZE(SCANRNN_VERSION_MINOR) "." SCANRNN_STRINGIZE(SCANRNN_VERSION_PATCH)

#endif  // SCANRNN_VERSION_HPP
