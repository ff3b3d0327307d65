// SPDX-License-Identifier: Apache-2.0
// cvt: between all types of numbers.
//
// Every float and every integer of up to 53 bits is a double, and a wider integer is replaced by
// one that rounds alike, so one conversion from double serves all sources.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "elementwise.h"
#include "error.h"
#include "families.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

using ptx::Type;

enum class Rounding { kNone, kNearest, kZero, kDown, kUp, kAway };

// What an instruction converts, packed into Instruction::imm and flags.
constexpr uint32_t kFlush = 1;       // .ftz
constexpr uint32_t kSaturate = 2;    // .sat
constexpr uint32_t kRelu = 4;        // .relu
constexpr uint32_t kSatFinite = 8;   // .satfinite
constexpr uint32_t kToInteger = 16;  // the result is integral, even as a float: .rni and the like
enum Immediate : size_t { kRounding, kTo, kFrom };

Rounding rounding_of(const Instruction& i) { return Rounding(i.imm[kRounding]); }

double round_to_integral(double x, Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearest:
      return std::nearbyint(x);
    case Rounding::kZero:
      return std::trunc(x);
    case Rounding::kDown:
      return std::floor(x);
    case Rounding::kUp:
      return std::ceil(x);
    case Rounding::kAway:
      return std::round(x);
    case Rounding::kNone:
      break;
  }
  return x;
}

// --- floats of up to 32 bits ---

// Those without infinities are converted to with .satfinite only.
struct FloatFormat {
  int exponent_bits, mantissa_bits;
  uint32_t largest;  // finite code
  uint32_t nan;      // code that a NaN becomes
};

constexpr FloatFormat kF16{5, 10, 0x7BFF, 0x7FFF};
constexpr FloatFormat kBF16{8, 7, 0x7F7F, 0x7FFF};
constexpr FloatFormat kTF32{8, 10, 0x3FBFF, 0x3FFFF};
constexpr FloatFormat kF32{8, 23, 0x7F7FFFFF, 0x7FFFFFFF};
constexpr FloatFormat kE4M3{4, 3, 0x7E, 0x7F};
constexpr FloatFormat kE5M2{5, 2, 0x7B, 0x7F};
constexpr FloatFormat kE2M1{2, 1, 0x7, 0x7};
constexpr FloatFormat kE2M3{2, 3, 0x1F, 0x1F};
constexpr FloatFormat kE3M2{3, 2, 0x1F, 0x1F};

// The code of `x` in a format; overflow becomes infinity unless the rounding or .satfinite keeps it
// finite.
uint32_t encode(const FloatFormat& format, double x, Rounding rounding, bool satfinite) {
  if (x != x) return format.nan;
  const uint32_t sign = uint32_t(std::signbit(x)) << (format.exponent_bits + format.mantissa_bits);
  const double magnitude = std::fabs(x);
  const int lowest_exponent = 2 - (1 << (format.exponent_bits - 1));
  const int exponent =
      magnitude == 0 ? lowest_exponent : std::max(std::ilogb(magnitude), lowest_exponent);
  uint32_t code = 0xFFFFFFFF;
  if (std::isfinite(x) && exponent <= (1 << format.exponent_bits)) {
    // In units of the last place; the sign decides which way up is.
    const double units =
        std::fabs(round_to_integral(std::ldexp(x, format.mantissa_bits - exponent), rounding));
    code = (uint32_t(exponent - lowest_exponent) << format.mantissa_bits) + uint32_t(units);
  }
  if (code <= format.largest) return sign | code;
  const bool towards_zero =
      rounding == Rounding::kZero || rounding == (sign != 0 ? Rounding::kUp : Rounding::kDown);
  const bool stays_finite = satfinite || (towards_zero && std::isfinite(x));
  return sign | (stays_finite ? format.largest : format.largest + 1);
}

// The scale format, an exponent and nothing else: code c is 2^(c - 127), 255 is NaN. The sign does
// not matter, and rounding up is away from zero.
uint32_t encode_ue8m0(double x, Rounding rounding, bool satfinite) {
  if (x != x) return 0xFF;
  const double magnitude = std::fabs(x);
  if (magnitude <= 0x1p-127) return 0;
  if (!std::isfinite(x)) return satfinite ? 0xFE : 0xFF;
  const int exponent = std::ilogb(magnitude);
  const bool up = rounding == Rounding::kUp && magnitude != std::ldexp(1.0, exponent);
  const int code = exponent + 127 + int(up);
  return uint32_t(std::clamp(code, 0, satfinite ? 0xFE : 0xFF));
}

