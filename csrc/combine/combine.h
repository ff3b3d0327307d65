// SPDX-License-Identifier: Apache-2.0
// Merging partial results of one softmax on the GPU:
//   total = ln sum_i exp(lse_i)
//   out   = scale2 * sink share * sum_i exp(lse_i - total) out_i
// The public merge_states and the end of a split decode are the same kernel.
#pragma once

#include "combine/parts.h"
#include "dsv4/dsv4.h"

namespace dsv4::combine {

Status merge_states(const MergeProblem& problem, Stream stream);

// What the blocks of a split decode leave behind, by place (parts.h).
struct SplitResults {
  const float* out = nullptr;  // [places, group_rows, heads, 512], each part divided by its own
                               // sum; 16-byte aligned
  const float* lse =
      nullptr;  // [places, group_rows, heads] log2, without sink; -inf: no valid slot
  const RowParts* rows = nullptr;  // [batch * q_len]
  int32_t num_blocks = 0;          // of a tile of heads
  int32_t group_rows = 1;          // of schedule.h
};

// Writes problem.out and problem.lse of every row of two parts or more. `parts_per_row`: about how
// many there are, at most. `starts_early`: lets the GPU start it before the decode is over; it
// waits for the decode's results itself.
Status combine_splits(const DecodeProblem& problem, const SplitResults& splits, Stream stream,
                      double parts_per_row, bool starts_early = true);

}  // namespace dsv4::combine
