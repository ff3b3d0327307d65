"""tcgen05.mma, .ld, .st, .cp: every layout of tensor memory, format and shape against numpy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy
import pytest
import torch

import simulator
from simulator import tensor_memory
from simulator.matrices import (
    BITS,
    SPANS,
    Layout,
    dense_layout,
    encode,
    random_integers,
    tcgen05_descriptor,
)
from simulator.schedules import SCHEDULE_NAMES, SCHEDULES
from simulator.tensor_memory import IMAGE_BYTES, LANES, SHARED_BEGIN, SHARED_BYTES

# Columns of tensor memory where operands lie: D first, others behind it.
A, SCALE_A, SCALE_B, END = 0, 16, 32, 64

# --- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opcode:
    """What a tcgen05.mma says besides its operands."""

    kind: str
    group: int = 1
    weight_stationary: bool = False
    tensor_a: bool = False
    scales: int = 0  # of a row
    masked: bool = False
    input_scale: int | None = None
    more: str = ""

    @property
    def text(self) -> str:
        ws = ".ws" if self.weight_stationary else ""
        scaled = ""
        if self.scales:
            scaled = ".block_scale"
            scaled += "" if self.scales == 1 else f".scale_vec::{self.scales}X"
        return f"tcgen05.mma{ws}.cta_group::{self.group}.kind::{self.kind}{scaled}{self.more}"

    @property
    def case(self) -> str:
        tail = "" if self.input_scale is None else f", {self.input_scale}"
        masks = 4 * self.group if self.masked else 0
        return tensor_memory.mma_case(self.text, self.tensor_a, self.scales > 0, masks, tail)


OPCODES = [
    *(
        Opcode(kind, group, tensor_a=tensor_a)
        for kind in ("f16", "tf32", "f8f6f4", "i8")
        for group in (1, 2)
        for tensor_a in (False, True)
    ),
    *(
        Opcode(kind, weight_stationary=True, tensor_a=tensor_a)
        for kind in ("f16", "tf32", "f8f6f4", "i8")
        for tensor_a in (False, True)
    ),
    *(
        Opcode(kind, group, tensor_a=tensor_a, scales=scales)
        for kind, scales in (("mxf8f6f4", 1), ("mxf4", 2), ("mxf4nvf4", 2), ("mxf4nvf4", 4))
        for group in (1, 2)
        for tensor_a in (False, True)
    ),
    Opcode("f16", 1, masked=True),
    Opcode("f16", 2, masked=True),
    Opcode("f16", 1, input_scale=2),
    Opcode("f16", 1, more=".collector::a::fill"),
]
COPIES = [
    "128x256b",
    "128x128b",
    "4x256b",
    "64x128b.warpx2::02_13",
    "64x128b.warpx2::01_23",
    "32x128b.warpx4",
]


@dataclass(frozen=True)
class Access:
    """A form of tcgen05.ld or .st."""

    load: bool
    shape: str
    number: int
    packed: bool = False

    @property
    def registers(self) -> int:
        return self.number * {"16x128b": 2, "16x256b": 4}.get(self.shape, 1)

    @property
    def offset(self) -> int | None:
        return 144 if self.shape == "16x32bx2" else None

    @property
    def case(self) -> str:
        name, packing = ("ld", "pack") if self.load else ("st", "unpack")
        packing = f".{packing}::16b" if self.packed else ""
        opcode = f"tcgen05.{name}.sync.aligned.{self.shape}.x{self.number}{packing}.b32"
        make = tensor_memory.load_case if self.load else tensor_memory.store_case
        return make(opcode, self.registers, self.offset)


ACCESSES = [
    Access(load, shape, number, packed)
    for load in (True, False)
    for shape, numbers in {
        "32x32b": (1, 2, 16, 128),
        "16x64b": (1, 4, 128),
        "16x128b": (1, 8, 64),
        "16x256b": (1, 2, 32),
        "16x32bx2": (1, 4, 128),
    }.items()
    for number in numbers
    for packed in (False, True)
    if not (packed and number > 16)
]

SOURCE = (
    tensor_memory.HEAD
    + "".join(
        tensor_memory.mma_kernel(
            f"mma{group}", group, [o.case for o in OPCODES if o.group == group]
        )
        for group in (1, 2)
    )
    + "".join(
        tensor_memory.copy_kernel(
            f"copy{group}", group, [f"tcgen05.cp.cta_group::{group}.{c}" for c in COPIES]
        )
        for group in (1, 2)
    )
    + "".join(
        tensor_memory.access_kernel(name, [a.case for a in ACCESSES if a.load == load])
        for name, load in (("load", True), ("store", False))
    )
)


@pytest.fixture(scope="module")
def kernels():
    return simulator.compile(SOURCE, "100a")


# --- layouts, as the PTX ISA draws them -----------------------------------------------------------


def d_places(rows: int, columns: int, group: int, ws: bool, half: int):
    """(block, lane, column) of each element of D [rows][columns]."""
    m, n = numpy.indices((rows, columns))
    block = numpy.zeros_like(m)
    if group == 2 and rows == 256:  # layout A
        return m // 128, m % 128, n
    if group == 2:  # B
        return m // 64, m % 64 + 64 * (n >= columns // 2), n % (columns // 2)
    if rows == 128:  # D
        return block, m, n
    if rows == 64 and ws:  # E
        return block, m + 64 * (n >= columns // 2), n % (columns // 2)
    if rows == 64:  # F
        return block, m // 16 * 32 + m % 16 + half, n
    return block, m + 32 * (n // (columns // 4)), n % (columns // 4)  # G


def in_words(codes: numpy.ndarray, bits: int) -> numpy.ndarray:
    """[rows][K] -> [rows][8] words, elements one after the other."""
    per_word = 32 // bits
    shifts = numpy.arange(per_word, dtype=numpy.uint32) * numpy.uint32(bits)
    grouped = codes.reshape(codes.shape[0], -1, per_word).astype(numpy.uint32)
    return (grouped << shifts).sum(axis=2).astype(numpy.uint32)


# --- one multiplication ---------------------------------------------------------------------------

STEPS = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
CODES = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "i8": {"u8": 0, "s8": 1},
    "f8": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "fp4": {"e2m1": 1},
}
ACCUMULATORS = {"f16": 0, "f32": 1, "s32": 2}


@dataclass(frozen=True)
class Case:
    opcode: Opcode
    m: int
    n: int
    a: str
    b: str
    d: str = "f32"
    transpose_a: bool = False
    transpose_b: bool = False
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    span_a: int = 128
    span_b: int = 128
    half: int = 0
    enable: bool = True
    scale_type: str = "ue8m0"
    scale_ids: tuple[int, int] = (0, 0)
    shift: int = 0  # of B's tile
    mask: tuple[int, ...] = field(default=())

    def __str__(self) -> str:
        o = self.opcode
        name = f"{o.kind}.cg{o.group}{'.ws' if o.weight_stationary else ''}"
        name += f" {'TS' if o.tensor_a else 'SS'} {self.m}x{self.n} {self.a} {self.b} {self.d}"
        for flag in (
            "transpose_a",
            "transpose_b",
            "negate_a",
            "negate_b",
            "saturate",
            "half",
            "shift",
        ):
            name += f" {flag}" if getattr(self, flag) else ""
        return name + f" {self.span_a} {self.span_b}{'' if self.enable else ' alone'}"

    @property
    def k(self) -> int:
        return STEPS[self.opcode.kind]

    @property
    def packed_fp4(self) -> bool:
        return self.opcode.kind.startswith("mxf4")

    @property
    def descriptor(self) -> int:
        kind = self.opcode.kind
        table = CODES["fp4" if self.packed_fp4 else "f8" if "f8" in kind else kind]
        bits = (
            table[self.a] << 7
            | table[self.b] << 10
            | self.negate_a << 13
            | self.negate_b << 14
            | self.transpose_a << 15
            | self.transpose_b << 16
            | self.n // 8 << 17
            | self.m // 16 << 24
        )
        if self.opcode.scales:
            scale_type = {"ue8m0": 1, "ue4m3": 0}[self.scale_type]
            return bits | self.scale_ids[1] << 4 | scale_type << 23 | self.scale_ids[0] << 29
        return bits | ACCUMULATORS[self.d] << 4 | self.saturate << 3


def element_bits(fmt: str, padded: bool) -> int:
    """Of the address arithmetic: padded elements count as a byte each."""
    return 8 if padded and BITS[fmt] < 8 else BITS[fmt]


def store_operands(case: Case, a_codes, b_codes, images):
    """Writes each block's rows of A and B to its shared memory; returns the two layouts
    and the address behind them."""
    group = case.opcode.group
    padded = not case.packed_fp4
    rows_a, rows_b = case.m // group, case.n // group
    bits_a, bits_b = element_bits(case.a, padded), element_bits(case.b, padded)
    atoms = case.opcode.kind == "tf32"
    layout_a, end = layout_of(
        SHARED_BEGIN, rows_a, case.k, bits_a, case.span_a, case.transpose_a, atoms
    )
    start_b = -(-end // 1024) * 1024 + case.shift
    layout_b, end = layout_of(start_b, rows_b, case.k, bits_b, case.span_b, case.transpose_b, atoms)
    assert end <= SHARED_BEGIN + IMAGE_BYTES
    for block in range(group):
        for layout, codes, rows, fmt in (
            (layout_a, a_codes, rows_a, case.a),
            (layout_b, b_codes, rows_b, case.b),
        ):
            part = codes[block * rows : (block + 1) * rows]
            layout.store(images[block], part, BITS[fmt], padded and BITS[fmt] < 8)
    return layout_a, layout_b, end


def layout_of(start, rows, steps, bits, span, transposed, atoms):
    if not (transposed and atoms):
        return dense_layout(start, rows, steps, bits, span, transposed)
    # tf32: lines of 32 elements, four steps of K in a pattern of 512 bytes.
    spans, groups = -(-rows * 4 // 128), -(-steps // 4)
    layout = Layout(start, 128, mn_major=True, lbo=512, sbo=spans * 512, atoms_of_32=True)
    return layout, start + spans * groups * 512


def place_scales(cells, codes, column, first_byte, rows_of_quarter):
    """Scale s of row r: byte first_byte + s of the word in lane r % 32, column r // 32.
    `rows_of_quarter` says which rows each quarter of the lanes holds."""
    for quarter, rows in enumerate(rows_of_quarter):
        for i, row in enumerate(rows):
            for s in range(codes.shape[1]):
                lane, word = 32 * quarter + i % 32, column + i // 32
                shift = numpy.uint32(8 * (first_byte + s))
                cells[lane, word] &= ~numpy.uint32(0xFF << int(shift))
                cells[lane, word] |= numpy.uint32(codes[row, s]) << shift


def random_scales(case: Case, rows: int, rng):
    """Values [rows][scales] and their codes."""
    if case.scale_type == "ue8m0":
        values = 2.0 ** rng.integers(-2, 3, (rows, case.opcode.scales))
        return values, (numpy.log2(values) + 127).astype(numpy.uint32)
    values = rng.choice([0.5, 1.5, 3.0, 1.25], (rows, case.opcode.scales))
    return values, encode(values, "e4m3")


def accumulator_bits(values: numpy.ndarray, fmt: str) -> numpy.ndarray:
    if fmt == "f16":
        return values.astype(numpy.float16).view(numpy.uint16).astype(numpy.uint32)
    if fmt == "f32":
        return values.astype(numpy.float32).view(numpy.uint32)
    return values.astype(numpy.int64).astype(numpy.int32).view(numpy.uint32)


def run(kernels, case: Case, options=None, d=None, **more):
    """Multiplies; returns tensor memory [blocks][lanes][columns], what it should be, the launch."""
    opcode = case.opcode
    group, ws = opcode.group, opcode.weight_stationary
    rng = numpy.random.default_rng(case.m + case.n)
    a = random_integers(case.a, (case.m, case.k), rng)
    b = random_integers(case.b, (case.n, case.k), rng)
    a_codes, b_codes = encode(a, case.a), encode(b, case.b)
    images = numpy.zeros((group, SHARED_BEGIN + IMAGE_BYTES), dtype=numpy.uint8)
    layout_a, layout_b, end = store_operands(case, a_codes, b_codes, images)
    places = d_places(case.m, case.n, group, ws, case.half)
    behind_d = -(-(places[2].max() + 1) // 32) * 32
    cells = rng.integers(0, 2**32, (group, LANES, behind_d + END), dtype=numpy.uint32)

    if opcode.tensor_a:  # row m stands on every lane where row m of D has elements
        words = in_words(a_codes, BITS[case.a])
        rows = numpy.broadcast_to(numpy.arange(case.m)[:, None], places[0].shape)
        for w in range(8):
            cells[places[0], places[1], behind_d + A + w] = words[rows, w]
    product = numpy.zeros((case.m, case.n))
    if opcode.scales:
        scales_a, codes_a = random_scales(case, case.m, rng)
        scales_b, codes_b = random_scales(case, case.n, rng)
        split = group == 2 and case.m == 128
        for block in range(group):
            rows = list(range(block * case.m // group, (block + 1) * case.m // group))
            place_scales(cells[block], codes_a, behind_d + SCALE_A, case.scale_ids[0], [rows] * 4)
            n = list(range(case.n))
            halves = [n[: case.n // 2]] * 2 + [n[case.n // 2 :]] * 2 if split else [n] * 4
            place_scales(cells[block], codes_b, behind_d + SCALE_B, case.scale_ids[1], halves)
        width = case.k // opcode.scales
        for s in range(opcode.scales):
            steps = slice(s * width, (s + 1) * width)
            product += scales_a[:, s, None] * (a[:, steps] @ b[:, steps].T) * scales_b[:, s]
    else:
        product += a @ b.T
    if case.negate_a != case.negate_b:
        product = -product

    if d is None:
        d = rng.integers(-30, 30, (case.m, case.n))
    cells[places] = accumulator_bits(d, case.d)
    scale = 2.0 ** -(opcode.input_scale or 0)
    result = product + d * scale if case.enable else product
    expected = cells.copy()
    if case.saturate:
        result = numpy.clip(result, -(2**31), 2**31 - 1)
    expected[places] = accumulator_bits(result, case.d)
    for block in range(group):
        for lane in range(LANES):
            if case.mask and case.mask[4 * block + lane // 32] >> lane % 32 & 1:
                expected[block, lane] = cells[block, lane]

    form = [o for o in OPCODES if o.group == group].index(opcode)
    a_operand = tcgen05_descriptor(layout_a)
    if opcode.tensor_a:
        a_operand = ((case.half << 16) + int(behind_d) + A).to_bytes(8, "little")
    got, launch = launch_kernel(
        kernels,
        f"mma{group}",
        images[:, SHARED_BEGIN:end],
        cells,
        [
            as_tensor(numpy.array([*case.mask] or [0], dtype=numpy.uint32)),
            form,
            case.half << 16,
            a_operand,
            tcgen05_descriptor(layout_b),
            case.descriptor,
            int(case.enable),
            int(behind_d) + SCALE_A,
            int(behind_d) + SCALE_B,
        ],
        options,
        **more,
    )
    return got, expected, launch


def launch_kernel(kernels, name, images, cells, arguments, options=None, **more):
    """Runs a kernel of tensor_memory; returns the cells behind it, and the launch."""
    group = cells.shape[0]
    image = torch.from_numpy(images.copy())
    before, after = as_tensor(cells), torch.zeros(cells.shape, dtype=torch.int32)
    launch = kernels.launch(
        name,
        grid=group,
        block=128,
        cluster=group,
        dynamic_shared_bytes=SHARED_BYTES,
        arguments=[image, before, after, images.shape[1], cells.shape[2], *arguments],
        options=options,
        **more,
    )
    return after.numpy().view(numpy.uint32), launch


def as_tensor(words: numpy.ndarray) -> torch.Tensor:
    return torch.from_numpy(words.view(numpy.int32).copy())


F16 = Opcode("f16")
F16_WS = Opcode("f16", weight_stationary=True)
F16_PAIR = Opcode("f16", 2)


def in_tensor_memory(opcode: Opcode) -> Opcode:
    return Opcode(opcode.kind, opcode.group, opcode.weight_stationary, True, opcode.scales)


LAYOUT_CASES = [
    Case(opcode, m, n, "bf16", "bf16", half=half)
    for base, m, n, half in [
        (F16, 128, 8, 0),
        (F16, 128, 256, 0),
        (F16, 64, 8, 0),
        (F16, 64, 200, 0),
        (F16, 64, 64, 16),
        (F16_WS, 128, 64, 0),
        (F16_WS, 64, 64, 0),
        (F16_WS, 64, 256, 0),
        (F16_WS, 32, 64, 0),
        (F16_WS, 32, 256, 0),
        (F16_PAIR, 256, 16, 0),
        (F16_PAIR, 256, 256, 0),
        (F16_PAIR, 128, 32, 0),
        (F16_PAIR, 128, 256, 0),
    ]
    for opcode in (base, in_tensor_memory(base))
]


@pytest.mark.parametrize("case", LAYOUT_CASES, ids=str)
def test_layouts_of_tensor_memory(kernels, case):
    got, expected, _ = run(kernels, case)
    assert numpy.array_equal(got, expected)


MAJOR_CASES = [
    Case(opcode, m, n, fmt, fmt, transpose_a=ta, transpose_b=tb, span_a=span, span_b=span)
    for opcode, m, n, fmt in [
        (F16, 128, 64, "bf16"),
        (F16, 64, 24, "f16"),
        (F16_PAIR, 128, 64, "bf16"),
        (Opcode("f8f6f4"), 128, 32, "e4m3"),
        (Opcode("f8f6f4", 2), 256, 64, "e5m2"),
    ]
    for span in SPANS
    for ta, tb in [(False, False), (True, False), (False, True), (True, True)]
]


@pytest.mark.parametrize("case", MAJOR_CASES, ids=str)
def test_layouts_of_shared_memory(kernels, case):
    got, expected, _ = run(kernels, case)
    assert numpy.array_equal(got, expected)


@pytest.mark.parametrize("shift", [32, 64, 96, 384])
def test_descriptor_inside_of_a_pattern(kernels, shift):
    got, expected, _ = run(kernels, Case(F16, 128, 64, "bf16", "bf16", shift=shift))
    assert numpy.array_equal(got, expected)


FORMAT_CASES = [
    Case(F16, 128, 32, "f16", "f16"),
    Case(F16, 128, 32, "f16", "f16", "f16"),
    Case(F16, 64, 16, "f16", "f16", "f16", enable=False),
    Case(F16, 128, 32, "bf16", "bf16", enable=False),
    Case(F16, 128, 16, "bf16", "bf16", negate_a=True),
    Case(F16, 128, 16, "bf16", "bf16", negate_b=True),
    Case(F16, 128, 16, "bf16", "bf16", negate_a=True, negate_b=True),
    Case(Opcode("f16", input_scale=2), 128, 16, "bf16", "bf16"),
    Case(Opcode("f16", more=".collector::a::fill"), 128, 16, "bf16", "bf16"),
    Case(Opcode("tf32"), 128, 32, "tf32", "tf32"),
    Case(Opcode("tf32"), 128, 32, "tf32", "tf32", transpose_a=True, transpose_b=True),
    Case(Opcode("tf32", tensor_a=True), 64, 16, "tf32", "tf32"),
    Case(Opcode("tf32", 2), 256, 32, "tf32", "tf32"),
    Case(Opcode("tf32", weight_stationary=True), 32, 64, "tf32", "tf32"),
    *(
        Case(Opcode("f8f6f4"), 128, 32, a, b)
        for a, b in [("e4m3", "e5m2"), ("e2m3", "e3m2"), ("e2m1", "e4m3"), ("e5m2", "e2m1")]
    ),
    Case(Opcode("f8f6f4"), 64, 32, "e4m3", "e4m3", "f16"),
    Case(Opcode("f8f6f4", tensor_a=True), 128, 32, "e4m3", "e4m3"),
    Case(Opcode("f8f6f4", tensor_a=True), 64, 32, "e5m2", "e2m3", half=16),
    Case(Opcode("f8f6f4", weight_stationary=True), 64, 128, "e4m3", "e4m3"),
    Case(Opcode("f8f6f4", weight_stationary=True, tensor_a=True), 32, 64, "e4m3", "e4m3"),
    Case(Opcode("f8f6f4", 2), 128, 64, "e4m3", "e4m3", transpose_b=True),
    Case(Opcode("f8f6f4", 2, tensor_a=True), 128, 64, "e4m3", "e4m3"),
    Case(Opcode("i8"), 128, 48, "s8", "u8", "s32"),
    Case(Opcode("i8"), 64, 24, "u8", "s8", "s32"),
    Case(Opcode("i8", tensor_a=True), 128, 32, "s8", "s8", "s32"),
    Case(Opcode("i8", 2), 256, 64, "s8", "u8", "s32"),
    Case(Opcode("i8", weight_stationary=True), 64, 64, "u8", "u8", "s32", enable=False),
]


@pytest.mark.parametrize("case", FORMAT_CASES, ids=str)
def test_formats(kernels, case):
    got, expected, _ = run(kernels, case)
    assert numpy.array_equal(got, expected)


SCALE_CASES = [
    Case(Opcode("mxf8f6f4", scales=1), 128, 32, "e4m3", "e4m3"),
    Case(Opcode("mxf8f6f4", scales=1), 128, 200, "e4m3", "e4m3", scale_ids=(1, 3)),
    Case(Opcode("mxf8f6f4", scales=1), 128, 64, "e2m3", "e2m1", scale_ids=(2, 0)),
    Case(Opcode("mxf8f6f4", scales=1, tensor_a=True), 128, 64, "e5m2", "e4m3", scale_ids=(3, 2)),
    Case(Opcode("mxf8f6f4", 2, scales=1), 256, 64, "e4m3", "e4m3", scale_ids=(1, 2)),
    Case(Opcode("mxf8f6f4", 2, scales=1), 128, 128, "e4m3", "e4m3", scale_ids=(1, 2)),
    Case(Opcode("mxf8f6f4", 2, tensor_a=True, scales=1), 128, 64, "e4m3", "e4m3"),
    Case(Opcode("mxf8f6f4", 1, scales=1), 128, 64, "e4m3", "e4m3", transpose_b=True, negate_a=True),
    Case(Opcode("mxf4", scales=2), 128, 64, "e2m1", "e2m1", scale_ids=(2, 0)),
    Case(Opcode("mxf4", 2, scales=2), 256, 64, "e2m1", "e2m1", scale_ids=(0, 2)),
    Case(Opcode("mxf4", tensor_a=True, scales=2), 128, 32, "e2m1", "e2m1"),
    Case(Opcode("mxf4nvf4", scales=2), 128, 64, "e2m1", "e2m1"),
    Case(Opcode("mxf4nvf4", scales=4), 128, 96, "e2m1", "e2m1"),
    Case(Opcode("mxf4nvf4", scales=4), 128, 96, "e2m1", "e2m1", scale_type="ue4m3"),
    Case(Opcode("mxf4nvf4", 2, scales=4), 128, 96, "e2m1", "e2m1", scale_type="ue4m3"),
]


@pytest.mark.parametrize("case", SCALE_CASES, ids=str)
def test_block_scaling(kernels, case):
    got, expected, _ = run(kernels, case)
    assert numpy.array_equal(got, expected)


def test_disabled_lanes(kernels):
    mask = (0x0000FFFF, 0xFFFFFFFF, 0, 0x80000001)
    got, expected, _ = run(
        kernels, Case(Opcode("f16", masked=True), 128, 32, "bf16", "bf16", mask=mask)
    )
    assert numpy.array_equal(got, expected)
    both = (*mask, 1, 2, 3, 0xFFFFFFFF)
    case = Case(Opcode("f16", 2, masked=True), 256, 32, "bf16", "bf16", mask=both)
    got, expected, _ = run(kernels, case)
    assert numpy.array_equal(got, expected)


def test_integers_saturate_or_wrap(kernels):
    largest = numpy.full((128, 32), 2**31 - 1)
    for saturate in (True, False):
        case = Case(Opcode("i8"), 128, 32, "s8", "s8", "s32", saturate=saturate)
        got, expected, _ = run(kernels, case, d=largest)
        assert numpy.array_equal(got, expected)


def test_a_differs_between_the_halves_of_layout_e(kernels):
    """Each half of the lanes multiplies its own A: two products in one instruction."""
    rng = numpy.random.default_rng(0)
    case = Case(in_tensor_memory(F16_WS), 64, 128, "bf16", "bf16", enable=False)
    a, b = random_integers("bf16", (2, 64, 16), rng), random_integers("bf16", (128, 16), rng)
    image = numpy.zeros(SHARED_BEGIN + IMAGE_BYTES, dtype=numpy.uint8)
    layout, end = dense_layout(SHARED_BEGIN, 128, 16, 16, 128, False)
    layout.store(image, encode(b, "bf16"), 16)
    cells = numpy.zeros((1, LANES, 96), dtype=numpy.uint32)
    cells[0, :, 64:72] = in_words(encode(a.reshape(128, 16), "bf16"), 16)
    form = [o for o in OPCODES if o.group == 1].index(case.opcode)
    arguments = [torch.zeros(1, dtype=torch.int32), form, 0, (64).to_bytes(8, "little")]
    arguments += [tcgen05_descriptor(layout), case.descriptor, 0, 0, 0]
    got, _ = launch_kernel(kernels, "mma1", image[None, SHARED_BEGIN:end], cells, arguments)
    d = got[0, :, :64].view(numpy.float32)
    assert numpy.array_equal(d[:64], a[0] @ b[:64].T)
    assert numpy.array_equal(d[64:], a[1] @ b[64:].T)


@pytest.mark.parametrize("options", SCHEDULES, ids=SCHEDULE_NAMES)
@pytest.mark.parametrize("opcode", [F16, F16_PAIR], ids=["one", "pair"])
def test_schedules(kernels, options, opcode):
    got, expected, launch = run(kernels, Case(opcode, 128, 64, "bf16", "bf16"), options=options)
    assert numpy.array_equal(got, expected)
    assert launch.races == []


def test_counters(kernels):
    _, _, launch = run(kernels, Case(F16, 128, 256, "bf16", "bf16"))
    counters = launch.counters
    assert counters.matrix_instructions == {"tcgen05.f16.cg1 M128 N256 SS": 1}
    assert counters.matrix_flop == 2 * 128 * 256 * 16
    assert counters.matrix_cycles == 128  # 8192 FLOP a cycle
    assert launch.unanchored == set()
    _, _, launch = run(kernels, Case(Opcode("mxf4", scales=2), 128, 256, "e2m1", "e2m1"))
    assert launch.counters.matrix_cycles == 128  # 32768 FLOP a cycle, and K = 64
    assert launch.unanchored == {"tcgen05.mxf4.cg1 M128 N256 SS e2m1 x e2m1 -> f32"}


# --- ld, st, cp -----------------------------------------------------------------------------------


def cell_of(access: Access, lane: int, j: int):
    """Lane of tensor memory, from the access's first on, and column of register j of a lane."""
    g, t = lane // 4, lane % 4
    if access.shape == "32x32b":
        return lane, j
    if access.shape == "16x64b":
        return g + 8 * (lane & 1), (lane >> 1 & 1) + 2 * j
    if access.shape == "16x128b":
        return g + 8 * (j & 1), t + 4 * (j >> 1)
    if access.shape == "16x256b":
        return g + 8 * (j >> 1 & 1), 2 * t + (j & 1) + 8 * (j >> 2)
    return lane % 16, j  # 16x32bx2


