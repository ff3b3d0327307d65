"""shfl, vote, elect, match, redux, activemask, bar.warp.sync."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
import torch

import simulator
from simulator.snippets import ptx

MODES = ["eager", "lazy", "random"]
LANES = range(32)


@pytest.fixture(scope="module")
def kernels():
    return simulator.compile(Path(__file__).parent / "kernels" / "warp.cu", "100a")


def run(body: str, rows: int = 1, block: int = 32, mode: str = "eager") -> torch.Tensor:
    """Runs with %d1 the address of the thread's 32-bit element in a buffer of rows x 32."""
    prologue = "mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;"
    out = torch.zeros(rows, 32, dtype=torch.int32)
    module = simulator.Module(ptx(prologue + body))
    module.launch("k", block=block, arguments=[out], options=simulator.options(mode))
    return out


def signed(value: int) -> int:
    return struct.unpack("<i", struct.pack("<I", value & 0xFFFFFFFF))[0]


@pytest.mark.parametrize("mode", MODES)
def test_intrinsics(kernels, mode):
    values = torch.randint(-(2**31), 2**31 - 1, (32,), dtype=torch.int64).tolist()
    data = torch.tensor(values, dtype=torch.int32)
    out = torch.zeros(21, 32, dtype=torch.int32)
    kernels.launch("intrinsics", arguments=[data, out], options=simulator.options(mode))
    unsigned = [v % 2**32 for v in values]
    odd = [v % 2 for v in unsigned]
    xor = 0
    for v in unsigned:
        xor ^= v

    def same_as(lane):
        return sum(1 << other for other in LANES if unsigned[other] % 5 == unsigned[lane] % 5)

    def guarded(source, lane, inside):
        return values[source if inside else lane]

    expected = [
        [values[(t * 7 + 3) % 32] for t in LANES],
        [values[t // 8 * 8 + (t + 5) % 8] for t in LANES],
        [guarded(t - 3, t, t >= 3) for t in LANES],
        [guarded(t - 3, t, t % 16 >= 3) for t in LANES],
        [guarded(t + 5, t, t + 5 < 32) for t in LANES],
        [values[t] for t in LANES],
        [values[t ^ 9] for t in LANES],
        # A segment of 8 lanes: sources in a later segment are out of range, in an earlier one not.
        [guarded(t ^ 9, t, (t ^ 9) // 8 <= t // 8) for t in LANES],
        [sum(o << t for t, o in enumerate(odd))] * 32,
        [4 * all(odd) + 2 * any(odd) + (len(set(odd)) == 1)] * 32,
        [sum(unsigned)] * 32,
        [min(values)] * 32,
        [max(unsigned)] * 32,
        [xor] * 32,
        [same_as(t) for t in LANES],
        [0] * 32,
        [0xFFFFFFFF + 1] * 32,
        [0xFFFFFFFF] * 32,
        [sum(range(16)) if t < 16 else 2 * sum(range(16, 32)) for t in LANES],
        [sum(unsigned[:16]) if t < 16 else sum(unsigned[16:]) for t in LANES],
        [sum(1 << k for k in LANES if k % 3 == 0) if t % 3 == 0 else 0 for t in LANES],
    ]
    for row, wanted in enumerate(expected):
        assert out[row].tolist() == [signed(v) for v in wanted], row


@pytest.mark.parametrize("mode", MODES)
def test_lanes_wait_for_each_other(kernels, mode):
    out = torch.zeros(64, dtype=torch.int32)
    kernels.launch("late_lanes", arguments=[out], options=simulator.options(mode))
    assert out[:32].tolist() == [k * (k - 1) // 2 for k in reversed(LANES)]
    assert out[32:40].tolist() == [0b10101010] * 8


SHUFFLES = {
    "up": lambda lane, b, low, high: (lane - b, lane - b >= low),
    "down": lambda lane, b, low, high: (lane + b, lane + b <= high),
    "bfly": lambda lane, b, low, high: (lane ^ b, (lane ^ b) <= high),
}


@pytest.mark.parametrize("mode", SHUFFLES)
@pytest.mark.parametrize("width", [32, 16, 4, 1])
@pytest.mark.parametrize("offset", [0, 1, 3, 16, 31])
def test_shuffle_predicate(mode, width, offset):
    # As CUDA computes the last operand: the clamp is 0 for up, else 31.
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    out = run(
        f"""
        mul.lo.u32 %r2, %r0, 100;
        shfl.sync.{mode}.b32 %r3|%p1, %r2, {offset}, {clamp}, 0xffffffff;
        selp.u32 %r4, 1, 0, %p1;
        st.global.u32 [%d1], %r3;
        st.global.u32 [%d1+128], %r4;
        """,
        rows=2,
    )
    for lane in LANES:
        low = lane // width * width
        source, inside = SHUFFLES[mode](lane, offset, low, low + width - 1)
        assert out[1, lane] == inside
        assert out[0, lane] == 100 * (source if inside else lane)


def test_shuffle_from_a_lane_outside_the_mask_is_undefined():
    out = run(
        """
        setp.lt.u32 %p0, %r0, 16;
        mov.u32 %r3, 0;
        @%p0 shfl.sync.down.b32 %r3, %r0, 4, 31, 0xffff;
        st.global.u32 [%d1], %r3;
        """
    )
    assert out[0, :12].tolist() == [t + 4 for t in range(12)]
    assert all(out[0, 12:16] > 2**30)  # no lane's value
    assert out[0, 16:].tolist() == [0] * 16


def test_votes_negate_and_obey_masks():
    out = run(
        """
        setp.lt.u32 %p1, %r0, 12;
        setp.lt.u32 %p0, %r0, 16;
        mov.u32 %r2, 0;
        mov.u32 %r3, 0;
        @%p0 vote.sync.ballot.b32 %r2, !%p1, 0xffff;
        @!%p0 vote.sync.all.pred %p2, !%p1, 0xffff0000;
        @!%p0 selp.u32 %r3, 1, 0, %p2;
        vote.sync.uni.pred %p3, %p1, 0xffffffff;
        selp.u32 %r4, 1, 0, %p3;
        st.global.u32 [%d1], %r2;
        st.global.u32 [%d1+128], %r3;
        st.global.u32 [%d1+256], %r4;
        """,
        rows=3,
    )
    assert out[0].tolist() == [0xF000] * 16 + [0] * 16
    assert out[1].tolist() == [0] * 16 + [1] * 16
    assert out[2].tolist() == [0] * 32


def test_elect():
    out = run(
        """
        setp.ge.u32 %p0, %r0, 5;
        mov.u32 %r2, 99;
        setp.eq.u32 %p1, %r0, 99;
        @%p0 elect.sync %r2|%p1, 0xffffffe0;
        selp.u32 %r3, 1, 0, %p1;
        elect.sync _|%p2, 0xffffffff;
        selp.u32 %r4, 1, 0, %p2;
        st.global.u32 [%d1], %r2;
        st.global.u32 [%d1+128], %r3;
        st.global.u32 [%d1+256], %r4;
        """,
        rows=3,
    )
    leader = int(out[0, 5])
    assert leader >= 5
    assert out[0].tolist() == [99] * 5 + [leader] * 27
    assert out[1].tolist() == [int(t == leader) for t in LANES]
    assert out[2].sum() == 1


NAN = math.nan
FLOAT_REDUCTIONS = {
    "plain": [1.5, -3.0, 7.25, -9.5],
    "zeros": [0.0, -0.0, 0.0, -0.0],
    "some nan": [NAN, 2.0, -4.0, NAN],
    "all nan": [NAN] * 4,
    "infinite": [math.inf, -math.inf, 3.0, 1.0],
}


@pytest.mark.parametrize("case", FLOAT_REDUCTIONS)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("form", ["", ".abs", ".NaN", ".abs.NaN"])
def test_redux_f32(case, op, form):
    values = FLOAT_REDUCTIONS[case] * 8
    words = [struct.unpack("<I", struct.pack("<f", v))[0] for v in values[:4]]
    body = "and.b32 %r2, %r0, 3; mov.f32 %f0, 0f00000000;"
    for k, word in enumerate(words):
        body += f"setp.eq.u32 %p0, %r2, {k}; @%p0 mov.b32 %f0, 0f{word:08X};"
    body += f"redux.sync.{op}{form}.f32 %f1, %f0, 0xffffffff; st.global.f32 [%d1], %f1;"
    got = run(body)[0].view(torch.float32).tolist()
    if "abs" in form:
        values = [abs(v) for v in values]
    numbers = [v for v in values if not math.isnan(v)]
    if not numbers or ("NaN" in form and len(numbers) < 32):
        assert all(math.isnan(v) for v in got)
        return
    key = lambda v: (v, math.copysign(1, v))  # noqa: E731  (-0 is less than +0)
    expected = (min if op == "min" else max)(numbers, key=key)
    assert {struct.pack("<f", v) for v in got} == {struct.pack("<f", expected)}


def test_redux_and_or_of_part():
    out = run(
        """
        setp.lt.u32 %p0, %r0, 8;
        mov.u32 %r3, 0;
        mov.u32 %r4, 0;
        or.b32 %r2, %r0, 64;
        @%p0 redux.sync.and.b32 %r3, %r2, 0xff;
        @%p0 redux.sync.or.b32 %r4, %r2, 0xff;
        st.global.u32 [%d1], %r3;
        st.global.u32 [%d1+128], %r4;
        """,
        rows=2,
    )
    assert out[0].tolist() == [64] * 8 + [0] * 24
    assert out[1].tolist() == [64 + 7] * 8 + [0] * 24


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("late", [8, 24])
def test_parties_with_own_masks_meet_at_one_instruction(mode, late):
    # Of two parties of 16 lanes, 8 lanes of one come later, by another way.
    out = run(
        f"""
        mov.u32 %r3, 0xffff;
        setp.ge.u32 %p0, %r0, 16;
        @%p0 mov.u32 %r3, 0xffff0000;
        sub.u32 %r6, %r0, {late};
        setp.lt.u32 %p1, %r6, 8;
        @%p1 bra late;
        meet:
        redux.sync.add.u32 %r4, %r0, %r3;
        st.global.u32 [%d1], %r4;
        bra.uni end;
        late:
        mov.u32 %r5, 0;
        loop:
        add.u32 %r5, %r5, 1;
        setp.lt.u32 %p2, %r5, %r0;
        @%p2 bra loop;
        bra.uni meet;
        end:
        """,
        mode=mode,
    )
    assert out[0].tolist() == [sum(range(16))] * 16 + [sum(range(16, 32))] * 16


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("bar.warp.sync 0xfffffffe;", "lanes 00000001 are not in their own member mask fffffffe"),
        (
            "setp.lt.u32 %p0, %r0, 4; mov.u32 %r2, 0xffffffff; @%p0 mov.u32 %r2, 0xff;"
            "bar.warp.sync %r2;",
            "name another",
        ),
        (
            "setp.lt.u32 %p0, %r0, 4; @%p0 shfl.sync.idx.b32 %r2, %r0, 0, 31, 0xffffffff;",
            "wait for lanes that do not execute this",
        ),
        # The other lanes wait at another instruction for ever.
        (
            "setp.lt.u32 %p0, %r0, 4; @%p0 bra other; bar.warp.sync 0xffffffff; bra.uni end;"
            "other: bar.warp.sync 0xffffffff; end:",
            r"deadlock(.|\n)*waits for lanes 0000000f of member mask ffffffff",
        ),
    ],
)
def test_wrong_masks_are_errors(body, message):
    with pytest.raises(simulator.SimulatorError, match=message):
        run(body)


@pytest.mark.parametrize(
    "statement",
    [
        "shfl.up.b32 %r2, %r0, 1, 0",
        "shfl.sync.rotate.b32 %r2, %r0, 1, 0, -1",
        "shfl.sync.up.b64 %d1, %d0, 1, 0, -1",
        "shfl.sync.up.b32 %r2, %r0, 1, 0",
        "vote.ballot.b32 %r2, %p0",
        "vote.sync.none.pred %p0, %p1, -1",
        "vote.sync.ballot.pred %r2, %p1, -1",
        "elect.sync %r2, -1",
        "elect.sync.aligned _|%p1, -1",
        "match.any.sync.b32 %r2|%p0, %r0, -1",
        "match.some.sync.b32 %r2, %r0, -1",
        "redux.sync.mul.u32 %r2, %r0, -1",
        "redux.sync.add.b32 %r2, %r0, -1",
        "redux.sync.add.f32 %f0, %f1, -1",
        "redux.sync.min.abs.s32 %r2, %r0, -1",
        "redux.sync.and.u32 %r2, %r0, -1",
        "activemask.b64 %d1",
        "bar.warp.arrive -1",
        "bar.warp.sync -1, -1",
    ],
)
def test_unknown_forms_are_errors(statement):
    with pytest.raises(simulator.SimulatorError, match=r"line \d+: " + statement.split()[0]):
        simulator.Module(ptx(statement + ";")).decode("k")
