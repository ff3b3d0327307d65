"""dsv4: DeepSeek-V4 sparse MLA decode on CPUs and GPUs.

The functions below load on first use; `import dsv4` itself only registers the operators
`torch.ops.dsv4.*` and their fake kernels. The pages to read first are the docstrings of
`trtllm_batch_decode_sparse_mla_dsv4` (the decode), `dsv4.reference` (what it computes) and
`dsv4.kv_cache` (the bytes of a cache).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _library

if TYPE_CHECKING:
    from .decode import batch_decode_sparse_mla_dsv4, trtllm_batch_decode_sparse_mla_dsv4
    from .flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata
    from .hca import (
        DSV4HCAMetadata,
        convert_compressed_page_aligned_sparse_indices_to_hca_metadata,
        hca_metadata,
    )
    from .info import Support, build_info, report, supports, workspace_size
    from .kv_cache import append_kv_cache, empty_kv_cache, pack_kv_cache, unpack_kv_cache
    from .merge import merge_states

    __version__: str

_MODULE_OF = {
    "batch_decode_sparse_mla_dsv4": "decode",
    "trtllm_batch_decode_sparse_mla_dsv4": "decode",
    "FlashMLASchedMeta": "flash_mla",
    "flash_mla_with_kvcache": "flash_mla",
    "get_mla_metadata": "flash_mla",
    "DSV4HCAMetadata": "hca",
    "convert_compressed_page_aligned_sparse_indices_to_hca_metadata": "hca",
    "hca_metadata": "hca",
    "Support": "info",
    "build_info": "info",
    "report": "info",
    "supports": "info",
    "workspace_size": "info",
    "append_kv_cache": "kv_cache",
    "empty_kv_cache": "kv_cache",
    "pack_kv_cache": "kv_cache",
    "unpack_kv_cache": "kv_cache",
    "merge_states": "merge",
}

__all__ = [
    "DSV4HCAMetadata",
    "FlashMLASchedMeta",
    "Support",
    "append_kv_cache",
    "batch_decode_sparse_mla_dsv4",
    "build_info",
    "convert_compressed_page_aligned_sparse_indices_to_hca_metadata",
    "empty_kv_cache",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
    "hca_metadata",
    "merge_states",
    "pack_kv_cache",
    "report",
    "supports",
    "trtllm_batch_decode_sparse_mla_dsv4",
    "unpack_kv_cache",
    "workspace_size",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _library.version()
    elif name in _MODULE_OF:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


# A checkout that was never built can still use the pure Python modules (reference, kv_cache's
# numbers); the first operator it touches raises the ImportError that says what to do.
if _library.is_built():
    from . import ops as _ops  # noqa: F401
