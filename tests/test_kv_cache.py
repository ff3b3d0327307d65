"""Cache bytes against a quantiser in plain Python, and memory that must stay as it is."""

import bisect
import math
import struct

import pytest
import torch

import cases
import dsv4
from dsv4 import kv_cache, reference

MAGNITUDES = [cases.e4m3_value(code) for code in range(0x7F)]  # 0 .. 448, ascending
PAGE_SIZES = [1, 2, 32, 64, 69, 256]
LARGEST = 3.3895313892515355e38  # of bf16


# --- the quantiser


def e4m3_code(x):
    """Nearest code, ties to the even one, saturating; a NaN keeps its sign."""
    sign = 0x80 if math.copysign(1.0, x) < 0 else 0
    if math.isnan(x):
        return sign | 0x7F
    above = min(bisect.bisect_left(MAGNITUDES, abs(x)), len(MAGNITUDES) - 1)
    if above == 0 or MAGNITUDES[above] <= abs(x):
        return sign | above
    below = above - 1
    middle = (MAGNITUDES[below] + MAGNITUDES[above]) / 2
    if abs(x) == middle:
        return sign | (below if below % 2 == 0 else above)
    return sign | (below if abs(x) < middle else above)


def scale_exponent(amax):
    """2^ceil(log2(max(amax, 1e-4) / 448)), by search: the least e with amax <= 448 * 2^e."""
    exponent = -160
    while 448.0 * 2.0**exponent < max(amax, 1e-4):
        exponent += 1
    return exponent


def packed_token(bits):
    """512 bf16 bit patterns -> 576 bytes of data and 7 scale codes. NaN packs as NaN, alone."""
    values = [cases.bf16_value(b) for b in bits]
    data, scales = bytearray(), []
    for group in range(7):
        part = values[64 * group : 64 * group + 64]
        exponent = scale_exponent(max((abs(x) for x in part if math.isfinite(x)), default=0.0))
        scales.append(exponent + 127)
        for x in part:
            data.append(
                e4m3_code(x * 2.0**-exponent if math.isfinite(x) else math.copysign(math.nan, x))
            )
    for b in bits[448:]:
        data += struct.pack("<H", b)
    return bytes(data), scales


def rows_of_all_kinds():
    """[rows, 512] bf16: ordinary, tiny, subnormal, huge, zero, on edges of the scale rule, NaN."""
    ordinary = torch.randn(6, 512)
    rows = [
        *ordinary,
        *(ordinary[:3] * torch.logspace(-30, 30, 512, base=2.0)),  # every scale
        ordinary[0] * 1e-39,  # subnormal bf16
        ordinary[1] * 1e-5,  # below the floor of 1e-4
        ordinary[2] * 8e37,
        torch.full((512,), LARGEST),
        torch.zeros(512),
        -torch.zeros(512),
        torch.full((512,), 9.9999e-05),
    ]
    # amax exactly 448 * 2^k, one bf16 below and one above: the scale changes right after it.
    for amax in (448.0, 446.0, 450.0, 448.0 * 2**-22, 450.0 * 2**-22, 3.5, 3.515625):
        row = torch.linspace(-1.0, 1.0, 512) * amax
        row[::64] = amax
        rows.append(row)
    # Ties between two codes, of normal and of subnormal e4m3: (2m + 1) / 2 units of the last place.
    ties = (torch.arange(512) % 32 * 2 + 1).float() / 16
    ties[::64] = 448.0
    rows.append(ties)
    rows.append(ties * 2.0**-8 * torch.tensor([1.0, -1.0]).repeat(256))
    rows = torch.stack(rows).bfloat16()
    hostile = rows[:2].clone()
    hostile[0, ::7] = math.nan
    hostile[1, 5], hostile[1, 80], hostile[1, 500] = math.inf, -math.inf, math.inf
    return torch.cat([rows, hostile])


def bits_of(rows):
    return [[b & 0xFFFF for b in row] for row in rows.contiguous().cpu().view(torch.int16).tolist()]


def assert_same_nope(got, wanted):
    """Bytes are equal; a NaN may have either sign."""
    for d, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a == b or (a & 0x7F == 0x7F and b & 0x7F == 0x7F), (d, a, b)


