"""Every sentence of the operators and of the library under them, once: words, nothing touched."""

import copy
import math
import re

import pytest
import torch

import cases
import dsv4

OPS = torch.ops.dsv4
MARK = "dsv4 ValueError: "


def raises(sentence, kind="ValueError"):
    return pytest.raises(RuntimeError, match=f"dsv4 {kind}: " + re.escape(sentence))


def decode_args(form="packed", fmt="packed", q_len=2):
    problem = cases.problem(
        form, fmt, 4, 128 if form == "token_sparse" else 20, 12, batch=3, q_len=q_len
    )
    return problem.op_args()


def bf16_args():
    return decode_args("packed", "bf16")


def changed(**changes):
    """A function that replaces arguments; a value that is callable gets the old one."""

    def change(args):
        for name, value in changes.items():
            args[name] = value(args.get(name)) if callable(value) else value

    return change


def sixth(tensor):
    return tensor[..., ::2]


SIX = "[6], [3, 2] or [3]"
DECODE = [
    # query
    (changed(query=lambda q: q.half()), "query: expected bfloat16 or float8_e4m3fn, got float16"),
    (changed(query=lambda q: q[0, 0]), "query: expected 3 or 4 dimensions, got 2 (shape [4, 512])"),
    (
        changed(query=lambda q: q[None]),
        "query: expected 3 or 4 dimensions, got 5 (shape [1, 3, 2, 4, 512])",
    ),
    (
        changed(query=lambda q: q[..., :500]),
        "query: expected last dimension 512, got shape [3, 2, 4, 500]",
    ),
    (
        changed(query=lambda q: torch.cat([q, q], -1)[..., ::2]),
        "query: expected a contiguous last dimension, got stride 2",
    ),
    (
        changed(query=lambda q: q[:, :, :0], out=lambda o: o[:, :, :0], lse=lambda t: t[..., :0]),
        "heads: expected 1 or more, got 0",
    ),
    # caches
    (
        changed(swa_kv_cache=lambda c: c.to(torch.int32)),
        "swa_kv_cache: expected bfloat16 or float8_e4m3fn or uint8 or int8, got int32",
    ),
    (
        changed(query=lambda q: q.to(torch.float8_e4m3fn)),
        "query: expected bfloat16 with a bf16 or packed cache, or float8_e4m3fn with an e4m3 "
        "cache, got float8_e4m3fn with a cache of format packed",
    ),
    (changed(kv_layout="DNH"), "kv_layout: expected 'HND' or 'NHD', got 'DNH'"),
    (
        changed(swa_kv_cache=lambda c: c[0, 0, 0]),
        "swa_kv_cache: expected 2 or 3 or 4 dimensions, got 1 (shape [584])",
    ),
    (
        changed(swa_kv_cache=lambda c: c[..., :583]),
        "swa_kv_cache: expected last dimension 584, got shape [3, 1, 64, 583]",
    ),
    (
        changed(swa_kv_cache=lambda c: torch.cat([c, c], -1)[..., ::2]),
        "swa_kv_cache: expected a contiguous last dimension, got stride 2",
    ),
    (
        changed(swa_kv_cache=lambda c: c.transpose(1, 2)),
        "swa_kv_cache: expected one KV head: HND [num_pages, 1, page_size, width], "
        "got shape [3, 64, 1, 584]",
    ),
    (
        changed(kv_layout="NHD"),
        "swa_kv_cache: expected one KV head: NHD [num_pages, page_size, 1, width], "
        "got shape [3, 1, 64, 584]",
    ),
    (
        changed(swa_kv_cache=lambda c: c[:, :, :0]),
        "swa_kv_cache: expected at least one token a page, got shape",
    ),
    (
        changed(swa_kv_cache=lambda c: c[:, :, ::2]),
        "swa_kv_cache: expected packed pages without gaps (token stride 584 bytes), "
        "got token stride 1168. Hint: only the page stride may be padded",
    ),
    (
        changed(swa_kv_cache=lambda c: c[:, 0, 0, :583]),
        "swa_kv_cache: expected at least 584 bytes a page, got shape [3, 583]",
    ),
    (
        changed(
            swa_kv_cache=lambda c: c.contiguous().as_strided((3, 1, 64, 584), (584, 1, 584, 1))
        ),
        "window.pool.page_stride_bytes: expected at least 37376 for packed pages of 64 tokens, "
        "got 584",
    ),
    (
        changed(compressed_kv_cache=lambda c: c.new_zeros(3, 64, 512, dtype=torch.bfloat16)),
        "compressed_kv_cache: expected the format of swa_kv_cache (uint8), got bfloat16",
    ),
    # index tables
    (changed(swa_indices=lambda t: t.long()), "swa_indices: expected int32, got int64"),
    (
        changed(swa_indices=lambda t: t[0]),
        "swa_indices: expected 2 or 3 dimensions, got 1 (shape [20])",
    ),
    (
        changed(swa_indices=lambda t: t[:5]),
        "swa_indices: expected [6, width], a row for each query, got shape [5, 20]",
    ),
    (
        changed(swa_indices=lambda t: t.unflatten(0, (2, 3))),
        "swa_indices: expected [3, 2, width], got shape [2, 3, 20]",
    ),
    (changed(swa_indices=sixth), "swa_indices: expected a contiguous last dimension, got stride 2"),
    (
        changed(compressed_indices=lambda t: t.float()),
        "compressed_indices: expected int32, got float32",
    ),
    (
        changed(compressed_kv_cache=None),
        "compressed_indices: expected together with compressed_kv_cache",
    ),
    (
        changed(compressed_indices=None),
        "compressed_kv_cache: expected together with compressed_indices",
    ),
    (
        changed(compressed_indices=None, compressed_kv_cache=None),
        "compressed_lens: expected together with compressed_indices",
    ),
    (
        changed(compressed_lens_offset=-1),
        "compressed_lens_offset: expected 0 to 2147483647, got -1",
    ),
    # lengths
    (changed(swa_lens=lambda t: t.long()), "swa_lens: expected int32, got int64"),
    (changed(swa_lens=lambda t: t[:5]), f"swa_lens: expected {SIX}, got shape [5]"),
    (changed(swa_lens=lambda t: t.reshape(2, 3)), f"swa_lens: expected {SIX}, got shape [2, 3]"),
    (
        changed(swa_lens=lambda t: t.reshape(1, 3, 2)),
        "swa_lens: expected 1 or 2 dimensions, got 3 (shape [1, 3, 2])",
    ),
    (
        changed(swa_lens=lambda t: torch.zeros(3, 5, dtype=torch.int32)[:, :2]),
        "swa_lens: expected rows that follow each other without gaps",
    ),
    (changed(compressed_lens=lambda t: t[:1]), f"compressed_lens: expected {SIX}, got shape [1]"),
    (
        changed(seq_lens=torch.zeros(3, dtype=torch.int32)),
        "seq_lens: expected without swa_lens, which says the same in other words",
    ),
    (
        changed(cum_seq_lens_q=torch.zeros(4, dtype=torch.int32)),
        "cum_seq_lens_q: expected together with seq_lens",
    ),
    (
        changed(swa_lens=None, seq_lens=torch.zeros(2, dtype=torch.int32)),
        "seq_lens: expected [3], one length for each request, got shape [2]",
    ),
    (changed(swa_lens=None, seq_lens=torch.zeros(3)), "seq_lens: expected int32, got float32"),
    (
        changed(swa_lens=None, seq_lens=torch.zeros(1, 3, dtype=torch.int32)),
        "seq_lens: expected 1 dimensions, got 2 (shape [1, 3])",
    ),
    (
        changed(
            swa_lens=None, seq_lens=torch.zeros(3, dtype=torch.int32), cum_seq_lens_q=torch.zeros(4)
        ),
        "cum_seq_lens_q: expected int32, got float32",
    ),
    (
        changed(
            swa_lens=None,
            seq_lens=torch.zeros(3, dtype=torch.int32),
            cum_seq_lens_q=torch.zeros(1, dtype=torch.int32),
        ),
        "cum_seq_lens_q: expected [requests + 1] with at least one request, got shape [1]",
    ),
    (
        changed(
            swa_lens=None,
            seq_lens=torch.zeros(3, dtype=torch.int32),
            cum_seq_lens_q=torch.zeros(8, dtype=torch.int32)[::2],
        ),
        "cum_seq_lens_q: expected a contiguous tensor",
    ),
    (
        changed(
            swa_lens=None,
            seq_lens=torch.zeros(3, dtype=torch.int32),
            cum_seq_lens_q=torch.zeros(4, dtype=torch.int32),
        ),
        "query: expected [rows, heads, 512] with cum_seq_lens_q, got shape [3, 2, 4, 512]",
    ),
    # scales, sinks, options
    (changed(bmm1_scale_tensor=torch.ones(2)), "bmm1_scale: expected one element, got shape [2]"),
    (changed(bmm2_scale_tensor=torch.ones(0)), "bmm2_scale: expected one element, got shape [0]"),
    (changed(sinks=torch.zeros(4).half()), "sinks: expected float32, got float16"),
    (changed(sinks=torch.zeros(5)), "sinks: expected [4], got shape [5]"),
    (changed(sinks=torch.zeros(1, 4)), "sinks: expected [4], got shape [1, 4]"),
    (changed(sinks=torch.zeros(8)[::2]), "sinks: expected a contiguous tensor"),
    (changed(sink_mode="once"), "sink_mode: expected 'apply' or 'defer', got 'once'"),
    (changed(lse_base="10"), "lse_base: expected 'e' or '2', got '10'"),
    # results
    (changed(out=lambda o: o.float()), "out: expected bfloat16, got float32"),
    (
        changed(out=lambda o: o.flatten(0, 1)),
        "out: expected the shape of query, [3, 2, 4, 512], got shape [6, 4, 512]",
    ),
    (
        changed(out=lambda o: torch.cat([o, o], -1)[..., ::2]),
        "out: expected a contiguous last dimension, got stride 2",
    ),
    (changed(lse=lambda t: t.double()), "lse: expected float32, got float64"),
    (
        changed(lse=lambda t: t[..., :3]),
        "lse: expected the shape of query without its last dimension, [3, 2, 4, 512], "
        "got shape [3, 2, 3]",
    ),
    (changed(workspace=torch.zeros(100)[::2]), "workspace: expected a contiguous tensor"),
]


