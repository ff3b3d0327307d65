// SPDX-License-Identifier: Apache-2.0
// The version of the project; CMake, setup.py and build_info() read it here.
#pragma once

#define DSV4_VERSION "0.1.0"
