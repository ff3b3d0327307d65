// SPDX-License-Identifier: Apache-2.0
#include "sm120/engine.h"

#include <algorithm>

#include "combine/combine.h"
#include "cuda/cache_ops.h"
#include "cuda/decode_plan.h"
#include "cuda/device.h"
#include "cuda/hca_metadata.h"
#include "cuda/launch.h"
#include "sm120/params.h"
#include "status.h"

namespace dsv4::sm120 {
namespace {

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
    costs.num_blocks[tile] = 1;
    costs.unit_slots[tile] = stage_slots(format, costs.head_tile[tile]);
  }
  costs.row[0] = 3.5;
  costs.row[1] = 5.5;
  costs.block[0] = 1.5;
  costs.block[1] = 2.0;
  costs.combine = 3.0;
  costs.combine_part = 0.1;
  costs.partial_head = 0.0012;
  costs.comparison = 1.1;
  costs.window_unit = kWindowUnit;
  return costs;
}

template <class Pointer>
bool rows_are_aligned(const RowView<Pointer>& rows, int64_t element_bytes) {
  return cuda::row_alignment(rows.data, rows.batch_stride * element_bytes,
                             rows.row_stride * element_bytes,
                             rows.head_stride * element_bytes) == 16;
}

Status launch(const DecodeParams& params, Stream stream) {
  const bool groups = params.schedule.group_rows > 1;
  switch (params.problem.kv_format) {
    case KvFormat::kBFloat16:
      return (groups ? launch_decode_bf16_groups : launch_decode_bf16)(params, stream);
    case KvFormat::kFloat8E4M3:
      return (groups ? launch_decode_e4m3_groups : launch_decode_e4m3)(params, stream);
    case KvFormat::kPacked:
      break;
  }
  return (groups ? launch_decode_packed_groups : launch_decode_packed)(params, stream);
}

}  // namespace

// The shape does not say the format, whose schedules may differ.
Status workspace_size(const DecodeShape& shape, size_t* bytes) {
  return cuda::workspace_size(shape, {costs(KvFormat::kBFloat16), costs(KvFormat::kPacked)}, bytes);
}

Status sparse_mla_decode(const DecodeProblem& problem, Stream stream) {
  if (problem.batch * problem.q_len == 0) return {};
  DecodeParams params{};
  params.problem = problem;
  DSV4_RETURN_IF_FAILED(cuda::plan_decode(problem, costs(problem.kv_format), &params));
  params.pool_alignment = std::min(cuda::pool_alignment(problem.window, problem.kv_format),
                                   cuda::pool_alignment(problem.compressed, problem.kv_format));
  params.query_aligned =
      rows_are_aligned(problem.query, problem.query_dtype == DType::kBFloat16 ? 2 : 1);
  params.out_aligned = rows_are_aligned(problem.out, 2);

  const cuda::DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  DSV4_RETURN_IF_FAILED(launch(params, stream));
  return cuda::combine_parts(problem, params, stream);
}

const Engine kEngine = {
    "sm120",
    "90a, 100f, 120f",
    DeviceType::kCuda,
    serves,
    false,
    workspace_size,
    sparse_mla_decode,
    combine::merge_states,
    cuda::append_kv_cache,
    cuda::pack_kv_cache,
    cuda::unpack_kv_cache,
    cuda::hca_metadata,
};

}  // namespace dsv4::sm120
