// SPDX-License-Identifier: Apache-2.0
// Conversions, and arithmetic on pairs of 16-bit values in one register (the first in the low
// half).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
#pragma once

#include <cstdint>

#include "ptx/mma_sync.cuh"

namespace dsv4::ptx {

// The two low bytes, e4m3, as f16: exact.
__device__ __forceinline__ uint32_t f16x2_from_e4m3_low(uint32_t four) {
  uint32_t pair;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "}"
      : "=r"(pair)
      : "r"(four));
  return pair;
}

// The two high bytes, e4m3, as f16: exact.
__device__ __forceinline__ uint32_t f16x2_from_e4m3_high(uint32_t four) {
  uint32_t pair;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, high;\n"
      "}"
      : "=r"(pair)
      : "r"(four));
  return pair;
}

template <Half kHalf>
__device__ __forceinline__ uint32_t pack(float first, float second) {
  uint32_t pair;
  if constexpr (kHalf == Half::kFloat16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

__device__ __forceinline__ float float_from_f16_low(uint32_t pair) {
  float value;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %1;\n"
      "cvt.f32.f16 %0, low;\n"
      "}"
      : "=f"(value)
      : "r"(pair));
  return value;
}

__device__ __forceinline__ float float_from_f16_high(uint32_t pair) {
  float value;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %1;\n"
      "cvt.f32.f16 %0, high;\n"
      "}"
      : "=f"(value)
      : "r"(pair));
  return value;
}

template <Half kHalf>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  if constexpr (kHalf == Half::kFloat16) {
    return make_float2(float_from_f16_low(pair), float_from_f16_high(pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

template <Half kHalf>
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product;
  if constexpr (kHalf == Half::kFloat16) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  } else {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  }
  return product;
}

// Sums of signed 16-bit values, twice.
__device__ __forceinline__ uint32_t add_s16x2(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.s16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

// Larger of two unsigned 16-bit values, twice.
__device__ __forceinline__ uint32_t max_u16x2(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// Larger of two signed 16-bit values, twice.
__device__ __forceinline__ uint32_t max_s16x2(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.s16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// Bytes of {b, a} by four selectors.
template <uint32_t kSelectors>
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b) {
  return __byte_perm(a, b, kSelectors);
}

// 2^x, with an error below 2^-22; 0 below the normal numbers.
__device__ __forceinline__ float exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Minimum and maximum that keep NaN.
__device__ __forceinline__ float min_nan(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

}  // namespace dsv4::ptx
