// SPDX-License-Identifier: Apache-2.0
#include "checker.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "checker_state.h"
#include "error.h"
#include "lints.h"
#include "program.h"

namespace dsv4::simulator {
namespace {

using namespace checker;

constexpr int kWarpsPerWarpgroup = 4;
constexpr int kTmemLanesPerCell = 16;
constexpr int kTmemCells = kTmemLanes / kTmemLanesPerCell * kTmemColumns;

enum class Memory : uint8_t { kShared, kTensor, kGlobal };

struct Place {
  Memory memory;
  uint64_t address;
  uint32_t rank = 0;  // of the block, for tensor memory
};

// Who accesses, and what it may rely on.
struct Accessor {
  Warp& warp;  // that performs the access or issued it
  const Instruction& by;
  uint32_t component;
  uint32_t clock;
  bool generic;   // through the generic proxy
  bool in_order;  // needs no order with itself
  bool strong;
  bool pipe;            // tcgen05.mma, .cp, .shift in tensor memory
  const Clock& known;   // accesses that are over
  const Clock& fenced;  // generic writes that it may rely on, unless it is generic itself
};

std::string line_of(const Instruction& instruction) {
  if (instruction.statement == nullptr) return "the end of the kernel";
  return text("line %d: %.90s", instruction.statement->line, instruction.statement->text.c_str());
}

class ClusterChecker final : public Checker {
 public:
  explicit ClusterChecker(Cluster& cluster)
      : cluster_(cluster),
        launch_(*cluster.launch),
        history_(launch_.state<History>()),
        base_(history_.next_component),
        program_(*launch_.program) {
    add_component({Kind::kPreviousGrid});
    for (const auto& cta : cluster.ctas) {
      shared_.emplace_back((cta->shared.size() + 3) / 4);
      tensor_.emplace_back(size_t(kTmemCells));
      for (const auto& warp : cta->warps) {
        WarpState& state = warps_.emplace_back();
        state.own = add_component({Kind::kWarp, warp->global_index});
        state.now.generic.raise(state.own, 1);
      }
    }
    barriers_.resize(cluster.ctas.size() * kNamedBarriers);
    uses_.resize(cluster.ctas.size());
    if (!history_.started) start_history();
  }

  // --- accesses ----------------------------------------------------------------------------------

  void shared(Warp& warp, const Instruction& by, uint32_t address, uint32_t bytes,
              bool write) override {
    access_shared(generic_accessor(warp, by, false), address, bytes, write);
  }

  void global(Warp& warp, const Instruction& by, uint64_t address, uint32_t bytes,
              bool write) override {
    access_global(generic_accessor(warp, by, false), address, bytes, write);
  }

  void strong_shared(Warp& warp, const Instruction& by, uint32_t address, uint32_t bytes,
                     bool reads, bool writes, MemoryOrder order) override {
    access_shared(generic_accessor(warp, by, true), address, bytes, writes);
    synchronise(warp, kSharedWindow | address, reads, writes, order);
  }

  void strong_global(Warp& warp, const Instruction& by, uint64_t address, uint32_t bytes,
                     bool reads, bool writes, MemoryOrder order) override {
    access_global(generic_accessor(warp, by, true), address, bytes, writes);
    synchronise(warp, address, reads, writes, order);
  }

  void shared_async(Warp& issuer, const Instruction& by, Agent agent, uint32_t address,
                    uint32_t bytes, bool write) override {
    WarpState& state = of(issuer);
    access_shared(async_accessor(issuer, by, agent, state.now.async), address, bytes, write);
    uses_[shared_rank(address)][local(agent)] = {agent.clock, &by};
    if (components_[local(agent)].kind == Kind::kWgmma) expect_fenced(state, by);
  }

  void global_async(Warp& issuer, const Instruction& by, Agent agent, uint64_t address,
                    uint32_t bytes, bool write) override {
    const WarpState& state = of(issuer);
    if (write && components_[local(agent)].kind == Kind::kBulkRead) ++agent.component;
    access_global(async_accessor(issuer, by, agent, state.now.async_global), address, bytes, write);
  }

  void tensor(Warp& issuer, const Instruction& by, Agent agent, uint32_t rank, int lane, int lanes,
              int column, int columns, bool write) override {
    WarpState& state = of(issuer);
    if (!launch_.options.tensor_fences) state.tensor.join(state.now.generic);
    const Accessor me{issuer,
                      by,
                      uint32_t(agent.component),
                      agent.clock,
                      false,
                      agent.in_order,
                      false,
                      components_[local(agent)].kind == Kind::kTensorPipe,
                      state.tensor,
                      state.tensor};
    Words& cells = tensor_[rank];
    const int last = (lane + lanes + kTmemLanesPerCell - 1) / kTmemLanesPerCell;
    for (int row = lane / kTmemLanesPerCell; row < last; ++row) {
      for (int c = column; c < column + columns; ++c) {
        const uint64_t address = uint64_t(row * kTmemLanesPerCell) << 16 | uint32_t(c);
        touch(cells[size_t(row) * kTmemColumns + size_t(c)], spill_, 1, me, write,
              {Memory::kTensor, address, rank});
      }
    }
  }

