"""What a launch did, per unit of work, and the least time that each pipe of an SM needs for it.

    result = module.launch(..., options=simulator.options(count=True))
    counters = report.counters_of(result)
    text = report.text(counters, units=10, roles={"softmax": range(4), "mma": [4]})

    python tests/simulator/report.py wide.json narrow.json --units 8 --roles softmax=0-3,mma=4

A second file is subtracted from the first: two launches that differ in length only, with `units`
the difference of their lengths, show what a unit costs without what a launch costs once. Files are
what json.dump(report.counters_of(result), file) writes.

The times are floors, each as if its pipe were the only one: they tell which pipe binds, not how
long a kernel takes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEDULERS = 4  # of an SM; warp w belongs to scheduler w % 4
SHARED_BYTES_PER_CLOCK = 128  # of an SM, all uses of shared memory together
K_BYTES = 32  # of a row of an operand, in one tensor-core instruction
COUNTED_MMA_SYNC_FLOP = 1024  # at 16 bits: the rate behind matrix_cycles of mma.sync

# Lanes an SM in one clock, taken for all GPUs: the special functions' nominal rate; of conversions,
# about what an H200 does (2.2 clocks a warp instruction of a scheduler, csrc/sm120/measured.md).
SPECIAL_LANES, CONVERSION_LANES = 16, 64
_SPECIAL = re.compile(r"(ex2|lg2|sin|cos|tanh|rsqrt|(rcp|sqrt)\.approx)\b")
_CONVERSION = re.compile(r"cvt\..*(f16|f32|f64|e4m3|e5m2|e2m1|e8m0)")  # bf16, tf32 with them


@dataclass
class Gpu:
    """Nominal: memory bandwidth by SMs by clock. https://www.nvidia.com/en-us/data-center/"""

    bytes_per_second: float
    sms: int
    clocks_per_second: float
    mma_sync_flop: float  # of an SM in a clock, at 16 bits

    @property
    def bytes_per_clock(self) -> float:
        return self.bytes_per_second / self.sms / self.clocks_per_second


GPUS = {
    # The clock that it holds in csrc/sm120/measured.md; of mma.sync, 6.6 clocks an m16n8k16 there.
    "H200": Gpu(4.8e12, 132, 1.98e9, 4096 * SCHEDULERS / 6.6),
    "B200": Gpu(8.0e12, 148, 1.85e9, 4096 * SCHEDULERS / 6.6),  # mma.sync: as an H200, a guess
    "RTX_PRO_6000": Gpu(1.79e12, 188, 2.4e9, 1024),
    "GB10": Gpu(0.27e12, 48, 2.4e9, 1024),
}

Counters = dict[str, Any]
_SUMS = [
    "global_load_bytes",
    "global_store_bytes",
    "cp_async_bytes",
    "bulk_load_bytes",
    "bulk_store_bytes",
    "distributed_shared_bytes",
    "num_sectors",
    "matrix_flop",
    "matrix_cycles",
]
_OF_WARP = [
    "shared_loads",
    "shared_load_wavefronts",
    "shared_stores",
    "shared_store_wavefronts",
    "barrier_waits",
    "blocked_waits",
]


def counters_of(result) -> Counters:
    """Counters of a LaunchResult, or Counters, as a dict that JSON can hold."""
    counters = getattr(result, "counters", result)
    warps = [
        {"instructions": dict(w.instructions), **{name: getattr(w, name) for name in _OF_WARP}}
        for w in counters.warps
    ]
    return {
        "warps": warps,
        "matrix_instructions": dict(counters.matrix_instructions),
        "opcodes": dict(counters.opcodes),
        **{name: getattr(counters, name) for name in _SUMS},
    }


def difference(more: Counters, less: Counters) -> Counters:
    """What the first launch did and the second did not. Blocks must have as many warps in both."""

    def subtract(a, b):
        if isinstance(a, dict):
            return {k: subtract(v, b[k]) if k in b else v for k, v in a.items()}
        if isinstance(a, list):
            return [subtract(x, y) for x, y in zip(a, b, strict=True)]
        return a - b

    return subtract(more, less)


