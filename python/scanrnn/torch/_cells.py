"""The registered operators scanrnn::cell and scanrnn::cell_backward: every fused cell.

What a cell is comes from the core's table (`CELLS`): its inputs in order, which of them are
optional, and which are vectors over the channels. The fused kernels do the first derivatives;
forward mode, second derivatives and batching differentiate and batch `_compose`: the same
equations in PyTorch operators around `scan`, one short function a cell. A new cell needs its row in
the core's table and such a function, and nothing else here.

Tensor arguments (B batch, T time, D channels, N sequences, d directions):

    in0 ... in5      the cell's inputs, in the table's order: (B, T, D) each, vectors (D,). This is
                     for blocks = directions = 1. Otherwise in0 has, for each direction in turn, the
                     cell's first `blocks` inputs side by side, (B, T, d * blocks * D), as a matrix
                     product leaves them; the others have one block a direction, (B, T, d * D); and
                     the first vector has all vectors, direction by direction. Where an input is
                     part of an earlier one, its own place is None
    c0               (d, N, D) in the dtype of in0 or its accumulation dtype
    y                (B, T, d * D), dtype of in0: the second direction runs from the other end
    final            (d, N, D) in the accumulation dtype
    saved            what backward starts from: y where that is the state (gilr, min_lstm, rg_lru),
                     else one state in 32 steps, (d, rows, D), the third output
    cu_seqlens ...   as in `scanrnn.torch._ops`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F  # noqa: N812

from scanrnn import _core

from ._ops import (
    ACCUMULATION,
    GENERALLY,
    LEAF_STEPS,
    REAL,
    RECORDED,
    SEQUENCES,
    Descriptor,
    OptTensor,
    Tensors,
    asks_for_gradients,
    check_devices,
    check_dtype,
    check_sequences,
    check_shape,
    define,
    describe_block,
    describe_row,
    gradient_dims,
    in_forward_mode,
    new_gradients,
    only,
    returnable,
    scan,
    situation,
    tail,
    valid_steps,
)

#: The activations, in the order of their numbers.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "positive": lambda x: torch.where(x >= 0, x + 0.5, torch.sigmoid(x)),
}
_ACTIVATIONS = [*ACTIVATIONS.values()]


# ---- Equations -----------------------------------------------------------------------------------

#: (a, x) -> c, final: the scan with the call's initial state and sequences.
_Run = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _plus(t: Tensor, bias: OptTensor) -> Tensor:
    return t if bias is None else t + bias


def _compose_sru(
    run: _Run,
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: OptTensor,
    bias_f: OptTensor,
    bias_r: OptTensor,
    activation: float,
) -> Tensors:
    keep = torch.sigmoid(_plus(f, bias_f))
    c, final = run(keep, (1 - keep) * u)
    show = torch.sigmoid(_plus(r, bias_r))
    y = show * _ACTIVATIONS[int(activation)](c)
    return y if skip is None else y + (1 - show) * skip, final


def _compose_gilr(
    run: _Run, f: Tensor, z: Tensor, bound: OptTensor, gate: float, activation: float
) -> Tensors:
    keep, add = torch.sigmoid(-f if gate else f), torch.sigmoid(f if gate else -f)
    if bound is not None:
        keep, add = bound + (1 - bound) * keep, (1 - bound) * add
    return run(keep, add * _ACTIVATIONS[int(activation)](z))


def _compose_qrnn(
    run: _Run, z: Tensor, f: Tensor, o: Tensor, i: OptTensor, activation: float
) -> Tensors:
    add = torch.sigmoid(-f if i is None else i)
    c, final = run(torch.sigmoid(f), add * _ACTIVATIONS[int(activation)](z))
    return torch.sigmoid(o) * c, final


def _compose_min_lstm(run: _Run, f: Tensor, i: Tensor, z: Tensor, activation: float) -> Tensors:
    # s(f) / (s(f) + s(i)) as the sigmoid of log s(f) - log s(i): no gates are too small for it.
    odds = F.logsigmoid(f) - F.logsigmoid(i)
    return run(torch.sigmoid(odds), torch.sigmoid(-odds) * _ACTIVATIONS[int(activation)](z))


#: Where the derivative of RG-LRU's root stops to grow: the core's bound on 1 / (2 sqrt(x)).
_LARGEST_SLOPE = 1000.0


def _bounded_root(x: Tensor) -> Tensor:
    """The square root of x >= 0, whose derivative is at most _LARGEST_SLOPE."""
    steep = x < (0.5 / _LARGEST_SLOPE) ** 2
    root = torch.sqrt(torch.where(steep, 1, x))
    line = torch.sqrt(x.detach()) + _LARGEST_SLOPE * (x - x.detach())
    return torch.where(steep, line, root)


def _compose_rg_lru(run: _Run, x: Tensor, r: Tensor, i: Tensor, lam: Tensor, c: float) -> Tensors:
    log_a = -c * F.softplus(lam) * torch.sigmoid(r)
    scale = _bounded_root(-torch.expm1(2 * log_a))
    return run(torch.exp(log_a), scale * torch.sigmoid(i) * x)


_EQUATIONS: dict[str, Callable[..., Tensors]] = {
    "sru": _compose_sru,
    "gilr": _compose_gilr,
    "qrnn": _compose_qrnn,
    "min_lstm": _compose_min_lstm,
    "rg_lru": _compose_rg_lru,
}


# ---- The table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A row of the core's table."""

    kind: int
    name: str
    inputs: tuple[str, ...]
    required: tuple[bool, ...]
    #: Whether an input is a vector over the channels.
    vector: tuple[bool, ...]
    state_is_output: bool
    #: (run, *inputs, *options) -> y, final
    equations: Callable[..., Tensors]


