// SPDX-License-Identifier: Apache-2.0
#include "sm100/pair_decode.cuh"

namespace dsv4::sm100 {

Status launch_decode_packed_pairs(const DecodeParams& params, Stream stream) {
  return launch_decode_of_pairs<PackedFormat>(params, stream);
}

}  // namespace dsv4::sm100
