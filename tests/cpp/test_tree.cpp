// SPDX-License-Identifier: Apache-2.0
// The merge tree of the CPU backend: the states that it gives, its bracketing, resets and sums.
#include "cpu/tree.hpp"

#include "arrays.hpp"
#include "cpu/executor.hpp"

using namespace scanrnn;
using scanrnn::cpu::Tree;
using namespace test;

namespace {

const cpu::MapKernels& kernels() { return cpu::instruction_set().map[1]; }  // of double

constexpr int kLanes = 8;  // a multiple of every instruction set's vector of doubles
constexpr std::size_t kBytes = kLanes * sizeof(double);

struct Vector {
  double lane[kLanes] = {};
  void* data() { return lane; }
  bool operator==(const Vector& other) const { return std::memcmp(lane, other.lane, kBytes) == 0; }
};

struct Map {
  Vector a, x;
  bool cut = false;  // a reset lies in it
};

Map merged(const Map& earlier, const Map& later) {
  Map both = later;
  if (!later.cut)
    kernels().merge(kLanes, 0, earlier.a.lane, earlier.x.lane, both.a.lane, both.x.lane);
  both.cut = earlier.cut || later.cut;
  return both;
}
Vector applied(const Map& map, const Vector& state) {
  Vector out = map.x;
  if (!map.cut) kernels().apply(kLanes, 0, map.a.lane, map.x.lane, state.lane, out.lane);
  return out;
}
Vector added(const Vector& earlier, const Vector& later) {
  Vector sum = later;
  kernels().add(kLanes, 0, earlier.lane, sum.lane);
  return sum;
}

template <class F>
Vector vector_of(F&& number) {
  Vector v;
  for (double& lane : v.lane) lane = number();
  return v;
}

// Maps whose products and sums round, so that the bracketing shows in the bits.
std::vector<Map> random_leaves(Random& random, int count, double cut_rate) {
  std::vector<Map> leaves(static_cast<std::size_t>(count));
  for (Map& leaf : leaves) {
    leaf.cut = random.chance(cut_rate);
    leaf.a = vector_of([&] { return leaf.cut ? 0 : random.uniform(-1, 1); });
    leaf.x = vector_of([&] { return random.uniform(-1, 1); });
  }
  return leaves;
}

// The complete node over leaves [first, first + 2^level), by the definition of the tree.
Map node(const std::vector<Map>& leaves, std::size_t first, int level) {
  if (level == 0) return leaves[first];
  const std::size_t half = std::size_t{1} << (level - 1);
  return merged(node(leaves, first, level - 1), node(leaves, first + half, level - 1));
}

// The greatest level up to `level` whose nodes start at leaf `first` and end before `count`.
int level_that_fits(std::size_t first, std::size_t count, int level) {
  while (first % (std::size_t{1} << level) != 0 || first + (std::size_t{1} << level) > count)
    --level;
  return level;
}

// The state after `count` leaves: the nodes of count's binary digits, largest first, applied in
// turn.
Vector state_after(const std::vector<Map>& leaves, std::size_t count, Vector state) {
  std::size_t first = 0;
  for (int level = 40; level >= 0; --level) {
    if (((count >> level) & 1) == 0) continue;
    state = applied(node(leaves, first, level), state);
    first += std::size_t{1} << level;
  }
  return state;
}

// The sum of 2^k vectors, neighbours first.
Vector pairwise(std::vector<Vector> list) {
  while (list.size() > 1) {
    std::vector<Vector> half;
    for (std::size_t i = 0; i < list.size(); i += 2) half.push_back(added(list[i], list[i + 1]));
    list = half;
  }
  return list[0];
}

class Owner {
 public:
  explicit Owner(std::size_t leaves, int sums = 0)
      : levels_(Tree::levels_for(static_cast<std::int64_t>(leaves))),
        memory_(Tree::bytes_for(levels_, kBytes, sums) / sizeof(double), std::nan("")),
        tree(kernels(), kLanes, 0, kBytes, levels_, sums, reinterpret_cast<char*>(memory_.data())) {
  }
  void push(int level, Map map, void* const* sum = nullptr) {
    tree.push(level, map.a.data(), map.x.data(), map.cut, sum);
  }
  Vector state() const {
    Vector v;
    std::memcpy(v.lane, tree.state(), kBytes);
    return v;
  }

 private:
  int levels_;
  std::vector<double> memory_;

 public:
  Tree tree;
};

constexpr int kCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 100, 200};

}  // namespace

// With small integers nothing rounds: states are those of the plain fold.
CASE(states_are_those_of_a_fold) {
  Random random;
  for (const int count : kCounts) {
    Vector state = vector_of([&] { return static_cast<double>(random.integer(-9, 9)); });
    Owner owner(static_cast<std::size_t>(count));
    owner.tree.begin(state.lane);
    CHECK(owner.state() == state);
    for (int i = 0; i < count; ++i) {
      Map leaf;
      leaf.cut = random.chance(0.05);
      leaf.a = vector_of([&] { return leaf.cut ? 0 : static_cast<double>(random.integer(-1, 1)); });
      leaf.x = vector_of([&] { return static_cast<double>(random.integer(1, 9)); });
      for (int lane = 0; lane < kLanes; ++lane) {
        state.lane[lane] = leaf.a.lane[lane] * state.lane[lane] + leaf.x.lane[lane];
      }
      owner.push(0, leaf);
      int wrong = 0;
      for (int lane = 0; lane < kLanes; ++lane)
        wrong += owner.state().lane[lane] != state.lane[lane];
      CHECK_EQUAL(wrong, 0);
    }
  }
}

