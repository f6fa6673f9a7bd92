// SPDX-License-Identifier: Apache-2.0
// The merge tree over the leaves of one sequence, for all lanes of a block at once.
//
// It is a binary counter: after i leaves, level l holds the map of 2^l leaves iff bit l of i is
// set, and a new leaf merges with the levels that its carry ripples through. So every map is merged
// in the same bracketing, which the number of leaves alone determines, however leaves are spread
// over threads. The state after i leaves is the held maps applied to the start, oldest first; all
// but the last application is remembered from earlier leaves.
#pragma once

#include <cstring>

#include "cpu/kernels.hpp"

namespace scanrnn::cpu {

#if defined(SCANRNN_DEBUG_MERGE)
inline constexpr bool kTracesMerges = true;
#else
inline constexpr bool kTracesMerges = false;
#endif

/// What a merge trace sees of a tree; see trace.hpp. `index` counts the leaves before the last one.
struct TreeObserver {
  virtual void leaf(std::int64_t index, const void* a, const void* x) = 0;
  virtual void merged(int level, std::int64_t index, const void* x_before, const void* a,
                      const void* x) = 0;

 protected:
  ~TreeObserver() = default;
};

class Tree {
 public:
  static constexpr int kMaxLevels = 58;
  static constexpr int kMaxSums = kMaxInputs;

  /// Levels that `leaves` leaves can reach, and one for the start.
  static int levels_for(std::int64_t leaves) {
    int levels = 1;
    while (leaves > 1) ++levels, leaves >>= 1;
    return levels + 1;
  }

  /// Bytes of memory for vectors of `vector_bytes`: per level a map, a state and the sums.
  static std::size_t bytes_for(int levels, std::size_t vector_bytes, int sums) {
    return static_cast<std::size_t>(levels) * vector_bytes * static_cast<std::size_t>(3 + sums);
  }

  Tree(const MapKernels& kernels, int lanes, std::ptrdiff_t plane, std::size_t vector_bytes,
       int levels, int sums, char* memory)
      : kernels_(kernels),
        lanes_(lanes),
        plane_(plane),
        bytes_(vector_bytes),
        levels_(levels),
        sums_(sums),
        memory_(memory) {}

  /// Empties the tree. With `start`, the states after each leaf are wanted: see state().
  void begin(const void* start) {
    count_ = 0;
    tracks_state_ = start != nullptr;
    if (!tracks_state_) return;
    std::memcpy(state_slot(levels_ - 1), start, bytes_);
    for (int l = 0; l < levels_; ++l) start_of_[l] = levels_ - 1;
    state_ = levels_ - 1;
  }

  /// Takes the map (a, x) of the next 2^level leaves; a and x are overwritten. `cut`: a reset lies
  /// in it, so nothing from before it passes. `sum`: vectors to add up along the tree.
  void push(int level, void* a, void* x, bool cut, void* const* sum) {
    int l = level;
    const bool observed = kTracesMerges && observer_ != nullptr;
    if (observed) observer_->leaf(count_, a, x);
    for (; (count_ >> l) & 1; ++l) {
      // A later map with a reset is the map of both: not even a NaN of the earlier one matters.
      const bool was_cut = cut;
      if (observed) std::memcpy(before_, x, bytes_);
      if (!cut) kernels_.merge(lanes_, plane_, map_a(l), map_x(l), a, x);
      cut = was_cut || cut_[l];
      for (int s = 0; s < sums_; ++s) kernels_.add(lanes_, plane_, sum_of(l, s), sum[s]);
      if (observed) observer_->merged(l, count_, before_, a, x);
    }
    std::memcpy(map_a(l), a, bytes_);
    std::memcpy(map_x(l), x, bytes_);
    cut_[l] = cut;
    for (int s = 0; s < sums_; ++s) std::memcpy(sum_of(l, s), sum[s], bytes_);
    count_ += std::int64_t{1} << level;
    top_ = l;
    if (!tracks_state_) return;
    const void* start = state_slot(start_of_[l]);
    if (cut) {
      std::memcpy(state_slot(l), x, bytes_);
    } else {
      kernels_.apply(lanes_, plane_, a, x, start, state_slot(l));
    }
    for (int k = 0; k <= l; ++k) start_of_[k] = l;
    state_ = l;
  }

  /// The state after the leaves pushed so far.
  const void* state() const { return state_slot(state_); }

  // The map that the last push completed: that of the whole tree after 2^k leaves.
  const void* top_a() const { return map_a(top_); }
  const void* top_x() const { return map_x(top_); }
  bool top_cut() const { return cut_[top_]; }

  /// Sum `s` of all leaves, lowest level first, into `total`; adds `total` itself if `started`.
  void fold_sum(int s, void* total, bool started) const {
    for (int l = 0; l < levels_; ++l) {
      if (((count_ >> l) & 1) == 0) continue;
      if (started) {
        kernels_.add(lanes_, plane_, sum_of(l, s), total);
      } else {
        std::memcpy(total, sum_of(l, s), bytes_);
      }
      started = true;
    }
    if (!started) std::memset(total, 0, bytes_);
  }

  /// Reports every leaf and merge; `memory` is one vector of the tree's size. Single leaves only.
  void observe(TreeObserver* observer, void* memory) {
    observer_ = observer;
    before_ = memory;
  }

 private:
  char* vector(int index) const { return memory_ + static_cast<std::size_t>(index) * bytes_; }
  char* map_a(int level) const { return vector(level * (3 + sums_)); }
  char* map_x(int level) const { return vector(level * (3 + sums_) + 1); }
  char* state_slot(int level) const { return vector(level * (3 + sums_) + 2); }
  char* sum_of(int level, int s) const { return vector(level * (3 + sums_) + 3 + s); }

  const MapKernels& kernels_;
  int lanes_;
  std::ptrdiff_t plane_;
  std::size_t bytes_;
  int levels_;
  int sums_;
  char* memory_;
  std::int64_t count_ = 0;
  bool tracks_state_ = false;
  bool cut_[kMaxLevels] = {};
  int start_of_[kMaxLevels] = {};  ///< slot of the state before the open block of each level
  int state_ = 0;
  int top_ = 0;
  TreeObserver* observer_ = nullptr;
  void* before_ = nullptr;
};

}  // namespace scanrnn::cpu
