// SPDX-License-Identifier: Apache-2.0
// The softmax warps' role: scores -> weights, tile by tile; at the end of a row, sums -> outputs.
// Thread t of warp w has head 16 w + t % 16, and half t / 16 of each tile's slots.
#pragma once

#include <math_constants.h>

#include "cuda/row_end.cuh"
#include "ptx/convert.cuh"
#include "ptx/float_pair.cuh"
#include "ptx/tcgen05.cuh"
#include "sm100/config.cuh"

namespace dsv4::sm100 {

// A weight is 2^(score - reference + weight exponent). The reference is the largest score when it
// was set, and is set anew when a score is kReferenceSlack ahead. The largest weights are
//   e4m3   below 448, where it ends
//   bf16   such that all of a row's add up to at most 1, so that no sum of keys overflows
template <class Format>
__device__ __forceinline__ float weight_exponent(int32_t num_slots) {
  if constexpr (Format::kKind == ptx::TensorKind::kFloat8) return 5.0f;
  const int log2_slots = 32 - __clz(num_slots);  // rounded up
  return static_cast<float>(-log2_slots) - Format::kReferenceSlack;
}

template <class Cfg>
class Softmax {
  using Format = typename Cfg::Format;
  static constexpr int kSlots = Cfg::kSlotsPerThread, kPairs = kSlots / 2;
  static constexpr int kValidityWords = kSlots / 32;
  static constexpr uint32_t kAllLanes = 0xffffffffu;

 public:
  __device__ __forceinline__ Softmax(SharedStorage<Cfg>& smem, uint32_t tensor)
      : smem_(smem), tensor_(tensor) {}

  // At the beginning of a row.
  __device__ __forceinline__ void begin(float scale, int32_t num_slots) {
    scale_ = scale * kLog2E;
    weight_exponent_ = weight_exponent<Format>(num_slots);
    shift_ = 0.0f;
    is_set_ = false;
    sum_ = make_float2(0.0f, 0.0f);
  }

  // Scores of the next tile, the `tile`-th of its row -> weights.
  __device__ __forceinline__ void weigh(int tile) {
    smem_.full[granule_.index].wait(granule_.full_parity());  // with it comes the validity
    const bool has_holes = load_validity();
    smem_.scores_full[buffer_.index].wait(buffer_.full_parity());
    ptx::tensor_fence_after();
    float2 x[kPairs];
    load_scores(x);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      x[i] = ptx::multiply_add(x[i], make_float2(scale_, scale_), make_float2(shift_, shift_));
    }
    if (has_holes) drop_holes(x);
    follow(x, tile);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = make_float2(ptx::exp2(x[i].x), ptx::exp2(x[i].y));
    store_weights(x);
    add_weights(x);
    for (int i = 0; i < Cfg::kGranulesPerTile; ++i) granule_.advance();
    buffer_.advance();
    validity_ = (validity_ + 1) % Cfg::kValidityTiles;
  }

  // At the end of a row or part, when the outputs are there: log2 of the sum of exp2(scores);
  // what to multiply outputs by; whether there was no valid slot.
  struct Total {
    float lse, reciprocal;
    bool is_empty;
  };
  __device__ __forceinline__ Total total() const {
    float sum = sum_.x + sum_.y;
    sum += __shfl_xor_sync(kAllLanes, sum, 16);
    const float rounded_sum = ptx::tensor_load_column(tensor_ + kSumColumn);
    ptx::tensor_wait_loads();
    const float of_head = __shfl_sync(kAllLanes, rounded_sum, threadIdx.x % 16);
    const bool is_empty = sum == 0.0f;
    return {log2f(sum) - shift_, is_empty ? 0.0f : __fdividef(1.0f, of_head), is_empty};
  }

  // Waits for the outputs of the tile before the next one.
  __device__ __forceinline__ void wait_for_outputs() const {
    // One behind the ring: the other buffer, of this phase if that is the first.
    const int before = buffer_.index ^ 1;
    smem_.outputs_full[before].wait(before == 1 ? buffer_.empty_parity() : buffer_.full_parity());
    ptx::tensor_fence_after();
  }

 private:
  __device__ __forceinline__ static int half() { return threadIdx.x / 16 % 2; }

  // True if a slot of the tile, of either half, is a hole.
  __device__ __forceinline__ bool load_validity() {
    uint32_t all = ~0u;
#pragma unroll
    for (int i = 0; i < kValidityWords; ++i) {
      valid_[i] = smem_.validity[validity_][half() * kValidityWords + i];
      all &= valid_[i];
    }
    return !__all_sync(kAllLanes, all == ~0u);
  }

