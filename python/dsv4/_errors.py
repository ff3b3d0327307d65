"""Errors of the Python front doors: argument, wanted, got, and a hint where there is one.

The operators check their own arguments and say so in a RuntimeError whose text names the type that
Python should raise: "dsv4 ValueError: seq_lens: expected int32, got int64". `call` raises that type
with the bare sentence; likewise TypeError for an argument that torch cannot pass to the operator.
Inside torch.compile the operator runs outside of `call`, so there its error stays the RuntimeError
with the marked text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_MARKED = re.compile(r"dsv4 (ValueError|TypeError|RuntimeError): ([^\n]*)")
_NOT_PASSED = re.compile(
    r"Expected a value of type '(?:Optional\[)?(\w+)\]?' for argument '(\w+)' "
    r"but instead found type '(\w+)'"
)
_TYPES = {"ValueError": ValueError, "TypeError": TypeError, "RuntimeError": RuntimeError}
_NO_NAMES: Mapping[str, str] = {}


def call(operator: Any, *args: Any, names: Mapping[str, str] = _NO_NAMES, **kwargs: Any) -> Any:
    """Calls an operator; its marked errors become the named type.

    names   what the caller of the front door calls the operator's arguments
    """
    try:
        return operator(*args, **kwargs)
    except RuntimeError as error:
        raise _translated(error, names) from None


def _translated(error: RuntimeError, names: Mapping[str, str]) -> Exception:
    text = str(error)
    if found := _MARKED.search(text):
        kind, sentence = found.groups()
    elif found := _NOT_PASSED.search(text):
        wanted, argument, got = found.groups()
        kind, sentence = "TypeError", f"{argument}: expected {wanted}, got {got}"
    else:
        return error
    if names:
        words = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
        sentence = words.sub(lambda word: names[word.group()], sentence)
    return _TYPES[kind](sentence)


def dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensor_text(tensor: Tensor) -> str:
    return f"shape {list(tensor.shape)}"


def check_is_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")


def check_tensor(
    tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """ValueError unless the tensor has this shape and dtype and lies where the query lies;
    TypeError if it is no tensor."""
    check_is_tensor(tensor, name)
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected {dtype_text(dtype)}, got {dtype_text(tensor.dtype)}")
    if tensor.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}, got one on {tensor.device}")


def check_result(
    tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """check_tensor for a tensor to be written; any strides do if the last dimension is dense."""
    check_tensor(tensor, name, shape, dtype, device)
    if shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}: expected a contiguous last dimension, got strides {list(tensor.stride())}"
        )


def split_scale(scale: float | Tensor, name: str) -> tuple[float, Tensor | None]:
    """A scale as the operators take it: (float, None), or (1.0, tensor read on the device)."""
    if isinstance(scale, Tensor):
        if scale.dtype != torch.float32:
            raise TypeError(
                f"{name}: expected a float or a float32 tensor, got {dtype_text(scale.dtype)}"
            )
        return 1.0, scale
    # NaN or infinity minus itself is NaN. torch.compile cannot trace math.isfinite.
    if isinstance(scale, (int, float)) and scale - scale != 0:
        raise ValueError(f"{name}: expected a finite number, got {scale}")
    return scale, None
