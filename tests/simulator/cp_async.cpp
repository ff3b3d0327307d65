// SPDX-License-Identifier: Apache-2.0
// cp.async, copies of up to 16 bytes by each thread, and how a thread waits for its own.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-non-bulk-copy
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "mbarrier.h"
#include "memory.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

// cp.async.mbarrier.arrive of a lane: arrives when no copy is left of those before it.
struct Arrival {
  uint32_t mbarrier;
  int copies_left;
};

// The copies of one instruction, which complete together.
struct Copy {
  struct Lane {
    uint8_t* destination;
    const uint8_t* source;
    uint32_t source_bytes;
  };
  LaneMask lanes;
  uint32_t bytes;  // of a lane; those that the source lacks become zeros
  std::array<Lane, kLanes> of_lane;
  std::array<uint32_t, kLanes> group;
  std::vector<std::shared_ptr<Arrival>> arrivals;
};

// Copies of a warp that are not complete, and the open group of each lane.
struct Copies : FamilyState {
  std::vector<std::shared_ptr<Copy>> list;
  std::array<uint32_t, kLanes> open_group = {};
};

void complete(Cluster& cluster, Copies& copies, const std::shared_ptr<Copy>& copy) {
  for_lanes(copy->lanes, [&](int lane) {
    const Copy::Lane& each = copy->of_lane[size_t(lane)];
    std::memset(each.destination, 0, copy->bytes);
    if (each.source_bytes != 0) std::memcpy(each.destination, each.source, each.source_bytes);
  });
  auto& list = copies.list;
  list.erase(std::remove(list.begin(), list.end(), copy), list.end());
  for (const auto& arrival : copy->arrivals) {
    if (--arrival->copies_left == 0) mbarrier_arrive(cluster, arrival->mbarrier, 1);
  }
}

// Places: 0 the destination, 1 the source, r[2] the bytes of the source or whether to ignore it.
// imm[2]: the bytes of a lane.
enum Flag : uint32_t { kSourceSize = 1, kIgnoreSource = 2, kNegated = 4 };

