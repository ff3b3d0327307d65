// SPDX-License-Identifier: Apache-2.0
// An engine that does in each of its functions something that engines must not do, for the tests
// that a simulated build tells.
#pragma once

#include "engines.h"

namespace dsv4::simulated::broken {

extern const Engine kEngine;

}  // namespace dsv4::simulated::broken
