"""What the README shows, runs."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import scanrnn
from scanrnn import _info

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(CPP,) = re.findall(r"```cpp\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", PYTHON, ids=lambda text: text.split()[1])
def test_python_examples(example):
    compile(example, "README.md", "exec")
    for framework in ("torch", "jax", "cupy"):
        if f"import {framework}" in example:
            pytest.importorskip(framework)
    if "cupy" in example and not scanrnn.cuda_available():
        pytest.skip("needs a build with the CUDA backend, and a device")
    exec(example, {"__name__": "readme"})


def test_an_example_for_each_framework():
    assert [re.findall(r"import (\w+)", text)[0] for text in PYTHON] == [
        "numpy",
        "torch",
        "jax",
        "cupy",
        "torch",
    ]


def test_numbers_in_the_examples():
    """The shapes that the comments give."""
    names = {}
    exec(PYTHON[0], names)
    assert names["h"].shape == (2, 10_000, 64)
    assert names["last"].shape == (2, 64)
    pytest.importorskip("torch")
    names = {}
    exec(PYTHON[1], names)
    assert names["y"].shape == (4, 1000, 256)
    assert names["state"].shape == (4, 4, 128)


def test_cpp_example(tmp_path):
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(CPP)
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", str(source)]
    try:
        prefix = _info.cmake_dir().parents[2]
    except FileNotFoundError:  # this scanrnn runs from the sources: there is nothing to link with
        subprocess.run([*command, f"-I{ROOT / 'include'}", "-fsyntax-only"], check=True)
        return
    library = prefix / "lib" / "libscanrnn.a"
    command += [f"-I{prefix / 'include'}", str(library), "-pthread", "-o", str(program)]
    subprocess.run(command, check=True)
    assert subprocess.run([program], check=True, capture_output=True, text=True).stdout == "2\n"


def test_files_that_the_readme_names_exist():
    patterns = re.findall(r"`(tests/[\w/.*]+)`|\]\((\w[\w./]*)\)", README)
    for pattern in filter(None, (name for pair in patterns for name in pair)):
        assert list(ROOT.glob(pattern)), pattern


def test_names_in_the_readme_exist():
    names = set(re.findall(r"\b(scanrnn(?:\.[A-Za-z_]\w*)+)\b(?!\*)", README))
    assert {"scanrnn.scan", "scanrnn.torch.LSTM", "scanrnn.examples.adding"} <= names
    for name in names - {"scanrnn.hpp"}:
        module, *rest = name.split(".")
        for framework in ("torch", "jax"):
            if rest[0] == framework:
                pytest.importorskip(framework)
        value = importlib.import_module(module)
        for part in rest:
            module += f".{part}"
            if not hasattr(value, part) and importlib.util.find_spec(module):
                value = importlib.import_module(module)
            else:
                value = getattr(value, part)


def test_commands_in_the_readme_exist():
    from scanrnn.__main__ import parser

    for command in set(re.findall(r"python -m scanrnn (\w+)", README)):
        with pytest.raises(SystemExit) as stop:
            parser().parse_args([command, "--help"])
        assert stop.value.code == 0
