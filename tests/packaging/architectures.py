"""The CUDA code by architecture and by kernel: compile time, size, registers.

    python tests/packaging/architectures.py           compiles it for the architectures of a release
                                                      (cmake/Architectures.cmake), all together
    python tests/packaging/architectures.py 80-real   only for this one
    python tests/packaging/architectures.py --built b of a finished build by Ninja, as a wheel's:
                                                      build/cp311-cp311-linux_x86_64-Release
    ... --write                                       also into ARCHITECTURES.md beside this file

Only the CUDA sources of the library are compiled. Takes Ninja and CMake, the nvcc that CUDACXX or
--nvcc names, or the one on the PATH, and cuobjdump beside it or on the PATH. Exit status 1 if one
fails to compile.
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
from collections import defaultdict
from dataclasses import dataclass, field
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


class CommandError(Exception):
    """A command failed; the text is what it printed."""


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env=os.environ | (env or {}), cwd=cwd,
    )  # fmt: skip
    if done.returncode != 0:
        raise CommandError(done.stdout)
    return done.stdout


def release_architectures(nvcc: str) -> str:
    """What cmake/Architectures.cmake chooses for this compiler on a machine without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "list.cmake")
        script.write_text(LIST.format(nvcc=nvcc, repository=REPOSITORY))
        environment = {name: value for name, value in os.environ.items() if name != "CUDAARCHS"}
        done = subprocess.run(
            ["cmake", "-P", str(script)],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return done.stderr.strip()


# ---- a build -----------------------------------------------------------------------------------


@dataclass
class Code:
    """Machine code for one architecture."""

    sizes: dict[str, int] = field(default_factory=dict)  # run_rows<ScanCell, float, true>: bytes
    kernels: list[ptxas_report.Kernel] = field(default_factory=list)  # without what spills


RESOURCES = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")


@dataclass
class Build:
    architectures: str  # as CMake writes them
    processor: float  # seconds of all cores together; 0: not known
    objects: dict[str, Path]
    seconds: dict[str, float]  # by object, of a clock on the wall
    error: str = ""  # the compiler's first

    def code(self, cuobjdump: str) -> dict[str, Code]:
        """By architecture."""
        found: dict[str, Code] = defaultdict(Code)
        for path in self.objects.values():
            with tempfile.TemporaryDirectory() as folder:
                run(cuobjdump, "-xelf", "all", path.resolve(), cwd=Path(folder))
                for cubin in Path(folder).glob("*.cubin"):
                    architecture = cubin.suffixes[-2].removeprefix(".")
                    symbols = run("nm", "-S", cubin)
                    sizes = re.findall(r"^\w+ (\w+) T (\S+)$", symbols, re.MULTILINE)
                    names = ptxas_report.demangle(name for _, name in sizes)
                    code = found[architecture]
                    code.sizes |= {n: int(s, 16) for n, (s, _) in zip(names, sizes, strict=True)}
                    used = RESOURCES.findall(run(cuobjdump, "--dump-resource-usage", cubin))
                    names = ptxas_report.demangle(symbol for symbol, *_ in used)
                    for name, (symbol, *numbers) in zip(names, used, strict=True):
                        registers, stack, shared = map(int, numbers)
                        kernel = ptxas_report.Kernel(symbol, architecture, name, registers, stack)
                        kernel.shared = shared
                        code.kernels.append(kernel)
        return found


def objects_of(folder: Path) -> dict[str, Path]:
    """The library's CUDA objects, without the merge trace, which is for debugging."""
    targets = run("ninja", "-C", folder, "-t", "targets", "all")
    names = re.findall(r"^(CMakeFiles/scanrnn\.dir/\S+\.cu\.o): ", targets, re.MULTILINE)
    found = {Path(name).name.removesuffix(".cu.o"): folder / name for name in sorted(names)}
    found.pop("trace", None)
    if not found:
        raise CommandError(f"{folder} has no CUDA objects")
    return found


def seconds_of(folder: Path, objects: dict[str, Path]) -> dict[str, float]:
    """What Ninja's log says: start, end (ms), time stamp, output, command."""
    rows = [line.split("\t") for line in (folder / ".ninja_log").read_text().splitlines()[1:]]
    last = {row[3]: (int(row[1]) - int(row[0])) / 1000 for row in rows}
    return {name: last[str(path.relative_to(folder))] for name, path in objects.items()}


def read_build(folder: Path) -> Build:
    cache = (folder / "CMakeCache.txt").read_text()
    found = re.search(r"^CMAKE_CUDA_ARCHITECTURES:\w+=(.*)$", cache, re.MULTILINE)
    objects = objects_of(folder)
    return Build(found[1] if found else "?", 0, objects, seconds_of(folder, objects))


def compile_for(architectures: str, nvcc: str, folder: Path, jobs: int) -> Build:
    run(
        "cmake", "-S", REPOSITORY, "-B", folder, "-G", "Ninja", "-DSCANRNN_CUDA=ON",
        "-DSCANRNN_BUILD_TESTS=OFF",
        f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
        env={"CUDACXX": nvcc},
    )  # fmt: skip
    objects = objects_of(folder)
    for path in objects.values():
        path.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    error = ""
    names = [path.relative_to(folder) for path in objects.values()]
    try:
        run("ninja", "-C", folder, f"-j{jobs}", "-k0", *names)
    except CommandError as failure:
        lines = [
            line for line in str(failure).splitlines() if re.search(r"\b(error|fatal)\b", line)
        ]
        error = lines[0] if lines else "failed"
        print(*lines, sep="\n", file=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    built = {name: path for name, path in objects.items() if path.exists()}
    return Build(architectures, processor, built, seconds_of(folder, built), error)


# ---- what is told of it ------------------------------------------------------------------------


def markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def order(architecture: str) -> int:
    return int(re.sub(r"\D", "", architecture))


def by_architecture(code: dict[str, Code]) -> str:
    rows = [["architecture", "kernels", "machine code, MB", "with a stack"]]
    for name in sorted(code, key=order):
        stacks = sum(kernel.stack > 0 for kernel in code[name].kernels)
        total = sum(code[name].sizes.values())
        rows.append([name, str(len(code[name].sizes)), f"{total / 1e6:.1f}", str(stacks)])
    return markdown(rows)


def by_object(build: Build) -> str:
    rows = [["object", "seconds", "KB"]]
    sizes = {name: path.stat().st_size for name, path in build.objects.items()}
    rows += [[name, f"{build.seconds[name]:.0f}", f"{sizes[name] / 1e3:.0f}"] for name in sizes]
    total = sum(build.seconds.values())
    rows.append(["all", f"{total:.0f}", f"{sum(sizes.values()) / 1e3:.0f}"])
    return markdown(rows)


DTYPES = ("Half", "BFloat16", "float", "double", "Complex<float>", "Complex<double>")
BACKWARD = re.compile(rf"backward|\b({'|'.join(DTYPES)}), true[,>]")


def by_kernel(code: Code) -> str:
    """The machine code of one architecture, by kernel, pass and dtype."""
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, size in code.sizes.items():
        family = name.partition("<")[0]
        way = "backward" if BACKWARD.search(name) else "forward"
        fitting = [d for d in DTYPES if re.search(rf"[<, ]{re.escape(d)}(?=[,>])", name)]
        found[family, way][max(fitting, key=len, default="-")] += size
    columns = [d for d in (*DTYPES, "-") if any(d in row for row in found.values())]
    rows = [["kernel", "pass", *columns]]
    for (family, way), sizes in sorted(found.items(), key=lambda each: -sum(each[1].values())):
        cells = (f"{sizes[d] / 1e3:.0f}" if d in sizes else "" for d in columns)
        rows.append([family, way, *cells])
    return markdown(rows)


def registers(kernels: list[ptxas_report.Kernel]) -> str:
    """Registers of the instances of each kernel, lowest and highest."""
    found = {
        (family.name, family.architecture): family.registers()
        for family in ptxas_report.families(kernels)
        if family.registers() != "-"
    }
    names = sorted({name for name, _ in found})
    columns = sorted({architecture for _, architecture in found}, key=order)
    rows = [["kernel", *columns]]
    rows += [[name, *(found.get((name, each), "-") for each in columns)] for name in names]
    return markdown(rows)


def report(build: Build, code: dict[str, Code], release: str) -> str:
    last = max(code, key=order)
    kernels = [kernel for each in code.values() for kernel in each.kernels]
    processor = f", {build.processor:.0f} s of processor time" if build.processor else ""
    return "\n".join(
        [
            "# The CUDA code by architecture and by kernel",
            "",
            f"{datetime.date.today()}, nvcc {release}{processor}. Written by",
            "`python tests/packaging/architectures.py --write`. CMAKE_CUDA_ARCHITECTURES was",
            f"{build.architectures}.",
            "",
            by_architecture(code),
            "",
            "Each object, packed as it lies in a library; seconds are of the wall, and longer than",
            "they need be on a machine that did something else too:",
            "",
            by_object(build),
            "",
            f"Machine code for {last}, not packed, KB:",
            "",
            by_kernel(code[last]),
            "",
            "Registers of each kernel's instances:",
            "",
            registers(kernels),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "architectures", nargs="?", help="as CMake writes them; default: those of a release"
    )
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX") or "nvcc", help="the compiler")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of Ninja")
    parser.add_argument("--built", type=Path, help="a finished build's folder; compile nothing")
    parser.add_argument("--write", action="store_true", help="into ARCHITECTURES.md")
    arguments = parser.parse_args()
    nvcc = shutil.which(arguments.nvcc)
    if nvcc is None:
        sys.exit(f"architectures.py: no compiler {arguments.nvcc}")
    search = os.pathsep.join([str(Path(nvcc).parent), os.environ.get("PATH", "")])
    cuobjdump = shutil.which("cuobjdump", path=search)
    if cuobjdump is None:
        sys.exit("architectures.py: no cuobjdump")
    release = re.search(r"release (\S+),", run(nvcc, "--version"))
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.built:
            build = read_build(arguments.built.resolve())
        else:
            wanted = arguments.architectures or release_architectures(nvcc)
            build = compile_for(wanted, nvcc, Path(temporary), arguments.jobs)
        text = report(build, build.code(cuobjdump), release[1] if release else "?")
    print(text)
    if arguments.write:
        (Path(__file__).parent / "ARCHITECTURES.md").write_text(text)
    return int(bool(build.error))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandError as failure:
        sys.exit(f"architectures.py: {failure}")
