// SPDX-License-Identifier: Apache-2.0
// A small kernel with the synchronisation of a real one, for test_mutations.py, which breaks each
// piece of it in turn. For each job, over kTiles tiles t:
//
//   out = sum over t of 2^-(kTiles - 1 - t) A_t (scale_t B_t)^T        A: kM x 16, B: 16 x 16, bf16
//
//   warp 4        load      A_t and B_t (as floats) into rings, by bulk copies
//   warps 5, 6    scale     B_t -> scale_t B_t as bf16, through the generic proxy
//   warp 7        multiply  sm_100a: one tcgen05.mma a tile
//   warps 0..3    finish    sm_100a: halve the sums in tensor memory; in the end, store them
//                           sm_90a: one wgmma a tile, halve the sums in registers, store them
//
//   load --a_full--> multiply --a_empty--> load
//   load --b_full--> scale --b_empty--> load
//   scale --scaled_full--> multiply --scaled_empty--> scale
//   multiply --sums_full--> finish --sums_empty--> multiply           (sm_100a)
//
// Matrices lie in core matrices of 8 rows x 16 bytes, unswizzled, rows of core matrices in order.
#include <cuda_bf16.h>

#include "sync.cuh"

#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
constexpr int kM = 128;
#else
constexpr int kM = 64;
#endif
constexpr int kN = 16, kK = 16;
constexpr int kJobs = 2, kTiles = 5, kSlots = 2;
constexpr int kFinishThreads = 128, kScaleThreads = 64;

// Reads of the same ring, by slot and parity of the phase.
struct Turn {
  int slot = 0, phase = 0;
  __device__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

struct SharedStorage {
  alignas(128) __nv_bfloat16 a[kSlots][kM * kK];
  alignas(128) float b[kSlots][kN * kK];
  alignas(128) __nv_bfloat16 scaled[kSlots][kN * kK];
  alignas(128) float out[kM * kN];

  // barrier                   arrivals per phase                waited for by
  uint64_t a_full[kSlots];        // load, and bytes                multiply
  uint64_t a_empty[kSlots];       // multiply                       load
  uint64_t b_full[kSlots];        // load, and bytes                scale
  uint64_t b_empty[kSlots];       // one lane of each scale warp    load
  uint64_t scaled_full[kSlots];   // one lane of each scale warp    multiply
  uint64_t scaled_empty[kSlots];  // multiply                       scale
  uint64_t sums_full;             // multiply                       finish
  uint64_t sums_empty;            // one lane of each finish warp   multiply
  uint32_t tensor_address;
};

__device__ uint64_t descriptor(const void* p) {
  const uint64_t start = (shared_address(p) & 0x3FFFF) >> 4;
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
  constexpr uint64_t kVersion = uint64_t(1) << 46;
#else
  constexpr uint64_t kVersion = 0;
#endif
  return start | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32 | kVersion;
}

__device__ void load(SharedStorage& smem, const __nv_bfloat16* a, const float* b) {
  Turn turn;
#pragma unroll 1
  for (int i = 0; i < kJobs * kTiles; ++i, turn.advance()) {
    const int slot = turn.slot;
    mbarrier_wait(&smem.b_empty[slot], turn.phase ^ 1);
    mbarrier_expect(&smem.b_full[slot], sizeof(smem.b[slot]));
    bulk_load(smem.b[slot], b + i * kN * kK, sizeof(smem.b[slot]), &smem.b_full[slot]);
    mbarrier_wait(&smem.a_empty[slot], turn.phase ^ 1);
    mbarrier_expect(&smem.a_full[slot], sizeof(smem.a[slot]));
    bulk_load(smem.a[slot], a + i * kM * kK, sizeof(smem.a[slot]), &smem.a_full[slot]);
  }
}

__device__ void scale(SharedStorage& smem, const float* factors, int thread) {
  Turn turn;
#pragma unroll 1
  for (int i = 0; i < kJobs * kTiles; ++i, turn.advance()) {
    const int slot = turn.slot;
    const float factor = factors[i];
    mbarrier_wait(&smem.b_full[slot], turn.phase);
    const float4 value = reinterpret_cast<const float4*>(smem.b[slot])[thread];
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(&smem.b_empty[slot]);
    mbarrier_wait(&smem.scaled_empty[slot], turn.phase ^ 1);
    auto* to = reinterpret_cast<__nv_bfloat162*>(smem.scaled[slot]) + 2 * thread;
    to[0] = __floats2bfloat162_rn(value.x * factor, value.y * factor);
    to[1] = __floats2bfloat162_rn(value.z * factor, value.w * factor);
    fence_proxy_async();
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(&smem.scaled_full[slot]);
  }
}

// Stores the sums of a job that the threads of finish hold: row `row`, from column `column` on.
template <int kColumns, class Sums>
__device__ void stage(SharedStorage& smem, const Sums& sums, int row, int column) {
  for (int n = 0; n < kColumns; ++n) smem.out[row * kN + column + n] = sums(n);
}
__device__ void wait_for_staging(int thread) {
  if (thread == 0) bulk_wait_read();
  asm volatile("bar.sync 1, 128;" ::: "memory");
}
__device__ void store_staged(SharedStorage& smem, float* out, int thread) {
  fence_proxy_async();
  asm volatile("bar.sync 2, 128;" ::: "memory");
  if (thread == 0) bulk_store(out, smem.out, sizeof(smem.out));
}

#if defined(__CUDA_ARCH_FEAT_SM100_ALL)

constexpr uint32_t kColumns = 32;
// f32 sums of bf16 products
constexpr uint32_t kInstruction =
    1 << 4 | 1 << 7 | 1 << 10 | uint32_t(kN / 8) << 17 | uint32_t(kM / 16) << 24;

__device__ void multiply(SharedStorage& smem, uint32_t sums) {
  Turn turn;
#pragma unroll 1
  for (int i = 0; i < kJobs * kTiles; ++i, turn.advance()) {
    const int slot = turn.slot;
    mbarrier_wait(&smem.a_full[slot], turn.phase);
    mbarrier_wait(&smem.scaled_full[slot], turn.phase);
    mbarrier_wait(&smem.sums_empty, (i & 1) ^ 1);
    fence_after();
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, accumulate;\n"
        "}" ::"r"(sums),
        "l"(descriptor(smem.a[slot])), "l"(descriptor(smem.scaled[slot])), "r"(kInstruction),
        "r"(i % kTiles)
        : "memory");
    tensor_commit(&smem.a_empty[slot]);
    tensor_commit(&smem.scaled_empty[slot]);
    tensor_commit(&smem.sums_full);
  }
}

