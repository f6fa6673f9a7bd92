"""The layers of scanrnn.torch, all of them (SRU's own tests are in test_torch_sru)."""

import copy
import itertools
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import scanrnn.torch as srt
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import prune  # noqa: F401 (nn.utils.prune)
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch_helpers import OPTIONS, as_tensors, assert_gradients_match, gradients, leaf, size_of
from torch_layers import layers_loop, parts_of, state_of

TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}
SAME = {"rtol": 0, "atol": 0}

#: Layers of all kinds: class and keywords, beside input and hidden size 4 and 6.
KINDS = {
    "GILR": (srt.GILR, {"num_layers": 2}),
    "GILR, both ways": (srt.GILR, {"bidirectional": True, "num_layers": 2, "proj_size": 3}),
    "MinGRU": (srt.MinGRU, {"activation": "positive", "batch_first": True}),
    "MinGRU, both ways": (srt.MinGRU, {"bidirectional": True, "num_layers": 2, "bias": False}),
    "MinLSTM": (srt.MinLSTM, {"num_layers": 2, "proj_size": 2}),
    "MinLSTM, both ways": (srt.MinLSTM, {"bidirectional": True, "batch_first": True}),
    "QRNN f": (srt.QRNN, {"pooling": "f", "num_layers": 2}),
    "QRNN fo": (srt.QRNN, {"batch_first": True}),
    "QRNN ifo": (srt.QRNN, {"pooling": "ifo", "bidirectional": True, "bias": False}),
    "QRNN of 2 steps": (srt.QRNN, {"window": 2, "num_layers": 2}),
    "QRNN of 2 steps, f": (srt.QRNN, {"window": 2, "pooling": "f", "bias": False}),
    "QRNN of 2 steps, both ways": (
        srt.QRNN,
        {"window": 2, "bidirectional": True, "num_layers": 2, "batch_first": True},
    ),
    "RGLRU": (srt.RGLRU, {"num_layers": 2, "num_heads": 3}),
    "RGLRU, both ways": (
        srt.RGLRU,
        {"bidirectional": True, "num_layers": 2, "num_heads": 2, "batch_first": True},
    ),
    "RGLRU, no bias": (srt.RGLRU, {"bias": False, "c": 4.0}),
    "RGLRU, unscaled start": (srt.RGLRU, {"scale_start": False, "bidirectional": True}),
    "HGRN": (srt.HGRN, {"num_layers": 3}),
    "HGRN, given bounds": (srt.HGRN, {"num_layers": 2, "lower_bounds": [0.1, 0.7], "bias": False}),
    "HGRN, gated both ways": (
        srt.HGRN,
        {"num_layers": 2, "bidirectional": True, "output_gate": True, "proj_size": 4},
    ),
    "HGRN, no bounds": (srt.HGRN, {"lower_bounds": None, "batch_first": True}),
    "GILRLSTM": (srt.GILRLSTM, {"num_layers": 2}),
    "GILRLSTM, both ways": (
        srt.GILRLSTM,
        {"bidirectional": True, "num_layers": 2, "bias": False, "batch_first": True},
    ),
    "LRU": (srt.LRU, {"num_layers": 2, "state_size": 5}),
    "LRU, both ways": (srt.LRU, {"bidirectional": True, "bias": True, "batch_first": True}),
    "S5": (srt.S5, {"state_size": 3, "num_layers": 2}),
    "DiagonalGRU": (srt.DiagonalGRU, {"num_layers": 2, "segment": 2}),
    "DiagonalGRU, both ways": (
        srt.DiagonalGRU,
        {"bidirectional": True, "batch_first": True, "bias": False, "proj_size": 3},
    ),
    "DiagonalLSTM": (srt.DiagonalLSTM, {"num_layers": 2}),
    "DiagonalLSTM, both ways": (
        srt.DiagonalLSTM,
        {"bidirectional": True, "batch_first": True, "peephole": True, "segment": 2},
    ),
    "DiagonalLSTM, coupled": (srt.DiagonalLSTM, {"coupled": True, "peephole": True}),
    "IndRNN": (srt.IndRNN, {"num_layers": 2, "nonlinearity": "tanh", "segment": 3}),
    "IndRNN, both ways": (srt.IndRNN, {"bidirectional": True, "bias": False}),
}
by_kind = pytest.mark.parametrize("kind", KINDS)
CAUSAL = [kind for kind, (_, keywords) in KINDS.items() if "bidirectional" not in keywords]
by_causal_kind = pytest.mark.parametrize("kind", CAUSAL)
CLASSES = [srt.GILR, srt.MinGRU, srt.MinLSTM, srt.QRNN, srt.RGLRU, srt.HGRN, srt.GILRLSTM,
           srt.LRU, srt.S5, srt.DiagonalGRU, srt.DiagonalLSTM, srt.IndRNN]  # fmt: skip
by_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


def layer(kind, *, dtype=torch.float64, sizes=(4, 6), **keywords):
    cls, own = KINDS[kind]
    module = cls(*sizes, dtype=dtype, **(own | keywords))
    for name, parameter in module.named_parameters():
        if "bias" in name or name == "lower_bounds":
            nn.init.normal_(parameter)
    return module


def run(module, x, hx=None, **options):
    """A module on x (B, T, features), whichever its layout."""
    if not module.batch_first:
        x = x.transpose(0, 1)
        if "reset" in options:
            options["reset"] = options["reset"].T
    y, h_n = module(x, hx, **options)
    return y if module.batch_first else y.transpose(0, 1), h_n


def cut(state, b):
    """The state of one sequence."""
    parts = [part[:, b : b + 1] for part in parts_of(state)]
    return parts[0] if len(parts) == 1 else tuple(parts)


# ---- Values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("option", [name for name in OPTIONS if "reverse" not in OPTIONS[name]])
@by_kind
def test_equals_the_loop(kind, option):
    options = as_tensors(OPTIONS[option])
    module = layer(kind)
    if module.bidirectional:
        options.pop("reset", None)
    B, T, N = size_of(options)
    x, hx = leaf(B, T, 4), state_of(module, N)
    args = (x, *parts_of(hx), *module.parameters())
    for state in (hx, None):
        ours = run(module, x, state, **options)
        loop = layers_loop(module, x, state, **options)
        torch.testing.assert_close(ours, loop, **TOLERANCE)
        assert_gradients_match(
            gradients([ours[0], *parts_of(ours[1])], args),
            gradients([loop[0], *parts_of(loop[1])], args),
            **TOLERANCE,
        )


