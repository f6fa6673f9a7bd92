"""The nonlinear cells of `scanrnn.jax` against a loop of their equations; their transformations."""

# ruff: noqa: E402, F811
import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import reference
import scanrnn
import scanrnn.jax as srj
from jax.test_util import check_grads
from jax_cells import double
from jax_helpers import (
    LARGE,
    SMALL,
    assert_close,
    batched,
    check_sharding,
    check_vmap,
    kernels,
    mesh,  # noqa: F401
    spread,
    stacked,
    values,
    x64,  # noqa: F401
)
from jax_nonlinear import NONLINEAR, arguments, call, loop, loss_of
from scanrnn import _core
from scanrnn.jax import _cell

pytestmark = pytest.mark.usefixtures("x64")

every_cell = pytest.mark.parametrize("name", NONLINEAR)
#: One for each kind of state: the output, a pair of which one is the output, neither.
some_cells = pytest.mark.parametrize("name", ["gru", "lstm-peephole", "recurrent_sru"])

#: Several segments, however short the sequence is.
SEGMENTS = {"segment": 8, "max_passes": 20}


def small(rng, name, options="plain"):
    """A case, a function of its arrays, the loop of the same, and the arrays."""
    case, options = NONLINEAR[name], SMALL[options]
    arrays = arguments(rng, case, options, 2, 6, 2)
    options = options | case.options
    run = partial(call, case, segment=2, **options)
    return case, run, partial(loop, case, **options), arrays


# ---- Values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *(("lstm-peephole", where) for where in LARGE),
        *itertools.product(["gru", "recurrent_sru"], ["left-reverse", "packed-reset"]),
        *((name, "plain") for name in NONLINEAR if name != "lstm-peephole"),
    ],
)
def test_values_and_gradients_are_the_loops(rng, name, where):
    case = NONLINEAR[name]
    options = LARGE[where] | case.options
    arrays = arguments(rng, case, options, 3, 37, 4)
    run = jax.jit(lambda *a: jax.vjp(lambda *b: call(case, b, **options, **SEGMENTS), *a))
    want = jax.jit(lambda *a: jax.vjp(lambda *b: loop(case, b, **options), *a))
    (got, pullback), (want, expected) = run(*arrays), want(*double(arrays))
    assert_close(got, want)
    seeds = jax.tree.map(lambda g: jnp.asarray(values(rng, *g.shape)), got)
    for n, a, g, e in zip(case.arguments, arrays, pullback(seeds), expected(seeds), strict=True):
        assert (g.dtype, g.shape) == (a.dtype, a.shape), n
        np.testing.assert_allclose(g, e, rtol=1e-9, atol=1e-9, err_msg=n)


@every_cell
def test_g05_g10_backward_twice_and_inputs_unchanged(rng, name):
    case = NONLINEAR[name]
    arrays = arguments(rng, case, LARGE["plain"] | case.options, 2, 37, 4)
    before = [np.array(a) for a in arrays]
    run = partial(call, case, **case.options, **SEGMENTS)
    outputs, pullback = jax.vjp(lambda *a: run(a), *arrays)
    kept = jax.tree.map(np.array, outputs)
    first, second = pullback(outputs), pullback(outputs)
    now, then = jax.tree.leaves((second, arrays, outputs)), jax.tree.leaves((first, before, kept))
    for one, other in zip(now, then, strict=True):
        reference.assert_same_bits(np.array(one), np.array(other))
    h, final = outputs
    zero = jax.tree.map(jnp.zeros_like, outputs)
    parts = [pullback((h, zero[1])), pullback((zero[0], final))]
    for a, b, both in zip(*parts, first, strict=True):
        np.testing.assert_allclose(a + b, both, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "dtype"), spread(NONLINEAR, ["float32", "float16", "bfloat16"], 2)
)
def test_dtypes(rng, name, dtype):
    case, dtype = NONLINEAR[name], jnp.dtype(dtype)
    half = dtype.itemsize == 2
    options = LARGE["lengths"] | case.options
    arrays = arguments(rng, case, options, 3, 37, 4, dtype)
    if half:  # vectors and states may be wide
        arrays[-1] = arrays[-1].astype("f")
    (h, final), pullback = jax.vjp(lambda *a: call(case, a, **options, **SEGMENTS), *arrays)
    (want, last), expected = jax.jit(lambda *a: jax.vjp(lambda *b: loop(case, b, **options), *a))(
        *double(arrays)
    )
    assert h.dtype == arrays[0].dtype
    assert {s.dtype for s in final} == {np.dtype("f")}
    # A start that rests may still be off by the tolerance.
    reference.assert_matches(h, want, rtol=None if half else 1e-5)
    for s, e in zip(final, last, strict=True):
        reference.assert_matches(s, e, rtol=1e-5)
    seeds = jnp.ones_like(h), jax.tree.map(jnp.zeros_like, final)
    grads = expected((jnp.ones_like(want), jax.tree.map(jnp.zeros_like, last)))
    for n, a, g, e in zip(case.arguments, arrays, pullback(seeds), grads, strict=True):
        assert g.dtype == a.dtype
        # States are saved as they are returned, and gradients of vectors are sums of many.
        tolerance = np.abs(e).max() * (4e-2 if dtype.name == "bfloat16" else 5e-3 if half else 2e-5)
        np.testing.assert_allclose(reference.double(g), e, atol=tolerance, rtol=0, err_msg=n)