// The number of leaves alone fixes the bracketing.
CASE(the_bracketing_is_the_binary_one) {
  Random random;
  const Settings settings;
  for (const std::string& isa : built_isas()) {
    set_cpu_isa(isa.c_str());
    for (const int count : kCounts) {
      const std::vector<Map> leaves = random_leaves(random, count, count % 2 == 0 ? 0 : 0.1);
      const Vector start = vector_of([&] { return random.uniform(-1, 1); });
      Owner owner(leaves.size());
      owner.tree.begin(start.lane);
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        owner.push(0, leaves[i]);
        CHECK(owner.state() == state_after(leaves, i + 1, start));
      }
    }
  }
}

// Whole nodes pushed at their level, where the count allows, give the bits that their leaves give.
CASE(groups_give_the_bits_of_their_leaves) {
  Random random;
  for (const int count : kCounts) {
    const std::vector<Map> leaves = random_leaves(random, count, count % 3 == 0 ? 0.1 : 0);
    const Vector start = vector_of([&] { return random.uniform(-1, 1); });
    for (int repeat = 0; repeat < 8; ++repeat) {
      Owner owner(leaves.size());
      owner.tree.begin(start.lane);
      for (std::size_t i = 0; i < leaves.size();) {
        const int level = level_that_fits(i, leaves.size(), static_cast<int>(random.integer(0, 5)));
        owner.push(level, node(leaves, i, level));
        i += std::size_t{1} << level;
        CHECK(owner.state() == state_after(leaves, i, start));
      }
    }
  }
}

// Without a start the tree reduces: after 2^k leaves its top is their map.
CASE(the_top_is_the_map_of_all) {
  Random random;
  for (int level = 0; level <= 7; ++level) {
    const int count = 1 << level;
    const std::vector<Map> leaves = random_leaves(random, count, level % 2 == 0 ? 0 : 0.05);
    Owner owner(leaves.size());
    owner.tree.begin(nullptr);
    for (const Map& leaf : leaves) owner.push(0, leaf);
    const Map all = node(leaves, 0, level);
    CHECK(std::memcmp(owner.tree.top_x(), all.x.lane, kBytes) == 0);
    CHECK_EQUAL(owner.tree.top_cut(), all.cut);
    if (!all.cut) CHECK(std::memcmp(owner.tree.top_a(), all.a.lane, kBytes) == 0);
  }
}

// What comes before a reset is gone, NaN or not; a tree that is begun again has forgotten
// everything.
CASE(nothing_passes_a_reset) {
  Random random;
  for (const std::size_t cut : {0u, 1u, 5u, 8u, 13u}) {
    std::vector<Map> leaves = random_leaves(random, 20, 0);
    leaves[cut].cut = true;
    leaves[cut].a = Vector();
    std::vector<Map> dirty = leaves;
    for (std::size_t i = 0; i < cut; ++i) {
      dirty[i].a = dirty[i].x = vector_of([] { return std::nan(""); });
    }
    const Vector start = vector_of([&] { return random.uniform(-1, 1); });
    const Vector nan = vector_of([] { return std::nan(""); });
    Owner owner(leaves.size());
    for (int repeat = 0; repeat < 2; ++repeat) {
      owner.tree.begin(nan.lane);
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        owner.push(0, dirty[i]);
        if (i >= cut) CHECK(owner.state() == state_after(leaves, i + 1, start));
      }
      owner.tree.begin(start.lane);
      CHECK(owner.state() == start);
    }
  }
}

// Sums follow the tree, whether nodes come leaf by leaf or not.
CASE(sums_follow_the_tree) {
  Random random;
  for (const int count : kCounts) {
    const std::vector<Map> leaves = random_leaves(random, count, 0);
    std::vector<Vector> numbers[2];
    for (auto& list : numbers) {
      for (int i = 0; i < count; ++i)
        list.push_back(vector_of([&] { return random.uniform(-1, 1); }));
    }
    const auto total_of = [](const std::vector<Vector>& list, std::size_t first, int level) {
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(first);
      return pairwise({begin, begin + (std::ptrdiff_t{1} << level)});
    };
    const Vector start;
    Vector first_total[2];
    for (int repeat = 0; repeat < 4; ++repeat) {
      Owner owner(leaves.size(), 2);
      owner.tree.begin(start.lane);
      for (std::size_t i = 0; i < leaves.size();) {
        const int wanted = repeat == 0 ? 0 : static_cast<int>(random.integer(0, 4));
        const int level = level_that_fits(i, leaves.size(), wanted);
        Vector sums[2] = {total_of(numbers[0], i, level), total_of(numbers[1], i, level)};
        void* pointers[2] = {sums[0].data(), sums[1].data()};
        owner.push(level, node(leaves, i, level), pointers);
        i += std::size_t{1} << level;
      }
      for (int s = 0; s < 2; ++s) {
        Vector total;
        owner.tree.fold_sum(s, total.data(), false);
        if (repeat == 0) {
          first_total[s] = total;
          double expected = 0;
          for (const Vector& number : numbers[s]) expected += number.lane[3];
          CHECK(std::fabs(total.lane[3] - expected) < 1e-12);
        }
        CHECK(total == first_total[s]);
      }
    }
  }
  Owner empty(1, 1);
  empty.tree.begin(nullptr);
  Vector total = vector_of([] { return 5.0; });
  empty.tree.fold_sum(0, total.data(), false);
  CHECK(total == Vector());
}

CASE(levels) {
  CHECK_EQUAL(Tree::levels_for(1), 2);
  CHECK_EQUAL(Tree::levels_for(2), 3);
  CHECK_EQUAL(Tree::levels_for(3), 3);
  CHECK_EQUAL(Tree::levels_for(4), 4);
  CHECK_EQUAL(Tree::levels_for(std::int64_t{1} << 40), 42);
}

TEST_MAIN()
