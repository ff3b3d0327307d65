"""`python -m dsv4 check`: does this installation compute what it should where it is, and how fast?

    hostile decodes in every form -> compared with the CPU engine and float64 -> times -> verdict

For the GPUs that this project has never had: what it prints is what a bug report needs. An entry of
`FORMS` yields trials; each runs on the subject, and raises if its result is not what the judge
says.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import dsv4

from . import bench, hostile, reference
from .demo import Progress, cpu_name, cpu_threads, reads_back, say, usable_gpu
from .hca import COMPRESS_RATIO
from .hostile import moved
from .kv_cache import HEAD_DIM, WINDOW, empty_kv_cache
from .step import FORMATS, SLOT_BYTES, Segment, Step, arguments, reference_inputs, workspace

FLOAT64_WORK = 100_000  # rows x heads x slots that float64 takes tens of milliseconds for
LONGEST_TRIAL = 120.0  # seconds, after which a GPU is taken to hang
FAILURES_SHOWN = 3  # of a form
FORMS_OF_FORMATS = (
    ("token-sparse", "bf16"), ("token-sparse", "e4m3"), ("HCA", "bf16"), ("HCA", "e4m3"),
    ("packed", "packed"),
)  # fmt: skip

Result = tuple[Tensor, Tensor]  # out and lse, on the CPU


class Place(NamedTuple):
    """Where calls run: a device, and what holds around each call (tests choose engines by it)."""

    device: torch.device
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


CPU = Place(torch.device("cpu"))


class Sizes(NamedTuple):
    """How much is tried."""

    heads: tuple[int, ...]
    requests: int  # of two query rows each
    width: int  # compressed slots a row
    long_width: int  # of a single row, enough for many blocks
    batch: int  # rows, more than a GPU runs at a time
    every_pair: bool  # of head counts and page sizes; else each of them once at least

    def with_heads(self, others: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Pairs of a head count and one of the others."""
        if self.every_pair:
            yield from product(self.heads, others)
            return
        for i in range(max(len(self.heads), len(others))):
            yield self.heads[i % len(self.heads)], others[i % len(others)]

    def usual_heads(self) -> int:
        return self.heads[len(self.heads) // 2]


FULL = Sizes((1, 8, 16, 32, 64, 96, 128), 3, 512, 8192, 320, True)
QUICK = Sizes((1, 16, 128), 2, 192, 8192, 320, False)
ON_CPU = Sizes((1, 16, 96), 2, 192, 2048, 32, False)
QUICK_ON_CPU = Sizes((1, 16), 1, 64, 640, 8, False)


class Check(NamedTuple):
    subject: Place
    judge: Place | None  # the CPU engine; None where that is the subject, which float64 judges
    sizes: Sizes


class Trial(NamedTuple):
    label: str
    run: Callable[[], float]  # returns the share of the tolerance used; raises if that is above 1


class Form(NamedTuple):
    about: str
    trials: Callable[[Check], Iterator[Trial]]
    needs_gpu: bool = False


# --- running and judging


def decode(place: Place, form: str, step: Step, **options: object) -> Result:
    """The step in one of its forms, with a workspace and results full of NaN beforehand."""
    step = moved(step, place.device)
    out, lse = _unwritten(step)
    with place.around():
        call: dict[str, Any] = arguments(form, step) | options
        if call["workspace_buffer"] is not None:
            call["workspace_buffer"].fill_(0xFF)
        dsv4.trtllm_batch_decode_sparse_mla_dsv4(**call, out=out, lse=lse)
    return out.cpu(), lse.cpu()


def _unwritten(step: Step) -> Result:
    shape, device = step.query.shape, step.query.device
    out = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device)
    return out, torch.full(shape[:-1], torch.nan, device=device)


def _reference_options(step: Step, options: dict[str, object]) -> dict[str, Any]:
    known = ("lse_base", "sink_mode", "lse_empty_positive")
    return {
        "scale1": step.bmm1_scale,
        "scale2": step.bmm2_scale,
        "sinks": step.sinks,
        **{name: value for name, value in options.items() if name in known},
    }


