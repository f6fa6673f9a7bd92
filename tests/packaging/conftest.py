"""What is built once and looked at by many tests.

Everything here can be built elsewhere and handed over, which saves a compilation each:

SCANRNN_SDIST   the source distribution
SCANRNN_SOURCE  that distribution unpacked, where a build folder of it may lie already
SCANRNN_WHEEL   a wheel built from it
SCANRNN_INSTALL an install tree (`cmake --install build --prefix ...`)

It is built for the CPU, unless CUDACXX names a CUDA compiler.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from commands import REPOSITORY, Run, pip

os.environ.setdefault("CUDACXX", "none")


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs a command and returns what it printed; fails the test when it fails."""

    def run_command(
        *command: str | Path,
        fails: bool = False,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env if env else None,
            cwd=cwd,
            check=False,
        )
        if (result.returncode != 0) != fails:
            pytest.fail(f"{command}: exit status {result.returncode}\n{result.stdout[-6000:]}")
        return result

    return run_command


@pytest.fixture(scope="session")
def sdist(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("SCANRNN_SDIST"):
        return Path(given)
    folder = tmp_path_factory.mktemp("sdist")
    build = f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=REPOSITORY)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="session")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution unpacked: a tree that is no git repository."""
    if given := os.environ.get("SCANRNN_SOURCE"):
        return Path(given)
    sdist = request.getfixturevalue("sdist")
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


@pytest.fixture(scope="session")
def wheel(
    run: Run, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if given := os.environ.get("SCANRNN_WHEEL"):
        return Path(given)
    source = request.getfixturevalue("source")
    folder = tmp_path_factory.mktemp("wheel")
    run(*pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def extension(unpacked: Path) -> Path:
    """The extension module."""
    (module,) = unpacked.glob("scanrnn/_core*.so")
    return module


@pytest.fixture(scope="session")
def numpy_python(run: Run, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel and its dependencies: NumPy and no framework."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(*pip("--python", python, "install", "--quiet", wheel))
    return python


@pytest.fixture(scope="session")
def install_tree(
    run: Run, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if given := os.environ.get("SCANRNN_INSTALL"):
        return Path(given)
    source = request.getfixturevalue("source")
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "-S", source, "-B", folder / "build", "-DSCANRNN_BUILD_TESTS=OFF")
    run("cmake", "--build", folder / "build", "--parallel")
    run("cmake", "--install", folder / "build", "--prefix", folder / "tree")
    return folder / "tree"
