"""cp.async.bulk, cp.reduce.async.bulk, st.async and red.async."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

import simulator
from simulator.schedules import SCHEDULE_NAMES, SCHEDULES
from simulator.snippets import ptx

KERNELS = Path(__file__).parent / "kernels" / "bulk_copy.cu"


@pytest.fixture(scope="module")
def kernels():
    return simulator.compile(KERNELS, "100a")


@pytest.fixture(params=SCHEDULES, ids=SCHEDULE_NAMES)
def schedule(request):
    return request.param


def random_bytes(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8)


@pytest.mark.parametrize("kernel", ["load_own", "load_cluster"])
def test_load(kernels, schedule, kernel):
    source, result = random_bytes(3 * 4096), torch.zeros(3 * 4096, dtype=torch.uint8)
    launch = kernels.launch(
        kernel,
        grid=3,
        block=64,
        dynamic_shared_bytes=4096,
        arguments=[source, result, 4096],
        options=schedule,
    )
    assert torch.equal(result, source)
    assert launch.counters.bulk_load_bytes == 3 * 4096
    assert launch.counters.bulk_store_bytes == 0


def test_load_counts_sectors(kernels):
    options = simulator.options(count=True)
    memory = random_bytes(8192)
    source = memory[(-memory.data_ptr() - 16) % 32 :][:4096]  # starts in the middle of a sector
    assert source.data_ptr() % 32 == 16
    launch = kernels.launch(
        "load_own",
        dynamic_shared_bytes=4096,
        arguments=[source, torch.zeros(4096, dtype=torch.uint8), 4096],
        options=options,
    )
    assert launch.counters.num_sectors == 4096 // 32 + 1


def test_load_without_wait_is_seen(kernels):
    arguments = [random_bytes(1024), torch.zeros(1024, dtype=torch.uint8), 1024]
    launch = kernels.launch(
        "load_without_wait",
        block=64,
        dynamic_shared_bytes=1024,
        arguments=arguments,
        options=simulator.options("lazy"),
        allow_races=True,
    )
    assert not torch.equal(arguments[0], arguments[1])
    assert (arguments[1] == 0xFF).all()  # what shared memory holds before anything is written
    assert launch.races


@pytest.mark.parametrize("mask", [0b0001, 0b1111, 0b1010])
def test_multicast(kernels, schedule, mask):
    source, result = random_bytes(64), torch.zeros(4, 64, dtype=torch.uint8)
    launch = kernels.launch(
        "multicast",
        grid=4,
        block=32,
        cluster=4,
        arguments=[source, result, mask],
        options=schedule,
    )
    for rank in range(4):
        expected = source if mask >> rank & 1 else torch.zeros_like(source)
        assert torch.equal(result[rank], expected)
    assert launch.counters.bulk_load_bytes == 64  # read once


def stored(size: int) -> numpy.ndarray:
    return numpy.concatenate(
        [(numpy.arange(size) * 3 + round_ * 101 + 1).astype(numpy.uint8) for round_ in range(2)]
    )


@pytest.mark.parametrize("kernel", ["store_wait_read", "store_wait_all"])
def test_store(kernels, schedule, kernel):
    result = torch.zeros(2 * 512, dtype=torch.uint8)
    launch = kernels.launch(
        kernel, block=64, dynamic_shared_bytes=512, arguments=[result, 512], options=schedule
    )
    assert numpy.array_equal(result.numpy(), stored(512))
    assert launch.counters.bulk_store_bytes == 2 * 512


def test_buffer_reused_too_early_is_seen(kernels):
    result = torch.zeros(2 * 512, dtype=torch.uint8)
    launch = kernels.launch(
        "store_no_wait",
        block=64,
        dynamic_shared_bytes=512,
        arguments=[result, 512],
        options=simulator.options("lazy"),
        allow_races=True,
    )
    assert not numpy.array_equal(result.numpy(), stored(512))
    assert launch.races


def test_ring_of_bulk_groups(kernels, schedule):
    result = torch.zeros(5 * 64, dtype=torch.uint8)
    kernels.launch("store_ring", block=64, arguments=[result, 5], options=schedule)
    assert numpy.array_equal(result.numpy(), numpy.arange(5 * 64).astype(numpy.uint8))


def test_wait_group_makes_writes_visible(kernels, schedule):
    memory, seen = torch.zeros(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    kernels.launch("store_wait_load", block=64, arguments=[memory, seen], options=schedule)
    assert torch.equal(seen, torch.arange(1, 65).byte())


def test_wait_group_read_does_not(kernels):
    memory, seen = torch.zeros(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    launch = kernels.launch(
        "store_wait_read_load",
        block=64,
        arguments=[memory, seen],
        options=simulator.options("lazy"),
        allow_races=True,
    )
    assert torch.equal(memory, torch.arange(1, 65).byte())
    assert not seen.any()
    assert any("read after write in global memory" in race for race in launch.races)


def test_block_that_leaves_its_store_behind_is_seen(kernels, schedule):
    result = torch.zeros(64, dtype=torch.uint8)
    with pytest.raises(
        simulator.SimulatorError, match="may exit while its shared memory is in use"
    ):
        kernels.launch("store_and_leave", block=64, arguments=[result], options=schedule)


def test_store_of_some_bytes(kernels, schedule):
    result = torch.full((64,), 200, dtype=torch.uint8)
    launch = kernels.launch(
        "store_bytes", block=64, arguments=[result, 0b1000_0000_0000_0101], options=schedule
    )
    index = numpy.arange(64)
    expected = numpy.where(numpy.isin(index % 16, [0, 2, 15]), index + 1, 200)
    assert numpy.array_equal(result.numpy(), expected)
    assert launch.counters.bulk_store_bytes == 12


def test_send_to_another_block(kernels, schedule):
    source, result = random_bytes(4 * 128).view(4, 128), torch.zeros(4, 128, dtype=torch.uint8)
    launch = kernels.launch(
        "send", grid=4, block=128, cluster=4, arguments=[source, result, 4], options=schedule
    )
    assert torch.equal(result, source.roll(1, dims=0))
    assert launch.counters.distributed_shared_bytes == 4 * 128


def test_store_async(kernels, schedule):
    source = torch.randint(-(2**31), 2**31, (2, 32, 7), dtype=torch.int32)
    result = torch.zeros_like(source)
    kernels.launch(
        "store_async", grid=2, block=32, cluster=2, arguments=[source, result, 2], options=schedule
    )
    assert torch.equal(result, source.roll(1, dims=0))


def test_reduce_async(kernels, schedule):
    result = torch.zeros(2, 4, dtype=torch.int32)
    kernels.launch(
        "reduce_async", grid=2, block=32, cluster=2, arguments=[result, 20], options=schedule
    )
    for rank in range(2):
        total = 20 + sum(range(32)) + 32 * (1 - rank)
        counter = 20
        for _ in range(32):
            counter = 0 if counter >= 40 else counter + 1
        bits = 20 ^ (2**32 - 1)
        assert result[rank].tolist() == [total, 20, counter, bits - 2**32]


def reduce(kernels, schedule, kernel, old, *updates):
    """Each block reduces one of the updates into a copy of `old`."""
    result, source = old.clone(), torch.stack(updates)
    size = old.numel() * old.element_size()
    kernels.launch(
        kernel,
        grid=len(updates),
        block=32,
        arguments=[result, source, size],
        options=schedule,
    )
    return result


@pytest.mark.parametrize(
    ("kernel", "dtype", "expected"),
    [
        ("add_u32", numpy.uint32, lambda a, b: a + b),
        ("add_s32", numpy.int32, lambda a, b: a + b),
        ("add_u64", numpy.uint64, lambda a, b: a + b),
        ("min_u32", numpy.uint32, numpy.minimum),
        ("max_s32", numpy.int32, numpy.maximum),
        ("min_s64", numpy.int64, numpy.minimum),
        ("max_u64", numpy.uint64, numpy.maximum),
        ("inc_u32", numpy.uint32, lambda a, b: numpy.where(a >= b, 0, a + 1)),
        ("dec_u32", numpy.uint32, lambda a, b: numpy.where((a == 0) | (a > b), b, a - 1)),
        ("and_b32", numpy.uint32, numpy.bitwise_and),
        ("or_b64", numpy.uint64, numpy.bitwise_or),
        ("xor_b32", numpy.uint32, numpy.bitwise_xor),
    ],
)
def test_reduce_integers(kernels, schedule, kernel, dtype, expected):
    random = numpy.random.default_rng(3)
    info = numpy.iinfo(dtype)
    old, by = (random.integers(info.min, info.max, 16, dtype, endpoint=True) for _ in range(2))
    old[:4], by[:4] = [0, 5, 6, 7], [9, 5, 5, 0]
    signed = numpy.dtype(f"i{dtype().itemsize}")  # torch lacks arithmetic of unsigned types
    tensors = [torch.from_numpy(x.view(signed)) for x in (old, by)]
    result = reduce(kernels, schedule, kernel, *tensors)
    with numpy.errstate(over="ignore"):
        want = expected(old, by)
    assert numpy.array_equal(result.numpy().view(dtype), want.astype(dtype))


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("add_f32", torch.float32),
        ("add_f64", torch.float64),
        ("add_f16", torch.float16),
        ("add_bf16", torch.bfloat16),
    ],
)
def test_reduce_floats(kernels, schedule, kernel, dtype):
    old, by = torch.randn(32).to(dtype), torch.randn(32).to(dtype)
    by[0], old[1] = 1e-30, float("inf")
    expected = (old.double() + by.double()).to(dtype)
    assert torch.equal(reduce(kernels, schedule, kernel, old, by), expected)


def test_reduce_keeps_subnormal_numbers(kernels, schedule):
    # As an H200 does, although the ISA lets add.f32 flush them.
    bits = torch.tensor([1, -(2**31) + 1, 0x00800000, 0x00C00000], dtype=torch.int32)
    by = torch.tensor([1, 0, -(2**31) + 1, -0x7F800000], dtype=torch.int32)
    result = reduce(kernels, schedule, "add_f32", bits.view(torch.float32), by.view(torch.float32))
    assert result.view(torch.int32).tolist() == [2, -(2**31) + 1, 0x007FFFFF, 0x00400000]


@pytest.mark.parametrize(
    ("kernel", "dtype", "want"),
    [
        # Seen on an H200: signed zeros, a NaN against a number, two NaN.
        ("min_f16", torch.float16, [0x8000, 0x8000, 0x3C00, 0x3C00, 0x7FFF]),
        ("max_f16", torch.float16, [0x0000, 0x0000, 0x3C00, 0x3C00, 0x7FFF]),
        ("min_bf16", torch.bfloat16, [0x8000, 0x8000, 0x3F80, 0x3F80, 0x7FFF]),
        ("max_bf16", torch.bfloat16, [0x0000, 0x0000, 0x3F80, 0x3F80, 0x7FFF]),
    ],
)
def test_reduce_smallest_and_largest(kernels, schedule, kernel, dtype, want):
    one, nan = (0x3C00, 0x7E00) if dtype == torch.float16 else (0x3F80, 0x7FC0)
    as_tensor = lambda bits: torch.from_numpy(numpy.array(bits, numpy.uint16).view(numpy.int16))  # noqa: E731
    old = as_tensor([0x8000, 0x0000, one, nan, nan + 1, 0, 0, 0]).view(dtype)
    by = as_tensor([0x0000, 0x8000, nan, one, nan + 2, 0, 0, 0]).view(dtype)
    result = reduce(kernels, schedule, kernel, old, by).view(torch.int16).numpy()
    assert result.view(numpy.uint16)[:5].tolist() == want


def test_blocks_reduce_into_one_array(kernels, schedule):
    old = torch.zeros(64, dtype=torch.int32)
    updates = [torch.randint(0, 1000, (64,), dtype=torch.int32) for _ in range(6)]
    assert torch.equal(reduce(kernels, schedule, "add_s32", old, *updates), sum(updates))


def test_reduce_in_another_block(kernels, schedule):
    source = torch.randint(0, 1000, (2, 32), dtype=torch.int32)
    result = torch.zeros_like(source)
    kernels.launch(
        "reduce_in_peer", grid=2, block=32, cluster=2, arguments=[source, result], options=schedule
    )
    expected = source.roll(1, dims=0) + torch.tensor([[0], [1000]], dtype=torch.int32)
    assert torch.equal(result, expected)


def test_prefetch(kernels):
    assert kernels.launch("prefetch", arguments=[random_bytes(64)]).counters.bulk_load_bytes == 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (0, "size 24 is not a multiple of 16"),
        (1, "is not a multiple of 16"),
        (2, "is not a multiple of 16"),
        (3, "the data goes to block 1, but the mbarrier"),
        (4, "mbarrier"),
        (5, "lies in no allocation"),
        (6, "is of block 1 of the cluster, this is block 0"),
        (7, "goes to another block, not to its own"),
        (8, "multicast to the blocks 0x4 of a cluster of 2"),
        (9, "only defined for the memory of another block"),
        (10, "is not a multiple of 4"),
    ],
)
def test_undefined(kernels, what, message):
    with pytest.raises(simulator.SimulatorError, match=message):
        kernels.launch(
            "undefined", grid=2, block=32, cluster=2, arguments=[random_bytes(1024), what]
        )


TX = "mbarrier::complete_tx::bytes"
TO_OWN, TO_ANY = "cp.async.bulk.shared::cta", "cp.async.bulk.shared::cluster"


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.bulk.shared::cta.global.bulk_group [%r1], [%d1], %r2, [%r3]",
        f"{TO_OWN}.shared::cta.{TX} [%r1], [%r2], %r3, [%r4]",
        f"{TO_OWN}.global.{TX} [%r1], [%d1], %r2",
        f"{TO_OWN}.global.{TX}.multicast::cluster [%r1], [%d1], %r2, [%r3], %h1",
        f"{TO_OWN}.global.{TX}.L2::cache_hint [%r1], [%d1], %r2, [%r3]",
        f"{TO_OWN}.global.{TX} [%r1, {{%r5}}], [%d1], %r2, [%r3]",
        "cp.async.bulk.global.shared::cta.bulk_group.sometimes [%d1], [%r1], %r2",
        "cp.async.bulk.wait_group.read",
        "cp.async.bulk.commit_group 0",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s64 [%d1], [%r1], %r2",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%d1], [%r1], %r2",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.f32 [%d1], [%r1], %r2",
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.add.f32 [%r1], [%r2], %r3, [%r4]",
        f"cp.reduce.async.bulk.shared::cluster.global.{TX}.add.u32 [%r1], [%d1], %r3, [%r4]",
        "st.async.release.gpu.global.u32 [%d1], %r1",
        f"st.async.shared::cluster.{TX}.v2.u32 [%r1], {{%r2}}, [%r3]",
        f"st.async.shared::cluster.{TX}.u16 [%r1], %h2, [%r3]",
        "red.async.release.gpu.global.add.u32 [%d1], %r1",
        f"red.async.relaxed.cluster.shared::cluster.{TX}.min.u64 [%r1], %d1, [%r3]",
    ],
)
def test_unknown_forms(text):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+: "):
        simulator.Module(ptx(text + ";")).decode("k")
