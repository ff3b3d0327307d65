// SPDX-License-Identifier: Apache-2.0
#include "sm100/tensor_maps.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "cuda/decode_plan.h"
#include "cuda/launch.h"
#include "status.h"

namespace dsv4::sm100 {
namespace {

constexpr int kSwizzleBytes = 128;  // of a row in a box
constexpr int64_t kMaxStride = int64_t(1) << 40;

int64_t element_bytes(DType dtype) { return dtype == DType::kBFloat16 ? 2 : 1; }

int64_t slot_bytes(KvFormat format) { return kHeadDim * (format == KvFormat::kBFloat16 ? 2 : 1); }

bool is_stride(int64_t bytes) { return bytes > 0 && bytes % 16 == 0 && bytes < kMaxStride; }

// A dimension of one element has any stride.
bool has_strides(int64_t size, int64_t stride_bytes) {
  return size == 1 || is_stride(stride_bytes);
}

bool query_can_be_mapped(const DecodeProblem& problem) {
  const RowView<const void*>& query = problem.query;
  const int64_t bytes = element_bytes(problem.query_dtype);
  return cuda::row_alignment(query.data, 0, 0, 0) == 16 && problem.batch <= INT32_MAX &&
         problem.q_len <= INT32_MAX && has_strides(problem.batch, query.batch_stride * bytes) &&
         has_strides(problem.q_len, query.row_stride * bytes) &&
         has_strides(problem.heads, query.head_stride * bytes);
}

// Distance of a pool's rows.
int64_t row_stride(const PoolView& pool) {
  return pool.page_size > 1 ? pool.token_stride_bytes : pool.page_stride_bytes;
}

// Distance of its pages, in rows.
int64_t rows_per_page(const PoolView& pool) {
  return pool.num_pages > 1 ? pool.page_stride_bytes / row_stride(pool) : pool.page_size;
}

int64_t num_rows(const PoolView& pool) {
  return (pool.num_pages - 1) * rows_per_page(pool) + pool.page_size;
}

bool is_empty(const Segment& segment) {
  return segment.indices == nullptr || segment.columns == 0 || segment.pool.num_pages == 0;
}

bool pool_can_be_mapped(const Segment& segment, KvFormat format) {
  if (is_empty(segment)) return true;
  const PoolView& pool = segment.pool;
  if (cuda::pool_alignment(segment, format) != 16) return false;
  if (pool.page_size == 1 && pool.num_pages == 1) return true;
  const int64_t stride = row_stride(pool);
  if (!is_stride(stride) || stride < slot_bytes(format)) return false;
  if (pool.num_pages > 1 && pool.page_stride_bytes % stride != 0) return false;
  return num_rows(pool) <= INT32_MAX;
}

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, which a library that must load without a driver cannot link.
Status find_encode(Encode* encode) {
  static std::atomic<Encode> known{nullptr};
  *encode = known.load(std::memory_order_relaxed);
  if (*encode != nullptr) return {};
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  DSV4_RETURN_IF_FAILED(
      cuda::to_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                       cudaEnableDefault, &found),
                      "cuTensorMapEncodeTiled"));
  if (found != cudaDriverEntryPointSuccess) {
    DSV4_FAIL(kRuntimeError, "the CUDA driver has no cuTensorMapEncodeTiled. Hint: update it");
  }
  *encode = reinterpret_cast<Encode>(function);
  known.store(*encode, std::memory_order_relaxed);
  return {};
}

// Elements of one byte or two; the first dimension is contiguous; a box is kSwizzleBytes wide.
struct Layout {
  int64_t element_bytes;
  int rank;
  int64_t size[4];
  int64_t stride_bytes[3];  // from the second dimension on
  int64_t box_rows;
  int64_t box_groups = 1;  // of rows, in the third dimension
};

Status encode_map(const void* data, const Layout& layout, CUtensorMap* map) {
  Encode encode = nullptr;
  DSV4_RETURN_IF_FAILED(find_encode(&encode));
  cuuint64_t size[4], stride[3];
  cuuint32_t box[4] = {cuuint32_t(kSwizzleBytes / layout.element_bytes),
                       cuuint32_t(layout.box_rows), cuuint32_t(layout.box_groups), 1};
  const cuuint32_t step[4] = {1, 1, 1, 1};
  std::copy_n(layout.size, layout.rank, size);
  for (int i = 0; i + 1 < layout.rank; ++i) {
    // Of one element, any distance will do.
    stride[i] = cuuint64_t(layout.size[i + 1] == 1 ? kSwizzleBytes : layout.stride_bytes[i]);
  }
  const CUresult result = encode(
      map,
      layout.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
      cuuint32_t(layout.rank), const_cast<void*>(data), size, stride, box, step,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    DSV4_FAIL(kRuntimeError, "the CUDA driver refused: cuTensorMapEncodeTiled: error %d",
              int(result));
  }
  return {};
}

// Boxes of a tile of heads, or of a group's rows.
Status map_query(const DecodeProblem& problem, DecodeParams* params) {
  const int64_t group_rows = params->schedule.group_rows;
  const int64_t heads = group_rows == 1 ? kHeadTile : problem.heads;
  params->query_rows = int32_t(group_rows * heads);
  const int64_t bytes = element_bytes(problem.query_dtype);
  const RowView<const void*>& query = problem.query;
  return encode_map(
      query.data,
      {bytes,
       4,
       {kHeadDim, problem.heads, problem.q_len, problem.batch},
       {query.head_stride * bytes, query.row_stride * bytes, query.batch_stride * bytes},
       heads,
       group_rows},
      &params->query);
}

// A pool with boxes of one row, and of a run of them.
Status map_pool(const DecodeProblem& problem, const Segment& segment, PoolMaps* maps) {
  const int64_t bytes = slot_bytes(problem.kv_format) / kHeadDim;
  const void* data = segment.pool.data;
  Layout layout{bytes, 2, {kHeadDim, 1}, {}, 1};
  if (is_empty(segment)) {
    // All slots are holes then, but copied all the same: rows that this matrix does not have.
    data = problem.query.data;
  } else {
    const PoolView& pool = segment.pool;
    const int64_t per_page = rows_per_page(pool);
    maps->rows_per_page = int32_t(per_page);
    maps->dense_slots = per_page == pool.page_size ? uint32_t(num_rows(pool)) : 0;
    layout.size[1] = num_rows(pool);
    layout.stride_bytes[0] = row_stride(pool);
  }
  DSV4_RETURN_IF_FAILED(encode_map(data, layout, &maps->rows));
  layout.box_rows = kRunSlots;
  return encode_map(data, layout, &maps->runs);
}

}  // namespace

bool can_be_mapped(const DecodeProblem& problem) {
  if (!query_can_be_mapped(problem)) return false;
  if (problem.kv_format == KvFormat::kPacked) {
    return cuda::pool_alignment(problem.window, problem.kv_format) == 16 &&
           cuda::pool_alignment(problem.compressed, problem.kv_format) == 16;
  }
  return pool_can_be_mapped(problem.window, problem.kv_format) &&
         pool_can_be_mapped(problem.compressed, problem.kv_format);
}

Status make_tensor_maps(const DecodeProblem& problem, DecodeParams* params) {
  DSV4_RETURN_IF_FAILED(map_query(problem, params));
  if (problem.kv_format == KvFormat::kPacked) return {};
  DSV4_RETURN_IF_FAILED(map_pool(problem, problem.window, &params->window));
  return map_pool(problem, problem.compressed, &params->compressed);
}

}  // namespace dsv4::sm100