CELLS = {
    row["kind"]: Cell(
        row["kind"],
        row["name"],
        tuple(i["name"] for i in row["inputs"]),
        tuple(not i["optional"] for i in row["inputs"]),
        tuple(i["vector"] for i in row["inputs"]),
        row["state_is_output"],
        _EQUATIONS[row["name"]],
    )
    for row in _core.cell_table()
}
#: The codes of the cells.
KINDS = {cell.name: cell.kind for cell in CELLS.values()}
#: How many inputs the operators take.
SLOTS = 6


@functools.cache
def _places(kind: int, blocks: int, directions: int) -> list[list[tuple[int, int, int]]]:
    """For each direction and input: the argument that it is in, which block there, and of many."""
    vector = CELLS[kind].vector
    if blocks == directions == 1:
        return [[(j, 0, 1) for j in range(len(vector))]]
    first = vector.index(True) if any(vector) else 0
    return [
        [
            (first, d * sum(vector) + j - first, directions * sum(vector))
            if is_vector
            else (0, d * blocks + j, directions * blocks)
            if j < blocks
            else (j, d, directions)
            for j, is_vector in enumerate(vector)
        ]
        for d in range(directions)
    ]


def _check_cell(
    inputs: Sequence[OptTensor],
    c0: OptTensor,
    sequences: tuple[OptTensor, OptTensor, OptTensor],
    kind: int,
    blocks: int,
    directions: int,
) -> tuple[int, int]:
    """Check the inputs of cell and return N and D."""
    if kind not in CELLS:
        raise ValueError(f"cell: kind is {kind}, expected one of {[*CELLS]}")
    cell = CELLS[kind]
    fn, names, separate = cell.name, cell.inputs, blocks == directions == 1
    u = inputs[0]
    if u is None:
        raise TypeError(f"{fn}: {names[0]} is None, expected a torch.Tensor")
    check_dtype(fn, names[0], u, REAL)
    if u.ndim != 3:
        raise ValueError(f"{fn}: {names[0]} has shape {tuple(u.shape)}, expected (B, T, D)")
    B, T, width = u.shape
    D = width // (blocks * directions)
    if not separate:
        check_shape(fn, names[0], u, (B, T, blocks * directions * D))
    shapes = (B, T, directions * D), (D if separate else directions * sum(cell.vector) * D,)
    dtypes = (u.dtype,), (u.dtype, ACCUMULATION[u.dtype])
    for j in range(1, len(names)):
        t, vector = inputs[j], cell.vector[j]
        if t is None:
            if cell.required[j] and _places(kind, blocks, directions)[0][j][0] == j:
                raise TypeError(f"{fn}: {names[j]} is None, expected a torch.Tensor")
        elif t.shape != shapes[vector] or t.dtype not in dtypes[vector]:
            check_dtype(fn, names[j], t, dtypes[vector])
            check_shape(fn, names[j], t, shapes[vector])
    N = check_sequences(fn, u, *sequences)
    if c0 is not None:
        check_dtype(fn, "c0", c0, dtypes[True])
        check_shape(fn, "c0", c0, (directions, N, D))
    device = u.device
    for t in (*inputs, c0, *sequences):
        if t is not None and t.device != device:
            named = dict(zip(names, inputs, strict=False))
            indices = dict(zip(("cu_seqlens", "lengths", "reset"), sequences, strict=True))
            check_devices(fn, **named, c0=c0, **indices)
    return N, D


