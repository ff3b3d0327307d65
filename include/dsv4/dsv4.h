// SPDX-License-Identifier: Apache-2.0
// dsv4: DeepSeek-V4 sparse MLA decode. The C++ API; needs neither torch nor CUDA headers.
//
// Every function here
//   * is thread-safe, never prints, never throws, and keeps no state that a caller could see;
//   * checks its arguments before it touches memory: a Status that is not ok leaves all buffers as
//     they were;
//   * on a GPU only enqueues work on `stream`: no synchronization, no allocation, no host read of
//     device data, launch shapes that depend on shapes only, so a CUDA graph can capture a call.
// On the CPU it runs to the end before it returns. Pointers of one call all belong to `device`.
//
// Strides count elements unless the name says bytes. The last dimension of query, out, caches and
// index tables is contiguous.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv4/kv_format.h"
#include "dsv4/version.h"

#if defined(DSV4_BUILDING_LIBRARY)
#define DSV4_API __attribute__((visibility("default")))
#else
#define DSV4_API
#endif

namespace dsv4 {

using Stream = void*;  // a cudaStream_t; null is the default stream. Ignored on the CPU.

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidValue,  // a caller's mistake in shape, stride, range or combination (Python: ValueError)
  kInvalidType,   // a caller's mistake in type (Python: TypeError)
  kUnsupported,   // right, but nothing in this build can run it here (Python: RuntimeError)
  kRuntimeError,  // the CUDA runtime refused (Python: RuntimeError)
};

// Argument, wanted, got, and a hint where there is one: "query: expected 1 or more heads, got 0".
struct [[nodiscard]] Status {
  StatusCode code = StatusCode::kOk;
  char message[508] = {};
  bool ok() const { return code == StatusCode::kOk; }
};

enum class DeviceType : int32_t { kCpu = 0, kCuda = 1 };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int32_t index = 0;  // CUDA ordinal
};

enum class DType : int32_t { kBFloat16 = 0, kFloat8E4M3 = 1, kFloat32 = 2 };

enum class KvFormat : int32_t {
  kBFloat16 = 0,    // [.., 512] bf16
  kFloat8E4M3 = 1,  // [.., 512] e4m3, one scale for all, which the caller folds into the scales
  kPacked = 2,      // PackedPage of kv_format.h
};

enum class IndexForm : int32_t {
  kTokenRows = 0,  // an index names a slot: page * page_size + offset
  kPageTable = 1,  // an index names a page; its slots follow in order
};

// A float known to the host, or one float on the device (read there, without a synchronization).
struct Scale {
  float value = 1.0f;
  const float* pointer = nullptr;  // wins over value
};

// A paged cache. Slot s lies in page s / page_size.
struct PoolView {
  const void* data = nullptr;
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t page_stride_bytes = 0;   // any distance >= 0: padding, interleaved layers
  int64_t token_stride_bytes = 0;  // 512-wide formats only; a packed page is dense
};

// How many leading columns of a row's index table count. Values are clamped to [0, width].
struct LengthView {
  const int32_t* values = nullptr;  // null: the whole width
  int64_t stride = 1;
  int64_t rows_per_value = 1;  // consecutive query rows that share one value
  int32_t subtract = 0;        // counted columns that stand before this segment's own
  // Causal: a value is a sequence length n, and query i of its request's m rows sees n - m + i + 1.
  bool causal = false;
  const int32_t* row_offsets =
      nullptr;  // [num_requests + 1] first row of each request; null: rows_per_value rows each
  int64_t num_requests = 0;  // with row_offsets only
};

// One of the two runs of slots that a query row attends to.
struct Segment {
  PoolView pool;
  IndexForm index_form = IndexForm::kTokenRows;
  const int32_t* indices = nullptr;  // [batch, q_len, columns]; null: the segment is absent
  int64_t index_batch_stride = 0;
  int64_t index_row_stride = 0;  // 0: one table a request; in the compressed segment, GPUs then
                                 // read each of its keys once for several rows. Tables of pages
                                 // of 512-wide caches may also be copies, which GPUs compare
  int64_t columns = 0;           // slots (token rows) or pages (page table) a row
  LengthView length;             // in slots, for both index forms
};

