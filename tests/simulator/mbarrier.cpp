// SPDX-License-Identifier: Apache-2.0
// mbarrier: arrivals and bytes counted in shared memory, in phases.
//
// The 64 bits in shared memory are opaque. Here they are a copy of what the table of living
// mbarriers holds, so that memory overwritten by something else is noticed at the next use.
#include "mbarrier.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "memory.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-contents
constexpr uint32_t kMaxCount = (1u << 20) - 1;  // of arrivals
constexpr int64_t kMaxTx = (1 << 20) - 1;       // of bytes, either sign

struct Mbarrier {
  uint32_t pending = 0, expected = 0;
  int64_t tx = 0;
  uint64_t phase = 0;     // phases that are over
  uint64_t identity = 0;  // different after each init

  uint32_t parity() const { return uint32_t(phase & 1); }
  uint64_t word() const {
    return uint64_t(pending) | uint64_t(expected) << 20 | uint64_t(tx & 0x1FFFFF) << 40 |
           uint64_t(parity()) << 63;
  }
};

// The opaque state that an arrive returns: the phase it belonged to.
struct Token {
  static constexpr uint64_t kPhases = 1u << 14;
  uint64_t pending, phase, address;
  bool no_complete;

  uint64_t bits() const {
    return pending | (phase % kPhases) << 20 | (address / 8) << 34 | uint64_t(no_complete) << 63;
  }
  static Token of(uint64_t bits) {
    return {bits & kMaxCount, bits >> 20 & (kPhases - 1), (bits >> 34 & 0x1FFFFFFF) * 8,
            bits >> 63 != 0};
  }
};

struct Mbarriers : FamilyState {
  std::unordered_map<uint32_t, Mbarrier> living;  // by shared address, rank included
  uint64_t num_inits = 0;
};

void store_word(Cluster& cluster, uint32_t address, uint64_t word) {
  std::memcpy(shared_pointer(cluster, address, sizeof(word), "mbarrier"), &word, sizeof(word));
}

Mbarrier& find(Cluster& cluster, uint32_t address, const char* what) {
  expect_aligned(address, 8, what);
  const uint8_t* memory = shared_pointer(cluster, address, 8, what);
  auto& living = cluster.state<Mbarriers>().living;
  const auto found = living.find(address);
  if (found == living.end()) fail("%s: no mbarrier was initialised at %#x", what, address);
  uint64_t word;
  std::memcpy(&word, memory, sizeof(word));
  if (word != found->second.word()) {
    fail("%s: the mbarrier at %#x was overwritten by something that is no mbarrier instruction",
         what, address);
  }
  return found->second;
}

std::string describe(uint32_t address, const Mbarrier& m) {
  return text("mbarrier %#x: %u of %u arrivals pending, tx-count %lld, phase %llu (parity %u)",
              address, m.pending, m.expected, static_cast<long long>(m.tx),
              static_cast<unsigned long long>(m.phase), m.parity());
}

void add_tx(Mbarrier& m, uint32_t address, int64_t bytes) {
  m.tx += bytes;
  if (m.tx > kMaxTx || m.tx < -kMaxTx) {
    fail("tx-count overflow, limit %lld: %s", static_cast<long long>(kMaxTx),
         describe(address, m).c_str());
  }
}

void arrive(Mbarrier& m, uint32_t address, uint32_t count) {
  if (count > m.pending) fail("over-arrival by %u: %s", count, describe(address, m).c_str());
  m.pending -= count;
}

// To be called after every change: ends the phase if nothing is pending.
void settle(Cluster& cluster, Mbarrier& m, uint32_t address) {
  if (m.pending == 0 && m.tx == 0) {
    ++m.phase;
    m.pending = m.expected;
    if (Checker* c = cluster.checker.get()) c->mbarrier_complete(address);
  }
  store_word(cluster, address, m.word());
  ++cluster.progress;
}

// --- instructions
// ----------------------------------------------------------------------------------------

enum Flag : uint32_t {
  kOwnBlockOnly = 1,  // .shared::cta
  kRelaxed = 2,
  kDrop = 4,
  kNoComplete = 8,
  kExpectTx = 16,
  kParity = 32,
  kMayBlock = 64,  // try_wait
};
constexpr int kAddress = 0;  // place of the address operand

