// SPDX-License-Identifier: Apache-2.0
// The CUDA benchmark: the scan and the cells on the device, beside a streaming kernel that moves
// the same bytes. Run it with --help for its options.
//
// Time: CUDA events around one call, medians over rounds in which the call and the streaming
// kernels take turns. Before each a buffer of several times the L2 cache is written, so nothing
// that is read lies in the cache, and the cache is full of lines that still have to go to memory:
// the measured call writes those back, and leaves as many of its own behind. So every byte counts
// once, as in a long row of calls. That write also lasts long enough for the host to have enqueued
// the call before the device gets to it.
//
// Ceiling: the fastest of several streaming kernels that read and write as many arrays of as many
// bytes, with 16 bytes an access, and compute nothing to speak of. Share = ceiling / call. What a
// call moves beside those arrays (checkpoints, nodes of the merge tree) is its own cost.
//
// The library's kernels among themselves (--grid) differ by a few percent of as many microseconds.
// They are called with the same arrays, because where those lie is worth up to a sixth; in a new
// order every round; each behind a call of its own, before the caches are filled with something
// else, so that every kernel's instructions are where they are in a row of calls, not only those
// that two of them share. And as the events tell the time in steps of 0.03 to 0.16 us, times are
// means, of the middle half of the rounds.
//
// Error: some channels of the outputs, written anew over NaNs, against a serial loop in double
// precision, relative to the largest value. A row that is wrong is marked, and the exit status
// is 1.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scanrnn/scanrnn.hpp"

// Of the runtime; their header is the only one that comes in a package of its own.
extern "C" cudaError_t CUDARTAPI cudaProfilerStart();
extern "C" cudaError_t CUDARTAPI cudaProfilerStop();

namespace {

using scanrnn::Array;
using scanrnn::ConstArray;
using scanrnn::DType;
using std::int64_t;
using std::size_t;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(3);
}
#define CHECK(call) check((call), #call)

// ---- Device memory -----------------------------------------------------------------------------

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) { CHECK(cudaMalloc(&data_, bytes ? bytes : 1)); }
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Memory& operator=(Memory&&) = delete;
  ~Memory() { cudaFree(data_); }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void set(int byte) const { CHECK(cudaMemset(data_, byte, bytes_)); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// ---- Elements ----------------------------------------------------------------------------------

template <class T>
struct Tag {
  using type = T;
};

/// Calls f with the tag of the device type that stores a dtype.
template <class F>
auto with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f16:
      return f(Tag<__half>{});
    case DType::bf16:
      return f(Tag<__nv_bfloat16>{});
    case DType::f32:
      return f(Tag<float>{});
    case DType::f64:
      return f(Tag<double>{});
    case DType::c64:
      return f(Tag<float2>{});
    case DType::c128:
      return f(Tag<double2>{});
    default:
      std::fprintf(stderr, "no benchmark for dtype %s\n", scanrnn::name_of(dtype));
      std::exit(2);
  }
}

template <class T>
constexpr bool is_complex = std::is_same_v<T, float2> || std::is_same_v<T, double2>;

__device__ double2 widen(__half v) { return {__half2float(v), 0}; }
__device__ double2 widen(__nv_bfloat16 v) { return {__bfloat162float(v), 0}; }
__device__ double2 widen(float v) { return {v, 0}; }
__device__ double2 widen(double v) { return {v, 0}; }
__device__ double2 widen(float2 v) { return {v.x, v.y}; }
__device__ double2 widen(double2 v) { return v; }

__device__ void narrow(double2 v, __half* to) { *to = __float2half_rn(static_cast<float>(v.x)); }
__device__ void narrow(double2 v, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(static_cast<float>(v.x));
}
__device__ void narrow(double2 v, float* to) { *to = static_cast<float>(v.x); }
__device__ void narrow(double2 v, double* to) { *to = v.x; }
__device__ void narrow(double2 v, float2* to) {
  *to = {static_cast<float>(v.x), static_cast<float>(v.y)};
}
__device__ void narrow(double2 v, double2* to) { *to = v; }

/// A number from [0, 1) for each (index, seed).
__device__ float uniform(std::uint64_t index, std::uint32_t seed) {
  std::uint64_t z = (index + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

enum class Fill { values, gates, preactivations, rates };

/// Values from (-1, 1); gates from (0.8, 1), with any angle if complex; pre-activations from
/// (-2, 4), whose sigmoid is 0.12 to 0.98; rates from (-8, -4), of which RG-LRU makes gains of 0.86
/// to 0.997 where its gate is open.
template <class T>
__global__ void fill(T* to, int64_t count, Fill what, std::uint32_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const float u = uniform(i, 2 * seed), v = uniform(i, 2 * seed + 1);
    double2 value{2 * u - 1, 2 * v - 1};
    if (what == Fill::preactivations) value = {6 * u - 2, 0};
    if (what == Fill::rates) value = {4 * u - 8, 0};
    if (what == Fill::gates) {
      value = {0.8f + 0.2f * u, 0};
      if (is_complex<T>) value = {value.x * cospif(2 * v), value.x * sinpif(2 * v)};
    }
    narrow(value, to + i);
  }
}

Memory filled(DType dtype, int64_t count, Fill what, std::uint32_t seed) {
  Memory memory(count * scanrnn::size_of(dtype));
  with_type(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill<<<2048, 256>>>(static_cast<T*>(memory.data()), count, what, seed);
  });
  CHECK(cudaGetLastError());
  return memory;
}

template <class T>
__global__ void gather(const T* from, int64_t stride, int64_t count, double2* to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = widen(from[i * stride]);
}

/// The elements along one axis of a device array, read in any order, best by neighbours.
class Series {
 public:
  Series(const void* data, DType dtype, int64_t stride, int64_t count)
      : data_(static_cast<const char*>(data)), dtype_(dtype), stride_(stride), count_(count) {}
  /// The time axis of an array at (b, d).
  Series(const ConstArray<3>& array, int64_t b, int64_t d)
      : Series(static_cast<const char*>(array.data) + (b * array.stride[0] + d * array.stride[2]) *
                                                          int64_t(scanrnn::size_of(array.dtype)),
               array.dtype, array.stride[1], array.shape[1]) {}

  double2 operator[](int64_t t) {
    if (t < begin_ || t >= begin_ + static_cast<int64_t>(window_.size())) load(t / kWindow);
    return window_[t - begin_];
  }

 private:
  static constexpr int64_t kWindow = 1 << 20;

