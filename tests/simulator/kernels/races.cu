// SPDX-License-Identifier: Apache-2.0
// Micro-kernels for test_checker.py. Each is right with kWithout = 0; with kWithout = n it lacks
// the synchronisation that is marked with n. The test instantiates them.
#include "sync.cuh"

// --- threads of a block; all kernels with 2 warps unless noted

template <int kWithout>
__global__ void exchange(float* out) {
  __shared__ float data[64];
  data[threadIdx.x] = threadIdx.x;
  if (kWithout != 1) __syncthreads();
  const float value = data[63 - threadIdx.x];
  if (kWithout != 2) __syncthreads();
  data[threadIdx.x] = value;
  __syncthreads();
  out[threadIdx.x] = data[63 - threadIdx.x];
}

// Neighbouring bytes of each word belong to different warps.
template <int kWithout>
__global__ void bytes(uint8_t* out) {
  __shared__ uint8_t data[64];
  const int mine = threadIdx.x % 32 * 2 + warp_index();
  data[mine] = uint8_t(mine);
  if (kWithout != 1) __syncthreads();
  out[mine] = data[mine ^ 1];
}

// Eight warps read the same words, then they are overwritten.
template <int kWithout>
__global__ void many_readers(float* out) {
  __shared__ float data[32];
  if (warp_index() == 0) data[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = data[threadIdx.x % 32];
  if (kWithout != 1) __syncthreads();
  if (warp_index() == 3) data[threadIdx.x % 32] = 2.0f;
  __syncthreads();
  out[threadIdx.x] += data[threadIdx.x % 32];
}

template <int kWithout>
__global__ void named_barrier(float* out) {
  __shared__ float data[32];
  if (warp_index() == 0) {
    data[threadIdx.x] = 1.0f;
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    asm volatile("bar.sync 2, 64;" ::: "memory");
    data[threadIdx.x] = 2.0f;
  } else {
    if (kWithout != 1) asm volatile("bar.sync 1, 64;" ::: "memory");
    if (kWithout == 2) asm volatile("bar.arrive 2, 64;" ::: "memory");
    out[threadIdx.x % 32] = data[threadIdx.x % 32];
    if (kWithout != 2) asm volatile("bar.arrive 2, 64;" ::: "memory");
  }
}

template <int kWithout>
__global__ void handshake(float* out) {
  __shared__ float data[32];
  __shared__ uint64_t ready;
  if (threadIdx.x == 0) mbarrier_init(&ready, 1);
  if (kWithout != 2) __syncthreads();
  if (warp_index() == 0) {
    data[threadIdx.x] = 1.0f;
    __syncwarp();
    if (threadIdx.x == 0) mbarrier_arrive(&ready);
  } else {
    if (kWithout != 1) mbarrier_wait(&ready, 0);
    out[threadIdx.x % 32] = data[threadIdx.x % 32];
  }
}

// Atomics of several warps may meet; a plain load may not.
template <int kWithout>
__global__ void shared_counter(int* out) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  if (kWithout != 1) __syncthreads();
  atomicAdd(&count, 1);
  if (kWithout != 2) __syncthreads();
  out[threadIdx.x] = count;
}

template <int kWithout>
__global__ void shared_flag(float* out) {
  __shared__ float data[32];
  __shared__ int flag;
  if (threadIdx.x == 0) *(volatile int*)&flag = 0;
  __syncthreads();
  if (warp_index() == 0) {
    data[threadIdx.x] = 1.0f;
    if (kWithout != 1) __threadfence_block();
    __syncwarp();
    if (threadIdx.x == 0) *(volatile int*)&flag = 1;
  } else {
    while (*(volatile int*)&flag == 0) {
    }
    if (kWithout != 2) __threadfence_block();
    out[threadIdx.x % 32] = data[threadIdx.x % 32];
  }
}

// --- copies

template <int kWithout>
__global__ void load(float* out, const float* in) {
  __shared__ alignas(16) float data[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    if (kWithout != 2) fence_mbarrier_init();
  }
  if (kWithout != 3) __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect(&full, sizeof(data));
    bulk_load(data, in, sizeof(data), &full);
  }
  if (kWithout != 1) mbarrier_wait(&full, 0);
  out[threadIdx.x] = data[threadIdx.x];
}

