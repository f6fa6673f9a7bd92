// SPDX-License-Identifier: Apache-2.0
// Nonlinear cells: their derivatives against finite differences; forward against the papers'
// equations at every step, and against the serial loop; backward against the adjoint of these
// equations at the states that forward wrote; and the same bits whatever the layouts, the threads
// and the other rows.
//
// Forward is checked step by step: from the state before as it was written, the equations must give
// the state after. That holds for recurrences that double any rounding in a few steps too, where
// two ways of computing end up apart and the serial loop proves nothing.
#include <algorithm>
#include <type_traits>

#include "arrays.hpp"
#include "near.hpp"

using namespace test;
using namespace scanrnn;

namespace {

constexpr bool has(unsigned mask, int i) { return (mask >> i & 1u) != 0; }

// --- the equations ------------------------------------------------------------------------------

struct Range {
  double low, high;
};

constexpr Range kPre = {-2, 2};    // pre-activations
constexpr Range kWeight = {0, 0};  // recurrent weights, of a gain that a test chooses
constexpr Range kBias = {-1, 1};

// One step: the state in place, and the output. `read` are the states after the step where they
// aren't computed but read, as backward does: what follows from them goes by these.
template <class Cell>
struct Paper;

template <>
struct Paper<DiagonalGruCell> {
  using C = DiagonalGruCell;
  static constexpr Range ranges[] = {kPre, kPre, kPre, kWeight, kWeight, kWeight, kBias};
  static Tangent step(const C&, const Tangent* in, Tangent* state, unsigned,
                      const Near* = nullptr) {
    const Tangent h = state[0];
    const Tangent r = sigmoid(in[C::kReset] + in[C::kWeightReset] * h);
    const Tangent z = sigmoid(in[C::kUpdate] + in[C::kWeightUpdate] * h);
    const Tangent n = tanh(in[C::kNew] + r * (in[C::kWeightNew] * h + in[C::kBiasNew]));
    return state[0] = (1 - z) * n + z * h;
  }
};

template <>
struct Paper<DiagonalLstmCell> {
  using C = DiagonalLstmCell;
  static constexpr Range ranges[] = {kPre,    kPre,    kPre,  kPre,  kWeight, kWeight,
                                     kWeight, kWeight, kBias, kBias, kBias};
  static Tangent step(const C&, const Tangent* in, Tangent* state, unsigned given,
                      const Near* read = nullptr) {
    const Tangent h = state[0], c = state[1];
    const Tangent f = sigmoid(in[C::kForget] + in[C::kWeightForget] * h + in[C::kPeepForget] * c);
    const Tangent i = has(given, C::kInput)
                          ? sigmoid(in[C::kInput] + in[C::kWeightInput] * h + in[C::kPeepInput] * c)
                          : 1 - f;
    const Tangent g = tanh(in[C::kCandidate] + in[C::kWeightCandidate] * h);
    state[1] = f * c + i * g;
    if (read != nullptr) state[1].v = read[1];
    const Tangent o =
        sigmoid(in[C::kOutput] + in[C::kWeightOutput] * h + in[C::kPeepOutput] * state[1]);
    return state[0] = o * tanh(state[1]);
  }
};

template <>
struct Paper<IndRnnCell> {
  using C = IndRnnCell;
  static constexpr Range ranges[] = {kPre, kWeight};
  static Tangent step(const C& cell, const Tangent* in, Tangent* state, unsigned,
                      const Near* = nullptr) {
    return state[0] = activate(cell.activation, in[C::kInput] + in[C::kWeight] * state[0]);
  }
};

template <>
struct Paper<RecurrentSruCell> {
  using C = RecurrentSruCell;
  static constexpr Range ranges[] = {kPre, kPre, kPre, kPre, kWeight, kWeight, kBias, kBias};
  static Tangent step(const C& cell, const Tangent* in, Tangent* state, unsigned,
                      const Near* read = nullptr) {
    const Tangent c = state[0];
    const Tangent f = sigmoid(in[C::kForget] + in[C::kWeightForget] * c + in[C::kBiasForget]);
    const Tangent r = sigmoid(in[C::kReset] + in[C::kWeightReset] * c + in[C::kBiasReset]);
    state[0] = f * c + (1 - f) * in[C::kU];
    if (read != nullptr) state[0].v = read[0];
    return r * activate(cell.activation, state[0]) + (1 - r) * in[C::kSkip];
  }
};

// --- calls --------------------------------------------------------------------------------------

template <class Cell>
struct Inputs {
  Plane plane;
  Index channels = 1;
  DType dtype = DType::f32;
  SolveOptions options;
  Cell cell;
  Tensor in[Cell::inputs], initial[Cell::states], dout, dfinal[Cell::states];

  Index batch() const { return plane.batch; }
  Index time() const { return plane.time; }
  Index sequences() const { return plane.sequences(); }
  unsigned given() const {
    unsigned mask = 0;
    for (int i = 0; i < Cell::inputs; ++i) mask |= in[i] ? 1u << i : 0;
    return mask;
  }
  double tolerance() const {
    return options.tolerance > 0 ? options.tolerance : dtype == DType::f64 ? 1e-13 : 1e-6;
  }

  std::string text() const {
    std::string text = std::string(Cell::name) + " T=" + std::to_string(time()) +
                       " D=" + std::to_string(channels) + " B=" + std::to_string(batch()) + " " +
                       name_of(dtype) + " segment " + std::to_string(options.segment) + " passes " +
                       std::to_string(options.max_passes) + " tolerance " +
                       std::to_string(options.tolerance);
    const NonlinearCellType& type = nonlinear_cell_type<Cell>();
    for (int i = 0; i < type.options; ++i) {
      const CellOption option = type.option(&cell, i);
      text += std::string(" ") + option.name + " " + std::to_string(option.value);
    }
    for (int i = 0; i < Cell::inputs; ++i) {
      if (has(Cell::optional_inputs, i) && in[i]) text += std::string(" ") + Cell::names[i];
    }
    return text + (dout ? " dout" : "") + plane.text();
  }
};

template <class Cell>
struct Outputs {
  Tensor out, kept, report, final_state[Cell::states];
  Tensor din[Cell::inputs], dsum[Cell::inputs], dinitial[Cell::states];