  void load(int64_t index) {
    begin_ = index * kWindow;
    const int64_t count = std::min(kWindow, count_ - begin_);
    window_.resize(count);
    const Memory dense(count * sizeof(double2));
    with_type(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      gather<<<static_cast<unsigned>((count + 255) / 256), 256>>>(
          reinterpret_cast<const T*>(data_) + begin_ * stride_, stride_, count,
          static_cast<double2*>(dense.data()));
    });
    CHECK(cudaGetLastError());
    CHECK(
        cudaMemcpy(window_.data(), dense.data(), count * sizeof(double2), cudaMemcpyDeviceToHost));
  }

  const char* data_;
  DType dtype_;
  int64_t stride_, count_, begin_ = 0;
  std::vector<double2> window_;
};

// ---- The serial reference
// ------------------------------------------------------------------------

double2 operator+(double2 a, double2 b) { return {a.x + b.x, a.y + b.y}; }
double2 operator*(double2 a, double2 b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }
double2 conj(double2 a) { return {a.x, -a.y}; }

/// The largest difference from what is right, relative to the largest value.
class Deviation {
 public:
  void add(double2 got, double2 want) {
    add(std::hypot(got.x - want.x, got.y - want.y), std::hypot(want.x, want.y));
  }
  void add(double difference, double size) {
    difference_ = std::max(difference_, std::isnan(difference) ? HUGE_VAL : difference);
    size_ = std::max(size_, size);
  }
  double relative() const { return difference_ == 0 ? 0 : difference_ / size_; }

 private:
  double difference_ = 0, size_ = 0;
};

