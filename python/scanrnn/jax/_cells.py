"""The cells as functions: pre-activations in, outputs and states out."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from jax import Array
from jax.typing import ArrayLike

from .._array.layout import PaddingSide
from ..cells import Activation, SequenceOptions, SruActivation
from ._arguments import (
    SolveOptions,
    gilr_call,
    hgrn_call,
    min_gru_call,
    min_lstm_call,
    qrnn_call,
    recurrent_sru_call,
    rg_lru_call,
    sru_call,
)
from ._fused import run, run_step
from ._solve import results, run_sru, solve_step

# ---- sru -----------------------------------------------------------------------------------------


@overload
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Array: ...
@overload
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Array, Array]: ...
@overload
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_report: bool = False,
    **solver: Any,
) -> Any:
    """Simple recurrent unit. Without the v * c_{t-1} terms its recurrence is linear in c.

        f'_t = sigmoid(f_t + v_f * c_{t-1} + bias_f),  r'_t = sigmoid(r_t + v_r * c_{t-1} + bias_r)
        c_t = f'_t * c_{t-1} + (1 - f'_t) * u_t
        h_t = r'_t * g(c_t) + (1 - r'_t) * skip_t

    Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", 2018.
    Gates, recurrence and output are one kernel, forward and backward. Beside the inputs, reverse
    mode keeps one state in 32 steps. Transformations work as for `scanrnn.jax.scan`. With v_f and
    v_r the recurrence is solved and differentiated as that of `diagonal_gru`, and reverse mode
    keeps all states.

    Args:
        u: candidates W x, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. float16, bfloat16, float32 or float64.
        f: forget gates before bias and sigmoid, u's shape and dtype.
        r: reset (highway) gates before bias and sigmoid, u's shape and dtype.
        skip: highway input, u's shape and dtype; None means zeros.
        bias_f: (D,) in u's dtype or its accumulation dtype; None means zeros.
        bias_r: likewise.
        c0: states before the first step, u's shape without the time axis, in u's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh" or "relu".
        v_f: recurrent weight of the forget gate, (D,) in u's dtype or its accumulation dtype. None
            means zeros, for both or for neither.
        v_r: of the reset gate, likewise.
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.
        return_report: with v_f and v_r only: return a report too, as in `diagonal_gru`.
        solver: with v_f and v_r only: tolerance, max_passes and segment, as in `diagonal_gru`.

    Returns:
        h, with u's shape and dtype; with return_final also c_T, which has c0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    return results(
        *run_sru(
            "sru",
            (u, f, r, skip, bias_f, bias_r, c0, activation),
            v_f,
            v_r,
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
            return_report=return_report,
            **solver,
        ),
        return_final,
        return_report,
    )


