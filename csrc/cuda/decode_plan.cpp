// SPDX-License-Identifier: Apache-2.0
#include "cuda/decode_plan.h"

#include <algorithm>
#include <memory>

#include "combine/combine.h"
#include "cuda/device.h"
#include "row_length.h"
#include "status.h"

namespace dsv4::cuda {
namespace {

constexpr size_t kWorkspaceAlignment = 16;

Status schedule_on(const Device& device, const ScheduleInput& shape, const EngineCosts& costs,
                   size_t room, Schedule* schedule) {
  GpuInfo gpu;
  if (!gpu_info(device.index, &gpu)) {
    DSV4_FAIL(kInvalidValue, "device: no GPU cuda:%d", device.index);
  }
  ScheduleInput input = shape;
  input.blocks = gpu.num_sms;
  *schedule = make_schedule(input, costs, room);
  return {};
}

// Largest power of two up to 16 that divides an address or a distance.
int alignment_of(int64_t distance) {
  return distance % 16 == 0 ? 16 : distance % 8 == 0 ? 8 : distance % 4 == 0 ? 4 : 1;
}
int alignment_of(const void* pointer) {
  return alignment_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)));
}

}  // namespace

Status plan_decode(const DecodeProblem& problem, const EngineCosts& costs, DecodePlan* plan) {
  ScheduleInput input;
  input.rows = problem.batch * problem.q_len;
  const Segment& compressed = problem.compressed;
  if (compressed.index_row_stride == 0) {
    input.table_rows = problem.q_len;
  } else if (compressed.index_form == IndexForm::kPageTable &&
             problem.kv_format != KvFormat::kPacked) {
    // Pages are a request's, so its rows' tables of them hardly ever differ. Engines keep packed
    // caches' tables by slot.
    input.table_rows = problem.q_len;
    input.compares_tables = true;
  }
  input.heads = problem.heads;
  input.window_slots = segment_width(problem.window);
  input.compressed_slots = segment_width(problem.compressed);
  input.persistent = problem.persistent;
  input.batch_invariant = problem.batch_invariant;

  void* workspace = problem.workspace;
  size_t room = problem.workspace_bytes;
  if (workspace == nullptr || std::align(kWorkspaceAlignment, 1, workspace, room) == nullptr) {
    room = 0;
  }
  *plan = {};
  DSV4_RETURN_IF_FAILED(schedule_on(problem.device, input, costs, room, &plan->schedule));
  plan->compares_tables = input.compares_tables;
  if (plan->schedule.balanced) {
    uint8_t* base = static_cast<uint8_t*>(workspace);
    plan->partial_out = reinterpret_cast<float*>(base);
    plan->partial_lse = reinterpret_cast<float*>(base + plan->schedule.partial_lse_offset);
    plan->row_parts = reinterpret_cast<RowParts*>(base + plan->schedule.row_parts_offset);
  }
  return {};
}

Status combine_parts(const DecodeProblem& problem, const DecodePlan& plan, Stream stream) {
  if (!plan.schedule.balanced) return {};
  const Schedule& schedule = plan.schedule;
  const double groups = double(problem.batch * problem.q_len) / schedule.group_rows;
  return combine::combine_splits(problem,
                                 {plan.partial_out, plan.partial_lse, plan.row_parts,
                                  schedule.num_shares, schedule.group_rows},
                                 stream, double(schedule.num_shares) / groups + 1);
}

Status workspace_size(const DecodeShape& shape, std::initializer_list<EngineCosts> costs,
                      size_t* bytes) {
  ScheduleInput input;
  input.rows = shape.rows;
  input.table_rows = shape.table_rows;
  input.heads = shape.heads;
  input.window_slots = shape.window_slots;
  input.compressed_slots = shape.compressed_slots;
  input.batch_invariant = shape.batch_invariant;
  *bytes = 0;
  if (input.rows == 0) return {};
  for (const EngineCosts& one : costs) {
    Schedule best;
    DSV4_RETURN_IF_FAILED(schedule_on(shape.device, input, one, SIZE_MAX, &best));
    if (best.balanced) *bytes = std::max(*bytes, kWorkspaceAlignment + best.workspace_bytes);
  }
  return {};
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

int row_alignment(const void* data, int64_t batch_stride_bytes, int64_t row_stride_bytes,
                  int64_t head_stride_bytes) {
  return std::min({alignment_of(data), alignment_of(batch_stride_bytes),
                   alignment_of(row_stride_bytes), alignment_of(head_stride_bytes)});
}

}  // namespace dsv4::cuda
