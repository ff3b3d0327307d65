// SPDX-License-Identifier: Apache-2.0
// Formats, roles, shared memory, barriers and tensor memory of the decode kernel.
#pragma once

#include "cuda/slot_stream.cuh"
#include "dsv4/kv_format.h"
#include "ptx/bulk_copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tcgen05.cuh"
#include "sm100/outputs.cuh"
#include "sm100/params.h"

namespace dsv4::sm100 {

// A granule of keys: all slots of a tile, some of their dims, as two blocks of 128 bytes a slot.
// The same bytes serve the scores, as rows along the dims, and the outputs, as columns.
//   kGranules: as many as fit into shared memory
struct Float8Format {
  static constexpr KvFormat kFormat = KvFormat::kFloat8E4M3;
  static constexpr ptx::TensorKind kKind = ptx::TensorKind::kFloat8;
  static constexpr int kElementBytes = 1;
  static constexpr int kGranules = 5;
  static constexpr uint32_t kOnes = 0x38383838;
  static constexpr float kReferenceSlack = 3.75f;
};

struct BFloat16Format {
  static constexpr KvFormat kFormat = KvFormat::kBFloat16;
  static constexpr ptx::TensorKind kKind = ptx::TensorKind::kBFloat16;
  static constexpr int kElementBytes = 2;
  static constexpr int kGranules = 9;
  static constexpr uint32_t kOnes = 0x3f803f80;
  static constexpr float kReferenceSlack = 8.0f;
};

// Packed keys become bf16, which holds them exactly, on their way to shared memory.
struct PackedFormat : BFloat16Format {
  static constexpr KvFormat kFormat = KvFormat::kPacked;
};

template <class Cfg>
struct SharedStorage;

// kRowGroups: rows that have one compressed table are decoded together (schedule.h).
// kComparesTables: or have tables of their own, which are compared.
template <class Format_, bool kRowGroups_, bool kComparesTables_>
struct Config {
  using Format = Format_;
  using Storage = SharedStorage<Config>;
  static constexpr int kTileSlots = tile_slots(Format::kFormat);
  static constexpr int kSwizzleBytes = 128;
  static constexpr int kBlockDims = kSwizzleBytes / Format::kElementBytes;
  static constexpr int kBlockBytes = kTileSlots * kSwizzleBytes;  // of keys
  static constexpr int kBlocksPerGranule = 2;
  static constexpr int kGranuleDims = kBlocksPerGranule * kBlockDims;
  static constexpr int kGranuleBytes = kBlocksPerGranule * kBlockBytes;
  static constexpr int kGranules = Format::kGranules;
  static constexpr int kGranulesPerTile = kHeadDim / kGranuleDims;
  static constexpr int kQueryBlocks = kHeadDim / kBlockDims;
  static constexpr int kQueryBlockBytes = kHeadTile * kSwizzleBytes;
  // An instruction takes 32 bytes of each row of an operand.
  static constexpr int kStepBytes = 32;
  static constexpr int kStepsPerBlock = kSwizzleBytes / kStepBytes;
  static constexpr int kSlotsPerStep = kStepBytes / Format::kElementBytes;
  static constexpr int kSlotSteps = kTileSlots / kSlotsPerStep;

  // Warps by role. A softmax warp has the quarter of tensor memory that it may reach: 16 heads.
  static constexpr int kSoftmaxWarps = 4;
  static constexpr int kHeadsPerWarp = kHeadTile / kSoftmaxWarps;
  // A gather warp copies 32 slots of a tile, with a lane for each; or loads and converts 8, with
  // four.
  static constexpr bool kConverts = Format::kFormat == KvFormat::kPacked;
  static constexpr int kScoreWarp = 4, kOutputWarp = 5, kFirstGatherWarp = 6;
  static constexpr int kSlotsPerGatherWarp = kConverts ? 8 : kRunSlots;
  static constexpr int kLanesPerSlot = 32 / kSlotsPerGatherWarp;
  static constexpr int kGatherWarps = kTileSlots / kSlotsPerGatherWarp;
  static constexpr int kThreads = 32 * (kFirstGatherWarp + kGatherWarps);
  static constexpr int kRowsPerGather = 4;
  static constexpr int kGathersPerWarp = kSlotsPerGatherWarp / kRowsPerGather;

  // The gather is three tiles ahead at most, and each may be of another row.
  static constexpr int kAssignments = 4;
  // A tile's validity is needed until its softmax, when the gather may be kGranules ahead.
  static constexpr int kValidityTiles = 4;
  static_assert(kGranules <= (kValidityTiles - 1) * kGranulesPerTile);

