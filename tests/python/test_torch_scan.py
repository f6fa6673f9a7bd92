"""scanrnn.torch.scan in eager mode: values, gradients of all orders and modes, errors."""

import hashlib
import itertools

import numpy as np
import pytest
import scanrnn
import scanrnn.torch as srt
import torch
from scanrnn import _core
from scanrnn.torch import _ops, scan
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint
from torch_helpers import (
    OPTIONS,
    as_tensors,
    assert_gradients_match,
    gradients,
    leaf,
    scan_loop,
    size_of,
)

by_options = pytest.mark.parametrize("name", OPTIONS)
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def inputs(options, D=3, dtype=torch.float64):
    B, T, N = size_of(options)
    a, x = leaf(B, T, D, dtype=dtype, unit=True), leaf(B, T, D, dtype=dtype)
    return a, x, leaf(N, D, dtype=dtype)


def both(a, x, h0=None, **options):
    return scan(a, x, h0, return_final=True, **options)


# ---- Values and gradients ------------------------------------------------------------------------


@by_options
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
def test_equals_the_loop(name, dtype):
    options = as_tensors(OPTIONS[name])
    args = inputs(options, dtype=dtype)
    ours, loop = both(*args, **options), scan_loop(*args, **options)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    assert_gradients_match(gradients(ours, args), gradients(loop, args), **TOLERANCE)
    # Without an initial state.
    ours, loop = both(*args[:2], **options), scan_loop(*args[:2], **options)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    assert_gradients_match(gradients(ours, args[:2]), gradients(loop, args[:2]), **TOLERANCE)


@pytest.mark.parametrize("shape", [(2, 1, 3), (1, 5, 3), (2, 5, 1), (1, 1, 1), (3,), (5, 1), ()])
def test_broadcast_gates_get_reduced_gradients(shape):
    a, x, h0 = leaf(*shape, unit=True), leaf(2, 5, 3), leaf(2, 3)
    ours, loop = both(a, x, h0), scan_loop(a, x, h0)
    torch.testing.assert_close(ours, loop, **TOLERANCE)
    got = gradients(ours, (a, x, h0))
    assert got[0].shape == a.shape
    assert_gradients_match(got, gradients(loop, (a, x, h0)), **TOLERANCE)


def test_a_number_is_a_gate():
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(scan(0.5, x), scan(torch.full_like(x, 0.5), x))
    with pytest.raises(TypeError, match="scan: a is complex, expected a real number"):
        scan(0.5j, x)


@pytest.mark.parametrize("wanted", range(1, 8))
@pytest.mark.parametrize("output", [0, 1], ids=["h", "final"])
def test_every_combination_of_wanted_gradients(wanted, output):
    args = inputs({})
    chosen = [t for i, t in enumerate(args) if wanted >> i & 1]
    fixed = [t if wanted >> i & 1 else t.detach() for i, t in enumerate(args)]
    ours, loop = both(*fixed)[output], scan_loop(*fixed)[output]
    assert_gradients_match(gradients([ours], chosen), gradients([loop], chosen), **TOLERANCE)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
