// SPDX-License-Identifier: Apache-2.0
// A block's share of a schedule, row by row.
#pragma once

#include "combine/parts.h"
#include "cuda/schedule.h"
#include "dsv4/dsv4.h"
#include "row_length.h"

namespace dsv4 {

struct RowLengths {
  int32_t window, compressed;  // active columns, in slots
};

// Columns [begin, end) of a group of rows (most often: of a row). The first window_end columns are
// the windows, window_pitch for each row, of which its window's length are active; then come the
// compressed slots, up to the longest row's.
struct Work {
  int32_t row, num_rows;
  int32_t begin, end;
  int32_t window_pitch, window_end;
  int32_t longest;     // of the rows' compressed lengths
  RowLengths lengths;  // of row min(lane, num_rows - 1) of the group
  bool begins_row, ends_row;
  RowParts parts;  // which shares hold the group, where it begins and may be cut; else {0, 0}

  __device__ __forceinline__ bool is_whole_row() const { return begins_row && ends_row; }
};

struct RowPosition {
  int64_t batch, query;
};

// By a division of 32 bits: a 64-bit one takes a hundred instructions.
__device__ __forceinline__ RowPosition row_position(const DecodeProblem& problem, int32_t row) {
  const uint32_t q_len = static_cast<uint32_t>(problem.q_len);
  return {int64_t(uint32_t(row) / q_len), int64_t(uint32_t(row) % q_len)};
}

// A row of a segment's index table.
__device__ __forceinline__ const int32_t* index_row(const DecodeProblem& problem,
                                                    const Segment& segment, int32_t row) {
  const RowPosition position = row_position(problem, row);
  return segment.indices + position.batch * segment.index_batch_stride +
         position.query * segment.index_row_stride;
}

// Where in that row the entry of slot `column` stands.
__device__ __forceinline__ int32_t index_column(const Segment& segment, int32_t column) {
  return segment.index_form == IndexForm::kTokenRows
             ? column
             : uint32_t(column) / uint32_t(segment.pool.page_size);
}

__device__ __forceinline__ int32_t active_length(const Segment& segment, int32_t row,
                                                 const LengthValue<int32_t>& found) {
  if (segment.indices == nullptr) return 0;
  return static_cast<int32_t>(row_length(segment.length, row, segment_width(segment), found));
}

// Reads both values before it uses one.
__device__ __forceinline__ RowLengths row_lengths(const DecodeProblem& problem, int32_t row) {
  constexpr LengthValue<int32_t> kNone{-1, 0};
  const bool has_window = problem.window.indices != nullptr;
  const bool has_compressed = problem.compressed.indices != nullptr;
  const auto window = has_window ? length_value(problem.window.length, row) : kNone;
  const auto compressed = has_compressed ? length_value(problem.compressed.length, row) : kNone;
  return {active_length(problem.window, row, window),
          active_length(problem.compressed, row, compressed)};
}

// How far a warp has come with a block's share.
struct SharePlace {
  int32_t share;
  int32_t only_row;    // of each group that has so many, or -1: all rows
  int32_t group;       // next one
  int32_t num_units;   // balanced only, from here on
  int32_t num_shares;  // that are not empty
  int32_t unit;        // next one, counted over all groups
  int32_t units_left;
  int32_t unit_of_row;  // next one, counted from its group's first
};

// All lanes of a warp step through a share together.
// kWindowUnit: EngineCosts::window_unit. Without kRowGroups, a group is one row.
template <int kWindowUnit, bool kRowGroups>
class Share {
 public:
  __device__ __forceinline__ Share(const DecodeProblem& problem, const Schedule& schedule,
                                   SharePlace& place)
      : problem_(problem), schedule_(schedule), place_(place) {}

  __device__ __forceinline__ void begin(int32_t share, int32_t only_row) {
    place_ = {share, only_row, share, 0, 0, 0, 0, 0};
    if (schedule_.balanced) find_beginning();
  }

