"""The fused SRU on NumPy arrays."""

import numpy as np
import pytest
import reference
import scanrnn
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    DTYPES,
    REAL_DTYPES,
    accumulation,
    assert_matches,
    assert_same_bits,
    normal,
    time_contiguous,
)
from scanrnn.cells import SruGrads, sru, sru_step, sru_vjp
from test_scan_fuzz import layouts, sequence_options, sizes

ACTIVATIONS = ["identity", "tanh", "relu"]
ARGUMENTS = ["u", "f", "r", "skip", "bias_f", "bias_r", "c0"]
by_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def arguments(rng, shape, dtype, N=None):
    """u, f, r, skip, bias_f, bias_r, c0."""
    B, _, D = shape
    arrays = [normal(rng, shape, dtype) for _ in range(4)]
    arrays += [normal(rng, (D,), dtype) for _ in range(2)]
    return [*arrays, normal(rng, (B if N is None else N, D), dtype)]


def half_tolerance(dtype):
    """Gates of 16-bit inputs are computed in float32: one unit in the last place covers it."""
    return {"units": 1, "rtol": 2e-5 if np.dtype(dtype).itemsize <= 4 else None}


def check(arrays, dh, dfinal, **options):
    """Forward and backward against the serial loop."""
    h, final, checkpoints = sru(*arrays, return_final=True, return_checkpoints=True, **options)
    grads = sru_vjp(*arrays, checkpoints, dh, dfinal, **options)
    expected, expected_final = reference.sru(*arrays, **options)
    wanted = reference.sru_vjp(*arrays, dh, dfinal, **options)
    dtype = arrays[0].dtype
    assert (h.dtype, final.dtype) == (dtype, accumulation(dtype))
    assert checkpoints.dtype == accumulation(dtype)
    tolerance = half_tolerance(dtype)
    assert_matches(h, expected, **tolerance)
    assert_matches(final, expected_final, **tolerance)
    for name, array, gradient in zip(ARGUMENTS, arrays, grads, strict=True):
        if array is None:
            assert gradient is None
        else:
            assert (gradient.shape, gradient.dtype) == (array.shape, array.dtype)
            assert_matches(gradient, wanted[name], **tolerance)
    return h, final, grads


@by_activation
@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 3), (1, 9, 1), (3, 33, 5), (2, 1000, 17), (1, 4100, 2)])
@pytest.mark.parametrize("order", [np.asarray, time_contiguous])
def test_d03_every_dtype(rng, activation, dtype, shape, order):
    arrays = arguments(rng, shape, dtype)
    arrays[:4] = [order(array) for array in arrays[:4]]
    dh, dfinal = order(normal(rng, shape, dtype)), normal(rng, arrays[-1].shape, dtype)
    for reverse in (False, True):
        check(arrays, dh, dfinal, activation=activation, reverse=reverse)


