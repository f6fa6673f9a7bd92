"""The layers of `scanrnn.jax`: values by hand, pieces, padding, first values; and they learn."""

# ruff: noqa: E402, F811
import itertools
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import reference
import scanrnn.jax as srj
from jax.sharding import NamedSharding, PartitionSpec
from jax_cells import CASES, loop
from jax_helpers import (
    SMALL,
    assert_close,
    explicit_mesh,  # noqa: F401
    mesh,  # noqa: F401
    sizes,
    values,
    x64,  # noqa: F401
)
from jax_nonlinear import NONLINEAR
from jax_nonlinear import loop as nonlinear_loop

pytestmark = pytest.mark.usefixtures("x64")

#: What makes a layer's parameters, what runs it, its cell, and the parts of its weight in order.
LAYERS = {
    "gilr": (srj.gilr_init, srj.gilr_layer, "gilr", "f z"),
    "hgrn": (srj.hgrn_init, srj.hgrn_layer, "hgrn", "f z"),
    "hgrn-bias": (partial(srj.hgrn_init, bias=True), srj.hgrn_layer, "hgrn", "f z"),
    "min_gru": (srj.min_gru_init, srj.min_gru_layer, "min_gru", "z v"),
    "min_gru-no-bias": (partial(srj.min_gru_init, bias=False), srj.min_gru_layer, "min_gru", "z v"),
    "min_lstm": (srj.min_lstm_init, srj.min_lstm_layer, "min_lstm", "f i v"),
    "qrnn-f": (partial(srj.qrnn_init, pooling="f"), srj.qrnn_layer, "qrnn-f", "z f"),
    "qrnn-fo": (srj.qrnn_init, srj.qrnn_layer, "qrnn-fo", "z f o"),
    "qrnn-ifo-2": (
        partial(srj.qrnn_init, pooling="ifo", window=2),
        srj.qrnn_layer,
        "qrnn-ifo",
        "z f o i",
    ),
    "rg_lru": (srj.rg_lru_init, srj.rg_lru_layer, "rg_lru", "r i x"),
    "rg_lru-same": (srj.rg_lru_init, srj.rg_lru_layer, "rg_lru", "r i"),
    "lru": (srj.lru_init, srj.lru_layer, "lru", ""),
    "lru-wider": (partial(srj.lru_init, output_size=4), srj.lru_layer, "lru", ""),
    "sru": (srj.sru_init, srj.sru_layer, "sru", "u f r skip"),
    "gilr_lstm": (srj.gilr_lstm_init, srj.gilr_lstm_layer, "qrnn-ifo", "z f o i"),
    "s5": (srj.s5_init, srj.s5_layer, "lru", ""),
    "diagonal_gru": (srj.diagonal_gru_init, srj.diagonal_gru_layer, "gru", "r z n"),
    "diagonal_lstm": (
        partial(srj.diagonal_lstm_init, peephole=True),
        srj.diagonal_lstm_layer,
        "lstm-peephole",
        "i f g o",
    ),
    "diagonal_lstm-coupled": (
        partial(srj.diagonal_lstm_init, coupled=True, peephole=True, bias=False),
        srj.diagonal_lstm_layer,
        "lstm-coupled",
        "f g o",
    ),
    "indrnn": (
        srj.indrnn_init,
        partial(srj.indrnn_layer, activation="tanh"),
        "indrnn",
        "p",
    ),
    "sru-recurrent": (
        partial(srj.sru_init, recurrent=True),
        partial(srj.sru_layer, activation="tanh"),
        "recurrent_sru",
        "u f r skip",
    ),
}
#: Layers whose state is a pair of states.
PAIRS = ("gilr_lstm", "diagonal_lstm", "diagonal_lstm-coupled")
every_layer = pytest.mark.parametrize("name", LAYERS)


