// SPDX-License-Identifier: Apache-2.0
// A block's share of a schedule, row by row.
#pragma once

#include "combine/parts.h"
#include "cuda/schedule.h"
#include "dsv4/dsv4.h"
#include "row_length.h"

namespace dsv4 {

// Slots [begin, end) of a row: its active window columns, up to window_length, and from window_end
// on its active compressed columns. Between these two are less than kWindowUnit holes.
struct Work {
  int32_t row;
  int32_t begin, end;
  int32_t window_length, window_end;
  bool begins_row, ends_row;

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

struct RowLengths {
  int32_t window, compressed;  // active columns, in slots
};

__device__ __forceinline__ int32_t active_length(const Segment& segment, int32_t row,
                                                 int32_t value) {
  if (segment.indices == nullptr) return 0;
  return static_cast<int32_t>(row_length(segment.length, row, segment_width(segment), value));
}

// Reads both values before it uses one.
__device__ __forceinline__ RowLengths row_lengths(const DecodeProblem& problem, int32_t row) {
  const bool has_window = problem.window.indices != nullptr;
  const bool has_compressed = problem.compressed.indices != nullptr;
  const int32_t window = has_window ? length_value(problem.window.length, row) : 0;
  const int32_t compressed = has_compressed ? length_value(problem.compressed.length, row) : 0;
  return {active_length(problem.window, row, window),
          active_length(problem.compressed, row, compressed)};
}

// All lanes of a warp construct it and step through it together.
// kWindowUnit: EngineCosts::window_unit.
template <int kWindowUnit>
class Share {
 public:
  __device__ __forceinline__ Share(const DecodeProblem& problem, const Schedule& schedule,
                                   int32_t share)
      : problem_(problem),
        schedule_(schedule),
        rows_(static_cast<int32_t>(problem.batch * problem.q_len)),
        share_(share),
        row_(share) {
    if (schedule.balanced) find_beginning();
  }

  // The next piece of work, or false at the end.
  __device__ __forceinline__ bool next(Work& work) {
    if (schedule_.balanced ? units_left_ == 0 : row_ >= rows_) return false;
    work.row = row_;
    const RowLengths lengths = row_lengths(problem_, row_);
    work.window_length = lengths.window;
    work.window_end = window_end(lengths);
    const int32_t length = work.window_end + lengths.compressed;
    work.begin = 0;
    work.end = length;
    work.begins_row = work.ends_row = true;
    if (!schedule_.balanced) {
      row_ += schedule_.num_shares;
      return true;
    }
    const int32_t units = units_of(length), taken = min(units_left_, units - unit_of_row_);
    work.begin = unit_of_row_ * schedule_.unit_slots;
    work.begins_row = unit_of_row_ == 0;
    work.ends_row = unit_of_row_ + taken == units;
    if (!work.ends_row) work.end = work.begin + taken * schedule_.unit_slots;
    end_of_row_ = unit_ + units - unit_of_row_;
    units_left_ -= taken;
    unit_ += taken;
    unit_of_row_ = 0;
    ++row_;
    return true;
  }

  __device__ __forceinline__ int32_t index() const { return share_; }

  // Which shares hold the row of the work that next() gave, if that begins one that may be cut.
  __device__ __forceinline__ RowParts parts_of_row(const Work& work) const {
    if (!schedule_.balanced || !work.begins_row) return {0, 0};
    return {share_, share_of_unit(end_of_row_ - 1) - share_ + 1};
  }

 private:
  __device__ __forceinline__ int32_t units_of(int32_t length) const {
    return max(1, (length + schedule_.unit_slots - 1) / schedule_.unit_slots);
  }
  __device__ __forceinline__ int32_t units_of_row(int32_t row) const {
    const RowLengths lengths = row_lengths(problem_, row);
    return units_of(window_end(lengths) + lengths.compressed);
  }
  __device__ __forceinline__ static int32_t window_end(const RowLengths& lengths) {
    return (lengths.window + kWindowUnit - 1) & -kWindowUnit;
  }
  // The products are below 2^32: make_schedule sees to it.
  __device__ __forceinline__ int32_t first_unit(int32_t share) const {
    return static_cast<int32_t>(uint32_t(share) * uint32_t(num_units_) / uint32_t(num_shares_));
  }
  __device__ __forceinline__ int32_t share_of_unit(int32_t unit) const {
    return static_cast<int32_t>((uint32_t(unit + 1) * uint32_t(num_shares_) - 1) /
                                uint32_t(num_units_));
  }

  // Lane i counts the units of some consecutive rows; the lane that meets the share's first unit
  // says where it lies.
  __device__ __forceinline__ void find_beginning() {
    constexpr unsigned kAllLanes = 0xffffffffu;
    const int lane = threadIdx.x % 32;
    const int32_t rows_per_lane = (rows_ + 31) / 32;
    const int32_t first_row = min(lane * rows_per_lane, rows_);
    const int32_t last_row = min(first_row + rows_per_lane, rows_);
    int32_t mine = 0;
    for (int32_t row = first_row; row < last_row; ++row) mine += units_of_row(row);
    int32_t up_to_mine = mine;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, up_to_mine, distance);
      if (lane >= distance) up_to_mine += before;
    }
    num_units_ = __shfl_sync(kAllLanes, up_to_mine, 31);
    // Where rows are short, there may be fewer units than blocks. No share between two others is
    // empty, so that the parts of a row are neighbours.
    num_shares_ = min(schedule_.num_shares, num_units_);
    if (share_ >= num_shares_) return;
    unit_ = first_unit(share_);
    units_left_ = first_unit(share_ + 1) - unit_;

    const int owner = __ffs(__ballot_sync(kAllLanes, up_to_mine > unit_)) - 1;
    int32_t row = first_row, units_before = up_to_mine - mine;
    if (lane == owner) {
      for (int32_t units; units_before + (units = units_of_row(row)) <= unit_; ++row) {
        units_before += units;
      }
    }
    row_ = __shfl_sync(kAllLanes, row, owner);
    unit_of_row_ = unit_ - __shfl_sync(kAllLanes, units_before, owner);
  }

  const DecodeProblem& problem_;
  const Schedule& schedule_;
  int32_t rows_;
  int32_t share_;
  int32_t row_;
  int32_t num_units_ = 0;   // balanced only, from here on
  int32_t num_shares_ = 0;  // that are not empty
  int32_t unit_ = 0;        // next one, counted over all rows
  int32_t units_left_ = 0;
  int32_t unit_of_row_ = 0;  // next one, counted from its row's first
  int32_t end_of_row_ = 0;   // unit behind the last of the row that next() gave
};

}  // namespace dsv4
