// SPDX-License-Identifier: Apache-2.0
// Engines for GPUs that serve the CPU: DSV4_TEST_ENGINE=sim-sm100 makes calls with CPU tensors run
// on the engine that would serve a B200, its kernels interpreted. The variable is read at every
// call.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpu/engine.h"
#include "engines.h"
#include "library/broken_engine.h"
#include "library/extents.h"
#include "runtime/dsv4_sim.h"
#include "runtime/state.h"
#include "status.h"

namespace dsv4 {
namespace simulated {
namespace {

// Each GPU is a CUDA device of its own, so that nothing that is remembered of a device ever
// changes.
constexpr const char* kGpus =
    "H200,B200,B300,RTX_PRO_6000,GB10,H200:3,B200:3,B300:3,RTX_PRO_6000:3,GB10:3";
constexpr int kNumGpus = 10;

struct Choice {
  const char* name;
  const char* targets;
  Device device;
  const Engine* engine;  // null: the one that find_engine chooses for the device
};
constexpr Choice kChoices[] = {
    {"sim-sm90", "a simulated H200", {DeviceType::kCuda, 0}, nullptr},
    {"sim-sm100", "a simulated B200", {DeviceType::kCuda, 1}, nullptr},
    {"sim-sm103", "a simulated B300", {DeviceType::kCuda, 2}, nullptr},
    {"sim-sm120", "a simulated RTX PRO 6000", {DeviceType::kCuda, 3}, nullptr},
    {"sim-sm121", "a simulated GB10", {DeviceType::kCuda, 4}, nullptr},
    {"sim-sm90-slice", "3 SMs of a simulated H200", {DeviceType::kCuda, 5}, nullptr},
    {"sim-sm100-slice", "3 SMs of a simulated B200", {DeviceType::kCuda, 6}, nullptr},
    {"sim-sm103-slice", "3 SMs of a simulated B300", {DeviceType::kCuda, 7}, nullptr},
    {"sim-sm120-slice", "3 SMs of a simulated RTX PRO 6000", {DeviceType::kCuda, 8}, nullptr},
    {"sim-sm121-slice", "3 SMs of a simulated GB10", {DeviceType::kCuda, 9}, nullptr},
    {"sim-broken", "a simulated H200", {DeviceType::kCuda, 0}, &broken::kEngine},
};
constexpr int kNumChoices = sizeof(kChoices) / sizeof(kChoices[0]);

// Before anything can ask which devices there are.
__attribute__((constructor)) void set_gpus() { dsv4_sim_set("gpu", kGpus); }

Status find_real_engine(const Choice& choice, const Engine** engine) {
  *engine = choice.engine;
  return *engine != nullptr ? Status{} : find_engine(choice.device, engine);
}

class DeviceMemory {
 public:
  explicit DeviceMemory(const std::vector<Extent>& extents) : extents_(extents) {
    for (const Extent& extent : extents_) {
      dsv4_sim_register_memory(reinterpret_cast<void*>(extent.begin), extent.end - extent.begin);
    }
  }
  ~DeviceMemory() {
    for (const Extent& extent : extents_) {
      dsv4_sim_unregister_memory(reinterpret_cast<void*>(extent.begin));
    }
  }

 private:
  const std::vector<Extent>& extents_;
};

// All words of the extents.
std::shared_ptr<const simulator::GlobalWrites> words_of(const std::vector<Extent>& extents) {
  constexpr uint64_t kWordBytes = 4, kPageWords = 1024, kBits = 64;
  auto writes = std::make_shared<simulator::GlobalWrites>();
  for (const Extent& extent : extents) {
    for (uint64_t word = extent.begin / kWordBytes; word * kWordBytes < extent.end; ++word) {
      auto& page = writes->pages[word / kPageWords];
      page[word % kPageWords / kBits] |= uint64_t(1) << (word % kBits);
    }
  }
  return writes;
}

// A stream as a caller may have it: of a device that is not the current one; and the kernel before
// has written all that the call is about, so that a programmatic dependent launch has to wait.
class ForeignStream {
 public:
  ForeignStream(int device, const std::vector<Extent>& extents)
      : current_((device + 1) % kNumGpus) {
    cudaSetDevice(device);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaSetDevice(current_);
    simulator::cuda::last_writes(stream_) = words_of(extents);
  }
  ~ForeignStream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  bool device_is_back() const {
    int current = -1;
    return cudaGetDevice(&current) == cudaSuccess && current == current_;
  }