  const Tensor& states(int s) const { return s == Cell::output_state ? out : kept; }
  double reported(Index n, int column) const { return report.get(0, n, column).re; }
};

template <class Cell>
Inputs<Cell> make_inputs(Random& random, DType dtype, Index channels, Plane plane, double gain) {
  Inputs<Cell> in;
  in.plane = std::move(plane);
  in.channels = channels;
  in.dtype = dtype;
  const NonlinearCellType& type = nonlinear_cell_type<Cell>();
  for (int i = 0; i < type.options; ++i) {
    const CellOption option = type.option(&in.cell, i);
    type.set_option(&in.cell, i,
                    static_cast<double>(random.integer(static_cast<Index>(option.least),
                                                       static_cast<Index>(option.most))));
  }
  const auto state_dtype = [&] { return random.chance(0.5) ? dtype : accumulation_dtype(dtype); };
  const auto filled = [&](Tensor array, Range range) {
    array.fill([&] { return Value{random.uniform(range.low, range.high), 0}; });
    return array;
  };
  const auto full = [&](Range range) {
    return filled(Tensor::input(dtype, in.batch(), in.time(), channels), range);
  };
  const auto rows = [&](Index n, Range range) {
    return filled(Tensor::input(state_dtype(), 1, n, channels), range);
  };
  for (int i = 0; i < Cell::inputs; ++i) {
    if (has(Cell::optional_inputs, i) && random.chance(0.3)) continue;
    Range range = Paper<Cell>::ranges[i];
    if (range.low == range.high) range = {-gain, gain};
    in.in[i] = has(Cell::vector_inputs, i) ? rows(1, range) : full(range);
  }
  for (int s = 0; s < Cell::states; ++s) {
    if (random.chance(0.7)) in.initial[s] = rows(in.sequences(), {-1, 1});
    if (random.chance(0.6)) in.dfinal[s] = rows(in.sequences(), {-1, 1});
  }
  if (random.chance(0.8)) in.dout = full({-1, 1});
  const Index segments[] = {0, 1, 3, 16, 50, 64};
  in.options.segment = random.pick(segments);
  const int passes[] = {0, 1, 2, 4, 8, 8};
  in.options.max_passes = random.pick(passes);
  const double tolerances[] = {0, 0, 1e-5, 1e-3};
  in.options.tolerance = random.pick(tolerances);
  for (Index b = 0; b < in.batch(); ++b) {
    for (Index t = 0; t < in.time(); ++t) {
      if (!in.plane.pads(b, t)) continue;
      for (Index d = 0; d < channels; ++d) {  // whatever lies in padding must not be seen
        if (in.dout) in.dout.set(b, t, d, nan_value());
        for (int i = 0; i < Cell::inputs; ++i) {
          if (in.in[i] && !has(Cell::vector_inputs, i)) in.in[i].set(b, t, d, nan_value());
        }
      }
    }
  }
  return in;
}

// With `random`, arrays lie in layouts of their own, and only some outputs are written if `all` is
// not set.
template <class Cell>
Outputs<Cell> run(const Inputs<Cell>& given, Random* random, bool all = true) {
  Inputs<Cell> in = given;
  const auto layout = [&]() -> const Layout& { return random ? random->pick(kLayouts) : kPlain; };
  const auto lead = [&] { return random ? random->integer(0, 3) : 0; };
  const auto relay = [&](Tensor& array) {
    if (random) array = array.relaid(layout(), lead());
  };
  for (Tensor& array : in.in) relay(array);
  for (Tensor& array : in.initial) relay(array);
  for (Tensor& array : in.dfinal) relay(array);
  relay(in.dout);
  Random plane_random(7);
  const PlaneArrays plane(in.plane, random ? *random : plane_random);
  const DType accumulation = accumulation_dtype(in.dtype);
  const auto output = [&](DType dtype, Index n0, Index n1) {
    return Tensor::output(dtype, n0, n1, in.channels, layout(), lead());
  };
  const auto wanted = [&] { return all || random->chance(0.5); };

  Outputs<Cell> out;
  SolveForward<Cell> call;
  call.cell = in.cell;
  call.options = in.options;
  for (int i = 0; i < Cell::inputs; ++i) {
    call.in[i] = has(Cell::vector_inputs, i) ? per_channel(in.in[i].template in<1>())
                                             : in.in[i].template in<3>();
  }
  out.out = output(in.dtype, in.batch(), in.time());
  call.out = out.out.template out<3>();
  if (Cell::kept_state >= 0) {
    out.kept = output(in.dtype, in.batch(), in.time());
    call.kept = out.kept.template out<3>();
  }
  for (int s = 0; s < Cell::states; ++s) {
    call.initial[s] = in.initial[s].template in<2>();
    if (!wanted()) continue;
    out.final_state[s] = output(accumulation, 1, in.sequences());
    call.final_state[s] = out.final_state[s].template out<2>();
  }
  if (wanted()) {
    out.report = Tensor::output(DType::f64, 1, in.sequences(), SolveReport::kColumns);
    call.report = out.report.template out<2>();
  }
  call.sequences = plane.view;
  Lent lent(solve_forward_workspace_bytes(call, kTarget));
  lent.run(solve_forward, call);
  CHECK_FINE(out.out.strays("out"));
  CHECK_FINE(out.kept.strays("kept"));
  CHECK_FINE(out.report.strays("report"));
  for (const Tensor& array : out.final_state) CHECK_FINE(array.strays("a final state"));

  SolveBackward<Cell> back;
  back.cell = in.cell;
  for (int i = 0; i < Cell::inputs; ++i) {
    back.in[i] = call.in[i];
    if (!wanted()) continue;
    if (has(Cell::vector_inputs, i)) {
      out.din[i] = output(in.in[i] ? in.in[i].dtype : accumulation, 1, 1);
      back.din[i] = per_channel(out.din[i].template out<1>());
    } else {
      out.din[i] = output(in.dtype, in.batch(), in.time());
      back.din[i] = out.din[i].template out<3>();
    }
  }
  for (int i = 0; i < Cell::inputs; ++i) {
    if (has(Cell::vector_inputs, i) || !wanted()) continue;
    out.dsum[i] = output(accumulation, 1, 1);
    back.dsum[i] = per_channel(out.dsum[i].template out<1>());
  }
  Tensor saved = out.out, kept = out.kept;
  relay(saved);
  relay(kept);
  if (Cell::output_state >= 0) back.out = saved.in<3>();
  back.kept = kept.in<3>();
  back.dout = in.dout.template in<3>();
  for (int s = 0; s < Cell::states; ++s) {
    back.initial[s] = call.initial[s];
    back.dfinal[s] = in.dfinal[s].template in<2>();
    if (!wanted()) continue;
    out.dinitial[s] = output(in.initial[s] ? in.initial[s].dtype : accumulation, 1, in.sequences());
    back.dinitial[s] = out.dinitial[s].template out<2>();
  }
  back.sequences = plane.view;
  Lent lent_back(solve_backward_workspace_bytes(back, kTarget));
  lent_back.run(solve_backward, back);
  for (const Tensor& array : out.din) CHECK_FINE(array.strays("a gradient"));
  for (const Tensor& array : out.dsum) CHECK_FINE(array.strays("a sum"));
  for (const Tensor& array : out.dinitial) CHECK_FINE(array.strays("dinitial"));
  return out;
}

// --- against the equations ----------------------------------------------------------------------

struct Expected {
  std::vector<Value> value;
  std::vector<double> bound;
  explicit Expected(Index count)
      : value(static_cast<std::size_t>(count)), bound(static_cast<std::size_t>(count)) {}
  void add(Index at, Near term) {
    const std::size_t i = static_cast<std::size_t>(at);
    value[i].re += term.v;
    // The loop's own rounding counts, there may be many to add; and what underflows on the way.
    bound[i] += term.e + 0x1p-53 * abs(value[i]) + 0x1p-140;
  }
};

// A number by itself, whatever terms it came from: what it is multiplied with goes by its own size.
Near settled(Near p) { return {p.v, p.e, std::fabs(p.v)}; }

Near stored(const Tensor& array, Index i, Index j, Index k) {
  const double v = array.get(i, j, k).re;
  return {v, rounding_of(array.dtype, std::fabs(v)), std::fabs(v)};
}

template <class Cell>
void check(const Inputs<Cell>& in, const Outputs<Cell>& out) {
  constexpr int I = Cell::inputs, N = Cell::states;
  const Index D = in.channels, T = in.time();
  roundoff = 12 * epsilon_of(in.dtype);
  const unsigned given = in.given();
  const Index elements = in.batch() * T * D;
  Expected y(elements);
  std::vector<Expected> states, din, dsum, final_state, dinitial;
  for (int s = 0; s < N; ++s) {
    states.emplace_back(elements);
    final_state.emplace_back(in.sequences() * D);
    dinitial.emplace_back(in.sequences() * D);
  }
  for (int i = 0; i < I; ++i) {
    din.emplace_back(has(Cell::vector_inputs, i) ? 0 : elements);
    dsum.emplace_back(D);
  }
  Tangent values[I], state[N];
  Near before[N], after[N];
  const auto read = [&](Index b, Index t, Index d) {
    for (int i = 0; i < I; ++i) {
      values[i] = Tangent(!in.in[i]                     ? 0
                          : has(Cell::vector_inputs, i) ? in.in[i].get(0, 0, d).re
                                                        : in.in[i].get(b, t, d).re);
    }
  };
  for (Index n = 0; n < in.sequences(); ++n) {
    // Between segments the state may jump: by as much as the report says.
    const double jump = out.reported(n, SolveReport::kResidual);
    for (Index d = 0; d < D; ++d) {
      Near start[N];
      for (int s = 0; s < N; ++s) {
        start[s] = after[s] = Near(in.initial[s] ? in.initial[s].get(0, n, d).re : 0);
      }
      in.plane.each_step(n, false, [&](Index b, Index t) {
        read(b, t, d);
        for (int s = 0; s < N; ++s) {
          Near from = in.plane.resets(b, t) ? Near() : after[s];
          from.e += 2 * jump;
          state[s] = Tangent(from);
        }
        const Index at = (b * T + t) * D + d;
        y.add(at, Paper<Cell>::step(in.cell, values, state, given).v);
        for (int s = 0; s < N; ++s) {
          states[static_cast<std::size_t>(s)].add(at, state[s].v);
          after[s] = stored(out.states(s), b, t, d);
        }
      });
      for (int s = 0; s < N; ++s) {
        final_state[static_cast<std::size_t>(s)].add(n * D + d, after[s]);
      }

      Near adjoint[N];
      for (int s = 0; s < N; ++s) {
        adjoint[s] = Near(in.dfinal[s] ? in.dfinal[s].get(0, n, d).re : 0);
      }
      const Plane::Span span = in.plane.span(n);
      const Index length = span.end - span.begin;
      Index left = length;
      in.plane.each_step(n, true, [&](Index b, Index t) {
        --left;
        read(b, t, d);
        const Index previous = in.plane.reverse ? t + 1 : t - 1;
        for (int s = 0; s < N; ++s) {
          before[s] = in.plane.resets(b, t) ? Near()
                      : left == 0           ? start[s]
                                            : Near(out.states(s).get(b, previous, d).re);
          after[s] = Near(out.states(s).get(b, t, d).re);
        }
        const Near dy(in.dout ? in.dout.get(b, t, d).re : 0);
        const auto gradient = [&](int input, int of_state) {
          for (int i = 0; i < I; ++i) values[i].d = Near(i == input ? 1 : 0);
          for (int s = 0; s < N; ++s) state[s] = {before[s], Near(s == of_state ? 1 : 0)};
          const Near slope = settled(Paper<Cell>::step(in.cell, values, state, given, after).d);
          Near sum = dy * slope;
          for (int s = 0; s < N; ++s) sum = sum + adjoint[s] * settled(state[s].d);
          return sum;
        };
        for (int i = 0; i < I; ++i) {
          Near term = gradient(i, -1);
          const std::size_t k = static_cast<std::size_t>(i);
          if (!has(Cell::vector_inputs, i)) din[k].add((b * T + t) * D + d, term);
          term.e += 8 * roundoff * term.s;
          dsum[k].add(d, term);
        }
        Near leaves[N];
        for (int s = 0; s < N; ++s) {
          leaves[s] = in.plane.resets(b, t) ? Near() : gradient(-1, s);
        }
        for (int s = 0; s < N; ++s) adjoint[s] = settled(leaves[s]);
      });
      for (int s = 0; s < N; ++s) {
        dinitial[static_cast<std::size_t>(s)].add(n * D + d, adjoint[s]);
      }
    }
  }
  CHECK_FINE(out.out.compare(y.value, y.bound, "out"));
  for (int s = 0; s < N; ++s) {
    const std::size_t i = static_cast<std::size_t>(s);
    CHECK_FINE(out.states(s).compare(states[i].value, states[i].bound, Cell::state_names[s]));
    CHECK_FINE(
        out.final_state[s].compare(final_state[i].value, final_state[i].bound, "final state"));
    CHECK_FINE(out.dinitial[s].compare(dinitial[i].value, dinitial[i].bound, "dinitial"));
  }
  for (int i = 0; i < I; ++i) {
    if (!has(given, i)) continue;
    const std::size_t k = static_cast<std::size_t>(i);
    const bool vector = has(Cell::vector_inputs, i);
    const Tensor& sum = vector ? out.din[i] : out.dsum[i];
    CHECK_FINE(sum.compare(dsum[k].value, dsum[k].bound, Cell::names[i]));
    if (!vector) CHECK_FINE(out.din[i].compare(din[k].value, din[k].bound, Cell::names[i]));
  }
}

template <class Cell>
void check_report(const Inputs<Cell>& in, const Outputs<Cell>& out) {
  for (Index n = 0; n < in.sequences(); ++n) {
    const Note note("sequence " + std::to_string(n));
    const auto value = [&](int column) { return out.reported(n, column); };
    const Plane::Span span = in.plane.span(n);
    const double status = value(SolveReport::kStatus), passes = value(SolveReport::kPasses);
    const double first = value(SolveReport::kFirstUnconverged);
    const double serial = value(SolveReport::kSerialChannels);
    if (in.options.max_passes == 0 || in.options.segment >= in.time()) CHECK_EQUAL(status, 2.0);
    if (status == SolveReport::kSerial) {
      for (int column : {SolveReport::kPasses, SolveReport::kResidual, SolveReport::kErrorEstimate,
                         SolveReport::kSerialChannels}) {
        CHECK_EQUAL(value(column), 0.0);
      }
      CHECK_EQUAL(first, -1.0);
      continue;
    }
    CHECK(passes >= 1 && passes <= in.options.max_passes);
    double size = 1;
    for (int s = 0; s < Cell::states; ++s) {
      in.plane.each_step(n, false, [&](Index b, Index t) {
        for (Index d = 0; d < in.channels; ++d) {
          const double v = std::fabs(out.states(s).get(b, t, d).re);
          if (std::isfinite(v)) size = std::max(size, v);
        }
      });
    }
    CHECK(value(SolveReport::kErrorEstimate) <= 1.01 * in.tolerance() * size);
    CHECK(value(SolveReport::kResidual) >= 0);
    if (status == SolveReport::kConverged) {
      CHECK_EQUAL(first, -1.0);
      CHECK_EQUAL(serial, 0.0);
    } else {
      CHECK_EQUAL(status, 1.0);
      CHECK(serial >= 1 && serial <= static_cast<double>(in.channels));
      CHECK(first >= 1 && first < static_cast<double>(span.end - span.begin));
      if (in.options.segment > 0) {
        CHECK_EQUAL(std::fmod(first, static_cast<double>(in.options.segment)), 0.0);
      }
    }
  }
}

// --- the same bits ------------------------------------------------------------------------------

template <class Cell>
void check_same(const Outputs<Cell>& given, const Outputs<Cell>& expected) {
  const auto same = [](const Tensor& p, const Tensor& q, const char* name) {
    if (p) CHECK_FINE(p.difference(q, name));
  };
  same(given.out, expected.out, "out");
  same(given.kept, expected.kept, "kept");
  same(given.report, expected.report, "report");
  for (int s = 0; s < Cell::states; ++s) {
    same(given.final_state[s], expected.final_state[s], "final state");
    same(given.dinitial[s], expected.dinitial[s], "dinitial");
  }
  for (int i = 0; i < Cell::inputs; ++i) {
    same(given.din[i], expected.din[i], Cell::names[i]);
    same(given.dsum[i], expected.dsum[i], "sum");
  }
}

// A sequence by itself, with all its channels: how it is cut may depend on their number.
template <class Cell>
void check_alone(const Inputs<Cell>& in, const Outputs<Cell>& whole, Index n) {
  const Plane::Span s = in.plane.span(n);
  if (s.begin == s.end && in.time() == 1)
    return;  // slices of that axis would be taken for broadcast
  const Note note("sequence " + std::to_string(n) + " alone");
  Inputs<Cell> alone;
  alone.plane.time = s.end - s.begin;
  // A device doesn't know lengths beforehand: there segments follow from the time axis.
  if (kOnGpu && alone.plane.time != in.plane.time) return;
  alone.plane.reverse = in.plane.reverse;
  for (Index t = s.begin; t < s.end && !in.plane.reset.empty(); ++t) {
    alone.plane.reset.push_back(in.plane.resets(s.row, t) ? 1 : 0);
  }
  alone.channels = in.channels;
  alone.dtype = in.dtype;
  alone.options = in.options;
  alone.cell = in.cell;
  const auto part = [&](const Tensor& array) {
    return array.slice(s.row, s.row + 1, s.begin, s.end, 0, in.channels);
  };
  const auto state = [&](const Tensor& array) {
    return array.slice(0, 1, n, n + 1, 0, in.channels);
  };
  for (int i = 0; i < Cell::inputs; ++i) {
    alone.in[i] = has(Cell::vector_inputs, i) ? in.in[i] : part(in.in[i]);
  }
  alone.dout = part(in.dout);
  for (int i = 0; i < Cell::states; ++i) {
    alone.initial[i] = state(in.initial[i]);
    alone.dfinal[i] = state(in.dfinal[i]);
  }
  const Outputs<Cell> out = run(alone, nullptr);
  CHECK_FINE(out.out.difference(part(whole.out), "out"));
  CHECK_FINE(out.kept.difference(part(whole.kept), "kept"));
  for (int i = 0; i < Cell::states; ++i) {
    CHECK_FINE(out.final_state[i].difference(state(whole.final_state[i]), "final state"));
    CHECK_FINE(out.dinitial[i].difference(state(whole.dinitial[i]), "dinitial"));
  }
  for (int i = 0; i < Cell::inputs; ++i) {
    // The vectors' gradients have more in them where there are other sequences.
    if (has(Cell::vector_inputs, i)) {
      if (in.sequences() == 1) CHECK_FINE(out.din[i].difference(whole.din[i], Cell::names[i]));
    } else {
      CHECK_FINE(out.din[i].difference(part(whole.din[i]), Cell::names[i]));
    }
  }
}

template <class Cell>
void check_all(const Inputs<Cell>& in, Random& random, const std::vector<int>& threads) {
  set_num_threads(1);
  const Outputs<Cell> base = run(in, nullptr);
  check(in, base);
  check_report(in, base);
  {
    const Note note("other layouts");
    check_same(run(in, &random), base);
  }
  for (int count : threads) {
    const Note note(std::to_string(count) + " threads");
    set_num_threads(count);
    check_same(run(in, nullptr), base);
    check_same(run(in, &random), base);
  }
  if (in.sequences() > 0) check_alone(in, base, random.integer(0, in.sequences() - 1));
  const Note note("some outputs left out");
  check_same(run(in, &random, false), base);
}

template <class Cell>
struct Tag {
  using Type = Cell;
};

template <class F>
void for_each_cell(F&& f) {
#define SCANRNN_VISIT(name, Cell) f(Tag<Cell>{});
  SCANRNN_NONLINEAR_CELLS(SCANRNN_VISIT)
#undef SCANRNN_VISIT
}

}  // namespace

