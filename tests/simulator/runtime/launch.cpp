// SPDX-License-Identifier: Apache-2.0
// Kernels: from the address of a host function to a run in the simulator, with the limits of the
// GPU.
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/launch_record.h"
#include "runtime/state.h"

namespace dsv4::simulator::cuda {
namespace {

constexpr uint32_t kMaxThreads = 1024, kMaxBlockZ = 64, kMaxGridYz = 65535, kMaxGridX = 0x7FFFFFFF;

void check_dimensions(const Program& program, const LaunchShape& shape) {
  const char* name = program.function->name.c_str();
  const Dim3 grid = shape.grid, block = shape.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxGridX || grid.y > kMaxGridYz ||
      grid.z > kMaxGridYz) {
    refuse(cudaErrorInvalidValue, "%s: a grid of (%u, %u, %u) blocks is not possible", name, grid.x,
           grid.y, grid.z);
  }
  if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > kMaxThreads ||
      block.y > kMaxThreads || block.z > kMaxBlockZ || block.count() > kMaxThreads) {
    refuse(cudaErrorInvalidValue, "%s: a block of (%u, %u, %u) threads is not possible", name,
           block.x, block.y, block.z);
  }
  const uint32_t (&bounds)[3] = program.function->max_threads;
  if (bounds[0] != 0 && block.count() > bounds[0] * bounds[1] * bounds[2]) {
    refuse(cudaErrorInvalidValue, "%s: %u threads in a block, but its launch bounds are %u", name,
           block.count(), bounds[0] * bounds[1] * bounds[2]);
  }
}

void check_shared_memory(const Program& program, const Kernel::Attributes& attributes,
                         uint32_t dynamic_bytes) {
  const auto fixed = int(program.function->shared_bytes);
  const int limit = attributes.max_dynamic_shared_bytes >= 0 ? attributes.max_dynamic_shared_bytes
                                                             : kSharedBytesWithoutOptIn - fixed;
  if (dynamic_bytes <= uint32_t(std::max(limit, 0))) return;
  refuse(
      cudaErrorInvalidValue,
      "%s: %u bytes of dynamic shared memory, but cudaFuncAttributeMaxDynamicSharedMemorySize is "
      "%d",
      program.function->name.c_str(), dynamic_bytes, limit);
}

// Completes the shape with the cluster that the kernel requires.
void check_cluster(const GpuModel& gpu, const Program& program,
                   const Kernel::Attributes& attributes, LaunchShape& shape) {
  const char* name = program.function->name.c_str();
  const uint32_t (&required)[3] = program.function->required_cluster;
  Dim3& cluster = shape.cluster;
  if (required[0] != 0) {
    const bool asked = cluster.count() != 0;
    if (asked &&
        (cluster.x != required[0] || cluster.y != required[1] || cluster.z != required[2])) {
      refuse(cudaErrorInvalidClusterSize,
             "%s: a cluster of (%u, %u, %u), but it requires (%u, %u, %u)", name, cluster.x,
             cluster.y, cluster.z, required[0], required[1], required[2]);
    }
    cluster = {required[0], required[1], required[2]};
  } else if (cluster.count() == 0) {
    cluster = {1, 1, 1};
  }
  const int limit = attributes.any_cluster_size ? gpu.max_cluster : gpu.max_portable_cluster;
  if (cluster.count() > uint32_t(limit)) {
    refuse(cudaErrorInvalidClusterSize, "%s: a cluster of %u blocks; the limit is %d", name,
           cluster.count(), limit);
  }
  const Dim3 grid = shape.grid;
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0) {
    refuse(cudaErrorInvalidClusterSize,
           "%s: the grid (%u, %u, %u) is not a multiple of the cluster (%u, %u, %u)", name, grid.x,
           grid.y, grid.z, cluster.x, cluster.y, cluster.z);
  }
}

std::vector<uint8_t> packed_arguments(const ptx::Function& function, void** arguments) {
  std::vector<uint8_t> packed(function.parameter_bytes);
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    const ptx::Variable& parameter = function.parameters[i];
    std::memcpy(packed.data() + parameter.offset, arguments[i], parameter.bytes);
  }
  return packed;
}

template <class Container>
void append(std::vector<std::string>& all, const Container& more) {
  for (const std::string& text : more) {
    if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
  }
}

// The name as it stands in the source, with its types.
std::string demangled(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = text != nullptr ? text : name;
  std::free(text);
  return result;
}

