// SPDX-License-Identifier: Apache-2.0
// Nanoseconds of one dsv4::sparse_mla_decode on a nearly empty problem, from C++: what an operator
// call costs without torch. Prints the median for 0 rows and for 1 row, one a line.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "dsv4/dsv4.h"

namespace {

constexpr int kCallsPerSample = 1000, kSamples = 101;

double nanoseconds_per_call(const dsv4::DecodeProblem& problem) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    const Clock::time_point start = Clock::now();
    for (int call = 0; call < kCallsPerSample; ++call) {
      if (const dsv4::Status status = dsv4::sparse_mla_decode(problem); !status.ok()) {
        std::fprintf(stderr, "%s\n", status.message);
        return -1.0;
      }
    }
    const std::chrono::duration<double, std::nano> time = Clock::now() - start;
    samples.push_back(time.count() / kCallsPerSample);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

}  // namespace

int main() {
  const std::vector<uint16_t> query(dsv4::kHeadDim);
  std::vector<uint16_t> out(dsv4::kHeadDim);
  const std::vector<uint8_t> page(dsv4::PackedPage::page_bytes(1));
  const int32_t index = 0, length = 1;

  dsv4::DecodeProblem problem;
  problem.heads = 1;
  problem.kv_format = dsv4::KvFormat::kPacked;
  problem.query = {query.data(), dsv4::kHeadDim, dsv4::kHeadDim, dsv4::kHeadDim};
  problem.out = {out.data(), dsv4::kHeadDim, dsv4::kHeadDim, dsv4::kHeadDim};
  dsv4::Segment segment;
  segment.pool = {page.data(), 1, 1, int64_t(page.size()), 0};
  segment.indices = &index;
  segment.index_batch_stride = segment.index_row_stride = segment.columns = 1;
  segment.length.values = &length;
  problem.window = problem.compressed = segment;

  for (const int rows : {0, 1}) {
    problem.batch = rows;
    const double time = nanoseconds_per_call(problem);
    if (time < 0) return 1;
    std::printf("%.1f\n", time);
  }
  return 0;
}
