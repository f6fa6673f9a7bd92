"""scanrnn.torch's sru and SRU in eager mode, and weights of the SRU package."""

import copy
import itertools
import math

import numpy as np
import pytest
import scanrnn
import torch
from scanrnn.torch import SRU, _cells, load_sru_package_weights, sru
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch.utils.checkpoint import checkpoint
from torch_helpers import (
    ACTIVATIONS,
    OPTIONS,
    as_tensors,
    assert_gradients_match,
    gradients,
    leaf,
    module_loop,
    size_of,
    sru_loop,
)

by_options = pytest.mark.parametrize("name", OPTIONS)
by_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}

#: Modules of all kinds: keywords, beside input and hidden size 4 and 3.
KINDS = {
    "projection": {},
    "no bias": {"bias": False},
    "deep": {"num_layers": 3, "activation": "tanh"},
    "bidirectional": {"bidirectional": True, "num_layers": 2},
    "batch first": {"batch_first": True, "num_layers": 2, "highway_scale": 3**0.5},
    "no highway": {"highway": "none", "bidirectional": True},
    "always projected": {"highway": "projection", "num_layers": 2, "activation": "relu"},
    "recurrent": {"recurrent": True, "num_layers": 2, "activation": "tanh", "segment": 3},
    "recurrent both ways": {"recurrent": True, "bidirectional": True, "bias": False},
    "recurrent, no highway": {"recurrent": True, "batch_first": True, "highway": "none"},
}
by_kind = pytest.mark.parametrize("kind", KINDS)
by_causal_kind = pytest.mark.parametrize(
    "kind", [kind for kind, keywords in KINDS.items() if "bidirectional" not in keywords]
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def inputs(options, D=3, dtype=torch.float64):
    B, T, N = size_of(options)
    full = [leaf(B, T, D, dtype=dtype) for _ in range(4)]
    return [*full, leaf(D, dtype=dtype), leaf(D, dtype=dtype), leaf(N, D, dtype=dtype)]


def both(*args, **options):
    return sru(*args, return_final=True, **options)


def layer(kind="projection", *, dtype=torch.float64, sizes=(4, 3), **keywords):
    module = SRU(*sizes, dtype=dtype, **(KINDS[kind] | keywords))
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return module


def run(module, x, hx=None, **options):
    """A module on x (B, T, features), whichever its layout."""
    if not module.batch_first:
        x = x.transpose(0, 1)
    y, h_n = module(x, hx, **options)
    return y if module.batch_first else y.transpose(0, 1), h_n


def state(module, B):
    rows = module.num_layers * (2 if module.bidirectional else 1)
    weight = module.weight_ih_l0
    return leaf(rows, B, module.hidden_size, dtype=weight.dtype)


# ---- The function --------------------------------------------------------------------------------


@by_options
@by_activation
def test_equals_the_loop(name, activation):
    options = as_tensors(OPTIONS[name]) | {"activation": activation}
    args = inputs(options)
    ours, loop = both(*args, **options), sru_loop(*args, **options)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    assert_gradients_match(gradients(ours, args), gradients(loop, args), **TOLERANCE)


@pytest.mark.parametrize("present", range(16))
def test_every_optional_input(present):
    args = inputs({})
    for i in range(4):
        if not present >> i & 1:
            args[3 + i] = None
    given = [t for t in args if t is not None]
    ours, loop = both(*args), sru_loop(*args)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    assert_gradients_match(gradients(ours, given), gradients(loop, given), **TOLERANCE)


@pytest.mark.parametrize("wanted", range(7))
@pytest.mark.parametrize("output", [0, 1], ids=["h", "final"])
def test_every_gradient_alone(wanted, output):
    args = [t if i == wanted else t.detach() for i, t in enumerate(inputs({}))]
    ours, loop = both(*args)[output], sru_loop(*args)[output]
    if not loop.requires_grad:  # the highway does not reach the state
        loop = loop + 0 * args[wanted].sum()
    got, want = gradients([ours], [args[wanted]]), gradients([loop], [args[wanted]])
    assert_gradients_match(got, want, **TOLERANCE)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_axes_and_batches(axis):
    u, f, r, skip = (leaf(2, 3, 4, 5) for _ in range(4))
    h, final = sru(u, f, r, skip, axis=axis, return_final=True)
    moved = [t.movedim(axis, -2).flatten(0, 1) for t in (u, f, r, skip)]
    loop, loop_final = sru_loop(*moved)
    loop = loop.view(u.movedim(axis, -2).shape).movedim(-2, axis)
    torch.testing.assert_close((h, final), (loop, loop_final.view(final.shape)), **TOLERANCE)
    args = (u, f, r, skip)
    assert_gradients_match(gradients([h], args), gradients([loop], args), **TOLERANCE)


@pytest.mark.parametrize("shape", [(6, 4), (6,)])
def test_one_sequence_without_a_batch_axis(shape):
    u, f, r, skip, c0 = *(leaf(*shape) for _ in range(4)), leaf(*shape[1:])
    h, final = sru(u, f, r, skip, c0=c0, return_final=True)
    loop, last = sru_loop(*(t.reshape(1, 6, -1) for t in (u, f, r, skip)), c0=c0.reshape(1, -1))
    torch.testing.assert_close((h, final), (loop.view(shape), last.view(c0.shape)), **TOLERANCE)


def test_cells_of_the_package_come_here():
    args = [t.detach() for t in inputs({})]
    torch.testing.assert_close(scanrnn.cells.sru(*args), sru(*args), rtol=0, atol=0)
    u, f, r, skip, bias_f, bias_r, c = args
    step = scanrnn.cells.sru_step(u[:, 0], f[:, 0], r[:, 0], skip[:, 0], bias_f, bias_r, c)
    h, final = both(*(t[:, :1] for t in args[:4]), bias_f, bias_r, c)
    torch.testing.assert_close(step, (h[:, 0], final), rtol=0, atol=0)


def test_saves_inputs_and_one_state_in_32():
    saved = []

    def pack(t):
        saved.append(t)
        return t

    args = inputs({}, 8)
    args[:4] = [torch.cat([t, torch.randn(2, 635, 8)], 1).detach() for t in args[:4]]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        h = sru(*args)
        ours = {t.data_ptr() for t in args}
        extra = sum(t.numel() for t in saved if t.data_ptr() not in ours)
        assert extra <= h.numel() / 32 + 2 * 8
        saved.clear()
        with torch.no_grad():
            sru(*args)
        sru(*(t.detach() for t in args))
    assert not saved


@pytest.mark.parametrize("T", [0, 1, 31, 32, 33, 64, 100])
@pytest.mark.parametrize(("B", "N"), [(0, 0), (1, 1), (3, 3), (1, 0), (1, 5)])
def test_checkpoints_have_the_rows_that_the_core_writes(B, N, T):
    offsets = None
    if N != B:
        T = T if N else 0
        offsets = torch.tensor([0] * N + [T])
    u = torch.randn(B, T, 2)
    options = (offsets, None, None, False, False)
    row = (_cells.KINDS["sru"], [0.0], 1, 1)
    checkpoints = torch.ops.scanrnn.cell(*[u] * 4, *[None] * 3, *options, *row, True)[2]
    assert checkpoints.shape == (1, scanrnn._core.checkpoint_rows(B, T, N), 2)


# ---- Derivatives of all orders and modes ---------------------------------------------------------


@by_activation
@pytest.mark.parametrize("name", ["plain", "packed-reverse-reset", "left-reset"])
def test_d03_gradcheck(name, activation):
    options = as_tensors(OPTIONS[name]) | {"activation": activation}
    assert gradcheck(
        lambda *args: both(*args, **options), inputs(options, 2), check_forward_ad=True
    )


def test_g09_batched_gradients():
    args = inputs({}, 1)
    assert gradcheck(both, args, check_batched_grad=True)


@pytest.mark.parametrize(("name", "activation"), [("plain", "tanh"), ("left-reset", "identity")])
def test_g08_gradgradcheck(name, activation):
    options = as_tensors(OPTIONS[name]) | {"activation": activation}
    # Two channels of the bias need no more samples than one.
    u, f, r, skip, bias_f, bias_r, c0 = inputs(options, 1)
    assert gradgradcheck(
        lambda *args: both(*args, **options), (u, f, r, skip, bias_f, bias_r, c0), atol=1e-6
    )


def test_g08_forward_over_reverse():
    args = inputs({}, 1)[:3]
    assert gradgradcheck(lambda *args: sru(*args), args, check_fwd_over_rev=True)


@by_kind
def test_g08_second_derivatives_of_layers(kind):
    module = layer(kind)
    x, hx = leaf(2, 4, 4), state(module, 2)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def second(f):
        y, h_n = f()
        first = torch.autograd.grad(
            y.square().sum() + h_n.tanh().sum(), (x, hx, *parameters), create_graph=True
        )
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, hx, *parameters))

    ours, loop = second(lambda: run(module, x, hx)), second(lambda: module_loop(module, x, hx))
    for name, g, e in zip(("x", "hx", *names), ours, loop, strict=True):
        torch.testing.assert_close(g, e, msg=name)