  // --- agents ------------------------------------------------------------------------------------

  Agent copy_agent(Warp& issuer, uint32_t mbarrier) override {
    Mbarrier& m = mbarriers_[mbarrier];
    expect_initialised(issuer, m, mbarrier);
    note_async_use(issuer, m);
    if (m.copy == kNone) m.copy = add_component({Kind::kCopy, -1, mbarrier});
    return {int(base_ + m.copy), ++m.num_copies, false};
  }

  Agent bulk_group_agent(Warp& issuer) override {
    WarpState& state = of(issuer);
    if (state.bulk == kNone) {
      state.bulk = add_component({Kind::kBulkRead, issuer.global_index});
      add_component({Kind::kBulkWrite, issuer.global_index});
    }
    return {int(base_ + state.bulk), ++state.num_bulk, false};
  }

  Agent cp_async_agent(Warp& issuer) override {
    WarpState& state = of(issuer);
    return next(issuer, Kind::kCpAsync, state.cp_async, state.num_cp_async, false);
  }

  Agent tensor_pipe_agent(Warp& issuer) override {
    WarpState& state = of(issuer);
    if (state.pipe_done == kNone) {
      state.pipe_done = add_tensor_component({Kind::kTensorPipe, issuer.global_index});
      add_tensor_component({Kind::kTensorOrder, issuer.global_index});
    }
    state.pipe.join(state.now);
    return {int(base_ + state.pipe_done), ++state.num_pipe, true};
  }

  Agent tensor_load_agent(Warp& issuer) override {
    WarpState& state = of(issuer);
    if (state.load == kNone) {
      state.load = add_tensor_component({Kind::kTensorLoad, issuer.global_index});
    }
    return {int(base_ + state.load), ++state.num_loads, false};
  }

  Agent tensor_store_agent(Warp& issuer) override {
    WarpState& state = of(issuer);
    if (state.store == kNone) {
      state.store = add_tensor_component({Kind::kTensorStore, issuer.global_index});
    }
    return {int(base_ + state.store), ++state.num_stores, false};
  }

  // The warps of a warpgroup issue the same wgmma, each once: the n-th of each is one operation.
  Agent wgmma_agent(Warp& issuer) override {
    WarpState& state = of(issuer);
    if (state.wgmma == kNone) {
      const int first = issuer.global_index - issuer.index % kWarpsPerWarpgroup;
      uint32_t& component = wgmma_components_.emplace(first, kNone).first->second;
      if (component == kNone) component = add_component({Kind::kWgmma, first});
      state.wgmma = component;
    }
    return {int(base_ + state.wgmma), ++state.num_wgmma, true};
  }

  // --- barriers ----------------------------------------------------------------------------------

  void barrier_arrive(Warp& warp, int id) override {
    Barrier& barrier = barrier_of(*warp.cta, id);
    barrier.gathering.join(of(warp).now);
    barrier.arrived.push_back(warp.global_index);
    tick(warp);
  }

  void barrier_complete(Cta& cta, int id) override {
    Barrier& barrier = barrier_of(cta, id);
    const auto all = std::make_shared<const Knowledge>(std::move(barrier.gathering));
    for (int warp : barrier.arrived) warps_[size_t(warp)].barriers[size_t(id)] = all;
    barrier = {};
  }

  void barrier_pass(Warp& warp, int id) override {
    WarpState& state = of(warp);
    if (const Snapshot& all = state.barriers[size_t(id)]) state.now.join(*all);
  }

  void cluster_arrive(Warp& warp) override {
    cluster_gathering_.join(of(warp).now);
    tick(warp);
  }

  void cluster_arrive_relaxed(Warp& warp) override {
    cluster_gathering_.join(published(of(warp)));
    tick(warp);
  }

  void cluster_complete(Cluster&) override {
    cluster_released_ = std::move(cluster_gathering_);
    cluster_gathering_ = {};
  }

  void cluster_pass(Warp& warp) override { of(warp).now.join(cluster_released_); }

  // --- mbarriers ---------------------------------------------------------------------------------

  void mbarrier_init(Warp& warp, const Instruction& by, uint32_t mbarrier) override {
    shared(warp, by, mbarrier, 8, true);
    WarpState& state = of(warp);
    if (state.inits == kNone) {
      state.inits = add_component({Kind::kMbarrierInit, warp.global_index});
    }
    state.now.generic.raise(state.inits, ++state.num_inits);
    Mbarrier& m = mbarriers_[mbarrier];
    m.gathering.clear();
    m.released.clear();
    m.init_component = state.inits;
    m.init_clock = state.num_inits;
    m.init = &by;
  }

  void mbarrier_invalidate(Warp& warp, uint32_t mbarrier) override {
    expect_initialised(warp, mbarriers_[mbarrier], mbarrier);
    mbarriers_[mbarrier].init = nullptr;
  }

  void mbarrier_arrive(Warp& warp, uint32_t mbarrier) override {
    arrive(warp, mbarrier, of(warp).now);
  }

