// SPDX-License-Identifier: Apache-2.0
// A host program for test_runtime.py: does what its argument names and prints what CUDA answered.
// On a GPU it would print the same, but for what it asks the simulator.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "copies.cuh"
#include "runtime/dsv4_sim.h"

__device__ int counter;
__constant__ int factor = 3;

__global__ void scale(const int* in, int* out, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = factor * in[i] + 1;
}
__global__ void add(int* out, int value) {
  atomicAdd(out, value);
  if (threadIdx.x == 0) atomicAdd(&counter, 1);
}
__global__ void double_it(int* out) { *out *= 2; }
__global__ void __launch_bounds__(64) bounded(int*) {}
__global__ void plain(int*) {}
__global__ void dynamic(int*) {}
__global__ void __cluster_dims__(2, 1, 1) of_two(int*) {}
__global__ void stray(int* out) { out[1 << 20] = 1; }
__global__ void racing(int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = int(threadIdx.x);
  out[threadIdx.x] = shared[63 - threadIdx.x];  // no barrier
}
__global__ void architecture(int* out) {
#ifdef __CUDA_ARCH__
  *out = __CUDA_ARCH__;
#endif
}
template <bool kWait>
__global__ void reads(const int* in, int* out) {
  if (kWait) asm volatile("griddepcontrol.wait;" ::: "memory");
  *out = *in;
}
__global__ void ranks(int* out) { out[blockIdx.x] = int(block_rank()); }
__global__ void fixed_shared(int* out) {
  __shared__ int table[4096];
  table[threadIdx.x] = int(threadIdx.x);
  __syncthreads();
  *out = table[0];
}
__global__ void tile(const __grid_constant__ CUtensorMap map, uint8_t* out) {
  __shared__ __align__(128) uint8_t data[4 * 32];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    start(&barrier, sizeof(data));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{16, 6}], [%2];" ::"r"(shared_address(data)),
        "l"(&map), "r"(shared_address(&barrier))
        : "memory");
  }
  __syncthreads();
  wait(&barrier, 0);
  out[threadIdx.x] = data[threadIdx.x];
}

static const char* name(cudaError_t error) { return cudaGetErrorName(error); }

static void say(const char* what, cudaError_t error) { std::printf("%s: %s\n", what, name(error)); }

template <class T>
static T* on_device(size_t count) {
  void* pointer = nullptr;
  if (cudaMalloc(&pointer, count * sizeof(T)) != cudaSuccess) std::printf("no memory\n");
  return static_cast<T*>(pointer);
}

static int read(const int* device) {
  int value = 0;
  say("read", cudaMemcpy(&value, device, sizeof(value), cudaMemcpyDeviceToHost));
  return value;
}

static void launches() {
  constexpr int kCount = 1000;
  std::vector<int> host(kCount);
  for (int i = 0; i < kCount; ++i) host[i] = i;
  int *in = on_device<int>(kCount), *out = on_device<int>(kCount);
  cudaMemcpy(in, host.data(), kCount * sizeof(int), cudaMemcpyHostToDevice);
  scale<<<(kCount + 127) / 128, 128>>>(in, out, kCount);
  say("launch", cudaGetLastError());
  cudaMemcpy(host.data(), out, kCount * sizeof(int), cudaMemcpyDefault);
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += host[i] != 3 * i + 1;
  std::printf("wrong: %d\n", wrong);

  const int five = 5;
  say("to symbol", cudaMemcpyToSymbol(factor, &five, sizeof(five)));
  scale<<<1, 32>>>(in, out, 2);
  std::printf("with factor 5: %d\n", read(out + 1));

  cudaMemset(out, 0, sizeof(int));
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  add<<<2, 64, 0, stream>>>(out, 1);
  cudaEventRecord(event, stream);
  cudaStreamWaitEvent(nullptr, event);
  double_it<<<1, 1>>>(out);
  say("event", cudaEventSynchronize(event));
  say("stream", cudaStreamSynchronize(stream));
  int count = 0;
  say("from symbol", cudaMemcpyFromSymbol(&count, counter, sizeof(count)));
  std::printf("sum: %d, blocks: %d\n", read(out), count);
  say("destroy", cudaStreamDestroy(stream));

  dsv4_sim_counters last, all;
  dsv4_sim_last_launch(&last);
  dsv4_sim_all_launches(&all);
  std::printf("launches: %d, last lanes: %d, all lanes more: %d\n", int(all.launches),
              last.lane_instructions > 0, all.lane_instructions > last.lane_instructions);
}

