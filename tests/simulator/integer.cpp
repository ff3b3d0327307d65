// SPDX-License-Identifier: Apache-2.0
// Integers, bits and predicates.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions
#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "compare.h"
#include "elementwise.h"
#include "error.h"
#include "families.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

using ptx::Type;

template <class T>
constexpr uint32_t kBits = uint32_t(sizeof(T) * 8);
template <class T>
constexpr bool is_signed = std::is_signed_v<T>;

// Twice as wide a type: what products fit in.
template <class T>
struct DoubledOf;
template <>
struct DoubledOf<int16_t> {
  using Type = int32_t;
};
template <>
struct DoubledOf<uint16_t> {
  using Type = uint32_t;
};
template <>
struct DoubledOf<int32_t> {
  using Type = int64_t;
};
template <>
struct DoubledOf<uint32_t> {
  using Type = uint64_t;
};
template <>
struct DoubledOf<int64_t> {
  __extension__ using Type = __int128;
};
template <>
struct DoubledOf<uint64_t> {
  __extension__ using Type = unsigned __int128;
};
template <class T>
using Doubled = typename DoubledOf<T>::Type;

// Sums and products wrap around: they are formed of unsigned words.
template <class T>
T wrapped_sum(T a, T b) {
  return T(Word<T>(a) + Word<T>(b));
}
template <class T>
T wrapped_difference(T a, T b) {
  return T(Word<T>(a) - Word<T>(b));
}
template <class T>
T low_product(T a, T b) {
  return T(Word<T>(a) * Word<T>(b));
}
template <class T>
T high_product(T a, T b) {
  return T(Doubled<T>(a) * Doubled<T>(b) >> kBits<T>);
}
int32_t saturated(int64_t value) {
  return int32_t(std::clamp<int64_t>(value, std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::max()));
}

