"""What the calls of cells on NumPy, CuPy and DLPack arrays have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from . import _core
from ._array import (
    ACCUMULATION,
    REAL,
    Descriptor,
    Frontend,
    adopt,
    device_options,
    give_back,
    owner_of,
    require_one_framework,
)
from ._array._types import FLOAT64
from ._array.layout import Descriptors, Layout, PaddingSide, expect_dtype, expect_shape
from ._array.options import activation_number, real_number, solver_numbers
from ._solve_report import COLUMNS, SolveReport

Activation: TypeAlias = Literal["identity", "tanh", "relu", "silu", "sigmoid", "positive"]
SruActivation: TypeAlias = Literal["identity", "tanh", "relu"]


class SequenceOptions(TypedDict, total=False):
    """Where the time axis and the sequences are, as in `scanrnn.scan`."""

    axis: int
    reverse: bool
    cu_seqlens: Any
    lengths: Any
    reset: Any
    padding_side: PaddingSide


class SolveOptions(SequenceOptions, total=False):
    """How a nonlinear recurrence is solved, as in `diagonal_gru`."""

    tolerance: float | None
    max_passes: int
    segment: int | None


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
    activations: tuple[str, ...] = get_args(Activation)

    @cached_property
    def row(self) -> dict[str, Any]:
        """What the core's table says of the cell."""
        return CELLS[self.cell]

    @cached_property
    def nonlinear(self) -> bool:
        """Whether the core solves its recurrence, and saves all states for backward."""
        return "states" in self.row

    @cached_property
    def states(self) -> tuple[str, ...]:
        """The arguments that are initial states."""
        return self.arguments[-len(self.row.get("states", "h")) :]

    @cached_property
    def main(self) -> str:
        """The argument whose shape counts."""
        return next(n for n in self.arguments if n not in self.optional)

    @cached_property
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
        options: Mapping[str, Any],
        extra: Mapping[str, Any] | None = None,
        *,
        axis: int = -2,
        reverse: bool = False,
        cu_seqlens: Any = None,
        lengths: Any = None,
        reset: Any = None,
        padding_side: PaddingSide = "right",
    ) -> None:
        """Adopt and check the arguments.

        Args:
            fn: the public function, for error texts.
            function: what it computes or differentiates.
            values: the function's arguments, in their order.
            options: its options beside those of sequences.
            extra: more arrays by name, or None: "h", "dh" and "checkpoints"; and states, whose
                names start with "dfinal".
            axis: as in the public functions, and likewise all that follow.
            reverse: see axis.
            cu_seqlens: see axis.
            lengths: see axis.
            reset: see axis.
            padding_side: see axis.
        """
        self.fn = fn
        self.function = function
        main, row = function.main, function.row
        sequences = {"cu_seqlens": cu_seqlens, "lengths": lengths, "reset": reset}
        self.kind: int = row["kind"]
        numbers = self._numbers(options)
        self._vectors = function.vectors
        finals = [n for n in extra or () if n.startswith("dfinal")]
        self._states = (*function.states, *finals)
        self._full = {*function.arguments, "h", "dh"} - {*function.states, *self._vectors}
        if function.nonlinear:  # what backward reads beside the output is as large
            self._full.add("checkpoints")
        required, optional = split(function, values)
        optional |= extra or {}
        library, arrays = adopt(fn, required, optional)
        named = dict(zip([*required, *optional], arrays, strict=True))
        self.library = library
        self._merged: Layout | None = None
        with library.guard(named[main]):
            code = library.describe(fn, main, named[main])[1]
            expect_dtype(fn, main, named[main], code, REAL)
            layout = Layout(
                fn, main, library, named[main], axis, **sequences, padding_side=padding_side
            )
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

    def _numbers(self, options: Mapping[str, Any]) -> list[float]:
        """The values of the cell's options, in the core's order."""
        values = {**self.function.fixed, **options}
        return [
            self._number(row["name"], values[row["name"]]) for row in self.function.row["options"]
        ]

    def _number(self, name: str, value: Any) -> float:
        if name != "activation":
            return real_number(self.fn, name, value)
        return activation_number(self.fn, name, value, self.function.activations)

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

    def new_checkpoints(self) -> Any:
        """What backward reads beside the output; None if nothing."""
        row = self.function.row
        if self.function.nonlinear:
            return self.library.empty_like(self.main) if row["kept_state"] >= 0 else None
        if row["state_is_output"]:
            return None
        return self.library.empty(self.checkpoints_shape, self.state_dtype, self.main)

    @property
    def state_dtype(self) -> Any:
        """The library's dtype of final states."""
        return self.library.dtype(ACCUMULATION[self.layout.code])

    def describe_checkpoints(self, array: Any) -> Any:
        """Descriptor of the checkpoints, checked."""
        if array is None:
            return None
        if self.function.nonlinear:
            return self.layout.full("checkpoints", array)
        descriptor = self.layout.describe("checkpoints", array)
        expect_dtype(self.fn, "checkpoints", array, descriptor[1], [ACCUMULATION[self.layout.code]])
        expect_shape(self.fn, "checkpoints", descriptor[2], self.checkpoints_shape)
        return descriptor


