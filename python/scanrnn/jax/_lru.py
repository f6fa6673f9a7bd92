"""The linear recurrent unit with complex diagonal gates, which is a scan."""

from __future__ import annotations

import functools
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from .._array.layout import PaddingSide
from ..cells import SequenceOptions
from ._call import (
    Call,
    DType,
    as_array,
    check_call,
    check_main,
    check_state,
    expect_dtype,
    expect_shape,
)
from ._cell import Steps
from ._scan import SCAN

#: What u may have, and the dtype of the parameters and of the states with it.
_REAL_AND_COMPLEX: dict[DType, tuple[DType, DType]] = {
    np.dtype(u): (np.dtype(real), np.dtype(state))
    for u, real, state in (
        ("float32", "float32", "complex64"),
        ("float64", "float64", "complex128"),
        ("complex64", "float32", "complex64"),
        ("complex128", "float64", "complex128"),
    )
}


def input_scale(nu: Array) -> Array:
    """sqrt(1 - |lambda|^2), by which states keep the variance of their inputs."""
    return jnp.sqrt(-jnp.expm1(-2 * jnp.exp(nu)))


@overload
def lru(
    u: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    gamma: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def lru(
    u: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    gamma: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def lru(
    u: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    gamma: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
def lru(
    u: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    gamma: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Linear recurrent unit: complex gates that are the same at every step.

        lambda = exp(-exp(nu) + i * exp(theta))
        h_t = lambda * h_{t-1} + gamma * u_t

    Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023, section 3.
    |lambda| < 1 for every nu. It is `scanrnn.jax.scan` with gates that are broadcast over batch and
    time, whose gradients are summed in the kernel; transformations work as for that, and complex
    gradients follow JAX's convention.

    Args:
        u: inputs B x, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. complex64 or complex128, or float32 or float64.
        nu: (D,), logarithm of the decay rate of |h|; float32 or float64 like the parts of u.
        theta: (D,), logarithm of the phase of lambda, in nu's dtype.
        gamma: (D,), scale of the inputs, in nu's dtype; None means sqrt(1 - |lambda|^2).
        h0: states before the first step, u's shape without the time axis, complex like h; None
            means zeros. (N, D) with cu_seqlens.
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
        h, with u's shape, complex64 or complex128; with return_final (h, h_T), where h_T has h0's
        shape.

    Raises:
        ValueError: a shape, the axis or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    h, final = run_lru(
        "lru",
        u,
        nu,
        theta,
        gamma,
        ("h0", h0),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


def lru_step(
    u: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    gamma: ArrayLike | None = None,
    h: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """One step of `lru`, for decoding: what a sequence of one step gives.

    Args:
        u: (..., D), as in `lru` without the time axis.
        nu: (D,), as in `lru`.
        theta: see nu.
        gamma: see nu.
        h: (..., D), the state before the step; None means zeros.

    Returns:
        (h, h): the state after the step, as output and as state.

    Raises:
        ValueError: a shape is wrong.
        TypeError: a dtype is wrong.
    """
    fn = "lru_step"
    array = as_array(fn, "u", u)
    if array.ndim == 0:
        raise ValueError(f"{fn}: u has shape (), expected (..., D)")
    out, final = run_lru(fn, array[..., None, :], nu, theta, gamma, ("h", h))
    return out[..., 0, :], final


def run_lru(
    fn: str,
    u: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    gamma: ArrayLike | None,
    state: tuple[str, ArrayLike | None],
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> tuple[Array, Array]:
    u = as_array(fn, "u", u)
    shape, dtype = check_main(fn, {"u": u}, list(_REAL_AND_COMPLEX))
    real, whole = _REAL_AND_COMPLEX[dtype]
    call, index, flags = check_call(
        fn,
        "u",
        shape,
        whole,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    given = {"nu": nu, "theta": theta, "gamma": gamma}
    vectors = {
        name: as_array(fn, name, v) for name, v in given.items() if v is not None or name != "gamma"
    }
    for name, vector in vectors.items():
        expect_dtype(fn, name, vector, [real])
        expect_shape(fn, name, vector, call.channel_shape)
    h, final = _run(
        u,
        vectors["nu"],
        vectors["theta"],
        vectors.get("gamma"),
        check_state(fn, *state, call),
        index,
        flags,
        call=call,
    )
    return h, final


@functools.partial(jax.jit, static_argnames="call")
def _run(
    u: Array,
    nu: Array,
    theta: Array,
    gamma: Array | None,
    h0: Array | None,
    index: Array | None,
    reset: Array | None,
    *,
    call: Call,
) -> tuple[Array, Array]:
    real, _ = _REAL_AND_COMPLEX[call.dtype]
    nu, theta = nu.reshape(-1).astype(real), theta.reshape(-1).astype(real)
    scale = input_scale(nu) if gamma is None else gamma.reshape(-1).astype(real)
    gate = jnp.exp(jax.lax.complex(-jnp.exp(nu), jnp.exp(theta)))
    batch, time, _ = call.size
    steps = Steps(call.options, call.index(index), call.reset(reset), batch, time)
    # Whatever is in the padding stays there, also in gamma's gradient.
    x = scale * jnp.where(steps.valid(), call.whole(u), 0)
    h, final = SCAN((gate[None, None], x, call.state(h0)), steps.index, steps.reset, call.options)
    return call.unwhole(h), call.unstate(final)
