// SPDX-License-Identifier: Apache-2.0
// What is refused, with which words; and that nothing has been written by then.
#include <algorithm>
#include <cmath>
#include <functional>

#include "arrays.hpp"

using namespace test;
using namespace scanrnn;

namespace {

constexpr Index B = 2, T = 5, D = 3;

Tensor ones(DType dtype, Index n0, Index n1, Index n2) {
  Tensor array = Tensor::input(dtype, n0, n1, n2);
  array.fill([] { return Value{1, 0}; });
  return array;
}

// A valid call of each kind, whose members a case spoils.

struct Scan {
  DType dtype;
  Tensor a, x, h0, h, final_state, offsets, lengths, reset;
  ScanForward call;

  explicit Scan(DType type = DType::f32, Index batch = B)
      : dtype(type),
        a(ones(type, batch, T, D)),
        x(ones(type, batch, T, D)),
        h0(ones(type, 1, batch, D)),
        h(Tensor::output(type, batch, T, D)),
        final_state(Tensor::output(accumulation_dtype(type), 1, batch, D)) {
    call.a = a.in<3>();
    call.x = x.in<3>();
    call.h0 = h0.in<2>();
    call.h = h.out<3>();
    call.final_state = final_state.out<2>();
  }
  // Both ways to the checks: asking for the workspace, and the call itself.
  void ask() { (void)scan_forward_workspace_bytes(call); }
  void run() {
    Lent lent(1 << 20);
    scan_forward(call, lent.workspace());
  }
  bool untouched() const { return h.untouched() && final_state.untouched(); }
};

struct ScanBack {
  Tensor a, h, h0, dh, dfinal, da, dx, dh0;
  ScanBackward call;

  explicit ScanBack(DType type = DType::f32)
      : a(ones(type, B, T, D)),
        h(ones(type, B, T, D)),
        h0(ones(type, 1, B, D)),
        dh(ones(type, B, T, D)),
        dfinal(ones(type, 1, B, D)),
        da(Tensor::output(type, B, T, D)),
        dx(Tensor::output(type, B, T, D)),
        dh0(Tensor::output(type, 1, B, D)) {
    call.a = a.in<3>();
    call.h = h.in<3>();
    call.h0 = h0.in<2>();
    call.dh = dh.in<3>();
    call.dfinal = dfinal.in<2>();
    call.da = da.out<3>();
    call.dx = dx.out<3>();
    call.dh0 = dh0.out<2>();
  }
  void ask() { (void)scan_backward_workspace_bytes(call); }
  void run() {
    Lent lent(1 << 20);
    scan_backward(call, lent.workspace());
  }
  bool untouched() const { return da.untouched() && dx.untouched() && dh0.untouched(); }
};

constexpr int kU = SruCell::kU, kForget = SruCell::kForget, kReset = SruCell::kReset,
              kSkip = SruCell::kSkip, kBiasForget = SruCell::kBiasForget,
              kBiasReset = SruCell::kBiasReset;

struct SruCall {
  Tensor full, bias, state, h, final_state, checkpoints;
  CellForward<SruCell> call;

  explicit SruCall(DType type = DType::f32)
      : full(ones(type, B, T, D)),
        bias(ones(type, 1, 1, D)),
        state(ones(type, 1, B, D)),
        h(Tensor::output(type, B, T, D)),
        final_state(Tensor::output(accumulation_dtype(type), 1, B, D)),
        checkpoints(Tensor::output(accumulation_dtype(type), 1, checkpoint_rows(B, T, B), D)) {
    for (int i : {kU, kForget, kReset, kSkip}) call.in[i] = full.in<3>();
    call.in[kBiasForget] = call.in[kBiasReset] = per_channel(bias.in<1>());
    call.initial = state.in<2>();
    call.out = h.out<3>();
    call.final_state = final_state.out<2>();
    call.checkpoints = checkpoints.out<2>();
  }
  void ask() { (void)cell_forward_workspace_bytes(call); }
  void run() {
    Lent lent(1 << 20);
    cell_forward(call, lent.workspace());
  }
  bool untouched() const {
    return h.untouched() && final_state.untouched() && checkpoints.untouched();
  }
};

struct SruBack {
  Tensor full, bias, state, checkpoints, du, df, dr, ds, dbf, dbr, dc0;
  CellBackward<SruCell> call;

