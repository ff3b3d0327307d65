"""The shapes that FlashInfer 0.7 tests its own DeepSeek-V4 decode with, through its own arguments.

Pages, widths, heads, lengths and tables are those of

    test_trtllm_gen_sparse_mla_dsv4.py   token-sparse: decode and prefill-style batches
    test_cute_dsl_hca_dsv4.py            HCA: rotated windows, partial head tiles, empty attention
    test_sparse_mla_sm120.py             packed: heads x top-k, one segment and two

with more head counts, pages and contexts for HCA. Tolerances are theirs (PEER) and this package's
own, side by side. The bytes are hostile as everywhere here: NaN in what no valid slot names, stale
lanes beyond the lengths. In the simulator a shape keeps its pages and widths, and runs with fewer
rows or, where the rows are the point, with fewer heads.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import pad

import cases
import dsv4
import simulated
from dsv4 import reference

WINDOW, SCALE = cases.WINDOW, cases.SOFTMAX_SCALE
FORMATS = ["bf16", "e4m3"]

# By form and cache format. FlashInfer has no bf16 HCA: held to the same.
PEER = {
    ("token_sparse", "bf16"): dict(rtol=2e-2, atol=8e-4),
    ("token_sparse", "e4m3"): dict(rtol=1e-1, atol=1e-1),
    ("hca", "bf16"): dict(rtol=1e-5, atol=0.13),
    ("hca", "e4m3"): dict(rtol=1e-5, atol=0.13),
    ("packed", "packed"): dict(rtol=5e-2, atol=5e-2),
}
PEER_SAME = dict(rtol=0, atol=2.0**-8)  # between two ways to do one decode


class Judge:
    """The exact decode of a problem, for as many of its rows as take a moment."""

    def __init__(self, problem, fmt, **options):
        self._peer = PEER[problem.form, fmt]
        inputs = problem.inputs()
        rows, heads, _ = inputs.query.shape
        count = max(1, 400_000 // (max(heads, 32) * sum(problem.widths)))
        self._rows = torch.randperm(rows)[:count].to(inputs.query.device)
        inputs = rows_of(inputs, self._rows)
        self._out, self._lse, out_error, lse_error = reference.bounds(
            *inputs, weights=cases.weights_of(inputs), **options
        )
        self._out_error, self._lse_error = out_error[..., None], lse_error[..., None]

    def assert_close(self, out, lse):
        assert out.isfinite().all()
        out = out.flatten(0, -3)[self._rows].double()
        lse = lse.flatten(0, -2)[self._rows].double()
        assert ((out - self._out).abs() <= self._out_error).all()
        same = lse == self._lse  # infinities, too
        assert (same | ((lse - self._lse).abs() <= self._lse_error)).all()
        torch.testing.assert_close(out, self._out, **self._peer)


def rows_of(inputs, rows):
    """Some rows of reference.Inputs, with pools of no more slots than these rows name."""

    def segment(pool, indices, lens):
        if pool is None:
            return None, None, None
        indices = indices[rows].long()
        in_pool = (indices >= 0) & (indices < pool.shape[0])
        named, lanes = torch.where(in_pool, indices, 0).unique(return_inverse=True)
        return pool[named], torch.where(in_pool, lanes, -1), lens[rows]

    return reference.Inputs(inputs.query[rows], *segment(*inputs[1:4]), *segment(*inputs[4:]))


def run(problem, **options):
    """(out, lse) of the front door, into tensors without a gap."""
    return cases.run(problem, door="front", strided=False, **options)


def check(problem, fmt, *, workspace="best", **options):
    out, lse = run(problem, workspace=workspace, **options)
    Judge(problem, fmt, **options).assert_close(out, lse)
    return out, lse


# --- tables and segments


def shuffled_pages(owners, pages_each):
    """[owners, pages_each] page numbers, all different, in no order."""
    return torch.randperm(owners * pages_each).reshape(owners, pages_each)


def slots_at(positions, pages, page_size):
    """The slots of positions [rows, columns], which the pages [rows, pages] hold in order."""
    return pages.gather(1, positions // page_size) * page_size + positions % page_size


def window_positions(last):
    """[rows, 128]: the newest positions up to the last of each row, oldest first, then the last."""
    oldest = (last + 1 - WINDOW).clamp(min=0)
    return (oldest[:, None] + torch.arange(WINDOW)).minimum(last[:, None])


def plain_segment(lanes, lens, page_size, num_pages, fmt, device, page_table=False, **options):
    """A segment of these lanes, with stale ones beyond the lengths and no gap in the cache."""
    active, limit = lens, num_pages * page_size
    if page_table:
        active, limit = (lens + page_size - 1) // page_size, num_pages
    named = lanes[torch.arange(lanes.shape[1]) < active[:, None]]
    indices = cases.with_stale_tails(
        lanes, limit, active, named[named >= 0], device=device, spare=0
    )
    return cases.segment_of(
        indices, lens.int(), page_size, num_pages, fmt, page_table=page_table, padded=False,
        device=device, **options,
    )  # fmt: skip


def make_query(shape, fmt, device, spread=1.0):
    return (spread * torch.randn(*shape, 512, device=device)).to(cases.DTYPES[fmt])


# --- token-sparse

SWA_PAGE = 256
PAGE = {"c4": 64, "c128": 2}  # of the compressed cache


def compressed_width(kind, heads, cached):
    """Columns beyond the window's, for requests of so many compressed slots or fewer."""
    if kind == "c4":
        return {64: 512, 128: 1024}.get(heads, 8 * heads)
    return -(-cached // 4) * 4  # all of them


def token_sparse(kind, fmt, heads, swa_cached, cached, q_lens, layout="HND", device="cpu"):
    """A varlen batch; of a request, its window and some of its compressed slots, in any order.

    Keys lie about FlashInfer's offsets, one for each cache: its absolute tolerance is for such.
    Queries are large enough that weights differ by factors.
    """
    q_lens = torch.tensor(q_lens)
    requests, rows = torch.arange(len(q_lens)), int(q_lens.sum())
    request = requests.repeat_interleave(q_lens)
    query_idx = torch.arange(rows) - (q_lens.cumsum(0) - q_lens)[request]
    options = dict(fmt=fmt, layout=layout, spread=0.25, device=device)

    seq_lens = swa_cached + SWA_PAGE * requests
    last = (seq_lens - q_lens)[request] + query_idx
    pages = shuffled_pages(len(requests), -(-int(seq_lens.max()) // SWA_PAGE))
    lanes = slots_at(window_positions(last), pages[request], SWA_PAGE)
    lens = (last + 1).clamp(max=WINDOW)
    swa = plain_segment(lanes, lens, SWA_PAGE, pages.numel(), loc=-0.20, **options)
    if kind == "swa":
        compressed = cases.Segment(swa.cache, swa.indices[:, :0], torch.zeros_like(swa.lens))
    else:
        page_size = PAGE[kind]
        cached = cached + page_size * requests
        width = compressed_width(kind, heads, int(cached.max()))
        chosen = [torch.randperm(n)[:width] for n in cached[request].tolist()]
        chosen = torch.stack([pad(slots, (0, width - len(slots))) for slots in chosen])
        pages = shuffled_pages(len(requests), int(cached.max()) // page_size)
        lanes = slots_at(chosen, pages[request], page_size)
        lens = width - width // 16 * request - query_idx if kind == "c4" else cached[request]
        compressed = plain_segment(lanes, lens, page_size, pages.numel(), loc=0.25, **options)
    table = torch.cat([swa.indices, compressed.indices], 1)
    swa.indices, compressed.indices = table[:, :WINDOW], table[:, WINDOW:]
    return cases.Problem(
        "token_sparse", layout, make_query((rows, heads), fmt, device, spread=4.0), swa, compressed,
        seq_lens=seq_lens.int().to(device),
        cum_seq_lens_q=pad(q_lens.cumsum(0), (1, 0)).int().to(device),
        max_q_len=int(q_lens.max()), table=table,
    )  # fmt: skip


def fewer(q_lens, heads, width):
    """The q_lens; in the simulator with fewer rows, taken from the longest requests."""
    q_lens = list(q_lens)
    for _ in range(sum(q_lens) - simulated.fewer_rows(sum(q_lens), heads, width)):
        q_lens[q_lens.index(max(q_lens))] -= 1
    return q_lens


def check_token_sparse(problem, fmt):
    device = problem.query.device
    options = dict(sinks=0.05 * torch.randn(problem.query.shape[-2], device=device), scale1=SCALE)
    if fmt == "e4m3":  # where FlashInfer's caller has its scales on the device
        options.update(
            scale1=torch.tensor([SCALE], device=device), scale2=torch.ones(1, device=device)
        )
    check(problem, fmt, **options)


def decode_shapes():
    """(heads, kind, slots behind the window, compressed slots, layout)."""
    short = dict(swa=(512, 0), c4=(512, 1024), c128=(512, 128))
    long = dict(swa=(1024, 0), c4=(1024, 2048), c128=(1024, 256))
    return [
        (heads, kind, *cached, layout)
        for kinds, head_counts, layouts in [
            (short, [8, 16, 32, 64, 128], ["HND", "NHD"]),
            (long, [64, 128], ["NHD"]),
        ]
        for heads, (kind, cached), layout in itertools.product(head_counts, kinds.items(), layouts)
    ]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("heads", "kind", "swa_cached", "cached", "layout"), decode_shapes())
def test_token_sparse_decode(engine, heads, kind, swa_cached, cached, layout, fmt):
    q_lens = fewer([3, 4, 5], heads, WINDOW + compressed_width(kind, heads, cached))
    problem = token_sparse(kind, fmt, heads, swa_cached, cached, q_lens, layout, engine.device)
    check_token_sparse(problem, fmt)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("kind", "heads", "cached", "batch"),
    [("c4", 64, 1024, 2), ("c4", 16, 1024, 3), ("c128", 32, 128, 3), ("swa", 128, 0, 3)],
)
def test_token_sparse_dense_queries(engine, kind, heads, cached, batch, fmt):
    q_len = 1 if simulated.is_loaded() else 5
    problem = token_sparse(kind, fmt, heads, 512, cached, [q_len] * batch, device=engine.device)
    problem.query = problem.query.unflatten(0, (batch, q_len))
    problem.cum_seq_lens_q = problem.max_q_len = None
    check_token_sparse(problem, fmt)


@pytest.mark.parametrize("fmt", FORMATS)
def test_token_sparse_queries_are_the_whole_context(engine, fmt):
    """128 queries of 128 tokens: the window of query i has i + 1 slots."""
    heads = 16 if simulated.is_loaded() else 64
    problem = token_sparse("swa", fmt, heads, 128, 0, [128], device=engine.device)
    assert problem.swa.lens.tolist() == list(range(1, 129))
    check_token_sparse(problem, fmt)


@pytest.mark.parametrize(
    ("context", "heads", "fmt"),
    [(4096, 64, "bf16"), (4096, 128, "e4m3"), (16_384, 64, "e4m3"), (16_384, 128, "bf16")],
)
def test_token_sparse_prefill(engine, context, heads, fmt):
    q_lens = fewer([129, 257], heads, WINDOW + compressed_width("c4", heads, context))
    problem = token_sparse("c4", fmt, heads, context, context, q_lens, device=engine.device)
    check_token_sparse(problem, fmt)


# --- HCA


def hca(fmt, heads, batch, swa, compressed, layout="3-D"):
    rows = swa.indices.shape[0]
    q = make_query((batch, rows // batch, heads), fmt, swa.cache.device)
    return cases.Problem("hca", layout, q, swa, compressed)


def private_windows(lens, page_size, **options):
    """Each row a ring of 128 slots of its own, each begun at another place."""
    rows = torch.arange(len(lens))
    pages = shuffled_pages(len(lens), WINDOW // page_size)
    positions = (torch.arange(WINDOW) + 7 + 24 * rows[:, None]) % WINDOW
    lanes = slots_at(positions, pages, page_size)
    return plain_segment(lanes, torch.tensor(lens), page_size, pages.numel(), **options)


def compressed_pages(lens, q_len, page_size, slots, **options):
    """A page table that covers so many slots, the same for all rows of a request."""
    pages = shuffled_pages(len(lens) // q_len, -(-slots // page_size))
    lanes = pages.repeat_interleave(q_len, 0)
    lens = torch.tensor(lens)
    return plain_segment(lanes, lens, page_size, pages.numel(), page_table=True, **options)


HCA_SHAPES = [  # heads, page sizes of window and compressed cache, format
    *[(128, 32, 128, "e4m3"), (64, 32, 128, "e4m3"), (128, 32, 16, "e4m3"), (128, 16, 32, "e4m3")],
    *[(96, 32, 128, "e4m3"), (112, 16, 32, "e4m3"), (40, 32, 16, "e4m3"), (8, 64, 2, "e4m3")],
    *[(128, 32, 128, "bf16"), (112, 16, 16, "bf16"), (40, 64, 2, "bf16")],
]


def two_by_two(heads, p1, p2, fmt, device, layout="3-D"):
    """Two queries of two requests, the rows' windows in pages of their own."""
    options = dict(fmt=fmt, device=device, layout=layout)
    swa = private_windows([127, 128, 128, 128], p1, **options)
    compressed = compressed_pages([0, 1, 128, 129], 2, p2, 256, **options)
    return hca(fmt, heads, 2, swa, compressed, layout)


@pytest.mark.parametrize(("heads", "p1", "p2", "fmt"), HCA_SHAPES)
def test_hca_rows_of_their_own(engine, heads, p1, p2, fmt):
    heads = min(heads, 40) if simulated.is_loaded() else heads
    problem = two_by_two(heads, p1, p2, fmt, engine.device)
    sinks = torch.linspace(4, 6, heads, device=engine.device)
    check(problem, fmt, sinks=sinks, scale1=SCALE)
    if not simulated.is_loaded():
        check(problem, fmt, sinks=torch.zeros_like(sinks), scale1=SCALE)
        check(problem, fmt, scale1=SCALE)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("p1", "p2", "layout"), [(32, 128, "3-D"), (16, 32, "HND"), (64, 2, "NHD")]
)
def test_hca_is_what_token_rows_say(engine, p1, p2, layout, fmt):
    heads = 16 if simulated.is_loaded() else 128
    problem = two_by_two(heads, p1, p2, fmt, engine.device, layout)
    swa, compressed = problem.segments
    out, _ = check(problem, fmt, scale1=SCALE)
    slots = reference.page_slots(compressed.indices, p2).clamp(-1, cases.INT_MAX)
    arguments = dict(
        query=problem.query, swa_kv_cache=swa.cache, compressed_kv_cache=compressed.cache,
        sparse_indices=torch.cat([swa.indices, slots.int()], 1), workspace_buffer=None,
        kv_layout=problem.kv_layout,
        sparse_topk_lens=compressed.lens + WINDOW, bmm1_scale=SCALE,
        seq_lens=torch.tensor([128, 16_512], dtype=torch.int32, device=engine.device),
    )  # fmt: skip
    for way in [
        dict(backend="cute-dsl", hca_sparse_indices_format="compressed-page-aligned"),
        dict(backend="trtllm-gen"),
    ]:
        same = dsv4.trtllm_batch_decode_sparse_mla_dsv4(**arguments, **way)
        torch.testing.assert_close(same, out, **PEER_SAME)


@pytest.mark.parametrize(("heads", "p1", "p2", "fmt"), HCA_SHAPES)
def test_hca_partial_head_tiles_and_empty_attention(engine, heads, p1, p2, fmt):
    """One row of 384 slots, in a page table of twice its compressed slots; then one of none."""
    options = dict(fmt=fmt, device=engine.device, layout="3-D")
    swa = private_windows([128], p1, **options)
    compressed = compressed_pages([256], 1, p2, 512, **options)
    problem = hca(fmt, heads, 1, swa, compressed)
    sinks = torch.linspace(2, 3, heads, device=engine.device)
    check(problem, fmt, sinks=sinks, scale1=SCALE)
    swa.lens.zero_()
    compressed.lens.zero_()
    for options in dict(workspace="none"), dict(workspace="best", sinks=sinks):
        out, lse = run(problem, **options)
        assert out.eq(0).all()
        assert lse.isneginf().all()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("ring", "p1"), [(128, 32), (256, 32), (192, 16), (256, 256)])
@pytest.mark.parametrize("length", [126, 5000])
def test_hca_window_in_a_ring(engine, fmt, ring, p1, length):
    """The windows of a request's queries, where position p stands at p % ring."""
    batch, heads = 2, 24
    options = dict(fmt=fmt, device=engine.device, layout="3-D")
    q_len = min(4, ring - WINDOW + 1)  # a ring of 128 slots holds the window of one query
    last = (length + 77 * torch.arange(batch)[:, None] + torch.arange(q_len)).flatten()
    pages = shuffled_pages(batch, ring // p1).repeat_interleave(q_len, 0)
    lanes = slots_at(window_positions(last) % ring, pages, p1)
    swa_lens = (last + 1).clamp(max=WINDOW)
    swa = plain_segment(lanes, swa_lens, p1, batch * ring // p1, **options)
    lens = ((last + 1) // 128).tolist()
    compressed = compressed_pages(lens, q_len, 2, max(2, *lens), **options)
    check(hca(fmt, heads, batch, swa, compressed), fmt, scale1=SCALE)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("context", "p2"), [(4096, 32), (2**17, 128), (2**20, 2)])
def test_hca_contexts_in_parts(engine, context, p2, fmt):
    """A row of all entries of a context: in one part, and merged of up to eight."""
    heads = 16 if simulated.is_loaded() else 128
    slots = context // 128
    options = dict(fmt=fmt, device=engine.device, layout="3-D")
    swa = private_windows([128], 32, **options)
    compressed = compressed_pages([slots], 1, p2, slots, **options)
    problem = hca(fmt, heads, 1, swa, compressed)
    options = dict(scale1=SCALE, sinks=torch.linspace(-1, 3, heads, device=engine.device))
    judge = Judge(problem, fmt, **options)
    unsplit = run(problem, workspace="none", **options)
    judge.assert_close(*unsplit)
    for parts in [8] if simulated.is_loaded() else range(1, 9):
        # Room for the results of so many parts in float32: out, and lse in whole lines.
        room = parts * heads * (512 + 1) * 4 + 64
        merged = run(problem, workspace=room, threads=16, **options)
        judge.assert_close(*merged)
        if cases.weights_of(problem.inputs()) != torch.float8_e4m3fn:
            torch.testing.assert_close(merged[0], unsplit[0], **PEER_SAME)


# --- packed


def packed(heads, rows, top_k, extra=None, *, lens=None, extra_lens=None, layout="HND", device):
    """Random slots; without a length, the second half of a table is -1."""
    swa = packed_segment(rows, top_k, 64, lens, layout, device)
    compressed = extra and packed_segment(rows, *extra, extra_lens, layout, device)
    q = make_query((rows, heads), "bf16", device)
    return cases.Problem("packed", layout, q, swa, compressed)


def packed_segment(rows, width, page_size, length, layout, device):
    num_pages = max(16, 2 * width // page_size)
    lanes = torch.randint(num_pages * page_size, (rows, width))
    if length is None:
        lanes[:, width // 2 :] = -1
    lens = torch.full((rows,), width if length is None else length)
    return plain_segment(lanes, lens, page_size, num_pages, "packed", device, layout=layout)


def packed_sinks(heads, device):
    return 2.0 * torch.randn(heads, device=device)


TOP_K = {
    8: [128, 192, 256, 512, 1024, 2048],
    16: [128, 192, 256, 384],
    32: [192, 256, 512],
    64: [192, 256, 1024],
    128: [192, 256, 1024],
}


@pytest.mark.parametrize(
    ("heads", "top_k"), [(heads, top_k) for heads in TOP_K for top_k in TOP_K[heads]]
)
@pytest.mark.parametrize(("rows", "with_sinks"), [(1, True), (65, False)])
def test_packed_one_segment(engine, heads, top_k, rows, with_sinks):
    rows = simulated.fewer_rows(rows, heads, top_k)
    problem = packed(heads, rows, top_k, device=engine.device)
    sinks = packed_sinks(heads, engine.device) if with_sinks else None
    check(problem, "packed", scale1=SCALE, sinks=sinks)


@pytest.mark.parametrize("heads", [8, 32])
@pytest.mark.parametrize(("top_k", "length"), [(192, 133), (256, 133), (512, 128)])
@pytest.mark.parametrize("rows", [16, 128])
def test_packed_lengths(engine, heads, top_k, length, rows):
    rows = simulated.fewer_rows(rows, heads, top_k)
    problem = packed(heads, rows, top_k, lens=length, device=engine.device)
    check(problem, "packed", scale1=SCALE)


@pytest.mark.parametrize(
    ("heads", "top_k", "rows", "layout"),
    [
        *[(32, 128, 7, "NHD"), (32, 192, 7, "HND"), (32, 256, 7, "HND")],
        *[(8, 192, 128, "HND"), (8, 256, 128, "HND")],
    ],
)
def test_packed_public_arguments(engine, heads, top_k, rows, layout):
    """Queries of [T, 1, H, 512], the backend left to be found, seq_lens given and not used."""
    rows = simulated.fewer_rows(rows, heads, top_k)
    problem = packed(heads, rows, top_k, lens=top_k, layout=layout, device=engine.device)
    problem.query = problem.query.unsqueeze(1)
    out, _ = check(problem, "packed", workspace="none", scale1=SCALE)
    arguments = problem.door_args() | {"backend": "auto"}
    same = dsv4.trtllm_batch_decode_sparse_mla_dsv4(
        **arguments, workspace_buffer=None, bmm1_scale=SCALE, seq_lens=problem.swa.lens
    )
    assert cases.same_bits([same], [out])


@pytest.mark.parametrize(
    ("heads", "extra", "rows"),
    [
        *itertools.product([8, 16, 32, 64, 128], [(128, 64), (512, 64), (512, 2)], [128]),
        *[(64, (1024, 2), 128), (64, (1664, 2), 128), (64, (1024, 64), 128), (16, (2176, 2), 1)],
    ],
)
def test_packed_two_segments(engine, heads, extra, rows):
    """`extra`: columns of the compressed table, page size of its cache."""
    rows = simulated.fewer_rows(rows, heads, 128 + extra[0])
    problem = packed(heads, rows, 128, extra, device=engine.device)
    check(problem, "packed", scale1=SCALE, sinks=packed_sinks(heads, engine.device))


@pytest.mark.parametrize(
    ("heads", "length", "extra", "extra_length"),
    [
        *[(8, 128, (512, 64), 0), (8, 128, (512, 64), 128), (8, 128, (512, 64), 768)],
        *[(64, 128, (512, 64), 0), (64, 128, (512, 64), 128), (64, 128, (512, 64), 768)],
        (32, 0, (128, 2), 128),
    ],
)
def test_packed_two_segments_lengths(engine, heads, length, extra, extra_length):
    """None of a segment, some of it, and a length beyond its width."""
    rows = simulated.fewer_rows(128, heads, 128 + extra[0])
    problem = packed(
        heads, rows, 128, extra, lens=length, extra_lens=extra_length, device=engine.device
    )
    check(problem, "packed", scale1=SCALE, sinks=packed_sinks(heads, engine.device))
