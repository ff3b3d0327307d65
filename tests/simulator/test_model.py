"""model.py: from counters and schedules to times."""

from __future__ import annotations

import dsv4_host_tests as host
import pytest

import simulated
from simulator import model, report

GPU = report.GPUS["H200"]
ENGINE = "sim-sm90"
FORMAT_CASE = model.Case("packed", 16, 1152, 128)


def counters(**numbers):
    """Of two warps that execute nothing but what is said."""
    warp = {"instructions": {"float": 0, "move": 0}, **dict.fromkeys(report._OF_WARP, 0)}
    warps = [
        {**warp, "instructions": {"float": numbers.pop(f"warp{i}", 0), "move": 5}} for i in range(2)
    ]
    nothing = {"matrix_instructions": {}, "opcodes": {}, **dict.fromkeys(report._SUMS, 0)}
    return {"warps": warps, **nothing, **numbers}


# --- report.py: pipes


def test_conversions_and_special_functions_are_found_by_their_opcodes():
    opcodes = {
        "cvt.rn.f16x2.e4m3x2": 4,
        "cvt.rn.bf16x2.f32": 2,
        "cvt.u64.u32": 100,
        "ex2.approx.ftz.f32": 3,
        "rcp.approx.ftz.f32": 1,
        "ex2sum": 100,
    }
    assert report.conversion_clocks(counters(opcodes=opcodes)) == 6 * 32 / 64
    assert report.special_clocks(counters(opcodes=opcodes)) == 4 * 32 / 16


def test_only_m64_of_one_cta_may_go_at_half_rate():
    def clocks(**shapes):
        told = counters(matrix_instructions=shapes, matrix_cycles=120.0)
        slow = report.matrix_clocks(told, GPU, half_rate_m64=True)
        assert report.matrix_clocks(told, GPU) == 120
        return slow

    m64, ws, m128 = (
        f"tcgen05.f8f6f4.{kind} N128 SS" for kind in ("cg1 M64", "cg1.ws M64", "cg1 M128")
    )
    assert clocks(**{m64: 7}) == 240
    assert clocks(**{ws: 7, m128: 1, "tcgen05.f16.cg2 M128 N256 TS": 1}) == 120
    assert clocks(**{m64: 2, m128: 1}) == 180


def test_mma_sync_goes_at_the_rate_of_the_gpu():
    told = counters(matrix_instructions={"mma.sync.aligned.m16n8k16": 1}, matrix_cycles=4.0)
    assert report.matrix_clocks(told, report.GPUS["RTX_PRO_6000"]) == 4
    assert report.matrix_clocks(told, GPU) == pytest.approx(6.6 / 4)  # of each scheduler


# --- costs


def test_a_cost_gives_back_what_it_was_made_of():
    narrow = counters(warp0=1000, warp1=10, bulk_load_bytes=384 * 512, num_sectors=384 * 16)
    wide = counters(warp0=2536, warp1=10, bulk_load_bytes=1152 * 512, num_sectors=1152 * 16)
    cost = model.cost_of(narrow, wide, ctas=1)
    for width, told in zip(model.WIDTHS, (narrow, wide), strict=True):
        assert cost.clocks(GPU, width, 1) == pytest.approx(model.clocks_of(told, GPU))
    assert report.issue_clocks(cost.slot) == 2  # a slot
    assert report.issue_clocks(cost.row, moves=False) == 232
    assert model.memory_bytes(cost.slot) == 512


def test_what_a_cluster_copies_twice_comes_from_memory_once():
    assert model.memory_bytes(counters(bulk_load_bytes=2048, num_sectors=32)) == 1024


# --- shares


