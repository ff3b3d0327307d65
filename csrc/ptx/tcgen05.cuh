// SPDX-License-Identifier: Apache-2.0
// tcgen05: the tensor cores of SM100 and their own memory of 128 lanes x 512 columns of 32 bits.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions
//
// An address in tensor memory has the lane in its upper half and the column in its lower. Loads and
// stores reach the 32 lanes of the warp's own quarter (warp % 4), which the address need not name.
#pragma once

#include "ptx/mbarrier.cuh"

namespace dsv4::ptx {

inline constexpr int kTensorColumns = 512;

constexpr uint32_t tensor_lane(uint32_t lane) { return lane << 16; }

// Takes all columns, and writes their address to shared memory; a warp does this. kCtas: 2 in
// kernels of which pairs of blocks multiply together.
template <int kCtas>
__device__ __forceinline__ void tensor_allocate(uint32_t* address) {
  asm volatile("tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                   shared_address(address)),
               "n"(kTensorColumns), "n"(kCtas)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(kCtas));
}

template <int kCtas>
__device__ __forceinline__ void tensor_free(uint32_t address) {
  asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(address),
               "n"(kTensorColumns), "n"(kCtas));
}

// Between what other threads have done with tensor memory and what this one will do: behind and
// before a synchronisation.
__device__ __forceinline__ void tensor_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tensor_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ __forceinline__ void tensor_wait_loads() {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void tensor_wait_stores() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

// Arrives when this thread's multiplications so far are complete.
__device__ __forceinline__ void tensor_commit(Mbarrier& barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(&barrier))
               : "memory");
}

// The same in a kernel of pairs: arrives at this barrier of both blocks.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-async-sync-operations-commit
__device__ __forceinline__ void tensor_commit_to_pair(Mbarrier& barrier) {
  constexpr uint16_t kBothBlocks = 3;
  asm volatile(
      "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
      "[%0], %1;" ::"r"(shared_address(&barrier)),
      "h"(kBothBlocks)
      : "memory");
}

// Operand types: e4m3 with 32 elements along K in an instruction, or bf16 with 16.
enum class TensorKind { kFloat8, kBFloat16 };

// Instruction descriptor: D[M][N] float = A[M][K] B[N][K], A K-major.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instruction-descriptor
constexpr uint32_t mma_shape(TensorKind kind, int m, int n, bool b_is_n_major) {
  constexpr uint32_t kFloatSums = 1u << 4;
  const uint32_t type = kind == TensorKind::kBFloat16 ? 1 : 0;
  return kFloatSums | type << 7 | type << 10 | (b_is_n_major ? 1u << 16 : 0) |
         static_cast<uint32_t>(n / 8) << 17 | static_cast<uint32_t>(m / 16) << 24;
}

// Shared-memory descriptor of an operand in 128-byte swizzled blocks of 8 rows x 128 bytes, those
// of neighbouring rows one behind another. `block_stride`: bytes from a block of 128 bytes of N to
// the next, of an operand whose rows are along K. The address may be added later, in units of 16
// bytes. https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-shared-memory-descriptor
constexpr uint64_t swizzled_operand(uint32_t block_stride) {
  constexpr uint64_t kSwizzle128 = 2ull << 61, kVersion = 1ull << 46, kEightRows = 1024;
  return kSwizzle128 | kVersion | (kEightRows >> 4) << 32 | uint64_t(block_stride >> 4) << 16;
}

// The address counts within a block's own shared memory: 18 bits.
__device__ __forceinline__ uint64_t at_address(uint64_t operand, uint32_t shared) {
  return operand | ((shared & 0x3ffff) >> 4);
}

// One thread issues a multiplication. `accumulate`: adds to D. kCtas: 2, and one thread of the even
// block of a pair issues it for both, each of which has half of the rows of A and of B, at the same
// addresses in its own memory, and the half of D that belongs to its rows of A.
template <TensorKind kKind, int kCtas = 1>
__device__ __forceinline__ void tensor_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t shape,
                                           bool accumulate) {
  if constexpr (kKind == TensorKind::kFloat8) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.u32 add, %4, 0;\n"
        "tcgen05.mma.cta_group::%5.kind::f8f6f4 [%0], %1, %2, %3, add;\n"
        "}" ::"r"(d),
        "l"(a), "l"(b), "r"(shape), "r"(uint32_t(accumulate)), "n"(kCtas)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.u32 add, %4, 0;\n"
        "tcgen05.mma.cta_group::%5.kind::f16 [%0], %1, %2, %3, add;\n"
        "}" ::"r"(d),
        "l"(a), "l"(b), "r"(shape), "r"(uint32_t(accumulate)), "n"(kCtas)
        : "memory");
  }
}

// The same with A in tensor memory.
template <TensorKind kKind, int kCtas = 1>
__device__ __forceinline__ void tensor_mma(uint32_t d, uint32_t a, uint64_t b, uint32_t shape,
                                           bool accumulate) {
  if constexpr (kKind == TensorKind::kFloat8) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.u32 add, %4, 0;\n"
        "tcgen05.mma.cta_group::%5.kind::f8f6f4 [%0], [%1], %2, %3, add;\n"
        "}" ::"r"(d),
        "r"(a), "l"(b), "r"(shape), "r"(uint32_t(accumulate)), "n"(kCtas)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.u32 add, %4, 0;\n"
        "tcgen05.mma.cta_group::%5.kind::f16 [%0], [%1], %2, %3, add;\n"
        "}" ::"r"(d),
        "r"(a), "l"(b), "r"(shape), "r"(uint32_t(accumulate)), "n"(kCtas)
        : "memory");
  }
}

