"""The decode against its definition: three forms, every format, odd shapes, all options."""

import itertools
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cases
import dsv4
from dsv4 import reference

AXES = {
    "form": cases.FORMS,
    "heads": [1, 2, 7, 8, 16, 24, 32, 64, 96, 128],
    "widths": [(17, 5), (128, 1), (133, 63), (192, 64), (128, 512), (640, 1152), (256, 1024)],
    "p1": [1, 2, 32, 64, 69, 128, 256],
    "p2": [1, 2, 32, 64, 69, 128, 256],
    "batch": [(3, 1), (1, 2), (2, 5), (1, 16)],
    "layout": ["HND", "NHD", "3-D"],
    "workspace": ["best", "none", 100_000],
    "sinks": [True, False],
}


def pairwise(axes):
    """Few cases in which every value of an axis meets every value of every other axis."""
    rng = random.Random(0)
    values = [[(axis, value) for value in axes[axis]] for axis in axes]
    open_pairs = {
        pair for a, b in itertools.combinations(values, 2) for pair in itertools.product(a, b)
    }
    while open_pairs:
        seed = min(open_pairs, key=repr)
        best, most = None, -1
        for _ in range(30):
            case = {axis: rng.choice(axes[axis]) for axis in axes}
            case.update(seed)
            covered = len(open_pairs & set(itertools.combinations(case.items(), 2)))
            if covered > most:
                best, most = case, covered
        open_pairs -= set(itertools.combinations(best.items(), 2))
        yield best


def name_of(case):
    return "-".join(
        [
            *case["form"],
            f"h{case['heads']}",
            "w{}+{}".format(*case["widths"]),
            f"p{case['p1']}+{case['p2']}",
            "b{}q{}".format(*case["batch"]),
            case["layout"],
            f"ws_{case['workspace']}",
        ]
        + ["sinks"] * case["sinks"]
    )


@pytest.mark.parametrize("case", list(pairwise(AXES)), ids=name_of)
def test_grid(engine, case):
    form, fmt = case["form"]
    (w1, w2), (batch, q_len), heads = case["widths"], case["batch"], case["heads"]
    if heads * (w1 + w2) * batch * q_len > 500_000:  # the float64 reference would take seconds
        batch, q_len = 1, 2
    problem = cases.problem(
        form, fmt, heads, w1, w2, p1=case["p1"], p2=case["p2"], batch=batch, q_len=q_len,
        layout=case["layout"], device=engine.device,
    )  # fmt: skip
    # The two 512-wide forms have windows of 128 columns only; the operator takes any.
    door = "front" if form == "packed" or w1 == 128 else "op"
    sinks = 2.0 * torch.randn(heads, device=engine.device) if case["sinks"] else None
    cases.check(
        problem,
        door=door,
        workspace=case["workspace"],
        scale1=cases.SOFTMAX_SCALE,
        scale2=0.75,
        sinks=sinks,
    )


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_front_door_is_the_op(engine, form, fmt):
    problem = cases.problem(form, fmt, 8, 128, 96, q_len=2, device=engine.device)
    assert cases.same_bits(cases.run(problem, door="front"), cases.run(problem, door="op"))


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("page_size", [1, 2, 69])
def test_dense_caches(engine, form, fmt, page_size):
    """No padding anywhere: the layout most callers have."""
    problem = cases.problem(
        form,
        fmt,
        16,
        128,
        200,
        p1=page_size,
        p2=page_size,
        padded=False,
        lens="full",
        device=engine.device,
    )
    cases.check(problem, door="front", strided=False, scale1=cases.SOFTMAX_SCALE)


@pytest.mark.parametrize(("form", "fmt"), [case for case in cases.FORMS if case[1] != "packed"])
def test_pages_that_are_no_whole_tokens_apart(engine, form, fmt):
    problem = cases.problem(form, fmt, 16, 128, 200, p2=16, page_pad=192, device=engine.device)
    cases.check(problem, scale1=cases.SOFTMAX_SCALE)


