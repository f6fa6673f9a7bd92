// SPDX-License-Identifier: Apache-2.0
// A cell as data: what a call checks its arguments by and hands them to a backend with.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#include "scanrnn/core/cell.hpp"
#include "scanrnn/core/cells/list.hpp"

namespace scanrnn {

namespace cpu {
struct CustomCell;
}
namespace cuda {
struct CustomCell;
}

/// A run-time option of a cell. Those of an enum are whole numbers.
struct CellOption {
  const char* name = "";
  double value = 0;  ///< of the cell that was asked; of a new one: the default
  double least = 0, most = 0;
  bool is_whole = false;
};

/// Where custom_cell.cuh leaves the kernels of a cell that isn't the library's.
template <class Cell>
inline cuda::CustomCell* custom_cuda_kernels = nullptr;

/// Room for any cell.
struct CellStorage {
  static constexpr std::size_t size = 64;
  alignas(double) unsigned char bytes[size];
};

/// What linear and nonlinear cells' types share.
struct CellDescription {
  const char* name;
  int inputs;
  const char* const* names;  ///< of the inputs
  unsigned vector_inputs, optional_inputs;

  int options;
  /// Option `i` of a cell.
  CellOption (*option)(const void* cell, int i);
  /// Sets it; `value` must be allowed.
  void (*set_option)(void* cell, int i, double value);
  /// A new cell, with the defaults.
  void (*construct)(CellStorage& cell);
  /// A copy that knows which inputs are given.
  void (*copy)(const void* cell, unsigned given, CellStorage& copy);

  static bool has(unsigned mask, int input) { return (mask >> input & 1u) != 0; }
};

struct CellType : CellDescription {
  const char* state;  ///< "h" or "c": its initial value is called "h0" or "c0"
  unsigned map_inputs, backward_inputs, state_inputs;
  bool state_is_output;

  CellKind kind;
  /// Kernels of a cell that isn't the library's; null: none were compiled for that backend.
  const cpu::CustomCell* on_cpu;
  cuda::CustomCell* const* on_cuda;
};

namespace detail {

template <class Cell>
struct Describe {
  static_assert(sizeof(Cell) <= CellStorage::size && std::is_trivially_copyable<Cell>::value);

  template <class Visit>
  static void each_option(Cell& cell, Visit&& visit) {
    int index = 0;
    Cell::options(cell, [&](const char* name, auto& member, auto least, auto most) {
      visit(index++, name, member, least, most);
    });
  }
  static int count_options() {
    Cell cell;
    int count = 0;
    each_option(cell, [&](int, const char*, auto&, auto, auto) { ++count; });
    return count;
  }
  static CellOption option(const void* from, int i) {
    Cell cell = *static_cast<const Cell*>(from);
    CellOption found;
    each_option(cell, [&](int index, const char* name, auto& member, auto least, auto most) {
      if (index != i) return;
      using Member = std::remove_reference_t<decltype(member)>;
      found = {name, static_cast<double>(member), static_cast<double>(least),
               static_cast<double>(most), !std::is_floating_point<Member>::value};
    });
    return found;
  }
  static void set_option(void* to, int i, double value) {
    each_option(*static_cast<Cell*>(to), [&](int index, const char*, auto& member, auto, auto) {
      using Member = std::remove_reference_t<decltype(member)>;
      if (index == i) member = static_cast<Member>(value);
    });
  }
  static void construct(CellStorage& cell) { new (cell.bytes) Cell(); }
  static void copy(const void* from, unsigned given, CellStorage& to) {
    Cell* cell = new (to.bytes) Cell(*static_cast<const Cell*>(from));
    cell->given(given);
  }

  static CellDescription description() {
    return {Cell::name,      Cell::inputs, Cell::names, Cell::vector_inputs, Cell::optional_inputs,
            count_options(), option,       set_option,  construct,           copy};
  }
};

template <class Cell>
CellType describe(CellKind kind, const cpu::CustomCell* on_cpu = nullptr,
                  cuda::CustomCell* const* on_cuda = nullptr) {
  static_assert(CellTraits<Cell>::is_cell);
  return {Describe<Cell>::description(),
          Cell::state,
          Cell::map_inputs,
          Cell::backward_inputs,
          Cell::state_inputs,
          Cell::state_is_output,
          kind,
          on_cpu,
          on_cuda};
}

}  // namespace detail

/// The type of a cell. The library has those of its own cells; custom_cell.hpp makes others.
template <class Cell>
const CellType& cell_type();

template <>
const CellType& cell_type<struct ScanCell>();
#define SCANRNN_TYPE(name, Cell) \
  template <>                    \
  const CellType& cell_type<Cell>();
SCANRNN_CELLS(SCANRNN_TYPE)
#undef SCANRNN_TYPE

/// Sets the first `count` options. Throws InvalidArgument for more than the cell has, and for a
/// value that isn't allowed.
void set_options(const CellDescription& type, CellStorage& cell, const double* values, int count);

/// The library's cell of that kind, from 1 to kCells - 1.
const CellType& cell_type(CellKind kind);

}  // namespace scanrnn
