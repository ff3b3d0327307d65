"""Decodes that try an engine: NaN in every byte that no valid index names, holes, odd lengths.

Made on the CPU, by its engine; `moved` takes them elsewhere with all that lies between their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .kv_cache import HEAD_DIM, WINDOW, append_kv_cache, empty_kv_cache
from .step import KV_SCALE, QUERY_SCALE, SOFTMAX_SCALE, Segment, Step, empty_pool

INT_MIN, INT_MAX = -(2**31), 2**31 - 1

_HOLES = 0.1  # share of the entries within a row's length
_GAP_BYTES = 1024  # behind each page of a 512-wide cache


def step(
    form: str,
    format: str,
    heads: int,
    q_lens: Sequence[int],
    width: int,
    *,
    page_sizes: tuple[int, int] = (64, 64),
    varlen: bool = False,
    one_table: bool = False,
) -> Step:
    """A random step of one of the forms of `dsv4.step.arguments`.

    q_lens       query rows of each request, all alike unless varlen
    width        compressed slots a row; 0: a window only
    page_sizes   of the window's pool and of the compressed one
    one_table    the rows of a request have one compressed table
    """
    rows = sum(q_lens)
    if form == "token-sparse":
        seq_lens, window_lens = _causal_lengths(torch.tensor(q_lens))
    else:
        window_lens = _lengths(rows, WINDOW)
        seq_lens = torch.zeros(len(q_lens), dtype=torch.int32)
    window = segment(window_lens, WINDOW, page_sizes[0], format)
    compressed = None
    if width > 0:
        lens = _lengths(rows, width).roll(1)
        longest = lens.view(len(q_lens), -1).amax(1) if one_table else lens
        compressed = segment(longest, width, page_sizes[1], format, by_page=form == "HCA")
        if one_table:
            tables = compressed.table[:, None].expand(-1, q_lens[0], -1)
            compressed = compressed._replace(table=tables, lens=lens)
    query = query_rows(rows, heads, format)
    cum_seq_lens_q = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32)
    return Step(
        query if varlen else query.unflatten(0, (len(q_lens), -1)),
        window,
        compressed,
        seq_lens,
        *scales(format),
        torch.randn(heads),
        cum_seq_lens_q if varlen else None,
        max(q_lens) if varlen else None,
    )


def query_rows(rows: int, heads: int, format: str) -> Tensor:
    """[rows, heads, 512] of the dtype that goes with a cache format, with gaps between rows."""
    query = 2.0 * torch.randn(rows, heads + 1, HEAD_DIM + 64)
    is_e4m3 = format == "e4m3"
    query = (query / QUERY_SCALE).to(torch.float8_e4m3fn) if is_e4m3 else query.to(torch.bfloat16)
    return query[:, :heads, :HEAD_DIM]


def scales(format: str) -> tuple[float, float]:
    """bmm1_scale and bmm2_scale."""
    if format == "e4m3":
        return SOFTMAX_SCALE * QUERY_SCALE * KV_SCALE, KV_SCALE
    return SOFTMAX_SCALE, 1.0


def latents(rows: int) -> Tensor:
    return torch.randn(rows, HEAD_DIM).to(torch.bfloat16)


def append(kv: Tensor, cache: Tensor, slots: Tensor, format: str) -> None:
    append_kv_cache(kv, cache, slots, scale=KV_SCALE if format == "e4m3" else 1.0)


def poisoned_pool(num_pages: int, page_size: int, format: str) -> Tensor:
    """A cache full of NaN, and between its pages too: bytes of ones are NaN in every format."""
    if format == "packed":
        pool = empty_pool(num_pages, page_size, format)
    else:
        page_bytes = empty_kv_cache(1, page_size, format=format).nbytes
        stride = page_bytes + _GAP_BYTES
        pool = empty_kv_cache(num_pages, page_size, format=format, page_stride_bytes=stride)
    _whole(pool).view(torch.uint8).fill_(0xFF)
    return pool


def segment(
    lens: Tensor, width: int, page_size: int, format: str, *, by_page: bool = False
) -> Segment:
    """A row of `width` slots for each length. Only what a table names validly holds numbers."""
    num_pages = max(3, -(-2 * width // page_size))
    columns, limit, covered = width, num_pages * page_size, lens
    if by_page:
        columns, limit = -(-width // page_size), num_pages
        covered = -(-lens.clamp(0, columns * page_size) // page_size)
    table = _table(len(lens), columns, limit, covered)
    result = Segment(poisoned_pool(num_pages, page_size, format), table, lens, by_page)
    slots, valid = result.slots()
    named = slots[valid].unique()
    append(latents(len(named)), result.cache, named, format)
    return result


def _table(rows: int, columns: int, limit: int, lens: Tensor) -> Tensor:
    """[rows, columns] int32, a slice of a wider table. Half of the numbers below `limit` may be
    valid, 0 never, so that a hole read as 0 shows. Beyond the length stand those that are not.
    """
    shuffled = 1 + torch.randperm(limit - 1)
    named, unnamed = shuffled[: limit // 2], shuffled[limit // 2 :]
    nothing = torch.tensor([-1, INT_MIN, limit, INT_MAX, -7, limit + 1])
    stale = torch.cat([nothing, unnamed, torch.zeros(1, dtype=torch.int64)])
    wide = columns + 3

    def draw(choices: Tensor) -> Tensor:
        return choices[torch.randint(len(choices), (rows, wide))]

    table = draw(named).where(torch.rand(rows, wide) >= _HOLES, draw(nothing))
    table = table.where(torch.arange(wide) < lens[:, None].clamp(max=columns), draw(stale))
    return table.to(torch.int32)[:, :columns]


def _lengths(rows: int, width: int) -> Tensor:
    """[rows] int32: one whole row, then others as far as there are rows, some out of range."""
    lens = torch.randint(1, width + 1, (rows,), dtype=torch.int32)
    some = torch.tensor([width, width + 5, 0, -3], dtype=torch.int32)[: max(1, rows - 1)]
    lens[: len(some)] = some
    return lens


def _causal_lengths(q_lens: Tensor) -> tuple[Tensor, Tensor]:
    """seq_lens of requests with these numbers of rows, and the window length of each row."""
    choices = torch.tensor([WINDOW - 1, 100_000, WINDOW + 1, 5, 0, WINDOW, 1000, 1])
    seq_lens = choices[torch.arange(len(q_lens)) % len(choices)]
    first = (q_lens.cumsum(0) - q_lens).repeat_interleave(q_lens)
    query_idx = torch.arange(int(q_lens.sum())) - first
    lens = (seq_lens - q_lens).repeat_interleave(q_lens) + query_idx + 1
    return seq_lens.to(torch.int32), lens.clamp(0, WINDOW).to(torch.int32)


# --- to another device


def moved(value: Any, device: torch.device) -> Any:
    """A copy on the device, strides and gaps included; also of all tensors of a tuple."""
    if isinstance(value, Tensor):
        whole = _whole(value).to(device, copy=True)
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, tuple):
        parts = [moved(part, device) for part in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    return value


def overwrite(target: Any, source: Any) -> None:
    """Gives all tensors of a tuple the contents of those of another one, which has its shapes."""
    if isinstance(target, Tensor):
        _whole(target).copy_(_whole(source))
    elif isinstance(target, tuple):
        for mine, theirs in zip(target, source, strict=True):
            overwrite(mine, theirs)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors and the memory around them are alike, bit for bit."""
    return torch.equal(_whole(a).view(torch.uint8), _whole(b).view(torch.uint8))


def _whole(tensor: Tensor) -> Tensor:
    """All of the memory that the tensor is a part of, as a row of its elements."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((size,), (1,), 0)
