"""The happens-before checker: each micro-kernel of kernels/races.cu is right, and lacks one
synchronisation when asked to. The checker must be silent about the first and must name what is
missing in the second, in eager mode too, where outputs are often right all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch

import simulator

KERNELS = Path(__file__).parent / "kernels"
MODES = [("eager", 1), ("lazy", 1), ("random", 1), ("random", 2), ("random", 3)]

SYNC = "missing: synchronisation"
PROXY = "missing: fence.proxy.async"
COPY = "missing: a wait on its mbarrier"


@dataclass
class Kernel:
    """One template of races.cu. `missing` says, for each number, what the report must say."""

    name: str
    missing: dict[int, str]
    expected: Callable[[], torch.Tensor] | None = None  # first argument afterwards
    block: int = 64
    grid: int = 1
    cluster: int = 1
    arguments: Callable[[], list[torch.Tensor]] = field(default=lambda: [torch.zeros(256)])
    also_right: tuple[int, ...] = ()  # numbers that are other right ways
    right_output: tuple[int, ...] = ()  # numbers whose outputs are right in eager mode nonetheless
    output: int = 0


def ramp(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32)


def with_input(n: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.zeros(n), ramp(n)]


COMMON = [
    Kernel("exchange", {1: SYNC, 2: SYNC}, lambda: ramp(64)),
    Kernel(
        "bytes",
        {1: SYNC},
        lambda: torch.arange(64, dtype=torch.uint8) ^ 1,
        arguments=lambda: [torch.zeros(64, dtype=torch.uint8)],
    ),
    Kernel("many_readers", {1: SYNC}, lambda: torch.full((256,), 3.0), block=256),
    Kernel("named_barrier", {1: SYNC, 2: SYNC}, lambda: torch.ones(32), right_output=(1, 2)),
    Kernel(
        "handshake", {1: SYNC, 2: "not ordered after its initialisation"}, lambda: torch.ones(32)
    ),
    Kernel(
        "shared_counter",
        {1: SYNC, 2: SYNC},
        lambda: torch.full((64,), 64, dtype=torch.int32),
        arguments=lambda: [torch.zeros(64, dtype=torch.int32)],
        right_output=(1,),
    ),
    Kernel("shared_flag", {1: SYNC, 2: SYNC}, lambda: torch.ones(32), right_output=(1, 2)),
    Kernel(
        "load",
        {
            1: COPY,
            2: "lint: .* without fence.mbarrier_init",
            3: "not ordered after its initialisation",
        },
        lambda: ramp(64),
        arguments=with_input(64),
        right_output=(2,),
    ),
    Kernel("load_over", {1: PROXY}, lambda: ramp(64), arguments=with_input(64), right_output=(1,)),
    Kernel(
        "store",
        {1: PROXY, 2: "a bulk group of warp 0", 3: "may exit while", 4: SYNC},
        lambda: ramp(64),
        also_right=(5,),
        right_output=(1, 3),
    ),
    Kernel(
        "ring",
        {1: SYNC, 2: COPY, 3: SYNC},
        lambda: ramp(192).reshape(6, 32).sum(0),
        arguments=lambda: [torch.zeros(32), ramp(192)],
    ),
    Kernel(
        "group_copy",
        {1: "missing: cp.async.wait_group", 2: "."},
        lambda: ramp(256).reshape(4, 64).flip(0, 1),
        arguments=with_input(256),
    ),
    Kernel(
        "mbarrier_copy",
        {1: "missing: cp.async.wait_group"},
        lambda: ramp(256).reshape(4, 64).flip(0, 1),
        arguments=with_input(256),
    ),
    Kernel(
        "copy_then_store",
        {1: PROXY},
        lambda: ramp(256),
        arguments=with_input(256),
        right_output=(1,),
    ),
    Kernel(
        "read_remote",
        {1: SYNC, 2: "which has exited", 3: SYNC},
        lambda: ramp(128).reshape(2, 64).flip(0, 1),
        grid=2,
        cluster=2,
        right_output=(3,),
    ),
    Kernel(
        "arrive_remote",
        {1: SYNC, 2: SYNC},
        lambda: torch.ones(64),
        grid=2,
        cluster=2,
        right_output=(2,),
    ),
    Kernel(
        "global_flag",
        {1: SYNC, 2: SYNC, 3: SYNC, 4: SYNC},
        lambda: ramp(64).flip(0),
        grid=2,
        arguments=lambda: [torch.zeros(64), torch.zeros(1, dtype=torch.int32), torch.zeros(64)],
        output=2,
        right_output=(1, 2, 3, 4),
    ),
    Kernel(
        "global_store",
        {1: SYNC, 2: SYNC, 3: SYNC},
        lambda: ramp(64),
        grid=2,
        arguments=lambda: [torch.zeros(64), torch.zeros(1, dtype=torch.int32), torch.zeros(64)],
        output=2,
        right_output=(1, 2, 3),
    ),
    Kernel(
        "last_block",
        {1: SYNC, 2: SYNC},
        lambda: torch.full((64,), 12.0),
        grid=3,
        arguments=lambda: [torch.zeros(192), torch.zeros(1, dtype=torch.int32), torch.zeros(64)],
        output=2,
        right_output=(1, 2),
    ),
    Kernel(
        "multiply",
        {
            1: PROXY,
            2: SYNC,
            3: "missing: wgmma.fence",
            4: "missing: wgmma.wait_group",
        },
        lambda: torch.full((512,), 48.0),
        block=128,
        arguments=lambda: [torch.zeros(512)],
        also_right=(5,),
        right_output=(1, 3, 4),
    ),
]

BITS_OF_16 = 0x41800000  # of 16.0


def full(bits: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.full((1024,), bits, dtype=torch.int32)


def tensor_kernel(
    name: str, missing: dict[int, str], expected: int | None = BITS_OF_16, **more
) -> Kernel:
    return Kernel(
        name,
        missing,
        None if expected is None else full(expected),
        block=128,
        arguments=lambda: [torch.zeros(1024, dtype=torch.int32)],
        **more,
    )


BEFORE = "missing: tcgen05.fence::before_thread_sync"
AFTER = "missing: tcgen05.fence::after_thread_sync"
TENSOR = [
    tensor_kernel("tensor_address", {1: SYNC}, None),
    tensor_kernel(
        "tensor_product",
        {1: PROXY, 2: SYNC, 3: "missing: tcgen05.commit", 4: AFTER, 5: "register"},
        right_output=(1, 2, 4, 5),
    ),
    tensor_kernel("tensor_reuse", {1: "missing: tcgen05.commit"}, None),
    tensor_kernel(
        "tensor_operand",
        {1: "missing: tcgen05.wait::st", 2: BEFORE, 3: "missing", 4: AFTER},
        right_output=(1, 2, 4),
    ),
    tensor_kernel(
        "tensor_overwrite",
        {1: "missing: tcgen05.wait::ld", 2: BEFORE, 3: "missing", 4: AFTER},
        0x42000000,  # 32.0
        right_output=(1, 2, 3, 4),
    ),
    tensor_kernel("tensor_halves", {1: "missing: tcgen05.wait::ld"}, None),
    tensor_kernel(
        "tensor_same_warp",
        {1: "missing: tcgen05.wait::st", 2: "missing: tcgen05.wait::ld", 3: "tcgen05.wait::st"},
        1,
        right_output=(1, 2, 3),
    ),
]


@cache
def module(target: str) -> simulator.Module:
    kernels = COMMON if target == "90a" else TENSOR
    header = (KERNELS / "sync.cuh").read_text()
    lines = [(KERNELS / "races.cu").read_text().replace('#include "sync.cuh"', header)]
    for kernel in kernels:
        numbers = {0, *kernel.missing, *kernel.also_right}
        lines += [instantiation(kernel.name, n) for n in sorted(numbers)]
    if target == "90a":
        lines += [instantiation("first_grid", 0), instantiation("registers", 240)]
        lines += [instantiation("second_grid", n) for n in range(3)]
    else:
        lines += [instantiation("tensor_columns", n) for n in (128, 256)]
    return simulator.compile("\n".join(lines), target)


def instantiation(name: str, number: int) -> str:
    return f"template __global__ decltype({name}<{number}>) {name}<{number}>;"


def entry(target: str, name: str, number: int) -> str:
    """The mangled name of a template's instance."""
    pattern = re.compile(rf"_Z{len(name)}{name}ILi{number}E")
    (found,) = [kernel for kernel in module(target).kernels if pattern.match(kernel)]
    return found


