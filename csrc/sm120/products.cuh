// SPDX-License-Identifier: Apache-2.0
// The two matrix products of a stage: scores = queries keys^T, and outputs += weights keys.
//
// Keys stay in shared memory as they came. e4m3 is converted in registers to f16, without its
// scale: a scale is a factor of the sum over its group (scores) or of the weight (outputs).
#pragma once

#include "ptx/convert.cuh"
#include "ptx/shared_memory.cuh"
#include "sm120/config.cuh"
#include "sm120/query.cuh"

namespace dsv4::sm120 {

// 2^(bits - 127) for the UE8M0 bits in byte i of a word, also where that is below the normal
// numbers.
__device__ __forceinline__ float float_from_ue8m0(uint32_t word, int i) {
  const uint32_t exponent = (i < 3 ? word << (23 - 8 * i) : word >> 1) & 0x7f800000u;
  return __int_as_float(max(int(exponent), 1 << 22));
}

// --- Scores ---

// Sums over the warp's dims, by tile of heads and tile of 8 slots.
//
// Column c of a slot tile is slot c/2 + 4 (c%2): two columns that one quarter of a warp reads lie 4
// slots apart, in different banks. So a thread's sums belong to the slots t and t+4 of a tile.
template <class Cfg>
using ScoreTiles = float[Cfg::kRowTiles][Cfg::kSlotTiles][4];

__device__ __forceinline__ int score_slot_of_column(int column) {
  return column / 2 + 4 * (column % 2);
}

// Keys of one group for the slots of a warp, as they lie in shared memory: 16 e4m3 dims or two
// times 8 bf16 dims of one slot for each tile.
template <class Cfg, bool kFloat8>
struct KeyGroup {
  uint4 words[Cfg::kSlotTiles][kFloat8 ? 1 : 2];

  __device__ __forceinline__ void load(uint32_t address) {
#pragma unroll
    for (int slot_tile = 0; slot_tile < Cfg::kSlotTiles; ++slot_tile) {
      const uint32_t slot = address + slot_tile * 8 * Cfg::Format::kSlotPitch;
      words[slot_tile][0] = ptx::load_shared_u128(slot);
      if constexpr (!kFloat8) words[slot_tile][1] = ptx::load_shared_u128(slot + 64);
    }
  }

  // Operand B of a step.
  __device__ __forceinline__ uint2 operand(int slot_tile, int step) const {
    if constexpr (kFloat8) {
      const uint4& dims = words[slot_tile][0];
      const uint32_t four = step == 0 ? dims.x : step == 1 ? dims.y : step == 2 ? dims.z : dims.w;
      return make_uint2(ptx::f16x2_from_e4m3_low(four), ptx::f16x2_from_e4m3_high(four));
    } else {
      const uint4& dims = words[slot_tile][step / 2];
      return step % 2 == 0 ? make_uint2(dims.x, dims.y) : make_uint2(dims.z, dims.w);
    }
  }

  // Adds one step to the sums of all tiles, or begins them.
  __device__ __forceinline__ void multiply(const uint32_t (&query)[Cfg::kRowTiles][4], int step,
                                           ScoreTiles<Cfg>& sums) const {
    constexpr ptx::Half kHalf = kFloat8 ? ptx::Half::kFloat16 : ptx::Half::kBFloat16;
#pragma unroll
    for (int slot_tile = 0; slot_tile < Cfg::kSlotTiles; ++slot_tile) {
      const uint2 b = operand(slot_tile, step);
#pragma unroll
      for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
        if (step == 0) {
          ptx::mma_from_zero<kHalf>(sums[tile][slot_tile], query[tile], b.x, b.y);
        } else {
          ptx::mma<kHalf>(sums[tile][slot_tile], query[tile], b.x, b.y);
        }
      }
    }
  }
};

// One warp's part of the scores.
template <class Cfg>
class ScoreProduct {
  using Format = typename Cfg::Format;
  static constexpr int kPitch = Format::kSlotPitch;
  static constexpr bool kFloat8 = Format::kFloat8Groups > 0;
  static constexpr int kLast = Cfg::kGroupsPerWarp - 1;
  // A sum depends on the one before it: two groups at a time keep the tensor core busy.
  static constexpr int kAtOnce = Cfg::kRowTiles == 1 ? 2 : 1;

