// SPDX-License-Identifier: Apache-2.0
// Checks of what callers hand in: once, before any engine sees it. Nothing is written.
#pragma once

#include "dsv4/dsv4.h"

namespace dsv4 {

// Shapes, strides, formats and pointers. No memory is read.
Status validate(const DecodeProblem& problem);
Status validate(const DecodeShape& shape);
Status validate(const MergeProblem& problem);
Status validate(const AppendProblem& problem);
Status validate(const PackProblem& problem);
Status validate(const HcaMetadataProblem& problem);

// What `supports` asks: formats, forms and sizes, without pointers.
Status validate_kind(const DecodeProblem& problem);

// DSV4_VALIDATE_INPUTS is set to something other than 0.
bool value_checks_wanted();

// Values of lengths and indices in host memory: the first one that is neither -1 nor inside its
// range.
Status validate_values(const DecodeProblem& problem);

}  // namespace dsv4
