// SPDX-License-Identifier: Apache-2.0
#include "sm120/decode.cuh"

namespace dsv4::sm120 {

Status launch_decode_bf16(const DecodeParams& params, Stream stream) {
  return launch_decode<BFloat16Format, false, false>(params, stream);
}

}  // namespace dsv4::sm120