  SruBack()
      : full(ones(DType::f32, B, T, D)),
        bias(ones(DType::f32, 1, 1, D)),
        state(ones(DType::f32, 1, B, D)),
        checkpoints(ones(DType::f32, 1, checkpoint_rows(B, T, B), D)),
        du(Tensor::output(DType::f32, B, T, D)),
        df(du),
        dr(du),
        ds(du),
        dbf(Tensor::output(DType::f32, 1, 1, D)),
        dbr(dbf),
        dc0(Tensor::output(DType::f32, 1, B, D)) {
    for (int i : {kU, kForget, kReset, kSkip}) call.in[i] = full.in<3>();
    call.in[kBiasForget] = call.in[kBiasReset] = per_channel(bias.in<1>());
    call.dout = full.in<3>();
    call.initial = call.dfinal = state.in<2>();
    call.checkpoints = checkpoints.in<2>();
    call.din[kU] = du.out<3>();
    call.din[kForget] = df.out<3>();
    call.din[kReset] = dr.out<3>();
    call.din[kSkip] = ds.out<3>();
    call.din[kBiasForget] = per_channel(dbf.out<1>());
    call.din[kBiasReset] = per_channel(dbr.out<1>());
    call.dinitial = dc0.out<2>();
  }
  void ask() { (void)cell_backward_workspace_bytes(call); }
  void run() {
    Lent lent(1 << 20);
    cell_backward(call, lent.workspace());
  }
  bool untouched() const {
    for (const Tensor* array : {&du, &df, &dr, &ds, &dbf, &dbr, &dc0}) {
      if (!array->untouched()) return false;
    }
    return true;
  }
};

// `spoil` makes a valid call one that is refused with this type and text.
template <class Type, class Call>
void refused(Call valid, const std::function<void(Call&)>& spoil, const std::string& message) {
  const Note note(message);
  spoil(valid);
  CHECK_THROWS(valid.ask(), Type, message);
  CHECK_THROWS(valid.run(), Type, message);
  CHECK(valid.untouched());
}

template <class View>
View with_dtype(View view, DType dtype) {
  view.dtype = dtype;
  return view;
}
template <class View>
View with_extent(View view, int axis, Index extent) {
  view.shape[axis] = extent;
  return view;
}
template <class View>
View with_stride(View view, int axis, Index stride) {
  view.stride[axis] = stride;
  return view;
}

Tensor numbers(DType dtype, std::initializer_list<double> list) {
  Tensor array = Tensor::input(dtype, 1, 1, static_cast<Index>(list.size()));
  Index k = 0;
  for (double number : list) array.set(0, 0, k++, {number, 0});
  return array;
}

}  // namespace

CASE(valid_calls_are_accepted) {
  Scan scan;
  scan.run();
  CHECK(!scan.untouched());
  ScanBack back;
  back.run();
  CHECK(!back.untouched());
  SruCall sru;
  sru.run();
  CHECK(!sru.untouched());
  SruBack sru_back;
  sru_back.run();
  CHECK(!sru_back.untouched());
}