# ---- What all functions do -----------------------------------------------------------------------


def forward(
    function: Function,
    values: Sequence[Any],
    options: Mapping[str, Any],
    *,
    return_final: bool = False,
    return_checkpoints: bool = False,
    return_report: bool = False,
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    **sequences: Unpack[SequenceOptions],
) -> Any:
    """A cell's outputs, and what else was asked for.

    Args:
        function: the public function.
        values: its arguments, in their order.
        options: its options beside those of sequences and solving.
        return_final: as in the public functions, and likewise all that follow; those from
            return_report to segment are for nonlinear cells.
        return_checkpoints: see return_final.
        return_report: see return_final.
        tolerance: see return_final.
        max_passes: see return_final.
        segment: see return_final.
        sequences: see return_final.
    """
    fn, main = function.name, function.main
    like = values[function.arguments.index(main)]
    owner = owner_of(fn, main, like)
    if isinstance(owner, Frontend):
        require_one_framework(fn, *split(function, values))
        if return_checkpoints:
            raise TypeError(
                f"{fn}: return_checkpoints is True, expected False for a {owner.type_name}, which "
                f"differentiates {fn} itself"
            )
        options = dict(options, return_final=return_final)
        if function.nonlinear:
            options |= {"tolerance": tolerance, "max_passes": max_passes, "segment": segment}
            options["return_report"] = return_report
        named = dict(zip(function.arguments, values, strict=True))
        return getattr(owner.module(), fn)(**named, **options, **sequences)
    change, passes, steps = solver_numbers(fn, tolerance, max_passes, segment)
    call = Call(fn, function, values, options, **sequences)
    layout, library = call.layout, call.library
    report = None
    with library.guard(call.main):
        h = library.empty_like(call.main)
        finals: list[Any] = [None] * len(function.states)
        if return_final:
            shape = layout.state_shape
            finals = [library.empty(shape, call.state_dtype, call.main) for _ in finals]
        checkpoints = call.new_checkpoints() if return_checkpoints else None
        inputs, initial = call.describe_arguments(call.arrays)
        h_, kept = layout.full("h", h), call.describe_checkpoints(checkpoints)
        after = [layout.state("final", final) for final in finals]
        if function.nonlinear:
            if return_report:
                rows = (call.sequences, COLUMNS)
                report = library.empty(rows, library.dtype(FLOAT64), call.main)
            _core.solve_forward(
                call.kind,
                inputs,
                initial,
                h_,
                kept,
                after,
                None if report is None else layout.describe("report", report),
                tolerance=change,
                max_passes=passes,
                segment=steps,
                **call.keywords,
            )
        else:
            arrays: Any = (inputs, *initial, h_, *after, kept)
            _core.cell_forward(call.kind, *arrays, **call.keywords)
        results: list[Any] = [give_back(call.restore(main, h), like)]
        if return_final:
            pairs = zip(function.states, finals, strict=True)
            given = tuple(give_back(call.restore(name, final), like) for name, final in pairs)
            results.append(given if len(given) > 1 else given[0])
        if return_checkpoints and checkpoints is None:
            results.append(results[0])
        elif return_checkpoints:
            results.append(give_back(call.restore("checkpoints", checkpoints), like))
    if report is not None:
        results.append(SolveReport(report))
    return tuple(results) if len(results) > 1 else results[0]


