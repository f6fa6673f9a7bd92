"""The linear recurrence: its primitives, and the public function."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters import ad
from jax.typing import ArrayLike

from .._array.layout import PaddingSide
from ._call import DTYPES, Call, as_array, check_call, check_main, check_state
from ._cell import ACCUMULATION, Arrays, Cell, Options, Steps, absent, is_linear, present


def previous_states(h: Array, h0: Array, steps: Steps) -> Array:
    """The state that enters each step, 0 where none does."""
    initial = steps.spread(h0.astype(h.dtype)) if present(h0) else jnp.zeros((), h.dtype)
    states = jnp.where(steps.first(), initial, steps.previous(h))
    return jnp.where(steps.connected(), states, 0)


def _tangent(residuals: Arrays, directions: Arrays, steps: Steps) -> tuple[Array, Array]:
    """h'_t = a_t h'_{t-1} + (x'_t + a'_t h_{t-1}), in the accumulation dtype."""
    a, h, h0 = residuals
    da, dx, dh0 = directions
    dtype = ACCUMULATION[h.dtype]
    drive = dx.astype(dtype) if present(dx) else jnp.zeros(h.shape, dtype)
    if present(da):
        # Where there is no state before the step, nothing may come of it, not even NaN * 0.
        da = jnp.where(steps.connected(), da.astype(dtype), 0)
        drive = drive + da * previous_states(h.astype(dtype), h0, steps)
    inputs = (a.astype(dtype), drive, dh0.astype(dtype))
    dh, dfinal = SCAN(inputs, steps.index, steps.reset, steps.options)
    return dh.astype(h.dtype), dfinal


def _sum_to(array: Array, shape: Sequence[int]) -> Array:
    axes = tuple(i for i, n in enumerate(shape) if n == 1 != array.shape[i])
    return array.sum(axes, keepdims=True)


def _backward(
    residuals: Arrays, cotangents: Arrays, steps: Steps, wanted: Sequence[bool]
) -> list[Array]:
    """g_t = a_{t+1} g_{t+1} + dh_t is a scan in the other direction, from g_{T+1} = dfinal.

    Then dx_t = g_t, da_t = g_t h_{t-1} and dh0 = a_1 g_1.
    """
    a, h, h0 = residuals
    dh, dfinal = cotangents
    dtype = ACCUMULATION[h.dtype]
    if steps.time == 0:
        passed = dfinal if present(dfinal) else jnp.zeros(h0.shape, dtype)
        zeros = (jnp.zeros_like(a), jnp.zeros_like(h), passed)
        grads = [g if want else absent() for g, want in zip(zeros, wanted, strict=True)]
        return [g.astype(x.dtype) for g, x in zip(grads, residuals, strict=True)]

    gates, last = a.astype(dtype), steps.last()
    shifted = jnp.where(last, 1, steps.next(gates))
    reset = absent()
    if present(steps.reset):
        reset = jnp.where(last[..., 0], 0, steps.next(steps.reset)).astype(steps.reset.dtype)
    drive = dh.astype(dtype) if present(dh) else jnp.zeros(h.shape, dtype)
    options = replace(steps.options, reverse=not steps.options.reverse)
    g, g_first = SCAN((shifted, drive, dfinal), steps.index, reset, options)

    grads = [absent()] * 3
    if wanted[0]:
        through = jnp.where(steps.connected(), g, 0)
        grads[0] = _sum_to(through * previous_states(h.astype(dtype), h0, steps), a.shape)
    if wanted[1]:
        grads[1] = g
    if wanted[2]:
        gain = steps.at_first(jnp.where(steps.connected(), gates, 0))
        # As above: no NaN * 0 through a reset.
        passed = jnp.where(steps.at_first(steps.connected()), g_first, 0)
        grads[2] = jnp.where(steps.empty(), g_first, gain * passed)
    return [g.astype(x.dtype) for g, x in zip(grads, residuals, strict=True)]


#: Operands a (B or 1, T or 1, D or 1), x (B, T, D), h0 (N, D); residuals a, h, h0.
SCAN = Cell(
    name="scan",
    roles=("BTD", "btd", "bd"),
    residual_roles=("BTD", "btd", "bd"),
    main=1,
    residuals=lambda inputs, results: (inputs[0], results[0], inputs[2]),
    tangent=_tangent,
    backward=_backward,
)


def _transpose(
    cotangents: Sequence[Any], *operands: Any, options: Options, save: bool
) -> list[Any]:
    """A scan is linear in x and h0: `jax.linear_transpose` of it is the backward scan."""
    a, x, h0, index, reset = operands
    wanted = (False, is_linear(x), is_linear(h0))
    main, state = (v.aval if is_linear(v) else v for v in (x, h0))
    # Their values are only for the gradient of a.
    residuals = (a, jnp.zeros(main.shape, main.dtype), jnp.zeros(state.shape, state.dtype))
    steps = Steps(options, index, reset, *main.shape[:2])
    return [*SCAN.gradients(residuals, cotangents, steps, wanted), None, None]


ad.primitive_transposes[SCAN.forward_p] = _transpose


@functools.partial(jax.jit, static_argnames="call")
def _scan(
    a: Array, x: Array, h0: Array | None, index: Array | None, reset: Array | None, *, call: Call
) -> tuple[Array, Array]:
    inputs = call.broadcast(a), call.whole(x), call.state(h0)
    h, final = SCAN(inputs, call.index(index), call.reset(reset), call.options)
    return call.unwhole(h), call.unstate(final)


@overload
def scan(
    a: ArrayLike,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[False] = False,
) -> Array: ...
@overload
def scan(
    a: ArrayLike,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[True],
) -> tuple[Array, Array]: ...
@overload
def scan(
    a: ArrayLike,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool,
) -> Array | tuple[Array, Array]: ...
def scan(
    a: ArrayLike,
    x: ArrayLike,
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
    """Diagonal linear recurrence h_t = a_t * h_{t-1} + x_t over one axis, in parallel over time.

    `scanrnn.scan` as a JAX function: it can be compiled, differentiated any number of times in
    either mode, batched with `jax.vmap` and sharded over batch or channels with `jax.shard_map`
    (under `jax.jit` alone a sharded array is gathered first, and on a mesh with explicit axes the
    result is not sharded). Gradients with respect to a, x and h0
    flow from h and from the final states; complex gradients follow JAX's convention. Reverse mode
    keeps a, h and h0, and is one more scan. Compile time does not depend on any size.

    The method is divide and conquer over time by merging affine maps (Blelloch, "Prefix Sums and
    Their Applications", 1990; Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over
    Sequence Length", 2018).

    Args:
        a: gates, in any shape that broadcasts to x by NumPy's rules, or a Python number. The
            gradient of a gate that is broadcast is summed in the kernel.
        x: inputs, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default.
            (T, D) is one sequence, and (T,) one sequence of one channel. float16, bfloat16,
            float32, float64, complex64 or complex128; a and x have one dtype.
        h0: states before the first step, x's shape without the time axis, in x's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        axis: the time axis of x. Where it is the first, the last or the last but one, no data is
            moved.
        reverse: run from the end, h_t = a_t * h_{t+1} + x_t.
        cu_seqlens: (N + 1,) int32 or int64, packed sequences: sequence n is the steps
            cu_seqlens[n]:cu_seqlens[n + 1] of x, which is (1, T, D) or (T, D). It starts at 0, does
            not decrease and ends at T. It may be traced; N is static.
        lengths: int32 or int64 in x's batch shape, the valid steps of each sequence, 0 to T. Steps
            beyond are not read, and h is 0 there.
        reset: bool, uint8 or 0/1 floats in x's batch shape plus (T,); where set, the state that
            enters this step (h0 too) is dropped: h_t = x_t.
        padding_side: "left" if the valid steps of `lengths` are the last ones, not the first.
        return_final: return the final states too.

    Returns:
        h, with x's shape and dtype; with return_final (h, final), where final is the state after
        the last valid step of each sequence, in h0's shape and the accumulation dtype: float32 for
        16-bit floats, which also carry their states in float32, and x's dtype for all others.

    Raises:
        ValueError: a shape, the axis or a combination of arguments is wrong, or a value of
            cu_seqlens or lengths. Where those are traced, running the compiled function raises
            `jax.errors.JaxRuntimeError` with the same text.
        TypeError: a dtype is wrong.
        NotImplementedError: the function is compiled for a platform that this build has no kernels
            for.

    Example:
        >>> import jax.numpy as jnp
        >>> import scanrnn.jax
        >>> print(scanrnn.jax.scan(0.5, jnp.array([1.0, 2.0, 3.0])))
        [1.   2.5  4.25]
    """
    fn = "scan"
    a, x = as_array(fn, "a", a), as_array(fn, "x", x)
    shape, dtype = check_main(fn, {"x": x, "a": a}, DTYPES)
    call, index, flags = check_call(
        fn,
        "x",
        shape,
        dtype,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    missing = len(shape) - a.ndim
    if missing < 0 or any(n not in (1, m) for n, m in zip(a.shape, shape[missing:], strict=True)):
        raise ValueError(
            f"{fn}: a has shape {a.shape}, expected a shape that broadcasts to {shape}"
        )
    h, final = _scan(a, x, check_state(fn, "h0", h0, call), index, flags, call=call)
    return (h, final) if return_final else h