  static constexpr int kSlotsPerThread = kTileSlots / 2;  // softmax: two threads share a head
  static constexpr bool kRowGroups = kRowGroups_;
  static constexpr bool kComparesTables = kComparesTables_;
  static constexpr int kMaxRows = kRowGroups ? kMaxGroupRows : 1;
};

// Tensor memory, in columns. With M = 64 an accumulator fills 16 of the 32 lanes of each quarter,
// so that two stand side by side in the same columns: at lane 0 and at lane 16.
//   scores    two buffers side by side
//   outputs   dims 0..255 and 256..511 side by side
//   weights   two buffers, each twice: operand A is read from the lanes of the accumulator
//   sums      of the weights as they are multiplied: weights x ones, the same in each column
inline constexpr uint32_t kScoreColumn = 0, kOutputColumn = 128, kWeightColumn = 384;
inline constexpr uint32_t kSumColumn = 448;
inline constexpr int kWeightColumns = 32, kSumColumns = 8;
inline constexpr uint32_t kUpperLanes = ptx::tensor_lane(16);
static_assert(kWeightColumn + 2 * kWeightColumns <= kSumColumn);
static_assert(kSumColumn + kSumColumns <= ptx::kTensorColumns);

template <class Cfg>
__device__ __forceinline__ int32_t num_tiles(int32_t num_slots) {
  return num_steps<Cfg::kTileSlots>(num_slots);
}

template <class Cfg>
struct SharedStorage {
  alignas(1024) uint8_t granules[Cfg::kGranules][Cfg::kGranuleBytes];
  alignas(1024) uint8_t query[Cfg::kQueryBlocks][Cfg::kQueryBlockBytes];
  alignas(1024) uint32_t ones[kSumColumns][Cfg::kSwizzleBytes / 4];  // [column][slot of the tile]
  // Outputs of 16 heads, 64 bytes of each half of the dims, on their way to memory.
  alignas(128) uint8_t staging[Cfg::kSoftmaxWarps][32][64];
  // A bit for each slot that a row of the group sees.
  alignas(16) uint32_t validity[Cfg::kValidityTiles][Cfg::kMaxRows][Cfg::kTileSlots / 32];
  // From the lanes of a gather warp to the one that copies.
  alignas(16) int32_t rows[Cfg::kGatherWarps][Cfg::kSlotsPerGatherWarp];
  bool spoiled[Cfg::kRowGroups ? Cfg::kSoftmaxWarps : 1];  // slot_stream.cuh
  bool tables_differ[Cfg::kComparesTables ? Cfg::kGatherWarps : 1];
  GroupOfRows group[Cfg::kRowGroups ? Cfg::kGatherWarps : 1];
  Assignment assignment[Cfg::kAssignments];
  uint32_t tensor_memory;

  // barrier                                  arrivals                 waited for by
  ptx::Mbarrier full[Cfg::kGranules];         // gather warps, bytes   score warp, softmax
  ptx::Mbarrier empty[Cfg::kGranules];        // output warp           gather warps
  ptx::Mbarrier query_full;                   // score warp, bytes     score warp
  ptx::Mbarrier scores_full[2];               // score warp            softmax, score warp
  ptx::Mbarrier weights_full[2];              // softmax warps         output warp, score warp
  ptx::Mbarrier outputs_full[2];              // output warp           softmax
  ptx::Mbarrier assigned[Cfg::kAssignments];  // gather warp 0         all others
  ptx::Mbarrier finished[Cfg::kAssignments];  // softmax warps         gather warp 0
  // A score buffer is free when its weights are full; a weight buffer, when its outputs are;
  // outputs, when the weights of the next row's first tile are.

  // A warp does this. Of queries, the rows from `query_rows` on are never loaded.
  __device__ __forceinline__ void init_operands(int query_rows) {
    for (int i = threadIdx.x % 32; i < int(sizeof(ones) / 4); i += 32) {
      ones[0][i] = Cfg::Format::kOnes;
    }
    for (auto& block : query) {
      auto* const words = reinterpret_cast<uint4*>(block);
      constexpr int kWordsPerRow = Cfg::kSwizzleBytes / 16;
      for (int i = query_rows * kWordsPerRow + threadIdx.x % 32; i < kHeadTile * kWordsPerRow;
           i += 32) {
        words[i] = make_uint4(0, 0, 0, 0);
      }
    }
    ptx::fence_shared_async();
  }

  __device__ __forceinline__ void init_barriers(int softmax_warps) {
    if (Cfg::kRowGroups) {
      for (bool& flag : spoiled) flag = false;
      for (bool& flag : tables_differ) flag = false;
    }
    for (int i = 0; i < Cfg::kGranules; ++i) {
      full[i].init(Cfg::kGatherWarps);
      empty[i].init(1);
    }
    query_full.init(1);
    for (int i = 0; i < 2; ++i) {
      scores_full[i].init(1);
      weights_full[i].init(softmax_warps);
      outputs_full[i].init(1);
    }
    for (int i = 0; i < Cfg::kAssignments; ++i) {
      assigned[i].init(1);
      finished[i].init(softmax_warps);
    }
    ptx::fence_mbarrier_init();
  }
};

}  // namespace dsv4::sm100
