"""The registered operators scanrnn::scan and scanrnn::scan_backward, and what all operators share.

Each operator has a kernel, which describes its tensors to `scanrnn._core`, a fake kernel, which
only makes the outputs, an autograd kernel and a batching rule. The functions `scan` and
`scan_backward` at the end of this file (and `cell` and `cell_backward` in `_cells`) are how the
rest of the package calls them; they take the cheapest way that the situation allows:

- traced by torch.compile or torch.export: the operator, which becomes one node of the graph;
- under torch.func transforms and forward-mode AD: an `autograd.Function` with all rules (an
  operator's registration has none for forward mode);
- under other modes, a profiler, and for unusual tensors: the same function without those rules, or
  the operator below autograd where no gradient is asked for;
- otherwise (`situation`): the same without PyTorch's dispatcher, the kernel as it is or in a
  function that records it. That takes half of the time of a small call, and the core's own checks
  are all that is made: where it complains, the operator's checks say why in its own words.

Derivatives of a scan are scans. With p_t the state that enters step t (`previous_state`):

    tangent                dh = scan(a, dx + da p, dh0)
    adjoint                g = the scan of the output's gradient from the other end;
                           the gradients are g for x and g conj(p) for a
    adjoint of the adjoint w = scan(a, ddx + dda p, ddh0), for the output's gradient; and more

so the rules of `scan` and `scan_backward` call these two and nothing else heavy.

Tensor arguments (B batch, T time, D channels; N sequences: B of them, or packed by cu_seqlens):

    x, h, dh         (*batch, T, D), at least one batch axis
    a                as x, or 1 in place of any size; dtype of x
    h0, final        (*batch, D), packed (*batch[:-1], N, D); final and its gradient have the
                     accumulation dtype, h0 that or the dtype of x
    cu_seqlens       (N + 1,) int32 or int64; batch[-1] is 1
    lengths          batch, int32 or int64
    reset            (*batch, T) bool or uint8
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from scanrnn import _core
from scanrnn._array.options import listed

OptTensor: TypeAlias = Tensor | None
Tensors: TypeAlias = tuple[Tensor, ...]
#: A descriptor of the core or None; Any, since only the core knows which may be None.
Descriptor: TypeAlias = Any

#: Accumulation dtype: states are carried, and final states returned, in it.
ACCUMULATION = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
}


class _Codes(dict[torch.dtype, int]):
    """The core's dtype codes."""

    def __missing__(self, dtype: torch.dtype) -> int:
        expected = ", ".join(map(name_of, self))
        raise TypeError(f"scanrnn: a tensor has dtype {name_of(dtype)}, expected one of {expected}")


_CODES = _Codes((dtype, code) for code, dtype in enumerate(ACCUMULATION))
_CODES |= {torch.int32: 6, torch.int64: 7, torch.uint8: 8, torch.bool: 8}
REAL = [dtype for dtype in ACCUMULATION if not dtype.is_complex]
_INDEX = [torch.int32, torch.int64]
LEAF_STEPS = _core.build_info()["leaf_steps"]


# ---- Checks --------------------------------------------------------------------------------------


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name as error texts write it."""
    return str(dtype).removeprefix("torch.")


def check_shape(fn: str, name: str, t: OptTensor, expected: Sequence[int]) -> None:
    """Raise ValueError unless t is None or has the expected shape."""
    if t is not None and t.shape != (expected := tuple(expected)):
        raise ValueError(f"{fn}: {name} has shape {tuple(t.shape)}, expected {expected}")


def check_dtype(fn: str, name: str, t: OptTensor, allowed: Collection[torch.dtype]) -> None:
    """Raise TypeError unless t is None or has one of the allowed dtypes."""
    if t is not None and t.dtype not in allowed:
        expected = listed(map(name_of, dict.fromkeys(allowed)))
        raise TypeError(f"{fn}: {name} has dtype {name_of(t.dtype)}, expected {expected}")


def check_devices(fn: str, **tensors: OptTensor) -> None:
    """Raise ValueError unless all tensors that are not None are on the first one's device."""
    (first, reference), *others = tensors.items()
    assert reference is not None
    device = reference.device
    for name, t in others:
        if t is not None and t.device != device:
            raise ValueError(
                f"{fn}: {name} is on device {t.device}, expected {device} (the device of {first})"
            )


