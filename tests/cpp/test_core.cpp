// SPDX-License-Identifier: Apache-2.0
// The header-only core: segment maps, complex numbers, 16-bit types.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "scanrnn/cells.hpp"
#include "scanrnn/core/affine.hpp"
#include "scanrnn/core/cells/scan.hpp"
#include "scanrnn/core/half.hpp"
#include "test.hpp"

using namespace scanrnn;
using test::Random;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// Small integers: sums of products of a few are exact, so equality is equality.
template <class T>
T small(Random& random) {
  return static_cast<T>(random.integer(-3, 3));
}
template <>
Complex<double> small(Random& random) {
  return {small<double>(random), small<double>(random)};
}

bool same(float p, float q) { return p == q; }
bool same(double p, double q) { return p == q; }
bool same(const Complex<double>& p, const Complex<double>& q) {
  return p.re == q.re && p.im == q.im;
}

template <class R>
bool same(const Affine<R>& p, const Affine<R>& q) {
  return same(p.a, q.a) && same(p.x, q.x);
}
template <class R>
bool same(const Affine2<R>& p, const Affine2<R>& q) {
  return same(p.a00, q.a00) && same(p.a01, q.a01) && same(p.a10, q.a10) && same(p.a11, q.a11) &&
         same(p.x0, q.x0) && same(p.x1, q.x1);
}

template <class R>
Affine<R> random_map(Random& random, const Affine<R>*) {
  return {small<R>(random), small<R>(random)};
}
template <class R>
Affine2<R> random_map(Random& random, const Affine2<R>*) {
  return {small<R>(random), small<R>(random), small<R>(random),
          small<R>(random), small<R>(random), small<R>(random)};
}

template <class Map>
void check_monoid() {
  Random random;
  int differs = 0;
  for (int k = 0; k < 2000; ++k) {
    const Map* of = nullptr;
    const Map p = random_map(random, of), q = random_map(random, of), r = random_map(random, of);
    CHECK(same(merge(merge(p, q), r), merge(p, merge(q, r))));
    CHECK(same(merge(identity<Map>(), p), p));
    CHECK(same(merge(p, identity<Map>()), p));
    if (!same(merge(p, q), merge(q, p))) ++differs;
  }
  CHECK(differs > 1000);
}

}  // namespace

CASE(merging_is_a_monoid_that_does_not_commute) {
  check_monoid<Affine<float>>();
  check_monoid<Affine<double>>();
  check_monoid<Affine<Complex<double>>>();
  check_monoid<Affine2<float>>();
  check_monoid<Affine2<double>>();
  check_monoid<Affine2<Complex<double>>>();
}

// Any bracketing of maps is what the steps do, one after another.
CASE(maps_do_what_their_steps_do) {
  Random random;
  for (int k = 0; k < 500; ++k) {
    Affine<double> steps[6];
    double h = small<double>(random);
    const double start = h;
    for (Affine<double>& step : steps) {
      step = random_map(random, &step);
      h = step.a * h + step.x;
    }
    Affine<double> left = identity<Affine<double>>(), right = left;
    for (int i = 0; i < 6; ++i) {
      left = merge(left, steps[i]);
      right = merge(steps[5 - i], right);
    }
    const int cut = static_cast<int>(random.integer(1, 5));
    Affine<double> early = identity<Affine<double>>(), late = early;
    for (int i = 0; i < 6; ++i) (i < cut ? early : late) = merge(i < cut ? early : late, steps[i]);
    CHECK_EQUAL(apply(left, start), h);
    CHECK_EQUAL(apply(right, start), h);
    CHECK_EQUAL(apply(late, apply(early, start)), h);
    CHECK_EQUAL(apply(merge(early, late), start), h);
  }
}

