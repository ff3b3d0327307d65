"""What the benchmarks share: their heading, machine peaks, the timing loop, and problems."""

from __future__ import annotations

import csv
import datetime
import os
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import dsv4
from dsv4.bench import Call, operator_call
from dsv4.demo import Pool, cpu_name, cpu_threads, say
from dsv4.kv_cache import HEAD_DIM, WINDOW
from dsv4.step import (
    CSA_PAGE,
    HCA_PAGE,
    KV_SCALE,
    QUERY_SCALE,
    SLOT_BYTES,
    SOFTMAX_SCALE,
    WINDOW_PAGE,
    Segment,
    Step,
    workspace,
)


def print_head(title: str, method: str) -> None:
    """Where and how the numbers below it were taken."""
    say(f"# {title}")
    say(f"# {shlex.join(['python', *sys.argv])}")
    say(
        f"# {datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}, dsv4 {dsv4.__version__} "
        f"({dsv4.build_info()['simd']}), torch {torch.__version__}, {cpu_name()}, "
        f"{cpu_threads()} threads"
    )
    if os.getloadavg()[0] > 0.5 * len(os.sched_getaffinity(0)):
        say(f"# BUSY MACHINE (load average {os.getloadavg()[0]:.1f}): these numbers are rough")
    for line in method.splitlines():
        say(f"# {line}")


def use_threads(count: int | None) -> None:
    """The same number of threads for dsv4 and torch."""
    if count is not None:
        os.environ["OMP_NUM_THREADS"] = str(count)
    torch.set_num_threads(cpu_threads())


def write_csv(path: str, rows: Sequence[dict[str, object]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


# --- the machine


def read_bandwidth() -> float:
    """Bytes/s: the better of summing and copying 1 GiB, more than last-level caches hold."""
    source = torch.ones(1 << 28)
    target = torch.empty_like(source)
    num_bytes = source.nbytes
    return max(
        num_bytes / median(measure({"sum": [source.sum]}, 1.0)["sum"]),
        2 * num_bytes / median(measure({"copy": [partial(target.copy_, source)]}, 1.0)["copy"]),
    )


def fp32_peak() -> float:
    """FLOP/s of a large float32 matmul in torch."""
    n = 3072
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    seconds = measure({"matmul": [partial(torch.matmul, a, b, out=out)]}, 2.0)["matmul"]
    return 2 * n**3 / median(seconds)


def l2_bytes() -> int:
    """L2 of all the cores in use together; 2 MiB a core where the system does not tell."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        one = int(text.rstrip("K")) * 1024
    except (OSError, ValueError):
        one = 2 << 20
    return one * cpu_threads()


# --- timing


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def measure(
    variants: dict[str, Sequence[Call]], seconds: float, rounds: int = 4
) -> dict[str, list[float]]:
    """Seconds of each call. A variant has one callable for each copy of the problem, used in turn.

    Variants alternate over several rounds, so that what else the machine does meets all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    turn = dict.fromkeys(variants, 0)
    for calls in variants.values():
        for call in calls[:3]:
            call()
    for _ in range(rounds):
        for name, calls in variants.items():
            end = time.perf_counter() + seconds / rounds
            while True:
                call = calls[turn[name] % len(calls)]
                turn[name] += 1
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                times[name].append(now - start)
                if now > end:
                    break
    return times


# --- problems


class Banks:
    """Caches from which problems of any shape are drawn, so that they are filled once."""

    def __init__(self, slots: int):
        cpu = torch.device("cpu")
        self.window = Pool(1, slots // WINDOW_PAGE, WINDOW_PAGE, cpu)
        self.csa = Pool(1, slots // CSA_PAGE, CSA_PAGE, cpu)
        self.hca = Pool(1, slots // HCA_PAGE, HCA_PAGE, cpu)
        for pool in (self.window, self.csa, self.hca):
            num_slots = pool.pages.numel() * pool.page_size
            pool.append(0, num_slots, lambda rows: torch.randn(rows, HEAD_DIM).to(torch.bfloat16))

    def steps(
        self, layer: str, format: str, batch: int, heads: int, width: int, copies: int
    ) -> list[Step]:
        """`copies` decode steps over different slots: two window pages and `width` others a row.

        layer "CSA": slots anywhere; "HCA": whole pages, named by page except in the packed format.
        """
        pool = self.csa if layer == "CSA" else self.hca
        rows = batch * copies
        window_pages = _draw(self.window.pages.flatten(), rows, WINDOW // WINDOW_PAGE)
        window_table = _page_slots(window_pages, WINDOW_PAGE)
        if layer == "CSA":
            slots = torch.arange(pool.pages.numel() * pool.page_size)
            table, is_page_table = _draw(slots, rows, width), False
        else:
            pages = _draw(pool.pages.flatten(), rows, width // pool.page_size)
            is_page_table = format != "packed"
            table = pages if is_page_table else _page_slots(pages, pool.page_size)

        def counts(n: int) -> Tensor:
            return torch.full((batch,), n, dtype=torch.int32)

        steps = []
        for copy in range(copies):
            mine = slice(copy * batch, (copy + 1) * batch)
            query = torch.randn(batch, 1, heads, HEAD_DIM)
            if format == "e4m3":
                query = (query / QUERY_SCALE).to(torch.float8_e4m3fn)
            else:
                query = query.to(torch.bfloat16)
            steps.append(
                Step(
                    query,
                    Segment(
                        self.window.caches[format], window_table[mine].contiguous(), counts(WINDOW)
                    ),
                    Segment(
                        pool.caches[format], table[mine].contiguous(), counts(width), is_page_table
                    ),
                    counts(WINDOW),
                    SOFTMAX_SCALE * (QUERY_SCALE * KV_SCALE if format == "e4m3" else 1.0),
                    KV_SCALE if format == "e4m3" else 1.0,
                    None,
                )
            )
        return steps


def _draw(values: Tensor, rows: int, width: int) -> Tensor:
    """[rows, width] int32: one random order of the values after another, cut into rows."""
    orders = [values[torch.randperm(len(values))] for _ in range(-(-rows * width // len(values)))]
    return torch.cat(orders)[: rows * width].view(rows, width).int()


def _page_slots(pages: Tensor, page_size: int) -> Tensor:
    return (pages[..., None] * page_size + torch.arange(page_size, dtype=torch.int32)).flatten(1)


def copies_beyond_l2(format: str, batch: int, slots: int) -> int:
    """Copies of a problem whose KV is eight times what L2 holds."""
    return max(2, -(-8 * l2_bytes() // (batch * slots * SLOT_BYTES[format])))


def operator_calls(steps: Sequence[Step]) -> list[Call]:
    scratch = workspace(steps[0])
    return [
        operator_call(step, torch.empty(step.query.shape, dtype=torch.bfloat16), scratch)
        for step in steps
    ]


def convert_e4m3_by_bits(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """e4m3 bytes -> numbers by integer operations, which torch vectorises, unlike its own cast.

    The bits of an e4m3 number, moved to the same fields of a float16, are 2^-8 of it. NaN codes
    come out as 480: this is for timing.
    """
    bits = raw.view(torch.int8).to(torch.int16).bitwise_left_shift_(7)
    bits.bitwise_and_(~0x4000)  # the sign's copy, left by the shift
    return bits.view(torch.float16).to(dtype).mul_(2.0**8)
