"""The fused cells of scanrnn.torch, all of them: functions and operators, by one table."""

import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import scanrnn
import scanrnn.torch as srt
import torch
from hypothesis import given
from scanrnn.torch import _cells
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint
from torch_helpers import (
    ALL_ACTIVATIONS,
    OPTIONS,
    as_tensors,
    assert_gradients_match,
    cells,
    gradients,
    leaf,
    size_of,
)

CELLS = cells()
FUSED = [name for name in CELLS if name != "lru"]
by_cell = pytest.mark.parametrize("name", CELLS)
by_fused_cell = pytest.mark.parametrize("name", FUSED)
by_options = pytest.mark.parametrize("option", OPTIONS)
TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
SAME = {"rtol": 0, "atol": 0}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


# ---- Values and first derivatives ----------------------------------------------------------------


@by_options
@by_cell
def test_equals_the_loop(name, option):
    cell, options = CELLS[name], as_tensors(OPTIONS[option])
    args = cell.inputs(options)
    ours, loop = cell.both(*args, **options), cell.loop(*args, **options)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    assert_gradients_match(gradients(ours, args), gradients(loop, args), **TOLERANCE)


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
@by_fused_cell
def test_every_activation(name, activation):
    cell = CELLS[name]
    if cell.g is None or (name == "sru" and activation not in ("identity", "tanh", "relu")):
        with pytest.raises((TypeError, ValueError), match="activation"):
            cell.function(*cell.inputs({}), activation=activation)
        return
    args = cell.inputs({})
    ours = cell.both(*args, activation=activation)
    loop = cell.loop(*args, activation=activation)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    assert_gradients_match(gradients(ours, args), gradients(loop, args), **TOLERANCE)


@by_cell
def test_every_optional_input(name):
    cell = CELLS[name]
    everything = cell.inputs({})
    optional = [i for i, n in enumerate(cell.names) if n in (*cell.optional, "state")]
    for present in itertools.product([False, True], repeat=len(optional)):
        args = list(everything)
        for i, keep in zip(optional, present, strict=True):
            args[i] = args[i] if keep else None
        given_ = [t for t in args if t is not None]
        ours, loop = cell.both(*args), cell.loop(*args)
        torch.testing.assert_close(ours, loop, **TOLERANCE)
        assert_gradients_match(gradients(ours, given_), gradients(loop, given_), **TOLERANCE)


@pytest.mark.parametrize("output", [0, 1], ids=["y", "final"])
@by_cell
def test_g03_every_gradient_alone(name, output):
    cell = CELLS[name]
    everything = cell.inputs({})
    loop = cell.loop(*everything)[output]
    wanted = gradients([loop], everything)
    for i in range(len(everything)):
        args = [t if i == j else t.detach() for j, t in enumerate(everything)]
        y = cell.both(*args)[output]
        if wanted[i] is None:  # an output gate does not reach the state
            assert not y.requires_grad or not gradients([y], [args[i]])[0].any()
        else:
            assert_gradients_match(gradients([y], [args[i]]), [wanted[i]], **TOLERANCE)


@by_cell
def test_g03_one_learnable_state_for_all_rows(name):
    cell = CELLS[name]
    *args, state = cell.inputs_of(4, 9, 1, 3)
    wide = (*args, state.expand(4, 3))
    ours, loop = cell.both(*wide), cell.loop(*wide)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    wanted = (*args, state)
    assert_gradients_match(gradients(ours, wanted), gradients(loop, wanted), **TOLERANCE)


@by_cell
def test_every_set_of_gradients(name):
    cell = CELLS[name]
    everything = cell.inputs_of(1, 3, 1, 2)
    y = cell.function(*everything)
    wanted = gradients([y], everything)
    for some in itertools.product([False, True], repeat=len(everything)):
        if not any(some):
            continue
        args = [t if keep else t.detach() for t, keep in zip(everything, some, strict=True)]
        given_ = [t for t, keep in zip(everything, some, strict=True) if keep]
        want = [g for g, keep in zip(wanted, some, strict=True) if keep]
        assert_gradients_match(gradients([cell.function(*args)], given_), want, **SAME)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@by_cell
def test_axes_and_batches(name, axis):
    cell = CELLS[name]
    D = 4 if axis == -1 else 5
    args = cell.inputs_of(6, 1, 1, D)
    shape = (2, 3, 4, 5)
    full = len(cell.full)
    tensors = [leaf(*shape, dtype=args[0].dtype) for _ in range(full)]
    vectors = args[full:-1]
    y, final = cell.both(*tensors, *vectors, None, axis=axis)
    moved = [t.movedim(axis, -2).flatten(0, 1) for t in tensors]
    assert moved[0].shape[1:] == (shape[axis], D)
    loop, last = cell.loop(*moved, *vectors, None)
    loop = loop.view(tensors[0].movedim(axis, -2).shape).movedim(-2, axis)
    torch.testing.assert_close((y, final), (loop, last.view(final.shape)), **TOLERANCE)
    wanted = (*tensors, *vectors)
    assert_gradients_match(gradients([y], wanted), gradients([loop], wanted), **TOLERANCE)


