// SPDX-License-Identifier: Apache-2.0
// What all copies of the bulk engine share: where they go, how they complete, whom they tell.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-asynchronous-copy-completion-mechanisms
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checker.h"
#include "machine.h"
#include "opcode_parts.h"
#include "program.h"
#include "reduction.h"

namespace dsv4::simulator {

// Places of Instruction::r; the first three are addresses.
inline constexpr int kSharedPlace = 0;  // destination of loads, source of stores
inline constexpr int kOtherPlace = 1;   // global address, tensor map, or source in shared memory
inline constexpr int kMbarrierPlace = 2;
inline constexpr int kSizePlace = 4;
inline constexpr int kMaskPlace = 5;    // blocks of .multicast::cluster, bytes of .cp_mask
inline constexpr int kPolicyPlace = 6;  // of .L2::cache_hint, read by nobody

// Instruction::flags, beside kOwnBlockOnlyFlag for copies to .shared::cta.
inline constexpr uint32_t kMulticastFlag = 1u << 0;
inline constexpr uint32_t kPairFlag = 1u << 1;      // .cta_group::2
inline constexpr uint32_t kFourRowsFlag = 1u << 2;  // .tile::gather4, .tile::scatter4
inline void keep_reduction(Instruction& i, Reduction reduction) {
  i.flags |= uint32_t(reduction) << 4;
}
inline Reduction reduction_of(const Instruction& i) { return Reduction(i.flags >> 4 & 15); }

// Decodes an address operand that has no coordinates.
void decode_plain_address(Decoder& d, Instruction& i, const ptx::Operand& operand, int place);
// Optional modifiers, each with an operand: the next one, which `next` counts.
void decode_multicast(Decoder& d, OpcodeParts& parts, Instruction& i, size_t& next);
void decode_cache_hint(Decoder& d, OpcodeParts& parts, Instruction& i, size_t& next);

// "cp.async.bulk", for errors.
const char* name_of(const Instruction& instruction);

// A destination in shared memory and the mbarrier that hears of it, which lies in the same block
// or, with .cta_group::2, in that block's pair. One for each block of a multicast.
struct CopyTarget {
  uint32_t destination, mbarrier;
};
std::vector<CopyTarget> copy_targets(Warp& warp, const Instruction& i, int lane);

enum class Use : uint8_t { kRead, kWrite, kReduce };
inline Use write_by(Reduction reduction) {
  return reduction == Reduction::kNone ? Use::kWrite : Use::kReduce;
}

// Tells the checker, if there is one, what one asynchronous operation reads and writes.
class WatchedOperation {
 public:
  static WatchedOperation on_mbarrier(Warp& issuer, const Instruction& by, uint32_t mbarrier);
  static WatchedOperation in_bulk_group(Warp& issuer, const Instruction& by);

  void shared(uint32_t address, uint32_t bytes, Use use) const;
  void global(uint64_t address, uint32_t bytes, Use use) const;
  // st.async and red.async are asynchronous, but not of the async proxy.
  WatchedOperation& through_generic_proxy();

 private:
  WatchedOperation(Warp& issuer, const Instruction& by) : issuer_(issuer), by_(by) {}
  Agent agent(Use use) const;

  Warp& issuer_;
  const Instruction& by_;
  Agent agent_;
};

// `copy` fills shared memory some time from now; then `bytes` are complete on the mbarrier.
void post_to_shared(Warp& issuer, const Instruction& by, const CopyTarget& target, uint32_t bytes,
                    std::function<void()> copy);

// A copy out of shared memory, in the bulk group that the lane has open: some time from now `read`
// takes the source, and some time after that `write` gets what it took.
using Bytes = std::vector<uint8_t>;
void post_from_shared(Warp& issuer, const Instruction& by, int lane, std::function<Bytes()> read,
                      std::function<void(const Bytes&)> write);

// Counts the 32-byte sectors of global memory that a load touches, if they are to be counted.
void count_sectors(Warp& warp, uint64_t address, uint64_t bytes);

}  // namespace dsv4::simulator
