"""scan on NumPy arrays of any memory layout and any number of axes.

Layout never changes a bit, but for whether time is the contiguous axis.
"""

import itertools
import mmap

import ml_dtypes
import numpy as np
import pytest
import reference
from reference import (
    DTYPES,
    assert_matches,
    assert_same_bits,
    gates,
    normal,
    time_is_contiguous,
)
from scanrnn import scan, scan_vjp


def check_layout(a, x, dh, h0=None):
    """Results for views are those for contiguous copies, bit for bit where one kernel runs both."""
    h, final = scan(a, x, h0, return_final=True)
    copies = [None if v is None else np.ascontiguousarray(v) for v in (a, x, dh, h0)]
    expected, expected_final = scan(*copies[:2], copies[3], return_final=True)
    along = [time_is_contiguous(v) for v in (h, dh)]
    same = assert_close if any(along) else assert_same_bits
    same(h, expected)
    same(final, expected_final)
    got = scan_vjp(a, h, dh, None, h0)
    wanted = scan_vjp(copies[0], expected, copies[2], None, copies[3])
    for value, other in zip(got, wanted, strict=True):
        if value is not None:
            same(value, other)


def assert_close(got, expected):
    double = np.complex128 if got.dtype.kind == "c" else np.float64
    assert_matches(got, expected.astype(double))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("D", range(1, 10))
def test_s07_every_order_of_axes(rng, order, D):
    shape = (3, 70, D)
    inverse = np.argsort(order)

    def stored(array):
        return np.ascontiguousarray(array.transpose(order)).transpose(inverse)

    a, x, dh = (stored(normal(rng, shape, np.float32)) * np.float32(0.5) for _ in range(3))
    check_layout(a, x, dh)
    check_layout(np.ascontiguousarray(a), x, dh)
    check_layout(a, np.ascontiguousarray(x), dh)