def names(table):
    return [re.sub(r"[^\w]+", "_", entry[1])[:60] for entry in table]


@pytest.mark.parametrize(("change", "sentence"), DECODE, ids=names(DECODE))
def test_decode(change, sentence):
    args = decode_args()
    out = torch.full(args["query"].shape, math.nan).bfloat16()
    lse = torch.full(args["query"].shape[:-1], math.nan)
    workspace = torch.full((1 << 20,), 0xFF, dtype=torch.uint8)
    args.update(out=out, lse=lse, workspace=workspace)
    change(args)
    caches = [args[name].clone() for name in ("swa_kv_cache",) if args[name].dtype == torch.uint8]
    with raises(sentence):
        OPS.sparse_mla_decode.out(**args)
    assert out.isnan().all()
    assert lse.isnan().all()
    assert (workspace == 0xFF).all()
    for cache in caches:
        assert torch.equal(cache, args["swa_kv_cache"])


def test_decode_type_error():
    for name in ("bmm1_scale", "bmm2_scale"):
        args = decode_args()
        args[f"{name}_tensor"] = torch.ones(1, dtype=torch.float64)
        with raises(f"{name}: expected float32, got float64", "TypeError"):
            OPS.sparse_mla_decode(**args)


BF16_CACHES = [
    (
        changed(swa_kv_cache=lambda c: c[..., :500]),
        "swa_kv_cache: expected last dimension 512, got shape [3, 1, 64, 500]",
    ),
    (
        changed(swa_kv_cache=lambda c: c[0, 0]),
        "swa_kv_cache: expected 3 or 4 dimensions, got 2 (shape [64, 512])",
    ),
    (
        changed(query=lambda q: q.to(torch.float8_e4m3fn)),
        "query: expected bfloat16 with a bf16 or packed cache, or float8_e4m3fn with an e4m3 "
        "cache, got float8_e4m3fn with a cache of format bf16",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), BF16_CACHES, ids=names(BF16_CACHES))
