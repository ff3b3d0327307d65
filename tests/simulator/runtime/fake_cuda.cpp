// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime API on top of the simulator: host programs whose device code nvcc compiled to
// PTX link against this instead of cudart. Device memory is host memory that the simulator knows
// of; everything runs in the order of the host's calls. What is not here does not link.
//
// Error codes for wrong calls are those of CUDA 13.0 with driver 580 on an H200.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "memory.h"
#include "runtime/state.h"
#include "tensor_map.h"

namespace dsv4::simulator::cuda {
namespace {

constexpr int kVersion = CUDART_VERSION;
constexpr int kTensorMapVersion = 12000;  // of CUDA, which brought cuTensorMapEncodeTiled
constexpr int kReservedSharedBytes = 1024;
constexpr int kSharedGranularity = 128;
constexpr int kWarp = 32;
constexpr int kRegisters = 64 * 1024;
constexpr size_t kMemoryAlignment = 256;
constexpr int kMemoryPoison =
    0xFF;  // NaN in every format: what cudaMalloc gives is not initialised

// --- errors --------------------------------------------------------------------------------------

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not initiated in this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
};

const ErrorText& text_of(cudaError_t code) {
  static constexpr ErrorText kUnknown = {cudaErrorUnknown, "unrecognized error code",
                                         "unrecognized error code"};
  const auto found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                  [&](const ErrorText& e) { return e.code == code; });
  return found == std::end(kErrors) ? kUnknown : *found;
}

// --- devices -------------------------------------------------------------------------------------

int attribute_of(const GpuModel& gpu, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return 1024;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxGridDimX:
      return 0x7FFFFFFF;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return kSharedBytesWithoutOptIn;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return gpu.shared_bytes_per_block;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return gpu.shared_bytes_per_sm;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return kReservedSharedBytes;
    case cudaDevAttrTotalConstantMemory:
      return 65536;
    case cudaDevAttrWarpSize:
      return kWarp;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return kRegisters;
    case cudaDevAttrClockRate:
      return gpu.clock_khz;
    case cudaDevAttrMemoryClockRate:
      return gpu.memory_clock_khz;
    case cudaDevAttrGlobalMemoryBusWidth:
      return gpu.memory_bus_bits;
    case cudaDevAttrMultiProcessorCount:
      return gpu.num_sms;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return gpu.threads_per_sm;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return gpu.blocks_per_sm;
    case cudaDevAttrL2CacheSize:
      return gpu.l2_bytes;
    case cudaDevAttrComputeCapabilityMajor:
      return gpu.major;
    case cudaDevAttrComputeCapabilityMinor:
      return gpu.minor;
    case cudaDevAttrIntegrated:
      return gpu.integrated;
    case cudaDevAttrKernelExecTimeout:
    case cudaDevAttrCooperativeLaunch:  // blocks run one after the other
    case cudaDevAttrManagedMemory:
      return 0;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrClusterLaunch:
    case cudaDevAttrMemoryPoolsSupported:
      return 1;
    default:
      refuse(cudaErrorInvalidValue, "device attribute %d is not simulated", int(attribute));
  }
}

void fill_properties(const GpuModel& gpu, cudaDeviceProp& p) {
  std::memset(&p, 0, sizeof(p));
  std::strncpy(p.name, gpu.name, sizeof(p.name) - 1);
  p.totalGlobalMem = gpu.memory_bytes;
  p.sharedMemPerBlock = kSharedBytesWithoutOptIn;
  p.sharedMemPerBlockOptin = size_t(gpu.shared_bytes_per_block);
  p.sharedMemPerMultiprocessor = size_t(gpu.shared_bytes_per_sm);
  p.reservedSharedMemPerBlock = kReservedSharedBytes;
  p.regsPerBlock = p.regsPerMultiprocessor = kRegisters;
  p.warpSize = kWarp;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7FFFFFFF;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.major = gpu.major;
  p.minor = gpu.minor;
  p.multiProcessorCount = gpu.num_sms;
  p.integrated = gpu.integrated;
  p.concurrentKernels = 1;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = gpu.memory_bus_bits;
  p.l2CacheSize = gpu.l2_bytes;
  p.maxThreadsPerMultiProcessor = gpu.threads_per_sm;
  p.maxBlocksPerMultiProcessor = gpu.blocks_per_sm;
  p.streamPrioritiesSupported = 1;
  p.memoryPoolsSupported = 1;
}

