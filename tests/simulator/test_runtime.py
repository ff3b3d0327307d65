"""The fake CUDA runtime: a host program, built by nvcc, that runs its kernels in the simulator."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

import simulator

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "kernels" / "host_program.cu"
LIBRARY = Path(simulator.native.__file__).parent / "libdsv4_fake_cuda.a"
GENCODES = [f"-gencode=arch=compute_{t},code=compute_{t}" for t in ("90a", "100f", "120f")]

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="this build has no CUDA headers: no libdsv4_fake_cuda"
)


def nvcc(*arguments: str | Path) -> subprocess.CompletedProcess:
    command = [simulator.nvcc(), "-std=c++17", f"-I{FOLDER}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The program; its object file is kept from session to session."""
    texts = [PROGRAM, FOLDER / "kernels" / "copies.cuh", FOLDER / "runtime" / "dsv4_sim.h"]
    key = hashlib.sha256("\0".join(text.read_text() for text in texts).encode()).hexdigest()[:24]
    cache = FOLDER.parents[1] / "build" / "ptx"
    cache.mkdir(parents=True, exist_ok=True)
    compiled = cache / f"{key}.o"
    if not compiled.exists():
        made = cache / f"{key}.{os.getpid()}.o"
        run = nvcc(*GENCODES, "-no-compress", "-c", PROGRAM, "-o", made)
        assert run.returncode == 0, run.stderr
        made.replace(compiled)
    executable = tmp_path_factory.mktemp("runtime") / "program"
    run = nvcc("-cudart=none", compiled, LIBRARY, "-o", executable)
    assert run.returncode == 0, run.stderr
    return executable


def lines(program, part: str, **environment: str) -> list[str]:
    names = {f"DSV4_SIM_{name.upper()}": value for name, value in environment.items()}
    run = subprocess.run(
        [program, part], capture_output=True, text=True, env={**os.environ, **names}, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.fixture(params=["eager", "lazy", "random"])
def schedule(request):
    return request.param


def test_launches(program, schedule):
    assert lines(program, "launches", schedule=schedule) == [
        "launch: cudaSuccess",
        "wrong: 0",
        "to symbol: cudaSuccess",
        "read: cudaSuccess",
        "with factor 5: 6",
        "event: cudaSuccess",
        "stream: cudaSuccess",
        "from symbol: cudaSuccess",
        "read: cudaSuccess",
        "sum: 256, blocks: 2",
        "destroy: cudaSuccess",
        "launches: 4, last lanes: 1, all lanes more: 1",
    ]


def test_clusters(program, schedule):
    assert lines(program, "clusters", schedule=schedule) == [
        "launch: cudaSuccess",
        "0 1 2 3 0 1 2 3 ",
        "cooperative: cudaErrorNotSupported",
    ]


def test_dependent_launches(program):
    printed = lines(program, "dependent_launches")
    assert printed[:4] == [
        "may overlap 0, waits 1: cudaSuccess",
        "may overlap 0, waits 0: cudaSuccess",
        "may overlap 1, waits 1: cudaSuccess",
        "may overlap 1, waits 0: cudaErrorLaunchFailure",
    ]
    assert "the checker reports" in printed[4]
    assert any("griddepcontrol.wait" in line for line in printed[5:])


@pytest.mark.parametrize("gpu", ["H200", "B200", "RTX_PRO_6000"])
def test_tensor_map(program, schedule, gpu):
    printed = lines(program, "tensor_map", schedule=schedule, gpu=gpu)
    why = printed.pop(4)
    assert why.startswith("why: tensor map: base 0x")
    assert why.endswith("8 is not a multiple of 16")
    assert printed == [
        "entry point: cudaSuccess",
        "result 0",
        f"32-byte atoms: {1 if gpu == 'H200' else 0}",
        "misaligned: 1",
        "encoded: 0",
        "launch: cudaSuccess",
        "wrong: 0",
        "no such function: cudaSuccess",
        "result 1, null 1",
        "too old: cudaSuccess",
        "result 2, null 1",
    ]


def test_graphs(program, schedule):
    value = 0
    for _ in range(3):
        value = (value + 32) * 2 + 5
    assert lines(program, "graphs", schedule=schedule) == [
        "end: cudaSuccess",
        "read: cudaSuccess",
        "before: 0",
        "instantiate: cudaSuccess",
        "destroy: cudaSuccess",
        *["launch: cudaSuccess"] * 3,
        "read: cudaSuccess",
        f"after: {value}",
    ]


@pytest.mark.parametrize(
    ("gpu", "described", "compiled_for", "blocks"),
    [
        ("H200", "NVIDIA H200 9.0 132 SMs 232448 bytes", 900, (16, 2, 1, 4)),
        ("B200", "NVIDIA B200 10.0 148 SMs 232448 bytes", 1000, (16, 2, 1, 4)),
        ("B300", "NVIDIA B300 SXM6 AC 10.3 148 SMs 232448 bytes", 1000, (16, 2, 1, 4)),
        (
            "RTX_PRO_6000",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition 12.0 188 SMs 101376 bytes",
            1200,
            (12, 2, 1, 3),
        ),
        ("GB10", "NVIDIA GB10 12.1 48 SMs 101376 bytes", 1200, (12, 2, 1, 3)),
    ],
)
def test_gpu_models(program, gpu, described, compiled_for, blocks):
    optin = int(described.split()[-2])
    assert lines(program, "gpu", gpu=gpu) == [
        "set: cudaSuccess",
        described,
        "optin: cudaSuccess",
        "launch: cudaSuccess",
        "more: cudaErrorInvalidValue",
        "with 16 KB of fixed: cudaSuccess",
        "with 16 KB of fixed, more: cudaErrorInvalidValue",
        f"blocks of 0 bytes: {blocks[0]}",
        f"blocks of {optin // 2 - 1024} bytes: {blocks[1]}",
        f"blocks of {optin} bytes: {blocks[2]}",
        f"blocks of 512 threads: {blocks[3]}",
        "architecture: cudaSuccess",
        "read: cudaSuccess",
        f"compiled for {compiled_for}",
        "no device: cudaErrorInvalidDevice",
        "no attribute: cudaErrorInvalidValue",
    ]


def test_several_gpus(program):
    printed = lines(program, "gpu", gpu="B200,RTX_PRO_6000")
    assert [line for line in printed if line.startswith("compiled")] == [
        "compiled for 1000",
        "compiled for 1200",
    ]


def test_slices(program):
    printed = lines(program, "gpu", gpu="B200:3,B200")
    assert [line for line in printed if " SMs " in line] == [
        "NVIDIA B200 10.0 3 SMs 232448 bytes",
        "NVIDIA B200 10.0 148 SMs 232448 bytes",
    ]


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ("H300", "no GPU H300; there are H200, B200"),
        ("H200:133", "expected 1 to 132 SMs, got H200:133"),
        ("H200:", "expected 1 to 132 SMs, got H200:"),
    ],
)
def test_unknown_options_are_refused(program, gpu, why):
    names = {**os.environ, "DSV4_SIM_GPU": gpu}
    run = subprocess.run([program, "launches"], capture_output=True, text=True, env=names)
    assert run.returncode != 0
    assert f"DSV4_SIM_GPU: {why}" in run.stderr