std::vector<int64_t> some(int64_t count) {
  std::vector<int64_t> result{0, count / 2, count - 1};
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

double error_of(const scanrnn::ScanForward& call) {
  Deviation h;
  for (const int64_t b : some(call.x.shape[0])) {
    for (const int64_t d : some(call.x.shape[2])) {
      Series a_(call.a, b, d), x_(call.x, b, d), h_(call.h, b, d);
      double2 state{0, 0};
      for (int64_t t = 0; t < call.x.shape[1]; ++t) {
        state = a_[t] * state + x_[t];
        h.add(h_[t], state);
      }
    }
  }
  return h.relative();
}

double error_of(const scanrnn::ScanBackward& call) {
  Deviation da, dx;
  for (const int64_t b : some(call.h.shape[0])) {
    for (const int64_t d : some(call.h.shape[2])) {
      Series a_(call.a, b, d), h_(call.h, b, d), dh_(call.dh, b, d);
      Series da_(call.da, b, d), dx_(call.dx, b, d);
      double2 g{0, 0}, later{0, 0};  // later: a at the step after
      for (int64_t t = call.h.shape[1] - 1; t >= 0; --t) {
        g = dh_[t] + conj(later) * g;
        later = a_[t];
        dx.add(dx_[t], g);
        da.add(da_[t], t == 0 ? double2{0, 0} : g * conj(h_[t - 1]));
      }
    }
  }
  return std::max(da.relative(), dx.relative());
}

/// A number and its derivatives by every input of a cell (forward-mode differentiation).
struct Dual {
  double value = 0;
  std::array<double, scanrnn::kMaxInputs> slopes{};

  Dual(double constant = 0) : value(constant) {}
  static Dual variable(double value, int input) {
    Dual result(value);
    result.slopes[input] = 1;
    return result;
  }
  /// A function's value here, with the derivatives left * this + right * other.
  Dual chain(double result, double left, const Dual& other = {}, double right = 0) const {
    Dual dual(result);
    for (size_t i = 0; i < slopes.size(); ++i)
      dual.slopes[i] = left * slopes[i] + right * other.slopes[i];
    return dual;
  }
};

Dual operator+(const Dual& a, const Dual& b) { return a.chain(a.value + b.value, 1, b, 1); }
Dual operator-(const Dual& a, const Dual& b) { return a.chain(a.value - b.value, 1, b, -1); }
Dual operator*(const Dual& a, const Dual& b) {
  return a.chain(a.value * b.value, b.value, b, a.value);
}
Dual operator/(const Dual& a, const Dual& b) {
  return a.chain(a.value / b.value, 1 / b.value, b, -a.value / (b.value * b.value));
}
Dual sigmoid(const Dual& a) {
  const double y = 1 / (1 + std::exp(-a.value));
  return a.chain(y, y * (1 - y));
}
Dual tanh(const Dual& a) {
  const double y = std::tanh(a.value);
  return a.chain(y, 1 - y * y);
}
Dual exp(const Dual& a) {
  const double y = std::exp(a.value);
  return a.chain(y, y);
}
Dual expm1(const Dual& a) { return a.chain(std::expm1(a.value), std::exp(a.value)); }
Dual log1p(const Dual& a) { return a.chain(std::log1p(a.value), 1 / (1 + a.value)); }
Dual sqrt(const Dual& a) {
  const double y = std::sqrt(a.value);
  return a.chain(y, 0.5 / y);
}

/// The map of one step, c = a c_{t-1} + x.
struct Step {
  Dual a, x;
};
Step gated(const Dual& keep, const Dual& candidate) { return {keep, (1 - keep) * candidate}; }

// What is measured of each cell: its name in the table, its options, what its inputs are filled
// with (in the cell's order; those of `absent` aren't given), its paper's equations, and the share
// that is wanted.

struct CellCase {
  static constexpr double goal = 0.85;
  static constexpr unsigned absent = 0;
  template <class Cell>
  static void set(Cell&) {}
  static Dual output(const Dual*, const Dual& c) { return c; }
};

struct Sru : CellCase {
  using Cell = scanrnn::SruCell;
  static constexpr const char* name = "sru";
  static constexpr double goal = 0.9;
  static constexpr Fill fills[] = {Fill::values, Fill::preactivations, Fill::preactivations,
                                   Fill::values, Fill::values,         Fill::values};
  static Step step(const Dual* in) {
    return gated(sigmoid(in[Cell::kForget] + in[Cell::kBiasForget]), in[Cell::kU]);
  }
  static Dual output(const Dual* in, const Dual& c) {
    const Dual r = sigmoid(in[Cell::kReset] + in[Cell::kBiasReset]);
    return r * c + (1 - r) * in[Cell::kSkip];
  }
};

struct Gilr : CellCase {
  using Cell = scanrnn::GilrCell;
  static constexpr const char* name = "gilr";
  static constexpr Fill fills[] = {Fill::preactivations, Fill::values, Fill::gates};
  static constexpr unsigned absent = 1u << Cell::kBound;
  static Step step(const Dual* in) {
    return gated(sigmoid(in[Cell::kGate]), tanh(in[Cell::kCandidate]));
  }
};

struct Hgrn : CellCase {
  using Cell = scanrnn::GilrCell;
  static constexpr const char* name = "hgrn";
  static constexpr Fill fills[] = {Fill::preactivations, Fill::values, Fill::gates};
  static void set(Cell& cell) { cell.activation = scanrnn::Activation::silu; }
  static Step step(const Dual* in) {
    const Dual bound = in[Cell::kBound], z = in[Cell::kCandidate];
    return gated(bound + (1 - bound) * sigmoid(in[Cell::kGate]), z * sigmoid(z));
  }
};

struct MinGru : CellCase {
  using Cell = scanrnn::GilrCell;
  static constexpr const char* name = "min_gru";
  static constexpr Fill fills[] = {Fill::preactivations, Fill::values, Fill::gates};
  static constexpr unsigned absent = 1u << Cell::kBound;
  static void set(Cell& cell) {
    cell.gate = scanrnn::Gate::update;
    cell.activation = scanrnn::Activation::identity;
  }
  static Step step(const Dual* in) {
    return gated(1 - sigmoid(in[Cell::kGate]), in[Cell::kCandidate]);
  }
};

struct QrnnIfo : CellCase {
  using Cell = scanrnn::QrnnCell;
  static constexpr const char* name = "qrnn_ifo";
  static constexpr Fill fills[] = {Fill::values, Fill::preactivations, Fill::preactivations,
                                   Fill::preactivations};
  static Step step(const Dual* in) {
    return {sigmoid(in[Cell::kForget]), sigmoid(in[Cell::kInput]) * tanh(in[Cell::kCandidate])};
  }
  static Dual output(const Dual* in, const Dual& c) { return sigmoid(in[Cell::kOutput]) * c; }
};

struct QrnnFo : QrnnIfo {
  static constexpr const char* name = "qrnn_fo";
  static constexpr unsigned absent = 1u << Cell::kInput;
  static Step step(const Dual* in) {
    return gated(sigmoid(in[Cell::kForget]), tanh(in[Cell::kCandidate]));
  }
};

struct MinLstm : CellCase {
  using Cell = scanrnn::MinLstmCell;
  static constexpr const char* name = "min_lstm";
  static constexpr Fill fills[] = {Fill::preactivations, Fill::preactivations, Fill::values};
  static Step step(const Dual* in) {
    const Dual f = sigmoid(in[Cell::kForget]), i = sigmoid(in[Cell::kInput]);
    return {f / (f + i), i / (f + i) * in[Cell::kCandidate]};
  }
};

struct RgLru : CellCase {
  using Cell = scanrnn::RgLruCell;
  static constexpr const char* name = "rg_lru";
  static constexpr Fill fills[] = {Fill::values, Fill::preactivations, Fill::preactivations,
                                   Fill::rates};
  static Step step(const Dual* in) {
    const Dual log_a = -8 * log1p(exp(in[Cell::kLambda])) * sigmoid(in[Cell::kGate]);
    const Dual rest = 0 - expm1(2 * log_a);
    return {exp(log_a), sqrt(rest) * sigmoid(in[Cell::kInput]) * in[Cell::kX]};
  }
};

/// Where input `i` of a case's cell is: absent, one value a channel, or an array (B,T,D).
enum class Place { absent, vector, array };

template <class Of>
constexpr Place place(int i) {
  return Of::absent >> i & 1u                ? Place::absent
         : Of::Cell::vector_inputs >> i & 1u ? Place::vector
                                             : Place::array;
}

template <class Of>
constexpr int arrays() {
  int count = 0;
  for (int i = 0; i < Of::Cell::inputs; ++i) count += place<Of>(i) == Place::array;
  return count;
}

// The outputs, or with `backward` the gradients, for whole channels: the gradients of vectors are
// sums over the batch.
template <class Of>
double error_of(const scanrnn::CellForward<typename Of::Cell>& forward,
                const scanrnn::CellBackward<typename Of::Cell>* backward) {
  using Cell = typename Of::Cell;
  constexpr int kInputs = Cell::inputs;
  const int64_t B = forward.out.shape[0], T = forward.out.shape[1], D = forward.out.shape[2];
  const auto channel = [&](const ConstArray<3>& array, int64_t d) {
    return Series(array.data, array.dtype, array.stride[2], D)[d].x;
  };
  Deviation h, gradients[kInputs];
  double worst = 0;
  for (const int64_t d : {int64_t{0}, D - 1}) {
    double vectors[kInputs] = {}, sums[kInputs] = {}, sizes[kInputs] = {};
    for (int i = 0; i < kInputs; ++i)
      if (place<Of>(i) == Place::vector) vectors[i] = channel(forward.in[i], d);
    for (int64_t b = 0; b < B; ++b) {
      std::vector<Series> series, din;
      int at[kInputs];
      for (int i = 0; i < kInputs; ++i) {
        at[i] = static_cast<int>(series.size());
        if (place<Of>(i) != Place::array) continue;
        series.emplace_back(forward.in[i], b, d);
        if (backward) din.emplace_back(backward->din[i], b, d);
      }
      const auto inputs = [&](Dual(&in)[kInputs], int64_t t) {
        for (int i = 0; i < kInputs; ++i) {
          const bool array = place<Of>(i) == Place::array;
          in[i] = Dual::variable(array ? series[at[i]][t].x : vectors[i], i);
        }
      };
      Dual in[kInputs];
      Series out(forward.out, b, d);
      // c_{t-1}: what the kernel reads where the state is the output, whose rounding is no error
      // of the gradients.
      std::vector<double> before(T);
      double state = 0;
      for (int64_t t = 0; t < T; ++t) {
        before[t] = state;
        inputs(in, t);
        const Step step = Of::step(in);
        state = step.a.value * state + step.x.value;
        if (!backward)
          h.add(out[t], {Of::output(in, state).value, 0});
        else if (Cell::state_is_output)
          state = out[t].x;
      }
      if (!backward) continue;
      Series dout(backward->dout, b, d);
      double g = 0, later = 0;  // later: a at the step after
      for (int64_t t = T - 1; t >= 0; --t) {
        inputs(in, t);
        const Step step = Of::step(in);
        // The state after the step, as a variable of its own: no input of a cell is the last one.
        static_assert(kInputs < scanrnn::kMaxInputs);
        constexpr int kState = scanrnn::kMaxInputs - 1;
        const double c = step.a.value * before[t] + step.x.value;
        const Dual y = Of::output(in, Dual::variable(c, kState));
        const double dy = dout[t].x;
        g = later * g + dy * y.slopes[kState];
        later = step.a.value;
        for (int i = 0; i < kInputs; ++i) {
          const double want =
              g * (step.a.slopes[i] * before[t] + step.x.slopes[i]) + dy * y.slopes[i];
          if (place<Of>(i) == Place::array) gradients[i].add(din[at[i]][t], {want, 0});
          sums[i] += want, sizes[i] += std::abs(want);
        }
      }
    }
    // The terms cancel, so the size is that of a sum of random signs.
    const double steps = std::sqrt(static_cast<double>(B * T));
    for (int i = 0; backward && i < kInputs; ++i) {
      if (place<Of>(i) != Place::vector) continue;
      Deviation one;
      one.add(std::abs(channel(backward->din[i], d) - sums[i]),
              std::max(std::abs(sums[i]), sizes[i] / steps));
      worst = std::max(worst, one.relative());
    }
  }
  for (const Deviation& one : gradients) worst = std::max(worst, one.relative());
  return std::max(worst, h.relative());
}

/// What the outputs' rounding and float32 carries explain, with room for long sums.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-8;
    case DType::f64:
    case DType::c128:
      return 1e-12;
    default:
      return 2e-5;
  }
}

