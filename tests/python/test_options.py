"""Options that are numbers or flags: every frontend takes and refuses the same."""

import importlib
import math
from typing import get_args

import numpy as np
import pytest
import scanrnn.cells
from scanrnn._array.options import ACTIVATIONS
from scanrnn._cell_call import Function


@pytest.fixture(params=["numpy", "torch", "jax"])
def frontend(request):
    """The functions of a frontend, and how it makes an array."""
    if request.param == "numpy":
        return scanrnn.cells, np.asarray
    module = pytest.importorskip(f"scanrnn.{request.param}")
    library = pytest.importorskip({"torch": "torch", "jax": "jax.numpy"}[request.param])
    return module, library.asarray


X = np.ones((2, 5, 3), np.float32)
V = np.full(3, 0.5, np.float32)


@pytest.mark.parametrize(
    ("option", "value", "error", "expected"),
    [
        ("tolerance", 0, ValueError, "a positive number"),
        ("tolerance", -1.0, ValueError, "a positive number"),
        ("tolerance", math.nan, ValueError, "a positive number"),
        ("tolerance", math.inf, ValueError, "a positive number"),
        ("tolerance", "1e-6", TypeError, "a number"),
        ("tolerance", [1e-6], TypeError, "a number"),
        ("max_passes", -1, ValueError, "at least 0"),
        ("max_passes", 1.5, TypeError, "a whole number"),
        ("max_passes", None, TypeError, "a whole number"),
        ("segment", 0, ValueError, "at least 1"),
        ("segment", -5, ValueError, "at least 1"),
        ("segment", 2.0, TypeError, "a whole number"),
        ("axis", 3, ValueError, r"-3\.\.2"),
        ("axis", 1.0, TypeError, "a whole number"),
        ("axis", "T", TypeError, "a whole number"),
    ],
)
def test_s08_numbers(frontend, option, value, error, expected):
    functions, array = frontend
    with pytest.raises(error, match=rf"^indrnn: {option} is .*, expected {expected}"):
        functions.indrnn(array(X), array(V), **{option: value})


@pytest.mark.parametrize("value", ["8", None])
def test_s08_the_factor_of_rg_lru(frontend, value):
    functions, array = frontend
    for x, name, state in ((X, "rg_lru", ()), (X[:, 0], "rg_lru_step", (None,))):
        function = functions.rg_lru_step if state else functions.rg_lru
        with pytest.raises(TypeError, match=rf"^{name}: c is {value!r}, expected a number"):
            function(*[array(x)] * 3, array(V), *state, c=value)


def test_endless_passes_and_segments(frontend):
    functions, array = frontend
    want = functions.indrnn(array(X), array(V))
    for options in ({"max_passes": 2**70}, {"segment": 2**70}, {"segment": 10**12}):
        got = functions.indrnn(array(X), array(V), **options)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("kind", [list, tuple])
def test_w03_reset_flags_as_a_sequence_of_numbers(frontend, kind):
    functions, array = frontend
    flags = [kind([0, 1, 0, 0, 1]), kind([1, 0, 0, 0, 0])]
    got = functions.gilr(array(X), array(X), reset=kind(flags))
    want = functions.gilr(array(X), array(X), reset=array(np.array(flags, bool)))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    assert (np.asarray(want) != np.asarray(functions.gilr(array(X), array(X)))).any()


@pytest.mark.parametrize("dtype", [np.int32, np.complex64])
def test_d01_dtypes_that_cells_do_not_have(frontend, dtype):
    """The error names those that they have, and no others."""
    functions, array = frontend
    wrong = array(X.astype(dtype))
    with pytest.raises(TypeError, match=r"^gilr: f has dtype .*, expected .*float64") as caught:
        functions.gilr(wrong, wrong)
    assert "complex" not in str(caught.value).partition("expected")[2]


# Each with inputs x, vectors v and a state.
STEPS = {
    "diagonal_gru_step": lambda f, x, v, state: f(x, x, x, v, v, v, None, state),
    "diagonal_lstm_step": lambda f, x, v, state: f(x, x, x, x, v, v, v, v, state, None),
    "gilr_step": lambda f, x, v, state: f(x, x, state),
    "hgrn_step": lambda f, x, v, state: f(x, x, v, state),
    "indrnn_step": lambda f, x, v, state: f(x, v, state),
    "min_gru_step": lambda f, x, v, state: f(x, x, state),
    "min_lstm_step": lambda f, x, v, state: f(x, x, x, state),
    "qrnn_step": lambda f, x, v, state: f(x, x, x, None, state),
    "rg_lru_step": lambda f, x, v, state: f(x, x, x, v, state),
    "sru_step": lambda f, x, v, state: f(x, x, x, None, v, v, state),
    "sru_step, recurrent": lambda f, x, v, state: f(x, x, x, None, v, v, state, v_f=v, v_r=v),
}


@pytest.mark.parametrize("case", STEPS)
def test_s08_a_step_names_its_own_arguments(frontend, case):
    functions, array = frontend
    name = case.partition(",")[0]
    function = getattr(functions, name)
    one, state = X[:, 0], "c" if name in ("qrnn_step", "sru_step") else "h"

    def call(state):
        return STEPS[case](function, array(one), array(V), array(state))

    call(one)
    with pytest.raises(
        ValueError, match=rf"^{name}: {state} has shape \(2, 2\), expected \(2, 3\)"
    ):
        call(one[:, :2])
    with pytest.raises(TypeError, match=rf"^{name}: {state} has dtype .*int32, expected"):
        call(one.astype(np.int32))


def test_s08_all_steps_are_tried():
    steps = {n for n in scanrnn.cells.__all__ if n.endswith("_step")}
    assert steps == {case.partition(",")[0] for case in STEPS}


def test_s08_shapes_of_a_step(frontend):
    functions, array = frontend
    one = array(X[:, 0])
    with pytest.raises(ValueError, match=r"^gilr_step: z has shape \(2, 2\), expected \(2, 3\)"):
        functions.gilr_step(one, one[:, :2], None)
    with pytest.raises(ValueError, match=r"^gilr_step: f has shape \(\), expected at least a chan"):
        functions.gilr_step(one[0, 0], one[0, 0], None)
    with pytest.raises(ValueError, match=r"^gilr_step: activation is 'gelu', expected 'identity'"):
        functions.gilr_step(one, one, None, activation="gelu")


def test_activations_are_numbered_as_in_the_core():
    """All lists of them begin alike, and each cell's is as long as the core's."""
    names = ACTIVATIONS
    assert get_args(scanrnn.cells.Activation) == names
    cells = {
        f.name: f
        for module in (scanrnn.cells, scanrnn._nonlinear)
        for f in vars(module).values()
        if isinstance(f, Function)
    }
    chosen = {n: o for n, f in cells.items() for o in f.row["options"] if o["name"] == "activation"}
    assert len(chosen) >= 7
    for name, option in chosen.items():
        assert cells[name].activations == names[: int(option["most"]) + 1], name
    for module in ("torch._cells", "jax._compose"):
        pytest.importorskip(module.partition(".")[0])
        assert tuple(importlib.import_module(f"scanrnn.{module}").ACTIVATIONS) == names
