"""Laws that hold for every input, on random ones: Hypothesis chooses shapes, seeds and cuts."""

import math
from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cases
import dsv4
import simulated
from dsv4 import reference

SCALE = cases.SOFTMAX_SCALE
laws = settings(
    deadline=None,
    max_examples=5 if simulated.is_loaded() else 20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def problems(draw, forms=cases.FORMS):
    """(seed, arguments of cases.problem): built in the test, on the engine's device."""
    form, fmt = draw(st.sampled_from(forms))
    args = dict(
        form=form,
        fmt=fmt,
        heads=draw(st.integers(1, 40)),
        w1=128 if form == "token_sparse" else draw(st.integers(1, 200)),
        w2=draw(st.integers(1, 600)),
        p1=draw(st.integers(1, 130)),
        p2=draw(st.integers(1, 130)),
        batch=draw(st.integers(1, 4)),
        q_len=draw(st.integers(1, 3)),
        layout=draw(st.sampled_from(["HND", "NHD", "3-D"])),
        holes=draw(st.sampled_from([0.0, 0.2, 0.9])),
    )
    return draw(st.integers(0, 2**32)), args


def build(engine, drawn):
    seed, args = drawn
    torch.manual_seed(seed)
    return cases.problem(**args, device=engine.device)


def flat64(result):
    out, lse = result
    return out.flatten(0, -3).double(), lse.flatten(0, -2).double()


@laws
@given(drawn=problems())
def test_decode_is_the_definition(engine, drawn):
    problem = build(engine, drawn)
    heads = problem.query.shape[-2]
    sinks = torch.randn(heads, device=engine.device) * 3
    cases.check(problem, scale1=SCALE, scale2=2.0, sinks=sinks)


@laws
@given(drawn=problems(forms=[("packed", "packed"), ("packed", "bf16"), ("packed", "e4m3")]))
def test_the_order_of_slots_does_not_matter(engine, drawn):
    """Permuting the columns below each row's length is the same decode."""
    problem = build(engine, drawn)
    permuted = replace(problem, swa=replace(problem.swa), compressed=replace(problem.compressed))
    for segment in (permuted.swa, permuted.compressed):
        width = segment.indices.shape[1]
        key = torch.rand(segment.indices.shape, device=engine.device)
        beyond = torch.arange(width, device=engine.device) >= segment.lens.long()[:, None]
        order = (key + 2 * beyond).argsort(1)  # columns beyond the length stay beyond it
        segment.indices = segment.indices.gather(1, order)
    got = cases.run(permuted, scale1=SCALE)
    cases.assert_close(*got, *problem.inputs(), scale1=SCALE)


@laws
@given(drawn=problems(), cut=st.integers(2, 6))
def test_any_shards_merge_to_the_whole(engine, drawn, cut):
    """Each valid slot goes to one of several shards at random; some shards get none."""
    problem = build(engine, drawn)
    heads = problem.query.shape[-2]
    sinks = torch.randn(heads, device=engine.device)
    shards = []
    for name in ("swa", "compressed"):
        table = getattr(problem, name).indices
        shards.append(torch.randint(0, cut, table.shape, device=engine.device))
    parts = []
    for shard in range(cut + 1):  # one more, which holds nothing
        pieces = {
            name: replace(
                getattr(problem, name),
                indices=getattr(problem, name).indices.masked_fill(owner != shard, -1),
            )
            for name, owner in zip(("swa", "compressed"), shards, strict=True)
        }
        parts.append(
            cases.run(replace(problem, **pieces), scale1=SCALE, sink_mode="defer", sinks=sinks)
        )
    got = dsv4.merge_states([p[0] for p in parts], [p[1] for p in parts], sinks=sinks)
    out64, lse64 = reference.decode(*problem.inputs(), scale1=SCALE, sinks=sinks)
    out, lse = flat64(got)
    # Every part was rounded to bf16 once, relative to its own size; weights perhaps to e4m3.
    step = 2.0**-3 if cases.weights_of(problem.inputs()) == torch.float8_e4m3fn else 2.0**-7
    sizes = torch.stack([flat64(p)[0].abs().amax() for p in parts]).max().item()
    assert (out - out64).abs().max().item() <= step * max(sizes, 1e-30)
    torch.testing.assert_close(lse, lse64, rtol=1e-5, atol=1e-5)


@laws
@given(drawn=problems(), seed=st.integers(0, 2**32))
def test_one_hole_is_as_good_as_another(engine, drawn, seed):
    """The kind of a hole, and what stands beyond a length, change no bit."""
    problem = build(engine, drawn)
    wanted = cases.run(problem, scale1=SCALE)
    torch.manual_seed(seed)
    changed = replace(problem, swa=replace(problem.swa), compressed=replace(problem.compressed))
    for segment in (changed.swa, changed.compressed):
        page_size = cases.page_size_of(segment.cache, problem.layout)
        slots_a_lane = page_size if segment.page_table else 1
        limit = segment.cache.shape[0] * page_size // slots_a_lane
        column = torch.arange(segment.indices.shape[1], device=engine.device) * slots_a_lane
        hole = (segment.indices < 0) | (segment.indices >= limit)
        hole |= column >= segment.lens.long()[:, None]
        kinds = torch.tensor(
            [-1, cases.INT_MIN, limit, limit + 7, cases.INT_MAX], device=engine.device
        )
        drawn_kinds = kinds[torch.randint(len(kinds), hole.shape, device=engine.device)]
        segment.indices = torch.where(hole, drawn_kinds, segment.indices).int()
    assert cases.same_bits(cases.run(changed, scale1=SCALE), wanted)


@laws
@given(drawn=problems(), poison=st.sampled_from([0x00, 0x7F, 0x80, 0xFF]))
def test_bytes_that_no_slot_names_change_no_bit(engine, drawn, poison):
    problem = build(engine, drawn)
    wanted = cases.run(problem, scale1=SCALE)
    other = {}
    for name in ("swa", "compressed"):
        segment = getattr(problem, name)
        page_size = cases.page_size_of(segment.cache, problem.layout)
        pages = segment.cache.shape[0]
        valid = cases.valid_slots(
            segment.indices,
            segment.lens,
            pages * page_size,
            page_size if segment.page_table else None,
        )
        bits = (
            poison * 0x101 - (0x10000 if poison >= 0x80 else 0)
            if problem_is_bf16(segment)
            else poison
        )
        pool = cases.cache(
            pages, page_size, format_of(segment), problem.layout, poison=bits, device=engine.device
        )
        cases.copy_slots(segment.cache, pool, valid, layout=problem.layout)
        other[name] = replace(segment, cache=pool)
    assert cases.same_bits(cases.run(replace(problem, **other), scale1=SCALE), wanted)


def format_of(segment):
    return next(name for name, dtype in cases.DTYPES.items() if dtype == segment.cache.dtype)


def problem_is_bf16(segment):
    return segment.cache.dtype == torch.bfloat16


@laws
@given(drawn=problems(), sink=st.floats(-20, 20))
def test_a_sink_scales_the_output(engine, drawn, sink):
    """out with a sink = out * 1 / (1 + exp(sink - lse)); lse does not know of it."""
    problem = build(engine, drawn)
    heads = problem.query.shape[-2]
    out, lse = flat64(cases.run(problem, scale1=SCALE))
    sinks = torch.full((heads,), sink, device=engine.device)
    with_sink, lse_with = flat64(cases.run(problem, scale1=SCALE, sinks=sinks))
    wanted = out / (1 + (sink - lse).exp())[..., None]
    # Two roundings to bf16: one of out, one of the result.
    assert ((with_sink - wanted).abs() <= 2.0**-7 * wanted.abs() + 1e-30).all()
    assert torch.equal(lse, lse_with)


@laws
@given(
    drawn=problems(forms=[("packed", "bf16"), ("packed", "packed")]),
    shift=st.sampled_from([0.5, -3.0, 40.0]),
)
def test_a_shift_of_all_scores_shifts_lse_only(engine, drawn, shift):
    """One dim of every key is 1, and of every query the shift: s_j + shift for all j."""
    problem = build(engine, drawn)
    for segment in (problem.swa, problem.compressed):
        slots = cases.valid_slots(
            segment.indices,
            segment.lens,
            segment.cache.shape[0] * cases.page_size_of(segment.cache, problem.layout),
        )
        page_size = cases.page_size_of(segment.cache, problem.layout)
        data = cases.byte_views(segment.cache, problem.layout)[0]
        one = torch.tensor([1.0], device=engine.device).bfloat16().view(torch.uint8)
        data[slots // page_size, slots % page_size, -2:] = one  # the last RoPE dim
    query = problem.query.clone()
    query[..., -1] = 0
    out, lse = flat64(cases.run(replace(problem, query=query), scale1=1.0 / 16))
    query[..., -1] = 16 * shift
    shifted = replace(problem, query=query)
    shifted_out, shifted_lse = flat64(cases.run(shifted, scale1=1.0 / 16))
    filled = lse.isfinite()
    torch.testing.assert_close(shifted_lse[filled], lse[filled] + shift, rtol=1e-5, atol=2e-5)
    assert (shifted_lse[~filled] == -math.inf).all()
    assert ((shifted_out - out).abs() <= 2.0**-7 * out.abs().amax(-1, keepdim=True) + 1e-30).all()


@laws
@given(
    seed=st.integers(0, 2**32),
    page_size=st.integers(1, 130),
    pages=st.integers(1, 4),
    pad=st.integers(0, 700),
)
def test_appending_is_packing(engine, seed, page_size, pages, pad):
    """Rows appended in any order and rows packed page by page: the same bytes, the same decode."""
    torch.manual_seed(seed)
    slots = pages * page_size
    rows = torch.randn(slots, 512, device=engine.device).bfloat16()
    stride = page_size * 584 + pad
    packed = dsv4.pack_kv_cache(rows.reshape(pages, page_size, 512), page_stride_bytes=stride)
    appended = dsv4.empty_kv_cache(pages, page_size, page_stride_bytes=stride, device=engine.device)
    for part in torch.randperm(slots, device=engine.device).chunk(3):
        dsv4.append_kv_cache(rows[part], appended, part)
    for mine, theirs in zip(cases.packed_views(appended), cases.packed_views(packed), strict=True):
        assert torch.equal(mine, theirs)
    query = torch.randn(2, 1, 3, 512, device=engine.device).bfloat16()
    table = torch.randint(0, slots, (2, 50), dtype=torch.int32, device=engine.device)
    decodes = [
        torch.ops.dsv4.sparse_mla_decode(query, cache, table) for cache in (packed, appended)
    ]
    assert cases.same_bits(*decodes)


@laws
@given(seed=st.integers(0, 2**32), page_size=st.integers(1, 70), exponent=st.integers(-40, 40))
def test_packing_twice_is_packing_once(engine, seed, page_size, exponent):
    torch.manual_seed(seed)
    rows = torch.randn(2, page_size, 512, device=engine.device) * 2.0**exponent
    once = dsv4.unpack_kv_cache(dsv4.pack_kv_cache(rows.bfloat16()))
    assert torch.equal(dsv4.unpack_kv_cache(dsv4.pack_kv_cache(once)), once)
    # A value is off by at most half a step of its group's largest one, and RoPE values not at all.
    groups = rows.bfloat16()[..., :448].float().unflatten(-1, (7, 64))
    error = (once[..., :448].float().unflatten(-1, (7, 64)) - groups).abs()
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    assert (error <= largest * 2.0**-4).all()
    assert torch.equal(once[..., 448:], rows.bfloat16()[..., 448:])
