// SPDX-License-Identifier: Apache-2.0
// Tensor maps of a decode's query and pools: what TMA needs to know of them.
#pragma once

#include "sm100/params.h"

namespace dsv4::sm100 {

// Whether the engine's copies can address this problem's tensors: they, and all their strides, must
// be multiples of 16 bytes, and pages of 512-wide caches whole numbers of tokens apart. Caches and
// queries as engines allocate them are.
bool can_be_mapped(const DecodeProblem& problem);

// Fills the maps of a problem for which that is so.
Status make_tensor_maps(const DecodeProblem& problem, DecodeParams* params);

}  // namespace dsv4::sm100