uint32_t source_bytes_of(Warp& w, const Instruction& i, int lane) {
  const auto bytes = uint32_t(i.imm[2]);
  if (i.flags & kSourceSize) {
    const uint32_t given = w.lanes<uint32_t>(i.r[2])[lane];
    if (given > bytes) fail("cp.async: src-size %u is more than cp-size %u", given, bytes);
    return given;
  }
  if (i.flags & kIgnoreSource) {
    const bool ignore = (w.predicate(i.r[2]) >> lane & 1) != (i.flags & kNegated ? 1 : 0);
    return ignore ? 0 : bytes;
  }
  return bytes;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
Outcome execute_copy(Warp& w, const Instruction& i, LaneMask lanes) {
  Cluster& cluster = w.cluster();
  Copies& copies = w.state<Copies>();
  Checker* checker = w.checker();
  const Agent agent = checker != nullptr ? checker->cp_async_agent(w) : Agent();
  auto copy = std::make_shared<Copy>();
  copy->lanes = lanes;
  copy->bytes = uint32_t(i.imm[2]);
  copy->group = copies.open_group;
  for_lanes(lanes, [&](int lane) {
    const uint32_t destination = shared_address_of(w, i, 0, lane, "cp.async");
    expect_aligned(destination, copy->bytes, "cp.async destination");
    expect_reachable(w, destination, true, "cp.async destination");
    Copy::Lane& each = copy->of_lane[size_t(lane)];
    each.destination = shared_pointer(cluster, destination, copy->bytes, "cp.async destination");
    if (checker != nullptr) checker->shared_async(w, i, agent, destination, copy->bytes, true);
    each.source_bytes = source_bytes_of(w, i, lane);
    each.source = nullptr;
    if (each.source_bytes == 0) return;
    const uint64_t source = address_of(w, i, 1, lane);
    expect_aligned(source, copy->bytes, "cp.async source");
    each.source = global_pointer(source, each.source_bytes, "cp.async source");
    if (checker != nullptr) checker->global(w, i, source, each.source_bytes, false);
    w.counters().cp_async_bytes += each.source_bytes;
  });
  copies.list.push_back(copy);
  cluster.async.post_copy([&cluster, &copies, copy] { complete(cluster, copies, copy); });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-commit-group
Outcome execute_commit(Warp& w, const Instruction&, LaneMask lanes) {
  Copies& copies = w.state<Copies>();
  for_lanes(lanes, [&](int lane) { ++copies.open_group[size_t(lane)]; });
  if (Checker* c = w.checker()) c->cp_async_commit(w);
  return Outcome::kDone;
}

// True if a copy is left of all but the lane's last `pending` groups.
bool has_older(const Copies& copies, LaneMask lanes, uint32_t pending) {
  return std::any_of(copies.list.begin(), copies.list.end(), [&](const auto& copy) {
    for (LaneMask rest = lanes & copy->lanes; rest != 0; rest &= rest - 1) {
      const auto lane = size_t(first_lane(rest));
      if (copy->group[lane] + pending < copies.open_group[lane]) return true;
    }
    return false;
  });
}

void count_wait(Warp& w) { ++w.counters().warps[size_t(w.index)].barrier_waits; }

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-group
Outcome execute_wait_group(Warp& w, const Instruction& i, LaneMask lanes) {
  if (has_older(w.state<Copies>(), lanes, uint32_t(i.imm[2]))) return Outcome::kAgain;
  if (Checker* c = w.checker()) c->cp_async_wait(w, i.imm[2]);
  count_wait(w);
  return Outcome::kDone;
}

// Commits what is open and waits for all.
Outcome execute_wait_all(Warp& w, const Instruction&, LaneMask lanes) {
  Copies& copies = w.state<Copies>();
  for (const auto& copy : copies.list) {
    if (copy->lanes & lanes) return Outcome::kAgain;
  }
  for_lanes(lanes, [&](int lane) { ++copies.open_group[size_t(lane)]; });
  if (Checker* c = w.checker()) {
    c->cp_async_commit(w);
    c->cp_async_wait(w, 0);
  }
  count_wait(w);
  return Outcome::kDone;
}

std::string describe_wait(Warp& w, const Instruction&, LaneMask lanes) {
  size_t left = 0;
  for (const auto& copy : w.state<Copies>().list) left += (copy->lanes & lanes) != 0;
  return text("%zu cp.async of these lanes are not complete", left);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive
Outcome execute_mbarrier_arrive(Warp& w, const Instruction& i, LaneMask lanes) {
  const char* what = "cp.async.mbarrier.arrive";
  Cluster& cluster = w.cluster();
  Copies& copies = w.state<Copies>();
  const bool counted_at_init = i.imm[2] != 0;
  uint32_t told = 0;
  for_lanes(lanes, [&](int lane) {
    const uint32_t mbarrier = shared_address_of(w, i, 0, lane, what);
    expect_reachable(w, mbarrier, true, what);
    mbarrier_expect_valid(cluster, mbarrier, what);
    if (!counted_at_init) mbarrier_expect_arrival(cluster, mbarrier);
    if (Checker* c = w.checker(); c != nullptr && mbarrier != told) c->cp_async_arrive(w, mbarrier);
    told = mbarrier;
    auto arrival = std::make_shared<Arrival>(Arrival{mbarrier, 0});
    for (const auto& copy : copies.list) {
      if ((copy->lanes >> lane & 1) == 0) continue;
      copy->arrivals.push_back(arrival);
      ++arrival->copies_left;
    }
    if (arrival->copies_left == 0) {
      cluster.async.post_copy([&cluster, mbarrier] { mbarrier_arrive(cluster, mbarrier, 1); });
    }
  });
  return Outcome::kDone;
}

// --- decoding
// --------------------------------------------------------------------------------------------

void decode_copy(Decoder& d, OpcodeParts& parts, Instruction& i) {
  const int cache = parts.take_one_of({"ca", "cg"});
  if (cache < 0 || parts.take_one_of({"shared", "shared::cta"}) < 0 || !parts.take("global"))
    d.unknown();
  const bool has_policy = parts.take("L2::cache_hint");
  parts.take_one_of({"L2::64B", "L2::128B", "L2::256B"});
  parts.expect_none_left();
  const size_t operands = d.num_operands() - (has_policy ? 1 : 0);
  d.expect_operands(has_policy ? 4 : 3, has_policy ? 5 : 4);
  i.counted = InstructionClass::kAsyncCopy;
  i.execute = execute_copy;
  decode_address(d, i, d.operand(0), 0);
  decode_address(d, i, d.operand(1), 1);
  const int64_t bytes = d.immediate(2);
  if (bytes != 16 && (cache == 1 || (bytes != 4 && bytes != 8))) d.unknown("cp-size");
  i.imm[2] = bytes;
  if (operands == 4) {
    const ptx::Operand& last = d.operand(3);
    if (d.is_predicate(last)) {
      i.flags |= kIgnoreSource;
      if (last.negated) i.flags |= kNegated;
      i.r[2] = d.predicate(last);
    } else {
      i.flags |= kSourceSize;
      i.r[2] = d.r32(last);
    }
  }
  if (has_policy) d.r64(operands);
}

void decode_wait(Decoder& d, OpcodeParts& parts, Instruction& i, bool all) {
  parts.expect_none_left();
  i.counted = InstructionClass::kBarrier;
  i.describe_wait = describe_wait;
  if (all) {
    i.execute = execute_wait_all;
    return d.expect_operands(0, 0);
  }
  i.execute = execute_wait_group;
  d.expect_operands(1, 1);
  i.imm[2] = d.immediate(0);
  if (i.imm[2] < 0) d.unknown("a negative number of groups");
}

void decode_mbarrier_arrive(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("arrive")) d.unknown();
  i.counted = InstructionClass::kBarrier;
  i.execute = execute_mbarrier_arrive;
  i.imm[2] = parts.take("noinc");
  parts.take_one_of({"shared", "shared::cta"});
  if (!parts.take("b64")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(1, 1);
  decode_address(d, i, d.operand(0), 0);
}

}  // namespace

void decode_cp_async(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  if (!parts.take("async")) d.unknown();
  if (parts.take("commit_group")) {
    parts.expect_none_left();
    d.expect_operands(0, 0);
    i.counted = InstructionClass::kAsyncCopy;
    i.execute = execute_commit;
    return;
  }
  if (parts.take("wait_group")) return decode_wait(d, parts, i, false);
  if (parts.take("wait_all")) return decode_wait(d, parts, i, true);
  if (parts.take("mbarrier")) return decode_mbarrier_arrive(d, parts, i);
  decode_copy(d, parts, i);
}

}  // namespace dsv4::simulator
