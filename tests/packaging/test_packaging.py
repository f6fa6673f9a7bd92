"""What is shipped, how it is built, and who can build on it."""

import os
import platform
import re
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from commands import REPOSITORY, Run, pip

CONSUMER = Path(__file__).parent / "consumer"

# Kernels for what every processor has, where it is the build that is tested: the quickest.
LOWEST = {"x86_64": "sse2", "aarch64": "neon", "arm64": "neon"}.get(platform.machine(), "generic")

# Nothing of a machine's CUDA installation, and no GPU.
NO_CUDA = {"CUDACXX": "none", "CUDA_PATH": "", "CUDA_HOME": "", "CUDA_VISIBLE_DEVICES": ""}


# ---- the wheel ---------------------------------------------------------------------------------


def test_wheel_contents(unpacked: Path, wheel: Path) -> None:
    names = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}
    for needed in (
        "scanrnn/__init__.py",
        "scanrnn/_core.pyi",
        "scanrnn/py.typed",
        "scanrnn/torch/__init__.py",
        "scanrnn/jax/__init__.py",
        "scanrnn/include/scanrnn/scanrnn.hpp",
        "scanrnn/include/scanrnn/core/affine.hpp",
        "scanrnn/lib/libscanrnn.a",
        "scanrnn/lib/cmake/scanrnn/scanrnnConfig.cmake",
    ):
        assert needed in names
    foreign = [n for n in names if not n.startswith("scanrnn")]
    assert not foreign
    assert any(n.endswith("licenses/LICENSE") for n in names)
    unwanted = [n for n in names if n.endswith((".cpp", ".o", ".pyc")) or "/tests/" in n]
    assert not unwanted
    assert wheel.stat().st_size < 40e6


def test_b01_wheel_tag(wheel: Path) -> None:
    python, abi = wheel.stem.split("-")[2:4]
    assert python == f"cp3{min(sys.version_info.minor, 12)}"
    assert abi == (python if sys.version_info < (3, 12) else "abi3")


def test_b01_symbols(run: Run, extension: Path) -> None:
    """The module needs nothing of a framework or of CUDA, and shows nothing but its entry point."""
    symbols = run("nm", "-D", "-C", extension).stdout
    assert not re.findall(r".*\b(?:torch|c10|at)::.*|.*\bcu(?:da)?[A-Z]\w+$", symbols, re.MULTILINE)
    ours = re.findall(r" T (\S.*)", symbols)
    assert ours == ["PyInit__core"]


def test_b01_needed_libraries(run: Run, extension: Path) -> None:
    dynamic = run("readelf", "-d", extension).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", dynamic))
    allowed = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0"}
    assert not {n for n in needed if n not in allowed and not n.startswith("ld-linux")}
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_b01_glibc(run: Run, wheel: Path, extension: Path) -> None:
    """A wheel tagged manylinux_2_28 runs on glibc 2.28; any other is for the machine it is from."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", run("nm", "-D", extension).stdout)
    highest = max((int(major), int(minor)) for major, minor in versions)
    print(f"{extension.name} needs glibc {highest[0]}.{highest[1]}")
    tags = re.findall(r"manylinux_(\d+)_(\d+)", wheel.name)
    here = re.search(r"(\d+)\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    assert here is not None
    allowed = [(int(major), int(minor)) for major, minor in tags] or [
        (int(here.group(1)), int(here.group(2)))
    ]
    assert highest <= min(allowed)


def test_b05_import_without_cuda(run: Run, numpy_python: Path) -> None:
    """Import takes NumPy alone, starts no thread, and says why there is no CUDA."""
    code = """
