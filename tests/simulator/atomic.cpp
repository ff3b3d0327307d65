// SPDX-License-Identifier: Apache-2.0
// atom and red. The lanes of a warp act one after the other; in random mode in any order, so that
// what depends on it shows.
#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>

#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "memory.h"
#include "number_formats.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

// In the order of the names in decode_atomic.
enum class Operation : uint8_t { kAnd, kOr, kXor, kCas, kExch, kAdd, kInc, kDec, kMin, kMax };
// Places: r[0] the address; list[0..count) the results, [count..2 count) operand b, then operand c
// of cas. imm[1]: the operation, imm[2]: elements, imm[3]: MemoryOrder.
constexpr uint32_t kReturnsFlag = 1;  // atom, not red

template <class T>
T integer_result(Operation operation, T old, T b, T c) {
  using Unsigned = std::make_unsigned_t<T>;
  switch (operation) {
    case Operation::kAnd:
      return old & b;
    case Operation::kOr:
      return old | b;
    case Operation::kXor:
      return old ^ b;
    case Operation::kCas:
      return old == b ? c : old;
    case Operation::kExch:
      return b;
    case Operation::kAdd:
      return T(Unsigned(old) + Unsigned(b));
    case Operation::kInc:
      return old >= b ? 0 : T(old + 1);
    case Operation::kDec:
      return old == 0 || old > b ? b : T(old - 1);
    case Operation::kMin:
      return std::min(old, b);
    case Operation::kMax:
      return std::max(old, b);
  }
  return old;
}

// Of f16 and bf16: a NaN loses against a number.
template <class Convert, class Back>
uint16_t half_result(Operation operation, uint16_t old, uint16_t b, Convert&& convert,
                     Back&& back) {
  const float x = convert(old), y = convert(b);
  switch (operation) {
    case Operation::kMin:
      return x < y || y != y || (x == y && std::signbit(x)) ? old : b;
    case Operation::kMax:
      return x > y || y != y || (x == y && !std::signbit(x)) ? old : b;
    default:
      return back(x + y);
  }
}

uint16_t f16_result(Operation operation, uint16_t old, uint16_t b) {
  return half_result(operation, old, b, from_f16, to_f16);
}

uint16_t bf16_result(Operation operation, uint16_t old, uint16_t b) {
  return half_result(operation, old, b, from_bf16, to_bf16);
}

// The types, as they act on the bits of an element. `in_global` matters for f32 alone.
struct OfF16 {
  using Bits = uint16_t;
  static Bits result(Operation o, Bits old, Bits b, Bits, bool) { return f16_result(o, old, b); }
};
struct OfBf16 {
  using Bits = uint16_t;
  static Bits result(Operation o, Bits old, Bits b, Bits, bool) { return bf16_result(o, old, b); }
};
struct OfF16x2 {
  using Bits = uint32_t;
  static Bits result(Operation o, Bits old, Bits b, Bits, bool) {
    return f16_result(o, uint16_t(old), uint16_t(b)) |
           uint32_t(f16_result(o, uint16_t(old >> 16), uint16_t(b >> 16))) << 16;
  }
};
struct OfBf16x2 {
  using Bits = uint32_t;
  static Bits result(Operation o, Bits old, Bits b, Bits, bool) {
    return bf16_result(o, uint16_t(old), uint16_t(b)) |
           uint32_t(bf16_result(o, uint16_t(old >> 16), uint16_t(b >> 16))) << 16;
  }
};
struct OfF32 {
  using Bits = uint32_t;
  // Additions in global memory flush subnormal numbers, those in shared memory do not. (So does an
  // H200, which makes every NaN the canonical one.)
  static Bits result(Operation, Bits old, Bits b, Bits, bool in_global) {
    const float x = bit_cast<float>(old), y = bit_cast<float>(b);
    const float sum = in_global ? flushed(flushed(x) + flushed(y)) : x + y;
    return sum != sum ? 0x7FFFFFFF : bit_cast<Bits>(sum);
  }
};
struct OfF64 {
  using Bits = uint64_t;
  static Bits result(Operation, Bits old, Bits b, Bits, bool) {
    return bit_cast<Bits>(bit_cast<double>(old) + bit_cast<double>(b));
  }
};
template <class T>
struct OfInteger {
  using Bits = std::make_unsigned_t<T>;
  static Bits result(Operation o, Bits old, Bits b, Bits c, bool) {
    return Bits(integer_result<T>(o, T(old), T(b), T(c)));
  }
};

std::array<int, kLanes> lane_order(Warp& w) {
  std::array<int, kLanes> order;
  std::iota(order.begin(), order.end(), 0);
  Cluster& cluster = w.cluster();
  if (cluster.async.mode == AsyncMode::kRandom) {
    std::shuffle(order.begin(), order.end(), cluster.random);
  }
  return order;
}

