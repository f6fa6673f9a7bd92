"""`scanrnn.jax`'s lstm, gru and rnn against the serial recurrence and against torch.nn."""

# ruff: noqa: E402, F811
import itertools
import os
import re
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import scanrnn.jax as srj
from jax.sharding import NamedSharding, PartitionSpec
from jax.test_util import check_grads
from jax_helpers import assert_close, explicit_mesh, mesh, x64  # noqa: F401
from scanrnn.jax import _dense

pytestmark = pytest.mark.usefixtures("x64")

KINDS = {
    "lstm": (srj.lstm, 4, {}),
    "gru": (srj.gru, 3, {}),
    "tanh": (srj.rnn, 1, {}),
    "relu": (srj.rnn, 1, {"nonlinearity": "relu"}),
}
by_kind = pytest.mark.parametrize("kind", KINDS)


def parameters(rng, kind, D=5, H=6, *, gain=1.0, gate=0.0, dtype="float64", bias=True):
    rows = KINDS[kind][1] * H

    def uniform(*shape):
        return gain * rng.uniform(-1, 1, shape) / np.sqrt(H)

    params = {"weight_ih": uniform(rows, D), "weight_hh": uniform(rows, H)}
    if bias:
        params |= {"bias_ih": uniform(rows), "bias_hh": uniform(rows)}
        if rows > H:
            params["bias_ih"][H : 2 * H] += gate
    return {k: jnp.asarray(v, dtype) for k, v in params.items()}


def initial(rng, kind, batch, H=6, dtype="float64"):
    states = [jnp.asarray(rng.normal(size=(*batch, H)), dtype) for _ in range(2)]
    return tuple(states) if kind == "lstm" else states[0]


@partial(jax.jit, static_argnums=0, static_argnames="reverse")
def serial(kind, params, x, state=None, reverse=False):
    """Plain scan over time."""
    h, final, _ = _dense._network(
        kind, kind, params, x, state, reverse, x.shape[-2] + 1, 1, None, None, "highest"
    )
    return h, final if kind == "lstm" else final[0]


def call(kind, *args, **options):
    fn, _, own = KINDS[kind]
    return fn(*args, **own, **options)


def difference(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.abs(u - v).max() / jnp.maximum(1, jnp.abs(v).max())) for u, v in leaves)


@pytest.mark.parametrize(
    ("kind", "dtype", "reverse"),
    [
        ("lstm", "float64", False),
        ("lstm", "float32", True),
        ("gru", "float64", False),
        ("tanh", "float32", True),
        ("relu", "float64", True),
    ],
)
def test_values_and_gradients_are_the_serial_ones(rng, kind, dtype, reverse):
    params = parameters(rng, kind, dtype=dtype)
    x = jnp.asarray(rng.normal(size=(2, 403, 5)), dtype)
    state = initial(rng, kind, (2,), dtype=dtype)

    def ours(params, x, state):
        return call(kind, params, x, state, reverse=reverse, width=50, burn_in=50)

    want, pull_want = jax.vjp(lambda *a: serial(kind, *a, reverse=reverse), params, x, state)
    got, pull = jax.vjp(jax.jit(ours), params, x, state)
    tolerance = 1e-11 if dtype == "float64" else 3e-6
    assert difference(got, want) < tolerance
    g = jax.tree.map(lambda v: jnp.asarray(rng.normal(size=v.shape), v.dtype), want)
    assert difference(pull(g), pull_want(g)) < 10 * tolerance
    none = jax.tree.map(jnp.zeros_like, want)
    only_final = (none[0], g[1])
    assert difference(pull(only_final), pull_want(only_final)) < 10 * tolerance
    options = {"width": 50, "burn_in": 50, "return_report": True}
    report = jax.jit(partial(call, kind, **options))(params, x, state)[-1]
    assert _dense.STATUS[int(report.status)] == "converged"
    assert report.residual <= (1e-12 if dtype == "float64" else 2e-6)
    assert int(report.first_unconverged_step) == -1