@pytest.mark.parametrize("rows", [1, 7, 64, 128, 140, 300])
@pytest.mark.parametrize("heads", [16, 64])
@pytest.mark.parametrize("width", [0, 128, 640, 1152])
def test_shares_hold_all_rows(rows, heads, width):
    found = host.make_schedule(rows=rows, heads=heads, slots=width, blocks=132)
    schedule = model.Schedule(*(getattr(found, name) for name in model.Schedule._fields))
    shares = model.shares_of(schedule, rows, width)
    assert len(shares) <= schedule.num_shares
    units = max(1, -(-width // schedule.unit_slots))
    assert sum(share.slots for share in shares) == rows * units * schedule.unit_slots
    # Each cut adds a piece of a row.
    cuts = sum(share.rows for share in shares) - rows
    assert 0 <= cuts < len(shares)
    parts = model.num_partial_results(schedule, rows, width)
    assert cuts <= parts <= 2 * cuts
    assert schedule.balanced or cuts == 0


def test_parts_of_known_cuts():
    schedule = model.Schedule(4, 1, 16, 64, 1, balanced=True)
    # Three rows of four units: the shares have three each, and the first and last row two parts.
    assert model.shares_of(schedule, 3, 256) == [(192, 1), (192, 2), (192, 2), (192, 1)]
    assert model.num_partial_results(schedule, 3, 256) == 6
    whole = schedule._replace(num_shares=3)
    assert model.num_partial_results(whole, 3, 256) == 0


# --- times


def test_the_slowest_share_counts_and_memory_serves_a_slot_once():
    cost = model.Cost(1, counters(warp0=10, global_load_bytes=512), counters(warp0=100))
    schedule = model.Schedule(2, 3, 16, 64, 1, balanced=False)
    modelled = model.model(model.Case("e4m3", 48, 128, 3), schedule, cost, GPU)
    clocks = 2 * (128 * 10 + 100)
    assert modelled.pipes["issue"] == pytest.approx(clocks / GPU.clocks_per_second * 1e6)
    assert modelled.pipes["memory"] == pytest.approx(3 * 128 * 512 / GPU.bytes_per_second * 1e6)
    assert (modelled.binding(), modelled.combine) == ("issue", 0)
    assert modelled.total() == pytest.approx(modelled.pipes["issue"] + modelled.pipes["L2"])


def test_measured_times_are_found():
    times = model.measured_times(model.MEASURED.read_text())
    assert len(times) == 3 * 5 * 7
    assert times[FORMAT_CASE] > 10


def test_groups_of_warps():
    assert model.groups_of([100, 110, 99, 20, 3, 3]) == [range(3), range(3, 4), range(4, 6)]


# --- the library


@pytest.mark.simulated
def test_a_schedule_without_a_run():
    library = model.Library(ENGINE)
    schedule = library.schedule(FORMAT_CASE)
    wanted = host.make_schedule(rows=128, heads=16, slots=1152, blocks=132)
    for name, value in schedule._asdict().items():
        assert value == getattr(wanted, name), name


@pytest.mark.simulated
def test_a_third_width_costs_what_the_model_says():
    """And with the first cluster alone, nothing else runs."""
    library = model.Library(ENGINE)
    cost = library.costs("e4m3", 16)[16, 1]
    width = 768
    _, launch = library.record(model.Case("e4m3", 16, width, 2), None, True, clusters=1)
    assert launch["grid"] == [2, 1, 1]
    told = launch["counters"]
    predicted = cost.clocks(library.gpu, width, 1)
    assert model.clocks_of(told, library.gpu) == pytest.approx(predicted, rel=0.02)
    assert told["bulk_load_bytes"] == pytest.approx(width * 512, rel=0.05)
    assert all(sum(warp["instructions"].values()) > 0 for warp in told["warps"])


@pytest.mark.simulated
def test_launches_are_recorded_as_report_writes_them():
    library = model.Library(ENGINE)
    nothing = library.record(model.Case("bf16", 16, 128, 1), None, True, clusters=0)[1]
    assert "decode_kernel" in nothing["kernel"]
    assert model.num_instructions(nothing) == 0
    told = nothing["counters"]
    assert {"warps", "matrix_instructions", "opcodes", *report._SUMS} == set(told)
    assert {"instructions", *report._OF_WARP} == set(told["warps"][0])


@pytest.mark.simulated
def test_tables_of_one_case(capsys):
    arguments = "--engine sim-sm120 --format e4m3 --heads 16 --widths 128 --batches 1"
    model.main([*arguments.split(), "--tables", "counters", "pipes", "times"])
    shown = capsys.readouterr().out
    assert shown.count("| e4m3 | 16 |") == 3
    with pytest.raises(SystemExit, match="measured of sim-sm90 only"):
        model.main([*arguments.split(), "--tables", "error"])
    with pytest.raises(ValueError, match="expected a number"):
        simulated.set_option("clusters", "some")
