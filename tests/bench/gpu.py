"""The CUDA benchmark: kernels against a streaming kernel, whole calls from Python, and peers.

    python tests/bench/gpu.py                 everything, as Markdown on standard output
    python tests/bench/gpu.py kernels eager   only these sections
    python tests/bench/gpu.py --write         also into RESULTS.md beside this file, in place of
                                               what stands there for the same device
    python tests/bench/gpu.py --quick         tiny shapes and few rounds: shows that it runs

The kernels are measured by a program, cuda.cu beside this file, which says how. nvcc (or what
CUDACXX names) compiles it here on the installed scanrnn, unless --program or SCANRNN_CUDA_BENCH
names the scanrnn_cuda_bench of a build with -DSCANRNN_BUILD_BENCHMARKS=ON. Without nvcc, or with a
scanrnn that isn't installed, it is looked for in build/.

Times of whole calls are those of the host's clock, from the call until the device is done, new
outputs included: medians of rounds in which all contenders of a row take turns. Short calls are
made several times in a row for one reading. Peers that are not installed are left out.

Exit status: 1 if a result is wrong or a choice of kernel is a bad one, 2 without a device.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

import scanrnn
from cells import CELLS, RANGES, Cell
from scanrnn import _core
from scanrnn._info import cmake_dir

from cpu import HERE, Report, Table, faster, ms

ROOT = HERE.parents[1]
DEVICE = "cuda"
ROUNDS = 15
READING = 5e-3  # seconds that one reading should take at least

Shape = tuple[int, ...]
Row = dict[str, Any]


@dataclass
class Options:
    program: Path | None
    quick: bool
    failed: bool = False  # set by sections


# ---- Measuring -----------------------------------------------------------------------------------


def wait_torch(result: Any = None) -> None:
    import torch

    torch.cuda.synchronize()


def wait_jax(result: Any) -> None:
    import jax

    ready: Any = jax.block_until_ready
    ready(result)


@dataclass
class Contender:
    """A call, and how to wait for its result."""

    call: Callable[[], Any]
    wait: Callable[[Any], None] = wait_torch


def times(
    contenders: dict[str, Contender],
    budget: float = math.inf,
    warm: bool = False,
    least: float = READING,
) -> dict[str, float]:
    """Median seconds of each call. They take turns; one whose seconds are spent drops out.

    A reading is as many calls in a row as take `least` seconds, up to a hundred.

    A first call loads kernels and compiles, so it doesn't count, unless calls like it came before
    (warm) and it takes the whole budget.
    """
    counts = {}
    taken: dict[str, list[float]] = {}
    for name, contender in contenders.items():
        once = reading(contender, 1)
        if not warm or once <= budget:
            once = reading(contender, 1)
        taken[name] = [once] if once > budget else []
        counts[name] = max(1, min(100, round(least / once)))
    order, shuffle = list(contenders), random.Random(0).shuffle
    for _ in range(ROUNDS):
        shuffle(order)
        for name in order:
            if sum(taken[name]) * counts[name] < budget:
                taken[name].append(reading(contenders[name], counts[name]))
    return {name: median(values) for name, values in taken.items()}


def reading(contender: Contender, count: int) -> float:
    contender.wait(None)
    start = time.perf_counter()
    for _ in range(count):
        result = contender.call()
    contender.wait(result)
    return (time.perf_counter() - start) / count


def kernel_times(call: Callable[[], Any], count: int) -> dict[str, float]:
    """Seconds of each kernel, copy or fill on the device in one call, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    call()
    wait_torch()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            call()
        wait_torch()
    return {
        event.key: event.self_device_time_total * 1e-6 / count
        for event in profiler.key_averages()
        if event.device_type.name == "CUDA"
    }


def installed(*modules: str) -> bool:
    """Whether all of them can be imported."""
    for module in modules:
        try:
            import_module(module)
        except Exception:  # peers fail in many ways where they don't fit the machine
            return False
    return True


def gates_and_values(shape: Shape) -> tuple[Any, Any]:
    """Gates from (0.8, 1), and normal values."""
    import torch

    a = torch.rand(shape, device=DEVICE).mul_(0.2).add_(0.8)
    return a, torch.randn(shape, device=DEVICE)


