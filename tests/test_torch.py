"""The operators as torch sees them: opcheck, compile, export, inference mode, threads."""

import math
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import cases
import dsv4

OPS = torch.ops.dsv4
SCALE = cases.SOFTMAX_SCALE
FORMS = [("token_sparse", "bf16"), ("token_sparse", "e4m3"), ("hca", "bf16"), ("packed", "packed")]
BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=pytest.mark.skipif(
            shutil.which("g++") is None, reason="inductor needs a C++ compiler"
        ),
    ),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def op_problem(form, fmt, engine, **changes):
    shape = dict(heads=8, w1=128, w2=96, batch=3, q_len=2, lens="full")
    return cases.problem(form, fmt, device=engine.device, **{**shape, **changes})


# --- opcheck


@pytest.mark.parametrize(("form", "fmt"), FORMS)
def test_opcheck_decode(engine, form, fmt):
    problem = op_problem(form, fmt, engine)
    args = dict(problem.op_args(), bmm1_scale=SCALE, sinks=torch.randn(8, device=engine.device))
    # torch's schema test compares arguments with allclose, which e4m3 lacks.
    checks = ["test_schema"] * (fmt != "e4m3") + [
        "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic",
    ]  # fmt: skip
    torch.library.opcheck(OPS.sparse_mla_decode.default, (), args, test_utils=checks)
    out, lse, _ = cases.outputs(problem)
    args.update(out=out.zero_(), lse=lse.zero_())
    torch.library.opcheck(OPS.sparse_mla_decode.out, (), args, test_utils=checks)


def test_opcheck_varlen(engine):
    problem = cases.problem(
        "token_sparse", "bf16", 4, q_lens=[2, 0, 3], w2=20, device=engine.device
    )
    torch.library.opcheck(OPS.sparse_mla_decode.default, (), problem.op_args())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_opcheck_merge(engine, dtype):
    outs = torch.randn(3, 5, 4, 512, device=engine.device).to(dtype)
    torch.library.opcheck(
        OPS.merge_states.default, (outs, torch.randn(3, 5, 4, device=engine.device))
    )


def test_opcheck_cache_operators(engine):
    kv = torch.randn(2, 5, 512, device=engine.device).bfloat16()
    torch.library.opcheck(OPS.pack_kv_cache.default, (kv,))
    torch.library.opcheck(OPS.pack_kv_cache.default, (kv,), dict(page_stride_bytes=5 * 584 + 72))
    cache = torch.zeros(2, 5, 584, dtype=torch.uint8, device=engine.device)
    torch.library.opcheck(OPS.pack_kv_cache.out, (kv,), dict(out=cache))
    for view, layout in [
        (cache, "HND"),
        (cache[:, None], "HND"),
        (cache[:, :, None], "NHD"),
        (cache.flatten(1), "HND"),
    ]:
        torch.library.opcheck(OPS.unpack_kv_cache.default, (view,), dict(kv_layout=layout))
    slots = torch.tensor([0, 9, -1], device=engine.device)
    for pool in (cache, torch.zeros(2, 5, 512, device=engine.device).bfloat16()):
        torch.library.opcheck(OPS.append_kv_cache.default, (kv[0, :3], pool, slots))


def test_opcheck_hca_metadata(engine):
    indices = torch.zeros(4, 140, dtype=torch.int32, device=engine.device)
    lens = torch.tensor([300, 2], dtype=torch.int32, device=engine.device)
    args = dict(q_len=2, swa_slots=64, page_size=2, num_pages=9)
    torch.library.opcheck(OPS.hca_metadata.default, (indices, lens), args)


# --- torch.compile


def front_args(problem):
    args = problem.door_args()
    return {name: value for name, value in args.items() if value is not None}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("form", "fmt"), FORMS)
def test_compiled_front_door(engine, backend, form, fmt):
    """In the middle of a graph, with no break, and with the same bits as eager."""
    problem = op_problem(form, fmt, engine)
    args = front_args(problem)
    query = args.pop("query")
    sinks = torch.randn(8, device=engine.device)

    def layer(query, sinks):
        out, lse = dsv4.trtllm_batch_decode_sparse_mla_dsv4(
            query, workspace_buffer=None, sinks=sinks * 2, bmm1_scale=SCALE, return_lse=True, **args
        )
        return out.float() * 3 + 1, lse

    got = torch.compile(layer, fullgraph=True, backend=backend)(query, sinks)
    assert cases.same_bits(got, layer(query, sinks))


