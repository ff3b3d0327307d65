"""The check: what it tries, what it says, and that it fails when it should."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import cases
import dsv4
from dsv4 import bench, check, hostile, reference, trials

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = trials.Sizes((3, 20), 1, 64, 640, 4, every_pair=False)
ON_CPU = trials.Check(trials.CPU, None, TINY)
AGAINST_CPU = trials.Check(trials.CPU, trials.CPU, TINY)


def lines(text):
    """Verdict of each form that ran, by its name."""
    words = [line.split() for line in text.splitlines() if line.strip()]
    return {
        name: verdict
        for name, *rest in words
        for verdict in ("pass", "FAIL")
        if name in trials.FORMS and verdict in rest
    }


def patch_decode(monkeypatch, change):
    """`change(arguments, out, lse)` is called after each decode."""
    decode = dsv4.trtllm_batch_decode_sparse_mla_dsv4

    def changed(**arguments):
        result = decode(**arguments)
        change(arguments, arguments["out"], arguments["lse"])
        return result

    monkeypatch.setattr(dsv4, "trtllm_batch_decode_sparse_mla_dsv4", changed)


def test_the_cpu_engine_passes(capsys, tmp_path):
    file = tmp_path / "check.json"
    assert check.main(["--quick", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    wanted = {name: "pass" for name, form in trials.FORMS.items() if not form.needs_gpu}
    assert lines(text) == wanted
    assert text.splitlines()[-1].startswith("PASS (")

    written = json.loads(file.read_text())
    assert written["verdict"] == "PASS"
    assert [form["name"] for form in written["forms"]] == list(wanted)
    assert all(form["trials"] > 0 and 0.0 <= form["worst"] <= 1.0 for form in written["forms"])
    assert written["facts"]["dsv4"] == dsv4.__version__
    assert written["facts"]["build_info"] == dsv4.build_info()


def test_head_says_what_ran_and_where(capsys):
    assert check.run(ON_CPU, ["tables"], []) == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    assert f"dsv4     {dsv4.__version__}, torch {torch.__version__}" in head
    assert "engine   cpu" in head


def test_head_of_a_gpu(monkeypatch):
    properties = SimpleNamespace(
        name="NVIDIA B200", major=10, minor=0, multi_processor_count=148, uuid="0",
        total_memory=191e9, L2_cache_size=126e6,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    engines = [{"name": "sm120", "targets": "100f", "usable": True, "reason": ""}]
    info = {**dsv4.build_info(), "engines": engines}
    monkeypatch.setattr(dsv4, "build_info", lambda: info)
    place = trials.Place(torch.device("cuda", 0))
    head = check.head(check.facts(trials.Check(place, trials.CPU, TINY)))
    assert "NVIDIA B200, compute capability 10.0, 148 SMs, 191 GB, L2 126 MB" in head
    assert "engine   sm120, compiled for 100f" in head
    assert "\ndriver   " in head


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert check.main(["--on-gpu"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("no usable GPU: torch sees no GPU (torch ")
    assert "compiled for" in captured.err
    assert captured.out == ""


def test_on_the_gpu(gpu, capsys):
    assert check.main(["--on-gpu", "--quick"]) == 0
    assert lines(capsys.readouterr().out) == dict.fromkeys(trials.FORMS, "pass")


@pytest.mark.simulated
def test_on_a_simulated_gpu(engine, capsys, monkeypatch):
    name = os.environ["DSV4_TEST_ENGINE"]
    monkeypatch.setenv("DSV4_TEST_ENGINE", "cpu")  # of whatever is not the subject's

    @contextlib.contextmanager
    def served():
        os.environ["DSV4_TEST_ENGINE"] = name
        try:
            yield
        finally:
            os.environ["DSV4_TEST_ENGINE"] = "cpu"

    subject = trials.Place(torch.device(engine.device), served)
    names = [name for name in trials.FORMS if name != "options"]  # of 40 decodes
    sizes = TINY._replace(heads=(3,), long_width=256, batch=2)
    setup = trials.Check(subject, trials.CPU, sizes, cases.e4m3_cache_weights)
    assert check.run(setup, names, []) == 0
    assert set(lines(capsys.readouterr().out).values()) == {"pass"}


# --- what must fail


@pytest.mark.parametrize("setup", [ON_CPU, AGAINST_CPU], ids=["float64", "engine"])
def test_a_wrong_result_fails(setup, capsys, monkeypatch, tmp_path):
    calls = []

    def change(arguments, out, lse):
        calls.append(arguments)
        if arguments["backend"] == "cute-dsl" and len(calls) % 2:  # not the judge's
            out[0, 0, 2, 7] += out[0, 0, 2].abs().max() / 8

    patch_decode(monkeypatch, change)
    file = tmp_path / "check.json"
    assert check.run(setup, ["hca-e4m3", "packed"], [], file) == 1
    text = capsys.readouterr().out
    assert lines(text) == {"hca-e4m3": "FAIL", "packed": "pass"}
    assert "heads, pages of 1: out[0, " in text
    assert text.splitlines()[-1].startswith("FAIL: ")
    written = json.loads(file.read_text())
    assert written["verdict"].startswith("FAIL: ")
    assert "expected" in written["forms"][0]["failures"][0]


def test_a_wrong_lse_fails(capsys, monkeypatch):
    patch_decode(monkeypatch, lambda arguments, out, lse: lse.div_(0.6931))
    assert check.run(ON_CPU, ["token-sparse-bf16"], []) == 1
    assert "lse[" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["packed", "bf16", "e4m3"])
def test_a_wrong_append_fails(format, capsys, monkeypatch):
    append = hostile.append_kv_cache
    dtype = {"packed": torch.uint8, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}[format]

    def one_slot_off(kv, cache, slots, **options):
        append(kv, cache, slots + (cache.dtype == dtype), **options)

    monkeypatch.setattr(hostile, "append_kv_cache", one_slot_off)
    assert check.run(ON_CPU, ["append"], []) == 1
    assert f"{format}, pages of 1: rows do not read back" in capsys.readouterr().out


def test_an_error_fails_its_form_only(capsys, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("device cuda:0: no engine\nand more")

    monkeypatch.setattr(dsv4, "merge_states", refuse)
    assert check.run(ON_CPU, ["merge", "tables"], []) == 1
    text = capsys.readouterr().out
    assert lines(text) == {"merge": "FAIL", "tables": "pass"}
    assert "    3 heads: RuntimeError: device cuda:0: no engine\n" in text


def test_nothing_follows_a_lost_context(capsys, monkeypatch):
    patch_decode(monkeypatch, lambda arguments, out, lse: out.undefined)
    monkeypatch.setattr(check, "_is_alive", lambda device: False)
    assert check.run(ON_CPU, ["packed", "tables"], []) == 1
    text = capsys.readouterr().out
    assert lines(text) == {"packed": "FAIL"}
    assert "0 of 1" in text
    assert "FAIL: after an error in packed the GPU answers no more" in text


def test_a_gpu_that_hangs_ends_the_program(capsys, monkeypatch, tmp_path):
    codes = []
    monkeypatch.setattr(check, "LONGEST_TRIAL", 0.0)
    monkeypatch.setattr(check.os, "_exit", codes.append)
    report = check.Report(ON_CPU, tmp_path / "check.json")
    place = trials.Place(torch.device("cuda", 0))
    with check.watched(ON_CPU._replace(subject=place), report, "packed, 8 heads"):
        check.threading.Event().wait(0.5)
    assert codes == [1]
    assert "packed, 8 heads: no answer after 0 s, the GPU hangs" in capsys.readouterr().out
    assert "hangs" in (tmp_path / "check.json").read_text()


@pytest.mark.parametrize("replays", [True, False])
def test_replays_of_a_graph_are_judged(replays, capsys, monkeypatch):
    """Without CUDA: a graph that calls again, and one that does nothing."""
    graphs = []

    class Graph:
        def __init__(self, calls):
            self.calls = calls
            graphs.append(self)

        def replay(self):
            for call in self.calls if replays else []:
                call()

    monkeypatch.setattr(bench, "Graph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    report = check.Report(ON_CPU, None)
    check.run_form(ON_CPU, "graph", report)
    assert lines(capsys.readouterr().out) == {"graph": "pass" if replays else "FAIL"}
    assert len(graphs) == len(trials.FORMS_OF_FORMATS) * len(TINY.heads)
    assert report.finish() == (0 if replays else 1)


# --- times, the command line, and the data


def test_bench_on_the_cpu_is_a_dry_run(capsys, monkeypatch):
    monkeypatch.setattr(check, "BENCH_SECONDS", 0.0)
    monkeypatch.setitem(check.POOL_SLOTS, "cpu", 1 << 11)
    cases = [check.BenchCase("B", format, 2, 1) for format in ("packed", "e4m3")]
    assert check.run(ON_CPU, [], [*cases, check.BenchCase("?", "packed", 2, 1)]) == 1
    text = capsys.readouterr().out
    table = [line.split() for line in text.splitlines() if line[:6].strip() in ("packed", "e4m3")]
    assert [line[:4] for line in table[:2]] == [[c.format, "2", "1", "640"] for c in cases]
    assert table[2][3:] == ["FAIL", "KeyError:", "'?'"]
    assert "FAIL: 1 failed" in text


def test_nothing_tried_is_no_pass(capsys):
    assert check.main(["--forms", "graph"]) == 1
    assert "nothing was tried" in capsys.readouterr().out


def test_command_line():
    package = Path(dsv4.__file__).parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "dsv4", "check", "--quick", "--forms", "packed", "tables"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert lines(run.stdout) == {"packed": "pass", "tables": "pass"}


@pytest.mark.parametrize(("form", "format"), trials.FORMS_OF_FORMATS)
def test_only_what_is_named_holds_numbers(form, format):
    step = hostile.step(form, format, 2, [2, 2, 2], 100, page_sizes=(4, 16))
    for segment in step.segments():
        slots, valid = segment.slots()
        holds = ~reference.dequantise(segment.cache).isnan().any(1)
        assert torch.equal(holds.nonzero().flatten(), slots[valid].unique())
        within = torch.arange(segment.table.shape[1]) < segment.lens[:, None]
        assert (within & (segment.table < 0)).any()
        assert not valid.all()


def test_moving_keeps_strides_and_gaps():
    step = hostile.step("packed", "packed", 2, [1], 10)
    copy = hostile.moved(step, torch.device("cpu"))
    for mine, theirs in zip(copy.window, step.window, strict=True):
        if isinstance(mine, torch.Tensor):
            assert mine.stride() == theirs.stride()
            assert mine.data_ptr() != theirs.data_ptr()
            assert hostile.same_bytes(mine, theirs)
    hostile.overwrite(copy, hostile.step("packed", "packed", 2, [1], 10))
    assert not torch.equal(copy.window.table, step.window.table)
