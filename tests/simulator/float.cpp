// SPDX-License-Identifier: Apache-2.0
// Floating-point arithmetic: f16, bf16, f32, f64 and the packed types.
//
// What the ISA rounds is rounded as it says. What it calls .approx is rounded to the nearest here,
// which is within its bounds but not what hardware gives bit for bit. A NaN that f16, bf16 or f32
// arithmetic makes is the canonical one.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions
#include <cfenv>
#include <cmath>
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

// --- reading and writing values ---

float canonical(float x) { return x != x ? bit_cast<float>(0x7FFFFFFFu) : x; }

// A float that rounds to fewer bits as `x` does: inexact ones are made odd.
float to_odd_float(double x) {
  const float nearest = float(x);
  if (double(nearest) == x || x != x) return nearest;
  uint32_t bits = bit_cast<uint32_t>(nearest);
  if (std::fabs(double(nearest)) > std::fabs(x)) --bits;
  return bit_cast<float>(bits | 1);
}

// The same of a sum of doubles that may need more bits than a double has.
double sum_to_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double a_part = sum - b, b_part = sum - a_part;
  const double error = (a - a_part) + (b - b_part);
  uint64_t bits = bit_cast<uint64_t>(sum);
  if (error == 0 || (bits & 1) != 0) return sum;
  const bool away_from_zero = (error > 0) == (sum > 0);
  return bit_cast<double>(away_from_zero ? bits + 1 : bits - 1);
}

// How a type is read, written and computed with. `kFlush`: .ftz. What is written may depend on what
// was read.
template <class T>
struct Real;

template <>
struct Real<float> {
  using Wide = float;
  template <bool kFlush>
  static float read(float x) {
    return kFlush ? flushed(x) : x;
  }
  template <bool kFlush, class... Operands>
  static float write(float x, Operands...) {
    return canonical(kFlush ? flushed(x) : x);
  }
};

template <>
struct Real<double> {
  using Wide = double;
  template <bool kFlush>
  static double read(double x) {
    return x;
  }
  // A NaN of f64 is that of the last of these operands that is one, made quiet. Their order, here
  // and where this is called, was measured on an H200.
  template <bool kFlush, class... Operands>
  static double write(double x, Operands... operands) {
    ((operands != operands ? void(x = quiet(operands)) : void()), ...);
    return x;
  }
  static double quiet(double x) {
    return x != x ? bit_cast<double>(bit_cast<uint64_t>(x) | uint64_t(1) << 51) : x;
  }
};

// Sums and products of f16 are exact in float, or rounding twice does no harm.
template <>
struct Real<F16> {
  using Wide = float;
  template <bool kFlush>
  static float read(F16 x) {
    const float value = from_f16(x.bits);
    return kFlush ? flushed_f16(value) : value;
  }
  template <bool kFlush, class... Operands>
  static F16 write(float x, Operands...) {
    // Denormal after it has been rounded to 11 bits, as below.
    constexpr float kRoundsToNormal = 0x1p-14f - 0x1p-26f;
    if (kFlush && std::fabs(x) < kRoundsToNormal) return {to_f16(std::copysign(0.0f, x))};
    return {to_f16(x)};
  }
};

// Products of bf16 may be denormal as floats, and are rounded once only.
template <>
struct Real<BF16> {
  using Wide = double;
  template <bool kFlush>
  static double read(BF16 x) {
    const float value = from_bf16(x.bits);
    return kFlush ? flushed(value) : value;
  }
  template <bool kFlush, class... Operands>
  static BF16 write(double x, Operands...) {
    const float odd = to_odd_float(x);
    return {to_bf16(kFlush ? flushed(odd) : odd)};
  }
};

template <class T, bool kFlush>
auto read(T x) {
  return Real<T>::template read<kFlush>(x);
}
template <class T, bool kFlush, class... Operands>
T write(typename Real<T>::Wide x, Operands... operands) {
  return Real<T>::template write<kFlush>(x, operands...);
}

