// SPDX-License-Identifier: Apache-2.0
#include "compare.h"

#include <array>
#include <type_traits>

#include "elementwise.h"
#include "error.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

using ptx::Type;

// Those behind kGe are for floats: true, too, if a number is NaN (kEqu to kGeu); whether one is.
enum class Comparison {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan,
};
enum class Combination { kNone, kAnd, kOr, kXor };

// Flags of an instruction.
constexpr uint32_t kThirdIsNegated = 1;
constexpr uint32_t kFlush = 2;

template <class T>
constexpr bool is_float = !std::is_integral_v<T>;

// Reads the number that a value of a type compares as.
struct Plain {
  template <class T>
  auto operator()(T value) const {
    if constexpr (std::is_same_v<T, F16>) {
      return from_f16(value.bits);
    } else if constexpr (std::is_same_v<T, BF16>) {
      return from_bf16(value.bits);
    } else {
      return value;
    }
  }
};

// With .ftz, which applies to f32 and f16.
struct Flushed {
  template <class T>
  auto operator()(T value) const {
    if constexpr (std::is_same_v<T, float>) {
      return flushed(value);
    } else if constexpr (std::is_same_v<T, F16>) {
      return flushed_f16(from_f16(value.bits));
    } else {
      return Plain()(value);
    }
  }
};

constexpr std::array<LaneMask, kLanes> lane_bits() {
  std::array<LaneMask, kLanes> bits{};
  for (size_t lane = 0; lane < kLanes; ++lane) bits[lane] = 1u << lane;
  return bits;
}
constexpr std::array<LaneMask, kLanes> kLaneBits = lane_bits();

// In a form that the compiler turns into vector code.
template <class T, class Read, class Holds>
LaneMask lanes_where(const Word<T>* a, const Word<T>* b, Read read, Holds holds) {
  LaneMask result = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const bool is_true = holds(read(from_word<T>(a[lane])), read(from_word<T>(b[lane])));
    result |= is_true ? kLaneBits[lane] : 0;
  }
  return result;
}

// The lanes where `a` and `b` compare so. Of all lanes: the caller masks them.
template <class T, class Read>
LaneMask compare(Comparison comparison, const Word<T>* a, const Word<T>* b, Read read) {
  const auto where = [&](auto holds) { return lanes_where<T>(a, b, read, holds); };
  switch (comparison) {
    case Comparison::kEq:
      return where([](auto x, auto y) { return x == y; });
    case Comparison::kNe:
      return where([](auto x, auto y) { return x < y || x > y; });
    case Comparison::kLt:
      return where([](auto x, auto y) { return x < y; });
    case Comparison::kLe:
      return where([](auto x, auto y) { return x <= y; });
    case Comparison::kGt:
      return where([](auto x, auto y) { return x > y; });
    case Comparison::kGe:
      return where([](auto x, auto y) { return x >= y; });
    default:
      break;
  }
  if constexpr (is_float<T>) {
    switch (comparison) {
      case Comparison::kEqu:
        return where([](auto x, auto y) { return !(x < y || x > y); });
      case Comparison::kNeu:
        return where([](auto x, auto y) { return x != y; });
      case Comparison::kLtu:
        return where([](auto x, auto y) { return !(x >= y); });
      case Comparison::kLeu:
        return where([](auto x, auto y) { return !(x > y); });
      case Comparison::kGtu:
        return where([](auto x, auto y) { return !(x <= y); });
      case Comparison::kGeu:
        return where([](auto x, auto y) { return !(x < y); });
      case Comparison::kNum:
        return where([](auto x, auto y) { return x == x && y == y; });
      case Comparison::kNan:
        return where([](auto x, auto y) { return x != x || y != y; });
      default:
        break;
    }
  }
  fail("this comparison is not one of integers");
}

