// SPDX-License-Identifier: Apache-2.0
// The benchmark of nonlinear cells on the device: forward and backward of each, beside a streaming
// kernel that moves the same arrays.
//
//   scanrnn_solve_bench [--segments] [--quick] [--peepholes] [--shape B,T,D]... [--cell NAME]
//
// Time: CUDA events around one call, medians over rounds, each after a write of several times the
// L2 cache, so that nothing that is read lies there. Ceiling: a kernel that reads and writes the
// arrays that the call must, once, and computes nothing. A call that has to run its segments twice
// (or, backward, goes through them twice by design) can't reach it.
//
// Inputs are normal numbers of deviation 0.5 plus a bias on the gates that hold the state, weights
// uniform in [-0.5, 0.5]. "against serial" is the largest difference from the same call with
// max_passes = 0.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "scanrnn/scanrnn.hpp"
#include "scanrnn/solve.hpp"

namespace {

using scanrnn::Array;
using scanrnn::DType;
using scanrnn::SolveReport;
using std::int64_t;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(3);
}
#define CHECK(call) check((call), #call)

struct Memory {
  explicit Memory(std::size_t n) : bytes(n) { CHECK(cudaMalloc(&data, n > 0 ? n : 1)); }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data = nullptr;
  std::size_t bytes;
};

__device__ float uniform(std::uint64_t index, std::uint64_t seed) {
  std::uint64_t z = (index + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}
__device__ void narrow(float v, float* to) { *to = v; }
__device__ void narrow(float v, __nv_bfloat16* to) { *to = __float2bfloat16_rn(v); }

template <class T>
__global__ void fill(T* to, int64_t count, int seed, float width, float bias, bool is_normal) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float u = uniform(i, seed), v = uniform(i, seed + 1000);
    const float shape =
        is_normal ? ::sqrtf(-2 * ::logf(u + 0x1p-25f)) * ::cosf(6.2831853f * v) : 2 * u - 1;
    narrow(shape * width + bias, to + i);
  }
}

template <class T>
__global__ void difference(const T* a, const T* b, int64_t count, unsigned* largest) {
  float most = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float d = ::fabsf(static_cast<float>(a[i]) - static_cast<float>(b[i]));
    most = d <= most ? most : d;
  }
  atomicMax(largest, __float_as_uint(most));
}

struct Streams {
  const uint4* in[12];
  uint4* out[12];
  int reads, writes;
};
__global__ void stream(Streams s, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint4 v = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < 12; ++k) {
      if (k < s.reads) {
        const uint4 r = __ldg(s.in[k] + i);
        v.x ^= r.x, v.y ^= r.y, v.z ^= r.z, v.w ^= r.w;
      }
    }
#pragma unroll
    for (int k = 0; k < 12; ++k) {
      if (k < s.writes) __stcs(s.out[k] + i, v);
    }
  }
}

__global__ void scribble(uint4* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = make_uint4(1, 2, 3, 4);
  }
}

