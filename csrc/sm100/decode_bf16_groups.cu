// SPDX-License-Identifier: Apache-2.0
#include "sm100/decode.cuh"

namespace dsv4::sm100 {

Status launch_decode_bf16_groups(const DecodeParams& params, Stream stream) {
  return launch_decode_of_groups<BFloat16Format>(params, stream);
}

}  // namespace dsv4::sm100
