// SPDX-License-Identifier: Apache-2.0
// One task of a decode: some heads of one query row over a part of its slots.
//
//   collect     index table -> addresses of up to 64 valid slots (holes never enter a tile)
//   multiply    scores[slot][head] = keys . query        vectors along heads, keys broadcast
//   softmax     scores -> weights, running max and sum   vectors along heads
//   accumulate  out[head][512] += weights . keys         vectors along dims, weights broadcast
//   finish      out / sum, sinks, scale2, lse            or the normalised part, for the combine
//
// Both products go through the dims 32 at a time, and dequantise that slice of the keys just before
// they use it: twice a tile, but into a buffer that stays in the first-level cache.
//
// Compiled once for each instruction set, with DSV4_SIMD its name and DSV4_SIMD_BYTES its vector
// length. Nothing from the standard library is used here: an inline function of its headers,
// compiled for one instruction set, could be linked into code that runs on a machine without it.
#include "cpu/decode_kernel.h"

#include "cpu/bf16.h"
#include "cpu/simd.h"
#include "cpu/softmax.h"
#include "row_length.h"

namespace dsv4::cpu::DSV4_SIMD {
namespace {

constexpr float kMaxFloat = 3.402823466e38f;

// Register blocks: accumulators + operands fit the 32 vector registers of AVX-512 or the 16 of the
// others, and there are at least 8 accumulators to hide the latency of two multiply-add units.
constexpr int kMaxHeadVectors = kLanes == 16 ? 4 : 2;
constexpr int slots_per_block(int head_vectors) {
  return head_vectors <= kMaxHeadVectors / 2 ? 8 : 4;
}
static_assert(kTileSlots % 8 == 0 && kNopeDim % kDimChunk == 0 && kRopeDim % kDimChunk == 0);

// Where one valid slot lies.
struct SlotAddress {
  const uint8_t* data;
  const uint8_t* scales;  // packed format only
};

// Walks the columns of both segments in order and hands out the valid slots.
class SlotCursor {
 public:
  SlotCursor(const DecodeProblem& problem, int64_t row, int64_t num_splits, int64_t split)
      : problem_(problem) {
    const int64_t window = active(problem.window, row, &window_indices_);
    const int64_t compressed = active(problem.compressed, row, &compressed_indices_);
    window_length_ = window;
    const SplitRange range = split_range(window + compressed, num_splits, split);
    column_ = range.begin;
    end_ = range.end;
  }

  int64_t num_columns() const { return end_ - column_; }

  // Up to kTileSlots further valid slots; fewer only at the end.
  int next(SlotAddress* slots) {
    int count = 0;
    if (column_ < window_length_) {
      const int64_t end = end_ < window_length_ ? end_ : window_length_;
      column_ = take(problem_.window, window_indices_, column_, end, slots, count);
    }
    if (column_ >= window_length_ && column_ < end_) {
      column_ =
          window_length_ + take(problem_.compressed, compressed_indices_, column_ - window_length_,
                                end_ - window_length_, slots, count);
    }
    return count;
  }

 private:
  int64_t active(const Segment& segment, int64_t row, const int32_t** indices) const {
    if (segment.indices == nullptr) return 0;
    *indices = segment.indices + row / problem_.q_len * segment.index_batch_stride +
               row % problem_.q_len * segment.index_row_stride;
    return row_length(segment.length, row, segment_width(segment));
  }

