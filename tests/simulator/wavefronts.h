// SPDX-License-Identifier: Apache-2.0
// How often an access of a warp goes through shared memory: 32 banks of 4 bytes, one word of each a
// pass. The rules below give the times measured on an H200 for 49 patterns of ld and st.
#pragma once

#include <algorithm>
#include <cstdint>

#include "machine.h"

namespace dsv4::simulator {

// True if each lane reads the same as its neighbour in bit `bit` of the lane number. Lanes that do
// not take part are no obstacle (not measured).
inline bool lanes_share(LaneMask lanes, const uint32_t (&addresses)[kLanes], int bit) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int other = lane ^ bit;
    if ((lanes >> lane & 1) != 0 && (lanes >> other & 1) != 0 &&
        addresses[lane] != addresses[other]) {
      return false;
    }
  }
  return true;
}

// Lanes go in groups of 128 bytes: 32 lanes of up to 4 bytes, 16 of 8, 8 of 16. A group costs as
// many passes as different words fall into its busiest bank. Loads of 8 and 16 bytes go in groups
// of twice as many lanes if all lanes read in pairs, either 0 with 1, 2 with 3, .. or 0 with 2, 1
// with 3, ..
inline uint32_t shared_wavefronts(LaneMask lanes, const uint32_t (&addresses)[kLanes], int bytes,
                                  bool may_pair = false) {
  const int words_per_lane = std::max(1, bytes / 4);
  int group_lanes = std::max(1, kLanes / words_per_lane);
  if (may_pair && words_per_lane > 1 &&
      (lanes_share(lanes, addresses, 1) || lanes_share(lanes, addresses, 2))) {
    group_lanes *= 2;
  }
  uint32_t passes = 0;
  for (int first = 0; first < kLanes; first += group_lanes) {
    uint32_t words[2 * kLanes];
    int num_words = 0;
    for (int lane = first; lane < first + group_lanes; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      for (int k = 0; k < words_per_lane; ++k) {
        words[num_words++] = addresses[lane] / 4 + uint32_t(k);
      }
    }
    std::sort(words, words + num_words);
    num_words = int(std::unique(words, words + num_words) - words);
    uint32_t of_bank[32] = {};
    for (int k = 0; k < num_words; ++k) ++of_bank[words[k] % 32];
    passes += *std::max_element(of_bank, of_bank + 32);
  }
  return passes;
}

}  // namespace dsv4::simulator
