// SPDX-License-Identifier: Apache-2.0
// Launching kernels: the device of a problem, and a Status for what the CUDA runtime answers.
// Nothing here waits for a GPU or allocates, so all of it may happen while a stream is captured.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <type_traits>

#include "cuda/device.h"
#include "dsv4/dsv4.h"

namespace dsv4::cuda {

// Ok for cudaSuccess, else "the CUDA runtime refused: <what>: <its words>". The error is taken from
// the runtime: it must not show up in the check after somebody's next launch.
Status to_status(cudaError_t error, const char* what);

// Makes a device the current one until the end of the scope. Does nothing if it is that already.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Device& device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  const Status& status() const { return status_; }  // nothing may be launched unless it is ok

 private:
  Status status_;
  int before_ = -1;  // the device to go back to; -1: none
};

struct LaunchConfig {
  const char* kernel = "";  // its name, for errors
  Device device;            // the current one; see DeviceGuard
  Stream stream = nullptr;
  dim3 grid{1};
  dim3 block{1};
  unsigned cluster = 1;  // blocks along x that run together
  size_t dynamic_shared_bytes = 0;
  bool enable_pdl = false;  // may start before the kernel ahead of it in the stream has ended
};

// A launch of `blocks` along x, the only direction that takes more than 65,535. The status is not
// ok if there are too many even for that.
Status along_x(const char* kernel, const Device& device, Stream stream, int64_t blocks, int threads,
               LaunchConfig* config);

// How much dynamic shared memory one kernel has been allowed, by device. The runtime keeps the last
// number that it was given, so that two threads must not give theirs at once.
struct SharedMemoryAllowance {
  std::atomic<size_t> bytes[kMaxGpus] = {};
  std::mutex mutex;
};

Status launch_kernel(const void* kernel, void** arguments, const LaunchConfig& config,
                     SharedMemoryAllowance& allowance);

template <class... Parameters>
Status launch_kernel(void (*kernel)(Parameters...), const LaunchConfig& config,
                     SharedMemoryAllowance& allowance,
                     const std::common_type_t<Parameters>&... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
  return launch_kernel(reinterpret_cast<const void*>(kernel), pointers, config, allowance);
}

// launch<kernel>(config, arguments...): as kernel<<<...>>>(arguments...), any amount of shared
// memory included. The kernel is a template argument for it to have its own allowance.
template <auto* kKernel, class... Arguments>
Status launch(const LaunchConfig& config, const Arguments&... arguments) {
  static SharedMemoryAllowance allowance;
  return launch_kernel(kKernel, config, allowance, arguments...);
}

}  // namespace dsv4::cuda