def test_any_axis_is_time(axis):
    x, a = leaf(2, 3, 4, 5), leaf(2, 3, 4, 5, unit=True)
    h, final = scan(a, x, axis=axis, return_final=True)
    assert h.shape == x.shape
    moved = [t.movedim(axis, -2) for t in (a, x)]
    loop, loop_final = scan_loop(*(t.flatten(0, 1) for t in moved))
    loop = loop.unflatten(0, moved[1].shape[:2]).movedim(-2, axis)
    torch.testing.assert_close(h, loop, **TOLERANCE)
    torch.testing.assert_close(final, loop_final.unflatten(0, final.shape[:2]), **TOLERANCE)
    ours, theirs = (
        gradients([h, final], (a, x)),
        gradients([loop, loop_final.view(final.shape)], (a, x)),
    )
    assert_gradients_match(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("shape", [(6, 4), (6,)])
def test_one_sequence_without_a_batch_axis(shape):
    x, a, h0 = leaf(*shape), leaf(*shape, unit=True), leaf(*shape[1:])
    h, final = scan(a, x, h0, return_final=True)
    assert (h.shape, final.shape) == (x.shape, h0.shape)
    full = [t.reshape(1, 6, -1) for t in (a, x)] + [h0.reshape(1, -1)]
    loop, loop_final = scan_loop(*full)
    loop, loop_final = loop.view(h.shape), loop_final.view(final.shape)
    torch.testing.assert_close((h, final), (loop, loop_final), **TOLERANCE)
    args = (a, x, h0)
    ours, theirs = gradients((h, final), args), gradients((loop, loop_final), args)
    assert_gradients_match(ours, theirs, **TOLERANCE)
    packed = scan(a, x, cu_seqlens=[0, 2, 6], reset=[0, 0, 0, 1, 0, 0])
    loop, _ = scan_loop(*full[:2], cu_seqlens=[0, 2, 6], reset=[[0, 0, 0, 1, 0, 0]])
    torch.testing.assert_close(packed, loop.view(h.shape), **TOLERANCE)


def test_batch_axes_that_no_view_merges_are_walked():
    x = torch.randn(5, 4, 3, 2, dtype=torch.float64).permute(1, 2, 0, 3).requires_grad_()
    gate = leaf(4, 1, 1, 2, unit=True)
    h, final = scan(gate, x, leaf(4, 3, 2), return_final=True, lengths=torch.randint(6, (4, 3)))
    assert h.stride() == x.stride()
    rows = [x[i] for i in range(4)]
    for i, row in enumerate(rows):
        alone = scan(gate[i], row)
        torch.testing.assert_close(scan(gate, x)[i], alone, rtol=0, atol=0)
    whole, split = scan(gate, x), torch.stack([scan(gate[i], row) for i, row in enumerate(rows)])
    ours, theirs = gradients([whole], (gate, x)), gradients([split], (gate, x))
    assert_gradients_match(ours, theirs, **TOLERANCE)
    assert final.shape == (4, 3, 2)


def test_nothing_is_saved_but_a_h_and_h0():
    saved = []

    def pack(t):
        saved.append(t)
        return t

    a, x, h0 = inputs({})
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        h = scan(a, x, h0)
        assert {t.data_ptr() for t in saved} == {t.data_ptr() for t in (a, h, h0)}
        saved.clear()
        with torch.no_grad():
            scan(a, x, h0)
        scan(a.detach(), x.detach())
    assert not saved


# ---- Derivatives of all orders and modes ---------------------------------------------------------


@by_options
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
def test_d03_gradcheck(name, dtype):
    options = as_tensors(OPTIONS[name])
    batched = dtype == torch.float64 and name in ("plain", "packed-reverse-reset", "left-reset")
    assert gradcheck(
        lambda *args: both(*args, **options),
        inputs(options, 2, dtype),
        check_forward_ad=True,
        check_batched_grad=batched,
        check_batched_forward_grad=batched,
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("plain", torch.float64),
        ("packed-reverse-reset", torch.float64),
        ("left-reset", torch.float64),
        ("reverse", torch.complex128),
    ],
)
def test_g08_gradgradcheck(name, dtype):
    options = as_tensors(OPTIONS[name])
    args = inputs(options, 1, dtype)
    assert gradgradcheck(lambda *args: both(*args, **options), args, check_fwd_over_rev=True)


def test_g08_gradgradcheck_of_broadcast_gates():
    args = leaf(1, 5, 1, unit=True), leaf(2, 5, 2)
    assert gradgradcheck(lambda *args: both(*args), args, check_fwd_over_rev=True)


def test_g08_third_derivative():
    a = leaf(1, 4, 1, unit=True)

    def third(f):
        y = f(a, torch.ones(1, 4, 1, dtype=a.dtype))[0].square().sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(y, a, create_graph=True)
            y = g.square().sum()
        return g

    torch.testing.assert_close(third(both), third(scan_loop))


def test_g08_wgan_gradient_penalty():
    def penalty(f, weight):
        x = torch.linspace(-1, 1, 30, dtype=torch.float64).view(2, 5, 3).requires_grad_()
        score = f(torch.sigmoid(x @ weight), x)[0].tanh().sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        return torch.autograd.grad((slope.norm(2, dim=-1) - 1).square().mean(), weight)

    weight = leaf(3, 3)
    torch.testing.assert_close(penalty(both, weight), penalty(scan_loop, weight))