// Affine2 against matrices of 3 rows: (p, q, 1).
CASE(pairs_do_what_matrices_do) {
  Random random;
  for (int k = 0; k < 500; ++k) {
    double product[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    Affine2<double> map = identity<Affine2<double>>();
    double p = small<double>(random), q = small<double>(random);
    const double p0 = p, q0 = q;
    for (int step = 0; step < 4; ++step) {
      const Affine2<double> m = random_map(random, &map);
      const double matrix[3][3] = {{m.a00, m.a01, m.x0}, {m.a10, m.a11, m.x1}, {0, 0, 1}};
      double next[3][3];
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) {
          next[i][j] = 0;
          for (int l = 0; l < 3; ++l) next[i][j] += matrix[i][l] * product[l][j];
        }
      }
      std::memcpy(product, next, sizeof(product));
      map = merge(map, m);
      const double p1 = m.a00 * p + m.a01 * q + m.x0;
      q = m.a10 * p + m.a11 * q + m.x1;
      p = p1;
    }
    CHECK(same(map, Affine2<double>{product[0][0], product[0][1], product[1][0], product[1][1],
                                    product[0][2], product[1][2]}));
    double pm = p0, qm = q0;
    apply(map, pm, qm);
    CHECK_EQUAL(pm, p);
    CHECK_EQUAL(qm, q);
  }
}

CASE(complex_arithmetic) {
  Random random;
  for (int k = 0; k < 500; ++k) {
    const Complex<double> a = small<Complex<double>>(random), b = small<Complex<double>>(random),
                          c = small<Complex<double>>(random);
    CHECK(same(product(a, b), {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}));
    CHECK(same(fma(a, b, c), product(a, b) + c));
    CHECK(same(conj(a), {a.re, -a.im}));
    CHECK(same(conj_if(false, a), a));
    CHECK(same(conj_if(true, a), conj(a)));
  }
  CHECK(sizeof(Complex<float>) == 8 && sizeof(Complex<double>) == 16);
}

// A product of gates that has overflowed says nothing about a state of exactly 0.
CASE(an_overflowed_gain_annihilates_no_state_of_zero) {
  CHECK_EQUAL(apply(Affine<double>{kInfinity, 3.0}, 0.0), 3.0);
  CHECK_EQUAL(apply(Affine<double>{-kInfinity, 3.0}, -0.0), 3.0);
  CHECK_EQUAL(apply(Affine<double>{kInfinity, 3.0}, 2.0), kInfinity);
  CHECK_EQUAL(apply(Affine<double>{1e308, 3.0}, 0.0), 3.0);
  CHECK(std::isnan(apply(Affine<double>{2.0, 3.0}, kNan)));
  CHECK(std::isnan(apply(Affine<double>{0.0, 3.0}, kNan)));
  CHECK(std::isnan(apply(Affine<double>{0.0, 3.0}, kInfinity)));
  CHECK(std::isnan(apply(Affine<double>{kInfinity, 3.0}, kNan)));
  CHECK(std::isnan(apply(Affine<double>{kInfinity, kNan}, 0.0)));
  // A gate that is NaN leaves NaN in the map's x, whatever the gain does.
  const Affine<double> nan_step = merge(identity<Affine<double>>(), Affine<double>{2, kNan});
  CHECK(std::isnan(apply(merge(Affine<double>{0, 0}, nan_step), 0.0)));

  const Affine<double> zero_then_huge = merge(Affine<double>{0, 0}, Affine<double>{kInfinity, 5});
  CHECK_EQUAL(zero_then_huge.a, 0.0);
  CHECK_EQUAL(zero_then_huge.x, 5.0);
  const Affine<double> huge = merge(Affine<double>{1e200, 0}, Affine<double>{1e200, 1});
  CHECK_EQUAL(apply(huge, 0.0), 1.0);

  using C = Complex<double>;
  CHECK(same(apply(Affine<C>{{kInfinity, 1}, {3, 4}}, C{0, 0}), C{3, 4}));
  CHECK(same(apply(Affine<C>{{1, -kInfinity}, {3, 4}}, C{0, 0}), C{3, 4}));
  CHECK(std::isnan(apply(Affine<C>{{1, 1}, {3, 4}}, C{kNan, 0}).re));

  double p = 0, q = 2;
  apply(Affine2<double>{kInfinity, 1, kInfinity, 0, 3, 4}, p, q);
  CHECK_EQUAL(p, 5.0);
  CHECK_EQUAL(q, 4.0);
}

