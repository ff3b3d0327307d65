// SPDX-License-Identifier: Apache-2.0
// Operands of wgmma and tcgen05 in shared memory: from a descriptor to floats, and to the checker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "checker.h"
#include "descriptors.h"
#include "machine.h"
#include "matrix_multiply.h"
#include "program.h"

namespace dsv4::simulator {

// Part of an operand: rows [first_row, end_row), of a K-major one every `stride`-th row from
// first_row on, of an MN-major one every `stride`-th step from first_step on.
struct Part {
  int first_row = 0, end_row = 1 << 30;
  int first_step = 0;
  int stride = 1;
};

// `rows` of M or N by `k` steps.
struct SharedOperand {
  MatrixDescriptor descriptor;
  ElementFormat format;
  Packing packing = Packing::kDense;
  bool mn_major = false;
  int rows;
  int k;

  // Calls body(address, row, step) for the first element of each granule.
  template <class Body>
  void for_each_granule(const Part& part, Body&& body) const {
    const int elements = elements_per_granule(format, packing);
    const int end_row = std::min(part.end_row, rows);
    if (mn_major) {
      const int row_bytes = bits_of(format) / 8;  // there are no smaller elements in this layout
      for (int step = part.first_step; step < k; step += part.stride) {
        for (int row = part.first_row; row < end_row; row += elements) {
          body(descriptor.mn_major(uint32_t(row * row_bytes), uint32_t(step)), row, step);
        }
      }
    } else {
      for (int row = part.first_row; row < end_row; row += part.stride) {
        for (int step = 0; step < k; step += elements) {
          const uint32_t k_byte = uint32_t(step / elements) * kGranuleBytes;
          body(descriptor.k_major(uint32_t(row), k_byte), row, step);
        }
      }
    }
  }
};

// Writes element (row, step) to out[place(row) * row_stride + step * k_stride]; `place` may be null
// for the row itself. Errors if the operand leaves the block's shared memory.
void read_operand(const Cta& cta, const SharedOperand& operand, float* out, int row_stride,
                  int k_stride, int (*place)(int row) = nullptr);

// Tells the checker that `agent` reads the operand, or part of it, from the shared memory of block
// `rank`. Errors as above.
void note_operand_read(Checker& checker, Warp& issuer, const Instruction& by, Agent agent,
                       uint32_t rank, const SharedOperand& operand, const Part& part = {});

// A host pointer to 16 bytes of the block's shared memory at an address from a descriptor.
const uint8_t* granule_pointer(const Cta& cta, uint32_t address);

// The registers of a vector operand. Errors unless there are `count`, none of them `_`, and no
// constants where the instruction writes them.
std::vector<Register> decode_registers(Decoder& decoder, const ptx::Operand& operand, size_t count,
                                       const char* name, bool written, int bytes = 4);

// Errors unless all lanes of the warp execute the instruction, as .sync.aligned asks.
void expect_whole_warp(LaneMask lanes);

// The value that all lanes of a register must agree on.
uint32_t uniform32(Warp& warp, Register r, const char* what);
uint64_t uniform64(Warp& warp, Register r, const char* what);

}  // namespace dsv4::simulator
