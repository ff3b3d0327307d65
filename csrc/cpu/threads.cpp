// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace dsv4::cpu {
namespace {

// One piece of work: tasks are handed out one by one, so uneven tasks balance.
struct Job {
  void (*task)(void*, int64_t);
  void* argument;
  int64_t num_tasks;
  std::atomic<int64_t> next{0};

  void work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;)
      task(argument, i);
  }
};

// Threads that sleep between jobs. One job at a time; a caller that finds the pool busy works
// alone.
class Pool {
 public:
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  pid_t owner() const { return owner_; }

  void run(Job& job, int32_t num_helpers) {
    std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy.owns_lock()) return job.work();
    grow(num_helpers);
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      seats_ = num_helpers;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    seats_ = 0;  // late sleepers need not come any more
    done_.wait(lock, [&] { return working_ == 0; });
    job_ = nullptr;
  }

 private:
  void grow(int32_t num_helpers) {
    try {
      while (int32_t(threads_.size()) < num_helpers) threads_.emplace_back([this] { help(); });
    } catch (const std::system_error&) {
      // No more threads to be had: those that exist do the work.
    }
  }

  void help() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || seats_ > 0; });
      if (stopping_) return;
      --seats_;
      ++working_;
      Job* job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--working_ == 0) done_.notify_one();
    }
  }

  const pid_t owner_ = getpid();
  std::mutex busy_;   // held by the caller of run
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;  // touched under busy_ only
  Job* job_ = nullptr;
  int32_t seats_ = 0;    // helpers the job still takes
  int32_t working_ = 0;  // helpers inside job->work()
  bool stopping_ = false;
};

// A forked child has none of its parent's threads, so it gets a pool of its own; the parent's copy,
// whose locks may be held for ever, is left alone.
class PoolOfProcess {
 public:
  Pool& get() {
    Pool* pool = pool_.load(std::memory_order_acquire);
    while (pool == nullptr || pool->owner() != getpid()) {
      Pool* fresh = new Pool;
      if (pool_.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) return *fresh;
      delete fresh;
    }
    return *pool;
  }
  ~PoolOfProcess() {
    Pool* pool = pool_.load();
    if (pool != nullptr && pool->owner() == getpid()) delete pool;
  }

 private:
  std::atomic<Pool*> pool_{nullptr};
};

PoolOfProcess pool_of_process;

int32_t default_num_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    if (const long value = std::strtol(text, nullptr, 10); value > 0)
      return int32_t(std::min(value, 1024L));
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, int32_t(std::thread::hardware_concurrency()));
}

}  // namespace

int32_t num_threads(const Executor& executor) {
  return executor.num_threads > 0 ? executor.num_threads : default_num_threads();
}

void parallel_for(const Executor& executor, int64_t num_tasks,
                  void (*task)(void* argument, int64_t index), void* argument) {
  const int64_t threads = std::min<int64_t>(num_threads(executor), num_tasks);
  if (threads <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(argument, i);
  } else if (executor.run != nullptr) {
    executor.run(num_tasks, task, argument);
  } else {
    Job job{task, argument, num_tasks};
    pool_of_process.get().run(job, int32_t(threads - 1));
  }
}

}  // namespace dsv4::cpu