  void mbarrier_arrive_relaxed(Warp& warp, uint32_t mbarrier) override {
    arrive(warp, mbarrier, published(of(warp)));
  }

  void mbarrier_complete(uint32_t mbarrier) override {
    Mbarrier& m = mbarriers_[mbarrier];
    m.released.join(m.gathering);
    m.gathering.clear();
    if (m.copy != kNone) m.released.generic.raise(m.copy, m.num_copies);
  }

  void mbarrier_observe(Warp& warp, uint32_t mbarrier) override {
    Mbarrier& m = mbarriers_[mbarrier];
    expect_initialised(warp, m, mbarrier);
    of(warp).now.join(m.released);
  }

  void mbarrier_observe_relaxed(Warp& warp, uint32_t mbarrier) override {
    Mbarrier& m = mbarriers_[mbarrier];
    expect_initialised(warp, m, mbarrier);
    see_relaxed(of(warp), m.released);
  }

  // --- fences ------------------------------------------------------------------------------------

  void fence_proxy_async(Warp& warp) override {
    WarpState& state = of(warp);
    state.now.async.join(state.now.generic);
    state.now.async_global.join(state.now.generic);
    tick(warp);
  }

  void fence_proxy_async_global(Warp& warp) override {
    WarpState& state = of(warp);
    state.now.async_global.join(state.now.generic);
    tick(warp);
  }

  void fence_mbarrier_init(Warp& warp) override {
    WarpState& state = of(warp);
    if (state.inits == kNone) return;
    Knowledge fenced = state.fenced != nullptr ? *state.fenced : Knowledge{};
    for (Knowledge* k : {&fenced, &state.now}) {
      k->generic.raise(state.inits, state.num_inits);
      k->async.raise(state.inits, state.num_inits);
    }
    state.fenced = std::make_shared<const Knowledge>(std::move(fenced));
  }

  void fence(Warp& warp) override {
    WarpState& state = of(warp);
    if (state.has_pending) {
      state.now.join(state.pending);
      state.pending.clear();
      state.has_pending = false;
    }
    state.fenced = std::make_shared<const Knowledge>(state.now);
    tick(warp);
  }

  // https://docs.nvidia.com/cuda/parallel-thread-execution/#fence-sc-order
  void fence_sc(Warp& warp) override {
    WarpState& state = of(warp);
    state.now.generic.join(state.now.sequential);
    state.now.sequential.join(state.now.generic);
    fence(warp);
  }

  void warp_sync(Warp&) override {}  // lanes of a warp are one agent

  // --- groups of asynchronous operations ---------------------------------------------------------

  void bulk_commit(Warp& warp) override { of(warp).bulk_groups.push_back(of(warp).num_bulk); }

  void bulk_wait_read(Warp& warp, int64_t pending) override {
    WarpState& state = of(warp);
    if (state.bulk == kNone) return;
    state.now.generic.raise(state.bulk, done(state.bulk_groups, pending));
  }

  void bulk_wait(Warp& warp, int64_t pending) override {
    WarpState& state = of(warp);
    if (state.bulk == kNone) return;
    const uint32_t clock = done(state.bulk_groups, pending);
    state.now.generic.raise(state.bulk, clock);
    state.now.generic.raise(state.bulk + 1, clock);
  }

  void cp_async_commit(Warp& warp) override {
    of(warp).cp_async_groups.push_back(of(warp).num_cp_async);
  }

  void cp_async_wait(Warp& warp, int64_t pending) override {
    WarpState& state = of(warp);
    if (state.cp_async == kNone) return;
    state.now.generic.raise(state.cp_async, done(state.cp_async_groups, pending));
  }

  void cp_async_arrive(Warp& warp, uint32_t mbarrier) override {
    WarpState& state = of(warp);
    Mbarrier& m = mbarriers_[mbarrier];
    expect_initialised(warp, m, mbarrier);
    if (state.cp_async != kNone) m.gathering.generic.raise(state.cp_async, state.num_cp_async);
  }

  void wgmma_fence(Warp& warp) override {
    of(warp).touched.clear();
    of(warp).checked = nullptr;
  }

  void matrix_registers(Warp& warp, const Instruction& by) override {
    for (uint32_t offset : by.touched) of(warp).touched.add(offset, &by);
    of(warp).checked = nullptr;
  }

  void wgmma_commit(Warp& warp) override { of(warp).wgmma_groups.push_back(of(warp).num_wgmma); }

  void wgmma_wait(Warp& warp, int64_t pending) override {
    WarpState& state = of(warp);
    if (state.wgmma == kNone) return;
    state.now.generic.raise(state.wgmma, done(state.wgmma_groups, pending));
  }

  // --- tensor memory -----------------------------------------------------------------------------

  // Makes the warp's own finished loads and stores known to whom it synchronises with, and its
  // unfinished tcgen05.mma, .cp, .shift as a place to queue behind.
  void tensor_fence_before(Warp& warp) override {
    WarpState& state = of(warp);
    for (uint32_t own : {state.load, state.store}) {
      if (own != kNone) state.now.generic.raise(own, state.tensor.at(own));
    }
    if (state.pipe_done != kNone) state.now.generic.raise(state.pipe_done + 1, state.num_pipe);
  }

