// SPDX-License-Identifier: Apache-2.0
// What the three files of tcgen05 share: tensor memory, who may use it, and pairs of blocks.
//   tcgen05.cpp         allocation, fences, waits, commit
//   tcgen05_mma.cpp     mma
//   tcgen05_memory.cpp  ld, st, cp
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-memory
#pragma once

#include <array>
#include <cstdint>

#include "machine.h"
#include "opcode_parts.h"
#include "program.h"

namespace dsv4::simulator {

inline constexpr int kTmemQuarterLanes = 32;  // those that one warp of four may load and store
inline constexpr int kTmemUnit = 32;          // columns of the smallest allocation

// Tensor memory of a block: which columns are allocated, and what the block's instructions have
// agreed on.
struct TensorMemory : FamilyState {
  const Cta* cta = nullptr;
  // For each unit of columns, the number of columns of the allocation that begins there; or, for
  // the rest of an allocation, kInside; or kFree.
  static constexpr int kFree = 0, kInside = -1;
  std::array<int, kTmemColumns / kTmemUnit> units{};
  int last_columns = kTmemColumns;  // of the last allocation: they may not grow
  bool relinquished = false;
  int cta_group = 0;  // what the first instruction said

  // An alloc.cta_group::2 that waits for the other block of the pair.
  const Warp* requester = nullptr;
  int requested = 0;  // columns
  int granted = -1;   // first column, once both blocks have asked

  bool is_allocated(int column) const { return units[size_t(column / kTmemUnit)] != kFree; }
  int num_allocated() const;
  // First column of a free place for so many columns, or -1.
  int find_free(int columns) const;
  void allocate(int column, int columns);
  void release(int column, int columns);
  void finish() override;
};

TensorMemory& tensor_memory(Cta& cta);

// Blocks on which an instruction of this cta_group acts: the warp's own, or its pair, the even one
// first.
struct CtaGroup {
  std::array<Cta*, 2> ctas{};
  int count = 0;
};
CtaGroup cta_group_of(Warp& warp, int group);

// All tcgen05 instructions of a kernel have the same cta_group.
void expect_cta_group(Warp& warp, int group);

// Errors unless the columns are allocated.
void expect_columns(Cta& cta, int column, int columns, const char* what);

inline uint32_t* tensor_cell(Cta& cta, int lane, int column) {
  return &cta.tmem[size_t(lane) * kTmemColumns + size_t(column)];
}
inline int tensor_lane(uint32_t address) { return int(address >> 16); }
inline int tensor_column(uint32_t address) { return int(address & 0xFFFF); }

// Takes .cta_group::1 or ::2 from the opcode.
int take_cta_group(const Decoder& decoder, OpcodeParts& parts);

// [address in tensor memory], with no displacement.
Register decode_tensor_address(Decoder& decoder, const ptx::Operand& operand);

void decode_tcgen05_mma(Decoder& decoder, Instruction& instruction, OpcodeParts& parts);
void decode_tcgen05_load(Decoder& decoder, Instruction& instruction, OpcodeParts& parts);
void decode_tcgen05_store(Decoder& decoder, Instruction& instruction, OpcodeParts& parts);
void decode_tcgen05_copy(Decoder& decoder, Instruction& instruction, OpcodeParts& parts);

// For tcgen05.wait::ld: the warp's loads are complete.
void release_loaded_registers(Warp& warp);

}  // namespace dsv4::simulator
