// SPDX-License-Identifier: Apache-2.0
// From an entry of an index table to the address of a key.
#pragma once

#include "dsv4/dsv4.h"
#include "dsv4/kv_format.h"

namespace dsv4 {

struct Key {
  const uint8_t* data;    // null: a hole
  const uint8_t* scales;  // packed only
};

// The key that an entry names.
template <bool kPacked>
__device__ __forceinline__ Key find_key(const Segment& segment, int32_t entry, int32_t column) {
  Key key{nullptr, nullptr};
  if (entry < 0) return key;
  const PoolView& pool = segment.pool;
  const uint32_t page_size = static_cast<uint32_t>(pool.page_size);
  const bool token_row = segment.index_form == IndexForm::kTokenRows;
  const uint32_t page = token_row ? uint32_t(entry) / page_size : uint32_t(entry);
  const uint32_t slot = (token_row ? uint32_t(entry) : uint32_t(column)) % page_size;
  if (page >= pool.num_pages) return key;
  const uint8_t* start =
      static_cast<const uint8_t*>(pool.data) + int64_t(page) * pool.page_stride_bytes;
  if constexpr (kPacked) {
    key.data = start + PackedPage::data_offset(slot);
    key.scales = start + PackedPage::scale_offset(slot, pool.page_size);
  } else {
    key.data = start + int64_t(slot) * pool.token_stride_bytes;
  }
  return key;
}

// The pointer that another lane has.
__device__ __forceinline__ const uint8_t* of_lane(const uint8_t* pointer, int lane) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const uint64_t low = __shfl_sync(0xffffffffu, uint32_t(address), lane);
  const uint64_t high = __shfl_sync(0xffffffffu, uint32_t(address >> 32), lane);
  return reinterpret_cast<const uint8_t*>(high << 32 | low);
}

}  // namespace dsv4
