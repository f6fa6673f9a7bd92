// SPDX-License-Identifier: Apache-2.0
// The tests' harness: named cases, checks that report and go on, random numbers from a printed
// seed.
//
//   CASE(merge_is_associative) { CHECK(...); CHECK_EQUAL(given, expected); }
//   TEST_MAIN()
//
// A program runs all its cases, or those whose names contain its first argument, and returns 0 when
// every check held. SCANRNN_TEST_SEED=n gives other random numbers.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace test {

struct Case {
  const char* name;
  void (*body)();
};

struct State {
  std::vector<Case> cases;
  std::vector<std::string> notes;
  const char* running = "";
  std::uint64_t seed = 1;
  int checks = 0;
  int failures = 0;       // of the program
  int case_failures = 0;  // of the running case
};

inline State& state() {
  static State s;
  return s;
}

struct Registration {
  Registration(const char* name, void (*body)()) { state().cases.push_back({name, body}); }
};

/// Thrown to leave a case that can't go on here.
struct Skip {
  std::string reason;
};
[[noreturn]] inline void skip(const std::string& reason) { throw Skip{reason}; }

/// What the checks of a scope are about, printed when one of them fails.
class Note {
 public:
  explicit Note(std::string text) { state().notes.push_back(std::move(text)); }
  ~Note() { state().notes.pop_back(); }
  Note(const Note&) = delete;
  Note& operator=(const Note&) = delete;
};

inline void fail(const std::string& what, const char* file, int line) {
  State& s = state();
  ++s.failures;
  if (++s.case_failures > 10) return;  // more of the same says nothing new
  std::printf("%s:%d: %s: %s\n", file, line, s.running, what.c_str());
  for (const std::string& note : s.notes) std::printf("    with %s\n", note.c_str());
  std::fflush(stdout);
}

inline void check(bool holds, const char* what, const char* file, int line) {
  ++state().checks;
  if (!holds) fail(what, file, line);
}

template <class A, class B>
void check_equal(const A& given, const B& expected, const char* what, const char* file, int line) {
  ++state().checks;
  if (given == expected) return;
  std::ostringstream text;
  text.precision(17);
  text << what << "\n    given    " << given << "\n    expected " << expected;
  fail(text.str(), file, line);
}

/// A small, fast generator (splitmix64): the same numbers everywhere, which std::distributions
/// aren't.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// Numbers of the running case: they depend on the seed and the case's name alone.
  Random() : state_(state().seed) {
    for (const char* c = state().running; *c != 0; ++c) {
      state_ = state_ * 1099511628211u + static_cast<unsigned char>(*c);
    }
  }

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform(double low = 0, double high = 1) {
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  }
  /// low to high, both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  template <class T, std::size_t N>
  const T& pick(const T (&list)[N]) {
    return list[integer(0, static_cast<std::int64_t>(N) - 1)];
  }

 private:
  std::uint64_t state_;
};

inline int run_all(int count, char** arguments) {
  State& s = state();
  if (const char* text = std::getenv("SCANRNN_TEST_SEED"))
    s.seed = std::strtoull(text, nullptr, 10);
  std::printf("seed %llu\n", static_cast<unsigned long long>(s.seed));
  for (const Case& c : s.cases) {
    if (count > 1 && std::strstr(c.name, arguments[1]) == nullptr) continue;
    s.running = c.name;
    s.case_failures = 0;
    const auto start = std::chrono::steady_clock::now();
    std::string outcome = "ok";
    try {
      c.body();
    } catch (const Skip& reason) {
      outcome = "skipped: " + reason.reason;
    } catch (const std::exception& error) {
      fail(std::string("unexpected exception: ") + error.what(), __FILE__, __LINE__);
    }
    s.notes.clear();
    if (s.case_failures > 0) outcome = std::to_string(s.case_failures) + " FAILED";
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%-48s %7.3f s  %s\n", c.name, took.count(), outcome.c_str());
    std::fflush(stdout);
  }
  std::printf("%d checks, %d failed\n", s.checks, s.failures);
  return s.failures == 0 ? 0 : 1;
}

}  // namespace test

#define CASE(name)                                           \
  static void name();                                        \
  static const test::Registration name##_case(#name, &name); \
  static void name()

#define CHECK(condition) test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

#define CHECK_EQUAL(given, expected) \
  test::check_equal((given), (expected), #given " == " #expected, __FILE__, __LINE__)

/// `problem` is a text that is empty when all is well.
#define CHECK_FINE(problem)                                                            \
  do {                                                                                 \
    const std::string text_of_problem = (problem);                                     \
    test::check(text_of_problem.empty(), text_of_problem.c_str(), __FILE__, __LINE__); \
  } while (false)

/// The statement throws exactly this type with exactly this message.
#define CHECK_THROWS(statement, Type, message)                                                \
  do {                                                                                        \
    try {                                                                                     \
      statement;                                                                              \
      test::check(false, "no exception from " #statement, __FILE__, __LINE__);                \
    } catch (const std::exception& error) {                                                   \
      test::check(typeid(error) == typeid(Type), "type of the exception from " #statement,    \
                  __FILE__, __LINE__);                                                        \
      test::check_equal(std::string(error.what()), std::string(message), "message", __FILE__, \
                        __LINE__);                                                            \
    }                                                                                         \
  } while (false)

#define TEST_MAIN() \
  int main(int count, char** arguments) { return test::run_all(count, arguments); }
