// SPDX-License-Identifier: Apache-2.0
// The products of a task (task.h) with vector multiply-adds.
//
//   multiply    scores[slot][head] = keys . query        vectors along heads, keys broadcast
//   accumulate  out[head][512] += weights . keys         vectors along dims, weights broadcast
//
// Both products go through the dims 32 at a time, and dequantise that slice of the keys just before
// they use it: twice a tile, but into a buffer that stays in the first-level cache.
//
// Compiled once for each instruction set, with DSV4_SIMD its name and DSV4_SIMD_BYTES its vector
// length. Nothing from the standard library is used here: an inline function of its headers,
// compiled for one instruction set, could be linked into code that runs on a machine without it.
#include "cpu/decode_kernel.h"

#include "cpu/simd.h"
#include "cpu/task.h"

namespace dsv4::cpu::DSV4_SIMD {
namespace {

// Register blocks: accumulators + operands fit the 32 vector registers of AVX-512 or the 16 of the
// others, and there are at least 8 accumulators to hide the latency of two multiply-add units.
constexpr int kMaxHeadVectors = kLanes == 16 ? 4 : 2;
constexpr int slots_per_block(int head_vectors) {
  return head_vectors <= kMaxHeadVectors / 2 ? 8 : 4;
}
static_assert(kTileSlots % 8 == 0 && kNopeDim % kDimChunk == 0 && kRopeDim % kDimChunk == 0);

// Keys of the tile, dims [dim, dim + kDimChunk), as floats.
void dequantise(KvFormat format, const SlotAddress* slots, int num_slots, int dim,
                Scratch& scratch) {
  if (format == KvFormat::kBFloat16 || (format == KvFormat::kPacked && dim >= kNopeDim)) {
    const int first_byte =
        format == KvFormat::kBFloat16 ? dim * 2 : kNopeDim + (dim - kNopeDim) * 2;
    for (int slot = 0; slot < num_slots; ++slot) {
      const uint8_t* data = slots[slot].data + first_byte;
      for (int i = 0; i < kDimChunk; i += kLanes)
        store(&scratch.keys[slot][i], load_bf16(data + i * 2));
    }
    return;
  }
  for (int slot = 0; slot < num_slots; ++slot) {
    const uint8_t* data = slots[slot].data + dim;
    const int32_t code = format == KvFormat::kPacked
                             ? slots[slot].scales[dim / PackedPage::kQuantGroup]
                             : PackedPage::kExponentBias;
    if (code + kE4m3Shift < 255 && code + kE4m3Shift > 0) {
      const Float scale = as_float(Int{} + ((code + kE4m3Shift) << 23));
      for (int i = 0; i < kDimChunk; i += kE4m3Step)
        store_e4m3(data + i, scale, &scratch.keys[slot][i]);
    } else {
      // 2^(code - 127) does not go with the shift: near the largest float, a denormal, or NaN.
      const Float scale = as_float(Int{} + (code == 0     ? 0x00400000
                                            : code == 255 ? 0x7FC00000
                                                          : code << 23));
      for (int i = 0; i < kDimChunk; i += kLanes)
        store(&scratch.keys[slot][i], load_e4m3(data + i) * scale);
    }
  }
}

// Query heads as columns: query[d][head], zero from num_heads to a full vector.
void load_query(const DecodeProblem& problem, int64_t row, int64_t first_head, int num_heads,
                Scratch& scratch) {
  const int64_t element_bytes = problem.query_dtype == DType::kBFloat16 ? 2 : 1;
  const uint8_t* base =
      static_cast<const uint8_t*>(problem.query.data) +
      (row / problem.q_len * problem.query.batch_stride +
       row % problem.q_len * problem.query.row_stride + first_head * problem.query.head_stride) *
          element_bytes;
  alignas(64) float rows[kLanes][kLanes];
  for (int head = 0; head < num_heads; head += kLanes) {
    const int count = num_heads - head < kLanes ? num_heads - head : kLanes;
    for (int i = count; i < kLanes; ++i) store(rows[i], Float{});
    for (int d = 0; d < kHeadDim; d += kLanes) {
      for (int i = 0; i < count; ++i) {
        const uint8_t* p = base + ((head + i) * problem.query.head_stride + d) * element_bytes;
        store(rows[i], element_bytes == 2 ? load_bf16(p) : load_e4m3(p));
      }
      for (int j = 0; j < kLanes; ++j) {
        Float column;
        for (int i = 0; i < kLanes; ++i) column[i] = rows[i][j];
        store(&scratch.query[d + j][head], column);
      }
    }
  }
}

// scores[slot .. slot + kSlots)[head .. head + kVectors lanes) += keys . query over one chunk of
// dims.
template <int kSlots, int kVectors>
void multiply_block(Scratch& scratch, int slot, int head, int dim) {
  Float sum[kSlots][kVectors];
  for (int s = 0; s < kSlots; ++s) {
    for (int v = 0; v < kVectors; ++v) {
      sum[s][v] = dim == 0 ? Float{} : load(&scratch.scores[slot + s][head + v * kLanes]);
    }
  }
  for (int d = 0; d < kDimChunk; ++d) {
    Float query[kVectors];
    for (int v = 0; v < kVectors; ++v) query[v] = load(&scratch.query[dim + d][head + v * kLanes]);
    for (int s = 0; s < kSlots; ++s) {
      const Float key = broadcast(scratch.keys[slot + s][d]);
      for (int v = 0; v < kVectors; ++v) sum[s][v] += key * query[v];
    }
  }
  for (int s = 0; s < kSlots; ++s) {
    for (int v = 0; v < kVectors; ++v)
      store(&scratch.scores[slot + s][head + v * kLanes], sum[s][v]);
  }
}

template <int kVectors>
void multiply_heads(Scratch& scratch, int num_slots, int head, int dim) {
  constexpr int kSlots = slots_per_block(kVectors);
  for (int slot = 0; slot < num_slots; slot += kSlots) {
    multiply_block<kSlots, kVectors>(scratch, slot, head, dim);
  }
}

void multiply(KvFormat format, const SlotAddress* slots, int num_slots, int num_heads,
              Scratch& scratch) {
  // The blocks go past num_slots to a multiple of 8: give them numbers to chew on.
  for (int slot = num_slots; slot % 8 != 0; ++slot) {
    for (int i = 0; i < kDimChunk; i += kLanes) store(&scratch.keys[slot][i], Float{});
  }
  const int vectors = (num_heads + kLanes - 1) / kLanes;
  for (int dim = 0; dim < kHeadDim; dim += kDimChunk) {
    dequantise(format, slots, num_slots, dim, scratch);
    for (int v = 0; v < vectors; v += kMaxHeadVectors) {
      switch (vectors - v < kMaxHeadVectors ? vectors - v : kMaxHeadVectors) {
        case 1:
          multiply_heads<1>(scratch, num_slots, v * kLanes, dim);
          break;
        case 2:
          multiply_heads<2>(scratch, num_slots, v * kLanes, dim);
          break;
        case 3:
          multiply_heads<kMaxHeadVectors == 4 ? 3 : 1>(scratch, num_slots, v * kLanes, dim);
          break;
        default:
          multiply_heads<kMaxHeadVectors>(scratch, num_slots, v * kLanes, dim);
          break;
      }
    }
  }
}

// out[head .. head + kHeads)[dim + i .. dim + i + kVectors lanes) += weights . keys over the tile,
// where i counts within the chunk.
template <int kHeads, int kVectors>
void accumulate_block(Scratch& scratch, int num_slots, int head, int dim, int i, bool first) {
  Float sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      sum[h][v] = first ? Float{} : load(&scratch.out[head + h][dim + i + v * kLanes]);
    }
  }
  for (int slot = 0; slot < num_slots; ++slot) {
    Float key[kVectors];
    for (int v = 0; v < kVectors; ++v) key[v] = load(&scratch.keys[slot][i + v * kLanes]);
    for (int h = 0; h < kHeads; ++h) {
      const Float weight = broadcast(scratch.scores[slot][head + h]);
      for (int v = 0; v < kVectors; ++v) sum[h][v] += weight * key[v];
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v)
      store(&scratch.out[head + h][dim + i + v * kLanes], sum[h][v]);
  }
}