def layer(name, key=0, dtype=jnp.float64):
    """Parameters, none of them zero, and the layer's function."""
    init, run, _, _ = LAYERS[name]
    hidden = 3 if name == "rg_lru-same" else 5
    params = init(jax.random.key(key), 3, hidden, dtype=dtype)
    noise = iter(jax.random.split(jax.random.key(key + 1), len(params)))
    for k, v in params.items():
        more = jax.random.normal(next(noise), v.shape, dtype) / 5
        params[k] = v + (jnp.abs(more) if k == "frequency" else more)
    return params, run


def initial(rng, name, N):
    """The states before the first step, as the layer's function takes them."""
    wide = "complex128" if LAYERS[name][2] == "lru" else "float64"
    sizes = {"qrnn-ifo-2": (5, 3), "rg_lru-same": (3,)} | dict.fromkeys(PAIRS, (5, 5))
    sizes = sizes.get(name, (5,))
    return [values(rng, N, size, dtype=wide) for size in sizes]


def by_hand(name, params, x, state, second=None, **options):
    """The layer out of its equations: y and the recurrent states after the last steps."""
    _, _, cell, parts = LAYERS[name]
    case, parts = (CASES | NONLINEAR)[cell], parts.split()
    if cell in NONLINEAR:
        products = jnp.tensordot(x, params["weight"], 1) + params.get("bias", 0)
        named = {n: products[..., k, :] for k, n in enumerate(parts)}
        recurrent = params.get("recurrent", [])
        named |= {"u" if n == "p" else f"u_{n}": u for n, u in zip(parts, recurrent, strict=False)}
        gates = (n for n in parts if n != "g")
        named |= {f"w_{n}": w for n, w in zip(gates, params.get("peephole", []), strict=False)}
        named |= {"b_n": params["bias_n"]} if cell == "gru" else {}
        named |= {n: params[n] for n in case.vectors if n in params}
        states = [state] if second is None else [state, second]
        arrays = [*(named[n] for n in case.names), *states]
        h, final = nonlinear_loop(case, arrays, **case.options, **options)
        return h, list(final)
    if cell == "lru":
        u = x @ (params["B"][:, 0] + 1j * params["B"][:, 1])
        if name == "s5":
            rate, gamma = jnp.exp(params["rate"]), 1
            step = jnp.exp(params["step"])
            exponent = -rate + 1j * params["frequency"]
            nu, theta = jnp.log(rate * step), jnp.log(params["frequency"] * step)
            u = (jnp.exp(exponent * step) - 1) / exponent * u
        else:
            nu, theta, gamma = params["nu"], params["theta"], jnp.exp(params["gamma"])
        h, final = loop(case, [u, nu, theta, gamma * jnp.ones(5), state], **options)
        h = 2 * h if name == "s5" else h
        y = jnp.real(h @ (params["C"][:, 0] + 1j * params["C"][:, 1]))
        D = params["D"]
        skip = x * D if D.ndim == 1 else x @ D
        if "lengths" in options:
            left = options.get("padding_side") == "left"
            steps, n = np.arange(x.shape[1]), options["lengths"][:, None]
            valid = steps >= x.shape[1] - n if left else steps < n
            skip = jnp.where(valid[..., None], skip, 0)
        return y + skip, [final]
    weight = params["weight"]
    carried = []
    if name == "gilr_lstm":
        products = jnp.tensordot(x, params["surrogate"], 1) + params["surrogate_bias"]
        s, last = loop(CASES["gilr"], [*jnp.unstack(products, axis=-2), state], **options)
        carried = [last]
        before = shifted(s, state, **options)
        products = jnp.tensordot(x, weight, 1) + jnp.tensordot(before, params["recurrent"], 1)
        state = second
    elif cell.startswith("qrnn"):
        products = jnp.tensordot(x, weight[0], 1)
        if len(weight) == 2:
            products = products + jnp.tensordot(shifted(x, second, **options), weight[1], 1)
    else:
        products = jnp.tensordot(x, weight, 1)
    products = products + params.get("bias", 0)
    named = {n: products[..., k, :] for k, n in enumerate(parts)}
    named |= {"x": x} if name == "rg_lru-same" else {}
    named |= {"bound": jnp.zeros(weight.shape[-1])} if cell == "hgrn" else {}
    named |= {n: params[n] for n in case.vectors if n in params}
    h, final = loop(case, [*(named[n] for n in case.names), state], **options)
    return h, [*carried, final]


