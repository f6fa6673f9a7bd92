"""`scanrnn.jax.sru` and its layer: values and gradients against the loop, and transformations."""

# ruff: noqa: E402, F811
import itertools
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import reference
import scanrnn
import scanrnn.jax as srj
from jax.sharding import PartitionSpec
from jax.test_util import check_grads
from jax_helpers import (
    LARGE,
    SMALL,
    assert_close,
    batched,
    kernels,
    mesh,  # noqa: F401
    sizes,
    stacked,
    values,
    x64,  # noqa: F401
)

pytestmark = pytest.mark.usefixtures("x64")

NAMES = ("u", "f", "r", "skip", "bias_f", "bias_r", "c0")
EVERY = tuple(range(len(NAMES)))


def arguments(rng, options, B, T, D, dtype="float64"):
    B, N = sizes(options, B)
    shapes = [(B, T, D)] * 4 + [(D,)] * 2 + [(N, D)]
    return tuple(values(rng, *shape, dtype=dtype) for shape in shapes)


def small(rng, name):
    return arguments(rng, SMALL[name], 2, 6, 2), SMALL[name]


def scalar(**options):
    def loss(*arrays):
        h, final = srj.sru(*arrays, return_final=True, **options)
        return jnp.sum(jnp.sin(h)) + jnp.sum(jnp.cos(final))

    return loss


# ---- Values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", LARGE)
def test_values_and_gradients_are_the_loops(rng, name, dtype):
    dtype, options = jnp.dtype(dtype), LARGE[name]
    options = options | {"activation": ["identity", "tanh", "relu"][len(name) % 3]}
    arrays = arguments(rng, options, 3, 37, 4, dtype)
    run = partial(srj.sru, return_final=True, **options)
    (h, final), pullback = jax.vjp(run, *arrays)
    half = dtype.itemsize == 2
    assert (h.dtype, final.dtype) == (dtype, np.float32 if half else dtype)
    want = reference.sru(*arrays, **options)
    reference.assert_matches(h, want[0])
    reference.assert_matches(final, want[1])

    dh, dfinal = values(rng, *h.shape, dtype=dtype), values(rng, *final.shape, dtype=final.dtype)
    want = reference.sru_vjp(*arrays, dh, dfinal, **options)
    for argument, array, got in zip(NAMES, arrays, pullback((dh, dfinal)), strict=True):
        assert got.dtype == array.dtype
        reference.assert_matches(got, want[argument])


@pytest.mark.parametrize("missing", NAMES[3:])
def test_optional_arguments(rng, missing):
    arrays = dict(zip(NAMES, arguments(rng, {}, 2, 9, 3), strict=True))
    arrays[missing] = None
    (h, final), pullback = jax.vjp(lambda v: srj.sru(**v, return_final=True), arrays)
    want = reference.sru(**arrays)
    assert_close((h, final), want)
    grads = pullback((h, final))[0]
    assert grads[missing] is None
    expected = reference.sru_vjp(**arrays, dh=want[0], dfinal=want[1])
    assert_close(grads, {n: g if n != missing else None for n, g in expected.items()})
    # Only one wanted gradient at a time.
    for name in arrays.keys() - {missing}:
        _, pullback = jax.vjp(lambda v, name=name: srj.sru(**arrays | {name: v}), arrays[name])
        got = pullback(h)[0]
        assert_close(got, reference.sru_vjp(**arrays, dh=want[0])[name])


def test_parameters_in_the_accumulation_dtype(rng):
    arrays = arguments(rng, {}, 2, 9, 3, jnp.dtype("bfloat16"))
    arrays = (*arrays[:4], *(v.astype(np.float32) for v in arrays[4:]))
    h, pullback = jax.vjp(srj.sru, *arrays)
    assert h.dtype == jnp.bfloat16
    assert [g.dtype for g in pullback(h)] == [v.dtype for v in arrays]
    reference.assert_matches(h, reference.sru(*arrays)[0])


