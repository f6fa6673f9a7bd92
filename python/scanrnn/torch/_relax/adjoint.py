"""The backward pass: cotangents at the ends of chunks, relaxed until they agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .forward import Call, Trace
from .kernel import State
from .plan import Curve, split
from .report import Report


class Adjoint:
    """The backward pass of a call, which adds up what all its runs yield.

    Args:
        call: after its forward pass.
        x: (w, rows, features), the rows that were kept.
        start: their start states.
        weights: of the layer.
        wants: whether cotangents of x, and of the weights, are asked for.

    Attributes:
        gx: the cotangents of x.
        gweights: of the weights.
    """

    def __init__(
        self,
        call: Call,
        x: Tensor,
        start: State,
        weights: Sequence[Tensor],
        wants: tuple[bool, bool],
    ) -> None:
        self.call, self.x, self.start, self.weights = call, x, start, weights
        self.wants, self.layout = wants, call.layout
        self.gx: Tensor | None = None
        self.gweights: list[Tensor | None] = [None] * len(weights)
        self.report = call.report.adjoint = Report(
            "converged",
            1,
            tolerance=call.adjoint_tolerance,
            width=call.plan.width,
            chunks=self.layout.rows,
            burn_in=max(call.plan.burn_in, call.plan.adjoint),
        )

    # ---- Runs ------------------------------------------------------------------------------------

    def _run(
        self,
        gy: Tensor | None,
        gends: State | None,
        *,
        rows: Tensor | slice | None = None,
        steps: int | None = None,
    ) -> State:
        """Pull cotangents back through rows: cotangents of their start states.

        Args:
            gy: of all outputs, or None.
            gends: of the ends of these rows.
            rows: which; None means all.
            steps: only so many first steps of each, and nothing is added up. None means all.
        """
        whole = slice(0, self.layout.rows)
        x, start = self.x, self.start
        if rows is not None:
            x, start = x[:, rows], tuple(s[rows] for s in start)
        if steps is not None:
            x = x[:steps]
            gy = None if gy is None else gy[:steps]
        again = steps == self.call.plan.width  # all rows whole, in the burn-in: more will follow
        trace = self.call.trace if rows is None and (steps is None or again) else None
        parts = []
        for block in self.call.blocks(x.shape[1], 2 * x.shape[0], x) if trace is None else [whole]:
            if trace is None:
                trace = Trace(
                    self.call.kernel,
                    x[:, block],
                    tuple(s[block] for s in start),
                    self.weights,
                    self.wants if steps is None else (False, False),
                )
            elif not again:
                self.call.trace = None  # it can be used once
            gstart, gx, gweights = trace.pull_back(
                None if gy is None else gy[:, block],
                None if gends is None else tuple(g[block] for g in gends),
                again=trace is self.call.trace,
            )
            trace = None
            parts.append(gstart)
            self._add(rows, block, gx, gweights)
        return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))

    def _add(
        self,
        rows: Tensor | slice | None,
        block: slice,
        gx: Tensor | None,
        gweights: Sequence[Tensor | None],
    ) -> None:
        if gx is not None:
            if self.gx is None and rows is None and gx.shape == self.x.shape:
                self.gx = gx
            else:
                if self.gx is None:
                    self.gx = torch.zeros_like(self.x)
                if isinstance(rows, slice):
                    block = slice(rows.start + block.start, rows.start + block.stop)
                self.gx[:, rows[block] if isinstance(rows, Tensor) else block] += gx
        for i, g in enumerate(gweights):
            mine = self.gweights[i]
            self.gweights[i] = g if mine is None else mine if g is None else mine + g

    # ---- Relaxation ------------------------------------------------------------------------------

    def _burn_in(self, gy: Tensor | None, final: State) -> State:
        """Estimates of the cotangents of all rows' ends."""
        w = self.call.plan.width
        steps, warm = split(self.report.burn_in, w)
        gstart = self.call.kernel.zeros(self.layout.rows, self.x)
        if gy is not None:
            if steps:
                gstart = self._run(gy, None, steps=steps)
            for _ in range(warm):
                gstart = self._run(gy, self.layout.join(gstart, final)[1], steps=w)
        return self.layout.join(gstart, final)[1]

    def solve(self, gy: Tensor | None, final: State) -> State:
        """Add up all gradients; returns the cotangents of the sequences' first states.

        Args:
            gy: (w, rows, features) of the outputs, or None.
            final: of the sequences' final states.
        """
        call, report, w = self.call, self.report, self.call.plan.width
        report.depth = 2 * (report.burn_in + w)
        ends = self._burn_in(gy, final)
        first, found = self.layout.join(self._run(gy, ends), final)
        # What isn't finite was passed on already: once more would make no difference.
        pairs = zip(found, ends, strict=True)
        missing = tuple(torch.where(e.isfinite(), f - e, 0) for f, e in pairs)
        none = tuple(map(torch.zeros_like, final))
        if call.passes is not None:
            for _ in range(call.passes - 1):
                more, missing = self.layout.join(self._run(None, missing), none)
                first = tuple(a + b for a, b in zip(first, more, strict=True))
                report.passes, report.depth = report.passes + 1, report.depth + 2 * w
            left, scale = _largest(missing).amax(), _largest(found).amax()
            report._residual = left / scale.clamp(min=torch.finfo(scale.dtype).tiny)
            return first

        gaps, sizes = _read(missing, found)
        size = self._of_sequences(sizes)
        gaps = gaps / size
        gap = start_gap = float(gaps.max())
        last = math.inf
        spent = 0.0
        while True:
            moved = np.nonzero(~(gaps <= call.adjoint_tolerance))[0]
            report._residual = gap
            if not len(moved):
                break
            spent += call.plan.pass_us(len(moved), True)
            stalled = call.plan.stalls(report.passes, gap / last) and len(moved) > 1
            if spent > call.plan.extra_us or stalled or not math.isfinite(gap):
                chunk = int(self.layout.chunk[moved].max())
                more = self._serially(missing, chunk)
                first = tuple(a + b for a, b in zip(first, more, strict=True))
                report.status, report._residual = "fell_back", 0.0
                report.first_unconverged_step = (chunk + 1) * w
                break
            last = gap
            index = torch.from_numpy(moved).to(self.x.device)
            part = self._run(None, tuple(m[index] for m in missing), rows=index)
            gstart = tuple(torch.zeros_like(s) for s in self.start)
            for g, p in zip(gstart, part, strict=True):
                g[index] = p
            more, found = self.layout.join(gstart, none)
            first = tuple(a + b for a, b in zip(first, more, strict=True))
            # What was below the tolerance stays where it is: it may add up to more.
            missing = tuple(
                m.index_fill(0, index, 0) + f for m, f in zip(missing, found, strict=True)
            )
            report.passes, report.depth = report.passes + 1, report.depth + 2 * w
            gaps = _read(missing)[0] / size
            gap = float(gaps.max())
        more_was_run = report.passes > 1 or report.status == "fell_back"
        if gy is not None and more_was_run and math.isfinite(gap):
            self._learn(start_gap)
        return first

    def _of_sequences(self, sizes: Curve) -> Curve:
        """For every row the largest of its sequence, of those that are finite."""
        largest = np.full(self.layout.sequences, np.finfo(np.float64).tiny)
        np.maximum.at(largest, self.layout.sequence, np.where(np.isfinite(sizes), sizes, 0))
        every: Curve = largest[self.layout.sequence]
        return every

    def _learn(self, gap: float) -> None:
        """A burn-in that would have been enough, from how far this one came."""
        steps, tolerance = self.report.burn_in, self.call.adjoint_tolerance
        if 0 < gap < 0.1:
            factor = min(4.0, 1.1 * math.log(0.3 * tolerance) / math.log(gap))
            self.call.history.adjoint = 8 * math.ceil(steps * factor / 8)
        elif self.report.status == "fell_back":
            self.call.history.fail()

    def _serially(self, missing: State, chunk: int) -> State:
        """Pull missing cotangents back chunk after chunk, from one to the first."""
        layout = self.layout
        self.report.depth += 2 * (chunk + 1) * self.call.plan.width
        carry = tuple(m.new_zeros(layout.sequences, m.shape[1]) for m in missing)
        for p in range(chunk, -1, -1):
            rows = np.nonzero(layout.chunk == p)[0]
            here = slice(int(rows[0]), int(rows[-1]) + 1)
            sequences = torch.from_numpy(layout.sequence[rows]).to(self.x.device)
            gends = tuple(m[here] + c[sequences] for m, c in zip(missing, carry, strict=True))
            part = self._run(None, gends, rows=here)
            for c, g in zip(carry, part, strict=True):
                c[sequences] = g
        return carry


