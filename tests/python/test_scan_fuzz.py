"""Random calls of scan and scan_vjp against the serial loop."""

import numpy as np
import reference
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    DTYPES,
    accumulation,
    assert_matches,
    assert_same_bits,
    gates,
    normal,
    time_is_contiguous,
)
from scanrnn import scan, scan_vjp


@st.composite
def layouts(draw, ndim):
    """A function that stores an array of ndim axes in some odd memory layout."""
    order = draw(st.permutations(range(ndim)))
    steps = draw(st.lists(st.sampled_from([1, 1, 2, -1, -3]), min_size=ndim, max_size=ndim))
    offsets = draw(st.lists(st.integers(0, 2), min_size=ndim, max_size=ndim))

    def store(array):
        shape = [
            offset + max(n * abs(step), 1)
            for n, step, offset in zip(array.shape, steps, offsets, strict=True)
        ]
        memory = np.full([shape[i] for i in order], np.nan, array.dtype)
        view = memory.transpose(np.argsort(order))
        for axis, (n, step, offset) in enumerate(zip(array.shape, steps, offsets, strict=True)):
            part = view.take([], axis) if n == 0 else None
            if part is None:
                index = [slice(None)] * ndim
                index[axis] = slice(offset, None)
                view = view[tuple(index)]
                index[axis] = slice(None, None, step)
                view = view[tuple(index)]
                index[axis] = slice(0, n)
                view = view[tuple(index)]
            else:
                view = part
        view[...] = array
        return view

    return store


@st.composite
def sequence_options(draw, B, T):
    """Options of a call; with packed sequences N is their number."""
    options = {"reverse": draw(st.booleans())}
    kind = draw(st.sampled_from(["plain", "packed", "padded"]))
    index = draw(st.sampled_from([np.int32, np.int64]))
    N = B
    if kind == "packed" and B == 1:
        inner = draw(st.lists(st.integers(0, T), max_size=5))
        options["cu_seqlens"] = np.array([0, *sorted(inner), T], index)
        N = len(inner) + 1
    elif kind == "padded":
        lengths = draw(st.lists(st.integers(0, T), min_size=B, max_size=B))
        options["lengths"] = np.array(lengths, index)
        options["padding_side"] = draw(st.sampled_from(["left", "right"]))
    return N, options


sizes = st.tuples(
    st.integers(0, 4),
    st.one_of(st.integers(0, 70), st.sampled_from([127, 128, 129, 1025, 2100])),
    st.one_of(st.integers(0, 9), st.sampled_from([15, 16, 17, 33])),
)


@given(st.data())
def test_scan(data):
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES))
    B, T, D = shape = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gate_shape = tuple(draw(st.sampled_from([n, n, 1])) for n in shape)
    a = gates(rng, gate_shape, dtype)
    if draw(st.booleans()):
        a[rng.random(gate_shape) < 0.1] = 0
    x, dh = normal(rng, shape, dtype), normal(rng, shape, dtype)
    N, options = draw(sequence_options(B, T))
    if draw(st.booleans()):
        options["reset"] = rng.random((B, T)) < draw(st.sampled_from([0.01, 0.5]))
    state_dtypes = st.sampled_from([dtype, accumulation(dtype)])
    h0 = normal(rng, (N, D), draw(state_dtypes)) if draw(st.booleans()) else None
    dfinal = normal(rng, (N, D), draw(state_dtypes)) if draw(st.booleans()) else None
    dh = dh if draw(st.booleans()) else None

    stored = [
        None if array is None else draw(layouts(array.ndim))(array)
        for array in (a, x, h0, dh, dfinal)
    ]
    a_, x_, h0_, dh_, dfinal_ = stored
    h, final = scan(a_, x_, h0_, return_final=True, **options)
    grads = scan_vjp(a_, h, dh_, dfinal_, h0_, **options)

    expected, expected_final = reference.scan(a, x, h0, **options)
    assert (h.dtype, final.dtype) == (dtype, accumulation(dtype))
    assert_matches(h, expected)
    assert_matches(final, expected_final)
    wanted = reference.scan_vjp(a, x, h0, dh, dfinal, h=h, **options)
    for got, value, like in zip(grads, wanted, (a, x, h0), strict=True):
        if like is None:
            assert got is None
        else:
            assert got.dtype == like.dtype
            assert_matches(got, value)

    # Layout changes no bit where the same kernel runs, and other rows never do.
    plain = scan(a, x, h0, **options)
    if time_is_contiguous(h) != time_is_contiguous(plain):
        return
    assert_same_bits(h, plain)
    if B and N == B and "cu_seqlens" not in options:
        b = draw(st.integers(0, B - 1))
        row = {
            name: value[b : b + 1] if isinstance(value, np.ndarray) else value
            for name, value in options.items()
        }
        part = a if gate_shape[0] == 1 else a[b : b + 1]
        alone = scan(part, x[b : b + 1], None if h0 is None else h0[b : b + 1], **row)
        assert_same_bits(h[b : b + 1], alone)
