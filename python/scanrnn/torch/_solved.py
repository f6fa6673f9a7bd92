"""What the layers with nonlinear cells have in common: how they are solved, and the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from scanrnn._array.options import solver_numbers
from scanrnn._solve_report import COLUMNS, SolveReport

from . import _solve
from ._arguments import Sequences, state_dtype
from ._ops import OptTensor
from ._recurrent import Recurrent, StateT

# From PyTorch 2.7 on. Before, compiled modules keep no reports either.
_is_exporting: Callable[[], bool] = getattr(
    torch.compiler, "is_exporting", torch.compiler.is_compiling
)


class Solved(Recurrent[StateT]):
    """Base of layers whose cells are nonlinear, see `scanrnn.torch.diagonal`."""

    _common_defaults: ClassVar[dict[str, Any]] = {
        **Recurrent._common_defaults,
        "tolerance": None,
        "max_passes": 8,
        "segment": None,
    }

    def _solve_by(self, tolerance: float | None, max_passes: int, segment: int | None) -> None:
        """Take the solver's arguments; part of a constructor."""
        solver_numbers(self._fn, tolerance, max_passes, segment)
        self.tolerance = tolerance
        self.max_passes = max_passes
        self.segment = segment
        #: Of the last call: (layers * directions, N, columns), without N for one sequence.
        self._report: Tensor | None = None

    @property
    def last_report(self) -> tuple[SolveReport, ...]:
        """Reports of the last call, layer by layer and direction by direction, as h_n's rows.

        Looking into one waits for the device. There are none before the first call, after calls
        under torch.func's transforms, and in an exported program.
        """
        rows = () if self._report is None else self._report
        return tuple(SolveReport(report.reshape(-1, COLUMNS)) for report in rows)

    def _whole(self, finals: Sequence[Tensor]) -> StateT:
        *finals, report = finals
        if not _is_exporting():
            transformed = torch._C._are_functorch_transforms_active()
            self._report = None if transformed else report
        return super()._whole(finals)

    def _solve(
        self,
        kind: str,
        inputs: Sequence[OptTensor],
        vectors: Sequence[OptTensor],
        given: Sequence[bool],
        states: Sequence[OptTensor],
        options: Sequences,
        numbers: Sequence[float],
        blocks: int,
        bias: OptTensor = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A nonlinear cell on (B, T, ...) inputs in the operator's form: output, final states.

        Behind the states comes the report, (directions, N, columns). It is a part of what a call
        returns, up to `_whole`, since other threads may call the module at the same time.

        Args:
            kind: the cell's name in the core's table.
            inputs: (B, T, ...), those that are not in the first one's blocks in their places.
            vectors: one or two parameters (directions * rows * hidden_size,): the cell's vectors.
            given: which vectors of the table they are.
            states: initial states.
            options: the sequences.
            numbers: the cell's options.
            blocks: how many inputs are in the first one, for each direction.
            bias: a parameter (directions * blocks * hidden_size,) that the first one has already,
                detached: it gets its gradient here.
        """
        u, d = inputs[0], self._directions
        assert u is not None
        own = [
            None if t is None else t.unflatten(0, (d, -1, self.hidden_size))
            for t in (state_dtype(self._fn, "weight", t, u) for t in (*vectors, bias))
        ]
        *weights, bias = own
        y, finals, report = _solve.solve(
            *inputs,
            *(None,) * (_solve.SLOTS - len(inputs)),
            *weights,
            *(None,) * (2 - len(weights)),
            bias,
            *(
                state_dtype(self._fn, name, t, u)
                for name, t in zip(self._states, states, strict=True)
            ),
            *(None,) * (_solve.STATES - len(states)),
            *options,
            _solve.KINDS[kind],
            numbers,
            given,
            blocks,
            d,
            *solver_numbers(self._fn, self.tolerance, self.max_passes, self.segment),
        )
        return y, (*finals, report)
