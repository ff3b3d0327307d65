// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication of a warp, operands in registers: mma.sync, with and without block scaling.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "error.h"
#include "families.h"
#include "machine.h"
#include "matrix_multiply.h"
#include "matrix_operand.h"
#include "number_formats.h"

namespace dsv4::simulator {
namespace {

constexpr int kRows = 16;      // M
constexpr int kColumns = 8;    // N
constexpr int kMaxSteps = 64;  // K
constexpr int kMaxBlocks = 4;  // scaling blocks along K

// What the opcode says; kept in Instruction::imm[0]. Registers: list holds D, A, B, C and, with
// block scaling, the scales of A, byte and thread selectors of A, and the same three of B.
struct Form {
  uint8_t steps;
  ElementFormat a, b;
  AccumulatorFormat d;
  uint8_t blocks;  // scales of a row; 0 without block scaling
  Packing packing;
  bool saturate : 1, ue4m3 : 1;

  int words_of_a() const { return 2 * words_of_b(); }
  int words_of_b() const { return steps / (4 * elements_per_word(a, packing)); }
  int words_of_d() const { return d == AccumulatorFormat::kF16 ? 2 : 4; }
};
static_assert(sizeof(Form) <= sizeof(int64_t));

Form form_of(const Instruction& instruction) {
  Form form;
  std::memcpy(&form, &instruction.imm[0], sizeof(form));
  return form;
}

// --- fragments ----------------------------------------------------------------------------------
// ------------------------------------------------------------------------------------- Lane 4g +
// t, E elements in a register. Register q of A: row g + 8 (q % 2), elements from step 4E (q / 2) +
// E t on. Register q of B: column g, elements from step 4E q + E t on. Register j of C and D: row g
// + 8 (j / 2), column 2t + j % 2; of f16, row g + 8 j, columns 2t and the next.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float

void read_a(Warp& warp, const Form& form, const Register* registers, float* a) {
  const int elements = elements_per_word(form.a, form.packing);
  for (int q = 0; q < form.words_of_a(); ++q) {
    const auto* words = warp.lanes<uint32_t>(registers[q]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4 + 8 * (q % 2), step = (4 * (q / 2) + lane % 4) * elements;
      decode_word(form.a, form.packing, words[lane], a + row * form.steps + step);
    }
  }
}

// As [step][column].
void read_b(Warp& warp, const Form& form, const Register* registers, float* b) {
  const int elements = elements_per_word(form.b, form.packing);
  for (int q = 0; q < form.words_of_b(); ++q) {
    const auto* words = warp.lanes<uint32_t>(registers[q]);
    for (int lane = 0; lane < kLanes; ++lane) {
      float values[8];
      decode_word(form.b, form.packing, words[lane], values);
      const int column = lane / 4, step = (4 * q + lane % 4) * elements;
      for (int i = 0; i < elements; ++i) b[(step + i) * kColumns + column] = values[i];
    }
  }
}

void write_d(Warp& warp, const Form& form, const Register* d, const Register* c,
             const float* sums) {
  const Update update{form.d, true, false, form.saturate};
  if (form.d == AccumulatorFormat::kF16) {
    for (int j = 0; j < 2; ++j) {
      const auto* from = warp.lanes<uint32_t>(c[j]);
      uint32_t words[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t halves[2] = {from[lane] & 0xFFFF, from[lane] >> 16};
        update_accumulators(update, sums + (lane / 4 + 8 * j) * kColumns + lane % 4 * 2, halves, 2);
        words[lane] = halves[0] | halves[1] << 16;
      }
      std::memcpy(warp.lanes<uint32_t>(d[j]), words, sizeof(words));
    }
    return;
  }
  for (int j = 0; j < 4; ++j) {
    float fragment[kLanes];
    uint32_t words[kLanes];
    std::memcpy(words, warp.lanes<uint32_t>(c[j]), sizeof(words));
    for (int lane = 0; lane < kLanes; ++lane) {
      fragment[lane] = sums[(lane / 4 + 8 * (j / 2)) * kColumns + lane % 4 * 2 + j % 2];
    }
    update_accumulators(update, fragment, words, kLanes);
    std::memcpy(warp.lanes<uint32_t>(d[j]), words, sizeof(words));
  }
}

// --- block scaling ------------------------------------------------------------------------------

struct Scales {
  float a[kRows][kMaxBlocks], b[kColumns][kMaxBlocks];
};

float scale_value(bool ue4m3, uint8_t bits) {
  return ue4m3 ? from_e4m3(bits & 0x7F) : from_ue8m0(bits);
}

// The scales of row g + 8h come from lane 4g + 2 thread-id-a + h, those of column g from lane
// 4g + thread-id-b, from byte byte-id on.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-block-scaling
Scales read_scales(Warp& warp, const Form& form, const Register* registers) {
  const auto* words_a = warp.lanes<uint32_t>(registers[0]);
  const auto* words_b = warp.lanes<uint32_t>(registers[3]);
  const int byte_a = uint16_t(uniform32(warp, registers[1], "byte-id-a"));
  const int thread_a = uint16_t(uniform32(warp, registers[2], "thread-id-a"));
  const int byte_b = uint16_t(uniform32(warp, registers[4], "byte-id-b"));
  const int thread_b = uint16_t(uniform32(warp, registers[5], "thread-id-b"));
  const int blocks = form.blocks;
  if ((byte_a | thread_a | byte_b | thread_b) != 0) {
    warp.launch().unanchored.insert("mma.sync with scale selectors other than 0");
  }
  const auto expect_byte = [&](const char* name, int byte) {
    if (byte % blocks != 0 || byte + blocks > 4) {
      fail("%s: no %d scales at byte %d", name, blocks, byte);
    }
  };
  expect_byte("byte-id-a", byte_a);
  expect_byte("byte-id-b", byte_b);
  if (thread_a > 1) fail("thread-id-a: expected 0 or 1, got %d", thread_a);
  if (thread_b > 3) fail("thread-id-b: expected 0 to 3, got %d", thread_b);
  Scales scales;
  for (int block = 0; block < blocks; ++block) {
    for (int row = 0; row < kRows; ++row) {
      const uint32_t word = words_a[row % 8 * 4 + 2 * thread_a + row / 8];
      scales.a[row][block] = scale_value(form.ue4m3, uint8_t(word >> 8 * (byte_a + block)));
    }
    for (int column = 0; column < kColumns; ++column) {
      const uint32_t word = words_b[column * 4 + thread_b];
      scales.b[column][block] = scale_value(form.ue4m3, uint8_t(word >> 8 * (byte_b + block)));
    }
  }
  return scales;
}

void multiply_scaled(const float* a, const float* b, const Scales& scales, const Form& form,
                     float* sums) {
  const int steps = form.steps / form.blocks;
  for (int i = 0; i < kRows * kColumns; ++i) sums[i] = 0.0f;
  for (int block = 0; block < form.blocks; ++block) {
    float part[kRows * kColumns];
    multiply(a + block * steps, form.steps, b + block * steps * kColumns, kColumns, part, kColumns,
             kRows, kColumns, steps);
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        const int i = row * kColumns + column;
        sums[i] += part[i] * scales.a[row][block] * scales.b[column][block];
      }
    }
  }
}

