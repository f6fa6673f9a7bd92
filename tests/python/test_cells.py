"""The fused cells on NumPy arrays, each against its paper's equations."""

from itertools import pairwise

import numpy as np
import pytest
import scanrnn
from cell_reference import ACTIVATIONS, CELLS, Run, softplus
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    BFLOAT16,
    REAL_DTYPES,
    accumulation,
    assert_matches,
    assert_same_bits,
    normal,
    time_contiguous,
)
from scanrnn import cells
from test_scan_fuzz import layouts, sequence_options, sizes

NEW = [name for name in CELLS if name != "sru"]  # test_sru.py has that one
by_cell = pytest.mark.parametrize("name", NEW)
by_any_cell = pytest.mark.parametrize("name", list(CELLS))
by_dtype = pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)


def arguments(rng, name, shape, dtype, N=None):
    """A cell's arguments in order, with an initial state."""
    B, _, D = shape
    cell, arrays = CELLS[name], []
    for argument in cell.arguments:
        array = normal(rng, (D,) if argument in cell.vectors else shape, dtype)
        arrays.append(rng.random(D).astype(dtype) if argument == "bound" else array)
    return [*arrays, normal(rng, (B if N is None else N, D), dtype)]


def full_slots(name, arrays):
    """Which arguments have a time axis."""
    cell = CELLS[name]
    return [
        k for k, n in enumerate(cell.arguments) if n not in cell.vectors and arrays[k] is not None
    ]


def has_checkpoints(name, arrays):
    """Whether a cell's output isn't its state."""
    return name == "sru" or (name == "qrnn" and arrays[2] is not None)


def call(name, arrays, **options):
    """(h, final, what the vjp wants)."""
    function = getattr(cells, name)
    if has_checkpoints(name, arrays):
        return function(*arrays, return_final=True, return_checkpoints=True, **options)
    h, final = function(*arrays, return_final=True, **options)
    return h, final, h


def vjp(name, arrays, saved, dh, dfinal=None, **options):
    return getattr(cells, f"{name}_vjp")(*arrays, saved, dh, dfinal, **options)


def check(name, arrays, dh, dfinal, **options):
    """Forward and backward against the serial loop."""
    h, final, saved = call(name, arrays, **options)
    grads = vjp(name, arrays, saved, dh, dfinal, **options)
    run = Run(name, *arrays, **options)
    expected, expected_final = run.forward()
    stored = None if has_checkpoints(name, arrays) else h
    wanted = run.vjp(dh, dfinal, stored)
    dtype = arrays[0].dtype
    assert (h.dtype, final.dtype) == (dtype, accumulation(dtype))
    # Gates of 16-bit inputs are computed in float32: one unit in the last place covers it.
    tolerance = {"units": 1, "rtol": 2e-5 if dtype.itemsize <= 4 else None}
    assert_matches(h, expected, **tolerance)
    assert_matches(final, expected_final, **tolerance)
    for array, gradient, want in zip(arrays, grads, wanted, strict=True):
        if array is None:
            assert gradient is None
            continue
        assert (gradient.shape, gradient.dtype) == (array.shape, array.dtype)
        assert_matches(gradient, want, **tolerance)
    return h, final, grads


@by_cell
@by_dtype
def test_values(rng, name, dtype):
    shape = (2, 70, 5)
    arrays = arguments(rng, name, shape, dtype)
    dh, dfinal = normal(rng, shape, dtype), normal(rng, (2, 5), accumulation(dtype))
    check(name, arrays, dh, dfinal)
    check(name, [*arrays[:-1], None], dh, None, reverse=True)
    check(name, arrays, None, dfinal)
    check(name, [time_contiguous(a) if a.ndim == 3 else a for a in arrays], dh, dfinal)
    for optional in CELLS[name].optional[::-1]:  # i before o, which it needs
        arrays[CELLS[name].arguments.index(optional)] = None
        check(name, arrays, dh, dfinal)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("name", [n for n in NEW if "activation" in CELLS[n].options])
def test_activations(rng, name, activation):
    arrays = arguments(rng, name, (2, 40, 3), np.float64)
    dh = normal(rng, (2, 40, 3), np.float64)
    check(name, arrays, dh, None, activation=activation)