def judged(
    check: Check, got: Result, by_engine: Callable[[Place], Result], step: Step, **options: object
) -> float:
    """The share of its tolerances that a result uses: against the CPU engine's, and float64."""
    used = 0.0
    if check.judge is not None:
        used = reference.assert_alike(*got, *by_engine(check.judge))
    work = step.query.shape[:-1].numel() * sum(step.widths())
    if check.judge is None or work <= FLOAT64_WORK:
        inputs, choices = reference_inputs(step), _reference_options(step, options)
        used = max(used, reference.assert_close(*got, *inputs, **choices))
    return used


def _decoded(check: Check, label: str, form: str, step: Step, **options: object) -> Trial:
    def run() -> float:
        by_engine = partial(decode, form=form, step=step, **options)
        return judged(check, by_engine(check.subject), by_engine, step, **options)

    return Trial(label, run)


# --- the forms of the decode


def token_sparse(format: str, varlen: bool, check: Check) -> Iterator[Trial]:
    q_lens = [3, 0] + [1] * check.sizes.requests if varlen else [2] * check.sizes.requests
    for heads in check.sizes.heads:
        step = hostile.step("token-sparse", format, heads, q_lens, check.sizes.width, varlen=varlen)
        yield _decoded(check, f"{heads} heads", "token-sparse", step)


def by_page_size(
    form: str, format: str, page_sizes: Sequence[int], check: Check
) -> Iterator[Trial]:
    q_lens = [2] * check.sizes.requests
    for heads, page_size in check.sizes.with_heads(page_sizes):
        step = hostile.step(
            form, format, heads, q_lens, check.sizes.width, page_sizes=(64, page_size)
        )
        yield _decoded(check, f"{heads} heads, pages of {page_size}", form, step)


def long_row(check: Check) -> Iterator[Trial]:
    for form, format in FORMS_OF_FORMATS:
        every = check.sizes.heads if format == "packed" else [check.sizes.usual_heads()]
        for heads in every:
            step = hostile.step(form, format, heads, [1], check.sizes.long_width)
            label = f"{form} {format}, {heads} heads, {sum(step.widths()):,} slots"
            yield _decoded(check, label, form, step)


def big_batch(check: Check) -> Iterator[Trial]:
    for heads in check.sizes.heads[1::2]:
        step = hostile.step("packed", "packed", heads, [1] * check.sizes.batch, check.sizes.width)
        yield _decoded(check, f"{heads} heads, {check.sizes.batch} rows", "packed", step)


def call_options(check: Check) -> Iterator[Trial]:
    heads, q_lens = check.sizes.usual_heads(), [2] * check.sizes.requests
    for form, format in FORMS_OF_FORMATS:
        step = hostile.step(form, format, heads, q_lens, check.sizes.width)
        assert step.sinks is not None
        infinite = step.sinks.clone()
        infinite[::3], infinite[1::3] = torch.inf, -torch.inf
        on_device = {
            "bmm1_scale": torch.tensor([step.bmm1_scale]),
            "bmm2_scale": torch.tensor([step.bmm2_scale]),
        }
        variants: dict[str, tuple[dict[str, Any], dict[str, object]]] = {
            "no sinks": ({"sinks": None}, {}),
            "infinite sinks": ({"sinks": infinite}, {}),
            "scales on the device": (on_device, {}),
            "scores far apart": ({"bmm1_scale": 8.0 * step.bmm1_scale}, {}),
            "lse to base 2": ({}, {"lse_base": "2"}),
            "sinks deferred": ({}, {"sink_mode": "defer"}),
            "no workspace": ({}, {"workspace_buffer": None}),
            "no early launch": ({}, {"enable_pdl": False}),
        }
        for name, (changes, options) in variants.items():
            yield _decoded(
                check, f"{form} {format}, {name}", form, step._replace(**changes), **options
            )


