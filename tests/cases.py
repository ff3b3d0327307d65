"""Hostile inputs, shared by tests and benchmarks.

Memory that a decode must not read is full of NaN: slots that no valid index names, padding between
pages and between tokens. Lanes beyond a row's length name such slots, or nothing at all.
Memory that it must not write is checked afterwards. Tensors are slices of wider ones wherever the
contract allows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
from dataclasses import dataclass, replace

import torch

import dsv4
import simulated
from dsv4 import reference

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
HEAD_DIM, WINDOW = 512, 128
TOKEN_BYTES, DATA_BYTES, SCALE_BYTES = 584, 576, 8  # literals: tests do not trust the library's own
DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "packed": torch.uint8}
POISON = {"bf16": 0x7FC0, "e4m3": 0x7F, "packed": 0xFF}  # NaN as bf16, as e4m3, and as all three
SOFTMAX_SCALE = HEAD_DIM**-0.5

# Every pair of form and cache format that a front door takes.
FORMS = [
    ("token_sparse", "bf16"),
    ("token_sparse", "e4m3"),
    ("hca", "bf16"),
    ("hca", "e4m3"),
    ("packed", "packed"),
]


# --- formats, bit by bit and without torch


def e4m3_value(bits: int) -> float:
    sign = -1.0 if bits & 0x80 else 1.0
    exponent, mantissa = (bits >> 3) & 0xF, bits & 7
    if exponent == 0xF and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def bf16_value(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def ue8m0_value(bits: int) -> float:
    return float("nan") if bits == 0xFF else 2.0 ** (bits - 127)


# --- caches


def cache(
    num_pages, page_size, fmt, layout="HND", *, page_pad=0, token_pad=0, offset=0, poison=None,
    device="cpu",
):  # fmt: skip
    """A cache in which every byte is NaN. Pads and offset count elements."""
    width = TOKEN_BYTES if fmt == "packed" else HEAD_DIM
    token_stride = width + token_pad
    page_stride = page_size * token_stride + page_pad
    buffer = poisoned(offset + num_pages * page_stride, fmt, poison, device)
    return strided_cache(
        buffer, num_pages, page_size, width, layout, page_stride, token_stride, offset
    )


def poisoned(num_elements, fmt, poison=None, device="cpu"):
    bits = POISON[fmt] if poison is None else poison
    if fmt == "bf16":
        return torch.full((num_elements,), bits, dtype=torch.int16, device=device).view(
            torch.bfloat16
        )
    return torch.full((num_elements,), bits, dtype=torch.uint8, device=device).view(DTYPES[fmt])


def strided_cache(buffer, num_pages, page_size, width, layout, page_stride, token_stride, offset=0):
    """A view of a buffer as a cache; several of them may be interleaved in one buffer."""
    last_page = offset + (num_pages - 1) * page_stride
    # A 2-D cache is as wide as there is room, short of one more token.
    row_width = min(page_stride, buffer.numel() - last_page, (page_size + 1) * width - 1)
    shape, stride = {
        "HND": ((num_pages, 1, page_size, width), (page_stride, page_stride, token_stride, 1)),
        "NHD": ((num_pages, page_size, 1, width), (page_stride, token_stride, token_stride, 1)),
        "3-D": ((num_pages, page_size, width), (page_stride, token_stride, 1)),
        "2-D": ((num_pages, row_width), (page_stride, 1)),
    }[layout]
    return buffer.as_strided(shape, stride, offset)


def page_size_of(cache, layout="HND"):
    if cache.dim() == 2:
        return cache.shape[1] // TOKEN_BYTES
    return cache.shape[2] if cache.dim() == 4 and layout != "NHD" else cache.shape[1]


def num_slots(cache, layout="HND"):
    return cache.shape[0] * page_size_of(cache, layout)


def packed_views(cache, layout="HND"):
    """Token data [pages, P, 576] and scales [pages, P, 8] of a packed cache: views of its bytes."""
    pages, page_size, raw = cache.shape[0], page_size_of(cache, layout), cache.view(torch.uint8)
    start, page_stride = raw.storage_offset(), raw.stride(0)
    data = raw.as_strided((pages, page_size, DATA_BYTES), (page_stride, DATA_BYTES, 1), start)
    scales = raw.as_strided(
        (pages, page_size, SCALE_BYTES),
        (page_stride, SCALE_BYTES, 1),
        start + page_size * DATA_BYTES,
    )
    return data, scales


def fill(cache, slots, layout="HND", *, loc=0.0, spread=1.0):
    """Writes numbers of about N(loc, spread) into the named slots, and nothing else."""
    device, count = cache.device, len(slots)
    slots = slots.to(device)
    page_size = page_size_of(cache, layout)
    page, at = slots // page_size, slots % page_size
    values = loc + spread * torch.randn(count, HEAD_DIM, device=device)
    views = byte_views(cache, layout)
    if len(views) == 1:
        views[0][page, at] = values.to(cache.dtype).view(torch.uint8)
        return
    data, scales = views
    exponents = torch.randint(-8, -4, (count, 7), device=device)
    # Not torch.ldexp, which works on the current device whatever that of its arguments is.
    powers = ((127 - exponents) << 23).to(torch.int32).view(torch.float32)
    units = (values[:, :448] * powers.repeat_interleave(64, 1)).clamp(-448, 448)
    rope = values[:, 448:].to(torch.bfloat16).view(torch.uint8)
    nope = units.to(torch.float8_e4m3fn).view(torch.uint8)
    data[page, at] = torch.cat([nope, rope], 1)
    scales[page, at, :7] = (exponents + 127).to(torch.uint8)  # the pad byte keeps its poison


def copy_slots(source, target, slots, target_slots=None, layout="HND"):
    """Copies slots, bit for bit, to the same (or other) slots of a cache of the same page size."""
    target_slots = slots if target_slots is None else target_slots
    page_size = page_size_of(source, layout)
    for theirs, mine in zip(byte_views(source, layout), byte_views(target, layout), strict=True):
        mine[target_slots // page_size, target_slots % page_size] = theirs[
            slots // page_size, slots % page_size
        ]


def byte_views(cache, layout="HND"):
    """What a cache keeps of its slots, [pages, P, bytes] uint8: data and scales, or 512 numbers."""
    if cache.dim() == 2 or cache.shape[-1] == TOKEN_BYTES:
        return packed_views(cache, layout)
    rows = cache.squeeze(1 if layout != "NHD" else 2) if cache.dim() == 4 else cache
    return (rows.view(torch.uint8),)


# --- index tables


def lengths(rows, width, device="cpu"):
    """Any length, some beyond [0, width], and the two ends whenever there is room for them."""
    lens = torch.randint(0, width + 1, (rows,), dtype=torch.int32)
    specials = torch.tensor([width, 0, width + 5, -3, INT_MAX, INT_MIN], dtype=torch.int32)
    if rows > 2:
        at = torch.randperm(rows)[: min(rows // 2, len(specials))]
        lens[at] = specials[: len(at)]
    elif width > 0:
        lens.clamp_(min=1)
    return lens.to(device)


def index_table(rows, width, limit, lens, named, *, holes=0.1, device="cpu", spare=3):
    """[rows, width] int32, a slice of a wider table; `named` are slots (pages) that may be valid.

    Inside a row's length, a share `holes` of the lanes name nothing; beyond it, lanes hold stale
    values, among them slots that exist.
    """
    named = named.to(torch.int64)
    is_hole = torch.rand(rows, width) < holes
    holes = draw(no_slots(limit), rows, width)
    lanes = torch.where(is_hole, holes, draw(named, rows, width))
    return with_stale_tails(lanes, limit, lens, named, device=device, spare=spare)


def with_stale_tails(lanes, limit, lens, named, *, device="cpu", spare=3):
    """The lanes as an int32 table, a slice of a wider one; those beyond a row's length are stale:
    numbers of no slot, and slots that exist and are not in `named`."""
    unnamed = torch.ones(limit, dtype=torch.bool).index_fill(0, named, False).nonzero().flatten()
    none = no_slots(limit)
    stale = torch.cat([none, unnamed.repeat(max(1, len(none) // max(1, len(unnamed))))])
    rows, width = lanes.shape
    beyond = torch.arange(width) >= lens.cpu().long()[:, None]
    lanes = torch.where(beyond, draw(stale, rows, width), lanes)
    wide = torch.cat([lanes, draw(stale, rows, spare)], dim=1)
    return wide.to(torch.int32).to(device)[:, :width]


def no_slots(limit):
    """Numbers that name no slot of `limit`."""
    return torch.tensor([-1, INT_MIN, limit, INT_MAX, -7, limit + 1])


def draw(choices, rows, columns):
    return choices[torch.randint(len(choices), (rows, columns))]


def valid_slots(indices, lens, num_slots, page_size=None):
    """The slots that a table names validly, sorted. A page table when page_size is given."""
    indices = indices.long()
    if page_size is not None:
        indices = (
            indices[..., None] * page_size + torch.arange(page_size, device=indices.device)
        ).flatten(1)
    column = torch.arange(indices.shape[1], device=indices.device)
    valid = (indices >= 0) & (indices < num_slots) & (column < lens.long()[:, None])
    return indices[valid].unique()


# --- problems


@dataclass
class Segment:
    cache: torch.Tensor
    indices: torch.Tensor  # [rows, columns]
    lens: torch.Tensor  # [rows] int32, as the reference sees them
    page_table: bool = False

    @property
    def rows_per_table(self):
        """A table for several rows is [batch, q_len, columns], expanded over q_len."""
        return self.indices.shape[1] if self.indices.dim() == 3 else 1

    @property
    def tables(self):
        return self.indices[:, 0] if self.indices.dim() == 3 else self.indices


@dataclass
class Problem:
    """One decode in one of the three forms: `token_sparse`, `hca` or `packed`."""

    form: str
    layout: str
    query: torch.Tensor  # [batch, q_len, heads, 512] or [rows, heads, 512]
    swa: Segment
    compressed: Segment | None
    seq_lens: torch.Tensor | None = None
    cum_seq_lens_q: torch.Tensor | None = None
    max_q_len: int | None = None
    table: torch.Tensor | None = None  # token_sparse: both index tables side by side

    @property
    def rows(self):
        return self.query.shape[:-2].numel()

    @property
    def rows_per_table(self):
        return 1 if self.compressed is None else self.compressed.rows_per_table

    @property
    def rows_per_group(self):
        """Rows that a GPU may decode together, as workspace_size wants to know it."""
        return self.query.shape[1] if self.form == "hca" else self.rows_per_table

    @property
    def segments(self):
        return [segment for segment in (self.swa, self.compressed) if segment is not None]

    @property
    def widths(self):
        """Slots a row of each table."""
        return [
            s.indices.shape[-1] * (page_size_of(s.cache, self.layout) if s.page_table else 1)
            for s in self.segments
        ]

    @property
    def kv_layout(self):
        return "NHD" if self.layout == "NHD" else "HND"

    def inputs(self):
        """The seven tensors of reference.decode."""
        query = self.query.reshape(-1, *self.query.shape[-2:])
        parts = []
        for segment in self.segments:
            table = segment.indices.reshape(self.rows, -1)
            if segment.page_table:
                table = reference.page_slots(table, page_size_of(segment.cache, self.layout))
            parts += [
                reference.dequantise(segment.cache, self.kv_layout),
                table,
                segment.lens.flatten(),
            ]
        return reference.Inputs(query, *parts)

    def op_args(self):
        """Arguments of torch.ops.dsv4.sparse_mla_decode."""
        args = dict(query=self.query, swa_kv_cache=self.swa.cache, swa_indices=self.swa.indices)
        args["kv_layout"] = self.kv_layout
        if self.seq_lens is None:
            args["swa_lens"] = self.swa.lens
        else:
            args.update(seq_lens=self.seq_lens, cum_seq_lens_q=self.cum_seq_lens_q)
        if self.compressed is not None:
            offset = 0 if self.form == "packed" else WINDOW
            args.update(
                compressed_kv_cache=self.compressed.cache,
                compressed_indices=self.compressed.indices,
                compressed_lens=offset_lens(self.compressed.lens, offset),
                compressed_lens_offset=offset,
                page_table=self.compressed.page_table,
            )
        return args

    def door_args(self):
        """Arguments of dsv4.batch_decode_sparse_mla_dsv4, workspace_buffer apart."""
        args = dict(query=self.query, swa_kv_cache=self.swa.cache)
        args["kv_layout"] = self.kv_layout
        if self.form == "packed":
            args.update(
                backend="sparse", sparse_indices=self.swa.indices, swa_topk_lens=self.swa.lens
            )
            if self.compressed is not None:
                args.update(
                    compressed_kv_cache=self.compressed.cache,
                    extra_sparse_indices=self.compressed.indices,
                    extra_sparse_topk_lens=self.compressed.lens,
                )
            return args
        args["compressed_kv_cache"] = self.compressed.cache
        args["sparse_topk_lens"] = offset_lens(self.compressed.lens, WINDOW)
        if self.form == "hca":
            args.update(
                backend="cute-dsl",
                hca_swa_indices=self.swa.indices,
                swa_topk_lens=self.swa.lens,
                hca_compressed_block_tables=self.compressed.tables,
                hca_seq_lens=self.query.new_full(self.query.shape[:1], INT_MAX, dtype=torch.int32),
            )
        else:
            args.update(
                backend="trtllm-gen", sparse_indices=self.table, seq_lens=self.seq_lens,
                cum_seq_lens_q=self.cum_seq_lens_q, max_q_len=self.max_q_len,
            )  # fmt: skip
        return args


def select(problem, rows):
    """The given rows of a problem of dense rows (q_len 1), as a problem of its own."""
    at = torch.tensor(rows, dtype=torch.int64, device=problem.query.device)
    seq_lens = None if problem.seq_lens is None else problem.seq_lens[at]
    return replace(with_rows(problem, at), query=take(problem.query, at), seq_lens=seq_lens)


def with_rows(problem, at):
    """The problem with those rows of its tables and lengths."""

    def rows_of(segment):
        if segment is None:
            return None
        return replace(segment, indices=segment.indices[at], lens=segment.lens[at])

    table = None if problem.table is None else problem.table[at]
    return replace(
        problem, swa=rows_of(problem.swa), compressed=rows_of(problem.compressed), table=table
    )


def copy_bits(source, target):
    """target.copy_(source), bit for bit, for every dtype."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[target.element_size()]
    target.view(bits).copy_(source.view(bits))


