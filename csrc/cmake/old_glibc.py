# SPDX-License-Identifier: Apache-2.0
"""Makes a binary linked on a new system run on an old one (glibc 2.28 of 2018).

usage: old_glibc.py <compiler> <folder>

A linker binds a function to the newest version that the C library of the building machine has,
although most functions keep their older versions too: since glibc 2.34 pthread_create and dlopen,
for example, are bound to GLIBC_2.34 and need at least that. This writes small stand-ins of
libpthread.so.0, libdl.so.2, librt.so.1 and libm.so.6 into the folder that hold only the older
versions, and prints their paths. Linked before the C library, they decide the version; at run time
the system's own libraries are used. auditwheel tells whether that was enough.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NEWEST = (2, 28)


def versions_by_symbol(compiler: str, library: str) -> dict[str, dict[tuple[int, ...], bool]]:
    """{symbol: {version: whether a linker takes it}} of a library of this system."""
    path = run(compiler, f"-print-file-name={library}").strip()
    symbols: dict[str, dict[tuple[int, ...], bool]] = defaultdict(dict)
    for name, default, version in re.findall(
        r" [TWiBDV] (\w+)@(@?)GLIBC_([\d.]+)$", run("nm", "-D", path), re.MULTILINE
    ):
        symbols[name][tuple(map(int, version.split(".")))] = default == "@"
    return symbols


def library_of(symbol: str) -> str:
    """Where glibc 2.28 keeps a function of what is now libc.so.6; "" for libc itself."""
    if symbol.startswith(("pthread_", "sem_")):
        return "libpthread.so.0"
    if symbol.startswith("dl"):
        return "libdl.so.2"
    return "librt.so.1" if symbol.startswith("shm_") else ""


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(compiler: str, folder: Path) -> None:
    # {library: {version: symbols}}
    wanted: dict[str, dict[tuple[int, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for library in ("libc.so.6", "libm.so.6"):
        for symbol, versions in versions_by_symbol(compiler, library).items():
            home = library if library == "libm.so.6" else library_of(symbol)
            default = max((version for version, taken in versions.items() if taken), default=())
            old = max((version for version in versions if version <= NEWEST), default=())
            if home and old and default > NEWEST:
                wanted[home][old].append(symbol)

    folder.mkdir(parents=True, exist_ok=True)
    for library, versions in wanted.items():
        source, script = folder / f"{library}.c", folder / f"{library}.map"
        symbols = [symbol for names in versions.values() for symbol in names]
        source.write_text("".join(f"void {symbol}(void) {{}}\n" for symbol in symbols))
        script.write_text(
            "".join(
                f"GLIBC_{'.'.join(map(str, version))} {{ {'; '.join(names)}; }};\n"
                for version, names in sorted(versions.items())
            )
        )
        output = str(folder / library)
        options = ["-w", "-xc", "-shared", "-fPIC", "-nostdlib", "-fno-builtin"]
        naming = [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
        run(compiler, *options, *naming, "-o", output, str(source))
        sys.stdout.write(output + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
