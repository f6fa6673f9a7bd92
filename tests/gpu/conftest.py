"""Tests on a CUDA device, against the installed package: `tests/gpu/run.sh`, or `pytest tests/gpu`.

Without a device, or without a build for it, all of them are skipped. `--device cpu` runs those that
need nothing of CUDA itself on the CPU backend, which is how to work on them without a GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# The recurrences as loops, which the tests on the CPU compare with too.
sys.path.append(str(Path(__file__).parents[1] / "python"))

# Before JAX starts: it would take most of the device's memory, which the others need.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import scanrnn


def pytest_addoption(parser):
    parser.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="where to run")


def pytest_configure(config):
    # Frameworks warn of what they find on machines that this project's CI never sees.
    config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(config, items):
    for item in items:
        item.add_marker(pytest.mark.gpu)
    if config.getoption("--device") == "cuda" and not scanrnn.cuda_available():
        why = scanrnn._core.cuda_unavailable_reason()
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA: {why}"))


@pytest.fixture
def device(request):
    """The device to test on, as PyTorch names it."""
    return request.config.getoption("--device")


@pytest.fixture
def cuda(device):
    """The same, for tests of what only CUDA has: streams, graphs, allocators."""
    if device != "cuda":
        pytest.skip("is about CUDA")
    return device


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def run_python():
    """Run a piece of Python in a new process and return what it printed; it must exit with 0."""
    package = str(Path(scanrnn.__file__).parents[1])

    def run(code, **environment):
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run