  void tensor_fence_after(Warp& warp) override { of(warp).tensor.join(of(warp).now.generic); }

  void tensor_wait_load(Warp& warp) override {
    wait_tensor(of(warp), of(warp).load, of(warp).num_loads);
  }

  void tensor_wait_store(Warp& warp) override {
    wait_tensor(of(warp), of(warp).store, of(warp).num_stores);
  }

  // The commit hands on what the warp knew when it issued the operations: they come after that, and
  // the arrival after them. (PTX denies this for bulk copies and says nothing here; kernels known
  // to work rely on it.)
  int tensor_commit(Warp& warp) override {
    WarpState& state = of(warp);
    tickets_.push_back(state.pipe);
    if (state.pipe_done != kNone) tickets_.back().generic.raise(state.pipe_done, state.num_pipe);
    tickets_issuers_.push_back(&warp);
    return int(tickets_.size() - 1);
  }

  void tensor_commit_arrive(int ticket, uint32_t mbarrier) override {
    Mbarrier& m = mbarriers_[mbarrier];
    Warp& issuer = *tickets_issuers_[size_t(ticket)];
    expect_initialised(issuer, m, mbarrier);
    note_async_use(issuer, m);
    m.gathering.join(tickets_[size_t(ticket)]);
  }

  void grid_dependency_wait(Warp& warp) override { of(warp).now.generic.raise(0, 1); }

  // --- end ---------------------------------------------------------------------------------------

  void finish(Cluster& cluster) override {
    for (const auto& cta : cluster.ctas) expect_unused(*cta);
    const uint32_t serial = uint32_t(history_.clusters.size());
    for (const auto& [address, location] : locations_) {
      if (location.released == nullptr || (address & kSharedWindow) == kSharedWindow) continue;
      Released& released = history_.released[address];
      add(released, serial, location.released);
      for (const Import& import : imports_) {
        const bool whole = location.released->generic.at(import.component) != 0;
        if (!whole && location.released->generic.at(import.component + 1) == 0 &&
            location.released->sequential.at(import.component + 1) == 0) {
          continue;
        }
        for (const auto& [other, snapshot] : import.from) {
          add(released, other, whole ? snapshot : sequential_part(*snapshot));
        }
      }
    }
    history_.clusters.push_back({base_, cluster.ctas[0]->index, std::move(components_)});
    history_.next_component = base_ + uint32_t(history_.clusters.back().components.size());
  }

 private:
  // --- components and agents ---------------------------------------------------------------------

  WarpState& of(Warp& warp) { return warps_[size_t(warp.global_index)]; }
  uint32_t local(const Agent& agent) const { return uint32_t(agent.component) - base_; }

  uint32_t add_component(Component component) {
    components_.push_back(component);
    return uint32_t(components_.size() - 1);
  }
  uint32_t add_tensor_component(Component component) {
    tensor_components_.push_back(add_component(component));
    return tensor_components_.back();
  }

  Agent next(Warp& issuer, Kind kind, uint32_t& component, uint32_t& count, bool in_order) {
    if (component == kNone) component = add_component({kind, issuer.global_index});
    return {int(base_ + component), ++count, in_order};
  }

  // After knowledge has been handed on: what the warp does from now on is not part of it.
  void tick(Warp& warp) {
    WarpState& state = of(warp);
    state.now.generic.raise(state.own, state.now.generic.at(state.own) + 1);
  }

  // Operations in groups that are over when at most `pending` groups are not.
  static uint32_t done(const std::vector<uint32_t>& groups, int64_t pending) {
    const int64_t last = int64_t(groups.size()) - 1 - pending;
    return last < 0 ? 0 : groups[size_t(last)];
  }

  Barrier& barrier_of(const Cta& cta, int id) {
    return barriers_[cta.rank * size_t(kNamedBarriers) + size_t(id)];
  }

  // --- handing on --------------------------------------------------------------------------------

  // What a relaxed operation hands on. The order of tcgen05 operations needs no more than execution
  // order.
  // https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-memory-consistency-model-canonical-sync-patterns
  Knowledge published(const WarpState& state) const {
    Knowledge result = state.fenced != nullptr ? *state.fenced : Knowledge{};
    for (uint32_t c : tensor_components_) result.generic.raise(c, state.now.generic.at(c));
    result.sequential.join(state.now.sequential);
    return result;
  }

  void see_relaxed(WarpState& state, const Knowledge& seen) {
    state.pending.join(seen);
    state.has_pending = true;
    state.now.sequential.join(seen.sequential);
    for (uint32_t c : tensor_components_) state.now.generic.raise(c, seen.generic.at(c));
  }

  void arrive(Warp& warp, uint32_t mbarrier, const Knowledge& knowledge) {
    Mbarrier& m = mbarriers_[mbarrier];
    expect_initialised(warp, m, mbarrier);
    m.gathering.join(knowledge);
    if (shared_rank(mbarrier) != warp.cta->rank) {
      const WarpState& state = of(warp);
      uses_[shared_rank(mbarrier)][state.own] = {state.now.generic.at(state.own), nullptr};
    }
    tick(warp);
  }

