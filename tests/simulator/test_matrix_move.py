"""ldmatrix, stmatrix, movmatrix: every element against its place in the PTX ISA's drawings."""

from __future__ import annotations

import numpy
import pytest
import torch

import simulator
from simulator.snippets import ptx

SHARED_BYTES = 4096


def load_kernel(name: str, opcode: str, registers: int, generic: bool = False) -> str:
    """A warp loads matrices whose rows each lane names; registers [lane][register]."""
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(registers))
    names = ", ".join(f"%{i}" for i in range(registers))
    address = '"l"(row)' if generic else '"r"(uint32_t(__cvta_generic_to_shared(row)))'
    return f"""
KERNEL {name}(const uint8_t* image, const int* rows, uint32_t* registers) {{
  for (int i = threadIdx.x; i < {SHARED_BYTES}; i += 32) shared[i] = image[i];
  __syncwarp();
  const uint8_t* row = shared + rows[threadIdx.x];
  uint32_t r[{registers}];
  asm volatile("{opcode} {{{names}}}, [%{registers}];" : {outputs} : {address} : "memory");
  for (int i = 0; i < {registers}; ++i) registers[threadIdx.x * {registers} + i] = r[i];
}}
"""


def store_kernel(name: str, opcode: str, registers: int, generic: bool = False) -> str:
    inputs = ", ".join(f'"r"(r[{i}])' for i in range(registers))
    names = ", ".join(f"%{i + 1}" for i in range(registers))
    address = '"l"(row)' if generic else '"r"(uint32_t(__cvta_generic_to_shared(row)))'
    return f"""
KERNEL {name}(const uint32_t* registers, const int* rows, uint8_t* image) {{
  for (int i = threadIdx.x; i < {SHARED_BYTES}; i += 32) shared[i] = 0;
  __syncwarp();
  uint8_t* row = shared + rows[threadIdx.x];
  uint32_t r[{registers}];
  for (int i = 0; i < {registers}; ++i) r[i] = registers[threadIdx.x * {registers} + i];
  asm volatile("{opcode} [%0], {{{names}}};" :: {address}, {inputs} : "memory");
  __syncwarp();
  for (int i = threadIdx.x; i < {SHARED_BYTES}; i += 32) image[i] = shared[i];
}}
"""


HEAD = f"""
#include <cstdint>
#define KERNEL extern "C" __global__ void
__shared__ __align__(128) uint8_t shared[{SHARED_BYTES}];
"""
BASIC_SOURCE = (
    HEAD
    + """
KERNEL movmatrix(const uint32_t* from, uint32_t* to) {
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(to[threadIdx.x]) : "r"(from[threadIdx.x]));
}
"""
)
for number in (1, 2, 4):
    for suffix in ("", ".trans"):
        tail = f"{number}{suffix.replace('.', '_')}"
        form = f"sync.aligned.m8n8.x{number}{suffix}"
        BASIC_SOURCE += load_kernel(f"load16_{tail}", f"ldmatrix.{form}.shared.b16", number)
        BASIC_SOURCE += load_kernel(f"load16_{tail}_generic", f"ldmatrix.{form}.b16", number, True)
        BASIC_SOURCE += store_kernel(f"store16_{tail}", f"stmatrix.{form}.shared::cta.b16", number)
        BASIC_SOURCE += store_kernel(
            f"store16_{tail}_generic", f"stmatrix.{form}.b16", number, True
        )
BYTE_SOURCE = HEAD
FORMATS = {8: "b8", 6: "b8x16.b6x16_p32", 4: "b8x16.b4x16_p64"}
for bits, fmt in FORMATS.items():
    for number in (1, 2):
        opcode = f"ldmatrix.sync.aligned.m16n16.x{number}.trans.shared.{fmt}"
        BYTE_SOURCE += load_kernel(f"load8_{bits}_{number}", opcode, 2 * number)
    if bits < 8:
        for number in (1, 2, 4):
            opcode = f"ldmatrix.sync.aligned.m8n16.x{number}.shared.{fmt}"
            BYTE_SOURCE += load_kernel(f"unpack_{bits}_{number}", opcode, number)
for number in (1, 2, 4):
    opcode = f"stmatrix.sync.aligned.m16n8.x{number}.trans.shared.b8"
    BYTE_SOURCE += store_kernel(f"store8_{number}", opcode, number)


@pytest.fixture(scope="module")
def basic():
    return simulator.compile(BASIC_SOURCE, "90a")


@pytest.fixture(scope="module")
def of_bytes():
    return simulator.compile(BYTE_SOURCE, "100a")


@pytest.fixture
def rng():
    return numpy.random.default_rng(3)


