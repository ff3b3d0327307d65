// SPDX-License-Identifier: Apache-2.0
// The decode kernel of 65 to 128 heads, which a pair of blocks works on: what each of the two
// holds.
//
// One multiplication of the pair (cta_group::2, M = 128) reads half of the rows of B from each
// block, at one address. Its sums for the heads of a block stand in two halves of the lanes: lanes
// 0..63 for the rows of B of block 0, lanes 64..127 for those of block 1. Operand A in tensor
// memory is read by each half from its own lanes, which may differ. So every byte of a key serves
// both products, scores and outputs, from where it lies. "Half h" is lanes 64 h .. 64 h + 63: with
// head i of the block in lane 64 h + i, it has the scores of the keys in block h, and the outputs
// of dims 256 h .. 256 h + 255.
//
//   e4m3   a tile has 128 slots. Block r holds its 64 slots whole, in four blocks of 128 dims: dims
//          128 ((j + 2 r) % 4) in block j, so that blocks 0 and 1 are the dims of its own half. The
//          queries of half h are in the order of block h: a thread has complete scores. Blocks 4
//          and 5 are the dims of its own half once more, of the other block's slots.
//   bf16   a tile has 64 slots. Block r holds dims 256 r .. 256 r + 255 of them all, in four blocks
//          of 64 dims. A thread has the sum over half of the dims; two threads add theirs.
//
// With cta_group::2, no kernel known to run on hardware has A of 8 bits in tensor memory, or A in
// tensor memory with the rows of B along K (outputs), be its halves alike or not. Halves that
// differ are known of bf16 scores, and such a B with A in shared memory. Until a B200 has spoken,
// the PTX simulator stands in, and DSV4_SM100_PAIRS=0 does without: blocks alone (decode.cuh) need
// none.
#pragma once

#include "ptx/cluster.cuh"
#include "sm100/config.cuh"

namespace dsv4::sm100 {

template <class Cfg>
struct PairStorage;

template <class Format_>
struct PairConfig {
  using Format = Format_;
  using Storage = PairStorage<PairConfig>;
  static constexpr bool kSplitsDims = Format::kElementBytes == 2;
  static constexpr int kTileSlots = tile_slots(Format::kFormat);
  static constexpr int kSwizzleBytes = 128;
  static constexpr int kBlockSlots = 64;
  static constexpr int kBlockDims = kSwizzleBytes / Format::kElementBytes;
  static constexpr int kBlockBytes = kBlockSlots * kSwizzleBytes;
  static constexpr int kOwnBlocks = 4;                       // of both products
  static constexpr int kOtherBlocks = kSplitsDims ? 0 : 2;   // of the outputs alone
  static constexpr int kBlocks = kOwnBlocks + kOtherBlocks;  // of a tile
  static constexpr int kStages = kSplitsDims ? 6 : 4;        // tiles, as many as fit
  // The first dim of one of the blocks that block `rank` holds.
  __device__ __forceinline__ static int block_dim(int block, int rank) {
    if (kSplitsDims) return kHeadDim / 2 * rank + block * kBlockDims;
    return (block + 2 * rank) % 4 * kBlockDims;
  }

  // An instruction takes 32 bytes of each row of an operand.
  static constexpr int kStepBytes = 32;
  static constexpr int kStepColumns = kStepBytes / 4;  // of A in tensor memory
  static constexpr int kStepsPerBlock = kSwizzleBytes / kStepBytes;
  static constexpr int kSlotsPerStep = kStepBytes / Format::kElementBytes;
  static constexpr int kSlotSteps = kTileSlots / kSlotsPerStep;
  static constexpr int kScoreN = 2 * kBlockSlots, kOutputN = 256;

  // Warps by role. A softmax warp has the quarter of tensor memory that it may reach: half w / 2 of
  // heads w % 2 * 32 and on. The same lane of warp w ^ 2 is its partner, with the other half of the
  // head: each of the two weighs half of a tile's slots.
  static constexpr int kSoftmaxWarps = 4;
  static constexpr int kHeadsPerWarp = 32;
  static constexpr int kSlotsPerThread = kTileSlots / 2;
  static constexpr bool kRowGroups = false;  // 65 heads of a row and more
  static constexpr bool kComparesTables = false;
  // These two warps have nothing to do in block 1: the leader, block 0, multiplies for both.
  static constexpr int kScoreWarp = 4, kOutputWarp = 5, kFirstGatherWarp = 6;
  // As in Config.
  static constexpr bool kConverts = Format::kFormat == KvFormat::kPacked;
  static constexpr int kSlotsPerGatherWarp = kConverts ? 8 : kRunSlots;
  static constexpr int kLanesPerSlot = 32 / kSlotsPerGatherWarp;
  static constexpr int kGatherWarps = kTileSlots / kSlotsPerGatherWarp;
  static constexpr int kOwnGatherWarps = kBlockSlots / kSlotsPerGatherWarp;
  static constexpr int kThreads = 32 * (kFirstGatherWarp + kGatherWarps);
  static constexpr int kRowsPerGather = 4;
  static constexpr int kGathersPerWarp = kSlotsPerGatherWarp / kRowsPerGather;

