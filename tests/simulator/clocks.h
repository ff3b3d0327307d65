// SPDX-License-Identifier: Apache-2.0
// Vector clocks: for each agent, the last tick up to which its accesses are known to be over.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsv4::simulator {

// Agents are added while a cluster runs, so a clock may be shorter than their number: the rest is
// 0.
class Clock {
 public:
  uint32_t at(size_t agent) const { return agent < ticks_.size() ? ticks_[agent] : 0; }
  void raise(size_t agent, uint32_t tick) {
    if (agent >= ticks_.size()) ticks_.resize(agent + 1);
    ticks_[agent] = std::max(ticks_[agent], tick);
  }
  void join(const Clock& other) {
    if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
    uint32_t* mine = ticks_.data();
    const uint32_t* theirs = other.ticks_.data();
    for (size_t i = 0; i < other.ticks_.size(); ++i) mine[i] = std::max(mine[i], theirs[i]);
  }
  void clear() { ticks_.clear(); }
  size_t size() const { return ticks_.size(); }

 private:
  std::vector<uint32_t> ticks_;
};

// What synchronisation hands from one agent to the next; see checker.h.
struct Knowledge {
  Clock generic;
  Clock async;         // in shared memory
  Clock async_global;  // in global memory
  // Generic accesses with a fence.sc behind them: known to whoever executes a fence.sc later.
  // Unlike the others, this is handed on by relaxed operations, too.
  Clock sequential;

  void join(const Knowledge& other) {
    generic.join(other.generic);
    async.join(other.async);
    async_global.join(other.async_global);
    sequential.join(other.sequential);
  }
  void clear() {
    generic.clear();
    async.clear();
    async_global.clear();
    sequential.clear();
  }
};

}  // namespace dsv4::simulator