  __device__ __forceinline__ void load_scores(float2 (&x)[kPairs]) const {
    uint32_t bits[kSlots];
    ptx::tensor_load_halves(tensor_ + kScoreColumn + buffer_.index * kUpperLanes, bits);
    ptx::tensor_wait_loads();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      x[i] = make_float2(__uint_as_float(bits[2 * i]), __uint_as_float(bits[2 * i + 1]));
    }
  }

  __device__ __forceinline__ bool is_valid(int slot) const {
    return valid_[slot / 32] >> slot % 32 & 1;
  }

  __device__ __forceinline__ void drop_holes(float2 (&x)[kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      x[i].x = is_valid(2 * i) ? x[i].x : -CUDART_INF_F;
      x[i].y = is_valid(2 * i + 1) ? x[i].y : -CUDART_INF_F;
    }
  }

  __device__ __forceinline__ static float largest_of(const float2 (&x)[kPairs]) {
    float largest[4] = {-CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      largest[i % 4] = ptx::max_of_three(largest[i % 4], x[i].x, x[i].y);
    }
    return fmaxf(ptx::max_of_three(largest[0], largest[1], largest[2]), largest[3]);
  }

  // Moves the reference of heads whose weights would grow too large, or have none yet.
  __device__ __forceinline__ void follow(float2 (&x)[kPairs], int tile) {
    float largest = largest_of(x);
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 16));
    const bool moves = largest > weight_exponent_ + Format::kReferenceSlack ||
                       (!is_set_ && largest > -CUDART_INF_F);
    if (!__any_sync(kAllLanes, moves)) return;

    const float change = moves ? weight_exponent_ - largest : 0.0f;
    const float factor = moves ? (is_set_ ? ptx::exp2(change) : 0.0f) : 1.0f;
    is_set_ = is_set_ || moves;
    shift_ += change;
    sum_ = ptx::multiply(sum_, make_float2(factor, factor));
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = ptx::add(x[i], make_float2(change, change));
    if (tile > 0) rescale_outputs(factor);
  }

  __device__ __forceinline__ void rescale_outputs(float factor) const {
    wait_for_outputs();
    const float sum = ptx::tensor_load_column(tensor_ + kSumColumn);
    ptx::tensor_wait_loads();
    ptx::tensor_store_column(tensor_ + kSumColumn, sum * factor);
#pragma unroll 1
    for (int column = 0; column < kOutputColumns; column += 32) {
      uint32_t bits[32];
      ptx::tensor_load(tensor_ + kOutputColumn + column, bits);
      ptx::tensor_wait_loads();
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const float2 scaled =
            ptx::multiply(make_float2(__uint_as_float(bits[i]), __uint_as_float(bits[i + 1])),
                          make_float2(factor, factor));
        bits[i] = __float_as_uint(scaled.x);
        bits[i + 1] = __float_as_uint(scaled.y);
      }
      ptx::tensor_store(tensor_ + kOutputColumn + column, bits);
    }
    ptx::tensor_wait_stores();
  }

  __device__ __forceinline__ void store_weights(const float2 (&x)[kPairs]) const {
    uint32_t words[Cfg::kWeightWords];
#pragma unroll
    for (int i = 0; i < Cfg::kWeightWords; ++i) {
      if constexpr (Format::kKind == ptx::TensorKind::kFloat8) {
        words[i] = ptx::pack_e4m3(x[2 * i].x, x[2 * i].y, x[2 * i + 1].x, x[2 * i + 1].y);
      } else {
        words[i] = ptx::pack<ptx::Half::kBFloat16>(x[i].x, x[i].y);
      }
    }
    smem_.outputs_full[buffer_.index].wait(buffer_.empty_parity());
    ptx::tensor_fence_after();
    const uint32_t target = tensor_ + kWeightColumn + buffer_.index * kWeightColumns;
    ptx::tensor_store_halves(target, words);
    ptx::tensor_store_halves(target + kUpperLanes, words);
    ptx::tensor_wait_stores();
    ptx::tensor_fence_before();
    __syncwarp();
    if (threadIdx.x % 32 == 0) smem_.weights_full[buffer_.index].arrive();
  }

  __device__ __forceinline__ void add_weights(const float2 (&x)[kPairs]) {
    float2 part[2] = {sum_, make_float2(0.0f, 0.0f)};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) part[i % 2] = ptx::add(part[i % 2], x[i]);
    sum_ = ptx::add(part[0], part[1]);
  }

  SharedStorage<Cfg>& smem_;
  const uint32_t tensor_;
  Ring<Cfg::kGranules> granule_;  // first one of the next tile
  Ring<2> buffer_;
  int validity_ = 0;
  uint32_t valid_[kValidityWords];
  float scale_;
  float weight_exponent_;
  float shift_;  // weight exponent - reference
  bool is_set_;  // some slot was valid
  float2 sum_;
};

}  // namespace dsv4::sm100