// --- memory --------------------------------------------------------------------------------------

uint64_t as_number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

void* allocate(size_t bytes, bool on_host) {
  if (bytes == 0) return nullptr;
  const size_t rounded = (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
  void* const data = rounded > current_gpu().memory_bytes
                         ? nullptr
                         : std::aligned_alloc(kMemoryAlignment, rounded);
  if (data == nullptr) refuse(cudaErrorMemoryAllocation, "no memory for %zu bytes", bytes);
  std::memset(data, kMemoryPoison, bytes);
  register_memory(data, bytes);
  state().allocations[as_number(data)] = {bytes, on_host, thread_state().device};
  return data;
}

void release(void* data, bool on_host) {
  if (data == nullptr) return;
  const auto found = state().allocations.find(as_number(data));
  if (found == state().allocations.end() || found->second.on_host != on_host) {
    refuse(cudaErrorInvalidValue, "%p has not been allocated", data);
  }
  unregister_memory(data);
  state().allocations.erase(found);
  std::free(data);
}

const Allocation* allocation_at(const void* pointer) {
  const auto& allocations = state().allocations;
  auto next = allocations.upper_bound(as_number(pointer));
  if (next == allocations.begin()) return nullptr;
  --next;
  return as_number(pointer) < next->first + next->second.bytes ? &next->second : nullptr;
}

bool is_on_device(const void* pointer) {
  const Allocation* allocation = allocation_at(pointer);
  return allocation != nullptr ? !allocation->on_host : is_registered(as_number(pointer), 1);
}

// One side of a copy: in an allocation if on the device, and in none of the device's if on the
// host.
void check_side(const void* pointer, size_t bytes, bool on_device, const char* side) {
  if (is_on_device(pointer) != on_device) {
    refuse(cudaErrorInvalidValue, "%s %p is not %s memory", side, pointer,
           on_device ? "device" : "host");
  }
  if (on_device && !is_registered(as_number(pointer), bytes)) {
    refuse(cudaErrorInvalidValue, "%s %p + %zu bytes reaches beyond its allocation", side, pointer,
           bytes);
  }
}

void check_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  expect_not_null(to, "destination");
  expect_not_null(from, "source");
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault) {
    to_device = is_on_device(to);
    from_device = is_on_device(from);
  } else if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    refuse(cudaErrorInvalidMemcpyDirection, "copy direction %d does not exist", int(kind));
  }
  check_side(to, bytes, to_device, "destination");
  check_side(from, bytes, from_device, "source");
}

void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  check_copy(to, from, bytes, kind);
  submit(stream, [=] {
    if (bytes > 0) std::memmove(to, from, bytes);
  });
}

void set(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes > 0) check_side(to, bytes, true, "destination");
  submit(stream, [=] {
    if (bytes > 0) std::memset(to, value, bytes);
  });
}

const Variable& variable_of(const void* symbol) {
  const auto found = state().variables.find(symbol);
  if (found == state().variables.end()) {
    refuse(cudaErrorInvalidSymbol, "no variable has been registered for %p", symbol);
  }
  return found->second;
}

uint8_t* address_of(const void* symbol, size_t offset, size_t bytes) {
  const Variable& variable = variable_of(symbol);
  if (offset + bytes > variable.bytes) {
    refuse(cudaErrorInvalidValue, "%s has %zu bytes", variable.name.c_str(), variable.bytes);
  }
  void* data = module_of(*variable.binary, thread_state().device).address_of(variable.name);
  if (data == nullptr) refuse(cudaErrorInvalidSymbol, "the PTX has no %s", variable.name.c_str());
  return static_cast<uint8_t*>(data) + offset;
}

// --- kernels -------------------------------------------------------------------------------------

Dim3 to_dim3(dim3 d) { return {d.x, d.y, d.z}; }