def test_g09_transforms_equal_a_loop_over_samples():
    a, x, h0 = (t.detach() for t in (leaf(3, 2, 6, 3, unit=True), leaf(3, 2, 6, 3), leaf(3, 2, 3)))
    close = {"rtol": 1e-10, "atol": 1e-12}

    def stacked(f, *args):
        return [torch.stack(parts) for parts in zip(*map(f, *args), strict=True)]

    torch.testing.assert_close([*torch.vmap(both)(a, x, h0)], stacked(both, a, x, h0), **close)
    # Some arguments shared, a batch axis elsewhere than first.
    for dims in [(0, None, None), (None, 0, None), (None, None, 0)]:
        args = [t if dim == 0 else t[0] for t, dim in zip((a, x, h0), dims, strict=True)]
        samples = [t if dim == 0 else [t] * 3 for t, dim in zip(args, dims, strict=True)]
        got = torch.vmap(both, dims)(*args)
        torch.testing.assert_close([*got], stacked(both, *samples), **close)
    got = torch.vmap(both, (1, 3, 0), out_dims=(2, 1))(a.movedim(0, 1), x.movedim(0, 3), h0)
    want = [y.movedim(0, i) for y, i in zip(stacked(both, a, x, h0), (2, 1), strict=True)]
    torch.testing.assert_close([*got], want, **close)

    def loss(a, x, h0):
        h, final = both(a, x, h0)
        return h.square().sum() + final.tanh().sum()

    grad = torch.func.grad(loss, argnums=(0, 1, 2))
    torch.testing.assert_close([*torch.vmap(grad)(a, x, h0)], stacked(grad, a, x, h0), **close)
    shared = torch.vmap(torch.func.grad(loss), (None, 0, 0))(a[0, :1, :, :1], x, h0)
    each = torch.stack([torch.func.grad(loss)(a[0, :1, :, :1], x[i], h0[i]) for i in range(3)])
    torch.testing.assert_close(shared, each, **close)

    def h_of(a):
        return scan(a, x[0], h0[0])

    torch.testing.assert_close(
        torch.func.jacrev(h_of)(a[0]), torch.func.jacfwd(h_of)(a[0]), **close
    )
    hessian = torch.func.hessian(lambda a: loss(a, x[0], h0[0]))(a[0, :1])
    twice = torch.func.jacrev(torch.func.jacrev(lambda a: loss(a, x[0], h0[0])))(a[0, :1])
    torch.testing.assert_close(hessian, twice, **close)


@by_options
def test_g09_jvp(name):
    options = as_tensors(OPTIONS[name])
    args = [t.detach() for t in inputs(options)]
    tangents = [torch.randn_like(t) for t in args]
    got = torch.func.jvp(lambda *args: both(*args, **options), tuple(args), tuple(tangents))[1]
    want = torch.func.jvp(lambda *args: scan_loop(*args, **options), tuple(args), tuple(tangents))[
        1
    ]
    torch.testing.assert_close(got, want, **TOLERANCE)


def test_g09_forward_over_a_graph_that_was_made_outside():
    a, x, _ = inputs({})
    h = scan(a, x)
    v, t = torch.randn_like(h), torch.randn_like(h)
    with forward_ad.dual_level():
        (g,) = torch.autograd.grad(h, a, forward_ad.make_dual(v, t), retain_graph=True)
        tangent = forward_ad.unpack_dual(g).tangent
    (want,) = torch.autograd.grad(h, a, t)
    torch.testing.assert_close(tangent, want)


def test_g09_vmap_over_offsets_says_no():
    with pytest.raises(NotImplementedError, match=r"scan: torch\.vmap over cu_seqlens"):
        torch.vmap(lambda c: scan(0.5, torch.ones(1, 4, 1), cu_seqlens=c))(torch.tensor([[0, 4]]))
    # Lengths and resets may differ from sample to sample.
    x, n = torch.randn(3, 2, 5, 1), torch.randint(6, (3, 2))
    got = torch.vmap(lambda x, n: scan(0.5, x, lengths=n))(x, n)
    torch.testing.assert_close(got, scan(0.5, x, lengths=n))


# ---- Acceptance cases ----------------------------------------------------------------------------


def test_d01_same_bits_as_numpy():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, x = torch.rand(2, 70, 5).bfloat16(), torch.randn(2, 70, 5).bfloat16()
    h = scanrnn.scan(a, x)
    assert isinstance(h, torch.Tensor)
    assert h.dtype == torch.bfloat16
    as_numpy = [t.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) for t in (a, x)]
    np.testing.assert_array_equal(
        h.view(torch.uint16).numpy(), scanrnn.scan(*as_numpy).view(np.uint16)
    )


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.uint8, torch.bool, torch.float8_e4m3fn], ids=lambda d: str(d)[6:]
)
def test_d01_other_dtypes_are_refused(dtype):
    x = torch.zeros(1, 2, 3).to(dtype)
    with pytest.raises(TypeError, match=f"scan: x has dtype {str(dtype)[6:]}, expected float16"):
        scan(x, x)