def test_decode_of_plain_caches(change, sentence):
    args = bf16_args()
    change(args)
    with raises(sentence):
        OPS.sparse_mla_decode(**args)


def test_the_functional_op_checks_before_it_allocates():
    args = decode_args()
    args["query"] = args["query"][..., :500]
    with raises("query: expected last dimension 512, got shape [3, 2, 4, 500]"):
        OPS.sparse_mla_decode(**args)


# --- values, on request


def tidy_args(form="packed", fmt="packed"):
    """Arguments without a hole or an odd length."""
    w1 = 128 if form == "token_sparse" else 20
    problem = cases.problem(form, fmt, 2, w1, 12, batch=3, q_len=2, holes=0,
                            p2=4, lens="full")  # fmt: skip
    problem.compressed.indices = problem.compressed.indices.contiguous()
    return problem.op_args()


VALUES = [
    (
        "packed",
        lambda a: a["swa_indices"].__setitem__((1, 3), 192),
        "swa_indices[1, 3]: expected -1 or a slot in [0, 192), got 192",
    ),
    (
        "packed",
        lambda a: a["swa_indices"].__setitem__((4, 19), -2),
        "swa_indices[4, 19]: expected -1 or a slot in [0, 192), got -2",
    ),
    (
        "packed",
        lambda a: a["compressed_indices"].__setitem__((5, 0), cases.INT_MIN),
        "compressed_indices[5, 0]: expected -1 or a slot in [0, 24), got -2147483648",
    ),
    (
        "hca",
        lambda a: a["compressed_indices"].__setitem__((2, 1), 6),
        "compressed_indices[2, 1]: expected -1 or a page in [0, 6), got 6",
    ),
    ("packed", lambda a: a["swa_lens"].__setitem__(2, 21), "swa_lens[2]: expected 0 to 20, got 21"),
    ("packed", lambda a: a["swa_lens"].__setitem__(0, -1), "swa_lens[0]: expected 0 to 20, got -1"),
    (
        "hca",
        lambda a: a["compressed_lens"].__setitem__(3, 127),
        "compressed_lens[3]: expected 128 to 140, got 127",
    ),
    (
        "hca",
        lambda a: a["compressed_lens"].__setitem__(3, 141),
        "compressed_lens[3]: expected 128 to 140, got 141",
    ),
]


