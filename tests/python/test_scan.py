"""scan on NumPy arrays: numerics, lengths of time, dtypes."""

import ml_dtypes
import numpy as np
import pytest
import reference
from reference import (
    BFLOAT16,
    DTYPES,
    assert_matches,
    assert_same_bits,
    gates,
    normal,
    time_contiguous,
)
from scanrnn import scan, scan_vjp

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def check(a, x, h0=None, dh=None, dfinal=None, *, rtol=None, **options):
    """Forward and backward against the serial loop; returns (h, final, gradients)."""
    h, final = scan(a, x, h0, return_final=True, **options)
    assert h.dtype == x.dtype
    with np.errstate(all="ignore"):
        expected, expected_final = reference.scan(a, x, h0, **options)
        grads = reference.scan_vjp(a, x, h0, dh, dfinal, h=h, **options)
    assert_matches(h, expected, rtol=rtol)
    assert_matches(final, expected_final, rtol=rtol)
    got = scan_vjp(a, h, dh, dfinal, h0, **options)
    for value, wanted in zip(got, grads, strict=True):
        if value is not None:
            assert_matches(value, wanted, rtol=rtol)
    return h, final, got


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_n01_zero_gate(dtype):
    a = np.array([0.5, 0, 2, -1], dtype)
    x = np.array([1, 2, 3, 4], dtype)
    h0 = np.array(10, dtype)
    h = scan(a, x, h0)
    np.testing.assert_array_equal(h, [6, 2, 7, -3])
    da, dx, dh0 = scan_vjp(a, h, np.ones_like(h), h0=h0)
    np.testing.assert_array_equal(da, [10, 6, 0, 7])
    np.testing.assert_array_equal(dx, [1, 1, 0, 1])
    assert dh0 == 0.5


@pytest.mark.parametrize("order", [np.asarray, time_contiguous])
@pytest.mark.parametrize("T", [1, 31, 257, 4100])
def test_n01_zero_gates_at_random(rng, T, order):
    shape = (3, T, 5)
    a = gates(rng, shape, np.float32)
    a[rng.random(shape) < 0.1] = 0
    a[1] = 0
    x, dh = normal(rng, shape, np.float32), normal(rng, shape, np.float32)
    h, _, _ = check(order(a), order(x), normal(rng, (3, 5), np.float32), order(dh))
    assert np.isfinite(h).all()


@pytest.mark.parametrize("order", [np.asarray, time_contiguous])
def test_n02_running_product_underflows(order):
    T = 4096
    a, x = np.full((1, T, 2), 0.5, np.float32), np.ones((1, T, 2), np.float32)
    h = scan(order(a), order(x))
    expected = 2 - 0.5 ** np.arange(T)
    np.testing.assert_allclose(h[0, :, 0], expected, rtol=1e-6)
    assert (h[0, -1] == 2).all()


@pytest.mark.parametrize(
    ("T", "values"),
    [
        (4096, [1e-30]),
        (65536, [0.999]),
        (4096, [1e-20, 1]),
        (4096, [1e-45]),
        (4096, [1e-38, 1, 1e-3]),
    ],
    ids=str,
)
def test_n02_tiny_gates(rng, T, values):
    a = np.resize(np.array(values, np.float32), T).reshape(1, T, 1)
    x = np.ones((1, T, 1), np.float32)
    state = np.ones((1, 1), np.float32)
    # A memory of 1000 steps: the serial float32 loop is off by 2e-5 here.
    check(a, x, state, x, state, rtol=4e-5 if values == [0.999] else None)


# The library takes gates, not their logarithms: exp is the caller's, and can't overflow below 0.
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=str)
@pytest.mark.parametrize("T", [15, 16, 17, 32, 33, 64, 65, 128, 129])
@pytest.mark.parametrize("logs", [[-30], [-30, 0], [0, 0, 0, -1e4], [0, 0, -np.inf]], ids=str)
def test_n03_strong_decay(rng, dtype, T, logs):
    a = np.exp(np.resize(np.array(logs, np.float64), T)).reshape(1, T, 1).astype(dtype)
    x = normal(rng, (1, T, 1), dtype)
    h, _, got = check(a, x, normal(rng, (1, 1), dtype), normal(rng, (1, T, 1), dtype))
    for value in (h, *got):
        assert np.isfinite(value.astype(np.float64)).all()
    np.testing.assert_array_equal(h[a == 0], x[a == 0])


