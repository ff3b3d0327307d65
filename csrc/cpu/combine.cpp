// SPDX-License-Identifier: Apache-2.0
#include "cpu/combine.h"

#include <algorithm>
#include <cmath>

#include "cpu/bf16.h"
#include "cpu/engine.h"
#include "cpu/softmax.h"
#include "cpu/threads.h"

namespace dsv4::cpu {
namespace {

// The partial results of one (row, head).
struct States {
  int64_t num_states;
  const float* lse;
  int64_t lse_stride;
  bool base2;       // of lse
  DType dtype;      // of out
  const void* out;  // [num_states] of 512
  int64_t out_stride;
};

// What becomes of them.
struct Ending {
  const float* sink;  // null: none
  bool apply_sink;
  float scale2;
  LseOptions lse_options;
};

bool holds_slots(float lse) { return !std::isinf(lse); }

const uint16_t* bf16_row(const States& states, int64_t i) {
  return static_cast<const uint16_t*>(states.out) + i * states.out_stride;
}
const float* float_row(const States& states, int64_t i) {
  return static_cast<const float*>(states.out) + i * states.out_stride;
}

// merged[512] and the lse to report.
float merge(const States& states, const Ending& ending, float* merged) {
  const float to_natural = states.base2 ? kLn2 : 1.0f;
  const auto lse_of = [&](int64_t i) { return states.lse[i * states.lse_stride] * to_natural; };

  std::fill(merged, merged + kHeadDim, 0.0f);
  float max = -kInfinity;
  for (int64_t i = 0; i < states.num_states; ++i) {
    // Written so that NaN is taken: it must reach the result.
    if (const float lse = lse_of(i); holds_slots(lse) && !(lse <= max)) max = lse;
  }
  if (max == -kInfinity) return empty_lse(ending.lse_options);

  float sum = 0.0f;
  for (int64_t i = 0; i < states.num_states; ++i) {
    if (const float lse = lse_of(i); holds_slots(lse)) sum += std::exp(lse - max);
  }
  const float lse = max + std::log(sum);
  float share = 1.0f / sum;
  if (ending.sink != nullptr && ending.apply_sink) share *= sink_factor(lse, *ending.sink);
  for (int64_t i = 0; i < states.num_states; ++i) {
    if (!holds_slots(lse_of(i))) continue;
    const float weight = std::exp(lse_of(i) - max) * share;
    if (states.dtype == DType::kBFloat16) {
      const uint16_t* out = bf16_row(states, i);
      for (int d = 0; d < kHeadDim; ++d) merged[d] += weight * from_bf16(out[d]);
    } else {
      const float* out = float_row(states, i);
      for (int d = 0; d < kHeadDim; ++d) merged[d] += weight * out[d];
    }
  }
  for (int d = 0; d < kHeadDim; ++d) merged[d] *= ending.scale2;
  return reported_lse(lse, ending.sink, ending.lse_options);
}

void store_bf16(const float* values, uint16_t* out) {
  for (int d = 0; d < kHeadDim; ++d) out[d] = to_bf16(values[d]);
}

}  // namespace

void combine_splits(const DecodeJob& job) {
  const DecodeProblem& problem = *job.problem;
  const int64_t splits = job.plan.num_splits, heads = problem.heads;
  const Ending shared{nullptr, !problem.defer_sinks, scale_value(problem.scale2),
                      problem.lse_options};
  parallel_for_items(problem.executor, problem.batch * problem.q_len * heads, [&](int64_t item) {
    const int64_t row = item / heads, head = item % heads;
    const int64_t batch = row / problem.q_len, query = row % problem.q_len;
    const int64_t first = row * splits * heads + head;
    const States states{splits,          job.partial_lse + first,
                        heads,           false,
                        DType::kFloat32, job.partial_out + first * kHeadDim,
                        heads * kHeadDim};
    Ending ending = shared;
    ending.sink = problem.sinks != nullptr ? problem.sinks + head : nullptr;
    float merged[kHeadDim];
    const float lse = merge(states, ending, merged);
    store_bf16(merged, static_cast<uint16_t*>(problem.out.data) + batch * problem.out.batch_stride +
                           query * problem.out.row_stride + head * problem.out.head_stride);
    if (problem.lse.data != nullptr) {
      problem.lse.data[batch * problem.lse.batch_stride + query * problem.lse.row_stride +
                       head * problem.lse.head_stride] = lse;
    }
  });
}

Status merge_states(const MergeProblem& problem, Stream) {
  const float scale2 = scale_value(problem.scale2);
  const int64_t heads = problem.heads;
  parallel_for_items(problem.executor, problem.rows * heads, [&](int64_t item) {
    const int64_t row = item / heads, head = item % heads;
    const int64_t first = row * problem.out_row_stride + head * problem.out_head_stride;
    const int64_t element_bytes = problem.dtype == DType::kBFloat16 ? 2 : 4;
    const States states{
        problem.num_states,
        problem.partial_lse + row * problem.lse_row_stride + head * problem.lse_head_stride,
        problem.lse_state_stride,
        problem.lse_options.base2,
        problem.dtype,
        static_cast<const uint8_t*>(problem.partial_out) + first * element_bytes,
        problem.out_state_stride};
    const Ending ending{problem.sinks != nullptr ? problem.sinks + head : nullptr, true, scale2,
                        problem.lse_options};
    float merged[kHeadDim];
    const float lse = merge(states, ending, merged);
    if (problem.dtype == DType::kBFloat16) {
      store_bf16(merged, static_cast<uint16_t*>(problem.out) + item * kHeadDim);
    } else {
      std::copy(merged, merged + kHeadDim, static_cast<float*>(problem.out) + item * kHeadDim);
    }
    if (problem.lse != nullptr) problem.lse[item] = lse;
  });
  return {};
}

}  // namespace dsv4::cpu
