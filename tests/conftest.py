"""Engines to test, seeds, and a count of what was skipped, said aloud."""

from __future__ import annotations

import collections
import functools
import os
import zlib
from typing import NamedTuple

import pytest
import torch

import cases
import dsv4
import simulated
from dsv4.check import serving_engine

NEEDS_GPU = "needs a GPU: "


class Engine(NamedTuple):
    """What a test runs on: the device of its tensors decides which engine serves it, and in the
    simulated build an environment variable."""

    name: str
    device: str
    simulated: bool = False


if simulated.is_loaded():
    ENGINES = [Engine(name, "cpu", simulated=True) for name in simulated.ENGINES]
else:
    ENGINES = [Engine("cpu", "cpu"), Engine("cuda", "cuda")]


def why_not(engine: Engine) -> str:
    """Empty if this build and machine can run the engine, else the reason."""
    if engine.device == "cpu":
        return ""
    if not torch.cuda.is_available():
        return NEEDS_GPU + "torch sees none"
    support = dsv4.supports(device=engine.device)
    return "" if support else NEEDS_GPU + support.reason


# Session scope, so that Hypothesis may use it.
@pytest.fixture(scope="session", params=ENGINES, ids=lambda engine: engine.name)
def engine(request):
    """Each engine in turn: every test that decodes asks for it."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def gpu():
    """The GPU, for tests of what only a GPU has: streams, graphs, several devices."""
    engine = Engine("cuda", "cuda")
    if reason := why_not(engine):
        pytest.skip(reason)
    return engine


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def one_thread(monkeypatch):
    """Small problems gain nothing from threads, and on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine_of(item) -> Engine | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("engine") if callspec else None


@pytest.fixture(autouse=True)
def e4m3_cache_weights(request, monkeypatch):
    """Some engines round the weights of e4m3 caches to e4m3, as build_info() says."""
    engine = engine_of(request.node)
    if engine and rounds_e4m3_weights(engine):
        monkeypatch.setattr(cases, "e4m3_cache_weights", torch.float8_e4m3fn)


@functools.cache
def rounds_e4m3_weights(engine: Engine) -> bool:
    if engine.simulated:
        return simulated.rounds_e4m3_weights(engine.name)
    return engine.device == "cuda" and serving_engine()["rounds_e4m3_weights"]


def draw(text, choices):
    """One of some choices: always the same one for a text, and each of them about as often."""
    return choices[zlib.crc32(text.encode()) % len(choices)]


@pytest.fixture(autouse=True)
def simulation(request, monkeypatch):
    """The test's engine serves the CPU of a simulated build: on all of a GPU or on a slice, where
    blocks have more rows to do; in one of the schedules, unless the environment names one. Both
    follow from the name of the test."""
    if not simulated.is_loaded():
        yield
        return
    engine = engine_of(request.node)
    sizes = ["-slice"] if request.node.get_closest_marker("few_sms") else ["", "-slice"]
    slice_or_all = draw(request.node.nodeid[::-1], sizes)
    monkeypatch.setenv("DSV4_TEST_ENGINE", engine.name + slice_or_all if engine else "cpu")
    schedule = os.environ.get("DSV4_SIM_SCHEDULE") or draw(request.node.nodeid, simulated.SCHEDULES)
    request.node.add_report_section("setup", "simulation", f"DSV4_SIM_SCHEDULE={schedule}")
    with simulated.options(schedule=schedule):
        yield


def pytest_addoption(parser):
    parser.addoption(
        "--engines",
        default="",
        help="test these engines: names, separated by commas, or all. If empty: all, but of the "
        "simulated GPUs that one engine of the library serves, each case takes one",
    )


def chosen_engines(config) -> set[str] | None:
    """Those of the command line; None if it names none."""
    known = {engine.name for engine in ENGINES}
    names = config.getoption("engines")
    chosen = known if names == "all" else set(filter(None, names.split(",")))
    if unknown := sorted(chosen - known):
        raise pytest.UsageError(f"--engines: expected some of {sorted(known)}, got {unknown}")
    return chosen or None


def pytest_collection_modifyitems(config, items):
    chosen = chosen_engines(config)
    alike = {engine.name: [engine.name] for engine in ENGINES}
    if simulated.is_loaded():
        alike = simulated.alike()

    def is_wanted(item):
        engine = engine_of(item)
        about_simulation = item.get_closest_marker("simulated") is not None
        if engine is None or (about_simulation and not simulated.is_loaded()):
            # What is for no engine in particular runs with one of the builds only.
            return about_simulation == simulated.is_loaded()
        if chosen is not None:
            return engine.name in chosen
        case = item.nodeid.replace(engine.name, "")
        return engine.name == draw(case, alike[engine.name])

    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = [item for item in items if is_wanted(item)]
    for item in items:
        engine = engine_of(item)
        item.user_properties.append(("engine", engine.name if engine else "no particular engine"))


def pytest_terminal_summary(terminalreporter):
    ran_on = collections.Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call":
            ran_on[dict(report.user_properties)["engine"]] += 1
    needs_gpu, too_long = collections.Counter(), 0
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _, found, why = reason.partition(NEEDS_GPU)
        if found:
            needs_gpu[why] += 1
        too_long += simulated.TOO_LONG in reason
    ran = ", ".join(f"{count} on {name}" for name, count in sorted(ran_on.items())) or "none"
    terminalreporter.write_line(f"tests that ran: {ran}")
    for why, count in needs_gpu.items():
        terminalreporter.write_line(f"tests that need a GPU and were skipped: {count} ({why})")
    if too_long:
        terminalreporter.write_line(f"tests {simulated.TOO_LONG}, skipped: {too_long}")


def pytest_sessionfinish(session, exitstatus):
    # Of the files that were named, none may have anything to do with a simulated build.
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and simulated.is_loaded():
        session.exitstatus = pytest.ExitCode.OK
    # A session that skipped everything it collected has shown nothing.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and reporter and session.testscollected and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
