"""The fused cells and their layers on the device: against the equations, and against the CPU."""

# ruff: noqa: E402
import functools
import importlib
import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reference
import scanrnn.cells
import scanrnn.torch as srt
from cell_reference import CELLS as NUMPY_CELLS
from cell_reference import Run
from gpu_helpers import LAYOUTS, leaf
from reference import BFLOAT16, accumulation, assert_matches
from test_torch_layers import KINDS, cut, layer, run
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch_helpers import ALL_ACTIVATIONS, cells, runs
from torch_layers import layers_loop, parts_of, state_of

CELLS = cells()
FUSED = [name for name in CELLS if name != "lru"]
CAUSAL = [kind for kind, (_, keywords) in KINDS.items() if "bidirectional" not in keywords]
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
HALVES = (torch.float16, torch.bfloat16)
DTYPES = [*HALVES, torch.float32, torch.float64]
#: Every cell with the dtypes it has: a complex state is never of halves.
TYPED = [(n, d) for n in CELLS for d in DTYPES if n in FUSED or d in COMPLEX]
by_cell = pytest.mark.parametrize("name", CELLS)
by_typed_cell = pytest.mark.parametrize(("name", "dtype"), TYPED, ids=lambda v: str(v))
by_kind = pytest.mark.parametrize("kind", KINDS)
by_causal_kind = pytest.mark.parametrize("kind", CAUSAL)
#: Error of a result in units of the largest value there, or of 1e-3 where all are smaller; sums of
#: many steps get four times as much.
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 3e-5, torch.float64: 1e-11}

T, ENDS = 300, [0, 3, 4, 4, 170, 237, 300, 300]
FLAGS = torch.arange(3 * T).view(3, T) % 67 == 11
OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": torch.tensor([300, 0, 257])},
    "left-reverse": {"lengths": torch.tensor([0, 290, 300]), "padding_side": "left"}
    | {"reverse": True},
    "packed": {"cu_seqlens": torch.tensor(ENDS)},
    "packed-reverse-reset": {"cu_seqlens": torch.tensor(ENDS), "reset": FLAGS[:1], "reverse": True},
    "reset": {"reset": FLAGS},
    "left-reset": {"lengths": torch.tensor([257, 31, 0]), "padding_side": "left", "reset": FLAGS},
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def on(place, options):
    return {k: v.to(place) if isinstance(v, torch.Tensor) else v for k, v in options.items()}


def sizes(options, B):
    """B and N of a call."""
    return (1, len(options["cu_seqlens"]) - 1) if "cu_seqlens" in options else (B, B)


def coarse(t):
    """Multiples of 1/64 up to 3, which are exact in every dtype: one reference serves them all."""
    if t.is_complex():
        return torch.complex(coarse(t.real), coarse(t.imag))
    return (t * 64).round().clamp(-192, 192) / 64


def arguments(cell, B, T, N, D):
    """Arguments on the CPU, in double precision."""
    return [coarse(t) for t in cell.inputs_of(B, T, N, D, requires_grad=False)]


def cast(t, dtype):
    return t.to(COMPLEX[dtype] if t.is_complex() else dtype)


def arranged(args, dtype, device="cpu", arrange=lambda t: t):
    """Arguments as leaves on a device; vectors and states in the accumulation dtype."""
    wide = torch.float32 if dtype in HALVES else dtype
    return [
        None if t is None
        else leaf(arrange(cast(t, dtype).to(device))) if t.ndim == 3
        else leaf(cast(t, wide).to(device))
        for t in args
    ]  # fmt: skip


def seeds_of(args):
    """Gradients of y and of the final state, in double precision."""
    generator = torch.Generator().manual_seed(7)
    u, state = next(t for t in args if t is not None), args[-1]
    shape = u.shape[::2] if state is None else state.shape
    return [coarse(torch.randn(s, dtype=u.dtype, generator=generator)) for s in (u.shape, shape)]


def differentiate(outputs, args, seeds):
    """Values and gradients, None for arguments that are None."""
    present = [t for t in args if t is not None]
    seeds = [s.to(y.device, y.dtype) for s, y in zip(seeds, outputs, strict=True)]
    grads = iter(torch.autograd.grad(outputs, present, seeds))
    return [y.detach() for y in outputs] + [None if t is None else next(grads) for t in args]


def evaluate(cell, args, dtype, device="cpu", arrange=lambda t: t, **options):
    """y, the final state and all gradients of a cell."""
    own = arranged(args, dtype, device, arrange)
    outputs = cell.both(*own, **on(device, options))
    y, final = outputs
    assert y.dtype == cast(args[next(i for i, t in enumerate(args) if t is not None)], dtype).dtype
    assert final.dtype == cast(y.new_zeros(()), torch.float32 if dtype in HALVES else dtype).dtype
    dy, dfinal = seeds_of(args)
    return differentiate(outputs, own, [arrange(dy.to(device, y.dtype)), dfinal])


def serial(cell, *args, reset=None, activation=None, c=None, **options):
    """The equations, a step of all sequences at a time: (y, final)."""
    *args, state = args
    full = {n: t for n, t in zip(cell.full, args, strict=False) if t is not None}
    vectors = zip(cell.vectors, args[len(cell.full) :], strict=True)
    keywords = {n: t for n, t in vectors if t is not None}
    if cell.g is not None:
        keywords["g"] = ALL_ACTIVATIONS[activation or cell.g]
    if c is not None:
        keywords["c"] = c
    u = next(iter(full.values()))
    B, T, D = u.shape
    steps = runs(B, T, **options)
    longest = max(len(s) for _, s in steps)
    row = torch.tensor([[b] for b, _ in steps])
    at = torch.tensor([s + [0] * (longest - len(s)) for _, s in steps])
    valid = torch.tensor([[k < len(s) for k in range(longest)] for _, s in steps])
    dropped = torch.zeros_like(valid) if reset is None else reset[row, at].bool()
    by_step = {n: t[row, at].unbind(1) for n, t in full.items()}
    held = u.new_zeros(len(steps), D) if state is None else state
    outputs = []
    for k in range(longest):
        before = torch.where(dropped[:, k, None], 0, held)
        y, after = cell.step(before, **{n: t[k] for n, t in by_step.items()}, **keywords)
        held = torch.where(valid[:, k, None], after, held)
        outputs.append(y)
    out = torch.stack(outputs, 1)[valid]
    where = row.expand_as(at)[valid], at[valid]
    return torch.zeros_like(u).index_put(where, out), held


