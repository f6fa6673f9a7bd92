// SPDX-License-Identifier: Apache-2.0
// The merge trace on a device: the scan's own kernels, of a cell that makes them tell (trace.cuh).
#include "cuda/trace.cuh"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/backend.hpp"
#include "common/trace.hpp"
#include "cuda/current_device.hpp"
#include "cuda/kernels/family.cuh"
#include "cuda/ordered.cuh"
#include "scanrnn/core/cells/scan.hpp"

namespace scanrnn::cuda {
namespace {

using TracedScan = Traced<ScanCell>;
using Value = MergeReport::Value;

template <class T>
CellKernels traced_kernels() {
  CellKernels kernels;
  kernels.forward = pass_kernels<TracedScan, T, false>();
  kernels.forward.ordered = ordered_kernel<TracedScan, T, false>();
  return kernels;
}

const CellType& traced_type() {
  static CustomCell cell;
  static CustomCell* const kernels = &cell;
  static const CellType type = [] {
    cell.entry[0].kernels = traced_kernels<Half>();
    cell.entry[1].kernels = traced_kernels<BFloat16>();
    cell.entry[2].kernels = traced_kernels<float>();
    cell.entry[3].kernels = traced_kernels<double>();
    cell.entry[4].kernels = traced_kernels<Complex<float>>();
    cell.entry[5].kernels = traced_kernels<Complex<double>>();
    return detail::describe<TracedScan>(CellKind::custom, nullptr, &kernels);
  }();
  return type;
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(std::string("merge_trace: ") + cudaGetErrorString(error));
}

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, bytes));
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Copies of arrays on the host: everything from an array's first element in memory to its last.
class HostCopies {
 public:
  explicit HostCopies(cudaStream_t stream) : stream_(stream) {}

  template <int Rank>
  void copy(ConstArray<Rank>& array) {
    if (!array || array.data == absent_input()) return;
    std::int64_t low = 0, high = 0;
    for (int i = 0; i < Rank; ++i) {
      if (array.shape[i] == 0) return;
      const std::int64_t last = (array.shape[i] - 1) * array.stride[i];
      (last < 0 ? low : high) += last;
    }
    const auto element = static_cast<std::int64_t>(size_of(array.dtype));
    const auto bytes = static_cast<std::size_t>((high - low + 1) * element);
    memory_.emplace_back(new char[bytes]);
    check(cudaMemcpyAsync(memory_.back().get(),
                          static_cast<const char*>(array.data) + low * element, bytes,
                          cudaMemcpyDefault, stream_));
    array.data = memory_.back().get() - low * element;
  }

 private:
  cudaStream_t stream_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

Value value_of(const double (&parts)[2]) { return {parts[0], parts[1]}; }

}  // namespace

void trace(const Problem& problem, const Target& target,
           const std::function<void(const MergeEvent&)>& report) {
  const CurrentDevice current("merge_trace", target.index);
  const cudaStream_t stream = static_cast<cudaStream_t>(target.stream);

  TracedScan cell;
  Problem traced = problem;
  traced.set_cell(traced_type(), &cell);
  const std::size_t bytes = workspace_bytes(traced, target);
  const DeviceMemory workspace(bytes), counter(sizeof(unsigned long long));
  cell.trace.count = static_cast<unsigned long long*>(counter.data());
  const auto run = [&] {
    unsigned long long count = 0;
    check(cudaMemsetAsync(counter.data(), 0, sizeof(count), stream));
    execute(traced, {workspace.data(), bytes}, target);
    check(cudaMemcpyAsync(&count, counter.data(), sizeof(count), cudaMemcpyDefault, stream));
    check(cudaStreamSynchronize(stream));
    return count;
  };
  // Once to count, once to record.
  cell.trace.capacity = run();
  std::vector<TraceRecord> records(cell.trace.capacity);
  const DeviceMemory memory(records.size() * sizeof(TraceRecord));
  cell.trace.records = static_cast<TraceRecord*>(memory.data());
  run();
  HostCopies copies(stream);
  Problem on_host = problem;
  for (int i = 0; i < on_host.inputs; ++i) copies.copy(on_host.in[i]);
  copies.copy(on_host.initial);
  copies.copy(on_host.layout.reset);
  if (!records.empty()) {
    check(cudaMemcpyAsync(records.data(), memory.data(), records.size() * sizeof(TraceRecord),
                          cudaMemcpyDefault, stream));
  }
  check(cudaStreamSynchronize(stream));

  std::sort(records.begin(), records.end(), [](const TraceRecord& a, const TraceRecord& b) {
    return std::tie(a.sequence, a.channel, a.end, a.level) <
           std::tie(b.sequence, b.channel, b.end, b.level);
  });
  MergeReport events(on_host, report);
  std::int64_t entered = -1;
  for (const TraceRecord& r : records) {
    if (r.sequence != entered) {
      entered = r.sequence;
      events.enter({r.sequence, r.row, r.begin, r.begin + r.length, 0, problem.channels});
    }
    const Value before = value_of(r.before);
    events.add(r.level, r.first, r.end, r.channel, r.has_before ? &before : nullptr,
               value_of(r.gain), value_of(r.state));
  }
}

}  // namespace scanrnn::cuda
