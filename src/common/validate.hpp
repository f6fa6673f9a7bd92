// SPDX-License-Identifier: Apache-2.0
// The checks that public calls share. Each throws InvalidArgument or InvalidType with the call, the
// argument, what was given and what was expected.
#pragma once

#include <initializer_list>
#include <string>

#include "common/problem.hpp"
#include "scanrnn/error.hpp"

namespace scanrnn {

/// What every argument of a call is held against.
struct Checker {
  const char* call;  ///< public name, "scan"
  std::int64_t batch = 0, time = 0, channels = 0, sequences = 0;
  std::int64_t elements = 0;  ///< B T D
  DType dtype = DType::f32;

  /// Takes B, T, D and the dtype from the leading array, and N from the sequences. What lies on a
  /// GPU can't be read without waiting for it: the values of offsets and lengths are then
  /// unchecked.
  Checker(const char* call, const char* name, const ConstArray<3>& lead, const Sequences& layout,
          bool complex_allowed, Device device);

  /// Gives a problem this call's name, extents and dtype.
  void start(ProblemExtents& problem, const Sequences& layout) const;

  /// Not absent, unless it is to have no elements.
  void required(const char* name, const void* data, std::int64_t count) const;
  void required(const char* name, const void* data) const { required(name, data, elements); }
  /// (B,T,D) of the call's dtype.
  void full(const char* name, const ConstArray<3>& array) const;
  /// (B|1, T|1, D|1) of the call's dtype.
  void broadcastable(const char* name, const ConstArray<3>& array) const;
  /// (N,D) of the call's dtype or its accumulation dtype.
  void state(const char* name, const ConstArray<2>& array) const;
  /// (N,D) of the accumulation dtype.
  void final_state(const char* name, const ConstArray<2>& array) const;
  /// (D) of the call's dtype, or of the accumulation dtype too.
  void vector(const char* name, const ConstArray<1>& array, bool accumulation_allowed) const;
  /// Throws what `vector` throws for an array of three axes.
  [[noreturn]] void vector_shape(const char* name, const std::int64_t (&shape)[3]) const;
  /// An array that is written must not have two elements in one place.
  void distinct(const char* name, const std::int64_t* shape, const std::int64_t* stride,
                int rank) const;
  template <int Rank>
  void distinct(const char* name, const Array<Rank>& array) const {
    if (array) distinct(name, array.shape, array.stride, Rank);
  }
  /// The same shape, axis by axis.
  void same_shape(const char* name, const ConstArray<3>& array, const char* other_name,
                  const ConstArray<3>& other) const;

 private:
  void sequences_of(const char* name, const Sequences& layout, bool values_known);
  void check(const char* name, const std::int64_t* shape,
             std::initializer_list<std::int64_t> expected, bool ones_allowed) const;
  void check_dtype(const char* name, DType given, std::initializer_list<DType> expected) const;
  [[noreturn]] void fail(const std::string& text) const;
  [[noreturn]] void fail_type(const std::string& text) const;
};

/// `array` with stride 0 along the axes of size 1 that are broadcast.
template <int Rank>
ConstArray<Rank> broadcast(ConstArray<Rank> array, const std::int64_t (&shape)[Rank]) {
  for (int i = 0; i < Rank; ++i) {
    if (array.shape[i] == 1 && shape[i] != 1) array.stride[i] = 0;
    array.shape[i] = shape[i];
  }
  return array;
}

}  // namespace scanrnn