def serially(cell, args, **options):
    """What `evaluate` gives, from the equations in double precision."""
    own = arranged(args, torch.float64)
    return differentiate(serial(cell, *own, **options), own, seeds_of(args))


def assert_close(got, expected, dtype, names, factor=1):
    """Compare results of `evaluate`, each in units of its largest value."""
    for name, one, other in zip(("y", "final", *names)[: len(got)], got, expected, strict=True):
        if other is None:
            assert one is None
            continue
        assert one.shape == other.shape
        assert one.isfinite().all(), name
        scale = float(other.abs().max()) if other.numel() else 0
        sums = 4 if one.ndim == 1 else 1
        torch.testing.assert_close(
            one.to(other.dtype), other.to(one.device), rtol=0,
            atol=factor * sums * TOLERANCE[dtype] * max(scale, 1e-3),
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def assert_equal(got, expected):
    for i, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert other is None or torch.equal(one, other), f"result {i} has other bits"


# ---- Cells: values and gradients -----------------------------------------------------------------


@functools.cache
def problem(name, option):
    """A cell's arguments, and the results by its equations."""
    torch.manual_seed(0)
    options = OPTIONS[option]
    B, N = sizes(options, 3)
    args = arguments(CELLS[name], B, T, N, 8)
    return args, serially(CELLS[name], args, **options)


@by_typed_cell
@pytest.mark.parametrize("option", OPTIONS)
def test_equals_the_equations(device, name, dtype, option):
    cell = CELLS[name]
    args, expected = problem(name, option)
    for layout in ("btd", "bdt", "tbd", "channels-from-1", "every-second-step"):
        got = evaluate(cell, args, dtype, device, LAYOUTS[layout], **OPTIONS[option])
        assert_close(got, expected, dtype, cell.names)
    if option == "plain":
        assert all(t.any() for t in got)


@by_cell
@pytest.mark.parametrize("steps", [1, 7, 33, 255, 257, 4097])
def test_s01_steps_around_tiles(device, name, steps):
    cell = CELLS[name]
    args = arguments(cell, 2, steps, 2, 3)
    # The CPU backend is compared with the equations in its own tests.
    cpu = evaluate(cell, args, torch.float64)
    if steps < 300:
        assert_close(cpu, serially(cell, args), torch.float64, cell.names)
    for dtype, layout in itertools.product((torch.float32, torch.bfloat16), ("btd", "bdt")):
        if (name, dtype) in TYPED:
            got = evaluate(cell, args, dtype, device, LAYOUTS[layout])
            assert_close(got, cpu, dtype, cell.names, factor=1 if steps < 300 else 4)


@by_typed_cell
def test_g11_many_channels_as_on_the_cpu(device, name, dtype):
    cell = CELLS[name]
    for B, steps, D in ((4, 900, 130), (16, 40, 256)):
        args = arguments(cell, B, steps, B, D)
        cpu = evaluate(cell, args, torch.float64)
        for layout in ("btd", "bdt"):
            got = evaluate(cell, args, dtype, device, LAYOUTS[layout])
            assert_close(got, cpu, dtype, cell.names, factor=4)


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
@pytest.mark.parametrize("name", [name for name in CELLS if CELLS[name].g is not None])
def test_every_activation(device, name, activation):
    cell = CELLS[name]
    args = arguments(cell, 2, 40, 2, 3)
    if name == "sru" and activation not in ("identity", "tanh", "relu"):
        with pytest.raises(ValueError, match="activation"):
            evaluate(cell, args, torch.float32, device, activation=activation)
        return
    expected = serially(cell, args, activation=activation)
    for dtype, layout in itertools.product(DTYPES, ("btd", "bdt")):
        got = evaluate(cell, args, dtype, device, LAYOUTS[layout], activation=activation)
        assert_close(got, expected, dtype, cell.names)


@pytest.mark.parametrize("c", [0.5, 8.0, 20.0])
def test_every_scale_of_rg_lru(device, c):
    cell = CELLS["rg_lru"]
    args = arguments(cell, 2, 100, 2, 3)
    got = evaluate(cell, args, torch.float32, device, c=c)
    assert_close(got, serially(cell, args, c=c), torch.float32, cell.names)


@by_cell
def test_absent_inputs(device, name):
    cell = CELLS[name]
    everything = arguments(cell, 2, 60, 2, 3)
    optional = [i for i, n in enumerate(cell.names) if n in (*cell.optional, "state")]
    for present in itertools.product([False, True], repeat=len(optional)):
        args = list(everything)
        for i, keep in zip(optional, present, strict=True):
            args[i] = args[i] if keep else None
        expected = serially(cell, args)
        for layout in ("btd", "bdt"):
            got = evaluate(cell, args, torch.float32, device, LAYOUTS[layout])
            assert_close(got, expected, torch.float32, cell.names)


@by_cell
def test_every_gradient_alone(device, name):
    cell = CELLS[name]
    args = arguments(cell, 2, 300, 2, 8)
    dy, _ = seeds_of(args)
    whole = arranged(args, torch.float32, device)
    expected = torch.autograd.grad(cell.function(*whole), whole, dy.to(device, whole[0].dtype))
    for i, want in enumerate(expected):
        own = [t if i == j else t.detach() for j, t in enumerate(whole)]
        (got,) = torch.autograd.grad(cell.function(*own), own[i], dy.to(device, whole[0].dtype))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@by_cell
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0)])
def test_s03_empty_axes(device, name, shape):
    cell = CELLS[name]
    B, steps, D = shape
    args = arranged(arguments(cell, B, steps, B, D), torch.float32, device)
    y, final = cell.both(*args)
    assert y.shape == shape
    grads = torch.autograd.grad((y.sum() + 2 * final.sum()).real, args)
    assert [g.shape for g in grads] == [t.shape for t in args]
    assert all(not g.any() for g in grads[len(cell.full) : -1])
    if steps == 0:
        assert torch.equal(final, args[-1])
        assert (grads[-1] == 2).all()