CASE(scalar_functions) {
  CHECK_EQUAL(sigmoid(0.0), 0.5);
  CHECK_EQUAL(sigmoid(0.0f), 0.5f);
  CHECK_EQUAL(sigmoid(kInfinity), 1.0);
  CHECK_EQUAL(sigmoid(-kInfinity), 0.0);
  CHECK(std::isnan(sigmoid(kNan)));
  CHECK(sigmoid(-100.0f) > 0 && sigmoid(-700.0) > 0);
  CHECK_EQUAL(scanrnn::tanh(-kInfinity), -1.0);
  CHECK_EQUAL(positive_part(-2.0), 0.0);
  CHECK_EQUAL(positive_part(2.0f), 2.0f);
  CHECK(std::isnan(positive_part(kNan)));
  CHECK_EQUAL(is_positive(0.0), 0.0);
  CHECK_EQUAL(is_positive(1e-300), 1.0);
  CHECK_EQUAL(is_positive(kNan), 0.0);
}

// The cells' pullbacks against differences of their steps and outputs. Inputs of `absent` read as 0
// and have no gradient.
template <class Cell>
void check_pullback(const Cell& cell, unsigned absent, Random& random) {
  constexpr int n = Cell::inputs;
  double in[n], din[n];
  for (int i = 0; i < n; ++i) in[i] = (absent >> i & 1u) != 0 ? 0 : random.uniform(-2, 2);
  const double c_prev = random.uniform(-2, 2), dy = random.uniform(-1, 1),
               dc = random.uniform(-1, 1);
  // L = dy * y + dc * c
  const auto loss = [&](double start) {
    const double c = apply(cell.step(in), start);
    return dy * cell.output(in, c) + dc * c;
  };
  const double c = apply(cell.step(in), c_prev);
  for (int i = 0; i < n; ++i) {  // relu's corner, of a candidate or of the state
    if ((absent >> i & 1u) != 0) continue;
    if (std::fabs(in[i]) < 1e-3 || std::fabs(c) < 1e-3) return;
  }
  const double g = cell.output_adjoint(in, c, dy) + dc;
  cell.pullback(in, c_prev, c, dy, g, din);
  const double step = 1e-6;
  for (int i = 0; i < n; ++i) {
    if ((absent >> i & 1u) != 0) continue;
    const double at = in[i];
    in[i] = at + step;
    const double above = loss(c_prev);
    in[i] = at - step;
    const double below = loss(c_prev);
    in[i] = at;
    CHECK(std::fabs((above - below) / (2 * step) - din[i]) < 1e-8);
  }
  const double slope = (loss(c_prev + step) - loss(c_prev - step)) / (2 * step);
  CHECK(std::fabs(slope - cell.gain(in) * g) < 1e-8);
  CHECK_EQUAL(cell.gain(in), cell.step(in).a);
  if (Cell::state_is_output) CHECK_EQUAL(cell.output(in, c), c);
}

template <class Cell>
void check_pullbacks(Random& random) {
  const CellType& type = cell_type<Cell>();
  for (int k = 0; k < 600; ++k) {
    Cell cell;
    for (int i = 0; i < type.options; ++i) {
      const CellOption option = type.option(&cell, i);
      type.set_option(&cell, i,
                      option.is_whole ? static_cast<double>(
                                            random.integer(static_cast<std::int64_t>(option.least),
                                                           static_cast<std::int64_t>(option.most)))
                                      : random.uniform(0, 10));
    }
    const unsigned absent = random.chance(0.5) ? 0 : Cell::optional_inputs;
    cell.given(CellTraits<Cell>::all_inputs & ~absent);
    const test::Note note(std::string(Cell::name) + " " + std::to_string(k));
    check_pullback(cell, absent, random);
  }
}

CASE(gradients_are_those_of_the_equations) {
  Random random;
#define SCANRNN_CHECK(name, Cell) check_pullbacks<Cell>(random);
  SCANRNN_CELLS(SCANRNN_CHECK)
#undef SCANRNN_CHECK
}

