"""Layers as functions of their parameters: the matrix products, and a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from .. import _docs
from .._array.options import listed, whole_number
from ..cells import Activation, SequenceOptions, SolveOptions, SruActivation
from ._arguments import (
    diagonal_gru_call,
    diagonal_lstm_call,
    gilr_call,
    hgrn_call,
    indrnn_call,
    min_gru_call,
    min_lstm_call,
    qrnn_call,
    rg_lru_call,
)
from ._call import (
    Call,
    as_array,
    check_call,
    check_params,
    check_state,
    expect_dtype,
    expect_shape,
)
from ._cell import Steps
from ._fused import run
from ._lru import input_scale, run_lru
from ._scan import previous_states, scan
from ._solve import results, run_sru, solve

_init_documented = _docs.documented_layer(
    _docs.JAX_INIT, errors={"ValueError": "a size is below 1."}
)
_layer_documented, _solved_documented = (
    _docs.documented_layer(texts, returns=_docs.JAX_LAYER_RETURNS, errors=_docs.JAX_LAYER_ERRORS)
    for texts in (_docs.JAX_LAYER, _docs.JAX_SOLVED_LAYER)
)

#: Parameters of a layer, a pytree: "weight" (input_size, parts, hidden_size), and more for some.
Params: TypeAlias = dict[str, Array]


class SruParams(TypedDict):
    """Parameters of an SRU layer, a pytree."""

    #: (input_size, 3 or 4, hidden_size): candidate, forget gate, reset gate, and the projection of
    #: the highway if the two sizes differ.
    weight: Array
    #: (hidden_size,), of the forget gate.
    bias_f: Array
    #: (hidden_size,), of the reset gate.
    bias_r: Array
    #: (hidden_size,), recurrent weight of the forget gate; with v_r or not at all.
    v_f: NotRequired[Array]
    #: (hidden_size,), of the reset gate.
    v_r: NotRequired[Array]


# ---- What layers share ---------------------------------------------------------------------------


def _check_sizes(fn: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if whole_number(fn, name, size) < 1:
            raise ValueError(f"{fn}: {name} is {size}, expected at least 1")


def _uniform(key: Array, shape: tuple[int, ...], fan_in: int, dtype: DTypeLike) -> Array:
    """Uniform values of variance 1 / fan_in."""
    bound = math.sqrt(3 / fan_in)
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def _init(
    fn: str, key: Array, input_size: int, hidden_size: int, parts: int, bias: bool, dtype: DTypeLike
) -> Params:
    _check_sizes(fn, input_size=input_size, hidden_size=hidden_size)
    params = {"weight": _uniform(key, (input_size, parts, hidden_size), input_size, dtype)}
    if bias:
        params["bias"] = jnp.zeros((parts, hidden_size), dtype)
    return params


def _steps(fn: str, x: Array, options: SequenceOptions) -> tuple[Call, Steps]:
    """Where the sequences of a layer's input are."""
    own = SequenceOptions.__annotations__
    of_sequences: dict[str, Any] = {n: v for n, v in options.items() if n in own}
    call, index, flags = check_call(fn, "x", x.shape, x.dtype, **of_sequences)
    batch, time, _ = call.size
    return call, Steps(call.options, call.index(index), call.reset(flags), batch, time)


def _check_input(
    fn: str,
    x: Any,
    params: Mapping[str, Any],
    names: Sequence[str],
    options: SequenceOptions,
    parts: Sequence[int],
    windows: Sequence[int] = (),
) -> tuple[Array, Array]:
    """x, with 0 in its padding, and the weight, which is the first of the parameters named.

    Args:
        fn: the public function, for error texts.
        x: the input.
        params: the parameters.
        names: those that the layer cannot do without.
        options: of the sequences, as the user gave them.
        parts: how many the weight, (input_size, parts, hidden_size), may have.
        windows: the sizes that its first axis may have, if it has one before those.
    """
    check_params(fn, params, names)
    x, weight = as_array(fn, "x", x), as_array(fn, names[0], params[names[0]])
    counts = [c for c in (windows, parts) if c]
    ends = weight.shape[:-3] + weight.shape[-2:-1]
    if weight.ndim != 2 + len(counts) or any(n not in c for n, c in zip(ends, counts, strict=True)):
        window = f"{listed(windows)}, " if windows else ""
        expected = f"({window}input_size, {listed(parts)}, hidden_size)"
        raise ValueError(f"{fn}: {names[0]} has shape {weight.shape}, expected {expected}")
    size = weight.shape[-3]
    if x.ndim < 2 or x.shape[-1] != size:
        raise ValueError(f"{fn}: x has shape {x.shape}, expected (..., T, {size})")
    expect_dtype(fn, "x", x, [weight.dtype])
    if options.get("axis", -2) in (-1, x.ndim - 1):
        raise ValueError(f"{fn}: axis is {options['axis']}, expected one before the features")
    if options.get("lengths") is not None:
        # Else the weight's gradient would be 0 * x there, which may be NaN.
        call, steps = _steps(fn, x, options)
        x = call.unwhole(jnp.where(steps.valid(), call.whole(x), 0))
    return x, weight


