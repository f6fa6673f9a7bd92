// SPDX-License-Identifier: Apache-2.0
// Every cell, forward and backward, against serial loops in double precision over the papers'
// equations; and the same bits whatever the layouts, the threads and the other rows.
#include <algorithm>
#include <type_traits>

#include "arrays.hpp"
#include "near.hpp"

using namespace test;
using namespace scanrnn;

namespace {

// --- the equations ------------------------------------------------------------------------------

// What a paper says of a step: c_t = a c_{t-1} + x, and the output.
struct Map {
  Tangent a, x;
};

struct Range {
  double low, high;
};

constexpr Range kGate = {0, 0};  // of some spread that a test chooses
constexpr Range kPlainInput = {-1, 1};

template <class Cell>
struct Paper;

template <>
struct Paper<SruCell> {
  static constexpr Range ranges[] = {kPlainInput, kGate, kGate, kPlainInput, {-1, 1}, {-1, 1}};
  static Map step(const SruCell&, const Tangent* in, unsigned) {
    const Tangent f = sigmoid(in[SruCell::kForget] + in[SruCell::kBiasForget]);
    return {f, (1 - f) * in[SruCell::kU]};
  }
  static Tangent output(const SruCell& cell, const Tangent* in, Tangent c) {
    const Tangent r = sigmoid(in[SruCell::kReset] + in[SruCell::kBiasReset]);
    return r * activate(cell.activation, c) + (1 - r) * in[SruCell::kSkip];
  }
};

template <>
struct Paper<GilrCell> {
  static constexpr Range ranges[] = {kGate, {-2, 2}, {0, 1}};
  static Map step(const GilrCell& cell, const Tangent* in, unsigned) {
    const Tangent pre = in[GilrCell::kGate], bound = in[GilrCell::kBound];
    const Tangent f = bound + (1 - bound) * sigmoid(cell.gate == Gate::update ? -pre : pre);
    return {f, (1 - f) * activate(cell.activation, in[GilrCell::kCandidate])};
  }
  static Tangent output(const GilrCell&, const Tangent*, Tangent h) { return h; }
};

template <>
struct Paper<QrnnCell> {
  static constexpr Range ranges[] = {{-2, 2}, kGate, kGate, kGate};
  static Map step(const QrnnCell& cell, const Tangent* in, unsigned given) {
    const Tangent f = sigmoid(in[QrnnCell::kForget]);
    const Tangent i = given >> QrnnCell::kInput & 1u ? sigmoid(in[QrnnCell::kInput]) : 1 - f;
    return {f, i * activate(cell.activation, in[QrnnCell::kCandidate])};
  }
  static Tangent output(const QrnnCell&, const Tangent* in, Tangent c) {
    return sigmoid(in[QrnnCell::kOutput]) * c;
  }
};

template <>
struct Paper<MinLstmCell> {
  static constexpr Range ranges[] = {kGate, kGate, {-2, 2}};
  static Map step(const MinLstmCell& cell, const Tangent* in, unsigned) {
    const Tangent f = sigmoid(in[MinLstmCell::kForget]), i = sigmoid(in[MinLstmCell::kInput]);
    return {f / (f + i), i / (f + i) * activate(cell.activation, in[MinLstmCell::kCandidate])};
  }
  static Tangent output(const MinLstmCell&, const Tangent*, Tangent h) { return h; }
};

template <>
struct Paper<RgLruCell> {
  static constexpr Range ranges[] = {kPlainInput, kGate, kGate, {-9, 2}};
  static Map step(const RgLruCell& cell, const Tangent* in, unsigned) {
    const Tangent log_a =
        -Tangent(cell.c) * softplus(in[RgLruCell::kLambda]) * sigmoid(in[RgLruCell::kGate]);
    const Tangent rest = -expm1(2 * log_a);  // 1 - a^2
    return {exp(log_a), sqrt(rest) * sigmoid(in[RgLruCell::kInput]) * in[RgLruCell::kX]};
  }
  static Tangent output(const RgLruCell&, const Tangent*, Tangent h) { return h; }
};

// --- calls --------------------------------------------------------------------------------------

constexpr bool has(unsigned mask, int i) { return (mask >> i & 1u) != 0; }

template <class Cell>
struct Inputs {
  Plane plane;
  Index channels = 1;
  DType dtype = DType::f32;
  double spread = 3;
  Cell cell;
  Tensor in[Cell::inputs], initial, dout, dfinal;

