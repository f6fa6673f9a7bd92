"""The simple recurrent unit: its primitives, the public functions, and a layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from .. import _core
from .._array.layout import PaddingSide
from ..cells import Activation
from ._call import (
    REAL_DTYPES,
    Call,
    as_array,
    check_call,
    check_main,
    check_state,
    expect_dtype,
    expect_shape,
)
from ._cell import ACCUMULATION, Arrays, Cell, Steps, absent, present
from ._scan import SCAN

#: g, by name; its place is its number in the core.
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda c: c,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
}


def _compose(inputs: Arrays, steps: Steps) -> tuple[Array, Array]:
    """The cell out of JAX operators and a scan."""
    u = inputs[0]
    dtype, valid = ACCUMULATION[u.dtype], steps.valid()

    def step_input(x: Array, bias: Array) -> Array:
        x = x.astype(dtype) + bias.astype(dtype) if present(bias) else x.astype(dtype)
        return jnp.where(valid, x, 0)  # whatever is in the padding stays there

    _, f, r, skip, bias_f, bias_r, c0 = inputs
    u = step_input(u, absent())
    f = jax.nn.sigmoid(step_input(f, bias_f))
    r = jax.nn.sigmoid(step_input(r, bias_r))
    options = replace(steps.options, activation=0)
    c, final = SCAN((f, (1 - f) * u, c0.astype(dtype)), steps.index, steps.reset, options)
    h = r * list(_ACTIVATIONS.values())[steps.options.activation](c)
    if present(skip):
        h = h + (1 - r) * step_input(skip, absent())
    return jnp.where(valid, h, 0).astype(inputs[0].dtype), final


def _function_of(
    inputs: Arrays, chosen: Sequence[bool], steps: Steps
) -> tuple[Callable[..., tuple[Array, Array]], list[Array]]:
    """The composed cell as a function of some of its inputs, and these."""

    def function(*values: Array) -> tuple[Array, Array]:
        rest = iter(values)
        merged = [next(rest) if c else x for x, c in zip(inputs, chosen, strict=True)]
        return _compose(merged, steps)

    return function, [x for x, c in zip(inputs, chosen, strict=True) if c]


def _tangent(residuals: Arrays, directions: Arrays, steps: Steps) -> tuple[Array, Array]:
    chosen = [present(direction) for direction in directions]
    function, values = _function_of(residuals[:-1], chosen, steps)
    out: tuple[Array, Array] = jax.jvp(function, values, [d for d in directions if present(d)])[1]
    return out


def _backward(
    residuals: Arrays, dh: Array, dfinal: Array, steps: Steps, wanted: Sequence[bool]
) -> list[Array]:
    function, values = _function_of(residuals[:-1], wanted, steps)
    results, pullback = jax.vjp(function, *values)
    cotangents = tuple(
        g if present(g) else jnp.zeros_like(y) for g, y in zip((dh, dfinal), results, strict=True)
    )
    grads = iter(pullback(cotangents))
    return [
        next(grads) if want else absent().astype(x.dtype)
        for want, x in zip(wanted, residuals, strict=False)
    ]


#: Operands u, f, r, skip (B, T, D), bias_f, bias_r (D,), c0 (N, D); residuals the same and the
#: checkpoints.
SRU = Cell(
    name="sru",
    roles=("btd", "btd", "btd", "btd", "d", "d", "bd"),
    main=0,
    residuals=lambda inputs, results: (*inputs, results[2]),
    tangent=_tangent,
    backward=_backward,
    checkpoint_rows=_core.sru_checkpoint_rows,
)


@functools.partial(jax.jit, static_argnames="call")
def _sru(
    whole: Sequence[Array | None],
    biases: Sequence[Array | None],
    c0: Array | None,
    index: Array | None,
    reset: Array | None,
    *,
    call: Call,
) -> tuple[Array, Array]:
    inputs = (
        *map(call.whole, whole),
        *(absent() if bias is None else bias.reshape(-1) for bias in biases),
        call.state(c0),
    )
    h, final = SRU(inputs, call.index(index), call.reset(reset), call.options)
    return call.unwhole(h), call.unstate(final)


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
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[False] = False,
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
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[True],
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
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool,
) -> Array | tuple[Array, Array]: ...
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
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
    """Simple recurrent unit, without the v * c_{t-1} terms: its recurrence is linear in c.

        f'_t = sigmoid(f_t + bias_f),  r'_t = sigmoid(r_t + bias_r)
        c_t = f'_t * c_{t-1} + (1 - f'_t) * u_t
        h_t = r'_t * g(c_t) + (1 - r'_t) * skip_t

    Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", 2018, with v = 0.
    Gates, recurrence and output are one kernel, forward and backward. Beside the inputs, reverse
    mode keeps one state in 32 steps. Transformations work as for `scanrnn.jax.scan`.

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
        axis: the time axis of u.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.jax.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.jax.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.jax.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.jax.scan`.
        return_final: return the final states too.

    Returns:
        h, with u's shape and dtype; with return_final (h, c_T), where c_T has c0's shape and the
        accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in
            `scanrnn.jax.scan`.
        TypeError: a dtype is wrong.
        NotImplementedError: as in `scanrnn.jax.scan`.
    """
    fn = "sru"
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{fn}: activation is {activation!r}, expected 'identity', 'tanh' or 'relu'"
        )
    given = {"u": u, "f": f, "r": r, "skip": skip}
    arrays = {name: as_array(fn, name, x) for name, x in given.items() if x is not None}
    shape, dtype = check_main(fn, arrays, REAL_DTYPES)
    for name, array in arrays.items():
        expect_shape(fn, name, array, shape)
    call, index, flags = check_call(
        fn,
        "u",
        shape,
        dtype,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        activation=list(_ACTIVATIONS).index(activation),
    )
    biases = [_check_bias(fn, "bias_f", bias_f, call), _check_bias(fn, "bias_r", bias_r, call)]
    h, final = _sru(
        [arrays.get(name) for name in given],
        biases,
        check_state(fn, "c0", c0, call),
        index,
        flags,
        call=call,
    )
    return (h, final) if return_final else h


def _check_bias(fn: str, name: str, value: Any, call: Call) -> Array | None:
    if value is None:
        return None
    bias = as_array(fn, name, value)
    expect_dtype(fn, name, bias, [call.dtype, ACCUMULATION[call.dtype]])
    expect_shape(fn, name, bias, call.channel_shape)
    return bias


def sru_step(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None,
    bias_f: ArrayLike | None,
    bias_r: ArrayLike | None,
    c: ArrayLike | None,
    *,
    activation: Activation = "identity",
) -> tuple[Array, Array]:
    """One step of `sru`, for decoding: what a sequence of one step gives.

    Args:
        u: (..., D), as in `sru` without the time axis; likewise f, r and skip.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: (D,), as in `sru`.
        bias_r: (D,), as in `sru`.
        c: (..., D), the state before the step; None means zeros.
        activation: as in `sru`.

    Returns:
        (h, c): the output in u's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong.
    """

    def one_step(name: str, x: ArrayLike) -> Array:
        return as_array("sru", name, x)[..., None, :]

    h, final = sru(
        one_step("u", u),
        one_step("f", f),
        one_step("r", r),
        None if skip is None else one_step("skip", skip),
        bias_f,
        bias_r,
        c,
        activation=activation,
        return_final=True,
    )
    return h[..., 0, :], final


class SruParams(TypedDict):
    """Parameters of a layer, a pytree."""

    #: (input_size, 3 or 4, hidden_size): candidate, forget gate, reset gate, and the projection of
    #: the highway if the two sizes differ.
    weight: Array
    #: (hidden_size,), of the forget gate.
    bias_f: Array
    #: (hidden_size,), of the reset gate.
    bias_r: Array


def sru_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    highway_bias: float = 0.0,
    dtype: DTypeLike = jnp.float32,
) -> SruParams:
    """Parameters of one SRU layer, as initialised in the paper (section 3.2).

    Args:
        key: a JAX random key.
        input_size: features of the input.
        hidden_size: features of the output. If it differs from input_size, the highway goes
            through a projection.
        highway_bias: first value of the reset gate's bias; negative ones favour the highway, as
            deep stacks need.
        dtype: of the parameters.

    Returns:
        The parameters: weights uniform with variance 1 / input_size, the forget gate's bias 0.

    Raises:
        ValueError: a size is below 1.
    """
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
        if size < 1:
            raise ValueError(f"sru_init: {name} is {size}, expected at least 1")
    bound = math.sqrt(3 / input_size)
    shape = (input_size, 3 if input_size == hidden_size else 4, hidden_size)
    return SruParams(
        weight=jax.random.uniform(key, shape, dtype, -bound, bound),
        bias_f=jnp.zeros((hidden_size,), dtype),
        bias_r=jnp.full((hidden_size,), highway_bias, dtype),
    )


def sru_layer(
    params: SruParams,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> tuple[Array, Array]:
    """One SRU layer: the matrix product, and `sru`.

    Layers are functions: stack them by calling one after the other, and run one in each direction
    and concatenate for a bidirectional layer. A sequence may be given in pieces of any length down
    to one step, with each piece's state passed on to the next.

    Args:
        params: from `sru_init`.
        x: (..., T, input_size) in the parameters' dtype.
        h0: (..., hidden_size), the state c before the first step; None means zeros.
            (N, hidden_size) with cu_seqlens.
        activation: as in `sru`, and likewise all that follow.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        (h, hT): the outputs (..., T, hidden_size), and the states after the last steps in h0's
        shape and the accumulation dtype.

    Raises:
        ValueError: a shape, an option or a value of cu_seqlens or lengths is wrong.
        TypeError: a dtype is wrong.

    Example:
        >>> import jax
        >>> import scanrnn.jax
        >>> params = scanrnn.jax.sru_init(jax.random.key(0), 8, 16)
        >>> h, state = scanrnn.jax.sru_layer(params, jax.numpy.ones((2, 100, 8)))
        >>> h.shape, state.shape
        ((2, 100, 16), (2, 16))
    """
    fn = "sru_layer"
    x, weight = as_array(fn, "x", x), as_array(fn, "weight", params["weight"])
    input_size, parts, _ = weight.shape
    if x.ndim < 2 or x.shape[-1] != input_size:
        raise ValueError(f"{fn}: x has shape {x.shape}, expected (..., T, {input_size})")
    expect_dtype(fn, "x", x, [weight.dtype])
    u, f, r, *projection = jnp.unstack(jnp.tensordot(x, weight, 1), axis=-2)
    return sru(
        u,
        f,
        r,
        projection[0] if parts == 4 else x,
        params["bias_f"],
        params["bias_r"],
        h0,
        activation=activation,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=True,
    )
