// SPDX-License-Identifier: Apache-2.0
// The eight tile registers of AMX, 16 rows of 64 bytes each, or their stand-in by plain loops
// (DSV4_TILES_EMULATED), so that the kernel runs under the tests on a machine without them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace dsv4::cpu::DSV4_SIMD::tiles {

#if defined(DSV4_TILES_EMULATED)

struct Registers {
  alignas(64) uint8_t bytes[8][16][64];
};
static thread_local Registers registers;

static inline void configure() {}
static inline void release() {}

template <int kTile>
static inline void load(const void* rows, int64_t stride) {
  for (int r = 0; r < 16; ++r) {
    __builtin_memcpy(registers.bytes[kTile][r], static_cast<const uint8_t*>(rows) + r * stride, 64);
  }
}
template <int kTile>
static inline void store(void* rows, int64_t stride) {
  for (int r = 0; r < 16; ++r) {
    __builtin_memcpy(static_cast<uint8_t*>(rows) + r * stride, registers.bytes[kTile][r], 64);
  }
}
template <int kTile>
static inline void zero() {
  __builtin_memset(registers.bytes[kTile], 0, sizeof(registers.bytes[kTile]));
}
// c[m][n] += sum over k of a[m][k] * b[k / 2][n][k % 2], bf16 products in float.
template <int kC, int kA, int kB>
static inline void multiply_add() {
  float c[16][16];
  uint16_t a[16][32], b[16][16][2];
  __builtin_memcpy(c, registers.bytes[kC], sizeof(c));
  __builtin_memcpy(a, registers.bytes[kA], sizeof(a));
  __builtin_memcpy(b, registers.bytes[kB], sizeof(b));
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 32; ++k) {
      for (int n = 0; n < 16; ++n) c[m][n] += from_bf16(a[m][k]) * from_bf16(b[k / 2][n][k % 2]);
    }
  }
  __builtin_memcpy(registers.bytes[kC], c, sizeof(c));
}

#else

// All tiles 16 rows of 64 bytes, for this thread, until release().
static inline void configure() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  _tile_loadconfig(&config);
}
static inline void release() { _tile_release(); }

// The instructions name their registers by number, so every number is spelled out.
template <int kTile>
static inline void load(const void* rows, int64_t stride) {
  if constexpr (kTile == 0) _tile_loadd(0, rows, stride);
  if constexpr (kTile == 1) _tile_loadd(1, rows, stride);
  if constexpr (kTile == 2) _tile_loadd(2, rows, stride);
  if constexpr (kTile == 3) _tile_loadd(3, rows, stride);
  if constexpr (kTile == 4) _tile_loadd(4, rows, stride);
  if constexpr (kTile == 5) _tile_loadd(5, rows, stride);
  if constexpr (kTile == 6) _tile_loadd(6, rows, stride);
  if constexpr (kTile == 7) _tile_loadd(7, rows, stride);
}
template <int kTile>
static inline void store(void* rows, int64_t stride) {
  if constexpr (kTile == 0) _tile_stored(0, rows, stride);
  if constexpr (kTile == 1) _tile_stored(1, rows, stride);
  if constexpr (kTile == 2) _tile_stored(2, rows, stride);
  if constexpr (kTile == 3) _tile_stored(3, rows, stride);
}
template <int kTile>
static inline void zero() {
  if constexpr (kTile == 0) _tile_zero(0);
  if constexpr (kTile == 1) _tile_zero(1);
  if constexpr (kTile == 2) _tile_zero(2);
  if constexpr (kTile == 3) _tile_zero(3);
}
template <int kC, int kA, int kB>
static inline void multiply_add() {
  if constexpr (kC == 0) _tile_dpbf16ps(0, 4, 6);
  if constexpr (kC == 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kC == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kC == 3) _tile_dpbf16ps(3, 5, 7);
  static_assert(kA == 4 + kC / 2 && kB == 6 + kC % 2);
}

#endif

// Four accumulators, tiles 0..3, fed by two left (4, 5) and two right operands (6, 7):
//   0 1     4 x 6   4 x 7
//   2 3     5 x 6   5 x 7
static inline void multiply_add_block() {
  multiply_add<0, 4, 6>();
  multiply_add<1, 4, 7>();
  multiply_add<2, 5, 6>();
  multiply_add<3, 5, 7>();
}

}  // namespace dsv4::cpu::DSV4_SIMD::tiles
