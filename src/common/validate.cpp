// SPDX-License-Identifier: Apache-2.0
#include "common/validate.hpp"

#include <algorithm>

namespace scanrnn {
namespace {

std::string text_of(const std::int64_t* shape, int rank) {
  std::string text = "(";
  for (int i = 0; i < rank; ++i) {
    text += std::to_string(shape[i]);
    if (i + 1 < rank) text += ", ";
  }
  return text + (rank == 1 ? ",)" : ")");
}

/// Sizes are computed in 64 bits, some hundred bytes for an element at most.
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

/// Whether the product of these is no more, an empty axis counted as 1.
bool are_few(std::initializer_list<std::int64_t> extents) {
  std::int64_t room = kMostElements;
  for (const std::int64_t extent : extents) room /= std::max<std::int64_t>(extent, 1);
  return room > 0;
}

bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

std::int64_t index_at(const ConstArray<1>& array, std::int64_t i) {
  const char* p = static_cast<const char*>(array.data);
  if (array.dtype == DType::i32) {
    return reinterpret_cast<const std::int32_t*>(p)[i * array.stride[0]];
  }
  return reinterpret_cast<const std::int64_t*>(p)[i * array.stride[0]];
}

}  // namespace

void Checker::fail(const std::string& text) const {
  throw InvalidArgument(std::string(call) + ": " + text);
}
void Checker::fail_type(const std::string& text) const {
  throw InvalidType(std::string(call) + ": " + text);
}

Checker::Checker(const char* call_name, const char* name, const ConstArray<3>& lead,
                 const Sequences& layout, bool complex_allowed, Device device)
    : call(call_name), dtype(lead.dtype) {
  const bool known = dtype <= DType::f64 || (complex_allowed && dtype <= DType::c128);
  if (!known) {
    fail_type(std::string(name) + " has dtype " + name_of(dtype) +
              ", expected float16, bfloat16, float32" +
              (complex_allowed ? ", float64, complex64 or complex128" : " or float64"));
  }
  for (std::int64_t extent : lead.shape) {
    if (extent < 0) {
      fail(std::string(name) + " has shape " + text_of(lead.shape, 3) +
           ", expected no extent below 0");
    }
  }
  batch = lead.shape[0];
  time = lead.shape[1];
  channels = lead.shape[2];
  if (!are_few({batch, time, channels})) {
    fail(std::string(name) + " has shape " + text_of(lead.shape, 3) +
         ", expected at most 2^48 elements");
  }
  elements = batch * time * channels;
  sequences_of(name, layout, device == Device::cpu);
}

void Checker::sequences_of(const char* name, const Sequences& layout, bool values_known) {
  sequences = batch;
  if (layout.cu_seqlens && layout.lengths) {
    fail("cu_seqlens and lengths are both given, expected at most one of them");
  }
  if (layout.cu_seqlens) {
    const ConstArray<1>& offsets = layout.cu_seqlens;
    if (!is_index(offsets.dtype)) {
      fail_type(std::string("cu_seqlens has dtype ") + name_of(offsets.dtype) +
                ", expected int32 or int64");
    }
    if (batch != 1) {
      fail(std::string("cu_seqlens needs a batch axis of 1, given ") + name + " with batch " +
           std::to_string(batch));
    }
    if (offsets.shape[0] < 1) {
      fail("cu_seqlens has shape " + text_of(offsets.shape, 1) + ", expected (N+1,)");
    }
    sequences = offsets.shape[0] - 1;
    if (!are_few({sequences, channels})) {
      fail("cu_seqlens has shape " + text_of(offsets.shape, 1) +
           ", expected at most 2^48 states of " + std::to_string(channels) + " channels");
    }
    std::int64_t previous = values_known ? index_at(offsets, 0) : 0;
    if (previous != 0) fail("cu_seqlens starts at " + std::to_string(previous) + ", expected 0");
    for (std::int64_t n = 1; values_known && n <= sequences; ++n) {
      const std::int64_t next = index_at(offsets, n);
      if (next < previous) {
        fail("cu_seqlens decreases from " + std::to_string(previous) + " to " +
             std::to_string(next) + " at position " + std::to_string(n) +
             ", expected offsets that never decrease");
      }
      previous = next;
    }
    if (values_known && previous != time) {
      fail("cu_seqlens ends at " + std::to_string(previous) + ", expected the number of steps, " +
           std::to_string(time));
    }
  }
  if (layout.lengths) {
    const ConstArray<1>& lengths = layout.lengths;
    if (!is_index(lengths.dtype)) {
      fail_type(std::string("lengths has dtype ") + name_of(lengths.dtype) +
                ", expected int32 or int64");
    }
    check("lengths", lengths.shape, {batch}, false);
    for (std::int64_t b = 0; values_known && b < batch; ++b) {
      const std::int64_t length = index_at(lengths, b);
      if (length < 0 || length > time) {
        fail("lengths[" + std::to_string(b) + "] is " + std::to_string(length) +
             ", expected a value from 0 to " + std::to_string(time));
      }
    }
  }
  if (layout.reset) {
    check_dtype("reset", layout.reset.dtype, {DType::u8});
    check("reset", layout.reset.shape, {batch, time}, false);
  }
}

void Checker::start(ProblemExtents& p, const Sequences& layout) const {
  p.call = call;
  p.batch = batch;
  p.time = time;
  p.channels = channels;
  p.sequences = sequences;
  p.dtype = dtype;
  p.accumulation = accumulation_dtype(dtype);
  p.layout = layout;
}

void Checker::check(const char* name, const std::int64_t* shape,
                    std::initializer_list<std::int64_t> expected, bool ones_allowed) const {
  const int rank = static_cast<int>(expected.size());
  const std::int64_t* want = expected.begin();
  for (int i = 0; i < rank; ++i) {
    if (shape[i] == want[i] || (ones_allowed && shape[i] == 1)) continue;
    fail(std::string(name) + " has shape " + text_of(shape, rank) + ", expected " +
         text_of(want, rank) + (ones_allowed ? " or 1 along any axis" : ""));
  }
}

void Checker::check_dtype(const char* name, DType given,
                          std::initializer_list<DType> expected) const {
  if (std::find(expected.begin(), expected.end(), given) != expected.end()) return;
  std::string list;
  const DType* last = nullptr;
  for (const DType& dtype_allowed : expected) {
    if (last != nullptr && *last == dtype_allowed) continue;
    if (last != nullptr) list += " or ";
    list += name_of(dtype_allowed);
    last = &dtype_allowed;
  }
  fail_type(std::string(name) + " has dtype " + name_of(given) + ", expected " + list);
}

void Checker::required(const char* name, const void* data, std::int64_t count) const {
  if (data == nullptr && count > 0) fail(std::string(name) + " is missing");
}

void Checker::full(const char* name, const ConstArray<3>& array) const {
  if (!array) return;
  check_dtype(name, array.dtype, {dtype});
  check(name, array.shape, {batch, time, channels}, false);
}

void Checker::broadcastable(const char* name, const ConstArray<3>& array) const {
  if (!array) return;
  check_dtype(name, array.dtype, {dtype});
  check(name, array.shape, {batch, time, channels}, true);
}

void Checker::state(const char* name, const ConstArray<2>& array) const {
  if (!array) return;
  check_dtype(name, array.dtype, {dtype, accumulation_dtype(dtype)});
  check(name, array.shape, {sequences, channels}, false);
}

void Checker::final_state(const char* name, const ConstArray<2>& array) const {
  if (!array) return;
  check_dtype(name, array.dtype, {accumulation_dtype(dtype)});
  check(name, array.shape, {sequences, channels}, false);
}

void Checker::vector(const char* name, const ConstArray<1>& array,
                     bool accumulation_allowed) const {
  if (!array) return;
  check_dtype(name, array.dtype, {dtype, accumulation_allowed ? accumulation_dtype(dtype) : dtype});
  check(name, array.shape, {channels}, false);
}

void Checker::vector_shape(const char* name, const std::int64_t (&shape)[3]) const {
  const std::int64_t expected[] = {1, 1, channels};
  fail(std::string(name) + " has shape " + text_of(shape, 3) + ", expected " +
       text_of(expected, 3));
}

void Checker::distinct(const char* name, const std::int64_t* shape, const std::int64_t* stride,
                       int rank) const {
  if (std::find(shape, shape + rank, 0) != shape + rank) return;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] > 1 && stride[i] == 0) {
      fail(std::string(name) + " has stride 0 along axis " + std::to_string(i) + " of size " +
           std::to_string(shape[i]) + ", expected an array whose elements are distinct");
    }
  }
}

void Checker::same_shape(const char* name, const ConstArray<3>& array, const char* other_name,
                         const ConstArray<3>& other) const {
  for (int i = 0; i < 3; ++i) {
    if (array.shape[i] == other.shape[i]) continue;
    fail(std::string(name) + " has shape " + text_of(array.shape, 3) + ", expected " +
         text_of(other.shape, 3) + ", that of " + other_name);
  }
}

}  // namespace scanrnn