def vjp(
    function: Function,
    values: Sequence[Any],
    saved: Mapping[str, Any],
    dh: Any,
    dfinal: Sequence[Any],
    options: Mapping[str, Any],
    **sequences: Unpack[SequenceOptions],
) -> list[Any]:
    """The gradients of a function's arguments, in their order.

    Args:
        function: the public function whose gradients these are.
        values: its arguments, in their order.
        saved: what it returned: its output "h" where that is a state, and "checkpoints" where the
            cell has them.
        dh: as in the public functions.
        dfinal: likewise, one a state.
        options: those of the public function beside those of sequences.
        sequences: as in the public functions.
    """
    fn, main = f"{function.name}_vjp", function.main
    like = values[function.arguments.index(main)]
    owner = owner_of(fn, main, like)
    if isinstance(owner, Frontend):
        raise TypeError(
            f"{fn}: {main} is a {owner.type_name}, which differentiates {function.name} itself; "
            "expected a NumPy, CuPy or DLPack array"
        )
    for name, value in saved.items():
        if value is None:
            raise TypeError(f"{fn}: {name} is None, expected what {function.name} returned")
    finals = [f"dfinal[{k}]" if len(dfinal) > 1 else "dfinal" for k in range(len(dfinal))]
    extra = {**saved, "dh": dh, **dict(zip(finals, dfinal, strict=True))}
    call = Call(fn, function, values, options, extra, **sequences)
    layout, library = call.layout, call.library
    with library.guard(call.main):
        grads = {n: None if v is None else library.empty_like(v) for n, v in call.arrays.items()}
        inputs, initial = call.describe_arguments(call.arrays)
        dinputs, dinitial = call.describe_arguments(grads)
        h_ = layout.full("h", call.extra.get("h"))
        kept = call.describe_checkpoints(call.extra.get("checkpoints"))
        dh_ = layout.full("dh", call.extra["dh"])
        after = [layout.state(n, call.extra[n]) for n in finals]
        if function.nonlinear:
            arrays: Any = (inputs, initial, h_, kept, dh_, after, dinputs, dinitial)
            _core.solve_backward(call.kind, *arrays, **call.keywords)
        else:
            arrays = (inputs, *initial, h_ or kept, dh_, *after, dinputs, *dinitial)
            _core.cell_backward(call.kind, *arrays, **call.keywords)
        return [
            None if v is None else give_back(call.restore(n, v), like) for n, v in grads.items()
        ]


def step(function: Function, values: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The output of one step, and the state or states after it."""
    own = replace(
        function,
        name=f"{function.name}_step",
        arguments=tuple(n.removesuffix("0") for n in function.arguments),
    )
    fn, main = own.name, own.main
    like = values[own.arguments.index(main)]
    required, optional = split(own, values)
    owner = owner_of(fn, main, like)
    if isinstance(owner, Frontend):
        require_one_framework(fn, required, optional)
        h, state = getattr(owner.module(), fn)(**required, **optional, **options)
        return h, state
    _, arrays = adopt(fn, required, optional)
    named = dict(zip([*required, *optional], arrays, strict=True))
    shape = named[main].shape
    if not shape:
        raise ValueError(f"{fn}: {main} has shape (), expected at least a channel axis")
    for name, array in named.items():
        if array is not None and name not in (*own.states, *own.vectors):
            expect_shape(fn, name, array.shape, shape)
            named[name] = array[..., None, :]
    steps = [named[n] for n in own.arguments]
    h, state = forward(own, steps, options, return_final=True)
    states = state if isinstance(state, tuple) else (state,)
    after = tuple(give_back(s, like) for s in states)
    return give_back(h[..., 0, :], like), after if len(after) > 1 else after[0]