__device__ void finish(SharedStorage& smem, uint32_t sums, float* out, int thread) {
#pragma unroll 1
  for (int i = 0; i < kJobs * kTiles; ++i) {
    mbarrier_wait(&smem.sums_full, i & 1);
    fence_after();
    float r[kN];
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15}, [%16];"
        : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]),
          "=f"(r[7]), "=f"(r[8]), "=f"(r[9]), "=f"(r[10]), "=f"(r[11]), "=f"(r[12]), "=f"(r[13]),
          "=f"(r[14]), "=f"(r[15])
        : "r"(sums)
        : "memory");
    wait_load();
    const bool last = i % kTiles == kTiles - 1;
    if (!last) {
      for (float& each : r) each *= 0.5f;
      asm volatile(
          "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
          "%11, %12, %13, %14, %15, %16};" ::"r"(sums),
          "f"(r[0]), "f"(r[1]), "f"(r[2]), "f"(r[3]), "f"(r[4]), "f"(r[5]), "f"(r[6]), "f"(r[7]),
          "f"(r[8]), "f"(r[9]), "f"(r[10]), "f"(r[11]), "f"(r[12]), "f"(r[13]), "f"(r[14]),
          "f"(r[15])
          : "memory");
      wait_store();
    }
    fence_before();
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(&smem.sums_empty);
    if (!last) continue;
    wait_for_staging(thread);
    stage<kN>(smem, [&](int n) { return r[n]; }, thread, 0);
    store_staged(smem, out + i / kTiles * kM * kN, thread);
  }
  if (thread == 0) bulk_wait();
}

#else

__device__ void finish(SharedStorage& smem, float* out, int thread) {
  Turn turn;
  float d[8];
#pragma unroll 1
  for (int i = 0; i < kJobs * kTiles; ++i, turn.advance()) {
    const int slot = turn.slot;
    if (i % kTiles == 0) {
      for (float& each : d) each = 0.0f;
    }
    for (float& each : d) each *= 0.5f;
    // The compiler may not move that behind the fence.
    for (float& each : d) asm volatile("" : "+f"(each));
    mbarrier_wait(&smem.a_full[slot], turn.phase);
    mbarrier_wait(&smem.scaled_full[slot], turn.phase);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(descriptor(smem.a[slot])), "l"(descriptor(smem.scaled[slot])));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (float& each : d) asm volatile("" : "+f"(each));
    if (thread == 0) mbarrier_arrive(&smem.a_empty[slot]);
    if (thread == 0) mbarrier_arrive(&smem.scaled_empty[slot]);
    if (i % kTiles != kTiles - 1) continue;
    wait_for_staging(thread);
    const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    for (int part = 0; part < 4; ++part) {
      stage<2>(
          smem, [&](int n) { return d[part * 2 + n]; }, row + part % 2 * 8, column + part / 2 * 8);
    }
    store_staged(smem, out + i / kTiles * kM * kN, thread);
  }
  if (thread == 0) bulk_wait();
}

#endif

extern "C" __global__ void pipeline(const __nv_bfloat16* a, const float* b, const float* factors,
                                    float* out) {
  __shared__ SharedStorage smem;
  const int warp = warp_index();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      mbarrier_init(&smem.a_full[slot], 1);
      mbarrier_init(&smem.a_empty[slot], 1);
      mbarrier_init(&smem.b_full[slot], 1);
      mbarrier_init(&smem.b_empty[slot], kScaleThreads / 32);
      mbarrier_init(&smem.scaled_full[slot], kScaleThreads / 32);
      mbarrier_init(&smem.scaled_empty[slot], 1);
    }
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
    mbarrier_init(&smem.sums_full, 1);
    mbarrier_init(&smem.sums_empty, kFinishThreads / 32);
#endif
    fence_mbarrier_init();
  }
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
  if (warp == 7) tensor_alloc(&smem.tensor_address, kColumns);
#endif
  __syncthreads();

  if (warp == 4) {
    if (threadIdx.x % 32 == 0) load(smem, a, b);
  } else if (warp == 5 || warp == 6) {
    scale(smem, factors, threadIdx.x - 5 * 32);
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
  } else if (warp == 7) {
    if (threadIdx.x % 32 == 0) multiply(smem, smem.tensor_address);
    __syncwarp();
  } else {
    finish(smem, smem.tensor_address, out, threadIdx.x);
  }
  __syncthreads();
  if (warp == 7) tensor_free(smem.tensor_address, kColumns);
#else
  } else if (warp < 4) {
    finish(smem, out, threadIdx.x);
  }
#endif
}
