"""The forward pass: states at the starts of chunks, relaxed until they agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .kernel import Kernel, State
from .plan import Curve, History, Plan, decayed, split
from .report import Report
from .rows import Layout


class Trace:
    """A run of rows that cotangents can be pulled back through.

    Args:
        kernel: the layer.
        x: (steps, rows, features).
        start: states.
        weights: of the layer.
        wants: whether cotangents of x, and of the weights, are asked for.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        start: State,
        weights: Sequence[Tensor],
        wants: tuple[bool, bool],
    ) -> None:
        with torch.enable_grad():
            self.x = x.detach().requires_grad_(wants[0])
            self.start = tuple(s.detach().requires_grad_() for s in start)
            self.weights = [w.detach().requires_grad_(wants[1]) for w in weights]
            self.y, self.ends = kernel(self.x, self.start, self.weights, True)
        self.wants = wants

    def results(self) -> tuple[Tensor, State]:
        """Outputs and end states, without their history."""
        return self.y.detach(), tuple(e.detach() for e in self.ends)

    def pull_back(
        self, gy: Tensor | None, gends: State | None, *, again: bool = False
    ) -> tuple[State, Tensor | None, list[Tensor | None]]:
        """Cotangents of the start states, of x and of the weights, once.

        With `again` those of the start states alone, and what they are had from is kept.
        """
        outputs = [*([] if gy is None else [self.y]), *([] if gends is None else self.ends)]
        cotangents = [*([] if gy is None else [gy]), *(gends or ())]
        x = [self.x] if self.wants[0] and not again else []
        weights = self.weights if self.wants[1] and not again else []
        inputs = [*self.start, *x, *weights]
        grads: tuple[Tensor | None, ...] = torch.autograd.grad(
            outputs, inputs, cotangents, allow_unused=True, retain_graph=again
        )
        n = len(self.start)
        starts = zip(self.start, grads[:n], strict=True)
        return (
            tuple(torch.zeros_like(s) if g is None else g for s, g in starts),
            grads[n] if x else None,
            list(grads[n + len(x) :]) if weights else [None] * len(self.weights),
        )


