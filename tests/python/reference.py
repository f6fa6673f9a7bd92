"""The recurrences as plain serial loops in double precision, which every test compares with.

Arrays are (B, T, D), states (N, D), as in the library; results are float64 or complex128 NumPy
arrays. Written for clarity, step by step, one sequence after the other.
"""

from itertools import pairwise

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
REAL_DTYPES = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]
DTYPES = [*REAL_DTYPES, np.dtype(np.complex64), np.dtype(np.complex128)]

ACTIVATIONS = {
    "identity": (lambda c: c, lambda c: np.ones_like(c)),
    "tanh": (np.tanh, lambda c: 1 - np.tanh(c) ** 2),
    "relu": (lambda c: np.where(c > 0, c, 0 * c), lambda c: (c > 0).astype(c.dtype)),
}


def double(array):
    """An array of any dtype as float64 or complex128."""
    array = np.asarray(array)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def sequences(B, T, *, cu_seqlens=None, lengths=None, padding_side="right", reverse=False):
    """For every sequence its batch row and its steps, in the order of the recurrence."""
    if cu_seqlens is not None:
        bounds = [(0, int(i), int(j)) for i, j in pairwise(cu_seqlens)]
    elif lengths is not None and padding_side == "left":
        bounds = [(b, T - int(n), T) for b, n in enumerate(lengths)]
    elif lengths is not None:
        bounds = [(b, 0, int(n)) for b, n in enumerate(lengths)]
    else:
        bounds = [(b, 0, T) for b in range(B)]
    return [(b, list(range(i, j))[:: -1 if reverse else 1]) for b, i, j in bounds]


def initial(state, N, D, dtype):
    return np.zeros((N, D), dtype) if state is None else double(state).astype(dtype)


def sum_to(array, shape):
    """Sum an array over the axes that were broadcast from shape."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    return array.sum(axis=axes, keepdims=True)


def scan(a, x, h0=None, *, reset=None, **options):
    """h_t = a_t h_{t-1} + x_t: (h, final)."""
    x = double(x)
    a = np.broadcast_to(double(a), x.shape)
    B, T, D = x.shape
    runs = sequences(B, T, **options)
    h, final = np.zeros_like(x), initial(h0, len(runs), D, x.dtype)
    for n, (b, steps) in enumerate(runs):
        state = final[n].copy()
        for t in steps:
            # Dropped, not multiplied by zero: what was there may be infinite.
            state = x[b, t] if reset is not None and reset[b, t] else a[b, t] * state + x[b, t]
            h[b, t] = state
        final[n] = state
    return h, final


def scan_vjp(a, x, h0=None, dh=None, dfinal=None, *, h=None, reset=None, conj=True, **options):
    """Gradients (da, dx, dh0) of a loss with gradients dh and dfinal, da in a's shape.

    With h, what a forward call stored, its rounding is not counted as an error of these.
    """
    h = scan(a, x, h0, reset=reset, **options)[0] if h is None else double(h)
    shape, (B, T, D) = np.shape(a), h.shape
    runs = sequences(B, T, **options)
    N = len(runs)
    a, first = np.broadcast_to(double(a), h.shape), initial(h0, N, D, h.dtype)
    if conj:
        a, h, first = a.conj(), h.conj(), first.conj()
    dh = np.zeros_like(h) if dh is None else double(dh)
    da, dx, dh0 = np.zeros_like(h), np.zeros_like(h), initial(dfinal, N, D, h.dtype).copy()
    for n, (b, steps) in enumerate(runs):
        gradient = dh0[n].copy()
        for k in reversed(range(len(steps))):
            t = steps[k]
            gradient = gradient + dh[b, t]
            dx[b, t] = gradient
            if reset is not None and reset[b, t]:
                gradient = np.zeros_like(gradient)
                continue
            before = h[b, steps[k - 1]] if k > 0 else first[n]
            da[b, t] = gradient * before
            gradient = gradient * a[b, t]
        dh0[n] = gradient
    return sum_to(da, shape), dx, dh0


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def _sru_inputs(u, f, r, skip, bias_f, bias_r):
    u, f, r = double(u), double(f), double(r)
    skip = np.zeros_like(u) if skip is None else double(skip)
    f = f if bias_f is None else f + double(bias_f)
    r = r if bias_r is None else r + double(bias_r)
    return u, sigmoid(f), sigmoid(r), skip


def sru(
    u,
    f,
    r,
    skip=None,
    bias_f=None,
    bias_r=None,
    c0=None,
    *,
    activation="identity",
    reset=None,
    **options,
):
    """The simple recurrent unit: (h, final c)."""
    u, f, r, skip = _sru_inputs(u, f, r, skip, bias_f, bias_r)
    g, _ = ACTIVATIONS[activation]
    B, T, D = u.shape
    runs = sequences(B, T, **options)
    h, final = np.zeros_like(u), initial(c0, len(runs), D, u.dtype)
    for n, (b, steps) in enumerate(runs):
        c = final[n].copy()
        for t in steps:
            if reset is not None and reset[b, t]:
                c = np.zeros_like(c)
            c = f[b, t] * c + (1 - f[b, t]) * u[b, t]
            h[b, t] = r[b, t] * g(c) + (1 - r[b, t]) * skip[b, t]
        final[n] = c
    return h, final


def sru_vjp(
    u,
    f,
    r,
    skip=None,
    bias_f=None,
    bias_r=None,
    c0=None,
    dh=None,
    dfinal=None,
    *,
    activation="identity",
    reset=None,
    **options,
):
    """Gradients of `sru`: a dict by argument name, also for arguments that are None."""
    u, f, r, skip = _sru_inputs(u, f, r, skip, bias_f, bias_r)
    g, slope = ACTIVATIONS[activation]
    B, T, D = u.shape
    runs = sequences(B, T, **options)
    first = initial(c0, len(runs), D, u.dtype)
    dh = np.zeros_like(u) if dh is None else double(dh)
    du, df, dr, dskip = (np.zeros_like(u) for _ in range(4))
    dc0 = initial(dfinal, len(runs), D, u.dtype).copy()
    for n, (b, steps) in enumerate(runs):
        before, after = [], []
        c = first[n]
        for t in steps:
            if reset is not None and reset[b, t]:
                c = np.zeros_like(c)
            before.append(c)
            c = f[b, t] * c + (1 - f[b, t]) * u[b, t]
            after.append(c)
        gradient = dc0[n].copy()
        for k in reversed(range(len(steps))):
            t = steps[k]
            dr[b, t] = dh[b, t] * (g(after[k]) - skip[b, t]) * r[b, t] * (1 - r[b, t])
            dskip[b, t] = dh[b, t] * (1 - r[b, t])
            gradient = gradient + dh[b, t] * r[b, t] * slope(after[k])
            du[b, t] = gradient * (1 - f[b, t])
            df[b, t] = gradient * (before[k] - u[b, t]) * f[b, t] * (1 - f[b, t])
            dropped = reset is not None and reset[b, t]
            gradient = np.zeros_like(gradient) if dropped else gradient * f[b, t]
        dc0[n] = gradient
    return {
        "u": du,
        "f": df,
        "r": dr,
        "skip": dskip,
        "bias_f": df.sum((0, 1)),
        "bias_r": dr.sum((0, 1)),
        "c0": dc0,
    }


# Data


def normal(rng, shape, dtype):
    """Standard normal values of any dtype."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def gates(rng, shape, dtype, low=-1.0, high=1.0):
    """Uniform values between low and high; complex ones also have any phase."""
    values = rng.uniform(low, high, shape)
    if np.dtype(dtype).kind == "c":
        values = values * np.exp(2j * np.pi * rng.random(shape))
    return values.astype(dtype)