def check_sequences(
    fn: str, x: Tensor, cu_seqlens: OptTensor, lengths: OptTensor, reset: OptTensor
) -> int:
    """Check the index tensors that go with x, (*batch, T, D), and return N."""
    *batch, T, _ = x.shape
    if cu_seqlens is lengths is reset is None:
        return batch[-1]
    check_dtype(fn, "lengths", lengths, _INDEX)
    check_shape(fn, "lengths", lengths, batch)
    check_dtype(fn, "reset", reset, (torch.bool, torch.uint8))
    check_shape(fn, "reset", reset, (*batch, T))
    if cu_seqlens is None:
        return batch[-1]
    check_dtype(fn, "cu_seqlens", cu_seqlens, _INDEX)
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1:
        raise ValueError(f"{fn}: cu_seqlens has shape {tuple(cu_seqlens.shape)}, expected (N + 1,)")
    if lengths is not None:
        raise ValueError(f"{fn}: cu_seqlens and lengths were both given, expected at most one")
    if batch[-1] != 1:
        raise ValueError(f"{fn}: the batch size is {batch[-1]}, expected 1 with cu_seqlens")
    return cu_seqlens.shape[0] - 1


def _check_scan(
    fn: str,
    name: str,
    x: Tensor,
    a: Tensor,
    h0: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    reset: OptTensor,
) -> int:
    """Check the inputs of scan, or of scan_backward where h, called name, replaces x; return N."""
    check_dtype(fn, name, x, ACCUMULATION)
    check_dtype(fn, "a", a, (x.dtype,))
    check_dtype(fn, "h0", h0, (x.dtype, ACCUMULATION[x.dtype]))
    if x.ndim < 3:
        raise ValueError(f"{fn}: {name} has shape {tuple(x.shape)}, expected (B, T, D)")
    if a.ndim != x.ndim or any(m not in (n, 1) for m, n in zip(a.shape, x.shape, strict=True)):
        raise ValueError(
            f"{fn}: a has shape {tuple(a.shape)}, expected {tuple(x.shape)} or 1 for any size"
        )
    N = check_sequences(fn, x, cu_seqlens, lengths, reset)
    check_shape(fn, "h0", h0, (*x.shape[:-3], N, x.shape[-1]))
    check_devices(fn, **{name: x}, a=a, h0=h0, cu_seqlens=cu_seqlens, lengths=lengths, reset=reset)
    return N


# ---- Kernels -------------------------------------------------------------------------------------


def _exchanges() -> bool:
    """Whether the core can ask tensors itself, also those with gradients: since PyTorch 2.10."""
    nothing: Descriptor = torch.nn.Parameter(torch.empty(0, 0, 0, device="cpu"))
    try:
        _core.scan_forward(nothing, nothing, None, nothing, None)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


_EXCHANGES = _exchanges()


def _describe(t: OptTensor) -> Descriptor:
    if t is None:
        return None
    return t.data_ptr(), _CODES[t.dtype], t.shape, t.stride(), t.get_device()


def _describe_block(t: OptTensor, i: int, n: int) -> Descriptor:
    if t is None:
        return None
    strides, (width, rest) = t.stride(), divmod(t.shape[-1], n)
    if rest:
        raise ValueError(f"an array has {t.shape[-1]} channels, expected a multiple of {n}")
    start = t.data_ptr() + i * width * strides[-1] * t.element_size()
    return start, _CODES[t.dtype], (*t.shape[:-1], width), strides, t.get_device()


def _describe_row(t: OptTensor, *indices: int) -> Descriptor:
    if t is None:
        return None
    strides, n = t.stride(), len(indices)
    start = sum(i * stride for i, stride in zip(indices, strides, strict=False))
    pointer = t.data_ptr() + start * t.element_size()
    return pointer, _CODES[t.dtype], t.shape[n:], strides[n:], t.get_device()


