// SPDX-License-Identifier: Apache-2.0
// The engines of this build: one table, asked in order.
#pragma once

#include "cuda/device.h"
#include "dsv4/dsv4.h"

namespace dsv4 {

// One way to run the library's work. Every function may assume a checked problem (validate.h).
struct Engine {
  const char* name;     // as build_info() and errors print it
  const char* targets;  // GPU targets it was compiled for, or instruction sets
  DeviceType device_type;
  bool (*serves)(const GpuInfo&);  // whether its code runs on a GPU; null for the CPU
  bool rounds_e4m3_weights;        // to e4m3 where the cache is: exp(s_j - m) as it multiplies k_j

  Status (*workspace_size)(const DecodeShape&, size_t* bytes);
  Status (*sparse_mla_decode)(const DecodeProblem&, Stream);
  Status (*merge_states)(const MergeProblem&, Stream);
  Status (*append_kv_cache)(const AppendProblem&, Stream);
  Status (*pack_kv_cache)(const PackProblem&, Stream);
  Status (*unpack_kv_cache)(const PackProblem&, Stream);
  Status (*hca_metadata)(const HcaMetadataProblem&, Stream);
};

// The engine that serves a device, or why there is none.
Status find_engine(const Device& device, const Engine** engine);

// The same for a GPU that has been looked at, `index` being its CUDA ordinal.
Status find_gpu_engine(const GpuInfo& gpu, int index, const Engine** engine);

// The same for the CPU. In a file of its own, for which the tests link another: there an engine
// for GPUs may serve the CPU, by simulating one.
Status find_cpu_engine(const Engine** engine);

// Every engine of this build.
struct EngineList {
  const Engine* const* begin_;
  const Engine* const* end_;
  const Engine* const* begin() const { return begin_; }
  const Engine* const* end() const { return end_; }
};
EngineList engines();

}  // namespace dsv4
