// SPDX-License-Identifier: Apache-2.0
// The products of a task (task.h) with AMX tiles: bf16 operands, float sums.
//
//   multiply    scores[16 slots][16 heads] += keys[16 slots][32 dims] x query[16 pairs of dims][16
//   heads] accumulate  out[16 heads][16 dims] += weights[16 heads][32 slots] x values[16 pairs of
//   slots][16 dims]
//
// Keys of every format are bf16 numbers, so the score product loses nothing; the weights are
// rounded to bf16 for the second one. A tile instruction takes pairs of rows as its right operand:
// the query is laid out so once a task, and the keys a second time as `values`.
//
// Interleaving two rows by unpack instructions leaves the dims of each group of 32 in the order
//   0-3 8-11 16-19 24-27 | 4-7 12-15 20-23 28-31
// which `values` and `out` keep until a row is finished.
#include "cpu/decode_kernel.h"
#include "cpu/simd.h"
#include "cpu/task.h"
#include "cpu/tiles.h"

namespace dsv4::cpu::DSV4_SIMD {
namespace {

constexpr int kTileRows = 16, kTileDims = 32;  // of a left operand; 32 bf16 are a row of 64 bytes
constexpr int kBlockSlots = 2 * kTileRows;     // two tiles, as multiply_add_block wants
static_assert(kLanes == kTileRows && kTileSlots % kBlockSlots == 0 &&
              kHeadBlock % kBlockSlots == 0);

int round_up_to_block(int n) { return (n + kBlockSlots - 1) / kBlockSlots * kBlockSlots; }

// Transposes 16 x 16 words in registers: rows[i] becomes column i.
void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Now rows[4 a + b] holds, in its 128-bit part p, column 4 p + b of rows 4 a .. 4 a + 3.
  for (int b = 0; b < 4; ++b) {
    t[b] = _mm512_shuffle_i32x4(rows[b], rows[4 + b], 0x88);
    t[4 + b] = _mm512_shuffle_i32x4(rows[8 + b], rows[12 + b], 0x88);
    t[8 + b] = _mm512_shuffle_i32x4(rows[b], rows[4 + b], 0xDD);
    t[12 + b] = _mm512_shuffle_i32x4(rows[8 + b], rows[12 + b], 0xDD);
  }
  for (int b = 0; b < 4; ++b) {
    rows[b] = _mm512_shuffle_i32x4(t[b], t[4 + b], 0x88);
    rows[8 + b] = _mm512_shuffle_i32x4(t[b], t[4 + b], 0xDD);
    rows[4 + b] = _mm512_shuffle_i32x4(t[8 + b], t[12 + b], 0x88);
    rows[12 + b] = _mm512_shuffle_i32x4(t[8 + b], t[12 + b], 0xDD);
  }
}

// To the nearest bf16, ties to even; NaN stays NaN.
Float round_to_bf16(Float x) {
  const Int bits = as_int(x);
  const Int rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & int32_t(0xFFFF0000);
  return as_float(x != x ? Int{} + 0x7FC00000 : rounded);
}

// bf16 numbers as 16 bits, in the low halves of words.
Int bf16_words(Float x) { return (as_int(x) >> 16) & 0xFFFF; }

// 32 e4m3 values times 2^(code - 127) as bf16, exactly.
void convert_e4m3(const uint8_t* data, int32_t code, uint8_t* out) {
  float values[kTileDims];
  if (code + kE4m3Shift < 255) {
    store_e4m3(data, as_float(Int{} + ((code + kE4m3Shift) << 23)), values);
  } else {
    // 2^(code - 127) does not go with the shift: near the largest float, or NaN.
    const Float scale = as_float(Int{} + (code == 255 ? 0x7FC00000 : code << 23));
    for (int i = 0; i < kTileDims; i += kLanes) store(values + i, load_e4m3(data + i) * scale);
  }
  for (int i = 0; i < kTileDims; i += kLanes) {
    const __m512i words = _mm512_srli_epi32((__m512i)as_int(load(values + i)), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * 2), _mm512_cvtepi32_epi16(words));
  }
}

