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

from scanrnn import _docs
from scanrnn._array.layout import PaddingSide
from scanrnn._array.options import solver_numbers
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

_documented = _docs.documented(_docs.TORCH)


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


def solve_step(
    fn: str,
    kind: str,
    full: dict[str, Any],
    vectors: dict[str, Any],
    states: dict[str, OptTensor],
    options: list[float],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`solve_cell` on one step: inputs have no time axis."""
    y, final = solve_cell(
        fn, kind, one_step(fn, full), vectors, states, options,
        tolerance=None, max_passes=8, segment=None, axis=-2, reverse=False, cu_seqlens=None,
        lengths=None, reset=None, padding_side="right", return_final=True, return_report=False,
    )  # fmt: skip
    return y.squeeze(-2), final if isinstance(final, tuple) else (final,)


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
@_documented
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
    """Gated recurrent unit with diagonal recurrent weights."""
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


@_documented
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
    """One step of `diagonal_gru`, for decoding: what a sequence of one step gives."""
    full, vectors = {"r": r, "z": z, "n": n}, {"u_r": u_r, "u_z": u_z, "u_n": u_n, "b_n": b_n}
    y, (final,) = solve_step("diagonal_gru_step", "diagonal_gru", full, vectors, {"h": h}, [])
    return y, final


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
@_documented
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
    """Long short-term memory with diagonal recurrent weights, and optional peepholes."""
    fn = "diagonal_lstm"
    full, vectors = _lstm_arguments(fn, i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o)
    return solve_cell(
        fn,
        "diagonal_lstm",
        full,
        vectors,
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


@_documented
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
    """One step of `diagonal_lstm`, for decoding: what a sequence of one step gives."""
    full, vectors = _lstm_arguments(
        "diagonal_lstm_step", i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o
    )
    states = {"h": h, "c": c}
    y, final = solve_step("diagonal_lstm_step", "diagonal_lstm", full, vectors, states, [])
    return y, (final[0], final[1])


def _lstm_arguments(
    fn: str,
    i: OptTensor,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    u_i: OptTensor,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    w_i: OptTensor,
    w_f: OptTensor,
    w_o: OptTensor,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs and the vectors, in the core's order."""
    for name, t in (("u_i", u_i), ("w_i", w_i)):
        if i is None and t is not None:
            raise ValueError(f"{fn}: {name} was given without i, expected None for coupled gates")
    if i is not None:
        require_tensor(fn, "u_i", u_i)
    full = {"f": f, "g": g, "o": o, "i": i}
    return full, {
        "u_f": u_f, "u_g": u_g, "u_o": u_o, "u_i": u_i, "w_f": w_f, "w_o": w_o, "w_i": w_i
    }  # fmt: skip


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
@_documented
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
    """Independently recurrent network."""
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


@_documented
def indrnn_step(
    p: Tensor, u: Tensor, h: Tensor | None = None, *, activation: SruActivation = "relu"
) -> tuple[Tensor, Tensor]:
    """One step of `indrnn`, for decoding: what a sequence of one step gives."""
    options: list[float] = [activation_code("indrnn_step", activation, SruActivation)]
    y, (final,) = solve_step("indrnn_step", "indrnn", {"p": p}, {"u": u}, {"h": h}, options)
    return y, final
