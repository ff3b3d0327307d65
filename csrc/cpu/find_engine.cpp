// SPDX-License-Identifier: Apache-2.0
// Which engine serves the CPU: this one. See engines.h for why it is asked.
#include "cpu/engine.h"

namespace dsv4 {

Status find_cpu_engine(const Engine** engine) {
  *engine = &cpu::kEngine;
  return {};
}

}  // namespace dsv4