// Errors of the simulator, and reports of the checker if they are to count as errors, break the
// device.
void run_kernel(const Program& program, const LaunchShape& shape,
                const std::vector<uint8_t>& parameters, const LaunchRequest& request) {
  State& s = state();
  Options options = s.options;
  if (request.may_overlap_previous) options.previous = last_writes(request.stream);
  LaunchResult result;
  try {
    result = run(program, shape, parameters.data(), options);
  } catch (const Error& error) {
    throw Error(demangled(program.function->name) + ": " + error.what());
  }
  last_writes(request.stream) = result.writes;
  ++s.num_launches;
  if (options.count) {
    const std::string kernel = demangled(program.function->name);
    s.launch_records.push_back(launch_record(kernel, shape, result.counters));
  }
  s.all_launches.add(result.counters);
  s.last_launch = std::move(result.counters);
  append(s.races, result.races);
  append(s.lints, result.lints);
  s.unanchored.insert(result.unanchored.begin(), result.unanchored.end());
  if (result.races.empty() || s.check != Check::kFail) return;
  std::string report = demangled(program.function->name) + ": the checker reports:";
  for (const std::string& race : result.races) report += "\n" + race;
  throw Error(report);
}

const FatBinary::Ptx& ptx_for(const Binary& binary, const GpuModel& gpu) {
  const FatBinary::Ptx* best = nullptr;
  for (const FatBinary::Ptx& ptx : binary.content.ptx) {
    const int score = suitability(gpu, ptx.target);
    if (score > 0 && (best == nullptr || score > suitability(gpu, best->target))) best = &ptx;
  }
  if (best == nullptr) {
    std::string targets;
    for (const FatBinary::Ptx& ptx : binary.content.ptx) targets += " " + ptx.target;
    refuse(cudaErrorNoKernelImageForDevice,
           "no PTX for %s (compute capability %d.%d), only for%s. %s", gpu.name, gpu.major,
           gpu.minor, targets.empty() ? " nothing" : targets.c_str(),
           binary.content.problem.c_str());
  }
  return *best;
}

ModuleText& module_text(Binary& binary, const FatBinary::Ptx& ptx) {
  std::vector<ModuleText>& modules = state().modules;
  const auto found = std::find_if(modules.begin(), modules.end(),
                                  [&](const ModuleText& module) { return module.own == &ptx; });
  return found != modules.end() ? *found : modules.emplace_back(ModuleText{&binary, &ptx, ""});
}

}  // namespace

Kernel& kernel_of(const void* function) {
  const auto found = state().kernels.find(function);
  if (found == state().kernels.end()) {
    refuse(cudaErrorInvalidDeviceFunction, "no kernel has been registered for %p", function);
  }
  return found->second;
}

LoadedModule& module_of(Binary& binary, int device) {
  const GpuModel& gpu = gpu_of(device);
  std::unique_ptr<LoadedModule>& loaded = binary.loaded[{device, &gpu}];
  if (loaded == nullptr) {
    const ModuleText& module = module_text(binary, ptx_for(binary, gpu));
    loaded = std::make_unique<LoadedModule>(module.replacement.empty() ? module.own->text
                                                                       : module.replacement);
  }
  return *loaded;
}

void replace_ptx(ModuleText& module, const std::string& ptx) {
  if (!ptx.empty()) {
    LoadedModule trial(ptx);
    for (const std::string& kernel : trial.kernels()) trial.program(kernel);
  }
  module.replacement = ptx;
  module.binary->loaded.clear();
}

const Program& program_of(Kernel& kernel, int device) {
  return module_of(*kernel.binary, device).program(kernel.name);
}

void launch(LaunchRequest request) {
  Kernel& kernel = kernel_of(request.function);
  const int device = thread_state().device;
  expect_stream_of_current_device(request.stream);
  const Program& program = program_of(kernel, device);
  const Kernel::Attributes& attributes = kernel.attributes[device];
  try {
    check_dimensions(program, request.shape);
    check_shared_memory(program, attributes, request.shape.dynamic_shared_bytes);
    check_cluster(gpu_of(device), program, attributes, request.shape);
  } catch (const Refusal&) {
    spoil_capture(request.stream);
    throw;
  }
  auto parameters = packed_arguments(*program.function, request.arguments);
  request.arguments = nullptr;  // gone when a captured launch runs
  submit(request.stream, [=, &program, parameters = std::move(parameters)] {
    run_kernel(program, request.shape, parameters, request);
  });
}

}  // namespace dsv4::simulator::cuda
