// SPDX-License-Identifier: Apache-2.0
// Formats, tiles and shared memory of the decode kernel.
#pragma once

#include "cuda/slot_stream.cuh"
#include "dsv4/kv_format.h"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "sm120/params.h"

namespace dsv4::sm120 {

// The 512 dims of a key are 8 groups of 64. A packed key has its own scale for each of the first 7;
// the last is bf16.
inline constexpr int kGroupDims = PackedPage::kQuantGroup;
inline constexpr int kNumGroups = kHeadDim / kGroupDims;

// kSlotPitch: bytes from slot to slot in shared memory. 16 or 80 modulo 128 let the reads of
// products.cuh meet each bank once: 4 slots apart are half of the banks, 2 slots a quarter.
struct PackedFormat {
  static constexpr KvFormat kFormat = KvFormat::kPacked;
  static constexpr int kKeyBytes = PackedPage::kTokenDataBytes;
  static constexpr int kScaleOffset = kKeyBytes;  // the 8 scale bytes stand behind the key
  static constexpr int kSlotPitch = kKeyBytes + PackedPage::kTokenScaleBytes + 8;
  static constexpr int kFloat8Groups = PackedPage::kNumScales;  // the groups behind are bf16
  static constexpr bool kHasScales = true;
  static constexpr ptx::Half kHalf = ptx::Half::kFloat16;  // holds e4m3 exactly
};

struct Float8Format {
  static constexpr KvFormat kFormat = KvFormat::kFloat8E4M3;
  static constexpr int kKeyBytes = kHeadDim;
  static constexpr int kSlotPitch = kKeyBytes + 16;
  static constexpr int kFloat8Groups = kNumGroups;
  static constexpr bool kHasScales = false;
  static constexpr ptx::Half kHalf = ptx::Half::kFloat16;
};

struct BFloat16Format {
  static constexpr KvFormat kFormat = KvFormat::kBFloat16;
  static constexpr int kKeyBytes = kHeadDim * 2;
  static constexpr int kSlotPitch = kKeyBytes + 16;
  static constexpr int kFloat8Groups = 0;
  static constexpr bool kHasScales = false;
  static constexpr ptx::Half kHalf = ptx::Half::kBFloat16;
};

// Bytes before a group in a key.
template <class Format>
__device__ __forceinline__ constexpr int group_offset(int group) {
  return group < Format::kFloat8Groups ? group * kGroupDims
                                       : Format::kFloat8Groups * kGroupDims +
                                             (group - Format::kFloat8Groups) * kGroupDims * 2;
}

// kRowGroups: rows that have one compressed table are decoded together (schedule.h).
// kComparesTables: or have tables of their own, which are compared.
template <class Format_, int kHeadTile_, bool kRowGroups_, bool kComparesTables_>
struct Config {
  using Format = Format_;
  static constexpr int kHeadTile = kHeadTile_;
  static constexpr bool kRowGroups = kRowGroups_;
  static constexpr bool kComparesTables = kComparesTables_;
  static constexpr int kRowTiles = kHeadTile / 16;  // tiles of an mma
  static constexpr int kStages = 2;
  // A producer is two stages ahead, and each stage may be of another row.
  static constexpr int kAssignments = 4;
  static constexpr int kStageSlots = stage_slots(Format::kFormat, kHeadTile);

  // Scores: the dims are cut in two or four, the slots in four or two; a math warp takes one of
  // each. It keeps its dims of the queries in registers: 16 heads x 256 dims, or 32 x 128.
  static constexpr int kMathWarps = 8;
  static constexpr int kDimParts = kHeadTile / 8;
  static constexpr int kSlotParts = kMathWarps / kDimParts;
  static constexpr int kGroupsPerWarp = kNumGroups / kDimParts;
  static constexpr int kSlotsPerWarp = kStageSlots / kSlotParts;
  static constexpr int kSlotTiles = kSlotsPerWarp / 8;

  // Outputs: a math warp takes one group of dims, and the slots in steps of an mma's 16.
  static_assert(kMathWarps == kNumGroups);
  static constexpr int kSlotSteps = kStageSlots / 16;

  // A bulk copy occupies its warp: from one warp 1.5 TB/s were measured on an H200, and four were
  // enough.
  static constexpr int kProducerWarps = 4;
  static constexpr int kSlotsPerProducer = kStageSlots / kProducerWarps;