@some_cells
def test_axes_and_absent_arguments(rng, name):
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 3, 9, 4)
    want = call(case, arrays)
    for axis in (-1, 0):
        moved = [np.moveaxis(a, 1, axis) if a.ndim == 3 else a for a in arrays]
        h, final = call(case, moved, axis=axis)
        assert_close((jnp.moveaxis(h, axis, 1), final), want, 1e-12)
    count = len(case.states)
    alone = [a[0] if a.ndim == 3 else a for a in arrays[:-count]] + [s[0] for s in arrays[-count:]]
    assert_close(call(case, alone), jax.tree.map(lambda v: v[0], want), 1e-12)
    optional = {"b_n", "w_i", "w_f", "w_o", "skip", "bias_f", "bias_r", *case.states}
    pairs = list(zip(case.arguments, arrays, strict=True))
    absent = [None if n in optional else a for n, a in pairs]
    zeros = [np.zeros_like(a) if n in optional else a for n, a in pairs]
    assert_close(call(case, absent), call(case, zeros), 1e-12)


@every_cell
def test_same_bits_as_numpy(rng, name):
    """Arrays of JAX that are given to `scanrnn.cells` come here too."""
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 2, 70, 5, "float32")
    options = {"lengths": np.array([70, 33]), "segment": 16} | case.options
    inner = getattr(case.function, "func", case.function)
    absent = getattr(case.function, "keywords", {})
    named = dict(zip(case.arguments, arrays, strict=True))
    function = partial(getattr(scanrnn.cells, inner.__name__), return_final=True, **options)
    want = jax.tree.leaves(function(**named, **absent))
    given = {n: jnp.asarray(a) for n, a in named.items()}
    other = jax.tree.leaves(function(**given, **absent))
    got = jax.tree.leaves(call(case, arrays, **options))
    for one, two, three in zip(got, want, other, strict=True):
        reference.assert_same_bits(one, two)
        assert isinstance(three, jax.Array)
        reference.assert_same_bits(three, two)
    names = [n.removesuffix("0") for n in case.states]
    row = {n: a[:, 0] if a.ndim == 3 else a for n, a in named.items() if n not in case.states}
    row |= dict(zip(names, arrays[-len(names) :], strict=True))
    step = partial(getattr(scanrnn.cells, f"{inner.__name__}_step"), **case.options, **absent)
    given = {n: jnp.asarray(a) for n, a in row.items()}
    pairs = zip(jax.tree.leaves(step(**row)), jax.tree.leaves(step(**given)), strict=True)
    for one, two in pairs:
        assert isinstance(two, jax.Array)
        reference.assert_same_bits(two, one)


