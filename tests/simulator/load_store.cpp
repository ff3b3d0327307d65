// SPDX-License-Identifier: Apache-2.0
// ld, st and the hints about caches. Caches themselves do not exist here: their operators and
// eviction priorities are accepted by name and have no effect.
#include "addresses.h"
#include "checker.h"
#include "error.h"
#include "families.h"
#include "memory.h"
#include "opcode_parts.h"
#include "wavefronts.h"

namespace dsv4::simulator {
namespace {

// Places: r[0] the address; list the data, 16-byte values as two of 8 bytes. imm[1]: bytes of the
// access of a lane. Flags: how strong it is.
constexpr uint32_t kStrongFlag = 1;
constexpr int kOrderShift = 1;  // MemoryOrder, two bits

// Tells the checker of a warp's accesses, neighbouring lanes at once.
class Accesses {
 public:
  Accesses(Warp& warp, const Instruction& instruction, bool write)
      : warp_(warp), instruction_(instruction), write_(write), checker_(warp.checker()) {}

  void add(const Location& location, uint32_t bytes) {
    if (checker_ == nullptr) return;
    if (location.kind != Location::Kind::kShared && location.kind != Location::Kind::kGlobal)
      return;
    if (instruction_.flags & kStrongFlag) return tell_strong(location, bytes);
    if (bytes_ != 0 && kind_ == location.kind) {
      if (location.address == begin_ + bytes_) {
        bytes_ += bytes;
        return;
      }
      if (location.address >= begin_ && location.address + bytes <= begin_ + bytes_) return;
    }
    tell();
    kind_ = location.kind;
    begin_ = location.address;
    bytes_ = bytes;
  }

  void tell() {
    if (bytes_ == 0) return;
    if (kind_ == Location::Kind::kShared) {
      checker_->shared(warp_, instruction_, uint32_t(begin_), bytes_, write_);
    } else {
      checker_->global(warp_, instruction_, begin_, bytes_, write_);
    }
    bytes_ = 0;
  }

 private:
  void tell_strong(const Location& location, uint32_t bytes) {
    const auto order = MemoryOrder(instruction_.flags >> kOrderShift & 3);
    if (location.kind == Location::Kind::kShared) {
      checker_->strong_shared(warp_, instruction_, uint32_t(location.address), bytes, !write_,
                              write_, order);
    } else {
      checker_->strong_global(warp_, instruction_, location.address, bytes, !write_, write_, order);
    }
  }

  Warp& warp_;
  const Instruction& instruction_;
  bool write_;
  Checker* checker_;
  Location::Kind kind_ = Location::Kind::kGlobal;
  uint64_t begin_ = 0;
  uint32_t bytes_ = 0;
};

// Bytes by space, and passes through shared memory.
class Traffic {
 public:
  Traffic(Warp& warp, bool write) : warp_(warp), write_(write) {}

  void add(const Location& location, int lane, uint32_t bytes) {
    if (location.kind == Location::Kind::kGlobal) {
      global_bytes_ += bytes;
    } else if (location.kind == Location::Kind::kShared) {
      const uint32_t address = uint32_t(location.address);
      if (shared_rank(address) != warp_.cta->rank) distributed_bytes_ += bytes;
      shared_lanes_ |= 1u << lane;
      shared_addresses_[lane] = shared_offset(address);
    }
  }

  void count(int bytes_of_lane) {
    Counters& counters = warp_.counters();
    (write_ ? counters.global_store_bytes : counters.global_load_bytes) += global_bytes_;
    counters.distributed_shared_bytes += distributed_bytes_;
    if (shared_lanes_ == 0 || !warp_.launch().options.count) return;
    const uint32_t wavefronts =
        shared_wavefronts(shared_lanes_, shared_addresses_, bytes_of_lane, !write_);
    WarpCounters& warp = counters.warps[size_t(warp_.index)];
    ++(write_ ? warp.shared_stores : warp.shared_loads);
    (write_ ? warp.shared_store_wavefronts : warp.shared_load_wavefronts) += wavefronts;
  }

