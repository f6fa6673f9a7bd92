"""Recurrent cells as fused functions: pre-activations in, outputs out, one pass over memory.

The matrix products before a cell belong to the framework. Arrays are as in `scanrnn.scan`: any
library in, the same one out; PyTorch and JAX arrays go to `scanrnn.torch` and `scanrnn.jax`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar, Unpack, get_args, overload

from . import _core
from ._array import (
    ACCUMULATION,
    Array,
    Frontend,
    give_back,
    owner_of,
    require_one_framework,
)
from ._array.layout import PaddingSide
from ._cell_call import Activation as Activation
from ._cell_call import Call, Function, split
from ._cell_call import SequenceOptions as SequenceOptions
from ._cell_call import SruActivation as SruActivation
from ._nonlinear import (
    DiagonalGruGrads,
    DiagonalLstmGrads,
    IndRnnGrads,
    RecurrentSruGrads,
    SolveOptions,
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
    """Simple recurrent unit.

        f'_t = sigmoid(f_t + v_f * c_{t-1} + bias_f),  r'_t = sigmoid(r_t + v_r * c_{t-1} + bias_r)
        c_t = f'_t * c_{t-1} + (1 - f'_t) * u_t
        h_t = r'_t * g(c_t) + (1 - r'_t) * skip_t

    Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", 2018. Gates,
    recurrence and output are one kernel: no gate is ever stored. Without v_f and v_r the recurrence
    is linear in c; with them it is solved as that of `diagonal_gru`.

    Args:
        u: candidates W x, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. float16, bfloat16, float32 or float64, with any strides.
        f: forget gates before bias and sigmoid, u's shape and dtype.
        r: reset (highway) gates before bias and sigmoid, u's shape and dtype.
        skip: highway input, u's shape and dtype; None means zeros.
        bias_f: (D,) in u's dtype or its accumulation dtype; None means zeros.
        bias_r: likewise.
        c0: states before the first step, u's shape without the time axis, in u's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        v_f: (D,) recurrent weights, in u's dtype or its accumulation dtype; None, with v_r: none.
        v_r: likewise.
        activation: g, "identity", "tanh" or "relu".
        axis: the time axis of u.
        tolerance: with v_f and v_r, as in `diagonal_gru`; else ignored. Likewise max_passes and
            segment.
        max_passes: see tolerance.
        segment: see tolerance.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.
        return_checkpoints: return what `sru_vjp` needs: one state in 32 steps, or with v_f and v_r
            all states.
        return_report: return a `SolveReport` too, with v_f and v_r.

    Returns:
        h, with u's shape and dtype, and what was asked for after it, in the order (h, c_T,
        checkpoints, report). c_T has c0's shape and the accumulation dtype, float32 for 16-bit
        floats; checkpoints is an opaque array.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
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
    return _forward(
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
    """Gradients of `sru`, for NumPy, CuPy and DLPack arrays.

    PyTorch and JAX differentiate `sru` itself. States and gates are recomputed from the
    checkpoints. Sums over batch and time (the biases') have a fixed order.

    Args:
        u: as given to `sru`, and likewise all up to c0.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: see u.
        bias_r: see u.
        c0: see u.
        checkpoints: what `sru` returned with return_checkpoints for the same arguments and options.
        dh: gradient of the loss with respect to h, u's shape and dtype; None means zeros.
        dfinal: gradient with respect to c_T, in c0's shape, in u's dtype or its accumulation dtype;
            None means zeros.
        v_f: as given to `sru`; likewise v_r.
        v_r: see v_f.
        activation: as given to `sru`, and likewise all that follow.
        axis: see activation.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None. With
        v_f and v_r a `RecurrentSruGrads`.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
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
        *_vjp(
            _SRU,
            (u, f, r, skip, bias_f, bias_r, c0),
            checkpoints,
            dh,
            dfinal,
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


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
    """One step of `sru`, for decoding: what a sequence of one step gives.

    Args:
        u: (..., D), as in `sru` without the time axis; likewise f, r and skip.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: (D,), as in `sru`.
        bias_r: (D,), as in `sru`.
        c: (..., D), the state before the step; None means zeros.
        v_f: (D,), as in `sru`.
        v_r: (D,), as in `sru`.
        activation: as in `sru`.

    Returns:
        (h, c): the output in u's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    if v_f is not None or v_r is not None:
        return recurrent_sru_step((u, f, r, skip, bias_f, bias_r, v_f, v_r, c), activation)
    return _step(_SRU, (u, f, r, skip, bias_f, bias_r, c), {"activation": activation})


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
    """Gated impulse linear recurrence: one gate, which sees the input alone.

        f'_t = sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)

    Martin & Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", 2018, section
    3. With g = tanh it is QRNN's f-pooling too.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides.
        z: candidates, f's shape and dtype.
        h0: states before the first step, f's shape without the time axis, in f's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (v + 1/2 where v
            >= 0, else sigmoid(v)).
        axis: the time axis of f.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.

    Returns:
        h, with f's shape and dtype; with return_final (h, h_T). h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _forward(
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
    """Gradients of `gilr`, for NumPy, CuPy and DLPack arrays.

    PyTorch and JAX differentiate `gilr` itself. Gates are recomputed.

    Args:
        f: as given to `gilr`, and likewise all up to h0.
        z: see f.
        h0: see f.
        h: what `gilr` returned for the same arguments and options.
        dh: gradient of the loss with respect to h, f's shape and dtype; None means zeros.
        dfinal: gradient with respect to h_T, in h0's shape, in f's dtype or its accumulation dtype;
            None means zeros.
        activation: as given to `gilr`, and likewise all that follow.
        axis: see activation.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    return GilrGrads(
        *_vjp(
            _GILR,
            (f, z, h0),
            h,
            dh,
            dfinal,
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


def gilr_step(
    f: ArrayT,
    z: Array,
    h: Array | None,
    *,
    activation: Activation = "tanh",
) -> tuple[ArrayT, ArrayT]:
    """One step of `gilr`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `gilr` without the time axis; likewise z.
        z: see f.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `gilr`.

    Returns:
        (h, h): the output in f's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _step(_GILR, (f, z, h), {"activation": activation})


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
    """Hierarchically gated recurrence: a forget gate with a lower bound.

        f'_t = bound + (1 - bound) * sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)

    Qin et al., "Hierarchically Gated Recurrent Neural Network for Sequence Modeling", 2023,
    equations 2 to 5, for real states.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides.
        z: candidates before g, f's shape and dtype.
        bound: (D,), between 0 and 1, in f's dtype or its accumulation dtype; None means zeros.
        h0: states before the first step, f's shape without the time axis, in f's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (v + 1/2 where v
            >= 0, else sigmoid(v)).
        axis: the time axis of f.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.

    Returns:
        h, with f's shape and dtype; with return_final (h, h_T). h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _forward(
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
    """Gradients of `hgrn`, for NumPy, CuPy and DLPack arrays.

    PyTorch and JAX differentiate `hgrn` itself. Gates are recomputed. Sums over batch and time have
    a fixed order.

    Args:
        f: as given to `hgrn`, and likewise all up to h0.
        z: see f.
        bound: see f.
        h0: see f.
        h: what `hgrn` returned for the same arguments and options.
        dh: gradient of the loss with respect to h, f's shape and dtype; None means zeros.
        dfinal: gradient with respect to h_T, in h0's shape, in f's dtype or its accumulation dtype;
            None means zeros.
        activation: as given to `hgrn`, and likewise all that follow.
        axis: see activation.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    return HgrnGrads(
        *_vjp(
            _HGRN,
            (f, z, bound, h0),
            h,
            dh,
            dfinal,
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


def hgrn_step(
    f: ArrayT,
    z: Array,
    bound: Array | None,
    h: Array | None,
    *,
    activation: Activation = "silu",
) -> tuple[ArrayT, ArrayT]:
    """One step of `hgrn`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `hgrn` without the time axis; likewise z.
        z: see f.
        bound: (D,), as in `hgrn`.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `hgrn`.

    Returns:
        (h, h): the output in f's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _step(_HGRN, (f, z, bound, h), {"activation": activation})


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
    """Minimal GRU, in plain space: the state may have any sign.

        z'_t = sigmoid(z_t)
        h_t = (1 - z'_t) * h_{t-1} + z'_t * g(v_t)

    Feng et al., "Were RNNs All We Needed?", 2024, section 3.1. Its log-space
    version has g "positive".

    Args:
        z: update gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides.
        v: candidates before g, z's shape and dtype.
        h0: states before the first step, z's shape without the time axis, in z's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (v + 1/2 where v
            >= 0, else sigmoid(v)).
        axis: the time axis of z.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.

    Returns:
        h, with z's shape and dtype; with return_final (h, h_T). h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _forward(
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
    """Gradients of `min_gru`, for NumPy, CuPy and DLPack arrays.

    PyTorch and JAX differentiate `min_gru` itself. Gates are recomputed.

    Args:
        z: as given to `min_gru`, and likewise all up to h0.
        v: see z.
        h0: see z.
        h: what `min_gru` returned for the same arguments and options.
        dh: gradient of the loss with respect to h, z's shape and dtype; None means zeros.
        dfinal: gradient with respect to h_T, in h0's shape, in z's dtype or its accumulation dtype;
            None means zeros.
        activation: as given to `min_gru`, and likewise all that follow.
        axis: see activation.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    return MinGruGrads(
        *_vjp(
            _MIN_GRU,
            (z, v, h0),
            h,
            dh,
            dfinal,
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


def min_gru_step(
    z: ArrayT,
    v: Array,
    h: Array | None,
    *,
    activation: Activation = "identity",
) -> tuple[ArrayT, ArrayT]:
    """One step of `min_gru`, for decoding: what a sequence of one step gives.

    Args:
        z: (..., D), as in `min_gru` without the time axis; likewise v.
        v: see z.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `min_gru`.

    Returns:
        (h, h): the output in z's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _step(_MIN_GRU, (z, v, h), {"activation": activation})


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
    """Minimal LSTM, in plain space: the state may have any sign.

        f'_t = sigmoid(f_t) / (sigmoid(f_t) + sigmoid(i_t)),  i'_t = 1 - f'_t
        h_t = f'_t * h_{t-1} + i'_t * g(v_t)

    Feng et al., "Were RNNs All We Needed?", 2024, section 3.2. Gates may be of any size, also
    infinite: the ratios are computed without overflow. Its log-space
    version has g "positive".

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides.
        i: input gates before the sigmoid, f's shape and dtype.
        v: candidates before g, f's shape and dtype.
        h0: states before the first step, f's shape without the time axis, in f's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (v + 1/2 where v
            >= 0, else sigmoid(v)).
        axis: the time axis of f.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.

    Returns:
        h, with f's shape and dtype; with return_final (h, h_T). h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _forward(
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
    """Gradients of `min_lstm`, for NumPy, CuPy and DLPack arrays.

    PyTorch and JAX differentiate `min_lstm` itself. Gates are recomputed.

    Args:
        f: as given to `min_lstm`, and likewise all up to h0.
        i: see f.
        v: see f.
        h0: see f.
        h: what `min_lstm` returned for the same arguments and options.
        dh: gradient of the loss with respect to h, f's shape and dtype; None means zeros.
        dfinal: gradient with respect to h_T, in h0's shape, in f's dtype or its accumulation dtype;
            None means zeros.
        activation: as given to `min_lstm`, and likewise all that follow.
        axis: see activation.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    return MinLstmGrads(
        *_vjp(
            _MIN_LSTM,
            (f, i, v, h0),
            h,
            dh,
            dfinal,
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


def min_lstm_step(
    f: ArrayT,
    i: Array,
    v: Array,
    h: Array | None,
    *,
    activation: Activation = "identity",
) -> tuple[ArrayT, ArrayT]:
    """One step of `min_lstm`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `min_lstm` without the time axis; likewise i and v.
        i: see f.
        v: see f.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `min_lstm`.

    Returns:
        (h, h): the output in f's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _step(_MIN_LSTM, (f, i, v, h), {"activation": activation})


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
    """Quasi-recurrent network's pooling: f-, fo- or ifo-pooling, by which gates are given.

        f'_t = sigmoid(f_t),  o'_t = sigmoid(o_t) or 1,  i'_t = sigmoid(i_t) or 1 - f'_t
        c_t = f'_t * c_{t-1} + i'_t * g(z_t)
        h_t = o'_t * c_t

    Bradbury et al., "Quasi-Recurrent Neural Networks", 2017, equations 3 to 5. Zoneout keeps a
    state where f is +inf (and i, if given, -inf): then c_t = c_{t-1} exactly.

    Args:
        z: candidates before g, (batch..., channel) with the time axis inserted at `axis`: (B, T, D)
            by default. float16, bfloat16, float32 or float64, with any strides.
        f: forget gates before the sigmoid, z's shape and dtype.
        o: output gates before the sigmoid, z's shape and dtype; None means no output gate.
        i: input gates before the sigmoid, likewise; None means 1 - f'. Needs o.
        c0: states before the first step, z's shape without the time axis, in z's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (v + 1/2 where v
            >= 0, else sigmoid(v)).
        axis: the time axis of z.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.
        return_checkpoints: return what `qrnn_vjp` needs: one state in 32 steps, or, without o, h
            itself.

    Returns:
        h, with z's shape and dtype, and what was asked for after it: (h, c_T), (h, checkpoints) or
        (h, c_T, checkpoints). c_T has c0's shape and the accumulation dtype, float32 for 16-bit
        floats; checkpoints is an opaque array.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    function = _qrnn("qrnn", o, i)
    return _forward(
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
    """Gradients of `qrnn`, for NumPy, CuPy and DLPack arrays.

    PyTorch and JAX differentiate `qrnn` itself. Gates are recomputed, and so are states, from the
    checkpoints.

    Args:
        z: as given to `qrnn`, and likewise all up to c0.
        f: see z.
        o: see z.
        i: see z.
        c0: see z.
        checkpoints: what `qrnn` returned with return_checkpoints for the same arguments and
            options.
        dh: gradient of the loss with respect to h, z's shape and dtype; None means zeros.
        dfinal: gradient with respect to c_T, in c0's shape, in z's dtype or its accumulation dtype;
            None means zeros.
        activation: as given to `qrnn`, and likewise all that follow.
        axis: see activation.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    function = _qrnn("qrnn_vjp", o, i)
    return QrnnGrads(
        *_vjp(
            function,
            (z, f, o, i, c0),
            checkpoints,
            dh,
            dfinal,
            {"activation": activation},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


def qrnn_step(
    z: ArrayT,
    f: Array,
    o: Array | None,
    i: Array | None,
    c: Array | None,
    *,
    activation: Activation = "tanh",
) -> tuple[ArrayT, ArrayT]:
    """One step of `qrnn`, for decoding: what a sequence of one step gives.

    Args:
        z: (..., D), as in `qrnn` without the time axis; likewise f, o and i.
        f: see z.
        o: see z.
        i: see z.
        c: (..., D), the state before the step; None means zeros.
        activation: as in `qrnn`.

    Returns:
        (h, c): the output in z's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    function = _qrnn("qrnn", o, i)
    return _step(function, (z, f, o, i, c), {"activation": activation})


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
    """Real-gated linear recurrent unit, Griffin's recurrence.

        log a_t = -c * softplus(lam) * sigmoid(r_t)
        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * sigmoid(i_t) * x_t

    De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language
    Models", 2024, section 2.4. The square root's derivative, which has no bound as a goes to 1, is
    taken as 1000 where it is more (1 - a^2 < 2.5e-7), as in the authors' code.

    Args:
        x: inputs, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default.
            float16, bfloat16, float32 or float64, with any strides.
        r: recurrence gates before the sigmoid, x's shape and dtype.
        i: input gates before the sigmoid, likewise.
        lam: (D,), in x's dtype or its accumulation dtype.
        h0: states before the first step, x's shape without the time axis, in x's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        c: how fast states decay, 0 or more.
        axis: the time axis of x.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.

    Returns:
        h, with x's shape and dtype; with return_final (h, h_T). h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _forward(
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
    """Gradients of `rg_lru`, for NumPy, CuPy and DLPack arrays.

    PyTorch and JAX differentiate `rg_lru` itself. Gates are recomputed. Sums over batch and time
    have a fixed order.

    Args:
        x: as given to `rg_lru`, and likewise all up to h0.
        r: see x.
        i: see x.
        lam: see x.
        h0: see x.
        h: what `rg_lru` returned for the same arguments and options.
        dh: gradient of the loss with respect to h, x's shape and dtype; None means zeros.
        dfinal: gradient with respect to h_T, in h0's shape, in x's dtype or its accumulation dtype;
            None means zeros.
        c: as given to `rg_lru`, and likewise all that follow.
        axis: see c.
        reverse: see c.
        cu_seqlens: see c.
        lengths: see c.
        reset: see c.
        padding_side: see c.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    return RgLruGrads(
        *_vjp(
            _RG_LRU,
            (x, r, i, lam, h0),
            h,
            dh,
            dfinal,
            {"c": c},
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
        )
    )


def rg_lru_step(
    x: ArrayT,
    r: Array,
    i: Array,
    lam: Array,
    h: Array | None,
    *,
    c: float = 8.0,
) -> tuple[ArrayT, ArrayT]:
    """One step of `rg_lru`, for decoding: what a sequence of one step gives.

    Args:
        x: (..., D), as in `rg_lru` without the time axis; likewise r and i.
        r: see x.
        i: see x.
        lam: (D,), as in `rg_lru`.
        h: (..., D), the state before the step; None means zeros.
        c: as in `rg_lru`.

    Returns:
        (h, h): the output in x's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    return _step(_RG_LRU, (x, r, i, lam, h), {"c": c})


# What they all do


def _forward(
    function: Function,
    values: Sequence[Any],
    options: dict[str, Any],
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_checkpoints: bool = False,
) -> Any:
    """A cell's outputs, and what else was asked for.

    Args:
        function: the public function.
        values: its arguments, in their order.
        options: its options beside those of sequences.
        axis: as in the public functions, and likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: see axis.
        return_checkpoints: see axis.
    """
    fn, main, like = function.name, function.main, values[0]
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
            *values,
            **options,
            axis=axis,
            reverse=reverse,
            padding_side=padding_side,
            return_final=return_final,
            **sequences,
        )
    call = Call(fn, function, values, options, axis, reverse, sequences, padding_side)
    layout, library = call.layout, call.library
    state = function.arguments[-1]
    with library.guard(call.main):
        dtype = library.dtype(ACCUMULATION[layout.code])
        h = library.empty_like(call.main)
        final = library.empty(layout.state_shape, dtype, call.main) if return_final else None
        checkpoints = None
        if return_checkpoints and not function.row["state_is_output"]:
            checkpoints = library.empty(call.checkpoints_shape, dtype, call.main)
        inputs, (initial,) = call.describe_arguments(call.arrays)
        _core.cell_forward(
            call.kind,
            inputs,
            initial,
            layout.full("h", h),
            layout.state("final", final),
            call.describe_checkpoints(checkpoints),
            **call.keywords,
        )
        results = [call.restore(main, h)]
        if final is not None:
            results.append(call.restore(state, final))
        if return_checkpoints:
            results.append(results[0] if checkpoints is None else checkpoints)
    results = [give_back(result, like) for result in results]
    return tuple(results) if len(results) > 1 else results[0]


def _vjp(
    function: Function,
    values: Sequence[Any],
    saved: Any,
    dh: Any,
    dfinal: Any,
    options: dict[str, Any],
    *,
    axis: int,
    reverse: bool,
    cu_seqlens: Any,
    lengths: Any,
    reset: Any,
    padding_side: PaddingSide,
) -> list[Any]:
    """The gradients of a function's arguments, in their order.

    Args:
        function: the public function whose gradients these are.
        values: its arguments, in their order.
        saved: its output where that is the state, else its checkpoints.
        dh: as in the public functions, and likewise all that follow.
        dfinal: see dh.
        options: see dh.
        axis: see dh.
        reverse: see dh.
        cu_seqlens: see dh.
        lengths: see dh.
        reset: see dh.
        padding_side: see dh.
    """
    fn, main, like = f"{function.name}_vjp", function.main, values[0]
    sequences = {"cu_seqlens": cu_seqlens, "lengths": lengths, "reset": reset}
    owner = owner_of(fn, main, like)
    if isinstance(owner, Frontend):
        raise TypeError(
            f"{fn}: {main} is a {owner.type_name}, which differentiates {function.name} itself; "
            "expected a NumPy, CuPy or DLPack array"
        )
    state_is_output = function.row["state_is_output"]
    saved_name = "h" if state_is_output else "checkpoints"
    if saved is None:
        raise TypeError(f"{fn}: {saved_name} is None, expected what {function.name} returned")
    extra = {saved_name: saved, "dh": dh, "dfinal": dfinal}
    call = Call(fn, function, values, options, axis, reverse, sequences, padding_side, extra)
    layout, library = call.layout, call.library
    with library.guard(call.main):
        grads = {n: None if v is None else library.empty_like(v) for n, v in call.arrays.items()}
        saved = call.extra[saved_name]
        inputs, (initial,) = call.describe_arguments(call.arrays)
        dinputs, (dinitial,) = call.describe_arguments(grads)
        _core.cell_backward(
            call.kind,
            inputs,
            initial,
            layout.full("h", saved) if state_is_output else call.describe_checkpoints(saved),
            layout.full("dh", call.extra["dh"]),
            layout.state("dfinal", call.extra["dfinal"]),
            dinputs,
            dinitial,
            **call.keywords,
        )
        return [
            None if v is None else give_back(call.restore(n, v), like) for n, v in grads.items()
        ]


def _step(function: Function, values: Sequence[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """The output of one step, and the state after it."""
    *inputs, state = values
    vectors = function.vectors

    def one_step(name: str, array: Any) -> Any:
        return array if array is None or name in vectors else array[..., None, :]

    steps = [one_step(n, v) for n, v in zip(function.arguments, inputs, strict=False)]
    h, final = _forward(function, (*steps, state), options, return_final=True)
    return h[..., 0, :], final