// ---- What is measured --------------------------------------------------------------------------

enum class Layout { btd, bdt, tbd };

struct Case;
struct Work;
struct Contender {
  std::string name;
  std::function<void()> call;
};

/// A call that is measured: the arrays that it must read and write, how to make it, and its
/// streaming kernels.
struct Op {
  std::string name;
  int reads, writes;
  Work (*make)(const Case&);
  std::vector<Contender> (*streams)(const Work&);
};

struct Case {
  const Op* op;
  DType dtype;
  Layout layout;
  int64_t B, T, D;
  double goal;  ///< the share that is wanted, 0: none stated

  int64_t count() const { return B * T * D; }
  /// Bytes that must be moved.
  double traffic() const {
    return static_cast<double>(count()) * scanrnn::size_of(dtype) * (op->reads + op->writes);
  }
  const char* op_name() const { return op->name.c_str(); }
  const char* layout_name() const {
    static const char* const names[] = {"[B,T,D]", "[B,D,T]", "[T,B,D]"};
    return names[static_cast<int>(layout)];
  }
  std::string shape() const {
    return std::to_string(B) + "," + std::to_string(T) + "," + std::to_string(D);
  }
  std::string name() const {
    return std::string(op_name()) + " " + scanrnn::name_of(dtype) + " " + layout_name() + " " +
           shape();
  }
  Array<3> array(void* data, DType type) const {
    Array<3> result{data, type, {B, T, D}, {T * D, D, 1}};
    const int64_t other[][3] = {{T * D, D, 1}, {D * T, 1, T}, {D, B * D, 1}};
    std::copy_n(other[static_cast<int>(layout)], 3, result.stride);
    return result;
  }
};

/// The arrays of a case, and its call.
struct Work {
  std::vector<Memory> reads, writes;  ///< one array each, what the streaming kernel moves too
  std::vector<Memory> others;         ///< small ones, and checkpoints
  std::vector<Memory> workspace;      ///< one
  std::function<void()> call;         ///< enqueues on the default stream
  std::function<double()> error;      ///< of the outputs that a call has written
};

scanrnn::Target device_target() { return {scanrnn::Device::cuda, 0, nullptr}; }

template <class Call, class WorkspaceBytes, class Run>
void set_call(Work& work, const Call& call, WorkspaceBytes* workspace_bytes, Run* run) {
  scanrnn::Target target = device_target();
  CHECK(cudaGetDevice(&target.index));
  const Memory& memory = work.workspace.emplace_back(workspace_bytes(call, target));
  const scanrnn::Workspace workspace{memory.data(), memory.bytes()};
  memory.set(0xa5);  // needs no clearing
  work.call = [=] { run(call, workspace, target); };
}

Work make_scan_forward(const Case& c) {
  Work work;
  work.reads.push_back(filled(c.dtype, c.count(), Fill::gates, 1));
  work.reads.push_back(filled(c.dtype, c.count(), Fill::values, 2));
  work.writes.emplace_back(c.count() * scanrnn::size_of(c.dtype));
  scanrnn::ScanForward call;
  call.a = c.array(work.reads[0].data(), c.dtype);
  call.x = c.array(work.reads[1].data(), c.dtype);
  call.h = c.array(work.writes[0].data(), c.dtype);
  set_call(work, call, scanrnn::scan_forward_workspace_bytes, scanrnn::scan_forward);
  work.error = [=] { return error_of(call); };
  return work;
}

Work make_scan_backward(const Case& c) {
  Work work;
  work.reads.push_back(filled(c.dtype, c.count(), Fill::gates, 1));
  for (int i = 2; i < 4; ++i) work.reads.push_back(filled(c.dtype, c.count(), Fill::values, i));
  for (int i = 0; i < 2; ++i) work.writes.emplace_back(c.count() * scanrnn::size_of(c.dtype));
  scanrnn::ScanBackward call;
  call.a = c.array(work.reads[0].data(), c.dtype);
  call.h = c.array(work.reads[1].data(), c.dtype);  // any states do
  call.dh = c.array(work.reads[2].data(), c.dtype);
  call.da = c.array(work.writes[0].data(), c.dtype);
  call.dx = c.array(work.writes[1].data(), c.dtype);
  set_call(work, call, scanrnn::scan_backward_workspace_bytes, scanrnn::scan_backward);
  work.error = [=] { return error_of(call); };
  return work;
}

enum class Pass { forward, checkpoints, backward };

