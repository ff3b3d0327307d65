// SPDX-License-Identifier: Apache-2.0
// The end of a softmax row, used by the decode tasks and by the combine: sinks and the ways to
// report lse. Functions are static: this header is compiled for several instruction sets.
#pragma once

#include "dsv4/dsv4.h"

namespace dsv4::cpu {

static constexpr float kLn2 = 0.693147180559945309f;
static constexpr float kLog2e = 1.44269504088896341f;
static constexpr float kInfinity = __builtin_inff();

// Share of the softmax that the sink leaves to the slots: 1 / (1 + exp(sink - lse)).
static inline float sink_factor(float lse, float sink) {
  return 1.0f / (1.0f + __builtin_expf(sink - lse));
}

// lse (natural, finite or NaN, without sink) as the caller wants it.
static inline float reported_lse(float lse, const float* sink, const LseOptions& options) {
  if (options.include_sink && sink != nullptr) {
    const float high = lse > *sink ? lse : *sink, low = lse > *sink ? *sink : lse;
    // An infinite sink leaves nothing to add: +inf is the sum, -inf does not count.
    lse = high == kInfinity ? high : high + __builtin_log1pf(__builtin_expf(low - high));
  }
  return options.base2 ? lse * kLog2e : lse;
}

static inline float empty_lse(const LseOptions& options) {
  return options.empty_is_positive ? kInfinity : -kInfinity;
}

static inline float scale_value(const Scale& scale) {
  return scale.pointer != nullptr ? *scale.pointer : scale.value;
}

}  // namespace dsv4::cpu
