"""How fast a decode could be on a GPU that is not at hand, by what the simulator counts of it.

    export DSV4_LIBRARY_DIR=build/native/simulated PYTHONPATH=tests:build/native/tests
    python -m simulator.model --engine sim-sm100 --format e4m3 --heads 16 32 64 128

Tables, as Markdown:
    counters  what 64 slots cost a CTA, and a row besides
    pipes     microseconds of each pipe for heads, widths and batches, and the pipe that binds
    times     the largest of them alone, a line for heads and width
    error     times measured on an H200, as csrc/sm120/measured.md has them, over modelled ones

With --q-len, each request has so many rows, and one compressed table for them, which an engine may
decode in groups (csrc/cuda/schedule.h); a group counts as a row of more slots.

A cluster of the decode kernel is run twice on one row, with two widths: their difference is what
slots cost, the rest is what a row costs. The library says how it would cut each decode of the
tables for that GPU; the share that takes longest counts. Each pipe is taken as if it were the only
one, so that its time is a floor. There is no latency in it: neither launches, nor the way from
lengths to indices to keys, nor what waits at barriers. "sum" is what all pipes take one after
another, that is, if nothing overlaps.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import dsv4
import simulated
from simulator import report

HEAD_DIM, WINDOW, PAGE_SIZE = 512, 128, 64
UNIT = 64  # slots, in the table of counters
WIDTHS = (384, 1152)  # of the two decodes: whole steps of any kernel's loop
SECTOR_BYTES = 32
PARTIAL_BYTES = HEAD_DIM * 4  # of a head's partial result
# Between L2 and an SM, one way; what the memory system as a whole gives to all SMs may be less.
L2_BYTES_PER_CLOCK = 64
GPU_OF_ENGINE = {
    "sim-sm90": "H200",
    "sim-sm100": "B200",
    "sim-sm120": "RTX_PRO_6000",
    "sim-sm121": "GB10",
}

MEASURED = Path(__file__).resolve().parents[2] / "csrc" / "sm120" / "measured.md"
MEASURED_ENGINE, MEASURED_FORMAT = "sim-sm90", "packed"
MEASURED_WIDTHS = {"A": 128, "B": 128 + 512, "C": 128 + 1024}

TENSOR, SLOW_TENSOR, L2, MEMORY = "tensor", "tensor, M=64 at half rate", "L2", "memory"
Clocks = dict[str, float]  # by pipe


# --- what a share costs


def clocks_of(counters: report.Counters, gpu: report.Gpu, ctas: int = 1) -> Clocks:
    """Clocks of each pipe of an SM, for one of `ctas` CTAs that share the work evenly."""
    clocks = {
        "issue": report.issue_clocks(counters, moves=False),
        "shared": report.shared_clocks(counters),
        TENSOR: report.matrix_clocks(counters, gpu),
        SLOW_TENSOR: report.matrix_clocks(counters, gpu, half_rate_m64=True),
        "conversion": report.conversion_clocks(counters),
        "special": report.special_clocks(counters),
        L2: report.global_bytes(counters) / L2_BYTES_PER_CLOCK,
    }
    return {pipe: value / ctas for pipe, value in clocks.items()}


def memory_bytes(counters: report.Counters) -> int:
    """What a cluster moves to and from memory if L2 holds what it reads again."""
    copied_again = max(0, counters["bulk_load_bytes"] - counters["num_sectors"] * SECTOR_BYTES)
    return report.global_bytes(counters) - copied_again


@dataclass
class Cost:
    """Of a cluster that decodes one tile of heads."""

    ctas: int
    slot: report.Counters
    row: report.Counters

    def clocks(self, gpu: report.Gpu, slots: int, rows: int) -> Clocks:
        of_slot, of_row = (clocks_of(part, gpu, self.ctas) for part in (self.slot, self.row))
        return {pipe: of_slot[pipe] * slots + of_row[pipe] * rows for pipe in of_slot}


def cost_of(
    narrow: report.Counters, wide: report.Counters, ctas: int, slots: int = WIDTHS[0]
) -> Cost:
    """From a row of each of WIDTHS, the narrow one of which has so many slots."""
    slot = scaled(report.difference(wide, narrow), 1 / (WIDTHS[1] - WIDTHS[0]))
    return Cost(ctas, slot, report.difference(narrow, scaled(slot, slots)))


def scaled(counters, factor: float):
    """All numbers of counters, times a factor."""
    if isinstance(counters, dict):
        return {name: scaled(value, factor) for name, value in counters.items()}
    if isinstance(counters, list):
        return [scaled(value, factor) for value in counters]
    return counters * factor


# --- how a decode is cut


class Case(NamedTuple):
    format: str
    heads: int
    width: int
    batch: int
    q_len: int = 1  # rows of a request, which have one compressed table


class Schedule(NamedTuple):
    """As csrc/cuda/schedule.h has it."""

    num_shares: int
    num_head_tiles: int
    head_tile: int
    unit_slots: int
    group_rows: int
    balanced: bool


class Share(NamedTuple):
    slots: int
    rows: int  # begun or gone on with


def shares_of(schedule: Schedule, rows: int, width: int) -> list[Share]:
    """The shares of equal rows, in whole steps of the kernel's loop."""
    units = max(1, -(-width // schedule.unit_slots))
    count = schedule.num_shares
    if not schedule.balanced:
        whole_rows = [len(range(share, rows, count)) for share in range(count)]
        return [Share(n * units * schedule.unit_slots, n) for n in whole_rows]
    count = min(count, rows * units)
    firsts = [share * rows * units // count for share in range(count + 1)]
    return [
        Share((end - first) * schedule.unit_slots, (end - 1) // units - first // units + 1)
        for first, end in pairwise(firsts)
    ]


def num_partial_results(schedule: Schedule, rows: int, width: int) -> int:
    """Of one head: parts of rows that have more than one."""
    if not schedule.balanced:
        return 0
    shares = shares_of(schedule, rows, width)
    units = max(1, -(-width // schedule.unit_slots))
    ends = [0]
    for share in shares:
        ends.append(ends[-1] + share.slots // schedule.unit_slots)
    cuts = [end for end in ends[1:-1] if end % units != 0]
    return len(cuts) + len({cut // units for cut in cuts})


class Modelled(NamedTuple):
    """Microseconds."""

    pipes: dict[str, float]
    combine: float
    is_cut: bool  # a combine follows

    def floor(self, slow_m64: bool = False) -> float:
        return self.pipes[self.binding(slow_m64)] + self.combine

    def binding(self, slow_m64: bool = False) -> str:
        other = TENSOR if slow_m64 else SLOW_TENSOR
        return max((pipe for pipe in self.pipes if pipe != other), key=self.pipes.__getitem__)

    def total(self) -> float:
        """All pipes one after another. L2 and memory move the same bytes."""
        transfer = {L2, MEMORY}
        alone = sum(us for pipe, us in self.pipes.items() if pipe not in {SLOW_TENSOR, *transfer})
        return alone + max(self.pipes[pipe] for pipe in transfer) + self.combine


def num_groups(case: Case, group_rows: int) -> int:
    return case.batch * -(-case.q_len // group_rows)


def slots_of_group(width: int, group_rows: int) -> int:
    """The windows of all its rows, and their compressed slots once."""
    return (group_rows - 1) * WINDOW + width


def model(case: Case, schedule: Schedule, cost: Cost, gpu: report.Gpu) -> Modelled:
    groups = num_groups(case, schedule.group_rows)
    width = slots_of_group(case.width, schedule.group_rows)
    shares = set(shares_of(schedule, groups, width))
    ctas = schedule.num_shares * schedule.num_head_tiles * cost.ctas
    rounds = -(-ctas // gpu.sms)
    clocks = [cost.clocks(gpu, share.slots, share.rows) for share in shares]
    pipes = {
        pipe: rounds * max(share[pipe] for share in clocks) / gpu.clocks_per_second * 1e6
        for pipe in clocks[0]
    }
    # Slots come from memory for one tile of heads and one row of a request, and from L2 for the
    # others.
    slots = case.batch * slots_of_group(case.width, case.q_len)
    row_bytes = groups * memory_bytes(cost.row) * schedule.num_head_tiles
    pipes[MEMORY] = (memory_bytes(cost.slot) * slots + row_bytes) / gpu.bytes_per_second * 1e6
    parts = num_partial_results(schedule, groups, width) * case.heads * schedule.group_rows
    moved = 2 * parts * PARTIAL_BYTES  # written and read
    l2_bytes_per_second = L2_BYTES_PER_CLOCK * gpu.sms * gpu.clocks_per_second
    return Modelled(pipes, moved / l2_bytes_per_second * 1e6, parts > 0)


# --- asking the library


@contextlib.contextmanager
def engine(name: str) -> Iterator[None]:
    """The engine serves CPU tensors."""
    before = os.environ.get("DSV4_TEST_ENGINE", "cpu")
    os.environ["DSV4_TEST_ENGINE"] = name
    try:
        yield
    finally:
        os.environ["DSV4_TEST_ENGINE"] = before


@functools.cache
def cache_of(format: str) -> Tensor:
    values = torch.randn(max(WIDTHS) // PAGE_SIZE, PAGE_SIZE, HEAD_DIM).bfloat16()
    if format == "packed":
        with engine("cpu"):
            return dsv4.pack_kv_cache(values)
    return values.unsqueeze(1).to(torch.float8_e4m3fn if format == "e4m3" else torch.bfloat16)


def decode(case: Case, lens: Tensor | None, whole_rows: bool, run: int) -> None:
    """All rows read the same slots, of which so many follow each other. lens None: as many as they
    are wide."""
    cache = cache_of(case.format)
    runs = torch.randperm(cache.shape[0] * PAGE_SIZE // run)
    first = runs.repeat(-(-case.width // (runs.numel() * run)))[:, None] * run
    slots = (first + torch.arange(run)).flatten()[: case.width].to(torch.int32)
    rows = case.batch * case.q_len
    windows = slots[:WINDOW].repeat(rows, 1)
    tables = slots[WINDOW:].repeat(case.batch, 1)[:, None].expand(-1, case.q_len, -1)
    second = (cache, tables, lens) if case.width > WINDOW else ()
    shape = case.batch, case.q_len, case.heads, HEAD_DIM
    dtype = torch.float8_e4m3fn if case.format == "e4m3" else torch.bfloat16
    widths = rows, case.heads, WINDOW, case.width - WINDOW
    num_bytes = 0 if whole_rows else torch.ops.dsv4.workspace_size(*widths, table_rows=case.q_len)
    torch.ops.dsv4.sparse_mla_decode.out(
        torch.randn(shape, dtype=torch.bfloat16).to(dtype),
        *(cache, windows, lens),
        *second,
        workspace=torch.empty(num_bytes, dtype=torch.uint8),
        bmm1_scale=HEAD_DIM**-0.5,
        out=torch.empty(shape, dtype=torch.bfloat16),
    )


class Library:
    """The simulated libdsv4, for one GPU."""

    def __init__(self, engine_name: str, run: int = 1):
        if not simulated.is_loaded():
            raise SystemExit("DSV4_LIBRARY_DIR does not name a simulated build: see README.md")
        self.engine = engine_name
        self.run = run
        self.gpu = report.GPUS[GPU_OF_ENGINE[engine_name]]
        self._costs: dict[tuple[str, int, int], dict[tuple[int, int], Cost]] = {}

    def schedule(self, case: Case, whole_rows: bool = False) -> Schedule:
        """How the library would cut it. Nothing runs: that follows from shapes."""
        nothing = torch.zeros(case.batch * case.q_len, dtype=torch.int32)
        return self.record(case, nothing, whole_rows, clusters=0)[0]

    def cost(self, case: Case, schedule: Schedule) -> Cost:
        costs = self.costs(case.format, case.heads, case.q_len)
        key = schedule.head_tile, schedule.group_rows
        if key not in costs:
            costs |= self._cost_of_rows(case.format, case.heads, case.batch, case.q_len)
        if key not in costs and schedule.group_rows == 1:
            costs |= self.costs(case.format, case.heads)
        if key not in costs:
            raise SystemExit(f"{case}: no decode of whole rows has tiles of {schedule.head_tile}")
        return costs[key]

    def costs(self, format: str, heads: int, q_len: int = 1) -> dict[tuple[int, int], Cost]:
        """By the heads of a tile and the rows of a group: of the kernels that serve a single
        request, and many."""
        key = format, heads, q_len
        if key not in self._costs:
            one, many = (self._cost_of_rows(format, heads, n, q_len) for n in (1, self.gpu.sms))
            self._costs[key] = one | many
        return self._costs[key]

    def _cost_of_rows(
        self, format: str, heads: int, batch: int, q_len: int
    ) -> dict[tuple[int, int], Cost]:
        """Of the kernel that serves so many requests; of their first tile, which is the fullest."""
        case = Case(format, heads, WIDTHS[0], batch, q_len)
        group_rows = self.schedule(case, whole_rows=True).group_rows
        # As many requests as shares, so that the first cluster has one row, or a request's groups.
        if group_rows == 1:
            case = case._replace(q_len=1)
        case = case._replace(batch=self.schedule(case, whole_rows=True).num_shares)
        schedule, narrow = self.record(case, None, True, clusters=1)
        other, wide = self.record(case._replace(width=WIDTHS[1]), None, True, clusters=1)
        if (schedule.head_tile, schedule.group_rows) != (other.head_tile, other.group_rows):
            return {}
        # Of a request's groups, the first cluster may have several.
        groups = -(-num_groups(case, schedule.group_rows) // schedule.num_shares)
        cost = cost_of(
            scaled(narrow["counters"], 1 / groups),
            scaled(wide["counters"], 1 / groups),
            math.prod(narrow["cluster"]),
            slots_of_group(WIDTHS[0], schedule.group_rows),
        )
        return {(schedule.head_tile, schedule.group_rows): cost}

    def record(
        self, case: Case, lens: Tensor | None, whole_rows: bool, clusters: int
    ) -> tuple[Schedule, dict[str, Any]]:
        """The schedule, and the launch of the decode kernel: the largest one of those that ran."""
        with engine(self.engine):
            record = simulated.record(
                lambda: decode(case, lens, whole_rows, self.run), check="0", clusters=str(clusters)
            )
        if not record.schedules:
            raise SystemExit(f"{self.engine}: its engine does not ask make_schedule")
        return Schedule(**record.schedules[-1]), max(record.launches, key=num_instructions)

    def model(self, case: Case) -> tuple[Schedule, Modelled]:
        schedule = self.schedule(case)
        return schedule, model(case, schedule, self.cost(case, schedule), self.gpu)


def num_instructions(launch: dict[str, Any]) -> int:
    return sum(report.warp_instructions(warp) for warp in launch["counters"]["warps"])


# --- tables


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Markdown; the first `left` columns hold words."""
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, marks, *rows)) + "\n"


def groups_of(warps: Sequence[float]) -> list[range]:
    """Neighbours that do about as much as each other: the roles in a kernel, mostly."""
    groups: list[range] = []
    for index, count in enumerate(warps):
        if groups and abs(count - warps[groups[-1].start]) <= 0.3 * warps[groups[-1].start]:
            groups[-1] = range(groups[-1].start, index + 1)
        else:
            groups.append(range(index, index + 1))
    return groups


def by_warps(counters: report.Counters) -> str:
    """'0-3: 520, 4: 71': instructions of all the warps named, without moves."""
    counts = [report.warp_instructions(warp, moves=False) for warp in counters["warps"]]
    return ", ".join(
        f"{group.start}-{group[-1]}: {sum(counts[i] for i in group):.0f}"
        if len(group) > 1
        else f"{group.start}: {counts[group.start]:.0f}"
        for group in groups_of(counts)
    )


COUNTERS_HEAD = [
    "KV",
    "heads",
    "CTAs",
    "warp inst (without mov)",
    "by warps, without mov",
    "LDS/STS wf",
    "fill, operand wf",
    "smem sum",
    "MMA clk (half-rate M=64)",
    "conversions, special functions clk",
    "issue clk",
    "L2 KB",
    "HBM share clk",
    "waits (most of a warp)",
    "fixed warp inst (without mov)",
]


def counters_row(format: str, heads: str, cost: Cost, gpu: report.Gpu) -> list[object]:
    """Per 64 slots and CTA."""
    unit = scaled(cost.slot, UNIT / cost.ctas)
    clocks = cost.clocks(gpu, UNIT, 0)
    loads, stores = report.shared_wavefronts(unit)
    fill = report.fill_bytes(unit) / report.SHARED_BYTES_PER_CLOCK
    operands = report.operand_bytes(unit) / report.SHARED_BYTES_PER_CLOCK
    tensor, slow_tensor = clocks[TENSOR], clocks[SLOW_TENSOR]
    waits = [warp["barrier_waits"] for warp in unit["warps"]]
    return [
        format,
        heads,
        cost.ctas,
        with_and_without_moves(unit),
        by_warps(unit),
        f"{loads:.0f}/{stores:.0f}",
        f"{fill:.0f}, {operands:.0f}",
        f"{clocks['shared']:.0f}",
        f"{tensor:.0f}" + (f" ({slow_tensor:.0f})" if slow_tensor > tensor else ""),
        f"{clocks['conversion']:.0f}, {clocks['special']:.0f}",
        f"{clocks['issue']:.0f}",
        f"{report.global_bytes(unit) / 1024:.1f}",
        f"{memory_bytes(unit) / gpu.bytes_per_clock:.0f}",
        f"{sum(waits):.1f} ({max(waits):.1f})",
        with_and_without_moves(scaled(cost.row, 1 / cost.ctas)),
    ]


def with_and_without_moves(counters: report.Counters) -> str:
    both = (
        sum(report.warp_instructions(warp, moves) for warp in counters["warps"])
        for moves in (True, False)
    )
    return "{:.0f} ({:.0f})".format(*both)


def counters_table(
    library: Library, formats: Sequence[str], heads: Sequence[int], q_len: int = 1
) -> str:
    """A line for each kernel, with the heads that it has to do: of so many rows each."""
    costs = {
        (format, min(count, tile), rows, tile): cost
        for format, count in product(formats, heads)
        for (tile, rows), cost in library.costs(format, count, q_len).items()
    }
    lines = []
    for (format, count, rows, _), cost in sorted(costs.items()):
        text = str(count) if rows == 1 else f"{rows} x {count}"
        lines.append(counters_row(format, text, cost, library.gpu))
    return table(COUNTERS_HEAD, lines)


def cut(schedule: Schedule) -> str:
    """'33 x 4 b': shares, tiles of heads, and whether rows are cut; in groups of 2, '/2'."""
    marker = " b" if schedule.balanced else ""
    group = f"/{schedule.group_rows}" if schedule.group_rows > 1 else ""
    return f"{schedule.num_shares} x {schedule.num_head_tiles}{group}{marker}"


def pipes_table(library: Library, cases: Sequence[Case]) -> str:
    found = [(case, *library.model(case)) for case in cases]
    has_slow = any(m.pipes[SLOW_TENSOR] > m.pipes[TENSOR] for _, _, m in found)
    pipes = [pipe for pipe in found[0][2].pipes if has_slow or pipe != SLOW_TENSOR]
    rows = []
    for case, schedule, modelled in found:
        us = [modelled.pipes[pipe] for pipe in pipes]
        us += [modelled.combine, modelled.total(), modelled.floor()]
        us += [modelled.floor(slow_m64=True)] if has_slow else []
        numbers = [f"{value:.1f}" for value in us]
        rows.append([*case, cut(schedule), *numbers, modelled.binding()])
    floors = ["floor", "floor, M=64 at half rate"] if has_slow else ["floor"]
    head = [*Case._fields, "shares x tiles", *pipes, "combine", "sum", *floors, "binding"]
    return table(head, rows)


def times_table(library: Library, cases: Sequence[Case]) -> str:
    """Floors with the first letters of the pipe that binds."""
    batches = list(dict.fromkeys(case.batch for case in cases))
    lines: dict[tuple, list[str]] = {}
    for case in cases:
        modelled = library.model(case)[1]
        cell = f"{modelled.floor():.1f} {modelled.binding()[:3]}"
        lines.setdefault((*case[:3], case.q_len), []).append(cell)
    head = [*Case._fields[:3], "q_len", *(f"b = {batch}" for batch in batches)]
    return table(head, [[*key, *cells] for key, cells in lines.items()])


# --- the error


def measured_times(text: str) -> dict[Case, float]:
    """Microseconds, of the table 'Where it stands' of measured.md."""
    times: dict[Case, float] = {}
    batches: list[int] = []
    for line in text.splitlines():
        batches = [int(batch) for batch in re.findall(r"b = (\d+)", line)] or batches
        row = re.match(r"\| ([ABC]) \| (\d+) \|", line)
        us = re.findall(r"([\d.]+) \([\d.]+x\)", line)
        if row is not None and len(us) == len(batches):
            for batch, value in zip(batches, us, strict=True):
                case = Case(MEASURED_FORMAT, int(row[2]), MEASURED_WIDTHS[row[1]], batch)
                times[case] = float(value)
    return times


def spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


BATCH_CLASSES = {
    "b up to 4": range(1, 5),
    "b = 16, 32": range(5, 64),
    "b from 64 on": range(64, 10**6),
    "all": range(10**6),
}


class Comparison(NamedTuple):
    case: Case
    measured: float
    modelled: Modelled


def comparisons(library: Library) -> list[Comparison]:
    times = measured_times(MEASURED.read_text())
    return [Comparison(case, us, library.model(case)[1]) for case, us in times.items()]


def error_table(found: Sequence[Comparison], of: Callable[[Modelled], float]) -> str:
    """Medians and ranges of measured time / modelled time."""
    rows: list[list[object]] = []
    for heads in [*dict.fromkeys(one.case.heads for one in found), None]:
        mine = [one for one in found if heads in (one.case.heads, None)]
        classes = [
            [one.measured / of(one.modelled) for one in mine if one.case.batch in batches]
            for batches in BATCH_CLASSES.values()
        ]
        rows.append(["all" if heads is None else heads, *map(spread, classes)])
    return table(["heads", *BATCH_CLASSES], rows)


def fit_table(found: Sequence[Comparison]) -> str:
    """What it takes to make times of floors and sums, by least squares of relative errors."""
    rows = []
    for name, of in {"floor": Modelled.floor, "sum": Modelled.total}.items():
        terms = [[1.0, float(m.is_cut), of(m)] for _, _, m in found]
        relative = torch.tensor(terms) / torch.tensor([[one.measured] for one in found])
        solution = torch.linalg.lstsq(relative, torch.ones(len(found), 1)).solution
        errors = (relative @ solution).flatten().tolist()
        numbers = (f"{value:.2f}" for value in solution.flatten().tolist())
        rows.append([name, *numbers, spread(errors)])
    head = ["from", "us a decode", "us if rows are cut", "factor", "estimated / measured"]
    return table(head, rows)


# --- the program


def tables(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Headings and tables."""
    library = Library(options.engine, options.run)
    gpu = library.gpu
    name = (
        f"{GPU_OF_ENGINE[options.engine]}: {gpu.sms} SMs, {gpu.clocks_per_second / 1e9:g} GHz, "
        f"{gpu.bytes_per_second / 1e12:g} TB/s"
    )
    cases = [
        Case(*case)
        for case in product(
            options.formats, options.heads, options.widths, options.batches, [options.q_len]
        )
    ]
    if "counters" in options.tables:
        text = counters_table(library, options.formats, options.heads, options.q_len)
        yield f"{name}: per {UNIT} slots and CTA", text
    if "pipes" in options.tables:
        yield f"{name}: us, a floor for each pipe", pipes_table(library, cases)
    if "times" in options.tables:
        yield f"{name}: us, the largest floor", times_table(library, cases)
    if "error" in options.tables:
        if options.engine != MEASURED_ENGINE:
            raise SystemExit(f"error: times have been measured of {MEASURED_ENGINE} only")
        found = comparisons(library)
        yield "measured / floor: median (range)", error_table(found, Modelled.floor)
        yield "measured / sum: median (range)", error_table(found, Modelled.total)
        yield "fitted to the measured times: median (range)", fit_table(found)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=GPU_OF_ENGINE, default="sim-sm90")
    parser.add_argument(
        "--format", dest="formats", nargs="+", choices=["packed", "e4m3", "bf16"],
        default=["packed"],
    )  # fmt: skip
    parser.add_argument("--heads", nargs="+", type=int, default=[16, 32, 64, 128])
    parser.add_argument("--widths", nargs="+", type=int, default=[128, 640, 1152, 8320])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64, 128, 256, 512])
    parser.add_argument(
        "--run", type=int, default=1, help="consecutive slots: 1, or a page's (%(default)s)"
    )
    parser.add_argument("--q-len", type=int, default=1, help="rows a request (%(default)s)")
    known = ["counters", "pipes", "times", "error"]
    parser.add_argument("--tables", nargs="+", choices=known, default=known[:2])
    torch.manual_seed(0)
    for heading, text in tables(parser.parse_args(arguments)):
        sys.stdout.write(f"{heading}\n\n{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
