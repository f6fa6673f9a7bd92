"""The fused SRU and its layer on the device: against the loop, and against the CPU backend."""

# ruff: noqa: E402
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reference
import scanrnn.torch as srt
from gpu_helpers import LAYOUTS, leaf, to_numpy, to_torch
from reference import REAL_DTYPES, accumulation, assert_matches, normal
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

B, T, D = 3, 400, 5
FLAGS = np.arange(B * T).reshape(B, T) % 67 == 11
ENDS = [0, 3, 4, 4, 260, 317, 400]
OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": [400, 0, 257]},
    "left-reverse": {"lengths": [0, 300, 400], "padding_side": "left", "reverse": True},
    "packed": {"cu_seqlens": ENDS},
    "packed-reverse-reset": {"cu_seqlens": ENDS, "reset": FLAGS[:1], "reverse": True},
    "reset": {"reset": FLAGS},
}
NAMES = ("u", "f", "r", "skip", "bias_f", "bias_r", "c0")


def make(rng, shape, N, dtype, absent=()):
    """Arguments by name."""
    wide = accumulation(dtype)
    arrays = {name: normal(rng, shape, dtype) for name in NAMES[:4]}
    arrays |= {"bias_f": normal(rng, shape[2:], wide), "bias_r": normal(rng, shape[2:], wide)}
    arrays["c0"] = normal(rng, (N, shape[2]), wide)
    return {name: None if name in absent else v for name, v in arrays.items()}


def run(arrays, dh, dfinal, device, arrange=lambda t: t, **options):
    """h, c_T and the gradients by name."""
    given = {n: to_torch(v, device) for n, v in arrays.items() if v is not None}
    given = {n: leaf(arrange(t) if t.ndim == 3 else t) for n, t in given.items()}
    for name in ("lengths", "cu_seqlens", "reset"):
        if name in options:
            options[name] = torch.as_tensor(options[name], device=device)
    outputs = srt.sru(*(given.get(name) for name in NAMES), return_final=True, **options)
    seeds = [arrange(to_torch(dh, device)), to_torch(dfinal, device)]
    gradients = torch.autograd.grad(outputs, list(given.values()), seeds)
    return *map(to_numpy, outputs), dict(zip(given, map(to_numpy, gradients), strict=True))


def assert_gradients(got, expected, dtype):
    for name, value in got.items():
        # Sums over all steps may cancel, and be rounded twice.
        sums = name.startswith("bias")
        assert_matches(
            value,
            expected[name],
            units=4,
            rtol=1e-4 if sums and dtype.itemsize == 4 else 2e-3 if sums and dtype.itemsize == 2
            else 2e-5 if dtype.itemsize < 8 else None,
        )  # fmt: skip


@pytest.mark.parametrize("layout", ["btd", "bdt", "tbd", "channels-from-1"])
@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(device, rng, name, dtype, layout):
    options = OPTIONS[name]
    rows = 1 if "cu_seqlens" in options else B
    N = len(options.get("cu_seqlens", range(rows + 1))) - 1
    arrays = make(rng, (rows, T, D), N, dtype)
    dh = normal(rng, (rows, T, D), dtype)
    dfinal = normal(rng, (N, D), accumulation(dtype))
    activation = ("identity", "tanh", "relu")[len(name) % 3]
    h, final, gradients = run(
        arrays, dh, dfinal, device, LAYOUTS[layout], activation=activation, **options
    )
    expected, last = reference.sru(*arrays.values(), activation=activation, **options)
    assert_matches(h, expected, rtol=2e-5 if dtype.itemsize < 8 else None)
    assert_matches(final, last, rtol=2e-5 if dtype.itemsize < 8 else None)
    wanted = reference.sru_vjp(*arrays.values(), dh, dfinal, activation=activation, **options)
    assert_gradients(gradients, wanted, dtype)


