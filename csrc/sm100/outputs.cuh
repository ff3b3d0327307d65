// SPDX-License-Identifier: Apache-2.0
// Sums in tensor memory -> outputs of a row, or a part's place in the workspace.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/tcgen05.cuh"
#include "sm100/config.cuh"

namespace dsv4::sm100 {

__device__ __forceinline__ uint4 to_words(const uint32_t* sums, float factor, float*) {
  const auto scaled = [&](int i) { return __float_as_uint(__uint_as_float(sums[i]) * factor); };
  return make_uint4(scaled(0), scaled(1), scaled(2), scaled(3));
}

__device__ __forceinline__ uint4 to_words(const uint32_t* sums, float factor, uint16_t*) {
  const auto pair = [&](int i) {
    return ptx::pack<ptx::Half::kBFloat16>(__uint_as_float(sums[2 * i]) * factor,
                                           __uint_as_float(sums[2 * i + 1]) * factor);
  };
  return make_uint4(pair(0), pair(1), pair(2), pair(3));
}

// Multiplies a warp's sums by each head's factor, and stores its first `num_heads` heads as bf16 or
// float: target[head * head_stride + dim]. Each thread has 64 bytes of a head's outputs at a time,
// which cross shared memory so that neighbouring threads store them together.
template <class Element>
__device__ __forceinline__ void store_outputs(uint8_t (&staging)[32][64], uint32_t tensor,
                                              float factor, int num_heads, Element* target,
                                              int64_t head_stride) {
  constexpr int kDims = 64 / sizeof(Element), kDimsPerWord = 16 / sizeof(Element);
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int column = 0; column < kOutputColumns; column += kDims) {
    uint32_t sums[kDims];
    ptx::tensor_load(tensor + kOutputColumn + column, sums);
    ptx::tensor_wait_loads();
    // Four words of 16 bytes, in an order that meets each bank once.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint4*>(&staging[lane][(i ^ lane / 2 % 4) * 16]) =
          to_words(sums + i * kDimsPerWord, factor, static_cast<Element*>(nullptr));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int from = i * 8 + lane / 4, head = from % 16, word = lane % 4;
      const int dim = from / 16 * kOutputColumns + column + word * kDimsPerWord;
      const uint4 words =
          *reinterpret_cast<const uint4*>(&staging[from][(word ^ from / 2 % 4) * 16]);
      if (head < num_heads) *reinterpret_cast<uint4*>(target + head * head_stride + dim) = words;
    }
    __syncwarp();
  }
}

}  // namespace dsv4::sm100