def test_g08_wgan_gradient_penalty():
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    module = layer(batch_first=True)

    def penalty(f):
        x = torch.linspace(-1, 1, 30, dtype=torch.float64).view(2, 5, 3).requires_grad_()
        score = f(critic(x)).tanh().sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        loss = (slope.norm(2, dim=-1) - 1).square().mean()
        return torch.autograd.grad(loss, [*critic.parameters(), *module.parameters()])

    ours = penalty(lambda z: module(z)[0])
    loop = penalty(lambda z: module_loop(module, z)[0])
    assert_gradients_match(ours, loop)


@pytest.mark.parametrize("kind", ["projection", "bidirectional", "no highway", "recurrent"])
def test_g09_transforms_equal_a_loop_over_samples(kind):
    close = {"rtol": 1e-10, "atol": 1e-12}
    module = layer(kind)
    x = torch.randn(3, 6, 2, 4, dtype=torch.float64)
    own = {name: p.detach() for name, p in module.named_parameters()}

    def out(parameters, x):
        return functional_call(module, parameters, (x,))

    def loss(parameters, x):
        y, h_n = out(parameters, x)
        return y.square().sum() + h_n.tanh().sum()

    # Over inputs, over stacked parameters, over both.
    stacked = {k: torch.stack([p, 2 * p, -p]) for k, p in own.items()}
    models = [{k: p[i] for k, p in stacked.items()} for i in range(3)]
    for in_dims, args, samples in [
        ((None, 0), (own, x), [(own, x[i]) for i in range(3)]),
        ((0, None), (stacked, x[0]), [(models[i], x[0]) for i in range(3)]),
        ((0, 0), (stacked, x), [(models[i], x[i]) for i in range(3)]),
    ]:
        got = torch.vmap(out, in_dims)(*args)
        want = [torch.stack(parts) for parts in zip(*(out(*s) for s in samples), strict=True)]
        torch.testing.assert_close([*got], want, **close)
        got = torch.vmap(torch.func.grad(loss), in_dims)(*args)
        want = [torch.func.grad(loss)(*s) for s in samples]
        for name, g in got.items():
            torch.testing.assert_close(g, torch.stack([w[name] for w in want]), **close)
    # The fused backward under torch.func is the one of autograd.
    plain = torch.autograd.grad(loss(dict(module.named_parameters()), x[0]), module.parameters())
    transformed = torch.func.grad(loss)(own, x[0])
    torch.testing.assert_close([*transformed.values()], [*plain], rtol=0, atol=0)

    def y_of(x):
        return out(own, x)[0]

    tangents = torch.randn_like(x[0])
    got = torch.func.jvp(y_of, (x[0],), (tangents,))[1]
    want = torch.func.jvp(
        lambda x: module_loop(module, x.transpose(0, 1))[0].transpose(0, 1), (x[0],), (tangents,)
    )[1]
    torch.testing.assert_close(got, want, **close)
    small = x[0, :3, :1]
    torch.testing.assert_close(
        torch.func.jacrev(y_of)(small), torch.func.jacfwd(y_of)(small), **close
    )


