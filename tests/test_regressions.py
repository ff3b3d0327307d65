"""Inputs that broke other decode kernels of this family. R12 and most of R15 need a GPU."""

import copy
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import cases
import dsv4
from dsv4 import reference

SCALE = cases.SOFTMAX_SCALE
FORMATS = ["bf16", "e4m3", "packed"]


def window_problem(fmt, rows, heads, width, *, device="cpu", **segment_args):
    """Window-only rows of any format."""
    problem = cases.problem("packed", fmt, heads, 1, 0, batch=rows, device=device)
    problem.swa = cases.segment(rows, width, 64, fmt, device=device, **segment_args)
    return problem


# R1: the stride of a packed pool is its own


@pytest.mark.parametrize("page_stride", [37_440, 149_760, 1_002_240])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_R1_page_stride(engine, page_stride, layer):
    """A pool that is one layer of several in one allocation, next to a dense copy of it."""
    if page_stride == 37_440 and layer > 0:
        page_stride *= 3
    dense = cases.problem("packed", "packed", 8, 128, 100, padded=False, device=engine.device)
    wanted = cases.check(dense)
    apart = copy.copy(dense)
    for name in ("swa", "compressed"):
        segment = getattr(dense, name)
        pages, slots = segment.cache.shape[0], cases.num_slots(segment.cache)
        buffer = cases.poisoned(pages * page_stride, "packed", device=engine.device)
        pool = cases.strided_cache(buffer, pages, 64, 584, "HND", page_stride, 584, layer * 37_440)
        cases.copy_slots(segment.cache, pool, torch.arange(slots, device=engine.device))
        setattr(apart, name, replace(segment, cache=pool))
    assert cases.same_bits(cases.run(apart), wanted)


@pytest.mark.parametrize("page_stride", [37_440, 149_760])
def test_R1_append_leaves_the_neighbours_alone(engine, page_stride):
    pages, page_size = 5, 64
    buffer = torch.randint(0, 256, (pages * page_stride,), dtype=torch.uint8, device=engine.device)
    before = buffer.clone()
    offset = 37_440 if page_stride > 37_440 else 0
    layer = cases.strided_cache(buffer, pages, page_size, 584, "HND", page_stride, 584, offset)
    slots = torch.arange(pages * page_size, device=engine.device)
    dsv4.append_kv_cache(
        torch.randn(len(slots), 512, device=engine.device).bfloat16(), layer, slots
    )
    mine = torch.zeros_like(buffer, dtype=torch.bool)
    mine.as_strided((pages, page_size * 584), (page_stride, 1), offset).fill_(True)
    assert torch.equal(buffer[~mine], before[~mine])
    assert not torch.equal(buffer[mine], before[mine])


# R2: any page size on either pool


@pytest.mark.parametrize(
    ("p1", "p2"),
    [
        *[(2, 32), (32, 64), (64, 69), (69, 128), (128, 256), (256, 1), (1, 2)],
        *[(64, 2), (256, 2), (128, 64), (2, 69), (69, 256), (32, 1), (256, 256)],
    ],
)
def test_R2_page_sizes(engine, p1, p2):
    problem = cases.problem(
        "packed", "packed", 8, 100, 140, p1=p1, p2=p2, batch=2, device=engine.device
    )
    cases.check(problem, door="front", scale1=SCALE)
    problem = cases.problem("hca", "bf16", 8, 128, 140, p1=p1, p2=p2, batch=2, device=engine.device)
    cases.check(problem, door="front", scale1=SCALE)


# R3: pools beyond 32-bit offsets


