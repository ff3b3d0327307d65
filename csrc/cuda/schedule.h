// SPDX-License-Identifier: Apache-2.0
// Which block of a GPU engine decodes what. The plan follows from shapes alone; where a block's
// share begins and ends follows from the rows' real lengths, which each block reads for itself.
//
//   heads are cut into tiles; the blocks of one tile (or pairs of them, where pairs work together)
//                are numbered 0 .. num_shares-1
//   whole rows   block i decodes the rows i, i + num_shares, ...: either all blocks run at a time,
//                or each has one row, and an SM begins the next one when it is free
//   balanced     all rows stand in a line, cut into units of unit_slots slots (an empty row is one
//                unit); block i decodes the units [i U / n, (i + 1) U / n) of the U there are, with
//                n = min(num_shares, U). A row that is cut leaves partial results, and a combine
//                follows.
//
// Where the rows of a request have one compressed table, up to group_rows of them that fit into a
// tile of heads are a group: one row of the above, which has the windows of all of them and their
// compressed slots once. Its heads are those of its rows, row after row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4 {

struct Schedule {
  int32_t num_shares = 1;
  int32_t num_head_tiles = 1;
  int32_t head_tile = 0;  // heads of a block
  int32_t unit_slots = 0;
  int32_t group_rows = 1;
  int32_t num_groups = 1;       // without groups: rows
  int32_t groups_of_table = 1;  // of the rows that have one compressed table
  bool balanced = false;

  // Workspace of a balanced schedule, in bytes from its start: partial outputs
  // [2 num_shares, group_rows, heads, 512] float, then their lse [2 num_shares, group_rows, heads]
  // float (base 2), then RowParts [rows].
  size_t partial_lse_offset = 0;
  size_t row_parts_offset = 0;
  size_t workspace_bytes = 0;
};

// Times of an engine on its GPU, in any one unit, from its measured.md: they only choose between
// schedules.
struct EngineCosts {
  int32_t num_tiles;      // of the next five
  int32_t head_tile[2];   // heads a block, or a pair of them, may serve
  int32_t num_blocks[2];  // that work on such a tile together
  int32_t unit_slots[2];  // slots of one step of the kernel's loop
  double unit[2];         // one step
  double row[2];          // first loads and last stores of a row
  double block[2];        // start of a block where another one has ended
  double combine;         // a combine kernel
  double combine_part;    // each part of a row in it
  double partial_head;    // writing and reading a head's partial result, by all blocks together
  double comparison;      // one step where tables are compared / unit
  int32_t window_unit;    // the compressed slots of a row begin at a multiple of it, a power of 2
};

// A slot has a bit for each row of a group. Where the rows' tables are compared, an entry of each
// is in flight.
inline constexpr int kMaxGroupRows = 8, kMaxComparedRows = 4;

struct ScheduleInput {
  int64_t rows = 0;
  int64_t table_rows = 1;        // neighbours that have one compressed table
  bool compares_tables = false;  // of these, before it takes them for one
  int64_t heads = 0;
  int64_t window_slots = 0;  // width of each segment
  int64_t compressed_slots = 0;
  int64_t blocks = 1;            // that run at a time
  bool persistent = false;       // no more blocks than these
  bool batch_invariant = false;  // whole rows only
};

// Beyond this many rows a block does not look for its share, and whole rows balance well.
inline constexpr int64_t kMaxBalancedRows = 1024;

// The schedule that should be fastest, given `workspace_bytes` for partial results.
Schedule make_schedule(const ScheduleInput& input, const EngineCosts& costs,
                       size_t workspace_bytes);

}  // namespace dsv4