CASE(scan_arguments) {
  const auto shape = [](const std::function<void(Scan&)>& spoil, const std::string& message) {
    refused<InvalidArgument>(Scan(), spoil, message);
  };
  const auto type = [](const std::function<void(Scan&)>& spoil, const std::string& message) {
    refused<InvalidType>(Scan(), spoil, message);
  };
  for (const DType dtype : {DType::i32, DType::i64, DType::u8}) {
    type([&](Scan& s) { s.call.x.dtype = dtype; },
         std::string("scan: x has dtype ") + name_of(dtype) +
             ", expected float16, bfloat16, float32, float64, complex64 or complex128");
  }
  shape([](Scan& s) { s.call.x.shape[1] = -1; },
        "scan: x has shape (2, -1, 3), expected no extent below 0");
  // As many as wrap around to none, and some that make sizes in bytes do so.
  for (const Index extent : {Index{1} << 62, Index{1} << 47}) {
    shape(
        [&](Scan& s) {
          s.call.x.shape[0] = extent;
          s.call.x.stride[0] = 0;
          s.call.h = {};
        },
        "scan: x has shape (" + std::to_string(extent) + ", 5, 3), expected at most 2^48 elements");
  }
  shape([](Scan& s) { s.call.a = {}; }, "scan: a is missing");
  shape([](Scan& s) { s.call.x.data = nullptr; }, "scan: x is missing");
  shape([](Scan& s) { s.call.h = {}; }, "scan: h is missing");
  type([](Scan& s) { s.call.a.dtype = DType::f64; }, "scan: a has dtype float64, expected float32");
  shape([](Scan& s) { s.call.a.shape[1] = 4; },
        "scan: a has shape (2, 4, 3), expected (2, 5, 3) or 1 along any axis");
  shape([](Scan& s) { s.call.a.shape[2] = 0; },
        "scan: a has shape (2, 5, 0), expected (2, 5, 3) or 1 along any axis");
  shape([](Scan& s) { s.call.h0.shape[0] = 3; }, "scan: h0 has shape (3, 3), expected (2, 3)");
  shape([](Scan& s) { s.call.h0.shape[1] = 1; }, "scan: h0 has shape (2, 1), expected (2, 3)");
  type([](Scan& s) { s.call.h0.dtype = DType::f16; },
       "scan: h0 has dtype float16, expected float32");
  shape([](Scan& s) { s.call.h.shape[1] = 6; }, "scan: h has shape (2, 6, 3), expected (2, 5, 3)");
  type([](Scan& s) { s.call.h.dtype = DType::bf16; },
       "scan: h has dtype bfloat16, expected float32");
  shape([](Scan& s) { s.call.final_state.shape[1] = 2; },
        "scan: final_state has shape (2, 2), expected (2, 3)");
  type([](Scan& s) { s.call.final_state.dtype = DType::f64; },
       "scan: final_state has dtype float64, expected float32");
  shape(
      [](Scan& s) { s.call.h.stride[1] = 0; },
      "scan: h has stride 0 along axis 1 of size 5, expected an array whose elements are distinct");
  shape(
      [](Scan& s) { s.call.final_state.stride[0] = 0; },
      "scan: final_state has stride 0 along axis 0 of size 2, expected an array whose elements are "
      "distinct");
  // Half types: states may be theirs or float32, but the final state is float32.
  refused<InvalidType, Scan>(
      Scan(DType::f16), [](Scan& s) { s.call.h0.dtype = DType::f64; },
      "scan: h0 has dtype float64, expected float16 or float32");
  refused<InvalidType, Scan>(
      Scan(DType::f16), [](Scan& s) { s.call.final_state.dtype = DType::f16; },
      "scan: final_state has dtype float16, expected float32");
  refused<InvalidType, Scan>(
      Scan(DType::c64), [](Scan& s) { s.call.a.dtype = DType::f32; },
      "scan: a has dtype float32, expected complex64");
}