// A copy overwrites what threads have written.
template <int kWithout>
__global__ void load_over(float* out, const float* in) {
  __shared__ alignas(16) float data[64];
  __shared__ uint64_t full;
  data[threadIdx.x] = 1.0f;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    fence_mbarrier_init();
  }
  if (kWithout != 1) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect(&full, sizeof(data));
    bulk_load(data, in, sizeof(data), &full);
  }
  mbarrier_wait(&full, 0);
  out[threadIdx.x] = data[threadIdx.x];
}

template <int kWithout>
__global__ void store(float* out) {
  __shared__ alignas(16) float data[64];
  data[threadIdx.x] = threadIdx.x;
  if (kWithout != 1 && kWithout != 5) fence_proxy_async();
  if (kWithout != 2) __syncthreads();
  if (threadIdx.x == 0) {
    if (kWithout == 5) fence_proxy_async();  // by the issuer, behind the barrier: right, too
    bulk_store(out, data, sizeof(data));
    if (kWithout != 3) bulk_wait_read();
  }
  if (kWithout == 3) return;
  if (kWithout != 4) __syncthreads();
  data[threadIdx.x] = 0.0f;
}

template <int kWithout>
__global__ void ring(float* out, const float* in) {
  constexpr int kSlots = 2, kTiles = 6, kTile = 32;
  __shared__ alignas(16) float tile[kSlots][kTile];
  __shared__ uint64_t full[kSlots], empty[kSlots];
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      mbarrier_init(&full[slot], 1);
      mbarrier_init(&empty[slot], 1);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp_index() == 0) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < kTiles; ++i) {
      const int slot = i % kSlots;
      if (kWithout != 1 && i >= kSlots) mbarrier_wait(&empty[slot], (i / kSlots + 1) % 2);
      mbarrier_expect(&full[slot], sizeof(tile[slot]));
      bulk_load(tile[slot], in + i * kTile, sizeof(tile[slot]), &full[slot]);
    }
  } else {
    const int lane = threadIdx.x % 32;
    float sum = 0.0f;
    for (int i = 0; i < kTiles; ++i) {
      const int slot = i % kSlots;
      if (kWithout != 2) mbarrier_wait(&full[slot], i / kSlots % 2);
      if (kWithout == 3 && lane == 0) mbarrier_arrive(&empty[slot]);
      sum += tile[slot][lane];
      __syncwarp();
      if (kWithout != 3 && lane == 0) mbarrier_arrive(&empty[slot]);
    }
    out[lane] = sum;
  }
}

template <int kWithout>
__global__ void group_copy(float* out, const float* in) {
  __shared__ alignas(16) float data[256];
  cp_async(&data[threadIdx.x * 4], in + threadIdx.x * 4);
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (kWithout != 1) asm volatile("cp.async.wait_group 0;" ::: "memory");
  if (kWithout != 2) __syncthreads();
  for (int i = 0; i < 4; ++i) out[i * 64 + threadIdx.x] = data[255 - i * 64 - threadIdx.x];
}

template <int kWithout>
__global__ void mbarrier_copy(float* out, const float* in) {
  __shared__ alignas(16) float data[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) mbarrier_init(&full, 64);
  __syncthreads();
  cp_async(&data[threadIdx.x * 4], in + threadIdx.x * 4);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full))
               : "memory");
  if (kWithout != 1) mbarrier_wait(&full, 0);
  for (int i = 0; i < 4; ++i) out[i * 64 + threadIdx.x] = data[255 - i * 64 - threadIdx.x];
}

// cp.async writes through the generic proxy, the bulk store reads through the async proxy.
template <int kWithout>
__global__ void copy_then_store(float* out, const float* in) {
  __shared__ alignas(16) float data[256];
  cp_async(&data[threadIdx.x * 4], in + threadIdx.x * 4);
  asm volatile("cp.async.wait_all;" ::: "memory");
  if (kWithout != 1) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, data, sizeof(data));
    bulk_wait_read();
  }
}

// --- clusters of 2 blocks

template <int kWithout>
__global__ void read_remote(float* out) {
  __shared__ float data[64];
  const uint32_t rank = block_rank();
  data[threadIdx.x] = rank * 64 + threadIdx.x;
  if (kWithout == 3) {
    cluster_arrive_relaxed();
  } else {
    cluster_arrive();
  }
  if (kWithout != 1) cluster_wait();
  const uint32_t address = shared_address(&data[63 - threadIdx.x]);
  out[rank * 64 + threadIdx.x] = load_remote(in_block(address, rank ^ 1));
  if (kWithout == 1) cluster_wait();
  if (kWithout != 2) {
    cluster_arrive();
    cluster_wait();
  }
}

