// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"

#include <cinttypes>

#include "status.h"

namespace dsv4::cuda {
namespace {

// Without being asked, the runtime allows 48 KB, those of static arrays included.
Status allow_shared_memory(const void* kernel, const LaunchConfig& config,
                           SharedMemoryAllowance& allowance) {
  const size_t wanted = config.dynamic_shared_bytes;
  std::atomic<size_t>& allowed = allowance.bytes[config.device.index];
  if (wanted <= allowed.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(allowance.mutex);
  if (wanted <= allowed.load(std::memory_order_relaxed)) return {};
  DSV4_RETURN_IF_FAILED(to_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(wanted)),
      config.kernel));
  allowed.store(wanted, std::memory_order_release);
  return {};
}

}  // namespace

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  DSV4_FAIL(kRuntimeError, "the CUDA runtime refused: %s: %s", what, cudaGetErrorString(error));
}

DeviceGuard::DeviceGuard(const Device& device) {
  int current = -1;
  status_ = to_status(cudaGetDevice(&current), "cudaGetDevice");
  if (!status_.ok() || current == device.index) return;
  status_ = to_status(cudaSetDevice(device.index), "cudaSetDevice");
  if (status_.ok()) before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) (void)to_status(cudaSetDevice(before_), "cudaSetDevice");
}

Status along_x(const char* kernel, const Device& device, Stream stream, int64_t blocks, int threads,
               LaunchConfig* config) {
  if (blocks > INT32_MAX) {
    DSV4_FAIL(kUnsupported, "%s: expected work for at most %d blocks, got %" PRId64, kernel,
              INT32_MAX, blocks);
  }
  config->kernel = kernel;
  config->device = device;
  config->stream = stream;
  config->grid = dim3(unsigned(blocks));
  config->block = dim3(unsigned(threads));
  return {};
}

Status launch_kernel(const void* kernel, void** arguments, const LaunchConfig& config,
                     SharedMemoryAllowance& allowance) {
  DSV4_RETURN_IF_FAILED(allow_shared_memory(kernel, config, allowance));
  cudaLaunchAttribute attributes[2];
  unsigned num_attributes = 0;
  if (config.enable_pdl) {
    cudaLaunchAttribute& pdl = attributes[num_attributes++];
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {config.cluster, 1, 1};
  }
  cudaLaunchConfig_t how = {};
  how.gridDim = config.grid;
  how.blockDim = config.block;
  how.dynamicSmemBytes = config.dynamic_shared_bytes;
  how.stream = static_cast<cudaStream_t>(config.stream);
  how.attrs = attributes;
  how.numAttrs = num_attributes;
  return to_status(cudaLaunchKernelExC(&how, kernel, arguments), config.kernel);
}

}  // namespace dsv4::cuda
