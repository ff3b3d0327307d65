// SPDX-License-Identifier: Apache-2.0
// The machine: registers, warps, blocks, clusters, and the decoded instructions that act on them.
//
//   Launch -> Cluster -> Cta -> Warp -> Group (lanes that share a program counter)
//
// A warp's register file is an array of bytes. A register of up to 32 bits is 32 lanes x 4 bytes,
// one of 64 bits 32 x 8, one of 128 bits two of those (low halves first), a predicate one 32-bit
// mask. Immediates, addresses of variables and special registers are registers too, filled before
// the first instruction, so an instruction finds every operand the same way.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "counters.h"
#include "ptx.h"

namespace dsv4::simulator {

class Checker;
struct Cluster;
struct Cta;
struct Instruction;
struct Launch;
struct Program;
struct Warp;

inline constexpr int kLanes = 32;
using LaneMask = uint32_t;
inline constexpr LaneMask kAllLanes = 0xFFFFFFFFu;

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint32_t count() const { return x * y * z; }
};

// A register by its place in the register file.
struct Register {
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  uint32_t offset = kNone;
  explicit operator bool() const { return offset != kNone; }
};

// What became of an attempt to execute.
enum class Outcome : uint8_t {
  kDone,   // go on behind it
  kAgain,  // could not run yet: try again when something else has happened
  kYield,  // done; let other warps run first (a failed poll)
};

using Execute = Outcome (*)(Warp&, const Instruction&, LaneMask);

enum class Control : uint8_t { kNone, kBranch, kExit };

struct Instruction {
  Execute execute = nullptr;  // not for branches and exits, which the scheduler does itself
  Control control = Control::kNone;
  const ptx::Statement* statement = nullptr;
  Register guard;  // predicate, or none
  bool guard_negated = false;
  bool converged = false;  // .sync / .aligned: waits until all lanes of `members` are here
  Register members;        // lane mask operand; none: every living lane of the warp
  InstructionClass counted = InstructionClass::kOther;
  int branch_target = -1;
  // What a lane that gets kAgain waits for, for the deadlock report. May be null.
  std::string (*describe_wait)(Warp&, const Instruction&, LaneMask) = nullptr;

  // Operands; what each place means is the family's business.
  std::array<Register, 8> r;
  std::vector<Register> list;  // vector operands, in order of appearance
  std::array<int64_t, 4> imm{};
  ptx::Type type = ptx::Type::kNone;
  uint32_t flags = 0;

  // Registers read and written (offsets), for the check of operands that asynchronous work still
  // owns, and whether this instruction may name such registers (another wgmma may).
  std::vector<uint32_t> touched;
  size_t num_written =
      0;  // the first of `touched`: registers of a first operand that is no address
  bool may_touch_in_flight = false;
  bool touches_matrix_registers = false;  // of some wgmma in the program, and is none
  // Hardware waits for the results of this asynchronous instruction, though PTX asks for an
  // explicit wait: touching them early is a report, not an error.
  bool results_waited_for_by_hardware = false;
};

// Address windows. A shared address is (rank in cluster << 24) | offset; the first kilobyte of a
// block's shared memory is the system's.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#state-spaces
inline constexpr uint64_t kSharedWindow = 0x7E00000000000000ull;
inline constexpr uint64_t kLocalWindow = 0x7D00000000000000ull;
inline constexpr uint32_t kSharedReserved = 1024;
inline constexpr uint32_t kSharedOffsetMask = 0x00FFFFFF;
inline uint32_t shared_rank(uint32_t address) { return address >> 24; }
inline uint32_t shared_offset(uint32_t address) { return address & kSharedOffsetMask; }

inline constexpr int kTmemLanes = 128;
inline constexpr int kTmemColumns = 512;

// A program counter shared by some lanes, and why they do not move if they do not.
struct Group {
  uint32_t pc = 0;
  LaneMask lanes = 0;
  bool waiting = false;  // the instruction at pc answered kAgain, or waits for other lanes
};

