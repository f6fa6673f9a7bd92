// SPDX-License-Identifier: Apache-2.0
#include "scanrnn/scan.hpp"

#include "common/run.hpp"
#include "common/scan_problem.hpp"
#include "common/validate.hpp"

namespace scanrnn {

template <>
const CellType& cell_type<ScanCell>() {
  static const CellType type = detail::describe<ScanCell>(CellKind::scan);
  return type;
}

Problem make_problem(const ScanForward& call, const ScanCell& cell, Device device) {
  const Checker check("scan", "x", call.x, call.sequences, true, device);
  check.required("a", call.a.data);
  check.required("x", call.x.data);
  check.required("h", call.h.data);
  check.broadcastable("a", call.a);
  check.state("h0", call.h0);
  check.full("h", call.h);
  check.final_state("final_state", call.final_state);
  check.distinct("h", call.h);
  check.distinct("final_state", call.final_state);

  Problem p;
  check.start(p, call.sequences);
  p.set_cell(cell_type<ScanCell>(), &cell);
  p.in[ScanCell::kA] = broadcast(call.a, call.x.shape);
  p.in[ScanCell::kX] = call.x;
  p.initial = call.h0;
  p.out = call.h;
  p.final_state = call.final_state;
  return p;
}

namespace {

Problem make_problem(const ScanBackward& call, const ScanCell& cell, Device device) {
  const Checker check("scan backward", "h", call.h, call.sequences, true, device);
  check.required("a", call.a.data);
  check.required("h", call.h.data);
  check.broadcastable("a", call.a);
  check.state("h0", call.h0);
  check.full("dh", call.dh);
  check.state("dfinal", call.dfinal);
  if (call.da) {
    check.broadcastable("da", call.da);
    check.same_shape("da", call.da, "a", call.a);
  }
  check.full("dx", call.dx);
  check.state("dh0", call.dh0);
  check.distinct("da", call.da);
  check.distinct("dx", call.dx);
  check.distinct("dh0", call.dh0);

  Problem p;
  check.start(p, call.sequences);
  p.backward = true;
  p.set_cell(cell_type<ScanCell>(), &cell);
  p.in[ScanCell::kA] = broadcast(call.a, call.h.shape);
  p.initial = call.h0;
  p.states = call.h;
  p.dy = call.dh;
  p.dfinal = call.dfinal;
  p.din[ScanCell::kA] = call.da;
  p.din[ScanCell::kX] = call.dx;
  p.dinitial = call.dh0;
  return p;
}

ScanCell cell_of(const ScanBackward& call) {
  ScanCell cell;
  cell.conjugate = call.conjugate;
  return cell;
}

}  // namespace

std::size_t scan_forward_workspace_bytes(const ScanForward& call, const Target& target) {
  const ScanCell cell;
  return workspace_bytes(make_problem(call, cell, target.device), target);
}

std::size_t scan_backward_workspace_bytes(const ScanBackward& call, const Target& target) {
  const ScanCell cell = cell_of(call);
  return workspace_bytes(make_problem(call, cell, target.device), target);
}

void scan_forward(const ScanForward& call, Workspace workspace, const Target& target) {
  const ScanCell cell;
  run(make_problem(call, cell, target.device), workspace, target);
}

void scan_backward(const ScanBackward& call, Workspace workspace, const Target& target) {
  const ScanCell cell = cell_of(call);
  run(make_problem(call, cell, target.device), workspace, target);
}

}  // namespace scanrnn