@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_d02_mixed_dtypes(narrow, wide):
    a, x = leaf(2, 5, 3, dtype=wide, unit=True), leaf(2, 5, 3, dtype=narrow)
    if wide == narrow:
        assert scan(a, x).dtype == wide
        return
    with pytest.raises(TypeError, match=r"scan: a has dtype \w+, expected \w+ .the dtype of x."):
        scan(a, x)
    with torch.autocast("cpu", torch.bfloat16):
        if torch.float64 in (wide, narrow):
            with pytest.raises(TypeError, match="scan: a has dtype"):
                scan(a, x)
            return
        h0 = leaf(2, 3, dtype=narrow)
        h, final = both(a, x, h0)
    expected = torch.promote_types(wide, narrow)
    want = scan(a.to(expected), x.to(expected), h0.float())
    torch.testing.assert_close(h, want, rtol=0, atol=0)
    assert (h.dtype, final.dtype) == (expected, torch.float32)
    da, dx = gradients([h, final], (a, x))
    assert (da.dtype, dx.dtype) == (wide, narrow)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_d02_state_in_the_accumulation_dtype(dtype):
    a, x = leaf(2, 5, 3, dtype=dtype, unit=True), leaf(2, 5, 3, dtype=dtype)
    for h0 in (leaf(2, 3, dtype=dtype), leaf(2, 3, dtype=torch.float32)):
        h, final = both(a, x, h0)
        assert (h.dtype, final.dtype) == (dtype, torch.float32)
        assert [g.dtype for g in gradients((h, final), (a, x, h0))] == [dtype, dtype, h0.dtype]
    zeros = both(a, x, torch.zeros(2, 3, dtype=dtype))
    torch.testing.assert_close(both(a, x), zeros, rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"scan: h0 has dtype float64, expected \w+ or float32"):
        scan(a, x, torch.zeros(2, 3, dtype=torch.float64))


@by_dtype
def test_d03_every_dtype_to_one_ulp(dtype):
    T = 1000
    wide = torch.complex128 if dtype.is_complex else torch.float64
    a = (0.9 + 0.1 * torch.rand(2, T, 3, dtype=wide)).to(dtype)
    x = torch.randn(2, T, 3, dtype=wide).to(dtype)
    h, final = both(a, x)
    want, want_final = both(a.to(wide), x.to(wide))
    half = dtype in (torch.float16, torch.bfloat16)
    rtol = torch.finfo(dtype).eps if half else 50 * torch.finfo(dtype).eps
    torch.testing.assert_close(h, want.to(dtype), rtol=rtol, atol=rtol if half else 0.1 * rtol)
    torch.testing.assert_close(final, want_final.to(final.dtype), rtol=1e-5, atol=1e-5)


@by_dtype
def test_g03_final_state_and_its_gradient(dtype):
    wide = dtype not in (torch.float16, torch.bfloat16)
    for h0 in (None, leaf(2, 3, dtype=dtype), leaf(1, 3, dtype=dtype)):
        a, x = leaf(2, 6, 3, dtype=dtype, unit=True), leaf(2, 6, 3, dtype=dtype)
        args = (a, x) if h0 is None else (a, x, h0)
        start = None if h0 is None else h0.expand(2, 3)
        h, final = both(a, x, start)
        torch.testing.assert_close(final.to(dtype), h[:, -1], rtol=0, atol=0)
        if not wide:
            continue
        loop = scan_loop(a, x, start)
        for ours, theirs in [((None, final), (None, loop[1])), ((h, final), loop)]:
            got, want = (gradients(y, args, retain_graph=True) for y in (ours, theirs))
            assert_gradients_match(got, want)


def test_g03_chunks_chained_by_the_state_equal_one_run():
    a, x, h0 = leaf(2, 100, 3, unit=True), leaf(2, 100, 3), leaf(2, 3)
    one = both(a, x, h0)
    first, state = both(a[:, :37], x[:, :37], h0)
    second, state = both(a[:, 37:], x[:, 37:], state)
    two = torch.cat([first, second], 1), state
    torch.testing.assert_close(one, two, **TOLERANCE)
    args = (a, x, h0)
    assert_gradients_match(gradients(one, args), gradients(two, args), **TOLERANCE)


def test_g05_backward_twice_and_in_parts():
    args = inputs({})
    h, final = both(*args)
    before = [t.detach().clone() for t in (*args, h)]
    once = torch.autograd.grad(h.sum() + final.sum(), args, retain_graph=True)
    for t in args:
        t.grad = None
    h.sum().backward(retain_graph=True)
    final.sum().backward(retain_graph=True)
    for t, g in zip(args, once, strict=True):
        torch.testing.assert_close(t.grad, g)
    (h.sum() + final.sum()).backward()
    for t, g in zip(args, once, strict=True):
        torch.testing.assert_close(t.grad, 2 * g)
    for t, b in zip((*args, h), before, strict=True):
        torch.testing.assert_close(t.detach(), b, rtol=0, atol=0)


def test_g10_inputs_are_not_changed():
    def digests(tensors):
        return [hashlib.sha256(t.detach().numpy().tobytes()).digest() for t in tensors]

    args = inputs({})
    before = digests(args)
    h = scan(*args)
    (h.sum()).backward()
    assert digests(args) == before