def test_rg_lru_option(rng):
    arrays = arguments(rng, "rg_lru", (2, 40, 3), np.float64)
    check("rg_lru", arrays, arrays[0], None, c=2.5)
    h, _, grads = check("rg_lru", arrays, arrays[0], None, c=0)  # a is 1, and nothing comes in
    np.testing.assert_array_equal(h, np.broadcast_to(arrays[-1][:, None], h.shape))
    assert all(np.isfinite(gradient).all() for gradient in grads)


@by_any_cell
def test_g01_finite_differences(rng, name):
    """Along random directions, of all arguments at once and of each alone."""
    shape = (2, 50, 3)
    arrays = arguments(rng, name, shape, np.float64)
    dh, dfinal = rng.standard_normal(shape), rng.standard_normal((2, 3))
    _, _, saved = call(name, arrays)
    grads = vjp(name, arrays, saved, dh, dfinal)

    def loss(moved):
        h, final, _ = call(name, moved)
        return (h * dh).sum() + (final * dfinal).sum()

    for chosen in [range(len(arrays)), *([k] for k in range(len(arrays)))]:
        directions = [rng.standard_normal(a.shape) * (k in chosen) for k, a in enumerate(arrays)]
        step = 1e-6
        above, below = (
            loss([a + sign * step * d for a, d in zip(arrays, directions, strict=True)])
            for sign in (1, -1)
        )
        slope = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
        np.testing.assert_allclose((above - below) / (2 * step), slope, rtol=1e-6, atol=1e-6)


@by_cell
def test_g05_backward_twice(rng, name):
    arrays = arguments(rng, name, (2, 70, 3), np.float32)
    dh = normal(rng, (2, 70, 3), np.float32)
    _, _, saved = call(name, arrays)
    everything = [*arrays, saved, dh]
    before = [array.copy() for array in everything]
    first, second = (vjp(name, arrays, saved, dh) for _ in range(2))
    for one, other in zip([*first, *everything], [*second, *before], strict=True):
        assert_same_bits(one, other)


# Initial states


@by_any_cell
def test_n04_any_initial_state(rng, name):
    """None is zeros bit for bit, and a state may have any sign, also where gradients are taken."""
    shape = (2, 7, 4)
    arrays = arguments(rng, name, shape, np.float64)
    dh = rng.standard_normal(shape)
    none, _, _ = call(name, [*arrays[:-1], None])
    zero = np.zeros((2, 4))
    assert_same_bits(none, call(name, [*arrays[:-1], zero])[0])
    mixed = rng.standard_normal((2, 4))
    for state in (zero, np.abs(mixed), -np.abs(mixed), mixed):
        h, final, grads = check(name, [*arrays[:-1], state], dh, None)
        assert all(np.isfinite(a).all() for a in (h, final, *grads))


@by_any_cell
@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16], ids=str)
def test_w05_steps(rng, name, dtype):
    T = 200
    arrays = arguments(rng, name, (2, T, 3), dtype)
    full = full_slots(name, arrays)
    whole, final, _ = call(name, arrays)
    step = getattr(cells, f"{name}_step")

    def steps(start, c):
        outputs = []
        for t in range(start, T):
            values = [a[:, t] if k in full else a for k, a in enumerate(arrays[:-1])]
            h, c = step(*values, c)
            assert (h.shape, h.dtype) == ((2, 3), whole.dtype)
            outputs.append(h)
        return np.stack(outputs, axis=1), c

    # The carried state is float32 for bfloat16 too, so that steps and scan differ by rounding only.
    rtol = 1e-5 if accumulation(dtype) == np.float32 else 1e-12
    h, c = steps(0, arrays[-1])
    assert_matches(h, whole.astype(np.float64), rtol=rtol)
    assert_matches(c, final.astype(np.float64), rtol=rtol)
    assert_same_bits(h, steps(0, arrays[-1])[0])
    head = [a[:, :100] if k in full else a for k, a in enumerate(arrays)]
    tail, _ = steps(100, call(name, head)[1])
    assert_matches(tail, whole[:, 100:].astype(np.float64), rtol=rtol)