template <class Of, Pass pass>
Work make_cell(const Case& c) {
  using Cell = typename Of::Cell;
  static_assert(std::size(Of::fills) == Cell::inputs);
  Work work;
  const auto element = scanrnn::size_of(c.dtype);
  const auto vector = [&](const Memory& memory) {
    return Array<1>{memory.data(), c.dtype, {c.D}, {1}};
  };
  const auto output = [&](std::vector<Memory>& to) {
    return c.array(to.emplace_back(c.count() * element).data(), c.dtype);
  };

  scanrnn::CellForward<Cell> forward;
  Of::set(forward.cell);
  for (int i = 0; i < Cell::inputs; ++i) {
    if (place<Of>(i) == Place::array) {
      work.reads.push_back(filled(c.dtype, c.count(), Of::fills[i], i));
      forward.in[i] = c.array(work.reads.back().data(), c.dtype);
    } else if (place<Of>(i) == Place::vector) {
      work.others.push_back(filled(c.dtype, c.D, Of::fills[i], i));
      forward.in[i] = per_channel(vector(work.others.back()));
    }
  }
  // Backward reads the output where that is the state; else nothing does, and its memory becomes a
  // gradient's.
  constexpr bool reads_output = pass == Pass::backward && Cell::state_is_output;
  forward.out = output(reads_output ? work.reads : work.writes);
  if (pass != Pass::forward && !Cell::state_is_output) {
    const DType wide = scanrnn::accumulation_dtype(c.dtype);
    const int64_t rows = scanrnn::checkpoint_rows(c.B, c.T, c.B);
    const Memory& memory = work.others.emplace_back(rows * c.D * scanrnn::size_of(wide));
    forward.checkpoints = {memory.data(), wide, {rows, c.D}, {c.D, 1}};
  }
  set_call(work, forward, scanrnn::cell_forward_workspace_bytes, scanrnn::cell_forward);
  if (pass != Pass::backward) {
    work.error = [=] { return error_of<Of>(forward, nullptr); };
    return work;
  }

  work.call();
  CHECK(cudaDeviceSynchronize());
  work.workspace.clear();
  scanrnn::CellBackward<Cell> backward;
  backward.cell = forward.cell;
  std::copy(std::begin(forward.in), std::end(forward.in), backward.in);
  backward.checkpoints = forward.checkpoints;
  if (reads_output) backward.out = forward.out;
  work.reads.push_back(filled(c.dtype, c.count(), Fill::values, Cell::inputs));
  backward.dout = c.array(work.reads.back().data(), c.dtype);
  size_t next = 0;
  for (int i = 0; i < Cell::inputs; ++i) {
    if (place<Of>(i) == Place::array) {
      if (next == work.writes.size()) output(work.writes);
      backward.din[i] = c.array(work.writes[next++].data(), c.dtype);
    } else if (place<Of>(i) == Place::vector) {
      backward.din[i] = per_channel(vector(work.others.emplace_back(c.D * element)));
    }
  }
  set_call(work, backward, scanrnn::cell_backward_workspace_bytes, scanrnn::cell_backward);
  work.error = [=] { return error_of<Of>(forward, &backward); };
  return work;
}

/// Calls once more, over NaNs, and compares.
double error_of(const Work& work) {
  for (const Memory& memory : work.writes) memory.set(0xff);
  work.workspace[0].set(0x5a);
  work.call();
  CHECK(cudaDeviceSynchronize());
  return work.error();
}

// ---- The streaming kernel
// ------------------------------------------------------------------------

template <int Reads, int Writes>
struct Streams {
  const uint4* in[Reads];
  uint4* out[Writes];
};

template <bool Past>
__device__ uint4 load(const uint4* from) {
  return Past ? __ldcs(from) : *from;
}

template <bool Past>
__device__ void store(uint4* to, const uint4& value) {
  if (Past)
    __stcs(to, value);
  else
    *to = value;
}

constexpr int kStreamThreads = 256;

/// `count` vectors of each array; a thread has `Vectors` of each in flight. Past: marked as not to
/// be kept in the caches.
template <int Reads, int Writes, int Vectors, bool Past>
__global__ void __launch_bounds__(kStreamThreads)
    stream(const Streams<Reads, Writes> arrays, const int64_t count) {
  constexpr int kChunk = kStreamThreads * Vectors;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kChunk;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kChunk + threadIdx.x; first < count;
       first += step) {
    uint4 values[Reads][Vectors];
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const int64_t i = first + v * kStreamThreads;
#pragma unroll
      for (int k = 0; k < Reads; ++k)
        values[k][v] = i < count ? load<Past>(arrays.in[k] + i) : uint4{};
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const int64_t i = first + v * kStreamThreads;
      uint4 sum = values[0][v];
#pragma unroll
      for (int k = 1; k < Reads; ++k) {
        const uint4& other = values[k][v];
        sum = {sum.x ^ other.x, sum.y ^ other.y, sum.z ^ other.z, sum.w ^ other.w};
      }
      if (i < count) {
#pragma unroll
        for (int k = 0; k < Writes; ++k) store<Past>(arrays.out[k] + i, sum);
      }
    }
  }
}

template <int Reads, int Writes, int Vectors, bool Past>
void add_streams(std::vector<Contender>& to, const Work& work) {
  Streams<Reads, Writes> arrays;
  for (int k = 0; k < Reads; ++k) arrays.in[k] = static_cast<const uint4*>(work.reads[k].data());
  for (int k = 0; k < Writes; ++k) arrays.out[k] = static_cast<uint4*>(work.writes[k].data());
  const int64_t count = work.reads[0].bytes() / sizeof(uint4);
  const auto kernel = stream<Reads, Writes, Vectors, Past>;
  int device = 0, processors = 0, resident = 0;
  CHECK(cudaGetDevice(&device));
  CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kStreamThreads, 0));
  const int64_t chunk = kStreamThreads * Vectors;
  const int64_t all = std::max<int64_t>(1, (count + chunk - 1) / chunk);
  const int64_t looping = std::min<int64_t>(all, int64_t{processors} * resident);
  const std::string suffix = std::string(", ") + std::to_string(Vectors) + " in flight" +
                             (Past ? ", past the caches" : "");
  for (const auto& [name, blocks] : {std::pair{"a block a chunk", all}, {"looping", looping}}) {
    const auto grid = static_cast<unsigned>(blocks);
    to.push_back({name + suffix, [=] { kernel<<<grid, kStreamThreads>>>(arrays, count); }});
  }
}

template <int Reads, int Writes>
std::vector<Contender> streams(const Work& work) {
  std::vector<Contender> result;
  add_streams<Reads, Writes, 1, false>(result, work);
  add_streams<Reads, Writes, 1, true>(result, work);
  add_streams<Reads, Writes, 2, false>(result, work);
  add_streams<Reads, Writes, 2, true>(result, work);
  add_streams<Reads, Writes, 4, false>(result, work);
  add_streams<Reads, Writes, 4, true>(result, work);
  return result;
}

// ---- The calls ---------------------------------------------------------------------------------

const Op kScanForward{"scan forward", 2, 1, make_scan_forward, streams<2, 1>};
const Op kScanBackward{"scan backward", 3, 2, make_scan_backward, streams<3, 2>};