def run(target: str, kernel: Kernel, number: int, mode: str = "eager", seed: int = 1):
    """What the launch reports, and its output."""
    arguments = kernel.arguments()
    try:
        result = module(target).launch(
            entry(target, kernel.name, number),
            grid=kernel.grid,
            block=kernel.block,
            cluster=kernel.cluster,
            arguments=arguments,
            options=simulator.options(mode, seed=seed, budget=16),
            allow_races=True,
        )
    except simulator.SimulatorError as error:
        return [str(error)], arguments[kernel.output]
    reports = [*result.races, *(f"lint: {text}" for text in result.lints)]
    return reports, arguments[kernel.output]


ALL = [("90a", kernel) for kernel in COMMON] + [("100a", kernel) for kernel in TENSOR]
RIGHT = [(t, k, n) for t, k in ALL for n in (0, *k.also_right)]
BROKEN = [(t, k, n) for t, k in ALL for n in k.missing]


def name_of(case) -> str:
    return f"{case[1].name}-{case[2]}"


def holds(kernel: Kernel, output: torch.Tensor) -> bool:
    expected = kernel.expected().flatten()
    return torch.equal(output.flatten()[: expected.numel()], expected)


@pytest.mark.parametrize("case", RIGHT, ids=name_of)
def test_right_kernels_are_silent(case):
    target, kernel, number = case
    for mode, seed in MODES:
        reports, output = run(target, kernel, number, mode, seed)
        assert reports == []
        assert kernel.expected is None or holds(kernel, output)


