"""`python -m dsv4 demo`: one DeepSeek-V4 attention layer's decode step, built, checked and timed.

    append tokens to paged caches -> decode in every input form -> compare with float64 -> time

Each decode is a `dsv4.step.Step`; `eager_decode` computes it the way plain torch would. The
benchmarks are built from the same pieces.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import dsv4

from . import reference
from .bench import median_seconds
from .kv_cache import (
    HEAD_DIM,
    NOPE_DIM,
    PACKED_TOKEN_BYTES,
    QUANT_GROUP,
    SCALE_EXPONENT_BIAS,
    WINDOW,
    append_kv_cache,
    unpack_kv_cache,
)
from .step import (
    CSA_PAGE,
    FORMATS,
    HCA_PAGE,
    KV_SCALE,
    QUERY_SCALE,
    SLOT_BYTES,
    SOFTMAX_SCALE,
    WINDOW_PAGE,
    Segment,
    Step,
    arguments,
    empty_pool,
    raw_rows,
    reference_inputs,
)

# DeepSeek-V4-Flash.
HEADS = 64
TOP_K = 512  # compressed entries that a CSA layer's indexer picks
WINDOW_RING_PAGES = 3  # the fewest in which the 128 newest tokens find room wherever a page begins

_KV_NAMES = {"packed": f"{PACKED_TOKEN_BYTES} B", "bf16": "bf16", "e4m3": "e4m3"}


class Layer(NamedTuple):
    """A kind of attention layer: what stands behind its window of the newest tokens."""

    name: str
    tokens_per_entry: int  # of the compressed segment; 0: there is none
    page_size: int  # of the compressed pool
    top_k: int | None  # entries picked by the indexer; None: all
    plain_form: str  # the input form of its 512-wide caches

    def entries(self, context: int) -> int:
        return context // self.tokens_per_entry if self.tokens_per_entry else 0


LAYERS = (
    Layer("SWA", 0, CSA_PAGE, None, "token-sparse"),
    Layer("CSA", 4, CSA_PAGE, TOP_K, "token-sparse"),
    Layer("HCA", 128, HCA_PAGE, None, "HCA"),
)


# --- the same step in plain torch


def cast_e4m3(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """torch's own conversion of e4m3 bytes."""
    return raw.view(torch.float8_e4m3fn).to(dtype)


def eager_decode(
    step: Step,
    matmul_dtype: torch.dtype = torch.float32,
    convert_e4m3: Callable[[Tensor, torch.dtype], Tensor] = cast_e4m3,
) -> Tensor:
    """The step as one writes it in torch: gather, dequantise, matmul, softmax, matmul."""
    rows, _, heads, _ = step.query.shape
    gathered = [(*segment.slots(), segment.cache) for segment in step.segments()]
    valid = torch.cat([mask for _, mask, _ in gathered], 1)
    keys = step.query.new_empty(rows, valid.shape[1], HEAD_DIM, dtype=matmul_dtype)
    begin = 0
    for slots, _, cache in gathered:
        part = keys[:, begin : begin + slots.shape[1]]
        begin += slots.shape[1]
        data, scales = raw_rows(cache, slots)
        if scales is None:
            is_e4m3 = data.dtype == torch.float8_e4m3fn
            part.copy_(convert_e4m3(data.view(torch.uint8), matmul_dtype) if is_e4m3 else data)
            continue
        groups = NOPE_DIM // QUANT_GROUP
        powers = torch.exp2(scales[..., :groups].float() - SCALE_EXPONENT_BIAS).to(matmul_dtype)
        nope = convert_e4m3(data[..., :NOPE_DIM], matmul_dtype).unflatten(-1, (groups, QUANT_GROUP))
        torch.mul(nope, powers[..., None], out=part[..., :NOPE_DIM].unflatten(-1, nope.shape[-2:]))
        part[..., NOPE_DIM:] = data[..., NOPE_DIM:].view(torch.bfloat16)

    query = step.query[:, 0].to(matmul_dtype)
    scores = torch.matmul(query, keys.transpose(1, 2)).float() * step.bmm1_scale
    scores.masked_fill_(~valid[:, None], -math.inf)
    if step.sinks is not None:  # one more score, whose key is zero
        scores = torch.cat([scores, step.sinks.expand(rows, heads)[..., None]], 2)
    weights = torch.softmax(scores, 2)[..., : valid.shape[1]].to(matmul_dtype)
    return (torch.matmul(weights, keys) * step.bmm2_scale).to(torch.bfloat16)[:, None]