double apply_range(const Instruction& i, double x) {
  if (i.flags & kRelu) return x <= 0 ? 0.0 : x;
  if (i.flags & kSaturate) return x > 1 ? 1.0 : x > 0 ? x : 0.0;
  return x;
}

// --- one number to another ---

bool is_float(Type type) {
  return type == Type::kF16 || type == Type::kBF16 || type == Type::kF32 || type == Type::kF64;
}
bool is_signed_integer(Type type) {
  return type == Type::kS8 || type == Type::kS16 || type == Type::kS32 || type == Type::kS64;
}
bool is_integer(Type type) {
  return is_signed_integer(type) || type == Type::kU8 || type == Type::kU16 || type == Type::kU32 ||
         type == Type::kU64;
}

// The low bits of a word, extended to 64 as the type says.
uint64_t extended(Type type, uint64_t word) {
  const int unused = 64 - 8 * ptx::bytes_of(type);
  return is_signed_integer(type) ? uint64_t(int64_t(word << unused) >> unused)
                                 : word << unused >> unused;
}

// An integer as a double that rounds to fewer bits as the integer does: inexact ones are made odd.
double integer_as_double(Type type, uint64_t value) {
  const bool negative = is_signed_integer(type) && int64_t(value) < 0;
  uint64_t magnitude = negative ? 0 - value : value;
  if (magnitude >> 53 != 0) {
    constexpr uint64_t kLost = (1 << 11) - 1;
    magnitude = (magnitude & ~kLost) | ((magnitude & kLost) != 0 ? kLost + 1 : 0);
  }
  return negative ? -double(magnitude) : double(magnitude);
}

double float_as_double(const Instruction& i, Type type, uint64_t word) {
  switch (type) {
    case Type::kF16:
      return from_f16(uint16_t(word));
    case Type::kBF16:
      return from_bf16(uint16_t(word));
    case Type::kF32: {
      const float x = bit_cast<float>(uint32_t(word));
      return i.flags & kFlush ? flushed(x) : x;
    }
    default:
      return bit_cast<double>(word);
  }
}

// Rounds, then clamps to the type's range. What NaN becomes depends on the types.
uint64_t to_integer(const Instruction& i, double x) {
  const Type to = Type(i.imm[kTo]), from = Type(i.imm[kFrom]);
  const int bits = 8 * ptx::bytes_of(to);
  const int value_bits = is_signed_integer(to) ? bits - 1 : bits;
  const uint64_t largest = ~uint64_t(0) >> (64 - value_bits);
  if (x != x) {
    if (from != Type::kF64 && bits != 64) return 0;
    return is_signed_integer(to) ? ~largest : uint64_t(1) << (bits - 1);
  }
  const double rounded = round_to_integral(x, rounding_of(i));
  if (rounded >= std::ldexp(1.0, value_bits)) return largest;
  if (rounded >= 0) return uint64_t(rounded);
  if (!is_signed_integer(to)) return 0;
  return rounded <= -std::ldexp(1.0, value_bits) ? ~largest : uint64_t(int64_t(rounded));
}

// Wraps around, or with .sat clamps to the type's range.
uint64_t integer_to_integer(const Instruction& i, uint64_t value) {
  const Type to = Type(i.imm[kTo]);
  if (!(i.flags & kSaturate)) return value;
  const bool from_signed = is_signed_integer(Type(i.imm[kFrom])), to_signed = is_signed_integer(to);
  const int value_bits = 8 * ptx::bytes_of(to) - int(to_signed);
  const uint64_t largest = ~uint64_t(0) >> (64 - value_bits);
  if (from_signed && int64_t(value) < 0) {
    if (!to_signed) return 0;
    return uint64_t(std::max(int64_t(value), int64_t(~largest)));
  }
  return std::min(value, largest);
}