# ---- The layer -----------------------------------------------------------------------------------


@by_kind
@by_options
def test_layer_equals_the_loop(kind, name):
    options = as_tensors(OPTIONS[name])
    options.pop("reverse", None)  # not a layer's
    module = layer(kind)
    if module.bidirectional:
        options.pop("reset", None)
    B, T, N = size_of(options)
    x, hx = leaf(B, T, 4), state(module, N)
    loop = module_loop(module, x, hx, **options)
    if "reset" in options and not module.batch_first:
        options["reset"] = options["reset"].T
    ours = run(module, x, hx, **options)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    args = (x, hx, *module.parameters())
    assert_gradients_match(gradients(ours, args), gradients(loop, args), **TOLERANCE)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_shapes_are_those_of_gru(directions, batch_first, layers):
    keywords = {"num_layers": layers, "bidirectional": directions == 2, "batch_first": batch_first}
    ours, gru = SRU(4, 3, **keywords), nn.GRU(4, 3, **keywords)
    for shape in [(7, 2, 4), (7, 4)]:
        x = torch.randn(shape)
        got, want = ours(x), gru(x)
        assert [t.shape for t in got] == [t.shape for t in want]
        assert got[0].is_contiguous()
        again, _ = ours(x, torch.zeros_like(want[1]))
        torch.testing.assert_close(again, got[0], rtol=0, atol=0)
    packed = pack_sequence([torch.randn(n, 4) for n in (3, 5, 1)], enforce_sorted=False)
    got, want = ours(packed), gru(packed)
    assert isinstance(got[0], PackedSequence)
    assert got[1].shape == want[1].shape
    for a, b in zip(got[0][1:], want[0][1:], strict=True):
        torch.testing.assert_close(a, b)


def test_signature_begins_like_gru():
    ours = SRU(4, 3, 2, False, True, 0.5, True, "cpu", torch.float64)
    gru = nn.GRU(4, 3, 2, False, True, 0.5, True, device="cpu", dtype=torch.float64)
    for name in ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"):
        assert getattr(ours, name) == getattr(gru, name)
    assert repr(ours) == (
        "SRU(4, 3, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True)"
    )


@by_kind
def test_state_dict_is_stable(kind):
    module = layer(kind)
    loaded = SRU(4, 3, dtype=torch.float64, **KINDS[kind])
    loaded.load_state_dict(module.state_dict())
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(loaded(x), module(x), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(module)(x), module(x), rtol=0, atol=0)
    directions = 2 if module.bidirectional else 1
    for i in range(module.num_layers):
        features = 4 if i == 0 else 3 * directions
        rows, columns = module.state_dict()[f"weight_ih_l{i}"].shape
        assert rows == 3 * directions * (4 if module.projects_highway(features) else 3)
        assert columns == features
    names = ["weight_ih"] + ["bias_ih"] * module.bias + ["weight_c"] * module.recurrent
    assert [*module.state_dict()] == [
        f"{name}_l{i}" for i in range(module.num_layers) for name in names
    ]


