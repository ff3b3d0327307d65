// SPDX-License-Identifier: Apache-2.0
#include "sm100/engine.h"

#include <cstdlib>
#include <cstring>

#include "combine/combine.h"
#include "cuda/cache_ops.h"
#include "cuda/decode_plan.h"
#include "cuda/device.h"
#include "cuda/hca_metadata.h"
#include "cuda/launch.h"
#include "sm100/params.h"
#include "sm100/tensor_maps.h"
#include "sm120/engine.h"
#include "status.h"

namespace dsv4::sm100 {
namespace {

bool serves(const GpuInfo& gpu) { return gpu.major == 10; }

// DSV4_SM100_PAIRS=0 in the environment keeps blocks from working in pairs: where there are more
// than 64 heads, two of them then gather each row's keys. A pair multiplies in ways of which none
// is known to have run on hardware (pair_config.cuh).
bool pairs_are_allowed() {
  static const bool allowed = [] {
    const char* text = std::getenv("DSV4_SM100_PAIRS");
    return text == nullptr || std::strcmp(text, "0") != 0;
  }();
  return allowed;
}

// Microseconds, modelled for a B200 (README.md).
EngineCosts costs(KvFormat format, int64_t heads) {
  const bool pairs = heads > kHeadTile && pairs_are_allowed();
  EngineCosts costs{};
  costs.num_tiles = 1;
  costs.head_tile[0] = pairs ? kPairHeadTile : kHeadTile;
  costs.num_blocks[0] = pairs ? 2 : 1;
  costs.unit_slots[0] = tile_slots(format);
  costs.unit[0] = (format == KvFormat::kPacked ? 0.85 : 1.25) * (pairs ? 0.6 : 1.0);
  costs.row[0] = 3.0;
  costs.block[0] = 1.5;
  costs.combine = 3.0;
  costs.combine_part = 0.1;
  costs.partial_head = 0.0007;
  costs.comparison = 1.1;
  costs.window_unit = kWindowUnit;
  return costs;
}

// What it does not, the portable engine decodes.
bool takes(const DecodeProblem& problem) {
  const RowView<void*>& out = problem.out;
  return can_be_mapped(problem) &&
         cuda::row_alignment(out.data, out.batch_stride * 2, out.row_stride * 2,
                             out.head_stride * 2) == 16;
}

Status launch(const DecodeParams& params, Stream stream) {
  const bool pairs = params.schedule.head_tile == kPairHeadTile;
  const bool groups = params.schedule.group_rows > 1;
  const auto choose = [&](auto* alone, auto* of_groups, auto* of_pairs) {
    return (pairs ? of_pairs : groups ? of_groups : alone)(params, stream);
  };
  switch (params.problem.kv_format) {
    case KvFormat::kBFloat16:
      return choose(launch_decode_bf16, launch_decode_bf16_groups, launch_decode_bf16_pairs);
    case KvFormat::kFloat8E4M3:
      return choose(launch_decode_e4m3, launch_decode_e4m3_groups, launch_decode_e4m3_pairs);
    case KvFormat::kPacked:
      break;
  }
  return choose(launch_decode_packed, launch_decode_packed_groups, launch_decode_packed_pairs);
}

Status workspace_size(const DecodeShape& shape, size_t* bytes) {
  // The shape does not say which engine will take the problem.
  size_t own = 0, portable = 0;
  DSV4_RETURN_IF_FAILED(cuda::workspace_size(
      shape,
      {costs(KvFormat::kBFloat16, shape.heads), costs(KvFormat::kFloat8E4M3, shape.heads),
       costs(KvFormat::kPacked, shape.heads)},
      &own));
  DSV4_RETURN_IF_FAILED(sm120::kEngine.workspace_size(shape, &portable));
  *bytes = own > portable ? own : portable;
  return {};
}

Status sparse_mla_decode(const DecodeProblem& problem, Stream stream) {
  if (problem.batch * problem.q_len == 0) return {};
  if (!takes(problem)) return sm120::kEngine.sparse_mla_decode(problem, stream);
  DecodeParams params{};
  params.problem = problem;
  DSV4_RETURN_IF_FAILED(
      cuda::plan_decode(problem, costs(problem.kv_format, problem.heads), &params));

  const cuda::DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  DSV4_RETURN_IF_FAILED(make_tensor_maps(problem, &params));
  DSV4_RETURN_IF_FAILED(launch(params, stream));
  return cuda::combine_parts(problem, params, stream);
}

}  // namespace

const Engine kEngine = {
    "sm100",
    "100f",
    DeviceType::kCuda,
    serves,
    true,
    workspace_size,
    sparse_mla_decode,
    combine::merge_states,
    cuda::append_kv_cache,
    cuda::pack_kv_cache,
    cuda::unpack_kv_cache,
    cuda::hca_metadata,
};

}  // namespace dsv4::sm100
