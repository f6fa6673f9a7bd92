"""The nonlinear cells on NumPy arrays, each against its paper's equations."""

import itertools

import numpy as np
import pytest
import scanrnn
from hypothesis import given
from hypothesis import strategies as st
from nonlinear_reference import CELLS, Run
from reference import (
    REAL_DTYPES,
    accumulation,
    assert_matches,
    assert_same_bits,
    normal,
    sequences,
    time_contiguous,
)
from scanrnn import SolveReport, cells
from test_scan_fuzz import layouts, sequence_options

by_cell = pytest.mark.parametrize("name", list(CELLS))
by_dtype = pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
#: Cells whose backward reads more than the output.
KEEPS = ("diagonal_lstm", "sru")


def arguments(rng, name, shape, dtype, N=None, gain=0.5):
    """A cell's arguments by name."""
    B, _, D = shape
    cell, values = CELLS[name], {}
    for argument in cell.arguments:
        if argument in cell.states:
            values[argument] = normal(rng, (B if N is None else N, D), dtype)
        elif cell.is_vector(argument):
            values[argument] = rng.uniform(-gain, gain, D).astype(dtype)
        else:
            values[argument] = normal(rng, shape, dtype)
    return values


def call(name, values, **options):
    """(h, finals, report, what the vjp wants of it)."""
    keep = {"return_checkpoints": True} if name in KEEPS else {}
    h, final, *kept, report = getattr(cells, name)(
        **values, return_final=True, return_report=True, **keep, **options
    )
    saved = {"checkpoints": kept[0]} if kept else {}
    if name != "sru":
        saved["h"] = h
    return h, final if isinstance(final, tuple) else (final,), report, saved


def vjp(name, values, saved, dh, dfinals=None, **options):
    for option in ("segment", "max_passes", "tolerance"):
        options.pop(option, None)
    dfinal = dfinals
    if dfinals is not None and len(dfinals) == 1:
        (dfinal,) = dfinals
    return getattr(cells, f"{name}_vjp")(**values, **saved, dh=dh, dfinal=dfinal, **options)


def sequences_of(options):
    return {k: v for k, v in options.items() if k not in ("segment", "max_passes", "tolerance")}


def check(name, values, dh, dfinals, **options):
    """Forward and backward against the serial loop."""
    h, finals, report, saved = call(name, values, **options)
    grads = vjp(name, values, saved, dh, dfinals, **options)
    run = Run(name, values, **sequences_of(options))
    expected, expected_finals = run.forward()
    wanted = run.vjp(dh, [None] * len(finals) if dfinals is None else dfinals)
    dtype = h.dtype
    tolerance = {"units": 2, "rtol": 1e-4 if dtype.itemsize == 4 else 1e-11}
    if dtype.itemsize == 2:
        # Backward starts from states that were rounded; test_solve.cpp counts what that does.
        tolerance = {"units": 2, "rtol": 1e-3 if dtype == np.float16 else 1e-2}
    assert_matches(h, expected, **tolerance)
    for final, want in zip(finals, expected_finals, strict=True):
        assert final.dtype == accumulation(dtype)
        assert_matches(final, want, **tolerance)
    if dtype.itemsize == 2:
        tolerance["rtol"] *= 10
    for argument, gradient in zip(grads._fields, grads, strict=True):
        value = values[argument]
        if value is None:
            assert gradient is None
            continue
        assert (gradient.shape, gradient.dtype) == (value.shape, value.dtype)
        assert_matches(gradient, wanted[argument], **tolerance)
    assert len(report) == len(run.runs)
    return h, finals, report, grads


@by_cell
@by_dtype
def test_values(rng, name, dtype):
    shape, cell = (2, 70, 5), CELLS[name]
    values = arguments(rng, name, shape, dtype)
    dh = normal(rng, shape, dtype)
    dfinals = [normal(rng, (2, 5), accumulation(dtype)) for _ in cell.states]
    check(name, values, dh, dfinals)
    check(name, values, dh, dfinals, segment=16)
    check(name, values | dict.fromkeys(cell.states), dh, None, reverse=True, segment=9)
    check(name, values, None, dfinals)
    relaid = {k: time_contiguous(v) if v.ndim == 3 else v for k, v in values.items()}
    check(name, relaid, dh, dfinals, segment=16)
    for together in cell.optional:
        values = values | dict.fromkeys(together)
        check(name, values, dh, dfinals)