@dataclass
class Call:
    """One relaxation: what to do, and afterwards what was done.

    Attributes:
        plan: its kernel and chunks.
        layout: its rows; after the forward pass those that were kept.
        tolerance: for states.
        adjoint_tolerance: for cotangents.
        passes: a fixed number of passes, without any reading of the device; None until converged.
        recompute: let backward run the chunks again, instead of keeping what it needs of them.
        history: to learn into.
        report: to fill in.
        wants: whether backward will be asked for cotangents of x, and of the weights; None if
            there is none.
        kept: the rows that were kept, if not all.
        trace: the run that yielded the outputs, if it was kept.
        rounding: how many tolerances count as rounding, if a pass leaves them as they are.
    """

    plan: Plan
    layout: Layout
    tolerance: float
    adjoint_tolerance: float
    passes: int | None
    recompute: bool
    history: History
    report: Report
    wants: tuple[bool, bool] | None = None
    kept: Tensor | None = None
    trace: Trace | None = None
    rounding: float = 1.0

    @property
    def kernel(self) -> Kernel:
        """The layer and direction."""
        return self.plan.kernel

    def blocks(self, rows: int, steps: int, x: Tensor) -> list[slice]:
        """Rows to be run together, so that a kernel's temporaries fit into memory."""
        if x.is_cuda:
            limit = torch.cuda.get_device_properties(x.device).total_memory / 8
        else:
            limit = 2.0**30
        row = 16 * steps * self.kernel.hidden * x.element_size()
        n = max(1, math.ceil(rows * row / limit))
        size = max(1, math.ceil(rows / n))
        return [slice(i, min(i + size, rows)) for i in range(0, rows, size)]

    def run(
        self, x: Tensor, start: State, weights: Sequence[Tensor], *, last: bool = False
    ) -> tuple[Tensor, State]:
        """All rows of x from their start states; the last time maybe to be pulled back through."""
        blocks = self.blocks(x.shape[1], x.shape[0], x)
        if len(blocks) == 1:
            if last and not self.recompute and self.wants is not None:
                self.trace = Trace(self.kernel, x, start, weights, self.wants)
                return self.trace.results()
            return self.kernel(x, start, weights, False)
        y = x.new_empty(*x.shape[:2], self.kernel.sizes[0])
        ends = tuple(torch.empty_like(s) for s in start)
        for rows in blocks:
            y[:, rows], part = self.kernel(
                x[:, rows], tuple(s[rows] for s in start), weights, False
            )
            for end, p in zip(ends, part, strict=True):
                end[rows] = p
        return y, ends

    def solve(
        self, x: Tensor, first: State, weights: Sequence[Tensor]
    ) -> tuple[Tensor, State, State]:
        """Relax the start states of all rows.

        Args:
            x: (w, rows, features).
            first: states before each sequence.
            weights: of the layer.

        Returns:
            outputs (w, rows, features) of all rows, their start states, and their end states.
        """
        w, report = self.plan.width, self.report
        steps, warm = split(self.plan.burn_in, w)
        early = None
        ends = self.kernel.zeros(self.layout.rows, x)
        if steps:
            early, ends = self.run(x[w - steps :], ends, weights)
        for _ in range(warm):
            early, ends = self.run(x, self.layout.split(first, ends)[0], weights)
        extra = (self.passes or 1) - 1
        for _ in range(extra):
            _, ends = self.run(x, self.layout.split(first, ends)[0], weights)
        start = self.layout.split(first, ends)[0]
        # A trial makes more passes, after which nothing of this one could be pulled back through.
        y, ends = self.run(x, start, weights, last=not self.plan.trial)

        report.status = "converged"
        report.width, report.chunks = w, self.layout.rows
        report.burn_in, report.tolerance = self.plan.burn_in, self.tolerance
        report.passes, report.depth = 1 + extra, self.plan.burn_in + (1 + extra) * w
        report._rounding = 4 * torch.finfo(x.dtype).eps
        if self.passes is None:
            return self._converge(x, first, weights, start, y, ends, early)
        gaps = _gaps(start, self.layout.split(first, ends)[0])
        report._residual = gaps.amax()
        report._amplification = 4.0  # what was seen where networks forget: 0.2 to 2
        return y, start, ends

    def _converge(
        self,
        x: Tensor,
        first: State,
        weights: Sequence[Tensor],
        start: State,
        y: Tensor,
        ends: State,
        early: Tensor | None,
    ) -> tuple[Tensor, State, State]:
        """Run again what starts elsewhere than the row before ended, until nothing does."""
        w, report, rows = self.plan.width, self.report, self.layout.rows
        following = self.layout.split(first, ends)[0]
        parts = [_gaps(start, following), _size(start)]
        if early is not None:
            parts.append((early - y[w - len(early) :]).abs().amax((1, 2)))
        read = torch.cat(parts).double().cpu().numpy()
        gaps, size, curve = read[:rows], float(read[rows]), read[rows + 1 :]

        spent = contraction = 0.0
        while True:
            moved = np.nonzero(~(gaps <= self.tolerance))[0]
            if not len(moved):
                break
            widest = float(gaps[moved].max())
            spent += self.plan.pass_us(len(moved), False)
            stalled = report.passes > 1 and self.plan.stalls(report.passes, contraction)
            if stalled and widest <= self.rounding * self.tolerance:
                moved = moved[:0]
                break
            hopeless = stalled and len(moved) > 1
            if not math.isfinite(widest) or hopeless or spent > self.plan.extra_us:
                break
            self.trace = None
            index = torch.from_numpy(moved).to(x.device)
            for s, f in zip(start, following, strict=True):
                s[index] = f[index]
            y[:, index], part = self.run(
                x.index_select(1, index), tuple(s[index] for s in start), weights
            )
            for e, p in zip(ends, part, strict=True):
                e[index] = p
            report.passes, report.depth = report.passes + 1, report.depth + w
            following = self.layout.split(first, ends)[0]
            gaps = _gaps(start, following).double().cpu().numpy()
            contraction = float(gaps.max()) / widest

        self._learn(gaps, size, curve, contraction)
        if len(moved):
            self._keep(moved, gaps, contraction)
        return y, start, ends

    def _learn(self, gaps: Curve, size: float, curve: Curve, contraction: float) -> None:
        """What the next call should know, and what a mismatch does to the outputs."""
        burn_in, w, report = self.plan.burn_in, self.plan.width, self.report
        converged = bool((gaps <= self.rounding * self.tolerance).all())
        report._residual = float(gaps.max()) if converged else 0.0
        most = burn_in + (report.passes - 1) * w
        growth, needed, bound = 1.0, most, False
        was_short = report.passes > 1 and contraction <= 0.5  # else rounding, or no memory's end
        if len(curve) and size > 0 and np.isfinite(curve).all():
            growth = max(1.0, float(curve.max()) / size)
            rate = min(1.0, max(float(curve[-1]), 1e-30) / size) ** (1 / burn_in)
            contraction = max(contraction, rate**w)
            steps = decayed(curve, self.tolerance)
            if steps is not None:
                needed = burn_in - len(curve) + steps
                bound = steps == 1 and needed > 1
            elif rate < 1:
                steps = math.ceil(math.log(min(self.tolerance / size, 0.9)) / math.log(rate))
                needed = min(most, 2 * burn_in, steps)
        report._amplification = growth / (1 - min(contraction, 0.9))
        report._rounding *= growth / (1 - min(contraction ** (1 / w), 0.99))
        if converged and not self.plan.trial:
            if was_short:  # the curve is of outputs alone, behind which c may be further apart
                needed, bound = max(needed, burn_in + 1), False
            self.history.learn(needed, bound=bound)

    def _keep(self, moved: NDArrayInt, gaps: Curve, contraction: float) -> None:
        """Keep what converged, of each sequence."""
        self.history.fail()
        self.trace = None
        counts = self.layout.kept(moved)
        keep = self.layout.chunk < np.asarray(counts)[self.layout.sequence]
        self.kept = torch.from_numpy(np.nonzero(keep)[0]).to(self.layout.device)
        report = self.report
        report.status = "fell_back"
        if not (report.passes > 1 and contraction <= 0.5):  # without a second pass nothing was seen
            report._amplification = math.inf
        report._residual = float(gaps[keep].max(initial=0.0))
        pairs = zip(counts, self.layout.counts, strict=True)
        report.first_unconverged_step = self.plan.width * min(c for c, n in pairs if c < n)
        self.layout = Layout(counts, self.layout.device)


NDArrayInt = np.ndarray[Any, np.dtype[np.int64]]


def _gaps(start: State, following: State) -> Tensor:
    """|end - start| of every row, relative to max(1, |end|)."""
    gaps = [
        ((f - s).abs() / f.abs().clamp(min=1)).amax(1)
        for s, f in zip(start, following, strict=True)
    ]
    return torch.maximum(*gaps) if len(gaps) > 1 else gaps[0]


def _size(state: State) -> Tensor:
    return torch.stack([s.abs().amax() for s in state]).amax()[None]
