"""What `python -m dsv4 check` tries: trials of every form, and how their results are judged.

An entry of `FORMS` yields trials; each runs on the subject, and raises if its result is not what
the CPU engine or float64 say. Inputs are those of `dsv4.hostile`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

import dsv4

from . import bench, hostile, reference
from .demo import reads_back
from .hca import COMPRESS_RATIO
from .hostile import moved
from .kv_cache import HEAD_DIM, WINDOW, empty_kv_cache
from .step import FORMATS, Segment, Step, arguments, reference_inputs

FLOAT64_WORK = 100_000  # rows x heads x slots that float64 takes tens of milliseconds for
FORMS_OF_FORMATS = (
    ("token-sparse", "bf16"), ("token-sparse", "e4m3"), ("HCA", "bf16"), ("HCA", "e4m3"),
    ("packed", "packed"),
)  # fmt: skip

Result = tuple[Tensor, Tensor]  # out and lse, on the CPU


class Place(NamedTuple):
    """Where calls run: a device, and what holds around each call (tests choose engines by it)."""

    device: torch.device
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


CPU = Place(torch.device("cpu"))


class Sizes(NamedTuple):
    """How much is tried."""

    heads: tuple[int, ...]
    requests: int  # of two query rows each
    width: int  # compressed slots a row
    long_width: int  # of a single row, enough for many blocks
    batch: int  # rows, more than a GPU runs at a time
    every_pair: bool  # of head counts and page sizes; else each of them once at least

    def with_heads(self, others: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Pairs of a head count and one of the others."""
        if self.every_pair:
            yield from product(self.heads, others)
            return
        for i in range(max(len(self.heads), len(others))):
            yield self.heads[i % len(self.heads)], others[i % len(others)]

    def usual_heads(self) -> int:
        return self.heads[len(self.heads) // 2]


FULL = Sizes((1, 8, 16, 32, 64, 96, 128), 3, 512, 8192, 320, True)
QUICK = Sizes((1, 16, 128), 2, 192, 8192, 320, False)
ON_CPU = Sizes((1, 16, 96), 2, 192, 2048, 32, False)
QUICK_ON_CPU = Sizes((1, 16), 1, 64, 640, 8, False)


class Check(NamedTuple):
    subject: Place
    judge: Place | None  # the CPU engine; None where that is the subject, which float64 judges
    sizes: Sizes
    e4m3_cache_weights: torch.dtype = torch.bfloat16  # what the subject rounds them to


class Trial(NamedTuple):
    label: str
    run: Callable[[], float]  # returns the share of the tolerance used; raises if that is above 1


class Form(NamedTuple):
    about: str
    trials: Callable[[Check], Iterator[Trial]]
    needs_gpu: bool = False


# --- running and judging


def decode(place: Place, form: str, step: Step, **options: object) -> Result:
    """The step in one of its forms, with a workspace and results full of NaN beforehand."""
    step = moved(step, place.device)
    out, lse = _unwritten(step)
    with place.around():
        call: dict[str, Any] = arguments(form, step) | options
        if call["workspace_buffer"] is not None:
            call["workspace_buffer"].fill_(0xFF)
        dsv4.trtllm_batch_decode_sparse_mla_dsv4(**call, out=out, lse=lse)
    return out.cpu(), lse.cpu()


def _unwritten(step: Step) -> Result:
    shape, device = step.query.shape, step.query.device
    out = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device)
    return out, torch.full(shape[:-1], torch.nan, device=device)


def _reference_options(step: Step, options: dict[str, object]) -> dict[str, Any]:
    known = ("lse_base", "sink_mode", "lse_empty_positive")
    return {
        "scale1": step.bmm1_scale,
        "scale2": step.bmm2_scale,
        "sinks": step.sinks,
        **{name: value for name, value in options.items() if name in known},
    }


