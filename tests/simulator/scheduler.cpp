// SPDX-License-Identifier: Apache-2.0
// Runs clusters one after the other, the warps of a cluster in turns. Lanes of a warp that stand at
// different instructions are groups; the group furthest behind runs first, so groups meet again
// where code does.
#include <algorithm>

#include "checker.h"
#include "error.h"
#include "lints.h"
#include "machine.h"
#include "memory.h"
#include "program.h"

namespace dsv4::simulator {

int FamilyStates::next_id() {
  static int count = 0;
  return count++;
}

Cluster& Warp::cluster() { return *cta->cluster; }
Launch& Warp::launch() { return *cta->cluster->launch; }
Checker* Warp::checker() { return cta->cluster->checker.get(); }
Counters& Warp::counters() { return cta->cluster->launch->counters; }

// --- asynchronous work
// ---------------------------------------------------------------------------------

void AsyncWork::run(Action action) {
  action();
  ++progress;
}

void AsyncWork::post_copy(Action action) {
  if (mode == AsyncMode::kEager) return run(std::move(action));
  copies_.push_back(std::move(action));
}

void AsyncWork::post_in_order(int pipe, Action action) {
  if (mode == AsyncMode::kEager) return run(std::move(action));
  pipes_[pipe].push_back(std::move(action));
}

bool AsyncWork::empty() const { return copies_.empty() && pipes_.empty(); }

void AsyncWork::run_one(std::mt19937_64& random) {
  const size_t choice = size_t(random() % (copies_.size() + pipes_.size()));
  if (choice < copies_.size()) {
    Action action = std::move(copies_[choice]);
    copies_.erase(copies_.begin() + int64_t(choice));
    run(std::move(action));
    return;
  }
  auto pipe = std::next(pipes_.begin(), int64_t(choice - copies_.size()));
  Action action = std::move(pipe->second.front());
  pipe->second.pop_front();
  if (pipe->second.empty()) pipes_.erase(pipe);
  run(std::move(action));
}

void AsyncWork::run_all() {
  std::mt19937_64 any;
  while (!empty()) run_one(any);
}

namespace {

constexpr uint32_t kRegisterPoison = 0x7FFFDEAD;  // NaN as a float, large as an integer
constexpr uint8_t kSharedPoison = 0xFF;           // NaN in every format
constexpr uint32_t kTmemPoison = 0x7FFFFFFF;      // NaN

// --- set-up
// --------------------------------------------------------------------------------------------

bool is_clock(const std::string& name) {
  return name.rfind("%clock", 0) == 0 || name == "%globaltimer";
}

uint64_t special_value(const std::string& name, const Warp& warp, int lane) {
  const Cta& cta = *warp.cta;
  const LaunchShape& shape = cta.cluster->launch->shape;
  const uint32_t thread = uint32_t(warp.index * kLanes + lane);
  const auto of = [&](const char* base, Dim3 dims) -> const uint32_t* {
    static thread_local uint32_t value;
    const size_t length = std::char_traits<char>::length(base);
    if (name.compare(0, length, base) != 0 || name.size() != length + 2 || name[length] != '.')
      return nullptr;
    value = name.back() == 'x' ? dims.x : name.back() == 'y' ? dims.y : dims.z;
    return &value;
  };
  const Dim3 in_cluster{cta.index.x % shape.cluster.x, cta.index.y % shape.cluster.y,
                        cta.index.z % shape.cluster.z};
  const Dim3 cluster_index{cta.index.x / shape.cluster.x, cta.index.y / shape.cluster.y,
                           cta.index.z / shape.cluster.z};
  const Dim3 num_clusters{shape.grid.x / shape.cluster.x, shape.grid.y / shape.cluster.y,
                          shape.grid.z / shape.cluster.z};
  const Dim3 tid{thread % shape.block.x, thread / shape.block.x % shape.block.y,
                 thread / shape.block.x / shape.block.y};
  if (const uint32_t* v = of("%tid", tid)) return *v;
  if (const uint32_t* v = of("%ntid", shape.block)) return *v;
  if (const uint32_t* v = of("%ctaid", cta.index)) return *v;
  if (const uint32_t* v = of("%nctaid", shape.grid)) return *v;
  if (const uint32_t* v = of("%cluster_ctaid", in_cluster)) return *v;
  if (const uint32_t* v = of("%cluster_nctaid", shape.cluster)) return *v;
  if (const uint32_t* v = of("%clusterid", cluster_index)) return *v;
  if (const uint32_t* v = of("%nclusterid", num_clusters)) return *v;
  if (name == "%laneid") return uint64_t(lane);
  if (name == "%warpid") return uint64_t(warp.index);
  if (name == "%nwarpid") return cta.warps.size();
  if (name == "%cluster_ctarank") return cta.rank;
  if (name == "%cluster_nctarank") return shape.cluster.count();
  if (name == "%is_explicit_cluster") return shape.cluster.count() > 1 ? kAllLanes : 0;
  if (name == "%lanemask_eq") return 1u << lane;
  if (name == "%lanemask_lt") return (1u << lane) - 1;
  if (name == "%lanemask_le") return (2u << lane) - 1;
  if (name == "%lanemask_gt") return ~((2u << lane) - 1);
  if (name == "%lanemask_ge") return ~((1u << lane) - 1);
  if (name == "%dynamic_smem_size") return shape.dynamic_shared_bytes;
  if (name == "%total_smem_size") return cta.shared.size() - kSharedReserved;
  if (name == "%smid" || name == "%gridid") return 0;
  if (name == "%nsmid") return 1;
  if (is_clock(name)) return cta.cluster->launch->steps;
  fail("special register %s is not simulated", name.c_str());
}

template <class Value>
void fill(Warp& warp, Register r, int bytes, Value&& value) {
  if (bytes == 0) {
    warp.predicate(r) = LaneMask(value(0));
  } else if (bytes == 4) {
    for (int lane = 0; lane < kLanes; ++lane) warp.lanes<uint32_t>(r)[lane] = uint32_t(value(lane));
  } else {
    for (int lane = 0; lane < kLanes; ++lane) warp.lanes<uint64_t>(r)[lane] = value(lane);
  }
}

void start_warp(Warp& warp) {
  const Program& program = *warp.program;
  const Cta& cta = *warp.cta;
  warp.registers.resize(program.register_bytes);
  for (size_t i = 0; i + 4 <= warp.registers.size(); i += 4)
    std::memcpy(&warp.registers[i], &kRegisterPoison, 4);
  for (const auto& c : program.constants) fill(warp, c.r, c.bytes, [&](int) { return c.value; });
  const uint8_t* parameters = cta.cluster->launch->parameter_base;
  for (const auto& p : program.parameter_symbols) {
    fill(warp, p.r, 8, [&](int) { return reinterpret_cast<uint64_t>(parameters + p.offset); });
  }
  for (const auto& s : program.shared_symbols) {
    const uint32_t offset = s.variable->dynamic ? program.dynamic_shared_offset()
                                                : kSharedReserved + uint32_t(s.variable->offset);
    fill(warp, s.r, s.bytes, [&](int) { return uint64_t(cta.rank << 24 | offset); });
  }
  for (const auto& s : program.specials) {
    fill(warp, s.r, s.bytes, [&](int lane) { return special_value(s.name, warp, lane); });
  }
  const uint32_t threads = cta.num_threads - uint32_t(warp.index * kLanes);
  warp.alive = threads >= uint32_t(kLanes) ? kAllLanes : (1u << threads) - 1;
  warp.groups.push_back({0, warp.alive, false});
  warp.local.resize(kLanes * program.function->local_bytes, kSharedPoison);
}

std::unique_ptr<Cluster> start_cluster(Launch& launch, Dim3 first) {
  auto cluster = std::make_unique<Cluster>();
  cluster->launch = &launch;
  cluster->random.seed(launch.options.seed * 7919 + first.x + first.y * 131 + first.z * 17);
  cluster->async.mode = launch.options.async;
  const LaunchShape& shape = launch.shape;
  for (uint32_t rank = 0; rank < shape.cluster.count(); ++rank) {
    auto cta = std::make_unique<Cta>();
    cta->cluster = cluster.get();
    cta->rank = rank;
    cta->index = {first.x + rank % shape.cluster.x,
                  first.y + rank / shape.cluster.x % shape.cluster.y,
                  first.z + rank / shape.cluster.x / shape.cluster.y};
    cta->num_threads = shape.block.count();
    cta->shared.assign(launch.program->dynamic_shared_offset() + shape.dynamic_shared_bytes,
                       kSharedPoison);
    cta->tmem.assign(size_t(kTmemLanes) * kTmemColumns, kTmemPoison);
    const int num_warps = int((cta->num_threads + kLanes - 1) / kLanes);
    for (int i = 0; i < num_warps; ++i) {
      auto warp = std::make_unique<Warp>();
      warp->cta = cta.get();
      warp->program = launch.program;
      warp->index = i;
      warp->global_index = int(rank) * num_warps + i;
      cta->warps.push_back(std::move(warp));
    }
    cluster->ctas.push_back(std::move(cta));
  }
  if (launch.options.check) cluster->checker = make_checker(*cluster);
  for (auto& cta : cluster->ctas) {
    for (auto& warp : cta->warps) start_warp(*warp);
  }
  return cluster;
}

// --- running a warp
// ------------------------------------------------------------------------------------

std::string where(const Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const Cta& cta = *warp.cta;
  return text(
      "block (%u, %u, %u) rank %u warp %d lanes %08x, line %d: %s", cta.index.x, cta.index.y,
      cta.index.z, cta.rank, warp.index, lanes,
      instruction.statement != nullptr ? instruction.statement->line : 0,
      instruction.statement != nullptr ? instruction.statement->text.c_str() : "end of the kernel");
}

class WarpRunner {
 public:
  explicit WarpRunner(Warp& warp)
      : warp_(warp),
        launch_(warp.launch()),
        counters_(launch_.counters.warps[size_t(warp.index)]) {}

