// SPDX-License-Identifier: Apache-2.0
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
#pragma once

#include "ptx/mbarrier.cuh"

namespace dsv4::ptx {

// Copies `bytes` from global to shared memory and credits them to `full`. Both addresses and
// `bytes` are multiples of 16.
// The form with shared::cta: to shared::cluster, ptxas makes a call of it on sm_120.
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes,
                                          Mbarrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared),
      "l"(global), "r"(bytes), "r"(shared_address(&full))
      : "memory");
}

// Orders what this thread has written to shared memory, and what it knows that others have, before
// its bulk copies to the same place.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
__device__ __forceinline__ void fence_shared_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace dsv4::ptx