  // The next piece of work, or false at the end.
  __device__ __forceinline__ bool next(Work& work) {
    do {
      if (schedule_.balanced ? place_.units_left == 0 : place_.group >= schedule_.num_groups) {
        return false;
      }
      take(work);
    } while (kRowGroups && place_.only_row >= work.num_rows);
    return true;
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffu;

  struct Group {
    int32_t row, num_rows;
  };

  __device__ __forceinline__ int32_t q_len() const { return static_cast<int32_t>(problem_.q_len); }

  __device__ __forceinline__ Group group_at(int32_t i) const {
    if (!kRowGroups) return {i, 1};
    const int32_t request = uint32_t(i) / uint32_t(schedule_.groups_of_table);
    const int32_t first = (i - request * schedule_.groups_of_table) * schedule_.group_rows;
    return {request * q_len() + first, min(schedule_.group_rows, q_len() - first)};
  }

  // Longest of the rows, which the lanes have.
  __device__ __forceinline__ static RowLengths longest_of(const RowLengths& lengths,
                                                          int32_t num_rows) {
    if (!kRowGroups) return lengths;
    RowLengths longest{0, 0};
#pragma unroll 1
    for (int i = 0; i < num_rows; ++i) {
      longest.window = max(longest.window, __shfl_sync(kAllLanes, lengths.window, i));
      longest.compressed = max(longest.compressed, __shfl_sync(kAllLanes, lengths.compressed, i));
    }
    return longest;
  }

  // The same for a lane alone.
  __device__ __forceinline__ RowLengths longest_of(const Group& group) const {
    RowLengths longest{0, 0};
#pragma unroll 1
    for (int i = 0; i < group.num_rows; ++i) {
      const RowLengths lengths = row_lengths(problem_, group.row + i);
      longest.window = max(longest.window, lengths.window);
      longest.compressed = max(longest.compressed, lengths.compressed);
    }
    return longest;
  }

  __device__ __forceinline__ static int32_t pitch_of(const RowLengths& longest) {
    return (longest.window + kWindowUnit - 1) & -kWindowUnit;
  }
  __device__ __forceinline__ int32_t units_of(int32_t length) const {
    return max(1, (length + schedule_.unit_slots - 1) / schedule_.unit_slots);
  }
  __device__ __forceinline__ int32_t units_of_group(int32_t i) const {
    const Group group = group_at(i);
    const RowLengths longest = longest_of(group);
    return units_of(pitch_of(longest) * group.num_rows + longest.compressed);
  }
  // The products are below 2^32: make_schedule sees to it.
  __device__ __forceinline__ int32_t first_unit(int32_t share) const {
    return static_cast<int32_t>(uint32_t(share) * uint32_t(place_.num_units) /
                                uint32_t(place_.num_shares));
  }
  __device__ __forceinline__ int32_t share_of_unit(int32_t unit) const {
    return static_cast<int32_t>((uint32_t(unit + 1) * uint32_t(place_.num_shares) - 1) /
                                uint32_t(place_.num_units));
  }

  __device__ __forceinline__ void take(Work& work) {
    const Group group = group_at(place_.group);
    work.row = group.row;
    work.num_rows = group.num_rows;
    const int32_t my_row = kRowGroups ? min(int32_t(threadIdx.x % 32), group.num_rows - 1) : 0;
    work.lengths = row_lengths(problem_, group.row + my_row);
    const RowLengths longest = longest_of(work.lengths, group.num_rows);
    work.longest = longest.compressed;
    work.window_pitch = pitch_of(longest);
    work.window_end = work.window_pitch * group.num_rows;
    const int32_t length = work.window_end + longest.compressed;
    work.begin = 0;
    work.end = length;
    work.begins_row = work.ends_row = true;
    work.parts = {0, 0};
    if (!schedule_.balanced) {
      place_.group += schedule_.num_shares;
      return;
    }
    const int32_t units = units_of(length);
    const int32_t taken = min(place_.units_left, units - place_.unit_of_row);
    work.begin = place_.unit_of_row * schedule_.unit_slots;
    work.begins_row = place_.unit_of_row == 0;
    work.ends_row = place_.unit_of_row + taken == units;
    if (!work.ends_row) work.end = work.begin + taken * schedule_.unit_slots;
    if (work.begins_row) {
      work.parts = {place_.share, share_of_unit(place_.unit + units - 1) - place_.share + 1};
    }
    place_.units_left -= taken;
    place_.unit += taken;
    place_.unit_of_row = 0;
    ++place_.group;
  }

  // Sum over the lanes up to this one.
  __device__ __forceinline__ static int32_t sum_up_to_lane(int32_t mine) {
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, mine, distance);
      if (threadIdx.x % 32 >= distance) mine += before;
    }
    return mine;
  }

  // Lane i counts the units of some consecutive groups. Those of the lane that meets the share's
  // first unit are counted again, 32 at a time by a lane each. All by the same instructions: what a
  // block executes once has to be fetched, and that takes longer than it runs.
  __device__ __forceinline__ void find_beginning() {
    const int lane = threadIdx.x % 32;
    int32_t per_lane = (schedule_.num_groups + 31) / 32;
    int32_t first = lane * per_lane, before = 0;
    for (bool is_first_time = true;; is_first_time = false) {
      int32_t mine = 0;
      for (int32_t i = first; i < min(first + per_lane, schedule_.num_groups); ++i) {
        mine += units_of_group(i);
      }
      const int32_t up_to_mine = before + sum_up_to_lane(mine);
      if (is_first_time) {
        place_.num_units = __shfl_sync(kAllLanes, up_to_mine, 31);
        // Where rows are short, there may be fewer units than blocks. No share between two others
        // is empty, so that the parts of a row are neighbours.
        place_.num_shares = min(schedule_.num_shares, place_.num_units);
        if (place_.share >= place_.num_shares) return;
        place_.unit = first_unit(place_.share);
        place_.units_left = first_unit(place_.share + 1) - place_.unit;
      }
      const unsigned beyond = __ballot_sync(kAllLanes, up_to_mine > place_.unit);
      const int owner = beyond != 0 ? __ffs(beyond) - 1 : 31;
      const int32_t first_of_owner = __shfl_sync(kAllLanes, first, owner);
      const int32_t before_owner = __shfl_sync(kAllLanes, up_to_mine - mine, owner);
      if (beyond != 0 && per_lane == 1) {
        place_.group = first_of_owner;
        place_.unit_of_row = place_.unit - before_owner;
        return;
      }
      // Into the groups of the owner; or on, where it is none of these 32.
      first = first_of_owner + lane + (beyond != 0 ? 0 : 1);
      before = beyond != 0 ? before_owner : __shfl_sync(kAllLanes, up_to_mine, 31);
      per_lane = 1;
    }
  }

  const DecodeProblem& problem_;
  const Schedule& schedule_;
  SharePlace& place_;
};

}  // namespace dsv4
