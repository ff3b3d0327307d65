// SPDX-License-Identifier: Apache-2.0
// What the kernels that test tcgen05 begin and end with: a block of 128 threads, or a pair of them.
#include <cstdint>

#define KERNEL extern "C" __global__ void

constexpr int kLanes = 128;
constexpr int kImageBytes = 48 * 1024;  // of shared memory that operands may fill
constexpr int kColumns = 512;           // allocated

// An image of shared memory [blocks][image_bytes], and cells of tensor memory
// [blocks][lanes][columns] before and after.
struct Memory {
  const uint4* image;
  const uint32_t* in;
  uint32_t* out;
  int image_bytes, columns;  // multiples of 16 and 8
};

struct Control {
  uint64_t barrier;
  uint32_t tensor_base;
};

extern __shared__ uint4 shared[];
__device__ Control& control() { return *reinterpret_cast<Control*>(shared + kImageBytes / 16); }

__device__ uint32_t address_of(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ uint32_t block_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

template <int kGroup>
__device__ void sync_all() {
  if (kGroup == 1) {
    __syncthreads();
  } else {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  }
}

template <int kGroup>
__device__ void allocate(const uint32_t* result) {
  if (kGroup == 1) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     address_of(result)),
                 "n"(kColumns)
                 : "memory");
  } else {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     address_of(result)),
                 "n"(kColumns)
                 : "memory");
  }
}

template <int kGroup>
__device__ void free(uint32_t base) {
  if (kGroup == 1) {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(base),
                 "n"(kColumns));
  } else {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(base),
                 "n"(kColumns));
  }
}

// Cells of this thread's lane, from memory and to it.
__device__ void store_row(uint32_t base, const uint32_t* row, int columns) {
  for (int c = 0; c < columns; c += 8) {
    const uint4 a = *reinterpret_cast<const uint4*>(row + c);
    const uint4 b = *reinterpret_cast<const uint4*>(row + c + 4);
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};"  //
                 ::"r"(base + c),
                 "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w));
  }
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

__device__ void load_row(uint32_t base, uint32_t* row, int columns) {
  for (int c = 0; c < columns; c += 8) {
    uint4 a, b;
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];\n"
        "tcgen05.wait::ld.sync.aligned;"
        : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w), "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w)
        : "r"(base + c));
    *reinterpret_cast<uint4*>(row + c) = a;
    *reinterpret_cast<uint4*>(row + c + 4) = b;
  }
}

// Allocates, loads the image of shared memory and fills tensor memory. Returns its address.
template <int kGroup>
__device__ uint32_t begin(const Memory& memory) {
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(&control().barrier))
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (threadIdx.x < 32) allocate<kGroup>(&control().tensor_base);
  const int units = memory.image_bytes / 16;
  for (int i = threadIdx.x; i < units; i += blockDim.x) {
    shared[i] = memory.image[block_rank() * units + i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const uint32_t base = control().tensor_base;
  const int row = block_rank() * kLanes + threadIdx.x;
  store_row(base, memory.in + row * memory.columns, memory.columns);
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  sync_all<kGroup>();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  return base;
}

// By the thread that issued the work; all threads then wait for it.
template <int kGroup>
__device__ void commit() {
  const uint32_t barrier = address_of(&control().barrier);
  if (kGroup == 1) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(barrier),
        "h"(uint16_t(3))
        : "memory");
  }
}

__device__ void wait_for_commit() {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again_%=;\n"
      "}" ::"r"(address_of(&control().barrier))
      : "memory");
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// Returns tensor memory and frees it.
template <int kGroup>
__device__ void end(uint32_t base, const Memory& memory) {
  const int row = block_rank() * kLanes + threadIdx.x;
  load_row(base, memory.out + row * memory.columns, memory.columns);
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  sync_all<kGroup>();
  if (threadIdx.x < 32) free<kGroup>(base);
}
