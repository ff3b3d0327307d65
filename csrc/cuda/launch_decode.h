// SPDX-License-Identifier: Apache-2.0
// The launch of a decode kernel, whose parameters are a DecodePlan with the problem beside it.
#pragma once

#include "cuda/launch.h"

namespace dsv4::cuda {

// Clusters of `cluster` blocks, one for each share of the schedule and tile of heads.
template <auto* kKernel, class Params>
Status launch_decode(const Params& params, Stream stream, int threads, size_t shared_bytes,
                     unsigned cluster = 1) {
  LaunchConfig config;
  config.kernel = "sparse_mla_decode";
  config.device = params.problem.device;
  config.stream = stream;
  config.grid = dim3(cluster * params.schedule.num_shares * params.schedule.num_head_tiles);
  config.block = dim3(threads);
  config.cluster = cluster;
  config.dynamic_shared_bytes = shared_bytes;
  config.enable_pdl = params.problem.enable_pdl;
  return launch<kKernel>(config, params);
}

}  // namespace dsv4::cuda
