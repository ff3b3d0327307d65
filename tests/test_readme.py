"""README.md is a program: its code runs, its links lead somewhere, its make targets exist."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dsv4

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PACKAGE = Path(dsv4.__file__).resolve().parent


def blocks(*languages):
    """(line number, code) of each fenced block in one of the languages."""
    found = []
    for match in re.finditer(r"^```(\S+)\n(.*?)^```$", README, re.M | re.S):
        if match[1] in languages:
            found.append((README[: match.start()].count("\n") + 2, match[2]))
    return found


def line(block):
    return f"line{block[0]}"


PYTHON, CPP = blocks("python"), blocks("cpp", "c++")


def test_there_is_code_of_each_kind():
    assert len(PYTHON) >= 2
    assert len(CPP) >= 1
    assert len(blocks("sh")) >= 2


@pytest.mark.parametrize("block", PYTHON, ids=line)
def test_python(block):
    number, code = block
    # Blank lines before it make a traceback name the line of the README.
    exec(
        compile("\n" * (number - 1) + code, str(ROOT / "README.md"), "exec"), {"__name__": "readme"}
    )


@pytest.mark.parametrize("block", CPP, ids=line)
def test_cpp(block, tmp_path):
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler, "the README's C++ needs a compiler, as building the package does"
    number, code = block
    source, program = tmp_path / "readme.cpp", tmp_path / "readme"
    source.write_text(f'#line {number} "README.md"\n{code}')
    subprocess.run(
        [
            compiler,
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            str(source),
            f"-I{PACKAGE / 'include'}",
            f"-L{PACKAGE / 'lib'}",
            "-ldsv4",
            f"-Wl,-rpath,{PACKAGE / 'lib'}",
            "-o",
            str(program),
        ],
        check=True,
        timeout=120,
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    assert links
    broken = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not broken


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"\bmake ([a-z]+)", " ".join(re.findall(r"`[^`]+`", README))))
    for _, code in blocks("sh"):
        named |= set(re.findall(r"^make ([a-z]+)", code, re.M))
    assert named
    assert named <= targets
