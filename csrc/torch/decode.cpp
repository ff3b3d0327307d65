// SPDX-License-Identifier: Apache-2.0
// sparse_mla_decode: tensors -> DecodeProblem.
#include "torch/ops.h"

namespace dsv4::torch_ops {
namespace {

// Rows of the query: [batch, q_len, heads, 512], or [rows, heads, 512] with q_len = 1.
struct QueryShape {
  int64_t batch, q_len, heads;
  bool flat;
  int64_t rows() const { return batch * q_len; }
};

QueryShape query_shape(const TensorArgument& query) {
  query.expect_dtype({ScalarType::BFloat16, ScalarType::Float8_e4m3fn});
  query.expect_dim({3, 4});
  query.expect(query.size(-1) == kHeadDim,
               [&] { return "last dimension " + std::to_string(kHeadDim); });
  query.expect_last_dim_contiguous();
  const bool flat = query.dim() == 3;
  return {query.size(0), flat ? 1 : query.size(1), query.size(-2), flat};
}

// Strides of a tensor shaped like the query, with or without its last dimension.
template <class Pointer>
RowView<Pointer> row_view(const TensorArgument& tensor, const QueryShape& shape) {
  return {static_cast<Pointer>(tensor.data()), tensor.stride(0), shape.flat ? 0 : tensor.stride(1),
          tensor.stride(shape.flat ? 1 : 2)};
}

KvFormat kv_format_of(const TensorArgument& query, const TensorArgument& cache) {
  switch (cache.dtype()) {
    case ScalarType::Byte:
    case ScalarType::Char:
      return KvFormat::kPacked;
    case ScalarType::BFloat16:
      return KvFormat::kBFloat16;
    case ScalarType::Float8_e4m3fn:
      return query.dtype() == ScalarType::BFloat16 ? KvFormat::kPacked : KvFormat::kFloat8E4M3;
    default:
      cache.expect_dtype(
          {ScalarType::BFloat16, ScalarType::Float8_e4m3fn, ScalarType::Byte, ScalarType::Char});
      return KvFormat::kBFloat16;
  }
}

// An index table [rows, W] or [batch, q_len, W].
void set_indices(const TensorArgument& indices, const TensorArgument& query,
                 const QueryShape& shape, Segment& segment) {
  indices.expect_dtype({ScalarType::Int});
  indices.expect_same_device(query);
  indices.expect_dim({2, 3});
  if (indices.dim() == 2) {
    indices.expect(indices.size(0) == shape.rows(), [&] {
      return "[" + std::to_string(shape.rows()) + ", width], a row for each query";
    });
    segment.index_batch_stride = indices.stride(0) * shape.q_len;
    segment.index_row_stride = indices.stride(0);
  } else {
    indices.expect(indices.size(0) == shape.batch && indices.size(1) == shape.q_len, [&] {
      return "[" + std::to_string(shape.batch) + ", " + std::to_string(shape.q_len) + ", width]";
    });
    segment.index_batch_stride = indices.stride(0);
    segment.index_row_stride = indices.stride(1);
  }
  indices.expect_last_dim_contiguous();
  segment.columns = indices.size(-1);
  // An absent segment is told by a null table; a table without columns has no data either.
  segment.indices = segment.columns > 0 ? indices.data_as<const int32_t>() : nullptr;
}

// Lengths: [rows] or [batch, q_len] one for each row, or [batch] one for each request.
LengthView row_lengths(const TensorArgument& lens, const TensorArgument& query,
                       const QueryShape& shape) {
  lens.expect_dtype({ScalarType::Int});
  lens.expect_same_device(query);
  lens.expect_dim({1, 2});
  LengthView view;
  view.values = lens.data_as<const int32_t>();
  view.stride = lens.stride(-1);
  if (lens.dim() == 1 && lens.size(0) == shape.batch && shape.q_len != 1) {
    view.rows_per_value = shape.q_len > 0 ? shape.q_len : 1;
    return view;
  }
  const bool fits = lens.dim() == 1 ? lens.size(0) == shape.rows()
                                    : lens.size(0) == shape.batch && lens.size(1) == shape.q_len;
  lens.expect(fits, [&] {
    return "[" + std::to_string(shape.rows()) + "], [" + std::to_string(shape.batch) + ", " +
           std::to_string(shape.q_len) + "] or [" + std::to_string(shape.batch) + "]";
  });
  if (lens.dim() == 2 && lens.size(0) > 1 && lens.size(1) > 1 &&
      lens.stride(0) != lens.size(1) * lens.stride(1)) {
    throw_value_error(std::string(lens.name()) +
                      ": expected rows that follow each other without gaps");
  }
  if (lens.dim() == 2 && lens.size(1) == 1) view.stride = lens.stride(0);
  return view;
}

// The window as far as sequence lengths let queries see it.
LengthView causal_lengths(const TensorArgument& seq_lens, const OptionalTensor& cum_seq_lens_q,
                          const TensorArgument& query, const QueryShape& shape) {
  seq_lens.expect_dtype({ScalarType::Int});
  seq_lens.expect_same_device(query);
  seq_lens.expect_dim({1});
  LengthView view;
  view.values = seq_lens.data_as<const int32_t>();
  view.stride = seq_lens.stride(0);
  view.causal = true;
  int64_t requests = shape.batch;
  if (cum_seq_lens_q) {
    const TensorArgument offsets("cum_seq_lens_q", *cum_seq_lens_q);
    offsets.expect_dtype({ScalarType::Int});
    offsets.expect_same_device(query);
    offsets.expect_dim({1});
    offsets.expect(offsets.size(0) >= 2,
                   [&] { return "[requests + 1] with at least one request"; });
    offsets.expect_contiguous();
    query.expect(shape.flat, [&] { return "[rows, heads, 512] with cum_seq_lens_q"; });
    requests = offsets.size(0) - 1;
    view.row_offsets = offsets.data_as<const int32_t>();
    view.num_requests = requests;
  } else {
    view.rows_per_value = shape.q_len > 0 ? shape.q_len : 1;
  }
  seq_lens.expect(seq_lens.size(0) == requests, [&] {
    return "[" + std::to_string(requests) + "], one length for each request";
  });
  return view;
}

PoolView pool_view(const TensorArgument& cache, KvFormat format, const std::string& kv_layout) {
  const CacheView view = view_cache(cache, format, kv_layout);
  return {cache.data(), view.num_pages, view.page_size, view.page_stride_bytes,
          view.token_stride_bytes};
}

void expect_together(const char* name, bool given, const char* other, bool other_given) {
  if (given && !other_given)
    throw_value_error(std::string(name) + ": expected together with " + other);
}

}  // namespace

Scale make_scale(const char* name, double value, const OptionalTensor& tensor,
                 const TensorArgument& query) {
  Scale scale;
  scale.value = float(value);
  if (tensor) {
    const TensorArgument argument(name, *tensor);
    if (argument.dtype() != ScalarType::Float) {
      throw_type_error(std::string(name) + ": expected float32, got " +
                       dtype_name(argument.dtype()));
    }
    argument.expect(argument.numel() == 1, [&] { return "one element"; });
    argument.expect_same_device(query);
    scale.pointer = argument.data_as<const float>();
  }
  return scale;
}

LseOptions make_lse_options(const std::string& lse_base, bool lse_sink, bool lse_empty_positive) {
  if (lse_base != "e" && lse_base != "2")
    throw_value_error("lse_base: expected 'e' or '2', got '" + lse_base + "'");
  return {lse_base == "2", lse_sink, lse_empty_positive};
}

const float* sinks_data(const OptionalTensor& sinks, int64_t heads, const TensorArgument& query) {
  if (!sinks) return nullptr;
  const TensorArgument argument("sinks", *sinks);
  argument.expect_dtype({ScalarType::Float});
  argument.expect_same_device(query);
  argument.expect(argument.dim() == 1 && argument.size(0) == heads,
                  [&] { return "[" + std::to_string(heads) + "]"; });
  argument.expect_contiguous();
  return argument.data_as<const float>();
}

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
                           bool persistent, const Tensor& out, const OptionalTensor& lse) {
  const TensorArgument q("query", query), swa_cache("swa_kv_cache", swa_kv_cache);
  const QueryShape shape = query_shape(q);

  DecodeProblem problem;
  problem.device = q.device();
  problem.batch = shape.batch;
  problem.q_len = shape.q_len;
  problem.heads = shape.heads;
  problem.query_dtype = q.dtype() == ScalarType::BFloat16 ? DType::kBFloat16 : DType::kFloat8E4M3;
  problem.query = row_view<const void*>(q, shape);

  swa_cache.expect_same_device(q);
  problem.kv_format = kv_format_of(q, swa_cache);
  problem.window.pool = pool_view(swa_cache, problem.kv_format, kv_layout);
  set_indices(TensorArgument("swa_indices", swa_indices), q, shape, problem.window);
  if (seq_lens && swa_lens)
    throw_value_error("seq_lens: expected without swa_lens, which says the same in other words");
  expect_together("cum_seq_lens_q", cum_seq_lens_q.has_value(), "seq_lens", seq_lens.has_value());
  if (swa_lens)
    problem.window.length = row_lengths(TensorArgument("swa_lens", *swa_lens), q, shape);
  if (seq_lens)
    problem.window.length =
        causal_lengths(TensorArgument("seq_lens", *seq_lens), cum_seq_lens_q, q, shape);

  expect_together("compressed_indices", compressed_indices.has_value(), "compressed_kv_cache",
                  compressed_kv_cache.has_value());
  expect_together("compressed_kv_cache", compressed_kv_cache.has_value(), "compressed_indices",
                  compressed_indices.has_value());
  expect_together("compressed_lens", compressed_lens.has_value(), "compressed_indices",
                  compressed_indices.has_value());
  if (compressed_indices) {
    const TensorArgument cache("compressed_kv_cache", *compressed_kv_cache);
    cache.expect_same_device(q);
    if (kv_format_of(q, cache) != problem.kv_format) {
      throw_value_error("compressed_kv_cache: expected the format of swa_kv_cache (" +
                        dtype_name(swa_cache.dtype()) + "), got " + dtype_name(cache.dtype()));
    }
    problem.compressed.pool = pool_view(cache, problem.kv_format, kv_layout);
    problem.compressed.index_form = page_table ? IndexForm::kPageTable : IndexForm::kTokenRows;
    set_indices(TensorArgument("compressed_indices", *compressed_indices), q, shape,
                problem.compressed);
    if (compressed_lens) {
      problem.compressed.length =
          row_lengths(TensorArgument("compressed_lens", *compressed_lens), q, shape);
      if (compressed_lens_offset < 0 || compressed_lens_offset > INT32_MAX) {
        throw_value_error("compressed_lens_offset: expected 0 to 2147483647, got " +
                          std::to_string(compressed_lens_offset));
      }
      problem.compressed.length.subtract = int32_t(compressed_lens_offset);
    }
  }

  problem.scale1 = make_scale("bmm1_scale", bmm1_scale, bmm1_scale_tensor, q);
  problem.scale2 = make_scale("bmm2_scale", bmm2_scale, bmm2_scale_tensor, q);
  problem.sinks = sinks_data(sinks, shape.heads, q);
  if (sink_mode != "apply" && sink_mode != "defer") {
    throw_value_error("sink_mode: expected 'apply' or 'defer', got '" + sink_mode + "'");
  }
  problem.defer_sinks = sink_mode == "defer";
  problem.lse_options = make_lse_options(lse_base, lse_sink, lse_empty_positive);

  const TensorArgument output("out", out);
  output.expect_dtype({ScalarType::BFloat16});
  output.expect_same_device(q);
  bool same_shape = output.dim() == q.dim();
  for (int64_t i = 0; same_shape && i < q.dim(); ++i) same_shape = output.size(i) == q.size(i);
  output.expect(same_shape, [&] { return "the shape of query, " + q.shape(); });
  output.expect_last_dim_contiguous();
  problem.out = row_view<void*>(output, shape);
  if (lse) {
    const TensorArgument sums("lse", *lse);
    sums.expect_dtype({ScalarType::Float});
    sums.expect_same_device(q);
    bool fits = sums.dim() == q.dim() - 1;
    for (int64_t i = 0; fits && i < sums.dim(); ++i) fits = sums.size(i) == q.size(i);
    sums.expect(fits,
                [&] { return "the shape of query without its last dimension, " + q.shape(); });
    problem.lse = row_view<float*>(sums, shape);
  }
  if (workspace) {
    const TensorArgument buffer("workspace", *workspace);
    buffer.expect_same_device(q);
    buffer.expect_contiguous();
    problem.workspace_bytes = size_t(buffer.numel()) * workspace->element_size();
    problem.workspace = problem.workspace_bytes > 0 ? buffer.data() : nullptr;
  }
  problem.batch_invariant = batch_invariant;
  problem.enable_pdl = enable_pdl;
  problem.persistent = persistent;
  problem.executor = torch_executor();
  throw_if_failed(dsv4::sparse_mla_decode(problem, current_stream(problem.device)));
}

