"""Nonlinear cells with diagonal recurrent weights: parts of `scanrnn.cells`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, Unpack, get_args, overload

from . import _docs
from ._array import Array
from ._array.layout import PaddingSide
from ._cell_call import (
    Function,
    SequenceOptions,
    SruActivation,
    forward,
    step,
    vjp,
)
from ._cell_call import SolveOptions as SolveOptions

ArrayT = TypeVar("ArrayT")
_documented = _docs.documented(_docs.NUMPY)
IndRnnActivation: TypeAlias = Literal["identity", "tanh", "relu"]


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
    return forward(
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
    return DiagonalGruGrads(*vjp(_GRU, values, {"h": h}, dh, (dfinal,), {}, **sequences))


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
    return step(_GRU, (r, z, n, u_r, u_z, u_n, b_n, h), {})


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
    return forward(
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
    return DiagonalLstmGrads(*vjp(_LSTM, values, saved, dh, finals, {}, **sequences))


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
    return step(_LSTM, (i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h, c), {})


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
    return forward(
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
    return IndRnnGrads(*vjp(_INDRNN, (p, u, h0), {"h": h}, dh, (dfinal,), options, **sequences))


@_documented
def indrnn_step(
    p: ArrayT, u: Array, h: Array | None, *, activation: IndRnnActivation = "relu"
) -> tuple[ArrayT, ArrayT]:
    """One step of `indrnn`, for decoding: what a sequence of one step gives."""
    return step(_INDRNN, (p, u, h), {"activation": activation})


def recurrent_sru(values: Sequence[Any], activation: SruActivation, **options: Any) -> Any:
    """`sru` with v_f and v_r: values in the order of `RecurrentSruGrads`."""
    _check_both("sru", values)
    return forward(_SRU, values, {"activation": activation}, **options)


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
    return RecurrentSruGrads(*vjp(_SRU, values, saved, dh, (dfinal,), options, **sequences))


def recurrent_sru_step(values: Sequence[Any], activation: SruActivation) -> tuple[Any, Any]:
    """One step of `recurrent_sru`."""
    _check_both("sru_step", values)
    return step(_SRU, values, {"activation": activation})


def _check_both(fn: str, values: Sequence[Any]) -> None:
    v_f, v_r = (values[RecurrentSruGrads._fields.index(n)] for n in ("v_f", "v_r"))
    if (v_f is None) != (v_r is None):
        given, missing = ("v_r", "v_f") if v_f is None else ("v_f", "v_r")
        raise ValueError(f"{fn}: {given} is given without {missing}, expected both or neither")
