// SPDX-License-Identifier: Apache-2.0
// The producer role: indices -> addresses of keys -> shared memory.
#pragma once

#include "cuda/find_key.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/shared_memory.cuh"
#include "sm120/config.cuh"
#include "sm120/params.h"

namespace dsv4::sm120 {

// Copies `kBytes` for each slot of a producer warp, slot after slot, by words of a size that their
// alignment allows: the way of pools whose pages or tokens do not begin at multiples of 16 bytes.
// Lane i has the source of slot i.
template <class Word, int kBytes, class Cfg>
__device__ __forceinline__ void copy_by_words(uint8_t* first_target, const uint8_t* source) {
#pragma unroll 1
  for (int slot = 0; slot < Cfg::kSlotsPerProducer; ++slot) {
    const auto* from = reinterpret_cast<const Word*>(of_lane(source, slot));
    auto* to = reinterpret_cast<Word*>(first_target + slot * Cfg::Format::kSlotPitch);
    for (int word = threadIdx.x % 32; word < kBytes / int(sizeof(Word)); word += 32) {
      to[word] = from != nullptr ? __ldg(from + word) : Word{};
    }
  }
}

template <int kBytes, class Cfg>
__device__ __forceinline__ void copy_by_words(uint8_t* first_target, const uint8_t* source,
                                              int alignment) {
  if (alignment == 8) {
    copy_by_words<uint2, kBytes, Cfg>(first_target, source);
  } else if (alignment == 4) {
    copy_by_words<uint32_t, kBytes, Cfg>(first_target, source);
  } else {
    copy_by_words<uint8_t, kBytes, Cfg>(first_target, source);
  }
}

// A hole is a key of zeros: it weighs nothing, but what lay there before might be NaN. They do not
// come from memory, because all blocks would wait for the same few bytes of it.
template <class Format>
__device__ __forceinline__ void clear_slot(uint8_t* target) {
#pragma unroll 4
  for (int i = 0; i < Format::kSlotPitch / 16; ++i) {
    reinterpret_cast<uint4*>(target)[i] = make_uint4(0, 0, 0, 0);
  }
}

// Fills the ring. Indices are read two stages ahead of their keys: behind the wait for a stage, a
// step would delay the copy after next.
template <class Cfg>
__device__ __forceinline__ void produce(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                        int32_t share, int first_head, int warp) {
  using Format = typename Cfg::Format;
  using Slots = SlotStream<kWindowUnit, Cfg::kStageSlots, Cfg::kAssignments, Cfg::kRowGroups,
                           Cfg::kComparesTables, SharedStorage<Cfg>>;
  const int lane = threadIdx.x % 32;
  const bool owns_slot = lane < Cfg::kSlotsPerProducer;
  const int first_slot = warp * Cfg::kSlotsPerProducer, my_slot = first_slot + lane;

  constexpr int32_t kNoSlot = 1 << 30;
  Slots slots(params.problem, params.schedule, smem, share, first_head, warp,
              owns_slot ? my_slot : kNoSlot);
  bool has_cleared = false;  // some slot: a later copy to it comes by another way
  Ring<Cfg::kStages> ring;
  slots.template run<2>([&](const typename Slots::Slot& slot) {
    const Key key = find_key<Format::kHasScales>(
        slot.in_window() ? params.problem.window : params.problem.compressed, slot.entry,
        slot.column);
    ptx::Mbarrier& full = smem.full[ring.index];
    smem.empty[ring.index].wait(ring.empty_parity());
    const bool is_valid = key.data != nullptr, is_hole = owns_slot && !is_valid;
    if (owns_slot) smem.valid[ring.index][my_slot] = uint8_t(is_valid ? slot.rows() : 0);
    if (params.pool_alignment == 16) {
      uint8_t* const target = smem.keys[ring.index][my_slot];
      if (is_hole) clear_slot<Format>(target);
      const uint32_t valid_slots = __ballot_sync(0xffffffffu, is_valid);
      __syncwarp();  // the arrival hands on what all lanes have written
      if (lane == 0) full.arrive_expect_bytes(__popc(valid_slots) * Format::kKeyBytes);
      if (has_cleared) ptx::fence_shared_async();
      has_cleared = __any_sync(0xffffffffu, is_hole) || has_cleared;
      if (is_valid) {
        ptx::bulk_load(ptx::shared_address(target), key.data, Format::kKeyBytes, full);
        if constexpr (Format::kHasScales) {
          ptx::copy_async_8(ptx::shared_address(target) + Format::kScaleOffset, key.scales);
        }
      }
      if (Format::kHasScales && owns_slot) ptx::arrive_after_copies(full);
    } else {
      uint8_t* const target = smem.keys[ring.index][first_slot];
      copy_by_words<Format::kKeyBytes, Cfg>(target, key.data, params.pool_alignment);
      if constexpr (Format::kHasScales) {
        copy_by_words<PackedPage::kTokenScaleBytes, Cfg>(target + Format::kScaleOffset, key.scales,
                                                         params.pool_alignment);
      }
      __syncwarp();
      if (lane == 0) full.arrive();
      if (Format::kHasScales && owns_slot) full.arrive();
    }
    ring.advance();
  });
}

}  // namespace dsv4::sm120