// Block 1 tells block 0 through an mbarrier that it may read.
template <int kWithout>
__global__ void arrive_remote(float* out) {
  __shared__ float data[64];
  __shared__ uint64_t ready;
  const uint32_t rank = block_rank();
  if (threadIdx.x == 0) {
    mbarrier_init(&ready, 64);
    fence_mbarrier_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  const uint32_t peer = in_block(shared_address(&ready), rank ^ 1);
  data[threadIdx.x] = rank;
  if (rank == 1) {
    if (kWithout == 2) {
      asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer)
                   : "memory");
    } else {
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer)
                   : "memory");
    }
  } else {
    if (kWithout != 1) mbarrier_wait(&ready, 0);
    const uint32_t address = shared_address(&data[threadIdx.x]);
    out[threadIdx.x] = load_remote(in_block(address, 1));
  }
  cluster_arrive();
  cluster_wait();
}

// --- blocks of a grid

// Block 0 writes, block 1 reads.
template <int kWithout>
__global__ void global_flag(float* data, int* flag, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    if (kWithout != 1) __syncthreads();
    if (threadIdx.x == 0) {
      if (kWithout != 2) __threadfence();
      atomicExch(flag, 1);
    }
  } else {
    if (threadIdx.x == 0) {
      while (atomicAdd(flag, 0) == 0) {
      }
      if (kWithout != 3) __threadfence();
    }
    if (kWithout != 4) __syncthreads();
    out[threadIdx.x] = data[63 - threadIdx.x];
  }
}

// The same with acquire and release, and the data stored by a bulk copy.
template <int kWithout>
__global__ void global_store(float* data, int* flag, float* out) {
  __shared__ alignas(16) float staged[64];
  if (blockIdx.x == 0) {
    staged[threadIdx.x] = threadIdx.x;
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(data, staged, sizeof(staged));
      if (kWithout == 1) {
        bulk_wait_read();
      } else {
        bulk_wait();
      }
      if (kWithout == 2) {
        asm volatile("st.relaxed.gpu.global.s32 [%0], 1;" ::"l"(flag) : "memory");
      } else {
        asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flag) : "memory");
      }
    }
  } else {
    if (threadIdx.x == 0) {
      int seen = 0;
      while (seen == 0) {
        if (kWithout == 3) {
          asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        } else {
          asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        }
      }
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
  }
}

