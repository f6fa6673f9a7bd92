// SPDX-License-Identifier: Apache-2.0
// XLA FFI handlers: how JAX calls the core. Built when XLA's headers (they come with jaxlib) are
// there, else `ffi_targets` is empty.
//
// Every handler has a fixed list of operands and results. One without elements is an absent one:
// jaxprs, and the rules that transform them, then never depend on which options a call uses. Only
// the checkpoints, which are the last result of a forward call, may be left out.
//
// Each target has a handler for the CPU and one for CUDA. The latter has one more result, the
// call's workspace, of the size that `ffi_workspace_bytes` tells beforehand: XLA records CUDA calls
// into command buffers and replays these, so memory that the handler allocated itself would be gone
// by then.
#include "xla_ffi.hpp"

namespace nb = nanobind;

#ifdef SCANRNN_XLA_FFI

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scanrnn/cells.hpp"
#include "scanrnn/scan.hpp"
#include "scanrnn/solve.hpp"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using scanrnn::AnyCellBackward;
using scanrnn::AnyCellForward;
using scanrnn::AnySolveBackward;
using scanrnn::AnySolveForward;
using scanrnn::Array;
using scanrnn::CellStorage;
using scanrnn::CellType;
using scanrnn::ConstArray;
using scanrnn::DType;
using scanrnn::NonlinearCellType;
using scanrnn::Sequences;
using scanrnn::Target;
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

/// What stands for the address of an array that has none: one without elements, which XLA gives no
/// memory, or any array before the call. Aligned as XLA's buffers are.
alignas(256) char no_memory[256];

/// A dense buffer of the call.
struct Buffer {
  void* data;
  DType dtype;
  std::vector<std::int64_t> dims;

  bool empty() const {
    for (const std::int64_t n : dims) {
      if (n == 0) return true;
    }
    return false;
  }
};

struct Options {
  bool reverse, packed, left_padded;
  std::int32_t order;
  // Of the cells' targets.
  std::int32_t kind = 0;
  std::vector<double> values = {};
  // Of the forward target of nonlinear cells.
  scanrnn::SolveOptions solve = {};
};

/// The attributes that a target has beside those of all.
enum class Attributes { none, cell, solve };

/// The call's buffers, taken one after the other, and its options.
class Call {
 public:
  Call(std::vector<Buffer> operands, std::vector<Buffer> results, Options given)
      : options(std::move(given)), operands_(std::move(operands)), results_(std::move(results)) {
    if (options.order < 0 || options.order > 2) {
      throw scanrnn::InvalidArgument("scanrnn: XLA passed an unknown order of axes");
    }
  }

  const Options options;

  ConstArray<3> steps() { return view<3>(operand(), order()); }
  ConstArray<3> optional_steps() { return optional_view<3>(operand(), order()); }
  template <int Rank>
  ConstArray<Rank> optional() {
    return optional_view<Rank>(operand());
  }

  Array<3> steps_result() { return view<3>(result(), order()); }
  Array<3> optional_steps_result() { return optional_view<3>(result(), order()); }
  template <int Rank>
  Array<Rank> optional_result() {
    return optional_view<Rank>(result());
  }
  bool has_more_results() const { return next_result_ < results_.size(); }

  /// The last two operands of every call.
  Sequences sequences() {
    Sequences s;
    const ConstArray<1> index = optional<1>();
    (options.packed ? s.cu_seqlens : s.lengths) = index;
    s.reset = optional<2>();
    s.left_padded = options.left_padded;
    s.reverse = options.reverse;
    return s;
  }

 private:
  template <int Rank>
  static Array<Rank> view(const Buffer& buffer, const int* order = kRowMajor) {
    if (buffer.dims.size() != Rank) {
      throw scanrnn::InvalidArgument("scanrnn: XLA passed a buffer of rank " +
                                     std::to_string(buffer.dims.size()) + ", expected " +
                                     std::to_string(Rank));
    }
    Array<Rank> array;
    array.data = buffer.empty() ? no_memory : buffer.data;
    array.dtype = buffer.dtype;
    std::int64_t stride = 1;
    for (int i = Rank - 1; i >= 0; --i) {
      const int axis = order[i];
      array.shape[axis] = buffer.dims[static_cast<std::size_t>(i)];
      array.stride[axis] = stride;
      stride *= array.shape[axis];
    }
    return array;
  }

  template <int Rank>
  static Array<Rank> optional_view(const Buffer& buffer, const int* order = kRowMajor) {
    return buffer.empty() ? Array<Rank>{} : view<Rank>(buffer, order);
  }

