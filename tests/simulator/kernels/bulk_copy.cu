// SPDX-License-Identifier: Apache-2.0
// Kernels of test_bulk_copy.py.
#include "copies.cuh"

// Blocks load `size` bytes each and write them out.
template <int kForm>
__device__ void load(const uint8_t* in, uint8_t* out, uint32_t size) {
  extern __shared__ __align__(128) uint8_t data[];
  __shared__ uint64_t barrier;
  in += blockIdx.x * size;
  out += blockIdx.x * size;
  if (threadIdx.x == 0) {
    start(&barrier, size);
    const uint32_t to = shared_address(data), signal = shared_address(&barrier);
    if (kForm == 0) {
      asm volatile(
          "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
              "r"(to),
          "l"(in), "r"(size), "r"(signal)
          : "memory");
    } else if (kForm == 1) {  // displacements, a cache policy, and in two pieces
      asm volatile(
          "{\n.reg .b64 policy;\n"
          "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
          "[%1], 16, [%3], policy;\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0+16], [%1+16], %2, [%3], policy;\n"
          "}" ::"r"(to),
          "l"(in), "r"(size - 16), "r"(signal)
          : "memory");
    }
  }
  __syncthreads();
  wait(&barrier, 0);
  for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) out[i] = data[i];
}
KERNEL load_own(const uint8_t* in, uint8_t* out, uint32_t size) { load<0>(in, out, size); }
KERNEL load_cluster(const uint8_t* in, uint8_t* out, uint32_t size) { load<1>(in, out, size); }

// Does not wait before it reads.
KERNEL load_without_wait(const uint8_t* in, uint8_t* out, uint32_t size) {
  extern __shared__ __align__(128) uint8_t data[];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    start(&barrier, size);
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(data)),
        "l"(in), "r"(size), "r"(shared_address(&barrier))
        : "memory");
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) out[i] = data[i];
  __syncthreads();
  wait(&barrier, 0);
}

// The first block sends 64 bytes to the blocks of the mask.
KERNEL multicast(const uint8_t* in, uint8_t* out, uint32_t mask) {
  __shared__ __align__(128) uint8_t data[64];
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank();
  const bool receives = mask >> rank & 1;
  for (int i = threadIdx.x; i < 64; i += blockDim.x) data[i] = 0;
  fence_async();
  if (threadIdx.x == 0) start(&barrier, receives ? 64 : 0);
  cluster_sync();
  if (rank == 0 && threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], 64, [%2], %3;" ::"r"(shared_address(data)),
        "l"(in), "r"(shared_address(&barrier)), "h"(uint16_t(mask))
        : "memory");
  }
  wait(&barrier, 0);
  for (int i = threadIdx.x; i < 64; i += blockDim.x) out[rank * 64 + i] = data[i];
  cluster_sync();
}

// Writes two arrays through one buffer. kWait: 0 not before reuse, 1 for the reads, 2 for all.
template <int kWait>
__device__ void store(uint8_t* out, uint32_t size) {
  extern __shared__ __align__(128) uint8_t data[];
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x)
      data[i] = uint8_t(i * 3 + round * 101 + 1);
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile(
          "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], "
          "%2;\ncp.async.bulk.commit_group;" ::"l"(out + round * size),
          "r"(shared_address(data)), "r"(size)
          : "memory");
      if (kWait == 1) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      if (kWait == 2) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
KERNEL store_wait_read(uint8_t* out, uint32_t size) { store<1>(out, size); }
KERNEL store_wait_all(uint8_t* out, uint32_t size) { store<2>(out, size); }
KERNEL store_no_wait(uint8_t* out, uint32_t size) { store<0>(out, size); }

// A ring of two buffers: wait_group.read 1 allows the newest group to be pending.
KERNEL store_ring(uint8_t* out, uint32_t rounds) {
  __shared__ __align__(128) uint8_t data[2][64];
  for (uint32_t round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    __syncthreads();
    data[round % 2][threadIdx.x] = uint8_t(round * 64 + threadIdx.x);
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile(
          "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], "
          "64;\ncp.async.bulk.commit_group;" ::"l"(out + round * 64),
          "r"(shared_address(data[round % 2]))
          : "memory");
    }
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// The thread that stored reads what it wrote.
template <bool kOnlyRead>
__device__ void store_then_load(uint8_t* out, uint8_t* seen) {
  __shared__ __align__(128) uint8_t data[64];
  data[threadIdx.x] = uint8_t(threadIdx.x + 1);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 64;\n"
        "cp.async.bulk.commit_group;" ::"l"(out),
        "r"(shared_address(data))
        : "memory");
    if (kOnlyRead) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    if (!kOnlyRead) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#pragma unroll 1
    for (int i = 0; i < 64; ++i) seen[i] = out[i];
  }
}
KERNEL store_wait_load(uint8_t* out, uint8_t* seen) { store_then_load<false>(out, seen); }
KERNEL store_wait_read_load(uint8_t* out, uint8_t* seen) { store_then_load<true>(out, seen); }