def _parameter(
    fn: str, params: Mapping[str, Any], name: str, shape: Sequence[int], dtype: Any
) -> Array:
    """A parameter, checked."""
    array = as_array(fn, name, params[name])
    expect_dtype(fn, name, array, [dtype])
    expect_shape(fn, name, array, shape)
    return array


def _project(
    fn: str,
    params: Mapping[str, Any],
    x: Any,
    options: SequenceOptions,
    parts: Sequence[int],
    names: Sequence[str] = (),
) -> list[Array]:
    """The pre-activations of a layer, one a part of its weight; names are more that it has."""
    x, weight = _check_input(fn, x, params, ("weight", *names), options, parts)
    return _parts(fn, params, jnp.tensordot(x, weight, 1))


def _parts(fn: str, params: Mapping[str, Any], products: Array, bias: str = "bias") -> list[Array]:
    """Products (..., parts, hidden_size) plus the bias, one by one."""
    if bias in params:
        shift = _parameter(fn, params, bias, products.shape[-2:], products.dtype)
        products = products + jnp.broadcast_to(shift, products.shape)
    return list(jnp.unstack(products, axis=-2))


def _vectors(fn: str, params: Mapping[str, Any], name: str, count: int, like: Array) -> list[Array]:
    """A parameter (count, hidden_size), row by row, for a cell; like is a part of the products."""
    array = as_array(fn, name, params[name])
    expect_shape(fn, name, array, (count, like.shape[-1]))
    return list(array)


def _shifted(
    fn: str, x: Array, state: tuple[str, ArrayLike | None], options: SequenceOptions
) -> tuple[Array, Array]:
    """What comes before each step, the state at first, and what comes last in each sequence."""
    call, steps = _steps(fn, x, options)
    first = check_state(fn, *state, call)
    if first is None:
        first = jnp.zeros(call.state_shape, x.dtype)
    whole, initial = call.whole(x), call.state(first).astype(x.dtype)
    if steps.time == 0:
        return x, call.unstate(initial)
    before = previous_states(whole, initial, steps)
    last = jnp.where(steps.empty(), initial, steps.at_last(whole))
    return call.unwhole(before), call.unstate(last)


# ---- SRU -----------------------------------------------------------------------------------------


@_init_documented
def sru_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    highway_bias: float = 0.0,
    recurrent: bool = False,
    dtype: DTypeLike = jnp.float32,
) -> SruParams:
    """Parameters of one SRU layer, as initialised in the paper (section 3.2).

    Args:
        hidden_size: features of the output. If it differs from input_size, the highway goes
            through a projection.
        highway_bias: first value of the reset gate's bias; negative ones favour the highway, as
            deep stacks need.
        recurrent: whether the gates see the state: v_f and v_r of `sru`.

    Returns:
        The parameters: weights uniform with variance 1 / input_size, the forget gate's bias 0.
        Recurrent weights are uniform with variance 1/2, and the gates' weights then have half of
        their variance too, as in the SRU package.
    """
    parts = 3 if input_size == hidden_size else 4
    params = SruParams(
        weight=_init("sru_init", key, input_size, hidden_size, parts, False, dtype)["weight"],
        bias_f=jnp.zeros((hidden_size,), dtype),
        bias_r=jnp.full((hidden_size,), highway_bias, dtype),
    )
    if recurrent:
        params["weight"] = params["weight"].at[:, 1:3].multiply(math.sqrt(0.5))
        own = jax.random.fold_in(key, 1)
        params["v_f"], params["v_r"] = _uniform(own, (2, hidden_size), 2, dtype)
    return params


