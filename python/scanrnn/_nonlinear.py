"""Nonlinear cells with diagonal recurrent weights: parts of `scanrnn.cells`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, Unpack, get_args, overload

from . import _core, _docs
from ._array import ACCUMULATION, Array, Frontend, give_back, owner_of, require_one_framework
from ._array._types import FLOAT64
from ._array.layout import PaddingSide
from ._cell_call import Call, Function, SequenceOptions, SruActivation, split
from ._solve_report import COLUMNS, SolveReport

ArrayT = TypeVar("ArrayT")
_documented = _docs.documented(_docs.NUMPY)
IndRnnActivation: TypeAlias = Literal["identity", "tanh", "relu"]


class SolveOptions(SequenceOptions, total=False):
    """How a nonlinear recurrence is solved, as in `diagonal_gru`."""

    tolerance: float | None
    max_passes: int
    segment: int | None


class DiagonalGruGrads(NamedTuple):
    """Gradients of `diagonal_gru`, like their arguments; None where these were None."""

    r: Any
    z: Any
    n: Any
    u_r: Any
    u_z: Any
    u_n: Any
    b_n: Any
    h0: Any


class DiagonalLstmGrads(NamedTuple):
    """Gradients of `diagonal_lstm`, likewise."""

    i: Any
    f: Any
    g: Any
    o: Any
    u_i: Any
    u_f: Any
    u_g: Any
    u_o: Any
    w_i: Any
    w_f: Any
    w_o: Any
    h0: Any
    c0: Any


class IndRnnGrads(NamedTuple):
    """Gradients of `indrnn`, likewise."""

    p: Any
    u: Any
    h0: Any


class RecurrentSruGrads(NamedTuple):
    """Gradients of `sru` with v_f and v_r, likewise."""

    u: Any
    f: Any
    r: Any
    skip: Any
    bias_f: Any
    bias_r: Any
    v_f: Any
    v_r: Any
    c0: Any


_GRU = Function(
    "diagonal_gru",
    "diagonal_gru",
    DiagonalGruGrads._fields,
    ("r", "z", "n", "u_r", "u_z", "u_n", "b_n"),
    ("b_n",),
)
_LSTM = Function(
    "diagonal_lstm",
    "diagonal_lstm",
    DiagonalLstmGrads._fields,
    ("f", "g", "o", "i", "u_f", "u_g", "u_o", "u_i", "w_f", "w_o", "w_i"),
    ("i", "u_i", "w_i", "w_f", "w_o"),
)
_INDRNN = Function(
    "indrnn", "indrnn", IndRnnGrads._fields, ("p", "u"), activations=get_args(IndRnnActivation)
)
_SRU = Function(
    "sru",
    "recurrent_sru",
    RecurrentSruGrads._fields,
    ("u", "f", "r", "skip", "v_f", "v_r", "bias_f", "bias_r"),
    ("skip", "bias_f", "bias_r"),
    activations=get_args(SruActivation),
)


@overload
def diagonal_gru(
    r: ArrayT,
    z: Array,
    n: Array,
    u_r: Array,
    u_z: Array,
    u_n: Array,
    b_n: Array | None = None,
    h0: Array | None = None,
    *,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> ArrayT: ...
@overload
def diagonal_gru(
    r: ArrayT,
    z: Array,
    n: Array,
    u_r: Array,
    u_z: Array,
    u_n: Array,
    b_n: Array | None = None,
    h0: Array | None = None,
    *,
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def diagonal_gru(
    r: Any,
    z: Any,
    n: Any,
    u_r: Any,
    u_z: Any,
    u_n: Any,
    b_n: Any = None,
    h0: Any = None,
    *,
    axis: int = -2,
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_report: bool = False,
) -> Any:
    """Gated recurrent unit with diagonal recurrent weights."""
    return _forward(
        _GRU,
        (r, z, n, u_r, u_z, u_n, b_n, h0),
        {},
        tolerance=tolerance,
        max_passes=max_passes,
        segment=segment,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
        return_report=return_report,
    )


@_documented
def diagonal_gru_vjp(
    r: Any,
    z: Any,
    n: Any,
    u_r: Any,
    u_z: Any,
    u_n: Any,
    b_n: Any,
    h0: Any,
    h: Any,
    dh: Any,
    dfinal: Any = None,
    **sequences: Unpack[SequenceOptions],
) -> DiagonalGruGrads:
    """Gradients of `diagonal_gru`, for NumPy, CuPy and DLPack arrays."""
    values = (r, z, n, u_r, u_z, u_n, b_n, h0)
    return DiagonalGruGrads(*_vjp(_GRU, values, {"h": h}, dh, (dfinal,), {}, **sequences))


@_documented
def diagonal_gru_step(
    r: ArrayT,
    z: Array,
    n: Array,
    u_r: Array,
    u_z: Array,
    u_n: Array,
    b_n: Array | None,
    h: Array | None,
) -> tuple[ArrayT, ArrayT]:
    """One step of `diagonal_gru`, for decoding: what a sequence of one step gives."""
    return _step(_GRU, (r, z, n, u_r, u_z, u_n, b_n, h), {})


def _check_coupling(fn: str, i: object, u_i: object, w_i: object) -> None:
    if (i is None) != (u_i is None):
        given, missing = ("u_i", "i") if i is None else ("i", "u_i")
        raise ValueError(f"{fn}: {given} is given without {missing}, expected both or neither")
    if i is None and w_i is not None:
        raise ValueError(f"{fn}: w_i is given without i, expected None with coupled gates")


@overload
def diagonal_lstm(
    i: Array | None,
    f: ArrayT,
    g: Array,
    o: Array,
    u_i: Array | None,
    u_f: Array,
    u_g: Array,
    u_o: Array,
    *,
    w_i: Array | None = None,
    w_f: Array | None = None,
    w_o: Array | None = None,
    h0: Array | None = None,
    c0: Array | None = None,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    return_checkpoints: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> ArrayT: ...
@overload
def diagonal_lstm(
    i: Array | None,
    f: ArrayT,
    g: Array,
    o: Array,
    u_i: Array | None,
    u_f: Array,
    u_g: Array,
    u_o: Array,
    *,
    w_i: Array | None = None,
    w_f: Array | None = None,
    w_o: Array | None = None,
    h0: Array | None = None,
    c0: Array | None = None,
    return_final: bool = False,
    return_report: bool = False,
    return_checkpoints: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def diagonal_lstm(
    i: Any,
    f: Any,
    g: Any,
    o: Any,
    u_i: Any,
    u_f: Any,
    u_g: Any,
    u_o: Any,
    *,
    w_i: Any = None,
    w_f: Any = None,
    w_o: Any = None,
    h0: Any = None,
    c0: Any = None,
    axis: int = -2,
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_report: bool = False,
    return_checkpoints: bool = False,
) -> Any:
    """Long short-term memory with diagonal recurrent weights."""
    _check_coupling("diagonal_lstm", i, u_i, w_i)
    return _forward(
        _LSTM,
        (i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h0, c0),
        {},
        tolerance=tolerance,
        max_passes=max_passes,
        segment=segment,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
        return_report=return_report,
        return_checkpoints=return_checkpoints,
    )


@_documented
def diagonal_lstm_vjp(
    i: Any,
    f: Any,
    g: Any,
    o: Any,
    u_i: Any,
    u_f: Any,
    u_g: Any,
    u_o: Any,
    w_i: Any,
    w_f: Any,
    w_o: Any,
    h0: Any,
    c0: Any,
    h: Any,
    checkpoints: Any,
    dh: Any,
    dfinal: tuple[Any, Any] | None = None,
    **sequences: Unpack[SequenceOptions],
) -> DiagonalLstmGrads:
    """Gradients of `diagonal_lstm`, for NumPy, CuPy and DLPack arrays; see `diagonal_gru_vjp`."""
    _check_coupling("diagonal_lstm_vjp", i, u_i, w_i)
    values = (i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h0, c0)
    saved = {"h": h, "checkpoints": checkpoints}
    finals = (None, None) if dfinal is None else dfinal
    return DiagonalLstmGrads(*_vjp(_LSTM, values, saved, dh, finals, {}, **sequences))


@_documented
def diagonal_lstm_step(
    i: Array | None,
    f: ArrayT,
    g: Array,
    o: Array,
    u_i: Array | None,
    u_f: Array,
    u_g: Array,
    u_o: Array,
    h: Array | None,
    c: Array | None,
    *,
    w_i: Array | None = None,
    w_f: Array | None = None,
    w_o: Array | None = None,
) -> tuple[ArrayT, tuple[ArrayT, ArrayT]]:
    """One step of `diagonal_lstm`, for decoding: what a sequence of one step gives."""
    _check_coupling("diagonal_lstm_step", i, u_i, w_i)
    return _step(_LSTM, (i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h, c), {})


@overload
def indrnn(
    p: ArrayT,
    u: Array,
    h0: Array | None = None,
    *,
    activation: IndRnnActivation = "relu",
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> ArrayT: ...
@overload
def indrnn(
    p: ArrayT,
    u: Array,
    h0: Array | None = None,
    *,
    activation: IndRnnActivation = "relu",
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def indrnn(
    p: Any,
    u: Any,
    h0: Any = None,
    *,
    activation: IndRnnActivation = "relu",
    axis: int = -2,
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_report: bool = False,
) -> Any:
    """Independently recurrent network."""
    return _forward(
        _INDRNN,
        (p, u, h0),
        {"activation": activation},
        tolerance=tolerance,
        max_passes=max_passes,
        segment=segment,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
        return_report=return_report,
    )


@_documented
def indrnn_vjp(
    p: Any,
    u: Any,
    h0: Any,
    h: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    activation: IndRnnActivation = "relu",
    **sequences: Unpack[SequenceOptions],
) -> IndRnnGrads:
    """Gradients of `indrnn`, for NumPy, CuPy and DLPack arrays; see `diagonal_gru_vjp`."""
    options = {"activation": activation}
    return IndRnnGrads(*_vjp(_INDRNN, (p, u, h0), {"h": h}, dh, (dfinal,), options, **sequences))


@_documented
def indrnn_step(
    p: ArrayT, u: Array, h: Array | None, *, activation: IndRnnActivation = "relu"
) -> tuple[ArrayT, ArrayT]:
    """One step of `indrnn`, for decoding: what a sequence of one step gives."""
    return _step(_INDRNN, (p, u, h), {"activation": activation})


def recurrent_sru(values: Sequence[Any], activation: SruActivation, **options: Any) -> Any:
    """`sru` with v_f and v_r: values in the order of `RecurrentSruGrads`."""
    _check_both("sru", values)
    return _forward(_SRU, values, {"activation": activation}, **options)


def recurrent_sru_vjp(
    values: Sequence[Any],
    checkpoints: Any,
    dh: Any,
    dfinal: Any,
    activation: SruActivation,
    **sequences: Any,
) -> RecurrentSruGrads:
    """Gradients of `recurrent_sru`."""
    _check_both("sru_vjp", values)
    saved, options = {"checkpoints": checkpoints}, {"activation": activation}
    return RecurrentSruGrads(*_vjp(_SRU, values, saved, dh, (dfinal,), options, **sequences))


def recurrent_sru_step(values: Sequence[Any], activation: SruActivation) -> tuple[Any, Any]:
    """One step of `recurrent_sru`."""
    _check_both("sru_step", values)
    return _step(_SRU, values, {"activation": activation})


def _check_both(fn: str, values: Sequence[Any]) -> None:
    v_f, v_r = (values[RecurrentSruGrads._fields.index(n)] for n in ("v_f", "v_r"))
    if (v_f is None) != (v_r is None):
        given, missing = ("v_r", "v_f") if v_f is None else ("v_f", "v_r")
        raise ValueError(f"{fn}: {given} is given without {missing}, expected both or neither")


def _forward(
    function: Function,
    values: Sequence[Any],
    options: dict[str, Any],
    *,
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_report: bool = False,
    return_checkpoints: bool = False,
) -> Any:
    """A cell's outputs, and what else was asked for.

    Args:
        function: the public function.
        values: its arguments, in their order.
        options: its options beside those of sequences and solving.
        tolerance: as in the public functions, and likewise all that follow.
        max_passes: see tolerance.
        segment: see tolerance.
        axis: see tolerance.
        reverse: see tolerance.
        cu_seqlens: see tolerance.
        lengths: see tolerance.
        reset: see tolerance.
        padding_side: see tolerance.
        return_final: see tolerance.
        return_report: see tolerance.
        return_checkpoints: see tolerance.
    """
    fn, main = function.name, function.main
    like = values[function.arguments.index(main)]
    sequences = {"cu_seqlens": cu_seqlens, "lengths": lengths, "reset": reset}
    owner = owner_of(fn, main, like)
    if isinstance(owner, Frontend):
        require_one_framework(fn, *split(function, values))
        if return_checkpoints:
            raise TypeError(
                f"{fn}: return_checkpoints is True, expected False for a {owner.type_name}, which "
                f"differentiates {fn} itself"
            )
        return getattr(owner.module(), fn)(
            **dict(zip(function.arguments, values, strict=True)),
            **options,
            tolerance=tolerance,
            max_passes=max_passes,
            segment=segment,
            axis=axis,
            reverse=reverse,
            padding_side=padding_side,
            return_final=return_final,
            return_report=return_report,
            **sequences,
        )
    call = Call(fn, function, values, options, axis, reverse, sequences, padding_side)
    layout, library = call.layout, call.library
    with library.guard(call.main):
        h = library.empty_like(call.main)
        kept = None
        if return_checkpoints and function.row["kept_state"] >= 0:
            kept = library.empty_like(call.main)
        dtype = library.dtype(ACCUMULATION[layout.code])
        finals: list[Any] = [None] * len(function.states)
        if return_final:
            finals = [library.empty(layout.state_shape, dtype, call.main) for _ in finals]
        report = None
        if return_report:
            shape = (call.sequences, COLUMNS)
            report = library.empty(shape, library.dtype(FLOAT64), call.main)
        inputs, initial = call.describe_arguments(call.arrays)
        _core.solve_forward(
            call.kind,
            inputs,
            initial,
            layout.full("h", h),
            layout.full("checkpoints", kept),
            [layout.state("final", final) for final in finals],
            None if report is None else layout.describe("report", report),
            tolerance=0.0 if tolerance is None else tolerance,
            max_passes=max_passes,
            segment=0 if segment is None else segment,
            **call.keywords,
        )
        results: list[Any] = [give_back(call.restore(main, h), like)]
        if return_final:
            given = [
                give_back(call.restore(state, final), like)
                for state, final in zip(function.states, finals, strict=True)
            ]
            results.append(tuple(given) if len(given) > 1 else given[0])
        if return_checkpoints:
            results.append(
                results[0] if kept is None else give_back(call.restore(main, kept), like)
            )
    if return_report:
        results.append(SolveReport(report))
    return tuple(results) if len(results) > 1 else results[0]


def _vjp(
    function: Function,
    values: Sequence[Any],
    saved: dict[str, Any],
    dh: Any,
    dfinal: Sequence[Any],
    options: dict[str, Any],
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> list[Any]:
    """The gradients of a function's arguments, in their order.

    Args:
        function: the public function whose gradients these are.
        values: its arguments, in their order.
        saved: what it returned: its output "h" where that is a state, and "checkpoints" where the
            cell has them.
        dh: as in the public functions, and likewise all that follow.
        dfinal: see dh; one a state.
        options: see dh.
        axis: see dh.
        reverse: see dh.
        cu_seqlens: see dh.
        lengths: see dh.
        reset: see dh.
        padding_side: see dh.
    """
    fn, main = f"{function.name}_vjp", function.main
    like = values[function.arguments.index(main)]
    sequences = {"cu_seqlens": cu_seqlens, "lengths": lengths, "reset": reset}
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
    call = Call(fn, function, values, options, axis, reverse, sequences, padding_side, extra)
    layout, library = call.layout, call.library
    with library.guard(call.main):
        grads = {n: None if v is None else library.empty_like(v) for n, v in call.arrays.items()}
        inputs, initial = call.describe_arguments(call.arrays)
        dinputs, dinitial = call.describe_arguments(grads)
        _core.solve_backward(
            call.kind,
            inputs,
            initial,
            layout.full("h", call.extra.get("h")),
            layout.full("checkpoints", call.extra.get("checkpoints")),
            layout.full("dh", call.extra["dh"]),
            [layout.state(n, call.extra[n]) for n in finals],
            dinputs,
            dinitial,
            **call.keywords,
        )
        return [
            None if v is None else give_back(call.restore(n, v), like) for n, v in grads.items()
        ]


def _step(function: Function, values: Sequence[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """The output of one step, and the state or states after it."""
    once = {*function.states, *function.vectors}

    def one_step(name: str, array: Any) -> Any:
        return array if array is None or name in once else array[..., None, :]

    steps = [one_step(n, v) for n, v in zip(function.arguments, values, strict=True)]
    h, final = _forward(function, steps, options, return_final=True)
    return h[..., 0, :], final
