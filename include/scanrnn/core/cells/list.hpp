// SPDX-License-Identifier: Apache-2.0
// The library's cells: the one list that the C++ interface, both backends and the bindings go by.
#pragma once

#include "scanrnn/core/cells/gilr.hpp"
#include "scanrnn/core/cells/min_lstm.hpp"
#include "scanrnn/core/cells/qrnn.hpp"
#include "scanrnn/core/cells/rg_lru.hpp"
#include "scanrnn/core/cells/sru.hpp"

/// X(name, Cell) for each, in the order of their numbers in CellKind, from 1 on.
#define SCANRNN_CELLS(X)   \
  X(sru, SruCell)          \
  X(gilr, GilrCell)        \
  X(qrnn, QrnnCell)        \
  X(min_lstm, MinLstmCell) \
  X(rg_lru, RgLruCell)

namespace scanrnn {

/// Where a backend's tables have a cell: the scan first.
enum class CellKind : int {
  custom = -1,
  scan = 0,
#define SCANRNN_KIND(name, Cell) name,
  SCANRNN_CELLS(SCANRNN_KIND)
#undef SCANRNN_KIND
      count
};

inline constexpr int kCells = static_cast<int>(CellKind::count);

}  // namespace scanrnn
