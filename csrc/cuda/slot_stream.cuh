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

// What a warp keeps of a group of rows.
struct GroupOfRows {
  int32_t num_rows;
  int32_t window_pitch;
  RowLengths lengths[kMaxGroupRows];
};

// For a lane that has one slot of each step. The first of the warps announces: it tells the other
// roles of each piece of work when it comes to its first step. `Storage` has
//   assignment           [kAssignments], and barriers `assigned` and `finished` likewise
// and with kRowGroups
//   group                [warps], each for its own use
//   spoiled              [any]. Rows of a group must not feel a key that only others of them see,
//                        but a weight of 0 times NaN is NaN. So the roles that store outputs set a
//                        flag when one of them is not finite, and the share is decoded once more,
//                        each row alone.
// and with kComparesTables, where the rows of a group have tables of their own,
//   tables_differ        [warps]. The entries of the longest row are those of the group. A lane
//                        that finds another one in a row's table sets a flag, to the same effect.
template <int kWindowUnit, int kStepSlots, int kAssignments, bool kRowGroups, bool kComparesTables,
          class Storage>
class SlotStream {
  static constexpr int32_t kNotBegun = -2;

 public:
  struct Slot {
    int32_t entry;   // of the index table; -1 for no slot
    int32_t column;  // in its segment
    uint32_t flags;  // below
    // With kComparesTables: what the tables of rows that see it have in its place.
    int32_t own_entry[kComparesTables ? kMaxComparedRows : 1];

    // A bit for each row of the group that sees it.
    __device__ __forceinline__ uint32_t rows() const { return flags & 0xff; }
    __device__ __forceinline__ bool in_window() const { return flags >> 8; }
  };

  // `offset`: of the lane's slot in a step.
  __device__ __forceinline__ SlotStream(const DecodeProblem& problem, const Schedule& schedule,
                                        Storage& smem, int32_t share, int first_head, int warp,
                                        int32_t offset)
      : problem_(problem),
        schedule_(schedule),
        smem_(smem),
        first_head_(first_head),
        warp_(warp),
        offset_(offset) {
    place_.share = share;
    place_.only_row = kNotBegun;
  }

  // Begins the share, or begins it once more, with one row of each group. False if it is done.
  __device__ __forceinline__ bool begin() {
    bool is_done = place_.only_row != kNotBegun;
    if constexpr (kRowGroups) is_done = is_done && !has_rows_alone();
    if (is_done) {
      if (warp_ == 0) announce(Assignment{-1});
      return false;
    }
    Share<kWindowUnit, kRowGroups>(problem_, schedule_, place_)
        .begin(place_.share, place_.only_row + 1);
    return true;
  }

  // Starts to read the entry of the lane's slot of the next step. False behind the last one.
  __device__ __forceinline__ bool next(Slot& slot) {
    if (steps_left_ == 0 && !next_work()) return false;
    const int32_t column = step_ + offset_;
    const bool in_window = column < window_end_;
    slot.column = in_window ? column : column - window_end_;
    const int32_t* window_indices = window_indices_;
    uint32_t rows = column < end_ ? 1 : 0;
    if constexpr (kRowGroups) {
      rows = place_in_group(in_window, rows, slot.column, window_indices);
    } else if (kWindowUnit > 1 && in_window && column >= window_length_) {
      rows = 0;
    }
    slot.entry = -1;
    if (rows != 0) {
      slot.entry =
          __ldg(in_window ? window_indices + index_column(problem_.window, slot.column)
                          : compressed_indices_ + index_column(problem_.compressed, slot.column));
    }
    if constexpr (kComparesTables) {
      if (!in_window) read_own_entries(rows, slot);
    }
    slot.flags = rows | uint32_t(in_window) << 8;
    step_ += kStepSlots;
    --steps_left_;
    return true;
  }