def test_compiled_flash_mla(engine):
    problem = op_problem("packed", "packed", engine, layout="NHD")
    query = problem.query
    swa, compressed = problem.swa, problem.compressed

    def layer(query):
        return dsv4.flash_mla_with_kvcache(
            query, swa.cache, None, None, 512, None, indices=swa.indices.unflatten(0, (3, 2)),
            topk_length=swa.lens.unflatten(0, (3, 2)), extra_k_cache=compressed.cache,
            extra_indices_in_kvcache=compressed.indices.unflatten(0, (3, 2)), is_fp8_kvcache=True,
        )  # fmt: skip

    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(query)
    # Outside of a graph the function gives itself a workspace, so the parts of a row may differ.
    for a, b in zip(got, layer(query), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    assert got[1].shape == (3, 8, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_out_variant_writes_its_arguments(engine, backend):
    problem = op_problem("packed", "packed", engine)
    args = problem.op_args()
    wanted = OPS.sparse_mla_decode(**args)
    out = torch.full(problem.query.shape, math.nan, device=engine.device).bfloat16()
    lse = torch.full(problem.query.shape[:-1], math.nan, device=engine.device)

    def step(out, lse):
        OPS.sparse_mla_decode.out(**args, out=out, lse=lse)
        return out + 0

    copy = torch.compile(step, fullgraph=True, backend=backend)(out, lse)
    assert cases.same_bits((out, lse, copy), (*wanted, wanted[0]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_cache_and_merge(engine, backend):
    """Append, decode two halves, merge: one graph that writes a cache and then reads it."""
    rows = torch.randn(40, 512, device=engine.device).bfloat16()
    query = torch.randn(3, 1, 4, 512, device=engine.device).bfloat16()
    table = torch.arange(40, dtype=torch.int32, device=engine.device).expand(3, -1)
    slots = torch.arange(40, device=engine.device)

    def step(rows, cache, query):
        dsv4.append_kv_cache(rows, cache, slots)
        halves = [
            OPS.sparse_mla_decode(query, cache, half.contiguous(), bmm1_scale=SCALE)
            for half in table.chunk(2, 1)
        ]
        out, lse = dsv4.merge_states([h[0] for h in halves], [h[1] for h in halves])
        return out, lse, dsv4.unpack_kv_cache(cache)

    caches = [torch.zeros(3, 16, 584, dtype=torch.uint8, device=engine.device) for _ in range(2)]
    got = torch.compile(step, fullgraph=True, backend=backend)(rows, caches[0], query)
    wanted = step(rows, caches[1], query)
    assert cases.same_bits(got, wanted)
    assert torch.equal(*caches)
    assert caches[0].any()


def test_one_graph_for_every_batch_size(engine):
    """Dynamic shapes: batch, heads and widths may change without a new compilation."""
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph

    def layer(query, pool, window, window_lens, chosen):
        return OPS.sparse_mla_decode(
            query, pool, window, window_lens, pool, chosen, bmm1_scale=SCALE
        )

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    for batch, heads, width in [(3, 8, 40), (5, 16, 64), (7, 4, 33), (2, 2, 130)]:
        pool = torch.randn(4, 16, 512, device=engine.device).bfloat16()
        query = torch.randn(batch, 2, heads, 512, device=engine.device).bfloat16()
        window, chosen = (
            torch.randint(
                -1, 64, (2 * batch, width + more), dtype=torch.int32, device=engine.device
            )
            for more in (0, 9)
        )
        lens = torch.full((2 * batch,), width, dtype=torch.int32, device=engine.device)
        got = compiled(query, pool, window, lens, chosen)
        assert cases.same_bits(got, layer(query, pool, window, lens, chosen))
    assert len(graphs) == 1


def test_errors_of_a_compiled_call_are_told(engine):
    problem = op_problem("packed", "packed", engine)
    args = problem.op_args()
    args["swa_indices"] = args["swa_indices"][:2]
    with pytest.raises(RuntimeError, match=r"swa_indices: expected \[6, width\]"):
        torch.compile(lambda: OPS.sparse_mla_decode(**args), fullgraph=True, backend="aot_eager")()


# --- torch.export


class Layer(torch.nn.Module):
    def __init__(self, cache, heads):
        super().__init__()
        self.register_buffer("cache", cache)
        self.sinks = torch.nn.Parameter(torch.zeros(heads, device=cache.device))

    def forward(self, query, indices, lens):
        return dsv4.trtllm_batch_decode_sparse_mla_dsv4(
            query,
            self.cache,
            None,
            indices,
            swa_topk_lens=lens,
            sinks=self.sinks,
            bmm1_scale=SCALE,
            backend="sparse",
            return_lse=True,
        )


def test_export_and_run(engine):
    def inputs(batch):
        problem = op_problem("packed", "packed", engine, batch=batch, q_len=1)
        return problem.swa.cache, (
            problem.query,
            problem.swa.indices.contiguous(),
            problem.swa.lens,
        )

    cache, args = inputs(3)
    layer = Layer(cache, 8)
    batch = torch.export.Dim("batch", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(layer, args, dynamic_shapes=tuple({0: batch} for _ in args))
        assert any("dsv4.sparse_mla_decode" in str(node.target) for node in program.graph.nodes)
        exported = program.module()
        assert cases.same_bits(exported(*args), layer(*args))
        _, others = inputs(5)
        # Tables of another problem on the first one's cache: what matters is the shape.
        assert exported(*others)[0].shape == (5, 1, 8, 512)


# --- modes and threads


def test_inference_mode_and_no_grad(engine):
    problem = op_problem("packed", "packed", engine)
    wanted = cases.run(problem, door="front")
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert cases.same_bits(cases.run(problem, door="front"), wanted)


def test_backward_is_not_silent(engine):
    """The decode has no gradient; torch says so when somebody asks for one."""
    args = op_problem("hca", "bf16", engine).op_args()
    args["query"] = args["query"].clone().requires_grad_()
    out, _ = OPS.sparse_mla_decode(**args)
    with pytest.warns(
        UserWarning, match="dsv4::sparse_mla_decode: an autograd kernel was not registered"
    ):
        out.float().sum().backward()
    assert args["query"].grad is None


@pytest.mark.parametrize(("form", "fmt"), FORMS)
def test_threads_change_no_bit_without_a_workspace(form, fmt):
    """One thread or several: rows are whole tasks, so their bits are the same."""
    problem = cases.problem(form, fmt, 16, 128, 700, batch=5)
    one = cases.run(problem, workspace="none", threads=1)
    for threads in (2, 3, 8):
        assert cases.same_bits(cases.run(problem, workspace="none", threads=threads), one)
        invariant = cases.run(problem, threads=threads, batch_invariant=True)
        assert cases.same_bits(invariant, cases.run(problem, threads=1, batch_invariant=True))


def test_calls_from_several_threads(engine):
    """Concurrent calls on different tensors give what they give alone."""
    problems = [op_problem("packed", "packed", engine, w2=50 * i) for i in range(1, 7)]
    wanted = [cases.run(problem, workspace="none") for problem in problems]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            got = list(
                pool.map(lambda problem: OPS.sparse_mla_decode(**problem.op_args()), problems)
            )
            for a, b in zip(got, wanted, strict=True):
                assert cases.same_bits(a, b)


def test_schemas_say_what_is_written():
    for op, written in [
        (OPS.sparse_mla_decode.default, []), (OPS.sparse_mla_decode.out, ["out", "lse"]),
        (OPS.append_kv_cache.default, ["kv_cache"]), (OPS.pack_kv_cache.out, ["out"]),
        (OPS.merge_states.default, []), (OPS.unpack_kv_cache.default, []),
    ]:  # fmt: skip
        arguments = op._schema.arguments
        assert [a.name for a in arguments if a.alias_info and a.alias_info.is_write] == written
