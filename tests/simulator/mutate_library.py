"""Which synchronisation of a kernel of libdsv4 would be missed if it were not there? Each one is
dropped or weakened in turn, in the kernel's PTX, and decodes are run until one is wrong. Prints a
table of what was caught, and what was not: those mutants are redundant, or need a reason.

    DSV4_LIBRARY_DIR=build/native/simulated PYTHONPATH=python:tests \\
        python tests/simulator/mutate_library.py --engine sim-sm90-slice "PackedFormat, 16, false"
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import cases
import simulated
from simulator.mutations import NOT_MODELLED, Mutant, Outcome, frames, mutants, table

ROOT = Path(__file__).resolve().parents[2]
WRAPPERS = ROOT / "csrc" / "ptx"  # one function an instruction: their callers tell more
HEADS = [16, 32, 64, 128]
SECONDS = 20  # of a CPU, that a decode may take


# --- decodes --------------------------------------------------------------------------------------


@dataclass
class Decode:
    name: str
    problem: cases.Problem
    workspace: str = "none"
    calls: int = 1
    options: dict = field(default_factory=dict)
    is_finite: bool = True

    def run(self) -> list[torch.Tensor]:
        """out and lse of each call. What it reads may come from a kernel that still runs."""
        buffer = cases.workspace_for(self.problem, self.workspace)
        results = []
        for _ in range(self.calls):
            out, lse, assert_margins_untouched = cases.outputs(self.problem)
            torch.ops.dsv4.sparse_mla_decode.out(
                **self.problem.op_args(),
                **self.options,
                bmm1_scale=cases.SOFTMAX_SCALE,
                enable_pdl=True,
                workspace=buffer.bytes,
                out=out,
                lse=lse,
            )
            assert_margins_untouched()
            results += [out, lse]
        return results

    def assert_right(self, results: list[torch.Tensor]) -> None:
        if not self.is_finite:
            return  # tests/test_shared_tables.py looks at such
        for out, lse in zip(results[::2], results[1::2], strict=True):
            cases.assert_close(
                out, lse, *self.problem.inputs(), scale1=cases.SOFTMAX_SCALE, **self.options
            )


def with_growing_maxima(problem: cases.Problem) -> cases.Problem:
    """The same with weights that grow along a row, by some 2^8 in 64 slots."""
    heads = problem.query.shape[-2]
    spread = torch.linspace(0.5, 1.0, heads)[:, None].expand_as(problem.query)
    cases.copy_bits(spread.to(problem.query.dtype), problem.query)
    loc = 0.0
    for segment in problem.segments:
        segment.indices.copy_(segment.indices.sort().values)
        for slots in used_slots(problem, segment).chunk(4):
            cases.fill(segment.cache, slots, problem.layout, loc=loc, spread=0.1)
            loc += 0.25
    return problem


def with_scales_apart(problem: cases.Problem) -> cases.Problem:
    """The same with some groups of dims of the queries and keys much smaller than the others."""
    problem.query[..., 64:128] *= 2.0**-14
    for segment in problem.segments:
        slots = used_slots(problem, segment)[::3]
        page_size = cases.page_size_of(segment.cache, problem.layout)
        _, scales = cases.packed_views(segment.cache, problem.layout)
        scales[slots // page_size, slots % page_size, 2] -= 16
    return problem


def with_a_key_of_nan(problem: cases.Problem) -> cases.Problem:
    """The same with one in the longest window."""
    window = problem.swa
    row = int(window.lens.flatten().argmax())
    of_row = replace(window, indices=window.indices[[row]], lens=window.lens[[row]])
    slot = int(used_slots(problem, of_row)[0])
    page_size = cases.page_size_of(window.cache, problem.layout)
    cases.byte_views(window.cache, problem.layout)[0][slot // page_size, slot % page_size] = 0xFF
    return problem


def unaligned(problem: cases.Problem, fmt: str) -> cases.Problem:
    """The same with keys that begin at multiples of no more than 8 bytes."""
    if fmt == "packed":
        return problem  # pages of 69 tokens without padding
    for segment in problem.segments:
        pages, page_size = segment.cache.shape[0], cases.page_size_of(segment.cache)
        pool = cases.cache(pages, page_size, fmt, token_pad=4)
        cases.copy_slots(segment.cache, pool, used_slots(problem, segment))
        segment.cache = pool
    return problem


def used_slots(problem: cases.Problem, segment: cases.Segment) -> torch.Tensor:
    page_size = cases.page_size_of(segment.cache, problem.layout)
    return cases.valid_slots(
        segment.indices.flatten(0, -2),
        segment.lens.flatten(),
        cases.num_slots(segment.cache, problem.layout),
        page_size if segment.page_table else None,
    )


@functools.cache
def decodes(form: str, fmt: str, heads: int) -> list[Decode]:
    """Few and small ones that together take every path of a kernel."""

    def problem(w1: int, w2: int, **options) -> cases.Problem:
        torch.manual_seed(0)
        return cases.problem(form, fmt, heads, w1, w2, **options)

    sinks = torch.linspace(-2.0, 2.0, heads)
    found = [
        Decode("rows", problem(133, 70, batch=7, holes=0.2), options=dict(sinks=sinks)),
        Decode("many short rows", problem(24, 16, batch=36)),  # a slice has 3 SMs
        Decode("split", problem(128, 330, batch=2), workspace="best", calls=2),
        Decode("growing maxima", with_growing_maxima(problem(128, 260, lens="full"))),
        Decode("unaligned", unaligned(problem(128, 64, p1=69, p2=69, padded=False), fmt)),
    ]
    if fmt == "packed":
        apart = with_scales_apart(problem(128, 128, batch=4, lens="full"))
        found.append(Decode("scales apart", apart))
    if form == "hca":
        copies = problem(40, 640, batch=4, q_len=4, one_table="copies")
        found.append(Decode("copies of a table", copies, options=dict(sinks=sinks)))
        short = problem(24, 100, batch=36, q_len=4, one_table="copies")
        found.append(Decode("many copies of a table", short))
        differ = problem(40, 640, batch=4, q_len=4, one_table="copies", lens="full", holes=0.0)
        tables = differ.compressed.indices
        tables[5, -1], tables[11, 0] = tables[5, 0], -1
        found.append(Decode("tables that differ", differ, workspace="best"))
    if form != "token_sparse":
        together = problem(40, 640, batch=7, q_len=4, one_table=True)
        found.append(Decode("groups", together, options=dict(sinks=sinks)))
        short = problem(24, 100, batch=36, q_len=4, one_table=True)
        found.append(Decode("many groups", short))
        found.append(Decode("split groups", together, workspace="best", calls=2))
        spoiled = with_a_key_of_nan(problem(40, 640, batch=4, q_len=4, one_table=True))
        found.append(Decode("rows alone", spoiled, is_finite=False))
    return found


# --- kernels --------------------------------------------------------------------------------------


def demangled(name: str) -> str:
    function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    function.restype = ctypes.c_char_p
    return (function(name.encode(), None, None, None) or name.encode()).decode()


def begin_of(ptx: str, kernel: str) -> int:
    return ptx.index("{", ptx.index(f".entry {kernel}(")) + 1


def beginning_with(instruction: str, ptx: str, kernel: str) -> str:
    """The module with one more instruction in front of the kernel's first."""
    begin = begin_of(ptx, kernel)
    return f"{ptx[:begin]}\n{instruction}\n{ptx[begin:]}"


def emptied(ptx: str) -> str:
    """The module with kernels that do nothing."""
    for kernel in names_in(ptx):
        ptx = beginning_with("ret;", ptx, kernel)
    return ptx


def names_in(ptx: str) -> list[str]:
    return re.findall(r"\.entry (\w+)\(", ptx)


@dataclass
class Kernel:
    name: str
    module: int
    ptx: str  # of the module

    @property
    def begin(self) -> int:
        return begin_of(self.ptx, self.name)

    @property
    def end(self) -> int:
        behind = re.compile(r"^\s*\.(visible|weak|entry|func|file|section)\b", re.MULTILINE)
        found = behind.search(self.ptx, self.begin)
        return found.start() if found else len(self.ptx)


def kernels(name: str) -> list[Kernel]:
    """Of all modules that are loaded, those with this in their names."""
    return [
        Kernel(kernel, module, ptx)
        for module, ptx in enumerate(simulated.modules())
        for kernel in names_in(ptx)
        if name in kernel or name in demangled(kernel)
    ]


@contextlib.contextmanager
def trap(kernel: Kernel) -> Iterator[None]:
    """Within a block, the kernel fails, and others do nothing."""
    with contextlib.ExitStack() as stack:
        for module, ptx in enumerate(simulated.modules()):
            stack.enter_context(simulated.replaced(module, emptied(ptx)))
        trapped = beginning_with("trap;", emptied(kernel.ptx), kernel.name)
        simulated.replace_ptx(kernel.module, trapped)
        yield


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Within a block, nobody hears what the library writes of failures."""
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def fails(decode: Decode) -> bool:
    try:
        decode.run()
    except RuntimeError:
        return True
    return False


def decodes_with(kernel: Kernel) -> list[Decode]:
    """Of each form those with the fewest heads that run the kernel."""
    found = []
    with trap(kernel), silence():
        for form, fmt in cases.FORMS:
            for heads in HEADS:
                those = [decode for decode in decodes(form, fmt, heads) if fails(decode)]
                found += those
                if those:
                    break
    return found


def load_modules() -> None:
    """Runs something of each kind, so that the modules of all kernels are there."""
    for form, fmt in cases.FORMS:
        for heads in HEADS:
            one_row = cases.problem(form, fmt, heads, 64, 192, batch=1, lens="full")
            Decode("one row", one_row, workspace="best").run()
        if form != "token_sparse":
            Decode("groups", decodes(form, fmt, min(HEADS))[-2].problem).run()


# --- runs of a mutant -----------------------------------------------------------------------------


@dataclass
class Schedule:
    mode: str
    seed: int = 1
    budget: int = 64


def schedules(seeds: int) -> list[Schedule]:
    budgets = [64, 16, 4, 200]
    random = [Schedule("random", seed, budgets[seed % 4]) for seed in range(seeds)]
    return [Schedule("eager"), Schedule("lazy"), *random]


@dataclass
class Trial:
    """A decode in a schedule, and what comes out if nothing is wrong."""

    decode: Decode
    schedule: Schedule
    expected: list[torch.Tensor]

    def run(self, check: bool) -> list[torch.Tensor]:
        with simulated.options(
            schedule=self.schedule.mode,
            seed=str(self.schedule.seed),
            budget=str(self.schedule.budget),
            check=str(int(check)),
        ):
            return self.decode.run()

    def complaint(self, check: bool) -> str | None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # which ends the process
        try:
            results = self.run(check)
        except (RuntimeError, AssertionError) as error:
            return str(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return None if cases.same_bits(results, self.expected) else "wrong output"


def trials(found: list[Decode], seeds: int) -> list[Trial]:
    """The decodes in all schedules. They must be right, and the same in all of them."""
    made = []
    for decode in found:
        expected = decode.run()
        decode.assert_right(expected)
        made += [Trial(decode, schedule, expected) for schedule in schedules(seeds)]
    made.sort(key=lambda trial: schedules(seeds).index(trial.schedule))
    for trial in made:
        if complaint := trial.complaint(check=True):
            raise SystemExit(f"{trial.decode.name}, {trial.schedule}: {complaint}")
    return made


def first_complaint(made: list[Trial], check: bool) -> str | None:
    return next(filter(None, (trial.complaint(check) for trial in made)), None)


def try_mutant(kernel: Kernel, mutant: Mutant, made: list[Trial], answers: Connection) -> None:
    """In a process of its own: sends the complaint without the checker, then the one with it."""
    torch.set_num_threads(1)  # the threads of the parent are not here
    simulated.replace_ptx(kernel.module, mutant.text)
    with silence():
        plain = first_complaint(made, check=False)
        answers.send(plain)
        answers.send(plain or first_complaint(made, check=True))


class Process:
    """Tries a mutant."""

    def __init__(self, kernel: Kernel, mutant: Mutant, made: list[Trial]) -> None:
        self.mutant = mutant
        context = multiprocessing.get_context("fork")  # which has the inputs already
        self._answers, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=try_mutant, args=(kernel, mutant, made, theirs))
        self._process.start()
        theirs.close()

    @property
    def end(self) -> int:
        """What to wait for."""
        return self._process.sentinel

    def outcome(self) -> Outcome:
        """After its end."""
        self._process.join()
        complaints = []
        with contextlib.suppress(EOFError):
            while True:
                complaints.append(self._answers.recv())
        if self._process.exitcode > 0:
            raise SystemExit(f"{self.mutant}: cannot be tried")
        if self._process.exitcode < 0:
            complaints.append(signal.Signals(-self._process.exitcode).name)
        return Outcome(self.mutant, complaints[0], complaints[-1])


def outcomes(
    kernel: Kernel, those: Iterable[Mutant], made: list[Trial], jobs: int
) -> Iterator[Outcome]:
    """In the order in which they become known."""
    running: dict[int, Process] = {}

    def next_outcome() -> Outcome:
        return running.pop(wait(running)[0]).outcome()

    for mutant in those:
        if len(running) == jobs:
            yield next_outcome()
        process = Process(kernel, mutant, made)
        running[process.end] = process
    while running:
        yield next_outcome()


# --- the command ----------------------------------------------------------------------------------


def place_of(text: str, position: int) -> str:
    """'file:line (from its caller): statement' of the innermost line that wraps no instruction."""
    found = [(Path(frame.file), frame.line) for frame in frames(text, position)]
    own = [(file, line) for file, line in found if ROOT / "csrc" in file.parents]
    callers = [(file, line) for file, line in own if WRAPPERS not in file.parents]
    if not callers:
        return text[position : text.index(";", position)]
    file, line = callers[0]
    statement = file.read_text().splitlines()[line - 1].strip()
    by = "".join(f" (from {caller.name}:{at})" for caller, at in callers[1:2])
    return f"{file.relative_to(ROOT / 'csrc')}:{line}{by}: {statement}"


def reason(mutant: Mutant) -> str | None:
    return next((why for kind, why in NOT_MODELLED if re.search(kind, str(mutant))), None)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def try_all(kernel: Kernel, found: list[Decode], those: list[Mutant], arguments) -> None:
    start = time.monotonic()
    names = [f"{decode.problem.form} {decode.name}" for decode in found]
    say(f"{demangled(kernel.name)}: {len(those)} mutants; decodes: {', '.join(names)}")
    made = trials(found, arguments.seeds)
    say(f"{len(made)} runs without a mutation: {time.monotonic() - start:.1f} s, with the checker")
    known = []
    for outcome in outcomes(kernel, those, made, arguments.jobs):
        known.append(outcome)
        complaint = (outcome.checked or "not caught").rpartition(demangled(kernel.name))[2]
        how = "" if outcome.plain or not outcome.checked else " with the checker:"
        say(f"{len(known)}/{len(those)} {outcome.mutant}:{how} {complaint.lstrip(': ')[:160]}")
    known.sort(key=lambda outcome: those.index(outcome.mutant))
    say(f"{time.monotonic() - start:.0f} s")
    sys.stdout.writelines(line + "\n" for line in table(demangled(kernel.name), known, reason))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kernel", help="a part of its name, mangled or not")
    parser.add_argument("--engine", default="sim-sm90-slice", help="as DSV4_TEST_ENGINE")
    parser.add_argument("--only", default="", help="pattern of the mutants to try")
    parser.add_argument("--seeds", type=int, default=4, help="random schedules")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    arguments = parser.parse_args()
    if not simulated.is_loaded():
        parser.error("DSV4_LIBRARY_DIR names no simulated build")
    os.environ["DSV4_TEST_ENGINE"] = arguments.engine
    if simulated.rounds_e4m3_weights(arguments.engine):
        cases.e4m3_cache_weights = torch.float8_e4m3fn
    load_modules()
    named = kernels(arguments.kernel)
    if not named:
        parser.error(f"{arguments.engine} has no kernel {arguments.kernel}")
    for kernel in named:
        all_mutants = mutants(kernel.ptx, place_of, kernel.begin, kernel.end)
        those = [mutant for mutant in all_mutants if re.search(arguments.only, str(mutant))]
        if arguments.list:
            sys.stdout.writelines(f"{mutant}\n" for mutant in those)
        elif found := decodes_with(kernel):
            try_all(kernel, found, those, arguments)
        else:
            say(f"{demangled(kernel.name)}: no decode runs it")


if __name__ == "__main__":
    main()
