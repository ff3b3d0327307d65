// SPDX-License-Identifier: Apache-2.0
// The happens-before checker: was every access ordered after the accesses it depends on, in a way
// that holds on hardware, and not only in the order that this run happened to take?
//
// Every agent has a clock. Warps are agents of the generic proxy. Copies (by the mbarrier or the
// group they complete on), each warp's tcgen05.mma pipe, its tcgen05.ld and its tcgen05.st, and
// each warpgroup's wgmma are agents of their own. For each warp the checker keeps what it may rely
// on, as vector clocks:
//   generic   accesses that are over as far as its own loads and stores are concerned
//   async     generic accesses that its asynchronous operations may rely on: those with a
//             fence.proxy.async between
//   tensor    accesses to tensor memory that its tcgen05 operations may rely on: those with a
//             tcgen05.wait, or a tcgen05.fence::after_thread_sync, between
// Shared and global memory are watched by bytes, tensor memory in (16 lanes x 1 column) cells.
//
// One checker serves one cluster. Families call it at each access and each synchronisation, once an
// instruction unless an address is named: then once for each address.
#pragma once

#include <cstdint>
#include <memory>

#include "machine.h"

namespace dsv4::simulator {

// Who performs an access, at which tick of its clock.
struct Agent {
  int component = -1;
  uint32_t clock = 0;
  bool in_order = false;  // needs no order with its own earlier accesses
  bool generic = false;   // through the generic proxy although asynchronous (st.async, red.async)
  bool strong = false;    // a reduction: may meet other strong accesses without a race
};

enum class MemoryOrder : uint8_t { kRelaxed, kAcquire, kRelease, kAcquireRelease };

class Checker {
 public:
  virtual ~Checker() = default;

  // --- accesses ----------------------------------------------------------------------------------
  // Through the generic proxy, by the warp itself.
  virtual void shared(Warp& warp, const Instruction& by, uint32_t address, uint32_t bytes,
                      bool write) = 0;
  virtual void global(Warp& warp, const Instruction& by, uint64_t address, uint32_t bytes,
                      bool write) = 0;
  // Strong accesses, which may meet each other without a race and which synchronise: atom (reads
  // and writes), red (writes), ld and st with .volatile, .relaxed, .acquire or .release. Instead of
  // shared() or global(). A .sc access is kAcquireRelease.
  virtual void strong_shared(Warp& warp, const Instruction& by, uint32_t address, uint32_t bytes,
                             bool reads, bool writes, MemoryOrder order) = 0;
  virtual void strong_global(Warp& warp, const Instruction& by, uint64_t address, uint32_t bytes,
                             bool reads, bool writes, MemoryOrder order) = 0;
  // By an asynchronous operation that the warp issues now.
  virtual void shared_async(Warp& issuer, const Instruction& by, Agent agent, uint32_t address,
                            uint32_t bytes, bool write) = 0;
  virtual void global_async(Warp& issuer, const Instruction& by, Agent agent, uint64_t address,
                            uint32_t bytes, bool write) = 0;
  // Tensor memory of block `rank`: cells [lane, lane + lanes) x [column, column + columns), lanes
  // in steps of 16.
  virtual void tensor(Warp& issuer, const Instruction& by, Agent agent, uint32_t rank, int lane,
                      int lanes, int column, int columns, bool write) = 0;

  // --- agents: one for each operation ------------------------------------------------------------
  virtual Agent copy_agent(Warp& issuer, uint32_t mbarrier) = 0;  // completes on its current phase
  virtual Agent bulk_group_agent(Warp& issuer) = 0;    // completes with the warp's bulk group
  virtual Agent cp_async_agent(Warp& issuer) = 0;      // completes with the warp's cp.async group
  virtual Agent tensor_pipe_agent(Warp& issuer) = 0;   // tcgen05.mma, .cp, .shift
  virtual Agent tensor_load_agent(Warp& issuer) = 0;   // tcgen05.ld
  virtual Agent tensor_store_agent(Warp& issuer) = 0;  // tcgen05.st
  virtual Agent wgmma_agent(Warp& issuer) = 0;         // asked for by each warp of the warpgroup

