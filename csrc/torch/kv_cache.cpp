// SPDX-License-Identifier: Apache-2.0
// Cache tensors: how they are laid out, and the ops that write and read them.
#include "torch/ops.h"

namespace dsv4::torch_ops {
namespace {

int64_t element_bytes(ScalarType dtype) { return dtype == ScalarType::BFloat16 ? 2 : 1; }

// Pages of a packed 2-D cache have no token dimension: as many tokens as the bytes hold.
CacheView view_packed_pages(const TensorArgument& cache) {
  cache.expect(cache.size(1) >= PackedPage::kTokenBytes, [&] {
    return "at least " + std::to_string(PackedPage::kTokenBytes) + " bytes a page";
  });
  return {cache.size(0), cache.size(1) / PackedPage::kTokenBytes, cache.stride(0), 0};
}

void expect_layout(const std::string& kv_layout) {
  if (kv_layout != "HND" && kv_layout != "NHD") {
    throw_value_error("kv_layout: expected 'HND' or 'NHD', got '" + kv_layout + "'");
  }
}

PackProblem make_pack_problem(const TensorArgument& values, const TensorArgument& packed,
                              const CacheView& pages) {
  PackProblem problem;
  problem.device = values.device();
  problem.num_pages = pages.num_pages;
  problem.page_size = pages.page_size;
  problem.values = values.data();
  problem.value_page_stride = values.stride(0);
  problem.value_token_stride = values.stride(1);
  problem.packed = packed.data();
  problem.page_stride_bytes = pages.page_stride_bytes;
  problem.executor = torch_executor();
  return problem;
}

TensorArgument bf16_pages(const Tensor& kv) {
  TensorArgument values("kv", kv);
  values.expect_dtype({ScalarType::BFloat16});
  values.expect_dim({3});
  values.expect(values.size(2) == kHeadDim && values.size(1) > 0,
                [&] { return "[num_pages, page_size, " + std::to_string(kHeadDim) + "]"; });
  values.expect_last_dim_contiguous();
  return values;
}

}  // namespace

CacheView view_cache(const TensorArgument& cache, KvFormat format, const std::string& kv_layout) {
  expect_layout(kv_layout);
  const bool packed = format == KvFormat::kPacked;
  if (packed) {
    cache.expect_dim({2, 3, 4});
    cache.expect_last_dim_contiguous();
    if (cache.dim() == 2) return view_packed_pages(cache);
  } else {
    cache.expect_dim({3, 4});
    cache.expect_last_dim_contiguous();
  }
  const int64_t width = packed ? PackedPage::kTokenBytes : kHeadDim;
  cache.expect(cache.size(-1) == width, [&] { return "last dimension " + std::to_string(width); });
  int64_t token_dim = 1;
  if (cache.dim() == 4) {
    const bool heads_first = kv_layout == "HND";
    cache.expect(cache.size(heads_first ? 1 : 2) == 1, [&] {
      return std::string(heads_first ? "one KV head: HND [num_pages, 1, page_size, width]"
                                     : "one KV head: NHD [num_pages, page_size, 1, width]");
    });
    token_dim = heads_first ? 2 : 1;
  }
  cache.expect(cache.size(token_dim) > 0, [&] { return "at least one token a page"; });
  const int64_t bytes = element_bytes(cache.dtype());
  const CacheView view{cache.size(0), cache.size(token_dim), cache.stride(0) * bytes,
                       cache.stride(token_dim) * bytes};
  if (packed && view.page_size > 1 && view.token_stride_bytes != width) {
    throw_value_error(
        std::string(cache.name()) + ": expected packed pages without gaps (token stride " +
        std::to_string(width) + " bytes), got token stride " +
        std::to_string(view.token_stride_bytes) + ". Hint: only the page stride may be padded");
  }
  return view;
}

Tensor pack_kv_cache(const Tensor& kv, int64_t page_stride_bytes) {
  const TensorArgument values = bf16_pages(kv);
  const int64_t page_bytes = PackedPage::page_bytes(values.size(1));
  if (page_stride_bytes == 0) page_stride_bytes = page_bytes;
  if (page_stride_bytes < page_bytes) {
    throw_value_error("page_stride_bytes: expected at least " + std::to_string(page_bytes) +
                      " for pages of " + std::to_string(values.size(1)) + " tokens, got " +
                      std::to_string(page_stride_bytes));
  }
  const int64_t sizes[] = {values.size(0), values.size(1), PackedPage::kTokenBytes};
  const int64_t strides[] = {page_stride_bytes, PackedPage::kTokenBytes, 1};
  Tensor out = new_tensor(sizes, strides, 3, ScalarType::Byte, values.device());
  pack_kv_cache_out(kv, out);
  return out;
}

void pack_kv_cache_out(const Tensor& kv, const Tensor& out) {
  const TensorArgument values = bf16_pages(kv);
  const TensorArgument packed("out", out);
  packed.expect_dtype({ScalarType::Byte, ScalarType::Char, ScalarType::Float8_e4m3fn});
  packed.expect_same_device(values);
  const CacheView pages = view_cache(packed, KvFormat::kPacked, "HND");
  packed.expect(pages.num_pages == values.size(0) && pages.page_size == values.size(1), [&] {
    return std::to_string(values.size(0)) + " packed pages of " + std::to_string(values.size(1)) +
           " tokens";
  });
  throw_if_failed(dsv4::pack_kv_cache(make_pack_problem(values, packed, pages),
                                      current_stream(values.device())));
}

Tensor unpack_kv_cache(const Tensor& kv_cache, const std::string& kv_layout) {
  const TensorArgument packed("kv_cache", kv_cache);
  packed.expect_dtype({ScalarType::Byte, ScalarType::Char, ScalarType::Float8_e4m3fn});
  const CacheView pages = view_cache(packed, KvFormat::kPacked, kv_layout);
  Tensor out = new_tensor({pages.num_pages, pages.page_size, kHeadDim}, ScalarType::BFloat16,
                          packed.device());
  throw_if_failed(
      dsv4::unpack_kv_cache(make_pack_problem(TensorArgument("out", out), packed, pages),
                            current_stream(packed.device())));
  return out;
}

void append_kv_cache(const Tensor& kv, const Tensor& kv_cache, const Tensor& slot_mapping,
                     double scale, const OptionalTensor& scale_tensor,
                     const std::string& kv_layout) {
  const TensorArgument values("kv", kv), cache("kv_cache", kv_cache),
      slots("slot_mapping", slot_mapping);
  values.expect_dtype({ScalarType::BFloat16});
  values.expect_dim({2});
  values.expect(values.size(1) == kHeadDim,
                [&] { return "[num_tokens, " + std::to_string(kHeadDim) + "]"; });
  values.expect_last_dim_contiguous();
  cache.expect_dtype(
      {ScalarType::Byte, ScalarType::Char, ScalarType::BFloat16, ScalarType::Float8_e4m3fn});
  cache.expect_same_device(values);
  slots.expect_dtype({ScalarType::Int, ScalarType::Long});
  slots.expect_same_device(values);
  slots.expect_dim({1});
  slots.expect(slots.size(0) == values.size(0), [&] {
    return "[" + std::to_string(values.size(0)) + "], one slot for each row of kv";
  });
  slots.expect_contiguous();

  AppendProblem problem;
  problem.device = values.device();
  problem.kv_format = cache.dtype() == ScalarType::BFloat16        ? KvFormat::kBFloat16
                      : cache.dtype() == ScalarType::Float8_e4m3fn ? KvFormat::kFloat8E4M3
                                                                   : KvFormat::kPacked;
  const CacheView pages = view_cache(cache, problem.kv_format, kv_layout);
  problem.rows = values.size(0);
  problem.values = values.data();
  problem.value_row_stride = values.stride(0);
  problem.slots = slots.data();
  problem.slots_are_64bit = slots.dtype() == ScalarType::Long;
  problem.pool = {cache.data(), pages.num_pages, pages.page_size, pages.page_stride_bytes,
                  pages.token_stride_bytes};
  problem.scale = make_scale("scale_tensor", scale, scale_tensor, values);
  problem.executor = torch_executor();
  throw_if_failed(dsv4::append_kv_cache(problem, current_stream(values.device())));
}

}  // namespace dsv4::torch_ops