@by_cell
def test_axes_and_batches(device, name):
    cell = CELLS[name]
    full = len(cell.full)
    *own, _ = arguments(cell, 12, 40, 12, 3)
    want = evaluate(cell, [*own, None], torch.float64)
    views = {
        -1: lambda t: t.view(3, 4, 40, 3).transpose(2, 3).contiguous(),
        1: lambda t: t.view(3, 4, 40, 3).transpose(1, 2).contiguous(),
        0: lambda t: t.view(3, 4, 40, 3).movedim(2, 0).contiguous(),
    }
    args = [cast(t, torch.float32).to(device) for t in own]
    for axis, view in views.items():
        y = cell.function(*map(view, args[:full]), *args[full:], axis=axis)
        assert_close([y.movedim(axis, 2).reshape(12, 40, 3)], want[:1], torch.float32, ())


# ---- Cells: numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUSED)
def test_extreme_gates(device, name):
    """Saturated gates, up to infinite ones of a mask: finite, and as the CPU has them."""
    cell = CELLS[name]
    inputs = {"u", "skip", "z", "v", "x"} - ({"z"} if name == "min_gru" else set())
    args = arguments(cell, 2, 70, 2, 4)
    for k, argument in enumerate(cell.full):
        values = [-80.0, 80.0] + ([] if argument in inputs else [-math.inf, math.inf])
        for value, layout in itertools.product(values, ("btd", "bdt")):
            own = list(args)
            own[k] = args[k].clone()
            own[k][:, ::3] = value
            cpu = evaluate(cell, own, torch.float64)
            for dtype in (torch.float32, *HALVES):
                got = evaluate(cell, own, dtype, device, LAYOUTS[layout])
                assert_close(got, cpu, dtype, cell.names, factor=4)


