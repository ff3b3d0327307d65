# SPDX-License-Identifier: Apache-2.0
"""Prints the folder of the installed torch, without importing it; exits with 1 if it is too old."""

import importlib.util
import re
import sys
import sysconfig
from pathlib import Path

OLDEST = (2, 11)  # the stable ABI that libdsv4_torch is built for


def main() -> int:
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    # pip's build isolation takes site-packages off sys.path; sysconfig still knows the folder.
    folders += [str(Path(sysconfig.get_path(name), "torch")) for name in ("purelib", "platlib")]
    for folder in folders:
        version = Path(folder, "version.py")
        text = version.read_text() if version.is_file() else ""
        found = re.search(r"__version__ = '(\d+)\.(\d+)", text)
        if found and (int(found[1]), int(found[2])) >= OLDEST:
            sys.stdout.write(folder + "\n")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