  // Executes up to `budget` instructions; returns how many.
  int run(int budget) {
    refresh_clocks();
    int done = 0;
    while (done < budget && !warp_.groups.empty()) {
      const int chosen = choose();
      if (chosen < 0) break;
      const Step step = execute(size_t(chosen));
      if (step == Step::kBlocked) continue;
      ++done;
      if (step == Step::kYield) break;
    }
    // Groups that could not go on get another try the next time.
    for (Group& group : warp_.groups) group.waiting = false;
    return done;
  }

 private:
  enum class Step { kDone, kYield, kBlocked };

  void refresh_clocks() {
    for (const auto& s : warp_.program->specials) {
      if (is_clock(s.name)) fill(warp_, s.r, s.bytes, [&](int) { return launch_.steps; });
    }
  }

  // The group furthest behind that is not waiting.
  int choose() const {
    int best = -1;
    for (size_t i = 0; i < warp_.groups.size(); ++i) {
      if (warp_.groups[i].waiting) continue;
      if (best < 0 || warp_.groups[i].pc < warp_.groups[size_t(best)].pc) best = int(i);
    }
    return best;
  }

  Step execute(size_t index) {
    Group& group = warp_.groups[index];
    const Instruction& instruction = warp_.program->instructions[group.pc];
    LaneMask lanes = group.lanes;
    if (instruction.guard) {
      const LaneMask predicate = warp_.predicate(instruction.guard);
      lanes &= instruction.guard_negated ? ~predicate : predicate;
    }
    try {
      if (instruction.converged && lanes != 0 && !all_here(instruction, group, lanes)) {
        group.waiting = true;
        return Step::kBlocked;
      }
      if (!warp_.in_flight.empty() && !instruction.may_touch_in_flight && lanes != 0)
        check_in_flight(instruction);
      if (instruction.control != Control::kNone) report_early_use();
      switch (instruction.control) {
        case Control::kBranch:
          count(instruction, lanes);
          branch(index, uint32_t(instruction.branch_target), lanes);
          return Step::kDone;
        case Control::kExit:
          count(instruction, lanes);
          exit(index, lanes);
          return Step::kDone;
        case Control::kNone:
          break;
      }
      Outcome outcome = Outcome::kDone;
      if (lanes != 0) outcome = instruction.execute(warp_, instruction, lanes);
      if (instruction.touches_matrix_registers && lanes != 0) {
        if (Checker* c = warp_.checker()) c->matrix_registers(warp_, instruction);
      }
      if (outcome == Outcome::kAgain) {
        warp_.groups[index].waiting = true;
        return Step::kBlocked;
      }
      count(instruction, lanes);
      ++warp_.groups[index].pc;
      merge(index);
      return outcome == Outcome::kYield ? Step::kYield : Step::kDone;
    } catch (const Error& error) {
      throw Error(std::string(error.what()) + "\n  at " + where(warp_, instruction, lanes));
    }
  }

