"""The GPU engine, one line a case, beside a peer in the same run if there is one.

A peer is the package flash_mla, if it can be imported, or a module named by --peer that has

    prepare(query, window_cache, window_slots, window_lens, extra_cache, extra_slots, extra_lens,
            *, softmax_scale, like=None) -> run

    query           [batch, 1, heads, 512] bf16
    caches          packed, [pages, page_size, 584] uint8, pages at stride(0)
    slots, lens     [batch, width] int32, page * page_size + offset; [batch] int32
    extra_...       None where the case has a window only
    like            what prepare returned for the first problem of the case, or None. Query and lens
                    are the same tensors there: what comes of them may be shared
    run(stream)     launches the decode on that CUDA stream, an integer, and returns out and lse,
                    [batch, 1, heads, 512] bf16 and [batch, 1, heads]. Everything that an engine
                    does once a step or less belongs into prepare. It is called outside of a graph
                    first, then captured

and, if it likes, NAME. Padding of the heads belongs into prepare, too.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from common import print_head, say, write_csv
from gpu import describe, l2_bytes, measure_calls, tiny_kernel
from torch import Tensor

import dsv4
from dsv4 import reference
from dsv4.bench import (
    CONFIGS,
    Call,
    Pools,
    clocks,
    make_steps,
    num_copies,
    operator_call,
    random_cache,
    with_one_table,
)
from dsv4.kv_cache import HEAD_DIM, NOPE_DIM, QUANT_GROUP, WINDOW, append_kv_cache, empty_kv_cache
from dsv4.step import (
    CSA_PAGE,
    FORMATS,
    KV_SCALE,
    SLOT_BYTES,
    Segment,
    Step,
    raw_rows,
    reference_inputs,
    workspace,
)

COLD = 3  # times L2
FEWEST_CALLS = 16  # in a graph, so that its begin and end do not count
MOST_APPENDS = 64
POOL_SLOTS = {"cuda": 1 << 22, "cpu": 1 << 16}  # gigabytes, as far apart as those of an engine
SECONDS = 0.25  # for the replays of a case, of all its variants
CHECKED_ROWS = 2
APPENDED = (1, 16, 64, 4096, 65536)

METHOD = """\
{device}
us: a CUDA graph holds the calls of a case, {fewest} or more; median of up to 20 replays, which
alternate with those of what stands beside it, over the number of calls.
{between}
A kernel that does nothing takes {floor:.2f} us in such a graph.
{rest}"""
METHOD_DECODE = """\
Cold KV: the calls' slots, of the same pools, together take {cold:.0f} MB or more ({times} x L2).
Query, lengths and output are the same for all calls, warm as behind a projection. No sinks, lse,
or holes.
GB/s: bytes of the KV slots / time. floor: the time to gather them at {bandwidth:g} TB/s / time.
TFLOP/s: 4 x 512 x slots x heads / time. error: largest |out - float64| / largest |float64| of
{rows} rows, before timing and after the last replay; a line says WRONG, and nothing is timed,
where dsv4.reference's tolerance is broken.
A: window of 128 slots (2 pages of 64). B, C: and 512, 1024 slots anywhere (pages of 64). D: and
1024 consecutive slots (pages of 2). E, F: and 8192 slots in random pages of 2, of 128.
{lengths}{rows_of_request}{persistent}Peer: {peer}. ratio: its time / dsv4's."""
METHOD_APPEND = """\
GB/s: bytes of the rows, of their slots and of the slot numbers / time. copy: torch copies as many
bytes, half of them read and half written; of copy: its time / dsv4's. Slots are anywhere in pages
of 64. Both rotate over {most} sets of buffers, or as few as take {cold:.0f} MB (L2 x {times}).
The first 16 rows must equal the CPU engine's bytes, else nothing is timed."""

BESIDE = "own", "apart", "stay"  # variants whose times are given as ratios

BETWEEN = {
    False: "A call may begin while the one before it ends, if it allows that (--separate).",
    True: "A kernel that does nothing parts the calls; its time is taken off.",
}


METHOD_ROWS = """\
A request has {q_len} rows with their own windows and the same compressed slots, which count once in
GB/s and floor. us: with a table a request. own: the time with tables of pages a row, which say the
same / us. apart: the time of as many requests of one row / us.
"""
METHOD_LENGTHS = """\
Compressed lengths are drawn from 0 to the width, so about half as many slots are read.
"""
METHOD_PERSISTENT = """\
stay: the time with persistent=True, when blocks go from row to row / that without.
"""


