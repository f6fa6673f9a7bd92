// SPDX-License-Identifier: Apache-2.0
// Everything: recurrent networks in O(log T) parallel depth.
#pragma once

#include "scanrnn/cells.hpp"
#include "scanrnn/error.hpp"
#include "scanrnn/scan.hpp"
#include "scanrnn/solve.hpp"
#include "scanrnn/trace.hpp"
#include "scanrnn/types.hpp"
#include "scanrnn/version.hpp"
