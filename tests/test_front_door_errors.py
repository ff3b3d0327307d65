"""Each error sentence of the Python front doors: its type, its text, and results left untouched.

Errors of the operators themselves are tested where the operators are; here are those that Python
raises, and the names that it gives to the operators' own sentences.
"""

from __future__ import annotations

import contextlib
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import dsv4
from dsv4 import __main__, _errors, _library, hca

BATCH, Q_LEN, HEADS = 2, 2, 4
ROWS = BATCH * Q_LEN
BF16, E4M3, INT32, UINT8 = torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.uint8
UNTOUCHED = 7.0


def zeros(*shape, dtype=INT32, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


def query(*shape):
    return zeros(*(shape or (BATCH, Q_LEN, HEADS, 512)), dtype=BF16)


def token_sparse(**changes):
    arguments = {
        "query": query(),
        "swa_kv_cache": zeros(6, 32, 512, dtype=BF16),
        "workspace_buffer": None,
        "sparse_indices": zeros(ROWS, 192),
        "compressed_kv_cache": zeros(5, 16, 512, dtype=BF16),
        "sparse_topk_lens": zeros(ROWS) + 128,
        "seq_lens": zeros(BATCH) + 128,
        "backend": "trtllm-gen",
    }
    return arguments | changes


def varlen(**changes):
    arguments = token_sparse(
        query=query(ROWS, HEADS, 512),
        cum_seq_lens_q=torch.tensor([0, 1, ROWS], dtype=INT32),
        max_q_len=3,
    )
    return arguments | changes


def hca_form(**changes):
    arguments = {
        "query": query(),
        "swa_kv_cache": zeros(6, 32, 512, dtype=BF16),
        "workspace_buffer": None,
        "compressed_kv_cache": zeros(5, 16, 512, dtype=BF16),
        "sparse_topk_lens": zeros(ROWS) + 128,
        "swa_topk_lens": zeros(ROWS) + 128,
        "hca_swa_indices": zeros(ROWS, 128),
        "hca_compressed_block_tables": zeros(ROWS, 8),
        "hca_seq_lens": zeros(BATCH) + 1000,
        "backend": "cute-dsl",
    }
    return arguments | changes


def page_aligned(**changes):
    arguments = token_sparse(
        backend="cute-dsl", hca_sparse_indices_format="compressed-page-aligned"
    )
    return arguments | changes


def packed(**changes):
    arguments = {
        "query": query(),
        "swa_kv_cache": zeros(6, 32, 584, dtype=UINT8),
        "workspace_buffer": None,
        "sparse_indices": zeros(ROWS, 128),
        "swa_topk_lens": zeros(ROWS) + 128,
        "compressed_kv_cache": zeros(5, 16, 584, dtype=UINT8),
        "extra_sparse_indices": zeros(ROWS, 17),
        "extra_sparse_topk_lens": zeros(ROWS) + 17,
        "backend": "sparse",
    }
    return arguments | changes


def flash_mla(**changes):
    arguments = {
        "q": query(),
        "k_cache": zeros(6, 32, 1, 584, dtype=UINT8),
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": None,
        "is_fp8_kvcache": True,
        "indices": zeros(BATCH, Q_LEN, 128),
        "extra_k_cache": zeros(5, 16, 1, 584, dtype=UINT8),
        "extra_indices_in_kvcache": zeros(BATCH, Q_LEN, 17),
    }
    return arguments | changes


def conversion(**changes):
    """One request of 300 tokens, two queries: rows see 299 and 300 tokens, 2 compressed slots."""
    arguments = {
        "sparse_indices": torch.cat([zeros(2, 128), torch.arange(4).expand(2, 4).int()], 1),
        "sparse_topk_lens": zeros(2) + 130,
        "seq_lens": zeros(1) + 300,
        "swa_kv_cache": zeros(6, 32, 512, dtype=BF16),
        "compressed_kv_cache": zeros(5, 2, 512, dtype=BF16),
        "q_len": 2,
    }
    return arguments | changes


def with_value(name, position, value):
    arguments = conversion()
    arguments[name] = arguments[name].clone()
    arguments[name][position] = value
    return arguments


NEEDED = "expected a tensor with backend="
LEFT_OUT = "expected to be left out with backend="

PACKED_HINT = "; packed caches go with backend='sparse'"
DENSE_HINT = "; a query of 3 dimensions needs cum_seq_lens_q, or backend='sparse'"
ONE_HEAD_HND = "expected one KV head: HND [num_pages, 1, page_size, width], got shape"
ONE_HEAD_NHD = "expected one KV head: NHD [num_pages, page_size, 1, width], got shape"

# Changes of arguments that token-sparse and HCA refuse alike.
PLAIN_ERRORS = [
    # Query.
    (
        {"query": query(1, BATCH, Q_LEN, HEADS, 512)},
        ValueError,
        f"query: expected [B, Q, H, 512], got shape [1, 2, 2, 4, 512]{DENSE_HINT}",
    ),
    (
        {"query": query(ROWS, HEADS, 512)},
        ValueError,
        f"query: expected [B, Q, H, 512], got shape [4, 4, 512]{DENSE_HINT}",
    ),
    (
        {
            "query": query().half(),
            "swa_kv_cache": zeros(6, 32, 512, dtype=torch.float16),
            "compressed_kv_cache": zeros(5, 16, 512, dtype=torch.float16),
        },
        ValueError,
        "query: expected bfloat16 or float8_e4m3fn, got float16",
    ),
    (
        {"query": query().half()},
        ValueError,
        "query: expected bfloat16 or float8_e4m3fn, got float16",
    ),
    ({"sparse_topk_lens": [1]}, TypeError, "sparse_topk_lens: expected a torch.Tensor, got list"),
    ({"out": [1]}, TypeError, "out: expected a torch.Tensor, got list"),
    (
        {"query": query(BATCH, Q_LEN, 0, 512), "out": None, "lse": None},
        ValueError,
        "heads: expected 1 or more, got 0",
    ),
    # Caches.
    (
        {"swa_kv_cache": zeros(6, 32, 512, dtype=E4M3)},
        ValueError,
        f"swa_kv_cache: expected bfloat16 like query, got float8_e4m3fn{PACKED_HINT}",
    ),
    (
        {"swa_kv_cache": zeros(6, 32, 584, dtype=UINT8)},
        ValueError,
        f"swa_kv_cache: expected bfloat16 like query, got uint8{PACKED_HINT}",
    ),
    (
        {"compressed_kv_cache": zeros(5, 16, 512, dtype=E4M3)},
        ValueError,
        f"compressed_kv_cache: expected bfloat16 like query, got float8_e4m3fn{PACKED_HINT}",
    ),
    (
        {"compressed_kv_cache": zeros(5, 16, 584, dtype=UINT8)},
        ValueError,
        f"compressed_kv_cache: expected bfloat16 like query, got uint8{PACKED_HINT}",
    ),
    (
        {"swa_kv_cache": zeros(6, 32, 576, dtype=BF16)},
        ValueError,
        "swa_kv_cache: expected last dimension 512, got shape [6, 32, 576]",
    ),
    (
        {"compressed_kv_cache": zeros(5, 16, 576, dtype=BF16)},
        ValueError,
        "compressed_kv_cache: expected last dimension 512, got shape [5, 16, 576]",
    ),
    (
        {"swa_kv_cache": zeros(192, 512, dtype=BF16)},
        ValueError,
        "swa_kv_cache: expected 3 or 4 dimensions, got 2 (shape [192, 512])",
    ),
    (
        {"compressed_kv_cache": zeros(5, 1, 1, 16, 512, dtype=BF16)},
        ValueError,
        "compressed_kv_cache: expected 3 or 4 dimensions, got 5 (shape [5, 1, 1, 16, 512])",
    ),
    (
        {"swa_kv_cache": zeros(6, 32, 1, 512, dtype=BF16)},
        ValueError,
        f"swa_kv_cache: {ONE_HEAD_HND} [6, 32, 1, 512]",
    ),
    (
        {"compressed_kv_cache": zeros(5, 16, 1, 512, dtype=BF16)},
        ValueError,
        f"compressed_kv_cache: {ONE_HEAD_HND} [5, 16, 1, 512]",
    ),
    (
        {
            "kv_layout": "NHD",
            "swa_kv_cache": zeros(6, 32, 1, 512, dtype=BF16),
            "compressed_kv_cache": zeros(5, 1, 16, 512, dtype=BF16),
        },
        ValueError,
        f"compressed_kv_cache: {ONE_HEAD_NHD} [5, 1, 16, 512]",
    ),
    (
        {"kv_layout": "NHD"},
        ValueError,
        "swa_kv_cache: expected [pages, page_size, 1, 512] with kv_layout='NHD', got shape "
        "[6, 32, 512]; a cache of 3 dimensions goes with kv_layout='HND'",
    ),
    (
        {"kv_layout": "NHD", "swa_kv_cache": zeros(6, 32, 1, 512, dtype=BF16)},
        ValueError,
        "compressed_kv_cache: expected [pages, page_size, 1, 512] with kv_layout='NHD', got shape "
        "[5, 16, 512]; a cache of 3 dimensions goes with kv_layout='HND'",
    ),
    ({"kv_layout": "DNH"}, ValueError, "kv_layout: expected 'HND' or 'NHD', got 'DNH'"),
    (
        {"compressed_kv_cache": zeros(5, 0, 512, dtype=BF16)},
        ValueError,
        "compressed_kv_cache: expected at least one token a page, got shape [5, 0, 512]",
    ),
    # Lengths.
    (
        {"sparse_topk_lens": zeros(BATCH)},
        ValueError,
        "sparse_topk_lens: expected shape [4], got [2]",
    ),
    (
        {"sparse_topk_lens": zeros(BATCH, Q_LEN)},
        ValueError,
        "sparse_topk_lens: expected shape [4], got [2, 2]",
    ),
    (
        {"sparse_topk_lens": zeros(ROWS, dtype=torch.int64)},
        ValueError,
        "sparse_topk_lens: expected int32, got int64",
    ),
    (
        {"sparse_topk_lens": zeros(ROWS, device="meta")},
        ValueError,
        "sparse_topk_lens: expected a tensor on cpu, got one on meta",
    ),
    # Scales, sinks, workspace, results.
    (
        {"bmm1_scale": zeros(1, dtype=torch.float64)},
        TypeError,
        "bmm1_scale: expected a float or a float32 tensor, got float64",
    ),
    (
        {"bmm2_scale": zeros(1, dtype=BF16)},
        TypeError,
        "bmm2_scale: expected a float or a float32 tensor, got bfloat16",
    ),
    (
        {"bmm1_scale": zeros(2, dtype=torch.float32)},
        ValueError,
        "bmm1_scale: expected one element, got shape [2]",
    ),
    (
        {"bmm1_scale": float("nan")},
        ValueError,
        "bmm1_scale: expected a finite number, got nan",
    ),
    (
        {"bmm2_scale": float("inf")},
        ValueError,
        "bmm2_scale: expected a finite number, got inf",
    ),
    (
        {"sinks": []},
        ValueError,
        "sinks: expected a tensor, or a list or tuple of exactly one, got 0 tensors",
    ),
    (
        {"sinks": zeros(HEADS + 1, dtype=torch.float32)},
        ValueError,
        "sinks: expected [4], got shape [5]",
    ),
    ({"sinks": zeros(HEADS, dtype=BF16)}, ValueError, "sinks: expected float32, got bfloat16"),
    ({"sinks": 1.0}, TypeError, "sinks: expected Tensor, got float"),
    ({"workspace_buffer": 1}, TypeError, "workspace_buffer: expected Tensor, got int"),
    (
        {"workspace_buffer": zeros(64, 64)[:, :8]},
        ValueError,
        "workspace_buffer: expected a contiguous tensor",
    ),
    (
        {"out": query(ROWS, HEADS, 512)},
        ValueError,
        "out: expected shape [2, 2, 4, 512], got [4, 4, 512]",
    ),
    (
        {"out": zeros(BATCH, Q_LEN, HEADS, 512, dtype=torch.float32)},
        ValueError,
        "out: expected bfloat16, got float32",
    ),
    ({"out": query().to("meta")}, ValueError, "out: expected a tensor on cpu, got one on meta"),
]

DECODE_ERRORS = [
    *[
        (form(**changes), error, sentence)
        for form in (token_sparse, hca_form)
        for changes, error, sentence in PLAIN_ERRORS
    ],
    (token_sparse(seq_lens=[1]), TypeError, "seq_lens: expected a torch.Tensor, got list"),
    (hca_form(hca_seq_lens=[1]), TypeError, "hca_seq_lens: expected a torch.Tensor, got list"),
    # Common to all forms.
    (token_sparse(query=[1]), TypeError, "query: expected a torch.Tensor, got list"),
    (
        token_sparse(swa_kv_cache=None),
        TypeError,
        "swa_kv_cache: expected a torch.Tensor, got NoneType",
    ),
    (
        token_sparse(query=query(BATCH, Q_LEN, HEADS, 576)),
        ValueError,
        "query: expected last dimension 512, got shape [2, 2, 4, 576]",
    ),
    (
        token_sparse(backend="cutlass"),
        ValueError,
        "backend: expected one of 'auto', 'trtllm-gen', 'cute-dsl', 'sparse', got 'cutlass'",
    ),
    (
        packed(bmm2_scale=zeros(1, dtype=BF16)),
        TypeError,
        "bmm2_scale: expected a float or a float32 tensor, got bfloat16",
    ),
    (token_sparse(bmm1_scale="1"), TypeError, "bmm1_scale: expected float, got str"),
    (
        packed(sinks=(zeros(HEADS), zeros(HEADS))),
        ValueError,
        "sinks: expected a tensor, or a list or tuple of exactly one, got 2 tensors",
    ),
    (
        token_sparse(out=query(BATCH, Q_LEN, 512, HEADS).mT),
        ValueError,
        "out: expected a contiguous last dimension, got strides [4096, 2048, 1, 4]",
    ),
    (
        token_sparse(lse=zeros(BATCH, HEADS, Q_LEN, dtype=torch.float32)),
        ValueError,
        "lse: expected shape [2, 2, 4], got [2, 4, 2]",
    ),
    (
        token_sparse(lse=zeros(BATCH, Q_LEN, HEADS, dtype=BF16)),
        ValueError,
        "lse: expected float32, got bfloat16",
    ),
    # Token-sparse.
    (
        token_sparse(
            sparse_indices=None, compressed_kv_cache=None, sparse_topk_lens=None, seq_lens=None
        ),
        ValueError,
        f"sparse_indices, compressed_kv_cache, sparse_topk_lens, seq_lens: {NEEDED}'trtllm-gen', "
        "got None",
    ),
    *[
        (token_sparse(**{name: None}), ValueError, f"{name}: {NEEDED}'trtllm-gen', got None")
        for name in ("sparse_indices", "compressed_kv_cache", "sparse_topk_lens", "seq_lens")
    ],
    (
        token_sparse(max_q_len=3),
        ValueError,
        "max_q_len: expected None or 2, the Q of the dense query, got 3",
    ),
    (
        varlen(query=query()),
        ValueError,
        "query: expected [sum_q, H, 512] with cum_seq_lens_q, got shape [2, 2, 4, 512]",
    ),
    (
        varlen(max_q_len=None),
        ValueError,
        "max_q_len: expected an int with cum_seq_lens_q, got None; reading it from the device "
        "would synchronize",
    ),
    (varlen(max_q_len=0), ValueError, "max_q_len: expected 1 or more, got 0"),
    (
        varlen(cum_seq_lens_q=[0, 1, ROWS]),
        TypeError,
        "cum_seq_lens_q: expected a torch.Tensor, got list",
    ),
    (
        varlen(cum_seq_lens_q=zeros(1)),
        ValueError,
        "cum_seq_lens_q: expected shape [B + 1] with B >= 1, got [1]",
    ),
    (
        varlen(cum_seq_lens_q=zeros(1, 3)),
        ValueError,
        "cum_seq_lens_q: expected shape [B + 1] with B >= 1, got [1, 3]",
    ),
    (
        varlen(cum_seq_lens_q=zeros(3, dtype=torch.int64)),
        ValueError,
        "cum_seq_lens_q: expected int32, got int64",
    ),
    (
        varlen(cum_seq_lens_q=zeros(3, device="meta")),
        ValueError,
        "cum_seq_lens_q: expected a tensor on cpu, got one on meta",
    ),
    (varlen(seq_lens=zeros(ROWS)), ValueError, "seq_lens: expected shape [2], got [4]"),
    *[
        (token_sparse(seq_lens=seq_lens), ValueError, f"seq_lens: expected {sentence}")
        for seq_lens, sentence in [
            (zeros(ROWS), "shape [2], got [4]"),
            (zeros(BATCH, 1), "shape [2], got [2, 1]"),
            (zeros(BATCH, dtype=torch.int64), "int32, got int64"),
            (zeros(BATCH, device="meta"), "a tensor on cpu, got one on meta"),
        ]
    ],
    (
        varlen(sparse_topk_lens=zeros(BATCH)),
        ValueError,
        "sparse_topk_lens: expected shape [4], got [2]",
    ),
    (varlen(out=query()), ValueError, "out: expected shape [4, 4, 512], got [2, 2, 4, 512]"),
    (
        token_sparse(sparse_indices=[0] * 192),
        TypeError,
        "sparse_indices: expected a torch.Tensor, got list",
    ),
    (
        token_sparse(sparse_indices=zeros(192)),
        ValueError,
        "sparse_indices: expected shape [4, W] or [2, 2, W], a row for each query, got [192]",
    ),
    (
        token_sparse(sparse_indices=zeros(BATCH, 192)),
        ValueError,
        "sparse_indices: expected shape [4, W] or [2, 2, W], a row for each query, got [2, 192]",
    ),
    (
        token_sparse(sparse_indices=zeros(ROWS, 127)),
        ValueError,
        "sparse_indices: expected 128 or more columns, got shape [4, 127]",
    ),
    *[
        (
            token_sparse(**argument),
            ValueError,
            f"{name}: {LEFT_OUT}'trtllm-gen'; hca_ arguments belong to backend='cute-dsl'",
        )
        for argument in [
            {"hca_swa_indices": zeros(ROWS, 128)},
            {"hca_compressed_block_tables": zeros(ROWS, 8)},
            {"hca_seq_lens": zeros(BATCH)},
            {"hca_is_causal": False},
            {"hca_use_persistent": True},
            {"hca_sparse_indices_format": "compressed-page-aligned"},
        ]
        for name in argument
    ],
    (
        token_sparse(swa_topk_lens=zeros(ROWS), extra_sparse_indices=zeros(ROWS, 8)),
        ValueError,
        f"swa_topk_lens, extra_sparse_indices: {LEFT_OUT}'trtllm-gen'; lengths and tables of "
        "single segments belong to backend='sparse'",
    ),
    (
        token_sparse(backend="auto", extra_sparse_topk_lens=zeros(ROWS)),
        ValueError,
        f"extra_sparse_topk_lens: {LEFT_OUT}'trtllm-gen'; lengths and tables of single segments "
        "belong to backend='sparse'",
    ),
    (
        token_sparse(hca_swa_indices=zeros(ROWS, 128), hca_is_causal=False),
        ValueError,
        f"hca_swa_indices, hca_is_causal: {LEFT_OUT}'trtllm-gen'; hca_ arguments belong to "
        "backend='cute-dsl'",
    ),
    # HCA.
    (
        hca_form(hca_is_causal=False),
        ValueError,
        "hca_is_causal: expected True, got False; the tables of the HCA form have one row for each "
        "query, causal by their lengths",
    ),
    (
        hca_form(cum_seq_lens_q=zeros(3), max_q_len=2),
        ValueError,
        f"cum_seq_lens_q, max_q_len: {LEFT_OUT}'cute-dsl'; it takes dense queries [B, Q, H, 512] "
        "only",
    ),
    (
        hca_form(max_q_len=2),
        ValueError,
        f"max_q_len: {LEFT_OUT}'cute-dsl'; it takes dense queries [B, Q, H, 512] only",
    ),
    *[
        (
            hca_form(**{name: table}),
            ValueError,
            f"{name}: {LEFT_OUT}'cute-dsl'; its compressed segment is hca_compressed_block_tables",
        )
        for name, table in [
            ("extra_sparse_indices", zeros(ROWS, 8)),
            ("extra_sparse_topk_lens", zeros(ROWS)),
        ]
    ],
    (
        hca_form(sparse_indices=zeros(ROWS, 192), seq_lens=zeros(BATCH)),
        ValueError,
        f"sparse_indices, seq_lens: {LEFT_OUT}'cute-dsl'; it takes hca_ tables, or "
        "hca_sparse_indices_format='compressed-page-aligned'",
    ),
    (
        hca_form(hca_swa_indices=None, swa_topk_lens=None),
        ValueError,
        f"swa_topk_lens, hca_swa_indices: {NEEDED}'cute-dsl', got None",
    ),
    *[
        (hca_form(**{name: None}), ValueError, f"{name}: {NEEDED}'cute-dsl', got None")
        for name in (
            "compressed_kv_cache",
            "sparse_topk_lens",
            "hca_compressed_block_tables",
            "hca_seq_lens",
        )
    ],
    *[
        (hca_form(hca_swa_indices=table), ValueError, f"hca_swa_indices: expected {sentence}")
        for table, sentence in [
            (zeros(ROWS, 64), "shape [4, 128], got [4, 64]"),
            (zeros(BATCH, 128), "shape [4, 128], got [2, 128]"),
            (zeros(BATCH, Q_LEN, 128), "shape [4, 128], got [2, 2, 128]"),
            (zeros(ROWS, 128, dtype=torch.int64), "int32, got int64"),
            (zeros(ROWS, 128, device="meta"), "a tensor on cpu, got one on meta"),
        ]
    ],
    (
        hca_form(hca_compressed_block_tables=[0]),
        TypeError,
        "hca_compressed_block_tables: expected a torch.Tensor, got list",
    ),
    (
        hca_form(hca_compressed_block_tables=zeros(BATCH, Q_LEN, 8)),
        ValueError,
        "hca_compressed_block_tables: expected shape [4, pages] or [2, pages] with 1 or more "
        "pages, got [2, 2, 8]",
    ),
    (
        hca_form(hca_compressed_block_tables=zeros(BATCH + 1, 8)),
        ValueError,
        "hca_compressed_block_tables: expected shape [4, pages] or [2, pages] with 1 or more "
        "pages, got [3, 8]",
    ),
    (
        hca_form(hca_compressed_block_tables=zeros(ROWS, 0)),
        ValueError,
        "hca_compressed_block_tables: expected shape [4, pages] or [2, pages] with 1 or more "
        "pages, got [4, 0]",
    ),
    (
        hca_form(hca_seq_lens=zeros(ROWS)),
        ValueError,
        "hca_seq_lens: expected shape [2], got [4]",
    ),
    (
        hca_form(hca_seq_lens=zeros(BATCH, dtype=torch.int64)),
        ValueError,
        "hca_seq_lens: expected int32, got int64",
    ),
    (
        hca_form(hca_seq_lens=zeros(BATCH, device="meta")),
        ValueError,
        "hca_seq_lens: expected a tensor on cpu, got one on meta",
    ),
    *[
        (hca_form(swa_topk_lens=lengths), ValueError, f"swa_topk_lens: expected {sentence}")
        for lengths, sentence in [
            (zeros(BATCH), "shape [4], got [2]"),
            (zeros(BATCH, Q_LEN), "shape [4], got [2, 2]"),
            (zeros(ROWS, dtype=torch.int64), "int32, got int64"),
            (zeros(ROWS, device="meta"), "a tensor on cpu, got one on meta"),
        ]
    ],
    (
        hca_form(query=query().to(E4M3)),
        ValueError,
        "swa_kv_cache: expected float8_e4m3fn like query, got bfloat16; packed caches go with "
        "backend='sparse'",
    ),
    # HCA from combined tables.
    (
        page_aligned(hca_sparse_indices_format="page-aligned"),
        ValueError,
        "hca_sparse_indices_format: expected None or 'compressed-page-aligned', got 'page-aligned'",
    ),
    (
        page_aligned(hca_seq_lens=zeros(BATCH), swa_topk_lens=zeros(ROWS)),
        ValueError,
        f"hca_seq_lens, swa_topk_lens: {LEFT_OUT}'cute-dsl'; "
        "hca_sparse_indices_format='compressed-page-aligned' makes them",
    ),
    (
        page_aligned(seq_lens=None, compressed_kv_cache=None),
        ValueError,
        f"compressed_kv_cache, seq_lens: {NEEDED}'cute-dsl', got None; "
        "hca_sparse_indices_format='compressed-page-aligned' makes the tables from them",
    ),
    (
        page_aligned(hca_swa_indices=zeros(ROWS, 128), hca_compressed_block_tables=zeros(ROWS, 8)),
        ValueError,
        f"hca_swa_indices, hca_compressed_block_tables: {LEFT_OUT}'cute-dsl'; "
        "hca_sparse_indices_format='compressed-page-aligned' makes them",
    ),
    (
        page_aligned(sparse_indices=None, sparse_topk_lens=None),
        ValueError,
        f"sparse_indices, sparse_topk_lens: {NEEDED}'cute-dsl', got None; "
        "hca_sparse_indices_format='compressed-page-aligned' makes the tables from them",
    ),
    (
        page_aligned(query=query(ROWS, HEADS, 512)),
        ValueError,
        f"query: expected [B, Q, H, 512], got shape [4, 4, 512]{DENSE_HINT}",
    ),
    (page_aligned(seq_lens=zeros(1)), ValueError, "seq_lens: expected shape [2], got [1]"),
    (
        page_aligned(seq_lens=zeros(BATCH, device="meta")),
        ValueError,
        "seq_lens: expected a tensor on cpu, got one on meta",
    ),
    (
        page_aligned(swa_kv_cache=zeros(6, 32, 512, dtype=BF16, device="meta")),
        ValueError,
        "swa_kv_cache: expected a tensor on cpu like sparse_indices, got one on meta",
    ),
    (
        page_aligned(),
        ValueError,
        "sparse_topk_lens[1]: expected 129, 128 + (seq_len - q_len + i + 1) // 128, got 128",
    ),
    # Packed.
    (
        packed(sparse_indices=None, swa_topk_lens=None),
        ValueError,
        f"sparse_indices, swa_topk_lens: {NEEDED}'sparse', got None",
    ),
    (
        packed(extra_sparse_topk_lens=None),
        ValueError,
        f"extra_sparse_topk_lens: {NEEDED}'sparse', got None; extra_sparse_indices and "
        "extra_sparse_topk_lens go together",
    ),
    (
        packed(compressed_kv_cache=None),
        ValueError,
        f"compressed_kv_cache: {NEEDED}'sparse', got None; extra_sparse_indices name slots of it",
    ),
    (
        packed(query=query(ROWS * HEADS, 512)),
        ValueError,
        "query: expected [B, Q, H, 512] or [T, H, 512], got shape [16, 512]",
    ),
    (
        packed(sparse_indices=zeros(Q_LEN, 1, 128)),
        ValueError,
        "sparse_indices: expected shape [4, W] or [2, 2, W], a row for each query, got [2, 1, 128]",
    ),
    (
        packed(extra_sparse_indices=zeros(ROWS, 0)),
        ValueError,
        "extra_sparse_indices: expected 1 or more columns, got shape [4, 0]",
    ),
    (
        packed(swa_topk_lens=zeros(BATCH)),
        ValueError,
        "swa_topk_lens: expected shape [4] or [2, 2], got [2]",
    ),
    (
        packed(extra_sparse_topk_lens=zeros(BATCH, 1)),
        ValueError,
        "extra_sparse_topk_lens: expected shape [4] or [2, 2], got [2, 1]",
    ),
    (
        packed(backend="auto", hca_seq_lens=zeros(BATCH)),
        ValueError,
        f"hca_seq_lens: {LEFT_OUT}'sparse'; hca_ arguments belong to backend='cute-dsl'",
    ),
    (
        packed(out=query(ROWS, HEADS, 512)),
        ValueError,
        "out: expected shape [2, 2, 4, 512], got [4, 4, 512]",
    ),
    # Sentences of the operator, in this function's names.
    (
        token_sparse(sparse_indices=zeros(ROWS, 192, dtype=torch.int64)),
        ValueError,
        "sparse_indices[..., :128]: expected int32, got int64",
    ),
    (
        hca_form(hca_compressed_block_tables=zeros(ROWS, 8, dtype=torch.int64)),
        ValueError,
        "hca_compressed_block_tables: expected int32, got int64",
    ),
    (
        packed(extra_sparse_topk_lens=zeros(ROWS, dtype=torch.int64)),
        ValueError,
        "extra_sparse_topk_lens: expected int32, got int64",
    ),
]

FLASH_MLA_ERRORS = [
    (flash_mla(q=None), TypeError, "q: expected a torch.Tensor, got NoneType"),
    (flash_mla(head_dim_v=576), ValueError, "head_dim_v: expected 512, got 576"),
    (
        flash_mla(tile_scheduler_metadata=zeros(4)),
        ValueError,
        "tile_scheduler_metadata: expected None or a FlashMLASchedMeta, got Tensor",
    ),
    (flash_mla(num_splits=zeros(4)), ValueError, "num_splits: expected None, got Tensor"),
    (
        flash_mla(indices=None),
        ValueError,
        "indices: expected a tensor, got None; dense attention is not part of this package",
    ),
    (flash_mla(causal=True), ValueError, "causal: expected False with indices, got True"),
    (
        flash_mla(is_fp8_kvcache=False),
        ValueError,
        "is_fp8_kvcache: expected True with indices, got False",
    ),
    (
        flash_mla(q=query(BATCH, Q_LEN, HEADS, 576)),
        ValueError,
        "q: expected [b, s, h, 512], got shape [2, 2, 4, 576]",
    ),
    (
        flash_mla(k_cache=zeros(6, 32, 1, 656, dtype=UINT8)),
        ValueError,
        "k_cache: expected [blocks, page_size, 1, 584], got shape [6, 32, 1, 656]",
    ),
    (
        flash_mla(extra_k_cache=zeros(6, 32, 584, dtype=UINT8)),
        ValueError,
        "extra_k_cache: expected [blocks, page_size, 1, 584], got shape [6, 32, 584]",
    ),
    (
        flash_mla(indices=zeros(ROWS, 128)),
        ValueError,
        "indices: expected shape [2, 2, topk] with topk >= 1, got [4, 128]",
    ),
    (
        flash_mla(topk_length=zeros(ROWS)),
        ValueError,
        "topk_length: expected shape [2] or [2, 2], got [4]",
    ),
    (
        flash_mla(extra_indices_in_kvcache=None),
        ValueError,
        "extra_indices_in_kvcache: expected a tensor with extra_k_cache, got None",
    ),
    (
        flash_mla(extra_k_cache=None),
        ValueError,
        "extra_indices_in_kvcache and extra_topk_length: expected None without extra_k_cache",
    ),
    (
        flash_mla(softmax_scale=zeros(1)),
        TypeError,
        "softmax_scale: expected a float or a float32 tensor, got int32",
    ),
    (
        flash_mla(lse=zeros(BATCH, Q_LEN, HEADS, dtype=torch.float32)),
        ValueError,
        "lse: expected shape [2, 4, 2], got [2, 2, 4]",
    ),
    (flash_mla(out=query(1)), ValueError, "out: expected shape [2, 2, 4, 512], got [1]"),
    (
        flash_mla(indices=zeros(BATCH, Q_LEN, 8).long()),
        ValueError,
        "indices: expected int32, got int64",
    ),
    (
        flash_mla(attn_sink=zeros(1, dtype=torch.float32)),
        ValueError,
        "attn_sink: expected [4], got shape [1]",
    ),
]

CONVERSION_ERRORS = [
    (conversion(seq_lens=[300]), TypeError, "seq_lens: expected a torch.Tensor, got list"),
    (
        conversion(swa_kv_cache=zeros(6, 32, 512, dtype=BF16, device="meta")),
        ValueError,
        "swa_kv_cache: expected a tensor on cpu like sparse_indices, got one on meta",
    ),
    (
        conversion(kv_layout="HDN"),
        ValueError,
        "kv_layout: expected 'HND' or 'NHD', got 'HDN'",
    ),
    (
        conversion(kv_layout="NHD"),
        ValueError,
        "swa_kv_cache: expected 4 dimensions [pages, page_size, 1, 512] for kv_layout='NHD', got "
        "shape [6, 32, 512]; a 3-D cache needs kv_layout='HND'",
    ),
    (
        conversion(swa_kv_cache=zeros(512, dtype=BF16)),
        ValueError,
        "swa_kv_cache: expected 3 or 4 dimensions, got shape [512]",
    ),
    (
        conversion(compressed_kv_cache=zeros(5, 2, 1, 512, dtype=BF16)),
        ValueError,
        "compressed_kv_cache: expected one KV head in dimension 1 for kv_layout='HND', got shape "
        "[5, 2, 1, 512]; does the other kv_layout fit?",
    ),
    (
        conversion(compressed_kv_cache=zeros(0, 2, 512, dtype=BF16)),
        ValueError,
        "compressed_kv_cache: expected 1 or more slots, got shape [0, 2, 512]",
    ),
    (conversion(q_len=0), ValueError, "q_len: expected 1 or more, got 0"),
    (conversion(seq_lens=zeros(1, 1)), ValueError, "seq_lens: expected shape [B], got [1, 1]"),
    (
        conversion(q_len=3),
        ValueError,
        "sparse_indices: expected shape [3, W], one row for each of the 3 queries of 1 requests, "
        "got [2, 132]",
    ),
    (
        conversion(sparse_indices=zeros(2, 100)),
        ValueError,
        "sparse_indices: expected 128 or more columns, got shape [2, 100]",
    ),
    (
        conversion(sparse_indices=zeros(2, 132, dtype=torch.int64)),
        ValueError,
        "sparse_indices: expected int32, got int64",
    ),
    (
        conversion(sparse_indices=zeros(264)),
        ValueError,
        "sparse_indices: expected shape [2, W], one row for each of the 2 queries of 1 requests, "
        "got [264]",
    ),
    (
        conversion(seq_lens=zeros(1, dtype=torch.int64)),
        ValueError,
        "seq_lens: expected int32, got int64",
    ),
    (
        conversion(sparse_topk_lens=zeros(2, dtype=torch.int64)),
        ValueError,
        "sparse_topk_lens: expected int32, got int64",
    ),
    (
        conversion(sparse_topk_lens=zeros(1)),
        ValueError,
        "sparse_topk_lens: expected shape [2], got [1]",
    ),
    (
        conversion(seq_lens=zeros(1) + 1),
        ValueError,
        "seq_lens[0]: expected at least q_len = 2 so that each query sees itself, got 1",
    ),
    (
        with_value("sparse_topk_lens", 1, 131),
        ValueError,
        "sparse_topk_lens[1]: expected 130, 128 + (seq_len - q_len + i + 1) // 128, got 131",
    ),
    (
        conversion(sparse_indices=zeros(2, 129)),
        ValueError,
        "sparse_indices: expected at least 130 columns for row 0, as seq_lens asks, got 129",
    ),
    (
        with_value("sparse_indices", (1, 5), 192),
        ValueError,
        "sparse_indices[1, 5]: expected a slot of swa_kv_cache in [0, 192), got 192",
    ),
    (
        with_value("sparse_indices", (1, 128), 3),
        ValueError,
        "sparse_indices[1, 128]: expected the first slot of a page, a multiple of 2 in [0, 10), "
        "got 3",
    ),
    (
        with_value("sparse_indices", (0, 128), 10),
        ValueError,
        "sparse_indices[0, 128]: expected the first slot of a page, a multiple of 2 in [0, 10), "
        "got 10",
    ),
    (
        with_value("sparse_indices", (1, 129), 3),
        ValueError,
        "sparse_indices[1, 129]: expected 1, the next slot of its page, got 3",
    ),
]


def raises(function, arguments, error, sentence):
    with pytest.raises(error) as caught:
        function(**arguments)
    assert caught.type is error
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("arguments", "error", "sentence"), DECODE_ERRORS)
def test_decode(arguments, error, sentence):
    # Results of the right shape, unless the case brings its own.
    results = {
        "out": torch.full((BATCH, Q_LEN, HEADS, 512), UNTOUCHED, dtype=BF16),
        "lse": torch.full((BATCH, Q_LEN, HEADS), UNTOUCHED),
    }
    if arguments["backend"] == "trtllm-gen" and "cum_seq_lens_q" in arguments:
        results = {name: tensor.flatten(0, 1) for name, tensor in results.items()}
    raises(dsv4.trtllm_batch_decode_sparse_mla_dsv4, results | arguments, error, sentence)
    assert all((tensor == UNTOUCHED).all() for tensor in results.values())