@pytest.mark.parametrize("edited", [0, 2], ids=["a", "h0"])
def test_g10_edits_between_forward_and_backward_are_noticed(edited):
    args = [t * 1 for t in inputs({})]
    h = scan(*args)
    with torch.no_grad():
        args[edited].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_g10_checkpointing(reentrant):
    args = inputs({})
    kept = checkpoint(lambda *args: scan(*args), *args, use_reentrant=reentrant)
    ours = torch.autograd.grad(kept.square().sum(), args) if not reentrant else None
    if reentrant:  # which supports .backward() alone
        kept.square().sum().backward()
        ours = [t.grad for t in args]
    theirs = torch.autograd.grad(scan(*args).square().sum(), args)
    torch.testing.assert_close([*ours], [*theirs], rtol=0, atol=0)


def test_i03_parameters_and_modes():
    h0, a = torch.nn.Parameter(torch.randn(2, 3)), torch.nn.Parameter(torch.rand(2, 5, 3))
    x = torch.randn(2, 5, 3)
    want = scan(a.detach(), x, h0.detach())
    torch.testing.assert_close(scan(a, x, h0).detach(), want, rtol=0, atol=0)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            h = scan(a, x, h0)
            assert not h.requires_grad
            torch.testing.assert_close(h, want, rtol=0, atol=0)


def test_i03_conjugate_and_negative_views():
    z = torch.randn(2, 5, 3, dtype=torch.complex128, requires_grad=True)
    w = torch.rand(2, 5, 3, dtype=torch.complex128)
    assert z.conj().is_conj()
    ours, theirs = scan(w.conj(), z.conj()), scan(w.conj().resolve_conj(), z.conj().resolve_conj())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert_gradients_match(gradients([ours], [z]), gradients([theirs], [z]), rtol=0, atol=0)
    negative = z.conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(scan(0.5, negative), -scan(0.5, z.imag), rtol=0, atol=0)
    h = scan(0.5, negative)
    torch.testing.assert_close(gradients([h], [z]), gradients([-scan(0.5, z.imag)], [z]))


@pytest.mark.skipif(not _ops._EXCHANGES, reason="this PyTorch has no exchange API of DLPack")
def test_the_core_takes_parts_of_tensors():
    x, a, h = torch.randn(3, 2, 5, 6), torch.rand(2, 5, 12), torch.empty(2, 5, 6)
    final = torch.empty(4, 3, 2, 6)
    _core.scan_forward((a, None, 1, 2), (x, 1), None, h, (final, 3, 1))
    want, last = scan(a[..., 6:], x[1], return_final=True)
    assert torch.equal(h, want)
    assert torch.equal(final[3, 1], last)
    for wrong, message in (
        ((a, None, 0, 5), "a has 12 channels, expected a multiple of 5"),
        ((a, None, 2, 2), "a has 12 channels"),
        ((x, 3), "a has no row 3"),
        ((x, -1), "a has no row -1"),
        ((x, 0, 0), "a has 2 axes, expected 3"),
    ):
        with pytest.raises(ValueError, match=message):
            _core.scan_forward(wrong, (x, 1), None, h, None)
    with pytest.raises(TypeError, match="a is not an array descriptor"):
        _core.scan_forward((a, 1.5), (x, 1), None, h, None)


