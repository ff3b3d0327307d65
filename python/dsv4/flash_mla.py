"""FlashMLA's decode call for this model's cache format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._errors import call, check_is_tensor, check_result, check_tensor, split_scale, tensor_text
from ._library import operators
from .kv_cache import HEAD_DIM, PACKED_TOKEN_BYTES

_NAMES = {
    "query": "q",
    "window.pool": "k_cache",
    "compressed.pool": "extra_k_cache",
    "swa_kv_cache": "k_cache",
    "swa_indices": "indices",
    "swa_lens": "topk_length",
    "compressed_kv_cache": "extra_k_cache",
    "compressed_indices": "extra_indices_in_kvcache",
    "compressed_lens": "extra_topk_length",
    "sinks": "attn_sink",
    "bmm1_scale": "softmax_scale",
    "bmm1_scale_tensor": "softmax_scale",
    "workspace": "tile_scheduler_metadata.workspace",
}


@dataclass
class FlashMLASchedMeta:
    """Stands where FlashMLA keeps its schedule. This package plans from shapes alone, so there is
    nothing to compute, to reset or to keep in step with a call.

    workspace   scratch for the calls that get this object, any dtype, contiguous. None: the first
                call puts what `dsv4.workspace_size` asks for here, and later ones use it; larger
                calls work with it too, cut into fewer parts. Under torch.compile None stays None
    """

    workspace: Tensor | None = None


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """(FlashMLASchedMeta(), None), as in FlashMLA. Arguments are accepted and not used."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor | None,
    cache_seqlens: Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta | None,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Tensor | None = None,
    attn_sink: Tensor | None = None,
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    topk_length: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sparse decode over packed caches, with the arguments and conventions of FlashMLA.

    The parameter list follows `flash_mla.flash_mla_with_kvcache`; `out` and `lse` are this
    package's. Only what FlashMLA calls sparse decoding of the 512-wide model is here.

    q                        [b, s, h, 512] bf16, any h
    k_cache                  [blocks, P, 1, 584] uint8, int8 or e4m3, packed as dsv4.kv_cache draws;
                             any P, and the block stride is the tensor's own
    block_table, cache_seqlens
                             accepted and not used: indices name slots directly
    head_dim_v               must be 512
    tile_scheduler_metadata  FlashMLASchedMeta or None
    num_splits               must be None
    softmax_scale            a float, or one float32 on the device; None: 512 ** -0.5
    causal                   must be False
    is_fp8_kvcache           must be True
    indices                  [b, s, topk] int32 slots, block * P + offset; negative or past the end:
                             a hole
    attn_sink                [h] float32, scales out by exp(lse) / (exp(lse) + exp(sink)); not in
                             lse
    extra_k_cache, extra_indices_in_kvcache, extra_topk_length
                             a second cache, its slots and lengths, likewise
    topk_length, extra_topk_length
                             int32, how many leading indices count: [b], or [b, s] one for each
                             query
    out                      [b, s, h, 512] bf16 to write; allocated if None
    lse                      [b, h, s] float32 to write, any strides; allocated if None

    Returns (out, lse). lse is the natural logarithm without the sink, [b, h, s] (a transposed view
    if allocated here), and +inf for a query without any valid slot, whose out is 0.

    Where FlashMLA asserts or fails a check in C++, this raises ValueError (TypeError for a scale
    tensor that is not float32, or something that is no tensor), and RuntimeError if the build has
    no engine for the device. Unlike FlashMLA it keeps no record of earlier calls, so one
    FlashMLASchedMeta serves calls of any shapes.

    Graph-safe. With out, lse and a FlashMLASchedMeta that has its workspace, a call allocates
    nothing; with None for the metadata it works without a workspace, less in parallel.
    """
    check_is_tensor(q, "q")
    check_is_tensor(k_cache, "k_cache")
    if head_dim_v != HEAD_DIM:
        raise ValueError(f"head_dim_v: expected {HEAD_DIM}, got {head_dim_v}")
    if tile_scheduler_metadata is not None and not isinstance(
        tile_scheduler_metadata, FlashMLASchedMeta
    ):
        raise ValueError(
            "tile_scheduler_metadata: expected None or a FlashMLASchedMeta, "
            f"got {type(tile_scheduler_metadata).__name__}"
        )
    if num_splits is not None:
        raise ValueError(f"num_splits: expected None, got {type(num_splits).__name__}")
    if indices is None:
        raise ValueError(
            "indices: expected a tensor, got None; dense attention is not part of this package"
        )
    if causal:
        raise ValueError("causal: expected False with indices, got True")
    if not is_fp8_kvcache:
        raise ValueError("is_fp8_kvcache: expected True with indices, got False")
    if q.dim() != 4 or q.shape[-1] != HEAD_DIM:
        raise ValueError(f"q: expected [b, s, h, {HEAD_DIM}], got {tensor_text(q)}")
    _check_segment(q, k_cache, "k_cache", indices, "indices", topk_length, "topk_length")
    if extra_k_cache is not None:
        if extra_indices_in_kvcache is None:
            raise ValueError(
                "extra_indices_in_kvcache: expected a tensor with extra_k_cache, got None"
            )
        _check_segment(
            q,
            extra_k_cache,
            "extra_k_cache",
            extra_indices_in_kvcache,
            "extra_indices_in_kvcache",
            extra_topk_length,
            "extra_topk_length",
        )
    elif extra_indices_in_kvcache is not None or extra_topk_length is not None:
        raise ValueError(
            "extra_indices_in_kvcache and extra_topk_length: expected None without extra_k_cache"
        )

    scale, scale_tensor = split_scale(
        HEAD_DIM**-0.5 if softmax_scale is None else softmax_scale, "softmax_scale"
    )
    batch, seq_q, heads, _ = q.shape
    if out is None:
        out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
    else:
        check_result(out, "out", q.shape, torch.bfloat16, q.device)
    if lse is None:
        lse = torch.empty((batch, seq_q, heads), dtype=torch.float32, device=q.device)
        lse = lse.transpose(1, 2)
    else:
        check_tensor(lse, "lse", (batch, heads, seq_q), torch.float32, q.device)
    call(
        operators().sparse_mla_decode.out,
        q,
        k_cache,
        indices,
        topk_length,
        extra_k_cache,
        extra_indices_in_kvcache,
        extra_topk_length,
        names=_NAMES,
        sinks=attn_sink,
        workspace=_workspace(tile_scheduler_metadata, q, indices, extra_indices_in_kvcache),
        bmm1_scale=scale,
        bmm1_scale_tensor=scale_tensor,
        kv_layout="NHD",
        lse_empty_positive=True,
        out=out,
        lse=lse.transpose(1, 2),
    )
    return out, lse


def _check_segment(
    q: Tensor,
    cache: Tensor,
    cache_name: str,
    indices: Tensor,
    indices_name: str,
    length: Tensor | None,
    length_name: str,
) -> None:
    check_is_tensor(cache, cache_name)
    check_is_tensor(indices, indices_name)
    if cache.dim() != 4 or cache.shape[2] != 1 or cache.shape[3] != PACKED_TOKEN_BYTES:
        raise ValueError(
            f"{cache_name}: expected [blocks, page_size, 1, {PACKED_TOKEN_BYTES}], "
            f"got {tensor_text(cache)}"
        )
    if indices.dim() != 3 or indices.shape[:2] != q.shape[:2] or indices.shape[2] < 1:
        raise ValueError(
            f"{indices_name}: expected shape [{q.shape[0]}, {q.shape[1]}, topk] with topk >= 1, "
            f"got {list(indices.shape)}"
        )
    if length is None:
        return
    check_is_tensor(length, length_name)
    if length.shape != q.shape[:1] and length.shape != q.shape[:2]:
        raise ValueError(
            f"{length_name}: expected shape [{q.shape[0]}] or [{q.shape[0]}, {q.shape[1]}], "
            f"got {list(length.shape)}"
        )


def _workspace(
    metadata: FlashMLASchedMeta | None, q: Tensor, indices: Tensor, extra_indices: Tensor | None
) -> Tensor | None:
    if metadata is None:
        return None
    # An operator that returns an int cannot be traced; a call without a workspace is right too.
    if metadata.workspace is None and not torch.compiler.is_compiling():
        num_bytes = call(
            operators().workspace_size.default,
            q.shape[0] * q.shape[1],
            q.shape[2],
            indices.shape[-1],
            0 if extra_indices is None else extra_indices.shape[-1],
            device=q.device,
        )
        metadata.workspace = torch.empty(num_bytes, dtype=torch.uint8, device=q.device)
    return metadata.workspace
