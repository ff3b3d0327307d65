// SPDX-License-Identifier: Apache-2.0
// Barriers of a block (bar, barrier), barriers of a cluster (barrier.cluster) and fences.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "groups.h"
#include "memory.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

// One use of a barrier, from its first arrival to its completion. Whoever waits holds on to it.
struct Generation {
  bool complete = false;
  uint32_t num_true = 0, num_false = 0;  // of barrier.red
};

// Lanes that have arrived and wait.
struct Waiter {
  LaneMask lanes;
  int id;  // of the barrier; unused for the cluster's
  std::shared_ptr<Generation> generation;
};
struct Waiters : FamilyState {
  std::vector<Waiter> list;
};
struct ClusterWaiters : FamilyState {
  std::vector<Waiter> list;  // between arrive and wait
};

LaneMask lanes_of(const std::vector<Waiter>& list) {
  LaneMask lanes = 0;
  for (const Waiter& waiter : list) lanes |= waiter.lanes;
  return lanes;
}

const Waiter& waiter_of(const std::vector<Waiter>& list, int lane) {
  return *std::find_if(list.begin(), list.end(),
                       [&](const Waiter& waiter) { return waiter.lanes >> lane & 1; });
}

void remove_lanes(std::vector<Waiter>& list, LaneMask lanes) {
  for (Waiter& waiter : list) waiter.lanes &= ~lanes;
  list.erase(
      std::remove_if(list.begin(), list.end(), [](const Waiter& each) { return each.lanes == 0; }),
      list.end());
}

void count_wait(Warp& w, bool blocked) {
  WarpCounters& counters = w.counters().warps[size_t(w.index)];
  ++counters.barrier_waits;
  if (blocked) ++counters.blocked_waits;
}

void expect_whole_warp(Warp& w, const Instruction& i, LaneMask lanes) {
  if (i.converged && lanes != w.alive) {
    fail(".aligned: lanes %08x of %08x execute, it must be all", lanes, w.alive);
  }
}

// --- barriers of a block
// -----------------------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
constexpr int kNumBarriers = 16;

// Counts threads. Lanes that do not exist or have exited count with the last living lane of their
// warp, so a warp always amounts to 32.
struct Barrier {
  std::shared_ptr<Generation> generation = std::make_shared<Generation>();
  uint32_t threads = 0;           // arrived in this generation
  uint32_t expected = 0;          // as the arrivals said; 0: none did, so all warps of the block
  bool expects_block = false;     // an arrival gave no count
  std::vector<LaneMask> partial;  // by warp: lanes that arrived, until they are the whole warp
  std::vector<bool> took_part;    // by warp
};
struct Barriers : FamilyState {
  std::array<Barrier, kNumBarriers> list;
};

uint32_t threads_expected(const Cta& cta, const Barrier& b) {
  if (b.expected != 0) return b.expected;
  uint32_t threads = 0;
  for (const auto& warp : cta.warps) {
    const bool took_part = !b.took_part.empty() && b.took_part[size_t(warp->index)];
    if (warp->alive != 0 || took_part) threads += kLanes;
  }
  return threads;
}

// Completes the barrier if all have arrived. Also to be asked again while waiting: lanes may have
// exited.
void settle(Cta& cta, int id) {
  Barrier& b = cta.state<Barriers>().list[size_t(id)];
  if (b.partial.empty()) return;
  for (const auto& warp : cta.warps) {
    LaneMask& arrived = b.partial[size_t(warp->index)];
    if (arrived == 0 || (warp->alive & ~arrived) != 0) continue;
    b.threads += uint32_t(__builtin_popcount(~arrived));
    arrived = 0;
  }
  const uint32_t expected = threads_expected(cta, b);
  if (b.expects_block && b.expected != 0 && b.expected != kLanes * cta.warps.size()) {
    fail("barrier %d: some wait for %u threads, some for the whole block of %zu warps", id,
         b.expected, cta.warps.size());
  }
  if (b.threads > expected) {
    fail("barrier %d: over-arrival, %u threads of %u", id, b.threads, expected);
  }
  if (b.threads < expected) return;
  b.generation->complete = true;
  b = Barrier();
  ++cta.cluster->progress;
  if (Checker* c = cta.cluster->checker.get()) c->barrier_complete(cta, id);
}

// Operands by place: 0 the barrier, 1 the number of threads or none, 2 the result, 3 the predicate.
enum BarrierFlag : uint32_t {
  kWaits = 1,
  kPopc = 2,
  kAnd = 4,
  kOr = 8,
  kNegated = 16,
  kRelaxed = 32,  // barrier.cluster.arrive
};

int barrier_id(Warp& w, const Instruction& i, int lane) {
  const uint32_t id = w.lanes<uint32_t>(i.r[0])[lane];
  if (id >= kNumBarriers) fail("barrier %u: there are %d", id, kNumBarriers);
  return int(id);
}

