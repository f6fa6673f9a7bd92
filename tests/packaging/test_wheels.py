"""The checks of a release's wheels: what is right passes, and each doctored wheel is noticed."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import wheels
from commands import REPOSITORY, Run, pip

sys.path.insert(0, str(REPOSITORY / "cmake"))
import distribution_backend

NAMES = list(json.loads((REPOSITORY / "cmake" / "distributions.json").read_text()))

FOLDER = Path(__file__).parent

# What takes no tool that the tests' environment lacks.
CHECKS = ("contents", "size", "metadata", "symbols", "libraries", "architectures")


def doctored(wheel: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    """A copy of a wheel, of the same name, whose files were changed."""
    files = folder / "files"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(files)
    change(files)
    copy = folder / wheel.name
    with zipfile.ZipFile(copy, "w") as archive:
        for path in sorted(files.rglob("*")):
            archive.write(path, path.relative_to(files))
    return copy


def append(name: str, text: str) -> Callable[[Path], None]:
    def change(files: Path) -> None:
        (path,) = files.glob(name)
        path.write_bytes(path.read_bytes() + text.encode())

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda files: next(files.glob(name)).unlink()


def require(files: Path) -> None:
    (path,) = files.glob("*.dist-info/METADATA")
    path.write_text(
        path.read_text().replace("Name: ", "Requires-Dist: scanrnn-cu12[torch]\nName: ")
    )


def module_of(source: str, *flags: str) -> Callable[[Path], None]:
    """Another extension module in the place of the wheel's."""

    def change(files: Path) -> None:
        (module,) = files.glob("scanrnn/_core*.so")
        compiler = os.environ.get("CXX", "c++")
        command = [compiler, "-xc++", "-", "-shared", "-fPIC", "-o", str(module), *flags]
        subprocess.run(command, input=source, text=True, check=True)

    return change


ENTRY = 'extern "C" void* PyInit__core() { return nullptr; }\n'
CUDA_CALL = f'extern "C" int cudaFree(void*);\n{ENTRY}int (*p)(void*) = cudaFree;'

DOCTORED = {
    "no header": (remove("scanrnn/include/scanrnn/scanrnn.hpp"), "contents: lacks scanrnn/include"),
    "no library": (remove("scanrnn/lib/libscanrnn.a"), "contents: lacks scanrnn/lib/libscanrnn.a"),
    "no stub": (remove("scanrnn/_core.pyi"), "contents: lacks scanrnn/_core.pyi"),
    "no package": (
        remove("scanrnn/lib/cmake/scanrnn/scanrnnConfig.cmake"),
        "contents: lacks scanrnn/lib/cmake",
    ),
    "no licence": (remove("*.dist-info/licenses/LICENSE"), "contents: lacks the licence"),
    "a source": (lambda files: (files / "scanrnn/scan.cpp").touch(), "contents: has scanrnn/scan"),
    "another's file": (lambda files: (files / "numpy.py").touch(), "contents: has numpy.py, out"),
    "a changed file": (append("scanrnn/__init__.py", "#"), "metadata: RECORD is wrong about"),
    "another's extra": (require, "metadata: an extra requires scanrnn-cu12"),
    "a symbol of CUDA": (
        module_of(CUDA_CALL),
        "symbols: has cudaFree",
    ),
    "a symbol of PyTorch": (
        module_of(f"namespace c10 {{ void raise(); }}\n{ENTRY}void (*p)() = c10::raise;"),
        "symbols: has c10::raise()",
    ),
    "a symbol of ours": (
        module_of(f'{ENTRY}extern "C" void scan() {{}}'),
        "symbols: shows scan",
    ),
    "a library": (
        module_of(ENTRY, "-Wl,--no-as-needed", "-lutil", "-l:libz.so.1"),
        "libraries: needs libz.so.1",
    ),
    "a path": (module_of(ENTRY, "-Wl,-rpath,/opt/cuda"), "libraries: has the path /opt/cuda"),
    "device code": (
        module_of(f'{ENTRY}__attribute__((section(".nv_fatbin"))) int fatbin = 1;'),
        "architectures: _core",
    ),
}