@pytest.mark.parametrize("order", [np.asarray, time_contiguous])
def test_n07_bfloat16_carry(order):
    for T in (4096, 100000):
        a, x = np.ones((1, T, 2), BFLOAT16), np.full((1, T, 2), 0.5, BFLOAT16)
        h, final = scan(order(a), order(x), return_final=True)
        assert final.dtype == np.float32
        assert (final == T / 2).all()
        assert (h[:, -1] == np.array(T / 2, BFLOAT16)).all()
        # The carry of backward: dx_t sums what comes after t.
        h0 = np.zeros((1, 2), np.float32)
        _, dx, dh0 = scan_vjp(order(a), h, order(x), h0=h0)
        assert dh0.dtype == np.float32
        assert (dh0 == T / 2).all()
        assert (dx[:, 0] == np.array(T / 2, BFLOAT16)).all()


@pytest.mark.parametrize("order", [np.asarray, time_contiguous])
@pytest.mark.parametrize("half", [70, 50000])
def test_n07_float16_carry(half, order):
    a = np.ones((1, 2 * half, 1), np.float16)
    x = np.repeat([1000, -1000], half).astype(np.float16).reshape(1, -1, 1)
    h, final = scan(order(a), order(x), return_final=True)
    exact = np.cumsum(x.astype(np.float64))
    assert final[0, 0] == 0
    assert h[0, -1, 0] == 0
    np.testing.assert_array_equal(np.isinf(h.ravel()), np.abs(exact) >= 65520)
    if half == 70:
        assert np.isinf(h).sum() == 9


def test_n07_chunked_carry():
    """The final state is float32, so it loses nothing between calls either."""
    x = np.full((1, 1000, 1), 0.5, BFLOAT16)
    state = None
    for _ in range(10):
        _, state = scan(1.0, x, state, return_final=True)
    assert state[0, 0] == 5000


def test_n08_reverse():
    x = np.repeat([1e8, 1], 32).astype(np.float32)
    h = scan(1.0, x, reverse=True)
    np.testing.assert_array_equal(h[32:], np.arange(32, 0, -1))
    h = scan(1.0, np.arange(18.0).reshape(2, 9, 1), reverse=True)
    np.testing.assert_array_equal(h[0, :, 0], [36, 36, 35, 33, 30, 26, 21, 15, 8])
    np.testing.assert_array_equal(h[1, :, 0], [117, 108, 98, 87, 75, 62, 48, 33, 17])
    h = scan(np.array([1, 1.5, 0.8, 2]), np.array([1, -1, 0.5, 2]), reverse=True)
    np.testing.assert_allclose(h, [3.15, 2.15, 2.1, 2], rtol=1e-15)


@by_dtype
def test_n08_reverse_is_flipped(rng, dtype):
    for T in range(1, 71):
        a, x = gates(rng, (2, T, 3), dtype), normal(rng, (2, T, 3), dtype)
        h0 = normal(rng, (2, 3), dtype)
        h, final = scan(a, x, h0, reverse=True, return_final=True)
        flipped, flipped_final = scan(a[:, ::-1], x[:, ::-1], h0, return_final=True)
        assert_same_bits(h, flipped[:, ::-1])
        assert_same_bits(final, flipped_final)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("T", [64, 1000])
def test_n10_rows_do_not_leak(rng, bad, T):
    shape = (4, T, 8)
    a, x, dh = (normal(rng, shape, np.float32) * np.float32(0.5) for _ in range(3))
    h0 = normal(rng, (4, 8), np.float32)
    h = scan(a, x, h0)
    clean = (h, *scan_vjp(a, h, dh, None, h0))
    for array in (a, x, dh):
        array[2] = bad
    h = scan(a, x, h0)
    dirty = (h, *scan_vjp(a, h, dh, None, h0))
    for got, expected in zip(dirty, clean, strict=True):
        assert_same_bits(got[[0, 1, 3]], expected[[0, 1, 3]])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("rows", [[64, 10, 1, 33], [10], [0, 64]], ids=str)