// What a cell says of its derivatives, by all its members, against differences.
CASE(derivatives) {
  Random random;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    constexpr int I = Cell::inputs, N = Cell::states;
    const NonlinearCellType& type = nonlinear_cell_type<Cell>();
    for (int repeat = 0; repeat < 200; ++repeat) {
      Cell cell;
      // Not relu, whose derivative jumps.
      if (type.options > 0) type.set_option(&cell, 0, static_cast<double>(random.integer(0, 1)));
      unsigned given = (1u << I) - 1;
      for (int i = 0; i < I; ++i) {
        if (has(Cell::optional_inputs, i) && random.chance(0.3)) given &= ~(1u << i);
      }
      cell.given(given);
      double in[I], state[N], adjoint[N];
      for (int i = 0; i < I; ++i) in[i] = has(given, i) ? random.uniform(-2, 2) : 0;
      for (double& v : state) v = random.uniform(-1, 1);
      for (double& v : adjoint) v = random.uniform(-1, 1);
      const double dy = random.uniform(-1, 1);

      const auto after = [&](const double(&inputs)[I], const double(&before)[N], double(&to)[N]) {
        std::copy(before, before + N, to);
        cell.step(inputs, to);
      };
      const auto loss = [&](const double(&inputs)[I], const double(&before)[N]) {
        double to[N];
        after(inputs, before, to);
        double sum = dy * cell.output(inputs, before, to);
        for (int s = 0; s < N; ++s) sum += adjoint[s] * to[s];
        return sum;
      };
      constexpr double step = 1e-6, close = 1e-8;
      const auto difference = [&](double& of, auto&& function) {
        const double middle = of;
        of = middle + step;
        const double high = function();
        of = middle - step;
        const double low = function();
        of = middle;
        return (high - low) / (2 * step);
      };
      const Note note(std::string(Cell::name) + " " + std::to_string(given));

      double end[N], din[I], dbefore[N];
      after(in, state, end);
      cell.pullback(in, state, end, dy, adjoint, din, dbefore);
      for (int i = 0; i < I; ++i) {
        if (!has(given, i)) continue;
        CHECK(std::fabs(difference(in[i], [&] { return loss(in, state); }) - din[i]) < close);
      }
      Dual<double, N> dual[N];
      independent(state, dual);
      cell.step(in, dual);
      double gain[N][N], offset[N];
      adjoint_map(cell, in, state, end, dy, gain, offset);
      for (int s = 0; s < N; ++s) {
        const double slope = difference(state[s], [&] { return loss(in, state); });
        CHECK(std::fabs(slope - dbefore[s]) < close);
        double mapped = offset[s];
        for (int i = 0; i < N; ++i) mapped += gain[s][i] * adjoint[i];
        CHECK(std::fabs(mapped - dbefore[s]) < 1e-14);
        CHECK_EQUAL(dual[s].value, end[s]);
        for (int i = 0; i < N; ++i) {
          const double tangent = difference(state[i], [&] {
            double to[N];
            after(in, state, to);
            return to[s];
          });
          CHECK(std::fabs(tangent - dual[s].slope[i]) < close);
        }
      }
    }
  });
}

