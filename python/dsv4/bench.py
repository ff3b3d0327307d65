"""What the benchmarks and the check measure with: facts of a GPU, timing, and decodes over cold KV.

Problems are made where they run, in bulk: pools of millions of slots, tables that share none.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ._library import operators
from .kv_cache import (
    HEAD_DIM,
    NOPE_DIM,
    PACKED_TOKEN_BYTES,
    PACKED_TOKEN_DATA_BYTES,
    SCALE_EXPONENT_BIAS,
    WINDOW,
)
from .step import (
    CSA_PAGE,
    HCA_PAGE,
    KV_SCALE,
    QUERY_SCALE,
    SLOT_BYTES,
    SOFTMAX_SCALE,
    WINDOW_PAGE,
    Segment,
    Step,
    empty_pool,
)

Call = Callable[[], object]

# --- the machine


def clocks(device: torch.device) -> str:
    """What nvidia-smi says now."""
    fields = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw"
    uuid = torch.cuda.get_device_properties(device).uuid
    try:
        values = subprocess.run(
            [
                *("nvidia-smi", "-i", f"GPU-{uuid}"),
                *(f"--query-gpu={fields}", "--format=csv,noheader,nounits"),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout.strip()
        driver, sm, sm_max, memory, celsius, watts = values.split(", ")
    except (OSError, subprocess.SubprocessError, ValueError):
        return "clocks unknown: nvidia-smi does not answer"
    return f"driver {driver}, SM {sm} of {sm_max} MHz, memory {memory} MHz, {celsius} C, {watts} W"


# --- timing


def median_seconds(run: Callable[[], object], device: torch.device, budget: float) -> float:
    """Median of the runs that fit into `budget` seconds, 3 at least, after one that warms up."""
    times: list[float] = []
    run()
    end = time.perf_counter() + budget
    while len(times) < 3 or time.perf_counter() < end:
        if device.type == "cuda":
            begin, finish = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            finish.record()
            finish.synchronize()
            times.append(begin.elapsed_time(finish) * 1e-3)
        else:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


class Graph:
    """Calls one after another in a CUDA graph. A stream other than the default must be current."""

    def __init__(self, calls: Sequence[Call]):
        self.num_calls = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph would collect garbage and empty the allocator's cache before each.
        self._graph.capture_begin()
        try:
            for call in calls:
                call()
        finally:
            self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()


def measure_graphs(
    graphs: dict[str, Graph], seconds: float, most: int = 20, fewest: int = 5
) -> dict[str, float]:
    """Seconds of one call: median over replays, between which the graphs alternate."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in graphs}

    def replay_all() -> None:
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            events[name].append((begin, end))

    for _ in range(2):  # the first replay of a graph uploads it
        replay_all()
        torch.cuda.synchronize()
    once = sum(begin.elapsed_time(end) for (_, (begin, end)) in events.values()) * 1e-3
    for pairs in events.values():
        pairs.clear()
    # No wait in between: the GPU must never find its queue empty.
    for _ in range(max(fewest, min(most, int(seconds / once)))):
        replay_all()
    torch.cuda.synchronize()
    return {
        name: statistics.median([begin.elapsed_time(end) * 1e-3 for begin, end in pairs])
        / graph.num_calls
        for (name, graph), pairs in zip(graphs.items(), events.values(), strict=True)
    }


# --- problems


class Config(NamedTuple):
    """What a row attends to besides its window of 128 slots in two pages of 64."""

    width: int  # slots of the compressed segment; 0: none
    page_size: int
    run: int  # how many of them are consecutive: 1, a page, or all

    def by_page(self, format: str) -> bool:
        """Whether the slots are named by their pages, as HCA does it in the plain formats."""
        return format != "packed" and self.run > 1


CONFIGS = {
    "A": Config(0, CSA_PAGE, 1),
    "B": Config(512, CSA_PAGE, 1),
    "C": Config(1024, CSA_PAGE, 1),
    "D": Config(1024, HCA_PAGE, 1024),
    "E": Config(8192, HCA_PAGE, HCA_PAGE),
    "F": Config(8192, 128, 128),
}