def sru_step(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None,
    bias_f: ArrayLike | None,
    bias_r: ArrayLike | None,
    c: ArrayLike | None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """One step of `sru`, for decoding: what a sequence of one step gives.

    Args:
        u: (..., D), as in `sru` without the time axis.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: (D,), as in `sru`.
        bias_r: (D,), as in `sru`.
        c: (..., D), the state before the step; None means zeros.
        activation: as in `sru`.
        v_f: (D,), as in `sru`.
        v_r: (D,), as in `sru`.

    Returns:
        (h, c): the output in u's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    inputs = "sru_step", u, f, r, skip, bias_f, bias_r, c, activation
    if v_f is None and v_r is None:
        return run_step(*sru_call(*inputs))
    h, (state,) = solve_step(*recurrent_sru_call(*inputs, v_f, v_r))
    return h, state


# ---- gilr ----------------------------------------------------------------------------------------


@overload
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Gated impulse linear recurrent layer.

        f'_t = sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)

    Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", 2018.
    Gates and recurrence are one kernel, forward and backward. Beside the inputs, reverse mode keeps
    h. Transformations work as for `scanrnn.jax.scan`.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64.
        z: impulses before g, f's shape and dtype.
        h0: states before the first step, f's shape without the time axis, in f's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (x + 0.5 for x >=
            0, sigmoid(x) below).
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, with f's shape and dtype; with return_final (h, h_T), where h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    h, final = run(
        *gilr_call("gilr", f, z, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


def gilr_step(
    f: ArrayLike,
    z: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: Activation = "tanh",
) -> tuple[Array, Array]:
    """One step of `gilr`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `gilr` without the time axis.
        z: see f.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `gilr`.

    Returns:
        (h, h): the output in f's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    return run_step(*gilr_call("gilr_step", f, z, h, activation))


# ---- hgrn ----------------------------------------------------------------------------------------


@overload
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Hierarchically gated recurrent network: forget gates with a lower bound.

        f'_t = bound + (1 - bound) * sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)

    Qin et al., "Hierarchically Gated Recurrent Neural Network for Sequence Modeling", 2023, in
    real numbers and before the output gate. Gates and recurrence are one kernel, forward
    and backward. Beside the inputs, reverse mode keeps h. Transformations work as for
    `scanrnn.jax.scan`.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64.
        z: inputs before g, f's shape and dtype.
        bound: (D,) in f's dtype or its accumulation dtype, from 0 to 1; None means zeros. Upper
            layers get larger ones.
        h0: states before the first step, f's shape without the time axis, in f's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (x + 0.5 for x >=
            0, sigmoid(x) below).
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, with f's shape and dtype; with return_final (h, h_T), where h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    h, final = run(
        *hgrn_call("hgrn", f, z, bound, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


def hgrn_step(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None,
    h: ArrayLike | None,
    *,
    activation: Activation = "silu",
) -> tuple[Array, Array]:
    """One step of `hgrn`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `hgrn` without the time axis.
        z: see f.
        bound: (D,), as in `hgrn`.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `hgrn`.

    Returns:
        (h, h): the output in f's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    return run_step(*hgrn_call("hgrn_step", f, z, bound, h, activation))


# ---- min_gru -------------------------------------------------------------------------------------


@overload
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Minimal GRU: gates that see the input alone.

        z'_t = sigmoid(z_t)
        h_t = (1 - z'_t) * h_{t-1} + z'_t * g(v_t)

    Feng et al., "Were RNNs All We Needed?", 2024, section 3.1. The state is computed as it stands,
    not in logarithms: it and g may have any sign. Gates and recurrence are one kernel, forward and
    backward. Beside the inputs, reverse mode keeps h. Transformations work as for
    `scanrnn.jax.scan`.

    Args:
        z: update gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64.
        v: candidates before g, z's shape and dtype.
        h0: states before the first step, z's shape without the time axis, in z's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (x + 0.5 for x >=
            0, sigmoid(x) below). The paper's version in logarithms has "positive".
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, with z's shape and dtype; with return_final (h, h_T), where h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    h, final = run(
        *min_gru_call("min_gru", z, v, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


def min_gru_step(
    z: ArrayLike,
    v: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: Activation = "identity",
) -> tuple[Array, Array]:
    """One step of `min_gru`, for decoding: what a sequence of one step gives.

    Args:
        z: (..., D), as in `min_gru` without the time axis.
        v: see z.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `min_gru`.

    Returns:
        (h, h): the output in z's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    return run_step(*min_gru_call("min_gru_step", z, v, h, activation))


# ---- min_lstm ------------------------------------------------------------------------------------


@overload
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Minimal LSTM: forget and input gates that see the input alone and add up to one.

        f'_t = sigmoid(f_t) / (sigmoid(f_t) + sigmoid(i_t)),  i'_t = 1 - f'_t
        h_t = f'_t * h_{t-1} + i'_t * g(v_t)

    Feng et al., "Were RNNs All We Needed?", 2024, section 3.2. The state is computed as it stands,
    not in logarithms: it and g may have any sign, and f and i any size. Gates and recurrence are
    one kernel, forward and backward. Beside the inputs, reverse mode keeps h. Transformations work
    as for `scanrnn.jax.scan`.

    Args:
        f: forget gates before the sigmoid, (batch..., channel) with the time axis inserted at
            `axis`: (B, T, D) by default. float16, bfloat16, float32 or float64.
        i: input gates before the sigmoid, f's shape and dtype.
        v: candidates before g, f's shape and dtype.
        h0: states before the first step, f's shape without the time axis, in f's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (x + 0.5 for x >=
            0, sigmoid(x) below). The paper's version in logarithms has "positive".
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, with f's shape and dtype; with return_final (h, h_T), where h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    h, final = run(
        *min_lstm_call("min_lstm", f, i, v, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


def min_lstm_step(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: Activation = "identity",
) -> tuple[Array, Array]:
    """One step of `min_lstm`, for decoding: what a sequence of one step gives.

    Args:
        f: (..., D), as in `min_lstm` without the time axis.
        i: see f.
        v: see f.
        h: (..., D), the state before the step; None means zeros.
        activation: as in `min_lstm`.

    Returns:
        (h, h): the output in f's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    return run_step(*min_lstm_call("min_lstm_step", f, i, v, h, activation))


# ---- qrnn ----------------------------------------------------------------------------------------


@overload
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Quasi-recurrent network: f-, fo- or ifo-pooling of what a convolution over time gives.

        c_t = sigmoid(f_t) * c_{t-1} + i'_t * g(z_t)
        h_t = sigmoid(o_t) * c_t

    where i'_t is sigmoid(i_t), or 1 - sigmoid(f_t) without i (fo-pooling); without o and i, h_t is
    c_t (f-pooling). Bradbury et al., "Quasi-Recurrent Neural Networks", 2017, section 2. Gates,
    recurrence and output are one kernel, forward and backward. Beside the inputs, reverse mode
    keeps one state in 32 steps, or with f-pooling h. Transformations work as for
    `scanrnn.jax.scan`. An f of +inf keeps the state exactly, which is zoneout.

    Args:
        z: candidates before g, (batch..., channel) with the time axis inserted at `axis`: (B, T, D)
            by default. float16, bfloat16, float32 or float64.
        f: forget gates before the sigmoid, z's shape and dtype.
        o: output gates before the sigmoid, z's shape and dtype; None means f-pooling.
        i: input gates before the sigmoid, z's shape and dtype; None means 1 - sigmoid(f).
        c0: states before the first step, z's shape without the time axis, in z's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (x + 0.5 for x >=
            0, sigmoid(x) below).
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, with z's shape and dtype; with return_final (h, c_T), where c_T has c0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    h, final = run(
        *qrnn_call("qrnn", z, f, o, i, c0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


def qrnn_step(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None,
    i: ArrayLike | None,
    c: ArrayLike | None,
    *,
    activation: Activation = "tanh",
) -> tuple[Array, Array]:
    """One step of `qrnn`, for decoding: what a sequence of one step gives.

    Args:
        z: (..., D), as in `qrnn` without the time axis.
        f: see z.
        o: see z.
        i: see z.
        c: (..., D), the state before the step; None means zeros.
        activation: as in `qrnn`.

    Returns:
        (h, c): the output in z's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    return run_step(*qrnn_call("qrnn_step", z, f, o, i, c, activation))


# ---- rg_lru --------------------------------------------------------------------------------------


@overload
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Real-gated linear recurrent unit of Griffin.

        log a_t = -c * softplus(lam) * sigmoid(r_t)
        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * (sigmoid(i_t) * x_t)

    De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language
    Models", 2024, section 2.4. 1 - a^2 is computed by expm1. The derivative of its root, which has
    no bound as a nears 1, is cut off at 1000. Gates and recurrence are one kernel, forward and
    backward. Beside the inputs, reverse mode keeps h. Transformations work as for
    `scanrnn.jax.scan`.

    Args:
        x: inputs, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default.
            float16, bfloat16, float32 or float64.
        r: recurrence gates before the sigmoid, x's shape and dtype.
        i: input gates before the sigmoid, x's shape and dtype.
        lam: (D,) in x's dtype or its accumulation dtype: a is exp(-c * softplus(lam)) where r is
            large.
        h0: states before the first step, x's shape without the time axis, in x's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        c: a positive Python number.
        axis: the time axis, as in `scanrnn.jax.scan`, and likewise all that follow: cu_seqlens
            (sequences packed one after the other), lengths (h is 0 beyond), reset (where set, the
            state that enters the step is dropped) and padding_side.
        reverse: run from the end of each sequence.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: return the final states too.

    Returns:
        h, with x's shape and dtype; with return_final (h, h_T), where h_T has h0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    h, final = run(
        *rg_lru_call("rg_lru", x, r, i, lam, h0, c),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


def rg_lru_step(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h: ArrayLike | None,
    *,
    c: float = 8.0,
) -> tuple[Array, Array]:
    """One step of `rg_lru`, for decoding: what a sequence of one step gives.

    Args:
        x: (..., D), as in `rg_lru` without the time axis.
        r: see x.
        i: see x.
        lam: (D,), as in `rg_lru`.
        h: (..., D), the state before the step; None means zeros.
        c: as in `rg_lru`.

    Returns:
        (h, h): the output in x's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """
    return run_step(*rg_lru_call("rg_lru_step", x, r, i, lam, h, c))
