"""The KV caches: their bytes, and the functions that write and read them.

    packed page of P tokens = [ token 0 .. token P-1 | scales 0 .. scales P-1 ]
      token  (576 B) = 448 x e4m3 NoPE, then 64 x bf16 RoPE
      scales (  8 B) = 7 x UE8M0, one per 64 NoPE values (value = 2^(bits - 127)), then 1 pad byte

A packed cache declares 584 bytes per token ([pages, P, 584] uint8), but the bytes of a page lie as
drawn. The distance between pages is the tensor's stride(0), which may exceed 584 * P: engines pad
pages to a multiple of 576 bytes, or interleave the layers of a model in one allocation.

The other caches are plain [pages, P, 512] pools of bf16, or of e4m3 with one scale for the tensor.

Every format is accepted in these shapes, last dimension contiguous:

    3-D             [pages, P, width]
    4-D, "HND"      [pages, 1, P, width]
    4-D, "NHD"      [pages, P, 1, width]
    2-D, packed     [pages, bytes]           P = bytes // 584

A slot is numbered page * P + offset. The C++ twin of this page is include/dsv4/kv_format.h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._errors import call, split_scale, tensor_text
from ._library import operators

HEAD_DIM = 512  # keys and values are the same 512 numbers
NOPE_DIM = 448
ROPE_DIM = HEAD_DIM - NOPE_DIM
WINDOW = 128  # columns of the window segment in the token-sparse and HCA forms

QUANT_GROUP = 64  # NoPE values that share one UE8M0 scale
SCALE_EXPONENT_BIAS = 127
PACKED_TOKEN_DATA_BYTES = NOPE_DIM + 2 * ROPE_DIM
PACKED_TOKEN_SCALE_BYTES = NOPE_DIM // QUANT_GROUP + 1
PACKED_TOKEN_BYTES = PACKED_TOKEN_DATA_BYTES + PACKED_TOKEN_SCALE_BYTES

_FORMATS = {
    "packed": (torch.uint8, PACKED_TOKEN_BYTES),
    "bf16": (torch.bfloat16, HEAD_DIM),
    "e4m3": (torch.float8_e4m3fn, HEAD_DIM),
}


def is_packed(kv_cache: Tensor) -> bool:
    """True if the tensor can only be a packed cache: bytes, 584 wide, or a 2-D run of pages."""
    return (
        kv_cache.dtype in (torch.uint8, torch.int8)
        or kv_cache.dim() == 2
        or kv_cache.shape[-1:] == (PACKED_TOKEN_BYTES,)
    )


def pool_shape(kv_cache: Tensor, kv_layout: str, name: str) -> tuple[int, int]:
    """(number of pages, tokens per page) of a cache in any shape of the table above.

    As in FlashInfer, a 3-D pool of 512 columns is an "HND" shorthand: "NHD" with it is a
    ValueError.
    """
    dims = kv_cache.dim()
    if kv_layout not in ("HND", "NHD"):
        raise ValueError(f"kv_layout: expected 'HND' or 'NHD', got {kv_layout!r}")
    if dims == 2 and kv_cache.element_size() == 1:
        return kv_cache.shape[0], kv_cache.shape[1] // PACKED_TOKEN_BYTES
    if dims == 3:
        if kv_layout == "NHD" and not is_packed(kv_cache):
            raise ValueError(
                f"{name}: expected 4 dimensions [pages, page_size, 1, {HEAD_DIM}] for "
                f"kv_layout='NHD', got {tensor_text(kv_cache)}; a 3-D cache needs kv_layout='HND'"
            )
        return kv_cache.shape[0], kv_cache.shape[1]
    if dims != 4:
        raise ValueError(f"{name}: expected 3 or 4 dimensions, got {tensor_text(kv_cache)}")
    head_axis, page_axis = (1, 2) if kv_layout == "HND" else (2, 1)
    if kv_cache.shape[head_axis] != 1:
        raise ValueError(
            f"{name}: expected one KV head in dimension {head_axis} for kv_layout={kv_layout!r}, "
            f"got {tensor_text(kv_cache)}; does the other kv_layout fit?"
        )
    return kv_cache.shape[0], kv_cache.shape[page_axis]


def empty_kv_cache(
    num_pages: int,
    page_size: int,
    *,
    format: str = "packed",
    page_stride_bytes: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Allocates a cache and leaves its bytes uninitialised.

    num_pages, page_size   pages, and tokens per page (any number >= 1)
    format                 "packed" (uint8, 584 wide), "bf16" or "e4m3" (512 wide)
    page_stride_bytes      distance between pages; None: dense. Larger ones leave room that no
                           function of this package touches
    device                 as for torch.empty

    Returns [num_pages, page_size, 584 or 512]. For the 4-D layouts use `.unsqueeze(1)` ("HND") or
    `.unsqueeze(2)` ("NHD"). An uninitialised slot is harmless until an index names it.

    Raises ValueError for an unknown format, a size below its minimum, or a stride that is shorter
    than a page or no multiple of the element size.
    """
    if format not in _FORMATS:
        raise ValueError(f"format: expected one of {', '.join(_FORMATS)}, got {format!r}")
    if num_pages < 0:
        raise ValueError(f"num_pages: expected 0 or more, got {num_pages}")
    if page_size < 1:
        raise ValueError(f"page_size: expected 1 or more, got {page_size}")
    dtype, width = _FORMATS[format]
    page_bytes = page_size * width * dtype.itemsize
    stride_bytes = page_bytes if page_stride_bytes is None else page_stride_bytes
    if stride_bytes < page_bytes or stride_bytes % dtype.itemsize != 0:
        raise ValueError(
            f"page_stride_bytes: expected a multiple of {dtype.itemsize} of at least {page_bytes}, "
            f"got {stride_bytes}"
        )
    storage = torch.empty(num_pages * stride_bytes // dtype.itemsize, dtype=dtype, device=device)
    return storage.as_strided(
        (num_pages, page_size, width), (stride_bytes // dtype.itemsize, width, 1)
    )


def pack_kv_cache(kv: Tensor, *, page_stride_bytes: int = 0, out: Tensor | None = None) -> Tensor:
    """Quantises whole pages into the packed format.

    kv                  [pages, P, 512] bf16
    page_stride_bytes   distance between the pages of the result; 0: dense (584 * P)
    out                 [pages, P, 584] uint8 or int8 to write instead; only the 584 * P bytes of
                        each page are written

    Returns [pages, P, 584] uint8, or `out`. Each 64 NoPE values share the scale
    2^ceil(log2(max(amax, 1e-4) / 448)) and round to nearest even; RoPE values are copied.

    Raises ValueError for a wrong shape, dtype or device, and for both `out` and a stride.
    Graph-safe.
    """
    if out is None:
        return call(operators().pack_kv_cache.default, kv, page_stride_bytes=page_stride_bytes)
    if page_stride_bytes != 0:
        raise ValueError(
            f"page_stride_bytes: expected 0 together with out, got {page_stride_bytes}; "
            "the stride is that of out"
        )
    call(operators().pack_kv_cache.out, kv, out=out)
    return out


def unpack_kv_cache(kv_cache: Tensor, *, kv_layout: str = "HND") -> Tensor:
    """Reads whole packed pages back: bf16 [pages, P, 512], exactly the values that a decode uses.

    kv_cache    packed cache, uint8, int8 or e4m3, in any shape of the module's table
    kv_layout   "HND" or "NHD", for 4-D caches

    Raises ValueError for a wrong shape or dtype. Graph-safe.
    """
    return call(operators().unpack_kv_cache.default, kv_cache, kv_layout=kv_layout)


def append_kv_cache(
    kv: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    scale: float | Tensor = 1.0,
    kv_layout: str = "HND",
) -> None:
    """Writes rows into the named slots of a cache, in place, quantising as its format asks.

    kv             [T, 512] bf16
    kv_cache       packed (uint8, int8), bf16 or e4m3, in any shape of the module's table
    slot_mapping   [T] int32 or int64: page * P + offset. A negative slot, or one past the end, is
                   skipped. If two rows name one slot, one of them wins
    scale          e4m3 caches only: the stored value is x / scale, saturated at +-448. A float, or
                   one float32 on the device
    kv_layout      "HND" or "NHD", for 4-D caches

    Nothing but the named slots' bytes is written. Raises ValueError for a wrong shape, dtype or
    device, TypeError for a scale tensor that is not float32. Graph-safe.
    """
    scale, scale_tensor = split_scale(scale, "scale")
    call(
        operators().append_kv_cache.default,
        kv,
        kv_cache,
        slot_mapping,
        names={"scale_tensor": "scale"},
        scale=scale,
        scale_tensor=scale_tensor,
        kv_layout=kv_layout,
    )
