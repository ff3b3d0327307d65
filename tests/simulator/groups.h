// SPDX-License-Identifier: Apache-2.0
// Some lanes of a group may pass an instruction while others must wait at it.
#pragma once

#include "error.h"
#include "machine.h"

namespace dsv4::simulator {

// `lanes` of the group that executes now stay where they are; the rest of the group goes on. For an
// instruction that is about to return kDone.
inline void hold_back(Warp& warp, LaneMask lanes) {
  for (size_t i = 0; i < warp.groups.size(); ++i) {
    if ((warp.groups[i].lanes & lanes) != lanes) continue;
    warp.groups[i].lanes &= ~lanes;
    const uint32_t pc = warp.groups[i].pc;
    warp.groups.push_back({pc, lanes, true});
    return;
  }
  fail("lanes %08x do not stand together", lanes);
}

}  // namespace dsv4::simulator
