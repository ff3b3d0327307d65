"""The decode by its definition, in float64 and plain torch: the judge of every engine.

    s_j = scale1 * <q, k_j>                 over the valid slots j of both segments
    out = scale2 * sum_j exp(s_j) k_j / (sum_j exp(s_j) + exp(sink_h))
    lse = ln(sum_j exp(s_j))

`token_sparse`, `hca` and `packed` turn the arguments of the three public forms into `Inputs`: query
rows, dequantised pools of slots, and one table of slots and one length for each row and segment.
`decode(*inputs)` is the definition; `decode_rounded(*inputs)` is the same sum as a GPU kernel would
do it, and its error sets what `assert_close` allows an engine. `assert_alike` compares two engines
where the definition would take too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .kv_cache import (
    HEAD_DIM,
    NOPE_DIM,
    PACKED_TOKEN_BYTES,
    PACKED_TOKEN_DATA_BYTES,
    QUANT_GROUP,
    SCALE_EXPONENT_BIAS,
    WINDOW,
    is_packed,
    pool_shape,
)

_ELEMENTS_PER_CHUNK = 1 << 24  # gathered key values held at a time: 128 MB in float64


class Inputs(NamedTuple):
    """A decode, whatever form it came in."""

    query: Tensor  # [rows, heads, 512]
    swa_pool: Tensor  # [slots, 512]
    swa_indices: Tensor  # [rows, width]
    swa_lens: Tensor  # [rows], clamped to [0, width]
    compressed_pool: Tensor | None = None
    compressed_indices: Tensor | None = None
    compressed_lens: Tensor | None = None


def dequantise(cache: Tensor, kv_layout: str = "HND") -> Tensor:
    """All slots of a bf16, e4m3 or packed cache in slot order, [slots, 512] float64."""
    if not is_packed(cache):
        return cache.double().reshape(-1, HEAD_DIM)
    # The declared shape is a fiction: a page is all its tokens' data, then all its tokens' scales.
    pages, page_size = pool_shape(cache, kv_layout, "cache")
    page_bytes, scales_at = page_size * PACKED_TOKEN_BYTES, page_size * PACKED_TOKEN_DATA_BYTES
    raw = cache.view(torch.uint8).as_strided((pages, page_bytes), (cache.stride(0), 1))
    data = raw[:, :scales_at].reshape(pages * page_size, -1)
    scale_bits = raw[:, scales_at:].reshape(pages * page_size, -1)[:, : NOPE_DIM // QUANT_GROUP]

    # Powers of two by their bits: torch.ldexp works on the current device, not on its arguments'.
    scales = ((scale_bits.long() - SCALE_EXPONENT_BIAS + 1023) << 52).view(torch.float64)
    scales = scales.masked_fill(scale_bits == 0xFF, math.nan).repeat_interleave(QUANT_GROUP, dim=1)
    nope = data[:, :NOPE_DIM].contiguous().view(torch.float8_e4m3fn).double()
    rope = data[:, NOPE_DIM:].contiguous().view(torch.bfloat16).double()
    return torch.cat([nope * scales, rope], dim=1)


def token_sparse(
    query: Tensor,
    swa_kv_cache: Tensor,
    sparse_indices: Tensor,
    compressed_kv_cache: Tensor,
    sparse_topk_lens: Tensor,
    seq_lens: Tensor,
    *,
    cum_seq_lens_q: Tensor | None = None,
    kv_layout: str = "HND",
) -> Inputs:
    """One table: 128 window columns, whose length follows from seq_lens, then compressed ones."""
    rows = query.reshape(-1, *query.shape[-2:])
    table = sparse_indices.reshape(rows.shape[0], -1)
    if cum_seq_lens_q is None:
        q_lens = [query.shape[1]] * seq_lens.numel()
    else:
        q_lens = cum_seq_lens_q.diff().tolist()
    # Query i of a request with m rows and n tokens sees the first n - m + i + 1 of them.
    visible = [
        n - m + i + 1 for n, m in zip(seq_lens.tolist(), q_lens, strict=True) for i in range(m)
    ]
    return Inputs(
        rows,
        dequantise(swa_kv_cache, kv_layout),
        table[:, :WINDOW],
        torch.tensor(visible, dtype=torch.int64, device=query.device),
        dequantise(compressed_kv_cache, kv_layout),
        table[:, WINDOW:],
        sparse_topk_lens.long() - WINDOW,
    )


def hca(
    query: Tensor,
    swa_kv_cache: Tensor,
    hca_swa_indices: Tensor,
    swa_topk_lens: Tensor,
    compressed_kv_cache: Tensor,
    hca_compressed_block_tables: Tensor,
    sparse_topk_lens: Tensor,
    *,
    kv_layout: str = "HND",
) -> Inputs:
    """A window table of slots and a compressed table of pages, of which each row sees a prefix."""
    compressed_pool = dequantise(compressed_kv_cache, kv_layout)
    page_size = compressed_pool.shape[0] // compressed_kv_cache.shape[0]
    return Inputs(
        query.reshape(-1, *query.shape[-2:]),
        dequantise(swa_kv_cache, kv_layout),
        hca_swa_indices,
        swa_topk_lens,
        compressed_pool,
        page_slots(hca_compressed_block_tables, page_size),
        sparse_topk_lens.long() - WINDOW,
    )


def packed(
    query: Tensor,
    swa_kv_cache: Tensor,
    sparse_indices: Tensor,
    swa_topk_lens: Tensor | None = None,
    compressed_kv_cache: Tensor | None = None,
    extra_sparse_indices: Tensor | None = None,
    extra_sparse_topk_lens: Tensor | None = None,
    *,
    kv_layout: str = "HND",
) -> Inputs:
    """Two tables of slots with a length each; a missing length counts the whole width."""
    rows = query.reshape(-1, *query.shape[-2:])

    def segment(cache: Tensor, indices: Tensor, lens: Tensor | None) -> tuple[Tensor, ...]:
        table = indices.reshape(rows.shape[0], -1)
        if lens is None:
            lens = torch.full((rows.shape[0],), table.shape[1], device=query.device)
        # One length a row, or one a request of several rows.
        rows_per_length = rows.shape[0] // max(1, lens.numel())
        return (
            dequantise(cache, kv_layout),
            table,
            lens.flatten().repeat_interleave(rows_per_length),
        )

    inputs = rows, *segment(swa_kv_cache, sparse_indices, swa_topk_lens)
    if compressed_kv_cache is None:
        return Inputs(*inputs)
    return Inputs(
        *inputs, *segment(compressed_kv_cache, extra_sparse_indices, extra_sparse_topk_lens)
    )


def page_slots(page_table: Tensor, page_size: int) -> Tensor:
    """[rows, pages] of page ids -> [rows, pages * page_size] of slots; a hole stays a hole."""
    offset = torch.arange(page_size, device=page_table.device)
    return (page_table.long()[..., None] * page_size + offset).flatten(1)


def decode(
    query: Tensor,
    swa_pool: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    compressed_pool: Tensor | None = None,
    compressed_indices: Tensor | None = None,
    compressed_lens: Tensor | None = None,
    *,
    scale1: float | Tensor = 1.0,
    scale2: float | Tensor = 1.0,
    sinks: Tensor | None = None,
    sink_mode: str = "apply",
    lse_base: str = "e",
    lse_sink: bool = False,
    lse_empty_positive: bool = False,
    dtype: torch.dtype = torch.float64,
    round_weights: Callable[[Tensor], Tensor] = lambda weights: weights,
    divide_by_rounded: bool = False,
) -> tuple[Tensor, Tensor]:
    """The definition: out [rows, heads, 512] and lse [rows, heads], in `dtype`.

    `round_weights` is applied to exp(s_j - m) where it multiplies k_j, and if `divide_by_rounded`
    also in the sum that out is divided by: for `decode_rounded`.
    """
    segments = [_Segment(swa_pool, swa_indices, swa_lens, dtype)]
    if compressed_pool is not None:
        segments.append(_Segment(compressed_pool, compressed_indices, compressed_lens, dtype))
    num_rows, heads, _ = query.shape
    sink = torch.full((heads,), -math.inf) if sinks is None else sinks
    sink = sink.to(query.device, dtype)

    out = torch.empty(query.shape, dtype=dtype, device=query.device)
    lse = torch.empty(query.shape[:2], dtype=dtype, device=query.device)
    width = sum(segment.slots.shape[1] for segment in segments)
    chunk = max(1, _ELEMENTS_PER_CHUNK // (max(1, width) * HEAD_DIM))
    for start in range(0, num_rows, chunk):
        rows = slice(start, start + chunk)
        keys = torch.cat([segment.pool[segment.slots[rows]] for segment in segments], dim=1)
        valid = torch.cat([segment.valid[rows] for segment in segments], dim=1)[:, None, :]

        scores = float(scale1) * (query[rows].to(dtype) @ keys.mT)
        highest = scores.masked_fill(~valid, -math.inf).amax(-1, keepdim=True)
        empty = ~valid.any(-1, keepdim=True)
        highest = highest.masked_fill(empty, 0.0)
        weights = (scores - highest).exp().masked_fill(~valid, 0.0)

        total = weights.sum(-1, keepdim=True)
        rounded = round_weights(weights)
        denominator = rounded.sum(-1, keepdim=True) if divide_by_rounded else total
        if sink_mode == "apply":
            denominator = denominator + (sink[:, None] - highest).exp()
        chunk_out = float(scale2) * (rounded @ keys) / denominator
        out[rows] = chunk_out.masked_fill(empty, 0.0)

        chunk_lse = highest + total.log()
        if lse_sink:
            chunk_lse = torch.logaddexp(chunk_lse, sink[:, None])
        chunk_lse = chunk_lse.masked_fill(empty, math.inf if lse_empty_positive else -math.inf)
        lse[rows] = chunk_lse[..., 0] / (math.log(2.0) if lse_base == "2" else 1.0)
    return out, lse


class _Segment:
    """Slots and their validity for each row; holes name a row of zeros put behind the pool."""

    def __init__(self, pool: Tensor, indices: Tensor, lens: Tensor, dtype: torch.dtype):
        column = torch.arange(indices.shape[1], device=indices.device)
        in_pool = (indices >= 0) & (indices < pool.shape[0])
        self.valid = in_pool & (column < lens[:, None])
        self.slots = indices.long().masked_fill(~self.valid, pool.shape[0])
        self.pool = torch.cat([pool.to(dtype), pool.new_zeros(1, HEAD_DIM, dtype=dtype)])


def decode_rounded(
    *inputs: Tensor,
    weights: torch.dtype = torch.bfloat16,
    largest_weight: float = 1.0,
    **options,
) -> tuple[Tensor, Tensor]:
    """The same sum with operands and weights as engines round them, float32 accumulation: out bf16,
    lse float32.

    `weights` is the type of exp(s_j - m) where it multiplies k_j, times the power that makes the
    largest of a head `largest_weight`. e4m3, for e4m3 caches, is so coarse that out is divided by
    the sum of the rounded weights.
    """
    out, lse = decode(
        *inputs,
        dtype=torch.float32,
        round_weights=lambda exact: (exact * largest_weight).to(weights).float() / largest_weight,
        divide_by_rounded=weights == torch.float8_e4m3fn,
        **options,
    )
    return out.to(torch.bfloat16), lse


def tolerance(out64: Tensor, *out_rounded: Tensor) -> Tensor:
    """The error that an engine may have, one number for each row and head of out.

    Twice the largest error of the rounded computations in the same 512 numbers, plus half a bf16
    step of the largest of them (2^-8). The first term grows with whatever makes the case hard
    (scores far apart, many slots), so no case needs a number of its own; the factor leaves room for
    another order of summation. The second is for heads that a rounded computation gets right by
    luck.
    """
    errors = torch.stack([_largest(out.double() - out64) for out in out_rounded])
    return 2.0 * errors.amax(0) + _largest(out64) * 2.0**-8


def lse_tolerance(lse64: Tensor, lse_fp32: Tensor) -> Tensor:
    """As `tolerance`, for lse, which every engine keeps in float32; one number for each row.

    The floor is 2^-18 of max(1, |lse|): a sum of 512 float32 products is good to some 2^-20.
    """
    return 2.0 * _largest(lse_fp32.double() - lse64) + _largest(lse64).clamp(min=1.0) * 2.0**-18


def assert_close(
    out: Tensor,
    lse: Tensor | None,
    *inputs: Tensor,
    weights: torch.dtype = torch.bfloat16,
    **options,
) -> float:
    """Raises AssertionError unless out (and lse) are the decode of the inputs within `tolerance`.

    `weights` as for `decode_rounded`. Infinities and NaNs must stand at the same places. Returns
    the largest share of the tolerance that was used, 0 (exact) to 1.
    """
    out64, lse64, allowed, lse_allowed = bounds(*inputs, weights=weights, **options)
    used = _assert_within("out", out.reshape(out64.shape), out64, allowed)
    if lse is not None:
        used = max(used, _assert_within("lse", lse.reshape(lse64.shape), lse64, lse_allowed))
    return used


def bounds(
    *inputs: Tensor, weights: torch.dtype = torch.bfloat16, **options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The definition, out and lse, and the errors that `assert_close` allows of them."""
    out64, lse64 = decode(*inputs, **options)
    # An engine whose weights are e4m3 follows the largest score loosely, so that the largest weight
    # may be any number of some range: one that e4m3 holds, or not.
    largest_weights = (1.0,)
    if weights == torch.float8_e4m3fn:
        largest_weights = (2.0**8, 2.0**8.25, 2.0**8.5, 2.0**8.75)
    rounded = [
        decode_rounded(*inputs, weights=weights, largest_weight=largest, **options)
        for largest in largest_weights
    ]
    allowed = tolerance(out64, *[out for out, _ in rounded])
    return out64, lse64, allowed, lse_tolerance(lse64, rounded[0][1])