def describe(t: OptTensor) -> Descriptor:
    """What tells the core of t: itself, or (pointer, dtype code, shape, strides, device)."""
    return t if _EXCHANGES else _describe(t)


def describe_block(t: OptTensor, i: int, n: int) -> Descriptor:
    """Describe the i-th of n equal parts of t's last axis."""
    if not _EXCHANGES:
        return _describe_block(t, i, n)
    return t if t is None or n == 1 else (t, None, i, n)


def describe_row(t: OptTensor, *indices: int) -> Descriptor:
    """Describe t[i], or t[i, j]."""
    if not _EXCHANGES:
        return _describe_row(t, *indices)
    return None if t is None else (t, *indices)


def stream_of(t: Tensor) -> int:
    """The stream that PyTorch runs work on t on now; 0 on the CPU."""
    if not t.is_cuda:
        return 0
    # What torch.cuda.current_stream(t.device).cuda_stream is, at a tenth of the time.
    stream: int = torch._C._cuda_getCurrentRawStream(t.get_device())
    return stream


@functools.cache
def _cuda(ordinal: int) -> torch.device:
    return torch.device("cuda", ordinal)


def allocate(size: int, ordinal: int) -> tuple[int, Tensor]:
    """Lend the core device memory: for work on the current stream, which `stream_of` gives it."""
    memory = torch.empty(size, dtype=torch.uint8, device=_cuda(ordinal))
    return memory.data_ptr(), memory


def tail(
    sequences: Sequence[OptTensor], left_padded: bool, like: Tensor
) -> tuple[Descriptor, Descriptor, Descriptor, bool, int, Any]:
    """What calls of the core end with, behind `reverse`."""
    packs, valid, resets = map(describe, sequences)
    return packs, valid, resets, left_padded, stream_of(like), allocate


def _batches(
    axes: int, packed: bool, tensors: Sequence[OptTensor]
) -> Iterable[Sequence[OptTensor]]:
    """Views, with one batch axis each, of tensors that begin with several.

    The axes are merged if the strides of all tensors allow that; if not, the outermost is walked.
    """
    if axes == 1:
        return (tensors,)
    if not packed:
        with contextlib.suppress(RuntimeError):  # a view with these strides does not exist
            merged = [
                None if t is None else t.view(math.prod(t.shape[:axes]), *t.shape[axes:])
                for t in tensors
            ]
            return (merged,)
    rows = next(t.shape[0] for t in tensors if t is not None)
    return (
        views
        for i in range(rows)
        for views in _batches(axes - 1, packed, [None if t is None else t[i] for t in tensors])
    )


def _each_batch(
    function: Callable[..., Any],
    tensors: Sequence[OptTensor],
    sequences: Sequence[OptTensor],
    reverse: bool,
    *options: bool,
) -> None:
    """Call the core for tensors that begin with several batch axes, as the first one does."""
    like, (cu_seqlens, lengths, reset) = tensors[0], sequences
    assert like is not None
    packs, stream = describe(cu_seqlens), stream_of(like)
    for views in _batches(like.ndim - 2, packs is not None, (*tensors, lengths, reset)):
        *arrays, valid, resets = map(describe, views)
        function(*arrays, reverse, packs, valid, resets, *options, stream, allocate)


def _expand_batch(a: Tensor, x: Tensor) -> Tensor:
    """View of a with all batch axes of x, if there is more than one."""
    axes = x.ndim - 2
    return a if axes == 1 else a.expand(*x.shape[:axes], *a.shape[axes:])


def _scan(
    a: Tensor,
    x: Tensor,
    h0: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    reset: OptTensor,
    reverse: bool,
    left_padded: bool,
    return_final: bool = True,
) -> tuple[Tensor, Any]:
    if cu_seqlens is lengths is reset is None and x.ndim == 3 and x.dtype in ACCUMULATION:
        try:
            return _least_scan(a, x, h0, reverse, return_final)
        except (TypeError, ValueError):  # from the core, which has checked all: say it our way
            _check_scan("scan", "x", x, a, h0, None, None, None)
            raise
    h, final = _fake_scan(a, x, h0, cu_seqlens, lengths, reset)
    tensors = _expand_batch(a, x), x, h0, h, final
    _each_batch(_core.scan_forward, tensors, (cu_seqlens, lengths, reset), reverse, left_padded)
    return h, final