WRONG_CALLS = """\
right: peek cudaSuccess get cudaSuccess then cudaSuccess sync cudaSuccess
launch bounds: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
block 1025: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
block 0: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
grid 0: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
grid y 65536: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
block z 65: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
dynamic 49152: peek cudaSuccess get cudaSuccess then cudaSuccess sync cudaSuccess
dynamic 49153: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
attribute 232448: cudaSuccess
dynamic 232448: peek cudaSuccess get cudaSuccess then cudaSuccess sync cudaSuccess
attribute 232449: cudaErrorInvalidValue
attribute -1: cudaErrorInvalidValue
no attribute: cudaErrorInvalidValue
dynamic 232449: peek cudaErrorInvalidValue get cudaErrorInvalidValue then cudaSuccess sync cudaSuccess
cluster 2 of 4: cudaSuccess
cluster 2 of 3: cudaErrorInvalidClusterSize
cluster 16: cudaErrorInvalidClusterSize
cluster 0: cudaErrorInvalidClusterSize
required 2, is 2: cudaSuccess
required 2, is 4: cudaErrorInvalidClusterSize
required 2, grid 3: peek cudaErrorInvalidClusterSize get cudaErrorInvalidClusterSize then cudaSuccess sync cudaSuccess
required 2, grid 4: peek cudaSuccess get cudaSuccess then cudaSuccess sync cudaSuccess
cluster 16 if allowed: cudaSuccess
free bogus: cudaErrorInvalidValue
free null: cudaSuccess
malloc 0: cudaSuccess
copy past end: cudaErrorInvalidValue
set past end: cudaErrorInvalidValue
copy the wrong way: cudaErrorInvalidValue
"""  # noqa: E501


def test_wrong_calls_answer_as_on_an_h200(program):
    assert lines(program, "wrong_calls") == WRONG_CALLS.splitlines()


