// SPDX-License-Identifier: Apache-2.0
// The scan and its gradients against serial loops in double precision, over shapes, dtypes,
// layouts, sequences, threads and instruction sets; and the same bits wherever the same bits are
// promised.
#include <algorithm>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "arrays.hpp"

using namespace test;
using namespace scanrnn;

namespace {

// What a call reads. `h` is there once forward has run.
struct Inputs {
  Plane plane;
  Index channels = 1;
  DType dtype = DType::f32;
  bool conjugate = true;
  Tensor a, x, h0, dh, dfinal, h;

  Index batch() const { return plane.batch; }
  Index time() const { return plane.time; }
  Index sequences() const { return plane.sequences(); }

  std::string text() const {
    std::string s = "T=" + std::to_string(time()) + " D=" + std::to_string(channels) +
                    " B=" + std::to_string(batch()) + " " + name_of(dtype) + " a=(";
    for (Index extent : a.shape) s += std::to_string(extent) + ",";
    return s + ")" + (h0 ? std::string(" h0 ") + name_of(h0.dtype) : "") + (dh ? " dh" : "") +
           (dfinal ? std::string(" dfinal ") + name_of(dfinal.dtype) : "") + plane.text();
  }
};

struct Outputs {
  Tensor h, final_state;  // forward
  Tensor da, dx, dh0;     // backward
  bool forward_along_time = false, backward_along_time = false;
};

// Which of a call's outputs are asked for.
struct Wanted {
  bool final_state = true, da = true, dx = true, dh0 = true;
};

Value random_value(Random& random, DType dtype, double low, double high) {
  const double size = random.uniform(low, high);
  if (!is_complex(dtype)) return {random.chance(0.2) ? -size : size, 0};
  const double angle = random.uniform(0, 6.2831853);
  return {size * std::cos(angle), size * std::sin(angle)};
}

struct Options {
  Index batch = 1, time = 1, channels = 1;
  DType dtype = DType::f32;
  int broadcast = 0;  // bit i: axis i of a has size 1
  double least_gate = 0.3, greatest_gate = 1.0;
};

Inputs make_inputs(Random& random, const Options& o, Plane plane) {
  Inputs in;
  in.plane = std::move(plane);
  in.channels = o.channels;
  in.dtype = o.dtype;
  in.conjugate = random.chance(0.5);
  const auto state_dtype = [&] {
    return random.chance(0.5) ? o.dtype : accumulation_dtype(o.dtype);
  };
  const auto number = [&] { return random_value(random, o.dtype, 0, 1); };
  in.a = Tensor::input(o.dtype, o.broadcast & 1 ? 1 : o.batch, o.broadcast & 2 ? 1 : o.time,
                       o.broadcast & 4 ? 1 : o.channels);
  in.a.fill([&] {
    if (random.chance(0.02)) return Value{};
    return random_value(random, o.dtype, o.least_gate, o.greatest_gate);
  });
  in.x = Tensor::input(o.dtype, o.batch, o.time, o.channels);
  in.x.fill(number);
  if (random.chance(0.7)) {
    in.h0 = Tensor::input(state_dtype(), 1, in.sequences(), o.channels);
    in.h0.fill(number);
  }
  if (random.chance(0.8)) {
    in.dh = Tensor::input(o.dtype, o.batch, o.time, o.channels);
    in.dh.fill(number);
  }
  if (!in.dh || random.chance(0.6)) {
    in.dfinal = Tensor::input(state_dtype(), 1, in.sequences(), o.channels);
    in.dfinal.fill(number);
  }
  // Whatever lies in padding must not be seen.
  for (Index b = 0; b < o.batch; ++b) {
    for (Index t = 0; t < o.time; ++t) {
      if (!in.plane.pads(b, t)) continue;
      for (Index d = 0; d < o.channels; ++d) {
        in.x.set(b, t, d, nan_value());
        if (o.broadcast == 0) in.a.set(b, t, d, nan_value());
        if (in.dh) in.dh.set(b, t, d, nan_value());
      }
    }
  }
  return in;
}

// --- running
// ---------------------------------------------------------------------------------------

const Layout& some_layout(Random* random) { return random ? random->pick(kLayouts) : kPlain; }
Index some_lead(Random* random) { return random ? random->integer(0, 3) : 0; }

// With `random`, every array lies in a layout of its own.
Inputs relaid(const Inputs& in, Random* random) {
  if (random == nullptr) return in;
  Inputs copy = in;
  for (Tensor* array : {&copy.a, &copy.x, &copy.h0, &copy.dh, &copy.dfinal, &copy.h}) {
    *array = array->relaid(some_layout(random), some_lead(random));
  }
  return copy;
}

void run_forward(const Inputs& given, Outputs& out, Random* random, Wanted wanted = {}) {
  const Inputs in = relaid(given, random);
  Random plane_random(7);
  const PlaneArrays plane(in.plane, random ? *random : plane_random);
  out.h = Tensor::output(in.dtype, in.batch(), in.time(), in.channels, some_layout(random),
                         some_lead(random));
  if (wanted.final_state) {
    out.final_state = Tensor::output(accumulation_dtype(in.dtype), 1, in.sequences(), in.channels,
                                     some_layout(random), some_lead(random));
  }
  ScanForward call;
  call.a = in.a.in<3>();
  call.x = in.x.in<3>();
  call.h0 = in.h0.in<2>();
  call.h = out.h.out<3>();
  call.final_state = out.final_state.out<2>();
  call.sequences = plane.view;
  out.forward_along_time = time_is_contiguous(call.h);
  Lent lent(scan_forward_workspace_bytes(call, kTarget));
  lent.run(scan_forward, call);
  CHECK_FINE(out.h.strays("h"));
  CHECK_FINE(out.final_state.strays("final_state"));
}

void run_backward(const Inputs& given, Outputs& out, Random* random, Wanted wanted = {}) {
  const Inputs in = relaid(given, random);
  Random plane_random(7);
  const PlaneArrays plane(in.plane, random ? *random : plane_random);
  if (wanted.da) {
    out.da = Tensor::output(in.dtype, in.a.shape[0], in.a.shape[1], in.a.shape[2],
                            some_layout(random), some_lead(random));
  }
  if (wanted.dx) {
    out.dx = Tensor::output(in.dtype, in.batch(), in.time(), in.channels, some_layout(random),
                            some_lead(random));
  }
  if (wanted.dh0) {
    const DType type = in.h0 ? in.h0.dtype : accumulation_dtype(in.dtype);
    out.dh0 = Tensor::output(type, 1, in.sequences(), in.channels, some_layout(random),
                             some_lead(random));
  }
  ScanBackward call;
  call.a = in.a.in<3>();
  call.h = in.h.in<3>();
  call.h0 = in.h0.in<2>();
  call.dh = in.dh.in<3>();
  call.dfinal = in.dfinal.in<2>();
  call.da = out.da.out<3>();
  call.dx = out.dx.out<3>();
  call.dh0 = out.dh0.out<2>();
  call.sequences = plane.view;
  call.conjugate = in.conjugate;
  out.backward_along_time = time_is_contiguous(call.dh ? call.dh : call.h);
  Lent lent(scan_backward_workspace_bytes(call, kTarget));
  lent.run(scan_backward, call);
  CHECK_FINE(out.da.strays("da"));
  CHECK_FINE(out.dx.strays("dx"));
  CHECK_FINE(out.dh0.strays("dh0"));
}

Outputs run(const Inputs& in, Random* random, Wanted wanted = {}) {
  Outputs out;
  run_forward(in, out, random, wanted);
  Inputs with_h = in;
  with_h.h = in.h ? in.h : out.h.relaid(kPlain, 0);
  run_backward(with_h, out, random, wanted);
  return out;
}

// --- the serial loops
// ------------------------------------------------------------------------------

// Values in the order of indices, and how far rounding may take a result from each.
struct Expected {
  std::vector<Value> value;
  std::vector<double> bound;
  explicit Expected(Index count)
      : value(static_cast<std::size_t>(count)), bound(static_cast<std::size_t>(count)) {}
  void set(Index i, Value v, double e) {
    value[static_cast<std::size_t>(i)] = v;
    bound[static_cast<std::size_t>(i)] = e;
  }
  void add(Index i, Value v, double e) {
    const Value total = value[static_cast<std::size_t>(i)] + v;
    // The loop's own rounding counts: there may be many to add.
    set(i, total, bound[static_cast<std::size_t>(i)] + e + 0x1p-53 * abs(total));
  }
};

// A sum of products along the recurrence: its value, the sum of magnitudes, and an error bound.
// Every product on the way from a step to a later one is rounded, one step after another or in
// merges.
struct Tracked {
  double epsilon, tiny;
  Value v;
  double size = 0, error = 0;
  explicit Tracked(DType dtype)
      : epsilon(epsilon_of(dtype) * (is_complex(dtype) ? 12 : 4)),
        tiny(epsilon_of(dtype) < 0x1p-30 ? 0x1p-1066 : 0x1p-141) {}  // near the subnormal numbers
  void multiply(Value a) {
    v = a * v;
    size *= abs(a);
    error = error * abs(a) + epsilon * size + tiny;
  }
  void add(Value x) {
    v = v + x;
    size += abs(x);
    error += epsilon * size;
  }
};

// Each sequence ends in the state that was written for its last step.
void check_ends(const Inputs& in, const Outputs& out) {
  if (!out.final_state || accumulation_dtype(in.dtype) != in.dtype) return;
  Index wrong = 0;
  for (Index n = 0; n < in.sequences(); ++n) {
    Index row = -1, last = 0;
    in.plane.each_step(n, false, [&](Index b, Index t) { row = b, last = t; });
    for (Index d = 0; row >= 0 && d < in.channels; ++d) {
      const Value given = out.final_state.get(0, n, d), expected = out.h.get(row, last, d);
      wrong += given.re != expected.re || given.im != expected.im;
    }
  }
  CHECK_EQUAL(wrong, 0);
}

void check_forward(const Inputs& in, const Outputs& out) {
  check_ends(in, out);
  const Index D = in.channels, T = in.time();
  Expected h(in.batch() * T * D), last(in.sequences() * D);
  for (Index n = 0; n < in.sequences(); ++n) {
    for (Index d = 0; d < D; ++d) {
      Tracked c(in.dtype);
      if (in.h0) c.add(in.h0.get(0, n, d));
      in.plane.each_step(n, false, [&](Index b, Index t) {
        if (in.plane.resets(b, t)) c = Tracked(in.dtype);
        c.multiply(in.a.get(b, t, d));
        c.add(in.x.get(b, t, d));
        h.set((b * T + t) * D + d, c.v, c.error);
      });
      last.set(n * D + d, c.v, c.error);
    }
  }
  CHECK_FINE(out.h.compare(h.value, h.bound, "h"));
  if (out.final_state) CHECK_FINE(out.final_state.compare(last.value, last.bound, "final_state"));
}

// The gradients that go with the states that forward gave.
void check_backward(const Inputs& in, const Tensor& h, const Outputs& out) {
  const Index D = in.channels, T = in.time();
  const auto turn = [&](Value v) { return in.conjugate ? conj(v) : v; };
  const Index ab = in.a.shape[0], at = in.a.shape[1], ad = in.a.shape[2];
  Expected da(ab * at * ad), dx(in.batch() * T * D), dh0(in.sequences() * D);
  for (Index n = 0; n < in.sequences(); ++n) {
    const Plane::Span span = in.plane.span(n);
    for (Index d = 0; d < D; ++d) {
      Tracked g(in.dtype);
      if (in.dfinal) g.add(in.dfinal.get(0, n, d));
      in.plane.each_step(n, true, [&](Index b, Index t) {
        if (in.dh) g.add(in.dh.get(b, t, d));
        dx.set((b * T + t) * D + d, g.v, g.error);
        const bool first = in.plane.reverse ? t == span.end - 1 : t == span.begin;
        Value before;
        if (in.plane.resets(b, t)) {
        } else if (!first) {
          before = h.get(b, in.plane.reverse ? t + 1 : t - 1, d);
        } else if (in.h0) {
          before = in.h0.get(0, n, d);
        }
        const Index i = ((ab == 1 ? 0 : b) * at + (at == 1 ? 0 : t)) * ad + (ad == 1 ? 0 : d);
        // Where many are added up, every one is rounded along the way: some 32 times in its leaf,
        // and once at each level above.
        da.add(i, g.v * turn(before), abs(before) * (g.error + 16 * g.epsilon * g.size));
        if (in.plane.resets(b, t)) {
          g = Tracked(in.dtype);
        } else {
          g.multiply(turn(in.a.get(b, t, d)));
        }
      });
      dh0.set(n * D + d, g.v, g.error);
    }
  }
  if (out.da) CHECK_FINE(out.da.compare(da.value, da.bound, "da"));
  if (out.dx) CHECK_FINE(out.dx.compare(dx.value, dx.bound, "dx"));
  if (out.dh0) CHECK_FINE(out.dh0.compare(dh0.value, dh0.bound, "dh0"));
}

// --- the same bits
// ---------------------------------------------------------------------------------

// The same bits, wherever both ran the same way.
void check_same(const Outputs& given, const Outputs& expected) {
  if (given.forward_along_time == expected.forward_along_time) {
    if (given.h) CHECK_FINE(given.h.difference(expected.h, "h"));
    if (given.final_state) {
      CHECK_FINE(given.final_state.difference(expected.final_state, "final_state"));
    }
  }
  if (given.backward_along_time != expected.backward_along_time ||
      given.forward_along_time != expected.forward_along_time) {
    return;
  }
  if (given.da) CHECK_FINE(given.da.difference(expected.da, "da"));
  if (given.dx) CHECK_FINE(given.dx.difference(expected.dx, "dx"));
  if (given.dh0) CHECK_FINE(given.dh0.difference(expected.dh0, "dh0"));
}

// Sequence n and channels [d0, d1) on their own give what they gave among the others.
void check_alone(const Inputs& in, const Outputs& whole, Index n, Index d0, Index d1) {
  const Note note("sequence " + std::to_string(n) + ", channels " + std::to_string(d0) + " to " +
                  std::to_string(d1) + " alone");
  const Plane::Span s = in.plane.span(n);
  if (s.begin == s.end && in.time() == 1)
    return;  // slices of that axis would be taken for broadcast
  Inputs alone;
  alone.plane.batch = 1;
  alone.plane.time = s.end - s.begin;
  alone.plane.reverse = in.plane.reverse;
  for (Index t = s.begin; t < s.end && !in.plane.reset.empty(); ++t) {
    alone.plane.reset.push_back(in.plane.resets(s.row, t) ? 1 : 0);
  }
  alone.channels = d1 - d0;
  alone.dtype = in.dtype;
  alone.conjugate = in.conjugate;
  const auto part = [&](const Tensor& array) {
    return array.slice(s.row, s.row + 1, s.begin, s.end, d0, d1);
  };
  const auto state = [&](const Tensor& array) { return array.slice(0, 1, n, n + 1, d0, d1); };
  alone.a = part(in.a);
  alone.x = part(in.x);
  alone.dh = part(in.dh);
  alone.h0 = state(in.h0);
  alone.dfinal = state(in.dfinal);
  Outputs out = run(alone, nullptr);
  CHECK_FINE(out.h.difference(part(whole.h), "h"));
  CHECK_FINE(out.final_state.difference(state(whole.final_state), "final_state"));
  CHECK_FINE(out.dx.difference(part(whole.dx), "dx"));
  CHECK_FINE(out.dh0.difference(state(whole.dh0), "dh0"));
  // A gradient that is summed over batch or channels, or over packed sequences, has more in it.
  const bool summed = (in.a.shape[0] == 1 && in.batch() > 1) ||
                      (in.a.shape[1] == 1 && !in.plane.offsets.empty()) ||
                      (in.a.shape[2] == 1 && in.channels > 1);
  if (!summed && alone.time() > 0) CHECK_FINE(out.da.difference(part(whole.da), "da"));
}

// Everything about one set of inputs.
void check_all(const Inputs& in, Random& random, const std::vector<int>& threads) {
  set_num_threads(1);
  const Outputs base = run(in, nullptr);
  check_forward(in, base);
  check_backward(in, base.h, base);
  {
    const Note note("other layouts");
    const Outputs out = run(in, &random);
    check_forward(in, out);
    Inputs with_h = in;
    with_h.h = base.h;
    Outputs same_h;
    same_h.forward_along_time = base.forward_along_time;
    run_backward(with_h, same_h, &random);
    check_backward(in, base.h, same_h);
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
  const Wanted some[] = {{false, true, false, false},
                         {false, false, true, true},
                         {true, true, false, true},
                         {true, false, false, false}};
  check_same(run(in, &random, random.pick(some)), base);
}

constexpr Index kTimes[] = {1, 2, 31, 32, 33, 63, 64, 65, 1000, 4097};
constexpr Index kChannels[] = {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 47, 64, 70};

}  // namespace

CASE(shapes) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  int k = 0;
  for (Index time : kTimes) {
    for (Index channels : kChannels) {
      Options o;
      o.time = time;
      o.channels = channels;
      o.batch = k % 2 == 0 ? 1 : random.integer(1, 3);
      o.dtype = kFloats[k % 6];
      o.broadcast = k % 8;
      if (k % 5 == 0) o.least_gate = 0.97;
      const Inputs in = make_inputs(random, o, random_plane(random, o.batch, o.time));
      const std::string& isa = isas[static_cast<std::size_t>(k / 2) % isas.size()];
      set_cpu_isa(isa.c_str());
      const Note note(in.text() + " " + isa);
      check_all(in, random, time > 1000 ? std::vector<int>{2, 3, 8} : std::vector<int>{3});
      ++k;
    }
  }
}

