// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <map>
#include <mutex>
#include <shared_mutex>

#include "error.h"
#include "program.h"

namespace dsv4::simulator {
namespace {

struct Registry {
  std::map<uint64_t, size_t> ranges;  // start -> bytes
  uint64_t version = 1;
  std::shared_mutex mutex;
};

Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

// The range that the last access fell into; most accesses stay in one allocation.
struct LastRange {
  uint64_t begin = 1, end = 0, version = 0;
};
thread_local LastRange last_range;

}  // namespace

void register_memory(const void* data, size_t bytes) {
  if (bytes == 0) return;
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  r.ranges[reinterpret_cast<uint64_t>(data)] = bytes;
  ++r.version;
}

void unregister_memory(const void* data) {
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  r.ranges.erase(reinterpret_cast<uint64_t>(data));
  ++r.version;
}

bool is_registered(uint64_t address, size_t bytes) {
  Registry& r = registry();
  if (last_range.version == r.version && address >= last_range.begin &&
      address + bytes <= last_range.end)
    return true;
  std::shared_lock lock(r.mutex);
  auto range = r.ranges.upper_bound(address);
  if (range == r.ranges.begin()) return false;
  --range;
  if (address + bytes > range->first + range->second) return false;
  last_range = {range->first, range->first + range->second, r.version};
  return true;
}

uint8_t* global_pointer(uint64_t address, size_t bytes, const char* what) {
  if (!is_registered(address, bytes)) {
    fail("%s: global address %#llx (+%zu bytes) lies in no allocation", what,
         static_cast<unsigned long long>(address), bytes);
  }
  return reinterpret_cast<uint8_t*>(address);
}

uint8_t* shared_pointer(Cluster& cluster, uint32_t address, size_t bytes, const char* what) {
  const uint32_t rank = shared_rank(address), offset = shared_offset(address);
  if (rank >= cluster.ctas.size()) {
    fail("%s: shared address %#x names block %u of a cluster of %zu", what, address, rank,
         cluster.ctas.size());
  }
  Cta& cta = *cluster.ctas[rank];
  if (offset < kSharedReserved || offset + bytes > cta.shared.size()) {
    fail("%s: shared address %#x (+%zu bytes) is outside of the block's memory [%#x, %#zx)", what,
         address, bytes, kSharedReserved, cta.shared.size());
  }
  return cta.shared.data() + offset;
}

uint8_t* pointer(Warp& warp, int lane, Space space, uint64_t address, size_t bytes,
                 const char* what, uint32_t* shared_address) {
  if (shared_address != nullptr) *shared_address = 0;
  const uint64_t window = address & 0xFF00000000000000ull;
  if (space == Space::kShared || (space == Space::kGeneric && window == kSharedWindow)) {
    if (shared_address != nullptr) *shared_address = uint32_t(address);
    return shared_pointer(warp.cluster(), uint32_t(address), bytes, what);
  }
  if (space == Space::kLocal || (space == Space::kGeneric && window == kLocalWindow)) {
    const size_t of_thread = warp.program->function->local_bytes, offset = uint32_t(address);
    if (offset + bytes > of_thread)
      fail("%s: local address %#zx is outside of %zu bytes", what, offset, of_thread);
    return warp.local.data() + size_t(lane) * of_thread + offset;
  }
  return global_pointer(address, bytes, what);
}

void expect_aligned(uint64_t address, size_t alignment, const char* what) {
  if (address % alignment != 0) {
    fail("%s: address %#llx is not a multiple of %zu", what,
         static_cast<unsigned long long>(address), alignment);
  }
}

}  // namespace dsv4::simulator