def test_the_wheel_is_right(wheel: Path) -> None:
    assert wheels.check_wheel(wheel, CHECKS) == []


@pytest.mark.parametrize("case", DOCTORED)
def test_a_doctored_wheel_is_not(wheel: Path, tmp_path: Path, case: str) -> None:
    change, expected = DOCTORED[case]
    check = expected.partition(":")[0]
    problems = wheels.check_wheel(doctored(wheel, tmp_path, change), [check])
    assert any(line.startswith(expected) for line in problems), problems


def test_a_large_wheel(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "SIZE", wheel.stat().st_size)
    assert wheels.check_wheel(wheel, ["size"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scanrnn-0.1.0-cp312-cp312-linux_x86_64.whl", "is for Python 3.12 with the tag cp312"),
        ("scanrnn-0.1.0-cp311-abi3-linux_x86_64.whl", "is for Python 3.11 with the tag abi3"),
        ("scanrnn-0.1.0-cp311-cp311-linux_x86_64.whl", ""),
    ],
)
def test_b01_abi_tag(tmp_path: Path, name: str, message: str) -> None:
    problems = wheels.stable_abi(wheels.Wheel(tmp_path / name, tmp_path))
    assert problems == ([message] if message else [])


def test_b01_platform_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def problems(tag: str) -> list[str]:
        path = tmp_path / f"scanrnn-0.1.0-cp311-cp311-{tag}.whl"
        return wheels.platform(wheels.Wheel(path, tmp_path))

    monkeypatch.setattr(wheels, "manylinux_tag", lambda path: "manylinux_2_28_x86_64")
    assert problems("linux_x86_64") == ["is tagged linux_x86_64: not repaired"]
    assert problems("manylinux_2_28_x86_64") == []
    assert problems("manylinux_2_35_x86_64") == []
    assert "but needs manylinux_2_28" in problems("manylinux_2_17_x86_64.manylinux2014_x86_64")[0]


def test_b04_device_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cuobjdump of ours: an architecture too few, and PTX too much."""
    tool = tmp_path / "cuobjdump"
    tool.write_text(
        "#!/bin/sh\n"
        'case $1 in --list-elf) kind=cubin; list="75 80 86 89 90 100" ;;\n'
        '*) kind=ptx; list="90 120" ;; esac\n'
        'for a in $list; do echo "file 1: scan.1.sm_$a.$kind"; done\n'
    )
    tool.chmod(0o755)
    monkeypatch.setattr(wheels, "tool", lambda name, *folders: str(tool))
    (tmp_path / "scanrnn" / "lib").mkdir(parents=True)
    (tmp_path / "scanrnn" / "lib" / "libscanrnn.so").touch()
    shutil.copy(sys.executable, tmp_path / "scanrnn" / "_core.abi3.so")  # any ELF file
    path = tmp_path / "scanrnn_cu13-0.1.0-cp312-abi3-linux_x86_64.whl"
    assert wheels.architectures(wheels.Wheel(path, tmp_path)) == [
        "libscanrnn.so lacks sm_120",
        "libscanrnn.so has compute_90, unasked",
    ]


def test_programs_on_a_wheel(wheel: Path, tmp_path: Path) -> None:
    with wheels.opened(wheel) as files:
        (said,) = wheels.consume(files)
    assert said.endswith("h = 6 2 7 -3")

    lacking = doctored(wheel, tmp_path, remove("scanrnn/lib/libscanrnn.a"))
    with (
        wheels.opened(lacking) as files,
        pytest.raises(wheels.WheelError, match=r"libscanrnn\.a"),
    ):
        wheels.consume(files)


def test_b01_smoke_script(run: Run, numpy_python: Path) -> None:
    said = run(numpy_python, FOLDER / "smoke.py").stdout
    assert "right with numpy" in said
    assert "torch" not in said


# ---- the setting that chooses a distribution ---------------------------------------------------


def test_distributions_are_the_same_everywhere(numpy_python: Path, run: Run) -> None:
    code = "from scanrnn import _distributions as d; print(*d.NAMES)"
    assert run(numpy_python, "-c", code).stdout.split() == NAMES


def test_metadata_of_a_distribution(run: Run, source: Path, tmp_path: Path) -> None:
    """By the standard's hook, as pip calls it."""
    code = (
        "import sys; sys.path.insert(0, 'cmake'); import distribution_backend as b\n"
        f"print(b.prepare_metadata_for_build_wheel({str(tmp_path)!r}))"
    )
    for name in reversed(NAMES):
        env = {"SCANRNN_DISTRIBUTION": name}
        folder = run(sys.executable, "-c", code, env=env, cwd=source).stdout.split()[-1]
        assert folder.startswith(f"{name.replace('-', '_')}-")
        metadata = (tmp_path / folder / "METADATA").read_text()
        assert f"\nName: {name}\n" in metadata
        itself = re.findall(r"^Requires-Dist: (scanrnn.*?)\[", metadata, re.MULTILINE)
        assert {*itself} == {name}


