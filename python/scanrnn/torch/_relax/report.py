"""What a call did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Status = Literal["converged", "not_converged", "fell_back", "serial"]


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
        error_estimate: of the outputs against the serial kernel's in the same precision: four times
            the residual times what the network makes of it, plus rounding likewise. inf if the
            serial kernel went on in a network that was not seen to forget: where that is chaotic,
            every way of rounding takes a path of its own, and what holds is the residual alone.
        first_unconverged_step: the step, in the layer's direction, from which the serial kernel
            ran instead, for the sequences that had not converged; None if all had.
        tolerance: what the residual was compared with. A residual of up to 8 times as much counts
            as rounding, if a further pass left it as it was and no tolerance was asked for.
        width: steps of a chunk.
        chunks: number of chunks, over all sequences.
        burn_in: steps that gave the first estimate of a start state; 0 for a network that forgets
            so slowly that passes over wide chunks took their place.
        depth: steps that followed one another, of all runs: the serial kernel has T.
        adjoint: the same for the backward pass, once it has been.
        layers: reports of every layer and direction, in the order of the final states, of which
            the fields above are the worst.
        pause: serial because an earlier call did not converge, or a probe said that it wouldn't;
            it is tried again some calls later.
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
    pause: bool = False
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
        return 4 * self.residual * self._amplification + self._rounding

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
            residual = super().__getattribute__("residual")
            return value if residual <= super().__getattribute__("tolerance") else "not_converged"
        return value


_WORST: dict[Status, int] = {"serial": 0, "converged": 1, "fell_back": 2, "not_converged": 3}


def worst(reports: Sequence[Report]) -> Report:
    """One report of several layers and directions."""
    if len(reports) == 1:
        return reports[0]
    steps = [r.first_unconverged_step for r in reports if r.first_unconverged_step is not None]
    status: Status
    fixed = [r for r in reports if isinstance(r, FixedReport)]
    most: Report
    if fixed:  # whose status is not to be asked for here
        most, status = fixed[0], "converged"
    else:
        most = max(reports, key=lambda r: (_WORST[r.status], r.passes))
        status = most.status
    return (FixedReport if fixed else Report)(
        status=status,
        passes=max(r.passes for r in reports),
        first_unconverged_step=min(steps, default=None),
        tolerance=most.tolerance,
        width=most.width,
        chunks=most.chunks,
        burn_in=most.burn_in,
        depth=sum(r.depth for r in reports),
        layers=tuple(reports),
    )