// The double nearest to a wide integer in the direction that .rz, .rm and .rp say.
double wide_integer_to_double(Rounding rounding, Type type, uint64_t value) {
  const bool negative = is_signed_integer(type) && int64_t(value) < 0;
  const uint64_t magnitude = negative ? 0 - value : value;
  double result = double(magnitude);
  if (rounding != Rounding::kNearest) {
    const bool is_larger = result >= 0x1p64 || uint64_t(result) > magnitude;
    const bool is_smaller = !is_larger && uint64_t(result) < magnitude;
    const bool away = rounding == (negative ? Rounding::kDown : Rounding::kUp);
    if (away && is_smaller) result = std::nextafter(result, 0x1p65);
    if (!away && is_larger) result = std::nextafter(result, 0.0);
  }
  return negative ? -result : result;
}

// A NaN of f64 keeps the sign and the upper bits of what it carries, made quiet (measured on an
// H200).
uint64_t narrow_nan(Type to, double x) {
  const uint64_t bits = bit_cast<uint64_t>(x);
  const auto shortened = [&](const FloatFormat& format) {
    const uint64_t exponent = uint64_t(format.largest) + 1;
    const uint64_t kept = bits << 12 >> (64 - format.mantissa_bits);
    const uint64_t quiet = uint64_t(1) << (format.mantissa_bits - 1);
    return bits >> 63 << (format.exponent_bits + format.mantissa_bits) | exponent | quiet | kept;
  };
  switch (to) {
    case Type::kF16:
      return shortened(kF16);
    case Type::kBF16:
      return shortened(kBF16);
    case Type::kF32:
      return shortened(kF32);
    default:
      return bits | uint64_t(1) << 51;
  }
}

uint64_t to_float(const Instruction& i, double x) {
  if (x != x && Type(i.imm[kFrom]) == Type::kF64 && !(i.flags & kSaturate)) {
    return narrow_nan(Type(i.imm[kTo]), x);
  }
  if (i.flags & kToInteger) x = round_to_integral(x, rounding_of(i));
  x = apply_range(i, x);
  const Rounding rounding = i.flags & kToInteger || rounding_of(i) == Rounding::kNone
                                ? Rounding::kNearest
                                : rounding_of(i);
  const bool satfinite = i.flags & kSatFinite;
  switch (Type(i.imm[kTo])) {
    case Type::kF16:
      return encode(kF16, x, rounding, satfinite);
    case Type::kBF16:
      return encode(kBF16, x, rounding, satfinite);
    case Type::kF32: {
      const uint32_t code = encode(kF32, x, rounding, satfinite);
      return i.flags & kFlush ? bit_cast<uint32_t>(flushed(bit_cast<float>(code))) : code;
    }
    default:
      return bit_cast<uint64_t>(x);
  }
}

// Of any two scalar types.
template <class To, class From>
To convert(const Instruction& i, From word) {
  const Type to = Type(i.imm[kTo]), from = Type(i.imm[kFrom]);
  if (is_float(from)) {
    const double x = float_as_double(i, from, word);
    return To(is_float(to) ? to_float(i, x) : to_integer(i, x));
  }
  const uint64_t value = extended(from, word);
  if (!is_float(to)) return To(extended(to, integer_to_integer(i, value)));
  if (to == Type::kF64 && ptx::bytes_of(from) == 8) {
    return To(bit_cast<uint64_t>(wide_integer_to_double(rounding_of(i), from, value)));
  }
  return To(to_float(i, integer_as_double(from, value)));
}

// --- conversions worth a function of their own ---

// The result extends as its type does to all of the register.
template <class To, class From>
struct Truncate {
  static Word<To> of(From x) { return Word<To>(To(x)); }
};

float f16_to_f32(F16 x) {
  const float value = from_f16(x.bits);
  return value != value ? bit_cast<float>(0x7FFFFFFFu) : value;
}
float bf16_to_f32(BF16 x) { return from_bf16(x.bits); }
F16 f32_to_f16(float x) { return {to_f16(x)}; }
BF16 f32_to_bf16(float x) { return {to_bf16(x)}; }
float s32_to_f32(int32_t x) { return float(x); }
float u32_to_f32(uint32_t x) { return float(x); }

// The first operand goes to the high half.
Pair<F16> f32_to_f16x2(float a, float b) { return {{to_f16(b)}, {to_f16(a)}}; }
Pair<BF16> f32_to_bf16x2(float a, float b) { return {{to_bf16(b)}, {to_bf16(a)}}; }
uint16_t f32_to_e4m3x2(float a, float b) { return uint16_t(to_e4m3(a) << 8 | to_e4m3(b)); }