@pytest.mark.parametrize(
    ("form", "harm", "sentence"), VALUES, ids=[re.sub(r"\W+", "_", v[2])[:50] for v in VALUES]
)
def test_values_are_checked_on_request(monkeypatch, form, harm, sentence):
    args = tidy_args(form, "packed" if form == "packed" else "bf16")
    out = torch.full(args["query"].shape, math.nan).bfloat16()
    monkeypatch.setenv("DSV4_VALIDATE_INPUTS", "1")
    OPS.sparse_mla_decode(**args)
    before = copy.deepcopy(args)
    harm(args)
    with raises(sentence):
        OPS.sparse_mla_decode.out(**args, out=out)
    assert out.isnan().all()
    # -1 is a hole that everybody may use, and what stands beyond a length is nobody's business.
    args = before
    args["swa_indices"][0, 0] = -1
    args["swa_lens"][1] = 4
    args["swa_indices"][1, 4:] = cases.INT_MAX
    OPS.sparse_mla_decode(**args)
    for off in ("0", ""):
        monkeypatch.setenv("DSV4_VALIDATE_INPUTS", off)
        harm(args)
        OPS.sparse_mla_decode(**args)
    monkeypatch.delenv("DSV4_VALIDATE_INPUTS")
    OPS.sparse_mla_decode(**args)


