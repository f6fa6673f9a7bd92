"""Nonlinear cells with diagonal recurrent weights, parallel over time, as differentiable functions.

Their gates see the state, so they are no linear recurrences. They are solved by multiple shooting
(Bock and Plitt, "A multiple shooting algorithm for direct solution of optimal control problems",
1984): segments of time run at once from estimates of their start states, with their tangents, and
the starts are corrected until none moves. Results are those of one step after the other, to the
tolerance; a channel of a sequence that does not come to rest is run serially from where it doesn't,
and the `SolveReport` says so. Nothing waits for the device, so CUDA graphs record all of it.

Inputs, states, dtypes and sequences are as in `scanrnn.torch.cells`, and:

- tolerance: a segment's start has come to rest once it moves by no more than tolerance * max(1,
  abs(start)). None means 1e-13 for float64 and 1e-6 for other dtypes;
- max_passes: runs of the segments before the rest is run serially; 0 runs all serially;
- segment: steps of a segment; None chooses, from the number of steps and channels;
- return_report: return a report too: per sequence (batch axes flattened) whether it converged, in
  how many passes, and how far from the serial result it may be. Looking at it waits for the device.

Beside inputs and output, `diagonal_lstm` and `sru` with v save the states c for backward, which
recomputes the gates and is one exact linear scan. Forward mode and derivatives above the first are
composed of PyTorch operators, in every order; there, the two numbers of the LSTM's state take
memory for log2(T) times the states.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from scanrnn._array.layout import PaddingSide
from scanrnn._nonlinear import SolveOptions
from scanrnn._solve_report import SolveReport
from scanrnn.cells import SruActivation

from . import _solve
from ._arguments import Call, activation_code, one_step, require_tensor
from ._ops import ACCUMULATION, OptTensor

__all__ = [
    "SolveReport",
    "diagonal_gru",
    "diagonal_gru_step",
    "diagonal_lstm",
    "diagonal_lstm_step",
    "indrnn",
    "indrnn_step",
]


def solver_numbers(
    fn: str, tolerance: float | None, max_passes: int, segment: int | None
) -> tuple[float, int, int]:
    """The operator's tolerance, max_passes and segment, where 0 means a default.

    Raises:
        ValueError: one of them is out of range.
    """
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"{fn}: tolerance is {tolerance}, expected a positive number")
    if max_passes < 0:
        raise ValueError(f"{fn}: max_passes is {max_passes}, expected at least 0")
    if segment is not None and segment < 1:
        raise ValueError(f"{fn}: segment is {segment}, expected at least 1")
    return tolerance or 0.0, max_passes, segment or 0


def solve_cell(
    fn: str,
    kind: str,
    full: dict[str, Any],
    vectors: dict[str, Any],
    states: dict[str, OptTensor],
    options: list[float],
    tolerance: float | None,
    max_passes: int,
    segment: int | None,
    axis: int,
    reverse: bool,
    cu_seqlens: Any,
    lengths: Any,
    reset: Any,
    padding_side: str,
    return_final: bool,
    return_report: bool,
) -> Any:
    """A nonlinear cell of the core's table on inputs of any axes; see `Call`."""
    cell = _solve.CELLS[_solve.KINDS[kind]]
    numbers = solver_numbers(fn, tolerance, max_passes, segment)
    for (name, t), needed in zip(vectors.items(), cell.required[cell.full :], strict=True):
        if needed:
            require_tensor(fn, name, t)
    call = Call(
        fn, full, cell.required, vectors, states, axis, reverse, cu_seqlens, lengths, reset,
        padding_side,
    )  # fmt: skip
    present = [t for t in call.vectors if t is not None]
    if any(t.dtype != present[0].dtype for t in present):
        present = [t.to(ACCUMULATION[t.dtype]) for t in present]
    y, finals, report = _solve.solve(
        *call.full,
        *(None,) * (_solve.SLOTS - len(call.full)),
        torch.stack(present).unsqueeze(0),
        None,
        None,
        *call.states,
        *(None,) * (_solve.STATES - len(call.states)),
        *call.sequences,
        cell.kind,
        options,
        [t is not None for t in call.vectors],
        1,
        1,
        *numbers,
    )
    result: list[Any] = [call.output(y)]
    if return_final:
        states_after = tuple(call.final(t) for t in finals)
        result.append(states_after[0] if len(states_after) == 1 else states_after)
    if return_report:
        result.append(SolveReport(report[0]))
    return result[0] if len(result) == 1 else tuple(result)