void arrive(Warp& w, const Instruction& i, LaneMask lanes, int id) {
  Cta& cta = *w.cta;
  Barrier& b = cta.state<Barriers>().list[size_t(id)];
  b.partial.resize(cta.warps.size());
  b.took_part.resize(cta.warps.size());
  if (i.r[1]) {
    const uint32_t expected = w.lanes<uint32_t>(i.r[1])[first_lane(lanes)];
    if (expected == 0 || expected % kLanes != 0) {
      fail("barrier %d: %u threads are not a multiple of %d", id, expected, kLanes);
    }
    if (b.expected != 0 && b.expected != expected) {
      fail("barrier %d: %u threads expected, others said %u", id, expected, b.expected);
    }
    b.expected = expected;
  } else {
    b.expects_block = true;
  }
  const size_t warp = size_t(w.index);
  if (b.partial[warp] & lanes) {
    fail("barrier %d: lanes %08x arrive twice before the rest of their warp", id,
         b.partial[warp] & lanes);
  }
  if (i.flags & (kPopc | kAnd | kOr)) {
    LaneMask predicate = w.predicate(i.r[3]);
    if (i.flags & kNegated) predicate = ~predicate;
    b.generation->num_true += uint32_t(__builtin_popcount(predicate & lanes));
    b.generation->num_false += uint32_t(__builtin_popcount(~predicate & lanes));
  }
  if (Checker* c = w.checker()) c->barrier_arrive(w, id);
  b.threads += uint32_t(__builtin_popcount(lanes));
  b.partial[warp] |= lanes;
  b.took_part[warp] = true;
  if (i.flags & kWaits) w.state<Waiters>().list.push_back({lanes, id, b.generation});
  ++w.cluster().progress;
  settle(cta, id);
}

