// SPDX-License-Identifier: Apache-2.0
#include "validate.h"

#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "row_length.h"
#include "status.h"

namespace dsv4 {
namespace {

Status check_positive(const char* name, int64_t value) {
  if (value < 1) DSV4_FAIL(kInvalidValue, "%s: expected 1 or more, got %" PRId64, name, value);
  return {};
}

Status check_not_negative(const char* name, int64_t value) {
  if (value < 0) DSV4_FAIL(kInvalidValue, "%s: expected 0 or more, got %" PRId64, name, value);
  return {};
}

Status check_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr)
    DSV4_FAIL(kInvalidValue, "%s: expected a pointer to data, got null", name);
  return {};
}

// Fields of one segment of a decode, named for the caller.
Status validate_segment(const char* name, const Segment& segment, KvFormat format) {
  char field[64];
  const auto named = [&](const char* suffix) {
    std::snprintf(field, sizeof(field), "%s.%s", name, suffix);
    return field;
  };
  if (segment.indices == nullptr) {
    if (segment.columns != 0) {
      DSV4_FAIL(kInvalidValue, "%s: expected indices for %" PRId64 " columns, got null", name,
                segment.columns);
    }
    return {};
  }
  const PoolView& pool = segment.pool;
  DSV4_RETURN_IF_FAILED(check_not_negative(named("columns"), segment.columns));
  DSV4_RETURN_IF_FAILED(check_not_negative(named("pool.num_pages"), pool.num_pages));
  DSV4_RETURN_IF_FAILED(check_positive(named("pool.page_size"), pool.page_size));
  DSV4_RETURN_IF_FAILED(
      check_not_negative(named("pool.page_stride_bytes"), pool.page_stride_bytes));
  DSV4_RETURN_IF_FAILED(
      check_not_negative(named("pool.token_stride_bytes"), pool.token_stride_bytes));
  if (pool.num_pages > 0) DSV4_RETURN_IF_FAILED(check_pointer(named("pool.data"), pool.data));
  if (format == KvFormat::kPacked && pool.num_pages > 1 &&
      pool.page_stride_bytes < PackedPage::page_bytes(pool.page_size)) {
    DSV4_FAIL(kInvalidValue,
              "%s: expected at least %" PRId64 " for packed pages of %" PRId64
              " tokens, got %" PRId64,
              named("pool.page_stride_bytes"), PackedPage::page_bytes(pool.page_size),
              pool.page_size, pool.page_stride_bytes);
  }
  if (segment.length.values != nullptr) {
    DSV4_RETURN_IF_FAILED(
        check_positive(named("length.rows_per_value"), segment.length.rows_per_value));
    if (segment.length.row_offsets != nullptr) {
      DSV4_RETURN_IF_FAILED(
          check_positive(named("length.num_requests"), segment.length.num_requests));
    }
  }
  return {};
}

const char* format_name(KvFormat format) {
  switch (format) {
    case KvFormat::kBFloat16:
      return "bf16";
    case KvFormat::kFloat8E4M3:
      return "e4m3";
    case KvFormat::kPacked:
      return "packed";
  }
  return "unknown";
}

}  // namespace

Status validate_kind(const DecodeProblem& problem) {
  DSV4_RETURN_IF_FAILED(check_positive("heads", problem.heads));
  if (problem.query_dtype != DType::kBFloat16 && problem.query_dtype != DType::kFloat8E4M3) {
    DSV4_FAIL(kInvalidValue, "query: expected bfloat16 or float8_e4m3fn");
  }
  const bool fits =
      problem.query_dtype == DType::kFloat8E4M3
          ? problem.kv_format == KvFormat::kFloat8E4M3
          : problem.kv_format == KvFormat::kBFloat16 || problem.kv_format == KvFormat::kPacked;
  if (!fits) {
    DSV4_FAIL(kInvalidValue,
              "query: expected bfloat16 with a bf16 or packed cache, or float8_e4m3fn with an e4m3 "
              "cache, got %s with "
              "a cache of format %s",
              problem.query_dtype == DType::kBFloat16 ? "bfloat16" : "float8_e4m3fn",
              format_name(problem.kv_format));
  }
  return {};
}

