"""cp.async.bulk.tensor and its relatives: boxes of tensors between global and shared memory."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy
import pytest
import torch

import simulator
from simulator.schedules import SCHEDULE_NAMES, SCHEDULES
from simulator.snippets import ptx

KERNELS = Path(__file__).parent / "kernels" / "tensor_copy.cu"
BEFORE = 0xEE  # bytes of shared memory that no copy has touched
SHARED_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def kernels():
    return simulator.compile(KERNELS, "100a")


@pytest.fixture(params=SCHEDULES, ids=SCHEDULE_NAMES)
def schedule(request):
    return request.param


def coordinates(*values: int) -> bytes:
    return struct.pack("<5i", *values, *(0,) * (5 - len(values)))


def as_bytes(tensor: torch.Tensor) -> numpy.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def granule(line: int, index: int, swizzle: int) -> int:
    """Where granule `index` (of 16 bytes) of a line of 128 bytes lies in that line."""
    rows = {0: 1, 32: 2, 64: 4, 128: 8}[swizzle]  # lines after which the pattern repeats
    within = max(swizzle, 16) // 16
    return index // within * within + (index % within ^ line % rows)


def placed(rows: numpy.ndarray, swizzle: int, offset: int, size: int) -> numpy.ndarray:
    """Shared memory after a load of these rows [num_rows, row_bytes] at `offset`."""
    pitch = swizzle or rows.shape[1]
    memory = numpy.full(offset + size, BEFORE, numpy.uint8)
    for r, row in enumerate(rows):
        for g, part in enumerate(row.reshape(-1, 16)):
            at = (offset + r * pitch) // 16 + g
            at = at // 8 * 8 + granule(at // 8, at % 8, swizzle)
            memory[at * 16 : at * 16 + 16] = part
    return memory[offset:]


def box_of(tensor: torch.Tensor, start, box, step=None, outside=0) -> torch.Tensor:
    """The elements of a box, innermost dimension last; one at a time."""
    step = step or [1] * len(box)
    counts = [-(-b // s) for b, s in zip(box, step, strict=True)]
    counts[-1], step = box[-1], [*step[:-1], 1]
    result = torch.full(counts, outside, dtype=tensor.dtype)
    for index in itertools.product(*map(range, counts)):
        at = [c + i * s for c, i, s in zip(start, index, step, strict=True)]
        if all(0 <= a < n for a, n in zip(at, tensor.shape, strict=True)):
            result[index] = tensor[tuple(at)]
    return result


def load(kernels, tensor, box, start, options, *, offset=0, kernel=None, tail=256, **map_options):
    """Shared memory after a load, `tail` bytes more than the box takes."""
    step = map_options.get("element_stride") or [1] * len(box)
    elements = numpy.prod([-(-b // s) for b, s in zip(box[:-1], step, strict=False)] + [box[-1]])
    num_bytes = int(elements) * tensor.element_size()
    row_bytes = box[-1] * tensor.element_size()
    pitch = map_options.get("swizzle", 0) or row_bytes
    size = num_bytes // row_bytes * pitch + tail
    out = torch.zeros(size, dtype=torch.uint8)
    launch = kernels.launch(
        kernel or f"load_{tensor.ndim}",
        block=64,
        dynamic_shared_bytes=SHARED_BYTES,
        arguments=[
            simulator.TensorMap(tensor, box, **map_options),
            coordinates(*reversed(start)),
            num_bytes,
            out,
            size,
            offset,
        ],
        options=options,
    )
    return out.numpy(), launch


@pytest.mark.parametrize(
    ("shape", "box", "start"),
    [
        ((64,), (16,), (8,)),
        ((64,), (32,), (48,)),
        ((9, 32), (4, 8), (3, 16)),
        ((9, 32), (4, 16), (7, 24)),
        ((9, 32), (4, 16), (-2, -8)),
        ((5, 6, 24), (3, 2, 8), (3, 5, 16)),
        ((3, 4, 5, 16), (2, 3, 2, 8), (2, -1, 4, 8)),
        ((2, 3, 3, 4, 8), (2, 2, 2, 2, 8), (1, 2, -1, 3, 0)),
        ((9, 32), (4, 8), (2**31 - 1, 0)),
        ((9, 32), (4, 8), (-(2**31), 0)),
    ],
)
def test_tiles(kernels, schedule, shape, box, start):
    tensor = torch.randn(shape).bfloat16()
    memory, launch = load(kernels, tensor, box, start, schedule)
    want = box_of(tensor, start, box)
    row_bytes = box[-1] * 2
    rows = as_bytes(want).reshape(-1, row_bytes)
    assert numpy.array_equal(memory, placed(rows, 0, 0, memory.size))
    inside = box_of(torch.ones(shape, dtype=torch.int8), start, box).sum()
    assert launch.counters.bulk_load_bytes == 2 * int(inside)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("offset", [0, 128, 384, 896])
def test_swizzles(kernels, schedule, swizzle, offset):
    tensor = torch.randint(0, 256, (40, 256), dtype=torch.uint8)
    for row_bytes in range(16, swizzle + 1, 16):
        memory, _ = load(
            kernels, tensor, (20, row_bytes), (3, 32), schedule, offset=offset, swizzle=swizzle
        )
        rows = tensor[3:23, 32 : 32 + row_bytes].numpy()
        assert numpy.array_equal(memory, placed(rows, swizzle, offset, memory.size))


@pytest.mark.parametrize(
    ("swizzle", "row_bytes", "seen"),
    [
        (32, 16, "00 ee 10 ee 20 ee 30 ee ee 40 ee 50 ee 60 ee 70"),
        (32, 32, "00 01 10 11 20 21 30 31 41 40 51 50 61 60 71 70"),
        (
            64,
            32,
            "00 01 ee ee 10 11 ee ee 21 20 ee ee 31 30 ee ee "
            "ee ee 40 41 ee ee 50 51 ee ee 61 60 ee ee 71 70",
        ),
        (
            64,
            64,
            "00 01 02 03 10 11 12 13 21 20 23 22 31 30 33 32 "
            "42 43 40 41 52 53 50 51 63 62 61 60 73 72 71 70",
        ),
        (
            128,
            96,
            "00 01 02 03 04 05 ee ee 11 10 13 12 15 14 ee ee 22 23 20 21 ee ee 24 25 "
            "33 32 31 30 ee ee 35 34 44 45 ee ee 40 41 42 43 55 54 ee ee 51 50 53 52 "
            "ee ee 64 65 62 63 60 61 ee ee 75 74 73 72 71 70",
        ),
        (
            128,
            128,
            "00 01 02 03 04 05 06 07 11 10 13 12 15 14 17 16 22 23 20 21 26 27 24 25 "
            "33 32 31 30 37 36 35 34 44 45 46 47 40 41 42 43 55 54 57 56 51 50 53 52 "
            "66 67 64 65 62 63 60 61 77 76 75 74 73 72 71 70",
        ),
    ],
)
def test_swizzles_as_on_an_h200(kernels, swizzle, row_bytes, seen):
    """Granule c of row r is 0xrc. What an H200 left in shared memory, one byte a granule."""
    tensor = (torch.arange(64 * 16) % 256).to(torch.uint8).repeat_interleave(16).view(64, 256)
    memory, _ = load(
        kernels, tensor, (8, row_bytes), (0, 0), simulator.options(), swizzle=swizzle, tail=0
    )
    assert memory[::16].tobytes().hex(" ") == seen


def test_element_strides(kernels, schedule):
    # 8 rows in steps of 3 are 3 rows; the innermost dimension has no steps.
    tensor = torch.randint(0, 256, (10, 64), dtype=torch.uint8)
    box, step = (8, 32), (3, 2)
    memory, _ = load(kernels, tensor, box, (6, 16), schedule, element_stride=step)
    rows = numpy.zeros((3, 32), numpy.uint8)
    rows[:2] = tensor[[6, 9], 16:48].numpy()
    assert numpy.array_equal(memory, placed(rows, 0, 0, memory.size))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_outside(kernels, schedule, dtype):
    # 0x7FF7 in every 16 bits, on an H200.
    tensor = torch.randn(4, 32).to(dtype)
    size = tensor.element_size()
    width = 64 // size
    start = (3, -16 // size)
    memory, _ = load(kernels, tensor, (2, width), start, schedule, fill_with_nan=True, tail=0)
    got = memory.view(numpy.uint16).reshape(2, 32)
    assert (got[0, :8] == 0x7FF7).all() and (got[1] == 0x7FF7).all()
    inside = as_bytes(tensor[3, : width - 16 // size]).view(numpy.uint16)
    assert numpy.array_equal(got[0, 8:], inside)


def test_map_in_global_memory(kernels, schedule):
    tensor = torch.randint(0, 256, (8, 32), dtype=torch.uint8)
    encoded = simulator.TensorMap(tensor, (2, 32)).bytes
    both = torch.empty(128 + tensor.numel() + 64, dtype=torch.uint8)
    assert both.data_ptr() % 64 == 0
    both[:128] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    out = torch.zeros(64, dtype=torch.uint8)
    arguments = [both, coordinates(0, 5), 64, out, 64]
    with pytest.raises(simulator.SimulatorError, match="lies in no allocation"):
        kernels.launch(
            "load_by_pointer",
            dynamic_shared_bytes=SHARED_BYTES,
            arguments=arguments,
            options=schedule,
        )
    simulator.native.register_memory(tensor.data_ptr(), tensor.numel())
    try:
        kernels.launch(
            "load_by_pointer",
            dynamic_shared_bytes=SHARED_BYTES,
            arguments=arguments,
            options=schedule,
        )
    finally:
        simulator.native.unregister_memory(tensor.data_ptr())
    assert torch.equal(out, tensor[5:7].reshape(-1))


def store(kernels, name, tensor, box, start, source, options, **map_options):
    return kernels.launch(
        name,
        block=64,
        dynamic_shared_bytes=SHARED_BYTES,
        arguments=[
            simulator.TensorMap(tensor, box, **map_options),
            coordinates(*reversed(start)),
            source,
            source.numel() * source.element_size(),
        ],
        options=options,
    )


@pytest.mark.parametrize("start", [(0, 0), (3, 16), (7, 24), (12, 0)])
def test_store(kernels, schedule, start):
    tensor, source = torch.zeros(10, 32, dtype=torch.int16), torch.randint(1, 99, (4, 16)).short()
    launch = store(kernels, "store", tensor, (4, 16), start, source, schedule)
    want = torch.zeros_like(tensor)
    rows, columns = want[start[0] : start[0] + 4, start[1] : start[1] + 16].shape
    want[start[0] : start[0] + 4, start[1] : start[1] + 16] = source[:rows, :columns]
    assert torch.equal(tensor, want)
    assert launch.counters.bulk_store_bytes == 2 * rows * columns


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_store_undoes_the_swizzle(kernels, schedule, swizzle):
    for row_bytes in range(16, swizzle + 1, 16):
        rows = torch.randint(0, 256, (12, row_bytes), dtype=torch.uint8)
        memory = placed(rows.numpy(), swizzle, 0, 12 * swizzle)
        tensor = torch.zeros(16, 128, dtype=torch.uint8)
        store(
            kernels,
            "store",
            tensor,
            (12, row_bytes),
            (2, 0),
            torch.from_numpy(memory),
            schedule,
            swizzle=swizzle,
        )
        assert torch.equal(tensor[2:14, :row_bytes], rows)
        assert tensor.count_nonzero() == rows.count_nonzero()


def test_store_with_element_strides(kernels, schedule):
    tensor, source = torch.zeros(16, 32, dtype=torch.uint8), torch.full((4, 32), 5).byte()
    store(kernels, "store", tensor, (8, 32), (1, 0), source, schedule, element_stride=(2, 1))
    assert tensor.sum(1).tolist() == [160 if row in (1, 3, 5, 7) else 0 for row in range(16)]


def test_reductions(kernels, schedule):
    tensor = torch.randn(6, 16)
    source, before = torch.randn(4, 16), tensor.clone()
    store(kernels, "add", tensor, (4, 16), (4, 0), source, schedule)
    before[4:] += source[:2]
    assert torch.equal(tensor, before)

    integers = torch.randint(-50, 50, (6, 16), dtype=torch.int32)
    source, before = torch.randint(-50, 50, (4, 16), dtype=torch.int32), integers.clone()
    store(kernels, "smallest", integers, (4, 16), (1, 0), source, schedule)
    before[1:5] = torch.minimum(before[1:5], source)
    assert torch.equal(integers, before)
    store(kernels, "exclusive_or", integers, (4, 16), (0, 0), source, schedule)
    before[:4] ^= source
    assert torch.equal(integers, before)
    with pytest.raises(simulator.SimulatorError, match="no such reduction"):
        store(kernels, "exclusive_or", torch.zeros(4, 16), (4, 16), (0, 0), source, schedule)


@pytest.mark.parametrize("swizzle", [0, 64, 128])
@pytest.mark.parametrize(
    "rows", [(3, 0, 7, 3), (-1, 5, -(2**31), 2), (9, 10, 4, 2**31 - 1), (-1, -1, -1, -1)]
)
def test_gather4(kernels, schedule, swizzle, rows):
    tensor = torch.randint(1, 256, (10, 128), dtype=torch.uint8)
    out = torch.zeros(4 * 128, dtype=torch.uint8)
    arguments = [
        simulator.TensorMap(tensor, (1, 64), swizzle=swizzle),
        coordinates(32, *rows),
        4 * 64,
        out,
        out.numel(),
    ]
    launch = kernels.launch(
        "gather4",
        block=32,
        dynamic_shared_bytes=SHARED_BYTES,
        arguments=arguments,
        options=schedule,
    )
    want = numpy.zeros((4, 64), numpy.uint8)
    for i, row in enumerate(rows):
        if 0 <= row < 10:
            want[i] = tensor[row, 32:96].numpy()
    assert numpy.array_equal(out.numpy(), placed(want, swizzle, 0, out.numel()))
    assert launch.counters.bulk_load_bytes == 64 * sum(0 <= row < 10 for row in rows)


def test_scatter4(kernels, schedule):
    tensor = torch.zeros(10, 128, dtype=torch.uint8)
    source = torch.randint(1, 256, (4, 64), dtype=torch.uint8)
    launch = kernels.launch(
        "scatter4",
        dynamic_shared_bytes=SHARED_BYTES,
        arguments=[
            simulator.TensorMap(tensor, (1, 64)),
            coordinates(64, 9, 2, 10, 5),
            source,
            256,
        ],
        options=schedule,
    )
    want = torch.zeros_like(tensor)
    want[[9, 2, 5], 64:] = source[[0, 1, 3]]
    assert torch.equal(tensor, want)
    assert launch.unanchored == {"scatter4"}


@pytest.mark.parametrize("kernel", ["multicast_each", "multicast_pair"])
@pytest.mark.parametrize("mask", [0b0001, 0b0110, 0b1111])
@pytest.mark.parametrize("sender", [0, 3])
def test_multicast(kernels, schedule, kernel, mask, sender):
    tensor = torch.randint(0, 256, (4, 32), dtype=torch.uint8)
    out = torch.zeros(4, 4, 32, dtype=torch.uint8)
    launch = kernels.launch(
        kernel,
        grid=4,
        cluster=4,
        dynamic_shared_bytes=8192,
        arguments=[simulator.TensorMap(tensor, (4, 32)), 128, mask, sender, out],
        options=schedule,
    )
    for rank in range(4):
        want = tensor if mask >> rank & 1 else torch.full_like(tensor, BEFORE)
        assert torch.equal(out[rank], want)
    assert launch.counters.bulk_load_bytes == 128


def test_pair_of_blocks(kernels, schedule):
    tensor = torch.randint(0, 256, (8, 32), dtype=torch.uint8)
    out = torch.zeros(2, 4, 32, dtype=torch.uint8)
    kernels.launch(
        "pair",
        grid=2,
        cluster=2,
        dynamic_shared_bytes=8192,
        arguments=[simulator.TensorMap(tensor, (4, 32)), 128, out],
        options=schedule,
    )
    assert torch.equal(out, torch.stack([tensor[0:4], tensor[1:5]]))


def test_pair_needs_cta_group_2(kernels):
    tensor = torch.zeros(8, 32, dtype=torch.uint8)
    with pytest.raises(simulator.SimulatorError, match="goes to block 1, but the mbarrier 0x4"):
        kernels.launch(
            "pair_without_group",
            grid=2,
            cluster=2,
            dynamic_shared_bytes=8192,
            arguments=[simulator.TensorMap(tensor, (4, 32)), 128],
        )


def test_prefetch(kernels):
    tensor = torch.zeros(8, 32, dtype=torch.uint8)
    launch = kernels.launch("prefetch", arguments=[simulator.TensorMap(tensor, (4, 32))])
    assert launch.counters.bulk_load_bytes == 0


# --- what hardware refuses ------------------------------------------------------------------------


def refuses(message: str):
    return pytest.raises(simulator.SimulatorError, match=message)


def test_undefined_copies(kernels):
    options = simulator.options()
    tensor = torch.zeros(10, 64, dtype=torch.uint8)
    with refuses("coordinate 0 = 3 is not a multiple of 16 bytes"):
        load(kernels, tensor, (4, 32), (0, 3), options)
    with refuses("a copy of 3 dimensions through a tensor map of 2"):
        load(kernels, tensor, (4, 32), (0, 0), options, kernel="load_3")
    with refuses("is not a multiple of 128"):
        load(kernels, tensor, (4, 32), (0, 0), options, offset=64)
    source = torch.zeros(4, 32, dtype=torch.uint8)
    with refuses("coordinate 1 = -1 of a store is negative"):
        store(kernels, "store", tensor, (4, 32), (-1, 0), source, options)
    with refuses("need a box of one row"):
        arguments = [simulator.TensorMap(tensor, (2, 32)), coordinates(0, 1, 2, 3, 4), 128]
        kernels.launch(
            "gather4",
            dynamic_shared_bytes=SHARED_BYTES,
            arguments=[*arguments, torch.zeros(512, dtype=torch.uint8), 512],
        )
    with refuses("no tensor map at"):
        kernels.launch("prefetch", arguments=[bytes(128)])
    large = torch.zeros(256, 256, dtype=torch.uint8)
    with refuses("cp.async.bulk.tensor: shared address .* is outside of the block's memory"):
        load(kernels, large, (250, 240), (0, 0), options, offset=16384, tail=-50000)


def test_more_bytes_than_expected(kernels):
    """Two blocks load 128 bytes each, the barrier expects 128: its phase ends too early."""
    tensor = torch.zeros(8, 32, dtype=torch.uint8)
    arguments = [simulator.TensorMap(tensor, (4, 32)), 64, torch.zeros(512).byte()]
    shape = {"grid": 2, "cluster": 2, "dynamic_shared_bytes": 8192}
    with refuses("is not ordered after a copy that completes on mbarrier"):
        kernels.launch("pair", arguments=arguments, **shape)
    with refuses("the phase that the copy was started in ended without it"):
        kernels.launch("pair", arguments=arguments, options=simulator.options("lazy"), **shape)


ENCODE = {
    "data_type": 0,
    "base": 1 << 20,
    "size": [256, 64],
    "stride_bytes": [256],
    "box": [32, 8],
    "element_stride": [1, 1],
    "swizzle": 0,
    "out_of_bounds_fill": 0,
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"base": 0},
        {"stride_bytes": [0]},
        {"stride_bytes": [128]},
        {"stride_bytes": [2**40 - 16]},
        {"size": [256, 2**32]},
        {"size": [16, 4]},
        {"box": [32, 256]},
        {"element_stride": [8, 8]},
        {"box": [32, 255], "element_stride": [1, 8]},
        {"box": [256, 256]},
        {"data_type": 9, "out_of_bounds_fill": 1},
        {"box": [128, 8], "swizzle": 3},
    ],
)
def test_maps_that_the_driver_encodes(change):
    # Each was tried with the driver of an H200, and so was each of those below.
    assert len(simulator.native.encode_tensor_map(**{**ENCODE, **change})) == 128


def test_nothing_is_in_the_bit_that_cutlass_clears():
    # Of a map of a tensor under 128 KB, CUTLASS clears bit 21 of the second 64-bit word.
    encoded = simulator.native.encode_tensor_map(**{**ENCODE, "base": (1 << 48) - (1 << 20)})
    assert int.from_bytes(encoded[8:16], "little") >> 21 & 1 == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": 8}, "base 0x8 is not a multiple of 16"),
        ({"stride_bytes": [24]}, r"stride\[0\] = 24"),
        ({"stride_bytes": [2**40]}, r"stride\[0\]"),
        ({"size": [256, 0]}, r"size\[1\] = 0"),
        ({"size": [256, 2**32 + 1]}, r"size\[1\]"),
        ({"box": [32, 0]}, r"box\[1\] = 0"),
        ({"box": [32, 257]}, r"box\[1\] = 257"),
        ({"box": [8, 8]}, "8 bytes, not a multiple of 16"),
        ({"element_stride": [1, 0]}, r"element stride\[1\] = 0"),
        ({"element_stride": [1, 9]}, r"element stride\[1\] = 9"),
        ({"element_stride": [9, 1]}, r"element stride\[0\] = 9"),
        ({"box": [64, 8], "swizzle": 1}, "64 bytes, more than the swizzle's 32"),
        ({"box": [96, 8], "swizzle": 2}, "96 bytes, more than the swizzle's 64"),
        ({"box": [144, 8], "swizzle": 3}, "144 bytes, more than the swizzle's 128"),
        ({"swizzle": 7}, "swizzle 7 does not exist"),
        ({"swizzle": 5}, "swizzle 5 is not simulated"),
        ({"data_type": 16}, "data type 16 does not exist"),
        ({"data_type": 13}, "data type 13 is not simulated"),
        ({"out_of_bounds_fill": 1}, "NaN fills float types only"),
        ({"out_of_bounds_fill": 2}, "fill 2 does not exist"),
        ({"size": [256]}, "one element a dimension"),
    ],
)
def test_maps_that_the_driver_refuses(change, message):
    with refuses(message):
        simulator.native.encode_tensor_map(**{**ENCODE, **change})


TX = "mbarrier::complete_tx::bytes"
COPY = "cp.async.bulk.tensor"
FIVE = "{%r2, %r3, %r4, %r5, %r6}"


@pytest.mark.parametrize(
    "text",
    [
        f"{COPY}.2d.shared::cluster.global.im2col.{TX} [%r1], [%d0, {{%r2, %r3}}], [%r4]",
        f"{COPY}.2d.shared::cluster.global.{TX} [%r1], [%d0, {{%r2}}], [%r4]",
        f"{COPY}.shared::cluster.global.{TX} [%r1], [%d0, {{%r2}}], [%r4]",
        "cp.async.bulk.tensor.1d.shared::cluster.global.bulk_group [%r1], [%d0, {%r2}], [%r4]",
        f"{COPY}.1d.shared::cta.global.{TX}.multicast::cluster [%r1], [%d0, {{%r2}}], [%r4], %h1",
        f"{COPY}.1d.shared::cluster.global.{TX} [%r1], [%r3, {{%r2}}], [%r4]",
        f"{COPY}.1d.shared::cluster.global.{TX}.cta_group::3 [%r1], [%d0, {{%r2}}], [%r4]",
        f"{COPY}.3d.shared::cta.global.tile::gather4.{TX} [%r1], [%d0, {FIVE}], [%r4]",
        f"{COPY}.2d.shared::cta.global.tile::scatter4.{TX} [%r1], [%d0, {FIVE}], [%r4]",
        "cp.async.bulk.tensor.1d.global.shared::cta.im2col_no_offs.bulk_group [%d0, {%r2}], [%r1]",
        "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d0, {%r2}], [%r1], %d2",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d0, {%r2}], [%r1]",
        "cp.async.bulk.prefetch.tensor.1d.L1.global [%d0, {%r2}]",
        "tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic [%d0], [%r1], 128",
    ],
)
def test_unknown_forms(text):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+: "):
        simulator.Module(ptx(text + ";")).decode("k")