// Checks, counts and reports the access of a lane; returns where it goes.
Location begin_access(Warp& w, const Instruction& i, int lane, uint32_t bytes) {
  const char* what = i.flags & kReturnsFlag ? "atom" : "red";
  const Location location = locate(w, i, lane, bytes, what);
  const auto order = MemoryOrder(i.imm[3]);
  const bool reads = i.flags & kReturnsFlag;
  Checker* c = w.checker();
  if (location.kind == Location::Kind::kShared) {
    const auto address = uint32_t(location.address);
    if (c != nullptr) c->strong_shared(w, i, address, bytes, reads, true, order);
    if (shared_rank(address) != w.cta->rank) w.counters().distributed_shared_bytes += bytes;
  } else if (location.kind == Location::Kind::kGlobal) {
    if (c != nullptr) c->strong_global(w, i, location.address, bytes, reads, true, order);
    w.counters().global_store_bytes += bytes;
  } else {
    fail("%s: the address is neither in global nor in shared memory", what);
  }
  return location;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
template <class Type>
Outcome execute_atomic(Warp& w, const Instruction& i, LaneMask lanes) {
  using Bits = typename Type::Bits;
  using Lane = std::conditional_t<sizeof(Bits) == 8, uint64_t, uint32_t>;
  const auto operation = Operation(i.imm[1]);
  const auto count = size_t(i.imm[2]);
  for (int lane : lane_order(w)) {
    if ((lanes >> lane & 1) == 0) continue;
    const Location location = begin_access(w, i, lane, uint32_t(count * sizeof(Bits)));
    const bool in_global = location.kind == Location::Kind::kGlobal;
    for (size_t k = 0; k < count; ++k) {
      uint8_t* data = location.data + k * sizeof(Bits);
      Bits old;
      std::memcpy(&old, data, sizeof(old));
      const auto b = Bits(w.lanes<Lane>(i.list[count + k])[lane]);
      const auto c =
          operation == Operation::kCas ? Bits(w.lanes<Lane>(i.list[2 * count])[lane]) : Bits(0);
      const Bits fresh = Type::result(operation, old, b, c, in_global);
      std::memcpy(data, &fresh, sizeof(fresh));
      if (i.list[k]) w.lanes<Lane>(i.list[k])[lane] = old;
    }
  }
  ++w.cluster().progress;
  return Outcome::kDone;
}

// exch and cas of 16 bytes, whose registers hold the low 8 of all lanes, then the high ones.
Outcome execute_atomic_b128(Warp& w, const Instruction& i, LaneMask lanes) {
  struct Value {
    uint64_t low, high;
  };
  const auto value_of = [&](Register r, int lane) {
    return Value{w.lanes<uint64_t>(r)[lane], w.lanes<uint64_t>(r)[kLanes + lane]};
  };
  for (int lane : lane_order(w)) {
    if ((lanes >> lane & 1) == 0) continue;
    const Location location = begin_access(w, i, lane, sizeof(Value));
    Value old, fresh = value_of(i.list[1], lane);
    std::memcpy(&old, location.data, sizeof(old));
    if (Operation(i.imm[1]) == Operation::kCas) {
      const bool equal = old.low == fresh.low && old.high == fresh.high;
      fresh = equal ? value_of(i.list[2], lane) : old;
    }
    std::memcpy(location.data, &fresh, sizeof(fresh));
    if (!i.list[0]) continue;
    w.lanes<uint64_t>(i.list[0])[lane] = old.low;
    w.lanes<uint64_t>(i.list[0])[kLanes + lane] = old.high;
  }
  ++w.cluster().progress;
  return Outcome::kDone;
}

// Which operations a type has; null if it does not have this one.
Execute execution_of(ptx::Type type, Operation operation) {
  using ptx::Type;
  const bool bitwise = operation <= Operation::kXor;
  const bool exchange = operation == Operation::kCas || operation == Operation::kExch;
  const bool add = operation == Operation::kAdd;
  const bool extremum = operation == Operation::kMin || operation == Operation::kMax;
  const bool wraps = operation == Operation::kInc || operation == Operation::kDec;
  switch (type) {
    case Type::kB16:
      return operation == Operation::kCas ? execute_atomic<OfInteger<uint16_t>> : nullptr;
    case Type::kB32:
      return bitwise || exchange ? execute_atomic<OfInteger<uint32_t>> : nullptr;
    case Type::kB64:
      return bitwise || exchange ? execute_atomic<OfInteger<uint64_t>> : nullptr;
    case Type::kB128:
      return exchange ? execute_atomic_b128 : nullptr;
    case Type::kU32:
      return add || extremum || wraps ? execute_atomic<OfInteger<uint32_t>> : nullptr;
    case Type::kS32:
      return add || extremum ? execute_atomic<OfInteger<int32_t>> : nullptr;
    case Type::kU64:
      return add || extremum ? execute_atomic<OfInteger<uint64_t>> : nullptr;
    case Type::kS64:
      return add || extremum ? execute_atomic<OfInteger<int64_t>> : nullptr;
    case Type::kF16:
      return add || extremum ? execute_atomic<OfF16> : nullptr;
    case Type::kF16x2:
      return add || extremum ? execute_atomic<OfF16x2> : nullptr;
    case Type::kBF16:
      return add || extremum ? execute_atomic<OfBf16> : nullptr;
    case Type::kBF16x2:
      return add || extremum ? execute_atomic<OfBf16x2> : nullptr;
    case Type::kF32:
      return add ? execute_atomic<OfF32> : nullptr;
    case Type::kF64:
      return add ? execute_atomic<OfF64> : nullptr;
    default:
      return nullptr;
  }
}

// The scope matters to no block of one cluster; without semantics an atomic is relaxed.
MemoryOrder take_order(OpcodeParts& parts) {
  static constexpr MemoryOrder kOrders[] = {MemoryOrder::kRelaxed, MemoryOrder::kAcquire,
                                            MemoryOrder::kRelease, MemoryOrder::kAcquireRelease};
  parts.take_one_of({"cta", "cluster", "gpu", "sys"});
  const int found = parts.take_one_of({"relaxed", "acquire", "release", "acq_rel"});
  return found < 0 ? MemoryOrder::kRelaxed : kOrders[found];
}

void add_registers(Instruction& i, const std::vector<Register>& registers) {
  i.list.insert(i.list.end(), registers.begin(), registers.end());
}

void decode_operands(Decoder& d, Instruction& i, size_t count, bool returns, bool cas,
                     bool has_policy) {
  const size_t expected = size_t(2 + returns + cas + has_policy);
  d.expect_operands(expected, expected);
  const int bytes = ptx::bytes_of(i.type);
  const size_t address = returns ? 1 : 0;
  add_registers(i, returns ? d.list(d.operand(0), bytes) : std::vector<Register>(count));
  decode_address(d, i, d.operand(address), 0);
  add_registers(i, d.list(d.operand(address + 1), bytes));
  if (i.list.size() != 2 * count)
    d.unknown("the vectors do not have as many elements as the opcode says");
  if (cas) add_registers(i, d.list(d.operand(address + 2), bytes));
  for (size_t k = count; k < i.list.size(); ++k) {
    if (!i.list[k]) d.unknown("an operand is missing");
  }
  if (has_policy) d.r64(expected - 1);
}

}  // namespace

