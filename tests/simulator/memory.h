// SPDX-License-Identifier: Apache-2.0
// Memory spaces with bounds. Global memory is the host's own, but only inside registered
// allocations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine.h"

namespace dsv4::simulator {

// Memory that kernels may touch. Ranges may not overlap.
void register_memory(const void* data, size_t bytes);
void unregister_memory(const void* data);
bool is_registered(uint64_t address, size_t bytes);

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParameter, kConstant };

// Host pointers for accesses of a lane; errors name the address, the space and `what`.
uint8_t* global_pointer(uint64_t address, size_t bytes, const char* what);
uint8_t* shared_pointer(Cluster& cluster, uint32_t address, size_t bytes, const char* what);
// Any space. `shared_address` receives the 32-bit shared address, or 0 if the access is to another
// space.
uint8_t* pointer(Warp& warp, int lane, Space space, uint64_t address, size_t bytes,
                 const char* what, uint32_t* shared_address = nullptr);

// Errors unless address is a multiple of `alignment`.
void expect_aligned(uint64_t address, size_t alignment, const char* what);

}  // namespace dsv4::simulator
