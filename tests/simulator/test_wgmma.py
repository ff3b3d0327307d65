"""wgmma: values of every format and layout against numpy, asynchrony, and rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy
import pytest
import torch

import simulator
from simulator.matrices import BITS, SPANS, dense_layout, encode, random_integers, wgmma_descriptor
from simulator.schedules import SCHEDULE_NAMES, SCHEDULES
from simulator.snippets import ptx

SHARED_BEGIN = 1024  # address of dynamic shared memory, also on hardware
IMAGE_BYTES = 64 * 1024


class Form(NamedTuple):
    """One opcode with its immediates."""

    n: int
    d: str
    a: str
    b: str
    source: str = "SS"  # or RS: A in registers
    transpose_a: int = 0
    transpose_b: int = 0
    sign_a: int = 1
    sign_b: int = 1
    saturate: bool = False

    @property
    def k(self) -> int:
        return 256 // BITS[self.a]

    @property
    def registers(self) -> int:
        return self.n // (4 if self.d == "f16" else 2)

    @property
    def name(self) -> str:
        signs = f"{self.sign_a}{self.sign_b}".replace("-1", "n")
        return (
            f"wgmma_{self.n}_{self.d}_{self.a}_{self.b}_{self.source}_{self.transpose_a}"
            f"{self.transpose_b}_{signs}{'_sat' if self.saturate else ''}"
        )


FORMS = [
    *(Form(n, "f32", "bf16", "bf16") for n in (8, 24, 64, 256)),
    Form(64, "f32", "bf16", "bf16", "RS"),
    Form(64, "f32", "f16", "f16"),
    Form(256, "f16", "f16", "f16"),
    Form(24, "f16", "f16", "f16", "RS"),
    Form(32, "f32", "tf32", "tf32"),
    Form(32, "f32", "tf32", "tf32", "RS"),
    Form(64, "f32", "e4m3", "e5m2"),
    Form(64, "f32", "e5m2", "e4m3", "RS"),
    Form(16, "f16", "e4m3", "e4m3"),
    Form(32, "s32", "s8", "u8"),
    Form(224, "s32", "u8", "u8"),
    Form(32, "s32", "u8", "s8", "RS"),
    Form(8, "s32", "s8", "s8", saturate=True),
    Form(8, "f32", "bf16", "bf16", sign_a=-1),
    Form(8, "f32", "bf16", "bf16", sign_b=-1),
    Form(8, "f32", "bf16", "bf16", sign_a=-1, sign_b=-1),
]
TRANSPOSED = [
    Form(64, "f32", "bf16", "bf16", transpose_a=1),
    Form(64, "f32", "bf16", "bf16", transpose_b=1),
    Form(128, "f32", "f16", "f16", transpose_a=1, transpose_b=1),
    Form(64, "f32", "bf16", "bf16", "RS", transpose_b=1),
]


def kernel_text(form: Form) -> str:
    """A warpgroup multiplies once: an image of shared memory in, registers [thread][register] in
    and out."""
    d = [f"d[{i}]" for i in range(form.registers)]
    outputs = ", ".join(f'"+r"({register})' for register in d)
    names = ", ".join(f"%{i}" for i in range(form.registers))
    next_operand = form.registers
    if form.source == "RS":
        inputs = ", ".join(f'"r"(a[{i}])' for i in range(4))
        a = "{" + ", ".join(f"%{next_operand + i}" for i in range(4)) + "}"
        next_operand += 4
    else:
        inputs, a = '"l"(a_descriptor)', f"%{next_operand}"
        next_operand += 1
    immediates = ""
    if form.d != "s32":
        immediates = f", {form.sign_a}, {form.sign_b}"
    if BITS[form.a] == 16:
        immediates += f", {form.transpose_a}" if form.source == "SS" else ""
        immediates += f", {form.transpose_b}"
    saturate = ".satfinite" if form.saturate else ""
    return f"""
KERNEL {form.name}(const uint4* image, const uint32_t* a_registers, uint32_t* d_registers,
                   uint64_t a_descriptor, uint64_t b_descriptor, int scale_d) {{
  load_image(image);
  uint32_t a[4], d[{form.registers}];
  for (int i = 0; i < 4; ++i) a[i] = a_registers[threadIdx.x * 4 + i];
  for (int i = 0; i < {form.registers}; ++i) d[i] = d_registers[threadIdx.x * {form.registers} + i];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{next_operand + 1}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{form.n}k{form.k}{saturate}.{form.d}.{form.a}.{form.b} "
      "{{{names}}}, {a}, %{next_operand}, p{immediates};\\n}}"
      : {outputs} : {inputs}, "l"(b_descriptor), "r"(scale_d));
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < {form.registers}; ++i) d_registers[threadIdx.x * {form.registers} + i] = d[i];
}}
"""


def source_text(forms: Iterable[Form]) -> str:
    return f"""