VIEWS = {
    "every other step": np.s_[:, ::2],
    "flipped time": np.s_[:, ::-1],
    "flipped all": np.s_[::-1, ::-1, ::-1],
    "later channels": np.s_[..., 1:],
    "every third channel": np.s_[..., ::3],
    "one channel": np.s_[..., 2:3],
    "middle": np.s_[1:3, 5:-7, 1:-1],
    "backwards in threes": np.s_[::2, ::-3, ::-2],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("T", [40, 1200])
def test_s07_slices(rng, name, T, dtype):
    shape = (4, T, 9)
    view = VIEWS[name]
    a, x, dh = gates(rng, shape, dtype)[view], *(normal(rng, shape, dtype)[view] for _ in range(2))
    h0 = normal(rng, (9, 4), dtype).T[view[:1]][:, : x.shape[2]]
    h0 = h0 if h0.shape == (x.shape[0], x.shape[2]) else None
    check_layout(a, x, dh, h0)


def test_s07_expanded(rng):
    x = np.broadcast_to(normal(rng, (1, 50, 3), np.float32), (4, 50, 3))
    a = np.broadcast_to(gates(rng, (4, 1, 1), np.float32), (4, 50, 3))
    h0 = np.broadcast_to(np.float32(2), (4, 3))
    check_layout(a, x, np.broadcast_to(np.float32(1), x.shape), h0)
    # A stride of 0 is a full array to the gradient; only axes of size 1 are summed over.
    assert scan_vjp(a, x, x)[0].shape == (4, 50, 3)


def test_s07_meaningless_strides_of_single_axes(rng):
    memory = normal(rng, (40,), np.float32)
    x = np.lib.stride_tricks.as_strided(memory, (1, 40, 1), (0, 4, 28))
    check_layout(x * np.float32(0.5), x, x)
    odd = np.lib.stride_tricks.as_strided(memory, (1, 40, 1), (3, 4, 1))
    check_layout(x * np.float32(0.5), odd, odd)
    overlapping = np.lib.stride_tricks.as_strided(memory, (5, 20, 3), (4, 4, 8))
    check_layout(overlapping * np.float32(0.5), overlapping, overlapping)


@pytest.mark.parametrize("ndim", [1, 2, 3, 4, 5])
def test_time_on_any_axis(rng, ndim):
    sizes = (2, 3, 17, 4, 2)[-ndim:] if ndim > 2 else (17, 4)[:ndim]
    x0 = normal(rng, sizes, np.float64)
    h_rest = sizes[:-2] + sizes[-1:] if ndim > 1 else ()
    a0, h0 = gates(rng, sizes, np.float64), normal(rng, h_rest, np.float64)
    at = max(ndim - 2, 0)
    h, final = scan(a0, x0, h0, return_final=True)
    grads = scan_vjp(a0, h, x0, final, h0)
    for axis in range(-ndim, ndim):
        a, x = np.moveaxis(a0, at, axis), np.moveaxis(x0, at, axis)
        got, got_final = scan(a, x, h0, axis=axis, return_final=True)
        assert_same_bits(got, np.moveaxis(h, at, axis))
        assert_same_bits(got_final, final)
        da, dx, dh0 = scan_vjp(a, got, x, final, h0, axis=axis)
        assert_same_bits(da, np.moveaxis(grads[0], at, axis))
        assert_same_bits(dx, np.moveaxis(grads[1], at, axis))
        assert_same_bits(dh0, grads[2])


@pytest.mark.parametrize(
    "view",
    [
        np.s_[:],
        np.s_[:, ::2],
        np.s_[::-1],
        np.s_[:, ::-1, 1:],
        np.s_[:, 1:2],
        np.s_[:1],
        np.s_[:, :, :, 1:],
    ],
    ids=str,
)
@pytest.mark.parametrize("axis", [-2, 0, 1, 2, -1])
def test_several_batch_axes(rng, view, axis):
    a, x, dh = (normal(rng, (2, 4, 3, 6, 5), np.float64)[view] * 0.5 for _ in range(3))
    state = np.delete(x.shape, axis)
    h0, dfinal = normal(rng, tuple(state), np.float64), normal(rng, tuple(state), np.float64)
    lengths = rng.integers(0, x.shape[axis] + 1, state[:-1])
    reset = rng.random((*state[:-1], x.shape[axis])) < 0.2
    for options in ({}, {"lengths": lengths, "padding_side": "left"}, {"reset": reset}):
        h, final = scan(a, x, h0, axis=axis, return_final=True, **options)
        da, dx, dh0 = scan_vjp(a, h, dh, dfinal, h0, axis=axis, **options)

        def rows(array, axis=axis, state=state):
            array = np.moveaxis(array, axis, -2)
            return array.reshape(-1, array.shape[-2], state[-1])

        flat = {
            name: value.reshape(-1, *value.shape[len(state) - 1 :])
            if isinstance(value, np.ndarray)
            else value
            for name, value in options.items()
        }
        flat_h0, flat_dfinal = h0.reshape(-1, state[-1]), dfinal.reshape(-1, state[-1])
        expected, last = reference.scan(rows(a), rows(x), flat_h0, **flat)
        assert_matches(rows(h), expected)
        assert_matches(final.reshape(last.shape), last)
        grads = reference.scan_vjp(rows(a), rows(x), flat_h0, rows(dh), flat_dfinal, **flat)
        assert_matches(rows(da), grads[0])
        assert_matches(rows(dx), grads[1])
        assert_matches(dh0.reshape(last.shape), grads[2])


def sparse_memory(size):
    """Zeros that take no memory until they are touched, page by page."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "time", "channel"])
@pytest.mark.parametrize(
    ("dtype", "elements", "step"),
    [
        pytest.param(ml_dtypes.bfloat16, 2_200_000_000, 2**20, id="element offset"),
        pytest.param(np.float32, 600_000_000, 2**18, id="byte offset"),
        pytest.param(np.float16, 2_200_000_000, -(2**20), id="negative offset"),
    ],
)
def test_s06_offsets_beyond_32_bits(rng, axis, dtype, elements, step):
    dtype = np.dtype(dtype)
    n = elements // abs(step)
    shape = tuple(n if i == axis else 1 for i in range(3))
    memories = []

    def far_apart(values):
        memories.append(sparse_memory(elements * dtype.itemsize))
        base = np.frombuffer(memories[-1], dtype)
        view = base[::step][:n].reshape(shape)
        assert np.shares_memory(view, base)
        view[...] = values
        return view

    a, x, dh = gates(rng, shape, dtype), normal(rng, shape, dtype), normal(rng, shape, dtype)
    h = scan(a, x)
    grads = scan_vjp(a, h, dh)
    out = scan(far_apart(a), far_apart(x), out=far_apart(np.full(shape, 9, dtype)))
    assert_same_bits(out, h)
    for got, expected in zip(scan_vjp(far_apart(a), out, far_apart(dh)), grads, strict=True):
        if got is not None:
            assert_same_bits(got, expected)


@pytest.mark.parametrize("kind", ["frombuffer", "broadcast_to", "memmap", "setflags"])
def test_i01_read_only(rng, kind, tmp_path):
    shape = (2, 7, 3)
    arrays = gates(rng, shape, np.float32), normal(rng, shape, "f"), normal(rng, (2, 3), "f")

    def read_only(i, array):
        if kind == "frombuffer":
            return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
        if kind == "broadcast_to":
            return np.broadcast_to(array.ravel()[0], array.shape)
        if kind == "memmap":
            array.tofile(tmp_path / f"{i}")
            return np.memmap(tmp_path / f"{i}", array.dtype, "r", shape=array.shape)
        array.setflags(write=False)
        return array

    views = [read_only(i, array) for i, array in enumerate(arrays)]
    h = scan(*views)
    assert type(h) is np.ndarray
    assert h.flags.writeable
    assert_same_bits(h, scan(*(np.array(view) for view in views)))
    scan_vjp(views[0], views[1], views[1], h0=views[2])
    with pytest.raises(ValueError, match="scan: out is read-only"):
        scan(arrays[0], arrays[1], out=views[1])


def test_results_keep_the_axis_order_in_memory(rng):
    x = normal(rng, (2, 3, 40), np.float32).transpose(0, 2, 1)
    assert scan(0.5, x).strides == x.strides
    assert scan(0.5, x[:, ::-1]).strides == x.strides
