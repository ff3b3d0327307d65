"""One decode in terms that all three input forms share: what is made once and called in each.

A `Step` is a query row for each request, or several, and the slots that they attend to. `arguments`
writes it down as a call of one form, `reference_inputs` for the judge. The demo, the check and the
benchmarks are built from it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import dsv4

from . import reference
from .kv_cache import (
    HEAD_DIM,
    PACKED_TOKEN_BYTES,
    PACKED_TOKEN_DATA_BYTES,
    PACKED_TOKEN_SCALE_BYTES,
    WINDOW,
    empty_kv_cache,
    is_packed,
)

SOFTMAX_SCALE = HEAD_DIM**-0.5
WINDOW_PAGE, CSA_PAGE, HCA_PAGE = 64, 64, 2  # the page sizes that vLLM gives its pools

# One scale for a whole e4m3 tensor, of the size that calibration would find for these latents.
QUERY_SCALE = KV_SCALE = 2.0**-4

FORMATS = ("packed", "bf16", "e4m3")
SLOT_BYTES = {"packed": PACKED_TOKEN_BYTES, "bf16": 2 * HEAD_DIM, "e4m3": HEAD_DIM}


class Segment(NamedTuple):
    """One of the two runs of slots that a query row attends to."""

    cache: Tensor  # [pages, page_size, 584 or 512]
    table: Tensor  # [rows, columns] int32: slots, or pages. Or one for all rows of a request,
    # which is [requests, q_len, columns]
    lens: Tensor  # [rows] int32: how many slots count
    is_page_table: bool = False

    def slots(self) -> tuple[Tensor, Tensor]:
        """[rows, width] slot numbers, 0 where there is a hole, and whether there is none."""
        page_size = self.cache.shape[1]
        slots = self.table.flatten(0, -2).long()
        if self.is_page_table:
            slots = reference.page_slots(slots, page_size)
        column = torch.arange(slots.shape[1], device=slots.device)
        valid = (slots >= 0) & (slots < self.cache.shape[0] * page_size)
        valid &= column < self.lens[:, None]
        return slots.where(valid, 0), valid


class Step(NamedTuple):
    """One decode step of one layer. Tables and lengths have a row for each query row."""

    query: Tensor  # [requests, q_len, heads, 512]; [rows, heads, 512] with cum_seq_lens_q
    window: Segment
    compressed: Segment | None
    seq_lens: Tensor  # [requests] int32
    bmm1_scale: float | Tensor
    bmm2_scale: float | Tensor
    sinks: Tensor | None  # [heads] float32
    cum_seq_lens_q: Tensor | None = None  # [requests + 1] int32: first query row of each request
    max_q_len: int | None = None

    def rows(self) -> int:
        return self.query.shape[:-2].numel()

    def segments(self) -> list[Segment]:
        return [self.window] if self.compressed is None else [self.window, self.compressed]

    def widths(self) -> list[int]:
        """Slots a row of each table."""
        return [
            segment.table.shape[-1] * (segment.cache.shape[1] if segment.is_page_table else 1)
            for segment in self.segments()
        ]

    def rows_per_table(self) -> int:
        """Rows of a request that have one compressed table, or tables of pages of their own, which
        GPUs take for one where they are the same."""
        if self.compressed is None or self.query.dim() == 3:
            return 1
        one_table = self.compressed.table.dim() == 3
        return self.query.shape[1] if one_table or self.compressed.is_page_table else 1

    def num_slots(self) -> int:
        return sum(int(segment.slots()[1].sum()) for segment in self.segments())


def arguments(form: str, step: Step) -> dict[str, object]:
    """The step as a call of trtllm_batch_decode_sparse_mla_dsv4 in one of its three forms:
    "packed", "token-sparse" or "HCA"."""
    window, compressed = step.window, step.compressed
    result: dict[str, object] = {
        "query": step.query,
        "swa_kv_cache": window.cache,
        "workspace_buffer": workspace(step),
        "bmm1_scale": step.bmm1_scale,
        "bmm2_scale": step.bmm2_scale,
        "sinks": step.sinks,
    }
    if form == "packed":
        result |= {
            "backend": "sparse",
            "sparse_indices": window.table,
            "swa_topk_lens": window.lens,
        }
        if compressed is not None:
            result |= {
                "compressed_kv_cache": compressed.cache,
                "extra_sparse_indices": _expanded_again(compressed.table),
                "extra_sparse_topk_lens": compressed.lens,
            }
    elif form == "token-sparse":
        # The form always has both segments. A layer without the second one gives it no columns, so
        # that any pool will do.
        second = compressed or Segment(window.cache, window.table[:, :0], window.lens * 0)
        result |= {
            "backend": "trtllm-gen",
            "sparse_indices": torch.cat([window.table, second.table], 1),
            "sparse_topk_lens": WINDOW + second.lens,
            "compressed_kv_cache": second.cache,
            "seq_lens": step.seq_lens,
            "cum_seq_lens_q": step.cum_seq_lens_q,
            "max_q_len": step.max_q_len,
        }
    else:
        assert compressed is not None
        visible = WINDOW + compressed.lens
        result |= {
            "backend": "cute-dsl",
            "hca_swa_indices": window.table,
            "swa_topk_lens": window.lens,
            "hca_compressed_block_tables": (
                compressed.table if compressed.table.dim() == 2 else compressed.table[:, 0]
            ),
            "sparse_topk_lens": visible,
            "hca_seq_lens": visible.view(len(step.query), -1)[:, -1].contiguous(),
            "compressed_kv_cache": compressed.cache,
        }
    return result


def _expanded_again(table: Tensor) -> Tensor:
    """A table for all rows of a request, as the copy of one on another device is not."""
    return table if table.dim() == 2 else table[:, :1].expand_as(table)


def empty_pool(
    num_pages: int, page_size: int, format: str, device: torch.device | str | None = None
) -> Tensor:
    """As empty_kv_cache, but packed pages are whole multiples of a token's data, as vLLM's are."""
    stride = None
    if format == "packed":
        page_bytes = page_size * PACKED_TOKEN_BYTES
        stride = -(-page_bytes // PACKED_TOKEN_DATA_BYTES) * PACKED_TOKEN_DATA_BYTES
    return empty_kv_cache(
        num_pages, page_size, format=format, page_stride_bytes=stride, device=device
    )


def workspace(step: Step) -> Tensor:
    """As many bytes as the step is fastest with."""
    heads, device = step.query.shape[-2], step.query.device
    size = dsv4.workspace_size(
        step.rows(), heads, *step.widths(), device=device, table_rows=step.rows_per_table()
    )
    return torch.empty(size, dtype=torch.uint8, device=device)


def raw_rows(cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor | None]:
    """The named slots: bytes of data and scales of a packed cache, else elements."""
    pages, page_size, _ = cache.shape
    if not is_packed(cache):
        # torch copies whole rows from a pool without gaps, and single elements from any other.
        if cache.is_contiguous():
            flat = cache.view(-1, HEAD_DIM)
            return flat.index_select(0, slots.flatten()).view(*slots.shape, HEAD_DIM), None
        return cache[slots // page_size, slots % page_size], None
    # Whole words: torch gathers element by element, and a byte costs it as much as eight.
    words = cache.as_strided((pages, cache.stride(0)), (cache.stride(0), 1)).view(torch.int64)
    word = torch.int64.itemsize
    data_words, scale_words = PACKED_TOKEN_DATA_BYTES // word, PACKED_TOKEN_SCALE_BYTES // word
    page, offset = slots // page_size, slots % page_size
    parts = []
    for begin, width in ((0, data_words), (page_size * data_words, scale_words)):
        part = words[:, begin : begin + page_size * width].unflatten(1, (page_size, width))
        parts.append(part[page, offset].view(torch.uint8))
    return parts[0], parts[1]


def reference_inputs(step: Step) -> reference.Inputs:
    """The step for dsv4.reference, with pools that hold only the slots it names."""
    parts: list[Tensor] = []
    for segment in step.segments():
        slots, valid = segment.slots()
        rows, scales = raw_rows(segment.cache, slots)
        if scales is not None:
            rows = torch.cat([rows, scales], -1)  # a packed page of one token
        order = torch.arange(slots.numel(), device=slots.device).view(slots.shape)
        pool = reference.dequantise(rows.view(-1, 1, rows.shape[-1]))
        parts += [pool, order.where(valid, -1), segment.lens]
    return reference.Inputs(step.query.flatten(0, -3), *parts)
