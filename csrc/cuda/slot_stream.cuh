// SPDX-License-Identifier: Apache-2.0
// The slots of a block's share, step after step of its loop, as the warps see them that gather
// their keys.
#pragma once

#include "cuda/assignment.cuh"
#include "cuda/ring.cuh"

namespace dsv4 {

// Steps of a piece of work. An empty row has one, of holes.
template <int kStepSlots>
__device__ __forceinline__ int32_t num_steps(int32_t num_slots) {
  return max(1, (num_slots + kStepSlots - 1) / kStepSlots);
}

// For a lane that has one slot of each step. One warp of a block announces: it tells the other
// roles of each piece of work when it comes to its first step. `Storage` has `assignment`, and for
// each of its kAssignments places the barriers `assigned` and `finished`.
template <int kWindowUnit, int kStepSlots, int kAssignments, class Storage>
class SlotStream {
 public:
  struct Slot {
    int32_t entry;   // of the index table; -1 for no slot
    int32_t column;  // in its segment
    bool in_window;
  };

  // `offset`: of the lane's slot in a step.
  __device__ __forceinline__ SlotStream(const DecodeProblem& problem, Storage& smem,
                                        const Share<kWindowUnit>& share, int first_head,
                                        bool announces, int32_t offset)
      : problem_(problem),
        smem_(smem),
        share_(share),
        first_head_(first_head),
        announces_(announces),
        offset_(offset) {}

  // Starts to read the entry of the lane's slot of the next step. False behind the last one.
  __device__ __forceinline__ bool next(Slot& slot) {
    if (steps_left_ == 0 && !next_work()) return false;
    const int32_t column = step_ + offset_;
    slot.in_window = column < window_end();
    slot.column = slot.in_window ? column : column - window_end();
    slot.entry = -1;
    if (column < (kWindowUnit > 1 && slot.in_window ? min(end_, window_length_) : end_)) {
      slot.entry = __ldg(
          slot.in_window ? window_indices_ + index_column(problem_.window, slot.column)
                         : compressed_indices_ + index_column(problem_.compressed, slot.column));
    }
    step_ += kStepSlots;
    --steps_left_;
    return true;
  }

  // How many slots of that step, from `offset` on, are of the window.
  __device__ __forceinline__ int32_t window_slots(int32_t offset) const {
    return window_end() - (step_ - kStepSlots) - offset;
  }

 private:
  __device__ __forceinline__ bool next_work() {
    Work work;
    const bool found = share_.next(work);
    if (announces_) announce(found ? make_assignment(share_, work, first_head_) : Assignment{-1});
    if (!found) return false;
    window_indices_ = index_row(problem_, problem_.window, work.row);
    compressed_indices_ = index_row(problem_, problem_.compressed, work.row);
    window_length_ = work.window_length;
    window_end_ = work.window_end;
    step_ = work.begin;
    end_ = work.end;
    steps_left_ = num_steps<kStepSlots>(work.end - work.begin);
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

  __device__ __forceinline__ int32_t window_end() const {
    return kWindowUnit > 1 ? window_end_ : window_length_;
  }

  const DecodeProblem& problem_;
  Storage& smem_;
  Share<kWindowUnit> share_;
  int first_head_;
  bool announces_;
  int32_t offset_;
  Ring<kAssignments> works_;
  const int32_t* window_indices_;
  const int32_t* compressed_indices_;
  int32_t window_length_, window_end_;
  int32_t step_, end_;  // columns of the row
  int32_t steps_left_ = 0;
};

}  // namespace dsv4
