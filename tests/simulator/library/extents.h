// SPDX-License-Identifier: Apache-2.0
// The bytes that the contract (dsv4.h) lets an engine touch for a problem, no more: a slot that no
// valid index names is none of them, nor is the padding between rows, tokens and pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsv4/dsv4.h"

namespace dsv4::simulated {

struct Extent {
  uint64_t begin, end;  // addresses
};

// In ascending order; they neither overlap nor touch.
std::vector<Extent> extents_of(const DecodeProblem& problem);
std::vector<Extent> extents_of(const MergeProblem& problem);
std::vector<Extent> extents_of(const AppendProblem& problem);
std::vector<Extent> extents_of(const PackProblem& problem);
std::vector<Extent> extents_of(const HcaMetadataProblem& problem);

}  // namespace dsv4::simulated