import os, sys
import numpy
threads = len(os.listdir("/proc/self/task"))
import scanrnn
assert len(os.listdir("/proc/self/task")) == threads
assert not {"torch", "jax", "cupy"} & set(sys.modules)
assert scanrnn.cuda_available() is False
from scanrnn import _core
assert _core.cuda_unavailable_reason()
h = scanrnn.scan(numpy.float32([[[0.5], [0], [2], [-1]]]), numpy.float32([[[1], [2], [3], [4]]]))
assert h.ravel().tolist() == [1, 2, 7, -3], h
print(_core.cuda_unavailable_reason())
"""
    reason = run(numpy_python, "-W", "error", "-c", code, env=NO_CUDA).stdout
    assert len(reason.strip().splitlines()) == 1


def test_command_line(run: Run, numpy_python: Path) -> None:
    script = numpy_python.parent / "scanrnn"
    assert run(script, "info").stdout == run(numpy_python, "-m", "scanrnn", "info").stdout


# ---- building it -------------------------------------------------------------------------------


def test_b02_sdist_contents(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    for needed in ("CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "PKG-INFO"):
        assert needed in names
    for folder in ("cmake", "include", "python/src", "src", "tests/cpp", "tests/python"):
        assert any(name.startswith(f"{folder}/") for name in names)
    assert not [name for name in names if name.endswith((".so", ".o", ".a", ".pyc", ".whl"))]


def test_b02_editable_install_outside_git(run: Run, source: Path, tmp_path: Path) -> None:
    """From an unpacked source distribution, and with as many jobs as MAX_JOBS says."""
    assert not (source / ".git").exists()
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # Unoptimised, which is the quickest.
    quick = (
        "--config-settings=cmake.build-type=Debug",
        f"--config-settings=cmake.define.SCANRNN_ISAS_WANTED={LOWEST}",
    )
    options = ("--verbose", "--no-deps", "--no-build-isolation", *quick, "--editable")
    command = pip("--python", python, "install", *options, source)
    # --python takes the build's tools from the new environment too: lend it ours.
    paths = [p for p in sys.path if p.endswith("site-packages")]
    lent = {"PYTHONPATH": os.pathsep.join(paths)}
    environment = {"MAX_JOBS": "2", "SKBUILD_BUILD_VERBOSE": "1", **lent}
    output = run(*command, env=environment).stdout
    assert re.search(r"Run Build Command.*-j ?2\b", output)
    where = run(python, "-c", "import scanrnn; print(scanrnn.__file__)", env=lent).stdout.strip()
    assert Path(where) == source / "python" / "scanrnn" / "__init__.py"
    code = "import scanrnn, numpy; print(scanrnn.scan(numpy.ones(3), numpy.ones(3)).tolist())"
    assert run(python, "-c", code, env=lent).stdout.strip() == "[1.0, 2.0, 3.0]"


def test_b02_cpu_build_says_so_once(run: Run, tmp_path: Path) -> None:
    output = run("cmake", "-S", REPOSITORY, "-B", tmp_path, env=NO_CUDA).stdout
    notices = [
        line for line in output.splitlines() if "scanrnn: " in line and "kernels" not in line
    ]
    assert len(notices) == 1
    assert "building for the CPU only" in notices[0]


def one_line_reason(output: str) -> str:
    """The reason that a failed configure gives, which must be a single line."""
    lines = [line.strip() for line in output.splitlines()]
    (index,) = [i for i, line in enumerate(lines) if line.startswith("scanrnn: ")]
    assert not lines[index + 1] or lines[index + 1].startswith("Call Stack")
    return lines[index]


def test_b02_cuda_asked_for_but_impossible(run: Run, tmp_path: Path) -> None:
    configure = ("cmake", "-S", REPOSITORY, "-B", tmp_path / "build", "-DSCANRNN_CUDA=ON")
    output = run(*configure, fails=True, env=NO_CUDA).stdout
    line = one_line_reason(output)
    assert "SCANRNN_CUDA=ON, but " in line
    assert ";" in line, "the reason comes without advice"

    command = pip(
        "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, REPOSITORY,
        f"--config-settings=build-dir={tmp_path / 'pip'}",
        "--config-settings=cmake.define.SCANRNN_CUDA=ON",
    )  # fmt: skip
    assert line in run(*command, fails=True, env=NO_CUDA).stdout
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.parametrize("option", ["SCANRNN_CUDA", "SCANRNN_XLA_FFI"])
def test_misspelt_option(run: Run, tmp_path: Path, option: str) -> None:
    configure = ("cmake", "-S", REPOSITORY, "-B", tmp_path, f"-D{option}=maybe")
    output = run(*configure, fails=True).stdout
    assert f"{option} is 'maybe', expected AUTO, ON or OFF" in one_line_reason(output)


# ---- the architectures of the CUDA backend -----------------------------------------------------


def choose_architectures(
    run: Run,
    folder: Path,
    *defines: str,
    gpus: str | None = None,
    nvcc: str = "13.0",
    env: dict[str, str] | None = None,
    fails: bool = False,
) -> str:
    """Runs the choice on a make-believe machine: what nvidia-smi and nvcc would print is given."""

    def program(name: str, text: str | None) -> Path:
        path = folder / name
        body = "exit 9" if text is None else f"cat <<'end'\n{text}\nend"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    smi = program("nvidia-smi", gpus)
    compiler = program("nvcc", f"Cuda compilation tools, release {nvcc}")
    script = folder / "choose.cmake"
    script.write_text(
        f"cmake_minimum_required(VERSION 3.24)\n"
        f"set(SCANRNN_NVIDIA_SMI {smi})\n"
        f"set(CMAKE_CUDA_COMPILER {compiler})\n"
        f"include({REPOSITORY / 'cmake' / 'Architectures.cmake'})\n"
        f"scanrnn_check_requested_architectures()\n"
        f"scanrnn_choose_architectures()\n"
        f'message("chosen=${{CMAKE_CUDA_ARCHITECTURES}}")\n'
    )
    output = run("cmake", *defines, "-P", script, fails=fails, env=env).stdout
    return output if fails else output.split("chosen=")[1].strip()


def test_architectures_of_the_visible_gpus(run: Run, tmp_path: Path) -> None:
    assert choose_architectures(run, tmp_path, gpus="9.0\n8.0\n9.0") == "80;90"


@pytest.mark.parametrize(
    ("nvcc", "expected"),
    [
        ("12.9", "70-real;75-real;80-real;86-real;89-real;90-real;100-real;120"),
        ("13.0", "75-real;80-real;86-real;89-real;90-real;100-real;120"),
    ],
)
def test_b03_architectures_without_a_gpu(
    run: Run, tmp_path: Path, nvcc: str, expected: str
) -> None:
    assert choose_architectures(run, tmp_path, nvcc=nvcc) == expected


def test_architectures_that_the_compiler_knows(run: Run, tmp_path: Path) -> None:
    """nvcc 12.4 knows neither 100 nor 120: PTX is then of what is the last."""
    listed = "\nsm_70\nsm_75\nsm_80\nsm_86\nsm_89\nsm_90"
    chosen = choose_architectures(run, tmp_path, nvcc=f"12.4{listed}")
    assert chosen == "70-real;75-real;80-real;86-real;89-real;90"


def test_b03_architectures_of_the_user_win(run: Run, tmp_path: Path) -> None:
    given = "-DCMAKE_CUDA_ARCHITECTURES=86;89"
    assert choose_architectures(run, tmp_path, given, gpus="9.0") == "86;89"
    # CMake itself reads the variable later; the point is that we leave the choice to it.
    assert choose_architectures(run, tmp_path, gpus="9.0", env={"CUDAARCHS": "75"}) == ""
    assert choose_architectures(run, tmp_path, "-DCMAKE_CUDA_ARCHITECTURES=native", gpus="9.0")


@pytest.mark.parametrize("by", ["option", "variable"])
def test_b03_native_without_a_gpu(run: Run, tmp_path: Path, by: str) -> None:
    defines = ["-DCMAKE_CUDA_ARCHITECTURES=native"] if by == "option" else []
    env = {"CUDAARCHS": "native"} if by == "variable" else None
    output = choose_architectures(run, tmp_path, *defines, env=env, fails=True)
    assert "no GPU is visible" in one_line_reason(output)


# ---- those who build on it ---------------------------------------------------------------------


def build_consumer(run: Run, folder: Path, *defines: str) -> None:
    run("cmake", "-S", CONSUMER, "-B", folder, *defines)
    run("cmake", "--build", folder, "--parallel", os.environ.get("MAX_JOBS", str(os.cpu_count())))
    assert "h = 6 2 7 -3" in run(folder / "consumer").stdout


def test_consumer_of_the_install_tree(run: Run, install_tree: Path, tmp_path: Path) -> None:
    build_consumer(run, tmp_path, f"-DCMAKE_PREFIX_PATH={install_tree}")


def test_consumer_of_the_wheel(run: Run, numpy_python: Path, tmp_path: Path) -> None:
    folder = run(numpy_python, "-m", "scanrnn", "--cmake-dir").stdout.strip()
    build_consumer(run, tmp_path, f"-Dscanrnn_DIR={folder}")


def test_consumer_of_the_source_tree(run: Run, tmp_path: Path) -> None:
    # Unoptimised: what is tested is the build, and this is the quickest.
    defines = ["-DCMAKE_BUILD_TYPE=Debug", f"-DSCANRNN_ISAS_WANTED={LOWEST}"]
    build_consumer(run, tmp_path, f"-DSCANRNN_SOURCE_DIR={REPOSITORY}", *defines)


@pytest.mark.parametrize(("native", "kind"), [("OFF", "Debug"), ("ON", "Release")])
def test_custom_cell(run: Run, install_tree: Path, tmp_path: Path, native: str, kind: str) -> None:
    """A cell written outside of the library runs on the static library, on any instruction set."""
    folder = Path(__file__).parent / "custom_cell"
    lines = (folder / "leaky_cell.hpp").read_text().splitlines()
    assert len(lines) < 60
    defines = [f"-DCMAKE_PREFIX_PATH={install_tree}", f"-DCUSTOM_CELL_NATIVE={native}"]
    run("cmake", "-S", folder, "-B", tmp_path, f"-DCMAKE_BUILD_TYPE={kind}", *defines)
    run("cmake", "--build", tmp_path)
    output = run(tmp_path / "custom_cell").stdout
    assert "as it should: leaky" in output
    assert output.endswith("right\n")


FIND = """
cmake_minimum_required(VERSION 3.24)
project(find LANGUAGES CXX)
find_package(scanrnn {version}.0 CONFIG QUIET COMPONENTS cpu)
message("the same version: ${{scanrnn_FOUND}}")
find_package(scanrnn CONFIG QUIET COMPONENTS metal)
message("an unknown component: ${{scanrnn_FOUND}}")
find_package(scanrnn 99 CONFIG QUIET)
message("another version: ${{scanrnn_FOUND}}")
find_package(scanrnn CONFIG QUIET OPTIONAL_COMPONENTS cuda)
if(TARGET scanrnn::scanrnn)
    message("where cuda is optional: ${{scanrnn_FOUND}} ${{scanrnn_cuda_FOUND}}")