@some_cells
def test_n10_padding_is_not_read_and_rows_do_not_mix(rng, name):
    lengths, T = np.array([6, 2]), 6
    valid = np.arange(T) < lengths[:, None]
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 2, T, 2)

    def padded(value):
        return [np.where(valid[..., None], a, value) if a.ndim == 3 else a for a in arrays]

    run = partial(call, case, lengths=lengths, segment=2)
    first = jax.grad(loss_of(run), case.every)
    got = first(*padded(np.nan))
    assert_close(got, first(*padded(0)), 0)
    for g in got:
        assert np.all(np.isfinite(g))
        assert g.ndim < 3 or not np.any(np.asarray(g)[~valid])
    assert not np.any(np.asarray(run(padded(np.nan))[0])[~valid])
    second = jax.jit(lambda a: jax.jvp(first, a, padded(0))[1])
    assert_close(second(padded(np.nan)), second(padded(0)), 1e-12)

    arrays = arguments(rng, case, {}, 4, 64, 8, "float32")
    spoilt = [a.copy() for a in arrays]
    for a in spoilt:
        if a.ndim == 3:
            a[2] = np.nan
    good, other = (jax.tree.leaves(call(case, a, **SEGMENTS)) for a in (arrays, spoilt))
    for one, two in zip(good, other, strict=True):
        reference.assert_same_bits(np.delete(one, 2, 0), np.delete(two, 2, 0))


@every_cell
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0)])
def test_s03_empty_axes(rng, name, shape):
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, *shape)
    (h, final), pullback = jax.vjp(lambda *a: call(case, a), *arrays)
    assert h.shape == shape
    dfinal = jax.tree.map(lambda s: jnp.asarray(values(rng, *s.shape)), final)
    grads = pullback((jnp.zeros_like(h), dfinal))
    for g, a in zip(grads, arrays, strict=True):
        assert g.shape == a.shape
        assert a.ndim != 1 or not np.any(g)
    if shape[1] == 0:
        n = len(case.names)
        assert_close((final, grads[n:]), (tuple(arrays[n:]), dfinal), 0)
        tangent = jax.jvp(lambda *a: call(case, a), arrays, arrays)[1]
        assert_close(tangent[1], tuple(arrays[n:]), 0)


@every_cell
def test_w05_steps_and_pieces_are_the_sequence(rng, name):
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 2, 200, 3)
    n = len(case.names)
    want = call(case, arrays, **case.options)
    step = jax.jit(partial(case.step, **case.options))
    names = [s.removesuffix("0") for s in case.states]
    states, rows = dict(zip(names, arrays[n:], strict=True)), []
    for t in range(100):
        row = {k: a[:, t] if a.ndim == 3 else a for k, a in zip(case.names, arrays, strict=False)}
        h, after = step(**row, **states)
        after = after if isinstance(after, tuple) else (after,)
        states = dict(zip(states, after, strict=True))
        rows.append(h)
    pieces, after = [jnp.stack(rows, 1)], tuple(states.values())
    for i, j in itertools.pairwise([100, 101, 163, 200]):
        part = [a[:, i:j] if a.ndim == 3 else a for a in arrays[:n]]
        h, after = call(case, [*part, *after], segment=16, **case.options)
        pieces.append(h)
    assert_close((jnp.concatenate(pieces, 1), after), want)


# ---- Solving -------------------------------------------------------------------------------------


def reported(case, arrays, **options):
    """h and the report of one compiled call."""

    @jax.jit
    def run(arrays):
        named = dict(zip(case.arguments, arrays, strict=True))
        return case.function(**named, **case.options, **options, return_report=True)

    return run(arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_cell
def test_long_sequences_converge(rng, name, dtype):
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 2, 3000, 3, dtype)
    h, report = reported(case, arrays, segment=250)
    assert isinstance(report, srj.SolveReport)
    assert list(report.status) == ["converged"] * 2
    assert np.all((report.passes >= 1) & (report.passes <= 8))
    assert report.worst.first_unconverged == -1
    want, _ = jax.jit(partial(loop, case, **case.options))(double(arrays))
    assert_close(h, want, 1e-5 if dtype == "float32" else 1e-10)


