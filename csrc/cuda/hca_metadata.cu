// SPDX-License-Identifier: Apache-2.0
// Combined token rows -> tables of the HCA form. A thread makes one entry: of a row's 128 window
// columns or, behind them, of its page table.
#include "cuda/hca_metadata.h"
#include "cuda/launch.h"
#include "dsv4/kv_format.h"
#include "status.h"

namespace dsv4::cuda {
namespace {

constexpr int kThreads = 128;
static_assert(kThreads == kWindow, "a block makes window columns or pages, not both");

// Tokens of its sequence that query `row` sees.
__device__ int64_t visible_tokens(const HcaMetadataProblem& problem, int64_t row) {
  const int64_t seq_len = problem.seq_lens[row / problem.q_len];
  return max(seq_len - problem.q_len + row % problem.q_len + 1, int64_t(0));
}

__device__ void make_window(const HcaMetadataProblem& problem, int64_t row, int column) {
  const int32_t window_len = int32_t(min(visible_tokens(problem, row), int64_t(kWindow)));
  const int32_t index = problem.indices[row * problem.index_row_stride + column];
  const bool inside = index >= 0 && index < problem.window_slots;
  problem.window_indices[row * kWindow + column] = column >= window_len ? 0 : inside ? index : -1;
  if (column != 0) return;
  problem.window_lens[row] = window_len;
  if (row % problem.q_len == 0) {
    const int64_t request = row / problem.q_len;
    problem.hca_seq_lens[request] = kWindow + max(problem.seq_lens[request], 0) / kWindow;
  }
}

// The page whose first slot is `start`; -1, a hole, if no page of the pool begins there.
__device__ int32_t page_of_slot(const HcaMetadataProblem& problem, int64_t start) {
  const int64_t page = start / problem.page_size;
  const bool begins_page =
      start >= 0 && page * problem.page_size == start && page < problem.num_pages;
  return begins_page ? int32_t(page) : -1;
}

__device__ void make_page(const HcaMetadataProblem& problem, int64_t row, int64_t page) {
  if (page >= problem.table_columns) return;
  const int32_t* compressed = problem.indices + row * problem.index_row_stride + kWindow;
  const int64_t active =
      min(visible_tokens(problem, row) / kWindow, problem.columns - int64_t(kWindow));
  const int64_t first = page * problem.page_size;
  problem.page_table[row * problem.table_columns + page] =
      first < active ? page_of_slot(problem, compressed[first]) : 0;
}

__global__ void __launch_bounds__(kThreads)
    make_tables(const HcaMetadataProblem problem, uint32_t blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const uint32_t block = blockIdx.x % blocks_per_row;
  if (block == 0) {
    make_window(problem, row, int(threadIdx.x));
  } else {
    make_page(problem, row, int64_t(block - 1) * kThreads + threadIdx.x);
  }
}

}  // namespace

Status hca_metadata(const HcaMetadataProblem& problem, Stream stream) {
  const int64_t rows = problem.batch * problem.q_len;
  if (rows == 0) return {};
  const DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  const int64_t blocks_per_row = 1 + (problem.table_columns + kThreads - 1) / kThreads;
  LaunchConfig config;
  DSV4_RETURN_IF_FAILED(
      along_x("hca_metadata", problem.device, stream, rows * blocks_per_row, kThreads, &config));
  return launch<make_tables>(config, problem, blocks_per_row);
}

}  // namespace dsv4::cuda
