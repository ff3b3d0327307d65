"""What the torch operator and the Python front door add to a call of the C++ API.

Needs a C++ compiler (CXX, else c++) for overhead.cpp, the same call without torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from common import median, print_head, say

import dsv4
from dsv4.bench import Call
from dsv4.kv_cache import HEAD_DIM, empty_kv_cache

HERE = Path(__file__).resolve().parent
PACKAGE = Path(dsv4.__file__).resolve().parent
CALLS_PER_SAMPLE, SAMPLES, ROUNDS = 1000, 21, 5

METHOD = f"""\
us a call, warm: median over {ROUNDS} rounds that alternate the three; in each the median of
{SAMPLES} loops of {CALLS_PER_SAMPLE} calls (C++: 101 loops). Packed caches, 1 head, 1 slot in each
segment, 8 tensors with out, no lse, no workspace."""
_HEAD = f"{'rows':>4} {'C++ API':>8} {'operator':>9} {'above':>6} {'front door':>11} {'above':>6}"


def build(folder: str) -> str:
    program = f"{folder}/overhead"
    subprocess.run(
        [
            os.environ.get("CXX", "c++"), "-std=c++17", "-O2", str(HERE / "overhead.cpp"),
            f"-I{PACKAGE / 'include'}", f"-L{PACKAGE / 'lib'}", f"-Wl,-rpath,{PACKAGE / 'lib'}",
            "-ldsv4", "-o", program,
        ],
        check=True,
    )  # fmt: skip
    return program


def python_calls(rows: int) -> tuple[Call, Call]:
    """The operator and the front door on the problem of overhead.cpp."""
    query = torch.zeros(rows, 1, 1, HEAD_DIM, dtype=torch.bfloat16)
    cache = empty_kv_cache(1, 1).zero_()
    indices = torch.zeros(rows, 1, dtype=torch.int32)
    lens = torch.ones(rows, dtype=torch.int32)
    out = torch.empty_like(query)
    operator = torch.ops.dsv4.sparse_mla_decode.out
    front_door = partial(
        dsv4.trtllm_batch_decode_sparse_mla_dsv4,
        query,
        cache,
        None,
        indices,
        cache,
        swa_topk_lens=lens,
        extra_sparse_indices=indices,
        extra_sparse_topk_lens=lens,
        backend="sparse",
        out=out,
    )
    return partial(operator, query, cache, indices, lens, cache, indices, lens, out=out), front_door


def microseconds(call: Call) -> float:
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(CALLS_PER_SAMPLE):
            call()
        samples.append((time.perf_counter() - start) / CALLS_PER_SAMPLE)
    return median(samples) * 1e6


def main() -> int:
    print_head("Overhead of a call", METHOD)
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        cpp: dict[int, list[float]] = {0: [], 1: []}
        operator: dict[int, list[float]] = {0: [], 1: []}
        front_door: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(ROUNDS):
            printed = subprocess.check_output([program], text=True).split()
            for rows in (0, 1):
                cpp[rows].append(float(printed[rows]) / 1e3)
                operator_call, front_door_call = python_calls(rows)
                operator[rows].append(microseconds(operator_call))
                front_door[rows].append(microseconds(front_door_call))
    say(_HEAD)
    for rows in (0, 1):
        a, b, c = median(cpp[rows]), median(operator[rows]), median(front_door[rows])
        say(f"{rows:4} {a:8.2f} {b:9.2f} {b - a:6.2f} {c:11.2f} {c - b:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