CAPTURES = """\
launch: cudaSuccess, status 1, end cudaSuccess, nodes 1
malloc: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
malloc, thread local: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
malloc, relaxed: cudaSuccess, status 1, end cudaSuccess, nodes 0
free: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
stream sync: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
other stream sync: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
device sync: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
stream query: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
memcpy: cudaSuccess, status 1, end cudaSuccess, nodes 0
legacy launch: cudaSuccess, status 1, end cudaSuccess, nodes 0
other launch: cudaSuccess, status 1, end cudaSuccess, nodes 0
memset: cudaSuccess, status 1, end cudaSuccess, nodes 1
memcpy in stream: cudaSuccess, status 1, end cudaSuccess, nodes 1
attribute: cudaSuccess, status 1, end cudaSuccess, nodes 0
event query: cudaErrorStreamCaptureUnsupported, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
fork and join: cudaSuccess, status 1, end cudaSuccess, nodes 1
no join: cudaSuccess, status 1, end cudaErrorStreamCaptureUnjoined, nodes 0
other stream afterwards: cudaSuccess
fork without work: cudaSuccess, status 1, end cudaSuccess, nodes 0
end in other stream: cudaErrorStreamCaptureUnmatched, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
event sync: cudaErrorCapturedEvent, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
begin again: cudaErrorIllegalState, status 1, end cudaSuccess, nodes 0
end without begin: cudaErrorIllegalState
begin in legacy: cudaErrorStreamCaptureUnsupported
legacy launch, blocking capture: cudaErrorStreamCaptureImplicit
end: cudaErrorStreamCaptureInvalidated
refused launch: cudaErrorInvalidValue, status 2, end cudaErrorStreamCaptureInvalidated, nodes 0
event: cudaSuccess, status 1, end cudaSuccess, nodes 0
query of it: cudaErrorInvalidValue
wait for it: cudaErrorInvalidValue
"""  # noqa: E501


def test_captures_answer_as_on_an_h200(program):
    assert lines(program, "captures") == CAPTURES.splitlines()


def test_failures(program):
    text = "\n".join(lines(program, "failures"))
    parts = text.split("why: ")
    assert parts[0].splitlines() == [
        "destroy: cudaSuccess",
        "destroy again: cudaErrorInvalidResourceHandle",
        "launch: cudaErrorLaunchFailure",
        "text: unspecified launch failure",
        "cleared: cudaSuccess",
        "sync: cudaErrorLaunchFailure",
        "malloc: cudaErrorLaunchFailure",
        "another launch: cudaErrorLaunchFailure",
    ]
    assert "stray" in parts[1] and "lies in no allocation" in parts[1]
    assert "after reset: cudaSuccess\nrace: cudaErrorLaunchFailure" in parts[1]
    assert (
        "racing" in parts[2]
        and "the checker reports:\nwrite after read in shared memory" in parts[2]
    )
    assert "race, only reported: cudaSuccess\nreports: 2" in parts[2]
    assert "race, unchecked: cudaSuccess\nreports: 0" in parts[2]
    assert parts[3] == "expected 0, 1 or report, got sometimes"


def test_what_is_not_simulated_does_not_link(tmp_path):
    source = tmp_path / "program.cpp"
    source.write_text(
        "#include <cuda_runtime_api.h>\n"
        "int main() { void* p; return cudaMallocManaged(&p, 16, cudaMemAttachGlobal); }\n"
    )
    run = nvcc("-cudart=none", source, LIBRARY, "-o", tmp_path / "program")
    assert run.returncode != 0
    assert "undefined reference to `cudaMallocManaged'" in run.stderr


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["-gencode=arch=compute_90,code=sm_90"], "holds no PTX"),
        (
            ["-gencode=arch=compute_90,code=compute_90"],
            "is compressed: compile with nvcc -no-compress",
        ),
    ],
)
def test_fat_binaries_without_usable_ptx(tmp_path, flags, why):
    source = tmp_path / "program.cu"
    source.write_text(
        '#include "runtime/dsv4_sim.h"\n#include <cstdio>\n__global__ void k() {}\n'
        'int main() {\n  k<<<1, 1>>>();\n  std::printf("%s: %s", '
        "cudaGetErrorName(cudaGetLastError()), dsv4_sim_last_error());\n}\n"
    )
    run = nvcc("-cudart=none", *flags, source, LIBRARY, "-o", tmp_path / "program")
    assert run.returncode == 0, run.stderr
    printed = subprocess.run([tmp_path / "program"], capture_output=True, text=True).stdout
    assert printed.startswith("cudaErrorNoKernelImageForDevice: no PTX for NVIDIA H200")
    assert why in printed