def test_unknown_distribution(run: Run, tmp_path: Path) -> None:
    command = pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, REPOSITORY)
    output = run(*command, env={"SCANRNN_DISTRIBUTION": "scanrnn-cu10"}, fails=True).stdout
    assert f"'scanrnn-cu10', expected one of {', '.join(NAMES)}" in output


def test_renamed_wheel(run: Run, wheel: Path, tmp_path: Path) -> None:
    """It is right under its new name, and pip takes it; beside the first, both are noticed."""
    copy = tmp_path / wheel.name
    shutil.copy(wheel, copy)
    renamed = distribution_backend.rename_wheel(copy, "scanrnn-cu13")
    assert renamed.name == wheel.name.replace("scanrnn-", "scanrnn_cu13-")
    assert not copy.exists()
    # It was built for the CPU: its library is static, and that is all that is wrong with it.
    assert wheels.check_wheel(renamed, [each for each in CHECKS if each != "architectures"]) == [
        "contents: lacks scanrnn/lib/libscanrnn.so",
        "contents: has scanrnn/lib/libscanrnn.a",
        "libraries: needs no libscanrnn.so",
    ]
    site = tmp_path / "site"
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--target", site)
    run(*pip("install", *options, renamed))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # The module alone: NumPy, which the package takes, isn't there.
    code = (
        "import importlib.util as u, sys\n"
        f"sys.path[:] = [{str(site)!r}, *(p for p in sys.path if not p.endswith('-packages'))]\n"
        f"spec = u.spec_from_file_location('d', {str(site / 'scanrnn/_distributions.py')!r})\n"
        "d = u.module_from_spec(spec); spec.loader.exec_module(d)\n"
        "print(*d.installed()); d.check()\n"
    )
    output = run(sys.executable, "-c", code).stdout
    assert output.startswith("scanrnn scanrnn-cu13\n")
    assert "run 'pip uninstall scanrnn scanrnn-cu13'" in output


ISA = {"x86_64": "sse2", "aarch64": "neon"}.get(platform.machine(), "generic")