def shifted(x, x0, *, reset=None, **options):
    """The input before each step."""
    before = jnp.zeros_like(x)
    for n, (b, steps) in enumerate(reference.sequences(*x.shape[:2], **options)):
        last = x0[n]
        for t in steps:
            dropped = reset is not None and reset[b, t]
            before = before.at[b, t].set(0 if dropped else last)
            last = x[b, t]
    return before


def run_layer(name, params, x, *states, **options):
    """The layer: y and its states as a list."""
    y, final = LAYERS[name][1](params, x, *states, **options)
    return y, [v for v in (final if isinstance(final, tuple) else [final]) if v is not None]


@every_layer
@pytest.mark.parametrize("where", ["plain", "lengths", "left-reverse", "packed-reset"])
def test_values(rng, name, where):
    params, _ = layer(name)
    options = SMALL[where]
    B, N = sizes(options, 2)
    x, states = values(rng, B, 6, 3), initial(rng, name, N)
    y, final = run_layer(name, params, x, *states, **options)
    want, last = by_hand(name, params, x, *states, **options)
    assert_close((y, final[: len(last)]), (want, last), 1e-12)


@every_layer
def test_w05_pieces_and_steps(rng, name):
    params, _ = layer(name)
    run = partial(run_layer, name, params)
    x, states = values(rng, 2, 11, 3), initial(rng, name, 2)
    want = run(x, *states)
    rows, carried = [], states
    for i, j in itertools.pairwise([0, 6, 9, 10, 11]):
        row, carried = run(x[:, i:j], *carried)
        rows.append(row)
    assert_close((jnp.concatenate(rows, 1), carried), want, 1e-12)
    # No batch axis; one that comes second; two.
    assert_close(run(x[1], *(v[1] for v in states)), jax.tree.map(lambda v: v[1], want), 1e-12)
    y, final = run(x.swapaxes(0, 1), *states, axis=0)
    assert_close((y.swapaxes(0, 1), final), want, 1e-12)
    y, final = run(x[None], *(v[None] for v in states))
    assert_close((y[0], [v[0] for v in final]), want, 1e-12)


@every_layer
@pytest.mark.parametrize("side", ["left", "right"])
def test_n10_padding_reaches_nothing(rng, name, side):
    """Not even the gradients of weights, which are sums over all steps."""
    params, _ = layer(name)
    lengths, steps = np.array([6, 2]), np.arange(6)
    valid = steps >= 6 - lengths[:, None] if side == "left" else steps < lengths[:, None]
    x = values(rng, 2, 6, 3)
    run = partial(run_layer, name, lengths=lengths, padding_side=side)
    clean, spoilt = (np.where(valid[..., None], x, v) for v in (0, np.nan))
    got, want = (jax.grad(partial(loss, run), (0, 1))(params, v) for v in (spoilt, clean))
    assert_close(got, want, 1e-14)
    assert not np.any(np.asarray(run(params, spoilt)[0])[~valid])


def loss(run, *arrays):
    y, final = run(*arrays)
    return jnp.sum(jnp.sin(y)) + sum(jnp.sum(jnp.real(v) ** 2 + jnp.imag(v)) for v in final)