def test_n11_what_does_not_converge_is_run_serially(rng):
    """Growing states: no guess of a segment's start is good."""
    case = NONLINEAR["gru"]
    arrays = arguments(rng, case, {}, 2, 64, 3)
    for n, size in (("u_r", 9), ("u_z", -9), ("u_n", 9)):
        arrays[case.names.index(n)] = np.full(3, size, float)
    want, _ = loop(case, double(arrays))
    h, report = reported(case, arrays, segment=4, max_passes=1)
    assert list(report.status) == ["fell_back"] * 2
    assert np.all(report.first_unconverged > 0)
    assert_close(h, want)
    h, report = reported(case, arrays, max_passes=0)
    assert list(report.status) == ["serial"] * 2
    assert_close(h, want)


def test_reports_are_pytrees(rng):
    case = NONLINEAR["lstm-peephole"]
    arrays = arguments(rng, case, {}, 3, 64, 4)
    _, report = reported(case, arrays, segment=8)
    assert (report.rows.shape, report.rows.dtype) == ((3, 6), np.float64)
    (leaf,) = jax.tree.leaves(report)
    assert leaf is report.rows
    # Of every example its own, whichever axis is merged: B, D for vectors, or none.
    many = [np.stack([a, a * 0.5]) for a in arrays]
    run = lambda *a: reported(case, a, segment=8)[1].rows  # noqa: E731
    axes = [0 if a.ndim == 3 else None for a in arrays]
    for axes in ([0] * len(arrays), [0 if a.ndim > 1 else None for a in arrays]):
        some = [m if d == 0 else a for m, a, d in zip(many, arrays, axes, strict=True)]
        rows = jax.vmap(run, axes)(*some)
        assert_close(rows, stacked(run, axes, some, 2), 1e-9)
    jax.config.update("jax_enable_x64", False)  # the fixture restores it
    _, report = reported(case, [a.astype("f") for a in arrays], segment=8)
    assert report.rows.dtype == np.float32
    assert list(report.status) == ["converged"] * 3


def test_tolerance(rng):
    case = NONLINEAR["gru"]
    arrays = arguments(rng, case, {}, 1, 256, 4)
    _, tight = reported(case, arrays, segment=16)
    _, loose = reported(case, arrays, segment=16, tolerance=0.1)
    assert loose.passes[0] < tight.passes[0]
    assert tight.error_estimate[0] <= 1e-13 < loose.error_estimate[0] <= 0.1


@pytest.mark.parametrize("name", ["lstm-peephole", "recurrent_sru"])
def test_w07_in_single_precision_alone(rng, name):
    """Without JAX's 64-bit types the options, which are doubles, reach the kernels all the same."""
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 2, 37, 3, "float32")
    run = partial(call, case, **case.options, **SEGMENTS)
    gradient = jax.grad(loss_of(run), case.every)
    want = run(arrays), gradient(*arrays)
    jax.config.update("jax_enable_x64", False)  # the fixture restores it
    assert_close((run(arrays), gradient(*arrays)), want, 1e-5)


# ---- Transformations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "order"), [("gru", 2), ("lstm-peephole", 1), ("recurrent_sru", 1)]
)
def test_derivatives_in_both_modes(rng, name, order):
    _, run, _, arrays = small(rng, name)
    check_grads(jax.jit(loss_of(run)), arrays, order, ["fwd", "rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gru", "packed-reset"),
        ("lstm-coupled", "packed-reset"),
        ("recurrent_sru", "left-reverse"),
    ],
)
def test_g08_second_derivatives_are_the_loops(rng, name, options):
    case, run, loop_of, arrays = small(rng, name, options)
    gradient, expected = (jax.grad(loss_of(f), case.every) for f in (run, loop_of))
    tangents = tuple(values(rng, *a.shape) for a in arrays)
    want = jax.jit(lambda *a: jax.jvp(expected, a, tangents)[1])(*arrays)

    def directional(*arrays):
        return sum(jnp.sum(g * t) for g, t in zip(gradient(*arrays), tangents, strict=True))

    @jax.jit
    def second(*arrays):
        """Forward over reverse, and reverse over reverse."""
        forward = jax.jvp(gradient, arrays, tangents)[1]
        return forward, jax.grad(directional, case.every)(*arrays)

    assert_close(second(*arrays), (want, want))