def _largest(state: State) -> Tensor:
    """The largest of every row."""
    return torch.stack([s.abs().amax(1) for s in state]).amax(0)


def _read(*states: State) -> Curve:
    """The largest of every row, for each of the states."""
    read: Curve = torch.stack([_largest(s) for s in states]).double().cpu().numpy()
    return read


class Relax(torch.autograd.Function):
    """Outputs and final states of chunks, (w, rows, features), as a differentiable function.

    Saves inputs, start states and weights: nothing else (with call.recompute), so that backward
    runs the chunks again.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Arguments: the call, rows of inputs, the sequences' first states, the weights."""
        n = len(call.kernel.sizes)
        first, weights = tensors[:n], tensors[n:]
        if any(ctx.needs_input_grad):
            call.wants = _wants(ctx, n)
        ctx.call = call
        ctx.set_materialize_grads(False)
        y, start, ends = call.solve(x, first, call.kernel.flat(weights))
        if call.kept is not None:
            y = y.index_select(1, call.kept)
            start = tuple(s.index_select(0, call.kept) for s in start)
            ends = tuple(e.index_select(0, call.kept) for e in ends)
        final = call.layout.split(first, ends)[1]
        ctx.save_for_backward(x, *start, *weights)
        return (y, *(f.clone() for f in final))

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None, *gfinal: Tensor | None) -> tuple[Any, ...]:
        """Cotangents of the rows, the first states and the weights."""
        with torch.no_grad():
            grads = Relax._pull_back(ctx, gy, gfinal)
        return (None, *(_Once.of(grads) if torch.is_grad_enabled() else grads))

    @staticmethod
    def _pull_back(
        ctx: Any, gy: Tensor | None, gfinal: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        n = len(call.kernel.sizes)
        x, *tensors = ctx.saved_tensors
        start, weights = tuple(tensors[:n]), tensors[n:]
        whole = x
        if call.kept is not None:
            x = x.index_select(1, call.kept)
        final = tuple(
            x.new_zeros(call.layout.sequences, size) if g is None else g
            for size, g in zip(call.kernel.sizes, gfinal, strict=True)
        )
        wants = _wants(ctx, n)
        if call.layout.rows == 0:
            gx = torch.zeros_like(whole) if wants[0] else None
            return (gx, *final, *map(torch.zeros_like, weights))
        adjoint = Adjoint(call, x, start, call.kernel.flat(weights), wants)
        first = adjoint.solve(None if gy is None else gy.contiguous(), final)
        gx = adjoint.gx
        if call.kept is not None and gx is not None:
            gx = torch.zeros_like(whole).index_copy(1, call.kept, gx)
        return (gx, *first, *adjoint.gweights)


class _Once(torch.autograd.Function):
    """Gradients that refuse to be differentiated, whatever they were had from.

    PyTorch's own `once_differentiable` lets those pass that came from cotangents without a history.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(g.view_as(g) for g in grads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        raise RuntimeError(
            "LSTM, GRU, RNN: a second derivative was asked for, expected first ones: where chunks "
            "ran there are no others (parallel=False has those of the framework's kernel)"
        )

    @classmethod
    def of(cls, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        apply: Any = getattr(cls, "apply")  # noqa: B009
        given = [g for g in grads if g is not None]
        values = iter(apply(torch.zeros((), requires_grad=True), *given))
        return [None if g is None else next(values) for g in grads]


def _wants(ctx: Any, state: int) -> tuple[bool, bool]:
    """Whether cotangents of x, and of the weights, are asked for."""
    return ctx.needs_input_grad[1], any(ctx.needs_input_grad[2 + state :])