// The lanes where operands 2 and 3 compare as the instruction says.
template <class T>
LaneMask compare_operands(Warp& warp, const Instruction& i) {
  const Word<T>* a = warp.lanes<Word<T>>(i.r[2]);
  const Word<T>* b = warp.lanes<Word<T>>(i.r[3]);
  if (i.flags & kFlush) return compare<T>(Comparison(i.imm[0]), a, b, Flushed());
  return compare<T>(Comparison(i.imm[0]), a, b, Plain());
}

// The same of one half of packed operands.
template <class T>
LaneMask compare_halves(Warp& warp, const Instruction& i, int half) {
  std::array<uint32_t, kLanes> a, b;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    a[lane] = warp.lanes<uint32_t>(i.r[2])[lane] >> 16 * half;
    b[lane] = warp.lanes<uint32_t>(i.r[3])[lane] >> 16 * half;
  }
  if (i.flags & kFlush) {
    return compare<T>(Comparison(i.imm[0]), a.data(), b.data(), Flushed());
  }
  return compare<T>(Comparison(i.imm[0]), a.data(), b.data(), Plain());
}

// BoolOp: the comparison's result with the third operand.
LaneMask combined(Warp& warp, const Instruction& i, LaneMask holds) {
  if (Combination(i.imm[1]) == Combination::kNone) return holds;
  LaneMask third = warp.predicate(i.r[4]);
  if (i.flags & kThirdIsNegated) third = ~third;
  switch (Combination(i.imm[1])) {
    case Combination::kAnd:
      return holds & third;
    case Combination::kOr:
      return holds | third;
    default:
      return holds ^ third;
  }
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#comparison-and-selection-instructions-setp
template <class T>
Outcome execute_setp(Warp& warp, const Instruction& i, LaneMask lanes) {
  const LaneMask holds = compare_operands<T>(warp, i);
  const LaneMask first = combined(warp, i, holds), second = combined(warp, i, ~holds);
  write_predicate(warp, i.r[0], lanes, first);
  write_predicate(warp, i.r[1], lanes, second);
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-comparison-instructions-setp
// Of packed operands, p is about the low halves and q about the high ones.
template <class T>
Outcome execute_setp_packed(Warp& warp, const Instruction& i, LaneMask lanes) {
  const LaneMask low = combined(warp, i, compare_halves<T>(warp, i, 0));
  const LaneMask high = combined(warp, i, compare_halves<T>(warp, i, 1));
  write_predicate(warp, i.r[0], lanes, low);
  write_predicate(warp, i.r[1], lanes, high);
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#comparison-and-selection-instructions-set
// imm[2] is what "true" is in the result's type.
template <class T>
Outcome execute_set(Warp& warp, const Instruction& i, LaneMask lanes) {
  const LaneMask holds = combined(warp, i, compare_operands<T>(warp, i));
  const uint32_t value = uint32_t(i.imm[2]);
  write_lanes(warp.lanes<uint32_t>(i.r[0]), lanes,
              [=](int lane) { return holds >> lane & 1 ? value : 0; });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-comparison-instructions-set
template <class T>
Outcome execute_set_packed(Warp& warp, const Instruction& i, LaneMask lanes) {
  const LaneMask low = combined(warp, i, compare_halves<T>(warp, i, 0));
  const LaneMask high = combined(warp, i, compare_halves<T>(warp, i, 1));
  const uint32_t value = uint32_t(i.imm[2]) & 0xFFFF;
  write_lanes(warp.lanes<uint32_t>(i.r[0]), lanes, [=](int lane) {
    return (low >> lane & 1 ? value : 0) | (high >> lane & 1 ? value << 16 : 0);
  });
  return Outcome::kDone;
}

struct Compared {
  Execute setp = nullptr, set = nullptr;
  bool is_float = false, is_packed = false, is_unsigned = false, only_equality = false;
  int bytes = 0;
};

template <class T>
Compared compared_as(bool only_equality = false) {
  return {execute_setp<T>,       execute_set<T>, is_float<T>,   false,
          std::is_unsigned_v<T>, only_equality,  int(sizeof(T))};
}

template <class T>
Compared compared_as_pairs_of() {
  return {execute_setp_packed<T>, execute_set_packed<T>, true, true, false, false, 4};
}

Compared compared_as(Type type) {
  switch (type) {
    case Type::kB16:
      return compared_as<uint16_t>(true);
    case Type::kB32:
      return compared_as<uint32_t>(true);
    case Type::kB64:
      return compared_as<uint64_t>(true);
    case Type::kU16:
      return compared_as<uint16_t>();
    case Type::kU32:
      return compared_as<uint32_t>();
    case Type::kU64:
      return compared_as<uint64_t>();
    case Type::kS16:
      return compared_as<int16_t>();
    case Type::kS32:
      return compared_as<int32_t>();
    case Type::kS64:
      return compared_as<int64_t>();
    case Type::kF16:
      return compared_as<F16>();
    case Type::kBF16:
      return compared_as<BF16>();
    case Type::kF32:
      return compared_as<float>();
    case Type::kF64:
      return compared_as<double>();
    case Type::kF16x2:
      return compared_as_pairs_of<F16>();
    case Type::kBF16x2:
      return compared_as_pairs_of<BF16>();
    default:
      return {};
  }
}

Comparison take_comparison(const Decoder& d, OpcodeParts& parts, const Compared& as) {
  constexpr int kFirstOfFloats = int(Comparison::kEqu);
  const int comparison = parts.take_one_of(
      {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"});
  if (comparison >= 0) {
    if (!as.is_float && comparison >= kFirstOfFloats) d.unknown("a comparison of floats");
    if (as.only_equality && comparison > int(Comparison::kNe)) d.unknown("bits have no order");
    return Comparison(comparison);
  }
  // Other names for the order of unsigned numbers.
  const int lower = parts.take_one_of({"lo", "ls", "hi", "hs"});
  if (lower < 0 || !as.is_unsigned || as.only_equality) d.unknown("unknown comparison");
  return Comparison(int(Comparison::kLt) + lower);
}

void decode_compared_operands(Decoder& d, Instruction& i, OpcodeParts& parts, Type type,
                              const Compared& as) {
  i.imm[0] = int64_t(take_comparison(d, parts, as));
  const int combination = parts.take_one_of({"and", "or", "xor"});
  i.imm[1] = combination + 1;
  const bool may_flush = type == Type::kF32 || type == Type::kF16 || type == Type::kF16x2;
  if (may_flush && parts.take("ftz")) i.flags |= kFlush;
  parts.expect_none_left();
  const size_t num_operands = combination < 0 ? 3 : 4;
  d.expect_operands(num_operands, num_operands);
  i.r[2] = d.of_bytes(d.operand(1), as.bytes);
  i.r[3] = d.of_bytes(d.operand(2), as.bytes);
  if (combination >= 0) {
    i.r[4] = d.predicate(3);
    if (d.operand(3).negated) i.flags |= kThirdIsNegated;
  }
}

void decode_setp(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const Type type = parts.take_type();
  const Compared as = compared_as(type);
  if (as.setp == nullptr) d.unknown();
  i.execute = as.setp;
  decode_compared_operands(d, i, parts, type, as);
  const auto destination = [&](const ptx::Operand& o) {
    return o.kind == ptx::Operand::Kind::kSink ? Register{} : d.predicate(o);
  };
  i.r[0] = destination(d.operand(0));
  if (!d.operand(0).pair.empty()) {
    i.r[1] = destination(d.operand(0).pair[0]);
  } else if (as.is_packed) {
    d.unknown("expected two predicates");
  }
}

void decode_set(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const Type result = parts.take_type(), type = parts.take_type();
  const Compared as = compared_as(type);
  if (as.set == nullptr) d.unknown();
  i.execute = as.set;
  decode_compared_operands(d, i, parts, type, as);
  switch (result) {
    case Type::kU32:
    case Type::kS32:
      i.imm[2] = 0xFFFFFFFF;
      break;
    case Type::kU16:
    case Type::kS16:
      i.imm[2] = 0xFFFF;
      break;
    case Type::kF32:
      i.imm[2] = 0x3F800000;
      break;
    case Type::kF16:
    case Type::kF16x2:
      i.imm[2] = 0x3C00;
      break;
    case Type::kBF16:
    case Type::kBF16x2:
      i.imm[2] = 0x3F80;
      break;
    default:
      d.unknown();
  }
  const bool packed_result = result == Type::kF16x2 || result == Type::kBF16x2;
  const bool fits_packed = packed_result || result == Type::kU32 || result == Type::kS32;
  const bool short_result = result == Type::kU16 || result == Type::kS16;
  if (as.is_packed ? !fits_packed : packed_result) d.unknown();
  if (short_result && type != Type::kF16 && type != Type::kBF16) d.unknown();
  i.r[0] = d.r32(0);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#comparison-and-selection-instructions-selp
template <class WordType>
Outcome execute_selp(Warp& warp, const Instruction& i, LaneMask lanes) {
  const WordType* a = warp.lanes<WordType>(i.r[1]);
  const WordType* b = warp.lanes<WordType>(i.r[2]);
  LaneMask condition = warp.predicate(i.r[3]);
  if (i.flags & kThirdIsNegated) condition = ~condition;
  write_lanes(warp.lanes<WordType>(i.r[0]), lanes,
              [=](int lane) { return condition >> lane & 1 ? a[lane] : b[lane]; });
  return Outcome::kDone;
}

// Instructions that only choose take any scalar type of 16 to 64 bits.
int bytes_of_choice(const Decoder& d, Type type) {
  const int bytes = ptx::bytes_of(type);
  if (bytes < 2 || bytes > 8) d.unknown();
  return bytes;
}

void decode_selp(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const int bytes = bytes_of_choice(d, parts.take_type());
  parts.expect_none_left();
  d.expect_operands(4, 4);
  i.execute = bytes == 8 ? execute_selp<uint64_t> : execute_selp<uint32_t>;
  for (size_t k = 0; k < 3; ++k) i.r[k] = d.of_bytes(d.operand(k), bytes);
  i.r[3] = d.predicate(3);
  if (d.operand(3).negated) i.flags |= kThirdIsNegated;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#comparison-and-selection-instructions-slct
template <class T, class Condition>
T slct(T a, T b, Condition c) {
  return c >= Condition(0) ? a : b;
}

template <class T>
T slct_flushed(T a, T b, float c) {
  return flushed(c) >= 0.0f ? a : b;
}

template <class T>
LaneOperation slct_of(Type condition, bool flush) {
  if (condition == Type::kS32 && !flush) return lane_operation<slct<T, int32_t>>();
  if (condition != Type::kF32) return {};
  return flush ? lane_operation<slct_flushed<T>>() : lane_operation<slct<T, float>>();
}

void decode_slct(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const bool flush = parts.take("ftz");
  const int bytes = bytes_of_choice(d, parts.take_type());
  const Type condition = parts.take_type();
  parts.expect_none_left();
  set_operation(
      d, i, bytes == 8 ? slct_of<uint64_t>(condition, flush) : slct_of<uint32_t>(condition, flush));
}

}  // namespace

bool is_comparison(std::string_view name) {
  return name == "setp" || name == "set" || name == "selp" || name == "slct";
}

void decode_comparison(Decoder& d, Instruction& i) {
  const std::string& name = d.statement().parts[0];
  if (name == "setp") return decode_setp(d, i);
  if (name == "set") return decode_set(d, i);
  if (name == "selp") return decode_selp(d, i);
  decode_slct(d, i);
}

}  // namespace dsv4::simulator