endif()
find_package(scanrnn CONFIG COMPONENTS cuda REQUIRED)
"""


def test_versions_and_components(run: Run, numpy_python: Path, tmp_path: Path) -> None:
    """Of a package without the CUDA backend."""
    code = "import scanrnn; print(scanrnn.__version__.rpartition('.')[0])"
    version = run(numpy_python, "-c", code).stdout.strip()
    (tmp_path / "CMakeLists.txt").write_text(FIND.format(version=version))
    folder = run(numpy_python, "-m", "scanrnn", "--cmake-dir").stdout.strip()
    command = ("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={folder}")
    output = " ".join(run(*command, fails=True).stdout.split())
    assert "the same version: 1 " in output
    assert "another version: 0 " in output
    assert "an unknown component: 0 " in output
    assert "where cuda is optional: 1 OFF " in output
    assert "this scanrnn was built for the CPU only; build it with SCANRNN_CUDA=ON" in output


def test_cmake_prefix_entry_point(run: Run, numpy_python: Path) -> None:
    """The name under which scikit-build-core looks for CMake packages in site-packages."""
    code = """
from importlib.metadata import entry_points
from importlib.resources import files
(entry,) = [e for e in entry_points(group="cmake.prefix") if e.name == "scanrnn"]
assert (files(entry.value) / "lib/cmake/scanrnn/scanrnnConfig.cmake").is_file()
"""
    run(numpy_python, "-c", code)


# ---- rules of the source tree ------------------------------------------------------------------


def test_no_framework_below_python() -> None:
    """include/ and src/ know no framework: no header of one, nor its name in the code."""
    pattern = re.compile(
        r"#\s*include\s*[<\"](?:torch|ATen|c10|jax|xla|cupy|numpy|nanobind|pybind11|Python)\b"
        r"|\b(?:torch|at|c10|nanobind|xla)::",
    )
    found = [
        f"{path.relative_to(REPOSITORY)}: {line.strip()}"
        for folder in ("include", "src")
        for path in sorted((REPOSITORY / folder).rglob("*"))
        if path.is_file()
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]
    assert not found


def test_public_headers_stand_alone(run: Run, tmp_path: Path) -> None:
    """Each header compiles on its own; only custom_cell.hpp needs internal headers."""
    include = REPOSITORY / "include"
    headers = sorted(path.relative_to(include) for path in include.rglob("*.hpp"))
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None
    for header in headers:
        unit = tmp_path / "unit.cpp"
        unit.write_text(f'#include "{header}"\n#include "{header}"\nint main() {{}}\n')
        flags: list[str | Path] = [
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
        ]
        if header.name == "custom_cell.hpp":
            flags += ["-isystem", REPOSITORY / "src"]  # vector extensions are not pedantic
        run(compiler, *flags, f"-I{include}", unit)


def test_version_is_one(numpy_python: Path, run: Run, wheel: Path) -> None:
    version = run(numpy_python, "-c", "import scanrnn; print(scanrnn.__version__)").stdout.strip()
    assert wheel.name.split("-")[1] == version