CASE(broadcast_gates) {
  const Settings settings;
  Random random;
  for (int mask = 0; mask < 8; ++mask) {
    for (int k = 0; k < 6; ++k) {
      Options o;
      o.broadcast = mask;
      o.dtype = kFloats[k];
      o.batch = random.integer(2, 3);
      // Blocks, and channels that are summed over in several of them.
      o.channels = k % 3 == 0 ? 300 : random.integer(2, 20);
      o.time = random.integer(40, 300);
      const Inputs in = make_inputs(random, o, random_plane(random, o.batch, o.time));
      const Note note(in.text());
      check_all(in, random, {3});
    }
  }
}

CASE(long_sequences) {
  const Settings settings;
  Random random;
  const std::vector<std::string> isas = built_isas();
  struct {
    Index batch, channels;
    DType dtype;
    int broadcast;
    bool plain;
  } const rows[] = {
      {1, 1, DType::f32, 0, true},   {1, 1, DType::f64, 2, true},   {1, 2, DType::c64, 0, true},
      {1, 3, DType::f32, 6, false},  {1, 8, DType::bf16, 2, false}, {1, 8, DType::f32, 4, true},
      {2, 1, DType::f32, 7, false},  {1, 17, DType::f32, 0, false}, {3, 2, DType::f64, 1, false},
      {1, 5, DType::c128, 3, false},
  };
  int k = 0;
  for (const auto& row : rows) {
    Options o;
    o.time = k % 2 == 0 ? 70001 : 65500;
    o.batch = row.batch;
    o.channels = row.channels;
    o.dtype = row.dtype;
    o.broadcast = row.broadcast;
    o.least_gate = row.plain ? 0.9 : 0.3;
    Plane plane;
    plane.batch = o.batch;
    plane.time = o.time;
    plane.reverse = k % 3 == 1;
    const Inputs in =
        make_inputs(random, o, row.plain ? plane : random_plane(random, o.batch, o.time));
    const std::string& isa = isas[static_cast<std::size_t>(k) % isas.size()];
    set_cpu_isa(isa.c_str());
    const Note note(in.text() + " " + isa);
    set_num_threads(1);
    const Outputs base = run(in, nullptr);
    check_forward(in, base);
    check_backward(in, base.h, base);
    for (int threads : {2, 3, 8}) {
      const Note also(std::to_string(threads) + " threads");
      set_num_threads(threads);
      check_same(run(in, threads == 2 ? nullptr : &random), base);
    }
    ++k;
  }
}

