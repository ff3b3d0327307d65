// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <cstdio>

#include "cuda/device.h"

namespace dsv4 {
namespace {

constexpr int version_major(int cuda_version) { return cuda_version / 1000; }
constexpr int version_minor(int cuda_version) { return cuda_version % 1000 / 10; }

// The oldest Linux driver for each CUDA major version, by NVIDIA's compatibility table.
constexpr const char* kOldestDriver = version_major(CUDART_VERSION) == 12 ? "525" : "580";
static_assert(version_major(CUDART_VERSION) == 12 || version_major(CUDART_VERSION) == 13,
              "state the oldest driver of this CUDA version in kOldestDriver");

struct Machine {
  int num_gpus = 0;
  char reason[256] = {};  // why num_gpus is 0
  char driver_version[16] = "none";
  GpuInfo gpus[kMaxGpus];
};

int attribute(cudaDeviceAttr name, int index) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, name, index) == cudaSuccess ? value : 0;
}

GpuInfo query_gpu(int index) {
  GpuInfo info;
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return info;
  info.present = true;
  info.major = properties.major;
  info.minor = properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.max_shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  info.l2_bytes = properties.l2CacheSize;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  std::snprintf(info.name, sizeof(info.name), "%s", properties.name);
  return info;
}

void explain(cudaError_t error, int driver, Machine* machine) {
  char* const reason = machine->reason;
  constexpr size_t size = sizeof(machine->reason);
  if (driver == 0) {
    std::snprintf(reason, size, "no NVIDIA driver");
  } else if (error == cudaErrorInsufficientDriver) {
    std::snprintf(
        reason, size,
        "the NVIDIA driver supports CUDA %s, older than the CUDA %s runtime of this build; "
        "needs driver >= %s",
        machine->driver_version, cuda_runtime_version(), kOldestDriver);
  } else if (error == cudaSuccess || error == cudaErrorNoDevice) {
    std::snprintf(reason, size, "the NVIDIA driver shows no GPU to this process");
  } else {
    std::snprintf(reason, size, "the CUDA runtime refused: %s", cudaGetErrorString(error));
  }
}

Machine query_machine() {
  Machine machine;
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (driver != 0) {
    std::snprintf(machine.driver_version, sizeof(machine.driver_version), "%d.%d",
                  version_major(driver), version_minor(driver));
  }

  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    explain(error, driver, &machine);
  } else {
    machine.num_gpus = count < kMaxGpus ? count : kMaxGpus;
    for (int i = 0; i < machine.num_gpus; ++i) machine.gpus[i] = query_gpu(i);
  }
  // A failed query must not show up in the check after a later launch.
  (void)cudaGetLastError();
  return machine;
}

// Asked once: the first query took 0.19 s on a machine with an H200.
const Machine& machine() {
  static const Machine instance = query_machine();
  return instance;
}

}  // namespace

int gpu_count(char* reason, size_t reason_bytes) {
  const Machine& found = machine();
  if (reason != nullptr && reason_bytes > 0) {
    std::snprintf(reason, reason_bytes, "%s", found.reason);
  }
  return found.num_gpus;
}

bool gpu_info(int index, GpuInfo* info) {
  const Machine& found = machine();
  *info = index >= 0 && index < found.num_gpus ? found.gpus[index] : GpuInfo{};
  return info->present;
}

const char* cuda_runtime_version() {
#define DSV4_TEXT_OF(x) #x
#define DSV4_TEXT(x) DSV4_TEXT_OF(x)
  return DSV4_TEXT(__CUDACC_VER_MAJOR__) "." DSV4_TEXT(__CUDACC_VER_MINOR__);
}

const char* cuda_driver_version() { return machine().driver_version; }

}  // namespace dsv4
