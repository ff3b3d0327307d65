// SPDX-License-Identifier: Apache-2.0
// PTX text -> functions of statements. Knows the grammar, not what instructions mean: names of
// registers and labels are resolved by scope, everything else stays as written.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#syntax
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::simulator::ptx {

enum class Type : uint8_t {
  kNone,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBF16,
  kBF16x2,
  kTF32,
  kF32,
  kF32x2,
  kF64,
  kE4M3x2,
  kE5M2x2,
  kUE8M0x2,
  kE2M1x2,
  kPred,
};

// kNone when the text names no type ("rn", "global").
Type type_of(std::string_view name);
int bytes_of(Type type);

struct Operand {
  enum class Kind : uint8_t {
    kRegister,   // index into Function::registers
    kSpecial,    // name: "%tid.x"
    kImmediate,  // bits; integers sign-extended, 0f... as 32 bits, 0d... as 64
    kSymbol,     // name: variable or parameter
    kLabel,      // index of the statement it stands before
    kVector,     // elements
    kAddress,    // elements[0] + displacement, then coordinates
    kSink,       // _
  };
  Kind kind = Kind::kSink;
  bool negated = false;  // !p
  int index = -1;
  uint64_t bits = 0;
  int64_t displacement = 0;
  std::string name;
  std::vector<Operand> elements;
  std::vector<Operand> pair;  // the q of p|q, at most one
};

struct Statement {
  int line = 0;      // in the PTX text
  std::string text;  // for reports
  int guard = -1;    // predicate register, or -1
  bool guard_negated = false;
  std::string opcode;              // "ld.global.v4.f32"
  std::vector<std::string> parts;  // {"ld", "global", "v4", "f32"}
  std::vector<Operand> operands;
};

struct Register {
  std::string name;
  Type type;
};

struct Variable {
  std::string name;
  size_t offset = 0;  // in its space
  size_t bytes = 0;
  size_t alignment = 1;
  bool dynamic = false;          // extern .shared: as many bytes as the launch gives
  std::vector<uint8_t> initial;  // .global and .const
};

struct Function {
  std::string name;
  std::vector<Variable> parameters;
  size_t parameter_bytes = 0;
  std::vector<Register> registers;
  std::vector<Variable> shared;
  size_t shared_bytes = 0;
  std::vector<Variable> local;
  size_t local_bytes = 0;  // of one thread
  std::vector<Statement> statements;
  uint32_t required_cluster[3] = {0, 0, 0};  // .reqnctapercluster, 0 if absent
  uint32_t max_threads[3] = {0, 0, 0};       // .maxntid or .reqntid
};

struct Module {
  std::string target;  // "sm_100a"
  std::vector<Function>
      functions;  // .entry only; device functions are refused where they are called
  std::vector<Variable> globals;
  const Function* find(std::string_view name) const;
};

Module parse(const std::string& text);

}  // namespace dsv4::simulator::ptx
