// SPDX-License-Identifier: Apache-2.0
// Picks the instruction set at run time, and the kernels of a cell.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/backend.hpp"
#include "cpu/executor.hpp"
#include "cpu/solve.hpp"
#include "scanrnn/error.hpp"

namespace scanrnn {
namespace cpu {

#define SCANRNN_DECLARE_SET(isa)           \
  namespace isa {                          \
  const InstructionSet& instruction_set(); \
  }
#if defined(SCANRNN_HAVE_AVX512)
SCANRNN_DECLARE_SET(avx512)
#endif
#if defined(SCANRNN_HAVE_AVX2)
SCANRNN_DECLARE_SET(avx2)
#endif
#if defined(SCANRNN_HAVE_SSE2)
SCANRNN_DECLARE_SET(sse2)
#endif
#if defined(SCANRNN_HAVE_NEON)
SCANRNN_DECLARE_SET(neon)
#endif
#if defined(SCANRNN_HAVE_GENERIC)
SCANRNN_DECLARE_SET(generic)
#endif
#undef SCANRNN_DECLARE_SET

namespace {

struct Entry {
  const char* name;
  bool (*runs)();
  const InstructionSet& (*set)();
};

[[maybe_unused]] bool always() { return true; }

// Best first.
const Entry kSets[] = {
#if defined(SCANRNN_HAVE_AVX512)
    {"avx512",
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("fma");
     },
     avx512::instruction_set},
#endif
#if defined(SCANRNN_HAVE_AVX2)
    // Every processor with AVX2 has F16C.
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); },
     avx2::instruction_set},
#endif
#if defined(SCANRNN_HAVE_SSE2)
    {"sse2", always, sse2::instruction_set},
#endif
#if defined(SCANRNN_HAVE_NEON)
    {"neon", always, neon::instruction_set},
#endif
#if defined(SCANRNN_HAVE_GENERIC)
    {"generic", always, generic::instruction_set},
#endif
};

const Entry* find(const char* name) {
  for (const Entry& entry : kSets) {
    if (std::strcmp(entry.name, name) == 0 && entry.runs()) return &entry;
  }
  return nullptr;
}

const Entry& named(const std::string& who, const char* name) {
  if (const Entry* entry = find(name)) return *entry;
  throw InvalidArgument(who + ": '" + name +
                        "' is not built or not supported here, expected one of: " + cpu_isas());
}

const Entry* initial() {
  const char* name = std::getenv("SCANRNN_CPU_ISA");
  if (name != nullptr && *name != '\0') return &named("SCANRNN_CPU_ISA", name);
  for (const Entry& entry : kSets) {
    if (entry.runs()) return &entry;
  }
  return nullptr;
}

std::atomic<const Entry*>& current() {
  static std::atomic<const Entry*> entry{initial()};
  return entry;
}

}  // namespace

const InstructionSet& instruction_set() { return current().load()->set(); }

const InstructionSet& instruction_set_of(const Problem& problem) {
  if (problem.type->kind != CellKind::custom) return instruction_set();
  const CustomCell* cell = problem.type->on_cpu;
  if (cell == nullptr) {
    throw DeviceError(std::string(problem.call) + ": the cell was compiled without CPU kernels");
  }
  // Its registers must be as wide as those of the library's kernels beside it.
  if (const Entry* entry = find(cell->isa)) return entry->set();
  throw DeviceError(std::string(problem.call) + ": the cell's kernels were compiled for " +
                    cell->isa + ", expected one of: " + cpu_isas());
}

const CellKernels& kernels_of(const Problem& problem, const InstructionSet& set) {
  const int type = static_cast<int>(problem.accumulation) - static_cast<int>(DType::f32);
  if (problem.type->kind == CellKind::custom) return problem.type->on_cpu->kernels[type];
  return set.cell[static_cast<int>(problem.type->kind)][type];
}

std::size_t workspace_bytes(const Problem& problem) {
  return workspace_bytes(problem, kernels_of(problem, instruction_set_of(problem)));
}

void execute(const Problem& problem, Workspace workspace) {
  const InstructionSet& set = instruction_set_of(problem);
  execute(problem, kernels_of(problem, set), set, workspace);
}

namespace {

const SolveKernels& kernels_of(const SolveProblem& problem, const InstructionSet& set) {
  const int type = static_cast<int>(problem.accumulation) - static_cast<int>(DType::f32);
  return set.solve[static_cast<int>(problem.type->kind)][type];
}

}  // namespace

std::size_t workspace_bytes(const SolveProblem& problem) {
  return workspace_bytes(problem, kernels_of(problem, instruction_set()));
}

void execute(const SolveProblem& problem, Workspace workspace) {
  const InstructionSet& set = instruction_set();
  execute(problem, kernels_of(problem, set), set, workspace);
}

}  // namespace cpu

const char* cpu_isa() { return cpu::current().load()->name; }

const char* cpu_isas() {
  static const std::string names = [] {
    std::string list;
    for (const cpu::Entry& entry : cpu::kSets) {
      if (!entry.runs()) continue;
      if (!list.empty()) list += ' ';
      list += entry.name;
    }
    return list;
  }();
  return names.c_str();
}

void set_cpu_isa(const char* name) { cpu::current().store(&cpu::named("set_cpu_isa", name)); }

}  // namespace scanrnn