// The mbarrier that a lane names.
uint32_t mbarrier_of(Warp& w, const Instruction& i, int lane, const char* what) {
  const uint32_t address = shared_address_of(w, i, kAddress, lane, what);
  expect_reachable(w, address, i.flags & kOwnBlockOnly, what);
  return address;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-init
Outcome execute_init(Warp& w, const Instruction& i, LaneMask lanes) {
  Mbarriers& all = w.cluster().state<Mbarriers>();
  for_lanes(lanes, [&](int lane) {
    const uint32_t address = mbarrier_of(w, i, lane, "mbarrier.init");
    const uint32_t count = w.lanes<uint32_t>(i.r[1])[lane];
    expect_aligned(address, 8, "mbarrier.init");
    if (count < 1 || count > kMaxCount) {
      fail("mbarrier.init: count %u is not in 1..%u", count, kMaxCount);
    }
    const auto old = all.living.find(address);
    if (old != all.living.end()) {
      uint64_t word;
      std::memcpy(&word, shared_pointer(w.cluster(), address, 8, "mbarrier.init"), sizeof(word));
      if (word == old->second.word()) {
        fail("mbarrier.init: there is a valid one already: %s",
             describe(address, old->second).c_str());
      }
    }
    Mbarrier m;
    m.pending = m.expected = count;
    m.identity = ++all.num_inits;
    store_word(w.cluster(), address, m.word());
    all.living[address] = m;
    if (Checker* c = w.checker()) c->mbarrier_init(w, i, address);
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-inval
Outcome execute_inval(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint32_t address = mbarrier_of(w, i, lane, "mbarrier.inval");
    find(w.cluster(), address, "mbarrier.inval");
    w.cluster().state<Mbarriers>().living.erase(address);
    store_word(w.cluster(), address, ~0ull);
    if (Checker* c = w.checker()) c->mbarrier_invalidate(w, address);
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-expect-tx
Outcome execute_expect_tx(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint32_t address = mbarrier_of(w, i, lane, "mbarrier.expect_tx");
    Mbarrier& m = find(w.cluster(), address, "mbarrier.expect_tx");
    add_tx(m, address, w.lanes<uint32_t>(i.r[1])[lane]);
    settle(w.cluster(), m, address);
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-complete-tx
Outcome execute_complete_tx(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint32_t address = mbarrier_of(w, i, lane, "mbarrier.complete_tx");
    mbarrier_complete_tx(w.cluster(), address, w.lanes<uint32_t>(i.r[1])[lane]);
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive-drop
Outcome execute_arrive(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const char* what = i.flags & kDrop ? "mbarrier.arrive_drop" : "mbarrier.arrive";
    const uint32_t address = mbarrier_of(w, i, lane, what);
    Mbarrier& m = find(w.cluster(), address, what);
    const Token token{m.pending, m.phase, address, (i.flags & kNoComplete) != 0};
    uint32_t count = 1;
    if (i.flags & kExpectTx) {
      add_tx(m, address, w.lanes<uint32_t>(i.r[1])[lane]);
    } else if (i.r[1]) {
      count = w.lanes<uint32_t>(i.r[1])[lane];
      if (count < 1 || count > kMaxCount)
        fail("%s: count %u is not in 1..%u", what, count, kMaxCount);
    }
    if (Checker* c = w.checker()) {
      if (i.flags & kRelaxed) {
        c->mbarrier_arrive_relaxed(w, address);
      } else {
        c->mbarrier_arrive(w, address);
      }
    }
    arrive(m, address, count);
    if (i.flags & kDrop) m.expected -= std::min(count, m.expected);
    if (i.flags & kNoComplete && m.pending == 0 && m.tx == 0) {
      fail("%s.noComplete would complete the phase: %s", what, describe(address, m).c_str());
    }
    settle(w.cluster(), m, address);
    if (i.r[2]) w.lanes<uint64_t>(i.r[2])[lane] = token.bits();
  });
  return Outcome::kDone;
}

// A wait that failed: which phase the lanes waited for, so that a phase they miss is noticed, and
// how much had happened, so that a loop around it does not run on while nothing does.
struct Poll {
  uint32_t address;
  LaneMask lanes;
  uint64_t identity, phase;
  const Instruction* by;
  bool looked = false, timed_out = false;
  uint64_t looked_at = 0, timed_out_at = 0;  // progress of the cluster
};
struct Polls : FamilyState {
  std::vector<Poll> open;
};

uint64_t progress_of(Cluster& cluster) { return cluster.progress + cluster.async.progress; }

// True if the lane's phase is over.
bool is_over(Warp& w, const Instruction& i, int lane, const Mbarrier& m, uint32_t address) {
  if (i.flags & kParity) {
    const uint32_t parity = w.lanes<uint32_t>(i.r[1])[lane];
    if (parity > 1) fail("mbarrier wait: parity %u is neither 0 nor 1", parity);
    return m.parity() != parity;
  }
  const Token token = Token::of(w.lanes<uint64_t>(i.r[1])[lane]);
  if (token.address != (address & 0xFFFFFFFF)) {
    fail("mbarrier wait: the state is of another mbarrier, at %#llx: %s",
         static_cast<unsigned long long>(token.address), describe(address, m).c_str());
  }
  const uint64_t age = (m.phase - token.phase) % Token::kPhases;
  if (age > 1) {
    fail("mbarrier wait: the state is of a phase %llu before the current one: %s",
         static_cast<unsigned long long>(age), describe(address, m).c_str());
  }
  return age == 1;
}

// Closes the lane's open polls of this mbarrier as far as they are answered, and returns whether it
// had any.
bool close_polls(Warp& w, const Mbarrier& m, uint32_t address, int lane, bool over) {
  auto& open = w.state<Polls>().open;
  bool waited = false;
  for (size_t k = open.size(); k-- > 0;) {
    Poll& poll = open[k];
    if (poll.address != address || (poll.lanes >> lane & 1) == 0) continue;
    const bool same_barrier = poll.identity == m.identity;
    const uint64_t age = m.phase - poll.phase;
    // Odd ages show the phase of this poll as over, even ones as not over yet.
    if (same_barrier && age >= 2 && over == (age % 2 == 1)) {
      fail(
          "missed phase: lane %d waited for the end of phase %llu, and the phase after it ended "
          "too "
          "before the lane looked again: %s",
          lane, static_cast<unsigned long long>(poll.phase), describe(address, m).c_str());
    }
    waited |= same_barrier;
    if (!over && same_barrier && age == 0) continue;
    poll.lanes &= ~(1u << lane);
    if (poll.lanes == 0) open.erase(open.begin() + int64_t(k));
  }
  return waited;
}

void open_poll(Warp& w, const Instruction& i, const Mbarrier& m, uint32_t address, int lane) {
  auto& open = w.state<Polls>().open;
  for (Poll& poll : open) {
    if (poll.address == address && poll.identity == m.identity && poll.phase == m.phase &&
        poll.by == &i) {
      poll.lanes |= 1u << lane;
      return;
    }
  }
  open.push_back({address, 1u << lane, m.identity, m.phase, &i});
}

// What a failed wait does. try_wait may suspend the thread for a while, so it blocks until
// something has happened, then gives up; a loop that comes back although nothing has happened since
// blocks for good, which the scheduler reports as a deadlock. test_wait gives up at once the first
// time.
Outcome wait_more(Warp& w, const Instruction& i, LaneMask lanes) {
  const uint64_t now = progress_of(w.cluster());
  bool give_up = false;
  for (Poll& poll : w.state<Polls>().open) {
    if (poll.by != &i || (poll.lanes & lanes) == 0) continue;
    if (poll.timed_out && poll.timed_out_at == now) continue;
    if (!(i.flags & kMayBlock) || (poll.looked && poll.looked_at == now)) {
      poll.timed_out = true;
      poll.timed_out_at = now;
      give_up = true;
    } else {
      poll.looked = true;
      poll.looked_at = now;
    }
  }
  return give_up ? Outcome::kYield : Outcome::kAgain;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
Outcome execute_wait(Warp& w, const Instruction& i, LaneMask lanes) {
  const char* what = i.flags & kMayBlock ? "mbarrier.try_wait" : "mbarrier.test_wait";
  LaneMask over = 0, waited = 0;
  uint32_t observed = 0;
  const Mbarrier* found = nullptr;  // lanes mostly wait for the same one
  uint32_t found_address = 0;
  for_lanes(lanes, [&](int lane) {
    const uint32_t address = mbarrier_of(w, i, lane, what);
    if (found == nullptr || address != found_address) {
      found = &find(w.cluster(), address, what);
      found_address = address;
    }
    const Mbarrier& m = *found;
    const bool lane_over = is_over(w, i, lane, m, address);
    if (close_polls(w, m, address, lane, lane_over)) waited |= 1u << lane;
    if (lane_over) {
      over |= 1u << lane;
      if (Checker* c = w.checker(); c != nullptr && address != observed) {
        if (i.flags & kRelaxed) {
          c->mbarrier_observe_relaxed(w, address);
        } else {
          c->mbarrier_observe(w, address);
        }
        observed = address;
      }
    } else {
      open_poll(w, i, m, address, lane);
    }
  });
  Outcome outcome = Outcome::kDone;
  if (over == 0) {
    outcome = wait_more(w, i, lanes);
    if (outcome == Outcome::kAgain) return outcome;
  } else {
    WarpCounters& counters = w.counters().warps[size_t(w.index)];
    ++counters.barrier_waits;
    if (waited != 0) ++counters.blocked_waits;
  }
  LaneMask& result = w.predicate(i.r[2]);
  result = (result & ~lanes) | over;
  return outcome;
}

std::string describe_wait(Warp& w, const Instruction& i, LaneMask lanes) {
  const int lane = first_lane(lanes);
  const uint32_t address = shared_address_of(w, i, kAddress, lane, "mbarrier");
  std::string result = describe_mbarrier(w.cluster(), address);
  if (i.flags & kParity)
    result += text(", waits for parity %u to end", w.lanes<uint32_t>(i.r[1])[lane]);
  return result;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-pending-count
Outcome execute_pending_count(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const Token token = Token::of(w.lanes<uint64_t>(i.r[1])[lane]);
    if (!token.no_complete)
      fail("mbarrier.pending_count: the state is not of a .noComplete arrival");
    w.lanes<uint32_t>(i.r[0])[lane] = uint32_t(token.pending);
  });
  return Outcome::kDone;
}

// --- decoding ------------------------------------------------------------------------------------

enum class Semantics { kNone, kRelease, kAcquire, kRelaxed };

// Semantics with their scope, space and .b64: all there is behind the operation and its own forms.
Semantics take_modifiers(Decoder& d, OpcodeParts& parts, Instruction& i) {
  const int semantics = parts.take_one_of({"release", "acquire", "relaxed"});
  const int scope = parts.take_one_of({"cta", "cluster"});
  if ((semantics < 0) != (scope < 0)) d.unknown("semantics and scope go together");
  const bool own_block = parts.take_one_of({"shared", "shared::cta"}) >= 0;
  if (own_block) i.flags |= kOwnBlockOnly;
  if (!own_block) parts.take("shared::cluster");
  if (!parts.take("b64")) d.unknown("expected .b64");
  parts.expect_none_left();
  if (semantics == 2) i.flags |= kRelaxed;
  return Semantics(semantics + 1);
}

void decode_arrive(Decoder& d, OpcodeParts& parts, Instruction& i, bool drop) {
  i.execute = execute_arrive;
  if (drop) i.flags |= kDrop;
  if (parts.take("noComplete")) i.flags |= kNoComplete;
  if (!(i.flags & kNoComplete) && parts.take("expect_tx")) i.flags |= kExpectTx;
  if (take_modifiers(d, parts, i) == Semantics::kAcquire) d.unknown("an arrival does not acquire");
  d.expect_operands(i.flags & (kNoComplete | kExpectTx) ? 3 : 2, 3);
  if (d.operand(0).kind != ptx::Operand::Kind::kSink) {
    if (d.has("shared::cluster")) d.unknown("a remote arrival returns no state");
    i.r[2] = d.r64(0);
  }
  decode_address(d, i, d.operand(1), kAddress);
  if (d.num_operands() == 3) i.r[1] = d.r32(2);
}

void decode_wait(Decoder& d, OpcodeParts& parts, Instruction& i, bool may_block) {
  i.execute = execute_wait;
  i.describe_wait = describe_wait;
  if (may_block) i.flags |= kMayBlock;
  if (parts.take("parity")) i.flags |= kParity;
  if (take_modifiers(d, parts, i) == Semantics::kRelease) d.unknown("a wait does not release");
  if (d.has("shared::cluster")) d.unknown("mbarriers of other blocks cannot be waited for");
  i.flags |= kOwnBlockOnly;  // of generic addresses too
  d.expect_operands(3, may_block ? 4 : 3);
  i.r[2] = d.predicate(0);
  decode_address(d, i, d.operand(1), kAddress);
  i.r[1] = i.flags & kParity ? d.r32(2) : d.r64(2);
  if (d.num_operands() == 4) d.r32(3);  // the time limit of the suspension
}

void decode_tx(Decoder& d, OpcodeParts& parts, Instruction& i, Execute execute) {
  i.execute = execute;
  const Semantics semantics = take_modifiers(d, parts, i);
  if (semantics != Semantics::kNone && semantics != Semantics::kRelaxed) d.unknown();
  d.expect_operands(2, 2);
  decode_address(d, i, d.operand(0), kAddress);
  i.r[1] = d.r32(1);
}

void decode_init(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_init;
  if (take_modifiers(d, parts, i) != Semantics::kNone || d.has("shared::cluster")) d.unknown();
  d.expect_operands(2, 2);
  decode_address(d, i, d.operand(0), kAddress);
  i.r[1] = d.r32(1);
}

void decode_inval(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_inval;
  if (take_modifiers(d, parts, i) != Semantics::kNone || d.has("shared::cluster")) d.unknown();
  d.expect_operands(1, 1);
  decode_address(d, i, d.operand(0), kAddress);
}

void decode_pending_count(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_pending_count;
  if (!parts.take("b64")) d.unknown("expected .b64");
  parts.expect_none_left();
  d.expect_operands(2, 2);
  i.r[0] = d.r32(0);
  i.r[1] = d.r64(1);
}

}  // namespace

void mbarrier_complete_tx(Cluster& cluster, uint32_t address, uint32_t bytes) {
  Mbarrier& m = find(cluster, address, "complete_tx");
  add_tx(m, address, -int64_t(bytes));
  settle(cluster, m, address);
}

void mbarrier_arrive(Cluster& cluster, uint32_t address, uint32_t count) {
  Mbarrier& m = find(cluster, address, "asynchronous arrival");
  arrive(m, address, count);
  settle(cluster, m, address);
}

void mbarrier_expect_arrival(Cluster& cluster, uint32_t address) {
  Mbarrier& m = find(cluster, address, "asynchronous arrival");
  if (m.pending == kMaxCount) fail("too many arrivals: %s", describe(address, m).c_str());
  ++m.pending;
  store_word(cluster, address, m.word());
}

void mbarrier_expect_valid(Cluster& cluster, uint32_t address, const char* what) {
  find(cluster, address, what);
}

uint64_t mbarrier_phase(Cluster& cluster, uint32_t address, const char* what) {
  const Mbarrier& m = find(cluster, address, what);
  return m.identity << 32 | m.phase;
}

std::string describe_mbarrier(Cluster& cluster, uint32_t address) {
  const auto& living = cluster.state<Mbarriers>().living;
  const auto found = living.find(address);
  if (found == living.end()) return text("mbarrier %#x: not initialised", address);
  return describe(address, found->second);
}

void decode_mbarrier(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kBarrier;
  OpcodeParts parts(d);
  const std::string operation = parts.take_next();
  if (operation == "init") return decode_init(d, parts, i);
  if (operation == "inval") return decode_inval(d, parts, i);
  if (operation == "expect_tx") return decode_tx(d, parts, i, execute_expect_tx);
  if (operation == "complete_tx") return decode_tx(d, parts, i, execute_complete_tx);
  if (operation == "arrive") return decode_arrive(d, parts, i, false);
  if (operation == "arrive_drop") return decode_arrive(d, parts, i, true);
  if (operation == "test_wait") return decode_wait(d, parts, i, false);
  if (operation == "try_wait") return decode_wait(d, parts, i, true);
  if (operation == "pending_count") return decode_pending_count(d, parts, i);
  d.unknown("mbarrier: unknown operation");
}

}  // namespace dsv4::simulator