class Case(NamedTuple):
    config: str
    format: str
    heads: int
    batch: int


class Peer(NamedTuple):
    name: str
    prepare: Callable[..., Callable[[int], tuple[Tensor, Tensor]]]


# --- peers


def load_peer(name: str | None) -> Peer | None:
    if name == "none":
        return None
    if name is not None:
        module = importlib.import_module(name)
        return Peer(getattr(module, "NAME", name), module.prepare)
    try:
        return Peer("flash_mla", partial(_FlashMla, importlib.import_module("flash_mla")))
    except ImportError:
        return None


class _FlashMla:
    """`run` for the package flash_mla, which makes its metadata at the first call."""

    def __init__(
        self,
        flash_mla: Any,
        query: Tensor,
        window_cache: Tensor,
        window_slots: Tensor,
        window_lens: Tensor,
        extra_cache: Tensor | None,
        extra_slots: Tensor | None,
        extra_lens: Tensor | None,
        *,
        softmax_scale: float,
        like: _FlashMla | None = None,
    ):
        self.heads = query.shape[2]
        if like is None:
            missing = (64 if self.heads <= 64 else 128) - self.heads
            self.query = torch.nn.functional.pad(query, (0, 0, 0, missing))
            self.metadata, _ = flash_mla.get_mla_metadata()
        else:
            self.query, self.metadata = like.query, like.metadata
        self.decode = partial(
            flash_mla.flash_mla_with_kvcache,
            self.query,
            window_cache.unsqueeze(2),
            None,
            None,
            HEAD_DIM,
            self.metadata,
            softmax_scale=softmax_scale,
            is_fp8_kvcache=True,
            indices=window_slots[:, None],
            topk_length=window_lens,
        )
        if extra_cache is not None and extra_slots is not None:
            self.decode = partial(
                self.decode,
                extra_k_cache=extra_cache.unsqueeze(2),
                extra_indices_in_kvcache=extra_slots[:, None],
                extra_topk_length=extra_lens,
            )

    def __call__(self, stream: int) -> tuple[Tensor, Tensor]:
        out, lse = self.decode()  # torch's current stream is that stream
        return out[:, :, : self.heads], lse.transpose(1, 2)[:, :, : self.heads]


def peer_calls(peer: Peer, steps: Sequence[Step]) -> list[Call]:
    runs: list[Any] = []
    query = steps[0].query.flatten(0, -3)[:, None]  # each row as a request of its own
    for step in steps:
        first, second = step.window, step.compressed
        extra = (None,) * 3 if second is None else (second.cache, second.table, second.lens)
        runs.append(
            peer.prepare(
                query,
                first.cache,
                first.table,
                first.lens,
                *extra,
                softmax_scale=step.bmm1_scale,
                like=runs[0] if runs else None,
            )
        )
    return [partial(_run_here, run) for run in runs]


def _run_here(run: Callable[[int], tuple[Tensor, Tensor]]) -> Tensor:
    stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
    return run(stream)[0]


# --- decode


class Verdict(NamedTuple):
    error: float  # largest |out - float64| over largest |float64|
    ok: bool  # within dsv4.reference's tolerance


def check(out: Tensor, step: Step) -> Verdict:
    """A time of a wrong result means nothing: some rows against float64."""
    out = out.flatten(0, -3)
    num_rows = len(out)
    rows = torch.linspace(0, num_rows - 1, min(num_rows, CHECKED_ROWS)).long().to(out.device)

    def some(segment: Segment) -> Segment:
        return segment._replace(table=segment.table[rows], lens=segment.lens[rows])

    few = step._replace(
        query=step.query.flatten(0, -3)[rows],
        window=some(step.window),
        compressed=None if step.compressed is None else some(step.compressed),
    )
    inputs = reference_inputs(few)
    scales = {"scale1": step.bmm1_scale, "scale2": step.bmm2_scale}
    out64, _ = reference.decode(*inputs, **scales)
    out_bf16, _ = reference.decode_rounded(*inputs, **scales)
    error = (out[rows].reshape(out64.shape).double() - out64).abs()
    ok = bool((error <= reference.tolerance(out64, out_bf16)[..., None]).all())
    return Verdict(float(error.max() / out64.abs().max()), ok)


def why_not(case: Case, device: torch.device) -> str:
    return dsv4.supports(
        case.heads,
        query_dtype=torch.float8_e4m3fn if case.format == "e4m3" else torch.bfloat16,
        kv_format=case.format,
        page_table=CONFIGS[case.config].by_page(case.format),
        device=device,
    ).reason


