// SPDX-License-Identifier: Apache-2.0
// scanrnn._core: one binding file an area.
#include <new>

#include "descriptor.hpp"
#include "xla_ffi.hpp"

NB_MODULE(_core, m) {
  using namespace scanrnn;
  nanobind::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const InvalidArgument& e) {
      PyErr_SetString(PyExc_ValueError, e.what());
    } catch (const InvalidType& e) {
      PyErr_SetString(PyExc_TypeError, e.what());
    } catch (const DeviceError& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, "scanrnn: no memory for the workspace");
    }
  });
  python::bind_runtime(m);
  python::bind_scan(m);
  python::bind_cells(m);
  python::bind_solve(m);
  python::bind_debug(m);
  python::bind_dlpack(m);
  bind_xla_ffi(m);
}
