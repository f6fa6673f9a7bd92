"""Whether to relax, in chunks of how many steps, after a burn-in of how many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import costs
from .kernel import Kernel, State

Curve = NDArray[np.float64]

SHORTEST = 16  # burn-in
LIKELY = 40  # burn-in, as long as nothing is known
BURN_IN = 48  # steps; weights as initialised forget to 5e-7 in 32 steps, to 1e-7 in 48
MARGIN = 1.15  # times the steps that a call needed
PROBE_MARGIN = 1.25  # times those that a probe needed, at its few places
PROBE_STEPS = 128  # the first length of a probe
PROBE_GROWTH = 4  # of its length, as long as states don't agree: each look waits for the device
PROBE_PLACES = 8  # at which it looks
PROBE_SHARE = 0.035  # of the serial cost is what all of a probe may take
TRIAL_SHARE = 0.05  # of the serial cost is what two passes may take that show that more don't pay
EXTRA_SHARE = 0.08  # of the serial cost are what passes that were not planned may take
GAIN = 1.4  # predicted speed-up below which the serial kernel runs
TRIAL_PASSES = 6  # at most: of more and shorter ones, two tell too little
TRIAL_STEPS = 4  # times what a probe saw, at most, are thought to be needed
NEARLY_SEEN = 1.5  # times what a probe saw, at most, are relied on as if they had been seen
TRIAL_DECAY = 0.1  # of the largest difference is left where a probe ends, or there is no trial
BURN_IN_PARTS = range(1, 4)  # of a burn-in: widths weighed too; a last quarter teaches too little
CHUNKS = range(8, 65)  # of the longest sequence, where passes are the burn-in
WIDTHS = [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192]

# Networks that forget slowly get passes over wide chunks (`choose_trial`): an LSTM of 64 units,
# forget biases +3, T = 65,280 in 47 chunks, six passes, on an H200: forward 8 ms, with backward 22,
# serially 42 and 87. What else was weighed:
# - Tangents of ends by starts, 2 H more rows a chunk. By `costs`, a pass takes 48 ms at 64 units,
#   and 11.5 at 32, two of which are two thirds of the serial 35; six without them take 5.
# - Starts from the step of training before. Passes until ends agree to 8e-6, T = 12,000 in 24
#   chunks, biases +2 and +3: from zero 2 and 4 (32 units), 2 and 8 (64); for the same sequence,
#   from starts before all weights moved by 1e-4, 2 and 3, 2 and 6, by 1e-3 2 and 3, 2 and 8; from
#   another sequence's 2 and 4, 2 and 9. And bits would depend on the calls before.
#
# A step of 336 rows, LSTM of 256 units, takes 18.8 us forward and 21.9 backward. What was weighed
# to make it less (tests/bench/RESULTS.md, Training):
# - A burn-in's first part in float16: 12.3 us forward, which is the time of the host's launches;
#   backward nothing, as it would have to run forward again. It ends 1e-3 off, which takes back the
#   steps from there: 100 of 384 could be had, 0.5 ms of 26. Larger networks: 43 us to 12 for 512
#   units, 67 to 13 for 1024 (170 rows).
# - Halves of the rows on two streams: 28.9 us forward, 69.7 with backward; in a graph 24.0, 52.0.


@dataclass
class History:
    """What calls of one layer and direction learned.

    Attributes:
        needed: steps after which runs from different states agreed to the tolerance; None if that
            isn't known.
        burn_in: what was chosen from that; changed only where it no longer fits, so that repeated
            calls keep the bits of their results.
        guess: it was chosen from what a probe saw, not from a call.
        adjoint: the same for cotangents, where they needed more than states.
        slow: steps that states may take to agree, if a probe did not see them do so, else 0.
        pause: calls to run serially before the next probe.
        failures: probes and calls in a row that did not converge.
    """

    needed: int | None = None
    burn_in: int = 0
    guess: bool = False
    adjoint: int = 0
    slow: int = 0
    pause: int = 0
    failures: int = 0

    def learn(self, needed: int, *, bound: bool = False, probe: bool = False) -> None:
        """Take note of steps that were enough; as a bound, if maybe fewer are.

        A probe sees few places, and its states are further apart than most: where it says that
        memory is long, a call may correct it.
        """
        guess, self.guess = self.guess, probe
        self.needed, self.failures = needed, 0
        if bound:
            self.guess = guess
            self.burn_in = needed if needed <= 0.75 * self.burn_in else self.burn_in
            return
        wanted = self.wanted(needed, PROBE_MARGIN if probe else MARGIN)
        slack = 1 if guess and self.burn_in > PROBE_STEPS else 2
        if not needed <= self.burn_in <= slack * wanted:
            self.burn_in = wanted

    @staticmethod
    def wanted(needed: int, margin: float = PROBE_MARGIN) -> int:
        """The burn-in for a network that needs so many steps."""
        return max(SHORTEST, 8 * math.ceil((margin * needed + 4) / 8))

    def fail(self) -> None:
        """It did not converge: run serially for a while, longer each time."""
        self.needed, self.burn_in, self.adjoint, self.slow = None, 0, 0, 0
        self.failures += 1
        self.pause = min(2**self.failures, 64)


@dataclass(frozen=True)
class Plan:
    """How to cut sequences into chunks.

    Attributes:
        kernel: the layer.
        width: steps w of a chunk.
        burn_in: steps K before each pass that counts; whole multiples of w in it are passes.
        device_type: of the tensors.
        dtype: of the tensors.
        serial_us: predicted time of the serial kernel, forward or forward and backward; inf if
            chunks are wanted at any price.
        us: predicted time of the relaxation.
        adjoint: the burn-in of the backward pass, if that is longer: because cotangents need more
            steps, or because whole passes are cheaper (see `choose`). Kept from the forward pass
            on, so that backward again gives the same bits.
        trial: there is no burn-in, and passes go on for as long as they bring states together.
    """

    kernel: Kernel
    width: int
    burn_in: int
    device_type: str
    dtype: torch.dtype
    serial_us: float
    us: float
    adjoint: int = 0
    trial: bool = False

    @property
    def extra_us(self) -> float:
        """What passes may take that were not planned."""
        return math.inf if self.trial else EXTRA_SHARE * self.serial_us

    def stalls(self, passes: int, contraction: float) -> bool:
        """Whether the last pass brought too little together.

        A network that forgets slowly begins slowly, too.
        """
        return contraction > (0.8 if self.trial and passes == 2 else 0.5)

    def pass_us(self, rows: int, grad: bool) -> float:
        """Predicted time of a pass over that many chunks."""
        return costs.run_us(self.kernel, self.width, rows, self.device_type, self.dtype, grad, True)


def _cost_of_runs(
    kernel: Kernel, device_type: str, dtype: torch.dtype
) -> Callable[[float, float, bool, bool], float]:
    """`costs.run_us` of steps, rows, grad and many."""

    def run(steps: float, rows: float, grad: bool, many: bool) -> float:
        return costs.run_us(kernel, steps, rows, device_type, dtype, grad, many)

    return run


def probe_steps(kernel: Kernel, sequences: int, longest: int, x: Tensor, grad: bool) -> int:
    """Steps that a probe may take: of small layers and short sequences two looks in any case."""
    run = _cost_of_runs(kernel, x.device.type, x.dtype)
    call = costs.machine(x.device.type).call[0]
    step = run(1e4, 2 * PROBE_PLACES, False, False) / 1e4
    steps = (PROBE_SHARE * run(longest, sequences, grad, False) - call) / step
    two_looks = min(PROBE_GROWTH * PROBE_STEPS, longest // 25)
    return min(max(int(steps), two_looks, BURN_IN), longest // 2)


def split(burn_in: int, width: int) -> tuple[int, int]:
    """A burn-in as steps of a first run, and whole passes after it."""
    passes, first = divmod(burn_in, width)
    return (width, passes - 1) if passes and not first else (first, passes)


@lru_cache(maxsize=4096)
def choose(
    kernel: Kernel,
    sequences: int,
    longest: int,
    total: int,
    device_type: str,
    dtype: torch.dtype,
    grad: bool,
    burn_in: int,
    width: int | None = None,
    force: bool = False,
    keeps: bool = False,
    adjoint: int = 0,
) -> Plan | None:
    """The chunks that take least time, or None where the serial kernel does.

    Args:
        kernel: the layer.
        sequences: number of them.
        longest: steps of the longest.
        total: steps of all.
        device_type: where it runs.
        dtype: in what.
        grad: whether a backward pass follows.
        burn_in: steps.
        width: of chunks, if that is given.
        force: chunks even if they are slower.
        keeps: whether the backward pass finds what the forward pass left. Then whole passes of its
            burn-in don't run the chunks again, and a longer one of these alone may take less.
        adjoint: steps that cotangents need, if they are known to need more.
    """
    if not total:
        return None

    run = _cost_of_runs(kernel, device_type, dtype)
    serial = run(longest, total / longest, grad, False)
    machine = costs.machine(device_type)
    around, call = machine.relaxation, machine.call
    steps = max(burn_in, adjoint)  # of the backward pass, if none is rounded up

    def backward(w: int) -> tuple[float, int]:
        """Time of the backward pass, and its burn-in."""
        passes, first = divmod(steps, w)
        one = run(w, total / w, True, True)
        again = one - (run(w, total / w, False, True) if keeps else 0.0)
        us = around[1] + one + passes * again
        partly = run(first, total / w, True, True) + call[1] * (passes > 0) if first else 0.0
        if keeps and again < partly:
            return us + again, (passes + 1) * w
        return us + partly, steps

    def chunks(w: int) -> float:
        us = around[0] + (1 + burn_in // w) * run(w, total / w, False, True)
        if first := burn_in % w:
            us += run(first, total / w, False, True) + call[0] * (burn_in > w)
        return us + (backward(w)[0] if grad else 0.0)

    def cost(w: int) -> float:
        rest = longest % w
        return chunks(w) + (run(rest, sequences, grad, False) if rest else 0.0)

    if width is None:
        parts = [math.ceil(steps / n) for n in BURN_IN_PARTS if keeps and grad]
        widths = [w for w in sorted({*WIDTHS, *parts}) if WIDTHS[0] <= w <= longest // 2]
        if force and not widths and longest >= 2:
            widths = [longest // 2]
        if not widths:
            return None
        best = min(widths, key=chunks)
        # Near it, one that leaves few steps over, or none: the widest of so many chunks.
        most = min(best + max(1, best // 5), longest // 2)
        near = {longest // n for n in range(longest // most, longest // best + 1)}
        width = min((w for w in near | {best} if best <= w <= most), key=lambda w: (cost(w), w))
    if longest < 2 * width or (not force and cost(width) * GAIN > serial):
        return None
    return Plan(
        kernel,
        width,
        burn_in,
        device_type,
        dtype,
        math.inf if force else serial,
        cost(width),
        backward(width)[1] if grad else adjoint,
    )


@lru_cache(maxsize=4096)
def choose_trial(
    kernel: Kernel,
    sequences: int,
    longest: int,
    total: int,
    device_type: str,
    dtype: torch.dtype,
    grad: bool,
    steps: int,
    width: int | None = None,
) -> Plan | None:
    """The chunks for a network that is thought to forget after so many steps, or None.

    That many are too many to rely on: where they are not enough, a burn-in is lost. Passes over
    wide chunks are not. Each leaves one more chunk right, and two of them tell how fast states come
    together: then they go on, or the serial kernel does from there. Arguments are those of
    `choose`, with the burn-in that would be needed.
    """
    run = _cost_of_runs(kernel, device_type, dtype)
    serial = run(longest, total / longest, grad, False)
    around = sum(costs.machine(device_type).relaxation[: 1 + grad])
    best = None
    for w in [width] if width else [longest // n for n in CHUNKS if n <= longest]:
        passes = 2 + math.ceil(steps / w)  # the last shows that nothing moves any more
        one = run(w, total / w, False, True)
        us = around + passes * one
        if grad:
            us += (passes - 1) * run(w, total / w, True, True)
        if rest := longest % w:
            us += run(rest, sequences, grad, False)
        trial = 2 * one - (0 if grad else run(2 * w, sequences, False, False))
        fits = (
            2 * w <= longest
            and passes <= TRIAL_PASSES
            and us * GAIN <= serial
            and trial <= TRIAL_SHARE * serial
        )
        if fits and (best is None or us < best.us):
            best = Plan(kernel, w, 0, device_type, dtype, serial, us, trial=True)
    return best


def decayed(curve: Curve, tolerance: float) -> int | None:
    """Steps after which a difference stays within the tolerance; None if it doesn't."""
    above = np.nonzero(~(curve <= tolerance))[0]
    if not len(above):
        return 1
    return None if above[-1] + 1 >= len(curve) else int(above[-1]) + 2


