// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "combine/parts.h"
#include "cuda/work.cuh"

namespace dsv4 {

// What the producer, which reads the rows' lengths, tells the other warps of a block of a piece of
// work. Of a group of rows, head i is head i % heads of row `row` + i / heads.
struct Assignment {
  int32_t row;  // -1: there is no more
  int32_t num_rows;
  int32_t first_head;
  int32_t num_slots;
  bool whole_row;
  int32_t part;        // else: place of the row's partial results, which are `heads` each
  RowParts row_parts;  // to be told to the combine, where count is not 0

  __device__ __forceinline__ int32_t num_heads(const DecodeProblem& problem) const {
    return num_rows * static_cast<int32_t>(problem.heads) - first_head;
  }
};

// The row of head i of a group, counted from the first one. Without kRowGroups there is but one.
template <bool kRowGroups>
__device__ __forceinline__ int32_t row_of_head(const DecodeProblem& problem, int32_t i) {
  return kRowGroups ? uint32_t(i) / uint32_t(problem.heads) : 0;
}

// Elements from the first head of a group to head i.
template <bool kRowGroups, class Pointer>
__device__ __forceinline__ int64_t head_offset(const DecodeProblem& problem,
                                               const RowView<Pointer>& rows, int32_t i) {
  const int64_t offset = i * rows.head_stride;
  if (!kRowGroups) return offset;
  const int64_t between_rows = rows.row_stride - problem.heads * rows.head_stride;
  return offset + row_of_head<kRowGroups>(problem, i) * between_rows;
}

__device__ __forceinline__ Assignment make_assignment(const Schedule& schedule,
                                                      const SharePlace& place, const Work& work,
                                                      int32_t first_head) {
  const bool alone = place.only_row >= 0;
  const int32_t first_row = alone ? place.only_row : 0;
  const auto part = static_cast<int32_t>(part_place(place.share, work.begins_row));
  return {work.row + first_row,
          alone ? 1 : work.num_rows,
          first_head,
          work.end - work.begin,
          work.is_whole_row(),
          part * schedule.group_rows + first_row,
          work.parts};
}

}  // namespace dsv4
