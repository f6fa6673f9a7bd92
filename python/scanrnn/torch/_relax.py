"""Recurrent layers with dense weights, parallel in time by chunked relaxation.

A recurrence over T steps is cut into chunks of w steps. The framework's own serial kernel runs all
chunks at once, as one batch, from estimates of their start states; where the end of a chunk is not
yet the start of the next one, that next one is run again. Whatever the estimates, the first k chunks
are exact after k passes. What makes it fast is that a trained network forgets: runs from two states
become one after K steps. So

1. **Burn-in**: the last K steps of every chunk, from zero, give the next chunk's start state.
2. **Pass**: all chunks run from these states, which yields the outputs and, by their ends, verifies
   the states. Only chunks whose start differs from that end by more than the tolerance run again.

The adjoint is a linear recurrence from the other end, with the same forgetting: the first K steps of
every chunk, from a zero cotangent, give the cotangent at the end of the chunk before; one backward
pass over all chunks yields the gradients and verifies the cotangents. What is missing is not done
again but added, since cotangents add up: a pass with the differences alone, over the chunks
concerned. Weight gradients are those of the full, dense Jacobians at the converged states.

In the language of DESIGN section 1 these are segment maps without tangents (J = 0). It is multiple
shooting (Lions, Maday, Turinici, "A parareal in time discretization of PDEs", 2001; Gander,
"50 years of time parallel time integration", 2015) with the identity as coarse solver.

This module knows rows, chunks, states and cotangents; `dense` knows modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, _VF
from torch.autograd.function import once_differentiable

State = tuple[Tensor, ...]  # (h,), or (h, c) of the LSTM; each (rows, features)
Status = Literal["converged", "not_converged", "fell_back", "serial"]

# ---- What earlier measurements say ---------------------------------------------------------------

# Relative to max(1, |state|). Runs from different states end in states that differ by this much
# because sums are rounded differently; LSTM and GRU of 64 to 512 units, gains 1 to 2: 1e-7 to 4e-7
# in float32. TF32 rounds states to 11 bits before each product.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
TF32_TOLERANCE = 5e-4
ADJOINT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}  # of the largest cotangent
TF32_ADJOINT_TOLERANCE = 2e-3

BURN_IN = 48  # steps; weights as initialised forget to 5e-7 in 32 steps, to 1e-7 in 48
PROBE_STEPS = 128  # the first length of a probe
PROBE_ROWS = 32  # places at which it looks
PROBE_SHARE = 0.04  # of the steps of a sequence are what all of a probe may take
EXTRA_SHARE = 0.08  # of the serial cost are what passes that were not planned may take
GAIN = 1.4  # predicted speed-up below which the serial kernel runs
LONGEST = 32768  # steps of one call of a serial kernel: cuDNN refuses 65,536
WIDTHS = [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192]


class Costs(NamedTuple):
    """Microseconds of one step of the framework's kernel, forward.

    Backward is 1 to 1.5 times that everywhere, which changes no choice.
    """

    serial: tuple[tuple[int, float], ...]  # (largest hidden size, latency) for a few rows
    batched: tuple[tuple[int, float], ...]  # likewise, for many
    rate: dict[torch.dtype, float]  # floating point operations a microsecond
    call: float  # one call, whatever its steps

    def step(self, rows: float, hidden: int, flops: float, dtype: torch.dtype, many: bool) -> float:
        """One step of that many rows, each of which takes that many operations."""
        table = self.batched if many else self.serial
        latency = next((us for size, us in table if hidden <= size), table[-1][1])
        return latency + rows * flops / self.rate.get(dtype, self.rate[torch.float32])


# H200, cuDNN's LSTM in float32 (experiments/relax_lstm.py): H = 64, B = 1 takes 0.46 us a step alone
# and 4.9 as 256 rows; H = 256 14.9 and 21.5; H = 512 11.2 and 37, with B = 8 14.9 and, as 2048 rows,
# 208, which is 41 Tflop/s.
COSTS = {
    "cuda": Costs(
        serial=((96, 0.45), (192, 0.9), (4096, 11.0)),
        batched=((96, 4.5), (192, 8.0), (4096, 14.0)),
        rate={torch.float64: 20e6, torch.float32: 40e6, torch.float16: 2e8, torch.bfloat16: 2e8},
        call=100.0,
    ),
    "cpu": Costs(
        serial=((4096, 30.0),),
        batched=((4096, 40.0),),
        rate={torch.float64: 2e4, torch.float32: 4e4, torch.float16: 1e4, torch.bfloat16: 1e4},
        call=100.0,
    ),
}


def uses_tf32(x: Tensor) -> bool:
    """Whether cuDNN may round the operands of float32 products."""
    if x.dtype != torch.float32 or not x.is_cuda:
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # set by the newer interface, to something that the older can't express
        return str(torch.backends.cudnn.rnn.fp32_precision) == "tf32"


def tolerance_of(x: Tensor) -> float:
    """The default mismatch of states that counts as agreement."""
    return TF32_TOLERANCE if uses_tf32(x) else TOLERANCE[x.dtype]


def adjoint_tolerance_of(x: Tensor) -> float:
    """The same for cotangents, relative to the largest."""
    if uses_tf32(x):
        return TF32_ADJOINT_TOLERANCE
    return ADJOINT_TOLERANCE.get(x.dtype, 4 * TOLERANCE[x.dtype])


# ---- Reports -------------------------------------------------------------------------------------


@dataclass
class Report:
    """What a call did, and how far from the serial result it may be.

    Attributes:
        status: "converged": every start state agrees with the end before it. "fell_back": not all
            did, and from the first that didn't the serial kernel ran. "serial": only that ran.
            "not_converged": only with a fixed number of passes, which nothing checks.
        passes: runs of all chunks (0 if serial), beside the burn-in.
        residual: largest |end - start| over all boundaries between chunks that were kept, relative
            to max(1, |end|).
        error_estimate: of the outputs against the serial kernel's in the same precision: twice the
            residual times what the network makes of it, plus rounding. inf if the serial kernel went
            on in a network that was not seen to forget: where that is chaotic, every way of
            rounding takes a path of its own, and what holds is the residual alone.
        first_unconverged_step: the step, in the layer's direction, from which the serial kernel
            ran instead, for the sequences that had not converged; None if all had.
        tolerance: what the residual was compared with.
        width: steps of a chunk.
        chunks: number of chunks, over all sequences.
        burn_in: steps that gave the first estimate of a start state.
        depth: steps that followed one another, of all runs: the serial kernel has T.
        adjoint: the same for the backward pass, once it has been.
        layers: reports of every layer and direction, in the order of the final states, of which
            the fields above are the worst.
    """

    status: Status = "serial"
    passes: int = 0
    first_unconverged_step: int | None = None
    tolerance: float = 0.0
    width: int = 0
    chunks: int = 0
    burn_in: int = 0
    depth: int = 0
    adjoint: Report | None = None
    layers: tuple[Report, ...] = ()
    _residual: float | Tensor = 0.0
    _amplification: float = 1.0
    _rounding: float = 0.0

    @property
    def residual(self) -> float:
        """See the class. Reading it waits for the device, after a fixed number of passes."""
        if self.layers:
            return max(layer.residual for layer in self.layers)
        return float(self._residual)

    @property
    def error_estimate(self) -> float:
        """See the class."""
        if self.layers:
            return max(layer.error_estimate for layer in self.layers)
        if self.status == "serial":
            return 0.0
        if self._amplification == math.inf:
            return math.inf
        return 2 * self.residual * self._amplification + self._rounding

    def __repr__(self) -> str:
        where = self.first_unconverged_step
        return (
            f"Report(status={self.status!r}, passes={self.passes}, residual={self.residual:.1e}, "
            f"error_estimate={self.error_estimate:.1e}, first_unconverged_step={where}, "
            f"width={self.width}, chunks={self.chunks}, burn_in={self.burn_in}, "
            f"depth={self.depth})"
        )


class FixedReport(Report):
    """Report of a fixed number of passes: its status is known when someone asks."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "status" and value == "converged":
            residual = float(super().__getattribute__("_residual"))
            return value if residual <= super().__getattribute__("tolerance") else "not_converged"
        return value


