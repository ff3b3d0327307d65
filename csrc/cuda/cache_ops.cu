// SPDX-License-Identifier: Apache-2.0
// Writing and reading the caches: append by slot, pack and unpack whole pages.
//
// A warp does a token, 16 of the 512 values a lane:
//
//   lanes   0-3   4-7  ...  24-27 | 28-31
//   values  0-63 64-127 ... 384-447 | 448-511
//           a group of the packed format each | RoPE
//
// so a lane loads two times 16 bytes and stores its 16 codes at once, and the largest magnitude of
// a group is two shuffles away. Nothing is kept between tokens: what matters is how many loads are
// under way, and small batches want one trip to memory, not two.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstring>

#include "cuda/cache_ops.h"
#include "cuda/launch.h"
#include "cuda/vector_access.cuh"
#include "dsv4/kv_format.h"
#include "status.h"

namespace dsv4::cuda {
namespace {

constexpr int kWarpSize = 32;
constexpr int kWarpsPerBlock = 4;
constexpr int kLaneValues = kHeadDim / kWarpSize;
constexpr int kLaneWords = kLaneValues / 2;      // as bf16
constexpr int kLaneCodeWords = kLaneValues / 4;  // as e4m3
constexpr int kGroupLanes = PackedPage::kQuantGroup / kLaneValues;
constexpr int kFirstRopeLane = kNopeDim / kLaneValues;
static_assert(kGroupLanes == 4, "group_max reads two lanes further at most");

constexpr uint32_t kNotFinite = 0x7F80;  // bf16 magnitudes from here on are infinities and NaN
constexpr float kSmallestAmax = 1e-4f;

__device__ float2 values_of(uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000)};
}

// --- bf16 -> e4m3 ---

// Largest magnitude, as bf16 bits, of a lane's values. Magnitudes are in the order of their bits.
__device__ uint32_t lane_max(const uint32_t (&values)[kLaneWords]) {
  uint32_t pair = 0;
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) pair = __vmaxu2(pair, values[i] & 0x7FFF7FFF);
  return max(pair & 0xFFFF, pair >> 16);
}

// The same over finite values.
__device__ uint32_t finite_lane_max(const uint32_t (&values)[kLaneWords]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) {
    const uint32_t low = values[i] & 0x7FFF, high = values[i] >> 16 & 0x7FFF;
    if (low < kNotFinite) largest = max(largest, low);
    if (high < kNotFinite) largest = max(largest, high);
  }
  return largest;
}

// Largest of the lanes of a group.
__device__ uint32_t group_max(uint32_t largest) {
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  return max(largest, __shfl_xor_sync(~0u, largest, 2));
}

// Code e + 127 of the scale 2^e = 2^ceil(log2(max(amax, 1e-4) / 448)): 448 is 1.75 x 2^8, so e is
// amax's exponent less 8, and one more if its mantissa is above 1.75.
__device__ uint32_t scale_code(uint32_t amax) {
  const uint32_t bits = __float_as_uint(fmaxf(__uint_as_float(amax << 16), kSmallestAmax));
  return ((bits + 0x1FFFFF) >> 23) - 8;
}

// 2^-e of that code.
__device__ float inverse_scale(uint32_t code) {
  return __uint_as_float((2 * PackedPage::kExponentBias - code) << 23);
}

// Codes of what the conversion would saturate: infinities, which become NaN, and NaN, which keep
// their sign.
__device__ void encode_not_finite(const uint32_t (&values)[kLaneWords],
                                  uint32_t (&codes)[kLaneCodeWords]) {
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) {
    const uint32_t bits = values[i / 2] >> i % 2 * 16, shift = i % 4 * 8;
    if ((bits & 0x7FFF) < kNotFinite) continue;
    codes[i / 4] = (codes[i / 4] & ~(0xFFu << shift)) | (bits >> 8 & 0x80 | 0x7F) << shift;
  }
}

// e4m3 codes of scaled(value): nearest, ties to even, saturating where the value is finite.
template <class Scaled>
__device__ void encode(const uint32_t (&values)[kLaneWords], bool all_finite, Scaled&& scaled,
                       uint32_t (&codes)[kLaneCodeWords]) {
#pragma unroll
  for (int i = 0; i < kLaneCodeWords; ++i) {
    const float2 low = values_of(values[2 * i]), high = values_of(values[2 * i + 1]);
    const uint32_t low_codes = __nv_cvt_float2_to_fp8x2({scaled(low.x), scaled(low.y)},
                                                        __NV_SATFINITE, __NV_E4M3),
                   high_codes = __nv_cvt_float2_to_fp8x2({scaled(high.x), scaled(high.y)},
                                                         __NV_SATFINITE, __NV_E4M3);
    codes[i] = low_codes | high_codes << 16;
  }
  if (!all_finite) encode_not_finite(values, codes);
}

// x / value for many bf16 x. A division takes a dozen instructions, more than this kernel has time
// for; with the reciprocal at hand one correction gives the same bits, for every divisor, if
// nothing overflows on the way. What underflows is zero as e4m3 either way.
struct Divisor {
  float value;
  float reciprocal;