static void clusters() {
  int* out = on_device<int>(8);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(8);
  config.blockDim = dim3(1);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {4, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  say("launch", cudaLaunchKernelEx(&config, ranks, out));
  int host[8];
  cudaMemcpy(host, out, sizeof(host), cudaMemcpyDeviceToHost);
  for (int rank : host) std::printf("%d ", rank);
  std::printf("\n");
  attributes[1].id = cudaLaunchAttributeCooperative;
  say("cooperative", cudaLaunchKernelEx(&config, ranks, out));
}

// A kernel that need not wait for the one before it, and does or does not.
static void dependent_launches() {
  int *in = on_device<int>(1), *out = on_device<int>(1);
  cudaLaunchConfig_t config = {};
  config.gridDim = config.blockDim = dim3(1);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  for (const unsigned attributes : {0u, 1u}) {
    config.numAttrs = attributes;
    for (auto* kernel : {reads<true>, reads<false>}) {
      cudaMemset(in, 0, sizeof(int));
      add<<<1, 1>>>(in, 7);
      const cudaError_t error = cudaLaunchKernelEx(&config, kernel, in, out);
      std::printf("may overlap %u, waits %d: %s\n", attributes, kernel == reads<true>, name(error));
    }
  }
  std::printf("why: %s\n", dsv4_sim_last_error());
}

static void tensor_map() {
  cudaDriverEntryPointQueryResult result;
  void* function = nullptr;
  say("entry point", cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                      cudaEnableDefault, &result));
  std::printf("result %d\n", int(result));
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  std::vector<uint8_t> host(8 * 64);
  for (size_t i = 0; i < host.size(); ++i) host[i] = uint8_t(i % 253);
  uint8_t *in = on_device<uint8_t>(host.size()), *out = on_device<uint8_t>(128);
  cudaMemcpy(in, host.data(), host.size(), cudaMemcpyHostToDevice);
  const auto encoded = [&](CUtensorMap* map, void* base, CUtensorMapSwizzle swizzle) {
    const cuuint64_t size[] = {64, 8}, stride[] = {64};
    const cuuint32_t box[] = {32, 4}, step[] = {1, 1};
    return int(encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, base, size, stride, box, step,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  };
  CUtensorMap map;
  std::printf("32-byte atoms: %d\n", encoded(&map, in, CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B));
  std::printf("misaligned: %d\n", encoded(&map, in + 8, CU_TENSOR_MAP_SWIZZLE_NONE));
  std::printf("why: %s\n", dsv4_sim_last_error());
  std::printf("encoded: %d\n", encoded(&map, in, CU_TENSOR_MAP_SWIZZLE_NONE));
  tile<<<1, 128>>>(map, out);
  say("launch", cudaGetLastError());
  uint8_t got[128];
  cudaMemcpy(got, out, sizeof(got), cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 32; ++c) {
      const uint8_t want = 6 + r < 8 ? host[size_t((6 + r) * 64 + 16 + c)] : 0;
      wrong += got[r * 32 + c] != want;
    }
  }
  std::printf("wrong: %d\n", wrong);
  say("no such function",
      cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12000, 0, &result));
  std::printf("result %d, null %d\n", int(result), function == nullptr);
  say("too old",
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 11000, 0, &result));
  std::printf("result %d, null %d\n", int(result), function == nullptr);
}

