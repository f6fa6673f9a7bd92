// SPDX-License-Identifier: Apache-2.0
// Arrays of any dtype and layout for the tests, and how sequences lie in the (B,T) plane.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <place.hpp>

#include "scanrnn/core/half.hpp"
#include "scanrnn/scanrnn.hpp"
#include "test.hpp"

namespace test {

using scanrnn::Array;
using scanrnn::ConstArray;
using scanrnn::DType;
using Index = std::int64_t;

/// A real or complex number of any dtype.
struct Value {
  double re = 0, im = 0;
};
inline Value operator+(Value p, Value q) { return {p.re + q.re, p.im + q.im}; }
inline Value operator-(Value p, Value q) { return {p.re - q.re, p.im - q.im}; }
inline Value operator*(Value p, Value q) {
  if (p.im == 0 && q.im == 0) return {p.re * q.re, 0};
  return {p.re * q.re - p.im * q.im, p.re * q.im + p.im * q.re};
}
inline Value conj(Value p) { return {p.re, -p.im}; }
inline double abs(Value p) { return p.im == 0 ? std::fabs(p.re) : std::hypot(p.re, p.im); }
inline bool is_nan(Value p) { return std::isnan(p.re) || std::isnan(p.im); }
inline Value nan_value() { return {std::nan(""), 0}; }

inline bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

inline constexpr DType kFloats[] = {DType::f16, DType::bf16, DType::f32,
                                    DType::f64, DType::c64,  DType::c128};
inline constexpr DType kReals[] = {DType::f16, DType::bf16, DType::f32, DType::f64};

template <class T>
T load_as(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
template <class T>
void store_as(void* p, T value) {
  std::memcpy(p, &value, sizeof(value));
}

inline Value read(DType dtype, const unsigned char* p) {
  switch (dtype) {
    case DType::f16:
      return {scanrnn::to_float(load_as<scanrnn::Half>(p)), 0};
    case DType::bf16:
      return {scanrnn::to_float(load_as<scanrnn::BFloat16>(p)), 0};
    case DType::f32:
      return {load_as<float>(p), 0};
    case DType::f64:
      return {load_as<double>(p), 0};
    case DType::c64:
      return {load_as<float>(p), load_as<float>(p + 4)};
    case DType::c128:
      return {load_as<double>(p), load_as<double>(p + 8)};
    case DType::i32:
      return {static_cast<double>(load_as<std::int32_t>(p)), 0};
    case DType::i64:
      return {static_cast<double>(load_as<std::int64_t>(p)), 0};
    default:
      return {static_cast<double>(*p), 0};
  }
}

inline void write(DType dtype, unsigned char* p, Value v) {
  switch (dtype) {
    case DType::f16:
      return store_as(p, scanrnn::to_half(static_cast<float>(v.re)));
    case DType::bf16:
      return store_as(p, scanrnn::to_bfloat16(static_cast<float>(v.re)));
    case DType::f32:
      return store_as(p, static_cast<float>(v.re));
    case DType::f64:
      return store_as(p, v.re);
    case DType::c64:
      store_as(p, static_cast<float>(v.re));
      return store_as(p + 4, static_cast<float>(v.im));
    case DType::c128:
      store_as(p, v.re);
      return store_as(p + 8, v.im);
    case DType::i32:
      return store_as(p, static_cast<std::int32_t>(v.re));
    case DType::i64:
      return store_as(p, static_cast<std::int64_t>(v.re));
    default:
      *p = static_cast<unsigned char>(v.re);
  }
}

/// Half an ulp of a stored value of this magnitude, as a bound.
inline double rounding_of(DType dtype, double magnitude) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-11 * magnitude + 0x1p-25;
    case DType::bf16:
      return 0x1p-8 * magnitude + 0x1p-134;
    case DType::f32:
    case DType::c64:
      return 0x1p-24 * magnitude + 0x1p-148;
    default:
      return 0x1p-53 * magnitude + 0x1p-1073;
  }
}
/// The unit roundoff of arithmetic on this dtype.
inline double epsilon_of(DType dtype) {
  return dtype == DType::f64 || dtype == DType::c128 ? 0x1p-53 : 0x1p-24;
}