def test_a_request_shorter_than_its_queries_is_reported(monkeypatch):
    args = tidy_args("token_sparse", "bf16")
    monkeypatch.setenv("DSV4_VALIDATE_INPUTS", "1")
    OPS.sparse_mla_decode(**args)
    args["seq_lens"][1] = 0
    with raises("seq_lens[1]: expected at least the number of the request's queries, got 0"):
        OPS.sparse_mla_decode(**args)


# --- the other operators


def merge(outs=None, lses=None, **options):
    outs = torch.zeros(2, 3, 4, 512) if outs is None else outs
    return lambda: OPS.merge_states(outs, torch.zeros(2, 3, 4) if lses is None else lses, **options)


def pack(kv=None, **options):
    return lambda: OPS.pack_kv_cache(
        torch.zeros(2, 4, 512).bfloat16() if kv is None else kv, **options
    )


def pack_out(out):
    return lambda: OPS.pack_kv_cache.out(torch.ones(2, 4, 512).bfloat16(), out=out)


def append(kv=None, cache=None, slots=None, **options):
    kv = torch.ones(3, 512).bfloat16() if kv is None else kv
    cache = torch.zeros(2, 4, 584, dtype=torch.uint8) if cache is None else cache
    slots = torch.arange(3) if slots is None else slots

    def call():
        before = cache.clone()
        try:
            OPS.append_kv_cache(kv, cache, slots, **options)
        finally:
            assert torch.equal(before.view(torch.uint8), cache.view(torch.uint8))

    return call


def metadata(indices=None, seq_lens=None, q_len=1, page_size=2, num_pages=4):
    indices = torch.zeros(2, 130, dtype=torch.int32) if indices is None else indices
    seq_lens = torch.zeros(2, dtype=torch.int32) if seq_lens is None else seq_lens
    return lambda: OPS.hca_metadata(
        indices, seq_lens, q_len=q_len, swa_slots=64, page_size=page_size, num_pages=num_pages
    )


def bytes_of(*shape):
    return torch.zeros(shape, dtype=torch.uint8)