@pytest.mark.parametrize("activation", ["identity", "positive"])
@pytest.mark.parametrize("name", ["min_gru", "min_lstm"])
def test_n04_states_of_any_sign(device, name, activation):
    cell = CELLS[name]
    *args, _ = arguments(cell, 2, 7, 2, 4)
    none = evaluate(cell, [*args, None], torch.float32, device, activation=activation)
    signs = torch.tensor([[1.0, -1.0, 0.0, -2.0]] * 2, dtype=torch.float64)
    step = getattr(srt, f"{name}_step")
    for state in (torch.zeros_like(signs), signs.abs(), -signs.abs(), signs):
        every = [*args, state]
        got = evaluate(cell, every, torch.float32, device, activation=activation)
        if not state.any():
            assert_equal(got[:-1], none[:-1])
        expected = serially(cell, every, activation=activation)
        assert_close(got, expected, torch.float32, cell.names)
        assert got[-1].any()
        *own, held = (t.float().to(device) for t in every)
        outputs = []
        for t in range(7):
            y, held = step(*(x[:, t] for x in own), held, activation=activation)
            outputs.append(y)
        torch.testing.assert_close(torch.stack(outputs, 1), got[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_a", [0.0, -1e-8, -1e-4, -1.0, -60.0])
def test_n06_the_scale_of_rg_lru(device, log_a, dtype):
    # sigmoid(40) is 1 to rounding, and c is 8.
    rate = -log_a / 8
    lam = math.log(math.expm1(rate)) if rate > 0 else -math.inf
    full = {"dtype": dtype, "device": device, "requires_grad": True}
    x, h0 = torch.ones(1, 1, 1, **full), torch.ones(1, 1, **full)
    r, i = (torch.full((1, 1, 1), 40.0, **full) for _ in "ri")
    lam_ = torch.tensor([lam], **full)
    scale = math.sqrt(-math.expm1(2 * log_a))
    assert srt.rg_lru(x, r, i, lam_).item() == pytest.approx(scale, rel=1e-5)
    args = (x, r, i, lam_, h0)
    grads = torch.autograd.grad(srt.rg_lru(*args), args)
    assert all(g.isfinite().all() for g in grads)
    if rate > 0:
        # d scale / d log_a, but for the bound on the root's derivative at 1 / (2 sqrt(2.5e-7)).
        slope = min(0.5 / scale, 1000.0) * -2 * math.exp(2 * log_a)
        wanted = (slope + math.exp(log_a)) * -8 / (1 + math.exp(-lam))
        assert grads[3].item() == pytest.approx(wanted, rel=1e-3, abs=1e-12)


def test_n06_training_at_the_usual_initialisation(device):
    lam = leaf(torch.rand(64, device=device) * 2 - 5.5)
    x, r, i = (leaf(torch.randn(4, 64, 64, device=device)) for _ in range(3))
    optimiser = torch.optim.SGD([lam, r, i], lr=0.1)
    finite = []
    for _ in range(200):
        optimiser.zero_grad()
        srt.rg_lru(x, r, i, lam).square().mean().backward()
        finite += [t.grad.isfinite().all() for t in (lam, r, i)]
        optimiser.step()
    assert torch.stack(finite).all()


@by_cell
@pytest.mark.parametrize("bias", [3.0, -20.0])
def test_n09_gates_beyond_the_end(device, name, bias):
    """What a thread beyond the end computes is no identity step, and must not count."""
    cell = CELLS[name]
    for steps in (1, 31, 33, 100, 129, 1000, 2047, 2049):
        args = arguments(cell, 1, steps, 1, 3)
        for k, argument in enumerate(cell.full):
            # Of min-LSTM's gates only the quotient counts, so one of them stays; minGRU's gate is
            # that of the update, where the others have that of the state before.
            if argument in "fro" or (name, argument) == ("qrnn ifo", "i"):
                args[k] = args[k] + bias
            elif (name, argument) == ("min_gru", "z"):
                args[k] = args[k] - bias
        cpu = evaluate(cell, args, torch.float64)
        for layout in ("btd", "bdt"):
            got = evaluate(cell, args, torch.float32, device, LAYOUTS[layout])
            assert_close(got, cpu, torch.float32, cell.names, factor=4)


@by_cell
@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_n10_one_row_does_not_reach_another(device, name, layout, poison):
    cell = CELLS[name]
    full = len(cell.full)
    args = arguments(cell, 4, 64, 4, 8)
    clean = evaluate(cell, args, torch.float32, device, LAYOUTS[layout])
    bad = [t.clone() for t in args]
    for t in bad[:full]:
        t[2] = poison
    dirty = evaluate(cell, bad, torch.float32, device, LAYOUTS[layout])
    vectors = slice(2 + full, len(clean) - 1)  # sums over all rows
    del clean[vectors], dirty[vectors]
    assert_equal(*([t[[0, 1, 3]] for t in results] for results in (dirty, clean)))


@by_cell
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("layout", ["btd", "bdt"])
def test_n10_padding(device, name, side, layout):
    cell, steps = CELLS[name], 64
    full = len(cell.full)
    clean = arguments(cell, 4, steps, 4, 8)
    for rows in (slice(None), slice(3, 4)):
        n = torch.tensor([64, 10, 1, 33])[rows]
        t = torch.arange(steps)
        valid = t < n[:, None] if side == "right" else t >= steps - n[:, None]
        args = [x[rows] for x in clean[:full]] + clean[full:-1] + [clean[-1][rows]]
        options = {"lengths": n, "padding_side": side}
        expected = serially(cell, args, **options)
        args[:full] = [torch.where(valid[..., None], x, math.nan) for x in args[:full]]
        got = evaluate(cell, args, torch.float32, device, LAYOUTS[layout], **options)
        assert_close(got, expected, torch.float32, cell.names)
        for x in (got[0], *got[2 : 2 + full]):
            assert not x[~valid.to(device)].any()


@pytest.mark.parametrize("name", FUSED)
def test_d02_states_and_vectors_of_both_dtypes(device, name):
    cell = CELLS[name]
    args = arranged(arguments(cell, 2, 40, 2, 4), torch.bfloat16, device)
    results = []
    for own in (args, [leaf(t.bfloat16()) for t in args]):
        y, final = cell.both(*own)
        assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
        grads = torch.autograd.grad(y.float().sum() + final.sum(), own)
        assert [g.dtype for g in grads] == [t.dtype for t in own]
        results.append([y, final, *grads])
    for one, other in zip(*results, strict=True):  # the values are exact in both
        torch.testing.assert_close(one.float(), other.float(), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("name", FUSED)
def test_d02_autocast(device, name):
    cell = CELLS[name]
    args = arranged(arguments(cell, 2, 40, 2, 4), torch.float32, device)
    mixed = list(args)
    if len(cell.full) > 1:  # what a matrix product under autocast gives
        mixed[1] = leaf(args[1].bfloat16())
    with torch.autocast(device, torch.bfloat16):
        y = cell.function(*mixed)
    assert y.dtype == torch.float32
    grads = torch.autograd.grad(y.sum(), mixed)
    assert [g.dtype for g in grads] == [t.dtype for t in mixed]
    torch.testing.assert_close(y, cell.function(*args))  # the values are exact in both


# ---- Cells: the same bits ------------------------------------------------------------------------


@by_typed_cell
def test_m06_every_run(device, name, dtype):
    cell = CELLS[name]
    for layout, D in (("btd", 48), ("bdt", 5)):
        args = arranged(arguments(cell, 3, 2500, 3, D), dtype, device, LAYOUTS[layout])
        seeds = seeds_of([t.detach().cpu() for t in args])
        first = differentiate(cell.both(*args), args, seeds)
        for _ in range(10):
            assert_equal(differentiate(cell.both(*args), args, seeds), first)


@by_typed_cell
@pytest.mark.parametrize(("steps", "D"), [(1, 7), (17, 1), (60, 8), (300, 3), (2500, 40)])
def test_m06_every_batch(device, name, dtype, steps, D):
    """A row alone, or with others, has the bits it has in the batch."""
    cell, full = CELLS[name], len(CELLS[name].full)
    args = arguments(cell, 5, steps, 5, D)
    for layout in ("btd", "bdt", "channels-from-1"):
        dy, dfinal = seeds_of(args)
        seeds = [LAYOUTS[layout](cast(dy, dtype).to(device)), dfinal]
        whole = None
        for part in (slice(None), slice(0, 1), slice(3, 4), slice(2, 5)):
            own = arranged(args, dtype, device, LAYOUTS[layout])
            rows = [leaf(t[part]) for t in own[:full]]
            rows += [*own[full:-1], leaf(own[-1][part])]
            got = differentiate(cell.both(*rows), rows, [s[part] for s in seeds])
            del got[2 + full : -1]  # gradients of vectors are sums over all rows
            whole = whole or got
            assert_equal(got, [t[part] for t in whole])


@by_typed_cell
@pytest.mark.parametrize("reverse", [False, True])
def test_whole_tiles_have_the_bits_that_others_have(device, name, dtype, reverse):
    """Calls without resets whose tiles are all whole have a kernel of their own, and another one,
    of clusters, where there are many tiles and eight or a multiple in every sequence."""
    cell = CELLS[name]
    for B, steps, D in ((2, 512, 64), (32, 1024, 64), (1, 9216, 256)):
        args = arguments(cell, B, steps, B, D)
        never = torch.zeros(B, steps, dtype=torch.bool)
        whole, others = (
            evaluate(cell, args, dtype, device, reverse=reverse, **options)
            for options in ({}, {"reset": never})
        )
        assert_equal(whole, others)


# ---- Short sequences, which share a block --------------------------------------------------------

SHORT = [(1001, 2, 1), (2049, 9, 3), (2049, 17, 4), (777, 33, 8), (131, 64, 16), (515, 40, 6)]
SHORT_OPTIONS = {
    "plain": lambda B, T: {},
    "reverse": lambda B, T: {"reverse": True},
    "lengths": lambda B, T: {"lengths": torch.arange(B) % (T + 1)},
    "left-reverse": lambda B, T: {
        "lengths": torch.arange(B) * 7 % (T + 1), "padding_side": "left", "reverse": True,
    },
    "reset": lambda B, T: {"reset": torch.arange(B * T).view(B, T) % 13 == 5},
    "lengths-reset": lambda B, T: {
        "lengths": torch.arange(B) * 5 % (T + 1),
        "reset": torch.arange(B * T).view(B, T) % 7 == 3,
    },
}  # fmt: skip


#: `scan` with gates of each shape.
SCANS = {
    "scan": lambda B, T, D: (B, T, D),
    "scan, gates of channels": lambda B, T, D: (1, 1, D),
    "scan, gates of steps": lambda B, T, D: (1, T, 1),
    "scan, gates of rows": lambda B, T, D: (B, 1, 1),
    "scan, a gate": lambda B, T, D: (1, 1, 1),
}


class Scan:
    """`scan` with what the tests below use of a `Cell` of torch_helpers."""

    names = ("a", "x", "state")
    full = ("a", "x")

    def __init__(self, shape_of):
        self.shape_of = shape_of

    def both(self, *args, **options):
        return srt.scan(*args, return_final=True, **options)

    def inputs_of(self, B, T, N, D, requires_grad=False):
        a = torch.rand(self.shape_of(B, T, D), dtype=torch.float64) * 2 - 1
        return [a, *(torch.randn(s, dtype=torch.float64) for s in ((B, T, D), (N, D)))]


def short_case(name):
    return CELLS[name] if name in CELLS else Scan(SCANS[name])


def short_results(case, args, dtype, device, arrange=lambda t: t, part=slice(None), **options):
    """Results for some of the rows; inputs with one row have no others to take."""
    own = [
        leaf(t[part]) if t.ndim > 1 and t.shape[0] > 1 else t
        for t in arranged(args, dtype, device, arrange)
    ]
    outputs = case.both(*own, **on(device, options))
    dy, dfinal = seeds_of([args[1] if isinstance(case, Scan) else args[0], args[-1]])
    dy = arrange(dy.to(device, outputs[0].dtype))
    return differentiate(outputs, own, [dy[part], dfinal[part]])


#: Half of all pairs: every shape with three of the options, and every option with three shapes.
SHORT_CASES = [
    (shape, option)
    for (i, shape), (j, option) in itertools.product(enumerate(SHORT), enumerate(SHORT_OPTIONS))
    if (i + j) % 2 == 0 or j == 0
]


@pytest.mark.parametrize("name", [*CELLS, *SCANS])
@pytest.mark.parametrize(("shape", "option"), SHORT_CASES, ids=str)
def test_short_sequences(device, name, shape, option):
    case, (B, steps, D) = short_case(name), shape
    options = SHORT_OPTIONS[option](B, steps)
    args = arguments(case, B, steps, B, D)
    cpu = short_results(case, args, torch.float64, "cpu", **options)
    # Where rows are aligned, where they are not, and with steps side by side.
    others = [(torch.float64, "tbd"), (torch.float16, "channels-from-1"), (torch.float32, "bdt")]
    more = others[SHORT_CASES.index((shape, option)) % 3]
    for dtype, layout in ((torch.float32, "btd"), (torch.bfloat16, "btd"), more):
        if name == "lru" and dtype in HALVES:
            continue
        got = short_results(case, args, dtype, device, LAYOUTS[layout], **options)
        for i, (one, other) in enumerate(zip(got, cpu, strict=True)):
            # Gradients of what all rows share are sums of many terms of both signs.
            shared = i >= 2 and other.numel() < B * D
            assert_close([one], [other], dtype, (), factor=8 if shared else 2)


@pytest.mark.parametrize("name", [*CELLS, "scan"])
@pytest.mark.parametrize("shape", [(37, 9, 3), (37, 33, 8), (37, 64, 16)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_m06_short_sequences_in_every_batch(device, name, shape, dtype):
    """Whoever shares the block, and wherever in it a row is."""
    if name == "lru" and dtype in HALVES:
        pytest.skip("complex numbers of 16-bit floats do not exist")
    case, (B, steps, D) = short_case(name), shape
    full = len(case.full)
    args = arguments(case, B, steps, B, D)
    lengths = torch.arange(B) * 5 % (steps + 1)
    for options in ({}, {"lengths": lengths}):
        whole = short_results(case, args, dtype, device, **options)
        assert_equal(short_results(case, args, dtype, device, **options), whole)
        del whole[2 + full : -1]
        for part in (slice(0, 1), slice(1, 2), slice(5, 8), slice(2, 37), slice(11, 24)):
            some = {k: v[part] for k, v in options.items()}
            got = short_results(case, args, dtype, device, part=part, **some)
            del got[2 + full : -1]
            assert_equal(got, [t[part] for t in whole])


@by_cell
def test_many_short_sequences_in_a_pack(device, name):
    cell = CELLS[name]
    counts = torch.arange(1500) * 7 % 12
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    args = arguments(cell, 1, int(ends[-1]), 1500, 5)
    for options in ({}, {"reverse": True, "reset": torch.arange(int(ends[-1]))[None] % 9 == 4}):
        options = {"cu_seqlens": ends, **options}
        cpu = evaluate(cell, args, torch.float64, **options)
        for layout in ("btd", "bdt"):
            got = evaluate(cell, args, torch.float32, device, LAYOUTS[layout], **options)
            assert_close(got, cpu, torch.float32, cell.names, factor=4)


# ---- Cells: steps, pieces, compilers, graphs, errors ---------------------------------------------


@by_typed_cell
def test_w05_steps_give_what_the_sequence_gives(device, name, dtype):
    cell = CELLS[name]
    full = len(cell.full)
    args = [t.detach() for t in arranged(arguments(cell, 3, 50, 3, 6), dtype, device)]
    want, last = cell.both(*args)
    step = getattr(srt, f"{cell.function.__name__}_step")
    missing = [None] * {"qrnn f": 2, "qrnn fo": 1}.get(name, 0)
    state, outputs = args[-1], []
    for t in range(50):
        y, state = step(*(x[:, t] for x in args[:full]), *missing, *args[full:-1], state)
        outputs.append(y)
    assert_close([torch.stack(outputs, 1), state], [want, last], dtype, ())


@by_cell
def test_w01_random_pieces(device, rng, name):
    cell = CELLS[name]
    full = len(cell.full)
    args = arranged(arguments(cell, 2, 1000, 2, 3), torch.float64, device)
    seeds = seeds_of([t.detach().cpu() for t in args])
    whole = differentiate(cell.both(*args), args, seeds)
    for pieces in (2, 7, 50):
        cuts = [0, *sorted(rng.choice(np.arange(1, 1000), pieces - 1, replace=False)), 1000]
        state, outputs = args[-1], []
        for i, j in itertools.pairwise(map(int, cuts)):
            y, state = cell.both(*(t[:, i:j] for t in args[:full]), *args[full:-1], state)
            outputs.append(y)
        got = differentiate((torch.cat(outputs, 1), state), args, seeds)
        assert_close(got, whole, torch.float64, cell.names)
    y, state = cell.both(*(t[:, :500] for t in args[:full]), *args[full:])
    y, _ = cell.both(*(t[:, 500:] for t in args[:full]), *args[full:-1], state.detach())
    (dx,) = torch.autograd.grad(y.abs().sum(), args[0])
    assert dx[:, 500:].any()
    assert not dx[:, :500].any()


@by_cell
def test_w06_compile(device, name):
    cell = CELLS[name]

    def f(*args):
        y, final = cell.both(*args)
        return torch.tanh(y.real), final

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for steps in (40, 77):
        args = arranged(arguments(cell, 2, steps, 2, 3), torch.float32, device)
        y, final = f(*args)
        seeds = [torch.ones_like(y), torch.ones_like(final)]
        got, want = (differentiate(g(*args), args, seeds) for g in (compiled, f))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)


def captured(f, inputs):
    """A graph of f, and its results: what a replay writes to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            f(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = f(*inputs)
    return graph, results


@by_cell
@pytest.mark.parametrize("shape", [(2, 3000, 40), (100, 33, 8)], ids=str)
def test_m03_graphs(cuda, name, shape):
    """Capture forward and backward, replay with new data: the bits of eager calls."""
    cell, (B, steps, D) = CELLS[name], shape
    args = arranged(arguments(cell, B, steps, B, D), torch.float32, cuda)
    seeds = [s.to(cuda, args[0].dtype) for s in seeds_of([t.detach().cpu() for t in args])]

    def f(*args):
        return differentiate(cell.both(*args), args, seeds)

    graph, results = captured(f, args)
    for _ in range(10):
        with torch.no_grad():
            for t in args[: len(cell.full)]:
                t.copy_(torch.randn_like(t))
        graph.replay()
        assert_equal(results, f(*args))


@by_cell
def test_m02_devices_must_agree(device, name):
    cell, other = CELLS[name], "cpu" if device != "cpu" else "meta"
    fn = cell.function.__name__
    args = [t.detach() for t in arranged(arguments(cell, 2, 5, 2, 3), torch.float32, device)]
    for i, argument in enumerate(cell.names):
        wrong = list(args)
        wrong[i] = args[i].to(other)
        if argument == "state":
            argument = "[hc]0"
        elif i == 0 or name == "qrnn f":
            argument = r"\w+"  # the one that the others are compared with
        with pytest.raises(ValueError, match=f"{fn}: {argument} is on device"):
            cell.function(*wrong)
    y = cell.function(*args)
    assert y.device.type == device
    assert y.isfinite().all()


# ---- Layers --------------------------------------------------------------------------------------

LAYERS = {"SRU": (srt.SRU, {"num_layers": 2}), **KINDS}


def twins(device, kind, dtype=torch.float64, **keywords):
    """A layer on the CPU, and another of the same state on the device."""
    one = layer(kind, dtype=dtype, **keywords)
    cls, own = KINDS[kind]
    other = cls(*keywords.get("sizes", (4, 6)), dtype=dtype, device=device, **own)
    other.load_state_dict(one.state_dict())
    return one, other


def layer_results(module, x, hx, place, **options):
    """Output, state and all gradients, on the CPU."""
    x = leaf(x.to(place))
    parts = [leaf(part.to(place)) for part in parts_of(hx)]
    state = None if hx is None else parts[0] if len(parts) == 1 else tuple(parts)
    y, h_n = run(module, x, state, **on(place, options))
    return finish(module, y, h_n, [x, *parts, *module.parameters()], place)


def finish(module, y, h_n, args, place):
    assert y.device.type == torch.device(place).type
    outputs = [y, *parts_of(h_n)]
    loss = sum((t.abs().square() + t.real).sum() for t in outputs)
    grads = torch.autograd.grad(loss, args)
    return [t.detach().cpu() for t in (*outputs, *grads)]


@by_kind
def test_layers_as_on_the_cpu(device, kind):
    one, other = twins(device, kind)
    x = torch.randn(6, 50, 4, dtype=torch.float64)
    hx = state_of(one, 6, requires_grad=False)
    lengths = torch.tensor([50, 0, 1, 33, 49, 2])
    flags = torch.arange(300).view(6, 50) % 17 == 3
    for state, options in (
        (None, {}),
        (hx, {}),
        (hx, {"lengths": lengths}),
        (hx, {"lengths": lengths, "padding_side": "left"}),
        *(() if one.bidirectional else ((hx, {"reset": flags}),)),
    ):
        want = layer_results(one, x, state, "cpu", **options)
        got = layer_results(other, x, state, device, **options)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    loop, _ = layers_loop(one, x[:, :9], hx)
    y, _ = run(other, x[:, :9].to(device), on_device(hx, device))
    torch.testing.assert_close(y.cpu(), loop, rtol=1e-9, atol=1e-10)


def on_device(hx, device):
    parts = [part.to(device) for part in parts_of(hx)]
    return parts[0] if len(parts) == 1 else tuple(parts)


@by_kind
def test_layers_in_single_precision(device, kind):
    one, other = twins(device, kind, torch.float32, sizes=(12, 24))
    x = torch.randn(5, 300, 12)
    want, _ = run(one.double(), x.double())
    y, _ = run(other, x.to(device))
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-3, atol=1e-3)


@by_kind
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_w02_packed_sequences(device, kind, enforce_sorted):
    one, other = twins(device, kind)
    lengths = [40, 17, 17, 3, 1] if enforce_sorted else [3, 40, 1, 17, 17]
    padded = torch.randn(5, 40, 4, dtype=torch.float64)
    hx = state_of(one, 5, requires_grad=False)
    x = leaf(padded.to(device))
    parts = [leaf(part.to(device)) for part in parts_of(hx)]
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=enforce_sorted)
    y, h_n = other(packed, parts[0] if len(parts) == 1 else tuple(parts))
    assert isinstance(y, PackedSequence)
    assert y.data.device.type == device
    y, _ = pad_packed_sequence(y, batch_first=True)
    got = finish(other, y, h_n, [x, *parts, *other.parameters()], device)
    want = layer_results(one, padded, hx, "cpu", lengths=torch.tensor(lengths))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    alone, _ = run(one, padded[1:2, : lengths[1]], cut(hx, 1))
    torch.testing.assert_close(got[0][1:2, : lengths[1]], alone.detach(), rtol=1e-9, atol=1e-10)


@by_kind
@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 9, 4), (5, 1, 4)])
def test_s02_single_rows_and_steps(device, kind, shape):
    _, module = twins(device, kind)
    B, steps, _ = shape
    x = torch.randn(5, 9, 4, dtype=torch.float64, device=device)
    y, _ = run(module, x[:B, :steps])
    assert y.shape[:2] == (B, steps)
    want, _ = run(module, x[:, :steps])
    torch.testing.assert_close(y, want[:B])


@pytest.mark.parametrize("cls", sorted({cls for cls, _ in LAYERS.values()}, key=str))
def test_s02_one_feature(device, cls):
    module = cls(1, 1, dtype=torch.float64, device=device)
    x = torch.randn(5, 2, 1, dtype=torch.float64, device=device)
    y, _ = module(x)
    assert y.shape == (5, 2, 1)
    torch.testing.assert_close(module(x[:, :1])[0], y[:, :1])


@by_causal_kind
def test_w05_steps_of_layers(device, kind):
    """One token at a time, from the start and after a prefix: also QRNN's step before."""
    _, module = twins(device, kind)
    x = torch.randn(3, 50, 4, dtype=torch.float64, device=device)
    with torch.no_grad():
        want, last = run(module, x)
        for prefix in (0, 20):
            y, h = run(module, x[:, :prefix])
            outputs = [y]
            for t in range(prefix, 50):
                step, h = module.step(x[:, t], h)
                outputs.append(step[:, None])
            torch.testing.assert_close(torch.cat(outputs, 1), want, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(parts_of(h), parts_of(last), rtol=1e-9, atol=1e-11)


@by_causal_kind
def test_w01_state_carried_across_pieces(device, kind):
    _, module = twins(device, kind)
    x = leaf(torch.randn(2, 1000, 4, dtype=torch.float64, device=device))
    cuts = [0, 1, 2, 400, 401, 999, 1000]

    def pieces(detach):
        h, out = None, []
        for i, j in itertools.pairwise(cuts):
            if detach and h is not None:
                held = [part.detach() for part in parts_of(h)]
                h = held[0] if len(held) == 1 else tuple(held)
            y, h = run(module, x[:, i:j], h)
            out.append(y)
        return torch.cat(out, 1), h

    args = [x, *module.parameters()]
    got, want = (finish(module, *f(), args, device) for f in (lambda: pieces(False),
                                                              lambda: run(module, x)))  # fmt: skip
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)
    (dx,) = torch.autograd.grad(pieces(True)[0][:, -1].sum(), x)
    assert not dx[:, :999].any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@by_kind
def test_d02_autocast_of_layers(device, kind, dtype):
    _, module = twins(device, kind, torch.float32)
    x = torch.randn(2, 30, 4, device=device)
    exact, _ = run(module, x)
    with torch.autocast(device, dtype):
        y, h_n = run(module, x)
    assert y.dtype == dtype
    grads = torch.autograd.grad(
        y.float().sum() + sum(h.real.sum() for h in parts_of(h_n)), [*module.parameters()]
    )
    assert all(g.dtype == p.dtype for g, p in zip(grads, module.parameters(), strict=True))
    assert all(g.isfinite().all() for g in grads)
    torch.testing.assert_close(y.float(), exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "kind",
    ["MinGRU", "QRNN of 2 steps", "RGLRU", "HGRN, gated both ways", "GILRLSTM", "LRU", "S5"],
)
def test_m03_graphs_of_layers(cuda, kind):
    _, module = twins(cuda, kind, torch.float32, sizes=(16, 24))
    x = torch.randn(200, 4, 16, device=cuda)

    def f(x):
        y, _ = module(x)
        return [y, *torch.autograd.grad(y.square().sum(), [*module.parameters()])]

    graph, results = captured(f, [x])
    for _ in range(3):
        x.normal_()
        graph.replay()
        for one, other in zip(results, f(x), strict=True):  # cuBLAS may choose another algorithm
            scale = float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * max(scale, 1))


@by_causal_kind
def test_m02_layers_and_input_on_two_devices(cuda, kind):
    _, module = twins(cuda, kind)
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    with pytest.raises((ValueError, RuntimeError), match="device"):
        module(x)
    with pytest.raises((ValueError, RuntimeError), match="device"):
        run(module, x.to(cuda), state_of(module, 3))
    assert run(module, x.to(cuda))[0].isfinite().all()


# ---- Arrays of CuPy, through scanrnn.cells -------------------------------------------------------

SMALL_FLAGS = np.arange(3 * 37).reshape(3, 37) % 5 == 2
SMALL = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": np.array([37, 0, 9])},
    "left-reverse": {"lengths": np.array([0, 37, 33]), "padding_side": "left", "reverse": True},
    "packed-reset": {"cu_seqlens": np.array([0, 3, 4, 4, 37]), "reset": SMALL_FLAGS[:1]},
}


def numpy_arguments(rng, name, B, T, N, D, dtype):
    """A cell's arguments in order, the initial state last."""
    cell, wide = NUMPY_CELLS[name], accumulation(dtype)
    arrays = [
        rng.random(D).astype(wide) if argument in cell.vectors
        else reference.normal(rng, (B, T, D), dtype)
        for argument in cell.arguments
    ]  # fmt: skip
    return [*arrays, reference.normal(rng, (N, D), wide)]


def by_equations(name, arrays, dh, dfinal, **options):
    """h, the final state and all gradients in double precision."""
    one = Run(name, *arrays, **options)
    return [*one.forward(), *one.vjp(dh, dfinal)]


def assert_all_match(got, expected, dtype):
    rtol = {2: 3e-2 if dtype == BFLOAT16 else 4e-3, 4: 3e-5, 8: 1e-11}[dtype.itemsize]
    for one, other in zip(got, expected, strict=True):
        if other is None:
            assert one is None
        else:
            assert_matches(np.asarray(one), other, rtol=rtol)


@pytest.fixture
def arrays_module(device):
    """CuPy on the device, NumPy on the CPU."""
    return pytest.importorskip("cupy") if device == "cuda" else np


def to_host(array):
    return array if array is None or isinstance(array, np.ndarray) else array.get()


@pytest.mark.parametrize("name", NUMPY_CELLS)
@pytest.mark.parametrize("option", SMALL)
def test_cupy(arrays_module, rng, name, option):
    xp, options = arrays_module, SMALL[option]
    B, N = sizes(options, 3)
    position = list(SMALL).index(option) + list(NUMPY_CELLS).index(name)
    dtype = np.dtype((np.float32, np.float64, np.float16)[position % 3])
    arrays = numpy_arguments(rng, name, B, 37, N, 5, dtype)
    dh = reference.normal(rng, (B, 37, 5), dtype)
    dfinal = reference.normal(rng, (N, 5), accumulation(dtype))
    expected = by_equations(name, arrays, dh, dfinal, **options)
    function, vjp = (getattr(scanrnn.cells, name + suffix) for suffix in ("", "_vjp"))
    keeps = {"return_checkpoints": True} if name in ("sru", "qrnn") else {}
    for layout in ("btd", "bdt"):
        place = xp.asarray if layout == "btd" else functools.partial(time_contiguous, xp)
        there = [place(v) if v.ndim == 3 else xp.asarray(v) for v in arrays]
        own = {k: xp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        h, final, *saved = function(*there, return_final=True, **keeps, **own)
        saved = saved[0] if saved else h
        grads = vjp(*there, saved, place(dh), xp.asarray(dfinal), **own)
        assert all(isinstance(v, xp.ndarray) for v in (h, final, *grads))
        assert_all_match([to_host(v) for v in (h, final, *grads)], expected, dtype)
        again = vjp(*there, saved, place(dh), xp.asarray(dfinal), **own)
        for one, other in zip(again, grads, strict=True):
            reference.assert_same_bits(to_host(one), to_host(other))


def time_contiguous(xp, array):
    return xp.ascontiguousarray(xp.asarray(array).transpose(0, 2, 1)).transpose(0, 2, 1)


@pytest.mark.parametrize("name", NUMPY_CELLS)
def test_cupy_steps_and_absent_inputs(arrays_module, rng, name):
    xp, cell = arrays_module, NUMPY_CELLS[name]
    arrays = numpy_arguments(rng, name, 2, 20, 2, 5, np.dtype(np.float32))
    step = getattr(scanrnn.cells, f"{name}_step")
    for absent in ((), cell.optional):
        own = [
            None if n in absent else xp.asarray(v)
            for n, v in zip((*cell.arguments, "state"), arrays, strict=True)
        ]
        given = [to_host(v) for v in own]
        h, final = getattr(scanrnn.cells, name)(*own, return_final=True)
        expected, last = Run(name, *given).forward()
        assert_all_match([to_host(h), to_host(final)], [expected, last], np.dtype("f"))
        state, outputs = own[-1], []
        for t in range(20):
            now = [v[:, t] if v is not None and v.ndim == 3 else v for v in own[:-1]]
            y, state = step(*now, state)
            outputs.append(to_host(y))
        assert_all_match([np.stack(outputs, 1), to_host(state)], [expected, last], np.dtype("f"))


# ---- JAX -----------------------------------------------------------------------------------------

JAX_CELLS = ["sru", "gilr", "hgrn", "min_gru", "min_lstm", "qrnn-f", "qrnn-fo", "qrnn-ifo"]
JAX_CELLS += ["rg_lru", "lru"]
# Each of them is compiled, which takes a while: no full product, and no layers that are alike.
JAX_CASES = [(name, "left-reverse", "float32") for name in JAX_CELLS]
JAX_CASES += [
    (name, "packed-reset", ("bfloat16", "float64", "float16")[i % 3])
    for i, name in enumerate(JAX_CELLS[:-1])
]
JAX_CASES += [("lru", "packed-reset", "float64")]
JAX_LAYERS = ["min_gru", "qrnn-ifo-2", "rg_lru", "sru", "gilr_lstm", "s5"]


@pytest.fixture
def jax(device):
    """JAX with double precision, and the device as its default."""
    jax = pytest.importorskip("jax")
    try:
        place = jax.devices("cuda" if device == "cuda" else "cpu")[0]
    except RuntimeError:
        pytest.skip("this JAX has no CUDA plugin")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    with jax.default_device(place):
        yield jax
    jax.config.update("jax_enable_x64", before)


def pulled_back(jax, f, arrays, seeds):
    """Outputs and gradients, in NumPy."""

    def both(arrays, seeds):
        outputs, pullback = jax.vjp(lambda *v: f(v), *arrays)
        return [*outputs, *pullback(seeds)]

    return jax.tree.map(np.asarray, jax.jit(both)(arrays, seeds))


@pytest.mark.parametrize(("name", "option", "dtype"), JAX_CASES)
def test_jax(jax, rng, name, option, dtype):
    jax_cells = importlib.import_module("jax_cells")
    case, dtype = jax_cells.CASES[name], jax.numpy.dtype(dtype)
    options = SMALL[option] | case.options
    arrays = jax_cells.arguments(rng, case, options, 3, 37, 5, dtype)
    N = len(arrays[-1])
    wide = arrays[-1].dtype if case.complex else accumulation(dtype)
    seeds = (
        jax.numpy.asarray(reference.normal(rng, arrays[0].shape, arrays[0].dtype)),
        jax.numpy.asarray(reference.normal(rng, (N, 5), wide)),
    )
    got = pulled_back(jax, lambda v: jax_cells.call(case, v, **options), arrays, seeds)
    exact = [reference.double(v) for v in arrays]
    if case.complex:  # the backend for the CPU, which its own tests compare with the equations
        cpu = jax.devices("cpu")[0]
        exact, seeds = jax.device_put((exact, tuple(map(reference.double, seeds))), cpu)
        expected = pulled_back(jax, lambda v: jax_cells.call(case, v, **options), exact, seeds)
    else:
        absent = {"qrnn-f": 2, "qrnn-fo": 1}.get(name, 0)
        exact[-1:-1] = [None] * absent
        expected = by_equations(name.split("-")[0], exact, *seeds, **options)
        expected = [v for v in expected if v is not None]
    assert_all_match(got, expected, np.dtype(got[0].real.dtype))


@pytest.mark.parametrize("name", JAX_LAYERS)
def test_jax_layers_as_on_the_cpu(jax, rng, name):
    layers = importlib.import_module("test_jax_layers")
    parameters, apply = layers.layer(name)
    x = rng.standard_normal((3, 37, 3))

    def loss(parameters, x):
        y, *_ = out if isinstance(out := apply(parameters, x), tuple) else (out,)
        return (jax.numpy.abs(y) ** 2).sum(), y

    both = jax.jit(jax.value_and_grad(loss, has_aux=True))
    cpu = jax.device_put((parameters, x), jax.devices("cpu")[0])
    got, want = (jax.tree.map(np.asarray, both(*args)) for args in ((parameters, x), cpu))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_jax_gives_the_same_bits(jax, rng):
    jax_cells = importlib.import_module("jax_cells")
    for name in ("sru", "min_lstm", "rg_lru"):
        case = jax_cells.CASES[name]
        arrays = jax_cells.arguments(rng, case, {}, 3, 2000, 8, "float32")
        both = jax.jit(jax.grad(jax_cells.loss_of(functools.partial(jax_cells.call, case))))
        first = np.asarray(both(*arrays))
        for _ in range(10):
            reference.assert_same_bits(np.asarray(both(*arrays)), first)