@by_any_cell
@pytest.mark.parametrize("chunks", [1, 3, 50])
def test_w01_chunks(rng, name, chunks):
    """State carried over random cuts, and its gradient carried back."""
    shape = (2, 1000, 3)
    arrays = arguments(rng, name, shape, np.float64)
    dh, dfinal = rng.standard_normal(shape), rng.standard_normal((2, 3))
    h, final, saved = call(name, arrays)
    grads = vjp(name, arrays, saved, dh, dfinal)
    full = full_slots(name, arrays)
    cuts = [0, *sorted(rng.integers(0, 1001, chunks - 1)), 1000]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    c, kept = arrays[-1], []
    for part in parts:
        own = [a[:, part] if k in full else a for k, a in enumerate(arrays[:-1])] + [c]
        out, c, own_saved = call(name, own)
        assert_matches(out, h[:, part])
        kept.append((own, own_saved))
    assert_matches(c, final)
    gradient, totals = dfinal, [0] * (len(arrays) - 1)
    for part, (own, own_saved) in zip(parts[::-1], kept[::-1], strict=True):
        got = vjp(name, own, own_saved, dh[:, part], gradient)
        gradient = got[-1]
        for k, value in enumerate(got[:-1]):
            if k in full:
                np.testing.assert_allclose(value, grads[k][:, part], rtol=1e-9, atol=1e-12)
            else:
                totals[k] = totals[k] + value
    assert_matches(gradient, grads[-1])
    for k, total in enumerate(totals):
        if k not in full:
            assert_matches(total, grads[k], rtol=1e-11)


# Numerics


def test_n06_root_near_one():
    """sqrt(1 - a^2) and its slope where a is close to 1: log a = -c softplus(0) sigmoid(0)."""
    one = np.ones((1, 1, 1), np.float32)
    open_gate, zero = np.full_like(one, np.inf), np.zeros_like(one)

    def at(log_a):
        options = {"c": -2 * log_a / np.log(2)}
        arrays = [one, zero, open_gate, zero[0, 0], None]
        h, _, saved = call("rg_lru", arrays, **options)
        return h.item(), vjp("rg_lru", arrays, saved, one, **options)

    assert at(-1e-8)[0] == pytest.approx(1.41421e-4, rel=1e-5)
    assert at(-1e-4)[0] == pytest.approx(0.01414143, rel=1e-5)
    # d h / d gate = d h / d log_a * log_a / 2; the slope 1 / (2 root) is 3535, taken as 1000.
    assert at(-1e-8)[1].r.item() == pytest.approx(-2 * 1000 * -1e-8 / 2, rel=1e-5)
    assert at(-1e-4)[1].r.item() == pytest.approx(-0.9999 / 0.01414143 * -1e-4 / 2, rel=1e-4)
    value, grads = at(0.0)
    assert value == 0
    assert all(np.isfinite(g).all() for g in grads if g is not None)


