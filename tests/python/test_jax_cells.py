"""Every cell of `scanrnn.jax` against a loop of its equations, and its transformations."""

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
from jax.nn import sigmoid
from jax.test_util import check_grads
from jax_cells import ACTIVATIONS, CASES, REAL, Case, arguments, call, double, loop, loss_of
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
from scanrnn import _core
from scanrnn.jax import _cell

pytestmark = pytest.mark.usefixtures("x64")


every_cell = pytest.mark.parametrize("name", CASES)
#: One with vectors and a state that is not the output, one with neither, one whose gate has no
#: derivative at an end, a complex one.
some_cells = pytest.mark.parametrize("name", ["sru", "min_gru", "rg_lru", "lru"])


def small(rng, name, options="plain"):
    """A case, a function of its arrays, the loop of the same, and the arrays."""
    case, options = CASES[name], SMALL[options]
    options = options | case.options
    arrays = arguments(rng, case, SMALL["plain"] | options, 2, 6, 2)
    return case, partial(call, case, **options), partial(loop, case, **options), arrays


# ---- Values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "where"), spread(CASES, LARGE, 3))
def test_values_and_gradients_are_the_loops(rng, name, where):
    case = CASES[name]
    options = LARGE[where] | case.options
    arrays = arguments(rng, case, options, 3, 37, 4)
    got, pullback = jax.vjp(lambda *a: call(case, a, **options), *arrays)
    want, expected = jax.jit(lambda *a: jax.vjp(lambda *b: loop(case, b, **options), *a))(
        *double(arrays)
    )
    assert_close(got, want, 1e-12)
    cotangents = tuple(jnp.asarray(values(rng, *g.shape, dtype=g.dtype)) for g in got)
    for n, a, g, e in zip(
        (*case.names, case.state), arrays, pullback(cotangents), expected(cotangents), strict=True
    ):
        assert (g.dtype, g.shape) == (a.dtype, a.shape), n
        np.testing.assert_allclose(g, e, rtol=1e-10, atol=1e-10, err_msg=n)


@every_cell
def test_g05_g10_backward_twice_and_inputs_unchanged(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, LARGE["plain"] | case.options, 2, 37, 4)
    before = [np.array(a) for a in arrays]
    outputs, pullback = jax.vjp(lambda *a: call(case, a, **case.options), *arrays)
    kept = [np.array(y) for y in outputs]
    first, second = pullback(outputs), pullback(outputs)
    for now, then in zip((*second, *arrays, *outputs), (*first, *before, *kept), strict=True):
        reference.assert_same_bits(np.array(now), np.array(then))
    zero = jax.tree.map(jnp.zeros_like, outputs)
    parts = [pullback((outputs[0], zero[1])), pullback((zero[0], outputs[1]))]
    for a, b, both in zip(*parts, first, strict=True):
        np.testing.assert_allclose(a + b, both, rtol=1e-11, atol=1e-12)
    donated = [jnp.array(a) for a in arrays]
    run = jax.jit(lambda *a: call(case, a, **case.options), donate_argnums=0)
    for now, then in zip(run(*donated), kept, strict=True):
        np.testing.assert_allclose(now, then, rtol=1e-12, atol=1e-13)
    assert donated[0].is_deleted()


@pytest.mark.parametrize(("name", "dtype"), spread(CASES, ["float32", "float16", "bfloat16"], 2))
def test_dtypes(rng, name, dtype):
    case, dtype = CASES[name], jnp.dtype(dtype)
    half = dtype.itemsize == 2
    if case.complex and half:
        with pytest.raises(TypeError, match=f"u has dtype {dtype.name}, expected float32"):
            call(case, [np.zeros((1, 2, 3), dtype), *np.zeros((4, 3), "f")])
        return
    options = LARGE["lengths"] | case.options
    arrays = arguments(rng, case, options, 3, 37, 4, dtype)
    (h, final), pullback = jax.vjp(lambda *a: call(case, a, **options), *arrays)
    (want, last), expected = jax.jit(lambda *a: jax.vjp(lambda *b: loop(case, b, **options), *a))(
        *double(arrays)
    )
    assert h.dtype == arrays[0].dtype
    assert final.dtype == (np.float32 if half else arrays[-1].dtype)
    reference.assert_matches(h, want)
    reference.assert_matches(final, last)
    cotangents = jnp.ones_like(h), jnp.zeros_like(final)
    grads = expected((jnp.ones_like(want), jnp.zeros_like(last)))
    for n, a, g, e in zip(
        (*case.names, case.state), arrays, pullback(cotangents), grads, strict=True
    ):
        assert g.dtype == a.dtype
        # h is saved as it was returned, and gradients of vectors are sums of many.
        tolerance = np.abs(e).max() * (2e-2 if dtype.name == "bfloat16" else 3e-3 if half else 1e-5)
        np.testing.assert_allclose(reference.double(g), e, atol=tolerance, rtol=0, err_msg=n)


