"""tcgen05: allocation, order between instructions, and what is not allowed."""

from __future__ import annotations

import numpy
import pytest
import torch

import simulator
from simulator.snippets import ptx

# --- statements -----------------------------------------------------------------------------------

# %r2: address of tensor memory, 64 columns of it. Shared memory holds zeros, %d1 describes it.
ALLOCATE = """
  setp.lt.u32 %p1, %r0, 32;
  @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;
  bar.sync 0;
  ld.shared.b32 %r2, [%r1];
  bar.sync 0;
  mov.b32 %r3, 0;
  mad.lo.u32 %r4, %r0, 8, %r1;
  st.shared.v2.b32 [%r4], {%r3, %r3};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  shr.u32 %r4, %r1, 4;
  cvt.u64.u32 %d1, %r4;
  or.b64 %d1, %d1, 0x0000400000000000;
  setp.eq.u32 %p2, %r0, 0;
  @%p2 mbarrier.init.shared::cta.b64 [%r1+1016], 1;
  bar.sync 0;
"""
FREE = """
  bar.sync 0;
  @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;
"""
IDESC = 1 << 4 | 1 << 7 | 1 << 10 | 8 // 8 << 17 | 64 // 16 << 24  # f32, bf16, N 8, M 64
MMA = f"@%p2 tcgen05.mma.cta_group::1.kind::f16 [%r2], %d1, %d1, {IDESC}, 0;"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r2];"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r3};"
WAIT_LOAD, WAIT_STORE = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
BARRIER = "bar.sync 0;"


# Waits for all that the thread has begun.
COMMIT = "@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+1016];"
FINISH = [
    COMMIT,
    "again: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r1+1016], 0;",
    "@!%p4 bra again;",
]


def run_text(*statements: str, block=128, target="sm_100a", options=None, **more):
    module = simulator.Module(ptx("\n  ".join(statements), target))
    return module.launch("k", block=block, arguments=[torch.zeros(1)], options=options, **more)


def run_statements(*statements: str, **more):
    return run_text(ALLOCATE, *statements, FREE, **more)


def test_statements_as_they_should_be():
    run_statements(STORE, WAIT_STORE, BEFORE, BARRIER, AFTER, LOAD, WAIT_LOAD, "mov.b32 %r6, %r5;")


def test_use_without_a_wait_is_reported():
    """Hardware waits for the registers of a load, the PTX ISA asks for tcgen05.wait::ld. The
    compiler moves arithmetic before the wait, but no stores, and nothing over a branch."""

    def is_reported(*statements):
        launch = run_statements(STORE, WAIT_STORE, LOAD, *statements, allow_races=True)
        return any("asynchronous instruction owns it" in race for race in launch.races)

    use = "mov.b32 %r6, %r5;"
    assert not is_reported(use, WAIT_LOAD)
    assert not is_reported(WAIT_LOAD, use)
    assert is_reported(use)
    assert is_reported("st.shared.b32 [%r1], %r5;", WAIT_LOAD)
    assert is_reported(use, "bra next;", "next:", WAIT_LOAD)


def test_accesses_must_be_ordered():
    def races(*statements):
        return run_statements(*statements, allow_races=True).races

    # One thread multiplies after all warps stored; the order needs both fences and the wait.
    ordered = [STORE, WAIT_STORE, BEFORE, BARRIER, AFTER, MMA, *FINISH]
    assert races(*ordered) == []
    for dropped in range(1, 5):
        assert races(*ordered[:dropped], *ordered[dropped + 1 :])


def test_leak():
    with pytest.raises(simulator.SimulatorError, match="still allocated: 64 columns at column 0"):
        run_text(ALLOCATE)


