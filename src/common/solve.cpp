// SPDX-License-Identifier: Apache-2.0
// The calls of nonlinear cells: checks, and what backends run.
#include "scanrnn/solve.hpp"

#include <cmath>

#include "common/cell_arguments.hpp"
#include "common/run.hpp"

namespace scanrnn {

#define SCANRNN_TYPE(name, Cell)                                                           \
  template <>                                                                              \
  const NonlinearCellType& nonlinear_cell_type<Cell>() {                                   \
    static const NonlinearCellType type = detail::describe<Cell>(NonlinearCellKind::name); \
    return type;                                                                           \
  }
SCANRNN_NONLINEAR_CELLS(SCANRNN_TYPE)
#undef SCANRNN_TYPE

const NonlinearCellType& nonlinear_cell_type(NonlinearCellKind kind) {
  switch (kind) {
#define SCANRNN_CASE(name, Cell) \
  case NonlinearCellKind::name:  \
    return nonlinear_cell_type<Cell>();
    SCANRNN_NONLINEAR_CELLS(SCANRNN_CASE)
#undef SCANRNN_CASE
    default:
      throw InvalidArgument("kind is " + std::to_string(static_cast<int>(kind)) +
                            ", expected a nonlinear cell's number, from 0 to " +
                            std::to_string(kNonlinearCells - 1));
  }
}

namespace {

constexpr double kTolerance = 1e-6, kDoubleTolerance = 1e-13;

template <class Call>
void start_problem(const Checker& check, const Call& call, Owned<SolveProblem>& p) {
  const NonlinearCellType& type = *call.type;
  SolveProblem& q = p.problem;
  check.start(q, call.sequences);
  q.type = &type;
  take_inputs(check, type, call.cell, call.in, p.cell, q.in);
  q.cell = p.cell.bytes;
  for (int s = 0; s < type.states; ++s) {
    check.state((std::string(type.state_names[s]) + "0").c_str(), call.initial[s]);
    q.initial[s] = call.initial[s];
  }
  check_options(type, call.cell);
}

template <class Value>
[[noreturn]] void refuse(const char* call, const char* name, Value value, const char* expected) {
  throw InvalidArgument(std::string(call) + ": " + name + " is " + std::to_string(value) +
                        ", expected " + expected);
}

void take_options(const Checker& check, const SolveOptions& options, SolveProblem& q) {
  if (!(options.tolerance >= 0 && std::isfinite(options.tolerance))) {
    refuse(check.call, "tolerance", options.tolerance, "a finite number from 0 on");
  }
  if (options.max_passes < 0) {
    refuse(check.call, "max_passes", options.max_passes, "a number from 0 on");
  }
  if (options.segment < 0) {
    refuse(check.call, "segment", options.segment, "a number of steps, or 0 to have it chosen");
  }
  q.tolerance = options.tolerance > 0       ? options.tolerance
                : check.dtype == DType::f64 ? kDoubleTolerance
                                            : kTolerance;
  q.max_passes = options.max_passes;
  q.segment = options.segment;
}

void check_report(const Checker& check, const Array<2>& report) {
  if (!report) return;
  constexpr std::int64_t columns = SolveReport::kColumns;
  const bool contiguous =
      report.stride[1] == 1 && (report.stride[0] == columns || check.sequences <= 1);
  if (report.dtype == DType::f64 && report.shape[0] == check.sequences &&
      report.shape[1] == columns && (contiguous || check.sequences == 0)) {
    return;
  }
  throw InvalidArgument(std::string(check.call) + ": report has shape (" +
                        std::to_string(report.shape[0]) + ", " + std::to_string(report.shape[1]) +
                        ") and dtype " + name_of(report.dtype) + ", expected contiguous (" +
                        std::to_string(check.sequences) + ", " + std::to_string(columns) +
                        ") float64");
}

}  // namespace

static void make_problem(const AnySolveForward& call, Device device, Owned<SolveProblem>& p) {
  const NonlinearCellType& type = *call.type;
  SolveProblem& q = p.problem;
  p.call = type.name;
  const Checker check(p.call.c_str(), type.names[0], call.in[0], call.sequences, false, device);
  start_problem(check, call, p);
  take_options(check, call.options, q);
  check.required("out", call.out.data);
  check.full("out", call.out);
  check.distinct("out", call.out);
  check.full("kept", call.kept);
  check.distinct("kept", call.kept);
  for (int s = 0; s < type.states; ++s) {
    const std::string name = std::string("final_") + type.state_names[s];
    check.final_state(name.c_str(), call.final_state[s]);
    check.distinct(name.c_str(), call.final_state[s]);
    q.final_state[s] = call.final_state[s];
  }
  check_report(check, call.report);
  q.out = call.out;
  if (type.kept_state >= 0) q.kept = call.kept;
  q.report = call.report;
}

static void make_problem(const AnySolveBackward& call, Device device, Owned<SolveProblem>& p) {
  const NonlinearCellType& type = *call.type;
  SolveProblem& q = p.problem;
  p.call = std::string(type.name) + " backward";
  const Checker check(p.call.c_str(), type.names[0], call.in[0], call.sequences, false, device);
  start_problem(check, call, p);
  if (type.output_state >= 0) {
    check.required("out", call.out.data);
    check.full("out", call.out);
    q.states[type.output_state] = call.out;
  }
  if (type.kept_state >= 0) {
    check.required("kept", call.kept.data);
    check.full("kept", call.kept);
    q.states[type.kept_state] = call.kept;
  }
  check.full("dout", call.dout);
  take_gradients(check, type, call.din, q.din);
  if (call.dsum != nullptr) take_sums(check, type, call.dsum, q.dsum);
  for (int s = 0; s < type.states; ++s) {
    const std::string state = type.state_names[s], dfinal = "dfinal_" + state,
                      dinitial = "d" + state + "0";
    check.state(dfinal.c_str(), call.dfinal[s]);
    check.state(dinitial.c_str(), call.dinitial[s]);
    check.distinct(dinitial.c_str(), call.dinitial[s]);
    q.dfinal[s] = call.dfinal[s];
    q.dinitial[s] = call.dinitial[s];
  }
  q.backward = true;
  q.dy = call.dout;
}

std::size_t solve_forward_workspace_bytes(const AnySolveForward& call, const Target& target) {
  return bytes_of<SolveProblem>(call, target);
}

std::size_t solve_backward_workspace_bytes(const AnySolveBackward& call, const Target& target) {
  return bytes_of<SolveProblem>(call, target);
}

void solve_forward(const AnySolveForward& call, Workspace workspace, const Target& target) {
  run_call<SolveProblem>(call, workspace, target);
}

void solve_backward(const AnySolveBackward& call, Workspace workspace, const Target& target) {
  run_call<SolveProblem>(call, workspace, target);
}

}  // namespace scanrnn