  void wait_tensor(WarpState& state, uint32_t component, uint32_t count) {
    if (component == kNone) return;
    state.tensor.raise(component, count);
    if (!launch_.options.tensor_fences) state.now.generic.raise(component, count);
  }

  // https://docs.nvidia.com/cuda/parallel-thread-execution/#release-acquire-patterns
  void synchronise(Warp& warp, uint64_t address, bool reads, bool writes, MemoryOrder order) {
    WarpState& state = of(warp);
    const bool acquire = order == MemoryOrder::kAcquire || order == MemoryOrder::kAcquireRelease;
    const bool release = order == MemoryOrder::kRelease || order == MemoryOrder::kAcquireRelease;
    Location& location = locations_[address];
    if (reads) {
      const uint32_t import = import_from(address);
      for (const bool now : {false, true}) {
        if (now && !acquire) break;
        Knowledge& target = now ? state.now : state.pending;
        if (location.released != nullptr) target.join(*location.released);
        if (import != kNone) target.generic.raise(import, 1);
      }
      state.has_pending = true;
      if (location.released != nullptr) state.now.sequential.join(location.released->sequential);
      if (import != kNone) state.now.sequential.raise(import + 1, 1);
    }
    if (!writes) return;
    Snapshot handed = state.fenced;
    if (release) {
      handed = std::make_shared<const Knowledge>(state.now);
    } else if (state.now.sequential.size() > 0) {
      handed = std::make_shared<const Knowledge>(published(state));
    }
    const bool continues = reads || location.last_writer == warp.global_index;
    location.last_writer = warp.global_index;
    if (!continues || location.released == nullptr) {
      location.released = handed;
    } else if (handed != nullptr && handed != location.released) {
      Knowledge both = *location.released;
      both.join(*handed);
      location.released = std::make_shared<const Knowledge>(std::move(both));
    }
    tick(warp);
  }

  // The component that stands for what earlier clusters released at an address.
  uint32_t import_from(uint64_t address) {
    const auto found = history_.released.find(address);
    if (found == history_.released.end()) return kNone;
    uint32_t& component = import_components_.emplace(address, kNone).first->second;
    if (component == kNone) {
      component = add_component({Kind::kImport});
      add_component({Kind::kImportSequential});
      imports_.push_back({component, found->second});
    }
    return component;
  }

  static Snapshot sequential_part(const Knowledge& knowledge) {
    Knowledge part;
    part.generic = part.sequential = knowledge.sequential;
    return std::make_shared<const Knowledge>(std::move(part));
  }

  static void add(Released& released, uint32_t cluster, const Snapshot& snapshot) {
    Snapshot& held = released[cluster];
    if (held == nullptr) {
      held = snapshot;
    } else if (held != snapshot) {
      Knowledge both = *held;
      both.join(*snapshot);
      held = std::make_shared<const Knowledge>(std::move(both));
    }
  }

  // --- accesses ----------------------------------------------------------------------------------

  Accessor generic_accessor(Warp& warp, const Instruction& by, bool strong) {
    const WarpState& state = of(warp);
    return {warp,
            by,
            base_ + state.own,
            state.now.generic.at(state.own),
            true,
            true,
            strong,
            false,
            state.now.generic,
            state.now.generic};
  }

  Accessor async_accessor(Warp& issuer, const Instruction& by, const Agent& agent,
                          const Clock& fenced) {
    const WarpState& state = of(issuer);
    const bool generic = agent.generic || components_[local(agent)].kind == Kind::kCpAsync;
    return {issuer,       by,    uint32_t(agent.component), agent.clock, generic, agent.in_order,
            agent.strong, false, state.now.generic,         fenced};
  }

  void access_shared(const Accessor& me, uint32_t address, uint32_t bytes, bool write) {
    const uint32_t rank = shared_rank(address);
    Words& words = shared_[rank];
    each_word(shared_offset(address), bytes, [&](uint64_t word, uint32_t mask) {
      touch(words[word], spill_, mask, me, write,
            {Memory::kShared, uint64_t(rank) << 24 | word * 4});
    });
    if (me.generic && rank != me.warp.cta->rank) {
      uses_[rank][me.component - base_] = {me.clock, &me.by};
    }
  }

  void access_global(const Accessor& me, uint64_t address, uint32_t bytes, bool write) {
    GlobalShadow& global = history_.global;
    while (bytes > 0) {
      const uint64_t number = address / GlobalShadow::kPageBytes;
      const uint64_t offset = address % GlobalShadow::kPageBytes;
      const uint32_t here = uint32_t(std::min<uint64_t>(bytes, GlobalShadow::kPageBytes - offset));
      if (Word* words = global.page(number, write)) {
        each_word(offset, here, [&](uint64_t word, uint32_t mask) {
          touch(words[word], global.spill(), mask, me, write,
                {Memory::kGlobal, number * GlobalShadow::kPageBytes + word * 4});
        });
      }
      address += here;
      bytes -= here;
    }
  }