/// The calls of a cell. Where the state is the output, checkpoints are none.
template <class Of>
std::vector<Op> make_ops() {
  constexpr bool is_output = Of::Cell::state_is_output;
  constexpr int kArrays = arrays<Of>(), kReads = kArrays + 1 + is_output;
  const std::string name = Of::name;
  std::vector<Op> ops{
      {name + " forward", kArrays, 1, make_cell<Of, Pass::forward>, streams<kArrays, 1>}};
  if constexpr (!is_output)
    ops.push_back({name + " forward+checkpoints", kArrays, 1, make_cell<Of, Pass::checkpoints>,
                   streams<kArrays, 1>});
  ops.push_back({name + " backward", kReads, kArrays, make_cell<Of, Pass::backward>,
                 streams<kReads, kArrays>});
  return ops;
}

struct CellOps {
  std::vector<Op> calls;
  double goal;
};

template <class... Of>
std::vector<CellOps> make_all() {
  return {{make_ops<Of>(), Of::goal}...};
}

const std::vector<CellOps> kCellOps =
    make_all<Sru, Gilr, Hgrn, MinGru, QrnnFo, QrnnIfo, MinLstm, RgLru>();

// ---- Timing ------------------------------------------------------------------------------------

double median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The mean of the middle half.
double middle_mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto quarter = static_cast<std::ptrdiff_t>(values.size() / 4);
  const auto begin = values.begin() + quarter, end = values.end() - quarter;
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

struct Timing {
  double ms;       ///< on the device, median
  double host_us;  ///< of the host, until the call is enqueued, median
};

class Clock {
 public:
  Clock() : cold_(cold_bytes()) {
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  /// Lets the device reach the clocks that it runs at under load.
  void warm_up() {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(300)) {
      for (int i = 0; i < 20; ++i) CHECK(cudaMemsetAsync(cold_.data(), i, cold_.bytes()));
      CHECK(cudaDeviceSynchronize());
    }
  }

  /// Microseconds on the device of contenders that are nearly alike.
  std::vector<double> compare(const std::vector<Contender>& contenders, int rounds) {
    std::vector<std::vector<double>> us(contenders.size());
    std::vector<size_t> order(contenders.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (int round = 0; round < rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const size_t i : order) {
        contenders[i].call();
        us[i].push_back(once(contenders[i].call).ms * 1e3);
      }
    }
    std::vector<double> result;
    for (auto& values : us) result.push_back(middle_mean(std::move(values)));
    return result;
  }

  /// Medians of the contenders, which take turns.
  std::vector<Timing> measure(const std::vector<Contender>& contenders, int rounds) {
    std::vector<std::vector<double>> ms(contenders.size()), us(contenders.size());
    for (int round = -1; round < rounds; ++round) {  // the first one warms up
      for (size_t i = 0; i < contenders.size(); ++i) {
        const auto [device, host] = once(contenders[i].call);
        if (round < 0) continue;
        ms[i].push_back(device);
        us[i].push_back(host);
      }
    }
    std::vector<Timing> result;
    for (size_t i = 0; i < contenders.size(); ++i) result.push_back({median(ms[i]), median(us[i])});
    return result;
  }

 private:
  static size_t cold_bytes() {
    int device = 0, l2 = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
    return std::max<size_t>(size_t{256} << 20, size_t{4} * l2);
  }

  Timing once(const std::function<void()>& call) {
    CHECK(cudaMemsetAsync(cold_.data(), ++value_ & 0xff, cold_.bytes()));
    CHECK(cudaEventRecord(begin_));
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::micro> host = std::chrono::steady_clock::now() - start;
    CHECK(cudaEventRecord(end_));
    CHECK(cudaEventSynchronize(end_));
    CHECK(cudaGetLastError());
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return {ms, host.count()};
  }

  Memory cold_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::minstd_rand random_;
  int value_ = 0;
};

// ---- The rows
// ------------------------------------------------------------------------------------

struct Shape {
  int64_t B, T, D;
  double goal;
};

std::vector<Case> table_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::vector<const Op*>& ops, DType dtype,
                       std::initializer_list<Layout> layouts, const Shape& s, double goal) {
    for (const Layout layout : layouts)
      for (const Op* op : ops) cases.push_back({op, dtype, layout, s.B, s.T, s.D, goal});
  };
  const std::vector<const Op*> both{&kScanForward, &kScanBackward};
  const auto fast = {Layout::btd, Layout::bdt};
  for (const Shape& s : std::initializer_list<Shape>{{16, 8192, 1024, 0.95},
                                                     {8, 2048, 1024, 0.95},
                                                     {1, 65536, 512, 0.95},
                                                     {1, 1048576, 64, 0.95},
                                                     {4, 262144, 32, 0.95},
                                                     {8, 65536, 1536, 0.95},
                                                     {1, 1 << 26, 1, 0.9},
                                                     {32, 256, 1024, 0.9},
                                                     {8, 2000, 1000, 0.85},
                                                     {8, 2001, 1001, 0.85}}) {
    add(both, DType::f32, fast, s, s.goal);
  }
  for (const Shape& s : {Shape{16, 8192, 1024, 0}, Shape{8, 2048, 1024, 0}})
    add(both, DType::f32, {Layout::tbd}, s, 0);
  for (const DType dtype : {DType::bf16, DType::f16, DType::c64})
    for (const Shape& s :
         {Shape{16, 8192, 1024, 0}, Shape{1, 65536, 512, 0}, Shape{4, 262144, 32, 0}})
      add(both, dtype, fast, s, 0.9);
  for (const Shape& s : {Shape{16, 8192, 1024, 0}, Shape{1, 65536, 512, 0}})
    add(both, DType::f64, fast, s, 0);
  for (const auto& [calls, goal] : kCellOps) {
    std::vector<const Op*> ops;
    for (const Op& op : calls) ops.push_back(&op);
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Shape& s : {Shape{16, 4096, 512, 0}, Shape{1, 65536, 512, 0}})
        add(ops, dtype, fast, s, goal);
  }
  return cases;
}

/// Where a kernel that is serial in time could win: short sequences, many of them, little work.
std::vector<Case> grid_cases() {
  std::vector<Case> cases;
  const std::pair<int64_t, int64_t> planes[] = {{1, 1},    {1, 64},   {1, 1024},  {4, 32},
                                                {16, 512}, {64, 100}, {256, 256}, {4096, 16}};
  for (const auto& [B, D] : planes)
    for (const int64_t T : {1, 4, 16, 33, 64, 128, 256, 512, 1024, 4096})
      for (const Op* op : {&kScanForward, &kScanBackward})
        for (const Layout layout : {Layout::btd, Layout::bdt})
          if (B * T * D <= int64_t{1} << 26) cases.push_back({op, DType::f32, layout, B, T, D, 0});
  return cases;
}

