// SPDX-License-Identifier: Apache-2.0
// What a launch of the decode kernels needs.
#pragma once

#include <cuda.h>

#include "cuda/decode_plan.h"
#include "dsv4/dsv4.h"

namespace dsv4::sm100 {

inline constexpr int kRunSlots = 32;  // rows that one copy takes if they follow each other

// A 512-wide pool as a matrix of slots, [row][512].
struct PoolMaps {
  CUtensorMap rows;       // in boxes of one row
  CUtensorMap runs;       // in boxes of kRunSlots rows
  int32_t rows_per_page;  // distance of pages in rows
  uint32_t dense_slots;   // where pages lie one behind another, so that a slot is a row; else 0
};

struct DecodeParams : cuda::DecodePlan {
  CUtensorMap query;            // [batch][q_len][heads][512]
  int32_t query_rows;           // of a box: kHeadTile heads of a row, or the heads of a group
  PoolMaps window, compressed;  // not of packed pools
  DecodeProblem problem;
};

inline constexpr int kWindowUnit = 4;      // of schedule.h: a gather takes four rows of one pool
inline constexpr int kHeadTile = 64;       // M of the multiplications of a block
inline constexpr int kPairHeadTile = 128;  // and of a pair of blocks

constexpr int tile_slots(KvFormat format) { return format == KvFormat::kFloat8E4M3 ? 128 : 64; }

// One for each format, each in a file of its own.
Status launch_decode_bf16(const DecodeParams& params, Stream stream);
Status launch_decode_e4m3(const DecodeParams& params, Stream stream);
Status launch_decode_packed(const DecodeParams& params, Stream stream);

// The same of groups of rows.
Status launch_decode_bf16_groups(const DecodeParams& params, Stream stream);
Status launch_decode_e4m3_groups(const DecodeParams& params, Stream stream);
Status launch_decode_packed_groups(const DecodeParams& params, Stream stream);

// The same by pairs of blocks.
Status launch_decode_bf16_pairs(const DecodeParams& params, Stream stream);
Status launch_decode_e4m3_pairs(const DecodeParams& params, Stream stream);
Status launch_decode_packed_pairs(const DecodeParams& params, Stream stream);

}  // namespace dsv4::sm100
