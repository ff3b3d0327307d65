// SPDX-License-Identifier: Apache-2.0
// What the fake CUDA runtime keeps, and the frame of each of its functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "machine.h"
#include "program.h"
#include "runtime/fat_binary.h"
#include "runtime/gpu_models.h"

namespace dsv4::simulator::cuda {

// What a block may have without cudaFuncAttributeMaxDynamicSharedMemorySize.
inline constexpr int kSharedBytesWithoutOptIn = 48 * 1024;

// Ends an API function with an error code; the text is for dsv4_sim_last_error().
struct Refusal {
  cudaError_t code;
  std::string why;
};
[[noreturn]] __attribute__((format(printf, 2, 3))) void refuse(cudaError_t code, const char* format,
                                                               ...);

// A fat binary that the host program registered, and what has been loaded of it for each device.
struct Binary {
  FatBinary content;
  std::map<std::pair<int, const GpuModel*>, std::unique_ptr<LoadedModule>> loaded;
};

// A text of a binary that has been loaded for some device, and what runs in its place.
struct ModuleText {
  Binary* binary = nullptr;
  const FatBinary::Ptx* own = nullptr;
  std::string replacement;  // "": none
};

struct Kernel {
  Binary* binary = nullptr;
  std::string name;
  struct Attributes {
    int max_dynamic_shared_bytes = -1;  // as set; -1: not
    bool any_cluster_size = false;
  };
  std::map<int, Attributes> attributes;  // by device
};

struct Variable {
  Binary* binary = nullptr;
  std::string name;
  size_t bytes = 0;
};

struct Allocation {
  size_t bytes = 0;
  bool on_host = false;
  int device = 0;
};

enum class Check : uint8_t { kOff, kReport, kFail };

struct State {
  State();

  std::recursive_mutex mutex;

  std::vector<const GpuModel*> devices;
  std::deque<GpuModel> slices;  // models of the devices that are not whole GPUs
  Options options;
  Check check = Check::kFail;

  std::vector<std::unique_ptr<Binary>> binaries;
  std::vector<ModuleText> modules;             // each once, in the order of their first loads
  std::map<const void*, Kernel> kernels;       // by the address of the host function
  std::map<const void*, Variable> variables;   // by the address of the host variable
  std::map<uint64_t, Allocation> allocations;  // by address

  std::string last_error;            // text of the last failure
  cudaError_t broken = cudaSuccess;  // after a failed launch: the answer to everything
  uint64_t num_launches = 0;
  Counters last_launch, all_launches;
  std::vector<std::string> races, lints, schedule_records, launch_records;
  std::set<std::string> unanchored;

  // Returns what is wrong, or "".
  std::string set(const std::string& option, const std::string& value);
};
State& state();

struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};
ThreadState& thread_state();

inline const GpuModel& current_gpu() { return *state().devices[size_t(thread_state().device)]; }
const GpuModel& gpu_of(int device);  // refuses a number that no device has

// Notes the failure and returns its code.
cudaError_t failed(cudaError_t code, const std::string& why);

// The frame of API functions: one at a time; nothing works on a broken device; exceptions become
// codes.
template <class Body>
cudaError_t api(Body&& body) {
  std::lock_guard lock(state().mutex);
  if (state().broken != cudaSuccess) return thread_state().last_error = state().broken;
  try {
    body();
    return cudaSuccess;
  } catch (const Refusal& refusal) {
    return failed(refusal.code, refusal.why);
  } catch (const Error& error) {
    state().broken = cudaErrorLaunchFailure;
    return failed(cudaErrorLaunchFailure, error.what());
  }
}

template <class T>
void expect_not_null(const T* pointer, const char* name) {
  if (pointer == nullptr) refuse(cudaErrorInvalidValue, "%s is null", name);
}

// --- kernels -------------------------------------------------------------------------------------

Kernel& kernel_of(const void* function);
const Program& program_of(Kernel& kernel, int device);
LoadedModule& module_of(Binary& binary, int device);

// See dsv4_sim_replace_ptx. Throws Error if the text cannot be decoded.
void replace_ptx(ModuleText& module, const std::string& ptx);

struct LaunchRequest {
  const void* function = nullptr;
  LaunchShape shape;  // cluster of 0: not asked for
  void** arguments = nullptr;
  cudaStream_t stream = nullptr;
  bool may_overlap_previous = false;  // programmatic stream serialisation
};
void launch(LaunchRequest request);

// --- streams -------------------------------------------------------------------------------------

// Does work in the order of a stream: now, or, while the stream is captured, when its graph is
// launched. Doing it at once is one of the orders that CUDA allows: the host's.
void submit(cudaStream_t stream, std::function<void()> work);

// Kernels of one device may not be launched into a stream of another.
void expect_stream_of_current_device(cudaStream_t stream);

// A refused launch ends the capture of its stream.
void spoil_capture(cudaStream_t stream);

// What the last kernel of a stream wrote, for a launch that may overlap it.
std::shared_ptr<const GlobalWrites>& last_writes(cudaStream_t stream);

// For functions that may not be called while any stream is captured, unless in relaxed mode.
void expect_no_capture(const char* function);

// For functions that CUDA can capture but the simulator cannot.
void expect_not_captured(cudaStream_t stream, const char* function);

}  // namespace dsv4::simulator::cuda
