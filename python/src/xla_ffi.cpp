// SPDX-License-Identifier: Apache-2.0
// XLA FFI handlers: how JAX calls the core. Built when XLA's headers (they come with jaxlib) are
// there, else `ffi_targets` is empty.
//
// Every handler has a fixed list of operands and results. One without elements is an absent one:
// jaxprs, and the rules that transform them, then never depend on which options a call uses. Only
// the checkpoints, which are the last result of a forward call, may be left out.
#include "xla_ffi.hpp"

namespace nb = nanobind;

#ifdef SCANRNN_XLA_FFI

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "scanrnn/cells.hpp"
#include "scanrnn/scan.hpp"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using scanrnn::Array;
using scanrnn::ConstArray;
using scanrnn::DType;
using scanrnn::Sequences;
using scanrnn::Workspace;

DType dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return DType::f16;
    case ffi::DataType::BF16:
      return DType::bf16;
    case ffi::DataType::F32:
      return DType::f32;
    case ffi::DataType::F64:
      return DType::f64;
    case ffi::DataType::C64:
      return DType::c64;
    case ffi::DataType::C128:
      return DType::c128;
    case ffi::DataType::S32:
      return DType::i32;
    case ffi::DataType::S64:
      return DType::i64;
    case ffi::DataType::U8:
    case ffi::DataType::PRED:
      return DType::u8;
    default:
      throw scanrnn::InvalidType("scanrnn: XLA passed a buffer of an unsupported dtype");
  }
}

/// The axes (B,T,D) of an array from the outermost to the innermost, which is how XLA passes it.
/// Python picks the order that the caller's arrays have anyway; jax/_cell.py has the same list.
constexpr int kOrders[3][3] = {
    {0, 1, 2},  // D contiguous: (B,T,D)
    {0, 2, 1},  // T contiguous: (B,D,T)
    {1, 0, 2},  // time-major: (T,B,D)
};
constexpr int kRowMajor[3] = {0, 1, 2};

template <int Rank>
Array<Rank> view(const ffi::AnyBuffer& buffer, const int* order = kRowMajor) {
  const ffi::AnyBuffer::Dimensions dims = buffer.dimensions();
  if (dims.size() != Rank) {
    throw scanrnn::InvalidArgument("scanrnn: XLA passed a buffer of rank " +
                                   std::to_string(dims.size()) + ", expected " +
                                   std::to_string(Rank));
  }
  // XLA gives an empty buffer no address, but an array that must be there may well be empty.
  static char nothing;
  Array<Rank> array;
  array.data = buffer.element_count() > 0 ? buffer.untyped_data() : &nothing;
  array.dtype = dtype_of(buffer.element_type());
  std::int64_t stride = 1;
  for (int i = Rank - 1; i >= 0; --i) {
    const int axis = order[i];
    array.shape[axis] = dims[static_cast<std::size_t>(i)];
    array.stride[axis] = stride;
    stride *= array.shape[axis];
  }
  return array;
}

template <int Rank>
Array<Rank> optional_view(const ffi::AnyBuffer& buffer, const int* order = kRowMajor) {
  return buffer.element_count() > 0 ? view<Rank>(buffer, order) : Array<Rank>{};
}

/// The call's buffers, taken one after the other, and its attributes.
class Call {
 public:
  Call(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary attributes)
      : operands_(operands),
        results_(results),
        attributes_(attributes),
        order_(kOrders[attribute<std::int32_t>("order")]) {}

  template <typename T>
  T attribute(std::string_view name) const {
    return checked(attributes_.get<T>(name));
  }

  ConstArray<3> steps() { return view<3>(operand(), order_); }
  ConstArray<3> optional_steps() { return optional_view<3>(operand(), order_); }
  template <int Rank>
  ConstArray<Rank> optional() {
    return optional_view<Rank>(operand());
  }

  Array<3> steps_result() { return view<3>(result(), order_); }
  Array<3> optional_steps_result() { return optional_view<3>(result(), order_); }
  template <int Rank>
  Array<Rank> optional_result() {
    return optional_view<Rank>(result());
  }
  bool has_more_results() const { return next_result_ < results_.size(); }

  /// The last two operands of every call.
  Sequences sequences() {
    Sequences s;
    const ConstArray<1> index = optional<1>();
    (attribute<bool>("packed") ? s.cu_seqlens : s.lengths) = index;
    s.reset = optional<2>();
    s.left_padded = attribute<bool>("left_padded");
    s.reverse = attribute<bool>("reverse");
    return s;
  }

 private:
  template <typename T>
  static T checked(ffi::ErrorOr<T> value) {
    if (value.has_error()) throw scanrnn::InvalidArgument("scanrnn: " + value.error().message());
    return *value;
  }
  ffi::AnyBuffer operand() { return checked(operands_.get<ffi::AnyBuffer>(next_operand_++)); }
  ffi::AnyBuffer result() { return *checked(results_.get<ffi::AnyBuffer>(next_result_++)); }

  ffi::RemainingArgs operands_;
  ffi::RemainingRets results_;
  ffi::Dictionary attributes_;
  std::size_t next_operand_ = 0;
  std::size_t next_result_ = 0;
  const int* order_;
};

