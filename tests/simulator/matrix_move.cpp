// SPDX-License-Identifier: Apache-2.0
// Matrices between shared memory and the registers of a warp: ldmatrix, stmatrix, movmatrix.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix
//
// In formulas below, lane 4g + t holds the register named.
#include <array>
#include <cstring>

#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "machine.h"
#include "matrix_operand.h"
#include "opcode_parts.h"
#include "wavefronts.h"

namespace dsv4::simulator {
namespace {

constexpr int kRowBytes = 16;
constexpr int kRowsPerPass = 8;  // 128 bytes: what shared memory delivers at once

enum Flags : uint32_t { kTransposed = 1, kUnanchored = 2 };

using Row = std::array<uint8_t, kRowBytes>;

// Rows in shared memory whose addresses the first `count` lanes give; calls body(row, bytes in
// memory).
template <class Body>
void access_rows(Warp& warp, const Instruction& i, int count, bool write, Body&& body) {
  const char* what = write ? "stmatrix" : "ldmatrix";
  Checker* checker = warp.checker();
  uint32_t offsets[kLanes];
  for (int row = 0; row < count; ++row) {
    const uint32_t address = shared_address_of(warp, i, 0, row, what);
    expect_aligned(address, kRowBytes, what);
    expect_reachable(warp, address, true, what);
    body(row, shared_pointer(warp.cluster(), address, kRowBytes, what));
    if (checker != nullptr) checker->shared(warp, i, address, kRowBytes, write);
    offsets[row] = shared_offset(address);
  }
  if (!warp.launch().options.count) return;
  const LaneMask lanes = count == kLanes ? kAllLanes : (1u << count) - 1;
  const uint32_t wavefronts = shared_wavefronts(lanes, offsets, kRowBytes);
  WarpCounters& counters = warp.counters().warps[size_t(warp.index)];
  ++(write ? counters.shared_stores : counters.shared_loads);
  (write ? counters.shared_store_wavefronts : counters.shared_load_wavefronts) += wavefronts;
}

std::array<Row, kLanes> load_rows(Warp& warp, const Instruction& i, int count) {
  std::array<Row, kLanes> rows;
  access_rows(warp, i, count, false, [&](int row, const uint8_t* data) {
    std::memcpy(rows[size_t(row)].data(), data, kRowBytes);
  });
  return rows;
}

void store_rows(Warp& warp, const Instruction& i, int count, const std::array<Row, kLanes>& rows) {
  access_rows(warp, i, count, true, [&](int row, uint8_t* data) {
    std::memcpy(data, rows[size_t(row)].data(), kRowBytes);
  });
  ++warp.cluster().progress;
}

void note_if_unanchored(Warp& warp, const Instruction& i) {
  if (i.flags & kUnanchored) warp.launch().unanchored.insert(i.statement->opcode);
}

// Matrix q of 8 rows of 8 16-bit elements: register q holds row g, elements 2t and 2t + 1, or
// transposed rows 2t and 2t + 1 of element g. This is where a half of a
// register lies in the rows.
uint8_t* half_word(std::array<Row, kLanes>& rows, const Instruction& i, int matrix, int lane,
                   int half) {
  const int g = lane / 4, element = lane % 4 * 2 + half;
  const bool transposed = i.flags & kTransposed;
  Row& row = rows[size_t(kRowsPerPass * matrix + (transposed ? element : g))];
  return row.data() + 2 * (transposed ? g : element);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix
Outcome execute_load_16(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const int matrices = int(i.list.size());
  auto rows = load_rows(warp, i, kRowsPerPass * matrices);
  for (int q = 0; q < matrices; ++q) {
    auto* words = warp.lanes<uint32_t>(i.list[size_t(q)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      uint16_t halves[2];
      for (int half = 0; half < 2; ++half) {
        std::memcpy(&halves[half], half_word(rows, i, q, lane, half), 2);
      }
      words[lane] = halves[0] | uint32_t(halves[1]) << 16;
    }
  }
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
Outcome execute_store_16(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const int matrices = int(i.list.size());
  std::array<Row, kLanes> rows;
  for (int q = 0; q < matrices; ++q) {
    const auto* words = warp.lanes<uint32_t>(i.list[size_t(q)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int half = 0; half < 2; ++half) {
        const auto value = uint16_t(words[lane] >> 16 * half);
        std::memcpy(half_word(rows, i, q, lane, half), &value, 2);
      }
    }
  }
  store_rows(warp, i, kRowsPerPass * matrices, rows);
  return Outcome::kDone;
}

// Rows of 16 elements unpacked to a byte each, in the low bits.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-optional-decompression
void unpack(Row& row, int bits) {
  if (bits == 8) return;
  const Row packed = row;
  for (int e = 0; e < kRowBytes; ++e) {
    uint16_t window;  // padding keeps it inside of the row
    std::memcpy(&window, packed.data() + e * bits / 8, sizeof(window));
    row[size_t(e)] = uint8_t(window >> e * bits % 8 & ((1 << bits) - 1));
  }
}

// Matrix of 16 rows of 16 bytes, transposed: byte b of its register r holds element g + 8 (b / 2)
// of row 4t + 2r + b % 2.
Outcome execute_load_8_transposed(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const int matrices = int(i.list.size()) / 2;
  auto rows = load_rows(warp, i, 16 * matrices);
  for (Row& row : rows) unpack(row, int(i.imm[1]));
  for (int r = 0; r < 2 * matrices; ++r) {
    auto* words = warp.lanes<uint32_t>(i.list[size_t(r)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, t = lane % 4;
      uint32_t word = 0;
      for (int b = 0; b < 4; ++b) {
        const size_t row = size_t(16 * (r / 2) + 4 * t + 2 * (r % 2) + b % 2);
        word |= uint32_t(rows[row][size_t(g + 8 * (b / 2))]) << 8 * b;
      }
      words[lane] = word;
    }
  }
  note_if_unanchored(warp, i);
  return Outcome::kDone;
}

// Matrix q of 8 rows of 16 packed elements: byte b of register q holds element 4t + b of row g.
Outcome execute_load_unpacked(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const int matrices = int(i.list.size());
  auto rows = load_rows(warp, i, kRowsPerPass * matrices);
  for (Row& row : rows) unpack(row, int(i.imm[1]));
  for (int q = 0; q < matrices; ++q) {
    auto* words = warp.lanes<uint32_t>(i.list[size_t(q)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      std::memcpy(&words[lane], rows[size_t(8 * q + lane / 4)].data() + lane % 4 * 4, 4);
    }
  }
  note_if_unanchored(warp, i);
  return Outcome::kDone;
}

// Matrix q of 16 x 8 bytes, stored transposed: byte b of register q becomes byte g + 8 (b / 2) of
// row 2t + b % 2.
Outcome execute_store_8_transposed(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const int matrices = int(i.list.size());
  std::array<Row, kLanes> rows;
  for (int q = 0; q < matrices; ++q) {
    const auto* words = warp.lanes<uint32_t>(i.list[size_t(q)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int b = 0; b < 4; ++b) {
        rows[size_t(8 * q + 2 * t + b % 2)][size_t(g + 8 * (b / 2))] =
            uint8_t(words[lane] >> 8 * b);
      }
    }
  }
  store_rows(warp, i, kRowsPerPass * matrices, rows);
  return Outcome::kDone;
}

// Register of lane 4g + t: row g, columns 2t and 2t + 1 before, row and column exchanged after.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-movmatrix
Outcome execute_transpose(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const auto* from = warp.lanes<uint32_t>(i.r[1]);
  uint16_t matrix[8][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    std::memcpy(&matrix[lane / 4][lane % 4 * 2], &from[lane], 4);
  }
  auto* to = warp.lanes<uint32_t>(i.r[0]);
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    to[lane] = matrix[2 * t][g] | uint32_t(matrix[2 * t + 1][g]) << 16;
  }
  return Outcome::kDone;
}

void decode_load(Decoder& d, Instruction& i, OpcodeParts& parts) {
  const int shape = parts.take_one_of({"m8n8", "m16n16", "m8n16"});
  const bool transposed = parts.take("trans");
  const int num = parts.take_one_of({"x1", "x2", "x4"});
  if (!parts.take("shared")) parts.take("shared::cta");
  i.imm[1] = 8;
  bool packed = false;
  if (parts.take("b8x16")) {
    const int source = parts.take_one_of({"b6x16_p32", "b4x16_p64"});
    if (source < 0) d.unknown();
    i.imm[1] = source == 0 ? 6 : 4;
    packed = true;
  }
  const bool b16 = parts.take("b16"), b8 = parts.take("b8");
  parts.expect_none_left();
  if (shape < 0 || num < 0) d.unknown();
  size_t registers = size_t(1) << num;
  if (shape == 0 && b16 && !b8 && !packed) {
    i.execute = execute_load_16;
    if (transposed) i.flags |= kTransposed;
  } else if (shape == 1 && transposed && num <= 1 && !b16 && b8 != packed) {
    i.execute = execute_load_8_transposed;
    i.flags |= kUnanchored;
    registers *= 2;
  } else if (shape == 2 && !transposed && !b16 && !b8 && packed) {
    i.execute = execute_load_unpacked;
    i.flags |= kUnanchored;
  } else {
    d.unknown();
  }
  d.expect_operands(2, 2);
  i.list = decode_registers(d, d.operand(0), registers, "the matrices", true);
  decode_address(d, i, d.operand(1), 0);
}

void decode_store(Decoder& d, Instruction& i, OpcodeParts& parts) {
  const int shape = parts.take_one_of({"m8n8", "m16n8"});
  const bool transposed = parts.take("trans");
  const int num = parts.take_one_of({"x1", "x2", "x4"});
  if (!parts.take("shared")) parts.take("shared::cta");
  const int type = parts.take_one_of({"b16", "b8"});
  parts.expect_none_left();
  if (shape < 0 || num < 0) d.unknown();
  if (shape == 0 && type == 0) {
    i.execute = execute_store_16;
    if (transposed) i.flags |= kTransposed;
  } else if (shape == 1 && type == 1 && transposed) {
    i.execute = execute_store_8_transposed;
  } else {
    d.unknown();
  }
  d.expect_operands(2, 2);
  decode_address(d, i, d.operand(0), 0);
  i.list = decode_registers(d, d.operand(1), size_t(1) << num, "the matrices", false);
}

}  // namespace

void decode_matrix_move(Decoder& d, Instruction& i) {
  i.converged = true;
  i.counted = InstructionClass::kMatrixMove;
  OpcodeParts parts(d);
  if (!parts.take("sync") || !parts.take("aligned")) d.unknown();
  const std::string& name = d.statement().parts[0];
  if (name == "ldmatrix") return decode_load(d, i, parts);
  if (name == "stmatrix") return decode_store(d, i, parts);
  if (!parts.take("m8n8") || !parts.take("trans") || !parts.take("b16")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(2, 2);
  i.r[0] = d.r32(0);
  i.r[1] = d.r32(1);
  i.execute = execute_transpose;
}

}  // namespace dsv4::simulator