@by_kind
def test_g08_second_derivatives(kind):
    module = layer(kind)
    x = leaf(2, 4, 4)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def second(f):
        y, h_n = f()
        loss = y.square().sum() + sum(h.abs().square().sum() for h in parts_of(h_n))
        first = torch.autograd.grad(loss, (x, *parameters), create_graph=True, allow_unused=True)
        total = sum(g.square().sum() for g in first if g is not None)
        return torch.autograd.grad(total, (x, *parameters), allow_unused=True)

    ours, loop = second(lambda: run(module, x)), second(lambda: layers_loop(module, x))
    for name, g, e in zip(("x", *names), ours, loop, strict=True):
        g, e = (torch.zeros(()) if t is None else t for t in (g, e))
        torch.testing.assert_close(g.expand(e.shape), e, msg=name)


@by_class
def test_g09_per_sample_gradients_and_ensembles(cls):
    module = cls(4, 6, 2, dtype=torch.float64)
    x = torch.randn(3, 5, 2, 4, dtype=torch.float64)
    own = {name: p.detach() for name, p in module.named_parameters()}

    def loss_of(result):
        y, h_n = result
        return y.square().sum() + sum(h.abs().square().sum() for h in parts_of(h_n))

    def loss(parameters, x):
        return loss_of(functional_call(module, parameters, (x,)))

    stacked = {k: torch.stack([p, 1.5 * p, 0.5 * p]) for k, p in own.items()}
    got = torch.vmap(torch.func.grad(loss))(stacked, x)
    for i in range(3):
        member = copy.deepcopy(module)
        member.load_state_dict({k: p[i] for k, p in stacked.items()}, strict=False)
        loss_of(member(x[i])).backward()
        for name, p in member.named_parameters():
            torch.testing.assert_close(got[name][i], p.grad, rtol=1e-9, atol=1e-11)


# ---- torch.nn's conventions ----------------------------------------------------------------------


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True])
@by_class
def test_shapes_are_those_of_gru(cls, directions, batch_first):
    keywords = {"num_layers": 2, "bidirectional": directions == 2, "batch_first": batch_first}
    ours, gru = cls(4, 6, **keywords), nn.GRU(4, 6, **keywords)
    for shape in [(7, 2, 4), (7, 4)]:
        x = torch.randn(shape)
        y, h_n = ours(x)
        want = gru(x)
        assert y.shape == want[0].shape
        assert all(h.shape == want[1].shape for h in parts_of(h_n))
        assert y.is_contiguous()
        zeros = [torch.zeros_like(h) for h in parts_of(h_n)]
        again, _ = ours(x, zeros[0] if len(zeros) == 1 else tuple(zeros))
        torch.testing.assert_close(again, y, **SAME)
    packed = pack_sequence([torch.randn(n, 4) for n in (3, 5, 1)], enforce_sorted=False)
    got, want = ours(packed), gru(packed)
    assert isinstance(got[0], PackedSequence)
    for a, b in zip(got[0][1:], want[0][1:], strict=True):
        torch.testing.assert_close(a, b)


@by_class
def test_signature_begins_like_gru(cls):
    ours = cls(4, 6, 2, True, True, 0.5, True, "cpu", torch.float64)
    gru = nn.GRU(4, 6, 2, True, True, 0.5, True, device="cpu", dtype=torch.float64)
    for name in ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"):
        assert getattr(ours, name) == getattr(gru, name)
    assert all(p.dtype == torch.float64 for p in ours.parameters())
    text = f"{cls.__name__}(4, 6, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)"
    assert repr(ours).replace(" bias=True,", "") == text


@by_kind
def test_state_dict_is_stable(kind):
    module = layer(kind)
    cls, keywords = KINDS[kind]
    loaded = cls(4, 6, dtype=torch.float64, **keywords)
    loaded.load_state_dict(module.state_dict())
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    x = x.transpose(0, 1) if module.batch_first else x
    torch.testing.assert_close(loaded(x), module(x), **SAME)
    torch.testing.assert_close(copy.deepcopy(module)(x), module(x), **SAME)
    meta = cls(4, 6, device="meta", **keywords)
    assert [(k, v.shape) for k, v in meta.state_dict().items()] == [
        (k, v.shape) for k, v in module.state_dict().items()
    ]
    y, _ = meta(torch.randn(5, 2, 4, device="meta"))
    assert y.device.type == "meta"


