// SPDX-License-Identifier: Apache-2.0
// The gather warps' role for packed pools: indices -> keys in registers -> granules of bf16.
//
// A warp has 8 slots of a tile, and 4 lanes have a slot. Of each group of 64 e4m3 dims a lane takes
// a chunk of 16, and of the 64 bf16 dims two of 8. Eight neighbouring lanes, which store together,
// have two neighbouring slots: the swizzle then puts what they store into different banks.
#pragma once

#include <math_constants.h>

#include "cuda/find_key.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/convert.cuh"
#include "ptx/float_pair.cuh"
#include "sm100/config.cuh"
#include "sm100/tile_stream.cuh"

namespace dsv4::sm100 {

inline constexpr int kFloat8Groups = PackedPage::kNumScales;
inline constexpr int kPackedGranules = 4;  // of a tile, of two groups each

// What a lane has of a key.
struct LaneKey {
  uint4 float8[kFloat8Groups];  // 16 dims of each group
  uint4 rope[2];                // 8 dims each
};

// 2^(byte - 127), or NaN for 255.
__device__ __forceinline__ float float_from_ue8m0(uint2 bytes, int i) {
  const uint32_t byte = (i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8) & 0xff;
  const uint32_t bits = byte == 0 ? 1u << 22 : byte << 23;
  return __uint_as_float(byte == 0xff ? 0x7fffffffu : bits);
}

// A hole is zeros.
template <class Value>
__device__ __forceinline__ Value load_of(const uint8_t* start, int offset) {
  return start == nullptr ? Value{} : __ldg(reinterpret_cast<const Value*>(start + offset));
}

// Starts to read the lane's chunks of a granule, which is two groups.
__device__ __forceinline__ void load_chunks(const Key& key, int granule, LaneKey& mine) {
  const int part = threadIdx.x % 4;
#pragma unroll
  for (int group = 2 * granule; group < 2 * granule + 2; ++group) {
    if (group < kFloat8Groups) {
      mine.float8[group] = load_of<uint4>(key.data, group * PackedPage::kQuantGroup + part * 16);
    } else {
      mine.rope[0] = load_of<uint4>(key.data, kNopeDim + part * 32);
      mine.rope[1] = load_of<uint4>(key.data, kNopeDim + part * 32 + 16);
    }
  }
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

// Stores the lane's chunks of a granule: a group is a block. `row`: the slot's 128 bytes in the
// first block, in which 16-byte word i stands at i ^ `swizzle`.
template <class Cfg>
__device__ __forceinline__ void store_chunks(uint8_t* row, int swizzle, int granule, uint2 scales,
                                             const LaneKey& mine) {
  static_assert(Cfg::kBlockDims == PackedPage::kQuantGroup);
  const int part = threadIdx.x % 4;
  uint8_t* const first = row + ((2 * part) ^ swizzle) * 16;
  uint8_t* const second = row + ((2 * part + 1) ^ swizzle) * 16;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const int group = 2 * granule + block;
    uint4 low = mine.rope[0], high = mine.rope[1];
    if (group < kFloat8Groups) {
      const float scale = float_from_ue8m0(scales, group);
      low = scaled_to_bf16(mine.float8[group].x, mine.float8[group].y, scale);
      high = scaled_to_bf16(mine.float8[group].z, mine.float8[group].w, scale);
    }
    *reinterpret_cast<uint4*>(first + block * Cfg::kBlockBytes) = low;
    *reinterpret_cast<uint4*>(second + block * Cfg::kBlockBytes) = high;
  }
}

// Bits 0, 4, .. 28 of a word, as a byte.
__device__ __forceinline__ uint8_t every_fourth_bit(uint32_t word) {
  word &= 0x11111111u;
  word = (word | word >> 3) & 0x03030303u;
  word = (word | word >> 6) & 0x000f000fu;
  return static_cast<uint8_t>(word | word >> 12);
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
  // Of the `row`-th row of a group.
  __device__ __forceinline__ uint8_t* validity(int row) const {
    return reinterpret_cast<uint8_t*>(smem_.validity[tile_][row]) + warp_;
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

// `rows`: of a group, those that see the lane's slot.
template <class Cfg, class Target>
__device__ __forceinline__ void store_validity(const DecodeParams& params, const Target& target,
                                               uint32_t rows) {
  const int group_rows = Cfg::kRowGroups ? params.schedule.group_rows : 1;
  for (int i = 0; i < group_rows; ++i) {
    const uint32_t valid = __ballot_sync(0xffffffffu, rows >> i & 1);
    if (threadIdx.x % 32 == 0) *target.validity(i) = every_fourth_bit(valid);
  }
}

// Fills the ring with granules kFirst .. kEnd - 1 of each tile. A chunk of the next tile is read
// when its registers are free, and indices are read a tile before.
template <int kFirst, int kEnd, class Cfg, class Target>
__device__ __forceinline__ void load_and_convert(const DecodeParams& params,
                                                 typename Cfg::Storage& smem, int32_t share,
                                                 int first_head, int warp, Target& target) {
  static_assert(Cfg::kLanesPerSlot == 4);
  static_assert(!Cfg::kComparesTables, "which TileStream::run does, not next");
  using Slot = typename TileStream<Cfg>::Slot;
  const DecodeProblem& problem = params.problem;
  const int lane = threadIdx.x % 32, slot_in_tile = warp * Cfg::kSlotsPerGatherWarp + lane / 4;
  const auto find = [&](const Slot& slot) {
    return find_key<true>(slot.in_window() ? problem.window : problem.compressed, slot.entry,
                          slot.column);
  };
  const auto load_scales = [](const Key& key) {
    return load_of<uint2>(key.data == nullptr ? nullptr : key.scales, 0);
  };

  TileStream<Cfg> tiles = tiles_of<Cfg>(params, smem, share, first_head, warp);
  LaneKey mine;
  while (tiles.begin()) {
    Slot slot;
    bool exists = tiles.next(slot);
    if (!exists) continue;
    Key key = find(slot);
    uint32_t seen_by = slot.rows();
    exists = tiles.next(slot);
    uint2 scales = load_scales(key);
#pragma unroll
    for (int granule = kFirst; granule < kEnd; ++granule) load_chunks(key, granule, mine);
    for (bool goes_on = true; goes_on;) {
      const uint32_t rows = key.data != nullptr ? seen_by : 0;
      goes_on = exists;
      uint2 next_scales{};
      if (goes_on) {
        key = find(slot);
        seen_by = slot.rows();
        next_scales = load_scales(key);
        exists = tiles.next(slot);
      }
#pragma unroll
      for (int granule = kFirst; granule < kEnd; ++granule) {
        uint8_t* const row = target.acquire(granule) + slot_in_tile * Cfg::kSwizzleBytes;
        store_chunks<Cfg>(row, slot_in_tile % 8, granule, scales, mine);
        if (goes_on) load_chunks(key, granule, mine);
        if (granule == kFirst) store_validity<Cfg>(params, target, rows);
        target.release(granule);
      }
      scales = next_scales;
    }
  }
}

}  // namespace dsv4::sm100
