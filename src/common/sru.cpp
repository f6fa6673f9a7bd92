// SPDX-License-Identifier: Apache-2.0
#include "scanrnn/sru.hpp"
#include "common/run.hpp"
#include "common/validate.hpp"

namespace scanrnn {
namespace {

// The members that forward and backward share; `Call` is either of them.
template <class Call>
Problem make_inputs(const Checker& check, const Call& call, const SruCell& cell) {
  const std::int64_t elements = check.batch * check.time * check.channels;
  check.required("u", call.u.data, elements);
  check.required("forget", call.forget.data, elements);
  check.required("reset", call.reset.data, elements);
  check.full("forget", call.forget);
  check.full("reset", call.reset);
  check.full("skip", call.skip);
  check.vector("bias_forget", call.bias_forget, true);
  check.vector("bias_reset", call.bias_reset, true);
  check.state("c0", call.c0);

  Problem p = check.problem(call.sequences);
  p.set_cell(cell_type<SruCell>(), &cell);
  const auto zero = [&] {
    ConstArray<3> array{absent_input(), check.dtype, {}, {}};
    for (int i = 0; i < 3; ++i) array.shape[i] = call.u.shape[i];
    return array;
  };
  const auto bias = [&](const ConstArray<1>& vector) {
    if (!vector) return zero();
    ConstArray<3> array = zero();
    array.data = vector.data;
    array.dtype = vector.dtype;
    array.stride[2] = vector.stride[0];
    return array;
  };
  p.in[SruCell::kU] = call.u;
  p.in[SruCell::kForget] = call.forget;
  p.in[SruCell::kReset] = call.reset;
  p.in[SruCell::kSkip] = call.skip ? call.skip : zero();
  p.in[SruCell::kBiasForget] = bias(call.bias_forget);
  p.in[SruCell::kBiasReset] = bias(call.bias_reset);
  p.initial = call.c0;
  return p;
}

void check_checkpoints(const Checker& check, const ConstArray<2>& array) {
  if (!array) return;
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

SruCell cell_of(Activation activation) {
  const int value = static_cast<int>(activation);
  if (value < 0 || value > static_cast<int>(Activation::relu)) {
    throw InvalidArgument("sru: activation is " + std::to_string(value) +
                          ", expected 0 (identity), 1 (tanh) or 2 (relu)");
  }
  SruCell cell;
  cell.activation = activation;
  return cell;
}

Problem make_problem(const SruForward& call, const SruCell& cell, Device device) {
  const Checker check("sru", "u", call.u, call.sequences, false, device);
  Problem p = make_inputs(check, call, cell);
  check.required("h", call.h.data, check.batch * check.time * check.channels);
  check.full("h", call.h);
  check.final_state("final_state", call.final_state);
  check.distinct("h", call.h);
  check.distinct("final_state", call.final_state);
  check_checkpoints(check, call.checkpoints);
  p.out = call.h;
  p.final_state = call.final_state;
  p.checkpoints = call.checkpoints;
  return p;
}

Array<3> as_row(const Array<1>& vector) {
  if (!vector) return {};
  return {vector.data, vector.dtype, {1, 1, vector.shape[0]}, {0, 0, vector.stride[0]}};
}

Problem make_problem(const SruBackward& call, const SruCell& cell, Device device) {
  const Checker check("sru backward", "u", call.u, call.sequences, false, device);
  Problem p = make_inputs(check, call, cell);
  p.backward = true;
  check.required("checkpoints", call.checkpoints.data, check.batch * check.time * check.channels);
  check_checkpoints(check, call.checkpoints);
  check.full("dh", call.dh);
  check.state("dfinal", call.dfinal);
  check.full("du", call.du);
  check.full("dforget", call.dforget);
  check.full("dreset", call.dreset);
  check.full("dskip", call.dskip);
  check.vector("dbias_forget", call.dbias_forget, true);
  check.vector("dbias_reset", call.dbias_reset, true);
  check.state("dc0", call.dc0);
  check.distinct("du", call.du);
  check.distinct("dforget", call.dforget);
  check.distinct("dreset", call.dreset);
  check.distinct("dskip", call.dskip);
  check.distinct("dbias_forget", call.dbias_forget);
  check.distinct("dbias_reset", call.dbias_reset);
  check.distinct("dc0", call.dc0);

  p.checkpoints.data = const_cast<void*>(call.checkpoints.data);
  p.checkpoints.dtype = call.checkpoints.dtype;
  p.dy = call.dh;
  p.dfinal = call.dfinal;
  p.din[SruCell::kU] = call.du;
  p.din[SruCell::kForget] = call.dforget;
  p.din[SruCell::kReset] = call.dreset;
  p.din[SruCell::kSkip] = call.dskip;
  p.din[SruCell::kBiasForget] = as_row(call.dbias_forget);
  p.din[SruCell::kBiasReset] = as_row(call.dbias_reset);
  p.dinitial = call.dc0;
  return p;
}

}  // namespace

std::size_t sru_forward_workspace_bytes(const SruForward& call, const Target& target) {
  const SruCell cell = cell_of(call.activation);
  return workspace_bytes(make_problem(call, cell, target.device), target);
}

std::size_t sru_backward_workspace_bytes(const SruBackward& call, const Target& target) {
  const SruCell cell = cell_of(call.activation);
  return workspace_bytes(make_problem(call, cell, target.device), target);
}

void sru_forward(const SruForward& call, Workspace workspace, const Target& target) {
  const SruCell cell = cell_of(call.activation);
  run(make_problem(call, cell, target.device), workspace, target);
}

void sru_backward(const SruBackward& call, Workspace workspace, const Target& target) {
  const SruCell cell = cell_of(call.activation);
  run(make_problem(call, cell, target.device), workspace, target);
}

}  // namespace scanrnn