class Pools:
    """Caches full of random numbers, made when first asked for, and tables of their slots."""

    def __init__(self, format: str, num_slots: int, device: torch.device):
        self.format, self.num_slots, self.device = format, num_slots, device
        self._caches: dict[tuple[str, int], Tensor] = {}

    def cache(self, name: str, page_size: int) -> Tensor:
        key = name, page_size
        if key not in self._caches:
            num_pages = -(-self.num_slots // page_size)
            self._caches[key] = random_cache(self.format, num_pages, page_size, self.device)
        return self._caches[key]

    def tables(self, rows: int, width: int, run: int) -> Tensor:
        """[rows, width] int32: slots in runs. No two rows share one until the pool is used up."""
        num_runs, runs_each = self.num_slots // run, width // run
        rows_each = num_runs // runs_each  # that one order of all runs serves
        orders = [
            torch.randperm(num_runs, device=self.device)[: rows_each * runs_each]
            for _ in range(-(-rows // rows_each))
        ]
        first = torch.cat(orders).view(-1, runs_each, 1)[:rows] * run
        return (first + torch.arange(run, device=self.device)).flatten(1).int()


def random_cache(format: str, num_pages: int, page_size: int, device: torch.device) -> Tensor:
    """Numbers near 1 (e4m3: near 1 / KV_SCALE) without a NaN, by bits, which is fast."""
    cache = empty_pool(num_pages, page_size, format, device)
    if format == "bf16":
        return cache.normal_()
    if format == "e4m3":
        _make_e4m3(cache.view(torch.uint8).random_(0, 256), 0x48)
        return cache
    raw = cache.as_strided((num_pages, cache.stride(0)), (cache.stride(0), 1)).random_(0, 256)
    data_bytes = page_size * PACKED_TOKEN_DATA_BYTES
    data = raw[:, :data_bytes].unflatten(1, (page_size, PACKED_TOKEN_DATA_BYTES))
    _make_e4m3(data[..., :NOPE_DIM], 0x28)
    # High bytes of bf16: a sign, and exponents for 0.5 to 2.
    data[..., NOPE_DIM + 1 :: 2].bitwise_and_(0x80).bitwise_or_(0x3F)
    scales = raw[:, data_bytes : page_size * PACKED_TOKEN_BYTES]
    scales.bitwise_and_(1).add_(SCALE_EXPONENT_BIAS - 1)  # 2^-1 or 2^0
    return cache


def _make_e4m3(codes: Tensor, base: int) -> None:
    """Random bytes -> random signs and mantissas, four exponents from that of `base` on."""
    codes.bitwise_and_(0x9F).add_(base)


def make_steps(
    config: Config,
    heads: int,
    batch: int,
    copies: int,
    pools: Pools,
    q_len: int = 1,
    draw_lengths: bool = False,
) -> list[Step]:
    """`copies` decodes of the same query over different slots.

    Query and lengths are one tensor for all: those an engine finds in L2, the KV it does not. The
    q_len rows of a request have the same compressed slots, each in a table of its own. Tables are
    full, or compressed lengths are drawn from 0 to the width.
    """
    device, format, rows = pools.device, pools.format, batch * q_len
    query = torch.randn(batch, q_len, heads, HEAD_DIM, device=device)
    is_e4m3 = format == "e4m3"
    query = (query / QUERY_SCALE).to(torch.float8_e4m3fn) if is_e4m3 else query.to(torch.bfloat16)

    def segments(
        name: str, width: int, page_size: int, run: int, by_page: bool, rows_each: int, draw: bool
    ) -> list[Segment]:
        table = pools.tables(rows // rows_each * copies, width, run)
        if by_page:
            table = table[:, ::page_size] // page_size
        table = table.repeat_interleave(rows_each, 0)
        lens = torch.full((rows,), width, dtype=torch.int32, device=device)
        if draw:
            drawn = torch.randint(0, width + 1, (rows // rows_each,), device=device)
            lens = drawn.int().repeat_interleave(rows_each)
        cache = pools.cache(name, page_size)
        return [Segment(cache, part.contiguous(), lens, by_page) for part in table.split(rows)]

    windows = segments("window", WINDOW, WINDOW_PAGE, WINDOW_PAGE, False, 1, False)
    compressed: Sequence[Segment | None] = [None] * copies
    if config.width > 0:
        compressed = segments(
            "compressed", config.width, config.page_size, config.run, config.by_page(format), q_len,
            draw_lengths,
        )  # fmt: skip
    scale1 = SOFTMAX_SCALE * (QUERY_SCALE * KV_SCALE if is_e4m3 else 1.0)
    scale2 = KV_SCALE if is_e4m3 else 1.0
    return [
        Step(query, first, second, first.lens, scale1, scale2, None)
        for first, second in zip(windows, compressed, strict=True)
    ]


def with_one_table(step: Step) -> Step:
    """The same step, whose requests have one compressed table for their rows."""
    if step.compressed is None:
        return step
    batch, q_len = step.query.shape[:2]
    tables = step.compressed.table[::q_len].contiguous()
    shared = tables[:, None].expand(batch, q_len, -1)
    return step._replace(compressed=step.compressed._replace(table=shared))


def kv_bytes(config: Config, format: str, batch: int, q_len: int = 1) -> int:
    """Bytes of a step's slots."""
    return batch * (q_len * WINDOW + config.width) * SLOT_BYTES[format]


def num_copies(config: Config, format: str, batch: int, cold_bytes: int, q_len: int = 1) -> int:
    """Copies of a problem whose KV takes `cold_bytes`, 2 at least."""
    return max(2, -(-cold_bytes // kv_bytes(config, format, batch, q_len)))


def operator_call(
    step: Step, out: Tensor, scratch: Tensor | None, persistent: bool = False
) -> Call:
    """The step as a call of the operator under all front doors."""
    window, compressed = step.window, step.compressed
    second = () if compressed is None else (compressed.cache, compressed.table, compressed.lens)
    return partial(
        operators().sparse_mla_decode.out,
        step.query,
        window.cache,
        window.table,
        window.lens,
        *second,
        sinks=step.sinks,
        workspace=scratch,
        bmm1_scale=step.bmm1_scale,
        bmm2_scale=step.bmm2_scale,
        page_table=compressed is not None and compressed.is_page_table,
        persistent=persistent,
        out=out,
    )