LaunchRequest request_of(const void* function, dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                         void** arguments, cudaStream_t stream) {
  if (dynamic_shared_bytes > UINT32_MAX) {
    refuse(cudaErrorInvalidValue, "%zu bytes of shared memory", dynamic_shared_bytes);
  }
  LaunchRequest request;
  request.function = function;
  request.shape = {to_dim3(grid), to_dim3(block), {0, 0, 0}, uint32_t(dynamic_shared_bytes)};
  request.arguments = arguments;
  request.stream = stream;
  return request;
}

void apply(const cudaLaunchAttribute& attribute, LaunchRequest& request) {
  switch (attribute.id) {
    case cudaLaunchAttributeIgnore:
    case cudaLaunchAttributePriority:
      return;
    case cudaLaunchAttributeClusterDimension: {
      const auto& d = attribute.val.clusterDim;
      if (d.x == 0 || d.y == 0 || d.z == 0) {
        refuse(cudaErrorInvalidClusterSize, "a cluster of (%u, %u, %u) blocks", d.x, d.y, d.z);
      }
      request.shape.cluster = {d.x, d.y, d.z};
      return;
    }
    case cudaLaunchAttributeProgrammaticStreamSerialization:
      request.may_overlap_previous = attribute.val.programmaticStreamSerializationAllowed != 0;
      return;
    default:
      refuse(cudaErrorNotSupported, "launch attribute %d is not simulated", int(attribute.id));
  }
}

int blocks_per_sm(const void* function, int block_size, size_t dynamic_shared_bytes) {
  const GpuModel& gpu = current_gpu();
  const Program& program = program_of(kernel_of(function), thread_state().device);
  const size_t shared = program.function->shared_bytes + dynamic_shared_bytes;
  if (block_size < 1 || block_size > 1024 || shared > size_t(gpu.shared_bytes_per_block)) return 0;
  const int threads = (block_size + kWarp - 1) / kWarp * kWarp;
  const int bytes = (int(shared) + kReservedSharedBytes + kSharedGranularity - 1) /
                    kSharedGranularity * kSharedGranularity;
  return std::min(
      {gpu.blocks_per_sm, gpu.threads_per_sm / threads, gpu.shared_bytes_per_sm / bytes});
}

struct CallConfiguration {
  dim3 grid, block;
  size_t dynamic_shared_bytes;
  cudaStream_t stream;
};
std::vector<CallConfiguration>& call_configurations() {
  static thread_local std::vector<CallConfiguration> stack;
  return stack;
}

}  // namespace
}  // namespace dsv4::simulator::cuda

using namespace dsv4::simulator;
using namespace dsv4::simulator::cuda;

extern "C" {

// --- what nvcc's host code calls -----------------------------------------------------------------

void** __cudaRegisterFatBinary(void* wrapper) {
  std::lock_guard lock(state().mutex);
  state().binaries.push_back(std::make_unique<Binary>());
  state().binaries.back()->content = read_fat_binary(wrapper);
  return reinterpret_cast<void**>(state().binaries.back().get());
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}  // at exit, when nothing is launched any more
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  std::lock_guard lock(state().mutex);
  Kernel& kernel = state().kernels[host_function];
  kernel.binary = reinterpret_cast<Binary*>(handle);
  kernel.name = name;
}