@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
@pytest.mark.parametrize("q_lens", [[1, 1, 1], [2, 0, 3, 1], [0, 0, 4], [5, 16], [3, 0]])
def test_varlen(engine, fmt, q_lens):
    problem = cases.problem("token_sparse", fmt, 16, q_lens=q_lens, w2=100, device=engine.device)
    cases.check(problem, door="front", scale1=cases.SOFTMAX_SCALE)


@pytest.mark.parametrize("layout", ["HND", "NHD", "3-D", "2-D"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("flat", [True, False])
def test_packed_layouts_and_types(engine, layout, dtype, flat):
    problem = cases.problem(
        "packed",
        "packed",
        16,
        133,
        65,
        p1=69,
        p2=2,
        q_len=2,
        layout=layout,
        flat=flat,
        device=engine.device,
    )
    problem.swa.cache = problem.swa.cache.view(dtype)
    problem.compressed.cache = problem.compressed.cache.view(dtype)
    cases.check(problem, door="front", scale1=cases.SOFTMAX_SCALE)


def test_packed_three_dimensional_tables(engine):
    problem = cases.problem("packed", "packed", 8, 70, 30, batch=2, q_len=3, device=engine.device)
    flat = cases.run(problem)
    for segment in (problem.swa, problem.compressed):
        segment.indices = segment.indices.unflatten(0, (2, 3))
    for door in ("op", "front"):
        assert cases.same_bits(cases.run(problem, door=door), flat)


def test_lengths_may_be_absent(engine):
    """No lengths: the whole width counts."""
    problem = cases.problem("packed", "packed", 8, 70, 130, lens="full", device=engine.device)
    wanted = cases.run(problem, workspace="none")
    args = problem.op_args()
    del args["swa_lens"], args["compressed_lens"]
    assert cases.same_bits(torch.ops.dsv4.sparse_mla_decode(**args), wanted)


def test_one_length_for_each_request(engine):
    problem = cases.problem(
        "packed", "packed", 8, 70, 130, batch=2, q_len=3, holes=0, device=engine.device
    )
    for segment in (problem.swa, problem.compressed):
        segment.lens = segment.lens.reshape(2, 3)[:, :1].repeat(1, 3).flatten()
    wanted = cases.run(problem, workspace="none")
    for lens in (lambda t: t.reshape(2, 3), lambda t: t.reshape(2, 3)[:, 0]):
        args = problem.op_args()
        args.update(swa_lens=lens(args["swa_lens"]), compressed_lens=lens(args["compressed_lens"]))
        assert cases.same_bits(torch.ops.dsv4.sparse_mla_decode(**args), wanted)


def test_functional_op_allocates_what_it_returns(engine):
    problem = cases.problem("hca", "bf16", 8, 128, 64, q_len=2, device=engine.device)
    out, lse = torch.ops.dsv4.sparse_mla_decode(**problem.op_args())
    assert out.shape == problem.query.shape
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous()
    assert lse.shape == problem.query.shape[:-1]
    assert lse.dtype == torch.float32
    cases.assert_close(out, lse, *problem.inputs())


def test_out_without_lse(engine):
    problem = cases.problem("packed", "packed", 8, device=engine.device)
    wanted, _ = cases.run(problem, workspace="none")
    out = torch.full_like(problem.query, math.nan)
    torch.ops.dsv4.sparse_mla_decode.out(**problem.op_args(), out=out)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("kind", ["float", "tensor"])
@pytest.mark.parametrize("scale1", [-0.0, 1e-6, 0.044, -0.05, 1.0])
def test_scales(engine, kind, scale1):
    problem = cases.problem("token_sparse", "e4m3", 16, w2=100, device=engine.device)
    scales = dict(scale1=scale1, scale2=-2.5)
    if kind == "tensor":
        scales = {
            name: torch.tensor([value], device=engine.device) for name, value in scales.items()
        }
    cases.check(problem, door="front", **scales)


def test_scale_tensors_need_no_dimension(engine):
    problem = cases.problem("packed", "packed", 8, device=engine.device)
    cases.check(problem, scale1=torch.tensor(0.05, device=engine.device))


SINKS = {
    "finite": [0.5, -1.0, 3.0, 8.0], "-inf": [-math.inf] * 4, "+inf": [math.inf] * 4,
    "mixed": [-math.inf, 0.0, math.inf, -50.0], "huge": [1e30, -1e30, 200.0, -200.0],
}  # fmt: skip


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("door", ["op", "front"])
def test_sinks(engine, kind, door):
    problem = cases.problem("packed", "packed", 4, 133, 1152, batch=6, device=engine.device)
    sinks = torch.tensor(SINKS[kind], device=engine.device)
    cases.check(problem, door=door, scale1=cases.SOFTMAX_SCALE, sinks=sinks)


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("heads", [16, 32])
def test_error_is_that_of_a_rounded_computation(engine, form, fmt, heads):
    """Over all outputs of some rows together: single ones vary."""
    problem = cases.problem(form, fmt, heads, 128, 640, batch=2, device=engine.device)
    out, _ = cases.run(problem, scale1=cases.SOFTMAX_SCALE)
    inputs = problem.inputs()
    exact, _ = reference.decode(*inputs, scale1=cases.SOFTMAX_SCALE)
    rounded, _ = reference.decode_rounded(
        *inputs,
        weights=cases.weights_of(inputs),
        largest_weight=2.0**7.5,
        scale1=cases.SOFTMAX_SCALE,
    )
    error = (out.reshape(exact.shape).double() - exact).norm() / exact.norm()
    error_of_rounded = (rounded.double() - exact).norm() / exact.norm()
    assert error <= 1.1 * error_of_rounded


@pytest.mark.parametrize("lse_base", ["e", "2"])
@pytest.mark.parametrize("sink_mode", ["apply", "defer"])
@pytest.mark.parametrize("workspace", ["best", "none"])
def test_lse_options(engine, lse_base, sink_mode, workspace):
    problem = cases.problem("packed", "packed", 4, 64, 300, batch=7, device=engine.device)
    assert (problem.inputs().swa_lens <= 0).any()
    sinks = torch.tensor(SINKS["mixed"], device=engine.device)
    options = dict(lse_base=lse_base, sink_mode=sink_mode, sinks=sinks, scale1=cases.SOFTMAX_SCALE)
    cases.check(problem, door="front", workspace=workspace, **options)
    for lse_empty_positive in (False, True):
        cases.check(problem, workspace=workspace, lse_empty_positive=lse_empty_positive, **options)
        if sink_mode == "apply":
            cases.check(
                problem,
                workspace=workspace,
                lse_empty_positive=lse_empty_positive,
                lse_sink=True,
                **options,
            )


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_batch_invariant_rows(engine, form, fmt):
    """A row's bits are the same alone, in a batch, in another order, and whatever the workspace."""
    problem = cases.problem(form, fmt, 72, 128, 400, batch=7, device=engine.device)
    out, lse = cases.run(problem, batch_invariant=True)
    cases.assert_close(out, lse, *problem.inputs())
    for rows, workspace in [
        ([4], "best"),
        ([6, 0, 3], "best"),
        ([2, 1], "none"),
        (range(7), 10**6),
    ]:
        part = cases.select(problem, list(rows))
        # More threads than rows: a plan that looked at them would cut heads or slots.
        got = cases.run(part, batch_invariant=True, workspace=workspace, threads=9)
        assert cases.same_bits(got, (out[list(rows)], lse[list(rows)]))


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
@pytest.mark.parametrize("scale2", [1.0, -1.2345, 3e-5])
def test_one_slot_is_its_key(engine, fmt, scale2):
    """The softmax of one score is 1: out is the key times scale2, rounded to nearest even, once."""
    problem = cases.problem("packed", fmt, 5, 1, 0, batch=40, lens="full", device=engine.device)
    problem.swa = cases.segment(40, 3, 64, fmt, full=True, holes=0, device=engine.device)
    problem.swa.indices[:, [0, 2]] = -1
    out, _ = cases.check(problem, scale2=scale2)
    keys = reference.dequantise(problem.swa.cache)[problem.swa.indices[:, 1].long()].float()
    wanted = (keys * torch.tensor(scale2, device=engine.device)).bfloat16()
    assert torch.equal(out, wanted[:, None, None].expand_as(out))


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_nan_in_a_valid_slot_is_not_hidden(engine, fmt):
    """Only unnamed slots are ignored: a NaN that a row names takes its out and lse with it."""
    problem = cases.problem("packed", fmt, 4, 40, 0, batch=3, lens="full", device=engine.device)
    pool = problem.swa.cache
    slots = torch.arange(cases.num_slots(pool), device=engine.device)
    cases.fill(pool, slots)
    problem.swa.indices.copy_(slots[1:121].reshape(3, 40))
    problem.query = torch.ones_like(problem.query.float()).to(problem.query.dtype)
    page, at = divmod(int(problem.swa.indices[1, 7]), 64)
    if fmt == "packed":
        data, scales = cases.packed_views(pool)
        data[page, at, :64] = 0x38  # 1.0
        scales[page, at, 0] = 0xFF  # NaN, not infinity
    else:
        pool[page, 0, at, 100] = math.nan
    out, lse = cases.check(problem)
    assert out.isnan().flatten(1).all(1).tolist() == [False, True, False]
    assert lse.isnan().flatten(1).any(1).tolist() == [False, True, False]


def test_every_code_of_the_packed_format(engine):
    """All finite e4m3 codes under scales from 2^-100 to 2^100, one slot a row."""
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    rows = 202
    pool = cases.cache(rows, 1, "packed", device=engine.device)
    data, scales = cases.packed_views(pool)
    data[:, 0, :448] = codes.repeat(2)[torch.arange(448) + torch.arange(rows)[:, None] % 30]
    data[:, 0, 448:] = 0
    scales[:, 0] = (torch.arange(rows) + 26).to(torch.uint8)[:, None]
    query = torch.zeros(rows, 1, 3, 512, device=engine.device).bfloat16()
    table = torch.arange(rows, dtype=torch.int32, device=engine.device)[:, None]
    out, lse = torch.ops.dsv4.sparse_mla_decode(query, pool, table)
    wanted = reference.dequantise(pool).bfloat16()
    assert torch.equal(out, wanted[:, None, None].expand_as(out))
    assert lse.abs().max() == 0


def test_every_code_of_a_plain_e4m3_cache(engine):
    codes = [c for c in range(256) if c & 0x7F != 0x7F]
    row = torch.tensor([*codes, *codes, 0, 0, 0, 0], dtype=torch.uint8, device=engine.device)
    pool = row.view(torch.float8_e4m3fn).reshape(1, 1, 512)
    query = torch.zeros(1, 1, 3, 512, device=engine.device).to(torch.float8_e4m3fn)
    table = torch.zeros(1, 1, dtype=torch.int32, device=engine.device)
    out, _ = torch.ops.dsv4.sparse_mla_decode(query, pool, table)
    wanted = torch.tensor([cases.e4m3_value(code) for code in row.tolist()]).to(out)
    assert torch.equal(out[0, 0], wanted.expand(3, 512))
    # And as a query, against a pool that picks one number at a time.
    eye = torch.eye(512, device=engine.device).to(torch.float8_e4m3fn).reshape(512, 1, 512)
    query = row.view(torch.float8_e4m3fn).expand(512, 1, 1, 512)
    table = torch.arange(512, dtype=torch.int32, device=engine.device)[:, None]
    _, lse = torch.ops.dsv4.sparse_mla_decode(query, eye, table)
    assert torch.equal(lse.flatten().to(wanted), wanted)


def test_the_same_call_gives_the_same_bits(engine):
    problem = cases.problem("packed", "packed", 16, 128, 640, batch=2, device=engine.device)
    first = cases.run(problem)
    for _ in range(3):
        assert cases.same_bits(cases.run(problem), first)


@pytest.mark.parametrize("workspace", [0, 1, 4095, 65_536, 200_001, "best"])
def test_any_workspace(engine, workspace):
    problem = cases.problem("packed", "packed", 16, 128, 1152, batch=1, device=engine.device)
    cases.check(problem, workspace=workspace, scale1=cases.SOFTMAX_SCALE)


@pytest.mark.few_sms
@pytest.mark.parametrize(("rows", "rows_on_gpu"), [(8, 300), (34, 1000)])
@pytest.mark.parametrize("longest", [3, 200])
@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_more_rows_than_blocks_some_of_them_cut(engine, form, fmt, longest, rows, rows_on_gpu):
    if engine.device == "cuda":
        rows = rows_on_gpu
    problem = cases.problem(form, fmt, 16, 128, 2560, batch=rows, device=engine.device)
    problem.compressed.lens.clamp_(max=longest)
    cases.check(problem, sinks=torch.randn(16, device=engine.device), scale1=cases.SOFTMAX_SCALE)


@pytest.mark.few_sms
@pytest.mark.parametrize("workspace", ["best", "none", 1_000_000])
@pytest.mark.parametrize(
    ("heads", "width", "batch", "batch_on_gpu"),
    [(16, 8192, 7, 150), (40, 8192, 4, 90), (80, 8192, 2, 50)],
)
@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
def test_hca_persistent_or_not(engine, fmt, heads, width, batch, batch_on_gpu, workspace):
    """More rows than run at a time, of tables so wide that each may get a block of its own."""
    if engine.device == "cuda":
        batch = batch_on_gpu
    problem = cases.problem("hca", fmt, heads, 128, width, batch=batch, device=engine.device)
    problem.compressed.lens.clamp_(max=300)
    options = dict(door="front", workspace=workspace, scale1=cases.SOFTMAX_SCALE)
    chosen = cases.check(problem, **options)
    persistent = cases.run(problem, hca_use_persistent=True, **options)
    assert cases.same_bits(persistent, chosen)


def test_workspace_of_any_type_and_alignment(engine):
    problem = cases.problem("packed", "packed", 16, 128, 1152, batch=1, device=engine.device)
    size = torch.ops.dsv4.workspace_size(1, 16, 128, 1152, device=problem.query.device)
    wanted, _ = cases.run(problem)
    for buffer in [
        torch.full((size + 64,), 0xFF, dtype=torch.uint8, device=engine.device)[3:],
        torch.full((size // 4 + 1,), math.nan, device=engine.device),
        torch.full((size // 8 + 1,), -1, dtype=torch.int64, device=engine.device),
    ]:
        out, _ = torch.ops.dsv4.sparse_mla_decode(**problem.op_args(), workspace=buffer)
        cases.assert_close(out, None, *problem.inputs())
        assert out.shape == wanted.shape


def test_window_only_token_sparse(engine):
    """A combined table of exactly the 128 window columns: no compressed slot."""
    problem = cases.problem("token_sparse", "bf16", 16, w2=8, device=engine.device)
    problem.compressed.lens.fill_(0)
    problem.compressed.indices = problem.compressed.indices[:, :0]
    problem.table = problem.table[:, :128]
    for door in ("op", "front"):
        cases.check(problem, door=door)


def test_workspace_size_and_supports(engine):
    for heads in (1, 7, 64, 128):
        for fmt in ("bf16", "e4m3", "packed"):
            dtype = cases.DTYPES["e4m3" if fmt == "e4m3" else "bf16"]
            for page_table in (False, True):
                assert dsv4.supports(
                    heads,
                    query_dtype=dtype,
                    kv_format=fmt,
                    page_table=page_table,
                    device=engine.device,
                )
        assert dsv4.workspace_size(5, heads, 128, 512, device=engine.device) >= 0
    assert dsv4.workspace_size(0, 64, 128, 512, device=engine.device) == 0


@pytest.mark.parametrize("simd", ["generic", "avx2", "avx512", "amx_emulated"])
def test_other_instruction_sets(simd):
    """The CPU engine chooses its best instructions once a process; the rest run in others."""

    def python(*command):
        environment = {**os.environ, "DSV4_CPU_SIMD": simd}
        command = [sys.executable, *command]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)

    if python("-c", "import dsv4; print(dsv4.build_info()['simd'])").stdout.strip() != simd:
        pytest.skip(f"this CPU has no {simd}")
    some = "test_grid and (h7 or h24 or h128) or test_one_slot or test_every_code or test_any_work"
    some += " or test_R5 or test_R6 or test_R18 or test_R22 or test_R23 or test_R24"
    files = [__file__, str(Path(__file__).with_name("test_regressions.py"))]
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", f"cpu and ({some})")
    assert done.returncode == 0, done.stdout
    assert "tests that ran" in done.stdout
