// SPDX-License-Identifier: Apache-2.0
// Writing and reading the caches on the GPU. Every byte is the one that the CPU engine writes.
#pragma once

#include "dsv4/dsv4.h"

namespace dsv4::cuda {

Status append_kv_cache(const AppendProblem& problem, Stream stream);
Status pack_kv_cache(const PackProblem& problem, Stream stream);
Status unpack_kv_cache(const PackProblem& problem, Stream stream);

}  // namespace dsv4::cuda
