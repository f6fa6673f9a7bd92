// The cell's CUDA kernels. Nothing else is needed to run it on a GPU.
#include <scanrnn/custom_cell.cuh>

#include "leaky_cell.hpp"

SCANRNN_ON_CUDA(mine::LeakyCell)
