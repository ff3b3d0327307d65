"""The simulated build of the library: which engine serves the CPU, and what it tells of an engine
that breaks the contract. sim-broken does so in each of its functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import dsv4
import simulated

pytestmark = pytest.mark.simulated


@pytest.fixture
def use(monkeypatch):
    return lambda engine: monkeypatch.setenv("DSV4_TEST_ENGINE", engine)


def decode(num_slots=4, index=1, enable_pdl=False):
    query = torch.ones(1, 1, 2, 512).bfloat16()
    cache = torch.ones(1, 1, num_slots, 512).bfloat16()
    indices = torch.tensor([[index]], dtype=torch.int32)
    return torch.ops.dsv4.sparse_mla_decode(query, cache, indices, enable_pdl=enable_pdl)


def hca_metadata(columns=128, device="cpu"):
    rows = torch.arange(columns, dtype=torch.int32).repeat(3, 1)
    seq_lens = torch.tensor([100, 7, 500], dtype=torch.int32)
    return torch.ops.dsv4.hca_metadata(
        rows, seq_lens, q_len=1, swa_slots=90, page_size=2, num_pages=5
    )


def append(slots=(0, 2)):
    slots = torch.tensor(slots)
    dsv4.append_kv_cache(
        torch.ones(len(slots), 512).bfloat16(), torch.zeros(2, 2, 512).bfloat16(), slots
    )


def merge():
    return dsv4.merge_states(torch.ones(2, 1, 1, 512), torch.zeros(2, 1, 1))


def pack():
    return dsv4.pack_kv_cache(torch.ones(1, 2, 512).bfloat16())


def unpack():
    return dsv4.unpack_kv_cache(torch.ones(1, 2, 584, dtype=torch.uint8))


def engines():
    return {engine["name"]: engine for engine in dsv4.build_info()["engines"]}


# --- which engine serves the CPU


def test_the_engine_of_the_environment_serves_the_cpu(use, engine):
    use(engine.name)
    assert engines()[engine.name]["usable"]
    assert "cpu" not in engines()
    assert dsv4.supports(device="cpu")
    use("cpu")
    assert engines()["cpu"]["usable"]
    wanted = hca_metadata()
    use(engine.name)
    for got, want in zip(hca_metadata(), wanted, strict=True):
        assert torch.equal(got, want)


def test_five_gpus_are_there_and_slices_of_them():
    names = ["H200", "B200", "B300", "RTX PRO 6000", "GB10"] * 2
    gpus = dsv4.build_info()["gpus"]
    assert [gpu["sm"] for gpu in gpus] == ["90", "100", "103", "120", "121"] * 2
    assert all(name in gpu["name"] for name, gpu in zip(names, gpus, strict=True))


def test_info_names_the_engine():
    environment = {**os.environ, "DSV4_TEST_ENGINE": "sim-sm103"}
    command = [sys.executable, "-m", "dsv4", "info"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "engine     sim-sm103, compiled for a simulated B300: usable" in done.stdout


def test_an_engine_that_is_not_there(use):
    use("sim-sm42")
    sentence = "DSV4_TEST_ENGINE: expected one of cpu, sim-sm90, .*, got sim-sm42"
    with pytest.raises(ValueError, match=sentence):
        append()
    assert not dsv4.supports(device="cpu")


# --- an engine that breaks the contract

FAULTS = [
    (decode, r"load\(.*global address 0x[0-9a-f]+ \(\+1 bytes\) lies in no allocation"),
    (append, r"load\(.*global address 0x[0-9a-f]+ \(\+1 bytes\) lies in no allocation"),
    (
        merge,
        r"exchange_without_barrier\(.*: the checker reports: .*read after write in shared memory",
    ),
    (pack, "a stream of device 0, but device 1 is current"),
    (unpack, "another device is current than before the call"),
    (hca_metadata, "there is no device -1"),
]


@pytest.mark.parametrize(("call", "sentence"), FAULTS, ids=[call.__name__ for call, _ in FAULTS])
def test_a_fault_is_told_and_forgotten(use, capfd, call, sentence):
    use("sim-broken")
    with pytest.raises(RuntimeError, match=f"sim-broken: .*{sentence}"):
        call()
    assert "sim-broken: " in capfd.readouterr().err  # the whole of it
    use("sim-sm90")
    assert hca_metadata()[2].tolist() == [128, 128, 131]


def test_what_a_valid_index_names_may_be_read(use):
    use("sim-broken")
    decode(index=0)
    with pytest.raises(RuntimeError, match="lies in no allocation"):
        decode(index=-1)


def test_inputs_may_come_from_the_kernel_before(use):
    use("sim-broken")
    with pytest.raises(RuntimeError, match=r"the previous grid.*griddepcontrol\.wait"):
        decode(index=0, enable_pdl=True)


def test_the_checker_can_be_switched_off(use):
    use("sim-broken")
    with simulated.options(check="0"):
        merge()
    with pytest.raises(RuntimeError, match="the checker reports"):
        merge()
    with pytest.raises(ValueError, match="expected 0, 1 or report"):
        simulated.set_option("check", "sometimes")


def test_the_environment_sets_options():
    script = "import dsv4, torch; dsv4.merge_states(torch.ones(2, 1, 1, 512), torch.ones(2, 1, 1))"
    for check, told in [("1", "the checker reports"), ("0", "")]:
        environment = {**os.environ, "DSV4_TEST_ENGINE": "sim-broken", "DSV4_SIM_CHECK": check}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        assert told in done.stderr
        assert (done.returncode == 0) == (check == "0")


def test_build_info_is_kept_for_each_engine(use):
    use("sim-sm90")
    first = torch.ops.dsv4.build_info()
    use("sim-sm100")
    second = torch.ops.dsv4.build_info()
    assert [json.loads(text)["engines"][-1]["name"] for text in (first, second)] == [
        "sim-sm90",
        "sim-sm100",
    ]
