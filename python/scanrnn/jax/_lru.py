"""The linear recurrent unit with complex diagonal gates, which is a scan."""

from __future__ import annotations

import functools
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from .. import _docs
from .._array.layout import PaddingSide
from ..cells import SequenceOptions
from ._call import (
    Call,
    DType,
    as_array,
    as_step,
    check_call,
    check_main,
    check_state,
    expect_dtype,
    expect_shape,
)
from ._cell import Steps
from ._scan import SCAN

_documented = _docs.documented(_docs.JAX)

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
@_documented
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
    """Linear recurrent unit: complex gates that are the same at every step."""
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


@_documented
def lru_step(
    u: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    gamma: ArrayLike | None = None,
    h: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """One step of `lru`, for decoding: what a sequence of one step gives."""
    fn = "lru_step"
    steps = as_step(fn, "u", u)[..., None, :]
    out, final = run_lru(fn, steps, nu, theta, gamma, ("h", h))
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
    x = scale.astype(call.dtype)[None, None] * jnp.where(steps.valid(), call.whole(u), 0)
    h, final = SCAN((gate[None, None], x, call.state(h0)), steps.index, steps.reset, call.options)
    return call.unwhole(h), call.unstate(final)