// One long sequence among many short and empty ones, on several threads.
CASE(packed_lengths_differ) {
  const Settings settings;
  Random random;
  for (const bool reverse : {false, true}) {
    Options o;
    o.channels = 5;
    o.broadcast = 0;
    Plane plane;
    plane.reverse = reverse;
    plane.offsets = {0, 0, 1, 33, 33, 65, 30000, 30000, 30031};
    for (int i = 0; i < 40; ++i)
      plane.offsets.push_back(plane.offsets.back() + random.integer(0, 100));
    plane.offsets.push_back(plane.offsets.back());
    plane.time = plane.offsets.back();
    o.time = plane.time;
    const Inputs in = make_inputs(random, o, plane);
    const Note note(in.text());
    check_all(in, random, {2, 3, 8});
    const Outputs base = run(in, nullptr);
    for (Index n = 0; n < 12; ++n) check_alone(in, base, n, 0, o.channels);
  }
}

// Rows that are taken in pairs, of odd numbers of steps too.
CASE(long_rows) {
  const Settings settings;
  Random random;
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    for (const Index time : {31, 70}) {
      Options o;
      o.time = time;
      o.channels = time == 31 ? 4200 : 2100;
      o.dtype = time == 31 ? DType::f32 : DType::f64;
      const Inputs in = make_inputs(random, o, random_plane(random, o.batch, o.time));
      const Note note(in.text() + " " + isa);
      check_all(in, random, {3});
    }
  }
}

