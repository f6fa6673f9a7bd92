"""What callers pass, as the operators take it: dtypes, shapes, the time axis, index arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor

from scanrnn._array.options import activation_number, check_sequence_options, time_axis
from scanrnn._array.values import check_lengths, check_offsets
from scanrnn.cells import Activation

from ._ops import (
    ACCUMULATION,
    REAL,
    OptTensor,
    check_devices,
    check_dtype,
    check_shape,
    name_of,
    valid_steps,
)

#: cu_seqlens, lengths, reset, reverse, left_padded, as the operators take them
Sequences: TypeAlias = tuple[OptTensor, OptTensor, OptTensor, bool, bool]


def activation_code(
    fn: str, activation: str, allowed: Any = Activation, name: str = "activation"
) -> int:
    """The operator's code for an activation's name, one of a Literal's."""
    return activation_number(fn, name, activation, get_args(allowed))


def require_tensor(fn: str, name: str, t: object) -> None:
    """Raise TypeError unless t is a tensor, and not a sparse one."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{fn}: {name} is a {type(t).__name__}, expected a torch.Tensor")
    if t.layout is not torch.strided:
        raise TypeError(f"{fn}: {name} has layout {t.layout}, expected torch.strided")


# ---- Dtypes --------------------------------------------------------------------------------------


def autocast_applies(t: Tensor) -> bool:
    """Whether autocast may cast a tensor now: as PyTorch does, float64 never."""
    kind = t.device.type
    available = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    return available and t.dtype in (torch.float16, torch.bfloat16, torch.float32)


def one_dtype(fn: str, **tensors: Tensor) -> list[Tensor]:
    """The tensors in the first one's dtype: they have it, or are cast to the widest by autocast."""
    (first, reference), *_ = tensors.items()
    for name, t in tensors.items():
        require_tensor(fn, name, t)
    dtype = reference.dtype
    if all(t.dtype is dtype for t in tensors.values()):
        return [*tensors.values()]
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
    if t is None:
        return t
    require_tensor(fn, name, t)
    if t.dtype == x.dtype or x.dtype not in ACCUMULATION:
        return t
    wide = ACCUMULATION[x.dtype]
    if t.dtype != wide and autocast_applies(t) and autocast_applies(x):
        return t.to(wide)
    check_dtype(fn, name, t, (x.dtype, wide))
    return t


# ---- Shapes --------------------------------------------------------------------------------------


class Layout:
    """Where batch, time and channels are in x, and the way to the operators' (*batch, T, D)."""

    def __init__(self, fn: str, name: str, x: Tensor, axis: int) -> None:
        self.fn = fn
        self.x = x
        self.axis = time_axis(fn, name, x.shape, axis)
        self.packed = False

    def canonical(self, t: Tensor) -> Tensor:
        """View of t, which has x's axes, as (*batch, T, D)."""
        if t.ndim == 1:
            return t[None, :, None]
        if self.axis != t.ndim - 2:  # each view is one more step of backward
            t = t.movedim(self.axis, -2)
        return t.unsqueeze(0) if t.ndim == 2 else t

    def restore(self, t: Tensor) -> Tensor:
        """View of (*batch, T, D) with x's axes."""
        if self.x.ndim == 1:
            return t[0, :, 0]
        if self.x.ndim == 2:
            t = t.squeeze(0)
        return t if self.axis == t.ndim - 2 else t.movedim(-2, self.axis)

    def sequences(
        self, reverse: bool, cu_seqlens: Any, lengths: Any, reset: Any, padding_side: str
    ) -> Sequences:
        """The operators' arguments for what the caller said about sequences."""
        check_sequence_options(self.fn, cu_seqlens, lengths, padding_side)
        if cu_seqlens is lengths is reset is None:
            return None, None, None, bool(reverse), padding_side == "left"
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


def one_step(fn: str, full: dict[str, Any]) -> dict[str, Any]:
    """Inputs of one step as sequences of one step: None stays None, others must have one shape.

    Raises:
        ValueError: a shape is wrong.
        TypeError: the first is no tensor.
    """
    (first, main), *_ = full.items()
    require_tensor(fn, first, main)
    shape = main.shape
    if not shape:
        raise ValueError(f"{fn}: {first} has shape (), expected at least a channel axis")
    sequences = {}
    for name, t in full.items():
        if isinstance(t, Tensor):
            if t is not main and t.shape != shape:
                check_shape(fn, name, t, shape)
            t = t.unsqueeze(-2)
        sequences[name] = t
    return sequences


