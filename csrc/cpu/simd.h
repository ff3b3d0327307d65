// SPDX-License-Identifier: Apache-2.0
// Vectors of DSV4_SIMD_BYTES bytes, written with the compilers' vector types so that one text
// serves every instruction set. Everything is static or local to a file: the same text is compiled
// several times.
#pragma once

#include <cstdint>

namespace dsv4::cpu::DSV4_SIMD {

constexpr int kLanes = DSV4_SIMD_BYTES / 4;

typedef float Float __attribute__((vector_size(DSV4_SIMD_BYTES)));
typedef int32_t Int __attribute__((vector_size(DSV4_SIMD_BYTES)));
typedef float FloatInMemory __attribute__((vector_size(DSV4_SIMD_BYTES), aligned(4), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(DSV4_SIMD_BYTES / 4)));
typedef uint8_t BytesInMemory
    __attribute__((vector_size(DSV4_SIMD_BYTES / 4), aligned(1), may_alias));
typedef uint16_t Halves __attribute__((vector_size(DSV4_SIMD_BYTES / 2)));
typedef uint16_t HalvesInMemory
    __attribute__((vector_size(DSV4_SIMD_BYTES / 2), aligned(1), may_alias));

static inline Float load(const float* p) { return *reinterpret_cast<const FloatInMemory*>(p); }
static inline void store(float* p, Float v) { *reinterpret_cast<FloatInMemory*>(p) = v; }
static inline Float broadcast(float x) { return x - Float{}; }  // x + 0 would cost an addition
// Casts between vectors keep the bits.
static inline Float as_float(Int bits) { return (Float)bits; }
static inline Int as_int(Float v) { return (Int)v; }
static inline Float select(Int mask, Float a, Float b) { return mask ? a : b; }

// The larger of two; b where either is NaN.
static inline Float max(Float a, Float b) { return a > b ? a : b; }

static inline Float load_bf16(const uint8_t* p) {
  const Halves bits = *reinterpret_cast<const HalvesInMemory*>(p);
  return as_float(__builtin_convertvector(bits, Int) << 16);
}

// e4m3 to float, exactly, with no denormal on the way (they are slow, and flushed in some modes).
static inline Float load_e4m3(const uint8_t* p) {
  const Bytes bytes = *reinterpret_cast<const BytesInMemory*>(p);
  // In two steps: compilers take a single one apart into scalars.
  const Int bits = __builtin_convertvector(__builtin_convertvector(bytes, Halves), Int);
  const Int magnitude = bits & 0x7F;
  // Exponent and mantissa moved to their places in a float, bias 7 made 127.
  const Float normal = as_float((magnitude << 20) + (120 << 23));
  // With exponent 0 that reads as 2^-7 (1 + m / 8); the subnormal it stands for is 2^-6 m / 8.
  const Float subnormal = normal * 2.0f - 0x1p-6f;
  const Float value = select(magnitude < 8, subnormal, normal);
  const Int nan = (magnitude == 0x7F) & 0x7FC00000;
  return as_float(as_int(value) | nan | ((bits & 0x80) << 24));
}

// 2^x for x <= 0 with 2^0 = 1 exactly; 0 below 2^-126; NaN stays. Error below 2^-22 of the value.
static inline Float exp2(Float x) {
  const Float kRound = broadcast(12582912.0f);  // 1.5 x 2^23: adding it rounds to an integer
  const Float rounded = x + kRound;
  const Float f = x - (rounded - kRound);  // in [-0.5, 0.5]
  // Taylor series of 2^f; the first term left out is below 2^-22 on this interval.
  Float p = broadcast(1.5403530e-4f);
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  const Float power = as_float((as_int(rounded) + 127) << 23);
  return select(x < -126.0f, Float{}, p * power);
}

}  // namespace dsv4::cpu::DSV4_SIMD