  bool all_here(const Instruction& instruction, const Group& group, LaneMask lanes) {
    const LaneMask members = instruction.members
                                 ? warp_.lanes<uint32_t>(instruction.members)[first_lane(lanes)]
                                 : kAllLanes;
    return (members & warp_.alive & ~group.lanes) == 0;
  }

  void check_in_flight(const Instruction& instruction) {
    for (size_t i = 0; i < instruction.touched.size(); ++i) {
      const uint32_t offset = instruction.touched[i];
      const Instruction* owner = warp_.in_flight.owner(offset);
      if (owner == nullptr) continue;
      // PTX forbids to read the A fragments of a wgmma in flight as well; hardware does not mind,
      // and the compiler moves such reads behind the wgmma.
      if (i >= instruction.num_written && warp_.in_flight.is_read_only(offset)) continue;
      if (!owner->results_waited_for_by_hardware) fail("%s", touched_in_flight(*owner).c_str());
      warp_.in_flight.note_early(&instruction, owner);
      if (instruction.counted > InstructionClass::kMove) report_early_use();
    }
  }

  static std::string touched_in_flight(const Instruction& owner) {
    return text("a register is touched while an asynchronous instruction owns it: %s",
                owner.statement->text.substr(0, 80).c_str());
  }

  // The compiler moves arithmetic on the results of tcgen05.ld before tcgen05.wait::ld, but no
  // stores, and nothing out of the straight code around them: if that ends without the wait, the
  // source has none.
  void report_early_use() {
    const Instruction* user = warp_.in_flight.early();
    if (user == nullptr) return;
    const Instruction* owner = warp_.in_flight.early_owner();
    add_race(touched_in_flight(*owner) + "\n  at " + where(warp_, *user, kAllLanes), {owner, user});
  }

