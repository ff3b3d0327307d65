// SPDX-License-Identifier: Apache-2.0
// The tiles of a block's share, as those who gather their keys see them.
#pragma once

#include "cuda/assignment.cuh"
#include "sm100/config.cuh"

namespace dsv4::sm100 {

// The tiles of a block's share, for one lane of a gather warp, which has a slot of each. Warp 0
// tells the other roles of each piece of work when it comes to its first tile.
template <class Cfg>
class TileStream {
 public:
  struct Slot {
    int32_t entry;   // of the index table; -1 for no slot
    int32_t column;  // in its segment
    bool in_window;
    int32_t window_slots;  // of the warp's, the first ones: those of the window
  };

  __device__ __forceinline__ TileStream(const DecodeParams& params, typename Cfg::Storage& smem,
                                        const Share<kWindowUnit>& share, int first_head, int warp)
      : problem_(params.problem),
        smem_(smem),
        share_(share),
        first_head_(first_head),
        announces_(warp == 0),
        first_slot_(warp * Cfg::kSlotsPerGatherWarp) {}

  // Starts to read the entry of the lane's slot of the next tile. False behind the last one.
  __device__ __forceinline__ bool next(Slot& slot) {
    if (tiles_left_ == 0 && !next_work()) return false;
    const int32_t column = tile_ + first_slot_ + threadIdx.x % 32 / Cfg::kLanesPerSlot;
    slot.window_slots = window_end_ - tile_ - first_slot_;
    slot.in_window = column < window_end_;
    slot.column = slot.in_window ? column : column - window_end_;
    slot.entry = -1;
    if (column < (slot.in_window ? min(end_, window_length_) : end_)) {
      slot.entry = __ldg(
          slot.in_window ? window_indices_ + index_column(problem_.window, slot.column)
                         : compressed_indices_ + index_column(problem_.compressed, slot.column));
    }
    tile_ += Cfg::kTileSlots;
    --tiles_left_;
    return true;
  }

 private:
  __device__ __forceinline__ bool next_work() {
    Work work;
    const bool found = share_.next(work);
    if (announces_) {
      announce(found ? make_assignment(share_, work, first_head_) : Assignment{-1});
    }
    if (!found) return false;
    window_indices_ = index_row(problem_, problem_.window, work.row);
    compressed_indices_ = index_row(problem_, problem_.compressed, work.row);
    window_length_ = work.window_length;
    window_end_ = work.window_end;
    tile_ = work.begin;
    end_ = work.end;
    tiles_left_ = num_tiles<Cfg>(work.end - work.begin);
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
  typename Cfg::Storage& smem_;
  Share<kWindowUnit> share_;
  int first_head_;
  bool announces_;
  int32_t first_slot_;  // of the warp's in a tile
  Ring<Cfg::kAssignments> works_;
  const int32_t* window_indices_;
  const int32_t* compressed_indices_;
  int32_t window_length_, window_end_;
  int32_t tile_, end_;  // columns of the row
  int32_t tiles_left_ = 0;
};

}  // namespace dsv4::sm100