// A prepared cell finds in place of its vectors what it made of them.
CASE(prepared_cells_do_what_they_are_prepared_for) {
  Random random;
  using Cell = Prepared<RgLruCell>;
  for (int k = 0; k < 200; ++k) {
    RgLruCell plain;
    Cell prepared;
    prepared.c = plain.c = random.uniform(0, 10);
    double in[Cell::inputs], ready[Cell::inputs], expected[Cell::inputs], din[Cell::inputs];
    for (int i = 0; i < Cell::inputs; ++i) in[i] = ready[i] = random.uniform(-6, 6);
    Cell::prepare(ready);
    CHECK_EQUAL(ready[Cell::kLambda], softplus(in[Cell::kLambda]));
    CHECK_EQUAL(prepared.step(ready).a, plain.step(in).a);
    CHECK_EQUAL(prepared.step(ready).x, plain.step(in).x);
    plain.pullback(in, 0.3, 0.0, 0.0, 0.7, expected);
    prepared.pullback(ready, 0.3, 0.0, 0.0, 0.7, din);
    for (int i = 0; i < Cell::inputs; ++i) {
      CHECK(std::fabs(din[i] - expected[i]) <= 1e-14 * std::fabs(expected[i]));
    }
  }
}

// What callers and bindings read of a cell.
CASE(cells_as_data) {
  const CellType& gilr = cell_type<GilrCell>();
  CHECK_EQUAL(std::string(gilr.name), "gilr");
  CHECK_EQUAL(gilr.inputs, 3);
  CHECK_EQUAL(std::string(gilr.names[GilrCell::kBound]), "bound");
  CHECK(gilr.has(gilr.optional_inputs, GilrCell::kBound));
  CHECK(gilr.has(gilr.vector_inputs, GilrCell::kBound));
  CHECK(gilr.state_is_output);
  CHECK_EQUAL(gilr.options, 2);
  CHECK_EQUAL(&cell_type(CellKind::gilr), &gilr);
  CHECK_EQUAL(std::string(cell_type<QrnnCell>().state), "c");
  CellStorage cell;
  gilr.construct(cell);
  CHECK_EQUAL(std::string(gilr.option(cell.bytes, 1).name), "activation");
  CHECK_EQUAL(gilr.option(cell.bytes, 1).value, 1.0);
  const double values[] = {1, 3, 0};
  set_options(gilr, cell, values, 2);
  CHECK_EQUAL(gilr.option(cell.bytes, 0).value, 1.0);
  CHECK_EQUAL(gilr.option(cell.bytes, 1).value, 3.0);
  CHECK_THROWS(set_options(gilr, cell, values, 3), InvalidArgument,
               "gilr: options has 3 numbers, expected at most 2");
  const double broken[] = {0, 2.5}, nothing[] = {0, std::nan("")};
  CHECK_THROWS(set_options(gilr, cell, broken, 2), InvalidArgument,
               "gilr: activation is 2.5, expected a whole number from 0 to 5");
  CHECK_THROWS(set_options(gilr, cell, nothing, 2), InvalidArgument,
               "gilr: activation is nan, expected a whole number from 0 to 5");
  CHECK_THROWS(cell_type(CellKind::scan), InvalidArgument,
               "kind is 0, expected a cell's number, from 1 to 5");
}

// --- 16-bit types
// ----------------------------------------------------------------------------------

namespace {

// A 16-bit format as its definition has it: `bits` of fraction, and the exponent's bias.
struct Format {
  int bits, bias;
  std::uint16_t infinity;

  double value(std::uint16_t code) const {
    const int exponent = (code & 0x7fff) >> bits, fraction = code & ((1 << bits) - 1);
    const double sign = code & 0x8000 ? -1 : 1;
    if ((code & 0x7fff) > infinity) return kNan;
    if ((code & 0x7fff) == infinity) return sign * kInfinity;
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - bits);
    return sign * std::ldexp((1 << bits) + fraction, exponent - bias - bits);
  }
  // To nearest, ties to even, from the definition: look for the neighbours.
  std::uint16_t round(double v) const {
    const std::uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    const double magnitude = std::fabs(v);
    std::uint16_t low = 0, high = infinity;  // value(low) <= magnitude
    while (high - low > 1) {
      const std::uint16_t middle = static_cast<std::uint16_t>((low + high) / 2);
      (value(middle) <= magnitude ? low : high) = middle;
    }
    // The number past the largest finite one counts as if the exponents went on.
    const double above =
        high == infinity ? std::ldexp(1, ((infinity >> bits) - bias)) : value(high);
    const double to_low = magnitude - value(low), to_high = above - magnitude;
    const bool up = to_low > to_high || (to_low == to_high && (low & 1) != 0);
    return static_cast<std::uint16_t>(sign | (up ? high : low));
  }
};