/// How the axes (0, 1, 2), batch, time and channel where all are there, lie in memory.
struct Layout {
  const char* name;
  int order[3];   // axes, outermost first
  Index step[3];  // every how many-th element of the axis is used
  bool flip[3];
};

inline constexpr Layout kPlain = {"BTD", {0, 1, 2}, {1, 1, 1}, {}};
inline constexpr Layout kLayouts[] = {
    kPlain,
    {"TBD", {1, 0, 2}, {1, 1, 1}, {}},
    {"BDT", {0, 2, 1}, {1, 1, 1}, {}},
    {"DBT", {2, 0, 1}, {1, 1, 1}, {}},
    {"DTB", {2, 1, 0}, {1, 1, 1}, {}},
    {"BTD, every other step", {0, 1, 2}, {1, 2, 1}, {}},
    {"BTD, every third channel", {0, 1, 2}, {1, 1, 3}, {}},
    {"BTD, time flipped", {0, 1, 2}, {1, 1, 1}, {false, true, false}},
    {"BTD, channels flipped", {0, 1, 2}, {1, 1, 1}, {false, false, true}},
    {"BDT, time flipped", {0, 2, 1}, {1, 1, 1}, {false, true, false}},
    {"BDT, every other step", {0, 2, 1}, {1, 2, 1}, {}},
    {"TBD, batch flipped, every other row", {1, 0, 2}, {2, 1, 1}, {true, false, false}},
};

/// An array with storage of its own. Where it is written to, storage starts as NaN and has guards.
class Tensor {
 public:
  DType dtype = DType::f32;
  Index shape[3] = {1, 1, 1};
  Index stride[3] = {};

  Tensor() = default;

  static Tensor input(DType type, Index n0, Index n1, Index n2, const Layout& layout = kPlain,
                      Index lead = 0) {
    return Tensor(type, n0, n1, n2, layout, lead, 0);
  }
  static Tensor output(DType type, Index n0, Index n1, Index n2, const Layout& layout = kPlain,
                       Index lead = 0) {
    return Tensor(type, n0, n1, n2, layout, lead + 16, 19);
  }

  explicit operator bool() const { return !storage_.empty(); }
  Index elements() const { return shape[0] * shape[1] * shape[2]; }

  template <int Rank>
  ConstArray<Rank> in() const {
    ConstArray<Rank> view;
    fill_view<Rank>(view, storage_.data() + origin_);
    return view;
  }
  template <int Rank>
  Array<Rank> out() {
    Array<Rank> view;
    fill_view<Rank>(view, storage_.data() + origin_);
    return view;
  }

  /// Axes of size 1 take any index.
  Value get(Index i, Index j, Index k) const { return read(dtype, storage_.data() + at(i, j, k)); }
  void set(Index i, Index j, Index k, Value v) { write(dtype, storage_.data() + at(i, j, k), v); }

  template <class F>
  void each(F&& f) const {
    for (Index i = 0; i < shape[0]; ++i) {
      for (Index j = 0; j < shape[1]; ++j) {
        for (Index k = 0; k < shape[2]; ++k) f(i, j, k);
      }
    }
  }
  template <class F>
  void fill(F&& value) {
    each([&](Index i, Index j, Index k) { set(i, j, k, value()); });
  }

  /// All elements in the order of their indices, broadcast to a shape.
  std::vector<Value> values(Index n0, Index n1, Index n2) const {
    std::vector<Value> list;
    list.reserve(static_cast<std::size_t>(n0 * n1 * n2));
    for (Index i = 0; i < n0; ++i) {
      for (Index j = 0; j < n1; ++j) {
        for (Index k = 0; k < n2; ++k) list.push_back(get(i, j, k));
      }
    }
    return list;
  }

