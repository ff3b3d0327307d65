// SPDX-License-Identifier: Apache-2.0
// Moves between registers, and addresses: mov, cvta, mapa, getctarank, isspacep, createpolicy.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mov
#include <cstring>
#include <string>

#include "elementwise.h"
#include "error.h"
#include "families.h"
#include "memory.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

using ptx::Operand;
using ptx::Type;

constexpr uint64_t kWindowMask = 0xFF00000000000000ull;

bool is_in_window(uint64_t generic, uint64_t window) { return (generic & kWindowMask) == window; }

// --- mov ---

template <class T>
T copy(T a) {
  return a;
}

// A register of 128 bits is two of 64, the low halves of all lanes first.
Register high_half(Register r) { return {r.offset + uint32_t(sizeof(uint64_t)) * kLanes}; }

Outcome execute_mov_128(Warp& warp, const Instruction& i, LaneMask lanes) {
  for (const auto half : {+[](Register r) { return r; }, &high_half}) {
    const uint64_t* source = warp.lanes<uint64_t>(half(i.r[1]));
    write_lanes(warp.lanes<uint64_t>(half(i.r[0])), lanes, [=](int lane) { return source[lane]; });
  }
  return Outcome::kDone;
}

Outcome execute_mov_predicate(Warp& warp, const Instruction& i, LaneMask lanes) {
  write_predicate(warp, i.r[0], lanes, warp.predicate(i.r[1]));
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mov-2
// Elements are i.list, the first in the lowest bits; a sink among them is Register{}.
template <class Whole, class Element>
void pack(Warp& warp, Register whole, const Register* elements, LaneMask lanes) {
  constexpr int kElements = int(sizeof(Whole) / sizeof(Element));
  const Word<Element>* sources[kElements];
  for (int k = 0; k < kElements; ++k) sources[k] = warp.lanes<Word<Element>>(elements[k]);
  write_lanes(warp.lanes<Word<Whole>>(whole), lanes, [=](int lane) {
    Word<Whole> value = 0;
    for (int k = 0; k < kElements; ++k) {
      value |= Word<Whole>(Element(sources[k][lane])) << 8 * int(sizeof(Element)) * k;
    }
    return value;
  });
}

template <class Whole, class Element>
void unpack(Warp& warp, Register whole, const Register* elements, LaneMask lanes) {
  constexpr int kElements = int(sizeof(Whole) / sizeof(Element));
  const Word<Whole>* source = warp.lanes<Word<Whole>>(whole);
  for (int k = 0; k < kElements; ++k) {
    if (!elements[k]) continue;
    const int shift = 8 * int(sizeof(Element)) * k;
    write_lanes(warp.lanes<Word<Element>>(elements[k]), lanes,
                [=](int lane) { return Word<Element>(Element(source[lane] >> shift)); });
  }
}

// `kMove`: pack or unpack. Wholes of 128 bits are done by halves.
template <auto kMove>
Outcome execute_vector(Warp& warp, const Instruction& i, LaneMask lanes) {
  kMove(warp, i.r[0], i.list.data(), lanes);
  return Outcome::kDone;
}
template <auto kMove>
Outcome execute_vector_128(Warp& warp, const Instruction& i, LaneMask lanes) {
  kMove(warp, i.r[0], i.list.data(), lanes);
  kMove(warp, high_half(i.r[0]), i.list.data() + i.list.size() / 2, lanes);
  return Outcome::kDone;
}

template <class Whole, class Element>
Execute vector_move(bool packs) {
  return packs ? execute_vector<pack<Whole, Element>> : execute_vector<unpack<Whole, Element>>;
}
template <class Element>
Execute vector_move_128(bool packs) {
  return packs ? execute_vector_128<pack<uint64_t, Element>>
               : execute_vector_128<unpack<uint64_t, Element>>;
}

Execute choose_vector_move(int bytes, int element_bytes, bool packs) {
  switch (bytes * 256 + element_bytes) {
    case 2 * 256 + 1:
      return vector_move<uint16_t, uint8_t>(packs);
    case 4 * 256 + 1:
      return vector_move<uint32_t, uint8_t>(packs);
    case 4 * 256 + 2:
      return vector_move<uint32_t, uint16_t>(packs);
    case 8 * 256 + 2:
      return vector_move<uint64_t, uint16_t>(packs);
    case 8 * 256 + 4:
      return vector_move<uint64_t, uint32_t>(packs);
    case 16 * 256 + 4:
      return vector_move_128<uint32_t>(packs);
    case 16 * 256 + 8:
      return vector_move_128<uint64_t>(packs);
    default:
      return nullptr;
  }
}

void decode_vector_move(Decoder& d, Instruction& i, int bytes) {
  const bool packs = d.operand(1).kind == Operand::Kind::kVector;
  const Operand& vector = d.operand(packs ? 1 : 0);
  const Operand& whole = d.operand(packs ? 0 : 1);
  const int num_elements = int(vector.elements.size());
  if (whole.kind == Operand::Kind::kVector || num_elements < 2 || bytes % num_elements != 0) {
    d.unknown();
  }
  i.execute = choose_vector_move(bytes, bytes / num_elements, packs);
  i.list = d.list(vector, bytes / num_elements);
  i.r[0] = d.of_bytes(whole, bytes);
  for (const Register& element : i.list) {
    if (packs && !element) d.unknown("a sink cannot be read");
  }
}

// --- addresses as operands ---

// "variable+16" is a symbol and a displacement.
Register address_operand(Decoder& d, Instruction& i, const Operand& o, int bytes) {
  if (o.kind != Operand::Kind::kSymbol) return d.of_bytes(o, bytes);
  Operand base = o;
  if (const size_t plus = o.name.find('+'); plus != std::string::npos) {
    base.name = o.name.substr(0, o.name.find_first_of(" +"));
    i.imm[0] = std::strtoll(o.name.c_str() + plus + 1, nullptr, 0);
  }
  if (d.is_64bit(base) && bytes != 8) d.unknown("an address of 64 bits");
  return d.of_bytes(base, bytes);
}

template <class T>
T displaced(const Instruction& i, T address) {
  return T(address + T(i.imm[0]));
}

void decode_mov(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const Type type = parts.take_type();
  parts.expect_none_left();
  d.expect_operands(2, 2);
  if (type == Type::kPred) {
    i.execute = execute_mov_predicate;
    i.r[0] = d.predicate(0);
    i.r[1] = d.predicate(1);
    return;
  }
  const int bytes = ptx::bytes_of(type);
  if (bytes < 2) d.unknown();
  if (d.operand(0).kind == Operand::Kind::kVector || d.operand(1).kind == Operand::Kind::kVector) {
    return decode_vector_move(d, i, bytes);
  }
  i.r[0] = d.of_bytes(d.operand(0), bytes);
  i.r[1] = address_operand(d, i, d.operand(1), bytes);
  if (bytes == 16) {
    i.execute = execute_mov_128;
  } else if (i.imm[0] != 0) {
    i.execute = bytes == 8 ? Elementwise<displaced<uint64_t>>::execute
                           : Elementwise<displaced<uint32_t>>::execute;
  } else {
    i.execute =
        bytes == 8 ? Elementwise<copy<uint64_t>>::execute : Elementwise<copy<uint32_t>>::execute;
  }
}

// --- cvta ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvta
// Global, constant and parameter addresses are generic ones.
uint64_t shared_to_generic(const Instruction& i, uint64_t address) {
  return kSharedWindow | uint32_t(address + uint64_t(i.imm[0]));
}
uint64_t local_to_generic(const Instruction& i, uint64_t address) {
  return kLocalWindow | uint32_t(address + uint64_t(i.imm[0]));
}

// The result is undefined if the generic address is of another space, but compilers compute it
// ahead of the branch that would avoid it: what comes out is an address that no access accepts.
constexpr uint64_t kNoAddress = 0xFFFFFFFF;
uint64_t generic_to_shared(uint64_t address) {
  return is_in_window(address, kSharedWindow) ? uint32_t(address) : kNoAddress;
}
uint64_t generic_to_local(uint64_t address) {
  return is_in_window(address, kLocalWindow) ? uint32_t(address) : kNoAddress;
}

// The space of an instruction, without the part behind "::".
enum class NamedSpace { kConst, kGlobal, kLocal, kSharedCta, kSharedCluster, kParameter };
NamedSpace take_space(const Decoder& d, OpcodeParts& parts) {
  switch (parts.take_one_of({"const", "global", "local", "shared", "shared::cta", "shared::cluster",
                             "param", "param::entry"})) {
    case 0:
      return NamedSpace::kConst;
    case 1:
      return NamedSpace::kGlobal;
    case 2:
      return NamedSpace::kLocal;
    case 3:
    case 4:
      return NamedSpace::kSharedCta;
    case 5:
      return NamedSpace::kSharedCluster;
    case 6:
    case 7:
      return NamedSpace::kParameter;
    default:
      d.unknown("the opcode names no space");
  }
}

void decode_cvta(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const bool from_generic = parts.take("to");
  const NamedSpace space = take_space(d, parts);
  if (!parts.take("u64")) d.unknown("addresses are of 64 bits");
  parts.expect_none_left();
  d.expect_operands(2, 2);
  i.r[0] = d.r64(0);
  i.r[1] = address_operand(d, i, d.operand(1), 8);
  switch (space) {
    case NamedSpace::kSharedCta:
    case NamedSpace::kSharedCluster:
      i.execute = from_generic ? Elementwise<generic_to_shared>::execute
                               : Elementwise<shared_to_generic>::execute;
      break;
    case NamedSpace::kLocal:
      i.execute = from_generic ? Elementwise<generic_to_local>::execute
                               : Elementwise<local_to_generic>::execute;
      break;
    default:
      i.execute = Elementwise<displaced<uint64_t>>::execute;
  }
}

// --- addresses in a cluster ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mapa
template <class T, bool kGeneric>
Outcome execute_mapa(Warp& warp, const Instruction& i, LaneMask lanes) {
  const T* address = warp.lanes<T>(i.r[1]);
  const uint32_t* rank = warp.lanes<uint32_t>(i.r[2]);
  const size_t num_blocks = warp.cluster().ctas.size();
  write_lanes(warp.lanes<T>(i.r[0]), lanes, [&](int lane) {
    const T from = displaced(i, address[lane]);
    if (rank[lane] >= num_blocks) {
      fail("mapa: block %u of a cluster of %zu", rank[lane], num_blocks);
    }
    if (kGeneric && !is_in_window(from, kSharedWindow)) {
      fail("mapa: not an address of shared memory");
    }
    const T window = kGeneric ? T(kSharedWindow) : T(0);
    return T(window | rank[lane] << 24 | shared_offset(uint32_t(from)));
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-getctarank
template <class T, bool kGeneric>
uint32_t getctarank(const Instruction& i, T address) {
  const T from = displaced(i, address);
  if (kGeneric && !is_in_window(from, kSharedWindow)) {
    fail("getctarank: not an address of shared memory");
  }
  return shared_rank(uint32_t(from));
}

void decode_in_cluster(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const bool is_mapa = d.statement().parts[0] == "mapa";
  const bool generic = !parts.take("shared::cluster");
  const Type type = parts.take_type();
  parts.expect_none_left();
  if (type != Type::kU64 && (generic || type != Type::kU32)) d.unknown();
  const int bytes = ptx::bytes_of(type);
  if (is_mapa) {
    d.expect_operands(3, 3);
    i.r[0] = d.of_bytes(d.operand(0), bytes);
    i.r[2] = d.r32(2);
    i.execute = generic      ? execute_mapa<uint64_t, true>
                : bytes == 8 ? execute_mapa<uint64_t, false>
                             : execute_mapa<uint32_t, false>;
  } else {
    d.expect_operands(2, 2);
    i.r[0] = d.r32(0);
    i.execute = generic      ? Elementwise<getctarank<uint64_t, true>>::execute
                : bytes == 8 ? Elementwise<getctarank<uint64_t, false>>::execute
                             : Elementwise<getctarank<uint32_t, false>>::execute;
  }
  i.r[1] = address_operand(d, i, d.operand(1), bytes);
}

// --- isspacep ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-isspacep
bool is_in_space(Warp& warp, NamedSpace space, uint64_t address) {
  const bool shared = is_in_window(address, kSharedWindow);
  switch (space) {
    case NamedSpace::kSharedCta:
      return shared && shared_rank(uint32_t(address)) == warp.cta->rank;
    case NamedSpace::kSharedCluster:
      return shared && shared_rank(uint32_t(address)) < warp.cluster().ctas.size();
    case NamedSpace::kLocal:
      return is_in_window(address, kLocalWindow);
    case NamedSpace::kParameter: {
      const Launch& launch = warp.launch();
      return address - reinterpret_cast<uint64_t>(launch.parameter_base) <
             launch.program->function->parameter_bytes;
    }
    default:
      return !shared && !is_in_window(address, kLocalWindow);
  }
}

Outcome execute_isspacep(Warp& warp, const Instruction& i, LaneMask lanes) {
  const uint64_t* address = warp.lanes<uint64_t>(i.r[1]);
  LaneMask holds = 0;
  for_lanes(lanes, [&](int lane) {
    holds |= LaneMask(is_in_space(warp, NamedSpace(i.imm[0]), address[lane])) << lane;
  });
  write_predicate(warp, i.r[0], lanes, holds);
  return Outcome::kDone;
}

void decode_isspacep(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const NamedSpace space = take_space(d, parts);
  parts.expect_none_left();
  d.expect_operands(2, 2);
  // Where constants lie among global addresses is not known.
  if (space == NamedSpace::kConst) d.unknown();
  i.execute = execute_isspacep;
  i.imm[0] = int64_t(space);
  i.r[0] = d.predicate(0);
  i.r[1] = d.r64(1);
}

// --- createpolicy ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-createpolicy
// Caches are not simulated, so any value will do.
constexpr uint64_t kSomePolicy = 0x1000000000000000;

uint64_t policy_of_all() { return kSomePolicy; }
uint64_t policy_of_fraction(float fraction) {
  if (!(fraction > 0.0f && fraction <= 1.0f)) {
    fail("createpolicy: expected a fraction in (0, 1], got %g", double(fraction));
  }
  return kSomePolicy;
}
uint64_t policy_of_range(uint64_t, uint32_t primary_bytes, uint32_t total_bytes) {
  if (primary_bytes > total_bytes) {
    fail("createpolicy: a primary range of %u bytes out of %u", primary_bytes, total_bytes);
  }
  return kSomePolicy;
}
uint64_t policy_of_property(uint64_t) { return kSomePolicy; }

void decode_createpolicy(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const int kind = parts.take_one_of({"fractional", "range", "cvt"});
  if (kind == 2) {
    if (!parts.take("L2") || !parts.take("b64")) d.unknown();
    parts.expect_none_left();
    return set_operation(d, i, lane_operation<policy_of_property>());
  }
  if (kind == 1) parts.take("global");
  const int primary = parts.take_one_of(
      {"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"});
  parts.take_one_of({"L2::evict_first", "L2::evict_unchanged"});
  if (kind < 0 || primary < 0 || !parts.take("b64")) d.unknown();
  parts.expect_none_left();
  if (kind == 0) {
    return set_operation(d, i,
                         d.num_operands() == 1 ? lane_operation<policy_of_all>()
                                               : lane_operation<policy_of_fraction>());
  }
  d.expect_operands(4, 4);
  const Decoder::Address address = d.address(d.operand(1));
  if (!address.wide) d.unknown();
  i.execute = Elementwise<policy_of_range>::execute;
  i.r[0] = d.r64(0);
  i.r[1] = address.base;
  i.r[2] = d.r32(2);
  i.r[3] = d.r32(3);
}

}  // namespace

void decode_move(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kMove;
  const std::string& name = d.statement().parts[0];
  if (name == "mov") return decode_mov(d, i);
  if (name == "cvta") return decode_cvta(d, i);
  if (name == "isspacep") return decode_isspacep(d, i);
  if (name == "createpolicy") return decode_createpolicy(d, i);
  decode_in_cluster(d, i);
}

}  // namespace dsv4::simulator
