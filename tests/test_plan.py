"""The host side of the library, through dsv4_host_tests: plans, lengths, page arithmetic."""

import itertools
import json

import dsv4_host_tests as host
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
import dsv4
from dsv4 import kv_cache

plans = settings(deadline=None, max_examples=300, derandomize=True)


@st.composite
def plan_args(draw):
    return dict(
        rows=draw(st.integers(0, 300)),
        heads=draw(st.integers(1, 128)),
        slots=draw(st.integers(0, 9000)),
        parallelism=draw(st.integers(1, 200)),
        batch_invariant=draw(st.booleans()),
        workspace_bytes=draw(st.one_of(st.none(), st.integers(0, 1 << 26))),
        head_block=draw(st.sampled_from([16, 64, 128])),
        min_split_slots=draw(st.sampled_from([1, 64, 100])),
        max_splits=draw(st.sampled_from([1, 5, 64])),
    )


def busy(tasks, parallelism):
    """Share of the machine that works while equal tasks run in rounds."""
    rounds = -(-tasks // parallelism)
    return tasks / (rounds * parallelism)


@plans
@given(args=plan_args())
def test_a_plan_covers_its_work(args):
    plan = host.make_plan(**args)
    assert 1 <= plan.head_block <= min(args["head_block"], args["heads"])
    assert plan.num_head_blocks == -(-args["heads"] // plan.head_block)
    assert plan.num_tasks == args["rows"] * plan.num_head_blocks * plan.num_splits
    most = max(1, min(args["slots"] // args["min_split_slots"], args["max_splits"]))
    assert 1 <= plan.num_splits <= most
    if args["batch_invariant"] or args["rows"] == 0:
        assert plan.num_splits == 1


@st.composite
def schedule_args(draw):
    table_rows = draw(st.sampled_from([1, 1, 2, 3, 4, 7, 20]))
    return dict(
        rows=draw(st.integers(1, 3000 // table_rows)) * table_rows,
        table_rows=table_rows,
        window_slots=draw(st.sampled_from([0, 128])),
        heads=draw(st.integers(1, 300)),
        slots=draw(st.integers(0, 9000)),
        blocks=draw(st.integers(1, 200)),
        batch_invariant=draw(st.booleans()),
        persistent=draw(st.booleans()),
        compares_tables=draw(st.booleans()),
        workspace_bytes=draw(st.one_of(st.none(), st.integers(0, 1 << 26))),
    )


@plans
@given(args=schedule_args())
def test_a_schedule_fills_no_more_than_the_gpu(args):
    schedule = host.make_schedule(**args)
    heads = schedule.group_rows * args["heads"]
    assert schedule.num_head_tiles == -(-heads // schedule.head_tile)
    groups = schedule.num_groups
    # One round of blocks, unless there are more tiles of heads than blocks; or one for each row.
    blocks = schedule.num_shares * schedule.num_head_tiles
    fits = blocks <= max(args["blocks"], schedule.num_head_tiles)
    if not schedule.balanced:
        assert 1 <= schedule.num_shares <= groups
        assert fits or (schedule.num_shares == groups and not args["persistent"])
        return
    assert fits
    slots = args["slots"] + args["window_slots"] * schedule.group_rows
    units = max(1, -(-slots // schedule.unit_slots))
    assert schedule.num_shares <= groups * units
    assert not args["batch_invariant"]
    # Kernels multiply shares by units in 32 bits.
    assert (groups * units + 1) * (schedule.num_shares + 1) < 2**32


@plans
@given(args=schedule_args())
def test_groups_hold_all_rows_of_a_table_and_fit_a_tile(args):
    schedule = host.make_schedule(**args)
    assert schedule.groups_of_table == -(-args["table_rows"] // schedule.group_rows)
    assert schedule.num_groups == args["rows"] // args["table_rows"] * schedule.groups_of_table
    if schedule.group_rows > 1:
        assert schedule.group_rows <= (4 if args["compares_tables"] else 8)
        assert schedule.group_rows * args["heads"] <= schedule.head_tile
        assert not args["batch_invariant"]
        # The last group of a table is not much smaller than the others.
        missing = schedule.group_rows * schedule.groups_of_table - args["table_rows"]
        assert missing < schedule.groups_of_table


@plans
@given(args=schedule_args())
def test_a_schedule_fits_the_workspace(args):
    schedule = host.make_schedule(**args)
    if not schedule.balanced:
        return
    if args["workspace_bytes"] is not None:
        assert schedule.workspace_bytes <= args["workspace_bytes"]
    parts = 2 * schedule.num_shares * schedule.group_rows * args["heads"]
    assert schedule.partial_lse_offset >= parts * 512 * 4
    assert schedule.row_parts_offset >= schedule.partial_lse_offset + parts * 4
    assert schedule.workspace_bytes >= schedule.row_parts_offset + args["rows"] * 8
    assert schedule.partial_lse_offset % 16 == schedule.row_parts_offset % 16 == 0


def test_groups_of_known_shapes():
    """Where they save reads and a tile has room for them."""
    shape = dict(slots=8192, window_slots=128, blocks=132)
    assert host.make_schedule(rows=256, table_rows=4, heads=8, **shape).group_rows == 4
    assert host.make_schedule(rows=256, table_rows=2, heads=8, **shape).group_rows == 2
    assert host.make_schedule(rows=255, table_rows=3, heads=8, **shape).group_rows == 3
    assert host.make_schedule(rows=255, table_rows=5, heads=8, **shape).group_rows == 2  # 2, 2, 1
    assert host.make_schedule(rows=256, table_rows=4, heads=16, **shape).group_rows == 2
    assert host.make_schedule(rows=256, table_rows=4, heads=17, **shape).group_rows == 1
    assert host.make_schedule(rows=256, table_rows=1, heads=8, **shape).group_rows == 1
    # Of tables that are compared, four at most.
    eight = dict(rows=256, table_rows=8, heads=4, **shape)
    assert host.make_schedule(**eight).group_rows == 8
    assert host.make_schedule(**eight, compares_tables=True).group_rows == 4
    # Windows are each row's own.
    assert host.make_schedule(rows=256, table_rows=4, heads=8, slots=0, blocks=132).group_rows == 1


def test_schedules_of_known_shapes():
    """On 132 SMs: one long row is cut, 128 rows are not; without workspace, nothing is."""
    one = host.make_schedule(rows=1, heads=16, slots=1152, blocks=132)
    assert one.balanced
    assert one.num_shares > 8
    many = host.make_schedule(rows=128, heads=16, slots=1152, blocks=132)
    assert not many.balanced
    assert many.num_shares == 128
    none = host.make_schedule(rows=1, heads=16, slots=1152, blocks=132, workspace_bytes=0)
    assert not none.balanced
    # Rows that fill the GPU one and a half times are cut, so that no block has two while others
    # have one.
    uneven = host.make_schedule(rows=140, heads=16, slots=1152, blocks=132)
    assert uneven.balanced
    assert uneven.num_shares > 120


def test_blocks_that_stay_and_blocks_of_a_row():
    """Wide rows that are not cut have a block each, unless blocks are to stay."""
    shape = dict(rows=5000, heads=16, window_slots=128, blocks=132)
    for slots, options, wanted in [
        (8192, {}, 5000),
        (8192, dict(persistent=True), 132),
        (8192, dict(batch_invariant=True), 5000),
        (8192, dict(heads=64), 5000),
        (8192, dict(heads=64, persistent=True), 66),
        (128, {}, 132),  # a block's start would be too much of it
    ]:
        schedule = host.make_schedule(**{**shape, **options}, slots=slots)
        assert not schedule.balanced
        assert schedule.num_shares == wanted
    # More than a grid can have.
    beyond = host.make_schedule(**{**shape, "rows": 2**30, "heads": 64}, slots=8192)
    assert beyond.num_shares == 66


def test_wide_rows_are_cut_even_if_they_fill_the_gpu():
    """Their lengths may differ: 128 of them on 132 SMs, or two rounds of them."""
    for rows in (128, 264):
        wide = host.make_schedule(rows=rows, heads=16, window_slots=128, slots=8192, blocks=132)
        assert wide.balanced
        narrow = host.make_schedule(rows=rows, heads=16, window_slots=128, slots=512, blocks=132)
        assert not narrow.balanced


@plans
@given(args=schedule_args())
def test_persistent_changes_the_number_of_blocks_only(args):
    one, other = (host.make_schedule(**{**args, "persistent": choice}) for choice in (False, True))
    for name in ("balanced", "head_tile", "group_rows", "unit_slots", "workspace_bytes"):
        assert getattr(one, name) == getattr(other, name)
    if one.balanced:
        assert one.num_shares == other.num_shares


@plans
@given(args=plan_args())
def test_partial_results_fit_the_workspace_and_do_not_overlap(args):
    plan = host.make_plan(**args)
    if plan.num_splits == 1:
        assert plan.workspace_bytes == 0
        return
    if args["workspace_bytes"] is not None:
        assert plan.workspace_bytes <= args["workspace_bytes"]
    partials = args["rows"] * plan.num_splits * args["heads"]
    assert plan.partial_out_offset == 0
    assert plan.partial_lse_offset >= partials * 512 * 4
    assert plan.workspace_bytes >= plan.partial_lse_offset + partials * 4
    assert plan.partial_lse_offset % 64 == plan.workspace_bytes % 64 == 0
    # Bytes are not wasted either: alignment is all that stands between the pieces.
    assert plan.workspace_bytes < partials * 513 * 4 + 2 * 64


@plans
@given(args=plan_args())
def test_no_other_number_of_splits_keeps_the_machine_much_busier(args):
    plan = host.make_plan(**args)
    if args["batch_invariant"] or args["rows"] == 0 or plan.num_splits == 1:
        return
    got = busy(plan.num_tasks, args["parallelism"])
    whole = plan.num_tasks // plan.num_splits
    for fewer in range(1, plan.num_splits):
        # A cut into more parts was worth it.
        assert busy(whole * fewer, args["parallelism"]) < 0.9
        assert busy(whole * fewer, args["parallelism"]) < got


@plans
@given(args=plan_args())
def test_one_row_alone_is_split_unless_the_machine_is_full_or_small(args):
    args.update(
        rows=1, slots=8192, parallelism=64, workspace_bytes=None, min_split_slots=64, max_splits=64
    )
    plan = host.make_plan(**args)
    if args["batch_invariant"]:
        assert plan.num_splits == 1
    else:
        assert busy(plan.num_tasks, 64) >= 0.9


def test_a_plan_does_not_depend_on_the_workspace_beyond_what_it_needs():
    best = host.make_plan(rows=1, heads=64, slots=1152, parallelism=16)
    assert best.num_splits > 1
    again = host.make_plan(
        rows=1, heads=64, slots=1152, parallelism=16, workspace_bytes=best.workspace_bytes
    )
    assert (again.num_splits, again.workspace_bytes) == (best.num_splits, best.workspace_bytes)
    less = host.make_plan(
        rows=1, heads=64, slots=1152, parallelism=16, workspace_bytes=best.workspace_bytes - 1
    )
    assert less.num_splits < best.num_splits
    assert (
        host.make_plan(rows=1, heads=64, slots=1152, parallelism=16, workspace_bytes=0).num_splits
        == 1
    )


def test_heads_are_cut_only_where_rows_cannot_be():
    few = dict(rows=1, heads=128, slots=128, parallelism=8, workspace_bytes=0)
    assert host.make_plan(**few).head_block == 16
    assert host.make_plan(**{**few, "rows": 8}).head_block == 64
    assert host.make_plan(**{**few, "heads": 16}).head_block == 16
    assert host.make_plan(**{**few, "heads": 7}).head_block == 7


def test_splits_cover_a_row_once():
    for length, num_splits in itertools.product(
        [*range(40), 127, 128, 1152, 8193], [1, 2, 3, 7, 64]
    ):
        parts = [host.split_range(length, num_splits, split) for split in range(num_splits)]
        assert parts[0][0] == 0
        assert parts[-1][1] == length
        assert all(left[1] == right[0] for left, right in itertools.pairwise(parts))
        sizes = [end - begin for begin, end in parts]
        assert max(sizes) - min(sizes) <= 1


# --- lengths


def test_lengths_are_clamped_and_shared():
    values = [5, -1, 200, cases.INT_MAX, cases.INT_MIN]
    got = [host.row_length(values, row, 100) for row in range(5)]
    assert got == [5, 0, 100, 100, 0]
    got = [host.row_length(values, row, 100, rows_per_value=3) for row in range(9)]
    assert got == [5] * 3 + [0] * 3 + [100] * 3
    got = [host.row_length(values, row, 100, subtract=4) for row in range(5)]
    assert got == [1, 0, 100, 100, 0]


def test_causal_lengths_of_dense_queries():
    values, q_len = [0, 1, 3, 130, cases.INT_MAX, cases.INT_MIN], 3
    for row in range(len(values) * q_len):
        wanted = values[row // q_len] - q_len + row % q_len + 1
        got = host.row_length(values, row, 128, rows_per_value=q_len, causal=True)
        assert got == min(max(wanted, 0), 128)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(q_lens=st.lists(st.integers(0, 5), min_size=1, max_size=20), data=st.data())
def test_causal_lengths_of_varlen_queries(q_lens, data):
    """Requests may be empty, wherever they stand; rows beyond them all are padding."""
    seq_lens = [data.draw(st.integers(0, 300)) for _ in q_lens]
    offsets = list(itertools.accumulate(q_lens, initial=0))
    row = 0
    for count, seq_len in zip(q_lens, seq_lens, strict=True):
        for i in range(count):
            got = host.row_length(seq_lens, row, 128, causal=True, row_offsets=offsets)
            assert got == min(max(seq_len - count + i + 1, 0), 128)
            row += 1
    for padding in (row, row + 1, row + 1000):
        assert host.row_length(seq_lens, padding, 128, causal=True, row_offsets=offsets) == 0


# --- page arithmetic: one place in each language, and they agree


@pytest.mark.parametrize("page_size", [1, 2, 64, 69, 256])
def test_page_arithmetic_is_that_of_python(page_size):
    assert host.page_bytes(page_size) == page_size * kv_cache.PACKED_TOKEN_BYTES
    for slot in (0, page_size // 2, page_size - 1):
        assert host.data_offset(slot) == slot * kv_cache.PACKED_TOKEN_DATA_BYTES
        wanted = (
            page_size * kv_cache.PACKED_TOKEN_DATA_BYTES + slot * kv_cache.PACKED_TOKEN_SCALE_BYTES
        )
        assert host.scale_offset(slot, page_size) == wanted
    assert host.window == kv_cache.WINDOW


# --- the C++ API


def test_decode_through_the_cpp_api():
    assert host.decode_on(False, 0, 4) == ""
    assert host.decode_on(False, 0, 0) == "heads: expected 1 or more, got 0"


def has_gpu_engines():
    return len(json.loads(host.build_info())["engines"]) > 1


def test_a_device_that_is_not_there():
    beyond = torch.cuda.device_count()
    message = host.decode_on(True, beyond, 4)
    assert message.startswith("device")
    assert f"{beyond}" in message


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((9, 0), "sm120"),
        ((10, 0), "sm100"),
        ((10, 3), "sm100"),
        ((12, 0), "sm120"),
        ((12, 1), "sm120"),
    ],
)
def test_the_engine_of_a_gpu(capability, name):
    if not has_gpu_engines():
        pytest.skip("this build has no GPU engines")
    assert host.engine_for(*capability, "some GPU") == name


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 1), (11, 0), (13, 0)])
def test_a_gpu_without_an_engine(capability):
    names = ", ".join(engine["name"] for engine in json.loads(host.build_info())["engines"])
    sm = "sm_{}{}".format(*capability)
    assert host.engine_for(*capability, "Some GPU") == (
        f"device cuda:0: no engine for Some GPU ({sm}). This build holds: {names}. Hint: move the "
        f"tensors to the CPU, or install a build that names {sm} in build_info()"
    )


def test_gpu_engines_are_usable_where_a_gpu_is():
    info = json.loads(host.build_info())
    for engine in info["engines"]:
        if engine["name"] != "cpu" and not info["gpus"]:
            assert (engine["usable"], engine["reason"]) == (False, info["gpu_reason"])


def test_build_info_is_json():
    info = json.loads(host.build_info())
    assert info["version"] == dsv4.__version__
    assert "cpu" in [engine["name"] for engine in info["engines"]]
