"""More than 64 heads, for which an engine may have a kernel of its own."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import cases
from dsv4 import reference

SCALE = cases.SOFTMAX_SCALE
HEADS = [65, 96, 97, 112, 128]


def check(problem, **options):
    return cases.check(problem, **{"scale1": SCALE, **options})


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_head_counts(engine, form, fmt, heads):
    """Neither do heads that do not exist take part, nor is anything stored for them."""
    problem = cases.problem(form, fmt, heads, 128, 200, batch=2, q_len=2, device=engine.device)
    sinks = 2.0 * torch.randn(heads, device=engine.device)
    check(problem, door="front", sinks=sinks, scale2=-1.5)


@pytest.mark.parametrize("widths", [(1, 0), (1, 1), (3, 61), (17, 48), (63, 1), (64, 64), (65, 63)])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_short_rows(engine, fmt, widths):
    """Around one tile, and segments that meet within four slots."""
    problem = cases.problem("packed", fmt, 128, *widths, batch=5, device=engine.device)
    for workspace in ("best", "none"):
        check(problem, workspace=workspace)


@pytest.mark.parametrize("width", [127, 128, 129, 191, 257, 511, 640, 1152])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_row_lengths(engine, fmt, width):
    problem = cases.problem("packed", fmt, 72, 128, width, batch=1, q_len=2, device=engine.device)
    check(problem)


@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
@pytest.mark.parametrize("q_lens", [[2, 0, 3, 1], [0, 0, 4], [5], [3, 0]])
def test_varlen(engine, fmt, q_lens):
    problem = cases.problem("token_sparse", fmt, 128, q_lens=q_lens, w2=90, device=engine.device)
    check(problem, door="front")


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("page_size", [1, 2, 69])
def test_dense_caches(engine, form, fmt, page_size):
    problem = cases.problem(
        form, fmt, 128, 128, 140, p1=page_size, p2=page_size, padded=False, lens="full",
        device=engine.device,
    )  # fmt: skip
    check(problem, door="front", strided=False)


@pytest.mark.parametrize("holes", [0.5, 0.97, 1.0])
@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_holes(engine, form, fmt, holes):
    problem = cases.problem(form, fmt, 100, 128, 300, holes=holes, device=engine.device)
    check(problem, sinks=torch.randn(100, device=engine.device))


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
@pytest.mark.parametrize(
    "where",
    [slice(0, 32), slice(32, 64), slice(0, 64), slice(64, 128), slice(0, 128), slice(1, 300),
     slice(0, 300, 2)],
)  # fmt: skip
def test_holes_of_halves(engine, fmt, where):
    """Whole parts of a tile that other threads or blocks look after."""
    problem = cases.problem(
        "packed", fmt, 128, 300, 0, batch=2, holes=0, lens="full", device=engine.device
    )
    problem.swa.indices[:, where] = -1
    check(problem)


@pytest.mark.parametrize(
    ("heads", "workspace"), [(80, "none"), (128, 2_000_000), (80, 4_000_000), (128, "best")]
)
@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_rows_in_parts(engine, form, fmt, heads, workspace):
    problem = cases.problem(form, fmt, heads, 128, 1024, batch=1, device=engine.device)
    sinks = torch.linspace(-3.0, 9.0, heads, device=engine.device)
    check(problem, workspace=workspace, sinks=sinks, threads=7)


@pytest.mark.parametrize("workspace", ["best", "none"])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_rows_of_very_different_lengths(engine, fmt, workspace):
    """Empty ones among them."""
    problem = cases.problem("packed", fmt, 128, 64, 500, batch=8, device=engine.device)
    lens = torch.tensor([0, 500, 1, 0, 64, 128, 0, 65], dtype=torch.int32, device=engine.device)
    problem.compressed.lens = lens
    problem.compressed.indices[:, 499] = problem.compressed.indices[0, 0]
    problem.compressed.indices[1, :] = -1  # no slot of this one is valid
    problem.swa.lens = torch.tensor([0, 0, 0, 64, 3, 0, 0, 1], dtype=torch.int32).to(lens.device)
    valid = cases.valid_slots(
        problem.compressed.indices, lens, cases.num_slots(problem.compressed.cache)
    )
    cases.fill(problem.compressed.cache, valid)
    valid = cases.valid_slots(
        problem.swa.indices, problem.swa.lens, cases.num_slots(problem.swa.cache)
    )
    cases.fill(problem.swa.cache, valid)
    sinks = torch.randn(128, device=engine.device)
    sinks[5], sinks[70] = math.inf, -math.inf
    for sink_mode in ("apply", "defer"):
        check(problem, workspace=workspace, sinks=sinks, sink_mode=sink_mode)


@pytest.mark.parametrize("lse_base", ["e", "2"])
@pytest.mark.parametrize("lse_empty_positive", [False, True])
def test_lse_options(engine, lse_base, lse_empty_positive):
    problem = cases.problem("packed", "e4m3", 96, 64, 150, batch=5, device=engine.device)
    problem.swa.lens[2] = problem.compressed.lens[2] = 0
    check(
        problem,
        lse_base=lse_base,
        lse_empty_positive=lse_empty_positive,
        lse_sink=True,
        sinks=torch.randn(96, device=engine.device),
    )


@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
def test_scales_in_memory(engine, fmt):
    problem = cases.problem("hca", fmt, 128, 128, 60, device=engine.device)
    scales = {"scale1": torch.tensor([-0.05]), "scale2": torch.tensor([3.0])}
    check(problem, **{name: value.to(engine.device) for name, value in scales.items()})


@pytest.mark.parametrize("scale1", [SCALE, 1.0])
@pytest.mark.parametrize("head", [3, 127])
@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_a_maximum_that_moves(engine, fmt, falling, head, scale1):
    """Slots in the order of one head's scores: the others' maxima move now and then."""
    problem = cases.problem(
        "packed", fmt, 128, 700, 0, batch=1, holes=0, lens="full", device=engine.device
    )
    pool = reference.dequantise(problem.swa.cache)
    indices = problem.swa.indices[0].clone()
    scores = pool[indices.long()] @ problem.query[0, 0, head].double()
    problem.swa.indices[0] = indices[scores.argsort(descending=falling)]
    check(problem, scale1=scale1)


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_a_maximum_that_stands_still(engine, fmt):
    """Equal keys: every weight is 1, so out is the key itself, bit for bit."""
    problem = cases.problem(
        "packed", fmt, 128, 500, 0, batch=2, holes=0.2, lens="full", device=engine.device
    )
    pool = problem.swa.cache
    slots = cases.valid_slots(problem.swa.indices, problem.swa.lens, cases.num_slots(pool))
    cases.copy_slots(pool, pool, slots[:1].expand_as(slots), slots)
    key = reference.dequantise(pool)[slots[0]].bfloat16()
    for workspace in ("best", "none"):
        out, _ = check(problem, workspace=workspace)
        assert torch.equal(out, key.expand_as(out))


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_every_head_and_dim_has_its_place(engine, fmt):
    """A query that picks one slot, another for each head; keys that are no two dims the same."""
    heads, slots = 128, 256
    problem = cases.problem(
        "packed", fmt, heads, slots, 0, batch=1, holes=0, lens="full", device=engine.device
    )
    named = 1 + torch.randperm(cases.num_slots(problem.swa.cache) - 1)[:slots]
    problem.swa.indices[0] = named.int().to(engine.device)
    cases.fill(problem.swa.cache, named)
    keys = reference.dequantise(problem.swa.cache)[named.to(engine.device)]
    chosen = torch.randperm(slots)[:heads].to(engine.device)
    problem.query = (keys[chosen] / 2).to(problem.query.dtype).reshape(1, 1, heads, 512)
    out, _ = check(problem, scale1=1.0)
    assert torch.equal(out[0, 0], keys[chosen].bfloat16())


@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
def test_batch_invariant_rows(engine, form, fmt):
    problem = cases.problem(form, fmt, 128, 128, 150, batch=4, device=engine.device)
    out, lse = check(problem, batch_invariant=True)
    for rows in ([3], [2, 0]):
        got = cases.run(cases.select(problem, rows), scale1=SCALE, batch_invariant=True)
        assert cases.same_bits(got, (out[rows], lse[rows]))


@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
def test_queries_of_any_stride(engine, fmt):
    """[heads, batch, q_len, 512] in memory, with gaps."""
    problem = cases.problem("packed", fmt, 66, 60, 30, batch=2, q_len=3, device=engine.device)
    apart = torch.empty(66, 2, 3, 544, device=engine.device).to(problem.query.dtype)
    query = apart.permute(1, 2, 0, 3)[..., :512]
    cases.copy_bits(problem.query, query)
    check(replace(problem, query=query))


FALL_BACK = """
import ctypes, torch, cases, simulated
problem = cases.problem("hca", "e4m3", 128, 128, 100, batch=2)
cases.e4m3_cache_weights = torch.float8_e4m3fn
cases.check(problem, scale1=cases.SOFTMAX_SCALE)
library = simulated.library()
library.dsv4_sim_text.restype = ctypes.c_char_p
unanchored = [library.dsv4_sim_text(1, i) for i in range(library.dsv4_sim_num_texts(1))]
print(any(b"cg2" in text for text in unanchored))
"""


@pytest.mark.simulated
@pytest.mark.parametrize("pairs", ["0", "1"])
def test_sm100_can_do_without_pairs_of_blocks(pairs):
    """DSV4_SM100_PAIRS=0 chooses blocks alone; read once a process, so each has one of its own."""
    environment = {
        **os.environ,
        "DSV4_SM100_PAIRS": pairs,
        "DSV4_TEST_ENGINE": "sim-sm100",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", FALL_BACK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(pairs == "1")