  Index batch() const { return plane.batch; }
  Index time() const { return plane.time; }
  Index sequences() const { return plane.sequences(); }
  unsigned given() const {
    unsigned mask = 0;
    for (int i = 0; i < Cell::inputs; ++i) mask |= in[i] ? 1u << i : 0;
    return mask;
  }

  std::string text() const {
    std::string text = std::string(Cell::name) + " T=" + std::to_string(time()) +
                       " D=" + std::to_string(channels) + " B=" + std::to_string(batch()) + " " +
                       name_of(dtype);
    const CellType& type = cell_type<Cell>();
    for (int i = 0; i < type.options; ++i) {
      const CellOption option = type.option(&cell, i);
      text += std::string(" ") + option.name + " " + std::to_string(option.value);
    }
    for (int i = 0; i < Cell::inputs; ++i) {
      if (has(Cell::optional_inputs, i) && in[i]) text += std::string(" ") + Cell::names[i];
    }
    return text + (initial ? " initial" : "") + (dout ? " dout" : "") + (dfinal ? " dfinal" : "") +
           plane.text();
  }
};

template <class Cell>
struct Outputs {
  Tensor out, final_state, checkpoints;
  Tensor din[Cell::inputs], dinitial;
  bool forward_along_time = false, backward_along_time = false;
};

template <class Cell>
Inputs<Cell> make_inputs(Random& random, DType dtype, Index channels, Plane plane) {
  Inputs<Cell> in;
  in.plane = std::move(plane);
  in.channels = channels;
  in.dtype = dtype;
  const CellType& type = cell_type<Cell>();
  for (int i = 0; i < type.options; ++i) {
    const CellOption option = type.option(&in.cell, i);
    const double value = option.is_whole
                             ? static_cast<double>(random.integer(static_cast<Index>(option.least),
                                                                  static_cast<Index>(option.most)))
                             : random.uniform(1, 10);
    type.set_option(&in.cell, i, value);
  }
  const auto state_dtype = [&] { return random.chance(0.5) ? dtype : accumulation_dtype(dtype); };
  if (random.chance(0.2)) in.spread = 30;  // gates that saturate, too
  const auto full = [&](Range range) {
    Tensor array = Tensor::input(dtype, in.batch(), in.time(), channels);
    array.fill([&] { return Value{random.uniform(range.low, range.high), 0}; });
    return array;
  };
  const auto rows = [&](Index n, Range range) {
    Tensor array = Tensor::input(state_dtype(), 1, n, channels);
    array.fill([&] { return Value{random.uniform(range.low, range.high), 0}; });
    return array;
  };
  for (int i = 0; i < Cell::inputs; ++i) {
    if (has(Cell::optional_inputs, i) && random.chance(0.3)) continue;
    Range range = Paper<Cell>::ranges[i];
    if (range.low == range.high) range = {-in.spread, in.spread};
    in.in[i] = has(Cell::vector_inputs, i) ? rows(1, range) : full(range);
  }
  if (random.chance(0.7)) in.initial = rows(in.sequences(), {-1, 1});
  if (random.chance(0.8)) in.dout = full({-1, 1});
  if (!in.dout || random.chance(0.6)) in.dfinal = rows(in.sequences(), {-1, 1});
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

const Layout& some_layout(Random* random) { return random ? random->pick(kLayouts) : kPlain; }
Index some_lead(Random* random) { return random ? random->integer(0, 3) : 0; }

// With `random`, arrays lie in layouts of their own, and backward writes only some of its outputs
// if `all` is not set.
template <class Cell>
Outputs<Cell> run(const Inputs<Cell>& given, Random* random, bool all = true) {
  Inputs<Cell> in = given;
  const auto relay = [&](Tensor& array) {
    if (random) array = array.relaid(some_layout(random), some_lead(random));
  };
  for (Tensor& array : in.in) relay(array);
  for (Tensor* array : {&in.initial, &in.dout, &in.dfinal}) relay(*array);
  Random plane_random(7);
  const PlaneArrays plane(in.plane, random ? *random : plane_random);
  const DType accumulation = accumulation_dtype(in.dtype);
  const auto output = [&](DType dtype, Index n0, Index n1) {
    return Tensor::output(dtype, n0, n1, in.channels, some_layout(random), some_lead(random));
  };
  Outputs<Cell> out;
  out.out = output(in.dtype, in.batch(), in.time());
  if (all) out.final_state = output(accumulation, 1, in.sequences());
  CellForward<Cell> call;
  call.cell = in.cell;
  for (int i = 0; i < Cell::inputs; ++i) {
    call.in[i] = has(Cell::vector_inputs, i) ? per_channel(in.in[i].template in<1>())
                                             : in.in[i].template in<3>();
  }
  call.initial = in.initial.template in<2>();
  call.out = out.out.template out<3>();
  call.final_state = out.final_state.template out<2>();
  if (!Cell::state_is_output) {
    out.checkpoints = Tensor::output(
        accumulation, 1, checkpoint_rows(in.batch(), in.time(), in.sequences()), in.channels);
    call.checkpoints = out.checkpoints.template out<2>();
  }
  call.sequences = plane.view;
  out.forward_along_time = time_is_contiguous(call.out);
  Lent lent(cell_forward_workspace_bytes(call, kTarget));
  lent.run(cell_forward, call);
  CHECK_FINE(out.out.strays("out"));
  CHECK_FINE(out.final_state.strays("final_state"));
  CHECK_FINE(out.checkpoints.strays("checkpoints"));

  const auto wanted = [&] { return all || random->chance(0.5); };
  CellBackward<Cell> back;
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
  if (wanted())
    out.dinitial = output(in.initial ? in.initial.dtype : accumulation, 1, in.sequences());
  Tensor saved = out.out;
  if (Cell::state_is_output) {
    relay(saved);
    back.out = saved.in<3>();
  } else {
    back.checkpoints = call.checkpoints;
  }
  back.initial = call.initial;
  back.dout = in.dout.template in<3>();
  back.dfinal = in.dfinal.template in<2>();
  back.dinitial = out.dinitial.template out<2>();
  back.sequences = plane.view;
  out.backward_along_time = time_is_contiguous(back.dout               ? back.dout
                                               : Cell::state_is_output ? back.out
                                                                       : back.in[0]);
  Lent lent_back(cell_backward_workspace_bytes(back, kTarget));
  lent_back.run(cell_backward, back);
  for (const Tensor& array : out.din) CHECK_FINE(array.strays("a gradient"));
  CHECK_FINE(out.dinitial.strays("dinitial"));
  return out;
}

// --- the serial loop ----------------------------------------------------------------------------

struct Expected {
  std::vector<Value> value;
  std::vector<double> bound;
  explicit Expected(Index count)
      : value(static_cast<std::size_t>(count)), bound(static_cast<std::size_t>(count)) {}
  void add(Index at, Near term) {
    const std::size_t i = static_cast<std::size_t>(at);
    value[i].re += term.v;
    // The loop's own rounding counts: there may be many to add.
    bound[i] += term.e + 0x1p-53 * abs(value[i]);
  }
};

template <class Cell>
void check(const Inputs<Cell>& in, const Outputs<Cell>& out) {
  using Equations = Paper<Cell>;
  const Index D = in.channels, T = in.time();
  roundoff = (8 + (in.spread > 3 ? in.spread : 0)) * epsilon_of(in.dtype);
  tanh_roundoff = kOnGpu && in.dtype == DType::bf16 ? 0x1p-11 : roundoff;
  const unsigned given = in.given();
  Expected y(in.batch() * T * D), final_state(in.sequences() * D), dinitial(in.sequences() * D);
  std::vector<Expected> din;
  for (int i = 0; i < Cell::inputs; ++i) {
    din.emplace_back(has(Cell::vector_inputs, i) ? D : in.batch() * T * D);
  }
  struct Step {
    Near values[Cell::inputs];
    Near a, c, c_prev;
  };
  std::vector<Step> steps(static_cast<std::size_t>(T));
  const auto duals = [&](const Step& p, Tangent* values, int seed) {
    for (int i = 0; i < Cell::inputs; ++i) values[i] = {p.values[i], Near(i == seed ? 1 : 0)};
  };
  Tangent values[Cell::inputs];
  for (Index n = 0; n < in.sequences(); ++n) {
    for (Index d = 0; d < D; ++d) {
      const Near start(in.initial ? in.initial.get(0, n, d).re : 0);
      Near c = start, stored = start;
      in.plane.each_step(n, false, [&](Index b, Index t) {
        Step& p = steps[static_cast<std::size_t>(t)];
        for (int i = 0; i < Cell::inputs; ++i) {
          const bool vector = has(Cell::vector_inputs, i);
          p.values[i] = Near(!in.in[i] ? 0
                             : vector  ? in.in[i].get(0, 0, d).re
                                       : in.in[i].get(b, t, d).re);
        }
        if (in.plane.resets(b, t)) c = stored = Near();
        duals(p, values, -1);
        const Map map = Equations::step(in.cell, values, given);
        // Backward reads the states from the output, as it was rounded.
        p.c_prev = Cell::state_is_output ? stored : c;
        c = map.a.v * c + map.x.v;
        p.a = map.a.v;
        p.c = c;
        y.add((b * T + t) * D + d, Equations::output(in.cell, values, Tangent(c)).v);
        stored = Near(out.out.get(b, t, d).re);
      });
      final_state.add(n * D + d, c);

      Near g(in.dfinal ? in.dfinal.get(0, n, d).re : 0);  // flows into the step from later ones
      in.plane.each_step(n, true, [&](Index b, Index t) {
        const Step& p = steps[static_cast<std::size_t>(t)];
        const Near dy(in.dout ? in.dout.get(b, t, d).re : 0);
        duals(p, values, -1);
        g = g + dy * Equations::output(in.cell, values, Tangent(p.c, Near(1))).d;
        for (int i = 0; i < Cell::inputs; ++i) {
          duals(p, values, i);
          const Map map = Equations::step(in.cell, values, given);
          const Near slope = Equations::output(in.cell, values, Tangent(p.c)).d;
          Near term = g * (map.a.d * p.c_prev + map.x.d) + dy * slope;
          const bool vector = has(Cell::vector_inputs, i);
          if (vector) term.e += 8 * roundoff * term.s;
          din[static_cast<std::size_t>(i)].add(vector ? d : (b * T + t) * D + d, term);
        }
        g = in.plane.resets(b, t) ? Near() : p.a * g;
      });
      dinitial.add(n * D + d, g);
    }
  }
  CHECK_FINE(out.out.compare(y.value, y.bound, "out"));
  CHECK_FINE(out.final_state.compare(final_state.value, final_state.bound, "final_state"));
  for (int i = 0; i < Cell::inputs; ++i) {
    const Expected& e = din[static_cast<std::size_t>(i)];
    if (has(given, i)) CHECK_FINE(out.din[i].compare(e.value, e.bound, Cell::names[i]));
  }
  CHECK_FINE(out.dinitial.compare(dinitial.value, dinitial.bound, "dinitial"));
}

// --- the same bits ------------------------------------------------------------------------------

// The same bits, wherever both ran the same way.
template <class Cell>
void check_same(const Outputs<Cell>& given, const Outputs<Cell>& expected) {
  if (given.forward_along_time != expected.forward_along_time ||
      given.backward_along_time != expected.backward_along_time) {
    return;
  }
  const auto same = [](const Tensor& p, const Tensor& q, const char* name) {
    if (p) CHECK_FINE(p.difference(q, name));
  };
  same(given.out, expected.out, "out");
  same(given.final_state, expected.final_state, "final_state");
  for (int i = 0; i < Cell::inputs; ++i) same(given.din[i], expected.din[i], Cell::names[i]);
  same(given.dinitial, expected.dinitial, "dinitial");
}

template <class Cell>
void check_alone(const Inputs<Cell>& in, const Outputs<Cell>& whole, Index n, Index d0, Index d1) {
  const Plane::Span s = in.plane.span(n);
  if (s.begin == s.end && in.time() == 1)
    return;  // slices of that axis would be taken for broadcast
  const Note note("sequence " + std::to_string(n) + ", channels " + std::to_string(d0) + " to " +
                  std::to_string(d1) + " alone");
  Inputs<Cell> alone;
  alone.plane.time = s.end - s.begin;
  alone.plane.reverse = in.plane.reverse;
  for (Index t = s.begin; t < s.end && !in.plane.reset.empty(); ++t) {
    alone.plane.reset.push_back(in.plane.resets(s.row, t) ? 1 : 0);
  }
  alone.channels = d1 - d0;
  alone.dtype = in.dtype;
  alone.cell = in.cell;
  const auto part = [&](const Tensor& array) {
    return array.slice(s.row, s.row + 1, s.begin, s.end, d0, d1);
  };
  const auto state = [&](const Tensor& array) { return array.slice(0, 1, n, n + 1, d0, d1); };
  const auto input = [&](const Tensor& array, int i) {
    return has(Cell::vector_inputs, i) ? array.slice(0, 1, 0, 1, d0, d1) : part(array);
  };
  for (int i = 0; i < Cell::inputs; ++i) alone.in[i] = input(in.in[i], i);
  alone.dout = part(in.dout);
  alone.initial = state(in.initial);
  alone.dfinal = state(in.dfinal);
  const Outputs<Cell> out = run(alone, nullptr);
  CHECK_FINE(out.out.difference(part(whole.out), "out"));
  CHECK_FINE(out.final_state.difference(state(whole.final_state), "final_state"));
  for (int i = 0; i < Cell::inputs; ++i) {
    // The vectors' gradients have more in them where there are other sequences.
    if (has(Cell::vector_inputs, i) && in.sequences() > 1) continue;
    CHECK_FINE(out.din[i].difference(input(whole.din[i], i), Cell::names[i]));
  }
  CHECK_FINE(out.dinitial.difference(state(whole.dinitial), "dinitial"));
}

template <class Cell>
void check_all(const Inputs<Cell>& in, Random& random, const std::vector<int>& threads) {
  set_num_threads(1);
  const Outputs<Cell> base = run(in, nullptr);
  check(in, base);
  {
    const Note note("other layouts");
    const Outputs<Cell> out = run(in, &random);
    check(in, out);
    check_same(out, base);
  }
  for (int count : threads) {
    const Note note(std::to_string(count) + " threads");
    set_num_threads(count);
    check_same(run(in, nullptr), base);
    check_same(run(in, &random), base);
  }
  if (in.sequences() > 0) {
    // Few channels run another way than many: these stay many.
    const bool few = kOnGpu || in.channels <= 32;
    const Index d0 = few ? 0 : random.integer(0, in.channels - 32);
    const Index d1 = few ? in.channels : random.integer(d0 + 32, in.channels);
    check_alone(in, base, random.integer(0, in.sequences() - 1), d0, d1);
  }
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
  SCANRNN_CELLS(SCANRNN_VISIT)
#undef SCANRNN_VISIT
}

}  // namespace

CASE(shapes) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    int k = 0;
    for (const Index time : {1, 31, 32, 33, 64, 65, 1000, 4097}) {
      for (const Index channels : {1, 2, 4, 7, 8, 16, 17, 33, 64, 70}) {
        if (time * channels > 70000) continue;
        const Index batch = k % 2 == 0 ? 1 : random.integer(1, 3);
        const auto in =
            make_inputs<Cell>(random, kReals[k % 4], channels, random_plane(random, batch, time));
        const std::string& isa = isas[static_cast<std::size_t>(k / 2) % isas.size()];
        set_cpu_isa(isa.c_str());
        const Note note(in.text() + " " + isa);
        check_all(in, random, time > 1000 ? std::vector<int>{2, 3, 8} : std::vector<int>{3});
        ++k;
      }
    }
  });
}

