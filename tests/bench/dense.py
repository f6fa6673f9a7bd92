"""Dense LSTM, GRU and RNN, parallel in time, against the framework's own serial kernel (cuDNN).

    python tests/bench/dense.py                 everything, less than four minutes on an H200
    python tests/bench/dense.py --quick         less than a minute: one repetition, fewer shapes
    python tests/bench/dense.py long grid       only these sections
    python tests/bench/dense.py long --weights 'forget +3'    only these weights
    python tests/bench/dense.py --device cpu    tiny shapes, to show that it runs

Sections:

    costs   microseconds of a step of the framework's kernel, by rows: for `_relax/costs.py`
    long    T = 65,280: times, errors, passes and widths, three kinds of weights
    first   a new layer's first and second call, by turns with cuDNN, where networks forget slowly
    million T = 1,048,576 runs (cuDNN alone refuses it; its reference is chained segments)
    tf32    what TF32 does to the agreement of chunks
    grid    small to large shapes: never slower than serial + 10%

Times are the host's clock until the device is done. `first` is a layer's first call, with its probe
(not the process's: kernels are loaded by then). Errors: `vs cuDNN` is the largest difference of
outputs, `fp64` the largest error of ours / of cuDNN's against cuDNN in float64, `dW` the relative
error of the gradient of all weights, in the 2-norm, against cuDNN; `again` is ours with
recompute=True. Exit status: 1 if a goal is missed or a result is wrong, 2 without a device.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import scanrnn.torch as srt
import torch
from torch import Tensor, nn

# (H, B, weights) -> least speed-up of forward + backward.
GOALS = {(256, 1): 60.0, (512, 1): 30.0, (256, 8): 20.0}
WEIGHTS = {"default": (1.0, 0.0), "x2, forget +1": (2.0, 1.0), "forget +3": (1.0, 3.0)}
SLOW = "forget +3"  # forgets after thousands of steps: no goal but SLOWER
SLOWER = 1.10


class Bench:
    """What all sections share."""

    def __init__(self, device: str, quick: bool, seconds: float, weights: str | None) -> None:
        self.device, self.quick, self.weights = device, quick, weights
        self.deadline = time.perf_counter() + seconds
        self.started = time.perf_counter()
        self.tables: list[tuple[str, list[str], list[list[str]]]] = []
        self.failures: list[str] = []

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def late(self, expected: float = 0.0) -> bool:
        return time.perf_counter() + expected > self.deadline

    def clock(self, fn: Callable[[], Any]) -> tuple[float, Any]:
        """Milliseconds of one call, and its result."""
        self.wait()
        start = time.perf_counter()
        result = fn()
        self.wait()
        return (time.perf_counter() - start) * 1e3, result

    def median(self, fn: Callable[[], Any], rounds: int) -> float:
        return median(self.clock(fn)[0] for _ in range(rounds))

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILED: {text}")

    def peak(self, fn: Callable[[], Any]) -> float:
        """GiB that a call takes at most beside what was there before."""
        if self.device != "cuda":
            return 0.0
        self.wait()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fn()
        self.wait()
        return (torch.cuda.max_memory_allocated() - before) / 2**30

    def free(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def make(kind: str, h: int, device: str, gain: float = 1.0, forget: float = 0.0) -> nn.RNNBase:
    torch.manual_seed(0)
    module: nn.RNNBase = getattr(nn, kind)(h, h)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.mul_(gain)
            if name == "bias_ih_l0" and kind == "LSTM":
                p[h : 2 * h] += forget
    return module.to(device)


def both(module: nn.Module, x: Tensor, gy: Tensor) -> Callable[[], Tensor]:
    """Forward and backward."""

    def run() -> Tensor:
        for p in module.parameters():
            p.grad = None
        x.grad = None
        y = module(x)[0]
        y.backward(gy)
        return y.detach()

    return run


def forward(module: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            y: Tensor = module(x)[0]
        return y

    return run


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters()]).double()


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


# ---- Sections ------------------------------------------------------------------------------------


def costs(bench: Bench) -> None:
    """One step of the kernel: latency for few rows, throughput for many."""
    many = (1, 8, 64, 256, 1024, 4096)
    sizes = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024) if not bench.quick else (128, 256)
    if bench.device == "cpu":
        many, sizes = (1, 8, 64), (32, 64)
    for train in (False, True):
        rows = []
        for kind, hs in (("LSTM", sizes), ("GRU", sizes[1::2]), ("RNN", sizes[1::2])):
            for h in hs:
                cells = [f"{kind} {h}"]
                module = make(kind, h, bench.device)
                for n in many:
                    steps = 512 if n <= 8 else 64
                    if bench.device == "cpu":
                        steps = 32
                    x = torch.randn(steps, n, h, device=bench.device)
                    gy = torch.randn_like(x)
                    run = both(module, x, gy) if train else forward(module, x)
                    run()
                    cells.append(f"{bench.median(run, 3) * 1e3 / steps:.2f}")
                rows.append(cells)
                bench.say(f"costs {'fwd+bwd' if train else 'fwd'} {cells}")
                if bench.late():
                    break
        title = f"Microseconds of a step, {'forward + backward' if train else 'forward'}, by rows"
        bench.tables.append((title, ["", *map(str, many)], rows))


def long(bench: Bench) -> None:
    """T = 65,280 against cuDNN."""
    steps = 65280 if bench.device == "cuda" else 4096
    shapes = [(64, 1), (64, 8), (256, 1), (256, 8), (512, 1), (512, 8)]
    kinds: dict[str, tuple[float, float]] = dict(WEIGHTS)
    if bench.quick:
        shapes, kinds = [(64, 1), (256, 1), (256, 8), (512, 1)], {"default": WEIGHTS["default"]}
    if bench.device == "cpu":
        shapes = [(64, 1)]
    if bench.weights:
        kinds = {bench.weights: WEIGHTS[bench.weights]}
    cases = [("LSTM", h, b, k, *v) for k, v in kinds.items() for h, b in shapes]
    if "default" in kinds:
        gru = shapes[-2 if len(shapes) > 1 else 0]
        cases.insert(len(shapes), ("GRU", *gru, "default", 1.0, 0.0))
        cases.insert(len(shapes) + 1, ("RNN", *shapes[0], "default", 1.0, 0.0))
    rows: list[list[str]] = []
    for kind, h, b, name, gain, forget in cases:
        if bench.late(10):
            bench.say(f"left out, out of time: {kind} H={h} B={b} {name}")
            continue
        try:
            rows.append(_long_row(bench, kind, h, b, steps, name, gain, forget))
        except Exception as e:
            traceback.print_exc()
            bench.fail(f"{kind} H={h} B={b} {name}: {type(e).__name__}: {str(e)[:200]}")
        bench.free()
    head = [
        "",
        "H",
        "B",
        "weights",
        "serial fwd",
        "ours",
        "x",
        "serial fwd+bwd",
        "ours",
        "x",
        "again",
    ]
    head += ["goal", "first", "status", "passes", "adj.", "w", "K", "residual", "estimate"]
    head += ["vs cuDNN", "fp64 ours / cuDNN", "dW", "dx", "GiB ours / cuDNN"]
    bench.tables.append((f"T = {steps:,}, milliseconds", head, rows))


def _long_row(
    bench: Bench, kind: str, h: int, b: int, steps: int, name: str, gain: float, forget: float
) -> list[str]:
    reference = make(kind, h, bench.device, gain, forget)
    ours: Any = getattr(srt, kind).from_torch(make(kind, h, bench.device, gain, forget))
    torch.manual_seed(1)
    x = torch.randn(steps, b, h, device=bench.device, requires_grad=True)
    gy = torch.randn(steps, b, h, device=bench.device)
    warm = x.detach()[:64].clone().requires_grad_()
    both(reference, warm, gy[:64])()
    forward(reference, warm)()

    serial_fwd, _ = bench.clock(forward(reference, x))
    peak_serial = 0.0
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    serial_both, y0 = bench.clock(both(reference, x, gy))
    if bench.device == "cuda":
        peak_serial = (torch.cuda.max_memory_allocated() - before) / 2**30
    w0, dx0 = gradients(reference), x.grad.clone()

    first, _ = bench.clock(both(ours, x, gy))
    rounds = 1 if ours.last_report.status != "converged" else 2 if bench.quick else 4
    ours_both = bench.median(both(ours, x, gy), rounds)
    peak_ours = bench.peak(both(ours, x, gy)) if rounds > 1 else 0.0
    y1 = both(ours, x, gy)() if rounds > 1 else forward(ours, x)()
    report = ours.last_report
    w1, dx1 = gradients(ours), x.grad.clone()
    ours_fwd = bench.median(forward(ours, x), rounds)
    ours.recompute = True
    again = bench.median(both(ours, x, gy), rounds) if report.status == "converged" else ours_both
    y2, w2 = both(ours, x, gy)(), gradients(ours)
    change = max((y2 - y1).abs().max().item() / 2, relative(w2, w1))
    if report.status == "converged" and not change <= 1e-5 + report.error_estimate:
        bench.fail(f"{kind} H={h} B={b} {name}: recompute=True gives other numbers")
    ours.recompute = False
    error = (y1 - y0).abs().max().item()
    dw, dx = relative(w1, w0), relative(dx1.double(), dx0.double())

    exact = ""
    feasible = (b == 1 or h == 64) and not (bench.quick and h > 64)
    if feasible and report.status == "converged" and not bench.late(20):
        wide = make(kind, h, bench.device, gain, forget).double()
        y64 = forward(wide, x.detach().double())()
        e1, e0 = ((y.double() - y64).abs().max().item() for y in (y1, y0))
        exact = f"{e1:.1e} / {e0:.1e}"
        if not e1 <= max(1e-6, 2 * e0):
            bench.fail(f"{kind} H={h} B={b} {name}: error {e1:.1e}, cuDNN's {e0:.1e}")
        del y64, wide
    elif report.status == "converged" and not error <= max(4e-6, report.error_estimate / 4):
        bench.fail(f"{kind} H={h} B={b} {name}: differs from cuDNN by {error:.1e}")
    if report.status == "converged" and not dw <= 1e-5:
        bench.fail(f"{kind} H={h} B={b} {name}: weight gradients are off by {dw:.1e}")

    has_goal = kind == "LSTM" and report.status == "converged" and name != SLOW
    goal = GOALS.get((h, b)) if has_goal else None
    factor = serial_both / ours_both
    if goal and bench.device == "cuda" and factor < goal:
        bench.fail(f"{kind} H={h} B={b} {name}: {factor:.1f}x, goal {goal:.0f}x")
    for label, ms, limit in (
        ("first fwd+bwd", first, serial_both),
        ("fwd+bwd", ours_both, serial_both),
        ("fwd", ours_fwd, serial_fwd),
    ):
        if bench.device != "cuda" or ms <= SLOWER * limit + 2:
            continue

        def run(module: nn.RNNBase) -> Callable[[], Any]:
            return both(module, x, gy) if "bwd" in label else forward(module, x)  # noqa: B023

        if label == "first fwd+bwd":
            limit = max(limit, bench.clock(run(reference))[0])
        else:  # cuDNN's own times vary by 20%: by turns
            turns = [(bench.clock(run(ours))[0], bench.clock(run(reference))[0]) for _ in range(5)]
            ms, limit = (median(t) for t in zip(*turns, strict=True))
        if ms > SLOWER * limit + 2:
            bench.fail(f"{kind} H={h} B={b} {name} {label}: {ms:.1f} ms, serial {limit:.1f}")
    adjoint = report.adjoint
    bench.say(
        f"{kind} H={h} B={b} {name}: {serial_both:.0f} -> {ours_both:.1f} ms ({factor:.0f}x), "
        f"again {again:.1f}, first {first:.1f}; forward {serial_fwd:.0f} -> {ours_fwd:.1f}; "
        f"{report}; error {error:.1e}, dW {dw:.1e}"
    )
    return [
        kind, str(h), str(b), name,
        f"{serial_fwd:.1f}", f"{ours_fwd:.2f}", f"{serial_fwd / ours_fwd:.0f}",
        f"{serial_both:.1f}", f"{ours_both:.2f}", f"{factor:.0f}",
        f"{again:.2f}", f"{goal:.0f}" if goal else "", f"{first:.1f}",
        report.status, str(report.passes),
        str(adjoint.passes) if adjoint else "", str(report.width), str(report.burn_in),
        f"{report.residual:.1e}", f"{report.error_estimate:.1e}", f"{error:.1e}", exact,
        f"{dw:.1e}", f"{dx:.1e}", f"{peak_ours:.2f} / {peak_serial:.2f}",
    ]  # fmt: skip


def first(bench: Bench) -> None:
    """First calls, which probe, and second ones: never above serial + 10%."""
    steps = 65280 if bench.device == "cuda" else 4096
    shapes = [(64, 8, 5), (64, 1, 5), (256, 1, 2)] if bench.device == "cuda" else [(64, 1, 2)]
    rows = []
    for h, b, rounds in shapes:
        torch.manual_seed(1)
        x = torch.randn(steps, b, h, device=bench.device, requires_grad=True)
        gy = torch.randn(steps, b, h, device=bench.device)
        reference = make("LSTM", h, bench.device, *WEIGHTS[SLOW])
        both(reference, x[:64].detach().requires_grad_(), gy[:64])()
        readings = []
        for _ in range(rounds):
            ours: Any = srt.LSTM.from_torch(reference)
            calls = [both(m, x, gy) for m in (reference, ours, ours)]
            readings.append([bench.clock(call)[0] for call in calls])
            bench.say(f"first H={h} B={b}: {readings[-1]} {ours.last_report}")
        serial, *mine = (median(r) for r in zip(*readings, strict=True))
        cells = [str(h), str(b), f"{serial:.1f}", *(f"{ms:.1f}" for ms in mine)]
        rows.append([*cells, f"{mine[0] / serial:.2f}", ours.last_report.status])
        if bench.device == "cuda" and max(mine) > SLOWER * serial + 2:
            bench.fail(f"first H={h} B={b}: {mine[0]:.1f} and {mine[1]:.1f} ms, {serial:.1f}")
    head = ["H", "B", "serial fwd+bwd", "first", "second", "first / serial", "second's status"]
    bench.tables.append((f"T = {steps:,}, {SLOW}, milliseconds", head, rows))


def million(bench: Bench) -> None:
    """T = 2^20."""
    steps = 2**20 if bench.device == "cuda" else 2**14
    rows = []
    for h, b in ((64, 1), (256, 1), (512, 1)):
        if (bench.quick and h > 64) or bench.late(10) or (bench.device == "cpu" and h > 64):
            continue
        try:
            module: Any = srt.LSTM.from_torch(make("LSTM", h, bench.device))
            torch.manual_seed(1)
            x = torch.randn(steps, b, h, device=bench.device, requires_grad=True)
            gy = torch.randn(steps, b, h, device=bench.device)
            first, y = bench.clock(both(module, x, gy))
            report = module.last_report
            ms = bench.median(both(module, x, gy), 1 if bench.quick else 2)
            error = ""
            if h == 64 or bench.device == "cpu":
                serial: Any = srt.LSTM.from_torch(make("LSTM", h, bench.device), parallel=False)
                difference = (forward(serial, x)() - y).abs().max().item()
                error = f"{difference:.1e}"
                if not difference <= 4e-6:
                    bench.fail(f"T = 2^20, H={h}: differs from serial by {difference:.1e}")
            peak = bench.peak(both(module, x, gy))
            bench.say(
                f"T = {steps:,} H={h} B={b}: {ms:.1f} ms, first {first:.1f}; {report} {error}"
            )
            rows.append([str(h), str(b), f"{ms:.1f}", f"{first:.1f}", report.status,
                         str(report.width), str(report.burn_in), error, f"{peak:.2f}"])  # fmt: skip
            del x, gy, y, module
        except Exception as e:
            traceback.print_exc()
            bench.fail(f"T = {steps:,} H={h} B={b}: {type(e).__name__}: {str(e)[:200]}")
        bench.free()
    head = ["H", "B", "fwd+bwd", "first", "status", "w", "K", "vs serial", "peak GiB"]
    bench.tables.append((f"T = {steps:,}, milliseconds", head, rows))


def tf32(bench: Bench) -> None:
    """How far chunks agree where states are rounded to TF32 before products."""
    if bench.device == "cpu":
        return
    rows = []
    torch.backends.cudnn.allow_tf32 = True
    try:
        for kind, h in (("LSTM", 64), ("LSTM", 256), ("GRU", 256)):
            reference = make(kind, h, bench.device)
            ours: Any = getattr(srt, kind).from_torch(reference)
            torch.manual_seed(1)
            x = torch.randn(8192, 1, h, device=bench.device, requires_grad=True)
            gy = torch.randn(8192, 1, h, device=bench.device)
            y0 = both(reference, x, gy)()
            w0 = gradients(reference)
            y64 = forward(make(kind, h, bench.device).double(), x.detach().double())()
            y1 = both(ours, x, gy)()
            report, w1 = ours.last_report, gradients(ours)
            e1, e0 = ((y.double() - y64).abs().max().item() for y in (y1, y0))
            forced: Any = getattr(srt, kind).from_torch(
                reference, parallel=True, width=128, burn_in=128, tol=1.0
            )
            both(forced, x, gy)()
            rows.append([kind, str(h), report.status, str(report.passes),
                         f"{forced.last_report.residual:.1e}",
                         f"{forced.last_report.adjoint.residual:.1e}", f"{e1:.1e} / {e0:.1e}",
                         f"{relative(w1, w0):.1e}"])  # fmt: skip
            bench.say(f"tf32 {rows[-1]}")
    except Exception as e:
        traceback.print_exc()
        bench.fail(f"tf32: {type(e).__name__}: {str(e)[:200]}")
    finally:
        torch.backends.cudnn.allow_tf32 = False
    head = ["", "H", "status", "passes", "residual at K = 128", "adjoint's"]
    head += ["fp64 ours / cuDNN", "dW"]
    bench.tables.append(("TF32, T = 8192", head, rows))


def grid(bench: Bench) -> None:
    """Never slower than serial + 10%."""
    batches, lengths, sizes = (1, 8, 64), (64, 512, 2048, 8192, 65535), (32, 128, 256, 512, 1024)
    if bench.quick:
        batches, lengths, sizes = (1, 64), (64, 2048, 8192), (32, 256)
    if bench.device == "cpu":
        batches, lengths, sizes = (1, 8), (64, 512), (32,)
    rows = []
    for t in lengths:
        for h in sizes:
            for b in batches:
                big = t * b * h > 2**29 or (t > 60000 and (b > 8 or h * b > 1024))
                if big or bench.late(4 if t < 60000 else 8):
                    continue
                try:
                    rows.append(_grid_row(bench, t, b, h))
                except Exception as e:
                    traceback.print_exc()
                    bench.fail(f"grid T={t} B={b} H={h}: {type(e).__name__}: {str(e)[:200]}")
                bench.free()
    head = ["T", "H", "B", "serial fwd", "ours", "ratio", "serial fwd+bwd", "ours", "ratio"]
    head += ["first fwd+bwd", "status", "w", "K"]
    bench.tables.append(("Never slower than serial + 10%, milliseconds", head, rows))


def _grid_row(bench: Bench, t: int, b: int, h: int) -> list[str]:
    reference = make("LSTM", h, bench.device)
    ours: Any = srt.LSTM.from_torch(make("LSTM", h, bench.device))
    torch.manual_seed(1)
    x = torch.randn(t, b, h, device=bench.device, requires_grad=True)
    gy = torch.randn(t, b, h, device=bench.device)
    cells = [str(t), str(h), str(b)]
    both(reference, x[:64].detach().requires_grad_(), gy[:64])()
    first, _ = bench.clock(both(ours, x, gy))
    for label, a, c in (
        ("fwd", forward(reference, x), forward(ours, x)),
        ("fwd+bwd", both(reference, x, gy), both(ours, x, gy)),
    ):
        probe, _ = bench.clock(a)
        c()
        rounds = 1 if probe > 300 else 3 if probe > 30 else 7
        readings = [(bench.clock(a)[0], bench.clock(c)[0]) for _ in range(rounds)]
        serial, mine = (median(r) for r in zip(*readings, strict=True))
        ratio = median(m / s for s, m in readings)
        cells += [f"{serial:.2f}", f"{mine:.2f}", f"{ratio:.2f}"]
        if bench.device == "cuda" and ratio > SLOWER and mine - serial > 0.05:
            serial, mine = bench.median(a, rounds + 2), bench.median(c, rounds + 2)
            ratio = mine / serial
            cells[-3:] = [f"{serial:.2f}", f"{mine:.2f}", f"{ratio:.2f}"]
        if bench.device == "cuda" and ratio > SLOWER and mine - serial > 0.05:
            bench.fail(f"grid T={t} B={b} H={h} {label}: {mine:.2f} ms, serial {serial:.2f}")
    report = ours.last_report
    cells += [f"{first:.1f}", report.status, str(report.width), str(report.burn_in)]
    bench.say(f"grid {cells}")
    return cells


SECTIONS = {
    "costs": costs,
    "long": long,
    "first": first,
    "million": million,
    "tf32": tf32,
    "grid": grid,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--weights", choices=WEIGHTS, help="only these, in section long")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=0, help="start nothing new after that")
    args = parser.parse_args()
    unknown = set(args.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown sections {sorted(unknown)}, expected some of {list(SECTIONS)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    seconds = args.seconds or (55 if args.quick else 225)
    bench = Bench(args.device, args.quick, seconds, args.weights)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    bench.say(f"{name}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    small = torch.randn(256, 1, 64, device=args.device, requires_grad=True)
    for kind in ("LSTM", "GRU", "RNN"):  # loads the kernels, those of more passes too
        for options in ({}, {"width": 32, "burn_in": 16}):
            slow = make(kind, 64, args.device, forget=5.0)
            module: Any = getattr(srt, kind).from_torch(slow, parallel=True, **options)
            both(module, small, small.detach())()
    for section in args.sections or SECTIONS:
        SECTIONS[section](bench)
    print()
    for title, head, rows in bench.tables:
        print(f"\n**{title}**\n")
        for row in (head, ["---"] * len(head), *rows):
            print("| " + " | ".join(row) + " |")
    print(f"\n{time.perf_counter() - bench.started:.0f} s in all")
    for text in bench.failures:
        print("FAILED:", text)
    print("all goals met" if not bench.failures else f"{len(bench.failures)} failures")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
