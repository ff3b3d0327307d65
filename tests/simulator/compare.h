// SPDX-License-Identifier: Apache-2.0
// Comparison and selection, of integers and of floats: set, setp, selp, slct.
#pragma once

#include <string_view>

#include "program.h"

namespace dsv4::simulator {

// Whether decode_comparison decodes instructions of this name.
bool is_comparison(std::string_view name);
void decode_comparison(Decoder& decoder, Instruction& instruction);

}  // namespace dsv4::simulator
