// SPDX-License-Identifier: Apache-2.0
#include "reduction.h"

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "error.h"
#include "number_formats.h"

namespace dsv4::simulator {
namespace {

using ptx::Type;

bool is_one_of(Type type, std::initializer_list<Type> types) {
  for (Type candidate : types) {
    if (type == candidate) return true;
  }
  return false;
}

template <class T>
T combined(Reduction reduction, T old, T by) {
  switch (reduction) {
    case Reduction::kAdd:
      return T(old + by);
    case Reduction::kMin:
      return by < old ? by : old;
    case Reduction::kMax:
      return old < by ? by : old;
    case Reduction::kInc:
      return old >= by ? T(0) : T(old + 1);
    case Reduction::kDec:
      return old == 0 || old > by ? by : T(old - 1);
    case Reduction::kAnd:
      return old & by;
    case Reduction::kOr:
      return old | by;
    case Reduction::kXor:
      return old ^ by;
    case Reduction::kNone:
      break;
  }
  fail("no reduction");
}

// The leading bits of x, the last one set if x has more: rounding the result to 16 bits is rounding
// x itself.
float rounded_to_odd(double x) {
  const float nearest = float(x);
  if (double(nearest) == x || !std::isfinite(nearest) || x != x) return nearest;
  uint32_t bits = bit_cast<uint32_t>(nearest);
  if (std::fabs(double(nearest)) > std::fabs(x)) --bits;
  return bit_cast<float>(bits | 1);
}

// Zeros are ordered by sign, a NaN loses against a number, two give the canonical one (seen on an
// H200).
template <class Number>
Number smaller_or_larger(Reduction reduction, Number old, Number by) {
  if (old != old) return by;
  if (by != by) return old;
  const bool less = by < old || (by == old && std::signbit(by));
  return less == (reduction == Reduction::kMin) ? by : old;
}

uint16_t combined_f16(Reduction reduction, uint16_t old, uint16_t by) {
  const float a = from_f16(old), b = from_f16(by);
  if (reduction != Reduction::kAdd) return to_f16(smaller_or_larger(reduction, a, b));
  return to_f16(rounded_to_odd(double(a) + double(b)));
}

uint16_t combined_bf16(Reduction reduction, uint16_t old, uint16_t by) {
  const float a = from_bf16(old), b = from_bf16(by);
  if (reduction != Reduction::kAdd) return to_bf16(smaller_or_larger(reduction, a, b));
  return to_bf16(rounded_to_odd(double(a) + double(b)));
}

// The ISA lets add.f32 flush subnormal numbers; an H200 keeps them.
float sum(float a, float b) {
  const float result = a + b;
  return result != result ? bit_cast<float>(0x7FFFFFFFu) : result;
}
double sum(double a, double b) { return a + b; }

template <class T, class Combine>
void for_elements(uint8_t* destination, const uint8_t* source, size_t bytes, Combine&& combine) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    T old, by;
    std::memcpy(&old, destination + at, sizeof(T));
    std::memcpy(&by, source + at, sizeof(T));
    const T result = combine(old, by);
    std::memcpy(destination + at, &result, sizeof(T));
  }
}

template <class T>
void reduce_integers(Reduction reduction, uint8_t* destination, const uint8_t* source,
                     size_t bytes) {
  for_elements<T>(destination, source, bytes,
                  [&](T old, T by) { return combined(reduction, old, by); });
}

}  // namespace

Reduction take_reduction(OpcodeParts& parts) {
  return Reduction(1 + parts.take_one_of({"add", "min", "max", "inc", "dec", "and", "or", "xor"}));
}

bool is_defined(Reduction reduction, Type type, bool global) {
  switch (reduction) {
    case Reduction::kAdd:
      return is_one_of(type, {Type::kU32, Type::kS32, Type::kU64}) ||
             (global && is_one_of(type, {Type::kF32, Type::kF64, Type::kF16, Type::kBF16}));
    case Reduction::kMin:
    case Reduction::kMax:
      return is_one_of(type, {Type::kU32, Type::kS32}) ||
             (global && is_one_of(type, {Type::kU64, Type::kS64, Type::kF16, Type::kBF16}));
    case Reduction::kInc:
    case Reduction::kDec:
      return type == Type::kU32;
    case Reduction::kAnd:
    case Reduction::kOr:
    case Reduction::kXor:
      return type == Type::kB32 || (global && type == Type::kB64);
    case Reduction::kNone:
      break;
  }
  return false;
}

void reduce(Reduction reduction, Type type, uint8_t* destination, const uint8_t* source,
            size_t bytes) {
  if (reduction == Reduction::kNone) {
    std::memcpy(destination, source, bytes);
    return;
  }
  switch (type) {
    case Type::kB32:
    case Type::kU32:
      return reduce_integers<uint32_t>(reduction, destination, source, bytes);
    case Type::kS32:
      if (reduction == Reduction::kAdd) {  // wraps
        return reduce_integers<uint32_t>(reduction, destination, source, bytes);
      }
      return reduce_integers<int32_t>(reduction, destination, source, bytes);
    case Type::kB64:
    case Type::kU64:
      return reduce_integers<uint64_t>(reduction, destination, source, bytes);
    case Type::kS64:
      return reduce_integers<int64_t>(reduction, destination, source, bytes);
    case Type::kF16:
      return for_elements<uint16_t>(destination, source, bytes, [&](uint16_t old, uint16_t by) {
        return combined_f16(reduction, old, by);
      });
    case Type::kBF16:
      return for_elements<uint16_t>(destination, source, bytes, [&](uint16_t old, uint16_t by) {
        return combined_bf16(reduction, old, by);
      });
    case Type::kF32:
      return for_elements<float>(destination, source, bytes,
                                 [](float old, float by) { return sum(old, by); });
    case Type::kF64:
      return for_elements<double>(destination, source, bytes,
                                  [](double old, double by) { return sum(old, by); });
    default:
      fail("no reduction of this type");
  }
}

}  // namespace dsv4::simulator