  // Calls body(word, mask of its bytes) for each word of the range.
  template <class Body>
  static void each_word(uint64_t address, uint32_t bytes, Body&& body) {
    const uint64_t end = address + bytes;
    for (uint64_t word = address / 4; word * 4 < end; ++word) {
      uint32_t mask = 0xF;
      if (word * 4 < address) mask &= 0xFu << (address % 4);
      if (word * 4 + 4 > end) mask &= 0xFu >> (4 - end % 4);
      body(word, mask);
    }
  }

  void touch(Word& word, Spill& spill, uint32_t mask, const Accessor& me, bool write,
             const Place& place) {
    if (write) {
      check_write(word, spill, mask, me, place);
    } else if (check_read(word, spill, mask, me, place)) {
      return;
    }
    Access access{};
    access.component = me.component;
    access.clock = me.clock;
    access.instruction = uint32_t(&me.by - program_.instructions.data());
    access.bytes = mask;
    access.write = write;
    access.strong = me.strong;
    access.generic = me.generic;
    append(word, spill, access);
  }

  // Returns true if the word remembers this read already.
  bool check_read(Word& word, Spill& spill, uint32_t mask, const Accessor& me, const Place& place) {
    Access* mine = nullptr;
    for (uint32_t i = 0; i < word.count; ++i) {
      Access& a = access_of(word, spill, i);
      if (a.write) {
        if ((a.bytes & mask) != 0 && !may_follow(a, me)) report(a, me, false, place);
      } else if (a.component == me.component && (a.bytes & ~mask) == 0 && a.strong == me.strong) {
        mine = &a;
      }
    }
    if (mine == nullptr) return false;
    mine->clock = me.clock;
    mine->instruction = uint32_t(&me.by - program_.instructions.data());
    mine->bytes = mask;
    return true;
  }

  // A write that a known read came after needs no check of its own: the order goes through the
  // read, unless the proxy changes behind it.
  void check_write(Word& word, Spill& spill, uint32_t mask, const Accessor& me,
                   const Place& place) {
    uint32_t read = 0, read_async = 0;
    for (uint32_t i = 0; i < word.count; ++i) {
      const Access& a = access_of(word, spill, i);
      if (a.write || (a.bytes & mask) == 0) continue;
      if (happens_before(a, me)) {
        read |= a.bytes;
        if (!a.generic) read_async |= a.bytes;
      } else if (!(a.strong && me.strong)) {
        report(a, me, true, place);
      }
    }
    bool overlap = false;
    for (uint32_t i = 0; i < word.count; ++i) {
      const Access& a = access_of(word, spill, i);
      if ((a.bytes & mask) == 0) continue;
      overlap = true;
      if (!a.write) continue;
      const uint32_t covered = a.generic && !me.generic ? read_async : read;
      if ((a.bytes & mask & ~covered) != 0 && !may_follow(a, me)) report(a, me, true, place);
    }
    if (!overlap) return;
    // Other strong accesses need no order with a strong write, so it does not stand for what they
    // have to be ordered after.
    filter(word, spill, [&](Access& a) {
      if (!me.strong || (a.strong && a.component == me.component)) a.bytes &= ~mask & 0xF;
      return a.bytes != 0;
    });
  }

  bool may_follow(const Access& a, const Accessor& me) const {
    return (a.strong && me.strong) || happens_before(a, me);
  }

  bool happens_before(const Access& a, const Accessor& me) const {
    if (a.component == me.component && (me.in_order || a.clock == me.clock)) return true;
    if (a.component < base_) return is_known_of_others(a, me);
    const uint32_t c = a.component - base_;
    if (needs_proxy_fence(a, me)) return me.fenced.at(c) >= a.clock;
    if (me.known.at(c) >= a.clock) return true;
    return me.pipe && components_[c].kind == Kind::kTensorPipe && me.known.at(c + 1) >= a.clock;
  }

  static bool needs_proxy_fence(const Access& a, const Accessor& me) {
    return a.generic && a.write && !me.generic;
  }

  // Accesses of earlier clusters and of the previous grid.
  bool is_known_of_others(const Access& a, const Accessor& me) const {
    if (a.component == 0) return me.known.at(0) >= 1;
    const uint32_t serial = cluster_of(a.component);
    const uint32_t c = a.component - history_.clusters[serial].base;
    for (const Import& import : imports_) {
      const auto found = import.from.find(serial);
      if (found == import.from.end()) continue;
      const Knowledge& theirs = *found->second;
      const bool seen = me.known.at(import.component) != 0;
      if (me.known.at(import.component + 1) != 0 && !needs_proxy_fence(a, me) &&
          theirs.sequential.at(c) >= a.clock) {
        return true;
      }
      if (!needs_proxy_fence(a, me)) {
        if (seen && theirs.generic.at(c) >= a.clock) return true;
      } else {
        if (seen && theirs.async_global.at(c) >= a.clock) return true;
        if (me.fenced.at(import.component) != 0 && theirs.generic.at(c) >= a.clock) return true;
      }
    }
    return false;
  }

