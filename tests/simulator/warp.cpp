// SPDX-License-Identifier: Apache-2.0
// Exchange between the lanes of a warp. All of these name the lanes that take part by a mask; lanes
// that meet at the instruction with different masks are different parties, and a party acts when
// all of it is there.
#include <cmath>

#include "checker.h"
#include "error.h"
#include "families.h"
#include "groups.h"
#include "number_formats.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

constexpr uint32_t kUndefined = 0x7FFFDEAD;  // what a lane reads from one that does not take part

// Calls body(party) for each party that is complete. Lanes of others stay at the instruction.
template <class Body>
Outcome for_parties(Warp& w, const Instruction& i, LaneMask lanes, Body&& body) {
  const uint32_t* members = w.lanes<uint32_t>(i.members);
  LaneMask incomplete = 0;
  for (LaneMask rest = lanes; rest != 0;) {
    const LaneMask mask = members[first_lane(rest)];
    LaneMask party = 0;
    for_lanes(rest, [&](int lane) {
      if (members[lane] == mask) party |= 1u << lane;
    });
    rest &= ~party;
    if (party & ~mask)
      fail("lanes %08x are not in their own member mask %08x", party & ~mask, mask);
    if (const LaneMask absent = mask & w.alive & ~party) {
      if (absent & lanes)
        fail("lanes %08x are in the member mask %08x, but name another", absent & lanes, mask);
      incomplete |= party;
      continue;
    }
    body(party);
  }
  if (incomplete == lanes) {
    fail("member masks wait for lanes that do not execute this: lanes %08x", lanes);
  }
  if (incomplete != 0) hold_back(w, incomplete);
  return Outcome::kDone;
}

std::string describe_wait(Warp& w, const Instruction& i, LaneMask lanes) {
  const LaneMask mask = w.lanes<uint32_t>(i.members)[first_lane(lanes)];
  return text("waits for lanes %08x of member mask %08x", mask & w.alive & ~lanes, mask);
}

void set_predicate(Warp& w, Register r, LaneMask lanes, LaneMask value) {
  if (!r) return;
  LaneMask& predicate = w.predicate(r);
  predicate = (predicate & ~lanes) | (value & lanes);
}

void set_register(Warp& w, Register r, LaneMask lanes, uint32_t value) {
  if (!r) return;
  for_lanes(lanes, [&](int lane) { w.lanes<uint32_t>(r)[lane] = value; });
}

void take_members(Decoder& d, Instruction& i, size_t operand) {
  i.members = d.r32(operand);
  i.converged = true;
  i.describe_wait = describe_wait;
}

// The q of p|q; none if it is `_` or not there.
Register second_of(Decoder& d, const ptx::Operand& operand) {
  if (operand.pair.empty() || operand.pair[0].kind == ptx::Operand::Kind::kSink) return {};
  return d.predicate(operand.pair[0]);
}

Register register_or_none(Decoder& d, const ptx::Operand& operand) {
  return operand.kind == ptx::Operand::Kind::kSink ? Register{} : d.r32(operand);
}

// --- shfl
// ------------------------------------------------------------------------------------------------

enum class Shuffle : uint8_t { kUp, kDown, kButterfly, kIndex };