def with_gradient(function: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    """A call of a function of tensors and of its gradient, for the last full tensor's values."""
    import torch

    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    dh = next(tensor for tensor in reversed(inputs) if tensor.ndim == inputs[0].ndim)

    def call() -> Any:
        h = function(*leaves)
        return h, torch.autograd.grad(h, leaves, dh)

    return call


# ---- Kernels -------------------------------------------------------------------------------------


def find_program(given: str | None, folder: Path) -> Path | None:
    """The kernels' benchmark: the one that is named, compiled into the folder, or in build/."""
    if named := given or os.environ.get("SCANRNN_CUDA_BENCH"):
        if not Path(named).is_file():
            sys.exit(f"gpu.py: there is no {named}")
        return Path(named).resolve()
    compilers = (os.environ.get("CUDACXX"), "nvcc", "/usr/local/cuda/bin/nvcc")
    nvcc = next(filter(None, (shutil.which(name) for name in compilers if name)), None)
    try:
        package = cmake_dir().parents[2]
    except FileNotFoundError:  # scanrnn isn't installed but used from its sources
        nvcc = None
    if nvcc is not None:
        program = folder / "scanrnn_cuda_bench"
        command = [nvcc, "-std=c++17", "-O3", "-arch=native", "-Xcompiler=-pthread"]
        command += [f"-I{package / 'include'}", str(HERE / "cuda.cu")]
        command += [str(package / "lib" / "libscanrnn.a")]
        subprocess.run([*command, "-o", str(program)], check=True)
        return program
    found = [*ROOT.glob("build/*/tests/bench/scanrnn_cuda_bench")]
    found += ROOT.glob("build/tests/bench/scanrnn_cuda_bench")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def run_program(options: Options, *arguments: str) -> tuple[Row, list[Row]]:
    """What the program says of the device, and its rows; its table goes to standard error."""
    assert options.program is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        command = [str(options.program), "--json", str(path), *arguments]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"gpu.py: {shlex.join(command)} failed with status {done.returncode}")
        options.failed |= done.returncode == 1
        head, *rows = map(json.loads, path.read_text().splitlines())
    return head, rows