def _least_scan(
    a: Tensor, x: Tensor, h0: OptTensor, reverse: bool, return_final: bool
) -> tuple[Tensor, Any]:
    """The least that a call can be: what the general way costs would show. final may be None."""
    h, final = torch.empty_like(x), None
    if return_final:
        final = x.new_empty((x.shape[0], x.shape[2]), dtype=ACCUMULATION[x.dtype])
    arrays: Any = (a, x, h0, h, final)
    if not _EXCHANGES:
        arrays = [*map(_describe, arrays)]
    options: Any = (reverse, None, None, None, False, stream_of(x), allocate)
    _core.scan_forward(*arrays, *options)
    return h, final


def _fake_scan(a: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    N = _check_scan("scan", "x", x, a, *rest[:4])
    final = x.new_empty((*x.shape[:-3], N, x.shape[-1]), dtype=ACCUMULATION[x.dtype])
    return torch.empty_like(x), final


def new_gradients(tensors: Sequence[OptTensor], wanted: Sequence[bool]) -> list[OptTensor]:
    return [
        torch.empty_like(t) if w and t is not None else None
        for t, w in zip(tensors, wanted, strict=True)
    ]


def returnable(gradients: Sequence[OptTensor], like: Tensor) -> Tensors:
    """The gradients with empty tensors in place of None, which an operator can't return."""
    return tuple(
        torch.empty(0, dtype=like.dtype, device=like.device) if g is None else g for g in gradients
    )


def _scan_backward(
    a: Tensor,
    h: Tensor,
    h0: OptTensor,
    dh: OptTensor,
    dfinal: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    reset: OptTensor,
    reverse: bool,
    left_padded: bool,
    wanted: Sequence[bool],
) -> tuple[OptTensor, ...]:
    if cu_seqlens is lengths is reset is None and h.ndim == 3 and h.dtype in ACCUMULATION:
        da = torch.empty_like(a) if wanted[0] else None
        dx = torch.empty_like(h) if wanted[1] else None
        dh0 = torch.empty_like(h0) if wanted[2] and h0 is not None else None
        arrays: Any = (a, h, h0, dh, dfinal, da, dx, dh0)
        if not _EXCHANGES:
            arrays = [*map(_describe, arrays)]
        options: Any = (reverse, None, None, None, False, True, stream_of(h), allocate)
        try:
            _core.scan_backward(*arrays, *options)
        except (TypeError, ValueError):
            _check_scan("scan_backward", "h", h, a, h0, None, None, None)
            raise
        return da, dx, dh0
    _check_scan("scan_backward", "h", h, a, h0, cu_seqlens, lengths, reset)
    a_full = _expand_batch(a, h)
    da, dx, dh0 = new_gradients((a_full, h, h0), wanted)
    tensors = a_full, h, h0, dh, dfinal, da, dx, dh0
    sequences = cu_seqlens, lengths, reset
    _each_batch(_core.scan_backward, tensors, sequences, reverse, left_padded, True)
    if da is not None and da.shape != a.shape:
        da = torch.empty_like(a).copy_(da.sum_to_size(a.shape))
    return da, dx, dh0


def _fake_scan_backward(a: Tensor, h: Tensor, h0: OptTensor, *rest: Any) -> Tensors:
    return returnable(new_gradients((a, h, h0), rest[-1]), h)


# ---- Rules ---------------------------------------------------------------------------------------


def entry_steps(
    x: Tensor, cu_seqlens: OptTensor, lengths: OptTensor, reverse: bool, left_padded: bool
) -> tuple[Tensor, OptTensor]:
    """Where sequences begin, for x (*batch, T, D).

    Returns:
        bool mask, broadcastable to x, of the steps that the initial states enter; and with
        cu_seqlens the sequence that each step belongs to, (T,).
    """
    T = x.shape[-2]
    t = torch.arange(T, device=x.device)
    if cu_seqlens is not None:
        sequence = torch.searchsorted(cu_seqlens[1:], t.to(cu_seqlens.dtype), right=True)
        # Wrong offsets on a GPU are not found out, but must not lead out of bounds.
        sequence = sequence.clamp(max=cu_seqlens.shape[0] - 2)
        first = cu_seqlens[1:] - 1 if reverse else cu_seqlens[:-1]
        return (t == first[sequence])[:, None], sequence
    first = torch.full((1,), T - 1 if reverse else 0, device=x.device)
    if lengths is not None and left_padded != reverse:
        first = T - lengths[..., None] if left_padded else lengths[..., None] - 1
    return (t == first)[..., None], None


def previous_state(
    h: Tensor,
    h0: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    reset: OptTensor,
    reverse: bool,
    left_padded: bool,
) -> Tensor:
    """The state that enters each step, from all states: h_{t-1}, h0, or 0 at a reset."""
    *batch, T, D = h.shape
    # One copy; but T - 1 steps would be a guard of a graph for any T, whose compiler does as well.
    plain = cu_seqlens is lengths is reset is None and not torch.compiler.is_compiling()
    if plain and type(T) is int and T > 0:
        first = h.new_zeros(*batch, 1, D) if h0 is None else h0.unsqueeze(-2).to(h.dtype)
        rest = h.narrow(-2, 1 if reverse else 0, T - 1)
        return torch.cat([rest, first] if reverse else [first, rest], -2)
    entry, sequence = entry_steps(h, cu_seqlens, lengths, reverse, left_padded)
    if h0 is None:
        start: Tensor = h.new_zeros(())
    else:
        start = h0.unsqueeze(-2) if sequence is None else h0[..., sequence, :].unsqueeze(-3)
    previous = torch.where(entry, start.to(h.dtype), h.roll(-1 if reverse else 1, -2))
    return previous if reset is None else previous.masked_fill(reset.bool().unsqueeze(-1), 0)


def last_state(
    x: Tensor,
    start: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    _reset: OptTensor,
    reverse: bool,
    left_padded: bool,
) -> Tensor:
    """The last valid step of each sequence, or start where it has none, for x (B, T, features)."""
    B, T, features = x.shape
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    nothing = x.new_zeros(N, features) if start is None else start.to(x.dtype)
    if T == 0 or N == 0:
        return nothing
    if cu_seqlens is not None:
        count = cu_seqlens.diff()
        at = cu_seqlens[:-1] if reverse else cu_seqlens[1:] - 1
        last = x[0].index_select(0, at.clamp(0, T - 1))
    elif lengths is not None:
        count = lengths
        at = T - lengths if left_padded else lengths - 1
        if left_padded != reverse:
            at = torch.full_like(lengths, T - 1 if left_padded else 0)
        last = x[torch.arange(B, device=x.device), at.clamp(0, T - 1)]
    else:
        return x[:, 0 if reverse else -1]
    return torch.where((count > 0).unsqueeze(-1), last, nothing)


def _previous_adjoint(
    v: Tensor,
    h0: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    reset: OptTensor,
    reverse: bool,
    left_padded: bool,
) -> tuple[Tensor, OptTensor]:
    """The gradients of `previous_state` with respect to h and h0, for an output gradient v."""
    entry, sequence = entry_steps(v, cu_seqlens, lengths, reverse, left_padded)
    if reset is not None:
        v = v.masked_fill(reset.bool().unsqueeze(-1), 0)
    dh = v.masked_fill(entry, 0).roll(1 if reverse else -1, -2)
    if h0 is None:
        return dh, None
    start = v.masked_fill(~entry, 0).to(h0.dtype)
    if sequence is None:
        return dh, start.sum(-2)
    return dh, torch.zeros_like(h0).index_add(-2, sequence, start.squeeze(-3))


def valid_steps(x: Tensor, lengths: Tensor, left_padded: bool) -> Tensor:
    """Bool mask, broadcastable to x (*batch, T, D), of the steps that are not padding."""
    T = x.shape[-2]
    t, n = torch.arange(T, device=x.device), lengths[..., None]
    return (t >= T - n if left_padded else t < n)[..., None]


def sum_of(s: OptTensor, t: OptTensor, like: Tensor) -> Tensor:
    """The sum s + t, where None means 0."""
    if s is None:
        return torch.zeros_like(like) if t is None else t
    return s if t is None else s + t


def _batched(fn: str, info: Any, in_dims: Any, args: Sequence[Any], packs: int) -> list[Any]:
    """Arguments with the axis of torch.vmap first, which is one more batch axis."""
    if in_dims[packs] is not None:
        raise NotImplementedError(
            f"{fn}: torch.vmap over cu_seqlens is not supported, expected the same for all samples"
        )
    return [
        t
        if not isinstance(t, Tensor) or i == packs
        else t.expand(info.batch_size, *t.shape)
        if dim is None
        else t.movedim(dim, 0)
        for i, (t, dim) in enumerate(zip(args, in_dims, strict=True))
    ]


def only(gradients: Sequence[OptTensor], wanted: Sequence[bool]) -> list[OptTensor]:
    """The gradients, None instead of the empty tensors."""
    return [g if w else None for g, w in zip(gradients, wanted, strict=True)]


def gradient_dims(tensors: Sequence[OptTensor], wanted: Sequence[bool]) -> tuple[int | None, ...]:
    """The batch axis of each gradient: the first, or none for an empty tensor."""
    return tuple(0 if w and t is not None else None for t, w in zip(tensors, wanted, strict=True))


class _Scan(Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, _, h0, cu_seqlens, lengths, reset, *ctx.options = inputs
        saved = (a, output[0], h0, cu_seqlens, lengths, reset)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dh: OptTensor, dfinal: OptTensor) -> tuple[OptTensor, ...]:
        if dh is None and dfinal is None:
            return (None,) * 8
        a, h, h0, *sequences = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        gradients = scan_backward(a, h, h0, dh, dfinal, *sequences, *ctx.options, wanted)
        return (*only(gradients, wanted), *(None,) * 5)

    @staticmethod
    def jvp(ctx: Any, da: OptTensor, dx: OptTensor, dh0: OptTensor, *_: None) -> Tensors:
        a, h, h0, *sequences = ctx.saved_tensors
        options = (*sequences, *ctx.options)
        product = None if da is None else da * previous_state(h, h0, *options)
        outputs: Tensors = scan(a, sum_of(dx, product, like=h), dh0, *options)
        return outputs

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensors, tuple[int, int]]:
        return scan(*_batched("scan", info, in_dims, args, 3)), (0, 0)


