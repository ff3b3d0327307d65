// SPDX-License-Identifier: Apache-2.0
// From index tables to the addresses of valid slots. Compiled with each instruction set's kernel.
#pragma once

#include "cpu/decode_kernel.h"
#include "row_length.h"

namespace dsv4::cpu::DSV4_SIMD {
namespace {

// Where one valid slot lies.
struct SlotAddress {
  const uint8_t* data;
  const uint8_t* scales;  // packed format only
};

// Walks the columns of both segments in order and hands out the valid slots.
class SlotCursor {
 public:
  SlotCursor(const DecodeProblem& problem, int64_t row, int64_t num_splits, int64_t split)
      : problem_(problem) {
    const int64_t window = active(problem.window, row, &window_indices_);
    const int64_t compressed = active(problem.compressed, row, &compressed_indices_);
    window_length_ = window;
    const SplitRange range = split_range(window + compressed, num_splits, split);
    column_ = range.begin;
    end_ = range.end;
  }

  int64_t num_columns() const { return end_ - column_; }

  // Up to kTileSlots further valid slots; fewer only at the end.
  int next(SlotAddress* slots) {
    int count = 0;
    if (column_ < window_length_) {
      const int64_t end = end_ < window_length_ ? end_ : window_length_;
      column_ = take(problem_.window, window_indices_, column_, end, slots, count);
    }
    if (column_ >= window_length_ && column_ < end_) {
      column_ =
          window_length_ + take(problem_.compressed, compressed_indices_, column_ - window_length_,
                                end_ - window_length_, slots, count);
    }
    return count;
  }

 private:
  int64_t active(const Segment& segment, int64_t row, const int32_t** indices) const {
    if (segment.indices == nullptr) return 0;
    *indices = segment.indices + row / problem_.q_len * segment.index_batch_stride +
               row % problem_.q_len * segment.index_row_stride;
    return row_length(segment.length, row, segment_width(segment));
  }

  // Takes slots of columns [column, end) until the tile is full; returns the column after the last
  // one looked at.
  int64_t take(const Segment& segment, const int32_t* indices, int64_t column, int64_t end,
               SlotAddress* slots, int& count) const {
    const PoolView& pool = segment.pool;
    const bool packed = problem_.kv_format == KvFormat::kPacked;
    for (; column < end && count < kTileSlots; ++column) {
      int64_t page, offset;
      if (segment.index_form == IndexForm::kTokenRows) {
        page = indices[column] / pool.page_size;
        offset = indices[column] % pool.page_size;
        if (indices[column] < 0) continue;
      } else {
        page = indices[column / pool.page_size];
        offset = column % pool.page_size;
        if (page < 0) continue;
      }
      if (page >= pool.num_pages) continue;
      const uint8_t* base = static_cast<const uint8_t*>(pool.data) + page * pool.page_stride_bytes;
      slots[count++] = packed ? SlotAddress{base + PackedPage::data_offset(offset),
                                            base + PackedPage::scale_offset(offset, pool.page_size)}
                              : SlotAddress{base + offset * pool.token_stride_bytes, nullptr};
    }
    return column;
  }

  const DecodeProblem& problem_;
  const int32_t* window_indices_ = nullptr;
  const int32_t* compressed_indices_ = nullptr;
  int64_t window_length_ = 0;
  int64_t column_ = 0, end_ = 0;
};

// Asks for the bytes of slots that the next tile will need.
void prefetch(const SlotAddress* slots, int count, KvFormat format) {
  constexpr int kLineBytes = 64;
  const int bytes = format == KvFormat::kBFloat16 ? kHeadDim * 2
                    : format == KvFormat::kPacked ? PackedPage::kTokenDataBytes
                                                  : kHeadDim;
  for (int j = 0; j < count; ++j) {
    for (int i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(slots[j].data + i, 0, 2);
    if (format == KvFormat::kPacked) __builtin_prefetch(slots[j].scales, 0, 2);
  }
}

}  // namespace
}  // namespace dsv4::cpu::DSV4_SIMD
