// SPDX-License-Identifier: Apache-2.0
#include "cuda/reduce.hpp"

#include "cuda/device.cuh"

namespace scanrnn::cuda {
namespace {

constexpr int kMostWarps = 16;
constexpr Index kMostBlocks = INT32_MAX;  // along the first axis of a grid

template <class A>
struct Wider {
  using Type = double;
  static __device__ __forceinline__ double of(A v) { return static_cast<double>(v); }
  static __device__ __forceinline__ A back(double v) { return static_cast<A>(v); }
};
template <class R>
struct Wider<Complex<R>> {
  using Type = Complex<double>;
  static __device__ __forceinline__ Complex<double> of(const Complex<R>& v) {
    return {static_cast<double>(v.re), static_cast<double>(v.im)};
  }
  static __device__ __forceinline__ Complex<R> back(const Complex<double>& v) {
    return {static_cast<R>(v.re), static_cast<R>(v.im)};
  }
};

struct Reductions {
  Reduction of[kMostReductions];
};

// A block makes 32 channels of one (row, step) of a result, or one element where channels are
// summed too. Its warps share the rows and steps to be summed, its lanes are channels.
template <class T>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    reduce(const __grid_constant__ Reductions all) {
  const Reduction& r = all.of[blockIdx.y];
  using A = Acc<T>;
  using W = Wider<A>;
  using Sum = typename W::Type;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  const bool over_channels = r.out_channels == 1;
  const Index channel_blocks = over_channels ? 1 : (r.out_channels + kWarp - 1) / kWarp;
  Index block = static_cast<Index>(blockIdx.z) * gridDim.x + blockIdx.x;
  const Index d0 = block % channel_blocks * kWarp;
  block /= channel_blocks;
  const Index out_t = block % r.out_steps, out_b = block / r.out_steps;
  if (out_b >= r.out_rows) return;

  const bool over_rows = r.out_rows == 1, over_steps = r.out_steps == 1;
  const Index row_pitch = r.steps * r.pitch;
  const Index count = (over_rows ? r.rows : 1) * (over_steps ? r.steps : 1);
  const A* from = reinterpret_cast<const A*>(r.from) + (over_rows ? 0 : out_b) * row_pitch +
                  (over_steps ? 0 : out_t) * r.pitch;
  // What is summed lies in equal distances, rows after one another too.
  const Index apart = over_steps ? r.pitch : row_pitch;

  Sum total = Constant<Sum>::of(0);
  if (over_channels) {
    for (Index i = warp; i < count; i += warps) {
      for (Index d = lane; d < r.channels; d += kWarp) total = total + W::of(from[i * apart + d]);
    }
  } else if (d0 + lane < r.channels) {
    constexpr int kAtOnce = 8;  // on their way: one after the other took 37 us for 512 tiles
    const A* at = from + warp * apart + d0 + lane;
    Index i = warp;
    for (; i + (kAtOnce - 1) * warps < count; i += kAtOnce * warps) {
      A some[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) some[j] = at[j * warps * apart];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) total = total + W::of(some[j]);
      at += kAtOnce * warps * apart;
    }
    for (; i < count; i += warps, at += warps * apart) total = total + W::of(*at);
  }
  if (over_channels) {
    for (int by = kWarp / 2; by > 0; by /= 2) total = total + shuffle_xor(total, by);
  }
  __shared__ Sum totals[kMostWarps][kWarp];
  totals[warp][lane] = total;
  __syncthreads();
  if (warp > 0 || (over_channels ? lane > 0 : d0 + lane >= r.out_channels)) return;
  for (int w = 1; w < warps; ++w) total = total + totals[w][lane];
  store_element<T>(r.out.data,
                   out_b * r.out.batch + out_t * r.out.time + (d0 + lane) * r.out.channel,
                   r.out.wide, W::back(total));
}

struct Launch {
  Index blocks;
  int warps;
  bool operator==(const Launch& o) const { return blocks == o.blocks && warps == o.warps; }
};

Launch launch_of(const Reduction& r) {
  const Index count = (r.out_rows == 1 ? r.rows : 1) * (r.out_steps == 1 ? r.steps : 1);
  int warps = 1;
  while (warps < kMostWarps && warps < count) warps *= 2;
  const Index channel_blocks = r.out_channels == 1 ? 1 : (r.out_channels + kWarp - 1) / kWarp;
  return {r.out_rows * r.out_steps * channel_blocks, warps};
}

template <class T>
cudaError_t launch(const Reduction* first, int count, cudaStream_t stream) {
  for (int begin = 0, end = 0; begin < count; begin = end) {
    const Launch launch = launch_of(first[begin]);
    Reductions alike;
    while (end < count && launch_of(first[end]) == launch) {
      alike.of[end - begin] = first[end];
      ++end;
    }
    if (launch.blocks == 0) continue;
    const Index layers = (launch.blocks + kMostBlocks - 1) / kMostBlocks;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>((launch.blocks + layers - 1) / layers),
                          static_cast<unsigned>(end - begin), static_cast<unsigned>(layers));
    config.blockDim = dim3(static_cast<unsigned>(launch.warps * kWarp));
    config.stream = stream;
    const cudaError_t error = cudaLaunchKernelEx(&config, reduce<T>, alike);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_reductions(const Reduction* reductions, int count, DType dtype,
                              cudaStream_t stream) {
  switch (dtype) {
    case DType::f16:
      return launch<Half>(reductions, count, stream);
    case DType::bf16:
      return launch<BFloat16>(reductions, count, stream);
    case DType::f32:
      return launch<float>(reductions, count, stream);
    case DType::f64:
      return launch<double>(reductions, count, stream);
    case DType::c64:
      return launch<Complex<float>>(reductions, count, stream);
    default:
      return launch<Complex<double>>(reductions, count, stream);
  }
}

}  // namespace scanrnn::cuda