// --- packed types ---

enum class PackedType { kF16x2, kBF16x2, kE4M3x2, kE5M2x2, kE2M1x2, kE2M3x2, kE3M2x2, kUE8M0x2 };

struct PackedInfo {
  const char* name;
  int element_bits;
  const FloatFormat* format;  // none: ue8m0
};
constexpr PackedInfo kPacked[] = {
    {"f16x2", 16, &kF16},  {"bf16x2", 16, &kBF16}, {"e4m3x2", 8, &kE4M3}, {"e5m2x2", 8, &kE5M2},
    {"e2m1x2", 4, &kE2M1}, {"e2m3x2", 8, &kE2M3},  {"e3m2x2", 8, &kE3M2}, {"ue8m0x2", 8, nullptr},
};
const PackedInfo& info_of(PackedType type) { return kPacked[int(type)]; }

uint32_t encode_packed(const Instruction& i, double high, double low) {
  const PackedInfo& to = kPacked[i.imm[kTo]];
  const auto code = [&](double x) {
    if (to.format == nullptr) return encode_ue8m0(x, rounding_of(i), i.flags & kSatFinite);
    return encode(*to.format, apply_range(i, x), rounding_of(i), i.flags & kSatFinite);
  };
  return code(high) << to.element_bits | code(low);
}

uint32_t pack_f32(const Instruction& i, float a, float b) { return encode_packed(i, a, b); }
uint32_t pack_f16x2(const Instruction& i, Pair<F16> a) {
  return encode_packed(i, from_f16(a.high.bits), from_f16(a.low.bits));
}
uint32_t pack_bf16x2(const Instruction& i, Pair<BF16> a) {
  return encode_packed(i, from_bf16(a.high.bits), from_bf16(a.low.bits));
}

float decode_element(PackedType type, uint8_t code) {
  switch (type) {
    case PackedType::kE4M3x2:
      return from_e4m3(code);
    case PackedType::kE5M2x2:
      return from_e5m2(code);
    case PackedType::kE2M1x2:
      return from_e2m1(code);
    case PackedType::kE2M3x2:
      return from_e2m3(code);
    case PackedType::kE3M2x2:
      return from_e3m2(code);
    case PackedType::kUE8M0x2:
      return from_ue8m0(code);
    default:
      fail("this type is not of 8 bits");
  }
}

// All these values are numbers of f16, and those of ue8m0 of bf16.
uint32_t unpack(const Instruction& i, uint32_t word) {
  const PackedType from = PackedType(i.imm[kFrom]);
  const int bits = info_of(from).element_bits;
  const uint32_t ones = (1u << bits) - 1;
  return encode_packed(i, decode_element(from, uint8_t(word >> bits & ones)),
                       decode_element(from, uint8_t(word & ones)));
}

// The same by a table, for those types that whole caches are made of.
template <PackedType kFrom>
std::array<uint16_t, 256> half_codes() {
  const FloatFormat& to = kFrom == PackedType::kUE8M0x2 ? kBF16 : kF16;
  std::array<uint16_t, 256> codes;
  for (size_t code = 0; code < codes.size(); ++code) {
    const float value = decode_element(kFrom, uint8_t(code));
    codes[code] = uint16_t(encode(to, value, Rounding::kNearest, false));
  }
  return codes;
}

template <PackedType kFrom>
uint32_t unpack_bytes(uint16_t word) {
  static const std::array<uint16_t, 256> kCodes = half_codes<kFrom>();
  return uint32_t(kCodes[word >> 8]) << 16 | kCodes[word & 0xFF];
}