  uint32_t cluster_of(uint32_t component) const {
    const auto after =
        std::upper_bound(history_.clusters.begin(), history_.clusters.end(), component,
                         [](uint32_t c, const PastCluster& cluster) { return c < cluster.base; });
    return uint32_t(after - history_.clusters.begin() - 1);
  }

  // https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-fence
  void expect_fenced(WarpState& state, const Instruction& wgmma) {
    if (state.touched.empty() || state.checked == &wgmma) return;
    state.checked = &wgmma;
    for (Register r : wgmma.list) {
      const Instruction* by = state.touched.owner(r.offset);
      if (by == nullptr) continue;
      add_report(&wgmma, by,
                 text("registers: %s\n  touches what was touched before, %s\n"
                      "  missing: wgmma.fence",
                      line_of(wgmma).c_str(), line_of(*by).c_str()));
      return;
    }
  }

  // --- other rules -------------------------------------------------------------------------------

  void expect_initialised(Warp& warp, const Mbarrier& m, uint32_t address) {
    if (m.init == nullptr) return;  // the mbarrier family errors
    if (of(warp).now.generic.at(m.init_component) >= m.init_clock) return;
    add_report(
        m.init, m.init,
        text("mbarrier %#x is used by %s, not ordered after its "
             "initialisation, %s; missing: synchronisation",
             address, name({Kind::kWarp, warp.global_index}).c_str(), line_of(*m.init).c_str()));
  }

  // https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
  void note_async_use(Warp& issuer, const Mbarrier& m) {
    if (m.init == nullptr || of(issuer).now.async.at(m.init_component) >= m.init_clock) return;
    launch_.state<LaunchFacts>().notes.insert(
        text("an asynchronous operation completes on an mbarrier without fence.mbarrier_init or "
             "fence.proxy.async behind its initialisation, %s",
             line_of(*m.init).c_str()));
  }

  // A block's shared memory is gone when its warps have exited: all of its users must be known to
  // be done by then.
  void expect_unused(const Cta& cta) {
    Clock at_exit;
    for (const auto& warp : cta.warps) at_exit.join(of(*warp).now.generic);
    for (const auto& [component, use] : uses_[cta.rank]) {
      if (at_exit.at(component) >= use.clock) continue;
      const std::string by = use.by != nullptr ? ", " + line_of(*use.by) : ", an mbarrier.arrive";
      add_report(use.by, nullptr,
                 text("block %u may exit while its shared memory is in use by %s%s; missing: %s",
                      cta.rank, name(components_[component]).c_str(), by.c_str(),
                      wait_for(components_[component]).c_str()));
    }
  }

  // --- reports -----------------------------------------------------------------------------------

  std::string name_of_warp(int warp) const {
    const size_t warps = cluster_.ctas[0]->warps.size();
    if (cluster_.ctas.size() == 1) return text("warp %d", warp);
    return text("warp %zu of block %zu", size_t(warp) % warps, size_t(warp) / warps);
  }

  std::string name(const Component& c) const {
    switch (c.kind) {
      case Kind::kPreviousGrid:
        return "the previous grid";
      case Kind::kWarp:
        return name_of_warp(c.warp);
      case Kind::kMbarrierInit:
        return "mbarrier.init of " + name_of_warp(c.warp);
      case Kind::kTensorLoad:
        return "tcgen05.ld of " + name_of_warp(c.warp);
      case Kind::kTensorStore:
        return "tcgen05.st of " + name_of_warp(c.warp);
      case Kind::kTensorPipe:
      case Kind::kTensorOrder:
        return "the tcgen05 pipe of " + name_of_warp(c.warp);
      case Kind::kBulkRead:
      case Kind::kBulkWrite:
        return "a bulk group of " + name_of_warp(c.warp);
      case Kind::kCpAsync:
        return "cp.async of " + name_of_warp(c.warp);
      case Kind::kWgmma:
        return "wgmma of the warpgroup of " + name_of_warp(c.warp);
      case Kind::kCopy:
        return text("a copy that completes on mbarrier %#x", c.mbarrier);
      case Kind::kImport:
      case Kind::kImportSequential:
        return "another cluster";
    }
    return "?";
  }

  // What tells others that an agent's work is over.
  static std::string wait_for(const Component& c) {
    switch (c.kind) {
      case Kind::kPreviousGrid:
        return "griddepcontrol.wait";
      case Kind::kTensorPipe:
        return "tcgen05.commit and a wait for it";
      case Kind::kBulkRead:
        return "cp.async.bulk.wait_group(.read)";
      case Kind::kBulkWrite:
        return "cp.async.bulk.wait_group";
      case Kind::kCpAsync:
        return "cp.async.wait_group";
      case Kind::kWgmma:
        return "wgmma.wait_group";
      case Kind::kCopy:
        return "a wait on its mbarrier";
      default:
        return "synchronisation";
    }
  }

