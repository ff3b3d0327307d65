"""mma.sync: values of every shape and format against numpy, block scaling, and rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy
import pytest
import torch

import simulator
from simulator.matrices import BITS, encode, random_integers
from simulator.snippets import ptx


class Form(NamedTuple):
    """One opcode."""

    k: int
    d: str
    a: str
    b: str
    kind: str = ""
    scales: int = 0  # of a row
    scale_type: str = "ue8m0"
    saturate: bool = False
    kind_first: bool = False  # before the shape, as many kernels have it

    @property
    def in_bytes(self) -> bool:
        return self.kind in ("f8f6f4", "mxf8f6f4")

    @property
    def element_bits(self) -> int:
        """Of an element in a register."""
        return 8 if self.in_bytes else BITS[self.a]

    @property
    def opcode(self) -> str:
        kind = f".kind::{self.kind}" if self.kind else ""
        scaled = f".block_scale.scale_vec::{self.scales}X" if self.scales else ""
        saturate = ".satfinite" if self.saturate else ""
        scale_type = f".{self.scale_type}" if self.scales else ""
        shape = f".m16n8k{self.k}.row.col"
        head = kind + scaled + shape if self.kind_first else shape + kind + scaled
        return f"mma.sync.aligned{head}{saturate}.{self.d}.{self.a}.{self.b}.{self.d}{scale_type}"

    @property
    def name(self) -> str:
        return self.opcode.replace("mma.sync.aligned.", "").replace(".", "_").replace("::", "_")


BASIC_FORMS = [
    Form(8, "f32", "f16", "f16"),
    Form(16, "f32", "f16", "f16"),
    Form(8, "f16", "f16", "f16"),
    Form(16, "f16", "f16", "f16"),
    Form(8, "f32", "bf16", "bf16"),
    Form(16, "f32", "bf16", "bf16"),
    Form(4, "f32", "tf32", "tf32"),
    Form(8, "f32", "tf32", "tf32"),
    Form(16, "f32", "e4m3", "e5m2"),
    Form(32, "f32", "e4m3", "e4m3"),
    Form(32, "f32", "e5m2", "e4m3"),
    Form(32, "f16", "e4m3", "e4m3"),
    Form(16, "s32", "s8", "u8"),
    Form(32, "s32", "u8", "s8"),
    Form(32, "s32", "s8", "s8", saturate=True),
]
SM120_FORMS = [
    Form(32, "f32", "e2m1", "e2m1", "f8f6f4"),
    Form(32, "f32", "e2m3", "e3m2", "f8f6f4"),
    Form(32, "f32", "e4m3", "e2m1", "f8f6f4"),
    Form(32, "f16", "e3m2", "e5m2", "f8f6f4"),
    Form(32, "f32", "e4m3", "e4m3", "mxf8f6f4", 1),
    Form(32, "f32", "e4m3", "e4m3", "mxf8f6f4", 1, kind_first=True),
    Form(32, "f32", "e2m1", "e2m3", "mxf8f6f4", 1),
    Form(64, "f32", "e2m1", "e2m1", "mxf4", 2),
    Form(64, "f32", "e2m1", "e2m1", "mxf4nvf4", 2),
    Form(64, "f32", "e2m1", "e2m1", "mxf4nvf4", 4, "ue4m3"),
]


def registers(form: Form) -> tuple[int, int, int]:
    """How many registers D, A and B have."""
    words_of_b = form.k * form.element_bits // 128
    return 2 if form.d == "f16" else 4, 2 * words_of_b, words_of_b


def kernel_text(form: Form, selectors=(0, 0, 0, 0)) -> str:
    """A warp multiplies once; operands come and go as registers [lane][register]."""
    num_d, num_a, num_b = registers(form)
    operands, next_operand = [], 0
    for count in (num_d, num_a, num_b, num_d):
        names = ", ".join(f"%{next_operand + i}" for i in range(count))
        operands.append(f"{{{names}}}")
        next_operand += count
    inputs = [f'"r"(a[{i}])' for i in range(num_a)] + [f'"r"(b[{i}])' for i in range(num_b)]
    inputs += [f'"r"(c[{i}])' for i in range(num_d)]
    if form.scales:
        byte_a, thread_a, byte_b, thread_b = selectors
        inputs += ['"r"(scales[0])', '"r"(scales[1])']
        operands += [
            f"%{next_operand}, {{{byte_a}, {thread_a}}}",
            f"%{next_operand + 1}, {{{byte_b}, {thread_b}}}",
        ]
    name = form.name + "".join(f"_{s}" for s in selectors)
    outputs = ", ".join(f'"=r"(d[{i}])' for i in range(num_d))
    return f"""
