// SPDX-License-Identifier: Apache-2.0
// The library's nonlinear cells: the one list that the C++ interface, both backends and the
// bindings go by.
#pragma once

#include "scanrnn/core/cells/gru.hpp"
#include "scanrnn/core/cells/indrnn.hpp"
#include "scanrnn/core/cells/lstm.hpp"
#include "scanrnn/core/cells/recurrent_sru.hpp"

/// X(name, Cell) for each, in the order of their numbers in NonlinearCellKind.
#define SCANRNN_NONLINEAR_CELLS(X)   \
  X(diagonal_gru, DiagonalGruCell)   \
  X(diagonal_lstm, DiagonalLstmCell) \
  X(indrnn, IndRnnCell)              \
  X(recurrent_sru, RecurrentSruCell)

namespace scanrnn {

enum class NonlinearCellKind : int {
#define SCANRNN_KIND(name, Cell) name,
  SCANRNN_NONLINEAR_CELLS(SCANRNN_KIND)
#undef SCANRNN_KIND
      count
};

inline constexpr int kNonlinearCells = static_cast<int>(NonlinearCellKind::count);

}  // namespace scanrnn