def assert_packed(cache, slots, rows, layout="HND"):
    data, scales = cases.packed_views(cache, layout)
    page_size = cases.page_size_of(cache, layout)
    for slot, bits in zip(slots, bits_of(rows), strict=True):
        page, at = divmod(slot, page_size)
        wanted_data, wanted_scales = packed_token(bits)
        assert scales[page, at, :7].tolist() == wanted_scales
        assert_same_nope(data[page, at, :448].tolist(), wanted_data[:448])
        assert bytes(data[page, at, 448:].tolist()) == wanted_data[448:]


def test_the_quantiser_itself():
    for code in range(0x7F):
        assert e4m3_code(cases.e4m3_value(code)) == code
        assert e4m3_code(-cases.e4m3_value(code)) == code | 0x80
    assert [e4m3_code(x) for x in (464.0, 1e9, 17.0, 19.0, 2.0**-10)] == [
        0x7E,
        0x7E,
        0x58,
        0x5A,
        0x00,
    ]
    for amax, exponent in [(448.0, 0), (448.1, 1), (1.0, -8), (0.875, -9), (0.0, -22), (1e-4, -22)]:
        assert scale_exponent(amax) == exponent == math.ceil(math.log2(max(amax, 1e-4) / 448))


# --- pack and unpack


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("pad", [0, 1, 576])
def test_pack_writes_these_bytes(engine, page_size, pad):
    rows = rows_of_all_kinds().to(engine.device)
    pages = -(-len(rows) // page_size)
    kv = torch.zeros(pages * page_size, 512, dtype=torch.bfloat16, device=engine.device)
    kv[: len(rows)] = rows
    stride = page_size * 584 + pad
    cache = dsv4.pack_kv_cache(
        kv.reshape(pages, page_size, 512), page_stride_bytes=stride if pad else 0
    )
    assert cache.shape == (pages, page_size, 584)
    assert cache.dtype == torch.uint8
    assert pages == 1 or cache.stride() == (stride, 584, 1)
    assert_packed(cache, range(len(rows)), rows)


@pytest.mark.parametrize("page_size", [2, 64, 69])
def test_pack_into_out_leaves_the_padding(engine, page_size):
    pages, stride = 5, page_size * 584 + 100
    buffer = torch.randint(0, 256, (pages * stride + 64,), dtype=torch.uint8, device=engine.device)
    before = buffer.clone()
    out = buffer.as_strided((pages, page_size, 584), (stride, 584, 1), 32)
    kv = torch.randn(pages, page_size, 512, device=engine.device).bfloat16()
    assert dsv4.pack_kv_cache(kv, out=out) is out
    assert_packed(out, range(pages * page_size), kv.flatten(0, 1))
    mine = torch.zeros_like(buffer, dtype=torch.bool)
    mine.as_strided((pages, page_size * 584), (stride, 1), 32).fill_(True)
    assert torch.equal(buffer[~mine], before[~mine])


def test_pack_reads_strided_values(engine):
    wide = torch.randn(3, 10, 600, device=engine.device).bfloat16()
    kv = wide[:, 2:7, 40:552]
    assert torch.equal(dsv4.pack_kv_cache(kv), dsv4.pack_kv_cache(kv.contiguous()))


@pytest.mark.parametrize("layout", ["HND", "NHD", "3-D", "2-D"])
@pytest.mark.parametrize("page_size", [1, 2, 69])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn])
def test_unpack_gives_the_values_of_the_decode(engine, layout, page_size, dtype):
    cache = cases.cache(
        4, page_size, "packed", layout, page_pad=64, offset=32, device=engine.device
    )
    cases.fill(cache, torch.arange(4 * page_size), layout)
    kv_layout = "NHD" if layout == "NHD" else "HND"
    got = dsv4.unpack_kv_cache(cache.view(dtype), kv_layout=kv_layout)
    assert got.shape == (4, page_size, 512)
    assert torch.equal(got.flatten(0, 1).double(), reference.dequantise(cache, kv_layout))