@pytest.mark.parametrize("name", REAL)
def test_vectors_and_states_in_the_accumulation_dtype(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 2, 9, 3, jnp.bfloat16)
    arrays = [
        a if n not in (*case.vectors, case.state) else a.astype("f")
        for n, a in zip((*case.names, case.state), arrays, strict=True)
    ]
    (h, final), pullback = jax.vjp(lambda *a: call(case, a), *arrays)
    assert (h.dtype, final.dtype) == (jnp.bfloat16, np.float32)
    assert [g.dtype for g in pullback((h, final))] == [a.dtype for a in arrays]


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        *spread(["gilr", "hgrn", "min_gru", "min_lstm", "qrnn-fo"], ACTIVATIONS, 3),
        *(("sru", activation) for activation in ACTIVATIONS),
    ],
)
def test_activations(rng, name, activation):
    case = CASES[name]
    if name == "sru" and activation not in ("identity", "tanh", "relu"):
        with pytest.raises(ValueError, match=r"sru: activation is '\w+', expected 'identity'"):
            call(case, arguments(rng, case, {}, 2, 9, 3), activation=activation)
        return
    arrays = arguments(rng, case, {}, 2, 9, 3)
    case = CASES[name]
    loop_of = lambda a: loop(  # noqa: E731
        Case(
            partial(case.loop, activation=activation),
            case.function,
            case.step,
            case.names,
            case.vectors,
            case.state,
        ),
        a,
    )
    run = partial(call, case, activation=activation)
    assert_close(run(arrays), loop_of(double(arrays)), 1e-12)
    gradient, expected = (jax.jit(jax.grad(loss_of(f), case.every)) for f in (run, loop_of))
    assert_close(gradient(*arrays), expected(*double(arrays)))


@every_cell
def test_axes(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 3, 9, 4)
    want = call(case, arrays)
    for axis in (-1, 0, 2):
        moved = [np.moveaxis(a, 1, axis) if a.ndim == 3 else a for a in arrays]
        h, final = call(case, moved, axis=axis)
        assert_close((jnp.moveaxis(h, axis, 1), final), want, 1e-12)
    h, final = call(case, [a[0] if a.ndim == 3 else a for a in arrays[:-1]] + [arrays[-1][0]])
    assert_close((h, final), (want[0][0], want[1][0]), 1e-12)
    one = [a[0, :, 0] if a.ndim == 3 else a[0] for a in arrays[:-1]] + [arrays[-1][0, 0]]
    h, final = call(case, one)
    assert (h.shape, final.shape) == ((9,), ())
    assert_close((h, final), (want[0][0, :, 0], want[1][0, 0]), 1e-12)
    more = [np.stack([a, a]) if a.ndim == 3 else a for a in arrays[:-1]]
    h, final = call(case, [*more, np.stack([arrays[-1], arrays[-1]])])
    assert_close((h[1], final[1]), want, 1e-12)


@pytest.mark.parametrize("name", REAL)
def test_same_bits_as_numpy(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 2, 70, 5, "float32")
    options = {"lengths": np.array([70, 33]), "return_final": True} | case.options
    function = getattr(scanrnn.cells, case.function.__name__)
    named = dict(zip((*case.names, case.state), arrays, strict=True))
    expected = function(**named, **options)
    other = function(**{n: jnp.asarray(a) for n, a in named.items()}, **options)
    for one, two, three in zip(call(case, arrays, **options), expected, other, strict=True):
        reference.assert_same_bits(one, two)
        assert isinstance(three, jax.Array)
        reference.assert_same_bits(three, two)


