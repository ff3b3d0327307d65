// SPDX-License-Identifier: Apache-2.0
#include "cuda/schedule.h"

#include <algorithm>

#include "combine/parts.h"
#include "dsv4/kv_format.h"

namespace dsv4 {
namespace {

constexpr size_t kAlignment = 128;

// The rows' lengths are not known here. Rows of long tables are the ones that differ much, so these
// get what evens them out, even if it takes a little longer where they do not differ: cuts by real
// lengths, or at least a block for each row, which an SM begins when it is free.
constexpr double kLongRow = 40;               // block starts that it takes as long as
constexpr double kEveningOut = 1 + 1 / 32.0;  // times as long as whole rows of equal lengths

// A share is counted in 32 bits, and so is the row that would be a block's next.
constexpr int64_t kMaxBlocks = INT32_MAX / 2;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

size_t align_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void lay_out(const ScheduleInput& input, Schedule& schedule) {
  const size_t parts =
      size_t(kPlacesPerBlock) * schedule.num_shares * schedule.group_rows * input.heads;
  schedule.partial_lse_offset = align_up(parts * kHeadDim * sizeof(float));
  schedule.row_parts_offset = schedule.partial_lse_offset + align_up(parts * sizeof(float));
  schedule.workspace_bytes =
      schedule.row_parts_offset + align_up(size_t(input.rows) * sizeof(RowParts));
}

// The most rows of a table that fit into a tile of heads, in groups of about the same size.
int32_t rows_of_group(const ScheduleInput& input, int32_t head_tile) {
  if (input.batch_invariant || input.compressed_slots == 0) return 1;
  const int64_t most = std::clamp<int64_t>(
      head_tile / input.heads, 1, input.compares_tables ? kMaxComparedRows : kMaxGroupRows);
  return int32_t(divide_up(input.table_rows, divide_up(input.table_rows, most)));
}

// Rows of this many units that a share can touch.
int64_t most_rows(int64_t share, int64_t units) {
  if (units % share == 0) return 1;
  return share % units == 0 ? share / units : 1 + divide_up(share - 1, units);
}

}  // namespace

Schedule make_schedule(const ScheduleInput& input, const EngineCosts& costs,
                       size_t workspace_bytes) {
  Schedule best;
  double best_time = 0;
  const auto consider = [&](const Schedule& schedule, double time) {
    if (best.head_tile != 0 && time >= best_time) return;
    best = schedule;
    best_time = time;
  };

  const auto consider_groups_of = [&](int32_t group_rows, int tile) {
    Schedule schedule;
    schedule.group_rows = group_rows;
    schedule.unit_slots = costs.unit_slots[tile];
    const int64_t window = divide_up(input.window_slots, costs.window_unit) * costs.window_unit;
    const int64_t slots = group_rows * window + input.compressed_slots;
    const int64_t units = std::max<int64_t>(1, divide_up(slots, schedule.unit_slots));
    const int64_t heads = group_rows * input.heads;
    // Of a request's last group, rows may be missing.
    const int64_t groups_of_table = divide_up(input.table_rows, group_rows);
    const int64_t groups = divide_up(input.rows, input.table_rows) * groups_of_table;
    schedule.num_groups = int32_t(groups);
    schedule.groups_of_table = int32_t(groups_of_table);
    schedule.head_tile = costs.head_tile[tile];
    schedule.num_head_tiles = int32_t(divide_up(heads, schedule.head_tile));
    const int64_t max_shares =
        std::max<int64_t>(1, input.blocks / (schedule.num_head_tiles * costs.num_blocks[tile]));
    const bool compares = group_rows > 1 && input.compares_tables;
    const double unit = costs.unit[tile] * (compares ? costs.comparison : 1.0);

    const double row_time = double(units) * unit + costs.row[tile];
    const bool long_rows = row_time >= kLongRow * costs.block[tile];
    const int64_t resident = std::clamp<int64_t>(groups, 1, max_shares);
    const int64_t max_groups = kMaxBlocks / (schedule.num_head_tiles * costs.num_blocks[tile]);
    const bool own_blocks = long_rows && !input.persistent && groups <= max_groups;
    schedule.num_shares = int32_t(own_blocks ? groups : resident);
    consider(schedule,
             double(divide_up(groups, resident)) * row_time * (long_rows ? kEveningOut : 1.0));

    if (input.batch_invariant || input.rows > kMaxBalancedRows) return;
    schedule.balanced = true;
    const int64_t all_units = groups * units;
    if ((all_units + 1) * (max_shares + 1) > UINT32_MAX) return;
    // The smallest shares that the blocks allow, and larger ones up to a row.
    const int64_t smallest = divide_up(all_units, max_shares);
    for (int64_t share = smallest; share <= std::max(smallest, units); ++share) {
      schedule.num_shares = int32_t(divide_up(all_units, share));
      lay_out(input, schedule);
      if (schedule.num_shares == 1 || schedule.workspace_bytes > workspace_bytes) continue;
      const double rows_per_share = double(most_rows(share, units));
      const double parts_per_row = double(schedule.num_shares) / double(groups) + 1;
      consider(schedule, double(share) * unit + rows_per_share * costs.row[tile] + costs.combine +
                             parts_per_row * costs.combine_part +
                             double(schedule.num_shares * heads) * costs.partial_head);
    }
  };

  for (int tile = 0; tile < costs.num_tiles; ++tile) {
    const int32_t most = rows_of_group(input, costs.head_tile[tile]);
    consider_groups_of(1, tile);
    if (most > 1) consider_groups_of(most, tile);
  }
  return best;
}

}  // namespace dsv4