@every_cell
def test_gradient_is_two_kernels(rng, name):
    case, run, _, arrays = small(rng, name)
    expected = [f"{case.kernel}_backward", f"{case.kernel}_forward"]
    assert kernels(jax.grad(loss_of(run), case.every), *arrays) == expected
    many = [np.stack([a, a]) if a.ndim > 1 else a for a in arrays]
    axes = [0 if a.ndim > 1 else None for a in arrays]
    wanted = [k for k in case.every if arrays[k].ndim > 1]
    assert kernels(jax.vmap(jax.grad(loss_of(run), wanted), axes), *many) == expected


BATCHES = {
    "steps": lambda arrays: [a.ndim == 3 for a in arrays],
    "vectors": lambda arrays: [a.ndim == 1 for a in arrays],
    "states": lambda arrays: [a.ndim == 2 for a in arrays],
    "all": lambda arrays: [True] * len(arrays),
}


@pytest.mark.parametrize(
    ("name", "which", "options"),
    [
        *(("lstm-peephole", which, "plain") for which in BATCHES),
        ("lstm-peephole", "all", "packed-reset"),
        ("recurrent_sru", "steps", "lengths"),
        ("recurrent_sru", "all", "plain"),
        ("gru", "all", "plain"),
    ],
)
def test_w07_vmap(rng, name, which, options):
    _, run, _, arrays = small(rng, name, options)
    check_vmap(rng, run, loss_of, arrays, BATCHES[which](arrays))


@pytest.mark.parametrize("name", ["gru", "recurrent_sru"])
def test_w07_vmap_of_second_derivatives(rng, name):
    case, run, _, arrays = small(rng, name)
    tangents = tuple(values(rng, *a.shape) for a in arrays)

    @jax.jit
    def second(*arrays):
        return jax.jvp(jax.grad(loss_of(run), case.every), arrays, tangents)[1]

    axes = [0 if k % 2 == 0 else None for k in case.every]
    many = [batched(rng, a, d, 2) for a, d in zip(arrays, axes, strict=True)]
    assert_close(jax.vmap(second, axes)(*many), stacked(second, axes, many, 2))


@some_cells
def test_w07_inside_control_flow_with_checkpoint(rng, name):
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 2, 20, 3)
    n = len(case.names)

    def in_pieces(arrays, wrap):
        inputs, states = arrays[:n], tuple(map(jnp.asarray, arrays[n:]))
        pieces = [a.reshape(2, 4, 5, 3).swapaxes(0, 1) for a in inputs if a.ndim == 3]
        vectors = [a for a in inputs if a.ndim == 1]

        def step(states, piece):
            rows, rest = iter(piece), iter(vectors)
            piece = [next(rest if k in case.vectors else rows) for k in case.names]
            h, states = call(case, [*piece, *states])
            return states, h

        states, h = jax.lax.scan(wrap(step), states, pieces)
        return h.swapaxes(0, 1).reshape(2, 20, 3), states

    want = jax.grad(loss_of(partial(call, case)), case.every)(*arrays)
    for wrap in (lambda f: f, jax.checkpoint):
        got = jax.jit(jax.grad(loss_of(partial(in_pieces, wrap=wrap)), case.every))(*arrays)
        assert_close(got, want)


@some_cells
@pytest.mark.parametrize("check", [True, False])
def test_w07_shard_map_over_batch(rng, mesh, name, check):
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 4, 17, 3)
    run = partial(call, case, segment=4)
    check_sharding(mesh, check, run, loss_of, arrays)


