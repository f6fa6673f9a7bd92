"""Random calls of `scanrnn.jax`'s scan and linear cells against serial loops.

Every example is compiled anew, so there are few of each: dtypes, axes, sequences and absent
arguments are drawn together.
"""

# ruff: noqa: E402
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")

import reference
import scanrnn.jax as srj
from cell_reference import ACTIVATIONS, CELLS, Run
from jax_helpers import x64  # noqa: F401
from reference import DTYPES, REAL_DTYPES, accumulation, assert_matches, gates, normal
from test_cells import arguments, has_checkpoints
from test_scan_fuzz import sequence_options

pytestmark = pytest.mark.usefixtures("x64")

few = settings(
    max_examples=settings.default.max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
sizes = st.tuples(st.integers(0, 4), st.integers(0, 70), st.integers(0, 17))
axes = st.sampled_from([-2, -1, 0])


def run(function, arrays, dh, dfinal, axis, **options):
    """h, final and the gradients of a function, with its time axis elsewhere."""

    def moved(array, there, back=-2):
        return np.moveaxis(array, back, there) if np.ndim(array) == 3 else array

    given = [k for k, a in enumerate(arrays) if a is not None]

    def f(*some):
        full = dict(zip(given, some, strict=True))
        values = [full.get(k) for k in range(len(arrays))]
        return function(*values, axis=axis, return_final=True, **options)

    (h, final), pullback = jax.vjp(f, *(moved(arrays[k], axis) for k in given))
    seeds = np.zeros(h.shape, h.dtype) if dh is None else moved(dh, axis)
    dfinal = np.zeros(final.shape) if dfinal is None else dfinal
    grads = dict(zip(given, pullback((seeds, dfinal.astype(final.dtype))), strict=True))
    grads = [None if k not in grads else moved(grads[k], -2, axis) for k in range(len(arrays))]
    return moved(h, -2, axis), final, grads


@few
@given(data=st.data())
def test_scan(data):
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES))
    B, T, D = shape = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    a = gates(rng, tuple(draw(st.sampled_from([n, n, 1])) for n in shape), dtype)
    x, dh = normal(rng, shape, dtype), normal(rng, shape, dtype)
    N, options = draw(sequence_options(B, T))
    if draw(st.booleans()):
        options["reset"] = rng.random((B, T)) < 0.2
    state_dtypes = st.sampled_from([dtype, accumulation(dtype)])
    h0 = normal(rng, (N, D), draw(state_dtypes)) if draw(st.booleans()) else None
    dfinal = normal(rng, (N, D), accumulation(dtype)) if draw(st.booleans()) else None
    dh = dh if draw(st.booleans()) else None
    h, final, grads = run(srj.scan, (a, x, h0), dh, dfinal, draw(axes), **options)
    expected, last = reference.scan(a, x, h0, **options)
    assert (h.dtype, final.dtype) == (dtype, accumulation(dtype))
    assert_matches(h, expected)
    assert_matches(final, last)
    wanted = reference.scan_vjp(a, x, h0, dh, dfinal, h=np.asarray(h), conj=False, **options)
    for got, value, like in zip(grads, wanted, (a, x, h0), strict=True):
        if like is not None:
            assert got.dtype == like.dtype
            assert_matches(got, value)


@pytest.mark.parametrize("name", CELLS)
@few
@given(data=st.data())
def test_cells(name, data):
    draw = data.draw
    dtype = draw(st.sampled_from(REAL_DTYPES))
    B, T, D = shape = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    N, options = draw(sequence_options(B, T))
    if "c" in CELLS[name].options:
        options["c"] = draw(st.floats(0.5, 10))
    else:
        allowed = list(ACTIVATIONS)[: 3 if name == "sru" else None]
        options["activation"] = draw(st.sampled_from(allowed))
    if draw(st.booleans()):
        options["reset"] = rng.random((B, T)) < 0.2
    arrays, cell = arguments(rng, name, shape, dtype, N), CELLS[name]
    for k, argument in enumerate((*cell.arguments, cell.state)):
        if argument in (*cell.optional, cell.state) and draw(st.booleans()):
            arrays[k] = None
        elif argument in (*cell.vectors, cell.state) and draw(st.booleans()):
            arrays[k] = arrays[k].astype(accumulation(dtype))
    if name == "qrnn" and arrays[2] is None:
        arrays[3] = None
    dh = normal(rng, shape, dtype) if draw(st.booleans()) else None
    dfinal = normal(rng, (N, D), accumulation(dtype)) if draw(st.booleans()) else None
    function = getattr(srj, name)
    h, final, grads = run(function, arrays, dh, dfinal, draw(axes), **options)
    loop = Run(name, *arrays, **options)
    expected, last = loop.forward()
    assert (h.dtype, final.dtype) == (dtype, accumulation(dtype))
    tolerance = {"rtol": 2e-5 if dtype.itemsize <= 4 else None}
    assert_matches(h, expected, **tolerance)
    assert_matches(final, last, **tolerance)
    stored = None if has_checkpoints(name, arrays) else np.asarray(h)
    for array, got, want in zip(arrays, grads, loop.vjp(dh, dfinal, stored), strict=True):
        if array is not None:
            assert (got.shape, got.dtype) == (array.shape, array.dtype)
            assert_matches(got, want, **tolerance)
