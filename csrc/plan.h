// SPDX-License-Identifier: Apache-2.0
// The plan of a decode: how its work is cut and where partial results lie. Pure functions of
// shapes, so a plan can be made on the host without looking at device data. How many parts a row
// has is decided here; where the parts of one row begin and end follows from the row's own length,
// which only the engine reads (split_range).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4 {

// What the planner knows of an engine.
struct EngineTraits {
  int64_t head_block = 64;  // heads one task serves at most
  int64_t min_head_block =
      16;  // and at least, when cutting heads is the only way to fill the machine
  int64_t min_split_slots = 64;  // a part of a row below this costs more than it gives
  int64_t max_splits = 64;
};

struct PlanInput {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t slots = 0;             // width of both segments together
  int64_t parallelism = 1;       // tasks that run at a time
  bool batch_invariant = false;  // never split a row
};

struct Plan {
  int64_t head_block = 0;
  int64_t num_head_blocks = 0;
  int64_t num_splits = 1;
  int64_t num_tasks = 0;  // rows x head blocks x splits, in this order, splits innermost

  // Workspace, in bytes from its start: partial outputs [rows, splits, heads, 512] float32, then
  // partial lse [rows, splits, heads] float32. Nothing when there is one split.
  size_t partial_out_offset = 0;
  size_t partial_lse_offset = 0;
  size_t workspace_bytes = 0;
};

// The plan that is fastest, given `workspace_bytes` to put partial results in.
Plan make_plan(const PlanInput& input, const EngineTraits& traits, size_t workspace_bytes);

struct SplitRange {
  int64_t begin;
  int64_t end;
};

// The columns of part `split` of a row with `length` active columns. Parts cover [0, length) once,
// in order, and differ by at most one.
SplitRange split_range(int64_t length, int64_t num_splits, int64_t split);

}  // namespace dsv4