void decode_atomic(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const bool returns = d.statement().parts[0] == "atom";
  if (returns) i.flags |= kReturnsFlag;
  i.imm[3] = int64_t(take_order(parts));
  const Space space = take_space(parts, i);
  if (space != Space::kGlobal && space != Space::kShared && space != Space::kGeneric) d.unknown();
  i.counted =
      space == Space::kShared ? InstructionClass::kSharedMemory : InstructionClass::kGlobalMemory;
  const int operation =
      parts.take_one_of({"and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max"});
  if (operation < 0) d.unknown("no operation that is simulated");
  const bool is_noftz = parts.take("noftz");
  static constexpr size_t kCounts[] = {1, 2, 4, 8};
  const size_t count = kCounts[parts.take_one_of({"v2", "v4", "v8"}) + 1];
  const bool has_policy = parts.take("L2::cache_hint");
  i.type = parts.take_type();
  parts.expect_none_left();
  i.imm[1] = operation;
  i.imm[2] = int64_t(count);
  i.execute = execution_of(i.type, Operation(operation));
  if (i.execute == nullptr) d.unknown("this type does not have this operation");

  const bool is_half = i.type == ptx::Type::kF16 || i.type == ptx::Type::kF16x2 ||
                       i.type == ptx::Type::kBF16 || i.type == ptx::Type::kBF16x2;
  const bool is_extremum = operation >= int(Operation::kMin);
  if (is_half != is_noftz) d.unknown(".noftz goes with f16 and bf16");
  if (is_half && is_extremum && count == 1)
    d.unknown("min and max of f16 and bf16 are of vectors only");
  if (count > 1) {
    if (space != Space::kGlobal) d.unknown("vectors are of global memory only");
    if (!is_half && i.type != ptx::Type::kF32) d.unknown("vectors are of f32, f16 or bf16 only");
    if (count * size_t(ptx::bytes_of(i.type)) > 16) d.unknown("more than 16 bytes");
  }
  const bool is_cas = operation == int(Operation::kCas);
  if (!returns && (is_cas || operation == int(Operation::kExch)))
    d.unknown("red has no exch and cas");
  decode_operands(d, i, count, returns, is_cas, has_policy);
}

}  // namespace dsv4::simulator
