"""What linear and nonlinear cells have in common, on NumPy arrays and between frameworks."""

import hashlib
import mmap
import os

import numpy as np
import pytest
import scanrnn
import test_cells as linear
import test_cells_nonlinear as nonlinear
from reference import BFLOAT16, REAL_DTYPES, assert_same_bits, normal
from scanrnn import cells

#: Names of functions, and which of the two tables they are in: sru is in both.
ALL = [(linear, name) for name in linear.CELLS] + [(nonlinear, name) for name in nonlinear.CELLS]
by_cell = pytest.mark.parametrize(
    ("table", "name"), ALL, ids=[f"{t.__name__[11:] or 'linear'}-{n}" for t, n in ALL]
)


def arguments(rng, table, name, shape, dtype):
    """A cell's arguments by name, with initial states."""
    values = table.arguments(rng, name, shape, dtype)
    if table is nonlinear:
        return values
    cell = linear.CELLS[name]
    return dict(zip((*cell.arguments, cell.state), values, strict=True))


def states(table, name):
    cell = table.CELLS[name]
    return cell.states if table is nonlinear else [cell.state]


def everything(table, name, values, dh, **options):
    """The output, final states and gradients."""
    if table is nonlinear:
        h, finals, _, saved = nonlinear.call(name, values, **options)
        return [h, *finals, *nonlinear.vjp(name, values, saved, dh, **options)]
    arrays = [*values.values()]
    h, final, saved = linear.call(name, arrays, **options)
    return [h, final, *linear.vjp(name, arrays, saved, dh, **options)]


def forward(name, values, **options):
    """The output and the final states, of any framework's arrays."""
    h, final = getattr(cells, name)(**values, return_final=True, **options)
    return [h, *(final if isinstance(final, tuple) else (final,))]


@pytest.mark.parametrize("framework", ["torch", "jax"])
@by_cell
def test_d01_same_bits_of_bfloat16_in_every_framework(rng, table, name, framework):
    module = pytest.importorskip(framework)
    values = arguments(rng, table, name, (2, 70, 5), BFLOAT16)
    if framework == "torch":

        def make(array):
            return module.from_numpy(array.view(np.int16)).view(module.bfloat16)

        def back(array):
            narrow = array.dtype == module.bfloat16
            return array.view(module.int16).numpy().view(BFLOAT16) if narrow else array.numpy()
    else:
        make, back = module.numpy.asarray, np.asarray
    theirs = forward(name, {n: make(v) for n, v in values.items()})
    for got, want in zip(theirs, forward(name, values), strict=True):
        assert type(got) is not np.ndarray
        assert_same_bits(back(got), want)


@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
@by_cell
def test_d02_no_state_is_zeros(rng, table, name, dtype):
    shape = (2, 40, 3)
    values = arguments(rng, table, name, shape, dtype)
    accumulation = linear.accumulation(dtype)
    none = forward(name, values | dict.fromkeys(states(table, name)))
    for zeros in (np.zeros((2, 3), dtype), np.zeros((2, 3), accumulation)):
        given = forward(name, values | dict.fromkeys(states(table, name), zeros))
        for a, b in zip(none, given, strict=True):
            assert_same_bits(a, b)


@by_cell
def test_g10_inputs_are_not_written(rng, tmp_path, table, name):
    """On pages that the process may not write: a write would end it."""
    shape = (2, 100, 3)
    sources = arguments(rng, table, name, shape, np.float32)
    sources["dh"] = normal(rng, shape, np.float32)
    sources["reset"] = rng.random(shape[:2]) < 0.1
    values = {}
    for argument, array in sources.items():
        path = tmp_path / argument
        path.write_bytes(array.tobytes())
        with path.open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        values[argument] = np.frombuffer(pages, array.dtype).reshape(array.shape)
    dh, reset = values.pop("dh"), values.pop("reset")
    for options in ({}, {"reverse": True, "reset": reset}):
        got = everything(table, name, values, dh, **options)
        want = everything(table, name, {n: sources[n] for n in values}, dh, **options)
        for a, b in zip(got, want, strict=True):
            assert_same_bits(a, b)


def digests(rng):
    """Of all cells' outputs, final states and gradients."""
    for table, name in ALL:
        shape = (3, 2049, 5)
        values = arguments(rng, table, name, shape, np.float32)
        for array in everything(table, name, values, normal(rng, shape, np.float32)):
            yield hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def test_m06_in_other_processes(rng, run_python):
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import numpy as np, test_all_cells\n"
        "print(*test_all_cells.digests(np.random.default_rng(0)), sep='\\n')"
    )
    own = [*digests(rng)]
    assert len({*own}) == len(own) > 3 * len(ALL)
    for threads in ("1", "2", "3"):
        assert run_python(code, SCANRNN_NUM_THREADS=threads).split() == own


def test_all_cells_are_here():
    """What has a step is a cell."""
    names = {n.removesuffix("_step") for n in dir(cells) if n.endswith("_step")}
    assert names - {"recurrent_sru"} == {name for _, name in ALL}
    assert scanrnn.cells is cells