STATE_DICTS = {
    "MinGRU": ["weight_ih_l0", "bias_ih_l0"],
    "MinLSTM": [
        "weight_ih_l0", "bias_ih_l0", "weight_hr_l0", "weight_ih_l1", "bias_ih_l1", "weight_hr_l1",
    ],
    "RGLRU": [
        "weight_ih_l0", "bias_ih_l0", "weight_gate_l0", "bias_gate_l0", "lambda_l0",
        "weight_gate_l1", "bias_gate_l1", "lambda_l1",
    ],
    "HGRN, given bounds": ["lower_bounds", "weight_ih_l0", "weight_ih_l1"],
    "GILRLSTM, both ways": [
        "weight_ih_l0", "weight_hh_l0", "weight_gilr_l0",
        "weight_ih_l1", "weight_hh_l1", "weight_gilr_l1",
    ],
    "DiagonalGRU": [
        "weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0",
        "weight_ih_l1", "bias_ih_l1", "weight_hh_l1", "bias_hh_l1",
    ],
    "DiagonalLSTM, coupled": ["weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "weight_ch_l0"],
    "IndRNN, both ways": ["weight_ih_l0", "weight_hh_l0"],
    "LRU, both ways": [
        "nu_l0", "theta_l0", "gamma_log_l0", "weight_b_l0", "weight_c_l0", "weight_d_l0", "bias_l0",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", STATE_DICTS)
def test_names_of_parameters(kind):
    assert sorted(layer(kind).state_dict()) == sorted(STATE_DICTS[kind])


def test_initialisation():
    for cls in (srt.GILR, srt.MinGRU, srt.MinLSTM, srt.QRNN, srt.HGRN, srt.GILRLSTM):
        module = cls(300, 200, 2, bidirectional=True)
        for name, p in module.named_parameters():
            if name.startswith("weight"):
                bound = math.sqrt(3 / p.shape[1])
                assert 0.99 * bound < p.abs().max() <= bound
            else:
                assert not p.any()
        before = module.weight_ih_l1.clone()
        module.reset_parameters()
        assert not torch.equal(before, module.weight_ih_l1)
    for cls in (srt.DiagonalGRU, srt.DiagonalLSTM):
        for p in cls(300, 400, bidirectional=True).parameters():
            assert 0.045 < p.abs().max() <= 0.05  # 1 / sqrt(400)
            assert p.mean().abs() < 0.01
    indrnn = srt.IndRNN(300, 4096)
    assert not indrnn.bias_ih_l0.any()
    assert 0 <= indrnn.weight_hh_l0.min() < 0.01
    assert 0.99 < indrnn.weight_hh_l0.max() <= 1
    assert 0.099 < indrnn.weight_ih_l0.abs().max() <= 0.1
    decay = torch.exp(-8 * nn.functional.softplus(srt.RGLRU(64, 4096).lambda_l0))
    assert 0.9 <= decay.min() < 0.901
    assert 0.998 < decay.max() <= 0.9991
    lru = srt.LRU(8, 4096, r_min=0.5, r_max=0.9, max_phase=math.pi / 8)
    square = torch.exp(-2 * torch.exp(lru.nu_l0))
    assert 0.25 <= square.min() < 0.26
    assert 0.8 < square.max() <= 0.8101
    assert (square.mean() - (0.25 + 0.81) / 2).abs() < 0.02  # uniform in area
    assert torch.exp(lru.theta_l0).min() >= 0
    assert 0.38 < torch.exp(lru.theta_l0).max() <= math.pi / 8 + 1e-6
    torch.testing.assert_close(torch.exp(2 * lru.gamma_log_l0), 1 - square, rtol=1e-4, atol=1e-6)
    assert all(p.isfinite().all() for p in srt.LRU(8, 4096, r_min=0, r_max=1).parameters())
    s5 = srt.S5(8, 16, bidirectional=True)
    torch.testing.assert_close(s5.frequency_l0[16:], math.pi * torch.arange(16.0))
    assert (torch.exp(s5.rate_l0) == 0.5).all()


def test_small_steps_of_s5_keep_their_digits():
    module = srt.S5(4, 4, state_size=1, dt_min=1e-6, dt_max=1e-6)
    x = torch.randn(3, 2, 4)
    _, h = module(x)
    _, want = copy.deepcopy(module).double()(x.double())
    torch.testing.assert_close(h, want.to(h.dtype), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("MinGRU", "cell"),
        ("MinLSTM, both ways", "cell"),
        ("QRNN fo", "cell"),
        ("QRNN ifo", "cell"),
        ("DiagonalLSTM, coupled", "solve"),
        ("DiagonalLSTM, both ways", "solve"),
        ("IndRNN, both ways", "solve"),
    ],
)
def test_products_are_not_copied(kind, operator):
    class Log(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    views = {"t", "transpose", "view", "_unsafe_view", "reshape", "unsqueeze", "detach", "expand"}
    module = layer(kind)
    x = leaf(6, 5, 4)
    with Log() as log:
        y, _ = module(x)
    assert set(log.names) - views <= {"mm", "addmm", operator}, log.names
    weight = torch.ones_like(y)
    with Log() as log:
        y.backward(weight)
    assert set(log.names) - views <= {"mm", f"{operator}_backward", "sum"}, log.names


@pytest.mark.parametrize("kind", ["MinGRU", "QRNN fo", "RGLRU", "HGRN"])
def test_parametrised_weights(kind):
    """Weight normalisation, pruning and weight dropout replace parameters by what they compute."""
    module = layer(kind)
    x = leaf(5, 2, 4)
    want = run(module, x)
    nn.utils.parametrizations.weight_norm(module, "weight_ih_l0")
    torch.testing.assert_close(run(module, x), want)
    run(module, x)[0].sum().backward()
    assert module.parametrizations.weight_ih_l0.original0.grad.any()
    module = layer(kind)
    nn.utils.prune.l1_unstructured(module, "weight_ih_l0", 0.5)
    y, _ = run(module, x)
    assert y.isfinite().all()
    assert (module.weight_ih_l0 == 0).double().mean() == pytest.approx(0.5, abs=0.05)


# ---- W06: compilers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "MinGRU, both ways",
        "QRNN of 2 steps",
        "RGLRU",
        "HGRN, gated both ways",
        "GILRLSTM",
        "LRU",
        "DiagonalGRU",
        "DiagonalLSTM, both ways",
    ],
)
def test_w06_one_graph_for_all_lengths(kind):
    module = layer(kind)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for T in (7, 9, 33, 64):
        x = leaf(T, 2, 4)
        torch._dynamo.mark_dynamic(x, 0)
        ours, eager = compiled(x), module(x)
        torch.testing.assert_close(ours, eager, **TOLERANCE)
        args = (x, *module.parameters())
        assert_gradients_match(gradients([ours[0]], args), gradients([eager[0]], args), **TOLERANCE)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1


@by_class
def test_w06_export_round_trip(cls):
    module = cls(4, 6, batch_first=True)
    steps = torch.export.Dim("steps", min=2, max=4096)
    exported = torch.export.export(
        module, (torch.randn(2, 5, 4),), dynamic_shapes={"input": {1: steps}}
    ).module()
    x = torch.randn(2, 70, 4)
    torch.testing.assert_close(exported(x), module(x))


# ---- Acceptance cases ----------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@by_kind
def test_d02_autocast(kind, autocast):
    module = layer(kind, dtype=torch.float32)
    x = leaf(2, 5, 4, dtype=torch.float32)
    for hx in (None, state_of(module, 2, dtype=torch.float32)):
        with torch.autocast("cpu", autocast):
            y, h_n = run(module, x, hx)
        assert y.dtype == autocast
        args = [x, *parts_of(hx), *module.parameters()]
        grads = gradients([y, *parts_of(h_n)], args)
        assert [None if g is None else g.dtype for g in grads] == [t.dtype for t in args]
        assert all(g.isfinite().all() for g in grads)
    exact, _ = run(module, x, None)
    torch.testing.assert_close(y.float(), run(module, x, hx)[0], rtol=0.1, atol=0.1)
    y, h_n = torch.autocast("cpu", autocast)(run)(module, x, None)
    torch.testing.assert_close(y.float(), exact, rtol=0.1, atol=0.1)
    y, again = torch.autocast("cpu", autocast)(run)(module, x, h_n)
    for a, b in zip(parts_of(h_n), parts_of(again), strict=True):
        assert a.dtype == b.dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@by_class
def test_d03_every_dtype(cls, dtype):
    if cls in (srt.LRU, srt.S5) and dtype != torch.float32:
        with pytest.raises(TypeError, match="expected float32 or float64"):
            cls(4, 6, dtype=dtype)
        with pytest.raises(TypeError, match=f"{cls.__name__}: dtype is .*, expected float32 or"):
            cls(4, 6).to(dtype)(torch.randn(9, 2, 4, dtype=dtype))
        return
    module = cls(4, 6, 2, bidirectional=True, dtype=dtype)
    x = torch.randn(9, 2, 4, dtype=dtype)
    y, h_n = module(x)
    assert y.dtype == dtype
    want, _ = copy.deepcopy(module).double()(x.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y, want.to(dtype), rtol=16 * eps, atol=16 * eps)
    y.float().square().sum().backward()
    grads = [p.grad for p in module.parameters()]
    assert all(g is not None and g.dtype == dtype and g.isfinite().all() for g in grads)
    again, _ = module(x, h_n)
    assert again.isfinite().all()
    with pytest.raises(TypeError, match=f"{cls.__name__}: input has dtype int64, expected"):
        module(torch.zeros(5, 2, 4, dtype=torch.int64))


@by_kind
def test_g03_final_state_alone(kind):
    module = layer(kind)
    x, hx = leaf(2, 5, 4), state_of(module, 2)
    args = (x, *parts_of(hx), *module.parameters())
    for i in range(len(parts_of(hx))):
        ours, loop = (parts_of(f(module, x, hx)[1])[i] for f in (run, layers_loop))
        assert_gradients_match(gradients([ours], args), gradients([loop], args), **TOLERANCE)


@pytest.mark.parametrize("variational", [False, True])
@by_class
def test_g04_dropout(cls, variational, monkeypatch):
    module = cls(4, 6, 3, dropout=0.5, variational=variational, dtype=torch.float64)
    x = leaf(2, 6, 4)
    masks = []
    dropout = nn.functional.dropout

    def export(t, p=0.5, training=True, inplace=False):
        masks.append(dropout(torch.ones_like(t), p, training, inplace))
        return t * masks[-1]

    monkeypatch.setattr(nn.functional, "dropout", export)
    ours = run(module, x)
    monkeypatch.undo()
    assert len(masks) == 2
    if variational:
        masks = [mask.unsqueeze(1) for mask in masks]
    else:
        masks = [mask.transpose(0, 1) for mask in masks]
        assert not torch.equal(masks[0][:, 0], masks[0][:, 1])
    loop = layers_loop(module, x, masks=masks)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    args = (x, *module.parameters())
    assert_gradients_match(gradients([ours[0]], args), gradients([loop[0]], args), **TOLERANCE)
    module.eval()
    torch.testing.assert_close(run(module, x), layers_loop(module, x), **TOLERANCE)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("pooling", ["f", "fo"])
def test_g04_zoneout(pooling, window, bidirectional, monkeypatch):
    module = srt.QRNN(
        4, 6, zoneout=0.5, pooling=pooling, window=window, bidirectional=bidirectional,
        batch_first=True, dtype=torch.float64,
    )  # fmt: skip
    x = leaf(2, 6, 4)
    kept = []
    masked_fill = torch.Tensor.masked_fill

    def export(t, mask, value):
        if value == math.inf:
            kept.append(mask)
        return masked_fill(t, mask, value)

    monkeypatch.setattr(torch.Tensor, "masked_fill", export)
    y, _ = module(x)
    monkeypatch.undo()
    # The same equations with the exported masks, gate by gate.
    blocks = len(pooling) + 1
    forget = 0 if pooling == "f" else 1
    mask = torch.cat([m.unflatten(-1, (-1, blocks, 6)) for m in kept], -3)
    assert not mask.sum(-2).sub(mask[..., forget, :].long()).any()
    mask = mask[..., forget, :].unbind(-2)
    assert 0.2 < torch.stack(mask).double().mean() < 0.8
    assert not torch.equal(mask[0][:, 0], mask[0][:, 1])
    outputs = []
    for d, keep in enumerate(mask):
        steps = range(6)[:: -1 if d else 1]
        weight, bias = (
            p.chunk(2 if bidirectional else 1)[d] for p in (module.weight_ih_l0, module.bias_ih_l0)
        )
        before, c, rows = torch.zeros(2, 4).double(), torch.zeros(2, 6).double(), {}
        for t in steps:
            own = torch.cat([x[:, t], before], -1) if window == 2 else x[:, t]
            gates = (own @ weight.T + bias).chunk(blocks, -1)
            f, z = (gates[0], gates[1]) if pooling == "f" else (gates[1], gates[0])
            f = torch.where(keep[:, t], 1.0, torch.sigmoid(f))
            c = f * c + (1 - f) * torch.tanh(z)
            rows[t] = c if pooling == "f" else torch.sigmoid(gates[2]) * c
            before = x[:, t]
        outputs.append(torch.stack([rows[t] for t in range(6)], 1))
    loop = torch.cat(outputs, -1)
    torch.testing.assert_close(y, loop, **TOLERANCE)
    args = (x, *module.parameters())
    assert_gradients_match(gradients([y], args), gradients([loop], args), **TOLERANCE)
    torch.testing.assert_close(module.eval()(x), layers_loop(module, x), **TOLERANCE)
    # All is kept, or nothing.
    module.train().zoneout = 1.0
    assert not module(x)[0].any()
    module.zoneout = 0.0
    torch.testing.assert_close(module(x), module.eval()(x), **SAME)


@by_class
def test_g05_backward_twice_and_eval(cls):
    module = cls(4, 6, 2, dtype=torch.float64)
    x = leaf(5, 2, 4)
    y, _ = module(x)
    args = [x, *module.parameters()]
    once = torch.autograd.grad(y.sum(), args, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), args), once, **SAME)
    y, _ = module.eval()(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), args), once, **SAME)