// On GPUs, calls of whole tiles alone have kernels of their own; any other layout has the rest.
CASE(whole_tiles) {
  const Settings settings;
  Random random;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (const DType dtype : kReals) {
      for (const Index channels : {64, 1}) {  // one channel's steps lie side by side
        Plane plane;
        plane.batch = 2;
        plane.time = channels == 1 ? 2048 : 512;
        plane.reverse = random.chance(0.5);
        const auto in = make_inputs<Cell>(random, dtype, channels, plane);
        const Note note(in.text());
        check_all(in, random, {3});
      }
    }
  });
}

CASE(long_sequences) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  int cells = 0;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    const int cell = cells++;
    int k = 0;
    for (const Index channels : {1, 2, 6, 9}) {
      Plane plane;
      plane.time = k % 2 == 0 ? 65500 : 70001;
      plane.reverse = k % 2 == 1;
      const auto in = make_inputs<Cell>(random, k % 2 == 0 ? DType::f32 : DType::f64, channels,
                                        k < 2 ? plane : random_plane(random, 1, plane.time));
      const std::string& isa = isas[static_cast<std::size_t>(k + cell) % isas.size()];
      set_cpu_isa(isa.c_str());
      const Note note(in.text() + " " + isa);
      set_num_threads(1);
      const auto base = run(in, nullptr);
      // The loop takes its time: each cell goes through two of the four.
      if ((k + cell) % 2 == 0) check(in, base);
      for (int threads : {2, 3, 8}) {
        const Note also(std::to_string(threads) + " threads");
        set_num_threads(threads);
        check_same(run(in, threads == 2 ? nullptr : &random), base);
      }
      ++k;
    }
  });
}

