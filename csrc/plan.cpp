// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <algorithm>

#include "dsv4/kv_format.h"

namespace dsv4 {
namespace {

constexpr size_t kAlignment = 64;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

size_t align_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void lay_out(const PlanInput& input, int64_t num_splits, Plan& plan) {
  plan.num_splits = num_splits;
  plan.num_tasks = input.rows * plan.num_head_blocks * num_splits;
  plan.partial_out_offset = plan.partial_lse_offset = plan.workspace_bytes = 0;
  if (num_splits == 1) return;
  const size_t partials = size_t(input.rows) * size_t(num_splits) * size_t(input.heads);
  plan.partial_lse_offset = align_up(partials * kHeadDim * sizeof(float));
  plan.workspace_bytes = plan.partial_lse_offset + align_up(partials * sizeof(float));
}

// Share of the machine that is busy while `tasks` equal tasks run.
double occupancy(int64_t tasks, int64_t parallelism) {
  return double(tasks) / double(divide_up(tasks, parallelism) * parallelism);
}

void cut_heads(const PlanInput& input, int64_t head_block, Plan& plan) {
  plan.head_block = std::min(head_block, input.heads);
  plan.num_head_blocks = divide_up(input.heads, plan.head_block);
}

}  // namespace

Plan make_plan(const PlanInput& input, const EngineTraits& traits, size_t workspace_bytes) {
  constexpr double kGoodOccupancy = 0.9;
  Plan plan;
  cut_heads(input, traits.head_block, plan);
  lay_out(input, 1, plan);
  if (plan.num_tasks == 0) return plan;

  // Fewest parts that fill the machine; else the best that the width and the workspace allow.
  if (!input.batch_invariant) {
    const int64_t max_splits =
        std::clamp<int64_t>(input.slots / traits.min_split_slots, 1, traits.max_splits);
    double best = occupancy(plan.num_tasks, input.parallelism);
    int64_t best_splits = 1;
    for (int64_t splits = 2; splits <= max_splits && best < kGoodOccupancy; ++splits) {
      lay_out(input, splits, plan);
      if (plan.workspace_bytes > workspace_bytes) break;
      if (const double busy = occupancy(plan.num_tasks, input.parallelism); busy > best) {
        best = busy;
        best_splits = splits;
      }
    }
    lay_out(input, best_splits, plan);
  }

  // No parts to be had: smaller head blocks read a row's slots more than once, but leave no core
  // idle.
  for (int64_t block = traits.head_block / 2;
       plan.num_splits == 1 && plan.num_tasks < input.parallelism && block >= traits.min_head_block;
       block /= 2) {
    cut_heads(input, block, plan);
    lay_out(input, 1, plan);
  }
  return plan;
}

SplitRange split_range(int64_t length, int64_t num_splits, int64_t split) {
  const int64_t base = length / num_splits, longer = length % num_splits;
  const int64_t begin = split * base + std::min(split, longer);
  return {begin, begin + base + (split < longer ? 1 : 0)};
}

}  // namespace dsv4
