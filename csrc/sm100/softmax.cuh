// SPDX-License-Identifier: Apache-2.0
// The softmax warps' role: scores -> weights, tile by tile; at the end of a row, sums -> outputs.
// Thread t of warp w has head 16 w + t % 16, and half t / 16 of each tile's slots.
#pragma once

#include <math_constants.h>

#include "cuda/row_end.cuh"
#include "ptx/float_pair.cuh"
#include "ptx/tcgen05.cuh"
#include "sm100/config.cuh"
#include "sm100/finish.cuh"
#include "sm100/weights.cuh"

namespace dsv4::sm100 {

template <class Cfg>
class Softmax {
  using Format = typename Cfg::Format;
  static constexpr int kSlots = Cfg::kSlotsPerThread, kPairs = kSlots / 2;
  static constexpr int kValidityWords = kSlots / 32;
  static constexpr uint32_t kAllLanes = 0xffffffffu;

 public:
  __device__ __forceinline__ Softmax(SharedStorage<Cfg>& smem, uint32_t tensor)
      : smem_(smem), tensor_(tensor) {}

  // At the beginning of a row. `row`: of the head in its group.
  __device__ __forceinline__ void begin(float scale, int32_t num_slots, int row) {
    row_ = min(row, Cfg::kMaxRows - 1);  // beyond it are no heads
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
    if (has_holes) drop_holes(x, valid_);
    follow(x, tile);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = make_float2(ptx::exp2(x[i].x), ptx::exp2(x[i].y));
    store_weights(x);
    sum_ = add_all(sum_, x);
    for (int i = 0; i < Cfg::kGranulesPerTile; ++i) granule_.advance();
    buffer_.advance();
    validity_ = (validity_ + 1) % Cfg::kValidityTiles;
  }

  // At the end of a row or part, when the outputs are there.
  __device__ __forceinline__ RowTotal total() const {
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
      valid_[i] = smem_.validity[validity_][row_][half() * kValidityWords + i];
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

  // The stores are over when those of the weights are.
  __device__ __forceinline__ void rescale_outputs(float factor) const {
    wait_for_outputs();
    const float sum = ptx::tensor_load_column(tensor_ + kSumColumn);
    ptx::tensor_wait_loads();
    ptx::tensor_store_column(tensor_ + kSumColumn, sum * factor);
    scale_columns<kOutputColumns>(tensor_ + kOutputColumn, factor);
  }

  __device__ __forceinline__ void store_weights(const float2 (&x)[kPairs]) const {
    uint32_t words[kWeightWords];
    round_weights<Format>(x, words);
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

  SharedStorage<Cfg>& smem_;
  const uint32_t tensor_;
  Ring<Cfg::kGranules> granule_;  // first one of the next tile
  Ring<2> buffer_;
  int validity_ = 0;
  uint32_t valid_[kValidityWords];
  int row_;
  float scale_;
  float weight_exponent_;
  float shift_;  // weight exponent - reference
  bool is_set_;  // some slot was valid
  float2 sum_;
};

}  // namespace dsv4::sm100