  __device__ explicit Divisor(float x) : value(x), reciprocal(1.0f / x) {}

  // largest: magnitude of the dividends, as bf16 bits.
  __device__ bool divides_fast(uint32_t largest) const {
    return fabsf(value) >= 0x1p-60f && fabsf(value) <= 0x1p60f &&
           __uint_as_float(largest << 16) <= 0x1p60f;
  }
  __device__ float divide_fast(float x) const {
    const float quotient = x * reciprocal;
    const float corrected = fmaf(fmaf(-quotient, value, x), reciprocal, quotient);
    return copysignf(corrected, quotient);  // the correction loses the sign of zero
  }
};

// One token of a packed page, by the lanes of a warp: 448 values as e4m3 with a scale for each 64,
// 64 values as they are. amax: group_max of finite values.
__device__ void store_packed(const uint32_t (&values)[kLaneWords], bool all_finite, uint32_t amax,
                             int lane, uint8_t* data, uint8_t* scales) {
  const bool rope = lane >= kFirstRopeLane;
  const uint32_t code = scale_code(amax);
  if (rope) {
    store_words(values, data + kNopeDim + (lane - kFirstRopeLane) * sizeof(values));
  } else {
    const float inverse = inverse_scale(code);
    uint32_t codes[kLaneCodeWords];
    encode(values, all_finite, [=](float x) { return x * inverse; }, codes);
    store_words(codes, data + lane * sizeof(codes));
  }
  // The byte behind the scales is padding, and zero.
  if (lane % kGroupLanes == 0) scales[lane / kGroupLanes] = rope ? 0 : uint8_t(code);
}

// Its values, before anything is known about where they go.
struct PackedToken {
  uint32_t values[kLaneWords];
  bool all_finite;
  uint32_t amax;

  __device__ PackedToken(const uint16_t* row, int lane) {
    load_words(row + lane * kLaneValues, values);
    uint32_t largest = lane_max(values);
    all_finite = largest < kNotFinite;
    if (!all_finite) largest = finite_lane_max(values);
    amax = group_max(largest);
  }
};

// --- e4m3 -> bf16 ---

__device__ bool holds_nan(const uint32_t (&codes)[kLaneCodeWords]) {
  uint32_t found = 0;
#pragma unroll
  for (int i = 0; i < kLaneCodeWords; ++i) found |= (codes[i] & 0x7F7F7F7F) + 0x01010101;
  return found & 0x80808080;
}

// Values of a scale that is NaN or of codes that may be: a NaN keeps its sign.
__device__ void decode_nan(const uint32_t (&codes)[kLaneCodeWords], bool scale_is_nan,
                           uint32_t (&values)[kLaneWords]) {
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) {
    const uint32_t code = codes[i / 4] >> i % 4 * 8, shift = i % 2 * 16;
    const bool is_nan = (code & 0x7F) == 0x7F;
    if (!is_nan && !scale_is_nan) continue;
    const uint32_t nan = is_nan ? (code & 0x80) << 8 | 0x7FC0 : 0x7FC0;
    values[i / 2] = (values[i / 2] & ~(0xFFFFu << shift)) | nan << shift;
  }
}

__device__ uint32_t decode_pair(uint32_t codes, float scale) {
  const float2 pair =
      __half22float2(__nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(codes), __NV_E4M3));
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(pair.x * scale, pair.y * scale);
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  return bits;
}

__device__ void decode(const uint32_t (&codes)[kLaneCodeWords], uint32_t scale_code,
                       uint32_t (&values)[kLaneWords]) {
  // Code 0 is 2^-127, which only a subnormal float holds. Code 255 is NaN.
  const float scale = __uint_as_float(scale_code == 0 ? 1u << 22 : scale_code << 23);
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) {
    values[i] = decode_pair(codes[i / 2] >> i % 2 * 16, scale);
  }
  const bool scale_is_nan = scale_code == 255;
  if (scale_is_nan || holds_nan(codes)) decode_nan(codes, scale_is_nan, values);
}

// --- kernels ---

__device__ int64_t token_of_warp() {
  return int64_t(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpSize;
}

__device__ int64_t slot_of_row(const AppendProblem& problem, int64_t row) {
  return problem.slots_are_64bit ? static_cast<const int64_t*>(problem.slots)[row]
                                 : static_cast<const int32_t*>(problem.slots)[row];
}

// Page and offset of a slot; the page is null for a slot that is not in the pool.
struct Place {
  uint8_t* page = nullptr;
  int64_t offset = 0;

  __device__ Place(const MutablePoolView& pool, int64_t slot) {
    const int64_t number = slot / pool.page_size;
    if (slot < 0 || number >= pool.num_pages) return;
    page = static_cast<uint8_t*>(pool.data) + number * pool.page_stride_bytes;
    offset = slot - number * pool.page_size;
  }
};

__device__ const uint16_t* row_values(const AppendProblem& problem, int64_t row) {
  return static_cast<const uint16_t*>(problem.values) + row * problem.value_row_stride;
}

__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize)
    append_packed(const AppendProblem problem) {
  const int64_t row = token_of_warp();
  if (row >= problem.rows) return;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t slot = slot_of_row(problem, row);
  const PackedToken token(row_values(problem, row), lane);
  const Place place(problem.pool, slot);
  if (place.page == nullptr) return;
  store_packed(token.values, token.all_finite, token.amax, lane,
               place.page + PackedPage::data_offset(place.offset),
               place.page + PackedPage::scale_offset(place.offset, problem.pool.page_size));
}

