// SPDX-License-Identifier: Apache-2.0
// Two float operations in one instruction, and conversions of four floats, on SM100 and later.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions
#pragma once

#include <cstdint>

namespace dsv4::ptx {

__device__ __forceinline__ uint64_t bits_of(float2 pair) {
  uint64_t bits;
  asm("mov.b64 %0, {%1, %2};" : "=l"(bits) : "f"(pair.x), "f"(pair.y));
  return bits;
}
__device__ __forceinline__ float2 pair_of(uint64_t bits) {
  float2 pair;
  asm("mov.b64 {%0, %1}, %2;" : "=f"(pair.x), "=f"(pair.y) : "l"(bits));
  return pair;
}

// Of pairs as they stand in registers, which long sums need not leave.
__device__ __forceinline__ uint64_t add(uint64_t a, uint64_t b) {
  uint64_t sum;
  asm("add.rn.f32x2 %0, %1, %2;" : "=l"(sum) : "l"(a), "l"(b));
  return sum;
}
__device__ __forceinline__ float2 add(float2 a, float2 b) {
  return pair_of(add(bits_of(a), bits_of(b)));
}

__device__ __forceinline__ float2 multiply(float2 a, float2 b) {
  uint64_t product;
  asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(product) : "l"(bits_of(a)), "l"(bits_of(b)));
  return pair_of(product);
}

// a b + c
__device__ __forceinline__ float2 multiply_add(float2 a, float2 b, float2 c) {
  uint64_t sum;
  asm("fma.rn.f32x2 %0, %1, %2, %3;"
      : "=l"(sum)
      : "l"(bits_of(a)), "l"(bits_of(b)), "l"(bits_of(c)));
  return pair_of(sum);
}

__device__ __forceinline__ float max_of_three(float a, float b, float c) {
  float largest;
  asm("max.f32 %0, %1, %2, %3;" : "=f"(largest) : "f"(a), "f"(b), "f"(c));
  return largest;
}

// Four e4m3 values, the first in the lowest byte; beyond 448 they saturate.
__device__ __forceinline__ uint32_t pack_e4m3(float first, float second, float third,
                                              float fourth) {
  uint32_t four;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(four)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return four;
}

}  // namespace dsv4::ptx