struct Options {
  std::vector<std::string> filters;
  std::string json;
  int rounds = 25;
  int device = 0;
  bool grid = false, list = false, once = false;
};

bool wanted(const Case& c, const Options& options) {
  return std::all_of(options.filters.begin(), options.filters.end(), [&](const std::string& part) {
    return c.name().find(part) != std::string::npos;
  });
}

/// The lines of --json: one object each, the first about the device.
class Json {
 public:
  explicit Json(const std::string& path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "w");
    if (file_) return;
    std::perror(path.c_str());
    std::exit(2);
  }
  Json(const Json&) = delete;
  Json& operator=(const Json&) = delete;
  ~Json() {
    if (file_) std::fclose(file_);
  }

  template <class... Values>
  void operator()(const char* format, Values... values) {
    if (!file_) return;
    std::fprintf(file_, format, values...);
    std::fputc('\n', file_);
    std::fflush(file_);
  }
  void row(const Case& c, const char* rest) {
    (*this)(
        "{\"op\": \"%s\", \"dtype\": \"%s\", \"layout\": \"%s\", \"shape\": [%lld, %lld, %lld], "
        "%s}",
        c.op_name(), scanrnn::name_of(c.dtype), c.layout_name(), static_cast<long long>(c.B),
        static_cast<long long>(c.T), static_cast<long long>(c.D), rest);
  }

 private:
  std::FILE* file_ = nullptr;
};

template <class... Values>
std::string format(const char* text, Values... values) {
  char line[512];
  std::snprintf(line, sizeof line, text, values...);
  return line;
}

/// Whether the case's arrays fit, with room for workspace and checkpoints; says so if not.
bool fits(const Case& c) {
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  const double needed = c.traffic() * 1.1 + 64e6;
  if (needed <= static_cast<double>(free)) return true;
  std::printf("%-28s %-9s %-7s %-15s needs %.1f GB, %.1f are free: left out\n", c.op_name(),
              scanrnn::name_of(c.dtype), c.layout_name(), c.shape().c_str(), needed / 1e9,
              static_cast<double>(free) / 1e9);
  return false;
}

int run_table(const std::vector<Case>& cases, const Options& options, Clock& clock, Json& json) {
  std::printf("%-28s %-9s %-7s %-15s %11s %10s %6s %5s %6s %8s %8s\n", "call", "dtype", "layout",
              "B,T,D", "ceiling, ms", "call, ms", "share", "goal", "GB/s", "host, us", "error");
  int wrong = 0, goals = 0, met = 0;
  for (const Case& c : cases) {
    if (!wanted(c, options) || !fits(c)) continue;
    const Work work = c.op->make(c);
    if (options.once) {
      work.call();  // loads the kernel
      CHECK(cudaDeviceSynchronize());
      CHECK(cudaProfilerStart());
      work.call();
      CHECK(cudaDeviceSynchronize());
      CHECK(cudaProfilerStop());
      std::printf("%s\n", c.name().c_str());
      continue;
    }
    // All streaming kernels a few times; then the best of them in turns with the call.
    std::vector<Contender> ceilings = c.op->streams(work);
    const auto tried = clock.measure(ceilings, 3);
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < tried.size(); ++i) order.emplace_back(tried[i].ms, i);
    std::sort(order.begin(), order.end());
    std::vector<Contender> contenders{{"call", work.call}};
    for (size_t i = 0; i < 3; ++i) contenders.push_back(ceilings[order[i].second]);
    const auto timings = clock.measure(contenders, options.rounds);
    size_t best = 1;
    for (size_t i = 2; i < timings.size(); ++i)
      if (timings[i].ms < timings[best].ms) best = i;

    const double error = error_of(work);
    const bool right = error <= tolerance(c.dtype);
    const double ms = timings[0].ms, ceiling = timings[best].ms, share = ceiling / ms;
    wrong += !right;
    goals += c.goal > 0;
    met += c.goal > 0 && share >= c.goal;
    std::printf("%-28s %-9s %-7s %-15s %11.4f %10.4f %6.3f %5s %6.0f %8.1f %8.1e%s%s\n",
                c.op_name(), scanrnn::name_of(c.dtype), c.layout_name(), c.shape().c_str(), ceiling,
                ms, share, c.goal > 0 ? format("%.2f", c.goal).c_str() : "-",
                c.traffic() / ms / 1e6, timings[0].host_us, error,
                c.goal > 0 && share < c.goal ? "  below" : "", right ? "" : "  WRONG");
    std::fflush(stdout);
    json.row(c, format("\"ceiling_ms\": %.6f, \"ceiling\": \"%s\", \"ms\": %.6f, \"share\": %.4f, "
                       "\"goal\": %.2f, \"gbps\": %.1f, \"host_us\": %.2f, \"error\": %.3e, "
                       "\"right\": %s",
                       ceiling, contenders[best].name.c_str(), ms, share, c.goal,
                       c.traffic() / ms / 1e6, timings[0].host_us,
                       std::isfinite(error) ? error : std::numeric_limits<double>::max(),
                       right ? "true" : "false")
                    .c_str());
  }
  if (!options.once) std::printf("%d of %d goals met, %d wrong\n", met, goals, wrong);
  return wrong ? 1 : 0;
}

/// The kernels that the library is told to use; nullptr: it chooses.
void force_kernel(const char* name) {
  if (name)
    setenv("SCANRNN_CUDA_KERNEL", name, 1);
  else
    unsetenv("SCANRNN_CUDA_KERNEL");
}