def test_initialisation():
    module = SRU(300, 200, 2, bidirectional=True, recurrent=True)
    for name, p in module.named_parameters():
        if name.startswith("bias"):
            assert not p.any()
        elif name.startswith("weight_c"):
            assert 0.95 * math.sqrt(1.5) < p.abs().max() <= math.sqrt(1.5)
        else:
            bound = math.sqrt(3 / p.shape[1])
            assert 0.99 * bound < p.abs().max() <= bound
    before = module.weight_ih_l1.clone()
    module.reset_parameters()
    assert not torch.equal(before, module.weight_ih_l1)


def test_products_are_not_copied():
    class Log(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    views = {"t", "transpose", "view", "_unsafe_view", "reshape", "unsqueeze", "detach", "expand"}
    for batch_first, bidirectional in itertools.product([False, True], [False, True]):
        module = SRU(4, 3, batch_first=batch_first, bidirectional=bidirectional)
        x = torch.randn(6, 5, 4, requires_grad=True)
        with Log() as log:
            y, _ = module(x)
        assert set(log.names) - views <= {"mm", "addmm", "cell"}, log.names
        weight = torch.ones_like(y)
        with Log() as log:
            y.backward(weight)
        assert set(log.names) - views <= {"mm", "cell_backward"}, log.names


# ---- Acceptance cases ----------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@by_kind
def test_d02_autocast(kind, autocast):
    module = layer(kind, dtype=torch.float32)
    x = leaf(2, 5, 4, dtype=torch.float32)
    for hx in (None, state(module, 2), state(module, 2).detach().to(autocast).requires_grad_()):
        with torch.autocast("cpu", autocast):
            y, h_n = run(module, x, hx)
        assert (y.dtype, h_n.dtype) == (autocast, torch.float32)
        args = [t for t in (x, hx, *module.parameters()) if t is not None]
        grads = gradients((y, h_n), args)
        assert [g.dtype for g in grads] == [t.dtype for t in args]
        assert all(g.isfinite().all() and g.any() for g in grads)
    exact, _ = run(module, x, None)
    y, _ = torch.autocast("cpu", autocast)(run)(module, x, None)
    torch.testing.assert_close(y.float(), exact, rtol=0.1, atol=0.1)


def test_d02_autocast_of_the_function():
    args = inputs({}, dtype=torch.float32)
    args[0] = args[0].detach().bfloat16().requires_grad_()
    with pytest.raises(TypeError, match=r"sru: f has dtype float32, expected bfloat16"):
        sru(*args)
    with torch.autocast("cpu", torch.bfloat16):
        h = sru(*args)
    assert h.dtype == torch.float32
    assert [g.dtype for g in gradients([h], args)] == [t.dtype for t in args]
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    with pytest.raises(TypeError, match="SRU: input has dtype float64, expected float32"):
        SRU(4, 3)(x)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=lambda d: str(d)[6:]
)
def test_d03_every_dtype(dtype):
    args = [t.detach().to(dtype) for t in inputs({}, dtype=torch.float64)]
    h, final = both(*args)
    want, want_final = both(*(t.double() for t in args))
    eps = torch.finfo(dtype).eps
    half = dtype in (torch.float16, torch.bfloat16)
    rtol = eps if half else 20 * eps
    torch.testing.assert_close(h, want.to(dtype), rtol=rtol, atol=rtol)
    torch.testing.assert_close(final, want_final.to(final.dtype), rtol=1e-5, atol=1e-5)
    module = layer("bidirectional", dtype=dtype)
    y, h_n = module(torch.randn(5, 2, 4, dtype=dtype))
    assert (y.dtype, h_n.dtype) == (dtype, torch.float32 if half else dtype)
    y.sum().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in module.parameters())
    with pytest.raises(TypeError, match="sru: u has dtype complex64, expected float16"):
        sru(*(torch.zeros(1, 2, 3, dtype=torch.complex64) for _ in range(3)))


@by_kind
def test_g03_final_state(kind):
    module = layer(kind)
    x, hx = leaf(2, 5, 4), state(module, 2)
    args = (x, hx, *module.parameters())
    ours, loop = run(module, x, hx)[1], module_loop(module, x, hx)[1]
    assert_gradients_match(gradients([ours], args), gradients([loop], args), **TOLERANCE)