@pytest.mark.parametrize("shape", [(6, 4), (6,)])
@by_cell
def test_one_sequence_without_a_batch_axis(name, shape):
    cell = CELLS[name]
    *args, state = cell.inputs_of(1, 6, 1, 4 if len(shape) == 2 else 1)
    full = len(cell.full)
    y, final = cell.both(
        *(t.reshape(shape) for t in args[:full]), *args[full:], state.reshape(shape[1:])
    )
    loop, last = cell.loop(*args, state)
    torch.testing.assert_close(
        (y, final), (loop.reshape(shape), last.reshape(shape[1:])), **TOLERANCE
    )


@pytest.mark.parametrize("name", [n for n in FUSED if n not in ("qrnn f", "qrnn fo")])
def test_cells_of_the_package_come_here(name):
    cell = CELLS[name]
    args = [t.detach() for t in cell.inputs({})]
    function = cell.function.__name__
    torch.testing.assert_close(getattr(scanrnn.cells, function)(*args), cell.function(*args))
    full = len(cell.full)
    first = [*(t[:, 0] for t in args[:full]), *args[full:]]
    ours, theirs = (getattr(m, f"{function}_step")(*first) for m in (srt, scanrnn.cells))
    torch.testing.assert_close(ours, theirs, **SAME)


@by_fused_cell
def test_saves_inputs_and_the_least_state(name):
    saved = []

    def pack(t):
        saved.append(t)
        return t

    cell = CELLS[name]
    args = cell.inputs_of(2, 640, 2, 8)
    state_is_output = name not in ("sru", "qrnn fo", "qrnn ifo")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = cell.function(*args)
        ours = {t.data_ptr() for t in (*args, y)}
        extra = sum(t.numel() for t in saved if t.data_ptr() not in ours)
        assert extra <= (0 if state_is_output else y.numel() / 32 + 2 * 8)
        saved.clear()
        with torch.no_grad():
            cell.function(*args)
        cell.function(*(t.detach() for t in args))
    assert not saved


# ---- Derivatives of all orders and modes ---------------------------------------------------------


@pytest.mark.parametrize("option", ["plain", "packed-reverse-reset", "left-reset"])
@by_cell
def test_d03_gradcheck(name, option):
    cell, options = CELLS[name], as_tensors(OPTIONS[option])
    assert gradcheck(
        lambda *args: cell.both(*args, **options), cell.inputs(options, 2), check_forward_ad=True
    )


@pytest.mark.parametrize("option", ["plain", "left-reset"])
@by_cell
def test_g08_gradgradcheck(name, option):
    cell, options = CELLS[name], as_tensors(OPTIONS[option])
    assert gradgradcheck(
        lambda *args: cell.both(*args, **options), cell.inputs(options, 1), atol=1e-6
    )


@by_cell
def test_g08_forward_over_reverse(name):
    cell = CELLS[name]
    args = cell.inputs_of(1, 3, 1, 1)
    assert gradgradcheck(lambda *args: cell.function(*args), args, check_fwd_over_rev=True)


@by_cell
def test_g09_transforms_equal_a_loop_over_samples(name):
    cell = CELLS[name]
    close = {"rtol": 1e-10, "atol": 1e-12}
    samples = [cell.inputs_of(2, 6, 2, 3, requires_grad=False) for _ in range(3)]
    stacked = [torch.stack(t) for t in zip(*samples, strict=True)]
    everything = tuple(range(len(stacked)))

    def loss(*args):
        y, final = cell.both(*args)
        return (y * y.conj()).real.sum() + final.real.tanh().sum()

    out = torch.vmap(cell.both)(*stacked)
    want = [torch.stack(parts) for parts in zip(*(cell.both(*s) for s in samples), strict=True)]
    torch.testing.assert_close([*out], want, **close)
    got = torch.vmap(torch.func.grad(loss, everything))(*stacked)
    want = [torch.func.grad(loss, everything)(*s) for s in samples]
    for g, e in zip(got, zip(*want, strict=True), strict=True):
        torch.testing.assert_close(g, torch.stack(e), **close)
    leaves = [t.clone().requires_grad_() for t in samples[0]]
    plain = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close([*want[0]], [*plain], **SAME)
    # Only some arguments have an axis, and the output has it too.
    some = [None] * len(stacked)
    some[0] = 0
    got = torch.vmap(cell.function, tuple(some))(stacked[0], *samples[1][1:])
    want = torch.stack([cell.function(s[0], *samples[1][1:]) for s in samples])
    torch.testing.assert_close(got, want, **close)
    tangents = [torch.randn_like(t) for t in samples[0]]
    got = torch.func.jvp(cell.both, tuple(samples[0]), tuple(tangents))
    want = torch.func.jvp(lambda *args: cell.loop(*args), tuple(samples[0]), tuple(tangents))
    torch.testing.assert_close(got, want, **close)


