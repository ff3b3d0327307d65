// SPDX-License-Identifier: Apache-2.0
// Kernels of test_tensor_copy.py.
#include "copies.cuh"

// What no load may leave behind where it does not write.
constexpr uint8_t kBefore = 0xEE;

__device__ uint8_t* aligned_buffer() {
  extern __shared__ uint8_t dynamic[];
  const uint32_t address = shared_address(dynamic);
  return dynamic + (1024 - address % 1024) % 1024;
}

__device__ void fill(uint8_t* data, int bytes) {
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) data[i] = kBefore;
  fence_async();
}

__device__ void copy_out(uint8_t* out, const uint8_t* data, int bytes) {
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = data[i];
}

struct Coordinates {
  int c[5];
};

template <int kRank>
__device__ void load_tile(uint32_t to, const CUtensorMap* map, Coordinates at, uint32_t signal) {
#define LOAD(rank, list, ...)                                                                \
  asm volatile("cp.async.bulk.tensor." rank                                                  \
               ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" list \
               "}], [%2];" ::"r"(to),                                                        \
               "l"(map), "r"(signal), __VA_ARGS__                                            \
               : "memory")
  if (kRank == 1) LOAD("1d", "%3", "r"(at.c[0]));
  if (kRank == 2) LOAD("2d", "%3, %4", "r"(at.c[0]), "r"(at.c[1]));
  if (kRank == 3) LOAD("3d", "%3, %4, %5", "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2]));
  if (kRank == 4) {
    LOAD("4d", "%3, %4, %5, %6", "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2]), "r"(at.c[3]));
  }
  if (kRank == 5) {
    LOAD("5d", "%3, %4, %5, %6, %7", "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2]), "r"(at.c[3]),
         "r"(at.c[4]));
  }
}

// Loads a box of `bytes` and writes out `all` bytes of shared memory from where it lies, `offset`
// behind a multiple of 1024.
template <int kRank>
__device__ void load(const CUtensorMap* map, Coordinates at, uint32_t bytes, uint8_t* out, int all,
                     int offset) {
  __shared__ uint64_t barrier;
  uint8_t* data = aligned_buffer() + offset;
  fill(data, all);
  if (threadIdx.x == 0) start(&barrier, bytes);
  __syncthreads();
  if (threadIdx.x == 0) {
    load_tile<kRank>(shared_address(data), map, at, shared_address(&barrier));
  }
  wait(&barrier, 0);
  copy_out(out, data, all);
}

#define LOAD_KERNEL(rank)                                                                     \
  KERNEL load_##rank(const __grid_constant__ CUtensorMap map, Coordinates at, uint32_t bytes, \
                     uint8_t* out, int all, int offset) {                                     \
    load<rank>(&map, at, bytes, out, all, offset);                                            \
  }
LOAD_KERNEL(1)
LOAD_KERNEL(2)
LOAD_KERNEL(3)
LOAD_KERNEL(4)
LOAD_KERNEL(5)

// The map lies in global memory.
KERNEL load_by_pointer(const CUtensorMap* map, Coordinates at, uint32_t bytes, uint8_t* out,
                       int all) {
  load<2>(map, at, bytes, out, all, 0);
}

// Stores a box whose byte i in shared memory is in[i].
#define STORE_KERNEL(name, opcode)                                                        \
  KERNEL name(const __grid_constant__ CUtensorMap map, Coordinates at, const uint8_t* in, \
              int bytes) {                                                                \
    uint8_t* data = aligned_buffer();                                                     \
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) data[i] = in[i];                \
    fence_async();                                                                        \
    __syncthreads();                                                                      \
    if (threadIdx.x == 0) {                                                               \
      asm volatile(opcode                                                                 \
                   " [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;\n"                \
                   "cp.async.bulk.wait_group 0;" ::"l"(&map),                             \
                   "r"(at.c[0]), "r"(at.c[1]), "r"(shared_address(data))                  \
                   : "memory");                                                           \
    }                                                                                     \
  }
