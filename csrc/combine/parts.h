// SPDX-License-Identifier: Apache-2.0
// Where the parts of a query row lie in the workspace of a split decode; shared by the kernels that
// write them and the one that combines them.
//
// Block b of a decode works through a run of slots that begins somewhere in one row and ends
// somewhere in another. So it leaves two partial results at most, and owns the places for two:
//   2b      the end, or the whole middle, of a row that an earlier block began
//   2b + 1  the beginning of a row that the next block goes on with
#pragma once

#include <cstdint>

#include "host_device.h"

namespace dsv4 {

struct RowParts {
  int32_t first;  // the block that began the row
  int32_t count;  // blocks that worked on it; 1: it finished the row, and nothing is to combine
};

inline constexpr int kPlacesPerBlock = 2;

DSV4_HOST_DEVICE constexpr int64_t part_place(int64_t block, bool begins_row) {
  return kPlacesPerBlock * block + (begins_row ? 1 : 0);
}

// The place of part i of a row.
DSV4_HOST_DEVICE constexpr int64_t part_place(const RowParts& parts, int64_t i) {
  return part_place(parts.first + i, i == 0);
}

}  // namespace dsv4
