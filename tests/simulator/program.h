// SPDX-License-Identifier: Apache-2.0
// A kernel ready to run: PTX statements decoded to instructions, operands to places in the register
// file.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine.h"
#include "ptx.h"

namespace dsv4::simulator {

struct ModuleMemory;  // where .global and .const variables of a module lie

struct Program {
  const ptx::Function* function = nullptr;
  std::string target;                     // "sm_100a"
  std::vector<Instruction> instructions;  // one for each statement, then an exit
  uint32_t register_bytes = 0;

  // Registers that are filled before the first instruction.
  struct Constant {
    Register r;
    int bytes;  // of a lane; 0: predicate
    uint64_t value;
  };
  struct SharedSymbol {
    Register r;
    int bytes;
    const ptx::Variable* variable;
  };
  struct ParameterSymbol {
    Register r;
    size_t offset;
  };
  struct Special {
    Register r;
    int bytes;
    std::string name;
  };
  std::vector<Constant> constants;
  std::vector<SharedSymbol> shared_symbols;
  std::vector<ParameterSymbol> parameter_symbols;
  std::vector<Special> specials;

  // Bytes in front of dynamic shared memory, the reserved kilobyte included; a multiple of 1024.
  uint32_t dynamic_shared_offset() const;
};

// Hands a family the operands of the statement it decodes. Every getter checks the kind and width
// of the operand; a wrong one is an error that names the statement.
class Decoder {
 public:
  Decoder(Program& program, const ModuleMemory& memory);

  void decode(const ptx::Statement& statement, Instruction& instruction);

  // For families. `i` counts operands of the statement.
  const ptx::Statement& statement() const { return *statement_; }
  size_t num_operands() const { return statement_->operands.size(); }
  void expect_operands(size_t minimum, size_t maximum) const;
  bool has(const char* part) const;         // ".ftz" is has("ftz")
  bool has_prefix(const char* part) const;  // the opcode starts with it
  const ptx::Operand& operand(size_t i) const;
  ptx::Type last_type() const;  // of the opcode's last part that names a type

  Register r32(
      const ptx::Operand& operand);  // registers of 8, 16, 32 bits, immediates, 32-bit symbols
  Register r64(const ptx::Operand& operand);
  Register r128(const ptx::Operand& operand);
  Register of_bytes(const ptx::Operand& operand, int bytes);  // r32 up to 4, r64, r128
  Register predicate(const ptx::Operand& operand);
  bool is_64bit(const ptx::Operand& operand) const;  // register or symbol of 64 bits
  bool is_predicate(const ptx::Operand& operand) const;
  Register r32(size_t i) { return r32(operand(i)); }
  Register r64(size_t i) { return r64(operand(i)); }
  Register predicate(size_t i) { return predicate(operand(i)); }
  // Elements of a vector operand, or the operand itself; sinks become Register{}.
  std::vector<Register> list(const ptx::Operand& operand, int bytes);
  // [base + displacement]: the base, 32 or 64 bits wide.
  struct Address {
    Register base;
    bool wide;
    int64_t displacement;
  };
  Address address(const ptx::Operand& operand);
  int64_t immediate(size_t i) const;
  [[noreturn]] void unknown(const char* why = "this form is not simulated") const;

 private:
  Register allocate(int bytes);
  Register constant(int bytes, uint64_t value);
  Register symbol(const std::string& name, int bytes);
  Register special(const std::string& name, int bytes);

  Program& program_;
  const ModuleMemory& memory_;
  std::vector<Register> places_;  // of the function's registers
  std::map<std::pair<int, uint64_t>, Register> constants_;
  std::map<std::pair<std::string, int>, Register> symbols_;
  const ptx::Statement* statement_ = nullptr;
};

// A family decodes the statements whose first part ("ld", "mbarrier") it claims in families.cpp.
using Decode = void (*)(Decoder&, Instruction&);

// A loaded module: its kernels, decoded when first asked for, and its variables.
class LoadedModule {
 public:
  explicit LoadedModule(const std::string& ptx_text);
  ~LoadedModule();
  const Program& program(const std::string& kernel);
  std::vector<std::string> kernels() const;
  const ptx::Module& source() const { return module_; }
  void* address_of(const std::string& variable) const;

 private:
  ptx::Module module_;
  std::unique_ptr<ModuleMemory> memory_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

}  // namespace dsv4::simulator