#include <cstdint>
#define KERNEL extern "C" __global__ void
extern __shared__ uint4 shared[];
__device__ void load_image(const uint4* image) {{
  for (int i = threadIdx.x; i < {IMAGE_BYTES // 16}; i += blockDim.x) shared[i] = image[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}}
{"".join(kernel_text(form) for form in forms)}
"""


SOURCE = source_text(dict.fromkeys(FORMS + TRANSPOSED))


@pytest.fixture(scope="module")
def kernels():
    return simulator.compile(SOURCE, "90a")


# --- fragments, as the PTX ISA draws them ---------------------------------------------------------


def thread_position(thread):
    """Row of a thread's first element, and its number among the four threads of the row."""
    return thread // 32 * 16 + thread % 32 // 4, thread % 4


def a_fragment(codes: numpy.ndarray, bits: int) -> numpy.ndarray:
    """Registers [128][4] of A [64][K]."""
    per_register = 32 // bits
    registers = numpy.zeros((128, 4), dtype=numpy.uint32)
    for thread in range(128):
        row, t = thread_position(thread)
        for register in range(4):
            for e in range(per_register):
                step = t * per_register + e + (4 * per_register if register >= 2 else 0)
                code = codes[row + (8 if register % 2 else 0), step]
                registers[thread, register] |= code << numpy.uint32(bits * e)
    return registers


def d_places(n: int):
    """(thread, register) of each accumulator [64][n] of 32 bits."""
    row, column = numpy.indices((64, n))
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    register = column // 8 * 4 + row % 16 // 8 * 2 + column % 2
    return thread, register


def pack_d(d: numpy.ndarray, fmt: str) -> numpy.ndarray:
    n = d.shape[1]
    thread, register = d_places(n)
    if fmt == "f16":  # a register holds both columns of a thread
        registers = numpy.zeros((128, n // 2), dtype=numpy.uint16)
        registers[thread, register] = d.astype(numpy.float16).view(numpy.uint16)
        return registers.view(numpy.uint32)
    registers = numpy.zeros((128, n // 2), dtype=numpy.uint32)
    words = d.astype(numpy.float32 if fmt == "f32" else numpy.int32)
    registers[thread, register] = words.view(numpy.uint32)
    return registers


def unpack_d(registers: numpy.ndarray, n: int, fmt: str) -> numpy.ndarray:
    thread, register = d_places(n)
    if fmt == "f16":
        return registers.view(numpy.float16)[thread, register].astype(numpy.float64)
    dtype = numpy.float32 if fmt == "f32" else numpy.int32
    return registers.view(dtype)[thread, register].astype(numpy.float64)


# --- values ---------------------------------------------------------------------------------------


def run(
    kernels,
    form: Form,
    span_a=128,
    span_b=128,
    scale_d=1,
    gap=0,
    shift=0,
    pattern=0,
    options=None,
    d=None,
):
    """Multiplies random integers; returns accumulators, expected ones and the launch. B's tile
    begins `shift` bytes behind a multiple of 1024, its swizzle pattern `pattern` bytes."""
    rng = numpy.random.default_rng(form.n + span_a + 7 * span_b + shift)
    a = random_integers(form.a, (64, form.k), rng)
    b = random_integers(form.b, (form.n, form.k), rng)
    if d is None:
        d = rng.integers(-20, 20, (64, form.n))
    image = numpy.zeros(SHARED_BEGIN + IMAGE_BYTES, dtype=numpy.uint8)
    layout_a, end = dense_layout(
        SHARED_BEGIN, 64, form.k, BITS[form.a], span_a, bool(form.transpose_a), gap
    )
    start_b = -(-end // 1024) * 1024 + shift
    layout_b, end = dense_layout(
        start_b, form.n, form.k, BITS[form.b], span_b, bool(form.transpose_b), gap
    )
    layout_b.pattern = pattern
    assert end <= len(image)
    codes_a, codes_b = encode(a, form.a), encode(b, form.b)
    layout_a.store(image, codes_a, BITS[form.a])
    layout_b.store(image, codes_b, BITS[form.b])
    registers = torch.from_numpy(pack_d(d, form.d).view(numpy.int32).copy())
    launch = kernels.launch(
        form.name,
        block=128,
        dynamic_shared_bytes=IMAGE_BYTES,
        arguments=[
            torch.from_numpy(image[SHARED_BEGIN:].copy()),
            torch.from_numpy(a_fragment(codes_a, BITS[form.a]).view(numpy.int32)),
            registers,
            wgmma_descriptor(layout_a),
            wgmma_descriptor(layout_b),
            scale_d,
        ],
        options=options,
    )
    product = form.sign_a * form.sign_b * (a.astype(numpy.int64) @ b.astype(numpy.int64).T)
    expected = product + (d if scale_d else 0)
    return unpack_d(registers.numpy().view(numpy.uint32), form.n, form.d), expected, launch


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("scale_d", [0, 1])
def test_values(kernels, form, scale_d):
    got, expected, _ = run(kernels, form, scale_d=scale_d)
    assert numpy.array_equal(got, expected)


@pytest.mark.parametrize("span_a", SPANS)
@pytest.mark.parametrize("span_b", SPANS)
@pytest.mark.parametrize(
    "form", [Form(64, "f32", "bf16", "bf16"), *TRANSPOSED], ids=lambda f: f.name
)
def test_layouts(kernels, form, span_a, span_b):
    got, expected, _ = run(kernels, form, span_a, span_b, gap=1024)
    assert numpy.array_equal(got, expected)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("form", [Form(32, "f32", "tf32", "tf32"), Form(64, "f32", "e4m3", "e5m2")])
def test_layouts_of_other_widths(kernels, form, span):
    got, expected, _ = run(kernels, form, span, span)
    assert numpy.array_equal(got, expected)


@pytest.mark.parametrize("shift", [32, 64, 96, 384])
def test_descriptor_inside_of_a_pattern(kernels, shift):
    """A step along K, or a tile between 1024-byte boundaries: the swizzle stays absolute."""
    got, expected, _ = run(kernels, Form(64, "f32", "bf16", "bf16"), shift=shift)
    assert numpy.array_equal(got, expected)


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("lines", [1, 3, 7])
def test_base_offset(kernels, span, lines):
    """The pattern of B begins with its tile, as the descriptor says. So it was on an H200."""
    form = Form(64, "f32", "bf16", "bf16")
    got, expected, _ = run(kernels, form, span_b=span, shift=128 * lines, pattern=128 * lines)
    assert numpy.array_equal(got, expected)


def test_satfinite(kernels):
    largest = numpy.full((64, 8), 2**31 - 1)
    form = Form(8, "s32", "s8", "s8", saturate=True)
    got, expected, _ = run(kernels, form, d=largest)
    assert (expected > 2**31 - 1).any()
    assert numpy.array_equal(got, numpy.minimum(expected, 2**31 - 1))
    form = Form(32, "s32", "s8", "u8")
    got, expected, _ = run(kernels, form, d=numpy.full((64, 32), 2**31 - 1))
    assert numpy.array_equal(got, (expected + 2**31) % 2**32 - 2**31)


def test_not_a_number_and_infinity(kernels):
    """The accumulator passes through the update of floats."""
    d = numpy.zeros((64, 8))
    d[0, 0], d[1, 1] = numpy.inf, numpy.nan
    got, expected, _ = run(kernels, Form(8, "f32", "bf16", "bf16"), d=d)
    assert numpy.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("options", SCHEDULES, ids=SCHEDULE_NAMES)
def test_schedules(kernels, options):
    got, expected, _ = run(kernels, Form(256, "f32", "bf16", "bf16"), options=options)
    assert numpy.array_equal(got, expected)


def test_counters(kernels):
    _, _, launch = run(kernels, Form(256, "f32", "bf16", "bf16"))
    counters = launch.counters
    assert counters.matrix_instructions == {"wgmma.f32.bf16.bf16 M64 N256 SS": 1}
    assert counters.matrix_flop == 2 * 64 * 256 * 16
    assert counters.matrix_cycles == 128  # 4096 FLOP a cycle
    assert (
        counters.total.instructions["matrix"] == 4 * 4
    )  # fence, mma, commit and wait of each warp
    assert launch.unanchored == set()


# --- rules ----------------------------------------------------------------------------------------

# Shared memory of zeros, and descriptors of it: %d1 for both operands.
PROLOGUE = """
  mov.u32 %r2, 0;
  shl.b32 %r3, %r0, 3;
  add.u32 %r3, %r1, %r3;
  st.shared.v2.b32 [%r3], {%r2, %r2};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  shr.u32 %r4, %r1, 4;
  cvt.u64.u32 %d1, %r4;
  or.b64 %d1, %d1, 0x0000000800000000;
  mov.f32 %f0, 0f00000000;
  mov.f32 %f1, %f0;
  mov.f32 %f2, %f0;
  mov.f32 %f3, %f0;
  mov.f32 %f4, %f0;
  mov.f32 %f5, %f0;
  mov.f32 %f6, %f0;
  mov.f32 %f7, %f0;
"""
FENCE = "wgmma.fence.sync.aligned;"
MMA = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, "
    "%d1, %d1, 1, 1, 1, 0, 0;"
)
OTHER_MMA = MMA.replace("{%f0, %f1, %f2, %f3}", "{%f4, %f5, %f6, %f7}")
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
READ = "mov.f32 %f6, %f0;"


def run_statements(*statements: str, block: int = 128, options=None, **more):
    module = simulator.Module(ptx(PROLOGUE + "\n  ".join(statements), "sm_90a"))
    return module.launch("k", block=block, arguments=[torch.zeros(1)], options=options, **more)


def test_statements_as_they_should_be():
    run_statements(FENCE, MMA, MMA, COMMIT, WAIT, READ)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_accumulator_read_in_flight(mode):
    options = simulator.options(mode)
    for statements in ([FENCE, MMA, READ, COMMIT, WAIT], [FENCE, MMA, COMMIT, READ, WAIT]):
        with pytest.raises(simulator.SimulatorError, match="asynchronous instruction owns it"):
            run_statements(*statements, options=options)
    # A wait for all groups but one leaves the last in flight; uncommitted work is not waited for.
    wait_1 = "wgmma.wait_group.sync.aligned 1;"
    run_statements(
        FENCE,
        MMA,
        COMMIT,
        OTHER_MMA,
        COMMIT,
        wait_1,
        READ.replace("%f6", "%r9").replace("f32", "b32"),
        WAIT,
        options=options,
    )
    with pytest.raises(simulator.SimulatorError, match="asynchronous instruction owns it"):
        run_statements(
            FENCE, OTHER_MMA, COMMIT, MMA, COMMIT, wait_1, "mov.b32 %r9, %f0;", options=options
        )
    with pytest.raises(simulator.SimulatorError, match="asynchronous instruction owns it"):
        run_statements(FENCE, MMA, WAIT, READ, options=options)


def test_registers_of_a_written_in_flight():
    mma = MMA.replace("%d1, %d1, 1, 1, 1, 0, 0", "{%r10, %r11, %r12, %r13}, %d1, 1, 1, 1, 0")
    zeros = [f"mov.b32 %r{i}, 0;" for i in range(10, 14)]
    run_statements(*zeros, FENCE, mma, COMMIT, WAIT, zeros[0])
    run_statements(*zeros, FENCE, mma, COMMIT, "shl.b32 %r14, %r10, 1;", WAIT)  # a read is harmless
    with pytest.raises(simulator.SimulatorError, match="asynchronous instruction owns it"):
        run_statements(*zeros, FENCE, mma, COMMIT, zeros[0], WAIT)
    as_accumulator = mma.replace("{%r10, %r11, %r12, %r13}", "{%f0, %f1, %f2, %f3}").replace(
        "{%f0, %f1, %f2, %f3}", "{%f4, %f5, %f6, %f7}", 1
    )
    with pytest.raises(simulator.SimulatorError, match="a register of A is in use"):
        run_statements(FENCE, MMA, as_accumulator, COMMIT, WAIT)


def test_accumulators_of_another_shape_in_flight():
    moved = MMA.replace("{%f0, %f1, %f2, %f3}", "{%f1, %f2, %f3, %f4}")
    with pytest.raises(
        simulator.SimulatorError, match="accumulator 0 is in use by an operation in flight, and not"
    ):
        run_statements(FENCE, MMA, moved, COMMIT, WAIT)


def test_fence_is_needed():
    with pytest.raises(simulator.SimulatorError, match=r"before any wgmma\.fence"):
        run_statements(MMA, COMMIT, WAIT)


def test_partial_warpgroups():
    with pytest.raises(simulator.SimulatorError, match="no whole warpgroup"):
        run_statements(FENCE, MMA, COMMIT, WAIT, block=96)
    with pytest.raises(simulator.SimulatorError, match="all 32 lanes"):
        run_statements("setp.lt.u32 %p1, %r0, 16;", FENCE, f"@%p1 {MMA}", COMMIT, WAIT)
    three_warps = "setp.lt.u32 %p1, %r0, 96;"
    with pytest.raises(simulator.SimulatorError, match="3 of 4 warps have executed"):
        run_statements(three_warps, FENCE, f"@%p1 {MMA}", COMMIT, WAIT)
    with pytest.raises(simulator.SimulatorError, match="only 3 of 4 warps of a warpgroup"):
        run_statements(three_warps, FENCE, f"@%p1 {MMA}")


def test_warps_must_agree():
    differs = "setp.lt.u32 %p1, %r0, 96;"
    with pytest.raises(simulator.SimulatorError, match="execute different instructions"):
        run_statements(differs, FENCE, f"@%p1 {MMA}", f"@!%p1 {MMA}", COMMIT, WAIT)
    predicate = MMA.replace("%d1, 1,", "%d1, %p1,")
    with pytest.raises(simulator.SimulatorError, match="differ between warps"):
        run_statements(differs, FENCE, predicate, COMMIT, WAIT)
    with pytest.raises(simulator.SimulatorError, match="scale-d differs between lanes"):
        run_statements("setp.lt.u32 %p1, %r0, 16;", FENCE, predicate, COMMIT, WAIT)
    with pytest.raises(simulator.SimulatorError, match="the descriptor of B differs between lanes"):
        run_statements(
            "cvt.u64.u32 %d2, %r0;", FENCE, MMA.replace("%d1, %d1,", "%d1, %d2,"), COMMIT, WAIT
        )


def test_shared_memory_races():
    """Operands are read any time between the instruction and the wait, by the async proxy."""
    store = "st.shared.v2.b32 [%r3], {%r2, %r2};"
    overwritten = run_statements(
        FENCE, MMA, COMMIT, store, WAIT, allow_races=True, options=simulator.options("lazy")
    )
    assert any("wgmma" in race for race in overwritten.races)
    no_proxy_fence = run_statements(
        store, "bar.sync 0;", FENCE, MMA, COMMIT, WAIT, allow_races=True
    )
    assert any("fence.proxy.async" in race for race in no_proxy_fence.races)
    assert run_statements(FENCE, MMA, COMMIT, WAIT, store).races == []


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        (1 << 46, "bits 46-48"),
        (1 << 52, "bits 52-61"),
        (0x3FFF, "leads to shared address"),
    ],
)
def test_bad_descriptors(descriptor, message):
    with pytest.raises(simulator.SimulatorError, match=message):
        run_statements(f"or.b64 %d1, %d1, {descriptor};", FENCE, MMA, COMMIT, WAIT)


@pytest.mark.parametrize(
    "statement",
    [
        MMA.replace("m64n8k16", "m64n12k16"),
        MMA.replace("m64n8k16", "m64n264k16"),
        MMA.replace("m64n8k16", "m64n8k8"),
        MMA.replace("m64n8k16", "m128n8k16"),
        MMA.replace("bf16.bf16", "bf16.f16"),
        MMA.replace("f32.bf16", "f16.bf16"),
        MMA.replace("mma_async", "mma_async.sp"),
        MMA.replace("f32.bf16.bf16", "f32.bf16.bf16.satfinite"),
        MMA.replace("f32.bf16.bf16", "s32.b1.b1.and.popc").replace("k16", "k256"),
        MMA.replace("{%f0, %f1, %f2, %f3}", "{%f0, %f1, %f2}"),
        MMA.replace(", 0, 0;", ", 0;"),
        MMA.replace("1, 1, 0, 0;", "1, 2, 0, 0;"),
        MMA.replace("1, 1, 0, 0;", "1, 1, 0, 2;"),
        "wgmma.fence.aligned;",
        "wgmma.wait_group.sync.aligned;",
    ],
)
def test_unknown_forms(statement):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+"):
        simulator.Module(ptx(statement, "sm_90a")).decode("k")