// Outputs from some size on are written past the caches: the same bits, aligned or not.
CASE(large_outputs) {
  const Settings settings;
  Random random;
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    Options o;
    o.time = 4200;
    o.channels = 256;
    Inputs in;
    Plane plane;
    plane.batch = 1;
    plane.time = o.time;
    in = make_inputs(random, o, plane);
    const Note note(in.text() + " " + isa);
    set_num_threads(1);
    const Outputs base = run(in, nullptr);
    for (Index d : {0, 100, 224}) check_alone(in, base, 0, d, d + 32);
    set_num_threads(3);
    for (Index lead = 0; lead < 4; ++lead) {  // storage is aligned to 16 bytes at least
      Outputs out;
      out.h = Tensor::output(o.dtype, 1, o.time, o.channels, kPlain, lead * 4);
      ScanForward call;
      call.a = in.a.in<3>();
      call.x = in.x.in<3>();
      call.h0 = in.h0.in<2>();
      call.h = out.h.out<3>();
      Lent lent(scan_forward_workspace_bytes(call, kTarget));
      lent.run(scan_forward, call);
      CHECK_FINE(out.h.strays("h"));
      CHECK_FINE(out.h.difference(base.h, "h"));
    }
  }
}

// Every 16-bit number comes through, and float states are rounded, as the scalar conversions have
// it.
CASE(halves_convert_alike_on_every_instruction_set) {
  const Settings settings;
  Random random;
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const Layout& layout : kLayouts) {
        const Note note(isa + " " + name_of(dtype) + " " + layout.name);
        Tensor a = Tensor::input(dtype, 1, 1, 1);
        a.set(0, 0, 0, {0, 0});
        Tensor x = Tensor::input(dtype, 1, 256, 256, layout);
        x.each([&](Index, Index t, Index d) {
          const Half bits = {static_cast<std::uint16_t>(t * 256 + d)};
          const float value = dtype == DType::f16 ? to_float(bits) : to_float(BFloat16{bits.bits});
          x.set(0, t, d, {value, 0});
        });
        Tensor h = Tensor::output(dtype, 1, 256, 256, layout);
        ScanForward call;
        call.a = a.in<3>();
        call.x = x.in<3>();
        call.h = h.out<3>();
        Lent lent(scan_forward_workspace_bytes(call, kTarget));
        lent.run(scan_forward, call);
        Index wrong = 0;
        h.each([&](Index i, Index t, Index d) {
          const double given = h.get(i, t, d).re, expected = x.get(i, t, d).re;
          const bool nan = t > 0 && !std::isfinite(h.get(i, t - 1, d).re);  // 0 * inf is passed on
          if (!(given == expected || (std::isnan(given) && (nan || std::isnan(expected))))) ++wrong;
        });
        CHECK_EQUAL(wrong, 0);
      }
      // h = round(1 h0 + 0)
      constexpr Index count = 50000;
      Tensor a = Tensor::input(dtype, 1, 1, 1), x = Tensor::input(dtype, 1, 1, count);
      a.set(0, 0, 0, {1, 0});
      x.fill([] { return Value{}; });
      Tensor h0 = Tensor::input(DType::f32, 1, 1, count);
      h0.fill([&] {
        const double exponent =
            dtype == DType::f16 ? random.uniform(-27, 18) : random.uniform(-150, 128.1);
        return Value{std::exp2(exponent) * (random.chance(0.5) ? 1 : -1), 0};
      });
      Tensor h = Tensor::output(dtype, 1, 1, count);
      ScanForward call;
      call.a = a.in<3>();
      call.x = x.in<3>();
      call.h0 = h0.in<2>();
      call.h = h.out<3>();
      Lent lent(scan_forward_workspace_bytes(call, kTarget));
      lent.run(scan_forward, call);
      Tensor expected = Tensor::input(dtype, 1, 1, count);
      expected.each(
          [&](Index i, Index t, Index d) { expected.set(i, t, d, {h0.get(i, t, d).re + 0.0, 0}); });
      CHECK_FINE(h.difference(expected, "h"));
    }
  }
}