CASE(shapes) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    int k = 0;
    for (const Index time : {1, 2, 31, 32, 33, 64, 65, 300, 1000}) {
      for (const Index channels : {1, 2, 5, 8, 16, 17, 33, 64, 128, 150}) {
        if (time * channels > 9000) continue;
        const Index batch = k % 2 == 0 ? 1 : random.integer(1, 3);
        const double gains[] = {0.3, 0.9, 2};
        const auto in =
            make_inputs<Cell>(random, kReals[k % 4], channels, random_plane(random, batch, time),
                              // Not to grow out of all bounds.
                              std::is_same<Cell, IndRnnCell>::value ? 0.9 : random.pick(gains));
        const std::string& isa = isas[static_cast<std::size_t>(k / 2) % isas.size()];
        set_cpu_isa(isa.c_str());
        const Note note(in.text() + " " + isa);
        check_all(in, random, {3});
        ++k;
      }
    }
  });
}

// Long enough for segments that nobody asked for, in forward and in backward.
CASE(long_sequences) {
  const Settings settings;
  Random random;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (const Index channels : {1, 3, 8}) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        Plane plane;
        plane.time = 2048 + random.integer(0, 3000);
        plane.reverse = random.chance(0.5);
        auto in =
            make_inputs<Cell>(random, dtype, channels,
                              random.chance(0.5) ? plane : random_plane(random, 1, plane.time), 1);
        if (random.chance(0.7)) in.options = {};
        const Note note(in.text());
        check_all(in, random, {2, 8});
      }
    }
  });
}

