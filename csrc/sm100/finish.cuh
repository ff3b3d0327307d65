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
// from `first_dim` on, those of head lane % kHeads in each lane. With kRowGroups, true if a sum of
// the thread is infinite or NaN.
template <int kHeads, bool kRowGroups>
__device__ __forceinline__ bool finish_row(const DecodeParams& params, uint8_t (&staging)[32][64],
                                           const RowTotal& total, const Assignment& work,
                                           int first_head, int first_dim, uint32_t outputs) {
  const DecodeProblem& problem = params.problem;
  const int lane = threadIdx.x % 32;
  const int num_heads = min(kHeads, work.num_heads(problem) + work.first_head - first_head);
  const int my_head = first_head + lane % kHeads;
  const int my_row = row_of_head<kRowGroups>(problem, my_head);
  const int head = my_head - my_row * static_cast<int>(problem.heads);
  const bool has_head = lane % kHeads < num_heads;
  bool is_finite = true;
  const bool tells_lse = has_head && lane < kHeads && first_dim == 0;

  if (work.whole_row) {
    const float sink = has_head ? sink_of_head(problem, head) : -CUDART_INF_F;
    float factor = total.reciprocal * value_of(problem.scale2);
    if (!problem.defer_sinks && !total.is_empty) factor *= share_of_row(total.lse, sink);
    if (tells_lse && problem.lse.data != nullptr) {
      store_lse(problem, work.row + my_row, head, total.is_empty, total.lse, sink);
    }
    const RowPosition position = row_position(problem, work.row);
    auto* target = static_cast<uint16_t*>(problem.out.data) +
                   position.batch * problem.out.batch_stride +
                   position.query * problem.out.row_stride + first_dim;
    const auto target_of = [&](int i) {
      return target + head_offset<kRowGroups>(problem, problem.out, first_head + i);
    };
    is_finite = store_outputs<kHeads, kRowGroups>(staging, outputs, factor, num_heads, target_of);
  } else {
    const int64_t first = int64_t(work.part) * problem.heads + first_head;
    if (tells_lse) {
      params.partial_lse[first + lane] = total.is_empty ? -CUDART_INF_F : total.lse;
    }
    float* target = params.partial_out + first * kHeadDim + first_dim;
    is_finite = store_outputs<kHeads, kRowGroups>(staging, outputs, total.reciprocal, num_heads,
                                                  [&](int i) { return target + i * kHeadDim; });
  }
  ptx::tensor_fence_before();
  if (work.row_parts.count != 0 && first_head == 0 && first_dim == 0 && lane < work.num_rows) {
    params.row_parts[work.row + lane] = work.row_parts;
  }
  return !is_finite && has_head;
}

}  // namespace dsv4::sm100
