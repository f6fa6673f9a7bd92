// SPDX-License-Identifier: Apache-2.0
// A complex number over any scalar that has arithmetic: float, double, or a SIMD vector of them.
// Complex<float> and Complex<double> have std::complex's layout.
#pragma once

#include "scanrnn/core/config.hpp"

namespace scanrnn {

template <class T>
struct Complex {
  T re;
  T im;
};

template <class T>
SCANRNN_HD Complex<T> operator+(const Complex<T>& p, const Complex<T>& q) {
  return {p.re + q.re, p.im + q.im};
}

template <class T>
SCANRNN_HD Complex<T> conj(const Complex<T>& p) {
  return {p.re, -p.im};
}

}  // namespace scanrnn
