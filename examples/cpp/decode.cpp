// SPDX-License-Identifier: Apache-2.0
// Decodes one query of one head on the CPU through the C++ API and checks it against plain loops.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "dsv4/dsv4.h"

// bfloat16 is the upper half of a float; the inputs below have so few bits that they are exact.
static uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

static double to_double(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

int main() {
  constexpr int kDim = dsv4::kHeadDim, kPages = 3, kPageSize = 4;
  std::vector<uint16_t> query(kDim), cache(kPages * kPageSize * kDim), out(kDim);
  for (int i = 0; i < kDim; ++i) query[i] = to_bf16((i * 7 % 33 - 16) / 16.0f);
  for (size_t i = 0; i < cache.size(); ++i) cache[i] = to_bf16((int(i * 11 % 61) - 30) / 32.0f);
  const std::vector<int32_t> slots = {9, 2, -1, 4, 7};  // page * kPageSize + offset; -1 is a hole
  float lse = 0;

  dsv4::DecodeProblem problem;  // strides count elements
  problem.batch = 1;
  problem.heads = 1;
  problem.query = {query.data(), kDim, kDim, kDim};
  problem.window.pool = {cache.data(), kPages, kPageSize, kPageSize * kDim * 2, kDim * 2};
  problem.window.indices = slots.data();
  problem.window.columns = static_cast<int64_t>(slots.size());
  problem.scale1.value = 1 / std::sqrt(512.0f);
  problem.out = {out.data(), kDim, kDim, kDim};
  problem.lse = {&lse, 1, 1, 1};
  const dsv4::Status status = dsv4::sparse_mla_decode(problem);
  if (!status.ok()) return std::printf("%s\n", status.message), 1;

  std::vector<double> sum(kDim);
  double total = 0;
  for (const int32_t slot : slots) {
    if (slot < 0) continue;
    const uint16_t* key = &cache[slot * kDim];
    double score = 0;
    for (int d = 0; d < kDim; ++d) score += to_double(query[d]) * to_double(key[d]);
    const double weight = std::exp(score * problem.scale1.value);
    total += weight;
    for (int d = 0; d < kDim; ++d) sum[d] += weight * to_double(key[d]);
  }
  double error = std::fabs(std::log(total) - lse);
  for (int d = 0; d < kDim; ++d)
    error = std::fmax(error, std::fabs(sum[d] / total - to_double(out[d])));
  std::printf("largest error %.1e\n", error);
  return error <= 4e-3 ? 0 : 1;  // bf16 rounds results below 1 by at most 2^-9 = 2e-3
}