class Call:
    """A cell's arguments, of any axes, as the operators take them.

    Args:
        fn: the public function, for error texts.
        full: the inputs with a time axis by the caller's names, in the core's order.
        required: for each of them, whether it must be there.
        vectors: the vectors over the channels, likewise.
        states: the initial states, likewise.
        axis: as in `scan`, likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.

    Attributes:
        full: (B, T, D) each, or None.
        vectors: (D,) each, or None.
        states: (1, N, D) each, or None.
        sequences: the operators' arguments for the sequences.
    """

    def __init__(
        self,
        fn: str,
        full: dict[str, Any],
        required: Sequence[bool],
        vectors: dict[str, Any],
        states: dict[str, OptTensor],
        axis: int,
        reverse: bool,
        cu_seqlens: Any,
        lengths: Any,
        reset: Any,
        padding_side: str,
    ) -> None:
        given = {}
        for (name, t), needed in zip(full.items(), required, strict=False):
            if needed or t is not None:
                given[name] = t
        first = next(iter(full))
        arrays = one_dtype(fn, **given)
        u = arrays[0]
        check_dtype(fn, first, u, REAL)
        for name, t in zip(given, arrays, strict=True):
            if t.shape != u.shape:
                check_shape(fn, name, t, u.shape)
        self._layout = layout = Layout(fn, first, u, axis)
        packs, valid, flags, reverse, left_padded = layout.sequences(
            reverse, cu_seqlens, lengths, reset, padding_side
        )
        initial = [
            layout.canonical_state(name, state_dtype(fn, name, t, u)) for name, t in states.items()
        ]
        arrays = [layout.canonical(t) for t in arrays]
        self._batch = batch = arrays[0].shape[:-2]
        if len(batch) > 1:
            arrays = [t.flatten(0, -3) for t in arrays]
            initial = [None if t is None else t.flatten(0, -2) for t in initial]
            packs, valid, flags = (
                None if t is None else t.flatten(0, len(batch) - 1) for t in (packs, valid, flags)
            )
        values = iter(arrays)
        self.full: list[OptTensor] = [None if t is None else next(values) for t in full.values()]
        self.vectors: list[OptTensor] = []
        for name, t in vectors.items():
            vector = state_dtype(fn, name, t, u)
            check_shape(fn, name, vector, arrays[0].shape[-1:])
            self.vectors.append(vector)
        tensors = (*self.full, *self.vectors, *initial)
        device = u.device
        for tensor in tensors:
            if tensor is not None and tensor.device != device:
                check_devices(fn, **dict(zip((*full, *vectors, *states), tensors, strict=True)))
        self.states = [None if t is None else t.unsqueeze(0) for t in initial]
        self.sequences: Sequences = (packs, valid, flags, reverse, left_padded)

    def output(self, y: Tensor) -> Tensor:
        """View of an output (B, T, D) with the inputs' axes."""
        return self._layout.restore(y.unflatten(0, self._batch) if len(self._batch) > 1 else y)

    def final(self, state: Tensor) -> Tensor:
        """View of final states (1, N, D) with the inputs' axes."""
        state = state.squeeze(0)
        if len(self._batch) > 1:
            state = state.unflatten(0, self._batch)
        return self._layout.restore_state(state)


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
    require_tensor(fn, name, index)
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
    require_tensor(fn, name, flags)
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
    with torch.cuda.device(x.device):  # whose stream is meant, whichever device is current
        captures = torch.cuda.is_current_stream_capturing()
    if captures:
        raise RuntimeError(
            f"{fn}: {name} is on the CPU, expected a tensor on {x.device} during the capture of a "
            "CUDA graph"
        )
    # From pinned memory, which PyTorch keeps until the copy is done. Otherwise it would wait.
    return t.pin_memory().to(x.device, non_blocking=True)


def without_padding(x: Tensor, lengths: Tensor, left_padded: bool) -> Tensor:
    """A copy of x, (*batch, T, D), with zeros in its padding."""
    return x.masked_fill(~valid_steps(x, lengths, left_padded), 0)