# ---- Kernels -------------------------------------------------------------------------------------


def _leaves_checks_to_core(
    u: Tensor,
    c0: OptTensor,
    sequences: tuple[OptTensor, OptTensor, OptTensor],
    kind: int,
    directions: int,
) -> bool:
    """Whether the core finds out all that `_check_cell` would, as it mostly does."""
    return (
        kind in CELLS
        and u.ndim == 3
        and u.dtype in REAL
        and (c0 is None or c0.shape[:1] == (directions,))
        and sequences[0] is sequences[1] is sequences[2] is None
    )


def _outputs(
    u: Tensor, N: int, D: int, kind: int, blocks: int, directions: int, checkpoint: bool
) -> Tensors:
    """New y, laid out in memory as u, final, and checkpoints."""
    B, T, _ = u.shape
    y = torch.empty_like(u if blocks == 1 else u[..., : directions * D])
    final = u.new_empty((directions, N, D), dtype=ACCUMULATION[u.dtype])
    if not checkpoint or CELLS[kind].state_is_output:
        return y, final, final.new_empty((directions, 0, D))
    # The core's checkpoint_rows, which can't be asked about a symbolic T.
    leaves = T // LEAF_STEPS
    rows = leaves + max(N, 1) if B == 1 else B * (leaves + 1)
    # Rows that no steps belong to are neither written nor read. On the CPU they are zeros all the
    # same, so that equal calls have equal outputs; on a GPU that would be another kernel.
    new = final.new_empty if u.is_cuda else final.new_zeros
    return y, final, new((directions, rows, D))


def _direction(
    places: Sequence[tuple[int, int, int]], tensors: Sequence[OptTensor]
) -> list[Descriptor]:
    """Describe the inputs of one direction, or their gradients."""
    return [describe_block(tensors[j], i, n) for j, i, n in places]


def _cell(
    in0: Tensor,
    in1: OptTensor,
    in2: OptTensor,
    in3: OptTensor,
    in4: OptTensor,
    in5: OptTensor,
    c0: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    reset: OptTensor,
    reverse: bool,
    left_padded: bool,
    kind: int,
    options: Sequence[float],
    blocks: int,
    directions: int,
    checkpoint: bool,
) -> Tensors:
    inputs = (in0, in1, in2, in3, in4, in5)
    sequences = (cu_seqlens, lengths, reset)
    if _leaves_checks_to_core(in0, c0, sequences, kind, directions):
        N, D = in0.shape[0], in0.shape[2] // (blocks * directions)
    else:
        N, D = _check_cell(inputs, c0, sequences, kind, blocks, directions)
    y, final, checkpoints = outputs = _outputs(in0, N, D, kind, blocks, directions, checkpoint)
    rest = tail(sequences, left_padded, in0)
    try:
        for d, places in enumerate(_places(kind, blocks, directions)):
            _core.cell_forward(
                kind,
                _direction(places, inputs),
                describe_row(c0, d),
                describe_block(y, d, directions),
                describe_row(final, d),
                describe_row(checkpoints, d) if checkpoints.shape[1] else None,
                options,
                reverse != (d == 1),
                *rest,
            )
    except (TypeError, ValueError):
        _check_cell(inputs, c0, sequences, kind, blocks, directions)  # says it our way
        raise
    return outputs


def _fake_cell(*args: Any) -> Tensors:
    *_, kind, _, blocks, directions, checkpoint = args
    c0, cu_seqlens, lengths, reset = args[SLOTS : SLOTS + 4]
    sequences = (cu_seqlens, lengths, reset)
    N, D = _check_cell(args[:SLOTS], c0, sequences, kind, blocks, directions)
    return _outputs(args[0], N, D, kind, blocks, directions, checkpoint)


