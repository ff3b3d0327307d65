// SPDX-License-Identifier: Apache-2.0
// Copies of boxes of a tensor, which a tensor map describes, to shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
#pragma once

#include <cuda.h>

#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"

namespace dsv4::ptx {

// Part of four rows of a matrix, from `column` as wide as the map's box; a row outside of the
// matrix gives zeros.
__device__ __forceinline__ void gather_rows(uint32_t shared, const CUtensorMap& map, int column,
                                            const uint4& rows, Mbarrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w),
      "r"(shared_address(&full))
      : "memory");
}

// A box of a matrix.
__device__ __forceinline__ void load_box(uint32_t shared, const CUtensorMap& map, int column,
                                         int row, Mbarrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(&full))
      : "memory");
}

// The same in a kernel of pairs, whose barrier may be the other block's.
__device__ __forceinline__ void gather_rows(uint32_t shared, const CUtensorMap& map, int column,
                                            const uint4& rows, const RemoteMbarrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
      ".cta_group::2 [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w),
      "r"(full.address())
      : "memory");
}

__device__ __forceinline__ void load_box(uint32_t shared, const CUtensorMap& map, int column,
                                         int row, const RemoteMbarrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".cta_group::2 [%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(row), "r"(full.address())
      : "memory");
}

// A box of a tensor of four dimensions; what lies outside of the tensor is 0.
__device__ __forceinline__ void load_box(uint32_t shared, const CUtensorMap& map, int x, int y,
                                         int z, int w, Mbarrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(&full))
      : "memory");
}

}  // namespace dsv4::ptx