void accumulate(KvFormat format, const SlotAddress* slots, int num_slots, int num_heads,
                Scratch& scratch, bool first) {
  constexpr int kVectors = 2;
  constexpr int kMostHeads = kLanes == 16 ? 8 : 4;
  for (int dim = 0; dim < kHeadDim; dim += kDimChunk) {
    dequantise(format, slots, num_slots, dim, scratch);
    for (int i = 0; i < kDimChunk; i += kVectors * kLanes) {
      int head = 0;
      for (; head + kMostHeads <= num_heads; head += kMostHeads) {
        accumulate_block<kMostHeads, kVectors>(scratch, num_slots, head, dim, i, first);
      }
      for (; head + 2 <= num_heads; head += 2) {
        accumulate_block<2, kVectors>(scratch, num_slots, head, dim, i, first);
      }
      if (head < num_heads) accumulate_block<1, kVectors>(scratch, num_slots, head, dim, i, first);
    }
  }
}

struct VectorKernel {
  using Storage = Scratch;
  static constexpr auto load_query = DSV4_SIMD::load_query;
  static constexpr auto multiply = DSV4_SIMD::multiply;
  static constexpr auto accumulate = DSV4_SIMD::accumulate;
  static Float rounded(Float weight) { return weight; }
  static const float* out_of(Scratch& scratch, int head) { return scratch.out[head]; }
};

}  // namespace

void run_task(const DecodeJob& job, int64_t task, void* scratch) {
  run<VectorKernel>(job, task, *static_cast<Scratch*>(scratch));
}

}  // namespace dsv4::cpu::DSV4_SIMD