# --- caches, filled as a serving engine fills them


class Pool:
    """One pool of slots in all three cache formats, in pages that requests own in no order."""

    def __init__(self, requests: int, pages_each: int, page_size: int, device: torch.device):
        num_pages = requests * pages_each + 1  # one that belongs to nobody
        self.page_size = page_size
        self.caches = {
            format: empty_pool(num_pages, page_size, format, device) for format in FORMATS
        }
        pages = torch.randperm(num_pages, device=device)[: requests * pages_each]
        self.pages = pages.view(requests, pages_each)
        self.newest: tuple[Tensor, Tensor] | None = None  # slots and latents, to be read back
        self.append_seconds = dict.fromkeys(FORMATS, 0.0)
        self.num_rows = 0

    def slots(self, positions: Tensor) -> Tensor:
        """[requests, n] positions -> slots. A request with too few pages uses them as a ring."""
        page = (positions // self.page_size) % self.pages.shape[1]
        return self.pages.gather(1, page) * self.page_size + positions % self.page_size

    def append(self, first: int, last: int, latents: Callable[..., Tensor]) -> None:
        """Appends the entries of positions [first, last) for every request."""
        device = self.pages.device
        # No slot twice in one call: a ring is written page by page.
        chunk = max(self.page_size, min(1 << 11, self.pages.shape[1] * self.page_size // 2))
        for begin in range(first, last, chunk):
            positions = torch.arange(begin, min(begin + chunk, last), device=device)
            slots = self.slots(positions.expand(len(self.pages), -1)).flatten()
            kv = latents(len(slots))
            for format, cache in self.caches.items():
                start = time.perf_counter()
                append_kv_cache(kv, cache, slots, scale=KV_SCALE if format == "e4m3" else 1.0)
                self.append_seconds[format] += time.perf_counter() - start
            self.num_rows += len(slots)
            self.newest = slots, kv

    def reads_back(self) -> bool:
        """True if the newest rows stand at their slots, within the rounding of each format."""
        if self.newest is None:
            return True
        return all(reads_back(cache, format, *self.newest) for format, cache in self.caches.items())


def reads_back(cache: Tensor, format: str, slots: Tensor, kv: Tensor) -> bool:
    """True if rows that were appended stand at their slots, within the rounding of the format."""
    wanted = kv.double()
    # Half a step of e4m3 is 2^-4 of a value, near zero 2^-10 of the scale. A packed scale is at
    # most amax / 224.
    half_step = wanted.abs() * 2.0**-4
    near_zero = wanted.abs().amax(1, keepdim=True) * 2.0**-17
    allowed = {
        "packed": half_step + near_zero,
        "bf16": torch.zeros_like(wanted),
        "e4m3": half_step + KV_SCALE * 2.0**-10,
    }
    rows, scales = raw_rows(cache, slots)
    if scales is None:
        got = rows.double() * (KV_SCALE if format == "e4m3" else 1.0)
    else:
        got = unpack_kv_cache(torch.cat([rows, scales], 1)[:, None])[:, 0].double()
    return bool(((got - wanted).abs() <= allowed[format]).all())


class Caches:
    """The pools of a batch of requests at one context length."""

    def __init__(self, requests: int, context: int, device: torch.device):
        self.context, self.device = context, device
        # Channels of latents differ in size, a few by a lot, as those of trained models do.
        gain = torch.exp(0.3 * torch.randn(HEAD_DIM, device=device))
        gain[torch.randperm(HEAD_DIM, device=device)[:4]] *= 4.0
        self.gain = gain / gain.square().mean().sqrt()
        self.window = Pool(requests, WINDOW_RING_PAGES, WINDOW_PAGE, device)
        ring = WINDOW_RING_PAGES * WINDOW_PAGE
        self.window.append(
            max(0, context - 2 * ring), context, self.latents
        )  # round the ring twice

    def latents(self, rows: int) -> Tensor:
        return (torch.randn(rows, HEAD_DIM, device=self.device) * self.gain).to(torch.bfloat16)

    def compressed(self, layer: Layer) -> Pool | None:
        entries = layer.entries(self.context)
        if entries == 0:
            return None
        pages_each = -(-entries // layer.page_size)
        pool = Pool(len(self.window.pages), pages_each, layer.page_size, self.device)
        pool.append(0, entries, self.latents)
        return pool

    def step(self, layer: Layer, pool: Pool | None, form: str, format: str, heads: int) -> Step:
        """One decode of a layer; forms that share a format see the same slots."""
        requests, device = len(self.window.pages), self.device
        generator = torch.Generator(device).manual_seed(self.context + heads)

        def counts(n: int) -> Tensor:
            return torch.full((requests,), n, dtype=torch.int32, device=device)

        newest = torch.arange(max(0, self.context - WINDOW), self.context, device=device)
        table = counts(-1)[:, None].repeat(1, WINDOW)
        table[:, : len(newest)] = self.window.slots(newest.expand(requests, -1))
        window = Segment(self.window.caches[format], table, counts(len(newest)))

        compressed = None
        if pool is not None:
            entries = layer.entries(self.context)
            if layer.top_k is not None:
                # What the indexer would return: distinct entries in no order.
                noise = torch.rand(requests, entries, device=device, generator=generator)
                chosen = noise.topk(min(layer.top_k, entries), sorted=False).indices
            else:
                chosen = torch.arange(entries, device=device).expand(requests, -1)
            is_page_table = form == "HCA"
            table = pool.pages if is_page_table else pool.slots(chosen)
            compressed = Segment(
                pool.caches[format], table.int(), counts(chosen.shape[1]), is_page_table
            )

        query = 2.0 * torch.randn(requests, 1, heads, HEAD_DIM, device=device, generator=generator)
        scales = 1.0
        if format == "e4m3":
            query, scales = (query / QUERY_SCALE).to(torch.float8_e4m3fn), QUERY_SCALE * KV_SCALE
        return Step(
            query if format == "e4m3" else query.to(torch.bfloat16),
            window,
            compressed,
            counts(self.context),
            SOFTMAX_SCALE * scales,
            KV_SCALE if format == "e4m3" else 1.0,
            torch.randn(heads, device=device, generator=generator),
        )


# --- checking and timing


class Verdict(NamedTuple):
    error: float  # largest |out - float64| over largest |float64|
    bf16_error: float  # the same of a bf16 torch computation
    ok: bool  # out and lse within dsv4.reference's tolerance


def check(form: str, step: Step) -> Verdict:
    out, lse = dsv4.trtllm_batch_decode_sparse_mla_dsv4(**arguments(form, step), return_lse=True)
    inputs = reference_inputs(step)
    options = {"scale1": step.bmm1_scale, "scale2": step.bmm2_scale, "sinks": step.sinks}
    out64, _ = reference.decode(*inputs, **options)
    out_bf16, _ = reference.decode_rounded(*inputs, **options)
    out = out.reshape(out64.shape)
    try:
        reference.assert_close(out, lse.reshape(out64.shape[:-1]), *inputs, **options)
        ok = True
    except AssertionError:
        ok = False
    size = float(out64.abs().max()) or 1.0
    return Verdict(
        float((out.double() - out64).abs().max()) / size,
        float((out_bf16.double() - out64).abs().max()) / size,
        ok,
    )


# --- what is printed


class Progress:
    """How far we are, on stderr: a bar on a terminal, else a line every few seconds after 2 s."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.is_terminal = sys.stderr.isatty()
        self.next_line = time.monotonic() + 2.0

    def step(self, what: str) -> None:
        text = f"[{'#' * (20 * self.done // self.total):<20}] {self.done}/{self.total} {what}"
        if self.is_terminal:
            sys.stderr.write(f"\r\033[K{text}")
        elif time.monotonic() > self.next_line:
            sys.stderr.write(f"{text}\n")
            self.next_line = time.monotonic() + 5.0
        sys.stderr.flush()
        self.done += 1

    def clear(self) -> None:
        if self.is_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


# Heading and width; negative widths stand to the left.
_COLUMNS = (
    ("layer", -6), ("slots", 6), ("form", -13), ("KV", -7), ("engine", -11),
    ("error", 8), ("bf16's", 8), ("check", -6), ("time", 9), ("KV read", 9), ("GB/s", 6),
    ("eager", 9), ("ratio", 7),
)  # fmt: skip


_LEGEND = """
slots: keys that a query sees. error, bf16's: largest |out - float64| / largest |float64| of this
engine, and of a bf16 torch computation. check: out within twice the latter for each head, and lse
likewise (dsv4.reference). time: median, warm caches. KV read: bytes of those slots. eager: the same
step in torch with as many threads (gather, dequantise, matmul, softmax, matmul; the faster of fp32
and bf16 matmul). ratio: eager / time."""


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _row(cells: tuple[str, ...]) -> str:
    text = [
        cell.ljust(-width) if width < 0 else cell.rjust(width)
        for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
    ]
    return " ".join(text).rstrip()


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 1e-2 else f"{seconds * 1e3:.1f} ms"


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_threads() -> int:
    """Threads of the CPU engine: OMP_NUM_THREADS, else the cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else len(os.sched_getaffinity(0))


def usable_gpu() -> tuple[torch.device | None, str]:
    """The current GPU if it runs all forms; else None, and why not."""
    if not torch.cuda.is_available():
        return None, "torch sees no GPU"
    device = torch.device("cuda", torch.cuda.current_device())
    for format in FORMATS:
        dtype = torch.float8_e4m3fn if format == "e4m3" else torch.bfloat16
        support = dsv4.supports(HEADS, query_dtype=dtype, kv_format=format, device=device)
        if not support:
            return None, support.reason
    return device, ""


def _choose_device() -> tuple[torch.device, str, str]:
    """Device, engine, and why no GPU."""
    device, why_not = usable_gpu()
    if device is None:
        return torch.device("cpu"), f"cpu {dsv4.build_info()['simd']}", why_not
    major, minor = torch.cuda.get_device_capability(device)
    return device, f"gpu sm_{major}{minor}", ""


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def _contexts(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dsv4 demo",
        description="One decode step of the three kinds of DeepSeek-V4-Flash attention layers in "
        "every input form: checked against float64, timed, and compared with eager torch. "
        "Exits with 1 if a check fails.",
    )
    parser.add_argument(
        "--context", type=_contexts, metavar="N[,N...]", help="tokens per request (4096,65536)"
    )
    parser.add_argument("--batch", type=_positive, metavar="N", help="requests (8)")
    parser.add_argument(
        "--heads", type=_positive, default=HEADS, metavar="N", help="query heads (%(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="4096 tokens, 2 requests, few runs, unless told else"
    )
    return parser


def _print_head(batch: int, heads: int, device: torch.device, engine: str, why_no_gpu: str) -> None:
    where = f"{cpu_name()}, {cpu_threads()} threads"
    if os.getloadavg()[0] > cpu_threads():
        where += f", busy (load average {os.getloadavg()[0]:.1f}: times are rough)"
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)} (host: {where})"
    say(
        f"dsv4 {dsv4.__version__}, torch {torch.__version__}, "
        f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}\n"
        f"Engine: {engine} on {where}" + (f". No GPU: {why_no_gpu}" if why_no_gpu else "") + "\n"
        f"DeepSeek-V4-Flash attention, one decode step of one layer: batch {batch}, 1 query each, "
        f"{heads} heads, latent {HEAD_DIM}, window {WINDOW}, sinks.\n"
        f"SWA: window only. CSA: window + top {TOP_K} of the 4:1 entries. HCA: window + all 128:1 "
        f"entries. Tokens per page: window {WINDOW_PAGE}, CSA {CSA_PAGE}, HCA {HCA_PAGE}."
    )


def _print_caches(context: int, pools: list[Pool]) -> bool:
    ok = all(pool.reads_back() for pool in pools)
    rows = sum(pool.num_rows for pool in pools)
    speeds = ", ".join(
        f"{format} {rows / sum(pool.append_seconds[format] for pool in pools) / 1e6:.2f}"
        for format in FORMATS
    )
    say(
        f"context {context:,}: {rows:,} rows appended to shuffled pages, million rows/s: {speeds}; "
        f"read back: {'ok' if ok else 'FAILED'}"
    )
    return ok


def main(argv: list[str]) -> int:
    """Runs the demo; 0 if every check passed."""
    options = _parser().parse_args(argv)
    contexts = options.context or ([4096] if options.quick else [4096, 65536])
    batch = options.batch or (2 if options.quick else 8)
    heads: int = options.heads
    budget = 0.02 if options.quick else 0.3

    start = time.monotonic()
    torch.manual_seed(0)
    device, engine, why_no_gpu = _choose_device()
    # The same threads for both sides of the comparison.
    torch.set_num_threads(cpu_threads())
    _print_head(batch, heads, device, engine, why_no_gpu)

    progress = Progress(len(contexts) * (1 + len(LAYERS) * len(FORMATS)))
    num_checks = num_failed = 0
    for context in contexts:
        progress.step(f"appending {context:,} tokens a request")
        caches = Caches(batch, context, device)
        pools = {layer.name: caches.compressed(layer) for layer in LAYERS}
        progress.clear()
        say()
        num_checks += 1
        num_failed += not _print_caches(context, [caches.window, *filter(None, pools.values())])
        say(_row(tuple(name for name, _ in _COLUMNS)))
        for layer in LAYERS:
            for format in FORMATS:
                form = "packed" if format == "packed" else layer.plain_form
                if form == "HCA" and pools[layer.name] is None:
                    form = (
                        "token-sparse"  # a context so short that there is nothing to page through
                    )
                progress.step(f"{layer.name} at {context:,} tokens, {form}, KV {_KV_NAMES[format]}")
                step = caches.step(layer, pools[layer.name], form, format, heads)
                verdict = check(form, step)
                num_checks += 1
                num_failed += not verdict.ok
                seconds, eager_seconds = _time(form, step, device, budget)
                num_slots = step.num_slots()
                num_bytes = num_slots * SLOT_BYTES[format]
                progress.clear()
                say(
                    _row(
                        (
                            layer.name,
                            f"{num_slots // batch}",
                            form,
                            _KV_NAMES[format],
                            engine,
                            f"{verdict.error:.1e}",
                            f"{verdict.bf16_error:.1e}",
                            "ok" if verdict.ok else "FAILED",
                            _milliseconds(seconds),
                            f"{num_bytes / 1e6:.2f} MB",
                            f"{num_bytes / seconds / 1e9:.1f}",
                            _milliseconds(eager_seconds),
                            f"{eager_seconds / seconds:.1f}x",
                        )
                    )
                )

    say(_LEGEND)
    passed = f"{num_checks - num_failed} of {num_checks} checks passed"
    say(f"{passed} in {time.monotonic() - start:.0f} s.")
    return 1 if num_failed else 0


def _time(form: str, step: Step, device: torch.device, budget: float) -> tuple[float, float]:
    """Seconds of this package, and of eager torch with whichever matmul is faster there."""
    call = arguments(form, step)
    call["out"] = torch.empty(step.query.shape, dtype=torch.bfloat16, device=device)
    ours = partial(dsv4.trtllm_batch_decode_sparse_mla_dsv4, **call)
    seconds = median_seconds(ours, device, budget)
    eager = min(
        median_seconds(partial(eager_decode, step, dtype), device, budget / 2)
        for dtype in (torch.float32, torch.bfloat16)
    )
    return seconds, eager