@every_cell
def test_w07_in_single_precision_alone(rng, name):
    """Without JAX's 64-bit types the options, which are doubles, reach the kernels all the same."""
    case = CASES[name]
    arrays = arguments(rng, case, {}, 2, 9, 3, "float32")
    gradient = jax.grad(loss_of(partial(call, case, **case.options)), case.every)
    want = call(case, arrays, **case.options), gradient(*arrays)
    jax.config.update("jax_enable_x64", False)  # the fixture restores it
    assert_close((call(case, arrays, **case.options), gradient(*arrays)), want, 1e-5)


@every_cell
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0)])
def test_s03_empty_axes(rng, name, shape):
    case = CASES[name]
    arrays = arguments(rng, case, {}, *shape)
    (h, final), pullback = jax.vjp(lambda *a: call(case, a), *arrays)
    assert h.shape == shape
    dfinal = values(rng, *final.shape, dtype=final.dtype)
    grads = pullback((jnp.zeros_like(h), dfinal))
    for g, a in zip(grads, arrays, strict=True):
        assert g.shape == a.shape
        if a.ndim == 1:
            assert not np.any(g)
    if shape[1] == 0:
        assert_close((final, grads[-1]), (arrays[-1], dfinal), 0)


@pytest.mark.parametrize(("name", "T"), spread(CASES, [33, 1, 129], 2))
def test_s01_lengths_around_those_of_segments(rng, name, T):
    """Gates are not identities at 0: steps beyond the end must not count."""
    case = CASES[name]
    arrays = [
        a + 3 if n in case.vectors and n != "bound" and not case.complex else a
        for n, a in zip((*case.names, case.state), arguments(rng, case, {}, 1, T, 2), strict=True)
    ]
    run = jax.jit(jax.grad(loss_of(partial(call, case, **case.options)), case.every))
    expected = jax.jit(jax.grad(loss_of(partial(loop, case, **case.options)), case.every))
    assert_close(run(*arrays), expected(*double(arrays)))


@pytest.mark.parametrize(("name", "side"), spread(CASES, ["left", "right"]))
def test_n10_padding_is_not_read(rng, name, side):
    lengths, T = np.array([6, 2]), 6
    steps = np.arange(T)
    valid = steps >= T - lengths[:, None] if side == "left" else steps < lengths[:, None]
    case = CASES[name]
    arrays = arguments(rng, case, {}, 2, T, 2)

    def padded(value):
        return [np.where(valid[..., None], a, value) if a.ndim == 3 else a for a in arrays]

    run = partial(call, case, lengths=lengths, padding_side=side, **case.options)
    first = jax.grad(loss_of(run), case.every)
    got, want = first(*padded(np.nan)), first(*padded(0))
    assert_close(got, want, 0)
    for g in got:
        assert np.all(np.isfinite(g))
        assert g.ndim < 3 or not np.any(np.asarray(g)[~valid])
    assert not np.any(np.asarray(run(padded(np.nan))[0])[~valid])
    second = jax.jit(lambda a: jax.jvp(first, a, [x.real + 0 * x for x in padded(0)])[1])
    assert_close(second(padded(np.nan)), second(padded(0)), 1e-12)


@every_cell
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_n10_rows_do_not_mix(rng, name, bad):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 4, 64, 8, "float32")
    spoilt = [a.copy() for a in arrays]
    for a in spoilt:
        if a.ndim == 3:
            a[2] = bad
    good, other = (call(case, a) for a in (arrays, spoilt))
    for one, two in zip(good, other, strict=True):
        reference.assert_same_bits(np.delete(one, 2, 0), np.delete(two, 2, 0))


