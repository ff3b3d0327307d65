// SPDX-License-Identifier: Apache-2.0
// Sparse MLA decode for GPUs without wgmma and tensor memory: mma.sync, bulk copies, 99 KB of
// shared memory. README.md tells why it looks as it does.
//
//   out[head] = sum_j exp(s_j) k_j / sum_j exp(s_j),   s_j = scale1 <q[head], k_j>
//
// A block decodes 16 or 32 heads of its share of rows (schedule.h):
//
//   warps 8..11  produce      index -> address -> bulk copy into the ring
//   warps 0..7   compute      scores (each warp: a part of the dims, of a part of the slots)
//                             softmax (each thread: a few scores)
//                             outputs (each warp: 64 of the dims)
//
//   produce --full[stage]--> scores --barrier 1--> softmax --barrier 1--> outputs
//      ^                                              |
//      +----------------- empty[stage] ---------------+  keys wait for their weights in registers
#pragma once

#include "cuda/launch_decode.h"
#include "cuda/work.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/warp.cuh"
#include "sm120/gather.cuh"
#include "sm120/params.h"
#include "sm120/products.cuh"
#include "sm120/query.cuh"
#include "sm120/softmax.cuh"

namespace dsv4::sm120 {

// 8 neighbouring outputs.
__device__ __forceinline__ void store_outputs(const DecodeParams& params, uint16_t* target,
                                              const float4& low, const float4& high) {
  using ptx::pack, ptx::Half;
  const uint4 pairs =
      make_uint4(pack<Half::kBFloat16>(low.x, low.y), pack<Half::kBFloat16>(low.z, low.w),
                 pack<Half::kBFloat16>(high.x, high.y), pack<Half::kBFloat16>(high.z, high.w));
  if (params.out_aligned) {
    *reinterpret_cast<uint4*>(target) = pairs;
    return;
  }
  const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) target[i] = uint16_t(words[i / 2] >> (i % 2 * 16));
}
__device__ __forceinline__ void store_outputs(const DecodeParams&, float* target, const float4& low,
                                              const float4& high) {
  reinterpret_cast<float4*>(target)[0] = low;
  reinterpret_cast<float4*>(target)[1] = high;
}

// Sums of one warp -> 64 dims of the heads, times out_factor and scale2, and then scale: all at
// once might overflow. By way of shared memory, 8 heads at a time: threads have scattered dims, and
// a store of less than 32 bytes costs as much as one of 32. Head i goes to target_of(i).
template <class Cfg, class TargetOf>
__device__ __forceinline__ void store_group(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                            const OutputTiles<Cfg>& out, int group, float scale,
                                            float scale2, int num_heads, TargetOf target_of) {
  const int lane = ptx::opaque(threadIdx.x % 32), row = lane / 4, t = lane % 4;
  auto& staging = smem.staging[group];
#pragma unroll
  for (int half = 0; half < 2 * Cfg::kRowTiles; ++half) {
    if (half * 8 >= num_heads) break;
    const float factor = half * 8 + row < num_heads ? smem.out_factor[half * 8 + row] * scale2 : 0;
    const float (&sums)[8][4] = out[half / 2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float value[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] = sums[j][half % 2 * 2 + i] * factor * scale;
      if (group < Cfg::Format::kFloat8Groups) {  // dims 16t + 8i + j
        float4* dims = reinterpret_cast<float4*>(&staging[row][16 * t + 8 * i]);
        dims[0] = make_float4(value[0], value[1], value[2], value[3]);
        dims[1] = make_float4(value[4], value[5], value[6], value[7]);
      } else {  // dims 8j + 2t + i
#pragma unroll
        for (int j = 0; j < 8; ++j) staging[row][8 * j + 2 * t + i] = value[j];
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int staged = i * 4 + lane / 8, head = half * 8 + staged, dim = lane % 8 * 8;
      const auto* dims = reinterpret_cast<const float4*>(&staging[staged][dim]);
      if (head < num_heads) {
        store_outputs(params, target_of(head) + group * kGroupDims + dim, dims[0], dims[1]);
      }
    }
    __syncwarp();
  }
}

// Whether a sum of a thread is infinite or NaN.
template <class Cfg>
__device__ __forceinline__ bool has_infinite(const OutputTiles<Cfg>& out) {
  float zero = 0.0f;
#pragma unroll
  for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) zero = fmaf(out[tile][i][j], 0.0f, zero);
    }
  }
  return zero != 0.0f;
}