@pytest.mark.parametrize("activation", ["identity", "tanh", "relu"])
@pytest.mark.parametrize("name", ["indrnn", "sru"])
def test_activations(rng, name, activation):
    values = arguments(rng, name, (2, 60, 3), np.float64)
    check(name, values, normal(rng, (2, 60, 3), np.float64), None, activation=activation)


@by_cell
def test_finite_differences(rng, name):
    """Along random directions, of all arguments at once and of each alone."""
    shape, cell = (2, 50, 3), CELLS[name]
    smooth = {"activation": "tanh"} if cell.activations else {}
    values = arguments(rng, name, shape, np.float64, gain=1)
    dh = rng.standard_normal(shape)
    dfinals = [rng.standard_normal((2, 3)) for _ in cell.states]
    options = {"segment": 10, **smooth}
    _, _, _, saved = call(name, values, **options)
    grads = vjp(name, values, saved, dh, dfinals, **options)

    def loss(moved):
        h, finals, _, _ = call(name, moved, **options)
        return (h * dh).sum() + sum((f * d).sum() for f, d in zip(finals, dfinals, strict=True))

    for chosen in [cell.arguments, *([n] for n in cell.arguments)]:
        directions = {n: rng.standard_normal(values[n].shape) for n in chosen}
        step = 1e-6
        above, below = (
            loss(values | {n: values[n] + sign * step * d for n, d in directions.items()})
            for sign in (1, -1)
        )
        slope = sum((getattr(grads, n) * d).sum() for n, d in directions.items())
        np.testing.assert_allclose((above - below) / (2 * step), slope, rtol=1e-6, atol=1e-6)


@given(st.data())
def test_fuzz(data):
    name = data.draw(st.sampled_from(list(CELLS)), "cell")
    cell = CELLS[name]
    B, D = data.draw(st.integers(0, 3), "B"), data.draw(st.integers(0, 20), "D")
    T = data.draw(st.one_of(st.integers(0, 70), st.just(200)), "T")
    dtype = np.dtype(data.draw(st.sampled_from([np.float32, np.float64]), "dtype"))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    N, options = data.draw(sequence_options(B, T), "options")
    if data.draw(st.booleans(), "resets"):
        options["reset"] = rng.random((B, T)) < 0.1
    segment = data.draw(st.sampled_from([None, 1, 3, 16, 50]), "segment")
    options |= {"segment": segment, "max_passes": data.draw(st.integers(0, 6), "passes")}
    if cell.activations:
        options["activation"] = data.draw(st.sampled_from(cell.activations), "activation")
    values = arguments(rng, name, (B, T, D), dtype, N)
    for together in cell.optional:
        if data.draw(st.booleans(), f"without {together}"):
            values |= dict.fromkeys(together)
    for n in cell.states:
        if data.draw(st.booleans(), f"without {n}"):
            values[n] = None
    for n, v in values.items():
        if v is not None:
            values[n] = data.draw(layouts(v.ndim), f"layout of {n}")(v)
    dh = data.draw(layouts(3), "layout of dh")(normal(rng, (B, T, D), dtype))
    dfinals = None
    if data.draw(st.booleans(), "dfinal"):
        dfinals = [normal(rng, (N, D), dtype) for _ in cell.states]
    _, _, report, _ = check(name, values, dh, dfinals, **options)
    if segment is not None:
        layout = {
            k: v for k, v in sequences_of(options).items() if k not in ("reset", "activation")
        }
        lengths = np.array([len(steps) for _, steps in sequences(B, T, **layout)])
        serial = (lengths <= segment) | (options["max_passes"] == 0)
        np.testing.assert_array_equal(report.status == "serial", serial)
    for column in (report.passes, report.residual, report.error_estimate, report.serial_channels):
        assert (column >= 0).all()
    assert (report.passes <= options["max_passes"]).all()