def random_rows(rng) -> torch.Tensor:
    """Offsets of 32 different rows of 16 bytes."""
    rows = rng.permutation(SHARED_BYTES // 16)[:32] * 16
    return torch.from_numpy(rows.astype(numpy.int32))


def load(module, kernel: str, registers: int, rng):
    """Random shared memory; returns registers [lane][register] and the 32 rows [32][16]."""
    image = rng.integers(0, 256, SHARED_BYTES, dtype=numpy.uint8)
    rows = random_rows(rng)
    result = torch.zeros((32, registers), dtype=torch.int32)
    module.launch(kernel, arguments=[torch.from_numpy(image), rows, result])
    return result.numpy().view(numpy.uint32), image.reshape(-1, 16)[rows.numpy() // 16]


@pytest.mark.parametrize("generic", ["", "_generic"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_load_16(basic, rng, number, generic):
    got, rows = load(basic, f"load16_{number}{generic}", number, rng)
    words = rows.view(numpy.uint32)  # [row][4]
    for lane in range(32):
        for matrix in range(number):
            assert got[lane, matrix] == words[8 * matrix + lane // 4, lane % 4]


@pytest.mark.parametrize("generic", ["", "_generic"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_load_16_transposed(basic, rng, number, generic):
    got, rows = load(basic, f"load16_{number}_trans{generic}", number, rng)
    elements, halves = rows.view(numpy.uint16), got.view(numpy.uint16).reshape(32, number, 2)
    for lane in range(32):
        for matrix in range(number):
            for half in range(2):
                row = 8 * matrix + 2 * (lane % 4) + half
                assert halves[lane, matrix, half] == elements[row, lane // 4]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("bits", [8, 6, 4])
def test_load_8_transposed(of_bytes, rng, number, bits):
    got, rows = load(of_bytes, f"load8_{bits}_{number}", 2 * number, rng)
    elements = unpacked(rows, bits)
    for lane in range(32):
        for register in range(2 * number):
            for byte in range(4):
                row = 16 * (register // 2) + 4 * (lane % 4) + 2 * (register % 2) + byte % 2
                column = lane // 4 + 8 * (byte // 2)
                assert got[lane, register] >> 8 * byte & 0xFF == elements[row, column]


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("bits", [6, 4])
def test_load_unpacked(of_bytes, rng, number, bits):
    got, rows = load(of_bytes, f"unpack_{bits}_{number}", number, rng)
    elements = unpacked(rows, bits)
    for lane in range(32):
        for register in range(number):
            for byte in range(4):
                element = elements[8 * register + lane // 4, lane % 4 * 4 + byte]
                assert got[lane, register] >> 8 * byte & 0xFF == element


def unpacked(rows: numpy.ndarray, bits: int) -> numpy.ndarray:
    """16 elements of a row, from its first 2 * bits bytes."""
    numbers = [int.from_bytes(row.tobytes(), "little") for row in rows]
    return numpy.array([[n >> bits * e & (2**bits - 1) for e in range(16)] for n in numbers])


def store(module, kernel: str, registers: int, rng):
    """Random registers; returns them [lane][register], and the 32 rows [32][16] in memory."""
    words = rng.integers(0, 2**32, (32, registers), dtype=numpy.uint32)
    rows = random_rows(rng)
    image = torch.zeros(SHARED_BYTES, dtype=torch.uint8)
    module.launch(kernel, arguments=[torch.from_numpy(words.view(numpy.int32)), rows, image])
    written = image.numpy().reshape(-1, 16)
    result = written[rows.numpy() // 16].copy()
    written[rows.numpy() // 16] = 0
    assert not written.any()  # nothing but the rows
    return words, result


@pytest.mark.parametrize("generic", ["", "_generic"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_store_16(basic, rng, number, generic):
    words, rows = store(basic, f"store16_{number}{generic}", number, rng)
    for lane in range(32):
        for matrix in range(number):
            assert rows.view(numpy.uint32)[8 * matrix + lane // 4, lane % 4] == words[lane, matrix]


@pytest.mark.parametrize("generic", ["", "_generic"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_store_16_transposed(basic, rng, number, generic):
    words, rows = store(basic, f"store16_{number}_trans{generic}", number, rng)
    for lane in range(32):
        for matrix in range(number):
            for half in range(2):
                row = 8 * matrix + 2 * (lane % 4) + half
                element = rows.view(numpy.uint16)[row, lane // 4]
                assert element == words[lane, matrix] >> 16 * half & 0xFFFF


@pytest.mark.parametrize("number", [1, 2, 4])
def test_store_8_transposed(of_bytes, rng, number):
    words, rows = store(of_bytes, f"store8_{number}", number, rng)
    for lane in range(32):
        for matrix in range(number):
            for byte in range(4):
                row, column = 8 * matrix + 2 * (lane % 4) + byte % 2, lane // 4 + 8 * (byte // 2)
                assert rows[row, column] == words[lane, matrix] >> 8 * byte & 0xFF


def test_movmatrix(basic, rng):
    matrix = rng.integers(0, 2**16, (8, 8), dtype=numpy.uint16)
    result = torch.zeros(32, dtype=torch.int32)
    basic.launch("movmatrix", arguments=[torch.from_numpy(matrix.view(numpy.int32).copy()), result])
    assert numpy.array_equal(result.numpy().view(numpy.uint16).reshape(8, 8), matrix.T)


# --- rules ----------------------------------------------------------------------------------------

LOAD = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2];"
STORE = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%r4, %r5, %r6, %r7};"
ADDRESS = "mad.lo.u32 %r2, %r0, {}, %r1;\n"  # of each lane's row


def run(statement: str, pitch: int = 16, **more):
    text = (
        ADDRESS.format(pitch)
        + "mov.u64 %d2, 0;\nmad.wide.u32 %d2, %r0, 8, %d2;\ncvt.u32.u64 %r3, %d2;\n"
    )
    fill = "add.u32 %r3, %r3, %r1;\nst.shared.v2.b32 [%r3], {%r0, %r0};\nbar.sync 0;\n"
    module = simulator.Module(ptx(text + fill + statement))
    return module.launch("k", arguments=[torch.zeros(1)], **more)


@pytest.mark.parametrize(
    ("pitch", "wavefronts"),
    [(16, 4), (32, 8), (48, 4), (0, 4)],  # 48: three banks of four further each row, no conflict
)
def test_wavefronts(pitch, wavefronts):
    """Four matrices of 128 bytes; rows in the same banks take turns, equal rows do not."""
    base = run("", pitch, options=simulator.options(count=True, check=False)).counters.total
    total = run(
        LOAD if pitch < 32 else LOAD.replace("x4", "x2").replace(", %r6, %r7", ""),
        pitch,
        options=simulator.options(count=True, check=False),
    ).counters.total
    expected = wavefronts if pitch < 32 else wavefronts // 2
    assert total.shared_loads - base.shared_loads == 1
    assert total.shared_load_wavefronts - base.shared_load_wavefronts == expected
    assert total.instructions["matrix_move"] == 1


@pytest.mark.parametrize("statement", [LOAD, STORE])
def test_misaligned(statement):
    with pytest.raises(simulator.SimulatorError, match="multiple of 16"):
        run(statement, 8)


@pytest.mark.parametrize("statement", [LOAD, STORE])
def test_outside_of_the_block(statement):
    with pytest.raises(simulator.SimulatorError, match="outside"):
        run(statement.replace("%r2]", "%r2+4096]"))
    with pytest.raises(simulator.SimulatorError, match="not in shared memory"):
        run(statement.replace(".shared", "").replace("%r2]", "%d0]"))


@pytest.mark.parametrize(
    "statement", [LOAD, STORE, "movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r5;"]
)
def test_partial_warp(statement):
    with pytest.raises(simulator.SimulatorError, match="all 32 lanes"):
        run(f"setp.lt.u32 %p1, %r0, 31;\n@%p1 {statement}")


def test_race():
    """A load of what another lane wrote needs a barrier between warps; here, two warps."""
    text = (
        ADDRESS.format(8)
        + "shr.u32 %r3, %r0, 5;\nst.shared.v2.b32 [%r2], {%r0, %r0};\n{}mov.u32 %r2, %r1;\n"
        + LOAD
    )
    for barrier, races in [("", True), ("bar.sync 0;\n", False)]:
        module = simulator.Module(ptx(text.replace("{}", barrier)))
        launch = module.launch("k", block=64, arguments=[torch.zeros(1)], allow_races=True)
        assert bool(launch.races) == races


@pytest.mark.parametrize(
    "statement",
    [
        LOAD.replace("m8n8", "m16n16"),
        LOAD.replace("b16", "b8"),
        LOAD.replace("x4", "x8"),
        LOAD.replace(".aligned", ""),
        LOAD.replace(", %r6, %r7", ""),
        LOAD.replace("m8n8.x4", "m8n16.x4.trans").replace("b16", "b8x16.b4x16_p64"),
        LOAD.replace("m8n8.x4", "m16n16.x4.trans").replace("b16", "b8"),
        STORE.replace("m8n8", "m16n8").replace("b16", "b8"),
        STORE.replace("shared", "global"),
        "movmatrix.sync.aligned.m8n8.b16 %r4, %r5;",
    ],
)
def test_unknown_forms(statement):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+"):
        simulator.Module(ptx(statement)).decode("k")
