"""The reference against a slow loop that shares nothing with it: Python floats, bare bytes."""

import math

import pytest
import torch

import cases
from dsv4 import reference
from dsv4.kv_cache import HEAD_DIM, PACKED_TOKEN_BYTES, PACKED_TOKEN_DATA_BYTES, WINDOW


def loop_decode(query, slot_value, lists, scale1, scale2, sinks):
    """query: rows of heads of 512 floats. lists: the (segment, slot) pairs that count in a row."""
    outs, lses = [], []
    for row, slots in zip(query, lists, strict=True):
        keys = [slot_value(*slot) for slot in slots]
        for head, q in enumerate(row):
            scores = [scale1 * sum(a * b for a, b in zip(q, k, strict=True)) for k in keys]
            if not keys:
                outs.append([0.0] * HEAD_DIM)
                lses.append(-math.inf)
                continue
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            sink = 0.0 if sinks is None else math.exp(sinks[head] - top)
            share = scale2 / (sum(weights) + sink)
            outs.append(
                [
                    share * sum(w * k[d] for w, k in zip(weights, keys, strict=True))
                    for d in range(512)
                ]
            )
            lses.append(top + math.log(sum(weights)))
    return torch.tensor(outs).double(), torch.tensor(lses).double()


def slot_bytes(cache, slot, layout):
    """The 512 numbers of a slot, read byte by byte from the storage."""
    page_size = cases.page_size_of(cache, layout)
    page, at = divmod(slot, page_size)
    storage = bytes(cache.untyped_storage())
    item = cache.element_size()
    start = (cache.storage_offset() + page * cache.stride(0)) * item
    if cache.dtype == torch.bfloat16:
        start += at * cache.stride(1 if layout == "NHD" or cache.dim() == 3 else 2) * 2
        return [bf16_at(storage, start + 2 * d) for d in range(512)]
    if cache.dtype == torch.float8_e4m3fn:
        start += at * cache.stride(1 if layout == "NHD" or cache.dim() == 3 else 2)
        return [cases.e4m3_value(storage[start + d]) for d in range(512)]
    token, scales = start + at * 576, start + page_size * 576 + at * 8
    nope = [
        cases.e4m3_value(storage[token + d]) * cases.ue8m0_value(storage[scales + d // 64])
        for d in range(448)
    ]
    return nope + [bf16_at(storage, token + 448 + 2 * d) for d in range(64)]


def bf16_at(storage, at):
    return cases.bf16_value(storage[at] | storage[at + 1] << 8)


def slot_lists(problem):
    """For each row the (segment, slot) pairs that the contract counts."""
    lists = []
    for row in range(problem.rows):
        slots = []
        for name in ("swa", "compressed"):
            segment = getattr(problem, name)
            if segment is None:
                continue
            page_size = cases.page_size_of(segment.cache, problem.layout)
            limit = segment.cache.shape[0] * page_size
            names = segment.indices[row].tolist()
            if segment.page_table:
                names = [page * page_size + at for page in names for at in range(page_size)]
            count = max(0, int(segment.lens[row]))
            slots += [(segment, slot) for slot in names[:count] if 0 <= slot < limit]
        lists.append(slots)
    return lists


@pytest.mark.parametrize(
    ("form", "fmt", "layout"),
    [
        ("token_sparse", "bf16", "HND"),
        ("token_sparse", "e4m3", "NHD"),
        ("hca", "e4m3", "3-D"),
        ("hca", "bf16", "NHD"),
        ("packed", "packed", "HND"),
        ("packed", "packed", "NHD"),
        ("packed", "packed", "2-D"),
    ],
)
def test_decode_equals_the_loop(form, fmt, layout):
    problem = cases.problem(form, fmt, 2, 8, 7, p1=3, p2=2, batch=2, q_len=2, layout=layout)
    sinks = torch.tensor([0.5, -20.0])
    lists = slot_lists(problem)
    assert sum(map(len, lists)) > 10
    query = problem.query.reshape(4, 2, 512).double().tolist()
    out, lse = reference.decode(*problem.inputs(), scale1=0.05, scale2=1.5, sinks=sinks)
    wanted_out, wanted_lse = loop_decode(
        query,
        lambda segment, slot: slot_bytes(segment.cache, slot, problem.layout),
        lists,
        0.05,
        1.5,
        sinks.tolist(),
    )
    torch.testing.assert_close(out.reshape(-1, 512), wanted_out, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(lse.flatten(), wanted_lse, rtol=1e-6, atol=1e-6)


def test_forms_give_the_same_inputs_as_the_problem():
    """token_sparse, hca and packed derive from public arguments what the builder knows."""
    for form, fmt, q_lens in [
        ("token_sparse", "bf16", None),
        ("token_sparse", "e4m3", [2, 0, 3, 1]),
        ("hca", "e4m3", None),
        ("packed", "packed", None),
    ]:
        problem = cases.problem(
            form, fmt, 2, WINDOW, 24, p1=16, p2=8, batch=3, q_len=2, q_lens=q_lens
        )
        args = problem.door_args()
        for name in ("backend", "max_q_len", "hca_seq_lens"):
            args.pop(name, None)
        got, wanted = getattr(reference, form)(**args), problem.inputs()
        assert torch.equal(
            got.swa_lens.clamp(0, WINDOW), wanted.swa_lens.clamp(0, WINDOW).to(got.swa_lens)
        )
        for a, b in zip(reference.decode(*got), reference.decode(*wanted), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_every_e4m3_code():
    codes = torch.arange(256, dtype=torch.uint8)
    cache = codes.repeat(2).view(torch.float8_e4m3fn).reshape(1, 1, 512)
    wanted = torch.tensor([cases.e4m3_value(code) for code in range(256)]).double().repeat(2)
    torch.testing.assert_close(
        reference.dequantise(cache)[0], wanted, rtol=0, atol=0, equal_nan=True
    )


def test_every_scale_code():
    """A page of 256 tokens: token i has scale codes i, i + 1, .. and all e4m3 codes as values."""
    cache = torch.zeros(1, 256, 584, dtype=torch.uint8)
    data, scales = cases.packed_views(cache)
    data[0, :, :448] = torch.arange(448).to(torch.uint8)
    for token in range(256):
        scales[0, token] = (torch.arange(8) + token).to(torch.uint8)
    got = reference.dequantise(cache)
    for token in range(256):
        codes = [(token + group) % 256 for group in range(7)]
        wanted = [
            cases.e4m3_value(d % 256) * cases.ue8m0_value(codes[d // 64]) for d in range(448)
        ] + [0.0] * 64
        torch.testing.assert_close(
            got[token], torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
        )


def test_page_constants():
    assert (HEAD_DIM, WINDOW, PACKED_TOKEN_BYTES, PACKED_TOKEN_DATA_BYTES) == (512, 128, 584, 576)


def random_inputs(rows=3, heads=4, width=20, slots=50):
    return reference.Inputs(
        torch.randn(rows, heads, 512), torch.randn(slots, 512),
        torch.randint(0, slots, (rows, width)), torch.full((rows,), width),
    )  # fmt: skip


def test_lse_options():
    inputs = random_inputs()
    inputs.swa_lens[1] = 0
    sinks = torch.tensor([-math.inf, 1.0, 30.0, math.inf])
    out, lse = reference.decode(*inputs, scale1=0.05, sinks=sinks)
    _, base2 = reference.decode(*inputs, scale1=0.05, sinks=sinks, lse_base="2")
    torch.testing.assert_close(base2 * math.log(2.0), lse)
    _, with_sink = reference.decode(*inputs, scale1=0.05, sinks=sinks, lse_sink=True)
    wanted = torch.logaddexp(lse, sinks.double().expand_as(lse))
    wanted[1] = -math.inf  # an empty row has no lse, sinks or not
    torch.testing.assert_close(with_sink, wanted)
    _, positive = reference.decode(*inputs, scale1=0.05, sinks=sinks, lse_empty_positive=True)
    assert positive[1].tolist() == [math.inf] * 4
    assert torch.equal(positive[0], lse[0])
    assert out[1].abs().max() == 0 and out[0, 3].abs().max() == 0
    deferred, _ = reference.decode(*inputs, scale1=0.05, sinks=sinks, sink_mode="defer")
    factor = 1 / (1 + torch.exp(sinks - lse))
    torch.testing.assert_close(out[0], deferred[0] * factor[0, :, None])


def test_chunks_do_not_show(monkeypatch):
    inputs = random_inputs(rows=7)
    whole = reference.decode(*inputs)
    monkeypatch.setattr(reference, "_ELEMENTS_PER_CHUNK", 1)
    for a, b in zip(whole, reference.decode(*inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "harm",
    [
        "a wrong slot",
        "a lost slot",
        "one scale off by two",
        "no sink",
        "nan for zero",
        "inf for nan",
        "lse",
    ],
)
def test_assert_close_sees_what_matters(harm):
    """The right answer in bf16 passes; the same with a mistake of the usual kinds does not."""
    inputs = random_inputs(width=300, slots=600)
    sinks = torch.full((4,), 3.0)
    options = dict(scale1=512**-0.5, sinks=sinks)
    if harm == "inf for nan":
        inputs.swa_pool[inputs.swa_indices[0, 0]] = math.nan
    out, lse = (t.to(torch.float32) for t in reference.decode(*inputs, **options))
    assert reference.assert_close(out.to(torch.bfloat16), lse, *inputs, **options) < 1.0

    wrong = inputs
    if harm == "a wrong slot":
        indices = inputs.swa_indices.clone()
        indices[2, 17] = (indices[2, 17] + 1) % 600
        wrong = inputs._replace(swa_indices=indices)
    elif harm == "a lost slot":
        wrong = inputs._replace(swa_lens=torch.tensor([300, 299, 300]))
    elif harm == "one scale off by two":
        pool = inputs.swa_pool.clone()
        pool[inputs.swa_indices[1, 5], 64:128] *= 2
        wrong = inputs._replace(swa_pool=pool)
    elif harm == "no sink":
        options_of_wrong = dict(options, sinks=torch.tensor([3.0, 3.0, 3.0, -math.inf]))
        out, lse = reference.decode(*inputs, **options_of_wrong)
    if wrong is not inputs:
        out, lse = reference.decode(*wrong, **options)
    if harm == "nan for zero":
        out[1, 1, 1] = math.nan
    elif harm == "inf for nan":
        out = out.nan_to_num(nan=math.inf)
    elif harm == "lse":
        lse = lse + 1e-3
    with pytest.raises(AssertionError, match="expected"):
        reference.assert_close(out.to(torch.bfloat16), lse.float(), *inputs, **options)


def test_assert_close_tells_where():
    inputs = random_inputs()
    out, lse = reference.decode(*inputs)
    out[2, 1, 300] += 1.0
    with pytest.raises(
        AssertionError, match=r"out\[2, 1, 300\]: expected .* 1 of 6144 values are wrong"
    ):
        reference.assert_close(out, lse, *inputs)


def test_engines_are_alike_within_a_step_of_each_other():
    out, lse = torch.randn(3, 2, 512), torch.tensor([[0.0, 5.0], [-math.inf, 1.0], [2.0, 3.0]])
    assert reference.assert_alike(out, lse, out, lse) == 0.0
    largest = out[2, 1].abs().max()
    near, far = out.clone(), out.clone()
    near[2, 1, 7] += largest * 2.0**-7
    far[2, 1, 7] += largest * 2.0**-5
    assert reference.assert_alike(near, lse, out, lse) == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(AssertionError, match=r"out\[2, 1, 7\]: expected .* 1 of 3072 values"):
        reference.assert_alike(far, lse, out, lse)
    for wrong in (lse + 0.001, lse.nan_to_num(neginf=-1e30)):
        with pytest.raises(AssertionError, match=r"lse\["):
            reference.assert_alike(out, wrong, out, lse)
