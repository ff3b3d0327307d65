"""Several query rows of a request with one compressed table, which GPU engines decode together."""

import math

import pytest
import torch

import cases
import simulated
from dsv4 import reference

# With more SMs than rows, a GPU does not group.
pytestmark = pytest.mark.few_sms

SCALE = cases.SOFTMAX_SCALE
FORMS = [("hca", "bf16"), ("hca", "e4m3"), ("packed", "packed"), ("packed", "e4m3")]


def shared(form, fmt, heads, *args, q_len, **options):
    return cases.problem(form, fmt, heads, *args, q_len=q_len, one_table=True, **options)


def check(problem, **options):
    return cases.check(problem, **{"scale1": SCALE, **options})


@pytest.mark.parametrize("q_len", [2, 5, 9])
@pytest.mark.parametrize("heads", [1, 5, 8, 16, 21, 32])
@pytest.mark.parametrize(("form", "fmt"), FORMS)
def test_rows_and_heads(engine, form, fmt, heads, q_len):
    """Groups that fill a tile or not, and a last one of fewer rows."""
    problem = shared(form, fmt, heads, 128, 200, q_len=q_len, batch=2, device=engine.device)
    sinks = 2.0 * torch.randn(heads, device=engine.device)
    check(problem, door="front", sinks=sinks, scale2=-1.5)


@pytest.mark.parametrize("heads", [64, 65, 100])
@pytest.mark.parametrize(("form", "fmt"), FORMS)
def test_heads_that_leave_no_room(engine, form, fmt, heads):
    check(shared(form, fmt, heads, 128, 90, q_len=2, batch=1, device=engine.device))


@pytest.mark.parametrize("page_size", [1, 2, 3, 32, 128])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
def test_page_sizes(engine, fmt, page_size):
    problem = shared(
        "hca", fmt, 8, 128, 6 * page_size + 1, p2=page_size, q_len=4, device=engine.device
    )
    check(problem, door="front")


@pytest.mark.parametrize("widths", [(0, 70), (1, 1), (3, 61), (17, 130), (63, 1), (128, 640)])
@pytest.mark.parametrize("workspace", ["best", "none", 200_000])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_widths_and_workspaces(engine, fmt, widths, workspace):
    """Groups that are cut, and groups that are not."""
    problem = shared("packed", fmt, 8, *widths, q_len=4, batch=2, device=engine.device)
    check(problem, workspace=workspace, sinks=torch.randn(8, device=engine.device))


@pytest.mark.parametrize("layout", ["HND", "NHD", "3-D"])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_rows_of_very_different_lengths(engine, fmt, layout):
    """Each row has its own window and its own end, be it without a slot."""
    problem = shared("packed", fmt, 5, 128, 300, q_len=6, layout=layout, device=engine.device)
    lens = torch.tensor([0, 300, 1, 64, 65, 299] * 3, dtype=torch.int32, device=engine.device)
    problem.compressed.lens = torch.minimum(problem.compressed.lens, lens)
    problem.swa.lens = torch.minimum(problem.swa.lens, lens.flip(0))
    problem.swa.lens[:1] = problem.compressed.lens[:1] = 0
    out, lse = check(problem)
    assert (out.flatten(0, 1)[0] == 0).all()
    assert (lse.flatten(0, 1)[0] == -math.inf).all()


