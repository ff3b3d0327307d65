"""The SM100 engine leaves to the portable one what tensor copies cannot address, and no more; how
many blocks it launches."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest
import torch

import cases
import simulated

pytestmark = pytest.mark.simulated
PLAIN_FORMS = [form for form in cases.FORMS if form[1] != "packed"]


@pytest.fixture(autouse=True)
def b200(monkeypatch):
    monkeypatch.setenv("DSV4_TEST_ENGINE", "sim-sm100")


def engine_that_runs(problem):
    launches = simulated.record(lambda: cases.run(problem), clusters="0").launches
    return "sm100" if "sm100::" in launches[0]["kernel"] else "sm120"


@pytest.mark.parametrize("heads", [1, 64, 128])
@pytest.mark.parametrize(("form", "fmt"), cases.FORMS)
@pytest.mark.parametrize("padded", [False, True])
def test_caches_as_engines_allocate_them(form, fmt, heads, padded):
    problem = cases.problem(form, fmt, heads, p1=256, p2=2, batch=1, padded=padded)
    assert engine_that_runs(problem) == "sm100"


@pytest.mark.parametrize(("form", "fmt"), PLAIN_FORMS)
def test_pages_that_are_no_whole_tokens_apart(form, fmt):
    problem = cases.problem(form, fmt, 16, batch=2, page_pad=192)
    assert engine_that_runs(problem) == "sm120"


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_a_query_at_an_odd_address(fmt):
    form = "packed" if fmt == "packed" else "token_sparse"
    problem = cases.problem(form, fmt, 16, batch=2)
    query = problem.query.contiguous()
    buffer = query.new_empty(query.numel() + 1)
    problem.query = buffer[1:].view(query.shape).copy_(query)
    assert engine_that_runs(problem) == "sm120"


@pytest.mark.parametrize(
    ("rows", "width", "options", "blocks"),
    [
        (200, 8192, {}, 200),
        (200, 8192, {"persistent": True}, 148),
        (200, 128, {}, 148),
    ],
)
def test_blocks_that_stay_and_blocks_of_a_row(rows, width, options, blocks):
    query = torch.zeros(1, 1, 1, 512, dtype=torch.float8_e4m3fn).expand(rows, -1, -1, -1)
    cache = torch.zeros(4, 1, 64, 512, dtype=torch.float8_e4m3fn)
    window, pages = (torch.zeros(1, n, dtype=torch.int32) for n in (128, width // 64))
    decode = functools.partial(
        torch.ops.dsv4.sparse_mla_decode, query, cache, window.expand(rows, -1), None, cache,
        pages.expand(rows, -1), page_table=True, **options,
    )  # fmt: skip
    (launch,) = simulated.record(decode, clusters="0").launches
    assert launch["grid"] == [blocks, 1, 1]


@pytest.mark.parametrize("allowed", ["0", "1"])
def test_pairs_of_blocks_can_be_switched_off(allowed):
    """The variable is read once, so this takes a process."""
    program = (
        "import cases, simulated\n"
        "problem = cases.problem('hca', 'e4m3', 96, p2=2, batch=2)\n"
        "run = lambda: cases.check(problem, scale1=cases.SOFTMAX_SCALE)\n"
        "cases.e4m3_cache_weights = cases.DTYPES['e4m3']\n"
        "print(simulated.record(run).launches[0]['kernel'])\n"
    )
    environment = dict(os.environ, DSV4_SM100_PAIRS=allowed, PYTHONPATH=os.pathsep.join(sys.path))
    kernel = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert ("of_pairs" in kernel) == (allowed == "1")
