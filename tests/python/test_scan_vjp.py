"""scan_vjp on NumPy arrays."""

import hashlib
import mmap

import numpy as np
import pytest
import reference
from reference import DTYPES, accumulation, assert_matches, assert_same_bits, gates, normal
from scanrnn import scan, scan_vjp


def difference(function, array, step):
    """Central finite differences of a real function of one array, element by element.

    For complex arrays d/d(re) + i d/d(im), the gradient that points uphill.
    """
    gradient = np.zeros_like(array)
    directions = (1, 1j) if array.dtype.kind == "c" else (1,)
    for index in np.ndindex(array.shape):
        for direction in directions:
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step * direction
                ends.append(function(moved))
            gradient[index] += direction * (ends[0] - ends[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(2, 7, 3), (1, 7, 3), (2, 1, 3), (7, 1), (3,), (1, 1, 1)])
def test_d03_finite_differences(rng, shape, dtype, reverse):
    a, x = gates(rng, shape, dtype), normal(rng, (2, 7, 3), dtype)
    h0, w, v = normal(rng, (2, 3), dtype), normal(rng, x.shape, dtype), normal(rng, (2, 3), dtype)
    reset = np.zeros((2, 7), bool)
    reset[1, 3] = True
    options = {"reverse": reverse, "reset": reset}

    def loss(a, x, h0):
        h, final = scan(a, x, h0, return_final=True, **options)
        return ((w.conj() * h).real.sum() + (v.conj() * final).real.sum()).item()

    grads = scan_vjp(a, scan(a, x, h0, **options), w, v, h0, **options)
    arguments = [a, x, h0]
    for i, gradient in enumerate(grads):

        def along(value, i=i):
            return loss(*[value if j == i else other for j, other in enumerate(arguments)])

        numeric = difference(along, arguments[i], 1e-6)
        np.testing.assert_allclose(gradient, numeric, atol=1e-6)


