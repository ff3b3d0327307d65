// SPDX-License-Identifier: Apache-2.0
// One decode cut into tasks: (row, block of heads, part of the row's slots). decode_kernel.cpp runs
// a task; it is compiled once for each instruction set, engine.cpp picks one at run time.
#pragma once

#include <cstddef>

#include "dsv4/dsv4.h"
#include "plan.h"

namespace dsv4::cpu {

inline constexpr int kHeadBlock = 64;  // heads of one task at most
inline constexpr int kTileSlots = 64;  // slots dealt with at a time
inline constexpr int kDimChunk = 32;   // dims of them
// Floats between the keys of a tile: 32 + 16, so that the same dimension of many slots falls into
// different cache sets.
inline constexpr int kKeyStride = kDimChunk + 16;

// What one thread needs beside its stack. Keys, scores and 32 dims of the query fit the first-level
// cache, all of it the second.
struct alignas(64) Scratch {
  float query[kHeadDim][kHeadBlock];  // transposed; heads beyond the block's are zero
  float keys[kTileSlots][kKeyStride];
  float scores[kTileSlots][kHeadBlock];
  float out[kHeadBlock][kHeadDim];
  float row_max[kHeadBlock];
  float row_sum[kHeadBlock];
  float used_sum[kHeadBlock];
};

// The same for tiles. Keys are bf16, which holds every key of every format exactly. "Paired" rows
// hold two bf16 in 32 bits, as tiles want their second operand: two dims of the query, two slots of
// the keys.
struct alignas(64) TileScratch {
  // Bytes between keys: 1024 + 64, so that a tile's rows fall into different cache sets.
  static constexpr int kKeyBytes = kHeadDim * 2 + 64;
  static constexpr int kPairedDims = kHeadDim + 16;  // the same, in 32-bit words

  uint32_t query[kHeadDim / 2][kHeadBlock];      // [pair of dims][head]
  uint8_t keys[kTileSlots][kKeyBytes];           // [slot][dim]
  uint32_t values[kTileSlots / 2][kPairedDims];  // [pair of slots][dim], dims in unpack's order
  uint16_t weights[kHeadBlock][kTileSlots];      // [head][slot]
  float scores[kTileSlots][kHeadBlock];
  float out[kHeadBlock][kHeadDim];  // dims in unpack's order
  float row_max[kHeadBlock];
  float row_sum[kHeadBlock];
  float used_sum[kHeadBlock];
  float ordered[kHeadDim];  // one head's out, dims in their own order
};

inline constexpr size_t kScratchBytes = sizeof(Scratch) > sizeof(TileScratch) ? sizeof(Scratch)
                                                                              : sizeof(TileScratch);

struct DecodeJob {
  const DecodeProblem* problem;
  Plan plan;
  float* partial_out;  // [rows, splits, heads, 512]; used when the plan has more than one split
  float* partial_lse;  // [rows, splits, heads]
};

// `scratch` is kScratchBytes, 64-byte aligned.
using RunTask = void (*)(const DecodeJob& job, int64_t task, void* scratch);

namespace generic {
void run_task(const DecodeJob& job, int64_t task, void* scratch);
}
namespace avx2 {
void run_task(const DecodeJob& job, int64_t task, void* scratch);
}
namespace avx512 {
void run_task(const DecodeJob& job, int64_t task, void* scratch);
}
namespace amx {
void run_task(const DecodeJob& job, int64_t task, void* scratch);
}
namespace amx_emulated {  // tiles by plain loops, in test builds
void run_task(const DecodeJob& job, int64_t task, void* scratch);
}

}  // namespace dsv4::cpu
