"""The nonlinear diagonal cells as functions: pre-activations in, outputs and states out."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from jax import Array
from jax.typing import ArrayLike

from .. import _docs
from .._array.layout import PaddingSide
from ..cells import SolveOptions, SruActivation
from ._arguments import (
    diagonal_gru_call,
    diagonal_lstm_call,
    indrnn_call,
)
from ._solve import results, solve, solve_step

_documented = _docs.documented(_docs.JAX)

# ---- Diagonal GRU --------------------------------------------------------------------------------


@overload
def diagonal_gru(
    r: ArrayLike,
    z: ArrayLike,
    n: ArrayLike,
    u_r: ArrayLike,
    u_z: ArrayLike,
    u_n: ArrayLike,
    b_n: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Array: ...
@overload
def diagonal_gru(
    r: ArrayLike,
    z: ArrayLike,
    n: ArrayLike,
    u_r: ArrayLike,
    u_z: ArrayLike,
    u_n: ArrayLike,
    b_n: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Array, Array]: ...
@overload
def diagonal_gru(
    r: ArrayLike,
    z: ArrayLike,
    n: ArrayLike,
    u_r: ArrayLike,
    u_z: ArrayLike,
    u_n: ArrayLike,
    b_n: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    return_final: bool = False,
    return_report: bool,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def diagonal_gru(
    r: ArrayLike,
    z: ArrayLike,
    n: ArrayLike,
    u_r: ArrayLike,
    u_z: ArrayLike,
    u_n: ArrayLike,
    b_n: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    return_final: bool = False,
    return_report: bool = False,
) -> Any:
    """Gated recurrent unit with diagonal recurrent weights, solved in parallel over time."""
    h, final, report = solve(
        *diagonal_gru_call("diagonal_gru", r, z, n, u_r, u_z, u_n, b_n, h0),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        tolerance=tolerance,
        max_passes=max_passes,
        segment=segment,
        return_report=return_report,
    )
    return results(h, final[0], report, return_final, return_report)


@_documented
def diagonal_gru_step(
    r: ArrayLike,
    z: ArrayLike,
    n: ArrayLike,
    u_r: ArrayLike,
    u_z: ArrayLike,
    u_n: ArrayLike,
    b_n: ArrayLike | None,
    h: ArrayLike | None,
) -> tuple[Array, Array]:
    """One step of `diagonal_gru`, for decoding: what a sequence of one step gives."""
    call = diagonal_gru_call("diagonal_gru_step", r, z, n, u_r, u_z, u_n, b_n, h)
    h, (state,) = solve_step(*call)
    return h, state


# ---- Diagonal LSTM -------------------------------------------------------------------------------


@overload
def diagonal_lstm(
    i: ArrayLike | None,
    f: ArrayLike,
    g: ArrayLike,
    o: ArrayLike,
    u_i: ArrayLike | None,
    u_f: ArrayLike,
    u_g: ArrayLike,
    u_o: ArrayLike,
    *,
    w_i: ArrayLike | None = None,
    w_f: ArrayLike | None = None,
    w_o: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Array: ...
@overload
def diagonal_lstm(
    i: ArrayLike | None,
    f: ArrayLike,
    g: ArrayLike,
    o: ArrayLike,
    u_i: ArrayLike | None,
    u_f: ArrayLike,
    u_g: ArrayLike,
    u_o: ArrayLike,
    *,
    w_i: ArrayLike | None = None,
    w_f: ArrayLike | None = None,
    w_o: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Array, tuple[Array, Array]]: ...
@overload
def diagonal_lstm(
    i: ArrayLike | None,
    f: ArrayLike,
    g: ArrayLike,
    o: ArrayLike,
    u_i: ArrayLike | None,
    u_f: ArrayLike,
    u_g: ArrayLike,
    u_o: ArrayLike,
    *,
    w_i: ArrayLike | None = None,
    w_f: ArrayLike | None = None,
    w_o: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    return_final: bool = False,
    return_report: bool,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def diagonal_lstm(
    i: ArrayLike | None,
    f: ArrayLike,
    g: ArrayLike,
    o: ArrayLike,
    u_i: ArrayLike | None,
    u_f: ArrayLike,
    u_g: ArrayLike,
    u_o: ArrayLike,
    *,
    w_i: ArrayLike | None = None,
    w_f: ArrayLike | None = None,
    w_o: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    return_final: bool = False,
    return_report: bool = False,
) -> Any:
    """Long short-term memory with diagonal recurrent weights, solved in parallel over time."""
    h, final, report = solve(
        *diagonal_lstm_call("diagonal_lstm", i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h0, c0),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        tolerance=tolerance,
        max_passes=max_passes,
        segment=segment,
        return_report=return_report,
    )
    return results(h, final, report, return_final, return_report)


@_documented
def diagonal_lstm_step(
    i: ArrayLike | None,
    f: ArrayLike,
    g: ArrayLike,
    o: ArrayLike,
    u_i: ArrayLike | None,
    u_f: ArrayLike,
    u_g: ArrayLike,
    u_o: ArrayLike,
    h: ArrayLike | None,
    c: ArrayLike | None,
    *,
    w_i: ArrayLike | None = None,
    w_f: ArrayLike | None = None,
    w_o: ArrayLike | None = None,
) -> tuple[Array, tuple[Array, Array]]:
    """One step of `diagonal_lstm`, for decoding: what a sequence of one step gives."""
    fn = "diagonal_lstm_step"
    call = diagonal_lstm_call(fn, i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h, c)
    out, (h, c) = solve_step(*call)
    return out, (h, c)


# ---- IndRNN --------------------------------------------------------------------------------------


@overload
def indrnn(
    p: ArrayLike,
    u: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Array: ...
@overload
def indrnn(
    p: ArrayLike,
    u: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Array, Array]: ...
@overload
def indrnn(
    p: ArrayLike,
    u: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: SruActivation = "relu",
    return_final: bool = False,
    return_report: bool,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def indrnn(
    p: ArrayLike,
    u: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: SruActivation = "relu",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    return_final: bool = False,
    return_report: bool = False,
) -> Any:
    """Independently recurrent network, solved in parallel over time."""
    h, final, report = solve(
        *indrnn_call("indrnn", p, u, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        tolerance=tolerance,
        max_passes=max_passes,
        segment=segment,
        return_report=return_report,
    )
    return results(h, final[0], report, return_final, return_report)


@_documented
def indrnn_step(
    p: ArrayLike,
    u: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: SruActivation = "relu",
) -> tuple[Array, Array]:
    """One step of `indrnn`, for decoding: what a sequence of one step gives."""
    h, (state,) = solve_step(*indrnn_call("indrnn_step", p, u, h, activation))
    return h, state
