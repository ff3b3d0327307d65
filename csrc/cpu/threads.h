// SPDX-License-Identifier: Apache-2.0
// Running tasks on several threads.
#pragma once

#include <type_traits>

#include "dsv4/dsv4.h"
#include "plan.h"

namespace dsv4::cpu {

// Threads that parallel_for will use: the executor's own count, else OMP_NUM_THREADS, else the
// cores that this process may run on.
int32_t num_threads(const Executor& executor);

// Calls task(argument, i) for each i in [0, num_tasks) and returns when all are done. Any order,
// any thread; with the executor if it has one, else on the library's threads.
void parallel_for(const Executor& executor, int64_t num_tasks,
                  void (*task)(void* argument, int64_t index), void* argument);

// The same for a callable: parallel_for(executor, n, [&](int64_t i) { ... }).
template <class Body>
void parallel_for(const Executor& executor, int64_t num_tasks, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  parallel_for(
      executor, num_tasks,
      [](void* argument, int64_t index) { (*static_cast<Plain*>(argument))(index); }, &body);
}

// body(i) for each i in [0, n), cut into one equal run of items for each thread.
template <class Body>
void parallel_for_items(const Executor& executor, int64_t n, Body&& body) {
  const int64_t threads = num_threads(executor);
  const int64_t tasks = n < threads ? n : threads;
  parallel_for(executor, tasks, [&](int64_t task) {
    const SplitRange range = split_range(n, tasks, task);
    for (int64_t i = range.begin; i < range.end; ++i) body(i);
  });
}

}  // namespace dsv4::cpu