def test_wheel_with_a_shared_library(run: Run, source: Path, tmp_path: Path) -> None:
    """What wheels with CUDA are like, without CUDA: the module and C++ programs share a library."""
    options = {
        "build-dir": str(tmp_path / "build"),
        "cmake.build-type": "Debug",
        "cmake.define.CMAKE_CXX_FLAGS_DEBUG": "-O0",
        "cmake.define.SCANRNN_ISAS_WANTED": ISA,
        "cmake.define.SCANRNN_SHARED": "ON",
    }
    settings = [f"--config-settings={name}={value}" for name, value in options.items()]
    command = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "dist")
    run(*pip(*command, *settings, source))
    (built,) = (tmp_path / "dist").glob("*.whl")
    wheel = distribution_backend.rename_wheel(built, "scanrnn-cu13")
    assert wheels.check_wheel(wheel, [each for each in CHECKS if each != "architectures"]) == []

    def elsewhere(files: Path) -> None:
        (module,) = files.glob("scanrnn/_core*.so")
        module.write_bytes(module.read_bytes().replace(b"$ORIGIN/lib", b"/ORIGIN/lib"))

    (tmp_path / "doctored").mkdir()
    problems = wheels.check_wheel(doctored(wheel, tmp_path / "doctored", elsewhere), ["libraries"])
    assert problems == ["libraries: has the path /ORIGIN/lib"]

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(*pip("--python", python, "install", "--quiet", wheel))
    assert "right with numpy" in run(python, FOLDER / "smoke.py").stdout
    package = run(python, "-m", "scanrnn", "--cmake-dir").stdout.strip()
    for program, expected in (("consumer", "h = 6 2 7 -3"), ("custom_cell", ": right")):
        folder = tmp_path / program
        run("cmake", "-S", FOLDER / program, "-B", folder, f"-Dscanrnn_DIR={package}")
        run("cmake", "--build", folder)
        assert expected in run(folder / program).stdout
    # Its CUDA runtime would not know a program's kernels, which says so where they are compiled.
    targets = (Path(package) / "scanrnnTargets.cmake").read_text()
    assert 'INTERFACE_COMPILE_DEFINITIONS "SCANRNN_SHARED"' in targets
    include = Path(package).parents[2] / "include"
    header = include / "scanrnn" / "custom_cell.cuh"
    flags = ("-x", "c++", "-E", "-DSCANRNN_SHARED", f"-I{include}")
    output = run(os.environ.get("CXX", "c++"), *flags, header, fails=True).stdout
    assert "a cell's CUDA kernels take the static library" in output


def test_two_distributions_are_noticed_at_import(
    run: Run, numpy_python: Path, tmp_path: Path
) -> None:
    """With dist-info folders that were made up, beside the package."""
    code = "import scanrnn, os; print(os.path.dirname(os.path.dirname(scanrnn.__file__)))"
    site = Path(run(numpy_python, "-W", "error", "-c", code).stdout.strip())
    other = site / "scanrnn_cu12-9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: scanrnn-cu12\nVersion: 9.9\n")
    try:
        output = run(numpy_python, "-c", "import scanrnn").stdout
        assert output.count("RuntimeWarning: scanrnn: scanrnn and scanrnn-cu12 are installed") == 1
        assert "pip uninstall scanrnn scanrnn-cu12" in output
        told = run(numpy_python, "-W", "ignore", "-m", "scanrnn", "info").stdout
        assert "pip uninstall scanrnn scanrnn-cu12" in told
    finally:
        shutil.rmtree(other)
    assert not run(numpy_python, "-c", "import scanrnn").stdout


def configure_distribution(
    run: Run, folder: Path, name: str, nvcc: str = "13.0", gpus: str = "9.0"
) -> str:
    """Chooses the architectures of a distribution on a make-believe machine with a GPU."""
    programs = {
        "nvidia-smi": f"echo {gpus}",
        "nvcc": f"case $1 in --version) echo 'release {nvcc}, V{nvcc}.1';; *) exit 1;; esac",
    }
    for program, body in programs.items():
        (folder / program).write_text(f"#!/bin/sh\n{body}\n")
        (folder / program).chmod(0o755)
    script = folder / "choose.cmake"
    script.write_text(
        "cmake_minimum_required(VERSION 3.24)\n"
        f"set(SCANRNN_NVIDIA_SMI {folder / 'nvidia-smi'})\n"
        f"set(CMAKE_CUDA_COMPILER {folder / 'nvcc'})\n"
        f"set(SCANRNN_DISTRIBUTION {name})\n"
        f"include({REPOSITORY / 'cmake' / 'Architectures.cmake'})\n"
        "scanrnn_choose_architectures()\n"
        'message("chosen=${CMAKE_CUDA_ARCHITECTURES}")\n'
    )
    fails = not name.endswith(nvcc.partition(".")[0])
    return run("cmake", "-P", script, fails=fails).stdout


