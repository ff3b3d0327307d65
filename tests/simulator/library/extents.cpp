// SPDX-License-Identifier: Apache-2.0
#include "library/extents.h"

#include <algorithm>

#include "row_length.h"

namespace dsv4::simulated {
namespace {

constexpr int64_t kBf16Bytes = 2;

class Extents {
 public:
  void add(const void* data, int64_t bytes) {
    const auto begin = reinterpret_cast<uint64_t>(data);
    if (data != nullptr && bytes > 0) extents_.push_back({begin, begin + uint64_t(bytes)});
  }

  // `count` runs of bytes, each so far behind the one before.
  void add_rows(const void* data, int64_t count, int64_t stride_bytes, int64_t bytes) {
    for (int64_t i = 0; i < count; ++i) add(at(data, i * stride_bytes), bytes);
  }

  static const void* at(const void* data, int64_t offset) {
    return data == nullptr ? nullptr : static_cast<const uint8_t*>(data) + offset;
  }

  std::vector<Extent> merged() {
    std::sort(extents_.begin(), extents_.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    std::vector<Extent> result;
    for (const Extent& extent : extents_) {
      if (!result.empty() && extent.begin <= result.back().end) {
        result.back().end = std::max(result.back().end, extent.end);
      } else {
        result.push_back(extent);
      }
    }
    return result;
  }

 private:
  std::vector<Extent> extents_;
};

void add_scale(Extents& extents, const Scale& scale) { extents.add(scale.pointer, sizeof(float)); }

// One slot of a cache. The pad byte behind the scales of a packed token belongs to it.
template <class Pool>
void add_slot(Extents& extents, const Pool& pool, KvFormat format, int64_t slot) {
  const int64_t offset = slot % pool.page_size;
  const void* const page = Extents::at(pool.data, slot / pool.page_size * pool.page_stride_bytes);
  switch (format) {
    case KvFormat::kPacked:
      extents.add(Extents::at(page, PackedPage::data_offset(offset)), PackedPage::kTokenDataBytes);
      extents.add(Extents::at(page, PackedPage::scale_offset(offset, pool.page_size)),
                  PackedPage::kTokenScaleBytes);
      return;
    case KvFormat::kBFloat16:
      extents.add(Extents::at(page, offset * pool.token_stride_bytes), kHeadDim * kBf16Bytes);
      return;
    case KvFormat::kFloat8E4M3:
      extents.add(Extents::at(page, offset * pool.token_stride_bytes), kHeadDim);
      return;
  }
}

void add_lengths(Extents& extents, const LengthView& length, int64_t rows) {
  if (length.values == nullptr) return;
  int64_t count = (rows + length.rows_per_value - 1) / length.rows_per_value;
  if (length.row_offsets != nullptr) {
    count = length.num_requests;
    extents.add(length.row_offsets, (count + 1) * int64_t(sizeof(int32_t)));
  }
  extents.add_rows(length.values, count, length.stride * int64_t(sizeof(int32_t)), sizeof(int32_t));
}

void add_segment(Extents& extents, const DecodeProblem& problem, const Segment& segment) {
  if (segment.indices == nullptr) return;
  const int64_t rows = problem.batch * problem.q_len;
  add_lengths(extents, segment.length, rows);
  const PoolView& pool = segment.pool;
  const bool pages = segment.index_form == IndexForm::kPageTable;
  const int64_t slots_per_index = pages ? pool.page_size : 1;
  const int64_t limit = pages ? pool.num_pages : pool.num_pages * pool.page_size;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* const indices = segment.indices +
                                   row / problem.q_len * segment.index_batch_stride +
                                   row % problem.q_len * segment.index_row_stride;
    extents.add(indices, segment.columns * int64_t(sizeof(int32_t)));
    const int64_t length = row_length(segment.length, row, segment_width(segment));
    for (int64_t column = 0; column < length; ++column) {
      const int64_t index = indices[column / slots_per_index];
      if (index < 0 || index >= limit) continue;
      add_slot(extents, pool, problem.kv_format,
               index * slots_per_index + column % slots_per_index);
    }
  }
}

// [batch, q_len, heads] runs of bytes.
template <class Pointer>
void add_heads(Extents& extents, const DecodeProblem& problem, const RowView<Pointer>& view,
               int64_t element_bytes, int64_t bytes) {
  for (int64_t row = 0; row < problem.batch * problem.q_len; ++row) {
    const int64_t first =
        row / problem.q_len * view.batch_stride + row % problem.q_len * view.row_stride;
    extents.add_rows(Extents::at(view.data, first * element_bytes), problem.heads,
                     view.head_stride * element_bytes, bytes);
  }
}

}  // namespace

std::vector<Extent> extents_of(const DecodeProblem& problem) {
  Extents extents;
  const int64_t query_bytes = problem.query_dtype == DType::kBFloat16 ? kBf16Bytes : 1;
  add_heads(extents, problem, problem.query, query_bytes, kHeadDim * query_bytes);
  add_segment(extents, problem, problem.window);
  add_segment(extents, problem, problem.compressed);
  add_scale(extents, problem.scale1);
  add_scale(extents, problem.scale2);
  extents.add(problem.sinks, problem.heads * int64_t(sizeof(float)));
  add_heads(extents, problem, problem.out, kBf16Bytes, kHeadDim * kBf16Bytes);
  add_heads(extents, problem, problem.lse, sizeof(float), sizeof(float));
  extents.add(problem.workspace, int64_t(problem.workspace_bytes));
  return extents.merged();
}

std::vector<Extent> extents_of(const MergeProblem& problem) {
  Extents extents;
  const int64_t bytes = problem.dtype == DType::kBFloat16 ? kBf16Bytes : int64_t(sizeof(float));
  for (int64_t state = 0; state < problem.num_states; ++state) {
    for (int64_t row = 0; row < problem.rows; ++row) {
      const int64_t out = state * problem.out_state_stride + row * problem.out_row_stride;
      const int64_t lse = state * problem.lse_state_stride + row * problem.lse_row_stride;
      extents.add_rows(Extents::at(problem.partial_out, out * bytes), problem.heads,
                       problem.out_head_stride * bytes, kHeadDim * bytes);
      extents.add_rows(problem.partial_lse + lse, problem.heads,
                       problem.lse_head_stride * int64_t(sizeof(float)), sizeof(float));
    }
  }
  extents.add(problem.sinks, problem.heads * int64_t(sizeof(float)));
  add_scale(extents, problem.scale2);
  extents.add(problem.out, problem.rows * problem.heads * kHeadDim * bytes);
  extents.add(problem.lse, problem.rows * problem.heads * int64_t(sizeof(float)));
  return extents.merged();
}

std::vector<Extent> extents_of(const AppendProblem& problem) {
  Extents extents;
  extents.add_rows(problem.values, problem.rows, problem.value_row_stride * kBf16Bytes,
                   kHeadDim * kBf16Bytes);
  extents.add(problem.slots, problem.rows * (problem.slots_are_64bit ? 8 : 4));
  add_scale(extents, problem.scale);
  for (int64_t row = 0; row < problem.rows; ++row) {
    const int64_t slot = problem.slots_are_64bit ? static_cast<const int64_t*>(problem.slots)[row]
                                                 : static_cast<const int32_t*>(problem.slots)[row];
    if (slot < 0 || slot / problem.pool.page_size >= problem.pool.num_pages) continue;
    add_slot(extents, problem.pool, problem.kv_format, slot);
  }
  return extents.merged();
}

std::vector<Extent> extents_of(const PackProblem& problem) {
  Extents extents;
  for (int64_t page = 0; page < problem.num_pages; ++page) {
    extents.add_rows(Extents::at(problem.values, page * problem.value_page_stride * kBf16Bytes),
                     problem.page_size, problem.value_token_stride * kBf16Bytes,
                     kHeadDim * kBf16Bytes);
  }
  extents.add_rows(problem.packed, problem.num_pages, problem.page_stride_bytes,
                   PackedPage::page_bytes(problem.page_size));
  return extents.merged();
}

std::vector<Extent> extents_of(const HcaMetadataProblem& problem) {
  Extents extents;
  constexpr int64_t kBytes = sizeof(int32_t);
  const int64_t rows = problem.batch * problem.q_len;
  extents.add_rows(problem.indices, rows, problem.index_row_stride * kBytes,
                   problem.columns * kBytes);
  extents.add(problem.seq_lens, problem.batch * kBytes);
  extents.add(problem.window_indices, rows * kWindow * kBytes);
  extents.add(problem.page_table, rows * problem.table_columns * kBytes);
  extents.add(problem.hca_seq_lens, problem.batch * kBytes);
  extents.add(problem.window_lens, rows * kBytes);
  return extents.merged();
}

}  // namespace dsv4::simulated
