"""Integers, bits, predicates and floats, against formulas on Python's integers and fractions."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from simulator import exact
from simulator.elementwise import evaluate, pairs, refuses
from simulator.exact import BF16, F16, F32, F64, Format

RANDOM = np.random.default_rng(7)
_STATE = RANDOM.bit_generator.state
SIGNED = {"s16": np.int16, "s32": np.int32, "s64": np.int64}
UNSIGNED = {"u16": np.uint16, "u32": np.uint32, "u64": np.uint64}
INTEGERS = {**UNSIGNED, **SIGNED}
BITS = {"b16": np.uint16, "b32": np.uint32, "b64": np.uint64}


@pytest.fixture(autouse=True)
def same_numbers_whichever_tests_run():
    RANDOM.bit_generator.state = _STATE


def edges(dtype: type, extra: int = 6) -> np.ndarray:
    """Values where wrapping, signs and shifts go wrong, and some others."""
    info = np.iinfo(dtype)
    near = {0, 1, 2, 3, 7, info.max, info.max - 1, info.max // 2, info.max // 2 + 1, 255, 256}
    if info.min < 0:
        near |= {-1, -2, -7, info.min, info.min + 1, info.min // 2}
    fixed = [v for v in sorted(near) if info.min <= v <= info.max]
    other = RANDOM.integers(info.min, info.max, extra, dtype=dtype, endpoint=True)
    return np.concatenate([np.array(fixed, dtype), other])


def wrap(value: int, dtype: type) -> int:
    info = np.iinfo(dtype)
    value &= (1 << info.bits) - 1
    return value - (1 << info.bits) if value > info.max else value


def signed32(value: int) -> int:
    return wrap(value, np.int32)


def clamp32(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def expect(opcode, result, function, *operands, texts=(), target="sm_90"):
    """`function` is of Python ints; its results wrap to the type."""
    got = evaluate(opcode, result, *operands, *texts, target=target)
    numbers = [o.tolist() for o in operands]
    if np.dtype(result) == np.bool_:
        want = np.array([bool(function(*row)) for row in zip(*numbers, strict=True)])
    else:
        want = np.array(
            [wrap(function(*row), result) for row in zip(*numbers, strict=True)], result
        )
    wrong = np.flatnonzero(got != want)[:3]
    assert wrong.size == 0, [
        (opcode, [hex(n[k]) for n in numbers], hex(got[k]), hex(want[k])) for k in wrong
    ]


# --- integers ---


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_arithmetic(name):
    dtype = INTEGERS[name]
    bits = np.iinfo(dtype).bits
    a, b = pairs(edges(dtype), edges(dtype))
    expect(f"add.{name}", dtype, lambda x, y: x + y, a, b)
    expect(f"sub.{name}", dtype, lambda x, y: x - y, a, b)
    expect(f"mul.lo.{name}", dtype, lambda x, y: x * y, a, b)
    expect(f"mul.hi.{name}", dtype, lambda x, y: x * y >> bits, a, b)
    expect(f"min.{name}", dtype, min, a, b)
    expect(f"max.{name}", dtype, max, a, b)
    c = RANDOM.permutation(a)
    expect(f"mad.lo.{name}", dtype, lambda x, y, z: x * y + z, a, b, c)
    expect(f"mad.hi.{name}", dtype, lambda x, y, z: (x * y >> bits) + z, a, b, c)
    expect(f"sad.{name}", dtype, lambda x, y, z: z + abs(x - y), a, b, c)
    some = b != 0
    expect(f"div.{name}", dtype, quotient, a[some], b[some])
    expect(f"rem.{name}", dtype, lambda x, y: x - y * quotient(x, y), a[some], b[some])


@pytest.mark.parametrize("name", ["u16", "s16", "u32", "s32"])
def test_wide_products(name):
    dtype = INTEGERS[name]
    wide = {np.uint16: np.uint32, np.int16: np.int32, np.uint32: np.uint64, np.int32: np.int64}[
        dtype
    ]
    a, b = pairs(edges(dtype), edges(dtype))
    expect(f"mul.wide.{name}", wide, lambda x, y: x * y, a, b)
    c = RANDOM.choice(edges(wide), a.size)
    expect(f"mad.wide.{name}", wide, lambda x, y, z: x * y + z, a, b, c)


@pytest.mark.parametrize("name", SIGNED)
def test_sign_operations(name):
    a = edges(SIGNED[name])
    expect(f"abs.{name}", SIGNED[name], abs, a)
    expect(f"neg.{name}", SIGNED[name], lambda x: -x, a)


def test_saturating_arithmetic():
    a, b = pairs(edges(np.int32), edges(np.int32))
    c = RANDOM.permutation(a)
    expect("add.sat.s32", np.int32, lambda x, y: clamp32(x + y), a, b)
    expect("sub.sat.s32", np.int32, lambda x, y: clamp32(x - y), a, b)
    expect("mad.hi.sat.s32", np.int32, lambda x, y, z: clamp32((x * y >> 32) + z), a, b, c)


def test_24_bit_products():
    def low24(x, signed):
        x &= 0xFFFFFF
        return x - (1 << 24) if signed and x >> 23 else x

    for name, signed in (("u32", False), ("s32", True)):
        dtype = INTEGERS[name]
        a, b = pairs(edges(dtype), edges(dtype))
        c = RANDOM.permutation(a)

        def product(x, y, signed=signed):
            return low24(x, signed) * low24(y, signed)

        expect(f"mul24.lo.{name}", dtype, product, a, b)
        expect(f"mul24.hi.{name}", dtype, lambda x, y: product(x, y) >> 16, a, b)
        expect(f"mad24.lo.{name}", dtype, lambda x, y, z: product(x, y) + z, a, b, c)
        expect(f"mad24.hi.{name}", dtype, lambda x, y, z: (product(x, y) >> 16) + z, a, b, c)


def halves(x: int, signed: bool) -> tuple[int, int]:
    dtype = np.int16 if signed else np.uint16
    return wrap(x, dtype), wrap(x >> 16, dtype)


@pytest.mark.parametrize("name", ["u16x2", "s16x2"])
def test_packed_integers(name):
    signed = name[0] == "s"
    a, b = pairs(edges(np.uint32), edges(np.uint32))

    def of(function):
        def both(x, y):
            (x0, x1), (y0, y1) = halves(x, signed), halves(y, signed)
            return (function(x0, y0) & 0xFFFF) | (function(x1, y1) & 0xFFFF) << 16

        return both

    expect(f"add.{name}", np.uint32, of(lambda x, y: x + y), a, b)
    expect(f"min.{name}", np.uint32, of(min), a, b)
    expect(f"max.{name}", np.uint32, of(max), a, b)
    if signed:
        expect("min.relu.s16x2", np.uint32, of(lambda x, y: max(min(x, y), 0)), a, b)
        expect("max.relu.s16x2", np.uint32, of(lambda x, y: max(x, y, 0)), a, b)
        p, q = a.view(np.int32), b.view(np.int32)
        expect("min.relu.s32", np.int32, lambda x, y: max(min(x, y), 0), p, q)
        expect("max.relu.s32", np.int32, lambda x, y: max(x, y, 0), p, q)


@pytest.mark.parametrize("types", ["u32.u32", "u32.s32", "s32.u32", "s32.s32"])
def test_dot_products(types):
    dtypes = [np.int8 if t == "s32" else np.uint8 for t in types.split(".")]
    wide = np.int16 if types[0] == "s" else np.uint16
    a, b = pairs(edges(np.uint32), edges(np.uint32))
    c = RANDOM.permutation(a)

    def dp4a(x, y, z):
        return z + sum(wrap(x >> k, dtypes[0]) * wrap(y >> k, dtypes[1]) for k in (0, 8, 16, 24))

    def dp2a(first):
        return lambda x, y, z: (
            z + sum(wrap(x >> 16 * k, wide) * wrap(y >> 8 * (first + k), dtypes[1]) for k in (0, 1))
        )

    expect(f"dp4a.{types}", np.uint32, dp4a, a, b, c)
    expect(f"dp2a.lo.{types}", np.uint32, dp2a(0), a, b, c)
    expect(f"dp2a.hi.{types}", np.uint32, dp2a(2), a, b, c)


def test_division_by_zero_is_an_error():
    import simulator

    for opcode in ("div.u32", "div.s64", "rem.s32", "rem.u16"):
        dtype = INTEGERS[opcode.split(".")[1]]
        with pytest.raises(simulator.SimulatorError, match="0"):
            evaluate(opcode, dtype, np.array([1, 2], dtype), np.array([1, 0], dtype))


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_carry(name):
    """Sums, differences and products of three words; carries pass from one to the next."""
    import torch

    import simulator

    dtype = UNSIGNED["u" + name[1:]]
    bits = np.iinfo(dtype).bits
    rows = RANDOM.choice(edges(dtype, 40), (32, 9))
    rows[:4] = np.array([0, np.iinfo(dtype).max, 1, np.iinfo(dtype).max // 2 + 1], dtype)[:, None]
    bytes_ = bits // 8
    loads = "".join(f"ld.global.b{bits} %x{k}, [%a+{bytes_ * k}];\n" for k in range(9))
    stores = "".join(f"st.global.b{bits} [%o+{bytes_ * k}], %y{k};\n" for k in range(9))
    # What some lanes do in between must not disturb the flags of the others.
    module = simulator.Module(f""".version 8.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in)
{{
.reg .b32 %t; .reg .pred %p; .reg .b64 %a, %o; .reg .b{bits} %x<9>, %y<9>, %z;
mov.u32 %t, %tid.x;
setp.gt.u32 %p, %t, 20;
ld.param.u64 %a, [in]; mad.wide.u32 %a, %t, {9 * bytes_}, %a;
ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, {9 * bytes_}, %o;
{loads}
add.cc.{name} %y0, %x0, %x3;
@%p sub.cc.{name} %z, %x0, %x3;
@%p add.cc.{name} %y0, %x0, %x3;
addc.cc.{name} %y1, %x1, %x4;
addc.{name} %y2, %x2, %x5;
sub.cc.{name} %y3, %x0, %x3;
subc.cc.{name} %y4, %x1, %x4;
subc.{name} %y5, %x2, %x5;
mad.lo.cc.{name} %y6, %x0, %x3, %x6;
madc.hi.cc.{name} %y7, %x0, %x3, %x7;
madc.lo.{name} %y8, %x1, %x4, %x8;
{stores}
ret;
}}
""")
    out = np.zeros_like(rows)
    memory = torch.from_numpy(out.view(np.uint8))
    module.launch("k", block=32, arguments=[memory, torch.from_numpy(rows.view(np.uint8))])

    def words(values):
        return sum(int(v) << bits * k for k, v in enumerate(values))

    signed = {32: np.int32, 64: np.int64}[bits] if name[0] == "s" else dtype
    for x, y in zip(rows, out, strict=True):
        total = 1 << 3 * bits
        assert words(y[:3]) == (words(x[:3]) + words(x[3:6])) % total
        assert words(y[3:6]) == (words(x[:3]) - words(x[3:6])) % total
        product = wrap(int(x[0]), signed) * wrap(int(x[3]), signed)
        low = product % (1 << bits) + int(x[6])
        high = (product >> bits) % (1 << bits) + int(x[7]) + (low >> bits)
        last = int(x[1]) * int(x[4]) + int(x[8]) + (high >> bits)
        mask = (1 << bits) - 1
        assert [int(v) for v in y[6:]] == [low & mask, high & mask, last & mask]


# --- bits ---


@pytest.mark.parametrize("name", BITS)
def test_logic(name):
    dtype = BITS[name]
    a, b = pairs(edges(dtype), edges(dtype))
    expect(f"and.{name}", dtype, lambda x, y: x & y, a, b)
    expect(f"or.{name}", dtype, lambda x, y: x | y, a, b)
    expect(f"xor.{name}", dtype, lambda x, y: x ^ y, a, b)
    expect(f"not.{name}", dtype, lambda x: ~x, a)
    expect(f"cnot.{name}", dtype, lambda x: int(x == 0), a)


def test_predicate_logic():
    a, b = pairs(np.array([False, True]), np.array([False, True]))
    a, b = np.tile(a, 9), np.tile(b, 9)
    expect("and.pred", np.bool_, lambda x, y: x and y, a, b)
    expect("or.pred", np.bool_, lambda x, y: x or y, a, b)
    expect("xor.pred", np.bool_, lambda x, y: x != y, a, b)
    expect("not.pred", np.bool_, lambda x: not x, a)
    expect("mov.pred", np.bool_, lambda x: x, a)
    assert evaluate("and.pred", np.bool_, a, "1").tolist() == a.tolist()
    got = evaluate("or.pred", np.bool_, a, b, statement="or.pred %d, %a, !%b;")
    assert got.tolist() == (a | ~b).tolist()


@pytest.mark.parametrize("name", [*BITS, *INTEGERS])
def test_shifts(name):
    dtype = {**BITS, **INTEGERS}[name]
    bits = np.iinfo(dtype).bits
    counts = np.array([0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 2**31, 2**32 - 1])
    a, n = pairs(edges(dtype), counts.astype(np.uint32))
    expect(f"shr.{name}", dtype, lambda x, s: x >> min(s, bits), a, n)
    if name in BITS:
        expect(f"shl.{name}", dtype, lambda x, s: x << min(s, bits), a, n)


def test_funnel_shifts():
    a, b, n = pairs(
        edges(np.uint32, 2),
        edges(np.uint32, 2),
        np.array([0, 1, 8, 31, 32, 33, 63, 64, 2**32 - 1], np.uint32),
    )
    for mode in ("clamp", "wrap"):

        def left(x, y, s, mode=mode):
            return ((y << 32 | x) << (s % 32 if mode == "wrap" else min(s, 32))) >> 32

        def right(x, y, s, mode=mode):
            return (y << 32 | x) >> (s % 32 if mode == "wrap" else min(s, 32))

        expect(f"shf.l.{mode}.b32", np.uint32, left, a, b, n)
        expect(f"shf.r.{mode}.b32", np.uint32, right, a, b, n)


def test_lop3():
    a = np.full(33, 0xF0, np.uint32)
    b, c = np.full_like(a, 0xCC), np.full_like(a, 0xAA)
    for table in (0x00, 0x01, 0x1A, 0x40, 0x80, 0x96, 0xE8, 0xFE, 0xFF):
        got = evaluate("lop3.b32", np.uint32, a, b, c, str(table))
        assert set((got & 0xFF).tolist()) == {table}


def test_prmt():
    a, b, c = pairs(
        np.array([0x33221100, 0x80FF7F01], np.uint32),
        np.array([0x77665544, 0x7F80FE02], np.uint32),
        RANDOM.integers(0, 2**32, 40, dtype=np.uint32),
    )

    def generic(x, y, s):
        source = struct.pack("<II", x, y)
        result = 0
        for k in range(4):
            selector = s >> 4 * k & 15
            byte = source[selector & 7]
            if selector & 8:
                byte = 0xFF if byte & 0x80 else 0
            result |= byte << 8 * k
        return result

    expect("prmt.b32", np.uint32, generic, a, b, c)
    tables = {
        "f4e": lambda n, k: n + k,
        "b4e": lambda n, k: (n - k) % 8,
        "rc8": lambda n, k: n,
        "ecl": lambda n, k: max(n, k),
        "ecr": lambda n, k: min(n, k),
        "rc16": lambda n, k: 2 * (n & 1) + (k & 1),
    }
    for mode, table in tables.items():

        def special(x, y, s, table=table):
            source = struct.pack("<II", x, y)
            return sum(source[table(s & 3, k)] << 8 * k for k in range(4))

        expect(f"prmt.b32.{mode}", np.uint32, special, a, b, c)


FIELD_POSITIONS = np.array([0, 1, 5, 31, 32, 40, 63, 64, 255, 256 + 3], np.uint32)
FIELD_LENGTHS = np.array([0, 1, 4, 31, 32, 33, 63, 64, 65, 255, 256 + 2], np.uint32)


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_bit_fields(name):
    """As the ISA spells it out, bit by bit."""
    dtype = INTEGERS[name]
    msb = np.iinfo(dtype).bits - 1

    # An H200 ignores what is beyond 8 bits for fields of 32 bits only.
    mask = 0xFF if msb == 31 else 0xFFFFFFFF

    def bfe(x, position, length):
        x &= (2 << msb) - 1
        position, length = position & mask, length & mask
        sign = 0
        if name[0] == "s" and length:
            sign = x >> min(position + length - 1, msb) & 1
        return sum(
            (x >> position + k & 1 if k < length and position + k <= msb else sign) << k
            for k in range(msb + 1)
        )

    def bfi(x, y, position, length):
        position, length = position & mask, length & mask
        for k in range(min(length, 64)):
            if position + k <= msb:
                bit = 1 << position + k
                y = y | bit if x >> k & 1 else y & ~bit
        return y

    values = np.concatenate([edges(dtype, 0)[-3:], RANDOM.choice(edges(dtype), 3)])
    a, p, n = pairs(values, FIELD_POSITIONS, FIELD_LENGTHS)
    expect(f"bfe.{name}", dtype, bfe, a, p, n)
    if name[0] == "u":
        b = RANDOM.permutation(a)
        expect(f"bfi.b{msb + 1}", dtype, bfi, a, b, p, n)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits):
    dtype, signed = UNSIGNED[f"u{bits}"], SIGNED[f"s{bits}"]
    a = np.concatenate([edges(dtype), dtype(1) << np.arange(bits, dtype=dtype)])

    def highest(x):
        return (~x if x < 0 else x).bit_length() - 1

    def shift(x):
        return bits - 1 - highest(x) if highest(x) >= 0 else -1

    expect(f"popc.b{bits}", np.uint32, lambda x: x.bit_count(), a)
    expect(f"clz.b{bits}", np.uint32, lambda x: bits - x.bit_length(), a)
    expect(f"brev.b{bits}", dtype, lambda x: int(f"{x:0{bits}b}"[::-1], 2), a)
    expect(f"bfind.u{bits}", np.uint32, highest, a)
    expect(f"bfind.s{bits}", np.uint32, highest, a.view(signed))
    expect(f"bfind.shiftamt.u{bits}", np.uint32, shift, a)
    expect(f"bfind.shiftamt.s{bits}", np.uint32, shift, a.view(signed))


def test_masks_and_extensions():
    a, b = pairs(np.arange(0, 70, dtype=np.uint32), np.array([0, 1, 5, 31, 32, 33, 64], np.uint32))

    def bmsk(wrapping):
        def mask(position, width):
            if wrapping:
                position, width = position % 32, width % 32
            return 0 if position >= 32 else ((1 << min(width, 32)) - 1) << position

        return mask

    expect("bmsk.clamp.b32", np.uint32, bmsk(False), a, b)
    expect("bmsk.wrap.b32", np.uint32, bmsk(True), a, b)

    def szext(signed, wrapping):
        def extend(x, n):
            if n >= 32 and not wrapping:
                return x
            n %= 32
            x &= (1 << n) - 1
            return x - (1 << n) if signed and n and x >> (n - 1) else x

        return extend

    x, n = pairs(edges(np.uint32), np.array([0, 1, 2, 8, 31, 32, 33, 40, 64], np.uint32))
    for name, signed in (("u32", False), ("s32", True)):
        expect(f"szext.clamp.{name}", np.uint32, szext(signed, False), x, n)
        expect(f"szext.wrap.{name}", np.uint32, szext(signed, True), x, n)


def test_fns():
    mask, base, offset = pairs(
        edges(np.uint32, 3),
        np.array([0, 1, 15, 31], np.uint32),
        np.array([-9, -2, -1, 0, 1, 2, 9], np.int32),
    )

    def nth(m, at, n):
        if n == 0:
            return at if m >> at & 1 else -1
        where = range(at, 32) if n > 0 else range(at, -1, -1)
        found = [k for k in where if m >> k & 1]
        return found[abs(n) - 1] if len(found) >= abs(n) else -1

    expect("fns.b32", np.uint32, nth, mask, base, offset)


# --- comparison and selection ---

ORDERED = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x < y or x > y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
LOGIC = {"and": lambda t, c: t and c, "or": lambda t, c: t or c, "xor": lambda t, c: t != c}


@pytest.mark.parametrize("name", [*INTEGERS, *BITS])
def test_integer_comparisons(name):
    dtype = {**INTEGERS, **BITS}[name]
    a, b = pairs(edges(dtype, 2), edges(dtype, 2))
    for comparison, holds in ORDERED.items():
        if name in BITS and comparison not in ("eq", "ne"):
            assert refuses(f"setp.{comparison}.{name}", "%p, 1, 1")
            continue
        expect(f"setp.{comparison}.{name}", np.bool_, holds, a, b)
        expect(f"set.{comparison}.u32.{name}", np.uint32, lambda x, y, f=holds: -f(x, y), a, b)
    if name in UNSIGNED:
        for other, comparison in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
            expect(f"setp.{other}.{name}", np.bool_, ORDERED[comparison], a, b)


def test_second_predicate_and_combinations():
    a, b = pairs(edges(np.int32, 2), edges(np.int32, 2))
    c = RANDOM.random(a.size) < 0.5
    less = (a < b).tolist()
    for name, combine in LOGIC.items():
        opcode = f"setp.lt.{name}.s32"
        want = [combine(*row) for row in zip(less, c.tolist(), strict=True)]
        of_not_less = [combine(not t, third) for t, third in zip(less, c.tolist(), strict=True)]
        of_not_third = [combine(t, not third) for t, third in zip(less, c.tolist(), strict=True)]
        for destination, expected in (("%d", want), ("%d|_", want), ("_|%d", of_not_less)):
            got = evaluate(opcode, np.bool_, a, b, c, destination=destination)
            assert got.tolist() == expected
        statement = f"{opcode} %d, %a, %b, !%c;"
        assert evaluate(opcode, np.bool_, a, b, c, statement=statement).tolist() == of_not_third


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint64, np.float32, np.float64])
def test_selection(dtype):
    kind = np.dtype(dtype)
    letter = "f" if kind.kind == "f" else kind.kind
    name = f"{'s' if letter == 'i' else letter}{8 * kind.itemsize}"
    a = np.arange(40).astype(dtype)
    b = (np.arange(40) + 100).astype(dtype)
    c = RANDOM.random(40) < 0.5
    np.testing.assert_array_equal(evaluate(f"selp.{name}", dtype, a, b, c), np.where(c, a, b))
    n = RANDOM.choice(np.array([0, 1, -1, 2**31 - 1, -(2**31)], np.int32), 40)
    np.testing.assert_array_equal(
        evaluate(f"slct.{name}.s32", dtype, a, b, n), np.where(n >= 0, a, b)
    )
    x = RANDOM.choice(np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -1e-45], np.float32), 40)
    np.testing.assert_array_equal(
        evaluate(f"slct.{name}.f32", dtype, a, b, x), np.where(x >= 0, a, b)
    )
    flushed = np.where(np.abs(x) < 2.0**-126, 0, x)
    np.testing.assert_array_equal(
        evaluate(f"slct.ftz.{name}.f32", dtype, a, b, x), np.where(flushed >= 0, a, b)
    )


# --- floats ---

CODES = {F16: np.uint16, BF16: np.uint16, F32: np.uint32, F64: np.uint64}
NAMES = {F16: "f16", BF16: "bf16", F32: "f32", F64: "f64"}
SCALARS = [F16, BF16, F32, F64]


def float_edges(format: Format, extra: int = 4) -> np.ndarray:
    """Codes of both signs: zeros, denormals, smallest, largest, infinities, NaN, near 1, others."""
    one = format.encode(1.0)
    fixed = [
        0,
        1,
        3,
        (1 << format.mantissa_bits) - 1,
        1 << format.mantissa_bits,
        one - 1,
        one,
        one + 1,
    ]
    fixed += [
        format.encode(1.5),
        format.encode(3.0),
        format.largest_code,
        format.infinity,
        format.nan,
    ]
    fixed += [format.infinity + 1]  # a NaN that is not the canonical one
    random = RANDOM.integers(0, format.infinity, extra).tolist()
    random += RANDOM.integers(one - 40, one + 40, extra).tolist()
    codes = fixed + random
    codes += [code | format.sign_bit for code in codes]
    return np.array(codes, CODES[format])


def float_arguments(format: Format, count: int, size: int = 700) -> list[np.ndarray]:
    """Arguments of functions of `count` floats: edges with edges, then numbers near each other."""
    values = float_edges(format)
    chosen = (
        pairs(values, values) if count == 2 else [RANDOM.choice(values, size) for _ in range(count)]
    )
    one = format.encode(1.0)
    spread = 3 << format.mantissa_bits
    near = [RANDOM.integers(one - spread, one + spread, size) for _ in range(count)]
    signs = np.array([0, format.sign_bit], CODES[format])
    return [
        np.concatenate([c, n.astype(c.dtype) | RANDOM.choice(signs, size)])
        for c, n in zip(chosen, near, strict=True)
    ]


def expect_float(opcode, format, function, *codes, mode="rn", flush=False, change=None, **options):
    """`function` is of the exact values; its result is rounded once. `change` is of codes."""
    got = evaluate(opcode, CODES[format], *codes, **options)
    wrong = []
    for k, row in enumerate(zip(*(c.tolist() for c in codes), strict=True)):
        values = [format.decode(format.flush(code) if flush else code) for code in row]
        exactly = function(*values)
        want = format.encode(exactly, mode)
        if flush:
            want = format.flush(want, exactly, mode)
        want = change(want) if change else want
        # A NaN of f64 keeps what it carries.
        is_nan = format is F64 and want == format.nan and math.isnan(format.decode(int(got[k])))
        if int(got[k]) != want and not is_nan:
            wrong.append((opcode, [hex(c) for c in row], hex(got[k]), hex(want)))
    assert not wrong, (len(wrong), wrong[:4])


def saturated(format):
    def change(code):
        x = format.decode(code)
        return 0 if math.isnan(x) or not x > 0 else min(code, format.encode(1.0))

    return change


def relu(format):
    def change(code):
        x = format.decode(code)
        return code if math.isnan(x) or x > 0 else 0

    return change


def subtract(a, b, mode="rn"):
    return (
        exact.add(a, -b, mode)
        if b != 0
        else exact.add(a, 0.0 if exact.is_negative(b) else -0.0, mode)
    )


BINARY = {"add": exact.add, "sub": subtract, "mul": lambda a, b, mode: exact.multiply(a, b)}


@pytest.mark.parametrize("format", SCALARS, ids=NAMES.get)
def test_float_arithmetic(format):
    name = NAMES[format]
    a, b = float_arguments(format, 2)
    for opcode, function in BINARY.items():
        expect_float(f"{opcode}.{name}", format, lambda x, y, f=function: f(x, y, "rn"), a, b)
    expect_float(f"fma.rn.{name}", format, exact.fused, *float_arguments(format, 3))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("format", [F32, F64], ids=NAMES.get)
def test_directed_rounding(format, mode):
    name = NAMES[format]
    a, b = (x[::3] for x in float_arguments(format, 2))
    for opcode, function in BINARY.items():
        expect_float(
            f"{opcode}.{mode}.{name}",
            format,
            lambda x, y, f=function: f(x, y, mode),
            a,
            b,
            mode=mode,
        )
    expect_float(f"div.{mode}.{name}", format, exact.divide, a, b, mode=mode)
    x, y, z = (x[::2] for x in float_arguments(format, 3))
    expect_float(
        f"fma.{mode}.{name}", format, lambda a, b, c: exact.fused(a, b, c, mode), x, y, z, mode=mode
    )
    values = float_edges(format, 40)
    expect_float(
        f"rcp.{mode}.{name}", format, lambda v: exact.divide(Fraction1, v), values, mode=mode
    )
    expect_float(f"sqrt.{mode}.{name}", format, exact.square_root, values, mode=mode)
    # The next instruction rounds to the nearest again.
    expect_float(f"add.{name}", format, exact.add, x, y)


Fraction1 = exact.Fraction(1)


@pytest.mark.parametrize("format", [F32, F64], ids=NAMES.get)
def test_quotients_and_roots(format):
    name = NAMES[format]
    a, b = float_arguments(format, 2)
    values = float_edges(format, 60)
    expect_float(f"div.rn.{name}", format, exact.divide, a, b)
    expect_float(f"rcp.rn.{name}", format, lambda v: exact.divide(Fraction1, v), values)
    expect_float(f"sqrt.rn.{name}", format, exact.square_root, values)
    expect_float(f"mad.rn.{name}", format, exact.fused, *float_arguments(format, 3, 200))


def test_results_are_rounded_before_they_are_flushed():
    """As on an H200: to as many bits as a normal number has. What lies just below the smallest of
    these goes, unless it rounds up to it."""
    half = [format.encode(1.0) - 1 for format in (F32, F16)]  # 1 - 2^-24 and 1 - 2^-11
    smallest, one = np.array([0x00800000], np.uint32), np.array([half[0]], np.uint32)
    for opcode, operands in (
        ("mul", [smallest, one]),
        ("fma.rn", [one, smallest, np.zeros_like(one)]),
    ):
        plain = opcode.replace(".rn", ".rn.ftz") if "fma" in opcode else "mul.ftz"
        assert evaluate(f"{plain}.f32", np.uint32, *operands).tolist() == [0]
        assert evaluate(f"{opcode}.f32", np.uint32, *operands).tolist() == [0x00800000]
    assert evaluate("mul.rp.ftz.f32", np.uint32, smallest, one).tolist() == [0]
    p, q = np.array([0x0400], np.uint16), np.array([half[1] | F16.sign_bit], np.uint16)
    assert evaluate("mul.ftz.f16", np.uint16, p, q).tolist() == [F16.sign_bit]
    assert evaluate("fma.rn.ftz.f16", np.uint16, p, q, np.zeros_like(p)).tolist() == [F16.sign_bit]
    # (2 - 2^-22) * (1 + 2^-23) = 2 - 2^-45 rounds to 2; in halves of the smallest normal number.
    a = np.array([F32.encode(2.0**-63) | 0x7FFFFE], np.uint32)
    b = np.array([F32.encode(2.0**-64) | 1], np.uint32)
    for opcode in ("mul.ftz", "mul.rp.ftz"):
        assert evaluate(f"{opcode}.f32", np.uint32, a, b).tolist() == [0x00800000]
        negative = evaluate(f"{opcode}.f32", np.uint32, a | np.uint32(F32.sign_bit), b)
        assert negative.tolist() == [F32.sign_bit | (0x00800000 if "rp" not in opcode else 0)]
    assert evaluate("fma.rn.ftz.f32", np.uint32, a, b, np.zeros_like(a)).tolist() == [0x00800000]
    a, b = (
        np.array([F16.encode(2.0**-7) | 0x3FE], np.uint16),
        np.array([F16.encode(2.0**-8) | 1], np.uint16),
    )
    assert evaluate("mul.ftz.f16", np.uint16, a, b).tolist() == [0x0400]
    assert evaluate("fma.rn.ftz.f16", np.uint16, a, b, np.zeros_like(a)).tolist() == [0x0400]


def test_flush_to_zero():
    for format, name in ((F32, "f32"), (F16, "f16")):
        # Products and sums in and around the denormals.
        small = RANDOM.integers(0, 3 << format.mantissa_bits, 400).astype(CODES[format])
        small |= RANDOM.choice(np.array([0, format.sign_bit], small.dtype), 400)
        some = RANDOM.choice(float_edges(format), 400)
        a, b = (
            np.concatenate([small, some, small]),
            np.concatenate([RANDOM.permutation(small), small, some]),
        )
        c = RANDOM.permutation(a)
        expect_float(f"add.ftz.{name}", format, exact.add, a, b, flush=True)
        expect_float(f"sub.ftz.{name}", format, subtract, a, b, flush=True)
        expect_float(f"mul.ftz.{name}", format, exact.multiply, a, b, flush=True)
        expect_float(f"fma.rn.ftz.{name}", format, exact.fused, a, b, c, flush=True)
        expect_float(
            f"abs.ftz.{name}",
            format,
            lambda x: -x if exact.is_negative(x) else x,
            small,
            flush=True,
        )
        expect_float(f"neg.ftz.{name}", format, negate, small, flush=True)
    expect_float(
        "div.rn.ftz.f32", F32, exact.divide, *(x[::2] for x in float_arguments(F32, 2)), flush=True
    )
    values = float_edges(F32, 60)
    expect_float("rcp.rn.ftz.f32", F32, lambda v: exact.divide(Fraction1, v), values, flush=True)
    expect_float("sqrt.rn.ftz.f32", F32, exact.square_root, values, flush=True)
    expect_float(
        "add.rz.ftz.f32",
        F32,
        lambda a, b: exact.add(a, b, "rz"),
        *float_arguments(F32, 2, 99),
        mode="rz",
        flush=True,
    )


def negate(x):
    return -x if x != 0 or isinstance(x, float) else -0.0


def test_saturation():
    a, b = float_arguments(F32, 2)
    expect_float("add.sat.f32", F32, exact.add, a, b, change=saturated(F32))
    expect_float(
        "sub.rz.sat.f32",
        F32,
        lambda x, y: subtract(x, y, "rz"),
        a,
        b,
        mode="rz",
        change=saturated(F32),
    )
    expect_float("mul.ftz.sat.f32", F32, exact.multiply, a, b, flush=True, change=saturated(F32))
    expect_float(
        "fma.rn.sat.f32", F32, exact.fused, *float_arguments(F32, 3), change=saturated(F32)
    )
    a, b = float_arguments(F16, 2)
    expect_float("add.sat.f16", F16, exact.add, a, b, change=saturated(F16))
    expect_float(
        "fma.rn.sat.f16", F16, exact.fused, *float_arguments(F16, 3), change=saturated(F16)
    )


@pytest.mark.parametrize("format", [F16, BF16], ids=NAMES.get)
def test_fma_of_halves_rounds_once(format):
    """A product half way between two numbers, and an addend too small for a wider sum to show."""
    a, b = pairs(float_edges(format, 0), float_edges(format, 0))
    one = format.encode(1.0)
    odd = np.arange(one + 1, one + 64, 2, dtype=np.uint16)
    x, y = pairs(odd, odd)
    ties = [
        (p, q)
        for p, q in zip(x.tolist(), y.tolist(), strict=True)
        if (product := format.decode(p) * format.decode(q))
        and exact.round_integer(product * 2 ** (format.mantissa_bits + 1), "rz") % 2
    ]
    x, y = (np.array(v, np.uint16) for v in zip(*ties, strict=True))
    for tiny in (1, format.sign_bit | 1, 0, format.encode(2.0**-14)):
        expect_float(f"fma.rn.{NAMES[format]}", format, exact.fused, x, y, np.full_like(x, tiny))
    if format is BF16:
        # 1.5 * (1 + 2^-7) = 1.51171875 lies half way; 2^-100 decides.
        p, q = np.array([0x3FC0] * 2, np.uint16), np.array([0x3F81] * 2, np.uint16)
        c = np.array([BF16.encode(2.0**-100), BF16.encode(-(2.0**-100))], np.uint16)
        assert evaluate("fma.rn.bf16", np.uint16, p, q, c).tolist() == [0x3FC2, 0x3FC1]
    z = RANDOM.permutation(a)
    expect_float(f"fma.rn.relu.{NAMES[format]}", format, exact.fused, a, b, z, change=relu(format))


def packed(low: np.ndarray, high: np.ndarray, bits: int) -> np.ndarray:
    wide = np.uint64 if bits == 32 else np.uint32
    return low.astype(wide) | high.astype(wide) << wide(bits)


@pytest.mark.parametrize("format", [F16, BF16, F32], ids=NAMES.get)
def test_packed_floats(format):
    """Each half of a packed operation is what the scalar one gives."""
    name, codes = NAMES[format], CODES[format]
    bits = np.dtype(codes).itemsize * 8
    wide = np.uint64 if bits == 32 else np.uint32
    target = "sm_100a" if format is F32 else "sm_90"
    opcodes = {"add{}": 2, "sub{}": 2, "mul{}": 2, "fma.rn{}": 3}
    if format is not F32:
        opcodes |= {"abs{}": 1, "neg{}": 1, "min{}": 2, "max{}": 2, "min{}.NaN": 2, "max{}.NaN": 2}
        opcodes |= {"fma.rn{}.relu": 3}
    for opcode, count in opcodes.items():
        for option in ("",) if format is BF16 else ("", ".ftz"):
            scalar = f"{opcode.format(option)}.{name}"
            first = float_arguments(format, count, 150)
            second = [RANDOM.permutation(x) for x in first]
            both = [packed(x, y, bits) for x, y in zip(first, second, strict=True)]
            got = evaluate(f"{scalar}x2", wide, *both, target=target)
            low = evaluate(scalar, codes, *first, target=target)
            high = evaluate(scalar, codes, *second, target=target)
            np.testing.assert_array_equal(got, packed(low, high, bits), scalar)


def extremum(maximum: bool, nan: bool):
    def function(*values):
        numbers = [v for v in values if not math.isnan(v)]
        if not numbers or (nan and len(numbers) < len(values)):
            return math.nan
        return (max if maximum else min)(numbers, key=lambda v: (v, not exact.is_negative(v)))

    return function


@pytest.mark.parametrize("format", SCALARS, ids=NAMES.get)
def test_minimum_and_maximum(format):
    a, b = float_arguments(format, 2, 100)
    for opcode, maximum in (("min", False), ("max", True)):
        expect_float(f"{opcode}.{NAMES[format]}", format, extremum(maximum, False), a, b)
        if format is not F64:
            expect_float(f"{opcode}.NaN.{NAMES[format]}", format, extremum(maximum, True), a, b)
        if format is F32:
            expect_float(f"{opcode}.ftz.f32", format, extremum(maximum, False), a, b, flush=True)
            c = RANDOM.permutation(a)
            for option, nan, flush in (
                ("", False, False),
                (".NaN", True, False),
                (".ftz.NaN", True, True),
            ):
                expect_float(
                    f"{opcode}{option}.f32",
                    F32,
                    extremum(maximum, nan),
                    a,
                    b,
                    c,
                    flush=flush,
                    target="sm_100a",
                )


@pytest.mark.parametrize("format", SCALARS, ids=NAMES.get)
def test_signs(format):
    """Sign bits change, but not of NaN."""
    codes, dtype = float_edges(format), CODES[format]
    sign, rest = dtype(format.sign_bit), dtype(format.sign_bit - 1)
    nan = np.array([math.isnan(format.decode(int(code))) for code in codes])
    quiet = codes[nan] | dtype(1 << (format.mantissa_bits - 1))
    for opcode, want in (("abs", codes & rest), ("neg", codes ^ sign)):
        got = evaluate(f"{opcode}.{NAMES[format]}", dtype, codes)
        np.testing.assert_array_equal(got[~nan], want[~nan])
        np.testing.assert_array_equal(
            got[nan], quiet if format is F64 else np.full_like(quiet, format.nan)
        )
    if format in (F32, F64):
        a, b = pairs(codes, codes)
        got = evaluate(f"copysign.{NAMES[format]}", dtype, a, b)
        np.testing.assert_array_equal(got, (a & sign) | (b & rest))


@pytest.mark.parametrize("source", [F16, BF16], ids=NAMES.get)
def test_mixed_precision(source):
    name = NAMES[source]
    a, b = (RANDOM.choice(float_edges(source), 600) for _ in range(2))
    c = RANDOM.choice(float_edges(F32, 30), 600)
    c[:200] = RANDOM.integers(F32.encode(0.25), F32.encode(4.0), 200)

    def check(opcode, function, mode, *halves):
        got = evaluate(opcode, np.uint32, *halves, c, target="sm_100a")
        for k in range(600):
            values = [source.decode(int(h[k])) for h in halves]
            want = F32.encode(function(*values, F32.decode(int(c[k])), mode), mode)
            assert int(got[k]) == want, (opcode, hex(halves[0][k]), hex(c[k]))

    for mode in ("rn", "rz", "rm", "rp"):
        check(f"add.{mode}.f32.{name}", exact.add, mode, a)
        check(f"sub.{mode}.f32.{name}", subtract, mode, a)
        check(f"fma.{mode}.f32.{name}", exact.fused, mode, a, b)


FLOAT_COMPARISONS = {
    **ORDERED,
    **{
        f"{name}u": (lambda x, y, f=function: math.isnan(x) or math.isnan(y) or f(x, y))
        for name, function in ORDERED.items()
    },
    "num": lambda x, y: not (math.isnan(x) or math.isnan(y)),
    "nan": lambda x, y: math.isnan(x) or math.isnan(y),
}


@pytest.mark.parametrize("format", SCALARS, ids=NAMES.get)
def test_float_comparisons(format):
    name = NAMES[format]
    a, b = pairs(float_edges(format, 1), float_edges(format, 1))
    values = [
        (format.decode(x), format.decode(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    flushed = [
        (format.decode(format.flush(x)), format.decode(format.flush(y)))
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    for comparison, holds in FLOAT_COMPARISONS.items():
        want = [holds(x, y) for x, y in values]
        assert evaluate(f"setp.{comparison}.{name}", np.bool_, a, b).tolist() == want
        got = evaluate(f"set.{comparison}.u32.{name}", np.uint32, a, b)
        assert got.tolist() == [0xFFFFFFFF * t for t in want]
        if format in (F32, F16):
            want = [holds(x, y) for x, y in flushed]
            assert evaluate(f"setp.{comparison}.ftz.{name}", np.bool_, a, b).tolist() == want
    third = RANDOM.random(a.size) < 0.5
    got = evaluate(f"setp.gtu.xor.{name}", np.bool_, a, b, third)
    greater = FLOAT_COMPARISONS["gtu"]
    assert got.tolist() == [
        greater(x, y) != c for (x, y), c in zip(values, third.tolist(), strict=True)
    ]


def test_results_of_set():
    a = np.array([1, 2, 3] * 11, np.int32)
    b = np.array([2, 2, 2] * 11, np.int32)
    less = a < b
    assert evaluate("set.lt.f32.s32", np.float32, a, b).tolist() == less.astype(float).tolist()
    assert evaluate("set.lt.f16.s32", np.float16, a, b).tolist() == less.astype(float).tolist()
    assert evaluate("set.lt.bf16.s32", np.uint16, a, b).tolist() == (less * 0x3F80).tolist()
    x, y = a.astype(np.float16), b.astype(np.float16)
    assert evaluate("set.lt.u16.f16", np.uint16, x, y).tolist() == (less * 0xFFFF).tolist()
    third = np.arange(33) % 2 == 0
    assert (
        evaluate("set.lt.or.u32.f16", np.uint32, x, y, third).tolist()
        == ((less | third) * np.uint32(0xFFFFFFFF)).tolist()
    )


@pytest.mark.parametrize("format", [F16, BF16], ids=NAMES.get)
def test_packed_comparisons(format):
    """setp gives p of the low halves and q of the high ones; set gives each a half."""
    name = NAMES[format]
    a, b = pairs(float_edges(format, 1), float_edges(format, 1))
    high_a, high_b = RANDOM.permutation(a), RANDOM.permutation(b)
    both_a, both_b = packed(a, high_a, 16), packed(b, high_b, 16)

    def holds(x, y):
        return [
            format.decode(p) <= format.decode(q)
            for p, q in zip(x.tolist(), y.tolist(), strict=True)
        ]

    low, high = np.array(holds(a, b)), np.array(holds(high_a, high_b))
    opcode = f"setp.le.{name}x2"
    np.testing.assert_array_equal(
        evaluate(opcode, np.bool_, both_a, both_b, destination="%d|_"), low
    )
    np.testing.assert_array_equal(
        evaluate(opcode, np.bool_, both_a, both_b, destination="_|%d"), high
    )
    got = evaluate(f"set.le.u32.{name}x2", np.uint32, both_a, both_b)
    np.testing.assert_array_equal(got, packed(low * 0xFFFF, high * 0xFFFF, 16))
    one = format.encode(1.0)
    got = evaluate(f"set.le.{name}x2.{name}x2", np.uint32, both_a, both_b)
    np.testing.assert_array_equal(got, packed(low * one, high * one, 16))


@pytest.mark.parametrize("format", [F32, F64], ids=NAMES.get)
def test_properties(format):
    codes = float_edges(format)
    values = [format.decode(int(code)) for code in codes]
    denormal = [0 < (int(c) & (format.sign_bit - 1)) < 1 << format.mantissa_bits for c in codes]
    for name, want in {
        "finite": [math.isfinite(v) for v in values],
        "infinite": [math.isinf(v) for v in values],
        "number": [not math.isnan(v) for v in values],
        "notanumber": [math.isnan(v) for v in values],
        "normal": [math.isfinite(v) and not d for v, d in zip(values, denormal, strict=True)],
        "subnormal": denormal,
    }.items():
        assert evaluate(f"testp.{name}.{NAMES[format]}", np.bool_, codes).tolist() == want


# --- approximations ---


def approximate(opcode, function, values, bound, relative=True, flush=False):
    """Within the bound that the ISA states, of results that are not zero, infinite or NaN."""
    got = evaluate(opcode, np.float32, *values).astype(np.float64)
    with np.errstate(all="ignore"):
        inputs = [v.astype(np.float64) for v in values]
    if flush:
        inputs = [np.where(np.abs(v) < 2.0**-126, np.copysign(0.0, v), v) for v in inputs]
    with np.errstate(all="ignore"):
        want = function(*inputs)
        want32 = want.astype(np.float32)
        if flush:
            want32 = np.where(
                np.abs(want32) < 2.0**-126, np.copysign(np.float32(0), want32), want32
            )
        special = ~np.isfinite(want32) | (want32 == 0)
        np.testing.assert_array_equal(got[special].astype(np.float32), want32[special], opcode)
        np.testing.assert_array_equal(
            np.signbit(got[special]) | np.isnan(got[special]),
            np.signbit(want32[special]) | np.isnan(want32[special]),
        )
        plain = ~special & (np.abs(want) >= 2.0**-126)
        error = np.abs(got[plain] - want[plain])
        if relative:
            error /= np.abs(want[plain])
        assert error.max() <= bound, (opcode, error.max())


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_approximations(ftz):
    flush = bool(ftz)
    everywhere = float_edges(F32, 200).view(np.float32)
    a, b = (x.view(np.float32) for x in float_arguments(F32, 2))
    small = np.abs(b) <= 2.0**126
    approximate(f"rcp.approx{ftz}.f32", lambda x: 1 / x, [everywhere], 2.0**-23, flush=flush)
    approximate(f"sqrt.approx{ftz}.f32", np.sqrt, [everywhere], 2.0**-23, flush=flush)
    approximate(
        f"rsqrt.approx{ftz}.f32", lambda x: 1 / np.sqrt(x), [everywhere], 2.0**-22.9, flush=flush
    )
    approximate(f"div.full{ftz}.f32", lambda x, y: x / y, [a, b], 2.0**-22, flush=flush)
    approximate(
        f"div.approx{ftz}.f32", lambda x, y: x / y, [a[small], b[small]], 2.0**-22, flush=flush
    )
    approximate(f"lg2.approx{ftz}.f32", np.log2, [everywhere], 2.0**-22, flush=flush)
    exponents = np.concatenate([everywhere, np.linspace(-160, 140, 601, dtype=np.float32)])
    approximate(f"ex2.approx{ftz}.f32", np.exp2, [exponents], 2.0**-22, flush=flush)
    angles = np.linspace(-100 * np.pi, 100 * np.pi, 777, dtype=np.float32)
    approximate(f"sin.approx{ftz}.f32", np.sin, [angles], 2.0**-14.7, relative=False, flush=flush)
    approximate(f"cos.approx{ftz}.f32", np.cos, [angles], 2.0**-14.7, relative=False, flush=flush)
    if not ftz:
        approximate("tanh.approx.f32", np.tanh, [everywhere], 2.0**-11)


def test_quick_division_by_large_numbers():
    a = np.array([1.0, -1.0, np.inf, 3e38, 0.0], np.float32)
    b = np.array([2.0**127, 2.0**127, 2.0**127, 2.0**127, -(2.0**127)], np.float32)
    got = evaluate("div.approx.f32", np.float32, a, b)
    np.testing.assert_array_equal(got, np.array([0, -0.0, np.nan, 0, -0.0], np.float32))
    np.testing.assert_array_equal(np.signbit(got)[[0, 1, 3, 4]], [False, True, False, True])


def test_approximations_of_doubles():
    values = np.array([3.0, -0.7, 1e300, 1e-310, 0.0, -0.0, np.inf, -np.inf, np.nan], np.float64)
    high = (values.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    high = np.where(np.abs(high) < 2.0**-1022, np.copysign(0.0, high), high)
    with np.errstate(all="ignore"):
        for opcode, want in (("rcp", 1 / high), ("rsqrt", 1 / np.sqrt(high))):
            got = evaluate(f"{opcode}.approx.ftz.f64", np.float64, values)
            assert not (got.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
            np.testing.assert_allclose(got, want, rtol=2.0**-20)
        got = evaluate("rsqrt.approx.f64", np.float64, values)
        np.testing.assert_allclose(got, 1 / np.sqrt(values), rtol=2.0**-50)


@pytest.mark.parametrize("format", [F16, BF16], ids=NAMES.get)
def test_approximations_of_halves(format):
    name = NAMES[format]
    codes = float_edges(format, 100)
    values = np.array([float(format.decode(int(code))) for code in codes])
    bound = {F16: 2.0**-9.9, BF16: 2.0**-7}[format]
    ftz = ".ftz" if format is BF16 else ""

    def check(opcode, want, tolerance, relative):
        for packs in (False, True):
            operand = packed(codes, codes[::-1], 16) if packs else codes
            got = evaluate(
                f"{opcode}.{name}{'x2' * packs}", np.uint32 if packs else np.uint16, operand
            )
            result = np.array([float(format.decode(int(c) & 0xFFFF)) for c in got])
            if packs:
                np.testing.assert_array_equal((got >> 16)[::-1], got & 0xFFFF)
            with np.errstate(all="ignore"):
                same = (result == want) | (np.isnan(result) & np.isnan(want))
                overflow = np.isinf(result) & (want > float(format.decode(format.largest_code)))
                error = np.abs(result - want) / (np.abs(want) if relative else 1)
                tiny = np.abs(want) < 2.0 ** (2 - 2 ** (format.exponent_bits - 1))
            assert (same | overflow | tiny | (error <= tolerance)).all()

    with np.errstate(all="ignore"):
        check(f"ex2.approx{ftz}", np.exp2(values), bound, True)
        check("tanh.approx", np.tanh(values), {F16: 2.0**-10.987, BF16: 2.0**-8}[format], False)


# --- forms that are not simulated ---


@pytest.mark.parametrize(
    "opcode, operands",
    [
        ("add.s32", "%r, %r, %r, %r"),
        ("add.s32", "%r, %r"),
        ("add.s32", "%r, %r, %d"),
        ("add.b32", "%r, %r, %r"),
        ("add.sat.u32", "%r, %r, %r"),
        ("add.foo.s32", "%r, %r, %r"),
        ("mul.s32", "%r, %r, %r"),
        ("mul.wide.u64", "%q, %d, %d"),
        ("abs.u32", "%r, %r"),
        ("and.u32", "%r, %r, %r"),
        ("and.pred", "!%p, %p, %p"),
        ("shl.s32", "%r, %r, %r"),
        ("shl.b64", "%d, %d, %d"),
        ("shf.l.b32", "%r, %r, %r, %r"),
        ("lop3.or.b32", "%r, %r, %r, %r, 1, %p"),
        ("popc.b16", "%r, %h"),
        ("prmt.b32.f4f", "%r, %r, %r, %r"),
        ("addc.u16", "%h, %h, %h"),
        ("min.xorsign.abs.f32", "%r, %r, %r"),
        ("max.f64", "%d, %d, %d, %d"),
        ("max.NaN.f64", "%d, %d, %d"),
        ("max.f16x2", "%r, %r, %r, %r"),
        ("add.ftz.f64", "%d, %d, %d"),
        ("add.ftz.bf16", "%h, %h, %h"),
        ("add.rz.f16", "%h, %h, %h"),
        ("add.sat.f64", "%d, %d, %d"),
        ("add.sat.f32x2", "%d, %d, %d"),
        ("add.relu.f16", "%h, %h, %h"),
        ("fma.f32", "%r, %r, %r, %r"),
        ("fma.rn.oob.f16", "%h, %h, %h, %h"),
        ("div.f32", "%r, %r, %r"),
        ("div.approx.rn.f32", "%r, %r, %r"),
        ("sqrt.full.f32", "%r, %r"),
        ("ex2.f32", "%r, %r"),
        ("ex2.approx.bf16", "%h, %h"),
        ("tanh.approx.ftz.f32", "%r, %r"),
        ("copysign.f16", "%h, %h, %h"),
        ("testp.zero.f32", "%p, %r"),
        ("setp.eq.f32", "%p, %r, %r, %p"),
        ("setp.eq.and.f32", "%p, %r, %r"),
        ("setp.equ.s32", "%p, %r, %r"),
        ("setp.lo.s32", "%p, %r, %r"),
        ("setp.eq.ftz.f64", "%p, %d, %d"),
        ("setp.eq.f16x2", "%p, %r, %r"),
        ("set.eq.f64.s32", "%d, %r, %r"),
        ("set.eq.u16.u32", "%h, %r, %r"),
        ("selp.b8", "%h, %h, %h, %p"),
        ("slct.ftz.u32.s32", "%r, %r, %r, %r"),
        ("dp4a.u32.u32", "%r, %r, %r"),
    ],
)
def test_unknown_forms_are_errors(opcode, operands):
    assert refuses(opcode, operands)


def test_known_forms_are_not():
    assert not refuses("add.s32", "%r, %r, %r")
    assert not refuses("max.f32", "%r, %r, %r, %r")
    assert not refuses("setp.eq.and.f32", "%p, %r, %r, !%p")
