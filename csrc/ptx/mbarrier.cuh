// SPDX-License-Identifier: Apache-2.0
// mbarrier: a barrier in shared memory whose phase ends when all arrivals and all bytes are in.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
#pragma once

#include "ptx/shared_address.cuh"

namespace dsv4::ptx {

struct Mbarrier {
  uint64_t opaque;

  __device__ __forceinline__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }

  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }

  // Arrives, and makes the phase wait for this many bytes of bulk copies, too.
  __device__ __forceinline__ void arrive_expect_bytes(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }

  // Waits for the end of the phase of this parity.
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "retry:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra retry;\n"
        "}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// Makes new barriers visible to the async proxy, which completes bulk copies.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace dsv4::ptx