def test_n10_padding_does_not_leak(rng, rows, side):
    B, T, D = len(rows), 64, 8
    lengths = np.array(rows)
    steps = np.arange(T)
    valid = steps >= T - lengths[:, None] if side == "left" else steps < lengths[:, None]
    a, x, dh = gates(rng, (B, T, D), np.float32), *normal(rng, (2, B, T, D), np.float32)
    a[~valid] = x[~valid] = np.nan
    dh = np.where(valid[..., None], dh, np.nan)
    h0, dfinal = normal(rng, (B, D), np.float32), normal(rng, (B, D), np.float32)
    options = {"lengths": lengths, "padding_side": side}
    h, final = scan(a, x, h0, return_final=True, **options)
    da, dx, dh0 = scan_vjp(a, h, dh, dfinal, h0, **options)
    for array in (h, da, dx):
        assert (array[~valid] == 0).all()
    for b in range(B):
        own = valid[b]
        alone, last = scan(a[b, own], x[b, own], h0[b], return_final=True)
        assert_same_bits(h[b, own], alone)
        assert_same_bits(final[b], last)
        grads = scan_vjp(a[b, own], alone, dh[b, own], dfinal[b], h0[b])
        for got, expected in zip((da[b, own], dx[b, own], dh0[b]), grads, strict=True):
            assert_same_bits(got, expected)


# fmt: off
LENGTHS = [1, 2, 3, 5, 7, 31, 32, 33, 63, 65, 127, 129, 255, 257, 1000, 1023, 1025, 4097]
LONG = [65535, 65537, 100003]
# fmt: on


@pytest.mark.parametrize("T", LENGTHS + LONG)
def test_s01_any_length(rng, T):
    shape = (2, T + 1, 3) if T < 65535 else (1, T + 1, 3)
    a = gates(rng, shape, np.float32, 0, 1)
    x, dh = normal(rng, shape, np.float32), normal(rng, shape, np.float32)
    h, _, _ = check(a[:, :T], x[:, :T], None, dh[:, :T])
    longer = scan(a, x)
    assert_matches(longer[:, :T], h.astype(np.float64))


@by_dtype
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0), (0, 0, 0), (0, 3), (0,)])
def test_s03_empty(dtype, shape):
    x = np.ones(shape, dtype)
    state = x.shape[:-2] + x.shape[-1:] if x.ndim > 1 else ()
    h0 = np.full(state, 3, dtype)
    h, final = scan(x, x, h0, return_final=True)
    assert (h.shape, h.dtype) == (x.shape, x.dtype)
    dfinal = np.full_like(final, 2)
    da, dx, dh0 = scan_vjp(x, h, np.ones_like(h), dfinal, h0)
    assert (da.shape, dx.shape, dh0.shape) == (x.shape, x.shape, h0.shape)
    if x.size == 0 and h0.size:
        np.testing.assert_array_equal(final.astype(dtype), h0)
        np.testing.assert_array_equal(dh0.astype(final.dtype), dfinal)
        assert (scan(x, x, return_final=True)[1] == 0).all()
    # And a normal call still works.
    np.testing.assert_array_equal(scan(1.0, np.ones(3, dtype)), np.array([1, 2, 3], dtype))


def test_s03_gradient_of_a_broadcast_gate_is_zero():
    """Sums over nothing are 0, not what was in memory."""
    for shape in [(0, 5, 3), (0, 2, 5, 3), (2, 0, 5, 3), (2, 0, 3)]:
        a, h = np.ones((1,) * (len(shape) - 1) + (3,)), np.ones(shape)
        da, _, _ = scan_vjp(a, h, h)
        np.testing.assert_array_equal(da, np.zeros_like(a))


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 9, 4), (5, 1, 4), (5, 9, 1), (1, 1, 1)])
def test_s02_sizes_of_one(rng, shape):
    big = (5, 9, 4)
    a, x = gates(rng, big, np.float64), normal(rng, big, np.float64)
    B, T, D = shape
    h = scan(a[:B, :T, :D], x[:B, :T, :D])
    assert h.shape == shape
    assert_matches(h, reference.scan(a, x)[0][:B, :T, :D])


@by_dtype
def test_d02_dtypes_of_one_call(rng, dtype):
    x, h0 = normal(rng, (2, 5, 3), dtype), normal(rng, (2, 3), dtype)
    a = gates(rng, (2, 5, 3), dtype)
    for other in DTYPES:
        if other == dtype:
            continue
        with pytest.raises(TypeError, match="scan: a has dtype"):
            scan(a.astype(np.complex128).real.astype(other), x)
    for other in DTYPES:
        state = h0.real.astype(other) if h0.dtype.kind != other.kind else h0.astype(other)
        accumulation = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        if other in (dtype, accumulation):
            h, final = scan(a, x, state, return_final=True)
            assert (h.dtype, final.dtype) == (dtype, accumulation)
            da, dx, dh0 = scan_vjp(a, h, x, None, state)
            assert (da.dtype, dx.dtype, dh0.dtype) == (dtype, dtype, other)
        else:
            with pytest.raises(TypeError, match="scan: h0 has dtype"):
                scan(a, x, state)


