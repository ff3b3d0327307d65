// SPDX-License-Identifier: Apache-2.0
// The two roles that multiply for a pair of blocks: scores = queries x keys, outputs += weights x
// keys. One thread each, of the leader.
#pragma once

#include "ptx/tcgen05.cuh"
#include "sm100/pair_config.cuh"

namespace dsv4::sm100 {

// The score role. The queries are in tensor memory; the keys have their dims along the rows.
template <class Cfg>
__device__ __forceinline__ void multiply_scores_of_pair(PairStorage<Cfg>& smem, uint32_t tensor) {
  constexpr ptx::TensorKind kKind = Cfg::Format::kKind;
  constexpr uint32_t kShape = ptx::mma_shape(kKind, kPairHeadTile, Cfg::kScoreN, false);
  constexpr uint64_t kOperand = ptx::swizzled_operand(0);
  const uint32_t keys = ptx::shared_address(smem.blocks);

  Ring<Cfg::kStages> ring;
  Ring<1> turn;
  uint32_t query_parity = 0;
  for (Ring<Cfg::kAssignments> works;; works.advance()) {
    smem.assigned[works.index].wait(works.full_parity());
    const Assignment& work = smem.assignment[works.index];
    if (work.row < 0) return;
    const int tiles = num_tiles<Cfg>(work.num_slots);
    smem.query_full.wait(query_parity);
    query_parity ^= 1;

#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile, ring.advance(), turn.advance()) {
      smem.scores_empty.wait(turn.empty_parity());
      smem.own_full[ring.index].wait(ring.full_parity());
      ptx::tensor_fence_after();
      const uint64_t b =
          ptx::at_address(kOperand, keys + ring.index * uint32_t(Cfg::kBlocks * Cfg::kBlockBytes));
#pragma unroll
      for (int step = 0; step < Cfg::kOwnBlocks * Cfg::kStepsPerBlock; ++step) {
        const int block = step / Cfg::kStepsPerBlock, of_block = step % Cfg::kStepsPerBlock;
        ptx::tensor_mma<kKind, 2>(
            tensor + Cfg::kScores, tensor + Cfg::kQuery + step * Cfg::kStepColumns,
            b + ((block * Cfg::kBlockBytes + of_block * Cfg::kStepBytes) >> 4), kShape, step > 0);
      }
      ptx::tensor_commit_to_pair(smem.scores_full);
    }
  }
}

// Where step `step` of the slots of a tile lies, of the keys' dims 128 `quarter` and on: bytes from
// the tile's first block.
template <class Cfg>
__device__ __forceinline__ constexpr uint32_t value_offset(int quarter, int step) {
  const int slot = step * Cfg::kSlotsPerStep;
  const int block =
      Cfg::kSplitsDims ? 2 * quarter : quarter + slot / Cfg::kBlockSlots * Cfg::kOwnBlocks;
  return block * Cfg::kBlockBytes + slot % Cfg::kBlockSlots * Cfg::kSwizzleBytes;
}

// The output role. The keys' slots are along K here, their dims along N: of the two halves, 128
// each. A column of ones beside the keys adds the weights up, rounded as they are: what all weights
// have in common cancels.
template <class Cfg>
__device__ __forceinline__ void multiply_outputs_of_pair(PairStorage<Cfg>& smem, uint32_t tensor) {
  constexpr ptx::TensorKind kKind = Cfg::Format::kKind;
  constexpr uint32_t kShape = ptx::mma_shape(kKind, kPairHeadTile, Cfg::kOutputN, true);
  constexpr uint32_t kSumShape = ptx::mma_shape(kKind, kPairHeadTile, Cfg::kSumN, false);
  constexpr uint64_t kOperand = ptx::swizzled_operand(Cfg::kBlockBytes);
  constexpr int kOwnSteps = Cfg::kBlockSlots / Cfg::kSlotsPerStep;  // the others wait for more
  const uint64_t ones = ptx::at_address(ptx::swizzled_operand(0), ptx::shared_address(smem.ones));
  const uint32_t keys = ptx::shared_address(smem.blocks);

  Ring<Cfg::kStages> ring;
  Ring<1> turn;
  for (Ring<Cfg::kAssignments> works;; works.advance()) {
    smem.assigned[works.index].wait(works.full_parity());
    const Assignment& work = smem.assignment[works.index];
    if (work.row < 0) return;
    const int tiles = num_tiles<Cfg>(work.num_slots);

#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile, ring.advance(), turn.advance()) {
      const uint64_t b =
          ptx::at_address(kOperand, keys + ring.index * uint32_t(Cfg::kBlocks * Cfg::kBlockBytes));
      smem.weights_full.wait(turn.full_parity());
      ptx::tensor_fence_after();
#pragma unroll
      for (int step = 0; step < Cfg::kSlotSteps; ++step) {
        if (step == kOwnSteps) {
          smem.other_full[ring.index].wait(ring.full_parity());
        }
        const uint32_t weights = tensor + Cfg::kWeights + step * Cfg::kStepColumns;
        const bool adds = tile + step > 0;
        ptx::tensor_mma<kKind, 2>(tensor + Cfg::kSums, weights, ones, kSumShape, adds);
#pragma unroll
        for (int quarter = 0; quarter < 2; ++quarter) {
          ptx::tensor_mma<kKind, 2>(tensor + Cfg::kOutputs + quarter * Cfg::kOutputN / 2, weights,
                                    b + (value_offset<Cfg>(quarter, step) >> 4), kShape, adds);
        }
      }
      ptx::tensor_commit_to_pair(smem.empty[ring.index]);
      ptx::tensor_commit_to_pair(smem.outputs_full);
    }
  }
}

}  // namespace dsv4::sm100
