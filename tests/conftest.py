"""Engines to test, seeds, and a count of what was skipped, said aloud."""

from __future__ import annotations

import collections
from typing import NamedTuple

import pytest
import torch

import dsv4

NEEDS_GPU = "needs a GPU: "


class Engine(NamedTuple):
    """What a test runs on: the device of its tensors decides which engine serves it."""

    name: str
    device: str


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


def pytest_collection_modifyitems(items):
    for item in items:
        chosen = getattr(item, "callspec", None) and item.callspec.params.get("engine")
        item.user_properties.append(("engine", chosen.name if chosen else "no particular engine"))


def pytest_terminal_summary(terminalreporter):
    ran_on = collections.Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call":
            ran_on[dict(report.user_properties)["engine"]] += 1
    needs_gpu = collections.Counter()
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _, found, why = reason.partition(NEEDS_GPU)
        if found:
            needs_gpu[why] += 1
    ran = ", ".join(f"{count} on {name}" for name, count in sorted(ran_on.items())) or "none"
    terminalreporter.write_line(f"tests that ran: {ran}")
    for why, count in needs_gpu.items():
        terminalreporter.write_line(f"tests that need a GPU and were skipped: {count} ({why})")


def pytest_sessionfinish(session, exitstatus):
    # A session that skipped everything it collected has shown nothing.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and reporter and session.testscollected and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
