// SPDX-License-Identifier: Apache-2.0
// How many leading columns of a row's index table count: one rule for all engines and the value
// checks. Functions are static: this header is compiled for several instruction sets.
#pragma once

#include "dsv4/dsv4.h"
#include "host_device.h"

namespace dsv4 {

// The request that a varlen row belongs to, or -1: the last one whose first row is not beyond
// `row`.
DSV4_HOST_DEVICE static inline int64_t request_of_row(const LengthView& view, int64_t row) {
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

// The value that tells a row's length; 0 where there is none.
DSV4_HOST_DEVICE static inline int32_t length_value(const LengthView& view, int64_t row) {
  if (view.values == nullptr) return 0;
  // Kernels feel a 64-bit division.
  int64_t value = view.rows_per_value == 1 ? row : row / view.rows_per_value;
  if (view.causal && view.row_offsets != nullptr) value = request_of_row(view, row);
  return value < 0 ? 0 : view.values[value * view.stride];
}

// The length as the caller wrote it, before clamping.
DSV4_HOST_DEVICE static inline int64_t raw_row_length(const LengthView& view, int64_t row,
                                                      int64_t width, int32_t value) {
  if (view.values == nullptr) return width;
  if (!view.causal) return int64_t(value) - view.subtract;
  int64_t first_row, num_rows;
  if (view.row_offsets != nullptr) {
    const int64_t request = request_of_row(view, row);
    if (request < 0) return 0;  // a padding row behind the last request
    first_row = view.row_offsets[request];
    num_rows = view.row_offsets[request + 1] - first_row;
  } else {
    num_rows = view.rows_per_value;
    first_row = row / num_rows * num_rows;
  }
  return int64_t(value) - num_rows + (row - first_row) + 1;
}

DSV4_HOST_DEVICE static inline int64_t raw_row_length(const LengthView& view, int64_t row,
                                                      int64_t width) {
  return raw_row_length(view, row, width, length_value(view, row));
}

// A value that was read before: kernels read those of several rows or segments at a time.
DSV4_HOST_DEVICE static inline int64_t row_length(const LengthView& view, int64_t row,
                                                  int64_t width, int32_t value) {
  const int64_t length = raw_row_length(view, row, width, value);
  return length < 0 ? 0 : length > width ? width : length;
}

DSV4_HOST_DEVICE static inline int64_t row_length(const LengthView& view, int64_t row,
                                                  int64_t width) {
  return row_length(view, row, width, length_value(view, row));
}

// Slots that a row of this segment can name.
DSV4_HOST_DEVICE static inline int64_t segment_width(const Segment& segment) {
  return segment.index_form == IndexForm::kPageTable ? segment.columns * segment.pool.page_size
                                                     : segment.columns;
}

}  // namespace dsv4
