// SPDX-License-Identifier: Apache-2.0
#include "matrix_multiply.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "error.h"
#include "number_formats.h"

namespace dsv4::simulator {

// --- element formats ----------------------------------------------------------------------------

const char* name_of(ElementFormat format) {
  static constexpr const char* kNames[] = {"f16",  "bf16", "tf32", "e4m3", "e5m2",
                                           "e2m3", "e3m2", "e2m1", "s8",   "u8"};
  return kNames[int(format)];
}

int bits_of(ElementFormat format) {
  static constexpr int kBits[] = {16, 16, 32, 8, 8, 6, 6, 4, 8, 8};
  return kBits[int(format)];
}

int elements_per_word(ElementFormat format, Packing packing) {
  const int bits = bits_of(format);
  return 32 / (packing == Packing::kInBytes && bits < 8 ? 8 : bits);
}

int elements_per_granule(ElementFormat format, Packing packing) {
  return bits_of(format) < 8 && packing == Packing::kPadded
             ? 16
             : 4 * elements_per_word(format, packing);
}

namespace {

using ByteTable = std::array<float, 256>;

template <class Decode>
ByteTable make_table(Decode decode) {
  ByteTable table;
  for (int i = 0; i < 256; ++i) table[size_t(i)] = decode(uint8_t(i));
  return table;
}

const ByteTable& table_of(ElementFormat format) {
  static const ByteTable kE4M3 = make_table(from_e4m3);
  static const ByteTable kE5M2 = make_table(from_e5m2);
  static const ByteTable kE2M3 = make_table([](uint8_t b) { return from_e2m3(b & 0x3F); });
  static const ByteTable kE3M2 = make_table([](uint8_t b) { return from_e3m2(b & 0x3F); });
  static const ByteTable kE2M1 = make_table([](uint8_t b) { return from_e2m1(b & 0xF); });
  static const ByteTable kS8 = make_table([](uint8_t b) { return float(int8_t(b)); });
  static const ByteTable kU8 = make_table([](uint8_t b) { return float(b); });
  switch (format) {
    case ElementFormat::kE4M3:
      return kE4M3;
    case ElementFormat::kE5M2:
      return kE5M2;
    case ElementFormat::kE2M3:
      return kE2M3;
    case ElementFormat::kE3M2:
      return kE3M2;
    case ElementFormat::kE2M1:
      return kE2M1;
    case ElementFormat::kS8:
      return kS8;
    case ElementFormat::kU8:
      return kU8;
    default:
      fail("%s has no table", name_of(format));
  }
}

// Without branches, so that a loop of it is vectorised; from_f16 may be a call.
float f16_to_float(uint16_t bits) {
  const uint32_t magnitude = uint32_t(bits & 0x7FFF) << 13;
  const uint32_t special = (bits & 0x7C00) == 0x7C00 ? 0x7F800000u : 0u;  // infinity and NaN
  // The exponent moves from bias 15 to bias 127; the product makes numbers of denormals.
  const uint32_t value = bit_cast<uint32_t>(bit_cast<float>(magnitude) * 0x1p112f) | special;
  return bit_cast<float>(value | uint32_t(bits & 0x8000) << 16);
}

// Elements of kBytes bytes, a size known at compile time so that the loops are unrolled.
template <int kBytes>
void decode_dense(ElementFormat format, const uint8_t* bytes, float* elements) {
  switch (format) {
    case ElementFormat::kF16: {
      uint16_t values[kBytes / 2];
      std::memcpy(values, bytes, kBytes);
      for (int i = 0; i < kBytes / 2; ++i) elements[i] = f16_to_float(values[i]);
      return;
    }
    case ElementFormat::kBF16: {
      uint16_t values[kBytes / 2];
      std::memcpy(values, bytes, kBytes);
      for (int i = 0; i < kBytes / 2; ++i) elements[i] = from_bf16(values[i]);
      return;
    }
    case ElementFormat::kTF32: {
      uint32_t values[kBytes / 4];
      std::memcpy(values, bytes, kBytes);
      for (int i = 0; i < kBytes / 4; ++i) elements[i] = from_tf32(values[i]);
      return;
    }
    case ElementFormat::kE2M1: {
      const ByteTable& table = table_of(format);
      for (int i = 0; i < 2 * kBytes; ++i) elements[i] = table[bytes[i / 2] >> 4 * (i % 2) & 0xF];
      return;
    }
    default: {
      if (bits_of(format) != 8) fail("%s elements are never packed densely", name_of(format));
      const ByteTable& table = table_of(format);
      for (int i = 0; i < kBytes; ++i) elements[i] = table[bytes[i]];
    }
  }
}

template <int kBytes>
void decode_in_bytes(ElementFormat format, const uint8_t* bytes, float* elements) {
  const ByteTable& table = table_of(format);
  const int shift = format == ElementFormat::kE2M1 ? 2 : 0;
  for (int i = 0; i < kBytes; ++i) elements[i] = table[bytes[i] >> shift];
}

void decode_padded(ElementFormat format, const uint8_t* bytes, float* elements) {
  const ByteTable& table = table_of(format);
  const int bits = bits_of(format);
  for (int i = 0; i < 16; ++i) {
    uint16_t window;  // padding keeps it inside of the granule
    std::memcpy(&window, bytes + i * bits / 8, sizeof(window));
    elements[i] = table[window >> i * bits % 8 & ((1 << bits) - 1)];
  }
}

}  // namespace

void decode_granule(ElementFormat format, Packing packing, const uint8_t* bytes, float* elements) {
  if (bits_of(format) >= 8 || packing == Packing::kDense) {
    decode_dense<16>(format, bytes, elements);
  } else if (packing == Packing::kPadded) {
    decode_padded(format, bytes, elements);
  } else {
    decode_in_bytes<16>(format, bytes, elements);
  }
}

void decode_word(ElementFormat format, Packing packing, uint32_t word, float* elements) {
  uint8_t bytes[4];
  std::memcpy(bytes, &word, sizeof(bytes));
  if (bits_of(format) >= 8 || packing == Packing::kDense) {
    decode_dense<4>(format, bytes, elements);
  } else if (packing == Packing::kInBytes) {
    decode_in_bytes<4>(format, bytes, elements);
  } else {
    fail("a register does not hold padded %s", name_of(format));
  }
}

// --- multiplication -----------------------------------------------------------------------------

namespace {

// kFloats floats, in one register where the machine has such. Memory goes through memcpy, for it is
// not aligned as the type is.
template <int kFloats>
struct Vector {
  typedef float Type __attribute__((vector_size(4 * kFloats)));
};

// kRows rows by kVectors vectors of columns; the sums stay in registers.
template <int kFloats, int kRows, int kVectors>
inline __attribute__((always_inline)) void multiply_block(const float* a, int a_stride,
                                                          const float* b, int b_stride, float* sum,
                                                          int sum_stride, int k) {
  using Floats = typename Vector<kFloats>::Type;
  Floats sums[kRows][kVectors] = {};
  // Only unrolled loops let the compiler keep arrays in registers.
  for (int step = 0; step < k; ++step) {
    Floats columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(&columns[v], b + step * b_stride + v * kFloats, sizeof(Floats));
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const float element = a[row * a_stride + step];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[row][v] += element * columns[v];
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(sum + row * sum_stride + v * kFloats, &sums[row][v], sizeof(Floats));
    }
  }
}

template <int kFloats, int kRows>
inline __attribute__((always_inline)) void multiply_rows(const float* a, int a_stride,
                                                         const float* b, int b_stride, float* sum,
                                                         int sum_stride, int columns, int k) {
  int column = 0;
  for (; column + 2 * kFloats <= columns; column += 2 * kFloats) {
    multiply_block<kFloats, kRows, 2>(a, a_stride, b + column, b_stride, sum + column, sum_stride,
                                      k);
  }
  for (; column < columns; column += 8) {
    multiply_block<8, kRows, 1>(a, a_stride, b + column, b_stride, sum + column, sum_stride, k);
  }
}

template <int kFloats>
inline __attribute__((always_inline)) void multiply_with(const float* a, int a_stride,
                                                         const float* b, int b_stride, float* sum,
                                                         int sum_stride, int rows, int columns,
                                                         int k) {
  constexpr int kRows = 4;
  int row = 0;
  for (; row + kRows <= rows; row += kRows) {
    multiply_rows<kFloats, kRows>(a + row * a_stride, a_stride, b, b_stride, sum + row * sum_stride,
                                  sum_stride, columns, k);
  }
  for (; row < rows; ++row) {
    multiply_rows<kFloats, 1>(a + row * a_stride, a_stride, b, b_stride, sum + row * sum_stride,
                              sum_stride, columns, k);
  }
}

using Multiply = void (*)(const float*, int, const float*, int, float*, int, int, int, int);

void multiply_portable(const float* a, int a_stride, const float* b, int b_stride, float* sum,
                       int sum_stride, int rows, int columns, int k) {
  multiply_with<8>(a, a_stride, b, b_stride, sum, sum_stride, rows, columns, k);
}

#if defined(__x86_64__)
// A fused multiply-add gives the same results, for the products are exact.
__attribute__((target("avx2,fma"))) void multiply_avx2(const float* a, int a_stride, const float* b,
                                                       int b_stride, float* sum, int sum_stride,
                                                       int rows, int columns, int k) {
  multiply_with<8>(a, a_stride, b, b_stride, sum, sum_stride, rows, columns, k);
}

__attribute__((target("avx512f"))) void multiply_avx512(const float* a, int a_stride,
                                                        const float* b, int b_stride, float* sum,
                                                        int sum_stride, int rows, int columns,
                                                        int k) {
  multiply_with<16>(a, a_stride, b, b_stride, sum, sum_stride, rows, columns, k);
}
#endif

Multiply fastest_multiply() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_avx2;
#endif
  return multiply_portable;
}

}  // namespace

