// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the tensor cores, shared by mma.sync, wgmma and tcgen05: element formats, and
// one kernel that multiplies tiles of floats.
//
// Precision. Elements of every format here become floats without error, and so do products of two
// of them. A sum over the K of one instruction (or over one scaling block of it) adds these
// products in the order of k, each sum rounded to float; it is then scaled and added to the
// accumulator. Hardware documents no order: kernels must not depend on one, and tests compare by
// tolerance unless the data are small integers, whose sums are exact in any order.
//
// An H200 keeps less in one case: sums of 8-bit floating-point products by wgmma have about 13 bits
// (by mma.sync all of them). This is not imitated.
#pragma once

#include <cstdint>
#include <string>

#include "counters.h"

namespace dsv4::simulator {

enum class ElementFormat : uint8_t {
  kF16,
  kBF16,
  kTF32,
  kE4M3,
  kE5M2,
  kE2M3,
  kE3M2,
  kE2M1,
  kS8,
  kU8,
};
const char* name_of(ElementFormat format);
int bits_of(ElementFormat format);

// How elements of fewer than 8 bits lie in memory or registers. Others are always next to each
// other.
enum class Packing : uint8_t {
  kDense,    // next to each other
  kPadded,   // 16 of them next to each other, then padding up to 16 bytes
  kInBytes,  // one a byte: 4 bits in bits 2..5, 6 bits in bits 0..5
};

// Elements in 16 bytes, and in a 32-bit register.
int elements_per_granule(ElementFormat format, Packing packing);
int elements_per_word(ElementFormat format, Packing packing);

// The elements of 16 bytes, or of a register, in order.
void decode_granule(ElementFormat format, Packing packing, const uint8_t* bytes, float* elements);
void decode_word(ElementFormat format, Packing packing, uint32_t word, float* elements);

// sum[row][column] = sum over k of a[row][k] * b[k][column]. `columns` is a multiple of 8; strides
// are in floats.
void multiply(const float* a, int a_stride, const float* b, int b_stride, float* sum,
              int sum_stride, int rows, int columns, int k);

enum class AccumulatorFormat : uint8_t { kF32, kF16, kS32 };
const char* name_of(AccumulatorFormat format);

// What becomes of an accumulator D: D * input_scale + sum, or the sum alone.
struct Update {
  AccumulatorFormat format = AccumulatorFormat::kF32;
  bool accumulate = true;
  bool negate = false;       // the sum
  bool saturate = false;     // kS32: clamp instead of wrapping around
  float input_scale = 1.0f;  // of D
};

// Updates `count` accumulators, 32 bits each. kF16 lives in the low half; the high half becomes 0.
void update_accumulators(const Update& update, const float* sums, uint32_t* accumulators,
                         int count);

// Tensor cores of one SM.
enum class TensorCore : uint8_t { kSm90, kSm100, kSm120 };

// One more matrix instruction of this shape. Cycles are at the documented dense rate of the SM for
// operands of so many bits.
void count_matrix_instruction(Counters& counters, const std::string& shape, TensorCore core,
                              int operand_bits, uint64_t flop);

}  // namespace dsv4::simulator