void load_query(const DecodeProblem& problem, int64_t row, int64_t first_head, int num_heads,
                TileScratch& scratch) {
  const bool bf16 = problem.query_dtype == DType::kBFloat16;
  const int64_t element_bytes = bf16 ? 2 : 1;
  const uint8_t* base =
      static_cast<const uint8_t*>(problem.query.data) +
      (row / problem.q_len * problem.query.batch_stride +
       row % problem.q_len * problem.query.row_stride + first_head * problem.query.head_stride) *
          element_bytes;
  for (int head = 0; head < round_up_to_block(num_heads); head += kTileRows) {
    for (int dim = 0; dim < kHeadDim; dim += kTileDims) {
      __m512i rows[16];
      for (int i = 0; i < kTileRows; ++i) {
        alignas(64) uint8_t values[64] = {};
        if (head + i < num_heads) {
          const uint8_t* p = base + ((head + i) * problem.query.head_stride + dim) * element_bytes;
          if (bf16) {
            __builtin_memcpy(values, p, sizeof(values));
          } else {
            convert_e4m3(p, PackedPage::kExponentBias, values);
          }
        }
        rows[i] = _mm512_load_si512(values);
      }
      transpose(rows);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(&scratch.query[dim / 2 + i][head], rows[i]);
    }
  }
}

void dequantise(KvFormat format, const SlotAddress& slot, uint8_t* key) {
  const int e4m3_dims = format == KvFormat::kBFloat16 ? 0
                        : format == KvFormat::kPacked ? kNopeDim
                                                      : kHeadDim;
  for (int dim = 0; dim < e4m3_dims; dim += kTileDims) {
    const int32_t code = format == KvFormat::kPacked ? slot.scales[dim / PackedPage::kQuantGroup]
                                                     : PackedPage::kExponentBias;
    convert_e4m3(slot.data + dim, code, key + dim * 2);
  }
  __builtin_memcpy(key + e4m3_dims * 2, slot.data + e4m3_dims, size_t(kHeadDim - e4m3_dims) * 2);
}

// Keys of the tile by slot and by pair of slots; zeros up to a whole block.
void load_keys(KvFormat format, const SlotAddress* slots, int num_slots, TileScratch& scratch) {
  const int end = round_up_to_block(num_slots);
  for (int slot = 0; slot < num_slots; ++slot) dequantise(format, slots[slot], scratch.keys[slot]);
  for (int slot = num_slots; slot < end; ++slot)
    __builtin_memset(scratch.keys[slot], 0, kHeadDim * 2);
  for (int pair = 0; pair < end / 2; ++pair) {
    for (int dim = 0; dim < kHeadDim; dim += kTileDims) {
      const __m512i even = _mm512_loadu_si512(scratch.keys[2 * pair] + dim * 2);
      const __m512i odd = _mm512_loadu_si512(scratch.keys[2 * pair + 1] + dim * 2);
      _mm512_storeu_si512(&scratch.values[pair][dim], _mm512_unpacklo_epi16(even, odd));
      _mm512_storeu_si512(&scratch.values[pair][dim + kTileRows], _mm512_unpackhi_epi16(even, odd));
    }
  }
}

void multiply(KvFormat format, const SlotAddress* slots, int num_slots, int num_heads,
              TileScratch& scratch) {
  constexpr int64_t kScoreBytes = kHeadBlock * sizeof(float);
  load_keys(format, slots, num_slots, scratch);
  tiles::configure();
  for (int slot = 0; slot < num_slots; slot += kBlockSlots) {
    for (int head = 0; head < num_heads; head += kBlockSlots) {
      tiles::zero<0>();
      tiles::zero<1>();
      tiles::zero<2>();
      tiles::zero<3>();
      for (int dim = 0; dim < kHeadDim; dim += kTileDims) {
        tiles::load<4>(scratch.keys[slot] + dim * 2, TileScratch::kKeyBytes);
        tiles::load<5>(scratch.keys[slot + kTileRows] + dim * 2, TileScratch::kKeyBytes);
        tiles::load<6>(&scratch.query[dim / 2][head], sizeof(scratch.query[0]));
        tiles::load<7>(&scratch.query[dim / 2][head + kTileRows], sizeof(scratch.query[0]));
        tiles::multiply_add_block();
      }
      tiles::store<0>(&scratch.scores[slot][head], kScoreBytes);
      tiles::store<1>(&scratch.scores[slot][head + kTileRows], kScoreBytes);
      tiles::store<2>(&scratch.scores[slot + kTileRows][head], kScoreBytes);
      tiles::store<3>(&scratch.scores[slot + kTileRows][head + kTileRows], kScoreBytes);
    }
  }
  tiles::release();
}

