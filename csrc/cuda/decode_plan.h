// SPDX-License-Identifier: Apache-2.0
// The host's part of a decode that the GPU engines share: a schedule, its place in the workspace,
// what tensors are aligned to, and the combine behind.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "combine/parts.h"
#include "cuda/schedule.h"
#include "dsv4/dsv4.h"

namespace dsv4::cuda {

struct DecodePlan {
  Schedule schedule;
  bool compares_tables;  // of the rows of a group

  // In the workspace; balanced schedules only.
  float* partial_out;   // [2 num_shares, group_rows, heads, 512] divided by its own sum of weights
  float* partial_lse;   // [2 num_shares, group_rows, heads] base 2; -inf where no slot is valid
  RowParts* row_parts;  // [rows]
};

// Each SM runs one block of the engine at a time.
Status plan_decode(const DecodeProblem& problem, const EngineCosts& costs, DecodePlan* plan);

// Puts the parts of cut rows together, if there are any.
Status combine_parts(const DecodeProblem& problem, const DecodePlan& plan, Stream stream);

// What plan_decode would like to have, with any of these costs.
Status workspace_size(const DecodeShape& shape, std::initializer_list<EngineCosts> costs,
                      size_t* bytes);

// 16 if everything that a kernel reads or writes of them begins at a multiple of 16 bytes; else 8,
// 4 or 1.
int pool_alignment(const Segment& segment, KvFormat format);
int row_alignment(const void* data, int64_t batch_stride_bytes, int64_t row_stride_bytes,
                  int64_t head_stride_bytes);

}  // namespace dsv4::cuda
