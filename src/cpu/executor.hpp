// SPDX-License-Identifier: Apache-2.0
// Runs a cell over sequences on the CPU: knows layouts, threads and the merge tree, and no cell.
#pragma once

#include "common/problem.hpp"
#include "cpu/kernels.hpp"
#include "cpu/tree.hpp"

namespace scanrnn::cpu {

std::size_t workspace_bytes(const Problem& problem, const CellKernels& cell);
void execute(const Problem& problem, const CellKernels& cell, const InstructionSet& set,
             Workspace workspace);

/// A sequence's block of channels, as an observed run enters it. Vectors hold the accumulation
/// type's scalars of `channels` lanes, imaginary parts `plane` scalars after the real ones.
struct Unit {
  std::int64_t sequence, row, begin, end;
  std::int64_t first_channel, channels;
  std::ptrdiff_t plane;
};

struct UnitObserver : TreeObserver {
  virtual void enter(const Unit& unit) = 0;

 protected:
  ~UnitObserver() = default;
};

/// Runs on the calling thread and reports every unit, leaf and merge to `observer`; allocates.
void execute_observed(const Problem& problem, const CellKernels& cell, const InstructionSet& set,
                      UnitObserver& observer);

/// The set in use: the one named by set_cpu_isa, or the best of this machine.
const InstructionSet& instruction_set();

/// The kernels of a problem's cell and accumulation type.
const CellKernels& kernels_of(const Problem& problem, const InstructionSet& set);

}  // namespace scanrnn::cpu
