"""report.py: counters of a launch per unit of work."""

from __future__ import annotations

import json

import pytest

import simulator
from simulator import report
from simulator.pipeline import inputs, ptx


@pytest.fixture(scope="module")
def pipeline():
    """Counters of kernels/pipeline.cu for sm_100a: two jobs of five tiles."""
    arguments, expected = inputs("100a")
    module = simulator.Module(ptx("100a"))
    result = module.launch(
        "pipeline",
        block=256,
        arguments=[*arguments, expected.clone()],
        options=simulator.options(count=True),
    )
    return report.counters_of(result)


def test_bytes_and_instructions_of_the_pipeline(pipeline):
    tiles, jobs = 10, 2
    a, b, out = 128 * 16 * 2, 16 * 16 * 4, 128 * 16 * 4
    assert pipeline["bulk_load_bytes"] == tiles * (a + b)
    assert pipeline["bulk_store_bytes"] == jobs * out
    assert pipeline["matrix_flop"] == tiles * 2 * 128 * 16 * 16
    assert list(pipeline["matrix_instructions"].values()) == [tiles]
    assert report.operand_bytes(pipeline) == tiles * (128 + 16) * 32


def test_floors_are_those_of_the_busiest_scheduler_and_of_all_bytes(pipeline):
    floors = report.floors(pipeline, report.GPUS["B200"])
    by_warp = [sum(w["instructions"].values()) for w in pipeline["warps"]]
    assert floors["issue"] == max(by_warp[i] + by_warp[i + 4] for i in range(4))
    moved = pipeline["bulk_load_bytes"] + pipeline["bulk_store_bytes"]
    passes = sum(
        w["shared_load_wavefronts"] + w["shared_store_wavefronts"] for w in pipeline["warps"]
    )
    operands = report.operand_bytes(pipeline)
    assert floors["shared memory"] == pytest.approx(passes + (moved + operands) / 128)
    assert report.GPUS["B200"].bytes_per_clock == pytest.approx(29.2, abs=0.1)
    halves = report.floors(pipeline, report.GPUS["B200"], sms=2)
    assert halves == {pipe: pytest.approx(clocks / 2) for pipe, clocks in floors.items()}


def test_difference_and_command_line(pipeline, tmp_path):
    nothing = report.difference(pipeline, pipeline)
    assert nothing["bulk_load_bytes"] == 0
    assert not any(sum(w["instructions"].values()) for w in nothing["warps"])

    more = json.loads(json.dumps(pipeline))
    more["bulk_load_bytes"] += 640
    for name, counters in (("more", more), ("less", pipeline)):
        (tmp_path / name).write_text(json.dumps(counters))
    shown = report.main([str(tmp_path / "more"), str(tmp_path / "less"), "--units", "10"])
    assert "| bulk load | 64 |" in shown


def test_roles(pipeline):
    shown = report.text(pipeline, units=10, roles={"finish": range(4), "load": [4]}, gpu="B200")
    rows = [line.split(" | ")[0] for line in shown.splitlines()]
    assert [row for row in rows if row in ("| finish", "| load", "| other", "| all")] == [
        "| finish",
        "| load",
        "| other",
        "| all",
    ]
    assert "| tcgen05.f16.cg1 M128 N16 SS | 1 |" in shown