// The block ends while its store may still be reading.
KERNEL store_and_leave(uint8_t* out) {
  __shared__ __align__(128) uint8_t data[64];
  data[threadIdx.x] = 1;
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], "
        "64;\ncp.async.bulk.commit_group;" ::"l"(out),
        "r"(shared_address(data))
        : "memory");
  }
}

#if __CUDA_ARCH__ >= 1000

KERNEL store_bytes(uint8_t* out, uint32_t mask) {
  __shared__ __align__(128) uint8_t data[64];
  data[threadIdx.x] = uint8_t(threadIdx.x + 1);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%0], [%1], 64, %2;\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(out),
        "r"(shared_address(data)), "h"(uint16_t(mask))
        : "memory");
  }
}

#endif  // __CUDA_ARCH__ >= 1000

// Every block sends its 128 bytes to the next one.
KERNEL send(const uint8_t* in, uint8_t* out, uint32_t blocks) {
  __shared__ __align__(128) uint8_t mine[128], received[128];
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank(), next = (rank + 1) % blocks;
  mine[threadIdx.x] = in[rank * 128 + threadIdx.x];
  fence_async();
  if (threadIdx.x == 0) start(&barrier, 128);
  __syncthreads();
  cluster_sync();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, "
        "[%2];" ::"r"(in_block(shared_address(received), next)),
        "r"(shared_address(mine)), "r"(in_block(shared_address(&barrier), next))
        : "memory");
  }
  wait(&barrier, 0);
  out[rank * 128 + threadIdx.x] = received[threadIdx.x];
  cluster_sync();
}

// Threads store into the next block: 4, 8 and 16 bytes.
KERNEL store_async(const uint32_t* in, uint32_t* out, uint32_t blocks) {
  __shared__ __align__(128) uint32_t received[7][32];
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank(), next = (rank + 1) % blocks, lane = threadIdx.x;
  if (threadIdx.x == 0) start(&barrier, sizeof(received));
  cluster_sync();
  const uint32_t* v = in + (rank * 32 + lane) * 7;
  const uint32_t to = in_block(shared_address(received), next),
                 signal = in_block(shared_address(&barrier), next);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                   to + lane * 4),
               "r"(v[0]), "r"(signal)
               : "memory");
  const uint64_t pair = uint64_t(v[2]) << 32 | v[1];
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
          to + 128 + lane * 8),
      "l"(pair), "r"(signal)
      : "memory");
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0+384], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to + lane * 16),
      "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(signal)
      : "memory");
  wait(&barrier, 0);
  const uint32_t* flat = &received[0][0];
  uint32_t* o = out + (rank * 32 + lane) * 7;
  o[0] = flat[lane];
  for (int k = 0; k < 2; ++k) o[1 + k] = flat[32 + lane * 2 + k];
  for (int k = 0; k < 4; ++k) o[3 + k] = flat[96 + lane * 4 + k];
  cluster_sync();
}

// All lanes reduce into words of the other block.
KERNEL reduce_async(uint32_t* out, uint32_t init) {
  __shared__ uint32_t words[4];
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank(), lane = threadIdx.x;
  if (lane < 4) words[lane] = init;
  if (lane == 0) start(&barrier, 4 * 4 * 32);
  cluster_sync();
  const uint32_t to = in_block(shared_address(words), rank ^ 1),
                 signal = in_block(shared_address(&barrier), rank ^ 1);
#define REDUCE(k, op, value)                                                                \
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes." op \
               " [%0], %1, [%2];" ::"r"(to + 4 * k),                                        \
               "r"(value), "r"(signal)                                                      \
               : "memory")
  REDUCE(0, "add.u32", lane + rank);
  REDUCE(1, "max.s32", int(lane) - 100);
  REDUCE(2, "inc.u32", 40u);
  REDUCE(3, "xor.b32", 1u << lane);
  wait(&barrier, 0);
  if (lane < 4) out[rank * 4 + lane] = words[lane];
  cluster_sync();
}

