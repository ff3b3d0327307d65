"""The simulated build of the libraries, which runs the kernels of GPU engines on CPU tensors; see
simulator/README.md. It is loaded in place of the other if DSV4_LIBRARY_DIR names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import dsv4
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
_DEFAULTS = {
    "schedule": "eager",
    "seed": "1",
    "budget": "64",
    "check": "1",
    "count": "0",
    "clusters": "all",
}
_LAUNCHES, _SCHEDULES = 3, 4  # of dsv4_sim_text_kind


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


def rounds_e4m3_weights(name: str) -> bool:
    """Whether the library's engine behind one of ENGINES, or a slice of it, does."""
    import dsv4_host_tests as host

    library_engine = host.engine_for(*ENGINES[name.removesuffix("-slice")], "")
    engines = dsv4.build_info()["engines"]
    return any(one["name"] == library_engine and one["rounds_e4m3_weights"] for one in engines)


def steps(rows: int, heads: int, slots: int) -> int:
    """What a decode costs in the simulator, as MAX_STEPS counts it."""
    return rows * -(-heads // 16) * slots


def skip_if_too_long(rows: int, heads: int, slots: int) -> None:
    """Skips the test if decoding so much would take about ten seconds or more in the simulator."""
    if is_loaded() and steps(rows, heads, slots) > MAX_STEPS:
        pytest.skip(TOO_LONG)


def last_error() -> str:
    library().dsv4_sim_last_error.restype = ctypes.c_char_p
    return library().dsv4_sim_last_error().decode()


def fewer_rows(rows: int, heads: int, slots: int) -> int:
    """All of the rows; in the simulator, of many rows as many as take a moment."""
    if not is_loaded():
        return rows
    return min(rows, max(1, QUICK_STEPS // steps(1, heads, slots)))


def set_option(name: str, value: str) -> None:
    """Sets an option of dsv4_sim.h for all calls from now on."""
    if library().dsv4_sim_set(name.encode(), value.encode()) != 0:
        raise ValueError(f"{name}: {last_error()}")


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


class Record(NamedTuple):
    """What a call of the library did; dsv4_sim.h says what the entries hold."""

    launches: list[dict[str, Any]]
    schedules: list[dict[str, Any]]


def record(call: Callable[[], object], **values: str) -> Record:
    """Runs a call with these options, and counts."""
    library().dsv4_sim_reset()
    with options(count="1", **values):
        call()
    return Record(_records(_LAUNCHES), _records(_SCHEDULES))


def _records(kind: int) -> list[dict[str, Any]]:
    library().dsv4_sim_num_texts.restype = ctypes.c_size_t
    library().dsv4_sim_text.restype = ctypes.c_char_p
    library().dsv4_sim_text.argtypes = [ctypes.c_int, ctypes.c_size_t]
    return [
        json.loads(library().dsv4_sim_text(kind, index))
        for index in range(library().dsv4_sim_num_texts(kind))
    ]


def modules() -> list[str]:
    """The PTX of the modules that kernels have been launched from. A module keeps its index."""
    function = library().dsv4_sim_module_ptx
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_char_p
    return [function(index).decode() for index in range(library().dsv4_sim_num_modules())]


def replace_ptx(module: int, ptx: str | None) -> None:
    """Runs other PTX in place of a module's from now on; None: its own."""
    function = library().dsv4_sim_replace_ptx
    function.argtypes = [ctypes.c_size_t, ctypes.c_char_p]
    if function(module, None if ptx is None else ptx.encode()) != 0:
        raise ValueError(last_error())


@contextlib.contextmanager
def replaced(module: int, ptx: str) -> Iterator[None]:
    """Runs other PTX in place of a module's within a block."""
    replace_ptx(module, ptx)
    try:
        yield
    finally:
        replace_ptx(module, None)
