// SPDX-License-Identifier: Apache-2.0
// Arrays as Python hands them over: (pointer, dtype code, shape, strides in elements, device),
// where device is -1 for the CPU or a CUDA ordinal. The framework's adapter makes the tuple;
// nothing here knows a framework. An array whose type has DLPack's exchange API may come as it is:
// asking it in C takes a tenth of the time. Then a part of it may come, too: (array, i) is
// array[i], (array, i, j) is array[i, j], and (array, None, i, n) the i-th of n equal parts of its
// last axis.
#pragma once

#include <nanobind/nanobind.h>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "scanrnn/scanrnn.hpp"

namespace scanrnn::python {

namespace nb = nanobind;

inline std::int64_t to_int(PyObject* object, const char* name) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    throw InvalidType(std::string(name) + " is not an array descriptor: expected integers");
  }
  return value;
}

/// What an array says of itself by its type's exchange API, valid as long as the array.
struct Exchanged {
  void* data;
  int dtype, rank;  ///< `dtype` is the core's code
  const std::int64_t* shape;
  const std::int64_t* strides;  ///< in elements
  std::int64_t device;
};

/// False where the type has no such API. Throws for arrays that the core can't read.
bool exchange(PyObject* array, const char* name, Exchanged& out);

/// Reads the arguments of one call and holds them to one device.
class Arguments {
 public:
  template <int Rank>
  ConstArray<Rank> input(nb::handle object, const char* name) {
    return parse<Rank>(object, name);
  }

  template <int Rank>
  Array<Rank> output(nb::handle object, const char* name) {
    const ConstArray<Rank> view = parse<Rank>(object, name);
    Array<Rank> array{const_cast<void*>(view.data), view.dtype, {}, {}};
    for (int i = 0; i < Rank; ++i) {
      array.shape[i] = view.shape[i];
      array.stride[i] = view.stride[i];
    }
    return array;
  }

  Sequences sequences(nb::handle cu_seqlens, nb::handle lengths, nb::handle reset, bool left_padded,
                      bool reverse) {
    Sequences s;
    s.cu_seqlens = input<1>(cu_seqlens, "cu_seqlens");
    s.lengths = input<1>(lengths, "lengths");
    s.reset = input<2>(reset, "reset");
    s.left_padded = left_padded;
    s.reverse = reverse;
    return s;
  }

  Target target(std::uintptr_t stream) const {
    Target t;
    if (device_ >= 0) {
      t.device = Device::cuda;
      t.index = static_cast<int>(device_);
      t.stream = reinterpret_cast<void*>(stream);
    }
    return t;
  }

 private:
  static std::string place(std::int64_t device) {
    return device < 0 ? "the CPU" : "cuda:" + std::to_string(device);
  }

  template <int Rank>
  ConstArray<Rank> parse(nb::handle object, const char* name) {
    ConstArray<Rank> view;
    PyObject* o = object.ptr();
    if (o == Py_None) return view;
    Exchanged array;
    const Py_ssize_t items = PyTuple_Check(o) ? PyTuple_Size(o) : 0;
    PyObject* whole = items >= 2 && items <= 4 ? PyTuple_GetItem(o, 0) : o;
    if (items != 5 && exchange(whole, name, array)) {
      narrow(o, items, name, array);
      if (array.rank != Rank) {
        throw InvalidArgument(std::string(name) + " has " + std::to_string(array.rank) +
                              " axes, expected " + std::to_string(Rank));
      }
      view.data = something(array.data);
      view.dtype = static_cast<DType>(array.dtype);
      for (int i = 0; i < Rank; ++i) {
        view.shape[i] = array.shape[i];
        view.stride[i] = array.strides[i];
      }
      if (items == 4) view.shape[Rank - 1] /= to_int(PyTuple_GetItem(o, 3), name);
      hold_to(name, array.device);
      return view;
    }
    if (!PyTuple_Check(o) || PyTuple_Size(o) != 5) {
      throw InvalidType(
          std::string(name) +
          " is not an array descriptor: expected (ptr, dtype, shape, strides, device)");
    }
    void* data = PyLong_AsVoidPtr(PyTuple_GetItem(o, 0));
    if (data == nullptr && PyErr_Occurred()) {
      PyErr_Clear();
      throw InvalidType(std::string(name) + " has a pointer that is not an integer");
    }
    view.data = something(data);
    const std::int64_t dtype = to_int(PyTuple_GetItem(o, 1), name);
    if (dtype < 0 || dtype > static_cast<int>(DType::u8)) {
      throw InvalidType(std::string(name) + " has unknown dtype code " + std::to_string(dtype));
    }
    view.dtype = static_cast<DType>(dtype);
    PyObject* shape = PyTuple_GetItem(o, 2);
    PyObject* strides = PyTuple_GetItem(o, 3);
    if (!PyTuple_Check(shape) || !PyTuple_Check(strides)) {
      throw InvalidType(std::string(name) + " has no tuples of shape and strides");
    }
    if (PyTuple_Size(shape) != Rank || PyTuple_Size(strides) != Rank) {
      throw InvalidArgument(std::string(name) + " has shape " + nb::repr(shape).c_str() +
                            ", expected " + std::to_string(Rank) + " axes");
    }
    for (int i = 0; i < Rank; ++i) {
      view.shape[i] = to_int(PyTuple_GetItem(shape, i), name);
      view.stride[i] = to_int(PyTuple_GetItem(strides, i), name);
    }
    hold_to(name, to_int(PyTuple_GetItem(o, 4), name));
    return view;
  }

