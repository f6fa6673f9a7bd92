// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "scanrnn/error.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn {
namespace cpu {
namespace {

// Workers sleep until a call raises `generation`; those with an index below `wanted` take part.
struct Pool {
  std::mutex mutex;
  std::condition_variable wake, finished;
  std::atomic<bool> taken{false};
  int workers = 0;
  unsigned long generation = 0;
  int wanted = 0;
  int running = 0;
  void (*body)(void*, int) = nullptr;
  void* context = nullptr;

  void work(int index, unsigned long seen) {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return generation != seen; });
      seen = generation;
      if (index >= wanted) continue;
      lock.unlock();
      body(context, index);
      lock.lock();
      if (--running == 0) finished.notify_one();
    }
  }

  void run(int threads, void (*work_body)(void*, int), void* work_context) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      while (workers < threads - 1) {
        const int index = workers + 1;
        try {
          std::thread([this, index, seen = generation] { work(index, seen); }).detach();
        } catch (const std::exception&) {
          break;  // no more threads or no memory for one: fewer do the work
        }
        ++workers;
      }
      body = work_body;
      context = work_context;
      wanted = threads;
      running = (threads - 1 < workers ? threads - 1 : workers);
      ++generation;
    }
    wake.notify_all();
    work_body(work_context, 0);
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [&] { return running == 0; });
  }
};

// Never destroyed: workers may outlive static destructors at exit.
Pool* pool = nullptr;
std::mutex pool_mutex;

#if defined(__unix__) || defined(__APPLE__)
// The child has none of the parent's threads, and the mutexes may be held by them for ever.
void after_fork_in_child() {
  pool = nullptr;
  new (&pool_mutex) std::mutex;
}
#endif

Pool& the_pool() {
  std::lock_guard<std::mutex> lock(pool_mutex);
  if (pool == nullptr) {
#if defined(__unix__) || defined(__APPLE__)
    static const bool once = (pthread_atfork(nullptr, nullptr, after_fork_in_child), true);
    (void)once;
#endif
    pool = new Pool;
  }
  return *pool;
}

int usable_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n > 0 ? static_cast<int>(n) : 1;
}

int initial_threads() {
  const char* text = std::getenv("SCANRNN_NUM_THREADS");
  if (text == nullptr || *text == '\0') return usable_processors();
  char* end = nullptr;
  const long n = std::strtol(text, &end, 10);
  if (*end != '\0' || n < 1 || n > 4096) {
    throw InvalidArgument(std::string("SCANRNN_NUM_THREADS is '") + text +
                          "', expected a whole number from 1 to 4096");
  }
  return static_cast<int>(n);
}

std::atomic<int>& thread_count() {
  static std::atomic<int> count{initial_threads()};
  return count;
}

}  // namespace

void parallel(int threads, void (*body)(void* context, int thread), void* context) {
  if (threads > 1) {
    Pool& workers = the_pool();
    if (!workers.taken.exchange(true, std::memory_order_acquire)) {
      workers.run(threads, body, context);
      workers.taken.store(false, std::memory_order_release);
      return;
    }
  }
  body(context, 0);
}

}  // namespace cpu

int num_threads() { return cpu::thread_count().load(std::memory_order_relaxed); }

void set_num_threads(int threads) {
  if (threads < 1) {
    throw InvalidArgument("set_num_threads: threads is " + std::to_string(threads) +
                          ", expected at least 1");
  }
  cpu::thread_count().store(threads, std::memory_order_relaxed);
}

}  // namespace scanrnn
