// SPDX-License-Identifier: Apache-2.0
// Queries as operand A of the scores, in registers for a whole row.
//
// bf16 keys take bf16 queries, and e4m3 keys e4m3 queries, which f16 holds exactly. Packed keys are
// multiplied as f16, too, and their queries are bf16: each head is multiplied by a power of two
// that brings its largest value to 2^10 .. 2^11, so that what is lost is below 2^-35 of that. Where
// a group of 64 dims is much smaller than its head, it could still matter, by the scales of its
// keys: then each group gets its own power, and the sum over a group is multiplied back
// (group_factor).
#pragma once

#include "cuda/work.cuh"
#include "dsv4/dsv4.h"
#include "ptx/convert.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/warp.cuh"
#include "sm120/config.cuh"
#include "sm120/params.h"

namespace dsv4::sm120 {

// Fragments of one math warp: its groups x 4 steps of 16 dims x tiles of 16 heads.
//
// Which dims a step multiplies is free as long as queries and keys agree. A thread reads 16 bytes
// of a key at once, and its steps take what it has:
//   e4m3  thread t of 4 reads dims 16t .. 16t+15;  step s: 16t + 4s + {0,1}, {2,3}
//   bf16  thread t reads dims 8t .. 8t+7, 32+8t .. 32+8t+7;
//         step s: 32 (s/2) + 8t + 4 (s%2) + {0..3}
template <class Cfg>
struct Query {
  uint32_t value[Cfg::kGroupsPerWarp][4][Cfg::kRowTiles][4];
};

inline constexpr int kQueryExponent = 10;  // of a head's largest value, where it is scaled
inline constexpr int kSmallGroup = 12;     // a group this many powers of two below its head

// 16 bytes, of any alignment.
template <bool kAligned>
__device__ __forceinline__ uint4 load_16_bytes(const uint8_t* source) {
  if constexpr (kAligned) return __ldg(reinterpret_cast<const uint4*>(source));
  uint4 value = {};
#pragma unroll 1
  for (int i = 15; i >= 0; --i) {
    value.w = value.w << 8 | value.z >> 24;
    value.z = value.z << 8 | value.y >> 24;
    value.y = value.y << 8 | value.x >> 24;
    value.x = value.x << 8 | __ldg(source + i);
  }
  return value;
}

// Power of two that brings values of this exponent field to 2^kQueryExponent, as far as float goes.
__device__ __forceinline__ int query_shift(int exponent) {
  return min(127 + kQueryExponent - exponent, 126);
}
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(uint32_t(exponent + 127) << 23);
}

// Exponent fields of a head's groups, and of all of it.
__device__ __forceinline__ int group_exponent(uint2 exponents, int group) {
  return static_cast<int>((group < 4 ? exponents.x : exponents.y) >> (group % 4 * 8) & 0xff);
}
__device__ __forceinline__ int head_exponent(uint2 exponents) {
  int largest = 0;
#pragma unroll
  for (int group = 0; group < kNumGroups; ++group) {
    largest = max(largest, group_exponent(exponents, group));
  }
  return largest;
}

// The queries of the block's heads in a row.
template <class Cfg>
class QueryLoader {
  using Format = typename Cfg::Format;
  static constexpr int kBytes = Format::kFormat == KvFormat::kFloat8E4M3 ? 1 : 2;  // of a value

 public:
  __device__ __forceinline__ QueryLoader(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                         const Assignment& work, int warp)
      : params_(params),
        smem_(smem),
        num_heads_(work.num_heads(params.problem)),
        warp_(warp),
        thread_(ptx::opaque(threadIdx.x)) {
    const DecodeProblem& problem = params.problem;
    const RowPosition position = row_position(problem, work.row);
    source_ =
        static_cast<const uint8_t*>(problem.query.data) +
        (position.batch * problem.query.batch_stride + position.query * problem.query.row_stride +
         work.first_head * problem.query.head_stride) *
            kBytes;
  }

