"""For bench_gpu.py: facts of the GPU, and times of calls on it or, for a dry run, on the CPU."""

from __future__ import annotations

from functools import partial

import common
import torch
from common import measure, median

from dsv4.bench import Call, Graph, clocks, measure_graphs

# --- the machine


def l2_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return common.l2_bytes()
    return torch.cuda.get_device_properties(device).L2_cache_size


def describe(device: torch.device) -> str:
    if device.type == "cpu":
        return "no GPU: a dry run on the CPU, whose times mean nothing"
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{properties.name}, {properties.multi_processor_count} SMs, "
        f"L2 {properties.L2_cache_size / 1e6:.0f} MB, CUDA {torch.version.cuda}; {clocks(device)}"
    )


# --- timing


def measure_calls(
    variants: dict[str, list[Call]],
    device: torch.device,
    seconds: float,
    between: Call | None = None,
) -> dict[str, float]:
    """Seconds of one call of each variant, each variant's calls in one graph.

    `between` is captured after each call; its own time is taken off again.
    """
    if device.type == "cpu":
        return {name: median(times) for name, times in measure(variants, seconds).items()}
    if between is None:
        graphs = {name: Graph(calls) for name, calls in variants.items()}
        return measure_graphs(graphs, seconds)
    graphs = {
        name: Graph([step for call in calls for step in (call, between)])
        for name, calls in variants.items()
    }
    graphs["between"] = Graph([between] * 1000)
    times = measure_graphs(graphs, seconds)
    # A graph holds two calls for each of the variant's.
    return {name: 2 * times[name] - times["between"] for name in variants}


def tiny_kernel(device: torch.device) -> Call:
    """As little as a kernel can do: one number += 1."""
    return partial(torch.zeros(1, device=device).add_, 1)