@pytest.mark.parametrize("lay_out", [np.ascontiguousarray, time_contiguous])
@pytest.mark.parametrize("name", ["gilr", "min_gru", "qrnn", "sru"])
def test_weights_of_inputs_near_zero(rng, name, lay_out):
    """sigmoid(f) is 1 in float32, and 1 - sigmoid(f) all the same what it should be: states add up
    inputs, and gradients see them."""
    f, z = rng.uniform(18, 80, (2, 100, 20)), rng.uniform(0.5, 1, (2, 100, 20))
    f, z = lay_out(f.astype(np.float32)), lay_out(z.astype(np.float32))
    inf = np.full_like(f, np.inf)
    function, arrays, options = {
        "gilr": (cells.gilr, (f, z), {"activation": "identity"}),
        "min_gru": (cells.min_gru, (-f, z), {"activation": "identity"}),
        "qrnn": (cells.qrnn, (z, f, inf), {"activation": "identity"}),
        "sru": (cells.sru, (z, f, inf), {}),
    }[name]
    weight = 1 / (1 + np.exp(f.astype(np.float64)))
    h = function(*arrays, **options)
    np.testing.assert_allclose(h, np.cumsum(weight * z, 1), rtol=2e-5)
    if name == "gilr":
        dh = np.zeros_like(h)
        dh[:, -1] = 1
        grads = cells.gilr_vjp(f, z, None, h, dh, **options)
        np.testing.assert_allclose(grads.z, weight, rtol=2e-6)
        before = np.pad(h, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        np.testing.assert_allclose(grads.f, weight * (before - z), rtol=2e-6)


def test_n06_usual_initialisation(rng):
    """A thousand steps at a in [0.987, 0.9999]."""
    shape = (2, 1000, 8)
    x, r, i = normal(rng, (3, *shape), np.float32)
    a = rng.uniform(0.987, 0.9999, 8)
    lam = np.log(np.expm1(-np.log(a) / 8 * 2)).astype(np.float32)  # at sigmoid(r) = 1/2
    assert_matches(np.exp(-4 * softplus(lam.astype(complex)).real), a, rtol=1e-3)
    h, _, grads = check("rg_lru", [x, r, i, lam, None], normal(rng, shape, np.float32), None)
    assert all(np.isfinite(v).all() for v in (h, *grads) if v is not None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_gates_of_any_size(rng, dtype):
    """Neither NaN nor infinity, in outputs and gradients, up to infinite gates."""
    sizes_ = [0, 20, 80, 88, 104, 746, 1e30, np.inf]
    values = np.array([-v for v in sizes_] + sizes_, dtype)
    first, second = (v.ravel()[None, :, None] for v in np.meshgrid(values, values))
    shape = first.shape
    other, dh = normal(rng, (2, *shape), dtype)
    c0 = normal(rng, (1, 1), dtype)
    for name, arrays in {
        "gilr": [first, other],
        "hgrn": [first, other, np.array([0.3], dtype)],
        "min_gru": [first, other],
        "min_lstm": [first, second, other],
        "qrnn": [other, first, second, second],
        "rg_lru": [other, first, second, np.array([0.3], dtype)],
        "sru": [other, first, second, None, None, None],
    }.items():
        h, final, saved = call(name, [*arrays, c0])
        grads = vjp(name, [*arrays, c0], saved, dh, c0)
        for array in (h, final, *grads):
            assert array is None or np.isfinite(array).all(), name


def test_zoneout_mask(rng):
    """Where f is +inf a QRNN keeps its state exactly, and no gradient reaches z or f."""
    z, f, o, dh = rng.standard_normal((4, 2, 60, 3))
    kept = rng.random((2, 60, 3)) < 0.5
    f[kept] = np.inf
    _, final, saved = call("qrnn", [z, f, o, None, None])
    grads = vjp("qrnn", [z, f, o, None, None], saved, dh)
    assert (grads.z[kept] == 0).all()
    assert (grads.f[kept] == 0).all()
    c = np.zeros((2, 3))
    for t in range(60):
        c = np.where(kept[:, t], c, cells.qrnn_step(z[:, t], f[:, t], o[:, t], None, c)[1])
    assert_matches(final, c)


# Sequences


@by_cell
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("lengths", [[64, 10, 1, 33], [10]], ids=str)
def test_n09_n10_padding(rng, name, bad, side, lengths):
    """Padded slots are not read, whatever a gate would make of them."""
    B, lengths = len(lengths), np.array(lengths)
    shape = (B, 64, 8)
    arrays = arguments(rng, name, shape, np.float32)
    dh, dfinal = normal(rng, shape, np.float32), normal(rng, (B, 8), np.float32)
    steps = np.arange(64)
    valid = steps >= 64 - lengths[:, None] if side == "left" else steps < lengths[:, None]
    full = full_slots(name, arrays)
    for array in (*(arrays[k] for k in full), dh):
        array[~valid] = bad
    options = {"lengths": lengths, "padding_side": side}
    h, final, saved = call(name, arrays, **options)
    grads = vjp(name, arrays, saved, dh, dfinal, **options)
    for array in (h, *(grads[k] for k in full)):
        assert (array[~valid] == 0).all()
    totals = {k: 0 for k, a in enumerate(arrays[:-1]) if k not in full and a is not None}
    for b in range(B):
        own = [a[b : b + 1, valid[b]] if k in full else a for k, a in enumerate(arrays)]
        own[-1] = arrays[-1][b : b + 1]
        alone, last, own_saved = call(name, own)
        assert_same_bits(h[b : b + 1, valid[b]], alone)
        assert_same_bits(final[b : b + 1], last)
        got = vjp(name, own, own_saved, dh[b : b + 1, valid[b]], dfinal[b : b + 1])
        for k in full:
            assert_same_bits(grads[k][b : b + 1, valid[b]], got[k])
        totals = {k: total + got[k].astype(np.float64) for k, total in totals.items()}
    for k, total in totals.items():
        assert_matches(grads[k], total)


@by_cell
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_n10_other_rows(rng, name, bad):
    arrays = arguments(rng, name, (4, 64, 8), np.float32)
    dh = normal(rng, (4, 64, 8), np.float32)
    h, _, saved = call(name, arrays)
    grads = vjp(name, arrays, saved, dh)
    full = full_slots(name, arrays)
    for k in full:
        arrays[k] = arrays[k].copy()
        arrays[k][2] = bad
    with np.errstate(all="ignore"):
        other, _, saved = call(name, arrays)
        others = vjp(name, arrays, saved, dh)
    rest = [0, 1, 3]
    assert_same_bits(other[rest], h[rest])
    for k in full:
        assert_same_bits(others[k][rest], grads[k][rest])


@by_cell
@pytest.mark.parametrize("bias", [0, 3, -20])
@pytest.mark.parametrize("T", [1, 31, 33, 100, 129, 1000, 2047, 2049])
def test_n09_lengths_that_do_not_fill_leaves(rng, name, T, bias):
    """What a gate would make of steps that aren't there is another thing for each bias."""
    arrays = arguments(rng, name, (1, T, 2), np.float32)
    if name == "rg_lru":
        bias = max(bias, -5)  # the loop doesn't bound the root's slope
    for k in full_slots(name, arrays):
        if CELLS[name].arguments[k] in ("z" if name == "min_gru" else "fior"):
            arrays[k] = arrays[k] + np.float32(bias)
    check(name, arrays, normal(rng, (1, T, 2), np.float32), None)


@by_cell
@pytest.mark.parametrize("D", [3, 40])
def test_s01_prefixes(rng, name, D):
    """The output for T steps is a prefix of that for T + 1; of many channels, bit for bit."""
    arrays = arguments(rng, name, (2, 1026, D), np.float32)
    full = full_slots(name, arrays)
    whole, _, _ = call(name, arrays)
    for T in (1, 2, 3, 5, 7, 31, 32, 33, 63, 65, 127, 129, 255, 257, 1000, 1023, 1025):
        part = [a[:, :T] if k in full else a for k, a in enumerate(arrays)]
        if D == 40:
            assert_same_bits(call(name, part)[0], whole[:, :T])
        else:
            assert_matches(call(name, part)[0], whole[:, :T])


@by_cell
@pytest.mark.parametrize("shape", [(1, 1, 6), (1, 9, 6), (5, 1, 6), (5, 9, 1), (1, 1, 1)], ids=str)
def test_s02_sizes_of_one(rng, name, shape):
    check(name, arguments(rng, name, shape, np.float64), rng.standard_normal(shape), None)


@by_cell
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0), (0, 0, 0)], ids=str)
def test_s03_empty(rng, name, shape):
    B, _, D = shape
    arrays = arguments(rng, name, shape, np.float64)
    h, final, saved = call(name, arrays)
    assert h.shape == shape
    grads = vjp(name, arrays, saved, h, np.full((B, D), 2.0))
    for k, vector in enumerate(arrays):
        if vector is not None and vector.ndim == 1:
            np.testing.assert_array_equal(grads[k], np.zeros(D))
    if shape[1] == 0:
        np.testing.assert_array_equal(final, arrays[-1])
        np.testing.assert_array_equal(grads[-1], np.full((B, D), 2.0))