@by_fused_cell
def test_g09_jacobians_of_both_modes_are_equal(name):
    cell = CELLS[name]
    args = cell.inputs_of(1, 4, 1, 2, requires_grad=False)

    def of_first(t):
        return cell.function(t, *args[1:])

    torch.testing.assert_close(
        torch.func.jacrev(of_first)(args[0]), torch.func.jacfwd(of_first)(args[0])
    )


# ---- W06: operators and compilers ----------------------------------------------------------------

OPS = torch.ops.scanrnn
#: The rows of the core's table, with options.
ROWS = {
    "sru": [1.0],
    "gilr": [0.0, 1.0],
    "gilr update": [1.0, 5.0],
    "qrnn": [1.0],
    "min_lstm": [0.0],
    "rg_lru": [8.0],
}


def operator_arguments(row, option, blocks, directions):
    """Tensors of the operator cell, the sequences, and the rest."""
    cell = _cells.CELLS[_cells.KINDS[row.split()[0]]]
    B, T, N = size_of(OPTIONS[option])
    options = as_tensors(OPTIONS[option])
    D, separate = 3, blocks == directions == 1
    tensors: list = [None] * _cells.SLOTS
    vectors = [j for j, v in enumerate(cell.vector) if v]
    for j, vector in enumerate(cell.vector):
        if vector and separate:
            tensors[j] = leaf(D, unit=True)
        elif vector and j == vectors[0]:
            tensors[j] = leaf(directions * len(vectors) * D, unit=True)
        elif not vector and (j == 0 or j >= blocks):
            width = directions * D * (blocks if j == 0 else 1)
            tensors[j] = leaf(T, B, width).detach().transpose(0, 1).requires_grad_()
    sequences = (
        *(options.get(name) for name in ("cu_seqlens", "lengths", "reset")),
        options.get("reverse", False),
        options.get("padding_side") == "left",
    )
    return [*tensors, leaf(directions, N, D)], (
        *sequences,
        cell.kind,
        ROWS[row],
        blocks,
        directions,
    )


def forms(row):
    """(blocks, directions) that a cell may be called with."""
    vector = _cells.CELLS[_cells.KINDS[row.split()[0]]].vector
    full = len(vector) - sum(vector)
    return [(b, d) for b in range(1, full + 1) for d in (1, 2)]


OPCHECKS = {"plain": 0, "packed-reverse-reset": -1, "left-reset": -3}


@pytest.mark.parametrize(
    ("row", "option"),
    [
        *(("sru", option) for option in OPCHECKS),
        *zip(["gilr", "qrnn", "min_lstm", "rg_lru"], itertools.cycle(OPCHECKS)),
    ],
)
def test_w06_opcheck(row, option):
    place = OPCHECKS[option]
    blocks, directions = (forms(row) * 2)[place]
    tensors, rest = operator_arguments(row, option, blocks, directions)
    y, final, checkpoints = OPS.cell.default(*tensors, *rest, True)
    torch.library.opcheck(OPS.cell.default, (*tensors, *rest, True))
    saved = y if _cells.CELLS[rest[5]].state_is_output else checkpoints
    outputs = (saved.detach(), torch.randn_like(y), torch.randn_like(final))
    args = (*tensors, *outputs, *rest, [True] * 7)
    torch.library.opcheck(OPS.cell_backward.default, args)


@pytest.mark.parametrize("option", ["plain", "packed", "left-reset"])
@pytest.mark.parametrize("row", ROWS)
def test_blocks_equal_separate_inputs(row, option):
    """One tensor with all blocks, forward and backward, against one call a direction."""
    for blocks, directions in forms(row):
        tensors, rest = operator_arguments(row, option, blocks, directions)
        kind = rest[5]
        ours = _cells.cell(*tensors, *rest)
        ys, finals = [], []
        for d, places in enumerate(_cells._places(kind, blocks, directions)):
            own: list = [None] * _cells.SLOTS
            for j, (slot, block, _) in enumerate(places):
                if tensors[slot] is not None:
                    own[j] = tensors[slot][..., block * 3 : block * 3 + 3]
            reverse = rest[3] != (d == 1)
            y, final = _cells.cell(
                *own, tensors[-1][d : d + 1], *rest[:3], reverse, *rest[4:7], 1, 1
            )
            ys.append(y)
            finals.append(final)
        theirs = torch.cat(ys, -1), torch.cat(finals)
        torch.testing.assert_close(ours, theirs, **SAME)
        given_ = [t for t in tensors if t is not None]
        fused = gradients(ours, given_)
        assert_gradients_match(fused, gradients(theirs, given_), **SAME)
        composed = _cells._compose(*tensors, *rest)
        torch.testing.assert_close(ours, composed, **TOLERANCE)
        assert_gradients_match(fused, gradients(composed, given_), **TOLERANCE)


