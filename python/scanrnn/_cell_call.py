"""What the calls of cells on NumPy, CuPy and DLPack arrays have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from . import _core
from ._array import ACCUMULATION, REAL, Descriptor, adopt, device_options
from ._array.layout import Descriptors, Layout, PaddingSide, expect_dtype, expect_shape

Activation: TypeAlias = Literal["identity", "tanh", "relu", "silu", "sigmoid", "positive"]
SruActivation: TypeAlias = Literal["identity", "tanh", "relu"]

#: In the order of the core's numbers.
ACTIVATIONS = get_args(Activation)


class SequenceOptions(TypedDict, total=False):
    """Where the time axis and the sequences are, as in `scanrnn.scan`."""

    axis: int
    reverse: bool
    cu_seqlens: Any
    lengths: Any
    reset: Any
    padding_side: PaddingSide


@dataclass(frozen=True)
class Function:
    """A public function: which of the core's cells it is, and what it calls its arguments."""

    name: str
    cell: str
    #: Names of the arguments, the initial states last. The first that may not be None is the main
    #: one, whose shape counts.
    arguments: tuple[str, ...]
    #: The argument for each of the cell's inputs in the core's order; None: the cell goes without.
    inputs: tuple[str | None, ...]
    #: Those that may be None.
    optional: tuple[str, ...] = ()
    #: Values of the cell's options that callers don't have.
    fixed: Mapping[str, float] = field(default_factory=dict)
    activations: tuple[str, ...] = ACTIVATIONS

    @property
    def row(self) -> dict[str, Any]:
        """What the core's table says of the cell."""
        return CELLS[self.cell]

    @property
    def states(self) -> tuple[str, ...]:
        """The arguments that are initial states."""
        return self.arguments[-len(self.row.get("states", "h")) :]

    @property
    def main(self) -> str:
        """The argument whose shape counts."""
        return next(n for n in self.arguments if n not in self.optional)

    @property
    def vectors(self) -> list[str | None]:
        """The arguments with one value a channel."""
        inputs = self.row["inputs"]
        return [n for n, row in zip(self.inputs, inputs, strict=True) if row["vector"]]


#: Linear and nonlinear ones by name.
CELLS: dict[str, dict[str, Any]] = {
    row["name"]: dict(row) for row in [*_core.cell_table(), *_core.nonlinear_cell_table()]
}