// State that one family of instructions keeps in a warp or a block. Families add what they need by
// deriving a struct and asking for it: warp.state<BulkGroups>().
struct FamilyState {
  virtual ~FamilyState() = default;
  // When the cluster has ended: errors if something is left over that must not be.
  virtual void finish() {}
};
class FamilyStates {
 public:
  template <class T>
  T& get() {
    static const int id = next_id();
    if (size_t(id) >= states_.size()) states_.resize(size_t(id) + 1);
    if (states_[size_t(id)] == nullptr) states_[size_t(id)] = std::make_unique<T>();
    return static_cast<T&>(*states_[size_t(id)]);
  }
  void finish() {
    for (auto& state : states_) {
      if (state != nullptr) state->finish();
    }
  }

 private:
  static int next_id();
  std::vector<std::unique_ptr<FamilyState>> states_;
};

// Registers that unfinished asynchronous work reads or writes, and which instruction started it.
class InFlight {
 public:
  bool empty() const { return added_.empty(); }
  const Instruction* owner(uint32_t offset) const {
    const size_t slot = offset / kBytes;
    return slot < owners_.size() && owners_[slot].offset == offset ? owners_[slot].by : nullptr;
  }
  // Whether the owner only reads the register, which others may then read too.
  bool is_read_only(uint32_t offset) const { return owners_[offset / kBytes].reads; }
  void add(uint32_t offset, const Instruction* by, bool reads = false) {
    const size_t slot = offset / kBytes;
    if (slot >= owners_.size()) owners_.resize(slot + 1);
    if (owners_[slot].by == nullptr) added_.push_back(uint32_t(slot));
    owners_[slot] = {offset, by, reads};
  }
  void clear() {
    for (uint32_t slot : added_) owners_[slot] = {};
    added_.clear();
    early_ = nullptr;
  }
  // The first instruction that used what hardware waits for by itself, before the wait that PTX
  // asks for.
  const Instruction* early() const { return early_; }
  const Instruction* early_owner() const { return early_owner_; }
  void note_early(const Instruction* by, const Instruction* owner) {
    if (early_ != nullptr) return;
    early_ = by;
    early_owner_ = owner;
  }

 private:
  static constexpr uint32_t kBytes =
      4 * kLanes;  // of the smallest register that is not a predicate
  struct Owner {
    uint32_t offset = Register::kNone;
    const Instruction* by = nullptr;
    bool reads = false;
  };
  std::vector<Owner> owners_;
  std::vector<uint32_t> added_;  // slots in use
  const Instruction* early_ = nullptr;
  const Instruction* early_owner_ = nullptr;
};

struct Warp {
  Cta* cta = nullptr;
  const Program* program = nullptr;
  int index = 0;         // in its block
  int global_index = 0;  // in its cluster
  LaneMask alive = 0;
  std::vector<Group> groups;
  std::vector<uint8_t> registers;
  std::vector<uint8_t> local;  // kLanes x the program's local bytes
  InFlight in_flight;          // wgmma, tcgen05.ld
  FamilyStates states;

  template <class T>
  T& state() {
    return states.get<T>();
  }
  // The lanes of a register; T is as wide as the register's lanes (4 or 8 bytes).
  template <class T>
  T* lanes(Register r) {
    return reinterpret_cast<T*>(registers.data() + r.offset);
  }
  LaneMask& predicate(Register r) { return *lanes<LaneMask>(r); }
  Cluster& cluster();
  Launch& launch();
  Checker* checker();  // null when off
  Counters& counters();
};

struct Cta {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;  // in its cluster
  Dim3 index;         // blockIdx
  uint32_t num_threads = 0;
  std::vector<uint8_t> shared;  // the reserved kilobyte included
  std::vector<uint32_t> tmem;   // [kTmemLanes][kTmemColumns]
  std::vector<std::unique_ptr<Warp>> warps;
  FamilyStates states;

  template <class T>
  T& state() {
    return states.get<T>();
  }
};