@every_layer
def test_gradients(rng, name):
    params, _ = layer(name)
    arrays = (params, values(rng, 2, 6, 3), *initial(rng, name, 2))
    wanted = tuple(range(len(arrays)))
    recurrent = 2 if name in PAIRS else 1
    got, want = (
        jax.jit(jax.grad(partial(loss, f), wanted))(*arrays)
        for f in (
            lambda *a: (lambda y, final: (y, final[:recurrent]))(*run_layer(name, *a)),
            partial(by_hand, name),
        )
    )
    assert_close(got, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_window_of_two_in_any_sequences(rng, reverse):
    params, run = layer("qrnn-ifo-2")
    for options in SMALL.values():
        options = options | {"reverse": reverse}
        B, N = sizes(options, 2)
        x, (c0, x0) = values(rng, B, 6, 3), initial(rng, "qrnn-ifo-2", N)
        y, (final, last) = run(params, x, c0, x0, **options)
        assert_close((y, [final]), by_hand("qrnn-ifo-2", params, x, c0, x0, **options), 1e-12)
        flags = {k: v for k, v in options.items() if k != "reset"}
        for n, (b, steps) in enumerate(reference.sequences(B, 6, **flags)):
            np.testing.assert_array_equal(last[n], x[b, steps[-1]] if steps else x0[n])
    y, (final, last) = run(params, np.zeros((2, 0, 3)), None, x0[:2])
    assert y.shape == (2, 0, 5)
    np.testing.assert_array_equal(last, x0[:2])


@pytest.mark.parametrize("pooling", ["f", "fo", "ifo"])
def test_g04_zoneout(rng, pooling):
    params = srj.qrnn_init(jax.random.key(0), 3, 5, pooling=pooling, dtype=jnp.float64)
    x, c0, key = values(rng, 2, 6, 3), values(rng, 2, 5), jax.random.key(1)
    run = partial(srj.qrnn_layer, params, x, c0)
    plain = run()
    assert_close(run(zoneout=0.5), plain, 0)  # evaluation
    assert_close(run(zoneout=0.0, key=key), plain, 0)
    _, (final, _) = run(zoneout=1.0, key=key)
    assert_close(final, c0, 0)
    # The state alone, step by step: some channels stay, and not the same ones at every step.
    kept, c = [], c0
    states = []
    for t in range(1, 7):
        _, (c, _) = srj.qrnn_layer(params, x, c0, zoneout=0.5, key=key, lengths=np.array([t, t]))
        states.append(c)
    for before, after in itertools.pairwise([c0, *states]):
        kept.append(np.asarray(before) == np.asarray(after))
    share = np.mean(kept)
    assert 0.2 < share < 0.8
    assert not np.array_equal(kept[0], kept[1])
    products = np.tensordot(x, params["weight"][0], 1) + params["bias"]
    z, f, o, i = (*np.moveaxis(products, -2, 0), None, None)[:4]
    h, c = [], c0
    for t in range(6):
        forget = 1 / (1 + np.exp(-f[:, t]))
        take = 1 - forget if i is None else 1 / (1 + np.exp(-i[:, t]))
        c = np.where(kept[t], c, forget * c + take * np.tanh(z[:, t]))
        h.append(c if o is None else c / (1 + np.exp(-o[:, t])))
    y, _ = run(zoneout=0.5, key=key)
    assert_close(y, np.stack(h, 1), 1e-12)
    gradient = jax.grad(lambda p: jnp.sum(srj.qrnn_layer(p, x, c0, zoneout=0.5, key=key)[0]))
    assert all(np.all(np.isfinite(g)) for g in gradient(params).values())


def test_bounds_grow_from_layer_to_layer(rng):
    bounds = srj.hgrn_bounds(values(rng, 4, 3))
    assert bounds.shape == (4, 3)
    assert not np.any(bounds[0])
    assert np.all(np.diff(bounds, axis=0) > 0)
    assert np.all(bounds < 1)
    assert_close(srj.hgrn_bounds(np.zeros((4, 1)))[:, 0], np.arange(4) / 4)
    params, run = layer("hgrn")
    x = values(rng, 2, 6, 3)
    f, z = np.moveaxis(np.tensordot(x, params["weight"], 1), -2, 0)
    bound = np.full(5, 0.3)
    assert_close(run(params, x, bound=bound)[0], srj.hgrn(f, z, bound), 1e-12)
    with pytest.raises(ValueError, match=r"hgrn_bounds: logits has shape \(3,\), expected \("):
        srj.hgrn_bounds(np.zeros(3))


# ---- Initial values ------------------------------------------------------------------------------


@every_layer
def test_initial_weights(name):
    init, _, _, parts = LAYERS[name]
    params = init(jax.random.key(1), 300, 500)
    assert all(v.dtype == jnp.float32 for v in params.values())
    if "weight" in params:
        weight = params["weight"]
        window = weight.shape[0] if weight.ndim == 4 else 1
        parts = [*parts.split(), "x"] if name == "rg_lru-same" else parts.split()
        assert weight.shape[-3:] == (300, len(parts), 500)
        variance = (1 + 0.5 + 0.5 + 1) / 4 if name == "sru-recurrent" else 1
        assert abs(float(jnp.var(weight)) * 300 * window - variance) < 0.01
    for bias in (params.get("bias"), params.get("bias_f")):
        assert bias is None or not np.any(bias)
    without = ("hgrn", "min_gru-no-bias", "lru", "lru-wider", "s5", "sru", "sru-recurrent")
    assert ("bias" in params) == (name not in (*without, "diagonal_lstm-coupled"))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("diagonal_gru", -1, 1), ("diagonal_lstm", -1, 1), ("indrnn", 0, 1), ("sru-recurrent", -1, 1)],
)
def test_initial_recurrent_weights(name, low, high):
    params = LAYERS[name][0](jax.random.key(1), 3, 4000)
    if name == "sru-recurrent":
        u = np.stack([params["v_f"], params["v_r"]]) / np.sqrt(3 / 2)
    else:
        u = params["recurrent"]
    assert low <= u.min() < low + 0.01
    assert high - 0.01 < u.max() <= high
    assert abs(np.mean(u) - (low + high) / 2) < 0.03


