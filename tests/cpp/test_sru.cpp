// SPDX-License-Identifier: Apache-2.0
// The simple recurrent unit, forward and backward, against serial loops in double precision; and
// the same bits whatever the layouts, the threads and the other rows.
#include <algorithm>

#include "arrays.hpp"

using namespace test;
using namespace scanrnn;

namespace {

struct Inputs {
  Plane plane;
  Index channels = 1;
  DType dtype = DType::f32;
  Activation activation = Activation::identity;
  Tensor u, forget, reset, skip, bias_forget, bias_reset, c0, dh, dfinal;
  Tensor checkpoints;  // what forward wrote, for backward

  Index batch() const { return plane.batch; }
  Index time() const { return plane.time; }
  Index sequences() const { return plane.sequences(); }

  std::string text() const {
    return "T=" + std::to_string(time()) + " D=" + std::to_string(channels) +
           " B=" + std::to_string(batch()) + " " + name_of(dtype) + " activation " +
           std::to_string(static_cast<int>(activation)) + (skip ? " skip" : "") +
           (bias_forget ? " bias_forget" : "") + (bias_reset ? " bias_reset" : "") +
           (c0 ? " c0" : "") + (dh ? " dh" : "") + (dfinal ? " dfinal" : "") + plane.text();
  }
};

struct Outputs {
  Tensor h, final_state, checkpoints;
  Tensor du, dforget, dreset, dskip, dbias_forget, dbias_reset, dc0;
  bool forward_along_time = false, backward_along_time = false;
};

Inputs make_inputs(Random& random, DType dtype, Index channels, Plane plane) {
  Inputs in;
  in.plane = std::move(plane);
  in.channels = channels;
  in.dtype = dtype;
  in.activation = static_cast<Activation>(random.integer(0, 2));
  const auto state_dtype = [&] { return random.chance(0.5) ? dtype : accumulation_dtype(dtype); };
  const double spread = random.chance(0.2) ? 30 : 3;  // gates that saturate, too
  const auto full = [&](double size) {
    Tensor array = Tensor::input(dtype, in.batch(), in.time(), channels);
    array.fill([&] { return Value{random.uniform(-size, size), 0}; });
    return array;
  };
  const auto rows = [&](Index n) {
    Tensor array = Tensor::input(state_dtype(), 1, n, channels);
    array.fill([&] { return Value{random.uniform(-1, 1), 0}; });
    return array;
  };
  in.u = full(1);
  in.forget = full(spread);
  in.reset = full(spread);
  if (random.chance(0.7)) in.skip = full(1);
  if (random.chance(0.7)) in.bias_forget = rows(1);
  if (random.chance(0.7)) in.bias_reset = rows(1);
  if (random.chance(0.7)) in.c0 = rows(in.sequences());
  if (random.chance(0.8)) in.dh = full(1);
  if (!in.dh || random.chance(0.6)) in.dfinal = rows(in.sequences());
  for (Index b = 0; b < in.batch(); ++b) {
    for (Index t = 0; t < in.time(); ++t) {
      if (!in.plane.pads(b, t)) continue;
      for (Index d = 0; d < channels; ++d) {  // whatever lies in padding must not be seen
        for (Tensor* array : {&in.u, &in.forget, &in.reset, &in.skip, &in.dh}) {
          if (*array) array->set(b, t, d, nan_value());
        }
      }
    }
  }
  return in;
}

// --- running
// ---------------------------------------------------------------------------------------

const Layout& some_layout(Random* random) { return random ? random->pick(kLayouts) : kPlain; }
Index some_lead(Random* random) { return random ? random->integer(0, 3) : 0; }

// With `random`, arrays lie in layouts of their own, and backward writes only some of its outputs
// if `all` is not set.
Outputs run(const Inputs& given, Random* random, bool all = true) {
  Inputs in = given;
  if (random != nullptr) {
    for (Tensor* array : {&in.u, &in.forget, &in.reset, &in.skip, &in.bias_forget, &in.bias_reset,
                          &in.c0, &in.dh, &in.dfinal}) {
      *array = array->relaid(some_layout(random), some_lead(random));
    }
  }
  Random plane_random(7);
  const PlaneArrays plane(in.plane, random ? *random : plane_random);
  const DType accumulation = accumulation_dtype(in.dtype);
  const auto output = [&](DType dtype, Index n0, Index n1) {
    return Tensor::output(dtype, n0, n1, in.channels, some_layout(random), some_lead(random));
  };
  Outputs out;
  out.h = output(in.dtype, in.batch(), in.time());
  out.final_state = output(accumulation, 1, in.sequences());
  out.checkpoints = Tensor::output(
      accumulation, 1, checkpoint_rows(in.batch(), in.time(), in.sequences()), in.channels);
  SruForward call;
  call.u = in.u.in<3>();
  call.forget = in.forget.in<3>();
  call.reset = in.reset.in<3>();
  call.skip = in.skip.in<3>();
  call.bias_forget = in.bias_forget.in<1>();
  call.bias_reset = in.bias_reset.in<1>();
  call.c0 = in.c0.in<2>();
  call.h = out.h.out<3>();
  call.final_state = out.final_state.out<2>();
  call.checkpoints = out.checkpoints.out<2>();
  call.sequences = plane.view;
  call.activation = in.activation;
  if (!all) {
    out.final_state = Tensor();
    call.final_state = {};
  }
  out.forward_along_time = time_is_contiguous(call.h);
  Lent lent(sru_forward_workspace_bytes(call, kTarget));
  lent.run(sru_forward, call);
  CHECK_FINE(out.h.strays("h"));
  CHECK_FINE(out.final_state.strays("final_state"));
  CHECK_FINE(out.checkpoints.strays("checkpoints"));

  const auto wanted = [&] { return all || random->chance(0.5); };
  if (wanted()) out.du = output(in.dtype, in.batch(), in.time());
  if (wanted()) out.dforget = output(in.dtype, in.batch(), in.time());
  if (wanted()) out.dreset = output(in.dtype, in.batch(), in.time());
  if (wanted()) out.dskip = output(in.dtype, in.batch(), in.time());
  if (wanted())
    out.dbias_forget = output(in.bias_forget ? in.bias_forget.dtype : accumulation, 1, 1);
  if (wanted()) out.dbias_reset = output(in.bias_reset ? in.bias_reset.dtype : accumulation, 1, 1);
  if (wanted()) out.dc0 = output(in.c0 ? in.c0.dtype : accumulation, 1, in.sequences());
  SruBackward back;
  back.u = call.u;
  back.forget = call.forget;
  back.reset = call.reset;
  back.skip = call.skip;
  back.bias_forget = call.bias_forget;
  back.bias_reset = call.bias_reset;
  back.c0 = call.c0;
  back.checkpoints = call.checkpoints;
  back.dh = in.dh.in<3>();
  back.dfinal = in.dfinal.in<2>();
  back.du = out.du.out<3>();
  back.dforget = out.dforget.out<3>();
  back.dreset = out.dreset.out<3>();
  back.dskip = out.dskip.out<3>();
  back.dbias_forget = out.dbias_forget.out<1>();
  back.dbias_reset = out.dbias_reset.out<1>();
  back.dc0 = out.dc0.out<2>();
  back.sequences = plane.view;
  back.activation = in.activation;
  out.backward_along_time = time_is_contiguous(back.dh ? back.dh : back.u);
  Lent lent_back(sru_backward_workspace_bytes(back, kTarget));
  lent_back.run(sru_backward, back);
  for (const Tensor* array : {&out.du, &out.dforget, &out.dreset, &out.dskip, &out.dbias_forget,
                              &out.dbias_reset, &out.dc0}) {
    CHECK_FINE(array->strays("a gradient"));
  }
  return out;
}

// --- the serial loop
// -------------------------------------------------------------------------------

struct Expected {
  std::vector<Value> value;
  std::vector<double> bound;
  explicit Expected(Index count)
      : value(static_cast<std::size_t>(count)), bound(static_cast<std::size_t>(count)) {}
  void add(Index i, double v, double e) {
    value[static_cast<std::size_t>(i)].re += v;
    // The loop's own rounding counts: there may be many to add.
    bound[static_cast<std::size_t>(i)] += e + 0x1p-53 * abs(value[static_cast<std::size_t>(i)]);
  }
};

double sigmoid_of(double v) {
  return v < 0 ? std::exp(v) / (1 + std::exp(v)) : 1 / (1 + std::exp(-v));
}

// A number and how far rounding may have taken the computed one from it.
struct Near {
  double v = 0, e = 0;
};

// Gates, states and outputs of a step, from the state before it.
struct Step {
  double u, s, f, r, fe, re;  // fe, re: bounds on the gates' errors
  Near c, y;
  double h, he;
};

void check(const Inputs& in, const Outputs& out) {
  const Index D = in.channels, T = in.time();
  const double k = 8 * epsilon_of(in.dtype);
  const auto bias = [](const Tensor& array, Index d) { return array ? array.get(0, 0, d).re : 0; };
  const Index full = in.batch() * T * D, states = in.sequences() * D;
  Expected h(full), final_state(states), du(full), df(full), dr(full), ds(full), dbf(D), dbr(D),
      dc0(states);
  std::vector<Step> steps(static_cast<std::size_t>(T));
  for (Index n = 0; n < in.sequences(); ++n) {
    for (Index d = 0; d < D; ++d) {
      const double start = in.c0 ? in.c0.get(0, n, d).re : 0;
      Near c = {start, 0};
      double size = std::fabs(start);  // of the terms of c, which its rounding errors go by
      in.plane.each_step(n, false, [&](Index b, Index t) {
        if (in.plane.resets(b, t)) c = {0, 0}, size = 0;
        Step& p = steps[static_cast<std::size_t>(t)];
        p.u = in.u.get(b, t, d).re;
        p.s = in.skip ? in.skip.get(b, t, d).re : 0;
        p.f = sigmoid_of(in.forget.get(b, t, d).re + bias(in.bias_forget, d));
        p.r = sigmoid_of(in.reset.get(b, t, d).re + bias(in.bias_reset, d));
        p.fe = k * p.f;  // the argument's own rounding is far below this: v sigmoid'(v) < 0.3
        p.re = k * p.r;
        const double input = (1 - p.f) * p.u, input_e = (p.fe + k) * std::fabs(p.u);
        c.e = p.f * c.e + p.fe * size + input_e;
        c.v = p.f * c.v + input;
        size = p.f * size + std::fabs(input);
        c.e += k * size;
        p.c = c;
        p.y = c;
        if (in.activation == Activation::tanh) p.y = {std::tanh(c.v), c.e + k};
        if (in.activation == Activation::relu) p.y.v = std::max(c.v, 0.0);
        p.h = p.r * p.y.v + (1 - p.r) * p.s;
        p.he =
            p.re * std::fabs(p.y.v - p.s) + p.r * p.y.e + k * (std::fabs(p.y.v) + std::fabs(p.s));
        h.add((b * T + t) * D + d, p.h, p.he);
      });
      final_state.add(n * D + d, c.v, c.e);

      const double tail = in.dfinal ? in.dfinal.get(0, n, d).re : 0;
      Near g = {tail, 0};  // flows into the step from later ones
      double g_size = std::fabs(tail);
      const Plane::Span span = in.plane.span(n);
      in.plane.each_step(n, true, [&](Index b, Index t) {
        const Step& p = steps[static_cast<std::size_t>(t)];
        const bool cut = in.plane.resets(b, t);
        const bool first = in.plane.reverse ? t == span.end - 1 : t == span.begin;
        Near before;
        if (!cut) {
          before = first ? Near{start, 0}
                         : steps[static_cast<std::size_t>(in.plane.reverse ? t + 1 : t - 1)].c;
        }
        const double dh = in.dh ? in.dh.get(b, t, d).re : 0, dh_size = std::fabs(dh);
        Near slope = {1, 0};
        if (in.activation == Activation::tanh) slope = {1 - p.y.v * p.y.v, 2 * p.y.e + k};
        if (in.activation == Activation::relu) {
          slope = {p.c.v > 0 ? 1.0 : 0.0, std::fabs(p.c.v) <= p.c.e ? 1.0 : 0.0};
        }
        const double local = dh * p.r * slope.v;
        g.v += local;
        g_size += std::fabs(local);
        g.e += dh_size * (p.re * slope.v + p.r * slope.e) + k * g_size;
        const double size_of_g = std::fabs(g.v) + g.e;
        const Index i = (b * T + t) * D + d;
        du.add(i, (1 - p.f) * g.v, (1 - p.f) * g.e + (p.fe + k) * size_of_g);
        const double f2 = p.f * (1 - p.f), f2e = p.fe + k * p.f;
        const double gap = before.v - p.u,
                     gap_e = before.e + k * (std::fabs(before.v) + std::fabs(p.u));
        const double dfe =
            f2e * std::fabs(gap) * size_of_g + f2 * (gap_e * size_of_g + std::fabs(gap) * g.e);
        df.add(i, f2 * gap * g.v, dfe);
        dbf.add(d, f2 * gap * g.v, dfe + 8 * k * std::fabs(f2 * gap * g.v));
        const double r2 = p.r * (1 - p.r), r2e = p.re + k * p.r;
        const double rise = p.y.v - p.s, rise_e = p.y.e + k * (std::fabs(p.y.v) + std::fabs(p.s));
        const double dre = (r2e * std::fabs(rise) + r2 * rise_e) * dh_size;
        dr.add(i, r2 * rise * dh, dre);
        dbr.add(d, r2 * rise * dh, dre + 8 * k * std::fabs(r2 * rise * dh));
        ds.add(i, (1 - p.r) * dh, (p.re + k) * dh_size);
        g.e = p.f * g.e + p.fe * g_size;
        g.v *= p.f;
        g_size *= p.f;
        g.e += k * g_size;
        if (cut) g = {0, 0}, g_size = 0;
      });
      dc0.add(n * D + d, g.v, g.e);
    }
  }
  CHECK_FINE(out.h.compare(h.value, h.bound, "h"));
  CHECK_FINE(out.final_state.compare(final_state.value, final_state.bound, "final_state"));
  CHECK_FINE(out.du.compare(du.value, du.bound, "du"));
  CHECK_FINE(out.dforget.compare(df.value, df.bound, "dforget"));
  CHECK_FINE(out.dreset.compare(dr.value, dr.bound, "dreset"));
  CHECK_FINE(out.dskip.compare(ds.value, ds.bound, "dskip"));
  CHECK_FINE(out.dbias_forget.compare(dbf.value, dbf.bound, "dbias_forget"));
  CHECK_FINE(out.dbias_reset.compare(dbr.value, dbr.bound, "dbias_reset"));
  CHECK_FINE(out.dc0.compare(dc0.value, dc0.bound, "dc0"));
}

// --- the same bits
// ---------------------------------------------------------------------------------

// The same bits, wherever both ran the same way.
void check_same(const Outputs& given, const Outputs& expected) {
  if (given.forward_along_time != expected.forward_along_time ||
      given.backward_along_time != expected.backward_along_time) {
    return;
  }
  const auto same = [](const Tensor& p, const Tensor& q, const char* name) {
    if (p) CHECK_FINE(p.difference(q, name));
  };
  same(given.h, expected.h, "h");
  same(given.final_state, expected.final_state, "final_state");
  same(given.du, expected.du, "du");
  same(given.dforget, expected.dforget, "dforget");
  same(given.dreset, expected.dreset, "dreset");
  same(given.dskip, expected.dskip, "dskip");
  same(given.dbias_forget, expected.dbias_forget, "dbias_forget");
  same(given.dbias_reset, expected.dbias_reset, "dbias_reset");
  same(given.dc0, expected.dc0, "dc0");
}

void check_alone(const Inputs& in, const Outputs& whole, Index n, Index d0, Index d1) {
  const Plane::Span s = in.plane.span(n);
  if (s.begin == s.end && in.time() == 1)
    return;  // slices of that axis would be taken for broadcast
  const Note note("sequence " + std::to_string(n) + ", channels " + std::to_string(d0) + " to " +
                  std::to_string(d1) + " alone");
  Inputs alone;
  alone.plane.time = s.end - s.begin;
  alone.plane.reverse = in.plane.reverse;
  for (Index t = s.begin; t < s.end && !in.plane.reset.empty(); ++t) {
    alone.plane.reset.push_back(in.plane.resets(s.row, t) ? 1 : 0);
  }
  alone.channels = d1 - d0;
  alone.dtype = in.dtype;
  alone.activation = in.activation;
  const auto part = [&](const Tensor& array) {
    return array.slice(s.row, s.row + 1, s.begin, s.end, d0, d1);
  };
  const auto state = [&](const Tensor& array) { return array.slice(0, 1, n, n + 1, d0, d1); };
  const auto vector = [&](const Tensor& array) { return array.slice(0, 1, 0, 1, d0, d1); };
  alone.u = part(in.u);
  alone.forget = part(in.forget);
  alone.reset = part(in.reset);
  alone.skip = part(in.skip);
  alone.dh = part(in.dh);
  alone.bias_forget = vector(in.bias_forget);
  alone.bias_reset = vector(in.bias_reset);
  alone.c0 = state(in.c0);
  alone.dfinal = state(in.dfinal);
  const Outputs out = run(alone, nullptr);
  CHECK_FINE(out.h.difference(part(whole.h), "h"));
  CHECK_FINE(out.final_state.difference(state(whole.final_state), "final_state"));
  CHECK_FINE(out.du.difference(part(whole.du), "du"));
  CHECK_FINE(out.dforget.difference(part(whole.dforget), "dforget"));
  CHECK_FINE(out.dreset.difference(part(whole.dreset), "dreset"));
  CHECK_FINE(out.dskip.difference(part(whole.dskip), "dskip"));
  CHECK_FINE(out.dc0.difference(state(whole.dc0), "dc0"));
  if (in.sequences() == 1) {  // else the biases' gradients have more in them
    CHECK_FINE(out.dbias_forget.difference(vector(whole.dbias_forget), "dbias_forget"));
    CHECK_FINE(out.dbias_reset.difference(vector(whole.dbias_reset), "dbias_reset"));
  }
}

void check_all(const Inputs& in, Random& random, const std::vector<int>& threads) {
  set_num_threads(1);
  const Outputs base = run(in, nullptr);
  check(in, base);
  {
    const Note note("other layouts");
    const Outputs out = run(in, &random);
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

}  // namespace

CASE(shapes) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  int k = 0;
  for (const Index time : {1, 31, 32, 33, 64, 65, 1000, 4097}) {
    for (const Index channels : {1, 2, 4, 7, 8, 16, 17, 33, 64, 70}) {
      if (time * channels > 150000) continue;
      const Index batch = k % 2 == 0 ? 1 : random.integer(1, 3);
      const Inputs in =
          make_inputs(random, kReals[k % 4], channels, random_plane(random, batch, time));
      const std::string& isa = isas[static_cast<std::size_t>(k / 2) % isas.size()];
      set_cpu_isa(isa.c_str());
      const Note note(in.text() + " " + isa);
      check_all(in, random, time > 1000 ? std::vector<int>{2, 3, 8} : std::vector<int>{3});
      ++k;
    }
  }
}

CASE(long_sequences) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  int k = 0;
  for (const Index channels : {1, 2, 6, 9}) {
    Plane plane;
    plane.time = k % 2 == 0 ? 65500 : 70001;
    plane.reverse = k % 2 == 1;
    const Inputs in = make_inputs(random, k % 2 == 0 ? DType::f32 : DType::f64, channels,
                                  k < 2 ? plane : random_plane(random, 1, plane.time));
    const std::string& isa = isas[static_cast<std::size_t>(k) % isas.size()];
    set_cpu_isa(isa.c_str());
    const Note note(in.text() + " " + isa);
    set_num_threads(1);
    const Outputs base = run(in, nullptr);
    check(in, base);
    for (int threads : {2, 3, 8}) {
      const Note also(std::to_string(threads) + " threads");
      set_num_threads(threads);
      check_same(run(in, threads == 2 ? nullptr : &random), base);
    }
    ++k;
  }
}

