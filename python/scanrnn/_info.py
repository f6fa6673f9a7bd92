"""What ``python -m scanrnn info`` tells: this build, this machine, and the frameworks beside it."""

from __future__ import annotations

import ctypes
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from . import _core, _distributions

FRAMEWORKS = ("numpy", "torch", "jax", "cupy", "ml_dtypes")


class Cpu(TypedDict):
    name: str
    instruction_set: str
    built_instruction_sets: list[str]
    threads: int


class Device(TypedDict):
    name: str
    compute_capability: str


class Cuda(TypedDict):
    available: bool
    reason: str  # why not; "" if available
    architectures: str
    devices: list[Device]  # that the driver shows to this process, also without a CUDA backend


class Info(TypedDict):
    version: str
    distributions: dict[str, str]  # that are installed: one, or none in a source tree
    conflict: str  # what to do if there is more than one; "" otherwise
    python: str
    platform: str
    compiler: str
    debug_merge: bool
    jax_handlers: bool
    cpu: Cpu
    cuda: Cuda
    frameworks: dict[str, str | None]


def gather() -> Info:
    build = _core.build_info()
    distributions = _distributions.installed()
    return {
        "version": build["version"],
        "distributions": distributions,
        "conflict": _distributions.conflict(distributions),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "compiler": build["compiler"],
        "debug_merge": build["debug_merge"],
        "jax_handlers": build["xla_ffi"],
        "cpu": {
            "name": processor_name(),
            "instruction_set": _core.cpu_isa(),
            "built_instruction_sets": build["isas"],
            "threads": _core.get_num_threads(),
        },
        "cuda": {
            "available": _core.cuda_available(),
            "reason": _core.cuda_unavailable_reason(),
            "architectures": build["cuda_architectures"],
            "devices": cuda_devices(),
        },
        "frameworks": {name: installed_version(name) for name in FRAMEWORKS},
    }


def text(info: Info) -> str:
    cpu, cuda = info["cpu"], info["cuda"]
    found = {name: v for name, v in info["frameworks"].items() if v is not None}
    missing = [name for name, v in info["frameworks"].items() if v is None]
    rows = {
        "scanrnn": info["version"],
        "installed": info["conflict"]
        or ", ".join(f"{name} {v}" for name, v in info["distributions"].items())
        or "from a folder, not by pip",
        "python": f"{info['python']}, {info['platform']}",
        "CPU": f"available: {cpu['name']}, {cpu['threads']} threads",
        "": f"{cpu['instruction_set']} in use, of {', '.join(cpu['built_instruction_sets'])}",
        "CUDA": "available" if cuda["available"] else f"not available: {cuda['reason']}",
        "GPUs": ", ".join(f"{d['name']} ({d['compute_capability']})" for d in cuda["devices"])
        or "none found",
        "built for": cuda["architectures"] or "no GPU architecture",
        "JAX handlers": "built" if info["jax_handlers"] else "not built",
        "DEBUG_MERGE": "on" if info["debug_merge"] else "off",
        "compiler": info["compiler"],
        "found": ", ".join(f"{name} {v}" for name, v in found.items()),
        "not found": ", ".join(missing) or "-",
    }
    return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def cuda_devices() -> list[Device]:
    """Names and compute capabilities from the driver, which any process can ask; [] without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    devices: list[Device] = []
    for ordinal in range(count.value):
        device, value = ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(128)
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceGetName(name, len(name), device)
        numbers = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            numbers.append(value.value)
        capability = "{}.{}".format(*numbers)
        devices.append({"name": name.value.decode(), "compute_capability": capability})
    return devices


def installed_version(package: str) -> str | None:
    """The version in the installed metadata: nothing is imported."""
    # CuPy's wheels are named after the CUDA version that they are for.
    names = [package, *(f"cupy-cuda{v}x" for v in (11, 12, 13) if package == "cupy")]
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cmake_dir() -> Path:
    """The folder of the CMake package that an installed scanrnn carries.

    Raises:
        FileNotFoundError: This scanrnn is not an installed one.
    """
    # An editable install has Python sources in one place and built files in another.
    roots = [Path(__file__).parent, *(Path(p) / "scanrnn" for p in sys.path)]
    for root in roots:
        if (root / "lib/cmake/scanrnn/scanrnnConfig.cmake").is_file():
            return (root / "lib/cmake/scanrnn").resolve()
    raise FileNotFoundError(
        f"no CMake package beside {roots[0]}: it comes with 'pip install .', not with the sources"
    )