// A recurrence that forgets: the serial loop's result, to the tolerance.
CASE(same_as_serial) {
  const Settings settings;
  Random random;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (int k = 0; k < 30; ++k) {
      auto in =
          make_inputs<Cell>(random, k % 2 == 0 ? DType::f32 : DType::f64, random.integer(1, 20),
                            random_plane(random, random.integer(1, 3), 400), 0.5);
      in.options = {0, 8, random.integer(1, 100)};
      auto serial = in;
      serial.options.max_passes = 0;
      const Note note(in.text());
      const Outputs<Cell> out = run(in, nullptr), expected = run(serial, nullptr);
      check_report(in, out);
      check_report(serial, expected);
      const double close = 20 * in.tolerance();
      const auto compare = [&](const Tensor& given, const Tensor& wanted, const char* name) {
        const std::vector<Value> list =
            wanted.values(wanted.shape[0], wanted.shape[1], wanted.shape[2]);
        std::vector<double> bound;
        for (Value v : list) bound.push_back(close * std::max(1.0, abs(v)));
        CHECK_FINE(given.compare(list, bound, name));
      };
      compare(out.out, expected.out, "out");
      for (int s = 0; s < Cell::states; ++s) {
        compare(out.final_state[s], expected.final_state[s], "final state");
      }
    }
  });
}

