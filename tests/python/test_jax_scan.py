"""`scanrnn.jax.scan`: values and gradients against the serial loop, and every transformation."""

# ruff: noqa: E402, F811
import itertools
import time
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import reference
import scanrnn
import scanrnn.jax as srj
from jax.sharding import NamedSharding, PartitionSpec
from jax.test_util import check_grads
from jax_helpers import (
    LARGE,
    SMALL,
    assert_close,
    batched,
    explicit_mesh,  # noqa: F401
    gates,
    kernels,
    mesh,  # noqa: F401
    sizes,
    spread,
    stacked,
    values,
    x64,  # noqa: F401
)
from scanrnn import _core
from scanrnn.jax import _cell

pytestmark = pytest.mark.usefixtures("x64")

DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def problem(rng, name, dtype="float64"):
    """Arguments a, x, h0 and the options of a case."""
    options = LARGE[name]
    B, N = sizes(options, 3)
    arrays = (
        gates(rng, B, 37, 4, dtype=dtype),
        values(rng, B, 37, 4, dtype=dtype),
        values(rng, N, 4, dtype=dtype),
    )
    return arrays, options


# ---- Values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LARGE)
def test_values_and_gradients_are_the_loops(rng, name, dtype):
    dtype = jnp.dtype(dtype)
    arrays, options = problem(rng, name, dtype)
    run = partial(srj.scan, return_final=True, **options)
    (h, final), pullback = jax.vjp(run, *arrays)
    assert h.dtype == dtype
    assert final.dtype == np.result_type(dtype, np.float32) if dtype.itemsize == 2 else dtype
    expected = reference.scan(*arrays, **options)
    reference.assert_matches(h, expected[0])
    reference.assert_matches(final, expected[1], rtol=1e-5 if dtype.itemsize <= 4 else None)

    dh = values(rng, *h.shape, dtype=dtype)
    dfinal = values(rng, *final.shape, dtype=final.dtype)
    # Half precision gradients are of the rounded h, which is what is kept.
    grads = pullback((dh, dfinal))
    expected = reference.scan_vjp(*arrays, dh, dfinal, conj=False, **options)
    for got, array, want in zip(grads, arrays, expected, strict=True):
        assert got.dtype == array.dtype
        reference.assert_matches(got, want, units=4 if dtype.itemsize == 2 else 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_in_the_accumulation_dtype(rng, dtype):
    arrays, _ = problem(rng, "plain", jnp.dtype(dtype))
    a, x, h0 = *arrays[:2], arrays[2].astype(np.float32)
    h, pullback = jax.vjp(srj.scan, a, x, h0)
    grads = pullback(jnp.ones_like(h))
    assert [g.dtype for g in grads] == [dtype, dtype, np.float32]
    assert_close(h, srj.scan(a, x, h0.astype(x.dtype)), 1e-2)


@pytest.mark.parametrize("shape", list(itertools.product((2, 1), (6, 1), (3, 1))))
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_broadcast_gate_and_its_reduced_gradient(rng, shape, dtype):
    a, x = gates(rng, *shape, dtype=dtype), values(rng, 2, 6, 3, dtype=dtype)
    h, pullback = jax.vjp(srj.scan, a, x)
    dh = values(rng, 2, 6, 3, dtype=dtype)
    reference.assert_matches(h, reference.scan(a, x)[0])
    da, dx = pullback(dh)
    expected = reference.scan_vjp(a, x, None, dh, conj=False)
    reference.assert_matches(da, expected[0])
    reference.assert_matches(dx, expected[1])


def test_gate_of_fewer_axes_and_numbers(rng):
    x = values(rng, 2, 3, 7, 4)
    full = partial(jnp.broadcast_to, shape=x.shape)
    for shape in [(), (4,), (7, 1), (3, 1, 4), (2, 1, 7, 4), (2, 1, 1, 1), (1, 3, 7, 1)]:
        a = gates(rng, *shape)
        h, pullback = jax.vjp(srj.scan, a, x)
        expected, pull_full = jax.vjp(lambda a, x: srj.scan(full(a), x), a, x)
        assert_close(h, expected, 1e-12)
        assert_close(pullback(h), pull_full(h), 1e-12)
    assert_close(srj.scan(0.5, x), srj.scan(full(0.5), x), 0)
    assert srj.scan(1, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((9,), -2),
        ((9,), 0),
        ((9, 4), -2),
        ((4, 9), -1),
        ((9, 2, 4), 0),
        ((2, 9, 4), 1),
        ((2, 4, 9), 2),
        ((9, 2, 3, 4), 0),
        ((2, 9, 3, 4), 1),
        ((2, 3, 9, 4), -2),
        ((2, 3, 4, 9), -1),
    ],
)
def test_axes(rng, shape, axis):
    a, x = gates(rng, *shape), values(rng, *shape)
    rest = list(shape)
    del rest[axis if len(shape) > 1 else 0]
    h0 = values(rng, *rest)
    lengths, reset = rng.integers(0, 10, rest[:-1]), rng.random((*rest[:-1], 9)) < 0.3

    def canonical(array):
        if len(shape) == 1:
            return array.reshape(1, 9, 1)
        return np.moveaxis(array, axis, -2).reshape(-1, 9, rest[-1])

    for options in ({}, {"lengths": lengths, "reset": reset, "reverse": True}):
        (h, final), pullback = jax.vjp(
            partial(srj.scan, axis=axis, return_final=True, **options), a, x, h0
        )
        assert (h.shape, final.shape) == (x.shape, h0.shape)
        flat = {k: np.reshape(v, (-1, 9)) if k == "reset" else v for k, v in options.items()}
        if "lengths" in flat:
            flat["lengths"] = np.reshape(lengths, -1)
        state = h0.reshape(-1, canonical(x).shape[-1])
        want = reference.scan(canonical(a), canonical(x), state, **flat)
        assert_close(canonical(h), want[0], 1e-12)
        assert_close(final.reshape(state.shape), want[1], 1e-12)
        da, dx, dh0 = pullback((h, final))
        want = reference.scan_vjp(canonical(a), canonical(x), state, *want, conj=False, **flat)
        assert_close((canonical(da), canonical(dx), dh0.reshape(state.shape)), want, 1e-11)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axis_order_moves_no_data(axis):
    x = jnp.ones((8, 16, 32))
    text = jax.jit(partial(srj.scan, axis=axis)).lower(x, x).compile().as_text()
    assert "scanrnn_scan_forward" in text
    assert " transpose(" not in text
    assert " copy(" not in text


