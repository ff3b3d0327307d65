// SPDX-License-Identifier: Apache-2.0
// The GPUs that the fake CUDA runtime can pretend to find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dsv4::simulator::cuda {

struct GpuModel {
  const char* key;   // for DSV4_SIM_GPU
  const char* name;  // as the driver says
  int major, minor;  // compute capability
  int num_sms;
  int shared_bytes_per_block;  // with the opt-in
  int shared_bytes_per_sm;
  int threads_per_sm, blocks_per_sm;
  int max_cluster, max_portable_cluster;  // blocks
  int clock_khz, memory_clock_khz, memory_bus_bits;
  int l2_bytes;
  uint64_t memory_bytes;
  bool integrated;
};

// Null if there is none of this name.
const GpuModel* find_gpu_model(std::string_view key);

// "H200, B200, ..."
const char* gpu_model_names();

// How well PTX for a target ("sm_100f") suits a GPU: 0 if it does not run there, and the larger the
// better. https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-module-directives-target
int suitability(const GpuModel& gpu, std::string_view target);

}  // namespace dsv4::simulator::cuda