  // True if the groups have powers of their own. All math warps meet in it.
  __device__ __forceinline__ bool load(Query<Cfg>& query) {
    // Not by a condition for each load: what a block does first costs it the most.
    if constexpr (Format::kHasScales) {
      uint4 chunks[kPairs][2];
      params_.query_aligned ? load_chunks<true>(chunks) : load_chunks<false>(chunks);
      return scale_chunks(chunks, query);
    }
    params_.query_aligned ? load_directly<true>(query) : load_directly<false>(query);
    meet();
    return false;
  }

 private:
  __device__ __forceinline__ static void meet() { ptx::sync_threads<1, Cfg::kMathThreads>(); }

  // 16 bytes of a head.
  template <bool kAligned>
  __device__ __forceinline__ uint4 load_dims(int head, int dim) const {
    if (head >= num_heads_) return {};
    const DecodeProblem& problem = params_.problem;
    const int64_t offset = head_offset<Cfg::kRowGroups>(problem, problem.query, head) + dim;
    return load_16_bytes<kAligned>(source_ + offset * kBytes);
  }

  // --- each thread loads its own fragments

  template <bool kAligned>
  __device__ __forceinline__ void load_directly(Query<Cfg>& query) const {
    const int row = thread_ % 32 / 4, t = thread_ % 4;
#pragma unroll
    for (int i = 0; i < Cfg::kGroupsPerWarp; ++i) {
      const int first_dim = (warp_ % Cfg::kDimParts * Cfg::kGroupsPerWarp + i) * kGroupDims;
#pragma unroll
      for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = tile * 16 + half * 8 + row;
          if constexpr (Format::kFloat8Groups > 0) {
            const uint4 dims = load_dims<kAligned>(head, first_dim + 16 * t);
            const uint32_t words[4] = {dims.x, dims.y, dims.z, dims.w};
#pragma unroll
            for (int step = 0; step < 4; ++step) {
              query.value[i][step][tile][half] = ptx::f16x2_from_e4m3_low(words[step]);
              query.value[i][step][tile][half + 2] = ptx::f16x2_from_e4m3_high(words[step]);
            }
          } else {
#pragma unroll
            for (int part = 0; part < 2; ++part) {
              const uint4 dims = load_dims<kAligned>(head, first_dim + 32 * part + 8 * t);
              query.value[i][2 * part][tile][half] = dims.x;
              query.value[i][2 * part][tile][half + 2] = dims.y;
              query.value[i][2 * part + 1][tile][half] = dims.z;
              query.value[i][2 * part + 1][tile][half + 2] = dims.w;
            }
          }
        }
      }
    }
  }

  // --- all threads scale all queries, and exchange fragments through shared memory
  //
  // A chunk is 8 dims of a head. A thread takes chunks of the heads h and h + 8, which share
  // registers of a fragment. Neighbouring threads have neighbouring dims, so 8 of them have a
  // group, and two warps a head.

  static constexpr int kChunksPerHead = kHeadDim / 8;
  static constexpr int kPairs =
      Cfg::kHeadTile / 2 * kChunksPerHead / Cfg::kMathThreads;  // a thread

  template <bool kAligned>
  __device__ __forceinline__ void load_chunks(uint4 (&chunk)[kPairs][2]) const {
    const int dim = thread_ % kChunksPerHead * 8;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      chunk[i][0] = load_dims<kAligned>(head_of(i), dim);
      chunk[i][1] = load_dims<kAligned>(head_of(i) + 8, dim);
    }
  }

  __device__ __forceinline__ bool scale_chunks(uint4 (&chunk)[kPairs][2], Query<Cfg>& query) {
    const int place = thread_ % kChunksPerHead, group = place / 8;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int exponent = largest_exponent(chunk[i][half]);
        if (place % 8 == 0) smem_.query_exponent[head_of(i) + 8 * half][group] = uint8_t(exponent);
      }
    }
    meet();
    const bool by_group = has_small_groups();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = head_of(i) + 8 * half;
        const uint2 exponents = exponents_of(head);
        const int shift = query_shift(head_exponent(exponents));
        int my_shift = shift;
        if (by_group && group < Format::kFloat8Groups) {
          my_shift = query_shift(group_exponent(exponents, group));
          if (place % 8 == 0) {
            smem_.group_factor[head][group] = power_of_two(max(shift - my_shift, -126));
          }
        }
        chunk[i][half] = scale(chunk[i][half], group, power_of_two(my_shift));
      }
      store_fragments(chunk[i][0], chunk[i][1], head_of(i), place);
    }
    meet();
    load_fragments(query);
    meet();
    return by_group;
  }

  // First head of a pair.
  __device__ __forceinline__ int head_of(int pair) const {
    const int i = pair * (Cfg::kMathThreads / kChunksPerHead) + thread_ / kChunksPerHead;
    return i / 8 * 16 + i % 8;
  }

  __device__ __forceinline__ uint2 exponents_of(int head) const {
    return *reinterpret_cast<const uint2*>(smem_.query_exponent[head]);
  }

  // Over the 8 threads that share a group.
  __device__ __forceinline__ static int largest_exponent(const uint4& chunk) {
    constexpr uint32_t kNoSigns = 0x7fff7fff;
    uint32_t largest = ptx::max_u16x2(ptx::max_u16x2(chunk.x & kNoSigns, chunk.y & kNoSigns),
                                      ptx::max_u16x2(chunk.z & kNoSigns, chunk.w & kNoSigns));
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
      largest = ptx::max_u16x2(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    }
    return static_cast<int>(max(largest & 0xffff, largest >> 16) >> 7);
  }

  // Each warp looks at all heads, so that all come to the same answer.
  __device__ __forceinline__ bool has_small_groups() const {
    bool found = false;
    const int head = threadIdx.x % 32;
    if (head < Cfg::kHeadTile) {
      const uint2 exponents = exponents_of(head);
      const int largest = head_exponent(exponents);
#pragma unroll
      for (int group = 0; group < Format::kFloat8Groups; ++group) {
        const int exponent = group_exponent(exponents, group);
        found = found || (exponent != 0 && exponent + kSmallGroup < largest);
      }
    }
    return __any_sync(0xffffffffu, found);
  }

  // f16 for an e4m3 group, else bf16.
  __device__ __forceinline__ static uint4 scale(const uint4& chunk, int group, float factor) {
    uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (uint32_t& word : words) {
      const float2 values = ptx::unpack<ptx::Half::kBFloat16>(word);
      word = group < Format::kFloat8Groups
                 ? ptx::pack<ptx::Half::kFloat16>(values.x * factor, values.y * factor)
                 : ptx::pack<ptx::Half::kBFloat16>(values.x * factor, values.y * factor);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  // The registers of a lane. Lanes are turned so that the 8 that one warp stores at a time, of two
  // steps, fall into different banks.
  __device__ __forceinline__ uint4& fragment(int group, int step, int tile, int lane) {
    return smem_.fragments[group][step][tile][lane ^ step / 2 * 4];
  }

  __device__ __forceinline__ void store_fragments(const uint4& upper, const uint4& lower, int head,
                                                  int place) {
    const int group = place / 8, part = place % 8;
    const bool float8 = group < Format::kFloat8Groups;
    const int t = float8 ? part / 2 : part % 4, step = (float8 ? part % 2 : part / 4) * 2;
    const int tile = head / 16, lane = head % 8 * 4 + t;
    fragment(group, step, tile, lane) = make_uint4(upper.x, lower.x, upper.y, lower.y);
    fragment(group, step + 1, tile, lane) = make_uint4(upper.z, lower.z, upper.w, lower.w);
  }

  __device__ __forceinline__ void load_fragments(Query<Cfg>& query) {
#pragma unroll
    for (int i = 0; i < Cfg::kGroupsPerWarp; ++i) {
      const int group = warp_ % Cfg::kDimParts * Cfg::kGroupsPerWarp + i;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
          const uint4 four = fragment(group, step, tile, threadIdx.x % 32);
          uint32_t (&value)[4] = query.value[i][step][tile];
          value[0] = four.x;
          value[1] = four.y;
          value[2] = four.z;
          value[3] = four.w;
        }
      }
    }
  }

  const DecodeParams& params_;
  SharedStorage<Cfg>& smem_;
  const uint8_t* source_;
  int num_heads_;
  int warp_;
  int thread_;
};

}  // namespace dsv4::sm120
