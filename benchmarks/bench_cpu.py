"""The CPU engine, one line a case, beside eager torch in the same run (`--help` for options)."""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from typing import NamedTuple

import torch
from common import (
    Banks,
    convert_e4m3_by_bits,
    copies_beyond_l2,
    fp32_peak,
    l2_bytes,
    measure,
    median,
    operator_calls,
    print_head,
    read_bandwidth,
    say,
    use_threads,
    write_csv,
)

from dsv4.demo import TOP_K, eager_decode
from dsv4.kv_cache import HEAD_DIM, WINDOW
from dsv4.step import SLOT_BYTES

HCA_SLOTS = 1024  # 512 pages of 2: a context of 131,072 tokens
TARGETS = {"packed": 4.0, "bf16": 2.0}  # times eager torch

METHOD = """\
us: median of single calls of torch.ops.dsv4.sparse_mla_decode.out in {seconds:g} s, which
alternate with eager torch. Cold in L2: calls rotate over copies of the problem whose KV takes
{cold:.0f} MB (8 x L2); a larger L3 may hold them. No sinks, no lse, no holes.
GB/s: bytes of the KV slots / time. GFLOP/s: 4 x 512 x slots x heads / time. %: of what torch
reaches here with as many threads: {bandwidth:.1f} GB/s (sum or copy of 1 GiB) and
{flops:.0f} GFLOP/s (fp32 matmul of 3072^3).
eager: the same step in torch with as many threads (dsv4.demo.eager_decode: gather the slots,
dequantise only those, matmul, softmax, matmul), with fp32 or bf16 matmul, whichever is faster.
int: the same, but e4m3 converted by integer operations: torch does not vectorise its own cast."""

_HEAD = (
    f"{'layer':5} {'KV':6} {'B':>3} {'heads':>5} {'slots':>9} {'us':>9} {'GB/s':>5} {'%':>4} "
    f"{'GFLOP/s':>7} {'%':>4} {'eager us':>9} {'matmul':6} {'ratio':>6} {'int us':>9} {'ratio':>6}"
)


class Case(NamedTuple):
    layer: str
    format: str
    batch: int
    heads: int
    width: int  # of the compressed segment


def cases(quick: bool) -> list[Case]:
    result = []
    for format in ("packed", "bf16", "e4m3"):
        for batch in (1, 8):
            for heads in (64,) if quick else (8, 16, 32, 64, 128):
                result.append(Case("CSA", format, batch, heads, TOP_K))
            result.append(Case("HCA", format, batch, 64, HCA_SLOTS))
    return result


def run(case: Case, banks: Banks, seconds: float) -> dict[str, object]:
    slots = WINDOW + case.width
    copies = copies_beyond_l2(case.format, case.batch, slots)
    steps = banks.steps(case.layer, case.format, case.batch, case.heads, case.width, copies)
    calls = operator_calls(steps)
    variants = {
        "dsv4": calls,
        "fp32": [partial(eager_decode, step) for step in steps],
        "bf16": [partial(eager_decode, step, torch.bfloat16) for step in steps],
    }
    if case.format != "bf16":
        by_bits = convert_e4m3_by_bits
        variants["int fp32"] = [
            partial(eager_decode, step, torch.float32, by_bits) for step in steps
        ]
        variants["int bf16"] = [
            partial(eager_decode, step, torch.bfloat16, by_bits) for step in steps
        ]
    _compare(calls[0], variants["fp32"][0], case)

    us = {name: median(times) * 1e6 for name, times in measure(variants, seconds).items()}
    matmul = min(("fp32", "bf16"), key=us.__getitem__)
    by_bits_us = min((us[name] for name in us if name.startswith("int")), default=math.nan)
    num_slots = case.batch * slots
    return {
        **case._asdict(),
        "window": WINDOW,
        "us": us["dsv4"],
        "gb_per_s": num_slots * SLOT_BYTES[case.format] / us["dsv4"] / 1e3,
        "gflop_per_s": 4 * HEAD_DIM * num_slots * case.heads / us["dsv4"] / 1e3,
        "eager_us": us[matmul],
        "eager_matmul": matmul,
        "ratio": us[matmul] / us["dsv4"],
        "eager_int_us": by_bits_us,
        "ratio_int": by_bits_us / us["dsv4"],
    }


def _compare(ours, eager, case: Case) -> None:
    """A time of a wrong result means nothing."""
    ours()
    got, wanted = ours.keywords["out"].float(), eager().float()
    if not bool(((got - wanted).abs() <= 0.02 * wanted.abs().max()).all()):
        raise SystemExit(f"{case}: dsv4 and eager torch disagree")


def line(row: dict[str, object], bandwidth: float, flops: float) -> str:
    text = (
        f"{row['layer']:5} {row['format']:6} {row['batch']:3} {row['heads']:5} "
        f"{row['window']}+{row['width']:<5} {row['us']:9.1f} "
        f"{row['gb_per_s']:5.1f} {100e9 * row['gb_per_s'] / bandwidth:3.0f}% "
        f"{row['gflop_per_s']:7.1f} {100e9 * row['gflop_per_s'] / flops:3.0f}% "
        f"{row['eager_us']:9.1f} {row['eager_matmul']:6} {row['ratio']:5.2f}x"
    )
    if not math.isnan(row["ratio_int"]):
        text += f" {row['eager_int_us']:9.1f} {row['ratio_int']:5.2f}x"
    return text


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="of dsv4 and torch (OMP_NUM_THREADS, or all)")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each variant of a case")
    parser.add_argument("--quick", action="store_true", help="64 heads only")
    parser.add_argument("--csv", metavar="FILE", help="write the lines there too")
    options = parser.parse_args(argv)

    use_threads(options.threads)
    torch.manual_seed(0)
    bandwidth, flops = read_bandwidth(), fp32_peak()
    print_head(
        "CPU engine against eager torch",
        METHOD.format(
            seconds=options.seconds,
            cold=8 * l2_bytes() / 1e6,
            bandwidth=bandwidth / 1e9,
            flops=flops / 1e9,
        ),
    )
    # Enough slots that the copies of a problem share few of them.
    banks = Banks(8 * l2_bytes() // SLOT_BYTES["packed"])
    say(_HEAD)
    rows = []
    for case in cases(options.quick):
        rows.append(run(case, banks, options.seconds))
        say(line(rows[-1], bandwidth, flops))
    for format, target in TARGETS.items():
        ratios = [row["ratio"] for row in rows if row["format"] == format and row["heads"] == 64]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        say(
            f"{format}, 64 heads: {mean:.2f}x eager (geometric mean), "
            f"{min(ratios):.2f}x at least; target {target:g}x"
        )
    if options.csv:
        write_csv(options.csv, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