// The low 13 bits of a tf32 are zero. (.rna gives other NaN on an H200, and for a NaN whose upper
// bits are zero an infinity.)
uint32_t f32_to_tf32(const Instruction& i, float a) {
  const uint32_t code = encode(kTF32, apply_range(i, a), rounding_of(i), i.flags & kSatFinite);
  return code << 13;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt-pack
// imm[kTo] is the number of bits of an element, imm[kFrom] whether it is unsigned.
uint32_t pack_integers(const Instruction& i, int32_t a, int32_t b, uint32_t c) {
  const int bits = int(i.imm[kTo]);
  const bool is_unsigned = i.imm[kFrom];
  const int32_t least = is_unsigned ? 0 : -(1 << (bits - 1));
  const int32_t most = (1 << (is_unsigned ? bits : bits - 1)) - 1;
  const uint32_t ones = (1u << bits) - 1;
  const uint32_t packed = (uint32_t(std::clamp(a, least, most)) & ones) << bits |
                          (uint32_t(std::clamp(b, least, most)) & ones);
  return bits == 16 ? packed : packed | c << 2 * bits;
}
uint32_t pack_two_integers(const Instruction& i, int32_t a, int32_t b) {
  return pack_integers(i, a, b, 0);
}

// --- decoding ---

int packed_type(const std::string& name) {
  for (int k = 0; k < int(std::size(kPacked)); ++k) {
    if (name == kPacked[k].name) return k;
  }
  return -1;
}

void decode_pack_integers(Decoder& d, Instruction& i, OpcodeParts& parts) {
  const bool saturates = parts.take("sat");
  const std::string to = parts.take_next();
  const int bits = to.size() < 2 ? 0 : std::atoi(to.c_str() + 1);
  if (!saturates || (to[0] != 'u' && to[0] != 's') || !parts.take("s32")) d.unknown();
  if (bits != 2 && bits != 4 && bits != 8 && bits != 16) d.unknown();
  if ((bits == 16) == parts.take("b32")) d.unknown();
  parts.expect_none_left();
  i.imm[kTo] = bits;
  i.imm[kFrom] = to[0] == 'u';
  set_operation(d, i,
                bits == 16 ? lane_operation<pack_two_integers>() : lane_operation<pack_integers>());
}

bool is_half(PackedType type) { return type == PackedType::kF16x2 || type == PackedType::kBF16x2; }

// Whether values may be rounded and limited so on the way to a type.
bool is_legal_narrowing(const Instruction& i, PackedType to) {
  const bool nearest = rounding_of(i) == Rounding::kNearest;
  const bool to_zero = rounding_of(i) == Rounding::kZero;
  if (is_half(to)) return nearest || to_zero;
  if (to != PackedType::kUE8M0x2) return nearest && (i.flags & kSatFinite);
  return (to_zero || rounding_of(i) == Rounding::kUp) && !(i.flags & kRelu);
}

// Of two f32.
LaneOperation packing(const Instruction& i, PackedType to) {
  if (!is_legal_narrowing(i, to)) return {};
  if (rounding_of(i) == Rounding::kNearest && !(i.flags & kRelu)) {
    if (to == PackedType::kE4M3x2) return lane_operation<f32_to_e4m3x2>();
    const bool satfinite = i.flags & kSatFinite;
    if (to == PackedType::kF16x2 && !satfinite) return lane_operation<f32_to_f16x2>();
    if (to == PackedType::kBF16x2 && !satfinite) return lane_operation<f32_to_bf16x2>();
  }
  return lane_operation<pack_f32>();
}

// Of two halves.
LaneOperation narrowing(const Instruction& i, PackedType to, PackedType from) {
  if (!is_legal_narrowing(i, to)) return {};
  const bool to_scale = to == PackedType::kUE8M0x2;
  if (from == PackedType::kBF16x2) {
    return to_scale ? lane_operation<pack_bf16x2>() : LaneOperation();
  }
  const bool known =
      to == PackedType::kE4M3x2 || to == PackedType::kE5M2x2 || to == PackedType::kE2M1x2;
  return known ? lane_operation<pack_f16x2>() : LaneOperation();
}

// To two halves, which represent all values of the smaller types.
LaneOperation widening(const Instruction& i, PackedType to, PackedType from) {
  const bool from_scale = from == PackedType::kUE8M0x2;
  const bool legal = rounding_of(i) == Rounding::kNearest && !(i.flags & kSatFinite) &&
                     !(from_scale && (i.flags & kRelu));
  const bool fits = to == (from_scale ? PackedType::kBF16x2 : PackedType::kF16x2);
  if (!legal || !fits) return {};
  if (!(i.flags & kRelu)) {
    if (from == PackedType::kE4M3x2) return lane_operation<unpack_bytes<PackedType::kE4M3x2>>();
    if (from == PackedType::kUE8M0x2) return lane_operation<unpack_bytes<PackedType::kUE8M0x2>>();
  }
  return lane_operation<unpack>();
}

LaneOperation packed_operation(Instruction& i, const std::string& to_name,
                               const std::string& from_name) {
  const PackedType to = PackedType(packed_type(to_name));
  i.imm[kTo] = int(to);
  if (from_name == "f32") return packing(i, to);
  i.imm[kFrom] = packed_type(from_name);
  if (i.imm[kFrom] < 0) return {};
  const PackedType from = PackedType(i.imm[kFrom]);
  return is_half(from) ? narrowing(i, to, from) : widening(i, to, from);
}

LaneOperation tf32_operation(const Instruction& i) {
  const Rounding rounding = rounding_of(i);
  const bool away = rounding == Rounding::kAway;
  if (!away && rounding != Rounding::kNearest && rounding != Rounding::kZero) return {};
  if (away && (i.flags & kRelu)) return {};
  return lane_operation<f32_to_tf32>();
}

template <class To>
LaneOperation truncation_to(Type from) {
  switch (from) {
    case Type::kU8:
      return lane_operation<Truncate<To, uint8_t>::of>();
    case Type::kU16:
      return lane_operation<Truncate<To, uint16_t>::of>();
    case Type::kU32:
      return lane_operation<Truncate<To, uint32_t>::of>();
    case Type::kU64:
      return lane_operation<Truncate<To, uint64_t>::of>();
    case Type::kS8:
      return lane_operation<Truncate<To, int8_t>::of>();
    case Type::kS16:
      return lane_operation<Truncate<To, int16_t>::of>();
    case Type::kS32:
      return lane_operation<Truncate<To, int32_t>::of>();
    default:
      return lane_operation<Truncate<To, int64_t>::of>();
  }
}

LaneOperation truncation(Type to, Type from) {
  switch (to) {
    case Type::kU8:
      return truncation_to<uint8_t>(from);
    case Type::kU16:
      return truncation_to<uint16_t>(from);
    case Type::kU32:
      return truncation_to<uint32_t>(from);
    case Type::kU64:
      return truncation_to<uint64_t>(from);
    case Type::kS8:
      return truncation_to<int8_t>(from);
    case Type::kS16:
      return truncation_to<int16_t>(from);
    case Type::kS32:
      return truncation_to<int32_t>(from);
    default:
      return truncation_to<int64_t>(from);
  }
}

// Operations of common conversions, whose registers are as wide as their types.
LaneOperation common_operation(const Instruction& i, Type to, Type from) {
  if (i.flags != 0) return {};
  if (is_integer(to) && is_integer(from)) return truncation(to, from);
  const bool nearest = rounding_of(i) == Rounding::kNearest;
  if (to == Type::kF32 && from == Type::kF16) return lane_operation<f16_to_f32>();
  if (to == Type::kF32 && from == Type::kBF16) return lane_operation<bf16_to_f32>();
  if (to == Type::kF16 && from == Type::kF32 && nearest) return lane_operation<f32_to_f16>();
  if (to == Type::kBF16 && from == Type::kF32 && nearest) return lane_operation<f32_to_bf16>();
  if (to == Type::kF32 && from == Type::kS32 && nearest) return lane_operation<s32_to_f32>();
  if (to == Type::kF32 && from == Type::kU32 && nearest) return lane_operation<u32_to_f32>();
  return {};
}

// Rounding is required where a conversion can lose precision and forbidden where it cannot.
void check_rounding(const Decoder& d, const Instruction& i, Type to, Type from, bool integral) {
  const bool has_rounding = rounding_of(i) != Rounding::kNone;
  bool wants_integral = false, wants_rounding = false;
  if (is_float(from) && is_integer(to)) {
    wants_integral = true;
  } else if (is_float(from) && to == from) {
    wants_integral = integral;  // optional: cvt.f32.f32 is for .sat and .ftz
  } else if (is_float(from) && is_float(to)) {
    const bool exact = ptx::bytes_of(to) > ptx::bytes_of(from);
    wants_rounding = !exact;
  } else if (is_float(to)) {
    wants_rounding = true;
  }
  if (has_rounding != (wants_integral || wants_rounding) || integral != wants_integral) {
    d.unknown("this rounding does not go with these types");
  }
}

// Registers may be wider than the types.
LaneOperation scalar_operation(const Decoder& d, Instruction& i, Type to, Type from) {
  const bool wide_result = ptx::bytes_of(to) == 8 || d.is_64bit(d.operand(0));
  const bool wide_source = ptx::bytes_of(from) == 8 || d.is_64bit(d.operand(1));
  const bool as_wide_as_types =
      wide_result == (ptx::bytes_of(to) == 8) && wide_source == (ptx::bytes_of(from) == 8);
  if (as_wide_as_types) {
    if (LaneOperation operation = common_operation(i, to, from); operation.execute != nullptr) {
      return operation;
    }
  }
  if (wide_result) {
    return wide_source ? lane_operation<convert<uint64_t, uint64_t>>()
                       : lane_operation<convert<uint64_t, uint32_t>>();
  }
  return wide_source ? lane_operation<convert<uint32_t, uint64_t>>()
                     : lane_operation<convert<uint32_t, uint32_t>>();
}

// Whether all values of one integer type are values of another.
bool contains(Type to, Type from) {
  const int to_bits = 8 * ptx::bytes_of(to), from_bits = 8 * ptx::bytes_of(from);
  if (is_signed_integer(to) == is_signed_integer(from)) return to_bits >= from_bits;
  return is_signed_integer(to) && to_bits > from_bits;
}

void check_flags(const Decoder& d, const Instruction& i, Type to, Type from) {
  if ((i.flags & kFlush) && to != Type::kF32 && from != Type::kF32) d.unknown(".ftz is of f32");
  if (i.flags & (kRelu | kSatFinite)) {
    const bool to_half = to == Type::kF16 || to == Type::kBF16;
    const bool rounds = rounding_of(i) == Rounding::kNearest || rounding_of(i) == Rounding::kZero;
    if (!to_half || from != Type::kF32 || !rounds) d.unknown();
  }
  if (i.flags & kSaturate) {
    if (to == Type::kBF16 || from == Type::kBF16) d.unknown(".sat is not of bf16");
    if (is_integer(to) && is_integer(from) && contains(to, from)) {
      d.unknown(".sat where nothing can overflow");
    }
  }
  const bool bf16 = to == Type::kBF16 || from == Type::kBF16;
  if (bf16 && (ptx::bytes_of(to) == 1 || ptx::bytes_of(from) == 1)) d.unknown();
}

}  // namespace

