"""Does the simulator notice when a kernel lacks synchronisation? Each synchronising instruction of
kernels/pipeline.cu is dropped or weakened in turn, in its PTX. Every mutant must be caught, or be
listed in REDUNDANT with the reason why it is still right.

    python tests/simulator/test_mutations.py      prints the table of README.md
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch

import simulator
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


# --- mutations ------------------------------------------------------------------------------------


@dataclass
class Mutation:
    kind: str
    instruction: str  # pattern of the whole statement
    replacement: Callable[[re.Match], str] | str = ""


def other_count(step: str) -> Callable[[re.Match], str]:
    return lambda m: (
        f"{{ .reg .b32 other; {step}.u32 other, {m[2]}, 1; mbarrier.init{m[1]}, other; }}"
    )


MUTATIONS = [
    Mutation(
        "mbarrier wait always true",
        r"mbarrier\.try_wait\S*\s+([%\w]+), [^;]*;",
        lambda m: f"setp.eq.u32 {m[1]}, 0, 0;",
    ),
    Mutation(
        "mbarrier wait relaxed",
        r"(mbarrier\.try_wait\.parity)([^;]*;)",
        lambda m: f"{m[1]}.relaxed.cta{m[2]}",
    ),
    Mutation("mbarrier arrive dropped", r"mbarrier\.arrive[^;]*;"),
    Mutation(
        "mbarrier arrive relaxed",
        r"(mbarrier\.arrive(?:\.expect_tx)?)([^;]*;)",
        lambda m: f"{m[1]}.relaxed.cta{m[2]}",
    ),
    Mutation(
        "expect_tx dropped",
        r"mbarrier\.arrive\.expect_tx([^;]*), [^,;]*;",
        lambda m: f"mbarrier.arrive{m[1]};",
    ),
    Mutation("mbarrier count + 1", r"mbarrier\.init([^;]*), ([%\w]+);", other_count("add")),
    Mutation("mbarrier count - 1", r"mbarrier\.init([^;]*), ([%\w]+);", other_count("sub")),
    Mutation("bar.sync dropped", r"bar\.sync[^;]*;"),
    Mutation("bar.warp.sync dropped", r"bar\.warp\.sync[^;]*;"),
    Mutation("fence.proxy.async dropped", r"fence\.proxy\.async[^;]*;"),
    Mutation("fence.mbarrier_init dropped", r"fence\.mbarrier_init[^;]*;"),
    Mutation("bulk commit_group dropped", r"cp\.async\.bulk\.commit_group[^;]*;"),
    Mutation("bulk wait_group dropped", r"cp\.async\.bulk\.wait_group[^;]*;"),
    Mutation("tcgen05.fence dropped", r"tcgen05\.fence[^;]*;"),
    Mutation("tcgen05.wait dropped", r"tcgen05\.wait[^;]*;"),
    Mutation("tcgen05.commit dropped", r"tcgen05\.commit[^;]*;"),
    Mutation("wgmma.fence dropped", r"wgmma\.fence[^;]*;"),
    Mutation("wgmma.commit_group dropped", r"wgmma\.commit_group[^;]*;"),
    Mutation("wgmma.wait_group dropped", r"wgmma\.wait_group[^;]*;"),
]


@dataclass
class Mutant:
    kind: str
    where: str  # role and source line
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}"


def place_of(text: str, position: int) -> str:
    """'role: statement' of the line of pipeline.cu that a position in the PTX comes from."""
    source = SOURCE.read_text().splitlines()
    (file,) = re.findall(r'\.file\s+(\d+) "[^"]*\.cu"', text)
    loc = text[:position].rpartition(".loc\t")[2].partition("\n")[0]
    own = re.match(rf"{file} (\d+) ", loc)
    caller = re.search(rf"inlined_at {file} (\d+) ", loc)
    line = int((own or caller)[1])
    functions = (re.match(r"(?:__device__|extern).* (\w+)\(", s) for s in source[line - 1 :: -1])
    role = next(f[1] for f in functions if f)
    statement = source[line - 1].strip()
    if statement.startswith("asm"):
        statement = re.match(r"\S+", text[position:])[0].rstrip(";")
    return f"{role}: {statement}"


def mutants(target: str) -> Iterator[Mutant]:
    text = ptx(target)
    for mutation in MUTATIONS:
        seen: Counter[str] = Counter()
        for match in re.finditer(mutation.instruction, text):
            where = place_of(text, match.start())
            seen[where] += 1
            if seen[where] > 1:
                where += f" #{seen[where]}"
            mutated = (
                match.expand("") if mutation.replacement == "" else mutation.replacement(match)
            )
            yield Mutant(
                mutation.kind, where, text[: match.start()] + mutated + text[match.end() :]
            )


def first_complaint(mutant: Mutant, target: str, check: bool) -> str | None:
    return next(
        filter(None, (complaint(mutant.text, target, each, check) for each in SCHEDULES)), None
    )


# Mutants that are still right: target, pattern of their names, reason.
REDUNDANT = [
    ("", r"bar\.warp\.sync dropped", "not modelled: the lanes of a warp are one agent"),
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


@dataclass
class Outcome:
    mutant: Mutant
    plain: str | None  # complaint without the checker
    checked: str | None


@cache
def outcomes(target: str) -> list[Outcome]:
    return [
        Outcome(m, first_complaint(m, target, check=False), first_complaint(m, target, check=True))
        for m in mutants(target)
    ]


def table(target: str) -> Iterator[str]:
    """The lines of README.md about a target."""
    every, plain, checked = Counter(), Counter(), Counter()
    left: dict[str, list[Mutant]] = {}
    for outcome in outcomes(target):
        kind = outcome.mutant.kind
        every[kind] += 1
        plain[kind] += outcome.plain is not None
        checked[kind] += outcome.checked is not None
        if outcome.checked is None:
            left.setdefault(reason(outcome.mutant, target) or "missed", []).append(outcome.mutant)
    yield f"| sm_{target} | mutants | caught without the checker | with it |"
    yield "| --- | ---: | ---: | ---: |"
    for kind in every:
        yield f"| {kind} | {every[kind]} | {plain[kind]} | {checked[kind]} |"
    yield f"| all | {every.total()} | {plain.total()} | {checked.total()} |"
    yield ""
    yield "Not caught, with the reason:"
    yield ""
    for why, those in left.items():
        yield f"* {why}:"
        for mutant in those:
            yield f"  * {mutant.kind}, `{mutant.where}`"
    yield ""


# --- tests ----------------------------------------------------------------------------------------


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
    assert "\n".join(table(target)) in README.read_text()


if __name__ == "__main__":
    for each in TARGETS:
        sys.stdout.writelines(line + "\n" for line in table(each))