@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize("kind", ["deep", "bidirectional", "batch first"])
def test_g04_dropout(kind, variational, monkeypatch):
    module = layer(kind, dropout=0.5, variational=variational)
    x, hx = leaf(2, 6, 4), state(module, 2)
    masks = []
    dropout = nn.functional.dropout

    def export(t, p=0.5, training=True, inplace=False):
        out = dropout(t, p, training, inplace)
        masks.append((out / t).detach())
        return out

    monkeypatch.setattr(nn.functional, "dropout", export)
    ours = run(module, x, hx)
    monkeypatch.undo()
    assert len(masks) == module.num_layers - 1
    for mask in masks:
        assert set(mask.unique().tolist()) == {0.0, 2.0}
    if variational:
        masks = [mask.unsqueeze(1) for mask in masks]
    else:
        masks = [mask if module.batch_first else mask.transpose(0, 1) for mask in masks]
        assert not torch.equal(masks[0][:, 0], masks[0][:, 1])
    loop = module_loop(module, x, hx, masks=masks)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    args = (x, hx, *module.parameters())
    assert_gradients_match(gradients(ours, args), gradients(loop, args), **TOLERANCE)
    # Same seed, same numbers; none in evaluation.
    outputs = [torch.manual_seed(1) and run(module, x, hx)[0] for _ in range(2)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)
    module.eval()
    torch.testing.assert_close(run(module, x, hx), module_loop(module, x, hx), **TOLERANCE)


@pytest.mark.parametrize("variational", [False, True])
def test_g04_dropout_of_nothing_and_of_all(variational):
    x = torch.randn(6, 2, 4, dtype=torch.float64)
    module = layer("deep", dropout=0.0, variational=variational)
    torch.testing.assert_close(module(x), module.eval()(x), rtol=0, atol=0)
    module = layer("deep", dropout=1.0, variational=variational)
    y, _ = module(x)
    zeros = module_loop(module, x.transpose(0, 1), masks=[0, 0])[0].transpose(0, 1)
    torch.testing.assert_close(y, zeros, **TOLERANCE)


def test_g04_variational_dropout_of_packed_sequences():
    module = layer(num_layers=2, dropout=0.5, variational=True, highway="none")
    module.weight_ih_l1.data.copy_(torch.eye(9, 3).repeat(1, 1))
    x, offsets = torch.randn(1, 4, dtype=torch.float64).repeat(6, 1), torch.tensor([0, 2, 2, 6])
    torch.manual_seed(2)
    module(x, cu_seqlens=offsets)
    torch.manual_seed(2)
    mask = nn.functional.dropout(torch.ones(3, 3, dtype=torch.float64), 0.5)
    torch.manual_seed(2)
    y, _ = module(x, cu_seqlens=offsets)
    rows = mask[[0, 0, 2, 2, 2, 2]]
    want, _ = module_loop(module, x[None], cu_seqlens=offsets, masks=[rows])
    torch.testing.assert_close(y, want[0], **TOLERANCE)


def test_g05_backward_twice_and_eval():
    module = layer("deep")
    x = leaf(5, 2, 4)
    y, h_n = module(x)
    args = [x, *module.parameters()]
    once = torch.autograd.grad(y.sum() + h_n.sum(), args, retain_graph=True)
    twice = torch.autograd.grad(y.sum() + h_n.sum(), args, retain_graph=True)
    torch.testing.assert_close(once, twice, rtol=0, atol=0)
    (y.sum()).backward(retain_graph=True)
    (h_n.sum()).backward()
    assert_gradients_match([t.grad for t in args], once)
    module.eval()
    y, h_n = module(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum() + h_n.sum(), args), once, rtol=0, atol=0)