def operand_bytes(counters: Counters) -> int:
    """Bytes of shared memory that tensor-core instructions read as operands, in all blocks."""
    total = 0
    for shape, count in counters["matrix_instructions"].items():
        size = re.search(r"(?:tcgen05|wgmma)\S* M(\d+) N(\d+) (SS|TS|RS)", shape)
        if size is None:  # mma.sync: operands come from registers
            continue
        rows = int(size[2]) + (int(size[1]) if size[3] == "SS" else 0)
        total += count * rows * K_BYTES
    return total


def warp_instructions(warp: dict[str, Any], moves: bool = True) -> int:
    """moves False: without those of class move, most of which ptxas does away with."""
    instructions = warp["instructions"]
    return sum(instructions.values()) - (0 if moves else instructions["move"])


def issue_clocks(counters: Counters, moves: bool = True) -> int:
    """Of the busiest scheduler."""
    issued = [0] * SCHEDULERS
    for index, warp in enumerate(counters["warps"]):
        issued[index % SCHEDULERS] += warp_instructions(warp, moves)
    return max(issued)


def shared_wavefronts(counters: Counters) -> tuple[int, int]:
    """Of loads and of stores."""
    loads, stores = (
        sum(warp[f"shared_{what}_wavefronts"] for warp in counters["warps"])
        for what in ("load", "store")
    )
    return loads, stores


def fill_bytes(counters: Counters) -> int:
    """What copies move into shared memory and out of it."""
    return sum(counters[name] for name in ("cp_async_bytes", "bulk_load_bytes", "bulk_store_bytes"))


def shared_clocks(counters: Counters) -> float:
    moved = fill_bytes(counters) + operand_bytes(counters)
    return sum(shared_wavefronts(counters)) + moved / SHARED_BYTES_PER_CLOCK


def global_bytes(counters: Counters) -> int:
    """Between an SM and L2."""
    plain = counters["global_load_bytes"] + counters["global_store_bytes"]
    return plain + fill_bytes(counters)


def matrix_clocks(counters: Counters, gpu: Gpu, half_rate_m64: bool = False) -> float:
    """half_rate_m64: as if tcgen05.mma of one CTA with M = 64, not .ws, took twice as long."""
    clocks = counters["matrix_cycles"]
    shapes = counters["matrix_instructions"]
    if any(shape.startswith("mma.") for shape in shapes):
        return clocks * COUNTED_MMA_SYNC_FLOP / gpu.mma_sync_flop
    if not half_rate_m64:
        return clocks
    # All instructions read K_BYTES of a row, so that their clocks are as M times N.
    work = {shape: count * _rows_times_columns(shape) for shape, count in shapes.items()}
    half = sum(n for shape, n in work.items() if re.match(r"tcgen05\.\w+\.cg1 M64 ", shape))
    return clocks * (1 + half / sum(work.values())) if half else clocks


def _rows_times_columns(shape: str) -> int:
    size = re.search(r" M(\d+) N(\d+)", shape)
    return int(size[1]) * int(size[2]) if size is not None else 0


def _lane_clocks(counters: Counters, opcodes: re.Pattern[str], lanes: int) -> float:
    found = sum(count for name, count in counters["opcodes"].items() if opcodes.match(name))
    return found * 32 / lanes


def special_clocks(counters: Counters) -> float:
    """Exponentials, reciprocals and so on."""
    return _lane_clocks(counters, _SPECIAL, SPECIAL_LANES)


def conversion_clocks(counters: Counters) -> float:
    """From and to floating-point formats."""
    return _lane_clocks(counters, _CONVERSION, CONVERSION_LANES)


def floors(counters: Counters, gpu: Gpu, sms: int = 1) -> dict[str, float]:
    """Clocks of each pipe, of one of `sms` SMs that share the work evenly."""
    clocks = {
        "issue": issue_clocks(counters),
        "shared memory": shared_clocks(counters),
        "matrix": matrix_clocks(counters, gpu),
        "conversion": conversion_clocks(counters),
        "special functions": special_clocks(counters),
        "global memory": global_bytes(counters) / gpu.bytes_per_clock,
    }
    return {pipe: value / sms for pipe, value in clocks.items()}