@pytest.mark.parametrize("case", BROKEN, ids=name_of)
def test_missing_synchronisation_is_named(case):
    target, kernel, number = case
    reports, output = run(target, kernel, number)
    assert any(re.search(kernel.missing[number], report) for report in reports), reports
    if number in kernel.right_output:
        assert holds(kernel, output)


def test_fences_of_tensor_memory_can_be_left_out():
    """As for kernels of the CuTe DSL, which have none: waits and barriers are still asked for."""
    relaxed = simulator.options(tensor_fences=False)
    for name, number, silent in [
        ("tensor_overwrite", 2, True),
        ("tensor_overwrite", 4, True),
        ("tensor_operand", 3, False),
        ("tensor_operand", 2, True),
        ("tensor_operand", 1, False),
    ]:
        result = module("100a").launch(
            entry("100a", name, number),
            block=128,
            arguments=[torch.zeros(1024, dtype=torch.int32)],
            options=relaxed,
            allow_races=True,
        )
        assert (result.races == []) == silent, (name, number)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_dependent_launch_waits_for_what_it_reads(number):
    data, other, out = torch.zeros(64), torch.ones(64), torch.zeros(64)
    first = module("90a").launch(entry("90a", "first_grid", 0), block=64, arguments=[data])
    reports = {}
    for after in (None, first):
        result = module("90a").launch(
            entry("90a", "second_grid", number),
            block=64,
            arguments=[out, data, other],
            options=simulator.options(after=after),
            allow_races=True,
        )
        reports[after] = result.races
    assert torch.equal(out, ramp(64) + 1)
    assert reports[None] == []
    assert [("missing: griddepcontrol.wait" in report) for report in reports[first]] == [
        True
    ] * min(number, 1)


def test_races_are_errors_unless_allowed():
    with pytest.raises(simulator.SimulatorError, match="read after write in shared memory"):
        module("90a").launch(entry("90a", "exchange", 1), block=64, arguments=[torch.zeros(64)])
    unchecked = module("90a").launch(
        entry("90a", "exchange", 1),
        block=64,
        arguments=[torch.zeros(64)],
        options=simulator.options(check=False),
    )
    assert unchecked.races == []


def test_too_many_reports_are_an_error():
    options = simulator.options()
    options.max_reports = 1
    with pytest.raises(simulator.SimulatorError, match="more than 1 reports of the checker"):
        module("90a").launch(
            entry("90a", "many_readers", 1),
            block=256,
            arguments=[torch.zeros(256)],
            options=options,
        )


def lints(target: str, name: str, number: int, **launch) -> list[str]:
    return module(target).launch(entry(target, name, number), **launch).lints


def test_lint_of_shared_memory():
    arguments = [torch.zeros(64)]
    fits = 227 * 1024 - 1024  # the static part is rounded up to 1024
    for dynamic, expected in [
        (fits, []),
        (fits + 1, ["232449 bytes of shared memory a block: the limit of sm_90a is 232448"]),
    ]:
        found = lints(
            "90a", "exchange", 0, block=64, dynamic_shared_bytes=dynamic, arguments=arguments
        )
        assert found == expected


@pytest.mark.parametrize(
    ("registers", "expected"),
    [
        (136, []),
        (128, ["setmaxnreg: the warps of a block ask for 33792 registers, it has 32768"]),
        (
            257,
            [
                "257 registers a thread: the limit is 255",
                "264 registers x 256 threads: an SM has 65536",
            ],
        ),
        (0, []),
    ],
)
def test_lint_of_registers(registers, expected):
    options = simulator.options(registers_per_thread=registers)
    assert lints("90a", "registers", 240, block=256, options=options) == expected


def test_lint_of_tensor_memory():
    # 100 KiB of shared memory let two blocks run on an SM.
    shared = {"dynamic_shared_bytes": 100 * 1024}
    assert lints("100a", "tensor_columns", 256, grid=4, **shared) == []
    assert lints("100a", "tensor_columns", 128, grid=4) == []
    (found,) = lints("100a", "tensor_columns", 256, grid=4)
    assert "each allocates 256 of 512 columns of tensor memory" in found
    assert lints("100a", "tensor_columns", 256, grid=2) == []
