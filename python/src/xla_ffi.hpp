// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

/// Defines `ffi_targets`, which gives JAX the XLA FFI handlers by name, and `ffi_workspace_bytes`.
void bind_xla_ffi(nanobind::module_& m);
