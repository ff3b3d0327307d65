// SPDX-License-Identifier: Apache-2.0
// The tiles of a block's share, as the gather warps see them.
#pragma once

#include "cuda/slot_stream.cuh"
#include "sm100/config.cuh"

namespace dsv4::sm100 {

template <class Cfg>
using TileStream = SlotStream<kWindowUnit, Cfg::kTileSlots, Cfg::kAssignments, Cfg::kRowGroups,
                              Cfg::kComparesTables, typename Cfg::Storage>;

// For a lane of a gather warp; warp 0 announces.
template <class Cfg>
__device__ __forceinline__ TileStream<Cfg> tiles_of(const DecodeParams& params,
                                                    typename Cfg::Storage& smem, int32_t share,
                                                    int first_head, int warp) {
  const int slot = threadIdx.x % 32 / Cfg::kLanesPerSlot;
  return {params.problem,
          params.schedule,
          smem,
          share,
          first_head,
          warp,
          warp * Cfg::kSlotsPerGatherWarp + slot};
}

}  // namespace dsv4::sm100