@pytest.mark.parametrize("side", ["right", "left"])
@by_kind
def test_n10_padding(side, kind):
    module = layer(kind)
    lengths, T = [8, 3, 1, 0], 8
    t, n = torch.arange(T), torch.tensor(lengths)[:, None]
    valid = t < n if side == "right" else t >= T - n
    x = torch.where(valid[..., None], torch.randn(4, T, 4), torch.nan).double().requires_grad_()
    hx = state_of(module, 4)
    y, h_n = run(module, x, hx, lengths=lengths, padding_side=side)
    assert not y[~valid].any()
    for b in range(4):
        alone, last = run(module, x[b : b + 1, valid[b]], cut(hx, b))
        torch.testing.assert_close(y[b, valid[b]], alone[0])
        for h, e in zip(parts_of(h_n), parts_of(last), strict=True):
            torch.testing.assert_close(h[:, b], e[:, 0])
    args = (x, *module.parameters())
    dx, *rest = gradients([y, *parts_of(h_n)], args)
    assert not dx[~valid].any()
    assert all(g.isfinite().all() for g in (dx, *rest))


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 9, 4), (5, 1, 4)])
@by_kind
def test_s02_single_rows_and_steps(shape, kind):
    module = layer(kind)
    B, T, _ = shape
    x = torch.randn(5, 9, 4, dtype=torch.float64)
    y, _ = run(module, x[:B, :T])
    assert y.shape[:2] == (B, T)
    want, _ = run(module, x[:, :T])
    torch.testing.assert_close(y, want[:B])


