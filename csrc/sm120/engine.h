// SPDX-License-Identifier: Apache-2.0
// The portable GPU engine, made for SM120. See README.md in this folder for how it works,
// measured.md for how fast.
#pragma once

#include "engines.h"

namespace dsv4::sm120 {

extern const Engine kEngine;

}  // namespace dsv4::sm120
