// SPDX-License-Identifier: Apache-2.0
#include "sm120/engine.h"

#include <algorithm>
#include <memory>

#include "combine/combine.h"
#include "cuda/cache_ops.h"
#include "cuda/device.h"
#include "cuda/hca_metadata.h"
#include "cuda/launch.h"
#include "row_length.h"
#include "sm120/params.h"
#include "status.h"

namespace dsv4::sm120 {
namespace {

constexpr size_t kWorkspaceAlignment = 16;

bool serves(const GpuInfo& gpu) {
  return (gpu.major == 9 && gpu.minor == 0) || gpu.major == 10 || gpu.major == 12;
}

// Microseconds on an H200 (measured.md).
EngineCosts costs(KvFormat format) {
  EngineCosts costs{};
  costs.num_tiles = 2;
  costs.head_tile[0] = kSmallHeadTile;
  costs.head_tile[1] = kLargeHeadTile;
  costs.unit[0] = format == KvFormat::kBFloat16 ? 1.4 : 1.7;
  costs.unit[1] = format == KvFormat::kBFloat16 ? 1.7 : 2.0;
  for (int tile = 0; tile < costs.num_tiles; ++tile) {
    costs.unit_slots[tile] = stage_slots(format, costs.head_tile[tile]);
  }
  costs.row[0] = 3.5;
  costs.row[1] = 5.5;
  costs.combine = 3.0;
  costs.combine_part = 0.1;
  costs.partial_head = 0.0012;
  return costs;
}

// Largest power of two up to 16 that divides an address or a distance.
int alignment_of(int64_t distance) {
  return distance % 16 == 0 ? 16 : distance % 8 == 0 ? 8 : distance % 4 == 0 ? 4 : 1;
}
int alignment_of(const void* pointer) {
  return alignment_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)));
}

int pool_alignment(const Segment& segment, KvFormat format) {
  const PoolView& pool = segment.pool;
  if (segment.indices == nullptr || pool.num_pages == 0) return 16;
  int alignment = alignment_of(pool.data);
  if (pool.num_pages > 1) alignment = std::min(alignment, alignment_of(pool.page_stride_bytes));
  if (format != KvFormat::kPacked && pool.page_size > 1) {
    alignment = std::min(alignment, alignment_of(pool.token_stride_bytes));
  }
  return alignment;
}

template <class Pointer>
bool rows_are_aligned(const RowView<Pointer>& rows, int64_t element_bytes) {
  return alignment_of(rows.data) == 16 && alignment_of(rows.batch_stride * element_bytes) == 16 &&
         alignment_of(rows.row_stride * element_bytes) == 16 &&
         alignment_of(rows.head_stride * element_bytes) == 16;
}

Status schedule(const Device& device, const ScheduleInput& shape, KvFormat format, size_t room,
                Schedule* schedule) {
  GpuInfo gpu;
  if (!gpu_info(device.index, &gpu)) {
    DSV4_FAIL(kInvalidValue, "device: no GPU cuda:%d", device.index);
  }
  ScheduleInput input = shape;
  input.blocks = gpu.num_sms;  // one block fills an SM's registers
  *schedule = make_schedule(input, costs(format), room);
  return {};
}

}  // namespace

Status workspace_size(const DecodeShape& shape, size_t* bytes) {
  ScheduleInput input;
  input.rows = shape.rows;
  input.heads = shape.heads;
  input.slots = shape.window_slots + shape.compressed_slots;
  input.batch_invariant = shape.batch_invariant;
  *bytes = 0;
  if (input.rows == 0) return {};
  // The shape does not say the format, whose schedules may differ.
  for (const KvFormat format : {KvFormat::kBFloat16, KvFormat::kPacked}) {
    Schedule best;
    DSV4_RETURN_IF_FAILED(schedule(shape.device, input, format, SIZE_MAX, &best));
    if (best.balanced) *bytes = std::max(*bytes, kWorkspaceAlignment + best.workspace_bytes);
  }
  return {};
}

Status sparse_mla_decode(const DecodeProblem& problem, Stream stream) {
  ScheduleInput input;
  input.rows = problem.batch * problem.q_len;
  input.heads = problem.heads;
  input.slots = segment_width(problem.window) + segment_width(problem.compressed);
  input.batch_invariant = problem.batch_invariant;
  if (input.rows == 0) return {};

  void* workspace = problem.workspace;
  size_t room = problem.workspace_bytes;
  if (workspace == nullptr || std::align(kWorkspaceAlignment, 1, workspace, room) == nullptr) {
    room = 0;
  }
  DecodeParams params{};
  params.problem = problem;
  DSV4_RETURN_IF_FAILED(schedule(problem.device, input, problem.kv_format, room, &params.schedule));
  if (params.schedule.balanced) {
    uint8_t* base = static_cast<uint8_t*>(workspace);
    params.partial_out = reinterpret_cast<float*>(base);
    params.partial_lse = reinterpret_cast<float*>(base + params.schedule.partial_lse_offset);
    params.row_parts = reinterpret_cast<RowParts*>(base + params.schedule.row_parts_offset);
  }
  params.pool_alignment = std::min(pool_alignment(problem.window, problem.kv_format),
                                   pool_alignment(problem.compressed, problem.kv_format));
  params.query_aligned =
      rows_are_aligned(problem.query, problem.query_dtype == DType::kBFloat16 ? 2 : 1);
  params.out_aligned = rows_are_aligned(problem.out, 2);

  const cuda::DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  switch (problem.kv_format) {
    case KvFormat::kBFloat16:
      DSV4_RETURN_IF_FAILED(launch_decode_bf16(params, stream));
      break;
    case KvFormat::kFloat8E4M3:
      DSV4_RETURN_IF_FAILED(launch_decode_e4m3(params, stream));
      break;
    case KvFormat::kPacked:
      DSV4_RETURN_IF_FAILED(launch_decode_packed(params, stream));
      break;
  }
  if (!params.schedule.balanced) return {};
  return combine::combine_splits(problem,
                                 {params.partial_out, params.partial_lse, params.row_parts}, stream,
                                 double(params.schedule.num_shares) / double(input.rows) + 1);
}

const Engine kEngine = {
    "sm120",
    "90a, 100f, 120f",
    DeviceType::kCuda,
    serves,
    workspace_size,
    sparse_mla_decode,
    combine::merge_states,
    cuda::append_kv_cache,
    cuda::pack_kv_cache,
    cuda::unpack_kv_cache,
    cuda::hca_metadata,
};

}  // namespace dsv4::sm120
