"""The recurrences as differentiable functions of tensors.

Both take part in autograd to any order, forward mode, torch.func transforms, torch.compile (with
``fullgraph=True`` and a dynamic number of steps), torch.export, checkpointing and autocast, on any
layout without a copy, and both save no more for backward than they say.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from scanrnn._array.values import check_lengths, check_offsets

from . import _ops
from ._ops import ACCUMULATION, OptTensor, check_dtype, check_shape, name_of

__all__ = ["scan", "sru"]

Activation: TypeAlias = Literal["identity", "tanh", "relu"]
PaddingSide: TypeAlias = Literal["right", "left"]
#: cu_seqlens, lengths, reset, reverse, left_padded
_Sequences: TypeAlias = tuple[OptTensor, OptTensor, OptTensor, bool, bool]

_ACTIVATIONS = {name: code for code, name in enumerate(_ops.ACTIVATIONS)}


@overload
def scan(
    a: Tensor | complex,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[False] = False,
) -> Tensor: ...
@overload
def scan(
    a: Tensor | complex,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def scan(
    a: Tensor | complex,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
def scan(
    a: Any,
    x: Any,
    h0: Tensor | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Diagonal linear recurrence h_t = a_t * h_{t-1} + x_t over one axis, in parallel over time.

    See `scanrnn.scan` for what all array libraries have in common. Gradients exist for a, x and h0
    from h and the final state, in every order and mode; complex ones follow PyTorch's convention
    (the conjugate Wirtinger derivative). Only a, h and h0 are saved for backward.

    Dtypes: a and x share one. Under autocast, different ones are cast to the wider of the two
    (float32 if one is float16 and the other bfloat16) as `torch.cat` does: rounding a gate such as
    0.999 to 16 bits would make it 1, so it is never cast down. Gradients have each input's dtype.

    Args:
        a: gates, in any shape that broadcasts to x by NumPy's rules, or a Python number. A size of
            1 is never expanded in memory, and its gradient is summed inside the kernel.
        x: inputs, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default.
            (T, D) is one sequence, and (T,) one sequence of one channel. float16, bfloat16,
            float32, float64, complex64 or complex128, with any strides.
        h0: states before the first step, x's shape without the time axis, in x's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        axis: the time axis of x.
        reverse: run from the end, h_t = a_t * h_{t+1} + x_t.
        cu_seqlens: (N + 1,) int32 or int64, packed sequences: sequence n is the steps
            cu_seqlens[n]:cu_seqlens[n + 1] of x, which is (1, T, D) or (T, D). It starts at 0, does
            not decrease and ends at T.
        lengths: int32 or int64 in x's batch shape, the valid steps of each sequence, 0 to T. Steps
            beyond are not read; h and all gradients are 0 there.
        reset: bool, uint8 or 0/1 floats in x's batch shape plus (T,); where set, the state that
            enters this step (h0 too) is dropped: h_t = x_t. On CUDA, cu_seqlens, lengths and reset
            belong on x's device. From the CPU, or as lists, they are checked and copied there, not
            so while a CUDA graph is captured; on the device their values are not checked.
        padding_side: "left" if the valid steps of `lengths` are the last ones, not the first.
        return_final: return the final states too.

    Returns:
        h, with x's shape, dtype and layout in memory; with return_final (h, final), where final is
        the state after the last valid step of each sequence, in h0's shape and the accumulation
        dtype: float32 for 16-bit floats and x's dtype for all others.

    Raises:
        ValueError: a shape, length, offset or device is wrong.
        TypeError: a dtype is wrong, or the dtypes of a and x differ outside of autocast.
        RuntimeError: CUDA tensors, and this build has no CUDA backend or no kernel for the device.
    """
    fn = "scan"
    if not isinstance(a, Tensor):
        a = _number(fn, a, x)
    if not isinstance(x, Tensor) or a.dtype != x.dtype:
        x, a = _one_dtype(fn, x=x, a=a)
    if h0 is not None:
        h0 = state_dtype(fn, "h0", h0, x)
    plain = cu_seqlens is lengths is reset is None and padding_side == "right"
    if plain and axis == -2 and x.ndim == a.ndim == 3:
        # Most calls, and the operator's own layout.
        result = _ops.scan_directly(a, x, reverse, return_final) if h0 is None else None
        h, final = result or _ops.scan(a, x, h0, None, None, None, reverse, False)
        return (h, final) if return_final else h

    layout = _Layout(fn, "x", x, axis)
    sequences = layout.sequences(reverse, cu_seqlens, lengths, reset, padding_side)
    h, final = _ops.scan(
        layout.canonical(_broadcastable(fn, a, x)),
        layout.canonical(x),
        layout.canonical_state("h0", h0),
        *sequences,
    )
    h = layout.restore(h)
    return (h, layout.restore_state(final)) if return_final else h


