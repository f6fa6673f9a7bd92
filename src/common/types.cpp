// SPDX-License-Identifier: Apache-2.0
#include "scanrnn/types.hpp"

#include "common/backend.hpp"

namespace scanrnn {
namespace {

struct DTypeRow {
  std::size_t size;
  const char* name;
  DType accumulation;
};

// In the order of DType.
constexpr DTypeRow kDTypes[] = {
    {2, "float16", DType::f32}, {2, "bfloat16", DType::f32},  {4, "float32", DType::f32},
    {8, "float64", DType::f64}, {8, "complex64", DType::c64}, {16, "complex128", DType::c128},
    {4, "int32", DType::i32},   {8, "int64", DType::i64},     {1, "uint8", DType::u8},
};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) { return row(dtype).size; }
const char* name_of(DType dtype) { return row(dtype).name; }
DType accumulation_dtype(DType dtype) { return row(dtype).accumulation; }

const void* absent_input() {
  static constexpr double zero[2] = {0, 0};
  return zero;
}

bool cuda_available() { return cuda::available(); }
const char* cuda_unavailable_reason() { return cuda::unavailable_reason(); }
const char* cuda_architectures() { return cuda::architectures(); }

}  // namespace scanrnn