class _ScanBackward(Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, reverse, left_padded, wanted = inputs
        ctx.options = (reverse, left_padded)
        ctx.wanted = [w and t is not None for w, t in zip(wanted, tensors, strict=False)]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, dda: OptTensor, ddx: OptTensor, ddh0: OptTensor
    ) -> tuple[OptTensor, ...]:
        dda, ddx, ddh0 = only((dda, ddx, ddh0), ctx.wanted)
        a, h, h0, dh, dfinal, *sequences = ctx.saved_tensors
        options = (*sequences, *ctx.options)
        product = None if dda is None else dda * previous_state(h, h0, *options)
        w, w_final = scan(a, sum_of(ddx, product, like=h), ddh0, *options)
        ga, g, _ = scan_backward(a, w, ddh0, dh, dfinal, *options, (True, True, False))
        gh: OptTensor = None
        gh0: OptTensor = None
        if dda is not None:
            gh, gh0 = _previous_adjoint(dda.conj() * g, h0, *options)
        gfinal = None if dfinal is None else w_final.to(dfinal.dtype)
        return ga, gh, gh0, None if dh is None else w, gfinal, *(None,) * 6

    @staticmethod
    def jvp(
        ctx: Any,
        da: OptTensor,
        dh: OptTensor,
        dh0: OptTensor,
        ddh: OptTensor,
        ddfinal: OptTensor,
        *rest: None,
    ) -> Tensors:
        a, h, h0, gh, gfinal, *sequences = ctx.saved_tensors
        options = (*sequences, *ctx.options)
        _, g, _ = scan_backward(a, h, h0, gh, gfinal, *options, (False, True, False))
        carried0: OptTensor = None
        if da is not None:
            carried, carried0 = _previous_adjoint(da.conj() * g, h0, *options)
            ddh = sum_of(ddh, carried, like=h)
        ta, tx, th0 = scan_backward(a, h, h0, ddh, ddfinal, *options, ctx.wanted)
        if ctx.wanted[0] and (dh is not None or dh0 is not None):
            previous = previous_state(torch.zeros_like(h) if dh is None else dh, dh0, *options)
            ta = ta + (g * previous.conj()).sum_to_size(a.shape)
        if ctx.wanted[2] and carried0 is not None:
            th0 = th0 + carried0
        return ta, tx, th0

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        gradients = scan_backward(*_batched("scan_backward", info, in_dims, args, 5))
        return returnable(gradients, args[0]), gradient_dims(args[:3], args[-1])