def test_conj_false_is_the_transpose(rng):
    a, h, dh = gates(rng, (2, 40, 3), np.complex128), *normal(rng, (2, 2, 40, 3), np.complex128)
    da, dx, _ = scan_vjp(a, h, dh, conj=False)
    expected = scan_vjp(a.conj(), h.conj(), dh)
    assert_matches(da, expected[0])
    assert_matches(dx, expected[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("T", [1, 7, 33, 1100])
@pytest.mark.parametrize("state", ["given", "none", "expanded"])
@pytest.mark.parametrize("reverse", [False, True])
def test_g03_gradients_from_both_outputs(rng, dtype, T, state, reverse):
    B, D = 3, 2
    a, x, dh = gates(rng, (B, T, D), dtype), *normal(rng, (2, B, T, D), dtype)
    dfinal = normal(rng, (B, D), accumulation(dtype))
    h0 = None if state == "none" else normal(rng, (B, D), dtype)
    if state == "expanded":
        h0 = np.broadcast_to(h0[:1], (B, D))
    h, final = scan(a, x, h0, reverse=reverse, return_final=True)
    last = h[:, 0 if reverse else -1]
    assert_same_bits(final.astype(dtype), last)
    for one, other in [(dh, None), (None, dfinal), (dh, dfinal), (None, None)]:
        got = scan_vjp(a, h, one, other, h0, reverse=reverse)
        expected = reference.scan_vjp(a, x, h0, one, other, h=h, reverse=reverse)
        for value, wanted in zip(got, expected, strict=True):
            if value is not None:
                assert_matches(value, wanted)
        assert (got[2] is None) == (h0 is None)


def test_g03_chained_chunks(rng):
    shape, cut = (2, 300, 3), 120
    a, x, dh = (
        gates(rng, shape, np.float64),
        normal(rng, shape, np.float64),
        normal(rng, shape, "d"),
    )
    h0, dfinal = normal(rng, (2, 3), np.float64), normal(rng, (2, 3), np.float64)
    whole = scan_vjp(a, scan(a, x, h0), dh, dfinal, h0)
    first, state = scan(a[:, :cut], x[:, :cut], h0, return_final=True)
    second = scan(a[:, cut:], x[:, cut:], state)
    late = scan_vjp(a[:, cut:], second, dh[:, cut:], dfinal, state)
    early = scan_vjp(a[:, :cut], first, dh[:, :cut], late[2], h0)
    for i in (0, 1):
        assert_matches(np.concatenate([early[i], late[i]], axis=1), whole[i])
    assert_matches(early[2], whole[2])


def test_g05_backward_twice(rng):
    shape = (3, 400, 5)
    a, x, dh = gates(rng, shape, np.float32), normal(rng, shape, "f"), normal(rng, shape, "f")
    h0, dfinal = normal(rng, (3, 5), np.float32), normal(rng, (3, 5), np.float32)
    h = scan(a, x, h0)
    saved = [array.copy() for array in (a, h, h0, dh, dfinal)]
    both = scan_vjp(a, h, dh, dfinal, h0)
    again = scan_vjp(a, h, dh, dfinal, h0)
    parts = scan_vjp(a, h, dh, None, h0), scan_vjp(a, h, None, dfinal, h0)
    for i in range(3):
        assert_same_bits(both[i], again[i])
        assert_matches(parts[0][i] + parts[1][i], both[i].astype(np.float64))
    for array, before in zip((a, h, h0, dh, dfinal), saved, strict=True):
        assert_same_bits(array, before)


GATE_SHAPES = [
    (3, 50, 4),
    (1, 50, 4),
    (3, 1, 4),
    (3, 50, 1),
    (1, 1, 4),
    (1, 50, 1),
    (3, 1, 1),
    (1, 1, 1),
    (50, 4),
    (1, 4),
    (50, 1),
    (4,),
    (1,),
    (),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", GATE_SHAPES, ids=str)
def test_broadcast_gates(rng, shape, dtype):
    full = (3, 50, 4)
    a, x, dh = gates(rng, shape, dtype, 0.5, 1), *normal(rng, (2, *full), dtype)
    h = scan(a, x)
    assert_same_bits(h, scan(np.ascontiguousarray(np.broadcast_to(a, full)), x))
    da, dx, _ = scan_vjp(a, h, dh)
    expected_a, expected_x, _ = reference.scan_vjp(a, x, dh=dh, h=h)
    assert da.dtype == dtype
    assert_matches(da, expected_a)
    assert_matches(dx, expected_x)


def test_half_gradients_are_summed_in_float32():
    """One gate for 4096 steps: a bfloat16 sum of ones would stall at 256."""
    ones = np.ones((1, 4096, 1), reference.BFLOAT16)
    a = np.zeros((1, 1, 1), reference.BFLOAT16)
    da, _, _ = scan_vjp(a, ones, ones)
    assert da.item() == 4096  # 4095 terms, rounded


@pytest.mark.parametrize("lead", [(2, 3), (2, 1, 3), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("which", range(8))
def test_gates_broadcast_over_some_batch_axes(rng, lead, which):
    full = (*lead, 20, 3)
    shape = tuple(1 if which >> i & 1 else n for i, n in enumerate(lead)) + full[len(lead) :]
    a, x, dh = gates(rng, shape, np.float64), *normal(rng, (2, *full), np.float64)
    h0, dfinal = normal(rng, (2, *lead, 3), np.float64)
    h, final = scan(a, x, h0, return_final=True)
    grads = scan_vjp(a, h, dh, dfinal, h0)
    flat = np.broadcast_to(a, full).reshape(-1, 20, 3)
    rows = x.reshape(-1, 20, 3)
    expected, expected_final = reference.scan(flat, rows, h0.reshape(-1, 3))
    assert_matches(h, expected.reshape(full))
    assert_matches(final, expected_final.reshape(h0.shape))
    da, dx, dh0 = reference.scan_vjp(
        flat, rows, h0.reshape(-1, 3), dh.reshape(-1, 20, 3), dfinal.reshape(-1, 3)
    )
    assert_matches(grads[0], reference.sum_to(da.reshape(full), shape))
    assert_matches(grads[1], dx.reshape(full))
    assert_matches(grads[2], dh0.reshape(h0.shape))


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8)).hexdigest()


def test_g10_inputs_are_not_written(rng, tmp_path):
    """On pages that the process may not write: a write would end it."""
    shape = (2, 200, 3)
    sources = {
        "a": gates(rng, shape, np.float32),
        "x": normal(rng, shape, np.float32),
        "h0": normal(rng, (2, 3), np.float32),
        "dh": normal(rng, shape, np.float32),
        "dfinal": normal(rng, (2, 3), np.float32),
        "reset": rng.random((2, 200)) < 0.1,
        "lengths": np.array([200, 77]),
    }
    arrays, maps = {}, []
    for name, array in sources.items():
        path = tmp_path / name
        path.write_bytes(array.tobytes())
        with path.open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        arrays[name] = np.frombuffer(maps[-1], array.dtype).reshape(array.shape)
    a, x, h0, dh, dfinal, reset, lengths = arrays.values()
    before = [digest(array) for array in arrays.values()]
    for options in ({}, {"reset": reset}, {"lengths": lengths, "reverse": True}):
        h = scan(a, x, h0, **options)
        hashed = digest(h)
        h.flags.writeable = False
        scan_vjp(a, h, dh, dfinal, h0, **options)
        assert digest(h) == hashed
    assert [digest(array) for array in arrays.values()] == before
    del a, x, h0, dh, dfinal, reset, lengths, array, options
    arrays.clear()