@overload
def diagonal_gru(
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Tensor: ...
@overload
def diagonal_gru(
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def diagonal_gru(
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[False] = False,
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, SolveReport]: ...
@overload
def diagonal_gru(
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[True],
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, Tensor, SolveReport]: ...
@overload
def diagonal_gru(
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
def diagonal_gru(
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: Tensor | None = None,
    h0: Tensor | None = None,
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
    """Gated recurrent unit with diagonal recurrent weights.

        r'_t = sigmoid(r_t + u_r * h_{t-1}),  z'_t = sigmoid(z_t + u_z * h_{t-1})
        n'_t = tanh(n_t + r'_t * (u_n * h_{t-1} + b_n))
        h_t = (1 - z'_t) * n'_t + z'_t * h_{t-1}

    Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, in torch.nn.GRU's
    form, with vectors in place of the recurrent matrices.

    Args:
        r: reset gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides;
            r, z and n share shape and dtype.
        z: update gates before the sigmoid.
        n: candidates before the tanh.
        u_r: (D,) recurrent weights, in r's dtype or its accumulation dtype.
        u_z: likewise.
        u_n: likewise.
        b_n: (D,) the recurrent bias of the candidate, likewise; None means zeros.
        h0: states before the first step; None means zeros.
        axis: the time axis, as in `scan`; likewise reverse to padding_side.
        tolerance: see the module, likewise max_passes and segment.
        max_passes: see tolerance.
        segment: see tolerance.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.
        return_report: return a `SolveReport` too, last.

    Returns:
        h, and with return_final h_T, and with return_report the report: a tuple
        if there are several.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    return solve_cell(
        "diagonal_gru",
        "diagonal_gru",
        {"r": r, "z": z, "n": n},
        {"u_r": u_r, "u_z": u_z, "u_n": u_n, "b_n": b_n},
        {"h0": h0},
        [],
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


def diagonal_gru_step(
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of `diagonal_gru`, for decoding: what a sequence of one step gives.

    Args:
        r: (..., D), as in `diagonal_gru` without the time axis, and likewise all up to h.
        z: see r.
        n: see r.
        u_r: see r.
        u_z: see r.
        u_n: see r.
        b_n: see r.
        h: the state before the step, (..., D); None means zeros.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = diagonal_gru(
        one_step(r), one_step(z), one_step(n), u_r, u_z, u_n, b_n, h, return_final=True
    )
    return y.squeeze(-2), state


@overload
def diagonal_lstm(
    i: Tensor | None,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: Tensor | None,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    *,
    w_i: Tensor | None = None,
    w_f: Tensor | None = None,
    w_o: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Tensor: ...
@overload
def diagonal_lstm(
    i: Tensor | None,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: Tensor | None,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    *,
    w_i: Tensor | None = None,
    w_f: Tensor | None = None,
    w_o: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...
@overload
def diagonal_lstm(
    i: Tensor | None,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: Tensor | None,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    *,
    w_i: Tensor | None = None,
    w_f: Tensor | None = None,
    w_o: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    return_final: Literal[False] = False,
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, SolveReport]: ...
@overload
def diagonal_lstm(
    i: Tensor | None,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: Tensor | None,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    *,
    w_i: Tensor | None = None,
    w_f: Tensor | None = None,
    w_o: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    return_final: Literal[True],
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, tuple[Tensor, Tensor], SolveReport]: ...
@overload
def diagonal_lstm(
    i: Tensor | None,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: Tensor | None,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    *,
    w_i: Tensor | None = None,
    w_f: Tensor | None = None,
    w_o: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
def diagonal_lstm(
    i: Tensor | None,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: Tensor | None,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    *,
    w_i: Tensor | None = None,
    w_f: Tensor | None = None,
    w_o: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
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
    """Long short-term memory with diagonal recurrent weights, and optional peepholes.

        f'_t = sigmoid(f_t + u_f * h_{t-1} + w_f * c_{t-1})
        i'_t = sigmoid(i_t + u_i * h_{t-1} + w_i * c_{t-1}), or 1 - f'_t without i
        g'_t = tanh(g_t + u_g * h_{t-1})
        c_t = f'_t * c_{t-1} + i'_t * g'_t
        o'_t = sigmoid(o_t + u_o * h_{t-1} + w_o * c_t)
        h_t = o'_t * tanh(c_t)

    Hochreiter & Schmidhuber, "Long short-term memory", 1997, in torch.nn.LSTM's form, with vectors
    in place of the recurrent matrices; peepholes w: Gers et al., "Learning precise timing with LSTM
    recurrent networks", 2002; coupled gates: Greff et al., "LSTM: a search space odyssey", 2017.

    Args:
        i: input gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64, with any strides;
            i, f, g and o share shape and dtype. None couples them to the forget gates.
        f: forget gates before the sigmoid.
        g: candidates before the tanh.
        o: output gates before the sigmoid.
        u_i: (D,) recurrent weights, in f's dtype or its accumulation dtype; None where i is.
        u_f: (D,) likewise.
        u_g: likewise.
        u_o: likewise.
        w_i: (D,) peepholes, likewise; None means zeros, and must be where i is None.
        w_f: likewise; None means zeros.
        w_o: likewise.
        h0: outputs before the first step; None means zeros.
        c0: states of the memory before the first step; None means zeros.
        axis: the time axis, as in `scan`; likewise reverse to padding_side.
        tolerance: see the module, likewise max_passes and segment.
        max_passes: see tolerance.
        segment: see tolerance.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.
        return_report: return a `SolveReport` too, last.

    Returns:
        h, and with return_final (h_T, c_T), and with return_report the report: a tuple
        if there are several.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    fn = "diagonal_lstm"
    for name, t in (("u_i", u_i), ("w_i", w_i)):
        if i is None and t is not None:
            raise ValueError(f"{fn}: {name} was given without i, expected None for coupled gates")
    if i is not None:
        require_tensor(fn, "u_i", u_i)
    return solve_cell(
        fn,
        "diagonal_lstm",
        {"f": f, "g": g, "o": o, "i": i},
        {"u_f": u_f, "u_g": u_g, "u_o": u_o, "u_i": u_i, "w_f": w_f, "w_o": w_o, "w_i": w_i},
        {"h0": h0, "c0": c0},
        [],
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


def diagonal_lstm_step(
    i: Tensor | None,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: Tensor | None,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    h: Tensor | None = None,
    c: Tensor | None = None,
    *,
    w_i: Tensor | None = None,
    w_f: Tensor | None = None,
    w_o: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One step of `diagonal_lstm`, for decoding: what a sequence of one step gives.

    Args:
        i: (..., D), as in `diagonal_lstm` without the time axis, and likewise all up to u_o.
        f: see i.
        g: see i.
        o: see i.
        u_i: see i.
        u_f: see i.
        u_g: see i.
        u_o: see i.
        h: the output of the step before, (..., D); None means zeros.
        c: the state of the memory, likewise.
        w_i: as in `diagonal_lstm`, likewise w_f and w_o.
        w_f: see w_i.
        w_o: see w_i.

    Returns:
        The output in the inputs' shape and dtype, and (h, c) after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = diagonal_lstm(
        one_step(i), one_step(f), one_step(g), one_step(o), u_i, u_f, u_g, u_o,
        w_i=w_i, w_f=w_f, w_o=w_o, h0=h, c0=c, return_final=True,
    )  # fmt: skip
    return y.squeeze(-2), state


@overload
def indrnn(
    p: Tensor,
    u: Tensor,
    h0: Tensor | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Tensor: ...
@overload
def indrnn(
    p: Tensor,
    u: Tensor,
    h0: Tensor | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def indrnn(
    p: Tensor,
    u: Tensor,
    h0: Tensor | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: Literal[False] = False,
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, SolveReport]: ...
@overload
def indrnn(
    p: Tensor,
    u: Tensor,
    h0: Tensor | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: Literal[True],
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, Tensor, SolveReport]: ...
@overload
def indrnn(
    p: Tensor,
    u: Tensor,
    h0: Tensor | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
def indrnn(
    p: Tensor,
    u: Tensor,
    h0: Tensor | None = None,
    *,
    activation: SruActivation = "relu",
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
    """Independently recurrent network.

        h_t = g(p_t + u * h_{t-1})

    Li et al., "Independently recurrent neural network (IndRNN): building a longer and deeper RNN",
    2018, equation 2.

    Args:
        p: inputs before g, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. float16, bfloat16, float32 or float64, with any strides.
        u: (D,) recurrent weights, in p's dtype or its accumulation dtype.
        h0: states before the first step; None means zeros.
        activation: g, "identity", "tanh" or "relu".
        axis: the time axis, as in `scan`; likewise reverse to padding_side.
        tolerance: see the module, likewise max_passes and segment.
        max_passes: see tolerance.
        segment: see tolerance.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis; the output is 0 in padding.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.
        return_report: return a `SolveReport` too, last.

    Returns:
        h, and with return_final h_T, and with return_report the report: a tuple
        if there are several.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    return solve_cell(
        "indrnn",
        "indrnn",
        {"p": p},
        {"u": u},
        {"h0": h0},
        [activation_code("indrnn", activation, SruActivation)],
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


def indrnn_step(
    p: Tensor, u: Tensor, h: Tensor | None = None, *, activation: SruActivation = "relu"
) -> tuple[Tensor, Tensor]:
    """One step of `indrnn`, for decoding: what a sequence of one step gives.

    Args:
        p: (..., D), as in `indrnn` without the time axis.
        u: as in `indrnn`.
        h: the state before the step, (..., D); None means zeros.
        activation: as in `indrnn`.

    Returns:
        The output in the inputs' shape and dtype, and the state after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    y, state = indrnn(one_step(p), u, h, activation=activation, return_final=True)
    return y.squeeze(-2), state
