// SPDX-License-Identifier: Apache-2.0
// Merging partial results of one softmax:
//   total = ln sum_i exp(lse_i)
//   out   = scale2 * sink share * sum_i exp(lse_i - total) out_i
// The public merge_states and the end of a split decode are the same function.
#pragma once

#include "cpu/decode_kernel.h"

namespace dsv4::cpu {

// Merges the parts of every row of a decode into problem.out and problem.lse.
void combine_splits(const DecodeJob& job);

}  // namespace dsv4::cpu