def test_same_bits_as_numpy(rng):
    for dtype in map(jnp.dtype, DTYPES):
        arrays, options = problem(rng, "reset", dtype)
        got = srj.scan(*arrays, **options, return_final=True)
        expected = scanrnn.scan(*arrays, **options, return_final=True)
        for one, other in zip(got, expected, strict=True):
            reference.assert_same_bits(one, other)
    # The package's own function knows JAX arrays.
    h = scanrnn.scan(*map(jnp.asarray, arrays), **options)
    assert isinstance(h, jax.Array)
    reference.assert_same_bits(h, expected[0])


@pytest.mark.parametrize("D", [1, 9, 33])
def test_subnormal_halves_count(D):
    """XLA's threads take subnormal floats for 0."""
    x = (np.arange(1, 40 * D + 1).reshape(1, 40, D) * 2.0**-24).astype(np.float16)
    a = np.ones_like(x)
    h = srj.scan(a, x)
    reference.assert_same_bits(h, scanrnn.scan(a, x))
    np.testing.assert_array_equal(h, np.cumsum(x.astype(np.float64), 1).astype(np.float16))


@pytest.mark.parametrize("T", [1, 2, 3, 31, 32, 33, 257, 1025, 65537])
def test_s01_lengths_of_time(rng, T):
    a, x = gates(rng, 2, T, 3, dtype="float32"), values(rng, 2, T, 3, dtype="float32")
    h, pullback = jax.vjp(srj.scan, a, x)
    reference.assert_matches(h, reference.scan(a, x)[0])
    if T <= 1025:
        for got, want in zip(
            pullback(jnp.ones_like(h)),
            reference.scan_vjp(a, x, None, np.ones(h.shape)),
            strict=False,
        ):
            reference.assert_matches(got, want)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0), (0, 0, 0)])
def test_s03_empty_axes(rng, shape):
    B, T, D = shape
    x, h0 = values(rng, *shape), values(rng, B, D)
    for a in (gates(rng, *shape), gates(rng, 1, 1, 1)):
        (h, final), pullback = jax.vjp(partial(srj.scan, return_final=True), a, x, h0)
        assert h.shape == x.shape
        dfinal = values(rng, B, D)
        da, dx, dh0 = pullback((jnp.zeros(shape), dfinal))
        assert (da.shape, dx.shape, dh0.shape) == (a.shape, x.shape, h0.shape)
        assert not np.any(da)
        if T == 0:
            assert_close(final, h0, 0)
            assert_close(dh0, dfinal, 0)
        hessian = jax.jit(jax.hessian(lambda *v: jnp.sum(srj.scan(*v) ** 2), (0, 2)))(a, x, h0)
        assert hessian[0][1].shape == (*a.shape, *h0.shape)
    assert_close(srj.scan(0.5, jnp.ones((1, 2, 1))).ravel(), [1, 1.5], 0)