CASE(sequences) {
  const auto shape = [](Index batch, const Tensor& offsets, const std::string& message) {
    refused<InvalidArgument, Scan>(
        Scan(DType::f32, batch),
        [&](Scan& s) {
          s.call.h0 = {};
          s.call.final_state = {};
          s.call.sequences.cu_seqlens = offsets.in<1>();
        },
        message);
  };
  for (const DType index : {DType::i32, DType::i64}) {
    shape(2, numbers(index, {0, 5}),
          "scan: cu_seqlens needs a batch axis of 1, given x with batch 2");
    shape(1, numbers(index, {1, 5}), "scan: cu_seqlens starts at 1, expected 0");
    shape(1, numbers(index, {0, 4}), "scan: cu_seqlens ends at 4, expected the number of steps, 5");
    shape(1, numbers(index, {0, 6}), "scan: cu_seqlens ends at 6, expected the number of steps, 5");
    shape(1, numbers(index, {0}), "scan: cu_seqlens ends at 0, expected the number of steps, 5");
    shape(1, numbers(index, {0, 3, 2, 5}),
          "scan: cu_seqlens decreases from 3 to 2 at position 2, expected offsets that never "
          "decrease");
    shape(1, numbers(index, {0, -1, 5}),
          "scan: cu_seqlens decreases from 0 to -1 at position 1, expected offsets that never "
          "decrease");
  }
  refused<InvalidArgument, Scan>(
      Scan(DType::f32, 1),
      [](Scan& s) {
        s.offsets = numbers(DType::i32, {0});
        s.call.sequences.cu_seqlens = with_extent(s.offsets.in<1>(), 0, 0);
      },
      "scan: cu_seqlens has shape (0,), expected (N+1,)");
  refused<InvalidArgument, Scan>(
      Scan(DType::f32, 1),
      [](Scan& s) {
        s.offsets = numbers(DType::i32, {0});
        s.call.sequences.cu_seqlens = with_extent(s.offsets.in<1>(), 0, Index{1} << 62);
      },
      "scan: cu_seqlens has shape (4611686018427387904,), expected at most 2^48 states of 3 "
      "channels");
  SruCall sru;
  const Tensor offsets = numbers(DType::i32, {0, 5});
  sru.call.sequences.cu_seqlens = offsets.in<1>();
  CHECK_THROWS(sru.ask(), InvalidArgument,
               "sru: cu_seqlens needs a batch axis of 1, given u with batch 2");
  refused<InvalidType, Scan>(
      Scan(DType::f32, 1),
      [](Scan& s) {
        s.offsets = numbers(DType::f32, {0, 5});
        s.call.sequences.cu_seqlens = s.offsets.in<1>();
      },
      "scan: cu_seqlens has dtype float32, expected int32 or int64");
  // Packed, h0 is (N,D).
  refused<InvalidArgument, Scan>(
      Scan(DType::f32, 1),
      [](Scan& s) {
        s.offsets = numbers(DType::i64, {0, 2, 5});
        s.call.sequences.cu_seqlens = s.offsets.in<1>();
      },
      "scan: h0 has shape (1, 3), expected (2, 3)");
  refused<InvalidArgument, Scan>(
      Scan(DType::f32, 1),
      [](Scan& s) {
        s.offsets = numbers(DType::i64, {0, 5});
        s.lengths = numbers(DType::i64, {5});
        s.call.sequences.cu_seqlens = s.offsets.in<1>();
        s.call.sequences.lengths = s.lengths.in<1>();
      },
      "scan: cu_seqlens and lengths are both given, expected at most one of them");

  const auto lengths = [](const Tensor& list, const std::string& message) {
    refused<InvalidArgument, Scan>(
        Scan(), [&](Scan& s) { s.call.sequences.lengths = list.in<1>(); }, message);
  };
  lengths(numbers(DType::i32, {5, 6}), "scan: lengths[1] is 6, expected a value from 0 to 5");
  lengths(numbers(DType::i64, {-1, 5}), "scan: lengths[0] is -1, expected a value from 0 to 5");
  lengths(numbers(DType::i64, {1, 2, 3}), "scan: lengths has shape (3,), expected (2,)");
  lengths(numbers(DType::i64, {1}), "scan: lengths has shape (1,), expected (2,)");
  refused<InvalidType, Scan>(
      Scan(),
      [](Scan& s) {
        s.lengths = numbers(DType::u8, {5, 5});
        s.call.sequences.lengths = s.lengths.in<1>();
      },
      "scan: lengths has dtype uint8, expected int32 or int64");

  const auto reset = [](Scan& s) {
    s.reset = Tensor::input(DType::u8, 1, B, T);
    s.call.sequences.reset = s.reset.in<2>();
  };
  refused<InvalidArgument, Scan>(
      Scan(),
      [&](Scan& s) {
        reset(s);
        s.call.sequences.reset.shape[1] = 1;
      },
      "scan: reset has shape (2, 1), expected (2, 5)");
  refused<InvalidType, Scan>(
      Scan(),
      [&](Scan& s) {
        reset(s);
        s.call.sequences.reset.dtype = DType::i32;
      },
      "scan: reset has dtype int32, expected uint8");
}