  // Takes slots of columns [column, end) until the tile is full; returns the column after the last
  // one looked at.
  int64_t take(const Segment& segment, const int32_t* indices, int64_t column, int64_t end,
               SlotAddress* slots, int& count) const {
    const PoolView& pool = segment.pool;
    const bool packed = problem_.kv_format == KvFormat::kPacked;
    for (; column < end && count < kTileSlots; ++column) {
      int64_t page, offset;
      if (segment.index_form == IndexForm::kTokenRows) {
        page = indices[column] / pool.page_size;
        offset = indices[column] % pool.page_size;
        if (indices[column] < 0) continue;
      } else {
        page = indices[column / pool.page_size];
        offset = column % pool.page_size;
        if (page < 0) continue;
      }
      if (page >= pool.num_pages) continue;
      const uint8_t* base = static_cast<const uint8_t*>(pool.data) + page * pool.page_stride_bytes;
      slots[count++] = packed ? SlotAddress{base + PackedPage::data_offset(offset),
                                            base + PackedPage::scale_offset(offset, pool.page_size)}
                              : SlotAddress{base + offset * pool.token_stride_bytes, nullptr};
    }
    return column;
  }

  const DecodeProblem& problem_;
  const int32_t* window_indices_ = nullptr;
  const int32_t* compressed_indices_ = nullptr;
  int64_t window_length_ = 0;
  int64_t column_ = 0, end_ = 0;
};

// Asks for the bytes of slots that the next tile will need.
void prefetch(const SlotAddress* slots, int count, KvFormat format) {
  constexpr int kLineBytes = 64;
  const int bytes = format == KvFormat::kBFloat16 ? kHeadDim * 2
                    : format == KvFormat::kPacked ? PackedPage::kTokenDataBytes
                                                  : kHeadDim;
  for (int j = 0; j < count; ++j) {
    for (int i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(slots[j].data + i, 0, 2);
    if (format == KvFormat::kPacked) __builtin_prefetch(slots[j].scales, 0, 2);
  }
}

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

// Turns scores into weights 2^(score - max - headroom) and keeps max and sum of each head. Where a
// head's max moved, its sum and its output so far are scaled down; where it did not, the factor is
// exactly 1.
void softmax(Scratch& scratch, int num_slots, int num_heads, float scale, float headroom,
             bool first) {
  for (int head = 0; head < num_heads; head += kLanes) {
    Float tile_max = broadcast(-kMaxFloat);
    for (int slot = 0; slot < num_slots; ++slot) {
      // An overflow on the way here must not give inf - inf below. NaN passes both comparisons'
      // else.
      Float score = load(&scratch.scores[slot][head]) * scale;
      score = score > kMaxFloat ? broadcast(kMaxFloat) : score;
      score = score < -kMaxFloat ? broadcast(-kMaxFloat) : score;
      store(&scratch.scores[slot][head], score);
      tile_max = max(score, tile_max);
    }
    const Float old_max = first ? tile_max : load(&scratch.row_max[head]);
    const Float new_max = max(old_max, tile_max);
    const Float factor = exp2(old_max - new_max);
    Float sum = first ? Float{} : load(&scratch.row_sum[head]) * factor;
    for (int slot = 0; slot < num_slots; ++slot) {
      const Float weight = exp2(load(&scratch.scores[slot][head]) - new_max - headroom);
      store(&scratch.scores[slot][head], weight);
      sum += weight;
    }
    store(&scratch.row_max[head], new_max);
    store(&scratch.row_sum[head], sum);
    for (int i = 0; i < kLanes && head + i < num_heads; ++i) {
      if (first || factor[i] == 1.0f) continue;
      float* out = scratch.out[head + i];
      for (int d = 0; d < kHeadDim; d += kLanes) store(out + d, load(out + d) * factor[i]);
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

// The row is complete: writes out and lse.
void finish_row(const DecodeProblem& problem, int64_t row, int64_t head, const float* sum_of_keys,
                float weight_sum, float lse, bool empty) {
  const int64_t batch = row / problem.q_len, query = row % problem.q_len;
  const float* sink = problem.sinks != nullptr ? problem.sinks + head : nullptr;
  if (problem.lse.data != nullptr) {
    problem.lse.data[batch * problem.lse.batch_stride + query * problem.lse.row_stride +
                     head * problem.lse.head_stride] =
        empty ? empty_lse(problem.lse_options) : reported_lse(lse, sink, problem.lse_options);
  }
  uint16_t* out = static_cast<uint16_t*>(problem.out.data) + batch * problem.out.batch_stride +
                  query * problem.out.row_stride + head * problem.out.head_stride;
  if (empty) {
    __builtin_memset(out, 0, kHeadDim * sizeof(*out));
    return;
  }
  float share = 1.0f / weight_sum;
  if (sink != nullptr && !problem.defer_sinks) share *= sink_factor(lse, *sink);
  const float scale2 = scale_value(problem.scale2);
  // Two steps: share x scale2 alone could overflow or vanish where the product does not.
  for (int d = 0; d < kHeadDim; ++d) out[d] = to_bf16(sum_of_keys[d] * share * scale2);
}

// The row is one of several parts: leaves a normalised part and its lse for the combine.
void finish_part(const DecodeJob& job, int64_t row, int64_t split, int64_t head,
                 const float* sum_of_keys, float weight_sum, float lse, bool empty) {
  const int64_t partial = (row * job.plan.num_splits + split) * job.problem->heads + head;
  job.partial_lse[partial] = empty ? -kInfinity : lse;
  if (empty) return;
  const float share = 1.0f / weight_sum;
  float* out = job.partial_out + partial * kHeadDim;
  for (int d = 0; d < kHeadDim; d += kLanes) store(out + d, load(sum_of_keys + d) * share);
}

}  // namespace

void run_task(const DecodeJob& job, int64_t task, Scratch& scratch) {
  const DecodeProblem& problem = *job.problem;
  const int64_t split = task % job.plan.num_splits;
  const int64_t block = task / job.plan.num_splits % job.plan.num_head_blocks;
  const int64_t row = task / job.plan.num_splits / job.plan.num_head_blocks;
  const int64_t first_head = block * job.plan.head_block;
  const int64_t heads_left = problem.heads - first_head;
  const int num_heads = int(heads_left < job.plan.head_block ? heads_left : job.plan.head_block);

  SlotCursor cursor(problem, row, job.plan.num_splits, split);
  // Weights of n slots add up to at most 1 when each is at most 2^-ceil(log2 n): no sum of keys,
  // however large, overflows. The power of two leaves the result when it is divided by the sum.
  int headroom = 0;
  while ((int64_t(1) << headroom) < cursor.num_columns()) ++headroom;
  const float scale = scale_value(problem.scale1) * kLog2e;

  SlotAddress tiles[2][kTileSlots];
  int num_slots = cursor.next(tiles[0]);
  const bool empty = num_slots == 0;
  if (!empty) load_query(problem, row, first_head, num_heads, scratch);
  for (int tile = 0; num_slots > 0; ++tile) {
    const SlotAddress* slots = tiles[tile % 2];
    const int num_next = cursor.next(tiles[(tile + 1) % 2]);
    prefetch(tiles[(tile + 1) % 2], num_next, problem.kv_format);
    multiply(problem.kv_format, slots, num_slots, num_heads, scratch);
    softmax(scratch, num_slots, num_heads, scale, float(headroom), tile == 0);
    accumulate(problem.kv_format, slots, num_slots, num_heads, scratch, tile == 0);
    num_slots = num_next;
  }

  for (int head = 0; head < num_heads; ++head) {
    const float weight_sum = empty ? 0.0f : scratch.row_sum[head];
    const float lse =
        empty ? -kInfinity
              : (scratch.row_max[head] + float(headroom) + __builtin_log2f(weight_sum)) * kLn2;
    if (job.plan.num_splits == 1) {
      finish_row(problem, row, first_head + head, scratch.out[head], weight_sum, lse, empty);
    } else {
      finish_part(job, row, split, first_head + head, scratch.out[head], weight_sum, lse, empty);
    }
  }
}

}  // namespace dsv4::cpu::DSV4_SIMD