Status validate(const DecodeProblem& problem) {
  DSV4_RETURN_IF_FAILED(validate_kind(problem));
  DSV4_RETURN_IF_FAILED(check_not_negative("batch", problem.batch));
  DSV4_RETURN_IF_FAILED(check_not_negative("q_len", problem.q_len));
  if (problem.batch == 0 || problem.q_len == 0)
    return {};  // empty tensors have no pointers to check
  DSV4_RETURN_IF_FAILED(validate_segment("window", problem.window, problem.kv_format));
  DSV4_RETURN_IF_FAILED(validate_segment("compressed", problem.compressed, problem.kv_format));
  if (problem.window.index_form != IndexForm::kTokenRows) {
    DSV4_FAIL(kInvalidValue, "window.index_form: expected token rows, got a page table");
  }
  DSV4_RETURN_IF_FAILED(check_pointer("query.data", problem.query.data));
  DSV4_RETURN_IF_FAILED(check_pointer("out.data", problem.out.data));
  if (problem.workspace == nullptr && problem.workspace_bytes != 0) {
    DSV4_FAIL(kInvalidValue, "workspace: expected a pointer to %zu bytes, got null",
              problem.workspace_bytes);
  }
  return {};
}

Status validate(const DecodeShape& shape) {
  DSV4_RETURN_IF_FAILED(check_not_negative("num_rows", shape.rows));
  DSV4_RETURN_IF_FAILED(check_positive("table_rows", shape.table_rows));
  DSV4_RETURN_IF_FAILED(check_positive("num_heads", shape.heads));
  DSV4_RETURN_IF_FAILED(check_not_negative("swa_width", shape.window_slots));
  DSV4_RETURN_IF_FAILED(check_not_negative("compressed_width", shape.compressed_slots));
  return {};
}

Status validate(const MergeProblem& problem) {
  DSV4_RETURN_IF_FAILED(check_positive("num_states", problem.num_states));
  DSV4_RETURN_IF_FAILED(check_not_negative("rows", problem.rows));
  DSV4_RETURN_IF_FAILED(check_not_negative("heads", problem.heads));
  if (problem.dtype != DType::kBFloat16 && problem.dtype != DType::kFloat32) {
    DSV4_FAIL(kInvalidValue, "outs: expected bfloat16 or float32");
  }
  if (problem.rows == 0 || problem.heads == 0) return {};
  DSV4_RETURN_IF_FAILED(check_pointer("partial_out", problem.partial_out));
  DSV4_RETURN_IF_FAILED(check_pointer("partial_lse", problem.partial_lse));
  DSV4_RETURN_IF_FAILED(check_pointer("out", problem.out));
  return {};
}

Status validate(const AppendProblem& problem) {
  DSV4_RETURN_IF_FAILED(check_not_negative("rows", problem.rows));
  DSV4_RETURN_IF_FAILED(check_not_negative("pool.num_pages", problem.pool.num_pages));
  DSV4_RETURN_IF_FAILED(check_positive("pool.page_size", problem.pool.page_size));
  if (problem.rows == 0) return {};
  DSV4_RETURN_IF_FAILED(check_pointer("values", problem.values));
  DSV4_RETURN_IF_FAILED(check_pointer("slots", problem.slots));
  if (problem.pool.num_pages > 0)
    DSV4_RETURN_IF_FAILED(check_pointer("pool.data", problem.pool.data));
  return {};
}

Status validate(const PackProblem& problem) {
  DSV4_RETURN_IF_FAILED(check_not_negative("num_pages", problem.num_pages));
  DSV4_RETURN_IF_FAILED(check_positive("page_size", problem.page_size));
  if (problem.num_pages == 0) return {};
  DSV4_RETURN_IF_FAILED(check_pointer("values", problem.values));
  DSV4_RETURN_IF_FAILED(check_pointer("packed", problem.packed));
  if (problem.num_pages > 1 &&
      problem.page_stride_bytes < PackedPage::page_bytes(problem.page_size)) {
    DSV4_FAIL(kInvalidValue,
              "page_stride_bytes: expected at least %" PRId64 " for pages of %" PRId64
              " tokens, got %" PRId64,
              PackedPage::page_bytes(problem.page_size), problem.page_size,
              problem.page_stride_bytes);
  }
  return {};
}