// --- instructions -------------------------------------------------------------------------------

Outcome execute_mma(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const Form form = form_of(i);
  const Register* d = i.list.data();
  const Register* a = d + form.words_of_d();
  const Register* b = a + form.words_of_a();
  const Register* c = b + form.words_of_b();
  float a_values[kRows * kMaxSteps], b_values[kMaxSteps * kColumns], sums[kRows * kColumns];
  read_a(warp, form, a, a_values);
  read_b(warp, form, b, b_values);
  if (form.blocks > 0) {
    const Scales scales = read_scales(warp, form, c + form.words_of_d());
    multiply_scaled(a_values, b_values, scales, form, sums);
  } else {
    multiply(a_values, form.steps, b_values, kColumns, sums, kColumns, kRows, kColumns, form.steps);
  }
  write_d(warp, form, d, c, sums);
  const int rate_bits = form.packing == Packing::kInBytes ? 8 : bits_of(form.a);
  count_matrix_instruction(warp.counters(), i.statement->opcode, TensorCore::kSm120, rate_bits,
                           2ull * kRows * kColumns * form.steps);
  if (i.flags != 0) warp.launch().unanchored.insert(i.statement->opcode);
  return Outcome::kDone;
}

// Lane 4g + t: A row g, step t; B column g, step t; C and D row g, columns 2t and 2t + 1. One fused
// multiply-add a step, in order.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-884-f64
Outcome execute_mma_f64(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const double* a = warp.lanes<double>(i.list[2]);
  const double* b = warp.lanes<double>(i.list[3]);
  double sums[2][kLanes];
  for (int j = 0; j < 2; ++j) {
    const double* c = warp.lanes<double>(i.list[size_t(4 + j)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2 + j;
      double sum = c[lane];
      for (int step = 0; step < 4; ++step) {
        sum = std::fma(a[4 * row + step], b[4 * column + step], sum);
      }
      sums[j][lane] = sum;
    }
  }
  for (int j = 0; j < 2; ++j) {
    std::memcpy(warp.lanes<double>(i.list[size_t(j)]), sums[j], sizeof(sums[j]));
  }
  ++warp.counters().matrix_instructions[i.statement->opcode];
  warp.counters().matrix_flop += 2 * 8 * 8 * 4;
  return Outcome::kDone;
}

// --- decoding -----------------------------------------------------------------------------------

using Names = std::vector<std::string>;

bool is_one_of(ElementFormat f, std::initializer_list<ElementFormat> formats) {
  for (ElementFormat candidate : formats) {
    if (f == candidate) return true;
  }
  return false;
}

bool read_element_format(const std::string& name, ElementFormat* format) {
  for (int i = 0; i <= int(ElementFormat::kU8); ++i) {
    if (name == name_of(ElementFormat(i))) {
      *format = ElementFormat(i);
      return true;
    }
  }
  return false;
}

// The parts behind "mma.sync.aligned", sorted by what they say.
struct Opcode {
  std::string shape, kind, scale_vector;
  Names types;  // d, a, b, c and the type of scales
  bool block_scale = false, saturate = false;
};

// ptxas takes the kind and its scaling before the shape or behind .row.col.
Opcode read_opcode(const Decoder& d) {
  const Names& parts = d.statement().parts;
  if (parts.size() < 9 || parts[1] != "sync" || parts[2] != "aligned") d.unknown();
  Opcode opcode;
  Names others;
  for (size_t i = 3; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    if (part.rfind("kind::", 0) == 0) {
      opcode.kind = part.substr(6);
    } else if (part.rfind("scale_vec::", 0) == 0) {
      opcode.scale_vector = part.substr(11);
    } else if (part == "block_scale") {
      opcode.block_scale = true;
    } else if (part == "satfinite") {
      opcode.saturate = true;
    } else {
      others.push_back(part);
    }
  }
  if (others.size() < 3 || others[1] != "row" || others[2] != "col") {
    d.unknown("expected a shape and .row.col");
  }
  opcode.shape = others[0];
  opcode.types.assign(others.begin() + 3, others.end());
  return opcode;
}

// Errors for what the tensor core of no GPU has.
Form form_of_opcode(const Decoder& d, const Opcode& opcode) {
  using F = ElementFormat;
  Form form{};
  const bool scaled = opcode.kind.rfind("mx", 0) == 0;
  const size_t num_types = scaled ? 5 : 4;
  if (opcode.block_scale != scaled || opcode.types.size() != num_types) d.unknown();
  if (!scaled && !opcode.scale_vector.empty()) d.unknown();
  const std::string& accumulator = opcode.types[0];
  if (accumulator != opcode.types[3]) d.unknown("C and D: expected the same type");
  if (!read_element_format(opcode.types[1], &form.a) ||
      !read_element_format(opcode.types[2], &form.b)) {
    d.unknown();
  }
  int steps = 0, used = 0;
  if (std::sscanf(opcode.shape.c_str(), "m16n8k%d%n", &steps, &used) != 1 ||
      size_t(used) != opcode.shape.size()) {
    d.unknown();
  }
  form.steps = uint8_t(steps);
  form.saturate = opcode.saturate;

  const bool integers = is_one_of(form.a, {F::kS8, F::kU8}) && is_one_of(form.b, {F::kS8, F::kU8});
  const auto is_fp8 = [](F f) { return is_one_of(f, {F::kE4M3, F::kE5M2}); };
  const auto is_small = [&](F f) {
    return is_fp8(f) || is_one_of(f, {F::kE2M3, F::kE3M2, F::kE2M1});
  };
  const bool fp8 = is_fp8(form.a) && is_fp8(form.b);
  const bool small = is_small(form.a) && is_small(form.b);
  bool legal = false, half_sums = false;
  if (opcode.kind.empty()) {
    if (form.a == F::kF16 && form.b == F::kF16) {
      legal = steps == 8 || steps == 16;
      half_sums = true;
    } else if (form.a == F::kBF16 && form.b == F::kBF16) {
      legal = steps == 8 || steps == 16;
    } else if (form.a == F::kTF32 && form.b == F::kTF32) {
      legal = steps == 4 || steps == 8;
    } else if (fp8) {
      legal = steps == 16 || steps == 32;
      half_sums = true;
    } else if (integers) {
      legal = steps == 16 || steps == 32;
    }
  } else if (opcode.kind == "f8f6f4") {
    legal = small && steps == 32;
    half_sums = true;
    form.packing = Packing::kInBytes;
  } else if (opcode.kind == "mxf8f6f4") {
    legal = small && steps == 32 && (opcode.scale_vector.empty() || opcode.scale_vector == "1X") &&
            opcode.types[4] == "ue8m0";
    form.packing = Packing::kInBytes;
    form.blocks = 1;
  } else if (opcode.kind == "mxf4") {
    legal = steps == 64 && (opcode.scale_vector.empty() || opcode.scale_vector == "2X") &&
            opcode.types[4] == "ue8m0";
    form.blocks = 2;
  } else if (opcode.kind == "mxf4nvf4") {
    const bool two = opcode.scale_vector == "2X";
    legal = steps == 64 && (two || opcode.scale_vector == "4X") &&
            (opcode.types[4] == "ue8m0" || (!two && opcode.types[4] == "ue4m3"));
    form.blocks = two ? 2 : 4;
  }
  if (form.blocks >= 2) legal = legal && form.a == F::kE2M1 && form.b == F::kE2M1;
  if (!legal || (opcode.saturate && !integers)) d.unknown();
  if (scaled) form.ue4m3 = opcode.types[4] == "ue4m3";

  if (accumulator == "s32" && integers) {
    form.d = AccumulatorFormat::kS32;
  } else if (accumulator == "f32" && !integers) {
    form.d = AccumulatorFormat::kF32;
  } else if (accumulator == "f16" && half_sums) {
    form.d = AccumulatorFormat::kF16;
  } else {
    d.unknown("this type of C and D is not simulated");
  }
  return form;
}

// Forms that have run neither on hardware nor in a public kernel with known results: those of
// sm_120 but for one UE8M0 scale for 32 steps of e4m3 (and selectors of 0: see read_scales).
bool is_unanchored(const Form& form) {
  const bool e4m3 = form.a == ElementFormat::kE4M3 && form.b == ElementFormat::kE4M3;
  return form.blocks == 1 ? !e4m3 : form.blocks > 1 || form.packing == Packing::kInBytes;
}

void decode_f64(Decoder& d, Instruction& i) {
  d.expect_operands(4, 4);
  static constexpr size_t kSizes[] = {2, 1, 1, 2};
  static constexpr const char* kNames[] = {"D", "A", "B", "C"};
  for (size_t o = 0; o < 4; ++o) {
    const auto registers = decode_registers(d, d.operand(o), kSizes[o], kNames[o], o == 0, 8);
    i.list.insert(i.list.end(), registers.begin(), registers.end());
  }
  i.execute = execute_mma_f64;
}

}  // namespace

void decode_mma_sync(Decoder& d, Instruction& i) {
  i.converged = true;
  i.counted = InstructionClass::kMatrix;
  if (d.statement().opcode == "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64") {
    return decode_f64(d, i);
  }
  const Form form = form_of_opcode(d, read_opcode(d));
  const size_t num_operands = form.blocks > 0 ? 8 : 4;
  d.expect_operands(num_operands, num_operands);
  const auto add = [&](size_t operand, int count, const char* name) {
    const auto registers =
        decode_registers(d, d.operand(operand), size_t(count), name, operand == 0);
    i.list.insert(i.list.end(), registers.begin(), registers.end());
  };
  add(0, form.words_of_d(), "D");
  add(1, form.words_of_a(), "A");
  add(2, form.words_of_b(), "B");
  add(3, form.words_of_d(), "C");
  if (form.blocks > 0) {
    add(4, 1, "the scales of A");
    add(5, 2, "the selectors of A");
    add(6, 1, "the scales of B");
    add(7, 2, "the selectors of B");
  }
  i.flags = is_unanchored(form);
  std::memcpy(&i.imm[0], &form, sizeof(form));
  i.execute = execute_mma;
}

}  // namespace dsv4::simulator