 public:
  __device__ __forceinline__ ScoreProduct(SharedStorage<Cfg>& smem, const Query<Cfg>& query,
                                          int warp)
      : smem_(smem), query_(query) {
    dim_part_ = warp % Cfg::kDimParts;
    first_slot_ = warp / Cfg::kDimParts * Cfg::kSlotsPerWarp;
  }

  // To smem.scores.
  template <bool kByGroup>
  __device__ __forceinline__ void run(int stage) {
    keys_ = ptx::shared_address(smem_.keys[stage][first_slot_]);
    constexpr bool kMixed = kFloat8 && Format::kFloat8Groups < kNumGroups;
    if constexpr (kMixed) {
      if (dim_part_ == Cfg::kDimParts - 1) return run<kByGroup, false>();
    }
    run<kByGroup, kFloat8>();
  }

 private:
  __device__ __forceinline__ int group(int i) const { return dim_part_ * Cfg::kGroupsPerWarp + i; }

  // The last group may be of another kind than the others: of packed keys, bf16.
  template <bool kByGroup, bool kLastFloat8>
  __device__ __forceinline__ void run() {
    KeyGroup<Cfg, kFloat8> keys[kLast];
    KeyGroup<Cfg, kLastFloat8> last;
#pragma unroll
    for (int i = 0; i < kLast; ++i) keys[i].load(address<kFloat8>(i));
    last.load(address<kLastFloat8>(kLast));

    ScoreTiles<Cfg> sums[Cfg::kGroupsPerWarp], scores;
#pragma unroll
    for (int first = 0; first < Cfg::kGroupsPerWarp; first += kAtOnce) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = first; i < first + kAtOnce; ++i) {
          if (i < kLast) {
            keys[i].multiply(query_.value[i][step], step, sums[i]);
          } else {
            last.multiply(query_.value[i][step], step, sums[i]);
          }
        }
      }
    }
    load_scales();
#pragma unroll
    for (int i = 0; i < kLast; ++i) add<kByGroup, kFloat8>(i, sums[i], scores);
    add<kByGroup, kLastFloat8>(kLast, sums[kLast], scores);
    store(scores);
  }

  template <bool kGroupFloat8>
  __device__ __forceinline__ uint32_t address(int i) const {
    const int lane = threadIdx.x % 32;
    const int offset = kGroupFloat8 ? group(i) * kGroupDims : group_offset<Format>(group(i));
    return keys_ + score_slot_of_column(lane / 4) * kPitch + lane % 4 * 16 + offset;
  }

  // scores += sums, times the scales of a packed e4m3 group.
  template <bool kByGroup, bool kGroupFloat8>
  __device__ __forceinline__ void add(int i, const ScoreTiles<Cfg>& sums,
                                      ScoreTiles<Cfg>& scores) const {
    constexpr bool kScaled = kGroupFloat8 && Format::kHasScales;
#pragma unroll
    for (int slot_tile = 0; slot_tile < Cfg::kSlotTiles; ++slot_tile) {
      float scale[2] = {1.0f, 1.0f};
      if constexpr (kScaled) {
        scale[0] = float_from_ue8m0(scales_[slot_tile][0], i);
        scale[1] = float_from_ue8m0(scales_[slot_tile][1], i);
      }
#pragma unroll
      for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float factor = scale[j % 2];
          if constexpr (kScaled && kByGroup) factor *= group_factor(i, tile, j / 2);
          const float sum = sums[tile][slot_tile][j];
          float& score = scores[tile][slot_tile][j];
          if (i == 0) {
            score = kScaled ? sum * factor : sum;
          } else {
            score = kScaled ? score + sum * factor : score + sum;
          }
        }
      }
    }
  }

  __device__ __forceinline__ float group_factor(int i, int tile, int half) const {
    return smem_.group_factor[tile * 16 + half * 8 + threadIdx.x % 32 / 4][group(i)];
  }

  // Of the slots t and t + 4 of each tile, a byte for each of the warp's groups.
  __device__ __forceinline__ void load_scales() {
    if constexpr (Format::kHasScales) {
#pragma unroll
      for (int slot_tile = 0; slot_tile < Cfg::kSlotTiles; ++slot_tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t address = keys_ + (slot_tile * 8 + threadIdx.x % 4 + 4 * i) * kPitch +
                                   Format::kScaleOffset + dim_part_ * Cfg::kGroupsPerWarp;
          static_assert(Cfg::kGroupsPerWarp == 4 || Cfg::kGroupsPerWarp == 2);
          scales_[slot_tile][i] = Cfg::kGroupsPerWarp == 4 ? ptx::load_shared_u32(address)
                                                           : ptx::load_shared_u16(address);
        }
      }
    }
  }

  __device__ __forceinline__ void store(const ScoreTiles<Cfg>& scores) const {
    const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
#pragma unroll
      for (int slot_tile = 0; slot_tile < Cfg::kSlotTiles; ++slot_tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          smem_.scores[dim_part_][tile * 16 + row + i / 2 * 8]
                      [first_slot_ + slot_tile * 8 + t + i % 2 * 4] = scores[tile][slot_tile][i];
        }
      }
    }
  }

  SharedStorage<Cfg>& smem_;
  const Query<Cfg>& query_;
  int dim_part_;
  int first_slot_;
  uint32_t keys_;  // address of the warp's first slot
  uint32_t scales_[Cfg::kSlotTiles][2];
};