static void gpu() {
  cudaDeviceProp p;
  int count = 0, optin = 0, sms = 0, blocks = 0, unknown = 0;
  cudaGetDeviceCount(&count);
  for (int device = 0; device < count; ++device) {
    say("set", cudaSetDevice(device));
    cudaGetDeviceProperties(&p, device);
    cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    std::printf("%s %d.%d %d SMs %d bytes\n", p.name, p.major, p.minor, sms, optin);
    say("optin", cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, optin));
    dynamic<<<1, 32, optin>>>(nullptr);
    say("launch", cudaGetLastError());
    say("more",
        cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, optin + 1));
    say("with 16 KB of fixed",
        cudaFuncSetAttribute(fixed_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             optin - 16384));
    say("with 16 KB of fixed, more",
        cudaFuncSetAttribute(fixed_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             optin - 16383));
    for (const int bytes : {0, optin / 2 - 1024, optin}) {
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic, 128, size_t(bytes));
      std::printf("blocks of %d bytes: %d\n", bytes, blocks);
    }
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic, 512, 0);
    std::printf("blocks of 512 threads: %d\n", blocks);
    cudaGetLastError();
    int* out = on_device<int>(1);
    architecture<<<1, 1>>>(out);
    say("architecture", cudaGetLastError());
    if (cudaPeekAtLastError() == cudaSuccess) std::printf("compiled for %d\n", read(out));
    cudaGetLastError();
  }
  say("no device", cudaSetDevice(count));
  say("no attribute", cudaDeviceGetAttribute(&unknown, cudaDeviceAttr(9999), 0));
  cudaGetLastError();
}

// The lines of this function and the next are those that an H200 printed.
static void wrong_calls() {
  int* p = on_device<int>(256);
  const auto after = [](const char* what) {
    std::printf("%s: peek %s", what, name(cudaPeekAtLastError()));
    std::printf(" get %s", name(cudaGetLastError()));
    std::printf(" then %s", name(cudaGetLastError()));
    std::printf(" sync %s\n", name(cudaDeviceSynchronize()));
  };
  plain<<<1, 32>>>(p);
  after("right");
  bounded<<<1, 128>>>(p);
  after("launch bounds");
  plain<<<1, 1025>>>(p);
  after("block 1025");
  plain<<<1, 0>>>(p);
  after("block 0");
  plain<<<0, 32>>>(p);
  after("grid 0");
  plain<<<dim3(1, 65536), 32>>>(p);
  after("grid y 65536");
  plain<<<1, dim3(1, 1, 65)>>>(p);
  after("block z 65");
  dynamic<<<1, 32, 49152>>>(p);
  after("dynamic 49152");
  dynamic<<<1, 32, 49153>>>(p);
  after("dynamic 49153");
  say("attribute 232448",
      cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  dynamic<<<1, 32, 232448>>>(p);
  after("dynamic 232448");
  say("attribute 232449",
      cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449));
  say("attribute -1",
      cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, -1));
  say("no attribute", cudaFuncSetAttribute(dynamic, cudaFuncAttribute(99), 1));
  dynamic<<<1, 32, 232449>>>(p);
  after("dynamic 232449");
  const auto cluster = [&](const char* what, unsigned blocks, unsigned size, void (*kernel)(int*)) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(32);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {size, 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    say(what, cudaLaunchKernelEx(&config, kernel, p));
    cudaGetLastError();
  };
  cluster("cluster 2 of 4", 4, 2, plain);
  cluster("cluster 2 of 3", 3, 2, plain);
  cluster("cluster 16", 16, 16, plain);
  cluster("cluster 0", 4, 0, plain);
  cluster("required 2, is 2", 4, 2, of_two);
  cluster("required 2, is 4", 4, 4, of_two);
  of_two<<<3, 32>>>(p);
  after("required 2, grid 3");
  of_two<<<4, 32>>>(p);
  after("required 2, grid 4");
  cudaFuncSetAttribute(plain, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cluster("cluster 16 if allowed", 16, 16, plain);
  say("free bogus", cudaFree(reinterpret_cast<void*>(1234567)));
  say("free null", cudaFree(nullptr));
  say("malloc 0", cudaMalloc(reinterpret_cast<void**>(&p), 0));
  int *small = on_device<int>(4), local[4] = {};
  std::vector<char> large(1 << 20);
  say("copy past end", cudaMemcpy(small, large.data(), large.size(), cudaMemcpyHostToDevice));
  say("set past end", cudaMemset(small, 0, large.size()));
  say("copy the wrong way", cudaMemcpy(small, local, 16, cudaMemcpyDeviceToHost));
  cudaGetLastError();
}

