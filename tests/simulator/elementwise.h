// SPDX-License-Identifier: Apache-2.0
// Instructions that act on each lane by itself, written as functions from values to a value:
//
//   uint32_t add(uint32_t a, uint32_t b);
//   set_operation(decoder, instruction, lane_operation<add>());
//
// The function's types say how wide the operands are. Instruction::r holds the result, then the
// operands.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "machine.h"
#include "number_formats.h"
#include "program.h"

namespace dsv4::simulator {

// Values of 16 bits that are not integers.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

// Two values in one register; the low half is the first.
template <class T>
struct Pair {
  T low, high;
};

// .ftz of a value of f16, as flushed() of one of f32.
inline float flushed_f16(float x) { return std::fabs(x) < 0x1p-14f ? std::copysign(0.0f, x) : x; }

// What a value of type T occupies in a lane.
template <class T>
using Word = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;

template <class T>
inline T from_word(Word<T> word) {
  if constexpr (std::is_integral_v<T>) {
    return T(word);
  } else if constexpr (sizeof(T) == sizeof(Word<T>)) {
    return bit_cast<T>(word);
  } else {
    return bit_cast<T>(uint16_t(word));
  }
}

// Values of fewer than 32 bits are zero-extended.
template <class T>
inline Word<T> to_word(T value) {
  if constexpr (std::is_integral_v<T>) {
    return std::make_unsigned_t<T>(value);
  } else if constexpr (sizeof(T) == sizeof(Word<T>)) {
    return bit_cast<Word<T>>(value);
  } else {
    return bit_cast<uint16_t>(value);
  }
}

// result[lane] = body(lane) for each lane of the mask.
template <class WordType, class Body>
inline void write_lanes(WordType* result, LaneMask lanes, Body&& body) {
  if (lanes == kAllLanes) {
    // By way of an array that nothing else can alias, so that the loop becomes vector code.
    WordType values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = body(lane);
    std::memcpy(result, values, sizeof(values));
  } else {
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      result[lane] = body(lane);
    }
  }
}

inline void write_predicate(Warp& warp, Register r, LaneMask lanes, LaneMask value) {
  if (!r) return;
  LaneMask& predicate = warp.predicate(r);
  predicate = (predicate & ~lanes) | (value & lanes);
}

// Applies a function of these types to the lanes of an instruction's registers.
template <class Result, class... Operands>
struct LaneFunction {
  using ResultType = Result;
  static constexpr std::array<int, 1 + sizeof...(Operands)> kBytes{int(sizeof(Result)),
                                                                   int(sizeof(Operands))...};

  template <class Function>
  static Outcome run(Warp& warp, const Instruction& i, LaneMask lanes, Function function) {
    find_operands(warp, i, lanes, function, std::index_sequence_for<Operands...>());
    return Outcome::kDone;
  }

 private:
  template <class Function, size_t... kOperand>
  static void find_operands(Warp& warp, const Instruction& i, LaneMask lanes, Function function,
                            std::index_sequence<kOperand...>) {
    call(warp.lanes<Word<Result>>(i.r[0]), lanes, function,
         warp.lanes<Word<Operands>>(i.r[kOperand + 1])...);
  }
  template <class Function>
  static void call(Word<Result>* result, LaneMask lanes, Function function,
                   const Word<Operands>*... operands) {
    write_lanes(result, lanes, [=]([[maybe_unused]] int lane) {
      return to_word(function(from_word<Operands>(operands[lane])...));
    });
  }
};

// Functions may look at the instruction's imm and flags, by a first parameter.
template <class Function>
struct FunctionTypes;
template <class Result, class... Operands>
struct FunctionTypes<Result (*)(Operands...)> {
  using Lanes = LaneFunction<Result, Operands...>;
  static constexpr bool kSeesInstruction = false;
};
template <class Result, class... Operands>
struct FunctionTypes<Result (*)(const Instruction&, Operands...)> {
  using Lanes = LaneFunction<Result, Operands...>;
  static constexpr bool kSeesInstruction = true;
};

template <auto kFunction>
struct Elementwise : FunctionTypes<decltype(kFunction)>::Lanes {
  static Outcome execute(Warp& warp, const Instruction& i, LaneMask lanes) {
    return Elementwise::run(warp, i, lanes, [&i](auto... operands) {
      if constexpr (FunctionTypes<decltype(kFunction)>::kSeesInstruction) {
        return kFunction(i, operands...);
      } else {
        return kFunction(operands...);
      }
    });
  }
};

