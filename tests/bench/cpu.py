"""The CPU benchmark: the scan and the cells against a streaming loop of the same bytes, and peers.

    python tests/bench/cpu.py                 everything, as Markdown on standard output
    python tests/bench/cpu.py scan memory     only these sections
    python tests/bench/cpu.py --write         also appends the result to RESULTS.md beside this file
    python tests/bench/cpu.py --quick         tiny shapes: shows that the benchmark runs, no more

Every time is a median of rounds in which all contenders of a row take turns, after a warm-up, so
that what disturbs the machine disturbs all of them. "Share" is the time of the streaming loop
divided by the time of the call: 1 is the memory's speed. The streaming loop (stream.cpp) reads as
many arrays and writes as many arrays as the scan; it is tried with ordinary stores and with stores
that go past the caches, and the faster one counts. It uses as many threads as the scan does.

Outputs that are "written to" exist and have been written before the call (`out=`); "new" ones are
made by the call, and the system's page faults are part of the time, for the streaming loop as well.
Peers return new arrays, so they are compared with the scan that does.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scanrnn
from cells import CELLS, LAYERS, RANGES
from scanrnn import _core
from scanrnn.cells import sru, sru_vjp

HERE = Path(__file__).resolve().parent
BUDGET = 1.0  # seconds for each contender of a row, and at least three rounds if they are short
CODES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3, "complex64": 4, "complex128": 5}

Call = Callable[[], Any]
Pass = tuple[list[Any], list[Any]]  # arrays that are read, and arrays that are written


# ---- Measuring ---------------------------------------------------------------------------------


def times(calls: dict[str, Call], part: float = 1) -> dict[str, float]:
    """Median seconds of each call. They take turns; slow ones drop out when their time is spent.

    Their time is this part of BUDGET.
    """
    budget = part * BUDGET
    taken: dict[str, list[float]] = {}
    for name, call in calls.items():
        first = seconds(call)
        # A call that is slow enough needs no warm-up, and its first time is not wasted.
        taken[name] = [first] if first > budget else []
    order, shuffle = list(calls.items()), random.Random(0).shuffle
    for _ in range(25):
        shuffle(order)  # so that none profits from the one before it more than the others
        for name, call in order:
            done = taken[name]
            if (len(done) < 3 and sum(done) < 3 * budget) or sum(done) < budget:
                done.append(seconds(call))
    return {name: median(done) for name, done in taken.items()}


def seconds(call: Call) -> float:
    start = time.perf_counter()
    result = call()
    end = time.perf_counter()
    del result  # giving memory back is not part of a call, for anybody
    return end - start


class Table:
    """A Markdown table that is printed row by row."""

    def __init__(self, report: Report, *columns: str) -> None:
        self._report = report
        report(f"| {' | '.join(columns)} |")
        report("|" + "---|" * len(columns))

    def row(self, *cells: object) -> None:
        self._report(f"| {' | '.join(map(str, cells))} |")


class Report:
    """Prints lines, and keeps them for RESULTS.md."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str = "") -> None:
        self.lines.append(line)
        print(line, flush=True)


def ms(value: float) -> str:
    return f"{value * 1e3:.3g}" if value < 1 else f"{value * 1e3:.0f}"


def faster(peer: float | None, ours: float) -> str:
    return "-" if peer is None else f"{peer / ours:.1f}x"


# ---- Arrays and the compiled loops ---------------------------------------------------------------


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """An uninitialised array that starts at a cache line."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    whole = np.empty(size + 128, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size].view(dtype).reshape(shape)


def filled(
    shape: tuple[int, ...],
    dtype: Any = np.float32,
    low: float = -1,
    seed: int = 0,
    high: float = 1,
) -> Any:
    """Uniform random numbers from low to high."""
    dtype = np.dtype(dtype)
    real = {"complex64": np.float32, "complex128": np.float64}.get(dtype.name, dtype)
    array = empty(shape, dtype)
    flat = array.view(real).reshape(-1)
    rng = np.random.default_rng(seed)
    for part in np.array_split(flat, max(1, flat.size >> 24)):
        part[:] = rng.uniform(low, high, part.size).astype(real)
    return array


def gates(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Gates from 0.9 to 1, or of that size where they are complex."""
    array = filled(shape, dtype, 0.9)
    if array.dtype.kind == "c":
        array *= 0.7
    return array


