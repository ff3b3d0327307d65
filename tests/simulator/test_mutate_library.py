"""Other PTX in place of a kernel of the simulated library; what mutate_library.py makes of it."""

from __future__ import annotations

import pytest

import cases
import simulated
from simulator import mutate_library
from simulator.mutations import Mutant, mutants

pytestmark = pytest.mark.simulated


@pytest.fixture
def decode(monkeypatch):
    monkeypatch.setenv("DSV4_TEST_ENGINE", "sim-sm90-slice")
    problem = cases.problem("packed", "packed", 16, 20, 10, batch=2, lens="full")
    return mutate_library.Decode("short rows", problem)


@pytest.fixture
def kernel(decode):
    """The kernel that the decode runs on."""
    decode.run()
    for kernel in mutate_library.kernels("dsv4::sm120::PackedFormat, 16, false, false>"):
        with mutate_library.trap(kernel):
            if mutate_library.fails(decode):
                return kernel


def test_other_ptx_runs_until_it_is_taken_back(decode, kernel):
    right = decode.run()
    with simulated.replaced(kernel.module, mutate_library.emptied(kernel.ptx)):
        assert all(result.isnan().all() for result in decode.run())
    assert cases.same_bits(decode.run(), right)


def test_what_cannot_run_is_refused(decode, kernel):
    right = decode.run()
    unknown = mutate_library.beginning_with("fly.b32 away;", kernel.ptx, kernel.name)
    with pytest.raises(ValueError, match="fly"):
        simulated.replace_ptx(kernel.module, unknown)
    with pytest.raises(ValueError, match="there is no module 1000"):
        simulated.replace_ptx(1000, None)
    assert cases.same_bits(decode.run(), right)


def test_mutants_are_caught_with_and_without_the_checker(decode, kernel):
    made = mutants(kernel.ptx, mutate_library.place_of, kernel.begin, kernel.end)
    wanted = {
        "mbarrier arrive dropped: sm120/gather.cuh": "deadlock",
        "griddepcontrol.wait dropped: sm120/decode.cuh": "the previous grid",
    }
    those = [next(m for m in made if str(m).startswith(name)) for name in wanted]
    runs = mutate_library.trials([decode], seeds=0)
    for outcome in mutate_library.outcomes(kernel, those, runs, jobs=2):
        (sentence,) = [
            text for name, text in wanted.items() if str(outcome.mutant).startswith(name)
        ]
        assert sentence in outcome.checked
        assert (outcome.plain is None) == outcome.mutant.kind.startswith("griddepcontrol")


def test_what_never_ends_is_ended(decode, kernel, monkeypatch):
    runs = mutate_library.trials([decode], seeds=0)
    monkeypatch.setattr(mutate_library, "SECONDS", 1)
    endless = mutate_library.beginning_with("forever: bra forever;", kernel.ptx, kernel.name)
    those = [
        Mutant("an endless loop", "the beginning", endless, 0, 0, ""),
        Mutant("nothing", "nowhere", kernel.ptx, 0, 0, ""),
    ]
    complaints = {
        outcome.mutant.kind: (outcome.plain, outcome.checked)
        for outcome in mutate_library.outcomes(kernel, those, runs, jobs=2)
    }
    assert complaints == {"an endless loop": ("SIGPROF", "SIGPROF"), "nothing": (None, None)}
