// SPDX-License-Identifier: Apache-2.0
// The process's worker threads: started by the first call that has use for them, gone in a forked
// child, which starts its own.
#pragma once

namespace scanrnn::cpu {

/// Runs body(context, i) on up to `threads` threads, i = 0 (the caller) to threads - 1, and returns
/// when all have returned. Fewer run when another call has the workers, so a body must take its
/// work from a shared counter until none is left.
void parallel(int threads, void (*body)(void* context, int thread), void* context);

}  // namespace scanrnn::cpu