def judged(
    check: Check, got: Result, by_engine: Callable[[Place], Result], step: Step, **options: object
) -> float:
    """The share of its tolerances that a result uses: against the CPU engine's, and float64."""
    used = 0.0
    is_e4m3 = step.query.dtype == torch.float8_e4m3fn
    weights = check.e4m3_cache_weights if is_e4m3 else torch.bfloat16
    if check.judge is not None:
        used = reference.assert_alike(*got, *by_engine(check.judge), weights=weights)
    work = step.query.shape[:-1].numel() * sum(step.widths())
    if check.judge is None or work <= FLOAT64_WORK:
        inputs, choices = reference_inputs(step), _reference_options(step, options)
        used = max(used, reference.assert_close(*got, *inputs, weights=weights, **choices))
    return used


def _decoded(check: Check, label: str, form: str, step: Step, **options: object) -> Trial:
    def run() -> float:
        by_engine = partial(decode, form=form, step=step, **options)
        return judged(check, by_engine(check.subject), by_engine, step, **options)

    return Trial(label, run)


# --- the forms of the decode


def token_sparse(format: str, varlen: bool, check: Check) -> Iterator[Trial]:
    q_lens = [3, 0] + [1] * check.sizes.requests if varlen else [2] * check.sizes.requests
    for heads in check.sizes.heads:
        step = hostile.step("token-sparse", format, heads, q_lens, check.sizes.width, varlen=varlen)
        yield _decoded(check, f"{heads} heads", "token-sparse", step)


def by_page_size(
    form: str, format: str, page_sizes: Sequence[int], check: Check
) -> Iterator[Trial]:
    q_lens = [2] * check.sizes.requests
    for heads, page_size in check.sizes.with_heads(page_sizes):
        step = hostile.step(
            form, format, heads, q_lens, check.sizes.width, page_sizes=(64, page_size)
        )
        yield _decoded(check, f"{heads} heads, pages of {page_size}", form, step)


def long_row(check: Check) -> Iterator[Trial]:
    for form, format in FORMS_OF_FORMATS:
        every = check.sizes.heads if format == "packed" else [check.sizes.usual_heads()]
        for heads in every:
            step = hostile.step(form, format, heads, [1], check.sizes.long_width)
            label = f"{form} {format}, {heads} heads, {sum(step.widths()):,} slots"
            yield _decoded(check, label, form, step)


def big_batch(check: Check) -> Iterator[Trial]:
    for heads in check.sizes.heads[1::2]:
        step = hostile.step("packed", "packed", heads, [1] * check.sizes.batch, check.sizes.width)
        yield _decoded(check, f"{heads} heads, {check.sizes.batch} rows", "packed", step)