void multiply(const float* a, int a_stride, const float* b, int b_stride, float* sum,
              int sum_stride, int rows, int columns, int k) {
  static const Multiply kMultiply = fastest_multiply();
  kMultiply(a, a_stride, b, b_stride, sum, sum_stride, rows, columns, k);
}

// --- accumulators -------------------------------------------------------------------------------

const char* name_of(AccumulatorFormat format) {
  static constexpr const char* kNames[] = {"f32", "f16", "s32"};
  return kNames[int(format)];
}

namespace {

uint32_t add_integers(uint32_t accumulator, int32_t sum, bool saturate) {
  if (!saturate) return accumulator + uint32_t(sum);
  const int64_t exact = int64_t(int32_t(accumulator)) + sum;
  constexpr int64_t kLowest = std::numeric_limits<int32_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int32_t>::max();
  return uint32_t(int32_t(exact < kLowest ? kLowest : exact > kHighest ? kHighest : exact));
}

// What comes out of the tensor cores for any NaN, as an H200 showed; of f16, 0x7FFF.
const float kNaN = bit_cast<float>(0x7FFFFFFFu);

}  // namespace

void update_accumulators(const Update& update, const float* sums, uint32_t* accumulators,
                         int count) {
  using Floats = Vector<4>::Type;  // every machine has these
  const float sign = update.negate ? -1.0f : 1.0f;
  switch (update.format) {
    case AccumulatorFormat::kF32: {
      const float scale = update.input_scale;
      const Floats nan = Floats{} + kNaN;
      int i = 0;
      for (; i + 4 <= count; i += 4) {
        Floats d, sum;
        std::memcpy(&sum, sums + i, sizeof(sum));
        std::memcpy(&d, accumulators + i, sizeof(d));
        d = update.accumulate ? d * scale + sum * sign : sum * sign;
        d = d == d ? d : nan;
        std::memcpy(accumulators + i, &d, sizeof(d));
      }
      for (; i < count; ++i) {
        const float d = update.accumulate ? bit_cast<float>(accumulators[i]) * scale : -0.0f;
        const float result = d + sums[i] * sign;
        accumulators[i] = bit_cast<uint32_t>(result == result ? result : kNaN);
      }
      return;
    }
    case AccumulatorFormat::kF16:
      for (int i = 0; i < count; ++i) {
        const float scaled =
            update.accumulate ? from_f16(uint16_t(accumulators[i])) * update.input_scale : 0.0f;
        accumulators[i] = to_f16(scaled + sums[i] * sign);
      }
      return;
    case AccumulatorFormat::kS32:
      // Sums of one instruction are below 2^24, hence exact as floats.
      for (int i = 0; i < count; ++i) {
        accumulators[i] = add_integers(update.accumulate ? accumulators[i] : 0u,
                                       int32_t(sums[i] * sign), update.saturate);
      }
      return;
  }
}

// --- counters -----------------------------------------------------------------------------------

namespace {

// FLOP of one SM in one cycle with dense 16-bit operands: the data sheets' rates of H200, B200 and
// RTX PRO 6000, divided by SMs and boost clock. Operands of half the size go at twice the rate.
double flop_per_cycle(TensorCore core, int operand_bits) {
  static constexpr double kDense16Bit[] = {4096, 8192, 1024};
  return kDense16Bit[int(core)] * 16 / operand_bits;
}

}  // namespace

void count_matrix_instruction(Counters& counters, const std::string& shape, TensorCore core,
                              int operand_bits, uint64_t flop) {
  ++counters.matrix_instructions[shape];
  counters.matrix_flop += flop;
  counters.matrix_cycles += double(flop) / flop_per_cycle(core, operand_bits);
}

}  // namespace dsv4::simulator