  /// From an array to the part of it that a tuple of so many items means, but for the length of the
  /// last axis.
  static void narrow(PyObject* part, Py_ssize_t items, const char* name, Exchanged& array) {
    const auto move = [&](std::int64_t elements) {
      if (array.data == nullptr) return;
      const auto size = static_cast<std::int64_t>(size_of(static_cast<DType>(array.dtype)));
      array.data = static_cast<char*>(array.data) + elements * size;
    };
    if (items == 4) {
      const std::int64_t i = to_int(PyTuple_GetItem(part, 2), name);
      const std::int64_t n = to_int(PyTuple_GetItem(part, 3), name);
      const std::int64_t length = array.rank > 0 ? array.shape[array.rank - 1] : -1;
      if (n < 1 || i < 0 || i >= n || length < 0 || length % n != 0) {
        throw InvalidArgument(std::string(name) + " has " + std::to_string(length) +
                              " channels, expected a multiple of " + std::to_string(n));
      }
      move(i * (length / n) * array.strides[array.rank - 1]);
      return;
    }
    for (Py_ssize_t k = 1; k < items; ++k) {
      const std::int64_t i = to_int(PyTuple_GetItem(part, k), name);
      if (array.rank == 0 || i < 0 || i >= array.shape[0]) {
        throw InvalidArgument(std::string(name) + " has no row " + std::to_string(i));
      }
      move(i * array.strides[0]);
      ++array.shape;
      ++array.strides;
      --array.rank;
    }
  }

  /// An empty array may have no memory; it is given all the same.
  static void* something(void* data) {
    static double nothing[2] = {0, 0};
    return data != nullptr ? data : nothing;
  }

  void hold_to(const char* name, std::int64_t device) {
    if (first_ == nullptr) {
      first_ = name;
      device_ = device;
    } else if (device != device_) {
      throw InvalidArgument(std::string(name) + " is on " + place(device) + ", expected " +
                            place(device_) + ", where " + first_ + " is");
    }
  }

  const char* first_ = nullptr;
  std::int64_t device_ = -1;
};

/// Host memory for one call, given back at its end.
class HostWorkspace {
 public:
  explicit HostWorkspace(std::size_t bytes)
      : memory_(static_cast<char*>(::operator new(bytes))), bytes_(bytes) {}
  ~HostWorkspace() { ::operator delete(memory_); }
  HostWorkspace(const HostWorkspace&) = delete;
  HostWorkspace& operator=(const HostWorkspace&) = delete;
  operator Workspace() const { return {memory_, bytes_}; }

 private:
  char* memory_;
  std::size_t bytes_;
};

/// Device memory for one call, from the framework's own allocator: `allocate(bytes, ordinal)`
/// returns (pointer, owner). The owner is let go when the work has been enqueued, not when it is
/// done, so the allocator must be stream-ordered, as those of all frameworks are: what it hands out
/// again is used by later work of the same stream.
class DeviceWorkspace {
 public:
  DeviceWorkspace(nb::handle allocate, std::size_t bytes, int ordinal) : bytes_(bytes) {
    if (bytes == 0) return;
    if (allocate.is_none()) {
      throw InvalidArgument("allocate is None, expected a function that lends " +
                            std::to_string(bytes) + " bytes of device memory");
    }
    lent_ = allocate(bytes, ordinal);
    PyObject* lent = lent_.ptr();
    if (!PyTuple_Check(lent) || PyTuple_Size(lent) != 2) {
      throw InvalidType("allocate returned something else than (pointer, owner)");
    }
    memory_ = PyLong_AsVoidPtr(PyTuple_GetItem(lent, 0));
    if (memory_ == nullptr) {
      PyErr_Clear();
      throw InvalidType("allocate returned no pointer");
    }
  }
  operator Workspace() const { return {memory_, bytes_}; }

 private:
  nb::object lent_;
  void* memory_ = nullptr;
  std::size_t bytes_;
};

/// Runs `compute` with the GIL released. A thread that finds the interpreter gone when it wants the
/// GIL back stops here for ever, as CPython 3.14 itself lets it: older versions end such a thread
/// by an unwind that no destructor on the way may meet.
template <class Compute>
void without_gil(Compute&& compute) {
  std::exception_ptr error;
  PyThreadState* thread = PyEval_SaveThread();
  try {
    std::forward<Compute>(compute)();
  } catch (...) {
    error = std::current_exception();
  }
#if defined(__GLIBCXX__)
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
#else
  PyEval_RestoreThread(thread);
#endif
  if (error) std::rethrow_exception(error);
}

/// Runs a call in a workspace of the size it asks for. The GIL is released on CUDA too, although a
/// launch is short: it waits when the device's queue is full, and what empties the queue may be a
/// callback that needs the GIL.
template <class Call>
void run(const Call& call, const Target& target, nb::handle allocate,
         std::size_t (*bytes_of)(const Call&, const Target&),
         void (*compute)(const Call&, Workspace, const Target&)) {
  if (target.device == Device::cpu) {
    without_gil([&] { compute(call, HostWorkspace(bytes_of(call, target)), target); });
    return;
  }
  const DeviceWorkspace workspace(allocate, bytes_of(call, target), target.index);
  without_gil([&] { compute(call, workspace, target); });
}

void bind_scan(nb::module_& m);
void bind_cells(nb::module_& m);
void bind_solve(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_debug(nb::module_& m);
void bind_dlpack(nb::module_& m);

}  // namespace scanrnn::python