def test_unpack_every_code(engine):
    cache = torch.zeros(1, 256, 584, dtype=torch.uint8, device=engine.device)
    data, scales = cases.packed_views(cache)
    data[0, :, :448] = torch.arange(448, device=engine.device).to(torch.uint8)
    scales[0] = torch.arange(256, device=engine.device).to(torch.uint8)[:, None]
    got = dsv4.unpack_kv_cache(cache).flatten(0, 1)
    # 2^-127 * 2^-9 is below what bf16 can hold: the value rounds as a conversion would round it.
    wanted = reference.dequantise(cache).float().bfloat16()
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_unpack_then_pack_changes_nothing(engine):
    """Not the bytes (a scale may be larger than need be) but the values."""
    rows = rows_of_all_kinds()
    rows[rows.abs() > 2.0**127] = 2.0**127  # the largest bf16 rounds up to 2^128, which bf16 lacks
    once = dsv4.unpack_kv_cache(dsv4.pack_kv_cache(rows[None].to(engine.device)))
    twice = dsv4.unpack_kv_cache(dsv4.pack_kv_cache(once))
    torch.testing.assert_close(twice, once, rtol=0, atol=0, equal_nan=True)


# --- append


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("layout", ["HND", "NHD", "3-D", "2-D"])
@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
def test_append_writes_the_named_slots_and_nothing_else(engine, page_size, layout, slot_type):
    pages, stride = 90 // page_size + 2, page_size * 584 + 72
    # Two layers interleaved: this one is the second.
    buffer = torch.randint(0, 256, (pages * 2 * stride,), dtype=torch.uint8, device=engine.device)
    cache = cases.strided_cache(buffer, pages, page_size, 584, layout, 2 * stride, 584, stride)
    before = buffer.clone()
    rows = rows_of_all_kinds().to(engine.device)
    limit = pages * page_size
    named = torch.randperm(limit)[: len(rows)]
    named[[3, 9, 12, 14]] = torch.tensor([-1, limit, cases.INT_MIN, cases.INT_MAX])
    kv_layout = "NHD" if layout == "NHD" else "HND"
    slots = named.to(engine.device, slot_type)
    assert dsv4.append_kv_cache(rows, cache, slots, kv_layout=kv_layout) is None

    written = [i for i, slot in enumerate(named.tolist()) if 0 <= slot < limit]
    assert len(written) == len(rows) - 4
    assert_packed(cache, named[written].tolist(), rows[written], layout)
    mine = torch.zeros_like(buffer)
    flags = cases.strided_cache(mine, pages, page_size, 584, layout, 2 * stride, 584, stride)
    for view in cases.packed_views(flags, layout):
        view[named[written] // page_size, named[written] % page_size] = 1
    untouched = mine == 0
    assert torch.equal(buffer[untouched], before[untouched])


def test_append_64_bit_slots_are_not_cut(engine):
    """2^32 + 1 is past the end, not slot 1."""
    cache = cases.cache(2, 4, "packed", device=engine.device)
    before = cache.clone()
    slots = torch.tensor([2**32 + 1, -(2**32) + 1, 2**62], device=engine.device)
    dsv4.append_kv_cache(torch.ones(3, 512, device=engine.device).bfloat16(), cache, slots)
    assert torch.equal(cache, before)


@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
@pytest.mark.parametrize("layout", ["HND", "NHD", "3-D"])
@pytest.mark.parametrize("page_size", [1, 2, 69])
def test_append_to_plain_pools(engine, fmt, layout, page_size):
    pages = 80 // page_size + 1
    cache = cases.cache(
        pages, page_size, fmt, layout, page_pad=48, token_pad=16, offset=32, device=engine.device
    )
    storage = torch.empty(0, dtype=torch.uint8, device=engine.device).set_(cache.untyped_storage())
    before = storage.clone()
    rows = rows_of_all_kinds()[:-2].to(engine.device)  # without infinities
    rows[0, 3] = math.nan
    limit = pages * page_size
    named = torch.randperm(limit)[: len(rows)]
    named[[1, 5]] = torch.tensor([-1, limit])
    scale = 0.37
    options = dict(kv_layout="NHD" if layout == "NHD" else "HND")
    if fmt == "e4m3":
        options["scale"] = torch.tensor([scale], device=engine.device) if page_size == 2 else scale
    dsv4.append_kv_cache(rows, cache, named.to(engine.device, torch.int64), **options)

    (got,) = cases.byte_views(cache, layout)
    scale32 = struct.unpack("<f", struct.pack("<f", scale))[0]
    written = [i for i, slot in enumerate(named.tolist()) if 0 <= slot < limit]
    for i in written:
        page, at = divmod(int(named[i]), page_size)
        if fmt == "bf16":
            assert torch.equal(got[page, at], rows[i].view(torch.uint8))
            continue
        wanted = []
        for bits in bits_of(rows[i : i + 1])[0]:
            quotient = cases.bf16_value(bits) / scale32
            if abs(quotient) < 449.0:  # beyond it all is 448, even what float32 cannot hold
                quotient = struct.unpack("<f", struct.pack("<f", quotient))[0]
            wanted.append(e4m3_code(quotient))
        assert_same_nope(got[page, at].tolist(), wanted)
    # Put the old bytes back where rows were written: then all of the storage is as it was.
    old = torch.empty_like(before).copy_(before)
    old_cache = torch.empty(0, dtype=cache.dtype, device=engine.device).set_(
        old.untyped_storage(), cache.storage_offset(), cache.shape, cache.stride()
    )
    cases.copy_slots(old_cache, cache, named[written].to(engine.device), layout=layout)
    assert torch.equal(storage, before)


def test_append_no_rows(engine):
    cache = cases.cache(2, 4, "packed", device=engine.device)
    empty = torch.empty(0, 512, dtype=torch.bfloat16, device=engine.device)
    dsv4.append_kv_cache(empty, cache, torch.empty(0, dtype=torch.int64, device=engine.device))
    assert (cache == 0xFF).all()


def test_append_reads_strided_rows(engine):
    wide = torch.randn(6, 1600, device=engine.device).bfloat16()
    a, b = (cases.cache(2, 4, "packed", device=engine.device) for _ in range(2))
    slots = torch.arange(6, device=engine.device)
    dsv4.append_kv_cache(wide[:, 500:1012], a, slots)
    dsv4.append_kv_cache(wide[:, 500:1012].contiguous(), b, slots)
    assert torch.equal(a, b)


# --- allocation and numbers


@pytest.mark.parametrize(("fmt", "dtype", "width"), [
    ("packed", torch.uint8, 584), ("bf16", torch.bfloat16, 512), ("e4m3", torch.float8_e4m3fn, 512),
])  # fmt: skip
def test_empty_kv_cache(engine, fmt, dtype, width):
    cache = dsv4.empty_kv_cache(3, 69, format=fmt, device=engine.device)
    assert (cache.shape, cache.dtype, cache.is_contiguous()) == ((3, 69, width), dtype, True)
    stride = 69 * width * cache.element_size() + 130
    cache = dsv4.empty_kv_cache(3, 69, format=fmt, page_stride_bytes=stride, device=engine.device)
    assert cache.stride() == (stride // cache.element_size(), width, 1)
    assert cache.untyped_storage().nbytes() >= 2 * stride + 69 * width * cache.element_size()


def test_page_constants_are_the_native_ones():
    """The library's own numbers, as they show in what it makes and reads."""
    packed = dsv4.pack_kv_cache(torch.zeros(1, 3, kv_cache.HEAD_DIM, dtype=torch.bfloat16))
    assert packed.shape == (1, 3, kv_cache.PACKED_TOKEN_BYTES)
    assert packed.shape[-1] == cases.TOKEN_BYTES
    # The first scale byte of a page of 3 stands right after the data of 3 tokens.
    assert packed.flatten()[: 3 * kv_cache.PACKED_TOKEN_DATA_BYTES].eq(0).all()
    assert packed.flatten()[3 * kv_cache.PACKED_TOKEN_DATA_BYTES] == 127 - 22
    wide = torch.zeros(2, 3 * kv_cache.PACKED_TOKEN_BYTES + 583, dtype=torch.uint8)
    assert dsv4.unpack_kv_cache(wide).shape == (2, 3, kv_cache.HEAD_DIM)