// The end of a row, or of a part of one: everything that the sums and the sums of weights are for.
template <class Cfg>
__device__ __forceinline__ void store_row(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                          const Assignment& work, const OutputTiles<Cfg>& out,
                                          uint32_t reference, int warp) {
  using Format = typename Cfg::Format;
  const DecodeProblem& problem = params.problem;
  const int num_heads = min(Cfg::kHeadTile, work.num_heads(problem));
  const float scale = !Format::kHasScales            ? 1.0f
                      : warp < Format::kFloat8Groups ? float_from_ue8m0(reference, 0)
                                                     : power_of_two(kRopeExponent);
  if (work.whole_row) {
    const RowPosition position = row_position(problem, work.row);
    auto* target =
        static_cast<uint16_t*>(problem.out.data) + position.batch * problem.out.batch_stride +
        position.query * problem.out.row_stride + work.first_head * problem.out.head_stride;
    const auto target_of = [&](int head) {
      return target + head_offset<Cfg::kRowGroups>(problem, problem.out, head);
    };
    store_group<Cfg>(params, smem, out, warp, scale, value_of(problem.scale2), num_heads,
                     target_of);
  } else {
    float* target =
        params.partial_out + (int64_t(work.part) * problem.heads + work.first_head) * kHeadDim;
    store_group<Cfg>(params, smem, out, warp, scale, 1.0f, num_heads,
                     [&](int head) { return target + int64_t(head) * kHeadDim; });
  }
  if (Cfg::kRowGroups && work.num_rows > 1 && has_infinite<Cfg>(out)) smem.spoiled[warp] = true;
  if (work.row_parts.count != 0 && work.first_head == 0 && threadIdx.x < work.num_rows) {
    params.row_parts[work.row + threadIdx.x] = work.row_parts;
  }
}

// Takes in the scales of a stage: sums follow their group's reference, and the block learns whether
// the row's scales lie too far apart for f16.
template <class Cfg>
__device__ __forceinline__ void follow_scales(SharedStorage<Cfg>& smem, ScaleRange& range,
                                              OutputTiles<Cfg>& out, int warp) {
  const uint32_t growth = range.extend();
  if (growth != 0) {
    const float factor = growth < 127 ? power_of_two(-int(growth)) : 0.0f;
#pragma unroll
    for (int tile = 0; tile < Cfg::kRowTiles; ++tile) {
      multiply_outputs<Cfg>(out, tile, factor, factor);
    }
  }
  const ScaleKind kind = range.kind();
  if (kind != ScaleKind::kNarrow && threadIdx.x % 32 == 0) smem.scale_kind[warp] = uint8_t(kind);
}

// Calls act with storage for the keys of a group.
template <class Cfg, class Act>
__device__ __forceinline__ void with_output_keys(int group, Act act) {
  constexpr int kFloat8Groups = Cfg::Format::kFloat8Groups;
  if constexpr (kFloat8Groups > 0) {
    if (kFloat8Groups == kNumGroups || group < kFloat8Groups) return act(Float8OutputKeys<Cfg>());
  }
  if constexpr (kFloat8Groups < kNumGroups) act(BFloat16OutputKeys<Cfg>());
}

// From the scores of a stage to sums of weighted keys.
template <class Cfg, ptx::Half kWeights, class Keys>
__device__ __forceinline__ void finish_stage(SharedStorage<Cfg>& smem, Softmax<Cfg>& softmax,
                                             Keys& keys, int stage, int group, uint32_t reference,
                                             OutputTiles<Cfg>& out) {
  keys.template load<kWeights>(smem, stage, group, reference);
  softmax.template weigh<kWeights>(stage);
  __syncwarp();
  if (threadIdx.x % 32 == 0) smem.empty[stage].arrive();
  ptx::sync_threads<1, Cfg::kMathThreads>();
  rescale_outputs<Cfg>(smem, out);
#pragma unroll
  for (int step = 0; step < Cfg::kSlotSteps; ++step) {
    WeightFragments<Cfg> weights;
    load_weights<Cfg>(smem, step, weights);
    keys.template accumulate<kWeights>(step, weights, out);
  }
}

