// SPDX-License-Identifier: Apache-2.0
// The functions of device.h in a build without CUDA.
#include <cstdio>

#include "cuda/device.h"

namespace dsv4 {

int gpu_count(char* reason, size_t reason_bytes) {
  if (reason != nullptr && reason_bytes > 0) {
    std::snprintf(reason, reason_bytes, "this build holds no CUDA runtime");
  }
  return 0;
}

bool gpu_info(int /*index*/, GpuInfo* info) {
  *info = GpuInfo{};
  return false;
}

const char* cuda_runtime_version() { return "none"; }

const char* cuda_driver_version() { return "none"; }

}  // namespace dsv4
