"""`python -m dsv4 check`: does this installation compute what it should where it is, and how fast?

    hostile decodes in every form -> compared with the CPU engine and float64 -> times -> verdict

For the GPUs that this project has never had: what it prints is what a bug report needs. What it
tries is in `dsv4.trials`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import dsv4

from . import bench
from .demo import Progress, cpu_name, cpu_threads, say, usable_gpu
from .kv_cache import WINDOW
from .step import SLOT_BYTES, workspace
from .trials import CPU, FORMS, FULL, ON_CPU, QUICK, QUICK_ON_CPU, Check, Place, require

BENCH = "bench"  # as a name beside those of FORMS
LONGEST_TRIAL = 120.0  # seconds, after which a GPU is taken to hang
FAILURES_SHOWN = 3  # of a form

# --- times


class BenchCase(NamedTuple):
    config: str  # of bench.CONFIGS
    format: str
    heads: int
    batch: int


BENCH_CASES = (
    *(BenchCase("B", "packed", heads, batch) for heads in (16, 64, 128) for batch in (1, 16, 128)),
    BenchCase("E", "packed", 64, 1),
    *(
        BenchCase(*case)
        for format in ("bf16", "e4m3")
        for case in (("B", format, 64, 1), ("B", format, 64, 128), ("E", format, 64, 1))
    ),
)
COLD = 3  # times L2 that the slots of a graph's calls take together
FEWEST_CALLS = 16  # in a graph, so that its begin and end do not count
POOL_SLOTS = {"cuda": 1 << 20, "cpu": 1 << 14}
BENCH_SECONDS = 0.1  # of replays for a case


def copy_bandwidth(device: torch.device) -> float:
    """Bytes/s, read and written, of a large copy by a kernel: copy_ would use a copy engine."""
    source = torch.zeros(1 << (28 if device.type == "cuda" else 24), device=device)
    copy = partial(torch.neg, source, out=torch.empty_like(source))
    return 2 * source.nbytes / _seconds([copy] * 2, device)


def _seconds(calls: Sequence[bench.Call], device: torch.device) -> float:
    """Of one call: in a CUDA graph on a GPU, else one after the other."""
    if device.type == "cuda":
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        return bench.measure_graphs({"": bench.Graph(calls)}, BENCH_SECONDS)[""]
    return bench.median_seconds(calls[0], device, BENCH_SECONDS)


def measured(case: BenchCase, pools: bench.Pools, bandwidth: float) -> dict[str, object]:
    config, device = bench.CONFIGS[case.config], pools.device
    cold_bytes = 0
    if device.type == "cuda":
        cold_bytes = COLD * torch.cuda.get_device_properties(device).L2_cache_size
    copies = bench.num_copies(config, case.format, case.batch, cold_bytes)
    steps = bench.make_steps(config, case.heads, case.batch, copies, pools)
    out = torch.empty(steps[0].query.shape, dtype=torch.bfloat16, device=device)
    scratch = workspace(steps[0])
    calls = [bench.operator_call(step, out, scratch) for step in steps]
    seconds = _seconds(calls * -(-FEWEST_CALLS // copies), device)
    require(bool(out.isfinite().all()), "out holds numbers that are not finite")
    num_bytes = case.batch * (WINDOW + config.width) * SLOT_BYTES[case.format]
    return {
        **case._asdict(),
        "slots": WINDOW + config.width,
        "us": seconds * 1e6,
        "gb_per_s": num_bytes / seconds / 1e9,
        "floor_share": num_bytes / bandwidth / seconds,
    }


# --- where it runs


def facts(check: Check) -> dict[str, Any]:
    """What a bug report needs."""
    device, info = check.subject.device, dsv4.build_info()
    result: dict[str, Any] = {
        "dsv4": dsv4.__version__,
        "torch": torch.__version__,
        "date": f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "cpu": f"{cpu_name()}, {cpu_threads()} threads, {info['simd']}",
        "build_info": info,
    }
    if device.type != "cuda":
        return {**result, "device": "cpu", "engine": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    serving = serving_engine()
    return {
        **result,
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "memory_gb": round(properties.total_memory / 1e9),
        "l2_mb": round(properties.L2_cache_size / 1e6),
        "state": bench.clocks(device),
        "torch_cuda": torch.version.cuda,
        "engine": f"{serving['name']}, compiled for {serving['targets']}",
    }


def serving_engine() -> dict[str, Any]:
    """Of build_info(): what serves the GPU."""
    # The library asks its engines in this order. On a machine with GPUs of several kinds the first
    # that is usable may serve another one.
    engines = dsv4.build_info()["engines"]
    return next(engine for engine in engines if engine["usable"] and engine["name"] != "cpu")


def head(facts: dict[str, Any]) -> str:
    info = facts["build_info"]
    lines = [f"dsv4     {facts['dsv4']}, torch {facts['torch']}, {facts['date']}"]
    if facts["device"] != "cpu":
        lines += [
            f"GPU      {facts['device']}, compute capability {facts['compute_capability']}, "
            f"{facts['sms']} SMs, {facts['memory_gb']} GB, L2 {facts['l2_mb']} MB",
            f"driver   {facts['state']}",
            f"CUDA     up to {info['driver']} by the driver, {info['cuda_runtime']} in dsv4, "
            f"{facts['torch_cuda']} in torch",
        ]
    lines += [f"engine   {facts['engine']}", f"CPU      {facts['cpu']}"]
    return "\n".join(lines)


# --- the program


class ContextLost(Exception):
    """No call can follow on this GPU within this process."""


class Report:
    """Says results as they come, and keeps them for the file."""

    def __init__(self, check: Check, file: Path | None):
        self.file = file
        self.start = time.monotonic()
        self.data: dict[str, Any] = {
            "verdict": "did not finish",
            "facts": facts(check),
            "forms": [],
            "bench": [],
        }
        self.write()
        say(head(self.data["facts"]))

    def write(self) -> None:
        if self.file is not None:
            self.file.write_text(json.dumps(self.data, indent=1) + "\n")

    def form(self, name: str, failures: list[str], trials: int, worst: float, start: float) -> None:
        seconds = time.monotonic() - start
        self.data["forms"].append(
            {
                "name": name,
                "trials": trials,
                "failures": failures,
                "worst": worst,
                "seconds": seconds,
            }
        )
        self.write()
        passed = f"{trials - len(failures)} of {trials}"
        say(
            f"{name:18} {FORMS[name].about:30} {'FAIL' if failures else 'pass'}  {passed:>10}  "
            f"worst {worst:4.2f}  {seconds:5.1f} s"
        )
        for failure in failures[:FAILURES_SHOWN]:
            say(f"    {failure}")
        if len(failures) > FAILURES_SHOWN:
            say(f"    and {len(failures) - FAILURES_SHOWN} more")

    def failures(self) -> int:
        return sum(len(form["failures"]) for form in self.data["forms"]) + sum(
            "error" in line for line in self.data["bench"]
        )

    def finish(self, otherwise: str = "") -> int:
        """Says and writes the verdict; the exit code."""
        trials = sum(form["trials"] for form in self.data["forms"])
        problem = otherwise or (f"{self.failures()} failed" if self.failures() else "")
        if not trials and not self.data["bench"]:
            problem = problem or "nothing was tried"
        verdict = f"FAIL: {problem}" if problem else "PASS"
        self.data["verdict"] = verdict
        say(f"\n{verdict} ({trials} trials in {time.monotonic() - self.start:.0f} s)")
        self.write()
        return 1 if problem else 0


@contextlib.contextmanager
def watched(check: Check, report: Report, what: str) -> Iterator[None]:
    """Ends the program if a GPU does not answer: nothing can stop a kernel that never ends."""

    def give_up() -> None:
        code = report.finish(f"{what}: no answer after {LONGEST_TRIAL:.0f} s, the GPU hangs")
        os._exit(code)

    timer = threading.Timer(LONGEST_TRIAL, give_up)
    timer.daemon = True
    if check.subject.device.type == "cuda":
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _sentence(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0] or "no message"
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"


def _is_alive(device: torch.device) -> bool:
    """Whether the device still answers after an error."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        return torch.ones(1, device=device).add_(1.0).item() == 2.0
    except RuntimeError:
        return False


