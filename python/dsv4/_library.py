"""Finds and loads the native libraries, which register `torch.ops.dsv4.*`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_PACKAGE = Path(__file__).resolve().parent
# DSV4_LIBRARY_DIR names another build, such as the one with sanitizers. The library finds
# libdsv4.so beside itself.
_FOLDER = Path(os.environ.get("DSV4_LIBRARY_DIR", _PACKAGE / "lib")).resolve()
TORCH_LIBRARY = _FOLDER / "libdsv4_torch.so"
VERSION_HEADER = _PACKAGE / "include" / "dsv4" / "version.h"

_loaded = False


def is_built() -> bool:
    """True if the native libraries are there to be loaded."""
    return TORCH_LIBRARY.is_file()


def load() -> None:
    """Loads the libraries once.

    Raises ImportError, with what to do about it, if they were not built or do not fit this torch.
    """
    global _loaded
    if _loaded:
        return
    if not is_built():
        raise ImportError(
            f"dsv4: the native library {TORCH_LIBRARY} does not exist. "
            "Install a wheel, or build it from the source checkout with `pip install -e .`"
        )
    try:
        torch.ops.load_library(str(TORCH_LIBRARY))
    except OSError as error:
        raise ImportError(
            f"dsv4: torch {torch.__version__} cannot load {TORCH_LIBRARY}: {error}. "
            "Rebuild it against this torch, or install a wheel made for it"
        ) from error
    _loaded = True


def operators() -> Any:
    """`torch.ops.dsv4`, or the ImportError that says why there is none."""
    load()
    return torch.ops.dsv4


def version() -> str:
    """The version in the installed C++ header, the one place that states it."""
    if not VERSION_HEADER.is_file():
        raise ImportError(
            f"dsv4: {VERSION_HEADER} does not exist. "
            "Install a wheel, or build the source checkout with `pip install -e .`"
        )
    for line in VERSION_HEADER.read_text().splitlines():
        if line.startswith("#define DSV4_VERSION"):
            return line.split('"')[1]
    raise ImportError(f"dsv4: {VERSION_HEADER} defines no DSV4_VERSION")