static void captures() {
  int* p = on_device<int>(256);
  cudaStream_t s, s2, blocking;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&s2, cudaStreamNonBlocking);
  cudaStreamCreate(&blocking);
  cudaEvent_t e, e2;
  cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&e2, cudaEventDisableTiming);
  void* memory = nullptr;
  int host = 0;
  const auto begin = [&](cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    cudaGetLastError();
    cudaStreamBeginCapture(s, mode);
  };
  const auto end = [&](const char* what, cudaError_t answer) {
    cudaStreamCaptureStatus status;
    cudaStreamIsCapturing(s, &status);
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(s, &graph);
    size_t nodes = 0;
    if (error == cudaSuccess) cudaGraphGetNodes(graph, nullptr, &nodes);
    std::printf("%s: %s, status %d, end %s, nodes %d\n", what, name(answer), int(status),
                name(error), int(nodes));
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
  };
  begin();
  plain<<<1, 32, 0, s>>>(p);
  end("launch", cudaGetLastError());
  begin();
  end("malloc", cudaMalloc(&memory, 16));
  begin(cudaStreamCaptureModeThreadLocal);
  end("malloc, thread local", cudaMalloc(&memory, 16));
  begin(cudaStreamCaptureModeRelaxed);
  end("malloc, relaxed", cudaMalloc(&memory, 16));
  begin();
  end("free", cudaFree(memory));
  begin();
  end("stream sync", cudaStreamSynchronize(s));
  begin();
  end("other stream sync", cudaStreamSynchronize(s2));
  begin();
  end("device sync", cudaDeviceSynchronize());
  begin();
  end("stream query", cudaStreamQuery(s));
  begin();
  end("memcpy", cudaMemcpy(p, &host, 4, cudaMemcpyHostToDevice));
  begin();
  plain<<<1, 32>>>(p);
  end("legacy launch", cudaGetLastError());
  begin();
  plain<<<1, 32, 0, s2>>>(p);
  end("other launch", cudaGetLastError());
  begin();
  end("memset", cudaMemsetAsync(p, 0, 64, s));
  begin();
  end("memcpy in stream", cudaMemcpyAsync(p, p + 64, 64, cudaMemcpyDeviceToDevice, s));
  begin();
  end("attribute",
      cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
  begin();
  end("event query", cudaEventQuery(e));
  begin();
  cudaEventRecord(e, s);
  cudaStreamWaitEvent(s2, e, 0);
  plain<<<1, 32, 0, s2>>>(p);
  cudaEventRecord(e2, s2);
  end("fork and join", cudaStreamWaitEvent(s, e2, 0));
  begin();
  cudaEventRecord(e, s);
  cudaStreamWaitEvent(s2, e, 0);
  plain<<<1, 32, 0, s2>>>(p);
  end("no join", cudaSuccess);
  plain<<<1, 32, 0, s2>>>(p);
  say("other stream afterwards", cudaGetLastError());
  begin();
  cudaEventRecord(e, s);
  end("fork without work", cudaStreamWaitEvent(s2, e, 0));
  begin();
  cudaEventRecord(e, s);
  cudaStreamWaitEvent(s2, e, 0);
  plain<<<1, 32, 0, s2>>>(p);
  cudaGraph_t graph = nullptr;
  end("end in other stream", cudaStreamEndCapture(s2, &graph));
  begin();
  cudaEventRecord(e, s);
  end("event sync", cudaEventSynchronize(e));
  begin();
  end("begin again", cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  say("end without begin", cudaStreamEndCapture(s, &graph));
  say("begin in legacy", cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
  cudaGetLastError();
  cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal);
  plain<<<1, 32>>>(p);
  say("legacy launch, blocking capture", cudaGetLastError());
  say("end", cudaStreamEndCapture(blocking, &graph));
  begin();
  bounded<<<1, 128, 0, s>>>(p);
  end("refused launch", cudaGetLastError());
  begin();
  end("event", cudaEventRecord(e, s));
  say("query of it", cudaEventQuery(e));
  say("wait for it", cudaStreamWaitEvent(s2, e, 0));
  cudaGetLastError();
}

static void graphs() {
  int* p = on_device<int>(1);
  cudaMemset(p, 0, sizeof(int));
  cudaStream_t s, s2;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&s2, cudaStreamNonBlocking);
  cudaEvent_t forked, joined;
  cudaEventCreate(&forked);
  cudaEventCreate(&joined);
  cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
  add<<<1, 32, 0, s>>>(p, 1);
  cudaEventRecord(forked, s);
  cudaStreamWaitEvent(s2, forked);
  double_it<<<1, 1, 0, s2>>>(p);
  cudaEventRecord(joined, s2);
  cudaStreamWaitEvent(s, joined);
  add<<<1, 1, 0, s>>>(p, 5);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  say("end", cudaStreamEndCapture(s, &graph));
  std::printf("before: %d\n", read(p));
  say("instantiate", cudaGraphInstantiate(&executable, graph, 0));
  say("destroy", cudaGraphDestroy(graph));
  for (int i = 0; i < 3; ++i) say("launch", cudaGraphLaunch(executable, s));
  cudaStreamSynchronize(s);
  std::printf("after: %d\n", read(p));
  cudaGraphExecDestroy(executable);
}

