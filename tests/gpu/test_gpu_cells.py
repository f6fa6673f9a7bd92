"""The fused cells on the device: against their papers' equations, and against the CPU backend."""

# ruff: noqa: E402
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import scanrnn.torch as srt
from cell_reference import ACTIVATIONS, CELLS, Run
from gpu_helpers import LAYOUTS, leaf, to_numpy, to_torch
from reference import REAL_DTYPES, accumulation, assert_matches, assert_same_bits, normal

B, T, D = 3, 400, 5
ENDS = [0, 3, 4, 4, 260, 317, 400]
FLAGS = np.arange(B * T).reshape(B, T) % 67 == 11
OPTIONS = {
    "plain": {},
    "left-reverse": {"lengths": [0, 300, 400], "padding_side": "left", "reverse": True},
    "packed-reverse-reset": {"cu_seqlens": ENDS, "reset": FLAGS[:1], "reverse": True},
    "lengths-reset": {"lengths": [400, 0, 257], "reset": FLAGS},
}
NEW = [name for name in CELLS if name != "sru"]  # test_gpu_sru.py has that one
by_cell = pytest.mark.parametrize("name", NEW)


def make(rng, name, shape, N, dtype):
    """A cell's arguments in order, with an initial state."""
    cell, wide = CELLS[name], accumulation(dtype)
    arrays = []
    for argument in cell.arguments:
        array = normal(rng, shape[2:], wide) if argument in cell.vectors else None
        array = normal(rng, shape, dtype) if array is None else array
        arrays.append(rng.random(shape[2]).astype(wide) if argument == "bound" else array)
    return [*arrays, normal(rng, (N, shape[2]), wide)]


def run(name, arrays, dh, dfinal, device, arrange=lambda t: t, **options):
    """h, the final state and the gradients in order; None for arguments that are None."""
    given = [None if v is None else to_torch(v, device) for v in arrays]
    given = [t if t is None else leaf(arrange(t) if t.ndim == 3 else t) for t in given]
    for key in ("lengths", "cu_seqlens", "reset"):
        if key in options:
            options[key] = torch.as_tensor(options[key], device=device)
    outputs = getattr(srt, name)(*given, return_final=True, **options)
    seeds = [arrange(to_torch(dh, device)), to_torch(dfinal, device)]
    gradients = iter(torch.autograd.grad(outputs, [t for t in given if t is not None], seeds))
    gradients = [None if t is None else to_numpy(next(gradients)) for t in given]
    return *map(to_numpy, outputs), gradients


def check(rng, name, device, dtype, layout="btd", absent=(), **options):
    """Forward and backward against the serial loop."""
    rows = 1 if "cu_seqlens" in options else B
    N = len(options.get("cu_seqlens", range(rows + 1))) - 1
    shape = (rows, T, D)
    arrays = make(rng, name, shape, N, dtype)
    for argument in absent:
        arrays[CELLS[name].arguments.index(argument)] = None
    dh, dfinal = normal(rng, shape, dtype), normal(rng, (N, D), accumulation(dtype))
    h, final, gradients = run(name, arrays, dh, dfinal, device, LAYOUTS[layout], **options)
    reference = Run(name, *arrays, **options)
    expected, last = reference.forward()
    tolerance = {"units": 2, "rtol": 2e-5 if dtype.itemsize < 8 else None}
    assert_matches(h, expected, **tolerance)
    assert_matches(final, last, **tolerance)
    state_is_output = name != "qrnn" or "o" in absent
    wanted = reference.vjp(dh, dfinal, h if state_is_output else None)
    for got, want in zip(gradients, wanted, strict=True):
        if got is None:
            continue
        # Sums over all steps may cancel, and be rounded twice.
        sums = got.ndim == 1 and dtype.itemsize < 8
        rtol = (2e-3 if dtype.itemsize == 2 else 1e-4) if sums else tolerance["rtol"]
        assert_matches(got, want, units=4, rtol=rtol)


@pytest.mark.parametrize("layout", ["btd", "bdt", "tbd"])
@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@by_cell
def test_options(device, rng, name, options, dtype, layout):
    check(rng, name, device, dtype, layout, **OPTIONS[options])


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("name", [n for n in NEW if "activation" in CELLS[n].options])
def test_activations(device, rng, name, activation):
    check(rng, name, device, np.dtype(np.float32), activation=activation)


@pytest.mark.parametrize("absent", [("i",), ("o", "i")], ids=str)
def test_pooling(device, rng, absent):
    check(rng, "qrnn", device, np.dtype(np.float32), absent=absent)


def test_absent_bound(device, rng):
    check(rng, "hgrn", device, np.dtype(np.float32), absent=("bound",))


@pytest.mark.parametrize(
    "shape", [(1, 70_001, 3), (2, 5000, 64), (4, 33, 130), (64, 1, 8)], ids=str
)
@by_cell
def test_like_the_cpu(device, rng, name, shape):
    """The same numbers as on the CPU, up to rounding, and the same bits again."""
    arrays = make(rng, name, shape, shape[0], np.dtype(np.float32))
    dh, dfinal = normal(rng, shape, np.float32), normal(rng, (shape[0], shape[2]), np.float32)
    h, final, gradients = run(name, arrays, dh, dfinal, device)
    again = run(name, arrays, dh, dfinal, device)
    expected = run(name, arrays, dh, dfinal, "cpu")
    for got, same, want in zip(
        (h, final, *gradients),
        (*again[:2], *again[2]),
        (*expected[:2], *expected[2]),
        strict=True,
    ):
        assert_same_bits(got, same)
        assert_matches(got, want.astype(np.float64), rtol=1e-4 if got.ndim == 1 else 2e-5)


@by_cell
def test_gates_of_any_size(device, rng, name):
    """No NaN, up to infinite gates, and gradients that stay finite."""
    size = np.array([0, 20, 80, 104, 1e30, np.inf], np.float32)
    values = np.concatenate([-size, size])
    arrays = make(rng, name, (1, len(values) ** 2, 1), 1, np.dtype(np.float32))
    pairs = [v.reshape(1, -1, 1) for v in np.meshgrid(values, values)]
    gates = {
        "gilr": "f",
        "hgrn": "f",
        "min_gru": "z",
        "min_lstm": "fi",
        "qrnn": "fo",
        "rg_lru": "ri",
    }
    for gate, pair in zip(gates[name], pairs, strict=False):
        arrays[CELLS[name].arguments.index(gate)] = pair
    dh, dfinal = normal(rng, pairs[0].shape, np.float32), np.ones((1, 1), np.float32)
    h, final, gradients = run(name, arrays, dh, dfinal, device)
    assert all(np.isfinite(a).all() for a in (h, final, *gradients))