Status validate(const HcaMetadataProblem& problem) {
  DSV4_RETURN_IF_FAILED(check_not_negative("batch", problem.batch));
  DSV4_RETURN_IF_FAILED(check_positive("q_len", problem.q_len));
  DSV4_RETURN_IF_FAILED(check_positive("page_size", problem.page_size));
  DSV4_RETURN_IF_FAILED(check_not_negative("num_pages", problem.num_pages));
  DSV4_RETURN_IF_FAILED(check_not_negative("swa_slots", problem.window_slots));
  if (problem.columns < kWindow) {
    DSV4_FAIL(kInvalidValue,
              "sparse_indices: expected the %d window columns and any number more, got %" PRId64
              " columns",
              kWindow, problem.columns);
  }
  if (problem.batch == 0) return {};
  DSV4_RETURN_IF_FAILED(check_pointer("indices", problem.indices));
  DSV4_RETURN_IF_FAILED(check_pointer("seq_lens", problem.seq_lens));
  DSV4_RETURN_IF_FAILED(check_pointer("window_indices", problem.window_indices));
  DSV4_RETURN_IF_FAILED(check_pointer("page_table", problem.page_table));
  DSV4_RETURN_IF_FAILED(check_pointer("hca_seq_lens", problem.hca_seq_lens));
  DSV4_RETURN_IF_FAILED(check_pointer("window_lens", problem.window_lens));
  return {};
}

bool value_checks_wanted() {
  const char* text = std::getenv("DSV4_VALIDATE_INPUTS");
  return text != nullptr && *text != '\0' && std::strcmp(text, "0") != 0;
}

namespace {

Status validate_length(const char* name, const LengthView& view, int64_t row, int64_t width) {
  const int64_t raw = raw_row_length(view, row, width);
  if (!view.causal) {
    if (raw >= 0 && raw <= width) return {};
    DSV4_FAIL(kInvalidValue, "%s_lens[%" PRId64 "]: expected %d to %" PRId64 ", got %" PRId64, name,
              row, view.subtract, width + view.subtract, raw + view.subtract);
  }
  // A sequence may be longer than the window, but not shorter than its queries.
  const int64_t request =
      view.row_offsets != nullptr ? request_of_row(view, row) : row / view.rows_per_value;
  if (raw > 0 || request < 0) return {};
  DSV4_FAIL(kInvalidValue,
            "seq_lens[%" PRId64 "]: expected at least the number of the request's queries, got %d",
            request, view.values[request * view.stride]);
}

Status validate_segment_values(const char* name, const DecodeProblem& problem,
                               const Segment& segment) {
  if (segment.indices == nullptr) return {};
  const int64_t width = segment_width(segment);
  const bool pages = segment.index_form == IndexForm::kPageTable;
  const int64_t limit =
      pages ? segment.pool.num_pages : segment.pool.num_pages * segment.pool.page_size;
  for (int64_t row = 0; row < problem.batch * problem.q_len; ++row) {
    DSV4_RETURN_IF_FAILED(validate_length(name, segment.length, row, width));
    const int32_t* indices = segment.indices + row / problem.q_len * segment.index_batch_stride +
                             row % problem.q_len * segment.index_row_stride;
    const int64_t length = row_length(segment.length, row, width);
    const int64_t columns =
        pages ? (length + segment.pool.page_size - 1) / segment.pool.page_size : length;
    for (int64_t column = 0; column < columns; ++column) {
      if (indices[column] < -1 || indices[column] >= limit) {
        DSV4_FAIL(kInvalidValue,
                  "%s_indices[%" PRId64 ", %" PRId64 "]: expected -1 or a %s in [0, %" PRId64
                  "), got %d",
                  name, row, column, pages ? "page" : "slot", limit, indices[column]);
      }
    }
  }
  return {};
}

}  // namespace

Status validate_values(const DecodeProblem& problem) {
  DSV4_RETURN_IF_FAILED(validate_segment_values("swa", problem, problem.window));
  return validate_segment_values("compressed", problem, problem.compressed);
}

}  // namespace dsv4