std::tuple<Tensor, Tensor> sparse_mla_decode(
    const Tensor& query, const Tensor& swa_kv_cache, const Tensor& swa_indices,
    const OptionalTensor& swa_lens, const OptionalTensor& compressed_kv_cache,
    const OptionalTensor& compressed_indices, const OptionalTensor& compressed_lens,
    const OptionalTensor& seq_lens, const OptionalTensor& cum_seq_lens_q,
    const OptionalTensor& sinks, const OptionalTensor& workspace, double bmm1_scale,
    double bmm2_scale, const OptionalTensor& bmm1_scale_tensor,
    const OptionalTensor& bmm2_scale_tensor, const std::string& kv_layout, bool page_table,
    int64_t compressed_lens_offset, const std::string& lse_base, const std::string& sink_mode,
    bool lse_sink, bool lse_empty_positive, bool batch_invariant, bool enable_pdl,
    bool persistent) {
  const TensorArgument q("query", query);
  const QueryShape shape = query_shape(q);
  const Device device = q.device();
  Tensor out = shape.flat
                   ? new_tensor({shape.batch, shape.heads, kHeadDim}, ScalarType::BFloat16, device)
                   : new_tensor({shape.batch, shape.q_len, shape.heads, kHeadDim},
                                ScalarType::BFloat16, device);
  Tensor lse = shape.flat
                   ? new_tensor({shape.batch, shape.heads}, ScalarType::Float, device)
                   : new_tensor({shape.batch, shape.q_len, shape.heads}, ScalarType::Float, device);
  sparse_mla_decode_out(
      query, swa_kv_cache, swa_indices, swa_lens, compressed_kv_cache, compressed_indices,
      compressed_lens, seq_lens, cum_seq_lens_q, sinks, workspace, bmm1_scale, bmm2_scale,
      bmm1_scale_tensor, bmm2_scale_tensor, kv_layout, page_table, compressed_lens_offset, lse_base,
      sink_mode, lse_sink, lse_empty_positive, batch_invariant, enable_pdl, persistent, out, lse);
  return {out, lse};
}

}  // namespace dsv4::torch_ops