@pytest.mark.parametrize(
    ("shape", "axis"), [((9,), 0), ((4, 9), -1), ((9, 2, 4), 0), ((2, 3, 4, 9), -1)]
)
def test_axes(rng, shape, axis):
    rest = [n for i, n in enumerate(shape) if i != axis % len(shape)]
    arrays = [values(rng, *shape) for _ in range(4)]
    arrays += [values(rng, *rest[-1:]), values(rng, *rest[-1:]), values(rng, *rest)]

    def canonical(v):
        v = v[:, None] if len(shape) == 1 else np.moveaxis(v, axis, -2)
        return v.reshape(-1, 9, v.shape[-1])

    flat = [canonical(v) for v in arrays[:4]]
    flat += [v.reshape(-1) for v in arrays[4:6]]
    flat.append(arrays[6].reshape(-1, flat[0].shape[-1]))
    (h, final), pullback = jax.vjp(partial(srj.sru, axis=axis, return_final=True), *arrays)
    want = reference.sru(*flat)
    assert (h.shape, final.shape) == (shape, tuple(rest))
    assert_close((canonical(h), final.reshape(want[1].shape)), want)
    grads = reference.sru_vjp(*flat, *want)
    for name, got in zip(NAMES, pullback((h, final)), strict=True):
        got = canonical(got) if name in NAMES[:4] else got.reshape(grads[name].shape)
        assert_close(got, grads[name])


def test_same_bits_as_numpy(rng):
    arrays = arguments(rng, {}, 2, 70, 5, "float32")
    options = {"activation": "tanh", "lengths": np.array([70, 33])}
    got = srj.sru(*arrays, return_final=True, **options)
    expected = scanrnn.cells.sru(*arrays, return_final=True, **options)
    other = scanrnn.cells.sru(*map(jnp.asarray, arrays), return_final=True, **options)
    for one, two, three in zip(got, expected, other, strict=True):
        reference.assert_same_bits(one, two)
        reference.assert_same_bits(three, two)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0)])
