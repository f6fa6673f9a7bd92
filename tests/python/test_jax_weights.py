"""`scanrnn.jax.weights`: the packages' published equations on the packages' layouts."""

# ruff: noqa: E402
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import scanrnn.jax as srj
from jax_helpers import assert_close, x64  # noqa: F401
from scanrnn.jax import weights

pytestmark = pytest.mark.usefixtures("x64")

assert_equal = partial(assert_close, tolerance=1e-10)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def published_sru(state, x, D, layers, d, v1):
    """Lei et al., equations 1 to 4, with the factor of the highway."""
    for k in range(layers):
        own = {n.removeprefix(f"rnn_lst.{k}."): w for n, w in state.items()}
        weight = own.get("weight_proj", np.eye(x.shape[-1])) @ own["weight"]
        products = (x @ weight).reshape(*x.shape[:2], d, D, -1)
        bias, v = (own[n].reshape(2, d, D) for n in ("bias", "weight_c"))
        v = 0 * v if v1 else v
        outputs = []
        for direction in range(d):
            u, f, r, *skip = np.moveaxis(products[:, :, direction], -1, 0)
            where = slice(direction * D, (direction + 1) * D)
            skip = skip[0] if skip else own["scale_x"] * x[..., where]
            c, h = np.zeros((x.shape[0], D)), np.zeros(u.shape)
            for t in range(x.shape[1])[:: -1 if direction else 1]:
                forget = sigmoid(f[:, t] + v[0, direction] * c + bias[0, direction])
                reset = sigmoid(r[:, t] + v[1, direction] * c + bias[1, direction])
                c = forget * c + (1 - forget) * u[:, t]
                h[:, t] = reset * np.tanh(c) + (1 - reset) * skip[:, t]
            outputs.append(h)
        x = np.concatenate(outputs, -1)
    return x


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize(("n", "d", "inner"), [(4, 1, 0), (3, 1, 2), (8, 2, 0), (5, 2, 3)])
def test_sru_package(rng, n, d, inner, v1):
    D, layers, state, size = 4, 2, {}, n
    for k in range(layers):
        columns = d * D * (3 if size == d * D else 4)
        own = {"weight": rng.normal(size=(inner or size, columns)), "scale_x": np.array([1.3])}
        if inner:
            own["weight_proj"] = rng.normal(size=(size, inner))
        own |= {n: rng.normal(size=2 * d * D) for n in ("bias", "weight_c")}
        own["weight_c"] *= not v1
        state |= {f"rnn_lst.{k}.{name}": w for name, w in own.items()}
        size = d * D
    params = weights.sru_package_params(state, n, D, num_layers=layers, bidirectional=d == 2)
    assert len(params) == layers * d
    assert all(("v_f" in p) != v1 for p in params)
    x = rng.normal(size=(2, 7, n))
    y = x
    for k in range(layers):
        pairs = enumerate(params[k * d : (k + 1) * d])
        rows = [srj.sru_layer(p, y, activation="tanh", reverse=i == 1)[0] for i, p in pairs]
        y = jnp.concatenate(rows, -1)
    assert_equal(y, published_sru(state, x, D, layers, d, v1))
    assert {w.dtype for p in params for w in jax.tree.leaves(p)} == {np.dtype("float64")}


