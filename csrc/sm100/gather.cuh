// SPDX-License-Identifier: Apache-2.0
// The gather warps' role for 512-wide pools: indices -> rows of the pools -> granules of keys.
#pragma once

#include "ptx/shared_memory.cuh"
#include "ptx/tensor_copy.cuh"
#include "ptx/warp.cuh"
#include "sm100/config.cuh"
#include "sm100/tile_stream.cuh"

namespace dsv4::sm100 {

inline constexpr int32_t kHole = -1;  // a row that no matrix has: the copy writes zeros

// The row of its pool's matrix that an entry names.
__device__ __forceinline__ int32_t find_row(const Segment& segment, const PoolMaps& maps,
                                            int32_t entry, int32_t column) {
  if (entry < 0) return kHole;
  const PoolView& pool = segment.pool;
  const uint32_t page_size = static_cast<uint32_t>(pool.page_size);
  if (segment.index_form == IndexForm::kPageTable) {
    if (entry >= pool.num_pages) return kHole;
    return entry * maps.rows_per_page + static_cast<int32_t>(uint32_t(column) % page_size);
  }
  if (maps.dense_slots != 0) return uint32_t(entry) < maps.dense_slots ? entry : kHole;
  const uint32_t page = uint32_t(entry) / page_size, slot = uint32_t(entry) % page_size;
  if (page >= pool.num_pages) return kHole;
  return static_cast<int32_t>(page * maps.rows_per_page + slot);
}

// A warp's rows of a tile.
struct TileRows {
  int32_t window_slots;  // the first ones are of the window
  int32_t first_of_run;  // if they follow each other, in one pool; else kHole
};

// Of the warp's lanes, which have a row each.
__device__ __forceinline__ TileRows rows_of_tile(int32_t row, bool in_window) {
  const int lane = threadIdx.x % 32;
  const int32_t window_slots = __popc(__ballot_sync(0xffffffffu, in_window));
  const int32_t first = __shfl_sync(0xffffffffu, row, 0);
  const bool follows = row != kHole && row == first + lane;
  const bool one_pool = window_slots == 0 || window_slots == kRunSlots;
  return {window_slots, __all_sync(0xffffffffu, follows && one_pool) ? first : kHole};
}

// A granule's blocks of the warp's slots, by gathers of four rows or as a run.
template <class Cfg>
__device__ __forceinline__ void copy_rows(const DecodeParams& params, const TileRows& tile,
                                          const uint4 (&rows)[Cfg::kGathersPerWarp],
                                          uint32_t target, int dim, ptx::Mbarrier& full) {
#pragma unroll
  for (int i = 0; i < Cfg::kGathersPerWarp; ++i) {
    const int slot = i * Cfg::kRowsPerGather;
    const CUtensorMap& map = slot < tile.window_slots ? params.window.rows : params.compressed.rows;
#pragma unroll
    for (int block = 0; block < Cfg::kBlocksPerGranule; ++block) {
      ptx::gather_rows(target + block * Cfg::kBlockBytes + slot * Cfg::kSwizzleBytes, map,
                       dim + block * Cfg::kBlockDims, rows[i], full);
    }
  }
}

template <class Cfg>
__device__ __forceinline__ void copy_run(const DecodeParams& params, const TileRows& tile,
                                         uint32_t target, int dim, ptx::Mbarrier& full) {
  const CUtensorMap& map = tile.window_slots > 0 ? params.window.runs : params.compressed.runs;
#pragma unroll
  for (int block = 0; block < Cfg::kBlocksPerGranule; ++block) {
    ptx::load_box(target + block * Cfg::kBlockBytes, map, dim + block * Cfg::kBlockDims,
                  tile.first_of_run, full);
  }
}

// One thread copies a warp's slots of a tile: of copies with operands of each lane, the compiler
// makes a loop over the lanes, which takes longer.
template <class Cfg>
__device__ __forceinline__ void copy_tile(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                          int warp, const TileRows& tile,
                                          Ring<Cfg::kGranules>& ring) {
  uint4 rows[Cfg::kGathersPerWarp];
#pragma unroll
  for (int i = 0; i < Cfg::kGathersPerWarp; ++i) {
    rows[i] = ptx::load_shared_u128(ptx::shared_address(&smem.rows[warp][i * Cfg::kRowsPerGather]));
  }
#pragma unroll 1
  for (int granule = 0; granule < Cfg::kGranulesPerTile; ++granule, ring.advance()) {
    ptx::Mbarrier& full = smem.full[ring.index];
    smem.empty[ring.index].wait(ring.empty_parity());
    full.arrive_expect_bytes(Cfg::kGranuleBytes / Cfg::kGatherWarps);
    const uint32_t target = ptx::shared_address(smem.granules[ring.index]) +
                            warp * Cfg::kSlotsPerGatherWarp * Cfg::kSwizzleBytes;
    const int dim = granule * Cfg::kGranuleDims;
    if (tile.first_of_run != kHole) {
      copy_run<Cfg>(params, tile, target, dim, full);
    } else {
      copy_rows<Cfg>(params, tile, rows, target, dim, full);
    }
  }
}

template <class Slot>
__device__ __forceinline__ int32_t find_row(const DecodeParams& params, const Slot& slot) {
  return slot.in_window()
             ? find_row(params.problem.window, params.window, slot.entry, slot.column)
             : find_row(params.problem.compressed, params.compressed, slot.entry, slot.column);
}

// Fills the ring. Indices are read a tile ahead of their keys. A hole copies zeros: what lay in its
// place might be NaN, which times a weight of 0 is NaN.
template <class Cfg>
__device__ __forceinline__ void gather(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                       int32_t share, int first_head, int warp) {
  const int lane = threadIdx.x % 32;
  TileStream<Cfg> tiles = tiles_of<Cfg>(params, smem, share, first_head, warp);
  Ring<Cfg::kGranules> ring;
  int tile = 0;
  tiles.template run<1>([&](const typename TileStream<Cfg>::Slot& slot) {
    const int32_t row = find_row(params, slot);
    const TileRows rows = rows_of_tile(row, slot.in_window());
    smem.rows[warp][lane] = row;
    // The softmax is done with this place: the last granule of the tile before was free.
    static_assert(Cfg::kGranules < Cfg::kValidityTiles * Cfg::kGranulesPerTile);
    const int group_rows = Cfg::kRowGroups ? params.schedule.group_rows : 1;
    for (int i = 0; i < group_rows; ++i) {
      const uint32_t valid = __ballot_sync(0xffffffffu, row != kHole && slot.rows() >> i & 1);
      if (lane == 0) smem.validity[tile][i][warp] = valid;
    }
    __syncwarp();
    Ring<Cfg::kGranules> next = ring;
    for (int i = 0; i < Cfg::kGranulesPerTile; ++i) next.advance();
    if (ptx::elect_one()) copy_tile(params, smem, warp, rows, ring);
    ring = next;
    tile = (tile + 1) % Cfg::kValidityTiles;
    __syncwarp();
  });
}

}  // namespace dsv4::sm100
