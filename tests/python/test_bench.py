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
    for row in ("| 2, 64, 32 |", "| B, D, T = 2, 32, 64 | float32 |", "empty registered operator"):
        assert row in done.stdout


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
    done = run("gpu.py", "eager", "overhead", "peers", "layers", "--quick", "--write", str(file))
    assert done.returncode == 0, done.stderr
    for row in ("| whole call |", "an empty registered operator", "| 2, 64, 32 |"):
        assert row in done.stdout
    assert "## CUDA: " in file.read_text()


def test_results_are_written_in_place_of_the_former(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("scanrnn_cuda_bench", BENCH / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    written = module.written

    text = "## 2026: a CPU\n\nkept\n\n## CUDA: one\n\nold\n\n## CUDA: two\n\nkept too\n"
    once = written(text, ["## CUDA: one\n", "new"])
    assert "old" not in once
    assert once.index("a CPU") < once.index("new") < once.index("two") < once.index("kept too")
    assert written(once, ["## CUDA: one\n", "new"]) == once
    assert written(text, ["## CUDA: three\n", "new"]).endswith(
        "kept too\n\n## CUDA: three\n\nnew\n\n"
    )