@pytest.mark.parametrize(
    ("fmt", "pages", "page_size", "page_stride"),
    [
        ("packed", 2_143, 64, 1_002_240),
        ("packed", 14_340, 256, 149_760),
        ("packed", 4_300, 64, 1_002_240),
        ("bf16", 33_000, 64, 64 * 512 * 2),
        ("bf16", 4_100, 64, 1_048_576),
        ("e4m3", 65_700, 64, 64 * 512),
    ],
)
def test_R3_pools_beyond_four_gigabytes(fmt, pages, page_size, page_stride):
    """Only on the CPU, where memory that was never written costs nothing."""
    size = (pages - 1) * page_stride + page_size * 1024
    assert size > 2**31 - 2**20
    memory = cases.sparse_memory(size).view(cases.DTYPES[fmt])
    item = memory.element_size()
    width = 584 if fmt == "packed" else 512
    pool = cases.strided_cache(memory, pages, page_size, width, "HND", page_stride // item, width)
    slots = pages * page_size
    named = torch.tensor([0, 1, page_size - 1, slots // 2, slots - page_size, slots - 2, slots - 1])
    cases.fill(pool, named)
    indices = named[torch.randint(len(named), (4, 40))].to(torch.int32)
    indices[:, 7] = slots  # one past the end is a hole, not a fault
    lens = torch.tensor([40, 33, 1, 40], dtype=torch.int32)
    problem = cases.problem("packed", fmt, 4, 1, 0, batch=4)
    problem.swa = cases.Segment(pool, indices, lens)
    out, lse = cases.run(problem, scale1=SCALE)
    small, remapped = cases.compacted(problem.swa)
    query = problem.query.flatten(0, 1)
    cases.assert_close(out, lse, query, small, remapped, lens, scale1=SCALE)


# R4: lanes beyond the length


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("stale", ["in range", "just past the end", cases.INT_MAX, cases.INT_MIN])
def test_R4_stale_lanes(engine, form, fmt, stale):
    problem = cases.problem(form, fmt, 8, 128, 150, batch=5, p2=8, device=engine.device)
    clean = copy.deepcopy(problem)
    for segment, tidy in ((problem.swa, clean.swa), (problem.compressed, clean.compressed)):
        page_size = cases.page_size_of(segment.cache) if segment.page_table else 1
        limit = cases.num_slots(segment.cache) // page_size
        column = torch.arange(segment.indices.shape[1], device=engine.device)
        beyond = column * page_size >= segment.lens.long()[:, None]
        assert beyond.any()
        value = {"in range": 0, "just past the end": limit}.get(stale, stale)  # slot 0 is NaN
        segment.indices.masked_fill_(beyond, value)
        tidy.indices.masked_fill_(beyond, -1)
    got = cases.run(problem, scale1=SCALE)
    cases.assert_close(*got, *problem.inputs(), scale1=SCALE)
    assert cases.same_bits(got, cases.run(clean, scale1=SCALE))


# R5: holes inside the length, NaN in slot 0


@pytest.mark.parametrize(
    ("fmt", "poison"),
    [
        ("bf16", 0x7FC0),
        ("bf16", -1),
        ("bf16", 0x7F80),
        ("e4m3", 0x7F),
        ("e4m3", 0xFF),
        ("packed", 0xFF),
        ("packed", 0x7F),
    ],
)
@pytest.mark.parametrize("hole", [-1, cases.INT_MIN, cases.INT_MAX, "limit"])
def test_R5_holes_read_no_slot(engine, fmt, poison, hole):
    rows, width, pages, page_size = 4, 150, 6, 64
    limit = pages * page_size
    pool = cases.cache(pages, page_size, fmt, poison=poison, device=engine.device)
    named = torch.arange(page_size, 2 * page_size, device=engine.device)
    cases.fill(pool, named)
    indices = named[torch.randint(page_size, (rows, width), device=engine.device)].to(torch.int32)
    is_hole = torch.rand(rows, width, device=engine.device) < 0.3
    indices.masked_fill_(is_hole, limit if hole == "limit" else hole)
    lens = torch.full((rows,), width, dtype=torch.int32, device=engine.device)
    problem = cases.problem("packed", fmt, 8, 1, 0, batch=rows, device=engine.device)
    problem.swa = cases.Segment(pool, indices, lens)
    out, _ = cases.check(problem, scale1=SCALE)
    assert out.isfinite().all()


# R6: nothing valid in the first lanes


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("holes", [1, 64, 127, 128])
def test_R6_leading_holes(engine, form, fmt, holes):
    problem = cases.problem(
        form, fmt, 8, 128, 130, lens="full", p2=2, holes=0, device=engine.device
    )
    problem.swa.indices[:, :holes] = -1
    problem.compressed.indices[:, : holes // 2] = -1
    out, _ = cases.check(problem, door="front", scale1=SCALE)
    assert out.isfinite().all()


# R7: rows with nothing in them


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("sink", [None, 1.5, -math.inf, math.inf])
def test_R7_empty_rows(engine, form, fmt, sink):
    problem = cases.problem(form, fmt, 4, 128, 70, batch=6, lens="full", device=engine.device)
    swa, compressed = problem.swa, problem.compressed
    if problem.seq_lens is not None:  # the window's lengths follow from seq_lens
        problem.seq_lens[:3] = 0
    swa.lens[:3] = 0
    compressed.lens[[0, 3]] = 0
    swa.indices[4], compressed.indices[4] = -1, -1
    compressed.indices[1] = cases.INT_MIN
    sinks = None if sink is None else torch.full((4,), sink, device=engine.device)
    for workspace in ("best", "none"):
        out, lse = cases.check(
            problem, door="front", workspace=workspace, scale1=SCALE, sinks=sinks
        )
        for row in (0, 1, 4):  # no length, no length and holes, holes
            assert out[row].abs().max() == 0
            assert (lse[row] == -math.inf).all()
        for row in (2, 3, 5):  # compressed only, window only, both
            assert lse[row].isfinite().all()
            assert (out[row].abs().max() == 0) == (sink == math.inf)


# R8: any width


@pytest.mark.parametrize(
    ("w1", "w2"),
    [
        *[(17, 1), (128, 63), (133, 64), (192, 65), (256, 512), (384, 1024), (640, 1152)],
        *[(17, 1152), (128, 1024), (133, 512), (192, 1), (256, 65), (384, 64), (640, 63)],
    ],
)
def test_R8_widths(engine, w1, w2):
    rows = 5 if (w1 + w2) % 2 else 7
    problem = cases.problem("packed", "packed", 32, w1, w2, batch=rows, device=engine.device)
    cases.check(problem, door="front", scale1=SCALE)


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_R8_a_million_tokens_of_context(engine, form, fmt):
    problem = cases.problem(
        form, fmt, 8, 128, 8192, batch=2, p2=2, lens="full", device=engine.device
    )
    cases.check(problem, door="front", scale1=SCALE)


# R9: any number of heads


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("heads", [1, 2, 7, 8, 16, 24, 32, 64, 96, 128])
def test_R9_heads(engine, form, fmt, heads):
    problem = cases.problem(form, fmt, heads, 128, 72, batch=2, device=engine.device)
    cases.check(problem, door="front", scale1=SCALE, sinks=torch.randn(heads, device=engine.device))


# R10: no rows


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("shape", [(0, 1), (0, 4), (3, 0)])
def test_R10_zero_rows(engine, form, fmt, shape):
    problem = cases.select(cases.problem(form, fmt, 8, 128, 64, device=engine.device), [])
    problem.query = problem.query.reshape(*shape, 8, 512)
    if problem.seq_lens is not None:
        problem.seq_lens = problem.seq_lens.new_zeros(shape[0])
    out, lse = torch.ops.dsv4.sparse_mla_decode(**problem.op_args())
    assert (out.shape, lse.shape) == ((*shape, 8, 512), (*shape, 8))
    args = problem.door_args()
    out, lse = dsv4.batch_decode_sparse_mla_dsv4(**args, workspace_buffer=None, return_lse=True)
    assert (out.shape, lse.shape) == ((*shape, 8, 512), (*shape, 8))


def test_R10_zero_rows_of_a_flat_query(engine):
    problem = cases.problem("packed", "packed", 8, 128, 64, flat=True, device=engine.device)
    args = cases.select(problem, []).door_args()
    out = dsv4.batch_decode_sparse_mla_dsv4(**args, workspace_buffer=None)
    assert out.shape == (0, 8, 512)


# R11: more rows than a grid dimension holds


@pytest.mark.parametrize(
    ("rows", "width", "persistent"),
    [
        (65_535, 3, False),
        (65_536, 3, False),
        (70_000, 3, False),
        # Tables so wide that each row has a block of its own, unless blocks stay.
        (70_000, 2560, False),
        (70_000, 2560, True),
    ],
)
def test_R11_many_rows(engine, rows, width, persistent):
    few = cases.problem("packed", "packed", 1, 5, width, batch=256, device=engine.device)
    few.compressed.lens.clamp_(max=3)
    repeats = -(-rows // 256)
    many = copy.copy(few)
    many.query = few.query.repeat(repeats, 1, 1, 1)[:rows]
    many.swa, many.compressed = (
        replace(s, indices=s.indices.repeat(repeats, 1)[:rows], lens=s.lens.repeat(repeats)[:rows])
        for s in (few.swa, few.compressed)
    )
    options = dict(scale1=SCALE, batch_invariant=True)
    wanted_out, wanted_lse = cases.check(few, **options)
    out, lse = cases.run(many, door="op", strided=False, persistent=persistent, **options)
    # Row i of the large batch is row i % 256 of the small one, which is known to be right.
    whole = rows // 256 * 256
    assert (out[:whole].unflatten(0, (-1, 256)) == wanted_out).all()
    assert (lse[:whole].unflatten(0, (-1, 256)) == wanted_lse).all()
    assert torch.equal(out[whole:], wanted_out[: rows - whole])
    assert torch.equal(lse[whole:], wanted_lse[: rows - whole])


# R12: CUDA graphs


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_R12_replay_equals_eager(gpu, form, fmt):
    """Captured with 8 rows of nothing; replayed with 6 real ones and other values everywhere."""
    device = gpu.device

    def fresh(seed):
        torch.manual_seed(seed)
        problem = cases.problem(form, fmt, 16, 128, 512, batch=8, device=device)
        for segment in (problem.swa, problem.compressed):
            segment.lens[6:] = 0
            segment.indices[7] = cases.INT_MAX  # stale garbage within the contract
        if problem.seq_lens is not None:
            problem.seq_lens[6:] = 0
        return problem

    def tensors(problem, args):
        shared = [problem.query, problem.swa.cache, problem.swa.indices, problem.compressed.cache,
                  problem.compressed.indices, args["compressed_lens"]]  # fmt: skip
        return [*shared, args["swa_lens"] if problem.seq_lens is None else problem.seq_lens]

    static = fresh(0)
    args = static.op_args()
    workspace = cases.workspace_for(static).bytes
    out = torch.full(static.query.shape, math.nan, device=device).bfloat16()
    lse = torch.full(static.query.shape[:-1], math.nan, device=device)

    def decode():
        torch.ops.dsv4.sparse_mla_decode.out(**args, workspace=workspace, out=out, lse=lse)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        decode()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if static.seq_lens is not None:
        static.seq_lens.zero_()
    with torch.cuda.graph(graph, stream=stream):
        decode()
    for seed in range(1, 6):
        problem = fresh(seed)
        fresh_args = problem.op_args()
        for mine, theirs in zip(tensors(static, args), tensors(problem, fresh_args), strict=True):
            cases.copy_bits(theirs, mine)
        workspace.fill_(0xFF)
        out.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        wanted = torch.ops.dsv4.sparse_mla_decode(**fresh_args, workspace=workspace)
        assert cases.same_bits((out, lse), wanted)
        cases.assert_close(out, lse, *problem.inputs())


# R13: workspaces and tables are what they are


def test_R13_a_workspace_of_any_content(engine):
    """One buffer for two different calls in sequence, whatever the one before has left in it."""
    problems = [
        cases.problem("packed", "packed", 16, 128, 1152, batch=1, device=engine.device),
        cases.problem("hca", "bf16", 64, 128, 512, batch=2, device=engine.device),
    ]
    wanted = [cases.check(problem, threads=9) for problem in problems]
    with cases.num_threads(9):
        sizes = [cases.workspace_for(problem).bytes.numel() for problem in problems]
        shared = torch.empty(max(sizes), dtype=torch.uint8, device=engine.device)
        for fill in (0xFF, 0x00, 0x7F, None):
            if fill is not None:
                shared.fill_(fill)
            for problem, size, bits in zip(problems, sizes, wanted, strict=True):
                got = torch.ops.dsv4.sparse_mla_decode(**problem.op_args(), workspace=shared[:size])
                assert cases.same_bits(got, bits)
    for problem in problems:
        cases.check(problem, workspace="none")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("w1", "w2"), [(1, 1), (17, 3), (128, 65), (133, 257), (64, 128)])
def test_R13_nothing_is_read_past_the_end(fmt, w1, w2):
    """Tables, lengths, query, sinks, scale, pools end where readable memory ends (CPU only)."""
    problem = cases.problem("packed", fmt, 3, w1, w2, batch=3, padded=False, lens="full")
    wanted = cases.check(problem, scale1=SCALE)
    problem.query = cases.guarded(problem.query.contiguous())
    for segment in (problem.swa, problem.compressed):
        segment.indices = cases.guarded(segment.indices.contiguous())
        segment.lens = cases.guarded(segment.lens)
        segment.cache = cases.guarded(segment.cache)
    sinks = cases.guarded(torch.full((3,), -math.inf))
    got = cases.run(problem, scale1=cases.guarded(torch.tensor([SCALE])), sinks=sinks)
    assert cases.same_bits(got, wanted)
    for segment in (problem.swa, problem.compressed):
        last = cases.num_slots(segment.cache) - 1
        cases.fill(segment.cache, torch.tensor([last]))
        segment.indices[:, -1] = last
    cases.check(problem, scale1=SCALE)


def test_R13_page_tables_end_where_memory_ends():
    for fmt in ("bf16", "e4m3"):
        problem = cases.problem("hca", fmt, 3, 128, 130, p2=64, batch=3, padded=False, lens="full")
        wanted = cases.check(problem)
        problem.compressed.indices = cases.guarded(problem.compressed.indices.contiguous())
        problem.compressed.cache = cases.guarded(problem.compressed.cache)
        assert cases.same_bits(cases.run(problem), wanted)


# R14: context parallelism


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("lse_base", ["e", "2"])
def test_R14_merged_ranks_equal_one_decode(engine, fmt, ranks, lse_base):
    problem = cases.problem("packed", fmt, 8, 128, 300, batch=5, device=engine.device)
    sinks = torch.tensor([0.5, -3.0, 9.0, -math.inf, math.inf, 0.0, 1.0, 2.0], device=engine.device)
    parts = []
    for rank in range(ranks):
        part = copy.copy(problem)
        for name in ("swa", "compressed"):
            segment = getattr(problem, name)
            column = torch.arange(segment.indices.shape[1], device=engine.device)
            # The last rank holds nothing.
            mine = segment.indices.masked_fill(column % (ranks - 1) != rank, -1)
            setattr(part, name, replace(segment, indices=mine))
        options = dict(scale1=SCALE, lse_base=lse_base, sink_mode="defer", sinks=sinks)
        parts.append(cases.run(part, door="front", **options))
    outs = torch.stack([out for out, _ in parts])
    outs[-1].fill_(math.nan)  # no slot: not to be read
    out, lse = dsv4.merge_states(
        outs, torch.stack([lse for _, lse in parts]), sinks=sinks, bmm2_scale=0.5, lse_base=lse_base
    )
    # The parts are rounded to bf16 before they meet: one more rounding than the tolerance knows.
    options = dict(scale1=SCALE, scale2=0.5, sinks=sinks, lse_base=lse_base)
    out64, lse64 = reference.decode(*problem.inputs(), **options)
    step = 2.0**-3 if cases.weights_of(problem.inputs()) == torch.float8_e4m3fn else 2.0**-6
    assert (out.flatten(0, 1) - out64).abs().amax() <= out64.abs().amax() * step
    torch.testing.assert_close(lse.flatten(0, 1), lse64.float(), rtol=1e-5, atol=1e-5)


# R15: devices

NO_DRIVER = """
import json, torch

def driver_is_loaded():
    return "libcuda.so" in open("/proc/self/maps").read()

by_torch = driver_is_loaded()
import dsv4
query = torch.randn(2, 1, 4, 512).bfloat16()
pool = torch.randn(3, 16, 512).bfloat16()
table = torch.zeros(2, 4, dtype=torch.int32)
out, lse = torch.ops.dsv4.sparse_mla_decode(query, pool, table)
assert torch.equal(out, pool[0, 0].expand_as(out))
print(json.dumps({"loaded a driver": driver_is_loaded() and not by_torch}))
"""


def test_R15_no_driver():
    """Import and a CPU decode touch no CUDA driver, whether there is one or not."""
    done = subprocess.run(
        [sys.executable, "-c", NO_DRIVER], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"loaded a driver": False}


@pytest.fixture
def two_gpus(gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a GPU: two of them, got one")
    return gpu


def test_R15_the_device_of_the_query(two_gpus):
    problem = cases.problem("packed", "packed", 16, device="cuda:1")
    with torch.cuda.device(0):
        out, _ = cases.check(problem)
        assert torch.cuda.current_device() == 0
    assert out.device == torch.device("cuda:1")
    args = problem.op_args()
    args["swa_indices"] = args["swa_indices"].to("cuda:0")
    with pytest.raises(RuntimeError, match=r"swa_indices: expected .*cuda:1.*, got cuda:0"):
        torch.ops.dsv4.sparse_mla_decode(**args)


def test_R15_the_current_stream(gpu):
    problem = cases.problem("packed", "packed", 16, device=gpu.device)
    cases.check(problem)
    wanted = torch.ops.dsv4.sparse_mla_decode(**problem.op_args())
    query = problem.query.clone()
    problem.query = torch.full_like(query, math.nan)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        problem.query.copy_(query)
        got = torch.ops.dsv4.sparse_mla_decode(**problem.op_args())
    stream.synchronize()
    assert cases.same_bits(got, wanted)


# R16: strides


@pytest.mark.parametrize("fmt", FORMATS)
def test_R16_strided_tensors(engine, fmt):
    problem = cases.problem("packed", fmt, 8, 130, 70, batch=2, q_len=3, device=engine.device)
    dense = copy.copy(problem)
    dense.query = problem.query.contiguous()
    for name in ("swa", "compressed"):
        segment = getattr(problem, name)
        setattr(dense, name, replace(segment, indices=segment.indices.contiguous()))
    wanted = cases.run(dense, strided=False)
    cases.assert_close(*wanted, *dense.inputs())

    fused = torch.zeros(2, 3, 8, 1600, device=engine.device).to(problem.query.dtype)[..., 512:1024]
    transposed = torch.zeros(8, 3, 2, 512, device=engine.device).to(fused.dtype).permute(2, 1, 0, 3)
    for query in (fused, transposed):
        cases.copy_bits(problem.query, query)
        assert not query.is_contiguous()
        assert cases.same_bits(cases.run(replace(problem, query=query), strided=True), wanted)

    # Tables of three dimensions whose rows of one request lie apart from those of the next.
    for segment in (problem.swa, problem.compressed):
        width = segment.indices.shape[1]
        wide = torch.full((2, 5, width + 9), cases.INT_MAX, dtype=torch.int32, device=engine.device)
        wide[:, :3, :width] = segment.indices.unflatten(0, (2, 3))
        segment.indices = wide[:, :3, :width]
    assert cases.same_bits(cases.run(problem), wanted)
    # Lengths with a stride.
    for segment in (problem.swa, problem.compressed):
        wide = torch.full((6, 3), cases.INT_MAX, dtype=torch.int32, device=engine.device)
        wide[:, 1] = segment.lens
        segment.lens = wide[:, 1]
    assert cases.same_bits(cases.run(problem), wanted)


def test_R16_one_table_for_all_rows(engine):
    """A table with stride 0 over the rows, as expand makes it."""
    problem = window_problem("packed", 4, 8, 130, full=True, device=engine.device)
    segment = problem.swa
    segment.indices = segment.indices[:1].repeat(4, 1)
    wanted = cases.check(problem)
    segment.indices = segment.indices[:1].expand(4, -1)
    assert cases.same_bits(cases.run(problem), wanted)


# R17: varlen


@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
@pytest.mark.parametrize("q_lens", [[3, 0, 2], [0, 1, 0, 0, 4, 0], [1]])
def test_R17_varlen_with_empty_requests(engine, fmt, q_lens):
    problem = cases.problem(
        "token_sparse", fmt, 8, q_lens=q_lens, w2=70, lens="full", device=engine.device
    )
    seq_lens = [11 * request + count for request, count in enumerate(q_lens)]
    problem.seq_lens.copy_(torch.tensor(seq_lens))
    problem.swa.lens.copy_(
        torch.tensor(
            [n - m + i + 1 for n, m in zip(seq_lens, q_lens, strict=True) for i in range(m)]
        )
    )
    problem.max_q_len = 50
    options = dict(door="front", workspace="none", scale1=SCALE)
    out, lse = cases.check(problem, **options)
    # Each request alone, as a dense batch of one, gives the same rows.
    start = 0
    for request, count in enumerate(q_lens):
        rows = slice(start, start + count)
        start += count
        if count == 0:
            continue
        alone = replace(
            cases.with_rows(problem, rows), query=problem.query[rows].unsqueeze(0),
            seq_lens=problem.seq_lens[request : request + 1], cum_seq_lens_q=None, max_q_len=None,
        )  # fmt: skip
        got = cases.run(alone, **options)
        assert cases.same_bits((got[0][0], got[1][0]), (out[rows], lse[rows]))


# R18: numbers near the ends of their range


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale1", [1e-6, 10.0, -0.0, -10.0, 1e-30])
@pytest.mark.parametrize("workspace", ["best", "none"])
def test_R18_scales(engine, fmt, scale1, workspace):
    problem = cases.problem("packed", fmt, 8, 128, 700, batch=2, device=engine.device)
    cases.check(
        problem, scale1=scale1, workspace=workspace, sinks=torch.zeros(8, device=engine.device)
    )


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("level", [3e4, -3e4, 1e6])
def test_R18_scores_of_any_level(engine, fmt, level):
    """All scores near one large value, of either sign: nothing may stand in for minus infinity."""
    problem = cases.problem("packed", fmt, 4, 100, 200, batch=3, spread=0.01, device=engine.device)
    for segment in (problem.swa, problem.compressed):
        slots = cases.valid_slots(segment.indices, segment.lens, cases.num_slots(segment.cache))
        cases.fill(segment.cache, slots, loc=1.0, spread=0.01)
    problem.query = torch.ones_like(problem.query.float()).to(problem.query.dtype)
    scores = reference.decode(*problem.inputs())[1]
    scale1 = level / scores[scores.isfinite()].mean().item()
    cases.check(problem, scale1=scale1)
    cases.check(problem, scale1=scale1, sinks=torch.full((4,), level, device=engine.device))


def test_R18_the_largest_bf16_numbers(engine):
    largest = torch.finfo(torch.bfloat16).max
    problem = cases.problem(
        "packed", "bf16", 4, 64, 200, batch=2, holes=0, lens="full", device=engine.device
    )
    for segment in (problem.swa, problem.compressed):
        segment.cache[..., :4] = largest  # in every slot: their sum is beyond float32
        segment.cache[..., 4:8] = -largest
    problem.query[..., :8] = 0
    out, _ = cases.check(problem, scale1=SCALE)
    assert out.isfinite().all()
    # A large query against tiny keys.
    problem.query[..., :8] = largest
    for segment in (problem.swa, problem.compressed):
        segment.cache[..., :8] = 1e-38
    cases.check(problem, scale1=0.01)


# R19: a caller's mistake is a sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: a.update(query=a["query"].half()), "query: expected .*got float16"),
        (
            lambda a: a.update(query=a["query"][..., :500]),
            "query: expected last dimension 512, got shape .3, 1, 8, 500.",
        ),
        (
            lambda a: a.update(query=a["query"][None]),
            "query: expected .*got shape .1, 3, 1, 8, 512.",
        ),
        (
            lambda a: a.update(sparse_indices=a["sparse_indices"].long()),
            "sparse_indices: expected int32, got int64",
        ),
        (lambda a: a.update(sparse_indices=a["sparse_indices"][:2]), "sparse_indices: expected"),
        (lambda a: a.update(swa_topk_lens=a["swa_topk_lens"][:2]), "swa_topk_lens: expected"),
        (
            lambda a: a.update(sinks=torch.zeros(8, dtype=torch.float64)),
            "sinks: expected float32, got float64",
        ),
        (lambda a: a.update(sinks=torch.zeros(9)), "sinks: expected"),
        (lambda a: a.update(swa_kv_cache=a["swa_kv_cache"][..., :583]), "swa_kv_cache: expected"),
        (
            lambda a: a.update(swa_kv_cache=a["swa_kv_cache"].to(torch.int32)),
            "swa_kv_cache: expected",
        ),
    ],
)
def test_R19_mistakes(engine, change, sentence):
    problem = cases.problem("packed", "packed", 8, device=engine.device)
    args = problem.door_args()
    change(args)
    out = torch.full(problem.query.shape, math.nan, device=engine.device).bfloat16()
    with pytest.raises((ValueError, TypeError), match=sentence):
        dsv4.batch_decode_sparse_mla_dsv4(**args, workspace_buffer=None, out=out)
    assert out.isnan().all()


def test_R19_tensors_on_two_devices(gpu):
    args = cases.problem("packed", "packed", 8, device=gpu.device).op_args()
    for name, tensor in dict(args, sinks=torch.zeros(8), bmm1_scale_tensor=torch.ones(1)).items():
        if not isinstance(tensor, torch.Tensor) or name == "query":
            continue
        word = name.removesuffix("_tensor")
        with pytest.raises(RuntimeError, match=rf"{word}: expected on cuda:0 like query, got cpu"):
            torch.ops.dsv4.sparse_mla_decode(**{**args, name: tensor.cpu()})


# R20, R21: rows merged from several parts in one call


@pytest.mark.parametrize("width", [260, 380])
@pytest.mark.parametrize("heads", [8, 16, 64])
@pytest.mark.parametrize("rows", [1, 12])
def test_R20_sinks_enter_once(engine, width, heads, rows):
    problem = cases.problem(
        "packed", "packed", heads, 64, width - 64, batch=rows, lens="full", device=engine.device
    )
    sinks = torch.linspace(3.0, 9.0, heads, device=engine.device)  # scores are about N(0, 1)
    for workspace in ("best", "none"):
        cases.check(problem, workspace=workspace, threads=7, scale1=SCALE, sinks=sinks)


@pytest.mark.parametrize("width", [384, 385, 388, 448, 512, 640, 1152, 8192])
@pytest.mark.parametrize("heads", [1, 16, 128])
def test_R21_any_number_of_parts(engine, width, heads):
    problem = cases.problem(
        "packed", "packed", heads, 64, width - 64, batch=1, lens="full", device=engine.device
    )
    sinks = torch.zeros(heads, device=engine.device)
    cases.check(problem, threads=16, scale1=SCALE, sinks=sinks)


# R22: holes anywhere in a window


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    "where", [slice(0, 64), slice(32, 96), slice(64, 128), slice(1, 127), slice(0, 128, 2)]
)
def test_R22_interior_holes(engine, fmt, where):
    problem = window_problem(fmt, 3, 8, 128, full=True, holes=0, device=engine.device)
    some_slot = problem.swa.indices[0, 0].item()
    problem.swa.indices[:, where] = -1
    cases.check(problem, scale1=SCALE)
    problem.swa.indices[1] = -1
    problem.swa.indices[1, 77] = some_slot
    cases.check(problem, scale1=SCALE)


# R23: NaN where nobody looks


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_R23_unnamed_bytes_change_no_bit(engine, form, fmt):
    problem = cases.problem(form, fmt, 8, 128, 200, p1=32, p2=16, batch=4, device=engine.device)
    hostile = cases.run(problem, scale1=SCALE)
    cases.assert_close(*hostile, *problem.inputs(), scale1=SCALE)
    calm = copy.copy(problem)
    for name in ("swa", "compressed"):
        segment = getattr(problem, name)
        pages, page_size = segment.cache.shape[0], cases.page_size_of(segment.cache)
        valid = cases.valid_slots(
            segment.indices,
            segment.lens,
            pages * page_size,
            page_size if segment.page_table else None,
        )
        pool = cases.cache(pages, page_size, fmt, poison=0, device=engine.device)
        cases.copy_slots(segment.cache, pool, valid)
        setattr(calm, name, replace(segment, cache=pool))
    assert cases.same_bits(hostile, cases.run(calm, scale1=SCALE))


# R24: the running maximum


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale1", [SCALE, 3.0])
def test_R24_a_maximum_that_stands_still(engine, fmt, scale1):
    """Equal keys: every weight is 1, so out is the key itself, bit for bit, whatever the length."""
    problem = window_problem(fmt, 3, 16, 1600, full=True, holes=0.2, device=engine.device)
    pool = problem.swa.cache
    slots = cases.valid_slots(problem.swa.indices, problem.swa.lens, cases.num_slots(pool))
    cases.copy_slots(pool, pool, slots[:1].expand_as(slots), slots)
    key = reference.dequantise(pool)[slots[0]].bfloat16()
    for workspace in ("best", "none"):
        out, _ = cases.check(problem, scale1=scale1, workspace=workspace, threads=7)
        assert torch.equal(out, key.expand_as(out))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("falling", [False, True])
def test_R24_a_maximum_that_moves_in_every_lane(engine, fmt, falling):
    problem = window_problem(fmt, 2, 16, 900, full=True, holes=0, device=engine.device)
    pool = reference.dequantise(problem.swa.cache)
    for row in range(2):
        indices = problem.swa.indices[row].clone()
        scores = pool[indices.long()] @ problem.query[row, 0, 0].double()  # head 0 decides
        problem.swa.indices[row] = indices[scores.argsort(descending=falling)]
    for scale1 in (SCALE, 1.0):
        cases.check(problem, scale1=scale1)