# ---- Numbers that are not ordinary ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_n01_zero_gates_exactly(dtype):
    a = np.array([0.5, 0, 2, -1], dtype)[None, :, None]
    b = np.array([1, 2, 3, 4], dtype)[None, :, None]
    h0 = np.array([[10]], dtype)
    h, pullback = jax.vjp(srj.scan, a, b, h0)
    assert_close(h.ravel(), [6, 2, 7, -3], 0)
    da, db, dh0 = pullback(jnp.ones_like(h))
    assert_close(da.ravel(), [10, 6, 0, 7], 0)
    assert_close(db.ravel(), [1, 1, 0, 1], 0)
    assert_close(dh0.ravel(), [0.5], 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_n10_nan_stays_in_its_row(rng, bad):
    a, x = gates(rng, 4, 64, 8), values(rng, 4, 64, 8)
    spoilt = x.copy()
    spoilt[2] = bad
    good, spoilt = (jax.vjp(srj.scan, a, v) for v in (x, spoilt))
    for one, other in zip(
        (good[0], *good[1](jnp.ones_like(x))),
        (spoilt[0], *spoilt[1](jnp.ones_like(x))),
        strict=True,
    ):
        for row in (0, 1, 3):
            reference.assert_same_bits(one[row], other[row])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("B", [4, 1])
def test_n10_padding_is_not_read(rng, side, B):
    lengths = np.array([64, 10, 1, 33])[-B:]
    a, x = gates(rng, B, 64, 8), values(rng, B, 64, 8)
    steps = np.arange(64)
    valid = steps >= 64 - lengths[:, None] if side == "left" else steps < lengths[:, None]
    a[~valid] = x[~valid] = np.nan
    options = {"lengths": lengths, "padding_side": side}

    def loss(a, x):
        h, final = srj.scan(a, x, return_final=True, **options)
        return jnp.sum(jnp.sin(h)) + jnp.sum(final**2)

    h = srj.scan(a, x, **options)
    grads = jax.grad(loss, (0, 1))(a, x)
    assert not np.any(h[~valid])
    for g in grads:
        assert not np.any(g[~valid])
        assert np.all(np.isfinite(g))
    for b in range(B):
        rows = np.s_[b : b + 1, valid[b]]
        assert_close(h[rows], srj.scan(a[rows], x[rows]), 1e-12)
    # Forward mode, and second derivatives, through the composed forms.
    tangents = (
        jnp.full(a.shape, jnp.nan).at[valid].set(1),
        jnp.full(a.shape, jnp.nan).at[valid].set(1),
    )
    _, dh = jax.jvp(lambda a, x: srj.scan(a, x, **options), (a, x), tangents)
    assert np.all(np.isfinite(dh))
    _, dgrads = jax.jvp(jax.grad(loss, (0, 1)), (a, x), tangents)
    for g in dgrads:
        assert np.all(np.isfinite(g))


def test_w03_reset_drops_whatever_was_there(rng):
    a, x = gates(rng, 1, 9, 2), values(rng, 1, 9, 2)
    x[:, :4] = np.inf
    reset = np.zeros((1, 9), bool)
    reset[:, 4] = True
    for flags in (reset, reset.astype(np.uint8), reset.astype(np.float32), jnp.asarray(reset)):
        h, pullback = jax.vjp(partial(srj.scan, reset=flags), a, x, jnp.full((1, 2), np.nan))
        assert_close(h[:, 4:], srj.scan(a[:, 4:], x[:, 4:]), 1e-12)
        da, dx, _ = pullback(jnp.zeros_like(h).at[:, 4:].set(1))
        assert np.all(np.isfinite(da[:, 4:]))
        assert not np.any(dx[:, :4])
    assert_close(srj.scan(a, x, reset=np.ones((1, 9), bool)), x, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_d03_half_precision_is_the_rounded_exact_result(rng, dtype):
    a = rng.uniform(0, 1, (2, 1000, 3)).astype(jnp.dtype(dtype))
    x = values(rng, 2, 1000, 3, dtype=jnp.dtype(dtype))
    h, final = srj.scan(a, x, return_final=True)
    reference.assert_matches(h, reference.scan(a, x)[0])
    assert (h.dtype, final.dtype) == (dtype, np.float32)
    ones = jnp.ones((1, 1000, 1), dtype)
    assert srj.scan(ones, ones, return_final=True)[1] == 1000


# ---- States --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["final", "both", "h"])
@pytest.mark.parametrize("initial", ["given", "none", "shared"])
def test_g03_gradients_of_states(rng, part, initial):
    (a, x, h0), _ = problem(rng, "plain")

    def loss(a, x, h0):
        state = None if initial == "none" else jnp.broadcast_to(h0, (3, 4))
        h, final = srj.scan(a, x, state, return_final=True)
        states.append((h[:, -1], final))
        return (part != "final") * jnp.sum(h) + (part != "h") * jnp.sum(final)

    states = []
    h0 = h0[:1] if initial == "shared" else h0
    da, dx, dh0 = jax.grad(loss, (0, 1, 2))(a, x, h0)
    assert_close(*jax.tree.map(lambda v: v.primal if hasattr(v, "primal") else v, states[0]), 0)
    state = None if initial == "none" else np.broadcast_to(h0, (3, 4))
    dh = np.full(x.shape, float(part != "final"))
    want = reference.scan_vjp(a, x, state, dh, np.full((3, 4), float(part != "h")))
    assert_close((da, dx), want[:2])
    if initial == "none":
        assert not np.any(dh0)
    else:
        assert_close(dh0, want[2].sum(0, keepdims=True) if initial == "shared" else want[2])


@pytest.mark.parametrize("sizes", [[100], [1, 99], [64, 33, 3], [1, 2, 3]])
def test_w01_state_carried_over_pieces(rng, sizes):
    T = 100
    cuts = [0]
    while cuts[-1] < T:  # at random, but few sizes: each is compiled
        cuts.append(min(T, cuts[-1] + int(rng.choice(sizes))))
    a, x, h0 = gates(rng, 2, T, 3), values(rng, 2, T, 3), values(rng, 2, 3)

    def whole(a, x, h0):
        return srj.scan(a, x, h0, return_final=True)

    def in_pieces(a, x, h0):
        out = []
        for i, j in itertools.pairwise(cuts):
            h, h0 = srj.scan(a[:, i:j], x[:, i:j], h0, return_final=True)
            out.append(h)
        return jnp.concatenate(out, 1), h0

    one, pull_one = jax.vjp(whole, a, x, h0)
    other, pull_other = jax.vjp(in_pieces, a, x, h0)
    assert_close(one, other, 1e-12)
    assert_close(pull_one(one), pull_other(one), 1e-10)


def test_w01_gradient_stops_at_a_cut(rng):
    (a, x, h0), _ = problem(rng, "plain")

    def loss(x):
        _, state = srj.scan(a[:, :20], x[:, :20], h0, return_final=True)
        return jnp.sum(srj.scan(a[:, 20:], x[:, 20:], jax.lax.stop_gradient(state)))

    assert not np.any(jax.grad(loss)(x)[:, :20])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_w02_packed_sequences_are_each_alone(rng, dtype):
    cu = np.array([0, 3, 4, 4, 10], dtype)
    a, x, h0 = gates(rng, 1, 10, 2), values(rng, 1, 10, 2), values(rng, 4, 2)

    def loss(x, h0, cu_seqlens, row):
        h, final = srj.scan(a, x, h0, cu_seqlens=cu_seqlens, return_final=True)
        return jnp.sum(final[row]) + jnp.sum(h[:, cu[row] : cu[row + 1]])

    for index in (cu, jnp.asarray(cu), list(map(int, cu))):
        h, final = srj.scan(a, x, h0, cu_seqlens=index, return_final=True)
        flat, _ = srj.scan(a[0], x[0], h0, cu_seqlens=index, return_final=True)
        assert_close(flat, h[0], 0)
        for n, (i, j) in enumerate(itertools.pairwise(cu)):
            alone = srj.scan(a[:, i:j], x[:, i:j], h0[n : n + 1], return_final=True)
            assert_close((h[:, i:j], final[n : n + 1]), alone, 1e-12)
    for n in range(4):
        dx, dh0 = jax.grad(loss, (0, 1))(x, h0, cu, n)
        outside = np.ones(10, bool)
        outside[cu[n] : cu[n + 1]] = False
        assert not np.any(dx[:, outside])
        assert not np.any(np.delete(dh0, n, 0))
    # Offsets may be traced.
    assert_close(jax.jit(lambda cu: srj.scan(a, x, h0, cu_seqlens=cu))(cu), h, 0)


# ---- Transformations -----------------------------------------------------------------------------


def small(rng, name):
    """A case that is small enough for numeric differentiation and for whole Jacobians."""
    options = SMALL[name]
    B, N = sizes(options, 2)
    return (rng.uniform(0.2, 0.9, (B, 6, 2)), values(rng, B, 6, 2), values(rng, N, 2)), options


def scalar(options):
    def loss(a, x, h0):
        h, final = srj.scan(a, x, h0, return_final=True, **options)
        return jnp.sum(jnp.sin(h)) + jnp.sum(jnp.cos(final))

    return loss


@pytest.mark.parametrize("name", ["left-reverse", "packed-reset"])
def test_derivatives_in_both_modes(rng, name):
    arrays, options = small(rng, name)
    check_grads(jax.jit(scalar(options)), arrays, 2, ["fwd", "rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 6, 2), (2, 1, 1)])
def test_derivatives_with_a_broadcast_gate(rng, shape):
    (_, x, h0), _ = small(rng, "plain")
    a = rng.uniform(0.2, 0.9, shape)
    check_grads(jax.jit(scalar({})), (a, x, h0), 2, ["fwd", "rev"], atol=1e-5, rtol=1e-5)


def test_derivatives_of_complex_scans(rng):
    a, x, h0 = (values(rng, *s, dtype="complex128") / 2 for s in [(2, 5, 2), (2, 5, 2), (2, 2)])

    def real(a, x, h0):
        h, final = srj.scan(a, x, h0, return_final=True)
        return jnp.sum(jnp.abs(h) ** 2) + jnp.sum(jnp.real(final * final))

    def loop(a, x, h0):
        rows = []
        for t in range(5):
            h0 = a[:, t] * h0 + x[:, t]
            rows.append(h0)
        h = jnp.stack(rows, 1)
        return jnp.sum(jnp.abs(h) ** 2) + jnp.sum(jnp.real(h0 * h0))

    assert_close(jax.grad(real, (0, 1, 2))(a, x, h0), jax.grad(loop, (0, 1, 2))(a, x, h0))
    check_grads(jax.jit(real), (a, x, h0), 2, ["fwd", "rev"], atol=1e-5, rtol=1e-5)
    # Holomorphic derivatives too.
    holomorphic = jax.grad(lambda a: jnp.sum(srj.scan(a, x, h0) ** 2), holomorphic=True)
    step = 1e-6 * values(rng, 2, 5, 2, dtype="complex128")
    f = [jnp.sum(srj.scan(a + s, x, h0) ** 2) for s in (step, -step)]
    assert_close(jnp.sum(holomorphic(a) * step), (f[0] - f[1]) / 2, 1e-8)


def test_g09_jacobians_agree(rng):
    for arrays, options in (small(rng, name) for name in SMALL):
        run = partial(srj.scan, return_final=True, **options)
        forward = jax.jit(jax.jacfwd(run, (0, 1, 2)))(*arrays)
        backward = jax.jit(jax.jacrev(run, (0, 1, 2)))(*arrays)
        assert_close(forward, backward)


def test_g08_hessians_agree(rng):
    arrays, options = small(rng, "reset")
    loss = scalar(options)
    every = (0, 1, 2)
    first = {"fwd": jax.jacfwd(loss, every), "rev": jax.jacrev(loss, every)}
    one = jax.jit(jax.hessian(loss, every))(*arrays)
    assert_close(jax.jit(jax.jacrev(first["rev"], every))(*arrays), one)
    assert_close(jax.jit(jax.jacrev(first["fwd"], every))(*arrays), one)
    assert_close(jax.jit(jax.jacfwd(first["fwd"], every))(*arrays), one)
    assert np.any(one[0][2])


def test_g09_linearize_and_transpose(rng):
    arrays, options = small(rng, "left")
    run = partial(srj.scan, return_final=True, **options)
    out, linear = jax.linearize(run, *arrays)
    tangents = tuple(values(rng, *v.shape) for v in arrays)
    assert_close((out, linear(*tangents)), jax.jvp(run, arrays, tangents))
    cotangent = jax.tree.map(lambda v: values(rng, *v.shape), out)
    _, pullback = jax.vjp(run, *arrays)
    grads = pullback(cotangent)
    assert_close(jax.linear_transpose(linear, *arrays)(cotangent), grads)
    # The adjoint is linear too, and its transpose is the tangent again.
    assert_close(jax.linear_transpose(pullback, cotangent)(tangents)[0], linear(*tangents))
    # A scan is linear in its input.
    a, x, _ = arrays
    (dx,) = jax.linear_transpose(lambda x: srj.scan(a, x, **options), x)(cotangent[0])
    assert_close(dx, jax.vjp(lambda x: srj.scan(a, x, **options), x)[1](cotangent[0])[0])
    # Pullbacks can be used again.
    assert_close(pullback(cotangent), grads, 0)


def test_g08_gradient_penalty(rng):
    (a, x, h0), _ = small(rng, "plain")

    @jax.jit
    def penalty(scale):
        grads = jax.grad(lambda x: jnp.sum(jnp.tanh(srj.scan(a * scale, x, h0))))(x)
        return (jnp.linalg.norm(grads) - 1) ** 2

    # A function of first derivatives: these are the second and third.
    check_grads(penalty, (0.7,), 2, ["fwd", "rev"], atol=1e-5, rtol=1e-5)


def test_gradient_is_two_kernels(rng):
    arrays, options = small(rng, "packed-reset")
    loss = scalar(options)
    assert kernels(jax.grad(loss, (0, 1, 2)), *arrays) == ["scan_backward", "scan_forward"]
    many = [np.stack([v, v]) for v in arrays]
    per_example = jax.vmap(jax.grad(loss, (0, 1, 2)))
    assert kernels(per_example, *many) == ["scan_backward", "scan_forward"]
    # All that is kept for it is a, h and h0.
    (a, x, h0), _ = problem(rng, "plain")
    _, pullback = jax.vjp(srj.scan, a, x, h0)
    assert sum(v.size for v in jax.tree.leaves(pullback)) == a.size + x.size + h0.size


BATCHES = {
    "all": (0, 0, 0),
    "x": (None, 0, None),
    "a": (0, None, None),
    "h0": (None, None, 0),
    "last": (-1, 1, 1),
    "x-h0": (None, 2, 0),
}


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        *(("plain", batch) for batch in BATCHES),
        *spread(["packed-reset"], BATCHES, 2),
        ("left-reverse", "last"),
    ],
)
def test_w07_vmap(rng, name, batch):
    (arrays, options), in_axes = small(rng, name), BATCHES[batch]
    many = [batched(rng, v, d) for v, d in zip(arrays, in_axes, strict=True)]
    run = jax.jit(partial(srj.scan, return_final=True, **options))
    got = jax.vmap(run, in_axes)(*many)
    assert_close(got, stacked(run, in_axes, many))
    gradient = jax.jit(jax.grad(scalar(options), (0, 1, 2)))
    want = stacked(gradient, in_axes, many)
    assert_close(jax.vmap(gradient, in_axes)(*many), want)

    def total(*many):
        return jnp.sum(jax.vmap(scalar(options), in_axes)(*many))

    summed = [w if d is None else np.moveaxis(w, 0, d) for w, d in zip(want, in_axes, strict=True)]
    summed = [w.sum(0) if d is None else w for w, d in zip(summed, in_axes, strict=True)]
    assert_close(jax.grad(total, (0, 1, 2))(*many), tuple(summed))
    assert_close(jax.jvp(total, many, many)[1], sum(map(np.vdot, summed, many)), 1e-9)


@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("plain", (1, 6, 2), 0),
        ("plain", (2, 1, 1), None),
        ("plain", (1, 1, 1), 0),
        ("packed", (1, 6, 1), 0),
        ("packed", (1, 1, 2), None),
    ],
)
def test_w07_vmap_with_a_broadcast_gate(rng, name, shape, axis):
    (_, x, h0), options = small(rng, name)
    arrays = (rng.uniform(0.2, 0.9, shape), x, h0)
    in_axes = (axis, 0, None)
    many = [batched(rng, v, d) for v, d in zip(arrays, in_axes, strict=True)]
    for f in (
        jax.grad(scalar(options), (0, 1, 2)),
        jax.hessian(scalar(options)),
        jax.jacfwd(partial(srj.scan, **options)),
        jax.jacrev(partial(srj.scan, **options)),
    ):
        assert_close(jax.jit(jax.vmap(f, in_axes))(*many), stacked(jax.jit(f), in_axes, many))


