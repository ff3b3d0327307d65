# SPDX-License-Identifier: Apache-2.0
"""Runs nvcc, and writes what ptxas -v says of each kernel into a file beside the object file.

usage: log_ptxas.py <nvcc> <argument>... -o <object>

Builds would print pages of registers and stack frames otherwise. Warnings and errors pass through.
"""

import re
import subprocess
import sys
from pathlib import Path

FACT = re.compile(r"ptxas info|    \d+ bytes stack frame")

command = sys.argv[1:]
run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
lines = run.stderr.splitlines(keepends=True)
sys.stderr.write("".join(line for line in lines if not FACT.match(line)))
facts = "".join(line for line in lines if FACT.match(line))
if facts:
    Path(command[command.index("-o") + 1]).with_suffix(".ptxas").write_text(facts)
sys.exit(run.returncode)
