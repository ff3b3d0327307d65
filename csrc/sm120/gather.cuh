// SPDX-License-Identifier: Apache-2.0
// The producer role: indices -> addresses of keys -> shared memory.
#pragma once

#include "cuda/find_key.cuh"
#include "cuda/work.cuh"
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

// The slots of a block's share, stage after stage, for one lane of a producer warp. Tells the math
// warps of each piece of work when it comes to its first stage.
template <class Cfg>
class SlotStream {
 public:
  struct Slot {
    int32_t entry;   // of the index table; -1 for no slot
    int32_t column;  // in its segment
    bool in_window;
  };

  __device__ __forceinline__ SlotStream(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                        const Share<kWindowUnit>& share, int first_head, int warp)
      : problem_(params.problem),
        smem_(smem),
        share_(share),
        first_head_(first_head),
        announces_(warp == 0) {
    const int lane = threadIdx.x % 32;
    offset_ = lane < Cfg::kSlotsPerProducer ? warp * Cfg::kSlotsPerProducer + lane : kNoSlot;
    stages_left_ = 0;
  }

  // Starts to read the entry of the lane's slot of the next stage. False behind the last one.
  __device__ __forceinline__ bool next(Slot& slot) {
    if (stages_left_ == 0 && !next_work()) return false;
    const int32_t column = stage_ + offset_;
    slot.in_window = column < window_length_;
    slot.column = slot.in_window ? column : column - window_length_;
    slot.entry = -1;
    if (offset_ != kNoSlot && column < end_) {
      slot.entry = __ldg(
          slot.in_window ? window_indices_ + index_column(problem_.window, slot.column)
                         : compressed_indices_ + index_column(problem_.compressed, slot.column));
    }
    stage_ += Cfg::kStageSlots;
    --stages_left_;
    return true;
  }

 private:
  static constexpr int32_t kNoSlot = 1 << 30;

  __device__ __forceinline__ bool next_work() {
    Work work;
    const bool found = share_.next(work);
    if (announces_) announce(found ? make_assignment(share_, work, first_head_) : Assignment{-1});
    if (!found) return false;
    window_indices_ = index_row(problem_, problem_.window, work.row);
    compressed_indices_ = index_row(problem_, problem_.compressed, work.row);
    window_length_ = work.window_length;
    stage_ = work.begin;
    end_ = work.end;
    stages_left_ = num_stages<Cfg>(work.end - work.begin);
    return true;
  }

  __device__ __forceinline__ void announce(const Assignment& assignment) {
    smem_.finished[works_.index].wait(works_.empty_parity());
    if (threadIdx.x % 32 == 0) {
      smem_.assignment[works_.index] = assignment;
      smem_.assigned[works_.index].arrive();
    }
    works_.advance();
  }

  const DecodeProblem& problem_;
  SharedStorage<Cfg>& smem_;
  Share<kWindowUnit> share_;
  int first_head_;
  bool announces_;
  Ring<Cfg::kAssignments> works_;
  const int32_t* window_indices_;
  const int32_t* compressed_indices_;
  int32_t window_length_;
  int32_t offset_;       // of the lane's slot in a stage
  int32_t stage_, end_;  // columns of the row
  int32_t stages_left_;
};

// Fills the ring. Indices are read two stages ahead of their keys.
template <class Cfg>
__device__ __forceinline__ void produce(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                        const Share<kWindowUnit>& share, int first_head, int warp) {
  using Format = typename Cfg::Format;
  using Slot = typename SlotStream<Cfg>::Slot;
  const int lane = threadIdx.x % 32;
  const bool owns_slot = lane < Cfg::kSlotsPerProducer;
  const int first_slot = warp * Cfg::kSlotsPerProducer, my_slot = first_slot + lane;

  SlotStream<Cfg> slots(params, smem, share, first_head, warp);
  Slot slot, next_slot;
  bool exists = slots.next(slot);
  bool next_exists = exists && slots.next(next_slot);
  bool has_cleared = false;  // some slot: a later copy to it comes by another way
  for (Ring<Cfg::kStages> ring; exists; ring.advance()) {
    const Key key = find_key<Format::kHasScales>(
        slot.in_window ? params.problem.window : params.problem.compressed, slot.entry,
        slot.column);
    // Before the wait: behind it, this would delay the copy after next.
    slot = next_slot;
    exists = next_exists;
    next_exists = next_exists && slots.next(next_slot);

    ptx::Mbarrier& full = smem.full[ring.index];
    smem.empty[ring.index].wait(ring.empty_parity());
    const bool is_valid = key.data != nullptr, is_hole = owns_slot && !is_valid;
    if (owns_slot) smem.valid[ring.index][my_slot] = is_valid;
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
  }
}

}  // namespace dsv4::sm120