def test_s02_one_feature():
    for cls in CLASSES:
        y, _ = cls(1, 1, dtype=torch.float64)(torch.randn(5, 2, 1, dtype=torch.float64))
        assert y.shape == (5, 2, 1)


@pytest.mark.parametrize("shape", [(2, 0, 4), (0, 5, 4), (0, 0, 4)])
@by_kind
def test_s03_empty_axes(shape, kind):
    module = layer(kind)
    x, hx = leaf(*shape), state_of(module, shape[0])
    y, h_n = run(module, x, hx)
    assert y.shape[:2] == shape[:2]
    torch.testing.assert_close(h_n, hx)
    args = (x, *parts_of(hx), *module.parameters())
    loss = y.sum() + 2 * sum(h.real.sum() for h in parts_of(h_n))
    grads = torch.autograd.grad(loss, args, allow_unused=True)
    for g, t in zip(grads, args, strict=True):
        assert g is None or g.shape == t.shape
    for g, t in zip(grads[1:], parts_of(hx), strict=False):
        torch.testing.assert_close(g, torch.full_like(t, 2))
    assert not any(g is not None and g.any() for g in grads[1 + len(parts_of(hx)) :])


@pytest.mark.parametrize(
    ("x", "keywords", "message"),
    [
        ((3, 5, 2), {}, r"input has shape \(3, 5, 2\), expected 4 features"),
        ((3, 5, 2, 4), {}, "input has 4 axes, expected 2 or 3"),
        ((5, 2, 4), {"lengths": [5]}, r"lengths has shape \(1,\), expected \(2,\)"),
        ((5, 2, 4), {"lengths": [5, 6]}, "lengths"),
        ((5, 2, 4), {"reset": [[0] * 5] * 2}, r"reset has shape \(2, 5\), expected \(5, 2\)"),
        ((5, 2, 4), {"cu_seqlens": [0, 5]}, "the batch size is 2, expected 1 with cu_seqlens"),
        ((5, 4), {"cu_seqlens": [0, 4]}, "cu_seqlens"),
        ((5, 2, 4), {"padding_side": "up"}, "padding_side is 'up'"),
    ],
)
@by_class
def test_s08_wrong_arguments(cls, x, keywords, message):
    with pytest.raises(ValueError, match=message):
        cls(4, 6, 2)(torch.randn(x), **keywords)


@by_class
def test_s08_wrong_states(cls):
    module = cls(4, 6, 2)
    names = module._states
    good = parts_of(state_of(module, 2, dtype=torch.float32, requires_grad=False))
    for i, name in enumerate(names):
        for wrong, shape in [(good[i][:, :1], "(2, 1, 6)"), (good[i][..., :5], "(2, 2, 5)")]:
            parts = [wrong if i == j else part for j, part in enumerate(good)]
            with pytest.raises(
                ValueError, match=rf"{cls.__name__}: {name} has shape \({shape[1:-1]}\)"
            ):
                module(torch.randn(5, 2, 4), parts[0] if len(parts) == 1 else tuple(parts))
    with pytest.raises(TypeError, match=f"{cls.__name__}: "):
        module(torch.randn(5, 2, 4), [[0.0]] if len(names) == 1 else good[0])


def test_s08_wrong_constructions():
    for cls in CLASSES:
        for keywords, message in [
            ({"hidden_size": 0}, "hidden_size is 0, expected at least 1"),
            ({"dropout": 1.5, "num_layers": 2}, "dropout is 1.5, expected a probability"),
        ]:
            with pytest.raises(ValueError, match=f"{cls.__name__}: {message}"):
                cls(**{"input_size": 4, "hidden_size": 6} | keywords)
        with pytest.raises(
            TypeError, match=f"{cls.__name__}: hidden_size is 6.0, expected a whole"
        ):
            cls(4, 6.0)
        with pytest.warns(UserWarning, match=f"{cls.__name__}: dropout follows all layers"):
            cls(4, 6, dropout=0.5)
        for no_tensor in (torch.zeros(5, 2, 4).numpy(), None):
            for run_ in (cls(4, 6), cls(4, 6).step):
                with pytest.raises(TypeError, match=f"{cls.__name__}: input.* is a .*, expected a"):
                    run_(no_tensor)
        both_ways = cls(4, 6, bidirectional=True)
        with pytest.raises(ValueError, match="reset was given to a bidirectional layer"):
            both_ways(torch.randn(5, 2, 4), reset=torch.zeros(5, 2, dtype=torch.bool))
        with pytest.raises(ValueError, match="a bidirectional layer has no step"):
            both_ways.step(torch.randn(2, 4))
    for cls, keywords, message in [
        (srt.MinGRU, {"activation": "gelu"}, "activation is 'gelu', expected 'identity', 'tanh'"),
        (srt.MinGRU, {"proj_size": -1}, "proj_size is -1, expected at least 0"),
        (srt.QRNN, {"window": 3}, "window is 3, expected 1 or 2"),
        (srt.QRNN, {"pooling": "o"}, "pooling is 'o', expected 'f', 'fo' or 'ifo'"),
        (srt.QRNN, {"zoneout": -0.5}, "zoneout is -0.5, expected a probability"),
        (srt.QRNN, {"zoneout": 0.5, "pooling": "ifo"}, "zoneout is 0.5 with ifo-pooling"),
        (srt.RGLRU, {"num_heads": 4}, "num_heads is 4, expected a divisor of 6"),
        (srt.RGLRU, {"c": 0.0}, "c is 0.0, expected a positive number"),
        (srt.HGRN, {"lower_bounds": [0.1, 0.2]}, r"lower_bounds has shape \(2, 1\), expected"),
        (
            srt.HGRN,
            {"lower_bounds": [1.5]},
            "lower_bounds has values from 1.5 to 1.5, expected 0 to 1",
        ),
        (srt.HGRN, {"lower_bounds": "fixed"}, "lower_bounds is 'fixed', expected 'learned' or"),
        (srt.LRU, {"r_min": 0.9, "r_max": 0.5}, "r_min and r_max are 0.9 and 0.5"),
        (srt.LRU, {"max_phase": 7.0}, "max_phase is 7.0"),
        (srt.LRU, {"state_size": 0}, "state_size is 0, expected at least 1"),
        (srt.S5, {"dt_min": 0.0}, "dt_min and dt_max are 0.0"),
        (
            srt.IndRNN,
            {"nonlinearity": "gelu"},
            "nonlinearity is 'gelu', expected 'identity', 'tanh'",
        ),
    ]:
        with pytest.raises(ValueError, match=f"{cls.__name__}: {message}"):
            cls(4, 6, **keywords)
    for cls, name in [
        (srt.GILR, "dropout"),
        (srt.QRNN, "zoneout"),
        (srt.SRU, "highway_scale"),
        (srt.RGLRU, "c"),
        (srt.HGRN, "norm_eps"),
        (srt.LRU, "r_min"),
        (srt.LRU, "max_phase"),
        (srt.S5, "dt_max"),
    ]:
        with pytest.raises(TypeError, match=f"{cls.__name__}: {name} is '0.1', expected a number"):
            cls(4, 6, **{name: "0.1"})
    with pytest.raises(TypeError, match=r"RGLRU: num_heads is 2.0, expected a whole number"):
        srt.RGLRU(4, 6, num_heads=2.0)


