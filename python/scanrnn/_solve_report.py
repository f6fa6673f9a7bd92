"""What solving a nonlinear recurrence in parallel took."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["COLUMNS", "SolveReport", "SolveStatus", "WorstSequence"]

SolveStatus: TypeAlias = Literal["converged", "fell_back", "serial"]

#: Columns of a report's rows.
COLUMNS = 6
#: In the order of the core's numbers.
_STATUS = ("converged", "fell_back", "serial")


class WorstSequence(NamedTuple):
    """The worst of all sequences: `SolveReport.worst`."""

    status: SolveStatus
    passes: int
    residual: float
    error_estimate: float
    first_unconverged: int
    serial_channels: int


@dataclass(frozen=True, eq=False, repr=False)
class SolveReport:
    """How each of N sequences was solved: the worst of its channels.

    A segment's start that moves by no more than the tolerance has come to rest; where all have, the
    starts are the serial recurrence's to about `error_estimate`. So are the steps between them if
    the recurrence forgets; close to chaos errors there grew to some ten times as much. Channels
    that don't get there keep segments that have, and run the others serially. (Where a recurrence
    is chaotic, every way of rounding takes a path of its own, the serial one too. What holds then
    is the residual.)

    Nothing waits for a device before a field is read.

    Attributes:
        rows: (N, 6) float64, an array of any library, on any device.
    """

    rows: Any

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        rows = self.rows
        if hasattr(rows, "detach"):  # PyTorch
            rows = rows.detach().cpu().numpy()
        elif hasattr(rows, "get"):  # CuPy
            rows = rows.get()
        table = np.array(rows, np.float64).reshape(-1, COLUMNS)
        table.setflags(write=False)
        return table

    @cached_property
    def status(self) -> NDArray[np.str_]:
        """(N,) "converged", "fell_back" (some channels, in part, to serial) or "serial" (all)."""
        return np.array(_STATUS)[self._table[:, 0].astype(np.intp)]

    @property
    def passes(self) -> NDArray[np.int64]:
        """(N,) runs of the segments, the most of any channel; 0 if serial."""
        return self._table[:, 1].astype(np.int64)

    @property
    def residual(self) -> NDArray[np.float64]:
        """(N,) largest |end - start of the next| over the segments that came to rest."""
        return self._table[:, 2]

    @property
    def error_estimate(self) -> NDArray[np.float64]:
        """(N,) largest increment that a start at rest would still have had."""
        return self._table[:, 3]

    @property
    def first_unconverged(self) -> NDArray[np.int64]:
        """(N,) first step, in the order of the pass, that was run serially after all, or -1."""
        return self._table[:, 4].astype(np.int64)

    @property
    def serial_channels(self) -> NDArray[np.int64]:
        """(N,) channels that fell back."""
        return self._table[:, 5].astype(np.int64)

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @cached_property
    def worst(self) -> WorstSequence:
        """One row for all sequences; of the serial channels, their sum."""
        by_badness: tuple[SolveStatus, ...] = ("fell_back", "converged", "serial")
        found = set(self.status.tolist())
        steps = self.first_unconverged[self.first_unconverged >= 0]
        return WorstSequence(
            next((status for status in by_badness if status in found), "serial"),
            int(self.passes.max(initial=0)),
            float(self.residual.max(initial=0)),
            float(self.error_estimate.max(initial=0)),
            int(steps.min()) if steps.size else -1,
            int(self.serial_channels.sum()),
        )

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={value:.1e}" if isinstance(value, float) else f"{name}={value!r}"
            for name, value in self.worst._asdict().items()
        )
        return f"SolveReport({len(self)} sequences, worst: {fields})"
