// SPDX-License-Identifier: Apache-2.0
// Online softmax of a block's heads over its slots, in base 2. Some neighbouring math threads share
// a head; each takes a few pairs of slots of a stage.
#pragma once

#include <math_constants.h>

#include "cuda/row_end.cuh"
#include "ptx/convert.cuh"
#include "ptx/warp.cuh"
#include "sm120/config.cuh"
#include "sm120/params.h"
#include "sm120/query.cuh"

namespace dsv4::sm120 {

inline constexpr float kMaxFloat = 3.402823466e38f;

// The reference of a head follows its largest score only when that is kReferenceSlack ahead, so
// that sums are seldom rescaled. A weight is 2^(score - reference + weight exponent), and is stored
//   as f16   with an exponent of 7: up to 2^15, which f16 holds; what is below 2^-24 does not count
//   as bf16  with the exponent at which n weights add up to at most 1, so that no sum of keys,
//            however large, overflows
inline constexpr int kReferenceSlack = 8;
inline constexpr int kFloat16WeightExponent = 7;

template <class Format>
__device__ __forceinline__ float weight_exponent(int32_t num_slots) {
  if constexpr (Format::kHalf == ptx::Half::kFloat16) return kFloat16WeightExponent;
  const int log2_slots = 32 - __clz(num_slots);  // rounded up
  return static_cast<float>(-log2_slots - kReferenceSlack);
}

template <class Cfg>
class Softmax {
  static constexpr int kPairs = Cfg::kPairsPerThread;

 public:
  __device__ __forceinline__ Softmax(const DecodeParams& params, SharedStorage<Cfg>& smem)
      : params_(params), smem_(smem) {}

  // At the beginning of a row, when smem.query_exponent is there.
  __device__ __forceinline__ void begin(float scale, const Assignment& work) {
    weight_exponent_ = weight_exponent<typename Cfg::Format>(work.num_slots);
    row_bit_ = 1u << row_of_head<Cfg::kRowGroups>(params_.problem, head());
    scale_ = scale * kLog2E;
    if constexpr (Cfg::Format::kHasScales) {
      const uint2 exponents = *reinterpret_cast<const uint2*>(smem_.query_exponent[head()]);
      scale_ *= ptx::exp2(static_cast<float>(-query_shift(head_exponent(exponents))));
    }
    reference_ = -CUDART_INF_F;
    sum_ = used_sum_ = 0.0f;
  }

  // A key is NaN: so are all scores from now on, and with them the row.
  __device__ __forceinline__ void spoil() { scale_ = CUDART_NAN_F; }

  // Scores of a stage -> weights, as bf16 or f16.
  template <ptx::Half kHalf>
  __device__ __forceinline__ void weigh(int stage) {
    float2 score[kPairs];
    float largest = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      score[i] = load_scores(i);
      const uchar2 valid = *reinterpret_cast<const uchar2*>(&smem_.valid[stage][slot(i)]);
      score[i].x = scaled(score[i].x, valid.x);
      score[i].y = scaled(score[i].y, valid.y);
      largest = fmaxf(largest, fmaxf(score[i].x, score[i].y));
    }

    // The factor is exactly 1 where the reference stays, also before the first valid slot.
    float factor = 1.0f;
    const float limit = reference_ + float(kReferenceSlack);
    if (__any_sync(0xffffffffu, largest > limit)) {
#pragma unroll
      for (int distance = 1; distance < Cfg::kThreadsPerHead; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
      }
      if (largest > limit) {
        factor = ptx::exp2(reference_ - largest);
        reference_ = largest;
      }
    }
    const float offset = (reference_ == -CUDART_INF_F ? 0.0f : reference_) - weight_exponent_;
    float sum = 0.0f, used_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float first = ptx::exp2(score[i].x - offset);
      const float second = ptx::exp2(score[i].y - offset);
      const uint32_t pair = ptx::pack<kHalf>(first, second);
      *reinterpret_cast<uint32_t*>(&smem_.weights[head()][slot(i)]) = pair;
      const float2 used = ptx::unpack<kHalf>(pair);
      sum += first + second;
      used_sum += used.x + used.y;
    }
    sum_ = sum_ * factor + sum;
    used_sum_ = used_sum_ * factor + used_sum;
    if (leads()) smem_.rescale[head()] = factor;
  }

  // At the end of a row's part: writes its lse, and what its sums are to be multiplied by.
  __device__ __forceinline__ void finish(const Assignment& work) {
#pragma unroll
    for (int distance = 1; distance < Cfg::kThreadsPerHead; distance *= 2) {
      sum_ += __shfl_xor_sync(0xffffffffu, sum_, distance);
      used_sum_ += __shfl_xor_sync(0xffffffffu, used_sum_, distance);
    }
    const DecodeProblem& problem = params_.problem;
    const int my_head = ptx::opaque(head());
    if (!leads() || my_head >= work.num_heads(problem)) return;

    const bool empty = sum_ == 0.0f;
    const float lse = reference_ - weight_exponent_ + log2f(sum_);
    float factor = empty ? 0.0f : __fdividef(1.0f, used_sum_);
    if (work.whole_row) {
      const int row = row_of_head<Cfg::kRowGroups>(problem, my_head);
      const int head = work.first_head + my_head - row * static_cast<int>(problem.heads);
      const float sink = sink_of_head(problem, head);
      if (!empty && !problem.defer_sinks) factor *= share_of_row(lse, sink);
      if (problem.lse.data != nullptr) {
        store_lse(problem, work.row + row, head, empty, lse, sink);
      }
    } else {
      params_.partial_lse[int64_t(work.part) * problem.heads + work.first_head + my_head] =
          empty ? -CUDART_INF_F : lse;
    }
    smem_.out_factor[my_head] = factor;
  }

 private:
  __device__ __forceinline__ static int head() { return threadIdx.x / Cfg::kThreadsPerHead; }
  __device__ __forceinline__ static bool leads() { return threadIdx.x % Cfg::kThreadsPerHead == 0; }
  // First slot of a pair.
  __device__ __forceinline__ static int slot(int pair) {
    return (pair * Cfg::kThreadsPerHead + threadIdx.x % Cfg::kThreadsPerHead) * 2;
  }

  // The parts of the dims meet here.
  __device__ __forceinline__ float2 load_scores(int pair) const {
    float2 score = *reinterpret_cast<const float2*>(&smem_.scores[0][head()][slot(pair)]);
#pragma unroll
    for (int part = 1; part < Cfg::kDimParts; ++part) {
      const float2 two = *reinterpret_cast<const float2*>(&smem_.scores[part][head()][slot(pair)]);
      score.x += two.x;
      score.y += two.y;
    }
    return score;
  }

  // An overflow on the way here must not give inf - inf later.
  __device__ __forceinline__ float scaled(float score, uint8_t valid) const {
    const float finite = ptx::max_nan(ptx::min_nan(score * scale_, kMaxFloat), -kMaxFloat);
    return (Cfg::kRowGroups ? valid & row_bit_ : valid) != 0 ? finite : -CUDART_INF_F;
  }

  const DecodeParams& params_;
  SharedStorage<Cfg>& smem_;
  float weight_exponent_;
  uint32_t row_bit_;  // of the head's row in its group
  float scale_;
  float reference_;
  float sum_;       // of weights, for lse
  float used_sum_;  // of weights as stored, so that equal keys come out as they went in
};

}  // namespace dsv4::sm120