def _lines(
    counters: Counters,
    units: float,
    unit: str,
    roles: Mapping[str, Iterable[int]],
    gpu: str,
    sms: int,
) -> Iterable[str]:
    warps = counters["warps"]
    named = {index for indices in roles.values() for index in indices}
    rest = [index for index in range(len(warps)) if index not in named]
    groups = {**roles, **({"other" if roles else "all": rest} if rest else {})}
    classes = [
        name
        for name in warps[0]["instructions"]
        if any(warp["instructions"][name] for warp in warps)
    ]

    yield f"per {unit}, {units:g} of them; {sms} SM{'s' if sms > 1 else ''} to a {unit}"
    yield ""
    yield "| warp instructions | " + " | ".join([*classes, "all", "waits", "blocked"]) + " |"
    yield "| --- |" + " ---: |" * (len(classes) + 3)

    def row(name: str, indices: Iterable[int]) -> str:
        members = [warps[i] for i in indices]
        numbers = [sum(w["instructions"][c] for w in members) for c in classes]
        numbers += [sum(numbers)]
        numbers += [sum(w[c] for w in members) for c in ("barrier_waits", "blocked_waits")]
        return f"| {name} | " + " | ".join(f"{n / units:.4g}" for n in numbers) + " |"

    for name, indices in groups.items():
        yield row(name, list(indices))
    if len(groups) > 1:
        yield row("all", range(len(warps)))

    yield ""
    yield "| shared memory | number | wavefronts |"
    yield "| --- | ---: | ---: |"
    for what in ("load", "store"):
        number = sum(w[f"shared_{what}s"] for w in warps) / units
        passes = sum(w[f"shared_{what}_wavefronts"] for w in warps) / units
        yield f"| {what}s | {number:.4g} | {passes:.4g} |"
    operands = operand_bytes(counters)
    yield f"| matrix operands | | {operands / SHARED_BYTES_PER_CLOCK / units:.4g} |"

    yield ""
    yield "| bytes | |"
    yield "| --- | ---: |"
    for name in _SUMS:
        if name.endswith("_bytes") and counters[name]:
            yield f"| {name[:-6].replace('_', ' ')} | {counters[name] / units:.6g} |"
    yield ""
    if counters["matrix_instructions"]:
        yield "| matrix instruction | number |"
        yield "| --- | ---: |"
        for shape, count in counters["matrix_instructions"].items():
            yield f"| {shape} | {count / units:.4g} |"
        yield ""
    yield f"| floor of an SM ({gpu}) | clocks |"
    yield "| --- | ---: |"
    for pipe, clocks in floors(counters, GPUS[gpu], sms).items():
        yield f"| {pipe} | {clocks / units:.4g} |"


def text(
    counters: Counters,
    *,
    units: float = 1,
    unit: str = "64-slot block",
    roles: Mapping[str, Iterable[int]] | None = None,
    gpu: str = "H200",
    sms: int = 1,
) -> str:
    """Tables per unit of work. roles: names of warps, by index in their block. sms: SMs that share
    a unit, for the floors."""
    return "\n".join(_lines(counters, units, unit, roles or {}, gpu, sms)) + "\n"


def _parse_roles(argument: str) -> dict[str, list[int]]:
    """'softmax=0-3,mma=4' -> {"softmax": [0, 1, 2, 3], "mma": [4]}"""
    roles: dict[str, list[int]] = {}
    for part in filter(None, argument.split(",")):
        name, _, warps = part.partition("=")
        first, _, last = warps.partition("-")
        roles[name] = list(range(int(first), int(last or first) + 1))
    return roles


def main(arguments: list[str]) -> str:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("counters", type=Path, help="JSON of counters_of(result)")
    parser.add_argument("less", type=Path, nargs="?", help="to be subtracted")
    parser.add_argument("--units", type=float, default=1)
    parser.add_argument("--unit", default="64-slot block")
    parser.add_argument("--roles", type=_parse_roles, default={}, help="softmax=0-3,mma=4")
    parser.add_argument("--gpu", choices=GPUS, default="H200")
    parser.add_argument("--sms", type=int, default=1, help="SMs that share a unit")
    options = parser.parse_args(arguments)
    counters = json.loads(options.counters.read_text())
    if options.less is not None:
        counters = difference(counters, json.loads(options.less.read_text()))
    return text(
        counters,
        units=options.units,
        unit=options.unit,
        roles=options.roles,
        gpu=options.gpu,
        sms=options.sms,
    )


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