// --- Outputs ---

// Sums of one math warp: its group of 64 dims, by tile of heads and tile of 8 dims.
//
// Which dims a tile holds follows from how its keys are read:
//   e4m3  column c of tile j is dim 8c + j: a thread reads 8 neighbouring dims of a slot
//   bf16  column c of tile j is dim 8j + c: ldmatrix transposes
template <class Cfg>
using OutputTiles = float[Cfg::kRowTiles][8][4];

// Weights of 16 slots as operand A, for each tile of heads.
template <class Cfg>
using WeightFragments = uint32_t[Cfg::kRowTiles][4];

template <class Cfg>
__device__ __forceinline__ void load_weights(const SharedStorage<Cfg>& smem, int step,
                                             WeightFragments<Cfg>& weights) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
    ptx::load_matrices(
        ptx::shared_address(&smem.weights[tile * 16 + lane % 16][step * 16 + lane / 16 * 8]),
        weights[tile]);
  }
}

// Of the scales of a row so far: close to each other, not so, or one of them NaN. In bytes of
// smem.scale_kind, these are or'ed.
enum class ScaleKind : uint8_t { kNarrow = 0, kWide = 1, kNan = 2 };
inline constexpr uint32_t kNanScale = 0xff;

// The reference that a packed group's scales are relative to, as bits of UE8M0: the largest so far.
// A weight times 2^(scale - reference) stays in the range of f16 as long as the scales of the row
// lie within 2^kNarrowScales; beyond, the row goes on in bf16 ("wide"). Scales of 0, which holes
// have, do not count.
class ScaleRange {
 public:
  __device__ __forceinline__ uint32_t reference() const { return reference_; }
  __device__ __forceinline__ ScaleKind kind() const { return kind_; }

  // Reads the scales of a stage for one group.
  template <class Cfg>
  __device__ __forceinline__ void read(const SharedStorage<Cfg>& smem, int stage, int group) {
    if constexpr (Cfg::Format::kHasScales) {
      const int lane = threadIdx.x % 32;
      const uint32_t address =
          ptx::shared_address(smem.keys[stage][lane]) + Cfg::Format::kScaleOffset + group;
      first_ = second_ = ptx::load_shared_u8(address);
      if (lane + 32 < Cfg::kStageSlots) {
        second_ = ptx::load_shared_u8(address + 32 * Cfg::Format::kSlotPitch);
      }
    }
  }

  // Takes in the scales that were read. Returns by how much the reference grew.
  __device__ __forceinline__ uint32_t extend() {
    const uint32_t largest = max(first_, second_);
    smallest_minus_1_ = min(smallest_minus_1_, min(first_ - 1, second_ - 1));
    const bool fits = largest <= reference_ && smallest_minus_1_ + kNarrowScales + 1 >= reference_;
    if (__all_sync(0xffffffffu, fits)) return 0;

    const uint32_t before = reference_;
    reference_ = max(before, __reduce_max_sync(0xffffffffu, largest));
    const uint32_t smallest = __reduce_min_sync(0xffffffffu, smallest_minus_1_);
    if (reference_ == kNanScale) {
      kind_ = ScaleKind::kNan;
    } else if (smallest + kNarrowScales + 1 < reference_) {
      kind_ = ScaleKind::kWide;
    }
    return reference_ - before;
  }

