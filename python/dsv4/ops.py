"""Loads `torch.ops.dsv4.*` and tells torch.compile and torch.export what each operator returns.

A fake kernel sees shapes only, perhaps symbolic ones, and no values. It refuses what would make its
own answer wrong; everything else is left to the operator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _library
from .kv_cache import HEAD_DIM, PACKED_TOKEN_BYTES, WINDOW, pool_shape

_library.load()


@torch.library.register_fake("dsv4::sparse_mla_decode")
def _(query: Tensor, swa_kv_cache: Tensor, swa_indices: Tensor, *args, **kwargs):
    torch._check(
        query.dim() in (3, 4), lambda: f"query: expected 3 or 4 dimensions, got {query.dim()}"
    )
    torch._check(
        query.shape[-1] == HEAD_DIM,
        lambda: f"query: expected last dimension {HEAD_DIM}, got {query.shape[-1]}",
    )
    out = query.new_empty(query.shape, dtype=torch.bfloat16)
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


@torch.library.register_fake("dsv4::sparse_mla_decode.out")
def _(query: Tensor, *args, out: Tensor, **kwargs) -> None:
    torch._check(
        out.shape == query.shape,
        lambda: f"out: expected shape {list(query.shape)}, got {list(out.shape)}",
    )


@torch.library.register_fake("dsv4::merge_states")
def _(outs: Tensor, lses: Tensor, **kwargs):
    torch._check(
        lses.shape == outs.shape[:-1],
        lambda: f"lses: expected shape {list(outs.shape[:-1])}, got {list(lses.shape)}",
    )
    return outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])


@torch.library.register_fake("dsv4::pack_kv_cache")
def _(kv: Tensor, *, page_stride_bytes: int = 0):
    torch._check(kv.dim() == 3, lambda: f"kv: expected 3 dimensions, got {kv.dim()}")
    pages, page_size, _ = kv.shape
    stride = page_size * PACKED_TOKEN_BYTES if page_stride_bytes == 0 else page_stride_bytes
    return kv.new_empty_strided(
        (pages, page_size, PACKED_TOKEN_BYTES), (stride, PACKED_TOKEN_BYTES, 1), dtype=torch.uint8
    )


@torch.library.register_fake("dsv4::pack_kv_cache.out")
def _(kv: Tensor, *, out: Tensor) -> None:
    torch._check(
        out.shape == (*kv.shape[:2], PACKED_TOKEN_BYTES),
        lambda: f"out: expected shape {[*kv.shape[:2], PACKED_TOKEN_BYTES]}, got {list(out.shape)}",
    )


@torch.library.register_fake("dsv4::unpack_kv_cache")
def _(kv_cache: Tensor, *, kv_layout: str = "HND"):
    pages, page_size = pool_shape(kv_cache, kv_layout, "kv_cache")
    return kv_cache.new_empty((pages, page_size, HEAD_DIM), dtype=torch.bfloat16)


@torch.library.register_fake("dsv4::append_kv_cache")
def _(kv: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **kwargs) -> None:
    torch._check(
        slot_mapping.shape == kv.shape[:1],
        lambda: (
            f"slot_mapping: expected shape {list(kv.shape[:1])}, got {list(slot_mapping.shape)}"
        ),
    )


@torch.library.register_fake("dsv4::hca_metadata")
def _(
    sparse_indices: Tensor,
    seq_lens: Tensor,
    *,
    q_len: int,
    swa_slots: int,
    page_size: int,
    num_pages: int,
):
    torch._check(
        sparse_indices.dim() == 2,
        lambda: f"sparse_indices: expected 2 dimensions, got {sparse_indices.dim()}",
    )
    rows, columns = sparse_indices.shape
    table_columns = torch.sym_max(1, (columns - WINDOW + page_size - 1) // page_size)
    return (
        sparse_indices.new_empty((rows, WINDOW)),
        sparse_indices.new_empty((rows, table_columns)),
        seq_lens.new_empty(seq_lens.shape),
        seq_lens.new_empty((rows,)),
    )
