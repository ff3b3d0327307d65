// SPDX-License-Identifier: Apache-2.0
// Instructions that change no values: setmaxnreg, nanosleep, pmevent, trap.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions
#include "elementwise.h"
#include "error.h"
#include "families.h"
#include "lints.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

// Registers a thread of the warp has by its last setmaxnreg, 0 before the first.
struct RegisterLimit : FamilyState {
  int count = 0;
};

constexpr uint32_t kIncreases = 1;

// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
Outcome execute_setmaxnreg(Warp& warp, const Instruction& i, LaneMask) {
  const int count = int(i.imm[0]);
  int& limit = warp.state<RegisterLimit>().count;
  if (limit != 0 && (i.flags & kIncreases ? count < limit : count > limit)) {
    fail("setmaxnreg.%s: from %d to %d registers", i.flags & kIncreases ? "inc" : "dec", limit,
         count);
  }
  limit = count;
  warp.launch().state<LaunchFacts>().registers[warp.index] = count;
  return Outcome::kDone;
}

void decode_setmaxnreg(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const int increases = parts.take_one_of({"dec", "inc"});
  if (increases < 0 || !parts.take("sync") || !parts.take("aligned") || !parts.take("u32")) {
    d.unknown();
  }
  parts.expect_none_left();
  d.expect_operands(1, 1);
  const int64_t count = d.immediate(0);
  if (count < 24 || count > 256 || count % 8 != 0) {
    d.unknown("setmaxnreg: expected a multiple of 8 in 24 to 256");
  }
  i.execute = execute_setmaxnreg;
  i.converged = true;
  i.imm[0] = count;
  if (increases) i.flags |= kIncreases;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-nanosleep
Outcome execute_nanosleep(Warp&, const Instruction&, LaneMask) { return Outcome::kYield; }

void decode_nanosleep(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  if (!parts.take("u32")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(1, 1);
  d.r32(0);
  i.execute = execute_nanosleep;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-pmevent
Outcome execute_nothing(Warp&, const Instruction&, LaneMask) { return Outcome::kDone; }

void decode_pmevent(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const int64_t end = parts.take("mask") ? 1 << 16 : 16;
  parts.expect_none_left();
  d.expect_operands(1, 1);
  if (d.immediate(0) < 0 || d.immediate(0) >= end) d.unknown("no such event");
  i.execute = execute_nothing;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-trap
Outcome execute_trap(Warp&, const Instruction&, LaneMask) { fail("the program stops itself"); }

void decode_trap(Decoder& d, Instruction& i) {
  OpcodeParts(d).expect_none_left();
  d.expect_operands(0, 0);
  i.execute = execute_trap;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#control-flow-instructions-call
Outcome execute_call(Warp&, const Instruction&, LaneMask) { fail("calls are not simulated"); }

void decode_call(Decoder& d, Instruction& i) {
  OpcodeParts(d).expect_none_left();
  i.execute = execute_call;
}

}  // namespace

void decode_hint(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kHint;
  const std::string& name = d.statement().parts[0];
  if (name == "setmaxnreg") return decode_setmaxnreg(d, i);
  if (name == "nanosleep") return decode_nanosleep(d, i);
  if (name == "pmevent") return decode_pmevent(d, i);
  if (name == "trap") return decode_trap(d, i);
  if (name == "call") return decode_call(d, i);
  d.unknown();
}

}  // namespace dsv4::simulator
