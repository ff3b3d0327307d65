// SPDX-License-Identifier: Apache-2.0
// Facts about a launch that simulation does not stumble over and hardware would: sizes and sums
// against the limits of the GPU model that the program was compiled for.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "machine.h"

namespace dsv4::simulator {

// What families note while a launch runs: launch.state<LaunchFacts>().
struct LaunchFacts : FamilyState {
  std::set<std::string> notes;
  int tensor_columns = 0;        // the most that a block held at once
  std::map<int, int> registers;  // by index of the warp in its block: its last setmaxnreg
};

// Complaints, none if all is well. To be called when the launch has ended.
std::vector<std::string> lint(Launch& launch);

}  // namespace dsv4::simulator