@by_dtype
def test_d02_no_state_is_zeros(rng, dtype):
    a, x = gates(rng, (2, 70, 3), dtype), normal(rng, (2, 70, 3), dtype)
    assert_same_bits(scan(a, x), scan(a, x, np.zeros((2, 3), dtype)))


@by_dtype
@pytest.mark.parametrize("order", [np.asarray, time_contiguous])
def test_d03_every_dtype(rng, dtype, order):
    shape = (2, 1000, 3)
    a, x, dh = (
        gates(rng, shape, dtype, 0.5, 1),
        normal(rng, shape, dtype),
        normal(rng, shape, dtype),
    )
    h0, dfinal = normal(rng, (2, 3), dtype), normal(rng, (2, 3), dtype)
    check(order(a), order(x), h0, order(dh), dfinal)
    check(order(a), order(x), h0, order(dh), dfinal, reverse=True)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("kind", ["i", "u"])
def test_d01_integers(kind, bits):
    x = np.ones((2, 3, 4), f"{kind}{bits // 8}")
    with pytest.raises(TypeError, match=f"scan: x has dtype u?int{bits}"):
        scan(1, x)
    with pytest.raises(TypeError, match=f"scan: x has dtype u?int{bits}"):
        scan(1, x, x[:, 0], return_final=True)


@pytest.mark.parametrize(
    "dtype", [object, bool, "S4", "M8[s]", ">f4", ml_dtypes.float8_e5m2, np.longdouble], ids=str
)
def test_d01_unsupported_dtypes(dtype):
    x = np.zeros((2, 3, 4), dtype)
    with pytest.raises(TypeError, match=r"scan: x has dtype .*, expected float16, bfloat16"):
        scan(x, x)


@pytest.mark.parametrize("value", [0.5, 2, True, np.float32(0.5)])
def test_gate_may_be_a_number(value):
    x = np.array([1, 2, 3], np.float32)
    h = scan(value, x)
    assert_matches(h, reference.scan(value, x.reshape(1, 3, 1))[0].ravel())
    da, _, _ = scan_vjp(value, h, np.ones_like(x))
    assert da.shape == ()
    assert da == reference.scan_vjp(value, x.reshape(1, 3, 1), dh=np.ones((1, 3, 1)))[0]


def test_complex_number_needs_a_complex_dtype():
    np.testing.assert_array_equal(scan(1j, np.ones(3, np.complex64)), [1, 1 + 1j, 1j])
    with pytest.raises(TypeError, match="scan: a is complex"):
        scan(1j, np.ones(3, np.float32))


def test_accuracy_grows_slowly(rng):
    """float32 within twice the error of the serial float32 loop."""
    T = 72192
    x = rng.uniform(0.008, 0.01, (1, T, 8)).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64), axis=1)
    serial = np.zeros(8, np.float32)
    errors = np.zeros(8)
    for t in range(T):
        serial = serial + x[0, t]
        errors = np.maximum(errors, np.abs(serial - exact[0, t]))
    h = scan(1.0, x)
    assert np.abs(h - exact).max() <= 2 * errors.max()


def test_out(rng):
    a, x = gates(rng, (2, 9, 3), np.float32), normal(rng, (2, 9, 3), np.float32)
    h = scan(a, x)
    buffer = np.full((2, 18, 3), 7, np.float32)
    out = buffer[:, ::2]
    assert scan(a, x, out=out) is out
    assert_same_bits(out, h)
    assert (buffer[:, 1::2] == 7).all()
    got, _ = scan(a, x, out=out, return_final=True)
    assert got is out
    # Interleaved with an input is not overlapping it.
    buffer[:, 1::2] = x
    scan(a, buffer[:, 1::2], out=out)
    assert_same_bits(out, h)


def test_docstring_example():
    h = scan(np.array([0.5, 0.5, 2.0]), np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(h, [1, 2.5, 8])