CASE(scan_backward_arguments) {
  const auto shape = [](const std::function<void(ScanBack&)>& spoil, const std::string& message) {
    refused<InvalidArgument>(ScanBack(), spoil, message);
  };
  const auto type = [](const std::function<void(ScanBack&)>& spoil, const std::string& message) {
    refused<InvalidType>(ScanBack(), spoil, message);
  };
  type([](ScanBack& s) { s.call.h.dtype = DType::u8; },
       "scan backward: h has dtype uint8, expected float16, bfloat16, float32, float64, complex64 "
       "or "
       "complex128");
  shape([](ScanBack& s) { s.call.a = {}; }, "scan backward: a is missing");
  shape([](ScanBack& s) { s.call.h.data = nullptr; }, "scan backward: h is missing");
  shape([](ScanBack& s) { s.call.a.shape[0] = 3; },
        "scan backward: a has shape (3, 5, 3), expected (2, 5, 3) or 1 along any axis");
  shape([](ScanBack& s) { s.call.h0.shape[0] = 1; },
        "scan backward: h0 has shape (1, 3), expected (2, 3)");
  shape([](ScanBack& s) { s.call.dh.shape[0] = 1; },
        "scan backward: dh has shape (1, 5, 3), expected (2, 5, 3)");
  type([](ScanBack& s) { s.call.dh.dtype = DType::f64; },
       "scan backward: dh has dtype float64, expected float32");
  shape([](ScanBack& s) { s.call.dfinal.shape[1] = 4; },
        "scan backward: dfinal has shape (2, 4), expected (2, 3)");
  type([](ScanBack& s) { s.call.dfinal.dtype = DType::bf16; },
       "scan backward: dfinal has dtype bfloat16, expected float32");
  shape([](ScanBack& s) { s.call.da.shape[1] = 2; },
        "scan backward: da has shape (2, 2, 3), expected (2, 5, 3) or 1 along any axis");
  shape([](ScanBack& s) { s.call.da.shape[1] = 1; },
        "scan backward: da has shape (2, 1, 3), expected (2, 5, 3), that of a");
  shape([](ScanBack& s) { s.call.a.shape[2] = 1; },
        "scan backward: da has shape (2, 5, 3), expected (2, 5, 1), that of a");
  shape([](ScanBack& s) { s.call.dx.shape[1] = 1; },
        "scan backward: dx has shape (2, 1, 3), expected (2, 5, 3)");
  type([](ScanBack& s) { s.call.dx.dtype = DType::f16; },
       "scan backward: dx has dtype float16, expected float32");
  shape([](ScanBack& s) { s.call.dh0.shape[0] = 4; },
        "scan backward: dh0 has shape (4, 3), expected (2, 3)");
  shape(
      [](ScanBack& s) { s.call.da.stride[0] = 0; },
      "scan backward: da has stride 0 along axis 0 of size 2, expected an array whose elements are "
      "distinct");
  shape(
      [](ScanBack& s) { s.call.dx.stride[2] = 0; },
      "scan backward: dx has stride 0 along axis 2 of size 3, expected an array whose elements are "
      "distinct");
  shape([](ScanBack& s) { s.call.dh0.stride[1] = 0; },
        "scan backward: dh0 has stride 0 along axis 1 of size 3, expected an array whose elements "
        "are "
        "distinct");
}

CASE(sru_arguments) {
  const auto shape = [](const std::function<void(SruCall&)>& spoil, const std::string& message) {
    refused<InvalidArgument>(SruCall(), spoil, message);
  };
  const auto type = [](const std::function<void(SruCall&)>& spoil, const std::string& message) {
    refused<InvalidType>(SruCall(), spoil, message);
  };
  for (const DType dtype : {DType::c64, DType::c128, DType::i32}) {
    type([&](SruCall& s) { s.call.in[kU].dtype = dtype; },
         std::string("sru: u has dtype ") + name_of(dtype) +
             ", expected float16, bfloat16, float32 or float64");
  }
  shape([](SruCall& s) { s.call.in[kU].data = nullptr; }, "sru: u is missing");
  shape([](SruCall& s) { s.call.in[kForget] = {}; }, "sru: f is missing");
  shape([](SruCall& s) { s.call.in[kReset] = {}; }, "sru: r is missing");
  shape([](SruCall& s) { s.call.out = {}; }, "sru: out is missing");
  shape([](SruCall& s) { s.call.in[kForget].shape[0] = 1; },
        "sru: f has shape (1, 5, 3), expected (2, 5, 3)");
  shape([](SruCall& s) { s.call.in[kReset].shape[2] = 4; },
        "sru: r has shape (2, 5, 4), expected (2, 5, 3)");
  shape([](SruCall& s) { s.call.in[kSkip].shape[1] = 1; },
        "sru: skip has shape (2, 1, 3), expected (2, 5, 3)");
  type([](SruCall& s) { s.call.in[kSkip].dtype = DType::f64; },
       "sru: skip has dtype float64, expected float32");
  shape([](SruCall& s) { s.call.in[kBiasForget].shape[2] = 1; },
        "sru: bias_f has shape (1,), expected (3,)");
  shape([](SruCall& s) { s.call.in[kBiasReset].shape[2] = 6; },
        "sru: bias_r has shape (6,), expected (3,)");
  type([](SruCall& s) { s.call.in[kBiasReset].dtype = DType::f16; },
       "sru: bias_r has dtype float16, expected float32");
  refused<InvalidType, SruCall>(
      SruCall(DType::bf16), [](SruCall& s) { s.call.in[kBiasForget].dtype = DType::f16; },
      "sru: bias_f has dtype float16, expected bfloat16 or float32");
  shape([](SruCall& s) { s.call.initial.shape[0] = 1; },
        "sru: c0 has shape (1, 3), expected (2, 3)");
  shape([](SruCall& s) { s.call.out.shape[0] = 1; },
        "sru: out has shape (1, 5, 3), expected (2, 5, 3)");
  shape([](SruCall& s) { s.call.out.stride[0] = 0; },
        "sru: out has stride 0 along axis 0 of size 2, expected an array whose elements are "
        "distinct");
  type([](SruCall& s) { s.call.final_state.dtype = DType::f16; },
       "sru: final_state has dtype float16, expected float32");
  shape([](SruCall& s) { s.call.final_state.shape[0] = 1; },
        "sru: final_state has shape (1, 3), expected (2, 3)");
  shape([](SruCall& s) { s.call.checkpoints.shape[0] = 3; },
        "sru: checkpoints has shape (3, 3) and dtype float32, expected contiguous (2, 3) float32");
  shape([](SruCall& s) { s.call.checkpoints.dtype = DType::f64; },
        "sru: checkpoints has shape (2, 3) and dtype float64, expected contiguous (2, 3) float32");
  shape([](SruCall& s) { s.call.checkpoints.stride[1] = 2; },
        "sru: checkpoints has shape (2, 3) and dtype float32, expected contiguous (2, 3) float32");
  shape([](SruCall& s) { s.call.cell.activation = static_cast<Activation>(3); },
        "sru: activation is 3, expected a whole number from 0 to 2");
  shape([](SruCall& s) { s.call.cell.activation = static_cast<Activation>(-1); },
        "sru: activation is -1, expected a whole number from 0 to 2");
}