 private:
  int current_;
  cudaStream_t stream_ = nullptr;
};

// What is wrong after a call that returned `status`; "" if nothing is.
std::string complaint(const Status& status, const ForeignStream& stream) {
  if (status.code == StatusCode::kRuntimeError || cudaPeekAtLastError() != cudaSuccess ||
      cudaStreamSynchronize(stream.get()) != cudaSuccess) {
    const std::string why = dsv4_sim_last_error();
    return why.empty() ? status.message : why;
  }
  if (!status.ok()) return "";
  if (!stream.device_is_back()) return "another device is current than before the call";
  std::string lints;
  for (size_t i = 0; i < dsv4_sim_num_texts(DSV4_SIM_LINTS); ++i) {
    lints += std::string(lints.empty() ? "" : "\n") + dsv4_sim_text(DSV4_SIM_LINTS, i);
  }
  return lints;
}

// One call at a time: the memory that kernels may touch is that of the call.
std::mutex one_call;

template <class Problem>
Status run(const Choice& choice, const Problem& problem,
           Status (*Engine::*function)(const Problem&, Stream)) {
  const std::lock_guard lock(one_call);
  const Engine* engine;
  DSV4_RETURN_IF_FAILED(find_real_engine(choice, &engine));
  Problem on_gpu = problem;
  on_gpu.device = choice.device;

  const std::vector<Extent> extents = extents_of(problem);
  const DeviceMemory memory(extents);
  const ForeignStream stream(choice.device.index, extents);
  const Status status = (engine->*function)(on_gpu, stream.get());
  std::string wrong = complaint(status, stream);
  if (wrong.empty()) return status;
  dsv4_sim_reset();
  // A Status is one line, and may be too short for the whole of it.
  std::fprintf(stderr, "%s: %s\n", choice.name, wrong.c_str());
  std::replace(wrong.begin(), wrong.end(), '\n', ' ');
  DSV4_FAIL(kRuntimeError, "%s: %s", choice.name, wrong.c_str());
}

template <int kChoice>
Status workspace_size(const DecodeShape& shape, size_t* bytes) {
  const Engine* engine;
  DSV4_RETURN_IF_FAILED(find_real_engine(kChoices[kChoice], &engine));
  DecodeShape on_gpu = shape;
  on_gpu.device = kChoices[kChoice].device;
  return engine->workspace_size(on_gpu, bytes);
}

template <int kChoice, class Problem, Status (*Engine::*kFunction)(const Problem&, Stream)>
Status run(const Problem& problem, Stream) {
  return run(kChoices[kChoice], problem, kFunction);
}

template <int kChoice>
constexpr Engine kSimulated = {
    kChoices[kChoice].name,
    kChoices[kChoice].targets,
    DeviceType::kCpu,
    nullptr,
    false,
    workspace_size<kChoice>,
    run<kChoice, DecodeProblem, &Engine::sparse_mla_decode>,
    run<kChoice, MergeProblem, &Engine::merge_states>,
    run<kChoice, AppendProblem, &Engine::append_kv_cache>,
    run<kChoice, PackProblem, &Engine::pack_kv_cache>,
    run<kChoice, PackProblem, &Engine::unpack_kv_cache>,
    run<kChoice, HcaMetadataProblem, &Engine::hca_metadata>,
};

template <int... kChoice>
const Engine* engine_of(int choice, std::integer_sequence<int, kChoice...>) {
  static constexpr const Engine* kEngines[] = {&kSimulated<kChoice>...};
  return kEngines[choice];
}

}  // namespace
}  // namespace simulated

Status find_cpu_engine(const Engine** engine) {
  using namespace simulated;
  *engine = &cpu::kEngine;
  const char* const name = std::getenv("DSV4_TEST_ENGINE");
  if (name == nullptr || *name == '\0' || std::strcmp(name, "cpu") == 0) return {};
  std::string names = "cpu";
  for (int i = 0; i < kNumChoices; ++i) {
    if (std::strcmp(name, kChoices[i].name) == 0) {
      const Engine* real;
      *engine = engine_of(i, std::make_integer_sequence<int, kNumChoices>());
      return find_real_engine(kChoices[i], &real);
    }
    names += std::string(", ") + kChoices[i].name;
  }
  DSV4_FAIL(kInvalidValue, "DSV4_TEST_ENGINE: expected one of %s, got %s", names.c_str(), name);
}

}  // namespace dsv4