def test_b04_architectures_of_a_distribution(run: Run, tmp_path: Path) -> None:
    """Those of the table, whatever GPU is there; and only by the CUDA that it is for."""
    for name, nvcc in (("scanrnn-cu12", "12.9"), ("scanrnn-cu13", "13.0")):
        architectures = wheels.DISTRIBUTIONS[name]["architectures"]
        assert isinstance(architectures, list)
        output = configure_distribution(run, tmp_path, name, nvcc)
        assert f"chosen={';'.join(architectures)}\n" in output
    output = configure_distribution(run, tmp_path, "scanrnn-cu12", "13.0")
    assert "scanrnn-cu12 takes nvcc 12, but " in " ".join(output.split())


def test_b02_cuda_distribution_without_a_compiler(run: Run, tmp_path: Path) -> None:
    configure = ("cmake", "-S", REPOSITORY, "-B", tmp_path, "-DSCANRNN_DISTRIBUTION=scanrnn-cu13")
    output = run(*configure, fails=True, env={"CUDACXX": "none"}).stdout
    assert "SCANRNN_DISTRIBUTION=scanrnn-cu13, but no working CUDA compiler was found; " in output
    assert "or set SCANRNN_DISTRIBUTION=scanrnn\n" in output


def test_cpu_distribution_takes_no_cuda(run: Run, tmp_path: Path) -> None:
    """Although it is asked for by the variable that asks for CUDA's architectures."""
    configure = ("cmake", "-S", REPOSITORY, "-B", tmp_path, "-DSCANRNN_DISTRIBUTION=scanrnn")
    run(*configure, env={"CUDAARCHS": "90"})
    assert "SCANRNN_DISTRIBUTION:STRING=scanrnn\n" in (tmp_path / "CMakeCache.txt").read_text()
    assert not list(tmp_path.rglob("*.cu.o.d"))


def test_b02_host_compiler_that_nvcc_refuses(run: Run, tmp_path: Path) -> None:
    """With an nvcc of ours that says what NVIDIA's says of a compiler that is too new."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\n"
        "echo '/usr/include/crt/host_config.h:139:2: error: #error -- unsupported GNU version! "
        "gcc versions later than 15 are not supported! The nvcc flag -allow-unsupported-compiler "
        "can be used.' >&2\nexit 1\n"
    )
    nvcc.chmod(0o755)
    environment = {"CUDACXX": str(nvcc), "CUDAHOSTCXX": "/usr/bin/g++-99"}
    configure = ("cmake", "-S", REPOSITORY, "-B", tmp_path / "build", "-DSCANRNN_CUDA=ON")
    output = run(*configure, fails=True, env=environment).stdout
    (line,) = (
        line for line in output.splitlines() if "scanrnn: " in line and "kernels" not in line
    )
    assert f"{nvcc} refuses /usr/bin/g++-99 (error: #error -- unsupported GNU version!" in line
    assert "; point CUDAHOSTCXX at a host compiler that it accepts" in line


def test_conflict_needs_two() -> None:
    sys.path.insert(0, str(REPOSITORY / "python" / "scanrnn"))
    import _distributions

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _distributions.check("/nowhere")
    assert _distributions.conflict([]) == _distributions.conflict(["scanrnn"]) == ""
    assert "scanrnn, scanrnn-cu12 and scanrnn-cu13 are" in _distributions.conflict(NAMES)