extern "C" __global__ void {name}(const uint32_t* all_a, const uint32_t* all_b,
                                  const uint32_t* all_c, const uint32_t* all_scales,
                                  uint32_t* all_d) {{
  const int lane = threadIdx.x;
  const uint32_t *a = all_a + lane * {num_a}, *b = all_b + lane * {num_b};
  const uint32_t* c = all_c + lane * {num_d};
  const uint32_t* scales = all_scales + lane * 2;
  uint32_t* d = all_d + lane * {num_d};
  asm volatile("{form.opcode} {", ".join(operands)};" : {outputs} : {", ".join(inputs)});
}}
"""


SELECTORS = {
    1: [(0, 0, 0, 0), (1, 1, 2, 3), (3, 0, 1, 2)],
    2: [(0, 0, 0, 0), (2, 1, 2, 3)],
    4: [(0, 0, 0, 0), (0, 1, 0, 2)],
}
F64 = """
extern "C" __global__ void f64(const double* a, const double* b, const double* c, double* d) {
  const int lane = threadIdx.x;
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};"
               : "=d"(d[2 * lane]), "=d"(d[2 * lane + 1])
               : "d"(a[lane]), "d"(b[lane]), "d"(c[2 * lane]), "d"(c[2 * lane + 1]));
}
"""
BASIC_SOURCE = "#include <cstdint>\n" + F64 + "".join(kernel_text(form) for form in BASIC_FORMS)
SM120_SOURCE = "#include <cstdint>\n" + "".join(
    kernel_text(form, selectors)
    for form in SM120_FORMS
    for selectors in SELECTORS.get(form.scales, [(0, 0, 0, 0)])
)


@pytest.fixture(scope="module")
def basic():
    return simulator.compile(BASIC_SOURCE, "90a")


@pytest.fixture(scope="module")
def sm120():
    return simulator.compile(SM120_SOURCE, "120a")


# --- fragments, as the PTX ISA draws them ---------------------------------------------------------


def in_register(codes: numpy.ndarray, form: Form, fmt: str) -> numpy.ndarray:
    """Codes as the bits of an element in a register: e2m1 in the middle of its byte."""
    return codes << 2 if form.in_bytes and fmt == "e2m1" else codes


def a_fragment(codes: numpy.ndarray, bits: int, count: int) -> numpy.ndarray:
    per_register = 32 // bits
    words = numpy.zeros((32, count), dtype=numpy.uint32)
    for lane in range(32):
        for register in range(count):
            row = lane // 4 + (8 if register % 2 else 0)
            first = lane % 4 * per_register + register // 2 * 4 * per_register
            for e in range(per_register):
                words[lane, register] |= codes[row, first + e] << numpy.uint32(bits * e)
    return words


def b_fragment(codes: numpy.ndarray, bits: int, count: int) -> numpy.ndarray:
    """Of B as [8 columns][K]."""
    per_register = 32 // bits
    words = numpy.zeros((32, count), dtype=numpy.uint32)
    for lane in range(32):
        for register in range(count):
            first = lane % 4 * per_register + register * 4 * per_register
            for e in range(per_register):
                words[lane, register] |= codes[lane // 4, first + e] << numpy.uint32(bits * e)
    return words


def accumulator_places():
    row, column = numpy.indices((16, 8))
    return row % 8 * 4 + column // 2, row // 8 * 2 + column % 2


def pack_accumulators(values: numpy.ndarray, fmt: str) -> numpy.ndarray:
    dtype = {"f16": numpy.float16, "f32": numpy.float32, "s32": numpy.int32}[fmt]
    registers = numpy.zeros((32, 4), dtype=dtype)
    registers[accumulator_places()] = values
    return registers.view(numpy.int32)


def unpack_accumulators(words: numpy.ndarray, fmt: str) -> numpy.ndarray:
    dtype = {"f16": numpy.float16, "f32": numpy.float32, "s32": numpy.int32}[fmt]
    return words.view(dtype).reshape(32, 4)[accumulator_places()].astype(numpy.float64)


def as_tensor(words: numpy.ndarray) -> torch.Tensor:
    return torch.from_numpy(words.view(numpy.int32).copy())


def run(module, form: Form, selectors=(0, 0, 0, 0), c=None, scale_words=None):
    rng = numpy.random.default_rng(form.k + len(form.name) + sum(selectors))
    num_d, num_a, num_b = registers(form)
    a = random_integers(form.a, (16, form.k), rng)
    b = random_integers(form.b, (8, form.k), rng)
    if c is None:
        c = rng.integers(-20, 20, (16, 8))
    if scale_words is None:
        scale_words = numpy.zeros((32, 2), dtype=numpy.uint32)
    d = torch.zeros(32 * num_d, dtype=torch.int32)
    codes_a = in_register(encode(a, form.a), form, form.a)
    codes_b = in_register(encode(b, form.b), form, form.b)
    launch = module.launch(
        form.name + "".join(f"_{s}" for s in selectors),
        arguments=[
            as_tensor(a_fragment(codes_a, form.element_bits, num_a)),
            as_tensor(b_fragment(codes_b, form.element_bits, num_b)),
            as_tensor(pack_accumulators(c, form.d)),
            as_tensor(scale_words),
            d,
        ],
    )
    return unpack_accumulators(d.numpy(), form.d), a, b, c, launch


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", BASIC_FORMS, ids=lambda form: form.name)
def test_values(basic, form):
    got, a, b, c, launch = run(basic, form)
    assert numpy.array_equal(got, a @ b.T + c)
    assert launch.counters.matrix_instructions == {form.opcode: 1}
    assert launch.counters.matrix_flop == 2 * 16 * 8 * form.k
    assert launch.unanchored == set()


@pytest.mark.parametrize(
    "form", [form for form in SM120_FORMS if not form.scales], ids=lambda form: form.name
)
def test_values_of_small_floats(sm120, form):
    got, a, b, c, launch = run(sm120, form)
    assert numpy.array_equal(got, a @ b.T + c)
    assert launch.unanchored == {form.opcode}


def scale_code(value: float, scale_type: str) -> int:
    if scale_type == "ue8m0":
        return int(numpy.log2(value)) + 127
    return int(encode(numpy.array([value]), "e4m3")[0])


@pytest.mark.parametrize(
    ("form", "selectors"),
    [(form, s) for form in SM120_FORMS if form.scales for s in SELECTORS[form.scales]],
    ids=str,
)
def test_block_scaling(sm120, form, selectors):
    """The words of the four lanes of a row hold different scales; selectors choose one."""
    rng = numpy.random.default_rng(sum(selectors))
    choices = [0.5, 1.0, 2.0, 4.0] if form.scale_type == "ue8m0" else [0.5, 1.5, 3.0, 1.25]
    scales = rng.choice(choices, (2, 32, 4))  # of A and B, by lane and byte
    codes = numpy.vectorize(lambda v: scale_code(v, form.scale_type), otypes=[numpy.uint32])(scales)
    words = (
        (codes << numpy.array([0, 8, 16, 24], dtype=numpy.uint32)).sum(axis=2).astype(numpy.uint32)
    )
    got, a, b, c, launch = run(sm120, form, selectors, scale_words=numpy.ascontiguousarray(words.T))

    byte_a, thread_a, byte_b, thread_b = selectors
    block = form.k // form.scales
    expected = c.astype(numpy.float64)
    for s in range(form.scales):
        steps = slice(s * block, (s + 1) * block)
        lanes_a = [4 * (row % 8) + 2 * thread_a + row // 8 for row in range(16)]
        lanes_b = [4 * column + thread_b for column in range(8)]
        row_scales = scales[0, lanes_a, byte_a + s]
        column_scales = scales[1, lanes_b, byte_b + s]
        expected += row_scales[:, None] * (a[:, steps] @ b[:, steps].T) * column_scales
    assert numpy.array_equal(got, expected)
    anchored = form.scales == 1 and form.a == form.b == "e4m3" and not any(selectors)
    assert (launch.unanchored == set()) == anchored


def test_scales_of_not_a_number(sm120):
    form = Form(32, "f32", "e4m3", "e4m3", "mxf8f6f4", 1)
    words = numpy.full((32, 2), 127, dtype=numpy.uint32)
    words[0, 0] = 255  # of row 0
    got, *_ = run(sm120, form, scale_words=words)
    assert numpy.isnan(got[0]).all()
    assert not numpy.isnan(got[1:]).any()


def test_f64(basic):
    rng = numpy.random.default_rng(1)
    a, b, c = rng.standard_normal((8, 4)), rng.standard_normal((8, 4)), rng.standard_normal((8, 8))
    d = torch.zeros(64, dtype=torch.float64)
    basic.launch("f64", arguments=[torch.from_numpy(x.copy()) for x in (a, b, c)] + [d])
    # Lane 4g + t holds row g, step t of A, the same of B transposed, and columns 2t, 2t + 1 of C.
    assert numpy.allclose(d.numpy().reshape(8, 8), a @ b.T + c, rtol=1e-14)


def test_satfinite(basic):
    largest = numpy.full((16, 8), 2**31 - 1)
    form = Form(32, "s32", "s8", "s8", saturate=True)
    got, a, b, c, _ = run(basic, form, c=largest)
    assert numpy.array_equal(got, numpy.minimum(a @ b.T + c, 2**31 - 1))
    got, a, b, c, _ = run(basic, Form(32, "s32", "u8", "s8"), c=largest)
    assert numpy.array_equal(got, (a @ b.T + c + 2**31) % 2**32 - 2**31)


def test_f16_sums_are_rounded(basic):
    """An accumulator of f16 beyond 2048 loses odd units; to even."""
    form = Form(8, "f16", "f16", "f16")
    got, a, b, c, _ = run(basic, form, c=numpy.full((16, 8), 4096))
    exact = (a @ b.T + c).astype(numpy.float32)
    assert (exact.astype(numpy.float16) != exact).any()
    assert numpy.array_equal(got, exact.astype(numpy.float16))


def test_not_a_number_in_operands(basic):
    form = Form(32, "f32", "e4m3", "e4m3")
    num_d, num_a, num_b = registers(form)
    a = numpy.zeros((32, num_a), dtype=numpy.uint32)
    a[0, 0] = 0x7F  # row 0, step 0
    d = torch.zeros(32 * num_d, dtype=torch.int32)
    zeros = [as_tensor(numpy.zeros((32, n), dtype=numpy.uint32)) for n in (num_b, num_d, 2)]
    basic.launch(form.name + "_0_0_0_0", arguments=[as_tensor(a), *zeros, d])
    got = unpack_accumulators(d.numpy(), "f32")
    assert numpy.isnan(got[0]).all()
    assert not numpy.isnan(got[1:]).any()


# --- rules ----------------------------------------------------------------------------------------

MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{%f0, %f1, %f2, %f3}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%f4, %f5, %f6, %f7};"
)
SCALED = (
    "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
    ".f32.e4m3.e4m3.f32.ue8m0 "
    "{%f0, %f1, %f2, %f3}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%f4, %f5, %f6, %f7}, "
    "%r10, {0, 0}, %r11, {0, 0};"
)


def test_partial_warp():
    def launch(statement, block):
        simulator.Module(ptx(statement)).launch("k", block=block, arguments=[torch.zeros(1)])

    launch(MMA, 32)
    for statement, block in [(f"setp.lt.u32 %p1, %r0, 16;\n@%p1 {MMA}", 32), (MMA, 40)]:
        with pytest.raises(simulator.SimulatorError, match="all 32 lanes"):
            launch(statement, block)


@pytest.mark.parametrize(
    ("selectors", "message"),
    [
        ("{4, 0}, %r11, {0, 0}", "byte-id-a"),
        ("{0, 2}, %r11, {0, 0}", "thread-id-a"),
        ("{0, 0}, %r11, {0, 4}", "thread-id-b"),
    ],
)
def test_bad_selectors(selectors, message):
    statement = SCALED.replace("{0, 0}, %r11, {0, 0}", selectors)
    with pytest.raises(simulator.SimulatorError, match=message):
        simulator.Module(ptx(statement)).launch("k", arguments=[torch.zeros(1)])


@pytest.mark.parametrize(
    "statement",
    [
        MMA.replace("m16n8k16", "m16n8k32"),
        MMA.replace("m16n8k16", "m8n8k16"),
        MMA.replace("row.col", "col.row"),
        MMA.replace("bf16.bf16", "bf16.f16"),
        MMA.replace("bf16.bf16", "s4.s4"),
        MMA.replace("f32.bf16", "f16.bf16"),
        MMA.replace("row.col", "row.col.satfinite"),
        MMA.replace("mma.sync", "mma.sp.sync"),
        MMA.replace("mma.sync.aligned", "mma.sync"),
        MMA.replace("{%r8, %r9}", "{%r8}"),
        MMA.replace(", {%f4, %f5, %f6, %f7}", ""),
        SCALED.replace("scale_vec::1X", "scale_vec::2X"),
        SCALED.replace("ue8m0", "ue4m3"),
        SCALED.replace(".block_scale", ""),
        SCALED.replace("kind::mxf8f6f4", "kind::mxf6"),
        SCALED.replace(", {0, 0};", ";"),
        MMA.replace("f32.bf16.bf16.f32", "s32.b1.b1.s32.and.popc").replace("k16", "k256"),
    ],
)
def test_unknown_forms(statement):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+"):
        simulator.Module(ptx(statement)).decode("k")