def test_s03_empty_axes(rng, shape):
    arrays = arguments(rng, {}, *shape)
    (h, final), pullback = jax.vjp(partial(srj.sru, return_final=True), *arrays)
    assert h.shape == shape
    dfinal = values(rng, *final.shape)
    grads = pullback((jnp.zeros(shape), dfinal))
    for g, v in zip(grads, arrays, strict=True):
        assert g.shape == v.shape
    assert not np.any(grads[4])
    if shape[1] == 0:
        assert_close((final, grads[6]), (arrays[6], dfinal), 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_n10_padding_is_not_read(rng, side):
    lengths = np.array([6, 2])
    steps = np.arange(6)
    valid = steps >= 6 - lengths[:, None] if side == "left" else steps < lengths[:, None]
    arrays = arguments(rng, {}, 2, 6, 2)
    clean = tuple(np.where(valid[..., None], v, 0) if v.ndim == 3 else v for v in arrays)
    spoilt = tuple(np.where(valid[..., None], v, np.nan) if v.ndim == 3 else v for v in arrays)
    loss = scalar(lengths=lengths, padding_side=side, activation="tanh")
    first = jax.grad(loss, EVERY)
    assert_close(first(*spoilt), first(*clean), 0)
    second = jax.jit(lambda arrays: jax.jvp(first, arrays, clean)[1])
    assert_close(second(spoilt), second(clean), 1e-12)


def test_w03_reset_drops_whatever_was_there(rng):
    arrays = arguments(rng, {}, 1, 9, 2)
    arrays[0][:, :4] = np.inf
    reset = np.arange(9)[None] == 4
    h, pullback = jax.vjp(partial(srj.sru, reset=reset), *arrays)
    rest = [v[:, 4:] if v.ndim == 3 else v for v in arrays]
    assert_close(h[:, 4:], srj.sru(*rest[:-1]))
    grads = pullback(jnp.zeros_like(h).at[:, 4:].set(1))
    for g in grads[:4]:
        assert np.all(np.isfinite(g[:, 4:]))
    assert not np.any(grads[0][:, :4])
    assert not np.any(grads[6])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_w05_step_is_the_scan(rng, dtype):
    dtype = jnp.dtype(dtype)
    *arrays, c0 = arguments(rng, {}, 2, 200, 3, dtype)
    step = jax.jit(partial(srj.sru_step, activation="tanh"))

    def run():
        c, rows = c0, []
        for t in range(200):
            h, c = step(*(v[:, t] if v.ndim == 3 else v for v in arrays), c)
            rows.append(h)
        return jnp.stack(rows, 1), c

    h, final = srj.sru(*arrays, c0, activation="tanh", return_final=True)
    tolerance = {"bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype.name]
    steps = run()
    assert_close(jax.tree.map(np.float64, steps), jax.tree.map(np.float64, (h, final)), tolerance)
    for one, two in zip(steps, run(), strict=True):
        reference.assert_same_bits(one, two)
    assert srj.sru_step(*(v[0, 0] for v in arrays[:3]), None, None, None, None)[0].shape == (3,)


# ---- Transformations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "activation"),
    [("left-reverse", "identity"), ("packed-reset", "tanh")],
)
def test_derivatives_in_both_modes(rng, name, activation):
    arrays, options = small(rng, name)
    loss = jax.jit(scalar(activation=activation, **options))
    check_grads(loss, arrays, 2, ["fwd", "rev"], atol=1e-5, rtol=1e-5)


def test_g09_jacobians_and_hessians_agree(rng):
    arrays, options = small(rng, "packed-reset")
    run = partial(srj.sru, return_final=True, activation="tanh", **options)
    forward, backward = (jax.jit(d(run, EVERY))(*arrays) for d in (jax.jacfwd, jax.jacrev))
    assert_close(forward, backward)
    loss = scalar(activation="tanh", **options)
    one = jax.jit(jax.hessian(loss, EVERY))(*arrays)
    assert_close(jax.jit(jax.jacrev(jax.jacrev(loss, EVERY), EVERY))(*arrays), one)
    assert np.any(one[0][4])


def test_g09_linearize_and_transpose(rng):
    arrays, options = small(rng, "left")
    run = partial(srj.sru, return_final=True, **options)
    out, linear = jax.linearize(run, *arrays)
    tangents = tuple(values(rng, *v.shape) for v in arrays)
    assert_close((out, linear(*tangents)), jax.jvp(run, arrays, tangents))
    _, pullback = jax.vjp(run, *arrays)
    assert_close(jax.linear_transpose(linear, *arrays)(out), pullback(out))
    assert_close(jax.linear_transpose(pullback, out)(tangents)[0], linear(*tangents))
    assert_close(pullback(out), pullback(out), 0)
    # The adjoint of several cotangents at once, of a forward pass that was not batched.
    many = jax.tree.map(lambda v: jnp.stack([v, 2 * v, -v]), out)
    assert_close(
        jax.vmap(pullback)(many), jax.tree.map(lambda v: jnp.stack([v, 2 * v, -v]), pullback(out))
    )


def test_gradient_is_two_kernels(rng):
    arrays, options = small(rng, "reset")
    gradient = jax.grad(scalar(**options), EVERY)
    assert kernels(gradient, *arrays) == ["sru_backward", "sru_forward"]
    # Batched, the checkpoints are made by what XLA finds to be the same call.
    many = [np.stack([v, v]) if v.ndim > 1 else v for v in arrays]
    per_example = jax.vmap(
        jax.grad(scalar(**options), (0, 1, 2, 3, 6)), [0 if v.ndim > 1 else None for v in arrays]
    )
    assert kernels(per_example, *many) == ["sru_backward", "sru_forward"]


BATCHES = {
    "inputs": (0, 0, 0, 0, None, None, None),
    "parameters": (None, None, None, None, 0, 0, None),
    "all": (0, 1, 2, -1, 0, 1, 1),
    "state": (None, None, None, None, None, None, 0),
    "one bias": (0, 0, None, None, None, 0, 0),
}


@pytest.mark.parametrize(
    ("name", "batch"),
    [*(("plain", batch) for batch in BATCHES), ("packed-reset", "all"), ("left-reverse", "all")],
)
def test_w07_vmap(rng, name, batch):
    (arrays, options), in_axes = small(rng, name), BATCHES[batch]
    many = [batched(rng, v, d) for v, d in zip(arrays, in_axes, strict=True)]
    run = jax.jit(partial(srj.sru, return_final=True, activation="tanh", **options))
    assert_close(jax.vmap(run, in_axes)(*many), stacked(run, in_axes, many))
    gradient = jax.jit(jax.grad(scalar(activation="tanh", **options), EVERY))
    want = stacked(gradient, in_axes, many)
    assert_close(jax.jit(jax.vmap(gradient, in_axes))(*many), want)

    @jax.jit
    def total(*many):
        return jnp.sum(jax.vmap(scalar(activation="tanh", **options), in_axes)(*many))

    moved = [
        w.sum(0) if d is None else np.moveaxis(w, 0, d) for w, d in zip(want, in_axes, strict=True)
    ]
    assert_close(jax.grad(total, EVERY)(*many), tuple(moved))
    assert_close(jax.jvp(total, many, many)[1], sum(map(np.vdot, moved, many)), 1e-9)


def test_vmap_over_sequences_and_of_second_derivatives(rng):
    arrays, _ = small(rng, "plain")
    lengths = np.array([[6, 0], [2, 3], [1, 1]])

    @jax.jit
    def second(lengths, bias_f):
        return jax.hessian(scalar(lengths=lengths), 4)(*arrays[:4], bias_f, *arrays[5:])

    for in_axes in [(0, None), (None, 0), (0, 0)]:
        given = [lengths if in_axes[0] == 0 else lengths[1], batched(rng, arrays[4], in_axes[1])]
        assert_close(jax.vmap(second, in_axes)(*given), stacked(second, in_axes, given))


def test_w07_inside_control_flow_with_checkpoint(rng):
    pieces = [values(rng, 4, 2, 5, 3) for _ in range(4)]
    biases, c0 = values(rng, 2, 3), values(rng, 2, 3)

    def loss(pieces, biases, c0, wrap):
        def step(c, piece):
            h, c = srj.sru(*piece, *biases, c, return_final=True)
            return c, h

        c, h = jax.lax.scan(wrap(step), c0, tuple(pieces))
        return jnp.sum(jnp.sin(h)) + jnp.sum(c)

    def whole(pieces, biases, c0):
        joined = [jnp.concatenate(list(v), 1) for v in pieces]
        h, c = srj.sru(*joined, *biases, c0, return_final=True)
        return jnp.sum(jnp.sin(h)) + jnp.sum(c)

    want = jax.grad(whole, (0, 1, 2))(pieces, biases, c0)
    for wrap in (lambda f: f, jax.checkpoint):
        got = jax.jit(jax.grad(partial(loss, wrap=wrap), (0, 1, 2)))(pieces, biases, c0)
        assert_close(got, want)
    many = jax.tree.map(lambda v: np.stack([v, v / 2]), (pieces, biases, c0))
    gradient = jax.grad(partial(loss, wrap=jax.checkpoint), (0, 1, 2))
    assert_close(jax.tree.map(lambda v: v[0], jax.jit(jax.vmap(gradient))(*many)), want)


@pytest.mark.parametrize("check", [True, False])
def test_w07_shard_map_over_batch(rng, mesh, check):
    arrays = arguments(rng, {}, 4, 7, 3)
    data, whole = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        srj.sru,
        mesh=mesh,
        in_specs=(data, data, data, data, whole, whole, data),
        out_specs=data,
        check_vma=check,
    )

    def gradient(f):
        return jax.jit(jax.grad(lambda *v: jnp.sum(jnp.sin(f(*v))), EVERY))

    assert_close(jax.jit(sharded)(*arrays), srj.sru(*arrays))
    assert_close(gradient(sharded)(*arrays), gradient(srj.sru)(*arrays))