@by_kind
def test_numbers_are_torchs(rng, kind):
    torch = pytest.importorskip("torch")
    cls = {"lstm": "LSTM", "gru": "GRU"}.get(kind, "RNN")
    own = KINDS[kind][2]
    module = getattr(torch.nn, cls)(5, 6, batch_first=True, dtype=torch.float64, **own)
    params = {
        n.removesuffix("_l0"): jnp.asarray(p.detach().numpy()) for n, p in module.named_parameters()
    }
    x = rng.normal(size=(3, 300, 5))
    want = module(torch.from_numpy(x))[0].detach().numpy()
    assert difference(call(kind, params, jnp.asarray(x))[0], want) < 1e-11


@by_kind
def test_check_grads(rng, kind):
    params = parameters(rng, kind, 2, 3)
    x = jnp.asarray(rng.normal(size=(38, 2)))
    state = initial(rng, kind, (), 3)
    run = jax.jit(partial(call, kind, width=9, tol=1e-13, max_passes=6))
    check_grads(run, (params, x, state), 1, ["rev"])


@pytest.mark.parametrize(("kind", "gain", "gate"), [("lstm", 1, 6), ("gru", 1, 6), ("lstm", 2, 4)])
def test_n11_fallback_keeps_the_prefix(rng, kind, gain, gate):
    params = parameters(rng, kind, 5, 16, gain=gain, gate=gate)
    x = jnp.asarray(rng.normal(size=(2, 1000, 5)))
    run = jax.jit(lambda p, x: call(kind, p, x, width=50, burn_in=16, return_report=True))
    h, final, report = run(params, x)
    want = serial(kind, params, x)
    assert _dense.STATUS[int(report.status)] == "fell_back"
    step = int(report.first_unconverged_step)
    assert step >= 50 * int(report.passes)
    assert int(report.passes) <= 2
    assert np.isinf(report.error_estimate)
    assert difference(h[:, :step], want[0][:, :step]) < 1e-12
    assert difference((h, final), want) < 1e-9
    got = jax.grad(lambda p: run(p, x)[0].sum())(params)
    assert difference(got, jax.grad(lambda p: serial(kind, p, x)[0].sum())(params)) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_n11_thousands_of_weights(rng, kind):
    """What isn't within the report's estimate of the serial result is a silent failure."""
    count = 3400 if "SCANRNN_LONG_TESTS" in os.environ else 60
    gains = np.exp(rng.uniform(np.log(0.1), np.log(6), count))
    gates = rng.uniform(-3, 6, count)
    sets = [
        parameters(rng, kind, 3, 6, gain=g, gate=b, dtype="float32")
        for g, b in zip(gains, gates, strict=True)
    ]
    params = jax.tree.map(lambda *p: jnp.stack(p), *sets)
    x = jnp.asarray(rng.normal(size=(count, 2, 200, 3)), "float32")
    options = {"width": 25, "burn_in": 16, "return_report": True}
    h, _, report = jax.jit(jax.vmap(partial(call, kind, **options)))(params, x)
    alone = jax.vmap(lambda p, x: serial(kind, p, x)[0])
    wide = jax.tree.map(lambda p: p.astype("float64"), (params, x))
    exact = alone(*wide)
    error, rounding = (jnp.abs(v - exact).max((1, 2, 3)) for v in (h, alone(params, x)))
    bad = ~(error <= report.error_estimate + 4 * rounding + 2e-6)
    assert not bad.any(), [(gains[i], gates[i], float(error[i])) for i in np.flatnonzero(bad)]
    seen = np.bincount(report.status, minlength=3)
    assert seen[1] >= count / 10
    assert kind == "tanh" or seen[2] >= count / 40, seen


