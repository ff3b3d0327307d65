// Loads, stores, atomics and small asynchronous copies, for tests/simulator/test_memory.py.
#include <cstdint>

__device__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Ten ways to read the eight bytes of a thread; out[thread][way].
extern "C" __global__ void extend(const uint8_t* in, int64_t* out) {
  const uint8_t* p = in + 8 * threadIdx.x;
  int64_t* row = out + 10 * threadIdx.x;
  uint32_t r;
  uint16_t h;
  uint64_t d;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(r) : "l"(p));
  row[0] = r;
  asm volatile("ld.global.s8 %0, [%1];" : "=r"(r) : "l"(p));
  row[1] = int32_t(r);
  asm volatile("ld.global.u16 %0, [%1];" : "=r"(r) : "l"(p));
  row[2] = r;
  asm volatile("ld.global.s16 %0, [%1];" : "=r"(r) : "l"(p));
  row[3] = int32_t(r);
  asm volatile("ld.global.s8 %0, [%1];" : "=h"(h) : "l"(p));
  row[4] = h;
  asm volatile("ld.global.u32 %0, [%1];" : "=l"(d) : "l"(p));
  row[5] = int64_t(d);
  asm volatile("ld.global.s32 %0, [%1];" : "=l"(d) : "l"(p));
  row[6] = int64_t(d);
  asm volatile("ld.global.s8 %0, [%1];" : "=l"(d) : "l"(p));
  row[7] = int64_t(d);
  asm volatile("ld.global.b64 %0, [%1];" : "=l"(d) : "l"(p));
  row[8] = int64_t(d);
  asm volatile("ld.global.b8 %0, [%1+7];" : "=r"(r) : "l"(p));
  row[9] = r;
}

// Narrow stores of wide values: 8 bytes a thread.
extern "C" __global__ void truncate(const uint64_t* in, uint8_t* out) {
  uint8_t* p = out + 8 * threadIdx.x;
  const uint64_t value = in[threadIdx.x];
  asm volatile("st.global.b32 [%0], %1;" ::"l"(p), "l"(value));
  asm volatile("st.global.u16 [%0+4], %1;" ::"l"(p), "r"(uint32_t(value)));
  asm volatile("st.global.u8 [%0+6], %1;" ::"l"(p), "r"(uint32_t(value)));
  asm volatile("st.global.u8 [%0+7], %1;" ::"l"(p), "h"(uint16_t(value)));
}

// 32 bytes a thread through every vector form, from global to shared memory and back.
extern "C" __global__ void vectors(const uint8_t* in, uint8_t* out) {
  __shared__ __align__(32) uint8_t block[32 * 32];
  const uint8_t* p = in + 32 * threadIdx.x;
  uint8_t* o = out + 32 * threadIdx.x;
  const uint32_t s = shared_address(block + 32 * threadIdx.x);
  uint32_t a, b, c, d;
  uint64_t e, f;
  uint16_t g, h;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(p));
  asm volatile("st.shared.v4.b32 [%4], {%0, %1, %2, %3};" ::"r"(a), "r"(b), "r"(c), "r"(d), "r"(s));
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2+16];"
               : "=r"(a), "=r"(b)
               : "l"(p));
  asm volatile("st.shared.v2.b32 [%2+16], {%0, %1};" ::"r"(a), "r"(b), "r"(s));
  asm volatile("ld.global.v2.b16 {%0, %1}, [%2+24];" : "=h"(g), "=h"(h) : "l"(p));
  asm volatile("st.shared.v2.b16 [%2+24], {%0, %1};" ::"h"(g), "h"(h), "r"(s));
  asm volatile("ld.global.v4.u8 {%0, %1, %2, %3}, [%4+28];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(p));
  asm volatile("st.shared.v4.u8 [%4+28], {%0, %1, %2, %3};" ::"r"(a), "r"(b), "r"(c), "r"(d),
               "r"(s));
  asm volatile("ld.shared.v2.b64 {%0, %1}, [%2];" : "=l"(e), "=l"(f) : "r"(s));
  asm volatile("st.global.v2.b64 [%2], {%0, %1};" ::"l"(e), "l"(f), "l"(o));
  asm volatile(
      "{ .reg .b128 q; ld.shared.b128 q, [%0+16]; st.global.cs.b128 [%1+16], q; }" ::"r"(s),
      "l"(o));
}

#if __CUDA_ARCH__ >= 1000

// 256 bits at once, and sinks.
extern "C" __global__ void vectors_of_32_bytes(const uint8_t* in, uint8_t* out) {
  const uint8_t* p = in + 32 * threadIdx.x;
  uint8_t* o = out + 32 * threadIdx.x;
  asm volatile(
      "{ .reg .b32 a<8>; .reg .b64 b<4>;\n"
      "ld.global.v8.b32 {a0, a1, a2, a3, a4, a5, a6, a7}, [%0];\n"
      "st.global.v8.b32 [%1], {a7, a6, a5, a4, a3, a2, a1, a0};\n"
      "ld.global.v4.b64 {b0, _, b2, _}, [%0];\n"
      "st.global.v4.b64 [%1+1024], {b2, b0, b2, b0}; }" ::"l"(p),
      "l"(o));
}

#endif  // __CUDA_ARCH__ >= 1000

__constant__ uint32_t table[4] = {10, 20, 30, 40};
__device__ uint32_t counter = 7;
struct Parameters {
  uint32_t first;
  uint8_t bytes[12];
};