int run_grid(const std::vector<Case>& cases, const Options& options, Clock& clock, Json& json) {
  std::printf("%-15s %-7s %-15s %10s %10s %10s %11s %15s %8s\n", "call, float32", "layout", "B,T,D",
              "chosen, us", "serial, us", "rows, us", "columns, us", "chosen / serial", "error");
  constexpr const char* kKernels[] = {nullptr, "serial", "rows", "columns"};
  int slower = 0, wrong = 0, rows = 0;
  double extreme = 0;  // the largest serial / other: about 1 if forcing a kernel does nothing
  for (const Case& c : cases) {
    if (!wanted(c, options)) continue;
    const auto make = [&](const char* kernel) {
      force_kernel(kernel);
      return c.op->make(c);
    };
    // One set of arrays for all, with the largest workspace.
    const char* largest = *std::max_element(
        std::begin(kKernels), std::end(kKernels), [&](const char* a, const char* b) {
          return make(a).workspace[0].bytes() < make(b).workspace[0].bytes();
        });
    const Work work = make(largest);
    std::vector<Contender> contenders;
    for (const char* kernel : kKernels) {
      contenders.push_back({"", [&work, kernel] {
                              force_kernel(kernel);
                              work.call();
                            }});
    }
    // A difference counts when it stays.
    std::vector<double> us;
    double ratio = 0;
    bool is_slower = false;
    for (int rounds = 2 * options.rounds; rounds <= 32 * options.rounds; rounds *= 4) {
      us = clock.compare(contenders, rounds);
      ratio = us[0] / us[1];
      is_slower = ratio > 1.03;
      if (!is_slower) break;
    }
    extreme = std::max(extreme, us[1] / std::min(us[2], us[3]));
    double error = 0;
    for (const char* kernel : kKernels) {
      force_kernel(kernel);
      error = std::max(error, error_of(work));
    }
    const bool right = error <= tolerance(c.dtype);
    ++rows;
    slower += is_slower;
    wrong += !right;
    std::printf("%-15s %-7s %-15s %10.2f %10.2f %10.2f %11.2f %15.2f %8.1e%s%s\n", c.op_name(),
                c.layout_name(), c.shape().c_str(), us[0], us[1], us[2], us[3], ratio, error,
                is_slower ? "  SLOWER" : "", right ? "" : "  WRONG");
    std::fflush(stdout);
    json.row(c, format("\"chosen_us\": %.3f, \"serial_us\": %.3f, \"rows_us\": %.3f, "
                       "\"columns_us\": %.3f, \"slower\": %s, \"right\": %s",
                       us[0], us[1], us[2], us[3], is_slower ? "true" : "false",
                       right ? "true" : "false")
                    .c_str());
  }
  force_kernel(nullptr);
  std::printf("%d rows: %d slower than the serial kernel by more than 3%%, %d wrong\n", rows,
              slower, wrong);
  if (extreme < 1.2)
    std::printf("the serial kernel was nowhere the slower one: is SCANRNN_CUDA_KERNEL heard?\n");
  return slower || wrong ? 1 : 0;
}

const char kHelp[] =
    "usage: scanrnn_cuda_bench [option ...]\n"
    "  --filter TEXT   only rows whose name contains TEXT; given twice, both\n"
    "  --grid          the library's choice of kernel against each of its kernels, over many\n"
    "                  shapes; exit status 1 if the choice is slower than serial by more than 3%\n"
    "  --rounds N      calls of which the median is taken (25)\n"
    "  --quick         --rounds 5\n"
    "  --once          no times: each call twice, the second one between cudaProfilerStart and "
    "Stop\n"
    "  --json FILE     also writes a line for each row\n"
    "  --device N      CUDA ordinal (0)\n"
    "  --list          the names of the rows\n"
    "Exit status: 0; 1 when a result is wrong; 2 without a device or for a wrong option; 3 when "
    "CUDA\n"
    "fails.\n";

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto value = [&]() -> std::string {
      if (i + 1 < count) return arguments[++i];
      std::fprintf(stderr, "%s needs a value\n%s", name.c_str(), kHelp);
      std::exit(2);
    };
    const auto number = [&](int least) {
      const std::string text = value();
      char* end = nullptr;
      const long parsed = std::strtol(text.c_str(), &end, 10);
      if (end != text.c_str() && !*end && parsed >= least && parsed <= 1000000)
        return static_cast<int>(parsed);
      std::fprintf(stderr, "%s: '%s' is no number from %d on\n", name.c_str(), text.c_str(), least);
      std::exit(2);
    };
    if (name == "--filter") {
      options.filters.push_back(value());
    } else if (name == "--grid") {
      options.grid = true;
    } else if (name == "--rounds") {
      options.rounds = number(1);
    } else if (name == "--quick") {
      options.rounds = 5;
    } else if (name == "--once") {
      options.once = true;
    } else if (name == "--json") {
      options.json = value();
    } else if (name == "--device") {
      options.device = number(0);
    } else if (name == "--list") {
      options.list = true;
    } else if (name == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    } else {
      std::fprintf(stderr, "no option %s\n%s", name.c_str(), kHelp);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) try {
  const Options options = parse(count, arguments);
  const std::vector<Case> cases = options.grid ? grid_cases() : table_cases();
  if (options.list) {
    for (const Case& c : cases)
      if (wanted(c, options)) std::printf("%s\n", c.name().c_str());
    return 0;
  }
  if (std::none_of(cases.begin(), cases.end(), [&](const Case& c) { return wanted(c, options); })) {
    std::fprintf(stderr, "no row has such a name; --list shows them all\n");
    return 2;
  }
  if (!scanrnn::cuda_available()) {
    std::fprintf(stderr, "nothing to measure: %s\n", scanrnn::cuda_unavailable_reason());
    return 2;
  }
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  if (options.device >= devices) {
    std::fprintf(stderr, "--device %d: there are %d\n", options.device, devices);
    return 2;
  }
  CHECK(cudaSetDevice(options.device));
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, options.device));
  int driver = 0, runtime = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("%s, %d multiprocessors, %d MB L2, driver for CUDA %d.%d, runtime %d.%d\n",
              device.name, device.multiProcessorCount, device.l2CacheSize >> 20, driver / 1000,
              driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  std::printf("scanrnn %s for %s; medians of %d\n", SCANRNN_VERSION_STRING,
              scanrnn::cuda_architectures(), options.rounds);
  Json json(options.json);
  json(
      "{\"device\": \"%s\", \"multiprocessors\": %d, \"l2_mb\": %d, \"driver\": \"%d.%d\", "
      "\"runtime\": \"%d.%d\", \"scanrnn\": \"%s\", \"architectures\": \"%s\", \"rounds\": %d}",
      device.name, device.multiProcessorCount, device.l2CacheSize >> 20, driver / 1000,
      driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, SCANRNN_VERSION_STRING,
      scanrnn::cuda_architectures(), options.rounds);
  Clock clock;
  if (!options.once) clock.warm_up();
  return options.grid ? run_grid(cases, options, clock, json)
                      : run_table(cases, options, clock, json);
} catch (const scanrnn::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