def test_g10_edits_between_forward_and_backward_are_noticed():
    args = [t * 1 for t in inputs({})]
    for i in (0, 1, 3, 6):
        h = sru(*args)
        with torch.no_grad():
            args[i].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            h.sum().backward(retain_graph=True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_g10_checkpointing(reentrant):
    module, x = layer("bidirectional"), leaf(5, 2, 4)
    kept = checkpoint(lambda x: module(x)[0], x, use_reentrant=reentrant)
    kept.square().sum().backward()
    ours = [x.grad, *(p.grad for p in module.parameters())]
    theirs = torch.autograd.grad(module(x)[0].square().sum(), [x, *module.parameters()])
    assert_gradients_match(ours, theirs, rtol=0, atol=0)


def test_m02_meta_and_mixed_devices():
    y, h_n = SRU(4, 3, device="meta")(torch.randn(5, 2, 4, device="meta"))
    assert (y.device.type, y.shape, h_n.shape) == ("meta", (5, 2, 3), (1, 2, 3))
    with pytest.raises(ValueError, match="SRU: hx is on device meta, expected cpu"):
        SRU(4, 3)(torch.randn(5, 2, 4), torch.zeros(1, 2, 3, device="meta"))


@pytest.fixture
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
def test_m06_same_bits_every_time_and_in_every_batch(threads):
    args = inputs({}, 32, torch.float32)
    args[:4] = [leaf(8, 777, 32, dtype=torch.float32) for _ in range(4)]
    args[6] = leaf(8, 32, dtype=torch.float32)

    def everything(*args):
        ours = both(*args)
        return (*ours, *gradients(ours, args))

    first = everything(*args)
    for n in (1, 2, 3):
        threads(n)
        torch.testing.assert_close(everything(*args), first, rtol=0, atol=0)
    row = [t[3:4] for t in args[:4]] + args[4:6] + [args[6][3:4]]
    torch.testing.assert_close(sru(*row)[0], first[0][3], rtol=0, atol=0)


@pytest.mark.parametrize("side", ["right", "left"])
@by_kind
def test_n10_padding(side, kind):
    module = layer(kind)
    lengths, T = [8, 3, 1, 0], 8
    t, n = torch.arange(T), torch.tensor(lengths)[:, None]
    valid = t < n if side == "right" else t >= T - n
    x = torch.where(valid[..., None], torch.randn(4, T, 4), torch.nan).double().requires_grad_()
    hx = state(module, 4)
    y, h_n = run(module, x, hx, lengths=lengths, padding_side=side)
    assert not y[~valid].any()
    for b in range(4):
        row = x[b : b + 1, valid[b]]
        alone, last = run(module, row, hx[:, b : b + 1])
        torch.testing.assert_close(y[b, valid[b]], alone[0])
        torch.testing.assert_close(h_n[:, b], last[:, 0])
    u = torch.where(valid[..., None], torch.randn(4, T, 3), torch.nan).double().requires_grad_()
    h = sru(u, u, u, u, lengths=lengths, padding_side=side)
    (du,) = torch.autograd.grad(h.sum(), u)
    assert not du[~valid].any()
    assert du.isfinite().all()


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


@pytest.mark.parametrize("shape", [(2, 0, 4), (0, 5, 4), (0, 0, 4)])
@by_kind
def test_s03_empty_axes(shape, kind):
    module = layer(kind)
    x, hx = leaf(*shape), state(module, shape[0])
    y, h_n = run(module, x, hx)
    assert y.shape[:2] == shape[:2]
    torch.testing.assert_close(h_n, hx)
    grads = torch.autograd.grad(y.sum() + 2 * h_n.sum(), (x, hx, *module.parameters()))
    torch.testing.assert_close(grads[1], torch.full_like(hx, 2))
    for g, t in zip(grads, (x, hx, *module.parameters()), strict=True):
        assert g.shape == t.shape
    assert not any(g.any() for g in grads[2:])


def test_s07_any_strides():
    want = None
    base = [torch.randn(4, 6, 5, dtype=torch.float64) for _ in range(4)]
    for order in itertools.permutations(range(3)):
        inverse = np.argsort(order).tolist()
        args = [t.permute(order).contiguous().permute(inverse).requires_grad_() for t in base]
        h = sru(*args)
        assert h.stride() == args[0].stride()
        result = [h, *gradients([h], args)]
        want = want or result
        torch.testing.assert_close(result, want)
    module = layer("bidirectional")
    x = torch.randn(6, 2, 8, dtype=torch.float64)
    for view in (x[..., ::2], x[..., 4:], x.permute(1, 0, 2)[..., :4], x.flip(0)[..., 1:5]):
        torch.testing.assert_close(module(view), module(view.contiguous()))


@pytest.mark.parametrize(
    ("x", "keywords", "message"),
    [
        ((3, 5, 2), {}, r"input has shape \(3, 5, 2\), expected 4 features"),
        ((3, 5, 2, 4), {}, "input has 4 axes, expected 2 or 3"),
        ((5, 2, 4), {"hx": (2, 3)}, r"hx has shape \(2, 3\), expected \(2, 2, 3\)"),
        ((5, 2, 4), {"hx": (2, 3, 3)}, r"hx has shape \(2, 3, 3\), expected \(2, 2, 3\)"),
        ((5, 2, 4), {"hx": (2, 2, 4)}, r"hx has shape \(2, 2, 4\), expected \(2, 2, 3\)"),
        ((5, 4), {"hx": (2, 1, 3)}, r"hx has shape \(2, 1, 3\), expected \(2, 3\)"),
        ((5, 2, 4), {"lengths": [5]}, r"lengths has shape \(1,\), expected \(2,\)"),
        ((5, 2, 4), {"lengths": [5, 6]}, "lengths"),
        ((5, 2, 4), {"reset": [[0] * 5] * 2}, r"reset has shape \(2, 5\), expected \(5, 2\)"),
        ((5, 2, 4), {"cu_seqlens": [0, 5]}, "the batch size is 2, expected 1 with cu_seqlens"),
        ((5, 4), {"cu_seqlens": [0, 4]}, "cu_seqlens"),
        ((5, 2, 4), {"padding_side": "up"}, "padding_side is 'up'"),
    ],
)
def test_s08_wrong_arguments(x, keywords, message):
    module = SRU(4, 3, 2)
    if "hx" in keywords:
        keywords = keywords | {"hx": torch.zeros(keywords["hx"])}
    with pytest.raises(ValueError, match=message):
        module(torch.randn(x), **keywords)


def test_s08_wrong_constructions():
    for keywords, message in [
        ({"hidden_size": 0}, "hidden_size is 0, expected at least 1"),
        ({"dropout": 1.5, "num_layers": 2}, "dropout is 1.5, expected a probability"),
        ({"activation": "gelu"}, "activation is 'gelu', expected 'identity', 'tanh'"),
        ({"highway": "identity"}, "highway is 'identity', expected 'auto'"),
    ]:
        with pytest.raises(ValueError, match=f"SRU: {message}"):
            SRU(**{"input_size": 4, "hidden_size": 3} | keywords)
    with pytest.warns(UserWarning, match="SRU: dropout follows all layers but the last"):
        SRU(4, 3, dropout=0.5)
    both_ways = SRU(4, 3, bidirectional=True)
    with pytest.raises(ValueError, match="SRU: reset was given to a bidirectional layer"):
        both_ways(torch.randn(5, 2, 4), reset=torch.zeros(5, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="SRU: a bidirectional layer has no step"):
        both_ways.step(torch.randn(2, 4))
    u = torch.randn(2, 5, 3)
    with pytest.raises(ValueError, match=r"sru: f has shape \(2, 4, 3\), expected \(2, 5, 3\)"):
        sru(u, u[:, :4], u)
    with pytest.raises(ValueError, match=r"sru: bias_r has shape \(4,\), expected \(3,\)"):
        sru(u, u, u, bias_r=torch.zeros(4))


@by_causal_kind
def test_w01_state_carried_across_pieces(kind):
    module = layer(kind)
    x = leaf(2, 100, 4)
    cuts = [0, 1, 2, 40, 41, 99, 100]

    def pieces(cut):
        h, out = None, []
        for i, j in itertools.pairwise(cuts):
            y, h = run(module, x[:, i:j], h.detach() if cut and h is not None else h)
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
    padded, hx = leaf(4, 6, 4), state(module, 4)
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=as_sorted)
    y, h_n = module(packed, hx)
    assert isinstance(y, PackedSequence)
    y, n = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    assert n.tolist() == lengths
    want, want_n = run(module, padded, hx, lengths=lengths)
    torch.testing.assert_close((y, h_n), (want, want_n), **TOLERANCE)
    args = (padded, hx, *module.parameters())
    assert_gradients_match(gradients((y, h_n), args), gradients((want, want_n), args), **TOLERANCE)
    with pytest.raises(ValueError, match="SRU: lengths was given beside"):
        module(packed, lengths=lengths)


def test_w03_resets():
    module = layer("deep")
    flags = torch.zeros(8, 2, dtype=torch.bool)
    flags[3, 0] = flags[5, 1] = flags[0, 1] = True
    x, hx = torch.randn(8, 2, 4, dtype=torch.float64), state(module, 2)
    for reset in (flags, flags.to(torch.uint8), flags.double(), flags.numpy()):
        y, _ = module(x, hx, reset=reset)
        torch.testing.assert_close(y[:3, :1], module(x[:3, :1], hx[:, :1])[0])
        torch.testing.assert_close(y[3:, :1], module(x[3:, :1])[0])
        torch.testing.assert_close(y[:5, 1:], module(x[:5, 1:])[0])
        torch.testing.assert_close(y[5:, 1:], module(x[5:, 1:])[0])


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.05)]
)
@by_causal_kind
def test_w05_steps_equal_the_sequence(kind, dtype, atol):
    module = layer(kind, dtype=dtype)
    x = torch.randn(2, 200, 4).to(dtype)
    want, last = run(module, x)
    for prefill in (0, 100) if dtype != torch.bfloat16 else (170,):
        y, h = run(module, x[:, :prefill])
        out = [y]
        for t in range(prefill, 200):
            step, h = module.step(x[:, t], h)
            out.append(step[:, None])
        torch.testing.assert_close(torch.cat(out, 1), want, rtol=0, atol=atol)
        torch.testing.assert_close(h, last, rtol=0, atol=atol)
    torch.testing.assert_close(module.step(x[:, 0]), module.step(x[:, 0]), rtol=0, atol=0)
    step, h = module.step(x[0, 0])
    assert step.shape == want.shape[2:]
    assert h.shape == last[:, 0].shape


