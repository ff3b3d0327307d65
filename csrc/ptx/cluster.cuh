// SPDX-License-Identifier: Apache-2.0
// Clusters: blocks that can reach each other's shared memory and barriers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
#pragma once

#include "ptx/mbarrier.cuh"

namespace dsv4::ptx {

// Of this block in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Meeting of all threads of a cluster; what they wrote before is known to all.
__device__ __forceinline__ void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
}

// A barrier of some block of the cluster; only that block may wait for it.
// The default semantics, release and acquire, without a word of their scope: with `.cluster`, each
// operation becomes a fence of the whole GPU.
class RemoteMbarrier {
 public:
  // The barrier of block `rank` that lies where this one lies in the own block.
  __device__ __forceinline__ RemoteMbarrier(const Mbarrier& own, uint32_t rank) {
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address_)
        : "r"(shared_address(&own)), "r"(rank));
  }

  __device__ __forceinline__ uint32_t address() const { return address_; }

  __device__ __forceinline__ void arrive() const {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_) : "memory");
  }
  __device__ __forceinline__ void arrive_expect_bytes(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(address_),
                 "r"(bytes)
                 : "memory");
  }

 private:
  uint32_t address_;
};

}  // namespace dsv4::ptx