def shape_text(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def kernel_table(report: Report, rows: list[Row]) -> None:
    """One line for each dtype and shape; calls and layouts side by side."""
    columns = list(dict.fromkeys((row["op"], row["layout"]) for row in rows))
    columns.sort(key=lambda column: [row["op"] for row in rows].index(column[0]))
    names = [f"{op.partition(' ')[2]} {layout}" for op, layout in columns]
    table = Table(report, "B, T, D", "dtype", "goal", *names)
    lines: dict[tuple[str, Shape], dict[tuple[str, str], Row]] = {}
    for row in rows:
        key = row["dtype"], tuple(row["shape"])
        lines.setdefault(key, {})[row["op"], row["layout"]] = row

    def cell(row: Row | None) -> str:
        if row is None:
            return "-"
        if not row["right"]:
            return "WRONG"
        return f"{row['ms']:.3g} ms, **{row['share']:.2f}**, {row['gbps'] / 1e3:.2f} TB/s"

    for (dtype, shape), found in lines.items():
        goal = max(row["goal"] for row in found.values())
        table.row(shape_text(shape), dtype, goal or "-", *(cell(found.get(c)) for c in columns))


def section_kernels(report: Report, options: Options) -> None:
    """Kernels alone, against a streaming kernel."""
    if options.program is None:
        report("\nKernels: not measured, no nvcc and no scanrnn_cuda_bench")
        return
    _, rows = run_program(options, *(["--quick"] if options.quick else []))
    report(
        "\nCalls alone, outputs and workspace at hand, cold L2: time, **share of the streaming "
        "kernel** that reads and writes as many arrays, bytes of these arrays by time"
    )
    for kind in dict.fromkeys(row["op"].partition(" ")[0] for row in rows):
        report(f"\n{kind}\n")
        kernel_table(report, [row for row in rows if row["op"].partition(" ")[0] == kind])
    goals = [row for row in rows if row["goal"]]
    missed = [row for row in goals if row["share"] < row["goal"]]
    errors = {
        dtype: max(row["error"] for row in rows if row["dtype"] == dtype)
        for dtype in dict.fromkeys(row["dtype"] for row in rows)
    }
    report(
        f"\n{len(goals) - len(missed)} of {len(goals)} goals met. Largest errors, relative to the"
    )
    report(f"largest value: {', '.join(f'{name} {e:.1e}' for name, e in errors.items())}")


def section_choice(report: Report, options: Options) -> None:
    """The library's choice of kernel against the serial one."""
    if options.program is None:
        report("\nChoice of kernel: not measured, no nvcc and no scanrnn_cuda_bench")
        return
    quick = ["--quick", "--filter", " 1,64,"] if options.quick else []
    _, rows = run_program(options, "--grid", *quick)
    shapes = {tuple(row["shape"]) for row in rows}
    report(
        f"\nTime of the serial kernel / time of the kernel that the library chooses, float32, the "
        f"lowest of both passes and of [B,T,D] and [B,D,T]; {len(shapes)} shapes\n"
    )
    steps = sorted({T for _, T, _ in shapes})
    table = Table(report, "B, D", *(f"T = {T}" for T in steps))
    for B, D in dict.fromkeys((B, D) for B, _, D in (row["shape"] for row in rows)):
        cells = []
        for T in steps:
            found = [row for row in rows if row["shape"] == [B, T, D]]
            ratios = [row["serial_us"] / row["chosen_us"] for row in found]
            wrong = not all(row["right"] for row in found)
            cells.append("WRONG" if wrong else f"{min(ratios):.2f}" if ratios else "-")
        table.row(f"{B}, {D}", *cells)
    slower = [row for row in rows if row["slower"]]
    report(f"\n{len(slower)} of {len(rows)} calls are more than 3% slower than the serial kernel.")
    for row in slower:
        report(
            f"- {row['op']}, {row['layout']}, {shape_text(row['shape'])}: "
            f"{row['chosen_us']:.2f} us, serial {row['serial_us']:.2f} us"
        )


# ---- Whole calls ---------------------------------------------------------------------------------


def section_eager(report: Report, options: Options) -> None:
    """A whole call from PyTorch, eager, against its kernels."""
    import scanrnn.torch as srt
    import torch

    B, D, T = (2, 16, 256) if options.quick else (8, 1536, 65536)
    a, x = gates_and_values((B, D, T))
    both = with_gradient(lambda a, x: srt.scan(a, x, axis=-1), a, x)
    whole = times({"both": Contender(both)})["both"]
    kernels = kernel_times(both, 3 if options.quick else 10)
    ours = sum(value for name, value in kernels.items() if "scanrnn" in name)
    report(
        "\nWhole call from PyTorch, eager: `h = scan(a, x, axis=-1)`, then "
        f"`autograd.grad(h, (a, x), dh)`; float32, [B,D,T] = {B}, {D}, {T}\n"
    )
    table = Table(report, "", "ms")
    for name, value in sorted(kernels.items(), key=lambda item: -item[1]):
        table.row(f"`{shortened(name)}`", ms(value))
    table.row("all kernels of scanrnn", ms(ours))
    table.row("whole call", ms(whole))
    table.row("whole call / kernels (goal 1.1)", f"**{whole / ours:.3f}**")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both()
    wait_torch()
    peak = (torch.cuda.max_memory_allocated() - before) / x.nbytes
    report(f"\nPeak memory that the call adds, in arrays of x's size: {peak:.3f}; results: 3")


def section_packed(report: Report, options: Options) -> None:
    """A very long sequence among short ones, packed, against as many steps of one sequence."""
    import scanrnn.torch as srt
    import torch

    long, short, widths = (4096, 10, (8,)) if options.quick else (1 << 20, 1000, (64, 512))
    draw = random.Random(0)
    lengths = [draw.randrange(1, 2000) for _ in range(short)]
    lengths.insert(short // 2, long)
    ends = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
    total = sum(lengths)
    even = torch.linspace(0, total, short + 2, device=DEVICE, dtype=torch.float64).long()
    report(
        f"\nPacked sequences, whole calls from PyTorch, float32, ms: one of {long} steps among "
        f"{short} of up to 2,000, {total} steps together\n"
    )
    table = Table(
        report, "D", "call", "one sequence", "packed", "packed / one", f"{short + 1} equal ones"
    )
    for D in widths:
        a, x = gates_and_values((1, total, D))
        for call in ("forward", "forward + backward"):

            def contender(offsets: Any, call: str = call, a: Any = a, x: Any = x) -> Contender:
                def function(a: Any, x: Any) -> Any:
                    return srt.scan(a, x, cu_seqlens=offsets)

                return Contender(
                    with_gradient(function, a, x) if "+" in call else lambda: function(a, x)
                )

            found = times(
                {"one": contender(None), "packed": contender(ends), "even": contender(even)}
            )
            ratio = f"**{found['packed'] / found['one']:.2f}**"
            table.row(D, call, ms(found["one"]), ms(found["packed"]), ratio, ms(found["even"]))


def shortened(kernel: str) -> str:
    """A kernel's name without its arguments, and not longer than a table bears."""
    name = re.sub(r"\((?!anonymous).*", "", kernel.removeprefix("void "))
    return name if len(name) <= 60 else name[:57] + "..."


def section_overhead(report: Report, options: Options) -> None:
    """What a call costs the host."""
    import scanrnn.torch as srt
    import torch

    library = torch.library.Library("scanrnn_bench_cuda", "DEF")
    library.define("empty(Tensor a, Tensor x) -> Tensor")
    library.impl("empty", lambda a, x: torch.empty_like(x), "CUDA")
    registered = torch.ops.scanrnn_bench_cuda.empty.default
    a, x = gates_and_values((1, 8, 16))
    leaf = x.clone().requires_grad_()
    calls: dict[str, Callable[[], Any]] = {
        "an empty registered operator (a, x) -> empty_like(x)": lambda: registered(a, x),
        "torch.addcmul(x, a, x)": lambda: torch.addcmul(x, a, x),
        "scanrnn.torch.scan(a, x)": lambda: srt.scan(a, x),
        "scanrnn.torch.scan(a, x), x requires a gradient": lambda: srt.scan(a, leaf),
    }
    if installed("cupy"):
        import cupy

        a_cupy, x_cupy = cupy.from_dlpack(a), cupy.from_dlpack(x)
        calls["scanrnn.scan(a, x), CuPy"] = lambda: scanrnn.scan(a_cupy, x_cupy)
    count = 20 if options.quick else 1000

    def many(call: Callable[[], Any]) -> Callable[[], None]:
        def loop() -> None:
            for _ in range(count):
                call()

        return loop

    t = times({name: Contender(many(call)) for name, call in calls.items()})
    base = next(iter(t.values())) / count
    report(
        "\nCall overhead: (1, 8, 16), float32, microseconds a call in a row of calls, kernels and "
        "launches included\n"
    )
    table = Table(report, "call", "us", "above the empty operator (goal 10 for the third line)")
    for name, value in t.items():
        table.row(name, f"{value / count * 1e6:.1f}", f"{(value / count - base) * 1e6:.1f}")


# ---- Peers ---------------------------------------------------------------------------------------


def torch_loop(a: Any, x: Any) -> Any:
    import torch

    h, states = torch.zeros_like(x[:, 0]), []
    for a_t, x_t in zip(a.unbind(1), x.unbind(1), strict=True):
        h = torch.addcmul(x_t, a_t, h)
        states.append(h)
    return torch.stack(states, 1)


def jax_contenders(a: Any, x: Any, both: bool) -> dict[str, Contender]:
    """`jax.lax.associative_scan` and our scan, compiled, on JAX arrays of the tensors' values."""
    if not installed("jax"):
        return {}
    import jax

    if jax.default_backend() != "gpu":
        return {}

    def merge(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    functions: dict[str, Any] = {
        "associative_scan": lambda a, x: jax.lax.associative_scan(merge, (a, x), axis=1)[1]
    }
    if installed("scanrnn.jax"):
        import scanrnn.jax as srj

        functions["scanrnn.jax"] = srj.scan

    def with_pullback(function: Any) -> Any:
        def result(a: Any, x: Any) -> Any:
            h, pullback = jax.vjp(function, a, x)
            return h, pullback(x)

        return result

    a, x = (jax.numpy.from_dlpack(tensor).copy() for tensor in (a, x))

    def contender(function: Any) -> Contender:
        compiled = jax.jit(with_pullback(function) if both else function)
        return Contender(lambda: compiled(a, x), wait_jax)

    return {name: contender(function) for name, function in functions.items()}


def torch_contenders(a: Any, x: Any, both: bool) -> dict[str, Contender]:
    """Our scan in [B,T,D] and [B,D,T], a loop, and what is installed."""
    import scanrnn.torch as srt

    a_bdt, x_bdt = (tensor.mT.contiguous() for tensor in (a, x))
    functions: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {
        "scan": (srt.scan, a, x),
        "scan, [B,D,T]": (lambda a, x: srt.scan(a, x, axis=-1), a_bdt, x_bdt),
    }
    T = x.shape[1]
    if T <= 2048:
        functions["loop"] = (torch_loop, a, x)
    if T <= 65536 and installed("accelerated_scan.warp"):
        warp = import_module("accelerated_scan.warp")
        functions["accelerated-scan"] = (warp.scan, a_bdt, x_bdt)
    if installed("fla.ops.hgrn"):
        hgrn = import_module("fla.ops.hgrn")
        functions["fla"] = (lambda g, x: hgrn.chunk_hgrn(x, g)[0], a.log(), x)
    return {
        name: Contender(
            with_gradient(function, a, x)
            if both
            else lambda function=function, a=a, x=x: function(a, x)  # type: ignore[misc]
        )
        for name, (function, a, x) in functions.items()
    }


# Peer, and the way of calling scanrnn that it compares with.
PEERS = {
    "associative_scan": "scanrnn.jax",
    "loop": "scan",
    "fla": "scan",
    "accelerated-scan": "scan, [B,D,T]",
}


def section_peers(report: Report, options: Options) -> None:
    """The scan and its peers, whole calls."""
    import torch

    shapes = [(8, 2048, 1024), (1, 65536, 512), (1, 1 << 20, 64), (16, 8192, 1024), (32, 256, 1024)]
    for both in (False, True):
        what = "forward + backward" if both else "forward"
        report(f"\nScan, float32, {what}, whole calls with new outputs; ms, and peer / scanrnn\n")
        table = Table(
            report, "B, T, D", "scanrnn.torch", "in [B,D,T]", "scanrnn.jax, jit",
            "jax.lax.associative_scan, jit", "torch loop", "fla chunk_hgrn",
            "accelerated-scan warp, [B,D,T]",
        )  # fmt: skip
        for shape in [(2, 64, 32)] if options.quick else shapes:
            a, x = gates_and_values(shape)
            contenders = torch_contenders(a, x, both) | jax_contenders(a, x, both)
            t: dict[str, float] = {}
            ours = {name: c for name, c in contenders.items() if name not in PEERS}
            t |= times(ours)
            for name in PEERS.keys() & contenders.keys():
                try:
                    t |= times({name: contenders[name]})
                except Exception as error:  # a peer's failure is a result
                    print(f"{name}, {shape}: {error}", file=sys.stderr)
            del contenders, ours
            torch.cuda.empty_cache()
            table.row(
                shape_text(shape),
                *(ms(t[n]) if n in t else "-" for n in ("scan", "scan, [B,D,T]", "scanrnn.jax")),
                *(
                    f"{ms(t[peer])} ({faster(t[peer], t[PEERS[peer]])})"
                    if peer in t and PEERS[peer] in t
                    else ms(t[peer]) if peer in t else "-"
                    for peer in ("associative_scan", "loop", "fla", "accelerated-scan")
                ),
            )  # fmt: skip


def layer_call(module: Any, x: Any) -> Callable[[], Any]:
    """A layer's output and gradients, for an output of x's shape."""

    def both() -> Any:
        module.zero_grad(set_to_none=True)
        y = module(x)[0]
        y.backward(x)
        return y

    return both


# The SRU package 2.6, its kernels patched to compile, forward + backward on one H200, ms. Used
# where the package isn't installed.
SRU_PACKAGE = {(16, 4096, 512): 9.30, (1, 65536, 512): 125.0}
SRU_GOALS = {(16, 4096, 512): (6, 15), (1, 65536, 512): (80, 200)}


def section_layers(report: Report, options: Options) -> None:
    """The SRU layer against other layers."""
    import scanrnn.torch as srt
    import torch

    torch.set_float32_matmul_precision("high")  # TF32

    def recurrence(shape: Shape) -> Callable[[], Any]:
        arrays = [torch.randn(shape, device=DEVICE, requires_grad=True) for _ in range(4)]
        biases = [torch.zeros(shape[-1], device=DEVICE, requires_grad=True) for _ in range(2)]
        leaves = (*arrays, *biases)
        dh = torch.randn(shape, device=DEVICE)
        return lambda: torch.autograd.grad(srt.sru(*leaves), leaves, dh)

    package = installed("sru")
    report(
        "\nLayers of D units on D inputs, float32 with TF32 products, forward + backward, ms. The "
        "SRU package's times are "
        + ("from this run." if package else "recorded ones (H200), it isn't installed.")
        + "\n"
    )
    table = Table(
        report, "B, T, D", "SRU package", "scanrnn.torch.SRU", "package / layer (goal)",
        "recurrence alone", "package / recurrence (goal)", "torch.nn.LSTM", "torch.nn.GRU",
    )  # fmt: skip
    for shape in [(2, 64, 32)] if options.quick else SRU_PACKAGE:
        D = shape[-1]
        x = torch.randn(shape, device=DEVICE)
        calls = {
            "layer": layer_call(srt.SRU(D, D, batch_first=True, device=DEVICE), x),
            "recurrence": recurrence(shape),
        }
        if package:
            module = import_module("sru").SRU(
                D, D, num_layers=1, has_skip_term=True, layer_norm=False
            )
            calls["package"] = layer_call(module.to(DEVICE), x.transpose(0, 1).contiguous())
        if shape[1] < 65536:  # cuDNN refuses longer ones
            for cell in (torch.nn.LSTM, torch.nn.GRU):
                calls[cell.__name__] = layer_call(cell(D, D, batch_first=True, device=DEVICE), x)
        # Long beside the beginning of a reading, where the device waits for the first calls: with 6
        # calls of the recurrence 0.85 ms each, with 20 0.65.
        t = times({name: Contender(call) for name, call in calls.items()}, least=20e-3)
        other = t.get("package", SRU_PACKAGE.get(shape, 0) * 1e-3) or None
        goals = SRU_GOALS.get(shape, ("-", "-"))
        table.row(
            shape_text(shape), "-" if other is None else ms(other),
            ms(t["layer"]), f"**{faster(other, t['layer'])}** ({goals[0]})",
            ms(t["recurrence"]), f"**{faster(other, t['recurrence'])}** ({goals[1]})",
            *(ms(t[name]) if name in t else "-" for name in ("LSTM", "GRU")),
        )  # fmt: skip


# Diagonal layers of pararnn-torch 0.17.4 (3 iterations of Newton's method; the LSTM has coupled
# gates and peepholes), forward + backward on one H200, ms, by shape: GRU, LSTM.
PARARNN = {(1, 65536, 512): (9.96, 41.7), (16, 4096, 512): (9.58, 18.6)}
SRU_RECURRENT_GOALS = {(1, 65536, 512): 40, (16, 4096, 512): 4}


def section_nonlinear(report: Report, options: Options) -> None:
    """Layers of nonlinear cells against recorded peers."""
    import scanrnn.torch as srt
    import torch

    torch.set_float32_matmul_precision("high")  # TF32
    report(
        "\nLayers of nonlinear cells, D units on D inputs, default initialisation, float32 with "
        "TF32 products, ms. The bias is that of the gate that holds the state, all of its units. "
        "Passes, channels that fell back to a serial run, and the error estimate are the report's. "
        "The peers' times are recorded ones (H200, forward + backward, without the bias).\n"
    )
    table = Table(
        report, "B, T, D", "layer", "bias", "forward", "forward + backward", "peer", "peer / ours",
        "goal", "status", "passes", "serial channels", "estimate",
    )  # fmt: skip
    options_of = {"batch_first": True, "device": DEVICE}
    for shape in [(2, 600, 32)] if options.quick else PARARNN:
        D = shape[-1]
        x = torch.randn(shape, device=DEVICE)
        gru, lstm = PARARNN.get(shape, (0, 0))
        sru = SRU_PACKAGE.get(shape, 0)
        # The constructor, its options, rows of the gate's bias, the peer, its time, goal x.
        layers: dict[str, tuple[Any, Row, slice | None, str, float, float]] = {
            "DiagonalGRU": (srt.DiagonalGRU, {}, slice(D, 2 * D), "pararnn", gru, 5),
            "DiagonalLSTM": (srt.DiagonalLSTM, {}, slice(0, D), "pararnn", lstm, 15),
            "DiagonalLSTM, peepholes": (
                srt.DiagonalLSTM, {"peephole": True}, slice(0, D), "pararnn", lstm, 15,
            ),
            "DiagonalLSTM, coupled, peepholes": (
                srt.DiagonalLSTM, {"peephole": True, "coupled": True}, slice(0, D), "pararnn",
                lstm, 15,
            ),
            "SRU, recurrent": (
                srt.SRU, {"recurrent": True}, slice(0, D), "SRU package", sru,
                SRU_RECURRENT_GOALS.get(shape, 0),
            ),
            "IndRNN": (srt.IndRNN, {}, None, "-", 0, 0),
        }  # fmt: skip
        for name, (layer, arguments, gate, peer, peer_ms, goal) in layers.items():
            for bias in (None,) if gate is None else (None, 3.0, 5.0):
                torch.manual_seed(0)
                module = layer(D, D, **arguments, **options_of)
                if bias is not None:
                    with torch.no_grad():
                        module.bias_ih_l0[gate] = bias
                t = times(layer_contenders("the", module, x))
                both = t["the layer, both"]
                # With long memory, twice the peer's speed where more is asked for without.
                wanted = goal if bias is None else min(goal, 2)
                worst = module.last_report[0].worst
                table.row(
                    shape_text(shape), name, "-" if bias is None else f"{bias:g}",
                    ms(t["the layer"]), f"**{ms(both)}**",
                    f"{peer} {peer_ms:g}" if peer_ms else "-",
                    f"**{faster(peer_ms * 1e-3, both)}**" if peer_ms else "-",
                    f"{wanted}x" if wanted else "-", worst.status, str(worst.passes),
                    str(worst.serial_channels), f"{worst.error_estimate:.1e}",
                )  # fmt: skip


# ---- Cells ---------------------------------------------------------------------------------------

SLOW = 0.2  # seconds for a contender that is a loop or torch.nn.GRU


def cell_inputs(cell: Cell, shape: Shape) -> list[Any]:
    """Random arguments of a cell's function, the vectors last."""
    import torch

    def random(shape: Shape, kind: str) -> Any:
        return torch.empty(shape, device=DEVICE).uniform_(*RANGES[kind])

    arrays = [random(shape, kind) for kind in cell.arrays.values()]
    return arrays + [random(shape[-1:], kind) for kind in cell.vectors.values()]


def cell_function(name: str) -> Callable[..., Any]:
    import scanrnn.torch as srt

    function: Callable[..., Any] = getattr(srt, CELLS[name].function or name)
    return function


def by_scan(cell: Cell, scan: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A cell from its equations: gates for all steps at once, and a scan of them."""
    return lambda *inputs: cell.output(scan(*cell.map(*inputs)), *inputs)


def fla_scan(a: Any, x: Any) -> Any:
    return import_module("fla.ops.hgrn").chunk_hgrn(x, a.log())[0]


def looped_layer(cell: Cell, D: int) -> Any:
    """The layer of a cell in plain PyTorch: one product, and a loop over time."""
    import torch

    blocks = [name for name in cell.arrays if name not in cell.unprojected]

    class Looped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(D, len(blocks) * D)
            vectors = cell_inputs(cell, (D,))[len(cell.arrays) :]
            self.vectors = torch.nn.ParameterList(vectors)

        def forward(self, x: Any) -> tuple[Any]:
            projected = dict(zip(blocks, self.project(x).chunk(len(blocks), -1), strict=True))
            arrays = [projected.get(name, x) for name in cell.arrays]
            return (by_scan(cell, torch_loop)(*arrays, *self.vectors),)

    return Looped().to(DEVICE)


def our_layer(cell: Cell, D: int) -> Any:
    import scanrnn.torch as srt

    return getattr(srt, cell.layer)(D, D, batch_first=True, device=DEVICE, **cell.layer_options)


def layer_contenders(prefix: str, module: Any, x: Any) -> dict[str, Contender]:
    """A layer without gradients, and with them."""
    import torch

    def forward() -> Any:
        with torch.no_grad():
            return module(x)

    return {
        f"{prefix} layer": Contender(forward),
        f"{prefix} layer, both": Contender(layer_call(module, x)),
    }


def function_contenders(
    prefix: str, function: Callable[..., Any], inputs: list[Any]
) -> dict[str, Contender]:
    return {
        prefix: Contender(lambda: function(*inputs)),
        f"{prefix}, both": Contender(with_gradient(function, *inputs)),
    }


def agree(ours: Any, theirs: Any) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-4 * theirs.abs().max())


def section_cells(report: Report, options: Options) -> None:
    """Every cell and its layer, against loops and fla, and QRNN and MinGRU against cuDNN's GRU."""
    import torch

    torch.set_float32_matmul_precision("high")  # TF32
    cells_against_loops(report, options)
    cells_against_fla(report, options)
    layers_against_gru(report, options)


def cells_against_loops(report: Report, options: Options) -> None:
    import torch

    shape = (2, 64, 32) if options.quick else (16, 1024, 512)
    report(
        f"\nCells, float32, B, T, D = {shape_text(shape)}: ms, and times that a loop in PyTorch "
        "takes (gates for all steps at once, then a step at a time); layers with their products in "
        "TF32\n"
    )
    kinds = ["", ", both", " layer", " layer, both"]
    table = Table(
        report, "cell", "recurrence, forward", "loop", "forward + backward", "loop",
        "layer, forward", "loop", "forward + backward", "loop",
    )  # fmt: skip
    x = torch.randn(shape, device=DEVICE)
    for name, cell in CELLS.items():
        inputs = cell_inputs(cell, shape)
        loop = by_scan(cell, torch_loop)
        right = agree(cell_function(name)(*inputs), loop(*inputs))
        options.failed |= not right
        contenders = function_contenders("ours", cell_function(name), inputs)
        contenders |= layer_contenders("ours", our_layer(cell, shape[-1]), x)
        contenders |= function_contenders("loop", loop, inputs)
        contenders |= layer_contenders("loop", looped_layer(cell, shape[-1]), x)
        t = times(contenders, SLOW)
        columns: list[str] = []
        for kind in kinds:
            ours, theirs = t[f"ours{kind}"], t[f"loop{kind}"]
            columns += [ms(ours) if right else "WRONG", faster(theirs, ours)]
        table.row(name, *columns)


def cells_against_fla(report: Report, options: Options) -> None:
    import torch

    shapes = [(2, 64, 32)] if options.quick else [(16, 4096, 512), (1, 65536, 512)]
    fla = installed("fla.ops.hgrn")
    report(
        "\nCells, float32, ms, and times that fla takes: gates in PyTorch, then its chunk_hgrn. "
        "The SRU package is in the section `layers`.\n"
    )
    table = Table(
        report, "B, T, D", "cell", "recurrence, forward", "fla", "forward + backward", "fla",
        "layer, forward", "forward + backward",
    )  # fmt: skip
    for shape in shapes:
        x = torch.randn(shape, device=DEVICE)
        for name, cell in CELLS.items():
            inputs = cell_inputs(cell, shape)
            contenders = function_contenders("ours", cell_function(name), inputs)
            contenders |= layer_contenders("ours", our_layer(cell, shape[-1]), x)
            t = times(contenders, SLOW)
            if fla:
                peers = function_contenders("fla", by_scan(cell, fla_scan), inputs)
                try:
                    t |= times(peers, SLOW)
                except Exception as error:  # a peer's failure is a result
                    print(f"fla, {name}, {shape}: {error}", file=sys.stderr)
            columns: list[str] = []
            for kind in ("", ", both"):
                peer = t.get(f"fla{kind}")
                columns += [ms(t[f"ours{kind}"]), faster(peer, t[f"ours{kind}"])]
            columns += [ms(t["ours layer"]), ms(t["ours layer, both"])]
            table.row(shape_text(shape), name, *columns)


# The layers that are compared with torch.nn.GRU on a grid of shapes, and their cells.
BESIDE_GRU = {"QRNN": "qrnn, fo", "MinGRU": "min_gru"}


def times_beside_gru(shape: Shape) -> dict[str, float]:
    """Seconds of torch.nn.GRU, where it can do it, and of the layers."""
    import torch

    D = shape[-1]
    x = torch.randn(shape, device=DEVICE)
    ours = {
        name: Contender(layer_call(our_layer(CELLS[cell], D), x))
        for name, cell in BESIDE_GRU.items()
    }
    gru = Contender(layer_call(torch.nn.GRU(D, D, batch_first=True, device=DEVICE), x))
    try:
        return times({"gru": gru} | ours, SLOW, warm=shape[1] > 128)  # the first ones of the grid
    except RuntimeError as error:  # cuDNN's refusals, and not enough memory
        print(f"torch.nn.GRU, {shape}: {error}", file=sys.stderr)
    torch.cuda.empty_cache()
    return times(ours, SLOW)


def layers_against_gru(report: Report, options: Options) -> None:
    import torch

    report(
        "\nLayers of D units on D inputs, float32 with TF32 products, forward + backward, ms, and "
        "torch.nn.GRU's time / the layer's (goal: more than 1); cuDNN refuses T = 65536\n"
    )
    table = Table(report, "B, T, D", "torch.nn.GRU", *BESIDE_GRU)
    grid = [(B, T, D) for T in (128, 4096, 65535) for B in (1, 16, 64) for D in (64, 512, 1024)]
    measured = won = 0
    for shape in [(2, 64, 32)] if options.quick else grid:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        if 4 * math.prod(shape) * 16 > free:  # gates, their gradients, cuDNN's reserve
            table.row(shape_text(shape), "doesn't fit", *("-" for _ in BESIDE_GRU))
            continue
        t = times_beside_gru(shape)
        gru = t.pop("gru", None)
        if gru is not None:
            measured += len(t)
            won += sum(value < gru for value in t.values())
        ours = (f"{ms(t[name])} ({faster(gru, t[name])})" for name in BESIDE_GRU)
        table.row(shape_text(shape), "-" if gru is None else ms(gru), *ours)
    report(f"\nFaster than torch.nn.GRU: {won} of {measured}.")


def section_compiled(report: Report, options: Options) -> None:
    """Cells against torch.compile of the same equations, with its associative scan, forward."""
    import torch

    shape = (2, 64, 32) if options.quick else (8, 2048, 1024)
    report(
        f"\nCells, float32, forward, B, T, D = {shape_text(shape)}: ms, and times that "
        "torch.compile of the equations takes, with torch's associative_scan\n"
    )
    table = Table(report, "cell", "scanrnn.torch", "torch.compile")
    if not installed("torch._higher_order_ops.associative_scan"):
        report("\nPyTorch has no associative_scan.")
        return
    associative_scan = import_module("torch._higher_order_ops.associative_scan").associative_scan

    def merge(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    def scan(a: Any, x: Any) -> Any:
        return associative_scan(merge, (a, x), dim=1, combine_mode="pointwise")[1]

    for name, cell in CELLS.items():
        inputs = cell_inputs(cell, shape)
        function, compiled = cell_function(name), torch.compile(by_scan(cell, scan))

        def ours(function: Any = function, inputs: Any = inputs) -> Any:
            return function(*inputs)

        def theirs(compiled: Any = compiled, inputs: Any = inputs) -> Any:
            return compiled(*inputs)

        t = times({"ours": Contender(ours)})
        try:
            t |= times({"compiled": Contender(theirs)})
        except Exception as error:  # a peer's failure is a result
            print(f"torch.compile, {name}, {shape}: {error}", file=sys.stderr)
        table.row(name, ms(t["ours"]), faster(t.get("compiled"), t["ours"]))


SECTIONS = {
    name.removeprefix("section_"): function
    for name, function in list(globals().items())
    if name.startswith("section_")
}


# ---- The report ----------------------------------------------------------------------------------


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty"]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def heading(report: Report, sections: Sequence[str]) -> None:
    import torch

    names = ("numpy", "torch", "jax", "cupy-cuda13x", "accelerated-scan", "fla", "sru")
    packages = ", ".join(f"{name} {v}" for name in names if (v := package_version(name)))
    device = torch.cuda.get_device_properties(0)
    report(f"{title()}\n")
    report(f"`python tests/bench/gpu.py {shlex.join(sections)}`".replace(" `", "`") + "  ")
    report(
        f"{datetime.date.today()}; scanrnn {scanrnn.__version__} ({commit() or 'no git'}) "
        f"compiled for {_core.build_info()['cuda_architectures']}; "
        f"Python {platform.python_version()}, {packages}; CUDA {torch.version.cuda} in PyTorch; "
        f"{device.multi_processor_count} multiprocessors, {device.total_memory / 2**30:.0f} GiB"
    )


def title() -> str:
    import torch

    return f"## CUDA: {torch.cuda.get_device_name(0)}"


def written(text: str, lines: Sequence[str]) -> str:
    """The text of RESULTS.md with these lines, in place of a section of the same title."""
    section = "\n".join(lines).strip() + "\n\n"
    start = re.search(rf"^{re.escape(lines[0].strip())}$", text, re.MULTILINE)
    if start is None:
        return text.rstrip("\n") + "\n\n" + section
    end = re.search(r"^## ", text[start.end() :], re.MULTILINE)
    rest = text[start.end() + end.start() :] if end else ""
    return text[: start.start()] + section + rest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--program", help="scanrnn_cuda_bench, if it isn't in build/")
    parser.add_argument(
        "--write", nargs="?", type=Path, const=HERE / "RESULTS.md", metavar="FILE",
        help="put the result into RESULTS.md, or into FILE",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to try the benchmark")
    arguments = parser.parse_args()
    unknown = set(arguments.section) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if not scanrnn.cuda_available():
        print(f"gpu.py: nothing to measure: {_core.cuda_unavailable_reason()}", file=sys.stderr)
        return 2
    if not installed("torch"):
        print("gpu.py: needs PyTorch", file=sys.stderr)
        return 2
    if arguments.quick:
        global ROUNDS
        ROUNDS = 3
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        sections = arguments.section or list(SECTIONS)
        program = None
        if {"kernels", "choice"} & set(sections):
            program = find_program(arguments.program, Path(folder))
        options = Options(program, arguments.quick)
        heading(report, arguments.section)
        for name in sections:
            SECTIONS[name](report, options)
    if arguments.write:
        path = arguments.write
        text = path.read_text() if path.exists() else ""
        path.write_text(written(text, report.lines))
    return 1 if options.failed else 0


if __name__ == "__main__":
    sys.exit(main())
