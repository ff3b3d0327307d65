"""cvt against exact arithmetic: every pair of scalar types, every rounding, the packed formats. And
moves, addresses and hints."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import simulator
from simulator import exact
from simulator.elementwise import evaluate, pairs, refuses
from simulator.exact import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, F64, TF32, Format

RANDOM = np.random.default_rng(11)
_STATE = RANDOM.bit_generator.state

INTEGERS = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
}  # fmt: skip
FLOATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
CODES = {F16: np.uint16, BF16: np.uint16, F32: np.uint32, F64: np.uint64}
MODES = ("rn", "rz", "rm", "rp")


@pytest.fixture(autouse=True)
def same_numbers_whichever_tests_run():
    RANDOM.bit_generator.state = _STATE


def register(dtype: type) -> type:
    """Registers have at least 16 bits."""
    dtype = np.dtype(dtype)
    return np.dtype(f"{dtype.kind}2") if dtype.itemsize == 1 else dtype


def name_of(dtype: type) -> str:
    """The register of that width in `refuses`."""
    return {2: "%h", 4: "%r", 8: "%d"}[np.dtype(dtype).itemsize]


def integers(dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    powers = [1 << k for k in range(info.bits)]
    values = [0, 100, *powers, *(p - 1 for p in powers), *(p + 1 for p in powers)]
    # Ties and near ties of bf16, f16 and f32.
    values += [257, 259, 2049, 2051, 65519, 65520, (1 << 24) + 1, (1 << 24) + 3]
    values += [tie + k for tie in ((1 << 40) + (1 << 16), (1 << 62) + (1 << 9)) for k in (0, 1)]
    values += RANDOM.integers(0, info.max, 40, dtype=dtype).tolist()
    values += [-v for v in values]
    return np.array(sorted({v for v in values if info.min <= v <= info.max}), dtype)


def codes(format: Format, extra: int = 150) -> np.ndarray:
    """Zeros, denormals, halves, the limits of integers, infinities, NaN, and others."""
    values = [0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 65519.0, 65520.0, 1e30]
    values += [2.0**k - d for k in (7, 8, 15, 16) for d in (1.5, 0.5, 0.0)]
    values += [2.0**k - d for k in (31, 32, 63, 64) for d in (1.0, 0.0)]
    result = {format.encode(v) for v in values} | {0, 1, 2, format.largest_code}
    result |= {format.infinity, format.infinity + 1, format.nan}
    result |= {(1 << format.mantissa_bits) - 1, 1 << format.mantissa_bits}
    result |= set(RANDOM.integers(0, format.infinity, extra).tolist())
    low, high = format.encode(2.0**-2), format.encode(2.0**14)
    result |= set(RANDOM.integers(low, high, extra).tolist())
    result |= {code | format.sign_bit for code in result}
    return np.array(sorted(result), CODES[format])


def ties(wide: Format, narrow: Format) -> np.ndarray:
    """Codes of `wide` half way between numbers of `narrow`, and the neighbours on both sides."""
    result = set()
    for code in [*range(40), *RANDOM.integers(0, narrow.largest_code, 60).tolist()]:
        below, above = narrow.decode(code), narrow.decode(code + 1)
        if isinstance(above, float):
            continue
        tie = wide.encode((below + above) / 2)
        result |= {max(tie - 1, 0), tie, tie + 1}
    result |= {code | wide.sign_bit for code in result}
    return np.array(sorted(result), CODES[wide])


def check(opcode, got, want, inputs):
    wrong = [k for k in range(len(want)) if int(got[k]) != want[k]]
    assert not wrong, [
        (opcode, hex(int(inputs[k])), hex(int(got[k])), hex(want[k])) for k in wrong[:4]
    ]


# --- scalars ---


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("result", INTEGERS)
def test_integer_to_integer(source, result):
    values = integers(INTEGERS[source])
    to, bits = np.iinfo(INTEGERS[result]), np.iinfo(INTEGERS[result]).bits
    kept = register(INTEGERS[result])
    mask = (1 << np.iinfo(kept).bits) - 1
    operand = values.astype(register(values.dtype))

    def wrapped(v):
        v &= (1 << bits) - 1
        return v - (1 << bits) if v > to.max else v

    got = evaluate(f"cvt.{result}.{source}", kept, operand)
    check(
        f"cvt.{result}.{source}", got, [kept.type(0) + wrapped(v) for v in values.tolist()], values
    )
    if to.min <= np.iinfo(values.dtype).min and np.iinfo(values.dtype).max <= to.max:
        assert refuses(f"cvt.sat.{result}.{source}", f"{name_of(kept)}, {name_of(operand.dtype)}")
        return
    clamped = [max(to.min, min(to.max, v)) for v in values.tolist()]
    got = evaluate(f"cvt.sat.{result}.{source}", kept, operand)
    check(
        f"cvt.sat.{result}.{source}",
        [int(g) & mask for g in got],
        [c & mask for c in clamped],
        values,
    )


def test_registers_wider_than_types():
    """The source's low bits count; the result extends to all of the register."""
    wide = integers(np.int64)
    low = wide.astype(np.int32).astype(np.int64)
    np.testing.assert_array_equal(evaluate("cvt.s64.s32", np.int64, wide), low)
    np.testing.assert_array_equal(evaluate("cvt.u64.u16", np.int64, wide), wide & 0xFFFF)
    np.testing.assert_array_equal(
        evaluate("cvt.s32.s8", np.int64, wide), wide.astype(np.int8).astype(np.int64)
    )
    np.testing.assert_array_equal(
        evaluate("cvt.s8.s32", np.int32, low.astype(np.int32)), low.astype(np.int8)
    )
    np.testing.assert_array_equal(
        evaluate("cvt.u8.u32", np.int64, low.astype(np.int32)), low & 0xFF
    )
    upper = wide.astype(np.int32) | 0x7FFF0000
    np.testing.assert_array_equal(evaluate("cvt.u32.u8", np.int32, upper), upper & 0xFF)