@pytest.mark.parametrize(("arguments", "error", "sentence"), FLASH_MLA_ERRORS)
def test_flash_mla(arguments, error, sentence):
    results = {
        "out": torch.full((BATCH, Q_LEN, HEADS, 512), UNTOUCHED, dtype=BF16),
        "lse": torch.full((BATCH, HEADS, Q_LEN), UNTOUCHED),
    }
    raises(dsv4.flash_mla_with_kvcache, results | arguments, error, sentence)
    assert all((tensor == UNTOUCHED).all() for tensor in results.values())


@pytest.mark.parametrize(("arguments", "error", "sentence"), CONVERSION_ERRORS)
def test_conversion(arguments, error, sentence):
    raises(
        dsv4.convert_compressed_page_aligned_sparse_indices_to_hca_metadata,
        arguments,
        error,
        sentence,
    )


@pytest.mark.parametrize("make", [token_sparse, varlen, hca_form, packed])
def test_unchanged_arguments_are_right(make):
    """Else a case above might fail for another reason than the one it shows."""
    arguments = make()
    out = dsv4.trtllm_batch_decode_sparse_mla_dsv4(**arguments)
    assert out.shape == arguments["query"].shape


def test_unchanged_flash_mla_and_conversion_arguments_are_right():
    out, lse = dsv4.flash_mla_with_kvcache(**flash_mla())
    assert out.shape == (BATCH, Q_LEN, HEADS, 512)
    assert lse.shape == (BATCH, HEADS, Q_LEN)
    dsv4.convert_compressed_page_aligned_sparse_indices_to_hca_metadata(**conversion())


