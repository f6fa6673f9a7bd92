"""Fixtures and settings that all Python tests share."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# Before anything imports JAX: sharding tests need two devices. What XLA generates is run once or
# twice here, so LLVM's optimisations are not worth their time; XLA's own, on graphs, are left.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=2"
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

import scanrnn

# CI runs the same examples every time; a developer's machine looks for new ones, and
# SCANRNN_LONG_TESTS=1 for more of them.
hypothesis.settings.register_profile(
    "scanrnn",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=300 if "SCANRNN_LONG_TESTS" in os.environ else 30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("scanrnn")


def pytest_collection_modifyitems(items):
    if scanrnn.cuda_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and a build with the CUDA backend")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def threads():
    """`set_num_threads`, undone at the end of the test."""
    before = scanrnn.get_num_threads()
    yield scanrnn.set_num_threads
    scanrnn.set_num_threads(before)


@pytest.fixture
def run_python():
    """Run a piece of Python in a new process and return what it printed; it must exit with 0."""
    package = str(Path(scanrnn.__file__).parents[1])

    def run(code, *options, timeout=120, **environment):
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, *options, "-c", code],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        if done.stderr:
            warnings.warn(done.stderr, stacklevel=2)
        return done.stdout

    return run