def test_initial_decay_of_rg_lru():
    lam = srj.rg_lru_init(jax.random.key(0), 3, 4000, c=4.0)["lam"]
    decay = np.exp(-4.0 * np.log1p(np.exp(lam)))
    assert decay.min() >= 0.9 - 1e-6
    assert decay.max() <= 0.999 + 1e-6
    assert abs(decay.mean() - 0.9495) < 0.002


def test_initial_ring_of_lru():
    params = srj.lru_init(jax.random.key(0), 3, 4000, min_radius=0.5, max_radius=0.9, max_phase=1.0)
    square = np.exp(-2 * np.exp(params["nu"]))
    assert square.min() >= 0.25 - 1e-6
    assert square.max() <= 0.81 + 1e-6
    assert abs(square.mean() - 0.53) < 0.01
    phase = np.exp(params["theta"])
    assert phase.max() <= 1
    assert abs(phase.mean() - 0.5) < 0.02
    np.testing.assert_allclose(np.exp(params["gamma"]), np.sqrt(1 - square), rtol=1e-4)
    assert abs(float(jnp.var(params["C"])) * 4000 - 1) < 0.05
    whole = srj.lru_init(jax.random.key(0), 3, 4000)
    assert all(np.all(np.isfinite(v)) for v in whole.values())