def test_m02_mixed_devices():
    for cls in CLASSES:
        module, x = cls(4, 6), torch.randn(5, 2, 4)
        for run_, input in ((module, x), (module.step, x[0])):
            with pytest.raises(
                ValueError, match=f"{cls.__name__}: input is on device meta, expected cpu"
            ):
                run_(input.to("meta"))
        good = parts_of(state_of(module, 2, dtype=torch.float32, requires_grad=False))
        for i, name in enumerate(module._states):
            parts = [part.to("meta") if i == j else part for j, part in enumerate(good)]
            with pytest.raises(
                ValueError, match=f"{cls.__name__}: {name} is on device meta, expected cpu"
            ):
                module(x, parts[0] if len(parts) == 1 else tuple(parts))


@by_causal_kind
def test_w01_state_carried_across_pieces(kind):
    module = layer(kind)
    x = leaf(2, 100, 4)
    cuts = [0, 1, 2, 40, 41, 99, 100]

    def pieces(detach):
        h, out = None, []
        for i, j in itertools.pairwise(cuts):
            if detach and h is not None:
                parts = [part.detach() for part in parts_of(h)]
                h = parts[0] if len(parts) == 1 else tuple(parts)
            y, h = run(module, x[:, i:j], h)
            out.append(y)
        return torch.cat(out, 1)

    whole, _ = run(module, x)
    torch.testing.assert_close(pieces(False), whole)
    args = (x, *module.parameters())
    assert_gradients_match(gradients([pieces(False)], args), gradients([whole], args))
    (dx,) = torch.autograd.grad(pieces(True)[:, -1].sum(), x)
    assert not dx[:, :99].any()


@pytest.mark.parametrize("as_sorted", [True, False])
@by_kind
def test_w02_packed_sequences(kind, as_sorted):
    module = layer(kind)
    lengths = [6, 4, 4, 1] if as_sorted else [4, 1, 6, 4]
    padded, hx = leaf(4, 6, 4), state_of(module, 4)
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=as_sorted)
    y, h_n = module(packed, hx)
    assert isinstance(y, PackedSequence)
    y, n = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    assert n.tolist() == lengths
    want, want_n = run(module, padded, hx, lengths=lengths)
    torch.testing.assert_close((y, h_n), (want, want_n), **TOLERANCE)
    args = (padded, *parts_of(hx), *module.parameters())
    assert_gradients_match(
        gradients([y, *parts_of(h_n)], args),
        gradients([want, *parts_of(want_n)], args),
        **TOLERANCE,
    )
    with pytest.raises(ValueError, match="lengths was given beside"):
        module(packed, lengths=lengths)


@by_causal_kind
def test_w03_resets(kind):
    module = layer(kind)
    flags = torch.zeros(2, 8, dtype=torch.bool)
    flags[0, 3] = flags[1, 5] = flags[1, 0] = True
    x, hx = torch.randn(2, 8, 4, dtype=torch.float64), state_of(module, 2)
    y, _ = run(module, x, hx, reset=flags)
    torch.testing.assert_close(y[:1, :3], run(module, x[:1, :3], cut(hx, 0))[0])
    torch.testing.assert_close(y[:1, 3:], run(module, x[:1, 3:])[0])
    torch.testing.assert_close(y[1:, :5], run(module, x[1:, :5])[0])
    torch.testing.assert_close(y[1:, 5:], run(module, x[1:, 5:])[0])


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [
        (kind, dtype, tolerance)
        for kind in CAUSAL
        for dtype, tolerance in [
            (torch.float32, 1e-5),
            (torch.float64, 1e-12),
            (torch.bfloat16, 0.06),
        ]
        if dtype != torch.bfloat16 or KINDS[kind][0] not in (srt.LRU, srt.S5)
    ],
)
def test_w05_steps_equal_the_sequence(kind, dtype, tolerance):
    module = layer(kind, dtype=dtype)
    x = torch.randn(2, 200, 4).to(dtype)
    want, last = run(module, x)
    for prefill in (0, 100) if dtype != torch.bfloat16 else (170,):
        y, h = run(module, x[:, :prefill])
        out = [y]
        for t in range(prefill, 200):
            step, h = module.step(x[:, t], h)
            out.append(step[:, None])
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(torch.cat(out, 1), want, **close)
        for a, b in zip(parts_of(h), parts_of(last), strict=True):
            torch.testing.assert_close(a, b, **close)
    torch.testing.assert_close(module.step(x[:, 0]), module.step(x[:, 0]), **SAME)
    step, h = module.step(x[0, 0])
    assert step.shape == want.shape[2:]
    for a, b in zip(parts_of(h), parts_of(last), strict=True):
        assert a.shape == b[:, 0].shape


@by_class
def test_m06_same_bits_every_time_and_in_every_batch(cls, threads):
    module = cls(16, 16, dtype=torch.float32)
    x = torch.randn(300, 8, 16, requires_grad=True)
    args = (x, *module.parameters())

    def everything():
        y, _ = module(x)
        return (y, *torch.autograd.grad(y.square().sum(), args, allow_unused=True))

    first = [t for t in everything() if t is not None]
    for n in (1, 2, 3):
        threads(n)
        again = [t for t in everything() if t is not None]
        torch.testing.assert_close(again, first, **SAME)


# ---- Reports of nonlinear layers -----------------------------------------------------------------

SOLVED = {
    "DiagonalGRU": srt.DiagonalGRU(4, 6, 2, bidirectional=True, segment=8),
    "DiagonalLSTM": srt.DiagonalLSTM(4, 6, 2, bidirectional=True, segment=8),
    "IndRNN": srt.IndRNN(4, 6, 2, bidirectional=True, segment=8),
    "SRU": srt.SRU(4, 6, 2, bidirectional=True, segment=8, recurrent=True),
}
by_solved = pytest.mark.parametrize("name", SOLVED)


