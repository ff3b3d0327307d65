// SPDX-License-Identifier: Apache-2.0
// Shared-memory matrix descriptors of wgmma and tcgen05, and where they put an element.
//   sm_90
//   https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout-matrix-descriptor
//   sm_100
//   https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-shared-memory-descriptor
//
// A tile is a grid of "core matrices" of 8 rows x 16 bytes (no swizzle), or of 8 rows x the swizzle
// span. The swizzle is an XOR on the absolute shared-memory address, so a descriptor may start
// inside of a pattern. Whatever the layout, 16 bytes that are contiguous in the matrix (a granule)
// are contiguous in memory.
#pragma once

#include <cstdint>

#include "error.h"

namespace dsv4::simulator {

enum class Swizzle : uint8_t { kNone, k32, k64, k128, k128In32ByteAtoms };

inline constexpr uint32_t kGranuleBytes = 16;

// Bytes of a row that the pattern permutes.
inline uint32_t swizzle_span(Swizzle swizzle) {
  static constexpr uint32_t kSpans[] = {16, 32, 64, 128, 128};
  return kSpans[int(swizzle)];
}

// Rows after which the pattern repeats.
inline uint32_t swizzle_rows(Swizzle swizzle) {
  return swizzle == Swizzle::k128In32ByteAtoms ? 4 : 8;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes
inline uint32_t swizzled(uint32_t address, Swizzle swizzle) {
  if (swizzle == Swizzle::k128In32ByteAtoms) return address ^ (address >> 2 & 0x60);
  static constexpr uint32_t kMasks[] = {0, 0x10, 0x30, 0x70};
  return address ^ (address >> 3 & kMasks[int(swizzle)]);
}

class MatrixDescriptor {
 public:
  static MatrixDescriptor of_wgmma(uint64_t bits) {
    static constexpr Swizzle kModes[] = {Swizzle::kNone, Swizzle::k128, Swizzle::k64, Swizzle::k32};
    expect_bits(bits, 46, 3, 0, "bits 46-48");
    expect_bits(bits, 52, 10, 0, "bits 52-61");
    return MatrixDescriptor(bits, kModes[bits >> 62]);
  }
  static MatrixDescriptor of_tcgen05(uint64_t bits) {
    expect_bits(bits, 46, 3, 1, "version (bits 46-48)");
    expect_bits(bits, 52, 1, 0, "absolute leading dimension (bit 52)");
    expect_bits(bits, 53, 8, 0, "bits 53-60");
    // Measured on an H200, below; not known here.
    expect_bits(bits, 49, 3, 0, "base offset (bits 49-51)");
    switch (bits >> 61) {
      case 0:
        return MatrixDescriptor(bits, Swizzle::kNone);
      case 1:
        return MatrixDescriptor(bits, Swizzle::k128In32ByteAtoms);
      case 2:
        return MatrixDescriptor(bits, Swizzle::k128);
      case 4:
        return MatrixDescriptor(bits, Swizzle::k64);
      case 6:
        return MatrixDescriptor(bits, Swizzle::k32);
      default:
        fail("matrix descriptor %#llx: no swizzle mode %d", static_cast<unsigned long long>(bits),
             int(bits >> 61));
    }
  }

  // Address, without the rank of a block, of byte `k_byte` of row `row`, where rows are of M or N
  // and K is contiguous ("K-major").
  uint32_t k_major(uint32_t row, uint32_t k_byte) const {
    if (swizzle_ == Swizzle::kNone) {
      return wrapped(start_ + row % 8 * kGranuleBytes + row / 8 * stride_ +
                     k_byte / kGranuleBytes * leading_ + k_byte % kGranuleBytes);
    }
    const uint32_t span = swizzle_span(swizzle_);
    return permuted(start_ + row % 8 * span + row / 8 * stride_ + k_byte);
  }

  // The same where M or N is contiguous ("MN-major"): byte `row_byte` along M or N, step k.
  uint32_t mn_major(uint32_t row_byte, uint32_t k) const {
    if (swizzle_ == Swizzle::kNone) {
      return wrapped(start_ + row_byte % kGranuleBytes + row_byte / kGranuleBytes * stride_ +
                     k % 8 * kGranuleBytes + k / 8 * leading_);
    }
    const uint32_t span = swizzle_span(swizzle_), rows = swizzle_rows(swizzle_);
    return permuted(start_ + row_byte % span + row_byte / span * leading_ + k % rows * span +
                    k / rows * stride_);
  }

  Swizzle swizzle() const { return swizzle_; }

 private:
  MatrixDescriptor(uint64_t bits, Swizzle swizzle)
      : start_(uint32_t(bits & 0x3FFF) << 4),
        leading_(uint32_t(bits >> 16 & 0x3FFF) << 4),
        stride_(uint32_t(bits >> 32 & 0x3FFF) << 4),
        pattern_(uint32_t(bits >> 49 & 7) << 7),
        swizzle_(swizzle) {
    expect_bits(bits, 14, 2, 0, "bits 14-15");
    expect_bits(bits, 30, 2, 0, "bits 30-31");
  }

  static void expect_bits(uint64_t bits, int first, int count, uint64_t wanted, const char* field) {
    const uint64_t got = bits >> first & ((uint64_t(1) << count) - 1);
    if (got != wanted) {
      fail("matrix descriptor %#llx: %s: expected %d, got %d",
           static_cast<unsigned long long>(bits), field, int(wanted), int(got));
    }
  }

  // Addresses have 18 bits.
  static uint32_t wrapped(uint32_t address) { return address & 0x3FFFF; }

  // The pattern may begin at any multiple of 128 bytes: `pattern_` behind one of its own size.
  uint32_t permuted(uint32_t address) const {
    return wrapped(address ^ (address - pattern_) ^ swizzled(address - pattern_, swizzle_));
  }

  uint32_t start_, leading_, stride_, pattern_;
  Swizzle swizzle_;
};

}  // namespace dsv4::simulator
