// SPDX-License-Identifier: Apache-2.0
// Writing and reading the caches: append by slot, pack and unpack whole pages.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/bf16.h"
#include "cpu/engine.h"
#include "cpu/softmax.h"
#include "cpu/threads.h"

namespace dsv4::cpu {
namespace {

constexpr float kMaxE4m3 = 448.0f;
constexpr float kSmallestAmax = 1e-4f;

// Nearest e4m3, ties to even, saturating; NaN and infinities become NaN.
uint8_t to_e4m3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (!std::isfinite(x)) return sign | 0x7F;
  const float magnitude = std::min(std::fabs(x), kMaxE4m3);
  if (magnitude == 0.0f) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);       // magnitude in [2^(exponent-1), 2^exponent)
  exponent = std::max(exponent - 1, -6);  // below 2^-6 numbers are multiples of 2^-9
  const float steps = std::ldexp(magnitude, 3 - exponent);  // exact: in units of the last place
  const int rounded = int(std::nearbyint(steps));           // 0 .. 16
  // Subnormals and the carry into the next exponent fall out of one sum.
  return sign | uint8_t(((exponent + 6) << 3) + rounded);
}

// x / scale as e4m3. The quotient of a finite x saturates even where it overflows a float.
uint8_t divide_to_e4m3(float x, float scale) {
  return to_e4m3(std::isfinite(x) ? std::clamp(x / scale, -kMaxE4m3, kMaxE4m3) : x);
}

float from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                  : std::ldexp(float(8 + mantissa), exponent - 10);
  if ((bits & 0x7F) == 0x7F) magnitude = NAN;
  return bits & 0x80 ? -magnitude : magnitude;
}

// Exponent e of the scale 2^e = 2^ceil(log2(max(amax, 1e-4) / 448)): the smallest with amax <= 448
// x 2^e.
int scale_exponent(float amax) {
  int exponent;
  const float fraction = std::frexp(std::max(amax, kSmallestAmax), &exponent);
  return exponent - 9 + (fraction > kMaxE4m3 / 512.0f ? 1 : 0);  // 448 = 0.875 x 2^9
}

// One token: 448 values as e4m3 with a scale for each 64, 64 values as they are.
void pack_token(const uint16_t* values, uint8_t* data, uint8_t* scales) {
  for (int group = 0; group < PackedPage::kNumScales; ++group) {
    const int first = group * PackedPage::kQuantGroup;
    float amax = 0.0f;
    for (int d = first; d < first + PackedPage::kQuantGroup; ++d) {
      // A value that is not finite must not take the others with it: it packs as NaN by itself.
      const float x = std::fabs(from_bf16(values[d]));
      if (std::isfinite(x)) amax = std::max(amax, x);
    }
    const int exponent = scale_exponent(amax);
    scales[group] = uint8_t(exponent + PackedPage::kExponentBias);
    for (int d = first; d < first + PackedPage::kQuantGroup; ++d) {
      data[d] = to_e4m3(std::ldexp(from_bf16(values[d]), -exponent));
    }
  }
  std::memset(scales + PackedPage::kNumScales, 0,
              PackedPage::kTokenScaleBytes - PackedPage::kNumScales);
  std::memcpy(data + kNopeDim, values + kNopeDim, kRopeDim * sizeof(*values));
}

void unpack_token(const uint8_t* data, const uint8_t* scales, uint16_t* values) {
  for (int d = 0; d < kNopeDim; ++d) {
    const uint8_t code = scales[d / PackedPage::kQuantGroup];
    const float scale = code == 255 ? NAN : std::ldexp(1.0f, code - PackedPage::kExponentBias);
    values[d] = to_bf16(from_e4m3(data[d]) * scale);
  }
  std::memcpy(values + kNopeDim, data + kNopeDim, kRopeDim * sizeof(*values));
}

}  // namespace

Status append_kv_cache(const AppendProblem& problem, Stream) {
  const MutablePoolView& pool = problem.pool;
  const float scale = scale_value(problem.scale);
  parallel_for_items(problem.executor, problem.rows, [&](int64_t row) {
    const int64_t slot = problem.slots_are_64bit ? static_cast<const int64_t*>(problem.slots)[row]
                                                 : static_cast<const int32_t*>(problem.slots)[row];
    if (slot < 0 || slot / pool.page_size >= pool.num_pages) return;
    const uint16_t* values =
        static_cast<const uint16_t*>(problem.values) + row * problem.value_row_stride;
    uint8_t* page =
        static_cast<uint8_t*>(pool.data) + slot / pool.page_size * pool.page_stride_bytes;
    const int64_t offset = slot % pool.page_size;
    uint8_t* token = page + offset * pool.token_stride_bytes;
    switch (problem.kv_format) {
      case KvFormat::kPacked:
        pack_token(values, page + PackedPage::data_offset(offset),
                   page + PackedPage::scale_offset(offset, pool.page_size));
        break;
      case KvFormat::kBFloat16:
        std::memcpy(token, values, kHeadDim * sizeof(*values));
        break;
      case KvFormat::kFloat8E4M3:
        for (int d = 0; d < kHeadDim; ++d) token[d] = divide_to_e4m3(from_bf16(values[d]), scale);
        break;
    }
  });
  return {};
}

namespace {

// Calls body(values, data, scales) for each token of each page.
template <class Body>
void for_each_token(const PackProblem& problem, Body&& body) {
  parallel_for_items(problem.executor, problem.num_pages * problem.page_size, [&](int64_t token) {
    const int64_t page = token / problem.page_size, slot = token % problem.page_size;
    uint8_t* packed = static_cast<uint8_t*>(problem.packed) + page * problem.page_stride_bytes;
    body(static_cast<uint16_t*>(problem.values) + page * problem.value_page_stride +
             slot * problem.value_token_stride,
         packed + PackedPage::data_offset(slot),
         packed + PackedPage::scale_offset(slot, problem.page_size));
  });
}

}  // namespace

Status pack_kv_cache(const PackProblem& problem, Stream) {
  for_each_token(problem, pack_token);
  return {};
}

Status unpack_kv_cache(const PackProblem& problem, Stream) {
  for_each_token(problem, [](uint16_t* values, const uint8_t* data, const uint8_t* scales) {
    unpack_token(data, scales, values);
  });
  return {};
}

}  // namespace dsv4::cpu