def test_first_bad_position_is_found_beyond_the_first_chunk(monkeypatch):
    monkeypatch.setattr(hca, "_ELEMENTS_PER_CHUNK", 1)
    raises(
        dsv4.convert_compressed_page_aligned_sparse_indices_to_hca_metadata,
        with_value("sparse_indices", (1, 129), -1),
        ValueError,
        "sparse_indices[1, 129]: expected 1, the next slot of its page, got -1",
    )


def test_conversion_is_refused_during_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    raises(
        hca._refuse_capture,
        {"device": torch.device("cuda")},
        RuntimeError,
        "convert_compressed_page_aligned_sparse_indices_to_hca_metadata: expected no CUDA graph "
        "capture, got one in progress, and it reads values on the host; call dsv4.hca_metadata, or "
        "convert before the capture",
    )


@pytest.mark.parametrize(
    ("make", "changes", "sentence"),
    [
        (
            token_sparse,
            {"sparse_topk_lens": 192, "sparse_indices": {(1, 130): 80}},
            "sparse_indices[..., 128:][1, 2]: expected -1 or a slot in [0, 80), got 80",
        ),
        (
            token_sparse,
            {"sparse_indices": {(1, 5): 192}},
            "sparse_indices[..., :128][1, 5]: expected -1 or a slot in [0, 192), got 192",
        ),
        (
            token_sparse,
            {"sparse_topk_lens": {0: 193}},
            "sparse_topk_lens[0]: expected 128 to 192, got 193",
        ),
        (
            token_sparse,
            {"sparse_topk_lens": {1: 127}},
            "sparse_topk_lens[1]: expected 128 to 192, got 127",
        ),
        (
            token_sparse,
            {"seq_lens": {1: 1}},
            "seq_lens[1]: expected at least the number of the request's queries, got 1",
        ),
        (
            varlen,
            {"seq_lens": {1: 2}},
            "seq_lens[1]: expected at least the number of the request's queries, got 2",
        ),
        (
            hca_form,
            {"hca_swa_indices": {(1, 5): 192}},
            "hca_swa_indices[1, 5]: expected -1 or a slot in [0, 192), got 192",
        ),
        (
            hca_form,
            {"sparse_topk_lens": 160, "hca_compressed_block_tables": {(1, 1): 5}},
            "hca_compressed_block_tables[1, 1]: expected -1 or a page in [0, 5), got 5",
        ),
        (
            hca_form,
            {"sparse_topk_lens": {1: 257}},
            "sparse_topk_lens[1]: expected 128 to 256, got 257",
        ),
        (
            hca_form,
            {"sparse_topk_lens": {1: 127}},
            "sparse_topk_lens[1]: expected 128 to 256, got 127",
        ),
        (
            hca_form,
            {"sparse_topk_lens": 160, "hca_seq_lens": {1: 159}},
            "hca_seq_lens[1]: expected at least the sparse_topk_lens of its rows, 160, got 159",
        ),
        (hca_form, {"swa_topk_lens": {1: 129}}, "swa_topk_lens[1]: expected 0 to 128, got 129"),
        (hca_form, {"swa_topk_lens": {1: -1}}, "swa_topk_lens[1]: expected 0 to 128, got -1"),
    ],
)
def test_values_are_named_as_the_caller_names_them(monkeypatch, make, changes, sentence):
    """`changes`: of a tensor, one value for all, or values at positions."""
    monkeypatch.setenv("DSV4_VALIDATE_INPUTS", "1")
    arguments = make()
    for name, values in changes.items():
        for position, value in values.items() if isinstance(values, dict) else [(..., values)]:
            arguments[name][position] = value
    raises(dsv4.trtllm_batch_decode_sparse_mla_dsv4, arguments, ValueError, sentence)


