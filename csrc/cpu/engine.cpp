// SPDX-License-Identifier: Apache-2.0
// The CPU engine: plan, choice of instruction set, tasks over threads, combine.
#include "cpu/engine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cpu/combine.h"
#include "cpu/decode_kernel.h"
#include "cpu/threads.h"
#include "row_length.h"

namespace dsv4::cpu {
namespace {

constexpr EngineTraits kTraits{kHeadBlock, 16, kTileSlots, 64};
constexpr size_t kWorkspaceAlignment = alignof(Scratch);
static_assert(kScratchBytes % kWorkspaceAlignment == 0);

struct SimdChoice {
  const char* name;
  RunTask run_task;
  bool available;
};

#if defined(__x86_64__)
// Whether this process may use tile registers: the machine has them, and the kernel of the
// operating system grants their state when asked, which holds for all threads from then on.
bool has_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl ARCH_REQ_XCOMP_PERM
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool tile = (edx >> 24 & 1) != 0, bf16 = (edx >> 22 & 1) != 0;
  return tile && bf16 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

// Best first. DSV4_CPU_SIMD=amx|avx512|avx2|generic takes a later one, for tests and comparisons.
SimdChoice choose_simd() {
  const char* wanted = std::getenv("DSV4_CPU_SIMD");
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  // The grant holds for the whole process, so it is not asked for when something else is wanted.
  const bool may_use_tiles = wanted == nullptr || std::strcmp(wanted, "amx") == 0;
  const SimdChoice choices[] = {
      {"amx", amx::run_task, has_avx512 && may_use_tiles && has_tiles()},
      {"avx512", avx512::run_task, has_avx512},
      {"avx2", avx2::run_task, has_avx2},
      {"generic", generic::run_task, true},
#if defined(DSV4_TESTS)
      {"amx_emulated", amx_emulated::run_task, has_avx512},
#endif
  };
#else
  const SimdChoice choices[] = {{"generic", generic::run_task, true}};
#endif
  for (const SimdChoice& choice : choices) {
    if (choice.available && wanted != nullptr && std::strcmp(wanted, choice.name) == 0)
      return choice;
  }
  for (const SimdChoice& choice : choices) {
    if (choice.available) return choice;
  }
  return choices[0];
}

const SimdChoice& simd() {
  static const SimdChoice choice = choose_simd();
  return choice;
}

PlanInput plan_input(int64_t rows, int64_t heads, int64_t slots, bool batch_invariant,
                     int32_t threads) {
  PlanInput input;
  input.rows = rows;
  input.heads = heads;
  input.slots = slots;
  input.parallelism = threads;
  input.batch_invariant = batch_invariant;
  return input;
}

// Threads draw tasks from one counter, so rows of different lengths balance.
struct Run {
  DecodeJob job;
  uint8_t* scratch;  // kScratchBytes a worker, in the workspace; null: on each worker's stack
  std::atomic<int64_t> next_task{0};

  void work(void* mine) {
    for (int64_t task;
         (task = next_task.fetch_add(1, std::memory_order_relaxed)) < job.plan.num_tasks;) {
      simd().run_task(job, task, mine);
    }
  }
  __attribute__((noinline)) void work_on_stack() {
    alignas(kWorkspaceAlignment) uint8_t mine[kScratchBytes];
    work(mine);
  }
};

}  // namespace

const char* simd_name() { return simd().name; }

// Layout: partial results of the plan, then one Scratch for each thread.
Status workspace_size(const DecodeShape& shape, size_t* bytes) {
  const int32_t threads = num_threads({nullptr, shape.num_threads});
  const Plan plan =
      make_plan(plan_input(shape.rows, shape.heads, shape.window_slots + shape.compressed_slots,
                           shape.batch_invariant, threads),
                kTraits, SIZE_MAX);
  *bytes = plan.num_tasks == 0
               ? 0
               : kWorkspaceAlignment + plan.workspace_bytes +
                     kScratchBytes * size_t(std::min<int64_t>(threads, plan.num_tasks));
  return {};
}

Status sparse_mla_decode(const DecodeProblem& problem, Stream) {
  void* workspace = problem.workspace;
  size_t room = problem.workspace_bytes;
  if (workspace == nullptr || std::align(kWorkspaceAlignment, 1, workspace, room) == nullptr)
    room = 0;

  const int32_t threads = num_threads(problem.executor);
  const PlanInput input =
      plan_input(problem.batch * problem.q_len, problem.heads,
                 segment_width(problem.window) + segment_width(problem.compressed),
                 problem.batch_invariant, threads);
  Run run;
  run.job.problem = &problem;
  run.job.plan = make_plan(input, kTraits, room);
  const Plan& plan = run.job.plan;
  if (plan.num_tasks == 0) return {};

  uint8_t* base = static_cast<uint8_t*>(workspace);
  run.job.partial_out = reinterpret_cast<float*>(base + plan.partial_out_offset);
  run.job.partial_lse = reinterpret_cast<float*>(base + plan.partial_lse_offset);
  const int64_t workers = std::min<int64_t>(threads, plan.num_tasks);
  const bool scratch_fits = room >= plan.workspace_bytes + kScratchBytes * size_t(workers);
  run.scratch = scratch_fits ? base + plan.workspace_bytes : nullptr;

  parallel_for(problem.executor, workers, [&](int64_t worker) {
    if (run.scratch != nullptr) {
      run.work(run.scratch + worker * int64_t(kScratchBytes));
    } else {
      run.work_on_stack();
    }
  });
  if (plan.num_splits > 1) combine_splits(run.job);
  return {};
}

const Engine kEngine = {
    "cpu",
    "x86-64 (generic, avx2, avx512, amx) or any (generic)",
    DeviceType::kCpu,
    nullptr,
    false,
    workspace_size,
    sparse_mla_decode,
    merge_states,
    append_kv_cache,
    pack_kv_cache,
    unpack_kv_cache,
    hca_metadata,
};

}  // namespace dsv4::cpu
