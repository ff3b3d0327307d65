"""Floating-point formats and rounding in exact arithmetic, apart from the simulator's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

INFINITY, NAN = math.inf, math.nan


def floor_log2(x: Fraction) -> int:
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= x else exponent - 1


def round_integer(x: Fraction, mode: str) -> int:
    """rn ties to even, ra (nearest) ties away from zero, rz to zero, rm down, rp up."""
    low = math.floor(x)
    rest = x - low
    if rest == 0 or mode == "rm":
        return low
    if mode == "rp":
        return low + 1
    if mode == "rz":
        return low if x > 0 else low + 1
    if rest != Fraction(1, 2):
        return low + (rest > Fraction(1, 2))
    if mode == "rn":
        return low + low % 2
    return low + 1 if x > 0 else low


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True
    nan: int | None = None  # None: there is none
    largest: int = 0  # finite code; 0: just below infinity

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def largest_code(self) -> int:
        return self.largest or self.infinity - 1

    @property
    def smallest_normal(self) -> Fraction:
        return Fraction(2) ** (2 - (1 << (self.exponent_bits - 1)))

    def decode(self, code: int) -> Fraction | float:
        """A Fraction, or a float for infinities, NaN and -0."""
        negative = code & self.sign_bit
        code &= self.sign_bit - 1
        if code > self.largest_code:
            if self.has_infinity and code == self.infinity:
                return -INFINITY if negative else INFINITY
            return NAN
        exponent, mantissa = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        if exponent:
            mantissa |= 1 << self.mantissa_bits
        bias = (1 << (self.exponent_bits - 1)) - 1
        value = mantissa * Fraction(2) ** (max(exponent, 1) - bias - self.mantissa_bits)
        if negative:
            return -value if value else -0.0
        return value

    def encode(
        self,
        x: Fraction | float,
        mode: str = "rn",
        *,
        satfinite: bool = False,
        negative_zero: bool = False,
    ) -> int:
        if isinstance(x, float):
            if math.isnan(x):
                return self.nan
            if math.isinf(x):
                sign = self.sign_bit if x < 0 else 0
                keep = satfinite or not self.has_infinity
                return sign | (self.largest_code if keep else self.infinity)
            negative_zero = negative_zero or (x == 0 and math.copysign(1, x) < 0)
            x = Fraction(x)
        if x == 0:
            return self.sign_bit if negative_zero else 0
        bias = (1 << (self.exponent_bits - 1)) - 1
        exponent = max(floor_log2(abs(x)), 1 - bias)
        unit = Fraction(2) ** (exponent - self.mantissa_bits)
        units = abs(round_integer(x / unit, mode))
        code = ((exponent + bias - 1) << self.mantissa_bits) + units
        sign = self.sign_bit if x < 0 else 0
        if code > self.largest_code:
            inward = mode == "rz" or mode == ("rp" if sign else "rm")
            keep = satfinite or not self.has_infinity or inward
            code = self.largest_code if keep else self.infinity
        return sign | code

    def flush(self, code: int, exactly: Fraction | float = 0.0, mode: str = "rn") -> int:
        """Denormals to a zero of the same sign. `exactly` is what was rounded to the code: it is
        denormal if it still is when rounded to as many bits as a normal number has."""
        if code & self.infinity == 0:
            return code & self.sign_bit
        if isinstance(exactly, float) or exactly == 0:
            return code
        unit = Fraction(2) ** (floor_log2(abs(exactly)) - self.mantissa_bits)
        rounded = abs(round_integer(exactly / unit, mode)) * unit
        return code & self.sign_bit if rounded < self.smallest_normal else code


F16 = Format(5, 10, nan=0x7FFF)
BF16 = Format(8, 7, nan=0x7FFF)
TF32 = Format(8, 10, nan=0x3FFFF)
F32 = Format(8, 23, nan=0x7FFFFFFF)
F64 = Format(11, 52, nan=0x7FFFFFFFFFFFFFFF)
E4M3 = Format(4, 3, has_infinity=False, nan=0x7F, largest=0x7E)
E5M2 = Format(5, 2, nan=0x7F)
E2M1 = Format(2, 1, has_infinity=False, nan=0x7, largest=0x7)
E2M3 = Format(2, 3, has_infinity=False, nan=0x1F, largest=0x1F)
E3M2 = Format(3, 2, has_infinity=False, nan=0x1F, largest=0x1F)


def is_negative(x: Fraction | float) -> bool:
    return math.copysign(1, x) < 0 if isinstance(x, float) else x < 0


def _finite(*values: Fraction | float) -> bool:
    return all(not isinstance(x, float) or math.isfinite(x) for x in values)


def _as_float(x: Fraction | float) -> float:
    """Enough of a value to do arithmetic with infinities, NaN and zeros."""
    if isinstance(x, float):
        return x
    return 0.0 if x == 0 else 1.0 if x > 0 else -1.0


def add(a, b, mode="rn"):
    if not _finite(a, b):
        return _as_float(a) + _as_float(b)
    total = Fraction(a) + Fraction(b)
    # Zeros of both signs, or x - x, give +0 unless rounding is down.
    negative = [is_negative(a), is_negative(b)]
    if total == 0 and (any(negative) if mode == "rm" else all(negative)):
        return -0.0
    return total


def multiply(a, b):
    if not _finite(a, b):
        return _as_float(a) * _as_float(b)
    product = Fraction(a) * Fraction(b)
    if product == 0 and is_negative(a) != is_negative(b):
        return -0.0
    return product


def fused(a, b, c, mode="rn"):
    return add(multiply(a, b), c, mode)


def divide(a, b):
    negative = is_negative(a) != is_negative(b)
    if not _finite(a, b):
        x, y = _as_float(a), _as_float(b)
        if math.isnan(x) or math.isnan(y) or (math.isinf(x) and math.isinf(y)):
            return NAN
        if math.isinf(x):
            return -INFINITY if negative else INFINITY
        return -0.0 if negative else 0.0
    if b == 0:
        return NAN if a == 0 else -INFINITY if negative else INFINITY
    quotient = Fraction(a) / Fraction(b)
    return -0.0 if quotient == 0 and negative else quotient


def square_root(x: Fraction | float, bits: int = 120) -> Fraction | float:
    """Of a positive number with so many bits that rounding it again is rounding the true root."""
    if isinstance(x, float):
        return x if x == 0 or x == INFINITY else NAN
    if x <= 0:
        return NAN if x < 0 else x
    shift = bits - floor_log2(x) // 2
    scaled = x * Fraction(4) ** shift
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(root * root) == scaled
    return (Fraction(root) if exact else Fraction(2 * root + 1, 2)) / Fraction(2) ** shift