def test_w07_vmap_over_sequences(rng):
    (a, x, h0), _ = small(rng, "plain")
    lengths, reset = np.array([[6, 0], [2, 3], [1, 1]]), rng.random((3, 2, 6)) < 0.3

    @jax.jit
    def run(lengths, reset, x):
        return jax.value_and_grad(scalar({"lengths": lengths, "reset": reset}))(a, x, h0)

    for in_axes in [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0)]:
        arguments = [v if d == 0 else v[0] for v, d in zip((lengths, reset), in_axes, strict=False)]
        arguments.append(batched(rng, x, in_axes[2]))
        assert_close(jax.vmap(run, in_axes)(*arguments), stacked(run, in_axes, arguments))

    # Packed differently in each example: nothing can be merged.
    (a, x, h0), _ = small(rng, "packed")
    offsets = np.array([[0, 1, 1, 6], [0, 0, 3, 6], [0, 2, 4, 6]])

    @jax.jit
    def packed(cu_seqlens, x):
        return jax.grad(scalar({"cu_seqlens": cu_seqlens}), (0, 1, 2))(a, x, h0)

    for in_axes in [(0, None), (0, 0)]:
        arguments = [offsets, batched(rng, x, in_axes[1])]
        assert_close(jax.vmap(packed, in_axes)(*arguments), stacked(packed, in_axes, arguments))