  // One report for each pair of instructions.
  void add_race(const std::string& report, std::pair<const Instruction*, const Instruction*> pair) {
    if (!launch_.reported.insert(pair).second) return;
    launch_.races.push_back(report);
  }

  void branch(size_t index, uint32_t target, LaneMask taken) {
    Group& group = warp_.groups[index];
    if (taken == group.lanes) {
      group.pc = target;
    } else {
      group.lanes &= ~taken;
      ++group.pc;
      if (taken != 0) warp_.groups.push_back({target, taken, false});
    }
    merge(index);
  }

  void exit(size_t index, LaneMask lanes) {
    warp_.alive &= ~lanes;
    Group& group = warp_.groups[index];
    group.lanes &= ~lanes;
    ++group.pc;
    if (group.lanes == 0) warp_.groups.erase(warp_.groups.begin() + int64_t(index));
    for (Group& other : warp_.groups) other.waiting = false;  // fewer lanes to wait for
    ++warp_.cluster().progress;
  }

  // Groups that meet become one, which may be what a converged instruction waits for.
  void merge(size_t index) {
    if (warp_.groups.size() < 2) return;
    for (size_t i = warp_.groups.size(); i-- > 0;) {
      if (i == index || warp_.groups[i].pc != warp_.groups[index].pc) continue;
      warp_.groups[index].lanes |= warp_.groups[i].lanes;
      warp_.groups[index].waiting = false;
      warp_.groups.erase(warp_.groups.begin() + int64_t(i));
      if (i < index) --index;
    }
  }

  void count(const Instruction& instruction, LaneMask lanes) {
    ++launch_.steps;
    ++counters_.instructions[int(instruction.counted)];
    counters_.lane_instructions += uint64_t(__builtin_popcount(lanes));
    if (launch_.options.count && instruction.statement != nullptr)
      ++launch_.counters.opcodes[instruction.statement->opcode];
  }

