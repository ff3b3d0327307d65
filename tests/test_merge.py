"""merge_states against its definition in float64."""

import math

import pytest
import torch

import cases
import dsv4
from dsv4 import reference

LN2 = math.log(2.0)


def merged(
    outs, lses, sinks=None, scale2=1.0, lse_base="e", lse_sink=False, lse_empty_positive=False
):
    """out = scale2 * sum_i w_i out_i over the states that hold slots, w_i = exp(lse_i) / total."""
    lses = lses.double() * (LN2 if lse_base == "2" else 1.0)
    holds = ~lses.isinf()
    lses = lses.masked_fill(~holds, -math.inf)
    lse = lses.logsumexp(0)
    empty = ~holds.any(0)
    sink = torch.full_like(lse, -math.inf) if sinks is None else sinks.double().expand_as(lse)
    total = torch.logaddexp(lse, sink)
    weights = (lses - total).exp().masked_fill(~holds | empty, 0.0)[..., None]
    out = scale2 * (weights * outs.double().masked_fill(~holds[..., None], 0.0)).sum(0)
    lse = (total if lse_sink else lse).masked_fill(
        empty, math.inf if lse_empty_positive else -math.inf
    )
    return out, lse / (LN2 if lse_base == "2" else 1.0)


def states(num_states, shape, dtype, device, spread=3.0):
    """Random states; some hold nothing, with NaN in their out, and one row holds nothing at all."""
    outs = torch.randn(num_states, *shape, 512, device=device).to(dtype)
    lses = spread * torch.randn(num_states, *shape, device=device)
    nothing = torch.rand(lses.shape, device=device) < 0.3
    nothing[:, -1] = True
    nothing[0, 0] = False
    lses.masked_fill_(nothing, -math.inf)
    lses[-1].masked_fill_(nothing[-1], math.inf)  # FlashMLA's mark
    outs.masked_fill_(nothing[..., None], math.nan)
    return outs, lses


def assert_merged(got, wanted, dtype):
    step = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-20
    out, lse = got
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close(
        out.double(), wanted[0], rtol=step, atol=step * wanted[0].abs().max().item()
    )
    torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_states", [1, 2, 5, 17])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 7), (2, 1), (2, 2, 2, 4)])
@pytest.mark.parametrize("lse_base", ["e", "2"])
def test_merge(engine, dtype, num_states, shape, lse_base):
    outs, lses = states(num_states, shape, dtype, engine.device)
    sinks = torch.randn(shape[-1], device=engine.device)
    got = dsv4.merge_states(outs, lses, sinks=sinks, bmm2_scale=1.5, lse_base=lse_base)
    assert_merged(got, merged(outs, lses, sinks, 1.5, lse_base), dtype)
    got = dsv4.merge_states(list(outs), list(lses), lse_base=lse_base)
    assert_merged(got, merged(outs, lses, lse_base=lse_base), dtype)
    assert got[0][-1].abs().max() == 0
    assert (got[1][-1] == -math.inf).all()


@pytest.mark.parametrize("lse_sink", [False, True])
@pytest.mark.parametrize("lse_empty_positive", [False, True])
@pytest.mark.parametrize("lse_base", ["e", "2"])
def test_lse_options(engine, lse_sink, lse_empty_positive, lse_base):
    outs, lses = states(3, (4, 4), torch.float32, engine.device)
    sinks = torch.tensor([-math.inf, 1.0, math.inf, 500.0], device=engine.device)
    options = dict(lse_base=lse_base, lse_sink=lse_sink, lse_empty_positive=lse_empty_positive)
    scale = torch.tensor([-0.25], device=engine.device)
    got = torch.ops.dsv4.merge_states(outs, lses, sinks=sinks, bmm2_scale_tensor=scale, **options)
    assert_merged(got, merged(outs, lses, sinks, -0.25, **options), torch.float32)
    assert got[0][:, 2].abs().max() == 0