def test_w07_nested_and_empty_vmap(rng):
    a, x = gates(rng, 2, 3, 4, 5, 2), values(rng, 2, 3, 4, 5, 2)
    assert_close(jax.vmap(jax.vmap(srj.scan))(a, x), srj.scan(a, x), 1e-12)
    run = jax.vmap(jax.vmap(srj.scan, (None, 1), 1))
    assert_close(run(a[:, :, 0], x), srj.scan(a[:, :, :1], x), 1e-12)
    assert jax.vmap(jax.grad(scalar({}), (0, 1)), (0, 0, None))(
        jnp.zeros((0, 2, 6, 2)), jnp.zeros((0, 2, 6, 2)), jnp.zeros((2, 2))
    )[0].shape == (0, 2, 6, 2)


def test_w07_checkpoint(rng):
    (a, x, h0), _ = problem(rng, "reset")
    loss = scalar({})
    for policy in (None, jax.checkpoint_policies.dots_saveable):
        again = jax.checkpoint(loss, policy=policy)
        assert_close(jax.grad(again, (0, 1, 2))(a, x, h0), jax.grad(loss, (0, 1, 2))(a, x, h0), 0)


def test_w07_inside_control_flow(rng):
    a, x, h0 = gates(rng, 5, 2, 20, 3), values(rng, 5, 2, 20, 3), values(rng, 2, 3)

    def step(state, piece):
        h, state = srj.scan(*piece, state, return_final=True)
        return state, h

    def loss(a, x, h0, checkpoint=False):
        state, h = jax.lax.scan(jax.checkpoint(step) if checkpoint else step, h0, (a, x))
        return jnp.sum(jnp.sin(h)) + jnp.sum(state)

    def whole(a, x, h0):
        a, x = (jnp.concatenate(list(v), 1) for v in (a, x))
        h, state = srj.scan(a, x, h0, return_final=True)
        return jnp.sum(jnp.sin(h)) + jnp.sum(state)

    every = (0, 1, 2)
    want = jax.grad(whole, every)(a, x, h0)
    assert_close(jax.grad(loss, every)(a, x, h0), want)
    assert_close(jax.grad(partial(loss, checkpoint=True), every)(a, x, h0), want)
    assert_close(jax.jit(jax.grad(loss, every))(a, x, h0), want)
    # Gates stay below 1: the sine of states that grow exponentially tells rounding errors apart.
    many = [np.stack([v, scale * v]) for v, scale in ((a, 0.5), (x, 2), (h0, 2))]
    assert_close(
        jax.vmap(jax.grad(loss, every))(*many), stacked(jax.grad(whole, every), (0, 0, 0), many, 2)
    )
    branch = jax.jit(lambda p: jax.lax.cond(p, lambda: srj.scan(a, x), lambda: x))
    assert_close(branch(True), srj.scan(a, x), 0)
    assert_close(branch(False), x, 0)