@_layer_documented
def sru_layer(
    params: SruParams,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any:
    """One SRU layer: the matrix product, and `sru`.

    Layers are functions: stack them by calling one after the other, and run one in each direction
    and concatenate for a bidirectional layer. A sequence may be given in pieces of any length down
    to one step, with each piece's state passed on to the next.

    Args:
        h0: (..., hidden_size), the state c before the first step; None means zeros.
            (N, hidden_size) with cu_seqlens.
        return_report: with recurrent weights only: return a report too, as in `diagonal_gru`.
        options: axis, reverse, cu_seqlens, lengths, reset and padding_side, as in
            `scanrnn.jax.scan`. The axis of the features is the last. With recurrent weights also
            tolerance, max_passes and segment, as in `diagonal_gru`.

    Returns:
        (h, hT): the outputs (..., T, hidden_size), and the states after the last steps in h0's
        shape and the accumulation dtype; with return_report also the report.

    Example:
        >>> import jax
        >>> import scanrnn.jax
        >>> params = scanrnn.jax.sru_init(jax.random.key(0), 8, 16)
        >>> h, state = scanrnn.jax.sru_layer(params, jax.numpy.ones((2, 100, 8)))
        >>> h.shape, state.shape
        ((2, 100, 16), (2, 16))
    """
    fn = "sru_layer"
    x, weight = _check_input(fn, x, params, ("weight", "bias_f", "bias_r"), options, (3, 4))
    u, f, r, *projection = jnp.unstack(jnp.tensordot(x, weight, 1), axis=-2)
    skip = projection[0] if projection else x
    inputs = u, f, r, skip, params["bias_f"], params["bias_r"], h0, activation
    own = params.get("v_f"), params.get("v_r")
    solved = run_sru(fn, inputs, *own, return_report=return_report, **options)
    return results(*solved, True, return_report)


# ---- GILR and HGRN -------------------------------------------------------------------------------


@_init_documented
def gilr_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one GILR layer.

    Returns:
        "weight" (input_size, 2, hidden_size) for the forget gate and the impulse, uniform with
        variance 1 / input_size; "bias" (2, hidden_size), zeros.
    """
    return _init("gilr_init", key, input_size, hidden_size, 2, bias, dtype)


@_layer_documented
def gilr_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]:
    """One GILR layer: the matrix product, and `gilr`. See `sru_layer` for how to combine layers."""
    fn = "gilr_layer"
    f, z = _project(fn, params, x, options, (2,))
    return run(*gilr_call(fn, f, z, h0, activation), **options)


@_init_documented
def hgrn_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    bias: bool = False,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one HGRN layer.

    Returns:
        "weight" (input_size, 2, hidden_size) for the forget gate and the input, uniform with
        variance 1 / input_size; "bias" (2, hidden_size), zeros. The lower bounds of the gates
        belong to all layers together: see `hgrn_bounds`.
    """
    return _init("hgrn_init", key, input_size, hidden_size, 2, bias, dtype)


def hgrn_bounds(logits: ArrayLike) -> Array:
    """Lower bounds of the forget gates of a stack of HGRN layers, from what is learned for them.

    A softmax over the layers, summed over those from the second up to each: the first layer's
    bound is 0, and they grow towards 1 from layer to layer (Qin et al., 2023, equation 5).

    Args:
        logits: (layers, hidden_size), floating.

    Returns:
        (layers, hidden_size) in the same dtype. Row k is layer k's `bound`.

    Raises:
        ValueError: the shape is wrong.
    """
    array = as_array("hgrn_bounds", "logits", logits)
    if array.ndim != 2:
        raise ValueError(
            f"hgrn_bounds: logits has shape {array.shape}, expected (layers, hidden_size)"
        )
    sums = jnp.cumsum(jax.nn.softmax(array, axis=0), axis=0)
    return sums - sums[:1]


@_layer_documented
def hgrn_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    bound: ArrayLike | None = None,
    activation: Activation = "silu",
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]:
    """The token mixer of one HGRN layer: the matrix product, and `hgrn`.

    Norm, output gate and output projection of the paper's layer are the caller's. See `sru_layer`
    for how to combine layers.

    Args:
        bound: (hidden_size,), this layer's row of `hgrn_bounds`; None means zeros.
    """
    fn = "hgrn_layer"
    f, z = _project(fn, params, x, options, (2,))
    return run(*hgrn_call(fn, f, z, bound, h0, activation), **options)


# ---- minGRU and minLSTM --------------------------------------------------------------------------


@_init_documented
def min_gru_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one minGRU layer.

    Returns:
        "weight" (input_size, 2, hidden_size) for the update gate and the candidate, uniform with
        variance 1 / input_size; "bias" (2, hidden_size), zeros.
    """
    return _init("min_gru_init", key, input_size, hidden_size, 2, bias, dtype)


@_layer_documented
def min_gru_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]:
    """One minGRU layer: the matrix product, and `min_gru`. See `sru_layer` for combining layers."""
    fn = "min_gru_layer"
    z, v = _project(fn, params, x, options, (2,))
    return run(*min_gru_call(fn, z, v, h0, activation), **options)


@_init_documented
def min_lstm_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one minLSTM layer.

    Returns:
        "weight" (input_size, 3, hidden_size) for the forget gate, the input gate and the candidate,
        uniform with variance 1 / input_size; "bias" (3, hidden_size), zeros.
    """
    return _init("min_lstm_init", key, input_size, hidden_size, 3, bias, dtype)


@_layer_documented
def min_lstm_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]:
    """One minLSTM layer: the matrix product, and `min_lstm`.

    See `sru_layer` for how to combine layers.
    """
    fn = "min_lstm_layer"
    f, i, v = _project(fn, params, x, options, (3,))
    return run(*min_lstm_call(fn, f, i, v, h0, activation), **options)


# ---- QRNN ----------------------------------------------------------------------------------------

#: Parts of the weight by pooling: z, f, then o, then i.
_POOLING = {"f": 2, "fo": 3, "ifo": 4}