def take(tensor, at):
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.view(bits)[at].view(tensor.dtype)


def offset_lens(lens, offset):
    """lens + offset, not wrapping where lens is an extreme value."""
    return (lens.long() + offset).clamp(INT_MIN, INT_MAX).to(torch.int32)


def problem(
    form,
    fmt,
    heads,
    w1=WINDOW,
    w2=512,
    *,
    p1=64,
    p2=64,
    batch=3,
    q_len=1,
    layout="HND",
    flat=False,
    holes=0.1,
    q_lens=None,
    lens=None,
    padded=True,
    page_pad=HEAD_DIM + 64,
    spread=1.0,
    one_table=False,
    device="cpu",
):
    """A random hostile problem. w1, w2: slots a row of each table; p1, p2: page sizes.

    layout: HND, NHD, 3-D or 2-D. flat: a 3-D query where the form allows it. q_lens: a varlen
    token_sparse batch. lens: "full" for rows without a tail. padded: there is NaN between pages,
    and between the tokens of 512-wide caches; page_pad: elements between pages of the latter.
    one_table: the rows of a request have one compressed table; "copies": each has its own, which
    says the same as far as the row goes.
    """
    rows = sum(q_lens) if q_lens is not None else batch * q_len
    segment_args = dict(
        layout=layout,
        holes=holes,
        full=lens == "full",
        padded=padded,
        page_pad=page_pad,
        spread=spread,
    )
    seq_lens = swa_lens = table = cum = None
    if form == "token_sparse":
        per_request = torch.tensor(q_lens if q_lens is not None else [q_len] * batch)
        seq_lens, swa_lens = causal_lens(per_request, w1, full=lens == "full")
        cum = torch.cat([torch.zeros(1, dtype=torch.int64), per_request.cumsum(0)]).to(torch.int32)
    swa = segment(rows, w1, p1, fmt, lens=swa_lens, device=device, **segment_args)
    compressed = None
    if w2:
        paged = form == "hca"
        compressed = segment(
            rows, w2, p2, fmt, page_table=paged, rows_per_table=q_len if one_table else 1,
            copies=one_table == "copies", device=device, **segment_args,
        )  # fmt: skip
    if form == "token_sparse":
        table = torch.cat([swa.indices, compressed.indices], 1)
        swa.indices, compressed.indices = table[:, :w1], table[:, w1:]
        seq_lens = seq_lens.to(device)

    query = 0.1 + torch.randn(rows, heads, HEAD_DIM + 64, device=device)
    query = query.to(DTYPES["e4m3" if fmt == "e4m3" else "bf16"])[..., :HEAD_DIM]
    if q_lens is None and not flat:
        query = query.unflatten(0, (batch, q_len))
    return Problem(
        form,
        layout,
        query,
        swa,
        compressed,
        seq_lens,
        cum.to(device) if q_lens is not None else None,
        max(q_lens) + 1 if q_lens is not None else None,
        table,
    )