def run_form(check: Check, name: str, report: Report) -> None:
    """Runs the trials of a form. Raises ContextLost if no other can follow."""
    start, failures, worst, num_trials = time.monotonic(), [], 0.0, 0
    torch.manual_seed(0)
    trials = FORMS[name].trials(check)
    label = "making the first problem"
    alive = True
    while alive:
        try:
            with watched(check, report, f"{name}, {label}"):
                trial = next(trials, None)
                if trial is None:
                    break
                label, num_trials = trial.label, num_trials + 1
                worst = max(worst, trial.run())
        except Exception as error:  # whatever it is, the other forms are wanted
            num_trials = max(num_trials, 1)
            failures.append(f"{label}: {_sentence(error)}")
            alive = _is_alive(check.subject.device)
    report.form(name, failures, num_trials, worst, start)
    if not alive:
        raise ContextLost(name)


def run_bench(check: Check, cases: Sequence[BenchCase], report: Report) -> None:
    """Measures the cases. Raises ContextLost if nothing can follow an error."""
    device = check.subject.device

    def attempt(label: str, measure: Callable[[], Any]) -> Any:
        try:
            with watched(check, report, label):
                return measure()
        except Exception as error:  # whatever it is, the other cases are wanted
            report.data["bench"].append({"case": label, "error": _sentence(error)})
            say(f"{label} FAIL {_sentence(error)}")
            if not _is_alive(device):
                raise ContextLost(label) from error
            return None

    bandwidth = attempt("copy", partial(copy_bandwidth, device))
    if bandwidth is None:
        return
    report.data["copy_gb_per_s"] = bandwidth / 1e9
    say(
        f"\nA copy of memory moves {bandwidth / 1e9:,.0f} GB/s, read and written: the floor is the "
        "time that the slots'\nbytes take at that. Slots are cold, in CUDA graphs; medians.\n"
        f"{'KV':6} {'heads':>5} {'batch':>5} {'slots':>6} {'us':>9} {'GB/s':>6} {'of floor':>8}"
    )
    pools = None
    for case in cases:
        if pools is None or pools.format != case.format:
            pools = None  # its memory is needed
            pools = bench.Pools(case.format, POOL_SLOTS[device.type], device)
        label = f"{case.format:6} {case.heads:5} {case.batch:5}"
        line = attempt(label, partial(measured, case, pools, bandwidth))
        if line is None:
            continue
        report.data["bench"].append(line)
        say(
            f"{label} {line['slots']:6,} {line['us']:9.2f} {line['gb_per_s']:6.0f} "
            f"{line['floor_share']:8.0%}"
        )