def test_w07_donation(rng):
    (a, x, _), _ = problem(rng, "plain")
    expected = srj.scan(a, x)
    donated = jnp.asarray(x)
    h = jax.jit(srj.scan, donate_argnums=1)(a, donated)
    assert donated.is_deleted()
    assert_close(h, expected, 0)


def test_export(rng):
    """With the names that the module has; else JAX refuses."""
    (a, x, _), _ = problem(rng, "plain")
    u = jnp.full(4, 0.5)

    def run(a, x):
        return srj.scan(a, x) + srj.gilr(a, x) + srj.indrnn(x, u, segment=8)

    def grads(a, x):
        return jax.grad(lambda *v: jnp.sum(jnp.sin(run(*v))), argnums=(0, 1))(a, x)

    checks = [*map(jax.export.DisabledSafetyCheck.custom_call, srj.CUSTOM_CALLS)]
    for f in (run, grads):
        with pytest.raises(ValueError, match="custom calls"):
            jax.export.export(jax.jit(f))(a, x)
        exported = jax.export.export(jax.jit(f), disabled_checks=checks)(a, x)
        assert_close(exported.call(a, x), f(a, x), 1e-12)


def test_g10_arguments_are_not_changed(rng):
    a = jnp.asarray(gates(rng, 3, 37, 4))
    x, h0 = values(rng, 3, 37, 4), values(rng, 3, 4)
    for array in (x, h0):
        array.setflags(write=False)
    before = [np.array(v) for v in (a, x, h0)]
    h, pullback = jax.vjp(srj.scan, a, x, h0)
    kept = np.array(h)
    pullback(h)
    for now, then in zip((a, x, h0, h), (*before, kept), strict=True):
        reference.assert_same_bits(now, then)
    frozen = np.frombuffer(x.tobytes()).reshape(x.shape)
    assert_close(srj.scan(np.broadcast_to(0.5, x.shape), frozen), srj.scan(0.5, x), 0)


def test_w07_single_precision_mode(rng):
    jax.config.update("jax_enable_x64", False)
    a, x = gates(rng, 2, 9, 3), values(rng, 2, 9, 3)  # float64: JAX makes them float32
    h, final = srj.scan(a, x, return_final=True, lengths=np.array([9, 4]))
    assert (h.dtype, final.dtype) == (np.float32, np.float32)
    reference.assert_matches(h, reference.scan(a, x, lengths=[9, 4])[0])
    grads = jax.grad(lambda a: jnp.sum(srj.scan(a, x, cu_seqlens=None)))(a)
    assert grads.dtype == np.float32


def test_strict_promotion(rng):
    arrays, options = small(rng, "reset")
    a, x, h0 = (v.astype(jnp.bfloat16) for v in arrays)
    with jax.numpy_dtype_promotion("strict"):

        def loss(a, x, h0):
            return jnp.sum(srj.scan(a, x, h0, return_final=True, **options)[1] ** 2)

        jax.jit(jax.hessian(loss, (0, 1, 2)))(a, x, h0)
        srj.scan(0.5, x)


def test_w07_compile_time_does_not_grow_with_time():
    def seconds(T):
        shape = jax.ShapeDtypeStruct((1, T, 8), jnp.float32)
        gradient = jax.grad(lambda a, x: jnp.sum(srj.scan(a, x) ** 2), (0, 1))
        start = time.perf_counter()
        jax.jit(gradient).lower(shape, shape).compile()
        return time.perf_counter() - start

    seconds(2**9)
    short, long = (min(seconds(2**n + i) for i in range(3)) for n in (10, 20))
    assert long < 2
    assert long < 2 * short


def test_w07_dispatch_is_asynchronous():
    a, x = jnp.full((1, 1, 1), 0.5), jnp.ones((4, 2**20, 4))
    # The product is for XLA: on the CPU it runs at once what it counts under 1000 operations,
    # and it doesn't know what a kernel of ours costs.
    run = jax.jit(lambda a, x: srj.scan(a, srj.scan(a, x @ jnp.eye(4))))
    run(a, x).block_until_ready()
    start = time.perf_counter()
    out = run(a, x)
    dispatched = time.perf_counter() - start
    out.block_until_ready()
    assert dispatched < (time.perf_counter() - start) / 2


