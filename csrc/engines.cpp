// SPDX-License-Identifier: Apache-2.0
#include "engines.h"

#include <iterator>

#include "cpu/engine.h"
#include "cuda/device.h"
#include "status.h"
#if defined(DSV4_WITH_CUDA)
#include "sm100/engine.h"
#include "sm120/engine.h"
#endif

namespace dsv4 {
namespace {

// Best first: where several serve a GPU, the first of them does.
constexpr const Engine* kEngines[] = {
#if defined(DSV4_WITH_CUDA)
    &sm100::kEngine,
    &sm120::kEngine,
#endif
    &cpu::kEngine,
};

// "sm120, cpu" of this build.
void engine_names(char* text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (const Engine* engine : kEngines) {
    const int written =
        std::snprintf(text + used, size - used, "%s%s", used ? ", " : "", engine->name);
    if (written < 0 || size_t(written) >= size - used) return;
    used += size_t(written);
  }
}

}  // namespace

EngineList engines() { return {std::begin(kEngines), std::end(kEngines)}; }

Status find_engine(const Device& device, const Engine** engine) {
  if (device.type == DeviceType::kCpu) return find_cpu_engine(engine);
  char names[128];
  engine_names(names, sizeof(names));
  char reason[256] = {};
  const int num_gpus = gpu_count(reason, sizeof(reason));
  if (num_gpus == 0) {
    DSV4_FAIL(kUnsupported,
              "device cuda:%d: cannot be used: %s. This build holds: %s. Hint: move the tensors to "
              "the CPU",
              device.index, reason, names);
  }
  GpuInfo gpu;
  if (!gpu_info(device.index, &gpu)) {
    DSV4_FAIL(kInvalidValue, "device: expected a CUDA ordinal in [0, %d), got %d", num_gpus,
              device.index);
  }
  return find_gpu_engine(gpu, device.index, engine);
}

Status find_gpu_engine(const GpuInfo& gpu, int index, const Engine** engine) {
  for (const Engine* one : kEngines) {
    if (one->serves == nullptr || !one->serves(gpu)) continue;
    *engine = one;
    return {};
  }
  char names[128];
  engine_names(names, sizeof(names));
  DSV4_FAIL(kUnsupported,
            "device cuda:%d: no engine for %s (sm_%d%d). This build holds: %s. Hint: move the "
            "tensors to the CPU, or "
            "install a build that names sm_%d%d in build_info()",
            index, gpu.name, gpu.major, gpu.minor, names, gpu.major, gpu.minor);
}

}  // namespace dsv4