@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[False] = False,
) -> Tensor: ...
@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Simple recurrent unit, without the v * c_{t-1} terms: its recurrence is linear in c.

        f'_t = sigmoid(f_t + bias_f),  r'_t = sigmoid(r_t + bias_r)
        c_t = f'_t * c_{t-1} + (1 - f'_t) * u_t
        h_t = r'_t * g(c_t) + (1 - r'_t) * skip_t

    Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", 2018, with v = 0.
    Gates, recurrence and output are one kernel, forward and backward. Beside the inputs, one state
    in 32 steps is saved for backward, and nothing where no gradient is asked for. Gradients exist
    in every order and mode; those above the first, and those of torch.func.vmap, are composed of
    PyTorch operators around `scan` and keep the gates.

    Args:
        u: candidates W x, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. float16, bfloat16, float32 or float64, with any strides. More than one batch
            axis is merged: a view where the strides allow it, else a copy.
        f: forget gates before bias and sigmoid, u's shape.
        r: reset (highway) gates before bias and sigmoid, u's shape.
        skip: highway input, u's shape; None means zeros. u, f, r and skip share a dtype, or are
            cast to the widest one under autocast.
        bias_f: (D,) in u's dtype or its accumulation dtype; None means zeros.
        bias_r: likewise.
        c0: states before the first step, u's shape without the time axis, in u's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh" or "relu".
        axis: the time axis of u.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scan`.
        lengths: valid steps of each sequence, as in `scan`; h is 0 elsewhere.
        reset: as in `scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scan`.
        return_final: return the final states too.

    Returns:
        h, with u's shape, dtype and layout in memory; with return_final (h, c_T), where c_T has
        c0's shape and the accumulation dtype, float32 for 16-bit floats.

    Raises:
        ValueError: a shape, length, offset, option or device is wrong.
        TypeError: a dtype is wrong.
    """
    fn = "sru"
    full = (
        _one_dtype(fn, u=u, f=f, r=r) if skip is None else _one_dtype(fn, u=u, f=f, r=r, skip=skip)
    )
    u = full[0]
    layout = _Layout(fn, "u", u, axis)
    for name, t in zip(("f", "r", "skip"), full[1:], strict=False):
        check_shape(fn, name, t, u.shape)
    *sequences, reverse, left_padded = layout.sequences(
        reverse, cu_seqlens, lengths, reset, padding_side
    )
    c0 = layout.canonical_state("c0", state_dtype(fn, "c0", c0, u))
    full = [layout.canonical(t) for t in full]
    batch = full[0].shape[:-2]
    if len(batch) > 1:
        full = [t.flatten(0, -3) for t in full]
        c0 = None if c0 is None else c0.flatten(0, -2)
        sequences = [None if t is None else t.flatten(0, len(batch) - 1) for t in sequences]
    h, final = _ops.sru(
        *full,
        *(None,) * (4 - len(full)),
        state_dtype(fn, "bias_f", bias_f, u),
        state_dtype(fn, "bias_r", bias_r, u),
        None if c0 is None else c0.unsqueeze(0),
        *sequences,
        reverse,
        left_padded,
        activation_code(fn, activation),
        1,
    )
    if len(batch) > 1:
        h, final = h.unflatten(0, batch), final.unflatten(1, batch)
    h = layout.restore(h)
    return (h, layout.restore_state(final.squeeze(0))) if return_final else h


def activation_code(fn: str, activation: str) -> int:
    """The operator's code for an activation's name."""
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{fn}: activation is {activation!r}, expected one of {[*_ACTIVATIONS]}")
    return _ACTIVATIONS[activation]


def _require_tensor(fn: str, name: str, t: object) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{fn}: {name} is a {type(t).__name__}, expected a torch.Tensor")


def _number(fn: str, value: Any, x: Tensor) -> Tensor:
    """The gates for a Python number."""
    _require_tensor(fn, "x", x)
    if not isinstance(value, (int, float, complex)):
        _require_tensor(fn, "a", value)
    elif isinstance(value, complex) and not x.is_complex():
        raise TypeError(f"{fn}: a is complex, expected a real number for dtype {name_of(x.dtype)}")
    return x.new_full((1,) * x.ndim, value)


def _broadcastable(fn: str, a: Tensor, x: Tensor) -> Tensor:
    """View of a with all axes of x."""
    pairs = zip(reversed(a.shape), reversed(x.shape), strict=False)
    if a.ndim > x.ndim or any(m not in (n, 1) for m, n in pairs):
        raise ValueError(
            f"{fn}: a has shape {tuple(a.shape)}, expected one that broadcasts to {tuple(x.shape)}"
        )
    return a[(None,) * (x.ndim - a.ndim)]


# ---- Dtypes --------------------------------------------------------------------------------------


def autocast_applies(t: Tensor) -> bool:
    """Whether autocast may cast a tensor now: as PyTorch does, float64 never."""
    kind = t.device.type
    available = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    return available and t.dtype in (torch.float16, torch.bfloat16, torch.float32)


def _one_dtype(fn: str, **tensors: Tensor) -> list[Tensor]:
    """The tensors in the first one's dtype: they have it, or are cast to the widest by autocast."""
    (first, reference), *_ = tensors.items()
    for name, t in tensors.items():
        _require_tensor(fn, name, t)
    dtype = reference.dtype
    for name, t in tensors.items():
        if t.dtype != dtype:
            if not (autocast_applies(reference) and autocast_applies(t)):
                raise TypeError(
                    f"{fn}: {name} has dtype {name_of(t.dtype)}, expected {name_of(dtype)} "
                    f"(the dtype of {first})"
                )
            dtype = torch.promote_types(dtype, t.dtype)
    return [t.to(dtype) for t in tensors.values()]


def state_dtype(fn: str, name: str, t: OptTensor, x: Tensor) -> OptTensor:
    """A state or bias in x's dtype or its accumulation dtype, cast to that by autocast."""
    if t is None or t.dtype == x.dtype or x.dtype not in ACCUMULATION:
        return t
    _require_tensor(fn, name, t)
    wide = ACCUMULATION[x.dtype]
    if t.dtype != wide and autocast_applies(t) and autocast_applies(x):
        return t.to(wide)
    check_dtype(fn, name, t, (x.dtype, wide))
    return t


# ---- Shapes --------------------------------------------------------------------------------------


class _Layout:
    """Where batch, time and channels are in x, and the way to the operators' (*batch, T, D)."""

    def __init__(self, fn: str, name: str, x: Tensor, axis: int) -> None:
        n = x.ndim
        if n == 0:
            raise ValueError(f"{fn}: {name} has shape (), expected at least one axis")
        if not (-n <= axis < n) and (n, axis) != (1, -2):
            raise ValueError(f"{fn}: axis is {axis}, expected {-n} to {n - 1}")
        self.fn = fn
        self.x = x
        self.axis = axis % n
        self.packed = False

    def canonical(self, t: Tensor) -> Tensor:
        """View of t, which has x's axes, as (*batch, T, D)."""
        if t.ndim == 1:
            return t[None, :, None]
        t = t.movedim(self.axis, -2)
        return t.unsqueeze(0) if t.ndim == 2 else t

    def restore(self, t: Tensor) -> Tensor:
        """View of (*batch, T, D) with x's axes."""
        if self.x.ndim == 1:
            return t[0, :, 0]
        if self.x.ndim == 2:
            t = t.squeeze(0)
        return t.movedim(-2, self.axis)

    def sequences(
        self, reverse: bool, cu_seqlens: Any, lengths: Any, reset: Any, padding_side: str
    ) -> _Sequences:
        """The operators' arguments for what the caller said about sequences."""
        if padding_side not in ("right", "left"):
            raise ValueError(
                f"{self.fn}: padding_side is {padding_side!r}, expected 'right' or 'left'"
            )
        if cu_seqlens is not None and lengths is not None:
            raise ValueError(f"{self.fn}: cu_seqlens and lengths are exclusive")
        shape = [n for i, n in enumerate(self.x.shape) if i != self.axis][:-1]
        time = self.x.shape[self.axis]
        cu_seqlens = index_tensor(self.fn, "cu_seqlens", cu_seqlens, self.x, time)
        lengths = index_tensor(self.fn, "lengths", lengths, self.x, time)
        reset = flag_tensor(self.fn, "reset", reset, self.x)
        check_shape(self.fn, "lengths", lengths, shape)
        check_shape(self.fn, "reset", reset, (*shape, time))
        self.packed = cu_seqlens is not None
        if not shape:
            lengths = None if lengths is None else lengths.unsqueeze(0)
            reset = None if reset is None else reset.unsqueeze(0)
        return cu_seqlens, lengths, reset, bool(reverse), padding_side == "left"

    def canonical_state(self, name: str, t: OptTensor) -> OptTensor:
        """View of an initial state as the operators' (*batch, D) or (N, D)."""
        if t is None:
            return None
        if not self.packed:
            expected = [n for i, n in enumerate(self.x.shape) if i != self.axis]
            check_shape(self.fn, name, t, expected)
        if self.x.ndim == 1:
            t = t.unsqueeze(-1)
        return t if self.packed or self.x.ndim > 2 else t.unsqueeze(0)

    def restore_state(self, t: Tensor) -> Tensor:
        """View of a final state without the axes that x doesn't have."""
        if self.x.ndim == 1:
            t = t.squeeze(-1)
        return t if self.packed or self.x.ndim > 2 else t.squeeze(0)


def index_tensor(fn: str, name: str, value: Any, x: Tensor, time: int) -> OptTensor:
    """Offsets or lengths, of any library or a sequence of numbers, as a tensor on x's device.

    Args:
        fn: the public function, for error texts.
        name: "cu_seqlens" or "lengths".
        value: what the caller gave; None stays None.
        x: the main tensor.
        time: the number of steps of x.

    Raises:
        TypeError: the dtype is not int32 or int64.
        ValueError: a value is wrong, where it can be known without waiting for a device (and the
            core won't see to it), or it is on another device than x and not on the CPU.
    """
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and not value:
        value = torch.empty(0, dtype=torch.int64)  # an empty list has no dtype of its own
    index = _as_tensor(value, x)
    check_dtype(fn, name, index, (torch.int32, torch.int64))
    if x.is_cuda and index.device.type == "cpu" and index.numel() and not _transformed():
        if name == "lengths":
            check_lengths(fn, index.numpy(), time)
        elif index.ndim == 1:
            check_offsets(fn, index.numpy(), time)
    return to_device_of(fn, name, index, x)


def flag_tensor(fn: str, name: str, value: Any, x: Tensor) -> OptTensor:
    """Flags, of any library or a sequence, as a bool or uint8 tensor on x's device."""
    if value is None:
        return None
    flags = _as_tensor(value, x)
    if flags.is_floating_point() or isinstance(value, (list, tuple)):
        flags = flags.bool()
    check_dtype(fn, name, flags, (torch.bool, torch.uint8))
    return to_device_of(fn, name, flags, x)


def _as_tensor(value: Any, x: Tensor) -> Tensor:
    """A tensor on the device where the caller's values are: the CPU for a list."""
    if isinstance(value, Tensor):
        return value
    on_gpu = hasattr(value, "__cuda_array_interface__")
    return torch.as_tensor(value, device=x.device if on_gpu else "cpu")


def _transformed() -> bool:
    """Whether tensors may have no values to look at: under torch.compile and torch.func."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def to_device_of(fn: str, name: str, t: Tensor, x: Tensor) -> Tensor:
    """A small tensor on x's device: the CPU's go to a GPU without waiting for it.

    Raises:
        ValueError: t is on another device, and not on the CPU.
        RuntimeError: t is on the CPU, and a CUDA graph is captured that would copy it again at each
            replay, from memory that holds something else by then.
    """
    if t.device == x.device:
        return t
    if t.device.type != "cpu":
        raise ValueError(
            f"{fn}: {name} is on device {t.device}, expected {x.device} (the device of the input) "
            "or the CPU"
        )
    if not x.is_cuda or _transformed():
        return t.to(x.device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{fn}: {name} is on the CPU, expected a tensor on {x.device} during the capture of a "
            "CUDA graph"
        )
    # From pinned memory, which PyTorch keeps until the copy is done. Otherwise it would wait.
    return t.pin_memory().to(x.device, non_blocking=True)
