"""The simulator against what an H200 made of the same PTX and the same inputs.

Bit for bit, except where a case of differential.py says how far results may be apart: sums of
numbers that are not small integers in tensor cores, and approximations such as ex2.approx.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import simulator
from simulator.differential import FIXTURES, TARGET, Case, Tolerance, all_cases, simulate

CASES = all_cases()


@pytest.fixture(scope="module")
def recorded():
    with np.load(FIXTURES) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def facts(recorded) -> dict:
    return json.loads(str(recorded["facts"]))


@pytest.fixture(scope="module")
def module_of():
    """Compiles each source once."""
    modules: dict[object, simulator.Module] = {}

    def get(case: Case) -> simulator.Module:
        if case.source not in modules:
            modules[case.source] = simulator.compile(case.source, TARGET)
        return modules[case.source]

    return get


def in_order(codes: np.ndarray) -> np.ndarray:
    """Codes of floating-point numbers to integers in the order of the numbers."""
    sign = np.int64(1) << (8 * codes.itemsize - 1)
    magnitude = codes.astype(np.int64) & (sign - 1)
    return np.where(codes & codes.dtype.type(sign), -magnitude, magnitude)


def differences(got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """Indices, in elements of the tolerance's type, where results are too far apart."""
    if tolerance.of_largest:
        a, b = (x.view(tolerance.dtype).astype(np.float64) for x in (got, want))
        bound = tolerance.of_largest * np.abs(b).max()
        return np.flatnonzero(~(np.abs(a - b) <= bound))
    codes = np.dtype(f"u{np.dtype(tolerance.dtype).itemsize}")
    a, b = got.view(codes), want.view(codes)
    apart = np.abs(in_order(a) - in_order(b)) > tolerance.ulps
    if tolerance.absolute:
        numbers, wanted = got.view(tolerance.dtype), want.view(tolerance.dtype)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            apart &= ~(np.abs(numbers - wanted) <= tolerance.absolute)
    if tolerance.ulps and tolerance.dtype == np.float32:
        apart |= ~np.isfinite(want.view(np.float32)) & (a != b)
    return np.flatnonzero(apart if tolerance.ulps else a != b)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_on_an_h200(module_of, recorded, facts, case):
    assert case.name in recorded, "not recorded: see record_fixtures.py"
    assert facts["digests"][case.name] == case.digest, "the inputs have changed: record again"
    got = np.frombuffer(simulate(module_of(case), case), np.uint8)
    want = recorded[case.name]
    wrong = differences(got, want, case.tolerance)
    codes = np.dtype(f"u{np.dtype(case.tolerance.dtype).itemsize}")
    shown = [(int(i), hex(got.view(codes)[i]), hex(want.view(codes)[i])) for i in wrong[:4]]
    assert not shown, f"{len(wrong)} elements; (index, simulator, H200): {shown}"


def test_the_comparison_sees_differences():
    want = np.array([1.0, 2.0, -0.0, np.inf], np.float32)
    near = want.view(np.uint32) + np.array([1, 0, 0, 0], np.uint32)
    for tolerance, wrong in (
        (Tolerance(), [0]),
        (Tolerance(ulps=1), []),
        (Tolerance(of_largest=2.0**-30), [0]),
    ):
        finite = slice(3 if tolerance.of_largest else 4)
        got = near[finite].view(np.uint8)
        assert differences(got, want[finite].view(np.uint8), tolerance).tolist() == wrong
    beyond = np.array([1.0, 2.0, -0.0, np.finfo(np.float32).max], np.float32)
    assert differences(beyond.view(np.uint8), want.view(np.uint8), Tolerance(ulps=9)) == [3]


def test_the_fixtures_say_where_they_are_from(facts):
    assert facts["gpu"] == "NVIDIA H200"
    assert all(facts[key] for key in ("date", "driver", "driver_supports_cuda", "cuda"))
