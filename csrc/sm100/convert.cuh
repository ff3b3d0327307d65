// SPDX-License-Identifier: Apache-2.0
// The gather warps' role for packed pools: indices -> keys in registers -> granules of bf16.
//
// A packed key is 28 chunks of 16 e4m3 values, and 8 chunks of 8 bf16 values. A warp has 8 slots of
// a tile. Of the first three granules of a tile, which are 8 e4m3 chunks a slot, lane l has chunk l
// % 8 of slots l / 8 and l / 8 + 4; of the last, e4m3 chunk l % 4 of slot l / 4, and a bf16 chunk
// of the two other slots. In a pair of blocks, each takes two of the granules.
#pragma once

#include <math_constants.h>

#include "cuda/find_key.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/convert.cuh"
#include "ptx/float_pair.cuh"
#include "sm100/config.cuh"
#include "sm100/tile_stream.cuh"

namespace dsv4::sm100 {

inline constexpr int kWideGranules = 3, kPackedGranules = 4;  // of a tile

// Of the slots l / 8, l / 8 + 4 and l / 4 of a tile.
struct LaneKeys {
  const uint8_t* data[3];  // null: a hole
  uint2 scales[3];         // 8 bytes each
};

// What a lane has of a tile's keys.
struct LaneChunks {
  uint4 wide[kWideGranules][2];  // of slots l / 8 and l / 8 + 4
  uint4 narrow;                  // of slot l / 4
  uint4 rope[2];
};

// 2^(byte - 127), or NaN for 255.
__device__ __forceinline__ float float_from_ue8m0(uint2 bytes, int i) {
  const uint32_t byte = (i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8) & 0xff;
  if (byte == 0xff) return CUDART_NAN_F;
  return __uint_as_float(byte == 0 ? 1u << 22 : byte << 23);
}

// A hole's chunks are zeros.
template <class Value>
__device__ __forceinline__ Value load_of(const uint8_t* key, int offset) {
  return key == nullptr ? Value{} : __ldg(reinterpret_cast<const Value*>(key + offset));
}

// Lane i names slot i % 8. Starts to read the scales.
__device__ __forceinline__ void share_keys(const Key& mine, LaneKeys& keys) {
  const int lane = threadIdx.x % 32;
  const int slots[3] = {lane / 8, lane / 8 + 4, lane / 4};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    keys.data[i] = of_lane(mine.data, slots[i]);
    const uint8_t* scales = of_lane(mine.scales, slots[i]);
    keys.scales[i] = load_of<uint2>(keys.data[i] == nullptr ? nullptr : scales, 0);
  }
}

// Starts to read the lane's chunks of a granule.
__device__ __forceinline__ void load_granule(const LaneKeys& keys, int granule,
                                             LaneChunks& chunks) {
  constexpr int kChunk = 16;
  const int lane = threadIdx.x % 32;
  if (granule < kWideGranules) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      chunks.wide[granule][i] = load_of<uint4>(keys.data[i], (granule * 8 + lane % 8) * kChunk);
    }
    return;
  }
  chunks.narrow = load_of<uint4>(keys.data[2], (kWideGranules * 8 + lane % 4) * kChunk);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    chunks.rope[i] = load_of<uint4>(keys.data[i], kNopeDim + lane % 8 * kChunk);
  }
}

// Where 8 dims of a slot stand in a granule, the slot's row of 128 bytes being swizzled.
template <class Cfg>
__device__ __forceinline__ uint4* place_of(uint8_t* granule, int slot, int dim) {
  const int block = dim / Cfg::kBlockDims, chunk = dim % Cfg::kBlockDims / 8;
  return reinterpret_cast<uint4*>(granule + block * Cfg::kBlockBytes + slot * Cfg::kSwizzleBytes +
                                  (chunk ^ slot % 8) * 16);
}

__device__ __forceinline__ uint4 scaled_to_bf16(uint32_t first, uint32_t second, float scale) {
  const float2 factor = make_float2(scale, scale);
  const auto convert = [&](uint32_t f16_pair) {
    const float2 pair = ptx::multiply(ptx::unpack<ptx::Half::kFloat16>(f16_pair), factor);
    return ptx::pack<ptx::Half::kBFloat16>(pair.x, pair.y);
  };
  return make_uint4(
      convert(ptx::f16x2_from_e4m3_low(first)), convert(ptx::f16x2_from_e4m3_high(first)),
      convert(ptx::f16x2_from_e4m3_low(second)), convert(ptx::f16x2_from_e4m3_high(second)));
}

