// SPDX-License-Identifier: Apache-2.0
#include "runtime/launch_record.h"

#include <cinttypes>
#include <map>

#include "error.h"

namespace dsv4::simulator::cuda {
namespace {

// Names hold neither quotes nor backslashes: they are those of kernels, opcodes and counters.
std::string quoted(const std::string& name) { return "\"" + name + "\""; }

std::string number(const char* name, uint64_t value) {
  return text("\"%s\": %" PRIu64, name, value);
}

std::string dimensions(const Dim3& size) { return text("[%u, %u, %u]", size.x, size.y, size.z); }

std::string counts(const std::map<std::string, uint64_t>& values) {
  std::string result;
  for (const auto& [name, count] : values) {
    result += (result.empty() ? "" : ", ") + number(name.c_str(), count);
  }
  return "{" + result + "}";
}

std::string warp_record(const WarpCounters& warp) {
  std::string instructions;
  for (int i = 0; i < kNumInstructionClasses; ++i) {
    instructions += i == 0 ? "" : ", ";
    instructions += number(name_of(InstructionClass(i)), warp.instructions[i]);
  }
  return "{\"instructions\": {" + instructions + "}, " + number("shared_loads", warp.shared_loads) +
         ", " + number("shared_load_wavefronts", warp.shared_load_wavefronts) + ", " +
         number("shared_stores", warp.shared_stores) + ", " +
         number("shared_store_wavefronts", warp.shared_store_wavefronts) + ", " +
         number("barrier_waits", warp.barrier_waits) + ", " +
         number("blocked_waits", warp.blocked_waits) + "}";
}

std::string counters_record(const Counters& counters) {
  std::string warps;
  for (const WarpCounters& warp : counters.warps) {
    warps += (warps.empty() ? "" : ", ") + warp_record(warp);
  }
  return "{\"warps\": [" + warps + "], " + number("global_load_bytes", counters.global_load_bytes) +
         ", " + number("global_store_bytes", counters.global_store_bytes) + ", " +
         number("cp_async_bytes", counters.cp_async_bytes) + ", " +
         number("bulk_load_bytes", counters.bulk_load_bytes) + ", " +
         number("bulk_store_bytes", counters.bulk_store_bytes) + ", " +
         number("distributed_shared_bytes", counters.distributed_shared_bytes) + ", " +
         number("num_sectors", counters.sectors.size()) +
         ", \"matrix_instructions\": " + counts(counters.matrix_instructions) +
         ", \"opcodes\": " + counts(counters.opcodes) + ", " +
         number("matrix_flop", counters.matrix_flop) +
         text(", \"matrix_cycles\": %.17g}", counters.matrix_cycles);
}

}  // namespace

std::string launch_record(const std::string& kernel, const LaunchShape& shape,
                          const Counters& counters) {
  return "{\"kernel\": " + quoted(kernel) + ", \"grid\": " + dimensions(shape.grid) +
         ", \"block\": " + dimensions(shape.block) + ", \"cluster\": " + dimensions(shape.cluster) +
         ", \"counters\": " + counters_record(counters) + "}";
}

}  // namespace dsv4::simulator::cuda