def test_only_what_moved_runs_again(rng, monkeypatch):
    params = parameters(rng, "lstm", 5, 8)
    x = rng.normal(size=(1, 1600, 5))
    x[:, :200] *= 5
    x = jnp.asarray(x)
    options = {"width": 50, "burn_in": 12, "max_passes": 12, "return_report": True}
    most = srj.lstm(params, x, **options, tol=1.0)[2].residual
    rows = []
    leaf = _dense._leaf

    def counted(config, params, x, state):
        jax.debug.callback(lambda n=x.shape[2]: rows.append(n))
        return leaf(config, params, x, state)

    def loss(params, tol):  # of a step that the burn-in of the adjoint doesn't see
        h, _, report = srj.lstm(params, x, **options, tol=tol)
        return h[:, 715].sum(), (h, report)

    h, _ = serial("lstm", params, x)
    want = jax.grad(lambda p: serial("lstm", p, x)[0][:, 715].sum())(params)
    monkeypatch.setattr(_dense, "_leaf", counted)
    _, (got, report) = loss(params, float(most / 2))
    jax.effects_barrier()
    assert (int(report.status), int(report.passes)) == (1, 2)
    assert sorted(rows) == [4, 32, 32]  # few had moved: room for an eighth
    assert difference(got, h) <= most
    rows.clear()
    (_, (got, report)), grads = jax.value_and_grad(loss, has_aux=True)(params, 1e-9)
    jax.effects_barrier()
    assert int(report.status) == 1
    assert 4 in rows
    assert difference(got, h) < 1e-8
    assert difference(grads, want) < 1e-8


def test_more_passes_where_they_are_needed(rng):
    params = parameters(rng, "lstm", 5, 16, gate=1.5)
    x = jnp.asarray(rng.normal(size=(2, 1000, 5)))
    options = {"width": 50, "burn_in": 16, "tol": 1e-9, "max_passes": 12}
    h, _, report = srj.lstm(params, x, **options, return_report=True)
    want = serial("lstm", params, x)[0]
    assert _dense.STATUS[int(report.status)] == "converged"
    assert 1 < int(report.passes) < 12
    assert difference(h, want) < 1e-8
    got = jax.grad(lambda p: (srj.lstm(p, x, **options)[0] ** 2).sum())(params)
    assert difference(got, jax.grad(lambda p: (serial("lstm", p, x)[0] ** 2).sum())(params)) < 1e-7


@by_kind
@pytest.mark.parametrize("burn_in", [8, 20])
def test_the_error_estimate_is_one(rng, kind, burn_in):
    options = {"width": 50, "burn_in": burn_in, "tol": 1e-2, "max_passes": 9}
    run = jax.jit(partial(call, kind, **options, return_report=True))
    for _ in range(3):
        params = parameters(rng, kind, 8, 24)
        x = jnp.asarray(rng.normal(size=(2, 1000, 8)))
        h, _, report = run(params, x)
        error = float(jnp.abs(h - serial(kind, params, x)[0]).max())
        assert _dense.STATUS[int(report.status)] == "converged"
        assert error <= float(report.error_estimate) <= 400 * error


@pytest.mark.parametrize("T", [0, 1, 2, 127, 128, 1000])
def test_s01_any_length(rng, T):
    params = parameters(rng, "gru")
    x = jnp.asarray(rng.normal(size=(2, T, 5)))
    h, final, report = srj.gru(params, x, return_report=True)
    assert difference((h, final), serial("gru", params, x)) < 1e-11 if T else h.shape == (2, 0, 6)
    assert _dense.STATUS[int(report.status)] == ("converged" if T >= 128 else "serial")


