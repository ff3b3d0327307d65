// SPDX-License-Identifier: Apache-2.0
// torch.ops.dsv4: every schema, and which function serves it. The Python docstrings explain the
// arguments.
#include <torch/csrc/stable/library.h>

#include "torch/ops.h"

namespace dsv4::torch_ops {

// Arguments of both overloads of the decode. All may be given by position: torch looks up each
// argument that is not, by name, at about 0.1 us apiece.
#define DSV4_DECODE_ARGUMENTS                                                                \
  "Tensor query, Tensor swa_kv_cache, Tensor swa_indices, Tensor? swa_lens=None, "           \
  "Tensor? compressed_kv_cache=None, Tensor? compressed_indices=None, "                      \
  "Tensor? compressed_lens=None, Tensor? seq_lens=None, Tensor? cum_seq_lens_q=None, "       \
  "Tensor? sinks=None, Tensor? workspace=None, float bmm1_scale=1.0, float bmm2_scale=1.0, " \
  "Tensor? bmm1_scale_tensor=None, Tensor? bmm2_scale_tensor=None, str kv_layout=\"HND\", "  \
  "bool page_table=False, int compressed_lens_offset=0, str lse_base=\"e\", "                \
  "str sink_mode=\"apply\", bool lse_sink=False, bool lse_empty_positive=False, "            \
  "bool batch_invariant=False, bool enable_pdl=False, bool persistent=False"

STABLE_TORCH_LIBRARY(dsv4, m) {
  m.def("sparse_mla_decode(" DSV4_DECODE_ARGUMENTS ") -> (Tensor out, Tensor lse)");
  m.def("sparse_mla_decode.out(" DSV4_DECODE_ARGUMENTS
        ", *, Tensor(a!) out, Tensor(b!)? lse=None) -> ()");
  m.def(
      "merge_states(Tensor outs, Tensor lses, *, Tensor? sinks=None, float bmm2_scale=1.0, "
      "Tensor? bmm2_scale_tensor=None, str lse_base=\"e\", bool lse_sink=False, bool "
      "lse_empty_positive=False) "
      "-> (Tensor out, Tensor lse)");
  m.def("pack_kv_cache(Tensor kv, *, int page_stride_bytes=0) -> Tensor");
  m.def("pack_kv_cache.out(Tensor kv, *, Tensor(a!) out) -> ()");
  m.def("unpack_kv_cache(Tensor kv_cache, *, str kv_layout=\"HND\") -> Tensor");
  m.def(
      "append_kv_cache(Tensor kv, Tensor(a!) kv_cache, Tensor slot_mapping, *, float scale=1.0, "
      "Tensor? scale_tensor=None, str kv_layout=\"HND\") -> ()");
  m.def(
      "hca_metadata(Tensor sparse_indices, Tensor seq_lens, *, int q_len, int swa_slots, int "
      "page_size, "
      "int num_pages) -> (Tensor hca_swa_indices, Tensor hca_compressed_block_tables, Tensor "
      "hca_seq_lens, "
      "Tensor swa_topk_lens)");
  m.def(
      "workspace_size(int num_rows, int num_heads, int swa_width, int compressed_width=0, *, "
      "Device? device=None, "
      "bool batch_invariant=False, int table_rows=1) -> int");
  m.def(
      "supports(int num_heads, *, ScalarType query_dtype, str kv_format, bool page_table=False, "
      "Device? device=None) -> str");
  m.def("build_info() -> str");
}

namespace {

void register_tensor_ops(torch::stable::detail::StableLibrary& m) {
  m.impl("sparse_mla_decode", TORCH_BOX(&sparse_mla_decode));
  m.impl("sparse_mla_decode.out", TORCH_BOX(&sparse_mla_decode_out));
  m.impl("merge_states", TORCH_BOX(&merge_states));
  m.impl("pack_kv_cache", TORCH_BOX(&pack_kv_cache));
  m.impl("pack_kv_cache.out", TORCH_BOX(&pack_kv_cache_out));
  m.impl("unpack_kv_cache", TORCH_BOX(&unpack_kv_cache));
  m.impl("append_kv_cache", TORCH_BOX(&append_kv_cache));
  m.impl("hca_metadata", TORCH_BOX(&hca_metadata));
}

}  // namespace

// One function serves both: the engine follows from the device of the tensors.
STABLE_TORCH_LIBRARY_IMPL(dsv4, CPU, m) { register_tensor_ops(m); }
STABLE_TORCH_LIBRARY_IMPL(dsv4, CUDA, m) { register_tensor_ops(m); }

// No tensors, no device to dispatch on.
STABLE_TORCH_LIBRARY_IMPL(dsv4, CompositeExplicitAutograd, m) {
  m.impl("workspace_size", TORCH_BOX(&workspace_size));
  m.impl("supports", TORCH_BOX(&supports));
  m.impl("build_info", TORCH_BOX(&build_info));
}

}  // namespace dsv4::torch_ops
