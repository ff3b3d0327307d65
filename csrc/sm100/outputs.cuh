// SPDX-License-Identifier: Apache-2.0
// Sums in tensor memory -> outputs of a row, or a part's place in the workspace.
#pragma once

#include <type_traits>

#include "ptx/convert.cuh"
#include "ptx/tcgen05.cuh"

namespace dsv4::sm100 {

inline constexpr int kOutputColumns = 256;  // of a lane: its half of the dims

__device__ __forceinline__ uint4 to_words(const float* sums, float factor, float*) {
  const auto scaled = [&](int i) { return __float_as_uint(sums[i] * factor); };
  return make_uint4(scaled(0), scaled(1), scaled(2), scaled(3));
}

__device__ __forceinline__ uint4 to_words(const float* sums, float factor, uint16_t*) {
  const auto pair = [&](int i) {
    return ptx::pack<ptx::Half::kBFloat16>(sums[2 * i] * factor, sums[2 * i + 1] * factor);
  };
  return make_uint4(pair(0), pair(1), pair(2), pair(3));
}

// Multiplies the sums of a warp, which has `kHeads` heads, by each head's factor, and stores those
// of the first `num_heads` as bf16 or float: target_of(head)[dim]. Lane l has head l % kHeads and
// the (l / kHeads)-th kOutputColumns dims, from column `outputs` on. Each thread has 64 bytes of a
// head's outputs at a time, which cross shared memory so that neighbouring threads store them
// together. False if kAsks and a sum of the thread is infinite or NaN.
template <int kHeads, bool kAsks, class TargetOf>
__device__ __forceinline__ bool store_outputs(uint8_t (&staging)[32][64], uint32_t outputs,
                                              float factor, int num_heads, TargetOf target_of) {
  using Element = std::remove_pointer_t<decltype(target_of(0))>;
  constexpr int kDims = 64 / sizeof(Element), kDimsPerWord = 16 / sizeof(Element);
  static_assert(kHeads % 8 == 0);
  const int lane = threadIdx.x % 32;
  // Four words of 16 bytes, in an order that meets each bank once. A thread writes those of its own
  // lane, and stores word l % 4 of lanes l / 4, l / 4 + 8, and so on.
  const auto place = [&](int from, int word) {
    return reinterpret_cast<uint4*>(&staging[from][(word ^ from / 2 % 4) * 16]);
  };
  uint4* const stored_from = place(lane / 4, lane % 4);
  Element* target[kHeads / 8];
#pragma unroll
  for (int i = 0; i < kHeads / 8; ++i) {
    target[i] = target_of(i * 8 + lane / 4) + lane % 4 * kDimsPerWord;
  }
  float zero = 0.0f;
#pragma unroll 1
  for (int column = 0; column < kOutputColumns; column += kDims) {
    float sums[kDims];
    ptx::tensor_load(outputs + column, sums);
    ptx::tensor_wait_loads();
    if constexpr (kAsks) {
#pragma unroll
      for (int i = 0; i < kDims; ++i) zero = fmaf(sums[i], 0.0f, zero);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *place(lane, i) = to_words(sums + i * kDimsPerWord, factor, static_cast<Element*>(nullptr));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = i * 8 % kHeads, dim = i * 8 / kHeads * kOutputColumns;
      const uint4 words = stored_from[i * 8 * sizeof(staging[0]) / sizeof(uint4)];
      if (head + lane / 4 < num_heads) {
        *reinterpret_cast<uint4*>(target[head / 8] + column + dim) = words;
      }
    }
    __syncwarp();
  }
  return zero == 0.0f;
}

}  // namespace dsv4::sm100
