// SPDX-License-Identifier: Apache-2.0
#include "lints.h"

#include <algorithm>
#include <cstdlib>

#include "error.h"
#include "program.h"

namespace dsv4::simulator {
namespace {

// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications-technical-specifications-per-compute-capability
struct GpuModel {
  int first_target, last_target;  // sm_90 is 90
  uint32_t shared_bytes_per_block, shared_bytes_per_sm;
  uint32_t threads_per_sm, blocks_per_sm;
};
constexpr GpuModel kModels[] = {
    {90, 90, 227 * 1024, 228 * 1024, 2048, 32},
    {100, 110, 227 * 1024, 228 * 1024, 2048, 32},
    {120, 121, 99 * 1024, 100 * 1024, 1536, 24},
};
constexpr uint32_t kThreadsPerBlock = 1024;
constexpr uint32_t kRegistersPerSm = 64 * 1024;
constexpr uint32_t kRegistersPerThread = 255;
constexpr uint32_t kRegisterStep = 8;  // registers of a thread are handed out in eights

const GpuModel* model_of(const std::string& target) {
  const int number = target.rfind("sm_", 0) == 0 ? std::atoi(target.c_str() + 3) : 0;
  for (const GpuModel& model : kModels) {
    if (model.first_target <= number && number <= model.last_target) return &model;
  }
  return nullptr;
}

// The blocks that fit on an SM at once. Without the number of registers, as if they did not matter.
uint32_t resident_blocks(const GpuModel& model, uint32_t shared_bytes, uint32_t threads,
                         uint32_t registers) {
  uint32_t blocks = std::min(model.blocks_per_sm, model.threads_per_sm / threads);
  blocks = std::min(blocks, model.shared_bytes_per_sm / (shared_bytes + kSharedReserved));
  if (registers != 0) blocks = std::min(blocks, kRegistersPerSm / (registers * threads));
  return blocks;
}

}  // namespace

std::vector<std::string> lint(Launch& launch) {
  const LaunchFacts& facts = launch.state<LaunchFacts>();
  std::vector<std::string> result(facts.notes.begin(), facts.notes.end());
  const Program& program = *launch.program;
  const GpuModel* model = model_of(program.target);
  if (model == nullptr) return result;

  const uint32_t threads =
      (launch.shape.block.count() + uint32_t(kLanes) - 1) / uint32_t(kLanes) * uint32_t(kLanes);
  const uint32_t shared_bytes =
      program.dynamic_shared_offset() - kSharedReserved + launch.shape.dynamic_shared_bytes;
  const uint32_t registers =
      (launch.options.registers_per_thread + kRegisterStep - 1) / kRegisterStep * kRegisterStep;

  if (threads > kThreadsPerBlock) {
    result.push_back(text("%u threads a block: the limit is %u", threads, kThreadsPerBlock));
  }
  if (shared_bytes > model->shared_bytes_per_block) {
    result.push_back(text("%u bytes of shared memory a block: the limit of %s is %u", shared_bytes,
                          program.target.c_str(), model->shared_bytes_per_block));
  }
  if (launch.options.registers_per_thread > kRegistersPerThread) {
    result.push_back(text("%u registers a thread: the limit is %u",
                          launch.options.registers_per_thread, kRegistersPerThread));
  }
  if (registers * threads > kRegistersPerSm) {
    result.push_back(
        text("%u registers x %u threads: an SM has %u", registers, threads, kRegistersPerSm));
  }

  // setmaxnreg.inc waits until other warps of the block have given enough back.
  uint32_t wanted = 0, given = 0;
  for (uint32_t warp = 0; warp < threads / uint32_t(kLanes); ++warp) {
    const auto set = facts.registers.find(int(warp));
    wanted += uint32_t(kLanes) * (set != facts.registers.end() ? uint32_t(set->second) : registers);
    given += uint32_t(kLanes) * registers;
  }
  const uint32_t pool = registers != 0 ? given : kRegistersPerSm;
  if (!facts.registers.empty() && wanted > pool) {
    result.push_back(
        text("setmaxnreg: the warps of a block ask for %u registers, it has %u", wanted, pool));
  }

  const uint32_t blocks = resident_blocks(*model, shared_bytes, threads, registers);
  const uint32_t in_grid = launch.shape.grid.count();
  if (std::min(blocks, in_grid) * uint32_t(facts.tensor_columns) > uint32_t(kTmemColumns)) {
    result.push_back(
        text("%u blocks fit on an SM, and each allocates %d of %d columns of tensor memory: "
             "tcgen05.alloc would wait for other blocks to end",
             blocks, facts.tensor_columns, kTmemColumns));
  }
  return result;
}

}  // namespace dsv4::simulator