CASE(empty_extents) {
  const Settings settings;
  Random random;
  for (int k = 0; k < 64; ++k) {
    Options o;
    o.dtype = random.pick(kFloats);
    o.batch = random.integer(0, 2);
    o.time = random.integer(0, 2);
    o.channels = random.integer(0, 2);
    o.broadcast = static_cast<int>(random.integer(0, 7));
    if (o.batch * o.time * o.channels > 0) continue;
    Plane plane;
    plane.batch = o.batch;
    plane.time = o.time;
    plane.reverse = random.chance(0.5);
    if (o.batch == 1 && o.time == 0)
      plane.offsets.assign(static_cast<std::size_t>(random.integer(1, 3)), 0);
    const Inputs in = make_inputs(random, o, plane);
    const Note note(in.text());
    const Outputs out = run(in, &random);
    check_forward(in, out);
    check_backward(in, out.h, out);
  }
}

// Inputs of the whole shape may repeat themselves in memory.
CASE(inputs_of_stride_zero) {
  Random random;
  for (int mask = 1; mask < 8; ++mask) {
    Options o;
    o.batch = 2;
    o.time = 150;
    o.channels = 20;
    o.broadcast = mask;
    Plane plane;
    plane.batch = o.batch;
    plane.time = o.time;
    Inputs in = make_inputs(random, o, plane);
    const Note note(in.text());
    Outputs expected, out;
    // x repeats as a does.
    Tensor x = in.a;
    in.x = Tensor::input(o.dtype, o.batch, o.time, o.channels);
    in.x.each([&](Index b, Index t, Index d) { in.x.set(b, t, d, x.get(b, t, d)); });
    run_forward(in, expected, nullptr);
    out.h = Tensor::output(o.dtype, o.batch, o.time, o.channels);
    const auto repeated = [&](const Tensor& array) {
      ConstArray<3> view = array.in<3>();
      for (int axis = 0; axis < 3; ++axis) {
        if (view.shape[axis] == 1) view.stride[axis] = 0;
        view.shape[axis] = in.x.shape[axis];
      }
      return view;
    };
    ScanForward call;
    call.a = repeated(in.a);
    call.x = repeated(x);
    call.h0 = in.h0.in<2>();
    call.h = out.h.out<3>();
    Lent lent(scan_forward_workspace_bytes(call, kTarget));
    lent.run(scan_forward, call);
    CHECK_FINE(out.h.difference(expected.h, "h"));
  }
}

