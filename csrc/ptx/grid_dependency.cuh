// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch: a grid may start before the one ahead of it in the stream is over.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
#pragma once

#include <nv/target>

namespace dsv4::ptx {

// Waits until the grids ahead are over and their writes are visible. GPUs before sm_90 never start
// a grid early, and have no such instruction.
__device__ __forceinline__ void wait_for_grids_ahead() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.wait;" :: : "memory");))
}

// Lets the next grid start, once each block of this one has said so or is over. Promises nothing
// about writes: the next grid waits for them.
__device__ __forceinline__ void let_next_grid_start() {
  NV_IF_TARGET(NV_PROVIDES_SM_90,
               (asm volatile("griddepcontrol.launch_dependents;" :: : "memory");))
}

}  // namespace dsv4::ptx
