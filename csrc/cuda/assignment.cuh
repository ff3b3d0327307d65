// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "combine/parts.h"
#include "cuda/work.cuh"

namespace dsv4 {

// What the producer, which reads the rows' lengths, tells the other warps of a block of a piece of
// work.
struct Assignment {
  int32_t row;  // -1: there is no more
  int32_t first_head;
  int32_t num_slots;
  bool whole_row;
  int32_t part;        // place of the partial result, else
  RowParts row_parts;  // to be told to the combine, where count is not 0
};

template <int kWindowUnit>
__device__ __forceinline__ Assignment make_assignment(const Share<kWindowUnit>& share,
                                                      const Work& work, int32_t first_head) {
  return {work.row,
          first_head,
          work.end - work.begin,
          work.is_whole_row(),
          static_cast<int32_t>(part_place(share.index(), work.begins_row)),
          share.parts_of_row(work)};
}

}  // namespace dsv4