_LEGEND = """
worst: the largest error as a share of what is allowed. Against the CPU engine, 2^-6 of the largest
number of the same row and head of out, 2^-14 of max(1, |lse|); small decodes also against float64,
twice the error of a bf16 computation and half a bf16 step. Bytes and tables must be equal."""


def run(
    check: Check, names: Sequence[str], cases: Sequence[BenchCase], file: Path | None = None
) -> int:
    """Runs forms and bench cases on the subject, saying each; 0 if all passed, else 1."""
    report = Report(check, file)
    names = [
        name for name in names if check.subject.device.type == "cuda" or not FORMS[name].needs_gpu
    ]
    progress = Progress(len(names) + 1)
    if names:
        say()
    try:
        for name in names:
            progress.step(name)
            run_form(check, name, report)
            progress.clear()
        if names:
            say(_LEGEND)
        if cases:
            run_bench(check, cases, report)
    except ContextLost as error:
        return report.finish(
            f"after an error in {error} the GPU answers no more; the rest did not run"
        )
    return report.finish()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dsv4 check",
        description="Runs hostile decodes of every form and compares them: on the current GPU with "
        "the CPU engine, on the CPU with float64. Exits with 0 if all passed, 1 if something "
        "failed, 2 if there is no usable GPU for --on-gpu.",
        epilog="Forms: "
        + "; ".join(f"{name} ({form.about})" for name, form in FORMS.items())
        + f"; {BENCH} (times, on a GPU).",
    )
    parser.add_argument(
        "--on-gpu",
        action="store_true",
        help="check the GPU (CUDA_VISIBLE_DEVICES chooses one); else the CPU engine",
    )
    parser.add_argument("--quick", action="store_true", help="fewer head counts and page sizes")
    parser.add_argument(
        "--forms", nargs="+", choices=[*FORMS, BENCH], metavar="NAME", help="these only"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    return parser


def main(argv: list[str]) -> int:
    """Runs the check; 0 if all passed, 1 if something failed, 2 if there is no usable GPU."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(cpu_threads())
    wanted = options.forms or [*FORMS, BENCH]
    names = [name for name in FORMS if name in wanted]
    if not options.on_gpu:
        sizes = QUICK_ON_CPU if options.quick else ON_CPU
        return run(Check(CPU, None, sizes), names, [], options.json)
    device, reason = usable_gpu()
    if device is not None and not _is_alive(device):
        device, reason = None, "torch cannot add two numbers on it"
    if device is None:
        sys.stderr.write(
            f"no usable GPU: {reason} (torch {torch.__version__}, "
            f"CUDA {torch.version.cuda or 'none'}).\n{dsv4.report()}\n"
        )
        return 2
    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    cases = [case for case in BENCH_CASES if not options.quick or case.heads == 64]
    sizes = QUICK if options.quick else FULL
    rounds = serving_engine()["rounds_e4m3_weights"]
    weights = torch.float8_e4m3fn if rounds else torch.bfloat16
    check = Check(Place(device), CPU, sizes, weights)
    return run(check, names, cases if BENCH in wanted else [], options.json)