CASE(sru_backward_arguments) {
  const auto shape = [](const std::function<void(SruBack&)>& spoil, const std::string& message) {
    refused<InvalidArgument>(SruBack(), spoil, message);
  };
  const auto type = [](const std::function<void(SruBack&)>& spoil, const std::string& message) {
    refused<InvalidType>(SruBack(), spoil, message);
  };
  shape([](SruBack& s) { s.call.checkpoints = {}; }, "sru backward: checkpoints is missing");
  shape([](SruBack& s) { s.call.checkpoints.shape[0] = 1; },
        "sru backward: checkpoints has shape (1, 3) and dtype float32, expected contiguous (2, 3) "
        "float32");
  shape([](SruBack& s) { s.call.dout.shape[2] = 2; },
        "sru backward: dout has shape (2, 5, 2), expected (2, 5, 3)");
  shape([](SruBack& s) { s.call.dfinal.shape[0] = 1; },
        "sru backward: dfinal has shape (1, 3), expected (2, 3)");
  shape([](SruBack& s) { s.call.din[kU].shape[1] = 1; },
        "sru backward: du has shape (2, 1, 3), expected (2, 5, 3)");
  shape([](SruBack& s) { s.call.din[kForget].shape[1] = 1; },
        "sru backward: df has shape (2, 1, 3), expected (2, 5, 3)");
  type([](SruBack& s) { s.call.din[kReset].dtype = DType::f64; },
       "sru backward: dr has dtype float64, expected float32");
  shape([](SruBack& s) { s.call.din[kSkip].shape[0] = 1; },
        "sru backward: dskip has shape (1, 5, 3), expected (2, 5, 3)");
  shape([](SruBack& s) { s.call.din[kBiasForget].shape[2] = 1; },
        "sru backward: dbias_f has shape (1,), expected (3,)");
  type([](SruBack& s) { s.call.din[kBiasReset].dtype = DType::f64; },
       "sru backward: dbias_r has dtype float64, expected float32");
  shape([](SruBack& s) { s.call.dinitial.shape[1] = 1; },
        "sru backward: dc0 has shape (2, 1), expected (2, 3)");
  const std::string distinct = ", expected an array whose elements are distinct";
  shape([](SruBack& s) { s.call.din[kU].stride[0] = 0; },
        "sru backward: du has stride 0 along axis 0 of size 2" + distinct);
  shape([](SruBack& s) { s.call.din[kForget].stride[0] = 0; },
        "sru backward: df has stride 0 along axis 0 of size 2" + distinct);
  shape([](SruBack& s) { s.call.din[kReset].stride[1] = 0; },
        "sru backward: dr has stride 0 along axis 1 of size 5" + distinct);
  shape([](SruBack& s) { s.call.din[kSkip].stride[2] = 0; },
        "sru backward: dskip has stride 0 along axis 2 of size 3" + distinct);
  shape([](SruBack& s) { s.call.din[kBiasForget].stride[2] = 0; },
        "sru backward: dbias_f has stride 0 along axis 0 of size 3" + distinct);
  shape([](SruBack& s) { s.call.din[kBiasReset].stride[2] = 0; },
        "sru backward: dbias_r has stride 0 along axis 0 of size 3" + distinct);
  shape([](SruBack& s) { s.call.dinitial.stride[1] = 0; },
        "sru backward: dc0 has stride 0 along axis 1 of size 3" + distinct);
}

