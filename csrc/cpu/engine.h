// SPDX-License-Identifier: Apache-2.0
// The CPU engine. See README.md in this folder for how it works, measured.md for how fast.
#pragma once

#include "engines.h"

namespace dsv4::cpu {

extern const Engine kEngine;

// The functions of the table, by file.
Status sparse_mla_decode(const DecodeProblem& problem, Stream);  // engine.cpp
Status workspace_size(const DecodeShape& shape, size_t* bytes);  // engine.cpp
Status merge_states(const MergeProblem& problem, Stream);        // combine.cpp
Status append_kv_cache(const AppendProblem& problem, Stream);    // cache_ops.cpp
Status pack_kv_cache(const PackProblem& problem, Stream);        // cache_ops.cpp
Status unpack_kv_cache(const PackProblem& problem, Stream);      // cache_ops.cpp
Status hca_metadata(const HcaMetadataProblem& problem, Stream);  // hca_metadata.cpp

// Name of the instruction set that decode tasks use on this machine: "avx512", "avx2" or "generic".
const char* simd_name();

}  // namespace dsv4::cpu