@_init_documented
def qrnn_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    window: Literal[1, 2] = 1,
    pooling: Literal["f", "fo", "ifo"] = "fo",
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one QRNN layer.

    Args:
        window: steps that the convolution sees: the current one, or also the one before.
        pooling: which gates there are.

    Returns:
        "weight" (window, input_size, 2 to 4, hidden_size): entry 0 is for the current step and
        entry 1 for the one before; the parts are candidate, forget gate, output gate and input
        gate. Uniform with variance 1 / (window * input_size). "bias" (2 to 4, hidden_size), zeros.

    Raises:
        ValueError: a size is below 1, or an option is wrong.
    """
    fn = "qrnn_init"
    _check_sizes(fn, input_size=input_size, hidden_size=hidden_size)
    if window not in (1, 2):
        raise ValueError(f"{fn}: window is {window!r}, expected 1 or 2")
    if pooling not in _POOLING:
        raise ValueError(f"{fn}: pooling is {pooling!r}, expected 'f', 'fo' or 'ifo'")
    parts = _POOLING[pooling]
    shape = (window, input_size, parts, hidden_size)
    params = {"weight": _uniform(key, shape, window * input_size, dtype)}
    if bias:
        params["bias"] = jnp.zeros((parts, hidden_size), dtype)
    return params


@_layer_documented
def qrnn_layer(
    params: Params,
    x: ArrayLike,
    c0: ArrayLike | None = None,
    x0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    zoneout: float = 0.0,
    key: Array | None = None,
    **options: Unpack[SequenceOptions],
) -> tuple[Array, tuple[Array, Array | None]]:
    """One QRNN layer: the convolution over one or two steps, and `qrnn`.

    The parameters tell window and pooling. See `sru_layer` for how to combine layers, and for
    sequences in pieces: here the state is the pair of c and, with a window of 2, the last input.

    Args:
        x0: (..., input_size), the input before the first step, for a window of 2; None means zeros.
            (N, input_size) with cu_seqlens. Where reset is set, the step sees no input before it.
        zoneout: probability, a Python number, that a step leaves a channel's state as it was.
        key: a JAX random key for zoneout; None, as in evaluation, means that there is none.

    Returns:
        (h, (cT, xT)): the outputs (..., T, hidden_size); the states after the last steps, in c0's
        shape and the accumulation dtype; and the last inputs in x0's shape and x's dtype, None for
        a window of 1.

    Raises:
        ValueError: a shape, an option or a value of cu_seqlens or lengths is wrong, or x0 was given
            for a window of 1.
        TypeError: a dtype is wrong.
    """
    fn = "qrnn_layer"
    if not 0 <= zoneout <= 1:
        raise ValueError(f"{fn}: zoneout is {zoneout}, expected 0 to 1")
    parts = [*_POOLING.values()]
    x, weight = _check_input(fn, x, params, ("weight",), options, parts, windows=(1, 2))
    products, last = jnp.tensordot(x, weight[0], 1), None
    if weight.shape[0] == 2:
        before, last = _shifted(fn, x, ("x0", x0), options)
        products = products + jnp.tensordot(before, weight[1], 1)
    elif x0 is not None:
        raise ValueError(f"{fn}: x0 was given, expected None for a window of 1")
    z, f, *gates = _parts(fn, params, products)
    o = gates[0] if gates else None
    i = gates[1] if len(gates) > 1 else None
    if zoneout and key is not None:
        kept = jax.random.bernoulli(key, zoneout, f.shape)
        f = jnp.where(kept, jnp.inf, f)
        i = None if i is None else jnp.where(kept, -jnp.inf, i)
    h, final = run(*qrnn_call(fn, z, f, o, i, c0, activation), **options)
    return h, (final, last)


# ---- GILR-LSTM -----------------------------------------------------------------------------------


@_init_documented
def gilr_lstm_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one GILR-LSTM layer.

    Args:
        hidden_size: features of the output, and of each part of the state.

    Returns:
        "surrogate" (input_size, 2, hidden_size) for the forget gate and the impulse of the
        surrogate; "weight" (input_size, 4, hidden_size) and "recurrent" (hidden_size, 4,
        hidden_size) for the LSTM's candidate, forget, output and input gate, of the input and of
        the surrogate; all uniform with variance 1 / (their first size). "surrogate_bias" and
        "bias" likewise without the first axis, zeros.
    """
    fn = "gilr_lstm_init"
    keys = jax.random.split(key, 3)
    params = _init(fn, keys[0], input_size, hidden_size, 4, bias, dtype)
    params["recurrent"] = _uniform(keys[1], (hidden_size, 4, hidden_size), hidden_size, dtype)
    params["surrogate"] = _uniform(keys[2], (input_size, 2, hidden_size), input_size, dtype)
    if bias:
        params["surrogate_bias"] = jnp.zeros((2, hidden_size), dtype)
    return params