@by_cell
def test_report(rng, name):
    values = arguments(rng, name, (3, 300, 4), np.float32)
    function = getattr(cells, name)
    _, report = function(**values, segment=50, return_report=True)
    assert isinstance(report, SolveReport)
    assert report.rows.shape == (3, 6)
    assert report.status.tolist() == ["converged"] * 3
    assert (report.passes >= 1).all()
    assert (report.passes <= 8).all()
    assert (report.error_estimate <= 1e-6 * 10).all()
    assert (report.first_unconverged == -1).all()
    assert (report.serial_channels == 0).all()
    assert report.worst.status == "converged"
    assert "converged" in repr(report)
    serial, report = function(**values, max_passes=0, return_report=True)
    assert report.status.tolist() == ["serial"] * 3
    assert report.worst == ("serial", 0, 0.0, 0.0, -1, 0)
    # Short sequences of many channels aren't cut, unless one asks for it.
    h, report = function(**values, return_report=True)
    assert report.worst.status == "serial"
    assert_same_bits(h, serial)


@by_cell
@pytest.mark.parametrize("segment", [8, 64])
def test_n11_2500_weights_of_any_size(rng, name, segment):
    """Long memory, growth and chaos: every step is the equations'.

    Where rounding doesn't decide what becomes of a state, the result is the serial one.
    """
    shape = (1, 500, D := 2500)
    values, cell = arguments(rng, name, shape, np.float64), CELLS[name]
    gain = rng.uniform(0.1, 6, D)
    for n in cell.vectors:
        values[n] = rng.uniform(-1, 1, D) * gain
    gate = {"diagonal_gru": "z", "indrnn": "p"}.get(name, "f")
    values[gate] += rng.uniform(-3, 6, D)
    options = {"activation": "tanh"} if cell.activations else {}
    h, _, report, saved = call(name, values, segment=segment, **options)
    states = [saved["h"]] if "h" in saved else []
    states += [saved["checkpoints"]] if name in KEEPS else []
    assert np.isfinite(report.residual).all()
    assert report.worst.passes <= 8

    run = Run(name, values, **options)
    before = [
        np.concatenate([values[n][:, None], s[:, :-1]], 1)
        for n, s in zip(cell.states, states, strict=True)
    ]
    after, y = run.step(..., slice(None), before)  # of all steps at once
    # Where a segment follows another, the state may jump by the residual.
    slack = 1e-11 + 20 * report.residual[0]
    assert slack < 1e-6
    for s, want in zip(states, after, strict=True):
        assert (np.abs(s - want.real) <= slack * np.maximum(1, np.abs(s))).all()
    assert (np.abs(h - y.real) <= slack).all()

    serial, _, _, _ = call(name, values, max_passes=0, **options)
    nudged = values | {n: values[n] + 1e-12 for n in cell.states}
    moved, _, _, _ = call(name, nudged, max_passes=0, **options)
    calm = np.abs(moved - serial).max((0, 1)) < 1e-10
    assert calm.mean() > 0.95
    assert np.abs(h - serial)[..., calm].max() < 1e-8


def test_n11_it_falls_back_by_channel_and_says_so(rng):
    values = arguments(rng, "indrnn", (2, 200, 5), np.float64)
    values["u"][3] = 1.3  # grows
    calm = values | {"u": np.where(np.arange(5) == 3, 0.1, values["u"])}
    h, report = cells.indrnn(**values, segment=4, max_passes=2, return_report=True)
    assert report.status.tolist() == ["fell_back"] * 2
    assert report.serial_channels.tolist() == [1, 1]
    assert (report.first_unconverged % 4 == 0).all()
    assert (report.first_unconverged > 0).all()
    assert report.worst.status == "fell_back"
    assert report.worst.serial_channels == 2
    expected, _ = Run("indrnn", values).forward()
    assert_matches(h, expected, rtol=1e-9)
    others = [0, 1, 2, 4]
    h_calm = cells.indrnn(**calm, segment=4, max_passes=2)
    assert_same_bits(h[..., others], h_calm[..., others])


