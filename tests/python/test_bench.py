"""The benchmark runs, on tiny shapes: its figures mean nothing here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import scanrnn

BENCH = Path(__file__).parents[1] / "bench" / "cpu.py"


@pytest.mark.slow
def test_cpu_benchmark():
    for module in ("torch", "jax", "ml_dtypes"):
        pytest.importorskip(module)
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    package = str(Path(scanrnn.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for row in ("| 2, 64, 32 |", "| B, D, T = 2, 32, 64 | float32 |", "empty registered operator"):
        assert row in done.stdout
