// SPDX-License-Identifier: Apache-2.0
#include "runtime/gpu_models.h"

#include <cctype>

namespace dsv4::simulator::cuda {
namespace {

constexpr int kKilobyte = 1024;
constexpr uint64_t kGigabyte = 1ull << 30;

// H200: as its driver reports. The others: data sheets and the tuning guides; their clocks, memory
// and caches are nominal.
constexpr GpuModel kModels[] = {
    {"H200", "NVIDIA H200", 9, 0, 132, 227 * kKilobyte, 228 * kKilobyte, 2048, 32, 16, 8, 1980000,
     3201000, 6016, 62914560, 150109880320, false},
    {"B200", "NVIDIA B200", 10, 0, 148, 227 * kKilobyte, 228 * kKilobyte, 2048, 32, 16, 8, 1965000,
     3996000, 8192, 126 * kKilobyte * kKilobyte, 180 * kGigabyte, false},
    {"B300", "NVIDIA B300 SXM6 AC", 10, 3, 148, 227 * kKilobyte, 228 * kKilobyte, 2048, 32, 16, 8,
     2032000, 3996000, 8192, 126 * kKilobyte * kKilobyte, 270 * kGigabyte, false},
    {"RTX_PRO_6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188, 99 * kKilobyte,
     100 * kKilobyte, 1536, 24, 8, 8, 2430000, 14001000, 512, 128 * kKilobyte * kKilobyte,
     95 * kGigabyte, false},
    {"GB10", "NVIDIA GB10", 12, 1, 48, 99 * kKilobyte, 100 * kKilobyte, 1536, 24, 8, 8, 2418000,
     4266000, 256, 24 * kKilobyte * kKilobyte, 119 * kGigabyte, true},
};

}  // namespace

const GpuModel* find_gpu_model(std::string_view key) {
  for (const GpuModel& model : kModels) {
    if (key == model.key) return &model;
  }
  return nullptr;
}

const char* gpu_model_names() { return "H200, B200, B300, RTX_PRO_6000, GB10"; }

int suitability(const GpuModel& gpu, std::string_view target) {
  if (target.substr(0, 3) != "sm_") return 0;
  int number = 0;
  size_t at = 3;
  while (at < target.size() && std::isdigit(static_cast<unsigned char>(target[at]))) {
    number = number * 10 + (target[at++] - '0');
  }
  const int major = number / 10, minor = number % 10;
  const std::string_view suffix = target.substr(at);
  constexpr int kFamily = 1000, kExact = 2000;  // above any plain target
  if (suffix == "a") return major == gpu.major && minor == gpu.minor ? kExact : 0;
  if (suffix == "f") return major == gpu.major && minor <= gpu.minor ? kFamily + number : 0;
  if (!suffix.empty()) return 0;
  return number <= gpu.major * 10 + gpu.minor ? number : 0;
}

}  // namespace dsv4::simulator::cuda
