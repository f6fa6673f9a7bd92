"""Recurrent cells as fused functions: pre-activations in, outputs out, one pass over memory.

The matrix products before a cell belong to the framework. Arrays are as in `scanrnn.scan`: any
library in, the same one out; PyTorch and JAX arrays go to `scanrnn.torch` and `scanrnn.jax`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeVar, Unpack, get_args, overload

from . import _docs
from ._array import Array
from ._array.layout import PaddingSide
from ._cell_call import Activation as Activation
from ._cell_call import Function, forward, step, vjp
from ._cell_call import SequenceOptions as SequenceOptions
from ._cell_call import SolveOptions as SolveOptions
from ._cell_call import SruActivation as SruActivation
from ._nonlinear import (
    DiagonalGruGrads,
    DiagonalLstmGrads,
    IndRnnGrads,
    RecurrentSruGrads,
    diagonal_gru,
    diagonal_gru_step,
    diagonal_gru_vjp,
    diagonal_lstm,
    diagonal_lstm_step,
    diagonal_lstm_vjp,
    indrnn,
    indrnn_step,
    indrnn_vjp,
    recurrent_sru,
    recurrent_sru_step,
    recurrent_sru_vjp,
)

__all__ = [
    "DiagonalGruGrads",
    "DiagonalLstmGrads",
    "GilrGrads",
    "HgrnGrads",
    "IndRnnGrads",
    "MinGruGrads",
    "MinLstmGrads",
    "QrnnGrads",
    "RecurrentSruGrads",
    "RgLruGrads",
    "SruGrads",
    "diagonal_gru",
    "diagonal_gru_step",
    "diagonal_gru_vjp",
    "diagonal_lstm",
    "diagonal_lstm_step",
    "diagonal_lstm_vjp",
    "gilr",
    "gilr_step",
    "gilr_vjp",
    "hgrn",
    "hgrn_step",
    "hgrn_vjp",
    "indrnn",
    "indrnn_step",
    "indrnn_vjp",
    "min_gru",
    "min_gru_step",
    "min_gru_vjp",
    "min_lstm",
    "min_lstm_step",
    "min_lstm_vjp",
    "qrnn",
    "qrnn_step",
    "qrnn_vjp",
    "rg_lru",
    "rg_lru_step",
    "rg_lru_vjp",
    "sru",
    "sru_step",
    "sru_vjp",
]

ArrayT = TypeVar("ArrayT")
_documented = _docs.documented(_docs.NUMPY)

# Gradients, in the order of a function's arguments


class SruGrads(NamedTuple):
    """Gradients of `sru`, each in the shape and dtype of its argument; None where that was None."""

    u: Any
    f: Any
    r: Any
    skip: Any
    bias_f: Any
    bias_r: Any
    c0: Any


class GilrGrads(NamedTuple):
    """Gradients of `gilr`, likewise."""

    f: Any
    z: Any
    h0: Any


class HgrnGrads(NamedTuple):
    """Gradients of `hgrn`, likewise."""

    f: Any
    z: Any
    bound: Any
    h0: Any


class MinGruGrads(NamedTuple):
    """Gradients of `min_gru`, likewise."""

    z: Any
    v: Any
    h0: Any


class MinLstmGrads(NamedTuple):
    """Gradients of `min_lstm`, likewise."""

    f: Any
    i: Any
    v: Any
    h0: Any


class QrnnGrads(NamedTuple):
    """Gradients of `qrnn`, likewise."""

    z: Any
    f: Any
    o: Any
    i: Any
    c0: Any


class RgLruGrads(NamedTuple):
    """Gradients of `rg_lru`, likewise."""

    x: Any
    r: Any
    i: Any
    lam: Any
    h0: Any


# The functions


_SRU = Function(
    "sru",
    "sru",
    SruGrads._fields,
    ("u", "f", "r", "skip", "bias_f", "bias_r"),
    ("skip", "bias_f", "bias_r"),
    activations=get_args(SruActivation),
)
_GILR = Function("gilr", "gilr", GilrGrads._fields, ("f", "z", None), fixed={"gate": 0})
_HGRN = Function(
    "hgrn", "gilr", HgrnGrads._fields, ("f", "z", "bound"), ("bound",), fixed={"gate": 0}
)
_MIN_GRU = Function("min_gru", "gilr", MinGruGrads._fields, ("z", "v", None), fixed={"gate": 1})
_MIN_LSTM = Function("min_lstm", "min_lstm", MinLstmGrads._fields, ("f", "i", "v"))
_QRNN_F = Function(
    "qrnn", "gilr", QrnnGrads._fields, ("f", "z", None), ("o", "i"), fixed={"gate": 0}
)
_QRNN = Function("qrnn", "qrnn", QrnnGrads._fields, ("z", "f", "o", "i"), ("i",))
_RG_LRU = Function("rg_lru", "rg_lru", RgLruGrads._fields, ("x", "r", "i", "lam"))


def _qrnn(fn: str, o: object, i: object) -> Function:
    """The pooling that the given gates ask for."""
    if o is None and i is not None:
        raise ValueError(f"{fn}: i is given without o, expected both, o alone or neither")
    return _QRNN_F if o is None else _QRNN


@overload
def sru(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None = None,
    bias_f: Array | None = None,
    bias_r: Array | None = None,
    c0: Array | None = None,
    *,
    v_f: Array | None = None,
    v_r: Array | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[False] = False,
    return_checkpoints: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> ArrayT: ...
@overload
def sru(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None = None,
    bias_f: Array | None = None,
    bias_r: Array | None = None,
    c0: Array | None = None,
    *,
    v_f: Array | None = None,
    v_r: Array | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[True],
    return_checkpoints: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def sru(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None = None,
    bias_f: Array | None = None,
    bias_r: Array | None = None,
    c0: Array | None = None,
    *,
    v_f: Array | None = None,
    v_r: Array | None = None,
    activation: SruActivation = "identity",
    return_final: bool = False,
    return_checkpoints: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def sru(
    u: Any,
    f: Any,
    r: Any,
    skip: Any = None,
    bias_f: Any = None,
    bias_r: Any = None,
    c0: Any = None,
    *,
    v_f: Any = None,
    v_r: Any = None,
    activation: SruActivation = "identity",
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
    return_checkpoints: bool = False,
    return_report: bool = False,
) -> Any:
    """Simple recurrent unit."""
    if v_f is not None or v_r is not None:
        return recurrent_sru(
            (u, f, r, skip, bias_f, bias_r, v_f, v_r, c0),
            activation,
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
    if return_report:
        raise ValueError("sru: return_report is True without v_f and v_r, expected False")
    return forward(
        _SRU,
        (u, f, r, skip, bias_f, bias_r, c0),
        {"activation": activation},
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
        return_checkpoints=return_checkpoints,
    )


@_documented
def sru_vjp(
    u: Any,
    f: Any,
    r: Any,
    skip: Any,
    bias_f: Any,
    bias_r: Any,
    c0: Any,
    checkpoints: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    v_f: Any = None,
    v_r: Any = None,
    activation: SruActivation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> SruGrads | RecurrentSruGrads:
    """Gradients of `sru`, for NumPy, CuPy and DLPack arrays."""
    if v_f is not None or v_r is not None:
        return recurrent_sru_vjp(
            (u, f, r, skip, bias_f, bias_r, v_f, v_r, c0),
            checkpoints,
            dh,
            dfinal,
            activation,
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    return SruGrads(
        *vjp(
            _SRU,
            (u, f, r, skip, bias_f, bias_r, c0),
            {"checkpoints": checkpoints},
            dh,
            (dfinal,),
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


@_documented
def sru_step(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None,
    bias_f: Array | None,
    bias_r: Array | None,
    c: Array | None,
    *,
    v_f: Array | None = None,
    v_r: Array | None = None,
    activation: SruActivation = "identity",
) -> tuple[ArrayT, ArrayT]:
    """One step of `sru`, for decoding: what a sequence of one step gives."""
    if v_f is not None or v_r is not None:
        return recurrent_sru_step((u, f, r, skip, bias_f, bias_r, v_f, v_r, c), activation)
    return step(_SRU, (u, f, r, skip, bias_f, bias_r, c), {"activation": activation})


@overload
def gilr(
    f: ArrayT,
    z: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> ArrayT: ...
@overload
def gilr(
    f: ArrayT,
    z: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def gilr(
    f: ArrayT,
    z: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool = False,
    **sequences: Unpack[SequenceOptions],
) -> Any: ...
@_documented
def gilr(
    f: Any,
    z: Any,
    h0: Any = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Any:
    """Gated impulse linear recurrence: one gate, which sees the input alone."""
    return forward(
        _GILR,
        (f, z, h0),
        {"activation": activation},
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
    )


@_documented
def gilr_vjp(
    f: Any,
    z: Any,
    h0: Any,
    h: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> GilrGrads:
    """Gradients of `gilr`, for NumPy, CuPy and DLPack arrays."""
    return GilrGrads(
        *vjp(
            _GILR,
            (f, z, h0),
            {"h": h},
            dh,
            (dfinal,),
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


@_documented
def gilr_step(
    f: ArrayT,
    z: Array,
    h: Array | None,
    *,
    activation: Activation = "tanh",
) -> tuple[ArrayT, ArrayT]:
    """One step of `gilr`, for decoding: what a sequence of one step gives."""
    return step(_GILR, (f, z, h), {"activation": activation})


@overload
def hgrn(
    f: ArrayT,
    z: Array,
    bound: Array | None = None,
    h0: Array | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> ArrayT: ...
@overload
def hgrn(
    f: ArrayT,
    z: Array,
    bound: Array | None = None,
    h0: Array | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def hgrn(
    f: ArrayT,
    z: Array,
    bound: Array | None = None,
    h0: Array | None = None,
    *,
    activation: Activation = "silu",
    return_final: bool = False,
    **sequences: Unpack[SequenceOptions],
) -> Any: ...
@_documented
def hgrn(
    f: Any,
    z: Any,
    bound: Any = None,
    h0: Any = None,
    *,
    activation: Activation = "silu",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Any:
    """Hierarchically gated recurrence: a forget gate with a lower bound."""
    return forward(
        _HGRN,
        (f, z, bound, h0),
        {"activation": activation},
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
    )


@_documented
def hgrn_vjp(
    f: Any,
    z: Any,
    bound: Any,
    h0: Any,
    h: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    activation: Activation = "silu",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> HgrnGrads:
    """Gradients of `hgrn`, for NumPy, CuPy and DLPack arrays."""
    return HgrnGrads(
        *vjp(
            _HGRN,
            (f, z, bound, h0),
            {"h": h},
            dh,
            (dfinal,),
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


@_documented
def hgrn_step(
    f: ArrayT,
    z: Array,
    bound: Array | None,
    h: Array | None,
    *,
    activation: Activation = "silu",
) -> tuple[ArrayT, ArrayT]:
    """One step of `hgrn`, for decoding: what a sequence of one step gives."""
    return step(_HGRN, (f, z, bound, h), {"activation": activation})


@overload
def min_gru(
    z: ArrayT,
    v: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> ArrayT: ...
@overload
def min_gru(
    z: ArrayT,
    v: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def min_gru(
    z: ArrayT,
    v: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool = False,
    **sequences: Unpack[SequenceOptions],
) -> Any: ...
@_documented
def min_gru(
    z: Any,
    v: Any,
    h0: Any = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Any:
    """Minimal GRU, in plain space: the state may have any sign."""
    return forward(
        _MIN_GRU,
        (z, v, h0),
        {"activation": activation},
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
    )


@_documented
def min_gru_vjp(
    z: Any,
    v: Any,
    h0: Any,
    h: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> MinGruGrads:
    """Gradients of `min_gru`, for NumPy, CuPy and DLPack arrays."""
    return MinGruGrads(
        *vjp(
            _MIN_GRU,
            (z, v, h0),
            {"h": h},
            dh,
            (dfinal,),
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


@_documented
def min_gru_step(
    z: ArrayT,
    v: Array,
    h: Array | None,
    *,
    activation: Activation = "identity",
) -> tuple[ArrayT, ArrayT]:
    """One step of `min_gru`, for decoding: what a sequence of one step gives."""
    return step(_MIN_GRU, (z, v, h), {"activation": activation})


@overload
def min_lstm(
    f: ArrayT,
    i: Array,
    v: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> ArrayT: ...
@overload
def min_lstm(
    f: ArrayT,
    i: Array,
    v: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def min_lstm(
    f: ArrayT,
    i: Array,
    v: Array,
    h0: Array | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool = False,
    **sequences: Unpack[SequenceOptions],
) -> Any: ...
@_documented
def min_lstm(
    f: Any,
    i: Any,
    v: Any,
    h0: Any = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Any:
    """Minimal LSTM, in plain space: the state may have any sign."""
    return forward(
        _MIN_LSTM,
        (f, i, v, h0),
        {"activation": activation},
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
    )


@_documented
def min_lstm_vjp(
    f: Any,
    i: Any,
    v: Any,
    h0: Any,
    h: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> MinLstmGrads:
    """Gradients of `min_lstm`, for NumPy, CuPy and DLPack arrays."""
    return MinLstmGrads(
        *vjp(
            _MIN_LSTM,
            (f, i, v, h0),
            {"h": h},
            dh,
            (dfinal,),
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


@_documented
def min_lstm_step(
    f: ArrayT,
    i: Array,
    v: Array,
    h: Array | None,
    *,
    activation: Activation = "identity",
) -> tuple[ArrayT, ArrayT]:
    """One step of `min_lstm`, for decoding: what a sequence of one step gives."""
    return step(_MIN_LSTM, (f, i, v, h), {"activation": activation})


@overload
def qrnn(
    z: ArrayT,
    f: Array,
    o: Array | None = None,
    i: Array | None = None,
    c0: Array | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    return_checkpoints: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> ArrayT: ...
@overload
def qrnn(
    z: ArrayT,
    f: Array,
    o: Array | None = None,
    i: Array | None = None,
    c0: Array | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    return_checkpoints: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def qrnn(
    z: ArrayT,
    f: Array,
    o: Array | None = None,
    i: Array | None = None,
    c0: Array | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool = False,
    return_checkpoints: bool = False,
    **sequences: Unpack[SequenceOptions],
) -> Any: ...
@_documented
def qrnn(
    z: Any,
    f: Any,
    o: Any = None,
    i: Any = None,
    c0: Any = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_checkpoints: bool = False,
) -> Any:
    """Quasi-recurrent network's pooling: f-, fo- or ifo-pooling, by which gates are given."""
    function = _qrnn("qrnn", o, i)
    return forward(
        function,
        (z, f, o, i, c0),
        {"activation": activation},
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
        return_checkpoints=return_checkpoints,
    )