  const int* order() const { return kOrders[options.order]; }
  const Buffer& operand() { return take(operands_, next_operand_); }
  const Buffer& result() { return take(results_, next_result_); }
  static const Buffer& take(const std::vector<Buffer>& buffers, std::size_t& next) {
    if (next == buffers.size()) {
      throw scanrnn::InvalidArgument("scanrnn: XLA passed too few buffers");
    }
    return buffers[next++];
  }

  std::vector<Buffer> operands_;
  std::vector<Buffer> results_;
  std::size_t next_operand_ = 0;
  std::size_t next_result_ = 0;
};

// ---- What is done with a call -------------------------------------------------------------------

template <class C>
using BytesOf = std::size_t (*)(const C&, const Target&);
template <class C>
using Compute = void (*)(const C&, Workspace, const Target&);

struct RunOnCpu {
  template <class C>
  void operator()(const C& call, BytesOf<C> bytes_of, Compute<C> compute) const {
    const std::size_t bytes = bytes_of(call, {});
    const std::unique_ptr<std::byte[]> memory(bytes > 0 ? new std::byte[bytes] : nullptr);
    compute(call, Workspace{memory.get(), bytes}, {});
  }
};

struct RunOnCuda {
  Workspace workspace;
  Target target;
  template <class C>
  void operator()(const C& call, BytesOf<C>, Compute<C> compute) const {
    compute(call, workspace, target);
  }
};

struct Measure {
  Target target;
  std::size_t* bytes;
  template <class C>
  void operator()(const C& call, BytesOf<C> bytes_of, Compute<C>) const {
    *bytes = bytes_of(call, target);
  }
};

// ---- The targets: operands and results stand in the order in which the members are set ----------

struct ScanForwardTarget {
  static constexpr const char* name = "scanrnn_scan_forward";
  static constexpr Attributes attributes = Attributes::none;
  template <class Action>
  static void apply(Call& in, const Action& action) {
    scanrnn::ScanForward call;
    call.a = in.steps();
    call.x = in.steps();
    call.h0 = in.optional<2>();
    call.sequences = in.sequences();
    call.h = in.steps_result();
    call.final_state = in.optional_result<2>();
    action(call, scanrnn::scan_forward_workspace_bytes, scanrnn::scan_forward);
  }
};

struct ScanBackwardTarget {
  static constexpr const char* name = "scanrnn_scan_backward";
  static constexpr Attributes attributes = Attributes::none;
  template <class Action>
  static void apply(Call& in, const Action& action) {
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
    action(call, scanrnn::scan_backward_workspace_bytes, scanrnn::scan_backward);
  }
};

const CellType& type_of(const Call& call, const CellType*) {
  return cell_type(static_cast<scanrnn::CellKind>(call.options.kind));
}
const NonlinearCellType& type_of(const Call& call, const NonlinearCellType*) {
  return nonlinear_cell_type(static_cast<scanrnn::NonlinearCellKind>(call.options.kind));
}

/// A cell and its inputs, the first operands of both its targets.
template <class Type, int MaxInputs>
struct CellOperands {
  const Type& type;
  CellStorage cell;
  ConstArray<3> in[MaxInputs];
  Array<3> din[MaxInputs];

  explicit CellOperands(Call& call) : type(type_of(call, static_cast<const Type*>(nullptr))) {
    const std::vector<double>& values = call.options.values;
    type.construct(cell);
    set_options(type, cell, values.data(), static_cast<int>(values.size()));
    for (int i = 0; i < type.inputs; ++i) {
      if (is_vector(i)) {
        in[i] = scanrnn::per_channel(call.optional<1>());
      } else {
        in[i] = type.has(type.optional_inputs, i) ? call.optional_steps() : call.steps();
      }
    }
  }
  bool is_vector(int i) const { return type.has(type.vector_inputs, i); }

  void gradients(Call& call) {
    for (int i = 0; i < type.inputs; ++i) {
      din[i] = is_vector(i) ? scanrnn::per_channel(call.optional_result<1>())
                            : call.optional_steps_result();
    }
  }

  template <class C>
  void bind(C& call) const {
    call.type = &type;
    call.cell = cell.bytes;
    call.in = in;
  }
};
using LinearOperands = CellOperands<CellType, scanrnn::kMaxInputs>;
using NonlinearOperands = CellOperands<NonlinearCellType, scanrnn::kMaxNonlinearInputs>;

struct CellForwardTarget {
  static constexpr const char* name = "scanrnn_cell_forward";
  static constexpr Attributes attributes = Attributes::cell;
  template <class Action>
  static void apply(Call& in, const Action& action) {
    const LinearOperands operands(in);
    AnyCellForward call;
    operands.bind(call);
    call.initial = in.optional<2>();
    call.sequences = in.sequences();
    call.out = in.steps_result();
    call.final_state = in.optional_result<2>();
    if (in.has_more_results()) call.checkpoints = in.optional_result<2>();
    action(call, scanrnn::cell_forward_workspace_bytes, scanrnn::cell_forward);
  }
};

