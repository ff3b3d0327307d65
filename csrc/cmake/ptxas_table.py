# SPDX-License-Identifier: Apache-2.0
"""Prints what ptxas said of each kernel of a build; exits with 1 if one spills registers.

usage: ptxas_table.py <build folder>
"""

import re
import subprocess
import sys
from pathlib import Path

KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")

rows = []
for file in sorted(Path(sys.argv[1]).glob("CMakeFiles/**/*.ptxas")):
    for line in file.read_text().splitlines():
        if found := KERNEL.search(line):
            kernel, target = found.groups()
        elif found := SPILLS.search(line):
            stack, stores, loads = map(int, found.groups())
        elif found := REGISTERS.search(line):
            rows.append((kernel, target, int(found[1]), stack, stores + loads))

names = subprocess.run(
    ["c++filt"], input="\n".join(row[0] for row in rows), stdout=subprocess.PIPE, text=True
).stdout.splitlines()
lines = ["registers  stack  spilled  target    kernel"]
for name, (_, target, registers, stack, spilled) in zip(names, rows, strict=True):
    short = re.sub(r"\(anonymous namespace\)::|dsv4::|^void ", "", name).split("(")[0]
    lines.append(f"{registers:9}  {stack:5}  {spilled:7}  {target:8}  {short}")
sys.stdout.write("\n".join(lines) + "\n")
sys.exit(any(spilled for *_, spilled in rows))
