"""Compiles the CUDA code by Clang with the headers and the assembler of CUDA 12.

    pip install 'nvidia-cuda-nvcc-cu12==12.9.*' 'nvidia-cuda-runtime-cu12==12.9.*' \\
        'nvidia-cuda-cccl-cu12==12.9.*'
    python tests/packaging/clang.py --clang clang++-22                  all sources for sm_70
    python tests/packaging/clang.py --clang clang++-22 scan_real.cu     only this one
    python tests/packaging/clang.py --clang clang++-22 --syntax         instances, but no code

nvcc 12 is not on PyPI, and of its tools only the assembler is: what is missing is the one that
packs machine code into objects. Nor does Clang unroll all the loops that nvcc does (-Wpass-failed).
So no wheel is built this way, but whether all kernels compile for a GPU that CUDA 13 no longer
knows can be told: the host's side is checked, the device's is compiled and assembled. Exit status 1
if a source fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import REPOSITORY

FOLDER = Path(__file__).parent
PACKAGES = ("cuda_nvcc", "cuda_runtime", "cuda_cccl")


def toolkit(folder: Path) -> Path:
    """A CUDA toolkit as Clang wants it, of links to the packages' files."""
    nvidia = Path(sysconfig.get_path("platlib"), "nvidia")
    for package in PACKAGES:
        if not (nvidia / package).is_dir():
            sys.exit(f"clang.py: no {package} in {nvidia}; see the install line in this file")
        for path in (nvidia / package / "include").rglob("*"):
            link = folder / "include" / path.relative_to(nvidia / package / "include")
            if path.is_file() and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
    # Clang's own header includes it, whether it is used or not.
    (folder / "include" / "curand_mtgp32_kernel.h").touch()
    (folder / "bin").mkdir()
    (folder / "bin" / "ptxas").symlink_to(nvidia / "cuda_nvcc" / "bin" / "ptxas")
    (folder / "nvvm").mkdir()
    (folder / "nvvm" / "libdevice").symlink_to(nvidia / "cuda_nvcc" / "nvvm" / "libdevice")
    return folder


def compile_source(source: Path, clang: str, cuda: Path, architecture: str, syntax: bool) -> str:
    """What the compiler complains of, nothing if it doesn't."""
    common = [
        clang, "-x", "cuda", "-std=c++17", "-O3", f"--cuda-path={cuda}",
        f"--cuda-gpu-arch={architecture}", "-Wno-unknown-cuda-version",
        "-Wno-cuda-compat", "-Wno-pass-failed",
        "-include", str(FOLDER / "clang_cuda.cuh"),
        f"-I{REPOSITORY / 'include'}", f"-I{REPOSITORY / 'src'}", str(source),
    ]  # fmt: skip
    sides = [["-fsyntax-only"]]
    if not syntax:
        sides = [["--cuda-host-only", "-fsyntax-only"], ["--cuda-device-only", "-c"]]
    text = ""
    for side in sides:
        output = [] if "-fsyntax-only" in side else ["-o", str(cuda / f"{source.stem}.cubin")]
        done = subprocess.run(
            [*common, *side, *output],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        text += done.stdout + (f"exit status {done.returncode}\n" if done.returncode else "")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", nargs="*", help="names; default: all but the merge trace")
    parser.add_argument("--clang", default="clang++", help="the compiler")
    parser.add_argument("--architecture", default="sm_70")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--syntax", action="store_true", help="instantiate, but make no code")
    arguments = parser.parse_args()
    found = sorted((REPOSITORY / "src" / "cuda").rglob("*.cu"))
    wanted = [path for path in found if path.name != "trace.cu"]
    if arguments.sources:
        wanted = [path for path in found if path.name in arguments.sources]
    if not wanted or len(wanted) < len(arguments.sources):
        parser.error(f"sources are {', '.join(path.name for path in found)}")
    failures = 0
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.jobs) as pool:
        cuda = toolkit(Path(temporary))
        rest = (arguments.clang, cuda, arguments.architecture, arguments.syntax)
        for path, said in zip(
            wanted, pool.map(lambda path: compile_source(path, *rest), wanted), strict=True
        ):
            failures += bool(said)
            print(f"{path.name}: {said or 'right'}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