 private:
  static constexpr uint32_t kNarrowScales = 12;
  uint32_t first_, second_;  // scales of this lane's slots
  uint32_t reference_ = 0;
  uint32_t smallest_minus_1_ = 0xffffff00u;  // that this lane has seen
  ScaleKind kind_ = ScaleKind::kNarrow;
};

// What the math warps have found, all together.
template <class Cfg>
__device__ __forceinline__ ScaleKind kind_of_scales(const SharedStorage<Cfg>& smem) {
  if constexpr (!Cfg::Format::kHasScales) return ScaleKind::kNarrow;
  const uint2 kinds = *reinterpret_cast<const uint2*>(smem.scale_kind);
  const uint32_t found = kinds.x | kinds.y;
  if (found == 0) return ScaleKind::kNarrow;
  return (found & 0x01010101u * uint32_t(ScaleKind::kNan)) != 0 ? ScaleKind::kNan
                                                                : ScaleKind::kWide;
}

// Scales of two slots -> factors of their weights: 2^(scale - reference), or 0 where that is out of
// the range. All are pairs of 16-bit values in one register.
template <ptx::Half kHalf>
__device__ __forceinline__ uint32_t scale_factors(uint32_t scales, uint32_t reference) {
  constexpr uint32_t kBias = kHalf == ptx::Half::kFloat16 ? 15 : 127;
  constexpr int kMantissaBits = kHalf == ptx::Half::kFloat16 ? 10 : 7;
  const uint32_t shift = ((kBias - reference) & 0xffffu) * 0x00010001u;
  return ptx::max_s16x2(ptx::add_s16x2(scales, shift), 0) << kMantissaBits;
}

// 4 dims of two slots, e4m3 -> operand B of 4 tiles: pairs (slot 0, slot 1) of each dim.
template <ptx::Half kHalf>
__device__ __forceinline__ void pair_slots(uint32_t slot0, uint32_t slot1, uint32_t (&pairs)[4]) {
  const uint32_t dims01 = ptx::permute<0x5140>(slot0, slot1);
  const uint32_t dims23 = ptx::permute<0x7362>(slot0, slot1);
  pairs[0] = ptx::f16x2_from_e4m3_low(dims01);
  pairs[1] = ptx::f16x2_from_e4m3_high(dims01);
  pairs[2] = ptx::f16x2_from_e4m3_low(dims23);
  pairs[3] = ptx::f16x2_from_e4m3_high(dims23);
  if constexpr (kHalf == ptx::Half::kBFloat16) {
#pragma unroll
    for (uint32_t& pair : pairs) {
      const float2 values = ptx::unpack<ptx::Half::kFloat16>(pair);
      pair = ptx::pack<ptx::Half::kBFloat16>(values.x, values.y);
    }
  }
}

// A packed key's last group may be as large as bf16 goes, and its weights, made for f16, are not
// small: as bf16 they are multiplied by 2^-kRopeExponent, so that no sum overflows.
inline constexpr int kRopeExponent = 40;

template <class Cfg, ptx::Half kFrom>
__device__ __forceinline__ void convert_weights_for_rope(WeightFragments<Cfg>& weights) {
  constexpr uint32_t kFactor = (127 - kRopeExponent) << 7;
#pragma unroll
  for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
#pragma unroll
    for (uint32_t& pair : weights[tile]) {
      if constexpr (kFrom == ptx::Half::kFloat16) {
        const float2 values = ptx::unpack<ptx::Half::kFloat16>(pair);
        pair = ptx::pack<ptx::Half::kBFloat16>(values.x, values.y);
      }
      pair = ptx::multiply<ptx::Half::kBFloat16>(pair, kFactor << 16 | kFactor);
    }
  }
}

// The keys of a stage for one e4m3 group, as operand B wants them but for their conversion: read
// before the weights are there, so that a stage is free as soon as they are.
template <class Cfg>
class Float8OutputKeys {
  using Format = typename Cfg::Format;