def extrapolated(curve: Curve, tolerance: float) -> int | None:
    """The same for a difference that has begun to decay; None if it has not.

    Fits a line to the logarithms of the second half. The largest of many differences decays slowly
    at first: more than TRIAL_STEPS times what was seen is not believed.
    """
    half = curve[len(curve) // 2 :]
    decays = np.isfinite(curve).all() and 0 < half[-1] <= TRIAL_DECAY * curve.max()
    if not decays or len(half) < 2:
        return None
    t = np.arange(len(half)) - (len(half) - 1) / 2
    slope = float(t @ np.log(np.maximum(half, 1e-300)) / (t @ t))
    if slope >= 0:
        return None
    steps = len(curve) + math.log(tolerance / float(half[-1])) / slope
    return math.ceil(min(steps, TRIAL_STEPS * len(curve)))


class Probe(NamedTuple):
    """Steps after which states agree, and whether that was seen, or nearly, or is a guess."""

    steps: int
    sure: bool


def probe(
    kernel: Kernel,
    windows: Callable[[int, int], Tensor],
    weights: Sequence[Tensor],
    longest: int,
    tolerance: float,
    choose: Callable[[int], Plan | None],
) -> Probe | None:
    """Steps after which runs from different states agree, as seen at some places.

    Two runs, from zero and from an arbitrary state, see the same inputs, PROBE_GROWTH times as many
    each time until they agree, or until a burn-in of what has passed would not pay.

    Args:
        kernel: the layer.
        windows: (start, stop) to inputs (stop - start, places, features).
        weights: of the layer.
        longest: steps that may be taken.
        tolerance: of agreement.
        choose: the plan for a burn-in of so many steps, None if that doesn't pay.

    Returns:
        The number of steps, or None if the network does not seem to forget.
    """
    done, length = 0, min(PROBE_STEPS, longest)
    differences: list[Tensor] = []
    state: State = ()
    curve: Curve = np.empty(0)
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
            return Probe(steps, True)
        done, length = length, min(PROBE_GROWTH * length, longest)
        if choose(done) is None or not np.isfinite(curve[-1]):
            return None
    steps = extrapolated(curve, tolerance) if len(curve) else None
    if steps is None:
        return None
    nearly = steps <= NEARLY_SEEN * len(curve) and choose(History.wanted(steps)) is not None
    return Probe(steps, nearly)