// weights[head][slot] from the softmax's scores[slot][head], zero beyond the tile's slots.
void load_weights(int num_slots, int num_heads, TileScratch& scratch) {
  for (int head = 0; head < round_up_to_block(num_heads); head += kTileRows) {
    for (int slot = 0; slot < num_slots; slot += kBlockSlots) {
      __m512i rows[16];
      for (int i = 0; i < kTileRows; ++i) {
        const int even = slot + 2 * i;
        const Int low = even < num_slots ? bf16_words(load(&scratch.scores[even][head])) : Int{};
        const Int high =
            even + 1 < num_slots ? bf16_words(load(&scratch.scores[even + 1][head])) : Int{};
        rows[i] = (__m512i)(low | (high << 16));
      }
      transpose(rows);
      for (int i = 0; i < kTileRows; ++i)
        _mm512_storeu_si512(&scratch.weights[head + i][slot], rows[i]);
    }
  }
}

void accumulate(KvFormat, const SlotAddress*, int num_slots, int num_heads, TileScratch& scratch,
                bool first) {
  constexpr int64_t kOutBytes = kHeadDim * sizeof(float);
  load_weights(num_slots, num_heads, scratch);
  tiles::configure();
  for (int dim = 0; dim < kHeadDim; dim += kTileDims) {
    for (int head = 0; head < num_heads; head += kBlockSlots) {
      if (first) {
        tiles::zero<0>();
        tiles::zero<1>();
        tiles::zero<2>();
        tiles::zero<3>();
      } else {
        tiles::load<0>(&scratch.out[head][dim], kOutBytes);
        tiles::load<1>(&scratch.out[head][dim + kTileRows], kOutBytes);
        tiles::load<2>(&scratch.out[head + kTileRows][dim], kOutBytes);
        tiles::load<3>(&scratch.out[head + kTileRows][dim + kTileRows], kOutBytes);
      }
      for (int slot = 0; slot < num_slots; slot += kBlockSlots) {
        tiles::load<4>(&scratch.weights[head][slot], sizeof(scratch.weights[0]));
        tiles::load<5>(&scratch.weights[head + kTileRows][slot], sizeof(scratch.weights[0]));
        tiles::load<6>(&scratch.values[slot / 2][dim], sizeof(scratch.values[0]));
        tiles::load<7>(&scratch.values[slot / 2][dim + kTileRows], sizeof(scratch.values[0]));
        tiles::multiply_add_block();
      }
      tiles::store<0>(&scratch.out[head][dim], kOutBytes);
      tiles::store<1>(&scratch.out[head][dim + kTileRows], kOutBytes);
      tiles::store<2>(&scratch.out[head + kTileRows][dim], kOutBytes);
      tiles::store<3>(&scratch.out[head + kTileRows][dim + kTileRows], kOutBytes);
    }
  }
  tiles::release();
}

struct TileKernel {
  using Storage = TileScratch;
  static constexpr auto load_query = DSV4_SIMD::load_query;
  static constexpr auto multiply = DSV4_SIMD::multiply;
  static constexpr auto accumulate = DSV4_SIMD::accumulate;
  static Float rounded(Float weight) { return round_to_bf16(weight); }
  static const float* out_of(TileScratch& scratch, int head) {
    constexpr int kRun = 4;  // dims that unpack leaves together
    for (int group = 0; group < kHeadDim; group += kTileDims) {
      for (int i = 0; i < kTileRows; i += kRun) {
        const float* out = &scratch.out[head][group + i];
        __builtin_memcpy(&scratch.ordered[group + 2 * i], out, kRun * sizeof(float));
        __builtin_memcpy(&scratch.ordered[group + 2 * i + kRun], out + kTileRows,
                         kRun * sizeof(float));
      }
    }
    return scratch.ordered;
  }
};

}  // namespace

void run_task(const DecodeJob& job, int64_t task, void* scratch) {
  run<TileKernel>(job, task, *static_cast<TileScratch*>(scratch));
}

}  // namespace dsv4::cpu::DSV4_SIMD