  static constexpr int kMathThreads = 32 * kMathWarps;
  static constexpr int kThreads = kMathThreads + 32 * kProducerWarps;

  // Registers a thread: the block's 64 K, divided by need.
  static constexpr int kMathRegisters = kRowTiles == 2 && Format::kHasScales ? 216 : 208;
  static constexpr int kProducerRegisters = kMathRegisters == 208 ? 88 : 72;
  static_assert(kMathRegisters * kMathThreads + kProducerRegisters * 32 * kProducerWarps <= 65536);

  // Softmax: 16 or 8 threads share a head and take pairs of slots in turn.
  static constexpr int kThreadsPerHead = kMathThreads / kHeadTile;
  static constexpr int kPairsPerThread = kStageSlots / 2 / kThreadsPerHead;
};

template <class Cfg>
__device__ __forceinline__ int32_t num_stages(int32_t num_slots) {
  return num_steps<Cfg::kStageSlots>(num_slots);
}

template <class Cfg>
struct SharedStorage {
  static constexpr int kScorePitch = Cfg::kStageSlots + 4;  // floats; rows 4 banks apart
  static constexpr int kQueryGroups = Cfg::Format::kHasScales ? kNumGroups : 1;
  static constexpr int kWeightPitch = Cfg::kStageSlots + 8;  // 16-bit values; rows 4 banks apart

  alignas(128) uint8_t keys[Cfg::kStages][Cfg::kStageSlots][Cfg::Format::kSlotPitch];
  union {
    alignas(16) float scores[Cfg::kDimParts][Cfg::kHeadTile][kScorePitch];  // to be added up
    // Queries of packed keys on their way to registers, before a row's first scores.
    uint4 fragments[kQueryGroups][4][Cfg::kRowTiles][32];
    // Outputs of 8 heads, of each math warp, on their way to memory, behind a row's last scores.
    alignas(16) float staging[Cfg::kMathWarps][8][kGroupDims + 4];
  };
  alignas(16) uint16_t weights[Cfg::kHeadTile][kWeightPitch];
  float rescale[Cfg::kHeadTile];     // of sums so far, where a head's reference moved
  float out_factor[Cfg::kHeadTile];  // of sums at the end of a row
  alignas(8) uint8_t query_exponent[Cfg::kHeadTile][kNumGroups];
  float group_factor[Cfg::kHeadTile][kNumGroups];
  alignas(8) uint8_t scale_kind[Cfg::kMathWarps];            // what each math warp has found
  alignas(4) uint8_t valid[Cfg::kStages][Cfg::kStageSlots];  // a bit for each row that sees it
  bool spoiled[Cfg::kRowGroups ? Cfg::kMathWarps : 1];       // slot_stream.cuh
  bool tables_differ[Cfg::kComparesTables ? Cfg::kProducerWarps : 1];
  GroupOfRows group[Cfg::kRowGroups ? Cfg::kProducerWarps : 1];
  Assignment assignment[Cfg::kAssignments];

  // barrier                                  arrivals              waited for by
  ptx::Mbarrier full[Cfg::kStages];           // producers, and bytes  math warps
  ptx::Mbarrier empty[Cfg::kStages];          // math warps            producer warps
  ptx::Mbarrier assigned[Cfg::kAssignments];  // producer warp 0       math warps
  ptx::Mbarrier finished[Cfg::kAssignments];  // math warps            producer warp 0
  // Named barrier 1 is the math warps': scores written | weights written, and around a row's ends.

  __device__ __forceinline__ void init_barriers() {
    for (int stage = 0; stage < Cfg::kStages; ++stage) {
      // A warp for its keys; a lane for each slot's scales.
      full[stage].init(Cfg::kProducerWarps + (Cfg::Format::kHasScales ? Cfg::kStageSlots : 0));
      empty[stage].init(Cfg::kMathWarps);
    }
    for (int i = 0; i < Cfg::kAssignments; ++i) {
      assigned[i].init(1);
      finished[i].init(Cfg::kMathWarps);
    }
    if (Cfg::kRowGroups) {
      for (bool& flag : spoiled) flag = false;
      for (bool& flag : tables_differ) flag = false;
    }
    ptx::fence_mbarrier_init();
  }
};

}  // namespace dsv4::sm120
