// SPDX-License-Identifier: Apache-2.0
// One task of a decode: some heads of one query row over a part of its slots.
//
//   collect     index table -> addresses of up to 64 valid slots (holes never enter a tile)
//   multiply    scores[slot][head] = keys . query
//   softmax     scores -> weights, running max and sum, vectors along heads
//   accumulate  out[head][512] += weights . keys
//   finish      out / sum, sinks, scale2, lse            or the normalised part, for the combine
//
// The two products are a kernel's own; the rest is here. Compiled with each kernel, so everything
// is local to its file, and nothing from the standard library is used.
#pragma once

#include "cpu/bf16.h"
#include "cpu/decode_kernel.h"
#include "cpu/simd.h"
#include "cpu/slots.h"
#include "cpu/softmax.h"

namespace dsv4::cpu::DSV4_SIMD {
namespace {

constexpr float kMaxFloat = 3.402823466e38f;

// Turns scores into weights 2^(score - max - headroom) and keeps max and sum of each head. Where a
// head's max moved, its sum and its output so far are scaled down; where it did not, the factor is
// exactly 1.
template <class Kernel>
void softmax(typename Kernel::Storage& scratch, int num_slots, int num_heads, float scale,
             float headroom, bool first) {
  for (int head = 0; head < num_heads; head += kLanes) {
    Float tile_max = broadcast(-kMaxFloat);
    for (int slot = 0; slot < num_slots; ++slot) {
      // An overflow on the way here must not give inf - inf below. NaN passes both comparisons'
      // else.
      Float score = load(&scratch.scores[slot][head]) * scale;
      score = score > kMaxFloat ? broadcast(kMaxFloat) : score;
      score = score < -kMaxFloat ? broadcast(-kMaxFloat) : score;
      store(&scratch.scores[slot][head], score);
      tile_max = max(score, tile_max);
    }
    const Float old_max = first ? tile_max : load(&scratch.row_max[head]);
    const Float new_max = max(old_max, tile_max);
    const Float factor = exp2(old_max - new_max);
    // Two sums: of the weights, for lse; and of what accumulate makes of them, which the row is
    // divided by, so that equal keys come out as they went in.
    Float sum = first ? Float{} : load(&scratch.row_sum[head]) * factor;
    Float used_sum = first ? Float{} : load(&scratch.used_sum[head]) * factor;
    for (int slot = 0; slot < num_slots; ++slot) {
      const Float weight = exp2(load(&scratch.scores[slot][head]) - new_max - headroom);
      const Float used = Kernel::rounded(weight);
      store(&scratch.scores[slot][head], used);
      sum += weight;
      used_sum += used;
    }
    store(&scratch.row_max[head], new_max);
    store(&scratch.row_sum[head], sum);
    store(&scratch.used_sum[head], used_sum);
    for (int i = 0; i < kLanes && head + i < num_heads; ++i) {
      if (first || factor[i] == 1.0f) continue;
      float* out = scratch.out[head + i];
      for (int d = 0; d < kHeadDim; d += kLanes) store(out + d, load(out + d) * factor[i]);
    }
  }
}

// The row is complete: writes out and lse.
void finish_row(const DecodeProblem& problem, int64_t row, int64_t head, const float* sum_of_keys,
                float weight_sum, float lse, bool empty) {
  const int64_t batch = row / problem.q_len, query = row % problem.q_len;
  const float* sink = problem.sinks != nullptr ? problem.sinks + head : nullptr;
  if (problem.lse.data != nullptr) {
    problem.lse.data[batch * problem.lse.batch_stride + query * problem.lse.row_stride +
                     head * problem.lse.head_stride] =
        empty ? empty_lse(problem.lse_options) : reported_lse(lse, sink, problem.lse_options);
  }
  uint16_t* out = static_cast<uint16_t*>(problem.out.data) + batch * problem.out.batch_stride +
                  query * problem.out.row_stride + head * problem.out.head_stride;
  if (empty) {
    __builtin_memset(out, 0, kHeadDim * sizeof(*out));
    return;
  }
  float share = 1.0f / weight_sum;
  if (sink != nullptr && !problem.defer_sinks) share *= sink_factor(lse, *sink);
  const float scale2 = scale_value(problem.scale2);
  // Two steps: share x scale2 alone could overflow or vanish where the product does not.
  for (int d = 0; d < kHeadDim; ++d) out[d] = to_bf16(sum_of_keys[d] * share * scale2);
}

// The row is one of several parts: leaves a normalised part and its lse for the combine.
void finish_part(const DecodeJob& job, int64_t row, int64_t split, int64_t head,
                 const float* sum_of_keys, float weight_sum, float lse, bool empty) {
  const int64_t partial = (row * job.plan.num_splits + split) * job.problem->heads + head;
  job.partial_lse[partial] = empty ? -kInfinity : lse;
  if (empty) return;
  const float share = 1.0f / weight_sum;
  float* out = job.partial_out + partial * kHeadDim;
  for (int d = 0; d < kHeadDim; d += kLanes) store(out + d, load(sum_of_keys + d) * share);
}

// Storage of a kernel: scores [slots][kHeadBlock], row_max, row_sum and used_sum [kHeadBlock], out
// [heads][512] and what its own functions need:
//   load_query   query heads of the task, in the kernel's own layout
//   multiply     scores of a tile of slots
//   accumulate   out += weights . keys of that tile
//   rounded      weights as accumulate uses them
//   out_of       out of one head, dims in order
template <class Kernel>
void run(const DecodeJob& job, int64_t task, typename Kernel::Storage& scratch) {
  const DecodeProblem& problem = *job.problem;
  const int64_t split = task % job.plan.num_splits;
  const int64_t block = task / job.plan.num_splits % job.plan.num_head_blocks;
  const int64_t row = task / job.plan.num_splits / job.plan.num_head_blocks;
  const int64_t first_head = block * job.plan.head_block;
  const int64_t heads_left = problem.heads - first_head;
  const int num_heads = int(heads_left < job.plan.head_block ? heads_left : job.plan.head_block);

  SlotCursor cursor(problem, row, job.plan.num_splits, split);
  // Weights of n slots add up to at most 1 when each is at most 2^-ceil(log2 n): no sum of keys,
  // however large, overflows. The power of two leaves the result when it is divided by the sum.
  int headroom = 0;
  while ((int64_t(1) << headroom) < cursor.num_columns()) ++headroom;
  const float scale = scale_value(problem.scale1) * kLog2e;

  SlotAddress tiles[2][kTileSlots];
  int num_slots = cursor.next(tiles[0]);
  const bool empty = num_slots == 0;
  if (!empty) Kernel::load_query(problem, row, first_head, num_heads, scratch);
  for (int tile = 0; num_slots > 0; ++tile) {
    const SlotAddress* slots = tiles[tile % 2];
    const int num_next = cursor.next(tiles[(tile + 1) % 2]);
    prefetch(tiles[(tile + 1) % 2], num_next, problem.kv_format);
    Kernel::multiply(problem.kv_format, slots, num_slots, num_heads, scratch);
    softmax<Kernel>(scratch, num_slots, num_heads, scale, float(headroom), tile == 0);
    Kernel::accumulate(problem.kv_format, slots, num_slots, num_heads, scratch, tile == 0);
    num_slots = num_next;
  }

  for (int head = 0; head < num_heads; ++head) {
    const float used_sum = empty ? 0.0f : scratch.used_sum[head];
    const float lse =
        empty ? -kInfinity
              : (scratch.row_max[head] + float(headroom) + __builtin_log2f(scratch.row_sum[head])) *
                    kLn2;
    if (job.plan.num_splits == 1) {
      finish_row(problem, row, first_head + head, Kernel::out_of(scratch, head), used_sum, lse,
                 empty);
    } else {
      finish_part(job, row, split, first_head + head, Kernel::out_of(scratch, head), used_sum, lse,
                  empty);
    }
  }
}

}  // namespace
}  // namespace dsv4::cpu::DSV4_SIMD