OTHERS = [
    (merge(torch.zeros(2, 3, 4, 512).half()), "outs: expected bfloat16 or float32, got float16"),
    (
        merge(torch.zeros(2, 512)),
        "outs: expected [num_states, rows..., heads, 512], got shape [2, 512]",
    ),
    (
        merge(torch.zeros(2, 3, 4, 500)),
        "outs: expected [num_states, rows..., heads, 512], got shape [2, 3, 4, 500]",
    ),
    (
        merge(torch.zeros(0, 3, 4, 512)),
        "outs: expected at least one state, got shape [0, 3, 4, 512]",
    ),
    (
        merge(torch.zeros(2, 3, 4, 1024)[..., ::2]),
        "outs: expected a contiguous last dimension, got stride 2",
    ),
    (
        merge(torch.zeros(2, 3, 5, 4, 512)[:, :, :2], torch.zeros(2, 3, 2, 4)),
        "outs: expected row dimensions that follow each other without gaps",
    ),
    (merge(lses=torch.zeros(2, 3, 4).double()), "lses: expected float32, got float64"),
    (
        merge(lses=torch.zeros(2, 3, 5)),
        "lses: expected the shape of outs without its last dimension, [2, 3, 4, 512], "
        "got shape [2, 3, 5]",
    ),
    (merge(sinks=torch.zeros(3)), "sinks: expected [4], got shape [3]"),
    (merge(lse_base="x"), "lse_base: expected 'e' or '2', got 'x'"),
    (merge(bmm2_scale_tensor=torch.ones(3)), "bmm2_scale: expected one element, got shape [3]"),
    (pack(torch.zeros(2, 4, 512)), "kv: expected bfloat16, got float32"),
    (pack(torch.zeros(8, 512).bfloat16()), "kv: expected 3 dimensions, got 2 (shape [8, 512])"),
    (
        pack(torch.zeros(2, 4, 500).bfloat16()),
        "kv: expected [num_pages, page_size, 512], got shape [2, 4, 500]",
    ),
    (
        pack(torch.zeros(2, 0, 512).bfloat16()),
        "kv: expected [num_pages, page_size, 512], got shape [2, 0, 512]",
    ),
    (
        pack(torch.zeros(2, 4, 1024).bfloat16()[..., ::2]),
        "kv: expected a contiguous last dimension, got stride 2",
    ),
    (
        pack(page_stride_bytes=2335),
        "page_stride_bytes: expected at least 2336 for pages of 4 tokens, got 2335",
    ),
    (
        pack_out(bytes_of(2, 4, 584).int()),
        "out: expected uint8 or int8 or float8_e4m3fn, got int32",
    ),
    (
        pack_out(bytes_of(3, 4, 584)),
        "out: expected 2 packed pages of 4 tokens, got shape [3, 4, 584]",
    ),
    (
        pack_out(bytes_of(2, 5, 584)),
        "out: expected 2 packed pages of 4 tokens, got shape [2, 5, 584]",
    ),
    (pack_out(bytes_of(2, 4, 583)), "out: expected last dimension 584, got shape [2, 4, 583]"),
    (
        lambda: OPS.unpack_kv_cache(bytes_of(2, 4, 584).int()),
        "kv_cache: expected uint8 or int8 or float8_e4m3fn, got int32",
    ),
    (
        lambda: OPS.unpack_kv_cache(bytes_of(2, 4, 500)),
        "kv_cache: expected last dimension 584, got shape [2, 4, 500]",
    ),
    (
        lambda: OPS.unpack_kv_cache(bytes_of(584)),
        "kv_cache: expected 2 or 3 or 4 dimensions, got 1 (shape [584])",
    ),
    (
        lambda: OPS.unpack_kv_cache(bytes_of(2, 4, 584), kv_layout="x"),
        "kv_layout: expected 'HND' or 'NHD', got 'x'",
    ),
    (append(torch.ones(3, 512)), "kv: expected bfloat16, got float32"),
    (
        append(torch.ones(1, 3, 512).bfloat16()),
        "kv: expected 2 dimensions, got 3 (shape [1, 3, 512])",
    ),
    (append(torch.ones(3, 511).bfloat16()), "kv: expected [num_tokens, 512], got shape [3, 511]"),
    (
        append(torch.ones(3, 1024).bfloat16()[:, ::2]),
        "kv: expected a contiguous last dimension, got stride 2",
    ),
    (
        append(cache=bytes_of(2, 4, 584).int()),
        "kv_cache: expected uint8 or int8 or bfloat16 or float8_e4m3fn, got int32",
    ),
    (
        append(cache=bytes_of(2, 4, 512)),
        "kv_cache: expected last dimension 584, got shape [2, 4, 512]",
    ),
    (append(slots=torch.arange(3).short()), "slot_mapping: expected int32 or int64, got Short"),
    (
        append(slots=torch.arange(3)[None]),
        "slot_mapping: expected 1 dimensions, got 2 (shape [1, 3])",
    ),
    (
        append(slots=torch.arange(4)),
        "slot_mapping: expected [3], one slot for each row of kv, got shape [4]",
    ),
    (append(slots=torch.arange(6)[::2]), "slot_mapping: expected a contiguous tensor"),
    (metadata(torch.zeros(2, 130)), "sparse_indices: expected int32, got float32"),
    (
        metadata(torch.zeros(260, dtype=torch.int32)),
        "sparse_indices: expected 2 dimensions, got 1 (shape [260])",
    ),
    (
        metadata(torch.zeros(2, 127, dtype=torch.int32)),
        "sparse_indices: expected at least the 128 window columns, got shape [2, 127]",
    ),
    (
        metadata(torch.zeros(3, 130, dtype=torch.int32)),
        "sparse_indices: expected 2 rows (requests x q_len), got shape [3, 130]",
    ),
    (
        metadata(torch.zeros(2, 260, dtype=torch.int32)[:, ::2]),
        "sparse_indices: expected a contiguous last dimension, got stride 2",
    ),
    (metadata(seq_lens=torch.zeros(2)), "seq_lens: expected int32, got float32"),
    (
        metadata(seq_lens=torch.zeros(1, 2, dtype=torch.int32)),
        "seq_lens: expected 1 dimensions, got 2 (shape [1, 2])",
    ),
    (
        metadata(seq_lens=torch.zeros(4, dtype=torch.int32)[::2]),
        "seq_lens: expected a contiguous tensor",
    ),
    (metadata(q_len=0), "q_len: expected 1 or more, got 0"),
    (metadata(page_size=0), "page_size: expected 1 or more, got 0"),
    (metadata(num_pages=-1), "num_pages: expected 0 or more, got -1"),
    (lambda: OPS.workspace_size(-1, 4, 128), "num_rows: expected 0 or more, got -1"),
    (lambda: OPS.workspace_size(1, 0, 128), "num_heads: expected 1 or more, got 0"),
    (lambda: OPS.workspace_size(1, 4, -2), "swa_width: expected 0 or more, got -2"),
    (lambda: OPS.workspace_size(1, 4, 2, table_rows=0), "table_rows: expected 1 or more, got 0"),
    (lambda: OPS.workspace_size(1, 4, 2, -3), "compressed_width: expected 0 or more, got -3"),
    (
        lambda: OPS.supports(64, query_dtype=torch.bfloat16, kv_format="fp4"),
        "kv_format: expected 'bf16', 'e4m3' or 'packed', got 'fp4'",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), OTHERS, ids=names(OTHERS))