@pytest.mark.parametrize("absent", [("skip",), ("bias_f", "bias_r"), NAMES[3:], ("c0", "skip")])
def test_absent_arguments(device, rng, absent):
    arrays = make(rng, (B, T, D), B, np.dtype(np.float32), absent)
    dh, dfinal = normal(rng, (B, T, D), "f"), normal(rng, (B, D), "f")
    h, final, gradients = run(arrays, dh, dfinal, device)
    expected, last = reference.sru(*arrays.values())
    assert_matches(h, expected)
    assert_matches(final, last)
    wanted = reference.sru_vjp(*arrays.values(), dh, dfinal)
    assert_gradients(gradients, wanted, np.dtype(np.float32))


@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize("bias", [3.0, -20.0])
def test_n09_lengths_around_tiles_with_biased_gates(device, rng, bias, layout):
    """What a thread beyond the end computes from padding must not count."""
    longest = 20_000
    arrays = make(rng, (1, longest, 3), 1, np.dtype(np.float32))
    arrays["bias_f"] = arrays["bias_r"] = np.full(3, bias, np.float32)
    dh, dfinal = normal(rng, (1, longest, 3), "f"), normal(rng, (1, 3), "f")
    for steps in (1, 31, 33, 100, 129, 255, 256, 257, 1000, 2047, 2048, 2049, 16385, longest):
        part = {n: v[:, :steps] if v.ndim == 3 else v for n, v in arrays.items()}
        h, final, gradients = run(part, dh[:, :steps], dfinal, device, LAYOUTS[layout])
        wide = {n: v.astype(np.float64) for n, v in part.items()}
        # The CPU backend in double precision, which its own tests compare with the loop.
        expected, last, wanted = run(wide, dh[:, :steps].astype("d"), dfinal.astype("d"), "cpu")
        assert_matches(h, expected)
        assert_matches(final, last)
        assert_gradients(gradients, wanted, np.dtype(np.float32))


@pytest.mark.parametrize("shape", [(2, 5000, 40), (1, 70_001, 2), (16, 300, 130), (700, 9, 8)])
@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
def test_g11_gradients_as_on_the_cpu(device, rng, shape, dtype):
    arrays = make(rng, shape, shape[0], dtype)
    dh, dfinal = normal(rng, shape, dtype), normal(rng, shape[::2], accumulation(dtype))
    h, final, gradients = run(arrays, dh, dfinal, device, activation="tanh")
    wide = {n: v.astype(np.float64) for n, v in arrays.items()}
    expected, last, wanted = run(wide, dh.astype("d"), dfinal.astype("d"), "cpu", activation="tanh")
    assert_matches(h, expected, rtol=2e-5 if dtype.itemsize < 8 else None)
    assert_matches(final, last, rtol=2e-5 if dtype.itemsize < 8 else None)
    assert_gradients(gradients, wanted, dtype)
    assert all(value.any() for value in gradients.values())


def test_s03_empty_axes(device):
    for shape in [(2, 0, 3), (0, 5, 3), (2, 5, 0)]:
        u = torch.ones(shape, device=device, requires_grad=True)
        bias = torch.ones(shape[2], device=device, requires_grad=True)
        c0 = torch.ones(shape[0], shape[2], device=device, requires_grad=True)
        h, final = srt.sru(u, u, u, u, bias, bias, c0, return_final=True)
        assert h.shape == shape
        gradients = torch.autograd.grad(h.sum() + final.sum(), [u, bias, c0])
        assert not gradients[1].any()
        if shape[1] == 0:
            assert torch.equal(final, c0)
            assert (gradients[2] == 1).all()
    layer = srt.SRU(3, 4, batch_first=True, device=device)
    y, _ = layer(torch.ones(2, 0, 3, device=device))
    y.sum().backward()
    assert not layer.weight_ih_l0.grad.any()
    assert layer(torch.ones(2, 5, 3, device=device))[0].isfinite().all()


# ---- The layer -----------------------------------------------------------------------------------


def twins(device, *args, **options):
    """A layer in double precision on the CPU, and its copy on the device."""
    torch.manual_seed(0)
    one = srt.SRU(*args, **options).double()
    for p in one.parameters():
        torch.nn.init.normal_(p, std=0.3)
    other = srt.SRU(*args, **options).double()
    other.load_state_dict(one.state_dict())
    return one, other.to(device)


