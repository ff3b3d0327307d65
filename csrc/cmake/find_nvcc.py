# SPDX-License-Identifier: Apache-2.0
"""Prints the path of a CUDA compiler, or exits with 1 and says why there is none.

Looks at CUDACXX, CUDA_HOME, the nvidia/cu13 wheels of this interpreter, PATH and the usual toolkit
folder, in this order. A compiler too old for the GPU targets of this project is passed over:
distributions package such ones.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

OLDEST = (12, 9)  # the first that knows the targets sm_100f and sm_120f


def candidates() -> Iterator[str]:
    if os.environ.get("CUDACXX"):
        yield os.environ["CUDACXX"]
    if os.environ.get("CUDA_HOME"):
        yield os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
    # pip's build isolation takes site-packages off sys.path; sysconfig still knows the folder.
    for folder in [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]:
        yield os.path.join(folder, "nvidia", "cu13", "bin", "nvcc")
    yield shutil.which("nvcc") or ""
    yield "/usr/local/cuda/bin/nvcc"


def version(nvcc: str) -> tuple[int, int] | None:
    try:
        run = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"release (\d+)\.(\d+)", run.stdout)
    return (int(found[1]), int(found[2])) if found else None


def main() -> int:
    too_old = []
    for candidate in dict.fromkeys(candidates()):
        path = shutil.which(candidate)
        if path is None:
            continue
        found = version(path)
        if found is not None and found >= OLDEST:
            sys.stdout.write(str(Path(path).absolute()) + "\n")
            return 0
        if found is not None:
            too_old.append(f"{path} is CUDA {found[0]}.{found[1]}")
    passed_over = f" ({'; '.join(too_old)})" if too_old else ""
    sys.stderr.write(f"no nvcc of CUDA {OLDEST[0]}.{OLDEST[1]} or newer{passed_over}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
