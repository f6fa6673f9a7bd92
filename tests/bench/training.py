"""Training in parallel over time: scanrnn.torch.LSTM and torch.nn.LSTM from one seed, side by side.

    python tests/bench/training.py                       T = 4096, on the GPU, 1000 steps
    python tests/bench/training.py --device cpu --time 256 --steps 20 --hidden 32
    python tests/bench/training.py --plot training.png   loss curves and wall times as a picture
    python tests/bench/training.py --alone --hidden 256  trains ours only, and compares the result
    python tests/bench/training.py --steps 0 --load FILE compares weights that --save FILE has left

The task is the adding problem (Hochreiter and Schmidhuber 1997, "Long short-term memory", section
5.4): of T random numbers two are marked, and after the last step the network says their sum. The
marks lie among the last `--span` steps. Knowing nothing gives a squared error of 0.167.

Both networks start from the same weights and see the same batches. Their gradients differ by
rounding, which training amplifies: single losses are compared as long as that makes sense, and
running means from there on. Afterwards both run the trained weights on one long sequence: memory
that was learned needs a longer burn-in. With `--sweep` widths and burn-ins that the layer did not
choose are timed there too.

Exit status: 1 if the curves part, 2 without the device.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import scanrnn.torch as srt
import torch
from torch import Tensor, nn

SAME = 1e-3  # largest relative difference of single losses in the first tenth of the steps
PART = (
    0.25  # of running means of the last tenth, relative to the larger, plus 1% of knowing nothing
)
NOTHING = 1 / 6


def batch(generator: torch.Generator, steps: int, span: int, size: int) -> tuple[Tensor, Tensor]:
    """Numbers and marks (T,B,2), and the sums (B)."""
    values = torch.rand(steps, size, generator=generator)
    marks = torch.zeros(steps, size)
    rows = torch.arange(size)
    for half in range(2):
        place = torch.randint(span // 2, (size,), generator=generator) + half * (span // 2)
        marks[steps - span + place, rows] = 1
    return torch.stack([values, marks], 2), (values * marks).sum(0)


class Contender:
    """A network, its optimizer, and what it did."""

    def __init__(self, name: str, lstm: Any, head: nn.Linear, rate: float) -> None:
        self.name, self.lstm, self.head = name, lstm, head
        self.parameters = [*lstm.parameters(), *head.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=rate)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, x: Tensor, target: Tensor) -> None:
        wait(x)
        start = time.perf_counter()
        y = self.lstm(x)[0]
        loss = nn.functional.mse_loss(self.head(y[-1])[:, 0], target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)


def wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def compare(ours: Contender, theirs: Contender) -> list[str]:
    """What is wrong with the curves."""
    first = max(1, len(ours.losses) // 10)
    pairs = list(zip(ours.losses, theirs.losses, strict=True))
    single = max(abs(a - b) / b for a, b in pairs[:first])
    last = [mean(c.losses[-first:]) for c in (ours, theirs)]
    print(f"\nfirst {first} losses: the same within {single:.1e} of themselves")
    print(f"mean of the last {first}: {last[0]:.5f} and {last[1]:.5f}")
    failures = []
    if single > SAME:
        failures.append(
            f"losses of the first {first} steps differ by {single:.1e}, expected {SAME}"
        )
    if abs(last[0] - last[1]) > PART * max(last) + 0.01 * NOTHING:
        failures.append(f"the last losses are {last[0]:.5f} and {last[1]:.5f}")
    return failures


def clock(lstm: Any, x: Tensor, rounds: int) -> tuple[float, Tensor]:
    """Milliseconds of forward and backward, and the outputs."""
    readings = []
    for _ in range(rounds):
        lstm.zero_grad()
        wait(x)
        start = time.perf_counter()
        y = lstm(x)[0]
        y.square().mean().backward()
        wait(x)
        readings.append(time.perf_counter() - start)
    return median(readings[1:]) * 1e3, y.detach()


def after_training(ours: Contender, theirs: Contender, steps: int, span: int, sweeps: bool) -> None:
    """Forward and backward of the weights that ours came to, on one long sequence."""
    x, _ = batch(torch.Generator().manual_seed(2), steps, span, 1)
    x = x.to(ours.head.weight.device)
    theirs.lstm.load_state_dict(ours.lstm.state_dict())
    theirs.lstm(x[:64])[0].sum().backward()
    mine = srt.LSTM.from_torch(theirs.lstm)  # knows nothing
    serial, y0 = clock(theirs.lstm, x, 3)
    g0 = torch.cat([p.grad.flatten() for p in theirs.lstm.parameters()])
    relaxed, y1 = clock(mine, x, 6)
    g1 = torch.cat([p.grad.flatten() for p in mine.parameters()])
    print(f"trained weights, T = {steps:,}, B = 1, forward + backward:")
    print(f"{serial:.1f} ms, ours {relaxed:.1f} ({serial / relaxed:.1f}x), ", end="")
    print(f"outputs differ by {(y1 - y0).abs().max():.1e}, ", end="")
    print(f"weight gradients by {(g1 - g0).norm() / g0.norm():.1e}")
    report = mine.last_report
    print(report, report.adjoint, sep="\n", flush=True)
    if not sweeps or report.status != "converged":
        return
    learned = report.burn_in
    print("\n| K | w | ms | passes | adj. |\n|---|---|---|---|---|")
    for burn_in in sorted({learned, *(round(learned * f / 8) * 8 for f in (0.6, 0.75, 0.9, 1.2))}):
        near = {burn_in // n for n in range(1, 6)} | {report.width}
        for width in sorted({w for w in near if 32 <= w <= steps // 4}):
            layer = srt.LSTM.from_torch(theirs.lstm, width=width, burn_in=burn_in)
            ms, _ = clock(layer, x, 4)
            r = layer.last_report
            passes = (r.passes, r.adjoint.passes if r.adjoint else 0)
            print(f"| {burn_in} | {width} | {ms:.1f} | {passes[0]} | {passes[1]} |", flush=True)


def plot(path: Path, contenders: list[Contender], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for c, style in zip(contenders, ("-", "--"), strict=False):
        elapsed, losses = torch.tensor(c.seconds).cumsum(0), torch.tensor(c.losses)
        recent = losses.unfold(0, min(20, len(losses)), 1).mean(1)
        axes[0].plot(recent, style, label=c.name, linewidth=1.5)
        axes[1].plot(elapsed[-len(recent) :], recent, style, label=c.name, linewidth=1.5)
    axes[0].set(xlabel="step", ylabel="squared error, mean of 20", yscale="log", title=title)
    axes[1].set(xlabel="seconds", yscale="log", title="the same over time")
    axes[0].legend()
    figure.savefig(path, dpi=80)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--time", type=int, default=4096, help="steps T of a sequence")
    parser.add_argument("--span", type=int, default=128, help="the marks' part of it, its end")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000, help="of training")
    parser.add_argument("--rate", type=float, default=2e-3, help="of Adam")
    parser.add_argument("--until", type=float, default=0, help="stop at this mean of 25 losses")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop training after them")
    parser.add_argument("--load", type=Path, help="weights to begin with")
    parser.add_argument("--save", type=Path, help="where to leave the weights")
    parser.add_argument("--sweep", action="store_true", help="time other widths and burn-ins too")
    parser.add_argument("--long", type=int, default=65280, help="steps of the last comparison")
    parser.add_argument("--alone", action="store_true", help="don't train torch.nn.LSTM")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    lstm = nn.LSTM(2, args.hidden).to(args.device)
    if args.load:
        lstm.load_state_dict(torch.load(args.load, map_location=args.device))
    readout = nn.Linear(args.hidden, 1).to(args.device)
    theirs = Contender("torch.nn.LSTM", copy.deepcopy(lstm), copy.deepcopy(readout), args.rate)
    mine = srt.LSTM.from_torch(copy.deepcopy(lstm))
    ours = Contender("scanrnn.torch.LSTM", mine, copy.deepcopy(readout), args.rate)
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    title = f"adding problem, T = {args.time}, H = {args.hidden}, B = {args.batch}"
    print(f"{title}, marks in the last {args.span}; {where}, PyTorch {torch.__version__}\n")
    contenders = [ours] if args.alone else [theirs, ours]
    head = ["step", *(c.name for c in contenders), *("ms" for _ in contenders)]
    head += ["burn-in", "passes", "status"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    generator = torch.Generator().manual_seed(1)
    every = max(1, args.steps // 20)
    begin = time.perf_counter()
    for i in range(args.steps):
        x, target = (t.to(args.device) for t in batch(generator, args.time, args.span, args.batch))
        for c in contenders[:: 1 if i % 2 else -1]:
            c.step(x, target)
        if i % every == every - 1 or i == 0:
            recent = slice(max(0, i + 1 - every), i + 1)
            losses = [f"{mean(c.losses[recent]):.5f}" for c in contenders]
            ms = [f"{median(c.seconds[recent]) * 1e3:.1f}" for c in contenders]
            report = mine.last_report
            assert report is not None
            cells = [str(i + 1), *losses, *ms, str(report.burn_in), str(report.passes)]
            cells.append(report.status)
            print("| " + " | ".join(cells) + " |", flush=True)
        if i >= 25 and mean(ours.losses[-25:]) < args.until:
            print(f"mean of the last 25 losses below {args.until} after step {i + 1}")
            break
        if time.perf_counter() - begin > args.seconds:
            print(f"stopped after {args.seconds:.0f} s, at step {i + 1}")
            break
    if args.save:
        torch.save(mine.state_dict(), args.save)
    failures = []
    if not args.alone and ours.losses:
        failures = compare(ours, theirs)
        walls = [sum(c.seconds) for c in contenders]
        print(f"wall time {walls[0]:.1f} s, ours {walls[1]:.1f} s ({walls[0] / walls[1]:.1f}x)")
    if args.long:
        after_training(ours, theirs, args.long, args.span, args.sweep)
    if args.plot:
        plot(args.plot, contenders, title)
    for text in failures:
        print("FAILED:", text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
