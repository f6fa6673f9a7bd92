// SPDX-License-Identifier: Apache-2.0
// The calls of every cell: checks, and what backends run.
#include "scanrnn/cells.hpp"

#include "common/cell_arguments.hpp"
#include "common/run.hpp"

namespace scanrnn {

#define SCANRNN_TYPE(name, Cell)                                         \
  template <>                                                            \
  const CellType& cell_type<Cell>() {                                    \
    static const CellType type = detail::describe<Cell>(CellKind::name); \
    return type;                                                         \
  }
SCANRNN_CELLS(SCANRNN_TYPE)
#undef SCANRNN_TYPE

const CellType& cell_type(CellKind kind) {
  switch (kind) {
#define SCANRNN_CASE(name, Cell) \
  case CellKind::name:           \
    return cell_type<Cell>();
    SCANRNN_CELLS(SCANRNN_CASE)
#undef SCANRNN_CASE
    default:
      throw InvalidArgument("kind is " + std::to_string(static_cast<int>(kind)) +
                            ", expected a cell's number, from 1 to " + std::to_string(kCells - 1));
  }
}

namespace {

template <class Call>
void make_inputs(const Checker& check, const Call& call, Owned<Problem>& p) {
  const CellType& type = *call.type;
  check.start(p.problem, call.sequences);
  take_inputs(check, type, call.cell, call.in, p.cell, p.problem.in);
  check.state((std::string(type.state) + "0").c_str(), call.initial);
  check_options(type, call.cell);
  p.problem.set_cell(type, p.cell.bytes);
  p.problem.initial = call.initial;
}

void check_checkpoints(const Checker& check, const CellType& type, const ConstArray<2>& array) {
  if (!array) return;
  if (type.state_is_output) {
    throw InvalidArgument(std::string(check.call) +
                          ": checkpoints is given, expected none: the output has the states");
  }
  const std::int64_t rows = checkpoint_rows(check.batch, check.time, check.sequences);
  const bool empty = rows == 0 || check.channels == 0;  // strides of no elements mean nothing
  const bool contiguous = (array.stride[1] == 1 || check.channels == 1) &&
                          (array.stride[0] == check.channels || rows == 1);
  if (array.dtype == accumulation_dtype(check.dtype) && array.shape[0] == rows &&
      array.shape[1] == check.channels && (empty || contiguous)) {
    return;
  }
  throw InvalidArgument(std::string(check.call) + ": checkpoints has shape (" +
                        std::to_string(array.shape[0]) + ", " + std::to_string(array.shape[1]) +
                        ") and dtype " + name_of(array.dtype) + ", expected contiguous (" +
                        std::to_string(rows) + ", " + std::to_string(check.channels) + ") " +
                        name_of(accumulation_dtype(check.dtype)));
}

}  // namespace

static void make_problem(const AnyCellForward& call, Device device, Owned<Problem>& p) {
  const CellType& type = *call.type;
  p.call = type.name;
  const Checker check(p.call.c_str(), type.names[0], call.in[0], call.sequences, false, device);
  make_inputs(check, call, p);
  check.required("out", call.out.data);
  check.full("out", call.out);
  check.final_state("final_state", call.final_state);
  check.distinct("out", call.out);
  check.distinct("final_state", call.final_state);
  check_checkpoints(check, type, call.checkpoints);
  p.problem.out = call.out;
  p.problem.final_state = call.final_state;
  p.problem.checkpoints = call.checkpoints;
}

static void make_problem(const AnyCellBackward& call, Device device, Owned<Problem>& p) {
  const CellType& type = *call.type;
  p.call = std::string(type.name) + " backward";
  const Checker check(p.call.c_str(), type.names[0], call.in[0], call.sequences, false, device);
  make_inputs(check, call, p);
  if (type.state_is_output) {
    check.required("out", call.out.data);
    check.full("out", call.out);
  } else {
    check.required("checkpoints", call.checkpoints.data);
  }
  check_checkpoints(check, type, call.checkpoints);
  check.full("dout", call.dout);
  check.state("dfinal", call.dfinal);
  take_gradients(check, type, call.din, p.problem.din);
  const std::string dinitial = gradient_of(type.state) + "0";
  check.state(dinitial.c_str(), call.dinitial);
  check.distinct(dinitial.c_str(), call.dinitial);

  p.problem.backward = true;
  p.problem.checkpoints.data = const_cast<void*>(call.checkpoints.data);
  p.problem.checkpoints.dtype = call.checkpoints.dtype;
  if (type.state_is_output) p.problem.states = call.out;
  p.problem.dy = call.dout;
  p.problem.dfinal = call.dfinal;
  p.problem.dinitial = call.dinitial;
}

std::int64_t checkpoint_rows(std::int64_t batch, std::int64_t time, std::int64_t sequences) {
  // A packed sequence that starts at step s has its first row at s / kLeafSteps + n, which leaves
  // room for every sequence before it.
  if (batch == 1) return time / kLeafSteps + (sequences > 0 ? sequences : 1);
  return batch * (time / kLeafSteps + 1);
}

std::size_t cell_forward_workspace_bytes(const AnyCellForward& call, const Target& target) {
  return bytes_of<Problem>(call, target);
}

std::size_t cell_backward_workspace_bytes(const AnyCellBackward& call, const Target& target) {
  return bytes_of<Problem>(call, target);
}

void cell_forward(const AnyCellForward& call, Workspace workspace, const Target& target) {
  run_call<Problem>(call, workspace, target);
}

void cell_backward(const AnyCellBackward& call, Workspace workspace, const Target& target) {
  run_call<Problem>(call, workspace, target);
}

}  // namespace scanrnn