// Cells whose output is their state.
CASE(output_in_place_of_checkpoints) {
  const Tensor full = ones(DType::f32, B, T, D), vector = ones(DType::f32, 1, 1, D);
  Tensor out = Tensor::output(DType::f32, B, T, D), gradient = out;
  Tensor rows = Tensor::output(DType::f32, 1, checkpoint_rows(B, T, B), D);
  CellForward<RgLruCell> call;
  for (ConstArray<3>& input : call.in) input = full.in<3>();
  call.in[RgLruCell::kLambda] = per_channel(vector.in<1>());
  call.out = out.out<3>();
  const auto ask = [](auto broken, auto spoil) {
    spoil(broken);
    return cell_forward_workspace_bytes(broken);
  };
  CHECK_THROWS(ask(call, [&](auto& c) { c.checkpoints = rows.out<2>(); }), InvalidArgument,
               "rg_lru: checkpoints is given, expected none: the output has the states");
  CHECK_THROWS(ask(call, [](auto& c) { c.in[RgLruCell::kLambda] = {}; }), InvalidArgument,
               "rg_lru: lam is missing");
  CHECK_THROWS(ask(call, [&](auto& c) { c.in[RgLruCell::kLambda] = c.in[RgLruCell::kX]; }),
               InvalidArgument, "rg_lru: lam has shape (2, 5, 3), expected (1, 1, 3)");
  CHECK_THROWS(ask(call, [](auto& c) { c.cell.c = -1; }), InvalidArgument,
               "rg_lru: c is -1, expected a number from 0 to 1000000");
  CHECK_THROWS(ask(call, [](auto& c) { c.cell.c = std::nan(""); }), InvalidArgument,
               "rg_lru: c is nan, expected a number from 0 to 1000000");
  CHECK(ask(call, [](auto&) {}) > 0);

  CellBackward<RgLruCell> back;
  std::copy(std::begin(call.in), std::end(call.in), back.in);
  back.din[RgLruCell::kX] = gradient.out<3>();
  CHECK_THROWS((void)cell_backward_workspace_bytes(back), InvalidArgument,
               "rg_lru backward: out is missing");
  back.out = full.in<3>();
  back.out.shape[2] = 2;
  CHECK_THROWS((void)cell_backward_workspace_bytes(back), InvalidArgument,
               "rg_lru backward: out has shape (2, 5, 2), expected (2, 5, 3)");
  back.out.shape[2] = 3;
  CHECK(cell_backward_workspace_bytes(back) > 0);
  CHECK(gradient.untouched());
}

CASE(workspaces_too_small) {
  const auto check = [](const std::string& name, auto& call, std::size_t bytes, auto run) {
    const std::string given = name + ": workspace has ";
    const std::string expected = " bytes, expected " + std::to_string(bytes);
    std::vector<char> memory(bytes);
    CHECK_THROWS(run(call.call, Workspace{}), InvalidArgument, given + "0" + expected);
    CHECK_THROWS(run(call.call, (Workspace{memory.data(), bytes - 1})), InvalidArgument,
                 given + std::to_string(bytes - 1) + expected);
    CHECK_THROWS(run(call.call, (Workspace{nullptr, bytes})), InvalidArgument,
                 given + std::to_string(bytes) + expected);
    CHECK(call.untouched());
    run(call.call, {memory.data(), bytes});
    CHECK(!call.untouched());
  };
  Scan scan;
  check("scan", scan, scan_forward_workspace_bytes(scan.call),
        [](const ScanForward& call, Workspace w) { scan_forward(call, w); });
  ScanBack back;
  check("scan backward", back, scan_backward_workspace_bytes(back.call),
        [](const ScanBackward& call, Workspace w) { scan_backward(call, w); });
  SruCall sru;
  check("sru", sru, cell_forward_workspace_bytes(sru.call),
        [](const CellForward<SruCell>& call, Workspace w) { cell_forward(call, w); });
  SruBack sru_back;
  check("sru backward", sru_back, cell_backward_workspace_bytes(sru_back.call),
        [](const CellBackward<SruCell>& call, Workspace w) { cell_backward(call, w); });
}