@pytest.mark.parametrize("workspace", ["best", "none"])
@pytest.mark.parametrize("where", ["window", "compressed"])
@pytest.mark.parametrize(
    ("fmt", "value"),
    [
        ("bf16", math.nan),
        ("bf16", math.inf),
        ("bf16", -math.inf),
        ("e4m3", math.nan),
        ("packed", math.nan),
        ("packed", math.inf),
    ],
)
def test_a_key_that_is_no_number_stays_with_the_rows_that_see_it(
    engine, fmt, value, where, workspace
):
    """Another row of the group gives it a weight of 0, which times NaN would be NaN."""
    problem = shared(
        "packed", fmt, 8, 128, 300, q_len=4, batch=2, lens="full", holes=0.0, device=engine.device
    )
    if where == "window":
        # Slots that only row 2 names.
        target, row = problem.swa, 2
        others = torch.cat([problem.swa.indices[:2], problem.swa.indices[3:]]).flatten()
        free = torch.ones(cases.num_slots(target.cache, problem.layout), dtype=torch.bool)
        free[others.cpu().long()] = False
        slot = int(free.nonzero()[1])
        problem.swa.indices[row, 77] = slot
    else:
        # The last slot of the longest row.
        target, row = problem.compressed, 3
        problem.compressed.lens[:4] = torch.tensor([299, 200, 298, 300], device=engine.device)
        tables = problem.compressed.tables
        slot = int(tables[0, 299])
        tables[0][:299][tables[0][:299] == slot] = -1
        tables[1][tables[1] == slot] = -1
    poison(target.cache, slot, value, problem.layout)

    out, lse = cases.run(problem, workspace=workspace, scale1=SCALE)
    inputs = problem.inputs()
    good = [i for i in range(8) if i != row]
    rows = torch.tensor(good, device=engine.device)
    finite = reference.Inputs(
        inputs.query[rows],
        *[value[rows] if value.shape[0] == 8 else torch.nan_to_num(value) for value in inputs[1:]],
    )
    if math.isnan(value):
        assert out.flatten(0, 1)[row].isnan().any(1).all()
    cases.assert_close(out.flatten(0, 1)[rows], lse.flatten(0, 1)[rows], *finite, scale1=SCALE)


@pytest.mark.parametrize(("heads", "q_len"), [(8, 2), (8, 4), (16, 2), (12, 5)])
@pytest.mark.parametrize(("form", "fmt"), FORMS)
def test_more_rows_than_sms(engine, form, fmt, heads, q_len):
    """Where a whole GPU groups; and where a key is NaN, blocks begin again with single rows."""
    if engine.device == "cpu":
        pytest.skip("a CPU has no groups, and the simulator would take minutes")
    problem = shared(form, fmt, heads, 128, 1024, q_len=q_len, batch=100, device=engine.device)
    before, _ = check(problem)
    check(problem, workspace="none")
    tables = problem.swa.indices
    rows = (tables == tables[7, 3]).any(1).cpu()
    assert not rows.all()
    poison(problem.swa.cache, int(tables[7, 3]), math.nan, problem.layout)
    for workspace in ("best", "none"):
        out, _ = cases.run(problem, workspace=workspace, scale1=SCALE)
        worst = (out.float() - before.float()).abs().flatten(0, 1)[~rows].max()
        assert worst <= 0.02 * before.abs().max()


def poison(cache, slot, value, layout):
    """Writes a key of such values; a packed one by its scales or its bf16 dims."""
    page_size = cases.page_size_of(cache, layout)
    page, at = slot // page_size, slot % page_size
    if cache.dtype in (torch.bfloat16, torch.float8_e4m3fn):
        key = torch.zeros(512, device=cache.device)
        key[70] = value
        cases.byte_views(cache, layout)[0][page, at] = key.to(cache.dtype).view(torch.uint8)
        return
    data, scales = cases.packed_views(cache, layout)
    if math.isnan(value):
        scales[page, at, 3] = 0xFF
    else:
        rope = torch.full((64,), value, dtype=torch.bfloat16, device=cache.device)
        data[page, at, 448:] = rope.view(torch.uint8)


# --- tables of their own, which GPUs take for one if the rows' entries are the same