def _cell_backward(
    in0: Tensor,
    in1: OptTensor,
    in2: OptTensor,
    in3: OptTensor,
    in4: OptTensor,
    in5: OptTensor,
    c0: OptTensor,
    saved: Tensor,
    dy: OptTensor,
    dfinal: OptTensor,
    cu_seqlens: OptTensor,
    lengths: OptTensor,
    reset: OptTensor,
    reverse: bool,
    left_padded: bool,
    kind: int,
    options: Sequence[float],
    blocks: int,
    directions: int,
    wanted: Sequence[bool],
) -> tuple[OptTensor, ...]:
    inputs = (in0, in1, in2, in3, in4, in5)
    sequences = (cu_seqlens, lengths, reset)
    if not _leaves_checks_to_core(in0, c0, sequences, kind, directions):
        _check_cell(inputs, c0, sequences, kind, blocks, directions)
    state_is_output = CELLS[kind].state_is_output
    if not state_is_output and saved.shape[1] == 0:
        *_, saved = _cell(
            *(*inputs, c0, *sequences, reverse, left_padded),
            *(kind, options, blocks, directions, True),
        )
    *gradients, dc0 = new_gradients((*inputs, c0), wanted)
    rest = tail(sequences, left_padded, in0)
    try:
        for d, places in enumerate(_places(kind, blocks, directions)):
            _core.cell_backward(
                kind,
                _direction(places, inputs),
                describe_row(c0, d),
                describe_block(saved, d, directions) if state_is_output else describe_row(saved, d),
                describe_block(dy, d, directions),
                describe_row(dfinal, d),
                _direction(places, gradients),
                describe_row(dc0, d),
                options,
                reverse != (d == 1),
                *rest,
            )
    except (TypeError, ValueError):
        _check_cell(inputs, c0, sequences, kind, blocks, directions)
        raise
    return (*gradients, dc0)


def _fake_cell_backward(*args: Any) -> Tensors:
    return returnable(new_gradients(args[: SLOTS + 1], args[-1]), args[0])


# ---- Rules ---------------------------------------------------------------------------------------


def _compose(*args: Any) -> Tensors:
    """The outputs y and final of cell, from `scan` and PyTorch operators."""
    inputs, (c0, *sequences) = args[:SLOTS], args[SLOTS : SLOTS + 4]
    reverse, left_padded, kind, options, blocks, directions = args[SLOTS + 4 :]
    cell, lengths, u = CELLS[kind], sequences[1], inputs[0]
    D = u.shape[-1] // (blocks * directions)
    valid = None if lengths is None else valid_steps(u, lengths, left_padded)

    def parts(t: OptTensor) -> Any:
        """Blocks in the accumulation dtype; 0 in padding, so that no NaN passes from there."""
        if t is None:
            return None
        t = t.to(ACCUMULATION[t.dtype])
        if valid is not None and t.ndim > 1:
            t = torch.where(valid, t, 0)
        return t.split(D, -1) if D else [t] * (blocks * directions)

    split = [parts(t) for t in inputs]
    if c0 is not None:
        c0 = c0.to(ACCUMULATION[c0.dtype])
    ys, finals = [], []
    for d in range(directions):
        run = functools.partial(_scan_of_direction, d, c0, sequences, reverse, left_padded)
        places = _places(kind, blocks, directions)[d]
        own = [None if split[j] is None else split[j][i] for j, i, _ in places]
        y, final = cell.equations(run, *own, *options)
        ys.append(y)
        finals.append(final)
    return torch.cat(ys, -1).to(u.dtype), torch.stack(finals)


def _scan_of_direction(
    d: int,
    c0: OptTensor,
    sequences: Sequence[OptTensor],
    reverse: bool,
    left_padded: bool,
    a: Tensor,
    x: Tensor,
) -> tuple[Tensor, Tensor]:
    c, final = scan(
        a, x, None if c0 is None else c0[d], *sequences, reverse != (d == 1), left_padded
    )
    return c, final


def pull(
    fn: Callable[..., Tensors], args: Sequence[Any], at: Sequence[int], cotangents: Sequence[Any]
) -> list[Any]:
    """Gradients of fn(*args) with respect to the arguments at some positions; None elsewhere."""

    def of_some(*some: Tensor) -> Tensors:
        everything = list(args)
        for i, t in zip(at, some, strict=True):
            everything[i] = t
        return fn(*everything)

    outputs: Tensors
    outputs, pullback, *_ = torch.func.vjp(of_some, *(args[i] for i in at))
    found = pullback(
        tuple(
            torch.zeros_like(y) if ct is None else ct
            for y, ct in zip(outputs, cotangents, strict=True)
        )
    )
    gradients = [None] * len(args)
    for i, g in zip(at, found, strict=True):
        gradients[i] = g
    return gradients