void __cudaRegisterVar(void** handle, char* host_variable, char*, const char* name, int,
                       size_t bytes, int, int) {
  std::lock_guard lock(state().mutex);
  state().variables[host_variable] = {reinterpret_cast<Binary*>(handle), name, bytes};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                                     CUstream_st* stream) {
  call_configurations().push_back({grid, block, dynamic_shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_shared_bytes,
                                       void* stream) {
  const CallConfiguration top = call_configurations().back();
  call_configurations().pop_back();
  *grid = top.grid;
  *block = top.block;
  *dynamic_shared_bytes = top.dynamic_shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

// Asked once for each kernel, whatever the state of the device.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t dynamic_shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(static_cast<const void*>(kernel), grid, block, arguments,
                          dynamic_shared_bytes, stream);
}

// --- kernels -------------------------------------------------------------------------------------

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t dynamic_shared_bytes, cudaStream_t stream) {
  return api(
      [&] { launch(request_of(function, grid, block, dynamic_shared_bytes, arguments, stream)); });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  return api([&] {
    expect_not_null(config, "launch configuration");
    LaunchRequest request = request_of(function, config->gridDim, config->blockDim,
                                       config->dynamicSmemBytes, arguments, config->stream);
    for (unsigned i = 0; i < config->numAttrs; ++i) apply(config->attrs[i], request);
    launch(request);
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return api([&] {
    Kernel& kernel = kernel_of(function);
    const int device = thread_state().device;
    const ptx::Function& code = *program_of(kernel, device).function;
    Kernel::Attributes& attributes = kernel.attributes[device];
    switch (attribute) {
      case cudaFuncAttributeMaxDynamicSharedMemorySize: {
        const int limit = gpu_of(device).shared_bytes_per_block - int(code.shared_bytes);
        if (value < 0 || value > limit) {
          refuse(cudaErrorInvalidValue, "%s: %d bytes of dynamic shared memory; %s has %d for it",
                 kernel.name.c_str(), value, gpu_of(device).name, limit);
        }
        attributes.max_dynamic_shared_bytes = value;
        return;
      }
      case cudaFuncAttributeNonPortableClusterSizeAllowed:
        attributes.any_cluster_size = value != 0;
        return;
      case cudaFuncAttributePreferredSharedMemoryCarveout:
        if (value < -1 || value > 100) refuse(cudaErrorInvalidValue, "a carve-out of %d %%", value);
        return;
      default:
        refuse(cudaErrorInvalidValue, "function attribute %d is not simulated", int(attribute));
    }
  });
}

// Registers are not known: PTX has not been through ptxas.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* result, const void* function) {
  return api([&] {
    expect_not_null(result, "attributes");
    Kernel& kernel = kernel_of(function);
    const int device = thread_state().device;
    const ptx::Function& code = *program_of(kernel, device).function;
    const GpuModel& gpu = gpu_of(device);
    std::memset(result, 0, sizeof(*result));
    result->sharedSizeBytes = code.shared_bytes;
    result->localSizeBytes = code.local_bytes;
    result->maxThreadsPerBlock =
        code.max_threads[0] == 0
            ? 1024
            : int(code.max_threads[0] * code.max_threads[1] * code.max_threads[2]);
    result->ptxVersion = result->binaryVersion = gpu.major * 10 + gpu.minor;
    const int set = kernel.attributes[device].max_dynamic_shared_bytes;
    result->maxDynamicSharedSizeBytes =
        set >= 0 ? set : kSharedBytesWithoutOptIn - int(code.shared_bytes);
    result->preferredShmemCarveout = -1;
    result->clusterDimMustBeSet = code.required_cluster[0] != 0;
    result->requiredClusterWidth = int(code.required_cluster[0]);
    result->requiredClusterHeight = int(code.required_cluster[1]);
    result->requiredClusterDepth = int(code.required_cluster[2]);
    result->nonPortableClusterSizeAllowed = kernel.attributes[device].any_cluster_size;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int block_size,
                                                          size_t dynamic_shared_bytes) {
  return api([&] {
    expect_not_null(blocks, "number of blocks");
    *blocks = blocks_per_sm(function, block_size, dynamic_shared_bytes);
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int block_size, size_t dynamic_shared_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size,
                                                       dynamic_shared_bytes);
}

// --- devices -------------------------------------------------------------------------------------

// Still answered by a broken device.
cudaError_t cudaGetDeviceCount(int* count) {
  std::lock_guard lock(state().mutex);
  *count = int(state().devices.size());
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  return api([&] {
    expect_not_null(device, "device");
    *device = thread_state().device;
  });
}

cudaError_t cudaSetDevice(int device) {
  return api([&] {
    gpu_of(device);
    thread_state().device = device;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api([&] {
    expect_not_null(value, "value");
    *value = attribute_of(gpu_of(device), attribute);
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api([&] {
    expect_not_null(properties, "properties");
    fill_properties(gpu_of(device), *properties);
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

// --- errors --------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() {
  const cudaError_t error = thread_state().last_error;
  thread_state().last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return thread_state().last_error; }
const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

// --- memory --------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return api([&] {
    expect_not_null(pointer, "pointer");
    expect_no_capture("cudaMalloc");
    *pointer = allocate(bytes, false);
  });
}

cudaError_t cudaFree(void* pointer) {
  return api([&] {
    expect_no_capture("cudaFree");
    release(pointer, false);
  });
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return api([&] {
    expect_not_null(pointer, "pointer");
    expect_not_captured(stream, "cudaMallocAsync");
    *pointer = allocate(bytes, false);
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return api([&] {
    expect_not_captured(stream, "cudaFreeAsync");
    release(pointer, false);
  });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return api([&] {
    expect_not_null(pointer, "pointer");
    expect_no_capture("cudaHostAlloc");
    *pointer = allocate(bytes, true);
  });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}

cudaError_t cudaFreeHost(void* pointer) {
  return api([&] {
    expect_no_capture("cudaFreeHost");
    release(pointer, true);
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return api([&] {
    expect_not_null(attributes, "attributes");
    std::memset(attributes, 0, sizeof(*attributes));
    attributes->device = thread_state().device;
    attributes->type = cudaMemoryTypeUnregistered;
    const Allocation* allocation = allocation_at(pointer);
    const bool on_host = allocation != nullptr && allocation->on_host;
    if (allocation != nullptr) attributes->device = allocation->device;
    if (!on_host && !is_on_device(pointer)) return;
    attributes->type = on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(pointer);
    if (on_host) attributes->hostPointer = const_cast<void*>(pointer);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return api([&] { copy(to, from, bytes, kind, stream); });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return api([&] { copy(to, from, bytes, kind, cudaStreamLegacy); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return api([&] { set(to, value, bytes, stream); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return api([&] { set(to, value, bytes, cudaStreamLegacy); });
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return api([&] {
    expect_not_null(pointer, "pointer");
    *pointer = address_of(symbol, 0, 0);
  });
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return api([&] {
    expect_not_null(bytes, "size");
    *bytes = variable_of(symbol).bytes;
  });
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  return api([&] { copy(address_of(symbol, offset, bytes), from, bytes, kind, cudaStreamLegacy); });
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  return api([&] { copy(to, address_of(symbol, offset, bytes), bytes, kind, cudaStreamLegacy); });
}

// --- tensor maps and the way to the driver -------------------------------------------------------

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* base, const cuuint64_t* size, const cuuint64_t* stride_bytes,
                                const cuuint32_t* box, const cuuint32_t* element_stride,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2_promotion, CUtensorMapFloatOOBfill fill) {
  static_assert(sizeof(CUtensorMap) == kTensorMapBytes);
  static_assert(sizeof(cuuint64_t) == sizeof(uint64_t) && sizeof(cuuint32_t) == sizeof(uint32_t));
  std::lock_guard lock(state().mutex);
  try {
    if (swizzle > CU_TENSOR_MAP_SWIZZLE_128B && current_gpu().major < 10) {
      fail("tensor map: swizzle %d needs compute capability 10.0", int(swizzle));
    }
    const TensorMap encoded = encode_tiled(
        {uint32_t(type), rank, as_number(base), reinterpret_cast<const uint64_t*>(size),
         reinterpret_cast<const uint64_t*>(stride_bytes), box, element_stride, uint32_t(interleave),
         uint32_t(swizzle), uint32_t(l2_promotion), uint32_t(fill)});
    std::memset(map, 0, sizeof(*map));
    std::memcpy(map, &encoded, sizeof(encoded));
    return CUDA_SUCCESS;
  } catch (const Error& error) {
    state().last_error = error.what();
    return CUDA_ERROR_INVALID_VALUE;
  }
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return api([&] {
    expect_not_null(symbol, "symbol");
    expect_not_null(function, "function");
    *function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
      found = version < kTensorMapVersion ? cudaDriverEntryPointVersionNotSufficent
                                          : cudaDriverEntryPointSuccess;
      if (version >= kTensorMapVersion)
        *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
    }
    if (result != nullptr) *result = found;
  });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, kVersion, flags, result);
}

}  // extern "C"