@by_cell
def test_w06_one_graph_for_all_lengths(name):
    cell = CELLS[name]
    compiled = torch.compile(cell.both, fullgraph=True, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for T in (7, 9, 33, 64):
        args = cell.inputs_of(2, T, 2, 3)
        for t in args[: len(cell.full)]:
            torch._dynamo.mark_dynamic(t, 1)
        ours, eager = compiled(*args), cell.both(*args)
        torch.testing.assert_close(ours, eager, **TOLERANCE)
        assert_gradients_match(gradients(ours, args), gradients(eager, args), **TOLERANCE)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1


# ---- Dtypes --------------------------------------------------------------------------------------

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@by_fused_cell
def test_d03_every_dtype(name, dtype):
    cell = CELLS[name]
    args = [t.detach().to(dtype) for t in cell.inputs_of(2, 1000, 2, 3)]
    y, final = cell.both(*args)
    want, want_final = cell.both(*(t.double() for t in args))
    eps = torch.finfo(dtype).eps
    half = dtype in (torch.float16, torch.bfloat16)
    rtol = eps if half else 100 * eps
    assert (y.dtype, final.dtype) == (dtype, torch.float32 if half else dtype)
    torch.testing.assert_close(y, want.to(dtype), rtol=rtol, atol=rtol)
    torch.testing.assert_close(final, want_final.to(final.dtype), rtol=1e-5, atol=1e-5)
    zeros = [torch.zeros(1, 2, 3, dtype=torch.complex64)] * len(cell.full)
    with pytest.raises(TypeError, match=rf"{cell.function.__name__}: .* has dtype complex64"):
        cell.function(*zeros, *args[len(cell.full) : -1])


@by_fused_cell
def test_d02_states_and_vectors_in_the_accumulation_dtype(name):
    cell = CELLS[name]
    args = [t.detach() for t in cell.inputs_of(2, 9, 2, 3, torch.float32)]
    args[: len(cell.full)] = [t.bfloat16() for t in args[: len(cell.full)]]
    args = [t.requires_grad_() for t in args]
    y, final = cell.both(*args)
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    for t, g in zip(args, gradients([y, final], args), strict=True):
        assert g.dtype == t.dtype
        assert g.isfinite().all()
    narrow = [t.detach().bfloat16() for t in args]
    torch.testing.assert_close(cell.both(*narrow)[0], y, rtol=0.05, atol=0.05)
    second = torch.func.hessian(lambda s: cell.function(*narrow[:-1], s).float().square().sum())
    assert second(narrow[-1]).dtype == torch.bfloat16
    with pytest.raises(TypeError, match="has dtype float64, expected bfloat16 or float32"):
        cell.function(*args[:-1], args[-1].double())


@by_fused_cell
def test_d02_autocast(name):
    cell = CELLS[name]
    args = cell.inputs({}, dtype=torch.float32)
    if len(cell.full) > 1:
        first = 1 if name == "qrnn f" else 0
        args[first] = args[first].detach().bfloat16().requires_grad_()
        with pytest.raises(TypeError, match=r"has dtype float32, expected bfloat16 \(the dtype of"):
            cell.function(*args)
    with torch.autocast("cpu", torch.bfloat16):
        y = cell.function(*args)
    assert y.dtype == torch.float32
    assert [g.dtype for g in gradients([y], args)] == [t.dtype for t in args]


# ---- Acceptance cases ----------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["identity", "positive"])
@pytest.mark.parametrize("name", ["min_gru", "min_lstm"])
def test_n04_states_of_any_sign(name, activation):
    cell = CELLS[name]
    *args, _ = cell.inputs_of(2, 7, 2, 4)
    signs = torch.tensor([[1.0, -1.0, 0.0, -2.0]] * 2, dtype=torch.float64)
    none = cell.both(*args, None, activation=activation)
    for state in (torch.zeros(2, 4, dtype=torch.float64), signs.abs(), -signs.abs(), signs):
        h0 = state.clone().requires_grad_()
        h, final = cell.both(*args, h0, activation=activation)
        if not state.any():
            torch.testing.assert_close((h, final), none, **SAME)
        loop = cell.loop(*args, h0, activation=activation)
        torch.testing.assert_close((h, final), loop, **TOLERANCE)
        steps, s = [], h0
        for t in range(7):
            step = getattr(srt, f"{name}_step")
            y, s = step(*(x[:, t] for x in args), s, activation=activation)
            steps.append(y)
        torch.testing.assert_close(torch.stack(steps, 1), h, **TOLERANCE)
        (dh0,) = torch.autograd.grad(h.sum(), h0)
        assert dh0.isfinite().all()
        assert dh0.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_a", [0.0, -1e-8, -1e-4, -1.0, -60.0])
def test_n06_the_scale_of_rg_lru(log_a, dtype):
    # sigmoid(40) is 1 to rounding, and log softplus^-1 of small rates is about their logarithm.
    rate = -log_a / 8
    lam = math.log(math.expm1(rate)) if rate > 0 else -math.inf
    x = torch.ones(1, 1, 1, dtype=dtype).requires_grad_()
    r = torch.full((1, 1, 1), 40.0, dtype=dtype).requires_grad_()
    lam_ = torch.tensor([lam], dtype=dtype).requires_grad_()
    h0 = torch.ones(1, 1, dtype=dtype).requires_grad_()
    args = (x, r, r.detach().clone().requires_grad_(), lam_, h0)
    h = srt.rg_lru(*args[:4])
    torch.testing.assert_close(h.item(), math.sqrt(-math.expm1(2 * log_a)), rtol=1e-5, atol=0)
    grads = torch.autograd.grad(srt.rg_lru(*args), args, create_graph=True)
    assert all(g.isfinite().all() for g in grads)
    if rate > 0:
        # d scale / d log_a, but for the bound on the root's derivative at 1 / (2 sqrt(2.5e-7)).
        slope = min(0.5 / math.sqrt(-math.expm1(2 * log_a)), 1000.0) * -2 * math.exp(2 * log_a)
        d_log_a = slope + math.exp(log_a)
        d_lam = d_log_a * -8 / (1 + math.exp(-lam))
        torch.testing.assert_close(grads[3].item(), d_lam, rtol=1e-3, atol=1e-12)
    # Forward mode and composed derivatives have the same bound.
    composed = torch.vmap(torch.func.grad(lambda lam: srt.rg_lru(*args[:3], lam, h0).sum()))(
        lam_.detach()[None]
    )
    torch.testing.assert_close(composed[0], grads[3].detach(), rtol=1e-3, atol=1e-12)


def test_n06_training_at_the_usual_initialisation():
    lam = torch.rand(64) * 2 - 5.5
    lam.requires_grad_()
    x, r, i = (leaf(4, 64, 64, dtype=torch.float32) for _ in range(3))
    optimiser = torch.optim.SGD([lam, r, i], lr=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        loss = srt.rg_lru(x, r, i, lam).square().mean()
        loss.backward()
        assert all(t.grad.isfinite().all() for t in (lam, r, i))
        optimiser.step()


@by_fused_cell
def test_gates_of_any_size_are_finite(name):
    """Saturated gates, up to infinity where a mask sets them, have finite gradients."""
    cell = CELLS[name]
    for value in (-1e4, -90.0, 90.0, 1e4):
        args = cell.inputs_of(2, 40, 2, 3, torch.float32)
        for k in range(len(cell.full)):
            own = list(args)
            own[k] = torch.full_like(args[k], value).requires_grad_()
            y = cell.function(*own)
            assert y.isfinite().all(), (cell.full[k], value)
            assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), own)), value


