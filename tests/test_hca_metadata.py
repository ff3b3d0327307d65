"""HCA tables from combined token rows: the checked conversion, the capture-safe one, their use."""

import pytest
import torch

import cases
import dsv4
from dsv4 import reference

WINDOW = 128


class Rows:
    """Combined rows in canonical form, poison where nobody may look, and the tables they mean."""

    def __init__(self, seq_lens, q_len, page_size, *, capacity=None, num_pages=None, device="cpu"):
        self.q_len, self.page_size = q_len, page_size
        batch = len(seq_lens)
        rows = batch * q_len
        most = max(max(seq_lens) // 128, 1)
        columns = -(-most // page_size)
        self.num_pages = num_pages or batch * columns + 3
        self.swa_slots = 5 * 64
        visible = torch.tensor([n - q_len + i + 1 for n in seq_lens for i in range(q_len)])
        self.window_lens = visible.clamp(0, WINDOW).int()
        self.compressed_lens = (visible.clamp(min=0) // 128).int()
        pages = torch.randperm(self.num_pages)[: batch * columns].reshape(batch, columns)
        pages = pages.repeat_interleave(q_len, 0)
        slots = (pages[..., None] * page_size + torch.arange(page_size)).flatten(1)
        capacity = columns * page_size if capacity is None else capacity
        table = torch.full((rows, WINDOW + capacity), cases.INT_MIN)
        table[:, :WINDOW] = torch.randint(0, self.swa_slots, (rows, WINDOW))
        table[:, WINDOW:] = torch.nn.functional.pad(slots, (0, capacity), value=-1)[:, :capacity]
        beyond = torch.arange(WINDOW) >= self.window_lens[:, None]
        table[:, :WINDOW].masked_fill_(beyond, cases.INT_MAX)
        beyond = torch.arange(capacity) >= self.compressed_lens[:, None]
        table[:, WINDOW:].masked_fill_(beyond, cases.INT_MIN)
        wide = torch.full((rows, table.shape[1] + 5), cases.INT_MAX)
        wide[:, : table.shape[1]] = table
        self.sparse_indices = wide.int().to(device)[:, : table.shape[1]]
        self.sparse_topk_lens = (WINDOW + self.compressed_lens).to(device)
        self.seq_lens = torch.tensor(seq_lens, dtype=torch.int32, device=device)
        active_page = torch.arange(columns) * page_size < self.compressed_lens[:, None]
        self.wanted_pages = torch.where(active_page, pages, 0)
        self.wanted_window = torch.where(
            torch.arange(WINDOW) < self.window_lens[:, None], table[:, :WINDOW], 0
        )
        self.swa = torch.zeros(5, 1, 64, 512, dtype=torch.bfloat16, device=device)
        self.compressed = torch.zeros(
            self.num_pages, 1, page_size, 512, dtype=torch.bfloat16, device=device
        )

    def convert(self, **changes):
        args = dict(
            sparse_indices=self.sparse_indices, sparse_topk_lens=self.sparse_topk_lens,
            seq_lens=self.seq_lens, swa_kv_cache=self.swa, compressed_kv_cache=self.compressed,
            q_len=self.q_len,
        )  # fmt: skip
        args.update(changes)
        return dsv4.convert_compressed_page_aligned_sparse_indices_to_hca_metadata(**args)

    def make(self):
        return dsv4.hca_metadata(
            self.sparse_indices, self.seq_lens, self.swa, self.compressed, q_len=self.q_len
        )


SHAPES = [
    ([1, 130, 5000], 1, 2),
    ([300, 1024, 128, 129], 2, 64),
    ([4, 60_000], 4, 32),
    ([700, 127], 3, 69),
    ([128 * 40], 1, 1),
    ([256, 255, 257], 1, 256),
    ([100, 90], 5, 2),
]


@pytest.mark.parametrize(("seq_lens", "q_len", "page_size"), SHAPES)
@pytest.mark.parametrize("extra", [0, 1, 130])
def test_both_conversions_say_what_the_rows_say(engine, seq_lens, q_len, page_size, extra):
    rows = Rows(seq_lens, q_len, page_size, device=engine.device)
    if extra:
        rows = Rows(
            seq_lens, q_len, page_size, device=engine.device,
            capacity=rows.sparse_indices.shape[1] - WINDOW + extra,
        )  # fmt: skip
    for tables in (rows.convert(), rows.make()):
        assert tables.hca_is_causal is True
        for tensor in (
            tables.hca_swa_indices,
            tables.hca_compressed_block_tables,
            tables.hca_seq_lens,
            tables.swa_topk_lens,
        ):
            assert (tensor.dtype, tensor.device.type) == (torch.int32, engine.device)
        assert tables.swa_topk_lens.tolist() == rows.window_lens.tolist()
        assert tables.hca_seq_lens.tolist() == [128 + n // 128 for n in seq_lens]
        assert torch.equal(tables.hca_swa_indices.cpu().long(), rows.wanted_window)
        columns = rows.wanted_pages.shape[1]
        got = tables.hca_compressed_block_tables.cpu().long()
        assert torch.equal(got[:, :columns], rows.wanted_pages)
        assert got[:, columns:].eq(0).all()


def test_the_width_of_the_capture_safe_table_follows_from_shapes(engine):
    for capacity, page_size, columns in [
        (0, 64, 1),
        (1, 64, 1),
        (64, 64, 1),
        (65, 64, 2),
        (10, 2, 5),
    ]:
        rows = Rows([100], 1, page_size, capacity=capacity, num_pages=8, device=engine.device)
        assert rows.make().hca_compressed_block_tables.shape == (1, columns)


def test_capture_safe_conversion_makes_holes_of_what_it_may_not_use(engine):
    rows = Rows([1000], 1, 2, num_pages=20, device=engine.device)
    table = rows.sparse_indices
    table[0, 3] = -1
    table[0, 5] = rows.swa_slots
    table[0, 7] = cases.INT_MIN
    table[0, 128] += 1  # does not start a page
    table[0, 130] = 40  # past the end of 20 pages
    table[0, 132] = -2
    tables = rows.make()
    assert tables.hca_swa_indices[0, [3, 5, 7]].tolist() == [-1, -1, -1]
    assert tables.hca_compressed_block_tables[0, :4].tolist() == [
        -1,
        -1,
        -1,
        rows.wanted_pages[0, 3],
    ]


def test_lengths_shorter_than_the_queries(engine):
    """A padded request of a captured graph: length 0, so no query sees anything."""
    rows = Rows([300, 0, 2], 4, 2, device=engine.device)
    tables = rows.make()
    assert tables.swa_topk_lens.tolist() == [128, 128, 128, 128, 0, 0, 0, 0, 0, 0, 1, 2]
    assert tables.hca_seq_lens.tolist() == [130, 128, 128]
    assert tables.hca_compressed_block_tables[4:].eq(0).all()
    with pytest.raises(ValueError, match=r"seq_lens\[1\]: expected at least q_len = 4.* got 0"):
        rows.convert()


def mistakes(rows):
    table, lens = rows.sparse_indices, rows.sparse_topk_lens

    def changed(row, column, value):
        copy = table.clone()
        copy[row, column] = value
        return dict(sparse_indices=copy)

    wrong_lens = lens.clone()
    wrong_lens[1] += 1
    return [
        (changed(1, 2, -1), r"sparse_indices\[1, 2\]: expected a slot .*got -1"),
        (changed(0, 127, rows.swa_slots), r"sparse_indices\[0, 127\]: expected a slot"),
        (
            changed(1, 128, int(table[1, 128]) + 1),
            r"sparse_indices\[1, 128\]: expected the first slot",
        ),
        (changed(1, 129, int(table[1, 128])), r"sparse_indices\[1, 129\]: expected \d+, the next"),
        (changed(1, 130, rows.num_pages * 2), r"sparse_indices\[1, 130\]: expected the first slot"),
        (dict(sparse_topk_lens=wrong_lens), r"sparse_topk_lens\[1\]: expected \d+"),
        (dict(sparse_indices=table[:, :130]), r"sparse_indices: expected at least \d+ columns"),
        (dict(sparse_indices=table[:, :100]), r"sparse_indices: expected 128 or more columns, got"),
        (dict(sparse_indices=table[:1]), r"sparse_indices: expected shape \[2, W\]"),
        (dict(sparse_indices=table.long()), r"sparse_indices: expected int32, got int64"),
        (dict(sparse_topk_lens=lens[:1]), r"sparse_topk_lens: expected shape \[2\], got \[1\]"),
        (dict(seq_lens=rows.seq_lens.long()), r"seq_lens: expected int32, got int64"),
        (dict(seq_lens=rows.seq_lens[None]), r"seq_lens: expected shape \[B\]"),
        (dict(q_len=0), r"q_len: expected 1 or more, got 0"),
        (dict(kv_layout="DNH"), r"kv_layout: expected 'HND' or 'NHD', got 'DNH'"),
        (dict(swa_kv_cache=rows.swa[:0]), r"swa_kv_cache: expected 1 or more slots"),
    ]


@pytest.mark.parametrize("number", range(16))
def test_the_checked_conversion_names_the_first_offence(engine, number):
    rows = Rows([700, 700], 1, 2, device=engine.device)
    changes, sentence = mistakes(rows)[number]
    with pytest.raises(ValueError, match=sentence):
        rows.convert(**changes)


def test_every_mistake_is_tried():
    assert len(mistakes(Rows([700, 700], 1, 2))) == 16


def test_unchecked_columns_are_not_looked_at(engine):
    """Garbage beyond the lengths, which Rows puts there, is legal."""
    rows = Rows([129, 500], 2, 2, capacity=40, device=engine.device)
    before = rows.convert()
    rows.sparse_indices[:, -30:] = 7
    after = rows.convert()
    assert torch.equal(before.hca_compressed_block_tables, after.hca_compressed_block_tables)


def test_conversion_during_capture_is_refused(gpu):
    rows = Rows([700, 700], 1, 2, device=gpu.device)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="no CUDA graph capture"), torch.cuda.graph(graph):
        rows.convert()


@pytest.mark.parametrize(("seq_lens", "q_len", "page_size"), SHAPES[:5])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
def test_decode_through_each_of_the_three_ways(engine, seq_lens, q_len, page_size, fmt):
    """Page-aligned token rows decode alike as rows, as HCA tables, and by the one-shot format."""
    rows = Rows(seq_lens, q_len, page_size, device=engine.device)
    heads, batch = 4, len(seq_lens)
    query = torch.randn(batch, q_len, heads, 512, device=engine.device).to(cases.DTYPES[fmt])
    swa = cases.cache(5, 64, fmt, device=engine.device)
    compressed = cases.cache(rows.num_pages, page_size, fmt, device=engine.device)
    cases.fill(
        swa,
        cases.valid_slots(rows.sparse_indices[:, :128], rows.window_lens.to(engine.device), 320),
    )
    cases.fill(
        compressed,
        cases.valid_slots(
            rows.sparse_indices[:, 128:],
            rows.compressed_lens.to(engine.device),
            rows.num_pages * page_size,
        ),
    )
    common = dict(
        query=query, swa_kv_cache=swa, compressed_kv_cache=compressed, workspace_buffer=None,
        sparse_topk_lens=rows.sparse_topk_lens, bmm1_scale=cases.SOFTMAX_SCALE, return_lse=True,
    )  # fmt: skip
    combined = dict(sparse_indices=rows.sparse_indices, seq_lens=rows.seq_lens)
    wanted = dsv4.batch_decode_sparse_mla_dsv4(**common, **combined, backend="trtllm-gen")
    inputs = reference.token_sparse(
        query, swa, rows.sparse_indices, compressed, rows.sparse_topk_lens, rows.seq_lens
    )
    cases.assert_close(*wanted, *inputs, scale1=cases.SOFTMAX_SCALE)
    for tables in (rows.make(), rows.convert()):
        got = dsv4.batch_decode_sparse_mla_dsv4(
            **common, backend="cute-dsl", hca_swa_indices=tables.hca_swa_indices,
            hca_compressed_block_tables=tables.hca_compressed_block_tables,
            hca_seq_lens=tables.hca_seq_lens, swa_topk_lens=tables.swa_topk_lens,
        )  # fmt: skip
        cases.assert_close(*got, *inputs, scale1=cases.SOFTMAX_SCALE)
    got = dsv4.batch_decode_sparse_mla_dsv4(
        **common,
        **combined,
        backend="cute-dsl",
        hca_sparse_indices_format="compressed-page-aligned",
    )
    cases.assert_close(*got, *inputs, scale1=cases.SOFTMAX_SCALE)