@_layer_documented
def gilr_lstm_layer(
    params: Params,
    x: ArrayLike,
    s0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    **options: Unpack[SequenceOptions],
) -> tuple[Array, tuple[Array, Array]]:
    """One GILR-LSTM layer: an LSTM whose gates see a linear surrogate of its state.

        s_t = `gilr` of V x_t
        z_t, f_t, o_t, i_t = W x_t + U s_{t-1}
        c_t = sigmoid(f_t) * c_{t-1} + sigmoid(i_t) * tanh(z_t)
        h_t = sigmoid(o_t) * c_t

    Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", 2018,
    section 3.3. The second recurrence is `qrnn`. See `sru_layer` for how to combine layers, and for
    sequences in pieces: here the state is the pair of s and c.

    Args:
        s0: (..., hidden_size), the surrogate before the first step; None means zeros.
            (N, hidden_size) with cu_seqlens.
        c0: likewise, the LSTM's state.

    Returns:
        (h, (sT, cT)): the outputs (..., T, hidden_size), and the states after the last steps in
        s0's shape and the accumulation dtype.
    """
    fn = "gilr_lstm_layer"
    names = "weight", "surrogate", "recurrent"
    x, weight = _check_input(fn, x, params, names, options, (4,))
    D, parts, H = weight.shape
    own = _parameter(fn, params, "surrogate", (D, 2, H), weight.dtype)
    recurrent = _parameter(fn, params, "recurrent", (H, parts, H), weight.dtype)
    f, z = _parts(fn, params, jnp.tensordot(x, own, 1), "surrogate_bias")
    _, cell, inputs, (_, value), numbers = gilr_call(fn, f, z, s0, "tanh")
    s, last = run(fn, cell, inputs, ("s0", value), numbers, **options)
    before, _ = _shifted(fn, s, ("s0", s0), options)
    products = jnp.tensordot(x, weight, 1) + jnp.tensordot(before, recurrent, 1)
    z, f, o, i = _parts(fn, params, products)
    h, final = run(*qrnn_call(fn, z, f, o, i, c0, "tanh"), **options)
    return h, (last, final)


# ---- RG-LRU --------------------------------------------------------------------------------------