@pytest.mark.parametrize(("heads", "q_len"), [(5, 2), (8, 4), (4, 7), (16, 3), (21, 2)])
@pytest.mark.parametrize("page_size", [1, 2, 16, 128])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
@pytest.mark.parametrize("workspace", ["best", "none"])
def test_copies_of_a_table(engine, fmt, heads, q_len, page_size, workspace):
    """Stale entries behind a row's end do not count, whichever of the rows is the longest."""
    problem = cases.problem(
        "hca", fmt, heads, 128, 300, p2=page_size, q_len=q_len, batch=2, one_table="copies",
        device=engine.device,
    )  # fmt: skip
    sinks = torch.randn(heads, device=engine.device)
    check(problem, door="front", workspace=workspace, sinks=sinks)


@pytest.mark.parametrize("column", [0, 7, -1])
@pytest.mark.parametrize("row", [0, 1, 3])
@pytest.mark.parametrize("entry", ["other page", "hole"])
@pytest.mark.parametrize("workspace", ["best", "none"])
def test_an_entry_that_differs(engine, column, row, entry, workspace):
    problem = cases.problem(
        "hca", "bf16", 8, 128, 600, p2=2, q_len=4, batch=2, one_table="copies", lens="full",
        holes=0.0, device=engine.device,
    )  # fmt: skip
    table, keys = problem.compressed.indices, problem.compressed.cache
    page = int(table[row, column])
    table[table == page] = int(table[row, column - 1])  # elsewhere
    table[:4, column] = page
    if entry == "hole":
        table[row, column] = -1
    else:
        named = torch.zeros(keys.shape[0], dtype=torch.bool).index_fill(
            0, table.flatten().long().cpu(), True
        )
        page = int((~named).nonzero()[0])
        table[row, column] = page
    # A key that the row would not overlook.
    keys[page] = problem.query.flatten(0, 1)[row, 0]
    out, _ = check(problem, workspace=workspace)
    misses = (out.flatten(0, 1)[row, 0].float() - keys[page].flatten(0, -2)[0].float()).abs()
    assert (misses.max() < 0.1) == (entry == "other page")


def test_copies_are_decoded_together(engine):
    """And what differs is decoded once more."""
    if not simulated.is_loaded():
        pytest.skip("only the simulated build counts what is executed")

    def instructions(one_table, differ=False):
        torch.manual_seed(0)
        problem = cases.problem(
            "hca", "e4m3", 4, 128, 640, p2=2, q_len=4, batch=1, one_table=one_table, lens="full",
            holes=0.0,
        )  # fmt: skip
        if differ:
            problem.compressed.indices[2, 5] = -1
        record = simulated.record(lambda: check(problem))
        assert record.schedules[-1]["group_rows"] == 4
        warps = record.launches[0]["counters"]["warps"]
        return sum(sum(warp["instructions"].values()) for warp in warps)

    one = instructions(True)
    assert instructions("copies") < 1.2 * one
    assert instructions("copies", differ=True) > 2 * one


def test_batch_invariant_decodes_do_not_group(engine):
    problem = shared("packed", "packed", 8, 128, 200, q_len=4, batch=3, device=engine.device)
    out, lse = check(problem, batch_invariant=True)
    tables = problem.compressed.indices.reshape(problem.rows, -1)
    problem.compressed.indices = tables
    assert cases.same_bits((out, lse), cases.run(problem, scale1=SCALE, batch_invariant=True))


def test_extreme_scores(engine):
    """Largest scores that wander from row to row of a group."""
    for spread in (1e-3, 30.0):
        problem = shared(
            "packed", "bf16", 8, 128, 200, q_len=4, batch=2, spread=spread, device=engine.device
        )
        check(problem, scale1=1.0)


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "packed"])
def test_rows_are_decoded_together(engine, fmt):
    """So that the tests above test what they say."""
    if not simulated.is_loaded():
        pytest.skip("only the simulated build tells its schedules")
    problem = shared("packed", fmt, 4, 128, 640, q_len=4, batch=1, device=engine.device)
    record = simulated.record(lambda: check(problem))
    assert record.schedules[-1]["group_rows"] == 4
