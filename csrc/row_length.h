// SPDX-License-Identifier: Apache-2.0
// How many leading columns of a row's index table count: one rule for all engines and the value
// checks. Functions are static: this header is compiled for several instruction sets.
#pragma once

#include "dsv4/dsv4.h"
#include "host_device.h"

namespace dsv4 {

// Rows are int64_t on the host and int32_t in kernels, where 64 bits take many more instructions
// and registers, and a division of them is a call.
DSV4_HOST_DEVICE static inline int64_t divided_by(int64_t row, int64_t count) {
  return row / count;
}
DSV4_HOST_DEVICE static inline int32_t divided_by(int32_t row, int32_t count) {
  return static_cast<int32_t>(uint32_t(row) / uint32_t(count));
}

// The request that a varlen row belongs to, or -1: the last one whose first row is not beyond
// `row`.
template <class Row>
DSV4_HOST_DEVICE static inline Row request_of_row(const LengthView& view, Row row) {
  Row low = 0, high = static_cast<Row>(view.num_requests);  // the answer + 1 lies in [low, high]
  while (low < high) {
    const Row middle = low + (high - low) / 2;
    if (view.row_offsets[middle] <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const Row request = low - 1;
  return request >= 0 && row < view.row_offsets[request + 1] ? request : -1;
}

// What tells a row's length: kernels read it for several rows or segments before they use it.
template <class Row>
struct LengthValue {
  Row request;    // of a varlen row, or -1
  int32_t value;  // 0 where there is none
};

template <class Row>
DSV4_HOST_DEVICE static inline LengthValue<Row> length_value(const LengthView& view, Row row) {
  if (view.values == nullptr) return {-1, 0};
  const auto rows_per_value = static_cast<Row>(view.rows_per_value);
  Row request = -1, place = rows_per_value == 1 ? row : divided_by(row, rows_per_value);
  if (view.causal && view.row_offsets != nullptr) place = request = request_of_row(view, row);
  return {request, place < 0 ? 0 : view.values[place * view.stride]};
}

// The length as the caller wrote it, before clamping.
template <class Row>
DSV4_HOST_DEVICE static inline int64_t raw_row_length(const LengthView& view, Row row,
                                                      int64_t width,
                                                      const LengthValue<Row>& found) {
  if (view.values == nullptr) return width;
  if (!view.causal) return int64_t(found.value) - view.subtract;
  Row first_row, num_rows;
  if (view.row_offsets != nullptr) {
    if (found.request < 0) return 0;  // a padding row behind the last request
    first_row = view.row_offsets[found.request];
    num_rows = view.row_offsets[found.request + 1] - first_row;
  } else {
    num_rows = static_cast<Row>(view.rows_per_value);
    first_row = divided_by(row, num_rows) * num_rows;
  }
  return int64_t(found.value) - num_rows + (row - first_row) + 1;
}

template <class Row>
DSV4_HOST_DEVICE static inline int64_t raw_row_length(const LengthView& view, Row row,
                                                      int64_t width) {
  return raw_row_length(view, row, width, length_value(view, row));
}

template <class Row>
DSV4_HOST_DEVICE static inline int64_t row_length(const LengthView& view, Row row, int64_t width,
                                                  const LengthValue<Row>& found) {
  const int64_t length = raw_row_length(view, row, width, found);
  return length < 0 ? 0 : length > width ? width : length;
}

template <class Row>
DSV4_HOST_DEVICE static inline int64_t row_length(const LengthView& view, Row row, int64_t width) {
  return row_length(view, row, width, length_value(view, row));
}

// Slots that a row of this segment can name.
DSV4_HOST_DEVICE static inline int64_t segment_width(const Segment& segment) {
  return segment.index_form == IndexForm::kPageTable ? segment.columns * segment.pool.page_size
                                                     : segment.columns;
}

}  // namespace dsv4
