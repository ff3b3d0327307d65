// SPDX-License-Identifier: Apache-2.0
// tcgen05: allocation of tensor memory, fences, waits and commit (sm_100 family).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-memory-alloc-manage-instructions
#include "tcgen05.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "lints.h"
#include "matrix_operand.h"
#include "mbarrier.h"

namespace dsv4::simulator {

// --- state of a block ---------------------------------------------------------------------------

int TensorMemory::find_free(int columns) const {
  const int wanted = columns / kTmemUnit;
  for (int first = 0; first + wanted <= int(units.size()); ++first) {
    int length = 0;
    while (length < wanted && units[size_t(first + length)] == kFree) ++length;
    if (length == wanted) return first * kTmemUnit;
  }
  return -1;
}

int TensorMemory::num_allocated() const {
  return int(std::count_if(units.begin(), units.end(), [](int unit) { return unit != kFree; })) *
         kTmemUnit;
}

void TensorMemory::allocate(int column, int columns) {
  units[size_t(column / kTmemUnit)] = columns;
  for (int c = column + kTmemUnit; c < column + columns; c += kTmemUnit) {
    units[size_t(c / kTmemUnit)] = kInside;
  }
  last_columns = columns;
}

void TensorMemory::release(int column, int columns) {
  if (column % kTmemUnit != 0 || column >= kTmemColumns ||
      units[size_t(column / kTmemUnit)] != columns) {
    fail("tcgen05.dealloc: no allocation of %d columns begins at column %d", columns, column);
  }
  for (int c = column; c < column + columns; c += kTmemUnit) units[size_t(c / kTmemUnit)] = kFree;
}

void TensorMemory::finish() {
  for (size_t u = 0; u < units.size(); ++u) {
    if (units[u] == kFree) continue;
    fail("block (%u, %u, %u) ends, and tensor memory is still allocated: %d columns at column %d",
         cta->index.x, cta->index.y, cta->index.z, units[u], int(u) * kTmemUnit);
  }
}

TensorMemory& tensor_memory(Cta& cta) {
  TensorMemory& memory = cta.state<TensorMemory>();
  memory.cta = &cta;
  return memory;
}

CtaGroup cta_group_of(Warp& warp, int group) {
  Cluster& cluster = warp.cluster();
  if (group == 1) return {{warp.cta, nullptr}, 1};
  const size_t even = warp.cta->rank & ~1u;
  if (even + 1 >= cluster.ctas.size()) fail("cta_group::2: block %u has no pair", warp.cta->rank);
  return {{cluster.ctas[even].get(), cluster.ctas[even + 1].get()}, 2};
}

void expect_cta_group(Warp& warp, int group) {
  int& agreed = tensor_memory(*warp.cta).cta_group;
  if (agreed == 0) agreed = group;
  if (agreed != group) {
    fail("cta_group::%d, after an instruction with cta_group::%d in this kernel", group, agreed);
  }
}

void expect_columns(Cta& cta, int column, int columns, const char* what) {
  const TensorMemory& memory = tensor_memory(cta);
  if (column + columns > kTmemColumns) {
    fail("%s: columns [%d, %d) of tensor memory, which has %d", what, column, column + columns,
         kTmemColumns);
  }
  for (int c = column / kTmemUnit * kTmemUnit; c < column + columns; c += kTmemUnit) {
    if (!memory.is_allocated(c)) {
      fail("%s: column %d of block %u's tensor memory is not allocated", what, std::max(c, column),
           cta.rank);
    }
  }
}

int take_cta_group(const Decoder& decoder, OpcodeParts& parts) {
  const int group = 1 + parts.take_one_of({"cta_group::1", "cta_group::2"});
  if (group == 0) decoder.unknown("expected .cta_group::1 or .cta_group::2");
  return group;
}

Register decode_tensor_address(Decoder& decoder, const ptx::Operand& operand) {
  const Decoder::Address address = decoder.address(operand);
  if (address.wide || address.displacement != 0) {
    decoder.unknown("expected a 32-bit address without displacement");
  }
  return address.base;
}

namespace {

// --- allocation ---------------------------------------------------------------------------------
// ------------------------------------------------------------------------------------ r[0]
// destination (an address), r[1] columns, imm[1] cta_group.

int columns_of(Warp& warp, const Instruction& i) {
  const uint32_t columns = uniform32(warp, i.r[1], "the number of columns");
  if (columns < kTmemUnit || columns > kTmemColumns || (columns & (columns - 1)) != 0) {
    fail("%u columns: expected a power of 2 from 32 to 512", columns);
  }
  return int(columns);
}

// First column of a new allocation, or -1 if it has to wait. In a pair the blocks ask one after the
// other, and get the same columns when both have.
int try_allocate(Warp& warp, int group, int columns) {
  TensorMemory& mine = tensor_memory(*warp.cta);
  if (group == 1) {
    const int column = mine.find_free(columns);
    if (column >= 0) mine.allocate(column, columns);
    return column;
  }
  const CtaGroup pair = cta_group_of(warp, 2);
  TensorMemory& other = tensor_memory(*pair.ctas[warp.cta->rank % 2 == 0 ? 1 : 0]);
  if (mine.requester == nullptr) {
    mine.requester = &warp;
    mine.requested = columns;
    mine.granted = -1;
  }
  if (mine.requester != &warp) return -1;
  if (mine.granted < 0) {
    if (other.requester == nullptr || other.granted >= 0) return -1;
    if (other.requested != columns) {
      fail("the blocks of a pair ask for %d and %d columns", columns, other.requested);
    }
    for (int column = 0; column + columns <= kTmemColumns; column += kTmemUnit) {
      bool free = true;
      for (int c = column; c < column + columns; c += kTmemUnit) {
        free = free && !mine.is_allocated(c) && !other.is_allocated(c);
      }
      if (!free) continue;
      mine.allocate(column, columns);
      other.allocate(column, columns);
      mine.granted = other.granted = column;
      break;
    }
    if (mine.granted < 0) return -1;
  }
  mine.requester = nullptr;
  const int column = mine.granted;
  mine.granted = -1;
  return column;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit
Outcome execute_alloc(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  const int group = int(i.imm[1]);
  expect_cta_group(warp, group);
  TensorMemory& memory = tensor_memory(*warp.cta);
  if (memory.relinquished) fail("tcgen05.alloc after tcgen05.relinquish_alloc_permit");
  const int columns = columns_of(warp, i);
  if (columns > memory.last_columns && memory.requester != &warp) {
    fail("%d columns, after an allocation of %d: they may not grow", columns, memory.last_columns);
  }
  const uint32_t address = shared_address_of(warp, i, 0, 0, "tcgen05.alloc");
  for (int lane = 1; lane < kLanes; ++lane) {
    if (shared_address_of(warp, i, 0, lane, "tcgen05.alloc") != address) {
      fail("tcgen05.alloc: the destination differs between lanes");
    }
  }
  expect_aligned(address, 4, "tcgen05.alloc");
  expect_reachable(warp, address, true, "tcgen05.alloc");
  uint8_t* destination = shared_pointer(warp.cluster(), address, 4, "tcgen05.alloc");

  const int column = try_allocate(warp, group, columns);
  if (column < 0) return Outcome::kAgain;
  int& most = warp.launch().state<LaunchFacts>().tensor_columns;
  most = std::max(most, memory.num_allocated());
  const uint32_t value = uint32_t(column);
  std::memcpy(destination, &value, sizeof(value));
  if (Checker* checker = warp.checker()) checker->shared(warp, i, address, 4, true);
  ++warp.cluster().progress;
  return Outcome::kDone;
}

std::string describe_alloc(Warp& warp, const Instruction& i, LaneMask) {
  const TensorMemory& memory = tensor_memory(*warp.cta);
  return text("%u columns of tensor memory; %d of %d are allocated%s",
              warp.lanes<uint32_t>(i.r[1])[0], memory.num_allocated(), kTmemColumns,
              i.imm[1] == 2 ? "; both blocks of the pair must ask" : "");
}

// r[0] address, r[1] columns, imm[1] cta_group. Each block of a pair gives back its own.
Outcome execute_dealloc(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  expect_cta_group(warp, int(i.imm[1]));
  const uint32_t address = uniform32(warp, i.r[0], "the address");
  if (tensor_lane(address) != 0) fail("tcgen05.dealloc: address %#x is not in lane 0", address);
  tensor_memory(*warp.cta).release(tensor_column(address), columns_of(warp, i));
  ++warp.cluster().progress;
  return Outcome::kDone;
}

Outcome execute_relinquish(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_whole_warp(lanes);
  expect_cta_group(warp, int(i.imm[1]));
  tensor_memory(*warp.cta).relinquished = true;
  return Outcome::kDone;
}

// --- synchronisation ----------------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-special-sync-operations-fence
Outcome execute_fence_before(Warp& warp, const Instruction&, LaneMask) {
  if (Checker* checker = warp.checker()) checker->tensor_fence_before(warp);
  return Outcome::kDone;
}

Outcome execute_fence_after(Warp& warp, const Instruction&, LaneMask) {
  if (Checker* checker = warp.checker()) checker->tensor_fence_after(warp);
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-wait
Outcome execute_wait_load(Warp& warp, const Instruction&, LaneMask lanes) {
  expect_whole_warp(lanes);
  release_loaded_registers(warp);
  if (Checker* checker = warp.checker()) checker->tensor_wait_load(warp);
  return Outcome::kDone;
}

Outcome execute_wait_store(Warp& warp, const Instruction&, LaneMask lanes) {
  expect_whole_warp(lanes);
  if (Checker* checker = warp.checker()) checker->tensor_wait_store(warp);
  return Outcome::kDone;
}

// The mbarriers that one lane's commit arrives on: the one named, or the one at the same offset of
// each block in the mask (r[1]).
std::vector<uint32_t> commit_targets(Warp& warp, const Instruction& i, int lane, bool multicast) {
  const uint32_t address = shared_address_of(warp, i, 0, lane, "tcgen05.commit");
  if (!multicast) return {address};
  const uint32_t mask = warp.lanes<uint32_t>(i.r[1])[lane] & 0xFFFF;
  const uint32_t count = uint32_t(warp.cluster().ctas.size());
  if (mask >> count != 0) {
    fail("tcgen05.commit: mask %#x names blocks beyond the cluster's %u", mask, count);
  }
  std::vector<uint32_t> targets;
  for (uint32_t rank = 0; rank < count; ++rank) {
    if (mask >> rank & 1) targets.push_back(rank << 24 | shared_offset(address));
  }
  return targets;
}

// r[0] mbarrier (an address), r[1] mask of blocks or none, imm[1] cta_group.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen-async-sync-operations-commit
Outcome execute_commit(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_cta_group(warp, int(i.imm[1]));
  Cluster& cluster = warp.cluster();
  Checker* checker = warp.checker();
  for_lanes(lanes, [&](int lane) {
    for (uint32_t target : commit_targets(warp, i, lane, bool(i.r[1]))) {
      mbarrier_expect_valid(cluster, target, "tcgen05.commit");
      const int ticket = checker != nullptr ? checker->tensor_commit(warp) : 0;
      cluster.async.post_in_order(int(warp.cta->rank), [&cluster, checker, ticket, target] {
        if (checker != nullptr) checker->tensor_commit_arrive(ticket, target);
        mbarrier_arrive(cluster, target, 1);
      });
    }
  });
  return Outcome::kDone;
}

// --- decoding -----------------------------------------------------------------------------------

void decode_alloc(Decoder& d, Instruction& i, OpcodeParts& parts) {
  i.imm[1] = take_cta_group(d, parts);
  if (!parts.take("sync") || !parts.take("aligned") || !parts.take("b32")) d.unknown();
  parts.take("shared::cta");
  d.expect_operands(2, 2);
  decode_address(d, i, d.operand(0), 0);
  i.r[1] = d.r32(1);
  i.converged = true;
  i.execute = execute_alloc;
  i.describe_wait = describe_alloc;
}

void decode_dealloc(Decoder& d, Instruction& i, OpcodeParts& parts) {
  i.imm[1] = take_cta_group(d, parts);
  if (!parts.take("sync") || !parts.take("aligned") || !parts.take("b32")) d.unknown();
  d.expect_operands(2, 2);
  i.r[0] = d.r32(0);
  i.r[1] = d.r32(1);
  i.converged = true;
  i.execute = execute_dealloc;
}

void decode_relinquish(Decoder& d, Instruction& i, OpcodeParts& parts) {
  i.imm[1] = take_cta_group(d, parts);
  if (!parts.take("sync") || !parts.take("aligned")) d.unknown();
  d.expect_operands(0, 0);
  i.converged = true;
  i.execute = execute_relinquish;
}

void decode_commit(Decoder& d, Instruction& i, OpcodeParts& parts) {
  i.imm[1] = take_cta_group(d, parts);
  if (!parts.take("mbarrier::arrive::one") || !parts.take("b64")) d.unknown();
  parts.take("shared::cluster");
  const bool multicast = parts.take("multicast::cluster");
  d.expect_operands(multicast ? 2 : 1, multicast ? 2 : 1);
  decode_address(d, i, d.operand(0), 0);
  if (multicast) i.r[1] = d.r32(1);
  i.counted = InstructionClass::kBarrier;
  i.execute = execute_commit;
}

void decode_synchronisation(Decoder& d, Instruction& i, OpcodeParts& parts, Execute execute,
                            bool aligned) {
  if (aligned && (!parts.take("sync") || !parts.take("aligned"))) d.unknown();
  d.expect_operands(0, 0);
  i.converged = aligned;
  i.execute = execute;
}

}  // namespace

void decode_tcgen05(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kTensorMemory;
  OpcodeParts parts(d);
  const std::string name = parts.take_next();
  if (name == "mma") {
    decode_tcgen05_mma(d, i, parts);
  } else if (name == "ld") {
    decode_tcgen05_load(d, i, parts);
  } else if (name == "st") {
    decode_tcgen05_store(d, i, parts);
  } else if (name == "cp") {
    decode_tcgen05_copy(d, i, parts);
  } else if (name == "commit") {
    decode_commit(d, i, parts);
  } else if (name == "alloc") {
    decode_alloc(d, i, parts);
  } else if (name == "dealloc") {
    decode_dealloc(d, i, parts);
  } else if (name == "relinquish_alloc_permit") {
    decode_relinquish(d, i, parts);
  } else if (name == "fence::before_thread_sync") {
    decode_synchronisation(d, i, parts, execute_fence_before, false);
  } else if (name == "fence::after_thread_sync") {
    decode_synchronisation(d, i, parts, execute_fence_after, false);
  } else if (name == "wait::ld") {
    decode_synchronisation(d, i, parts, execute_wait_load, true);
  } else if (name == "wait::st") {
    decode_synchronisation(d, i, parts, execute_wait_store, true);
  } else {
    d.unknown();
  }
  parts.expect_none_left();
}

}  // namespace dsv4::simulator