// 16 e4m3 values -> 16 dims of a slot, of which lanes whose `swap` differs store different halves
// first: so each bank is met once.
template <class Cfg>
__device__ __forceinline__ void store_chunk(uint8_t* granule, int slot, int dim, const uint4& chunk,
                                            float scale, bool swap) {
  const uint4 low = scaled_to_bf16(chunk.x, chunk.y, scale);
  const uint4 high = scaled_to_bf16(chunk.z, chunk.w, scale);
  *place_of<Cfg>(granule, slot, swap ? dim + 8 : dim) = swap ? high : low;
  *place_of<Cfg>(granule, slot, swap ? dim : dim + 8) = swap ? low : high;
}

// The warp's part of a granule.
template <class Cfg>
__device__ __forceinline__ void store_granule(uint8_t* bytes, int first_slot, int granule,
                                              const LaneKeys& keys, const LaneChunks& chunks) {
  constexpr int kChunkDims = 16, kGroup = PackedPage::kQuantGroup;
  const int lane = threadIdx.x % 32;
  if (granule < kWideGranules) {
    const int dim = lane % 8 * kChunkDims;
    const bool in_second = dim >= kGroup;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = float_from_ue8m0(keys.scales[i], 2 * granule);
      const float second = float_from_ue8m0(keys.scales[i], 2 * granule + 1);
      store_chunk<Cfg>(bytes, first_slot + lane / 8 + 4 * i, dim, chunks.wide[granule][i],
                       in_second ? second : first, in_second);
    }
    return;
  }
  const float scale = float_from_ue8m0(keys.scales[2], 2 * granule);
  store_chunk<Cfg>(bytes, first_slot + lane / 4, lane % 4 * kChunkDims, chunks.narrow, scale,
                   false);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *place_of<Cfg>(bytes, first_slot + lane / 8 + 4 * i, kGroup + lane % 8 * 8) = chunks.rope[i];
  }
}

// Where a block that works alone puts its keys: each granule has a place in the ring.
template <class Cfg>
class GranuleRing {
 public:
  __device__ __forceinline__ GranuleRing(SharedStorage<Cfg>& smem, int warp)
      : smem_(smem), warp_(warp) {}

  // The granule, when it is free.
  __device__ __forceinline__ uint8_t* acquire(int) const {
    smem_.empty[ring_.index].wait(ring_.empty_parity());
    return smem_.granules[ring_.index];
  }
  __device__ __forceinline__ uint8_t* validity() const {
    return reinterpret_cast<uint8_t*>(smem_.validity[tile_]) + warp_;
  }
  // The warp has written its part of a granule, and of the first one the validity.
  __device__ __forceinline__ void release(int granule) {
    ptx::fence_shared_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) smem_.full[ring_.index].arrive();
    ring_.advance();
    if (granule == Cfg::kGranulesPerTile - 1) tile_ = (tile_ + 1) % Cfg::kValidityTiles;
  }

 private:
  SharedStorage<Cfg>& smem_;
  int warp_;
  Ring<Cfg::kGranules> ring_;
  int tile_ = 0;
};

// Fills the ring with granules kFirst .. kEnd - 1 of each tile. A chunk of the next tile is read
// when its registers are free, and indices are read a tile before.
template <int kFirst, int kEnd, class Cfg, class Target>
__device__ __forceinline__ void load_and_convert(const DecodeParams& params,
                                                 typename Cfg::Storage& smem, const Share& share,
                                                 int first_head, int warp, Target target) {
  using Slot = typename TileStream<Cfg>::Slot;
  const DecodeProblem& problem = params.problem;
  const int first_slot = warp * Cfg::kSlotsPerGatherWarp;
  const auto find = [&](const Slot& slot) {
    return find_key<true>(slot.in_window ? problem.window : problem.compressed, slot.entry,
                          slot.column);
  };

  TileStream<Cfg> tiles(params, smem, share, first_head, warp);
  Slot slot, next_slot;
  bool exists = tiles.next(slot);
  bool next_exists = exists && tiles.next(next_slot);
  if (!exists) return;
  LaneKeys keys;
  LaneChunks chunks;
  Key key = find(slot);
  share_keys(key, keys);
#pragma unroll
  for (int granule = kFirst; granule < kEnd; ++granule) load_granule(keys, granule, chunks);
  for (;;) {
    const uint32_t valid = __ballot_sync(0xffffffffu, key.data != nullptr);
    LaneKeys next_keys;
    const bool goes_on = next_exists;
    if (goes_on) {
      key = find(next_slot);
      share_keys(key, next_keys);
      next_exists = tiles.next(next_slot);
    }
#pragma unroll
    for (int granule = kFirst; granule < kEnd; ++granule) {
      uint8_t* const bytes = target.acquire(granule);
      store_granule<Cfg>(bytes, first_slot, granule, keys, chunks);
      if (goes_on) load_granule(next_keys, granule, chunks);
      if (granule == kFirst && threadIdx.x % 32 == 0) {
        *target.validity() = static_cast<uint8_t>(valid);
      }
      target.release(granule);
    }
    if (!goes_on) return;
    keys = next_keys;
  }
}

}  // namespace dsv4::sm100
