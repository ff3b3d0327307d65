"""kernels/pipeline.cu: its PTX, its arguments and what it should compute."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

import simulator

SOURCE = Path(__file__).parent / "kernels" / "pipeline.cu"
JOBS, TILES, N, K = 2, 5, 16, 16


def rows(target: str) -> int:
    return {"90a": 64, "100a": 128}[target]


def in_core_matrices(x: torch.Tensor) -> torch.Tensor:
    """[..., rows, 16] as core matrices of 8 x 8 elements, row by row of them."""
    blocks = x.unflatten(-2, (-1, 8)).unflatten(-1, (2, 8))  # [..., r / 8, r % 8, k / 8, k % 8]
    return blocks.transpose(-3, -2).contiguous()


@cache
def inputs(target: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Arguments but for the output, and the output."""
    generator = torch.Generator().manual_seed(1)
    tiles = JOBS * TILES
    a = torch.randint(-4, 5, (tiles, rows(target), K), generator=generator).float()
    b = torch.randint(-4, 5, (tiles, N, K), generator=generator).float()
    factors = 2.0 ** torch.randint(0, 3, (tiles,), generator=generator).float()
    products = a.double() @ (b * factors[:, None, None]).double().transpose(-1, -2)
    weights = 0.5 ** torch.arange(TILES - 1, -1, -1, dtype=torch.float64)
    out = (products.unflatten(0, (JOBS, TILES)) * weights[None, :, None, None]).sum(1)
    arguments = [in_core_matrices(a).bfloat16(), in_core_matrices(b), factors]
    return arguments, out.float()


@cache
def ptx(target: str) -> str:
    return simulator.compile_ptx(SOURCE, target, ["-lineinfo"])