  Tensor relaid(const Layout& layout, Index lead) const {
    if (!*this) return {};
    Tensor copy = input(dtype, shape[0], shape[1], shape[2], layout, lead);
    copy_elements(*this, 0, 0, 0, copy);
    return copy;
  }
  /// Elements [from, to) of each axis as an array of their own; axes of size 1 stay.
  Tensor slice(Index i0, Index i1, Index j0, Index j1, Index k0, Index k1) const {
    if (!*this) return {};
    Index from[3] = {i0, j0, k0}, to[3] = {i1, j1, k1};
    for (int axis = 0; axis < 3; ++axis) {
      if (shape[axis] == 1) from[axis] = 0, to[axis] = 1;
    }
    Tensor part = input(dtype, to[0] - from[0], to[1] - from[1], to[2] - from[2]);
    copy_elements(*this, from[0], from[1], from[2], part);
    return part;
  }

  /// Where this and `other` differ in a bit, NaNs being equal.
  std::string difference(const Tensor& other, const char* name) const {
    if (static_cast<bool>(*this) != static_cast<bool>(other))
      return std::string(name) + " is missing";
    if (!*this) return "";
    std::string text;
    const std::size_t size = scanrnn::size_of(dtype);
    each([&](Index i, Index j, Index k) {
      if (!text.empty()) return;
      const unsigned char* p = storage_.data() + at(i, j, k);
      const unsigned char* q = other.storage_.data() + other.at(i, j, k);
      if (std::memcmp(p, q, size) == 0) return;
      const Value v = read(dtype, p), w = read(dtype, q);
      const auto same = [](double a, double b) {
        return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
      };
      if (same(v.re, w.re) && same(v.im, w.im)) return;
      text = std::string(name) + place(i, j, k) + " has other bits: " + format(v) + " and " +
             format(w);
    });
    return text;
  }

  /// Where elements are further than `bound` from `want`, both in the order of the indices.
  std::string compare(const std::vector<Value>& want, const std::vector<double>& bound,
                      const char* name) const {
    std::string text;
    std::size_t n = 0;
    Index wrong = 0;
    each([&](Index i, Index j, Index k) {
      const Value expected = want[n];
      const double limit = bound[n] + rounding_of(dtype, abs(expected) + bound[n]);
      ++n;
      const Value given = get(i, j, k);
      const double error = abs(given - expected);
      if (is_nan(expected) ? is_nan(given) : error <= limit) return;
      if (given.re == expected.re && given.im == expected.im) return;  // infinities
      const bool overflows = dtype == DType::f16 && std::fabs(expected.re) + limit >= 65520;
      if (overflows && std::isinf(given.re) && given.re * expected.re > 0) return;
      if (++wrong > 1) return;
      text = std::string(name) + place(i, j, k) + " is " + format(given) + ", expected " +
             format(expected) + " within " + format({limit, 0});
    });
    if (wrong > 1) text += " (and " + std::to_string(wrong - 1) + " more elements)";
    return text;
  }

  /// Where something beside the elements has been written.
  std::string strays(const char* name) const {
    if (!*this) return "";
    std::vector<unsigned char> copy(storage_.begin(), storage_.end());
    const std::size_t size = scanrnn::size_of(dtype);
    each([&](Index i, Index j, Index k) { std::memset(copy.data() + at(i, j, k), 0xff, size); });
    for (std::size_t i = 0; i < copy.size(); ++i) {
      if (copy[i] == 0xff) continue;
      const Index where = static_cast<Index>(i) - static_cast<Index>(origin_);
      return std::string(name) + ": written outside of the elements, at byte " +
             std::to_string(where);
    }
    return "";
  }
  /// Nothing has been written at all.
  bool untouched() const {
    for (unsigned char byte : storage_) {
      if (byte != 0xff) return false;
    }
    return true;
  }

  static std::string format(Value v) {
    char text[80];
    std::snprintf(text, sizeof(text), v.im == 0 ? "%.17g" : "%.17g%+.17gi", v.re, v.im);
    return text;
  }

