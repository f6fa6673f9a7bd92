// SPDX-License-Identifier: Apache-2.0
// Imports any DLPack producer's array as a descriptor, without a copy.
#include <nanobind/ndarray.h>

#include "descriptor.hpp"

namespace scanrnn::python {
namespace {

int code_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  const auto is = [&](Code code, int bits) {
    return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  if (is(Code::Float, 16)) return static_cast<int>(DType::f16);
  if (is(Code::Bfloat, 16)) return static_cast<int>(DType::bf16);
  if (is(Code::Float, 32)) return static_cast<int>(DType::f32);
  if (is(Code::Float, 64)) return static_cast<int>(DType::f64);
  if (is(Code::Complex, 64)) return static_cast<int>(DType::c64);
  if (is(Code::Complex, 128)) return static_cast<int>(DType::c128);
  if (is(Code::Int, 32)) return static_cast<int>(DType::i32);
  if (is(Code::Int, 64)) return static_cast<int>(DType::i64);
  if (is(Code::UInt, 8) || is(Code::Bool, 8)) return static_cast<int>(DType::u8);
  static const char* const kinds[] = {"int",    "uint",    "float", "opaque",
                                      "bfloat", "complex", "bool"};
  std::string name = type.code < 7 ? kinds[type.code]
                                   : "float8-like (DLPack code " + std::to_string(type.code) + ") ";
  name += std::to_string(type.bits);
  if (type.lanes != 1) name += " with " + std::to_string(type.lanes) + " lanes";
  throw InvalidType("from_dlpack: dtype " + name +
                    " is not supported, expected float16, bfloat16, float32, float64, complex64 or "
                    "complex128 (int32, int64, uint8 or bool for indices and flags)");
}

nb::tuple from_dlpack(nb::ndarray<nb::ro> array) {
  const int code = code_of(array.dtype());
  const int kind = array.device_type();
  // Pinned host memory (3) is host memory; managed CUDA memory (13) is CUDA memory.
  std::int64_t device = -1;
  if (kind == 2 || kind == 13) {
    device = array.device_id();
  } else if (kind != 1 && kind != 3) {
    throw InvalidArgument("from_dlpack: the array is on a device of DLPack type " +
                          std::to_string(kind) + ", expected the CPU (1) or CUDA (2)");
  }
  const std::size_t rank = array.ndim();
  nb::list shape, strides;
  for (std::size_t i = 0; i < rank; ++i) {
    shape.append(array.shape(i));
    strides.append(array.stride(i));
  }
  nb::tuple descriptor = nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data()), code,
                                        nb::tuple(shape), nb::tuple(strides), device);
  // The array object itself holds the memory.
  return nb::make_tuple(descriptor, nb::cast(array, nb::rv_policy::reference));
}

}  // namespace

void bind_dlpack(nb::module_& m) { m.def("from_dlpack", &from_dlpack, nb::arg("array")); }

}  // namespace scanrnn::python
