"""Matrices for tests of tensor cores: number formats, shared-memory layouts and descriptors,
written out from the PTX ISA and not from the simulator."""

from __future__ import annotations

import numpy

# --- number formats -------------------------------------------------------------------------------

BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4,
    "s8": 8, "u8": 8,
}  # fmt: skip
_SMALL_FLOATS = {"e4m3": (4, 3), "e5m2": (5, 2), "e2m3": (2, 3), "e3m2": (3, 2), "e2m1": (2, 1)}


def _small_float_table(exponent_bits: int, mantissa_bits: int) -> dict[float, int]:
    """Code of each non-negative value. Codes that are infinite or NaN in the format are too large
    to matter here."""
    bias = 2 ** (exponent_bits - 1) - 1
    table = {}
    for code in range(2 ** (exponent_bits + mantissa_bits)):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        fraction = mantissa / 2**mantissa_bits + (exponent > 0)
        table[fraction * 2.0 ** (max(exponent, 1) - bias)] = code
    return table


def encode(values: numpy.ndarray, fmt: str) -> numpy.ndarray:
    """Codes of values that the format represents exactly, in uint32."""
    values = numpy.asarray(values, dtype=numpy.float32)
    if fmt == "f16":
        codes = values.astype(numpy.float16).view(numpy.uint16)
    elif fmt == "bf16":
        codes = values.view(numpy.uint32) >> 16
    elif fmt == "tf32":
        codes = values.view(numpy.uint32)
    elif fmt in ("s8", "u8"):
        codes = values.astype(numpy.int32) & 0xFF
    else:
        exponent_bits, mantissa_bits = _SMALL_FLOATS[fmt]
        table = _small_float_table(exponent_bits, mantissa_bits)
        sign = 1 << (exponent_bits + mantissa_bits)
        find = numpy.vectorize(lambda v: table[abs(v)] | (sign if v < 0 else 0), otypes=[int])
        codes = find(values)
    return codes.astype(numpy.uint32)


def random_integers(fmt: str, shape: tuple[int, ...], rng) -> numpy.ndarray:
    """Small integers that the format represents."""
    low, high = {"u8": (0, 256), "s8": (-128, 128), "e2m1": (-4, 5)}.get(fmt, (-7, 8))
    return rng.integers(low, high, shape)


# --- shared memory --------------------------------------------------------------------------------

SPANS = [16, 32, 64, 128]  # bytes of a row of the swizzle pattern; 16: no swizzle


def swizzle(address: numpy.ndarray, span: int, pattern: int = 0) -> numpy.ndarray:
    """The 16-byte unit within the span changes by the 128-byte line: with 32 bytes bit 4 by bit 7,
    with 64 bits 4 and 5 by 7 and 8, with 128 bits 4 to 6 by 7 to 9. Lines count from `pattern`."""
    units = span // 16
    return address ^ ((address - pattern) // 128 % units * 16) if units > 1 else address


def swizzle_in_32_byte_atoms(address: numpy.ndarray) -> numpy.ndarray:
    return address ^ (address // 128 % 4 * 32)


class Layout:
    """Where a tile of rows (of M or N) by K lies, from `start` on. The 8 rows (or steps of K) that
    the pattern covers are `span` bytes apart; `lbo` and `sbo` are what the descriptor says, and
    `pattern` is where the pattern begins, modulo 1024."""

    def __init__(self, start, span, *, mn_major=False, lbo=0, sbo=0, atoms_of_32=False, pattern=0):
        self.start, self.span, self.mn_major, self.pattern = start, span, mn_major, pattern
        self.lbo, self.sbo, self.atoms_of_32 = lbo, sbo, atoms_of_32

    def address(self, row, step, byte):
        """Address of a byte along the contiguous dimension, at a row (MN-major: a step)."""
        across = step if self.mn_major else row
        if self.span == 16:
            near = byte % 16 + across % 8 * 16
            if self.mn_major:
                return self.start + near + byte // 16 * self.sbo + across // 8 * self.lbo
            return self.start + near + byte // 16 * self.lbo + across // 8 * self.sbo
        lines = 4 if self.atoms_of_32 else 8
        address = (
            self.start + byte % self.span + across % lines * self.span + across // lines * self.sbo
        )
        if self.mn_major:
            address = address + byte // self.span * self.lbo
        if self.atoms_of_32:
            return swizzle_in_32_byte_atoms(address)
        return swizzle(address, self.span, self.pattern)

    def store(self, image: numpy.ndarray, codes: numpy.ndarray, bits: int, padded: bool = False):
        """Writes a matrix [rows][K], bit by bit. `padded`: 16 elements and padding to 16 bytes."""
        row, step = numpy.indices(codes.shape)
        along = row if self.mn_major else step
        first = along // 16 * 128 + along % 16 * bits if padded else along * bits
        for b in range(bits):
            place = first + b
            address = self.address(row, step, place // 8)
            bit = (codes >> b & 1) << place % 8
            numpy.bitwise_or.at(image, address, bit.astype(numpy.uint8))


def dense_layout(start: int, rows: int, steps: int, bits: int, span: int, mn_major: bool, gap=0):
    """A layout in which tiles follow each other without overlap, `gap` bytes apart.
    Returns it and the address behind it."""
    unit = 8 * span + gap  # what the pattern covers
    if mn_major:
        spans, groups = -(-rows * bits // 8 // span), -(-steps // 8)
        if span == 16:
            layout = Layout(start, span, mn_major=True, sbo=unit, lbo=spans * unit)
        else:
            layout = Layout(start, span, mn_major=True, lbo=unit, sbo=spans * unit)
    else:
        spans, groups = (
            (-(-steps * bits // 8 // 16), -(-rows // 8)) if span == 16 else (1, -(-rows // 8))
        )
        layout = Layout(start, span, lbo=unit, sbo=spans * unit)
    return layout, start + spans * groups * unit


def wgmma_descriptor(layout: Layout) -> bytes:
    """As a kernel argument."""
    mode = {16: 0, 128: 1, 64: 2, 32: 3}[layout.span]
    return (_addresses(layout) | mode << 62).to_bytes(8, "little")


def tcgen05_descriptor(layout: Layout) -> bytes:
    """As a kernel argument."""
    mode = 1 if layout.atoms_of_32 else {16: 0, 128: 2, 64: 4, 32: 6}[layout.span]
    return (_addresses(layout) | 1 << 46 | mode << 61).to_bytes(8, "little")


def _addresses(layout: Layout) -> int:
    return (
        (layout.start & 0x3FFFF) >> 4
        | layout.lbo >> 4 << 16
        | layout.sbo >> 4 << 32
        | layout.pattern // 128 << 49
    )
