// SPDX-License-Identifier: Apache-2.0
// The decode kernel of pairs of blocks, for up to 128 heads. pair_config.cuh tells how they share.
#pragma once

#include "cuda/launch_decode.h"
#include "ptx/cluster.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/warp.cuh"
#include "sm100/finish.cuh"
#include "sm100/pair_config.cuh"
#include "sm100/pair_gather.cuh"
#include "sm100/pair_products.cuh"
#include "sm100/pair_softmax.cuh"

namespace dsv4::sm100 {

// The softmax warps' role. `first_head`: of the warp. The next row's query is on its way to its
// scores while this row's outputs are stored.
template <class Cfg>
__device__ __forceinline__ void weigh_and_finish_of_pair(const DecodeParams& params,
                                                         PairStorage<Cfg>& smem, uint32_t tensor,
                                                         int warp, int first_head) {
  PairSoftmax<Cfg> softmax(smem, tensor, warp);
  const float scale = value_of(params.problem.scale1);
  Ring<Cfg::kAssignments> works;
  const auto begin_next_work = [&] {
    smem.assigned[works.index].wait(works.full_parity());
    const int32_t row = smem.assignment[works.index].row;
    if (row >= 0) softmax.load_query(params.problem, row, first_head);
  };
  begin_next_work();
  for (;;) {
    const int index = works.index;
    const Assignment& work = smem.assignment[index];
    if (work.row < 0) return;
    const int tiles = num_tiles<Cfg>(work.num_slots);
    softmax.begin(scale, work.num_slots);
    for (int tile = 0; tile < tiles; ++tile) softmax.weigh(tile);
    works.advance();
    begin_next_work();
    softmax.wait_for_outputs();
    finish_row<Cfg::kHeadsPerWarp, false>(params, smem.staging[warp], softmax.total(), work,
                                          first_head, warp / 2 * kOutputColumns,
                                          tensor + Cfg::kOutputs);
    __syncwarp();
    if (threadIdx.x % 32 == 0) smem.finished[index].arrive();
  }
}

// Whether a softmax warp has a head; the others do nothing. The first of a block takes part anyway.
template <class Cfg>
__device__ __forceinline__ bool is_active(const DecodeProblem& problem, int first_head, int warp) {
  const int first = warp % 2 * Cfg::kHeadsPerWarp;
  return first == 0 || first_head + first < problem.heads;
}

template <class Cfg>
__device__ __forceinline__ int active_warps(const DecodeProblem& problem, int first_head) {
  return is_active<Cfg>(problem, first_head, 1) ? 4 : 2;
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    decode_kernel_of_pairs(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& smem = *reinterpret_cast<PairStorage<Cfg>*>(shared_bytes);
  const DecodeProblem& problem = params.problem;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int pair = blockIdx.x / 2, num_tiles = params.schedule.num_head_tiles;
  const int first_head_of_pair = pair % num_tiles * kPairHeadTile;
  const int first_head = first_head_of_pair + rank * kHeadTile;
  if (threadIdx.x == 0) {
    smem.init_barriers(active_warps<Cfg>(problem, first_head),
                       active_warps<Cfg>(problem, first_head_of_pair) +
                           active_warps<Cfg>(problem, first_head_of_pair + kHeadTile));
  }
  if (warp == Cfg::kScoreWarp) {
    ptx::tensor_allocate<2>(&smem.tensor_memory);
    ptx::tensor_fence_before();
  }
  if (warp == Cfg::kOutputWarp) smem.init_ones();
  __syncwarp();
  ptx::sync_cluster();
  ptx::tensor_fence_after();
  const uint32_t tensor = smem.tensor_memory;
  ptx::let_next_grid_start();
  ptx::wait_for_grids_ahead();

  if (warp < Cfg::kSoftmaxWarps) {
    if (is_active<Cfg>(problem, first_head, warp)) {
      weigh_and_finish_of_pair<Cfg>(params, smem, tensor, warp,
                                    first_head + warp % 2 * Cfg::kHeadsPerWarp);
    }
  } else if (warp == Cfg::kScoreWarp) {
    if (rank == 0 && ptx::elect_one()) multiply_scores_of_pair<Cfg>(smem, tensor);
  } else if (warp == Cfg::kOutputWarp) {
    if (rank == 0 && ptx::elect_one()) multiply_outputs_of_pair<Cfg>(smem, tensor);
  } else {
    const int32_t share = pair / num_tiles;
    const int gather_warp = warp - Cfg::kFirstGatherWarp;
    if constexpr (Cfg::kConverts) {
      load_and_convert_for_pair<Cfg>(params, smem, share, first_head, rank, gather_warp);
    } else {
      gather_for_pair<Cfg>(params, smem, share, first_head, rank, gather_warp);
    }
  }
  __syncwarp();
  // A block must not leave while the other may arrive at its barriers or read its memory.
  ptx::sync_cluster();
  if (warp == Cfg::kScoreWarp) {
    ptx::tensor_fence_after();
    ptx::tensor_free<2>(tensor);
  }
}

template <class Format>
Status launch_decode_of_pairs(const DecodeParams& params, Stream stream) {
  using Cfg = PairConfig<Format>;
  static_assert(sizeof(PairStorage<Cfg>) <= 227 * 1024, "what a block has on SM100");
  return cuda::launch_decode<decode_kernel_of_pairs<Cfg>>(params, stream, Cfg::kThreads,
                                                          sizeof(PairStorage<Cfg>), 2);
}

}  // namespace dsv4::sm100