# ---- The SRU package's weights -------------------------------------------------------------------


def package_state(layers, features, D, directions, *, scale=1.0, factor=None, recurrent=False):
    """A state dict as the SRU package's modules have it."""
    state = {}
    for i in range(layers):
        n, out = (features if i == 0 else D * directions), D * directions
        k = 3 if n == out else 4
        inner = n if factor is None else factor
        if factor is not None:
            state[f"rnn_lst.{i}.weight_proj"] = torch.randn(n, factor, dtype=torch.float64)
        state |= {
            f"rnn_lst.{i}.weight": torch.randn(inner, out * k, dtype=torch.float64),
            f"rnn_lst.{i}.weight_c": recurrent * torch.randn(2 * out, dtype=torch.float64),
            f"rnn_lst.{i}.bias": torch.randn(2 * out, dtype=torch.float64),
            f"rnn_lst.{i}.scale_x": torch.tensor([scale]),
        }
    return state


def package_forward(state, x, layers, D, directions, *, tanh=False, skip=True):
    """The equations of Lei et al., section 2, on weights in the package's layout; x (T, B, n)."""
    T, B, _ = x.shape
    finals = []
    for i in range(layers):
        weight = state[f"rnn_lst.{i}.weight"]
        if f"rnn_lst.{i}.weight_proj" in state:
            weight = state[f"rnn_lst.{i}.weight_proj"] @ weight
        products = (x @ weight).view(T, B, directions, D, -1)
        highway = (
            products[..., 3]
            if products.shape[-1] == 4
            else x.view(T, B, directions, D) * state[f"rnn_lst.{i}.scale_x"]
        )
        bias = state[f"rnn_lst.{i}.bias"].view(2, directions, D)
        v = state[f"rnn_lst.{i}.weight_c"].view(2, directions, D)
        h, last = torch.zeros(T, B, directions, D, dtype=x.dtype), []
        for d in range(directions):
            c = x.new_zeros(B, D)
            for t in range(T)[:: 1 if d == 0 else -1]:
                u, f, r = products[t, :, d].unbind(-1)[:3]
                f = torch.sigmoid(f + v[0, d] * c + bias[0, d])
                r = torch.sigmoid(r + v[1, d] * c + bias[1, d])
                c = f * c + (1 - f) * u
                g = c.tanh() if tanh else c
                h[t, :, d] = r * g + ((1 - r) * highway[t, :, d] if skip else 0)
            last.append(c)
        x = h.view(T, B, -1)
        finals += last
    return x, torch.stack(finals)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("scale", "factor"), [(1.0, None), (3**0.5, 2)])
