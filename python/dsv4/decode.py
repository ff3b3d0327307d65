"""The decode, with FlashInfer's arguments.

    trtllm_batch_decode_sparse_mla_dsv4
      -> which form the tensors are in             _choose_backend
      -> that form's checks and segments           _token_sparse | _hca | _packed
      -> torch.ops.dsv4.sparse_mla_decode.out

Checked here is what the operator cannot know: which argument is missing, in conflict or of the
wrong shape by the names this function gives them. Facts of a single tensor (heads, dtypes, strides,
devices) are checked once, by the operator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ._errors import (
    call,
    check_is_tensor,
    check_result,
    check_tensor,
    dtype_text,
    split_scale,
    tensor_text,
)
from ._library import operators
from .hca import convert_compressed_page_aligned_sparse_indices_to_hca_metadata
from .kv_cache import HEAD_DIM, WINDOW, is_packed

_BACKENDS = ("auto", "trtllm-gen", "cute-dsl", "sparse")
_PAGE_ALIGNED = "compressed-page-aligned"

# What a caller of each backend calls the operator's arguments.
_COMMON_NAMES = {
    "window.pool": "swa_kv_cache",
    "compressed.pool": "compressed_kv_cache",
    "workspace": "workspace_buffer",
    "bmm1_scale_tensor": "bmm1_scale",
    "bmm2_scale_tensor": "bmm2_scale",
}
_NAMES: Mapping[str, Mapping[str, str]] = {
    "trtllm-gen": {
        **_COMMON_NAMES,
        "swa_indices": f"sparse_indices[..., :{WINDOW}]",
        "swa_lens": "window lengths by seq_lens",
        "compressed_indices": f"sparse_indices[..., {WINDOW}:]",
        "compressed_lens": "sparse_topk_lens",
    },
    "cute-dsl": {
        **_COMMON_NAMES,
        "swa_indices": "hca_swa_indices",
        "swa_lens": "swa_topk_lens",
        "compressed_indices": "hca_compressed_block_tables",
        "compressed_lens": "sparse_topk_lens",
    },
    "sparse": {
        **_COMMON_NAMES,
        "swa_indices": "sparse_indices",
        "swa_lens": "swa_topk_lens",
        "compressed_indices": "extra_sparse_indices",
        "compressed_lens": "extra_sparse_topk_lens",
    },
}


class _Slots(NamedTuple):
    """Which slots each query row attends to, as the operator takes it."""

    swa_indices: Tensor
    swa_lens: Tensor | None
    compressed_kv_cache: Tensor | None
    compressed_indices: Tensor | None
    compressed_lens: Tensor | None
    seq_lens: Tensor | None = None
    cum_seq_lens_q: Tensor | None = None
    page_table: bool = False
    compressed_lens_offset: int = 0


def trtllm_batch_decode_sparse_mla_dsv4(
    query: Tensor,
    swa_kv_cache: Tensor,
    workspace_buffer: Tensor | None,
    sparse_indices: Tensor | None = None,
    compressed_kv_cache: Tensor | None = None,
    sparse_topk_lens: Tensor | None = None,
    seq_lens: Tensor | None = None,
    out: Tensor | None = None,
    bmm1_scale: float | Tensor = 1.0,
    bmm2_scale: float | Tensor = 1.0,
    sinks: Tensor | Sequence[Tensor] | None = None,
    kv_layout: str = "HND",
    cum_seq_lens_q: Tensor | None = None,
    max_q_len: int | None = None,
    enable_pdl: bool | None = None,
    swa_topk_lens: Tensor | None = None,
    extra_sparse_indices: Tensor | None = None,
    extra_sparse_topk_lens: Tensor | None = None,
    backend: str = "auto",
    hca_swa_indices: Tensor | None = None,
    hca_compressed_block_tables: Tensor | None = None,
    hca_seq_lens: Tensor | None = None,
    hca_is_causal: bool = True,
    hca_use_persistent: bool = False,
    hca_sparse_indices_format: str | None = None,
    *,
    lse: Tensor | None = None,
    return_lse: bool = False,
    lse_base: str = "e",
    sink_mode: str = "apply",
) -> Tensor | tuple[Tensor, Tensor]:
    """Decodes DeepSeek-V4 sparse MLA: each query row attends to the slots that its tables name.

        s_j = bmm1_scale * <query, key_j>           over the valid slots j of both segments
        out = bmm2_scale * sum_j exp(s_j) key_j / (sum_j exp(s_j) + exp(sink))
        lse = ln(sum_j exp(s_j))

    Parameter list and behaviour follow `flashinfer.mla.trtllm_batch_decode_sparse_mla_dsv4`; the
    keyword-only arguments at the end are this package's. Every backend runs on every device that
    the build has an engine for, with any number of heads and of query rows, any table width and any
    page size; zero rows give an empty result.

    A row has a window segment (slots of `swa_kv_cache`) and a compressed segment (slots of
    `compressed_kv_cache`). A slot number is page * page_size + offset. A table entry is a hole,
    which contributes nothing and whose bytes are never read, if its column is not below the row's
    length or if it is negative or past the end of the pool. Lengths are clamped to the table. A row
    without any valid slot gives out = 0 and lse = -inf, with or without sinks.

    The three forms
    ---------------
    backend="trtllm-gen", token-sparse. Required: sparse_indices, compressed_kv_cache,
        sparse_topk_lens, seq_lens.
        query             [B, Q, H, 512], or [sum_q, H, 512] with cum_seq_lens_q and max_q_len
        caches            512 wide, of the query's dtype
        sparse_indices    [rows, W] or [B, Q, W], W >= 128: columns 0..127 name window slots, the
                          others compressed slots
        sparse_topk_lens  [rows]: 128 + number of compressed slots that count
        seq_lens          [B]: of the window columns, the first min(128, seq_len - q_len + i + 1)
                          count for query i of its request
    backend="cute-dsl", HCA: window as slots, compressed segment as pages. Required:
        compressed_kv_cache, sparse_topk_lens, swa_topk_lens and the three hca_ tensors.
        query                        [B, Q, H, 512]
        caches                       512 wide, of the query's dtype
        hca_swa_indices              [rows, 128] window slots; swa_topk_lens [rows], 0..128 count
        hca_compressed_block_tables  [rows, pages] page numbers of compressed_kv_cache; or
                                     [B, pages], one table for the rows of a request (below)
        sparse_topk_lens             [rows]: 128 + number of compressed slots that count
        hca_seq_lens                 [B]: 128 + backing compressed slots. A schedule hint that is
                                     checked for shape and never changes a result
        With hca_sparse_indices_format="compressed-page-aligned" the tables are made from
        sparse_indices, sparse_topk_lens and seq_lens by
        `convert_compressed_page_aligned_sparse_indices_to_hca_metadata`: it reads values back to
        the host, so this one mode is neither graph-safe nor fit for a decode loop.
    backend="sparse", packed. Required: sparse_indices, swa_topk_lens.
        query           [B, Q, H, 512] or [T, H, 512], bf16
        caches          packed (dsv4.kv_cache); plain bf16 and e4m3 caches work too
        sparse_indices  [rows, W1] or [B, Q, W1] window slots; swa_topk_lens [rows] or [B, Q]
        extra_sparse_indices, extra_sparse_topk_lens   likewise for compressed_kv_cache; both or
                                                       none
        sparse_topk_lens, seq_lens, cum_seq_lens_q and max_q_len are accepted and not used.
    backend="auto": packed for a packed cache, HCA if an hca_ tensor or hca_sparse_indices_format is
        given, packed's tables on plain caches if swa_topk_lens or an extra_ tensor is given without
        sparse_topk_lens and seq_lens, else token-sparse.

    rows is B * Q, or the first dimension of a 3-D query. Tables and lengths are int32.

    Several rows of a request (MTP, speculative decoding) with one compressed table: a GPU reads a
    key once for up to 8 rows whose heads fit into one tile of its tensor cores. Where the table
    says so, as [B, pages], or as [B, Q, W] expanded over Q (stride 0), at no price; in the HCA form
    with [rows, pages] after a comparison of the entries that count, for up to 4 rows: where they
    differ, the rows are decoded once more, each alone. Lengths and windows stay each row's own.
    `dsv4.workspace_size` wants to know (table_rows).

    Parameters
    ----------
    query                bf16 or e4m3. As for every tensor here: any strides, last dimension dense
    swa_kv_cache, compressed_kv_cache
                         in the shapes that dsv4.kv_cache lists. The page stride is the tensor's own
    workspace_buffer     scratch of any dtype and content, contiguous; nothing is kept in it between
                         calls. `dsv4.workspace_size` says how many bytes are best; a smaller one,
                         or None, gives right results with less parallelism
    out                  bf16, the shape of query; allocated if None
    bmm1_scale           scale of the scores (softmax scale times per-tensor scales of query and
                         keys): a float, or one float32 on the device
    bmm2_scale           scale of out: a float, or one float32 on the device
    sinks                [H] float32 in the natural-log domain, not scaled; or a list or tuple of
                         exactly one such tensor. -inf has no effect, +inf gives out = 0
    kv_layout            "HND" [pages, 1, page_size, width] or "NHD" [pages, page_size, 1, width]. A
                         3-D cache of 512 columns goes with "HND" in the token-sparse and HCA forms
    cum_seq_lens_q       [B + 1] first query row of each request; a request may be empty
    max_q_len            longest request, required with cum_seq_lens_q; else None or Q
    enable_pdl           programmatic dependent launch where the GPU has it; None: yes. No effect on
                         results
    hca_is_causal        must be True
    hca_use_persistent   HCA form only. True: never more blocks than the GPU runs at a time, each of
                         which goes from row to row. False: the library chooses; where tables are
                         wide and rows not split, each row gets a block of its own, which takes
                         less time where lengths differ and a little more where they do not. Either
                         way any number of rows, and the same bits
    lse                  float32, the shape of query without its last dimension, any strides;
                         written if given, allocated if None and return_lse
    return_lse           return (out, lse) instead of out
    lse_base             "e" or "2": natural or binary logarithm in lse. The sink is never part of
                         it
    sink_mode            "apply", or "defer": leave the sinks out, for `dsv4.merge_states` to apply
                         once to the merged parts

    Returns out, or (out, lse) with return_lse.

    Errors
    ------
    ValueError for an argument that is missing, in conflict, or of a wrong shape, dtype, device or
    value; TypeError for something that is no tensor and for a scale tensor that is not float32;
    RuntimeError if the build has no engine for the device (`python -m dsv4 info` says why). No
    result is touched then. Values on the device (indices, lengths) are checked only with
    DSV4_VALIDATE_INPUTS=1 in the environment, at the price of a synchronization. In a function
    under torch.compile, errors of the operator arrive as RuntimeError; a float scale is a constant
    of the compiled function there, so give one that changes as a tensor.

    Graph-safe: no synchronization, no read of device data on the host, no allocation but out and
    lse, launches that depend on shapes only; a captured CUDA graph replays with other values.
    """
    check_is_tensor(query, "query")
    check_is_tensor(swa_kv_cache, "swa_kv_cache")
    if query.shape[-1:] != (HEAD_DIM,):
        raise ValueError(f"query: expected last dimension {HEAD_DIM}, got {tensor_text(query)}")
    has_hca_tables = not (
        hca_swa_indices is None
        and hca_compressed_block_tables is None
        and hca_seq_lens is None
        and hca_sparse_indices_format is None
    )
    has_packed_tables = not (
        swa_topk_lens is None and extra_sparse_indices is None and extra_sparse_topk_lens is None
    )
    backend = _choose_backend(
        backend,
        swa_kv_cache,
        has_hca_tables,
        has_packed_tables and sparse_topk_lens is None and seq_lens is None,
    )

    if backend == "cute-dsl":
        if not hca_is_causal:
            raise ValueError(
                "hca_is_causal: expected True, got False; "
                "the tables of the HCA form have one row for each query, causal by their lengths"
            )
        _refuse_for_hca(cum_seq_lens_q, max_q_len, extra_sparse_indices, extra_sparse_topk_lens)
        slots = _hca(
            query,
            swa_kv_cache,
            compressed_kv_cache,
            sparse_indices,
            sparse_topk_lens,
            seq_lens,
            kv_layout,
            hca_sparse_indices_format,
            (hca_swa_indices, hca_compressed_block_tables, hca_seq_lens, swa_topk_lens),
        )
    elif has_hca_tables or hca_use_persistent or not hca_is_causal:
        raise _refused(
            backend,
            "hca_ arguments belong to backend='cute-dsl'",
            hca_swa_indices=hca_swa_indices,
            hca_compressed_block_tables=hca_compressed_block_tables,
            hca_seq_lens=hca_seq_lens,
            hca_is_causal=None if hca_is_causal else hca_is_causal,
            hca_use_persistent=hca_use_persistent or None,
            hca_sparse_indices_format=hca_sparse_indices_format,
        )
    elif backend == "sparse":
        slots = _packed(
            query,
            compressed_kv_cache,
            sparse_indices,
            swa_topk_lens,
            extra_sparse_indices,
            extra_sparse_topk_lens,
        )
        out = _with_dims_of_query(out, query)
    elif has_packed_tables:
        raise _refused(
            backend,
            "lengths and tables of single segments belong to backend='sparse'",
            swa_topk_lens=swa_topk_lens,
            extra_sparse_indices=extra_sparse_indices,
            extra_sparse_topk_lens=extra_sparse_topk_lens,
        )
    else:
        slots = _token_sparse(
            query,
            swa_kv_cache,
            compressed_kv_cache,
            sparse_indices,
            sparse_topk_lens,
            seq_lens,
            kv_layout,
            cum_seq_lens_q,
            max_q_len,
        )

    scale1, scale1_tensor = split_scale(bmm1_scale, "bmm1_scale")
    scale2, scale2_tensor = split_scale(bmm2_scale, "bmm2_scale")
    sinks = _single_sink(sinks)
    if out is None:
        # empty_like takes half the time of empty.
        out = torch.empty_like(query, dtype=torch.bfloat16, memory_format=torch.contiguous_format)
    else:
        check_result(out, "out", query.shape, torch.bfloat16, query.device)
    if lse is not None:
        check_tensor(lse, "lse", query.shape[:-1], torch.float32, query.device)
    elif return_lse:
        lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)

    # By position: torch takes 0.5 us for each argument given by name, 0.1 us by position.
    call(
        operators().sparse_mla_decode.out,
        query,
        swa_kv_cache,
        slots.swa_indices,
        slots.swa_lens,
        slots.compressed_kv_cache,
        slots.compressed_indices,
        slots.compressed_lens,
        slots.seq_lens,
        slots.cum_seq_lens_q,
        sinks,
        workspace_buffer,
        scale1,
        scale2,
        scale1_tensor,
        scale2_tensor,
        kv_layout,
        slots.page_table,
        slots.compressed_lens_offset,
        lse_base,
        sink_mode,
        False,  # lse_sink
        False,  # lse_empty_positive
        False,  # batch_invariant
        enable_pdl is None or enable_pdl,
        hca_use_persistent,
        names=_NAMES[backend],
        out=out,
        lse=lse,
    )
    return (out, lse) if return_lse else out


batch_decode_sparse_mla_dsv4 = trtllm_batch_decode_sparse_mla_dsv4


def _choose_backend(
    backend: str, swa_kv_cache: Tensor, has_hca_tables: bool, only_packed_tables: bool
) -> str:
    if backend not in _BACKENDS:
        raise ValueError(
            f"backend: expected one of {', '.join(map(repr, _BACKENDS))}, got {backend!r}"
        )
    if backend != "auto":
        return backend
    if is_packed(swa_kv_cache):
        return "sparse"
    if has_hca_tables:
        return "cute-dsl"
    return "sparse" if only_packed_tables else "trtllm-gen"


def _token_sparse(
    query: Tensor,
    swa_kv_cache: Tensor,
    compressed_kv_cache: Tensor | None,
    sparse_indices: Tensor | None,
    sparse_topk_lens: Tensor | None,
    seq_lens: Tensor | None,
    kv_layout: str,
    cum_seq_lens_q: Tensor | None,
    max_q_len: int | None,
) -> _Slots:
    if (
        sparse_indices is None
        or compressed_kv_cache is None
        or sparse_topk_lens is None
        or seq_lens is None
    ):
        raise _missing(
            "trtllm-gen",
            sparse_indices=sparse_indices,
            compressed_kv_cache=compressed_kv_cache,
            sparse_topk_lens=sparse_topk_lens,
            seq_lens=seq_lens,
        )
    if cum_seq_lens_q is None:
        _check_dense(query, max_q_len)
        batch, q_len, *_ = query.shape
        num_requests = batch
    else:
        num_requests = _check_varlen(query, cum_seq_lens_q, max_q_len)
        batch, q_len = query.shape[0], 1
    _check_plain_caches(query, swa_kv_cache, compressed_kv_cache, kv_layout)
    _check_table(sparse_indices, "sparse_indices", batch, q_len, min_width=WINDOW)
    check_tensor(sparse_topk_lens, "sparse_topk_lens", (batch * q_len,), torch.int32, query.device)
    check_tensor(seq_lens, "seq_lens", (num_requests,), torch.int32, query.device)

    width = sparse_indices.shape[-1]
    if width == WINDOW:
        return _Slots(sparse_indices, None, None, None, None, seq_lens, cum_seq_lens_q)
    window, compressed = sparse_indices.split_with_sizes((WINDOW, width - WINDOW), -1)
    return _Slots(
        swa_indices=window,
        swa_lens=None,
        compressed_kv_cache=compressed_kv_cache,
        compressed_indices=compressed,
        compressed_lens=sparse_topk_lens,
        seq_lens=seq_lens,
        cum_seq_lens_q=cum_seq_lens_q,
        compressed_lens_offset=WINDOW,
    )


def _refuse_for_hca(
    cum_seq_lens_q: Tensor | None,
    max_q_len: int | None,
    extra_sparse_indices: Tensor | None,
    extra_sparse_topk_lens: Tensor | None,
) -> None:
    if cum_seq_lens_q is not None or max_q_len is not None:
        raise _refused(
            "cute-dsl",
            "it takes dense queries [B, Q, H, 512] only",
            cum_seq_lens_q=cum_seq_lens_q,
            max_q_len=max_q_len,
        )
    if extra_sparse_indices is not None or extra_sparse_topk_lens is not None:
        raise _refused(
            "cute-dsl",
            "its compressed segment is hca_compressed_block_tables",
            extra_sparse_indices=extra_sparse_indices,
            extra_sparse_topk_lens=extra_sparse_topk_lens,
        )


def _hca(
    query: Tensor,
    swa_kv_cache: Tensor,
    compressed_kv_cache: Tensor | None,
    sparse_indices: Tensor | None,
    sparse_topk_lens: Tensor | None,
    seq_lens: Tensor | None,
    kv_layout: str,
    sparse_indices_format: str | None,
    tables: tuple[Tensor | None, ...],
) -> _Slots:
    if sparse_indices_format is not None:
        tables = _tables_from_page_aligned(
            query,
            swa_kv_cache,
            compressed_kv_cache,
            sparse_indices,
            sparse_topk_lens,
            seq_lens,
            kv_layout,
            sparse_indices_format,
            tables,
        )
    elif sparse_indices is not None or seq_lens is not None:
        raise _refused(
            "cute-dsl",
            f"it takes hca_ tables, or hca_sparse_indices_format={_PAGE_ALIGNED!r}",
            sparse_indices=sparse_indices,
            seq_lens=seq_lens,
        )
    hca_swa_indices, hca_compressed_block_tables, hca_seq_lens, swa_topk_lens = tables
    if (
        compressed_kv_cache is None
        or sparse_topk_lens is None
        or hca_swa_indices is None
        or hca_compressed_block_tables is None
        or hca_seq_lens is None
        or swa_topk_lens is None
    ):
        raise _missing(
            "cute-dsl",
            compressed_kv_cache=compressed_kv_cache,
            sparse_topk_lens=sparse_topk_lens,
            swa_topk_lens=swa_topk_lens,
            hca_swa_indices=hca_swa_indices,
            hca_compressed_block_tables=hca_compressed_block_tables,
            hca_seq_lens=hca_seq_lens,
        )
    _check_dense(query, None)
    batch, q_len, *_ = query.shape
    rows = batch * q_len
    _check_plain_caches(query, swa_kv_cache, compressed_kv_cache, kv_layout)
    check_tensor(hca_swa_indices, "hca_swa_indices", (rows, WINDOW), torch.int32, query.device)
    check_is_tensor(hca_compressed_block_tables, "hca_compressed_block_tables")
    shape = hca_compressed_block_tables.shape
    if len(shape) != 2 or shape[0] not in (rows, batch) or shape[1] < 1:
        or_shorter = "" if rows == batch else f" or [{batch}, pages]"
        raise ValueError(
            f"hca_compressed_block_tables: expected shape [{rows}, pages]{or_shorter} with 1 or "
            f"more pages, got {list(shape)}"
        )
    if shape[0] != rows:
        per_request = hca_compressed_block_tables.unsqueeze(1)
        hca_compressed_block_tables = per_request.expand(batch, q_len, -1)
    # The operator never sees hca_seq_lens: nothing in a result depends on it.
    check_tensor(hca_seq_lens, "hca_seq_lens", (batch,), torch.int32, query.device)
    check_tensor(sparse_topk_lens, "sparse_topk_lens", (rows,), torch.int32, query.device)
    check_tensor(swa_topk_lens, "swa_topk_lens", (rows,), torch.int32, query.device)
    if os.environ.get("DSV4_VALIDATE_INPUTS", "0") not in ("", "0") and rows > 0:
        _check_hca_seq_lens(hca_seq_lens, sparse_topk_lens)
    return _Slots(
        swa_indices=hca_swa_indices,
        swa_lens=swa_topk_lens,
        compressed_kv_cache=compressed_kv_cache,
        compressed_indices=hca_compressed_block_tables,
        compressed_lens=sparse_topk_lens,
        page_table=True,
        compressed_lens_offset=WINDOW,
    )


def _check_hca_seq_lens(hca_seq_lens: Tensor, sparse_topk_lens: Tensor) -> None:
    """A request may have more slots than its rows see, not fewer."""
    seen = sparse_topk_lens.view(hca_seq_lens.shape[0], -1).amax(1)
    wrong = (hca_seq_lens < seen).nonzero()
    if wrong.numel() > 0:
        request = int(wrong[0])
        raise ValueError(
            f"hca_seq_lens[{request}]: expected at least the sparse_topk_lens of its rows, "
            f"{int(seen[request])}, got {int(hca_seq_lens[request])}"
        )


def _packed(
    query: Tensor,
    compressed_kv_cache: Tensor | None,
    sparse_indices: Tensor | None,
    swa_topk_lens: Tensor | None,
    extra_sparse_indices: Tensor | None,
    extra_sparse_topk_lens: Tensor | None,
) -> _Slots:
    if sparse_indices is None or swa_topk_lens is None:
        raise _missing("sparse", sparse_indices=sparse_indices, swa_topk_lens=swa_topk_lens)
    if query.dim() not in (3, 4):
        raise ValueError(
            f"query: expected [B, Q, H, {HEAD_DIM}] or [T, H, {HEAD_DIM}], got {tensor_text(query)}"
        )
    batch = query.shape[0]
    q_len = query.shape[1] if query.dim() == 4 else 1
    _check_table(sparse_indices, "sparse_indices", batch, q_len)
    _check_row_lengths(swa_topk_lens, "swa_topk_lens", batch, q_len)
    if extra_sparse_indices is None and extra_sparse_topk_lens is None:
        return _Slots(sparse_indices, swa_topk_lens, None, None, None)
    if extra_sparse_indices is None or extra_sparse_topk_lens is None:
        raise _missing(
            "sparse",
            "extra_sparse_indices and extra_sparse_topk_lens go together",
            extra_sparse_indices=extra_sparse_indices,
            extra_sparse_topk_lens=extra_sparse_topk_lens,
        )
    if compressed_kv_cache is None:
        raise _missing(
            "sparse",
            "extra_sparse_indices name slots of it",
            compressed_kv_cache=compressed_kv_cache,
        )
    _check_table(extra_sparse_indices, "extra_sparse_indices", batch, q_len)
    _check_row_lengths(extra_sparse_topk_lens, "extra_sparse_topk_lens", batch, q_len)
    return _Slots(
        swa_indices=sparse_indices,
        swa_lens=swa_topk_lens,
        compressed_kv_cache=compressed_kv_cache,
        compressed_indices=extra_sparse_indices,
        compressed_lens=extra_sparse_topk_lens,
    )


def _tables_from_page_aligned(
    query: Tensor,
    swa_kv_cache: Tensor,
    compressed_kv_cache: Tensor | None,
    sparse_indices: Tensor | None,
    sparse_topk_lens: Tensor | None,
    seq_lens: Tensor | None,
    kv_layout: str,
    sparse_indices_format: str,
    tables: tuple[Tensor | None, ...],
) -> tuple[Tensor, ...]:
    if sparse_indices_format != _PAGE_ALIGNED:
        raise ValueError(
            f"hca_sparse_indices_format: expected None or {_PAGE_ALIGNED!r}, "
            f"got {sparse_indices_format!r}"
        )
    if any(table is not None for table in tables):
        names = ("hca_swa_indices", "hca_compressed_block_tables", "hca_seq_lens", "swa_topk_lens")
        raise _refused(
            "cute-dsl",
            f"hca_sparse_indices_format={_PAGE_ALIGNED!r} makes them",
            **dict(zip(names, tables, strict=True)),
        )
    if (
        compressed_kv_cache is None
        or sparse_indices is None
        or sparse_topk_lens is None
        or seq_lens is None
    ):
        raise _missing(
            "cute-dsl",
            f"hca_sparse_indices_format={_PAGE_ALIGNED!r} makes the tables from them",
            compressed_kv_cache=compressed_kv_cache,
            sparse_indices=sparse_indices,
            sparse_topk_lens=sparse_topk_lens,
            seq_lens=seq_lens,
        )
    _check_dense(query, None)
    check_tensor(seq_lens, "seq_lens", query.shape[:1], torch.int32, query.device)
    metadata = convert_compressed_page_aligned_sparse_indices_to_hca_metadata(
        sparse_indices,
        sparse_topk_lens,
        seq_lens,
        swa_kv_cache,
        compressed_kv_cache,
        q_len=query.shape[1],
        kv_layout=kv_layout,
    )
    return (
        metadata.hca_swa_indices,
        metadata.hca_compressed_block_tables,
        metadata.hca_seq_lens,
        metadata.swa_topk_lens,
    )


def _check_dense(query: Tensor, max_q_len: int | None) -> None:
    if query.dim() != 4:
        raise ValueError(
            f"query: expected [B, Q, H, {HEAD_DIM}], got {tensor_text(query)}; a query of 3 "
            "dimensions needs cum_seq_lens_q, or backend='sparse'"
        )
    if max_q_len is not None and max_q_len != query.shape[1]:
        raise ValueError(
            f"max_q_len: expected None or {query.shape[1]}, the Q of the dense query, "
            f"got {max_q_len}"
        )


def _check_varlen(query: Tensor, cum_seq_lens_q: Tensor, max_q_len: int | None) -> int:
    """The number of requests in [sum_q, H, 512]."""
    if query.dim() != 3:
        raise ValueError(
            f"query: expected [sum_q, H, {HEAD_DIM}] with cum_seq_lens_q, got {tensor_text(query)}"
        )
    check_is_tensor(cum_seq_lens_q, "cum_seq_lens_q")
    if cum_seq_lens_q.dim() != 1 or cum_seq_lens_q.shape[0] < 2:
        raise ValueError(
            f"cum_seq_lens_q: expected shape [B + 1] with B >= 1, got {list(cum_seq_lens_q.shape)}"
        )
    check_tensor(cum_seq_lens_q, "cum_seq_lens_q", cum_seq_lens_q.shape, torch.int32, query.device)
    if max_q_len is None:
        raise ValueError(
            "max_q_len: expected an int with cum_seq_lens_q, got None; "
            "reading it from the device would synchronize"
        )
    if max_q_len <= 0:
        raise ValueError(f"max_q_len: expected 1 or more, got {max_q_len}")
    return cum_seq_lens_q.shape[0] - 1


def _check_plain_caches(
    query: Tensor, swa_kv_cache: Tensor, compressed_kv_cache: Tensor, kv_layout: str
) -> None:
    if query.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        raise ValueError(
            f"query: expected bfloat16 or float8_e4m3fn, got {dtype_text(query.dtype)}"
        )
    for cache, name in (
        (swa_kv_cache, "swa_kv_cache"),
        (compressed_kv_cache, "compressed_kv_cache"),
    ):
        check_is_tensor(cache, name)
        if cache.dtype != query.dtype:
            raise ValueError(
                f"{name}: expected {dtype_text(query.dtype)} like query, "
                f"got {dtype_text(cache.dtype)}; packed caches go with backend='sparse'"
            )
        if cache.shape[-1:] != (HEAD_DIM,):
            raise ValueError(
                f"{name}: expected last dimension {HEAD_DIM}, got {tensor_text(cache)}"
            )
        if kv_layout == "NHD" and cache.dim() == 3:
            raise ValueError(
                f"{name}: expected [pages, page_size, 1, {HEAD_DIM}] with kv_layout='NHD', got "
                f"{tensor_text(cache)}; a cache of 3 dimensions goes with kv_layout='HND'"
            )


def _check_table(table: Tensor, name: str, batch: int, q_len: int, min_width: int = 1) -> None:
    """An index table is [rows, W] or [B, Q, W]."""
    check_is_tensor(table, name)
    shape = table.shape
    if shape[:-1] != (batch * q_len,) and shape[:-1] != (batch, q_len):
        raise ValueError(
            f"{name}: expected shape [{batch * q_len}, W] or [{batch}, {q_len}, W], a row for each "
            f"query, got {list(shape)}"
        )
    if shape[-1] < min_width:
        raise ValueError(f"{name}: expected {min_width} or more columns, got {tensor_text(table)}")


def _check_row_lengths(lengths: Tensor, name: str, batch: int, q_len: int) -> None:
    """Lengths of the packed form are [rows] or [B, Q]."""
    check_is_tensor(lengths, name)
    shape = lengths.shape
    if shape != (batch * q_len,) and shape != (batch, q_len):
        raise ValueError(
            f"{name}: expected shape [{batch * q_len}] or [{batch}, {q_len}], got {list(shape)}"
        )


def _single_sink(sinks: Tensor | Sequence[Tensor] | None) -> Tensor | None:
    if isinstance(sinks, (list, tuple)):
        if len(sinks) != 1:
            raise ValueError(
                "sinks: expected a tensor, or a list or tuple of exactly one, "
                f"got {len(sinks)} tensors"
            )
        return sinks[0]
    return sinks


def _with_dims_of_query(out: Tensor | None, query: Tensor) -> Tensor | None:
    """FlashInfer's packed form takes [T, 1, H, 512] for [T, H, 512], either way around."""
    if out is None or out.dim() == query.dim():
        return out
    if out.dim() == 4 and out.shape[1] == 1:
        return out.select(1, 0)
    if out.dim() == 3 and query.shape[1] == 1:
        return out.unsqueeze(1)
    return out


def _missing(backend: str, hint: str = "", **arguments: object) -> ValueError:
    return ValueError(
        f"{_names_where(arguments, given=False)}: expected a tensor with backend={backend!r}, "
        f"got None{hint and '; ' + hint}"
    )


def _refused(backend: str, hint: str, **arguments: object) -> ValueError:
    return ValueError(
        f"{_names_where(arguments, given=True)}: expected to be left out with "
        f"backend={backend!r}; {hint}"
    )


def _names_where(arguments: Mapping[str, object], *, given: bool) -> str:
    return ", ".join(name for name, value in arguments.items() if (value is not None) == given)