// Weights for which Newton's method converges slowly or not at all, and states that grow without
// bound: whatever the report says, every step is the equations'.
CASE(wild_weights) {
  const Settings settings;
  Random random;
  int fell_back = 0, converged = 0;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (int k = 0; k < 60; ++k) {
      const double gains[] = {2, 4, 6, 8};
      Plane plane;
      plane.batch = random.integer(1, 2);
      plane.time = 200;
      auto in = make_inputs<Cell>(random, k % 2 == 0 ? DType::f32 : DType::f64,
                                  random.integer(1, 6), plane, random.pick(gains));
      const Index segments[] = {1, 4, 8, 32};
      in.options = {0, static_cast<int>(random.integer(1, 12)), random.pick(segments)};
      const Note note(in.text());
      set_num_threads(1);
      const Outputs<Cell> out = run(in, nullptr);
      // Where numbers overflow there are no bounds to compare with.
      bool is_finite = true;
      out.out.each([&](Index b, Index t, Index d) {
        is_finite = is_finite && std::fabs(out.out.get(b, t, d).re) < 1e15;
      });
      check_report(in, out);
      if (is_finite) check(in, out);
      set_num_threads(3);
      check_same(run(in, &random), out);
      for (Index n = 0; n < in.sequences(); ++n) {
        fell_back += out.reported(n, SolveReport::kStatus) == SolveReport::kFellBack ? 1 : 0;
        converged += out.reported(n, SolveReport::kStatus) == SolveReport::kConverged ? 1 : 0;
      }
    }
  });
  CHECK(fell_back > 20);
  CHECK(converged > 20);
}

