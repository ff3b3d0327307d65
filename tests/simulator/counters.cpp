// SPDX-License-Identifier: Apache-2.0
#include "counters.h"

namespace dsv4::simulator {
namespace {

void add_warp(WarpCounters& sum, const WarpCounters& part) {
  for (int i = 0; i < kNumInstructionClasses; ++i) sum.instructions[i] += part.instructions[i];
  sum.lane_instructions += part.lane_instructions;
  sum.shared_loads += part.shared_loads;
  sum.shared_load_wavefronts += part.shared_load_wavefronts;
  sum.shared_stores += part.shared_stores;
  sum.shared_store_wavefronts += part.shared_store_wavefronts;
  sum.barrier_waits += part.barrier_waits;
  sum.blocked_waits += part.blocked_waits;
}

}  // namespace

const char* name_of(InstructionClass c) {
  static constexpr const char* kNames[] = {
      "integer",       "float",         "convert",    "move",    "control", "global_memory",
      "shared_memory", "local_memory",  "async_copy", "barrier", "warp",    "matrix",
      "matrix_move",   "tensor_memory", "hint",       "other"};
  static_assert(sizeof(kNames) / sizeof(*kNames) == kNumInstructionClasses);
  return kNames[int(c)];
}

WarpCounters Counters::total() const {
  WarpCounters sum;
  for (const WarpCounters& warp : warps) add_warp(sum, warp);
  return sum;
}

void Counters::add(const Counters& other) {
  if (warps.size() < other.warps.size()) warps.resize(other.warps.size());
  for (size_t i = 0; i < other.warps.size(); ++i) add_warp(warps[i], other.warps[i]);
  global_load_bytes += other.global_load_bytes;
  global_store_bytes += other.global_store_bytes;
  cp_async_bytes += other.cp_async_bytes;
  bulk_load_bytes += other.bulk_load_bytes;
  bulk_store_bytes += other.bulk_store_bytes;
  distributed_shared_bytes += other.distributed_shared_bytes;
  for (const auto& [sector, count] : other.sectors) sectors[sector] += count;
  for (const auto& [shape, count] : other.matrix_instructions) matrix_instructions[shape] += count;
  for (const auto& [opcode, count] : other.opcodes) opcodes[opcode] += count;
  matrix_flop += other.matrix_flop;
  matrix_cycles += other.matrix_cycles;
}

}  // namespace dsv4::simulator