def test_a_looser_tolerance_takes_fewer_passes(rng):
    values = arguments(rng, "diagonal_gru", (1, 2000, 3), np.float64, gain=3)
    h, tight = cells.diagonal_gru(**values, segment=20, return_report=True)
    loose_h, loose = cells.diagonal_gru(**values, segment=20, tolerance=1e-3, return_report=True)
    assert tight.worst.status == loose.worst.status == "converged"
    assert loose.worst.passes < tight.worst.passes
    assert loose.worst.error_estimate <= 1e-3
    assert np.abs(loose_h - h).max() < 0.1


@by_cell
def test_m06_threads_do_not_matter(rng, name, threads):
    for shape, segment in [((1, 5000, 1), None), ((2, 3000, 7), None), ((3, 500, 40), 30)]:
        values = arguments(rng, name, shape, np.float32)
        dh = normal(rng, shape, np.float32)
        results = []
        for count in (1, 2, 5):
            threads(count)
            h, finals, report, saved = call(name, values, segment=segment)
            grads = vjp(name, values, saved, dh)
            results.append([h, *finals, report.rows, *grads])
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                assert_same_bits(a, b)


@by_cell
def test_m06_rows_do_not_matter(rng, name):
    values = arguments(rng, name, (4, 2500, 3), np.float32)
    whole, finals, report, _ = call(name, values)
    vectors = CELLS[name].is_vector
    alone = {n: v if vectors(n) else v[2:3] for n, v in values.items()}
    h, final, one, _ = call(name, alone)
    assert_same_bits(h[0], whole[2])
    assert_same_bits(one.rows[0], report.rows[2])
    for a, b in zip(final, finals, strict=True):
        assert_same_bits(a[0], b[2])
    # A packed sequence is cut as one by itself is.
    lengths = [0, 700, 2500, 0]
    packed = dict(values)
    for n, v in values.items():
        if v.ndim == 3:
            parts = [v[i, :length] for i, length in enumerate(lengths)]
            packed[n] = np.concatenate(parts)[None]
    h, final, _, _ = call(name, packed, cu_seqlens=np.cumsum([0, *lengths]))
    assert_same_bits(h[0, 700:3200], whole[2])
    for a, b, n in zip(final, finals, CELLS[name].states, strict=True):
        assert_same_bits(a[2], b[2])
        assert_same_bits(a[0], values[n][0])


@by_cell
def test_w01_chunks_with_carried_states(rng, name):
    values = arguments(rng, name, (2, 400, 3), np.float64)
    cell = CELLS[name]
    whole, finals, _, _ = call(name, values, segment=40)
    cuts = [0, *sorted(rng.integers(0, 400, 6)), 400]
    carried, parts = {n: values[n] for n in cell.states}, []
    for begin, end in itertools.pairwise(cuts):
        part = {n: v[:, begin:end] if v.ndim == 3 else v for n, v in values.items()}
        h, states, _, _ = call(name, part | carried, segment=7)
        carried = dict(zip(cell.states, states, strict=True))
        parts.append(h)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-10, atol=1e-11)
    for a, n in zip(finals, cell.states, strict=True):
        np.testing.assert_allclose(carried[n], a, rtol=1e-10, atol=1e-11)


@by_cell
@by_dtype
def test_w05_steps_make_a_scan(rng, name, dtype):
    values, cell = arguments(rng, name, (2, 12, 5), dtype), CELLS[name]
    whole, finals, _, _ = call(name, values)
    keywords = ("w_i", "w_f", "w_o", "v_f", "v_r")
    states = [values[n] for n in cell.states]
    for t in range(12):
        at = {n: v[:, t] if v.ndim == 3 else v for n, v in values.items()}
        positional = [at[n] for n in cell.inputs if n not in keywords]
        named = {n: at[n] for n in cell.inputs if n in keywords}
        h, state = getattr(cells, f"{name}_step")(*positional, *states, **named)
        states = state if isinstance(state, tuple) else (state,)
        assert_same_bits(h, whole[:, t])
    for a, b in zip(states, finals, strict=True):
        assert_same_bits(a, b)