  // The gather is kStages tiles ahead at most, and each may be of another row.
  static constexpr int kAssignments = kStages + 1;

  // What partners tell each other, in words of 16 bytes: weights, and sums over half of the dims.
  static constexpr int kWeightChunks = 4;
  static constexpr int kScoreChunks = kSplitsDims ? kSlotsPerThread / 4 : 0;

  // Tensor memory, in columns:
  //   outputs  256 dims of the lane's half
  //   query    of the lane's half, in the order of its blocks
  //   scores   of the keys in block 0 or 1
  //   weights  of all slots of a tile, in the order in which the outputs need them
  //   sums     of the weights as they are multiplied: weights x ones, the same in each column
  static constexpr uint32_t kOutputs = 0, kQuery = 256, kScores = 384, kWeights = 448, kSums = 480;
  static constexpr int kSumN = 16;
  static_assert(kWeights + kTileSlots * Format::kElementBytes / 4 == kSums);
  static_assert(kSums + kSumN / 2 <= ptx::kTensorColumns);
};

template <class Cfg>
struct PairStorage {
  alignas(1024) uint8_t blocks[Cfg::kStages][Cfg::kBlocks][Cfg::kBlockBytes];
  alignas(1024) uint32_t ones[Cfg::kSumN / 2][Cfg::kSwizzleBytes / 4];  // of which a step is used
  // Outputs of 32 heads, 64 bytes each, on their way to memory.
  alignas(128) uint8_t staging[Cfg::kSoftmaxWarps][32][64];
  uint4 exchange[Cfg::kSoftmaxWarps][Cfg::kScoreChunks + Cfg::kWeightChunks][32];
  float told[Cfg::kSoftmaxWarps][32];  // one number of each thread, for its partner
  alignas(16) uint32_t validity[Cfg::kStages][Cfg::kTileSlots / 32];  // a bit for each slot
  // From the lanes of a gather warp to the one that copies.
  alignas(16) int32_t rows[Cfg::kGatherWarps][Cfg::kSlotsPerGatherWarp];
  Assignment assignment[Cfg::kAssignments];
  uint32_t tensor_memory;

  // barrier                                  arrivals                      waited for by
  ptx::Mbarrier own_full[Cfg::kStages];       // gather warps of both, bytes   leader's score warp
  ptx::Mbarrier other_full[Cfg::kStages];     // gather warps of both, bytes   leader's output warp
  ptx::Mbarrier query_full;                   // softmax warps of both         leader's score warp
  ptx::Mbarrier scores_empty;                 // softmax warps of both         leader's score warp
  ptx::Mbarrier weights_full;                 // softmax warps of both         leader's output warp
  ptx::Mbarrier empty[Cfg::kStages];          // leader's output warp          gather warps
  ptx::Mbarrier scores_full;                  // leader's score warp           softmax
  ptx::Mbarrier outputs_full;                 // leader's output warp          softmax
  ptx::Mbarrier assigned[Cfg::kAssignments];  // own gather warp 0             all others
  ptx::Mbarrier finished[Cfg::kAssignments];  // own softmax warps             gather warp 0
  // The leader is block 0. A barrier lies in the block that waits for it. Validity comes with
  // own_full, and so with scores_full.
  // The query is free when the scores of its row's last tile are full; the weight buffer, when the
  // outputs are; outputs, when the weights of the next row's first tile are.

  // A warp does this.
  __device__ __forceinline__ void init_ones() {
    for (int i = threadIdx.x % 32; i < int(sizeof(ones) / 4); i += 32) {
      ones[0][i] = Cfg::Format::kOnes;
    }
    ptx::fence_shared_async();
  }

  // softmax_warps: of this block, and of both.
  __device__ __forceinline__ void init_barriers(int softmax_warps, int softmax_warps_of_pair) {
    for (int i = 0; i < Cfg::kStages; ++i) {
      own_full[i].init(2 * Cfg::kGatherWarps);
      if (!Cfg::kSplitsDims) other_full[i].init(2 * (Cfg::kGatherWarps - Cfg::kOwnGatherWarps));
      empty[i].init(1);
    }
    query_full.init(softmax_warps_of_pair);
    scores_empty.init(softmax_warps_of_pair);
    weights_full.init(softmax_warps_of_pair);
    scores_full.init(1);
    outputs_full.init(1);
    for (int i = 0; i < Cfg::kAssignments; ++i) {
      assigned[i].init(1);
      finished[i].init(softmax_warps);
    }
    ptx::fence_mbarrier_init();
  }
};

}  // namespace dsv4::sm100