def flash_mla(check: Check) -> Iterator[Trial]:
    q_lens = [2] * check.sizes.requests

    def run(step: Step) -> float:
        by_engine = partial(_flash_mla, step=step)
        got = by_engine(check.subject)
        return judged(check, got, by_engine, step, lse_empty_positive=True)

    for heads in check.sizes.heads:
        step = hostile.step("packed", "packed", heads, q_lens, check.sizes.width)
        yield Trial(f"{heads} heads", partial(run, step))


def _flash_mla(place: Place, step: Step) -> Result:
    step = moved(step, place.device)
    window, extra = step.segments()
    lead = step.query.shape[:2]
    with place.around():
        out, lse = dsv4.flash_mla_with_kvcache(
            step.query,
            window.cache.unsqueeze(2),
            None,
            None,
            HEAD_DIM,
            dsv4.FlashMLASchedMeta(),
            softmax_scale=step.bmm1_scale,
            is_fp8_kvcache=True,
            indices=window.table.unflatten(0, lead),
            topk_length=window.lens.unflatten(0, lead),
            attn_sink=step.sinks,
            extra_k_cache=extra.cache.unsqueeze(2),
            extra_indices_in_kvcache=extra.table.unflatten(0, lead),
            extra_topk_length=extra.lens.unflatten(0, lead),
        )
    return out.cpu(), lse.transpose(1, 2).cpu()


# --- what surrounds a decode


def append_and_decode(check: Check) -> Iterator[Trial]:
    for heads in check.sizes.heads:
        yield Trial(f"{heads} heads", partial(_append_and_decode, check, heads))


def _append_and_decode(check: Check, heads: int) -> float:
    """Tokens are appended one by one, each followed by a decode that needs it, without a wait."""
    tokens, rows = 8, 2
    empty = hostile.poisoned_pool(2, 64, "packed")
    kv, slots = hostile.latents(tokens), torch.randperm(128)[:tokens]
    filled = moved(empty, empty.device)
    hostile.append(kv, filled, slots, "packed")
    query = hostile.query_rows(rows, heads, "packed")[:, None]
    table, seq_lens = slots.int().repeat(rows, 1), torch.zeros(rows, dtype=torch.int32)
    steps = [
        Step(
            query,
            Segment(filled, table, torch.full((rows,), length, dtype=torch.int32)),
            None,
            seq_lens,
            *hostile.scales("packed"),
            torch.randn(heads),
        )
        for length in range(1, tokens + 1)
    ]

    device = check.subject.device
    cache, its_kv, its_slots = moved((empty, kv, slots), device)
    calls, results = [], []
    for step in steps:
        its_step = moved(step, device)
        its_step = its_step._replace(window=its_step.window._replace(cache=cache))
        results.append(_unwritten(its_step))
        calls.append(arguments("packed", its_step) | {"enable_pdl": True})
    with check.subject.around():
        for i, (call, (out, lse)) in enumerate(zip(calls, results, strict=True)):
            hostile.append(its_kv[i : i + 1], cache, its_slots[i : i + 1], "packed")
            dsv4.trtllm_batch_decode_sparse_mla_dsv4(**call, out=out, lse=lse)
    return max(
        judged(check, (out.cpu(), lse.cpu()), partial(decode, form="packed", step=step), step)
        for step, (out, lse) in zip(steps, results, strict=True)
    )


def graph_replay(check: Check) -> Iterator[Trial]:
    for form, format in FORMS_OF_FORMATS:
        for heads in check.sizes.heads:
            run = partial(_graph_replay, check, form, format, heads)
            yield Trial(f"{form} {format}, {heads} heads", run)


def _graph_replay(check: Check, form: str, format: str, heads: int) -> float:
    """A decode is captured once, then replayed with other lengths, indices, caches and queries."""
    q_lens = [2] * check.sizes.requests
    steps = [hostile.step(form, format, heads, q_lens, check.sizes.width) for _ in range(3)]
    captured = moved(steps[0], check.subject.device)
    out, lse = _unwritten(captured)

    def call() -> None:
        dsv4.trtllm_batch_decode_sparse_mla_dsv4(**arguments(form, captured), out=out, lse=lse)

    call()
    torch.cuda.synchronize()
    graph, used = bench.Graph([call]), 0.0
    for step in (*steps[1:], steps[0]):
        hostile.overwrite(captured, step)
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        got = out.cpu(), lse.cpu()
        used = max(used, judged(check, got, partial(decode, form=form, step=step), step))
    return used


