// SPDX-License-Identifier: Apache-2.0
// Byte layout of the KV caches. The only C++ file that knows these numbers.
//
//   packed page of P tokens = [ token 0 .. token P-1 | scales 0 .. scales P-1 ]
//     token  (576 B) = 448 x e4m3 NoPE, then 64 x bf16 RoPE
//     scales (  8 B) = 7 x UE8M0, one per 64 NoPE values (value = 2^(bits - 127)), then 1 pad byte
//
//   A cache tensor declares 584 bytes per token, but tokens and scales of a page lie apart as
//   drawn. The distance between pages is the tensor's own; it is often padded beyond P x 584.
#pragma once

#include <cstdint>

namespace dsv4 {

inline constexpr int kHeadDim = 512;  // keys and values are the same 512 numbers
inline constexpr int kNopeDim = 448;
inline constexpr int kRopeDim = kHeadDim - kNopeDim;
inline constexpr int kWindow =
    128;  // columns of the window segment in the token-sparse and HCA forms

// The packed page.
struct PackedPage {
  static constexpr int kQuantGroup = 64;
  static constexpr int kNumScales = kNopeDim / kQuantGroup;
  static constexpr int kTokenDataBytes = kNopeDim + kRopeDim * 2;
  static constexpr int kTokenScaleBytes = kNumScales + 1;
  static constexpr int kTokenBytes = kTokenDataBytes + kTokenScaleBytes;
  static constexpr int kExponentBias = 127;

  static constexpr int64_t page_bytes(int64_t page_size) { return page_size * kTokenBytes; }
  static constexpr int64_t data_offset(int64_t slot) { return slot * kTokenDataBytes; }
  static constexpr int64_t scale_offset(int64_t slot, int64_t page_size) {
    return page_size * kTokenDataBytes + slot * kTokenScaleBytes;
  }
};

static_assert(PackedPage::kTokenDataBytes == 576 && PackedPage::kTokenBytes == 584);

}  // namespace dsv4
