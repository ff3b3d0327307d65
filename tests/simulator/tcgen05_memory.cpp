// SPDX-License-Identifier: Apache-2.0
// tcgen05.ld, .st and .cp: tensor memory from and to registers, and from shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-tensor-memory-ld-st
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "checker.h"
#include "descriptors.h"
#include "error.h"
#include "matrix_operand.h"
#include "number_formats.h"
#include "tcgen05.h"

namespace dsv4::simulator {
namespace {

// --- shapes of ld and st ------------------------------------------------------------------------

enum class Shape : uint8_t { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };
enum class Reduction : uint8_t { kNone, kMin, kMax };

// What the opcode says; kept in Instruction::imm[0]. Registers: r[0] address, r[1] result of the
// reduction, list the data. imm[1]: displacement of the address, imm[2]: of the second half of
// 16x32bx2.
struct Form {
  Shape shape;
  Reduction reduction;
  ptx::Type type;  // of the reduction
  bool half_words : 1, absolute : 1, propagate_nan : 1;
};
static_assert(sizeof(Form) <= sizeof(int64_t));

Form form_of(const Instruction& instruction) {
  Form form;
  std::memcpy(&form, &instruction.imm[0], sizeof(form));
  return form;
}

int registers_per_repetition(Shape shape) {
  switch (shape) {
    case Shape::k16x128b:
      return 2;
    case Shape::k16x256b:
      return 4;
    default:
      return 1;
  }
}

// Where register j of a lane lies, relative to the address (16x32bx2: of the lane's half): a lane
// of tensor memory and a column, without half words. Lane 4g + t of the warp.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-memory-layout
struct Cell {
  int lane, column;
};
Cell cell_of(Shape shape, int lane, int j) {
  const int g = lane / 4, t = lane % 4;
  switch (shape) {
    case Shape::k32x32b:
      return {lane, j};
    case Shape::k16x64b:
      return {g + 8 * (lane % 2), lane / 2 % 2 + 2 * j};
    case Shape::k16x128b:
      return {g + 8 * (j % 2), t + 4 * (j / 2)};
    case Shape::k16x256b:
      return {g + 8 * (j / 2 % 2), 2 * t + j % 2 + 8 * (j / 4)};
    case Shape::k16x32bx2:
      return {lane % 16, j};
  }
  return {};
}

// Columns that all lanes of an instruction touch from the address on, or from the second half on.
int num_columns(const Form& form, int registers) {
  int columns = registers;
  if (form.shape == Shape::k16x64b || form.shape == Shape::k16x128b ||
      form.shape == Shape::k16x256b) {
    columns *= 2;
  }
  return form.half_words ? 2 * columns : columns;
}

// A load or store of one warp, checked.
struct Access {
  Form form;
  int first_lane, column, second_half;
};

// The hardware takes the quarter of the lanes from the warp and only bit 4 of the lane from the
// address.
Access begin_access(Warp& warp, const Instruction& i, LaneMask lanes, bool write) {
  const char* what = write ? "tcgen05.st" : "tcgen05.ld";
  expect_whole_warp(lanes);
  const uint32_t address = uniform32(warp, i.r[0], "the address") + uint32_t(i.imm[1]);
  Access access{form_of(i), warp.index % 4 * kTmemQuarterLanes, tensor_column(address),
                int(i.imm[2])};
  const int lane = tensor_lane(address);
  if (lane >= kTmemLanes) {
    fail("%s: lane %d of tensor memory, which has %d", what, lane, kTmemLanes);
  }
  const bool half = lane % kTmemQuarterLanes != 0;
  if (access.form.shape == Shape::k32x32b ? half : half && lane % kTmemQuarterLanes != 16) {
    fail("%s: lane %d is not where this shape may begin", what, lane);
  }
  access.first_lane += lane % kTmemQuarterLanes;

  const int columns = num_columns(access.form, int(i.list.size()));
  const int num_lanes = access.form.shape == Shape::k32x32b ? 32 : 16;
  Checker* checker = warp.checker();
  Agent agent;
  if (checker != nullptr) {
    agent = write ? checker->tensor_store_agent(warp) : checker->tensor_load_agent(warp);
  }
  const auto touch = [&](int column) {
    expect_columns(*warp.cta, column, columns, what);
    if (checker != nullptr) {
      checker->tensor(warp, i, agent, warp.cta->rank, access.first_lane, num_lanes, column, columns,
                      write);
    }
  };
  touch(access.column);
  if (access.form.shape == Shape::k16x32bx2) touch(access.column + access.second_half);
  return access;
}

// Calls body(word of a register, cell of tensor memory), or with half words both cells of the word.
template <class Body>
void for_each_cell(Warp& warp, const Instruction& i, const Access& access, Body&& body) {
  const Form& form = access.form;
  const int factor = form.half_words ? 2 : 1;
  for (int j = 0; j < int(i.list.size()); ++j) {
    auto* words = warp.lanes<uint32_t>(i.list[size_t(j)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const Cell cell = cell_of(form.shape, lane, j);
      const bool second = form.shape == Shape::k16x32bx2 && lane >= 16;
      const int column = access.column + (second ? access.second_half : 0) + factor * cell.column;
      body(words[lane], tensor_cell(*warp.cta, access.first_lane + cell.lane, column));
    }
  }
}

// --- reduction ----------------------------------------------------------------------------------

uint32_t reduced_float(const Form& form, uint32_t a, uint32_t b) {
  float x = bit_cast<float>(a), y = bit_cast<float>(b);
  if (form.absolute) {
    x = std::fabs(x);
    y = std::fabs(y);
  }
  if (form.propagate_nan && (x != x || y != y)) return 0x7FFFFFFF;
  return bit_cast<uint32_t>(form.reduction == Reduction::kMin ? std::fmin(x, y) : std::fmax(x, y));
}

uint32_t reduced(const Form& form, uint32_t a, uint32_t b) {
  const bool minimum = form.reduction == Reduction::kMin;
  switch (form.type) {
    case ptx::Type::kU32:
      return minimum ? std::min(a, b) : std::max(a, b);
    case ptx::Type::kS32:
      return uint32_t(minimum ? std::min(int32_t(a), int32_t(b))
                              : std::max(int32_t(a), int32_t(b)));
    default:
      return reduced_float(form, a, b);
  }
}

void reduce(Warp& warp, const Instruction& i, const Form& form) {
  auto* result = warp.lanes<uint32_t>(i.r[1]);
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t first = warp.lanes<uint32_t>(i.list[0])[lane];
    result[lane] = reduced(form, first, first);
    for (size_t j = 1; j < i.list.size(); ++j) {
      result[lane] = reduced(form, result[lane], warp.lanes<uint32_t>(i.list[j])[lane]);
    }
  }
}

// --- ld and st ----------------------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-ld
// The data arrive at once; until tcgen05.wait::ld the registers are watched.
Outcome execute_load(Warp& warp, const Instruction& i, LaneMask lanes) {
  const Access access = begin_access(warp, i, lanes, false);
  if (access.form.half_words) {
    for_each_cell(warp, i, access, [](uint32_t& word, const uint32_t* cell) {
      word = (cell[0] & 0xFFFF) | cell[1] << 16;
    });
  } else {
    for_each_cell(warp, i, access, [](uint32_t& word, const uint32_t* cell) { word = *cell; });
  }
  if (access.form.reduction != Reduction::kNone) reduce(warp, i, access.form);
  if (i.flags != 0) warp.launch().unanchored.insert(i.statement->opcode);
  if (warp.checker() != nullptr) {
    for (Register r : i.list) warp.in_flight.add(r.offset, &i);
    if (i.r[1]) warp.in_flight.add(i.r[1].offset, &i);
  }
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-st
Outcome execute_store(Warp& warp, const Instruction& i, LaneMask lanes) {
  const Access access = begin_access(warp, i, lanes, true);
  if (access.form.half_words) {
    for_each_cell(warp, i, access, [](uint32_t word, uint32_t* cell) {
      cell[0] = word & 0xFFFF;
      cell[1] = word >> 16;
    });
  } else {
    for_each_cell(warp, i, access, [](uint32_t word, uint32_t* cell) { *cell = word; });
  }
  if (i.flags != 0) warp.launch().unanchored.insert(i.statement->opcode);
  return Outcome::kDone;
}

// The opcode behind "ld" or "st" and the number of registers it asks for.
Form read_opcode(Decoder& d, OpcodeParts& parts, bool load, size_t* registers) {
  Form form{};
  const bool reduces = load && parts.take("red");
  if (!parts.take("sync") || !parts.take("aligned")) d.unknown();
  const int shape = parts.take_one_of({"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"});
  const int num = parts.take_one_of({"x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"});
  if (shape < 0 || num < 0) d.unknown();
  form.shape = Shape(shape);
  form.half_words = parts.take(load ? "pack::16b" : "unpack::16b");
  *registers = size_t(registers_per_repetition(form.shape)) << num;
  if (*registers > 128) d.unknown("more than 128 registers");
  if (!reduces) {
    if (!parts.take("b32")) d.unknown();
    return form;
  }
  const int operation = parts.take_one_of({"min", "max"});
  if (operation < 0 || num == 0 || form.half_words || form.shape != Shape::k32x32b) d.unknown();
  form.reduction = operation == 0 ? Reduction::kMin : Reduction::kMax;
  form.absolute = parts.take("abs");
  form.propagate_nan = parts.take("NaN");
  form.type = parts.take_type();
  const bool is_float = form.type == ptx::Type::kF32;
  if (!is_float && form.type != ptx::Type::kU32 && form.type != ptx::Type::kS32) d.unknown();
  if (!is_float && (form.absolute || form.propagate_nan)) d.unknown();
  return form;
}

void decode_load_or_store(Decoder& d, Instruction& i, OpcodeParts& parts, bool load) {
  size_t registers = 0;
  const Form form = read_opcode(d, parts, load, &registers);
  const bool halves = form.shape == Shape::k16x32bx2;
  const bool reduces = form.reduction != Reduction::kNone;
  const size_t num_operands = 2 + (halves ? 1 : 0) + (reduces ? 1 : 0);
  d.expect_operands(num_operands, num_operands);
  // ld {r}, [t], offset; ld.red {r}, result, [t]; st [t], offset, {r}
  const size_t data = load ? 0 : num_operands - 1;
  const size_t address = load ? (reduces ? 2 : 1) : 0;
  i.list = decode_registers(d, d.operand(data), registers, "the data", load);
  const Decoder::Address tensor = d.address(d.operand(address));
  if (tensor.wide) d.unknown("expected a 32-bit address");
  i.r[0] = tensor.base;
  i.imm[1] = tensor.displacement;
  if (reduces) i.r[1] = d.r32(1);
  if (halves) i.imm[2] = d.immediate(load ? 2 : 1);
  if (i.imm[2] < 0) d.unknown("the second half: expected an offset of columns");
  std::memcpy(&i.imm[0], &form, sizeof(form));
  // 32x32b, 16x256b and 16x32bx2 have run in public kernels with known results.
  i.flags =
      reduces || form.half_words || form.shape == Shape::k16x64b || form.shape == Shape::k16x128b;
  i.converged = true;
  i.results_waited_for_by_hardware = load;
  i.execute = load ? execute_load : execute_store;
}

// --- cp -----------------------------------------------------------------------------------------

// A row of the source goes to one lane or to several.
struct CopyShape {
  const char* name;
  const char* multicast;  // or null
  int rows, row_bytes;
  std::array<int, 4> (*lanes)(int row);  // -1: no more
  bool anchored;
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-cp
constexpr CopyShape kCopyShapes[] = {
    {"128x256b", nullptr, 128, 32, [](int r) { return std::array{r, -1, -1, -1}; }, true},
    {"128x128b", nullptr, 128, 16, [](int r) { return std::array{r, -1, -1, -1}; }, false},
    {"4x256b", nullptr, 4, 32, [](int r) { return std::array{32 * r, -1, -1, -1}; }, false},
    {"64x128b", "warpx2::02_13", 64, 16, [](int r) { return std::array{r, r + 64, -1, -1}; },
     false},
    {"64x128b", "warpx2::01_23", 64, 16,
     [](int r) { return std::array{r / 32 * 64 + r % 32, r / 32 * 64 + r % 32 + 32, -1, -1}; },
     false},
    {"32x128b", "warpx4", 32, 16, [](int r) { return std::array{r, r + 32, r + 64, r + 96}; },
     true},
};

void copy_to_tensor_memory(Cta& cta, const CopyShape& shape, const MatrixDescriptor& source,
                           int first_lane, int column) {
  for (int row = 0; row < shape.rows; ++row) {
    for (int byte = 0; byte < shape.row_bytes; byte += int(kGranuleBytes)) {
      const uint8_t* data = granule_pointer(cta, source.k_major(uint32_t(row), uint32_t(byte)));
      for (int lane : shape.lanes(row)) {
        if (lane < 0) break;
        std::memcpy(tensor_cell(cta, first_lane + lane, column + byte / 4), data, kGranuleBytes);
      }
    }
  }
}

// r[0] destination, r[1] descriptor; imm[0] index of the shape, imm[1] cta_group.
Outcome execute_copy(Warp& warp, const Instruction& i, LaneMask lanes) {
  const int group = int(i.imm[1]);
  expect_cta_group(warp, group);
  const CopyShape& shape = kCopyShapes[i.imm[0]];
  const CtaGroup blocks = cta_group_of(warp, group);
  Checker* checker = warp.checker();
  for_lanes(lanes, [&](int lane) {
    const uint32_t address = warp.lanes<uint32_t>(i.r[0])[lane];
    const int first_lane = tensor_lane(address), column = tensor_column(address);
    const int columns = shape.row_bytes / 4;
    const int lane_limit = shape.rows == 4 ? kTmemQuarterLanes : 1;
    if (first_lane >= lane_limit) {
      fail("tcgen05.cp: this shape cannot begin at lane %d", first_lane);
    }
    const MatrixDescriptor source =
        MatrixDescriptor::of_tcgen05(warp.lanes<uint64_t>(i.r[1])[lane]);
    Agent agent;
    if (checker != nullptr) agent = checker->tensor_pipe_agent(warp);
    for (int b = 0; b < blocks.count; ++b) {
      Cta& cta = *blocks.ctas[size_t(b)];
      expect_columns(cta, column, columns, "tcgen05.cp");
      if (checker == nullptr) continue;
      const SharedOperand operand{source, ElementFormat::kTF32, Packing::kDense,
                                  false,  shape.rows,           shape.row_bytes / 4};
      note_operand_read(*checker, warp, i, agent, cta.rank, operand);
      if (shape.rows == 4) {
        for (int quarter = 0; quarter < 4; ++quarter) {
          checker->tensor(warp, i, agent, cta.rank, 32 * quarter + first_lane / 16 * 16, 16, column,
                          columns, true);
        }
      } else {
        checker->tensor(warp, i, agent, cta.rank, 0, kTmemLanes, column, columns, true);
      }
    }
    warp.cluster().async.post_in_order(
        int(warp.cta->rank), [blocks, &shape, source, first_lane, column] {
          for (int b = 0; b < blocks.count; ++b) {
            copy_to_tensor_memory(*blocks.ctas[size_t(b)], shape, source, first_lane, column);
          }
        });
  });
  if (!shape.anchored) warp.launch().unanchored.insert(i.statement->opcode);
  return Outcome::kDone;
}

}  // namespace

void release_loaded_registers(Warp& warp) { warp.in_flight.clear(); }

void decode_tcgen05_load(Decoder& d, Instruction& i, OpcodeParts& parts) {
  decode_load_or_store(d, i, parts, true);
}

void decode_tcgen05_store(Decoder& d, Instruction& i, OpcodeParts& parts) {
  decode_load_or_store(d, i, parts, false);
}

void decode_tcgen05_copy(Decoder& d, Instruction& i, OpcodeParts& parts) {
  i.imm[1] = take_cta_group(d, parts);
  i.imm[0] = -1;
  for (size_t s = 0; s < std::size(kCopyShapes); ++s) {
    const CopyShape& shape = kCopyShapes[s];
    if (!d.has(shape.name)) continue;
    if (shape.multicast != nullptr && !d.has(shape.multicast)) continue;
    parts.take(shape.name);
    if (shape.multicast != nullptr) parts.take(shape.multicast);
    i.imm[0] = int64_t(s);
    break;
  }
  if (i.imm[0] < 0) d.unknown();
  d.expect_operands(2, 2);
  i.r[0] = decode_tensor_address(d, d.operand(0));
  i.r[1] = d.r64(1);
  i.execute = execute_copy;
}

}  // namespace dsv4::simulator
