"""The nonlinear diagonal cells as functions: pre-activations in, outputs and states out."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from jax import Array
from jax.typing import ArrayLike

from .._array.layout import PaddingSide
from ..cells import SruActivation
from ._arguments import (
    SolveOptions,
    diagonal_gru_call,
    diagonal_lstm_call,
    indrnn_call,
)
from ._solve import results, solve, solve_step

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
    """Gated recurrent unit with diagonal recurrent weights, solved in parallel over time.

        r'_t = sigmoid(r_t + u_r * h_{t-1}),  z'_t = sigmoid(z_t + u_z * h_{t-1})
        n'_t = tanh(n_t + r'_t * (u_n * h_{t-1} + b_n))
        h_t = (1 - z'_t) * n'_t + z'_t * h_{t-1}

    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, in the form of
    torch.nn.GRU, with vectors for the recurrent weights.

    Time is cut into segments, which all run at once from guesses of their start states; their
    tangents correct all starts together, and segments whose start has moved run again (multiple
    shooting: Bock and Plitt, "A Multiple Shooting Algorithm for Direct Solution of Optimal Control
    Problems", 1984). The result is the serial recurrence's, to the tolerance; what has not come to
    rest after `max_passes` is run serially, and the report says so.

    Gradients are one exact scan at the states found. Beside the inputs, reverse mode keeps h.
    Transformations work as for `scanrnn.jax.scan`, forward mode and higher derivatives included;
    those are not fused.

    Args:
        r: reset gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64.
        z: update gates before the sigmoid, r's shape and dtype.
        n: candidates before the tanh, without what the state adds, r's shape and dtype.
        u_r: recurrent weight of the reset gate, (D,) in r's dtype or its accumulation dtype.
        u_z: of the update gate, likewise.
        u_n: of the candidate, likewise.
        b_n: bias beside u_n, likewise; None means zeros.
        h0: states before the first step, r's shape without the time axis, in r's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        tolerance: a segment's start has come to rest once it moves by no more than this times
            max(1, |start|); None means 1e-6, for float64 1e-13.
        max_passes: runs of the segments before what is not at rest is run serially; 0 runs all of
            it serially at once.
        segment: steps of a segment; None lets the library choose, from T and D.
        return_final: return the final states too.
        return_report: return a `scanrnn.jax.SolveReport` too, as the last. It is a pytree of one
            array, `rows`, (N, 6), in the widest float that JAX allows; N is the number of
            sequences.

    Returns:
        h, with r's shape and dtype; with return_final also h_T, which has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
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
    """One step of `diagonal_gru`, for decoding: what a sequence of one step gives.

    Args:
        r: (..., D), as in `diagonal_gru` without the time axis.
        z: see r.
        n: see r.
        u_r: (D,), as in `diagonal_gru`.
        u_z: (D,), as in `diagonal_gru`.
        u_n: (D,), as in `diagonal_gru`.
        b_n: (D,), as in `diagonal_gru`.
        h: (..., D), the state before the step; None means zeros.

    Returns:
        (h, h): the output in r's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape is wrong.
        TypeError: a dtype is wrong.
    """
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
    """Long short-term memory with diagonal recurrent weights, solved in parallel over time.

        i'_t = sigmoid(i_t + u_i * h_{t-1} + w_i * c_{t-1})
        f'_t = sigmoid(f_t + u_f * h_{t-1} + w_f * c_{t-1}),  g'_t = tanh(g_t + u_g * h_{t-1})
        c_t = f'_t * c_{t-1} + i'_t * g'_t
        o'_t = sigmoid(o_t + u_o * h_{t-1} + w_o * c_t)
        h_t = o'_t * tanh(c_t)

    Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, with torch.nn.LSTM's gates and
    vectors for the recurrent weights. w are peepholes: Gers et al., "Learning Precise Timing with
    LSTM Recurrent Networks", 2002. Without i and u_i the gates are coupled, i' = 1 - f': Greff et
    al., "LSTM: A Search Space Odyssey", 2017. How it is solved and differentiated:
    `diagonal_gru`. Beside the inputs, reverse mode keeps h and c.

    Args:
        i: input gates before the sigmoid, f's shape and dtype; None for coupled gates.
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64.
        g: candidates before the tanh, f's shape and dtype.
        o: output gates before the sigmoid, f's shape and dtype.
        u_i: recurrent weight of the input gate, (D,) in f's dtype or its accumulation dtype; None
            where i is.
        u_f: of the forget gate, likewise.
        u_g: of the candidate, likewise.
        u_o: of the output gate, likewise.
        w_i: peephole of the input gate, likewise; None means zeros.
        w_f: of the forget gate, likewise.
        w_o: of the output gate, likewise.
        h0: outputs before the first step, f's shape without the time axis, in f's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        c0: cells before the first step, likewise.
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        tolerance: as in `diagonal_gru`.
        max_passes: as in `diagonal_gru`.
        segment: as in `diagonal_gru`.
        return_final: return the final states too.
        return_report: return a `scanrnn.jax.SolveReport` too, as the last. It is a pytree of one
            array, `rows`, (N, 6), in the widest float that JAX allows; N is the number of
            sequences.

    Returns:
        h, with f's shape and dtype; with return_final also (h_T, c_T), which have h0's shape and
        the accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
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
    """One step of `diagonal_lstm`, for decoding: what a sequence of one step gives.

    Args:
        i: (..., D), as in `diagonal_lstm` without the time axis.
        f: see i.
        g: see i.
        o: see i.
        u_i: (D,), as in `diagonal_lstm`.
        u_f: (D,), as in `diagonal_lstm`.
        u_g: (D,), as in `diagonal_lstm`.
        u_o: (D,), as in `diagonal_lstm`.
        h: (..., D), the output of the step before; None means zeros.
        c: (..., D), the cell before the step; None means zeros.
        w_i: (D,), as in `diagonal_lstm`.
        w_f: (D,), as in `diagonal_lstm`.
        w_o: (D,), as in `diagonal_lstm`.

    Returns:
        (h, (h, c)): the output in f's dtype, and the states after the step in the accumulation
        dtype.

    Raises:
        ValueError: a shape is wrong, or only one of i and u_i was given.
        TypeError: a dtype is wrong.
    """
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
    """Independently recurrent network, solved in parallel over time.

        h_t = g(p_t + u * h_{t-1})

    Li et al., "Independently Recurrent Neural Network (IndRNN): Building a Longer and Deeper RNN",
    2018, equation 2. How it is solved and differentiated: `diagonal_gru`. Beside the inputs,
    reverse mode keeps h.

    Args:
        p: pre-activations, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. float16, bfloat16, float32 or float64.
        u: recurrent weight, (D,) in p's dtype or its accumulation dtype. Where |u| > 1, states grow
            as u^T.
        h0: states before the first step, p's shape without the time axis, in p's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh" or "relu".
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        tolerance: as in `diagonal_gru`.
        max_passes: as in `diagonal_gru`.
        segment: as in `diagonal_gru`.
        return_final: return the final states too.
        return_report: return a `scanrnn.jax.SolveReport` too, as the last. It is a pytree of one
            array, `rows`, (N, 6), in the widest float that JAX allows; N is the number of
            sequences.

    Returns:
        h, with p's shape and dtype; with return_final also h_T, which has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
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


def indrnn_step(
    p: ArrayLike,
    u: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: SruActivation = "relu",
) -> tuple[Array, Array]:
    """One step of `indrnn`, for decoding: what a sequence of one step gives.

    Args:
        p: (..., D), as in `indrnn` without the time axis.
        u: (D,), as in `indrnn`.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `indrnn`.

    Returns:
        (h, h): the output in p's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    h, (state,) = solve_step(*indrnn_call("indrnn_step", p, u, h, activation))
    return h, state
