// SPDX-License-Identifier: Apache-2.0
// Combined token rows -> tables of the HCA form.
#include <algorithm>

#include "cpu/engine.h"

namespace dsv4::cpu {

Status hca_metadata(const HcaMetadataProblem& problem, Stream) {
  const int64_t rows = problem.batch * problem.q_len;
  const int64_t compressed_columns = problem.columns - kWindow;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t seq_len = problem.seq_lens[row / problem.q_len];
    const int64_t visible = std::max<int64_t>(seq_len - problem.q_len + row % problem.q_len + 1, 0);
    const int32_t window_len = int32_t(std::min<int64_t>(visible, kWindow));
    problem.window_lens[row] = window_len;

    const int32_t* window = problem.indices + row * problem.index_row_stride;
    for (int column = 0; column < kWindow; ++column) {
      const int32_t index = window[column];
      const bool inside = index >= 0 && index < problem.window_slots;
      problem.window_indices[row * kWindow + column] = column >= window_len ? 0
                                                       : inside             ? index
                                                                            : -1;
    }

    const int32_t* compressed = window + kWindow;
    const int64_t active = std::min(visible / kWindow, compressed_columns);
    for (int64_t page = 0; page < problem.table_columns; ++page) {
      const int64_t first = page * problem.page_size;
      int32_t id = 0;
      if (first < active) {
        const int32_t start = compressed[first];
        const bool begins_page = start >= 0 && start % problem.page_size == 0 &&
                                 start / problem.page_size < problem.num_pages;
        id = begins_page ? int32_t(start / problem.page_size) : -1;
      }
      problem.page_table[row * problem.table_columns + page] = id;
    }
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    problem.hca_seq_lens[b] = int32_t(kWindow + std::max(problem.seq_lens[b], 0) / kWindow);
  }
  return {};
}

}  // namespace dsv4::cpu