// When asynchronous work completes.
enum class AsyncMode : uint8_t {
  kEager,   // at once
  kLazy,    // when nothing else can run
  kRandom,  // at random moments
};

// Work that completes by itself: copies in any order, each tensor-core pipe in its own order.
class AsyncWork {
 public:
  using Action = std::function<void()>;

  // A copy: no order with respect to others.
  void post_copy(Action action);
  // Work of an ordered pipe; `pipe` is any number the family owns (the block's rank for tcgen05).
  void post_in_order(int pipe, Action action);

  bool empty() const;
  void run_one(std::mt19937_64& random);  // any that may run now
  void run_all();

  AsyncMode mode = AsyncMode::kEager;
  uint64_t progress = 0;  // counts completed actions

 private:
  void run(Action action);
  std::vector<Action> copies_;
  std::map<int, std::deque<Action>> pipes_;
};

struct Cluster {
  Launch* launch = nullptr;
  std::vector<std::unique_ptr<Cta>> ctas;
  AsyncWork async;
  std::mt19937_64 random;
  uint64_t progress = 0;  // counts events that may unblock a waiting warp
  std::unique_ptr<Checker> checker;
  FamilyStates states;

  template <class T>
  T& state() {
    return states.get<T>();
  }
};

// Words of global memory that a launch wrote, by pages of 4 KiB; a bit for each word of four bytes.
struct GlobalWrites {
  std::unordered_map<uint64_t, std::array<uint64_t, 16>> pages;
};

struct Options {
  AsyncMode async = AsyncMode::kEager;
  uint64_t seed = 1;
  int budget = 64;       // instructions a warp runs before the next one
  bool check = true;     // happens-before
  bool count = false;    // shared-memory wavefronts and sectors too, which cost time
  int max_reports = 20;  // of the checker, then an error
  bool tensor_fences =
      true;  // false: tcgen05.fence is not asked for (kernels of the CuTe DSL have none)
  // What a launch wrote that this one need not wait for (programmatic dependent launch): reading it
  // before griddepcontrol.wait is reported.
  std::shared_ptr<const GlobalWrites> previous;
  uint32_t registers_per_thread = 0;   // as ptxas -v says, for the lints; 0: not known
  uint64_t max_clusters = UINT64_MAX;  // of the grid, the first ones; the others do not run
};

struct LaunchShape {
  Dim3 grid, block, cluster;
  uint32_t dynamic_shared_bytes = 0;
};

struct Launch {
  const Program* program = nullptr;
  LaunchShape shape;
  Options options;
  std::vector<uint8_t> parameters;
  const uint8_t* parameter_base = nullptr;  // aligned, inside of `parameters`
  Counters counters;
  uint64_t steps = 0;              // warp instructions so far: what the clock registers show
  std::vector<std::string> races;  // reports of the checker
  std::set<std::pair<const Instruction*, const Instruction*>>
      reported;  // pairs in `races`, of the scheduler
  std::set<std::string>
      unanchored;            // forms used that neither a public kernel nor hardware has confirmed
  std::deque<Dim3> pending;  // first block of each cluster that has not started
  FamilyStates states;

  template <class T>
  T& state() {
    return states.get<T>();
  }
};

// Runs a kernel to its end. Throws Error at the first broken rule; races are in the result unless
// there are none to tell of.
struct LaunchResult {
  Counters counters;
  std::vector<std::string> races;
  std::set<std::string> unanchored;
  std::vector<std::string> lints;
  std::shared_ptr<const GlobalWrites> writes;  // with Options::check
};
LaunchResult run(const Program& program, const LaunchShape& shape, const void* parameters,
                 const Options& options);

// Calls body(lane) for each lane of the mask.
template <class Body>
inline void for_lanes(LaneMask lanes, Body&& body) {
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) body(__builtin_ctz(lanes));
  }
}
inline int first_lane(LaneMask lanes) { return __builtin_ctz(lanes); }

}  // namespace dsv4::simulator
