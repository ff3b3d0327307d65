"""Launches that run on a GPU (record_fixtures.py) and in the simulator (test_differential.py) with
the same PTX and the same inputs. What the GPU left in memory is in fixtures/."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import simulator
from simulator import test_matrix_move, test_mma_sync, test_wgmma
from simulator.exact import BF16, E4M3, E5M2, F16, F32
from simulator.matrices import BITS, SPANS, dense_layout, encode, wgmma_descriptor

FIXTURES = Path(__file__).parent / "fixtures" / "h200.npz"
TARGET = "90a"
_KERNELS = Path(__file__).parent / "kernels"


# --- what a case is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Buffer:
    """Memory of the GPU, passed as a pointer. `kept`: what the launch leaves there is compared."""

    content: np.ndarray
    kept: bool = False


@dataclass(frozen=True)
class Map(Buffer):
    """A tensor, passed as a tensor map. Boxes and strides are given as for simulator.TensorMap."""

    box: Sequence[int] = ()
    swizzle: int = 0
    element_stride: Sequence[int] = ()
    fill_with_nan: bool = False
    dtype: torch.dtype = torch.uint8


@dataclass(frozen=True)
class Tolerance:
    """How far results may be apart: in units in the last place of numbers of this width or by an
    absolute amount, or relative to the largest number of the output. Infinities and NaN of float32
    must be the same."""

    dtype: type = np.float32
    ulps: int = 0
    absolute: float = 0.0
    of_largest: float = 0.0


EXACT = Tolerance()


@dataclass(frozen=True)
class Case:
    name: str
    source: Path | str
    kernel: str
    arguments: Sequence[Buffer | int | bytes]
    grid: int = 1
    block: int = 32
    cluster: int = 1
    shared: int = 0
    tolerance: Tolerance = EXACT

    @property
    def digest(self) -> str:
        """Of all inputs: fixtures recorded with others are stale."""
        text = hashlib.sha256()
        text.update(repr((self.kernel, self.grid, self.block, self.cluster, self.shared)).encode())
        for argument in self.arguments:
            if isinstance(argument, Map):
                text.update(repr(describe_map(argument)).encode())
            if isinstance(argument, Buffer):
                text.update(argument.content.tobytes())
            else:
                text.update(repr(argument).encode())
        return text.hexdigest()[:16]


def describe_map(tensor: Map) -> list[int]:
    """The numbers that cuTensorMapEncodeTiled wants, innermost dimension first."""
    shape, item = tensor.content.shape, tensor.content.itemsize
    strides = np.cumprod([item, *reversed(shape)])[1:-1].tolist()
    steps = tensor.element_stride or [1] * len(shape)
    return [
        simulator.ELEMENTS[tensor.dtype],
        len(shape),
        *reversed(shape),
        *strides,
        *reversed(tensor.box),
        *reversed(steps),
        simulator.SWIZZLES[tensor.swizzle],
        int(tensor.fill_with_nan),
    ]


def simulate(module: simulator.Module, case: Case) -> bytes:
    """The kept buffers after the launch, one behind the other."""
    arguments: list[object] = []
    kept: list[torch.Tensor] = []
    for argument in case.arguments:
        if isinstance(argument, Buffer):
            tensor = torch.from_numpy(argument.content.view(np.uint8).copy())
            if argument.kept:
                kept.append(tensor)
            if isinstance(argument, Map):
                typed = tensor.view(-1).view(argument.dtype).view(argument.content.shape)
                tensor = simulator.TensorMap(
                    typed,
                    argument.box,
                    swizzle=argument.swizzle,
                    element_stride=argument.element_stride or None,
                    fill_with_nan=argument.fill_with_nan,
                )
            arguments.append(tensor)
        else:
            arguments.append(argument)
    module.launch(
        case.kernel,
        grid=case.grid,
        block=case.block,
        cluster=case.cluster,
        dynamic_shared_bytes=case.shared,
        arguments=arguments,
    )
    return b"".join(tensor.numpy().tobytes() for tensor in kept)


# --- inputs ---------------------------------------------------------------------------------------


def _random(seed: int) -> np.random.RandomState:
    """RandomState gives the same numbers in every version of numpy."""
    return np.random.RandomState(seed)


def _words(count: int, seed: int = 1) -> np.ndarray:
    return _random(seed).randint(0, 2**32, count, dtype=np.uint32)


def _bytes(count: int, seed: int = 1) -> np.ndarray:
    return _random(seed).randint(0, 256, count, dtype=np.uint8)


def _result(count: int, dtype: type = np.uint32) -> Buffer:
    return Buffer(np.zeros(count, dtype), kept=True)


# Infinities and NaN.
_SPECIAL = {
    "bf16": [0x7F80, 0xFF80, 0x7FC1], "f16": [0x7C00, 0xFC00, 0x7E01], "e4m3": [0x7F, 0xFF],
}  # fmt: skip


def _codes(fmt: str, num_bytes: int, seed: int, kind: str = "integers") -> np.ndarray:
    """Elements of tensor cores: small "integers", where every order of summation gives the same, as
    "special" with some infinities and NaN among them, or other "numbers"."""
    rng, dtype = _random(seed), {8: np.uint8, 16: np.uint16, 32: np.uint32}[BITS[fmt]]
    count = num_bytes // dtype().itemsize
    if kind == "numbers":
        if BITS[fmt] == 8:
            codes = rng.randint(0, 0x60, count) | rng.randint(0, 2, count) << 7
        else:
            codes = encode(rng.standard_normal(count), fmt)
    else:
        low, high = {"u8": (0, 256), "s8": (-128, 128)}.get(fmt, (-3, 4))
        codes = encode(np.arange(low, high), fmt)[rng.randint(0, high - low, count)]
    if kind == "special":
        special = np.array(_SPECIAL[fmt])[rng.randint(0, len(_SPECIAL[fmt]), count)]
        codes = np.where(rng.rand(count) < 0.01, special, codes)
    return codes.astype(dtype).view(np.uint8)


# --- cases ----------------------------------------------------------------------------------------

_WGMMA_FORMS = [
    test_wgmma.Form(n, "f32", fmt, fmt, source)
    for fmt in ("bf16", "f16", "e4m3")
    for source in ("SS", "RS")
    for n in (8, 64, 128, 256)
]
_WGMMA_OTHERS = [
    test_wgmma.Form(64, "f16", "f16", "f16"),
    test_wgmma.Form(16, "f16", "e4m3", "e5m2"),
    test_wgmma.Form(32, "f32", "tf32", "tf32"),
    test_wgmma.Form(32, "s32", "s8", "u8"),
    test_wgmma.Form(8, "f32", "bf16", "bf16", sign_a=-1),
]
_WGMMA_SOURCE = test_wgmma.source_text([*_WGMMA_FORMS, *_WGMMA_OTHERS, *test_wgmma.TRANSPOSED])


def _wgmma(form, span_a=128, span_b=128, *, kind="integers", scale_d=1, tolerance=EXACT) -> Case:
    begin, size = test_wgmma.SHARED_BEGIN, test_wgmma.IMAGE_BYTES
    a, end = dense_layout(begin, 64, form.k, BITS[form.a], span_a, bool(form.transpose_a))
    start_b = -(-end // 1024) * 1024
    b, end = dense_layout(start_b, form.n, form.k, BITS[form.b], span_b, bool(form.transpose_b))
    assert end <= begin + size
    image = _codes(form.b, size, 1, kind)
    image[: start_b - begin] = _codes(form.a, start_b - begin, 2, kind)
    d = np.zeros((128, form.registers), np.uint32)
    if form.d == "f32":
        d = _random(3).randint(-20, 20, d.shape).astype(np.float32).view(np.uint32)
    return Case(
        f"{form.name}_{span_a}_{span_b}_{kind if scale_d else 'without_d'}",
        _WGMMA_SOURCE,
        form.name,
        [
            Buffer(image),
            Buffer(_codes(form.a, 128 * 4 * 4, 4, kind)),
            Buffer(d, kept=True),
            wgmma_descriptor(a),
            wgmma_descriptor(b),
            scale_d,
        ],
        block=128,
        shared=size,
        tolerance=tolerance,
    )


# How exact sums are, relative to the largest: what an H200 showed, and a bit more. wgmma keeps 13
# bits of sums of 8-bit products, mma.sync all.
_WGMMA_SUMS = {"bf16": 2.0**-22, "f16": 2.0**-22, "e4m3": 2.0**-12}
_MMA_SUMS = 2.0**-22


def wgmma() -> Iterator[Case]:
    for form in [*_WGMMA_FORMS, *_WGMMA_OTHERS]:
        yield _wgmma(form)
    for span in SPANS:
        for fmt in ("bf16", "f16", "e4m3"):
            form = test_wgmma.Form(8 if fmt == "f16" else 64, "f32", fmt, fmt)
            if span < 128:
                yield _wgmma(form, span, span)
        for form in test_wgmma.TRANSPOSED:
            yield _wgmma(form, span, span)
    yield _wgmma(test_wgmma.TRANSPOSED[0], 128, 32)
    yield _wgmma(test_wgmma.TRANSPOSED[1], 64, 128)
    yield _wgmma(test_wgmma.Form(64, "f32", "bf16", "bf16"), scale_d=0)
    for fmt, bound in _WGMMA_SUMS.items():
        form = test_wgmma.Form(8, "f32", fmt, fmt)
        yield _wgmma(form, kind="numbers", tolerance=Tolerance(of_largest=bound))
        yield _wgmma(form, kind="special")
    form = test_wgmma.Form(64, "f16", "f16", "f16")
    yield _wgmma(form, kind="numbers", tolerance=Tolerance(np.float16, of_largest=2.0**-10))


def mma_sync() -> Iterator[Case]:
    kinds = ("integers", "numbers", "special")
    for form, kind in itertools.product(test_mma_sync.BASIC_FORMS, kinds):
        if kind != "integers" and (form.d != "f32" or form.a not in _SPECIAL or form.a != form.b):
            continue
        num_d, num_a, num_b = test_mma_sync.registers(form)
        c = np.zeros((32, num_d), np.uint32)
        if form.d == "f32":
            c = _random(7).randint(-20, 20, c.shape).astype(np.float32).view(np.uint32)
        yield Case(
            f"mma_{form.name}_{kind}",
            test_mma_sync.BASIC_SOURCE,
            form.name + "_0_0_0_0",
            [
                Buffer(_codes(form.a, 32 * 4 * num_a, 5, kind)),
                Buffer(_codes(form.b, 32 * 4 * num_b, 6, kind)),
                Buffer(c),
                Buffer(np.zeros(64, np.uint32)),
                _result(32 * num_d),
            ],
            tolerance=Tolerance(of_largest=_MMA_SUMS) if kind == "numbers" else EXACT,
        )


def matrix_moves() -> Iterator[Case]:
    source = test_matrix_move.BASIC_SOURCE
    size = test_matrix_move.SHARED_BYTES
    rows = Buffer((_random(8).permutation(size // 16)[:32] * 16).astype(np.int32))
    for number, tail, generic in itertools.product((1, 2, 4), ("", "_trans"), ("", "_generic")):
        name = f"{number}{tail}{generic}"
        image, registers = Buffer(_bytes(size)), Buffer(_words(32 * number))
        yield Case(
            f"ldmatrix_{name}", source, f"load16_{name}", [image, rows, _result(32 * number)]
        )
        yield Case(
            f"stmatrix_{name}",
            source,
            f"store16_{name}",
            [registers, rows, _result(size, np.uint8)],
        )
    yield Case("movmatrix", source, "movmatrix", [Buffer(_words(32)), _result(32)])


def warp() -> Iterator[Case]:
    source = _KERNELS / "warp.cu"
    for seed in range(3):
        arguments = [Buffer(_words(32, seed)), _result(21 * 32)]
        yield Case(f"warp_intrinsics_{seed}", source, "intrinsics", arguments)
    yield Case("warp_late_lanes", source, "late_lanes", [_result(64)])


def memory() -> Iterator[Case]:
    def case(kernel: str, *arguments, name: str = "", **launch) -> Case:
        return Case(f"memory_{name or kernel}", _KERNELS / "memory.cu", kernel, arguments, **launch)

    yield case("extend", Buffer(_bytes(256)), _result(320, np.int64))
    yield case("truncate", Buffer(_bytes(256)), _result(256, np.uint8))
    yield case("vectors", Buffer(_bytes(1024)), _result(1024, np.uint8))
    yield case("spaces", _result(256), _bytes(16).tobytes())
    yield case("copies", Buffer(_bytes(1024)), _result(28 * 32, np.uint8), 1)
    for part, ignore in (("short", 0), ("ignored", 1)):
        arguments = [Buffer(_bytes(512)), _result(512, np.uint8), ignore]
        yield case("copies_of_part", *arguments, name=f"copies_{part}")
    for form in ("noinc", "inc"):
        arguments = [Buffer(_bytes(1024)), _result(1024, np.uint8)]
        yield case(f"copies_to_mbarrier_{form}", *arguments, block=64)


def barriers() -> Iterator[Case]:
    def case(kernel: str, *arguments, tail: object = "", **launch) -> Case:
        name = f"barriers_{kernel}{tail}"
        return Case(name, _KERNELS / "barriers.cu", kernel, arguments, **launch)

    yield case("named_barriers", _result(64 * 7), 7, block=128)
    yield case("barrier_in_two_parts", _result(64), block=64)
    for below in (0, 1, 63, 95, 96):
        yield case("reductions", _result(2 * 96), below, tail=f"_{below}", block=96)
    yield case("leaving", _result(32), block=128)
    for rounds in (1, 20):
        data = Buffer(_words(32 * rounds))
        yield case("pipeline", data, _result(64 * rounds), rounds, tail=f"_{rounds}", block=96)
    yield case("states", _result(10), block=1)
    yield case("distributed", _result(4 * 64 * 4), grid=4, block=64, cluster=2)
    for cluster in (2, 4, 8):
        yield case("remote_arrivals", _result(8), tail=f"_{cluster}", grid=8, cluster=cluster)


_FLOAT_REDUCTIONS = {
    "add_f32": np.float32, "add_f64": np.float64, "add_f16": np.float16, "min_f16": np.float16,
    "max_f16": np.float16,
}  # fmt: skip
_BF16_REDUCTIONS = ("add_bf16", "min_bf16", "max_bf16")
_INTEGER_REDUCTIONS = (
    "add_u32", "add_s32", "add_u64", "min_u32", "max_s32", "min_s64", "max_u64", "inc_u32",
    "dec_u32", "and_b32", "or_b64", "xor_b32",
)  # fmt: skip


def bulk_copies() -> Iterator[Case]:
    def case(kernel: str, *arguments, tail: object = "", **launch) -> Case:
        name = f"bulk_{kernel}{tail}"
        return Case(name, _KERNELS / "bulk_copy.cu", kernel, arguments, **launch)

    for kernel in ("load_own", "load_cluster"):
        arguments = [Buffer(_bytes(3 * 512)), _result(3 * 512, np.uint8), 512]
        yield case(kernel, *arguments, grid=3, block=64, shared=512)
    for mask in (0b0001, 0b1010, 0b1111):
        arguments = [Buffer(_bytes(64)), _result(256, np.uint8), mask]
        yield case("multicast", *arguments, tail=f"_{mask}", grid=4, cluster=4)
    for kernel in ("store_wait_read", "store_wait_all"):
        yield case(kernel, _result(1024, np.uint8), 512, block=64, shared=512)
    yield case("store_ring", _result(320, np.uint8), 5, block=64)
    arguments = [Buffer(_bytes(512)), _result(512, np.uint8), 4]
    yield case("send", *arguments, grid=4, block=128, cluster=4)
    yield case("store_async", Buffer(_words(448)), _result(448), 2, grid=2, cluster=2)
    yield case("reduce_async", _result(8), 20, grid=2, cluster=2)
    yield case("reduce_in_peer", Buffer(_words(64)), _result(64), grid=2, cluster=2)

    def reduction(kernel: str, before: np.ndarray, updates: np.ndarray) -> Case:
        size = before.nbytes
        arguments = [Buffer(before, kept=True), Buffer(updates), size]
        return case(kernel, *arguments, grid=updates.nbytes // size)

    for kernel in _INTEGER_REDUCTIONS:
        in_any_order = kernel not in ("inc_u32", "dec_u32")
        yield reduction(kernel, _bytes(64, 2), _bytes(64 * (3 if in_any_order else 1), 3))
    for kernel, dtype in _FLOAT_REDUCTIONS.items():
        values = _random(4).standard_normal(2 * 64 // dtype().itemsize).astype(dtype)
        yield reduction(kernel, *np.split(values, 2))
    for kernel in _BF16_REDUCTIONS:
        values = (_random(4).standard_normal(64).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
        yield reduction(kernel, *np.split(values, 2))


def _coordinates(*values: int) -> bytes:
    """Innermost last, as the shapes."""
    return struct.pack("<5i", *reversed(values), *(0,) * (5 - len(values)))


_TILES = [
    ((64,), (16,), (8,)),
    ((64,), (32,), (48,)),
    ((9, 32), (4, 8), (3, 16)),
    ((9, 32), (4, 16), (7, 24)),
    ((9, 32), (4, 16), (-2, -8)),
    ((5, 6, 24), (3, 2, 8), (3, 5, 16)),
    ((3, 4, 5, 16), (2, 3, 2, 8), (2, -1, 4, 8)),
    ((2, 3, 3, 4, 8), (2, 2, 2, 2, 8), (1, 2, -1, 3, 0)),
    ((9, 32), (4, 8), (2**31 - 1, 0)),
]


def tensor_copies() -> Iterator[Case]:
    source = _KERNELS / "tensor_copy.cu"
    shared = 64 * 1024

    def load(name: str, tensor: Map, start: Sequence[int], offset: int = 0) -> Case:
        steps = tensor.element_stride or [1] * len(tensor.box)
        counts = [-(-b // s) for b, s in zip(tensor.box[:-1], steps, strict=False)]
        row_bytes = tensor.box[-1] * tensor.content.itemsize
        rows = int(np.prod(counts))
        size = rows * (tensor.swizzle or row_bytes) + 64  # and what lies behind the box
        kernel = f"load_{tensor.content.ndim}"
        arguments = [
            tensor, _coordinates(*start), rows * row_bytes, _result(size, np.uint8), size, offset
        ]  # fmt: skip
        return Case(f"tensor_load_{name}", source, kernel, arguments, block=64, shared=shared)

    for shape, box, start in _TILES:
        content = _words(int(np.prod(shape)) // 2).view(np.uint16).reshape(shape)
        name = "_".join(map(str, (*box, "at", *start))).replace("-", "m")
        yield load(name, Map(content, box=box, dtype=torch.bfloat16), start)
    wide = _bytes(40 * 256).reshape(40, 256)
    for swizzle, offset in itertools.product((32, 64, 128), (0, 384)):
        for row_bytes in {swizzle, swizzle // 2, 16, swizzle - 16} - {0}:
            tensor = Map(wide, box=(20, row_bytes), swizzle=swizzle)
            yield load(f"swizzle_{swizzle}_{row_bytes}_{offset}", tensor, (3, 32), offset)
        tensor = Map(wide, box=(20, swizzle), swizzle=swizzle)
        yield load(f"swizzle_{swizzle}_outside_{offset}", tensor, (-7, -16), offset)
    steps = Map(wide[:10, :64].copy(), box=(8, 32), element_stride=(3, 2))
    yield load("element_strides", steps, (6, 16))
    for dtype, numpy_type in (
        (torch.float16, np.uint16),
        (torch.bfloat16, np.uint16),
        (torch.float32, np.uint32),
    ):
        content = _bytes(4 * 64).view(numpy_type).reshape(4, -1)
        width = content.shape[1]
        tensor = Map(content, box=(2, width), fill_with_nan=True, dtype=dtype)
        yield load(f"nan_{str(dtype)[6:]}", tensor, (3, -width // 4))

    def store(name: str, kernel: str, tensor: Map, start: Sequence[int], data: np.ndarray) -> Case:
        arguments = [tensor, _coordinates(*start), Buffer(data), data.nbytes]
        return Case(f"tensor_{name}", source, kernel, arguments, block=64, shared=shared)

    for start in [(0, 0), (3, 16), (7, 24), (12, 0)]:
        tensor = Map(np.zeros((10, 32), np.int16), True, box=(4, 16), dtype=torch.int16)
        yield store(f"store_{start[0]}_{start[1]}", "store", tensor, start, _words(32))
    for swizzle in (32, 64, 128):
        for row_bytes in {swizzle, 16, swizzle - 16}:
            tensor = Map(np.zeros((16, 128), np.uint8), True, box=(12, row_bytes), swizzle=swizzle)
            name = f"store_swizzle_{swizzle}_{row_bytes}"
            yield store(name, "store", tensor, (6, 16), _bytes(12 * swizzle))
    tensor = Map(np.zeros((16, 32), np.uint8), True, box=(8, 32), element_stride=(2, 1))
    yield store("store_element_strides", "store", tensor, (1, 0), _bytes(128))
    for mask in (0b0010, 0b1111):
        tensor = Map(wide, box=(4, 128), swizzle=128)
        arguments = [tensor, 512, mask, _result(4 * 512, np.uint8)]
        yield Case(
            f"tensor_multicast_{mask}",
            _KERNELS / "differential.cu",
            "multicast_tile",
            arguments,
            grid=4,
            cluster=4,
        )
    floats = _random(5).standard_normal((2, 6, 16)).astype(np.float32)
    tensor = Map(floats[0].copy(), True, box=(4, 16), dtype=torch.float32)
    yield store("add", "add", tensor, (4, 0), floats[1, :4].copy())
    for kernel in ("smallest", "exclusive_or"):
        content = _words(96, 6).view(np.int32).reshape(6, 16)
        tensor = Map(content, True, box=(4, 16), dtype=torch.int32)
        yield store(kernel, kernel, tensor, (1, 0), _words(64, 7))


# --- differential.cu ------------------------------------------------------------------------------

_OPERANDS = 512


def _near_ties(narrow, count: int, seed: int) -> list[int]:
    """Codes of f32 half way between numbers of a narrow format, and their neighbours."""
    result = []
    for code in _random(seed).randint(0, narrow.largest_code, count).tolist():
        tie = F32.encode((narrow.decode(code) + narrow.decode(code + 1)) / 2)
        result += [max(tie - 1, 0), tie, tie + 1]
    return result


@functools.cache
def _floats(seed: int) -> np.ndarray:
    """Codes of f32: special values, ties of narrower formats, numbers of all sizes."""
    special = [0.0, 1.0, 1.5, 2.5, 448.0, 464.0, 480.0, 57344.0, 61440.0, 65504.0, 65520.0, 1e-8]
    special += [1 + sign * 2.0**-k for k in range(3, 24, 2) for sign in (1, -1)]
    special += [2.0**k for k in (-149, -126, -25, -24, -14, -9, -6, 7, 8, 31, 32)]
    codes = [F32.encode(v) for v in special] + [F32.infinity, F32.nan, F32.infinity - 1]
    for narrow in (BF16, F16, E4M3, E5M2):
        codes += _near_ties(narrow, 12, seed)
    rng = _random(seed)
    codes += np.exp2(rng.uniform(-20, 20, 150)).astype(np.float32).view(np.uint32).tolist()
    codes += rng.randint(0, F32.infinity, _OPERANDS - len(codes)).tolist()
    result = np.array(codes, np.uint32) | rng.randint(0, 2, _OPERANDS).astype(np.uint32) << 31
    return result if seed == 0 else rng.permutation(result)


def _halves(seed: int) -> np.ndarray:
    """Pairs of 16 bits, most of them of moderate size in both 16-bit formats."""
    rng = _random(seed)
    moderate = rng.randint(0x3000, 0x4800, (_OPERANDS, 2)) | rng.randint(0, 2, (_OPERANDS, 2)) << 15
    halves = np.where(rng.rand(_OPERANDS, 2) < 0.7, moderate, rng.randint(0, 2**16, (_OPERANDS, 2)))
    return halves.astype(np.uint16).view(np.uint32)[:, 0]


# How far approximations may be from an H200's.
_APPROXIMATIONS = {
    "ex2_f32": Tolerance(ulps=2),
    "ex2_ftz_f32": Tolerance(ulps=2),
    "lg2_f32": Tolerance(ulps=3, absolute=2.0**-22),
    "lg2_ftz_f32": Tolerance(ulps=3, absolute=2.0**-22),
    "rcp_f32": Tolerance(ulps=1),
    "rcp_ftz_f32": Tolerance(ulps=1),
    "rsqrt_f32": Tolerance(ulps=1),
    "rsqrt_ftz_f32": Tolerance(ulps=1),
    "sqrt_f32": Tolerance(ulps=1),
    "tanh_f32": Tolerance(ulps=256),
    "div_approx_f32": Tolerance(ulps=1),
    "ex2_f16x2": Tolerance(np.uint16, ulps=1),
    "ex2_ftz_bf16x2": Tolerance(np.uint16, ulps=1),
    "tanh_bf16x2": Tolerance(np.uint16, ulps=1),
}


def elementwise() -> Iterator[Case]:
    source = _KERNELS / "differential.cu"
    names = re.findall(r"^[A-Z_0-9]+\((\w+), *\"", source.read_text(), re.MULTILINE)
    for name in names:
        make: Callable[[int], np.ndarray] = _floats
        if "f16x2_e" in name:
            make = lambda seed: np.arange(512, dtype=np.uint32) * 0x81 + seed  # noqa: E731
        elif name.endswith(("16x2", "f32_f16", "f32_bf16")):
            make = _halves
        elif name.endswith(("f32_s32", "f32_u32", "8_s32")):
            make = lambda seed: _words(512, seed) >> np.arange(512, dtype=np.uint32) % 32  # noqa: E731
        operands = [make(seed) for seed in range(3)]
        if name.startswith("atom_"):
            operands = [operand[100:228] for operand in operands]
            if not name.endswith(("f32", "16x2")):
                operands = [_words(128, seed) >> 20 for seed in range(3)]
        count, block = (512, 128) if name.startswith("atom_") else (len(operands[0]), 128)
        yield Case(
            name,
            source,
            name,
            [*map(Buffer, operands), _result(count)],
            grid=len(operands[0]) // block,
            block=block,
            tolerance=_APPROXIMATIONS.get(name, EXACT),
        )
    yield Case(
        "contention", source, "contention", [Buffer(_words(256)), _result(6)], grid=2, block=128
    )


FAMILIES = [
    wgmma, mma_sync, matrix_moves, warp, memory, barriers, bulk_copies, tensor_copies, elementwise,
]  # fmt: skip


def all_cases() -> list[Case]:
    cases = [case for family in FAMILIES for case in family()]
    assert len({case.name for case in cases}) == len(cases)
    return cases