def merged_states(check: Check) -> Iterator[Trial]:
    for heads in check.sizes.heads:
        step = hostile.step(
            "packed", "packed", heads, [2] * check.sizes.requests, check.sizes.width
        )
        yield Trial(f"{heads} heads", partial(_merged_states, check, step))


def _merged_states(check: Check, step: Step) -> float:
    """Each segment decoded alone, the sinks left to the merging."""
    parts = [
        decode(
            check.subject, "packed", step._replace(window=part, compressed=None), sink_mode="defer"
        )
        for part in step.segments()
    ]
    outs, lses, sinks = moved(
        (
            torch.stack([out for out, _ in parts]),
            torch.stack([lse for _, lse in parts]),
            step.sinks,
        ),
        check.subject.device,
    )
    with check.subject.around():
        out, lse = dsv4.merge_states(outs, lses, sinks=sinks)
    if check.judge is not None:
        wanted = decode(check.judge, "packed", step)
    else:
        wanted = reference.decode(*reference_inputs(step), **_reference_options(step, {}))
    return reference.assert_alike(out.cpu(), lse.cpu(), *wanted)


# --- cache functions and tables: equal, bit for bit


def appended(check: Check) -> Iterator[Trial]:
    for format, page_size in product(FORMATS, (1, 2, 64, 256)):
        yield Trial(f"{format}, pages of {page_size}", partial(_append, check, format, page_size))