@some_cells
def test_w07_program_does_not_depend_on_the_number_of_steps(name):
    case = NONLINEAR[name]

    def size(T):
        shapes = [(3,) if n in case.vectors else (1, T, 3) for n in case.names]
        shapes += [(1, 3)] * len(case.states)
        arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
        gradient = jax.grad(loss_of(partial(call, case)), case.every)
        return jax.jit(gradient).lower(*arrays).as_text().count("\n")

    assert size(2**20) == size(2**10)


@some_cells
def test_lowering_for_cuda(rng, monkeypatch, name):
    """The calls have the core's numbers of cell and options, and the workspace that it asks for."""
    case, run, _, arrays = small(rng, name)
    asked = []

    def sizes(target, operands, results, *, device, **attributes):
        asked.append((target, device, attributes["kind"], attributes["segment"]))
        assert _core.ffi_workspace_bytes(target, operands, results, device=-1, **attributes) >= 0
        return 1000 + len(asked)

    monkeypatch.setattr(_cell, "_core", SimpleNamespace(ffi_workspace_bytes=sizes))
    gradient = jax.jit(jax.grad(loss_of(run), case.every))
    text = gradient.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    (kind,) = (r["kind"] for r in _core.nonlinear_cell_table() if r["name"] == case.kernel)
    assert asked == [(f"scanrnn_solve_{d}", 0, kind, 2) for d in ("forward", "backward")]
    for k, direction in enumerate(["forward", "backward"]):
        (line,) = (r for r in text.splitlines() if f"@scanrnn_{case.kernel}_{direction}" in r)
        assert f"tensor<{1001 + k}xui8>)" in line
        assert "tolerance" in line


# ---- Errors --------------------------------------------------------------------------------------

X = np.zeros((2, 5, 3))
V = np.zeros(3)


@every_cell
def test_s08_errors(name):
    case = NONLINEAR[name]
    fn = getattr(case.function, "func", case.function).__name__
    arrays = {n: V if n in case.vectors else X for n in case.names}

    def expect(error, text, **changes):
        with pytest.raises(error, match=f"^{fn}: {text}"):
            case.function(**arrays | changes)

    for n in case.vectors:
        expect(ValueError, rf"{n} has shape \(4,\), expected \(3,\)", **{n: np.zeros(4)})
        expect(TypeError, f"{n} has dtype float32, expected float64", **{n: V.astype("f")})
    for n in case.states:
        expect(ValueError, rf"{n} has shape \(3,\), expected \(2, 3\)", **{n: V})
    expect(ValueError, "lengths has the value 6", lengths=[6, 0])
    expect(ValueError, "axis is 3, expected", axis=3)


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("sru: v_f was given and v_r was not", lambda: srj.sru(X, X, X, v_f=V)),
        ("sru: v_r was given and v_f was not", lambda: srj.sru(X, X, X, v_r=V)),
        (
            "sru: return_report was given, expected v_f and v_r with it",
            lambda: srj.sru(X, X, X, return_report=True),
        ),
        (
            "diagonal_lstm: i was given and u_i was not, expected both or neither",
            lambda: srj.diagonal_lstm(X, X, X, X, None, V, V, V),
        ),
        (
            "diagonal_lstm: u_i was given and i was not, expected both or neither",
            lambda: srj.diagonal_lstm(None, X, X, X, V, V, V, V),
        ),
        (
            "diagonal_lstm: w_i was given and i was not, expected none of both",
            lambda: srj.diagonal_lstm(None, X, X, X, None, V, V, V, w_i=V),
        ),
        (
            "indrnn: activation is 'silu', expected 'identity', 'tanh' or 'relu'",
            lambda: srj.indrnn(X, V, activation="silu"),
        ),
        (
            r"diagonal_gru_step: r has shape \(\), expected",
            lambda: srj.diagonal_gru_step(1.0, 1.0, 1.0, V, V, V, None, None),
        ),
        (
            r"diagonal_lstm_step: c has shape \(4,\), expected \(2, 3\)",
            lambda: srj.diagonal_lstm_step(None, *[X[:, 0]] * 3, None, V, V, V, None, np.zeros(4)),
        ),
    ],
)
def test_other_errors(text, run):
    with pytest.raises(ValueError, match=text):
        run()