void write_reduction(Warp& w, const Instruction& i, int lane, const Generation& generation) {
  if (i.flags & kPopc) w.lanes<uint32_t>(i.r[2])[lane] = generation.num_true;
  if (i.flags & (kAnd | kOr)) {
    const bool result = i.flags & kAnd ? generation.num_false == 0 : generation.num_true != 0;
    LaneMask& predicate = w.predicate(i.r[2]);
    predicate = result ? predicate | 1u << lane : predicate & ~(1u << lane);
  }
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
Outcome execute_barrier(Warp& w, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(w, i, lanes);
  auto& waiting = w.state<Waiters>().list;
  const LaneMask fresh = lanes & ~lanes_of(waiting);
  for (LaneMask rest = fresh; rest != 0;) {
    const int id = barrier_id(w, i, first_lane(rest));
    LaneMask together = 0;
    for_lanes(rest, [&](int lane) {
      if (barrier_id(w, i, lane) == id) together |= 1u << lane;
    });
    arrive(w, i, together, id);
    rest &= ~together;
  }
  if (!(i.flags & kWaits)) return Outcome::kDone;

  LaneMask released = 0;
  uint32_t passed = 0;  // barriers
  for (const Waiter& waiter : waiting) {
    if ((waiter.lanes & lanes) == 0) continue;
    settle(*w.cta, waiter.id);
    if (!waiter.generation->complete) continue;
    const LaneMask here = waiter.lanes & lanes;
    for_lanes(here, [&](int lane) { write_reduction(w, i, lane, *waiter.generation); });
    released |= here;
    passed |= 1u << waiter.id;
  }
  if (released == 0) return Outcome::kAgain;
  remove_lanes(waiting, released);
  if (released != lanes) hold_back(w, lanes & ~released);
  for (int id = 0; id < kNumBarriers; ++id) {
    if (Checker* c = w.checker(); c != nullptr && passed >> id & 1) c->barrier_pass(w, id);
  }
  count_wait(w, (released & fresh) == 0);
  return Outcome::kDone;
}

std::string describe_barrier(Warp& w, const Instruction& i, LaneMask lanes) {
  if ((lanes_of(w.state<Waiters>().list) >> first_lane(lanes) & 1) == 0) {
    return text("waits for its other lanes, %08x", w.alive & ~lanes);
  }
  const int id = barrier_id(w, i, first_lane(lanes));
  const Barrier& b = w.cta->state<Barriers>().list[size_t(id)];
  return text("barrier %d: %u of %u threads have arrived", id, b.threads,
              threads_expected(*w.cta, b));
}

void decode_reduction(Decoder& d, OpcodeParts& parts, Instruction& i) {
  switch (parts.take_one_of({"popc", "and", "or"})) {
    case 0:
      i.flags |= kPopc;
      break;
    case 1:
      i.flags |= kAnd;
      break;
    case 2:
      i.flags |= kOr;
      break;
    default:
      d.unknown();
  }
  if (!parts.take(i.flags & kPopc ? "u32" : "pred")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(3, 4);
  i.r[2] = i.flags & kPopc ? d.r32(0) : d.predicate(0);
  i.r[0] = d.r32(1);
  if (d.num_operands() == 4) i.r[1] = d.r32(2);
  const ptx::Operand& predicate = d.operand(d.num_operands() - 1);
  i.r[3] = d.predicate(predicate);
  if (predicate.negated) i.flags |= kNegated;
}

void decode_block_barrier(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_barrier;
  i.describe_wait = describe_barrier;
  parts.take("cta");
  i.converged = parts.take("aligned") || d.statement().parts[0] == "bar";
  const int operation = parts.take_one_of({"sync", "arrive", "red"});
  if (operation != 1) i.flags |= kWaits;
  if (operation == 2) return decode_reduction(d, parts, i);
  if (operation < 0) d.unknown();
  parts.expect_none_left();
  d.expect_operands(operation == 1 ? 2 : 1, 2);
  i.r[0] = d.r32(0);
  if (d.num_operands() == 2) i.r[1] = d.r32(1);
}

// --- barrier of a cluster
// ----------------------------------------------------------------------------------

struct ClusterBarrier : FamilyState {
  std::shared_ptr<Generation> generation = std::make_shared<Generation>();
  std::vector<LaneMask> arrived;  // by warp of the cluster
};

void settle_cluster(Cluster& cluster) {
  ClusterBarrier& b = cluster.state<ClusterBarrier>();
  if (b.arrived.empty()) return;
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) {
      if (warp->alive & ~b.arrived[size_t(warp->global_index)]) return;
    }
  }
  b.generation->complete = true;
  b.generation = std::make_shared<Generation>();
  b.arrived.clear();
  ++cluster.progress;
  if (Checker* c = cluster.checker.get()) c->cluster_complete(cluster);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
Outcome execute_cluster_arrive(Warp& w, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(w, i, lanes);
  auto& waiting = w.state<ClusterWaiters>().list;
  if (const LaneMask again = lanes & lanes_of(waiting)) {
    fail("barrier.cluster.arrive: lanes %08x arrive twice without a wait between", again);
  }
  Cluster& cluster = w.cluster();
  ClusterBarrier& b = cluster.state<ClusterBarrier>();
  b.arrived.resize(cluster.ctas.size() * w.cta->warps.size());
  b.arrived[size_t(w.global_index)] |= lanes;
  waiting.push_back({lanes, 0, b.generation});
  if (Checker* c = w.checker()) {
    if (i.flags & kRelaxed) {
      c->cluster_arrive_relaxed(w);
    } else {
      c->cluster_arrive(w);
    }
  }
  ++cluster.progress;
  settle_cluster(cluster);
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
Outcome execute_cluster_wait(Warp& w, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(w, i, lanes);
  auto& waiting = w.state<ClusterWaiters>().list;
  if (const LaneMask early = lanes & ~lanes_of(waiting)) {
    fail("barrier.cluster.wait: lanes %08x have not arrived", early);
  }
  settle_cluster(w.cluster());
  LaneMask released = 0;
  for_lanes(lanes, [&](int lane) {
    if (waiter_of(waiting, lane).generation->complete) released |= 1u << lane;
  });
  if (released == 0) return Outcome::kAgain;
  remove_lanes(waiting, released);
  if (released != lanes) hold_back(w, lanes & ~released);
  if (Checker* c = w.checker()) c->cluster_pass(w);
  count_wait(w, false);
  return Outcome::kDone;
}

std::string describe_cluster_wait(Warp& w, const Instruction&, LaneMask) {
  Cluster& cluster = w.cluster();
  const ClusterBarrier& b = cluster.state<ClusterBarrier>();
  std::string missing;
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) {
      const LaneMask arrived = b.arrived.empty() ? 0 : b.arrived[size_t(warp->global_index)];
      if (warp->alive & ~arrived) missing += text(" block %u warp %d", cta->rank, warp->index);
    }
  }
  return "barrier of the cluster, not arrived:" + missing;
}

void decode_cluster_barrier(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.converged = parts.take("aligned");
  if (parts.take("arrive")) {
    i.execute = execute_cluster_arrive;
    if (parts.take_one_of({"release", "relaxed"}) == 1) i.flags |= kRelaxed;
  } else if (parts.take("wait")) {
    i.execute = execute_cluster_wait;
    i.describe_wait = describe_cluster_wait;
    parts.take("acquire");
  } else {
    d.unknown();
  }
  parts.expect_none_left();
  d.expect_operands(0, 0);
}

// --- fences
// ------------------------------------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
Outcome execute_fence(Warp& w, const Instruction&, LaneMask) {
  if (Checker* c = w.checker()) c->fence(w);
  return Outcome::kDone;
}