// The last block to arrive adds up what all have written.
template <int kWithout>
__global__ void last_block(float* partial, int* count, float* out) {
  __shared__ int is_last;
  partial[blockIdx.x * 64 + threadIdx.x] = blockIdx.x + 1.0f;
  if (kWithout != 1) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(count, 1) == int(gridDim.x) - 1;
  __syncthreads();
  if (!is_last) return;
  if (kWithout != 2) __threadfence();
  float sum = 0.0f;
  for (int block = 0; block < int(gridDim.x); ++block) {
    sum += reinterpret_cast<volatile float*>(partial)[block * 64 + threadIdx.x];
    sum += partial[block * 64 + threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

// --- launches

template <int kWithout>
__global__ void first_grid(float* data) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  data[threadIdx.x] = threadIdx.x;
}

template <int kWithout>
__global__ void second_grid(float* out, const float* data, const float* other) {
  float value = other[threadIdx.x];
  if (threadIdx.x == 0 && kWithout != 1) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (kWithout != 2) __syncthreads();
  out[threadIdx.x] = value + data[threadIdx.x];
}

// --- lints

// Two warpgroups, one of which gives registers to the other.
template <int kRegisters>
__global__ void registers() {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// --- wgmma; one warpgroup

template <int kWithout>
__global__ void multiply(float* out) {
  // 64 x 16 and 8 x 16 elements of 16 bits in core matrices of 8 rows x 16 bytes, no swizzle.
  __shared__ alignas(128) uint32_t a[64 * 8];
  __shared__ alignas(128) uint32_t b[8 * 8];
  const auto descriptor = [](const void* p) {
    const uint64_t start = (shared_address(p) & 0x3FFFF) >> 4;
    return start | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
  };
  for (int i = threadIdx.x; i < 64 * 8; i += 128) a[i] = 0x3F803F80;  // 1.0 twice
  if (threadIdx.x < 64) b[threadIdx.x] = 0x3F803F80;
  if (kWithout != 1) fence_proxy_async();
  if (kWithout != 2) __syncthreads();
  float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const auto multiply_accumulate = [&] {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, "
        "0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(descriptor(a)), "l"(descriptor(b)));
  };
  // The compiler may not initialise registers behind the fence.
  for (float& each : d) asm volatile("" : "+f"(each));
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  multiply_accumulate();
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (float& each : d) asm volatile("add.f32 %0, %0, %0;" : "+f"(each));
  if (kWithout != 3) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  multiply_accumulate();
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (kWithout != 4) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if (kWithout != 5) __syncthreads();
  a[threadIdx.x] = 0;
  if (kWithout == 4) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}

#elif defined(__CUDA_ARCH_FEAT_SM100_ALL)

// --- tcgen05; four warps

namespace {

// 128 x 16 and 8 x 16 elements of 16 bits in core matrices of 8 rows x 16 bytes, no swizzle.
struct Operands {
  alignas(128) uint32_t a[128 * 8];
  alignas(128) uint32_t b[8 * 8];
};
constexpr uint32_t kColumns = 32;
constexpr uint32_t kOperandColumn = 16;  // of A in tensor memory
// f32 sums of bf16 products, M = 128, N = 8
constexpr uint32_t kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | (8 / 8) << 17 | (128 / 16) << 24;

__device__ uint64_t descriptor(const void* p) {
  const uint64_t start = (shared_address(p) & 0x3FFFF) >> 4;
  return start | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32 | uint64_t(1) << 46;
}

// D = A B, or D += A B, with A in shared memory, by one thread.
__device__ void tensor_multiply(uint32_t d, const Operands& operands, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, accumulate;\n"
      "}" ::"r"(d),
      "l"(descriptor(operands.a)), "l"(descriptor(operands.b)), "r"(kInstruction), "r"(accumulate)
      : "memory");
}
// D = A B with A in tensor memory.
__device__ void tensor_multiply_from(uint32_t a, uint32_t d, const Operands& operands) {
  asm volatile("tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, 0;" ::"r"(d), "r"(a),
               "l"(descriptor(operands.b)), "r"(kInstruction)
               : "memory");
}
__device__ void tensor_load(uint32_t (&r)[8], uint32_t address) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
                 "=r"(r[7])
               : "r"(address)
               : "memory");
}
__device__ void tensor_store(uint32_t address, uint32_t value) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %1, %1, %1, %1, %1, %1, %1};" ::"r"(
          address),
      "r"(value)
      : "memory");
}
__device__ void write_out(uint32_t* out, const uint32_t (&r)[8]) {
  for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = r[i];
}

// What all of these kernels begin with: memory, one mbarrier, operands of ones.
__device__ void begin(uint32_t* address, uint64_t* done, Operands& operands) {
  if (warp_index() == 0) tensor_alloc(address, kColumns);
  if (threadIdx.x == 0) {
    mbarrier_init(done, 1);
    fence_mbarrier_init();
  }
  for (int i = threadIdx.x; i < 128 * 8; i += 128) operands.a[i] = 0x3F803F80;
  if (threadIdx.x < 64) operands.b[threadIdx.x] = 0x3F803F80;
}
__device__ void end(uint32_t address) {
  fence_before();
  __syncthreads();
  if (warp_index() == 0) tensor_free(address, kColumns);
}

}  // namespace

template <int kWithout>
__global__ void tensor_address(uint32_t* out) {
  __shared__ uint32_t address;
  if (warp_index() == 0) tensor_alloc(&address, kColumns);
  if (kWithout != 1) __syncthreads();
  out[threadIdx.x] = address;
  __syncthreads();
  if (warp_index() == 0) tensor_free(address, kColumns);
}

template <int kColumnsOfBlock>
__global__ void tensor_columns() {
  __shared__ uint32_t address;
  tensor_alloc(&address, kColumnsOfBlock);
  __syncthreads();
  tensor_free(address, kColumnsOfBlock);
}

// Shared memory -> D -> registers.
template <int kWithout>
__global__ void tensor_product(uint32_t* out) {
  __shared__ Operands operands;
  __shared__ uint32_t address;
  __shared__ uint64_t done;
  begin(&address, &done, operands);
  if (kWithout != 1) fence_proxy_async();
  __syncthreads();
  const uint32_t d = address;
  tensor_store(d, 0);
  wait_store();
  fence_before();
  if (kWithout != 2) __syncthreads();
  fence_after();
  if (threadIdx.x == 0) {
    tensor_multiply(d, operands, 1);
    tensor_commit(&done);
  }
  __syncwarp();
  if (kWithout != 3) mbarrier_wait(&done, 0);
  if (kWithout != 4) fence_after();
  uint32_t r[8];
  tensor_load(r, d);
  if (kWithout == 5) operands.a[threadIdx.x] = r[0];
  wait_load();
  write_out(out, r);
  if (kWithout == 3) mbarrier_wait(&done, 0);
  end(d);
}

