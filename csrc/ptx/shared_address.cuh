// SPDX-License-Identifier: Apache-2.0
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvta
#pragma once

#include <cstdint>

namespace dsv4::ptx {

// Address in the shared window, as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace dsv4::ptx