// The math warps' role.
template <class Cfg>
__device__ __forceinline__ void compute(const DecodeParams& params, SharedStorage<Cfg>& smem,
                                        int warp) {
  using Format = typename Cfg::Format;
  const auto meet = [] { ptx::sync_threads<1, Cfg::kMathThreads>(); };
  Softmax<Cfg> softmax(params, smem);
  Query<Cfg> query;
  OutputTiles<Cfg> out;
  Ring<Cfg::kStages> ring;
  for (Ring<Cfg::kAssignments> works;; works.advance()) {
    smem.assigned[works.index].wait(works.full_parity());
    const Assignment& work = smem.assignment[works.index];
    if (work.row < 0) return;

    if (threadIdx.x % 32 == 0) smem.scale_kind[warp] = uint8_t(ScaleKind::kNarrow);
    const bool by_group = QueryLoader<Cfg>(params, smem, work, warp).load(query);
    softmax.begin(value_of(params.problem.scale1), work);
#pragma unroll
    for (int tile = 0; tile < Cfg::kRowTiles; ++tile) clear<Cfg>(out, tile);
    ScaleRange range;
    ScoreProduct<Cfg> score_product(smem, query, warp);

    const int stages = num_stages<Cfg>(work.num_slots);
    for (int i = 0; i < stages; ++i, ring.advance()) {
      const int stage = ring.index;
      smem.full[stage].wait(ring.full_parity());
      const bool has_scales = Format::kHasScales && warp < Format::kFloat8Groups;
      if (has_scales) range.read(smem, stage, warp);
      if (by_group) {
        score_product.template run<true>(stage);
      } else {
        score_product.template run<false>(stage);
      }
      if (has_scales) follow_scales<Cfg>(smem, range, out, warp);
      meet();
      const ScaleKind scales = kind_of_scales(smem);
      if (scales == ScaleKind::kNan) softmax.spoil();
      with_output_keys<Cfg>(warp, [&](auto keys) {
        if (scales == ScaleKind::kNarrow) {
          finish_stage<Cfg, Format::kHalf>(smem, softmax, keys, stage, warp, range.reference(),
                                           out);
        } else {
          finish_stage<Cfg, ptx::Half::kBFloat16>(smem, softmax, keys, stage, warp,
                                                  range.reference(), out);
        }
      });
    }

    softmax.finish(work);
    meet();
    store_row<Cfg>(params, smem, work, out, range.reference(), warp);
    __syncwarp();
    if (threadIdx.x % 32 == 0) smem.finished[works.index].arrive();
  }
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  auto& smem = *reinterpret_cast<SharedStorage<Cfg>*>(shared_bytes);
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();
  ptx::let_next_grid_start();
  ptx::wait_for_grids_ahead();

  const int num_tiles = params.schedule.num_head_tiles;
  const int share_index = blockIdx.x / num_tiles;
  const int first_head = blockIdx.x % num_tiles * Cfg::kHeadTile;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (warp >= Cfg::kMathWarps) {
    ptx::shrink_registers<Cfg::kProducerRegisters>();
    produce<Cfg>(params, smem, share_index, first_head, warp - Cfg::kMathWarps);
  } else {
    ptx::grow_registers<Cfg::kMathRegisters>();
    compute<Cfg>(params, smem, warp);
  }
}

template <class Cfg>
Status launch_tile(const DecodeParams& params, Stream stream) {
  static_assert(sizeof(SharedStorage<Cfg>) <= 99 * 1024, "what a block has on SM120");
  return cuda::launch_decode<decode_kernel<Cfg>>(params, stream, Cfg::kThreads,
                                                 sizeof(SharedStorage<Cfg>));
}

template <class Format, bool kRowGroups, bool kComparesTables>
Status launch_decode(const DecodeParams& params, Stream stream) {
  return params.schedule.head_tile == kSmallHeadTile
             ? launch_tile<Config<Format, kSmallHeadTile, kRowGroups, kComparesTables>>(params,
                                                                                        stream)
             : launch_tile<Config<Format, kLargeHeadTile, kRowGroups, kComparesTables>>(params,
                                                                                        stream);
}

template <class Format>
Status launch_decode_of_groups(const DecodeParams& params, Stream stream) {
  return params.compares_tables ? launch_decode<Format, true, true>(params, stream)
                                : launch_decode<Format, true, false>(params, stream);
}

}  // namespace dsv4::sm120
