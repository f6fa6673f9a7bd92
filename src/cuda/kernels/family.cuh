// SPDX-License-Identifier: Apache-2.0
// A cell's kernels for one dtype, as the executor's table wants them.
#pragma once

#include <type_traits>

#include "cuda/clusters.cuh"
#include "cuda/columns.cuh"
#include "cuda/kernels/table.hpp"
#include "cuda/rows.cuh"
#include "cuda/serial.cuh"
#include "cuda/whole_columns.cuh"

namespace scanrnn::cuda {

/// `rows`: the kernel of all other calls.
template <class Cell, class T, bool kBackward>
Kernel whole_kernel(const Kernel& rows) {
  Kernel k = rows;
  k.function = reinterpret_cast<const void*>(&run_rows<Cell, T, kBackward, true>);
  k.needs_fast_memory = !Cell::step_is_input;
  k.needs_output = RowPass<Cell, kBackward, T, true>::needs_output;
  k.shared_bytes = [](int log2, int leaf, int, int levels) {
    return RowPass<Cell, kBackward, T, true>::shared_bytes(1 << log2, leaf, levels);
  };
  return k;
}
/// The same by clusters; none where a pass has no such kernel.
template <class Cell, class T, bool kBackward>
Kernel cluster_kernel(const Kernel& rows) {
  Kernel k;
  if constexpr (has_clusters<Cell, T, kBackward>) {
    using P = RowPass<Cell, kBackward, T, true>;
    k = rows;
    k.function = reinterpret_cast<const void*>(&run_clusters<Cell, T, kBackward>);
    k.name = "clusters";
    k.needs_output = P::needs_output;
    k.shared_bytes = [](int, int, int, int) { return ClusterPass<P>::staged_bytes; };
    k.blocks = ClusterPass<P>::blocks;
  }
  return k;
}
template <class Cell, class T, bool kBackward, class... Case>
void add_cases(PassKernels& k, CellCases<Case...>) {
  static_assert(sizeof...(Case) <= kMostCases && ((sizeof(Case) == sizeof(Cell)) && ...));
  int i = 0;
  const auto add = [&](Kernel whole, const Kernel& clusters, bool (*suits)(const void*)) {
    whole.suits = suits;
    k.cases[i] = whole;
    k.cluster_cases[i++] = clusters;
  };
  (add(whole_kernel<Case, T, kBackward>(k.rows), cluster_kernel<Case, T, kBackward>(k.rows),
       [](const void* cell) { return Case::suits(*static_cast<const Cell*>(cell)); }),
   ...);
}

template <class GivenCell, class T, bool kBackward>
PassKernels pass_kernels() {
  using Cell = scanrnn::Prepared<GivenCell>;  // kernels read vector inputs once for many steps
  using Rows = RowPass<Cell, kBackward, T>;
  using Columns = ColumnPass<Cell, kBackward, T>;
  PassKernels k;
  k.rows = {reinterpret_cast<const void*>(&run_rows<Cell, T, kBackward>),
            "rows",
            Rows::leaf,
            Rows::warps,
            Rows::vector_bytes,
            [](int log2, int leaf, int, int levels) {
              return Rows::shared_bytes(1 << log2, leaf, levels);
            }};
  constexpr bool kHasWhole = Columns::template has_plain<T>;
  if constexpr (kHasWhole) k.whole = whole_kernel<Cell, T, kBackward>(k.rows);
  // Not for float16: a library for all architectures would be too large.
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, BFloat16>) {
    add_cases<GivenCell, T, kBackward>(k, typename CasesOf<GivenCell>::Type{});
  }
  // Those of cells that have cases are for these alone.
  constexpr bool kHasCases = !std::is_same_v<typename CasesOf<GivenCell>::Type, CellCases<>>;
  if constexpr (std::is_same_v<Cell, ScanCell> || (std::is_same_v<T, BFloat16> && !kHasCases)) {
    k.clusters = cluster_kernel<Cell, T, kBackward>(k.rows);
  }
  if constexpr (std::is_same_v<Cell, ScanCell>) {
    if constexpr (has_narrow<T>) {
      k.narrow_whole = k.whole;
      k.narrow_whole.function =
          reinterpret_cast<const void*>(&run_rows<Cell, T, kBackward, true, true>);
      if constexpr (!kBackward) {  // which gains nothing by them (TUNING.md)
        k.narrow_clusters = k.clusters;
        k.narrow_clusters.function =
            reinterpret_cast<const void*>(&run_clusters<Cell, T, kBackward, true>);
      }
    }
  }
  k.columns = {reinterpret_cast<const void*>(&run_columns<Cell, T, kBackward>),
               "columns",
               Columns::leaf,
               Columns::warps,
               kVectorBytes,
               [](int, int, int warps, int) { return warps * Columns::warp_bytes; }};
  if constexpr (kHasWhole) {
    k.whole_columns = k.columns;
    k.whole_columns.function =
        reinterpret_cast<const void*>(&run_whole_columns<Cell, T, kBackward>);
    k.whole_columns.blocks = Columns::blocks;
    k.whole_columns.needs_fast_memory = !Cell::step_is_input;
  }
  k.serial = {reinterpret_cast<const void*>(&run_serial<Cell, T, kBackward>),
              "serial",
              0,
              kWarps,
              kVectorBytes,
              [](int, int, int, int) { return 0; }};
  return k;
}

template <class Cell, class T>
CellKernels cell_kernels() {
  return {pass_kernels<Cell, T, false>(), pass_kernels<Cell, T, true>()};
}

}  // namespace scanrnn::cuda