@pytest.mark.parametrize("make", [token_sparse, varlen, hca_form])
def test_tensors_on_two_devices(gpu, make):
    arguments = make(
        sinks=zeros(HEADS, dtype=torch.float32), workspace_buffer=zeros(64, dtype=UINT8),
        bmm1_scale=zeros(1, dtype=torch.float32), bmm2_scale=zeros(1, dtype=torch.float32),
        out=torch.empty_like(make()["query"]),
    )  # fmt: skip
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    on_gpu = {name: tensor.to(gpu.device) for name, tensor in tensors.items()}
    for name in tensors.keys() - {"query"}:
        with pytest.raises(ValueError, match=rf"^{name}.*: expected .*cuda:0.*, got .*cpu$"):
            dsv4.trtllm_batch_decode_sparse_mla_dsv4(**arguments | on_gpu | {name: tensors[name]})


def cache_error(function, sentence, *args, error=ValueError, **kwargs):
    return pytest.param(function, args, kwargs, error, sentence, id=sentence[:60])


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "error", "sentence"),
    [
        cache_error(
            dsv4.empty_kv_cache,
            "format: expected one of packed, bf16, e4m3, got 'fp8'",
            2,
            64,
            format="fp8",
        ),
        cache_error(dsv4.empty_kv_cache, "num_pages: expected 0 or more, got -1", -1, 64),
        cache_error(dsv4.empty_kv_cache, "page_size: expected 1 or more, got 0", 2, 0),
        cache_error(
            dsv4.empty_kv_cache,
            "page_stride_bytes: expected a multiple of 1 of at least 37376, got 36864",
            2,
            64,
            page_stride_bytes=36864,
        ),
        cache_error(
            dsv4.empty_kv_cache,
            "page_stride_bytes: expected a multiple of 2 of at least 2048, got 2049",
            2,
            2,
            format="bf16",
            page_stride_bytes=2049,
        ),
        cache_error(
            dsv4.pack_kv_cache,
            "page_stride_bytes: expected 0 together with out, got 1168; the stride is that of out",
            zeros(1, 2, 512, dtype=BF16),
            page_stride_bytes=1168,
            out=zeros(1, 2, 584, dtype=UINT8),
        ),
        cache_error(
            dsv4.append_kv_cache,
            "scale: expected a float or a float32 tensor, got float64",
            zeros(1, 512, dtype=BF16),
            zeros(2, 8, 512, dtype=E4M3),
            zeros(1),
            scale=zeros(1, dtype=torch.float64),
            error=TypeError,
        ),
        cache_error(
            dsv4.merge_states,
            "outs: expected 1 or more partial results, got an empty sequence",
            [],
            [],
        ),
        cache_error(
            dsv4.merge_states,
            "lses[1]: expected shape [3, 4] like lses[0], got [4, 4]",
            zeros(2, 3, 4, 512, dtype=BF16),
            [zeros(3, 4, dtype=torch.float32), zeros(4, 4, dtype=torch.float32)],
        ),
    ],
)
def test_caches_and_merging(function, args, kwargs, error, sentence):
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    assert caught.type is error
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "sentence"),
    [
        ("sparse_mla_decode", (query(4, 512), query(), zeros(1, 1)), {}, "query: expected 3 or 4"),
        (
            "sparse_mla_decode",
            (query(4, 4, 576), query(), zeros(4, 1)),
            {},
            "query: expected last dimension 512, got 576",
        ),
        (
            "sparse_mla_decode.out",
            (query(), query(), zeros(4, 1)),
            {"out": query(4, 4, 512)},
            "out: expected shape [2, 2, 4, 512], got [4, 4, 512]",
        ),
        (
            "merge_states",
            (query(2, 3, 4, 512), zeros(2, 4, dtype=torch.float32)),
            {},
            "lses: expected shape [2, 3, 4], got [2, 4]",
        ),
        ("pack_kv_cache", (query(8, 512),), {}, "kv: expected 3 dimensions, got 2"),
        (
            "pack_kv_cache.out",
            (query(2, 8, 512),),
            {"out": zeros(2, 8, 512, dtype=UINT8)},
            "out: expected shape [2, 8, 584], got [2, 8, 512]",
        ),
        (
            "append_kv_cache",
            (query(2, 512), zeros(2, 8, 584, dtype=UINT8), zeros(3)),
            {},
            "slot_mapping: expected shape [2], got [3]",
        ),
        (
            "hca_metadata",
            (zeros(2, 1, 128), zeros(2)),
            {"q_len": 1, "swa_slots": 8, "page_size": 2, "num_pages": 2},
            "sparse_indices: expected 2 dimensions, got 3",
        ),
    ],
)
def test_fake_kernels(operator, args, kwargs, sentence):
    """What torch.compile and torch.export say while they trace."""
    name, _, overload = operator.partition(".")
    function = getattr(getattr(torch.ops.dsv4, name), overload or "default")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [
            mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in args
        ]
        fake_kwargs = {
            key: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for key, value in kwargs.items()
        }
        with pytest.raises(RuntimeError, match=re.escape(sentence)):
            function(*fake, **fake_kwargs)


