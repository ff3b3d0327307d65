// SPDX-License-Identifier: Apache-2.0
#include "tensor_map.h"

#include <cstring>
#include <iterator>

#include "error.h"
#include "memory.h"

namespace dsv4::simulator {
namespace {

struct ElementInfo {
  ptx::Type type;
  bool is_float;
};
constexpr ElementInfo kElements[] = {
    {ptx::Type::kU8, false},  {ptx::Type::kU16, false}, {ptx::Type::kU32, false},
    {ptx::Type::kS32, false}, {ptx::Type::kU64, false}, {ptx::Type::kS64, false},
    {ptx::Type::kF16, true},  {ptx::Type::kF32, true},  {ptx::Type::kF64, true},
    {ptx::Type::kBF16, true},
};
constexpr uint32_t kNumDriverTypes = 16;    // FLOAT32_FTZ, TFLOAT32 and packed ones follow BFLOAT16
constexpr uint32_t kNumDriverSwizzles = 7;  // modes with larger atoms follow 128B

constexpr uint64_t kMaxSize = 1ull << 32;
constexpr uint64_t kMaxStride = 1ull << 40;
constexpr uint32_t kMaxBox = 256;
constexpr uint32_t kMaxStep = 8;
// No box larger than a block's shared memory is of use. The driver has such a limit too: it takes
// 128 KB and refuses 2 MB.
constexpr uint64_t kMaxBoxBytes = 227 * 1024;

using ull = unsigned long long;

void check_enums(const TiledTensor& t) {
  if (t.data_type >= kNumDriverTypes) fail("tensor map: data type %u does not exist", t.data_type);
  if (t.data_type >= std::size(kElements))
    fail("tensor map: data type %u is not simulated", t.data_type);
  if (t.rank < 1 || t.rank > kMaxTensorRank) fail("tensor map: rank %u is not in 1..5", t.rank);
  if (t.interleave > 2) fail("tensor map: interleave %u does not exist", t.interleave);
  if (t.interleave != 0) fail("tensor map: interleaved layouts are not simulated");
  if (t.swizzle >= kNumDriverSwizzles) fail("tensor map: swizzle %u does not exist", t.swizzle);
  if (t.swizzle > uint32_t(Swizzle::k128In32ByteAtoms)) {
    fail("tensor map: swizzle %u is not simulated", t.swizzle);
  }
  if (t.l2_promotion > 3) fail("tensor map: L2 promotion %u does not exist", t.l2_promotion);
  if (t.out_of_bounds_fill > 1) {
    fail("tensor map: out-of-bounds fill %u does not exist", t.out_of_bounds_fill);
  }
  if (t.out_of_bounds_fill == 1 && !kElements[t.data_type].is_float) {
    fail("tensor map: NaN fills float types only, not data type %u", t.data_type);
  }
}

void check_dimensions(const TiledTensor& t) {
  if (t.size == nullptr || t.stride_bytes == nullptr || t.box == nullptr ||
      t.element_stride == nullptr) {
    fail("tensor map: sizes, strides, box and element strides may not be null");
  }
  if (t.base % 16 != 0) fail("tensor map: base %#llx is not a multiple of 16", ull(t.base));
  for (uint32_t d = 0; d < t.rank; ++d) {
    if (t.size[d] == 0 || t.size[d] > kMaxSize) {
      fail("tensor map: size[%u] = %llu is not in 1..2^32", d, ull(t.size[d]));
    }
    if (t.box[d] == 0 || t.box[d] > kMaxBox) {
      fail("tensor map: box[%u] = %u is not in 1..256", d, t.box[d]);
    }
    if (t.element_stride[d] == 0 || t.element_stride[d] > kMaxStep) {
      fail("tensor map: element stride[%u] = %u is not in 1..8", d, t.element_stride[d]);
    }
    if (d + 1 < t.rank && (t.stride_bytes[d] % 16 != 0 || t.stride_bytes[d] >= kMaxStride)) {
      fail("tensor map: stride[%u] = %llu is not a multiple of 16 below 2^40", d,
           ull(t.stride_bytes[d]));
    }
  }
}

void check_box(const TensorMap& map) {
  const uint32_t row = map.row_bytes(), span = swizzle_span(map.swizzle);
  if (row % 16 != 0) fail("tensor map: a row of the box has %u bytes, not a multiple of 16", row);
  if (map.swizzle != Swizzle::kNone && row > span) {
    fail("tensor map: a row of the box has %u bytes, more than the swizzle's %u", row, span);
  }
  uint64_t bytes = row;
  for (uint32_t d = 1; d < map.rank; ++d) bytes *= map.box_count(d);
  if (bytes > kMaxBoxBytes) fail("tensor map: a box of %llu bytes is too large", ull(bytes));
}

}  // namespace

ptx::Type type_of(TensorElement element) { return kElements[size_t(element)].type; }

TensorMap encode_tiled(const TiledTensor& t) {
  check_enums(t);
  check_dimensions(t);
  TensorMap map;
  map.magic = TensorMap::kMagic;
  map.rank = uint8_t(t.rank);
  map.element = TensorElement(t.data_type);
  map.swizzle = Swizzle(t.swizzle);
  map.fill_with_nan = t.out_of_bounds_fill == 1;
  map.base = t.base;
  for (uint32_t d = 0; d < t.rank; ++d) {
    map.last[d] = uint32_t(t.size[d] - 1);
    map.box[d] = uint16_t(t.box[d]);
    map.step[d] = uint8_t(t.element_stride[d]);
    if (d + 1 < t.rank) map.stride[d] = t.stride_bytes[d];
  }
  check_box(map);
  return map;
}

TensorMap load_tensor_map(uint64_t address, const char* what) {
  expect_aligned(address, 64, what);
  TensorMap map;
  std::memcpy(&map, global_pointer(address, kTensorMapBytes, what), sizeof(map));
  if (map.magic != TensorMap::kMagic) {
    fail("%s: no tensor map at %#llx", what, ull(address));
  }
  return map;
}

}  // namespace dsv4::simulator
