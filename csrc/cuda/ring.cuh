// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dsv4 {

// Where a ring of buffers stands, and which phase of their barriers comes next.
template <int kStages>
struct Ring {
  int index = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t full_parity() const { return phase; }
  __device__ __forceinline__ uint32_t empty_parity() const { return phase ^ 1; }
};

}  // namespace dsv4