@pytest.mark.parametrize("T", [1, 31, 33, 100, 129, 1000])
@by_cell
def test_n09_lengths_that_fill_no_leaf(name, T):
    cell = CELLS[name]
    args = cell.inputs_of(2, T, 2, 3)
    ours, loop = cell.both(*args), cell.loop(*args)
    torch.testing.assert_close(ours, loop, rtol=1e-9, atol=1e-11)
    assert_gradients_match(gradients(ours, args), gradients(loop, args), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("T", [1023, 1025, 4097, 65537, 100003])
@by_fused_cell
def test_s01_any_length(name, T):
    """Against the composition around scan, which the loop has confirmed at fewer steps."""
    cell = CELLS[name]
    args = cell.inputs_of(2, T, 2, 3)
    y, final = cell.both(*args)
    with torch.autograd.forward_ad.dual_level():
        composed = cell.both(*args)  # as forward mode has it
    close = {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close((y, final), composed, **close)
    assert_gradients_match(
        gradients([y, final], args), gradients(composed, args), rtol=1e-7, atol=1e-9
    )
    full = len(cell.full)
    shorter = cell.function(*(t[:, :-1] for t in args[:full]), *args[full:])
    torch.testing.assert_close(shorter, y[:, :-1], **SAME)


@pytest.mark.parametrize("side", ["right", "left"])
@by_cell
def test_n10_padding(name, side):
    cell = CELLS[name]
    lengths, T = [8, 3, 1, 0], 8
    args = cell.inputs_of(4, T, 4, 3)
    t, n = torch.arange(T), torch.tensor(lengths)[:, None]
    valid = t < n if side == "right" else t >= T - n
    full = len(cell.full)
    for i in range(full):
        args[i] = torch.where(valid[..., None], args[i], torch.nan).detach().requires_grad_()
    y, final = cell.both(*args, lengths=lengths, padding_side=side)
    assert not y[~valid].any()
    grads = gradients([y, final], args)
    for i in range(full):
        assert not grads[i][~valid].any()
    assert all(g.isfinite().all() for g in grads)
    for b in range(4):
        rows = [x[b : b + 1, valid[b]] for x in args[:full]]
        alone, last = cell.both(*rows, *args[full:-1], args[-1][b : b + 1])
        torch.testing.assert_close(y[b, valid[b]], alone[0], **SAME)
        torch.testing.assert_close(final[b], last[0], **SAME)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@by_cell
def test_n10_one_row_does_not_reach_another(name, value):
    cell = CELLS[name]
    args = [t.detach() for t in cell.inputs_of(4, 64, 4, 8)]
    clean = cell.function(*args)
    args[0] = args[0].clone()
    args[0][2] = value
    others = [0, 1, 3]
    torch.testing.assert_close(cell.function(*args)[others], clean[others], **SAME)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0)])
