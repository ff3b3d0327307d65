// SPDX-License-Identifier: Apache-2.0
// The functions behind the schemas of schemas.cpp, in its order and with its argument order.
#pragma once

#include <torch/csrc/stable/device.h>

#include <optional>
#include <string>
#include <tuple>

#include "torch/tensor_argument.h"

namespace dsv4::torch_ops {

using OptionalTensor = std::optional<Tensor>;

// decode.cpp
std::tuple<Tensor, Tensor> sparse_mla_decode(
    const Tensor& query, const Tensor& swa_kv_cache, const Tensor& swa_indices,
    const OptionalTensor& swa_lens, const OptionalTensor& compressed_kv_cache,
    const OptionalTensor& compressed_indices, const OptionalTensor& compressed_lens,
    const OptionalTensor& seq_lens, const OptionalTensor& cum_seq_lens_q,
    const OptionalTensor& sinks, const OptionalTensor& workspace, double bmm1_scale,
    double bmm2_scale, const OptionalTensor& bmm1_scale_tensor,
    const OptionalTensor& bmm2_scale_tensor, const std::string& kv_layout, bool page_table,
    int64_t compressed_lens_offset, const std::string& lse_base, const std::string& sink_mode,
    bool lse_sink, bool lse_empty_positive, bool batch_invariant, bool enable_pdl, bool persistent);

void sparse_mla_decode_out(const Tensor& query, const Tensor& swa_kv_cache,
                           const Tensor& swa_indices, const OptionalTensor& swa_lens,
                           const OptionalTensor& compressed_kv_cache,
                           const OptionalTensor& compressed_indices,
                           const OptionalTensor& compressed_lens, const OptionalTensor& seq_lens,
                           const OptionalTensor& cum_seq_lens_q, const OptionalTensor& sinks,
                           const OptionalTensor& workspace, double bmm1_scale, double bmm2_scale,
                           const OptionalTensor& bmm1_scale_tensor,
                           const OptionalTensor& bmm2_scale_tensor, const std::string& kv_layout,
                           bool page_table, int64_t compressed_lens_offset,
                           const std::string& lse_base, const std::string& sink_mode, bool lse_sink,
                           bool lse_empty_positive, bool batch_invariant, bool enable_pdl,
                           bool persistent, const Tensor& out, const OptionalTensor& lse);

// merge.cpp
std::tuple<Tensor, Tensor> merge_states(const Tensor& outs, const Tensor& lses,
                                        const OptionalTensor& sinks, double bmm2_scale,
                                        const OptionalTensor& bmm2_scale_tensor,
                                        const std::string& lse_base, bool lse_sink,
                                        bool lse_empty_positive);

// kv_cache.cpp
Tensor pack_kv_cache(const Tensor& kv, int64_t page_stride_bytes);
void pack_kv_cache_out(const Tensor& kv, const Tensor& out);
Tensor unpack_kv_cache(const Tensor& kv_cache, const std::string& kv_layout);
void append_kv_cache(const Tensor& kv, const Tensor& kv_cache, const Tensor& slot_mapping,
                     double scale, const OptionalTensor& scale_tensor,
                     const std::string& kv_layout);

// metadata.cpp
std::tuple<Tensor, Tensor, Tensor, Tensor> hca_metadata(const Tensor& sparse_indices,
                                                        const Tensor& seq_lens, int64_t q_len,
                                                        int64_t swa_slots, int64_t page_size,
                                                        int64_t num_pages);
int64_t workspace_size(int64_t num_rows, int64_t num_heads, int64_t swa_width,
                       int64_t compressed_width, const std::optional<torch::stable::Device>& device,
                       bool batch_invariant, int64_t table_rows);
std::string supports(int64_t num_heads, ScalarType query_dtype, const std::string& kv_format,
                     bool page_table, const std::optional<torch::stable::Device>& device);
std::string build_info();

// Shared by the files above.

// A cache tensor as pages of tokens: 4-D by kv_layout, 3-D [pages, page_size, width] or packed 2-D.
struct CacheView {
  int64_t num_pages, page_size, page_stride_bytes, token_stride_bytes;
};
CacheView view_cache(const TensorArgument& cache, KvFormat format, const std::string& kv_layout);

// One float32, or nothing; throws when the tensor is anything else.
Scale make_scale(const char* name, double value, const OptionalTensor& tensor,
                 const TensorArgument& query);

LseOptions make_lse_options(const std::string& lse_base, bool lse_sink, bool lse_empty_positive);

// The tensor's float32 [heads] data; null when absent.
const float* sinks_data(const OptionalTensor& sinks, int64_t heads, const TensorArgument& query);

}  // namespace dsv4::torch_ops
