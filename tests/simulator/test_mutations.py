"""Does the simulator notice when a kernel lacks synchronisation? Each synchronising instruction of
kernels/pipeline.cu is dropped or weakened in turn, in its PTX. Every mutant must be caught, or be
listed in REDUNDANT with the reason why it is still right.

    python tests/simulator/test_mutations.py      prints the table of README.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch

import simulator
from simulator.mutations import NOT_MODELLED, Mutant, Outcome, frames, mutants, table
from simulator.pipeline import SOURCE, inputs, ptx

README = Path(__file__).parent / "README.md"
TARGETS = ["90a", "100a"]
SCHEDULES = [("eager", 1), ("lazy", 1), *(("random", seed) for seed in range(1, 5))]


def complaint(text: str, target: str, schedule: tuple[str, int], check: bool) -> str | None:
    """What a run of the kernel complains of: None if it is right."""
    mode, seed = schedule
    arguments, expected = inputs(target)
    out = torch.full_like(expected, torch.nan)
    try:
        result = simulator.Module(text).launch(
            "pipeline",
            block=256,
            arguments=[*arguments, out],
            options=simulator.options(mode, seed=seed, budget=16, check=check),
            allow_races=True,
        )
    except simulator.SimulatorError as error:
        return "deadlock" if str(error).startswith("deadlock") else f"error: {error}"
    if result.races:
        return f"race: {result.races[0]}"
    if not torch.equal(out, expected):
        return "wrong output"
    return f"lint: {result.lints[0]}" if result.lints else None


# --- mutants --------------------------------------------------------------------------------------


def place_of(text: str, position: int) -> str:
    """'role: statement' of the line of pipeline.cu that a position in the PTX comes from."""
    source = SOURCE.read_text().splitlines()
    line = next(frame.line for frame in frames(text, position) if frame.file.endswith(".cu"))
    functions = (re.match(r"(?:__device__|extern).* (\w+)\(", s) for s in source[line - 1 :: -1])
    role = next(f[1] for f in functions if f)
    statement = source[line - 1].strip()
    if statement.startswith("asm"):
        statement = re.match(r"\S+", text[position:])[0].rstrip(";")
    return f"{role}: {statement}"


def first_complaint(mutant: Mutant, target: str, check: bool) -> str | None:
    return next(
        filter(None, (complaint(mutant.text, target, each, check) for each in SCHEDULES)), None
    )


# Mutants that are still right: target, pattern of their names, reason.
REDUNDANT = [
    *(("", kind, why) for kind, why in NOT_MODELLED),
    (
        "",
        r"arrive relaxed: load",
        "the thread has written nothing itself, and the copy releases what it writes",
    ),
    (
        "100a",
        r"wait relaxed: .*(a_empty|scaled_empty|sums_full|sums_empty)",
        "only tcgen05 operations need to be over; PTX's own examples wait for those with .relaxed",
    ),
    (
        "100a",
        r"arrive relaxed: finish: .*sums_empty",
        "only tcgen05 operations are handed on; PTX's own examples arrive with .relaxed",
    ),
]


def reason(mutant: Mutant, target: str) -> str | None:
    """Why a mutant is still right, if it is."""
    return next(
        (why for t, name, why in REDUNDANT if t in target and re.search(name, str(mutant))), None
    )


@cache
def outcomes(target: str) -> list[Outcome]:
    return [
        Outcome(m, first_complaint(m, target, check=False), first_complaint(m, target, check=True))
        for m in mutants(ptx(target), place_of)
    ]


def lines(target: str) -> Iterator[str]:
    """The lines of README.md about a target."""
    return table(f"sm_{target}", outcomes(target), lambda mutant: reason(mutant, target))


# --- tests ----------------------------------------------------------------------------------------


def test_guards_and_qualifiers():
    text = """
        @!%p1 mbarrier.init.shared::cta.b64 [%r1+8], 4;
        @%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];
        @p fence.proxy.async.shared::cta; // mbarrier.arrive [a];
        mbarrier.try_wait.parity.relaxed.cta.b64 done, [%r1], %r2, %r3;
        cp.async.mbarrier.arrive.noinc.b64 [%rd1];"""
    lines = text.splitlines()[1:]
    changed = {}
    for mutant in mutants(text, lambda text, position: ""):
        (line,) = [new for new in mutant.text.splitlines()[1:] if new not in lines]
        changed[mutant.kind] = line.strip()
    init = "@!%p1 mbarrier.init.shared::cta.b64 [%r1+8], other; }"
    assert changed == {
        "mbarrier wait always true": "setp.eq.u32 done, 0, 0;",
        "mbarrier arrive dropped": "",
        "mbarrier arrive relaxed": (
            "@%p2 mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r1];"
        ),
        "mbarrier count + 1": "{ .reg .b32 other; add.u32 other, 4, 1; " + init,
        "mbarrier count - 1": "{ .reg .b32 other; sub.u32 other, 4, 1; " + init,
        "fence.proxy.async dropped": "// mbarrier.arrive [a];",
        "cp.async.mbarrier.arrive dropped": "",
    }


@pytest.mark.parametrize("target", TARGETS)
def test_the_kernel_is_right(target):
    for schedule in SCHEDULES:
        assert complaint(ptx(target), target, schedule, check=True) is None


@pytest.mark.parametrize("target", TARGETS)
def test_mutants_are_caught(target):
    wrong = [
        f"{outcome.mutant}: {outcome.checked}"
        for outcome in outcomes(target)
        if (outcome.checked is None) != (reason(outcome.mutant, target) is not None)
    ]
    assert wrong == []


@pytest.mark.parametrize("target", TARGETS)
def test_every_reason_is_still_one(target):
    for where, pattern, _ in REDUNDANT:
        if where in target:
            assert any(re.search(pattern, str(outcome.mutant)) for outcome in outcomes(target))


@pytest.mark.parametrize("target", TARGETS)
def test_readme_shows_the_table(target):
    assert "\n".join(lines(target)) in README.read_text()


if __name__ == "__main__":
    for each in TARGETS:
        sys.stdout.writelines(line + "\n" for line in lines(each))