struct CellBackwardTarget {
  static constexpr const char* name = "scanrnn_cell_backward";
  static constexpr Attributes attributes = Attributes::cell;
  template <class Action>
  static void apply(Call& in, const Action& action) {
    LinearOperands operands(in);
    AnyCellBackward call;
    operands.bind(call);
    call.initial = in.optional<2>();
    if (operands.type.state_is_output) {
      call.out = in.steps();
    } else {
      call.checkpoints = in.optional<2>();
    }
    call.dout = in.optional_steps();
    call.dfinal = in.optional<2>();
    call.sequences = in.sequences();
    operands.gradients(in);
    call.din = operands.din;
    call.dinitial = in.optional_result<2>();
    action(call, scanrnn::cell_backward_workspace_bytes, scanrnn::cell_backward);
  }
};

struct SolveForwardTarget {
  static constexpr const char* name = "scanrnn_solve_forward";
  static constexpr Attributes attributes = Attributes::solve;
  template <class Action>
  static void apply(Call& in, const Action& action) {
    const NonlinearOperands operands(in);
    const int states = operands.type.states;
    AnySolveForward call;
    operands.bind(call);
    for (int s = 0; s < states; ++s) call.initial[s] = in.optional<2>();
    call.sequences = in.sequences();
    call.out = in.steps_result();
    call.kept = in.optional_steps_result();
    for (int s = 0; s < states; ++s) call.final_state[s] = in.optional_result<2>();
    call.report = in.optional_result<2>();
    call.options = in.options.solve;
    action(call, scanrnn::solve_forward_workspace_bytes, scanrnn::solve_forward);
  }
};

struct SolveBackwardTarget {
  static constexpr const char* name = "scanrnn_solve_backward";
  static constexpr Attributes attributes = Attributes::cell;
  template <class Action>
  static void apply(Call& in, const Action& action) {
    NonlinearOperands operands(in);
    const NonlinearCellType& type = operands.type;
    AnySolveBackward call;
    operands.bind(call);
    for (int s = 0; s < type.states; ++s) call.initial[s] = in.optional<2>();
    call.out = in.optional_steps();
    call.kept = in.optional_steps();
    call.dout = in.optional_steps();
    for (int s = 0; s < type.states; ++s) call.dfinal[s] = in.optional<2>();
    call.sequences = in.sequences();
    operands.gradients(in);
    call.din = operands.din;
    for (int s = 0; s < type.states; ++s) call.dinitial[s] = in.optional_result<2>();
    action(call, scanrnn::solve_backward_workspace_bytes, scanrnn::solve_backward);
  }
};

// ---- Handlers -----------------------------------------------------------------------------------

template <class T>
T checked(ffi::ErrorOr<T> value) {
  if (value.has_error()) throw scanrnn::InvalidArgument("scanrnn: " + value.error().message());
  return *value;
}

Buffer buffer_of(const ffi::AnyBuffer& buffer) {
  const ffi::AnyBuffer::Dimensions dims = buffer.dimensions();
  return {buffer.untyped_data(), dtype_of(buffer.element_type()), {dims.begin(), dims.end()}};
}

std::vector<Buffer> buffers_of(const ffi::RemainingArgs& operands) {
  std::vector<Buffer> buffers;
  buffers.reserve(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    buffers.push_back(buffer_of(checked(operands.get<ffi::AnyBuffer>(i))));
  }
  return buffers;
}

std::vector<Buffer> buffers_of(const ffi::RemainingRets& results) {
  std::vector<Buffer> buffers;
  buffers.reserve(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    buffers.push_back(buffer_of(*checked(results.get<ffi::AnyBuffer>(i))));
  }
  return buffers;
}

Options options_of(const ffi::Dictionary& attributes, Attributes more) {
  Options options{checked(attributes.get<bool>("reverse")), checked(attributes.get<bool>("packed")),
                  checked(attributes.get<bool>("left_padded")),
                  checked(attributes.get<std::int32_t>("order"))};
  if (more != Attributes::none) {
    options.kind = checked(attributes.get<std::int32_t>("kind"));
    const auto values = checked(attributes.get<ffi::Span<const double>>("options"));
    options.values.assign(values.begin(), values.end());
  }
  if (more == Attributes::solve) {
    options.solve = {checked(attributes.get<double>("tolerance")),
                     checked(attributes.get<std::int32_t>("max_passes")),
                     checked(attributes.get<std::int64_t>("segment"))};
  }
  return options;
}