STORE_KERNEL(store, "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group")
STORE_KERNEL(add, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group")
STORE_KERNEL(smallest, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.min.bulk_group")
STORE_KERNEL(exclusive_or, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.xor.bulk_group")

#if __CUDA_ARCH__ >= 1000

KERNEL gather4(const __grid_constant__ CUtensorMap map, Coordinates at, uint32_t bytes,
               uint8_t* out, int all) {
  __shared__ uint64_t barrier;
  uint8_t* data = aligned_buffer();
  fill(data, all);
  if (threadIdx.x == 0) start(&barrier, bytes);
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(data)),
        "l"(&map), "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2]), "r"(at.c[3]), "r"(at.c[4]),
        "r"(shared_address(&barrier))
        : "memory");
  }
  wait(&barrier, 0);
  copy_out(out, data, all);
}

KERNEL scatter4(const __grid_constant__ CUtensorMap map, Coordinates at, const uint8_t* in,
                int bytes) {
  uint8_t* data = aligned_buffer();
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) data[i] = in[i];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%0, {%1, %2, %3, "
        "%4, %5}], [%6];\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(&map),
        "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2]), "r"(at.c[3]), "r"(at.c[4]),
        "r"(shared_address(data))
        : "memory");
  }
}

// Block `sender` loads one box into each block of the mask. With kPair, the even block of each pair
// hears of both copies.
template <bool kPair>
__device__ void multicast(const CUtensorMap* map, uint32_t bytes, uint32_t mask, uint32_t sender,
                          uint8_t* out) {
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank();
  uint8_t* data = aligned_buffer();
  fill(data, bytes);
  uint32_t expected = mask >> rank & 1 ? bytes : 0;
  if (kPair) expected = rank % 2 == 0 ? bytes * __popc(mask >> rank & 3) : 0;
  if (threadIdx.x == 0) start(&barrier, expected);
  cluster_sync();
  if (rank == sender && threadIdx.x == 0) {
    const uint32_t to = shared_address(data);
    const uint32_t signal = shared_address(&barrier);
    if (kPair) {
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
          "multicast::cluster.cta_group::2 [%0], [%1, {0, 0}], [%2], %3;" ::"r"(to),
          "l"(map), "r"(signal & 0xFEFFFFFF), "h"(uint16_t(mask))
          : "memory");
    } else {
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
          "multicast::cluster.cta_group::1 [%0], [%1, {0, 0}], [%2], %3;" ::"r"(to),
          "l"(map), "r"(signal), "h"(uint16_t(mask))
          : "memory");
    }
  }
  wait(&barrier, 0);
  cluster_sync();
  copy_out(out + rank * bytes, data, bytes);
}
KERNEL multicast_each(const __grid_constant__ CUtensorMap map, uint32_t bytes, uint32_t mask,
                      uint32_t sender, uint8_t* out) {
  multicast<false>(&map, bytes, mask, sender, out);
}
KERNEL multicast_pair(const __grid_constant__ CUtensorMap map, uint32_t bytes, uint32_t mask,
                      uint32_t sender, uint8_t* out) {
  multicast<true>(&map, bytes, mask, sender, out);
}

// Both blocks of a pair load their own box; the even one waits for both and tells the odd one.
KERNEL pair(const __grid_constant__ CUtensorMap map, uint32_t bytes, uint8_t* out) {
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank();
  uint8_t* data = aligned_buffer();
  fill(data, bytes);
  if (threadIdx.x == 0) start(&barrier, rank == 0 ? 2 * bytes : 0);
  cluster_sync();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {0, %2}], [%3];" ::"r"(shared_address(data)),
        "l"(&map), "r"(rank), "r"(shared_address(&barrier) & 0xFEFFFFFF)
        : "memory");
  }
  wait(&barrier, 0);
  cluster_sync();
  copy_out(out + rank * bytes, data, bytes);
}

#endif  // __CUDA_ARCH__ >= 1000

KERNEL prefetch(const __grid_constant__ CUtensorMap map) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {0, 0}];" ::"l"(&map)
               : "memory");
}

// The signal goes to the peer without .cta_group::2.
KERNEL pair_without_group(const __grid_constant__ CUtensorMap map, uint32_t bytes) {
  __shared__ uint64_t barrier;
  uint8_t* data = aligned_buffer();
  if (threadIdx.x == 0) start(&barrier, bytes);
  cluster_sync();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{0, "
        "0}], [%2];" ::"r"(shared_address(data)),
        "l"(&map), "r"(in_block(shared_address(&barrier), block_rank() ^ 1))
        : "memory");
  }
  cluster_sync();
}
