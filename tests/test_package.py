"""What gets installed: the C++ prefix, the wheel, and how the build finds its tools."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "cpp"
FIND_NVCC = ROOT / "csrc" / "cmake" / "find_nvcc.py"

# Tools of the environment that runs the tests come before those of the system.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
for name in ("LD_PRELOAD", "PYTHONPATH", "DSV4_LIBRARY_DIR"):
    ENVIRONMENT.pop(name, None)


def run(*command, check=True, **environment) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **environment},
    )
    if check and done.returncode != 0:
        pytest.fail(f"{done.args} returned {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """A C++ installation without torch and CUDA, made by the commands of examples/README.md."""
    folder = tmp_path_factory.mktemp("cpp")
    options = ["-DDSV4_TORCH=OFF", "-DDSV4_CUDA=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    run("cmake", "-S", ROOT, "-B", folder / "build", "-G", "Ninja", *options)
    run("cmake", "--build", folder / "build")
    run("cmake", "--install", folder / "build", "--prefix", folder / "first")
    # Moved, because an installation must not know where it was made.
    return (folder / "first").rename(folder / "prefix")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", folder]
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT, CMAKE_ARGS="-DDSV4_MANYLINUX=ON")
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "dsv4"


@pytest.fixture(scope="module")
def wheel_python(wheel, tmp_path_factory):
    """The interpreter of a new environment that holds the wheel, and torch of this one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).stdout.strip()
    # A folder named in a .pth file comes last, and its own .pth files, by which an editable install
    # of this checkout would come along, are not read.
    Path(site, "torch_of_this_environment.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    options = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
    return python


def needed(library: Path) -> set[str]:
    """Names of the libraries that this one loads."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", library).stdout))


def exported(library: Path) -> set[str]:
    """Demangled names, without arguments, of what a library exports."""
    lines = run("nm", "-DC", "--defined-only", library).stdout.splitlines()
    return {line.split(maxsplit=2)[2].partition("(")[0] for line in lines}


# --- C++ ------------------------------------------------------------------------------------------


def build_with_cmake(prefix: Path, folder: Path) -> Path:
    run("cmake", "-S", EXAMPLE, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder)
    return folder / "decode"


@pytest.mark.slow
def test_example_builds_with_find_package(prefix, tmp_path):
    assert "largest error" in run(build_with_cmake(prefix, tmp_path)).stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pkg-config"), reason="there is no pkg-config")
def test_example_builds_with_pkg_config(prefix, tmp_path):
    search = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "dsv4", **search).stdout.split()
    rpath = f"-Wl,-rpath,{prefix / 'lib'}"
    compiler = os.environ.get("CXX", "c++")
    run(compiler, "-std=c++17", EXAMPLE / "decode.cpp", *flags, rpath, "-o", tmp_path / "decode")
    assert "largest error" in run(tmp_path / "decode").stdout


@pytest.mark.slow
def test_find_package_knows_the_version(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(user LANGUAGES CXX)\n"
        "find_package(dsv4 ${WANTED} CONFIG)\nmessage(NOTICE found=${dsv4_FOUND})\n"
    )
    for wanted, found in (("0.1", 1), ("99.0", 0)):
        options = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DWANTED={wanted}"]
        done = run("cmake", "-S", tmp_path, "-B", tmp_path / wanted, "-G", "Ninja", *options)
        assert f"found={found}" in done.stdout + done.stderr


# --- Wheel ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wheel_serves_every_python_and_is_small(wheel):
    assert re.fullmatch(r"dsv4-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    assert wheel.stat().st_size < 20e6


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel, unpacked):
    sources = ROOT / "python" / "dsv4"
    expected = {path.name for path in sources.glob("*.py")} | {"py.typed", "include", "lib"}
    assert {path.name for path in unpacked.iterdir()} == expected
    assert {path.name for path in (unpacked / "lib").iterdir()} == {
        "cmake",
        "libdsv4.so",
        "libdsv4_torch.so",
        "pkgconfig",
    }
    headers = {path.name for path in (ROOT / "include" / "dsv4").iterdir()}
    assert {path.name for path in (unpacked / "include" / "dsv4").iterdir()} == headers
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"dsv4"}


@pytest.mark.slow
def test_library_exports_its_api_and_nothing_else(unpacked):
    header = (ROOT / "include" / "dsv4" / "dsv4.h").read_text()
    api = re.findall(r"^DSV4_API [\w:*& ]*?(\w+)\(", header, re.MULTILINE)
    assert len(api) >= 8
    assert exported(unpacked / "lib" / "libdsv4.so") == {f"dsv4::{name}" for name in api}
    assert exported(unpacked / "lib" / "libdsv4_torch.so") == set()


@pytest.mark.slow
def test_libraries_load_only_what_every_system_has(unpacked):
    system = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
    system |= {"libgcc_s.so.1"} | {f"ld-linux-{cpu}" for cpu in ("x86-64.so.2", "aarch64.so.1")}
    libdsv4, libdsv4_torch = (unpacked / "lib" / f"{x}.so" for x in ("libdsv4", "libdsv4_torch"))
    assert needed(libdsv4) <= system
    assert needed(libdsv4_torch) - system == {"libdsv4.so", "libtorch.so"}
    for library in (libdsv4, libdsv4_torch):
        assert "runpath: [$ORIGIN]" in run("readelf", "-d", library).stdout
        assert str(ROOT).encode() not in library.read_bytes()


@pytest.mark.slow
def test_libraries_run_on_old_systems(unpacked):
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split("."))) >= (2, 38):
        # From 2.38 on, headers name functions that older C libraries lack.
        pytest.skip(f"{name} {version} of this system is too new to build for old ones")
    for library in (unpacked / "lib").glob("*.so"):
        versions = re.findall(r"@GLIBC_(\d+)\.(\d+)", run("nm", "-D", library).stdout)
        assert max(tuple(map(int, found)) for found in versions) <= (2, 28)


@pytest.mark.slow
def test_wheel_runs(wheel_python, tmp_path):
    folder = wheel_python.parents[1]
    info = run(wheel_python, "-m", "dsv4", "info").stdout
    assert "cpu" in info
    assert "PASS" in run(wheel_python, "-m", "dsv4", "check", "--quick", "--forms", "packed").stdout
    # With one slot, the result is that slot's row.
    script = """
import dsv4, torch
assert dsv4.build_info()["version"] == dsv4.__version__
cache = torch.arange(2 * 4 * 512).remainder(97).reshape(2, 1, 4, 512).bfloat16()
slots = torch.tensor([[-1, 6]], dtype=torch.int32)
query = torch.ones(1, 1, 3, 512, dtype=torch.bfloat16)
out, lse = torch.ops.dsv4.sparse_mla_decode(query, cache, slots, bmm1_scale=0.5)
assert torch.equal(out, cache[1, 0, 2].expand(1, 1, 3, 512))
print(dsv4.__file__)
"""
    (tmp_path / "decode.py").write_text(script)
    done = run(wheel_python, tmp_path / "decode.py")
    assert done.stdout.startswith(str(folder))


@pytest.mark.slow
def test_example_builds_inside_the_installed_wheel(wheel_python, tmp_path):
    (package,) = wheel_python.parents[1].glob("lib/python*/site-packages/dsv4")
    assert "largest error" in run(build_with_cmake(package, tmp_path)).stdout


# --- How the build finds its tools ----------------------------------------------------------------


@pytest.fixture
def fake_nvcc(tmp_path):
    def make(folder: str, version: str) -> Path:
        path = tmp_path / folder / "bin" / "nvcc"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}'\n"
        )
        path.chmod(0o755)
        return path

    return make


def test_nvcc_order(fake_nvcc):
    explicit, home, on_path = (fake_nvcc(name, "13.0") for name in ("explicit", "home", "path"))
    places = {
        "CUDACXX": str(explicit),
        "CUDA_HOME": str(home.parents[1]),
        "PATH": f"{on_path.parent}:{ENVIRONMENT['PATH']}",
    }
    for left_out, found in (("", explicit), ("CUDACXX", home)):
        places[left_out] = ""
        assert run(sys.executable, FIND_NVCC, **places).stdout.strip() == str(found)


def test_nvcc_too_old_is_passed_over(fake_nvcc):
    old, new = fake_nvcc("old", "12.0"), fake_nvcc("new", "13.1")
    places = {"CUDACXX": str(old), "CUDA_HOME": str(new.parents[1])}
    assert run(sys.executable, FIND_NVCC, **places).stdout.strip() == str(new)


def test_build_without_torch_says_how_to_get_it(tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    python = f"-DPython_EXECUTABLE={tmp_path / 'venv' / 'bin' / 'python'}"
    options = ["-G", "Ninja", "-DDSV4_CUDA=OFF", python]
    done = run("cmake", "-S", ROOT, "-B", tmp_path / "build", *options, check=False)
    assert done.returncode != 0
    assert "--no-build-isolation" in done.stderr
    assert "DSV4_TORCH=OFF" in done.stderr
