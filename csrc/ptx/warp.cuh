// SPDX-License-Identifier: Apache-2.0
// Warps: meeting, reducing, dividing the registers of a block.
#pragma once

#include <cstdint>

namespace dsv4::ptx {

// Meeting of `kThreads` threads of a block at barrier `kBarrier`, 1 to 15; 0 is __syncthreads().
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
template <int kBarrier, int kThreads>
__device__ __forceinline__ void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// The same at a barrier that is known at run time.
template <int kThreads>
__device__ __forceinline__ void sync_threads(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// They meet, and learn whether it is true for one of them.
template <int kThreads>
__device__ __forceinline__ bool sync_threads_or(int barrier, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any)
      : "r"(barrier), "n"(kThreads), "r"(uint32_t(mine))
      : "memory");
  return any != 0;
}

// True for one lane of a converged warp. Behind it the compiler knows that one thread is active, as
// behind a comparison of lanes it does not.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-elect-sync
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred is_elected;\n"
      "elect.sync _|is_elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, is_elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// A value of which the compiler knows nothing: what follows from it is computed where it is needed,
// and not kept in registers across a loop.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace dsv4::ptx