def test_package_weights(directions, scale, factor, recurrent):
    D, features = 4, 4 * directions if factor else 6
    state = package_state(
        3, features, D, directions, scale=scale, factor=factor, recurrent=recurrent
    )
    module = SRU(
        features, D, 3, bidirectional=directions == 2, activation="tanh", dtype=torch.float64,
        recurrent=recurrent,
    )  # fmt: skip
    load_sru_package_weights(module, state)
    x = torch.randn(7, 2, features, dtype=torch.float64)
    want = package_forward(state, x, 3, D, directions, tanh=True)
    torch.testing.assert_close(module(x), want, rtol=1e-6 if scale != 1 else 1e-12, atol=1e-6)


def test_package_cell_without_a_highway():
    state = {
        name.removeprefix("rnn_lst.0."): value for name, value in package_state(1, 4, 4, 1).items()
    }
    module = SRU(4, 4, highway="none", dtype=torch.float64)
    load_sru_package_weights(module, state)
    x = torch.randn(7, 2, 4, dtype=torch.float64)
    stacked = {f"rnn_lst.0.{name}": value for name, value in state.items()}
    want = package_forward(stacked, x, 1, 4, 1, skip=False)
    torch.testing.assert_close(module(x), want)


def test_package_weights_that_do_not_fit():
    module = SRU(6, 4, 2, dtype=torch.float64)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    good = package_state(2, 6, 4, 1)

    def refuse(message, module=module, **changes):
        state = {k: v for k, v in (good | changes).items() if v is not None}
        with pytest.raises(ValueError, match=f"load_sru_package_weights: {message}"):
            load_sru_package_weights(module, state)

    refuse(
        r"rnn_lst\.1\.weight_c is not 0: .*recurrent=True", **{"rnn_lst.1.weight_c": torch.ones(8)}
    )
    refuse(r"rnn_lst\.0\.weight_c has shape \(3,\)", **{"rnn_lst.0.weight_c": torch.zeros(3)})
    refuse(r"state_dict has no rnn_lst\.1\.weight", **{"rnn_lst.1.weight": None})
    refuse(r"rnn_lst\.0\.bias has shape \(3,\)", **{"rnn_lst.0.bias": torch.zeros(3)})
    refuse(r"rnn_lst\.0\.weight has shape", **{"rnn_lst.0.weight": torch.zeros(6, 12)})
    refuse(r"state_dict has rnn_lst\.0\.layer_norm\.weight", **{
        "rnn_lst.0.layer_norm.weight": torch.ones(6)
    })  # fmt: skip
    refuse(r"state_dict has rnn_lst\.1\.", SRU(6, 4, dtype=torch.float64))
    refuse("module has no biases", SRU(6, 4, 2, bias=False, dtype=torch.float64))
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    recurrent = SRU(6, 4, 2, recurrent=True, dtype=torch.float64)
    without = {k: v for k, v in good.items() if not k.endswith("weight_c")}
    load_sru_package_weights(recurrent, without)  # missing means 0
    assert not recurrent.weight_c_l0.any()
    scales = package_state(3, 4, 4, 1)
    scales["rnn_lst.1.scale_x"] = torch.tensor([2.0])
    with pytest.raises(ValueError, match="scale_x differs between layers"):
        load_sru_package_weights(SRU(4, 4, 3, dtype=torch.float64), scales)