@by_cell
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_w02_packed(rng, name, index):
    offsets = np.array([0, 3, 4, 4, 10], index)
    arrays = arguments(rng, name, (1, 10, 5), np.float64, N=4)
    dh, dfinal = rng.standard_normal((1, 10, 5)), rng.standard_normal((4, 5))
    h, final, _ = check(name, arrays, dh, dfinal, cu_seqlens=offsets)
    full = full_slots(name, arrays)
    for n in range(4):
        steps = slice(offsets[n], offsets[n + 1])
        own = [a[:, steps] if k in full else a for k, a in enumerate(arrays)]
        own[-1] = arrays[-1][n : n + 1]
        alone, last, _ = call(name, own)
        assert_same_bits(h[:, steps], alone)
        assert_same_bits(final[n : n + 1], last)


@by_cell
@pytest.mark.parametrize("flags", [bool, np.uint8, np.float32])
def test_w03_reset(rng, name, flags):
    shape = (2, 90, 3)
    arrays = arguments(rng, name, shape, np.float64)
    reset = rng.random((2, 90)) < 0.1
    reset[0, 0] = True
    dh = rng.standard_normal(shape)
    check(name, arrays, dh, None, reset=reset.astype(flags))
    lengths = np.array([40, 90])
    check(name, arrays, dh, None, reset=reset.astype(flags), lengths=lengths, reverse=True)
    _, _, grads = check(name, arrays, dh, None, reset=np.ones((2, 90), flags))
    assert (grads[-1] == 0).all()