// --- arithmetic ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-add
struct Add {
  template <class T>
  static T of(T a, T b) {
    return wrapped_sum(a, b);
  }
};
int32_t saturated_add(int32_t a, int32_t b) { return saturated(int64_t(a) + b); }

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-sub
struct Sub {
  template <class T>
  static T of(T a, T b) {
    return wrapped_difference(a, b);
  }
};
int32_t saturated_sub(int32_t a, int32_t b) { return saturated(int64_t(a) - b); }

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-mul
struct MulLow {
  template <class T>
  static T of(T a, T b) {
    return low_product(a, b);
  }
};
struct MulHigh {
  template <class T>
  static T of(T a, T b) {
    return high_product(a, b);
  }
};
struct MulWide {
  template <class T>
  static Doubled<T> of(T a, T b) {
    return Doubled<T>(a) * Doubled<T>(b);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-mad
struct MadLow {
  template <class T>
  static T of(T a, T b, T c) {
    return wrapped_sum(low_product(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  static T of(T a, T b, T c) {
    return wrapped_sum(high_product(a, b), c);
  }
};
struct MadWide {
  template <class T>
  static Doubled<T> of(T a, T b, Doubled<T> c) {
    return wrapped_sum<Doubled<T>>(Doubled<T>(a) * Doubled<T>(b), c);
  }
};
int32_t saturated_mad_high(int32_t a, int32_t b, int32_t c) {
  return saturated(int64_t(high_product(a, b)) + c);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-mul24
// Of the low 24 bits; .hi is bits 47 to 16 of the product.
template <class T>
int64_t product24(T a, T b) {
  return int64_t(T(Word<T>(a) << 8) >> 8) * int64_t(T(Word<T>(b) << 8) >> 8);
}
struct Mul24Low {
  template <class T>
  static T of(T a, T b) {
    return T(product24(a, b));
  }
};
struct Mul24High {
  template <class T>
  static T of(T a, T b) {
    return T(product24(a, b) >> 16);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-mad24
struct Mad24Low {
  template <class T>
  static T of(T a, T b, T c) {
    return wrapped_sum(Mul24Low::of(a, b), c);
  }
};
struct Mad24High {
  template <class T>
  static T of(T a, T b, T c) {
    return wrapped_sum(Mul24High::of(a, b), c);
  }
};
int32_t saturated_mad24_high(int32_t a, int32_t b, int32_t c) {
  return saturated(int64_t(Mul24High::of(a, b)) + c);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-sad
struct Sad {
  template <class T>
  static T of(T a, T b, T c) {
    return wrapped_sum(c, a < b ? wrapped_difference(b, a) : wrapped_difference(a, b));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-div
struct Div {
  template <class T>
  static T of(T a, T b) {
    if (b == 0) fail("an integer is divided by 0, which gives an unspecified value");
    if (is_signed<T> && b == T(-1)) return wrapped_difference(T(0), a);
    return T(a / b);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-rem
struct Rem {
  template <class T>
  static T of(T a, T b) {
    if (b == 0) fail("a remainder of a division by 0, which is an unspecified value");
    if (is_signed<T> && b == T(-1)) return T(0);
    return T(a % b);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-abs
struct Abs {
  template <class T>
  static T of(T a) {
    return a < 0 ? wrapped_difference(T(0), a) : a;
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-neg
struct Neg {
  template <class T>
  static T of(T a) {
    return wrapped_difference(T(0), a);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-min
struct Min {
  template <class T>
  static T of(T a, T b) {
    return std::min(a, b);
  }
};
struct MinRelu {
  template <class T>
  static T of(T a, T b) {
    return std::max(std::min(a, b), T(0));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-max
struct Max {
  template <class T>
  static T of(T a, T b) {
    return std::max(a, b);
  }
};
struct MaxRelu {
  template <class T>
  static T of(T a, T b) {
    return std::max(std::max(a, b), T(0));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-dp4a
template <class A, class B>
uint32_t dp4a(uint32_t a, uint32_t b, uint32_t c) {
  for (int byte = 0; byte < 4; ++byte) {
    c += uint32_t(int32_t(A(a >> 8 * byte)) * int32_t(B(b >> 8 * byte)));
  }
  return c;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-dp2a
template <class A, class B, int kFirstByte>
uint32_t dp2a(uint32_t a, uint32_t b, uint32_t c) {
  for (int k = 0; k < 2; ++k) {
    c += uint32_t(int32_t(A(a >> 16 * k)) * int32_t(B(b >> 8 * (kFirstByte + k))));
  }
  return c;
}

// --- the carry flag ---

struct CarryFlag : FamilyState {
  LaneMask lanes = 0;
};
constexpr uint32_t kReadsCarry = 1;
constexpr uint32_t kWritesCarry = 2;

// https://docs.nvidia.com/cuda/parallel-thread-execution/#extended-precision-arithmetic-instructions
// term(lane) + operand `last` + carry, or - and borrow.
template <class T, bool kSubtract, class Term>
Outcome add_with_carry(Warp& warp, const Instruction& i, LaneMask lanes, size_t last, Term term) {
  LaneMask& carry = warp.state<CarryFlag>().lanes;
  const T* addend = warp.lanes<T>(i.r[last]);
  T* result = warp.lanes<T>(i.r[0]);
  for_lanes(lanes, [&](int lane) {
    const Doubled<T> in = i.flags & kReadsCarry ? carry >> lane & 1 : 0;
    const Doubled<T> other = Doubled<T>(addend[lane]) + in;
    const Doubled<T> total =
        kSubtract ? Doubled<T>(term(lane)) - other : Doubled<T>(term(lane)) + other;
    result[lane] = T(total);
    if (i.flags & kWritesCarry) {
      carry = (carry & ~(1u << lane)) | LaneMask(total >> kBits<T> & 1) << lane;
    }
  });
  return Outcome::kDone;
}

template <class T>
Outcome execute_add_carry(Warp& warp, const Instruction& i, LaneMask lanes) {
  const T* a = warp.lanes<T>(i.r[1]);
  return add_with_carry<T, false>(warp, i, lanes, 2, [=](int lane) { return a[lane]; });
}

template <class T>
Outcome execute_sub_carry(Warp& warp, const Instruction& i, LaneMask lanes) {
  const T* a = warp.lanes<T>(i.r[1]);
  return add_with_carry<T, true>(warp, i, lanes, 2, [=](int lane) { return a[lane]; });
}

// kProduct: low_product or high_product of the operands' type.
template <class T, auto kProduct>
Outcome execute_mad_carry(Warp& warp, const Instruction& i, LaneMask lanes) {
  using Unsigned = std::make_unsigned_t<T>;
  const Unsigned* a = warp.lanes<Unsigned>(i.r[1]);
  const Unsigned* b = warp.lanes<Unsigned>(i.r[2]);
  return add_with_carry<Unsigned, false>(
      warp, i, lanes, 3, [=](int lane) { return Unsigned(kProduct(T(a[lane]), T(b[lane]))); });
}

template <class T>
Execute mad_carry(bool high) {
  return high ? execute_mad_carry<T, high_product<T>> : execute_mad_carry<T, low_product<T>>;
}

void decode_carry(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const std::string& name = d.statement().parts[0];
  const bool is_mad = name == "mad" || name == "madc";
  if (name.back() == 'c') i.flags |= kReadsCarry;
  if (parts.take("cc")) i.flags |= kWritesCarry;
  const int high = is_mad ? parts.take_one_of({"lo", "hi"}) : 0;
  const Type type = parts.take_type();
  parts.expect_none_left();
  const bool known_type =
      type == Type::kU32 || type == Type::kS32 || type == Type::kU64 || type == Type::kS64;
  if (high < 0 || !known_type) d.unknown();
  const int bytes = ptx::bytes_of(type);
  if (is_mad) {
    i.execute = type == Type::kU32   ? mad_carry<uint32_t>(high)
                : type == Type::kS32 ? mad_carry<int32_t>(high)
                : type == Type::kU64 ? mad_carry<uint64_t>(high)
                                     : mad_carry<int64_t>(high);
  } else if (name[0] == 'a') {
    i.execute = bytes == 8 ? execute_add_carry<uint64_t> : execute_add_carry<uint32_t>;
  } else {
    i.execute = bytes == 8 ? execute_sub_carry<uint64_t> : execute_sub_carry<uint32_t>;
  }
  const size_t num_operands = is_mad ? 4 : 3;
  d.expect_operands(num_operands, num_operands);
  for (size_t k = 0; k < num_operands; ++k) i.r[k] = d.of_bytes(d.operand(k), bytes);
}

// --- bits ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-and
struct And {
  template <class T>
  static T of(T a, T b) {
    return a & b;
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-or
struct Or {
  template <class T>
  static T of(T a, T b) {
    return a | b;
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-xor
struct Xor {
  template <class T>
  static T of(T a, T b) {
    return a ^ b;
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-not
struct Not {
  template <class T>
  static T of(T a) {
    return T(~a);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-cnot
struct Cnot {
  template <class T>
  static T of(T a) {
    return a == 0;
  }
};

// Logic on predicates acts on the masks. Bit k of the flags negates operand k.
LaneMask predicate_operand(Warp& warp, const Instruction& i, size_t k) {
  const LaneMask value = warp.predicate(i.r[k]);
  return i.flags >> k & 1 ? ~value : value;
}

template <class Operation>
Outcome execute_on_predicates(Warp& warp, const Instruction& i, LaneMask lanes) {
  write_predicate(warp, i.r[0], lanes,
                  Operation::of(predicate_operand(warp, i, 1), predicate_operand(warp, i, 2)));
  return Outcome::kDone;
}

Outcome execute_not_predicate(Warp& warp, const Instruction& i, LaneMask lanes) {
  write_predicate(warp, i.r[0], lanes, ~predicate_operand(warp, i, 1));
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-shl
struct Shl {
  template <class T>
  static T of(T a, uint32_t b) {
    return b >= kBits<T> ? T(0) : T(Word<T>(a) << b);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-shr
struct Shr {
  template <class T>
  static T of(T a, uint32_t b) {
    if (b >= kBits<T>) return is_signed<T> && a < T(0) ? T(-1) : T(0);
    return T(a >> b);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-shf
template <bool kLeft, bool kWrap>
uint32_t shf(uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t whole = uint64_t(b) << 32 | a;
  const uint32_t shift = kWrap ? c & 31 : std::min(c, 32u);
  return kLeft ? uint32_t(whole << shift >> 32) : uint32_t(whole >> shift);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-lop3
// Bit j of the table says whether inputs that read (a b c) = j give a one.
uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  for (uint32_t j = 0; j < 8; ++j) {
    const uint32_t chosen = 0 - (table >> j & 1);
    result |= chosen & (j & 4 ? a : ~a) & (j & 2 ? b : ~b) & (j & 1 ? c : ~c);
  }
  return result;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
// The generic form: four selectors of four bits; bit 3 replicates the sign of the byte.
uint32_t prmt(uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t selector = c >> 4 * k;
    const uint32_t byte = uint32_t(bytes >> 8 * (selector & 7)) & 0xFF;
    result |= (selector & 8 ? (byte >> 7) * 0xFF : byte) << 8 * k;
  }
  return result;
}

// The special modes choose one of four selectors of the generic form by the low two bits of c.
template <int kMode>
uint32_t prmt_by_mode(uint32_t a, uint32_t b, uint32_t c) {
  static constexpr uint32_t kSelectors[][4] = {
      {0x3210, 0x4321, 0x5432, 0x6543},  // f4e
      {0x5670, 0x6701, 0x7012, 0x0123},  // b4e
      {0x0000, 0x1111, 0x2222, 0x3333},  // rc8
      {0x3210, 0x3211, 0x3222, 0x3333},  // ecl
      {0x0000, 0x1110, 0x2210, 0x3210},  // ecr
      {0x1010, 0x3232, 0x1010, 0x3232},  // rc16
  };
  return prmt(a, b, kSelectors[kMode][c & 3]);
}

// Positions and lengths are said to be of 8 bits. An H200 ignores the other bits of those of 32-bit
// fields only.
template <class T>
uint32_t field_operand(uint32_t x) {
  return sizeof(T) == 8 ? x : x & 0xFF;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-bfe
struct Bfe {
  template <class T>
  static T of(T a, uint32_t b, uint32_t c) {
    const uint32_t position = field_operand<T>(b), length = field_operand<T>(c);
    if (length == 0) return T(0);
    const T rest = Shr::of(a, position);
    if (length >= kBits<T>) return rest;
    return T(T(Word<T>(rest) << (kBits<T> - length)) >> (kBits<T> - length));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-bfi
struct Bfi {
  template <class T>
  static T of(T a, T b, uint32_t c, uint32_t d) {
    const uint32_t position = field_operand<T>(c), length = field_operand<T>(d);
    const T ones = length >= kBits<T> ? T(~T(0)) : T((T(1) << length) - 1);
    const T field = Shl::of(ones, position);
    return (b & ~field) | (Shl::of(a, position) & field);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-popc
struct Popc {
  template <class T>
  static uint32_t of(T a) {
    return uint32_t(__builtin_popcountll(a));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-clz
struct Clz {
  template <class T>
  static uint32_t of(T a) {
    return a == 0 ? kBits<T> : uint32_t(__builtin_clzll(a)) - (64 - kBits<T>);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-bfind
struct Bfind {
  template <class T>
  static uint32_t of(T a) {
    using Unsigned = std::make_unsigned_t<T>;
    const Unsigned bits = a < T(0) ? Unsigned(~a) : Unsigned(a);
    return kBits<T> - 1 - Clz::of(bits);  // 0xFFFFFFFF if there is none
  }
};
struct BfindShift {
  template <class T>
  static uint32_t of(T a) {
    const uint32_t position = Bfind::of(a);
    return position == 0xFFFFFFFF ? position : kBits<T> - 1 - position;
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-brev
struct Brev {
  template <class T>
  static T of(T a) {
    T result = 0;
    for (uint32_t bit = 0; bit < kBits<T>; ++bit) result |= (a >> bit & 1) << (kBits<T> - 1 - bit);
    return result;
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-fns
uint32_t fns(uint32_t mask, uint32_t base, int32_t offset) {
  if (base > 31) fail("fns: the base is %u, over 31", base);
  if (offset == 0) return mask >> base & 1 ? base : 0xFFFFFFFF;
  int64_t left = std::abs(int64_t(offset));
  for (int position = int(base); position >= 0 && position < 32; position += offset > 0 ? 1 : -1) {
    if ((mask >> position & 1) != 0 && --left == 0) return uint32_t(position);
  }
  return 0xFFFFFFFF;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-szext
template <class T, bool kWrap>
T szext(T a, uint32_t b) {
  if (!kWrap && b >= 32) return a;
  const uint32_t unused = 32 - (b & 31);
  return unused == 32 ? T(0) : T(T(uint32_t(a) << unused) >> unused);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-bmsk
template <bool kWrap>
uint32_t bmsk(uint32_t a, uint32_t b) {
  if (!kWrap && a >= 32) return 0;
  const uint32_t width = kWrap ? b & 31 : std::min(b, 32u);
  const uint32_t ones = width == 32 ? 0xFFFFFFFF : (1u << width) - 1;
  return ones << (a & 31);
}

// --- decoding ---

// `Operation` on .u16x2 or .s16x2, if the opcode has that.
template <class Operation>
LaneOperation choose_pairs(OpcodeParts& parts) {
  if (parts.take("u16x2")) return lane_operation<Packed<&Operation::template of<uint16_t>>::of>();
  if (parts.take("s16x2")) return lane_operation<Packed<&Operation::template of<int16_t>>::of>();
  return {};
}

LaneOperation decode_add(OpcodeParts& parts) {
  if (LaneOperation pairs = choose_pairs<Add>(parts); pairs.execute != nullptr) return pairs;
  const bool saturate = parts.take("sat");
  const Type type = parts.take_type();
  if (!saturate) return choose<Add>(IntegerTypes(), type);
  return type == Type::kS32 ? lane_operation<saturated_add>() : LaneOperation();
}

LaneOperation decode_sub(OpcodeParts& parts) {
  const bool saturate = parts.take("sat");
  const Type type = parts.take_type();
  if (!saturate) return choose<Sub>(IntegerTypes(), type);
  return type == Type::kS32 ? lane_operation<saturated_sub>() : LaneOperation();
}

LaneOperation decode_mul(OpcodeParts& parts) {
  const int mode = parts.take_one_of({"lo", "hi", "wide"});
  const Type type = parts.take_type();
  if (mode == 0) return choose<MulLow>(IntegerTypes(), type);
  if (mode == 1) return choose<MulHigh>(IntegerTypes(), type);
  if (mode == 2) return choose<MulWide>(NarrowIntegerTypes(), type);
  return {};
}

LaneOperation decode_mad(OpcodeParts& parts) {
  const int mode = parts.take_one_of({"lo", "hi", "wide"});
  const bool saturate = parts.take("sat");
  const Type type = parts.take_type();
  if (saturate) {
    const bool known = mode == 1 && type == Type::kS32;
    return known ? lane_operation<saturated_mad_high>() : LaneOperation();
  }
  if (mode == 0) return choose<MadLow>(IntegerTypes(), type);
  if (mode == 1) return choose<MadHigh>(IntegerTypes(), type);
  if (mode == 2) return choose<MadWide>(NarrowIntegerTypes(), type);
  return {};
}

using Types32 = Types<Type::kU32, Type::kS32>;

LaneOperation decode_mul24(OpcodeParts& parts) {
  const int mode = parts.take_one_of({"lo", "hi"});
  const Type type = parts.take_type();
  if (mode == 0) return choose<Mul24Low>(Types32(), type);
  if (mode == 1) return choose<Mul24High>(Types32(), type);
  return {};
}

LaneOperation decode_mad24(OpcodeParts& parts) {
  const int mode = parts.take_one_of({"lo", "hi"});
  const bool saturate = parts.take("sat");
  const Type type = parts.take_type();
  if (saturate) {
    const bool known = mode == 1 && type == Type::kS32;
    return known ? lane_operation<saturated_mad24_high>() : LaneOperation();
  }
  if (mode == 0) return choose<Mad24Low>(Types32(), type);
  if (mode == 1) return choose<Mad24High>(Types32(), type);
  return {};
}

template <class Operation, class WithRelu>
LaneOperation decode_extremum(OpcodeParts& parts) {
  const bool relu = parts.take("relu");
  if (relu) {
    if (parts.take("s16x2")) return lane_operation<Packed<&WithRelu::template of<int16_t>>::of>();
    return choose<WithRelu>(Types<Type::kS32>(), parts.take_type());
  }
  if (LaneOperation pairs = choose_pairs<Operation>(parts); pairs.execute != nullptr) return pairs;
  return choose<Operation>(IntegerTypes(), parts.take_type());
}

template <class A>
LaneOperation dp4a_with(Type b) {
  return b == Type::kS32 ? lane_operation<dp4a<A, int8_t>>() : lane_operation<dp4a<A, uint8_t>>();
}

LaneOperation decode_dp4a(OpcodeParts& parts) {
  const Type a = parts.take_type(), b = parts.take_type();
  return a == Type::kS32 ? dp4a_with<int8_t>(b) : dp4a_with<uint8_t>(b);
}

template <class A, int kFirstByte>
LaneOperation dp2a_with(Type b) {
  return b == Type::kS32 ? lane_operation<dp2a<A, int8_t, kFirstByte>>()
                         : lane_operation<dp2a<A, uint8_t, kFirstByte>>();
}

LaneOperation decode_dp2a(OpcodeParts& parts) {
  const int mode = parts.take_one_of({"lo", "hi"});
  const Type a = parts.take_type(), b = parts.take_type();
  if (mode == 0) return a == Type::kS32 ? dp2a_with<int16_t, 0>(b) : dp2a_with<uint16_t, 0>(b);
  if (mode == 1) return a == Type::kS32 ? dp2a_with<int16_t, 2>(b) : dp2a_with<uint16_t, 2>(b);
  return {};
}

LaneOperation decode_shf(OpcodeParts& parts) {
  const int left = parts.take_one_of({"r", "l"}), wrap = parts.take_one_of({"clamp", "wrap"});
  if (!parts.take("b32") || left < 0 || wrap < 0) return {};
  if (left != 0) {
    return wrap ? lane_operation<shf<true, true>>() : lane_operation<shf<true, false>>();
  }
  return wrap ? lane_operation<shf<false, true>>() : lane_operation<shf<false, false>>();
}

LaneOperation decode_prmt(OpcodeParts& parts) {
  if (!parts.take("b32")) return {};
  switch (parts.take_one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"})) {
    case 0:
      return lane_operation<prmt_by_mode<0>>();
    case 1:
      return lane_operation<prmt_by_mode<1>>();
    case 2:
      return lane_operation<prmt_by_mode<2>>();
    case 3:
      return lane_operation<prmt_by_mode<3>>();
    case 4:
      return lane_operation<prmt_by_mode<4>>();
    case 5:
      return lane_operation<prmt_by_mode<5>>();
    default:
      return lane_operation<prmt>();
  }
}

LaneOperation decode_szext(OpcodeParts& parts) {
  const int wrap = parts.take_one_of({"clamp", "wrap"});
  const Type type = parts.take_type();
  if (wrap < 0) return {};
  if (type == Type::kU32) {
    return wrap ? lane_operation<szext<uint32_t, true>>()
                : lane_operation<szext<uint32_t, false>>();
  }
  if (type != Type::kS32) return {};
  return wrap ? lane_operation<szext<int32_t, true>>() : lane_operation<szext<int32_t, false>>();
}

LaneOperation decode_bmsk(OpcodeParts& parts) {
  const int wrap = parts.take_one_of({"clamp", "wrap"});
  if (!parts.take("b32") || wrap < 0) return {};
  return wrap ? lane_operation<bmsk<true>>() : lane_operation<bmsk<false>>();
}

LaneOperation decode_elementwise(const std::string& name, OpcodeParts& parts) {
  using Bits32And64 = Types<Type::kB32, Type::kB64>;
  using ShiftTypes = Types<Type::kB16, Type::kB32, Type::kB64, Type::kU16, Type::kU32, Type::kU64,
                           Type::kS16, Type::kS32, Type::kS64>;
  if (name == "add") return decode_add(parts);
  if (name == "sub") return decode_sub(parts);
  if (name == "mul") return decode_mul(parts);
  if (name == "mad") return decode_mad(parts);
  if (name == "mul24") return decode_mul24(parts);
  if (name == "mad24") return decode_mad24(parts);
  if (name == "sad") return choose<Sad>(IntegerTypes(), parts.take_type());
  if (name == "div") return choose<Div>(IntegerTypes(), parts.take_type());
  if (name == "rem") return choose<Rem>(IntegerTypes(), parts.take_type());
  if (name == "abs") return choose<Abs>(SignedTypes(), parts.take_type());
  if (name == "neg") return choose<Neg>(SignedTypes(), parts.take_type());
  if (name == "min") return decode_extremum<Min, MinRelu>(parts);
  if (name == "max") return decode_extremum<Max, MaxRelu>(parts);
  if (name == "dp4a") return decode_dp4a(parts);
  if (name == "dp2a") return decode_dp2a(parts);
  if (name == "and") return choose<And>(BitTypes(), parts.take_type());
  if (name == "or") return choose<Or>(BitTypes(), parts.take_type());
  if (name == "xor") return choose<Xor>(BitTypes(), parts.take_type());
  if (name == "not") return choose<Not>(BitTypes(), parts.take_type());
  if (name == "cnot") return choose<Cnot>(BitTypes(), parts.take_type());
  if (name == "shl") return choose<Shl>(BitTypes(), parts.take_type());
  if (name == "shr") return choose<Shr>(ShiftTypes(), parts.take_type());
  if (name == "shf") return decode_shf(parts);
  if (name == "lop3") return parts.take("b32") ? lane_operation<lop3>() : LaneOperation();
  if (name == "prmt") return decode_prmt(parts);
  if (name == "bfe") return choose<Bfe>(WideIntegerTypes(), parts.take_type());
  if (name == "bfi") return choose<Bfi>(Bits32And64(), parts.take_type());
  if (name == "popc") return choose<Popc>(Bits32And64(), parts.take_type());
  if (name == "clz") return choose<Clz>(Bits32And64(), parts.take_type());
  if (name == "brev") return choose<Brev>(Bits32And64(), parts.take_type());
  if (name == "fns") return parts.take("b32") ? lane_operation<fns>() : LaneOperation();
  if (name == "szext") return decode_szext(parts);
  if (name == "bmsk") return decode_bmsk(parts);
  if (name == "bfind") {
    const bool shift = parts.take("shiftamt");
    const Type type = parts.take_type();
    return shift ? choose<BfindShift>(WideIntegerTypes(), type)
                 : choose<Bfind>(WideIntegerTypes(), type);
  }
  return {};
}

void decode_predicate_logic(Decoder& d, Instruction& i) {
  const std::string& name = d.statement().parts[0];
  if (d.statement().parts.size() != 2) d.unknown();
  const size_t num_operands = name == "not" ? 2 : 3;
  d.expect_operands(num_operands, num_operands);
  if (d.operand(0).negated) d.unknown("a result cannot be negated");
  for (size_t k = 0; k < num_operands; ++k) {
    i.r[k] = d.predicate(k);
    if (d.operand(k).negated) i.flags |= 1u << k;
  }
  if (name == "and") i.execute = execute_on_predicates<And>;
  if (name == "or") i.execute = execute_on_predicates<Or>;
  if (name == "xor") i.execute = execute_on_predicates<Xor>;
  if (name == "not") i.execute = execute_not_predicate;
}

}  // namespace

void decode_integer(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kInteger;
  const std::string& name = d.statement().parts[0];
  if (is_comparison(name)) return decode_comparison(d, i);
  if (d.has("pred")) return decode_predicate_logic(d, i);
  if (name == "addc" || name == "subc" || name == "madc" || d.has("cc")) return decode_carry(d, i);
  OpcodeParts parts(d);
  const LaneOperation operation = decode_elementwise(name, parts);
  parts.expect_none_left();
  set_operation(d, i, operation);
}

}  // namespace dsv4::simulator
