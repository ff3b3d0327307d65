// SPDX-License-Identifier: Apache-2.0
// Loads and stores of some consecutive bytes of any alignment, as wide as the address allows. The
// checks cost a few instructions, and lanes of a warp that are a multiple of 16 bytes apart agree.
#pragma once

#include <cstdint>
#include <cstring>

namespace dsv4::cuda {

namespace detail {

// The first of these units that is not larger than the data and suits the address.
template <class Unit, class... NarrowerUnits, int kWords>
__device__ __forceinline__ void load_units(const void* from, uint32_t (&words)[kWords]) {
  constexpr int kUnits = sizeof(words) / sizeof(Unit);
  if constexpr (kUnits == 0) {
    load_units<NarrowerUnits...>(from, words);
  } else if (reinterpret_cast<uintptr_t>(from) % sizeof(Unit) == 0) {
    Unit units[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) units[i] = static_cast<const Unit*>(from)[i];
    std::memcpy(words, units, sizeof(words));
  } else if constexpr (sizeof...(NarrowerUnits) > 0) {
    load_units<NarrowerUnits...>(from, words);
  }
}

template <class Unit, class... NarrowerUnits, int kWords>
__device__ __forceinline__ void store_units(const uint32_t (&words)[kWords], void* to) {
  constexpr int kUnits = sizeof(words) / sizeof(Unit);
  if constexpr (kUnits == 0) {
    store_units<NarrowerUnits...>(words, to);
  } else if (reinterpret_cast<uintptr_t>(to) % sizeof(Unit) == 0) {
    Unit units[kUnits];
    std::memcpy(units, words, sizeof(words));
#pragma unroll
    for (int i = 0; i < kUnits; ++i) static_cast<Unit*>(to)[i] = units[i];
  } else if constexpr (sizeof...(NarrowerUnits) > 0) {
    store_units<NarrowerUnits...>(words, to);
  }
}

}  // namespace detail

template <int kWords>
__device__ __forceinline__ void load_words(const void* from, uint32_t (&words)[kWords]) {
  detail::load_units<uint4, uint2, uint32_t, uint16_t, uint8_t>(from, words);
}

template <int kWords>
__device__ __forceinline__ void store_words(const uint32_t (&words)[kWords], void* to) {
  detail::store_units<uint4, uint2, uint32_t, uint16_t, uint8_t>(words, to);
}

}  // namespace dsv4::cuda
