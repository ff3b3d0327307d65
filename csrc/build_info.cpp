// SPDX-License-Identifier: Apache-2.0
// build_info(): what this library is and can use here, as JSON.
#include <mutex>
#include <set>
#include <string>

#include "cpu/engine.h"
#include "cuda/device.h"
#include "dsv4/dsv4.h"
#include "engines.h"

namespace dsv4 {
namespace {

std::string quoted(const char* text) {
  std::string result = "\"";
  for (const char* c = text; *c; ++c) {
    if (*c == '"' || *c == '\\') result += '\\';
    result += static_cast<unsigned char>(*c) < 0x20 ? ' ' : *c;
  }
  return result + '"';
}

// Why this machine has nothing for an engine to run on; empty if it has.
std::string why_not_usable(const Engine& engine, const std::string& why_no_gpu) {
  if (engine.serves == nullptr) return "";
  GpuInfo gpu;
  const int num_gpus = gpu_count(nullptr, 0);
  for (int i = 0; i < num_gpus; ++i) {
    if (gpu_info(i, &gpu) && engine.serves(gpu)) return "";
  }
  return num_gpus == 0 ? why_no_gpu : "it serves no GPU of this machine";
}

std::string describe(const Engine& engine, const std::string& why_not) {
  return "{\"name\": " + quoted(engine.name) + ", \"targets\": " + quoted(engine.targets) +
         ", \"usable\": " + (why_not.empty() ? "true" : "false") +
         ", \"reason\": " + quoted(why_not.c_str()) +
         ", \"rounds_e4m3_weights\": " + (engine.rounds_e4m3_weights ? "true" : "false") + "}";
}

std::string describe() {
  char reason[256] = {};
  const int num_gpus = gpu_count(reason, sizeof(reason));
  std::string gpus;
  for (int i = 0; i < num_gpus; ++i) {
    GpuInfo gpu;
    if (!gpu_info(i, &gpu)) continue;
    if (!gpus.empty()) gpus += ", ";
    gpus += "{\"index\": " + std::to_string(i) + ", \"name\": " + quoted(gpu.name) +
            ", \"sm\": \"" + std::to_string(gpu.major) + std::to_string(gpu.minor) + "\"}";
  }
  std::string list;
  for (const Engine* engine : engines()) {
    std::string why_not = why_not_usable(*engine, reason);
    if (engine->device_type == DeviceType::kCpu) why_not = find_cpu_engine(&engine).message;
    if (!list.empty()) list += ", ";
    list += describe(*engine, why_not);
  }
  return std::string("{\"version\": ") + quoted(DSV4_VERSION) +
         ", \"compiler\": " + quoted(__VERSION__) +
         ", \"cuda_runtime\": " + quoted(cuda_runtime_version()) +
         ", \"driver\": " + quoted(cuda_driver_version()) + ", \"gpus\": [" + gpus +
         "], \"gpu_reason\": " + quoted(reason) + ", \"engines\": [" + list +
         "], \"simd\": " + quoted(cpu::simd_name()) + "}";
}

}  // namespace

const char* build_info() {
  // Answers stay valid until the process ends, so none is ever destroyed. There is one, unless
  // something else comes to serve the CPU.
  static std::mutex mutex;
  static auto* const answers = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return answers->insert(describe()).first->c_str();
}

}  // namespace dsv4