# ---- Operators -----------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("scanrnn", "DEF")
# Outputs are laid out as inputs are, so a compiler must not choose other strides for those.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)
SEQUENCES = "Tensor? cu_seqlens, Tensor? lengths, Tensor? reset, bool reverse, bool left_padded"


def asks_for_gradients(args: Sequence[Any]) -> bool:
    if torch.is_grad_enabled():
        for t in args:
            if isinstance(t, Tensor) and t.requires_grad:
                return True
    return False


def in_forward_mode() -> bool:
    return forward_ad._current_level >= 0


def _keys(*names: str) -> int:
    """The set of dispatch keys of those names, as bits."""
    keys = (getattr(torch._C.DispatchKey, name) for name in names)
    return functools.reduce(int.__or__, (torch._C.DispatchKeySet(key).raw_repr() for key in keys))


# All but what ordinary tensors bring to the dispatcher, and what a thread adds to that anyway.
_UNUSUAL_OF_TENSORS = ~_keys(
    "CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"
)
_UNUSUAL_OF_THREADS = ~_keys("BackendSelect", "ADInplaceOrView", "AutocastCPU", "AutocastCUDA")
_Parameter = torch.nn.Parameter
# Looked up once: a lookup of each would cost as much as the call.
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_keys_of_thread = torch._C._dispatch_tls_local_include_set
_keys_of_tensor = torch._C._dispatch_keys
_has_function_mode = torch._C._is_torch_function_mode_enabled
_is_profiled = torch._C._autograd._profiler_enabled