@by_solved
def test_reports_are_those_of_each_layer_and_direction(name):
    module = copy.deepcopy(SOLVED[name])
    assert module.last_report == ()
    module(torch.randn(64, 3, 4))
    assert len(module.last_report) == 4
    for report in module.last_report:
        assert isinstance(report, srt.SolveReport)
        assert (report.status == "converged").all()
        assert (report.passes >= 1).all()
        assert len(report) == 3
    copy.deepcopy(module)
    module.max_passes = 0
    module(torch.randn(64, 2, 4))
    assert [r.status.tolist() for r in module.last_report] == [["serial"] * 2] * 4
    assert "segment=8" in repr(module)
    assert module.state_dict().keys() == SOLVED[name].state_dict().keys()


@by_solved
def test_reports_are_in_the_order_of_the_sequences(name):
    """Those of unsorted packed sequences, of which the short ones have one segment."""
    module = copy.deepcopy(SOLVED[name])
    x = [torch.randn(n, 4) for n in (3, 40, 5, 60)]
    module(pack_sequence(x, enforce_sorted=False))
    for report in module.last_report:
        assert (report.status == "converged").tolist() == [False, True, False, True]


@by_solved
def test_m04_threads_do_not_meet_in_reports(name):
    module = copy.deepcopy(SOLVED[name]).eval()
    packs = [
        pack_sequence([torch.randn(5 + i, 4) for i in range(n)], enforce_sorted=False)
        for n in (1, 12, 3)
    ]
    with torch.no_grad():
        wanted = [module(packed)[0].data for packed in packs]

    def work(i):
        with torch.no_grad():
            return all(torch.equal(module(packs[i])[0].data, wanted[i]) for _ in range(100))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(packs)) as pool:
            assert all(pool.map(work, range(len(packs))))
    finally:
        sys.setswitchinterval(interval)


@by_solved
def test_reports_where_there_can_be_none_or_tensors_are_traced(name):
    module = copy.deepcopy(SOLVED[name])
    x = torch.randn(20, 3, 4)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    compiled(x)
    assert [len(r) for r in module.last_report] == [3] * 4
    own = dict(module.named_parameters())

    def loss(parameters, x):
        return functional_call(module, parameters, (x,))[0].sum()

    torch.vmap(torch.func.grad(loss), (None, 0))(own, torch.stack([x, x]))
    assert module.last_report == ()
    exported = torch.export.export(copy.deepcopy(module), (x,)).module()
    torch.testing.assert_close(exported(x), module(x))


@pytest.mark.parametrize("cls", [srt.DiagonalGRU, srt.DiagonalLSTM, srt.IndRNN, srt.SRU])
def test_s08_wrong_solver_arguments(cls):
    for keywords, message in [
        ({"tolerance": -1.0}, "tolerance is -1.0, expected a positive number"),
        ({"max_passes": -1}, "max_passes is -1, expected at least 0"),
        ({"segment": 0}, "segment is 0, expected at least 1"),
    ]:
        with pytest.raises(ValueError, match=f"{cls.__name__}: {message}"):
            cls(4, 6, **keywords)


# ---- Other packages' weights: their published equations on their layout --------------------------


def published_qrnn(state, x, layers, window, zoneout=0.0):
    """Bradbury et al., section 2, with f the update gate; x (T, B, n)."""
    finals = []
    for k in range(layers):
        weight, bias = state[f"layers.{k}.linear.weight"], state[f"layers.{k}.linear.bias"]
        T, B, _ = x.shape
        source = x
        if window == 2:
            source = torch.cat([x, torch.cat([torch.zeros_like(x[:1]), x[:-1]])], -1)
        gates = source @ weight.T + bias
        D = gates.shape[-1] // (3 if weight.shape[0] % 3 == 0 else 2)
        z, f, *o = gates.split(D, -1)
        c, h = x.new_zeros(B, D), []
        for t in range(T):
            update = torch.sigmoid(f[t])
            c = update * torch.tanh(z[t]) + (1 - update) * c
            h.append(torch.sigmoid(o[0][t]) * c if o else c)
        x = torch.stack(h)
        finals.append(c)
    return x, torch.stack(finals)


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize(("pooling", "blocks"), [("fo", 3), ("f", 2)])
def test_weights_of_pytorch_qrnn(window, pooling, blocks):
    module = srt.QRNN(4, 5, 2, window=window, pooling=pooling, dtype=torch.float64)
    state = {}
    for k, n in enumerate((4, 5)):
        state |= {
            f"layers.{k}.linear.weight": torch.randn(blocks * 5, window * n, dtype=torch.float64),
            f"layers.{k}.linear.bias": torch.randn(blocks * 5, dtype=torch.float64),
        }
    srt.load_pytorch_qrnn_weights(module, state)
    x = torch.randn(7, 3, 4, dtype=torch.float64)
    y, h_n = module(x)
    want, last = published_qrnn(state, x, 2, window)
    torch.testing.assert_close((y, parts_of(h_n)[0]), (want, last), **TOLERANCE)
    # A single layer's state dict has no prefix.
    single = srt.QRNN(4, 5, window=window, pooling=pooling, dtype=torch.float64)
    own = {k.removeprefix("layers.0."): v for k, v in state.items() if "layers.0" in k}
    srt.load_pytorch_qrnn_weights(single, own)
    want, _ = published_qrnn(state, x, 1, window)
    torch.testing.assert_close(single(x)[0], want, **TOLERANCE)


def positive(x):
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_weights_of_min_gru_pytorch(kind, factor):
    """Feng et al., appendix B: in log space, as the package computes, and in plain space."""
    n, D = 4, int(4 * factor)
    blocks, name, cls, load = {
        "GRU": (2, "to_hidden_and_gate", srt.MinGRU, srt.load_min_gru_weights),
        "LSTM": (3, "to_hidden_and_f_i_gate", srt.MinLSTM, srt.load_min_lstm_weights),
    }[kind]
    state = {f"{name}.weight": torch.randn(blocks * D, n, dtype=torch.float64)}
    if factor != 1:
        state["to_out.weight"] = torch.randn(n, D, dtype=torch.float64)
    keywords = {"bias": False, "activation": "positive", "batch_first": True}
    module = cls(n, D, proj_size=n if factor != 1 else 0, dtype=torch.float64, **keywords)
    load(module, state)
    x = torch.randn(3, 9, n, dtype=torch.float64)
    hidden, *gates = (x @ state[f"{name}.weight"].T).chunk(blocks, -1)
    if kind == "GRU":
        keep, add = torch.sigmoid(-gates[0]), torch.sigmoid(gates[0])
    else:
        f, i = map(torch.sigmoid, gates)
        keep, add = f / (f + i), i / (f + i)
    log_keep = keep.log().cumsum(1)
    log_values = (add * positive(hidden)).log() - log_keep
    want = (log_keep + log_values.logcumsumexp(1)).exp()
    if factor != 1:
        want = want @ state["to_out.weight"].T
    torch.testing.assert_close(module(x)[0], want, **TOLERANCE)