 private:
  Warp& warp_;
  bool write_;
  uint64_t global_bytes_ = 0, distributed_bytes_ = 0;
  LaneMask shared_lanes_ = 0;
  uint32_t shared_addresses_[kLanes] = {};
};

// One access of all lanes: body(lane, data) with data the lane's memory.
template <class Body>
void access(Warp& w, const Instruction& i, LaneMask lanes, bool write, const char* what,
            Body&& body) {
  const auto bytes = uint32_t(i.imm[1]);
  Accesses accesses(w, i, write);
  Traffic traffic(w, write);
  for_lanes(lanes, [&](int lane) {
    const Location location = locate(w, i, lane, bytes, what);
    accesses.add(location, bytes);
    traffic.add(location, lane, bytes);
    body(lane, location.data);
  });
  accesses.tell();
  traffic.count(int(bytes));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
// Value is a memory element, Lane the lane of a register: a wider register gets zeros or copies of
// the sign.
template <class Value, class Lane>
Outcome execute_load(Warp& w, const Instruction& i, LaneMask lanes) {
  access(w, i, lanes, false, "ld", [&](int lane, const uint8_t* data) {
    for (size_t k = 0; k < i.list.size(); ++k) {
      if (!i.list[k]) continue;
      Value value;
      std::memcpy(&value, data + k * sizeof(Value), sizeof(Value));
      w.lanes<Lane>(i.list[k])[lane] = Lane(value);
    }
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
template <class Value, class Lane>
Outcome execute_store(Warp& w, const Instruction& i, LaneMask lanes) {
  access(w, i, lanes, true, "st", [&](int lane, uint8_t* data) {
    for (size_t k = 0; k < i.list.size(); ++k) {
      const auto value = Value(w.lanes<Lane>(i.list[k])[lane]);
      std::memcpy(data + k * sizeof(Value), &value, sizeof(Value));
    }
  });
  ++w.cluster().progress;  // another warp may poll this memory
  return Outcome::kDone;
}

template <class Value>
Execute execution(bool load, bool wide) {
  if (load) return wide ? execute_load<Value, uint64_t> : execute_load<Value, uint32_t>;
  return wide ? execute_store<Value, uint64_t> : execute_store<Value, uint32_t>;
}

Execute execution_of(Decoder& d, ptx::Type type, bool load, bool wide) {
  using ptx::Type;
  switch (type) {
    case Type::kB8:
    case Type::kU8:
      return execution<uint8_t>(load, wide);
    case Type::kS8:
      return execution<int8_t>(load, wide);
    case Type::kB16:
    case Type::kU16:
      return execution<uint16_t>(load, wide);
    case Type::kS16:
      return execution<int16_t>(load, wide);
    case Type::kB32:
    case Type::kU32:
    case Type::kF32:
      return execution<uint32_t>(load, wide);
    case Type::kS32:
      return execution<int32_t>(load, wide);
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
    case Type::kB128:
      return execution<uint64_t>(load, true);
    default:
      d.unknown();
  }
}

// The data registers: of the type's width or wider.
void decode_data(Decoder& d, Instruction& i, const ptx::Operand& operand, ptx::Type type,
                 size_t count, bool load) {
  const bool is_vector = operand.kind == ptx::Operand::Kind::kVector;
  if (is_vector != (count > 1) || (is_vector && operand.elements.size() != count)) {
    d.unknown("the vector does not have as many elements as the opcode says");
  }
  const int bytes = ptx::bytes_of(type);
  if (bytes * int(count) > 32) d.unknown("more than 32 bytes");
  bool wide = false;
  if (type == ptx::Type::kB128) {
    for (Register low : d.list(operand, 16)) {
      i.list.push_back(low);
      i.list.push_back(low ? Register{low.offset + kLanes * 8} : low);
    }
  } else {
    const auto& elements = is_vector ? operand.elements : std::vector<ptx::Operand>{operand};
    for (const ptx::Operand& element : elements) {
      wide |= element.kind == ptx::Operand::Kind::kRegister && d.is_64bit(element);
    }
    i.list = d.list(operand, wide ? 8 : bytes);
  }
  for (Register r : i.list) {
    if (!load && !r) d.unknown("a store of nothing");
  }
  i.imm[1] = int64_t(bytes) * int64_t(count);
  i.type = type;
  i.execute = execution_of(d, type, load, wide);
}

// .weak, or a stronger form with its scope.
void take_strength(Decoder& d, OpcodeParts& parts, Instruction& i, bool load) {
  if (parts.take("weak")) return;
  auto order = MemoryOrder::kRelaxed;
  bool scoped = true;
  if (parts.take("volatile")) {
    scoped = false;
  } else if (parts.take("mmio")) {
    if (!parts.take("relaxed") || !parts.take("sys")) d.unknown();
    scoped = false;
  } else if (parts.take(load ? "acquire" : "release")) {
    order = load ? MemoryOrder::kAcquire : MemoryOrder::kRelease;
  } else if (!parts.take("relaxed")) {
    return;
  }
  if (scoped && parts.take_one_of({"cta", "cluster", "gpu", "sys"}) < 0)
    d.unknown("a scope is missing");
  i.flags |= kStrongFlag | uint32_t(order) << kOrderShift;
}

// Names of cache operators, eviction priorities and prefetch sizes; true if a cache policy operand
// follows. https://docs.nvidia.com/cuda/parallel-thread-execution/#cache-operators
bool take_cache_hints(OpcodeParts& parts, bool load) {
  if (load) {
    parts.take_one_of({"ca", "cg", "cs", "lu", "cv"});
    parts.take_one_of({"L2::64B", "L2::128B", "L2::256B"});
  } else {
    parts.take_one_of({"wb", "cg", "cs", "wt"});
  }
  parts.take_one_of({"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
                     "L1::no_allocate"});
  parts.take_one_of({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
  return parts.take("L2::cache_hint");
}

InstructionClass class_of(Space space) {
  switch (space) {
    case Space::kShared:
      return InstructionClass::kSharedMemory;
    case Space::kLocal:
      return InstructionClass::kLocalMemory;
    case Space::kParameter:
    case Space::kConstant:
      return InstructionClass::kMove;
    default:
      return InstructionClass::kGlobalMemory;
  }
}

size_t take_vector(OpcodeParts& parts) {
  static constexpr size_t kCounts[] = {2, 4, 8};
  const int found = parts.take_one_of({"v2", "v4", "v8"});
  return found < 0 ? 1 : kCounts[found];
}

void decode_access(Decoder& d, OpcodeParts& parts, Instruction& i, bool load) {
  take_strength(d, parts, i, load);
  const Space space = take_space(parts, i);
  const bool read_only = space == Space::kParameter || space == Space::kConstant;
  if (!load && read_only) d.unknown("a store to memory that is only read");
  i.counted = class_of(space);
  if (load && space == Space::kGlobal) parts.take("nc");
  const bool has_policy = take_cache_hints(parts, load);
  const size_t count = take_vector(parts);
  const ptx::Type type = parts.take_type();
  parts.expect_none_left();
  d.expect_operands(has_policy ? 3 : 2, has_policy ? 3 : 2);
  if (has_policy) d.r64(2);
  decode_address(d, i, d.operand(load ? 1 : 0), 0);
  decode_data(d, i, d.operand(load ? 0 : 1), type, count, load);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ldu
void decode_ldu(Decoder& d, OpcodeParts& parts, Instruction& i) {
  const Space space = take_space(parts, i);
  if (space != Space::kGlobal && space != Space::kGeneric) d.unknown();
  i.counted = InstructionClass::kGlobalMemory;
  const size_t count = take_vector(parts);
  const ptx::Type type = parts.take_type();
  parts.expect_none_left();
  d.expect_operands(2, 2);
  decode_address(d, i, d.operand(1), 0);
  decode_data(d, i, d.operand(0), type, count, true);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-bulk
Outcome execute_st_bulk(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint64_t bytes = w.lanes<uint64_t>(i.r[1])[lane];
    if (bytes % 8 != 0) fail("st.bulk: %llu bytes", static_cast<unsigned long long>(bytes));
    const uint32_t address = shared_address_of(w, i, 0, lane, "st.bulk");
    expect_aligned(address, 8, "st.bulk");
    expect_reachable(w, address, true, "st.bulk");
    std::memset(shared_pointer(w.cluster(), address, bytes, "st.bulk"), 0, bytes);
    if (Checker* c = w.checker()) c->shared(w, i, address, uint32_t(bytes), true);
  });
  ++w.cluster().progress;
  return Outcome::kDone;
}

void decode_st_bulk(Decoder& d, OpcodeParts& parts, Instruction& i) {
  parts.take("weak");
  parts.take("shared::cta");
  parts.expect_none_left();
  d.expect_operands(3, 3);
  if (d.immediate(2) != 0) d.unknown("st.bulk stores zeros");
  i.counted = InstructionClass::kSharedMemory;
  i.execute = execute_st_bulk;
  decode_address(d, i, d.operand(0), 0);
  i.r[1] = d.r64(1);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prefetch-prefetchu
// A prefetch of an address that does not exist does nothing.
Outcome execute_prefetch(Warp&, const Instruction&, LaneMask) { return Outcome::kDone; }

void decode_prefetch(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.counted = InstructionClass::kHint;
  i.execute = execute_prefetch;
  if (d.statement().parts[0] == "prefetchu") {
    if (!parts.take("L1")) d.unknown();
  } else {
    take_space(parts, i);
    if (parts.take_one_of({"L1", "L2", "L2::evict_last", "L2::evict_normal", "tensormap"}) < 0) {
      d.unknown();
    }
  }
  parts.expect_none_left();
  d.expect_operands(1, 1);
  decode_address(d, i, d.operand(0), 0);
}

constexpr size_t kCacheLine = 128;

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-discard
// What was there is lost: any value may be read until it is written again.
Outcome execute_discard(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const Location line = locate(w, i, lane, kCacheLine, "discard");
    if (line.kind != Location::Kind::kGlobal) fail("discard: the address is not in global memory");
    std::memset(line.data, 0xFF, kCacheLine);
    if (Checker* c = w.checker()) c->global(w, i, line.address, kCacheLine, true);
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-applypriority
Outcome execute_applypriority(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) { locate(w, i, lane, kCacheLine, "applypriority"); });
  return Outcome::kDone;
}

void decode_cache_line(Decoder& d, OpcodeParts& parts, Instruction& i) {
  const bool discard = d.statement().parts[0] == "discard";
  i.counted = InstructionClass::kHint;
  i.execute = discard ? execute_discard : execute_applypriority;
  const Space space = take_space(parts, i);
  if (space != Space::kGlobal && space != Space::kGeneric) d.unknown();
  if (!parts.take(discard ? "L2" : "L2::evict_normal")) d.unknown();
  parts.expect_none_left();
  d.expect_operands(2, 2);
  decode_address(d, i, d.operand(0), 0);
  if (d.immediate(1) != int64_t(kCacheLine)) d.unknown("expected 128 bytes");
}

}  // namespace

void decode_load_store(Decoder& d, Instruction& i) {
  OpcodeParts parts(d);
  const std::string& name = d.statement().parts[0];
  if (name == "ld") return decode_access(d, parts, i, true);
  if (name == "st" && parts.take("bulk")) return decode_st_bulk(d, parts, i);
  if (name == "st") return decode_access(d, parts, i, false);
  if (name == "ldu") return decode_ldu(d, parts, i);
  if (name == "prefetch" || name == "prefetchu") return decode_prefetch(d, parts, i);
  decode_cache_line(d, parts, i);
}

}  // namespace dsv4::simulator
