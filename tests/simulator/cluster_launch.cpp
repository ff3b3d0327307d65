// SPDX-License-Identifier: Apache-2.0
// clusterlaunchcontrol: a running cluster takes over the work of one that has not started.
// griddepcontrol: order between dependent grids, of which only one runs here.
#include <deque>

#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "mbarrier.h"
#include "memory.h"
#include "opcode_parts.h"

namespace dsv4::simulator {
namespace {

// The opaque 16 bytes that try_cancel writes.
struct Response {
  uint32_t status;
  uint32_t first_block[3];

  static constexpr uint32_t kFailed = 0x0FA11ED0, kCanceled = 0x0CA9CE10;
};
static_assert(sizeof(Response) == 16);

// Blocks that have seen a try_cancel fail: they must not try again.
struct CancelState : FamilyState {
  bool saw_failure = false;
};

Response cancel_next(Cluster& cluster) {
  std::deque<Dim3>& pending = cluster.launch->pending;
  // Hardware may have started a cluster that is next here, so a try may always fail.
  const bool unlucky = cluster.async.mode == AsyncMode::kRandom && cluster.random() % 4 == 0;
  if (pending.empty() || unlucky) return {Response::kFailed, {0, 0, 0}};
  const Dim3 first = pending.front();
  pending.pop_front();
  return {Response::kCanceled, {first.x, first.y, first.z}};
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-clusterlaunchcontrol-try-cancel
// Places: 0 the response, 1 the mbarrier. Flags: 1 to every block of the cluster, at the same
// offset.
Outcome execute_try_cancel(Warp& w, const Instruction& i, LaneMask lanes) {
  const char* what = "clusterlaunchcontrol.try_cancel";
  Cluster& cluster = w.cluster();
  if (w.cta->state<CancelState>().saw_failure) {
    fail("%s: the block has seen an earlier one fail", what);
  }
  for_lanes(lanes, [&](int lane) {
    const uint32_t destination = shared_address_of(w, i, 0, lane, what);
    const uint32_t mbarrier = shared_address_of(w, i, 1, lane, what);
    expect_aligned(destination, sizeof(Response), what);
    expect_reachable(w, destination, true, what);
    expect_reachable(w, mbarrier, true, what);
    const Response response = cancel_next(cluster);
    for (uint32_t rank = 0; rank < cluster.ctas.size(); ++rank) {
      if (!(i.flags & 1) && rank != w.cta->rank) continue;
      const uint32_t to = rank << 24 | shared_offset(destination);
      const uint32_t signal = rank << 24 | shared_offset(mbarrier);
      uint8_t* data = shared_pointer(cluster, to, sizeof(Response), what);
      mbarrier_expect_valid(cluster, signal, what);
      if (Checker* c = w.checker()) {
        c->shared_async(w, i, c->copy_agent(w, signal), to, sizeof(Response), true);
      }
      cluster.async.post_copy([&cluster, data, signal, response] {
        std::memcpy(data, &response, sizeof(response));
        mbarrier_complete_tx(cluster, signal, sizeof(response));
      });
    }
  });
  return Outcome::kDone;
}

Response response_of(Warp& w, const Instruction& i, int lane) {
  // A 16-byte register holds the low 8 bytes of all lanes, then the high ones.
  const uint64_t* lanes = w.lanes<uint64_t>(i.r[0]);
  const uint64_t halves[2] = {lanes[lane], lanes[kLanes + lane]};
  Response response;
  std::memcpy(&response, halves, sizeof(response));
  if (response.status != Response::kFailed && response.status != Response::kCanceled) {
    fail("clusterlaunchcontrol.query_cancel: not a response of try_cancel");
  }
  return response;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-clusterlaunchcontrol-query-cancel
Outcome execute_is_canceled(Warp& w, const Instruction& i, LaneMask lanes) {
  LaneMask canceled = 0;
  for_lanes(lanes, [&](int lane) {
    if (response_of(w, i, lane).status == Response::kCanceled) {
      canceled |= 1u << lane;
    } else {
      w.cta->state<CancelState>().saw_failure = true;
    }
  });
  LaneMask& result = w.predicate(i.r[1]);
  result = (result & ~lanes) | canceled;
  return Outcome::kDone;
}

// imm[0]: the dimension that list[0] receives, or -1: list holds x, y, z and one that receives
// nothing.
Outcome execute_first_block(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const Response response = response_of(w, i, lane);
    if (response.status != Response::kCanceled) {
      fail("clusterlaunchcontrol.query_cancel: the response says that nothing was cancelled");
    }
    for (size_t k = 0; k < i.list.size() && k < 3; ++k) {
      const size_t dimension = i.imm[0] < 0 ? k : size_t(i.imm[0]);
      if (i.list[k]) w.lanes<uint32_t>(i.list[k])[lane] = response.first_block[dimension];
    }
  });
  return Outcome::kDone;
}

void decode_try_cancel(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (!parts.take("async") || !parts.take("mbarrier::complete_tx::bytes") || !parts.take("b128")) {
    d.unknown();
  }
  parts.take("shared::cta");
  if (parts.take("multicast::cluster::all")) i.flags |= 1;
  parts.expect_none_left();
  d.expect_operands(2, 2);
  i.execute = execute_try_cancel;
  decode_address(d, i, d.operand(0), 0);
  decode_address(d, i, d.operand(1), 1);
}

void decode_query_cancel(Decoder& d, OpcodeParts& parts, Instruction& i) {
  d.expect_operands(2, 2);
  i.r[0] = d.r128(d.operand(1));
  if (parts.take("is_canceled")) {
    i.execute = execute_is_canceled;
    if (!parts.take("pred")) d.unknown();
    i.r[1] = d.predicate(0);
  } else {
    i.execute = execute_first_block;
    i.imm[0] =
        parts.take_one_of({"get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"});
    const bool all = i.imm[0] < 0;
    if (all && (!parts.take("get_first_ctaid") || !parts.take("v4"))) d.unknown();
    if (!parts.take("b32")) d.unknown();
    i.list = d.list(d.operand(0), 4);
    if (i.list.size() != (all ? 4 : 1)) d.unknown("expected four results, or one of a dimension");
  }
  if (!parts.take("b128")) d.unknown();
  parts.expect_none_left();
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
// The grids that this one depends on have ended before it starts.
Outcome execute_grid_wait(Warp& w, const Instruction&, LaneMask) {
  if (Checker* c = w.checker()) c->grid_dependency_wait(w);
  return Outcome::kDone;
}

Outcome execute_launch_dependents(Warp&, const Instruction&, LaneMask) { return Outcome::kDone; }

void decode_grid_dependency(Decoder& d, OpcodeParts& parts, Instruction& i) {
  if (parts.take("wait")) {
    i.execute = execute_grid_wait;
  } else if (parts.take("launch_dependents")) {
    i.execute = execute_launch_dependents;
  } else {
    d.unknown();
  }
  parts.expect_none_left();
  d.expect_operands(0, 0);
}

}  // namespace

void decode_cluster_launch(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  i.counted = InstructionClass::kHint;
  if (d.statement().parts[0] == "griddepcontrol") return decode_grid_dependency(d, parts, i);
  i.counted = InstructionClass::kBarrier;
  if (parts.take("try_cancel")) return decode_try_cancel(d, parts, i);
  if (parts.take("query_cancel")) return decode_query_cancel(d, parts, i);
  d.unknown();
}

}  // namespace dsv4::simulator