struct Source {
  int lane;
  bool in_range;
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync
Source source_of(Shuffle mode, int lane, uint32_t b, uint32_t c) {
  const int offset = int(b & 31), clamp = int(c & 31), segment = int(c >> 8 & 31);
  const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  int source = 0;
  switch (mode) {
    case Shuffle::kUp:
      source = lane - offset;
      break;
    case Shuffle::kDown:
      source = lane + offset;
      break;
    case Shuffle::kButterfly:
      source = lane ^ offset;
      break;
    case Shuffle::kIndex:
      source = first | (offset & ~segment);
      break;
  }
  const bool in_range = mode == Shuffle::kUp ? source >= last : source <= last;
  return {in_range ? source : lane, in_range};
}

// r: 0 result, 1 predicate, 2 a, 3 b, 4 c.
Outcome execute_shfl(Warp& w, const Instruction& i, LaneMask lanes) {
  return for_parties(w, i, lanes, [&](LaneMask party) {
    uint32_t values[kLanes];
    LaneMask in_range = 0;
    for_lanes(party, [&](int lane) {
      const Source source = source_of(Shuffle(i.flags), lane, w.lanes<uint32_t>(i.r[3])[lane],
                                      w.lanes<uint32_t>(i.r[4])[lane]);
      const bool takes_part = party >> source.lane & 1;
      values[lane] = takes_part ? w.lanes<uint32_t>(i.r[2])[source.lane] : kUndefined;
      if (source.in_range) in_range |= 1u << lane;
    });
    if (i.r[0]) for_lanes(party, [&](int lane) { w.lanes<uint32_t>(i.r[0])[lane] = values[lane]; });
    set_predicate(w, i.r[1], party, in_range);
  });
}

void decode_shfl(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("sync")) d.unknown("only the .sync form is simulated");
  const int mode = parts.take_one_of({"up", "down", "bfly", "idx"});
  if (mode < 0 || !parts.take("b32")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(5, 5);
  i.execute = execute_shfl;
  i.flags = uint32_t(mode);
  i.r[0] = register_or_none(d, d.operand(0));
  i.r[1] = second_of(d, d.operand(0));
  i.r[2] = d.r32(1);
  i.r[3] = d.r32(2);
  i.r[4] = d.r32(3);
  take_members(d, i, 4);
}

// --- vote
// ------------------------------------------------------------------------------------------------

enum class Vote : uint8_t { kAll, kAny, kUniform, kBallot };
constexpr uint32_t kNegatedFlag = 16;

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-vote-sync
Outcome execute_vote(Warp& w, const Instruction& i, LaneMask lanes) {
  return for_parties(w, i, lanes, [&](LaneMask party) {
    LaneMask votes = w.predicate(i.r[1]);
    if (i.flags & kNegatedFlag) votes = ~votes;
    votes &= party;
    switch (Vote(i.flags & 3)) {
      case Vote::kAll:
        return set_predicate(w, i.r[0], party, votes == party ? kAllLanes : 0);
      case Vote::kAny:
        return set_predicate(w, i.r[0], party, votes != 0 ? kAllLanes : 0);
      case Vote::kUniform:
        return set_predicate(w, i.r[0], party, votes == party || votes == 0 ? kAllLanes : 0);
      case Vote::kBallot:
        return set_register(w, i.r[0], party, votes);
    }
  });
}

void decode_vote(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("sync")) d.unknown("only the .sync form is simulated");
  const int mode = parts.take_one_of({"all", "any", "uni", "ballot"});
  const bool ballot = mode == int(Vote::kBallot);
  if (mode < 0 || !parts.take(ballot ? "b32" : "pred")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(3, 3);
  i.execute = execute_vote;
  i.flags = uint32_t(mode) | (d.operand(1).negated ? kNegatedFlag : 0);
  i.r[0] = ballot ? d.r32(0) : d.predicate(0);
  i.r[1] = d.predicate(1);
  take_members(d, i, 2);
}

// --- elect, activemask, bar.warp.sync
// ----------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-elect-sync
// Which lane is elected is not specified; here the lowest.
Outcome execute_elect(Warp& w, const Instruction& i, LaneMask lanes) {
  return for_parties(w, i, lanes, [&](LaneMask party) {
    const int leader = first_lane(party);
    set_register(w, i.r[0], party, uint32_t(leader));
    set_predicate(w, i.r[1], party, 1u << leader);
  });
}

void decode_elect(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("sync")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(2, 2);
  if (d.operand(0).pair.empty()) d.unknown("expected register|predicate");
  i.execute = execute_elect;
  i.r[0] = register_or_none(d, d.operand(0));
  i.r[1] = second_of(d, d.operand(0));
  take_members(d, i, 1);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-activemask
Outcome execute_activemask(Warp& w, const Instruction& i, LaneMask lanes) {
  set_register(w, i.r[0], lanes, lanes);
  return Outcome::kDone;
}

void decode_activemask(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("b32")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(1, 1);
  i.execute = execute_activemask;
  i.r[0] = d.r32(0);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar-warp-sync
Outcome execute_warp_sync(Warp& w, const Instruction& i, LaneMask lanes) {
  return for_parties(w, i, lanes, [&](LaneMask) {
    if (Checker* c = w.checker()) c->warp_sync(w);
  });
}

void decode_warp_sync(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("warp") || !parts.take("sync")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(1, 1);
  i.execute = execute_warp_sync;
  take_members(d, i, 0);
}

// --- match
// -----------------------------------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-match-sync
template <class Value>
Outcome execute_match_any(Warp& w, const Instruction& i, LaneMask lanes) {
  const Value* values = w.lanes<Value>(i.r[1]);
  return for_parties(w, i, lanes, [&](LaneMask party) {
    LaneMask equal[kLanes] = {};
    for_lanes(party, [&](int lane) {
      for_lanes(party, [&](int other) {
        if (values[other] == values[lane]) equal[lane] |= 1u << other;
      });
    });
    for_lanes(party, [&](int lane) { w.lanes<uint32_t>(i.r[0])[lane] = equal[lane]; });
  });
}

template <class Value>
Outcome execute_match_all(Warp& w, const Instruction& i, LaneMask lanes) {
  const Value* values = w.lanes<Value>(i.r[1]);
  return for_parties(w, i, lanes, [&](LaneMask party) {
    bool all = true;
    for_lanes(party, [&](int lane) { all &= values[lane] == values[first_lane(party)]; });
    set_register(w, i.r[0], party, all ? party : 0);
    set_predicate(w, i.r[2], party, all ? kAllLanes : 0);
  });
}

void decode_match(Decoder& d, OpcodeParts& parts, Instruction& i) {
  const int mode = parts.take_one_of({"any", "all"});
  const int width = parts.take_one_of({"b32", "b64"});
  if (mode < 0 || width < 0 || !parts.take("sync")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(3, 3);
  const bool wide = width == 1;
  if (mode == 0) {
    if (!d.operand(0).pair.empty()) d.unknown("match.any has no predicate");
    i.execute = wide ? execute_match_any<uint64_t> : execute_match_any<uint32_t>;
  } else {
    i.execute = wide ? execute_match_all<uint64_t> : execute_match_all<uint32_t>;
  }
  i.r[0] = d.r32(0);
  i.r[1] = wide ? d.r64(1) : d.r32(1);
  i.r[2] = second_of(d, d.operand(0));
  take_members(d, i, 2);
}

// --- redux
// -----------------------------------------------------------------------------------------------

using Reduce = uint32_t (*)(uint32_t, uint32_t);

template <Reduce reduce>
Outcome execute_redux(Warp& w, const Instruction& i, LaneMask lanes) {
  const uint32_t* values = w.lanes<uint32_t>(i.r[1]);
  return for_parties(w, i, lanes, [&](LaneMask party) {
    uint32_t result = values[first_lane(party)];
    for_lanes(party & (party - 1), [&](int lane) { result = reduce(result, values[lane]); });
    set_register(w, i.r[0], party, result);
  });
}

uint32_t add(uint32_t a, uint32_t b) { return a + b; }
uint32_t bitwise_and(uint32_t a, uint32_t b) { return a & b; }
uint32_t bitwise_or(uint32_t a, uint32_t b) { return a | b; }
uint32_t bitwise_xor(uint32_t a, uint32_t b) { return a ^ b; }
uint32_t unsigned_min(uint32_t a, uint32_t b) { return a < b ? a : b; }
uint32_t unsigned_max(uint32_t a, uint32_t b) { return a > b ? a : b; }
uint32_t signed_min(uint32_t a, uint32_t b) { return int32_t(a) < int32_t(b) ? a : b; }
uint32_t signed_max(uint32_t a, uint32_t b) { return int32_t(a) > int32_t(b) ? a : b; }

constexpr uint32_t kMaxFlag = 1, kAbsFlag = 2, kNanFlag = 4;
constexpr uint32_t kCanonicalNan = 0x7FFFFFFF;

// -0 is less than +0. Without .NaN a NaN counts only if there is nothing else.
Outcome execute_redux_f32(Warp& w, const Instruction& i, LaneMask lanes) {
  const float* values = w.lanes<float>(i.r[1]);
  const bool maximum = i.flags & kMaxFlag;
  return for_parties(w, i, lanes, [&](LaneMask party) {
    bool any = false, nan = false;
    float result = 0;
    for_lanes(party, [&](int lane) {
      const float value = i.flags & kAbsFlag ? std::fabs(values[lane]) : values[lane];
      if (value != value) {
        nan = true;
        return;
      }
      const bool less = value < result || (value == result && std::signbit(value));
      if (!any || less != maximum) result = value;
      any = true;
    });
    const bool is_nan = !any || (nan && i.flags & kNanFlag);
    set_register(w, i.r[0], party, is_nan ? kCanonicalNan : bit_cast<uint32_t>(result));
  });
}

Execute redux_of(int operation, ptx::Type type) {
  using ptx::Type;
  switch (operation) {
    case 0:
      return type == Type::kU32 || type == Type::kS32 ? execute_redux<add> : nullptr;
    case 1:
      if (type == Type::kF32) return execute_redux_f32;
      if (type == Type::kU32) return execute_redux<unsigned_min>;
      return type == Type::kS32 ? execute_redux<signed_min> : nullptr;
    case 2:
      if (type == Type::kF32) return execute_redux_f32;
      if (type == Type::kU32) return execute_redux<unsigned_max>;
      return type == Type::kS32 ? execute_redux<signed_max> : nullptr;
    case 3:
      return type == Type::kB32 ? execute_redux<bitwise_and> : nullptr;
    case 4:
      return type == Type::kB32 ? execute_redux<bitwise_or> : nullptr;
    case 5:
      return type == Type::kB32 ? execute_redux<bitwise_xor> : nullptr;
    default:
      return nullptr;
  }
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync
void decode_redux(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("sync")) d.unknown();
  const int operation = parts.take_one_of({"add", "min", "max", "and", "or", "xor"});
  const ptx::Type type = parts.take_type();
  i.execute = redux_of(operation, type);
  if (i.execute == nullptr) d.unknown();
  if (operation == 2) i.flags |= kMaxFlag;
  if (type == ptx::Type::kF32) {
    if (parts.take("abs")) i.flags |= kAbsFlag;
    if (parts.take("NaN")) i.flags |= kNanFlag;
  }
  parts.expect_none_left();
  d.expect_operands(3, 3);
  i.r[0] = d.r32(0);
  i.r[1] = d.r32(1);
  take_members(d, i, 2);
}

}  // namespace

void decode_warp(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kWarp;
  OpcodeParts parts(d);
  const std::string& name = d.statement().parts[0];
  if (name == "shfl") return decode_shfl(d, parts, i);
  if (name == "vote") return decode_vote(d, parts, i);
  if (name == "elect") return decode_elect(d, parts, i);
  if (name == "activemask") return decode_activemask(d, parts, i);
  if (name == "bar") return decode_warp_sync(d, parts, i);
  if (name == "match") return decode_match(d, parts, i);
  if (name == "redux") return decode_redux(d, parts, i);
  d.unknown();
}

}  // namespace dsv4::simulator
