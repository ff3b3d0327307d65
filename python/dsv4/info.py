"""What this build is, and what it can do here."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch

from ._errors import call
from ._library import operators


class Support(NamedTuple):
    """An answer of `supports`: true or false like a bool, with the reason for a no."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def build_info() -> dict[str, Any]:
    """What the native library is, and what it finds on this machine.

    version         of this package
    compiler        that built the library
    cuda_runtime    version the GPU engines were built with, or "none"
    driver          newest CUDA version that the installed driver serves, or "none"
    gpus            [{"index", "name", "sm"}, ...]
    gpu_reason      why there is no GPU, or ""
    engines         [{"name", "targets", "usable", "reason", "rounds_e4m3_weights"}, ...]: what the
                    build holds, why an engine cannot run here, and whether it rounds the weights
                    exp(s_j - m) of e4m3 caches to e4m3 too
    simd            instruction set that the CPU engine uses here
    """
    return json.loads(call(operators().build_info.default))


def supports(
    num_heads: int = 64,
    *,
    query_dtype: torch.dtype = torch.bfloat16,
    kv_format: str = "packed",
    page_table: bool = False,
    device: torch.device | str | None = None,
) -> Support:
    """Whether this build can run such a decode on this device; if not, why.

    num_heads     query heads
    query_dtype   torch.bfloat16 or torch.float8_e4m3fn
    kv_format     "packed", "bf16" or "e4m3"
    page_table    True for the HCA form
    device        None: the CPU

    Raises ValueError for an unknown kv_format or device.
    """
    reason = call(
        operators().supports.default,
        num_heads,
        query_dtype=query_dtype,
        kv_format=kv_format,
        page_table=page_table,
        device=None if device is None else torch.device(device),
    )
    return Support(reason == "", reason)


def workspace_size(
    num_rows: int,
    num_heads: int,
    swa_width: int,
    compressed_width: int = 0,
    *,
    device: torch.device | str | None = None,
    batch_invariant: bool = False,
    table_rows: int = 1,
) -> int:
    """Bytes of workspace with which a decode of this shape is fastest.

    num_rows           query rows: B * Q, or sum_q
    num_heads          query heads
    swa_width          columns of the window table (128 in the token-sparse and HCA forms)
    compressed_width   columns of the compressed table, in slots (HCA: pages * page_size)
    device             None: the CPU
    batch_invariant    for decodes that fix their splits
    table_rows         neighbouring query rows that may have one compressed table: Q in the HCA
                       form, and where the table is given once a request

    Less is allowed, down to none. For a pool of shapes take the largest.
    Raises ValueError for a negative size, and for table_rows below 1.
    """
    return call(
        operators().workspace_size.default,
        num_rows,
        num_heads,
        swa_width,
        compressed_width,
        device=None if device is None else torch.device(device),
        batch_invariant=batch_invariant,
        table_rows=table_rows,
    )


def report() -> str:
    """The text of `python -m dsv4 info`."""
    info = build_info()
    lines = [
        f"dsv4       {info['version']}",
        f"torch      {torch.__version__}",
        f"CUDA       runtime {info['cuda_runtime']}, driver {info['driver']}",
        f"CPU        {info['simd']}",
    ]
    for gpu in info["gpus"]:
        lines.append(f"GPU {gpu['index']}      {gpu['name']} (sm_{gpu['sm']})")
    if not info["gpus"]:
        lines.append(f"GPU        none: {info['gpu_reason']}")
    for engine in info["engines"]:
        state = "usable" if engine["usable"] else f"not usable: {engine['reason']}"
        lines.append(f"engine     {engine['name']}, compiled for {engine['targets']}: {state}")
    return "\n".join(lines)