def time_contiguous(array):
    """The same (B, T, D) array in (B, D, T) memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 1)).transpose(0, 2, 1)


def accumulation(dtype):
    """The dtype that states are carried in."""
    return np.dtype(np.float32) if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)


# Comparing

RTOL = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-12, "complex128": 1e-12}


def ulps(got, expected):
    """Distance of two arrays of a 16-bit dtype in units of the last place."""

    def ordered(array):
        bits = np.ascontiguousarray(array).view(np.int16).astype(np.int32)
        return np.where(bits < 0, -(bits & 0x7FFF), bits)

    return np.abs(ordered(got) - ordered(expected))


def assert_matches(got, expected, *, units=1, rtol=None):
    """Check an array of the library against a double precision one, by the dtype of the first.

    16-bit floats may be off by `units` in the last place of the rounded expected value; others by
    rtol. Where terms cancel, the error counts against the largest value of the same array.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)
        wide = double(got)
        finite = np.isfinite(expected)
        scale = np.abs(expected[finite]).max(initial=0)
        half = got.dtype.itemsize == 2
        # Below the smallest normal number (almost) there are no relative errors.
        tiny = 1e-3 * np.finfo(accumulation(got.dtype)).tiny
        allowed = (rtol or RTOL.get(got.dtype.name, 1e-5)) * (np.abs(expected) + scale) + tiny
        good = np.abs(wide - expected) <= allowed
        good |= wide == double(rounded)
        good |= np.isnan(wide) & np.isnan(expected)
        if half:
            good |= (ulps(got, rounded) <= units) & ~np.isnan(wide) & ~np.isnan(expected)
    if not good.all():
        index = tuple(np.argwhere(~good)[0])
        raise AssertionError(
            f"{np.count_nonzero(~good)} of {good.size} differ, the first at {index}: "
            f"{got[index]!r}, expected {expected[index]!r}"
        )


def time_is_contiguous(array):
    """Whether (B, T, D) arrays of this layout run with steps as SIMD lanes: that gives other bits.

    One channel always does.
    """
    step, lane = (abs(stride) // array.itemsize for stride in array.strides[1:])
    return array.shape[2] > 1 and step == 1 and lane != 1


def assert_same_bits(got, expected):
    """Check that two arrays are equal bit for bit, NaN included."""
    got, expected = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))