@pytest.mark.parametrize("error", [ValueError, TypeError, RuntimeError])
def test_operator_errors_become_the_type_they_name(error):
    def operator():
        raise RuntimeError(f"dsv4 {error.__name__}: swa_lens: expected int32\nmore of torch")

    with pytest.raises(error) as caught:
        _errors.call(operator, names={"swa_lens": "swa_topk_lens"})
    assert caught.type is error
    assert str(caught.value) == "swa_topk_lens: expected int32"
    assert caught.value.__suppress_context__


def test_foreign_errors_pass_unchanged():
    foreign = RuntimeError("CUDA out of memory")

    def operator():
        raise foreign

    with pytest.raises(RuntimeError) as caught:
        _errors.call(operator)
    assert caught.value is foreign


@pytest.fixture
def unloaded(monkeypatch, tmp_path):
    monkeypatch.setattr(_library, "_loaded", False)
    monkeypatch.setattr(_library, "TORCH_LIBRARY", tmp_path / "libdsv4_torch.so")
    monkeypatch.setattr(_library, "VERSION_HEADER", tmp_path / "version.h")
    return tmp_path


def test_absent_library(unloaded, capsys):
    raises(
        dsv4.build_info,
        {},
        ImportError,
        f"dsv4: the native library {unloaded / 'libdsv4_torch.so'} does not exist. Install a "
        "wheel, or build it from the source checkout with `pip install -e .`",
    )
    assert __main__.main(["info"]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_library_that_does_not_load(unloaded):
    (unloaded / "libdsv4_torch.so").write_bytes(b"no library")
    with pytest.raises(ImportError) as caught:
        _library.load()
    assert re.fullmatch(
        rf"dsv4: torch {re.escape(torch.__version__)} cannot load .*libdsv4_torch\.so: .*\. "
        "Rebuild it against this torch, or install a wheel made for it",
        str(caught.value),
    )


def test_absent_version(unloaded):
    header = unloaded / "version.h"
    raises(
        _library.version,
        {},
        ImportError,
        f"dsv4: {header} does not exist. Install a wheel, or build the source checkout with "
        "`pip install -e .`",
    )
    header.write_text("#pragma once\n")
    raises(_library.version, {}, ImportError, f"dsv4: {header} defines no DSV4_VERSION")


def test_command_line(capsys):
    assert __main__.main(["info"]) == 0
    assert capsys.readouterr().out == dsv4.report() + "\n"
    with pytest.raises(SystemExit) as caught:
        __main__.main(["fly"])
    assert caught.value.code == 2