@pytest.mark.parametrize("scale_start", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_weights_of_recurrentgemma(heads, scale_start):
    """De et al., equations 1-4, with segments, and the first steps unscaled as the code has it."""
    width, b = 6, 6 // heads
    state = {"a_param": torch.randn(width, dtype=torch.float64)}
    for gate in ("input_gate", "a_gate"):
        state[f"{gate}.w"] = torch.randn(heads, b, b, dtype=torch.float64)
        state[f"{gate}.b"] = torch.randn(heads, b, dtype=torch.float64)
    module = srt.RGLRU(
        width, width, num_heads=heads, scale_start=scale_start, batch_first=True,
        dtype=torch.float64,
    )  # fmt: skip
    srt.load_recurrentgemma_weights(module, state)
    x = leaf(2, 9, width)
    segment_pos = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 0, 1, 2, 3, 0, 1]])

    def gate(name):
        parts = x.unflatten(-1, (heads, b)).unsqueeze(-2)
        return torch.sigmoid((parts @ state[f"{name}.w"]).squeeze(-2) + state[f"{name}.b"]).flatten(
            -2
        )

    log_a = -8 * gate("a_gate") * nn.functional.softplus(state["a_param"])
    a, first = torch.exp(log_a), (segment_pos == 0).unsqueeze(-1)
    scale = torch.sqrt(1 - torch.exp(2 * log_a))
    if not scale_start:
        scale = torch.where(first, 1, scale)
    h, rows = torch.zeros(2, width).double(), []
    for t in range(9):
        kept = torch.where(first[:, t], 0, a[:, t])
        h = kept * h + (scale * gate("input_gate") * x)[:, t]
        rows.append(h)
    want = torch.stack(rows, 1)
    y, h_n = module(x, reset=segment_pos == 0)
    torch.testing.assert_close((y, h_n[0]), (want, h), **TOLERANCE)
    args = (x,)
    assert_gradients_match(gradients([y], args), gradients([want], args), **TOLERANCE)
    # A run in pieces goes on from its state, and packed segments are sequences of their own.
    parts, s = [], None
    for i, j in ((0, 4), (4, 9)):
        part, s = module(x[:1, i:j], s)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), want[:1], **TOLERANCE)
    packed, _ = module(x[1], cu_seqlens=[0, 3, 7, 9])
    torch.testing.assert_close(packed, want[1], **TOLERANCE)


@pytest.mark.parametrize("layer_idx", [0, 2])
@pytest.mark.parametrize("expand", [1, 2])
def test_weights_of_fla_hgrn(expand, layer_idx):
    """Qin et al., section 3, with the output gate of the package's layer."""
    n, D = 4, 4 * expand
    shapes = {
        "i_proj": (D, n),
        "f_proj": (D, n),
        "g_proj": (D, n),
        "g_norm": (D,),
        "o_proj": (n, D),
    }
    state = {f"{k}.weight": torch.randn(v, dtype=torch.float64) for k, v in shapes.items()}
    shares = torch.randn(3, D, dtype=torch.float64).softmax(0)
    bound = shares.cumsum(0)[layer_idx] - shares[0]
    module = srt.HGRN(
        n, D, bias=False, batch_first=True, output_gate=True, proj_size=n,
        lower_bounds=bound[None], dtype=torch.float64,
    )  # fmt: skip
    srt.load_fla_hgrn_weights(module, state)
    x = torch.randn(2, 9, n, dtype=torch.float64)
    f = torch.sigmoid(x @ state["f_proj.weight"].T)
    f = bound + (1 - bound) * f if layer_idx > 0 else f
    i = x @ state["i_proj.weight"].T
    value = i * torch.sigmoid(i) * (1 - f)
    h, rows = torch.zeros(2, D).double(), []
    for t in range(9):
        h = f[:, t] * h + value[:, t]
        rows.append(h)
    o = torch.stack(rows, 1)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * state["g_norm.weight"]
    g = x @ state["g_proj.weight"].T
    want = (o * g * torch.sigmoid(g)) @ state["o_proj.weight"].T
    y, h_n = module(x)
    torch.testing.assert_close((y, h_n[0]), (want, h), **TOLERANCE)


def test_weights_that_do_not_fit():
    gru = srt.MinGRU(4, 4, bias=False, activation="positive")
    before = gru.weight_ih_l0.clone()
    good = {"to_hidden_and_gate.weight": torch.randn(8, 4)}
    for state, message in [
        ({}, r"state_dict has no to_hidden_and_gate\.weight, expected shape \(8, 4\)"),
        (good | {"to_out.weight": torch.randn(4, 4)}, r"state_dict has to_out\.weight, which"),
        (
            {"to_hidden_and_gate.weight": torch.randn(8, 5)},
            r"has shape \(8, 5\), expected \(8, 4\)",
        ),
    ]:
        with pytest.raises(ValueError, match=f"load_min_gru_weights: .*{message}"):
            srt.load_min_gru_weights(gru, state)
    torch.testing.assert_close(gru.weight_ih_l0, before, **SAME)
    for load, module, message in [
        (srt.load_min_gru_weights, srt.MinGRU(4, 4, bias=False), "activation='identity', expected"),
        (srt.load_min_gru_weights, srt.MinGRU(4, 4), "bias=True, expected False"),
        (srt.load_min_lstm_weights, srt.MinLSTM(4, 4, 2), "num_layers=2, expected 1"),
        (srt.load_pytorch_qrnn_weights, srt.QRNN(4, 4, pooling="ifo"), "pooling='ifo', expected"),
        (srt.load_pytorch_qrnn_weights, srt.QRNN(4, 4, bidirectional=True), "bidirectional=True"),
        (srt.load_recurrentgemma_weights, srt.RGLRU(4, 6), "input_size=4, expected 6"),
        (srt.load_fla_hgrn_weights, srt.HGRN(4, 4, bias=False), "output_gate=False, expected True"),
    ]:
        with pytest.raises(ValueError, match=f"{load.__name__}: module has {message}"):
            load(module, good)
