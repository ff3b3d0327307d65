// SPDX-License-Identifier: Apache-2.0
// Asynchronous matrix multiplication of a warpgroup (sm_90a).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
//
// An operation starts when its fourth warp has issued it. From then on it is one entry of the
// warpgroup's ordered pipe, and its registers belong to it until a wait_group of the warp has seen
// its group complete.
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "checker.h"
#include "error.h"
#include "families.h"
#include "machine.h"
#include "matrix_multiply.h"
#include "matrix_operand.h"
#include "number_formats.h"

namespace dsv4::simulator {
namespace {

constexpr int kWarps = 4;  // of a warpgroup
constexpr int kRows = 64;  // M
constexpr int kRowsOfWarp = 16;
constexpr int kMaxColumns = 256;  // N
constexpr int kMaxSteps = 32;     // K
constexpr int kPipes = 1000;      // first number of the warpgroups' pipes
constexpr int kRegistersOfA = 4;

// --- decoded form -------------------------------------------------------------------------------

// What the opcode and the immediates say; kept in Instruction::imm[0]. Registers: list holds D,
// then A if A is in registers; r[0] the descriptor of A, r[1] that of B, r[2] scale-d.
struct Form {
  uint8_t columns_by_8;
  uint8_t steps;
  ElementFormat a, b;
  AccumulatorFormat d;
  bool a_in_registers : 1, transpose_a : 1, transpose_b : 1, negate : 1, saturate : 1,
      not_scale_d : 1;

  int columns() const { return 8 * columns_by_8; }
  // Two f16 accumulators share a register.
  int registers_of_d() const { return columns() / (d == AccumulatorFormat::kF16 ? 4 : 2); }
};
static_assert(sizeof(Form) <= sizeof(int64_t));

Form form_of(const Instruction& instruction) {
  Form form;
  std::memcpy(&form, &instruction.imm[0], sizeof(form));
  return form;
}

bool read_element_format(const std::string& name, ElementFormat* format) {
  static constexpr ElementFormat kFormats[] = {
      ElementFormat::kF16,  ElementFormat::kBF16, ElementFormat::kTF32, ElementFormat::kE4M3,
      ElementFormat::kE5M2, ElementFormat::kS8,   ElementFormat::kU8};
  for (ElementFormat candidate : kFormats) {
    if (name == name_of(candidate)) {
      *format = candidate;
      return true;
    }
  }
  return false;
}

bool is_integer(ElementFormat f) { return f == ElementFormat::kS8 || f == ElementFormat::kU8; }
bool is_8bit_float(ElementFormat f) {
  return f == ElementFormat::kE4M3 || f == ElementFormat::kE5M2;
}

// wgmma.mma_async.sync.aligned.m64nNkK{.satfinite}.dtype.atype.btype{.satfinite}
Form read_opcode(const Decoder& d) {
  const std::vector<std::string>& parts = d.statement().parts;
  Form form{};
  std::vector<std::string> types;
  int columns = 0, steps = 0, used = 0;
  if (parts.size() < 8 || parts[2] != "sync" || parts[3] != "aligned" ||
      std::sscanf(parts[4].c_str(), "m64n%dk%d%n", &columns, &steps, &used) != 2 ||
      size_t(used) != parts[4].size()) {
    d.unknown();
  }
  for (size_t i = 5; i < parts.size(); ++i) {
    if (parts[i] == "satfinite") {
      form.saturate = true;
    } else {
      types.push_back(parts[i]);
    }
  }
  if (types.size() != 3 || !read_element_format(types[1], &form.a) ||
      !read_element_format(types[2], &form.b)) {
    d.unknown();
  }
  const bool integers = is_integer(form.a) && is_integer(form.b);
  if (form.a != form.b && !integers && !(is_8bit_float(form.a) && is_8bit_float(form.b))) {
    d.unknown();
  }
  const bool half_sums = form.a == ElementFormat::kF16 || is_8bit_float(form.a);
  if (types[0] == "f32" && !integers) {
    form.d = AccumulatorFormat::kF32;
  } else if (types[0] == "f16" && half_sums) {
    form.d = AccumulatorFormat::kF16;
  } else if (types[0] == "s32" && integers) {
    form.d = AccumulatorFormat::kS32;
  } else {
    d.unknown();
  }
  if (columns < 8 || columns > kMaxColumns || columns % 8 != 0) {
    d.unknown("N: expected 8 to 256 in steps of 8");
  }
  if (integers && columns > 32 && columns % 16 != 0) {
    d.unknown("N of integers: expected steps of 16 above 32");
  }
  if (steps != 256 / bits_of(form.a)) d.unknown("K: expected 32 bytes of elements");
  if (form.saturate && !integers) d.unknown();
  form.columns_by_8 = uint8_t(columns / 8);
  form.steps = uint8_t(steps);
  return form;
}

// An immediate that is one of two values.
bool read_choice(const Decoder& d, size_t i, int64_t no, int64_t yes, const char* what) {
  const int64_t value = d.immediate(i);
  if (value != no && value != yes) d.unknown(what);
  return value == yes;
}

// --- state --------------------------------------------------------------------------------------

// One wgmma.mma_async of a warpgroup.
struct Operation {
  const Instruction* instruction = nullptr;
  uint64_t a = 0, b = 0;  // descriptors
  bool accumulate = false;
  std::array<Warp*, kWarps> warps{};
  int arrived = 0;
  bool done = false;
};

struct WarpState : FamilyState {
  bool fenced = false;                           // by a wgmma.fence, ever
  uint64_t issued = 0;                           // operations
  std::vector<std::shared_ptr<Operation>> open;  // not committed
  std::deque<std::vector<std::shared_ptr<Operation>>> groups;
};

// The operations that some of a warpgroup's warps have issued and others have not.
struct Warpgroup {
  std::deque<std::shared_ptr<Operation>> waiting;
  uint64_t first = 0;  // number of waiting.front(), by order of issue
};
struct Warpgroups : FamilyState {
  std::array<Warpgroup, 32 / kWarps> groups;  // a block has 32 warps at most