_TENSORS = SLOTS + 1  # the inputs and c0
_TENSORS_OF_CELL = _TENSORS + 3  # and cu_seqlens, lengths, reset


def _compose_backward(*args: Any) -> Tensors:
    """The operator cell_backward by differentiating `_compose`."""
    inputs, (_, dy, dfinal) = args[:_TENSORS], args[_TENSORS : _TENSORS + 3]
    rest, wanted = args[_TENSORS + 3 : -1], args[-1]
    at = [i for i, (t, w) in enumerate(zip(inputs, wanted, strict=True)) if w and t is not None]
    if not at:
        return returnable([None] * _TENSORS, inputs[0])
    gradients = pull(_compose, (*inputs, *rest), at, (dy, dfinal))
    return returnable(gradients[:_TENSORS], inputs[0])


class _Cell(Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        saved = output[0] if CELLS[inputs[-5]].state_is_output else output[2]
        ctx.save_for_backward(*inputs[:_TENSORS], saved, *inputs[_TENSORS : _TENSORS + 3])
        ctx.options = inputs[_TENSORS + 3 : -1]
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: OptTensor, dfinal: OptTensor, _: None) -> tuple[OptTensor, ...]:
        rest = (None,) * (len(ctx.options) + 4)
        if dy is None and dfinal is None:
            return (*(None,) * _TENSORS, *rest)
        tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:_TENSORS]
        gradients = cell_backward(
            *tensors[: _TENSORS + 1], dy, dfinal, *tensors[_TENSORS + 1 :], *ctx.options, wanted
        )
        return (*only(gradients, wanted), *rest)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        compose = torch.vmap(_compose, in_dims[:-1], randomness=info.randomness)
        y, final = compose(*args[:-1])
        return (y, final, final.new_empty((1, 0, 0))), (0, 0, None)


class _CellBackward(Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[: _TENSORS + 6])
        ctx.options = inputs[_TENSORS + 6 :]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: OptTensor) -> tuple[OptTensor, ...]:
        args = (*ctx.saved_tensors, *ctx.options)
        # Not with respect to what forward saved, which is a function of the inputs.
        at = [i for i, need in enumerate(ctx.needs_input_grad) if need and i != _TENSORS]
        return tuple(pull(_compose_backward, args, at, cotangents))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        dims: Any = gradient_dims(args[:_TENSORS], args[-1])
        compose = torch.vmap(_compose_backward, in_dims, dims, randomness=info.randomness)
        return compose(*args), dims


# ---- Operators -----------------------------------------------------------------------------------

_INPUTS = "Tensor in0, " + "".join(f"Tensor? in{j}, " for j in range(1, SLOTS)) + "Tensor? c0"
_OPTIONS = f"{SEQUENCES}, int kind, float[] options, int blocks, int directions"

_cell_as = define(
    "cell",
    f"({_INPUTS}, {_OPTIONS}, bool checkpoint) -> (Tensor, Tensor, Tensor)",
    _cell,
    _fake_cell,
    _Cell,
)
_cell_backward_as = define(
    "cell_backward",
    f"({_INPUTS}, Tensor saved, Tensor? dy, Tensor? dfinal, {_OPTIONS}, bool[{_TENSORS}] wanted)"
    f" -> ({', '.join(['Tensor'] * _TENSORS)})",
    _cell_backward,
    _fake_cell_backward,
    _CellBackward,
)


def cell(*args: Any) -> Tensors:
    """(in0 ... in5, c0, *as in scan, kind, options, blocks, directions) -> y, final."""
    how = situation(*args[:_TENSORS_OF_CELL])
    if how == GENERALLY and not torch.compiler.is_compiling() and in_forward_mode():
        return _compose(*args)
    records = how == RECORDED or (how == GENERALLY and asks_for_gradients(args))
    y, final, _ = _cell_as(how, *args, records)
    return y, final


def cell_backward(*args: Any) -> tuple[OptTensor, ...]:
    """(in0 ... c0, saved, dy, dfinal, *as in scan, kind ... directions, wanted) -> gradients.

    Those not wanted have no elements, or are None.
    """
    how = situation(*args[: _TENSORS_OF_CELL + 3])
    if how == GENERALLY and not torch.compiler.is_compiling() and in_forward_mode():
        return _compose_backward(*args)
    return _cell_backward_as(how, *args)