Outcome execute_fence_sc(Warp& w, const Instruction&, LaneMask) {
  if (Checker* c = w.checker()) c->fence_sc(w);
  return Outcome::kDone;
}

Outcome execute_fence_mbarrier_init(Warp& w, const Instruction&, LaneMask) {
  if (Checker* c = w.checker()) c->fence_mbarrier_init(w);
  return Outcome::kDone;
}

Outcome execute_fence_proxy_async(Warp& w, const Instruction&, LaneMask) {
  if (Checker* c = w.checker()) c->fence_proxy_async(w);
  return Outcome::kDone;
}

Outcome execute_fence_proxy_async_global(Warp& w, const Instruction&, LaneMask) {
  if (Checker* c = w.checker()) c->fence_proxy_async_global(w);
  return Outcome::kDone;
}

// Tensor maps are read when an instruction uses them, so there is nothing to wait for.
Outcome execute_fence_tensormap(Warp& w, const Instruction& i, LaneMask lanes) {
  if (i.r[0]) {
    for_lanes(lanes, [&](int lane) {
      expect_aligned(address_of(w, i, 0, lane), 128, "fence.proxy.tensormap");
    });
  }
  return Outcome::kDone;
}

// fence.alias: several addresses of one location, of which there are none here.
Outcome execute_fence_alias(Warp&, const Instruction&, LaneMask) { return Outcome::kDone; }

// .acquire.sync_restrict::shared::cluster.cluster or .release.sync_restrict::shared::cta.cluster
void take_sync_restrict(Decoder& d, OpcodeParts& parts) {
  const bool acquire = parts.take("acquire");
  if (!acquire && !parts.take("release")) d.unknown();
  const char* restriction =
      acquire ? "sync_restrict::shared::cluster" : "sync_restrict::shared::cta";
  if (!parts.take(restriction) || !parts.take("cluster")) d.unknown();
}

void decode_fence_tensormap(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_fence_tensormap;
  const int semantics = parts.take_one_of({"release", "acquire"});
  const int scope = parts.take_one_of({"cta", "cluster", "gpu", "sys"});
  if (semantics < 0 || scope < 0) d.unknown();
  parts.expect_none_left();
  if (semantics == 0) return d.expect_operands(0, 0);
  d.expect_operands(2, 2);
  decode_address(d, i, d.operand(0), 0);
  if (d.immediate(1) != 128) d.unknown("a tensor map has 128 bytes");
}

// Of fence.proxy and membar.proxy.
void decode_fence_proxy(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (parts.take("tensormap::generic")) return decode_fence_tensormap(d, parts, i);
  if (parts.take("alias")) {
    i.execute = execute_fence_alias;
  } else if (parts.take("async")) {
    const int space = parts.take_one_of({"global", "shared::cta", "shared::cluster"});
    i.execute = space == 0 ? execute_fence_proxy_async_global : execute_fence_proxy_async;
  } else if (parts.take("async::generic")) {
    // One direction only, of which the checker makes no difference.
    i.execute = execute_fence_proxy_async;
    take_sync_restrict(d, parts);
  } else {
    d.unknown();
  }
  parts.expect_none_left();
  d.expect_operands(0, 0);
}

void decode_fence(Decoder& d, OpcodeParts& parts, Instruction& i) {
  const bool membar = d.statement().parts[0] == "membar";
  if (parts.take("proxy")) return decode_fence_proxy(d, parts, i);
  d.expect_operands(0, 0);
  i.execute = execute_fence;
  if (membar) {
    i.execute = execute_fence_sc;
    if (parts.take_one_of({"cta", "gl", "sys"}) < 0) d.unknown();
  } else if (parts.take("mbarrier_init")) {
    i.execute = execute_fence_mbarrier_init;
    if (!parts.take("release") || !parts.take("cluster")) d.unknown();
  } else if (d.has("sync_restrict::shared::cluster") || d.has("sync_restrict::shared::cta")) {
    take_sync_restrict(d, parts);
  } else {
    if (parts.take_one_of({"sc", "acq_rel", "acquire", "release"}) == 0)
      i.execute = execute_fence_sc;
    if (parts.take_one_of({"cta", "cluster", "gpu", "sys"}) < 0) d.unknown();
  }
  parts.expect_none_left();
}

}  // namespace

void decode_barrier(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kBarrier;
  OpcodeParts parts(d);
  const std::string& name = d.statement().parts[0];
  if (name == "fence" || name == "membar") return decode_fence(d, parts, i);
  if (name == "barrier" && parts.take("cluster")) return decode_cluster_barrier(d, parts, i);
  decode_block_barrier(d, parts, i);
}

}  // namespace dsv4::simulator