// a * b + c in f32. With .ftz, a result is flushed if it is denormal after it has been rounded to
// 24 bits (measured on an H200). So the smallest normal number may have to go: what gave it is
// rounded once more, far from the denormals.
template <bool kFlush>
float write_product(float rounded, float a, float b, float c) {
  constexpr float kSmallest = 0x1p-126f, kScale = 0x1p64f;
  if (kFlush && std::fabs(rounded) == kSmallest) {
    (std::fabs(a) < std::fabs(b) ? a : b) *= kScale;
    if (std::fabs(std::fma(a, b, c * kScale)) < kSmallest * kScale) {
      return std::copysign(0.0f, rounded);
    }
  }
  return write<float, kFlush>(rounded);
}

// --- arithmetic ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-add
struct Add {
  template <class T, bool kFlush>
  static T of(T a, T b) {
    return write<T, kFlush>(read<T, kFlush>(a) + read<T, kFlush>(b), a, b);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-sub
struct Sub {
  template <class T, bool kFlush>
  static T of(T a, T b) {
    return write<T, kFlush>(read<T, kFlush>(a) - read<T, kFlush>(b), a, b);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-mul
struct Mul {
  template <class T, bool kFlush>
  static T of(T a, T b) {
    const auto x = read<T, kFlush>(a), y = read<T, kFlush>(b);
    if constexpr (std::is_same_v<T, float>) {
      return write_product<kFlush>(x * y, x, y, 0.0f);
    } else {
      return write<T, kFlush>(x * y, a, b);
    }
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-fma
struct Fma {
  template <class T, bool kFlush>
  static T of(T a, T b, T c) {
    const auto x = read<T, kFlush>(a), y = read<T, kFlush>(b), z = read<T, kFlush>(c);
    if constexpr (sizeof(T) == 2) {
      const double sum = sum_to_odd(double(x) * double(y), double(z));
      return write<T, kFlush>(typename Real<T>::Wide(to_odd_float(sum)));
    } else if constexpr (std::is_same_v<T, float>) {
      return write_product<kFlush>(std::fma(x, y, z), x, y, z);
    } else {
      return write<T, kFlush>(std::fma(x, y, z), a, c, b);
    }
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-div
struct Div {
  template <class T, bool kFlush>
  static T of(T a, T b) {
    return write<T, kFlush>(read<T, kFlush>(a) / read<T, kFlush>(b));
  }
};

// a * (1 / b), whose reciprocal is 0 for large b.
struct DivApprox {
  template <class T, bool kFlush>
  static T of(T a, T b) {
    const T x = read<T, kFlush>(a), y = read<T, kFlush>(b);
    if (std::fabs(y) > 0x1p126f && std::isfinite(y)) {
      return write<T, kFlush>(x * std::copysign(0.0f, y));
    }
    return write<T, kFlush>(x / y);
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rcp
struct Rcp {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(T(1) / read<T, kFlush>(a));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-sqrt
struct Sqrt {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(std::sqrt(read<T, kFlush>(a)));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rsqrt
struct Rsqrt {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(T(1.0 / std::sqrt(double(read<T, kFlush>(a)))));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rcp-approx-ftz-f64
// Of the high word; the low word of the result is 0.
double high_word(double x) { return bit_cast<double>(bit_cast<uint64_t>(x) & ~0xFFFFFFFFull); }
double flushed_high_word(double x) {
  if (x != x) return bit_cast<double>(0x7FFFFFFF00000000ull);
  return high_word(std::fabs(x) < 0x1p-1022 ? std::copysign(0.0, x) : x);
}
double rcp_of_high_word(double a) { return flushed_high_word(1.0 / flushed_high_word(a)); }

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rsqrt-approx-ftz-f64
double rsqrt_of_high_word(double a) {
  return flushed_high_word(1.0 / std::sqrt(flushed_high_word(a)));
}

// --- functions of one value ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
struct Ex2 {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(std::exp2(float(read<T, kFlush>(a))));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-lg2
struct Lg2 {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(std::log2(read<T, kFlush>(a)));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-sin
struct Sin {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(std::sin(read<T, kFlush>(a)));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-cos
struct Cos {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(std::cos(read<T, kFlush>(a)));
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-tanh
struct Tanh {
  template <class T, bool kFlush>
  static T of(T a) {
    return write<T, kFlush>(std::tanh(float(read<T, kFlush>(a))));
  }
};

// Signs are bits, but of NaN they stay as they are.
template <class T>
constexpr Word<T> kSignBit = Word<T>(1) << (8 * sizeof(T) - 1);

template <class T, bool kFlush, class Change>
T change_sign(T a, Change change) {
  const auto x = read<T, kFlush>(a);
  if (x != x) return write<T, kFlush>(x, a);
  if (kFlush && x == 0) return from_word<T>(change(to_word(a) & kSignBit<T>));
  return from_word<T>(change(to_word(a)));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-abs
struct Abs {
  template <class T, bool kFlush>
  static T of(T a) {
    return change_sign<T, kFlush>(a, [](Word<T> bits) { return bits & ~kSignBit<T>; });
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-neg
struct Neg {
  template <class T, bool kFlush>
  static T of(T a) {
    return change_sign<T, kFlush>(a, [](Word<T> bits) { return bits ^ kSignBit<T>; });
  }
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-copysign
// The sign is a's.
template <class T>
T copysign(T a, T b) {
  return std::copysign(b, a);
}

// --- minimum and maximum ---

// -0 is less than +0. A NaN gives the other value, or with kNan a NaN.
template <bool kMaximum, bool kNan, class Wide>
Wide extremum(Wide a, Wide b) {
  if (a != a) return kNan ? a : b;
  if (b != b) return kNan ? b : a;
  if (a == b) return std::signbit(a) == kMaximum ? b : a;
  return (a > b) == kMaximum ? a : b;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-min
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
template <bool kMaximum, bool kNan>
struct Extremum {
  template <class T, bool kFlush>
  static T of(T a, T b) {
    const auto x = extremum<kMaximum, kNan>(read<T, kFlush>(a), read<T, kFlush>(b));
    return write<T, kFlush>(x, x);
  }
};

template <bool kMaximum, bool kNan, bool kFlush>
float extremum_of_three(float a, float b, float c) {
  using Two = Extremum<kMaximum, kNan>;
  return Two::template of<float, kFlush>(Two::template of<float, kFlush>(a, b), c);
}

// --- mixed precision ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#mixed-precision-floating-point-instructions
template <class T>
float mixed_add(T a, float c) {
  return canonical(float(read<T, false>(a)) + c);
}
template <class T>
float mixed_sub(T a, float c) {
  return canonical(float(read<T, false>(a)) - c);
}
template <class T>
float mixed_fma(T a, T b, float c) {
  return canonical(std::fma(float(read<T, false>(a)), float(read<T, false>(b)), c));
}

// --- properties ---

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-testp
enum class Property { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

template <class T>
bool has_property(T x, Property property) {
  const int kind = std::fpclassify(x);
  switch (property) {
    case Property::kFinite:
      return kind != FP_INFINITE && kind != FP_NAN;
    case Property::kInfinite:
      return kind == FP_INFINITE;
    case Property::kNumber:
      return kind != FP_NAN;
    case Property::kNotANumber:
      return kind == FP_NAN;
    case Property::kNormal:
      return kind == FP_NORMAL || kind == FP_ZERO;
    case Property::kSubnormal:
      return kind == FP_SUBNORMAL;
  }
  return false;
}

template <class T>
Outcome execute_testp(Warp& warp, const Instruction& i, LaneMask lanes) {
  const Word<T>* a = warp.lanes<Word<T>>(i.r[1]);
  LaneMask holds = 0;
  for_lanes(lanes, [&](int lane) {
    holds |= LaneMask(has_property(from_word<T>(a[lane]), Property(i.imm[0]))) << lane;
  });
  write_predicate(warp, i.r[0], lanes, holds);
  return Outcome::kDone;
}

// --- modifiers of results ---

// .sat: to [0, 1], a NaN to +0.
struct Saturate {
  template <class T>
  static T of(T x) {
    const auto value = read<T, false>(x);
    return value > 1 ? write<T, false>(1) : value > 0 ? x : T{0};
  }
  template <class T>
  static Pair<T> of(Pair<T> x) {
    return {of(x.low), of(x.high)};
  }
};

// .relu: negative values to +0; a NaN stays one.
struct Relu {
  template <class T>
  static T of(T x) {
    return read<T, false>(x) <= 0 ? T{0} : x;
  }
  template <class T>
  static Pair<T> of(Pair<T> x) {
    return {of(x.low), of(x.high)};
  }
};

// The rounding of the host while this lives. What is computed meanwhile is read from and written to
// memory that fesetround might change, for all that the compiler knows, so none of it moves out.
class HostRounding {
 public:
  explicit HostRounding(int mode) { std::fesetround(mode); }
  ~HostRounding() { std::fesetround(FE_TONEAREST); }
};

struct Modifiers {
  int rounding = FE_TONEAREST;
  bool flush = false, saturate = false, relu = false;
};

// With the rounding that imm[0] says.
template <auto kFunction>
Outcome execute_rounded(Warp& warp, const Instruction& i, LaneMask lanes) {
  const HostRounding rounding(int(i.imm[0]));
  return Elementwise<kFunction>::execute(warp, i, lanes);
}

// And with the result changed once more.
template <auto kFunction, class Change>
Outcome execute_changed(Warp& warp, const Instruction& i, LaneMask lanes) {
  using Result = typename Elementwise<kFunction>::ResultType;
  execute_rounded<kFunction>(warp, i, lanes);
  Word<Result>* result = warp.lanes<Word<Result>>(i.r[0]);
  write_lanes(result, lanes,
              [=](int lane) { return to_word(Change::of(from_word<Result>(result[lane]))); });
  return Outcome::kDone;
}

template <class T>
constexpr bool is_half = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;
template <class T>
constexpr bool is_half<Pair<T>> = is_half<T>;
template <class T>
constexpr bool may_saturate = std::is_same_v<T, float> || std::is_same_v<T, F16>;
template <class T>
constexpr bool may_saturate<Pair<T>> = std::is_same_v<T, F16>;

// `kFunction` with modifiers of its result; no operation where the ISA has none.
template <auto kFunction>
LaneOperation modified(const Modifiers& m) {
  using Result = typename Elementwise<kFunction>::ResultType;
  if (is_half<Result> && m.rounding != FE_TONEAREST) return {};
  if (m.relu) {
    if constexpr (is_half<Result>) {
      if (!m.saturate) return lane_operation<kFunction>(execute_changed<kFunction, Relu>);
    }
    return {};
  }
  if (m.saturate) {
    if constexpr (may_saturate<Result>) {
      return lane_operation<kFunction>(execute_changed<kFunction, Saturate>);
    }
    return {};
  }
  if (m.rounding == FE_TONEAREST) return lane_operation<kFunction>();
  return lane_operation<kFunction>(execute_rounded<kFunction>);
}

// --- decoding ---

template <class Operation, class T, bool kFlush = false>
LaneOperation on(const Modifiers& m) {
  return modified<&Operation::template of<T, kFlush>>(m);
}
template <class Operation, class T, bool kFlush = false>
LaneOperation on_packed(const Modifiers& m) {
  return modified<Packed<&Operation::template of<T, kFlush>>::of>(m);
}

template <class Operation>
LaneOperation choose_f32(Type type, const Modifiers& m) {
  if (type != Type::kF32) return {};
  return m.flush ? on<Operation, float, true>(m) : on<Operation, float>(m);
}

template <class Operation>
LaneOperation choose_f32_or_f64(Type type, const Modifiers& m) {
  if (type == Type::kF64) return m.flush ? LaneOperation() : on<Operation, double>(m);
  return choose_f32<Operation>(type, m);
}

template <class Operation>
LaneOperation choose_half(Type type, const Modifiers& m) {
  switch (type) {
    case Type::kF16:
      return m.flush ? on<Operation, F16, true>(m) : on<Operation, F16>(m);
    case Type::kF16x2:
      return m.flush ? on_packed<Operation, F16, true>(m) : on_packed<Operation, F16>(m);
    case Type::kBF16:
      return m.flush ? LaneOperation() : on<Operation, BF16>(m);
    case Type::kBF16x2:
      return m.flush ? LaneOperation() : on_packed<Operation, BF16>(m);
    default:
      return {};
  }
}

template <class Operation>
LaneOperation choose_scalar_or_half(Type type, const Modifiers& m) {
  if (type == Type::kF32 || type == Type::kF64) return choose_f32_or_f64<Operation>(type, m);
  return choose_half<Operation>(type, m);
}

template <class Operation>
LaneOperation choose_any(Type type, const Modifiers& m) {
  if (type != Type::kF32x2) return choose_scalar_or_half<Operation>(type, m);
  return m.flush ? on_packed<Operation, float, true>(m) : on_packed<Operation, float>(m);
}

// .f32.f16 and .f32.bf16: the last operand and the result are f32.
template <auto kOnF16, auto kOnBF16>
LaneOperation choose_mixed(Type type, const Modifiers& m) {
  if (m.flush) return {};
  if (type == Type::kF16) return modified<kOnF16>(m);
  if (type == Type::kBF16) return modified<kOnBF16>(m);
  return {};
}

// add, sub, mul and fma: what the types allow is what they have in common.
LaneOperation decode_arithmetic(const std::string& name, Type type, Type second,
                                const Modifiers& m) {
  if (second != Type::kNone) {
    if (type != Type::kF32) return {};
    if (name == "add") return choose_mixed<mixed_add<F16>, mixed_add<BF16>>(second, m);
    if (name == "sub") return choose_mixed<mixed_sub<F16>, mixed_sub<BF16>>(second, m);
    if (name == "fma") return choose_mixed<mixed_fma<F16>, mixed_fma<BF16>>(second, m);
    return {};
  }
  if (m.relu && name != "fma") return {};
  if (name == "add") return choose_any<Add>(type, m);
  if (name == "sub") return choose_any<Sub>(type, m);
  if (name == "mul") return choose_any<Mul>(type, m);
  if (name == "fma") return choose_any<Fma>(type, m);
  return choose_f32_or_f64<Fma>(type, m);  // mad
}

// div, rcp, sqrt and rsqrt: .approx, .full or a rounding.
LaneOperation decode_quotient(const std::string& name, OpcodeParts& parts, Type type,
                              bool has_rounding, const Modifiers& m) {
  const int approximation = parts.take_one_of({"approx", "full"});
  if ((approximation >= 0) == has_rounding) return {};
  if (approximation == 1) return name == "div" ? choose_f32<Div>(type, m) : LaneOperation();
  if (approximation == 0 && type == Type::kF64) {
    if (name == "rsqrt" && !m.flush) return on<Rsqrt, double>(m);
    if (name == "rcp" && m.flush) return lane_operation<rcp_of_high_word>();
    if (name == "rsqrt") return lane_operation<rsqrt_of_high_word>();
    return {};
  }
  if (name == "div" && approximation == 0) return choose_f32<DivApprox>(type, m);
  if (name == "rsqrt") return has_rounding ? LaneOperation() : choose_f32<Rsqrt>(type, m);
  if (name == "div") return choose_f32_or_f64<Div>(type, m);
  if (name == "rcp") return choose_f32_or_f64<Rcp>(type, m);
  return choose_f32_or_f64<Sqrt>(type, m);
}

// lg2, ex2, sin, cos and tanh, which are .approx only.
LaneOperation decode_function(const std::string& name, OpcodeParts& parts, Type type,
                              const Modifiers& m) {
  if (!parts.take("approx")) return {};
  if (name == "lg2") return choose_f32<Lg2>(type, m);
  if (name == "sin") return choose_f32<Sin>(type, m);
  if (name == "cos") return choose_f32<Cos>(type, m);
  if (name == "tanh") {
    if (m.flush) return {};
    return type == Type::kF32 ? on<Tanh, float>(m) : choose_half<Tanh>(type, m);
  }
  // ex2 has .ftz for bf16 always, for f16 never.
  if (type == Type::kBF16) return m.flush ? on<Ex2, BF16, true>(m) : LaneOperation();
  if (type == Type::kBF16x2) return m.flush ? on_packed<Ex2, BF16, true>(m) : LaneOperation();
  if (type == Type::kF32) return choose_f32<Ex2>(type, m);
  return m.flush ? LaneOperation() : choose_half<Ex2>(type, m);
}

template <bool kMaximum>
LaneOperation decode_extremum(const Decoder& d, OpcodeParts& parts, Type type, const Modifiers& m) {
  const bool nan = parts.take("NaN");
  if (d.num_operands() == 4) {
    if (type != Type::kF32) return {};
    if (nan) {
      return m.flush ? lane_operation<extremum_of_three<kMaximum, true, true>>()
                     : lane_operation<extremum_of_three<kMaximum, true, false>>();
    }
    return m.flush ? lane_operation<extremum_of_three<kMaximum, false, true>>()
                   : lane_operation<extremum_of_three<kMaximum, false, false>>();
  }
  if (!nan) return choose_scalar_or_half<Extremum<kMaximum, false>>(type, m);
  if (type == Type::kF64) return {};
  return choose_scalar_or_half<Extremum<kMaximum, true>>(type, m);
}

LaneOperation decode_copysign(Type type, const Modifiers& m) {
  if (m.flush) return {};
  if (type == Type::kF32) return lane_operation<copysign<float>>();
  return type == Type::kF64 ? lane_operation<copysign<double>>() : LaneOperation();
}

void decode_testp(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const int property =
      parts.take_one_of({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  const Type type = parts.take_type();
  parts.expect_none_left();
  d.expect_operands(2, 2);
  if (property < 0 || (type != Type::kF32 && type != Type::kF64)) d.unknown();
  i.execute = type == Type::kF32 ? execute_testp<float> : execute_testp<double>;
  i.imm[0] = property;
  i.r[0] = d.predicate(0);
  i.r[1] = d.of_bytes(d.operand(1), ptx::bytes_of(type));
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  for (const char* candidate : names) {
    if (name == candidate) return true;
  }
  return false;
}

}  // namespace

void decode_float(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kFloat;
  const std::string& name = d.statement().parts[0];
  if (is_comparison(name)) return decode_comparison(d, i);
  if (name == "testp") return decode_testp(d, i);

  OpcodeParts parts(d);
  constexpr int kRoundings[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  const int rounding = parts.take_one_of({"rn", "rz", "rm", "rp"});
  Modifiers m;
  if (rounding >= 0) m.rounding = kRoundings[rounding];
  m.flush = parts.take("ftz");
  m.saturate = parts.take("sat");
  m.relu = parts.take("relu");
  const Type type = parts.take_type();
  LaneOperation operation;
  if (is_one_of(name, {"add", "sub", "mul", "fma", "mad"})) {
    const bool needs_rounding = name == "fma" || name == "mad";
    const Type second = parts.take_type_or_none();
    if (rounding >= 0 || !needs_rounding) operation = decode_arithmetic(name, type, second, m);
  } else if (is_one_of(name, {"div", "rcp", "sqrt", "rsqrt"})) {
    if (!m.saturate && !m.relu) {
      operation = decode_quotient(name, parts, type, rounding >= 0, m);
    }
  } else if (rounding < 0 && !m.saturate && !m.relu) {
    if (is_one_of(name, {"lg2", "ex2", "sin", "cos", "tanh"})) {
      operation = decode_function(name, parts, type, m);
    } else if (name == "min") {
      operation = decode_extremum<false>(d, parts, type, m);
    } else if (name == "max") {
      operation = decode_extremum<true>(d, parts, type, m);
    } else if (name == "abs") {
      operation = choose_scalar_or_half<Abs>(type, m);
    } else if (name == "neg") {
      operation = choose_scalar_or_half<Neg>(type, m);
    } else if (name == "copysign") {
      operation = decode_copysign(type, m);
    }
  }
  parts.expect_none_left();
  i.imm[0] = m.rounding;
  set_operation(d, i, operation);
}

}  // namespace dsv4::simulator
