// SPDX-License-Identifier: Apache-2.0
// Copies and reductions of plain arrays by the bulk engine, and the asynchronous stores to other
// blocks.
#include "bulk_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "addresses.h"
#include "error.h"
#include "families.h"
#include "mbarrier.h"
#include "memory.h"

namespace dsv4::simulator {
namespace {

constexpr uint32_t kSectorBytes = 32;
constexpr uint32_t kBulkAlignment = 16;

// --- completion ----------------------------------------------------------------------------------

struct BulkOperation {
  bool read = false, written = false;
};

// Bulk groups belong to threads.
struct BulkGroups : FamilyState {
  using Group = std::vector<std::shared_ptr<BulkOperation>>;
  struct OfLane {
    Group open;
    std::deque<Group>
        committed;  // oldest first; complete ones at the front are dropped when looked at
  };
  std::array<OfLane, kLanes> lanes;
};

bool is_complete(const BulkGroups::Group& group, bool only_read) {
  return std::all_of(group.begin(), group.end(),
                     [&](const auto& o) { return only_read ? o->read : o->written; });
}

// Groups complete in the order of their commits.
size_t num_pending(BulkGroups::OfLane& lane, bool only_read) {
  while (!lane.committed.empty() && is_complete(lane.committed.front(), false)) {
    lane.committed.pop_front();
  }
  const auto pending = std::find_if(lane.committed.begin(), lane.committed.end(),
                                    [&](const auto& g) { return !is_complete(g, only_read); });
  return size_t(lane.committed.end() - pending);
}

// Errors of work that runs later would not say where it comes from.
void post(Cluster& cluster, const Instruction& by, AsyncWork::Action action) {
  cluster.async.post_copy([&by, action = std::move(action)] {
    try {
      action();
    } catch (const Error& error) {
      throw Error(std::string(error.what()) + text("\n  in work that line %d started: %s",
                                                   by.statement->line, by.statement->text.c_str()));
    }
  });
}

// --- operands ------------------------------------------------------------------------------------

uint32_t size_of(Warp& w, const Instruction& i, int lane) {
  const uint32_t size = w.lanes<uint32_t>(i.r[kSizePlace])[lane];
  if (size % kBulkAlignment != 0) fail("%s: size %u is not a multiple of 16", name_of(i), size);
  return size;
}

uint32_t bulk_shared_address(Warp& w, const Instruction& i, int place, int lane, uint32_t size) {
  const uint32_t address = shared_address_of(w, i, place, lane, name_of(i));
  expect_aligned(address, kBulkAlignment, name_of(i));
  shared_pointer(w.cluster(), address, size, name_of(i));
  return address;
}

uint64_t bulk_global_address(Warp& w, const Instruction& i, int lane, uint32_t size) {
  const uint64_t address = address_of(w, i, kOtherPlace, lane);
  expect_aligned(address, kBulkAlignment, name_of(i));
  if (size > 0) global_pointer(address, size, name_of(i));
  return address;
}

void expect_signal_reaches(const Instruction& i, const CopyTarget& target) {
  const uint32_t of_copy = shared_rank(target.destination),
                 of_signal = shared_rank(target.mbarrier);
  if (of_copy == of_signal) return;
  if (i.flags & kPairFlag && (of_copy ^ 1) == of_signal) return;
  fail("%s: the data goes to block %u, but the mbarrier %#x lies in block %u", name_of(i), of_copy,
       target.mbarrier, of_signal);
}

// --- instructions --------------------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
Outcome execute_global_to_shared(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint32_t size = size_of(w, i, lane);
    const uint64_t source = bulk_global_address(w, i, lane, size);
    const std::vector<CopyTarget> targets = copy_targets(w, i, lane);
    w.counters().bulk_load_bytes += size;
    count_sectors(w, source, size);
    for (const CopyTarget& target : targets) {
      expect_aligned(target.destination, kBulkAlignment, name_of(i));
      uint8_t* to = shared_pointer(w.cluster(), target.destination, size, name_of(i));
      const auto watched = WatchedOperation::on_mbarrier(w, i, target.mbarrier);
      watched.global(source, size, Use::kRead);
      watched.shared(target.destination, size, Use::kWrite);
      post_to_shared(w, i, target, size,
                     [=] { std::memcpy(to, reinterpret_cast<const void*>(source), size); });
    }
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-reduce-async-bulk
Outcome execute_shared_to_shared(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint32_t size = size_of(w, i, lane);
    const uint32_t source = bulk_shared_address(w, i, kOtherPlace, lane, size);
    const CopyTarget target = copy_targets(w, i, lane)[0];
    bulk_shared_address(w, i, kSharedPlace, lane, size);
    expect_reachable(w, source, true, name_of(i));
    if (shared_rank(target.destination) == w.cta->rank) {
      fail("%s: a copy from shared::cta goes to another block, not to its own", name_of(i));
    }
    w.counters().distributed_shared_bytes += size;
    const Reduction reduction = reduction_of(i);
    const auto watched = WatchedOperation::on_mbarrier(w, i, target.mbarrier);
    watched.shared(source, size, Use::kRead);
    watched.shared(target.destination, size, write_by(reduction));
    if (reduction != Reduction::kNone) w.launch().unanchored.insert(i.statement->opcode);
    const uint8_t* from = shared_pointer(w.cluster(), source, size, name_of(i));
    uint8_t* to = shared_pointer(w.cluster(), target.destination, size, name_of(i));
    post_to_shared(w, i, target, size, [=, &i] { reduce(reduction, i.type, to, from, size); });
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-reduce-async-bulk
Outcome execute_shared_to_global(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint32_t size = size_of(w, i, lane);
    const uint32_t source = bulk_shared_address(w, i, kSharedPlace, lane, size);
    const uint64_t destination = bulk_global_address(w, i, lane, size);
    expect_reachable(w, source, true, name_of(i));
    const Reduction reduction = reduction_of(i);
    const uint32_t byte_mask =
        i.r[kMaskPlace] ? w.lanes<uint32_t>(i.r[kMaskPlace])[lane] & 0xFFFF : 0xFFFF;
    w.counters().bulk_store_bytes += size / 16 * uint32_t(__builtin_popcount(byte_mask));
    const auto watched = WatchedOperation::in_bulk_group(w, i);
    watched.shared(source, size, Use::kRead);
    watched.global(destination, size, write_by(reduction));
    if (byte_mask != 0xFFFF) w.launch().unanchored.insert(i.statement->opcode);
    const uint8_t* from = shared_pointer(w.cluster(), source, size, name_of(i));
    post_from_shared(
        w, i, lane, [=] { return Bytes(from, from + size); },
        [=, &i](const Bytes& bytes) {
          auto* to = reinterpret_cast<uint8_t*>(destination);
          if (byte_mask == 0xFFFF) return reduce(reduction, i.type, to, bytes.data(), size);
          for (uint32_t at = 0; at < size; ++at) {
            if (byte_mask >> at % 16 & 1) to[at] = bytes[at];
          }
        });
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch
Outcome execute_prefetch(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    size_of(w, i, lane);
    expect_aligned(address_of(w, i, kOtherPlace, lane), kBulkAlignment, name_of(i));
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-commit-group
Outcome execute_commit_group(Warp& w, const Instruction&, LaneMask lanes) {
  BulkGroups& groups = w.state<BulkGroups>();
  for_lanes(lanes, [&](int lane) {
    BulkGroups::OfLane& of_lane = groups.lanes[size_t(lane)];
    of_lane.committed.push_back(std::exchange(of_lane.open, {}));
  });
  if (Checker* c = w.checker()) c->bulk_commit(w);
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-wait-group
Outcome execute_wait_group(Warp& w, const Instruction& i, LaneMask lanes) {
  BulkGroups& groups = w.state<BulkGroups>();
  const bool only_read = i.flags != 0;
  bool done = true;
  for_lanes(lanes, [&](int lane) {
    done = done && num_pending(groups.lanes[size_t(lane)], only_read) <= size_t(i.imm[0]);
  });
  if (!done) return Outcome::kAgain;
  if (Checker* c = w.checker())
    only_read ? c->bulk_wait_read(w, i.imm[0]) : c->bulk_wait(w, i.imm[0]);
  return Outcome::kDone;
}

std::string describe_wait_group(Warp& w, const Instruction& i, LaneMask lanes) {
  size_t most = 0;
  for_lanes(lanes, [&](int lane) {
    most = std::max(most, num_pending(w.state<BulkGroups>().lanes[size_t(lane)], i.flags != 0));
  });
  return text("%zu bulk groups of a lane are pending", most);
}

// st.async and red.async. r holds no source: the values are in `list`.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red-async
Outcome execute_async_store(Warp& w, const Instruction& i, LaneMask lanes) {
  const Reduction reduction = reduction_of(i);
  const auto element = uint32_t(ptx::bytes_of(i.type));
  const auto bytes = uint32_t(element * i.list.size());
  if (w.cluster().ctas.size() == 1) {
    fail("%s: only defined in a cluster of two or more blocks", name_of(i));
  }
  if (reduction != Reduction::kNone) w.launch().unanchored.insert(i.statement->opcode);
  for_lanes(lanes, [&](int lane) {
    const CopyTarget target = copy_targets(w, i, lane)[0];
    expect_aligned(target.destination, bytes, name_of(i));
    uint8_t* to = shared_pointer(w.cluster(), target.destination, bytes, name_of(i));
    if (reduction != Reduction::kNone && shared_rank(target.destination) == w.cta->rank) {
      fail("%s: only defined for the memory of another block", name_of(i));
    }
    std::array<uint8_t, 32> values;
    for (size_t k = 0; k < i.list.size(); ++k) {
      const uint64_t value =
          element == 8 ? w.lanes<uint64_t>(i.list[k])[lane] : w.lanes<uint32_t>(i.list[k])[lane];
      std::memcpy(values.data() + k * element, &value, element);
    }
    w.counters().distributed_shared_bytes += bytes;
    WatchedOperation::on_mbarrier(w, i, target.mbarrier)
        .through_generic_proxy()
        .shared(target.destination, bytes, write_by(reduction));
    post_to_shared(w, i, target, bytes,
                   [=, &i] { reduce(reduction, i.type, to, values.data(), bytes); });
  });
  return Outcome::kDone;
}

// --- decoding ------------------------------------------------------------------------------------

void decode_prefetch(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("L2") || !parts.take("global")) d.unknown();
  i.execute = execute_prefetch;
  size_t next = 0;
  decode_plain_address(d, i, d.operand(next++), kOtherPlace);
  i.r[kSizePlace] = d.r32(next++);
  decode_cache_hint(d, parts, i, next);
  d.expect_operands(next, next);
}

void decode_reduction(Decoder& d, OpcodeParts& parts, Instruction& i, bool global) {
  const Reduction reduction = take_reduction(parts);
  i.type = parts.take_type();
  if (!is_defined(reduction, i.type, global)) d.unknown("the ISA defines no such reduction");
  const bool half = i.type == ptx::Type::kF16 || i.type == ptx::Type::kBF16;
  if (parts.take("noftz") != (half && reduction == Reduction::kAdd)) {
    d.unknown(".noftz belongs to .add of f16 and bf16, and there it must be");
  }
  keep_reduction(i, reduction);
}

void decode_global_to_shared(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_global_to_shared;
  if (!parts.take("mbarrier::complete_tx::bytes"))
    d.unknown("expected .mbarrier::complete_tx::bytes");
  size_t next = 0;
  decode_plain_address(d, i, d.operand(next++), kSharedPlace);
  decode_plain_address(d, i, d.operand(next++), kOtherPlace);
  i.r[kSizePlace] = d.r32(next++);
  decode_plain_address(d, i, d.operand(next++), kMbarrierPlace);
  decode_multicast(d, parts, i, next);
  decode_cache_hint(d, parts, i, next);
  d.expect_operands(next, next);
}

void decode_shared_to_global(Decoder& d, OpcodeParts& parts, Instruction& i, bool reduces) {
  i.execute = execute_shared_to_global;
  if (!parts.take("bulk_group")) d.unknown("expected .bulk_group");
  if (reduces) decode_reduction(d, parts, i, true);
  size_t next = 0;
  decode_plain_address(d, i, d.operand(next++), kOtherPlace);
  decode_plain_address(d, i, d.operand(next++), kSharedPlace);
  i.r[kSizePlace] = d.r32(next++);
  decode_cache_hint(d, parts, i, next);
  if (!reduces && parts.take("cp_mask")) i.r[kMaskPlace] = d.r32(next++);
  d.expect_operands(next, next);
}

void decode_shared_to_shared(Decoder& d, OpcodeParts& parts, Instruction& i, bool reduces) {
  i.execute = execute_shared_to_shared;
  if (!parts.take("mbarrier::complete_tx::bytes"))
    d.unknown("expected .mbarrier::complete_tx::bytes");
  if (reduces) decode_reduction(d, parts, i, false);
  d.expect_operands(4, 4);
  decode_plain_address(d, i, d.operand(0), kSharedPlace);
  decode_plain_address(d, i, d.operand(1), kOtherPlace);
  i.r[kSizePlace] = d.r32(2);
  decode_plain_address(d, i, d.operand(3), kMbarrierPlace);
}

void decode_copy(Decoder& d, OpcodeParts& parts, Instruction& i, bool reduces) {
  const std::string destination = parts.take_next(), source = parts.take_next();
  if (destination == "shared::cta" && source == "global" && !reduces) {
    i.flags |= kOwnBlockOnlyFlag;
    decode_global_to_shared(d, parts, i);
  } else if (destination == "shared::cluster" && source == "global" && !reduces) {
    decode_global_to_shared(d, parts, i);
  } else if (destination == "shared::cluster" && source == "shared::cta") {
    decode_shared_to_shared(d, parts, i, reduces);
  } else if (destination == "global" && source == "shared::cta") {
    decode_shared_to_global(d, parts, i, reduces);
  } else {
    d.unknown("no such direction of a bulk copy");
  }
}

void decode_wait_group(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_wait_group;
  i.describe_wait = describe_wait_group;
  i.flags = parts.take("read");
  d.expect_operands(1, 1);
  i.imm[0] = d.immediate(0);
  if (i.imm[0] < 0) d.unknown("expected a number of groups");
}

void decode_async_store(Decoder& d, OpcodeParts& parts, Instruction& i, bool reduces) {
  i.execute = execute_async_store;
  parts.take("shared::cluster");  // generic addresses otherwise
  if (reduces) {
    if (!parts.take("relaxed") || !parts.take("cluster")) d.unknown();
    parts.take("mbarrier::complete_tx::bytes");  // the default
    decode_reduction(d, parts, i, false);
  } else {
    if (!parts.take("weak")) parts.take("cluster");
    if (!parts.take("mbarrier::complete_tx::bytes")) d.unknown();
    i.type = parts.take_type();
    if (ptx::bytes_of(i.type) < 4) d.unknown("elements have 32 or 64 bits");
  }
  d.expect_operands(3, 3);
  static constexpr size_t kCounts[] = {1, 2, 4};
  const size_t count = reduces ? 1 : kCounts[1 + parts.take_one_of({"v2", "v4"})];
  decode_plain_address(d, i, d.operand(0), kSharedPlace);
  i.list = d.list(d.operand(1), ptx::bytes_of(i.type));
  if (i.list.size() != count) d.unknown("expected as many values as the vector has elements");
  if (std::any_of(i.list.begin(), i.list.end(), [](Register r) { return !r; })) d.unknown();
  decode_plain_address(d, i, d.operand(2), kMbarrierPlace);
}

}  // namespace

// --- for all copies ------------------------------------------------------------------------------

const char* name_of(const Instruction& instruction) {
  const std::string& opcode = instruction.statement->opcode;
  for (const char* name : {"cp.async.bulk.prefetch", "cp.async.bulk.tensor", "cp.reduce.async.bulk",
                           "cp.async.bulk", "st.async", "red.async"}) {
    if (opcode.rfind(name, 0) == 0) return name;
  }
  return opcode.c_str();
}

void decode_plain_address(Decoder& d, Instruction& i, const ptx::Operand& operand, int place) {
  if (operand.elements.size() != 1) d.unknown("expected an address without coordinates");
  decode_address(d, i, operand, place);
}

void decode_multicast(Decoder& d, OpcodeParts& parts, Instruction& i, size_t& next) {
  if (!parts.take("multicast::cluster")) return;
  if (i.flags & kOwnBlockOnlyFlag) d.unknown("a multicast goes to .shared::cluster");
  i.flags |= kMulticastFlag;
  i.r[kMaskPlace] = d.r32(next++);
}

void decode_cache_hint(Decoder& d, OpcodeParts& parts, Instruction& i, size_t& next) {
  if (parts.take("L2::cache_hint")) i.r[kPolicyPlace] = d.r64(next++);
}

std::vector<CopyTarget> copy_targets(Warp& warp, const Instruction& i, int lane) {
  const CopyTarget named = {shared_address_of(warp, i, kSharedPlace, lane, name_of(i)),
                            shared_address_of(warp, i, kMbarrierPlace, lane, name_of(i))};
  if (!(i.flags & kMulticastFlag)) {
    expect_reachable(warp, named.destination, i.flags & kOwnBlockOnlyFlag, name_of(i));
    expect_signal_reaches(i, named);
    return {named};
  }
  const uint32_t mask = warp.lanes<uint32_t>(i.r[kMaskPlace])[lane] & 0xFFFF;
  const auto num_blocks = uint32_t(warp.cluster().ctas.size());
  if (mask == 0 || mask >> num_blocks != 0) {
    fail("%s: multicast to the blocks %#x of a cluster of %u", name_of(i), mask, num_blocks);
  }
  std::vector<CopyTarget> targets;
  for (uint32_t rank = 0; rank < num_blocks; ++rank) {
    if ((mask >> rank & 1) == 0) continue;
    const uint32_t signalled =
        i.flags & kPairFlag ? (rank & ~1u) | (shared_rank(named.mbarrier) & 1) : rank;
    expect_reachable(warp, rank << 24, false, name_of(i));
    targets.push_back({rank << 24 | shared_offset(named.destination),
                       signalled << 24 | shared_offset(named.mbarrier)});
  }
  return targets;
}

WatchedOperation WatchedOperation::on_mbarrier(Warp& issuer, const Instruction& by,
                                               uint32_t mbarrier) {
  WatchedOperation result(issuer, by);
  if (Checker* c = issuer.checker()) result.agent_ = c->copy_agent(issuer, mbarrier);
  return result;
}

WatchedOperation WatchedOperation::in_bulk_group(Warp& issuer, const Instruction& by) {
  WatchedOperation result(issuer, by);
  if (Checker* c = issuer.checker()) result.agent_ = c->bulk_group_agent(issuer);
  return result;
}

Agent WatchedOperation::agent(Use use) const {
  Agent agent = agent_;
  agent.strong = use == Use::kReduce;
  return agent;
}

void WatchedOperation::shared(uint32_t address, uint32_t bytes, Use use) const {
  Checker* c = issuer_.checker();
  if (c == nullptr || bytes == 0) return;
  c->shared_async(issuer_, by_, agent(use), address, bytes, use != Use::kRead);
}

void WatchedOperation::global(uint64_t address, uint32_t bytes, Use use) const {
  Checker* c = issuer_.checker();
  if (c == nullptr || bytes == 0) return;
  c->global_async(issuer_, by_, agent(use), address, bytes, use != Use::kRead);
}

WatchedOperation& WatchedOperation::through_generic_proxy() {
  agent_.generic = true;
  return *this;
}

void post_to_shared(Warp& issuer, const Instruction& by, const CopyTarget& target, uint32_t bytes,
                    std::function<void()> copy) {
  Cluster& cluster = issuer.cluster();
  const uint64_t phase = mbarrier_phase(cluster, target.mbarrier, name_of(by));
  post(cluster, by, [=, &cluster, &by, copy = std::move(copy)] {
    if (mbarrier_phase(cluster, target.mbarrier, name_of(by)) != phase) {
      fail(
          "%s: the phase that the copy was started in ended without it: too few bytes expected; %s",
          name_of(by), describe_mbarrier(cluster, target.mbarrier).c_str());
    }
    copy();
    mbarrier_complete_tx(cluster, target.mbarrier, bytes);
  });
}

void post_from_shared(Warp& issuer, const Instruction& by, int lane, std::function<Bytes()> read,
                      std::function<void(const Bytes&)> write) {
  Cluster& cluster = issuer.cluster();
  auto operation = std::make_shared<BulkOperation>();
  issuer.state<BulkGroups>().lanes[size_t(lane)].open.push_back(operation);
  post(cluster, by, [=, &cluster, &by, read = std::move(read), write = std::move(write)] {
    Bytes bytes = read();
    operation->read = true;
    post(cluster, by, [operation, write, bytes = std::move(bytes)] {
      write(bytes);
      operation->written = true;
    });
  });
}

void count_sectors(Warp& warp, uint64_t address, uint64_t bytes) {
  if (!warp.launch().options.count || bytes == 0) return;
  for (uint64_t s = address / kSectorBytes; s <= (address + bytes - 1) / kSectorBytes; ++s) {
    ++warp.counters().sectors[s];
  }
}

void decode_bulk_copy(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kAsyncCopy;
  OpcodeParts parts(d);
  if (d.has_prefix("st.async") || d.has_prefix("red.async")) {
    parts.take("async");
    decode_async_store(d, parts, i, d.has_prefix("red"));
  } else {
    const bool reduces = parts.take("reduce");
    parts.take("async");
    parts.take("bulk");
    if (parts.take("commit_group")) {
      i.execute = execute_commit_group;
      d.expect_operands(0, 0);
    } else if (parts.take("wait_group")) {
      decode_wait_group(d, parts, i);
    } else if (parts.take("prefetch")) {
      decode_prefetch(d, parts, i);
    } else {
      decode_copy(d, parts, i, reduces);
    }
  }
  parts.expect_none_left();
}

}  // namespace dsv4::simulator