  // --- synchronisation ---------------------------------------------------------------------------
  virtual void barrier_arrive(Warp& warp, int id) = 0;  // bar / barrier of the block
  virtual void barrier_complete(Cta& cta, int id) = 0;  // the last arrival is in
  virtual void barrier_pass(Warp& warp, int id) = 0;    // a waiting warp goes on
  virtual void cluster_arrive(Warp& warp) = 0;
  virtual void cluster_arrive_relaxed(Warp& warp) = 0;  // hands on what the last fence published
  virtual void cluster_complete(Cluster& cluster) = 0;
  virtual void cluster_pass(Warp& warp) = 0;
  virtual void mbarrier_init(Warp& warp, const Instruction& by, uint32_t mbarrier) = 0;
  virtual void mbarrier_invalidate(Warp& warp, uint32_t mbarrier) = 0;
  virtual void mbarrier_arrive(Warp& warp, uint32_t mbarrier) = 0;
  virtual void mbarrier_arrive_relaxed(Warp& warp, uint32_t mbarrier) = 0;
  virtual void mbarrier_complete(uint32_t mbarrier) = 0;             // a phase ends
  virtual void mbarrier_observe(Warp& warp, uint32_t mbarrier) = 0;  // a wait saw the phase ended
  virtual void mbarrier_observe_relaxed(Warp& warp, uint32_t mbarrier) = 0;
  virtual void fence_proxy_async(Warp& warp) = 0;         // of shared memory, or of all spaces
  virtual void fence_proxy_async_global(Warp& warp) = 0;  // of global memory alone
  virtual void fence_mbarrier_init(Warp& warp) = 0;
  virtual void fence(Warp& warp) = 0;     // fence.acq_rel, .acquire, .release
  virtual void fence_sc(Warp& warp) = 0;  // fence.sc, membar
  virtual void warp_sync(Warp& warp) = 0;
  virtual void bulk_commit(Warp& warp) = 0;
  virtual void bulk_wait(Warp& warp, int64_t pending) = 0;  // at most `pending` groups are not done
  virtual void bulk_wait_read(Warp& warp, int64_t pending) = 0;  // .read: sources are read, no more
  virtual void cp_async_commit(Warp& warp) = 0;
  virtual void cp_async_wait(Warp& warp, int64_t pending) = 0;
  virtual void cp_async_arrive(Warp& warp, uint32_t mbarrier) = 0;  // cp.async.mbarrier.arrive
  virtual void wgmma_fence(Warp& warp) = 0;
  // The instruction touches registers that some wgmma of the program names, and is none.
  virtual void matrix_registers(Warp& warp, const Instruction& by) = 0;
  virtual void wgmma_commit(Warp& warp) = 0;
  virtual void wgmma_wait(Warp& warp, int64_t pending) = 0;
  virtual void tensor_fence_before(Warp& warp) = 0;  // tcgen05.fence::before_thread_sync
  virtual void tensor_fence_after(Warp& warp) = 0;
  virtual void tensor_wait_load(Warp& warp) = 0;
  virtual void tensor_wait_store(Warp& warp) = 0;
  // tcgen05.commit: what has been issued so far; the ticket is given back when the commit arrives.
  virtual int tensor_commit(Warp& warp) = 0;
  virtual void tensor_commit_arrive(int ticket, uint32_t mbarrier) = 0;
  virtual void grid_dependency_wait(Warp& warp) = 0;  // griddepcontrol.wait

  // --- end ---------------------------------------------------------------------------------------
  virtual void finish(Cluster& cluster) = 0;  // what must not be left over
};

// Reports go to launch.races, one for each pair of instructions; more than options.max_reports is
// an Error.
std::unique_ptr<Checker> make_checker(Cluster& cluster);

// What the clusters that the checkers of a launch have seen wrote.
std::shared_ptr<const GlobalWrites> global_writes(Launch& launch);

}  // namespace dsv4::simulator
