// SPDX-License-Identifier: Apache-2.0
// A nonlinear cell as data.
#pragma once

#include "scanrnn/core/cell_type.hpp"
#include "scanrnn/core/cells/nonlinear_list.hpp"

namespace scanrnn {

struct NonlinearCellType : CellDescription {
  int states;
  const char* const* state_names;
  const double* bounds;          ///< of each state, or 0
  int output_state, kept_state;  ///< or -1
  NonlinearCellKind kind;
};

namespace detail {

template <class Cell>
NonlinearCellType describe(NonlinearCellKind kind) {
  static_assert(NonlinearCellTraits<Cell>::is_cell);
  return {Describe<Cell>::description(),
          Cell::states,
          Cell::state_names,
          Cell::bounds,
          Cell::output_state,
          Cell::kept_state,
          kind};
}

}  // namespace detail

/// The type of one of the library's nonlinear cells.
template <class Cell>
const NonlinearCellType& nonlinear_cell_type();

#define SCANRNN_TYPE(name, Cell) \
  template <>                    \
  const NonlinearCellType& nonlinear_cell_type<Cell>();
SCANRNN_NONLINEAR_CELLS(SCANRNN_TYPE)
#undef SCANRNN_TYPE

/// The library's nonlinear cell of that kind, from 0 to kNonlinearCells - 1.
const NonlinearCellType& nonlinear_cell_type(NonlinearCellKind kind);

}  // namespace scanrnn
