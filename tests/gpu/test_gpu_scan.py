"""`scan` on the device against serial loops in double precision: values and gradients."""

# ruff: noqa: E402
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reference
import scanrnn.torch as srt
from gpu_helpers import (
    LAYOUTS,
    TORCH_DTYPES,
    previous,
    scan_and_gradients,
    serial_adjoint,
    serial_scan,
    to_numpy,
    to_torch,
)
from reference import DTYPES, accumulation, assert_matches, gates, normal

# Around every border of tiles (256 steps) and of the merge tree's levels (8 nodes), and others.
LENGTHS = [
    *range(1, 71),
    *(n + d for n in (128, 256, 512, 1024, 2048, 4096, 16384) for d in (-1, 0, 1)),
    1000, 4095 * 2, 65535, 65537, 100003, 131071, 131072, 131073,
]  # fmt: skip


def scan(a, x, *rest, **options):
    return tuple(to_numpy(t) for t in srt.scan(a, x, *rest, return_final=True, **options))


@pytest.mark.parametrize(
    ("dtype", "D", "layout"),
    [
        *itertools.product(["float32"], [1, 3, 40], ["btd", "bdt"]),
        ("float32", 8, "tbd"),
        *itertools.product(["float16", "bfloat16", "float64", "complex64", "complex128"], [5],
                           ["btd", "bdt"]),
    ],
)  # fmt: skip
def test_s01_every_length(device, rng, dtype, D, layout):
    """Forward on the first T steps, whose states are the first of the longest run's.

    Backward on the last T, where the same holds of the gradient.
    """
    dtype = next(d for d in DTYPES if d.name == dtype)
    B, longest = 2, max(LENGTHS)
    a, x, dh = (
        gates(rng, (B, longest, D), dtype, 0.5),
        normal(rng, (B, longest, D), dtype),
        normal(rng, (B, longest, D), dtype),
    )
    h, _ = serial_scan(a, x)
    g, _ = serial_adjoint(a, dh)
    a_, x_, dh_ = (to_torch(v, device) for v in (a, x, dh))
    arrange = LAYOUTS[layout]
    for T in LENGTHS:
        got, final = scan(arrange(a_[:, :T]), arrange(x_[:, :T]))
        assert_matches(got, h[:, :T])
        assert_matches(final, h[:, T - 1])
        part = slice(longest - T, None)
        inputs = [arrange(v[:, part]) for v in (a_, x_, dh_)]
        states, _, da, dx, _ = scan_and_gradients(*inputs[:2], None, inputs[2], None)
        assert_matches(to_numpy(dx), g[:, part])
        assert_matches(to_numpy(da), g[:, part] * previous(to_numpy(states)).conj())


@pytest.mark.parametrize("T", [1048575, 1048576, 1048577])
@pytest.mark.parametrize(("D", "layout"), [(1, "btd"), (2, "bdt")])
def test_s01_one_more_level_of_the_tree(device, rng, T, D, layout):
    a, x, dh = (v.astype(np.float32) for v in rng.uniform(-0.9, 0.9, (3, 1, T, D)))
    inputs = [LAYOUTS[layout](to_torch(v, device)) for v in (a, x)]
    states, final, da, dx, _ = map_numpy(
        scan_and_gradients(*inputs, None, to_torch(dh, device), None)
    )
    # The CPU backend in double precision, which its own tests compare with the loop.
    wide = [torch.from_numpy(v.astype(np.float64)) for v in (a, x, dh)]
    h, last, _, g, _ = map_numpy(scan_and_gradients(*wide[:2], None, wide[2], None))
    assert_matches(states, h)
    assert_matches(final, last)
    assert_matches(dx, g)
    assert_matches(da, g * previous(states))


def map_numpy(tensors):
    return [None if t is None else to_numpy(t) for t in tensors]


# ---- Options -------------------------------------------------------------------------------------