#if defined(__linux__)
// Elements further apart than 32 bits count. Only the pages that are touched take memory.
CASE(offsets_past_2_to_the_31) {
  if (kOnGpu) skip("the array is not the device's");
  constexpr Index time = 6, channels = 3, far = (Index{1} << 29) + 1;
  constexpr std::size_t bytes = static_cast<std::size_t>(time * far) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) skip("no address space");
  float* const numbers = static_cast<float*>(memory);
  for (const Index sign : {1, -1}) {
    for (Index t = 0; t < time; ++t) {
      for (Index d = 0; d < channels; ++d) {
        numbers[t * far + d] = static_cast<float>(t + 1);           // x
        numbers[t * far + 10 + d] = static_cast<float>(t + d - 2);  // a
      }
    }
    const auto view = [&](Index offset) {
      float* first = numbers + offset + (sign < 0 ? (time - 1) * far : 0);
      return Array<3>{first, DType::f32, {1, time, channels}, {0, sign * far, 1}};
    };
    ScanForward call;
    call.x = view(0);
    call.a = view(10);
    call.h = view(20);
    Lent lent(scan_forward_workspace_bytes(call, kTarget));
    lent.run(scan_forward, call);
    for (Index d = 0; d < channels; ++d) {
      double state = 0;
      for (Index i = 0; i < time; ++i) {
        const Index t = sign > 0 ? i : time - 1 - i;
        state = static_cast<double>(t + d - 2) * state + static_cast<double>(t + 1);
        CHECK_EQUAL(static_cast<double>(numbers[t * far + 20 + d]), state);
      }
    }
  }
  munmap(memory, bytes);
}
#endif

CASE(a_zero_gate_forgets) {
  Inputs in;
  in.plane.time = 4;
  in.h0 = Tensor::input(DType::f32, 1, 1, 1);
  in.h0.set(0, 0, 0, {10, 0});
  in.a = Tensor::input(DType::f32, 1, 4, 1);
  in.x = Tensor::input(DType::f32, 1, 4, 1);
  in.dh = Tensor::input(DType::f32, 1, 4, 1);
  const double a[] = {0.5, 0, 2, -1}, h[] = {6, 2, 7, -3}, da[] = {10, 6, 0, 7},
               dx[] = {1, 1, 0, 1};
  for (Index t = 0; t < 4; ++t) {
    in.a.set(0, t, 0, {a[t], 0});
    in.x.set(0, t, 0, {static_cast<double>(t + 1), 0});
    in.dh.set(0, t, 0, {1, 0});
  }
  const Outputs out = run(in, nullptr);
  for (Index t = 0; t < 4; ++t) {
    CHECK_EQUAL(out.h.get(0, t, 0).re, h[t]);
    CHECK_EQUAL(out.da.get(0, t, 0).re, da[t]);
    CHECK_EQUAL(out.dx.get(0, t, 0).re, dx[t]);
  }
  CHECK_EQUAL(out.dh0.get(0, 0, 0).re, 0.5);
}

// Products of gates leave the range of the dtype at both ends; the states don't.
CASE(gains_underflow) {
  for (const double gate : {0.5, 1e-30, 1e-45}) {
    Inputs in;
    in.plane.time = 4096;
    in.a = Tensor::input(DType::f32, 1, 1, 1);
    in.a.fill([&] { return Value{gate, 0}; });
    in.x = Tensor::input(DType::f32, 1, 4096, 1);
    in.x.fill([] { return Value{1, 0}; });
    in.dh = in.x;
    const Outputs out = run(in, nullptr);
    check_forward(in, out);
    check_backward(in, out.h, out);
  }
}