def test_states_far_apart(engine):
    """Neither exp overflows, whatever the lse; equal states give themselves."""
    outs, _ = states(2, (2, 4), torch.float32, engine.device)
    outs = outs.nan_to_num(0.5)
    for lse in (-1e30, -3e4, 0.0, 3e4, 1e30):
        lses = torch.full((2, 2, 4), lse, device=engine.device)
        out, got = dsv4.merge_states(outs, lses)
        torch.testing.assert_close(out, outs.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got, lses[0] + LN2)
        lses[1] -= max(1e4, abs(lse))
        out, got = dsv4.merge_states(outs, lses)
        assert torch.equal(out, outs[0])
        assert torch.equal(got, lses[0])


def test_one_state_is_itself(engine):
    outs = torch.randn(1, 3, 4, 512, device=engine.device).bfloat16()
    lses = torch.randn(1, 3, 4, device=engine.device)
    out, lse = dsv4.merge_states(outs, lses)
    assert torch.equal(out, outs[0])
    assert torch.equal(lse, lses[0])


def test_nan_is_not_lost(engine):
    outs, lses = (
        torch.zeros(2, 1, 2, 512, device=engine.device),
        torch.zeros(2, 1, 2, device=engine.device),
    )
    lses[0, 0, 0] = math.nan
    outs[1, 0, 1, 7] = math.nan
    out, lse = dsv4.merge_states(outs, lses)
    assert out[0, 0].isnan().all()
    assert lse[0].isnan().tolist() == [True, False]
    assert out[0, 1].isnan().nonzero().tolist() == [[7]]


def test_strided_states(engine):
    """Slices of a wider buffer, states innermost of the leading dimensions."""
    outs, lses = states(3, (5, 4), torch.float32, engine.device)
    wide = torch.zeros(5, 3, 6, 700, device=engine.device)
    wide[:, :, 1:5, 100:612] = outs.transpose(0, 1)
    wide_lses = torch.zeros(5, 3, 6, device=engine.device)
    wide_lses[:, :, 2:] = lses.transpose(0, 1)
    wanted = dsv4.merge_states(outs, lses)
    got = dsv4.merge_states(
        wide[:, :, 1:5, 100:612].transpose(0, 1), wide_lses[:, :, 2:].transpose(0, 1)
    )
    assert cases.same_bits(got, wanted)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4)])
def test_no_rows(engine, shape):
    outs = torch.zeros(2, *shape, 512, device=engine.device)
    out, lse = dsv4.merge_states(outs, outs[..., 0])
    assert (out.shape, lse.shape) == ((*shape, 512), shape)


def test_merging_is_associative(engine):
    outs, lses = states(4, (3, 8), torch.float32, engine.device)
    pairs = [dsv4.merge_states(outs[i : i + 2], lses[i : i + 2]) for i in (0, 2)]
    got = dsv4.merge_states([out for out, _ in pairs], [lse for _, lse in pairs])
    assert_merged(got, merged(outs, lses), torch.float32)


def test_parts_of_a_decode(engine):
    """The window alone and the compressed segment alone, merged, are the decode of both."""
    problem = cases.problem("packed", "packed", 8, 128, 300, batch=4, device=engine.device)
    window = problem.op_args()
    for name in ("compressed_kv_cache", "compressed_indices", "compressed_lens"):
        del window[name]
    compressed = dict(
        window, swa_kv_cache=problem.compressed.cache, swa_indices=problem.compressed.indices,
        swa_lens=problem.compressed.lens,
    )  # fmt: skip
    scale = dict(bmm1_scale=cases.SOFTMAX_SCALE)
    parts = [torch.ops.dsv4.sparse_mla_decode(**args, **scale) for args in (window, compressed)]
    sinks = torch.randn(8, device=engine.device)
    out, lse = dsv4.merge_states([p[0] for p in parts], [p[1] for p in parts], sinks=sinks)
    out64, lse64 = reference.decode(*problem.inputs(), scale1=cases.SOFTMAX_SCALE, sinks=sinks)
    torch.testing.assert_close(out.flatten(0, 1).double(), out64, rtol=2.0**-6, atol=0.02)
    torch.testing.assert_close(lse.flatten(0, 1).double(), lse64, rtol=1e-5, atol=1e-5)
