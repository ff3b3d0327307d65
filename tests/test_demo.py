"""The demo, small: what it prints, what it checks, and what it returns when a check fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dsv4
from dsv4 import demo

SMALL = ["--quick", "--batch", "2", "--heads", "3"]
FORMS = {"SWA": "token-sparse", "CSA": "token-sparse", "HCA": "HCA"}


pytestmark = pytest.mark.usefixtures("one_thread")


def table(text):
    """The rows of the printed tables, each a dict by column heading."""
    rows, headings, context = [], None, None
    for line in text.splitlines():
        if line.startswith("context "):
            context = line.split()[1].rstrip(":")
        elif line.startswith("layer "):
            headings = line
        elif headings and line[:3] in FORMS:
            begin, cells = 0, {"context": context}
            for name, width in demo._COLUMNS:
                cells[name] = line[begin : begin + abs(width)].strip()
                assert headings[begin : begin + abs(width)].strip() == name
                begin += abs(width) + 1
            rows.append(cells)
    return rows


def verdicts(text):
    return [row["check"] for row in table(text)]


def test_every_layer_and_form_is_checked(capsys):
    assert demo.main([*SMALL, "--context", "300,1100"]) == 0
    text = capsys.readouterr().out
    rows = table(text)
    assert [(row["context"], row["layer"], row["form"], row["KV"]) for row in rows] == [
        (context, layer, form, kv)
        for context in ("300", "1,100")
        for layer in ("SWA", "CSA", "HCA")
        for form, kv in (("packed", "584 B"), (FORMS[layer], "bf16"), (FORMS[layer], "e4m3"))
    ]
    assert {row["check"] for row in rows} == {"ok"}
    slots = {(row["layer"], row["context"]): int(row["slots"]) for row in rows}
    assert slots == {
        ("SWA", "300"): 128, ("CSA", "300"): 128 + 75, ("HCA", "300"): 128 + 2,
        ("SWA", "1,100"): 128, ("CSA", "1,100"): 128 + 275, ("HCA", "1,100"): 128 + 8,
    }  # fmt: skip
    assert text.count("read back: ok") == 2
    assert "20 of 20 checks passed" in text


def test_head_says_what_ran_and_where(capsys):
    assert demo.main([*SMALL, "--context", "64"]) == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    assert f"dsv4 {dsv4.__version__}" in head
    assert f"torch {torch.__version__}" in head
    assert f"{demo.cpu_threads()} threads" in head
    assert "batch 2, 1 query each, 3 heads" in head
    assert demo.cpu_name() in head


@pytest.mark.parametrize("context", [1, 3, 127, 129])
def test_contexts_shorter_than_the_window(context, capsys):
    assert demo.main([*SMALL, "--context", str(context)]) == 0
    text = capsys.readouterr().out
    assert verdicts(text) == ["ok"] * 9
    assert int(table(text)[0]["slots"]) == min(context, 128)


def test_a_wrong_result_fails(capsys, monkeypatch):
    decode = dsv4.trtllm_batch_decode_sparse_mla_dsv4

    def wrong_in_one_form(*args, **kwargs):
        result = decode(*args, **kwargs)
        if kwargs["backend"] == "cute-dsl" and kwargs.get("return_lse"):
            result[0][0, 0, 2, 7] += result[0][0, 0, 2].abs().max() / 8
        return result

    monkeypatch.setattr(dsv4, "trtllm_batch_decode_sparse_mla_dsv4", wrong_in_one_form)
    assert demo.main([*SMALL, "--context", "300"]) == 1
    text = capsys.readouterr().out
    assert verdicts(text) == ["ok"] * 7 + ["FAILED"] * 2
    assert "8 of 10 checks passed" in text


def test_a_wrong_lse_fails(capsys, monkeypatch):
    decode = dsv4.trtllm_batch_decode_sparse_mla_dsv4

    def wrong_lse(*args, **kwargs):
        result = decode(*args, **kwargs)
        return (result[0], result[1] / 0.6931) if kwargs.get("return_lse") else result

    monkeypatch.setattr(dsv4, "trtllm_batch_decode_sparse_mla_dsv4", wrong_lse)
    assert demo.main([*SMALL, "--context", "64"]) == 1
    assert verdicts(capsys.readouterr().out) == ["FAILED"] * 9


@pytest.mark.parametrize("format", ["packed", "bf16", "e4m3"])
def test_a_wrong_append_fails(format, capsys, monkeypatch):
    append = demo.append_kv_cache
    width = {"packed": torch.uint8, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}[format]

    def one_slot_off(kv, kv_cache, slot_mapping, **options):
        append(kv, kv_cache, slot_mapping + (kv_cache.dtype == width), **options)

    monkeypatch.setattr(demo, "append_kv_cache", one_slot_off)
    assert demo.main([*SMALL, "--context", "300"]) == 1
    assert "read back: FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--context", "0"], ["--context", "4k"], ["--batch", "-1"], ["--heads", "x"]]
)
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        demo.main(arguments)
    assert exit.value.code == 2
    assert "expected a number of at least 1, got " in capsys.readouterr().err


def test_command_line():
    package = Path(dsv4.__file__).parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "dsv4", "demo", *SMALL, "--context", "200"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert verdicts(run.stdout) == ["ok"] * 9


@pytest.mark.parametrize("format", ["packed", "bf16", "e4m3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eager_torch_computes_the_same(format, dtype):
    """The comparison is with the same step, holes and sinks included."""
    caches = demo.Caches(2, 600, torch.device("cpu"))
    for layer in demo.LAYERS:
        pool = caches.compressed(layer)
        form = "packed" if format == "packed" else layer.plain_form
        step = caches.step(layer, pool, form, format, 3)
        if step.compressed is not None:
            step.compressed.table[0, 1] = -1
            step.compressed.lens[1] -= 1
        wanted = dsv4.trtllm_batch_decode_sparse_mla_dsv4(**demo.arguments(form, step))
        error = (demo.eager_decode(step, dtype).double() - wanted.double()).abs().max()
        assert error <= 2.0**-6 * wanted.abs().max()