 public:
  // Scales come out as factors of weights, relative to the reference.
  template <ptx::Half kWeights>
  __device__ __forceinline__ void load(const SharedStorage<Cfg>& smem, int stage, int group,
                                       uint32_t reference) {
    constexpr int kPitch = Format::kSlotPitch;
    const int lane = threadIdx.x % 32, column = lane / 4, t = lane % 4;
    const uint32_t slot = ptx::shared_address(smem.keys[stage][2 * t]);
#pragma unroll
    for (int step = 0; step < Cfg::kSlotSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        keys_[step][i] =
            ptx::load_shared_u64(slot + offset(step, i) + group * kGroupDims + column * 8);
      }
      if constexpr (Format::kHasScales) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t scale = slot + offset(step, 2 * i) + Format::kScaleOffset + group;
          factors_[step][i] = scale_factors<kWeights>(
              ptx::load_shared_u8(scale) | ptx::load_shared_u8(scale + kPitch) << 16, reference);
        }
      }
    }
  }

  template <ptx::Half kWeights>
  __device__ __forceinline__ void accumulate(int step, WeightFragments<Cfg>& weights,
                                             OutputTiles<Cfg>& out) const {
    if constexpr (Format::kHasScales) {
#pragma unroll
      for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weights[tile][i] = ptx::multiply<kWeights>(weights[tile][i], factors_[step][i / 2]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low[4], high[4];
      const auto word = [&](int i) { return half == 0 ? keys_[step][i].x : keys_[step][i].y; };
      pair_slots<kWeights>(word(0), word(1), low);
      pair_slots<kWeights>(word(2), word(3), high);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
          ptx::mma<kWeights>(out[tile][half * 4 + j], weights[tile], low[j], high[j]);
        }
      }
    }
  }

 private:
  // Of slot 2t, 2t+1, 2t+8 or 2t+9 of a step.
  __device__ __forceinline__ static constexpr int offset(int step, int i) {
    return (step * 16 + i / 2 * 8 + i % 2) * Format::kSlotPitch;
  }

  uint2 keys_[Cfg::kSlotSteps][4];        // 8 dims of these slots
  uint32_t factors_[Cfg::kSlotSteps][2];  // of the first two of them, and of the others
};

// The same for a bf16 group.
template <class Cfg>
class BFloat16OutputKeys {
  using Format = typename Cfg::Format;

 public:
  template <ptx::Half kWeights>
  __device__ __forceinline__ void load(const SharedStorage<Cfg>& smem, int stage, int group,
                                       uint32_t) {
    const int lane = threadIdx.x % 32;
    const uint32_t slot = ptx::shared_address(smem.keys[stage][lane % 16]) +
                          group_offset<Format>(group) + lane / 16 * 16;
#pragma unroll
    for (int step = 0; step < Cfg::kSlotSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::load_matrices_transposed(slot + step * 16 * Format::kSlotPitch + i * 32,
                                      keys_[step][i]);
      }
    }
  }

  template <ptx::Half kWeights>
  __device__ __forceinline__ void accumulate(int step, WeightFragments<Cfg>& weights,
                                             OutputTiles<Cfg>& out) const {
    if constexpr (Format::kHalf == ptx::Half::kFloat16) {
      convert_weights_for_rope<Cfg, kWeights>(weights);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t (&keys)[4] = keys_[step][i];
#pragma unroll
      for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
        ptx::mma<ptx::Half::kBFloat16>(out[tile][2 * i], weights[tile], keys[0], keys[1]);
        ptx::mma<ptx::Half::kBFloat16>(out[tile][2 * i + 1], weights[tile], keys[2], keys[3]);
      }
    }
  }

 private:
  uint32_t keys_[Cfg::kSlotSteps][4][4];  // of tiles 2i and 2i+1: slots 0-7 and 8-15 of each
};

template <class Cfg>
__device__ __forceinline__ void multiply_outputs(OutputTiles<Cfg>& out, int tile, float upper,
                                                 float lower) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    out[tile][j][0] *= upper;
    out[tile][j][1] *= upper;
    out[tile][j][2] *= lower;
    out[tile][j][3] *= lower;
  }
}

template <class Cfg>
__device__ __forceinline__ void clear(OutputTiles<Cfg>& out, int tile) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (float& sum : out[tile][j]) sum = 0.0f;
  }
}

// Where the reference of a head moved in this stage, its sums follow.
template <class Cfg>
__device__ __forceinline__ void rescale_outputs(const SharedStorage<Cfg>& smem,
                                                OutputTiles<Cfg>& out) {
#pragma unroll
  for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
    const int head = tile * 16 + threadIdx.x % 32 / 4;
    const float upper = smem.rescale[head], lower = smem.rescale[head + 8];
    if (__any_sync(0xffffffffu, upper != 1.0f || lower != 1.0f)) {
      multiply_outputs<Cfg>(out, tile, upper, lower);
    }
  }
}

}  // namespace dsv4::sm120
