// SPDX-License-Identifier: Apache-2.0
// build_info(): what this library is and can use here, as JSON.
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
    if (!list.empty()) list += ", ";
    list += "{\"name\": " + quoted(engine->name) + ", \"targets\": " + quoted(engine->targets) +
            ", \"usable\": true, \"reason\": \"\"}";
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
  // Never destroyed: the answer stays valid until the process ends.
  static const std::string* text = new std::string(describe());
  return text->c_str();
}

}  // namespace dsv4
