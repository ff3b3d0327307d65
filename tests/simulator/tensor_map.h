// SPDX-License-Identifier: Apache-2.0
// Tensor maps in an encoding of our own. The hardware's is not documented, and nothing but
// cuTensorMapEncodeTiled and the copies of tensor_copy.cpp looks inside one, so any 128 bytes do.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-tensormap
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "descriptors.h"
#include "ptx.h"

namespace dsv4::simulator {

inline constexpr uint32_t kMaxTensorRank = 5;
inline constexpr size_t kTensorMapBytes = 128;

// Numbered as CUtensorMapDataType.
enum class TensorElement : uint8_t { kU8, kU16, kU32, kS32, kU64, kS64, kF16, kF32, kF64, kBF16 };
ptx::Type type_of(TensorElement element);

struct TensorMap {
  static constexpr uint32_t kMagic = 0x34564450;

  uint32_t magic = 0;
  uint8_t rank = 0;
  TensorElement element = TensorElement::kU8;
  Swizzle swizzle = Swizzle::kNone;
  bool fill_with_nan = false;  // elements outside of the tensor, instead of zeros
  uint64_t reserved = 0;       // CUTLASS clears bit 21 of the second word if the tensor is small
  uint64_t base = 0;
  std::array<uint32_t, kMaxTensorRank> last{};        // size - 1 of each dimension, innermost first
  std::array<uint16_t, kMaxTensorRank> box{};         // elements that a copy steps over
  std::array<uint8_t, kMaxTensorRank> step{};         // of dimension 1 and up, in elements
  std::array<uint64_t, kMaxTensorRank - 1> stride{};  // bytes, of dimension 1 and up

  uint32_t element_bytes() const { return uint32_t(ptx::bytes_of(type_of(element))); }
  // Elements that a box holds along a dimension. Dimension 0 has no step.
  uint32_t box_count(uint32_t dimension) const {
    return dimension == 0 ? box[0] : (box[dimension] + step[dimension] - 1u) / step[dimension];
  }
  uint32_t row_bytes() const { return box[0] * element_bytes(); }
  // From row to row of a box in shared memory: a swizzled row takes the whole span, whatever it
  // fills of it (seen on an H200).
  uint32_t row_pitch() const {
    return swizzle == Swizzle::kNone ? row_bytes() : swizzle_span(swizzle);
  }
};
static_assert(sizeof(TensorMap) <= kTensorMapBytes);

// What cuTensorMapEncodeTiled is given, in the driver's numbering, dimensions innermost first.
struct TiledTensor {
  uint32_t data_type = 0;
  uint32_t rank = 0;
  uint64_t base = 0;
  const uint64_t* size = nullptr;            // [rank]
  const uint64_t* stride_bytes = nullptr;    // [rank - 1]
  const uint32_t* box = nullptr;             // [rank]
  const uint32_t* element_stride = nullptr;  // [rank]
  uint32_t interleave = 0;
  uint32_t swizzle = 0;
  uint32_t l2_promotion = 0;
  uint32_t out_of_bounds_fill = 0;
};

// Error where the driver answers CUDA_ERROR_INVALID_VALUE (each rule checked against driver 580 on
// an H200), and for what is not simulated.
TensorMap encode_tiled(const TiledTensor& tensor);

// The map at a generic address; Error unless encode_tiled made what is there.
TensorMap load_tensor_map(uint64_t address, const char* what);

}  // namespace dsv4::simulator