#: How an operator may be called: through PyTorch's dispatcher, or without it, which takes half of a
#: small call; and then with a gradient to be recorded, or not.
GENERALLY, DIRECTLY, RECORDED = range(3)


def situation(*args: Any) -> int:
    """How an operator may be called with those arguments.

    Through the dispatcher where it has more to do than to find the kernel: under modes, transforms
    and tracers, while a profiler records, and for tensors that are lazily conjugated, fake, of a
    subclass or the like.
    """
    if (
        _is_compiling()
        or _keys_of_thread().raw_repr() & _UNUSUAL_OF_THREADS
        or _has_function_mode()
        or _is_profiled()
        or forward_ad._current_level >= 0
    ):
        return GENERALLY
    records, found = _is_grad_enabled(), DIRECTLY
    for t in args:
        kind = type(t)
        if kind is Tensor or kind is _Parameter:
            if _keys_of_tensor(t).raw_repr() & _UNUSUAL_OF_TENSORS:
                return GENERALLY
            if records and t.requires_grad:
                found = RECORDED
        elif t is not None and isinstance(t, Tensor):
            return GENERALLY
    return found


def _unsupported(*args: Any) -> Tensors:
    for t in args:
        if isinstance(t, Tensor) and t.layout is not torch.strided:
            raise TypeError(f"scanrnn: a tensor has layout {t.layout}, expected torch.strided")
        if isinstance(t, Tensor) and t.device.type not in ("cpu", "cuda"):
            raise ValueError(f"scanrnn: a tensor is on device {t.device}, expected cpu or cuda")
    raise NotImplementedError("scanrnn: there is no kernel for these tensors")


