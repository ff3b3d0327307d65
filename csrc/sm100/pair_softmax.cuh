// SPDX-License-Identifier: Apache-2.0
// The softmax warps' role in one of a pair of blocks: query -> tensor memory; scores -> weights,
// tile by tile; at the end of a row, sums -> outputs.
#pragma once

#include <math_constants.h>

#include "cuda/row_end.cuh"
#include "ptx/float_pair.cuh"
#include "ptx/tcgen05.cuh"
#include "ptx/warp.cuh"
#include "sm100/finish.cuh"
#include "sm100/pair_config.cuh"
#include "sm100/weights.cuh"

namespace dsv4::sm100 {

template <class Cfg>
class PairSoftmax {
  using Format = typename Cfg::Format;
  static constexpr int kSlots = Cfg::kSlotsPerThread, kPairs = kSlots / 2;
  static constexpr int kValidityWords = kSlots / 32;
  static constexpr int kPartners = 64;  // threads of two warps

 public:
  __device__ __forceinline__ PairSoftmax(PairStorage<Cfg>& smem, uint32_t tensor, int warp)
      : smem_(smem), tensor_(tensor), warp_(warp) {}

  // The query of the thread's head; a thread without a head takes the last one, for nothing. The
  // multiplications with the one before must be over.
  __device__ __forceinline__ void load_query(const DecodeProblem& problem, int32_t row,
                                             int first_head) {
    const int64_t head = min(int64_t(first_head) + threadIdx.x % 32, problem.heads - 1);
    const RowPosition position = row_position(problem, row);
    const auto* query =
        static_cast<const uint8_t*>(problem.query.data) +
        (position.batch * problem.query.batch_stride + position.query * problem.query.row_stride +
         head * problem.query.head_stride) *
            Format::kElementBytes;
    constexpr int kWords = Cfg::kSwizzleBytes / 4;
#pragma unroll 2  // as many loads at a time as there are registers for
    for (int block = 0; block < Cfg::kOwnBlocks; ++block) {
      const auto* source = reinterpret_cast<const uint4*>(query + Cfg::block_dim(block, half()) *
                                                                      Format::kElementBytes);
      uint32_t words[kWords];
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = __ldg(source + i / 4);
        words[i] = four.x;
        words[i + 1] = four.y;
        words[i + 2] = four.z;
        words[i + 3] = four.w;
      }
      ptx::tensor_store(tensor_ + Cfg::kQuery + block * kWords, words);
    }
    ptx::tensor_wait_stores();
    tell_leader(smem_.query_full);
  }

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
    smem_.scores_full.wait(turn_.full_parity());  // with it comes the validity
    ptx::tensor_fence_after();
    const bool has_holes = load_validity();
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
    stage_.advance();
    turn_.advance();
  }

  // Waits for the outputs of the tile before the next one.
  __device__ __forceinline__ void wait_for_outputs() const {
    smem_.outputs_full.wait(turn_.empty_parity());
    ptx::tensor_fence_after();
  }

  // At the end of a row or part, when the outputs are there.
  __device__ __forceinline__ RowTotal total() const {
    float sum = sum_.x + sum_.y;
    sum += of_partner(sum);
    const float rounded_sum = ptx::tensor_load_column(tensor_ + Cfg::kSums);
    ptx::tensor_wait_loads();
    const bool is_empty = sum == 0.0f;
    return {log2f(sum) - shift_, is_empty ? 0.0f : __fdividef(1.0f, rounded_sum), is_empty};
  }

 private:
  __device__ __forceinline__ int half() const { return warp_ / 2; }
  __device__ __forceinline__ int barrier() const { return 1 + warp_ % 2; }
  __device__ __forceinline__ void meet_partners() const { ptx::sync_threads<kPartners>(barrier()); }

  // When all lanes have done what the leader shall know.
  __device__ __forceinline__ void tell_leader(const ptx::Mbarrier& barrier) const {
    ptx::tensor_fence_before();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::RemoteMbarrier(barrier, 0).arrive();
  }

  // The partner's number. Between two of these, partners meet once more.
  __device__ __forceinline__ float of_partner(float mine) const {
    const int lane = threadIdx.x % 32;
    smem_.told[warp_][lane] = mine;
    meet_partners();
    return smem_.told[warp_ ^ 2][lane];
  }

  // True if one of the warp's slots of the tile is a hole.
  __device__ __forceinline__ bool load_validity() {
    uint32_t all = ~0u;
#pragma unroll
    for (int i = 0; i < kValidityWords; ++i) {
      valid_[i] = smem_.validity[stage_.index][half() * kValidityWords + i];
      all &= valid_[i];
    }
    return all != ~0u;
  }

  __device__ __forceinline__ void load_scores(float2 (&x)[kPairs]) const {
    constexpr int kColumns = 32;  // at a time
    const uint32_t scores = tensor_ + Cfg::kScores;
    float sums[2][kColumns];
    ptx::tensor_load(scores + (Cfg::kSplitsDims ? half() * kColumns : 0), sums[0]);
    ptx::tensor_load(scores + (Cfg::kSplitsDims ? (half() ^ 1) * kColumns : kColumns), sums[1]);
    ptx::tensor_wait_loads();
    tell_leader(smem_.scores_empty);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float* pair = &sums[2 * i / kColumns][2 * i % kColumns];
      x[i] = make_float2(pair[0], pair[1]);
    }
    if constexpr (Cfg::kSplitsDims) add_other_dims(x, sums[1]);
  }

  // Of the slots of the partner, this thread has the sums over half of the dims, and the partner of
  // this one's.
  __device__ __forceinline__ void add_other_dims(float2 (&x)[kPairs],
                                                 const float (&of_partner)[kSlots]) const {
    const int lane = threadIdx.x % 32;
    const auto chunk = [&](int warp, int i) {
      return reinterpret_cast<float4*>(&smem_.exchange[warp][i][lane]);
    };
#pragma unroll
    for (int i = 0; i < Cfg::kScoreChunks; ++i) {
      *chunk(warp_, i) = make_float4(of_partner[4 * i], of_partner[4 * i + 1],
                                     of_partner[4 * i + 2], of_partner[4 * i + 3]);
    }
    meet_partners();
#pragma unroll
    for (int i = 0; i < Cfg::kScoreChunks; ++i) {
      const float4 four = *chunk(warp_ ^ 2, i);
      x[2 * i] = ptx::add(x[2 * i], make_float2(four.x, four.y));
      x[2 * i + 1] = ptx::add(x[2 * i + 1], make_float2(four.z, four.w));
    }
  }

  // Moves the reference of heads whose weights would grow too large, or have none yet. Partners do
  // the same: what both have of a head is added up.
  __device__ __forceinline__ void follow(float2 (&x)[kPairs], int tile) {
    float largest = largest_of(x);
    if (!ptx::sync_threads_or<kPartners>(barrier(), must_move(largest))) return;

    largest = fmaxf(largest, of_partner(largest));
    const bool moves = must_move(largest);
    const float change = moves ? weight_exponent_ - largest : 0.0f;
    const float factor = moves ? (is_set_ ? ptx::exp2(change) : 0.0f) : 1.0f;
    is_set_ = is_set_ || moves;
    shift_ += change;
    sum_ = ptx::multiply(sum_, make_float2(factor, factor));
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = ptx::add(x[i], make_float2(change, change));
    if (tile > 0) rescale_outputs(factor);
  }

  __device__ __forceinline__ bool must_move(float largest) const {
    return largest > weight_exponent_ + Format::kReferenceSlack ||
           (!is_set_ && largest > -CUDART_INF_F);
  }

  // The stores are over when those of the weights are.
  __device__ __forceinline__ void rescale_outputs(float factor) const {
    wait_for_outputs();
    const float sum = ptx::tensor_load_column(tensor_ + Cfg::kSums);
    ptx::tensor_wait_loads();
    ptx::tensor_store_column(tensor_ + Cfg::kSums, sum * factor);
    scale_columns<kOutputColumns>(tensor_ + Cfg::kOutputs, factor);
  }

  // Both partners need the weights of all slots: own ones, and the other's. Adds its own up.
  __device__ __forceinline__ void store_weights(const float2 (&x)[kPairs]) {
    constexpr int kColumns = kWeightWords;
    const uint32_t weights = tensor_ + Cfg::kWeights;
    uint4* const mine = &smem_.exchange[warp_][Cfg::kScoreChunks][threadIdx.x % 32];
    const uint4* const others = &smem_.exchange[warp_ ^ 2][Cfg::kScoreChunks][threadIdx.x % 32];
    uint32_t words[kColumns];
    round_weights<Format>(x, words);
#pragma unroll
    for (int i = 0; i < Cfg::kWeightChunks; ++i) {
      mine[i * 32] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
    sum_ = add_all(sum_, x);
    wait_for_outputs();
    ptx::tensor_store(weights + (Cfg::kSplitsDims ? half() * kColumns : 0), words);
    meet_partners();
#pragma unroll
    for (int i = 0; i < Cfg::kWeightChunks; ++i) {
      const uint4 four = others[i * 32];
      words[4 * i] = four.x;
      words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z;
      words[4 * i + 3] = four.w;
    }
    ptx::tensor_store(weights + (Cfg::kSplitsDims ? (half() ^ 1) * kColumns : kColumns), words);
    ptx::tensor_wait_stores();
    tell_leader(smem_.weights_full);
  }

  PairStorage<Cfg>& smem_;
  const uint32_t tensor_;
  const int warp_;
  Ring<Cfg::kStages> stage_;
  Ring<1> turn_;  // of the buffers of scores, weights and outputs
  uint32_t valid_[kValidityWords];
  float scale_;
  float weight_exponent_;
  float shift_;  // weight exponent - reference
  bool is_set_;  // some slot was valid
  float2 sum_;
};

}  // namespace dsv4::sm100