void decode_convert(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kConvert;
  OpcodeParts parts(d);
  if (parts.take("pack")) return decode_pack_integers(d, i, parts);

  const int integral = parts.take_one_of({"rni", "rzi", "rmi", "rpi"});
  const int rounding = parts.take_one_of({"rn", "rz", "rm", "rp", "rna"});
  if (integral >= 0 && rounding >= 0) d.unknown();
  i.imm[kRounding] = 1 + std::max(integral, rounding);
  if (parts.take("ftz")) i.flags |= kFlush;
  if (parts.take("sat")) i.flags |= kSaturate;
  if (parts.take("relu")) i.flags |= kRelu;
  if (parts.take("satfinite")) i.flags |= kSatFinite;
  const std::string to = parts.take_next(), from = parts.take_next();
  parts.expect_none_left();

  if (packed_type(to) >= 0) {
    if (integral >= 0 || (i.flags & (kFlush | kSaturate))) d.unknown();
    return set_operation(d, i, packed_operation(i, to, from));
  }
  if (to == "tf32") {
    if (from != "f32" || integral >= 0 || (i.flags & (kFlush | kSaturate))) d.unknown();
    return set_operation(d, i, tf32_operation(i));
  }
  const Type to_type = ptx::type_of(to), from_type = ptx::type_of(from);
  if (!(is_float(to_type) || is_integer(to_type)) ||
      !(is_float(from_type) || is_integer(from_type)) || rounding_of(i) == Rounding::kAway) {
    d.unknown();
  }
  check_rounding(d, i, to_type, from_type, integral >= 0);
  check_flags(d, i, to_type, from_type);
  if (integral >= 0 && is_float(to_type)) i.flags |= kToInteger;
  i.imm[kTo] = int64_t(to_type);
  i.imm[kFrom] = int64_t(from_type);
  set_operation(d, i, scalar_operation(d, i, to_type, from_type));
}

}  // namespace dsv4::simulator
