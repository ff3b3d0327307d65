// Barriers of every kind, for tests/simulator/test_barriers.py.
#include <cstdint>

__device__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ uint32_t peer_address(uint32_t address, uint32_t rank) {
  uint32_t peer;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}
__device__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ void init(uint32_t mbarrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier), "r"(count) : "memory");
}
__device__ void arrive(uint32_t mbarrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbarrier) : "memory");
}
__device__ void wait(uint32_t mbarrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra "
      "again; }" ::"r"(mbarrier),
      "r"(parity)
      : "memory");
}

// Two producer warps hand 32 values a round to two consumer warps, back and forth by barriers 1
// (full) and 2 (empty) of 128 threads. out[round][consumer thread].
extern "C" __global__ void named_barriers(uint32_t* out, uint32_t rounds) {
  __shared__ uint32_t block[64];
  const bool producer = threadIdx.x < 64;
  const uint32_t thread = threadIdx.x % 64;
  for (uint32_t round = 0; round < rounds; ++round) {
    if (producer) {
      asm volatile("bar.sync 2, 128;" ::: "memory");
      block[thread] = 1000 * round + thread;
      asm volatile("barrier.cta.arrive.aligned 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.arrive 2, 128;" ::: "memory");
      asm volatile("barrier.cta.sync.aligned 1, %0;" ::"r"(128) : "memory");
      out[64 * round + thread] = block[63 - thread];
    }
  }
}

// One lane of each warp comes to the barrier by another way than the 31 others.
extern "C" __global__ void barrier_in_two_parts(uint32_t* out) {
  __shared__ uint32_t block[64];
  const uint32_t thread = threadIdx.x;
  if (thread % 32 == 7) {
    block[thread] = 100 + thread;
    asm volatile("barrier.cta.sync 3, 64;" ::: "memory");
  } else {
    block[thread] = thread;
    asm volatile("barrier.cta.sync 3, 64;" ::: "memory");
  }
  out[thread] = block[(thread + 32) % 64];
}

// Reductions of a predicate over the block, twice with the same barrier.
extern "C" __global__ void reductions(uint32_t* out, uint32_t below) {
  uint32_t popc, all, any;
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t p = threadIdx.x < below + k;
    asm volatile(
        "{ .reg .pred p, q, r; setp.ne.u32 p, %3, 0;\n"
        "bar.red.popc.u32 %0, 0, p;\n"
        "barrier.cta.red.and.pred.aligned q, 1, %4, !p; selp.u32 %1, 1, 0, q;\n"
        "barrier.red.or.pred r, 2, p; selp.u32 %2, 1, 0, r; }"
        : "=r"(popc), "=r"(all), "=r"(any)
        : "r"(p), "r"(blockDim.x));
    out[blockDim.x * k + threadIdx.x] = popc * 4 + all * 2 + any;
  }
}

// Threads that have left are not waited for.
extern "C" __global__ void leaving(uint32_t* out) {
  __shared__ uint32_t block[128];
  if (threadIdx.x >= 40) return;
  block[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x < 32) out[threadIdx.x] = block[threadIdx.x + 8];
}

// A ring of kStages stages: warp 0 fills, warps 1 and 2 read. Stages are full after one arrival and
// 128 bytes, which another lane of warp 0 reports, and empty after 64 arrivals.
extern "C" __global__ void pipeline(const uint32_t* in, uint32_t* out, uint32_t rounds) {
  constexpr uint32_t kStages = 3;
  __shared__ uint32_t stage[kStages][32];
  __shared__ uint64_t full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (uint32_t k = 0; k < kStages; ++k) {
      init(shared_address(full + k), 1);
      init(shared_address(empty + k), 64);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t k = round % kStages, parity = round / kStages % 2;
    if (threadIdx.x < 32) {
      wait(shared_address(empty + k), parity ^ 1);
      stage[k][threadIdx.x] = in[32 * round + threadIdx.x];
      __syncwarp();
      if (threadIdx.x == 5) {
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 128;" ::"r"(
            shared_address(full + k)));
      }
      if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], 128;" ::"r"(
                         shared_address(full + k))
                     : "memory");
      }
    } else {
      wait(shared_address(full + k), parity);
      out[64 * round + threadIdx.x - 32] = stage[k][(threadIdx.x + round) % 32];
      arrive(shared_address(empty + k));
    }
  }
}

// States that arrivals return, pending counts, drops. One thread; out[0..11].
extern "C" __global__ void states(uint32_t* out) {
  __shared__ uint64_t mbarrier;
  const uint32_t bar = shared_address(&mbarrier);
  uint64_t first, second, last;
  const auto done = [&](uint64_t state) {
    uint32_t result;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(result)
        : "r"(bar), "l"(state));
    return result;
  };
  const auto pending = [&](uint64_t state) {
    uint32_t result;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(result) : "l"(state));
    return result;
  };
  init(bar, 10);
  asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 3;" : "=l"(first) : "r"(bar));
  asm volatile("mbarrier.arrive_drop.noComplete.release.cta.shared::cta.b64 %0, [%1], 2;"
               : "=l"(second)
               : "r"(bar));
  out[0] = pending(first);
  out[1] = pending(second);
  out[2] = done(first);
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 5;" : "=l"(last) : "r"(bar));
  out[3] = done(last);
  // The next phase wants 8: two are dropped.
  asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 1;" : "=l"(first) : "r"(bar));
  out[4] = pending(first);
  asm volatile("mbarrier.arrive_drop.expect_tx.shared::cta.b64 %0, [%1], 16;"
               : "=l"(last)
               : "r"(bar));
  asm volatile("mbarrier.arrive.b64 %0, [%1], 6;" : "=l"(last) : "l"(&mbarrier));
  out[5] = done(last);
  asm volatile("mbarrier.complete_tx.shared::cta.b64 [%0], 16;" ::"r"(bar));
  out[6] = done(last);
  // Seven are left. Bytes may be there before they are expected.
  asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], 32;" ::"r"(bar));
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 7;" : "=l"(last) : "r"(bar));
  out[7] = done(last);
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 32;" ::"r"(bar));
  out[8] = done(last);
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar));
  init(bar, 1);
  asm volatile("mbarrier.arrive.relaxed.cta.shared::cta.b64 %0, [%1];" : "=l"(last) : "r"(bar));
  out[9] = done(last);
}

