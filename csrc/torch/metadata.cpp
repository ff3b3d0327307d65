// SPDX-License-Identifier: Apache-2.0
// Tables of the HCA form, and the ops that answer questions.
#include <algorithm>

#include "torch/ops.h"

namespace dsv4::torch_ops {
namespace {

Device to_device(const std::optional<torch::stable::Device>& device) {
  if (!device || device->is_cpu()) return {};
  return {DeviceType::kCuda, device->has_index() ? device->index() : 0};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> hca_metadata(const Tensor& sparse_indices,
                                                        const Tensor& seq_lens, int64_t q_len,
                                                        int64_t swa_slots, int64_t page_size,
                                                        int64_t num_pages) {
  const TensorArgument indices("sparse_indices", sparse_indices), lens("seq_lens", seq_lens);
  indices.expect_dtype({ScalarType::Int});
  indices.expect_dim({2});
  indices.expect_last_dim_contiguous();
  indices.expect(indices.size(1) >= kWindow,
                 [&] { return "at least the " + std::to_string(kWindow) + " window columns"; });
  lens.expect_dtype({ScalarType::Int});
  lens.expect_same_device(indices);
  lens.expect_dim({1});
  lens.expect_contiguous();
  if (q_len < 1) throw_value_error("q_len: expected 1 or more, got " + std::to_string(q_len));
  if (page_size < 1)
    throw_value_error("page_size: expected 1 or more, got " + std::to_string(page_size));
  const int64_t rows = lens.size(0) * q_len, columns = indices.size(1) - kWindow;
  indices.expect(indices.size(0) == rows,
                 [&] { return std::to_string(rows) + " rows (requests x q_len)"; });
  const int64_t pages = std::max<int64_t>((columns + page_size - 1) / page_size, 1);

  const Device device = indices.device();
  Tensor window_indices = new_tensor({rows, kWindow}, ScalarType::Int, device);
  Tensor page_table = new_tensor({rows, pages}, ScalarType::Int, device);
  Tensor hca_seq_lens = new_tensor({lens.size(0)}, ScalarType::Int, device);
  Tensor window_lens = new_tensor({rows}, ScalarType::Int, device);

  HcaMetadataProblem problem;
  problem.device = device;
  problem.batch = lens.size(0);
  problem.q_len = q_len;
  problem.indices = indices.data_as<const int32_t>();
  problem.index_row_stride = indices.stride(0);
  problem.columns = indices.size(1);
  problem.seq_lens = lens.data_as<const int32_t>();
  problem.window_slots = swa_slots;
  problem.page_size = page_size;
  problem.num_pages = num_pages;
  problem.window_indices = static_cast<int32_t*>(window_indices.data_ptr());
  problem.page_table = static_cast<int32_t*>(page_table.data_ptr());
  problem.table_columns = pages;
  problem.hca_seq_lens = static_cast<int32_t*>(hca_seq_lens.data_ptr());
  problem.window_lens = static_cast<int32_t*>(window_lens.data_ptr());
  throw_if_failed(dsv4::hca_metadata(problem, current_stream(device)));
  return {window_indices, page_table, hca_seq_lens, window_lens};
}

int64_t workspace_size(int64_t num_rows, int64_t num_heads, int64_t swa_width,
                       int64_t compressed_width, const std::optional<torch::stable::Device>& device,
                       bool batch_invariant, int64_t table_rows) {
  DecodeShape shape;
  shape.device = to_device(device);
  shape.rows = num_rows;
  shape.table_rows = table_rows;
  shape.heads = num_heads;
  shape.window_slots = swa_width;
  shape.compressed_slots = compressed_width;
  shape.batch_invariant = batch_invariant;
  shape.num_threads = torch_executor().num_threads;
  size_t bytes = 0;
  throw_if_failed(dsv4::workspace_size(shape, &bytes));
  return int64_t(bytes);
}

std::string supports(int64_t num_heads, ScalarType query_dtype, const std::string& kv_format,
                     bool page_table, const std::optional<torch::stable::Device>& device) {
  DecodeProblem problem;
  problem.device = to_device(device);
  problem.heads = num_heads;
  if (query_dtype != ScalarType::BFloat16 && query_dtype != ScalarType::Float8_e4m3fn) {
    return "query: expected bfloat16 or float8_e4m3fn, got " + dtype_name(query_dtype);
  }
  problem.query_dtype = query_dtype == ScalarType::BFloat16 ? DType::kBFloat16 : DType::kFloat8E4M3;
  if (kv_format == "bf16") {
    problem.kv_format = KvFormat::kBFloat16;
  } else if (kv_format == "e4m3") {
    problem.kv_format = KvFormat::kFloat8E4M3;
  } else if (kv_format == "packed") {
    problem.kv_format = KvFormat::kPacked;
  } else {
    throw_value_error("kv_format: expected 'bf16', 'e4m3' or 'packed', got '" + kv_format + "'");
  }
  problem.compressed.index_form = page_table ? IndexForm::kPageTable : IndexForm::kTokenRows;
  const Status status = dsv4::supports(problem);
  return status.ok() ? "" : status.message;
}

std::string build_info() { return dsv4::build_info(); }

}  // namespace dsv4::torch_ops
