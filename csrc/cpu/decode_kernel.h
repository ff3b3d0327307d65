// SPDX-License-Identifier: Apache-2.0
// One decode cut into tasks: (row, block of heads, part of the row's slots). decode_kernel.cpp runs
// a task; it is compiled once for each instruction set, engine.cpp picks one at run time.
#pragma once

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
};

struct DecodeJob {
  const DecodeProblem* problem;
  Plan plan;
  float* partial_out;  // [rows, splits, heads, 512]; used when the plan has more than one split
  float* partial_lse;  // [rows, splits, heads]
};

using RunTask = void (*)(const DecodeJob& job, int64_t task, Scratch& scratch);

namespace generic {
void run_task(const DecodeJob& job, int64_t task, Scratch& scratch);
}
namespace avx2 {
void run_task(const DecodeJob& job, int64_t task, Scratch& scratch);
}
namespace avx512 {
void run_task(const DecodeJob& job, int64_t task, Scratch& scratch);
}

}  // namespace dsv4::cpu
