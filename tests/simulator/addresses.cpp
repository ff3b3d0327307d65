// SPDX-License-Identifier: Apache-2.0
#include "addresses.h"

#include "error.h"

namespace dsv4::simulator {

void decode_address(Decoder& decoder, Instruction& instruction, const ptx::Operand& operand,
                    int place) {
  const Decoder::Address address = decoder.address(operand);
  instruction.r[size_t(place)] = address.base;
  instruction.imm[size_t(place)] = address.displacement;
  if (address.wide) instruction.flags |= kWideAddressFlag << place;
}

uint32_t shared_address_of(Warp& warp, const Instruction& instruction, int place, int lane,
                           const char* what) {
  const uint64_t address = address_of(warp, instruction, place, lane);
  const bool generic = (address & 0xFF00000000000000ull) == kSharedWindow;
  if (!generic && address >> 32 != 0) {
    fail("%s: address %#llx is not in shared memory", what,
         static_cast<unsigned long long>(address));
  }
  return uint32_t(address);
}

void expect_reachable(Warp& warp, uint32_t shared_address, bool own_block_only, const char* what) {
  const uint32_t rank = shared_rank(shared_address), own = warp.cta->rank;
  if (rank == own) return;
  if (own_block_only) {
    fail("%s: .shared::cta address %#x is of block %u of the cluster, this is block %u", what,
         shared_address, rank, own);
  }
  const auto& blocks = warp.cluster().ctas;
  if (rank >= blocks.size()) return;  // the access itself says so
  for (const auto& other : blocks[rank]->warps) {
    if (other->alive != 0) return;
  }
  fail("%s: shared address %#x is of block %u of the cluster, which has exited", what,
       shared_address, rank);
}

Space take_space(OpcodeParts& parts, Instruction& instruction) {
  Space space = Space::kGeneric;
  if (parts.take("global")) {
    space = Space::kGlobal;
  } else if (parts.take("shared") || parts.take("shared::cta")) {
    space = Space::kShared;
    instruction.flags |= kOwnBlockOnlyFlag;
  } else if (parts.take("shared::cluster")) {
    space = Space::kShared;
  } else if (parts.take("local")) {
    space = Space::kLocal;
  } else if (parts.take("param") || parts.take("param::entry")) {
    space = Space::kParameter;
  } else if (parts.take("const")) {
    space = Space::kConstant;
  }
  instruction.flags |= uint32_t(space) << kSpaceShift;
  return space;
}

Location locate_anywhere(Warp& warp, const Instruction& instruction, int lane, size_t bytes,
                         const char* what) {
  const Space space = Space(instruction.flags >> kSpaceShift & 7);
  const uint64_t address = address_of(warp, instruction, 0, lane);
  if ((address & (bytes - 1)) != 0) expect_aligned(address, bytes, what);  // spares divisions
  if (space == Space::kShared && address >> 32 != 0) {
    fail("%s: %#llx is no shared address", what, static_cast<unsigned long long>(address));
  }
  uint32_t shared_address;
  uint8_t* data = pointer(warp, lane, space, address, bytes, what, &shared_address);
  if (shared_address != 0) {
    expect_reachable(warp, shared_address, instruction.flags & kOwnBlockOnlyFlag, what);
    return {Location::Kind::kShared, data, shared_address};
  }
  const bool is_local =
      space == Space::kLocal || (space == Space::kGeneric && address >> 56 == kLocalWindow >> 56);
  if (is_local) return {Location::Kind::kLocal, data, address};
  const bool read_only = space == Space::kParameter || space == Space::kConstant;
  return {read_only ? Location::Kind::kReadOnly : Location::Kind::kGlobal, data, address};
}

}  // namespace dsv4::simulator