def test_i03_whoever_watches_sees_the_operator():
    """The plainest call leaves out PyTorch's dispatcher, but not where that has more to do."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    op, seen = torch.ops.scanrnn.scan.default, []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    a, x = torch.rand(2, 5, 3), torch.randn(2, 5, 3)
    want = scan(a, x)
    for mode in (Dispatch, Functions):
        seen.clear()
        with mode():
            h = scan(a, x)
        assert op in seen
        assert torch.equal(h, want)
    weights = a.clone().requires_grad_()
    want_gradients = gradients([scan(weights, x)], [weights])
    seen.clear()
    with Dispatch():
        got_gradients = gradients([scan(weights, x)], [weights])
    assert op in seen
    assert torch.ops.scanrnn.scan_backward.default in seen
    assert torch.equal(got_gradients[0], want_gradients[0])
    for pair in ((a.as_subclass(Subclass), x), (a, x.as_subclass(Subclass))):
        seen.clear()
        h = scan(*pair)
        assert op in seen
        assert type(h) is Subclass
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        scan(a, x)
    assert "scanrnn::scan" in [e.name for e in profile.events()]
    z = torch.randn(2, 5, 3, dtype=torch.complex128)
    assert torch.equal(scan(z.conj(), z.conj()), scan(z, z).conj())
    assert torch.equal(scan(a.double(), z.conj().imag), -scan(a.double(), z.imag))


def test_i03_tensors_without_data():
    from torch._subclasses import FakeTensorMode

    x = torch.randn(2, 5, 3)
    meta = scan(x.to("meta"), x.to("meta"), return_final=True)
    assert [(t.device.type, t.shape) for t in meta] == [("meta", (2, 5, 3)), ("meta", (2, 3))]
    with FakeTensorMode() as mode:
        assert scan(mode.from_tensor(x), mode.from_tensor(x)).shape == x.shape


def test_s08_sparse_tensors():
    x, v = torch.ones(2, 5, 3), torch.ones(3)
    sparse, state, vector = x.to_sparse(), x[:, 0].to_sparse(), v.to_sparse()
    lengths = torch.tensor([5, 5]).to_sparse()
    for call, name in (
        (lambda: scan(sparse, x), "scan: a"),
        (lambda: scan(x, sparse), "scan: x"),
        (lambda: scanrnn.scan(x, sparse), "scan: x"),
        (lambda: scan(x, x, state), "scan: h0"),
        (lambda: scan(x, x, lengths=lengths), "scan: lengths"),
        (lambda: scan(x, x, reset=sparse[..., 0]), "scan: reset"),
        (lambda: srt.gilr(sparse, x), "gilr: f"),
        (lambda: srt.gilr(x, sparse), "gilr: z"),
        (lambda: srt.gilr_step(x[:, 0], x[:, 0], state), "gilr_step: h"),
        (lambda: srt.hgrn(x, x, vector), "hgrn: bound"),
        (lambda: srt.indrnn(x, vector), "indrnn: u"),
        (lambda: srt.lru(sparse, v, v), "lru: u"),
        (lambda: srt.lru(x, v, vector), "lru: theta"),
        (lambda: srt.SRU(3, 3)(sparse), "SRU: input"),
        (lambda: srt.LSTM(3, 4)(sparse), "LSTM: input"),
        (lambda: srt.LSTM(3, 4, parallel=False)(x, (vector, v)), r"LSTM: hx\[0\]"),
    ):
        with pytest.raises(TypeError, match=rf"^{name} has layout torch\.sparse.*, expected torch"):
            call()


def test_m02_mixed_devices():
    x = torch.randn(2, 5, 3)
    with pytest.raises(ValueError, match=r"scan: a is on device cpu, expected meta .*device of x"):
        scan(x, x.to("meta"))
    with pytest.raises(TypeError, match="scan: a has dtype float16, expected float32"):
        scan(x.half().to("meta"), x.to("meta"))
    with pytest.raises(ValueError, match="scan: h0 is on device meta, expected cpu"):
        scan(x, x, x[:, 0].to("meta"))


@pytest.fixture
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
def test_m06_same_bits_every_time_and_in_every_batch(threads):
    a = leaf(1, 1, 32, dtype=torch.float32, unit=True)
    x, h0 = leaf(8, 1025, 32, dtype=torch.float32), leaf(8, 32, dtype=torch.float32)

    def run(a, x, h0):
        h, final = both(a, x, h0)
        return h, final, *gradients((h, final), (a, x, h0))

    first = run(a, x, h0)
    for n in (1, 2, 3, 1):
        threads(n)
        torch.testing.assert_close(run(a, x, h0), first, rtol=0, atol=0)
    for b in (0, 5):
        alone = both(a, x[b : b + 1], h0[b : b + 1])
        torch.testing.assert_close(alone[0][0], first[0][b], rtol=0, atol=0)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_n10_rows_do_not_see_each_other(poison):
    a, x = leaf(4, 64, 8, unit=True), leaf(4, 64, 8)
    bad = x.detach().clone()
    bad[2] = poison
    bad.requires_grad_()
    good = [0, 1, 3]
    ours, clean = scan(a, bad), scan(a, x)
    torch.testing.assert_close(ours[good], clean[good], rtol=0, atol=0)
    g, e = (torch.autograd.grad(h[good].sum(), a)[0] for h in (ours, clean))
    torch.testing.assert_close(g[good], e[good], rtol=0, atol=0)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("lengths", [[64, 10, 1, 33], [10]])
def test_n10_padding_is_not_read(side, lengths):
    B, T = len(lengths), 64
    a, x, h0 = leaf(B, T, 8, unit=True), leaf(B, T, 8), leaf(B, 8)
    t, n = torch.arange(T), torch.tensor(lengths)[:, None]
    valid = (t < n if side == "right" else t >= T - n)[..., None]
    bad = [torch.where(valid, v, torch.nan).detach().requires_grad_() for v in (a, x)]
    h, final = both(*bad, h0, lengths=lengths, padding_side=side)
    grads = gradients((h, final), (*bad, h0))
    assert not h[~valid.expand_as(h)].any()
    for g in grads[:2]:
        assert not g[~valid.expand_as(g)].any()
    for b, (_, steps) in enumerate(zip(lengths, valid[..., 0], strict=True)):
        args = [v[b : b + 1, steps].detach().requires_grad_() for v in (a, x)]
        alone, last = both(*args, h0[b : b + 1])
        torch.testing.assert_close(h[b, steps], alone[0], rtol=0, atol=0)
        torch.testing.assert_close(final[b], last[0], rtol=0, atol=0)
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 9, 4), (5, 1, 4), (3, 7, 1)])
def test_s02_single_rows_and_steps(shape):
    B, T, D = shape
    a, x, h0 = (torch.rand(8, 9, 4) for _ in range(3))
    h0 = h0[:, 0]
    whole = scan(a, x, h0)
    got = scan(a[:B, :T, :D], x[:B, :T, :D], h0[:B, :D])
    assert got.shape == shape
    torch.testing.assert_close(got, whole[:B, :T, :D])


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0), (0, 0, 0)])
def test_s03_empty_axes(shape):
    B, _, D = shape
    a, x, h0, shared = leaf(*shape), leaf(*shape), leaf(B, D), leaf(1, 1, D)
    h, final = both(a, x, h0)
    assert (h.shape, final.shape) == (shape, (B, D))
    if shape[1] == 0:
        torch.testing.assert_close(final, h0)
    da, dx, dh0 = torch.autograd.grad(h.sum() + 2 * final.sum(), (a, x, h0))
    assert (da.shape, dx.shape) == (shape, shape)
    if shape[1] == 0:
        torch.testing.assert_close(dh0, torch.full_like(h0, 2))
    (summed,) = torch.autograd.grad(scan(shared, x).sum(), shared)
    assert not summed.any()
    torch.testing.assert_close(scan(0.5, torch.ones(1, 2, 1)), torch.tensor([[[1.0], [1.5]]]))


def views(D):
    """(name, view of shape (B, T, D)) of every layout that the case asks for."""
    base = torch.rand(D + 1, 4, 12)
    for order in ["btd", "bdt", "tbd", "tdb", "dbt", "dtb"]:
        sizes = {"b": 4, "t": 6, "d": D}
        stored = torch.rand(*(sizes[axis] for axis in order))
        yield order, stored.permute(*(order.index(axis) for axis in "btd"))
    yield "strided", base.permute(1, 2, 0)[:, ::2, :D]
    yield "sliced", base.permute(1, 2, 0)[:, 3:9, 1:]
    yield "expanded", torch.rand(1, 6, D).expand(4, 6, D)
    yield "flipped", torch.from_numpy(np.random.default_rng(0).random((4, 6, D))).float().flip(1)


@pytest.mark.parametrize("D", [1, 2, 3, 9])
def test_s07_any_strides(D):
    gate = torch.rand(4, 6, D)
    for name, x in views(D):
        for a, y in [(gate, x), (x, gate)]:
            args = a.detach().requires_grad_(), y.detach().requires_grad_()
            dense = [t.detach().clone(memory_format=torch.contiguous_format) for t in args]
            dense = [t.requires_grad_() for t in dense]
            ours, theirs = scan(*args), scan(*dense)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)
            got, want = gradients([ours], args), gradients([theirs], dense)
            assert_gradients_match(got, want, rtol=0, atol=0, msg=name)
    odd = torch.rand(64).as_strided((1, 6, 1), (0, 1, 7))
    torch.testing.assert_close(scan(0.5, odd), scan(0.5, odd.clone()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h0": (5, 3)}, r"h0 has shape \(5, 3\), expected \(4, 3\)"),
        ({"h0": (3,)}, r"h0 has "),
        ({"h0": (4, 4)}, r"h0 has shape \(4, 4\), expected \(4, 3\)"),
        ({"a": (4, 5, 4)}, r"a has shape \(4, 5, 4\)"),
        ({"a": (4, 6, 3)}, r"a has shape \(4, 6, 3\)"),
        ({"a": (2, 4, 5, 3)}, r"a has shape \(2, 4, 5, 3\), expected one that broadcasts"),
        ({"x": (4, 5, 1)}, r"a has shape \(4, 5, 3\)"),
        ({"lengths": [1, 2]}, r"lengths has shape \(2,\), expected \(4,\)"),
        ({"lengths": [1, 2, 3, 9]}, "lengths"),
        ({"lengths": [1, 2, 3, -1]}, "lengths"),
        ({"reset": [[0] * 5]}, r"reset"),
        ({"axis": 3}, "axis is 3, expected -3..2"),
        ({"padding_side": "top"}, "padding_side is 'top', expected 'left' or 'right'"),
        ({"cu_seqlens": [0, 5]}, "the batch size is 4, expected 1 with cu_seqlens"),
        (
            {"cu_seqlens": [0, 5], "lengths": [1, 1, 1, 1]},
            "cu_seqlens and lengths were both given, expected at most one",
        ),
    ],
)
def test_s08_wrong_arguments(change, message):
    args = {"a": (4, 5, 3), "x": (4, 5, 3), "h0": (4, 3)}
    args = {k: torch.rand(change.pop(k, shape)) for k, shape in args.items()}
    with pytest.raises(ValueError, match=message):
        scan(**args, **change)


def test_s08_wrong_types():
    x = torch.rand(4, 5, 3)
    with pytest.raises(TypeError, match="scan: lengths has dtype float32, expected int32 or int64"):
        scan(x, x, lengths=[1.0, 2.0, 3.0, 4.0])
    for name, args in [
        ("a", (x.numpy(), x)),
        ("x", (x, x.numpy())),
        ("x", (0.5, None)),
        ("h0", (x, x, x[:, 0].numpy())),
    ]:
        with pytest.raises(TypeError, match=f"scan: {name} is a .*, expected a torch.Tensor"):
            scan(*args)
    with pytest.raises(ValueError, match=r"scan: x has shape \(\), expected at least a time axis"):
        scan(0.5, torch.tensor(1.0))
    for offsets in ([0, 3, 2, 5], [0, 3], [1, 5], []):
        with pytest.raises(ValueError, match="cu_seqlens"):
            scan(x[:1], x[:1], cu_seqlens=offsets)


@pytest.mark.parametrize("reverse", [np.True_, 1])
def test_flags_may_be_of_any_kind(reverse):
    x = torch.rand(4, 5, 3)
    assert torch.equal(scan(x, x, reverse=reverse), scan(x, x, reverse=True))


@pytest.mark.parametrize("pieces", [1, 2, 50])
def test_w01_state_carried_across_pieces(pieces):
    T = 1000
    a, x = leaf(2, T, 3, unit=True), leaf(2, T, 3)
    cuts = sorted(torch.randperm(T - 1)[: pieces - 1].add(1).tolist())
    bounds = list(zip([0, *cuts], [*cuts, T], strict=True))

    def run(cut):
        state, out = None, []
        for i, j in bounds:
            state = state.detach() if cut and state is not None else state
            h, state = both(a[:, i:j], x[:, i:j], state)
            out.append(h)
        return torch.cat(out, 1)

    whole = scan(a, x)
    torch.testing.assert_close(run(False), whole)
    assert_gradients_match(gradients([run(False)], (a, x)), gradients([whole], (a, x)))
    (dx,) = torch.autograd.grad(run(True)[:, -1].sum(), x)
    assert not dx[:, : bounds[-1][0]].any()
    assert dx[:, -1].all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_w02_packed_sequences_with_states(dtype):
    bounds = [0, 3, 4, 4, 10]
    a, x, h0 = leaf(1, 10, 3, unit=True), leaf(1, 10, 3), leaf(4, 3)
    for offsets in (bounds, np.array(bounds, dtype), torch.from_numpy(np.array(bounds, dtype))):
        h, final = both(a, x, h0, cu_seqlens=offsets)
        for n, (i, j) in enumerate(itertools.pairwise(bounds)):
            alone, last = both(a[:, i:j], x[:, i:j], h0[n : n + 1])
            torch.testing.assert_close(h[:, i:j], alone, rtol=0, atol=0)
            torch.testing.assert_close(final[n], last[0], rtol=0, atol=0)
    (dx,) = torch.autograd.grad(h[:, 4:].sum(), x)
    assert not dx[:, :4].any()


@pytest.mark.parametrize("reverse", [False, True])
def test_w03_resets(reverse):
    a, x, h0 = leaf(2, 6, 3, unit=True), leaf(2, 6, 3), leaf(2, 3)
    flags = torch.tensor([[1, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1]])
    want = scan_loop(a, x, h0, reset=flags, reverse=reverse)
    for reset in (flags.bool(), flags.to(torch.uint8), flags.float(), flags.bool().numpy()):
        ours = both(a, x, h0, reset=reset, reverse=reverse)
        torch.testing.assert_close(ours, want, **TOLERANCE)
    args = (a, x, h0)
    assert_gradients_match(gradients(ours, args), gradients(want, args), **TOLERANCE)
    everywhere = scan(a, x, h0, reset=torch.ones(2, 6, dtype=torch.bool), reverse=reverse)
    torch.testing.assert_close(everywhere, x, rtol=0, atol=0)
    with pytest.raises(TypeError, match="scan: reset has dtype int64, expected bool or uint8"):
        scan(a, x, reset=flags)


def test_w05_steps_equal_the_scan():
    for dtype, atol in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        a, x = torch.rand(2, 200, 3, dtype=dtype), torch.randn(2, 200, 3, dtype=dtype)
        whole = scan(a, x)
        h, state = both(a[:, :100], x[:, :100])
        out = [h]
        for t in range(100, 200):
            h, state = both(a[:, t : t + 1], x[:, t : t + 1], state)
            out.append(h)
        torch.testing.assert_close(torch.cat(out, 1), whole, rtol=0, atol=atol)
