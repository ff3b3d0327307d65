"""What `import dsv4` adds to `import torch`, and the first call after it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from common import median, print_head, say

PROBE = """
import json, time
start = time.perf_counter()
import torch
after_torch = time.perf_counter()
import dsv4
after_dsv4 = time.perf_counter()
dsv4.trtllm_batch_decode_sparse_mla_dsv4, dsv4.workspace_size(1, 1, 1)
end = time.perf_counter()
print(json.dumps([after_torch - start, after_dsv4 - after_torch, end - after_dsv4]))
"""
METHOD = "Medians over {processes} fresh processes, after one that warms the file cache."


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=11)
    processes = parser.parse_args(argv).processes

    print_head("Import", METHOD.format(processes=processes))
    runs = [
        json.loads(subprocess.check_output([sys.executable, "-c", PROBE]))
        for _ in range(processes + 1)
    ]
    for name, times in zip(
        ("import torch", "import dsv4, after torch", "front door and first call, after that"),
        zip(*runs[1:], strict=True),
        strict=True,
    ):
        say(f"{name:38} {median(times) * 1e3:8.1f} ms   ({min(times) * 1e3:.1f} at best)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