  void finish() override {
    for (const Warpgroup& group : groups) {
      if (!group.waiting.empty()) {
        fail("the kernel ends, and only %d of 4 warps of a warpgroup have executed: %s",
             group.waiting.front()->arrived,
             group.waiting.front()->instruction->statement->text.substr(0, 80).c_str());
      }
    }
  }
};

// --- the multiplication -------------------------------------------------------------------------

// Columns in the order in which they meet in registers: of each eight, first the even ones. A
// register of four neighbouring lanes then takes four neighbouring sums.
int place_of_column(int column) { return column / 8 * 8 + column % 2 * 4 + column % 8 / 2; }

// A fragment: register q of lane 4g + t holds row g + 8 (q % 2), and in order the elements from
// step (q / 2) * 4E + t E on, where E elements fill a register.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#wgmma-64n16-a
void read_a_from_registers(Warp& warp, const Instruction& instruction, const Form& form, float* a) {
  const int elements = elements_per_word(form.a, Packing::kDense);
  for (int q = 0; q < kRegistersOfA; ++q) {
    const auto* words = warp.lanes<uint32_t>(instruction.list[size_t(form.registers_of_d() + q)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4 + 8 * (q % 2), step = (4 * (q / 2) + lane % 4) * elements;
      decode_word(form.a, Packing::kDense, words[lane], a + row * form.steps + step);
    }
  }
}

constexpr int kTogether = 4;  // lanes that hold elements of the same row

// D fragment: register j of lane 4g + t holds row g + 8 (j / 2 % 2), column 8 (j / 4) + 2t + j % 2.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#wgmma-64n16-d
void update_words(Warp& warp, const Instruction& instruction, const Form& form,
                  const Update& update, const float* sums) {
  const int columns = form.columns();
  for (int j = 0; j < form.registers_of_d(); ++j) {
    uint32_t* words = warp.lanes<uint32_t>(instruction.list[size_t(j)]);
    const float* from = sums + j / 2 % 2 * 8 * columns + j / 4 * 8 + j % 2 * kTogether;
    float fragment[kLanes];
    for (int g = 0; g < 8; ++g) {
      std::memcpy(fragment + g * kTogether, from + g * columns, kTogether * sizeof(float));
    }
    update_accumulators(update, fragment, words, kLanes);
  }
}

// Of f16, register j holds row g + 8 (j % 2), columns 8 (j / 2) + 2t and the next.
void update_half_words(Warp& warp, const Instruction& instruction, const Form& form,
                       const Update& update, const float* sums) {
  const int columns = form.columns();
  for (int j = 0; j < form.registers_of_d(); ++j) {
    for (int g = 0; g < 8; ++g) {
      uint32_t* words = warp.lanes<uint32_t>(instruction.list[size_t(j)]) + g * kTogether;
      const float* from = sums + (g + j % 2 * 8) * columns + j / 2 * 8;
      uint32_t low[kTogether], high[kTogether];
      for (int t = 0; t < kTogether; ++t) {
        low[t] = words[t] & 0xFFFF;
        high[t] = words[t] >> 16;
      }
      update_accumulators(update, from, low, kTogether);
      update_accumulators(update, from + kTogether, high, kTogether);
      for (int t = 0; t < kTogether; ++t) words[t] = low[t] | high[t] << 16;
    }
  }
}

SharedOperand operand_a(const Form& form, uint64_t descriptor) {
  return {MatrixDescriptor::of_wgmma(descriptor),
          form.a,
          Packing::kDense,
          form.transpose_a,
          kRows,
          form.steps};
}
SharedOperand operand_b(const Form& form, uint64_t descriptor) {
  return {MatrixDescriptor::of_wgmma(descriptor),
          form.b,
          Packing::kDense,
          form.transpose_b,
          form.columns(),
          form.steps};
}

void multiply_accumulate(Operation& operation) {
  const Instruction& instruction = *operation.instruction;
  const Form form = form_of(instruction);
  const Cta& cta = *operation.warps[0]->cta;
  const int columns = form.columns(), steps = form.steps;
  static thread_local float a[kRows * kMaxSteps], b[kMaxSteps * kMaxColumns];
  static thread_local float sums[kRowsOfWarp * kMaxColumns];
  read_operand(cta, operand_b(form, operation.b), b, 1, columns, place_of_column);
  if (!form.a_in_registers) read_operand(cta, operand_a(form, operation.a), a, steps, 1);
  const Update update{form.d, operation.accumulate, form.negate, form.saturate};
  for (int w = 0; w < kWarps; ++w) {
    float* a_of_warp = a + w * kRowsOfWarp * steps;
    if (form.a_in_registers) {
      read_a_from_registers(*operation.warps[size_t(w)], instruction, form, a_of_warp);
    }
    multiply(a_of_warp, steps, b, columns, sums, columns, kRowsOfWarp, columns, steps);
    const auto update_d = form.d == AccumulatorFormat::kF16 ? update_half_words : update_words;
    update_d(*operation.warps[size_t(w)], instruction, form, update, sums);
  }
  operation.done = true;
}

// --- instructions -------------------------------------------------------------------------------

std::string shape_name(const Form& form) {
  return text("wgmma.%s.%s.%s M64 N%d %s", name_of(form.d), name_of(form.a), name_of(form.b),
              form.columns(), form.a_in_registers ? "RS" : "SS");
}

// Registers of operations in flight: accumulators may be accumulated on by another operation of the
// same shape, and A may be read again; anything else is a race.
void expect_registers_free(Warp& warp, const Instruction& instruction, const Form& form) {
  if (warp.in_flight.empty()) return;
  for (size_t i = 0; i < instruction.list.size(); ++i) {
    const uint32_t offset = instruction.list[i].offset;
    const Instruction* owner = warp.in_flight.owner(offset);
    if (owner == nullptr) continue;
    const bool is_a = i >= size_t(form.registers_of_d());
    if (is_a && warp.in_flight.is_read_only(offset)) continue;
    const Form other = form_of(*owner);
    const bool same = !is_a && other.columns_by_8 == form.columns_by_8 && other.d == form.d &&
                      owner->list[i].offset == offset;
    if (same) continue;
    fail("%s is in use by an operation in flight, and not in the same role: %s",
         is_a ? "a register of A" : text("accumulator %zu", i).c_str(),
         owner->statement->text.substr(0, 80).c_str());
  }
}

void hold_registers(Warp& warp, const Instruction& instruction) {
  const size_t num_d = size_t(form_of(instruction).registers_of_d());
  for (size_t i = 0; i < instruction.list.size(); ++i) {
    warp.in_flight.add(instruction.list[i].offset, &instruction, i >= num_d);
  }
}

// The operation that this warp issues now, new or begun by other warps of its warpgroup.
std::shared_ptr<Operation> join(Warp& warp, const Instruction& instruction,
                                const Operation& values) {
  WarpState& state = warp.state<WarpState>();
  Warpgroup& group = warp.cta->state<Warpgroups>().groups[size_t(warp.index / kWarps)];
  const uint64_t number = state.issued++;
  if (number == group.first + group.waiting.size()) {
    group.waiting.push_back(std::make_shared<Operation>(values));
  }
  std::shared_ptr<Operation> operation = group.waiting[size_t(number - group.first)];
  if (operation->instruction != &instruction) {
    fail("warps of a warpgroup execute different instructions; another one is at: %s",
         operation->instruction->statement->text.substr(0, 80).c_str());
  }
  if (operation->a != values.a || operation->b != values.b ||
      operation->accumulate != values.accumulate) {
    fail("descriptors or scale-d differ between warps of a warpgroup");
  }
  operation->warps[size_t(warp.index % kWarps)] = &warp;
  ++operation->arrived;
  if (operation->arrived == kWarps) {
    // The warps issue in the same order, so it is the first that waits.
    group.waiting.pop_front();
    ++group.first;
  }
  return operation;
}

void note_reads(Warp& warp, const Instruction& instruction, const Form& form,
                const Operation& operation) {
  Checker* checker = warp.checker();
  if (checker == nullptr) return;
  const Agent agent = checker->wgmma_agent(warp);
  const int w = warp.index % kWarps;
  // Each warp reads all of B. A quarter, other rows for each warp, finds what the whole would find,
  // for nothing orders some rows of a tile and not the others.
  Part part_of_b;
  part_of_b.stride = kWarps;
  (form.transpose_b ? part_of_b.first_step : part_of_b.first_row) = w;
  note_operand_read(*checker, warp, instruction, agent, warp.cta->rank,
                    operand_b(form, operation.b), part_of_b);
  if (form.a_in_registers) return;
  Part part_of_a;
  part_of_a.first_row = w * kRowsOfWarp;
  part_of_a.end_row = part_of_a.first_row + kRowsOfWarp;
  note_operand_read(*checker, warp, instruction, agent, warp.cta->rank,
                    operand_a(form, operation.a), part_of_a);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma
Outcome execute_mma(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  if (size_t(warp.index / kWarps * kWarps + kWarps) > warp.cta->warps.size()) {
    fail("warp %d belongs to no whole warpgroup of 4 warps", warp.index);
  }
  const Form form = form_of(i);
  WarpState& state = warp.state<WarpState>();
  if (!state.fenced) fail("wgmma.mma_async before any wgmma.fence");
  expect_registers_free(warp, i, form);

  Operation values;
  values.instruction = &i;
  if (!form.a_in_registers) values.a = uniform64(warp, i.r[0], "the descriptor of A");
  values.b = uniform64(warp, i.r[1], "the descriptor of B");
  const LaneMask scale_d = warp.predicate(i.r[2]);
  if (scale_d != 0 && scale_d != kAllLanes) fail("scale-d differs between lanes: %#010x", scale_d);
  values.accumulate = (scale_d != 0) != form.not_scale_d;

  const std::shared_ptr<Operation> operation = join(warp, i, values);
  note_reads(warp, i, form, *operation);
  hold_registers(warp, i);
  state.open.push_back(operation);
  if (operation->arrived < kWarps) return Outcome::kDone;

  const uint64_t flop = 2ull * kRows * uint64_t(form.columns()) * form.steps;
  count_matrix_instruction(warp.counters(), shape_name(form), TensorCore::kSm90, bits_of(form.a),
                           flop);
  const int pipe = kPipes + (warp.global_index / kWarps);
  warp.cluster().async.post_in_order(pipe, [operation] { multiply_accumulate(*operation); });
  ++warp.cluster().progress;
  return Outcome::kDone;
}

void decode_mma(Decoder& d, Instruction& i) {
  Form form = read_opcode(d);
  i.execute = execute_mma;
  i.converged = true;
  i.counted = InstructionClass::kMatrix;
  i.may_touch_in_flight = true;

  form.a_in_registers = d.num_operands() > 1 && d.operand(1).kind == ptx::Operand::Kind::kVector;
  const bool integers = form.d == AccumulatorFormat::kS32;
  const bool transposable = bits_of(form.a) == 16;
  const size_t num_transposes = !transposable ? 0 : form.a_in_registers ? 1 : 2;
  const size_t num_operands = 4 + (integers ? 0 : 2) + num_transposes;
  d.expect_operands(num_operands, num_operands);

  i.list = decode_registers(d, d.operand(0), size_t(form.registers_of_d()), "D", true);
  if (form.a_in_registers) {
    const auto a = decode_registers(d, d.operand(1), kRegistersOfA, "A", false);
    i.list.insert(i.list.end(), a.begin(), a.end());
  } else {
    i.r[0] = d.r64(1);
  }
  i.r[1] = d.r64(2);
  i.r[2] = d.predicate(3);
  form.not_scale_d = d.operand(3).negated;
  if (!integers) {
    const bool negate_a = read_choice(d, 4, 1, -1, "imm-scale-a: expected 1 or -1");
    const bool negate_b = read_choice(d, 5, 1, -1, "imm-scale-b: expected 1 or -1");
    form.negate = negate_a != negate_b;
  }
  if (num_transposes == 2) {
    form.transpose_a = read_choice(d, 6, 0, 1, "imm-trans-a: expected 0 or 1");
  }
  if (num_transposes > 0) {
    form.transpose_b = read_choice(d, num_operands - 1, 0, 1, "imm-trans-b: expected 0 or 1");
  }
  std::memcpy(&i.imm[0], &form, sizeof(form));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-fence
Outcome execute_fence(Warp& warp, const Instruction&, LaneMask lanes) {
  expect_whole_warp(lanes);
  warp.state<WarpState>().fenced = true;
  if (Checker* checker = warp.checker()) checker->wgmma_fence(warp);
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-commit-group
Outcome execute_commit_group(Warp& warp, const Instruction&, LaneMask lanes) {
  expect_whole_warp(lanes);
  WarpState& state = warp.state<WarpState>();
  state.groups.push_back(std::move(state.open));
  state.open.clear();
  if (Checker* checker = warp.checker()) checker->wgmma_commit(warp);
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-wait-group
Outcome execute_wait_group(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  WarpState& state = warp.state<WarpState>();
  const size_t pending = size_t(i.imm[0]);
  const size_t finished = state.groups.size() > pending ? state.groups.size() - pending : 0;
  for (size_t g = 0; g < finished; ++g) {
    for (const auto& operation : state.groups[g]) {
      if (!operation->done) return Outcome::kAgain;
    }
  }
  state.groups.erase(state.groups.begin(), state.groups.begin() + int64_t(finished));
  warp.in_flight.clear();
  for (const auto& group : state.groups) {
    for (const auto& operation : group) hold_registers(warp, *operation->instruction);
  }
  for (const auto& operation : state.open) hold_registers(warp, *operation->instruction);
  if (Checker* checker = warp.checker()) checker->wgmma_wait(warp, i.imm[0]);
  return Outcome::kDone;
}

std::string describe_wait_group(Warp& warp, const Instruction&, LaneMask) {
  for (const auto& group : warp.state<WarpState>().groups) {
    for (const auto& operation : group) {
      if (operation->arrived < kWarps) {
        return text("%d of 4 warps have executed line %d", operation->arrived,
                    operation->instruction->statement->line);
      }
    }
  }
  return "wgmma in flight";
}

}  // namespace

void decode_wgmma(Decoder& d, Instruction& i) {
  const std::string& opcode = d.statement().opcode;
  if (opcode.rfind("wgmma.mma_async.sync.aligned.", 0) == 0) return decode_mma(d, i);
  i.converged = true;
  i.counted = InstructionClass::kMatrix;
  if (opcode == "wgmma.fence.sync.aligned") {
    d.expect_operands(0, 0);
    i.execute = execute_fence;
  } else if (opcode == "wgmma.commit_group.sync.aligned") {
    d.expect_operands(0, 0);
    i.execute = execute_commit_group;
  } else if (opcode == "wgmma.wait_group.sync.aligned") {
    d.expect_operands(1, 1);
    i.imm[0] = d.immediate(0);
    if (i.imm[0] < 0) d.unknown("expected a number of groups");
    i.execute = execute_wait_group;
    i.describe_wait = describe_wait_group;
  } else {
    d.unknown();
  }
}

}  // namespace dsv4::simulator
