// SPDX-License-Identifier: Apache-2.0
// Calls from several threads, in forked children, and on part of the machine.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

#include "arrays.hpp"

using namespace test;
using namespace scanrnn;

namespace {

// A scan of one long row, large enough for several threads to share.
struct Job {
  Tensor a, x, h;
  ScanForward call;

  explicit Job(std::uint64_t seed, Index batch = 1, Index time = 60000, Index channels = 5)
      : a(Tensor::input(DType::f32, batch, time, channels)),
        x(a),
        h(Tensor::output(DType::f32, batch, time, channels)) {
    Random random(seed);
    a.fill([&] { return Value{random.uniform(0.5, 1), 0}; });
    x.fill([&] { return Value{random.uniform(-1, 1), 0}; });
    call.a = a.in<3>();
    call.x = x.in<3>();
    call.h = h.out<3>();
  }
  Job(const Job&) = delete;

  void run() {
    Lent lent(scan_forward_workspace_bytes(call));
    scan_forward(call, lent.workspace());
  }
  /// Runs again into a fresh array: "" if it gives the same bits.
  std::string run_again() {
    Tensor again = Tensor::output(DType::f32, h.shape[0], h.shape[1], h.shape[2]);
    ScanForward other = call;
    other.h = again.out<3>();
    Lent lent(scan_forward_workspace_bytes(other));
    scan_forward(other, lent.workspace());
    return again.difference(h, "h");
  }
};

#if defined(__unix__) || defined(__APPLE__)
// What `body` returns in a forked child: its status, or -1 when it takes longer than 30 s.
int in_child(const std::function<int()>& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in a child: %s\n", error.what());
    }
    _exit(status);
  }
  for (int waited = 0; waited < 30000; ++waited) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}
#endif

}  // namespace

#if defined(__linux__)
// First, while nothing has asked for the number of threads yet: it is settled then.
CASE(threads_follow_the_affinity_and_the_environment) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof(all), &all) != 0) skip("no affinity here");
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  const int available = CPU_COUNT(&all);
  const auto with_variable = [](const char* text, int expected) {
    return in_child([=] {
      setenv("SCANRNN_NUM_THREADS", text, 1);
      return num_threads() == expected ? 0 : 1;
    });
  };
  CHECK_EQUAL(with_variable("3", 3), 0);
  CHECK_EQUAL(with_variable("", available), 0);
  for (const char* text : {"0", "-1", "many", "3x", "2.5", "100000", "99999999999999999999"}) {
    CHECK_EQUAL(in_child([=] {
                  setenv("SCANRNN_NUM_THREADS", text, 1);
                  for (int time = 0; time < 2; ++time) {
                    try {
                      num_threads();
                      return 1;
                    } catch (const InvalidArgument& e) {
                      if (std::string(e.what()).find(text) == std::string::npos) return 2;
                    }
                  }
                  return 0;
                }),
                0);
  }
  unsetenv("SCANRNN_NUM_THREADS");
  CHECK_EQUAL(in_child([&] { return num_threads() == available ? 0 : 1; }), 0);
  CHECK_EQUAL(in_child([&] {
                cpu_set_t one;
                CPU_ZERO(&one);
                CPU_SET(first, &one);
                if (sched_setaffinity(0, sizeof(one), &one) != 0) return 2;
                if (num_threads() != 1) return 1;
                Job job(1);
                job.run();
                set_num_threads(4);  // more threads than processors still come to an end
                return job.run_again().empty() ? 0 : 3;
              }),
              0);
}
#endif

CASE(concurrent_calls_are_independent) {
  const Settings settings;
  for (const int threads : {1, 2, 4}) {
    set_num_threads(threads);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int k = 0; k < 6; ++k) {
      callers.emplace_back([&wrong, k] {
        Job job(static_cast<std::uint64_t>(k), 1 + k % 3, 20000 + 1111 * k, 3 + k);
        job.run();
        for (int again = 0; again < 4; ++again) {
          if (!job.run_again().empty()) ++wrong;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK_EQUAL(wrong.load(), 0);
  }
}

// The size of the workspace is asked for before the call, and the number of threads may change
// between.
CASE(the_number_of_threads_changes_under_calls) {
  const Settings settings;
  set_num_threads(1);
  Job job(5);
  job.run();
  const std::size_t bytes = scan_forward_workspace_bytes(job.call);
  set_num_threads(8);
  Tensor again = Tensor::output(DType::f32, 1, 60000, 5);
  ScanForward call = job.call;
  call.h = again.out<3>();
  Lent lent(bytes);
  scan_forward(call, lent.workspace());
  CHECK_FINE(again.difference(job.h, "h"));

  // Fewer threads may take wider blocks.
  constexpr Index kTime = 64, kChannels = 4096;
  Tensor in = Tensor::input(DType::f32, 1, kTime, kChannels);
  in.fill([] { return Value{0.5, 0}; });
  CellForward<MinLstmCell> cell;
  for (ConstArray<3>& input : cell.in) input = in.in<3>();
  for (int before = 1; before <= 6; ++before) {
    for (int now = 1; now <= 6; ++now) {
      Tensor out = Tensor::output(DType::f32, 1, kTime, kChannels);
      cell.out = out.out<3>();
      set_num_threads(before);
      Lent room(cell_forward_workspace_bytes(cell));
      set_num_threads(now);
      cell_forward(cell, room.workspace());
      CHECK(!out.untouched());
    }
  }

  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread caller([&] {
    for (int k = 0; k < 30; ++k) {
      if (!job.run_again().empty()) ++wrong;
    }
    done = true;
  });
  for (int k = 0; !done; ++k) {
    set_num_threads(1 + k % 8);
    std::this_thread::yield();
  }
  caller.join();
  CHECK_EQUAL(wrong.load(), 0);
}

#if defined(__unix__) || defined(__APPLE__)
CASE(a_forked_child_computes) {
#if defined(__SANITIZE_THREAD__)
  skip("ThreadSanitizer doesn't let such a child start threads");
#endif
  const Settings settings;
  set_num_threads(4);
  Job job(2);
  job.run();  // the parent has its workers now; the child has none of them
  for (int k = 0; k < 3; ++k) {
    CHECK_EQUAL(in_child([&] { return job.run_again().empty() ? 0 : 1; }), 0);
  }
  CHECK_FINE(job.run_again());
  // A child of a child.
  CHECK_EQUAL(in_child([&] {
                if (!job.run_again().empty()) return 1;
                return in_child([&] { return job.run_again().empty() ? 0 : 1; });
              }),
              0);
}

CASE(a_child_forked_during_a_call_computes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip("a sanitizer's allocator may be left locked in the child");
#endif
  const Settings settings;
  set_num_threads(4);
  Job job(3);
  job.run();
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread caller([&] {
    while (!done) {
      if (!job.run_again().empty()) ++wrong;
    }
  });
  Tensor again = Tensor::output(DType::f32, 1, 60000, 5);
  ScanForward call = job.call;
  call.h = again.out<3>();
  Lent lent(scan_forward_workspace_bytes(call));
  for (int k = 0; k < 5; ++k) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK_EQUAL(in_child([&] {
                  scan_forward(call, lent.workspace());
                  return again.difference(job.h, "h").empty() ? 0 : 1;
                }),
                0);
  }
  done = true;
  caller.join();
  CHECK_EQUAL(wrong.load(), 0);
}
#endif

TEST_MAIN()