/// Lends `run` the workspace of `call`.
template <typename C>
void with_workspace(const C& call, std::size_t (*bytes_of)(const C&, const scanrnn::Target&),
                    void (*run)(const C&, Workspace, const scanrnn::Target&)) {
  const std::size_t bytes = bytes_of(call, {});
  const std::unique_ptr<std::byte[]> memory(bytes > 0 ? new std::byte[bytes] : nullptr);
  run(call, Workspace{memory.get(), bytes}, {});
}

// Operands and results stand in the order in which the members are set.

void scan_forward(Call& in) {
  scanrnn::ScanForward call;
  call.a = in.steps();
  call.x = in.steps();
  call.h0 = in.optional<2>();
  call.sequences = in.sequences();
  call.h = in.steps_result();
  call.final_state = in.optional_result<2>();
  with_workspace(call, scanrnn::scan_forward_workspace_bytes, scanrnn::scan_forward);
}

void scan_backward(Call& in) {
  scanrnn::ScanBackward call;
  call.a = in.steps();
  call.h = in.steps();
  call.h0 = in.optional<2>();
  call.dh = in.optional_steps();
  call.dfinal = in.optional<2>();
  call.sequences = in.sequences();
  call.da = in.optional_steps_result();
  call.dx = in.optional_steps_result();
  call.dh0 = in.optional_result<2>();
  call.conjugate = false;
  with_workspace(call, scanrnn::scan_backward_workspace_bytes, scanrnn::scan_backward);
}

void sru_forward(Call& in) {
  scanrnn::SruForward call;
  call.u = in.steps();
  call.forget = in.steps();
  call.reset = in.steps();
  call.skip = in.optional_steps();
  call.bias_forget = in.optional<1>();
  call.bias_reset = in.optional<1>();
  call.c0 = in.optional<2>();
  call.sequences = in.sequences();
  call.h = in.steps_result();
  call.final_state = in.optional_result<2>();
  if (in.has_more_results()) call.checkpoints = in.optional_result<2>();
  call.activation = scanrnn::Activation{in.attribute<std::int32_t>("activation")};
  with_workspace(call, scanrnn::sru_forward_workspace_bytes, scanrnn::sru_forward);
}

void sru_backward(Call& in) {
  scanrnn::SruBackward call;
  call.u = in.steps();
  call.forget = in.steps();
  call.reset = in.steps();
  call.skip = in.optional_steps();
  call.bias_forget = in.optional<1>();
  call.bias_reset = in.optional<1>();
  call.c0 = in.optional<2>();
  call.checkpoints = in.optional<2>();
  call.dh = in.optional_steps();
  call.dfinal = in.optional<2>();
  call.sequences = in.sequences();
  call.du = in.optional_steps_result();
  call.dforget = in.optional_steps_result();
  call.dreset = in.optional_steps_result();
  call.dskip = in.optional_steps_result();
  call.dbias_forget = in.optional_result<1>();
  call.dbias_reset = in.optional_result<1>();
  call.dc0 = in.optional_result<2>();
  call.activation = scanrnn::Activation{in.attribute<std::int32_t>("activation")};
  with_workspace(call, scanrnn::sru_backward_workspace_bytes, scanrnn::sru_backward);
}

/// No exception may reach XLA, which is C on this side.
template <void (*Run)(Call&)>
ffi::Error guarded(ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary attributes) {
  try {
    Call call(operands, results, attributes);
    Run(call);
    return ffi::Error::Success();
  } catch (const scanrnn::DeviceError& error) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition, error.what());
  } catch (const scanrnn::Error& error) {
    return ffi::Error::InvalidArgument(error.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "scanrnn: out of memory for workspace");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

#define SCANRNN_FFI_HANDLER(name, run)       \
  XLA_FFI_DEFINE_HANDLER(name, guarded<run>, \
                         ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs())
SCANRNN_FFI_HANDLER(kScanForward, scan_forward);
SCANRNN_FFI_HANDLER(kScanBackward, scan_backward);
SCANRNN_FFI_HANDLER(kSruForward, sru_forward);
SCANRNN_FFI_HANDLER(kSruBackward, sru_backward);
#undef SCANRNN_FFI_HANDLER

nb::dict cpu_targets() {
  const std::pair<const char*, XLA_FFI_Handler*> handlers[] = {
      {"scanrnn_scan_forward", kScanForward},
      {"scanrnn_scan_backward", kScanBackward},
      {"scanrnn_sru_forward", kSruForward},
      {"scanrnn_sru_backward", kSruBackward},
  };
  nb::dict targets;
  for (const auto& [name, handler] : handlers) {
    targets[name] = nb::capsule(reinterpret_cast<void*>(handler));
  }
  return targets;
}

}  // namespace

#else

static nb::dict cpu_targets() { return nb::dict(); }

#endif

void bind_xla_ffi(nb::module_& m) {
  m.def("ffi_targets", cpu_targets,
        "XLA FFI handlers by target name, as capsules; empty when built without XLA's headers.");
}
