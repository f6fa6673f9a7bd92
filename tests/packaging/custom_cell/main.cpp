// Runs the cell of leaky_cell.hpp and checks its numbers against a loop, and its gradients against
// differences.
#include <scanrnn/custom_cell.hpp>
#include <scanrnn/version.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "leaky_cell.hpp"

namespace {

using mine::LeakyCell;

constexpr int kSteps = 1000, kChannels = 5;
using Numbers = std::vector<double>;

scanrnn::ConstArray<3> steps(const Numbers& v) {
  return {v.data(), scanrnn::DType::f64, {1, kSteps, kChannels}, {0, kChannels, 1}};
}
scanrnn::Array<3> written_steps(Numbers& v) {
  return {v.data(), scanrnn::DType::f64, {1, kSteps, kChannels}, {0, kChannels, 1}};
}

Numbers forward(const Numbers& x, const Numbers& rate) {
  Numbers h(x.size());
  scanrnn::CellForward<LeakyCell> call;
  call.in[LeakyCell::kX] = steps(x);
  call.in[LeakyCell::kRate] =
      scanrnn::per_channel({rate.data(), scanrnn::DType::f64, {kChannels}, {1}});
  call.out = written_steps(h);
  std::vector<std::byte> memory(scanrnn::cell_forward_workspace_bytes(call));
  scanrnn::cell_forward(call, {memory.data(), memory.size()});
  return h;
}

// The gradients of the sum of w * h.
void backward(const Numbers& x, const Numbers& rate, const Numbers& h, const Numbers& w,
              Numbers& dx, Numbers& drate) {
  scanrnn::CellBackward<LeakyCell> call;
  call.in[LeakyCell::kX] = steps(x);
  call.in[LeakyCell::kRate] =
      scanrnn::per_channel({rate.data(), scanrnn::DType::f64, {kChannels}, {1}});
  call.out = steps(h);
  call.dout = steps(w);
  call.din[LeakyCell::kX] = written_steps(dx);
  call.din[LeakyCell::kRate] =
      scanrnn::per_channel(scanrnn::Array<1>{drate.data(), scanrnn::DType::f64, {kChannels}, {1}});
  std::vector<std::byte> memory(scanrnn::cell_backward_workspace_bytes(call));
  scanrnn::cell_backward(call, {memory.data(), memory.size()});
}

double weighted_sum(const Numbers& h, const Numbers& w) {
  double sum = 0;
  for (std::size_t i = 0; i < h.size(); ++i) sum += h[i] * w[i];
  return sum;
}

}  // namespace

int main() {
  Numbers x(kSteps * kChannels), w(x.size()), rate(kChannels);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.37 * static_cast<double>(i));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::cos(0.11 * static_cast<double>(i));
  for (std::size_t d = 0; d < rate.size(); ++d) rate[d] = static_cast<double>(d) - 1;

  const Numbers h = forward(x, rate);
  double worst = 0;
  for (std::size_t d = 0; d < kChannels; ++d) {
    const double a = 1 / (1 + std::exp(-rate[d]));
    double state = 0;
    for (std::size_t t = 0; t < kSteps; ++t) {
      state = a * state + (1 - a) * x[t * kChannels + d];
      worst = std::max(worst, std::fabs(h[t * kChannels + d] - state));
    }
  }
  std::printf("largest error of a state: %g\n", worst);
  bool right = worst < 1e-14;

  Numbers dx(x.size()), drate(rate.size());
  backward(x, rate, h, w, dx, drate);
  const double step = 1e-6;
  for (std::size_t d = 0; d < kChannels; ++d) {
    Numbers above = rate, below = rate;
    above[d] += step;
    below[d] -= step;
    const double slope =
        (weighted_sum(forward(x, above), w) - weighted_sum(forward(x, below), w)) / (2 * step);
    right = right && std::fabs(slope - drate[d]) < 1e-6;
    Numbers moved = x;
    moved[100 + d] += step;
    const double change = (weighted_sum(forward(moved, rate), w) - weighted_sum(h, w)) / step;
    right = right && std::fabs(change - dx[100 + d]) < 1e-6;
  }

  // Errors call the cell and its inputs by their names.
  try {
    scanrnn::cell_forward(scanrnn::CellForward<LeakyCell>(), {});
  } catch (const scanrnn::Error& error) {
    std::printf("as it should: %s\n", error.what());
  }
  std::printf("scanrnn %s, a cell of our own on %s: %s\n", SCANRNN_VERSION_STRING, SCANRNN_ISA_NAME,
              right ? "right" : "WRONG");
  return right ? 0 : 1;
}