def causal_lens(q_lens, width, full=False):
    """seq_lens of requests with these numbers of rows, and the window length of each row."""
    choices = torch.tensor([0, 1, 5, width - 1, width, width + 1, 1000, 100_000])
    seq_lens = choices[torch.randint(len(choices), (len(q_lens),))]
    if full:
        seq_lens = q_lens + width
    starts = q_lens.cumsum(0) - q_lens
    request = torch.repeat_interleave(torch.arange(len(q_lens)), q_lens)
    query_idx = torch.arange(int(q_lens.sum())) - starts[request]
    lens = (seq_lens - q_lens)[request] + query_idx + 1
    return seq_lens.to(torch.int32), lens.clamp(0, width).to(torch.int32)


def segment(
    rows,
    width,
    page_size,
    fmt,
    *,
    layout="HND",
    holes=0.1,
    lens=None,
    full=False,
    page_table=False,
    padded=True,
    page_pad=HEAD_DIM + 64,
    spread=1.0,
    loc=0.0,
    num_pages=None,
    rows_per_table=1,
    copies=False,
    device="cpu",
):
    """A cache, a table of `width` slots a row, and lengths; only valid slots hold numbers."""
    if num_pages is None:
        num_pages = max(3, -(-min(2 * width, 2048) // page_size))
    num_slots = num_pages * page_size
    columns = -(-width // page_size) if page_table else width
    if lens is None:
        lens = torch.full((rows,), width, dtype=torch.int32) if full else lengths(rows, width)
    limit = num_pages if page_table else num_slots
    # Slot (or page) 0 is never named: a hole that is read as slot 0 shows.
    named = 1 + torch.randperm(limit - 1)[: max(1, limit // 2)]
    covered = (lens.long().clamp(0, width) + page_size - 1) // page_size if page_table else lens
    longest = covered.view(-1, rows_per_table).amax(1)
    indices = index_table(len(longest), columns, limit, longest, named, holes=holes, device=device)
    if copies:
        lanes = indices.long().cpu().repeat_interleave(rows_per_table, 0)
        indices = with_stale_tails(lanes, limit, covered, named, device=device)
    elif rows_per_table > 1:
        indices = indices[:, None].expand(-1, rows_per_table, -1)
    return segment_of(
        indices, lens, page_size, num_pages, fmt, layout=layout, page_table=page_table,
        padded=padded, page_pad=page_pad, spread=spread, loc=loc, device=device,
    )  # fmt: skip


def segment_of(
    indices,
    lens,
    page_size,
    num_pages,
    fmt,
    *,
    layout="HND",
    page_table=False,
    padded=True,
    page_pad=HEAD_DIM + 64,
    spread=1.0,
    loc=0.0,
    device="cpu",
):
    """A segment with this table, and a cache in which only its valid slots hold numbers."""
    pads = {}
    if padded and fmt == "packed":  # to a multiple of 576 bytes, as engines do
        pads = dict(page_pad=-page_size * TOKEN_BYTES % DATA_BYTES, offset=64)
    elif padded:
        pads = dict(page_pad=page_pad, token_pad=64, offset=64)
    pool = cache(num_pages, page_size, fmt, layout, device=device, **pads)
    slots = valid_slots(
        indices.reshape(len(lens), -1), lens.to(device), num_pages * page_size,
        page_size if page_table else None,
    )  # fmt: skip
    fill(pool, slots, layout, spread=spread, loc=loc)
    return Segment(pool, indices, lens.to(device), page_table)


# --- outputs and guarded memory


def outputs(problem, *, strided=True):
    """out and lse full of NaN, slices of wider buffers, and a check of what lies around them."""
    lead, heads = problem.query.shape[:-2], problem.query.shape[-2]
    device, pad = problem.query.device, 64 if strided else 0
    head_pad = 3 if strided else 0
    out = torch.full((*lead, heads + head_pad, HEAD_DIM + pad), float("nan"), device=device)
    out = out.to(torch.bfloat16)
    lse = torch.full((*lead, heads + head_pad), float("nan"), device=device)

    def assert_margins_untouched():
        assert out[..., heads:, :].isnan().all() and out[..., HEAD_DIM:].isnan().all()
        assert lse[..., heads:].isnan().all()

    return out[..., :heads, :HEAD_DIM], lse[..., :heads], assert_margins_untouched


_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(tensor):
    """A copy whose last element ends where readable memory ends: one byte further is a fault.

    Strides are kept. The mapping is never unmapped; it is a few pages.
    """
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in steps)
    num_bytes = span * tensor.element_size()
    size = -(-num_bytes // _PAGE) * _PAGE
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc.mmap(None, size + _PAGE, access, kind, -1, 0)
    assert base not in (None, ctypes.c_void_p(-1).value), "mmap failed"
    assert _libc.mprotect(base + size, _PAGE, 0) == 0
    memory = (ctypes.c_uint8 * num_bytes).from_address(base + size - num_bytes)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    source = tensor.as_strided((span,), (1,), tensor.storage_offset())
    flat.copy_(source.contiguous().view(torch.uint8))
    return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


def sparse_memory(num_bytes):
    """Zeros that take no memory until they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.uint8)


def compacted(segment, layout="HND"):
    """(pool, indices) of the reference for a segment of a cache too large to dequantise whole."""
    page_size = page_size_of(segment.cache, layout)
    kv_layout = "NHD" if layout == "NHD" else "HND"
    num_slots = segment.cache.shape[0] * page_size
    slots = valid_slots(segment.indices, segment.lens, num_slots)
    pages = (slots // page_size).unique()
    pool = torch.cat(
        [reference.dequantise(segment.cache[p : p + 1], kv_layout) for p in pages.tolist()]
    )
    indices = segment.indices.long()
    inside = (indices >= 0) & (indices < num_slots)
    at = torch.searchsorted(pages, indices.clamp(0, num_slots - 1) // page_size)
    return pool, torch.where(inside, at * page_size + indices % page_size, -1)


# --- running a problem


_OP_NAMES = {"scale1": "bmm1_scale", "scale2": "bmm2_scale"}


def run(problem, *, door="op", workspace="best", strided=True, threads=None, **options):
    """(out, lse) of a problem, from poisoned buffers. Options are named as in reference.decode.

    door: "op" for torch.ops.dsv4.sparse_mla_decode.out, "front" for the FlashInfer-named function.
    workspace: "best", "none", or a number of bytes. threads: CPU threads, for more parts a row.
    """
    simulated.skip_if_too_long(problem.rows, problem.query.shape[-2], sum(problem.widths))
    out, lse, assert_margins_untouched = outputs(problem, strided=strided)
    options = {_OP_NAMES.get(name, name): value for name, value in options.items()}
    with num_threads(threads):
        buffer = workspace_for(problem, workspace, options.get("batch_invariant", False))
        if door == "front":
            returned = dsv4.batch_decode_sparse_mla_dsv4(
                **problem.door_args(), **options, workspace_buffer=buffer.bytes, out=out, lse=lse
            )
            assert returned.data_ptr() == out.data_ptr()
            assert returned.shape == out.shape
        else:
            for name in ("bmm1_scale", "bmm2_scale"):
                if isinstance(options.get(name), torch.Tensor):
                    options[f"{name}_tensor"] = options.pop(name)
            torch.ops.dsv4.sparse_mla_decode.out(
                **problem.op_args(), **options, workspace=buffer.bytes, out=out, lse=lse
            )
    assert_margins_untouched()
    buffer.assert_untouched_behind()
    return out, lse


def check(problem, *, door="op", workspace="best", strided=True, threads=None, **options):
    """Runs a problem and compares it with the reference; (out, lse)."""
    out, lse = run(
        problem, door=door, workspace=workspace, strided=strided, threads=threads, **options
    )
    options.pop("batch_invariant", None)
    assert_close(out, lse, *problem.inputs(), **options)
    return out, lse


# What the engine under test rounds the weights of e4m3 caches to; conftest.py sets it.
e4m3_cache_weights = torch.bfloat16


def weights_of(inputs):
    """What the engine under test rounds weights to."""
    return e4m3_cache_weights if inputs[0].dtype == torch.float8_e4m3fn else torch.bfloat16


def assert_close(out, lse, *inputs, **options):
    """reference.assert_close, as strict as the engine under test allows."""
    return reference.assert_close(out, lse, *inputs, weights=weights_of(inputs), **options)


@contextlib.contextmanager
def num_threads(count):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count or before)
        yield
    finally:
        torch.set_num_threads(before)


class Workspace:
    """Bytes full of 0xFF, with more of them behind that nobody may touch."""

    def __init__(self, num_bytes, device):
        self._all = torch.full((num_bytes + 256,), 0xFF, dtype=torch.uint8, device=device)
        self.bytes = self._all[:num_bytes]

    def assert_untouched_behind(self):
        assert (self._all[self.bytes.numel() :] == 0xFF).all()


def workspace_for(problem, workspace="best", batch_invariant=False):
    if workspace == "none":
        workspace = 0
    elif workspace == "best":
        workspace = dsv4.workspace_size(
            problem.rows, problem.query.shape[-2], *problem.widths, device=problem.query.device,
            batch_invariant=batch_invariant, table_rows=problem.rows_per_group,
        )  # fmt: skip
    return Workspace(workspace, problem.query.device)


def same_bits(a, b):
    """Whether two sequences of tensors hold the same bits, NaN included."""
    return all(
        torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )
