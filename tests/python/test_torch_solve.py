"""The nonlinear cells of scanrnn.torch: functions and operators, by one table.

`tests/gpu/test_gpu_solve_torch.py` runs these tests on a device: what they compute with is made on
the CPU and moved to the fixture `device`.
"""

import functools
import itertools
import math
import random

import numpy as np
import pytest
import scanrnn
import scanrnn.torch as srt
import torch
from scanrnn.torch import SolveReport, _solve
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint
from torch_helpers import (
    ACTIVATIONS,
    OPTIONS,
    as_tensors,
    assert_gradients_match,
    gradients,
    runs,
    size_of,
    solved_cells,
)

CELLS = solved_cells()
by_cell = pytest.mark.parametrize("name", CELLS)
by_options = pytest.mark.parametrize("option", OPTIONS)
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}
SAME = {"rtol": 0, "atol": 0}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture
def device():
    return "cpu"


def on(place, args, dtype=None):
    """Copies of the arguments as leaves on a device."""
    return [None if t is None else t.detach().to(place, dtype).requires_grad_() for t in args]


def moved(place, options):
    return {k: v.to(place) if isinstance(v, torch.Tensor) else v for k, v in options.items()}


def evaluate(cell, args, place, dtype=None, **options):
    """(y, *finals) and the gradients of all arguments that are there, on the CPU."""
    own = on(place, args, dtype)
    outputs = cell.both(*own, **moved(place, options))
    grads = gradients(outputs, [t for t in own if t is not None])
    return [y.detach().cpu() for y in outputs], [None if g is None else g.cpu() for g in grads]


def by_loop(cell, args, **options):
    outputs = cell.loop(*args, **options)
    return [y.detach() for y in outputs], gradients(outputs, [t for t in args if t is not None])


def assert_match(ours, loop, **tolerance):
    tolerance = tolerance or TOLERANCE
    torch.testing.assert_close(ours[0], loop[0], **tolerance)
    assert_gradients_match(ours[1], loop[1], **tolerance)


def call(cell, args, place="cpu", **options):
    return cell.call(*on(place, args), **moved(place, options))


# ---- Values and first derivatives ----------------------------------------------------------------


@pytest.mark.parametrize("segment", [None, 2])
@by_options
@by_cell
def test_equals_the_loop(device, name, option, segment):
    cell, options = CELLS[name], as_tensors(OPTIONS[option])
    args = cell.inputs(options)
    ours = evaluate(cell, args, device, segment=segment, **options)
    assert_match(ours, by_loop(cell, args, **options))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["indrnn", "sru"])
def test_every_activation(device, name, activation):
    cell = CELLS[name]
    args = cell.inputs_of(2, 9, 2, 3)
    ours = evaluate(cell, args, device, activation=activation, segment=3)
    assert_match(ours, by_loop(cell, args, activation=activation))


@by_cell
def test_every_optional_input(device, name):
    cell = CELLS[name]
    everything = cell.inputs({}, 2)
    optional = [i for i, n in enumerate(cell.names) if n in (*cell.optional, *cell.states)]
    for present in itertools.product([False, True], repeat=len(optional)):
        args = list(everything)
        for i, keep in zip(optional, present, strict=True):
            args[i] = args[i] if keep else None
        assert_match(evaluate(cell, args, device), by_loop(cell, args))


@by_cell
def test_g03_every_gradient_alone(device, name):
    """From every output, to every argument."""
    cell = CELLS[name]
    args = cell.inputs_of(2, 7, 2, 2)
    loop = cell.loop(*args)
    for output in range(len(loop)):
        wanted = gradients([loop[output]], args, retain_graph=True)
        for i, want in enumerate(wanted):
            own = [t if i == j else t.detach() for j, t in enumerate(on(device, args))]
            y = cell.both(*own, segment=3)[output]
            if want is None:  # an output gate does not reach the state
                assert not y.requires_grad or not gradients([y], [own[i]])[0].any()
            else:
                got = [g.cpu() for g in gradients([y], [own[i]])]
                assert_gradients_match(got, [want], **TOLERANCE)


@by_cell
def test_g03_one_learnable_state_for_all_rows(device, name):
    cell = CELLS[name]
    args, count = cell.inputs_of(4, 9, 1, 3), len(cell.states)

    def wide(own):
        return [*own[:-count], *(t.expand(4, 3) for t in own[-count:])]

    own = on(device, args)
    ours, loop = cell.both(*wide(own), segment=3), cell.loop(*wide(args))
    torch.testing.assert_close([t.cpu() for t in ours], [*loop], **TOLERANCE)
    got = [g.cpu() for g in gradients(ours, own)]
    assert_gradients_match(got, gradients(loop, args), **TOLERANCE)


@by_cell
def test_every_set_of_gradients(device, name):
    cell = CELLS[name]
    everything = on(device, cell.inputs_of(1, 3, 1, 2))
    wanted = gradients([cell.call(*everything)], everything)
    sets = [*itertools.product([False, True], repeat=len(everything))][1:]
    for some in random.Random(0).sample(sets, min(len(sets), 60)):
        args = [t if keep else t.detach() for t, keep in zip(everything, some, strict=True)]
        given = [t for t, keep in zip(everything, some, strict=True) if keep]
        want = [g for g, keep in zip(wanted, some, strict=True) if keep]
        assert_gradients_match(gradients([cell.call(*args)], given), want, **SAME)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@by_cell
def test_axes_and_batches(device, name, axis):
    cell = CELLS[name]
    shape, D = (2, 3, 4, 5), 4 if axis == -1 else 5
    full = len(cell.full)
    tensors = [torch.randn(shape).double() for _ in range(full)]
    vectors = [t.detach() for t in cell.inputs_of(1, 1, 1, D)[full : -len(cell.states)]]
    nothing = [None] * len(cell.states)
    y, *finals = cell.both(*on(device, (*tensors, *vectors, *nothing)), axis=axis)
    rows = [t.movedim(axis, -2).flatten(0, 1) for t in tensors]
    loop, *last = cell.loop(*rows, *vectors, *nothing)
    assert y.shape == shape
    torch.testing.assert_close(y.cpu().movedim(axis, -2).flatten(0, 1), loop, **TOLERANCE)
    batch = [n for i, n in enumerate(shape) if i != axis % 4]
    assert all(list(t.shape) == batch for t in finals)
    torch.testing.assert_close([t.cpu().flatten(0, 1) for t in finals], last, **TOLERANCE)


@pytest.mark.parametrize("name", ["diagonal_lstm", "diagonal_gru", "indrnn"])
def test_w05_torchs_layers_with_diagonal_weights_are_the_same(device, name):
    """Sequences and steps of torch.nn.LSTM, GRU and RNN, which have their own equations."""
    cell, D = CELLS[name], 4
    layer = {
        "diagonal_lstm": torch.nn.LSTM,
        "diagonal_gru": torch.nn.GRU,
        "indrnn": functools.partial(torch.nn.RNN, nonlinearity="relu"),
    }[name](3, D, batch_first=True, dtype=torch.float64)
    vectors = torch.randn(len(cell.full), D, dtype=torch.float64).tanh()
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.cat([v.diag() for v in vectors]))
    x = torch.randn(2, 200, 3, dtype=torch.float64)
    states = [torch.randn(2, D, dtype=torch.float64) for _ in cell.states]
    products = x @ layer.weight_ih_l0.T + layer.bias_ih_l0
    parts, biases = [*products.chunk(len(cell.full), -1)], layer.bias_hh_l0.chunk(len(cell.full))
    own = [*vectors]
    for k, bias in enumerate(biases):
        if name == "diagonal_gru" and k == 2:  # which the reset gate multiplies
            own.append(bias)
        else:
            parts[k] = parts[k] + bias
    hx = [s[None] for s in states]
    want, last = layer(x, hx[0] if len(hx) == 1 else tuple(hx))
    last = [s[0] for s in (last if isinstance(last, tuple) else (last,))]
    got = cell.both(*on(device, [*parts, *own, *states]), segment=16)
    torch.testing.assert_close([t.cpu() for t in got], [want, *last], **TOLERANCE)
    for t in range(200):
        rows = [p[:, t] for p in parts]
        y, *states = (s.cpu() for s in cell.one_step(*on(device, [*rows, *own, *states])))
        torch.testing.assert_close(y, want[:, t], **TOLERANCE)
    torch.testing.assert_close(states, last, **TOLERANCE)


@pytest.mark.parametrize("shape", [(6, 4), (6,)])
@by_cell
def test_one_sequence_without_a_batch_axis(device, name, shape):
    cell = CELLS[name]
    args = cell.inputs_of(1, 6, 1, 4 if len(shape) == 2 else 1)
    full, count = len(cell.full), len(cell.states)
    own = [t.reshape(shape) for t in args[:full]] + args[full:-count]
    own += [t.reshape(shape[1:]) for t in args[-count:]]
    y, *finals = cell.both(*on(device, own))
    loop, *last = cell.loop(*args)
    torch.testing.assert_close(y.cpu(), loop.reshape(shape), **TOLERANCE)
    for got, want in zip(finals, last, strict=True):
        torch.testing.assert_close(got.cpu(), want.reshape(shape[1:]), **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_n11_a_start_that_overflows_is_not_at_rest(device, dtype):
    """Forget gates that swing: tangents multiply beyond float32, states stay where they were."""
    f = 4 * torch.randn(1, 10, 64).repeat_interleave(100, 1)
    args = [f.to(device, dtype), torch.full((64,), -5.4, device=device)]

    def run(f, v, **options):
        u = torch.full_like(f, 1.4)
        return srt.sru(u, f, u, v_f=v, v_r=0 * v, segment=1, **options)

    h, report = run(*args, return_report=True)
    assert report.worst.status == "fell_back"
    assert report.worst.residual < 1e-5
    torch.testing.assert_close(h, run(*args, max_passes=0), rtol=0, atol=1e-3)


@by_cell
def test_cells_of_the_package_come_here(name):
    cell = CELLS[name]
    args = [t.detach() for t in cell.inputs({})]
    options = {"return_final": True, "return_report": True, "segment": 2, "reverse": True}
    arguments = dict(zip(cell.names, args, strict=True)) | cell.absent
    fn = cell.function.__name__
    y, final, report = getattr(scanrnn.cells, fn)(**arguments, **options)
    want, last, its = cell.call(*args, **options)
    torch.testing.assert_close((y, final, report.rows), (want, last, its.rows), **SAME)
    first = [t[:, 0] for t in args[: len(cell.full)]] + args[len(cell.full) :]
    names = [n.removesuffix("0") for n in cell.names]
    arguments = dict(zip(names, first, strict=True)) | cell.absent
    y, state = getattr(scanrnn.cells, f"{fn}_step")(**arguments)
    theirs = (y, *state) if isinstance(state, tuple) else (y, state)
    torch.testing.assert_close(theirs, cell.one_step(*first), **SAME)


@by_cell
def test_saves_inputs_and_one_state(device, name):
    saved = []

    def pack(t):
        saved.append(t)
        return t

    cell = CELLS[name]
    args = on(device, cell.inputs_of(2, 300, 2, 8))
    vectors = len(cell.vectors) * 8
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = cell.call(*args)
        ours = {t.data_ptr() for t in (*args, y)}
        extra = sum(t.numel() for t in saved if t.data_ptr() not in ours)
        kept = 0 if name in ("diagonal_gru", "indrnn") else y.numel()
        assert extra <= kept + vectors
        saved.clear()
        with torch.no_grad():
            cell.call(*args)
        cell.call(*(t.detach() for t in args))
    assert not saved


# ---- Derivatives of all orders and modes ---------------------------------------------------------


@pytest.mark.parametrize("option", ["plain", "packed-reverse-reset", "left-reset"])
@by_cell
def test_d03_gradcheck(device, name, option):
    cell, options = CELLS[name], moved(device, as_tensors(OPTIONS[option]))
    args = on(device, cell.inputs(options, 1))
    assert gradcheck(
        lambda *args: cell.both(*args, segment=2, **options), args, check_forward_ad=True
    )


@pytest.mark.parametrize("option", ["packed-reverse-reset", "left-reset"])
@by_cell
def test_g08_gradgradcheck(device, name, option):
    cell, options = CELLS[name], moved(device, as_tensors(OPTIONS[option]))
    args = on(device, cell.inputs(options, 1))
    assert gradgradcheck(lambda *args: cell.both(*args, **options), args, atol=1e-6, fast_mode=True)


@by_cell
def test_g08_forward_over_reverse(device, name):
    cell = CELLS[name]
    args = on(device, cell.inputs_of(1, 2, 1, 1))
    assert gradgradcheck(cell.call, args, check_fwd_over_rev=True, atol=1e-6)


@by_cell
def test_g09_transforms_equal_a_loop_over_samples(device, name):
    cell = CELLS[name]
    close = {"rtol": 1e-10, "atol": 1e-12}
    samples = [[t.detach() for t in on(device, cell.inputs_of(2, 6, 2, 3))] for _ in range(3)]
    stacked = [torch.stack(t) for t in zip(*samples, strict=True)]
    everything = tuple(range(len(stacked)))

    def loss(*args):
        y, *finals = cell.both(*args)
        return y.square().sum() + sum(t.tanh().sum() for t in finals)

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
    # Only some arguments have an axis; and sequences are cut in a way of its own in every sample.
    some = [None] * len(stacked)
    some[0] = 1
    got = torch.vmap(cell.call, tuple(some))(stacked[0].movedim(0, 1), *samples[1][1:])
    want = torch.stack([cell.call(s[0], *samples[1][1:]) for s in samples])
    torch.testing.assert_close(got, want, **close)
    lengths = torch.tensor([[6, 2], [0, 3], [5, 5]], device=device)
    got = torch.vmap(lambda n, *args: cell.call(*args, lengths=n))(lengths, *stacked)
    want = torch.stack([cell.call(*s, lengths=n) for s, n in zip(samples, lengths, strict=True)])
    torch.testing.assert_close(got, want, **close)
    tangents = tuple(torch.randn_like(t) for t in samples[0])
    got = torch.func.jvp(cell.both, tuple(samples[0]), tangents)
    want = torch.func.jvp(lambda *args: cell.loop(*args), tuple(samples[0]), tangents)
    torch.testing.assert_close(got, want, **close)


@by_cell
def test_g09_jacobians_of_both_modes_are_equal(device, name):
    cell = CELLS[name]
    args = [t.detach() for t in on(device, cell.inputs_of(1, 4, 1, 2))]

    def of_first(t):
        return cell.call(t, *args[1:])

    torch.testing.assert_close(
        torch.func.jacrev(of_first)(args[0]), torch.func.jacfwd(of_first)(args[0])
    )


# ---- W06: operators and compilers ----------------------------------------------------------------

OPS = torch.ops.scanrnn


def operator_arguments(kind, option, blocks, directions, split, place="cpu", D=3):
    """Tensors of the operator solve, and the rest of its arguments up to the options."""
    cell = _solve.CELLS[_solve.KINDS[kind]]
    options = moved(place, as_tensors(OPTIONS[option]))
    B, T, N = size_of(OPTIONS[option])
    tensors: list = [None] * _solve.SLOTS
    for j in range(cell.full):
        width = directions * D * (blocks if j == 0 else 1)
        if j == 0 or j >= blocks:
            tensors[j] = torch.randn(T, B, width, dtype=torch.float64).transpose(0, 1)
    rows = len(cell.inputs) - cell.full
    vectors = torch.randn(directions, rows, D, dtype=torch.float64)
    tensors += [vectors[:, :split], vectors[:, split:] if split < rows else None]
    tensors.append(torch.randn(directions, blocks, D, dtype=torch.float64))
    tensors += [torch.randn(directions, N, D, dtype=torch.float64) for _ in cell.states]
    tensors += [None] * (_solve.SLOTS + 3 + _solve.STATES - len(tensors))
    sequences = (
        *(options.get(name) for name in ("cu_seqlens", "lengths", "reset")),
        options.get("reverse", False),
        options.get("padding_side") == "left",
    )
    numbers = [1.0] if kind in ("indrnn", "recurrent_sru") else []
    solver = (1e-13, 8, 2)
    return on(place, tensors), (
        *sequences,
        cell.kind,
        numbers,
        [True] * rows,
        blocks,
        directions,
        *solver,
    )


FORMS = [
    ("diagonal_gru", "packed-reverse-reset", 3, 2, 3),
    ("diagonal_lstm", "plain", 4, 2, 4),
    ("diagonal_lstm", "left-reset", 1, 1, 7),
    ("indrnn", "plain", 1, 2, 1),
    ("recurrent_sru", "plain", 3, 2, 2),
]
by_form = pytest.mark.parametrize(("kind", "option", "blocks", "directions", "split"), FORMS)


@by_form
def test_w06_opcheck(device, kind, option, blocks, directions, split):
    tensors, rest = operator_arguments(kind, option, blocks, directions, split, device)
    # A compiler never differentiates with respect to what is kept, nor the backward pass.
    torch.library.opcheck(OPS.solve.default, (*tensors, *rest, False))
    tensors = [None if t is None else t.detach() for t in tensors]
    torch.library.opcheck(OPS.solve.default, (*tensors, *rest, True))
    y, kept, last, last2, _ = OPS.solve.default(*tensors, *rest, True)
    cell = _solve.CELLS[_solve.KINDS[kind]]
    grads = (torch.randn_like(y), torch.randn_like(last))
    states = (y if cell.output_state >= 0 else None, kept if cell.kept_state >= 0 else None)
    second = torch.randn_like(last2) if len(cell.states) > 1 else None
    torch.library.opcheck(
        OPS.solve_backward.default, (*tensors, *states, *grads, second, *rest, [True] * 9)
    )


@by_form
def test_blocks_equal_separate_inputs(device, kind, option, blocks, directions, split):
    """One tensor with all blocks, forward and backward, against one call a direction."""
    tensors, rest = operator_arguments(kind, option, blocks, directions, split, device)
    cell = _solve.CELLS[_solve.KINDS[kind]]
    y, finals, report = _solve.solve(*tensors, *rest)
    weights = torch.cat([t for t in tensors[4:6] if t is not None], 1)
    ys, lasts = [], []
    for d in range(directions):
        own = [
            tensors[0][..., (d * blocks + j) * 3 :][..., :3]
            if j < blocks
            else tensors[j][..., d * 3 : d * 3 + 3]
            for j in range(cell.full)
        ]
        own += [None] * (4 - len(own))
        states = [None if t is None else t[d : d + 1] for t in tensors[7:]]
        reverse = rest[3] != (d == 1)
        numbers = (*rest[:3], reverse, *rest[4:8], 1, 1, *rest[10:])
        part, last, one = _solve.solve(*own, weights[d : d + 1], None, None, *states, *numbers)
        torch.testing.assert_close(report[d], one[0], **SAME)
        ys.append(part)
        lasts.append(last)
    theirs = (torch.cat(ys, -1), *(torch.cat(parts) for parts in zip(*lasts, strict=True)))
    torch.testing.assert_close((y, *finals), theirs, **SAME)
    bias = tensors[6]  # its gradient is in0's, summed
    given = [t for t in tensors if t is not None and t is not bias]
    *fused, summed = gradients((y, *finals), [*given, bias], retain_graph=True)
    assert_gradients_match(fused, gradients(theirs, given), **SAME)
    torch.testing.assert_close(summed, fused[0].sum((0, 1)).view_as(bias))


def test_states_are_found_again_where_they_were_not_kept(device):
    """As an exported graph has it, that was traced without gradients and is run with them."""
    for kind in ("diagonal_lstm", "recurrent_sru"):
        tensors, rest = operator_arguments(kind, "plain", 1, 1, 2, device)
        given = [t for t in tensors if t is not None]
        found = []
        for keep in (True, False):
            y, kept, *_ = OPS.solve.default(*tensors, *rest, keep)
            assert (kept.numel() > 0) == keep
            found.append(gradients([y], given))
        assert_gradients_match(*found, **SAME)


@by_cell
def test_w06_one_graph_for_all_lengths(device, name):
    cell = CELLS[name]
    compiled = torch.compile(cell.both, fullgraph=True, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for T in (7, 33, 64):
        args = on(device, cell.inputs_of(2, T, 2, 3))
        for t in args[: len(cell.full)]:
            torch._dynamo.mark_dynamic(t, 1)
        ours, eager = compiled(*args), cell.both(*args)
        torch.testing.assert_close(ours, eager, **TOLERANCE)
        assert_gradients_match(gradients(ours, args), gradients(eager, args), **TOLERANCE)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1


# ---- Dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@by_cell
def test_d03_every_dtype(device, name, dtype):
    cell = CELLS[name]
    args = [t.detach().to(dtype) for t in cell.inputs_of(2, 300, 2, 3)]
    y, *finals = cell.both(*on(device, args))
    loop, *last = cell.loop(*(t.double() for t in args))
    half = dtype in (torch.float16, torch.bfloat16)
    eps = torch.finfo(dtype).eps
    close = {"rtol": 2 * eps if half else 500 * eps, "atol": 2 * eps if half else 500 * eps}
    assert y.dtype == dtype
    torch.testing.assert_close(y.cpu(), loop.to(dtype), **close)
    for got, want in zip(finals, last, strict=True):
        assert got.dtype == (torch.float32 if half else dtype)
        torch.testing.assert_close(got.cpu(), want.to(got.dtype), rtol=1e-4, atol=1e-4)
    zeros = [torch.zeros(1, 2, 3, dtype=torch.complex64)] * len(cell.full)
    with pytest.raises(TypeError, match=rf"{cell.function.__name__}: .* has dtype complex64"):
        cell.call(*zeros, *args[len(cell.full) :])


@by_cell
def test_d02_states_and_vectors_in_the_accumulation_dtype(device, name):
    cell = CELLS[name]
    full = len(cell.full)
    args = on(device, cell.inputs_of(2, 9, 2, 3, torch.float32))
    args[:full] = on(device, args[:full], torch.bfloat16)
    y, *finals = cell.both(*args)
    assert y.dtype == torch.bfloat16
    assert all(t.dtype == torch.float32 for t in finals)
    for t, g in zip(args, gradients([y, *finals], args), strict=True):
        assert g.dtype == t.dtype
        assert g.isfinite().all()
    narrow = [t.detach().bfloat16() for t in args]
    torch.testing.assert_close(cell.both(*narrow)[0], y, rtol=0.05, atol=0.05)
    mixed = [*args[:full], args[full], *narrow[full + 1 :]]  # vectors of both dtypes
    torch.testing.assert_close(cell.both(*mixed)[0], y, rtol=0.05, atol=0.05)
    with pytest.raises(TypeError, match="has dtype float64, expected bfloat16 or float32"):
        cell.call(*args[:-1], args[-1].double())


@by_cell
def test_d02_autocast(device, name):
    cell = CELLS[name]
    args = on(device, cell.inputs({}, dtype=torch.float32))
    if len(cell.full) > 1:
        args[1] = on(device, args[1:2], torch.bfloat16)[0]
        with pytest.raises(TypeError, match="has dtype"):
            cell.call(*args)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        y = cell.call(*args)
    assert y.dtype == torch.float32
    assert [g.dtype for g in gradients([y], args)] == [t.dtype for t in args]


# ---- The solver ----------------------------------------------------------------------------------


def rows_of(report):
    assert isinstance(report, SolveReport)
    return report.rows.cpu()


@by_cell
def test_reports(device, name):
    cell = CELLS[name]
    args = cell.inputs_of(3, 256, 3, 4, torch.float32)
    y, report = call(cell, args, device, segment=16, return_report=True)
    rows = rows_of(report)
    assert rows.shape == (3, 6)
    assert rows.dtype == torch.float64
    status, passes, residual, error, first, serial = rows.T
    assert set(status.tolist()) <= {0.0, 1.0}
    assert ((passes >= 1) & (passes <= 8)).all()
    assert (residual >= 0).all()
    assert (error >= 0).all()
    assert ((first >= 0) == (status == 1)).all()
    assert ((serial > 0) == (status == 1)).all()
    loop = cell.loop(*(t.double() for t in args))[0]
    torch.testing.assert_close(y.cpu().double(), loop, rtol=1e-4, atol=1e-4)
    # The result's parts come in one order.
    y, final, report = call(cell, args, device, max_passes=0, return_final=True, return_report=True)
    assert (rows_of(report)[:, 0] == 2).all()
    assert isinstance(final, tuple) == (len(cell.states) > 1)
    with_final = call(cell, args, device, max_passes=0, return_final=True)
    torch.testing.assert_close(with_final, (y, final), **SAME)
    packed = [t if t.ndim < 3 else t[:1] for t in args]
    _, report = call(cell, packed, device, cu_seqlens=[0, 100, 100, 256], return_report=True)
    assert rows_of(report).shape == (3, 6)


@functools.cache
def problem(name, T):
    """A cell's arguments, and what the loop makes of them."""
    torch.manual_seed(0)
    args = CELLS[name].inputs_of(2, T, 2, 3)
    return args, by_loop(CELLS[name], args)


@pytest.mark.parametrize("max_passes", [0, 1, 8])
@pytest.mark.parametrize("segment", [1, 7, 64, 1000])
@by_cell
def test_any_segments_and_passes_give_the_serial_result(device, name, segment, max_passes):
    cell, (args, want) = CELLS[name], problem(name, 200)
    ours = evaluate(cell, args, device, segment=segment, max_passes=max_passes)
    assert_match(ours, want, rtol=1e-8, atol=1e-9)


def chaotic(*, w, T, B=1, seed=0):
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((B, T, 1)))
    return x, torch.tensor([float(w)], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("w", "T"), [(0.5, 256), (6, 256), (3, 2048), (-4, 2048)])
def test_n11_what_is_hard_to_solve(device, w, T, dtype):
    """Right, or right and said to be serial; never wrong in silence."""
    x, u = chaotic(w=w, T=T)
    args = [x.to(device, dtype), u.to(device, dtype)]
    y, report = srt.indrnn(*args, activation="tanh", segment=16, return_report=True)
    assert y.isfinite().all()
    status, passes, residual, error, *_ = rows_of(report)[0].tolist()
    assert status in (0, 1, 2)
    assert passes <= 8
    # Each step follows from the one before, whatever the path.
    before = torch.nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]
    tight = 1e-5 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(y, torch.tanh(args[0] + args[1] * before), rtol=0, atol=tight)
    assert math.isfinite(residual)
    assert math.isfinite(error)
    if w in (0.5, 6, 3):  # increasing functions forget where they begin
        serial = srt.indrnn(*args, activation="tanh", max_passes=0)
        torch.testing.assert_close(y, serial, rtol=0, atol=10 * tight)


def test_n11_a_hard_row_does_not_reach_the_others(device):
    x, _ = chaotic(w=0.5, T=1024, B=8)
    p = x.expand(8, 1024, 4).clone().float()
    h0 = torch.zeros(8, 4)
    # relu states with a recurrent weight of 1.2 that only this row's input sets off.
    u = torch.tensor([1.2, 0.5, 0.5, 0.5])
    p[..., 0] = -1.0
    p[3, :, 0] = 3e-3
    own = [t.to(device) for t in (p, u, h0)]
    y, report = srt.indrnn(*own, segment=32, return_report=True)
    rows = rows_of(report)
    for b in range(8):
        one = [own[0][b : b + 1], own[1], own[2][b : b + 1]]
        alone, its = srt.indrnn(*one, segment=32, return_report=True)
        torch.testing.assert_close(alone[0], y[b], equal_nan=True, **SAME)
        torch.testing.assert_close(rows_of(its)[0], rows[b], equal_nan=True, **SAME)
    easy = [0, 1, 2, 4, 5, 6, 7]
    assert (rows[easy, 0] == 0).all()
    assert y[easy].isfinite().all()


def test_n11_gates_of_an_lstm_that_remembers(device):
    cell = CELLS["diagonal_lstm"]
    args = cell.inputs_of(2, 500, 2, 4, torch.float32)
    f = cell.full.index("f")
    for bias in (3.0, 6.0):
        own = list(args)
        own[f] = (args[f] + bias).detach().requires_grad_()
        y, report = call(cell, own, device, return_report=True)
        assert (rows_of(report)[:, 0] <= 2).all()
        loop = cell.loop(*(t.double() for t in own))[0]
        torch.testing.assert_close(y.cpu().double(), loop, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tolerance", [1e-13, 1e-6])
@by_cell
def test_g02_gradients_of_weights_at_any_tolerance(device, name, tolerance):
    """The adjoint is exact at the states that were found, and gradients of two calls add."""
    cell = CELLS[name]
    args = cell.inputs_of(3, 50, 3, 4)
    close = {"rtol": 1e-9, "atol": 1e-10} if tolerance < 1e-12 else {"rtol": 1e-4, "atol": 1e-4}
    loop = cell.loop(*args)
    own = on(device, args)
    for outputs in ([0], [1], [0, 1]):
        want = gradients([loop[k] for k in outputs], args, retain_graph=True)
        ours = cell.both(*own, segment=8, tolerance=tolerance)
        got = gradients([ours[k] for k in outputs], own, retain_graph=True)
        assert_gradients_match([None if g is None else g.cpu() for g in got], want, **close)
        again = cell.both(*own, segment=8, tolerance=tolerance)
        twice = gradients([ours[k] + again[k] for k in outputs], own)
        assert_gradients_match(twice, [None if g is None else 2 * g for g in got])


# ---- Acceptance cases ----------------------------------------------------------------------------


@pytest.mark.parametrize("T", [1, 2, 31, 33, 65, 129, 257, 1000, 1025])
@by_cell
def test_s01_any_length(device, name, T):
    cell = CELLS[name]
    full = len(cell.full)
    args = [t.detach().requires_grad_() for t in cell.inputs_of(2, T, 2, 3)]
    want = evaluate(cell, args, device, max_passes=0)
    if T < 100:
        assert_match(want, by_loop(cell, args))
    ours = evaluate(cell, args, device)
    assert_match(ours, want, rtol=1e-8, atol=1e-9)
    shorter = call(cell, [*(t[:, :-1] for t in args[:full]), *args[full:]], device)
    torch.testing.assert_close(shorter.cpu(), ours[0][0][:, :-1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 9, 4), (5, 1, 4), (5, 9, 1)])
@by_cell
def test_s02_single_rows_steps_and_channels(device, name, shape):
    cell = CELLS[name]
    B, T, D = shape
    args = cell.inputs_of(B, T, B, D)
    ours = evaluate(cell, args, device)
    assert ours[0][0].shape == shape
    assert_match(ours, by_loop(cell, args))


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0)])
@by_cell
def test_s03_empty_axes(device, name, shape):
    cell = CELLS[name]
    B, T, D = shape
    args = on(device, cell.inputs_of(B, T, B, D))
    y, *finals = cell.both(*args)
    assert y.shape == shape
    count = len(cell.states)
    if T == 0:
        torch.testing.assert_close(finals, args[-count:])
    loss = y.sum() + 2 * sum(t.sum() for t in finals)
    grads = torch.autograd.grad(loss, args, allow_unused=True)
    for t, g in zip(args, grads, strict=True):
        assert g is None or g.shape == t.shape
    if T == 0 and B:
        for t, g in zip(args[-count:], grads[-count:], strict=True):
            torch.testing.assert_close(g, torch.full_like(t, 2))
    assert not any(g.any() for g in grads[len(cell.full) : -count])


@by_cell
def test_s07_any_strides(device, name):
    cell = CELLS[name]
    full = len(cell.full)
    args = on(device, cell.inputs_of(4, 6, 4, 5))
    want = None
    for order in itertools.permutations(range(3)):
        inverse = np.argsort(order).tolist()
        own = [
            t.detach().permute(order).contiguous().permute(inverse).requires_grad_()
            for t in args[:full]
        ]
        own += args[full:]
        y = cell.call(*own)
        result = [y, *gradients([y], own)]
        want = want or result
        torch.testing.assert_close(result, want)
    wide = [torch.randn(4, 12, 10, dtype=torch.float64, device=device) for _ in range(full)]
    for view in (
        lambda t: t[:, ::2, ::2],
        lambda t: t[:, 6:, 5:],
        lambda t: t[:1, :, :5].expand(4, 12, 5),
    ):
        views = [view(t) for t in wide]
        copies = [t.contiguous() for t in views]
        torch.testing.assert_close(
            cell.call(*views, *args[full:]), cell.call(*copies, *args[full:])
        )


@by_cell
def test_s08_errors_name_the_argument(name):
    cell = CELLS[name]
    fn, full, count = cell.function.__name__, len(cell.full), len(cell.states)
    args = [t.detach() for t in cell.inputs({})]
    first = "f" if fn == "diagonal_lstm" else cell.full[0]  # in the core's table
    for i, argument in enumerate(cell.full):
        wrong = list(args)
        wrong[i] = args[i].numpy()
        with pytest.raises(TypeError, match=f"{fn}: {argument} is a ndarray"):
            cell.call(*wrong)
        if argument != first:
            wrong[i] = args[i][:, :4]
            shape = r"has shape \(2, 4, 3\), expected \(2, 5, 3\)"
            with pytest.raises(ValueError, match=f"{fn}: {argument} {shape}"):
                cell.call(*wrong)
            wrong[i] = args[i].float()
            with pytest.raises(TypeError, match=f"{fn}: {argument} has dtype float32"):
                cell.call(*wrong)
    for i, argument in enumerate(cell.vectors):
        wrong = list(args)
        wrong[full + i] = torch.zeros(4, dtype=torch.float64)
        with pytest.raises(
            ValueError, match=rf"{fn}: {argument} has shape \(4,\), expected \(3,\)"
        ):
            cell.call(*wrong)
        wrong[full + i] = torch.zeros(3, dtype=torch.float64, device="meta")
        with pytest.raises(ValueError, match=f"{fn}: {argument} is on device meta, expected cpu"):
            cell.call(*wrong)
        if argument not in cell.optional and fn != "sru":
            wrong[full + i] = None
            with pytest.raises(TypeError, match=f"{fn}: {argument} is a NoneType, expected"):
                cell.call(*wrong)
    for i, argument in enumerate(cell.states):
        wrong = list(args)
        wrong[i - count] = args[i - count][:1]
        with pytest.raises(ValueError, match=rf"{fn}: {argument} has shape \(1, 3\), expected"):
            cell.call(*wrong)
    for options, message in [
        ({"axis": 3}, "axis is 3"),
        ({"padding_side": "up"}, "padding_side is 'up'"),
        ({"lengths": [5, 6]}, "lengths"),
        ({"lengths": [5]}, "lengths has shape"),
        ({"cu_seqlens": [0, 5]}, "the batch size is 2, expected 1 with cu_seqlens"),
        ({"reset": torch.zeros(2, 4, dtype=torch.bool)}, "reset has shape"),
    ]:
        with pytest.raises(ValueError, match=f"{fn}: .*{message}"):
            cell.call(*args, **options)


def test_s08_wrong_calls():
    u, v = torch.zeros(2, 5, 3), torch.zeros(3)
    for wrong in ({"v_f": v}, {"v_r": v}):
        with pytest.raises(TypeError, match=r"sru: v_[fr] is a NoneType, expected"):
            srt.sru(u, u, u, **wrong)
    with pytest.raises(ValueError, match="sru: return_report is True without v_f and v_r"):
        srt.sru(u, u, u, return_report=True)
    with pytest.raises(
        ValueError, match="indrnn: activation is 'gelu', expected 'identity', 'tanh'"
    ):
        srt.indrnn(u, v, activation="gelu")
    with pytest.raises(ValueError, match="diagonal_lstm: u_i was given without i"):
        srt.diagonal_lstm(None, u, u, u, v, v, v, v)
    with pytest.raises(ValueError, match="diagonal_lstm: w_i was given without i"):
        srt.diagonal_lstm(None, u, u, u, None, v, v, v, w_i=v)
    with pytest.raises(TypeError, match="diagonal_lstm: u_i is a NoneType, expected"):
        srt.diagonal_lstm(u, u, u, u, None, v, v, v)

    def solve(kind, *tensors, given=(True,), blocks=1):
        solver = (kind, [2.0], given, blocks, 1, 0.0, 8, 0, False)
        return OPS.solve(*tensors, None, None, None, False, False, *solver)

    kind, nothing, rest = _solve.KINDS["indrnn"], (None,) * 3, (None,) * 4
    weights = v[None, None]
    with pytest.raises(ValueError, match="solve: kind is 99, expected one of"):
        solve(99, u, *nothing, weights, *rest)
    with pytest.raises(ValueError, match=r"indrnn: in1 was given, expected None"):
        solve(kind, u, u, None, None, weights, *rest)
    with pytest.raises(ValueError, match="weights and more have 2 vectors, and given is"):
        solve(kind, u, *nothing, weights, weights, *nothing)
    with pytest.raises(ValueError, match=r"weights has shape \(1, 1, 2\), expected \(1, 1, 3\)"):
        solve(kind, u, *nothing, weights[..., :2], *rest)
    with pytest.raises(ValueError, match=r"bias has shape \(1, 2, 3\), expected \(1, 1, 3\)"):
        solve(kind, u, *nothing, weights, None, torch.zeros(1, 2, 3), None, None)
    with pytest.raises(TypeError, match="bias has dtype float64, expected float32"):
        solve(kind, u, *nothing, weights, None, weights.double(), None, None)
    with pytest.raises(ValueError, match="indrnn: second was given, expected None"):
        solve(kind, u, *nothing, weights, *nothing, torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match=r"h0 has shape \(2, 2, 3\), expected \(1, 2, 3\)"):
        solve(kind, u, *nothing, weights, None, None, torch.zeros(2, 2, 3), None)
    gru = _solve.KINDS["diagonal_gru"]
    with pytest.raises(TypeError, match="diagonal_gru: z is None"):
        solve(gru, u, *nothing, torch.zeros(1, 4, 3), *rest, given=[True] * 4)
    given = [False, True, True, True]
    with pytest.raises(TypeError, match="diagonal_gru: u_r is None"):
        solve(gru, u, u, u, None, torch.zeros(1, 3, 3), *rest, given=given)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("lengths", [[16, 5, 1, 0], [5]], ids=str)
@by_cell
def test_n10_padding(device, name, side, lengths):
    cell = CELLS[name]
    B, T = len(lengths), 16
    args = on(device, cell.inputs_of(B, T, B, 3))
    b_t = runs(B, T, lengths=lengths, padding_side=side)
    valid = torch.zeros(B, T, dtype=torch.bool)
    for b, steps in b_t:
        valid[b, steps] = True
    valid = valid.to(device)
    full, count = len(cell.full), len(cell.states)
    for i in range(full):
        args[i] = torch.where(valid[..., None], args[i], torch.nan).detach().requires_grad_()
    options = {"lengths": lengths, "padding_side": side, "segment": 4}
    y, *finals = cell.both(*args, **options)
    assert not y[~valid].any()
    grads = gradients([y, *finals], args)
    for i in range(full):
        assert not grads[i][~valid].any()
    assert all(g.isfinite().all() for g in grads)
    second = torch.func.grad(lambda v: torch.func.grad(
        lambda v: cell.call(*args[:full], v, *args[full + 1 :], **options).square().sum()
    )(v).square().sum())(args[full])  # fmt: skip
    assert second.isfinite().all()
    for b in range(B):
        rows = [x[b : b + 1, valid[b]] for x in args[:full]]
        states = [s[b : b + 1] for s in args[-count:]]
        alone, *last = cell.both(*rows, *args[full:-count], *states, segment=4)
        torch.testing.assert_close(y[b, valid[b]], alone[0], rtol=1e-9, atol=1e-10)
        for got, want in zip(finals, last, strict=True):
            torch.testing.assert_close(got[b], want[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@by_cell
def test_n10_one_row_does_not_reach_another(device, name, value):
    cell = CELLS[name]
    args = [t.detach() for t in on(device, cell.inputs_of(4, 64, 4, 8))]
    clean = cell.call(*args, segment=8)
    args[0] = args[0].clone()
    args[0][2] = value
    others = [0, 1, 3]
    torch.testing.assert_close(cell.call(*args, segment=8)[others], clean[others], **SAME)
    args[0][2] = 0
    args[0][2, :, 3] = value  # nor one channel another
    own = cell.call(*args, segment=8)
    args[0][2, :, 3] = 0
    keep = [0, 1, 2, 4, 5, 6, 7]
    torch.testing.assert_close(own[..., keep], cell.call(*args, segment=8)[..., keep], **SAME)


@by_cell
def test_g05_backward_twice(device, name):
    cell = CELLS[name]
    args = on(device, cell.inputs({}))
    before = [t.detach().clone() for t in args]
    y, *finals = cell.both(*args)
    once = gradients([y, *finals], args, retain_graph=True)
    torch.testing.assert_close(gradients([y, *finals], args, retain_graph=True), once, **SAME)
    of_y = gradients([y], args, retain_graph=True)
    torch.testing.assert_close(gradients([y], args, retain_graph=True), of_y, **SAME)

    def of(loss):
        return torch.autograd.grad(loss, args, retain_graph=True, allow_unused=True)

    last = sum(t.sum() for t in finals)
    added = [a if b is None else a + b for a, b in zip(of(y.square().sum()), of(last), strict=True)]
    assert_gradients_match(added, of(y.square().sum() + last), **TOLERANCE)
    torch.testing.assert_close([t.detach() for t in args], before, **SAME)


@by_cell
def test_g10_edits_between_forward_and_backward_are_noticed(device, name):
    cell = CELLS[name]
    full, count = len(cell.full), len(cell.states)
    for i in (*range(full), *range(-count, 0)):  # vectors are put together first
        args = [t * 1 for t in on(device, cell.inputs({}))]
        y = cell.call(*args)
        with torch.no_grad():
            args[i].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@by_cell
def test_g10_checkpointing(device, name, reentrant):
    cell = CELLS[name]
    args = on(device, cell.inputs({}))
    kept = checkpoint(cell.call, *args, use_reentrant=reentrant)
    kept.square().sum().backward()
    theirs = torch.autograd.grad(cell.call(*args).square().sum(), args)
    assert_gradients_match([t.grad for t in args], theirs, **SAME)


@by_cell
def test_m06_same_bits_every_time_and_in_every_batch(device, name):
    cell = CELLS[name]
    args = on(device, cell.inputs_of(8, 777, 8, 32, torch.float32))
    full, count = len(cell.full), len(cell.states)

    def everything():
        ours = cell.both(*args)
        return (*ours, *gradients(ours, args))

    first = everything()
    for _ in range(3):
        torch.testing.assert_close(everything(), first, **SAME)
    row = [t[3:4] for t in args[:full]] + args[full:-count] + [t[3:4] for t in args[-count:]]
    torch.testing.assert_close(cell.call(*row)[0], first[0][3], **SAME)


@by_cell
def test_m06_any_number_of_threads(name, threads):
    cell = CELLS[name]
    args = cell.inputs_of(8, 777, 8, 32, torch.float32)
    first = evaluate(cell, args, "cpu")
    for n in (1, 2, 3):
        threads(n)
        torch.testing.assert_close(evaluate(cell, args, "cpu"), first, **SAME)


@by_cell
def test_w01_random_pieces(device, name):
    cell, rng = CELLS[name], np.random.default_rng(0)
    full, count = len(cell.full), len(cell.states)
    args = on(device, cell.inputs_of(2, 200, 2, 3))
    whole = cell.both(*args)
    for pieces in (1, 3, 20):
        cuts = [0, *sorted(rng.choice(np.arange(1, 200), pieces - 1, replace=False)), 200]
        outputs, states = [], args[-count:]
        for i, j in itertools.pairwise(map(int, cuts)):
            y, *states = cell.both(*(t[:, i:j] for t in args[:full]), *args[full:-count], *states)
            outputs.append(y)
        ours = torch.cat(outputs, 1), *states
        close = {"rtol": 1e-8, "atol": 1e-9}
        torch.testing.assert_close(ours, whole, **close)
        assert_gradients_match(
            gradients(ours, args), gradients(whole, args, retain_graph=True), **close
        )


@by_cell
def test_w02_index_arrays_of_any_kind(device, name):
    cell = CELLS[name]
    args = [t.detach() for t in on(device, cell.inputs_of(1, 10, 4, 3))]
    full, count = len(cell.full), len(cell.states)
    offsets = [0, 3, 4, 4, 10]
    want = cell.both(*args, cu_seqlens=torch.tensor(offsets))
    for index in (offsets, np.array(offsets, np.int32), torch.tensor(offsets, dtype=torch.int32)):
        torch.testing.assert_close(cell.both(*args, cu_seqlens=index), want, **SAME)
    for n, (i, j) in enumerate(itertools.pairwise(offsets)):
        rows = [t[:, i:j] for t in args[:full]]
        states = [t[n : n + 1] for t in args[-count:]]
        y, *last = cell.both(*rows, *args[full:-count], *states)
        torch.testing.assert_close(want[0][:, i:j], y, **TOLERANCE)
        torch.testing.assert_close([t[n : n + 1] for t in want[1:]], last, **TOLERANCE)
    for wrong in ([0, 4, 3, 4, 10], [0, 3, 4, 4, 9], [1, 3, 4, 4, 10]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            cell.call(*args, cu_seqlens=wrong)


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10), (torch.bfloat16, 0.05)]
)
@by_cell
def test_w05_steps_equal_the_sequence(device, name, dtype, atol):
    cell = CELLS[name]
    full, count = len(cell.full), len(cell.states)
    args = [t.detach() for t in on(device, cell.inputs_of(2, 100, 2, 4), dtype)]
    want = cell.both(*args)
    outputs, states = [], args[-count:]
    for t in range(100):
        rows = [x[:, t] for x in args[:full]]
        again = cell.one_step(*rows, *args[full:-count], *states)
        y, *states = cell.one_step(*rows, *args[full:-count], *states)
        torch.testing.assert_close((y, *states), again, **SAME)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), want[0], rtol=atol, atol=atol)
    torch.testing.assert_close(states, [*want[1:]], rtol=atol, atol=atol)
    one = [x[0, 0] for x in args[:full]]
    y, *states = cell.one_step(*one, *args[full:-count], *[None] * count)
    assert all(t.shape == (4,) for t in (y, *states))
