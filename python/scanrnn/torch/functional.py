"""The diagonal linear recurrence as a differentiable function of tensors.

It takes part in autograd to any order, forward mode, torch.func transforms, torch.compile (with
``fullgraph=True`` and a dynamic number of steps), torch.export, checkpointing and autocast, on any
layout without a copy, and saves no more for backward than it says.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from scanrnn._array.layout import PaddingSide

from . import _ops
from ._arguments import Layout, one_dtype, require_tensor, state_dtype
from ._ops import name_of

__all__ = ["scan"]


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
    alike = isinstance(x, Tensor) and a.dtype == x.dtype
    if not (alike and a.layout == x.layout == torch.strided):
        x, a = one_dtype(fn, x=x, a=a)
    if h0 is not None:
        h0 = state_dtype(fn, "h0", h0, x)
    plain = cu_seqlens is lengths is reset is None and padding_side == "right"
    if plain and axis == -2 and x.ndim == a.ndim == 3:
        # Most calls, and the operator's own layout.
        h, final = _ops.plain_scan(a, x, h0, bool(reverse), return_final)
        return (h, final) if return_final else h

    layout = Layout(fn, "x", x, axis)
    sequences = layout.sequences(reverse, cu_seqlens, lengths, reset, padding_side)
    h, final = _ops.scan(
        layout.canonical(_broadcastable(fn, a, x)),
        layout.canonical(x),
        layout.canonical_state("h0", h0),
        *sequences,
    )
    h = layout.restore(h)
    return (h, layout.restore_state(final)) if return_final else h


def _number(fn: str, value: Any, x: Tensor) -> Tensor:
    """The gates for a Python number."""
    require_tensor(fn, "x", x)
    if not isinstance(value, (int, float, complex)):
        require_tensor(fn, "a", value)
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