#define REDUCE_TO_GLOBAL(name, op)                                                                 \
  KERNEL name(uint8_t* out, const uint8_t* in, uint32_t size) {                                    \
    __shared__ __align__(128) uint8_t data[256];                                                   \
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) data[i] = in[blockIdx.x * size + i]; \
    fence_async();                                                                                 \
    __syncthreads();                                                                               \
    if (threadIdx.x == 0) {                                                                        \
      asm volatile(                                                                                \
          "cp.reduce.async.bulk.global.shared::cta.bulk_group." op                                 \
          " [%0], [%1], %2;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(out), \
          "r"(shared_address(data)), "r"(size)                                                     \
          : "memory");                                                                             \
    }                                                                                              \
  }
REDUCE_TO_GLOBAL(add_u32, "add.u32")
REDUCE_TO_GLOBAL(add_s32, "add.s32")
REDUCE_TO_GLOBAL(add_u64, "add.u64")
REDUCE_TO_GLOBAL(add_f32, "add.f32")
REDUCE_TO_GLOBAL(add_f64, "add.f64")
REDUCE_TO_GLOBAL(add_f16, "add.noftz.f16")
REDUCE_TO_GLOBAL(add_bf16, "add.noftz.bf16")
REDUCE_TO_GLOBAL(min_u32, "min.u32")
REDUCE_TO_GLOBAL(max_s32, "max.s32")
REDUCE_TO_GLOBAL(min_s64, "min.s64")
REDUCE_TO_GLOBAL(max_u64, "max.u64")
REDUCE_TO_GLOBAL(min_f16, "min.f16")
REDUCE_TO_GLOBAL(max_f16, "max.f16")
REDUCE_TO_GLOBAL(min_bf16, "min.bf16")
REDUCE_TO_GLOBAL(max_bf16, "max.bf16")
REDUCE_TO_GLOBAL(inc_u32, "inc.u32")
REDUCE_TO_GLOBAL(dec_u32, "dec.u32")
REDUCE_TO_GLOBAL(and_b32, "and.b32")
REDUCE_TO_GLOBAL(or_b64, "or.b64")
REDUCE_TO_GLOBAL(xor_b32, "xor.b32")

KERNEL reduce_in_peer(const uint32_t* in, uint32_t* out) {
  __shared__ __align__(128) uint32_t mine[32], sum[32];
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank();
  mine[threadIdx.x] = in[rank * 32 + threadIdx.x];
  sum[threadIdx.x] = 1000 * rank;
  fence_async();
  if (threadIdx.x == 0) start(&barrier, 128);
  cluster_sync();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 "
        "[%0], [%1], 128, [%2];" ::"r"(in_block(shared_address(sum), rank ^ 1)),
        "r"(shared_address(mine)), "r"(in_block(shared_address(&barrier), rank ^ 1))
        : "memory");
  }
  wait(&barrier, 0);
  out[rank * 32 + threadIdx.x] = sum[threadIdx.x];
  cluster_sync();
}

KERNEL prefetch(const uint8_t* in) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], 64;" ::"l"(in) : "memory");
}

// What hardware leaves undefined, by number.
KERNEL undefined(const uint8_t* in, int what) {
  __shared__ __align__(128) uint8_t data[256], other[256];
  __shared__ uint64_t barrier, no_barrier;
  const uint32_t rank = block_rank();
  if (threadIdx.x == 0) start(&barrier, 64);
  cluster_sync();
  if (threadIdx.x == 0 && rank == 0) {
    uint32_t to = shared_address(data), signal = shared_address(&barrier), size = 64;
    if (what == 0) size = 24;
    if (what == 1) to += 8;
    if (what == 2) in += 8;
    if (what == 3) to = in_block(to, 1);  // the mbarrier stays here
    if (what == 4) signal = shared_address(&no_barrier);
    if (what == 5) size = 1 << 20;
    if (what <= 5) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(to),
          "l"(in), "r"(size), "r"(signal)
          : "memory");
    }
    if (what == 6) {  // shared::cta of another block
      asm volatile(
          "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
              "r"(in_block(to, 1)),
          "l"(in), "r"(size), "r"(in_block(signal, 1))
          : "memory");
    }
    if (what == 7) {  // to the own block
      asm volatile(
          "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(to),
          "r"(shared_address(other)), "r"(size), "r"(signal)
          : "memory");
    }
    if (what == 8) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
          "[%0], [%1], 64, [%2], %3;" ::"r"(to),
          "l"(in), "r"(signal), "h"(uint16_t(4))
          : "memory");
    }
    if (what == 9) {
      asm volatile(
          "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], 1, "
          "[%1];" ::"r"(to),
          "r"(signal)
          : "memory");
    }
    if (what == 10) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], 1, [%1];" ::"r"(to + 2),
          "r"(signal)
          : "memory");
    }
  }
  cluster_sync();
}