// Operands are overwritten when the multiplication has read them.
template <int kWithout>
__global__ void tensor_reuse(uint32_t* out) {
  __shared__ Operands operands;
  __shared__ uint32_t address;
  __shared__ uint64_t done;
  begin(&address, &done, operands);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    tensor_multiply(address, operands, 0);
    tensor_commit(&done);
  }
  __syncwarp();
  if (kWithout != 1) mbarrier_wait(&done, 0);
  operands.a[threadIdx.x] = 0;
  if (kWithout == 1) mbarrier_wait(&done, 0);
  out[threadIdx.x] = 0;
  end(address);
}

// Registers -> A in tensor memory -> D.
template <int kWithout>
__global__ void tensor_operand(uint32_t* out) {
  __shared__ Operands operands;
  __shared__ uint32_t address;
  __shared__ uint64_t done;
  begin(&address, &done, operands);
  fence_proxy_async();
  __syncthreads();
  const uint32_t d = address, a = address + kOperandColumn;
  tensor_store(a, 0x3F803F80);
  if (kWithout != 1) wait_store();
  if (kWithout != 2) fence_before();
  if (kWithout != 3) __syncthreads();
  if (kWithout != 4) fence_after();
  if (threadIdx.x == 0) {
    tensor_multiply_from(a, d, operands);
    tensor_commit(&done);
  }
  __syncwarp();
  mbarrier_wait(&done, 0);
  wait_store();
  fence_after();
  uint32_t r[8];
  tensor_load(r, d);
  wait_load();
  write_out(out, r);
  end(d);
}

// D -> registers, then D is overwritten by the next multiplication.
template <int kWithout>
__global__ void tensor_overwrite(uint32_t* out) {
  __shared__ Operands operands;
  __shared__ uint32_t address;
  __shared__ uint64_t done;
  begin(&address, &done, operands);
  fence_proxy_async();
  __syncthreads();
  const uint32_t d = address;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      tensor_multiply(d, operands, round);
      tensor_commit(&done);
    }
    __syncwarp();
    mbarrier_wait(&done, round);
    fence_after();
    uint32_t r[8];
    tensor_load(r, d);
    if (kWithout != 1) wait_load();
    if (kWithout != 2) fence_before();
    if (kWithout != 3) __syncthreads();
    if (kWithout != 4) fence_after();
    if (kWithout == 1 && round == 1) wait_load();
    if (round == 1) write_out(out, r);
  }
  end(d);
}

// Two sums of 64 rows share columns: one in the lower, one in the upper 16 lanes of each warp.
// Loads of one need not be over before the other is written.
template <int kWithout>
__global__ void tensor_halves(uint32_t* out) {
  constexpr uint32_t kInstructionM64 = kInstruction - (64 / 16 << 24);
  __shared__ Operands operands;
  __shared__ uint32_t address;
  __shared__ uint64_t done;
  begin(&address, &done, operands);
  fence_proxy_async();
  __syncthreads();
  const uint32_t lower = address, upper = address + (16 << 16);
  uint32_t r[4];
  asm volatile("tcgen05.ld.sync.aligned.16x64b.x4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(kWithout == 1 ? upper : lower)
               : "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, 0;" ::"r"(upper),
                 "l"(descriptor(operands.a)), "l"(descriptor(operands.b)), "r"(kInstructionM64)
                 : "memory");
    tensor_commit(&done);
  }
  __syncwarp();
  mbarrier_wait(&done, 0);
  wait_load();
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = r[i];
  end(lower);
}

// Within a warp.
template <int kWithout>
__global__ void tensor_same_warp(uint32_t* out) {
  __shared__ uint32_t address;
  if (warp_index() == 0) tensor_alloc(&address, kColumns);
  __syncthreads();
  const uint32_t d = address;
  uint32_t r[8];
  tensor_store(d, 1);
  if (kWithout != 1) wait_store();
  tensor_load(r, d);
  if (kWithout != 2) wait_load();
  tensor_store(d, 2);
  if (kWithout != 3) wait_store();
  tensor_store(d, 3);
  wait_store();
  wait_load();
  write_out(out, r);
  end(d);
}

#endif
