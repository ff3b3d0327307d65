"""The public signatures: names, order and defaults, written out once more."""

from __future__ import annotations

import dataclasses
import inspect
from inspect import Parameter

import pytest
import torch

import dsv4

REQUIRED = Parameter.empty

# flashinfer.mla.trtllm_batch_decode_sparse_mla_dsv4
FLASHINFER = {
    "query": REQUIRED,
    "swa_kv_cache": REQUIRED,
    "workspace_buffer": REQUIRED,
    "sparse_indices": None,
    "compressed_kv_cache": None,
    "sparse_topk_lens": None,
    "seq_lens": None,
    "out": None,
    "bmm1_scale": 1.0,
    "bmm2_scale": 1.0,
    "sinks": None,
    "kv_layout": "HND",
    "cum_seq_lens_q": None,
    "max_q_len": None,
    "enable_pdl": None,
    "swa_topk_lens": None,
    "extra_sparse_indices": None,
    "extra_sparse_topk_lens": None,
    "backend": "auto",
    "hca_swa_indices": None,
    "hca_compressed_block_tables": None,
    "hca_seq_lens": None,
    "hca_is_causal": True,
    "hca_use_persistent": False,
    "hca_sparse_indices_format": None,
}

# flash_mla.flash_mla_with_kvcache
FLASH_MLA = {
    "q": REQUIRED,
    "k_cache": REQUIRED,
    "block_table": REQUIRED,
    "cache_seqlens": REQUIRED,
    "head_dim_v": REQUIRED,
    "tile_scheduler_metadata": REQUIRED,
    "num_splits": None,
    "softmax_scale": None,
    "causal": False,
    "is_fp8_kvcache": False,
    "indices": None,
    "attn_sink": None,
    "extra_k_cache": None,
    "extra_indices_in_kvcache": None,
    "topk_length": None,
    "extra_topk_length": None,
}

CONVERT = {
    "sparse_indices": REQUIRED,
    "sparse_topk_lens": REQUIRED,
    "seq_lens": REQUIRED,
    "swa_kv_cache": REQUIRED,
    "compressed_kv_cache": REQUIRED,
}

# name -> (positional or keyword, keyword only)
SIGNATURES = {
    "trtllm_batch_decode_sparse_mla_dsv4": (
        FLASHINFER,
        {"lse": None, "return_lse": False, "lse_base": "e", "sink_mode": "apply"},
    ),
    "flash_mla_with_kvcache": (FLASH_MLA, {"out": None, "lse": None}),
    "convert_compressed_page_aligned_sparse_indices_to_hca_metadata": (
        CONVERT,
        {"q_len": REQUIRED, "kv_layout": "HND"},
    ),
    "hca_metadata": (
        {name: default for name, default in CONVERT.items() if name != "sparse_topk_lens"},
        {"q_len": REQUIRED, "kv_layout": "HND"},
    ),
    "merge_states": (
        {"outs": REQUIRED, "lses": REQUIRED},
        {"sinks": None, "bmm2_scale": 1.0, "lse_base": "e"},
    ),
    "pack_kv_cache": ({"kv": REQUIRED}, {"page_stride_bytes": 0, "out": None}),
    "unpack_kv_cache": ({"kv_cache": REQUIRED}, {"kv_layout": "HND"}),
    "append_kv_cache": (
        {"kv": REQUIRED, "kv_cache": REQUIRED, "slot_mapping": REQUIRED},
        {"scale": 1.0, "kv_layout": "HND"},
    ),
    "empty_kv_cache": (
        {"num_pages": REQUIRED, "page_size": REQUIRED},
        {"format": "packed", "page_stride_bytes": None, "device": None},
    ),
    "build_info": ({}, {}),
    "report": ({}, {}),
    "supports": (
        {"num_heads": 64},
        {
            "query_dtype": torch.bfloat16,
            "kv_format": "packed",
            "page_table": False,
            "device": None,
        },
    ),
    "workspace_size": (
        {"num_rows": REQUIRED, "num_heads": REQUIRED, "swa_width": REQUIRED, "compressed_width": 0},
        {"device": None, "batch_invariant": False, "table_rows": 1},
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    positional, keyword_only = SIGNATURES[name]
    wanted = [(n, Parameter.POSITIONAL_OR_KEYWORD, d) for n, d in positional.items()]
    wanted += [(n, Parameter.KEYWORD_ONLY, d) for n, d in keyword_only.items()]
    parameters = inspect.signature(getattr(dsv4, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in parameters] == wanted


def test_every_public_function_has_its_signature_here_and_a_docstring():
    public = {name: getattr(dsv4, name) for name in dsv4.__all__}
    assert all(value.__doc__ for value in public.values())
    functions = {name for name, value in public.items() if inspect.isfunction(value)}
    assert functions - set(SIGNATURES) == {"batch_decode_sparse_mla_dsv4", "get_mla_metadata"}


def test_backend_neutral_name_is_the_same_function():
    assert dsv4.batch_decode_sparse_mla_dsv4 is dsv4.trtllm_batch_decode_sparse_mla_dsv4
    assert dsv4.batch_decode_sparse_mla_dsv4.__name__ == "trtllm_batch_decode_sparse_mla_dsv4"


def test_get_mla_metadata_takes_anything():
    metadata, num_splits = dsv4.get_mla_metadata(1, 2, num_heads_k=1)
    assert metadata == dsv4.FlashMLASchedMeta()
    assert num_splits is None


def test_hca_metadata_fields():
    fields = {field.name: field.default for field in dataclasses.fields(dsv4.DSV4HCAMetadata)}
    assert fields == {
        "hca_swa_indices": dataclasses.MISSING,
        "hca_compressed_block_tables": dataclasses.MISSING,
        "hca_seq_lens": dataclasses.MISSING,
        "swa_topk_lens": dataclasses.MISSING,
        "hca_is_causal": True,
    }
    metadata = dsv4.DSV4HCAMetadata(*map(torch.zeros, (1, 1, 1, 1)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        metadata.hca_is_causal = False


def test_support_is_a_bool_with_a_reason():
    assert dsv4.Support(True, "")
    assert not dsv4.Support(False, "no engine")
    assert dsv4.Support(False, "no engine") == (False, "no engine")


def test_names_are_listed_and_unknown_ones_refused():
    assert set(dsv4.__all__) <= set(dir(dsv4))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dsv4.nonsense
