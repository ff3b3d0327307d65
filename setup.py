# SPDX-License-Identifier: Apache-2.0
"""Builds the native libraries with CMake and puts them into the Python package.

All settings are CMake's; the environment variable CMAKE_ARGS passes them on, as in
CMAKE_ARGS="-DDSV4_CUDA=OFF" pip install . --no-build-isolation
"""

import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


def version() -> str:
    text = (ROOT / "include/dsv4/version.h").read_text()
    return re.search(r'define DSV4_VERSION "(.+)"', text)[1]


def environment() -> dict[str, str]:
    """The environment of cmake, in which the tools that pip installed come first."""
    folders = []
    for module, attribute in (("cmake", "CMAKE_BIN_DIR"), ("ninja", "BIN_DIR")):
        # Where pip installed none, the system's are used.
        with contextlib.suppress(ImportError):
            folders.append(getattr(importlib.import_module(module), attribute))
    return {**os.environ, "PATH": os.pathsep.join([*folders, os.environ["PATH"]])}


class CMakeBuild(build_ext):
    """Installs what CMake builds into the package: the source tree's (editable) or the wheel's."""

    def run(self) -> None:
        if self.inplace:
            folder, package, options = ROOT / "build/native", ROOT / "python/dsv4", []
        else:
            # A wheel must not depend on the settings and tools of the one built before.
            folder, package = ROOT / "build/wheel", Path(self.build_lib, "dsv4").resolve()
            options = ["--fresh"]
        options += [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_INSTALL_PREFIX={package}"]
        options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        quiet = "--log-level=NOTICE"
        for command in (
            ["cmake", quiet, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options],
            ["cmake", "--build", str(folder), "--target", "install"],
        ):
            if subprocess.run(command, env=environment()).returncode != 0:
                sys.exit(f"failed: {shlex.join(command)}")

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformWheel(bdist_wheel):
    """The libraries need no Python ABI: one wheel serves every CPython of a platform."""

    def run(self) -> None:
        # What an earlier build left there would get into the wheel.
        shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    version=version(),
    # The name only marks the wheel as one for a platform.
    ext_modules=[Extension("dsv4._native", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": PlatformWheel},
)
