// SPDX-License-Identifier: Apache-2.0
// What a softmax thread does with the scores it has of a head: x[i], two slots each, in base 2.
#pragma once

#include <math_constants.h>

#include "ptx/convert.cuh"
#include "ptx/float_pair.cuh"
#include "ptx/tcgen05.cuh"

namespace dsv4::sm100 {

// A weight is 2^(score - reference + weight exponent). The reference is the largest score when it
// was set, and is set anew when a score is kReferenceSlack ahead. The largest weights are
//   e4m3   below 448, where it ends
//   bf16   such that all of a row's add up to at most 1, so that no sum of keys overflows
template <class Format>
__device__ __forceinline__ float weight_exponent(int32_t num_slots) {
  if constexpr (Format::kKind == ptx::TensorKind::kFloat8) return 5.0f;
  const int log2_slots = 32 - __clz(num_slots);  // rounded up
  return static_cast<float>(-log2_slots) - Format::kReferenceSlack;
}

inline constexpr int kWeightWords = 16;  // of a thread: its weights of a tile, rounded

template <int kPairs>
__device__ __forceinline__ void drop_holes(float2 (&x)[kPairs],
                                           const uint32_t (&valid)[kPairs / 16]) {
  const auto is_valid = [&](int slot) { return valid[slot / 32] >> slot % 32 & 1; };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    x[i].x = is_valid(2 * i) ? x[i].x : -CUDART_INF_F;
    x[i].y = is_valid(2 * i + 1) ? x[i].y : -CUDART_INF_F;
  }
}

template <int kPairs>
__device__ __forceinline__ float largest_of(const float2 (&x)[kPairs]) {
  float largest[4] = {-CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    largest[i % 4] = ptx::max_of_three(largest[i % 4], x[i].x, x[i].y);
  }
  return fmaxf(ptx::max_of_three(largest[0], largest[1], largest[2]), largest[3]);
}

template <int kPairs>
__device__ __forceinline__ float2 add_all(float2 sum, const float2 (&x)[kPairs]) {
  uint64_t part[2] = {ptx::bits_of(sum), 0};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) part[i % 2] = ptx::add(part[i % 2], ptx::bits_of(x[i]));
  return ptx::pair_of(ptx::add(part[0], part[1]));
}

template <class Format, int kPairs>
__device__ __forceinline__ void round_weights(const float2 (&x)[kPairs],
                                              uint32_t (&words)[kWeightWords]) {
#pragma unroll
  for (int i = 0; i < kWeightWords; ++i) {
    if constexpr (Format::kKind == ptx::TensorKind::kFloat8) {
      words[i] = ptx::pack_e4m3(x[2 * i].x, x[2 * i].y, x[2 * i + 1].x, x[2 * i + 1].y);
    } else {
      words[i] = ptx::pack<ptx::Half::kBFloat16>(x[i].x, x[i].y);
    }
  }
}

// Multiplies the thread's lane of `kColumns` columns.
template <int kColumns>
__device__ __forceinline__ void scale_columns(uint32_t tensor, float factor) {
#pragma unroll 1
  for (int column = 0; column < kColumns; column += 32) {
    float values[32];
    ptx::tensor_load(tensor + column, values);
    ptx::tensor_wait_loads();
    uint32_t bits[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) bits[i] = __float_as_uint(values[i] * factor);
    ptx::tensor_store(tensor + column, bits);
  }
}

}  // namespace dsv4::sm100