namespace {

// A state of zero stays zero however large the product of the gates that it passes.
// Gates of `size`, each turned by `angle`, up to step `quiet`, then `later`; x is 0 until step 3000
// and 1 from there on. Then states are 0 and grow to 1 / (1 - later).
void check_zero_states(DType dtype, double size, double angle, Index quiet, double later) {
  const Settings settings;
  for (const Index channels : {1, 5, 40}) {
    Inputs in;
    in.plane.time = 5000;
    in.channels = channels;
    in.dtype = dtype;
    in.a = Tensor::input(dtype, 1, 5000, channels);
    in.x = Tensor::input(dtype, 1, 5000, channels);
    in.x.each([&](Index, Index t, Index d) {
      in.x.set(0, t, d, {t < 3000 ? 0.0 : 1.0, 0});
      in.a.set(0, t, d,
               t < quiet ? Value{size * std::cos(angle), size * std::sin(angle)} : Value{later, 0});
    });
    Expected h(5000 * channels);
    double state = 0;
    for (Index t = 0; t < 5000; ++t) {
      state = later * state + (t < 3000 ? 0 : 1);
      for (Index d = 0; d < channels; ++d) h.set(t * channels + d, {state, 0}, 1e-6);
    }
    const Note note(in.text());
    for (int threads : {1, 3}) {
      set_num_threads(threads);
      Outputs out;
      run_forward(in, out, nullptr);
      CHECK_FINE(out.h.compare(h.value, h.bound, "h"));
    }
  }
}

}  // namespace

CASE(gains_overflow_on_zero_states) {
  check_zero_states(DType::f32, 6e4, 0, 3000, 0.5);
  check_zero_states(DType::f64, 1e200, 0, 3000, 0.5);
  check_zero_states(DType::f16, 6e4, 0, 3000, 0.5);
  check_zero_states(DType::bf16, -1e30, 0, 3000, 0.5);
}

CASE(gains_overflow_before_a_zero_gate) {
  check_zero_states(DType::f32, 6e4, 0, 3000, 0);
  check_zero_states(DType::f32, 1e30, 0, 2990, 0);
}

CASE(complex_gains_overflow_on_zero_states) {
  check_zero_states(DType::c64, 1e30, 0, 3000, 0.5);
  check_zero_states(DType::c64, 1e30, 0.7, 3000, 0.5);
  check_zero_states(DType::c128, 1e200, 2.5, 3000, 0.5);
}

// NaN and infinity stay in the rows and channels that they came in.
CASE(specials_stay_in_their_row) {
  const Settings settings;
  Random random;
  for (const Index channels : {1, 2, 9, 33, 70}) {
    for (const double special : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      Options o;
      o.batch = 3;
      o.time = 3000;
      o.channels = channels;
      o.broadcast = channels == 9 ? 2 : 0;
      Plane plane;
      plane.batch = o.batch;
      plane.time = o.time;
      const Inputs clean = make_inputs(random, o, plane);
      const Outputs base = run(clean, nullptr);
      Inputs dirty = clean;
      const Index row = random.integer(0, 2), channel = random.integer(0, channels - 1);
      dirty.x.set(row, random.integer(0, 200), channel, {special, 0});
      if (dirty.dh) dirty.dh.set(row, random.integer(2700, 2999), channel, {special, 0});
      for (int threads : {1, 3}) {
        set_num_threads(threads);
        Outputs out = run(dirty, nullptr);
        Outputs copy = base;  // that row and channel may be anything
        for (Index t = 0; t < o.time; ++t) {
          for (Tensor* array : {&out.h, &out.dx, &out.da, &copy.h, &copy.dx, &copy.da}) {
            array->set(row, t, channel, {});
          }
        }
        for (Tensor* array : {&out.final_state, &out.dh0, &copy.final_state, &copy.dh0}) {
          array->set(0, row, channel, {});
        }
        const Note note(dirty.text());
        check_same(out, copy);
      }
    }
  }
}

