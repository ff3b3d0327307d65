// SPDX-License-Identifier: Apache-2.0
// Address operands: [base + displacement] in a named space or in generic space.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#addresses-as-operands
#pragma once

#include <cstdint>

#include "machine.h"
#include "memory.h"
#include "opcode_parts.h"
#include "program.h"

namespace dsv4::simulator {

// Keeps the address operand in place `place` of the instruction: r[place], imm[place] and a bit of
// flags.
void decode_address(Decoder& decoder, Instruction& instruction, const ptx::Operand& operand,
                    int place);

// Bits of Instruction::flags that the functions here use; families have the lower 24.
inline constexpr uint32_t kWideAddressFlag = 1u << 24;   // shifted by the place, at most 3
inline constexpr uint32_t kOwnBlockOnlyFlag = 1u << 28;  // .shared::cta
inline constexpr int kSpaceShift = 29;                   // Space, three bits

// The address of a lane, displacement included. Of 32-bit bases, the low 32 bits.
inline uint64_t address_of(Warp& warp, const Instruction& instruction, int place, int lane) {
  const Register base = instruction.r[size_t(place)];
  const int64_t displacement = instruction.imm[size_t(place)];
  if (instruction.flags & kWideAddressFlag << place) {
    return warp.lanes<uint64_t>(base)[lane] + uint64_t(displacement);
  }
  return uint32_t(warp.lanes<uint32_t>(base)[lane] + uint32_t(displacement));
}

// The same of an operand that must lie in shared memory, named or generic: a shared address with
// its rank.
uint32_t shared_address_of(Warp& warp, const Instruction& instruction, int place, int lane,
                           const char* what);

// For an access of a warp to shared memory: a block that has exited has none, and .shared::cta
// names the warp's own block only.
void expect_reachable(Warp& warp, uint32_t shared_address, bool own_block_only, const char* what);

// --- accesses by a warp itself: ld, st, atom, red ------------------------------------------------

// Takes .global, .shared, .shared::cta, .shared::cluster, .local, .param or .const, or none, from
// the opcode, and keeps it in the instruction.
Space take_space(OpcodeParts& parts, Instruction& instruction);

// What the address of a lane (place 0) names, checked for alignment and bounds.
struct Location {
  enum class Kind : uint8_t { kGlobal, kShared, kLocal, kReadOnly };
  Kind kind;
  uint8_t* data;
  uint64_t address;  // in global memory, or a shared address with its rank
};
Location locate_anywhere(Warp& warp, const Instruction& instruction, int lane, size_t bytes,
                         const char* what);
inline Location locate(Warp& warp, const Instruction& instruction, int lane, size_t bytes,
                       const char* what) {
  // Most accesses are these.
  if (Space(instruction.flags >> kSpaceShift & 7) == Space::kShared) {
    const uint64_t address = address_of(warp, instruction, 0, lane);
    const uint32_t offset = shared_offset(uint32_t(address));
    Cta& cta = *warp.cta;
    if (address >> 24 == cta.rank && offset >= kSharedReserved &&
        offset + bytes <= cta.shared.size() && (offset & (bytes - 1)) == 0) {
      return {Location::Kind::kShared, cta.shared.data() + offset, address};
    }
  }
  return locate_anywhere(warp, instruction, lane, bytes, what);
}

}  // namespace dsv4::simulator