// A growing channel falls back by itself: the others have the bits that they have without it.
CASE(a_hard_channel_spoils_no_other) {
  Random random;
  Plane plane;
  plane.time = 300;
  auto in = make_inputs<IndRnnCell>(random, DType::f32, 4, plane, 0.5);
  in.cell.activation = Activation::relu;
  in.options = {0, 6, 20};
  const auto calm = run(in, nullptr);
  CHECK_EQUAL(calm.reported(0, SolveReport::kStatus), 0.0);
  in.in[IndRnnCell::kWeight].set(0, 0, 2, {1.5, 0});
  const auto out = run(in, nullptr);
  for (Index d : {0, 1, 3}) {
    const auto one = [&](const Tensor& array) { return array.slice(0, 1, 0, 300, d, d + 1); };
    CHECK_FINE(one(out.out).difference(one(calm.out), "out"));
    CHECK_FINE(one(out.din[0]).difference(one(calm.din[0]), "dp"));
  }
  auto serial = in;
  serial.options.max_passes = 0;
  const auto expected = run(serial, nullptr);
  for (Index t = 0; t < 300; ++t) {
    const double v = expected.out.get(0, t, 2).re;
    if (std::isfinite(v)) {
      CHECK(std::fabs(out.out.get(0, t, 2).re - v) <= 1e-4 * std::max(1.0, std::fabs(v)));
    } else {
      CHECK(!std::isfinite(out.out.get(0, t, 2).re));
    }
  }
}

// Two states that hold themselves: segments are guessed into one, the first steps lead to the
// other, which would advance by a segment a pass.
CASE(a_channel_that_gets_nowhere_is_given_up) {
  using Cell = DiagonalLstmCell;
  Random random;
  Plane plane;
  plane.time = 4000;
  auto in = make_inputs<Cell>(random, DType::f32, 1, plane, 0.1);
  for (Index t = 0; t < plane.time; ++t) {
    in.in[Cell::kForget].set(0, t, 0, {5, 0});
    in.in[Cell::kCandidate].set(0, t, 0, {t < 100 ? 3 : -0.05, 0});
  }
  in.in[Cell::kWeightCandidate].set(0, 0, 0, {6, 0});
  in.options = {0, 12, 125};
  const Note note(in.text());
  const auto out = run(in, nullptr);
  CHECK_EQUAL(out.reported(0, SolveReport::kStatus), static_cast<double>(SolveReport::kFellBack));
  CHECK(out.reported(0, SolveReport::kPasses) <= 8);
  auto serial = in;
  serial.options.max_passes = 0;
  const auto expected = run(serial, nullptr);
  CHECK(expected.out.get(0, plane.time - 1, 0).re > 0);  // not the one of the guesses
  for (Index t = 0; t < plane.time; ++t) {
    CHECK(std::fabs(out.out.get(0, t, 0).re - expected.out.get(0, t, 0).re) <= 1e-5);
  }
}

// Each pass makes one more segment right: a channel with no more of them than passes converges.
CASE(as_many_passes_as_segments_are_enough) {
  using Cell = DiagonalLstmCell;
  Random random;
  for (const Index segments : {4, 8, 12}) {
    Plane plane;
    plane.time = segments * 40;
    auto in = make_inputs<Cell>(random, DType::f32, 16, plane, 2);
    in.options = {0, static_cast<int>(segments), 40};
    const Note note(in.text());
    const auto out = run(in, nullptr);
    CHECK_EQUAL(out.reported(0, SolveReport::kStatus),
                static_cast<double>(SolveReport::kConverged));
  }
}

// A state that isn't finite stays in its channel, and a reset ends it.
CASE(specials_stay_in_their_channel) {
  const Settings settings;
  Random random;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (const Index segment : {0, 37}) {
      for (const Index channels : {1, 5, 20}) {
        Plane plane;
        plane.time = 3000;
        plane.reset.resize(3000);
        plane.reset[2000] = 1;
        auto in = make_inputs<Cell>(random, DType::f32, channels, plane, 0.5);
        in.options = {0, 8, segment};
        if (!in.dout) in.dout = in.in[0];
        const auto clean = run(in, nullptr);
        const Index channel = channels / 2;
        in.in[0].set(0, 700, channel, nan_value());
        const Note note(in.text());
        for (int threads : {1, 3}) {
          set_num_threads(threads);
          const auto out = run(in, nullptr);
          CHECK(!std::isfinite(out.out.get(0, 700, channel).re));
          // What lies behind the reset may have been solved in another way.
          const auto serial = [&] {
            auto alone = in;
            alone.options.max_passes = 0;
            return run(alone, nullptr);
          }();
          for (Index t = 0; t < 3000; ++t) {
            const double given = out.out.get(0, t, channel).re;
            const double expected = serial.out.get(0, t, channel).re;
            CHECK(std::isfinite(expected) ? std::fabs(given - expected) <= 1e-4
                                          : !std::isfinite(given));
          }
          for (Index d = 0; d < channels; ++d) {
            if (d == channel) continue;
            const auto one = [&](const Tensor& array) {
              return array.slice(0, 1, 0, 3000, d, d + 1);
            };
            CHECK_FINE(one(out.out).difference(one(clean.out), "out"));
            for (int i = 0; i < Cell::inputs; ++i) {
              CHECK_FINE(one(out.din[i]).difference(one(clean.din[i]), Cell::names[i]));
            }
          }
        }
      }
    }
  });
}