# ---- Several devices -----------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("options", [{}, {"lengths": np.array([7, 0, 3, 6])}])
def test_w07_shard_map_over_batch(rng, mesh, check, options):
    a, x, h0 = gates(rng, 1, 7, 3), values(rng, 4, 7, 3), values(rng, 4, 3)
    names = list(options)
    P = PartitionSpec

    def run(a, x, h0, *given):
        return srj.scan(a, x, h0, return_final=True, **dict(zip(names, given, strict=True)))

    sharded = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(P(), P("data"), P("data"), *(P("data") for _ in names)),
        out_specs=P("data"),
        check_vma=check,
    )

    def loss(f, a, x, h0):
        h, final = f(a, x, h0, *options.values())
        return jnp.sum(jnp.sin(h)) + jnp.sum(final**2)

    assert_close(jax.jit(sharded)(a, x, h0, *options.values()), run(a, x, h0, *options.values()))
    got = jax.jit(jax.grad(partial(loss, sharded), (0, 1, 2)))(a, x, h0)
    assert_close(got, jax.grad(partial(loss, run), (0, 1, 2))(a, x, h0))
    got = jax.jit(jax.hessian(partial(loss, sharded)))(a, x, h0)
    assert_close(got, jax.jit(jax.hessian(partial(loss, run)))(a, x, h0))


