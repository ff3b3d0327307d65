// SPDX-License-Identifier: Apache-2.0
// A launch as JSON, for report.py and those who read it.
#pragma once

#include <string>

#include "counters.h"
#include "machine.h"

namespace dsv4::simulator::cuda {

// {"kernel": ..., "grid": [x, y, z], "block": ..., "cluster": ..., "counters": {...}}
std::string launch_record(const std::string& kernel, const LaunchShape& shape,
                          const Counters& counters);

}  // namespace dsv4::simulator::cuda