def test_lanes():
    """Other bits than the fifth do not matter: a warp sees its own quarter."""
    own = ["shr.u32 %r8, %r0, 5;", "shl.b32 %r8, %r8, 21;", "add.u32 %r8, %r2, %r8;"]
    run_statements(STORE, WAIT_STORE, *own, LOAD.replace("%r2", "%r8"), WAIT_LOAD)
    for lane in (8, 16):
        with pytest.raises(simulator.SimulatorError, match="where this shape may begin"):
            run_statements(f"add.u32 %r8, %r2, {lane << 16};", LOAD.replace("%r2", "%r8"))
    with pytest.raises(simulator.SimulatorError, match="which has 128"):
        run_statements(f"add.u32 %r8, %r2, {128 << 16};", LOAD.replace("%r2", "%r8"))
    with pytest.raises(simulator.SimulatorError, match="address differs between lanes"):
        run_statements("add.u32 %r8, %r2, %r0;", LOAD.replace("%r2", "%r8"))


def test_partial_warps():
    for statement in (LOAD, STORE, WAIT_LOAD, WAIT_STORE):
        with pytest.raises(simulator.SimulatorError, match="all 32 lanes"):
            run_statements(f"@%p2 {statement}")


@pytest.mark.parametrize(
    "statement", [LOAD, STORE, MMA, "@%p2 tcgen05.cp.cta_group::1.128x256b [%r2], %d1;"]
)
def test_columns_must_be_allocated(statement):
    small = "add.u32 %r8, %r2, 64;"
    with pytest.raises(simulator.SimulatorError, match="is not allocated"):
        run_statements(small, statement.replace("[%r2]", "[%r8]"))
    with pytest.raises(simulator.SimulatorError, match="which has 512"):
        run_statements("add.u32 %r8, %r2, 512;", statement.replace("[%r2]", "[%r8]"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 2}, "bits 0-1|sparsity"),
        ({2: 1}, "sparsity"),
        ({3: 1}, "saturate"),
        ({23: 1}, "bit 23"),
        ({30: 1}, "shift of B"),
        ({4: 2}, "type of D"),
        ({7: 2}, "type of A"),
        ({10: 0}, "other than A's"),
        ({17: 0}, "no shape"),
        ({24: 32 // 16}, "no shape M 32"),
        ({24: 256 // 16}, "no shape M 256"),
    ],
)
def test_bad_instruction_descriptors(change, message):
    widths = {4: 2, 7: 3, 10: 3, 17: 6, 24: 5}
    descriptor = IDESC
    for first, value in change.items():
        width = widths.get(first, 2)
        descriptor = descriptor & ~((2**width - 1) << first) | value << first
    with pytest.raises(simulator.SimulatorError, match=message):
        run_statements(MMA.replace(str(IDESC), str(descriptor)))


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (1 << 46, "version"),
        (1 << 49, "base offset"),
        (1 << 52, "absolute leading dimension"),
        (1 << 53, "bits 53-60"),
        (3 << 61, "no swizzle mode"),
        (1 << 61, "transposed tf32"),
        (0x3FFF, "leads to shared address"),
    ],
)
def test_bad_shared_memory_descriptors(bits, message):
    with pytest.raises(simulator.SimulatorError, match=message):
        run_statements(f"xor.b64 %d1, %d1, {bits};", MMA)


def test_d_must_begin_at_a_lane_of_its_layout():
    for lane, good in [(0, True), (16, True), (32, False), (8, False)]:
        statements = [f"add.u32 %r8, %r2, {lane << 16};", MMA.replace("[%r2]", "[%r8]")]
        if good:
            run_statements(*statements, *FINISH)
        else:
            with pytest.raises(simulator.SimulatorError, match="D begins at lane"):
                run_statements(*statements)


def test_one_cta_group_in_a_kernel():
    with pytest.raises(simulator.SimulatorError, match="after an instruction with cta_group::1"):
        run_statements(MMA.replace("cta_group::1", "cta_group::2"))


def test_pair_needs_a_pair():
    with pytest.raises(simulator.SimulatorError, match="block 0 has no pair"):
        run_text("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 64;", block=32)


# --- allocation -----------------------------------------------------------------------------------


def alloc(columns: int, place: int = 0) -> str:
    return f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+{place}], {columns};"


def dealloc(register: str, columns: int) -> str:
    return f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 {register}, {columns};"


RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"