# ---- The layer -----------------------------------------------------------------------------------


def layer_by_hand(params, x, h0=None, **options):
    weight = np.asarray(params["weight"])
    u, f, r, *rest = np.moveaxis(np.tensordot(np.asarray(x), weight, 1), -2, 0)
    skip = rest[0] if rest else x
    return reference.sru(u, f, r, skip, params["bias_f"], params["bias_r"], h0, **options)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 5)])
def test_layer(rng, sizes):
    params = srj.sru_init(jax.random.key(0), *sizes, highway_bias=-2.0, dtype=jnp.float64)
    assert params["weight"].shape == (3, 3 if sizes[0] == sizes[1] else 4, sizes[1])
    assert np.all(params["bias_r"] == -2)
    x, h0 = values(rng, 2, 11, 3), values(rng, 2, sizes[1])
    for options in ({}, {"reverse": True, "lengths": np.array([4, 11])}, {"activation": "tanh"}):
        assert_close(
            srj.sru_layer(params, x, h0, **options), layer_by_hand(params, x, h0, **options)
        )
    # In pieces, down to one step.
    h, state = srj.sru_layer(params, x, h0)
    piece, rows = h0, []
    for i, j in itertools.pairwise([0, 6, 10, 11]):
        row, piece = srj.sru_layer(params, x[:, i:j], piece)
        rows.append(row)
    assert_close((jnp.concatenate(rows, 1), piece), (h, state), 1e-12)
    assert_close(srj.sru_layer(params, x[0], h0[0]), (h[0], state[0]), 0)


