// SPDX-License-Identifier: Apache-2.0
// The gather warps' role in one of a pair of blocks. Both step through the same share, and read all
// of its indices.
#pragma once

#include "ptx/shared_memory.cuh"
#include "ptx/tensor_copy.cuh"
#include "ptx/warp.cuh"
#include "sm100/convert.cuh"
#include "sm100/gather.cuh"
#include "sm100/pair_config.cuh"
#include "sm100/tile_stream.cuh"

namespace dsv4::sm100 {

// Waits until all places of the ring are free: arrivals there come from the leader's tensor cores,
// and the block must not leave before the last of them.
template <class Cfg>
__device__ __forceinline__ void drain(PairStorage<Cfg>& smem, Ring<Cfg::kStages> ring) {
  for (int i = 0; i < Cfg::kStages; ++i, ring.advance()) {
    smem.empty[ring.index].wait(ring.empty_parity());
  }
}

// One thread copies what a warp's slots have in blocks kFirst .. kEnd - 1 of a tile.
template <int kFirst, int kEnd, class Cfg>
__device__ __forceinline__ void copy_blocks(const DecodeParams& params, PairStorage<Cfg>& smem,
                                            int rank, int warp, int stage, const TileRows& tile,
                                            const ptx::Mbarrier& full) {
  const ptx::RemoteMbarrier leader_full(full, 0);
  const int first_row = warp * Cfg::kSlotsPerGatherWarp % Cfg::kBlockSlots;
  const uint32_t target = ptx::shared_address(smem.blocks[stage]) + first_row * Cfg::kSwizzleBytes;
  leader_full.arrive_expect_bytes((kEnd - kFirst) * Cfg::kSlotsPerGatherWarp * Cfg::kSwizzleBytes);
  if (tile.first_of_run != kHole) {
    const CUtensorMap& map = tile.window_slots > 0 ? params.window.runs : params.compressed.runs;
#pragma unroll
    for (int block = kFirst; block < kEnd; ++block) {
      ptx::load_box(target + block * Cfg::kBlockBytes, map,
                    Cfg::block_dim(block % Cfg::kOwnBlocks, rank), tile.first_of_run, leader_full);
    }
    return;
  }
#pragma unroll
  for (int slot = 0; slot < Cfg::kSlotsPerGatherWarp; slot += Cfg::kRowsPerGather) {
    const uint4 rows = ptx::load_shared_u128(ptx::shared_address(&smem.rows[warp][slot]));
    const CUtensorMap& map = slot < tile.window_slots ? params.window.rows : params.compressed.rows;
#pragma unroll
    for (int block = kFirst; block < kEnd; ++block) {
      ptx::gather_rows(target + block * Cfg::kBlockBytes + slot * Cfg::kSwizzleBytes, map,
                       Cfg::block_dim(block % Cfg::kOwnBlocks, rank), rows, leader_full);
    }
  }
}

// Fills the ring. Indices are read a tile ahead of their keys. A hole copies zeros: what lay in its
// place might be NaN, which times a weight of 0 is NaN.
template <class Cfg>
__device__ __forceinline__ void gather_for_pair(const DecodeParams& params, PairStorage<Cfg>& smem,
                                                int32_t share, int first_head, int rank, int warp) {
  const int lane = threadIdx.x % 32;
  const bool has_own_slots = Cfg::kSplitsDims || warp / Cfg::kOwnGatherWarps == rank;
  TileStream<Cfg> tiles = tiles_of<Cfg>(params, smem, share, first_head, warp);
  Ring<Cfg::kStages> ring;
  tiles.template run<1>([&](const typename TileStream<Cfg>::Slot& slot) {
    const int32_t row = find_row(params, slot);
    const uint32_t valid = __ballot_sync(0xffffffffu, row != kHole);
    const TileRows tile = rows_of_tile(row, slot.in_window());
    smem.rows[warp][lane] = row;
    smem.empty[ring.index].wait(ring.empty_parity());
    if (lane == 0) smem.validity[ring.index][warp] = valid;
    __syncwarp();
    if (ptx::elect_one()) {
      if (has_own_slots) {
        copy_blocks<0, Cfg::kOwnBlocks>(params, smem, rank, warp, ring.index, tile,
                                        smem.own_full[ring.index]);
      } else {
        // The scores do not need the keys, but the validity.
        ptx::RemoteMbarrier(smem.own_full[ring.index], 0).arrive();
        copy_blocks<Cfg::kOwnBlocks, Cfg::kBlocks>(params, smem, rank, warp, ring.index, tile,
                                                   smem.other_full[ring.index]);
      }
    }
    __syncwarp();
    ring.advance();
  });
  drain(smem, ring);
}

// Where a block of a pair puts packed keys: half of a tile's granules at its place in the ring.
template <class Cfg>
class HalfTileRing {
 public:
  __device__ __forceinline__ HalfTileRing(PairStorage<Cfg>& smem, int warp)
      : smem_(smem), warp_(warp) {}

  __device__ __forceinline__ uint8_t* acquire(int granule) const {
    const int of_half = granule % kGranules;
    if (of_half == 0) smem_.empty[ring_.index].wait(ring_.empty_parity());
    return smem_.blocks[ring_.index][of_half * Cfg::kOwnBlocks / kGranules];
  }
  __device__ __forceinline__ uint8_t* validity(int) const {
    return reinterpret_cast<uint8_t*>(smem_.validity[ring_.index]) + warp_;
  }
  __device__ __forceinline__ void release(int granule) {
    if (granule % kGranules != kGranules - 1) return;
    ptx::fence_shared_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::RemoteMbarrier(smem_.own_full[ring_.index], 0).arrive();
    ring_.advance();
  }
  __device__ __forceinline__ const Ring<Cfg::kStages>& ring() const { return ring_; }

 private:
  static constexpr int kGranules = kPackedGranules / 2;
  PairStorage<Cfg>& smem_;
  int warp_;
  Ring<Cfg::kStages> ring_;
};

template <class Cfg>
__device__ __forceinline__ void load_and_convert_for_pair(const DecodeParams& params,
                                                          PairStorage<Cfg>& smem, int32_t share,
                                                          int first_head, int rank, int warp) {
  constexpr int kHalf = kPackedGranules / 2;
  HalfTileRing<Cfg> target(smem, warp);
  if (rank == 0) {
    load_and_convert<0, kHalf, Cfg>(params, smem, share, first_head, warp, target);
  } else {
    load_and_convert<kHalf, kPackedGranules, Cfg>(params, smem, share, first_head, warp, target);
  }
  drain(smem, target.ring());
}

}  // namespace dsv4::sm100