  std::string missing(const Access& a, const Accessor& me, const Place& place) {
    if (a.component < base_) {
      return a.component == 0 ? wait_for({Kind::kPreviousGrid})
                              : "synchronisation between clusters (release, acquire)";
    }
    const uint32_t c = a.component - base_;
    const Component& component = components_[c];
    WarpState& mine = of(me.warp);
    if (needs_proxy_fence(a, me) && mine.now.generic.at(c) >= a.clock) return "fence.proxy.async";
    if (place.memory != Memory::kTensor) return wait_for(component);
    const bool load = component.kind == Kind::kTensorLoad;
    if (load || component.kind == Kind::kTensorStore) {
      const WarpState& theirs = warps_[size_t(component.warp)];
      if (theirs.tensor.at(c) < a.clock) return load ? "tcgen05.wait::ld" : "tcgen05.wait::st";
      if (theirs.now.generic.at(c) < a.clock) return "tcgen05.fence::before_thread_sync";
    }
    if (mine.now.generic.at(c) >= a.clock) return "tcgen05.fence::after_thread_sync";
    return wait_for(component);
  }

  void report(const Access& a, const Accessor& me, bool write, const Place& place) {
    const Instruction* other =
        a.instruction == Access::kNoInstruction ? nullptr : &program_.instructions[a.instruction];
    if (launch_.reported.count({&me.by, other}) != 0) return;
    std::string who = "the previous grid";
    if (a.component >= base_) {
      who = name(components_[a.component - base_]);
    } else if (a.component != 0) {
      const PastCluster& past = history_.clusters[cluster_of(a.component)];
      who = text("%s of the cluster at block (%u, %u, %u)",
                 name(past.components[a.component - past.base]).c_str(), past.first.x, past.first.y,
                 past.first.z);
    }
    static constexpr const char* kMemories[] = {"shared memory", "tensor memory", "global memory"};
    std::string where = text("%s %#llx", kMemories[int(place.memory)],
                             static_cast<unsigned long long>(place.address));
    if (place.memory == Memory::kTensor) where += text(" of block %u", place.rank);
    const std::string line = other != nullptr ? ", " + line_of(*other) : "";
    add_report(&me.by, other,
               text("%s after %s in %s: %s, %s\n  is not ordered after %s%s\n  missing: %s",
                    write ? "write" : "read", a.write ? "write" : "read", where.c_str(),
                    name(components_[me.component - base_]).c_str(), line_of(me.by).c_str(),
                    who.c_str(), line.c_str(), missing(a, me, place).c_str()));
  }

  void add_report(const Instruction* by, const Instruction* other, const std::string& report) {
    if (!launch_.reported.insert({by, other}).second) return;
    launch_.races.push_back(report);
    if (int(launch_.races.size()) > launch_.options.max_reports) {
      fail("more than %d reports of the checker", launch_.options.max_reports);
    }
  }

  void start_history() {
    history_.started = true;
    if (launch_.options.previous == nullptr) return;
    for (const auto& [number, written] : launch_.options.previous->pages) {
      Word* words = history_.global.page(number, true);
      for (uint64_t i = 0; i < GlobalShadow::kPageWords; ++i) {
        if ((written[i / 64] >> (i % 64) & 1) == 0) continue;
        Access access{};
        access.clock = 1;
        access.instruction = Access::kNoInstruction;
        access.bytes = 0xF;
        access.write = 1;
        append(words[i], history_.global.spill(), access);
      }
    }
  }

  Cluster& cluster_;
  Launch& launch_;
  History& history_;
  const uint32_t base_;  // number of this cluster's first component
  const Program& program_;

  std::vector<Component> components_;
  std::vector<uint32_t> tensor_components_;
  std::map<int, uint32_t> wgmma_components_;  // by first warp of the warpgroup
  std::vector<WarpState> warps_;

  std::vector<Words> shared_, tensor_;  // by rank
  Spill spill_;
  std::vector<std::unordered_map<uint32_t, LastUse>> uses_;  // by rank, then component

  std::vector<Barrier> barriers_;  // by rank and id
  Knowledge cluster_gathering_, cluster_released_;
  std::unordered_map<uint32_t, Mbarrier> mbarriers_;
  std::vector<Knowledge> tickets_;
  std::vector<Warp*> tickets_issuers_;
  std::unordered_map<uint64_t, Location> locations_;
  std::unordered_map<uint64_t, uint32_t> import_components_;
  std::vector<Import> imports_;
};

}  // namespace

std::unique_ptr<Checker> make_checker(Cluster& cluster) {
  return std::make_unique<ClusterChecker>(cluster);
}

std::shared_ptr<const GlobalWrites> global_writes(Launch& launch) {
  auto result = std::make_shared<GlobalWrites>();
  GlobalShadow& global = launch.state<History>().global;
  for (auto& [number, words] : global.pages()) {
    auto& written = result->pages[number];
    written.fill(0);
    for (uint64_t i = 0; i < words.size(); ++i) {
      for (uint32_t k = 0; k < words[i].count; ++k) {
        if (access_of(words[i], global.spill(), k).write) written[i / 64] |= 1ull << (i % 64);
      }
    }
  }
  return result;
}

}  // namespace dsv4::simulator