  // Calls act(slot) for each step, when the entries of the next kAhead steps are being read. They
  // take turns, because a slot that moved to other registers would wait for its entry.
  template <int kAhead, class Act>
  __device__ __forceinline__ void run(Act act) {
    constexpr uint32_t kNotYet = ~0u, kEnd = ~0u - 1;  // for flags
    while (begin()) {
      Slot ahead[kAhead];
#pragma unroll
      for (Slot& slot : ahead) slot.flags = kNotYet;
      for (int turn = 0;; turn = (turn + 1) % kAhead) {
        Slot slot;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (i == turn) {
            slot = ahead[i];
            if (!next(ahead[i])) ahead[i].flags = kEnd;
          }
        }
        if (slot.flags == kNotYet) continue;
        if (slot.flags == kEnd) break;
        compare_entries(slot);
        act(slot);
      }
    }
  }

 private:
  // The rows that see a slot, if it is one at all; and of a window's slot, its own row's indices.
  __device__ __forceinline__ uint32_t place_in_group(bool in_window, bool is_slot, int32_t& column,
                                                     const int32_t*& window_indices) const {
    const GroupOfRows& group = smem_.group[warp_];
    int32_t owner = 0;
    if (in_window) owner = uint32_t(column) / uint32_t(group.window_pitch);
    column -= owner * group.window_pitch;
    window_indices += owner * problem_.window.index_row_stride;
    if (!is_slot) return 0;
    uint32_t rows = 0;
#pragma unroll 1
    for (int i = 0; i < group.num_rows; ++i) {
      const RowLengths lengths = group.lengths[i];
      const bool sees =
          in_window ? i == owner && column < lengths.window : column < lengths.compressed;
      rows |= uint32_t(sees) << i;
    }
    return place_.only_row < 0 ? rows : rows >> place_.only_row & 1;
  }

  // Starts to read them.
  __device__ __forceinline__ void read_own_entries(uint32_t rows, Slot& slot) const {
    if (place_.only_row >= 0) return;
    const int32_t* const entry =
        compressed_indices_ + index_column(problem_.compressed, slot.column);
#pragma unroll
    for (int i = 0; i < kMaxComparedRows; ++i) {
      if (rows >> i & 1) {
        slot.own_entry[i] = __ldg(entry + (i - table_row_) * problem_.compressed.index_row_stride);
      }
    }
  }

  // For a slot whose entry is there, before its key is handed on.
  __device__ __forceinline__ void compare_entries(const Slot& slot) const {
    if constexpr (kComparesTables) {
      if (slot.in_window() || place_.only_row >= 0) return;
      bool differs = false;
#pragma unroll
      for (int i = 0; i < kMaxComparedRows; ++i) {
        if (slot.rows() >> i & 1) differs = differs || slot.own_entry[i] != slot.entry;
      }
      if (differs) smem_.tables_differ[warp_] = true;
    }
  }

  // Of a group, the row whose compressed table is read.
  __device__ __forceinline__ int32_t find_table_row(const Work& work) const {
    if (!kComparesTables) return 0;
    if (place_.only_row >= 0) return place_.only_row;
    return __ffs(__ballot_sync(0xffffffffu, work.lengths.compressed == work.longest)) - 1;
  }

  __device__ __forceinline__ bool next_work() {
    Work work;
    if (!Share<kWindowUnit, kRowGroups>(problem_, schedule_, place_).next(work)) return false;
    if (warp_ == 0) announce(make_assignment(schedule_, place_, work, first_head_));
    works_.advance();
    window_indices_ = index_row(problem_, problem_.window, work.row);
    table_row_ = find_table_row(work);
    compressed_indices_ = index_row(problem_, problem_.compressed, work.row + table_row_);
    window_length_ = work.lengths.window;
    window_end_ = work.window_end;
    step_ = work.begin;
    end_ = work.end;
    steps_left_ = num_steps<kStepSlots>(work.end - work.begin);
    if constexpr (kRowGroups) keep_group(work);
    return true;
  }

  __device__ __forceinline__ void keep_group(const Work& work) const {
    const int lane = threadIdx.x % 32;
    GroupOfRows& group = smem_.group[warp_];
    __syncwarp();  // all lanes have read what was there before
    if (lane < work.num_rows) group.lengths[lane] = work.lengths;
    if (lane == 0) {
      group.num_rows = work.num_rows;
      group.window_pitch = work.window_pitch;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void announce(const Assignment& assignment) const {
    smem_.finished[works_.index].wait(works_.empty_parity());
    if (threadIdx.x % 32 == 0) {
      smem_.assignment[works_.index] = assignment;
      smem_.assigned[works_.index].arrive();
    }
  }

  // Whether rows are to be decoded alone from now on, or are and there are more.
  __device__ __forceinline__ bool has_rows_alone() const {
    if (place_.only_row + 1 == schedule_.group_rows) return false;
    return place_.only_row >= 0 || is_spoiled();
  }

  __device__ __forceinline__ bool is_spoiled() const {
    Ring<kAssignments> works = works_;
#pragma unroll 1
    for (int i = 0; i < kAssignments; ++i, works.advance()) {
      smem_.finished[works.index].wait(works.empty_parity());
    }
    bool spoiled = false;
#pragma unroll 1
    for (const bool& flag : smem_.spoiled) spoiled = spoiled || flag;
    if constexpr (kComparesTables) {
#pragma unroll 1
      for (const bool& flag : smem_.tables_differ) spoiled = spoiled || flag;
    }
    return spoiled;
  }

  const DecodeProblem& problem_;
  const Schedule& schedule_;
  Storage& smem_;
  SharePlace place_;
  int first_head_;
  int warp_;
  int32_t offset_;
  Ring<kAssignments> works_;
  const int32_t* window_indices_;
  const int32_t* compressed_indices_;
  int32_t table_row_;
  int32_t window_length_, window_end_;
  int32_t step_, end_;  // columns
  int32_t steps_left_ = 0;
};

}  // namespace dsv4