CASE(empty_extents) {
  Random random;
  for (int k = 0; k < 40; ++k) {
    Plane plane;
    plane.batch = random.integer(0, 2);
    plane.time = random.integer(0, 2);
    const Index channels = random.integer(0, 2);
    if (plane.batch * plane.time * channels > 0) continue;
    if (plane.batch == 1 && plane.time == 0) {
      plane.offsets.assign(static_cast<std::size_t>(random.integer(1, 3)), 0);
    }
    const Inputs in = make_inputs(random, random.pick(kReals), channels, plane);
    const Note note(in.text());
    check(in, run(in, &random));
  }
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
    const Inputs in = make_inputs(random, DType::f64, 3, plane);
    const Note note(in.text());
    check(in, run(in, nullptr));  // backward starts every leaf from its checkpoint
  }
}

// A state that isn't finite stays in its channel, and a reset ends it.
CASE(specials_stay_in_their_channel) {
  const Settings settings;
  Random random;
  for (const Index channels : {1, 5, 20}) {
    Plane plane;
    plane.time = 3000;
    plane.reset.resize(3000);
    plane.reset[2000] = 1;
    Inputs in = make_inputs(random, DType::f32, channels, plane);
    in.activation = Activation::identity;
    if (!in.dh) in.dh = in.u;
    const Outputs clean = run(in, nullptr);
    const Index channel = channels / 2;
    in.u.set(0, 700, channel, {std::numeric_limits<double>::infinity(), 0});
    for (int threads : {1, 3}) {
      set_num_threads(threads);
      const Outputs out = run(in, nullptr);
      CHECK(!std::isfinite(out.h.get(0, 701, channel).re));
      const Note note(in.text());
      const auto after = [&](const Tensor& array) {
        return array.slice(0, 1, 2000, 3000, 0, channels);
      };
      CHECK_FINE(after(out.h).difference(after(clean.h), "h"));
      CHECK_FINE(after(out.du).difference(after(clean.du), "du"));
      for (Index d = 0; d < channels; ++d) {
        if (d == channel) continue;
        const auto one = [&](const Tensor& array) { return array.slice(0, 1, 0, 3000, d, d + 1); };
        CHECK_FINE(one(out.h).difference(one(clean.h), "h"));
        CHECK_FINE(one(out.dforget).difference(one(clean.dforget), "dforget"));
      }
    }
  }
}

TEST_MAIN()
