"""What ptxas said of the kernels in a build's output: registers, spills, stack, shared memory.

    cmake -S . -B build -G Ninja -DCMAKE_CUDA_FLAGS=--resource-usage
    cmake --build build | tee build.log
    python tests/packaging/ptxas_report.py build.log

Prints a line for each kernel and architecture (its instances together), and every instance that
spills registers. Exit status: 1 if one does that is not allowed to, 2 if the text speaks of no
kernel (what is up to date is not compiled again, and then ptxas says nothing).

Ninja keeps the output of each compilation together; make -j mixes them up.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Kernel:
    """One instance of a kernel, or a function that it calls, for one architecture."""

    symbol: str
    architecture: str
    name: str = ""  # readable, without arguments: scan_rows<float, 4>
    registers: int = 0
    stack: int = 0  # bytes
    spill_stores: int = 0  # bytes
    spill_loads: int = 0  # bytes
    shared: int = 0  # bytes, static

    @property
    def family(self) -> str:
        """The name without its template's arguments."""
        return self.name.partition("<")[0]

    @property
    def spills(self) -> bool:
        return self.spill_stores + self.spill_loads > 0


ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(.+)' for '(.+)'")
PROPERTIES = re.compile(r"ptxas info\s*: Function properties for (\S+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s*: Used (\d+) registers(.*)")
SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


def parse(text: str) -> list[Kernel]:
    """The kernels in the order of the text; of one compiled twice, the last time counts."""
    kernels: dict[tuple[str, str], Kernel] = {}
    entry: Kernel | None = None  # what ptxas is compiling
    function: Kernel | None = None  # what it speaks of: the entry, or a function that it calls
    for line in text.splitlines():
        if found := ENTRY.search(line):
            entry = function = Kernel(found[1], found[2])
            kernels[entry.symbol, entry.architecture] = entry
        elif found := PROPERTIES.search(line):
            if entry is None:
                continue
            function = entry
            if found[1] != entry.symbol:
                function = Kernel(found[1], entry.architecture)
                kernels[function.symbol, function.architecture] = function
        elif (found := STACK.search(line)) and function is not None:
            function.stack, function.spill_stores, function.spill_loads = map(int, found.groups())
        elif (found := USED.search(line)) and entry is not None:
            entry.registers = int(found[1])
            shared = SHARED.search(found[2])
            entry.shared = int(shared[1]) if shared else 0
            entry = function = None
    result = list(kernels.values())
    for kernel, name in zip(result, demangle(k.symbol for k in result), strict=True):
        kernel.name = name
    return result


def demangle(symbols: Iterable[str]) -> list[str]:
    """Readable names without arguments and our namespaces; as they are where there's no c++filt."""
    names = list(symbols)
    program = shutil.which("cu++filt") or shutil.which("c++filt")
    if program and names:
        done = subprocess.run(
            [program], input="\n".join(names), capture_output=True, text=True, check=True
        )
        names = done.stdout.splitlines()
    return [shorten(name) for name in names]


def shorten(name: str) -> str:
    """`void scanrnn::cuda::f<float, 4>(float*)` to `f<float, 4>`."""
    for part in ("(anonymous namespace)::", "scanrnn::cuda::", "scanrnn::", "cuda::"):
        name = name.replace(part, "")
    depth = 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            name = name[:i]
            break
    return name.removeprefix("void ")


@dataclass
class Family:
    """The instances of one kernel for one architecture."""

    name: str
    architecture: str
    members: list[Kernel] = field(default_factory=list)

    def registers(self) -> str:
        values = [k.registers for k in self.members if k.registers]
        if not values:
            return "-"
        low, high = min(values), max(values)
        return str(low) if low == high else f"{low}-{high}"


def families(kernels: Iterable[Kernel]) -> list[Family]:
    found: dict[tuple[str, str], Family] = {}
    for kernel in kernels:
        key = kernel.family, kernel.architecture
        found.setdefault(key, Family(*key)).members.append(kernel)
    return sorted(found.values(), key=lambda f: (f.name, f.architecture))


def table(kernels: Iterable[Kernel]) -> str:
    rows = [("kernel", "", "instances", "registers", "spilling", "stack", "shared memory")]
    rows += [
        (
            family.name,
            family.architecture,
            str(len(family.members)),
            family.registers(),
            str(sum(k.spills for k in family.members)),
            str(max(k.stack for k in family.members)),
            str(max(k.shared for k in family.members)),
        )
        for family in families(kernels)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="*", type=Path, help="default: standard input")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="REGEX",
        help="kernels that may spill: the expression matches somewhere in the name",
    )  # fmt: skip
    arguments = parser.parse_args()
    texts = [path.read_text(errors="replace") for path in arguments.log] or [sys.stdin.read()]
    kernels = parse("\n".join(texts))
    if not kernels:
        print("ptxas_report: no kernel in this text", file=sys.stderr)
        return 2
    print(table(kernels))
    status = 0
    for kernel in kernels:
        if not kernel.spills:
            continue
        allowed = any(re.search(expression, kernel.name) for expression in arguments.allow)
        status |= not allowed
        print(
            f"{'allowed: ' if allowed else ''}{kernel.name} ({kernel.architecture}) spills: "
            f"{kernel.spill_stores} bytes of stores, {kernel.spill_loads} of loads, "
            f"{kernel.registers or '?'} registers"
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