// Blocks of a cluster read, write and add to each other's shared memory, by named and generic
// addresses, in turns by the cluster's barrier.
extern "C" __global__ void distributed(uint32_t* out) {
  __shared__ uint32_t block[64];
  __shared__ uint32_t sum;
  const uint32_t thread = threadIdx.x, rank = cluster_rank(), peer = rank ^ 1;
  block[thread] = 1000 * rank + thread;
  if (thread == 0) sum = 0;
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
  uint32_t seen, generic;
  const uint32_t there = peer_address(shared_address(block + 63 - thread), peer);
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(seen) : "r"(there) : "memory");
  asm volatile("{ .reg .b64 a; mapa.u64 a, %1, %2; ld.u32 %0, [a]; }"
               : "=r"(generic)
               : "l"(block + thread), "r"(peer)
               : "memory");
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(
                   peer_address(shared_address(&sum), peer)),
               "r"(thread)
               : "memory");
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(7000 + thread) : "memory");
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  uint32_t* row = out + 4 * (64 * blockIdx.x + thread);
  row[0] = seen;
  row[1] = generic;
  row[2] = sum;
  row[3] = block[thread];
}

// Every block of a cluster arrives at an mbarrier of block 0, which waits, then answers through
// theirs.
extern "C" __global__ void remote_arrivals(uint32_t* out) {
  __shared__ uint64_t mbarrier;
  __shared__ uint32_t letter[8];
  const uint32_t bar = shared_address(&mbarrier), rank = cluster_rank();
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  if (threadIdx.x == 0) {
    init(bar, rank == 0 ? blocks : 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
  if (threadIdx.x == 0) {
    const uint32_t to = peer_address(shared_address(letter + rank), 0);
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(50 + rank) : "memory");
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_address(bar, 0))
        : "memory");
    if (rank == 0) {
      asm volatile(
          "{ .reg .pred p;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, "
          "[%0], 0;\n"
          "@!p bra again; }" ::"r"(bar)
          : "memory");
      uint32_t total = 0;
      for (uint32_t k = 0; k < blocks; ++k) total += letter[k];
      for (uint32_t k = 1; k < blocks; ++k) {
        asm volatile(
            "st.shared::cluster.u32 [%0], %1;" ::"r"(peer_address(shared_address(letter), k)),
            "r"(total)
            : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         peer_address(bar, k))
                     : "memory");
      }
      out[blockIdx.x] = total;
    } else {
      asm volatile(
          "{ .reg .pred p;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, "
          "[%0], 0, 1000;\n"
          "@!p bra again; }" ::"r"(bar)
          : "memory");
      out[blockIdx.x] = letter[0];
    }
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Looks once at a barrier that only its own later arrival completes, and goes on when it is not
// over.
extern "C" __global__ void peeks(uint32_t* out) {
  __shared__ uint64_t mbarrier;
  const uint32_t bar = shared_address(&mbarrier);
  init(bar, 1);
  uint32_t early[2];
  asm volatile(
      "{ .reg .pred p, q;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%2], 0;\nselp.u32 %0, 1, 0, p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 q, [%2], 0;\nselp.u32 %1, 1, 0, q; }"
      : "=r"(early[0]), "=r"(early[1])
      : "r"(bar)
      : "memory");
  arrive(bar);
  wait(bar, 0);
  out[0] = early[0];
  out[1] = early[1];
  out[2] = 1;
}

#if __CUDA_ARCH__ >= 1000

// Clusters take over work of those that have not started, until there is none. out[block] counts
// who did it.
extern "C" __global__ void work_queue(uint32_t* out, uint32_t* turns) {
  __shared__ __align__(16) uint4 response;
  __shared__ uint64_t mbarrier;
  const uint32_t bar = shared_address(&mbarrier), to = shared_address(&response);
  uint32_t block = blockIdx.x, parity = 0;
  if (threadIdx.x == 0) init(bar, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  while (true) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" ::"r"(bar) : "memory");
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0 && cluster_rank() == 0) {
      asm volatile(
          "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
          ".multicast::cluster::all.b128 [%0], [%1];" ::"r"(to),
          "r"(bar)
          : "memory");
    }
    if (threadIdx.x == 0) {
      atomicAdd(out + block, 1);
      atomicAdd(turns, 1);
    }
    wait(bar, parity);
    parity ^= 1;
    uint32_t canceled, x, y, z, also_x;
    asm volatile(
        "{ .reg .b128 q; .reg .pred p; ld.shared.b128 q, [%5];\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, q;\nselp.u32 %0, 1, 0, p;\n"
        "mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0; mov.u32 %4, 0;\n"
        "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, %2, %3, _}, q;\n"
        "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %4, q; }"
        : "=r"(canceled), "=r"(x), "=r"(y), "=r"(z), "=r"(also_x)
        : "r"(to)
        : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (!canceled) break;
    if (y != 0 || z != 0 || x != also_x) out[block] = 1000;
    block = x + cluster_rank();
  }
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
}

#endif  // __CUDA_ARCH__ >= 1000
