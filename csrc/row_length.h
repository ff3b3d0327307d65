// SPDX-License-Identifier: Apache-2.0
// How many leading columns of a row's index table count. Host rule; read by the CPU engine and the
// value checks. Functions are static: this header is compiled for several instruction sets.
#pragma once

#include "dsv4/dsv4.h"

namespace dsv4 {

// The request that a varlen row belongs to, or -1: the last one whose first row is not beyond
// `row`.
static inline int64_t request_of_row(const LengthView& view, int64_t row) {
  int64_t low = 0, high = view.num_requests;  // the answer + 1 lies in [low, high]
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (view.row_offsets[middle] <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int64_t request = low - 1;
  return request >= 0 && row < view.row_offsets[request + 1] ? request : -1;
}

// The length as the caller wrote it, before clamping.
static inline int64_t raw_row_length(const LengthView& view, int64_t row, int64_t width) {
  if (view.values == nullptr) return width;
  if (!view.causal) {
    return int64_t(view.values[row / view.rows_per_value * view.stride]) - view.subtract;
  }
  int64_t request, first_row, num_rows;
  if (view.row_offsets != nullptr) {
    request = request_of_row(view, row);
    if (request < 0) return 0;  // a padding row behind the last request
    first_row = view.row_offsets[request];
    num_rows = view.row_offsets[request + 1] - first_row;
  } else {
    request = row / view.rows_per_value;
    first_row = request * view.rows_per_value;
    num_rows = view.rows_per_value;
  }
  return int64_t(view.values[request * view.stride]) - num_rows + (row - first_row) + 1;
}

static inline int64_t row_length(const LengthView& view, int64_t row, int64_t width) {
  const int64_t length = raw_row_length(view, row, width);
  return length < 0 ? 0 : length > width ? width : length;
}

// Slots that a row of this segment can name.
static inline int64_t segment_width(const Segment& segment) {
  return segment.index_form == IndexForm::kPageTable ? segment.columns * segment.pool.page_size
                                                     : segment.columns;
}

}  // namespace dsv4