@by_cell
def test_s03_empty_axes(name, shape):
    cell = CELLS[name]
    B, T, D = shape
    args = cell.inputs_of(B, T, B, D)
    y, final = cell.both(*args)
    assert y.shape == shape
    if T == 0:
        torch.testing.assert_close(final, args[-1])
    grads = torch.autograd.grad((y.sum() + 2 * final.sum()).real, args, allow_unused=True)
    for t, g in zip(args, grads, strict=True):
        assert g is None or g.shape == t.shape
    if T == 0 and B:
        torch.testing.assert_close(grads[-1], torch.full_like(args[-1], 2))


@by_cell
def test_s07_any_strides(name):
    cell = CELLS[name]
    full = len(cell.full)
    args = cell.inputs_of(4, 6, 4, 5)
    want = None
    for order in itertools.permutations(range(3)):
        inverse = np.argsort(order).tolist()
        own = [
            t.detach().permute(order).contiguous().permute(inverse).requires_grad_()
            for t in args[:full]
        ]
        own += args[full:]
        y = cell.function(*own)
        if name != "lru":
            assert y.stride() == own[0].stride()
        result = [y, *gradients([y], own)]
        want = want or result
        torch.testing.assert_close(result, want)
    wide = [torch.randn(4, 12, 10, dtype=args[0].dtype) for _ in range(full)]
    for view in (
        lambda t: t[:, ::2, ::2],
        lambda t: t[:, 6:, 5:],
        lambda t: t[:1, :, :5].expand(4, 12, 5),
    ):
        views = [view(t) for t in wide]
        copies = [t.contiguous() for t in views]
        torch.testing.assert_close(
            cell.function(*views, *args[full:]), cell.function(*copies, *args[full:])
        )


