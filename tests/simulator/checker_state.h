// SPDX-License-Identifier: Apache-2.0
// What the checker keeps for each agent and each place that synchronises. For checker.cpp only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "clocks.h"
#include "machine.h"
#include "shadow.h"

namespace dsv4::simulator::checker {

inline constexpr uint32_t kNone = 0xFFFFFFFFu;
inline constexpr int kNamedBarriers = 16;

// What an entry of a vector clock counts.
enum class Kind : uint8_t {
  kPreviousGrid,  // the launch that this one depends on: 1 after griddepcontrol.wait
  kWarp,          // what the warp does itself, through the generic proxy
  kMbarrierInit,  // mbarrier.init of the warp, which has a fence of its own
  kTensorLoad,    // tcgen05.ld of the warp
  kTensorStore,   // tcgen05.st of the warp
  kTensorPipe,    // tcgen05.mma, .cp, .shift of the warp that are complete
  kTensorOrder,   // those that a later tcgen05.mma is ordered behind; always next to kTensorPipe
  kBulkRead,      // bulk operations of the warp that have read their sources
  kBulkWrite,     // those that have written, too; always next to kBulkRead
  kCpAsync,       // cp.async of the warp
  kWgmma,         // of the warpgroup
  kCopy,          // operations that complete on an mbarrier
  kImport,        // what another cluster released at an address of global memory
  kImportSequential,  // the part of it that a fence.sc makes known; always next to kImport
};

struct Component {
  Kind kind;
  int warp = -1;          // index in the cluster; of a warpgroup, its first
  uint32_t mbarrier = 0;  // shared address
};

using Snapshot = std::shared_ptr<const Knowledge>;

// What clusters released at an address of global memory, by cluster.
using Released = std::map<uint32_t, Snapshot>;

// What a cluster leaves behind for those that run after it.
struct PastCluster {
  uint32_t base;  // of its components
  Dim3 first;     // its first block
  std::vector<Component> components;
};

// Of a launch. Components of all clusters are numbered through; 0 is the previous grid.
struct History : FamilyState {
  uint32_t next_component = 1;
  bool started = false;
  std::vector<PastCluster> clusters;
  std::unordered_map<uint64_t, Released> released;
  GlobalShadow global;
};

struct WarpState {
  Knowledge now;
  Clock tensor;
  Snapshot fenced;    // what a relaxed operation hands on: all up to the last fence
  Knowledge pending;  // what relaxed operations saw: known after the next fence
  bool has_pending = false;
  Knowledge pipe;  // what the warp knew when it issued its last tcgen05.mma, .cp or .shift

  uint32_t own = 0;  // place in the clocks
  uint32_t inits = kNone, load = kNone, store = kNone, pipe_done = kNone, bulk = kNone,
           cp_async = kNone, wgmma = kNone;
  uint32_t num_inits = 0, num_loads = 0, num_stores = 0, num_pipe = 0, num_bulk = 0,
           num_cp_async = 0, num_wgmma = 0;
  // Operations so far at each commit.
  std::vector<uint32_t> bulk_groups, cp_async_groups, wgmma_groups;
  std::array<Snapshot, kNamedBarriers> barriers;  // what the warp learns when it passes
  InFlight touched;  // registers that some wgmma names, and who touched them since the last fence
  const Instruction* checked = nullptr;  // the last wgmma whose registers were compared with them
};

struct Barrier {
  Knowledge gathering;
  std::vector<int> arrived;  // warps
};

struct Mbarrier {
  Knowledge gathering;  // of the current phase
  Knowledge released;   // of the phases that are over
  uint32_t copy = kNone;
  uint32_t num_copies = 0;
  // Its initialisation.
  uint32_t init_component = kNone, init_clock = 0;
  const Instruction* init = nullptr;
};

// A place that strong accesses synchronise through.
struct Location {
  Snapshot released;
  int last_writer = -1;
};

struct Import {
  uint32_t component;
  Released from;
};

// The last access of an agent to a block's shared memory, if it may outlive the block.
struct LastUse {
  uint32_t clock = 0;
  const Instruction* by = nullptr;
};

}  // namespace dsv4::simulator::checker