def test_layer_initialisation():
    params = srj.sru_init(jax.random.key(1), 300, 500)
    assert params["weight"].dtype == jnp.float32
    assert abs(float(jnp.var(params["weight"])) * 300 - 1) < 0.01
    assert not np.any(params["bias_f"])
    with pytest.raises(ValueError, match="sru_init: hidden_size is 0, expected at least 1"):
        srj.sru_init(jax.random.key(1), 3, 0)


def test_layers_learn():
    """Two layers under plain gradient descent learn what two others compute."""

    def stack(params, x):
        for layer in params:
            x, _ = srj.sru_layer(layer, x, activation="tanh")
        return x

    def make(key):
        first, second = jax.random.split(key)
        return srj.sru_init(first, 3, 8, highway_bias=-1), srj.sru_init(second, 8, 8)

    key, *keys = jax.random.split(jax.random.key(0), 3)
    teacher, student = map(make, keys)
    x = jax.random.normal(key, (32, 20, 3), jnp.float32)
    target = stack(teacher, x)

    @jax.jit
    def descend(params):
        value, grads = jax.value_and_grad(lambda p: jnp.mean((stack(p, x) - target) ** 2))(params)
        return value, jax.tree.map(lambda p, g: p - 3 * g, params, grads)

    first, student = descend(student)
    for _ in range(150):
        last, student = descend(student)
    assert last < first / 4


# ---- Errors --------------------------------------------------------------------------------------

U = np.zeros((2, 5, 3))


@pytest.mark.parametrize(
    ("error", "text", "changes"),
    [
        (ValueError, r"sru: f has shape \(2, 4, 3\), expected \(2, 5, 3\)", {"f": U[:, 1:]}),
        (ValueError, r"sru: skip has shape \(5, 3\), expected \(2, 5, 3\)", {"skip": U[0]}),
        (ValueError, r"sru: bias_f has shape \(4,\), expected \(3,\)", {"bias_f": np.zeros(4)}),
        (ValueError, r"sru: c0 has shape \(3,\), expected \(2, 3\)", {"c0": np.zeros(3)}),
        (ValueError, "sru: activation is 'gelu', expected 'identity'", {"activation": "gelu"}),
        (ValueError, r"sru: lengths has the value 6, expected 0\.\.5", {"lengths": [6, 0]}),
        (TypeError, "sru: r has dtype float32, expected float64", {"r": U.astype("f")}),
        (TypeError, "sru: bias_r has dtype float32", {"bias_r": np.zeros(3, "f")}),
        (TypeError, "sru: u has dtype complex128, expected float16, bfloat16", {"u": U * 1j}),
        (TypeError, "sru: u has dtype int32", {"u": U.astype("i")}),
    ],
)
def test_s08_errors(error, text, changes):
    with pytest.raises(error, match=text):
        srj.sru(**{"u": U, "f": U, "r": U} | changes)


def test_errors_of_the_layer():
    params = srj.sru_init(jax.random.key(0), 3, 4)
    with pytest.raises(
        ValueError, match=r"sru_layer: x has shape \(2, 5\), expected \(\.\.\., T, 3\)"
    ):
        srj.sru_layer(params, np.zeros((2, 5), "f"))
    with pytest.raises(TypeError, match="sru_layer: x has dtype float64, expected float32"):
        srj.sru_layer(params, U)