def test_sru_package_without_highway(rng):
    state = {"weight": rng.normal(size=(4, 12)), "bias": rng.normal(size=8)}
    (params,) = weights.sru_package_params(state, 4, 4, highway=False)
    x = rng.normal(size=(2, 7, 4))
    u, f, r = np.moveaxis((x @ state["weight"]).reshape(2, 7, 4, 3), -1, 0)
    want = srj.sru(u, f, r, None, state["bias"][:4], state["bias"][4:])
    assert_equal(srj.sru_layer(params, x)[0], want)


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("parts", [2, 3])
def test_pytorch_qrnn(rng, window, parts):
    """Bradbury et al., section 2, with f the update gate."""
    D, state = 5, {}
    for k, n in enumerate((4, 5)):
        state[f"layers.{k}.linear.weight"] = rng.normal(size=(parts * D, window * n))
        state[f"layers.{k}.linear.bias"] = rng.normal(size=parts * D)
    options = {"num_layers": 2, "window": window, "output_gate": parts == 3}
    params = weights.pytorch_qrnn_params(state, 4, D, **options)
    x = rng.normal(size=(3, 7, 4))
    y = x
    for p in params:
        y, _ = srj.qrnn_layer(p, y)
    for k in range(2):
        before = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], 1)
        both = np.concatenate([x, before], -1) if window == 2 else x
        gates = both @ state[f"layers.{k}.linear.weight"].T + state[f"layers.{k}.linear.bias"]
        z, f, *o = np.split(gates, parts, -1)
        c, h = np.zeros((3, D)), np.zeros(z.shape)
        for t in range(7):
            update = sigmoid(f[:, t])
            c = update * np.tanh(z[:, t]) + (1 - update) * c
            h[:, t] = sigmoid(o[0][:, t]) * c if o else c
        x = h
    assert_equal(y, x)
    # A single layer's state dict has no prefix.
    own = {k.removeprefix("layers.0."): v for k, v in state.items() if "layers.0" in k}
    (single,) = weights.pytorch_qrnn_params(own, 4, D, **options | {"num_layers": 1})
    assert_equal(single, params[0])


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_min_gru_pytorch(rng, kind, factor):
    """Feng et al., appendix B: in log space, as the package computes."""
    n, D = 4, int(4 * factor)
    parts, name = {"gru": (2, "to_hidden_and_gate"), "lstm": (3, "to_hidden_and_f_i_gate")}[kind]
    state = {f"{name}.weight": rng.normal(size=(parts * D, n))}
    if factor != 1:
        state["to_out.weight"] = rng.normal(size=(n, D))
    params, out = getattr(weights, f"min_{kind}_params")(state, n, D)
    x = rng.normal(size=(3, 9, n))
    y, _ = getattr(srj, f"min_{kind}_layer")(params, x, activation="positive")
    y = y if out is None else y @ out
    hidden, *gates = np.split(x @ state[f"{name}.weight"].T, parts, -1)
    if kind == "gru":
        keep, add = sigmoid(-gates[0]), sigmoid(gates[0])
    else:
        f, i = map(sigmoid, gates)
        keep, add = f / (f + i), i / (f + i)
    log_keep = np.cumsum(np.log(keep), 1)
    positive = np.where(hidden >= 0, hidden + 0.5, sigmoid(hidden))
    want = np.exp(log_keep + np.logaddexp.accumulate(np.log(add * positive) - log_keep, 1))
    assert_equal(y, want @ state["to_out.weight"].T if factor != 1 else want)


@pytest.mark.parametrize("heads", [1, 2])
def test_recurrentgemma(rng, heads):
    """De et al., equations 1-4, with segments, and the first steps unscaled as the code has it."""
    width, b = 6, 6 // heads
    state = {"a_param": rng.normal(size=width)}
    for gate in ("input_gate", "a_gate"):
        state[f"{gate}.w"] = rng.normal(size=(heads, b, b))
        state[f"{gate}.b"] = rng.normal(size=(heads, b))
    params = weights.recurrentgemma_params(state, width, heads)
    x = rng.normal(size=(2, 9, width))
    segment_pos = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 0, 1, 2, 3, 0, 1]])

    def gate(name):
        blocks = np.einsum("...hi,hij->...hj", x.reshape(2, 9, heads, b), state[f"{name}.w"])
        return sigmoid(blocks + state[f"{name}.b"]).reshape(2, 9, width)

    log_a = -8 * gate("a_gate") * np.log1p(np.exp(state["a_param"]))
    first = (segment_pos == 0)[..., None]
    scale = np.where(first, 1, np.sqrt(-np.expm1(2 * log_a)))
    h, rows = np.zeros((2, width)), []
    for t in range(9):
        kept = np.where(first[:, t], 0, np.exp(log_a[:, t]))
        h = kept * h + (scale * gate("input_gate") * x)[:, t]
        rows.append(h)
    want = np.stack(rows, 1)
    run = partial(srj.rg_lru_layer, params, scale_start=False)
    assert_equal(run(x, reset=segment_pos == 0), (want, h))
    # A run in pieces goes on from its state, and packed segments are sequences of their own.
    one, state = run(x[:1, :4])
    two, _ = run(x[:1, 4:], state)
    assert_equal(jnp.concatenate([one, two], 1), want[:1])
    assert_equal(run(x[1], cu_seqlens=np.array([0, 3, 7, 9]))[0], want[1])