@pytest.mark.parametrize("result", FLOATS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_float(source, result):
    values, format = integers(INTEGERS[source]), FLOATS[result]
    if result == "bf16" and source in ("u8", "s8"):
        assert refuses(f"cvt.rn.{result}.{source}", "%h, %h")
        return
    operand = values.astype(register(values.dtype))
    for mode in MODES:
        opcode = f"cvt.{mode}.{result}.{source}"
        got = evaluate(opcode, CODES[format], operand)
        check(opcode, got, [format.encode(Fraction(v), mode) for v in values.tolist()], values)


@pytest.mark.parametrize("result", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer(source, result):
    format, dtype = FLOATS[source], INTEGERS[result]
    if source == "bf16" and result in ("u8", "s8"):
        assert refuses(f"cvt.rni.{result}.{source}", "%h, %h")
        return
    values, info, kept = codes(format), np.iinfo(dtype), register(dtype)
    mask = (1 << np.iinfo(kept).bits) - 1
    nan = info.min or 1 << (info.bits - 1) if source == "f64" or info.bits == 64 else 0

    def converted(code, mode):
        x = format.decode(code)
        if isinstance(x, float):
            if math.isnan(x):
                return nan
            if math.isinf(x):
                return info.max if x > 0 else info.min
            return 0
        return max(info.min, min(info.max, exact.round_integer(x, mode)))

    for mode in MODES:
        opcode = f"cvt.{mode}i.{result}.{source}"
        got = [int(g) & mask for g in evaluate(opcode, kept, values)]
        check(opcode, got, [converted(c, mode) & mask for c in values.tolist()], values)
    if source == "f32":
        small = np.array([1, 0x80000001, 0x7FFFFF, 0x3F000000], np.uint32)
        assert evaluate(f"cvt.rpi.ftz.{result}.f32", kept, small).tolist() == [0, 0, 0, 1]


def test_nan_of_doubles_keep_their_upper_bits():
    """As an H200 does."""
    nan = np.array(
        [0x7FF0000000000001, 0xFFF0000000000001, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF], np.uint64
    )
    got = evaluate("cvt.rn.f32.f64", np.uint32, nan).tolist()
    assert got == [0x7FC00000, 0xFFC00000, 0xFFFFFFFF, 0x7FFFFFFF]
    assert evaluate("cvt.rn.f16.f64", np.uint16, nan).tolist() == [0x7E00, 0xFE00, 0xFFFF, 0x7FFF]
    assert evaluate("cvt.rz.bf16.f64", np.uint16, nan).tolist() == [0x7FC0, 0xFFC0, 0xFFFF, 0x7FFF]
    # Of operations, it is that of the second operand, or else the third, or else the first.
    one, other = np.full(4, 1.0).view(np.uint64), nan[::-1].copy()
    quiet, other_quiet = ((x | np.uint64(1 << 51)).tolist() for x in (nan, other))
    for opcode in ("add.f64", "sub.rz.f64", "mul.f64"):
        assert evaluate(opcode, np.uint64, other, nan).tolist() == quiet
        assert evaluate(opcode, np.uint64, other, one).tolist() == other_quiet
    assert evaluate("fma.rn.f64", np.uint64, other, nan, other).tolist() == quiet
    assert evaluate("fma.rn.f64", np.uint64, other, one, nan).tolist() == quiet
    assert evaluate("fma.rn.f64", np.uint64, other, one, one).tolist() == other_quiet


@pytest.mark.parametrize("result", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_to_float(source, result):
    wide, narrow = FLOATS[source], FLOATS[result]
    values = codes(wide)
    if wide.mantissa_bits > narrow.mantissa_bits:
        values = np.concatenate([values, ties(wide, narrow)])

    def expect(opcode, convert, inputs=values):
        got = evaluate(opcode, CODES[narrow], inputs)
        want = [convert(code) for code in inputs.tolist()]
        if F64 in (wide, narrow):
            nan = np.array([math.isnan(wide.decode(code)) for code in inputs.tolist()])
            assert all(math.isnan(narrow.decode(int(code))) for code in got[nan])
            got = np.where(nan, narrow.nan, got)
        check(opcode, got, want, inputs)

    if source == result:
        for mode in MODES:

            def integral(code, mode=mode):
                x = wide.decode(code)
                if isinstance(x, float):
                    return wide.encode(x)
                return wide.encode(Fraction(exact.round_integer(x, mode)), negative_zero=x < 0)

            expect(f"cvt.{mode}i.{source}.{source}", integral)
        return
    if narrow.mantissa_bits > wide.mantissa_bits and narrow.exponent_bits >= wide.exponent_bits:
        # What a NaN of bf16 becomes is not specified: it keeps its bits.
        keeps = (
            values[[not math.isnan(wide.decode(int(v))) for v in values]]
            if wide is BF16
            else values
        )
        expect(f"cvt.{result}.{source}", lambda code: narrow.encode(wide.decode(code)), keeps)
        return
    for mode in MODES:
        expect(
            f"cvt.{mode}.{result}.{source}",
            lambda code, mode=mode: narrow.encode(wide.decode(code), mode),
        )
    if source == "f32":
        small = np.concatenate(
            [values, np.array([1, 0x80000001, 0x007FFFFF, 0x00800000], np.uint32)]
        )
        if narrow is F16:
            expect(
                f"cvt.rp.ftz.{result}.f32",
                lambda code: narrow.encode(wide.decode(wide.flush(code)), "rp"),
                small,
            )
    if result == "f32":
        expect("cvt.rn.ftz.f32.f64", lambda code: F32.flush(F32.encode(F64.decode(code))))


def saturated(format: Format, x: Fraction | float, mode: str = "rn") -> int:
    if isinstance(x, float):
        return format.encode(1.0) if x == math.inf else 0
    return format.encode(min(max(x, Fraction(0)), Fraction(1)), mode)


def test_saturation_of_floats():
    values = codes(F32)
    got = evaluate("cvt.sat.f32.f32", np.uint32, values)
    check("cvt.sat.f32.f32", got, [saturated(F32, F32.decode(c)) for c in values.tolist()], values)
    got = evaluate("cvt.rn.sat.f16.f32", np.uint16, values)
    check(
        "cvt.rn.sat.f16.f32", got, [saturated(F16, F32.decode(c)) for c in values.tolist()], values
    )
    halves = codes(F16)
    got = evaluate("cvt.sat.f32.f16", np.uint32, halves)
    check("cvt.sat.f32.f16", got, [saturated(F32, F16.decode(c)) for c in halves.tolist()], halves)
    got = evaluate("cvt.ftz.f32.f32", np.uint32, values)
    want = [F32.nan if math.isnan(F32.decode(c)) else F32.flush(c) for c in values.tolist()]
    check("cvt.ftz.f32.f32", got, want, values)


def limited(format: Format, x: Fraction | float, mode: str, option: str) -> int:
    """With .relu and .satfinite."""
    if "relu" in option and not (isinstance(x, float) and math.isnan(x)) and x <= 0:
        return 0
    return format.encode(x, mode, satfinite="satfinite" in option)


OPTIONS = ("", ".relu", ".satfinite", ".relu.satfinite")


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_limits_of_halves(name):
    format = FLOATS[name]
    values = np.concatenate([codes(F32), ties(F32, format)])
    other = RANDOM.permutation(values)
    for mode in ("rn", "rz"):
        for option in OPTIONS:
            opcode = f"cvt.{mode}{option}.{name}.f32"
            want = [limited(format, F32.decode(c), mode, option) for c in values.tolist()]
            check(opcode, evaluate(opcode, np.uint16, values), want, values)
            low = [limited(format, F32.decode(c), mode, option) for c in other.tolist()]
            opcode = f"cvt.{mode}{option}.{name}x2.f32"
            both = [high << 16 | rest for high, rest in zip(want, low, strict=True)]
            check(opcode, evaluate(opcode, np.uint32, values, other), both, values)


def test_bf16_rounds_every_tie_to_even():
    upper = np.arange(0, 0x7F80, dtype=np.uint32)
    upper = np.concatenate([upper, upper | 0x8000])
    words = np.concatenate([upper << 16 | 0x8000, upper << 16 | 0x7FFF, upper << 16 | 0x8001])
    want = np.concatenate([upper + (upper & 1), upper, upper + 1])
    np.testing.assert_array_equal(evaluate("cvt.rn.bf16.f32", np.uint16, words), want)
    zero = np.zeros_like(words)
    np.testing.assert_array_equal(evaluate("cvt.rn.bf16x2.f32", np.uint32, words, zero), want << 16)


def test_tf32():
    values = np.concatenate([codes(F32), ties(F32, TF32)])

    forms = [("rna", "ra", "", "sm_90"), ("rna", "ra", ".satfinite", "sm_90")]
    forms += [(m, m, o, "sm_90") for m in ("rn", "rz") for o in ("", ".relu")]
    forms += [(m, m, ".satfinite", "sm_100a") for m in ("rn", "rz")]
    for name, mode, option, target in forms:
        opcode = f"cvt.{name}{option}.tf32.f32"
        want = [limited(TF32, F32.decode(c), mode, option) << 13 for c in values.tolist()]
        check(opcode, evaluate(opcode, np.uint32, values, target=target), want, values)


# --- packed formats ---

SMALL = {"e4m3x2": E4M3, "e5m2x2": E5M2, "e2m1x2": E2M1, "e2m3x2": E2M3, "e3m2x2": E3M2}


def small_bits(name: str) -> int:
    return 4 if name == "e2m1x2" else 8


def small_target(name: str) -> str:
    return "sm_90" if name in ("e4m3x2", "e5m2x2") else "sm_100a"


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_to_half(name):
    """All codes, in both places."""
    format, bits = SMALL[name], small_bits(name)
    number = 2 * format.sign_bit
    low, high = (x.astype(np.uint16) for x in pairs(np.arange(number), np.arange(0, number, 5)))
    operand = low | high << bits
    if bits == 4:
        operand = operand.astype(np.uint8)
    for option in ("", ".relu"):
        halves = [limited(F16, format.decode(code), "rn", option) for code in range(number)]
        opcode = f"cvt.rn{option}.f16x2.{name}"
        want = [halves[b] << 16 | halves[a] for a, b in zip(low, high, strict=True)]
        check(
            opcode, evaluate(opcode, np.uint32, operand, target=small_target(name)), want, operand
        )


def small_inputs(format: Format) -> np.ndarray:
    """f32: every number of the format, every tie and its neighbours, and all kinds of others."""
    numbers = [format.decode(code) for code in range(format.largest_code + 1)]
    middles = [(p + q) / 2 for p, q in itertools.pairwise(numbers)]
    last = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
    exactly = {F32.encode(x) for x in [*numbers, *middles, last, 2 * last, 1000 * last]}
    result = exactly | {c + 1 for c in exactly} | {c - 1 for c in exactly if c}
    result |= {0, 1, F32.nan, F32.infinity, F32.largest_code, 0x7F800001}
    low, high = F32.encode(numbers[1] / 4), F32.encode(last)
    result |= set(RANDOM.integers(low, high, 300).tolist())
    result |= {code | F32.sign_bit for code in result}
    return np.array(sorted(result), np.uint32)


@pytest.mark.parametrize("name", SMALL)
def test_floats_to_small(name):
    format, bits = SMALL[name], small_bits(name)
    dtype = np.uint8 if bits == 4 else np.uint16
    first = small_inputs(format)
    second = RANDOM.permutation(first)
    for option in ("", ".relu"):
        opcode = f"cvt.rn.satfinite{option}.{name}.f32"
        full = f"{option}.satfinite"
        high, low = (
            [limited(format, F32.decode(c), "rn", full) for c in x.tolist()]
            for x in (first, second)
        )
        got = evaluate(opcode, dtype, first, second, target=small_target(name))
        check(opcode, got, [h << bits | rest for h, rest in zip(high, low, strict=True)], first)
        if name not in ("e4m3x2", "e5m2x2", "e2m1x2"):
            continue
        halves = np.array([F16.encode(F32.decode(c)) for c in first.tolist()], np.uint32)
        halves = np.concatenate([halves, codes(F16, 60).astype(np.uint32)])
        others = RANDOM.permutation(halves)
        opcode = f"cvt.rn.satfinite{option}.{name}.f16x2"
        got = evaluate(opcode, dtype, halves << 16 | others, target=small_target(name))
        want = [
            limited(format, F16.decode(h), "rn", full) << bits
            | limited(format, F16.decode(o), "rn", full)
            for h, o in zip(halves.tolist(), others.tolist(), strict=True)
        ]
        check(opcode, got, want, halves)


def scale_code(x: Fraction | float, mode: str, satfinite: bool) -> int:
    """The exponent of |x|, rounded down (rz) or up (rp); 255 is NaN."""
    if isinstance(x, float):
        if math.isnan(x):
            return 255
        return (254 if satfinite else 255) if math.isinf(x) else 0
    x = abs(x)
    if x <= Fraction(2) ** -127:
        return 0
    exponent = exact.floor_log2(x)
    up = mode == "rp" and x != Fraction(2) ** exponent
    return min(254 if satfinite else 255, max(0, exponent + 127 + up))


def test_scales():
    values = codes(F32)
    powers = np.array([F32.encode(2.0**k) for k in range(-149, 128)], np.uint32)
    values = np.concatenate([values, powers, powers + 1, powers[1:] - 1])
    other = RANDOM.permutation(values)
    halves = np.concatenate(
        [codes(BF16), (powers >> 16).astype(np.uint16), ((powers >> 16) + 1).astype(np.uint16)]
    )
    others = RANDOM.permutation(halves)
    for mode in ("rz", "rp"):
        for option in ("", ".satfinite"):

            def code(format, c, mode=mode, option=option):
                return scale_code(format.decode(int(c)), mode, bool(option))

            opcode = f"cvt.{mode}{option}.ue8m0x2.f32"
            want = [code(F32, a) << 8 | code(F32, b) for a, b in zip(values, other, strict=True)]
            check(
                opcode, evaluate(opcode, np.uint16, values, other, target="sm_100a"), want, values
            )
            opcode = f"cvt.{mode}{option}.ue8m0x2.bf16x2"
            want = [code(BF16, a) << 8 | code(BF16, b) for a, b in zip(halves, others, strict=True)]
            operand = halves.astype(np.uint32) << 16 | others
            check(opcode, evaluate(opcode, np.uint16, operand, target="sm_100a"), want, halves)
    all_codes = np.arange(256, dtype=np.uint16)
    got = evaluate(
        "cvt.rn.bf16x2.ue8m0x2", np.uint32, all_codes << 8 | all_codes[::-1], target="sm_100a"
    )
    bf16 = [BF16.nan if c == 255 else BF16.encode(Fraction(2) ** (c - 127)) for c in range(256)]
    check("ue8m0x2", got, [a << 16 | b for a, b in zip(bf16, bf16[::-1], strict=True)], all_codes)


def test_pack_integers():
    a, b = pairs(integers(np.int32)[::3], integers(np.int32)[::5])
    c = RANDOM.permutation(a).view(np.uint32)
    for name in ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"):
        bits = int(name[1:])
        low, high = (
            (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )

        def element(x, low=low, high=high, bits=bits):
            return max(low, min(high, x)) & (2**bits - 1)

        want = [
            element(x) << bits | element(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        if bits == 16:
            got = evaluate(f"cvt.pack.sat.{name}.s32", np.uint32, a, b)
        else:
            want = [(w | z << 2 * bits) & 0xFFFFFFFF for w, z in zip(want, c.tolist(), strict=True)]
            got = evaluate(f"cvt.pack.sat.{name}.s32.b32", np.uint32, a, b, c)
        check(name, got, want, a)


@pytest.mark.parametrize(
    "opcode, operands, target",
    [
        ("cvt.f32.s32", "%r, %r", "sm_90"),
        ("cvt.rn.s32.f32", "%r, %r", "sm_90"),
        ("cvt.rni.f32.s32", "%r, %r", "sm_90"),
        ("cvt.rn.f64.f32", "%d, %r", "sm_90"),
        ("cvt.f16.f32", "%h, %r", "sm_90"),
        ("cvt.rni.rn.f32.f32", "%r, %r", "sm_90"),
        ("cvt.rn.u64.u32", "%d, %r", "sm_90"),
        ("cvt.u32", "%r, %r", "sm_90"),
        ("cvt.u32.b32", "%r, %r", "sm_90"),
        ("cvt.ftz.f64.f64", "%d, %d", "sm_90"),
        ("cvt.rn.relu.f32.f64", "%r, %d", "sm_90"),
        ("cvt.rs.f16x2.f32", "%r, %r, %r, %r", "sm_100a"),
        ("cvt.rn.f16x2.f32", "%r, %r", "sm_90"),
        ("cvt.rp.f16x2.f32", "%r, %r, %r", "sm_90"),
        ("cvt.rn.e4m3x2.f32", "%h, %r, %r", "sm_90"),
        ("cvt.rz.satfinite.e4m3x2.f32", "%h, %r, %r", "sm_90"),
        ("cvt.rn.bf16x2.e4m3x2", "%r, %h", "sm_90"),
        ("cvt.rn.satfinite.e2m1x4.f32", "%h, {%r, %r, %r, %r}, %r", "sm_100a"),
        ("cvt.rn.satfinite.ue8m0x2.f32", "%h, %r, %r", "sm_100a"),
        ("cvt.rn.relu.bf16x2.ue8m0x2", "%r, %h", "sm_100a"),
        ("cvt.rn.satfinite.s2f6x2.f32", "%h, %r, %r", "sm_100a"),
        ("cvt.rn.satfinite.e4m3x2.bf16x2", "%h, %r", "sm_100a"),
        ("cvt.rn.satfinite.e3m2x2.f16x2", "%h, %r", "sm_100a"),
        ("cvt.rm.relu.f16.f32", "%h, %r", "sm_90"),
        ("cvt.sat.f32.bf16", "%r, %h", "sm_90"),
        ("cvt.rn.f32.f32", "%r, %r", "sm_90"),
        ("cvt.rna.relu.tf32.f32", "%r, %r", "sm_90"),
        ("cvt.rm.tf32.f32", "%r, %r", "sm_90"),
        ("cvt.pack.u8.s32.b32", "%r, %r, %r, %r", "sm_90"),
        ("mov.b32", "%r, %d", "sm_90"),
        ("mov.foo.b32", "%r, %r", "sm_90"),
        ("mov.b32", "{%h, %h, %h}, %r", "sm_90"),
        ("mov.b32", "%r, {%h, _}", "sm_90"),
        ("cvta.to.shared.u32", "%r, %r", "sm_90"),
        ("cvta.u64", "%d, %d", "sm_90"),
        ("mapa.u32", "%r, %r, %r", "sm_90"),
        ("isspacep.const", "%p, %d", "sm_90"),
        ("createpolicy.fractional.L2::evict_often.b64", "%d", "sm_90"),
        ("setmaxnreg.inc.sync.aligned.u32", "100", "sm_90a"),
        ("setmaxnreg.dec.sync.aligned.u32", "16", "sm_90a"),
        ("setmaxnreg.dec.sync.aligned.u32", "264", "sm_90a"),
        ("setmaxnreg.sync.aligned.u32", "64", "sm_90a"),
        ("pmevent", "16", "sm_90"),
    ],
)
def test_unknown_forms_are_errors(opcode, operands, target):
    assert refuses(opcode, operands, target)


# --- moves ---


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.float32, np.float64])
def test_mov(dtype):
    values = RANDOM.integers(0, 2**15, 70).astype(dtype)
    kind = np.dtype(dtype)
    for letter in "b" + ("f" if kind.kind == "f" else "us"):
        name = f"{letter}{8 * kind.itemsize}"
        np.testing.assert_array_equal(evaluate(f"mov.{name}", dtype, values), values)
    if kind == np.uint64:
        np.testing.assert_array_equal(
            evaluate("mov.u64", dtype, values, statement="mov.u64 %d, -2;"), 2**64 - 2
        )


@pytest.mark.parametrize(
    "whole, part",
    [
        (np.uint16, np.uint8),
        (np.uint32, np.uint8),
        (np.uint32, np.uint16),
        (np.uint64, np.uint16),
        (np.uint64, np.uint32),
    ],
)
def test_vectors(whole, part):
    count = np.dtype(whole).itemsize // np.dtype(part).itemsize
    bits, name = np.dtype(part).itemsize * 8, f"b{np.dtype(whole).itemsize * 8}"
    parts = [RANDOM.integers(0, 2**bits, 70, dtype=part) for _ in range(count)]
    packed = sum(p.astype(whole) << whole(bits * k) for k, p in enumerate(parts))
    letters = "abce"[:count]
    vector = ", ".join(f"%{letter}" for letter in letters)
    got = evaluate("mov", whole, *parts, statement=f"mov.{name} %d, {{{vector}}};")
    np.testing.assert_array_equal(got, packed)
    for k in range(count):
        vector = ", ".join("%d" if j == k else "_" for j in range(count))
        got = evaluate("mov", part, packed, statement=f"mov.{name} {{{vector}}}, %a;")
        np.testing.assert_array_equal(got, parts[k])


def run(
    body: str,
    results: int,
    *,
    block: int = 32,
    cluster: int = 1,
    target: str = "sm_90",
    head: str = "",
    arguments=(),
):
    """A kernel's 64-bit results %x0, %x1, ... of each thread, after `body`."""
    text = f""".version 8.8
.target {target}
.address_size 64
{head}
.visible .entry k(.param .u64 out, .param .align 16 .b8 block[32])
{{
.reg .b16 %h<16>; .reg .b32 %r<16>; .reg .b64 %x<{results}>, %d<16>, %out; .reg .b128 %q<4>;
.reg .pred %p<8>; .reg .b32 %t, %n;
.shared .align 16 .b8 array[256];
.local .align 8 .b8 stack[64];
mov.u32 %t, %tid.x; mov.u32 %n, %ctaid.x; mad.lo.u32 %n, %n, {block}, %t;
ld.param.u64 %out, [out]; mad.wide.u32 %out, %n, {8 * results}, %out;
{body}
{"".join(f"st.global.b64 [%out+{8 * k}], %x{k};" for k in range(results))}
ret;
}}
"""
    out = torch.zeros(cluster * block, results, dtype=torch.int64)
    module = simulator.Module(text)
    module.launch(
        "k", grid=cluster, block=block, cluster=cluster, arguments=[out, bytes(32), *arguments]
    )
    return out.numpy().view(np.uint64), module


def flags(*predicates: str) -> str:
    return "".join(f"selp.b64 %x{k}, 1, 0, {p};" for k, p in enumerate(predicates))


def test_128_bits():
    got, _ = run(
        """
        mov.u32 %r0, 1; mov.u32 %r1, 2; mov.u32 %r2, 3; mov.u32 %r3, %t;
        mov.b128 %q0, {%r0, %r1, %r2, %r3};
        mov.b128 %q1, %q0;
        setp.gt.u32 %p0, %t, 9;
        mov.b64 %d0, 77; mov.b64 %d1, 88;
        @%p0 mov.b128 %q1, {%d0, %d1};
        mov.b128 {%x0, %x1}, %q1;
        mov.b128 {_, %r4, _, %r5}, %q1;
        mov.b64 %x2, {%r4, %r5};
        """,
        3,
    )
    for thread, row in enumerate(got.tolist()):
        if thread <= 9:
            assert row == [1 | 2 << 32, 3 | thread << 32, 2 | thread << 32]
        else:
            assert row == [77, 88, 0]


def test_special_registers():
    got, _ = run(
        """
        mov.u32 %r0, %laneid; mov.u32 %r1, %warpid; mov.u32 %r2, %ntid.x; mov.u32 %r3, %lanemask_lt;
        mov.b64 %x0, {%r0, %r1}; mov.b64 %x1, {%r2, %r3};
        mov.pred %p0, %is_explicit_cluster; selp.b64 %x2, 1, 0, %p0;
        """,
        3,
        block=40,
    )
    for thread, row in enumerate(got.tolist()):
        assert row == [thread % 32 | (thread // 32) << 32, 40 | ((1 << thread % 32) - 1) << 32, 0]


def test_addresses_of_variables():
    got, module = run(
        """
        mov.u64 %d0, array; mov.u32 %r0, array; cvt.u64.u32 %d1, %r0; sub.u64 %x0, %d0, %d1;
        mov.u64 %d2, array+24; sub.u64 %x1, %d2, %d0;
        mov.u64 %x2, numbers; mov.u64 %x3, numbers + 8;
        cvta.global.u64 %x4, numbers+4;
        """,
        5,
        head=".global .align 4 .b32 numbers[4] = {5, 6, 7, 8};",
    )
    base = module._module.address_of("numbers")
    assert got[0].tolist() == [0, 24, base, base + 8, base + 4]


def test_generic_addresses():
    """To a space and back, and through memory; isspacep tells them apart."""
    got, _ = run(
        """
        cvta.shared.u64 %d0, array; add.u64 %d0, %d0, 8;
        st.u64 [%d0], 41;
        cvta.to.shared.u64 %d1, %d0; ld.shared.u64 %x0, [%d1];
        cvta.local.u64 %d2, stack; st.u64 [%d2+8], 43;
        cvta.to.local.u64 %d3, %d2; ld.local.u64 %x1, [%d3+8];
        cvta.to.global.u64 %d4, %out; sub.u64 %x2, %d4, %out;
        """,
        3,
        block=1,
    )
    assert got[0].tolist() == [41, 43, 0]
    spaces = ("global", "shared", "shared::cta", "shared::cluster", "local", "param")
    tests = "".join(f"isspacep.{space} %p{k}, %d0;" for k, space in enumerate(spaces))
    predicates = flags(*(f"%p{k}" for k in range(6)))
    for source, want in (
        ("mov.u64 %d0, %out;", "100000"),
        ("cvta.shared.u64 %d0, array;", "011100"),
        ("cvta.local.u64 %d0, stack;", "000010"),
        ("mov.b64 %d1, block; cvta.param.u64 %d0, %d1;", "100001"),
        ("cvta.shared.u64 %d0, array; mov.u32 %r0, 1; mapa.u64 %d0, %d0, %r0;", "000100"),
    ):
        got, _ = run(f"{source} {tests} {predicates}", 6, block=1, cluster=2)
        assert "".join(map(str, got[0])) == want, source
    # Nothing is at the address that comes of another space, even if its low bits would do.
    with pytest.raises(simulator.SimulatorError, match="shared"):
        run(
            """
            mov.u32 %r0, array; cvt.u64.u32 %d1, %r0;
            cvta.local.u64 %d0, 0; add.u64 %d0, %d0, %d1;
            cvta.to.shared.u64 %d2, %d0; ld.shared.u64 %x0, [%d2];
            """,
            1,
        )


def test_addresses_in_a_cluster():
    got, _ = run(
        """
        mov.u32 %r0, array; mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1;
        mapa.shared::cluster.u32 %r3, %r0, %r2; getctarank.shared::cluster.u32 %r4, %r3;
        getctarank.shared::cluster.u32 %r5, array+16;
        mov.b64 %x0, {%r4, %r5};
        mapa.shared::cluster.u32 %r6, array+16, %r2; sub.u32 %r6, %r6, %r3; cvt.u64.u32 %x1, %r6;
        cvta.shared.u64 %d0, array; mapa.u64 %d1, %d0, %r2; getctarank.u64 %r7, %d1;
        cvta.shared::cluster.u64 %d2, array; xor.b64 %x2, %d1, %d2;
        cvt.u64.u32 %x3, %r7;
        """,
        4,
        block=1,
        cluster=2,
    )
    for rank in (0, 1):
        assert got[rank].tolist() == [1 - rank | rank << 32, 16, 1 << 24, 1 - rank]
    with pytest.raises(simulator.SimulatorError, match="block 2"):
        run(
            "mov.u32 %r0, array; mov.u32 %r1, 2; mapa.shared::cluster.u32 %r2, %r0, %r1;",
            0,
            cluster=2,
        )


def test_policies():
    got, _ = run(
        """
        createpolicy.fractional.L2::evict_last.b64 %x0, 0f3F800000;
        createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %x1;
        createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %x2, [%out], 64, 128;
        createpolicy.cvt.L2.b64 %x3, %x0;
        """,
        4,
    )
    assert (got != 0).all()
    with pytest.raises(simulator.SimulatorError, match="fraction"):
        run("createpolicy.fractional.L2::evict_last.b64 %x0, 0f40000000;", 1)


# --- hints ---


def test_hints_change_nothing():
    got, _ = run(
        """
        mov.u64 %x0, 5; setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 232;
        nanosleep.u32 20; nanosleep.u32 %t; pmevent 3; pmevent.mask 65535;
        """,
        1,
        target="sm_90a",
        block=128,
    )
    assert (got == 5).all()


def test_register_counts_go_the_way_they_say():
    for body in (
        "setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.dec.sync.aligned.u32 48;",
        "setmaxnreg.inc.sync.aligned.u32 240; setmaxnreg.inc.sync.aligned.u32 232;",
    ):
        with pytest.raises(simulator.SimulatorError, match="setmaxnreg"):
            run(body, 0, target="sm_90a", block=128)


def test_trap_is_an_error():
    run("setp.gt.u32 %p0, %t, 31; @%p0 trap;", 0)
    with pytest.raises(simulator.SimulatorError, match="stops"):
        run("setp.gt.u32 %p0, %t, 30; @%p0 trap;", 0)


def test_call_is_an_error_where_it_is_reached():
    call = """
        @%p0 bra $REACHED;
        bra $DONE;
        $REACHED:
        {
        .param .b64 param0;
        .param .align 8 .b8 param1[8];
        st.param.b64 [param0], %x0;
        st.param.v2.b32 [param1], {%t, %t};
        .param .b32 retval0;
        call.uni (retval0), vprintf, (param0, param1);
        ld.param.b32 %t, [retval0];
        }
        $DONE:
    """
    run("mov.u64 %x0, 5; setp.gt.u32 %p0, %t, 31;" + call, 1)
    with pytest.raises(simulator.SimulatorError, match=r"(?s)calls are not simulated.*vprintf"):
        run("mov.u64 %x0, 5; setp.gt.u32 %p0, %t, 30;" + call, 1)