constexpr Format kHalf = {10, 15, 0x7c00};
constexpr Format kBFloat = {7, 127, 0x7f80};

bool is_nan_code(const Format& f, std::uint16_t code) { return (code & 0x7fff) > f.infinity; }

template <class ToFloat, class FromFloat>
void check_format(const Format& f, ToFloat to_float_of, FromFloat from_float) {
  for (int code = 0; code < 65536; ++code) {
    const std::uint16_t bits = static_cast<std::uint16_t>(code);
    const float wide = to_float_of(bits);
    if (is_nan_code(f, bits)) {
      CHECK(std::isnan(wide));
      CHECK(is_nan_code(f, from_float(wide)));
      CHECK_EQUAL(std::signbit(wide), (bits & 0x8000) != 0);
      continue;
    }
    CHECK_EQUAL(static_cast<double>(wide), f.value(bits));
    CHECK_EQUAL(std::signbit(wide), (bits & 0x8000) != 0);
    CHECK_EQUAL(from_float(wide), bits);
    // Between this number and the next: the middle, and the floats on both sides of it.
    const std::uint16_t next = static_cast<std::uint16_t>(bits + 1);
    if ((bits & 0x7fff) >= f.infinity || (next & 0x7fff) > f.infinity) continue;
    const double above = (next & 0x7fff) == f.infinity
                             ? std::ldexp(1, (f.infinity >> f.bits) - f.bias)
                             : std::fabs(f.value(next));
    const double middle = (std::fabs(f.value(bits)) + above) / 2;
    const float tie = static_cast<float>(std::copysign(middle, static_cast<double>(wide)));
    if (static_cast<double>(tie) != std::copysign(middle, static_cast<double>(wide))) continue;
    for (const float v : {tie, std::nextafterf(tie, 0.0f), std::nextafterf(tie, 2 * tie)}) {
      CHECK_EQUAL(from_float(v), f.round(static_cast<double>(v)));
    }
  }
  Random random;
  for (int k = 0; k < 300000; ++k) {
    const float v = detail::bits_to_float(static_cast<std::uint32_t>(random.bits()));
    if (std::isnan(v)) {
      CHECK(is_nan_code(f, from_float(v)));
    } else {
      CHECK_EQUAL(from_float(v), f.round(static_cast<double>(v)));
    }
  }
  for (int k = 0; k < 300000; ++k) {  // where the format's range ends at both sides
    const double exponent = random.uniform(1 - f.bias - f.bits - 3, f.bias + 2);
    const float v = static_cast<float>(std::exp2(exponent) * (random.chance(0.5) ? 1 : -1));
    CHECK_EQUAL(from_float(v), f.round(static_cast<double>(v)));
  }
  for (const float v : {0.0f, 0x1p-149f, 0x1p-126f, 0x1p127f, std::numeric_limits<float>::max()}) {
    CHECK_EQUAL(from_float(v), f.round(static_cast<double>(v)));
    CHECK_EQUAL(from_float(-v), f.round(-static_cast<double>(v)));
  }
  CHECK_EQUAL(from_float(std::numeric_limits<float>::infinity()), f.infinity);
  CHECK_EQUAL(from_float(-std::numeric_limits<float>::infinity()), f.infinity | 0x8000);
}

}  // namespace

CASE(half_rounds_to_nearest_even) {
  check_format(
      kHalf, [](std::uint16_t bits) { return to_float(Half{bits}); },
      [](float v) { return to_half(v).bits; });
}

CASE(bfloat16_rounds_to_nearest_even) {
  check_format(
      kBFloat, [](std::uint16_t bits) { return to_float(BFloat16{bits}); },
      [](float v) { return to_bfloat16(v).bits; });
}

TEST_MAIN()
