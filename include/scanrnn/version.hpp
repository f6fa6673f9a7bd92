// SPDX-License-Identifier: Apache-2.0
// The version of the library. This is the only place it is written: CMake and pyproject.toml read
// the three numbers from here.
#pragma once

#define SCANRNN_VERSION_MAJOR 0
#define SCANRNN_VERSION_MINOR 1
#define SCANRNN_VERSION_PATCH 0

#define SCANRNN_DOTTED_IMPL(major, minor, patch) #major "." #minor "." #patch
#define SCANRNN_DOTTED(major, minor, patch) SCANRNN_DOTTED_IMPL(major, minor, patch)

/// "major.minor.patch" as a string literal.
#define SCANRNN_VERSION_STRING \
  SCANRNN_DOTTED(SCANRNN_VERSION_MAJOR, SCANRNN_VERSION_MINOR, SCANRNN_VERSION_PATCH)
