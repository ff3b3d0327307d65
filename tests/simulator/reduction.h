// SPDX-License-Identifier: Apache-2.0
// What cp.reduce.async.bulk and red.async do to the elements of an array.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-reduce-async-bulk
#pragma once

#include <cstddef>
#include <cstdint>

#include "opcode_parts.h"
#include "ptx.h"

namespace dsv4::simulator {

enum class Reduction : uint8_t { kNone, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

// kNone if the opcode names none.
Reduction take_reduction(OpcodeParts& parts);

// Whether the ISA defines it for elements in global memory, or in shared memory of a cluster.
bool is_defined(Reduction reduction, ptx::Type type, bool global);

// destination[i] = destination[i] op source[i]; kNone copies.
void reduce(Reduction reduction, ptx::Type type, uint8_t* destination, const uint8_t* source,
            size_t bytes);

}  // namespace dsv4::simulator