double median_ms(int rounds, const std::function<void()>& call) {
  static Memory cache(std::size_t{256} << 20);
  static cudaEvent_t begin = nullptr, end = nullptr;
  if (begin == nullptr) {
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
  }
  std::vector<float> times;
  for (int i = 0; i < rounds + 1; ++i) {
    scribble<<<1024, 256>>>(static_cast<uint4*>(cache.data), cache.bytes / 16);
    CHECK(cudaEventRecord(begin));
    call();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Shape {
  int64_t b, t, d;
};

const scanrnn::Target kTarget{scanrnn::Device::cuda, 0, nullptr};

template <class Cell>
constexpr bool is_vector(int k) {
  return (Cell::vector_inputs >> k & 1u) != 0;
}

/// `holds`: the gate whose bias makes the memory long. `absent`: inputs that aren't given.
template <class Cell, class T>
void measure(const Shape& shape, DType dtype, int holds, float bias, int64_t segment, int rounds,
             unsigned absent) {
  constexpr int K = Cell::inputs, S = Cell::states;
  const int64_t elements = shape.b * shape.t * shape.d;
  const auto array = [&](void* data) {
    return Array<3>{data, dtype, {shape.b, shape.t, shape.d}, {shape.t * shape.d, shape.d, 1}};
  };
  const auto row = [&](void* data) {
    return Array<3>{data, dtype, {1, 1, shape.d}, {shape.d, shape.d, 1}};
  };
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(T);
  std::vector<Memory*> memory;
  const auto take = [&](std::size_t n) {
    memory.push_back(new Memory(n));
    return memory.back()->data;
  };

  scanrnn::SolveForward<Cell> forward;
  scanrnn::SolveBackward<Cell> backward;
  Streams f{}, b{};
  for (int k = 0; k < K; ++k) {
    if ((absent >> k & 1u) != 0) continue;
    const bool is_row = is_vector<Cell>(k);
    const std::size_t n = is_row ? static_cast<std::size_t>(shape.d) * sizeof(T) : bytes;
    void* data = take(n);
    fill<T><<<1024, 256>>>(static_cast<T*>(data), static_cast<int64_t>(n / sizeof(T)), k + 1, 0.5f,
                           k == holds ? bias : 0.0f, !is_row);
    forward.in[k] = is_row ? row(data) : array(data);
    void* gradient = take(n);
    backward.din[k] = is_row ? row(gradient) : array(gradient);
    backward.in[k] = forward.in[k];
    if (is_row) continue;
    f.in[f.reads++] = b.in[b.reads++] = static_cast<const uint4*>(data);
    b.out[b.writes++] = static_cast<uint4*>(gradient);
  }
  forward.out = array(take(bytes));
  f.out[f.writes++] = static_cast<uint4*>(forward.out.data);
  if (Cell::kept_state >= 0) {
    forward.kept = array(take(bytes));
    f.out[f.writes++] = static_cast<uint4*>(forward.kept.data);
    backward.kept = forward.kept;
  }
  if (Cell::output_state >= 0) backward.out = forward.out;
  void* dy = take(bytes);
  fill<T><<<1024, 256>>>(static_cast<T*>(dy), elements, 77, 1.0f, 0.0f, true);
  backward.dout = array(dy);
  b.in[b.reads++] = static_cast<const uint4*>(dy);
  for (int s = 0; s < S; ++s) {
    const auto& state = s == Cell::output_state ? forward.out : forward.kept;
    b.in[b.reads++] = static_cast<const uint4*>(state.data);
  }
  double* report = static_cast<double*>(take(static_cast<std::size_t>(shape.b) * 48));
  forward.report = {
      report, DType::f64, {shape.b, SolveReport::kColumns}, {SolveReport::kColumns, 1}};
  forward.options.segment = segment;

  Memory lent(std::max({solve_forward_workspace_bytes(forward, kTarget),
                        solve_backward_workspace_bytes(backward, kTarget)}));
  const scanrnn::Workspace workspace{lent.data, lent.bytes};
  const double serial_ms = [&] {
    auto serial = forward;
    serial.options.max_passes = 0;
    serial.out.data = b.out[0];
    return median_ms(1, [&] { solve_forward(serial, workspace, kTarget); });
  }();
  const double forward_ms = median_ms(rounds, [&] { solve_forward(forward, workspace, kTarget); });
  unsigned* largest = static_cast<unsigned*>(take(4));
  CHECK(cudaMemset(largest, 0, 4));
  difference<T><<<1024, 256>>>(static_cast<const T*>(forward.out.data),
                               reinterpret_cast<const T*>(b.out[0]), elements, largest);
  float apart = 0;
  CHECK(cudaMemcpy(&apart, largest, 4, cudaMemcpyDeviceToHost));
  std::vector<double> rows(static_cast<std::size_t>(shape.b) * 6);
  CHECK(cudaMemcpy(rows.data(), report, rows.size() * 8, cudaMemcpyDeviceToHost));
  double status = 0, passes = 0, serial = 0;
  for (std::size_t n = 0; n < rows.size(); n += 6) {
    status = std::max(status, rows[n]);
    passes = std::max(passes, rows[n + 1]);
    serial += rows[n + 5];
  }
  const double backward_ms =
      median_ms(rounds, [&] { solve_backward(backward, workspace, kTarget); });
  const auto ceiling = [&](const Streams& s) {
    return median_ms(rounds,
                     [&] { stream<<<132 * 8, 256>>>(s, static_cast<int64_t>(bytes / 16)); });
  };
  const double fc = ceiling(f), bc = ceiling(b);
  std::printf(
      "%-14s %-8s %3ld,%6ld,%5ld bias %g seg %4ld | fwd %7.3f ms (%.2f) bwd %7.3f ms (%.2f) "
      "| stream %.3f %.3f | serial %8.3f | status %g passes %g serial channels %g | against "
      "serial %.1e\n",
      Cell::name, name_of(dtype), shape.b, shape.t, shape.d, bias, segment, forward_ms,
      fc / forward_ms, backward_ms, bc / backward_ms, fc, bc, serial_ms, status, passes, serial,
      apart);
  std::fflush(stdout);
  CHECK(cudaDeviceSynchronize());
  for (Memory* m : memory) delete m;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Shape> shapes;
  bool segments = false, quick = false, with_peepholes = false;
  std::string cell;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--segments") {
      segments = true;
    } else if (argument == "--quick") {
      quick = true;
    } else if (argument == "--peepholes") {
      with_peepholes = true;
    } else if (argument == "--shape" && i + 1 < argc) {
      long b, t, d;
      if (std::sscanf(argv[++i], "%ld,%ld,%ld", &b, &t, &d) == 3) shapes.push_back({b, t, d});
    } else if (argument == "--cell" && i + 1 < argc) {
      cell = argv[++i];
    } else {
      std::fprintf(stderr,
                   "scanrnn_solve_bench [--segments] [--quick] [--peepholes] [--shape B,T,D]... "
                   "[--cell NAME]\n");
      return 2;
    }
  }
  if (shapes.empty()) shapes = {{1, 65536, 512}, {16, 4096, 512}};
  const int rounds = quick ? 5 : 15;
  const auto each = [&](const Shape& shape, float bias, int64_t segment, bool halves) {
    const auto is = [&](const char* name) { return cell.empty() || cell == name; };
    const auto one = [&](auto type, int holds, unsigned absent = 0) {
      using Cell = decltype(type);
      if (!is(Cell::name)) return;
      measure<Cell, float>(shape, DType::f32, holds, bias, segment, rounds, absent);
      if (!halves) return;
      measure<Cell, __nv_bfloat16>(shape, DType::bf16, holds, bias, segment, rounds, absent);
    };
    one(scanrnn::DiagonalGruCell(), scanrnn::DiagonalGruCell::kUpdate);
    using Lstm = scanrnn::DiagonalLstmCell;
    const unsigned peepholes =
        1u << Lstm::kPeepForget | 1u << Lstm::kPeepOutput | 1u << Lstm::kPeepInput;
    one(Lstm(), Lstm::kForget, with_peepholes ? 0 : peepholes);
    one(scanrnn::RecurrentSruCell(), scanrnn::RecurrentSruCell::kForget);
    if (bias == 0) one(scanrnn::IndRnnCell(), -1);
  };
  for (const Shape& shape : shapes) {
    for (const float bias : {0.0f, 1.0f, 3.0f, 5.0f}) {
      if (quick && bias > 0) break;
      each(shape, bias, 0, bias == 0);
    }
    if (!segments) continue;
    for (const int64_t segment : {64, 128, 256, 512}) each(shape, 0, segment, false);
  }
  return 0;
}