# ---- Learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "diagonal_lstm",
        "gilr_lstm",
        "hgrn",
        "min_gru",
        "min_lstm",
        "qrnn-ifo-2",
        "rg_lru",
        "lru",
        "s5",
    ],
)
def test_layers_learn(name):
    """One layer in each direction, and a matrix: the loss of a small problem falls."""
    _, run = layer(name)
    init = LAYERS[name][0]
    keys = jax.random.split(jax.random.key(0), 4)
    width = 3 if name in ("lru", "s5") else 8
    params = {
        "forward": init(keys[0], 3, 8),
        "backward": init(keys[1], 3, 8),
        "out": jax.random.normal(keys[2], (2 * width, 1), jnp.float32) / 4,
    }
    x = jax.random.normal(keys[3], (32, 20, 3), jnp.float32)
    fast, slow = (srj.scan(a, (1 - a) * x[..., :1]) for a in (0.5, 0.9))
    target = (fast + srj.scan(0.8, 0.2 * x[..., 1:2], reverse=True) - slow)[..., 0]

    def loss(params):
        h = [run(params[k], x, reverse=k == "backward")[0] for k in ("forward", "backward")]
        return jnp.mean(((jnp.concatenate(h, -1) @ params["out"])[..., 0] - target) ** 2)

    @jax.jit
    def descend(params, momentum):
        value, grads = jax.value_and_grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return value, jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum

    momentum = jax.tree.map(jnp.zeros_like, params)
    first, params, momentum = descend(params, momentum)
    for _ in range(120):
        last, params, momentum = descend(params, momentum)
    assert last < min(first, jnp.var(target)) / 1.5


@every_layer
def test_w07_strict_promotion(rng, name):
    params, run = layer(name, dtype=jnp.float32)
    x, lengths = values(rng, 2, 6, 3, dtype="float32"), np.array([6, 4], np.int32)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.grad(lambda p: jnp.sum(run(p, x, lengths=lengths)[0]))(params)


@pytest.mark.parametrize("name", ["qrnn-ifo-2", "lru-wider", "sru-recurrent"])
def test_w07_explicit_sharding(rng, explicit_mesh, name):
    params, run = layer(name)
    x = values(rng, 4, 6, 3)

    def loss(params, x):
        return jnp.sum(jnp.sin(run(params, x)[0]))

    grad = jax.grad(loss, (0, 1))
    spread = jax.device_put(x, NamedSharding(explicit_mesh, PartitionSpec("data")))
    with jax.set_mesh(explicit_mesh):
        got = jax.jit(grad)(params, spread)
    assert_close(got, grad(params, x))


# ---- Errors --------------------------------------------------------------------------------------


@every_layer
def test_s08_errors(name):
    init, run, _, _ = LAYERS[name]
    fn = getattr(run, "func", run).__name__
    make = f"{fn.removesuffix('_layer')}_init"
    with pytest.raises(ValueError, match=f"{make}: hidden_size is 0, expected at least 1"):
        init(jax.random.key(0), 3, 0)
    with pytest.raises(TypeError, match=f"{make}: hidden_size is 4.0, expected a whole number"):
        init(jax.random.key(0), 3, 4.0)
    params = init(jax.random.key(0), 3, 4)

    def expect(error, text, x, *states, **options):
        with pytest.raises(error, match=f"^{fn}: {text}"):
            run(params, x, *states, **options)

    x = np.zeros((2, 5, 3), "f")
    expect(ValueError, r"x has shape \(2, 5\), expected \(\.\.\., T, 3\)", x[..., 0])
    expect(ValueError, r"x has shape \(3,\), expected \(\.\.\., T, 3\)", x[0, 0])
    expect(TypeError, "x has dtype float64, expected float32", x.astype("d"))
    expect(ValueError, "axis is -1, expected one before the features", x, axis=-1)
    expect(
        ValueError,
        r"[hcs]0 has shape \(4, 2\), expected \(2, 4\)",
        x,
        np.zeros((4, 2), "complex64" if LAYERS[name][2] == "lru" else "f"),
    )
    expect(ValueError, "lengths has the value 6", x, lengths=[6, 0])
    expect(TypeError, "x is a NoneType, expected an array that JAX takes", None)
    with pytest.raises(TypeError, match=f"^{fn}: params is a NoneType, expected a mapping"):
        run(None, x)
    optional = {"bias", "surrogate_bias", "bias_n", "peephole", "v_f", "v_r"}
    for missing in params.keys() - optional:
        few = {n: v for n, v in params.items() if n != missing}
        with pytest.raises(ValueError, match=rf"^{fn}: params has \[.*\], expected {missing} too"):
            run(few, x)
    if LAYERS[name][2] == "lru":
        narrow = {n: v.astype("bfloat16") for n, v in params.items()}
        with pytest.raises(TypeError, match=f"^{fn}: x has dtype bfloat16, expected float32 or"):
            run(narrow, x.astype(jnp.bfloat16))