@_init_documented
def rg_lru_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    min_decay: float = 0.9,
    max_decay: float = 0.999,
    c: float = 8.0,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one RG-LRU layer, as initialised in Griffin (section 2.4).

    Args:
        hidden_size: features of the output. If it differs from input_size, the input goes through a
            projection.
        min_decay: smallest value of a where the recurrence gate is open.
        max_decay: the largest one.
        c: as in `rg_lru`.

    Returns:
        "weight" (input_size, 2 or 3, hidden_size) for the recurrence gate, the input gate and, if
        the sizes differ, the input, uniform with variance 1 / input_size; "lam" (hidden_size,),
        such that exp(-c * softplus(lam)) is uniform from min_decay to max_decay; "bias"
        (2 or 3, hidden_size), zeros.

    Raises:
        ValueError: a size is below 1, or a decay is not between 0 and 1.
    """
    fn = "rg_lru_init"
    if not 0 < min_decay < max_decay < 1:
        raise ValueError(
            f"{fn}: min_decay is {min_decay} and max_decay is {max_decay}, expected "
            "0 < min_decay < max_decay < 1"
        )
    weight_key, decay_key = jax.random.split(key)
    parts = 2 if input_size == hidden_size else 3
    params = _init(fn, weight_key, input_size, hidden_size, parts, bias, dtype)
    decay = jax.random.uniform(decay_key, (hidden_size,), jnp.float32, min_decay, max_decay)
    params["lam"] = jnp.log(jnp.expm1(-jnp.log(decay) / c)).astype(dtype)
    return params


@_layer_documented
def rg_lru_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    scale_start: bool = True,
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]:
    """One RG-LRU layer: the matrix product, and `rg_lru`. See `sru_layer` for combining layers.

    Args:
        scale_start: whether a step without a state before it (the first one where h0 is None, and
            one with `reset`) has its input scaled by sqrt(1 - a^2) too. The paper scales it,
            RecurrentGemma's code does not.
    """
    fn = "rg_lru_layer"
    x, weight = _check_input(fn, x, params, ("weight", "lam"), options, (2, 3))
    r, i, *projection = _parts(fn, params, jnp.tensordot(x, weight, 1))
    x = projection[0] if projection else x
    if not scale_start:
        call, steps = _steps(fn, x, options)
        starts = steps.valid() & ~steps.connected()
        starts = starts | steps.first() if h0 is None else starts
        log_a = -c * jax.nn.softplus(params["lam"]) * jax.nn.sigmoid(call.whole(r))
        scale = jnp.sqrt(-jnp.expm1(2 * jnp.where(starts, log_a, -1)))
        x = call.unwhole(jnp.where(starts, call.whole(x) / scale, call.whole(x)))
    return run(*rg_lru_call(fn, x, r, i, params["lam"], h0, c), **options)


# ---- LRU -----------------------------------------------------------------------------------------


def _projections(
    key: Array, input_size: int, hidden_size: int, output_size: int, dtype: DTypeLike
) -> Params:
    """B, C and D of a layer with complex states."""

    def normal(key: Array, shape: tuple[int, ...], variance: float) -> Array:
        return jax.random.normal(key, shape, dtype) * math.sqrt(variance)

    keys = jax.random.split(key, 3)
    same = output_size == input_size
    skip, variance = ((input_size,), 1.0) if same else ((input_size, output_size), 1 / input_size)
    return {
        "B": normal(keys[0], (input_size, 2, hidden_size), 1 / (2 * input_size)),
        "C": normal(keys[1], (hidden_size, 2, output_size), 1 / hidden_size),
        "D": normal(keys[2], skip, variance),
    }


def _complex_input(
    fn: str,
    params: Mapping[str, Any],
    x: Any,
    options: SequenceOptions,
    rates: Sequence[str],
) -> tuple[Array, Array]:
    """x, and B x; rates are the parameters that the factors are made of."""
    x, weight = _check_input(fn, x, params, ("B", "C", "D", *rates), options, (2,))
    # There are no complex numbers of 16-bit floats.
    expect_dtype(fn, "x", x, [np.dtype("float32"), np.dtype("float64")])
    for name in rates:
        _parameter(fn, params, name, weight.shape[-1:], weight.dtype)
    real, imaginary = jnp.unstack(jnp.tensordot(x, weight, 1), axis=-2)
    return x, jax.lax.complex(real, imaginary)


def _real_output(fn: str, params: Mapping[str, Any], h: Array, x: Array) -> Array:
    """Re(C h) + D x."""
    size = as_array(fn, "C", params["C"]).shape[-1:]
    whole = _parameter(fn, params, "C", (h.shape[-1], 2, *size), x.dtype)
    skip = as_array(fn, "D", params["D"])
    diagonal = skip.ndim == 1 and size == x.shape[-1:]
    skip = _parameter(fn, params, "D", x.shape[-1:] if diagonal else (x.shape[-1], *size), x.dtype)
    y = jnp.tensordot(h.real, whole[:, 0], 1) - jnp.tensordot(h.imag, whole[:, 1], 1)
    return y + (x * jnp.broadcast_to(skip, x.shape) if diagonal else jnp.tensordot(x, skip, 1))


@_init_documented
def lru_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    output_size: int | None = None,
    min_radius: float = 0.0,
    max_radius: float = 1.0,
    max_phase: float = 2 * math.pi,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one LRU layer, as initialised in the paper (section 3.4).

    Args:
        hidden_size: complex numbers in the state.
        min_radius: smallest |lambda|.
        max_radius: largest |lambda|.
        max_phase: largest phase of lambda, in radians.
        dtype: of the parameters, float32 or float64.

    Returns:
        "nu" and "theta" (hidden_size,), such that lambda is uniform on the ring sector; "gamma"
        (hidden_size,), the logarithm of sqrt(1 - |lambda|^2); "B" (input_size, 2, hidden_size) and
        "C" (hidden_size, 2, output_size), real and imaginary parts, normal with variances
        1 / (2 * input_size) and 1 / hidden_size; "D" (input_size,), standard normal, or where the
        sizes differ (input_size, output_size), normal with variance 1 / input_size.

    Raises:
        ValueError: a size is below 1, or the radii or the phase are out of order.
    """
    fn = "lru_init"
    output_size = input_size if output_size is None else output_size
    _check_sizes(fn, input_size=input_size, hidden_size=hidden_size, output_size=output_size)
    if not 0 <= min_radius < max_radius <= 1:
        raise ValueError(
            f"{fn}: min_radius is {min_radius} and max_radius is {max_radius}, expected "
            "0 <= min_radius < max_radius <= 1"
        )
    if not max_phase > 0:
        raise ValueError(f"{fn}: max_phase is {max_phase}, expected a positive number")
    keys = jax.random.split(key, 3)
    tiny = float(np.finfo(np.dtype(dtype)).eps)  # so that no logarithm is infinite
    radius2, phase = (
        jax.random.uniform(k, (hidden_size,), dtype, tiny, 1 - tiny) for k in keys[:2]
    )
    nu = jnp.log(-0.5 * jnp.log(min_radius**2 + (max_radius**2 - min_radius**2) * radius2))

    return {
        "nu": nu,
        "theta": jnp.log(max_phase * phase),
        "gamma": jnp.log(input_scale(nu)),
        **_projections(keys[2], input_size, hidden_size, output_size, dtype),
    }


