// SPDX-License-Identifier: Apache-2.0
// The PTX texts in a fat binary, as nvcc embeds it in host objects.
#pragma once

#include <string>
#include <vector>

namespace dsv4::simulator::cuda {

struct FatBinary {
  struct Ptx {
    std::string target;  // "sm_100a"
    std::string text;
  };
  std::vector<Ptx> ptx;
  std::string problem;  // why there may be less PTX than there should be
};

// What __cudaRegisterFatBinary is given.
FatBinary read_fat_binary(const void* wrapper);

}  // namespace dsv4::simulator::cuda
