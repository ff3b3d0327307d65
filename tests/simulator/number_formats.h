// SPDX-License-Identifier: Apache-2.0
// Numbers of fewer than 32 bits, one value at a time, and bit casts.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#alternate-floating-point-data-formats
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace dsv4::simulator {

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float from_bf16(uint16_t bits) { return bit_cast<float>(uint32_t(bits) << 16); }

// Nearest, ties to even; NaN becomes the canonical 0x7FFF.
inline uint16_t to_bf16(float x) {
  uint32_t bits = bit_cast<uint32_t>(x);
  if (x != x) return 0x7FFF;
  bits += 0x7FFF + (bits >> 16 & 1);
  return uint16_t(bits >> 16);
}

inline float from_f16(uint16_t bits) { return float(bit_cast<_Float16>(bits)); }
inline uint16_t to_f16(float x) { return x != x ? 0x7FFF : bit_cast<uint16_t>(_Float16(x)); }

inline float from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7F) == 0x7F) return NAN;
  const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                        : std::ldexp(float(8 + mantissa), exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

// Nearest, ties to even, saturating at +-448 (cvt.rn.satfinite.e4m3x2.f32); NaN becomes 0x7F.
inline uint8_t to_e4m3(float x) {
  if (x != x) return 0x7F;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= 448.0f) return sign | 0x7E;
  if (magnitude == 0.0f) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);
  exponent = exponent - 1 < -6 ? -6 : exponent - 1;
  const int units = int(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  const int code = ((exponent + 6) << 3) + units;
  return sign | uint8_t(code > 0x7E ? 0x7E : code);
}

inline float from_e5m2(uint8_t bits) { return from_f16(uint16_t(bits << 8)); }
inline float from_ue8m0(uint8_t bits) {
  return bits == 255 ? NAN : std::ldexp(1.0f, int(bits) - 127);
}

// 4- and 6-bit formats, in the low bits.
inline float from_e2m1(uint8_t bits) {
  static constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return bits & 8 ? -kMagnitudes[bits & 7] : kMagnitudes[bits & 7];
}
inline float from_e3m2(uint8_t bits) {
  const int exponent = bits >> 2 & 7, mantissa = bits & 3;
  const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -4)
                                        : std::ldexp(float(4 + mantissa), exponent - 5);
  return bits & 0x20 ? -magnitude : magnitude;
}
inline float from_e2m3(uint8_t bits) {
  const int exponent = bits >> 3 & 3, mantissa = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -3)
                                        : std::ldexp(float(8 + mantissa), exponent - 4);
  return bits & 0x20 ? -magnitude : magnitude;
}

// tf32: a float whose low 13 bits are ignored.
inline float from_tf32(uint32_t bits) { return bit_cast<float>(bits & 0xFFFFE000u); }

// Flush of denormals to a zero of the same sign (.ftz).
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

}  // namespace dsv4::simulator