def test_other_operators(call, sentence):
    with raises(sentence):
        call()


@pytest.mark.parametrize("call", [
    merge(bmm2_scale_tensor=torch.ones(1).double()), append(scale_tensor=torch.ones(1).double()),
])  # fmt: skip
def test_type_errors_of_other_operators(call):
    with pytest.raises(RuntimeError, match=r"dsv4 TypeError: \w+: expected float32, got float64"):
        call()


def test_supports_gives_the_reason():
    reason = dsv4.supports(64, query_dtype=torch.float16, kv_format="bf16")
    assert not reason
    assert reason.reason == "query: expected bfloat16 or float8_e4m3fn, got float16"
    reason = dsv4.supports(64, query_dtype=torch.float8_e4m3fn, kv_format="packed")
    assert reason.reason.startswith("query: expected bfloat16 with a bf16 or packed cache")
    assert dsv4.supports(0).reason == "heads: expected 1 or more, got 0"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there():
    """A sentence that says what is missing, what the build holds and what to do."""
    sentence = r"device cuda:0: cannot be used: .+\. This build holds: .*cpu.*\. Hint: "
    support = dsv4.supports(device="cuda:0")
    assert not support
    assert re.match(sentence, support.reason)
    with pytest.raises(RuntimeError, match=sentence):
        dsv4.workspace_size(1, 64, 128, device="cuda:0")


# --- every sentence of the sources is in a test


def test_the_list_is_not_shorter_than_the_sources(pytestconfig):
    """Each check in csrc/torch has a sentence above: a new one should come with its test."""
    texts = " ".join(sentence for _, sentence in DECODE + BF16_CACHES + OTHERS)
    missing = []
    for source in sorted((pytestconfig.rootpath / "csrc" / "torch").glob("*.cpp")):
        for words in re.findall(r'"([^"\n]*expected [^"\n]+)"', source.read_text()):
            # A sentence in pieces: the words between the numbers and names it quotes.
            pieces = [piece for piece in re.split(r"\\?'|%\S+", words) if len(piece) > 6]
            if not any(piece.strip() in texts for piece in pieces):
                missing.append(f"{source.name}: {words}")
    assert not missing
