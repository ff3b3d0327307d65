// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "library/broken_engine.h"
#include "status.h"

namespace dsv4::simulated::broken {
namespace {

__global__ void load(const uint8_t* from, uint8_t* to) { *to = *from; }

__global__ void exchange_without_barrier(float* out) {
  __shared__ float values[64];
  const int thread = static_cast<int>(threadIdx.x);
  values[thread] = static_cast<float>(thread);
  out[thread] = values[63 - thread];
}

__global__ void do_nothing() {}

cuda::LaunchConfig one_block(const char* kernel, const Device& device, Stream stream,
                             unsigned threads) {
  return {kernel, device, stream, dim3(1), dim3(threads)};
}

// Loads a byte that is not the caller's to have touched.
Status load_byte(const Device& device, Stream stream, const void* from, void* to,
                 bool enable_pdl = false) {
  const cuda::DeviceGuard guard(device);
  DSV4_RETURN_IF_FAILED(guard.status());
  cuda::LaunchConfig config = one_block("load", device, stream, 1);
  config.enable_pdl = enable_pdl;
  return cuda::launch<load>(config, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to));
}

Status workspace_size(const DecodeShape&, size_t* bytes) {
  *bytes = 0;
  return {};
}

// Reads slot 0, whatever the index table says, and without waiting for the kernel before.
Status read_slot_0(const DecodeProblem& problem, Stream stream) {
  return load_byte(problem.device, stream, problem.window.pool.data, problem.out.data,
                   problem.enable_pdl);
}

// Threads read what others write, at about the same time.
Status race(const MergeProblem& problem, Stream stream) {
  const cuda::DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  return cuda::launch<exchange_without_barrier>(
      one_block("exchange_without_barrier", problem.device, stream, 64),
      static_cast<float*>(problem.out));
}

// Reads one slot number past the last.
Status read_past_the_end(const AppendProblem& problem, Stream stream) {
  const int64_t bytes = problem.rows * (problem.slots_are_64bit ? 8 : 4);
  return load_byte(problem.device, stream, static_cast<const uint8_t*>(problem.slots) + bytes,
                   const_cast<void*>(problem.values));
}

Status launch_on_current_device(const PackProblem& problem, Stream stream) {
  return cuda::launch<do_nothing>(one_block("do_nothing", problem.device, stream, 1));
}

Status change_current_device(const PackProblem& problem, Stream) {
  return cuda::to_status(cudaSetDevice(problem.device.index), "cudaSetDevice");
}

Status leave_an_error_behind(const HcaMetadataProblem&, Stream) {
  (void)cudaSetDevice(-1);
  return {};
}

}  // namespace

const Engine kEngine = {
    "broken",
    "90",
    DeviceType::kCuda,
    nullptr,
    false,
    workspace_size,
    read_slot_0,
    race,
    read_past_the_end,
    launch_on_current_device,
    change_current_device,
    leave_an_error_behind,
};

}  // namespace dsv4::simulated::broken