static void failures() {
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  say("destroy", cudaStreamDestroy(stream));
  say("destroy again", cudaStreamDestroy(stream));
  cudaGetLastError();
  int* p = on_device<int>(32);
  stray<<<1, 1>>>(p);
  say("launch", cudaPeekAtLastError());
  std::printf("text: %s\n", cudaGetErrorString(cudaGetLastError()));
  say("cleared", cudaGetLastError());
  say("sync", cudaDeviceSynchronize());
  say("malloc", cudaMalloc(reinterpret_cast<void**>(&p), 16));
  plain<<<1, 1>>>(p);
  say("another launch", cudaGetLastError());
  std::printf("why: %s\n", dsv4_sim_last_error());
  dsv4_sim_reset();
  p = on_device<int>(64);
  plain<<<1, 1>>>(p);
  say("after reset", cudaGetLastError());
  racing<<<1, 64>>>(p);
  say("race", cudaGetLastError());
  std::printf("why: %s\n", dsv4_sim_last_error());
  dsv4_sim_reset();
  std::printf("set: %d\n", dsv4_sim_set("check", "report"));
  racing<<<1, 64>>>(p);
  say("race, only reported", cudaGetLastError());
  std::printf("reports: %d\n", int(dsv4_sim_num_texts(DSV4_SIM_RACES)));
  dsv4_sim_reset();
  std::printf("set: %d\n", dsv4_sim_set("check", "0"));
  racing<<<1, 64>>>(p);
  say("race, unchecked", cudaGetLastError());
  std::printf("reports: %d\n", int(dsv4_sim_num_texts(DSV4_SIM_RACES)));
  std::printf("set: %d\n", dsv4_sim_set("check", "sometimes"));
  std::printf("why: %s\n", dsv4_sim_last_error());
}

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const struct {
    const char* name;
    void (*run)();
  } kParts[] = {{"launches", launches},
                {"clusters", clusters},
                {"dependent_launches", dependent_launches},
                {"tensor_map", tensor_map},
                {"gpu", gpu},
                {"graphs", graphs},
                {"wrong_calls", wrong_calls},
                {"captures", captures},
                {"failures", failures}};
  for (const auto& part : kParts) {
    if (what != part.name) continue;
    part.run();
    return 0;
  }
  return 2;
}
