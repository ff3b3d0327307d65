// SPDX-License-Identifier: Apache-2.0
// Which GPUs this process can use, and why not. Needs no CUDA headers and no driver.
//
// The first call of gpu_count or gpu_info initialises the CUDA driver, but creates no context; its
// answers hold for the life of the process. Nothing here prints or throws. As after any first use
// of CUDA, child processes made by fork() without exec() cannot use the GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4 {

// GPUs beyond this number are not seen. A machine has 16 at most today.
inline constexpr int kMaxGpus = 64;

struct GpuInfo {
  bool present = false;
  int major = 0;  // compute capability
  int minor = 0;
  int num_sms = 0;
  int max_shared_bytes_per_block = 0;  // with opt-in
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  char name[256] = {};
};

// How many GPUs there are. If 0, `reason` (may be null) receives why, cut to `reason_bytes`.
int gpu_count(char* reason, size_t reason_bytes);

// Describes the GPU with this ordinal. False, and info->present false, if there is none.
bool gpu_info(int index, GpuInfo* info);

// CUDA version of the runtime in this build, such as "13.0", or "none".
const char* cuda_runtime_version();

// Newest CUDA version that the installed driver supports, such as "13.0", or "none".
const char* cuda_driver_version();

}  // namespace dsv4