def test_sru_without_recurrent_weights_is_linear(rng):
    values = arguments(rng, "sru", (2, 90, 4), np.float64, gain=0)
    values |= {n: normal(rng, (4,), np.float64) for n in ("bias_f", "bias_r")}
    dh = normal(rng, (2, 90, 4), np.float64)
    linear = {n: v for n, v in values.items() if n not in ("v_f", "v_r")}
    h, _, _, saved = call("sru", values)
    expected, checkpoints = cells.sru(**linear, return_checkpoints=True)
    assert_matches(h, expected, rtol=1e-13)
    grads = vjp("sru", values, saved, dh)
    wanted = cells.sru_vjp(**linear, checkpoints=checkpoints, dh=dh)
    for n, want in zip(wanted._fields, wanted, strict=True):
        assert_matches(getattr(grads, n), want, rtol=1e-11)


@by_cell
def test_axes(rng, name):
    """Any number of batch axes, and the time axis anywhere."""
    values, cell = arguments(rng, name, (6, 30, 4), np.float64), CELLS[name]
    h, finals, _, saved = call(name, values)
    dh = normal(rng, h.shape, np.float64)
    grads = vjp(name, values, saved, dh)

    def spread(array):  # (B, T, D) to (T, 2, 3, D)
        return np.moveaxis(array.reshape(2, 3, *array.shape[1:]), 2, 0)

    moved = {
        n: spread(v) if v.ndim == 3 else v.reshape(2, 3, 4) if n in cell.states else v
        for n, v in values.items()
    }
    moved_h, moved_finals, report, moved_saved = call(name, moved, axis=0)
    assert_same_bits(moved_h, spread(h))
    assert len(report) == 6
    for a, b in zip(moved_finals, finals, strict=True):
        assert_same_bits(a, b.reshape(2, 3, 4))
    moved_grads = vjp(name, moved, moved_saved, spread(dh), axis=0)
    for n, a, b in zip(grads._fields, moved_grads, grads, strict=True):
        want = spread(b) if b.ndim == 3 else b.reshape(2, 3, 4) if n in cell.states else b
        assert_same_bits(a, want)
    one = {n: v if cell.is_vector(n) else v[0] for n, v in values.items()}
    h_one, _, _, _ = call(name, one)
    assert_same_bits(h_one, h[0])


def good():
    ones = np.ones((2, 5, 3), np.float32)
    return dict.fromkeys("ifgo", ones) | {f"u_{n}": ones[0, 0] for n in "ifgo"}


# (what differs from a good call of diagonal_lstm on (2, 5, 3) arrays, error, text)
WRONG = [
    (
        {"g": np.ones((2, 5, 4), np.float32)},
        ValueError,
        "g has shape (2, 5, 4), expected (2, 5, 3)",
    ),
    ({"i": np.ones((2, 5, 3))}, TypeError, "i has dtype float64, expected float32"),
    ({"f": np.ones((2, 5, 3), complex)}, TypeError, "f has dtype complex128"),
    ({"f": None}, TypeError, "f is a NoneType, expected an array"),
    ({"u_f": None}, TypeError, "u_f is a NoneType, expected an array"),
    ({"u_o": np.ones(4, np.float32)}, ValueError, "u_o has shape (4,), expected (3,)"),
    ({"w_o": np.ones(3)}, TypeError, "w_o has dtype float64, expected float32"),
    ({"i": None}, ValueError, "u_i is given without i, expected both or neither"),
    ({"u_i": None}, ValueError, "i is given without u_i, expected both or neither"),
    (
        {"i": None, "u_i": None, "w_i": np.ones(3, np.float32)},
        ValueError,
        "w_i is given without i, expected None with coupled gates",
    ),
    ({"c0": np.ones((3, 3), np.float32)}, ValueError, "c0 has shape (3, 3), expected (2, 3)"),
    ({"h0": np.ones((2, 3), np.float16)}, TypeError, "h0 has dtype float16, expected float32"),
    ({"lengths": [5, 6]}, ValueError, "lengths[1] is 6"),
    ({"cu_seqlens": [0, 5]}, ValueError, "batch size of 1"),
    ({"reset": np.zeros((2, 4), bool)}, ValueError, "reset has shape (2, 4), expected (2, 5)"),
]


