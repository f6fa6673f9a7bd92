// SPDX-License-Identifier: Apache-2.0
// Dtypes, views of the caller's arrays, and where a call runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace scanrnn {

enum class DType : int { f16, bf16, f32, f64, c64, c128, i32, i64, u8 };

/// Bytes of one element.
std::size_t size_of(DType dtype);
/// The dtype's NumPy name, "float16" and so on.
const char* name_of(DType dtype);
/// The dtype that states are carried and returned in: float32 for the 16-bit types, else its own.
DType accumulation_dtype(DType dtype);

/// A view of the caller's memory. Strides count elements and may be zero or negative; `data` is the
/// element at index 0 of every axis. A view without data stands for an argument that is absent.
template <int Rank>
struct ConstArray {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t shape[Rank] = {};
  std::int64_t stride[Rank] = {};
  explicit operator bool() const { return data != nullptr; }
};

template <int Rank>
struct Array {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t shape[Rank] = {};
  std::int64_t stride[Rank] = {};
  explicit operator bool() const { return data != nullptr; }
  operator ConstArray<Rank>() const {
    ConstArray<Rank> view{data, dtype, {}, {}};
    for (int i = 0; i < Rank; ++i) view.shape[i] = shape[i], view.stride[i] = stride[i];
    return view;
  }
};

/// How the (B,T) plane of a call is divided into sequences. N counts them: B, or the packed ones.
struct Sequences {
  /// (N+1), int32 or int64: packed sequences, [cu_seqlens[n], cu_seqlens[n+1]) of a batch of 1.
  ConstArray<1> cu_seqlens;
  /// (B), int32 or int64: valid steps of each row. Outputs elsewhere are written as 0.
  ConstArray<1> lengths;
  /// (B,T), u8: nonzero drops the state before that step, whatever it is.
  ConstArray<2> reset;
  /// The valid steps of a row are its last `lengths[b]`, not its first.
  bool left_padded = false;
  /// Run from the end of each sequence to its start.
  bool reverse = false;
};

enum class Device : int { cpu, cuda };

/// Where a call runs. The pointers of a call belong to that device.
struct Target {
  Device device = Device::cpu;
  int index = 0;           ///< CUDA ordinal
  void* stream = nullptr;  ///< cudaStream_t
};

/// Memory that the caller lends for the length of a call (a stream's call on CUDA). It needs no
/// clearing and no alignment beyond that of operator new; sizes come from the *_workspace_bytes.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Threads that one CPU call may use: the process's affinity, or SCANRNN_NUM_THREADS, or what was
/// set last. Results don't depend on it. A variable that is no number from 1 to 4096 is an
/// InvalidArgument wherever the number is asked for first, in CPU calls too.
int num_threads();
void set_num_threads(int threads);  ///< InvalidArgument below 1

/// The instruction set that CPU calls use: the best that was built and this machine has, or the one
/// that SCANRNN_CPU_ISA or set_cpu_isa named.
const char* cpu_isa();
void set_cpu_isa(const char* name);  ///< InvalidArgument when it isn't built or isn't there
/// All that were built and this machine has, best first, separated by spaces.
const char* cpu_isas();

/// Whether the CUDA backend is built and finds a device; if not, why.
bool cuda_available();
const char* cuda_unavailable_reason();
/// The architectures that the CUDA backend was built for, "" without it.
const char* cuda_architectures();

}  // namespace scanrnn