def one_table(check: Check) -> Iterator[Trial]:
    """Four rows a request with one compressed table, and heads that leave room for several."""
    heads = min(check.sizes.heads, key=lambda count: abs(count - 8))
    requests = max(1, check.sizes.batch // 4)
    for form, format in FORMS_OF_FORMATS:
        if form != "token-sparse":  # whose table has the windows, too
            step = hostile.step(
                form, format, heads, [4] * requests, 2 * check.sizes.width, one_table=True
            )
            name = f"{form} {format}, {heads} heads, {requests} x 4 rows"
            yield _decoded(check, name, form, step)
            if form == "HCA":
                assert step.compressed is not None
                copies = step.compressed.table.flatten(0, 1).contiguous()
                one_differs = copies.clone()
                one_differs[2, 0] = -1
                for table, says in ((copies, "same"), (one_differs, "different")):
                    own = step._replace(compressed=step.compressed._replace(table=table))
                    yield _decoded(check, f"{name}, {says} tables", form, own)


def call_options(check: Check) -> Iterator[Trial]:
    heads, q_lens = check.sizes.usual_heads(), [2] * check.sizes.requests
    for form, format in FORMS_OF_FORMATS:
        step = hostile.step(form, format, heads, q_lens, check.sizes.width)
        assert step.sinks is not None
        infinite = step.sinks.clone()
        infinite[::3], infinite[1::3] = torch.inf, -torch.inf
        on_device = {
            "bmm1_scale": torch.tensor([step.bmm1_scale]),
            "bmm2_scale": torch.tensor([step.bmm2_scale]),
        }
        variants: dict[str, tuple[dict[str, Any], dict[str, object]]] = {
            "no sinks": ({"sinks": None}, {}),
            "infinite sinks": ({"sinks": infinite}, {}),
            "scales on the device": (on_device, {}),
            "scores far apart": ({"bmm1_scale": 8.0 * step.bmm1_scale}, {}),
            "lse to base 2": ({}, {"lse_base": "2"}),
            "sinks deferred": ({}, {"sink_mode": "defer"}),
            "no workspace": ({}, {"workspace_buffer": None}),
            "no early launch": ({}, {"enable_pdl": False}),
        }
        if form == "HCA":
            variants["blocks that stay"] = ({}, {"hca_use_persistent": True})
        for name, (changes, options) in variants.items():
            yield _decoded(
                check, f"{form} {format}, {name}", form, step._replace(**changes), **options
            )


def flash_mla(check: Check) -> Iterator[Trial]:
    q_lens = [2] * check.sizes.requests

    def run(step: Step) -> float:
        by_engine = partial(_flash_mla, step=step)
        got = by_engine(check.subject)
        return judged(check, got, by_engine, step, lse_empty_positive=True)

    for heads in check.sizes.heads:
        step = hostile.step("packed", "packed", heads, q_lens, check.sizes.width)
        yield Trial(f"{heads} heads", partial(run, step))


def _flash_mla(place: Place, step: Step) -> Result:
    step = moved(step, place.device)
    window, extra = step.segments()
    lead = step.query.shape[:2]
    with place.around():
        out, lse = dsv4.flash_mla_with_kvcache(
            step.query,
            window.cache.unsqueeze(2),
            None,
            None,
            HEAD_DIM,
            dsv4.FlashMLASchedMeta(),
            softmax_scale=step.bmm1_scale,
            is_fp8_kvcache=True,
            indices=window.table.unflatten(0, lead),
            topk_length=window.lens.unflatten(0, lead),
            attn_sink=step.sinks,
            extra_k_cache=extra.cache.unsqueeze(2),
            extra_indices_in_kvcache=extra.table.unflatten(0, lead),
            extra_topk_length=extra.lens.unflatten(0, lead),
        )
    return out.cpu(), lse.transpose(1, 2).cpu()


# --- what surrounds a decode


def append_and_decode(check: Check) -> Iterator[Trial]:
    for heads in check.sizes.heads:
        yield Trial(f"{heads} heads", partial(_append_and_decode, check, heads))


def _append_and_decode(check: Check, heads: int) -> float:
    """Tokens are appended one by one, each followed by a decode that needs it, without a wait."""
    tokens, rows = 8, 2
    empty = hostile.poisoned_pool(2, 64, "packed")
    kv, slots = hostile.latents(tokens), torch.randperm(128)[:tokens]
    filled = moved(empty, empty.device)
    hostile.append(kv, filled, slots, "packed")
    query = hostile.query_rows(rows, heads, "packed")[:, None]
    table, seq_lens = slots.int().repeat(rows, 1), torch.zeros(rows, dtype=torch.int32)
    steps = [
        Step(
            query,
            Segment(filled, table, torch.full((rows,), length, dtype=torch.int32)),
            None,
            seq_lens,
            *hostile.scales("packed"),
            torch.randn(heads),
        )
        for length in range(1, tokens + 1)
    ]

    device = check.subject.device
    cache, its_kv, its_slots = moved((empty, kv, slots), device)
    calls, results = [], []
    for step in steps:
        its_step = moved(step, device)
        its_step = its_step._replace(window=its_step.window._replace(cache=cache))
        results.append(_unwritten(its_step))
        calls.append(arguments("packed", its_step) | {"enable_pdl": True})
    with check.subject.around():
        for i, (call, (out, lse)) in enumerate(zip(calls, results, strict=True)):
            hostile.append(its_kv[i : i + 1], cache, its_slots[i : i + 1], "packed")
            dsv4.trtllm_batch_decode_sparse_mla_dsv4(**call, out=out, lse=lse)
    return max(
        judged(check, (out.cpu(), lse.cpu()), partial(decode, form="packed", step=step), step)
        for step, (out, lse) in zip(steps, results, strict=True)
    )


def graph_replay(check: Check) -> Iterator[Trial]:
    for form, format in FORMS_OF_FORMATS:
        for heads in check.sizes.heads:
            run = partial(_graph_replay, check, form, format, heads)
            yield Trial(f"{form} {format}, {heads} heads", run)


def _graph_replay(check: Check, form: str, format: str, heads: int) -> float:
    """A decode is captured once, then replayed with other lengths, indices, caches and queries."""
    q_lens = [2] * check.sizes.requests
    steps = [hostile.step(form, format, heads, q_lens, check.sizes.width) for _ in range(3)]
    captured = moved(steps[0], check.subject.device)
    out, lse = _unwritten(captured)

    def call() -> None:
        dsv4.trtllm_batch_decode_sparse_mla_dsv4(**arguments(form, captured), out=out, lse=lse)

    call()
    torch.cuda.synchronize()
    graph, used = bench.Graph([call]), 0.0
    for step in (*steps[1:], steps[0]):
        hostile.overwrite(captured, step)
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        got = out.cpu(), lse.cpu()
        used = max(used, judged(check, got, partial(decode, form=form, step=step), step))
    return used


def merged_states(check: Check) -> Iterator[Trial]:
    for heads in check.sizes.heads:
        step = hostile.step(
            "packed", "packed", heads, [2] * check.sizes.requests, check.sizes.width
        )
        yield Trial(f"{heads} heads", partial(_merged_states, check, step))


def _merged_states(check: Check, step: Step) -> float:
    """Each segment decoded alone, the sinks left to the merging."""
    parts = [
        decode(
            check.subject, "packed", step._replace(window=part, compressed=None), sink_mode="defer"
        )
        for part in step.segments()
    ]
    outs, lses, sinks = moved(
        (
            torch.stack([out for out, _ in parts]),
            torch.stack([lse for _, lse in parts]),
            step.sinks,
        ),
        check.subject.device,
    )
    with check.subject.around():
        out, lse = dsv4.merge_states(outs, lses, sinks=sinks)
    if check.judge is not None:
        wanted = decode(check.judge, "packed", step)
    else:
        wanted = reference.decode(*reference_inputs(step), **_reference_options(step, {}))
    return reference.assert_alike(out.cpu(), lse.cpu(), *wanted)


# --- cache functions and tables: equal, bit for bit


def appended(check: Check) -> Iterator[Trial]:
    for format, page_size in product(FORMATS, (1, 2, 64, 256)):
        yield Trial(f"{format}, pages of {page_size}", partial(_append, check, format, page_size))


def _append(check: Check, format: str, page_size: int) -> float:
    empty = hostile.poisoned_pool(-(-300 // page_size), page_size, format)
    num_slots = empty.shape[0] * page_size
    slots = torch.randperm(num_slots)[:200]
    slots[::9], slots[4::9] = -1, num_slots
    kv = hostile.latents(len(slots))

    def run(place: Place) -> Tensor:
        cache, its_kv, its_slots = moved((empty, kv, slots), place.device)
        with place.around():
            hostile.append(its_kv, cache, its_slots, format)
        return moved(cache, CPU.device)

    got = run(check.subject)
    if check.judge is not None:
        require(hostile.same_bytes(got, run(check.judge)), "bytes differ from the CPU engine's")
    valid = (slots >= 0) & (slots < num_slots)
    require(
        reads_back(got, format, slots[valid], kv[valid]),
        "rows do not read back within the rounding of the format",
    )
    return 0.0


def packed_and_unpacked(check: Check) -> Iterator[Trial]:
    for page_size in (1, 2, 64, 256):
        yield Trial(f"pages of {page_size}", partial(_pack_and_unpack, check, page_size))


def _pack_and_unpack(check: Check, page_size: int) -> float:
    unwritten = hostile.poisoned_pool(3, page_size, "packed")
    kv = hostile.latents(3 * page_size).unflatten(0, (3, page_size))

    def run(place: Place) -> tuple[Tensor, Tensor]:
        its_kv, cache = moved((kv, unwritten), place.device)
        with place.around():
            dsv4.pack_kv_cache(its_kv, out=cache)
            values = dsv4.unpack_kv_cache(cache)
        return moved(cache, CPU.device), values.cpu()

    cache, values = run(check.subject)
    if check.judge is not None:
        same = hostile.same_bytes(cache, run(check.judge)[0])
        require(same, "packed bytes differ from the CPU engine's")
    require(
        torch.equal(values.flatten(0, 1).double(), reference.dequantise(cache)),
        "unpacked numbers are not those of the packed bytes",
    )
    slots = torch.arange(3 * page_size)
    require(
        reads_back(cache, "packed", slots, kv.flatten(0, 1)),
        "rows do not read back within the rounding of the format",
    )
    return 0.0


def hca_tables(check: Check) -> Iterator[Trial]:
    for page_size in (1, 2, 64, 128):
        yield Trial(f"pages of {page_size}", partial(_hca_tables, check, page_size))


def _hca_tables(check: Check, page_size: int) -> float:
    """Against the conversion that checks, which is plain torch."""
    q_len, seq_lens = 2, torch.tensor([5, 20_000, 1000, 70 * COMPRESS_RATIO + 1]).int()
    visible = (seq_lens[:, None] - q_len + 1 + torch.arange(q_len)).flatten()
    counts = visible // COMPRESS_RATIO
    columns = int(counts.max())
    pages_each = -(-columns // page_size)
    num_pages = len(seq_lens) * pages_each
    pages = torch.randperm(num_pages).view(len(seq_lens), pages_each)
    compressed = reference.page_slots(pages, page_size).repeat_interleave(q_len, 0)
    window = torch.randint(0, 4 * 64, (len(compressed), WINDOW))
    indices = torch.cat([window, compressed], 1).int()
    caches = empty_kv_cache(4, 64), empty_kv_cache(num_pages, page_size)
    wanted = dsv4.convert_compressed_page_aligned_sparse_indices_to_hca_metadata(
        indices, (WINDOW + counts).int(), seq_lens, *caches, q_len=q_len
    )
    device = check.subject.device
    inputs = moved((indices, seq_lens, *caches), device)
    with check.subject.around():
        got = dsv4.hca_metadata(*inputs, q_len=q_len)
    for name in ("hca_swa_indices", "hca_seq_lens", "swa_topk_lens"):
        require(torch.equal(getattr(got, name).cpu(), getattr(wanted, name)), f"{name} differ")
    tables = got.hca_compressed_block_tables.cpu(), wanted.hca_compressed_block_tables
    shared = min(table.shape[1] for table in tables)
    same = torch.equal(tables[0][:, :shared], tables[1][:, :shared])
    require(same, "hca_compressed_block_tables differ")
    return 0.0


def require(same: bool, otherwise: str) -> None:
    if not same:
        raise AssertionError(otherwise)


FORMS = {
    "token-sparse-bf16": Form("trtllm-gen", partial(token_sparse, "bf16", False)),
    "token-sparse-e4m3": Form("trtllm-gen", partial(token_sparse, "e4m3", False)),
    "varlen-bf16": Form("trtllm-gen, varlen", partial(token_sparse, "bf16", True)),
    "varlen-e4m3": Form("trtllm-gen, varlen", partial(token_sparse, "e4m3", True)),
    "hca-bf16": Form("cute-dsl", partial(by_page_size, "HCA", "bf16", (1, 2, 64, 128))),
    "hca-e4m3": Form("cute-dsl", partial(by_page_size, "HCA", "e4m3", (1, 2, 64, 128))),
    "packed": Form("sparse", partial(by_page_size, "packed", "packed", (2, 64, 256))),
    "flash-mla": Form("flash_mla_with_kvcache", flash_mla),
    "long": Form("one row in many blocks", long_row),
    "batch": Form("more rows than blocks", big_batch),
    "one-table": Form("one table for several rows", one_table),
    "options": Form("sinks, scales, lse, workspace", call_options),
    "loop": Form("appends and decodes, PDL", append_and_decode),
    "graph": Form("CUDA graphs, new lengths", graph_replay, needs_gpu=True),
    "merge": Form("merge_states", merged_states),
    "append": Form("append_kv_cache", appended),
    "pack": Form("pack_, unpack_kv_cache", packed_and_unpacked),
    "tables": Form("hca_metadata", hca_tables),
}