@by_cell
def test_s08_errors_name_the_argument(name):
    cell = CELLS[name]
    fn, full = cell.function.__name__, len(cell.full)
    args = [t.detach() for t in cell.inputs({})]
    for i, argument in enumerate(cell.full):
        wrong = list(args)
        wrong[i] = args[i].numpy()
        with pytest.raises(TypeError, match=f"{fn}: {argument} is a ndarray"):
            cell.function(*wrong)
        # The reference is the first in the core's table, which is f for f-pooling.
        if i != (1 if name == "qrnn f" else 0):
            wrong[i] = args[i][:, :4]
            shape = r"has shape \(2, 4, 3\), expected \(2, 5, 3\)"
            with pytest.raises(ValueError, match=f"{fn}: {argument} {shape}"):
                cell.function(*wrong)
            wrong[i] = args[i].float()
            with pytest.raises(TypeError, match=f"{fn}: {argument} has dtype float32"):
                cell.function(*wrong)
    for i, argument in enumerate(cell.vectors):
        wrong = list(args)
        wrong[full + i] = torch.zeros(4, dtype=torch.float64)
        with pytest.raises(
            ValueError, match=rf"{fn}: {argument} has shape \(4,\), expected \(3,\)"
        ):
            cell.function(*wrong)
        wrong[full + i] = torch.zeros(3, dtype=torch.float64, device="meta")
        with pytest.raises(ValueError, match=f"{fn}: {argument} is on device meta, expected cpu"):
            cell.function(*wrong)
    with pytest.raises(ValueError, match=r"has shape \(1, 3\), expected \(2, 3\)"):
        cell.function(*args[:-1], args[-1][:1])
    with pytest.raises(ValueError, match="is on device meta, expected cpu"):
        cell.function(*args[:-1], args[-1].to("meta"))
    for options, message in [
        ({"axis": 3}, "axis is 3"),
        ({"padding_side": "up"}, "padding_side is 'up'"),
        ({"lengths": [5, 6]}, "lengths"),
        ({"lengths": [5]}, "lengths has shape"),
        ({"cu_seqlens": [0, 5]}, "cu_seqlens"),
        ({"reset": torch.zeros(2, 4, dtype=torch.bool)}, "reset has shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            cell.function(*args[:-1], **options)


def test_s08_wrong_calls():
    u = torch.zeros(2, 5, 3)
    with pytest.raises(ValueError, match="qrnn: i was given without o"):
        srt.qrnn(u, u, None, u)
    with pytest.raises(TypeError, match="min_gru: v is a NoneType, expected"):
        srt.min_gru(u, None)
    with pytest.raises(TypeError, match="rg_lru: lam is a NoneType, expected"):
        srt.rg_lru(u, u, u, None)
    with pytest.raises(ValueError, match="gilr: activation is 'gelu', expected 'identity', 'tanh'"):
        srt.gilr(u, u, activation="gelu")
    nothing = (None,) * 4
    with pytest.raises(ValueError, match="cell: kind is 99, expected one of"):
        OPS.cell(u, None, *nothing, None, None, None, None, False, False, 99, [], 1, 1, False)
    gilr = _cells.KINDS["gilr"]
    with pytest.raises(TypeError, match="gilr: z is None"):
        OPS.cell(u, None, *nothing, *nothing, False, False, gilr, [0, 0], 1, 1, False)
    with pytest.raises(ValueError, match=r"gilr: f has shape \(2, 5, 3\), expected \(2, 5, 2\)"):
        OPS.cell(u, None, *nothing, *nothing, False, False, gilr, [0, 0], 2, 1, False)


@by_cell
def test_g05_backward_twice(name):
    cell = CELLS[name]
    args = cell.inputs({})
    before = [t.detach().clone() for t in args]
    y, final = cell.both(*args)
    once = gradients([y, final], args, retain_graph=True)
    torch.testing.assert_close(gradients([y, final], args, retain_graph=True), once, **SAME)
    y_only = gradients([y], args, retain_graph=True)
    torch.testing.assert_close(gradients([y], args, retain_graph=True), y_only, **SAME)
    weight = torch.randn(y.shape, dtype=y.real.dtype)

    def of(loss):
        loss = loss.real + loss.imag if loss.is_complex() else loss
        return torch.autograd.grad(loss, args, retain_graph=True, allow_unused=True)

    both = of((y * weight).sum() + final.sum())
    parts = zip(of((y * weight).sum()), of(final.sum()), strict=True)
    added = [a if b is None else a + b for a, b in parts]
    assert_gradients_match(added, both, **TOLERANCE)
    torch.testing.assert_close([t.detach() for t in args], before, **SAME)


@by_cell
def test_g10_edits_between_forward_and_backward_are_noticed(name):
    cell = CELLS[name]
    for i in range(len(cell.names)):
        if name == "lru" and i in (1, 2):
            continue  # not saved: lambda is
        args = [t * 1 for t in cell.inputs({})]
        y = cell.function(*args)
        with torch.no_grad():
            args[i].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.real.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@by_cell
def test_g10_checkpointing(name, reentrant):
    cell = CELLS[name]
    args = cell.inputs({})
    kept = checkpoint(lambda *args: cell.function(*args), *args, use_reentrant=reentrant)
    kept.abs().square().sum().backward()
    ours = [t.grad for t in args]
    theirs = torch.autograd.grad(cell.function(*args).abs().square().sum(), args)
    assert_gradients_match(ours, theirs, **SAME)


@by_cell
def test_m06_same_bits_every_time_and_in_every_batch(name, threads):
    cell = CELLS[name]
    args = cell.inputs_of(8, 777, 8, 32)
    full = len(cell.full)

    def everything(*args):
        ours = cell.both(*args)
        return (*ours, *gradients(ours, args))

    first = everything(*args)
    for n in (1, 2, 3):
        threads(n)
        torch.testing.assert_close(everything(*args), first, **SAME)
    row = [t[3:4] for t in args[:full]] + args[full:-1] + [args[-1][3:4]]
    torch.testing.assert_close(cell.function(*row)[0], first[0][3], **SAME)


@by_cell
def test_w01_random_pieces(name):
    cell, rng = CELLS[name], np.random.default_rng(0)
    full = len(cell.full)
    args = cell.inputs_of(2, 1000, 2, 3)
    whole = cell.both(*args)
    for pieces in (1, 7, 50):
        cuts = [0, *sorted(rng.choice(np.arange(1, 1000), pieces - 1, replace=False)), 1000]
        outputs, state = [], args[-1]
        for i, j in itertools.pairwise(map(int, cuts)):
            y, state = cell.both(*(t[:, i:j] for t in args[:full]), *args[full:-1], state)
            outputs.append(y)
        ours = torch.cat(outputs, 1), state
        torch.testing.assert_close(ours, whole, **TOLERANCE)
        assert_gradients_match(
            gradients(ours, args), gradients(whole, args, retain_graph=True), rtol=1e-9, atol=1e-10
        )


@by_cell
def test_w02_index_arrays_of_any_kind(name):
    cell = CELLS[name]
    args = [t.detach() for t in cell.inputs_of(1, 10, 4, 3)]
    offsets = [0, 3, 4, 4, 10]
    want = cell.both(*args, cu_seqlens=torch.tensor(offsets))
    for index in (offsets, np.array(offsets, np.int32), torch.tensor(offsets, dtype=torch.int32)):
        torch.testing.assert_close(cell.both(*args, cu_seqlens=index), want, **SAME)
    full = len(cell.full)
    for n, (i, j) in enumerate(itertools.pairwise(offsets)):
        rows = [t[:, i:j] for t in args[:full]]
        y, last = cell.both(*rows, *args[full:-1], args[-1][n : n + 1])
        torch.testing.assert_close((want[0][:, i:j], want[1][n : n + 1]), (y, last), **SAME)
    for wrong in ([0, 4, 3, 10], [0, 9], [1, 10]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            cell.function(*args[:-1], cu_seqlens=wrong)


@by_cell
def test_w03_resets(name):
    cell = CELLS[name]
    args = [t.detach() for t in cell.inputs_of(2, 8, 2, 3)]
    full = len(cell.full)
    flags = torch.zeros(2, 8, dtype=torch.bool)
    flags[0, 3] = flags[1, 5] = flags[1, 0] = True

    def part(b, i, j, state):
        rows = [t[b : b + 1, i:j] for t in args[:full]]
        return cell.function(*rows, *args[full:-1], state)

    for reset in (flags, flags.to(torch.uint8), flags.double(), flags.numpy(), flags.tolist()):
        y = cell.function(*args, reset=reset)
        torch.testing.assert_close(y[:1, :3], part(0, 0, 3, args[-1][:1]))
        torch.testing.assert_close(y[:1, 3:], part(0, 3, 8, None))
        torch.testing.assert_close(y[1:, :5], part(1, 0, 5, None))
        torch.testing.assert_close(y[1:, 5:], part(1, 5, 8, None))


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.05)]
)
@by_fused_cell
def test_w05_steps_equal_the_sequence(name, dtype, atol):
    cell = CELLS[name]
    args = [t.detach().to(dtype) for t in cell.inputs_of(2, 200, 2, 4)]
    full, fn = len(cell.full), cell.function.__name__
    step = getattr(srt, f"{fn}_step")
    missing = {"qrnn f": 2, "qrnn fo": 1}.get(name, 0)
    want, last = cell.both(*args)
    outputs, state = [], args[-1]
    for t in range(200):
        rows = [x[:, t] for x in args[:full]] + [None] * missing
        again = step(*rows, *args[full:-1], state)
        y, state = step(*rows, *args[full:-1], state)
        torch.testing.assert_close((y, state), again, **SAME)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), want, rtol=0, atol=atol)
    torch.testing.assert_close(state, last, rtol=0, atol=atol)
    one = [x[0, 0] for x in args[:full]] + [None] * missing
    y, state = step(*one, *args[full:-1], None)
    assert y.shape == state.shape == (4,)


