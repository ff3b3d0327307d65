"""Merging partial decodes of the same queries over disjoint sets of slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._errors import call, split_scale
from ._library import operators


def merge_states(
    outs: Tensor | Sequence[Tensor],
    lses: Tensor | Sequence[Tensor],
    *,
    sinks: Tensor | None = None,
    bmm2_scale: float | Tensor = 1.0,
    lse_base: str = "e",
) -> tuple[Tensor, Tensor]:
    """Merges the (out, lse) of context-parallel ranks, or of any other split of the slots.

        weight_i = exp(lse_i) / sum_i exp(lse_i)
        out = bmm2_scale * sum_i weight_i * out_i * (share of the slots beside the sink)
        lse = ln(sum_i exp(lse_i))

    outs        S partial results, [S, ..., heads, 512] or a sequence of S tensors (which is
                stacked: one copy), bfloat16 or float32
    lses        their log-sum-exps, [S, ..., heads] float32 or a sequence. -inf or +inf marks a part
                without any slot; its out is not read
    sinks       [heads] float32, applied once, here. The parts must then have been decoded with
                sink_mode="defer" (or without sinks)
    bmm2_scale  output scale, float or one float32 on the device. Give it here or to the parts, not
                to both
    lse_base    "e" or "2": the base of `lses` and of the returned lse

    Returns (out, lse): [..., heads, 512] of the dtype of `outs`, and [..., heads] float32, without
    the sink. Where every part is empty, out is 0 and lse is -inf.

    Raises ValueError for an empty sequence and for a wrong shape, dtype, device or option;
    TypeError for a scale tensor that is not float32. Graph-safe.
    """
    scale2, scale2_tensor = split_scale(bmm2_scale, "bmm2_scale")
    return call(
        operators().merge_states.default,
        _stacked(outs, "outs"),
        _stacked(lses, "lses"),
        sinks=sinks,
        bmm2_scale=scale2,
        bmm2_scale_tensor=scale2_tensor,
        lse_base=lse_base,
    )


def _stacked(parts: Tensor | Sequence[Tensor], name: str) -> Tensor:
    if isinstance(parts, Tensor):
        return parts
    if len(parts) == 0:
        raise ValueError(f"{name}: expected 1 or more partial results, got an empty sequence")
    for index, part in enumerate(parts):
        if part.shape != parts[0].shape:
            raise ValueError(
                f"{name}[{index}]: expected shape {list(parts[0].shape)} like {name}[0], "
                f"got {list(part.shape)}"
            )
    return torch.stack(tuple(parts))