@_documented
def qrnn_vjp(
    z: Any,
    f: Any,
    o: Any,
    i: Any,
    c0: Any,
    checkpoints: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> QrnnGrads:
    """Gradients of `qrnn`, for NumPy, CuPy and DLPack arrays."""
    function = _qrnn("qrnn_vjp", o, i)
    saved = {"h" if function is _QRNN_F else "checkpoints": checkpoints}
    return QrnnGrads(
        *vjp(
            function,
            (z, f, o, i, c0),
            saved,
            dh,
            (dfinal,),
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


@_documented
def qrnn_step(
    z: ArrayT,
    f: Array,
    o: Array | None,
    i: Array | None,
    c: Array | None,
    *,
    activation: Activation = "tanh",
) -> tuple[ArrayT, ArrayT]:
    """One step of `qrnn`, for decoding: what a sequence of one step gives."""
    function = _qrnn("qrnn", o, i)
    return step(function, (z, f, o, i, c), {"activation": activation})


@overload
def rg_lru(
    x: ArrayT,
    r: Array,
    i: Array,
    lam: Array,
    h0: Array | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> ArrayT: ...
@overload
def rg_lru(
    x: ArrayT,
    r: Array,
    i: Array,
    lam: Array,
    h0: Array | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def rg_lru(
    x: ArrayT,
    r: Array,
    i: Array,
    lam: Array,
    h0: Array | None = None,
    *,
    c: float = 8.0,
    return_final: bool = False,
    **sequences: Unpack[SequenceOptions],
) -> Any: ...
@_documented
def rg_lru(
    x: Any,
    r: Any,
    i: Any,
    lam: Any,
    h0: Any = None,
    *,
    c: float = 8.0,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Any:
    """Real-gated linear recurrent unit, Griffin's recurrence."""
    return forward(
        _RG_LRU,
        (x, r, i, lam, h0),
        {"c": c},
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
    )


@_documented
def rg_lru_vjp(
    x: Any,
    r: Any,
    i: Any,
    lam: Any,
    h0: Any,
    h: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    c: float = 8.0,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> RgLruGrads:
    """Gradients of `rg_lru`, for NumPy, CuPy and DLPack arrays."""
    return RgLruGrads(
        *vjp(
            _RG_LRU,
            (x, r, i, lam, h0),
            {"h": h},
            dh,
            (dfinal,),
            {"c": c},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


@_documented
def rg_lru_step(
    x: ArrayT,
    r: Array,
    i: Array,
    lam: Array,
    h: Array | None,
    *,
    c: float = 8.0,
) -> tuple[ArrayT, ArrayT]:
    """One step of `rg_lru`, for decoding: what a sequence of one step gives."""
    return step(_RG_LRU, (x, r, i, lam, h), {"c": c})
