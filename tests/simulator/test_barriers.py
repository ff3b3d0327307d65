"""Barriers of blocks and clusters, mbarriers, fences, distributed shared memory, work queues."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import simulator
from simulator.snippets import ptx

MODES = ["eager", "lazy", "random"]
SEEDS = range(6)


@pytest.fixture(scope="module")
def kernels():
    return simulator.compile(Path(__file__).parent / "kernels" / "barriers.cu", "100a")


def schedules(mode: str):
    """Options to try: some seeds and budgets."""
    if mode == "random":
        return [simulator.options(mode, seed=seed, budget=4) for seed in SEEDS]
    return [simulator.options(mode, budget=budget) for budget in (1, 64)]


def run(body: str, **launch):
    launch.setdefault("block", 1)
    module = simulator.Module(ptx(body))
    return module.launch("k", arguments=[torch.zeros(64, dtype=torch.int32)], **launch)


# --- barriers of a block -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_named_barriers(kernels, mode):
    rounds = 5
    for options in schedules(mode):
        out = torch.zeros(rounds, 64, dtype=torch.int32)
        kernels.launch("named_barriers", block=128, arguments=[out, rounds], options=options)
        expected = 1000 * torch.arange(rounds)[:, None] + torch.arange(63, -1, -1)
        assert torch.equal(out, expected.int())


@pytest.mark.parametrize("mode", MODES)
def test_lanes_may_come_to_a_barrier_apart(kernels, mode):
    for options in schedules(mode):
        out = torch.zeros(64, dtype=torch.int32)
        kernels.launch("barrier_in_two_parts", block=64, arguments=[out], options=options)
        expected = [(t + 100 if t % 32 == 7 else t) for t in range(64)]
        assert out.tolist() == expected[32:] + expected[:32]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("below", [0, 1, 63, 95, 96])
def test_barrier_reductions(kernels, mode, below):
    for options in schedules(mode):
        out = torch.zeros(2, 96, dtype=torch.int32)
        kernels.launch("reductions", block=96, arguments=[out, below], options=options)
        for k in range(2):
            true = min(below + k, 96)
            # The and is of the negated predicate.
            assert out[k].tolist() == [4 * true + 2 * (true == 0) + (true > 0)] * 96


@pytest.mark.parametrize("mode", MODES)
def test_threads_that_left_are_not_waited_for(kernels, mode):
    for options in schedules(mode):
        out = torch.zeros(32, dtype=torch.int32)
        kernels.launch("leaving", block=128, arguments=[out], options=options)
        assert out.tolist() == list(range(8, 40))


@pytest.mark.parametrize("mode", MODES)
def test_lanes_at_one_instruction_may_wait_for_different_barriers(mode):
    # Halves of warp 0 stand at one instruction, each with a half of warp 1. The second half of
    # warp 1 comes to its barrier only after the first half of warp 0 has passed its own.
    body = """
      and.b32 %r2, %r0, 31;
      shr.u32 %r3, %r2, 4;
      setp.eq.u32 %p0, %r3, 0;
      add.u32 %r3, %r3, 1;
      setp.lt.u32 %p1, %r0, 32;
      @!%p1 bra second;
      setp.eq.u32 %p2, %r0, 0;
      @%p2 st.volatile.shared.u32 [%r1], 0;
      bar.sync 0;
      barrier.sync %r3, 32;
      @%p0 st.volatile.shared.u32 [%r1], 1;
      bra.uni end;
      second:
      bar.sync 0;
      @!%p0 bra late;
      barrier.sync 1, 32;
      bra.uni end;
      late:
      ld.volatile.shared.u32 %r4, [%r1];
      setp.eq.u32 %p3, %r4, 0;
      @%p3 bra late;
      barrier.sync 2, 32;
      end:
    """
    for options in schedules(mode):
        run(body, block=64, options=options)


def test_waits_are_counted(kernels):
    out = torch.zeros(5, 64, dtype=torch.int32)
    result = kernels.launch("named_barriers", block=128, arguments=[out, 5])
    assert result.counters.total.barrier_waits == 4 * 5
    assert 0 < result.counters.total.blocked_waits <= 4 * 5
    assert result.counters.total.instructions["barrier"] == 4 * 10


@pytest.mark.parametrize(
    ("body", "block", "message"),
    [
        ("bar.sync 16;", 32, "barrier 16: there are 16"),
        ("bar.sync 1, 33;", 32, "33 threads are not a multiple of 32"),
        ("bar.arrive 1, 0;", 32, "0 threads are not a multiple of 32"),
        ("@%p0 bar.sync 0;", 32, r"\.aligned: lanes 00000001 of ffffffff execute"),
        ("@%p1 bar.arrive 1, 96; @!%p1 bar.sync 1, 64;", 96, "64 threads expected, others said 96"),
        (
            "@%p1 bar.sync 1, 64; @!%p1 bar.sync 1;",
            96,
            "some wait for 64 threads, some for the whole",
        ),
        (
            # One warp arrives with half its lanes, the other twice: 32 + 16 + 32 of 64.
            "setp.lt.u32 %p2, %r0, 16; @%p2 barrier.arrive 1, 64;"
            "@!%p1 barrier.arrive 1, 64; @!%p1 barrier.arrive 1, 64; barrier.sync 2;",
            64,
            "over-arrival, 80 threads of 64",
        ),
        (
            "setp.lt.u32 %p2, %r0, 16; @%p2 barrier.arrive 1, 64; @%p2 barrier.arrive 1, 64;",
            32,
            "lanes 0000ffff arrive twice before the rest of their warp",
        ),
    ],
)
def test_wrong_use_of_a_barrier(body, block, message):
    prologue = "setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p1, %r0, 32;"
    with pytest.raises(simulator.SimulatorError, match=message):
        run(prologue + body, block=block)


def test_deadlock_names_everyone_who_waits():
    body = """
      setp.lt.u32 %p1, %r0, 32;
      @%p1 bra first;
      bar.sync 2;
      bra.uni end;
      first:
      bar.sync 1, 96;
      end:
    """
    with pytest.raises(simulator.SimulatorError) as error:
        run(body, block=96)
    report = str(error.value).splitlines()
    assert report[0] == "deadlock: every warp waits"
    assert [line.partition("<- ")[2] for line in report[1:4]] == [
        "barrier 1: 32 of 96 threads have arrived",
        "barrier 2: 64 of 96 threads have arrived",
        "barrier 2: 64 of 96 threads have arrived",
    ]
    assert "warp 0 lanes ffffffff, line" in report[1] and "bar.sync 1, 96" in report[1]


def test_deadlock_of_lanes_that_never_meet():
    body = (
        "setp.lt.u32 %p1, %r0, 5; @%p1 bra first; bar.sync 1; bra.uni end; first: bar.sync 1; end:"
    )
    with pytest.raises(simulator.SimulatorError, match="waits for its other lanes, ffffffe0"):
        run(body, block=32)


# --- clusters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_distributed_shared_memory(kernels, mode):
    for options in schedules(mode):
        out = torch.zeros(4, 64, 4, dtype=torch.int32)
        result = kernels.launch(
            "distributed", grid=4, block=64, cluster=2, arguments=[out], options=options
        )
        thread = torch.arange(64)
        for block in range(4):
            peer = block % 2 ^ 1
            expected = [
                1000 * peer + 63 - thread,
                1000 * peer + thread,
                torch.full((64,), 63 * 64 // 2),
                7000 + 63 - thread,
            ]
            assert torch.equal(out[block], torch.stack(expected, dim=1).int())
        assert result.counters.distributed_shared_bytes == 4 * 64 * 4 * 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_remote_arrivals(kernels, mode, cluster):
    for options in schedules(mode):
        out = torch.zeros(8, dtype=torch.int32)
        kernels.launch("remote_arrivals", grid=8, cluster=cluster, arguments=[out], options=options)
        assert out.tolist() == [50 * cluster + cluster * (cluster - 1) // 2] * 8


@pytest.mark.parametrize("mode", MODES)
def test_the_cluster_waits_for_every_lane(mode):
    # The first half of each warp arrives early; the second half first writes what the peer reads.
    body = """
      setp.lt.u32 %p0, %r0, 16;
      mapa.shared::cluster.u32 %r3, %r1, 0;
      mapa.shared::cluster.u32 %r4, %r1, 1;
      @!%p0 bra late;
      barrier.cluster.arrive;
      barrier.cluster.wait;
      ld.shared::cluster.u32 %r5, [%r3];
      ld.shared::cluster.u32 %r6, [%r4];
      add.u32 %r5, %r5, %r6;
      st.global.u32 [%d0], %r5;
      bra.uni end;
      late:
      setp.eq.u32 %p1, %r0, 16;
      @%p1 st.shared.u32 [%r1], 21;
      barrier.cluster.arrive;
      barrier.cluster.wait;
      end:
      barrier.cluster.arrive.aligned;
      barrier.cluster.wait.aligned;
    """
    for options in schedules(mode):
        out = torch.zeros(1, dtype=torch.int32)
        simulator.Module(ptx(body)).launch(
            "k", grid=2, cluster=2, arguments=[out], options=options, allow_races=True
        )
        assert out.item() == 42


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("barrier.cluster.wait;", "lanes 00000001 have not arrived"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "arrive twice without a wait"),
        (
            "setp.eq.u32 %p0, %r31, 0; @%p0 barrier.cluster.arrive; @!%p0 bra sleep;"
            "barrier.cluster.wait;"
            "bra.uni end; sleep: bar.sync 1, 64; end:",
            r"deadlock(.|\n)*barrier of the cluster, not arrived: block 1 warp 0",
        ),
        ("ld.shared.u32 %r2, [%r30];", "is of block . of the cluster, this is block ."),
        (
            "setp.eq.u32 %p0, %r31, 0; @%p0 bra end;"
            "mov.u32 %r3, 0; loop: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 1000; @%p1 bra loop;"
            "st.shared::cluster.u32 [%r30], %r3; end:",
            "is of block 0 of the cluster, which has exited",
        ),
        (
            "mbarrier.init.shared.b64 [%r1], 1;mbarrier.try_wait.parity.shared.b64 %p0, [%r30], 0;",
            "is of block . of the cluster, this is block .",
        ),
        (
            "mbarrier.arrive.shared::cluster.b64 _, [%r30];",
            "no mbarrier was initialised at 0x",
        ),
    ],
)
def test_wrong_use_of_a_cluster(body, message):
    # %r31 is the rank, %r30 the address of `block` in the other of two blocks.
    prologue = """
      mov.u32 %r31, %cluster_ctarank;
      xor.b32 %r30, %r31, 1;
      mapa.shared::cluster.u32 %r30, %r1, %r30;
    """
    with pytest.raises(simulator.SimulatorError, match=message):
        run(prologue + body, grid=2, cluster=2)


# --- mbarriers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_pipeline(kernels, mode, rounds):
    for options in schedules(mode):
        data = torch.randint(0, 2**31 - 1, (rounds, 32), dtype=torch.int32)
        out = torch.zeros(rounds, 64, dtype=torch.int32)
        result = kernels.launch(
            "pipeline", block=96, arguments=[data, out, rounds], options=options
        )
        for k in range(rounds):
            rolled = data[k].roll(-k)
            assert torch.equal(out[k], rolled.repeat(2))
        assert result.counters.total.barrier_waits >= 3 * rounds


def test_states(kernels):
    out = torch.full((10,), -1, dtype=torch.int32)
    kernels.launch("states", block=1, arguments=[out])
    assert out.tolist() == [10, 7, 0, 1, 8, 0, 1, 0, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_failed_looks_end(kernels, mode):
    out = torch.zeros(3, dtype=torch.int32)
    kernels.launch("peeks", block=1, arguments=[out], options=simulator.options(mode))
    assert out.tolist() == [0, 0, 1]


INIT = "mbarrier.init.shared.b64 [%r1], 2;"
WAIT = "w{0}: mbarrier.{1}.parity.shared.b64 %p0, [%r1], {0}; @!%p0 bra w{0};"
ARRIVE = "mbarrier.arrive.shared.b64 _, [%r1];"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ARRIVE, "no mbarrier was initialised at 0x400"),
        (WAIT.format(0, "try_wait"), "no mbarrier was initialised at 0x400"),
        ("mbarrier.expect_tx.shared.b64 [%r1], 4;", "no mbarrier was initialised"),
        ("mbarrier.inval.shared.b64 [%r1];", "no mbarrier was initialised"),
        ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];", "no mbarrier was initialised"),
        (INIT + "mbarrier.inval.shared.b64 [%r1];" + ARRIVE, "no mbarrier was initialised"),
        (INIT + INIT, "there is a valid one already: mbarrier 0x400: 2 of 2 arrivals pending"),
        ("mbarrier.init.shared.b64 [%r1], 0;", r"count 0 is not in 1..1048575"),
        ("mbarrier.init.shared.b64 [%r1], 0x100000;", "count 1048576 is not in"),
        ("mbarrier.init.shared.b64 [%r1+4], 1;", "not a multiple of 8"),
        ("mbarrier.init.shared.b64 [%r1+8192], 1;", "outside of the block's memory"),
        ("mbarrier.init.b64 [%d0], 1;", "is not in shared memory"),
        (INIT + "st.shared.u32 [%r1], 5;" + ARRIVE, "overwritten by something that is no mbarrier"),
        (
            INIT + "mbarrier.expect_tx.shared.b64 [%r1], 8;" + ARRIVE * 3,
            "over-arrival by 1: mbarrier 0x400: 0 of 2 arrivals pending, tx-count 8, phase 0",
        ),
        (INIT + "mbarrier.arrive.shared.b64 _, [%r1], 3;", "over-arrival by 3"),
        (INIT + "mbarrier.arrive.shared.b64 _, [%r1], 0;", "count 0 is not in"),
        (INIT + "mbarrier.arrive.noComplete.shared.b64 %d1, [%r1], 2;", "would complete the phase"),
        (
            INIT + "mbarrier.expect_tx.shared.b64 [%r1], 0x100000;",
            "tx-count overflow, limit 1048575",
        ),
        (INIT + "mbarrier.complete_tx.shared.b64 [%r1], 0x100000;", "tx-count overflow"),
        (
            INIT + "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 0xffff0;" * 2,
            "tx-count overflow.*: 1 of 2 arrivals pending, tx-count 2097120",
        ),
        (
            INIT + "mbarrier.test_wait.parity.shared.b64 %p0, [%r1], 2;",
            "parity 2 is neither 0 nor 1",
        ),
        (
            INIT
            + "mbarrier.arrive.shared.b64 %d1, [%r1];"
            + ARRIVE * 3
            + "mbarrier.test_wait.shared.b64 %p0, [%r1], %d1;",
            "the state is of a phase 2 before the current one",
        ),
        (
            INIT + "mbarrier.init.shared.b64 [%r1+8], 1; mbarrier.arrive.shared.b64 %d1, [%r1];"
            "mbarrier.test_wait.shared.b64 %p0, [%r1+8], %d1;",
            "the state is of another mbarrier, at 0x400",
        ),
        (
            INIT + "mbarrier.arrive.shared.b64 %d1, [%r1]; mbarrier.pending_count.b64 %r2, %d1;",
            "not of a .noComplete arrival",
        ),
        *[
            (
                INIT
                + ARRIVE
                + "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 96;"
                + WAIT.format(0, form),
                r"deadlock(.|\n)*mbarrier 0x400: 0 of 2 arrivals pending, tx-count 96, phase 0 "
                r"\(parity 0\), waits for parity 0 to end",
            )
            for form in ("try_wait", "test_wait")
        ],
        (
            INIT + WAIT.format(1, "try_wait") + ARRIVE + WAIT.format(0, "try_wait"),
            "deadlock(.|\n)*mbarrier 0x400: 1 of 2 arrivals pending, tx-count 0, phase 0",
        ),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_wrong_use_of_an_mbarrier(body, message, mode):
    with pytest.raises(simulator.SimulatorError, match=message):
        run(body, options=simulator.options(mode, check=False))


@pytest.mark.parametrize("form", ["try_wait", "test_wait"])
@pytest.mark.parametrize("phases", [1, 2, 3])
def test_missed_phase(form, phases):
    # Thread 0 looks for the end of the first phase, sleeps while `phases` end, then looks again.
    body = f"""
      setp.lt.u32 %p1, %r0, 32;
      setp.eq.u32 %p2, %r0, 0;
      setp.eq.u32 %p3, %r0, 32;
      @%p2 mbarrier.init.shared.b64 [%r1], 1;
      bar.sync 0;
      @!%p1 bra others;
      @%p2 mbarrier.{form}.parity.shared.b64 %p0, [%r1], 0;
      bar.sync 1, 64;
      bar.sync 2, 64;
      @%p2 mbarrier.{form}.parity.shared.b64 %p0, [%r1], 0;
      bra.uni end;
      others:
      bar.sync 1, 64;
      {("@%p3 " + ARRIVE) * phases}
      bar.sync 2, 64;
      end:
    """
    if phases == 1:
        run(body, block=64)
        return
    with pytest.raises(simulator.SimulatorError, match=r"missed phase: lane 0 waited .* phase 0"):
        run(body, block=64)


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_without_arrival_order_is_a_race(mode):
    # Warp 1 reads what warp 0 wrote after a relaxed arrival; then with release.
    body = """
      setp.lt.u32 %p1, %r0, 32;
      setp.eq.u32 %p2, %r0, 0;
      @%p2 mbarrier.init.shared.b64 [%r1], 32;
      bar.sync 0;
      @!%p1 bra reader;
      st.shared.u32 [%r1+64], %r0;
      mbarrier.arrive{form}.shared.b64 _, [%r1];
      bra.uni end;
      reader:
      w: mbarrier.try_wait.parity.shared.b64 %p0, [%r1], 0;
      @!%p0 bra w;
      ld.shared.u32 %r2, [%r1+64];
      end:
    """.replace
    run(body("{form}", ".release.cta"), block=64, options=simulator.options(mode))
    with pytest.raises(simulator.SimulatorError, match="read after write in shared memory"):
        run(body("{form}", ".relaxed.cta"), block=64, options=simulator.options(mode))


# --- work queue ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cluster", [1, 2])
def test_work_queue(kernels, mode, cluster):
    for options in schedules(mode):
        out, turns = torch.zeros(12, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        result = kernels.launch(
            "work_queue", grid=12, cluster=cluster, arguments=[out, turns], options=options
        )
        assert out.tolist() == [1] * 12  # each block's work once, whoever did it
        assert turns.item() == 12
        assert result.counters.total.instructions["hint"] > 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@%p1 bra end; {cancel} end:", "no mbarrier was initialised"),
        ("{init} {query} ", "not a response of try_cancel"),
        (
            "{init} {cancel} {wait} ld.shared.b128 %q0, [%r1+16]; {first}",
            "says that nothing was cancelled",
        ),
        (
            "{init} {cancel} {wait} ld.shared.b128 %q0, [%r1+16]; {query} {cancel}",
            "the block has seen an earlier one fail",
        ),
        ("{init} {cancel8}", "not a multiple of 16"),
    ],
)
def test_wrong_use_of_a_work_queue(body, message):
    cancel = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
    query = "clusterlaunchcontrol.query_cancel"
    body = body.format(
        init="mbarrier.init.shared.b64 [%r1], 1;mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;",
        cancel=f"{cancel} [%r1+16], [%r1];",
        cancel8=f"{cancel} [%r1+24], [%r1];",
        wait=WAIT.format(0, "try_wait"),
        query=f"{query}.is_canceled.pred.b128 %p2, %q0;",
        first=f"{query}.get_first_ctaid::x.b32.b128 %r2, %q0;",
    )
    prologue = "setp.ne.u32 %p1, %r0, 0; mov.b128 %q0, {%d0, %d0};"
    with pytest.raises(simulator.SimulatorError, match=message):
        run(prologue + body)


# --- forms ---------------------------------------------------------------------------------------

ACCEPTED = [
    "bar.sync 0",
    "bar.cta.sync %r2, %r3",
    "bar.cta.arrive 1, 64",
    "bar.red.and.pred %p0, 1, !%p1",
    "bar.cta.red.popc.u32 %r2, 1, 64, %p1",
    "barrier.sync 1",
    "barrier.cta.sync.aligned 1, 64",
    "barrier.arrive 1, 64",
    "barrier.cta.red.or.pred %p0, 1, 64, %p1",
    "barrier.cluster.arrive",
    "barrier.cluster.arrive.relaxed.aligned",
    "barrier.cluster.arrive.release",
    "barrier.cluster.wait.acquire.aligned",
    "membar.cta",
    "membar.gl",
    "membar.sys",
    "fence.cta",
    "fence.sc.gpu",
    "fence.acq_rel.cluster",
    "fence.acquire.cta",
    "fence.release.sys",
    "fence.acquire.sync_restrict::shared::cluster.cluster",
    "fence.release.sync_restrict::shared::cta.cluster",
    "fence.mbarrier_init.release.cluster",
    "fence.proxy.alias",
    "membar.proxy.alias",
    "fence.proxy.async",
    "fence.proxy.async.global",
    "fence.proxy.async.shared::cta",
    "fence.proxy.async.shared::cluster",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
    "fence.proxy.tensormap::generic.release.gpu",
    "fence.proxy.tensormap::generic.acquire.sys [%d0], 128",
    "mbarrier.init.b64 [%d0], %r2",
    "mbarrier.arrive.b64 %d1, [%d0]",
    "mbarrier.arrive.release.cluster.b64 %d1, [%d0], 4",
    "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r1], %r2",
    "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], 16",
    "mbarrier.arrive_drop.shared::cta.b64 %d1, [%r1], 2",
    "mbarrier.arrive_drop.noComplete.b64 %d1, [%d0], 2",
    "mbarrier.test_wait.b64 %p0, [%d0], %d1",
    "mbarrier.try_wait.acquire.cta.shared::cta.b64 %p0, [%r1], %d1, %r2",
    "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p0, [%r1], 1",
    "griddepcontrol.wait",
    "griddepcontrol.launch_dependents",
]


@pytest.mark.parametrize("statement", ACCEPTED)
def test_accepts(statement):
    simulator.Module(ptx(statement + ";")).decode("k")


@pytest.mark.parametrize(
    "statement",
    [
        "bar.arrive 1",
        "bar.sync 1, 32, 32",
        "bar.wait 1",
        "bar.red.xor.pred %p0, 1, %p1",
        "bar.red.popc.pred %p0, 1, %p1",
        "bar.sync.relaxed 1",
        "barrier.cluster.sync",
        "barrier.cluster.arrive.acquire",
        "barrier.cluster.wait.relaxed",
        "barrier.cluster.arrive 1",
        "bar.cluster.arrive",
        "membar",
        "membar.cluster",
        "fence.acq_rel",
        "fence.relaxed.gpu",
        "fence.acquire.sync_restrict::shared::cta.cluster",
        "fence.mbarrier_init.release.cta",
        "fence.proxy.everything",
        "fence.proxy.async.shared",
        "fence.proxy.async::generic.acquire",
        "fence.proxy.tensormap::generic.acquire.gpu [%d0], 64",
        "fence.proxy.tensormap::generic.acquire.gpu",
        "mbarrier.init.shared.b32 [%r1], 1",
        "mbarrier.init.shared::cluster.b64 [%r1], 1",
        "mbarrier.init.shared.b64 [%r1]",
        "mbarrier.inval.release.cta.shared.b64 [%r1]",
        "mbarrier.arrive.acquire.cta.shared.b64 %d1, [%r1]",
        "mbarrier.arrive.release.shared.b64 %d1, [%r1]",
        "mbarrier.arrive.shared::cluster.b64 %d1, [%r1]",
        "mbarrier.arrive.noComplete.shared.b64 %d1, [%r1]",
        "mbarrier.arrive.noComplete.expect_tx.shared.b64 %d1, [%r1], 4",
        "mbarrier.arrive.parity.shared.b64 %d1, [%r1]",
        "mbarrier.expect_tx.release.cta.shared.b64 [%r1], 4",
        "mbarrier.test_wait.shared.b64 %p0, [%r1], %r2",
        "mbarrier.test_wait.parity.shared.b64 %p0, [%r1], 0, 100",
        "mbarrier.try_wait.parity.shared::cluster.b64 %p0, [%r1], 0",
        "mbarrier.try_wait.release.cta.shared.b64 %p0, [%r1], %d1",
        "mbarrier.reset.shared.b64 [%r1]",
        "clusterlaunchcontrol.try_cancel.mbarrier::complete_tx::bytes.b128 [%r1], [%r1]",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v2.b32.b128 {%r1, %r2}, %q0",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::w.b32.b128 %r1, %q0",
        "clusterlaunchcontrol.give_back.b128 %q0",
        "griddepcontrol.sync",
    ],
)
def test_unknown_forms_are_errors(statement):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+: " + statement.split()[0]):
        simulator.Module(ptx(statement + ";")).decode("k")
