// SPDX-License-Identifier: Apache-2.0
// Copies of boxes of a tensor between global and shared memory, by the bulk engine ("TMA").
//
// In shared memory a box is a list of rows, dimension 1 fastest. The swizzle permutes the 16-byte
// granules of a row by the absolute address. What the ISA leaves open was seen on an H200: see
// TensorMap::row_pitch and check_coordinates.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "addresses.h"
#include "bulk_copy.h"
#include "error.h"
#include "families.h"
#include "memory.h"
#include "tensor_map.h"

namespace dsv4::simulator {
namespace {

constexpr uint32_t kSharedAlignment = 128;
constexpr uint32_t kMaxRowBytes = 256 * 8;
constexpr uint16_t kOutOfBoundsNan = 0x7FF7;  // in every 16 bits, whatever the type

// --- boxes ---------------------------------------------------------------------------------------

// One row of a box. Its bytes [begin, end) lie inside of the tensor, from `global` on.
struct Row {
  uint64_t global = 0;
  uint32_t begin = 0, end = 0;
  uint32_t inside() const { return end - begin; }
};

struct Box {
  TensorMap map;
  std::vector<Row> rows;
  uint32_t shared = 0;  // address of the first row

  uint32_t bytes() const { return uint32_t(rows.size()) * map.row_bytes(); }
  uint32_t footprint() const { return uint32_t(rows.size()) * map.row_pitch(); }
  uint64_t inside() const {
    uint64_t sum = 0;
    for (const Row& row : rows) sum += row.inside();
    return sum;
  }
  // Calls body(byte of the row, shared address) for each granule of a row.
  template <class Body>
  void for_granules(size_t row, uint32_t base, Body&& body) const {
    for (uint32_t at = 0; at < map.row_bytes(); at += kGranuleBytes) {
      body(at, swizzled(base + uint32_t(row) * map.row_pitch() + at, map.swizzle));
    }
  }
};

using Coordinates = std::array<int32_t, kMaxTensorRank>;

Coordinates coordinates_of(Warp& w, const Instruction& i, int lane) {
  Coordinates c{};
  for (size_t k = 0; k < i.list.size(); ++k) c[k] = int32_t(w.lanes<uint32_t>(i.list[k])[lane]);
  return c;
}

TensorMap map_of(Warp& w, const Instruction& i, int lane) {
  const TensorMap map = load_tensor_map(address_of(w, i, kOtherPlace, lane), name_of(i));
  const bool four_rows = i.flags & kFourRowsFlag;
  const size_t wanted = four_rows ? 2 : i.list.size();
  if (map.rank != wanted) {
    fail("%s: a copy of %zu dimensions through a tensor map of %d", name_of(i), wanted, map.rank);
  }
  if (four_rows && map.box[1] != 1) {
    fail("%s: gather4 and scatter4 need a box of one row, this one has %d", name_of(i), map.box[1]);
  }
  if (map.swizzle == Swizzle::k128In32ByteAtoms) {
    w.launch().unanchored.insert("tensor copy, swizzle of 32-byte atoms");
  }
  return map;
}

// The bounding box starts at a multiple of 16 bytes; stores may not start outside of the tensor's
// lower edge. The hardware faults otherwise.
void check_coordinates(const Instruction& i, const TensorMap& map, const Coordinates& c,
                       bool store) {
  if (int64_t(c[0]) * map.element_bytes() % 16 != 0) {
    fail("%s: coordinate 0 = %d is not a multiple of 16 bytes", name_of(i), c[0]);
  }
  if (!store) return;
  for (size_t d = 0; d < i.list.size(); ++d) {
    if (c[d] < 0) fail("%s: coordinate %zu = %d of a store is negative", name_of(i), d, c[d]);
  }
}

// The part of a row that starts at the coordinates `at`.
Row row_at(const Instruction& i, const TensorMap& map,
           const std::array<int64_t, kMaxTensorRank>& at) {
  uint64_t address = map.base;
  for (uint32_t d = 1; d < map.rank; ++d) {
    if (at[d] < 0 || at[d] > int64_t(map.last[d])) return {};
    address += uint64_t(at[d]) * map.stride[d - 1];
  }
  const int64_t first = std::max<int64_t>(at[0], 0);
  const int64_t last = std::min(at[0] + map.box[0] - 1, int64_t(map.last[0]));
  if (first > last) return {};
  const int64_t bytes = map.element_bytes();
  Row row{address + uint64_t(first * bytes), uint32_t((first - at[0]) * bytes),
          uint32_t((last - at[0] + 1) * bytes)};
  global_pointer(row.global, row.inside(), name_of(i));
  return row;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-tiled-mode
void add_tile_rows(const Instruction& i, const Coordinates& c, Box& box) {
  const TensorMap& map = box.map;
  std::array<uint32_t, kMaxTensorRank> index{};
  while (true) {
    std::array<int64_t, kMaxTensorRank> at{c[0]};
    for (uint32_t d = 1; d < map.rank; ++d) at[d] = int64_t(c[d]) + int64_t(index[d]) * map.step[d];
    box.rows.push_back(row_at(i, map, at));
    uint32_t d = 1;
    while (d < map.rank && ++index[d] == map.box_count(d)) index[d++] = 0;
    if (d >= map.rank) return;
  }
}

// Coordinates: column, then four rows.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-tiled-scatter4-gather4-modes
void add_four_rows(const Instruction& i, const Coordinates& c, Box& box) {
  for (size_t k = 1; k <= 4; ++k) box.rows.push_back(row_at(i, box.map, {c[0], c[k]}));
}

Box box_of(Warp& w, const Instruction& i, int lane, uint32_t shared, bool store) {
  Box box;
  box.map = map_of(w, i, lane);
  box.shared = shared;
  expect_aligned(shared, kSharedAlignment, name_of(i));
  const Coordinates c = coordinates_of(w, i, lane);
  check_coordinates(i, box.map, c, store);
  i.flags& kFourRowsFlag ? add_four_rows(i, c, box) : add_tile_rows(i, c, box);
  shared_pointer(w.cluster(), shared, box.footprint(), name_of(i));
  return box;
}

void watch_shared(const WatchedOperation& watched, const Box& box, uint32_t base, Use use) {
  if (box.map.row_bytes() == box.map.row_pitch()) return watched.shared(base, box.bytes(), use);
  for (size_t r = 0; r < box.rows.size(); ++r) {
    box.for_granules(
        r, base, [&](uint32_t, uint32_t address) { watched.shared(address, kGranuleBytes, use); });
  }
}

void watch_global(const WatchedOperation& watched, const Box& box, Use use) {
  for (const Row& row : box.rows) watched.global(row.global, row.inside(), use);
}

// The block's shared memory, such that adding the offset of an address gives its byte.
uint8_t* memory_of(Warp& w, uint32_t shared) {
  return w.cluster().ctas[shared_rank(shared)]->shared.data();
}

void load(const Box& box, uint32_t base, uint8_t* memory) {
  std::array<uint8_t, kMaxRowBytes> bytes;
  for (size_t r = 0; r < box.rows.size(); ++r) {
    const Row& row = box.rows[r];
    for (uint32_t at = 0; at < box.map.row_bytes(); at += 2) {
      const uint16_t fill = box.map.fill_with_nan ? kOutOfBoundsNan : 0;
      std::memcpy(bytes.data() + at, &fill, 2);
    }
    if (row.inside() > 0) {
      std::memcpy(bytes.data() + row.begin, reinterpret_cast<const void*>(row.global),
                  row.inside());
    }
    box.for_granules(r, base, [&](uint32_t at, uint32_t address) {
      std::memcpy(memory + shared_offset(address), bytes.data() + at, kGranuleBytes);
    });
  }
}

Bytes read_box(const Box& box, const uint8_t* memory) {
  Bytes bytes(box.bytes());
  for (size_t r = 0; r < box.rows.size(); ++r) {
    uint8_t* row = bytes.data() + r * box.map.row_bytes();
    box.for_granules(r, box.shared, [&](uint32_t at, uint32_t address) {
      std::memcpy(row + at, memory + shared_offset(address), kGranuleBytes);
    });
  }
  return bytes;
}

void store(const Box& box, Reduction reduction, const Bytes& bytes) {
  for (size_t r = 0; r < box.rows.size(); ++r) {
    const Row& row = box.rows[r];
    if (row.inside() == 0) continue;
    reduce(reduction, type_of(box.map.element), reinterpret_cast<uint8_t*>(row.global),
           bytes.data() + r * box.map.row_bytes() + row.begin, row.inside());
  }
}

// The ISA's table for tensors: that for arrays without f64, and bits are those of any integer.
void expect_reducible(const Instruction& i, TensorElement element) {
  const Reduction reduction = reduction_of(i);
  if (reduction == Reduction::kNone) return;
  ptx::Type type = type_of(element);
  if (reduction >= Reduction::kAnd) {
    if (type == ptx::Type::kU32 || type == ptx::Type::kS32) type = ptx::Type::kB32;
    if (type == ptx::Type::kU64 || type == ptx::Type::kS64) type = ptx::Type::kB64;
  }
  if (is_defined(reduction, type, true) && type != ptx::Type::kF64) return;
  fail("%s: the ISA defines no such reduction of the tensor's type", name_of(i));
}

// --- instructions --------------------------------------------------------------------------------

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
Outcome execute_load(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::vector<CopyTarget> targets = copy_targets(w, i, lane);
    const Box box = box_of(w, i, lane, targets[0].destination, false);
    w.counters().bulk_load_bytes += box.inside();
    for (const Row& row : box.rows) count_sectors(w, row.global, row.inside());
    if (i.flags & kFourRowsFlag && targets.size() > 1) {
      w.launch().unanchored.insert("gather4 to more than one block");
    }
    for (const CopyTarget& target : targets) {
      const uint32_t base = target.destination;
      shared_pointer(w.cluster(), base, box.footprint(), name_of(i));
      const auto watched = WatchedOperation::on_mbarrier(w, i, target.mbarrier);
      watch_global(watched, box, Use::kRead);
      watch_shared(watched, box, base, Use::kWrite);
      post_to_shared(w, i, target, box.bytes(),
                     [=, memory = memory_of(w, base)] { load(box, base, memory); });
    }
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-reduce-async-bulk-tensor
Outcome execute_store(Warp& w, const Instruction& i, LaneMask lanes) {
  const Reduction reduction = reduction_of(i);
  if (i.flags & kFourRowsFlag) w.launch().unanchored.insert("scatter4");
  for_lanes(lanes, [&](int lane) {
    const uint32_t source = shared_address_of(w, i, kSharedPlace, lane, name_of(i));
    expect_reachable(w, source, true, name_of(i));
    const Box box = box_of(w, i, lane, source, true);
    expect_reducible(i, box.map.element);
    w.counters().bulk_store_bytes += box.inside();
    const auto watched = WatchedOperation::in_bulk_group(w, i);
    watch_shared(watched, box, source, Use::kRead);
    watch_global(watched, box, write_by(reduction));
    post_from_shared(
        w, i, lane, [=, memory = memory_of(w, source)] { return read_box(box, memory); },
        [=](const Bytes& bytes) { store(box, reduction, bytes); });
  });
  return Outcome::kDone;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor
Outcome execute_prefetch(Warp& w, const Instruction& i, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) { map_of(w, i, lane); });
  return Outcome::kDone;
}

// --- decoding ------------------------------------------------------------------------------------

// [map, {coordinates}]
void decode_map(Decoder& d, OpcodeParts& parts, Instruction& i, const ptx::Operand& operand,
                const char* four_rows) {
  const int dimensions = 1 + parts.take_one_of({"1d", "2d", "3d", "4d", "5d"});
  if (dimensions == 0) d.unknown("expected .1d to .5d");
  if (four_rows != nullptr && parts.take(four_rows)) {
    i.flags |= kFourRowsFlag;
    if (dimensions != 2) d.unknown("only tensors of two dimensions have four rows to name");
  } else {
    parts.take("tile");  // the default
  }
  decode_address(d, i, operand, kOtherPlace);
  if (!d.is_64bit(operand.elements[0])) d.unknown("a tensor map has a generic address");
  for (size_t k = 1; k < operand.elements.size(); ++k) i.list.push_back(d.r32(operand.elements[k]));
  const size_t wanted = i.flags & kFourRowsFlag ? 5 : size_t(dimensions);
  if (i.list.size() != wanted) d.unknown(text("expected %zu coordinates", wanted).c_str());
}

void decode_load(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_load;
  if (!parts.take("mbarrier::complete_tx::bytes"))
    d.unknown("expected .mbarrier::complete_tx::bytes");
  size_t next = 0;
  decode_plain_address(d, i, d.operand(next++), kSharedPlace);
  decode_map(d, parts, i, d.operand(next++), "tile::gather4");
  decode_plain_address(d, i, d.operand(next++), kMbarrierPlace);
  decode_multicast(d, parts, i, next);
  if (parts.take("cta_group::2")) {
    i.flags |= kPairFlag;
  } else {
    parts.take("cta_group::1");  // the default
  }
  decode_cache_hint(d, parts, i, next);
  d.expect_operands(next, next);
}

void decode_store(Decoder& d, OpcodeParts& parts, Instruction& i, bool reduces) {
  i.execute = execute_store;
  if (!parts.take("bulk_group")) d.unknown("expected .bulk_group");
  if (reduces) {
    const Reduction reduction = take_reduction(parts);
    if (reduction == Reduction::kNone) d.unknown("the opcode names no reduction");
    keep_reduction(i, reduction);
  }
  size_t next = 0;
  decode_map(d, parts, i, d.operand(next++), reduces ? nullptr : "tile::scatter4");
  decode_plain_address(d, i, d.operand(next++), kSharedPlace);
  decode_cache_hint(d, parts, i, next);
  d.expect_operands(next, next);
}

void decode_prefetch(Decoder& d, OpcodeParts& parts, Instruction& i) {
  i.execute = execute_prefetch;
  if (!parts.take("L2") || !parts.take("global")) d.unknown();
  size_t next = 0;
  decode_map(d, parts, i, d.operand(next++), "tile::gather4");
  decode_cache_hint(d, parts, i, next);
  d.expect_operands(next, next);
}

// "destination <- source". They follow each other, in front of the load mode or behind it.
std::string take_direction(OpcodeParts& parts, const std::vector<std::string>& opcode) {
  std::string direction;
  for (const std::string& part : opcode) {
    if (part != "global" && part != "shared::cta" && part != "shared::cluster") continue;
    parts.take(part);
    direction += direction.empty() ? part : " <- " + part;
  }
  return direction;
}

}  // namespace

void decode_tensor_copy(Decoder& d, Instruction& i) {
  i.counted = InstructionClass::kAsyncCopy;
  OpcodeParts parts(d);
  if (d.statement().parts[0] == "tensormap")
    d.unknown("tensor maps cannot be edited on the device here");
  const bool reduces = parts.take("reduce");
  parts.take("async");
  parts.take("bulk");
  const bool prefetches = parts.take("prefetch");
  parts.take("tensor");
  if (prefetches) {
    decode_prefetch(d, parts, i);
  } else {
    const std::string direction = take_direction(parts, d.statement().parts);
    if (direction == "global <- shared::cta") {
      decode_store(d, parts, i, reduces);
    } else if (direction == "shared::cluster <- global" && !reduces) {
      decode_load(d, parts, i);
    } else if (direction == "shared::cta <- global" && !reduces) {
      i.flags |= kOwnBlockOnlyFlag;
      decode_load(d, parts, i);
    } else {
      d.unknown("no such direction of a tensor copy");
    }
  }
  parts.expect_none_left();
}

}  // namespace dsv4::simulator
