"""LSTM, GRU and Elman networks with dense weights, parallel in time by chunked relaxation.

The mathematics is that of `scanrnn.torch`'s LSTM: time is cut into chunks, the last `burn_in` steps
of each, from zero, give the start state of the next, one pass over all chunks at once yields the
outputs and verifies those states, and further passes run until they agree. The adjoint is relaxed
likewise, from the other end, and what is missing is added up. Where that does not converge, chunks
follow one another from the first that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from .._array.options import listed, real_number, whole_number
from ._call import as_array, check_params, expect_dtype, expect_shape

State: TypeAlias = tuple[Array, ...]  # (h,), or (h, c)

#: Names of `DenseReport.status`.
STATUS = ("serial", "converged", "fell_back")

# As for PyTorch: relative to max(1, |state|), and to a sequence's largest cotangent.
TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}
ROWS = 1024  # chunks at once, about, that a device wants
FEW = 8  # no more than one chunk in so many is open: a pass runs that many, else all


class DenseParams(TypedDict):
    """Parameters of one layer, with the shapes of torch.nn's, a pytree.

    G is 4 for the LSTM (i, f, g, o), 3 for the GRU (r, z, n), 1 for the Elman network.
    """

    #: (G * hidden_size, input_size)
    weight_ih: Array
    #: (G * hidden_size, hidden_size)
    weight_hh: Array
    #: (G * hidden_size,); without them there are no biases.
    bias_ih: NotRequired[Array]
    #: (G * hidden_size,)
    bias_hh: NotRequired[Array]


class DenseReport(NamedTuple):
    """What a call did, as arrays: under jit they are results like others.

    Attributes:
        status: index into ("serial", "converged", "fell_back"): only the serial recurrence ran;
            every start state agrees with the end before it; not all did, and from the first that
            didn't chunks ran one after another.
        passes: runs of all chunks, beside the burn-in.
        residual: largest |end - start| over the boundaries that were kept, relative to
            max(1, |end|).
        error_estimate: of the outputs against the serial recurrence's: four times the
            residual times what the network makes of it, plus rounding; inf if it fell back.
        first_unconverged_step: in the direction of the recurrence; -1 if everything converged.
    """

    status: Array
    passes: Array
    residual: Array
    error_estimate: Array
    first_unconverged_step: Array


class _Config(NamedTuple):
    """What does not change under jit."""

    kind: str
    width: int
    burn_in: int
    tol: float
    max_passes: int
    precision: str | None


# ---- Cells ---------------------------------------------------------------------------------------


def _lstm_step(x: Array, state: State, recur: Any) -> State:
    h, c = state
    i, f, g, o = jnp.split(x + recur(h), 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru_step(x: Array, state: State, recur: Any) -> State:
    (h,) = state
    xr, xz, xn = jnp.split(x, 3, -1)
    hr, hz, hn = jnp.split(recur(h), 3, -1)
    z = jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * h,)


def _tanh_step(x: Array, state: State, recur: Any) -> State:
    return (jnp.tanh(x + recur(state[0])),)


def _relu_step(x: Array, state: State, recur: Any) -> State:
    return (jax.nn.relu(x + recur(state[0])),)


#: Step, gates, parts of the state.
_CELLS = {
    "lstm": (_lstm_step, 4, 2),
    "gru": (_gru_step, 3, 1),
    "tanh": (_tanh_step, 1, 1),
    "relu": (_relu_step, 1, 1),
}


def _leaf(config: _Config, params: Any, x: Array, state: State) -> tuple[Array, State]:
    """Run (steps, ..., D) from states (..., H): outputs (steps, ..., H) and the last state."""
    step, _, _ = _CELLS[config.kind]
    precision: Any = config.precision

    def product(a: Array, weight: Array, bias: Array | None) -> Array:
        y: Array = jnp.matmul(a, weight.T, precision=precision)
        return y if bias is None else jnp.add(y, jnp.broadcast_to(bias, y.shape))

    def recur(h: Array) -> Array:
        return product(h, params["weight_hh"], params.get("bias_hh"))

    def body(state: State, x: Array) -> tuple[State, Array]:
        state = step(x, state, recur)
        return state, state[0]

    state, y = lax.scan(body, state, product(x, params["weight_ih"], params.get("bias_ih")))
    return y, state


# ---- Relaxation ----------------------------------------------------------------------------------

# Rows are (B, P), P chunks of w steps; x is (w, B, P, D).


def _shift(first: State, ends: State) -> State:
    """Start states of all chunks."""
    return tuple(
        jnp.concatenate([f[:, None], e[:, :-1]], 1) for f, e in zip(first, ends, strict=True)
    )


def _shift_back(starts: State, final: State) -> State:
    """Cotangents of the ends of all chunks: the transpose."""
    return tuple(
        jnp.concatenate([s[:, 1:], f[:, None]], 1) for s, f in zip(starts, final, strict=True)
    )


def _gaps(start: State, following: State) -> Array:
    """|end - start|, (P,), relative to max(1, |end|); NaN counts as inf."""
    gaps = [
        (jnp.abs(f - s) / jnp.maximum(jnp.abs(f), 1)).max((0, 2))
        for s, f in zip(start, following, strict=True)
    ]
    gap = jnp.stack(gaps).max(0)
    finite: Array = jnp.where(jnp.isnan(gap), jnp.inf, gap)
    return finite


def _first(bad: Array) -> Array:
    """Index of the first chunk that is; their number if none is."""
    index: Array = jnp.where(bad.any(), jnp.argmax(bad), len(bad)).astype(jnp.int32)
    return index


def _run_open(
    is_open: Array,
    few: Callable[[Array], Any],
    every: Callable[[], Any],
) -> Any:
    """A pass over the chunks that are open: few(their indices), if they are, else every().

    Shapes are fixed, so that indices beyond the last chunk fill up what isn't needed.
    """
    P = len(is_open)
    most = -(-P // FEW)

    def pick() -> Any:
        return few(jnp.nonzero(is_open, size=most, fill_value=P)[0])

    return lax.cond(is_open.sum() <= most, pick, every)


def _take(array: Array, at: Array, axis: int) -> Array:
    part: Array = jnp.take(array, at, axis, mode="clip")
    return part


def _put(array: Array, value: Array, p: Array, axis: int) -> Array:
    updated: Array = lax.dynamic_update_index_in_dim(array, value, p, axis)
    return updated


def _at(array: Array, p: Array, axis: int) -> Array:
    part: Array = lax.dynamic_index_in_dim(array, p, axis, keepdims=False)
    return part


def _forward(
    config: _Config, params: Any, x: Array, first: State
) -> tuple[Array, State, State, DenseReport]:
    """Outputs (w, B, P, H), start states, final states, report."""
    w, B, P = x.shape[:3]
    run = partial(_leaf, config, params)
    zeros = tuple(jnp.zeros((B, P, f.shape[-1]), f.dtype) for f in first)
    early, ends = run(x[w - config.burn_in :], zeros)
    start = _shift(first, ends)
    y, ends = run(x, start)
    gaps = _gaps(start, _shift(first, ends))

    def goes_on(carry: Any) -> Array:
        *_, gaps, last, passes = carry
        worst = gaps.max()
        decays = (passes == 1) | (worst < 0.5 * last)
        go: Array = (worst > config.tol) & (passes < config.max_passes) & decays
        return go

    def again(carry: Any) -> Any:
        start, y, ends, gaps, _, passes = carry
        following = _shift(first, ends)
        moved = gaps > config.tol

        def few(at: Array) -> Any:
            begin = tuple(_take(f, at, 1) for f in following)
            out, end = run(_take(x, at, 2), begin)
            return (
                tuple(s.at[:, at].set(b, mode="drop") for s, b in zip(start, begin, strict=True)),
                y.at[:, :, at].set(out, mode="drop"),
                tuple(e.at[:, at].set(v, mode="drop") for e, v in zip(ends, end, strict=True)),
            )

        def every() -> Any:
            pairs = zip(following, start, strict=True)
            begin = tuple(jnp.where(moved[:, None], f, s) for f, s in pairs)
            return begin, *run(x, begin)

        start, y, ends = _run_open(moved, few, every)
        return start, y, ends, _gaps(start, _shift(first, ends)), gaps.max(), passes + 1

    carry = (start, y, ends, gaps, jnp.asarray(jnp.inf, gaps.dtype), jnp.int32(1))
    start, y, ends, gaps, last, passes = lax.while_loop(goes_on, again, carry)
    good = _first(gaps > config.tol)
    following = _shift(first, ends)

    def serially(carry: Any) -> Any:
        start, y, ends = carry
        state = tuple(_at(f, jnp.minimum(good, P - 1), 1) for f in following)

        def chunk(p: Array, carry: Any) -> Any:
            state, start, y, ends = carry
            out, end = run(_at(x, p, 2), state)
            start = tuple(_put(s, v, p, 1) for s, v in zip(start, state, strict=True))
            ends = tuple(_put(e, v, p, 1) for e, v in zip(ends, end, strict=True))
            return end, start, _put(y, out, p, 2), ends

        _, start, y, ends = lax.fori_loop(good, P, chunk, (state, start, y, ends))
        return start, y, ends

    start, y, ends = lax.cond(good < P, serially, lambda carry: carry, (start, y, ends))

    fell_back = good < P
    residual = jnp.where(jnp.arange(P, dtype=good.dtype) < good, gaps, 0).max()
    info: Any = jnp.finfo(y.dtype)  # type: ignore[no-untyped-call]
    size = jnp.stack([jnp.abs(s).max() for s in start]).max() + info.tiny
    curve = jnp.abs(early - y[w - config.burn_in :]).max((1, 2, 3))
    growth = jnp.maximum(1, curve.max() / size)
    rate = jnp.minimum(1, curve[-1] / size) ** (w / config.burn_in)
    contraction = jnp.clip(jnp.maximum(rate, jnp.where(passes > 1, gaps.max() / last, 0)), 0, 0.9)
    rounding = 4 * info.eps * growth / (1 - jnp.minimum(contraction ** (1 / w), 0.99))
    estimate = 4 * residual * growth / (1 - contraction) + rounding
    report = DenseReport(
        jnp.where(fell_back, 2, 1).astype(jnp.int32),
        passes,
        residual,
        jnp.where(fell_back, jnp.inf, estimate).astype(y.dtype),
        jnp.where(fell_back, good * w, -1).astype(jnp.int32),
    )
    return y, start, tuple(e[:, -1] for e in ends), report


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _relax(
    config: _Config, params: Any, x: Array, first: State
) -> tuple[Array, State, DenseReport]:
    y, _, final, report = _forward(config, params, x, first)
    return y, final, report


def _relax_forward(config: _Config, params: Any, x: Array, first: State) -> Any:
    y, start, final, report = _forward(config, params, x, first)
    return (y, final, report), (params, x, start)


def _relax_backward(config: _Config, saved: Any, cotangents: Any) -> Any:
    params, x, start = saved
    gy, gfinal, _ = cotangents
    P = x.shape[2]
    none = tuple(map(jnp.zeros_like, gfinal))
    leaf = partial(_leaf, config)

    def add(a: Any, b: Any) -> Any:
        return jax.tree.map(jnp.add, a, b)

    # The first steps of each chunk, from a zero cotangent: that of the end of the chunk before.
    few = config.burn_in
    _, pull = jax.vjp(lambda s: leaf(params, x[:few], s), start)
    (estimate,) = pull((gy[:few], tuple(map(jnp.zeros_like, start))))
    gends = _shift_back(estimate, gfinal)
    _, pull = jax.vjp(leaf, params, x, start)
    gparams, gx, gstart = pull((gy, gends))
    found = _shift_back(gstart, gfinal)
    # What isn't finite was passed on already: once more would make no difference.
    missing = jax.tree.map(lambda f, g: jnp.where(jnp.isfinite(g), f - g, 0), found, gends)
    none_missing = jax.tree.map(jnp.zeros_like, missing)

    def largest(state: State, axis: tuple[int, ...]) -> Array:
        parts: Array = jnp.stack([jnp.abs(s).max(axis) for s in state]).max(0)
        return parts

    sizes = tuple(jnp.where(jnp.isfinite(f), f, 0) for f in found)
    info: Any = jnp.finfo(x.dtype)  # type: ignore[no-untyped-call]
    scale = jnp.maximum(largest(sizes, (1, 2)), info.tiny)  # (B,), of each sequence

    def gaps_of(missing: State) -> Array:
        """Of each chunk, (P,), relative to the largest cotangent of its sequence."""
        gap = (largest(missing, (2,)) / scale[:, None]).max(0)
        finite: Array = jnp.where(jnp.isnan(gap), jnp.inf, gap)
        return finite

    def goes_on(carry: Any) -> Array:
        *_, missing, last, passes = carry
        worst = gaps_of(missing).max()
        decays = (passes == 1) | (worst < 0.5 * last)
        go: Array = (worst > config.tol) & (passes < config.max_passes) & decays
        return go

    def again(carry: Any) -> Any:
        gparams, gx, gfirst, missing, _, passes = carry
        gaps = gaps_of(missing)

        def few(at: Array) -> Any:
            begin = tuple(_take(s, at, 1) for s in start)
            _, pull = jax.vjp(leaf, params, _take(x, at, 2), begin)
            here = tuple(_take(m, at, 1) for m in missing)
            # What fills up is a chunk once more, which is not to be added once more.
            is_chunk = (at < P)[:, None]
            here = tuple(jnp.where(is_chunk, m, 0) for m in here)
            more_params, more_x, some = pull((jnp.zeros_like(_take(gy, at, 2)), here))
            more = tuple(
                jnp.zeros_like(s).at[:, at].set(m, mode="drop")
                for s, m in zip(start, some, strict=True)
            )
            # What is below the tolerance stays where it is: it may add up to more.
            stays = tuple(m.at[:, at].set(0, mode="drop") for m in missing)
            return more_params, gx.at[:, :, at].add(more_x, mode="drop"), more, stays

        def every() -> Any:
            more_params, more_x, more = pull((jnp.zeros_like(gy), missing))
            return more_params, gx + more_x, more, none_missing

        more_params, gx, more, stays = _run_open(gaps > config.tol, few, every)
        return (
            add(gparams, more_params),
            gx,
            add(gfirst, tuple(m[:, 0] for m in more)),
            add(stays, _shift_back(more, none)),
            gaps.max(),
            passes + 1,
        )

    gfirst = tuple(g[:, 0] for g in gstart)
    carry = (gparams, gx, gfirst, missing, jnp.asarray(jnp.inf, scale.dtype), jnp.int32(1))
    gparams, gx, gfirst, missing, _, _ = lax.while_loop(goes_on, again, carry)
    bad = gaps_of(missing) > config.tol
    chunks = jnp.where(bad.any(), P - jnp.argmax(bad[::-1]), 0)

    def serially(carry: Any) -> Any:
        def chunk(i: Array, carry: Any) -> Any:
            gparams, gx, g = carry
            p = chunks - 1 - i
            g = add(g, tuple(_at(m, p, 1) for m in missing))
            state = tuple(_at(s, p, 1) for s in start)
            _, pull = jax.vjp(leaf, params, _at(x, p, 2), state)
            more_params, more_x, g = pull((jnp.zeros_like(_at(gy, p, 2)), g))
            gx = _put(gx, _at(gx, p, 2) + more_x, p, 2)
            return add(gparams, more_params), gx, g

        gparams, gx, gfirst = carry
        gparams, gx, g = lax.fori_loop(0, chunks, chunk, (gparams, gx, none))
        return gparams, gx, add(gfirst, g)

    gparams, gx, gfirst = lax.cond(bad.any(), serially, lambda carry: carry, (gparams, gx, gfirst))
    return gparams, gx, gfirst


_relax.defvjp(_relax_forward, _relax_backward)

# Compiled once for calls of the same shapes that no jit surrounds.
_relax_compiled = jax.jit(_relax, static_argnums=0)
_leaf_compiled = jax.jit(_leaf, static_argnums=0)


# ---- Functions -----------------------------------------------------------------------------------


def _network(
    fn: str,
    kind: str,
    params: DenseParams,
    x: ArrayLike,
    state: Any,
    reverse: bool,
    width: int | None,
    burn_in: int,
    tol: float | None,
    max_passes: int | None,
    precision: str | None,
) -> tuple[Array, State, DenseReport]:
    check_params(fn, params, ("weight_ih", "weight_hh"))
    x = as_array(fn, "x", x)
    weights = {name: as_array(fn, name, value) for name, value in params.items()}
    _, gates, parts = _CELLS[kind]
    for name in ("weight_ih", "weight_hh"):
        if weights[name].ndim != 2:
            raise ValueError(f"{fn}: {name} has shape {weights[name].shape}, expected two axes")
    D, H = weights["weight_ih"].shape[1], weights["weight_hh"].shape[1]
    if x.ndim < 2 or x.shape[-1] != D:
        raise ValueError(f"{fn}: x has shape {x.shape}, expected (..., T, {D})")
    dtype = weights["weight_ih"].dtype
    if dtype.name not in TOLERANCE:
        raise TypeError(f"{fn}: weight_ih has dtype {dtype}, expected {listed(TOLERANCE)}")
    expect_dtype(fn, "x", x, [dtype])
    x = x.astype(dtype)
    shapes = {
        "weight_ih": (gates * H, D),
        "weight_hh": (gates * H, H),
        "bias_ih": (gates * H,),
        "bias_hh": (gates * H,),
    }
    for name, value in weights.items():
        if name not in shapes:
            raise ValueError(f"{fn}: params has {name}, expected some of {list(shapes)}")
        expect_dtype(fn, name, value, [dtype])
        expect_shape(fn, name, value, shapes[name])
    for name, number in (("width", width), ("burn_in", burn_in), ("max_passes", max_passes)):
        if number is not None and whole_number(fn, name, number) < 1:
            raise ValueError(f"{fn}: {name} is {number}, expected at least 1")
    limit = TOLERANCE[dtype.name] if tol is None else real_number(fn, "tol", tol)
    if not limit > 0:
        raise ValueError(f"{fn}: tol is {tol}, expected a positive number")
    batch, T = x.shape[:-2], x.shape[-2]
    shape = (*batch, H)
    if state is None:
        first: State = tuple(jnp.zeros(shape, x.dtype) for _ in range(parts))
    else:
        given = tuple(state) if parts > 1 else (state,)
        if len(given) != parts:
            raise ValueError(f"{fn}: state has {len(given)} parts, expected {parts}")
        first = tuple(as_array(fn, "state", s) for s in given)
        for s in first:
            expect_dtype(fn, "state", s, [dtype])
            expect_shape(fn, "state", s, shape)
    B = int(np.prod(batch))
    x = x.reshape(B, T, D)
    first = tuple(s.astype(dtype).reshape(B, H) for s in first)
    if reverse:
        x = x[:, ::-1]

    w = width or max(64, -(-B * T // ROWS))
    P = T // w if B else 0
    config = _Config(
        kind,
        w,
        min(burn_in, w),
        limit,
        max_passes or max(2, P // 10),
        precision,
    )
    outputs = []
    report = DenseReport(
        jnp.int32(0), jnp.int32(0), jnp.zeros((), x.dtype), jnp.zeros((), x.dtype), jnp.int32(-1)
    )
    if P >= 2:
        rows_of_x = x[:, : P * w].reshape(B, P, w, D).transpose(2, 0, 1, 3)
        y, first, report = _relax_compiled(config, weights, rows_of_x, first)
        outputs.append(y.transpose(1, 2, 0, 3).reshape(B, P * w, H))
        x = x[:, P * w :]
    if x.shape[1] or not outputs:
        y, first = _leaf_compiled(config, weights, x.swapaxes(0, 1), first)
        outputs.append(y.swapaxes(0, 1))
    h = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, 1)
    if reverse:
        h = h[:, ::-1]
    return h.reshape(*batch, T, H), tuple(s.reshape(shape) for s in first), report


def lstm(
    params: DenseParams,
    x: ArrayLike,
    state: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    reverse: bool = False,
    width: int | None = None,
    burn_in: int = 64,
    tol: float | None = None,
    max_passes: int | None = None,
    precision: str | None = "highest",
    return_report: bool = False,
) -> Any:
    """One LSTM layer, parallel in time, with torch.nn.LSTM's weights and equations.

        i, f, o = sigmoid(W x_t + b + U h_{t-1} + b')   (each its own),  g = tanh(likewise)
        c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t)

    Hochreiter and Schmidhuber, "Long short-term memory", 1997. Chunks of time run at once, from
    estimates of their start states, until these agree to the tolerance; from the first that doesn't
    in `max_passes`, chunks run one after another. Gradients likewise, by the full Jacobians; they
    exist once, and in reverse mode. Everything runs on the device: under jit, grad, vmap and
    shard_map over the batch. Saved for backward are x and the states at chunks' starts.

    Args:
        params: weight_ih (4 H, D), weight_hh (4 H, H), and bias_ih and bias_hh (4 H,) or neither.
        x: (..., T, D) in the parameters' dtype.
        state: (h, c) before the first step, each (..., H); None means zeros.
        reverse: run from the end.
        width: steps of a chunk; None makes about 1024 chunks of at least 64 steps. Fewer than two
            chunks are the serial recurrence.
        burn_in: steps that yield the first estimate of a chunk's start state, at most `width`.
        tol: mismatch between chunks, relative to max(1, |state|), and between cotangents, relative
            to the largest of their sequence, that counts as agreement. None means 1e-12, 2e-6, 4e-3
            and 3e-2 for float64, float32, float16 and bfloat16.
        max_passes: None allows as many as make a tenth of the steps, and at least 2. They end
            earlier where the mismatch does not halve.
        precision: of the matrix products. JAX's own default, None, may be TF32 on a GPU, for which
            the tolerance is too tight.
        return_report: return a `DenseReport` too.

    Returns:
        (h, (h_T, c_T)): outputs (..., T, H) and the states after the last step, each (..., H); with
        return_report also the report.

    Raises:
        ValueError: a shape or option is wrong.
        TypeError: a dtype is wrong.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from scanrnn.jax import lstm
        >>> params = {"weight_ih": jnp.ones((32, 4)), "weight_hh": jnp.zeros((32, 8))}
        >>> h, (h_T, c_T) = jax.jit(lstm)(params, jnp.ones((2, 1000, 4)))
        >>> h.shape, c_T.shape
        ((2, 1000, 8), (2, 8))
    """
    h, final, report = _network(
        "lstm", "lstm", params, x, state, reverse, width, burn_in, tol, max_passes, precision
    )
    return (h, final, report) if return_report else (h, final)


def gru(
    params: DenseParams,
    x: ArrayLike,
    state: ArrayLike | None = None,
    *,
    reverse: bool = False,
    width: int | None = None,
    burn_in: int = 64,
    tol: float | None = None,
    max_passes: int | None = None,
    precision: str | None = "highest",
    return_report: bool = False,
) -> Any:
    """One GRU layer, parallel in time, with torch.nn.GRU's weights and equations.

        r, z = sigmoid(W x_t + b + U h_{t-1} + b')   (each its own)
        n = tanh(W x_t + b + r * (U h_{t-1} + b')),  h_t = (1 - z) * n + z * h_{t-1}

    Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014.

    Args:
        params: weight_ih (3 H, D), weight_hh (3 H, H), and bias_ih and bias_hh (3 H,) or neither.
        x: as in `lstm`, and likewise all options.
        state: h before the first step, (..., H); None means zeros.
        reverse: see x.
        width: see x.
        burn_in: see x.
        tol: see x.
        max_passes: see x.
        precision: see x.
        return_report: see x.

    Returns:
        (h, h_T): outputs (..., T, H) and the state after the last step, (..., H); with
        return_report also the report.

    Raises:
        ValueError: a shape or option is wrong.
        TypeError: a dtype is wrong.
    """
    h, (final,), report = _network(
        "gru", "gru", params, x, state, reverse, width, burn_in, tol, max_passes, precision
    )
    return (h, final, report) if return_report else (h, final)


def rnn(
    params: DenseParams,
    x: ArrayLike,
    state: ArrayLike | None = None,
    *,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
    reverse: bool = False,
    width: int | None = None,
    burn_in: int = 64,
    tol: float | None = None,
    max_passes: int | None = None,
    precision: str | None = "highest",
    return_report: bool = False,
) -> Any:
    """One Elman layer, parallel in time, with torch.nn.RNN's weights and equations.

        h_t = tanh(W x_t + b + U h_{t-1} + b'), or relu in place of tanh

    Elman, "Finding structure in time", 1990.

    Args:
        params: weight_ih (H, D), weight_hh (H, H), and bias_ih and bias_hh (H,) or neither.
        x: as in `lstm`, and likewise all options.
        state: h before the first step, (..., H); None means zeros.
        nonlinearity: "tanh" or "relu".
        reverse: see x.
        width: see x.
        burn_in: see x.
        tol: see x.
        max_passes: see x.
        precision: see x.
        return_report: see x.

    Returns:
        As `gru`.

    Raises:
        ValueError: a shape or option is wrong.
        TypeError: a dtype is wrong.
    """
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"rnn: nonlinearity is {nonlinearity!r}, expected 'tanh' or 'relu'")
    h, (final,), report = _network(
        "rnn", nonlinearity, params, x, state, reverse, width, burn_in, tol, max_passes, precision
    )
    return (h, final, report) if return_report else (h, final)