@pytest.mark.parametrize("expand", [1, 2])
def test_fla_hgrn(rng, expand):
    """Qin et al., section 3, with the output gate of the package's layer."""
    n, D = 4, 4 * expand
    shapes = {
        "i_proj": (D, n),
        "f_proj": (D, n),
        "g_proj": (D, n),
        "g_norm": (D,),
        "o_proj": (n, D),
    }
    state = {f"{k}.weight": rng.normal(size=v) for k, v in shapes.items()}
    logits = rng.normal(size=(3, D))
    params, more = weights.fla_hgrn_params(state, n, D)
    x = rng.normal(size=(2, 9, n))
    h, _ = srj.hgrn_layer(params, x, bound=srj.hgrn_bounds(logits)[2])
    h = h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-5) * more["norm"]
    y = (h * jax.nn.silu(x @ more["gate"])) @ more["out"]

    shares = np.exp(logits) / np.exp(logits).sum(0)
    bound = shares[1] + shares[2]
    f = bound + (1 - bound) * sigmoid(x @ state["f_proj.weight"].T)
    value = silu(x @ state["i_proj.weight"].T) * (1 - f)
    o, rows = np.zeros((2, D)), []
    for t in range(9):
        o = f[:, t] * o + value[:, t]
        rows.append(o)
    o = np.stack(rows, 1)
    o = o / np.sqrt((o**2).mean(-1, keepdims=True) + 1e-5) * state["g_norm.weight"]
    assert_equal(y, (o * silu(x @ state["g_proj.weight"].T)) @ state["o_proj.weight"].T)


def test_values_of_other_libraries(rng):
    torch = pytest.importorskip("torch")
    weight = torch.randn(8, 4)
    params, _ = weights.min_gru_params({"to_hidden_and_gate.weight": weight}, 4, 4)
    assert params["weight"].dtype == np.float32
    np.testing.assert_array_equal(params["weight"][:, 0], weight[4:].numpy().T)
    np.testing.assert_array_equal(params["weight"][:, 1], weight[:4].numpy().T)


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (
            r"min_gru_params: state_dict has no to_hidden_and_gate\.weight, expected shape",
            lambda: weights.min_gru_params({}, 4, 4),
        ),
        (
            r"min_gru_params: to_hidden_and_gate\.weight has shape \(8, 5\), expected \(8, 4\)",
            lambda: weights.min_gru_params({"to_hidden_and_gate.weight": np.ones((8, 5))}, 4, 4),
        ),
        (
            "min_gru_params: state_dict has bias, which the layers can't use",
            lambda: weights.min_gru_params(
                {"to_hidden_and_gate.weight": np.ones((8, 4)), "bias": 0}, 4, 4
            ),
        ),
        (
            "recurrentgemma_params: num_heads is 4, expected a divisor of 6",
            lambda: weights.recurrentgemma_params({}, 6, 4),
        ),
    ],
)
def test_weights_that_do_not_fit(text, load):
    with pytest.raises(ValueError, match=text):
        load()


def test_bfloat16_of_pytorch():
    """As RecurrentGemma's checkpoints come."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 8, bias=False, dtype=torch.bfloat16)
    state = {"to_hidden_and_gate.weight": layer.state_dict()["weight"]}
    params, _ = weights.min_gru_params(state, 3, 4)
    assert params["weight"].dtype == jnp.bfloat16
    want = layer.weight.detach().float().numpy()
    np.testing.assert_array_equal(params["weight"][:, 1].astype("float32"), want[:4].T)


def test_without_a_state_dict():
    with pytest.raises(TypeError, match="min_gru_params: state_dict is a NoneType, expected a map"):
        weights.min_gru_params(None, 3, 4)