LAYERS = {
    "plain": {},
    "deep": {"num_layers": 3, "batch_first": True},
    "bidirectional": {"num_layers": 2, "bidirectional": True, "activation": "tanh"},
    "input as highway": {"num_layers": 2, "highway_scale": 1.5},
    "no bias": {"bias": False, "highway": "none", "activation": "relu"},
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(device, name):
    features = 12 if name == "input as highway" else 7
    one, other = twins(device, features, 12, **LAYERS[name])
    x = torch.randn(40, 50, features, dtype=torch.float64)
    hx = torch.randn(
        one.num_layers * (2 if one.bidirectional else 1), 40 if one.batch_first else 50, 12,
        dtype=torch.float64,
    )  # fmt: skip
    results = []
    for layer, place in ((one, "cpu"), (other, device)):
        inputs = [leaf(t.to(place)) for t in (x, hx)]
        y, h_n = layer(*inputs)
        weights = [*inputs, *layer.parameters()]
        results.append((y, h_n, *torch.autograd.grad(y.square().sum() + h_n.sum(), weights)))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_w02_packed_sequences(device, enforce_sorted, bidirectional):
    one, other = twins(device, 6, 8, num_layers=2, bidirectional=bidirectional)
    lengths = [40, 17, 17, 3, 1] if enforce_sorted else [3, 40, 1, 17, 17]
    x = torch.randn(40, 5, 6, dtype=torch.float64)
    hx = torch.randn(2 * (1 + bidirectional), 5, 8, dtype=torch.float64)
    results = []
    for layer, place in ((one, "cpu"), (other, device)):
        inputs = [leaf(t.to(place)) for t in (x, hx)]
        packed = pack_padded_sequence(inputs[0], lengths, enforce_sorted=enforce_sorted)
        y, h_n = layer(packed, inputs[1])
        assert y.data.device.type == place
        padded, _ = pad_packed_sequence(y)
        loss = padded.square().sum() + h_n.sum()
        results.append((padded, h_n, *torch.autograd.grad(loss, [*inputs, *layer.parameters()])))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got.cpu(), expected)
    for n, length in enumerate(lengths):  # and each sequence alone
        y, h_n = one(x[:length, n : n + 1], hx[:, n : n + 1])
        torch.testing.assert_close(results[1][0][:length, n : n + 1].cpu(), y)
        torch.testing.assert_close(results[1][1][:, n : n + 1].cpu(), h_n)


def test_w05_steps_give_what_the_sequence_gives(device):
    layer = srt.SRU(6, 8, num_layers=2, device=device)
    x = torch.randn(200, 3, 6, device=device)
    with torch.no_grad():
        y, h_n = layer(x)
        prefix, state = layer(x[:100])
        outputs = [prefix]
        for t in range(100, 200):
            step, state = layer.step(x[t], state)
            outputs.append(step[None])
    torch.testing.assert_close(torch.cat(outputs), y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, h_n, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_d02_autocast(cuda, dtype):
    layer = srt.SRU(6, 8, num_layers=2, device=cuda)
    x = torch.randn(50, 3, 6, device=cuda)
    for hx in (None, torch.randn(2, 3, 8, device=cuda)):
        with torch.autocast("cuda", dtype):
            y, h_n = layer(x, hx)
        assert (y.dtype, h_n.dtype) == (dtype, torch.float32)
        y.float().sum().backward()
        for p in layer.parameters():
            assert p.grad.dtype == torch.float32
            assert p.grad.any()
        torch.testing.assert_close(y.float(), layer(x, hx)[0], rtol=0.05, atol=0.05)


def test_variational_dropout_of_packed_sequences(device):
    layer = srt.SRU(6, 8, num_layers=2, dropout=0.5, variational=True, device=device)
    x = torch.randn(60, 6, device=device)
    offsets = torch.tensor([0, 20, 20, 60], device=device)
    y, h_n = layer(x, cu_seqlens=offsets)
    assert y.shape == (60, 8)
    assert h_n.shape == (2, 3, 8)
