// SPDX-License-Identifier: Apache-2.0
// Kernels of test_differential.py that no other test has: one instruction a kernel, an element a
// thread; atomics; a tensor copy to several blocks.
#include "copies.cuh"

#define OPERATION(name, text)                                                         \
  KERNEL name(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d) { \
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;                         \
    asm volatile(text : "=r"(d[i]) : "r"(a[i]), "r"(b[i]), "r"(c[i]));                \
  }

// Instructions of one operand, with a result (R16) or an operand (A16) of 16 bits.
#define UNARY(name, opcode) OPERATION(name, opcode " %0, %1;")
#define UNARY_R16(name, opcode) \
  OPERATION(name, "{ .reg .b16 h; " opcode " h, %1; cvt.u32.u16 %0, h; }")
#define UNARY_A16(name, opcode) \
  OPERATION(name, "{ .reg .b16 h; cvt.u16.u32 h, %1; " opcode " %0, h; }")
#define BINARY(name, opcode) OPERATION(name, opcode " %0, %1, %2;")
#define BINARY_R16(name, opcode) \
  OPERATION(name, "{ .reg .b16 h; " opcode " h, %1, %2; cvt.u32.u16 %0, h; }")
#define TERNARY(name, opcode) OPERATION(name, opcode " %0, %1, %2, %3;")

// --- conversions
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt

UNARY_R16(cvt_rn_bf16_f32, "cvt.rn.bf16.f32")
UNARY_R16(cvt_rz_bf16_f32, "cvt.rz.bf16.f32")
UNARY_R16(cvt_rn_relu_bf16_f32, "cvt.rn.relu.bf16.f32")
UNARY_R16(cvt_rn_f16_f32, "cvt.rn.f16.f32")
UNARY_R16(cvt_rz_f16_f32, "cvt.rz.f16.f32")
UNARY_R16(cvt_rm_f16_f32, "cvt.rm.f16.f32")
UNARY_R16(cvt_rp_f16_f32, "cvt.rp.f16.f32")
UNARY_R16(cvt_rn_relu_f16_f32, "cvt.rn.relu.f16.f32")
BINARY(cvt_rn_bf16x2_f32, "cvt.rn.bf16x2.f32")
BINARY(cvt_rz_bf16x2_f32, "cvt.rz.bf16x2.f32")
BINARY(cvt_rn_relu_bf16x2_f32, "cvt.rn.relu.bf16x2.f32")
BINARY(cvt_rn_f16x2_f32, "cvt.rn.f16x2.f32")
BINARY(cvt_rz_relu_f16x2_f32, "cvt.rz.relu.f16x2.f32")
BINARY_R16(cvt_rn_satfinite_e4m3x2_f32, "cvt.rn.satfinite.e4m3x2.f32")
BINARY_R16(cvt_rn_satfinite_e5m2x2_f32, "cvt.rn.satfinite.e5m2x2.f32")
BINARY_R16(cvt_rn_satfinite_relu_e4m3x2_f32, "cvt.rn.satfinite.relu.e4m3x2.f32")
BINARY_R16(cvt_rn_satfinite_relu_e5m2x2_f32, "cvt.rn.satfinite.relu.e5m2x2.f32")
UNARY_R16(cvt_rn_satfinite_e4m3x2_f16x2, "cvt.rn.satfinite.e4m3x2.f16x2")
UNARY_R16(cvt_rn_satfinite_e5m2x2_f16x2, "cvt.rn.satfinite.e5m2x2.f16x2")
UNARY_A16(cvt_rn_f16x2_e4m3x2, "cvt.rn.f16x2.e4m3x2")
UNARY_A16(cvt_rn_f16x2_e5m2x2, "cvt.rn.f16x2.e5m2x2")
UNARY_A16(cvt_rn_relu_f16x2_e4m3x2, "cvt.rn.relu.f16x2.e4m3x2")
UNARY_A16(cvt_f32_f16, "cvt.f32.f16")
UNARY_A16(cvt_f32_bf16, "cvt.f32.bf16")
UNARY(cvt_rn_tf32_f32, "cvt.rn.tf32.f32")
UNARY(cvt_rna_tf32_f32, "cvt.rna.tf32.f32")
UNARY(cvt_rni_f32_f32, "cvt.rni.f32.f32")
UNARY(cvt_rni_s32_f32, "cvt.rni.s32.f32")
UNARY(cvt_rzi_s32_f32, "cvt.rzi.s32.f32")
UNARY(cvt_rmi_u32_f32, "cvt.rmi.u32.f32")
UNARY(cvt_rpi_ftz_s32_f32, "cvt.rpi.ftz.s32.f32")
UNARY(cvt_rn_f32_s32, "cvt.rn.f32.s32")
UNARY(cvt_rz_f32_u32, "cvt.rz.f32.u32")
UNARY(cvt_rm_f32_s32, "cvt.rm.f32.s32")
UNARY(cvt_rp_f32_u32, "cvt.rp.f32.u32")
UNARY(cvt_sat_s8_s32, "cvt.sat.s8.s32")
UNARY(cvt_sat_u8_s32, "cvt.sat.u8.s32")

// --- arithmetic, which IEEE 754 defines, and packed forms
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions

TERNARY(fma_rn_f32, "fma.rn.f32")
TERNARY(fma_rz_ftz_f32, "fma.rz.ftz.f32")
TERNARY(fma_rn_sat_f32, "fma.rn.sat.f32")
BINARY(add_rn_ftz_f32, "add.rn.ftz.f32")
BINARY(mul_rp_f32, "mul.rp.f32")
BINARY(min_f32, "min.f32")
BINARY(max_NaN_f32, "max.NaN.f32")
BINARY(div_rn_f32, "div.rn.f32")
UNARY(rcp_rn_f32, "rcp.rn.f32")
UNARY(sqrt_rn_f32, "sqrt.rn.f32")
TERNARY(fma_rn_f16x2, "fma.rn.f16x2")
TERNARY(fma_rn_bf16x2, "fma.rn.bf16x2")
TERNARY(fma_rn_relu_bf16x2, "fma.rn.relu.bf16x2")
BINARY(min_bf16x2, "min.bf16x2")
BINARY(max_f16x2, "max.f16x2")

// --- approximations

UNARY(ex2_f32, "ex2.approx.f32")
UNARY(ex2_ftz_f32, "ex2.approx.ftz.f32")
UNARY(lg2_f32, "lg2.approx.f32")
UNARY(lg2_ftz_f32, "lg2.approx.ftz.f32")
UNARY(rcp_f32, "rcp.approx.f32")
UNARY(rcp_ftz_f32, "rcp.approx.ftz.f32")
UNARY(rsqrt_f32, "rsqrt.approx.f32")
UNARY(rsqrt_ftz_f32, "rsqrt.approx.ftz.f32")
UNARY(sqrt_f32, "sqrt.approx.f32")
UNARY(tanh_f32, "tanh.approx.f32")
BINARY(div_approx_f32, "div.approx.f32")
UNARY(ex2_f16x2, "ex2.approx.f16x2")
UNARY(ex2_ftz_bf16x2, "ex2.approx.ftz.bf16x2")
UNARY(tanh_bf16x2, "tanh.approx.bf16x2")

// --- atomics
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom

// A word a thread, in global and in shared memory. out: the two results, then what they replaced.
#define ATOMIC(name, operation, operands)                                                   \
  KERNEL name(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* out) {     \
    __shared__ uint32_t words[128];                                                         \
    const uint32_t i = threadIdx.x;                                                         \
    words[i] = out[i] = a[i];                                                               \
    asm volatile("atom.global." operation " %0, [%1], " operands ";"                        \
                 : "=r"(out[256 + i])                                                       \
                 : "l"(out + i), "r"(b[i]), "r"(c[i])                                       \
                 : "memory");                                                               \
    asm volatile("atom.shared." operation " %0, [%1], " operands ";"                        \
                 : "=r"(out[384 + i])                                                       \
                 : "r"(uint32_t(__cvta_generic_to_shared(words + i))), "r"(b[i]), "r"(c[i]) \
                 : "memory");                                                               \
    out[128 + i] = words[i];                                                                \
  }
ATOMIC(atom_add_u32, "add.u32", "%2")
ATOMIC(atom_min_s32, "min.s32", "%2")
ATOMIC(atom_max_u32, "max.u32", "%2")
ATOMIC(atom_inc_u32, "inc.u32", "%2")
ATOMIC(atom_dec_u32, "dec.u32", "%2")
ATOMIC(atom_and_b32, "and.b32", "%2")
ATOMIC(atom_or_b32, "or.b32", "%2")
ATOMIC(atom_xor_b32, "xor.b32", "%2")
ATOMIC(atom_exch_b32, "exch.b32", "%2")
ATOMIC(atom_cas_b32, "cas.b32", "%2, %3")
ATOMIC(atom_add_f32, "add.f32", "%2")
ATOMIC(atom_add_f16x2, "add.noftz.f16x2", "%2")
ATOMIC(atom_add_bf16x2, "add.noftz.bf16x2", "%2")

// All threads on a few words: sums, extremes and bits, whatever the order.
KERNEL contention(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t words[4];
  if (threadIdx.x < 4) words[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t value = in[blockIdx.x * blockDim.x + threadIdx.x];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(words));
  asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(shared), "r"(value) : "memory");
  asm volatile("red.shared.max.u32 [%0+4], %1;" ::"r"(shared), "r"(value) : "memory");
  asm volatile("red.shared.xor.b32 [%0+8], %1;" ::"r"(shared), "r"(value) : "memory");
  asm volatile("red.shared.inc.u32 [%0+12], 1000;" ::"r"(shared) : "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.global.add.u32 [%0], %1;" ::"l"(out), "r"(words[0]) : "memory");
    asm volatile("red.relaxed.gpu.global.max.u32 [%0+4], %1;" ::"l"(out), "r"(words[1]) : "memory");
    asm volatile("red.global.xor.b32 [%0+8], %1;" ::"l"(out), "r"(words[2]) : "memory");
    asm volatile("red.global.add.u32 [%0+12], %1;" ::"l"(out), "r"(words[3]) : "memory");
  }
  asm volatile("red.global.add.v2.f32 [%0+16], {%1, %2};" ::"l"(out), "f"(float(value % 8)),
               "f"(float(value / 8 % 8))
               : "memory");
}

// --- copies

// Block 0 loads a box of `bytes` (2048 at most) into each block of the mask.
KERNEL multicast_tile(const __grid_constant__ CUtensorMap map, uint32_t bytes, uint32_t mask,
                      uint8_t* out) {
  __shared__ __align__(1024) uint8_t data[2048];
  __shared__ uint64_t barrier;
  const uint32_t rank = block_rank();
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) data[i] = 0xEE;
  fence_async();
  if (threadIdx.x == 0) start(&barrier, mask >> rank & 1 ? bytes : 0);
  cluster_sync();
  if (rank == 0 && threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {32, 3}], [%2], %3;" ::"r"(shared_address(data)),
        "l"(&map), "r"(shared_address(&barrier)), "h"(uint16_t(mask))
        : "memory");
  }
  wait(&barrier, 0);
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) out[rank * bytes + i] = data[i];
  cluster_sync();
}
