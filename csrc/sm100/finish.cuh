// SPDX-License-Identifier: Apache-2.0
// The end of a row, or of a part of one.
#pragma once

#include <math_constants.h>

#include "cuda/assignment.cuh"
#include "cuda/row_end.cuh"
#include "sm100/outputs.cuh"
#include "sm100/params.h"

namespace dsv4::sm100 {

struct RowTotal {
  float lse;         // log2 of the sum of exp2(scores)
  float reciprocal;  // what to multiply outputs by
  bool is_empty;     // no slot was valid
};

// A warp does this for `kHeads` heads from `first_head` on, of which it has the outputs of the dims
// from `first_dim` on, those of head lane % kHeads in each lane.
template <int kHeads>
__device__ __forceinline__ void finish_row(const DecodeParams& params, uint8_t (&staging)[32][64],
                                           const RowTotal& total, const Assignment& work,
                                           int first_head, int first_dim, uint32_t outputs) {
  const DecodeProblem& problem = params.problem;
  const int lane = threadIdx.x % 32;
  const int num_heads = static_cast<int>(min(int64_t(kHeads), problem.heads - first_head));
  const int head = first_head + lane % kHeads;
  const bool has_head = lane % kHeads < num_heads;
  const bool tells_lse = has_head && lane < kHeads && first_dim == 0;

  if (work.whole_row) {
    const float sink = has_head ? sink_of_head(problem, head) : -CUDART_INF_F;
    float factor = total.reciprocal * value_of(problem.scale2);
    if (!problem.defer_sinks && !total.is_empty) factor *= share_of_row(total.lse, sink);
    if (tells_lse && problem.lse.data != nullptr) {
      store_lse(problem, work.row, head, total.is_empty, total.lse, sink);
    }
    const RowPosition position = row_position(problem, work.row);
    auto* target = static_cast<uint16_t*>(problem.out.data) +
                   position.batch * problem.out.batch_stride +
                   position.query * problem.out.row_stride + first_head * problem.out.head_stride;
    store_outputs<kHeads>(staging, outputs, factor, num_heads, target + first_dim,
                          problem.out.head_stride);
  } else {
    const int64_t first = int64_t(work.part) * problem.heads + first_head;
    if (tells_lse) {
      params.partial_lse[first + lane] = total.is_empty ? -CUDART_INF_F : total.lse;
    }
    store_outputs<kHeads>(staging, outputs, total.reciprocal, num_heads,
                          params.partial_out + first * kHeadDim + first_dim, int64_t(kHeadDim));
  }
  ptx::tensor_fence_before();
  if (work.row_parts.count != 0 && first_head == 0 && first_dim == 0 && lane == 0) {
    params.row_parts[work.row] = work.row_parts;
  }
}

}  // namespace dsv4::sm100