// The adjoint is finite where the gain of a whole segment isn't.
CASE(adjoints_survive_overflowed_gains) {
  Random random;
  Plane plane;
  plane.time = 4096;
  auto in = make_inputs<IndRnnCell>(random, DType::f32, 2, plane, 0.5);
  in.cell.activation = Activation::identity;
  in.options = {0, 0, 0};
  in.initial[0] = in.dfinal[0] = Tensor();
  in.dout = in.in[0];
  in.in[IndRnnCell::kInput].fill([] { return Value{0, 0}; });
  in.in[IndRnnCell::kWeight].fill([] { return Value{2, 0}; });
  // Only the first 100 steps matter to the loss: later ones hand 0 back, and 0 it stays.
  in.dout.each([&](Index b, Index t, Index d) {
    in.dout.set(b, t, d, {t < 100 ? random.uniform(-1, 1) : 0, 0});
  });
  const auto out = run(in, nullptr);
  for (Index d = 0; d < 2; ++d) {
    double adjoint = 0;
    for (Index t = 4095; t >= 0; --t) {
      adjoint = in.dout.get(0, t, d).re + 2 * adjoint;
      const double given = out.din[IndRnnCell::kInput].get(0, t, d).re;
      CHECK(std::fabs(given - adjoint) <= 1e-5 * std::fabs(adjoint));
    }
  }
}

CASE(wrong_calls_say_so) {
  std::vector<float> p(30), u(3), h0(6);
  std::vector<double> rows(12);
  SolveForward<IndRnnCell> call;
  call.in[IndRnnCell::kInput] = {p.data(), DType::f32, {2, 5, 3}, {15, 3, 1}};
  call.in[IndRnnCell::kWeight] = per_channel({u.data(), DType::f32, {3}, {1}});
  call.out = {p.data(), DType::f32, {2, 5, 3}, {15, 3, 1}};
  const auto bytes = [](const SolveForward<IndRnnCell>& c) {
    return solve_forward_workspace_bytes(c, kTarget);
  };
  auto cut = call;  // a call that isn't may do without a workspace
  cut.options.segment = 1;
  CHECK(bytes(cut) > 0);
  auto wrong = call;
  wrong.options.tolerance = -1;
  CHECK_THROWS(bytes(wrong), InvalidArgument,
               "indrnn: tolerance is -1.000000, expected a finite number from 0 on");
  wrong.options.tolerance = std::nan("");
  CHECK_THROWS(bytes(wrong), InvalidArgument,
               "indrnn: tolerance is nan, expected a finite number from 0 on");
  wrong = call;
  wrong.options.max_passes = -2;
  CHECK_THROWS(bytes(wrong), InvalidArgument,
               "indrnn: max_passes is -2, expected a number from 0 on");
  wrong = call;
  wrong.options.segment = -1;
  CHECK_THROWS(bytes(wrong), InvalidArgument,
               "indrnn: segment is -1, expected a number of steps, or 0 to have it chosen");
  wrong = call;
  wrong.initial[0] = {h0.data(), DType::f32, {3, 2}, {2, 1}};
  CHECK_THROWS(bytes(wrong), InvalidArgument, "indrnn: h0 has shape (3, 2), expected (2, 3)");
  wrong = call;
  wrong.final_state[0] = {h0.data(), DType::f16, {2, 3}, {3, 1}};
  CHECK_THROWS(bytes(wrong), InvalidType, "indrnn: final_h has dtype float16, expected float32");
  wrong = call;
  wrong.report = {rows.data(), DType::f64, {2, 5}, {5, 1}};
  CHECK_THROWS(bytes(wrong), InvalidArgument,
               "indrnn: report has shape (2, 5) and dtype float64, expected contiguous (2, 6) "
               "float64");
  wrong = call;
  wrong.cell.activation = Activation::silu;
  CHECK_THROWS(bytes(wrong), InvalidArgument,
               "indrnn: activation is 3, expected a whole number from 0 to 2");
  SolveBackward<IndRnnCell> back;
  for (int i = 0; i < IndRnnCell::inputs; ++i) back.in[i] = call.in[i];
  CHECK_THROWS(solve_backward_workspace_bytes(back, kTarget), InvalidArgument,
               "indrnn backward: out is missing");
  back.out = {p.data(), DType::f32, {2, 5, 3}, {15, 3, 1}};
  back.dsum[IndRnnCell::kInput] = {rows.data(), DType::f32, {1, 1, 2}, {0, 0, 1}};
  CHECK_THROWS(solve_backward_workspace_bytes(back, kTarget), InvalidArgument,
               "indrnn backward: sum of dp has shape (2,), expected (3,)");
  back.dsum[IndRnnCell::kInput] = {};
  back.dsum[IndRnnCell::kWeight] = {rows.data(), DType::f32, {1, 1, 3}, {0, 0, 1}};
  CHECK_THROWS(solve_backward_workspace_bytes(back, kTarget), InvalidArgument,
               "indrnn backward: sum of du was given, expected none: it is the gradient of a "
               "vector");
  CHECK_THROWS(nonlinear_cell_type(NonlinearCellKind::count), InvalidArgument,
               "kind is 4, expected a nonlinear cell's number, from 0 to 3");
  if (kOnGpu) return;
  std::vector<unsigned char> memory(16);
  CHECK_THROWS(solve_forward(call, {memory.data(), memory.size()}), InvalidArgument,
               "indrnn: workspace has 16 bytes, expected " + std::to_string(bytes(call)));
}

CASE(empty_extents) {
  Random random;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (int k = 0; k < 40; ++k) {
      Plane plane;
      plane.batch = random.integer(0, 2);
      plane.time = random.integer(0, 2);
      const Index channels = random.integer(0, 2);
      if (plane.batch * plane.time * channels > 0) continue;
      if (plane.batch == 1 && plane.time == 0) {
        plane.offsets.assign(static_cast<std::size_t>(random.integer(1, 3)), 0);
      }
      const auto in = make_inputs<Cell>(random, random.pick(kReals), channels, plane, 1);
      const Note note(in.text());
      check(in, run(in, &random));
    }
  });
}

TEST_MAIN()
