"""The fused cells as differentiable functions of tensors.

All take part in autograd to any order, forward mode, torch.func transforms, torch.compile (with
``fullgraph=True`` and a dynamic number of steps), torch.export, checkpointing and autocast, on any
layout without a copy, and save no more for backward than they say.

The cells take the outputs of the matrix products before them (pre-activations): gates, recurrence
and output are one kernel, forward and backward, and backward recomputes the gates. Beside its
inputs a cell saves its output where that is the state (`gilr`, `hgrn`, `min_gru`, `min_lstm`,
`rg_lru`), and one state in 32 steps where it isn't (`sru`, `qrnn`); nothing where no gradient is
asked for. Gradients exist in every order and mode; those above the first, and those of
torch.func.vmap, are composed of PyTorch operators around `scan` and keep the gates.

What all cells have in common:

- inputs are (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default, in
  float16, bfloat16, float32 or float64, with any strides. They share a shape and a dtype; under
  autocast, different dtypes are cast to the widest. More than one batch axis is merged: a view
  where the strides allow it, else a copy;
- vectors are (D,) in the inputs' dtype or its accumulation dtype;
- states are in the inputs' shape without the time axis, (N, D) with cu_seqlens, in the inputs'
  dtype or its accumulation dtype (float32 for 16-bit floats). None means zeros;
- axis, reverse, cu_seqlens, lengths, reset, padding_side and return_final are as in `scan`;
- the result is y in the inputs' shape, dtype and layout in memory, or with return_final (y, final):
  the states after the last valid step of each sequence, in the accumulation dtype;
- a wrong shape, length, offset, option or device is a ValueError, a wrong dtype a TypeError;
- each has a `*_step` for decoding: one step of (..., D) and the state before it (None means zeros)
  in, the output and the state after it out, with the numbers of a sequence of one step.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from scanrnn import _docs
from scanrnn._array.layout import PaddingSide
from scanrnn._array.options import real_number
from scanrnn.cells import Activation, SequenceOptions, SolveOptions, SruActivation

from . import _cells
from ._arguments import (
    Call,
    Layout,
    activation_code,
    one_step,
    require_tensor,
    without_padding,
)
from ._ops import ACCUMULATION, OptTensor, check_devices, check_dtype, check_shape
from .diagonal import SolveReport, solve_cell, solve_step
from .functional import scan

__all__ = [
    "gilr",
    "gilr_step",
    "hgrn",
    "hgrn_step",
    "lru",
    "lru_step",
    "min_gru",
    "min_gru_step",
    "min_lstm",
    "min_lstm_step",
    "qrnn",
    "qrnn_step",
    "rg_lru",
    "rg_lru_step",
    "sru",
    "sru_step",
]

_documented = _docs.documented(_docs.TORCH)

#: What u of the LRU may be, and the dtypes of real and of complex numbers that go with it.
_LRU_DTYPES = {
    torch.complex64: (torch.float32, torch.complex64),
    torch.complex128: (torch.float64, torch.complex128),
    torch.float32: (torch.float32, torch.complex64),
    torch.float64: (torch.float64, torch.complex128),
}


def _cell(
    fn: str,
    kind: int,
    full: dict[str, Any],
    vectors: dict[str, Any],
    state: tuple[str, OptTensor],
    options: list[float],
    axis: int,
    reverse: bool,
    cu_seqlens: Any,
    lengths: Any,
    reset: Any,
    padding_side: str,
    return_final: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """A cell of the core's table on inputs of any axes.

    Args:
        fn: the public function, for error texts.
        kind: the cell's code.
        full: its (B, T, D) inputs by the caller's names, in the table's order.
        vectors: its vectors likewise, which follow them.
        state: name and value of the initial state.
        options: in the table's order.
        axis: as in the public functions, likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.
        return_final: see axis.
    """
    required = _cells.CELLS[kind].required
    name, c0 = state
    call = Call(
        fn, full, required, vectors, {name: c0}, axis, reverse, cu_seqlens, lengths, reset,
        padding_side,
    )  # fmt: skip
    slots = (*call.full, *call.vectors)
    y, final = _cells.cell(
        *slots,
        *(None,) * (_cells.SLOTS - len(slots)),
        *call.states,
        *call.sequences,
        kind,
        options,
        1,
        1,
    )
    y = call.output(y)
    return (y, call.final(final)) if return_final else y


def _step(
    fn: str,
    kind: str,
    full: dict[str, Any],
    vectors: dict[str, Any],
    state: tuple[str, OptTensor],
    options: list[float],
) -> tuple[Tensor, Tensor]:
    """`_cell` on one step: inputs have no time axis."""
    y, final = _cell(
        fn, _cells.KINDS[kind], one_step(fn, full), vectors, state, options,
        axis=-2, reverse=False, cu_seqlens=None, lengths=None, reset=None, padding_side="right",
        return_final=True,
    )  # fmt: skip
    return y.squeeze(-2), final


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
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
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
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
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
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[False] = False,
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, SolveReport]: ...
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
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: Literal[True],
    return_report: Literal[True],
    **options: Unpack[SolveOptions],
) -> tuple[Tensor, Tensor, SolveReport]: ...
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
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def sru(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
    axis: int = -2,
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_report: bool = False,
) -> Any:
    """Simple recurrent unit."""
    fn, code = "sru", activation_code("sru", activation, SruActivation)
    full = {"u": u, "f": f, "r": r, "skip": skip}
    biases = {"bias_f": bias_f, "bias_r": bias_r}
    if v_f is not None or v_r is not None:
        return solve_cell(
            fn,
            "recurrent_sru",
            full,
            {"v_f": v_f, "v_r": v_r, **biases},
            {"c0": c0},
            [code],
            tolerance,
            max_passes,
            segment,
            axis,
            reverse,
            cu_seqlens,
            lengths,
            reset,
            padding_side,
            return_final,
            return_report,
        )
    if return_report:
        raise ValueError(f"{fn}: return_report is True without v_f and v_r, expected False")
    return _cell(
        fn,
        _cells.KINDS["sru"],
        full,
        biases,
        ("c0", c0),
        [code],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


@_documented
def sru_step(
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: Tensor | None = None,
    bias_f: Tensor | None = None,
    bias_r: Tensor | None = None,
    c: Tensor | None = None,
    *,
    v_f: Tensor | None = None,
    v_r: Tensor | None = None,
    activation: SruActivation = "identity",
) -> tuple[Tensor, Tensor]:
    """One step of `sru`, for decoding: what a sequence of one step gives."""
    fn, code = "sru_step", activation_code("sru_step", activation, SruActivation)
    full = {"u": u, "f": f, "r": r, "skip": skip}
    biases = {"bias_f": bias_f, "bias_r": bias_r}
    if v_f is not None or v_r is not None:
        vectors = {"v_f": v_f, "v_r": v_r, **biases}
        y, (final,) = solve_step(fn, "recurrent_sru", full, vectors, {"c": c}, [code])
        return y, final
    return _step(fn, "sru", full, biases, ("c", c), [code])


@overload
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@_documented
def gilr(
    f: Tensor,
    z: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Gated impulse linear recurrence."""
    return _cell(
        "gilr",
        _cells.KINDS["gilr"],
        {"f": f, "z": z},
        {},
        ("h0", h0),
        [0, activation_code("gilr", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


@_documented
def gilr_step(
    f: Tensor,
    z: Tensor,
    h: Tensor | None = None,
    *,
    activation: Activation = "tanh",
) -> tuple[Tensor, Tensor]:
    """One step of `gilr`, for decoding: what a sequence of one step gives."""
    options: list[float] = [0, activation_code("gilr_step", activation)]
    return _step("gilr_step", "gilr", {"f": f, "z": z}, {}, ("h", h), options)


@overload
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@_documented
def hgrn(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activation: Activation = "silu",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Hierarchically gated recurrent unit: a gated recurrence with a lower bound on its gates."""
    return _cell(
        "hgrn",
        _cells.KINDS["gilr"],
        {"f": f, "z": z},
        {"bound": bound},
        ("h0", h0),
        [0, activation_code("hgrn", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


@_documented
def hgrn_step(
    f: Tensor,
    z: Tensor,
    bound: Tensor | None = None,
    h: Tensor | None = None,
    *,
    activation: Activation = "silu",
) -> tuple[Tensor, Tensor]:
    """One step of `hgrn`, for decoding: what a sequence of one step gives."""
    options: list[float] = [0, activation_code("hgrn_step", activation)]
    return _step("hgrn_step", "gilr", {"f": f, "z": z}, {"bound": bound}, ("h", h), options)


@overload
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@_documented
def min_gru(
    z: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
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
    """Minimal gated recurrent unit, in plain space: states and h0 may have any sign."""
    return _cell(
        "min_gru",
        _cells.KINDS["gilr"],
        {"z": z, "v": v},
        {},
        ("h0", h0),
        [1, activation_code("min_gru", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


@_documented
def min_gru_step(
    z: Tensor,
    v: Tensor,
    h: Tensor | None = None,
    *,
    activation: Activation = "identity",
) -> tuple[Tensor, Tensor]:
    """One step of `min_gru`, for decoding: what a sequence of one step gives."""
    options: list[float] = [1, activation_code("min_gru_step", activation)]
    return _step("min_gru_step", "gilr", {"z": z, "v": v}, {}, ("h", h), options)


@overload
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@_documented
def min_lstm(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h0: Tensor | None = None,
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
    """Minimal LSTM with normalised gates, in plain space: states and h0 may have any sign."""
    return _cell(
        "min_lstm",
        _cells.KINDS["min_lstm"],
        {"f": f, "i": i, "v": v},
        {},
        ("h0", h0),
        [activation_code("min_lstm", activation)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


@_documented
def min_lstm_step(
    f: Tensor,
    i: Tensor,
    v: Tensor,
    h: Tensor | None = None,
    *,
    activation: Activation = "identity",
) -> tuple[Tensor, Tensor]:
    """One step of `min_lstm`, for decoding: what a sequence of one step gives."""
    options: list[float] = [activation_code("min_lstm_step", activation)]
    return _step("min_lstm_step", "min_lstm", {"f": f, "i": i, "v": v}, {}, ("h", h), options)


@overload
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@_documented
def qrnn(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Pooling of the quasi-recurrent network, f, fo or ifo by which gates are given."""
    kind, inputs, options = _pooling("qrnn", z, f, o, i, activation)
    return _cell(
        "qrnn",
        _cells.KINDS[kind],
        inputs,
        {},
        ("c0", c0),
        options,
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


@_documented
def qrnn_step(
    z: Tensor,
    f: Tensor,
    o: Tensor | None = None,
    i: Tensor | None = None,
    c: Tensor | None = None,
    *,
    activation: Activation = "tanh",
) -> tuple[Tensor, Tensor]:
    """One step of `qrnn`, for decoding: what a sequence of one step gives."""
    kind, inputs, options = _pooling("qrnn_step", z, f, o, i, activation)
    return _step("qrnn_step", kind, inputs, {}, ("c", c), options)


def _pooling(
    fn: str, z: Tensor, f: Tensor, o: OptTensor, i: OptTensor, activation: str
) -> tuple[str, dict[str, Any], list[float]]:
    """The cell of the core's table that pools, its inputs and its options."""
    if o is None and i is not None:
        raise ValueError(f"{fn}: i was given without o, expected both (ifo-pooling) or neither")
    code = activation_code(fn, activation)
    if o is None:
        return "gilr", {"f": f, "z": z}, [0, code]
    return "qrnn", {"z": z, "f": f, "o": o, "i": i}, [code]


@overload
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@_documented
def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h0: Tensor | None = None,
    *,
    c: float = 8.0,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Real-gated linear recurrent unit of Griffin."""
    require_tensor("rg_lru", "lam", lam)
    return _cell(
        "rg_lru",
        _cells.KINDS["rg_lru"],
        {"x": x, "r": r, "i": i},
        {"lam": lam},
        ("h0", h0),
        [real_number("rg_lru", "c", c)],
        axis,
        reverse,
        cu_seqlens,
        lengths,
        reset,
        padding_side,
        return_final,
    )


@_documented
def rg_lru_step(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    lam: Tensor,
    h: Tensor | None = None,
    *,
    c: float = 8.0,
) -> tuple[Tensor, Tensor]:
    """One step of `rg_lru`, for decoding: what a sequence of one step gives."""
    fn = "rg_lru_step"
    require_tensor(fn, "lam", lam)
    full = {"x": x, "r": r, "i": i}
    return _step(fn, "rg_lru", full, {"lam": lam}, ("h", h), [real_number(fn, "c", c)])


@overload
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[False] = False,
    **sequences: Unpack[SequenceOptions],
) -> Tensor: ...
@overload
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: Literal[True],
    **sequences: Unpack[SequenceOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    return_final: bool,
    **sequences: Unpack[SequenceOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@_documented
def lru(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
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
    """Linear recurrent unit: a complex diagonal recurrence with fixed, stable eigenvalues."""
    return _lru(
        "lru", u, nu, theta, gamma, ("h0", h0), axis, reverse, cu_seqlens, lengths, reset,
        padding_side, return_final,
    )  # fmt: skip


def _lru(
    fn: str,
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None,
    state: tuple[str, OptTensor],
    axis: int,
    reverse: bool,
    cu_seqlens: Any,
    lengths: Any,
    reset: Any,
    padding_side: PaddingSide,
    return_final: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    require_tensor(fn, "u", u)
    check_dtype(fn, "u", u, _LRU_DTYPES)
    channel = -2 if u.ndim > 1 and axis in (-1, u.ndim - 1) else -1
    D = 1 if u.ndim == 1 else u.shape[channel]
    real_dtype, complex_dtype = _LRU_DTYPES[u.dtype]
    require_tensor(fn, "nu", nu)
    require_tensor(fn, "theta", theta)
    for name, t in (("nu", nu), ("theta", theta), ("gamma", gamma)):
        check_dtype(fn, name, t, (real_dtype,))
        check_shape(fn, name, t, (D,))
    name, h0 = state
    layout = Layout(fn, "u", u, axis)
    if h0 is not None:
        require_tensor(fn, name, h0)
        check_dtype(fn, name, h0, (complex_dtype, ACCUMULATION[complex_dtype]))
        if cu_seqlens is None:
            layout.canonical_state(name, h0)
    check_devices(fn, u=u, nu=nu, theta=theta, gamma=gamma, **{name: h0})
    rate = torch.exp(nu)
    if gamma is None:
        gamma = torch.sqrt(-torch.expm1(-2 * rate))
    if lengths is not None:
        # The scan reads no padding, but the product with gamma would carry a NaN from there.
        _, lengths, *_ = layout.sequences(False, None, lengths, None, padding_side)
        u = layout.restore(without_padding(layout.canonical(u), lengths, padding_side == "left"))
        lengths = lengths.squeeze(0) if u.ndim < 3 else lengths

    def along(t: Tensor) -> Tensor:
        return t.unsqueeze(-1) if channel == -2 else t

    return scan(
        along(torch.exp(torch.complex(-rate, torch.exp(theta)))),
        (along(gamma) * u).to(complex_dtype),
        h0,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
        return_final=return_final,
    )


@_documented
def lru_step(
    u: Tensor,
    nu: Tensor,
    theta: Tensor,
    gamma: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of `lru`, for decoding: what a sequence of one step gives."""
    fn = "lru_step"
    u = one_step(fn, {"u": u})["u"]
    y, final = _lru(
        fn, u, nu, theta, gamma, ("h", h), -2, False, None, None, None, "right", True
    )  # fmt: skip
    return y.squeeze(-2), final
