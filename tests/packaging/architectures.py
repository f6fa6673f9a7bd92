"""Compiles the CUDA code for every architecture of a release: time, size, registers.

    python tests/packaging/architectures.py          those of cmake/Architectures.cmake, each on
                                                     its own, then together as a wheel has them
    python tests/packaging/architectures.py 80-real  only this one
    python tests/packaging/architectures.py --write  also into ARCHITECTURES.md beside this file

Only the CUDA sources of the library are compiled. Takes Ninja and CMake, and the nvcc that CUDACXX
or --nvcc names, or the one on the PATH. Exit status 1 if one fails to compile or a kernel spills
registers.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import ptxas_report
from commands import REPOSITORY

LIST = """
cmake_minimum_required(VERSION 3.24)
set(SCANRNN_NVIDIA_SMI false)
set(CMAKE_CUDA_COMPILER {nvcc})
include({repository}/cmake/Architectures.cmake)
scanrnn_choose_architectures()
message("${{CMAKE_CUDA_ARCHITECTURES}}")
"""


@dataclass
class Result:
    architectures: str
    wall: float  # seconds
    processor: float  # seconds of all cores together
    size: int  # bytes of the objects
    compressed: int  # bytes of the objects, as a wheel keeps them
    kernels: list[ptxas_report.Kernel]
    error: str  # the compiler's first, "" if it compiles


class CommandError(Exception):
    """A command failed; the text is what it printed."""


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env=os.environ | (env or {}),
    )  # fmt: skip
    if done.returncode != 0:
        raise CommandError(done.stdout)
    return done.stdout


def release_architectures(nvcc: Path) -> list[str]:
    """What cmake/Architectures.cmake chooses for this compiler on a machine without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "list.cmake")
        script.write_text(LIST.format(nvcc=nvcc, repository=REPOSITORY))
        environment = {name: value for name, value in os.environ.items() if name != "CUDAARCHS"}
        done = subprocess.run(
            ["cmake", "-P", str(script)],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return done.stderr.strip().split(";")


def compile_for(architectures: str, nvcc: Path, folder: Path, jobs: int) -> Result:
    run(
        "cmake", "-S", REPOSITORY, "-B", folder, "-G", "Ninja", "-DSCANRNN_CUDA=ON",
        "-DSCANRNN_BUILD_TESTS=OFF", "-DCMAKE_CUDA_FLAGS=--resource-usage",
        f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
        env={"CUDACXX": str(nvcc)},
    )  # fmt: skip
    targets = run("ninja", "-C", folder, "-t", "targets", "all")
    objects = re.findall(r"^(\S+\.cu\.o): ", targets, re.MULTILINE)
    if not objects:
        sys.exit("architectures.py: the build has no CUDA sources")
    for name in objects:
        (folder / name).unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    error = ""
    try:
        log = run("ninja", "-C", folder, f"-j{jobs}", "-k0", *objects)
    except CommandError as failure:
        log = str(failure)
        lines = [line for line in log.splitlines() if re.search(r"\b(error|fatal)\b", line)]
        error = lines[0] if lines else "failed"
        print(f"{architectures}:", *lines, sep="\n", file=sys.stderr)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    contents = [(folder / name).read_bytes() for name in objects if (folder / name).exists()]
    return Result(
        architectures,
        wall,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        sum(map(len, contents)),
        sum(len(zlib.compress(content)) for content in contents),
        ptxas_report.parse(log),
        error,
    )


def markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def summary(results: list[Result]) -> str:
    rows = [
        [
            "architectures", "wall, s", "processor, s", "objects, MB", "compressed, MB", "kernels",
            "spilling", "",
        ]
    ]  # fmt: skip
    rows += [
        [
            result.architectures.replace(";", " "),
            f"{result.wall:.0f}",
            f"{result.processor:.0f}",
            f"{result.size / 1e6:.1f}",
            f"{result.compressed / 1e6:.1f}",
            str(len(result.kernels)),
            str(sum(kernel.spills for kernel in result.kernels)),
            "FAILS" if result.error else "",
        ]
        for result in results
    ]
    return markdown(rows)


def registers(results: list[Result]) -> str:
    """Registers of the instances of each kernel, lowest and highest."""
    found = {
        (family.name, family.architecture): family.registers()
        for result in results
        for family in ptxas_report.families(result.kernels)
    }
    names = sorted({name for name, _ in found})
    architectures = sorted({a for _, a in found}, key=lambda a: int(re.sub(r"\D", "", a)))
    rows = [["kernel", *architectures]]
    rows += [[name, *(found.get((name, a), "-") for a in architectures)] for name in names]
    return markdown(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "architectures", nargs="*", help="as CMake writes them; default: those of a release"
    )
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX") or "nvcc", help="the compiler")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of Ninja")
    parser.add_argument(
        "--build", type=Path, help="folder for the builds; default: a temporary one"
    )
    parser.add_argument("--write", action="store_true", help="into ARCHITECTURES.md")
    arguments = parser.parse_args()
    found = shutil.which(arguments.nvcc)
    if found is None:
        sys.exit(f"architectures.py: no compiler {arguments.nvcc}")
    nvcc = Path(found)
    release = re.search(r"release (\S+),", run(nvcc, "--version"))
    wanted = arguments.architectures or release_architectures(nvcc)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.build or Path(temporary)
        for each in [*wanted, ";".join(wanted)] if len(wanted) > 1 else wanted:
            name = each.replace(";", "_")
            results.append(compile_for(each, nvcc, folder / name, arguments.jobs))
            print(f"{each}: {results[-1].wall:.0f} s", file=sys.stderr)
    kernels = [kernel for result in results for kernel in result.kernels]
    # Together are the same kernels again.
    single = results[:-1] if len(results) > 1 else results
    text = "\n".join(
        [
            "# The CUDA code by architecture",
            "",
            f"{datetime.date.today()}, nvcc {release[1] if release else '?'}, "
            f"{arguments.jobs} jobs. Written by `python tests/packaging/architectures.py --write`.",
            "",
            summary(results),
            "",
            "Registers of each kernel's instances:",
            "",
            registers(single),
            "",
        ]
    )
    print(text)
    if arguments.write:
        (Path(__file__).parent / "ARCHITECTURES.md").write_text(text)
    failed = any(result.error for result in results)
    return int(failed or any(kernel.spills for kernel in kernels))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandError as failure:
        sys.exit(f"architectures.py: {failure}")