@every_cell
def test_w02_packed_sequences_are_each_alone(rng, name):
    case, offsets = CASES[name], [0, 3, 4, 4, 10]
    arrays = arguments(rng, case, {"cu_seqlens": offsets}, 1, 10, 3)
    for dtype in (np.int32, np.int64):
        h, final = call(case, arrays, cu_seqlens=np.array(offsets, dtype))
        for n, (i, j) in enumerate(itertools.pairwise(offsets)):
            alone = [a[:, i:j] if a.ndim == 3 else a for a in arrays[:-1]]
            one, last = call(case, [*alone, arrays[-1][n : n + 1]])
            assert_close((h[:, i:j], final[n : n + 1]), (one, last), 1e-12)


@every_cell
def test_w03_resets_start_anew(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 1, 9, 2)
    flags = np.isin(np.arange(9), [0, 4])[None]
    zeros = np.zeros_like(arrays[-1])
    parts = [
        call(case, [a[:, i:j] if a.ndim == 3 else a for a in arrays[:-1]] + [zeros])[0]
        for i, j in [(0, 4), (4, 9)]
    ]
    for dtype in (bool, np.uint8, np.float32):
        h, _ = call(case, arrays, reset=flags.astype(dtype))
        assert_close(h, jnp.concatenate(parts, 1), 1e-12)
    gradient = jax.grad(loss_of(partial(call, case, reset=flags)), case.every)
    assert not np.any(gradient(*arrays)[-1])