 private:
  Tensor(DType type, Index n0, Index n1, Index n2, const Layout& layout, Index lead, Index tail)
      : dtype(type), shape{n0, n1, n2} {
    Index extent = 1;
    Index first = 0;
    for (int i = 2; i >= 0; --i) {
      const int axis = layout.order[i];
      const Index reach = extent * layout.step[axis];
      stride[axis] = layout.flip[axis] ? -reach : reach;
      const Index last = shape[axis] > 0 ? (shape[axis] - 1) * reach : 0;
      if (layout.flip[axis]) first += last;
      extent = last + extent;
    }
    const Index size = static_cast<Index>(scanrnn::size_of(dtype));
    storage_.assign(static_cast<std::size_t>((lead + extent + tail) * size), 0xff);
    origin_ = static_cast<std::size_t>((lead + first) * size);
  }

  std::size_t at(Index i, Index j, Index k) const {
    const Index offset = (shape[0] == 1 ? 0 : i * stride[0]) + (shape[1] == 1 ? 0 : j * stride[1]) +
                         (shape[2] == 1 ? 0 : k * stride[2]);
    return origin_ + static_cast<std::size_t>(offset * static_cast<Index>(scanrnn::size_of(dtype)));
  }

  static void copy_elements(const Tensor& from, Index i0, Index j0, Index k0, Tensor& to) {
    const std::size_t size = scanrnn::size_of(from.dtype);
    to.each([&](Index i, Index j, Index k) {
      std::memcpy(to.storage_.data() + to.at(i, j, k),
                  from.storage_.data() + from.at(i0 + i, j0 + j, k0 + k), size);
    });
  }

  template <int Rank, class View, class Pointer>
  void fill_view(View& view, Pointer data) const {
    if (!*this) return;
    view.data = data;
    view.dtype = dtype;
    for (int i = 0; i < Rank; ++i) {
      view.shape[i] = shape[3 - Rank + i];
      view.stride[i] = stride[3 - Rank + i];
    }
  }

  static std::string place(Index i, Index j, Index k) {
    return "[" + std::to_string(i) + "," + std::to_string(j) + "," + std::to_string(k) + "]";
  }

  std::vector<unsigned char, Allocator<unsigned char>> storage_;
  std::size_t origin_ = 0;
};

/// How sequences lie in the (B,T) plane. Offsets and lengths are empty where they aren't given.
struct Plane {
  Index batch = 1, time = 0;
  std::vector<Index> offsets, lengths;
  std::vector<unsigned char> reset;
  bool left_padded = false, reverse = false;

  struct Span {
    Index row, begin, end;
  };
  Index sequences() const {
    return offsets.empty() ? batch : static_cast<Index>(offsets.size()) - 1;
  }
  Span span(Index n) const {
    const std::size_t i = static_cast<std::size_t>(n);
    if (!offsets.empty()) return {0, offsets[i], offsets[i + 1]};
    if (lengths.empty()) return {n, 0, time};
    return left_padded ? Span{n, time - lengths[i], time} : Span{n, 0, lengths[i]};
  }
  bool resets(Index b, Index t) const {
    return !reset.empty() && reset[static_cast<std::size_t>(b * time + t)] != 0;
  }
  /// The steps of sequence n in the order of the recurrence, or backwards.
  template <class F>
  void each_step(Index n, bool backwards, F&& f) const {
    const Span s = span(n);
    for (Index i = 0; i < s.end - s.begin; ++i) {
      f(s.row, reverse != backwards ? s.end - 1 - i : s.begin + i);
    }
  }
  /// Whether the step belongs to no sequence.
  bool pads(Index b, Index t) const {
    if (lengths.empty()) return false;
    const Span s = span(b);
    return t < s.begin || t >= s.end;
  }

  std::string text() const {
    std::string s = reverse ? " reverse" : "";
    if (!offsets.empty()) s += " " + std::to_string(sequences()) + " packed";
    if (!lengths.empty()) s += left_padded ? " left-padded" : " padded";
    if (!reset.empty()) s += " resets";
    return s;
  }
};

