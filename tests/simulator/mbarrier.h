// SPDX-License-Identifier: Apache-2.0
// What asynchronous operations do to mbarriers: for the families that complete on one.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
#pragma once

#include <cstdint>
#include <string>

#include "machine.h"

namespace dsv4::simulator {

// Shared addresses carry the rank of their block. Each of these errors if no mbarrier lives there.

// `bytes` of the current phase have arrived (the tx-count goes down).
void mbarrier_complete_tx(Cluster& cluster, uint32_t address, uint32_t bytes);

// An asynchronous operation arrives `count` times, as tcgen05.commit does.
void mbarrier_arrive(Cluster& cluster, uint32_t address, uint32_t count);

// One more arrival is pending in the current phase (cp.async.mbarrier.arrive without .noinc).
void mbarrier_expect_arrival(Cluster& cluster, uint32_t address);

// For the instruction that issues an asynchronous operation: errors, at its place, if no mbarrier
// lives at the address.
void mbarrier_expect_valid(Cluster& cluster, uint32_t address, const char* what);

// A number for the current phase of the mbarrier, as it is now initialised. What an operation has
// started in one phase must complete in the same.
uint64_t mbarrier_phase(Cluster& cluster, uint32_t address, const char* what);

// "mbarrier 0x10400: 1 of 4 arrivals pending, tx-count 512, phase 3 (parity 1)"
std::string describe_mbarrier(Cluster& cluster, uint32_t address);

}  // namespace dsv4::simulator