@by_kind
def test_w01_w05_pieces_and_steps_are_the_sequence(rng, kind):
    """States and gradients are carried from piece to piece; the last ones are of one step."""
    params, x = parameters(rng, kind), jnp.asarray(rng.normal(size=(2, 101, 5)))
    state = initial(rng, kind, (2,))
    cuts = [0, 1, 2, 98, 99, 100, 101]  # few lengths: each is compiled

    def pieces(params, x, state):
        outputs = []
        for begin, end in itertools.pairwise(cuts):
            h, state = call(kind, params, x[:, begin:end], state, width=32, burn_in=50)
            outputs.append(h)
        return jnp.concatenate(outputs, 1), state

    want, pull_want = jax.vjp(partial(serial, kind), params, x, state)
    got, pull = jax.vjp(pieces, params, x, state)
    assert difference(got, want) < 1e-11
    g = jax.tree.map(lambda v: jnp.asarray(rng.normal(size=v.shape)), want)
    grads = pull(g)
    assert difference(grads, pull_want(g)) < 1e-10
    assert difference(pull(g), grads) == 0  # G05: once more, the same


@by_kind
@pytest.mark.parametrize("shape", [(1, 1, 5), (1, 9, 5), (5, 1, 5), (2, 9, 1), (0, 5, 3)], ids=str)
def test_s02_s03_sizes_of_one_and_none(rng, kind, shape):
    B, _, D = shape
    params, x = parameters(rng, kind, D, max(D, 2)), jnp.asarray(rng.normal(size=shape))
    got, want = call(kind, params, x), serial(kind, params, x)
    assert got[0].shape == (*shape[:2], max(D, 2))
    if B:
        assert difference(got, want) < 1e-11
    grads = jax.grad(lambda p: call(kind, p, x)[0].sum())(params)
    assert all(g.shape == params[n].shape for n, g in grads.items())
    assert B or not any(g.any() for g in grads.values())


def test_vmap_and_batches_of_any_rank(rng):
    params = parameters(rng, "lstm")
    x = jnp.asarray(rng.normal(size=(2, 3, 200, 5)))
    run = jax.jit(srj.lstm)
    assert difference(jax.vmap(run, (None, 0))(params, x), run(params, x)) < 1e-12
    many = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), params)
    got = jax.vmap(jax.grad(lambda p, x: run(p, x)[0].sum()))(many, x)
    for i in range(2):
        one = jax.tree.map(lambda p, i=i: p[i], many)
        assert difference(
            jax.tree.map(lambda p, i=i: p[i], got),
            jax.grad(lambda p, i=i: serial("lstm", p, x[i])[0].sum())(one),
        ) < 1e-9  # fmt: skip


def test_w07_explicit_sharding(rng, explicit_mesh):
    params, x = parameters(rng, "gru"), jnp.asarray(rng.normal(size=(4, 200, 5)))
    grad = jax.grad(lambda params, x: jnp.sum(jnp.sin(srj.gru(params, x)[0])), (0, 1))
    spread = jax.device_put(x, NamedSharding(explicit_mesh, PartitionSpec("data")))
    with jax.set_mesh(explicit_mesh):
        got = jax.jit(grad)(params, spread)
    assert_close(got, grad(params, x))


def test_w07_strict_promotion(rng):
    params, x = parameters(rng, "lstm"), jnp.asarray(rng.normal(size=(2, 200, 5)))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.grad(lambda params: jnp.sum(srj.lstm(params, x)[0]))(params)


def test_n10_nan_stays_in_its_row(rng):
    params = parameters(rng, "gru")
    x = rng.normal(size=(3, 400, 5))
    clean = srj.gru(params, jnp.asarray(x))[0]
    x[1, 200:] = np.nan
    h, _, report = srj.gru(params, jnp.asarray(x), return_report=True)
    assert difference(h[::2], clean[::2]) < 1e-12
    assert jnp.isnan(h[1, 200:]).all()
    assert difference(h[1, :200], clean[1, :200]) < 1e-12
    assert _dense.STATUS[int(report.status)] == "fell_back"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_n10_a_cotangent_counts_for_its_sequence_alone(rng, value):
    params, x = parameters(rng, "gru"), jnp.asarray(rng.normal(size=(3, 400, 5)))
    cotangents = rng.normal(size=(3, 400, 6))
    cotangents[1, 250, 2] = value
    got, want = (
        jax.vjp(function, x)[1](jnp.asarray(cotangents))[0]
        for function in (
            lambda x: srj.gru(params, x, width=50, burn_in=8)[0],
            lambda x: serial("gru", params, x)[0],
        )
    )
    assert difference(got[::2], want[::2]) < 1e-10
    np.testing.assert_array_equal(jnp.isfinite(got), jnp.isfinite(want))