// Every space, named and generic.
extern "C" __global__ void spaces(uint32_t* out, __grid_constant__ const Parameters parameters) {
  __shared__ uint32_t block[32];
  uint32_t stack[8];
  const uint32_t thread = threadIdx.x;
  block[thread] = thread + 100;
  for (uint32_t k = 0; k < 8; ++k) {
    asm volatile("st.u32 [%0], %1;" ::"l"(stack + k), "r"(1000 * thread + k));
  }
  __syncwarp();
  uint32_t* row = out + 8 * thread;
  asm volatile("ld.u32 %0, [%1];" : "=r"(row[0]) : "l"(block + (thread ^ 1)));
  row[1] = table[thread % 4];
  row[2] = stack[thread % 8];
  row[3] = parameters.bytes[thread % 12];
  asm volatile("ld.u32 %0, [%1];" : "=r"(row[4]) : "l"(&parameters));
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(row[5]) : "l"(&counter));
  asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(row[6]) : "r"(shared_address(block + thread)));
  uint32_t pointed;
  asm volatile("{ .reg .b64 a; cvta.to.local.u64 a, %1; ld.local.u32 %0, [a]; }"
               : "=r"(pointed)
               : "l"(stack + 3));
  row[7] = pointed;
}

// Each lane stores and loads kWords words at its word of dynamic shared memory, to count passes.
template <int kWords>
__device__ void pattern(const uint32_t* words) {
  extern __shared__ uint32_t dynamic[];
  const uint32_t address = shared_address(dynamic + words[threadIdx.x]);
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (kWords == 1) {
    asm volatile("st.shared.u32 [%1], %0;" ::"r"(a), "r"(address));
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(a) : "r"(address));
  } else if (kWords == 2) {
    asm volatile("st.shared.v2.u32 [%2], {%0, %1};" ::"r"(a), "r"(b), "r"(address));
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address));
  } else {
    asm volatile("st.shared.v4.u32 [%4], {%0, %1, %2, %3};" ::"r"(a), "r"(b), "r"(c), "r"(d),
                 "r"(address));
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(address));
  }
}
extern "C" __global__ void pattern_1(const uint32_t* words) { pattern<1>(words); }
extern "C" __global__ void pattern_2(const uint32_t* words) { pattern<2>(words); }
extern "C" __global__ void pattern_4(const uint32_t* words) { pattern<4>(words); }

// cp.async of 4, 8 and 16 bytes, one group each, from in[thread] to out[thread], 28 bytes. `wait`:
// whether to.
extern "C" __global__ void copies(const uint8_t* in, uint8_t* out, uint32_t wait) {
  __shared__ __align__(16) uint8_t block[3][32 * 16];
  const uint8_t* p = in + 32 * threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\ncp.async.commit_group;" ::"r"(
                   shared_address(block[0] + 4 * threadIdx.x)),
               "l"(p));
  asm volatile(
      "cp.async.ca.shared::cta.global.L2::128B [%0], [%1+8], 8;\ncp.async.commit_group;" ::"r"(
          shared_address(block[1] + 8 * threadIdx.x)),
      "l"(p));
  asm volatile("cp.async.cg.shared.global [%0], [%1+16], 16;\ncp.async.commit_group;" ::"r"(
                   shared_address(block[2] + 16 * threadIdx.x)),
               "l"(p));
  uint8_t* o = out + 28 * threadIdx.x;
  if (wait) asm volatile("cp.async.wait_group 2;");
  for (int k = 0; k < 4; ++k) o[k] = block[0][4 * threadIdx.x + k];
  if (wait) asm volatile("cp.async.wait_group 1;");
  for (int k = 0; k < 8; ++k) o[4 + k] = block[1][8 * threadIdx.x + k];
  if (wait) asm volatile("cp.async.wait_all;");
  for (int k = 0; k < 16; ++k) o[12 + k] = block[2][16 * threadIdx.x + k];
}

// The source is shorter by the thread's number, or ignored by odd threads.
extern "C" __global__ void copies_of_part(const uint8_t* in, uint4* out, uint32_t ignore) {
  __shared__ uint4 block[32];
  const uint32_t to = shared_address(block + threadIdx.x);
  const uint8_t* p = in + 16 * threadIdx.x;
  if (ignore) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p; }" ::
            "r"(to),
        "l"(p), "r"(threadIdx.x % 2));
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p),
                 "r"(threadIdx.x % 17));
  }
  asm volatile("cp.async.wait_all;");
  out[threadIdx.x] = block[threadIdx.x];
}

// Copies that complete on an mbarrier; another warp waits for them. kNoinc: the arrivals are in its
// count.
template <bool kNoinc>
__device__ void copies_to_mbarrier(const uint4* in, uint4* out) {
  __shared__ uint4 block[64];
  __shared__ uint64_t mbarrier;
  const uint32_t bar = shared_address(&mbarrier);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(kNoinc ? 32 : 1));
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int k = 0; k < 2; ++k) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       shared_address(block + 32 * k + threadIdx.x)),
                   "l"(in + 32 * k + threadIdx.x));
    }
    if (kNoinc) {
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar));
    } else {
      asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(bar));
      __syncwarp();
      if (threadIdx.x == 0) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar));
    }
  } else {
    asm volatile(
        "{ .reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], 0;\n@!p bra again; "
        "}" ::"r"(bar));
    for (int k = 0; k < 2; ++k) out[32 * k + threadIdx.x - 32] = block[32 * k + threadIdx.x - 32];
  }
}
extern "C" __global__ void copies_to_mbarrier_noinc(const uint4* in, uint4* out) {
  copies_to_mbarrier<true>(in, out);
}
extern "C" __global__ void copies_to_mbarrier_inc(const uint4* in, uint4* out) {
  copies_to_mbarrier<false>(in, out);
}
