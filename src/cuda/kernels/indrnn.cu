// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/solve_family.cuh"

SCANRNN_SOLVE_KERNELS(indrnn, IndRnnCell)