// The same function of each half of packed operands: Packed<add>::of.
template <auto kFunction>
struct Packed;

template <class T, class... Operands, T (*kFunction)(T, Operands...)>
struct Packed<kFunction> {
  static Pair<T> of(Pair<T> a, Pair<Operands>... others) {
    return {kFunction(a.low, others.low...), kFunction(a.high, others.high...)};
  }
};

// What a decoder needs to know of an elementwise function.
struct LaneOperation {
  Execute execute = nullptr;  // none: the form is not simulated
  int num_operands = 0;       // the result included
  std::array<int, 6> bytes{};
};

template <auto kFunction>
LaneOperation lane_operation(Execute execute = Elementwise<kFunction>::execute) {
  LaneOperation operation;
  operation.execute = execute;
  for (int bytes : Elementwise<kFunction>::kBytes) {
    operation.bytes[size_t(operation.num_operands++)] = bytes;
  }
  return operation;
}

inline void set_operation(Decoder& decoder, Instruction& i, const LaneOperation& operation) {
  if (operation.execute == nullptr) decoder.unknown();
  decoder.expect_operands(size_t(operation.num_operands), size_t(operation.num_operands));
  i.execute = operation.execute;
  for (size_t k = 0; k < size_t(operation.num_operands); ++k) {
    i.r[k] = decoder.of_bytes(decoder.operand(k), operation.bytes[k]);
  }
}

// The C++ type of a PTX type.
template <ptx::Type kType>
struct ValueOf;
template <>
struct ValueOf<ptx::Type::kB16> {
  using Type = uint16_t;
};
template <>
struct ValueOf<ptx::Type::kB32> {
  using Type = uint32_t;
};
template <>
struct ValueOf<ptx::Type::kB64> {
  using Type = uint64_t;
};
template <>
struct ValueOf<ptx::Type::kU8> {
  using Type = uint8_t;
};
template <>
struct ValueOf<ptx::Type::kU16> {
  using Type = uint16_t;
};
template <>
struct ValueOf<ptx::Type::kU32> {
  using Type = uint32_t;
};
template <>
struct ValueOf<ptx::Type::kU64> {
  using Type = uint64_t;
};
template <>
struct ValueOf<ptx::Type::kS8> {
  using Type = int8_t;
};
template <>
struct ValueOf<ptx::Type::kS16> {
  using Type = int16_t;
};
template <>
struct ValueOf<ptx::Type::kS32> {
  using Type = int32_t;
};
template <>
struct ValueOf<ptx::Type::kS64> {
  using Type = int64_t;
};

// Sets of types, to choose an operation by.
template <ptx::Type... kTypes>
struct Types {};
using UnsignedTypes = Types<ptx::Type::kU16, ptx::Type::kU32, ptx::Type::kU64>;
using SignedTypes = Types<ptx::Type::kS16, ptx::Type::kS32, ptx::Type::kS64>;
using BitTypes = Types<ptx::Type::kB16, ptx::Type::kB32, ptx::Type::kB64>;
using IntegerTypes = Types<ptx::Type::kU16, ptx::Type::kU32, ptx::Type::kU64, ptx::Type::kS16,
                           ptx::Type::kS32, ptx::Type::kS64>;
using NarrowIntegerTypes =
    Types<ptx::Type::kU16, ptx::Type::kU32, ptx::Type::kS16, ptx::Type::kS32>;
using WideIntegerTypes = Types<ptx::Type::kU32, ptx::Type::kU64, ptx::Type::kS32, ptx::Type::kS64>;

template <class Operation, ptx::Type kType>
inline constexpr auto of_type = &Operation::template of<typename ValueOf<kType>::Type>;

// Operation::of<T> for the T that `type` names, if it is in the list.
template <class Operation, ptx::Type... kTypes>
LaneOperation choose(Types<kTypes...>, ptx::Type type) {
  LaneOperation chosen;
  ((kTypes == type ? void(chosen = lane_operation<of_type<Operation, kTypes>>()) : void()), ...);
  return chosen;
}

}  // namespace dsv4::simulator