def cells_of(access: Access, half: int):
    """Indices [128 threads][registers] of the cells; of the low half with 16-bit packing."""
    lanes = numpy.zeros((128, access.registers), dtype=int)
    columns = numpy.zeros_like(lanes)
    for thread in range(128):
        for j in range(access.registers):
            lane, column = cell_of(access, thread % 32, j)
            lanes[thread, j] = thread // 32 * 32 + half + lane
            columns[thread, j] = column * (2 if access.packed else 1)
            if access.offset is not None and thread % 32 >= 16:
                columns[thread, j] += access.offset
    return lanes, columns


FIRST_COLUMN = 8


def run_access(kernels, access: Access, half: int, rng):
    columns = 320 if access.number > 4 or access.offset else 64
    cells = rng.integers(0, 2**32, (1, LANES, columns), dtype=numpy.uint32)
    words = rng.integers(0, 2**32, (128, access.registers), dtype=numpy.uint32)
    registers = as_tensor(words)
    form = [a for a in ACCESSES if a.load == access.load].index(access)
    after, _ = launch_kernel(
        kernels,
        "load" if access.load else "store",
        numpy.zeros((1, 16), dtype=numpy.uint8),
        cells,
        [registers, form, (half << 16) + FIRST_COLUMN],
    )
    return cells[0], words, registers.numpy().view(numpy.uint32), after[0]


