// SPDX-License-Identifier: Apache-2.0
// The engine for SM100 and SM103: tcgen05, tensor memory, TMA gathers. See README.md in this
// folder.
#pragma once

#include "engines.h"

namespace dsv4::sm100 {

extern const Engine kEngine;

}  // namespace dsv4::sm100
