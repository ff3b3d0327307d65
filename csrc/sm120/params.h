// SPDX-License-Identifier: Apache-2.0
// What a launch of the decode kernel needs.
#pragma once

#include "cuda/decode_plan.h"
#include "dsv4/dsv4.h"

namespace dsv4::sm120 {

struct DecodeParams : cuda::DecodePlan {
  DecodeProblem problem;
  int32_t pool_alignment;  // 16: of all keys, so that bulk copies may read them; else 8, 4 or 1
  bool query_aligned;      // rows of 512 begin at multiples of 16 bytes
  bool out_aligned;
};

inline constexpr int kWindowUnit = 1;  // of schedule.h: a stage takes any slots
inline constexpr int kSmallHeadTile = 16, kLargeHeadTile = 32;

// Slots of one step of the kernel's loop: what two stages leave room for.
constexpr int stage_slots(KvFormat format, int head_tile) {
  return format == KvFormat::kBFloat16 ? 32 : head_tile == kSmallHeadTile ? 64 : 48;
}

// One for each format, each in a file of its own.
Status launch_decode_bf16(const DecodeParams& params, Stream stream);
Status launch_decode_e4m3(const DecodeParams& params, Stream stream);
Status launch_decode_packed(const DecodeParams& params, Stream stream);

// The same of groups of rows.
Status launch_decode_bf16_groups(const DecodeParams& params, Stream stream);
Status launch_decode_e4m3_groups(const DecodeParams& params, Stream stream);
Status launch_decode_packed_groups(const DecodeParams& params, Stream stream);

}  // namespace dsv4::sm120