def split(function: Function, values: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments by name: those that must be given, and those that may be None."""
    named = dict(zip(function.arguments, values, strict=True))
    may_be_none = {*function.optional, *function.states}
    required = {n: v for n, v in named.items() if n not in may_be_none}
    return required, {n: v for n, v in named.items() if n in may_be_none}


class Call:
    """Arguments of one call of the core's cells.

    Several batch axes are merged into one: a view where the strides allow it, else a copy. (`scan`
    loops over them instead; here forward and backward must agree on one checkpoints array.)
    """

    def __init__(
        self,
        fn: str,
        function: Function,
        values: Sequence[Any],
        options: dict[str, Any],
        axis: int,
        reverse: bool,
        sequences: dict[str, Any],
        padding_side: PaddingSide,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Adopt and check the arguments.

        Args:
            fn: the public function, for error texts.
            function: what it computes or differentiates.
            values: the function's arguments, in their order.
            options: its options beside those of sequences.
            axis: the time axis.
            reverse: as in the public functions.
            sequences: cu_seqlens, lengths and reset.
            padding_side: as in the public functions.
            extra: more arrays by name, or None: "h", "dh" and "checkpoints"; and states, whose
                names start with "dfinal".
        """
        self.fn = fn
        self.function = function
        main, row = function.main, function.row
        self.kind: int = row["kind"]
        numbers = self._numbers(options)
        self._vectors = function.vectors
        finals = [n for n in extra or () if n.startswith("dfinal")]
        self._states = (*function.states, *finals)
        self._full = {*function.arguments, "h", "dh"} - {*function.states, *self._vectors}
        if "states" in row:  # what backward reads beside the output is as large
            self._full.add("checkpoints")
        required, optional = split(function, values)
        optional |= extra or {}
        library, arrays = adopt(fn, required, optional)
        named = dict(zip([*required, *optional], arrays, strict=True))
        self.library = library
        self._merged: Layout | None = None
        with library.guard(named[main]):
            layout = Layout(
                fn, main, library, named[main], axis, **sequences, padding_side=padding_side
            )
            expect_dtype(fn, main, named[main], layout.code, REAL)
            if len(layout.batch) > 1:
                self._merged = layout
                named = {n: self._merge(n, v) for n, v in named.items()}
                rows = math.prod(layout.batch)
                for n, shape in (("lengths", (rows,)), ("reset", (rows, layout.time))):
                    if sequences[n] is not None:
                        value = library.auxiliary(sequences[n], named[main])
                        sequences = sequences | {n: value.reshape(shape)}
                layout = Layout(
                    fn, main, library, named[main], -2, **sequences, padding_side=padding_side
                )
        self.layout = layout
        self.arrays = {n: named[n] for n in function.arguments}
        self.extra = {n: named[n] for n in extra or ()}
        self.main = named[main]
        B, D = math.prod(layout.batch), math.prod(layout.channels)
        self.sequences = N = B if layout.cu_seqlens is None else layout.state_shape[0]
        self.checkpoints_shape = (_core.checkpoint_rows(B, layout.time, N), D)
        self.keywords: dict[str, Any] = {
            "options": numbers,
            "reverse": bool(reverse),
            "cu_seqlens": layout.cu_seqlens,
            "lengths": layout.lengths,
            "reset": layout.reset,
            "left_padded": layout.left_padded,
            **device_options(library, self.main),
        }

    def _numbers(self, options: dict[str, Any]) -> list[float]:
        """The values of the cell's options, in the core's order."""
        values = {**self.function.fixed, **options}
        return [
            self._number(row["name"], values[row["name"]]) for row in self.function.row["options"]
        ]

    def _number(self, name: str, value: Any) -> float:
        if name != "activation":
            return float(value)
        allowed = self.function.activations
        if value not in allowed:
            *first, last = map(repr, allowed)
            raise ValueError(
                f"{self.fn}: activation is {value!r}, expected {', '.join(first)} or {last}"
            )
        return allowed.index(value)

    def _merge(self, name: str, array: Any) -> Any:
        merged = self._merged
        assert merged is not None
        if array is None:
            return None
        rows = math.prod(merged.batch)
        if name in self._full:
            expect_shape(self.fn, name, array.shape, merged.shape)
            return array.transpose(merged.order).reshape(rows, merged.time, *merged.channels)
        if name in self._states:
            expect_shape(self.fn, name, array.shape, merged.state_shape)
            return array.reshape(rows, *merged.channels)
        return array

    def restore(self, name: str, array: Any) -> Any:
        """A result in the axes of the argument of that name: undo the merging of batch axes."""
        merged = self._merged
        if merged is None:
            return array
        if name in self._full:
            inverse = sorted(range(len(merged.order)), key=merged.order.__getitem__)
            return array.reshape(*merged.batch, merged.time, *merged.channels).transpose(inverse)
        return array.reshape(merged.state_shape) if name in self._states else array

    def describe_arguments(self, arrays: dict[str, Any]) -> tuple[Descriptors, Descriptors]:
        """Descriptors of the inputs and the initial states, or of their gradients.

        Arguments that the cell goes without are None.
        """
        vectors = self._vectors
        inputs = [
            None
            if name is None
            else (self._describe_vector if name in vectors else self.layout.full)(
                name, arrays[name]
            )
            for name in self.function.inputs
        ]
        return inputs, [self.layout.state(n, arrays[n]) for n in self.function.states]

    def _describe_vector(self, name: str, array: Any) -> Descriptor | None:
        if array is None:
            return None
        layout = self.layout
        descriptor = layout.describe(name, array)
        expect_dtype(self.fn, name, array, descriptor[1], [layout.code, ACCUMULATION[layout.code]])
        expect_shape(self.fn, name, descriptor[2], layout.channels)
        pointer, code, _, _, device = descriptor
        return descriptor if layout.channels else (pointer, code, (1,), (1,), device)

    def describe_checkpoints(self, array: Any) -> Any:
        """Descriptor of the checkpoints, checked."""
        if array is None:
            return None
        descriptor = self.layout.describe("checkpoints", array)
        expect_dtype(self.fn, "checkpoints", array, descriptor[1], [ACCUMULATION[self.layout.code]])
        expect_shape(self.fn, "checkpoints", descriptor[2], self.checkpoints_shape)
        return descriptor
