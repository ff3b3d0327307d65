// SPDX-License-Identifier: Apache-2.0
#include "sm100/decode.cuh"

namespace dsv4::sm100 {

Status launch_decode_e4m3(const DecodeParams& params, Stream stream) {
  return launch_decode<Float8Format, false, false>(params, stream);
}

}  // namespace dsv4::sm100
