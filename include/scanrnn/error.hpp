// SPDX-License-Identifier: Apache-2.0
// What the library throws. Every message names the call and the argument, what was given and what
// was expected; nothing has been written when one of the first two is thrown.
#pragma once

#include <stdexcept>

namespace scanrnn {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A shape, stride, offset list or combination of arguments that has no meaning.
struct InvalidArgument : Error {
  using Error::Error;
};

/// A dtype that is unsupported or doesn't go with the others.
struct InvalidType : Error {
  using Error::Error;
};

/// The backend or device asked for isn't there, or failed.
struct DeviceError : Error {
  using Error::Error;
};

}  // namespace scanrnn
