"""The benchmarks run, on tiny shapes: their figures mean nothing here."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import scanrnn

BENCH = Path(__file__).parents[1] / "bench"


def run(script, *arguments):
    package = str(Path(scanrnn.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_cpu_benchmark():
    for module in ("torch", "jax", "ml_dtypes"):
        pytest.importorskip(module)
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    done = run("cpu.py", "--quick")
    assert done.returncode == 0, done.stderr
    for row in (
        "| 2, 64, 32 |",
        "| 2, 64, 32 | rg_lru |",
        "| B, D, T = 2, 32, 64 | float32 |",
        "empty registered operator",
    ):
        assert row in done.stdout


@pytest.mark.slow
def test_dense_benchmark():
    pytest.importorskip("torch")
    done = run("dense.py", "--device", "cpu", "--quick", "long", "grid")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| LSTM | 64 | 1 | default |" in done.stdout
    assert "all goals met" in done.stdout


def test_cuda_benchmark_without_a_device():
    if scanrnn.cuda_available():
        pytest.skip("there is a device")
    done = run("gpu.py")
    assert done.returncode == 2
    assert "nothing to measure: " in done.stderr
    assert not done.stdout


@pytest.mark.gpu
@pytest.mark.slow
def test_cuda_benchmark(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "results.md"
    sections = ("eager", "packed", "overhead", "peers", "layers", "cells")
    done = run("gpu.py", *sections, "--quick", "--write", str(file))
    assert done.returncode == 0, done.stderr
    for row in (
        "| whole call |",
        "| 8 | forward + backward |",
        "an empty registered operator",
        "| 2, 64, 32 |",
        "| 2, 64, 32 | rg_lru |",
        "Faster than torch.nn.GRU: ",
    ):
        assert row in done.stdout
    assert "## CUDA: " in file.read_text()


@pytest.fixture
def gpu(monkeypatch):
    """The module gpu.py."""
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("scanrnn_cuda_bench", BENCH / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_cells_are_compared_with_their_own_equations(gpu, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    assert {cell.core for cell in gpu.CELLS.values()} == {
        row["name"] for row in scanrnn._core.cell_table()
    }
    for name, cell in gpu.CELLS.items():
        inputs = [tensor.double() for tensor in gpu.cell_inputs(cell, (2, 50, 3))]
        functions = gpu.cell_function(name), gpu.by_scan(cell, gpu.torch_loop)
        ours, theirs = (gpu.with_gradient(function, *inputs)() for function in functions)
        torch.testing.assert_close(ours, theirs)
        x = torch.randn(2, 50, 3)
        outputs = [layer(cell, 3)(x)[0] for layer in (gpu.our_layer, gpu.looped_layer)]
        assert outputs[0].shape == outputs[1].shape == x.shape


def test_results_are_written_in_place_of_the_former(gpu):
    written = gpu.written

    text = "## 2026: a CPU\n\nkept\n\n## CUDA: one\n\nold\n\n## CUDA: two\n\nkept too\n"
    once = written(text, ["## CUDA: one\n", "new"])
    assert "old" not in once
    assert once.index("a CPU") < once.index("new") < once.index("two") < once.index("kept too")
    assert written(once, ["## CUDA: one\n", "new"]) == once
    assert written(text, ["## CUDA: three\n", "new"]).endswith(
        "kept too\n\n## CUDA: three\n\nnew\n\n"
    )