@pytest.mark.parametrize(("changes", "error", "text"), WRONG, ids=[w[2][:30] for w in WRONG])
def test_s08_errors_name_the_argument(changes, error, text):
    with pytest.raises(error) as caught:
        cells.diagonal_lstm(**good() | changes)
    assert str(caught.value).startswith("diagonal_lstm: ")
    assert text in str(caught.value)


def test_more_errors(rng):
    values = arguments(rng, "sru", (2, 5, 3), np.float32)
    with pytest.raises(ValueError, match="v_f is given without v_r, expected both or neither"):
        cells.sru(**values | {"v_r": None})
    with pytest.raises(ValueError, match="return_report is True without v_f and v_r"):
        cells.sru(**values | {"v_f": None, "v_r": None}, return_report=True)
    with pytest.raises(ValueError, match="activation is 'silu', expected 'identity', 'tanh' or"):
        cells.indrnn(values["u"], values["v_f"], activation="silu")
    h, _, _, saved = call("sru", values)
    with pytest.raises(TypeError, match="sru_vjp: checkpoints is None, expected what sru returned"):
        cells.sru_vjp(**values, checkpoints=None, dh=h)
    with pytest.raises(ValueError, match=r"checkpoints has shape \(2, 4, 3\)"):
        cells.sru_vjp(**values, checkpoints=saved["checkpoints"][:, 1:], dh=h)
    with pytest.raises(ValueError, match=r"dh has shape \(2, 4, 3\)"):
        cells.sru_vjp(**values, **saved, dh=h[:, 1:])


def test_the_core_checks_by_itself(rng):
    """What the functions above check first, the core refuses too."""
    core = scanrnn._core
    p = np.ones((1, 4, 2))
    describe = scanrnn._array.NUMPY.describe
    array = describe("test", "p", p)
    with pytest.raises(ValueError, match="kind is 9, expected a nonlinear cell's number"):
        core.solve_forward(9, [], [], array, None, [], None)
    vector, row = describe("test", "u", p[0, 0]), describe("test", "h0", p[0, :1])
    table = {row["name"]: row["kind"] for row in core.nonlinear_cell_table()}
    kind = table["indrnn"]
    with pytest.raises(ValueError, match="inputs has 1 items, expected 2 for indrnn"):
        core.solve_forward(kind, [array], [None], array, None, [None], None)
    with pytest.raises(ValueError, match="initial has 2 items, expected 1 for indrnn"):
        core.solve_forward(kind, [array, vector], [None, None], array, None, [None], None)
    with pytest.raises(ValueError, match="u is missing"):
        core.solve_forward(kind, [array, None], [None], array, None, [None], None)
    with pytest.raises(ValueError, match="report has shape"):
        core.solve_forward(kind, [array, vector], [None], array, None, [None], row)
    with pytest.raises(ValueError, match="activation is 3, expected a whole number from 0 to 2"):
        core.solve_forward(kind, [array, vector], [None], array, None, [None], None, options=[3])
    with pytest.raises(ValueError, match="out is missing"):
        core.solve_backward(
            kind, [array, vector], [None], None, None, array, [None], [None, None], [None]
        )
    kind = table["recurrent_sru"]
    inputs = [array, array, array, None, vector, vector, None, None]
    with pytest.raises(ValueError, match="kept is missing"):
        core.solve_backward(kind, inputs, [None], None, None, array, [None], [None] * 8, [None])


def test_frontends_differentiate_themselves():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 5, 3)
    with pytest.raises(TypeError, match=r"indrnn_vjp: p is a torch\.Tensor, which differentiates"):
        cells.indrnn_vjp(x, x[0, 0], None, x, x)
