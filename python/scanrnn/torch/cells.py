"""The fused cells as differentiable functions of tensors.

All take part in autograd to any order, forward mode, torch.func transforms, torch.compile (with
``fullgraph=True`` and a dynamic number of steps), torch.export, checkpointing and autocast, on any
layout without a copy, and save no more for backward than they say.

The cells take the outputs of the matrix products before them (pre-activations): gates, recurrence
and output are one kernel, forward and backward, and backward recomputes the gates. Beside its
inputs a cell saves its output where that is the state (`gilr`, `hgrn`, `min_gru`, `min_lstm`,
`rg_lru`), and one state in 32 steps where it isn't (`sru`, `qrnn`); nothing where no gradient is
asked for. Gradients exist in every order and mode; those above the first, and those of
torch.func.vmap, are composed of PyTorch operators around `scan` and keep the gates.

What all cells have in common:

- inputs are (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default, in
  float16, bfloat16, float32 or float64, with any strides. They share a shape and a dtype; under
  autocast, different dtypes are cast to the widest. More than one batch axis is merged: a view
  where the strides allow it, else a copy;
- vectors are (D,) in the inputs' dtype or its accumulation dtype;
- states are in the inputs' shape without the time axis, (N, D) with cu_seqlens, in the inputs'
  dtype or its accumulation dtype (float32 for 16-bit floats). None means zeros;
- axis, reverse, cu_seqlens, lengths, reset, padding_side and return_final are as in `scan`;
- the result is y in the inputs' shape, dtype and layout in memory, or with return_final (y, final):
  the states after the last valid step of each sequence, in the accumulation dtype;
- a wrong shape, length, offset, option or device is a ValueError, a wrong dtype a TypeError;
- each has a `*_step` for decoding: one step of (..., D) and the state before it (None means zeros)
  in, the output and the state after it out, with the numbers of a sequence of one step.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from scanrnn._array.layout import PaddingSide
from scanrnn._nonlinear import SolveOptions
from scanrnn.cells import Activation, SequenceOptions, SruActivation

from . import _cells
from ._arguments import (
    Call,
    Layout,
    activation_code,
    one_step,
    require_tensor,
    without_padding,
)
from ._ops import OptTensor, check_devices, check_dtype, check_shape
from .diagonal import SolveReport, solve_cell
from .functional import scan

__all__ = [
    "gilr",
    "gilr_step",
    "hgrn",
    "hgrn_step",
    "lru",
    "lru_step",
    "min_gru",
    "min_gru_step",
    "min_lstm",
    "min_lstm_step",
    "qrnn",
    "qrnn_step",
    "rg_lru",
    "rg_lru_step",
    "sru",
    "sru_step",
]


#: What u of the LRU may be, and the dtypes of real and of complex numbers that go with it.
_LRU_DTYPES = {
    torch.complex64: (torch.float32, torch.complex64),
    torch.complex128: (torch.float64, torch.complex128),
    torch.float32: (torch.float32, torch.complex64),
    torch.float64: (torch.float64, torch.complex128),
}


def _cell(
    fn: str,
    kind: int,
    full: dict[str, Any],
    vectors: dict[str, Any],
    state: tuple[str, OptTensor],
    options: list[float],
    axis: int,
    reverse: bool,
    cu_seqlens: Any,
    lengths: Any,
    reset: Any,
    padding_side: str,
    return_final: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """A cell of the core's table on inputs of any axes.

    Args:
        fn: the public function, for error texts.
        kind: the cell's code.
        full: its (B, T, D) inputs by the caller's names, in the table's order.
        vectors: its vectors likewise, which follow them.
        state: name and value of the initial state.
        options: in the table's order.
        axis: as in the public functions, likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: see axis.
    """
    required = _cells.CELLS[kind].required
    name, c0 = state
    call = Call(
        fn, full, required, vectors, {name: c0}, axis, reverse, cu_seqlens, lengths, reset,
        padding_side,
    )  # fmt: skip
    slots = (*call.full, *call.vectors)
    y, final = _cells.cell(
        *slots,
        *(None,) * (_cells.SLOTS - len(slots)),
        *call.states,
        *call.sequences,
        kind,
        options,
        1,
        1,
    )
    y = call.output(y)
    return (y, call.final(final)) if return_final else y


@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Tensor: ...
@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[False] = False,
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, SolveReport]: ...
@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[True],
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, Tensor, SolveReport]: ...
@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
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
    return_report: bool = False,
) -> Any:
    """Simple recurrent unit.

        f'_t = sigmoid(f_t + v_f * c_{t-1} + bias_f),  r'_t = sigmoid(r_t + v_r * c_{t-1} + bias_r)
        c_t = f'_t * c_{t-1} + (1 - f'_t) * u_t
        y_t = r'_t * g(c_t) + (1 - r'_t) * skip_t

    Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", 2018. Without v_f and
    v_r the recurrence is linear in c. With them it is solved, as `scanrnn.torch.diagonal` says.

    Args:
        u: candidates W x, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. float16, bfloat16, float32 or float64, with any strides; all inputs share shape
            and dtype.
        f: forget gates before bias and sigmoid.
        r: reset (highway) gates before bias and sigmoid.
        skip: highway input; None means zeros.
        bias_f: (D,) in u's dtype or its accumulation dtype; None means zeros.
        bias_r: likewise.
        c0: states before the first step; None means zeros.
        v_f: (D,) recurrent weights, in u's dtype or its accumulation dtype: both or none.
        v_r: likewise.
        activation: g, "identity", "tanh" or "relu".
        axis: the time axis, as in `scan`; likewise reverse to padding_side.
        tolerance: as in `scanrnn.torch.diagonal`, where v is given; likewise max_passes and
            segment.
        max_passes: see tolerance.
        segment: see tolerance.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.
        return_report: return a `SolveReport` too, last; only where v is given.

    Returns:
        y, and with return_final c_T, and with return_report the report: a tuple
        if there are several.


    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    fn, code = "sru", activation_code("sru", activation, SruActivation)
    full = {"u": u, "f": f, "r": r, "skip": skip}
    biases = {"bias_f": bias_f, "bias_r": bias_r}
    if v_f is not None or v_r is not None:
        return solve_cell(
            fn,
            "recurrent_sru",
            full,
            {"v_f": v_f, "v_r": v_r, **biases},
            {"c0": c0},
            [code],
            tolerance,
            max_passes,
            segment,
            axis,
            reverse,
            cu_seqlens,
            lengths,
            reset,
            padding_side,
            return_final,
            return_report,
        )
    if return_report:
        raise ValueError(f"{fn}: return_report is True without v_f and v_r, expected False")
    return _cell(
        fn,
        _cells.KINDS["sru"],
        full,
        biases,
        ("c0", c0),
        [code],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


def sru_step(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
) -> tuple[Tensor, Tensor]:
    """One step of `sru`, for decoding: what a sequence of one step gives.

    Args:
        u: (..., D), as in `sru` without the time axis, and likewise all up to c.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: see u.
        bias_r: see u.
        c: the state before the step, (..., D); None means zeros.
        v_f: as in `sru`.
        v_r: as in `sru`.
        activation: as in `sru`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = sru(
        one_step(u),
        one_step(f),
        one_step(r),
        one_step(skip),
        bias_f,
        bias_r,
        c,
        v_f=v_f,
        v_r=v_r,
        activation=activation,
        return_final=True,
    )
    return y.squeeze(-2), state


@overload
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Gated impulse linear recurrence.

        f'_t = sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)

    Martin & Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", 2018. The
    same as f-pooling of the QRNN.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides;
            all inputs share shape and dtype.
        z: impulses before g.
        h0: states before the first step; None means zeros.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (x + 1/2 for
            x >= 0, sigmoid(x) below).
        axis: the time axis, as in `scan`; likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, or (h, h_T) with return_final.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    return _cell(
        "gilr",
        _cells.KINDS["gilr"],
        {"f": f, "z": z},
        {},
        ("h0", h0),
        [0, activation_code("gilr", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


def gilr_step(
    f: Tensor,
    z: Tensor,
    h: Tensor | None = None,
    *,
    activation: Activation = "tanh",
) -> tuple[Tensor, Tensor]:
    """One step of `gilr`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `gilr` without the time axis, and likewise all up to h.
        z: see f.
        h: the state before the step, (..., D); None means zeros.
        activation: as in `gilr`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = gilr(one_step(f), one_step(z), h, activation=activation, return_final=True)
    return y.squeeze(-2), state


@overload
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Hierarchically gated recurrent unit: a gated recurrence with a lower bound on its gates.

        f'_t = bound + (1 - bound) * sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)

    Qin et al., "Hierarchically Gated Recurrent Neural Network for Sequence Modeling", 2023, in its
    real form.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides;
            all inputs share shape and dtype.
        z: candidates before g.
        bound: (D,), lower bounds of the gates, from 0 to 1 (the values are not checked), in f's
            dtype or its accumulation dtype; None means zeros.
        h0: states before the first step; None means zeros.
        activation: g, as in `gilr`.
        axis: the time axis, as in `scan`; likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, or (h, h_T) with return_final.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    return _cell(
        "hgrn",
        _cells.KINDS["gilr"],
        {"f": f, "z": z},
        {"bound": bound},
        ("h0", h0),
        [0, activation_code("hgrn", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


def hgrn_step(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h: Tensor | None = None,
    *,
    activation: Activation = "silu",
) -> tuple[Tensor, Tensor]:
    """One step of `hgrn`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `hgrn` without the time axis, and likewise all up to h.
        z: see f.
        bound: see f.
        h: the state before the step, (..., D); None means zeros.
        activation: as in `hgrn`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = hgrn(one_step(f), one_step(z), bound, h, activation=activation, return_final=True)
    return y.squeeze(-2), state


@overload
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Minimal gated recurrent unit, in plain space: states and h0 may have any sign.

        z'_t = sigmoid(z_t)
        h_t = (1 - z'_t) * h_{t-1} + z'_t * g(v_t)

    Feng et al., "Were RNNs All We Needed?", 2024, section 3.1. Their log-space form has g
    "positive", and applies g to h0 as well; here h0 is the state itself.

    Args:
        z: update gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides;
            all inputs share shape and dtype.
        v: candidates before g.
        h0: states before the first step; None means zeros.
        activation: g, as in `gilr`.
        axis: the time axis, as in `scan`; likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, or (h, h_T) with return_final.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    return _cell(
        "min_gru",
        _cells.KINDS["gilr"],
        {"z": z, "v": v},
        {},
        ("h0", h0),
        [1, activation_code("min_gru", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


def min_gru_step(
    z: Tensor,
    v: Tensor,
    h: Tensor | None = None,
    *,
    activation: Activation = "identity",
) -> tuple[Tensor, Tensor]:
    """One step of `min_gru`, for decoding: what a sequence of one step gives.

    Args:
        z: (..., D), as in `min_gru` without the time axis, and likewise all up to h.
        v: see z.
        h: the state before the step, (..., D); None means zeros.
        activation: as in `min_gru`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = min_gru(one_step(z), one_step(v), h, activation=activation, return_final=True)
    return y.squeeze(-2), state


@overload
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Minimal LSTM with normalised gates, in plain space: states and h0 may have any sign.

        f'_t = sigmoid(f_t) / (sigmoid(f_t) + sigmoid(i_t)),  i'_t = 1 - f'_t
        h_t = f'_t * h_{t-1} + i'_t * g(v_t)

    Feng et al., "Were RNNs All We Needed?", 2024, section 3.2. Stable for gates of any size. Their
    log-space form has g "positive", and applies g to h0 as well; here h0 is the state itself.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides;
            all inputs share shape and dtype.
        i: input gates before the sigmoid.
        v: candidates before g.
        h0: states before the first step; None means zeros.
        activation: g, as in `gilr`.
        axis: the time axis, as in `scan`; likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, or (h, h_T) with return_final.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    return _cell(
        "min_lstm",
        _cells.KINDS["min_lstm"],
        {"f": f, "i": i, "v": v},
        {},
        ("h0", h0),
        [activation_code("min_lstm", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


def min_lstm_step(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h: Tensor | None = None,
    *,
    activation: Activation = "identity",
) -> tuple[Tensor, Tensor]:
    """One step of `min_lstm`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `min_lstm` without the time axis, and likewise all up to h.
        i: see f.
        v: see f.
        h: the state before the step, (..., D); None means zeros.
        activation: as in `min_lstm`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = min_lstm(
        one_step(f), one_step(i), one_step(v), h, activation=activation, return_final=True
    )
    return y.squeeze(-2), state


@overload
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Pooling of the quasi-recurrent network, f, fo or ifo by which gates are given.

        f'_t, o'_t, i'_t = sigmoid(f_t), sigmoid(o_t), sigmoid(i_t);  i'_t = 1 - f'_t without i
        c_t = f'_t * c_{t-1} + i'_t * g(z_t)
        h_t = o'_t * c_t;  h_t = c_t without o

    Bradbury et al., "Quasi-Recurrent Neural Networks", 2017, equations 3-5. A channel whose f is
    +inf keeps its state in that step (zoneout): c_t = c_{t-1} with f-pooling and fo-pooling.

    Args:
        z: candidates before g, (batch..., channel) with the time axis inserted at `axis`: (B, T, D)
            by default. float16, bfloat16, float32 or float64, with any strides; all inputs share
            shape and dtype.
        f: forget gates before the sigmoid.
        o: output gates before the sigmoid.
        i: input gates before the sigmoid, not without o.
        c0: states before the first step; None means zeros.
        activation: g, as in `gilr`.
        axis: the time axis, as in `scan`; likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, or (h, c_T) with return_final.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    if o is None and i is not None:
        raise ValueError("qrnn: i was given without o, expected both (ifo-pooling) or neither")
    code = activation_code("qrnn", activation)
    pooling: tuple[str, dict[str, Any], list[float]]
    if o is None:
        pooling = "gilr", {"f": f, "z": z}, [0, code]
    else:
        pooling = "qrnn", {"z": z, "f": f, "o": o, "i": i}, [code]
    kind, inputs, options = pooling
    return _cell(
        "qrnn",
        _cells.KINDS[kind],
        inputs,
        {},
        ("c0", c0),
        options,
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


def qrnn_step(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c: Tensor | None = None,
    *,
    activation: Activation = "tanh",
) -> tuple[Tensor, Tensor]:
    """One step of `qrnn`, for decoding: what a sequence of one step gives.

    Args:
        z: (..., D), as in `qrnn` without the time axis, and likewise all up to c.
        f: see z.
        o: see z.
        i: see z.
        c: the state before the step, (..., D); None means zeros.
        activation: as in `qrnn`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = qrnn(
        one_step(z),
        one_step(f),
        one_step(o),
        one_step(i),
        c,
        activation=activation,
        return_final=True,
    )
    return y.squeeze(-2), state


@overload
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Real-gated linear recurrent unit of Griffin.

        a_t = exp(-c * softplus(lam) * sigmoid(r_t))
        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * (sigmoid(i_t) * x_t)

    De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language
    Models", 2024, section 2.4, with lam = -Lambda (there a = sigmoid(Lambda)), as RecurrentGemma's
    ``a_param``. 1 - a^2 is computed by expm1, so that it keeps its digits where a is close to 1,
    and the derivative of its root, 1 / (2 sqrt(1 - a^2)), is taken to be 1000 where it is more, as
    published: gradients are finite for a = 1 too.

    Args:
        x: inputs, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default.
            float16, bfloat16, float32 or float64, with any strides; all inputs share shape and
            dtype.
        r: recurrence gates before the sigmoid.
        i: input gates before the sigmoid.
        lam: (D,), the decay rates before softplus, in x's dtype or its accumulation dtype.
        h0: states before the first step; None means zeros.
        c: factor of the exponent.
        axis: the time axis, as in `scan`; likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, or (h, h_T) with return_final.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    require_tensor("rg_lru", "lam", lam)
    return _cell(
        "rg_lru",
        _cells.KINDS["rg_lru"],
        {"x": x, "r": r, "i": i},
        {"lam": lam},
        ("h0", h0),
        [float(c)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


def rg_lru_step(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h: Tensor | None = None,
    *,
    c: float = 8.0,
) -> tuple[Tensor, Tensor]:
    """One step of `rg_lru`, for decoding: what a sequence of one step gives.

    Args:
        x: (..., D), as in `rg_lru` without the time axis, and likewise all up to h.
        r: see x.
        i: see x.
        lam: see x.
        h: the state before the step, (..., D); None means zeros.
        c: as in `rg_lru`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = rg_lru(one_step(x), one_step(r), one_step(i), lam, h, c=c, return_final=True)
    return y.squeeze(-2), state


@overload
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Linear recurrent unit: a complex diagonal recurrence with fixed, stable eigenvalues.

        lambda = exp(-exp(nu) + i exp(theta))
        h_t = lambda * h_{t-1} + gamma * u_t

    Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023, section 3.
    |lambda| < 1 for every nu. It is `scan` with gates broadcast over batch and time: only lambda, h
    and h0 are saved. Complex gradients follow PyTorch's convention.

    Args:
        u: inputs B x, (B, T, D) by default, complex64 or complex128, or float32 or float64.
        nu: (D,), logarithms of the decay rates, float32 or float64 like the parts of u.
        theta: (D,), logarithms of the phases in radians a step, in nu's dtype.
        gamma: (D,), factor of the inputs, in nu's dtype; None means sqrt(1 - |lambda|^2). It makes
            a scaled copy of u: where B is a weight of yours, scale its rows and pass ones.
        h0: states before the first step, complex, u's shape without the time axis; None means
            zeros.
        axis: the time axis, as in `scan`; likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, complex, in u's shape; or (h, h_T) with return_final.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    fn = "lru"
    require_tensor(fn, "u", u)
    check_dtype(fn, "u", u, _LRU_DTYPES)
    channel = -2 if u.ndim > 1 and axis in (-1, u.ndim - 1) else -1
    D = 1 if u.ndim == 1 else u.shape[channel]
    real_dtype, complex_dtype = _LRU_DTYPES[u.dtype]
    require_tensor(fn, "nu", nu)
    require_tensor(fn, "theta", theta)
    for name, t in (("nu", nu), ("theta", theta), ("gamma", gamma)):
        check_dtype(fn, name, t, (real_dtype,))
        check_shape(fn, name, t, (D,))
    check_devices(fn, u=u, nu=nu, theta=theta, gamma=gamma, h0=h0)
    rate = torch.exp(nu)
    if gamma is None:
        gamma = torch.sqrt(-torch.expm1(-2 * rate))
    if lengths is not None:
        # The scan reads no padding, but the product with gamma would carry a NaN from there.
        layout = Layout(fn, "u", u, axis)
        _, lengths, *_ = layout.sequences(False, None, lengths, None, padding_side)
        u = layout.restore(without_padding(layout.canonical(u), lengths, padding_side == "left"))
        lengths = lengths.squeeze(0) if u.ndim < 3 else lengths

    def along(t: Tensor) -> Tensor:
        return t.unsqueeze(-1) if channel == -2 else t

    return scan(
        along(torch.exp(torch.complex(-rate, torch.exp(theta)))),
        (along(gamma) * u).to(complex_dtype),
        h0,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
    )


def lru_step(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of `lru`, for decoding: what a sequence of one step gives.

    Args:
        u: (..., D), as in `lru` without the time axis, and likewise all up to h.
        nu: see u.
        theta: see u.
        gamma: see u.
        h: the state before the step, (..., D); None means zeros.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = lru(one_step(u), nu, theta, gamma, h, return_final=True)
    return y.squeeze(-2), state
