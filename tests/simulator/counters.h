// SPDX-License-Identifier: Apache-2.0
// What a launch did, by warp and in all. Facts only: no time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dsv4::simulator {

enum class InstructionClass : uint8_t {
  kInteger,
  kFloat,
  kConvert,
  kMove,
  kControl,
  kGlobalMemory,
  kSharedMemory,
  kLocalMemory,
  kAsyncCopy,
  kBarrier,
  kWarp,
  kMatrix,
  kMatrixMove,
  kTensorMemory,
  kHint,
  kOther,
};
inline constexpr int kNumInstructionClasses = int(InstructionClass::kOther) + 1;
const char* name_of(InstructionClass c);

struct WarpCounters {
  uint64_t instructions[kNumInstructionClasses] =
      {};  // one for each warp instruction with a living lane
  uint64_t lane_instructions = 0;
  uint64_t shared_loads = 0, shared_load_wavefronts = 0;  // with Options::count
  uint64_t shared_stores = 0, shared_store_wavefronts = 0;
  uint64_t barrier_waits = 0;  // waits on mbarriers and barriers
  uint64_t blocked_waits = 0;  // of these, not yet over when first looked at
};

struct Counters {
  std::vector<WarpCounters> warps;  // by index in the block, all blocks added
  uint64_t global_load_bytes = 0, global_store_bytes = 0;
  uint64_t cp_async_bytes = 0, bulk_load_bytes = 0, bulk_store_bytes = 0,
           distributed_shared_bytes = 0;
  std::map<uint64_t, uint32_t>
      sectors;  // 32-byte sectors of global memory read by bulk copies; with count
  std::map<std::string, uint64_t> matrix_instructions;  // by shape, e.g. "tcgen05.f16.cg1 M64 N256"
  std::map<std::string, uint64_t> opcodes;              // with count
  uint64_t matrix_flop = 0;
  double matrix_cycles = 0;  // at the documented rate, of one SM

  WarpCounters total() const;
  void add(const Counters& other);
};

}  // namespace dsv4::simulator