// One sequence of enough channels for each thread to take some of them.
CASE(rows_in_pieces) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  int k = 0;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (const Index channels : {150, 256}) {
      Plane plane;
      plane.time = 100000 / channels;
      const auto in = make_inputs<Cell>(random, k % 2 == 0 ? DType::f32 : DType::f64, channels,
                                        k < 2 ? plane : random_plane(random, 1, plane.time));
      const std::string& isa = isas[static_cast<std::size_t>(k) % isas.size()];
      set_cpu_isa(isa.c_str());
      const Note note(in.text() + " " + isa);
      check_all(in, random, {2, 3});
      ++k;
    }
  });
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
      const auto in = make_inputs<Cell>(random, random.pick(kReals), channels, plane);
      const Note note(in.text());
      check(in, run(in, &random));
    }
  });
}

// Wherever sequences lie, their checkpoints find room and don't meet.
CASE(checkpoint_rows_suffice) {
  CHECK_EQUAL(checkpoint_rows(1, 0, 1), 1);
  CHECK_EQUAL(checkpoint_rows(1, 32, 1), 2);
  CHECK_EQUAL(checkpoint_rows(3, 64, 3), 9);
  CHECK_EQUAL(checkpoint_rows(1, 100, 7), 10);
  CHECK_EQUAL(checkpoint_rows(0, 100, 0), 0);
  Random random;
  for (int k = 0; k < 30; ++k) {
    Plane plane;
    plane.offsets = {0};
    for (Index n = random.integer(1, 20); n > 0; --n) {
      plane.offsets.push_back(plane.offsets.back() + random.integer(0, 3) * random.integer(0, 40));
    }
    plane.time = plane.offsets.back();
    const auto in = make_inputs<SruCell>(random, DType::f64, 3, plane);
    const Note note(in.text());
    check(in, run(in, nullptr));  // backward starts every leaf from its checkpoint
  }
}