/// No exception may reach XLA, which is C on this side.
template <class Body>
ffi::Error guarded(Body&& body) {
  try {
    body();
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

template <class T>
ffi::Error on_cpu(ffi::RemainingArgs operands, ffi::RemainingRets results,
                  ffi::Dictionary attributes) {
  return guarded([&] {
    Call call(buffers_of(operands), buffers_of(results), options_of(attributes, T::attributes));
    T::apply(call, RunOnCpu{});
  });
}

template <class T>
ffi::Error on_cuda(void* stream, std::int32_t ordinal, ffi::RemainingArgs operands,
                   ffi::RemainingRets results, ffi::Dictionary attributes) {
  return guarded([&] {
    std::vector<Buffer> buffers = buffers_of(results);
    if (buffers.empty() || buffers.back().dims.size() != 1) {
      throw scanrnn::InvalidArgument("scanrnn: XLA passed no workspace");
    }
    const Buffer last = std::move(buffers.back());
    buffers.pop_back();
    const Workspace workspace{last.data, static_cast<std::size_t>(last.dims[0])};
    Call call(buffers_of(operands), std::move(buffers), options_of(attributes, T::attributes));
    T::apply(call, RunOnCuda{workspace, {scanrnn::Device::cuda, ordinal, stream}});
  });
}

template <class T>
nb::capsule cpu_handler() {
  XLA_FFI_DEFINE_HANDLER(handler, on_cpu<T>,
                         ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
  return nb::capsule(reinterpret_cast<void*>(handler));
}

// The headers of CUDA aren't needed: its stream handles are pointers.
template <class T>
nb::capsule cuda_handler() {
  XLA_FFI_DEFINE_HANDLER(handler, on_cuda<T>,
                         ffi::Ffi::Bind()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .Attrs(),
                         {ffi::Traits::kCmdBufferCompatible});
  return nb::capsule(reinterpret_cast<void*>(handler));
}

// ---- Bindings -----------------------------------------------------------------------------------

template <class Visit>
void for_each_target(Visit&& visit) {
  visit(ScanForwardTarget{});
  visit(ScanBackwardTarget{});
  visit(CellForwardTarget{});
  visit(CellBackwardTarget{});
  visit(SolveForwardTarget{});
  visit(SolveBackwardTarget{});
}

nb::dict ffi_targets(const std::string& platform) {
  if (platform != "cpu" && platform != "CUDA") {
    throw scanrnn::InvalidArgument("ffi_targets: platform is " + platform +
                                   ", expected cpu or CUDA");
  }
  nb::dict targets;
  for_each_target([&](auto target) {
    using T = decltype(target);
    targets[T::name] = platform == "cpu" ? cpu_handler<T>() : cuda_handler<T>();
  });
  return targets;
}

/// (dtype code, dimensions) of a buffer that has no memory yet.
using Shape = std::pair<int, std::vector<std::int64_t>>;

std::vector<Buffer> buffers_of(const std::vector<Shape>& shapes) {
  std::vector<Buffer> buffers;
  for (const auto& [dtype, dims] : shapes) {
    buffers.push_back({no_memory, static_cast<DType>(dtype), dims});
  }
  return buffers;
}

std::size_t ffi_workspace_bytes(const std::string& name, const std::vector<Shape>& operands,
                                const std::vector<Shape>& results, bool reverse, bool packed,
                                bool left_padded, int order, int kind,
                                const std::vector<double>& options, double tolerance,
                                int max_passes, std::int64_t segment, int device) {
  Target target;
  if (device >= 0) target = {scanrnn::Device::cuda, device, nullptr};
  Call call(buffers_of(operands), buffers_of(results),
            {reverse, packed, left_padded, order, kind, options, {tolerance, max_passes, segment}});
  std::size_t bytes = 0;
  bool found = false;
  for_each_target([&](auto candidate) {
    using T = decltype(candidate);
    if (name != T::name) return;
    found = true;
    T::apply(call, Measure{target, &bytes});
  });
  if (!found) {
    throw scanrnn::InvalidArgument("ffi_workspace_bytes: there is no target " + name);
  }
  return bytes;
}

}  // namespace

void bind_xla_ffi(nb::module_& m) {
  using nb::arg;
  m.attr("ffi_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  m.def("ffi_targets", ffi_targets, arg("platform") = "cpu");
  m.def("ffi_workspace_bytes", ffi_workspace_bytes, arg("name"), arg("operands"), arg("results"),
        arg("reverse"), arg("packed"), arg("left_padded"), arg("order"), arg("kind") = 0,
        arg("options") = std::vector<double>(), arg("tolerance") = 0.0, arg("max_passes") = 8,
        arg("segment") = 0, arg("device") = -1);
}

#else

void bind_xla_ffi(nb::module_& m) {
  m.attr("ffi_version") = nb::make_tuple(0, 0);
  m.def("ffi_targets", [](nb::handle) { return nb::dict(); }, nb::arg("platform") = "cpu");
}

#endif