def test_w07_shard_map_over_channels(rng, mesh):
    a, x = gates(rng, 2, 7, 4), values(rng, 2, 7, 4)
    spec = PartitionSpec(None, None, "data")
    sharded = jax.shard_map(srj.scan, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    assert_close(jax.jit(sharded)(a, x), srj.scan(a, x))


def test_w07_sharded_arguments_under_jit(rng, mesh):
    a, x = gates(rng, 4, 7, 3), values(rng, 4, 7, 3)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    h = jax.jit(srj.scan)(*(jax.device_put(v, sharding) for v in (a, x)))
    assert_close(h, srj.scan(a, x), 0)


def test_w07_explicit_sharding(rng, explicit_mesh):
    """What `jax.make_mesh` makes: gradients are sharded as their arguments are."""
    mesh, spec = explicit_mesh, PartitionSpec("data")
    arrays = gates(rng, 4, 7, 3), values(rng, 4, 7, 3), values(rng, 4, 3)
    lengths = np.array([7, 0, 3, 6])

    def loss(a, x, h0, n):
        h, final = srj.scan(a, x, h0, lengths=n, return_final=True)
        return jnp.sum(jnp.sin(h)) + jnp.sum(final**2)

    sharded = [jax.device_put(v, NamedSharding(mesh, spec)) for v in (*arrays, lengths)]
    run = jax.value_and_grad(loss, (0, 1, 2))
    with jax.set_mesh(mesh):
        value, grads = jax.jit(run)(*sharded)
    assert_close((value, grads), run(*arrays, lengths))
    for grad in grads:
        assert grad.sharding.is_equivalent_to(sharded[0].sharding, grad.ndim)


# ---- Errors --------------------------------------------------------------------------------------

X = np.zeros((2, 5, 3))


@pytest.mark.parametrize(
    ("error", "text", "arguments", "options"),
    [
        (
            ValueError,
            r"scan: h0 has shape \(3, 4\), expected \(2, 3\)",
            (X, X, np.zeros((3, 4))),
            {},
        ),
        (
            ValueError,
            r"scan: a has shape \(2, 4, 3\), expected a shape that broadcasts to \(2, 5, 3\)",
            (np.zeros((2, 4, 3)), X),
            {},
        ),
        (ValueError, r"scan: a has shape \(1, 2, 5, 3\)", (X[None], X), {}),
        (ValueError, r"scan: x has shape \(\), expected at least a time axis", (1.0, 1.0), {}),
        (ValueError, r"scan: axis is 3, expected -3\.\.2", (X, X), {"axis": 3}),
        (ValueError, "scan: padding_side is 'top'", (X, X), {"padding_side": "top"}),
        (
            ValueError,
            r"scan: lengths has shape \(3,\), expected \(2,\)",
            (X, X),
            {"lengths": [1, 2, 3]},
        ),
        (
            ValueError,
            r"scan: lengths has the value 6, expected 0\.\.5",
            (X, X),
            {"lengths": [1, 6]},
        ),
        (ValueError, r"scan: lengths has the value -1", (X, X), {"lengths": [-1, 5]}),
        (ValueError, r"expected a batch size of 1", (X, X), {"cu_seqlens": [0, 5]}),
        (ValueError, "cu_seqlens starts at 1, expected 0", (X[:1], X[:1]), {"cu_seqlens": [1, 5]}),
        (ValueError, "cu_seqlens ends at 4, expected 5", (X[:1], X[:1]), {"cu_seqlens": [0, 4]}),
        (
            ValueError,
            "cu_seqlens decreases from 3 to 2",
            (X[:1], X[:1]),
            {"cu_seqlens": [0, 3, 2, 5]},
        ),
        (ValueError, r"cu_seqlens has shape \(0,\)", (X[:1], X[:1]), {"cu_seqlens": []}),
        (
            ValueError,
            "scan: cu_seqlens and lengths were both given",
            (X[:1], X[:1]),
            {"cu_seqlens": [0, 5], "lengths": [5]},
        ),
        (
            ValueError,
            r"scan: reset has shape \(2, 4\), expected \(2, 5\)",
            (X, X),
            {"reset": X[:, 1:, 0] > 0},
        ),
        (TypeError, "scan: reset has dtype complex128", (X, X), {"reset": X[..., 0] * 1j}),
        (
            TypeError,
            "scan: lengths has dtype float64, expected int32 or int64",
            (X, X),
            {"lengths": [1.0, 2]},
        ),
        (TypeError, "scan: a has dtype float32, expected float64", (X.astype("f"), X), {}),
        (TypeError, "scan: a has dtype complex128, expected float64", (1j, X), {}),
        (
            TypeError,
            "scan: x has dtype int32, expected float16, bfloat16",
            (X.astype("i"), X.astype("i")),
            {},
        ),
        (TypeError, "scan: x has dtype float8", (X.astype(jnp.float8_e5m2),) * 2, {}),
        (
            TypeError,
            "scan: h0 has dtype float32, expected float64",
            (X, X, X[:, 0].astype("f")),
            {},
        ),
        (TypeError, "scan: x is a object, expected an array", (X, object()), {}),
    ],
)
def test_s08_errors(error, text, arguments, options):
    with pytest.raises(error, match=text):
        srj.scan(*arguments, **options)
    # While a function is traced, as at the call.
    if isinstance(arguments[1], np.ndarray):
        with pytest.raises(error, match=text):
            jax.jit(lambda *v: srj.scan(*v, **options))(*arguments)


def test_d01_dtypes_that_jax_does_not_compute_with():
    with pytest.raises(TypeError, match=r"scan: x is a numpy\.ndarray of dtype >f8, expected an"):
        srj.scan(X, X.astype(">f8"))
    with pytest.raises(TypeError, match=r"scan: a has dtype key<\w+>, expected numbers"):
        srj.scan(jax.random.key(0), X)


@pytest.mark.parametrize(
    ("text", "run", "index"),
    [
        ("lengths", lambda i: srj.scan(X, X, lengths=i), [6, 0]),
        ("cu_seqlens", lambda i: srj.scan(X[:1], X[:1], cu_seqlens=i), [0, 4, 3, 5]),
    ],
)
def test_errors_in_traced_values(text, run, index):
    with pytest.raises(Exception, match=f"scan.*{text}") as caught:
        jax.block_until_ready(jax.jit(run)(jnp.asarray(index)))
    assert "INVALID_ARGUMENT" in str(caught.value)
    assert_close(srj.scan(0.5, jnp.ones((1, 2, 1))).ravel(), [1, 1.5], 0)


def test_needs_jax_and_its_handlers(run_python):
    text = run_python(
        "import sys; sys.modules['jax'] = None\n"
        "import scanrnn\n"
        "try: import scanrnn.jax\n"
        "except ImportError as error: print(error)\n"
    )
    assert "pip install 'scanrnn[jax]'" in text
    text = run_python(
        "import scanrnn._core as core\n"
        "core.ffi_targets = dict\n"
        "try: import scanrnn.jax\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert "compiled without XLA's headers" in text
    text = run_python(
        "import scanrnn._core as core\n"
        "core.ffi_version = (core.ffi_version[0], 999)\n"
        "try: import scanrnn.jax\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert "headers of version 0.999" in text
    assert f"installed jaxlib {version('jaxlib')} are older" in text


def lowered(f, *arrays, platform="cuda"):
    return jax.jit(f).trace(*arrays).lower(lowering_platforms=(platform,))


def test_platforms_without_kernels():
    with pytest.raises(NotImplementedError, match="no kernel for tpu, only cpu or cuda"):
        lowered(srj.scan, X, X, platform="tpu")


@pytest.mark.skipif(scanrnn.cuda_available(), reason="is for machines without CUDA")
def test_b05_without_cuda_the_error_says_why():
    with pytest.raises(RuntimeError, match="CUDA"):
        lowered(srj.scan, X, X)


def test_lowering_for_cuda_adds_a_workspace(monkeypatch):
    """The size is that which the core tells for the buffers that XLA will pass."""
    asked = []

    def sizes(name, operands, results, *, device, **attributes):
        asked.append((name, device))
        on_the_cpu = _core.ffi_workspace_bytes(name, operands, results, device=-1, **attributes)
        assert on_the_cpu >= 0
        return 1000 + len(asked)

    monkeypatch.setattr(_cell, "_core", SimpleNamespace(ffi_workspace_bytes=sizes))

    def loss(a, x, h0):
        h, final = srj.scan(a, x, h0, axis=1, return_final=True)
        return h.sum() + final.sum()

    x = jnp.ones((2, 5, 3))
    text = lowered(jax.grad(loss, (0, 1, 2)), x, x, x[:, 0]).as_text()
    assert asked == [("scanrnn_scan_forward", 0), ("scanrnn_scan_backward", 0)]
    forward, backward = (line for line in text.splitlines() if "custom_call @scanrnn" in line)
    assert "-> (tensor<2x5x3xf64>, tensor<2x3xf64>, tensor<1001xui8>)" in forward
    assert "tensor<1002xui8>)" in backward
    assert "workspace" not in lowered(loss, x, x, x[:, 0], platform="cpu").as_text()


def test_lowering_for_cuda_inside_of_shard_map(monkeypatch, mesh):
    module = SimpleNamespace(ffi_workspace_bytes=lambda *_, **__: 16)
    monkeypatch.setattr(_cell, "_core", module)
    x = jnp.ones((2, 5, 3))
    spec = PartitionSpec("data")
    f = jax.shard_map(srj.scan, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    assert "tensor<1x5x3xf64>, tensor<1x3xf64>, tensor<16xui8>" in lowered(f, x, x).as_text()


def test_workspace_of_a_target():
    shape, state = (2, (2, 5, 3)), (2, (2, 3))
    absent = (2, (0,))
    options = {"reverse": False, "packed": False, "left_padded": False, "order": 0}

    def size(name, operands, results, **changes):
        return _core.ffi_workspace_bytes(
            name, operands, results, device=-1, **{**options, **changes}
        )

    operands = [shape, shape, absent, absent, absent]
    assert size("scanrnn_scan_forward", operands, [shape, state]) >= 0
    with pytest.raises(ValueError, match="h has shape"):
        size("scanrnn_scan_forward", operands, [(2, (2, 6, 3)), state])
    with pytest.raises(TypeError, match="h has dtype"):
        size("scanrnn_scan_forward", operands, [(3, (2, 5, 3)), state])
    with pytest.raises(ValueError, match="too few buffers"):
        size("scanrnn_scan_forward", operands[:-1], [shape, state])
    with pytest.raises(ValueError, match="order"):
        size("scanrnn_scan_forward", operands, [shape, state], order=3)
    with pytest.raises(ValueError, match="there is no target scan"):
        size("scan", operands, [shape, state])
    with pytest.raises(ValueError, match="platform is rocm"):
        _core.ffi_targets("rocm")