// A state that isn't finite stays in its channel, and a reset ends it.
CASE(specials_stay_in_their_channel) {
  const Settings settings;
  Random random;
  for_each_cell([&](auto tag) {
    using Cell = typename decltype(tag)::Type;
    for (const Index channels : {1, 5, 20}) {
      Plane plane;
      plane.time = 3000;
      plane.reset.resize(3000);
      plane.reset[2000] = 1;
      auto in = make_inputs<Cell>(random, DType::f32, channels, plane);
      if (!in.dout) in.dout = in.in[0];
      const auto clean = run(in, nullptr);
      const Index channel = channels / 2;
      // Of the arrays, whichever carries a NaN on.
      for (int i = 0; i < Cell::inputs; ++i) {
        if (has(Cell::map_inputs, i) && in.in[i] && !has(Cell::vector_inputs, i)) {
          in.in[i].set(0, 700, channel, nan_value());
        }
      }
      for (int threads : {1, 3}) {
        set_num_threads(threads);
        const auto out = run(in, nullptr);
        CHECK(!std::isfinite(out.out.get(0, 700, channel).re));
        const Note note(in.text());
        const auto after = [&](const Tensor& array) {
          return array.slice(0, 1, 2000, 3000, 0, channels);
        };
        CHECK_FINE(after(out.out).difference(after(clean.out), "out"));
        for (int i = 0; i < Cell::inputs; ++i) {
          if (has(Cell::vector_inputs, i)) continue;
          CHECK_FINE(after(out.din[i]).difference(after(clean.din[i]), Cell::names[i]));
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
  });
}

namespace {

// One step of every gate in `gates`, from the state 2 with the candidate 5 and all gradients 1.
template <class Cell>
Outputs<Cell> at_gates(Cell cell, DType dtype, std::initializer_list<int> inputs,
                       const std::vector<std::vector<double>>& gates) {
  Inputs<Cell> in;
  in.cell = cell;
  in.dtype = dtype;
  in.plane.time = 1;
  in.channels = static_cast<Index>(gates.size());
  for (int i = 0; i < Cell::inputs; ++i) {
    if (has(Cell::vector_inputs | Cell::optional_inputs, i)) continue;
    in.in[i] = Tensor::input(dtype, 1, 1, in.channels);
    in.in[i].fill([] { return Value{5, 0}; });
  }
  for (Index d = 0; d < in.channels; ++d) {
    std::size_t k = 0;
    for (int i : inputs) in.in[i].set(0, 0, d, {gates[static_cast<std::size_t>(d)][k++], 0});
  }
  in.initial = Tensor::input(dtype, 1, 1, in.channels);
  in.initial.fill([] { return Value{2, 0}; });
  in.dout = Tensor::input(dtype, 1, 1, in.channels);
  in.dout.fill([] { return Value{1, 0}; });
  return run(in, nullptr);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

// An infinite gate is exactly open or shut, and its gradient 0: zoneout's mask.
CASE(infinite_gates) {
  const Settings settings;
  const std::vector<std::vector<double>> gates = {{kInfinity}, {-kInfinity}, {1e30}, {-1e30}};
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    for (const DType dtype : {DType::f32, DType::f64}) {
      const auto exact = [&](const Tensor& array, std::initializer_list<double> expected) {
        Index d = 0;
        for (double value : expected) CHECK_EQUAL(array.get(0, 0, d++).re, value);
      };
      GilrCell gilr;
      gilr.activation = Activation::identity;
      auto f = at_gates(gilr, dtype, {GilrCell::kGate}, gates);
      exact(f.out, {2, 5, 2, 5});
      exact(f.din[GilrCell::kGate], {0, 0, 0, 0});
      exact(f.din[GilrCell::kCandidate], {0, 1, 0, 1});
      exact(f.dinitial, {1, 0, 1, 0});
      gilr.gate = Gate::update;
      f = at_gates(gilr, dtype, {GilrCell::kGate}, gates);
      exact(f.out, {5, 2, 5, 2});
      exact(f.din[GilrCell::kGate], {0, 0, 0, 0});
      QrnnCell qrnn;
      qrnn.activation = Activation::identity;
      const auto q = at_gates(qrnn, dtype, {QrnnCell::kForget}, gates);
      exact(q.final_state, {2, 5, 2, 5});
      exact(q.din[QrnnCell::kForget], {0, 0, 0, 0});
    }
  }
}

// minLSTM's ratios, whose sigmoids over- and underflow.
CASE(ratios_of_gates) {
  const Settings settings;
  std::vector<std::vector<double>> gates;
  const double values[] = {-kInfinity, -1e30, -1000, -120, -88, -80, 0, 80, 120, 1000, kInfinity};
  for (double f : values) {
    for (double i : values) gates.push_back({f, i});
  }
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    for (const DType dtype : {DType::f32, DType::f64}) {
      const auto out =
          at_gates(MinLstmCell(), dtype, {MinLstmCell::kForget, MinLstmCell::kInput}, gates);
      for (Index d = 0; d < static_cast<Index>(gates.size()); ++d) {
        const double f = gates[static_cast<std::size_t>(d)][0],
                     i = gates[static_cast<std::size_t>(d)][1];
        const Note note("f " + Tensor::format({f, 0}) + " i " + Tensor::format({i, 0}));
        // log sigmoid(v), and the ratio as a sigmoid of their difference; equal ones share.
        const auto log_sigmoid = [](double v) {
          return std::min(v, 0.0) - std::log1p(std::exp(-std::fabs(v)));
        };
        const double keep = f == i ? 0.5 : 1 / (1 + std::exp(log_sigmoid(i) - log_sigmoid(f)));
        const double k = 64 * epsilon_of(dtype);
        const auto near = [&](const Tensor& array, double expected) {
          CHECK(std::fabs(array.get(0, 0, d).re - expected) <= k);
        };
        near(out.out, 5 + keep * (2 - 5));
        near(out.dinitial, keep);
        near(out.din[MinLstmCell::kCandidate], 1 - keep);
        const double slope = keep * (1 - keep) * (2 - 5);
        near(out.din[MinLstmCell::kForget], slope / (1 + std::exp(f)));
        near(out.din[MinLstmCell::kInput], -slope / (1 + std::exp(i)));
      }
    }
  }
}

// RG-LRU's input scale and its slope where a is close to 1, and 1.
CASE(root_near_one) {
  const Settings settings;
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const double log_a : {-1e-8, -1e-4, -0.1, -3.0, 0.0}) {
        const Note note(isa + " " + name_of(dtype) + " log a " + std::to_string(log_a));
        Inputs<RgLruCell> in;
        in.dtype = dtype;
        in.plane.time = 1;
        in.cell.c = -2 * log_a / std::log(2.0);  // softplus(0) = log 2, sigmoid(0) = 1/2
        const auto scalar = [&](double value) {
          Tensor array = Tensor::input(dtype, 1, 1, 1);
          array.set(0, 0, 0, {value, 0});
          return array;
        };
        in.in[RgLruCell::kX] = scalar(1);
        in.in[RgLruCell::kInput] = scalar(kInfinity);
        in.in[RgLruCell::kGate] = in.in[RgLruCell::kLambda] = scalar(0);
        in.dout = scalar(1);
        const auto out = run(in, nullptr);
        const double rest = -std::expm1(2 * log_a), scale = std::sqrt(rest);
        const double k = 32 * epsilon_of(dtype);
        CHECK(std::fabs(out.out.get(0, 0, 0).re - scale) <= k * scale);
        // d log a / d gate = log a (1 - 1/2)
        const double slope = std::min(scale > 0 ? 0.5 / scale : 1000, 1000.0);
        const double expected = -2 * std::exp(2 * log_a) * slope * log_a * 0.5;
        CHECK(std::fabs(out.din[RgLruCell::kGate].get(0, 0, 0).re - expected) <=
              k * std::fabs(expected));
        CHECK(std::isfinite(out.din[RgLruCell::kLambda].get(0, 0, 0).re));
      }
    }
  }
}

TEST_MAIN()