@by_activation
def test_finite_differences(rng, activation):
    arrays = arguments(rng, (2, 7, 3), np.float64)
    w, v = normal(rng, (2, 7, 3), np.float64), normal(rng, (2, 3), np.float64)
    _, checkpoints = sru(*arrays, activation=activation, return_checkpoints=True)
    grads = sru_vjp(*arrays, checkpoints, w, v, activation=activation)
    assert isinstance(grads, SruGrads)

    def loss(values):
        h, final = sru(*values, activation=activation, return_final=True)
        return (w * h).sum() + (v * final).sum()

    for i, gradient in enumerate(grads):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [array.copy() for array in arrays]
                moved[i][index] += step
                ends.append(loss(moved))
            assert gradient[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@by_activation
@pytest.mark.parametrize("missing", range(16))
def test_optional_arguments(rng, activation, missing):
    arrays = arguments(rng, (2, 40, 3), np.float64)
    given = list(arrays)
    for i, name in enumerate(["skip", "bias_f", "bias_r", "c0"]):
        if missing >> i & 1:
            k = ARGUMENTS.index(name)
            given[k], arrays[k] = None, np.zeros_like(arrays[k])
    dh, dfinal = normal(rng, (2, 40, 3), np.float64), normal(rng, (2, 3), np.float64)
    h, final, _ = check(given, dh, dfinal, activation=activation)
    zeros, zeros_final = sru(*arrays, activation=activation, return_final=True)
    assert_same_bits(h, zeros)
    assert_same_bits(final, zeros_final)


def test_results_come_in_order(rng):
    arrays = arguments(rng, (2, 40, 3), np.float32)
    h = sru(*arrays)
    assert type(h) is np.ndarray
    assert len(sru(*arrays, return_final=True)) == 2
    both = sru(*arrays, return_checkpoints=True)
    assert_same_bits(both[0], h)
    three = sru(*arrays, return_final=True, return_checkpoints=True)
    assert [v.shape for v in three] == [h.shape, (2, 3), both[1].shape]
    # Backward saves one state in 32 steps at most.
    assert both[1].size <= h.size / 32 + 2 * 3 * 2


def test_g03_either_output_alone(rng):
    arrays = arguments(rng, (2, 70, 3), np.float64)
    dh, dfinal = normal(rng, (2, 70, 3), np.float64), normal(rng, (2, 3), np.float64)
    for one, other in [(dh, None), (None, dfinal), (None, None)]:
        check(arrays, one, other, activation="tanh")


def test_g05_backward_twice(rng):
    arrays = arguments(rng, (2, 70, 3), np.float32)
    dh = normal(rng, (2, 70, 3), np.float32)
    _, checkpoints = sru(*arrays, return_checkpoints=True)
    saved = [array.copy() for array in (*arrays, checkpoints, dh)]
    first, second = (sru_vjp(*arrays, checkpoints, dh) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert_same_bits(one, other)
    for array, before in zip((*arrays, checkpoints, dh), saved, strict=True):
        assert_same_bits(array, before)


@by_activation
@pytest.mark.parametrize("dtype", [np.float32, np.float64, reference.BFLOAT16], ids=str)
def test_w05_steps(rng, activation, dtype):
    arrays = arguments(rng, (2, 200, 3), dtype)
    u, f, r, skip, bias_f, bias_r, c0 = arrays
    whole, final = sru(*arrays, activation=activation, return_final=True)

    def steps(start, c):
        outputs = []
        for t in range(start, 200):
            gates = (array[:, t] for array in (u, f, r, skip))
            h, c = sru_step(*gates, bias_f, bias_r, c, activation=activation)
            assert (h.shape, h.dtype) == ((2, 3), whole.dtype)
            outputs.append(h)
        return np.stack(outputs, axis=1), c

    h, c = steps(0, c0)
    rtol = 1e-5 if accumulation(dtype) == np.float32 else 1e-12
    # The carried state is float32 for bfloat16 too, so that steps and scan differ by rounding only.
    assert_matches(h, whole.astype(np.float64), rtol=rtol)
    assert_matches(c, final.astype(np.float64), rtol=rtol)
    again, _ = steps(0, c0)
    assert_same_bits(h, again)
    head = (array[:, :100] for array in (u, f, r, skip))
    _, c = sru(*head, bias_f, bias_r, c0, activation=activation, return_final=True)
    tail, _ = steps(100, c)
    assert_matches(tail, whole[:, 100:].astype(np.float64), rtol=rtol)


def test_step_of_one_row(rng):
    u, f, r = rng.standard_normal((3, 5))
    h, c = sru_step(u, f, r, None, None, None, None)
    assert (h.shape, c.shape) == ((5,), (5,))
    assert_matches(h, reference.sru(u[None, None], f[None, None], r[None, None])[0][0, 0])


def test_w01_state_across_chunks(rng):
    arrays = arguments(rng, (2, 300, 3), np.float64)
    full, (bias_f, bias_r, c0) = arrays[:4], arrays[4:]
    dh, dfinal = normal(rng, (2, 300, 3), np.float64), normal(rng, (2, 3), np.float64)
    h, final, grads = check(arrays, dh, dfinal)
    parts = [slice(0, 77), slice(77, 78), slice(78, 300)]
    c, saved = c0, []
    for part in parts:
        views = [array[:, part] for array in full]
        out, last, checkpoints = sru(
            *views, bias_f, bias_r, c, return_final=True, return_checkpoints=True
        )
        assert_matches(out, h[:, part])
        saved.append((views, c, checkpoints))
        c = last
    assert_matches(c, final)
    gradient, bias = dfinal, 0
    for part, (views, c, checkpoints) in zip(parts[::-1], saved[::-1], strict=True):
        own = sru_vjp(*views, bias_f, bias_r, c, checkpoints, dh[:, part], gradient)
        gradient, bias = own.c0, bias + own.bias_f
        assert_matches(own.f, grads.f[:, part])
    assert_matches(gradient, grads.c0)
    assert_matches(bias, grads.bias_f)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["right", "left"])
def test_n09_n10_padding(rng, bad, side):
    """Padded slots are not read, whatever sigmoid(bias) would make of them."""
    shape, lengths = (4, 64, 8), np.array([64, 10, 1, 33])
    arrays = arguments(rng, shape, np.float32)
    arrays[4] += 3
    arrays[5] -= 20
    dh, dfinal = normal(rng, shape, np.float32), normal(rng, (4, 8), np.float32)
    steps = np.arange(64)
    valid = steps >= 64 - lengths[:, None] if side == "left" else steps < lengths[:, None]
    for array in (*arrays[:4], dh):
        array[~valid] = bad
    options = {"lengths": lengths, "padding_side": side, "activation": "tanh"}
    h, final, checkpoints = sru(*arrays, return_final=True, return_checkpoints=True, **options)
    grads = sru_vjp(*arrays, checkpoints, dh, dfinal, **options)
    for array in (h, *grads[:4]):
        assert (array[~valid] == 0).all()
    total = np.zeros((2, 8))
    for b in range(4):
        own = [array[b : b + 1, valid[b]] for array in arrays[:4]]
        own += [*arrays[4:6], arrays[6][b : b + 1]]
        alone, last = sru(*own, return_final=True, activation="tanh")
        assert_same_bits(h[b : b + 1, valid[b]], alone)
        assert_same_bits(final[b : b + 1], last)
        wanted = reference.sru_vjp(
            *own, dh[b : b + 1, valid[b]], dfinal[b : b + 1], activation="tanh"
        )
        total += [wanted["bias_f"], wanted["bias_r"]]
    assert_matches(grads.bias_f, total[0])
    assert_matches(grads.bias_r, total[1])


@pytest.mark.parametrize("T", [1, 31, 33, 100, 129, 1000, 2047, 2049])
@pytest.mark.parametrize("bias", [3, -20])
def test_n09_lengths_that_do_not_fill_leaves(rng, T, bias):
    arrays = arguments(rng, (1, T, 2), np.float32)
    arrays[4][:] = arrays[5][:] = bias
    check(arrays, normal(rng, (1, T, 2), np.float32), None, activation="tanh")


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0), (0, 0, 0)])
def test_s03_empty(shape):
    B, T, D = shape
    u, bias, c0 = np.ones(shape), np.ones(D), np.full((B, D), 3.0)
    h, final, checkpoints = sru(
        u, u, u, u, bias, bias, c0, return_final=True, return_checkpoints=True
    )
    assert h.shape == shape
    grads = sru_vjp(u, u, u, u, bias, bias, c0, checkpoints, h, np.full((B, D), 2.0))
    np.testing.assert_array_equal(grads.bias_f, np.zeros(D))
    np.testing.assert_array_equal(grads.bias_r, np.zeros(D))
    if T == 0:
        np.testing.assert_array_equal(final, c0)
        np.testing.assert_array_equal(grads.c0, np.full((B, D), 2.0))


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("axis", [-2, 0, -1])
@pytest.mark.parametrize("sliced", [False, True])
def test_any_axes(rng, lead, axis, sliced):
    shape = (*lead, 20, 3)

    def stored(array):
        array = np.moveaxis(array, -2, axis)
        return np.repeat(array, 2, axis=0)[::2] if sliced else np.ascontiguousarray(array)

    plain = arguments(rng, (int(np.prod(lead)), 20, 3), np.float64)
    full = [stored(array.reshape(shape)) for array in plain[:4]]
    c0 = plain[6].reshape(*lead, 3)
    dh, dfinal = normal(rng, plain[0].shape, np.float64), normal(rng, plain[6].shape, np.float64)
    lengths = rng.integers(0, 21, lead) if lead else None
    options = {"activation": "tanh", "lengths": lengths}
    h, final, checkpoints = sru(
        *full, *plain[4:6], c0, axis=axis, return_final=True, return_checkpoints=True, **options
    )
    grads = sru_vjp(
        *full,
        *plain[4:6],
        c0,
        checkpoints,
        stored(dh.reshape(shape)),
        dfinal.reshape(c0.shape),
        axis=axis,
        **options,
    )
    options["lengths"] = None if lengths is None else lengths.ravel()
    expected, expected_final = reference.sru(*plain, **options)
    wanted = reference.sru_vjp(*plain, dh, dfinal, **options)
    assert_matches(np.moveaxis(h, axis, -2), expected.reshape(shape))
    assert_matches(final, expected_final.reshape(c0.shape))
    for name in ("u", "f", "r", "skip"):
        got = np.moveaxis(getattr(grads, name), axis, -2)
        assert_matches(got, wanted[name].reshape(shape))
    for name in ("bias_f", "bias_r"):
        assert_matches(getattr(grads, name), wanted[name])
    assert_matches(grads.c0, wanted["c0"].reshape(c0.shape))