#define DSV4_OUT8(v, i)                                                                       \
  "=r"(v[i]), "=r"(v[i + 1]), "=r"(v[i + 2]), "=r"(v[i + 3]), "=r"(v[i + 4]), "=r"(v[i + 5]), \
      "=r"(v[i + 6]), "=r"(v[i + 7])
#define DSV4_FLOAT_OUT8(v, i)                                                                 \
  "=f"(v[i]), "=f"(v[i + 1]), "=f"(v[i + 2]), "=f"(v[i + 3]), "=f"(v[i + 4]), "=f"(v[i + 5]), \
      "=f"(v[i + 6]), "=f"(v[i + 7])
#define DSV4_IN8(v, i)                                                                  \
  "r"(v[i]), "r"(v[i + 1]), "r"(v[i + 2]), "r"(v[i + 3]), "r"(v[i + 4]), "r"(v[i + 5]), \
      "r"(v[i + 6]), "r"(v[i + 7])

// A column of the thread's lane.
__device__ __forceinline__ float tensor_load_column(uint32_t address) {
  float value;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=f"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ void tensor_store_column(uint32_t address, float value) {
  asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(address), "f"(value)
               : "memory");
}

// kCount columns of the thread's lane: value[j] = [lane][column + j].
template <int kCount>
__device__ __forceinline__ void tensor_load(uint32_t address, uint32_t (&value)[kCount]) {
  static_assert(kCount == 16 || kCount == 32);
  if constexpr (kCount == 16) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
        : DSV4_OUT8(value, 0), DSV4_OUT8(value, 8)
        : "r"(address));
  } else {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : DSV4_OUT8(value, 0), DSV4_OUT8(value, 8), DSV4_OUT8(value, 16), DSV4_OUT8(value, 24)
        : "r"(address));
  }
}

template <int kCount>
__device__ __forceinline__ void tensor_load(uint32_t address, float (&value)[kCount]) {
  static_assert(kCount == 16 || kCount == 32);
  if constexpr (kCount == 16) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
        : DSV4_FLOAT_OUT8(value, 0), DSV4_FLOAT_OUT8(value, 8)
        : "r"(address));
  } else {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : DSV4_FLOAT_OUT8(value, 0), DSV4_FLOAT_OUT8(value, 8), DSV4_FLOAT_OUT8(value, 16),
          DSV4_FLOAT_OUT8(value, 24)
        : "r"(address));
  }
}

template <int kCount>
__device__ __forceinline__ void tensor_store(uint32_t address, const uint32_t (&value)[kCount]) {
  static_assert(kCount == 16 || kCount == 32);
  if constexpr (kCount == 16) {
    asm volatile(
        "tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15};" ::DSV4_IN8(value,
                                                                                             0),
        DSV4_IN8(value, 8), "r"(address)
        : "memory");
  } else {
    asm volatile(
        "tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31};" ::
            DSV4_IN8(value, 0),
        DSV4_IN8(value, 8), DSV4_IN8(value, 16), DSV4_IN8(value, 24), "r"(address)
        : "memory");
  }
}

// 16 lanes, from the one of the address (0 or 16 of the quarter), by 2 kCount columns: thread t has
// value[j] = [t % 16][column + j + (t / 16) kCount].
template <int kCount>
__device__ __forceinline__ void tensor_load_halves(uint32_t address, uint32_t (&value)[kCount]) {
  static_assert(kCount == 32 || kCount == 64);
  if constexpr (kCount == 32) {
    asm volatile(
        "tcgen05.ld.sync.aligned.16x32bx2.x32.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "[%32], 32;"
        : DSV4_OUT8(value, 0), DSV4_OUT8(value, 8), DSV4_OUT8(value, 16), DSV4_OUT8(value, 24)
        : "r"(address));
  } else {
    asm volatile(
        "tcgen05.ld.sync.aligned.16x32bx2.x64.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "[%64], 64;"
        : DSV4_OUT8(value, 0), DSV4_OUT8(value, 8), DSV4_OUT8(value, 16), DSV4_OUT8(value, 24),
          DSV4_OUT8(value, 32), DSV4_OUT8(value, 40), DSV4_OUT8(value, 48), DSV4_OUT8(value, 56)
        : "r"(address));
  }
}

__device__ __forceinline__ void tensor_store_halves(uint32_t address, const uint32_t (&value)[16]) {
  asm volatile(
      "tcgen05.st.sync.aligned.16x32bx2.x16.b32 [%16], 16, "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15};" ::DSV4_IN8(value,
                                                                                           0),
      DSV4_IN8(value, 8), "r"(address)
      : "memory");
}

#undef DSV4_OUT8
#undef DSV4_FLOAT_OUT8
#undef DSV4_IN8

}  // namespace dsv4::ptx
