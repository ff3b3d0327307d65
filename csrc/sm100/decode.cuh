// SPDX-License-Identifier: Apache-2.0
// The decode kernel of up to 64 heads a block. README.md tells why it is as it is.
#pragma once

#include "cuda/launch_decode.h"
#include "ptx/grid_dependency.cuh"
#include "ptx/warp.cuh"
#include "sm100/config.cuh"
#include "sm100/convert.cuh"
#include "sm100/finish.cuh"
#include "sm100/gather.cuh"
#include "sm100/products.cuh"
#include "sm100/softmax.cuh"

namespace dsv4::sm100 {

// The softmax warps' role.
template <class Cfg>
__device__ __forceinline__ void weigh_and_finish(const DecodeParams& params,
                                                 SharedStorage<Cfg>& smem, uint32_t tensor,
                                                 int warp) {
  Softmax<Cfg> softmax(smem, tensor);
  const float scale = value_of(params.problem.scale1);
  for (Ring<Cfg::kAssignments> works;; works.advance()) {
    smem.assigned[works.index].wait(works.full_parity());
    const Assignment& work = smem.assignment[works.index];
    if (work.row < 0) return;
    const int tiles = num_tiles<Cfg>(work.num_slots);
    const int first_head = work.first_head + warp * Cfg::kHeadsPerWarp;
    const int my_head = first_head + threadIdx.x % Cfg::kHeadsPerWarp;
    softmax.begin(scale, work.num_slots, row_of_head<Cfg::kRowGroups>(params.problem, my_head));
    for (int tile = 0; tile < tiles; ++tile) softmax.weigh(tile);
    softmax.wait_for_outputs();
    const bool spoiled = finish_row<Cfg::kHeadsPerWarp, Cfg::kRowGroups>(
        params, smem.staging[warp], softmax.total(), work, first_head, 0, tensor + kOutputColumn);
    if (Cfg::kRowGroups && work.num_rows > 1 && spoiled) smem.spoiled[warp] = true;
    __syncwarp();
    if (threadIdx.x % 32 == 0) smem.finished[works.index].arrive();
  }
}

// Softmax warps that have a head; the others do nothing.
template <class Cfg>
__device__ __forceinline__ int active_softmax_warps(const DecodeParams& params, int first_head) {
  const int64_t all = params.schedule.group_rows * params.problem.heads;
  const int heads = static_cast<int>(min(int64_t(kHeadTile), all - first_head));
  return (heads + Cfg::kHeadsPerWarp - 1) / Cfg::kHeadsPerWarp;
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& smem = *reinterpret_cast<SharedStorage<Cfg>*>(shared_bytes);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int num_tiles = params.schedule.num_head_tiles;
  const int first_head = blockIdx.x % num_tiles * kHeadTile;
  const int softmax_warps = active_softmax_warps<Cfg>(params, first_head);
  if (threadIdx.x == 0) smem.init_barriers(softmax_warps);
  if (warp == Cfg::kScoreWarp) {
    ptx::tensor_allocate<1>(&smem.tensor_memory);
    ptx::tensor_fence_before();
  }
  if (warp == Cfg::kOutputWarp) smem.init_operands(params.query_rows);
  __syncthreads();
  ptx::tensor_fence_after();
  const uint32_t tensor = smem.tensor_memory;
  ptx::let_next_grid_start();
  ptx::wait_for_grids_ahead();

  if (warp < softmax_warps) {
    weigh_and_finish<Cfg>(params, smem, tensor, warp);
  } else if (warp == Cfg::kScoreWarp) {
    if (ptx::elect_one()) multiply_scores<Cfg>(params, smem, tensor);
  } else if (warp == Cfg::kOutputWarp) {
    if (ptx::elect_one()) multiply_outputs<Cfg>(smem, tensor);
  } else if (warp >= Cfg::kFirstGatherWarp) {
    const int32_t share = blockIdx.x / num_tiles;
    const int gather_warp = warp - Cfg::kFirstGatherWarp;
    if constexpr (Cfg::kConverts) {
      static_assert(Cfg::kGranulesPerTile == kPackedGranules);
      GranuleRing<Cfg> target(smem, gather_warp);
      load_and_convert<0, kPackedGranules, Cfg>(params, smem, share, first_head, gather_warp,
                                                target);
    } else {
      gather<Cfg>(params, smem, share, first_head, gather_warp);
    }
  }
  __syncwarp();
  __syncthreads();
  if (warp == Cfg::kScoreWarp) {
    ptx::tensor_fence_after();
    ptx::tensor_free<1>(tensor);
  }
}

template <class Format, bool kRowGroups, bool kComparesTables>
Status launch_decode(const DecodeParams& params, Stream stream) {
  using Cfg = Config<Format, kRowGroups, kComparesTables>;
  static_assert(sizeof(SharedStorage<Cfg>) <= 227 * 1024, "what a block has on SM100");
  return cuda::launch_decode<decode_kernel<Cfg>>(params, stream, Cfg::kThreads,
                                                 sizeof(SharedStorage<Cfg>));
}

template <class Format>
Status launch_decode_of_groups(const DecodeParams& params, Stream stream) {
  return params.compares_tables ? launch_decode<Format, true, true>(params, stream)
                                : launch_decode<Format, true, false>(params, stream);
}

}  // namespace dsv4::sm100