@_layer_documented
def lru_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]:
    """One LRU layer: h = `lru` of B x, and y = Re(C h) + D x.

    Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023. What the
    paper puts around it (norm, MLP or gate, residual connection) is the caller's. See `sru_layer`
    for how to combine layers.

    Returns:
        (y, hT): the outputs (..., T, output_size), and the states after the last steps, complex in
        h0's shape.
    """
    fn = "lru_layer"
    x, u = _complex_input(fn, params, x, options, ("nu", "theta", "gamma"))
    scale = jnp.exp(params["gamma"])
    h, final = run_lru(fn, u, params["nu"], params["theta"], scale, ("h0", h0), **options)
    return _real_output(fn, params, h, x), final


# ---- S5 ------------------------------------------------------------------------------------------


@_init_documented
def s5_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    output_size: int | None = None,
    min_step: float = 0.001,
    max_step: float = 0.1,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one S5 layer.

    Args:
        hidden_size: complex numbers in the state.
        min_step: smallest time step.
        max_step: the largest one.
        dtype: of the parameters, float32 or float64.

    Returns:
        "rate" and "frequency" (hidden_size,), log(1/2) and pi * n, which approximates the
        eigenvalues of HiPPO-N (Gu et al., "On the Parameterization and Initialization of Diagonal
        State Space Models", 2022); "step" (hidden_size,), logarithms of the time steps, uniform;
        "B", "C" and "D" as in `lru_init`.

    Raises:
        ValueError: a size is below 1, or the steps are out of order.
    """
    fn = "s5_init"
    output_size = input_size if output_size is None else output_size
    _check_sizes(fn, input_size=input_size, hidden_size=hidden_size, output_size=output_size)
    if not 0 < min_step <= max_step:
        raise ValueError(
            f"{fn}: min_step is {min_step} and max_step is {max_step}, expected "
            "0 < min_step <= max_step"
        )
    key, own = jax.random.split(key)
    low, high = math.log(min_step), math.log(max_step)
    return {
        "rate": jnp.full((hidden_size,), math.log(0.5), dtype),
        "frequency": (math.pi * jnp.arange(hidden_size)).astype(dtype),
        "step": jax.random.uniform(own, (hidden_size,), dtype, low, high),
        **_projections(key, input_size, hidden_size, output_size, dtype),
    }


@_layer_documented
def s5_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]:
    """One S5 layer in diagonal form.

        lambda = exp(Lambda * step),  Lambda = -exp(rate) + i * frequency
        h_t = lambda * h_{t-1} + (lambda - 1) / Lambda * (B x_t)
        y_t = 2 * Re(C h_t) + D x_t

    Smith et al., "Simplified State Space Layers for Sequence Modeling", 2023, with zero-order hold;
    one eigenvalue of each conjugate pair is kept, hence the factor 2. What the paper puts around it
    (norm, gate, residual connection) is the caller's. See `sru_layer` for how to combine layers.

    Args:
        h0: (..., hidden_size), complex, the states before the first step; None means zeros.
            (N, hidden_size) with cu_seqlens.

    Returns:
        (y, hT): the outputs (..., T, output_size), and the states after the last steps, complex in
        h0's shape.
    """
    fn = "s5_layer"
    x, u = _complex_input(fn, params, x, options, ("rate", "frequency", "step"))
    call, _ = _steps(fn, u, options)
    state = check_state(fn, "h0", h0, call)
    exponent = jax.lax.complex(-jnp.exp(params["rate"]), params["frequency"])
    scaled = exponent * jnp.exp(params["step"]).astype(u.dtype)
    scale = jnp.broadcast_to(jnp.expm1(scaled) / exponent, u.shape)
    h, final = scan(jnp.exp(scaled), scale * u, state, return_final=True, **options)
    return _real_output(fn, params, 2 * h, x), final


# ---- Diagonal GRU --------------------------------------------------------------------------------


@_init_documented
def diagonal_gru_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one layer of diagonal GRUs.

    Returns:
        "weight" (input_size, 3, hidden_size) for the reset gate, the update gate and the candidate,
        uniform with variance 1 / input_size; "recurrent" (3, hidden_size), likewise, uniform from
        -1 to 1: what a gate then gets from the state has the variance that torch.nn.GRU's initial
        matrices give it. "bias" (3, hidden_size) and "bias_n" (hidden_size,), zeros.
    """
    fn = "diagonal_gru_init"
    params = _recurrent_init(fn, key, input_size, hidden_size, 3, bias, dtype)
    if bias:
        params["bias_n"] = jnp.zeros((hidden_size,), dtype)
    return params


def _recurrent_init(
    fn: str, key: Array, input_size: int, hidden_size: int, parts: int, bias: bool, dtype: DTypeLike
) -> Params:
    """Parameters with recurrent weights that are vectors, uniform from -1 to 1."""
    key, own = jax.random.split(key)
    params = _init(fn, key, input_size, hidden_size, parts, bias, dtype)
    params["recurrent"] = _uniform(own, (parts, hidden_size), 3, dtype)
    return params


@_solved_documented
def diagonal_gru_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any:
    """One layer of diagonal GRUs: the matrix product, and `diagonal_gru`.

    See `sru_layer` for how to combine layers.

    Returns:
        (h, hT): the outputs (..., T, hidden_size), and the states after the last steps in h0's
        shape and the accumulation dtype; with return_report also the report.
    """
    fn = "diagonal_gru_layer"
    r, z, n = _project(fn, params, x, options, (3,), ("recurrent",))
    u_r, u_z, u_n = _vectors(fn, params, "recurrent", 3, n)
    call = diagonal_gru_call(fn, r, z, n, u_r, u_z, u_n, params.get("bias_n"), h0)
    h, (final,), report = solve(*call, return_report=return_report, **options)
    return results(h, final, report, True, return_report)


# ---- Diagonal LSTM -------------------------------------------------------------------------------


@_init_documented
def diagonal_lstm_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    coupled: bool = False,
    peephole: bool = False,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one layer of diagonal LSTMs.

    Args:
        hidden_size: features of the output, and of each part of the state.
        coupled: whether the input gate is what the forget gate leaves.
        peephole: whether the gates see the cell.

    Returns:
        "weight" (input_size, 4, hidden_size) for the input gate, the forget gate, the candidate and
        the output gate, uniform with variance 1 / input_size; "recurrent" (4, hidden_size),
        likewise, uniform from -1 to 1, as in `diagonal_gru_init`; "bias" (4, hidden_size), zeros;
        "peephole" (3, hidden_size), of the gates, zeros. With coupled gates all of them go without
        the input gate.
    """
    fn = "diagonal_lstm_init"
    params = _recurrent_init(fn, key, input_size, hidden_size, 4 - coupled, bias, dtype)
    if peephole:
        params["peephole"] = jnp.zeros((3 - coupled, hidden_size), dtype)
    return params


@_solved_documented
def diagonal_lstm_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any:
    """One layer of diagonal LSTMs: the matrix product, and `diagonal_lstm`.

    The parameters tell whether gates are coupled and see the cell. See `sru_layer` for how to
    combine layers, and for sequences in pieces: here the state is the pair of h and c.

    Returns:
        (h, (hT, cT)): the outputs (..., T, hidden_size), and the states after the last steps in
        h0's shape and the accumulation dtype; with return_report also the report.
    """
    fn = "diagonal_lstm_layer"
    parts = _project(fn, params, x, options, (3, 4), ("recurrent",))
    count, like = len(parts), parts[0]
    own = _vectors(fn, params, "recurrent", count, like)
    peephole = _vectors(fn, params, "peephole", count - 1, like) if "peephole" in params else []
    i, f, g, o = _with_input_gate(parts, 4)
    u_i, u_f, u_g, u_o = _with_input_gate(own, 4)
    w_i, w_f, w_o = _with_input_gate(peephole, 3)
    call = diagonal_lstm_call(fn, i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h0, c0)
    h, final, report = solve(*call, return_report=return_report, **options)
    return results(h, final, report, True, return_report)


def _with_input_gate(parts: list[Array], count: int) -> list[Array | None]:
    """Parts of which the first, the input gate's, may be missing, or all."""
    return [*[None] * (count - len(parts)), *parts]


# ---- IndRNN --------------------------------------------------------------------------------------


@_init_documented
def indrnn_init(
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    max_recurrent: float = 1.0,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Parameters of one IndRNN layer.

    Args:
        max_recurrent: largest recurrent weight. The paper (section 3.2) takes 2^(1 / T) for
            sequences of T steps, so that no state more than doubles.

    Returns:
        "weight" (input_size, 1, hidden_size), uniform with variance 1 / input_size; "recurrent"
        (1, hidden_size), uniform from 0 to max_recurrent; "bias" (1, hidden_size), zeros.

    Raises:
        ValueError: a size is below 1, or max_recurrent is not positive.
    """
    fn = "indrnn_init"
    if not max_recurrent > 0:
        raise ValueError(f"{fn}: max_recurrent is {max_recurrent}, expected a positive number")
    key, own = jax.random.split(key)
    params = _init(fn, key, input_size, hidden_size, 1, bias, dtype)
    params["recurrent"] = jax.random.uniform(own, (1, hidden_size), dtype, 0, max_recurrent)
    return params


@_solved_documented
def indrnn_layer(
    params: Params,
    x: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: SruActivation = "relu",
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any:
    """One IndRNN layer: the matrix product, and `indrnn`. See `sru_layer` for combining layers.

    Returns:
        (h, hT): the outputs (..., T, hidden_size), and the states after the last steps in h0's
        shape and the accumulation dtype; with return_report also the report.
    """
    fn = "indrnn_layer"
    (p,) = _project(fn, params, x, options, (1,), ("recurrent",))
    (u,) = _vectors(fn, params, "recurrent", 1, p)
    call = indrnn_call(fn, p, u, h0, activation)
    h, (final,), report = solve(*call, return_report=return_report, **options)
    return results(h, final, report, True, return_report)