def test_m06_any_number_of_threads(rng, threads):
    arrays = arguments(rng, (3, 3000, 40), np.float32)
    dh = normal(rng, arrays[0].shape, np.float32)
    results = []
    for n in (1, 3, 8):
        threads(n)
        h, checkpoints = sru(*arrays, return_checkpoints=True, activation="tanh")
        results.append((h, *sru_vjp(*arrays, checkpoints, dh, activation="tanh")))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_same_bits(one, two)


def test_same_as_scan(rng):
    """With open reset gates the cell is a scan."""
    u, f, _ = rng.standard_normal((3, 2, 300, 3))
    r = np.full_like(u, 800.0)
    gate = reference.sigmoid(f)
    assert_matches(sru(u, f, r), scanrnn.scan(gate, (1 - gate) * u))


def test_saturated_gates(rng):
    arrays = arguments(rng, (2, 100, 3), np.float32)
    for k in (1, 2):
        arrays[k] = np.resize(np.float32([-1e30, 1e30, -100, 100, 0]), (2, 100, 3))
    h, _, grads = check(arrays, normal(rng, (2, 100, 3), np.float32), None, activation="tanh")
    assert all(np.isfinite(array).all() for array in (h, *grads))


def test_complex_is_refused():
    x = np.ones((1, 2, 3), np.complex64)
    with pytest.raises(TypeError, match="sru: u has dtype complex64"):
        sru(x, x, x)


@given(st.data())
def test_fuzz(data):
    draw = data.draw
    dtype = draw(st.sampled_from(REAL_DTYPES))
    B, T, D = shape = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    N, options = draw(sequence_options(B, T))
    options["activation"] = draw(st.sampled_from(ACTIVATIONS))
    if draw(st.booleans()):
        options["reset"] = rng.random((B, T)) < draw(st.sampled_from([0.01, 0.5]))
    arrays = arguments(rng, shape, dtype, N)
    for k in range(3, 7):
        kind = draw(st.sampled_from(["same", "wide", "none"]))
        if kind == "none":
            arrays[k] = None
        elif kind == "wide" and k > 3:
            arrays[k] = arrays[k].astype(accumulation(dtype))
    dh = normal(rng, shape, dtype) if draw(st.booleans()) else None
    dfinal = normal(rng, (N, D), dtype) if draw(st.booleans()) else None
    stored = [
        None if array is None else draw(layouts(array.ndim))(array)
        for array in (*arrays, dh, dfinal)
    ]
    check(stored[:7], *stored[7:], **options)


def test_all_dtypes_are_listed():
    assert set(REAL_DTYPES) < set(DTYPES)
