"""`scanrnn.jax.nnx`: the Flax modules against the layers' functions."""

# ruff: noqa: E402, F811
import itertools
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import scanrnn.jax as srj
from jax_helpers import assert_close, values, x64  # noqa: F401


def test_without_flax(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    monkeypatch.delitem(sys.modules, "scanrnn.jax.nnx", raising=False)
    monkeypatch.delitem(vars(srj), "nnx", raising=False)
    with pytest.raises(ImportError, match=r"scanrnn\.jax\.nnx needs Flax: pip install 'scanrnn"):
        _ = srj.nnx
    with pytest.raises(AttributeError, match=r"module 'scanrnn\.jax' has no attribute 'nxn'"):
        _ = srj.nxn


@pytest.fixture
def nnx(x64):
    return pytest.importorskip("flax.nnx")


#: Options of a module, and the function of one layer with what the module passes on.
MODULES = {
    "SRU": ({"activation": "tanh"}, srj.sru_layer, {"activation": "tanh"}),
    "GILR": ({"activation": "silu"}, srj.gilr_layer, {"activation": "silu"}),
    "HGRN": ({"bias": True}, srj.hgrn_layer, {}),
    "MinGRU": ({"activation": "positive"}, srj.min_gru_layer, {"activation": "positive"}),
    "MinLSTM": ({"bias": False}, srj.min_lstm_layer, {}),
    "QRNN": ({"pooling": "ifo", "activation": "relu"}, srj.qrnn_layer, {"activation": "relu"}),
    "RGLRU": ({"c": 2.0}, srj.rg_lru_layer, {"c": 2.0}),
    "LRU": ({"max_radius": 0.9}, srj.lru_layer, {}),
    "GILRLSTM": ({"bias": False}, srj.gilr_lstm_layer, {}),
    "S5": ({"min_step": 0.05}, srj.s5_layer, {}),
    "DiagonalGRU": ({}, srj.diagonal_gru_layer, {}),
    "DiagonalLSTM": ({"peephole": True}, srj.diagonal_lstm_layer, {}),
    "IndRNN": ({"activation": "tanh"}, srj.indrnn_layer, {"activation": "tanh"}),
    "SRU-recurrent": ({"recurrent": True, "highway_bias": -1.0}, srj.sru_layer, {}),
}
every_module = pytest.mark.parametrize("name", MODULES)


def make(nnx, name, **options):
    own, _, _ = MODULES[name]
    options = {"num_layers": 2, "dtype": jnp.float64} | own | options
    return getattr(srj.nnx, name.partition("-")[0])(3, 4, rngs=nnx.Rngs(0), **options)


def by_hand(name, module, x, states, **options):
    _, run, own = MODULES[name]
    final = []
    for layer in range(2):
        outputs = []
        for suffix in ["", "_reverse"][: module.directions]:
            params = {n: getattr(module, f"{n}_l{layer}{suffix}")[...] for n in module.names}
            given = states[len(final)]
            given = given if isinstance(given, tuple) else (given,)
            extra = {}
            if name == "HGRN":
                extra["bound"] = srj.hgrn_bounds(module.bounds[...])[layer]
            y, state = run(params, x, *given, reverse=bool(suffix), **own, **extra, **options)
            outputs.append(y)
            final.append(state)
        x = jnp.concatenate(outputs, -1)
    return x, tuple(final)


@every_module
@pytest.mark.parametrize("bidirectional", [False, True])
def test_values(nnx, rng, name, bidirectional):
    module = make(nnx, name, bidirectional=bidirectional)
    if name == "HGRN":
        module.bounds[...] = jnp.asarray(values(rng, 2, 4))
    x = values(rng, 2, 9, 3)
    options = {"lengths": np.array([9, 4]), "padding_side": "left"}
    y, states = module(x, **options)
    assert y.shape == (2, 9, (3 if name in ("LRU", "S5") else 4) * module.directions)
    assert len(states) == 2 * module.directions
    assert_close((y, states), by_hand(name, module, x, [None] * len(states), **options), 1e-12)
    assert_close(module(x, states), by_hand(name, module, x, states), 1e-12)


@every_module
def test_w05_steps_and_pieces(nnx, rng, name):
    module = make(nnx, name)
    x = values(rng, 2, 9, 3)
    want, last = module(x)
    rows, states = [], None
    for i, j in itertools.pairwise([0, 5, 7]):
        row, states = module(x[:, i:j], states)
        rows.append(row)
    for t in (7, 8):
        row, states = module.step(x[:, t], states)
        rows.append(row[:, None])
    assert_close((jnp.concatenate(rows, 1), states), (want, last), 1e-12)


def test_reports(nnx, rng):
    module = make(nnx, "DiagonalLSTM", bidirectional=True, max_passes=0, dtype=jnp.float32)
    x = values(rng, 2, 300, 3, dtype="float32")
    want, _ = module(x)
    y, states, reports = module(x, return_report=True)
    assert len(reports) == len(states) == 4
    assert {report.worst.status for report in reports} == {"serial"}
    run = nnx.jit(lambda m, x: m(x, return_report=True, max_passes=8, segment=32))
    parallel, _, reports = run(module, x)
    assert {report.worst.status for report in reports} == {"converged"}
    for h in (y, parallel):
        assert_close(h, want, 1e-5)


def test_window_of_two(nnx, rng):
    module = make(nnx, "QRNN", window=2)
    x = values(rng, 2, 9, 3)
    want, last = module(x)
    assert_close(last[0][1], x[:, -1], 0)
    states, rows = None, []
    for t in range(9):
        row, states = module.step(x[:, t], states)
        rows.append(row)
    assert_close((jnp.stack(rows, 1), states), (want, last), 1e-12)


@every_module
def test_transformations(nnx, rng, name):
    """Parameters have the functions' gradients; modules can be compiled and copied."""
    module = make(nnx, name, bidirectional=True)
    x = values(rng, 2, 9, 3)
    grads = nnx.grad(lambda m: jnp.sum(jnp.sin(m(x)[0])))(module)
    graph, params = nnx.split(module, nnx.Param)

    def loss(params):
        return jnp.sum(jnp.sin(by_hand(name, nnx.merge(graph, params), x, [None] * 4)[0]))

    assert_close(jax.tree.leaves(grads), jax.tree.leaves(jax.grad(loss)(params)))
    assert all(np.any(g) for g in jax.tree.leaves(grads))
    want, _ = module(x)
    assert_close(nnx.jit(lambda m, x: m(x)[0])(module, x), want, 1e-12)
    other = make(nnx, name, bidirectional=True)
    assert nnx.split(other, nnx.Param)[0] == graph  # so that both share one compiled program
    nnx.update(other, params)
    assert_close(other(x)[0], want, 0)


def test_dropout_and_zoneout(nnx, rng):
    x = values(rng, 2, 9, 3)
    for name, option in (("SRU", "dropout"), ("QRNN", "zoneout")):
        module, plain = make(nnx, name, **{option: 0.5}), make(nnx, name)
        assert_close(module(x)[0], plain(x)[0], 0)
        one, same, other = (module(x, rngs=nnx.Rngs(**{option: k}))[0] for k in (0, 0, 1))
        assert_close(one, same, 0)
        assert not np.allclose(one, other)
        assert not np.allclose(one, module(x)[0])
    module = make(nnx, "SRU", dropout=1.0)
    assert np.any(module(x)[0])
    assert not np.any(module(x, rngs=nnx.Rngs(0))[0])


def test_dropout_while_training(nnx, rng):
    """As the module's docstring has it: the streams go through every transformation."""
    x, module, rngs = values(rng, 2, 9, 3), make(nnx, "SRU", dropout=0.5), nnx.Rngs(dropout=0)

    @nnx.jit
    def loss_and_gradients(module, x, rngs):
        def loss(module, rngs):
            return jnp.sum(jnp.sin(module(x, rngs=rngs)[0]))

        return nnx.value_and_grad(loss)(module, rngs)

    losses = [loss_and_gradients(module, x, rngs)[0] for _ in range(3)]
    assert len(set(map(float, losses))) == 3


def test_errors(nnx):
    for options, text in (
        ({"num_layers": 0}, "SRU: num_layers is 0, expected at least 1"),
        ({"dropout": 1.5}, "SRU: dropout is 1.5, expected 0 to 1"),
    ):
        with pytest.raises(ValueError, match=text):
            make(nnx, "SRU", **options)
    with pytest.raises(TypeError, match=r"SRU: num_layers is 1\.5, expected a whole number"):
        make(nnx, "SRU", num_layers=1.5)
    with pytest.raises(TypeError, match="SRU: dropout is '0', expected a number"):
        make(nnx, "SRU", dropout="0")
    with pytest.raises(
        ValueError, match=r"SRU: x has shape \(\), expected at least a channel axis"
    ):
        make(nnx, "SRU").step(1.0)
    module = make(nnx, "SRU", bidirectional=True)
    with pytest.raises(ValueError, match="SRU: states has 1 entries, expected 4"):
        module(np.zeros((2, 9, 3)), [None])
    with pytest.raises(ValueError, match="SRU: step was called on a bidirectional module"):
        module.step(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"sru_layer: x has shape \(2, 9, 5\), expected"):
        module(np.zeros((2, 9, 5)))
