// SPDX-License-Identifier: Apache-2.0
// DLPack: any producer's array as a descriptor, without a copy; and the exchange API.
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

/// -1 or a CUDA ordinal. Pinned host memory (3) is host memory; managed CUDA memory (13) is CUDA
/// memory.
std::int64_t device_of(int kind, int ordinal) {
  if (kind == 2 || kind == 13) return ordinal;
  if (kind == 1 || kind == 3) return -1;
  throw InvalidArgument("from_dlpack: the array is on a device of DLPack type " +
                        std::to_string(kind) + ", expected the CPU (1) or CUDA (2)");
}

nb::tuple from_dlpack(nb::ndarray<nb::ro> array) {
  const int code = code_of(array.dtype());
  const std::int64_t device = device_of(array.device_type(), array.device_id());
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

/// DLPackExchangeAPI of version 1 (dlpack.h, since 1.3): a table that lives as long as the process.
struct ExchangeTable {
  std::uint32_t major, minor;
  const ExchangeTable* older;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view)(void* object, nb::dlpack::dltensor* out);
  int (*current_stream)(int device_type, std::int32_t ordinal, void** stream);
};

const ExchangeTable* table_of(PyTypeObject* type) {
  PyObject* capsule =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  const void* table =
      capsule != nullptr ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : nullptr;
  PyErr_Clear();
  Py_XDECREF(capsule);
  const auto* found = static_cast<const ExchangeTable*>(table);
  while (found != nullptr && found->major > 1) found = found->older;
  return found != nullptr && found->major == 1 && found->view != nullptr ? found : nullptr;
}

}  // namespace

bool exchange(PyObject* array, const char* name, Exchanged& out) {
  // The types seen first, kept alive so that no other one takes their place in memory.
  static struct {
    PyTypeObject* type;
    const ExchangeTable* table;
  } known[4];
  PyTypeObject* type = Py_TYPE(array);
  const ExchangeTable* table = nullptr;
  bool is_known = false;
  for (auto& entry : known) {
    if (entry.type == nullptr) {
      Py_INCREF(reinterpret_cast<PyObject*>(type));
      entry = {type, table_of(type)};
    }
    is_known = entry.type == type;
    if (is_known) {
      table = entry.table;
      break;
    }
  }
  if (!is_known) table = table_of(type);
  if (table == nullptr) return false;
  nb::dlpack::dltensor tensor;
  if (table->view(array, &tensor) != 0) {
    if (PyErr_Occurred()) throw nb::python_error();
    throw InvalidType(std::string(name) + " can't be viewed through DLPack");
  }
  if (tensor.ndim > 0 && tensor.strides == nullptr) return false;  // of before version 1.2
  out.data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  out.dtype = code_of(tensor.dtype);
  out.rank = tensor.ndim;
  out.shape = tensor.shape;
  out.strides = tensor.strides;
  out.device = device_of(tensor.device.device_type, tensor.device.device_id);
  return true;
}

void bind_dlpack(nb::module_& m) { m.def("from_dlpack", &from_dlpack, nb::arg("array")); }

}  // namespace scanrnn::python
