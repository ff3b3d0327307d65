// SPDX-License-Identifier: Apache-2.0
// What ends a row that a block decodes alone: sinks and lse. Scores and their sums are in base 2.
#pragma once

#include <math_constants.h>

#include "cuda/work.cuh"
#include "dsv4/dsv4.h"
#include "ptx/convert.cuh"

namespace dsv4 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float value_of(const Scale& scale) {
  return scale.pointer != nullptr ? __ldg(scale.pointer) : scale.value;
}

__device__ __forceinline__ float sink_of_head(const DecodeProblem& problem, int head) {
  return problem.sinks != nullptr ? problem.sinks[head] * kLog2E : -CUDART_INF_F;
}

// exp(lse) / (exp(lse) + exp(sink)).
__device__ __forceinline__ float share_of_row(float lse, float sink) {
  return __fdividef(1.0f, 1.0f + ptx::exp2(sink - lse));
}

__device__ __forceinline__ void store_lse(const DecodeProblem& problem, int32_t row, int head,
                                          bool empty, float lse, float sink) {
  const LseOptions& options = problem.lse_options;
  float value = options.empty_is_positive ? CUDART_INF_F : -CUDART_INF_F;
  if (!empty) {
    if (options.include_sink && problem.sinks != nullptr) {
      const float larger = fmaxf(lse, sink), smaller = fminf(lse, sink);
      lse = larger == CUDART_INF_F ? larger : larger + log2f(1.0f + ptx::exp2(smaller - larger));
    }
    value = options.base2 ? lse : lse * kLn2;
  }
  const RowPosition position = row_position(problem, row);
  float* row_lse = problem.lse.data + position.batch * problem.lse.batch_stride +
                   position.query * problem.lse.row_stride;
  row_lse[head * problem.lse.head_stride] = value;
}

}  // namespace dsv4
