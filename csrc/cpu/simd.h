// SPDX-License-Identifier: Apache-2.0
// Vectors of DSV4_SIMD_BYTES bytes, written with the compilers' vector types so that one text
// serves every instruction set. Everything is static or local to a file: the same text is compiled
// several times.
#pragma once

#include <cstdint>

#if DSV4_SIMD_BYTES > 16
#include <immintrin.h>
#endif

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
#if DSV4_SIMD_BYTES == 64
  const Int bits =
      (Int)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
  const Int bits = __builtin_convertvector(*reinterpret_cast<const HalvesInMemory*>(p), Int);
#endif
  return as_float(bits << 16);
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

// The same for as many values as 16-bit lanes make a vector, each times a scale that holds
// 2^kE4m3Shift, with half the instructions where the machine converts 16-bit floats: e4m3 is such a
// float with its exponent off by 8, subnormals included.
static constexpr int kE4m3Shift = DSV4_SIMD_BYTES > 16 ? 8 : 0;
static constexpr int kE4m3Step = 2 * kLanes;
static inline void store_e4m3(const uint8_t* p, Float scale, float* out) {
#if DSV4_SIMD_BYTES == 64
  const __m512i wide =
      _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i magnitude = _mm512_set1_epi16(0x7F);
  const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(wide, magnitude), magnitude);
  // The sign fills bits 14 and up after the shift; only bit 15 stays.
  const __m512i half =
      _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(int16_t(0xBFFF)));
  const __m512i checked = _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7E00));
  store(out, (Float)_mm512_cvtph_ps(_mm512_castsi512_si256(checked)) * scale);
  store(out + kLanes, (Float)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(checked, 1)) * scale);
#elif DSV4_SIMD_BYTES == 32
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i magnitude = _mm256_set1_epi16(0x7F);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(wide, magnitude), magnitude);
  const __m256i half =
      _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(int16_t(0xBFFF)));
  const __m256i checked = _mm256_blendv_epi8(half, _mm256_set1_epi16(0x7E00), nan);
  store(out, (Float)_mm256_cvtph_ps(_mm256_castsi256_si128(checked)) * scale);
  store(out + kLanes, (Float)_mm256_cvtph_ps(_mm256_extracti128_si256(checked, 1)) * scale);
#else
  store(out, load_e4m3(p) * scale);
  store(out + kLanes, load_e4m3(p + kLanes) * scale);
#endif
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