def test_s08_errors(rng):
    params = parameters(rng, "lstm")
    x = jnp.zeros((2, 100, 5))
    for wrong in (x[0, 0], x[..., :4]):
        with pytest.raises(ValueError, match=r"lstm: x has shape .*, expected \(..., T, 5\)"):
            srj.lstm(params, wrong)
    for dtype in ("float32", "int32"):
        with pytest.raises(TypeError, match=f"lstm: x has dtype {dtype}, expected float64"):
            srj.lstm(params, x.astype(dtype))
    for name, shape, expected in (
        ("weight_ih", (24,), "two axes"),
        ("weight_hh", (24,), "two axes"),
        ("weight_ih", (22, 5), r"\(24, 5\)"),
        ("weight_hh", (20, 6), r"\(24, 6\)"),
        ("bias_hh", (6,), r"\(24,\)"),
    ):
        text = rf"lstm: {name} has shape {re.escape(str(shape))}, expected {expected}"
        with pytest.raises(ValueError, match=text):
            srj.lstm(params | {name: jnp.zeros(shape)}, x)
    whole = {name: jnp.zeros(v.shape, int) for name, v in params.items()}
    with pytest.raises(TypeError, match="lstm: weight_ih has dtype int64, expected float64, float"):
        srj.lstm(whole, x)
    with pytest.raises(ValueError, match=r"lstm: state has shape \(2, 5\), expected \(2, 6\)"):
        srj.lstm(params, x, (jnp.zeros((2, 6)), jnp.zeros((2, 5))))
    with pytest.raises(ValueError, match="lstm: state has 1 parts, expected 2"):
        srj.lstm(params, x, (jnp.zeros((2, 6)),))
    with pytest.raises(ValueError, match=r"lstm: params has \['weight_hh'\], expected weight_ih"):
        srj.lstm({"weight_hh": params["weight_hh"]}, x)
    with pytest.raises(ValueError, match="lstm: params has more, expected some of"):
        srj.lstm(params | {"more": params["weight_hh"]}, x)
    for name in ("width", "burn_in", "max_passes"):
        with pytest.raises(ValueError, match=f"gru: {name} is -1, expected at least 1"):
            srj.gru(parameters(rng, "gru"), x, **{name: -1})
        with pytest.raises(TypeError, match=f"gru: {name} is 2.5, expected a whole number"):
            srj.gru(parameters(rng, "gru"), x, **{name: 2.5})
    with pytest.raises(TypeError, match="lstm: tol is 'a', expected a number"):
        srj.lstm(params, x, tol="a")
    for tol in (0, -1e-6, float("nan")):
        with pytest.raises(ValueError, match=f"lstm: tol is {tol}, expected a positive number"):
            srj.lstm(params, x, tol=tol)
    with pytest.raises(TypeError, match="lstm: params is a NoneType, expected a mapping"):
        srj.lstm(None, x)
    with pytest.raises(ValueError, match="rnn: nonlinearity is 'exp', expected 'tanh' or 'relu'"):
        srj.rnn(parameters(rng, "tanh"), x, nonlinearity="exp")


def test_m06_calls_repeat_their_bits(rng):
    params = parameters(rng, "lstm", dtype="float32")
    x = jnp.asarray(rng.normal(size=(2, 500, 5)), "float32")
    run = jax.jit(jax.value_and_grad(lambda p: srj.lstm(p, x)[0].sum()))
    first = jax.tree.leaves(run(params))
    for _ in range(3):
        again = jax.tree.leaves(run(params))
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
