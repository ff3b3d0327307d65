// SPDX-License-Identifier: Apache-2.0
// The two roles that multiply: scores = queries x keys, outputs += weights x keys. One thread each;
// neither waits for the other's operands.
#pragma once

#include "ptx/tcgen05.cuh"
#include "ptx/tensor_copy.cuh"
#include "sm100/config.cuh"

namespace dsv4::sm100 {

template <class Cfg>
__device__ __forceinline__ void load_query(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                           int32_t row, int32_t first_head) {
  const RowPosition position = row_position(params.problem, row);
  smem.query_full.arrive_expect_bytes(Cfg::kQueryBlocks * Cfg::kSwizzleBytes * params.query_rows);
  for (int block = 0; block < Cfg::kQueryBlocks; ++block) {
    ptx::load_box(ptx::shared_address(smem.query[block]), params.query, block * Cfg::kBlockDims,
                  first_head, int(position.query), int(position.batch), smem.query_full);
  }
}

// The score role. Queries and keys both have their dims along the rows.
template <class Cfg>
__device__ __forceinline__ void multiply_scores(const DecodeParams& params,
                                                SharedStorage<Cfg>& smem, uint32_t tensor) {
  constexpr uint32_t kShape = ptx::mma_shape(Cfg::Format::kKind, kHeadTile, Cfg::kTileSlots, false);
  constexpr uint64_t kOperand = ptx::swizzled_operand(0);
  const uint64_t queries = ptx::at_address(kOperand, ptx::shared_address(smem.query));
  const uint32_t keys = ptx::shared_address(smem.granules);

  Ring<Cfg::kGranules> ring;
  Ring<2> buffer;
  uint32_t query_parity = 0;
  for (Ring<Cfg::kAssignments> works;; works.advance()) {
    smem.assigned[works.index].wait(works.full_parity());
    const Assignment& work = smem.assignment[works.index];
    if (work.row < 0) return;
    const int tiles = num_tiles<Cfg>(work.num_slots);
    load_query(params, smem, work.row, work.first_head);
    smem.query_full.wait(query_parity);
    query_parity ^= 1;

    for (int tile = 0; tile < tiles; ++tile) {
      smem.weights_full[buffer.index].wait(buffer.empty_parity());
      ptx::tensor_fence_after();
      const uint32_t scores = tensor + kScoreColumn + buffer.index * kUpperLanes;
      for (int granule = 0; granule < Cfg::kGranulesPerTile; ++granule, ring.advance()) {
        smem.full[ring.index].wait(ring.full_parity());
#pragma unroll
        for (int block = 0; block < Cfg::kBlocksPerGranule; ++block) {
          const uint64_t a =
              queries + ((granule * Cfg::kBlocksPerGranule + block) * Cfg::kQueryBlockBytes >> 4);
          const uint64_t b = ptx::at_address(
              kOperand, keys + ring.index * Cfg::kGranuleBytes + block * Cfg::kBlockBytes);
#pragma unroll
          for (int step = 0; step < Cfg::kStepsPerBlock; ++step) {
            constexpr int kStep = Cfg::kStepBytes >> 4;
            ptx::tensor_mma<Cfg::Format::kKind>(scores, a + step * kStep, b + step * kStep, kShape,
                                                granule + block + step > 0);
          }
        }
      }
      ptx::tensor_commit(smem.scores_full[buffer.index]);
      // The queries are free when the row's last scores are there.
      if (tile == tiles - 1) smem.scores_full[buffer.index].wait(buffer.full_parity());
      buffer.advance();
    }
  }
}

// The output role. The keys' slots are along K here, their dims along N. A column of ones beside
// the keys adds the weights up, rounded as they are: what all weights have in common cancels.
template <class Cfg>
__device__ __forceinline__ void multiply_outputs(SharedStorage<Cfg>& smem, uint32_t tensor) {
  constexpr uint32_t kShape =
      ptx::mma_shape(Cfg::Format::kKind, kHeadTile, Cfg::kGranuleDims, true);
  constexpr uint32_t kSumShape = ptx::mma_shape(Cfg::Format::kKind, kHeadTile, kSumColumns, false);
  constexpr uint64_t kOperand = ptx::swizzled_operand(Cfg::kBlockBytes);
  constexpr int kWeightStep = Cfg::kStepBytes / 4;  // columns
  const uint64_t ones = ptx::at_address(ptx::swizzled_operand(0), ptx::shared_address(smem.ones));
  const uint32_t keys = ptx::shared_address(smem.granules);

  Ring<Cfg::kGranules> ring;
  Ring<2> buffer;
  for (Ring<Cfg::kAssignments> works;; works.advance()) {
    smem.assigned[works.index].wait(works.full_parity());
    const Assignment& work = smem.assignment[works.index];
    if (work.row < 0) return;
    const int tiles = num_tiles<Cfg>(work.num_slots);

    for (int tile = 0; tile < tiles; ++tile, buffer.advance()) {
      smem.weights_full[buffer.index].wait(buffer.full_parity());
      ptx::tensor_fence_after();
      const uint32_t weights = tensor + kWeightColumn + buffer.index * kWeightColumns;
#pragma unroll
      for (int step = 0; step < Cfg::kSlotSteps; ++step) {
        ptx::tensor_mma<Cfg::Format::kKind>(tensor + kSumColumn, weights + step * kWeightStep,
                                            ones + step * (Cfg::kStepBytes >> 4), kSumShape,
                                            tile + step > 0);
      }
#pragma unroll 1
      for (int granule = 0; granule < Cfg::kGranulesPerTile; ++granule, ring.advance()) {
        const int dim = granule * Cfg::kGranuleDims;
        const uint32_t lanes = dim < kOutputColumns ? 0 : kUpperLanes;
        const uint32_t outputs = tensor + kOutputColumn + dim % kOutputColumns + lanes;
        const uint64_t b = ptx::at_address(kOperand, keys + ring.index * Cfg::kGranuleBytes);
#pragma unroll
        for (int step = 0; step < Cfg::kSlotSteps; ++step) {
          constexpr int kStep = Cfg::kSlotsPerStep * Cfg::kSwizzleBytes >> 4;
          ptx::tensor_mma<Cfg::Format::kKind>(outputs, weights + lanes + step * kWeightStep,
                                              b + step * kStep, kShape, tile + step > 0);
        }
        ptx::tensor_commit(smem.empty[ring.index]);
      }
      ptx::tensor_commit(smem.outputs_full[buffer.index]);
    }
  }
}

}  // namespace dsv4::sm100
