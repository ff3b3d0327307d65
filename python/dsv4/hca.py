"""Tables of the HCA form, made from combined token rows.

HCA attends to every 128:1 compressed entry of a request, so a list of slots can be a list of pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._errors import call, check_is_tensor, check_tensor, tensor_text
from ._library import operators
from .kv_cache import WINDOW, pool_shape

COMPRESS_RATIO = 128  # raw tokens behind one compressed entry

# Index values compared at a time: keeps the temporaries of the conversion at tens of megabytes.
_ELEMENTS_PER_CHUNK = 1 << 22


@dataclass(frozen=True)
class DSV4HCAMetadata:
    """What backend="cute-dsl" takes beside query, caches and sparse_topk_lens.

    hca_swa_indices              [B * Q, 128] int32 slots of the window cache
    hca_compressed_block_tables  [B * Q, pages] int32 pages of the compressed cache
    hca_seq_lens                 [B] int32: 128 + backing compressed slots, a schedule hint
    swa_topk_lens                [B * Q] int32, 0..128: window columns that count
    hca_is_causal                always True

    Follows FlashInfer's class of this name.
    """

    hca_swa_indices: Tensor
    hca_compressed_block_tables: Tensor
    hca_seq_lens: Tensor
    swa_topk_lens: Tensor
    hca_is_causal: bool = True


def hca_metadata(
    sparse_indices: Tensor,
    seq_lens: Tensor,
    swa_kv_cache: Tensor,
    compressed_kv_cache: Tensor,
    *,
    q_len: int,
    kv_layout: str = "HND",
) -> DSV4HCAMetadata:
    """Makes HCA tables on the device, without a synchronization: fit for CUDA graph capture.

    sparse_indices        [B * q_len, W] int32, W >= 128: window columns 0..127, then whole
                          compressed pages expanded to their slots, page * page_size + offset
    seq_lens              [B] int32, raw tokens of each request, with its queries
    swa_kv_cache, compressed_kv_cache
                          only their shapes matter; packed caches are fine too
    q_len                 query rows of each request
    kv_layout             "HND" or "NHD", for 4-D caches

    The window length of query i is min(128, seq_len - q_len + i + 1), at least 0, and
    visible // 128 compressed slots count. Inactive columns become 0. No value is checked: a window
    slot outside its pool, or a page whose first column does not start a page of the pool, becomes
    -1, a hole. `convert_compressed_page_aligned_sparse_indices_to_hca_metadata` checks instead.

    Returns DSV4HCAMetadata whose table has max(1, ceil((W - 128) / page_size)) columns. The
    decode's sparse_topk_lens is the caller's: 128 + visible // 128.

    Raises ValueError for a wrong shape, dtype or device. Graph-safe.
    """
    for tensor, name in (
        (sparse_indices, "sparse_indices"),
        (seq_lens, "seq_lens"),
        (swa_kv_cache, "swa_kv_cache"),
        (compressed_kv_cache, "compressed_kv_cache"),
    ):
        check_is_tensor(tensor, name)
    swa_pages, swa_page_size = pool_shape(swa_kv_cache, kv_layout, "swa_kv_cache")
    num_pages, page_size = pool_shape(compressed_kv_cache, kv_layout, "compressed_kv_cache")
    tables = call(
        operators().hca_metadata.default,
        sparse_indices,
        seq_lens,
        q_len=q_len,
        swa_slots=swa_pages * swa_page_size,
        page_size=page_size,
        num_pages=num_pages,
    )
    return DSV4HCAMetadata(*tables)


def convert_compressed_page_aligned_sparse_indices_to_hca_metadata(
    sparse_indices: Tensor,
    sparse_topk_lens: Tensor,
    seq_lens: Tensor,
    swa_kv_cache: Tensor,
    compressed_kv_cache: Tensor,
    *,
    q_len: int,
    kv_layout: str = "HND",
) -> DSV4HCAMetadata:
    """Makes HCA tables from combined token rows, and proves that they say the same.

    sparse_indices        [B * q_len, W] int32, W >= 128: window columns 0..127 (any slots), then
                          compressed columns that expand whole pages, page * page_size + offset
    sparse_topk_lens      [B * q_len] int32
    seq_lens              [B] int32, raw tokens of each request, with its queries
    swa_kv_cache, compressed_kv_cache
                          only shape and device matter; packed caches are fine too
    q_len                 query rows of each request
    kv_layout             "HND" or "NHD", for 4-D caches

    With visible = seq_len - q_len + i + 1 raw tokens before and at query i, it checks that

        visible >= 1
        sparse_topk_len == 128 + visible // 128, and W has that many columns
        the first min(128, visible) window columns lie inside the window cache
        the first visible // 128 compressed columns expand pages of the compressed cache in order

    Columns beyond these counts are never looked at and become 0.

    Returns DSV4HCAMetadata. Its page table covers the longest request, rounded up to whole tiles of
    128 slots where page_size divides 128, else to whole pages; at least one column.

    Raises ValueError that names the first offending position, and for a wrong shape, dtype or
    device; RuntimeError during CUDA graph capture: it reads values back to the host. Run it outside
    of the decode loop, or use `hca_metadata`. Follows FlashInfer's function of this name, for any
    page size and any W >= 128.
    """
    for tensor, name in (
        (sparse_indices, "sparse_indices"),
        (sparse_topk_lens, "sparse_topk_lens"),
        (seq_lens, "seq_lens"),
        (swa_kv_cache, "swa_kv_cache"),
        (compressed_kv_cache, "compressed_kv_cache"),
    ):
        check_is_tensor(tensor, name)
        if tensor.device != sparse_indices.device:
            raise ValueError(
                f"{name}: expected a tensor on {sparse_indices.device} like sparse_indices, "
                f"got one on {tensor.device}"
            )
    _refuse_capture(sparse_indices.device)
    swa_slots, num_pages, page_size = _pool_sizes(swa_kv_cache, compressed_kv_cache, kv_layout)
    visible = _visible_tokens(sparse_indices, sparse_topk_lens, seq_lens, q_len)
    compressed_lens = visible // COMPRESS_RATIO
    _check_topk_lens(sparse_topk_lens, compressed_lens, capacity=sparse_indices.shape[1])

    window_lens = visible.clamp(max=WINDOW)
    window_indices = _window_indices(sparse_indices[:, :WINDOW], window_lens, swa_slots)
    longest_request = int(seq_lens.max()) // COMPRESS_RATIO if seq_lens.numel() > 0 else 0
    page_table = _page_table(
        sparse_indices[:, WINDOW:], compressed_lens, longest_request, page_size, num_pages
    )
    return DSV4HCAMetadata(
        hca_swa_indices=window_indices,
        hca_compressed_block_tables=page_table,
        hca_seq_lens=WINDOW + seq_lens // COMPRESS_RATIO,
        swa_topk_lens=window_lens.to(torch.int32),
    )


def _refuse_capture(device: torch.device) -> None:
    if device.type != "cuda":
        return
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "convert_compressed_page_aligned_sparse_indices_to_hca_metadata: expected no CUDA "
                "graph capture, got one in progress, and it reads values on the host; call "
                "dsv4.hca_metadata, or convert before the capture"
            )


def _pool_sizes(
    swa_kv_cache: Tensor, compressed_kv_cache: Tensor, kv_layout: str
) -> tuple[int, int, int]:
    """(window slots, compressed pages, compressed page size), each at least 1."""
    swa_pages, swa_page_size = pool_shape(swa_kv_cache, kv_layout, "swa_kv_cache")
    num_pages, page_size = pool_shape(compressed_kv_cache, kv_layout, "compressed_kv_cache")
    for slots, cache, name in (
        (swa_pages * swa_page_size, swa_kv_cache, "swa_kv_cache"),
        (num_pages * page_size, compressed_kv_cache, "compressed_kv_cache"),
    ):
        if slots <= 0:
            raise ValueError(f"{name}: expected 1 or more slots, got {tensor_text(cache)}")
    return swa_pages * swa_page_size, num_pages, page_size


def _visible_tokens(
    sparse_indices: Tensor, sparse_topk_lens: Tensor, seq_lens: Tensor, q_len: int
) -> Tensor:
    """Checks shapes and dtypes; returns the raw tokens each query row sees, [B * q_len] int64."""
    if q_len <= 0:
        raise ValueError(f"q_len: expected 1 or more, got {q_len}")
    if seq_lens.dim() != 1:
        raise ValueError(f"seq_lens: expected shape [B], got {list(seq_lens.shape)}")
    rows = seq_lens.shape[0] * q_len
    device = sparse_indices.device
    check_tensor(seq_lens, "seq_lens", seq_lens.shape, torch.int32, device)
    if sparse_indices.dim() != 2 or sparse_indices.shape[0] != rows:
        raise ValueError(
            f"sparse_indices: expected shape [{rows}, W], one row for each of the {q_len} queries "
            f"of {seq_lens.shape[0]} requests, got {list(sparse_indices.shape)}"
        )
    if sparse_indices.shape[1] < WINDOW:
        raise ValueError(
            f"sparse_indices: expected {WINDOW} or more columns, got {tensor_text(sparse_indices)}"
        )
    check_tensor(sparse_indices, "sparse_indices", sparse_indices.shape, torch.int32, device)
    check_tensor(sparse_topk_lens, "sparse_topk_lens", (rows,), torch.int32, device)

    queries = torch.arange(q_len, device=device)
    visible = seq_lens.to(torch.int64).unsqueeze(1) - q_len + queries + 1
    blind = _first(visible <= 0)
    if blind is not None:
        request = blind[0]
        raise ValueError(
            f"seq_lens[{request}]: expected at least q_len = {q_len} so that each query sees "
            f"itself, got {int(seq_lens[request])}"
        )
    return visible.reshape(-1)


def _check_topk_lens(sparse_topk_lens: Tensor, compressed_lens: Tensor, capacity: int) -> None:
    expected = WINDOW + compressed_lens
    wrong = _first(sparse_topk_lens != expected)
    if wrong is not None:
        row = wrong[0]
        raise ValueError(
            f"sparse_topk_lens[{row}]: expected {int(expected[row])}, "
            f"{WINDOW} + (seq_len - q_len + i + 1) // {COMPRESS_RATIO}, "
            f"got {int(sparse_topk_lens[row])}"
        )
    too_long = _first(expected > capacity)
    if too_long is not None:
        row = too_long[0]
        raise ValueError(
            f"sparse_indices: expected at least {int(expected[row])} columns for row {row}, as "
            f"seq_lens asks, got {capacity}"
        )


def _window_indices(window: Tensor, window_lens: Tensor, swa_slots: int) -> Tensor:
    columns = torch.arange(WINDOW, device=window.device)
    active = columns < window_lens.unsqueeze(1)
    outside = _first(active & ((window < 0) | (window >= swa_slots)))
    if outside is not None:
        row, column = outside
        raise ValueError(
            f"sparse_indices[{row}, {column}]: expected a slot of swa_kv_cache in "
            f"[0, {swa_slots}), got {int(window[row, column])}"
        )
    return torch.where(active, window, 0)


def _page_table(
    compressed: Tensor,
    compressed_lens: Tensor,
    longest_request: int,
    page_size: int,
    num_pages: int,
) -> Tensor:
    """The page of every page_size-th column, after a proof that the columns between follow it."""
    rows = compressed.shape[0]
    # FlashInfer's width where it has one: whole tiles of 128 slots.
    tile = WINDOW if WINDOW % page_size == 0 else page_size
    num_columns = max(1, -(-longest_request // tile) * tile // page_size)
    table = torch.zeros((rows, num_columns), dtype=torch.int32, device=compressed.device)

    num_slots = min(longest_request, compressed.shape[1])
    if num_slots == 0:
        return table
    slot = torch.arange(num_slots, device=compressed.device)
    page = slot // page_size
    offset = (slot % page_size).to(torch.int32)
    rows_per_chunk = max(1, _ELEMENTS_PER_CHUNK // num_slots)
    for start in range(0, rows, rows_per_chunk):
        stop = min(start + rows_per_chunk, rows)
        indices = compressed[start:stop, :num_slots]
        active = slot < compressed_lens[start:stop].unsqueeze(1)
        first_slot = indices[:, ::page_size]
        pages = first_slot // page_size
        legal = (first_slot % page_size == 0) & (pages >= 0) & (pages < num_pages)
        # An illegal page makes all its columns wrong, so that the first of them is reported.
        expected = torch.where(legal, first_slot, -page_size).index_select(1, page) + offset
        wrong = _first(active & ((expected < 0) | (indices != expected)))
        if wrong is not None:
            raise _not_page_aligned(
                indices, expected, start, *wrong, page_size=page_size, num_pages=num_pages
            )
        table[start:stop, : pages.shape[1]] = torch.where(active[:, ::page_size], pages, 0)
    return table


def _not_page_aligned(
    indices: Tensor,
    expected: Tensor,
    first_row: int,
    row: int,
    column: int,
    *,
    page_size: int,
    num_pages: int,
) -> ValueError:
    position = f"sparse_indices[{first_row + row}, {WINDOW + column}]"
    got = int(indices[row, column])
    if column % page_size == 0:
        return ValueError(
            f"{position}: expected the first slot of a page, a multiple of {page_size} in "
            f"[0, {num_pages * page_size}), got {got}"
        )
    return ValueError(
        f"{position}: expected {int(expected[row, column])}, the next slot of its page, got {got}"
    )


def _first(mask: Tensor) -> list[int] | None:
    """Position of the first True in row-major order. Reads the mask on the host."""
    if not bool(mask.any()):
        return None
    return mask.nonzero()[0].tolist()