CASE(settings) {
  const Settings settings;
  set_num_threads(3);
  CHECK_THROWS(set_num_threads(0), InvalidArgument,
               "set_num_threads: threads is 0, expected at least 1");
  CHECK_THROWS(set_num_threads(-4), InvalidArgument,
               "set_num_threads: threads is -4, expected at least 1");
  CHECK_EQUAL(num_threads(), 3);
  const std::string before = cpu_isa();
  CHECK_THROWS(
      set_cpu_isa("nope"), InvalidArgument,
      std::string("set_cpu_isa: 'nope' is not built or not supported here, expected one of: ") +
          cpu_isas());
  CHECK_THROWS(
      set_cpu_isa(""), InvalidArgument,
      std::string("set_cpu_isa: '' is not built or not supported here, expected one of: ") +
          cpu_isas());
  CHECK_EQUAL(std::string(cpu_isa()), before);
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    CHECK_EQUAL(std::string(cpu_isa()), isa);
  }
}

CASE(no_cuda_says_so) {
  if (std::strlen(cuda_architectures()) > 0) skip("this build has CUDA");
  CHECK(!cuda_available());
  Target target;
  target.device = Device::cuda;
  Lent lent(1 << 20);
  const std::string reason = cuda_unavailable_reason();
  CHECK(reason.find("no CUDA backend") != std::string::npos);
  Scan scan;
  CHECK_THROWS((void)scan_forward_workspace_bytes(scan.call, target), DeviceError, reason);
  CHECK_THROWS(scan_forward(scan.call, lent.workspace(), target), DeviceError, reason);
  CHECK(scan.untouched());
  ScanBack back;
  CHECK_THROWS((void)scan_backward_workspace_bytes(back.call, target), DeviceError, reason);
  CHECK_THROWS(scan_backward(back.call, lent.workspace(), target), DeviceError, reason);
  CHECK(back.untouched());
  SruCall sru;
  CHECK_THROWS((void)cell_forward_workspace_bytes(sru.call, target), DeviceError, reason);
  CHECK_THROWS(cell_forward(sru.call, lent.workspace(), target), DeviceError, reason);
  CHECK(sru.untouched());
  SruBack sru_back;
  CHECK_THROWS((void)cell_backward_workspace_bytes(sru_back.call, target), DeviceError, reason);
  CHECK_THROWS(cell_backward(sru_back.call, lent.workspace(), target), DeviceError, reason);
  CHECK(sru_back.untouched());
  // What is wrong with the arguments comes first.
  scan.call.h0.shape[0] = 3;
  CHECK_THROWS(scan_forward(scan.call, lent.workspace(), target), InvalidArgument,
               "scan: h0 has shape (3, 3), expected (2, 3)");
}

CASE(names_and_sizes) {
  const struct {
    DType dtype;
    std::size_t size;
    const char* name;
    DType accumulation;
  } rows[] = {
      {DType::f16, 2, "float16", DType::f32},   {DType::bf16, 2, "bfloat16", DType::f32},
      {DType::f32, 4, "float32", DType::f32},   {DType::f64, 8, "float64", DType::f64},
      {DType::c64, 8, "complex64", DType::c64}, {DType::c128, 16, "complex128", DType::c128},
      {DType::i32, 4, "int32", DType::i32},     {DType::i64, 8, "int64", DType::i64},
      {DType::u8, 1, "uint8", DType::u8},
  };
  for (const auto& row : rows) {
    CHECK_EQUAL(size_of(row.dtype), row.size);
    CHECK_EQUAL(std::string(name_of(row.dtype)), row.name);
    CHECK(accumulation_dtype(row.dtype) == row.accumulation);
  }
  CHECK_EQUAL(std::string(SCANRNN_VERSION_STRING), std::to_string(SCANRNN_VERSION_MAJOR) + "." +
                                                       std::to_string(SCANRNN_VERSION_MINOR) + "." +
                                                       std::to_string(SCANRNN_VERSION_PATCH));
}

TEST_MAIN()