// Row (b, i) is query i of batch entry b. Varlen queries are q_len = 1 with batch = all rows.
template <class Pointer>
struct RowView {
  Pointer data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

struct LseOptions {
  bool base2 = false;              // log2 instead of ln
  bool include_sink = false;       // the sink counts as one more score
  bool empty_is_positive = false;  // +inf instead of -inf for a row with no valid slot
};

// Runs the CPU engine's tasks: must call task(argument, i) once for each i in [0, num_tasks), from
// any threads, and return when all are done. Null: the library's own threads, OMP_NUM_THREADS of
// them, or one for each core the process may use.
struct Executor {
  void (*run)(int64_t num_tasks, void (*task)(void* argument, int64_t index),
              void* argument) = nullptr;
  int32_t num_threads = 0;
};

// One decode:
//   s_j = scale1 * <q, k_j> over the valid slots j of both segments
//   out = scale2 * sum_j exp(s_j) k_j / (sum_j exp(s_j) + exp(sink_h))
//   lse = ln(sum_j exp(s_j))
// A slot is valid iff its column is below the row's length and its index lies inside the pool;
// anything else is a hole, whose bytes are not read. A row with no valid slot gives out = 0 and lse
// = -inf.
struct DecodeProblem {
  Device device;
  int64_t batch = 0;
  int64_t q_len = 1;
  int64_t heads = 0;

  DType query_dtype = DType::kBFloat16;      // kBFloat16 or kFloat8E4M3
  KvFormat kv_format = KvFormat::kBFloat16;  // of both pools
  RowView<const void*> query;                // [batch, q_len, heads, 512]
  Segment window;
  Segment compressed;

  Scale scale1;                  // softmax scale times per-tensor scales of query and keys
  Scale scale2;                  // output scale, per-tensor scale of the values
  const float* sinks = nullptr;  // [heads] natural-log domain, unscaled; null: none
  bool defer_sinks = false;      // leave them out of `out`: merge_states will apply them once

  RowView<void*> out;   // [batch, q_len, heads, 512] bf16
  RowView<float*> lse;  // [batch, q_len, heads] or data = null
  LseOptions lse_options;