def compiled() -> ctypes.CDLL:
    """stream.cpp as a library, compiled for this machine."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        sys.exit("cpu.py: no C++ compiler found; name one with CXX=...")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "stream.so")
        command = [*shlex.split(compiler), "-std=c++17", "-O3", "-march=native", "-pthread"]
        command += ["-shared", "-fPIC", str(HERE / "stream.cpp"), "-o", str(library)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))


class Loops:
    """The compiled loops, as calls for `times`."""

    def __init__(self) -> None:
        self._library = compiled()

    def stream(self, inputs: list[Any], outputs: list[Any], past_caches: bool) -> None:
        def pointers(arrays: list[Any]) -> Any:
            return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))

        done = self._library.stream_bytes(
            len(inputs), len(outputs), pointers(inputs), pointers(outputs),
            ctypes.c_size_t(inputs[0].nbytes // 64 * 64), threads(), past_caches,
        )  # fmt: skip
        assert done, "stream.cpp lacks this number of arrays"

    def streams(self, *passes: Pass) -> dict[str, Call]:
        """Passes over memory, one after the other: outputs written to and new, both stores."""

        def call(new: bool, past_caches: bool) -> list[Any]:
            results = []
            for inputs, outputs in passes:
                if new:
                    outputs = [empty(o.shape, o.dtype) for o in outputs]
                    results += outputs
                self.stream(inputs, outputs, past_caches)
            return results

        return {
            f"stream {name} {past_caches}": partial(call, name == "new", past_caches)
            for name in ("out", "new")
            for past_caches in (False, True)
        }

    def forward(self, a: Any, x: Any, h: Any, count: int) -> None:
        shape = map(ctypes.c_ssize_t, x.shape)
        self._library.loop_forward(*map(pointer, (a, x, h)), *shape, count)

    def backward(self, a: Any, h: Any, dh: Any, da: Any, dx: Any, count: int) -> None:
        shape = map(ctypes.c_ssize_t, h.shape)
        self._library.loop_backward(*map(pointer, (a, h, dh, da, dx)), *shape, count)

    def plain(self, a: Any, x: Any, both: bool, count: int) -> Any:
        """The plain loop with new outputs; with its gradient for dh = x if both."""
        h = empty(x.shape)
        self.forward(a, x, h, count)
        if not both:
            return h
        da, dx = empty(x.shape), empty(x.shape)
        self.backward(a, h, x, da, dx, count)
        return h, da, dx


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def threads() -> int:
    return scanrnn.get_num_threads()


def fastest(result: dict[str, float], prefix: str) -> float:
    return min(value for name, value in result.items() if name.startswith(prefix))


# ---- Contenders ----------------------------------------------------------------------------------


def check(ours: Any, theirs: Any) -> None:
    """Contenders must have computed the same: arrays, or tuples of arrays."""
    if not isinstance(ours, tuple):
        ours, theirs = (ours,), (theirs,)
    for one, other in zip(ours, theirs, strict=True):
        assert np.abs(one - other).max() <= 1e-4 * np.abs(other).max()


def describe(array: Any, axis: int = -2) -> Any:
    """The core's descriptor of an array (B, T, D), whose time is on another axis."""
    array = np.moveaxis(array, axis, -2)
    strides = tuple(s // array.itemsize for s in array.strides)
    return array.ctypes.data, CODES[array.dtype.name], array.shape, strides, -1


def scan_calls(a: Any, x: Any, axis: int = -2) -> dict[str, Call]:
    """The scan, and the scan with its gradient, for outputs written to and new ones."""
    h, da, dx = empty(x.shape, x.dtype), empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    dh = x

    def both_out() -> None:
        scanrnn.scan(a, x, axis=axis, out=h)
        # The public scan_vjp has no out=, so this row calls what it calls.
        a_, h_, dh_, da_, dx_ = (describe(array, axis) for array in (a, h, dh, da, dx))
        _core.scan_backward(a_, h_, None, dh_, None, da_, dx_, None)

    def both_new() -> Any:
        h = scanrnn.scan(a, x, axis=axis)
        return (h, *scanrnn.scan_vjp(a, h, dh, axis=axis)[:2])

    return {
        "scan out": lambda: scanrnn.scan(a, x, axis=axis, out=h),
        "scan new": lambda: scanrnn.scan(a, x, axis=axis),
        "both out": both_out,
        "both new": both_new,
    }


def cell_calls(name: str, shape: tuple[int, ...]) -> tuple[Call, Call, Pass, Pass]:
    """A cell's forward call and both, outputs written to, and what the two passes read and write.

    The public functions have no out=, so these call what they call.
    """
    cell = CELLS[name]
    row = next(row for row in _core.cell_table() if row["name"] == cell.core)
    options = [cell.options.get(o["name"], o["default"]) for o in row["options"]]

    def random(shape: tuple[int, ...], kinds: Any) -> list[Any]:
        ranges = [RANGES[kind] for kind in kinds]
        return [filled(shape, low=v[0], high=v[1], seed=i) for i, v in enumerate(ranges)]

    def flat(array: Any) -> Any:
        strides = tuple(s // array.itemsize for s in array.strides)
        return array.ctypes.data, CODES[array.dtype.name], array.shape, strides, -1

    def described(arrays: list[Any]) -> list[Any]:
        inputs = [*map(flat, arrays)]
        return inputs + [None] * (len(row["inputs"]) - len(inputs))

    arrays, vectors = random(shape, cell.arrays.values()), random(shape[-1:], cell.vectors.values())
    gradients = [empty(v.shape) for v in arrays + vectors]
    out, dout = empty(shape), filled(shape, seed=9)
    state_is_output = row["state_is_output"]
    checkpoints = empty((_core.checkpoint_rows(shape[0], shape[1], shape[0]), shape[-1]))
    saved = out if state_is_output else checkpoints

    def forward(keep: bool = False) -> None:
        rest = flat(checkpoints) if keep and not state_is_output else None
        inputs = described(arrays + vectors)
        _core.cell_forward(row["kind"], inputs, None, flat(out), None, rest, options)

    def both() -> None:
        forward(keep=True)
        inputs, dinputs = described(arrays + vectors), described(gradients)
        _core.cell_backward(
            row["kind"], inputs, None, flat(saved), flat(dout), None, dinputs, None, options
        )

    forward()
    check(out, getattr(scanrnn.cells, cell.function or name)(*arrays, *vectors))
    read = [*arrays, dout, out] if state_is_output else [*arrays, dout]
    return forward, both, (arrays, [out]), (read, gradients[: len(arrays)])


def layer_call(layer: Any, x: Any) -> Call:
    """A layer's output and gradients, for an output of x's shape."""

    def both() -> None:
        layer.zero_grad()
        layer(x)[0].backward(x)

    return both


def numpy_loop(a: Any, x: Any) -> Call:
    def loop() -> Any:
        h = np.empty_like(x)
        h[:, 0] = x[:, 0]
        for t in range(1, x.shape[1]):
            np.multiply(a[:, t], h[:, t - 1], out=h[:, t])
            h[:, t] += x[:, t]
        return h

    return loop


def torch_loop(a: Any, x: Any) -> tuple[Call, Call]:
    import torch

    a, x = torch.from_numpy(a), torch.from_numpy(x)

    def loop(a: Any, x: Any) -> Any:
        h, states = torch.zeros_like(x[:, 0]), []
        for a_t, x_t in zip(a.unbind(1), x.unbind(1), strict=True):
            h = torch.addcmul(x_t, a_t, h)
            states.append(h)
        return torch.stack(states, 1)

    def both() -> Any:
        leaves = a.detach().requires_grad_(), x.detach().requires_grad_()
        h = loop(*leaves)
        return h, torch.autograd.grad(h, leaves, x)

    return lambda: loop(a, x), both


def jax_scans(a: Any, x: Any, both: bool) -> dict[str, Call]:
    import jax

    def merge(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    def associative_scan(a: Any, x: Any) -> Any:
        return jax.lax.associative_scan(merge, (a, x), axis=1)[1]

    def lax_scan(a: Any, x: Any) -> Any:
        def step(h: Any, inputs: Any) -> Any:
            h = inputs[0] * h + inputs[1]
            return h, h

        a, x = jax.numpy.moveaxis(a, 1, 0), jax.numpy.moveaxis(x, 1, 0)
        h = jax.lax.scan(step, jax.numpy.zeros_like(x[0]), (a, x))[1]
        return jax.numpy.moveaxis(h, 0, 1)

    a, x = jax.device_put((a, x))

    def with_gradient(function: Any) -> Any:
        def result(a: Any, x: Any) -> Any:
            h, pullback = jax.vjp(function, a, x)
            return h, pullback(x)

        return result

    def call(function: Any) -> Call:
        function = jax.jit(with_gradient(function) if both else function)
        compiled: Any = function.lower(a, x).compile()
        ready: Any = jax.block_until_ready
        return lambda: ready(compiled(a, x))

    return {"associative_scan": call(associative_scan), "lax.scan": call(lax_scan)}


# ---- Sections ------------------------------------------------------------------------------------


def section_scan(report: Report, loops: Loops, quick: bool) -> None:
    """Scan, float32, (B, T, D) contiguous."""
    # Goals: share of the streaming loop, forward and with the gradient.
    cases = {
        (8, 4096, 1024): (0.8, 0.7),
        (1, 1 << 20, 64): (0.6, None),
        (1, 1 << 22, 1): (0.6, None),
        (16, 8192, 256): (None, None),
        (1, 65536, 512): (None, None),
        (32, 256, 1024): (None, None),
    }
    if quick:
        cases = {(2, 64, 32): (0.8, 0.7), (1, 1 << 10, 1): (0.6, None)}
    for direction in ("forward", "forward + backward"):
        report(f"\nScan, float32, {direction}; ms; peers' time / the scan's with new outputs\n")
        table = Table(
            report, "B, T, D", "stream, written to", "scan", "share", "goal", "stream, new", "scan",
            "share", "C++ loop", "NumPy loop", "torch loop", "lax.scan", "associative_scan",
        )  # fmt: skip
        for shape, goals in cases.items():
            both = direction != "forward"
            T = shape[1]
            a, x, h = gates(shape), filled(shape), empty(shape)
            da, dx = empty(shape), empty(shape)
            ours = scan_calls(a, x)
            kind = "both" if both else "scan"
            calls = {name: call for name, call in ours.items() if name.startswith(kind)}
            if both:
                calls |= loops.streams(([a, x], [h]), ([a, h, x], [da, dx]))
            else:
                calls |= loops.streams(([a, x], [h]))
            calls["C++ loop"] = partial(loops.plain, a, x, both, threads())
            if not both and T <= 1 << 20:
                calls["NumPy loop"] = numpy_loop(a, x)
            if T <= 1 << 16:
                calls["torch loop"] = torch_loop(a, x)[both]
            calls |= jax_scans(a, x, both)
            check(calls[f"{kind} new"](), calls["C++ loop"]())
            t = times(calls)
            streams = fastest(t, "stream out"), fastest(t, "stream new")
            out, new = t[f"{kind} out"], t[f"{kind} new"]
            names = ("C++ loop", "NumPy loop", "torch loop", "lax.scan", "associative_scan")
            table.row(
                ", ".join(map(str, shape)),
                *(ms(streams[0]), ms(out), f"**{streams[0] / out:.2f}**", goals[both] or "-"),
                *(ms(streams[1]), ms(new), f"{streams[1] / new:.2f}"),
                *(faster(t.get(name), new) for name in names),
            )


def section_layouts(report: Report, loops: Loops, quick: bool) -> None:
    """Scan, other layouts and dtypes."""
    B, T, D = (2, 64, 32) if quick else (8, 4096, 1024)
    report("\nScan, outputs written to; ms, and share of the streaming loop\n")
    table = Table(
        report, "layout", "dtype", "forward: stream", "scan", "share", "with backward: stream",
        "scan", "share",
    )  # fmt: skip
    cases = [((B, D, T), -1, "float32"), ((T, B, D), 0, "float32")]
    cases += [((B, T, D), -2, name) for name in CODES if name != "float32"]
    names = {-1: "B, D, T", 0: "T, B, D", -2: "B, T, D"}
    for shape, axis, name in cases:
        if name == "bfloat16":
            import ml_dtypes

            dtype = np.dtype(ml_dtypes.bfloat16)
        else:
            dtype = np.dtype(name)
        a, x, h = gates(shape, dtype), filled(shape, dtype), empty(shape, dtype)
        gradients = [empty(shape, dtype), empty(shape, dtype)]
        forward, backward = ([a, x], [h]), ([a, h, x], gradients)
        calls = scan_calls(a, x, axis)
        calls |= {f"f {n}": call for n, call in loops.streams(forward).items()}
        calls |= {f"b {n}": call for n, call in loops.streams(forward, backward).items()}
        t = times({n: call for n, call in calls.items() if "new" not in n})
        f, b = fastest(t, "f stream"), fastest(t, "b stream")
        table.row(
            f"{names[axis]} = {', '.join(map(str, shape))}", name,
            ms(f), ms(t["scan out"]), f"{f / t['scan out']:.2f}",
            ms(b), ms(t["both out"]), f"{b / t['both out']:.2f}",
        )  # fmt: skip


def section_sru(report: Report, loops: Loops, quick: bool) -> None:
    """SRU, float32, with gates, highway and output in one pass."""
    shapes = [(2, 64, 32)] if quick else [(8, 4096, 1024), (1, 65536, 512), (16, 4096, 512)]
    report(
        "\nSRU, float32, new outputs; ms, and share of the streaming loop (forward reads 4 arrays "
        "and writes 1, backward 5 and 4)\n"
    )
    table = Table(
        report, "B, T, D", "forward: stream", "sru", "share", "with backward: stream", "sru",
        "share",
    )  # fmt: skip
    for shape in shapes:
        u, f, r, skip, dh = (filled(shape, seed=i) for i in range(5))
        bias_f, bias_r = filled(shape[-1:]), filled(shape[-1:])
        arguments = (u, f, r, skip, bias_f, bias_r, None)

        def both(arguments: Any = arguments, dh: Any = dh) -> Any:
            u, f, r, skip, bias_f, bias_r, c0 = arguments
            h, checkpoints = sru(*arguments, return_checkpoints=True)
            return h, sru_vjp(u, f, r, skip, bias_f, bias_r, c0, checkpoints, dh)

        outputs = [empty(shape) for _ in range(5)]
        forward = ([u, f, r, skip], outputs[:1])
        backward = ([u, f, r, skip, dh], outputs[1:])
        calls: dict[str, Call] = {"forward": partial(sru, *arguments), "both": both}
        calls |= {f"f {n}": call for n, call in loops.streams(forward).items()}
        calls |= {f"b {n}": call for n, call in loops.streams(forward, backward).items()}
        t = times({n: call for n, call in calls.items() if " out " not in n})
        stream_f, stream_b = fastest(t, "f stream new"), fastest(t, "b stream new")
        table.row(
            ", ".join(map(str, shape)),
            ms(stream_f), ms(t["forward"]), f"{stream_f / t['forward']:.2f}",
            ms(stream_b), ms(t["both"]), f"{stream_b / t['both']:.2f}",
        )  # fmt: skip


def section_cells(report: Report, loops: Loops, quick: bool) -> None:
    """Every cell against its traffic and the scan's, and every layer against torch.nn.GRU."""
    import scanrnn.torch as srt
    import torch

    report(
        "\nCells, float32, outputs written to; ms, and share of the streaming loop that reads and "
        "writes as many arrays; by the scan's share (goal 0.5)\n"
    )
    table = Table(
        report, "B, T, D", "cell", "forward: stream", "cell", "share", "by the scan's",
        "with backward: stream", "cell", "share", "by the scan's",
    )  # fmt: skip
    for shape in [(2, 64, 32)] if quick else [(8, 4096, 512), (1, 65536, 256)]:
        a, x = gates(shape), filled(shape)
        h, da, dx = (empty(shape) for _ in range(3))
        scan = scan_calls(a, x)
        measured = {
            "scan": (scan["scan out"], scan["both out"], ([a, x], [h]), ([a, h, x], [da, dx]))
        }
        shares: dict[str, list[float]] = {}
        for name in ("scan", *CELLS):
            forward, both, *passes = measured.get(name) or cell_calls(name, shape)
            calls: dict[str, Call] = {"forward": forward, "both": both}
            calls |= {f"f {n}": c for n, c in loops.streams(passes[0]).items()}
            calls |= {f"b {n}": c for n, c in loops.streams(*passes).items()}
            t = times({n: c for n, c in calls.items() if " new " not in n}, 0.3)
            streams = fastest(t, "f stream"), fastest(t, "b stream")
            pairs = [*zip(streams, (t["forward"], t["both"]), strict=True)]
            shares[name] = [stream / call for stream, call in pairs]
            cells: list[str] = []
            for (stream, call), share, own in zip(pairs, shares[name], shares["scan"], strict=True):
                cells += [ms(stream), ms(call), f"{share:.2f}"]
                cells.append("-" if name == "scan" else f"**{share / own:.2f}**")
            table.row(", ".join(map(str, shape)), name, *cells)

    B = 2 if quick else 8
    report(
        f"\nLayers of D units on D inputs, float32, forward + backward, B = {B}: torch.nn.GRU's "
        "time / the layer's (goal: more than 1)\n"
    )
    table = Table(report, "T, D", "torch.nn.GRU, ms", *LAYERS)
    for T, D in [(32, 16)] if quick else [(T, D) for T in (128, 1024) for D in (64, 256, 512)]:
        tensor = torch.from_numpy(filled((B, T, D)))
        layers = {"gru": torch.nn.GRU(D, D, batch_first=True)}
        for name, (layer, options) in LAYERS.items():
            layers[name] = getattr(srt, layer)(D, D, batch_first=True, **options)
        t = times({name: layer_call(layer, tensor) for name, layer in layers.items()}, 0.3)
        table.row(f"{T}, {D}", ms(t["gru"]), *(faster(t["gru"], t[name]) for name in LAYERS))


def section_short(report: Report, loops: Loops, quick: bool) -> None:
    """Short, small and thin work: never slower than the serial loop."""
    import scanrnn.torch as srt
    import torch

    shapes = [(64, 1000, 100), (4096, 16, 64), (32, 128, 512), (1, 65536, 512)]
    report(
        "\nShort and small work, float32, forward + backward, new outputs, ms. The C++ loop is "
        "serial in time, on one thread or all, the faster; the layers have D inputs.\n"
    )
    table = Table(
        report, "B, T, D", "C++ loop", "scan", "loop / scan (goal 0.9)", "torch.nn.GRU layer",
        "SRU layer", "GRU / SRU",
    )  # fmt: skip
    for shape in [(4, 16, 8)] if quick else shapes:
        a, x = gates(shape), filled(shape)

        tensor = torch.from_numpy(x)
        D = shape[-1]
        t = times(
            {
                "loop, 1 thread": partial(loops.plain, a, x, True, 1),
                "loop, all threads": partial(loops.plain, a, x, True, threads()),
                "scan": scan_calls(a, x)["both new"],
                "gru": layer_call(torch.nn.GRU(D, D, batch_first=True), tensor),
                "sru": layer_call(srt.SRU(D, D, batch_first=True), tensor),
            }
        )
        loop = fastest(t, "loop")
        table.row(
            ", ".join(map(str, shape)),
            *(ms(loop), ms(t["scan"]), f"**{loop / t['scan']:.2f}**"),
            *(ms(t["gru"]), ms(t["sru"]), f"{t['gru'] / t['sru']:.1f}x"),
        )


def section_large(report: Report, loops: Loops, quick: bool) -> None:
    """Large work, forward, and what threads are good for."""
    everything = threads()

    def on_one_thread(call: Call) -> Call:
        def limited() -> Any:
            scanrnn.set_num_threads(1)
            try:
                return call()
            finally:
                scanrnn.set_num_threads(everything)

        return limited

    report("\nMany channels, and one; float32, forward, outputs written to; ms\n")
    table = Table(
        report, "B, T, D", "stream", "scan", "share (goal 0.67)", "NumPy loop", "scan, 1 thread",
        "C++ loop, 1 thread", "loop / scan, 1 thread (goal 0.83)",
    )  # fmt: skip
    shapes = [(128, 320, 8192), (1, 10_000_000, 1)]
    for shape in [(2, 32, 64), (1, 1000, 1)] if quick else shapes:
        a, x, h = gates(shape), filled(shape), empty(shape)
        scan = partial(scanrnn.scan, a, x, out=h)
        calls: dict[str, Call] = {"scan": scan, "scan, 1": on_one_thread(scan)}
        calls["loop, 1"] = partial(loops.forward, a, x, h, 1)
        calls |= {n: c for n, c in loops.streams(([a, x], [h])).items() if " out " in n}
        if shape[1] < 10_000:
            calls["NumPy loop"] = numpy_loop(a, x)
        t = times(calls)
        stream = fastest(t, "stream")
        table.row(
            ", ".join(map(str, shape)),
            *(ms(stream), ms(t["scan"]), f"**{stream / t['scan']:.2f}**"),
            ms(t["NumPy loop"]) if "NumPy loop" in t else "-",
            *(ms(t["scan, 1"]), ms(t["loop, 1"]), f"**{t['loop, 1'] / t['scan, 1']:.2f}**"),
        )


MEMORY = """
import sys
import numpy as np
import scanrnn, scanrnn.cells

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

what, *shape = sys.argv[1], *map(int, sys.argv[2].split(","))
a, x = np.full(shape, 0.9, np.float32), np.ones(shape, np.float32)
if what == "torch":
    import torch, scanrnn.torch
    a, x = torch.from_numpy(a).requires_grad_(), torch.from_numpy(x).requires_grad_()
    dh = torch.ones_like(x)

def run(part):
    if what == "forward":
        return scanrnn.scan(a[:, part], x[:, part])
    if what == "both":
        h = scanrnn.scan(a[:, part], x[:, part])
        return h, scanrnn.scan_vjp(a[:, part], h, x[:, part])
    if what == "torch":
        h = scanrnn.torch.scan(a[:, part], x[:, part]) if part.stop else scanrnn.torch.scan(a, x)
        return h, torch.autograd.grad(h, (a, x), dh[:, part])
    h, checkpoints = scanrnn.cells.sru(*[x[:, part]] * 4, return_checkpoints=True)
    return h, scanrnn.cells.sru_vjp(*[x[:, part]] * 4, None, None, None, checkpoints, x[:, part])

run(slice(0, 8))  # what is loaded and started once is not the call's
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts from here
before = status("VmRSS")
results = run(slice(None))
print((status("VmHWM") - before) / np.prod(shape) / 4)
"""


def section_memory(report: Report, loops: Loops, quick: bool) -> None:
    """Peak extra memory."""
    if not Path("/proc/self/clear_refs").exists():
        report("\nPeak extra memory: not measured, this system has no /proc")
        return
    report("\nPeak resident memory that a call adds, float32, in arrays of x's size\n")
    table = Table(report, "B, T, D", "call", "results", "peak", "peak / results (goal 1.05)")
    cases = {
        "forward": ("scan", 1),
        "both": ("scan, scan_vjp", 3),
        "torch": ("scanrnn.torch.scan, autograd", 3),
        "sru": ("sru, sru_vjp", 5),
    }
    for shape in ["1,65536,16"] if quick else ["8,4096,1024", "1,1048576,256"]:
        for what, (name, results) in cases.items():
            command = [sys.executable, "-c", MEMORY, what, shape]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peak = float(done.stdout)
            ratio = f"**{peak / results:.3f}**"
            table.row(shape.replace(",", ", "), name, results, f"{peak:.3f}", ratio)


def section_overhead(report: Report, loops: Loops, quick: bool) -> None:
    """What a call costs before any work."""
    import scanrnn.torch as srt
    import torch

    library = torch.library.Library("scanrnn_bench", "DEF")
    library.define("empty(Tensor a, Tensor x) -> Tensor")
    library.impl("empty", lambda a, x: torch.empty_like(x), "CPU")
    registered = torch.ops.scanrnn_bench.empty.default
    a, x = torch.rand(1, 8, 16), torch.rand(1, 8, 16)
    a_numpy, x_numpy = a.numpy(), x.numpy()
    leaf = x.clone().requires_grad_()
    # JAX dispatches a call and returns, so its wall time would say nothing here.
    calls: dict[str, Call] = {
        "an empty registered operator (a, x) -> empty_like(x)": lambda: registered(a, x),
        "scanrnn.torch.scan(a, x)": lambda: srt.scan(a, x),
        "scanrnn.torch.scan(a, x), x requires a gradient": lambda: srt.scan(a, leaf),
        "scanrnn.scan(a, x), NumPy": lambda: scanrnn.scan(a_numpy, x_numpy),
    }
    count = 10 if quick else 2000

    def many(call: Call) -> Call:
        def loop() -> None:
            for _ in range(count):
                call()

        return loop

    t = times({name: many(call) for name, call in calls.items()})
    base = next(iter(t.values())) / count
    report("\nCall overhead: (1, 8, 16), float32, microseconds, the scan's work included\n")
    table = Table(report, "call", "us", "above the empty operator (goal 10 for the second line)")
    for name, value in t.items():
        table.row(name, f"{value / count * 1e6:.1f}", f"{(value / count - base) * 1e6:.1f}")


SECTIONS = {
    name.removeprefix("section_"): function
    for name, function in list(globals().items())
    if name.startswith("section_")
}


# ---- The report ----------------------------------------------------------------------------------


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def heading(report: Report) -> None:
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "jax"))
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True
    ).stdout.strip()
    report(f"## {datetime.date.today()}: {processor()}, {threads()} threads\n")
    report(f"`python tests/bench/cpu.py {shlex.join(sys.argv[1:])}`".replace(" `", "`") + "  ")
    report(
        f"scanrnn {scanrnn.__version__} ({commit or 'no git'}), {_core.cpu_isa()}, compiled by "
        f"{_core.build_info()['compiler']}; Python {platform.python_version()}, {packages}; "
        f"{platform.system()} {platform.release()}  "
    )
    if hasattr(os, "getloadavg"):
        report(f"load average at the start {os.getloadavg()[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--write", action="store_true", help="append the result to RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to try the benchmark")
    arguments = parser.parse_args()
    unknown = set(arguments.section) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if arguments.quick:
        global BUDGET
        BUDGET = 0.01
    import torch

    torch.set_num_threads(threads())
    report, loops = Report(), Loops()
    heading(report)
    for name in arguments.section or SECTIONS:
        SECTIONS[name](report, loops, arguments.quick)
    if arguments.write:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write("\n".join(report.lines) + "\n\n")


if __name__ == "__main__":
    main()