def assert_alike(
    out: Tensor,
    lse: Tensor,
    wanted: Tensor,
    wanted_lse: Tensor,
    weights: torch.dtype = torch.bfloat16,
) -> float:
    """Raises AssertionError unless an engine's results are those of another, or of the definition.

    Each number of out may differ by 2^-6 of the largest of its row and head: four bf16 steps, as
    the operands, the weights and out may be rounded to bf16 on one side and not on the other; by
    2^-3, two e4m3 steps, if an engine rounds weights to e4m3. lse,
    of float32 sums, by 2^-14 of max(1, |lse|). Infinities and NaNs must stand at the same places.
    Returns the largest share of these tolerances that was used, 0 (equal) to 1.
    """
    step = 2.0**-3 if weights == torch.float8_e4m3fn else 2.0**-6
    used = _assert_within(
        "out", out.reshape(wanted.shape), wanted.double(), _largest(wanted.double()) * step
    )
    wanted_lse = wanted_lse.double()
    allowed = _largest(wanted_lse[..., None]).clamp(min=1.0) * 2.0**-14
    got = lse.reshape(wanted_lse.shape)[..., None]
    return max(used, _assert_within("lse", got, wanted_lse[..., None], allowed))


def _largest(values: Tensor) -> Tensor:
    return values.abs().masked_fill(~values.isfinite(), 0.0).amax(-1)


def _assert_within(name: str, got: Tensor, wanted: Tensor, allowed: Tensor) -> float:
    if got.numel() == 0:
        return 0.0
    got = got.to(wanted.device, torch.float64)
    allowed = allowed[..., None].expand_as(wanted)
    error = (got - wanted).abs()
    # Where the definition is infinite or NaN, only the same will do.
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    share = torch.where(same, 0.0, error / allowed).nan_to_num(math.inf, math.inf, math.inf)
    worst = int(share.argmax())
    if share.flatten()[worst] > 1.0:
        where = [int(i) for i in torch.unravel_index(torch.tensor(worst), wanted.shape)]
        raise AssertionError(
            f"{name}{where}: expected {wanted[tuple(where)]:.9g}, got {got[tuple(where)]:.9g}, "
            f"error {error[tuple(where)]:.3g} > {allowed[tuple(where)]:.3g}; "
            f"{int((share > 1.0).sum())} of {share.numel()} values are wrong"
        )
    return float(share.flatten()[worst])
