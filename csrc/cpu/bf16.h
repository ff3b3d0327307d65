// SPDX-License-Identifier: Apache-2.0
// bfloat16 one value at a time. Functions are static: this header is compiled for several
// instruction sets.
#pragma once

#include <cstdint>

namespace dsv4::cpu {

static inline float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  __builtin_memcpy(&x, &wide, sizeof(x));
  return x;
}

// Round to nearest even; NaN stays NaN.
static inline uint16_t to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  if (x != x) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace dsv4::cpu