// Nothing passes a reset, be it NaN: no state, no gate of that step, and backwards no gradient.
CASE(nothing_passes_a_reset) {
  const Settings settings;
  Random random;
  constexpr Index time = 5000;
  for (const DType dtype : {DType::f32, DType::c64}) {
    for (const Index channels : {1, 6, 40}) {
      for (const Index reset : {100, 1300, 2600, 4700}) {  // in tiles of several numbers
        Options o;
        o.dtype = dtype;
        o.time = time;
        o.channels = channels;
        Plane plane;
        plane.time = time;
        plane.reverse = random.chance(0.5);
        plane.reset.resize(time);
        // Steps are counted in the order of the recurrence.
        const auto at = [&](Index step) { return plane.reverse ? time - 1 - step : step; };
        plane.reset[static_cast<std::size_t>(at(reset))] = 1;
        const Inputs in = make_inputs(random, o, plane);
        Inputs early = in, late = in;
        for (Index d = 0; d < channels; ++d) {
          early.x.set(0, at(50), d, nan_value());
          if (early.h0) early.h0.set(0, 0, d, nan_value());
          early.a.set(0, at(reset), d, nan_value());
          if (late.dh) late.dh.set(0, at(reset), d, nan_value());
          if (late.dfinal) late.dfinal.set(0, 0, d, nan_value());
        }
        const auto steps = [&](const Tensor& array, Index first, Index last) {
          const Index t0 = std::min(at(first), at(last)), t1 = std::max(at(first), at(last));
          return array.slice(0, 1, t0, t1 + 1, 0, channels);
        };
        const Note note(in.text() + " at " + std::to_string(reset));
        for (int threads : {1, 3}) {
          set_num_threads(threads);
          const Outputs clean = run(in, nullptr);
          const auto same = [&](const Outputs& out, Index first, Index last) {
            const auto part = [&](const Tensor& array) { return steps(array, first, last); };
            CHECK_FINE(part(out.h).difference(part(clean.h), "h"));
            CHECK_FINE(part(out.dx).difference(part(clean.dx), "dx"));
            CHECK_FINE(part(out.da).difference(part(clean.da), "da"));
          };
          const Outputs forward = run(early, nullptr);
          same(forward, reset, time - 1);
          CHECK_FINE(forward.final_state.difference(clean.final_state, "final_state"));
          CHECK_FINE(forward.dx.difference(clean.dx, "dx"));
          CHECK_FINE(forward.dh0.difference(clean.dh0, "dh0"));
          const Outputs backward = run(late, nullptr);
          same(backward, 0, reset - 1);
          CHECK_FINE(backward.dh0.difference(clean.dh0, "dh0"));
        }
      }
    }
  }
}

// At most twice the error of a serial loop in the same precision, with gates that vary and with
// constant ones, whose roundings are the same in every segment; inputs of one sign, so that errors
// don't cancel. Lanes are channels, or steps.
CASE(as_accurate_as_a_serial_loop) {
  const Settings settings;
  Random random;
  constexpr Index time = 20000;
  const auto check = [&](Index channels, const Layout& layout, double gate, double spread) {
    const auto array = [&] { return Tensor::output(DType::f32, 1, time, channels, layout); };
    Tensor a = array(), x = array(), h = array(), dx = array();
    a.fill([&] { return Value{gate + (1 - gate) * random.uniform(-spread, spread), 0}; });
    x.fill([&] { return Value{random.uniform(), 0}; });
    ScanForward forward;
    forward.a = a.in<3>();
    forward.x = x.in<3>();
    forward.h = h.out<3>();
    Lent lent(scan_forward_workspace_bytes(forward, kTarget));
    lent.run(scan_forward, forward);
    ScanBackward backward;
    backward.a = a.in<3>();
    backward.h = h.in<3>();
    backward.dh = x.in<3>();
    backward.dx = dx.out<3>();
    Lent also_lent(scan_backward_workspace_bytes(backward, kTarget));
    also_lent.run(scan_backward, backward);
    for (const bool back : {false, true}) {
      double error = 0, serial_error = 0;
      for (Index d = 0; d < channels; ++d) {
        float serial = 0;
        double exact = 0;
        for (Index i = 0; i < time; ++i) {
          const Index t = back ? time - 1 - i : i;
          const double passed = i == 0 ? 0 : a.get(0, back ? t + 1 : t, d).re;
          const double added = x.get(0, t, d).re;
          serial = static_cast<float>(passed) * serial + static_cast<float>(added);
          exact = passed * exact + added;
          serial_error = std::max(serial_error, std::fabs(static_cast<double>(serial) - exact));
          error = std::max(error, std::fabs((back ? dx : h).get(0, t, d).re - exact));
        }
      }
      const Note note((back ? "backward: error " : "forward: error ") + std::to_string(error) +
                      ", serial " + std::to_string(serial_error));
      CHECK(error <= (kOnGpu ? 4 : 2) * serial_error);  // maps merge in float32 there
    }
  };
  const Layout& columns = kLayouts[2];
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    for (const double gate : {0.9, 0.99, 0.997, 0.999, 0.99985, 0.9999, 0.99996, 1.0}) {
      for (const double spread : {0.0, 0.5}) {
        const Note note(isa + ", gate " + std::to_string(gate) + ", varying by " +
                        std::to_string((1 - gate) * spread));
        check(1, kPlain, gate, spread);
        check(32, kPlain, gate, spread);
        check(32, columns, gate, spread);
      }
    }
  }
}

// Tiles are counted in 31 bits on a GPU, where every sequence has one at least.
CASE(more_sequences_than_tickets) {
  if (!kOnGpu) skip("of GPUs");
  constexpr Index kCount = Index{1} << 31;
  const Tensor x = Tensor::input(DType::f32, 1, 1000, 1);
  Tensor h = Tensor::output(DType::f32, 1, 1000, 1);
  const std::int32_t offset = 0;
  ScanForward call;
  call.a = call.x = x.in<3>();
  call.h = h.out<3>();
  call.sequences.cu_seqlens = {&offset, DType::i32, {kCount}, {0}};
  CHECK_EQUAL(scan_forward_workspace_bytes(call, kTarget), 0u);
  call.sequences.cu_seqlens.shape[0] = kCount + 1;
  CHECK_THROWS((void)scan_forward_workspace_bytes(call, kTarget), InvalidArgument,
               "scan: 2147483648 sequences of up to 1000 steps and 1 channels make 2147483648 "
               "tiles, expected fewer than 2^31");
}

TEST_MAIN()
