// SPDX-License-Identifier: Apache-2.0
// The scan's leaf kernels, for the instruction set this file is compiled for.
#include "cpu/kernels/family.hpp"

#include "scanrnn/core/cells/scan.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

void add_scan(InstructionSet& set) {
  CellKernels* kernels = set.cell[static_cast<int>(CellKind::scan)];
  kernels[0] = Leaf<ScanCell, Vec<float>>::kernels();
  kernels[1] = Leaf<ScanCell, Vec<double>>::kernels();
  kernels[2] = Leaf<ScanCell, Complex<Vec<float>>>::kernels();
  kernels[3] = Leaf<ScanCell, Complex<Vec<double>>>::kernels();
  set.map[0] = Maps<Vec<float>, Vec<double>>::kernels();
  set.map[1] = Maps<Vec<double>, Vec<double>>::kernels();
  set.map[2] = Maps<Complex<Vec<float>>, Complex<Vec<double>>>::kernels();
  set.map[3] = Maps<Complex<Vec<double>>, Complex<Vec<double>>>::kernels();
}

}  // namespace scanrnn::cpu::SCANRNN_ISA