  void* workspace = nullptr;   // any content; 16-byte aligned; nothing is carried from call to call
  size_t workspace_bytes = 0;  // less than workspace_size() is allowed (fewer splits), 0 works
  bool batch_invariant = false;  // a row's bits do not depend on the rest of the batch
  bool enable_pdl = false;       // programmatic dependent launch, where the GPU has it
  bool persistent = false;  // GPUs: never more blocks than run at a time, each of which goes from
                            // row to row; else the library chooses. Results are the same bits
  Executor executor;        // CPU only
};

// The shape of a decode, as far as workspace and plan depend on it.
struct DecodeShape {
  Device device;
  int64_t rows = 0;        // batch * q_len
  int64_t table_rows = 1;  // neighbours that may have one compressed table: q_len, if
                           // index_row_stride is 0 or the table is one of pages
  int64_t heads = 0;
  int64_t window_slots = 0;      // width of the window table
  int64_t compressed_slots = 0;  // width of the compressed table, in slots
  bool batch_invariant = false;
  int32_t num_threads = 0;  // CPU only; as Executor::num_threads
};

// Decodes. Empty problems (batch or q_len 0) are a no-op.
// DSV4_VALIDATE_INPUTS=1 in the environment adds value checks (the first bad index or length is an
// error).
DSV4_API Status sparse_mla_decode(const DecodeProblem& problem, Stream stream = nullptr);

// Bytes of workspace with which a decode of this shape is fastest.
DSV4_API Status workspace_size(const DecodeShape& shape, size_t* bytes);

// Ok if this build can run such a problem on its device, else the reason. Looks at formats, forms,
// sizes and device, not at pointers.
DSV4_API Status supports(const DecodeProblem& problem);

// Merges partial results of the same queries over disjoint sets of slots (context parallelism,
// splits):
//   weight_i = exp(lse_i) / sum exp(lse),   out = scale2 * sum_i weight_i out_i
// with the sinks applied once.
// Partials with lse = -inf or +inf hold no slot; their out may hold anything, NaN too.
struct MergeProblem {
  Device device;
  int64_t num_states = 0;
  int64_t rows = 0;
  int64_t heads = 0;
  DType dtype = DType::kBFloat16;     // of partial_out and out: kBFloat16 or kFloat32
  const void* partial_out = nullptr;  // [num_states, rows, heads, 512]
  int64_t out_state_stride = 0, out_row_stride = 0, out_head_stride = 0;
  const float* partial_lse = nullptr;  // [num_states, rows, heads]
  int64_t lse_state_stride = 0, lse_row_stride = 0, lse_head_stride = 0;
  const float* sinks = nullptr;  // [heads]
  Scale scale2;
  LseOptions lse_options;  // base2 holds for partial_lse too
  void* out = nullptr;     // [rows, heads, 512] contiguous
  float* lse = nullptr;    // [rows, heads] contiguous, or null
  Executor executor;
};
DSV4_API Status merge_states(const MergeProblem& problem, Stream stream = nullptr);

// A cache that is written.
struct MutablePoolView {
  void* data = nullptr;
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t page_stride_bytes = 0;
  int64_t token_stride_bytes = 0;
};

// Writes one bf16 row of 512 to each named slot of a cache, quantising as the format asks:
//   packed  scale = 2^ceil(log2(max(amax, 1e-4) / 448)) for each 64 NoPE values
//   e4m3    value = x / scale, saturating at +-448
// both rounded to nearest even.
// A negative slot, or one past the end, is skipped. Of several rows for one slot, one wins.
// Nothing but the named slots' bytes is written.
struct AppendProblem {
  Device device;
  int64_t rows = 0;
  const void* values = nullptr;  // [rows, 512] bf16
  int64_t value_row_stride = 0;
  const void* slots = nullptr;   // [rows]
  bool slots_are_64bit = false;  // int64 (vLLM's slot_mapping) or int32
  KvFormat kv_format = KvFormat::kPacked;
  MutablePoolView pool;
  Scale scale;  // kFloat8E4M3 only
  Executor executor;
};
DSV4_API Status append_kv_cache(const AppendProblem& problem, Stream stream = nullptr);

// Packs whole pages: bf16 [num_pages, page_size, 512] -> packed pages, and back (exactly: every
// packed value below 2^128 is a bf16 number; the largest bf16 values may round up to that,
// infinity).
struct PackProblem {
  Device device;
  int64_t num_pages = 0;
  int64_t page_size = 0;
  void* values = nullptr;  // bf16; read by pack, written by unpack
  int64_t value_page_stride = 0, value_token_stride = 0;
  void* packed = nullptr;  // written by pack, read by unpack
  int64_t page_stride_bytes = 0;
  Executor executor;
};
DSV4_API Status pack_kv_cache(const PackProblem& problem, Stream stream = nullptr);
DSV4_API Status unpack_kv_cache(const PackProblem& problem, Stream stream = nullptr);

// Turns combined token rows (window columns, then compressed columns that expand whole pages) into
// the tables of the HCA form, reading no value on the host:
//   window length of query i   min(128, seq_len - q_len + i + 1), at least 0
//   hca_seq_lens               128 + seq_len / 128
// Inactive window columns become 0, active ones outside the pool -1; a page whose first column does
// not start a page of the pool becomes -1 (a hole), inactive pages 0.
struct HcaMetadataProblem {
  Device device;
  int64_t batch = 0;
  int64_t q_len = 0;
  const int32_t* indices = nullptr;  // [batch * q_len, columns], columns >= 128
  int64_t index_row_stride = 0;
  int64_t columns = 0;
  const int32_t* seq_lens = nullptr;  // [batch]
  int64_t window_slots = 0;           // slots of the window pool
  int64_t page_size = 0;              // of the compressed pool
  int64_t num_pages = 0;
  int32_t* window_indices = nullptr;  // [batch * q_len, 128]
  int32_t* page_table = nullptr;      // [batch * q_len, table_columns]
  int64_t table_columns = 0;
  int32_t* hca_seq_lens = nullptr;  // [batch]
  int32_t* window_lens = nullptr;   // [batch * q_len]
};
DSV4_API Status hca_metadata(const HcaMetadataProblem& problem, Stream stream = nullptr);

// What this library is and can use here, as JSON: version, compiler, CUDA runtime, engines with the
// GPU targets they were compiled for, and why an engine cannot run on this machine. Valid until the
// process ends.
DSV4_API const char* build_info();

}  // namespace dsv4