  Warp& warp_;
  Launch& launch_;
  WarpCounters& counters_;
};

// --- running a cluster
// ---------------------------------------------------------------------------------

[[noreturn]] void report_deadlock(Cluster& cluster) {
  std::string report = "deadlock: every warp waits";
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) {
      for (const Group& group : warp->groups) {
        const Instruction& instruction = warp->program->instructions[group.pc];
        report += "\n  " + where(*warp, instruction, group.lanes);
        if (instruction.describe_wait != nullptr)
          report += "  <- " + instruction.describe_wait(*warp, instruction, group.lanes);
      }
    }
  }
  throw Error(report);
}

void run_cluster(Cluster& cluster) {
  const Options& options = cluster.launch->options;
  const bool random = options.async == AsyncMode::kRandom;
  std::vector<Warp*> warps;
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) warps.push_back(warp.get());
  }
  while (true) {
    const uint64_t before = cluster.progress + cluster.async.progress;
    bool alive = false;
    int executed = 0;
    if (random) std::shuffle(warps.begin(), warps.end(), cluster.random);
    for (Warp* warp : warps) {
      if (warp->groups.empty()) continue;
      alive = true;
      const int budget =
          random ? 1 + int(cluster.random() % uint64_t(2 * options.budget)) : options.budget;
      executed += WarpRunner(*warp).run(budget);
      if (random && !cluster.async.empty() && cluster.random() % 4 == 0)
        cluster.async.run_one(cluster.random);
    }
    if (!alive) break;
    if (executed > 0) continue;
    if (!cluster.async.empty()) {
      cluster.async.run_one(cluster.random);
    } else if (cluster.progress + cluster.async.progress == before) {
      report_deadlock(cluster);
    }
  }
  cluster.async.run_all();
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) warp->states.finish();
    cta->states.finish();
  }
  cluster.states.finish();
  if (cluster.checker != nullptr) cluster.checker->finish(cluster);
}

}  // namespace

LaunchResult run(const Program& program, const LaunchShape& shape, const void* parameters,
                 const Options& options) {
  Launch launch;
  launch.program = &program;
  launch.shape = shape;
  const uint32_t (&required)[3] = program.function->required_cluster;
  if (required[0] != 0) launch.shape.cluster = {required[0], required[1], required[2]};
  const Dim3 grid = launch.shape.grid, cluster = launch.shape.cluster;
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0) {
    fail("%s: the grid is not a multiple of the cluster", program.function->name.c_str());
  }
  launch.options = options;
  // Aligned as on hardware, so that a tensor map in the parameters is.
  constexpr size_t kParameterAlignment = 128;
  launch.parameters.resize(program.function->parameter_bytes + 2 * kParameterAlignment);
  uint8_t* aligned = launch.parameters.data();
  while (reinterpret_cast<uint64_t>(aligned) % kParameterAlignment != 0) ++aligned;
  launch.counters.warps.resize((launch.shape.block.count() + kLanes - 1) / kLanes);
  std::memcpy(aligned, parameters, program.function->parameter_bytes);
  launch.parameter_base = aligned;
  register_memory(aligned, program.function->parameter_bytes);

  for (uint32_t z = 0; z < grid.z; z += cluster.z) {
    for (uint32_t y = 0; y < grid.y; y += cluster.y) {
      for (uint32_t x = 0; x < grid.x; x += cluster.x) launch.pending.push_back({x, y, z});
    }
  }
  try {
    for (uint64_t i = 0; i < options.max_clusters && !launch.pending.empty(); ++i) {
      const Dim3 first = launch.pending.front();
      launch.pending.pop_front();
      run_cluster(*start_cluster(launch, first));
    }
  } catch (const Error& error) {
    unregister_memory(aligned);
    std::string message = error.what();
    if (!launch.races.empty()) message += "\nbefore that, the checker had reported:";
    for (const std::string& race : launch.races) message += "\n" + race;
    throw Error(message);
  } catch (...) {
    unregister_memory(aligned);
    throw;
  }
  unregister_memory(aligned);
  LaunchResult result;
  result.lints = lint(launch);
  if (options.check) result.writes = global_writes(launch);
  result.counters = std::move(launch.counters);
  result.races = std::move(launch.races);
  result.unanchored = std::move(launch.unanchored);
  return result;
}

}  // namespace dsv4::simulator