@every_layer
def test_s08_errors_in_parameters(name):
    """Also a shape that would broadcast, and parts that would be left over."""
    params, run = layer(name, dtype=jnp.float32)
    fn = getattr(run, "func", run).__name__
    x = np.zeros((2, 5, 3), "f")
    main = "B" if LAYERS[name][2] == "lru" else "weight"
    for shape in (params[main].shape[-2:], (*params[main].shape[:-2], 9, 5)):
        with pytest.raises(
            ValueError, match=rf"^{fn}: {main} has shape .*, expected \(.*input_size"
        ):
            run({**params, main: np.zeros(shape, "f")}, x)
    for other in params.keys() - {main}:
        value = params[other]
        with pytest.raises(ValueError, match=rf"^{fn}: \w+ has shape .*, expected \("):
            run({**params, other: value[..., :1]}, x)
        with pytest.raises(TypeError, match=rf"^{fn}: \w+ has dtype float16, expected float32"):
            run({**params, other: value.astype("float16")}, x)


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("qrnn_init: window is 3, expected 1 or 2",
         lambda key: srj.qrnn_init(key, 3, 4, window=3)),
        ("qrnn_init: pooling is 'of', expected 'f', 'fo' or 'ifo'",
         lambda key: srj.qrnn_init(key, 3, 4, pooling="of")),
        ("qrnn_layer: zoneout is 2, expected 0 to 1",
         lambda key: srj.qrnn_layer(srj.qrnn_init(key, 3, 4), np.zeros((2, 5, 3), "f"), zoneout=2)),
        ("qrnn_layer: x0 was given, expected None for a window of 1",
         lambda key: srj.qrnn_layer(
             srj.qrnn_init(key, 3, 4), np.zeros((2, 5, 3), "f"), None, np.zeros((2, 3), "f"))),
        (r"qrnn_layer: x0 has shape \(3,\), expected \(2, 3\)",
         lambda key: srj.qrnn_layer(
             srj.qrnn_init(key, 3, 4, window=2), np.zeros((2, 5, 3), "f"), None, np.zeros(3, "f"))),
        ("rg_lru_init: min_decay is 0.9 and max_decay is 0.8, expected 0 < min_decay",
         lambda key: srj.rg_lru_init(key, 3, 4, max_decay=0.8)),
        ("lru_init: min_radius is 0.5 and max_radius is 0.4, expected 0 <= min_radius",
         lambda key: srj.lru_init(key, 3, 4, min_radius=0.5, max_radius=0.4)),
        ("s5_init: min_step is 0.2 and max_step is 0.1, expected 0 < min_step",
         lambda key: srj.s5_init(key, 3, 4, min_step=0.2)),
        ("indrnn_init: max_recurrent is 0, expected a positive number",
         lambda key: srj.indrnn_init(key, 3, 4, max_recurrent=0)),
        ("sru_layer: return_report was given, expected v_f and v_r with it",
         lambda key: srj.sru_layer(
             srj.sru_init(key, 3, 4), np.zeros((2, 5, 3), "f"), return_report=True)),
        ("lru_init: max_phase is -1, expected a positive number",
         lambda key: srj.lru_init(key, 3, 4, max_phase=-1)),
        ("lru_init: output_size is 0, expected at least 1",
         lambda key: srj.lru_init(key, 3, 4, output_size=0)),
    ],
)  # fmt: skip
def test_other_errors(text, run):
    with pytest.raises(ValueError, match=text):
        run(jax.random.key(0))
