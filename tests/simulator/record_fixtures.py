"""Records what a GPU makes of the cases of differential.py.

python tests/simulator/record_fixtures.py prepare FOLDER          # where nvcc is
FOLDER/replay FOLDER RESULTS                                      # where the GPU is
python tests/simulator/record_fixtures.py collect RESULTS         # writes fixtures/
"""

from __future__ import annotations

import datetime
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import simulator
from simulator.differential import FIXTURES, TARGET, Buffer, Case, Map, all_cases, describe_map


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True)


def _argument(argument: Buffer | int | bytes) -> tuple[str, bytes]:
    """A line for launches.txt, and the bytes that go with it."""
    if isinstance(argument, Buffer):
        content = argument.content.tobytes()
        kind = "map" if isinstance(argument, Map) else "buffer"
        numbers = describe_map(argument) if isinstance(argument, Map) else []
        line = " ".join(map(str, [kind, int(argument.kept), len(content), *numbers]))
        return line, content
    content = struct.pack("<I", argument) if isinstance(argument, int) else argument
    return f"bytes {len(content)}", content


def prepare(folder: Path) -> None:
    """Compiles the kernels and the host program, and writes the launches."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = simulator.nvcc()
    host = Path(__file__).parent / "kernels" / "replay.cpp"
    _run(compiler, "-std=c++17", "-O1", "-cudart=static", host, "-o", folder / "replay")
    cases = all_cases()
    modules = {}
    for source in dict.fromkeys(case.source for case in cases):
        modules[source] = f"module_{len(modules)}.cubin"
        ptx = (folder / modules[source]).with_suffix(".ptx")
        ptx.write_text(simulator.compile_ptx(source, TARGET))
        _run(compiler, f"-arch=sm_{TARGET}", "-cubin", ptx, "-o", folder / modules[source])
    with open(folder / "launches.txt", "w") as lines, open(folder / "inputs.bin", "wb") as inputs:
        for case in cases:
            numbers = [case.grid, case.block, case.cluster, case.shared, len(case.arguments)]
            print(modules[case.source], case.kernel, *numbers, file=lines)
            for argument in case.arguments:
                line, content = _argument(argument)
                print(line, file=lines)
                inputs.write(content)


def collect(results: Path) -> None:
    cases: list[Case] = all_cases()
    gpu, driver, cuda = (results / "facts.txt").read_text().splitlines()
    raw, outputs, failed, at = (results / "outputs.bin").read_bytes(), {}, [], 0
    while at < len(raw):
        number, size = struct.unpack_from("<qq", raw, at)
        at += 16
        name = cases[number].name
        if size < 0:
            failed.append(name)
            continue
        outputs[name] = np.frombuffer(raw, np.uint8, size, at)
        at += size
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "gpu": gpu,
        "driver": (results / "driver.txt").read_text().strip(),
        "driver_supports_cuda": _version(driver),
        "cuda": _version(cuda),
        "digests": {case.name: case.digest for case in cases if case.name in outputs},
    }
    FIXTURES.parent.mkdir(exist_ok=True)
    np.savez_compressed(FIXTURES, facts=np.array(json.dumps(facts)), **outputs)
    sys.stdout.write(f"{len(outputs)} cases, {FIXTURES.stat().st_size} bytes\n")
    if failed:
        sys.exit(f"failed on the GPU: {', '.join(failed)}")


def _version(number: str) -> str:
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


if __name__ == "__main__":
    {"prepare": prepare, "collect": collect}[sys.argv[1]](Path(sys.argv[2]))