template <KvFormat kFormat>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize)
    append_plain(const AppendProblem problem) {
  const int64_t row = token_of_warp();
  if (row >= problem.rows) return;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t slot = slot_of_row(problem, row);
  uint32_t values[kLaneWords];
  load_words(row_values(problem, row) + lane * kLaneValues, values);
  const Divisor scale(problem.scale.pointer != nullptr ? *problem.scale.pointer
                                                       : problem.scale.value);
  // Keeps the loads here: behind the check of the slot they would wait for it.
  __syncwarp();
  const Place place(problem.pool, slot);
  if (place.page == nullptr) return;
  uint8_t* token = place.page + place.offset * problem.pool.token_stride_bytes;
  if constexpr (kFormat == KvFormat::kBFloat16) {
    store_words(values, token + lane * sizeof(values));
  } else {
    uint32_t codes[kLaneCodeWords];
    const uint32_t largest = lane_max(values);
    if (scale.divides_fast(largest)) {
      encode(values, true, [=](float x) { return scale.divide_fast(x); }, codes);
    } else {
      encode(values, largest < kNotFinite, [=](float x) { return x / scale.value; }, codes);
    }
    store_words(codes, token + lane * sizeof(codes));
  }
}

// One token of whole pages.
struct PageToken {
  uint16_t* values;
  uint8_t* data;
  uint8_t* scales;

  __device__ PageToken(const PackProblem& problem, int64_t token) {
    const int64_t number = token / problem.page_size;
    const int64_t offset = token - number * problem.page_size;
    values = static_cast<uint16_t*>(problem.values) + number * problem.value_page_stride +
             offset * problem.value_token_stride;
    uint8_t* page = static_cast<uint8_t*>(problem.packed) + number * problem.page_stride_bytes;
    data = page + PackedPage::data_offset(offset);
    scales = page + PackedPage::scale_offset(offset, problem.page_size);
  }
};

__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize) pack(const PackProblem problem) {
  const int64_t number = token_of_warp();
  if (number >= problem.num_pages * problem.page_size) return;
  const int lane = threadIdx.x % kWarpSize;
  const PageToken place(problem, number);
  const PackedToken token(place.values, lane);
  store_packed(token.values, token.all_finite, token.amax, lane, place.data, place.scales);
}

__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize) unpack(const PackProblem problem) {
  const int64_t number = token_of_warp();
  if (number >= problem.num_pages * problem.page_size) return;
  const int lane = threadIdx.x % kWarpSize;
  const PageToken place(problem, number);
  uint32_t values[kLaneWords];
  if (lane >= kFirstRopeLane) {
    load_words(place.data + kNopeDim + (lane - kFirstRopeLane) * sizeof(values), values);
  } else {
    uint32_t codes[kLaneCodeWords];
    load_words(place.data + lane * sizeof(codes), codes);
    decode(codes, place.scales[lane / kGroupLanes], values);
  }
  store_words(values, place.values + lane * kLaneValues);
}

Status one_warp_each(const char* name, const Device& device, Stream stream, int64_t tokens,
                     LaunchConfig* config) {
  return along_x(name, device, stream, (tokens + kWarpsPerBlock - 1) / kWarpsPerBlock,
                 kWarpsPerBlock * kWarpSize, config);
}

}  // namespace

Status append_kv_cache(const AppendProblem& problem, Stream stream) {
  if (problem.rows == 0 || problem.pool.num_pages == 0) return {};
  const DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  LaunchConfig config;
  DSV4_RETURN_IF_FAILED(
      one_warp_each("append_kv_cache", problem.device, stream, problem.rows, &config));
  switch (problem.kv_format) {
    case KvFormat::kBFloat16:
      return launch<append_plain<KvFormat::kBFloat16>>(config, problem);
    case KvFormat::kFloat8E4M3:
      return launch<append_plain<KvFormat::kFloat8E4M3>>(config, problem);
    case KvFormat::kPacked:
      break;
  }
  return launch<append_packed>(config, problem);
}

Status pack_kv_cache(const PackProblem& problem, Stream stream) {
  if (problem.num_pages == 0) return {};
  const DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  LaunchConfig config;
  DSV4_RETURN_IF_FAILED(one_warp_each("pack_kv_cache", problem.device, stream,
                                      problem.num_pages * problem.page_size, &config));
  return launch<pack>(config, problem);
}

Status unpack_kv_cache(const PackProblem& problem, Stream stream) {
  if (problem.num_pages == 0) return {};
  const DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  LaunchConfig config;
  DSV4_RETURN_IF_FAILED(one_warp_each("unpack_kv_cache", problem.device, stream,
                                      problem.num_pages * problem.page_size, &config));
  return launch<unpack>(config, problem);
}

}  // namespace dsv4::cuda