def read(register: str, place: int = 0) -> str:
    return f"ld.shared.b32 {register}, [%r1+{place}];"


@pytest.mark.parametrize("columns", [0, 16, 48, 96, 1024])
def test_columns_are_a_power_of_two(columns):
    with pytest.raises(simulator.SimulatorError, match="power of 2 from 32 to 512"):
        run_text(alloc(columns), block=32)


def test_allocations_do_not_overlap():
    statements = [
        alloc(256),
        alloc(128, 4),
        alloc(128, 8),
        *(read(f"%r{4 + i}", 4 * i) for i in range(3)),
    ]
    statements += [f"st.global.b32 [%d0+{4 * i}], %r{4 + i};" for i in range(3)]
    statements += [dealloc("%r4", 256), dealloc("%r5", 128), dealloc("%r6", 128), RELINQUISH]
    result = torch.zeros(3, dtype=torch.int32)
    simulator.Module(ptx("\n".join(statements))).launch("k", arguments=[result])
    places = [set(range(c, c + n)) for c, n in zip(result.tolist(), (256, 128, 128), strict=True)]
    assert set.union(*places) == set(range(512))


def test_alloc_waits_for_room():
    """Two warps ask for all of it; the second gets it when the first gives it back."""
    statements = [alloc(512), read("%r4"), dealloc("%r4", 512)]
    launch = run_text(*statements, block=64, allow_races=True)
    assert launch.counters.total.instructions["tensor_memory"] == 4
    with pytest.raises(simulator.SimulatorError, match="512 columns of tensor memory; 512 of 512"):
        run_text(alloc(512), block=64, allow_races=True)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ([RELINQUISH, alloc(32)], "after tcgen05.relinquish_alloc_permit"),
        ([alloc(32), alloc(64, 4)], "may not grow"),
        ([alloc(64), read("%r4"), dealloc("%r4", 32)], "no allocation of 32 columns"),
        ([alloc(64), "mov.b32 %r4, 32;", dealloc("%r4", 64)], "no allocation of 64 columns"),
        ([alloc(64), read("%r4"), dealloc("%r4", 64), dealloc("%r4", 64)], "no allocation of 64"),
        (["@%p3 " + alloc(32)], "all 32 lanes"),
        ([alloc(32).replace("[%r1+0]", "[%r1+2]")], "multiple of 4"),
    ],
)
def test_allocation_rules(statements, message):
    with pytest.raises(simulator.SimulatorError, match=message):
        run_text("setp.lt.u32 %p3, %r0, 7;", *statements, block=32)


def test_allocation_of_a_pair():
    """Both blocks get the same columns, and only when both have asked."""
    text = [
        alloc(128).replace("group::1", "group::2"),
        read("%r4"),
        "mov.u32 %r5, %cluster_ctarank;",
        "mad.wide.u32 %d2, %r5, 4, %d0;",
        "st.global.b32 [%d2], %r4;",
        dealloc("%r4", 128).replace("group::1", "group::2"),
    ]
    result = torch.full((2,), -1, dtype=torch.int32)
    module = simulator.Module(ptx("\n".join(text)))
    module.launch("k", grid=2, cluster=2, arguments=[result])
    assert result.tolist() == [0, 0]
    lonely = ["mov.u32 %r5, %cluster_ctarank;", "setp.eq.u32 %p1, %r5, 0;", "@%p1 " + text[0]]
    module = simulator.Module(ptx("\n".join(lonely)))
    with pytest.raises(simulator.SimulatorError, match="both blocks of the pair must ask"):
        module.launch("k", grid=2, cluster=2, arguments=[result])