@by_cell
def test_m06_any_number_of_threads(rng, name, threads):
    arrays = arguments(rng, name, (3, 3000, 40), np.float32)
    dh = normal(rng, arrays[0].shape, np.float32)
    results = []
    for n in (1, 3, 8):
        threads(n)
        h, _, saved = call(name, arrays)
        results.append((h, *vjp(name, arrays, saved, dh)))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_same_bits(one, two)


@by_cell
@pytest.mark.parametrize("axis", [-2, 0, -1])
@pytest.mark.parametrize("lead", [(), (2, 3)], ids=str)
def test_any_axes(rng, name, lead, axis):
    plain = arguments(rng, name, (int(np.prod(lead)), 20, 3), np.float64)
    full = full_slots(name, plain)
    dh, dfinal = rng.standard_normal(plain[0].shape), rng.standard_normal(plain[-1].shape)

    def stored(array):
        return np.ascontiguousarray(np.moveaxis(array.reshape(*lead, 20, 3), -2, axis))

    own = [stored(a) if k in full else a for k, a in enumerate(plain)]
    own[-1] = plain[-1].reshape(*lead, 3)
    h, final, saved = call(name, own, axis=axis)
    grads = vjp(name, own, saved, stored(dh), dfinal.reshape(*lead, 3), axis=axis)
    expected, expected_final = Run(name, *plain).forward()
    wanted = Run(name, *plain).vjp(dh, dfinal)
    assert_matches(h, stored(expected))
    assert_matches(final, expected_final.reshape(*lead, 3))
    for k, (got, want) in enumerate(zip(grads, wanted, strict=True)):
        assert_matches(got, stored(want) if k in full else want.reshape(got.shape))


@by_cell
@given(data=st.data())
def test_fuzz(name, data):
    draw = data.draw
    dtype = draw(st.sampled_from(REAL_DTYPES))
    B, T, D = shape = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    N, options = draw(sequence_options(B, T))
    if "activation" in CELLS[name].options:
        options["activation"] = draw(st.sampled_from(list(ACTIVATIONS)))
    else:
        options["c"] = draw(st.floats(0.5, 10))
    if draw(st.booleans()):
        options["reset"] = rng.random((B, T)) < draw(st.sampled_from([0.01, 0.5]))
    arrays = arguments(rng, name, shape, dtype, N)
    cell = CELLS[name]
    for k, argument in enumerate((*cell.arguments, cell.state)):
        may_be_none = argument in (*cell.optional, cell.state)
        if may_be_none and draw(st.booleans()):
            arrays[k] = None
        elif argument in (*cell.vectors, cell.state) and draw(st.booleans()):
            arrays[k] = arrays[k].astype(accumulation(dtype))
    if name == "qrnn" and arrays[2] is None:
        arrays[3] = None
    dh = normal(rng, shape, dtype) if draw(st.booleans()) else None
    dfinal = normal(rng, (N, D), dtype) if draw(st.booleans()) else None
    stored = [
        None if array is None else draw(layouts(array.ndim))(array)
        for array in (*arrays, dh, dfinal)
    ]
    check(name, stored[:-2], *stored[-2:], **options)


# The same things under different names


