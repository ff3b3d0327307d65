"""The simulated build of the libraries, which runs the kernels of GPU engines on CPU tensors; see
simulator/README.md. It is loaded in place of the other if DSV4_LIBRARY_DIR names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

import pytest

from dsv4 import _library

# Compute capability of the GPU behind each engine.
ENGINES = {
    "sim-sm90": (9, 0),
    "sim-sm100": (10, 0),
    "sim-sm103": (10, 3),
    "sim-sm120": (12, 0),
    "sim-sm121": (12, 1),
}
TOO_LONG = "too long for the simulator"
SCHEDULES = ["eager", "lazy", "random"]
MAX_STEPS = 100_000  # slots x rows x blocks of 16 heads in a decode; each takes about 0.1 ms
QUICK_STEPS = 1_000  # for files with many shapes, which run with fewer rows
_DEFAULTS = {"schedule": "eager", "seed": "1", "budget": "64", "check": "1", "count": "0"}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions of dsv4_sim.h, or None if another build is loaded."""
    file = _library.TORCH_LIBRARY.with_name("libdsv4.so")
    found = ctypes.CDLL(str(file)) if file.exists() else None
    return found if hasattr(found, "dsv4_sim_set") else None


def is_loaded() -> bool:
    return library() is not None


def alike() -> dict[str, list[str]]:
    """For each engine, those that run the same engine of the library on other GPUs, and itself."""
    import dsv4_host_tests as host

    library_engine = {name: host.engine_for(*ENGINES[name], "") for name in ENGINES}
    return {
        name: [other for other in ENGINES if library_engine[other] == library_engine[name]]
        for name in ENGINES
    }


def steps(rows: int, heads: int, slots: int) -> int:
    """What a decode costs in the simulator, as MAX_STEPS counts it."""
    return rows * -(-heads // 16) * slots


def skip_if_too_long(rows: int, heads: int, slots: int) -> None:
    """Skips the test if decoding so much would take about ten seconds or more in the simulator."""
    if is_loaded() and steps(rows, heads, slots) > MAX_STEPS:
        pytest.skip(TOO_LONG)


def fewer_rows(rows: int, heads: int, slots: int) -> int:
    """All of the rows; in the simulator, of many rows as many as take a moment."""
    if not is_loaded():
        return rows
    return min(rows, max(1, QUICK_STEPS // steps(1, heads, slots)))


def set_option(name: str, value: str) -> None:
    """Sets an option of dsv4_sim.h for all calls from now on."""
    if library().dsv4_sim_set(name.encode(), value.encode()) != 0:
        library().dsv4_sim_last_error.restype = ctypes.c_char_p
        raise ValueError(f"{name}: {library().dsv4_sim_last_error().decode()}")


@contextlib.contextmanager
def options(**values: str) -> Iterator[None]:
    """Sets options within a block; behind it, they are again what the environment says."""
    try:
        for name, value in values.items():
            set_option(name, value)
        yield
    finally:
        for name in values:
            set_option(name, os.environ.get(f"DSV4_SIM_{name.upper()}") or _DEFAULTS[name])
