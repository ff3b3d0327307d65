// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "error.h"
#include "families.h"
#include "memory.h"

namespace dsv4::simulator {

struct ModuleMemory {
  struct Free {
    void operator()(uint8_t* p) const {
      unregister_memory(p);
      std::free(p);
    }
  };
  std::map<std::string, std::unique_ptr<uint8_t, Free>> variables;
};

namespace {

constexpr uint32_t kPredicateBytes = 8;  // four of the mask, four to keep registers aligned

uint32_t round_up(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Bytes that one lane of a register takes: 0 for a predicate, else 4, 8 or 16.
int lane_bytes(ptx::Type type) {
  if (type == ptx::Type::kPred) return 0;
  const int bytes = ptx::bytes_of(type);
  return bytes <= 4 ? 4 : bytes;
}

bool is_wgmma(const Instruction& i) {
  return i.statement != nullptr && i.statement->opcode.rfind("wgmma.mma_async", 0) == 0;
}

void mark_matrix_registers(Program& program) {
  std::set<uint32_t> named;
  for (const Instruction& i : program.instructions) {
    if (!is_wgmma(i)) continue;
    for (Register r : i.list) named.insert(r.offset);
  }
  if (named.empty()) return;
  for (Instruction& i : program.instructions) {
    i.touches_matrix_registers =
        !is_wgmma(i) && std::any_of(i.touched.begin(), i.touched.end(),
                                    [&](uint32_t offset) { return named.count(offset) != 0; });
  }
}

}  // namespace

uint32_t Program::dynamic_shared_offset() const {
  return round_up(kSharedReserved + uint32_t(function->shared_bytes), 1024);
}

Decoder::Decoder(Program& program, const ModuleMemory& memory)
    : program_(program), memory_(memory) {
  for (const ptx::Register& r : program.function->registers)
    places_.push_back(allocate(lane_bytes(r.type)));
}

Register Decoder::allocate(int bytes) {
  const Register r{program_.register_bytes};
  program_.register_bytes += bytes == 0 ? kPredicateBytes : uint32_t(bytes * kLanes);
  return r;
}

Register Decoder::constant(int bytes, uint64_t value) {
  if (bytes == 4) value = uint32_t(value);
  const auto key = std::make_pair(bytes, value);
  if (const auto found = constants_.find(key); found != constants_.end()) return found->second;
  const Register r = allocate(bytes);
  program_.constants.push_back({r, bytes, value});
  return constants_[key] = r;
}

Register Decoder::special(const std::string& name, int bytes) {
  const auto key = std::make_pair(name, bytes);
  if (const auto found = symbols_.find(key); found != symbols_.end()) return found->second;
  const Register r = allocate(bytes);
  program_.specials.push_back({r, bytes, name});
  return symbols_[key] = r;
}

Register Decoder::symbol(const std::string& name, int bytes) {
  const auto key = std::make_pair(name, bytes);
  if (const auto found = symbols_.find(key); found != symbols_.end()) return found->second;
  const ptx::Function& function = *program_.function;
  for (const ptx::Variable& v : function.parameters) {
    if (v.name != name) continue;
    const Register r = allocate(8);
    program_.parameter_symbols.push_back({r, v.offset});
    return symbols_[key] = r;
  }
  for (const ptx::Variable& v : function.shared) {
    if (v.name != name) continue;
    const Register r = allocate(bytes);
    program_.shared_symbols.push_back({r, bytes, &v});
    return symbols_[key] = r;
  }
  for (const ptx::Variable& v : function.local) {
    if (v.name == name) return symbols_[key] = constant(bytes, v.offset);
  }
  if (const auto found = memory_.variables.find(name); found != memory_.variables.end()) {
    return symbols_[key] = constant(8, reinterpret_cast<uint64_t>(found->second.get()));
  }
  unknown(("unknown name " + name).c_str());
}

void Decoder::decode(const ptx::Statement& statement, Instruction& instruction) {
  statement_ = &statement;
  instruction.statement = &statement;
  if (statement.guard >= 0) {
    instruction.guard = places_[size_t(statement.guard)];
    instruction.guard_negated = statement.guard_negated;
  }
  const std::string& name = statement.parts[0];
  if (name == "bra") {
    expect_operands(1, 1);
    instruction.control = Control::kBranch;
    instruction.branch_target = operand(0).index;
    instruction.counted = InstructionClass::kControl;
  } else if (name == "ret" || name == "exit") {
    instruction.control = Control::kExit;
    instruction.counted = InstructionClass::kControl;
  } else {
    family_of(statement)(*this, instruction);
    if (instruction.execute == nullptr) unknown();
  }
  for (const ptx::Operand& o : statement.operands) {
    const auto touch = [&](const ptx::Operand& each) {
      if (each.kind == ptx::Operand::Kind::kRegister)
        instruction.touched.push_back(places_[size_t(each.index)].offset);
    };
    touch(o);
    for (const ptx::Operand& element : o.elements) touch(element);
    for (const ptx::Operand& second : o.pair) touch(second);
    if (&o == &statement.operands[0] && o.kind != ptx::Operand::Kind::kAddress) {
      instruction.num_written = instruction.touched.size();
    }
  }
}

void Decoder::unknown(const char* why) const {
  fail("%s: line %d: %s", why, statement_->line, statement_->text.c_str());
}

void Decoder::expect_operands(size_t minimum, size_t maximum) const {
  if (num_operands() < minimum || num_operands() > maximum) {
    unknown(
        text("expected %zu to %zu operands, got %zu", minimum, maximum, num_operands()).c_str());
  }
}

const ptx::Operand& Decoder::operand(size_t i) const {
  if (i >= num_operands()) unknown("an operand is missing");
  return statement_->operands[i];
}

bool Decoder::has(const char* part) const {
  return std::find(statement_->parts.begin(), statement_->parts.end(), part) !=
         statement_->parts.end();
}

bool Decoder::has_prefix(const char* part) const { return statement_->opcode.rfind(part, 0) == 0; }

ptx::Type Decoder::last_type() const {
  for (size_t i = statement_->parts.size(); i-- > 0;) {
    if (const ptx::Type type = ptx::type_of(statement_->parts[i]); type != ptx::Type::kNone)
      return type;
  }
  return ptx::Type::kNone;
}

bool Decoder::is_64bit(const ptx::Operand& o) const {
  switch (o.kind) {
    case ptx::Operand::Kind::kRegister:
      return lane_bytes(program_.function->registers[size_t(o.index)].type) == 8;
    case ptx::Operand::Kind::kSymbol: {
      const auto named = [&](const ptx::Variable& v) { return v.name == o.name; };
      const ptx::Function& f = *program_.function;
      return !std::any_of(f.shared.begin(), f.shared.end(), named) &&
             !std::any_of(f.local.begin(), f.local.end(), named);
    }
    default:
      return false;
  }
}

bool Decoder::is_predicate(const ptx::Operand& o) const {
  return o.kind == ptx::Operand::Kind::kRegister &&
         program_.function->registers[size_t(o.index)].type == ptx::Type::kPred;
}

Register Decoder::of_bytes(const ptx::Operand& o, int bytes) {
  const int wanted = bytes <= 4 ? 4 : bytes;
  switch (o.kind) {
    case ptx::Operand::Kind::kRegister: {
      const int got = lane_bytes(program_.function->registers[size_t(o.index)].type);
      if (got != wanted)
        unknown(text("operand %s: expected %d bytes a lane, got %d",
                     program_.function->registers[size_t(o.index)].name.c_str(), wanted, got)
                    .c_str());
      return places_[size_t(o.index)];
    }
    case ptx::Operand::Kind::kImmediate:
      return constant(wanted, o.bits);
    case ptx::Operand::Kind::kSymbol:
      return symbol(o.name, wanted);
    case ptx::Operand::Kind::kSpecial:
      return special(o.name, wanted);
    default:
      unknown("expected a register or a constant");
  }
}

Register Decoder::r32(const ptx::Operand& o) { return of_bytes(o, 4); }
Register Decoder::r64(const ptx::Operand& o) { return of_bytes(o, 8); }
Register Decoder::r128(const ptx::Operand& o) { return of_bytes(o, 16); }

Register Decoder::predicate(const ptx::Operand& o) {
  if (o.kind == ptx::Operand::Kind::kImmediate) return constant(0, o.bits != 0 ? kAllLanes : 0);
  if (o.kind == ptx::Operand::Kind::kSpecial) return special(o.name, 0);
  if (o.kind != ptx::Operand::Kind::kRegister ||
      program_.function->registers[size_t(o.index)].type != ptx::Type::kPred) {
    unknown("expected a predicate");
  }
  return places_[size_t(o.index)];
}

std::vector<Register> Decoder::list(const ptx::Operand& o, int bytes) {
  std::vector<Register> result;
  const auto add = [&](const ptx::Operand& element) {
    result.push_back(element.kind == ptx::Operand::Kind::kSink ? Register{}
                                                               : of_bytes(element, bytes));
  };
  if (o.kind == ptx::Operand::Kind::kVector) {
    for (const ptx::Operand& element : o.elements) add(element);
  } else {
    add(o);
  }
  return result;
}

Decoder::Address Decoder::address(const ptx::Operand& o) {
  if (o.kind != ptx::Operand::Kind::kAddress) unknown("expected an address in brackets");
  const ptx::Operand& base = o.elements[0];
  const bool wide = is_64bit(base) || base.kind == ptx::Operand::Kind::kImmediate;
  return {wide ? r64(base) : r32(base), wide, o.displacement};
}

int64_t Decoder::immediate(size_t i) const {
  if (operand(i).kind != ptx::Operand::Kind::kImmediate) unknown("expected an immediate");
  return int64_t(operand(i).bits);
}

LoadedModule::LoadedModule(const std::string& ptx_text)
    : module_(ptx::parse(ptx_text)), memory_(std::make_unique<ModuleMemory>()) {
  for (const ptx::Variable& v : module_.globals) {
    const size_t bytes = (v.bytes + 255) / 256 * 256;
    auto* data = static_cast<uint8_t*>(std::aligned_alloc(256, std::max<size_t>(bytes, 256)));
    std::copy(v.initial.begin(), v.initial.end(), data);
    register_memory(data, v.bytes);
    memory_->variables[v.name].reset(data);
  }
}

LoadedModule::~LoadedModule() = default;

void* LoadedModule::address_of(const std::string& variable) const {
  const auto found = memory_->variables.find(variable);
  return found == memory_->variables.end() ? nullptr : found->second.get();
}

std::vector<std::string> LoadedModule::kernels() const {
  std::vector<std::string> names;
  for (const ptx::Function& f : module_.functions) names.push_back(f.name);
  return names;
}

const Program& LoadedModule::program(const std::string& kernel) {
  std::unique_ptr<Program>& program = programs_[kernel];
  if (program == nullptr) {
    const ptx::Function* function = module_.find(kernel);
    if (function == nullptr) fail("no kernel %s in this module", kernel.c_str());
    auto fresh = std::make_unique<Program>();
    fresh->function = function;
    fresh->target = module_.target;
    Decoder decoder(*fresh, *memory_);
    fresh->instructions.resize(function->statements.size() + 1);
    for (size_t i = 0; i < function->statements.size(); ++i) {
      decoder.decode(function->statements[i], fresh->instructions[i]);
    }
    fresh->instructions.back().control = Control::kExit;
    mark_matrix_registers(*fresh);
    program = std::move(fresh);
  }
  return *program;
}

}  // namespace dsv4::simulator