def _append(check: Check, format: str, page_size: int) -> float:
    empty = hostile.poisoned_pool(-(-300 // page_size), page_size, format)
    num_slots = empty.shape[0] * page_size
    slots = torch.randperm(num_slots)[:200]
    slots[::9], slots[4::9] = -1, num_slots
    kv = hostile.latents(len(slots))

    def run(place: Place) -> Tensor:
        cache, its_kv, its_slots = moved((empty, kv, slots), place.device)
        with place.around():
            hostile.append(its_kv, cache, its_slots, format)
        return moved(cache, CPU.device)

    got = run(check.subject)
    if check.judge is not None:
        _require(hostile.same_bytes(got, run(check.judge)), "bytes differ from the CPU engine's")
    valid = (slots >= 0) & (slots < num_slots)
    _require(
        reads_back(got, format, slots[valid], kv[valid]),
        "rows do not read back within the rounding of the format",
    )
    return 0.0


def packed_and_unpacked(check: Check) -> Iterator[Trial]:
    for page_size in (1, 2, 64, 256):
        yield Trial(f"pages of {page_size}", partial(_pack_and_unpack, check, page_size))


def _pack_and_unpack(check: Check, page_size: int) -> float:
    unwritten = hostile.poisoned_pool(3, page_size, "packed")
    kv = hostile.latents(3 * page_size).unflatten(0, (3, page_size))

    def run(place: Place) -> tuple[Tensor, Tensor]:
        its_kv, cache = moved((kv, unwritten), place.device)
        with place.around():
            dsv4.pack_kv_cache(its_kv, out=cache)
            values = dsv4.unpack_kv_cache(cache)
        return moved(cache, CPU.device), values.cpu()

    cache, values = run(check.subject)
    if check.judge is not None:
        same = hostile.same_bytes(cache, run(check.judge)[0])
        _require(same, "packed bytes differ from the CPU engine's")
    _require(
        torch.equal(values.flatten(0, 1).double(), reference.dequantise(cache)),
        "unpacked numbers are not those of the packed bytes",
    )
    slots = torch.arange(3 * page_size)
    _require(
        reads_back(cache, "packed", slots, kv.flatten(0, 1)),
        "rows do not read back within the rounding of the format",
    )
    return 0.0


def hca_tables(check: Check) -> Iterator[Trial]:
    for page_size in (1, 2, 64, 128):
        yield Trial(f"pages of {page_size}", partial(_hca_tables, check, page_size))


def _hca_tables(check: Check, page_size: int) -> float:
    """Against the conversion that checks, which is plain torch."""
    q_len, seq_lens = 2, torch.tensor([5, 20_000, 1000, 70 * COMPRESS_RATIO + 1]).int()
    visible = (seq_lens[:, None] - q_len + 1 + torch.arange(q_len)).flatten()
    counts = visible // COMPRESS_RATIO
    columns = int(counts.max())
    pages_each = -(-columns // page_size)
    num_pages = len(seq_lens) * pages_each
    pages = torch.randperm(num_pages).view(len(seq_lens), pages_each)
    compressed = reference.page_slots(pages, page_size).repeat_interleave(q_len, 0)
    window = torch.randint(0, 4 * 64, (len(compressed), WINDOW))
    indices = torch.cat([window, compressed], 1).int()
    caches = empty_kv_cache(4, 64), empty_kv_cache(num_pages, page_size)
    wanted = dsv4.convert_compressed_page_aligned_sparse_indices_to_hca_metadata(
        indices, (WINDOW + counts).int(), seq_lens, *caches, q_len=q_len
    )
    device = check.subject.device
    inputs = moved((indices, seq_lens, *caches), device)
    with check.subject.around():
        got = dsv4.hca_metadata(*inputs, q_len=q_len)
    for name in ("hca_swa_indices", "hca_seq_lens", "swa_topk_lens"):
        _require(torch.equal(getattr(got, name).cpu(), getattr(wanted, name)), f"{name} differ")
    tables = got.hca_compressed_block_tables.cpu(), wanted.hca_compressed_block_tables
    shared = min(table.shape[1] for table in tables)
    same = torch.equal(tables[0][:, :shared], tables[1][:, :shared])
    _require(same, "hca_compressed_block_tables differ")
    return 0.0


def _require(same: bool, otherwise: str) -> None:
    if not same:
        raise AssertionError(otherwise)


FORMS = {
    "token-sparse-bf16": Form("trtllm-gen", partial(token_sparse, "bf16", False)),
    "token-sparse-e4m3": Form("trtllm-gen", partial(token_sparse, "e4m3", False)),
    "varlen-bf16": Form("trtllm-gen, varlen", partial(token_sparse, "bf16", True)),
    "varlen-e4m3": Form("trtllm-gen, varlen", partial(token_sparse, "e4m3", True)),
    "hca-bf16": Form("cute-dsl", partial(by_page_size, "HCA", "bf16", (1, 2, 64, 128))),
    "hca-e4m3": Form("cute-dsl", partial(by_page_size, "HCA", "e4m3", (1, 2, 64, 128))),
    "packed": Form("sparse", partial(by_page_size, "packed", "packed", (2, 64, 256))),
    "flash-mla": Form("flash_mla_with_kvcache", flash_mla),
    "long": Form("one row in many blocks", long_row),
    "batch": Form("more rows than blocks", big_batch),
    "options": Form("sinks, scales, lse, workspace", call_options),
    "loop": Form("appends and decodes, PDL", append_and_decode),
    "graph": Form("CUDA graphs, new lengths", graph_replay, needs_gpu=True),
    "merge": Form("merge_states", merged_states),
    "append": Form("append_kv_cache", appended),
    "pack": Form("pack_, unpack_kv_cache", packed_and_unpacked),
    "tables": Form("hca_metadata", hca_tables),
}
BENCH = "bench"  # as a name beside those of FORMS


# --- times


class BenchCase(NamedTuple):
    config: str  # of bench.CONFIGS
    format: str
    heads: int
    batch: int


BENCH_CASES = (
    *(BenchCase("B", "packed", heads, batch) for heads in (16, 64, 128) for batch in (1, 16, 128)),
    BenchCase("E", "packed", 64, 1),
    *(
        BenchCase(*case)
        for format in ("bf16", "e4m3")
        for case in (("B", format, 64, 1), ("B", format, 64, 128), ("E", format, 64, 1))
    ),
)
COLD = 3  # times L2 that the slots of a graph's calls take together
FEWEST_CALLS = 16  # in a graph, so that its begin and end do not count
POOL_SLOTS = {"cuda": 1 << 20, "cpu": 1 << 14}
BENCH_SECONDS = 0.1  # of replays for a case


def copy_bandwidth(device: torch.device) -> float:
    """Bytes/s, read and written, of a large copy."""
    source = torch.zeros(1 << (28 if device.type == "cuda" else 24), device=device)
    copy = partial(torch.empty_like(source).copy_, source)
    return 2 * source.nbytes / _seconds([copy] * 2, device)


def _seconds(calls: Sequence[bench.Call], device: torch.device) -> float:
    """Of one call: in a CUDA graph on a GPU, else one after the other."""
    if device.type == "cuda":
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        return bench.measure_graphs({"": bench.Graph(calls)}, BENCH_SECONDS)[""]
    return bench.median_seconds(calls[0], device, BENCH_SECONDS)


def measured(case: BenchCase, pools: bench.Pools, bandwidth: float) -> dict[str, object]:
    config, device = bench.CONFIGS[case.config], pools.device
    cold_bytes = 0
    if device.type == "cuda":
        cold_bytes = COLD * torch.cuda.get_device_properties(device).L2_cache_size
    copies = bench.num_copies(config, case.format, case.batch, cold_bytes)
    steps = bench.make_steps(config, case.heads, case.batch, copies, pools)
    out = torch.empty(steps[0].query.shape, dtype=torch.bfloat16, device=device)
    scratch = workspace(steps[0])
    calls = [bench.operator_call(step, out, scratch) for step in steps]
    seconds = _seconds(calls * -(-FEWEST_CALLS // copies), device)
    _require(bool(out.isfinite().all()), "out holds numbers that are not finite")
    num_bytes = case.batch * (WINDOW + config.width) * SLOT_BYTES[case.format]
    return {
        **case._asdict(),
        "slots": WINDOW + config.width,
        "us": seconds * 1e6,
        "gb_per_s": num_bytes / seconds / 1e9,
        "floor_share": num_bytes / bandwidth / seconds,
    }


# --- where it runs


def facts(check: Check) -> dict[str, Any]:
    """What a bug report needs."""
    device, info = check.subject.device, dsv4.build_info()
    result: dict[str, Any] = {
        "dsv4": dsv4.__version__,
        "torch": torch.__version__,
        "date": f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "cpu": f"{cpu_name()}, {cpu_threads()} threads, {info['simd']}",
        "build_info": info,
    }
    if device.type != "cuda":
        return {**result, "device": "cpu", "engine": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    # The library asks its engines in this order. On a machine with GPUs of several kinds the first
    # that is usable may serve another one.
    serving = next(e for e in info["engines"] if e["usable"] and e["name"] != "cpu")
    return {
        **result,
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "memory_gb": round(properties.total_memory / 1e9),
        "l2_mb": round(properties.L2_cache_size / 1e6),
        "state": bench.clocks(device),
        "torch_cuda": torch.version.cuda,
        "engine": f"{serving['name']}, compiled for {serving['targets']}",
    }


def head(facts: dict[str, Any]) -> str:
    info = facts["build_info"]
    lines = [f"dsv4     {facts['dsv4']}, torch {facts['torch']}, {facts['date']}"]
    if facts["device"] != "cpu":
        lines += [
            f"GPU      {facts['device']}, compute capability {facts['compute_capability']}, "
            f"{facts['sms']} SMs, {facts['memory_gb']} GB, L2 {facts['l2_mb']} MB",
            f"driver   {facts['state']}",
            f"CUDA     up to {info['driver']} by the driver, {info['cuda_runtime']} in dsv4, "
            f"{facts['torch_cuda']} in torch",
        ]
    lines += [f"engine   {facts['engine']}", f"CPU      {facts['cpu']}"]
    return "\n".join(lines)


# --- the program


class ContextLost(Exception):
    """No call can follow on this GPU within this process."""


class Report:
    """Says results as they come, and keeps them for the file."""

    def __init__(self, check: Check, file: Path | None):
        self.file = file
        self.start = time.monotonic()
        self.data: dict[str, Any] = {
            "verdict": "did not finish",
            "facts": facts(check),
            "forms": [],
            "bench": [],
        }
        self.write()
        say(head(self.data["facts"]))

    def write(self) -> None:
        if self.file is not None:
            self.file.write_text(json.dumps(self.data, indent=1) + "\n")

    def form(self, name: str, failures: list[str], trials: int, worst: float, start: float) -> None:
        seconds = time.monotonic() - start
        self.data["forms"].append(
            {
                "name": name,
                "trials": trials,
                "failures": failures,
                "worst": worst,
                "seconds": seconds,
            }
        )
        self.write()
        passed = f"{trials - len(failures)} of {trials}"
        say(
            f"{name:18} {FORMS[name].about:30} {'FAIL' if failures else 'pass'}  {passed:>10}  "
            f"worst {worst:4.2f}  {seconds:5.1f} s"
        )
        for failure in failures[:FAILURES_SHOWN]:
            say(f"    {failure}")
        if len(failures) > FAILURES_SHOWN:
            say(f"    and {len(failures) - FAILURES_SHOWN} more")

    def failures(self) -> int:
        return sum(len(form["failures"]) for form in self.data["forms"]) + sum(
            "error" in line for line in self.data["bench"]
        )

    def finish(self, otherwise: str = "") -> int:
        """Says and writes the verdict; the exit code."""
        trials = sum(form["trials"] for form in self.data["forms"])
        problem = otherwise or (f"{self.failures()} failed" if self.failures() else "")
        if not trials and not self.data["bench"]:
            problem = problem or "nothing was tried"
        verdict = f"FAIL: {problem}" if problem else "PASS"
        self.data["verdict"] = verdict
        say(f"\n{verdict} ({trials} trials in {time.monotonic() - self.start:.0f} s)")
        self.write()
        return 1 if problem else 0


@contextlib.contextmanager
def watched(check: Check, report: Report, what: str) -> Iterator[None]:
    """Ends the program if a GPU does not answer: nothing can stop a kernel that never ends."""

    def give_up() -> None:
        code = report.finish(f"{what}: no answer after {LONGEST_TRIAL:.0f} s, the GPU hangs")
        os._exit(code)

    timer = threading.Timer(LONGEST_TRIAL, give_up)
    timer.daemon = True
    if check.subject.device.type == "cuda":
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _sentence(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0] or "no message"
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"


def _is_alive(device: torch.device) -> bool:
    """Whether the device still answers after an error."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        return torch.ones(1, device=device).add_(1.0).item() == 2.0
    except RuntimeError:
        return False


def run_form(check: Check, name: str, report: Report) -> None:
    """Runs the trials of a form. Raises ContextLost if no other can follow."""
    start, failures, worst, num_trials = time.monotonic(), [], 0.0, 0
    torch.manual_seed(0)
    trials = FORMS[name].trials(check)
    label = "making the first problem"
    alive = True
    while alive:
        try:
            with watched(check, report, f"{name}, {label}"):
                trial = next(trials, None)
                if trial is None:
                    break
                label, num_trials = trial.label, num_trials + 1
                worst = max(worst, trial.run())
        except Exception as error:  # whatever it is, the other forms are wanted
            num_trials = max(num_trials, 1)
            failures.append(f"{label}: {_sentence(error)}")
            alive = _is_alive(check.subject.device)
    report.form(name, failures, num_trials, worst, start)
    if not alive:
        raise ContextLost(name)


def run_bench(check: Check, cases: Sequence[BenchCase], report: Report) -> None:
    """Measures the cases. Raises ContextLost if nothing can follow an error."""
    device = check.subject.device

    def attempt(label: str, measure: Callable[[], Any]) -> Any:
        try:
            with watched(check, report, label):
                return measure()
        except Exception as error:  # whatever it is, the other cases are wanted
            report.data["bench"].append({"case": label, "error": _sentence(error)})
            say(f"{label} FAIL {_sentence(error)}")
            if not _is_alive(device):
                raise ContextLost(label) from error
            return None

    bandwidth = attempt("copy", partial(copy_bandwidth, device))
    if bandwidth is None:
        return
    report.data["copy_gb_per_s"] = bandwidth / 1e9
    say(
        f"\nA copy of memory moves {bandwidth / 1e9:,.0f} GB/s, read and written: the floor is the "
        "time that the slots'\nbytes take at that. Slots are cold, in CUDA graphs; medians.\n"
        f"{'KV':6} {'heads':>5} {'batch':>5} {'slots':>6} {'us':>9} {'GB/s':>6} {'of floor':>8}"
    )
    pools = None
    for case in cases:
        if pools is None or pools.format != case.format:
            pools = None  # its memory is needed
            pools = bench.Pools(case.format, POOL_SLOTS[device.type], device)
        label = f"{case.format:6} {case.heads:5} {case.batch:5}"
        line = attempt(label, partial(measured, case, pools, bandwidth))
        if line is None:
            continue
        report.data["bench"].append(line)
        say(
            f"{label} {line['slots']:6,} {line['us']:9.2f} {line['gb_per_s']:6.0f} "
            f"{line['floor_share']:8.0%}"
        )


_LEGEND = """
worst: the largest error as a share of what is allowed. Against the CPU engine, 2^-6 of the largest
number of the same row and head of out, 2^-14 of max(1, |lse|); small decodes also against float64,
twice the error of a bf16 computation and half a bf16 step. Bytes and tables must be equal."""


def run(
    check: Check, names: Sequence[str], cases: Sequence[BenchCase], file: Path | None = None
) -> int:
    """Runs forms and bench cases on the subject, saying each; 0 if all passed, else 1."""
    report = Report(check, file)
    names = [
        name for name in names if check.subject.device.type == "cuda" or not FORMS[name].needs_gpu
    ]
    progress = Progress(len(names) + 1)
    if names:
        say()
    try:
        for name in names:
            progress.step(name)
            run_form(check, name, report)
            progress.clear()
        if names:
            say(_LEGEND)
        if cases:
            run_bench(check, cases, report)
    except ContextLost as error:
        return report.finish(
            f"after an error in {error} the GPU answers no more; the rest did not run"
        )
    return report.finish()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dsv4 check",
        description="Runs hostile decodes of every form and compares them: on the current GPU with "
        "the CPU engine, on the CPU with float64. Exits with 0 if all passed, 1 if something "
        "failed, 2 if there is no usable GPU for --on-gpu.",
        epilog="Forms: "
        + "; ".join(f"{name} ({form.about})" for name, form in FORMS.items())
        + f"; {BENCH} (times, on a GPU).",
    )
    parser.add_argument(
        "--on-gpu",
        action="store_true",
        help="check the GPU (CUDA_VISIBLE_DEVICES chooses one); else the CPU engine",
    )
    parser.add_argument("--quick", action="store_true", help="fewer head counts and page sizes")
    parser.add_argument(
        "--forms", nargs="+", choices=[*FORMS, BENCH], metavar="NAME", help="these only"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    return parser


def main(argv: list[str]) -> int:
    """Runs the check; 0 if all passed, 1 if something failed, 2 if there is no usable GPU."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(cpu_threads())
    wanted = options.forms or [*FORMS, BENCH]
    names = [name for name in FORMS if name in wanted]
    if not options.on_gpu:
        sizes = QUICK_ON_CPU if options.quick else ON_CPU
        return run(Check(CPU, None, sizes), names, [], options.json)
    device, reason = usable_gpu()
    if device is not None and not _is_alive(device):
        device, reason = None, "torch cannot add two numbers on it"
    if device is None:
        sys.stderr.write(
            f"no usable GPU: {reason} (torch {torch.__version__}, "
            f"CUDA {torch.version.cuda or 'none'}).\n{dsv4.report()}\n"
        )
        return 2
    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    cases = [case for case in BENCH_CASES if not options.quick or case.heads == 64]
    sizes = QUICK if options.quick else FULL
    return run(
        Check(Place(device), CPU, sizes), names, cases if BENCH in wanted else [], options.json
    )
