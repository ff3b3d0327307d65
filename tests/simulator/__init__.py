"""Runs CUDA kernels on the CPU by interpreting the PTX that nvcc emits; see README.md beside it.

    module = simulator.compile(source_file, "100a")
    result = module.launch("kernel", grid=4, block=128, arguments=[tensor, 3, 2.0])

Arguments are torch tensors (passed as pointers; only their storages may be touched), tensor maps of
them, ints (as wide as the parameter), floats (float32), and bytes (structs, passed by value).
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

_ROOT = Path(__file__).resolve().parents[2]
_CACHE = _ROOT / "build" / "ptx"


def _native():
    folder = os.environ.get("DSV4_HOST_TESTS_DIR", str(_ROOT / "build" / "native" / "tests"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import dsv4_simulator

    return dsv4_simulator


native = _native()
Options, AsyncMode = native.Options, native.AsyncMode
SimulatorError = native.SimulatorError

Dims = int | tuple[int, ...]


def options(
    async_mode: str = "eager",
    *,
    seed: int = 1,
    budget: int = 64,
    check: bool = True,
    count: bool = False,
    tensor_fences: bool = True,
    registers_per_thread: int = 0,
    after=None,
) -> Options:
    """async_mode "eager", "lazy" or "random": when copies and tensor-core work complete.
    tensor_fences False: do not ask for tcgen05.fence. registers_per_thread: as ptxas -v says, for
    the lints. after: the LaunchResult of a launch that this one may overtake (programmatic
    dependent launch): what it wrote may not be touched before griddepcontrol.wait."""
    result = Options()
    result.async_mode = getattr(AsyncMode, async_mode.upper())
    result.seed, result.budget = seed, budget
    result.check, result.count = check, count
    result.tensor_fences, result.registers_per_thread = tensor_fences, registers_per_thread
    if after is not None:
        result.start_after(after)
    return result


def nvcc() -> str | None:
    """The CUDA compiler that the build of the project would use, or None."""
    finder = _ROOT / "csrc" / "cmake" / "find_nvcc.py"
    found = subprocess.run([sys.executable, str(finder)], capture_output=True, text=True)
    return found.stdout.strip() or None


def compile_ptx(source: Path | str, target: str, flags: Sequence[str] = ()) -> str:
    """PTX of a .cu file, or of CUDA source text, for one target such as "90a"."""
    compiler = nvcc()
    if compiler is None:
        raise RuntimeError("no CUDA compiler; `make test` installs one from pip")
    code = Path(source).read_text() if isinstance(source, Path) else source
    includes = [f"-I{_ROOT / 'include'}", f"-I{_ROOT / 'csrc'}"]
    if isinstance(source, Path):
        includes.append(f"-I{source.parent}")
    command = [compiler, "-std=c++17", "-O3", "-ptx", f"-arch=compute_{target}", *includes, *flags]
    # Headers elsewhere are not part of the key: CMake compiles the kernels under test, not this.
    headers = sorted(source.parent.glob("*.cuh")) if isinstance(source, Path) else []
    texts = [*command, code, *(header.read_text() for header in headers)]
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
    cached = _CACHE / f"{key}.ptx"
    if not cached.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        file = _CACHE / f"{key}.cu"
        file.write_text(code)
        made = _CACHE / f"{key}.{os.getpid()}.tmp"
        run = subprocess.run([*command, str(file), "-o", str(made)], capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(f"nvcc failed:\n{run.stderr}")
        made.replace(cached)
    return cached.read_text()


def _dims(dims: Dims) -> tuple[int, int, int]:
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    return (*dims, *(1,) * (3 - len(dims)))


ELEMENTS = {
    torch.uint8: 0,
    torch.float8_e4m3fn: 0,
    torch.int16: 1,
    torch.int32: 3,
    torch.int64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


class TensorMap:
    """A CUtensorMap of a torch tensor, as a kernel argument. Box and element strides are given like
    the tensor's shape: innermost dimension last."""

    def __init__(
        self,
        tensor: torch.Tensor,
        box: Sequence[int],
        *,
        swizzle: int = 0,
        element_stride: Sequence[int] | None = None,
        fill_with_nan: bool = False,
    ) -> None:
        if tensor.stride(-1) != 1:
            raise ValueError("the innermost dimension must be contiguous")
        self.tensor = tensor
        strides = [step * tensor.element_size() for step in tensor.stride()[:-1]]
        self.bytes: bytes = native.encode_tensor_map(
            data_type=ELEMENTS[tensor.dtype],
            base=tensor.data_ptr(),
            size=list(reversed(tensor.shape)),
            stride_bytes=list(reversed(strides)),
            box=list(reversed(box)),
            element_stride=list(reversed(element_stride or [1] * len(box))),
            swizzle=SWIZZLES[swizzle],
            out_of_bounds_fill=int(fill_with_nan),
        )


class Module:
    """Kernels of one PTX text."""

    def __init__(self, ptx: str) -> None:
        self._module = native.Module(ptx)
        self.kernels: list[str] = self._module.kernels
        self.target: str = self._module.target

    def decode(self, kernel: str) -> None:
        """Decodes a kernel without running it; SimulatorError at the first unknown instruction."""
        self._module.decode(kernel)

    def launch(
        self,
        kernel: str,
        *,
        grid: Dims = 1,
        block: Dims = 32,
        cluster: Dims = 1,
        dynamic_shared_bytes: int = 0,
        arguments: Sequence[torch.Tensor | TensorMap | int | float | bytes] = (),
        options: Options | None = None,
        allow_races: bool = False,
    ):
        """Runs a kernel to its end and returns its LaunchResult. Reports of the checker are an
        error unless allow_races."""
        packed: list[bytes] = []
        registered: set[int] = set()
        for argument in arguments:
            if isinstance(argument, (torch.Tensor, TensorMap)):
                tensor = argument if isinstance(argument, torch.Tensor) else argument.tensor
                storage = tensor.untyped_storage()
                if storage.nbytes() > 0 and storage.data_ptr() not in registered:
                    native.register_memory(storage.data_ptr(), storage.nbytes())
                    registered.add(storage.data_ptr())
            if isinstance(argument, torch.Tensor):
                packed.append(struct.pack("<Q", argument.data_ptr()))
            elif isinstance(argument, TensorMap):
                packed.append(argument.bytes)
            elif isinstance(argument, bytes):
                packed.append(argument)
            elif isinstance(argument, float):
                packed.append(struct.pack("<f", argument))
            else:
                wide = not -(2**31) <= argument < 2**32
                packed.append(
                    struct.pack("<q" if wide else "<i" if argument < 0 else "<I", argument)
                )
        try:
            result = self._module.launch(
                kernel,
                _dims(grid),
                _dims(block),
                _dims(cluster),
                dynamic_shared_bytes,
                packed,
                options or Options(),
            )
        finally:
            for address in registered:
                native.unregister_memory(address)
        if result.races and not allow_races:
            raise SimulatorError("\n".join(["the checker reports:", *result.races]))
        return result


def compile(source: Path | str, target: str, flags: Sequence[str] = ()) -> Module:
    """Compiles and loads: see compile_ptx."""
    return Module(compile_ptx(source, target, flags))