@pytest.mark.parametrize(
    ("access", "half"),
    [(a, half) for a in ACCESSES for half in (0, 16) if half == 0 or a.shape != "32x32b"],
    ids=str,
)
def test_load_and_store(kernels, access, half):
    rng = numpy.random.default_rng(access.registers)
    cells, words, registers, after = run_access(kernels, access, half, rng)
    lanes, columns = cells_of(access, half)
    columns = columns + FIRST_COLUMN
    expected = cells.copy()
    if access.load:
        result = cells[lanes, columns]
        if access.packed:
            result = (result & 0xFFFF) | cells[lanes, columns + 1] << 16
        assert numpy.array_equal(registers, result)
    elif access.packed:
        expected[lanes, columns] = words & 0xFFFF
        expected[lanes, columns + 1] = words >> 16
    else:
        expected[lanes, columns] = words
    assert numpy.array_equal(after, expected)


def copied_lanes(copy: str, row: int) -> list[int]:
    if copy == "4x256b":
        return [32 * row]
    if copy.endswith("02_13"):
        return [row, row + 64]
    if copy.endswith("01_23"):
        return [row // 32 * 64 + row % 32, row // 32 * 64 + row % 32 + 32]
    if copy.endswith("warpx4"):
        return [row, row + 32, row + 64, row + 96]
    return [row]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("group", [1, 2])
def test_copy(kernels, copy, group, span):
    rows, row_bits = (int(x) for x in re.match(r"(\d+)x(\d+)b", copy).groups())
    rng = numpy.random.default_rng(rows)
    codes = rng.integers(0, 256, (group, rows, row_bits // 8), dtype=numpy.uint32)
    images = numpy.zeros((group, SHARED_BEGIN + IMAGE_BYTES), dtype=numpy.uint8)
    layout, end = dense_layout(SHARED_BEGIN, rows, row_bits // 8, 8, span, False)
    cells = rng.integers(0, 2**32, (group, LANES, 64), dtype=numpy.uint32)
    expected = cells.copy()
    for block in range(group):
        layout.store(images[block], codes[block], 8)
        words = codes[block].astype(numpy.uint8).view(numpy.uint32)
        for row in range(rows):
            for lane in copied_lanes(copy, row):
                expected[block, lane, 24 : 24 + row_bits // 32] = words[row]
    got, launch = launch_kernel(
        kernels,
        f"copy{group}",
        images[:, SHARED_BEGIN:end],
        cells,
        [COPIES.index(copy), 24, tcgen05_descriptor(layout)],
    )
    assert numpy.array_equal(got, expected)
    anchored = copy in ("128x256b", "32x128b.warpx4")
    assert launch.unanchored == (set() if anchored else {f"tcgen05.cp.cta_group::{group}.{copy}"})