def define(
    name: str,
    schema: str,
    kernel: Callable[..., tuple[OptTensor, ...]],
    fake: Callable[..., Tensors],
    rules: Any,
) -> Callable[..., Tensors]:
    """Register an operator with its rules, and return the function to call it by.

    That takes the operator's arguments, and how it may be called with them (`situation`).
    """
    _LIBRARY.define(name + schema, tags=_TAGS)
    op = getattr(torch.ops.scanrnn, name).default

    below_autograd = torch._C._AutoDispatchBelowAutograd

    def run(*args: Any) -> Tensors:
        with below_autograd():
            outputs: Tensors = op(*args)
            return outputs

    def plain(suffix: str, forward: Callable[..., Any]) -> Any:
        """The rules without those of transforms and forward mode."""

        def run_and_save(ctx: Any, *args: Any) -> Any:
            outputs = forward(*args)
            rules.setup_context(ctx, args, outputs)
            return outputs

        methods = {"forward": staticmethod(run_and_save), "backward": staticmethod(rules.backward)}
        return type(rules.__name__ + suffix, (Function,), methods)

    rules.forward = staticmethod(run)
    dispatched = plain("Plain", run)
    # Function.apply looks for transforms, whose absence is known.
    record = super(Function, plain("Direct", kernel)).apply

    def call(how: int, *args: Any) -> Any:
        if how == RECORDED:
            return record(*args)
        if how == DIRECTLY:
            return kernel(*args)
        if torch.compiler.is_compiling():
            return op(*args)
        if torch._C._are_functorch_transforms_active() or in_forward_mode():
            return rules.apply(*args)
        return dispatched.apply(*args) if asks_for_gradients(args) else run(*args)

    def registered(*args: Any) -> Tensors:
        return returnable(kernel(*args), args[0])

    def autograd_kernel(*args: Any) -> Any:
        # PyTorch lets a compiler's graph and torch.func's transforms meet here without the rules.
        if torch._C._are_functorch_transforms_active() or in_forward_mode():
            raise NotImplementedError(
                f"scanrnn::{name}: torch.func.grad, vjp, jvp and forward-mode AD are not supported "
                "inside of torch.compile; they are outside of it (torch.func.vmap is inside too)"
            )
        return dispatched.apply(*args) if asks_for_gradients(args) else run(*args)

    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, registered, device)
    _LIBRARY.impl(name, _unsupported, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, autograd_kernel, "Autograd")
    torch.library.register_fake(f"scanrnn::{name}", fake, lib=_LIBRARY)
    torch.library.register_vmap(f"scanrnn::{name}", rules.vmap, lib=_LIBRARY)
    return call


_scan_as = define(
    "scan",
    f"(Tensor a, Tensor x, Tensor? h0, {SEQUENCES}) -> (Tensor, Tensor)",
    _scan,
    _fake_scan,
    _Scan,
)
_scan_backward_as = define(
    "scan_backward",
    f"(Tensor a, Tensor h, Tensor? h0, Tensor? dh, Tensor? dfinal, {SEQUENCES}, bool[3] wanted)"
    " -> (Tensor, Tensor, Tensor)",
    _scan_backward,
    _fake_scan_backward,
    _ScanBackward,
)


def scan(*args: Any) -> Any:
    """(a, x, h0, cu_seqlens, lengths, reset, reverse, left_padded) -> h, final."""
    return _scan_as(situation(*args), *args)


def scan_backward(*args: Any) -> Any:
    """(a, h, h0, dh, dfinal, *as in scan, wanted) -> da, dx, dh0.

    Those not wanted have no elements, or are None.
    """
    return _scan_backward_as(situation(*args), *args)


def plain_scan(a: Tensor, x: Tensor, h0: OptTensor, reverse: bool, return_final: bool) -> Any:
    """The scan of (B, T, D) without sequences; final may be None if it isn't asked for."""
    how = situation(a, x, h0)
    if how == DIRECTLY and not return_final:
        return _scan(a, x, h0, None, None, None, reverse, False, False)
    return _scan_as(how, a, x, h0, None, None, None, reverse, False)