def test_relations_between_cells(rng):
    f, z, o, h0 = *rng.standard_normal((3, 2, 100, 3)), rng.standard_normal((2, 3))
    gilr = cells.gilr(f, z, h0)
    assert_same_bits(cells.qrnn(z, f, c0=h0), gilr)
    assert_same_bits(cells.hgrn(f, z, None, h0, activation="tanh"), gilr)
    assert_same_bits(cells.hgrn(f, z, np.zeros(3), h0, activation="tanh"), gilr)
    assert_matches(cells.min_gru(-f, z, h0, activation="tanh"), gilr)
    wide = np.full_like(o, np.inf)
    assert_matches(cells.qrnn(z, f, wide, None, h0), gilr)
    assert_matches(cells.qrnn(z, f, wide, -f, h0), gilr)
    assert_matches(cells.sru(np.tanh(z), f, wide, c0=h0), gilr)
    keep = 1 / (1 + np.exp(-f))
    assert_matches(gilr, scanrnn.scan(keep, (1 - keep) * np.tanh(z), h0))


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
@by_any_cell
def test_frontends(rng, name, framework):
    """Arrays of frameworks that differentiate go to these, and give the same numbers."""
    convert = pytest.importorskip(framework).asarray
    arrays = arguments(rng, name, (2, 50, 3), np.float32)
    full = full_slots(name, arrays)
    function, step = getattr(cells, name), getattr(cells, f"{name}_step")
    for f, values, options in (
        (function, arrays, {"return_final": True, "reverse": True}),
        (step, [a[:, 0] if k in full else a for k, a in enumerate(arrays)], {}),
    ):
        wanted = f(*values, **options)
        got = f(*map(convert, values), **options)
        for one, other in zip(got, wanted, strict=True):
            assert type(one) is not np.ndarray
            assert_same_bits(np.asarray(one), other)
    with pytest.raises(TypeError, match=f"differentiates {name} itself"):
        vjp(name, [convert(a) for a in arrays], convert(arrays[0]), convert(arrays[0]))


# Errors


def test_errors(rng):
    x = np.ones((2, 5, 3), np.float32)
    vector = np.ones(3, np.float32)

    def refused(error, text, function, *args, **options):
        with pytest.raises(error) as caught:
            function(*args, **options)
        assert str(caught.value) == text

    refused(
        ValueError,
        "gilr: activation is 'gelu', expected 'identity', 'tanh', 'relu', 'silu', 'sigmoid' or "
        "'positive'",
        cells.gilr,
        x,
        x,
        activation="gelu",
    )
    refused(
        ValueError,
        "sru: activation is 'silu', expected 'identity', 'tanh' or 'relu'",
        cells.sru,
        x,
        x,
        x,
        activation="silu",
    )
    refused(
        ValueError,
        "qrnn: i is given without o, expected both, o alone or neither",
        cells.qrnn,
        x,
        x,
        None,
        x,
    )
    refused(
        ValueError,
        "min_gru: v has shape (2, 4, 3), expected (2, 5, 3)",
        cells.min_gru,
        x,
        x[:, :4],
    )
    refused(ValueError, "hgrn: bound has shape (2,), expected (3,)", cells.hgrn, x, x, vector[:2])
    refused(
        TypeError,
        "rg_lru: lam has dtype float64, expected float32",
        cells.rg_lru,
        x,
        x,
        x,
        vector.astype(np.float64),
    )
    refused(
        ValueError,
        "rg_lru: c is -1, expected a number from 0 to 1000000",
        cells.rg_lru,
        x,
        x,
        x,
        vector,
        c=-1,
    )
    refused(
        TypeError,
        "min_lstm: f has dtype complex64, expected float16, bfloat16, float32 or float64",
        cells.min_lstm,
        *[x.astype(np.complex64)] * 3,
    )
    refused(
        TypeError,
        "gilr_vjp: h is None, expected what gilr returned",
        cells.gilr_vjp,
        x,
        x,
        None,
        None,
        x,
    )
    refused(
        TypeError,
        "qrnn_vjp: checkpoints is None, expected what qrnn returned",
        cells.qrnn_vjp,
        x,
        x,
        x,
        None,
        None,
        None,
        x,
    )
    refused(
        ValueError,
        "gilr_vjp: h has shape (2, 4, 3), expected (2, 5, 3)",
        cells.gilr_vjp,
        x,
        x,
        None,
        x[:, :4],
        x,
    )
    refused(
        ValueError,
        "min_lstm: h0 has shape (2, 4), expected (2, 3)",
        cells.min_lstm,
        x,
        x,
        x,
        np.ones((2, 4), np.float32),
    )
