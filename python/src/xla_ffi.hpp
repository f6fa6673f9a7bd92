// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

/// Defines `ffi_targets`, which gives JAX the XLA FFI handlers by name, `ffi_workspace_bytes`, and
/// `ffi_version`, the version of XLA's interface that they were compiled with.
void bind_xla_ffi(nanobind::module_& m);