def test_w05_steps_of_lru():
    cell = CELLS["lru"]
    u, nu, theta, gamma, state = cell.inputs_of(2, 200, 2, 4, requires_grad=False)
    want, last = cell.both(u, nu, theta, gamma, state)
    outputs = []
    for t in range(200):
        y, state = srt.lru_step(u[:, t], nu, theta, gamma, state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), want, **TOLERANCE)
    torch.testing.assert_close(state, last, **TOLERANCE)
    real = srt.lru(u.real, nu, theta)
    torch.testing.assert_close(real, srt.lru(u.real.to(u.dtype), nu, theta), **SAME)


@given(
    name=st.sampled_from([*CELLS]),
    B=st.integers(0, 4),
    T=st.integers(0, 70),
    D=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    reverse=st.booleans(),
    side=st.sampled_from(["right", "left"]),
    sequences=st.sampled_from(["none", "lengths", "packed", "reset"]),
    seed=st.integers(0, 2**31),
)
def test_any_shape_dtype_and_sequences(name, B, T, D, dtype, reverse, side, sequences, seed):
    cell = CELLS[name]
    dtype = torch.float64 if name == "lru" else dtype
    generator = torch.Generator().manual_seed(seed)
    options: dict = {"reverse": reverse}
    N = B
    if sequences == "lengths":
        options |= {
            "lengths": torch.randint(0, T + 1, (B,), generator=generator),
            "padding_side": side,
        }
    elif sequences == "packed":
        inner = torch.randint(0, T + 1, (3,), generator=generator).sort().values.tolist()
        B, N = 1, 4
        options["cu_seqlens"] = torch.tensor([0, *inner, T])
    elif sequences == "reset":
        options["reset"] = torch.rand(B, T, generator=generator) < 0.2
    torch.manual_seed(seed)
    args = [t.detach() for t in cell.inputs_of(B, T, N, D)]
    if name != "lru":
        args = [t.to(dtype) for t in args]
    ours = cell.both(*args, **options)
    exact = [t if name == "lru" else t.double() for t in args]
    loop = cell.loop(*exact, **options)
    eps = torch.finfo(dtype).eps
    tolerance = {"rtol": max(4 * eps, 1e-11), "atol": max(4 * eps, 1e-11)}
    torch.testing.assert_close(ours[0], loop[0].to(ours[0].dtype), **tolerance)
    torch.testing.assert_close(
        ours[1], loop[1].to(ours[1].dtype), **(tolerance | {"rtol": 1e-5, "atol": 1e-5})
    )