_WORST: dict[Status, int] = {"serial": 0, "converged": 1, "fell_back": 2, "not_converged": 3}


def worst(reports: Sequence[Report]) -> Report:
    """One report of several layers and directions."""
    if len(reports) == 1:
        return reports[0]
    steps = [r.first_unconverged_step for r in reports if r.first_unconverged_step is not None]
    most = max(reports, key=lambda r: (_WORST[r.status], r.passes))
    return Report(
        status=most.status,
        passes=max(r.passes for r in reports),
        first_unconverged_step=min(steps, default=None),
        tolerance=most.tolerance,
        width=most.width,
        chunks=most.chunks,
        burn_in=most.burn_in,
        depth=sum(r.depth for r in reports),
        layers=tuple(reports),
    )


# ---- The framework's kernel ----------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """One layer and direction of the framework's recurrent network.

    Attributes:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU".
        features: of the input.
        hidden: of c, and of h unless projected.
        proj: features of a projected h, or 0.
        bias: whether the weights have biases.
    """

    mode: str
    features: int
    hidden: int
    proj: int = 0
    bias: bool = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """Features of each part of the state."""
        h = self.proj or self.hidden
        return (h, self.hidden) if self.mode == "LSTM" else (h,)

    @property
    def flops(self) -> float:
        """Operations of one step of one sequence."""
        gates = {"LSTM": 4, "GRU": 3}.get(self.mode, 1)
        h = self.proj or self.hidden
        return 2.0 * self.hidden * (gates * (self.features + h) + self.proj)

    def zeros(self, rows: int, x: Tensor) -> State:
        """States before any step."""
        return tuple(x.new_zeros(rows, n) for n in self.sizes)

    def __call__(
        self,
        x: Tensor,
        state: State,
        weights: Sequence[Tensor],
        train: bool,
        batch_sizes: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Run x, (steps, rows, features), or packed, from a state: outputs and the last state."""
        call: Callable[..., Any] = getattr(_VF, self.mode.lower())
        hx: Any = tuple(s.unsqueeze(0) for s in state)
        hx = hx if len(hx) > 1 else hx[0]
        head = (x, hx) if batch_sizes is None else (x, batch_sizes, hx)
        tail = (False,) if batch_sizes is None else ()
        y, *end = call(*head, list(weights), self.bias, 1, 0.0, train, False, *tail)
        return y, tuple(s.squeeze(0) for s in end)

    def flat(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The weights without their history, in one piece of memory where cuDNN wants them so.

        cuDNN's buffer is that of one layer and direction, while a module's holds all of them.
        """
        detached = [w.detach() for w in weights]
        x = detached[0]
        if not x.is_cuda or not torch.backends.cudnn.is_acceptable(x):
            return detached
        size = sum(w.numel() for w in detached) * x.element_size()
        whole = x.untyped_storage()
        if whole.nbytes() == size and all(
            w.untyped_storage().data_ptr() == whole.data_ptr() for w in detached
        ):
            return detached
        from torch.backends.cudnn import rnn

        flat = [w.clone() for w in detached]
        with torch.no_grad():
            torch._cudnn_rnn_flatten_weight(
                flat,
                (4 if self.bias else 2) + (self.proj > 0),
                self.features,
                rnn.get_cudnn_mode(self.mode),
                self.hidden,
                self.proj,
                1,
                False,
                False,
            )
        return flat


# ---- Rows ----------------------------------------------------------------------------------------


class Layout:
    """How the chunks of several sequences follow one another as rows of one batch.

    Rows are ordered by chunk, then by sequence. A state is known at every sequence's start and at
    every row's end; each of these is the start of a row or the final state of a sequence.

    Args:
        counts: chunks of each sequence.
        device: where states are.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.counts = tuple(counts)
        self.sequences = len(self.counts)
        n = np.asarray(self.counts, dtype=np.int64)
        self.most = int(n.max(initial=0))
        chunk, sequence = np.nonzero(np.arange(self.most)[:, None] < n)
        self.chunk, self.sequence = chunk, sequence
        self.rows = len(chunk)
        self.device = device
        self.even = bool((n == self.most).all())
        self._order = self._inverse = None
        if not self.even:
            row = np.full((self.most + 1, self.sequences), -1, dtype=np.int64)
            row[0] = np.arange(self.sequences)
            row[chunk + 1, sequence] = self.sequences + np.arange(self.rows)
            order = np.concatenate([row[chunk, sequence], row[n, np.arange(self.sequences)]])
            self._order = torch.from_numpy(order).to(device)
            self._inverse = torch.from_numpy(np.argsort(order)).to(device)

    def _permute(self, parts: tuple[State, State], order: Tensor | None) -> list[Tensor]:
        joined = [torch.cat(pair) for pair in zip(*parts, strict=True)]
        return joined if order is None else [t.index_select(0, order) for t in joined]

    def split(self, first: State, ends: State) -> tuple[State, State]:
        """Start states of the rows, and final states of the sequences."""
        joined = self._permute((first, ends), self._order)
        return tuple(t[: self.rows] for t in joined), tuple(t[self.rows :] for t in joined)

    def join(self, starts: State, final: State) -> tuple[State, State]:
        """The transpose: cotangents of the sequences' first states, and of the rows' ends."""
        joined = self._permute((starts, final), self._inverse)
        b = self.sequences
        return tuple(t[:b] for t in joined), tuple(t[b:] for t in joined)

    def kept(self, moved: np.ndarray) -> list[int]:
        """Chunks of each sequence before the first that moved."""
        counts = np.asarray(self.counts)
        np.minimum.at(counts, self.sequence[moved], self.chunk[moved])
        return [int(n) for n in counts]


# ---- Plans ---------------------------------------------------------------------------------------


@dataclass
class History:
    """What calls of one layer and direction learned.

    Attributes:
        needed: steps after which runs from different states agreed to the tolerance; None if that
            isn't known.
        burn_in: what was chosen from that; changed only where it no longer fits, so that repeated
            calls keep the bits of their results.
        adjoint: the same for cotangents, where they needed more than states.
        pause: calls to run serially before the next probe.
        failures: probes and calls in a row that did not converge.
    """

    needed: int | None = None
    burn_in: int = 0
    adjoint: int = 0
    pause: int = 0
    failures: int = 0

    def learn(self, needed: int) -> None:
        """Take note of steps that were enough."""
        self.needed, self.failures = needed, 0
        wanted = max(16, 8 * math.ceil((1.25 * needed + 4) / 8))
        if not needed * 1.1 <= self.burn_in <= 2 * wanted:
            self.burn_in = wanted

    def fail(self) -> None:
        """It did not converge: run serially for a while, longer each time."""
        self.needed, self.burn_in, self.adjoint = None, 0, 0
        self.failures += 1
        self.pause = min(2**self.failures, 64)


@dataclass(frozen=True)
class Plan:
    """How to cut sequences into chunks.

    Attributes:
        width: steps w of a chunk.
        burn_in: steps K before each pass that counts; whole multiples of w in it are passes.
        serial_us: predicted time of the serial kernel.
        step_us: predicted time of a step of that many rows of chunks.
        adjoint: the burn-in of the backward pass, if that is longer. Kept from the forward pass on,
            so that backward again gives the same bits.
    """

    width: int
    burn_in: int
    serial_us: float
    step_us: Callable[[int], float]
    adjoint: int = 0


def serial_cost(kernel: Kernel, lengths: Sequence[int], x: Tensor) -> float:
    """Predicted microseconds of the serial kernel."""
    costs = COSTS.get(x.device.type, COSTS["cuda"])
    steps = max(lengths, default=0)
    if not steps:
        return costs.call
    mean = sum(lengths) / steps
    return costs.call + steps * costs.step(mean, kernel.hidden, kernel.flops, x.dtype, False)


def choose(
    kernel: Kernel,
    lengths: Sequence[int],
    x: Tensor,
    burn_in: int,
    *,
    width: int | None = None,
    force: bool = False,
) -> Plan | None:
    """The chunks that take least time, or None where the serial kernel does."""
    costs = COSTS.get(x.device.type, COSTS["cuda"])
    longest, total = max(lengths, default=0), sum(lengths)
    serial = serial_cost(kernel, lengths, x)

    def step_us(rows: float) -> float:
        return costs.step(rows, kernel.hidden, kernel.flops, x.dtype, True)

    def cost(w: int) -> float:
        passes = 2 + max(0, math.ceil(burn_in / w) - 1)
        return (burn_in + w) * step_us(total / w) + passes * costs.call

    if width is None:
        widths = [w for w in WIDTHS if 2 * w <= longest]
        if force and not widths and longest >= 2:
            widths = [longest // 2]
        if not widths:
            return None
        best = min(widths, key=cost)
        if not force and cost(best) * GAIN > serial:
            return None
        if len(set(lengths)) == 1:  # a width that leaves few steps over
            best = min(range(best, best + max(2, best // 6)), key=lambda w: (longest % w, w))
        width = best
    if longest < 2 * width:
        return None
    return Plan(width, burn_in, serial, step_us)


def decayed(curve: np.ndarray, tolerance: float) -> int | None:
    """Steps after which a difference stays within the tolerance; None if it doesn't."""
    above = np.nonzero(~(curve <= tolerance))[0]
    if not len(above):
        return 1
    return None if above[-1] + 1 >= len(curve) else int(above[-1]) + 2


def extrapolated(curve: np.ndarray, tolerance: float) -> int | None:
    """The same for a difference that has clearly begun to decay; None if it has not.

    Fits a line to the logarithms of the second half.
    """
    half = curve[len(curve) // 2 :]
    if not np.isfinite(curve).all() or half[-1] <= 0 or half[-1] > 0.03 * curve.max():
        return None
    slope = np.polyfit(np.arange(len(half)), np.log(np.maximum(half, 1e-300)), 1)[0]
    if slope >= 0:
        return None
    return len(curve) + math.ceil(math.log(tolerance / half[-1]) / slope)


def probe(
    kernel: Kernel,
    windows: Callable[[int, int], Tensor],
    weights: Sequence[Tensor],
    longest: int,
    tolerance: float,
    worthwhile: Callable[[int], bool],
) -> int | None:
    """Steps after which runs from different states agree, as seen at some places.

    Two runs, from zero and from an arbitrary state, see the same inputs. It takes twice as long
    each time until they agree, and gives up where a burn-in of what has passed would not pay.

    Args:
        kernel: the layer.
        windows: (start, stop) to inputs (stop - start, places, features).
        weights: of the layer.
        longest: steps that may be taken.
        tolerance: of agreement.
        worthwhile: whether a burn-in of so many steps pays.

    Returns:
        The number of steps, or None if the network does not forget soon enough.
    """
    done, length = 0, min(PROBE_STEPS, longest)
    differences: list[Tensor] = []
    state: State = ()
    curve = np.empty(0)
    while done < length:
        x = windows(done, length)
        if not state:
            places = x.shape[1]
            signs = torch.arange(places * max(kernel.sizes), device=x.device).mul(0.7548776662)
            signs = torch.where(signs.frac() < 0.5, -0.5, 0.5).to(x.dtype).view(places, -1)
            other = tuple(signs[:, :n] * (part + 1) for part, n in enumerate(kernel.sizes))
            pairs = zip(kernel.zeros(places, x), other, strict=True)
            state = tuple(torch.cat(pair) for pair in pairs)
        y, state = kernel(torch.cat([x, x], 1), state, weights, False)
        a, b = y.chunk(2, 1)
        differences.append((a - b).abs().amax((1, 2)))
        curve = torch.cat(differences).double().cpu().numpy()
        steps = decayed(curve, tolerance)
        if steps is not None:
            return steps
        done, length = length, min(2 * length, longest)
        if not worthwhile(done) or not np.isfinite(curve[-1]):
            return None
    steps = extrapolated(curve, tolerance) if len(curve) else None
    return steps if steps is not None and worthwhile(steps) else None


# ---- Forward -------------------------------------------------------------------------------------


@dataclass
class Call:
    """One relaxation: what to do, and afterwards what was done.

    Attributes:
        kernel: the layer and direction.
        plan: its chunks.
        layout: its rows; after the forward pass those that were kept.
        tolerance: for states.
        adjoint_tolerance: for cotangents.
        passes: a fixed number of passes, without any reading of the device; None until converged.
        history: to learn into.
        report: to fill in.
        kept: the rows that were kept, if not all.
    """

    kernel: Kernel
    plan: Plan
    layout: Layout
    tolerance: float
    adjoint_tolerance: float
    passes: int | None
    history: History
    report: Report
    kept: Tensor | None = None

    def blocks(self, rows: int, steps: int, x: Tensor) -> list[slice]:
        """Rows to be run together, so that a kernel's temporaries fit into memory."""
        if x.is_cuda:
            limit = torch.cuda.get_device_properties(x.device).total_memory / 8
        else:
            limit = 2.0**30
        row = 16 * steps * self.kernel.hidden * x.element_size()
        n = max(1, math.ceil(rows * row / limit))
        size = math.ceil(rows / n)
        return [slice(i, min(i + size, rows)) for i in range(0, rows, max(size, 1))]

    def run(self, x: Tensor, start: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """All rows of x from their start states."""
        blocks = self.blocks(x.shape[1], x.shape[0], x)
        if len(blocks) == 1:
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
        warm, partial = divmod(self.plan.burn_in, w)
        if partial == 0 and warm:
            warm, partial = warm - 1, w
        early = None
        ends = self.kernel.zeros(self.layout.rows, x)
        if partial:
            early, ends = self.run(x[w - partial :], ends, weights)
        for _ in range(warm):
            early = None
            _, ends = self.run(x, self.layout.split(first, ends)[0], weights)
        start = self.layout.split(first, ends)[0]
        y, ends = self.run(x, start, weights)
        report.width, report.chunks = w, self.layout.rows
        report.burn_in, report.tolerance = self.plan.burn_in, self.tolerance
        report.passes, report.depth = 1, self.plan.burn_in + w
        report.status = "converged"
        report._rounding = 4 * torch.finfo(x.dtype).eps
        if self.passes is not None:
            for _ in range(self.passes - 1):
                start = self.layout.split(first, ends)[0]
                y, ends = self.run(x, start, weights)
                report.passes, report.depth = report.passes + 1, report.depth + w
            gaps = self._gaps(start, self.layout.split(first, ends)[0])
            report._residual = gaps.amax() if len(gaps) else 0.0
            report._amplification = 4.0
            return y, start, ends
        return self._converge(x, first, weights, start, y, ends, early)

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
        w, report, rows = self.plan.width, self.report, self.layout.rows
        following = self.layout.split(first, ends)[0]
        parts = [self._gaps(start, following), self._size(start)]
        if early is not None:
            parts.append((early - y[w - len(early) :]).abs().amax((1, 2)))
        read = torch.cat(parts).double().cpu().numpy()
        gaps, size, curve = read[:rows], read[rows], read[rows + 1 :]

        spent, budget = 0.0, EXTRA_SHARE * self.plan.serial_us
        contraction = 0.0
        while True:
            moved = np.nonzero(~(gaps <= self.tolerance))[0]
            if not len(moved):
                break
            worst_gap = gaps[moved].max()
            price = w * self.plan.step_us(len(moved))
            spent += price
            hopeless = report.passes > 1 and contraction > 0.5 and len(moved) > 1
            if not math.isfinite(worst_gap) or hopeless or spent > budget:
                break
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
            gaps = self._gaps(start, following).double().cpu().numpy()
            contraction = gaps.max(initial=0.0) / worst_gap

        self._learn(gaps, size, curve, contraction)
        if len(moved):
            self._keep(moved, gaps, contraction)
        return y, start, ends

    @staticmethod
    def _gaps(start: State, following: State) -> Tensor:
        """|end - start| of every row, relative to max(1, |end|)."""
        gaps = [
            ((f - s).abs() / f.abs().clamp(min=1)).amax(1)
            for s, f in zip(start, following, strict=True)
            if f.shape[1]
        ]
        return torch.stack(gaps).amax(0) if len(gaps) > 1 else gaps[0]

    @staticmethod
    def _size(state: State) -> Tensor:
        return torch.stack([s.abs().amax() for s in state]).amax()[None]

    def _learn(self, gaps: np.ndarray, size: float, curve: np.ndarray, contraction: float) -> None:
        """What the next call should know, and what a mismatch does to the outputs."""
        burn_in, w, report = self.plan.burn_in, self.plan.width, self.report
        report._residual = float(gaps[gaps <= self.tolerance].max(initial=0.0))
        most = burn_in + (report.passes - 1) * w
        growth, needed = 1.0, most
        if len(curve) and size > 0 and np.isfinite(curve).all():
            growth = max(1.0, float(curve.max()) / size)
            rate = min(1.0, max(float(curve[-1]), 1e-30) / size) ** (1 / len(curve))
            contraction = max(contraction, rate**w)
            steps = decayed(curve, self.tolerance)
            if steps is None and rate < 1:
                steps = math.ceil(math.log(min(self.tolerance / size, 0.9)) / math.log(rate))
            needed = min(most, burn_in - len(curve) + (steps or most))
        report._amplification = growth / (1 - min(contraction, 0.9))
        if (gaps <= self.tolerance).all():
            self.history.learn(needed)

    def _keep(self, moved: np.ndarray, gaps: np.ndarray, contraction: float) -> None:
        """Keep what converged, of each sequence."""
        self.history.fail()
        counts = self.layout.kept(moved)
        keep = self.layout.chunk < np.asarray(counts)[self.layout.sequence]
        self.kept = torch.from_numpy(np.nonzero(keep)[0]).to(self.layout.device)
        self.report.status = "fell_back"
        if not contraction <= 0.5:
            self.report._amplification = math.inf
        self.report._residual = float(gaps[keep].max(initial=0.0))
        first = min(c for c, n in zip(counts, self.layout.counts, strict=True) if c < n)
        self.report.first_unconverged_step = first * self.plan.width
        self.layout = Layout(counts, self.layout.device)


# ---- Backward ------------------------------------------------------------------------------------


@dataclass
class _Gradients:
    """Sums of what the passes over rows yield."""

    x: Tensor | None
    weights: list[Tensor | None] = field(default_factory=list)

    def add(self, rows: Any, x: Tensor | None, weights: Sequence[Tensor | None]) -> None:
        if self.x is not None and x is not None:
            self.x[:, rows] += x
        if not self.weights:
            self.weights = list(weights)
            return
        for i, w in enumerate(weights):
            mine = self.weights[i]
            self.weights[i] = w if mine is None else mine if w is None else mine.add_(w)


def pull_back(
    call: Call,
    x: Tensor,
    start: State,
    weights: Sequence[Tensor],
    gy: Tensor | None,
    gends: State | None,
    *,
    wants: tuple[bool, bool] = (False, False),
) -> tuple[State, Tensor | None, list[Tensor | None]]:
    """Run rows once more and pull cotangents of outputs and end states back through them.

    Returns:
        Cotangents of the start states, of x and of the weights (as `wants` says, else None).
    """
    wants_x, wants_weights = wants
    with torch.enable_grad():
        x = x.detach().requires_grad_(wants_x)
        state = tuple(s.detach().requires_grad_() for s in start)
        leaves = [w.detach().requires_grad_(wants_weights) for w in weights]
        y, ends = call.kernel(x, state, leaves, True)
    outputs: list[Tensor] = []
    cotangents: list[Tensor] = []
    if gy is not None:
        outputs.append(y)
        cotangents.append(gy)
    if gends is not None:
        outputs.extend(ends)
        cotangents.extend(gends)
    inputs = [*state, *([x] if wants_x else []), *(leaves if wants_weights else [])]
    if not outputs:
        return tuple(torch.zeros_like(s) for s in start), None, [None] * len(weights)
    grads = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    n = len(state)
    gstate = tuple(
        torch.zeros_like(s) if g is None else g for s, g in zip(start, grads[:n], strict=True)
    )
    return (
        gstate,
        grads[n] if wants_x else None,
        list(grads[n + wants_x :]) if wants_weights else [None] * len(weights),
    )


class Adjoint:
    """The backward pass of a call."""

    def __init__(
        self,
        call: Call,
        x: Tensor,
        start: State,
        weights: Sequence[Tensor],
        wants: tuple[bool, bool],
    ) -> None:
        self.call, self.x, self.start, self.weights = call, x, start, weights
        self.wants = wants
        self.layout = call.layout
        self.sum = _Gradients(torch.zeros_like(x) if wants[0] else None)
        self.report = call.report.adjoint = Report(
            "converged", 1, width=call.plan.width, chunks=self.layout.rows
        )

    def _pass(
        self, rows: Any, x: Tensor, start: State, gy: Tensor | None, gends: State | None
    ) -> State:
        """Pull cotangents back through some rows, and add up what they yield for x and weights."""
        blocks = self.call.blocks(x.shape[1], 2 * x.shape[0], x)
        parts = []
        for block in blocks:
            gstate, gx, gw = pull_back(
                self.call,
                x[:, block],
                tuple(s[block] for s in start),
                self.weights,
                None if gy is None else gy[:, block],
                None if gends is None else tuple(g[block] for g in gends),
                wants=self.wants,
            )
            parts.append(gstate)
            self.sum.add(block if rows is None else rows[block], gx, gw)
        return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))

    def _burn_in(self, gy: Tensor | None, final: State) -> State:
        """Estimates of the cotangents of all rows' ends."""
        call, w = self.call, self.call.plan.width
        steps = max(call.plan.burn_in, call.plan.adjoint)
        warm, partial = divmod(steps, w)
        if partial == 0 and warm:
            warm, partial = warm - 1, w
        self.report.burn_in, self.report.depth = steps, 2 * (steps + w)
        gstart = call.kernel.zeros(self.layout.rows, self.x)
        if gy is None:
            return self.layout.join(gstart, final)[1]
        if partial:
            gstart = self._states(partial, gy, None)
        for _ in range(warm):
            gstart = self._states(w, gy, self.layout.join(gstart, final)[1])
        return self.layout.join(gstart, final)[1]

    def _states(self, steps: int, gy: Tensor, gends: State | None) -> State:
        parts = []
        for block in self.call.blocks(self.layout.rows, 2 * steps, self.x):
            parts.append(
                pull_back(
                    self.call,
                    self.x[:steps, block],
                    tuple(s[block] for s in self.start),
                    self.weights,
                    gy[:steps, block],
                    None if gends is None else tuple(g[block] for g in gends),
                )[0]
            )
        return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))

    def solve(self, gy: Tensor | None, final: State) -> State:
        """Add up all gradients; returns the cotangents of the sequences' first states."""
        call, report, w = self.call, self.report, self.call.plan.width
        ends = self._burn_in(gy, final)
        gstart = self._pass(None, self.x, self.start, gy, ends)
        first, found = self.layout.join(gstart, final)
        missing = tuple(f - e for f, e in zip(found, ends, strict=True))
        scale = torch.stack([f.abs().amax() for f in found]).amax()
        report.tolerance = call.adjoint_tolerance
        if call.passes is not None:
            for _ in range(call.passes - 1):
                gstart = self._pass(None, self.x, self.start, None, missing)
                more, missing = self.layout.join(gstart, tuple(map(torch.zeros_like, final)))
                first = tuple(a + b for a, b in zip(first, more, strict=True))
                report.passes, report.depth = report.passes + 1, report.depth + 2 * w
            gap = torch.stack([m.abs().amax() for m in missing]).amax()
            report._residual = gap / scale.clamp(min=torch.finfo(scale.dtype).tiny)
            return first

        gaps, size = self._read(missing, scale)
        start_gap = gaps.max(initial=0.0) / size
        spent, budget = 0.0, EXTRA_SHARE * call.plan.serial_us
        last = math.inf
        none = tuple(map(torch.zeros_like, final))
        while True:
            moved = np.nonzero(~(gaps <= call.adjoint_tolerance * size))[0]
            gap = gaps.max(initial=0.0)
            report._residual = gap / size
            if not len(moved) or not math.isfinite(gap):
                break
            spent += w * call.plan.step_us(len(moved))
            if spent > budget or (gap > 0.5 * last and len(moved) > 1):
                more = self._serially(missing, int(self.layout.chunk[moved].max()))
                first = tuple(a + b for a, b in zip(first, more, strict=True))
                report.status, report._residual = "fell_back", 0.0
                report.first_unconverged_step = (int(self.layout.chunk[moved].max()) + 1) * w
                break
            last = gap
            index = torch.from_numpy(moved).to(self.x.device)
            part = self._pass(
                index,
                self.x.index_select(1, index),
                tuple(s[index] for s in self.start),
                None,
                tuple(m[index] for m in missing),
            )
            gstart = tuple(torch.zeros_like(s) for s in self.start)
            for g, p in zip(gstart, part, strict=True):
                g[index] = p
            # What is below the tolerance stays where it is: it may add up to more.
            left = tuple(m.index_fill(0, index, 0) for m in missing)
            more, found = self.layout.join(gstart, none)
            first = tuple(a + b for a, b in zip(first, more, strict=True))
            missing = tuple(a + b for a, b in zip(left, found, strict=True))
            report.passes, report.depth = report.passes + 1, report.depth + 2 * w
            gaps, _ = self._read(missing, scale)
        if report.passes > 1 or report.status == "fell_back":
            self._learn(start_gap)
        return first

    def _read(self, missing: State, scale: Tensor) -> tuple[np.ndarray, float]:
        parts = torch.stack([m.abs().amax(1) for m in missing]).amax(0)
        read = torch.cat([parts, scale[None]]).double().cpu().numpy()
        return read[:-1], max(float(read[-1]), 1e-300)

    def _learn(self, gap: float) -> None:
        """A burn-in that would have been enough, from how far this one came."""
        steps, tolerance = self.report.burn_in, self.call.adjoint_tolerance
        if 0 < gap < 0.1:
            steps = math.ceil(steps * min(4.0, 1.1 * math.log(0.3 * tolerance) / math.log(gap)))
            self.call.history.adjoint = 8 * math.ceil(steps / 8)

    def _serially(self, missing: State, chunk: int) -> State:
        """Pull missing cotangents back chunk after chunk, from one to the first."""
        layout = self.layout
        self.report.depth += 2 * (chunk + 1) * self.call.plan.width
        carry = tuple(m.new_zeros(layout.sequences, m.shape[1]) for m in missing)
        for p in range(chunk, -1, -1):
            rows = np.nonzero(layout.chunk == p)[0]
            sequences = torch.from_numpy(layout.sequence[rows]).to(self.x.device)
            here = slice(int(rows[0]), int(rows[-1]) + 1)
            gends = tuple(m[here] + c[sequences] for m, c in zip(missing, carry, strict=True))
            index = torch.arange(here.start, here.stop, device=self.x.device)
            part = self._pass(
                index, self.x[:, here], tuple(s[here] for s in self.start), None, gends
            )
            for c, g in zip(carry, part, strict=True):
                c[sequences] = g
        return carry


class Relax(torch.autograd.Function):
    """Outputs and final states of chunks, (w, rows, features), as a differentiable function.

    Saves inputs, start states and weights: nothing else, so that backward runs the chunks again.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Arguments: the call, rows of inputs, the sequences' first states, the weights."""
        n = len(call.kernel.sizes)
        first, weights = tensors[:n], tensors[n:]
        ctx.call = call
        ctx.set_materialize_grads(False)
        y, start, ends = call.solve(x, first, call.kernel.flat(weights))
        if call.kept is not None:
            y = y.index_select(1, call.kept)
            start = tuple(s.index_select(0, call.kept) for s in start)
            ends = tuple(e.index_select(0, call.kept) for e in ends)
        final = call.layout.split(first, ends)[1]
        ctx.save_for_backward(x, *start, *weights)
        # Views of what backward needs would be outputs that share memory with it.
        return (y, *(f.clone() for f in final))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gy: Tensor | None, *gfinal: Tensor | None) -> tuple[Any, ...]:
        """Cotangents of the rows, the first states and the weights."""
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
        wants = (ctx.needs_input_grad[1], any(ctx.needs_input_grad[2 + n :]))
        if call.layout.rows == 0:
            gx = torch.zeros_like(whole) if wants[0] else None
            return (None, gx, *final, *map(torch.zeros_like, weights))
        adjoint = Adjoint(call, x, start, call.kernel.flat(weights), wants)
        if gy is not None:
            gy = gy.contiguous()
        first = adjoint.solve(gy, final)
        gx = adjoint.sum.x
        if call.kept is not None and gx is not None:
            gx = torch.zeros_like(whole).index_copy(1, call.kept, gx)
        gw = adjoint.sum.weights or [None] * len(weights)
        return (None, gx, *first, *gw)