/// A plane's arrays, in some dtype and layout.
struct PlaneArrays {
  Tensor offsets, lengths, reset;
  scanrnn::Sequences view;

  PlaneArrays(const Plane& plane, Random& random) {
    const auto list = [&](const std::vector<Index>& numbers) {
      if (numbers.empty()) return Tensor();
      const DType type = random.chance(0.5) ? DType::i32 : DType::i64;
      const Layout layouts[] = {kPlain, {"", {0, 1, 2}, {1, 1, 2}, {false, false, true}}};
      Tensor array =
          Tensor::input(type, 1, 1, static_cast<Index>(numbers.size()), random.pick(layouts));
      array.each([&](Index, Index, Index k) {
        array.set(0, 0, k, {static_cast<double>(numbers[static_cast<std::size_t>(k)]), 0});
      });
      return array;
    };
    offsets = list(plane.offsets);
    lengths = list(plane.lengths);
    if (!plane.reset.empty()) {
      const Layout layouts[] = {
          kPlain, {"", {0, 2, 1}, {1, 1, 1}, {}}, {"", {0, 1, 2}, {1, 1, 2}, {false, true, true}}};
      reset = Tensor::input(DType::u8, 1, plane.batch, plane.time, random.pick(layouts));
      reset.each([&](Index, Index b, Index t) {
        const double flags[] = {1, 2, 255};
        reset.set(0, b, t, {plane.resets(b, t) ? random.pick(flags) : 0, 0});
      });
    }
    view.cu_seqlens = offsets.in<1>();
    view.lengths = lengths.in<1>();
    view.reset = reset.in<2>();
    view.left_padded = plane.left_padded;
    view.reverse = plane.reverse;
  }
};

/// A random plane: now and then packed, padded, with resets, reversed.
inline Plane random_plane(Random& random, Index batch, Index time) {
  Plane plane;
  plane.batch = batch;
  plane.time = time;
  plane.reverse = random.chance(0.4);
  if (batch == 1 && random.chance(0.4)) {
    const Index inner = random.integer(0, 4);
    plane.offsets.push_back(0);
    for (Index i = 0; i < inner; ++i) {
      const Index last = plane.offsets.back();
      // Some are empty, some short, some long.
      const Index left = time - last;
      plane.offsets.push_back(
          last + (random.chance(0.3)
                      ? 0
                      : random.integer(0, std::min<Index>(left, random.chance(0.5) ? 70 : left))));
    }
    plane.offsets.push_back(time);
    if (random.chance(0.3)) plane.offsets.push_back(time);
  } else if (random.chance(0.3)) {
    for (Index b = 0; b < batch; ++b) plane.lengths.push_back(random.integer(0, time));
    if (random.chance(0.3)) plane.lengths[0] = random.chance(0.5) ? 0 : time;
    plane.left_padded = random.chance(0.5);
  }
  if (random.chance(0.3)) {
    const double rate = random.chance(0.5) ? 0.02 : 0.3;
    plane.reset.resize(static_cast<std::size_t>(batch * time));
    for (unsigned char& flag : plane.reset) flag = random.chance(rate) ? 1 : 0;
    if (time > 0 && random.chance(0.3)) plane.reset[0] = 1;
  }
  return plane;
}

inline std::vector<std::string> built_isas() {
  std::vector<std::string> names;
  std::istringstream list(scanrnn::cpu_isas());
  for (std::string name; list >> name;) names.push_back(name);
  return names;
}

/// Puts the number of threads and the instruction set back at the end of a case.
class Settings {
 public:
  Settings() : threads_(scanrnn::num_threads()), isa_(scanrnn::cpu_isa()) {}
  ~Settings() {
    scanrnn::set_num_threads(threads_);
    scanrnn::set_cpu_isa(isa_.c_str());
  }

 private:
  int threads_;
  std::string isa_;
};

}  // namespace test