def run_decode(
    case: Case, pools: Pools, peer: Peer | None, options: argparse.Namespace
) -> dict[str, object]:
    config = CONFIGS[case.config]
    cold_bytes = 0 if options.check_only else COLD * l2_bytes(pools.device)
    q_len = options.q_len
    drawn = options.lengths == "drawn"
    copies = num_copies(config, case.format, case.batch, cold_bytes * (1 + drawn), q_len)
    steps = make_steps(config, case.heads, case.batch, copies, pools, q_len, drawn)
    out = torch.empty(steps[0].query.shape, dtype=torch.bfloat16, device=pools.device)

    def calls_of(steps: Sequence[Step], persistent: bool = False) -> list[Call]:
        scratch = workspace(steps[0]) if options.workspace == "best" else None
        result = out.view(steps[0].query.shape)
        return [operator_call(step, result, scratch, persistent) for step in steps]

    shared = [with_one_table(step) for step in steps]
    variants = {"dsv4": calls_of(shared)}
    if q_len > 1:
        if config.by_page(case.format):
            variants["own"] = calls_of(steps)
        query = steps[0].query.flatten(0, 1)[:, None]
        variants["apart"] = calls_of([step._replace(query=query) for step in steps])
    if options.persistent:
        variants["stay"] = calls_of(shared, persistent=True)

    verdicts = []
    for calls in variants.values():
        out.fill_(math.nan)
        calls[0]()
        verdicts.append(check(out, steps[0]))
    peer_verdict = Verdict(math.nan, False)
    if peer is not None and case.format == "packed":
        try:
            calls = peer_calls(peer, steps)
            peer_verdict = check(calls[0](), steps[0])
        except Exception as error:  # whatever it is, dsv4's own numbers are wanted
            say(f"{peer.name} refuses: {error}")
        if peer_verdict.ok:
            variants["peer"] = calls

    us = dict.fromkeys(("dsv4", *BESIDE, "peer"), math.nan)
    if all(verdict.ok for verdict in verdicts) and not options.check_only:
        rounds = -(-FEWEST_CALLS // copies)
        rotating = {name: calls * rounds for name, calls in variants.items()}
        between = tiny_kernel(pools.device) if options.separate else None
        seconds = measure_calls(rotating, pools.device, SECONDS, between)
        us |= {name: value * 1e6 for name, value in seconds.items()}
        if pools.device.type == "cuda":  # of the last call in the graph
            verdicts.append(check(out, steps[-1]))

    window, compressed = steps[0].window, steps[0].compressed
    lens = window.lens.new_zeros(1) if compressed is None else compressed.lens
    slots = int(window.lens.sum() + lens.sum())
    num_bytes = int(window.lens.sum() + lens[::q_len].sum()) * SLOT_BYTES[case.format]
    return {
        **case._asdict(),
        "slots": f"{WINDOW}+{config.width}",
        "copies": copies,
        "us": us["dsv4"],
        "gb_per_s": num_bytes / us["dsv4"] / 1e3,
        "floor_share": num_bytes / options.gather_bandwidth / 1e6 / us["dsv4"],
        "tflop_per_s": 4 * HEAD_DIM * slots * case.heads / us["dsv4"] / 1e6,
        "error": max(verdict.error for verdict in verdicts),
        "ok": all(verdict.ok for verdict in verdicts),
        **{name: us[name] / us["dsv4"] for name in BESIDE},
        "peer_us": us["peer"],
        "ratio": us["peer"] / us["dsv4"],
        "peer_error": peer_verdict.error,
        "peer_ok": peer_verdict.ok,
    }


DECODE_HEAD = (
    f"{'':1} {'KV':6} {'heads':>5} {'B':>4} {'slots':>8} {'us':>9} {'GB/s':>5} {'floor':>5} "
    f"{'TFLOP/s':>7} {'error':>7} {'own':>6} {'apart':>6} {'stay':>6} {'peer us':>9} {'ratio':>6}"
)


def decode_line(row: dict[str, object]) -> str:
    text = f"{row['config']} {row['format']:6} {row['heads']:5} {row['batch']:4} {row['slots']:>8} "
    if math.isnan(row["us"]):
        text += f"{'':28} "
    else:
        text += (
            f"{row['us']:9.2f} {row['gb_per_s']:5.0f} {100 * row['floor_share']:4.0f}% "
            f"{row['tflop_per_s']:7.1f} "
        )
    text += f"{row['error']:7.1e}"
    for name in BESIDE:
        text += " " * 7 if math.isnan(row[name]) else f" {row[name]:5.2f}x"
    if not math.isnan(row["ratio"]):
        text += f" {row['peer_us']:9.2f} {row['ratio']:5.2f}x"
    if not row["ok"]:
        text += " WRONG"
    if not math.isnan(row["peer_error"]) and not row["peer_ok"]:
        text += f" PEER WRONG ({row['peer_error']:.1e})"
    return text.rstrip()


def print_sums(rows: Sequence[dict[str, object]]) -> None:
    for config in dict.fromkeys(row["config"] for row in rows):
        ratios = [
            row["ratio"] for row in rows if row["config"] == config and not math.isnan(row["ratio"])
        ]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            say(f"{config}: {mean:.2f}x the peer (geometric mean), {min(ratios):.2f}x at least")


# --- append


def run_append(
    format: str, tokens: int, cache: Tensor, options: argparse.Namespace
) -> dict[str, object]:
    device = cache.device
    num_bytes = tokens * (2 * HEAD_DIM + SLOT_BYTES[format] + 8)
    cold_bytes = 0 if options.check_only else COLD * l2_bytes(device)
    copies = max(2, min(MOST_APPENDS, -(-cold_bytes // num_bytes)))
    num_slots = cache.shape[0] * cache.shape[1]
    slots = [torch.randperm(num_slots, device=device)[:tokens] for _ in range(copies)]
    scale = KV_SCALE if format == "e4m3" else 1.0
    kv = torch.randn(copies, tokens, HEAD_DIM, dtype=torch.bfloat16, device=device)
    appends = [
        partial(append_kv_cache, rows, cache, where, scale=scale)
        for rows, where in zip(kv, slots, strict=True)
    ]
    source = torch.zeros(copies, num_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = [partial(to.copy_, of) for to, of in zip(target, source, strict=True)]

    appends[0]()
    few = min(tokens, 16)
    wanted = empty_kv_cache(1, few, format=format)
    append_kv_cache(kv[0, :few].cpu(), wanted, torch.arange(few), scale=scale)
    ok = torch.equal(_slot_bytes(cache, slots[0][:few]), _slot_bytes(wanted, torch.arange(few)))

    us = dict.fromkeys(("dsv4", "copy"), math.nan)
    if ok and not options.check_only:
        rounds = -(-FEWEST_CALLS // copies)
        variants = {"dsv4": appends * rounds, "copy": copied * rounds}
        between = tiny_kernel(device) if options.separate else None
        seconds = measure_calls(variants, device, SECONDS, between)
        us = {name: value * 1e6 for name, value in seconds.items()}
    return {
        "format": format,
        "tokens": tokens,
        "us": us["dsv4"],
        "gb_per_s": num_bytes / us["dsv4"] / 1e3,
        "copy_us": us["copy"],
        "copy_gb_per_s": num_bytes / us["copy"] / 1e3,
        "copy_share": us["copy"] / us["dsv4"],
        "ok": ok,
    }


def _slot_bytes(cache: Tensor, slots: Tensor) -> Tensor:
    """[slots, bytes] on the CPU, without the byte that pads a slot's scales."""
    data, scales = raw_rows(cache, slots)
    parts = [data.view(torch.uint8)]
    if scales is not None:
        parts.append(scales[:, : NOPE_DIM // QUANT_GROUP])
    return torch.cat(parts, 1).cpu()


APPEND_HEAD = (
    f"{'KV':6} {'tokens':>6} {'us':>8} {'GB/s':>5} {'copy us':>8} {'GB/s':>5} {'of copy':>7}"
)


def append_line(row: dict[str, object]) -> str:
    text = f"{row['format']:6} {row['tokens']:6}"
    if not row["ok"]:
        return text + " WRONG"
    if math.isnan(row["us"]):
        return text + " ok"
    return (
        f"{text} {row['us']:8.2f} {row['gb_per_s']:5.0f} {row['copy_us']:8.2f} "
        f"{row['copy_gb_per_s']:5.0f} {100 * row['copy_share']:6.0f}%"
    )


# --- the program


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    start = time.monotonic()
    torch.manual_seed(0)
    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("torch sees no GPU; --device cpu is a dry run")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    peer = None if options.append else load_peer(options.peer)
    _print_rules(options, device, peer)

    rows = []
    if options.append:
        say(APPEND_HEAD)
        for format in options.formats:
            cache = random_cache(format, POOL_SLOTS[device.type] // CSA_PAGE, CSA_PAGE, device)
            for tokens in APPENDED:
                rows.append(run_append(format, tokens, cache, options))
                say(append_line(rows[-1]))
    else:
        say(DECODE_HEAD)
        for format in options.formats:
            pools = Pools(format, POOL_SLOTS[device.type], device)
            for config, heads, batch in product(options.configs, options.heads, options.batches):
                case = Case(config, format, heads, batch)
                if reason := why_not(case, device):
                    say(f"{config} {format:6} {heads:5} {batch:4} not supported: {reason}")
                    continue
                rows.append(run_decode(case, pools, peer, options))
                say(decode_line(rows[-1]))
        print_sums(rows)
    if options.csv and rows:
        write_csv(options.csv, rows)
    num_wrong = sum(not row["ok"] for row in rows)
    say(
        f"{len(rows)} cases in {time.monotonic() - start:.0f} s, {num_wrong} wrong"
        + (f"; at the end: {clocks(device)}" if device.type == "cuda" else "")
    )
    return 1 if num_wrong else 0


def _print_rules(options: argparse.Namespace, device: torch.device, peer: Peer | None) -> None:
    tiny = tiny_kernel(device)
    floor = measure_calls({"tiny": [tiny] * 1000}, device, 0.01)["tiny"]
    cold_mb = COLD * l2_bytes(device) / 1e6
    if options.append:
        rest = METHOD_APPEND.format(most=MOST_APPENDS, cold=cold_mb, times=COLD)
    else:
        rest = METHOD_DECODE.format(
            cold=cold_mb,
            times=COLD,
            bandwidth=options.gather_bandwidth,
            rows=CHECKED_ROWS,
            lengths=METHOD_LENGTHS if options.lengths == "drawn" else "",
            rows_of_request=METHOD_ROWS.format(q_len=options.q_len) if options.q_len > 1 else "",
            persistent=METHOD_PERSISTENT if options.persistent else "",
            peer="none" if peer is None else peer.name,
        )
    print_head(
        "GPU engine",
        METHOD.format(
            device=describe(device),
            fewest=FEWEST_CALLS,
            between=BETWEEN[options.separate],
            floor=floor * 1e6,
            rest=rest,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    def names(known: Sequence[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            parts = text.split(",")
            if not set(parts) <= set(known):
                raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {text}")
            return parts

        return parse

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--configs", type=names(list(CONFIGS)), default=["A", "B", "C", "D"], metavar="A,B,...",
        help="of A to F, which the heading explains (A,B,C,D)",
    )  # fmt: skip
    parser.add_argument(
        "--heads",
        type=numbers,
        default=[8, 16, 32, 64, 128],
        metavar="N,...",
        help="(8 to 128)",
    )
    parser.add_argument(
        "--batches", type=numbers, default=[1, 2, 4, 16, 32, 64, 128, 256], metavar="N,..."
    )
    parser.add_argument(
        "--q-len", type=int, default=1, metavar="N", help="query rows a request (%(default)s)"
    )
    parser.add_argument(
        "--lengths", choices=["full", "drawn"], default="full",
        help="of the compressed segment: its width, or drawn from 0 to it (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--workspace", choices=["best", "none"], default="best",
        help="none: no row can be cut (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--persistent", action="store_true", help="beside it, blocks that go from row to row"
    )
    parser.add_argument(
        "--format", type=names(FORMATS), dest="formats", default=["packed"], metavar="NAME,...",
        help=f"of {', '.join(FORMATS)} (packed)",
    )  # fmt: skip
    parser.add_argument("--append", action="store_true", help="append_kv_cache instead of decodes")
    parser.add_argument(
        "--gather-bandwidth", type=float, default=3.4, metavar="TB/s",
        help="at which this GPU gathers slots (%(default)s, of an H200)",
    )  # fmt: skip
    parser.add_argument(
        "--peer", metavar="MODULE", help="with prepare(), or none (flash_mla if it is installed)"
    )
    parser.add_argument(
        "--separate",
        action="store_true",
        help="part the calls by a kernel that does nothing",
    )
    parser.add_argument("--check-only", action="store_true", help="measure nothing")
    parser.add_argument("--device", default="cuda", help="cpu: a dry run (%(default)s)")
    parser.add_argument("--csv", metavar="FILE", help="write the lines there too")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