# --- reductions of loads --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("max.f32", lambda x: numpy.nanmax(x, axis=1)),
        ("min.f32", lambda x: numpy.nanmin(x, axis=1)),
        ("max.abs.f32", lambda x: numpy.nanmax(abs(x), axis=1)),
        ("min.NaN.f32", lambda x: numpy.min(x, axis=1)),
        ("max.u32", lambda x: x.view(numpy.uint32).max(axis=1)),
        ("min.s32", lambda x: x.view(numpy.int32).min(axis=1)),
    ],
)
def test_reduction_of_a_load(operation, expected):
    values = numpy.random.default_rng(2).standard_normal((32, 4)).astype(numpy.float32)
    values[5, 2] = numpy.nan
    body = [
        alloc(32),
        read("%r4"),
        "mad.wide.u32 %d2, %r0, 16, %d0;",
        "ld.global.v4.b32 {%r8, %r9, %r10, %r11}, [%d2];",
        "tcgen05.st.sync.aligned.32x32b.x4.b32 [%r4], {%r8, %r9, %r10, %r11};",
        WAIT_STORE,
        f"tcgen05.ld.red.sync.aligned.32x32b.x4.{operation} "
        "{%r12, %r13, %r14, %r15}, %r16, [%r4];",
        WAIT_LOAD,
        "st.global.v4.b32 [%d2], {%r16, %r13, %r14, %r15};",
        dealloc("%r4", 32),
    ]
    memory = torch.from_numpy(values.copy())
    launch = simulator.Module(ptx("\n".join(body), "sm_103a")).launch("k", arguments=[memory])
    got = memory.numpy()
    assert numpy.array_equal(got[:, 1:], values[:, 1:], equal_nan=True)
    wanted = expected(values)
    if wanted.dtype.kind == "f":
        assert numpy.array_equal(got[:, 0], wanted, equal_nan=True)
    else:
        assert numpy.array_equal(got[:, 0].view(wanted.dtype), wanted)
    assert len(launch.unanchored) == 1


# --- commit ---------------------------------------------------------------------------------------


def test_commit_needs_an_mbarrier():
    commit = "@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+504];"
    with pytest.raises(simulator.SimulatorError, match="mbarrier"):
        run_statements(MMA, commit)


def test_commit_beyond_the_cluster():
    commit = (
        "@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
        ".multicast::cluster.b64 "
        "[%r1+504], %h1;"
    )
    with pytest.raises(simulator.SimulatorError, match="beyond the cluster"):
        run_statements("mov.b16 %h1, 3;", MMA, commit)


@pytest.mark.parametrize(
    "statement",
    [
        MMA.replace("kind::f16", "kind::f64"),
        MMA.replace("tcgen05.mma", "tcgen05.mma.sp"),
        MMA.replace("kind::f16", "kind::f16.ashift"),
        MMA.replace("kind::f16", "kind::f16.block_scale"),
        MMA.replace("kind::f16", "kind::mxf4"),
        MMA.replace("kind::f16", "kind::f16.collector::b0::fill"),
        MMA.replace("tcgen05.mma", "tcgen05.mma.ws").replace("cta_group::1", "cta_group::2"),
        MMA.replace(", 0;", ", 0, 16;"),
        MMA.replace(", 0;", ", {%r3, %r3}, 0;"),
        MMA.replace("[%r2]", "[%r2+8]"),
        LOAD.replace("32x32b", "64x32b"),
        LOAD.replace("x1", "x3"),
        LOAD.replace("32x32b.x1", "16x256b.x64"),
        LOAD.replace("{%r5}", "{%r5, %r6}"),
        LOAD.replace("32x32b", "16x32bx2"),
        LOAD.replace(".b32 {%r5}", ".unpack::16b.b32 {%r5}"),
        STORE.replace(".b32 [", ".pack::16b.b32 ["),
        "tcgen05.ld.red.sync.aligned.32x32b.x1.max.f32 {%r5}, %r6, [%r2];",
        "tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r2], %d1;",
        "tcgen05.cp.cta_group::1.64x128b [%r2], %d1;",
        "tcgen05.cp.cta_group::1.32x128b.warpx2::02_13 [%r2], %d1;",
        "tcgen05.shift.cta_group::1.down [%r2];",
        "tcgen05.commit.cta_group::1.b64 [%r1];",
        "tcgen05.wait::ld;",
        "tcgen05.fence::during_thread_sync;",
    ],
)
def test_unknown_forms(statement):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+"):
        simulator.Module(ptx(statement)).decode("k")