B, T = 3, 700
FLAGS = np.arange(B * T).reshape(B, T) % 97 == 11
ENDS = [0, 3, 4, 4, 260, 517, 700]
OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": [700, 0, 257]},
    "left": {"lengths": [1, 700, 511], "padding_side": "left"},
    "left-reverse": {"lengths": [0, 300, 700], "padding_side": "left", "reverse": True},
    "packed": {"cu_seqlens": ENDS},
    "packed-reverse": {"cu_seqlens": ENDS, "reverse": True},
    "reset": {"reset": FLAGS},
    "reset-reverse": {"reset": FLAGS, "reverse": True},
    "packed-reset": {"cu_seqlens": ENDS, "reset": FLAGS[:1]},
    "left-reset": {"lengths": [650, 10, 700], "padding_side": "left", "reset": FLAGS},
}


def on_device(options, device):
    return {
        k: torch.as_tensor(v, device=device) if k in ("lengths", "cu_seqlens", "reset") else v
        for k, v in options.items()
    }


@pytest.mark.parametrize("layout", ["btd", "bdt", "tbd", "channels-from-1"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(device, rng, name, dtype, layout):
    """h0, final states and every way to say where sequences are; all gradients."""
    options = OPTIONS[name]
    rows = 1 if "cu_seqlens" in options else B
    N, D = len(options.get("cu_seqlens", range(rows + 1))) - 1, 6
    shape, state = (rows, T, D), (N, D)
    a = gates(rng, shape, dtype)
    a[rng.random(shape) < 0.1] = 0
    x, dh = normal(rng, shape, dtype), normal(rng, shape, dtype)
    h0, dfinal = normal(rng, state, accumulation(dtype)), normal(rng, state, accumulation(dtype))
    arrays = [LAYOUTS[layout](to_torch(v, device)) for v in (a, x, dh)]
    states = [to_torch(v, device) for v in (h0, dfinal)]
    h, final, da, dx, dh0 = map_numpy(
        scan_and_gradients(
            *arrays[:2], states[0], arrays[2], states[1], **on_device(options, device)
        )
    )
    expected, last = reference.scan(a, x, h0, **options)
    assert_matches(h, expected)
    assert_matches(final, last)
    wanted = reference.scan_vjp(a, x, h0, dh, dfinal, h=h, **options)
    for got, value in zip((da, dx, dh0), wanted, strict=True):
        assert_matches(got, value)


@pytest.mark.parametrize("layout", ["btd", "bdt"])
def test_one_long_sequence_among_short_ones(device, rng, layout):
    lengths = np.concatenate([rng.integers(0, 40, 500), [1 << 18], rng.integers(0, 40, 500)])
    ends = np.concatenate([[0], np.cumsum(lengths)])
    T, D = int(ends[-1]), 4
    a, x, dh = (v.astype(np.float32) for v in rng.uniform(-0.99, 0.99, (3, 1, T, D)))
    h0 = normal(rng, (len(lengths), D), np.float32)
    inputs = [LAYOUTS[layout](to_torch(v, device)) for v in (a, x)]
    ends_ = torch.as_tensor(ends, device=device)
    h, final, da, dx, dh0 = map_numpy(
        scan_and_gradients(
            *inputs, to_torch(h0, device), to_torch(dh, device), None, cu_seqlens=ends_
        )
    )
    wide = [torch.from_numpy(v.astype(np.float64)) for v in (a, x, h0, dh)]
    results = map_numpy(scan_and_gradients(*wide, None, cu_seqlens=torch.from_numpy(ends)))
    for got, value in zip((h, final, da, dx, dh0), results, strict=True):
        assert_matches(got, value)


@pytest.mark.parametrize("layout", ["btd", "bdt", "tbd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 5), (1, 2500, 1), (1, 2500, 5), (3, 1, 1), (3, 1, 5), (3, 2500, 1)]
)
def test_the_gradient_of_a_broadcast_gate_is_summed(device, rng, shape, dtype, layout):
    a = gates(rng, shape, dtype)
    x, dh = normal(rng, (3, 2500, 5), dtype), normal(rng, (3, 2500, 5), dtype)
    arrays = [LAYOUTS[layout](to_torch(v, device)) for v in (x, dh)]
    h, _, da, dx, _ = map_numpy(
        scan_and_gradients(to_torch(a, device), arrays[0], None, arrays[1], None)
    )
    g, _ = serial_adjoint(a, dh)
    assert_matches(h, serial_scan(a, x)[0])
    assert_matches(dx, g)
    products = g * previous(h).conj()
    # Terms of both signs cancel: the error counts against their magnitudes.
    expected, scale = (reference.sum_to(v, shape) for v in (products, np.abs(products)))
    epsilon = np.finfo(accumulation(dtype)).eps
    rounding = np.abs(expected) * (np.finfo(np.float16).eps * 8 if dtype.itemsize == 2 else 0)
    assert da.shape == shape
    assert (np.abs(reference.double(da) - expected) <= 200 * epsilon * scale + rounding).all()


@pytest.mark.parametrize("D", range(1, 10))
def test_s07_layouts(device, rng, D):
    """Every layout of every array gives what dense arrays give, to rounding."""
    B, T = 2, 300
    a, x, h0 = (
        gates(rng, (B, T, D), np.float32),
        normal(rng, (B, T, D), np.float32),
        normal(rng, (B, D), np.float32),
    )
    dh = normal(rng, (B, T, D), np.float32)
    expected, _ = serial_scan(a, x, h0)
    g, first = serial_adjoint(a, dh)
    a_, x_, h0_, dh_ = (to_torch(v, device) for v in (a, x, h0, dh))
    for (i, one), (j, other) in itertools.product(enumerate(LAYOUTS.values()), repeat=2):
        if (i + 2 * j + D) % 5:  # a fifth of the pairs for each D
            continue
        h, _, da, dx, dh0 = map_numpy(
            scan_and_gradients(one(a_), other(x_), h0_.T.contiguous().T, one(dh_), None)
        )
        assert_matches(h, expected)
        assert_matches(dx, g)
        assert_matches(da, g * previous(h, h0))
        assert_matches(dh0, first)


def test_s07_meaningless_and_zero_strides(device, rng):
    T = 1000
    a, x = gates(rng, (1, T, 1), np.float32), normal(rng, (1, T, 1), np.float32)
    expected, _ = serial_scan(a, x)
    a_, x_ = (torch.as_strided(to_torch(v, device).flatten(), (1, T, 1), (0, 1, 7)) for v in (a, x))
    assert_matches(scan(a_, x_)[0], expected)
    wide = to_torch(normal(rng, (1, T, 6), np.float32), device)
    h = to_numpy(srt.scan(a_, wide.expand(4, T, 6)))
    assert h.shape == (4, T, 6)
    assert_matches(h[3:], serial_scan(a, to_numpy(wide))[0])
    steps = to_torch(normal(rng, (2, 1, 6), np.float32), device).expand(2, T, 6)
    assert_matches(to_numpy(srt.scan(a_, steps)), serial_scan(a, to_numpy(steps))[0])


def test_s03_empty_axes_and_a_call_after(device):
    for shape in [(2, 0, 3), (0, 5, 3), (2, 5, 0)]:
        x = torch.ones(shape, device=device)
        h0 = torch.full((shape[0], shape[2]), 2.0, device=device, requires_grad=True)
        a = torch.full_like(x, 0.5).requires_grad_()
        h, final = srt.scan(a, x, h0, return_final=True)
        assert h.shape == shape
        seed = torch.full_like(final, 3.0)
        da, dh0 = torch.autograd.grad([h, final], [a, h0], [torch.ones_like(h), seed])
        assert da.shape == shape
        if shape[1] == 0:
            assert torch.equal(final, h0)
            assert torch.equal(dh0, seed)
        one = torch.ones(2, 5, 3, device=device)
        assert srt.scan(one, one)[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    broadcast = torch.full((1, 1, 3), 0.5, device=device, requires_grad=True)
    h = srt.scan(broadcast, torch.ones(2, 0, 3, device=device))
    (da,) = torch.autograd.grad(h, broadcast, torch.ones_like(h))
    assert da.flatten().tolist() == [0, 0, 0]


# ---- Numerics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 5])
def test_n01_gates_that_are_exactly_zero(device, rng, dtype, channels):
    def column(values):
        return (
            torch.tensor(values, dtype=dtype, device=device).view(1, -1, 1).repeat(1, 1, channels)
        )

    h0 = torch.full((1, channels), 10.0, dtype=dtype, device=device)
    x, ones = column([1.0, 2, 3, 4]), column([1.0, 1, 1, 1])
    h, _, da, dx, dh0 = scan_and_gradients(column([0.5, 0, 2, -1]), x, h0, ones, None)
    assert torch.equal(h, column([6.0, 2, 7, -3]))
    assert torch.equal(da, column([10.0, 6, 0, 7]))
    assert torch.equal(dx, column([1.0, 1, 0, 1]))
    assert dh0.unique().tolist() == [0.5]

    shape = (3, 2570, 5)
    a = gates(rng, shape, np.float64)
    a[rng.random(shape) < 0.1] = 0
    a[1] = 0
    x, dh = normal(rng, shape, np.float64), normal(rng, shape, np.float64)
    inputs = [to_torch(v, device).to(dtype) for v in (a, x, dh)]
    h, _, da, dx, _ = map_numpy(scan_and_gradients(*inputs[:2], None, inputs[2], None))
    g, _ = serial_adjoint(*map_numpy((inputs[0], inputs[2])))
    assert_matches(h, serial_scan(*map_numpy(inputs[:2]))[0])
    assert_matches(dx, g)
    assert_matches(da, g * previous(h))


def test_n02_products_of_gates_underflow(device):
    T = 4096
    a = torch.full((1, T, 1), 0.5, device=device)
    one = torch.ones_like(a)
    h, _, _, dx, _ = map_numpy(scan_and_gradients(a, one, None, one, None))
    expected = 2 - 0.5 ** np.arange(T)
    assert h[0, 0, 0] == 1
    assert h[0, 1, 0] == 1.5
    assert h[0, -1, 0] == 2
    np.testing.assert_allclose(h[0, :, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(dx[0, ::-1, 0], expected, rtol=1e-6)

    alternating = np.where(np.arange(T) % 2, 1, 1e-20)
    for gate, T_ in ((1e-30, T), (0.999, 65536), (1e-45, T), (alternating, T)):
        a = np.broadcast_to(np.float32(gate), T_).reshape(1, T_, 1)
        x = np.ones_like(a)
        h, _, da, dx, _ = map_numpy(
            scan_and_gradients(*(to_torch(v, device) for v in (a, x)), None, to_torch(x, device),
                               None)
        )  # fmt: skip
        g, _ = serial_adjoint(a, x)
        assert_matches(h, serial_scan(a, x)[0], rtol=1e-4 if T_ > T else 1e-6)
        assert_matches(dx, g, rtol=1e-4 if T_ > T else 1e-6)
        assert_matches(da, g * previous(h), rtol=1e-4 if T_ > T else 1e-6)


@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize("T", [4096, 100_000])
def test_n07_half_precision_carries_its_state_in_single(device, T, layout):
    D = 8
    arrange = LAYOUTS[layout]
    a = arrange(torch.ones(1, T, D, dtype=torch.bfloat16, device=device))
    h, final, _, dx, _ = scan_and_gradients(a, a / 2, None, a / 2, None)
    assert final.dtype == torch.float32
    assert final.unique().tolist() == [T / 2]
    assert h[0, -1].unique().tolist() == [float(torch.tensor(T / 2).bfloat16())]
    assert dx[0, 0].unique().tolist() == [float(torch.tensor(T / 2).bfloat16())]

    half = T // 2
    x = torch.cat([torch.full((half,), 1000.0), torch.full((half,), -1000.0)]).half()
    x = arrange(x.view(1, -1, 1).repeat(1, 1, D).to(device))
    h, final = srt.scan(torch.ones_like(x), x, return_final=True)
    assert (final == 0).all()
    assert (h[0, -1] == 0).all()
    assert int(h[..., 0].isinf().sum()) == T - 131  # those of 66,000 and more


@pytest.mark.parametrize("layout", ["btd", "bdt"])
def test_n08_reverse(device, layout):
    def reverse(a, x):
        x = torch.tensor(x, device=device)
        rows = x.view(-1, x.shape[-1], 1)
        a = torch.tensor(a, device=device).expand(x.shape).reshape(rows.shape)
        return srt.scan(*map(LAYOUTS[layout], (a, rows)), reverse=True).view(x.shape)

    h = reverse(1.0, [1e8] * 32 + [1.0] * 32)
    assert h[32:].tolist() == list(range(32, 0, -1))
    h = reverse(1.0, [[float(i) for i in range(9)], [float(i) for i in range(9, 18)]])
    assert h.tolist() == [
        [36, 36, 35, 33, 30, 26, 21, 15, 8],
        [117, 108, 98, 87, 75, 62, 48, 33, 17],
    ]
    h = reverse([1, 1.5, 0.8, 2], [1, -1, 0.5, 2.0])
    torch.testing.assert_close(h.cpu(), torch.tensor([3.15, 2.15, 2.1, 2]))
    generator = torch.Generator(device).manual_seed(0)
    for T in [*range(1, 71), 255, 256, 257, 2049, 5000]:
        a, x = torch.randn(2, 2, T, 6, device=device, generator=generator)
        a, x = LAYOUTS[layout](a.tanh()), LAYOUTS[layout](x)
        got = srt.scan(a, x, reverse=True)
        turned = srt.scan(LAYOUTS[layout](a.flip(1)), LAYOUTS[layout](x.flip(1))).flip(1)
        torch.testing.assert_close(got, turned, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", ["btd", "bdt", "tbd"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_n10_nothing_leaks_into_other_rows(device, rng, poison, layout):
    B, T, D = 4, 640, 8
    arrange = LAYOUTS[layout]
    a, x = (to_torch(v, device) for v in (gates(rng, (B, T, D), "f"), normal(rng, (B, T, D), "f")))
    dh = to_torch(normal(rng, (B, T, D), "f"), device)
    clean = scan_and_gradients(arrange(a), arrange(x), None, arrange(dh), None)
    bad = x.clone()
    bad[2] = poison
    dirty = scan_and_gradients(arrange(a), arrange(bad), None, arrange(dh), None)
    for one, other in zip(clean[:4], dirty[:4], strict=True):
        assert torch.equal(one[[0, 1, 3]], other[[0, 1, 3]])

    lengths = torch.tensor([640, 10, 1, 330], device=device)
    for side, rows in itertools.product(("right", "left"), (slice(None), slice(3, 4))):
        t = torch.arange(T, device=device)
        n = lengths[rows, None]
        padding = (t >= n if side == "right" else t < T - n)[..., None]
        inputs = [arrange(v[rows].masked_fill(padding, poison)) for v in (a, x, dh)]
        h, final, da, dx, _ = scan_and_gradients(
            *inputs[:2], None, inputs[2], None, lengths=lengths[rows], padding_side=side
        )
        for v in (h, da, dx):
            assert (v.masked_select(padding) == 0).all()
        for b in range(len(n)):
            part = slice(0, int(n[b])) if side == "right" else slice(T - int(n[b]), None)
            alone = [v[rows][b : b + 1, part] for v in (a, x, dh)]
            expected = scan_and_gradients(*alone[:2], None, alone[2], None)
            for got, value in zip((h, final, da, dx), expected[:4], strict=True):
                got = got[b : b + 1, part] if got.ndim == 3 else got[b : b + 1]
                torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d03_every_dtype(device, rng, dtype):
    """16-bit floats are within 1 unit of the last place of the rounded result."""
    a, x = gates(rng, (2, 1000, 7), dtype), normal(rng, (2, 1000, 7), dtype)
    h, final = scan(*(to_torch(v, device) for v in (a, x)))
    expected, last = serial_scan(a, x)
    assert (h.dtype, final.dtype) == (dtype, accumulation(dtype))
    assert_matches(h, expected)
    assert_matches(final, last)


def test_unsupported_dtypes(device):
    for dtype in (torch.int32, torch.uint8, torch.bool, torch.float8_e4m3fn):
        x = torch.zeros(1, 2, 3, device=device).to(dtype)
        with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
            srt.scan(x, x)
    assert set(TORCH_DTYPES) == {dtype.name for dtype in DTYPES}


def test_p03_one_long_thin_sequence(device, rng):
    """The error of a sum is no larger than a serial loop's in single precision."""
    x = rng.uniform(0.008, 0.01, (1, 72192, 4)).astype(np.float32)
    h = to_numpy(srt.scan(1.0, to_torch(x, device)))
    exact = np.cumsum(x.astype(np.float64), 1)
    serial = np.cumsum(x, 1, dtype=np.float32)
    assert np.abs(h - exact).max() <= np.abs(serial - exact).max()


CONSTANT_GATES = (0.9, 0.99, 0.997, 0.999, 0.9993, 0.9997, 0.9999, 0.99993, 0.99996, 0.99999,
                  0.999999, 1.0, -0.9999)  # fmt: skip
PER_GATE = 5  # channels


@pytest.fixture(scope="module")
def constant_gates():
    """Gates (1, 1, D), inputs (1, T, D), and a serial loop's states in double and single precision.

    A gate and 3%, 6%, ... further away from 1, next to one another.
    """
    away = np.subtract.outer(1, np.abs(CONSTANT_GATES)) * (1 + 0.03 * np.arange(PER_GATE)[:, None])
    a = (np.sign(CONSTANT_GATES) * (1 - away)).T.astype(np.float32).reshape(1, 1, -1)
    x = np.random.default_rng(0).standard_normal((1, 65536 + 256, a.size), np.float32)
    exact, _ = serial_scan(a, x)
    serial = np.empty_like(x)
    state = np.zeros_like(x[0, 0])
    for t in range(x.shape[1]):
        state = a[0, 0] * state + x[0, t]
        serial[0, t] = state
    return a, x, exact, serial


@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize(
    ("T", "D", "has_reset"),
    [
        (65536, 64, False),  # clusters of blocks
        (65536 + 256, 64, False),  # whole tiles
        (65536, 64, True),  # any
        (65536 - 39, 65, False),  # rows that start anywhere
    ],
)
def test_roundings_of_constant_gates_do_not_add_up(device, constant_gates, T, D, has_reset, layout):
    """Every tile's gain is rounded alike, and still errors are within twice a serial loop's."""
    a, x, exact, serial = (v[:, :T, :D] for v in constant_gates)
    flipped = np.ascontiguousarray(x[:, ::-1])  # whose adjoints are the states, flipped
    gate, *inputs = (
        LAYOUTS[layout](to_torch(v, device)) for v in (np.broadcast_to(a, x.shape), x, flipped)
    )
    reset = torch.zeros(1, T, dtype=torch.bool, device=device) if has_reset else None
    h, _, _, dx, _ = scan_and_gradients(gate, inputs[0], None, inputs[1], None, reset=reset)
    for name, states in (("h", to_numpy(h)), ("dx", to_numpy(dx)[:, ::-1])):
        for i, value in enumerate(CONSTANT_GATES):
            channels = slice(PER_GATE * i, PER_GATE * (i + 1))
            error, allowed = (
                np.abs(v[..., channels] - exact[..., channels]).max() for v in (states, serial)
            )
            assert error <= 2 * allowed, (
                f"{name} at {value}: {error / allowed:.2f} times the loop's"
            )


# ---- Offsets beyond 32 bits ----------------------------------------------------------------------


def needs_memory(bytes_):
    if torch.cuda.mem_get_info()[0] < bytes_:
        pytest.skip(f"needs {bytes_ / 2**30:.0f} GiB of free device memory")


@pytest.fixture
def _memory():
    yield
    torch.cuda.empty_cache()


@pytest.mark.slow
@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((8, 65536, 4100), torch.bfloat16),
        ((4, 32768, 4100), torch.float32),
        (((1 << 23) + 5, 16, 16), torch.bfloat16),  # by one thread a channel
    ],
)
@pytest.mark.parametrize("layout", ["btd", "bdt"])
def test_s06_beyond_32_bits(cuda, shape, dtype, layout):
    """The last row of a large batch has the bits of that row alone, forward and backward."""
    B, T, D = shape
    needs_memory(7 * B * T * D * dtype.itemsize)
    generator = torch.Generator(cuda).manual_seed(0)

    def random(low, high):
        memory = (B, D, T) if layout == "bdt" else (B, T, D)
        t = torch.empty(memory, dtype=dtype, device=cuda).uniform_(low, high, generator=generator)
        return t.transpose(1, 2) if layout == "bdt" else t

    a, x = random(0.8, 1.0), random(-1.0, 1.0)
    many = scan_and_gradients(a, x, None, x, None)
    last = slice(B - 1, None)
    one = scan_and_gradients(a[last], x[last], None, x[last], None)
    for got, value in zip(many[:4], one[:4], strict=True):
        assert torch.equal(got[last], value)
    # And these bits are right: equal bits alone could be equally wrong.
    few = torch.arange(0, D, 997)
    row = [to_numpy(v[last][..., few.to(cuda)]) for v in (a, x)]
    assert_matches(to_numpy(one[0][..., few.to(cuda)]), serial_scan(*row)[0])
    assert_matches(to_numpy(one[3][..., few.to(cuda)]), serial_adjoint(*row)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("_memory")
def test_s06_few_elements_far_apart(cuda, rng):
    needs_memory(12 * 2**30)
    step = 1 << 20
    base = torch.zeros(2_200_000_000, dtype=torch.float32, device=cuda)
    x = base[::step].view(1, -1, 1)
    T = x.shape[1]
    assert (T - 1) * x.stride(1) > 2**31 - step
    values, a = normal(rng, (1, T, 1), np.float32), gates(rng, (1, T, 1), np.float32)
    x.copy_(to_torch(values, cuda))
    h, _, da, dx, _ = map_numpy(scan_and_gradients(to_torch(a, cuda), x, None, x, None))
    g, _ = serial_adjoint(a, values)
    assert_matches(h, serial_scan(a, values)[0])
    assert_matches(dx, g)
    assert_matches(da, g * previous(h))


@pytest.mark.slow
@pytest.mark.usefixtures("_memory")
def test_s06_more_than_2_31_steps(cuda):
    """One sequence of one channel, with one gate whose gradient is a sum over all steps."""
    T = 2**31 + 12_345
    needs_memory(24 * 2**30)
    x = torch.empty(1, T, 1, dtype=torch.bfloat16, device=cuda)
    x.uniform_(0, 1, generator=torch.Generator(cuda).manual_seed(0))
    gate = torch.full((1, 1, 1), 0.5, dtype=x.dtype, device=cuda)
    h, final, da, dx, _ = scan_and_gradients(gate, x, None, x, None)
    # A gate of a half forgets: 100 steps before (or, backwards, after) a piece are enough.
    far, size = 100, 5000
    for begin in (0, 2**30, 2**31 - size // 2, T - size):
        end, warm, cool = begin + size, max(0, begin - far), min(T, begin + size + far)
        piece = srt.scan(gate, x[:, warm:end])[:, begin - warm :]
        torch.testing.assert_close(h[:, begin:end], piece, rtol=2**-7, atol=1e-3)
        piece = srt.scan(gate, x[:, begin:cool], reverse=True)[:, :size]
        torch.testing.assert_close(dx[:, begin:end], piece, rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(final, h[:, -1].float(), rtol=2**-7, atol=1e-3)
    total, block = 0.0, 1 << 27
    for begin in range(1, T, block):
        end = min(T, begin + block)
        total += float((dx[:, begin:end].float() * h[:, begin - 1 : end - 1].float()).sum())
    assert float(da) == pytest.approx(total, rel=1e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("_memory")
def test_s06_more_than_2_31_gates(cuda):
    """Each of two channels, whose gradients are sums over these: more than a grid has blocks."""
    T, rest = 2**31 + 12_345, 40
    needs_memory(48 * 2**30)
    gate = torch.full((1, T, 1), 0.5, dtype=torch.bfloat16, device=cuda, requires_grad=True)
    one = torch.ones((), dtype=gate.dtype, device=cuda)
    h = srt.scan(gate, one.expand(1, T, 2))
    (da,) = torch.autograd.grad(h, gate, one.expand(1, T, 2))
    assert bool((h[:, rest:] == 2).all())
    assert float(da[0, 0, 0]) == 0
    assert float(da[0, -1, 0]) == 4
    for begin in range(rest, T - rest, 2**28):
        assert bool((da[0, begin : min(begin + 2**28, T - rest)] == 8).all()), begin