# ---- Steps and pieces ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@every_cell
def test_w05_step_is_the_sequence(rng, name, dtype):
    case, dtype = CASES[name], jnp.dtype(dtype)
    if case.complex and dtype.itemsize == 2:
        dtype = np.dtype("float32")
    arrays = arguments(rng, case, {}, 2, 200, 3, dtype)
    state = case.state.removesuffix("0")
    step = jax.jit(partial(case.step, **case.options))

    def run():
        c, rows = arrays[-1], []
        for t in range(200):
            row = {
                n: a[:, t] if a.ndim == 3 else a for n, a in zip(case.names, arrays, strict=False)
            }
            h, c = step(**row, **{state: c})
            rows.append(h)
        return jnp.stack(rows, 1), c

    want = call(case, arrays, **case.options)
    tolerance = {"bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype.name]
    steps = run()
    wide = [jax.tree.map(reference.double, pair) for pair in (steps, want)]
    assert_close(*wide, tolerance)
    for one, two in zip(steps, run(), strict=True):
        reference.assert_same_bits(one, two)
    row = {n: a[0, 0] if a.ndim == 3 else a for n, a in zip(case.names, arrays, strict=False)}
    assert case.step(**row, **{state: None})[0].shape == (3,)


@every_cell
def test_w01_pieces_are_the_sequence(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 2, 1000, 3)
    cuts = [0, *sorted(rng.choice(np.arange(1, 1000), 6, replace=False)), 1000]

    def in_pieces(arrays):
        *inputs, state = arrays
        rows = []
        for i, j in itertools.pairwise(cuts):
            piece = [a[:, i:j] if a.ndim == 3 else a for a in inputs]
            h, state = call(case, [*piece, state])
            rows.append(h)
        return jnp.concatenate(rows, 1), state

    assert_close(in_pieces(arrays), call(case, arrays), 1e-12)
    gradients = [jax.grad(loss_of(f), case.every) for f in (in_pieces, partial(call, case))]
    assert_close(gradients[0](*arrays), gradients[1](*arrays))


# ---- Transformations -----------------------------------------------------------------------------


@some_cells
def test_derivatives_in_both_modes(rng, name):
    _, run, _, arrays = small(rng, name)
    check_grads(jax.jit(loss_of(run)), arrays, 2, ["fwd", "rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "options"), spread(CASES, ["left-reverse", "packed-reset"]))
def test_g08_second_derivatives_are_the_loops(rng, name, options):
    case, run, loop_of, arrays = small(rng, name, options)
    tangents = tuple(values(rng, *a.shape, dtype=a.dtype) for a in arrays)

    def second(f):
        """Forward over reverse, and reverse over reverse."""
        gradient = jax.grad(loss_of(f), case.every)

        def directional(*arrays):
            pairs = zip(gradient(*arrays), tangents, strict=True)
            return sum(jnp.sum(jnp.real(g * t)) for g, t in pairs)

        return jax.jit(
            lambda *a: (jax.jvp(gradient, a, tangents)[1], jax.grad(directional, case.every)(*a))
        )

    assert_close(second(run)(*arrays), second(loop_of)(*arrays))


@every_cell
def test_g09_forward_mode_and_transposition(rng, name):
    case, run, loop_of, arrays = small(rng, name, "left")
    tangents = [values(rng, *a.shape, dtype=a.dtype) for a in arrays]
    want = jax.jit(lambda a, t: jax.jvp(lambda *b: loop_of(b), a, t))(arrays, tangents)
    assert_close(jax.jvp(lambda *a: run(a), arrays, tangents), want)
    out, linear = jax.linearize(lambda *a: run(a), *arrays)
    assert_close((out, linear(*tangents)), want)
    _, pullback = jax.vjp(lambda *a: run(a), *arrays)
    assert_close(jax.linear_transpose(linear, *arrays)(out), pullback(out))
    assert_close(pullback(out), pullback(out), 0)
    # Several cotangents at once, of a forward pass that was not batched.
    many = jax.tree.map(lambda v: jnp.stack([v, 2 * v, -v]), out)
    expected = jax.tree.map(lambda v: jnp.stack([v, 2 * v, -v]), pullback(out))
    assert_close(jax.vmap(pullback)(many), expected)
    # One argument at a time, the others constant.
    for k in case.every:
        one = jax.vjp(lambda v, k=k: run([*arrays[:k], v, *arrays[k + 1 :]]), arrays[k])[1]
        assert_close(one(out)[0], pullback(out)[k])


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
    "state": lambda arrays: [False] * (len(arrays) - 1) + [True],
    "all": lambda arrays: [True] * len(arrays),
}


@pytest.mark.parametrize(
    ("name", "which", "options"),
    [
        *itertools.product(["sru", "rg_lru", "lru"], ["steps", "vectors", "state"], ["plain"]),
        *((name, "all", options) for name, options in spread(CASES, ["plain", "packed-reset"])),
    ],
)
def test_w07_vmap(rng, name, which, options):
    _, run, _, arrays = small(rng, name, options)
    check_vmap(rng, run, loss_of, arrays, BATCHES[which](arrays))


@some_cells
def test_w07_vmap_of_second_derivatives(rng, name):
    case, run, _, arrays = small(rng, name)
    tangents = tuple(values(rng, *a.shape, dtype=a.dtype) for a in arrays)

    @jax.jit
    def second(*arrays):
        return jax.jvp(jax.grad(loss_of(run), case.every), arrays, tangents)[1]

    axes = [0 if k % 2 == 0 else None for k in case.every]
    many = [batched(rng, a, d) for a, d in zip(arrays, axes, strict=True)]
    assert_close(jax.vmap(second, axes)(*many), stacked(second, axes, many))


@some_cells
def test_w07_inside_control_flow_with_checkpoint(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 2, 20, 3)

    def in_pieces(arrays, wrap):
        *inputs, state = arrays
        pieces = [
            a.reshape(2, 4, 5, 3).swapaxes(0, 1) for a in map(jnp.asarray, inputs) if a.ndim == 3
        ]
        vectors = [a for a in inputs if a.ndim == 1]

        def step(state, piece):
            h, state = call(case, [*piece, *vectors, state])
            return state, h

        state, h = jax.lax.scan(wrap(step), state, pieces)
        return h.swapaxes(0, 1).reshape(2, 20, 3), state

    want = jax.grad(loss_of(partial(call, case)), case.every)(*arrays)
    for wrap in (lambda f: f, jax.checkpoint):
        got = jax.jit(jax.grad(loss_of(partial(in_pieces, wrap=wrap)), case.every))(*arrays)
        assert_close(got, want)


@pytest.mark.parametrize(("name", "check"), spread(CASES, [True, False]))
def test_w07_shard_map_over_batch(rng, mesh, name, check):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 4, 7, 3)
    run = partial(call, case)
    check_sharding(mesh, check, run, loss_of, arrays)


@every_cell
def test_w07_program_does_not_depend_on_the_number_of_steps(name):
    case = CASES[name]

    def size(T):
        shape = jax.ShapeDtypeStruct
        wide = np.complex64 if case.complex else np.float32
        arrays = [
            shape((3,), np.float32) if n in case.vectors else shape((1, T, 3), wide)
            for n in case.names
        ]
        gradient = jax.grad(loss_of(partial(call, case)), case.every)
        return jax.jit(gradient).lower(*arrays, shape((1, 3), wide)).as_text().count("\n")

    assert size(2**20) == size(2**10)


@pytest.mark.parametrize("name", REAL)
def test_lowering_for_cuda(rng, monkeypatch, name):
    """The calls have the core's numbers of cell and options, and the workspace that it asks for."""
    case, run, _, arrays = small(rng, name)
    asked = []

    def sizes(target, operands, results, *, device, **attributes):
        asked.append((target, device, attributes["kind"], attributes["options"]))
        assert _core.ffi_workspace_bytes(target, operands, results, device=-1, **attributes) >= 0
        return 1000 + len(asked)

    substitute = SimpleNamespace(ffi_workspace_bytes=sizes, checkpoint_rows=_core.checkpoint_rows)
    monkeypatch.setattr(_cell, "_core", substitute)
    gradient = jax.jit(jax.grad(loss_of(run), case.every))
    text = gradient.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    row = next(row for row in _core.cell_table() if row["name"] == case.kernel)
    targets, devices, kinds, options = zip(*asked, strict=True)
    assert targets == ("scanrnn_cell_forward", "scanrnn_cell_backward")
    assert (set(devices), set(kinds)) == ({0}, {row["kind"]})
    assert len(options[0]) == len(row["options"])
    assert options[0] == options[1]
    for k, direction in enumerate(["forward", "backward"]):
        (line,) = (r for r in text.splitlines() if f"@scanrnn_{case.kernel}_{direction}" in r)
        assert f"tensor<{1001 + k}xui8>)" in line


# ---- Numerics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["min_gru", "min_lstm"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_n04_initial_states_of_any_sign(rng, name, dtype):
    case = CASES[name]
    *inputs, _ = arguments(rng, case, {}, 2, 7, 4, dtype)
    zeros = np.zeros((2, 4), dtype)
    for one, two in zip(call(case, [*inputs, None]), call(case, [*inputs, zeros]), strict=True):
        reference.assert_same_bits(one, two)
    size = np.abs(values(rng, 2, 4, dtype=dtype))
    for state in (zeros, size, -size, size * [[1], [-1]]):
        state = state.astype(dtype)
        h, final = call(case, [*inputs, state])
        want = loop(case, double([*inputs, state]))
        assert_close((h, final), want, 1e-6 if dtype == "float32" else 1e-12)
        c = state
        for t in range(7):
            out, c = case.step(*(a[:, t] for a in inputs), c)
            assert_close(out, h[:, t], 1e-6 if dtype == "float32" else 1e-12)
        assert np.all(
            np.isfinite(jax.grad(loss_of(partial(call, case)), len(inputs))(*inputs, state))
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_min_lstm_with_gates_of_any_size(dtype):
    sizes = np.array([-1e4, -200, -30, 0, 30, 200, 1e4], dtype)
    f, i = (g.reshape(1, -1, 1) for g in np.meshgrid(sizes, sizes))
    v, h0 = np.full_like(f, 2), np.ones((1, 1), dtype)
    reset = np.ones(f.shape[:2], bool)
    taken = np.asarray(srj.min_lstm(f, i, v, h0, reset=reset))[0, :, 0] / 2
    # log(s(i) / s(f)) without cancellation.
    wide = [np.minimum(g, 0) - np.log1p(np.exp(-np.abs(g))) for g in map(np.float64, (f, i))]
    difference = (wide[0] - wide[1])[0, :, 0]
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(difference))
    np.testing.assert_allclose(
        taken, want, rtol=1e-5 if dtype == "float32" else 1e-12, atol=float(np.finfo(dtype).tiny)
    )
    run = partial(call, CASES["min_lstm"])
    gradient = jax.grad(loss_of(run), (0, 1, 2, 3))
    for g in (*gradient(f, i, v, h0), *jax.jvp(gradient, (f, i, v, h0), (f, i, v, h0))[1]):
        assert np.all(np.isfinite(g))


def test_n06_rg_lru_next_to_one(rng):
    """sqrt(1 - a^2) has full accuracy, and its derivative is bounded by 1000 times that of a^2."""

    def scale(log_a, dtype="f"):
        # r = 0 and i = +inf leave sqrt(1 - a^2) of log a = -c softplus(lam) / 2.
        lam = np.log(np.expm1(-log_a / 4)).astype(dtype) if log_a else np.array(-np.inf, dtype)
        ones = jnp.ones((1, 1, 1), dtype)
        run = lambda lam: srj.rg_lru(ones, 0 * ones, jnp.inf * ones, lam)[0, 0, 0]  # noqa: E731
        # d(log a)/d(lam) = -c/2 sigmoid(lam)
        slope = jax.grad(run)(jnp.array([lam]))[0] / (-4 * sigmoid(lam))
        return run(jnp.array([lam])), slope, jax.grad(jax.grad(lambda v: run(v[None])))(lam)

    for log_a in (-1e-8, -1e-4, -0.1):
        value, slope, second = scale(log_a)
        exact = np.sqrt(-np.expm1(2 * log_a))
        np.testing.assert_allclose(value, exact, rtol=1e-5)
        bounded = -2 * np.exp(2 * log_a) * min(0.5 / exact, 1000)
        np.testing.assert_allclose(slope, bounded, rtol=1e-4)
        assert np.isfinite(second)
    value, _, second = scale(0)
    assert value == 0
    assert second == 0

    arrays = arguments(rng, CASES["rg_lru"], {}, 2, 1000, 4, "float32")
    decay = rng.uniform(0.987, 0.9999, 4)
    arrays[3] = np.log(np.expm1(-np.log(decay) / 8)).astype("f")
    gradient = jax.grad(loss_of(partial(call, CASES["rg_lru"])), (0, 1, 2, 3, 4))(*arrays)
    assert all(np.all(np.isfinite(g)) for g in gradient)


@pytest.mark.parametrize("name", ["qrnn-f", "qrnn-fo", "qrnn-ifo"])
def test_a_forget_gate_of_infinity_keeps_the_state(rng, name):
    case = CASES[name]
    arrays = arguments(rng, case, {}, 2, 6, 3)
    kept = rng.random((2, 6, 3)) < 0.5
    assert kept[:, 1:].any()

    def masked(arrays):
        arrays = list(arrays)
        arrays[1] = jnp.where(kept, jnp.inf, arrays[1])
        if name == "qrnn-ifo":
            arrays[3] = jnp.where(kept, -jnp.inf, arrays[3])
        return call(case, arrays)

    def by_hand(arrays):
        *inputs, c = map(jnp.asarray, arrays)
        rows = []
        for t in range(6):
            row = [a[:, t] for a in inputs]
            new, _ = case.loop(c, *row)
            c = jnp.where(kept[:, t], c, new)
            rows.append(c if name == "qrnn-f" else sigmoid(row[2]) * c)
        return jnp.stack(rows, 1), c

    assert_close(masked(arrays), by_hand(arrays), 1e-12)
    gradients = [jax.grad(loss_of(f), case.every)(*arrays) for f in (masked, by_hand)]
    assert_close(*gradients)
    assert not np.any(np.asarray(gradients[0][1])[kept])
    second = jax.jvp(jax.grad(loss_of(masked), case.every), arrays, arrays)[1]
    assert_close(second, jax.jvp(jax.grad(loss_of(by_hand), case.every), arrays, arrays)[1])


def test_lru_scales_its_inputs_by_default(rng):
    u, nu, theta, gamma, h0 = arguments(rng, CASES["lru"], {}, 2, 9, 3)
    radius = np.exp(-np.exp(nu))
    given = srj.lru(u, nu, theta, np.sqrt(1 - radius**2), h0)
    assert_close(srj.lru(u, nu, theta, None, h0), given, 1e-12)
    assert_close(
        srj.lru(u.real, nu, theta, gamma, h0), srj.lru(u.real + 0j, nu, theta, gamma, h0), 0
    )
    assert srj.lru(u.real.astype("f"), nu.astype("f"), theta.astype("f")).dtype == np.complex64


# ---- Errors --------------------------------------------------------------------------------------

X = np.zeros((2, 5, 3))


@pytest.mark.parametrize("name", CASES)
def test_s08_errors(name):
    case = CASES[name]
    fn = case.function.__name__
    arrays = {n: np.zeros(3) if n in case.vectors else X for n in case.names}

    def expect(error, text, **changes):
        with pytest.raises(error, match=f"^{fn}: {text}"):
            case.function(**arrays | changes)

    for n in case.names[1:]:
        if n in case.vectors:
            expect(ValueError, rf"{n} has shape \(4,\), expected \(3,\)", **{n: np.zeros(4)})
            expect(TypeError, f"{n} has dtype float32, expected float64", **{n: np.zeros(3, "f")})
        elif not case.complex:
            first = "f" if name == "qrnn-f" else case.names[0]
            other = n if n != first else "z"
            expect(
                ValueError,
                rf"{other} has shape \(2, 4, 3\), expected \(2, 5, 3\)",
                **{other: X[:, 1:]},
            )
            expect(
                TypeError, f"{other} has dtype float32, expected float64", **{other: X.astype("f")}
            )
    expect(
        ValueError,
        rf"{case.state} has shape \(3,\), expected \(2, 3\)",
        **{case.state: np.zeros(3, complex if case.complex else float)},
    )
    expect(ValueError, "lengths has the value 6", lengths=[6, 0])
    expect(ValueError, r"lengths has shape \(3,\), expected \(2,\)", lengths=[1, 2, 3])
    expect(ValueError, "axis is 3, expected", axis=3)
    expect(ValueError, "padding_side is 'both'", padding_side="both")
    expect(ValueError, r"reset has shape \(2, 4\), expected \(2, 5\)", reset=np.zeros((2, 4)))
    for n in case.names:
        if n not in case.vectors:
            expect(
                TypeError,
                r"\w+ has dtype int32, expected",
                **{m: X.astype("i") for m in case.names if m not in case.vectors},
            )
    if not case.complex:
        expect(
            TypeError,
            "[fzux] has dtype complex128, expected float16, bfloat16",
            **{n: X * 1j for n in case.names if n not in case.vectors},
        )


@pytest.mark.parametrize(
    ("error", "text", "run"),
    [
        (ValueError, "qrnn: i was given and o was not", lambda: srj.qrnn(X, X, None, X)),
        (
            ValueError,
            "rg_lru: c is -1, expected a positive number",
            lambda: srj.rg_lru(X, X, X, X[0, 0], c=-1),
        ),
        (
            ValueError,
            "gilr: activation is 'gelu', expected 'identity', 'tanh', 'relu', 'silu', "
            "'sigmoid' or 'positive'",
            lambda: srj.gilr(X, X, activation="gelu"),
        ),
        (
            ValueError,
            r"min_gru_step: v has shape \(2, 4\), expected \(2, 3\)",
            lambda: srj.min_gru_step(X[:, 0], np.zeros((2, 4)), None),
        ),
        (
            ValueError,
            r"gilr_step: f has shape \(\), expected at least a channel axis",
            lambda: srj.gilr_step(1.0, 1.0, None),
        ),
        (
            ValueError,
            r"gilr_step: h has shape \(4,\)",
            lambda: srj.gilr_step(X[:, 0], X[:, 0], np.zeros(4)),
        ),
        (TypeError, "gilr: z is a NoneType, expected an array", lambda: srj.gilr(X, None)),
        (
            TypeError,
            "lru: nu is a NoneType, expected an array",
            lambda: srj.lru(X, None, X[0, 0]),
        ),
    ],
)
def test_other_errors(error, text, run):
    with pytest.raises(error, match=text):
        run()
