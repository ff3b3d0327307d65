// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory by the threads of a warp, without waiting.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include "ptx/mbarrier.cuh"

namespace dsv4::ptx {

// 8 bytes; both addresses are multiples of 8.
__device__ __forceinline__ void copy_async_8(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(global) : "memory");
}

// Arrives when this thread's copies so far are complete. The barrier counts this arrival like any
// other.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive
__device__ __forceinline__ void arrive_after_copies(Mbarrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}

}  // namespace dsv4::ptx
