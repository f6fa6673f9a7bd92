"""The registered operators scanrnn::solve and scanrnn::solve_backward: every nonlinear cell.

The core solves a recurrence in parallel over time, and runs serially what does not converge (see
`include/scanrnn/solve.hpp`); its backward pass is exact. What a cell is comes from the core's table
(`CELLS`). Forward mode, second derivatives and the adjoint of an adjoint are linear recurrences
around the states that were found: `_tangents` composes them of PyTorch operators, `scan` and the
derivatives of the cell's equations, which are one short function a cell. A new cell needs its row
in the core's table and such a function, and nothing else here.

Tensor arguments (B batch, T time, D channels, N sequences, d directions):

    in0 ... in3      the cell's (B, T, D) inputs in the table's order, each (B, T, d * D). For
                     blocks > 1, in0 has for each direction in turn the first `blocks` of them side
                     by side, (B, T, d * blocks * D), as a matrix product leaves them, and their own
                     places are None
    weights          (d, V, D), the first V of the vectors that are there, in the table's order, in
                     the dtype of in0 or its accumulation dtype; more: the rest, likewise
    bias             (d, blocks, D), likewise: what in0's blocks have had added to them. Gradients
                     alone see it, and are summed where in0's are found
    given            for each vector of the table, whether it is there
    first, second    initial states, (d, N, D) in the dtype of in0 or its accumulation dtype
    y                (B, T, d * D), dtype of in0: the second direction runs from the other end
    kept             as y: the state that backward needs beside y, without elements if there is none
    last, last2      final states, (d, N, D) in the accumulation dtype; last2 is (d, 0, D) for a
                     state of one number
    report           (d, N, 6) float64, as scanrnn::SolveReport has it
    cu_seqlens ...   as in `scanrnn.torch._ops`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from scanrnn import _core

from ._cells import ACTIVATIONS, pull
from ._ops import (
    ACCUMULATION,
    GENERALLY,
    REAL,
    RECORDED,
    SEQUENCES,
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
    entry_steps,
    in_forward_mode,
    last_state,
    new_gradients,
    only,
    previous_state,
    returnable,
    scan,
    situation,
    tail,
    valid_steps,
)

_ACTIVATIONS = [*ACTIVATIONS.values()]


# ---- Equations -----------------------------------------------------------------------------------
# (states before, *inputs, *options) -> output, states after


def _plus(t: Tensor, *terms: Any) -> Tensor:
    for term in terms:
        t = t if term is None else t + term
    return t


def _times(weight: OptTensor, state: Tensor) -> OptTensor:
    return None if weight is None else weight * state


def _diagonal_gru(
    before: Tensors,
    r: Tensor,
    z: Tensor,
    n: Tensor,
    u_r: Tensor,
    u_z: Tensor,
    u_n: Tensor,
    b_n: OptTensor,
) -> tuple[Tensor, Tensors]:
    (h,) = before
    reset, update = torch.sigmoid(r + u_r * h), torch.sigmoid(z + u_z * h)
    new = torch.tanh(n + reset * _plus(u_n * h, b_n))
    h = new + update * (h - new)
    return h, (h,)


def _diagonal_lstm(
    before: Tensors,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    i: OptTensor,
    u_f: Tensor,
    u_g: Tensor,
    u_o: Tensor,
    u_i: OptTensor,
    w_f: OptTensor,
    w_o: OptTensor,
    w_i: OptTensor,
) -> tuple[Tensor, Tensors]:
    h, c = before
    keep = torch.sigmoid(_plus(f + u_f * h, _times(w_f, c)))
    add = 1 - keep
    if i is not None:
        add = torch.sigmoid(_plus(i, _times(u_i, h), _times(w_i, c)))
    c = keep * c + add * torch.tanh(g + u_g * h)
    h = torch.sigmoid(_plus(o + u_o * h, _times(w_o, c))) * torch.tanh(c)
    return h, (h, c)


def _indrnn(before: Tensors, p: Tensor, u: Tensor, activation: float) -> tuple[Tensor, Tensors]:
    h = _ACTIVATIONS[int(activation)](p + u * before[0])
    return h, (h,)


def _recurrent_sru(
    before: Tensors,
    u: Tensor,
    f: Tensor,
    r: Tensor,
    skip: OptTensor,
    v_f: Tensor,
    v_r: Tensor,
    bias_f: OptTensor,
    bias_r: OptTensor,
    activation: float,
) -> tuple[Tensor, Tensors]:
    keep = torch.sigmoid(_plus(f + v_f * before[0], bias_f))
    show = torch.sigmoid(_plus(r + v_r * before[0], bias_r))
    c = u + keep * (before[0] - u)
    y = show * _ACTIVATIONS[int(activation)](c)
    return y if skip is None else y + (1 - show) * skip, (c,)


_EQUATIONS: dict[str, Callable[..., tuple[Tensor, Tensors]]] = {
    "diagonal_gru": _diagonal_gru,
    "diagonal_lstm": _diagonal_lstm,
    "indrnn": _indrnn,
    "recurrent_sru": _recurrent_sru,
}


# ---- The table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A row of the core's table."""

    kind: int
    name: str
    inputs: tuple[str, ...]
    required: tuple[bool, ...]
    #: How many of the inputs are (B, T, D); vectors over the channels follow them.
    full: int
    states: tuple[str, ...]
    #: Which state is the output, and which is kept for backward; -1 for none.
    output_state: int
    kept_state: int
    equations: Callable[..., tuple[Tensor, Tensors]]


CELLS = {
    row["kind"]: Cell(
        row["kind"],
        row["name"],
        tuple(i["name"] for i in row["inputs"]),
        tuple(not i["optional"] for i in row["inputs"]),
        sum(not i["vector"] for i in row["inputs"]),
        tuple(row["states"]),
        row["output_state"],
        row["kept_state"],
        _EQUATIONS[row["name"]],
    )
    for row in _core.nonlinear_cell_table()
}
#: The codes of the cells.
KINDS = {cell.name: cell.kind for cell in CELLS.values()}
#: How many (B, T, D) inputs, and how many states, the operators take.
SLOTS, STATES = 4, 2
_REPORT_COLUMNS = 6
_BIAS, _INITIAL = SLOTS + 2, SLOTS + 3
_DIFFERENTIABLE = _INITIAL + STATES


class _Call:
    """The tensors of a call, (in0 ... weights, more, bias, first, second), and where what is."""

    def __init__(
        self,
        tensors: Sequence[OptTensor],
        sequences: Sequence[Any],
        kind: int,
        options: Sequence[float],
        given: Sequence[bool],
        blocks: int,
        directions: int,
    ) -> None:
        if kind not in CELLS:
            raise ValueError(f"solve: kind is {kind}, expected one of {[*CELLS]}")
        self.cell, self.options = CELLS[kind], options
        self.given, self.blocks, self.directions = given, blocks, directions
        self.cu_seqlens, self.lengths, self.reset, self.reverse, self.left_padded = sequences
        self.tensors = tensors
        u = tensors[0]
        if u is None:
            raise TypeError(f"{self.cell.name}: {self.cell.inputs[0]} is None, expected a Tensor")
        self.u: Tensor = u
        self.D = u.shape[-1] // (blocks * directions)

    def check(self) -> int:
        """Check all tensors and return N."""
        cell, u, D, d = self.cell, self.u, self.D, self.directions
        fn, names, dtype = cell.name, cell.inputs, u.dtype
        check_dtype(fn, names[0], u, REAL)
        if u.ndim != 3:
            raise ValueError(f"{fn}: {names[0]} has shape {tuple(u.shape)}, expected (B, T, D)")
        B, T, _ = u.shape
        check_shape(fn, names[0], u, (B, T, d * self.blocks * D))
        for j in range(1, SLOTS):
            t, own = self.tensors[j], self.blocks <= j < cell.full
            if t is None:
                if own and cell.required[j]:
                    raise TypeError(f"{fn}: {names[j]} is None, expected a torch.Tensor")
            elif not own:
                raise ValueError(f"{fn}: in{j} was given, expected None")
            else:
                check_dtype(fn, names[j], t, (dtype,))
                check_shape(fn, names[j], t, (B, T, d * D))
        N = check_sequences(fn, u, self.cu_seqlens, self.lengths, self.reset)
        dtypes = (dtype, ACCUMULATION[dtype])
        weights, more, bias, *states = self.tensors[SLOTS:]
        rows = 0
        for name, t in (("weights", weights), ("more", more)):
            if t is not None:
                check_dtype(fn, name, t, dtypes)
                check_shape(fn, name, t, (d, *t.shape[1:2], D))
                rows += t.shape[1]
        check_dtype(fn, "bias", bias, dtypes)
        check_shape(fn, "bias", bias, (d, self.blocks, D))
        vectors = names[cell.full :]
        if len(self.given) != len(vectors) or rows != sum(self.given):
            raise ValueError(
                f"{fn}: weights and more have {rows} vectors, and given is {[*self.given]}; "
                f"expected one flag for each of {vectors}"
            )
        for name, need, there in zip(vectors, cell.required[cell.full :], self.given, strict=True):
            if need and not there:
                raise TypeError(f"{fn}: {name} is None, expected a torch.Tensor")
        initial = [f"{state}0" for state in cell.states]
        for name, t in zip(initial, states, strict=False):
            check_dtype(fn, name, t, dtypes)
            check_shape(fn, name, t, (d, N, D))
        if len(initial) < STATES and states[-1] is not None:
            raise ValueError(f"{fn}: second was given, expected None")
        device = u.device
        for t in (*self.tensors, self.cu_seqlens, self.lengths, self.reset):
            if t is not None and t.device != device:
                slots = (*names[: cell.full], *(f"in{j}" for j in range(cell.full, SLOTS)))
                all_names = (*slots, "weights", "more", "bias", *initial)
                named = zip(all_names, self.tensors, strict=False)
                index = ("cu_seqlens", self.cu_seqlens), ("lengths", self.lengths)
                check_devices(fn, **dict((*named, *index, ("reset", self.reset))))
        return N

    def places(self, d: int) -> tuple[list[tuple[int, int]], list[tuple[int, int] | None]]:
        """Of a direction: the slot and block of each full input, the slot and row of vectors."""
        full = [(0, d * self.blocks + j) if j < self.blocks else (j, d) for j in range(SLOTS)]
        weights = self.tensors[SLOTS]
        first = 0 if weights is None else weights.shape[1]
        vectors: list[tuple[int, int] | None] = []
        row = 0
        for there in self.given:
            vectors.append(
                None if not there else (SLOTS, row) if row < first else (SLOTS + 1, row - first)
            )
            row += there
        return full[: self.cell.full], vectors

    def sequences(self, d: int) -> tuple[OptTensor, OptTensor, OptTensor, bool, bool]:
        """The sequences of a direction, as `scan` takes them."""
        reverse = self.reverse != (d == 1)
        return self.cu_seqlens, self.lengths, self.reset, reverse, self.left_padded


# ---- Kernels -------------------------------------------------------------------------------------


def _outputs(call: _Call, N: int, keep: bool) -> Tensors:
    """New y, laid out in memory as in0, kept, last, last2 and report."""
    u, D, d, cell = call.u, call.D, call.directions, call.cell
    y = torch.empty_like(u if call.blocks == 1 else u[..., : d * D])
    kept = torch.empty_like(y) if keep and cell.kept_state >= 0 else y.new_empty(0)
    last = u.new_empty((d, N, D), dtype=ACCUMULATION[u.dtype])
    last2 = last.new_empty((d, N if len(cell.states) > 1 else 0, D))
    report = u.new_empty((d, N, _REPORT_COLUMNS), dtype=torch.float64)
    return y, kept, last, last2, report


def _describe(call: _Call, d: int, tensors: Sequence[OptTensor]) -> tuple[list[Any], list[Any]]:
    """Describe a direction's inputs and initial states, or the gradients of both."""
    full, vectors = call.places(d)
    count = call.blocks * call.directions, call.directions  # of in0, and of the others
    inputs = [describe_block(tensors[slot], i, count[slot > 0]) for slot, i in full]
    inputs += [None if at is None else describe_row(tensors[at[0]], d, at[1]) for at in vectors]
    states = tensors[_INITIAL : _INITIAL + len(call.cell.states)]
    return inputs, [describe_row(t, d) for t in states]


def _solve(*args: Any) -> Tensors:
    tensors, sequences = args[:_DIFFERENTIABLE], args[_DIFFERENTIABLE : _DIFFERENTIABLE + 5]
    *rest, tolerance, max_passes, segment, keep = args[_DIFFERENTIABLE + 5 :]
    call = _Call(tensors, sequences, *rest)
    y, kept, last, last2, report = outputs = _outputs(call, call.check(), keep)
    states = len(call.cell.states)
    rest_of_call = tail(sequences[:3], call.left_padded, y)
    for d in range(call.directions):
        inputs, initial = _describe(call, d, tensors)
        _core.solve_forward(
            call.cell.kind,
            inputs,
            initial,
            describe_block(y, d, call.directions),
            describe_block(kept, d, call.directions) if kept.ndim > 1 else None,
            [describe_row(t, d) for t in (last, last2)[:states]],
            describe_row(report, d),
            call.options,
            tolerance,
            max_passes,
            segment,
            call.sequences(d)[3],
            *rest_of_call,
        )
    return outputs


def _fake_solve(*args: Any) -> Tensors:
    tensors, sequences = args[:_DIFFERENTIABLE], args[_DIFFERENTIABLE : _DIFFERENTIABLE + 5]
    *rest, _, _, _, keep = args[_DIFFERENTIABLE + 5 :]
    call = _Call(tensors, sequences, *rest)
    return _outputs(call, call.check(), keep)


#: Of solve_backward's arguments: y, kept, dy, dlast and dlast2 follow the differentiable ones.
_SEQUENCES = _DIFFERENTIABLE + 5


def _solve_backward(*args: Any) -> tuple[OptTensor, ...]:
    tensors, (y, kept, dy, dlast, dlast2) = args[:_DIFFERENTIABLE], args[_DIFFERENTIABLE:_SEQUENCES]
    sequences = args[_SEQUENCES : _SEQUENCES + 5]
    *rest, tolerance, max_passes, segment, wanted = args[_SEQUENCES + 5 :]
    call = _Call(tensors, sequences, *rest)
    call.check()
    cell = call.cell
    if cell.kept_state >= 0 and (kept is None or kept.ndim == 1):
        y, kept, *_ = _solve(*tensors, *sequences, *rest, tolerance, max_passes, segment, True)
    gradients = new_gradients(tensors, wanted)
    rest_of_call = tail(sequences[:3], call.left_padded, call.u)
    for d in range(call.directions):
        inputs, initial = _describe(call, d, tensors)
        dinputs, dinitial = _describe(call, d, gradients)
        sums: list[Any] = [None] * len(cell.inputs)
        for j in range(call.blocks):
            sums[j] = describe_row(gradients[_BIAS], d, j)
        _core.solve_backward(
            cell.kind,
            inputs,
            initial,
            describe_block(y, d, call.directions) if cell.output_state >= 0 else None,
            describe_block(kept, d, call.directions) if cell.kept_state >= 0 else None,
            describe_block(dy, d, call.directions),
            [describe_row(t, d) for t in (dlast, dlast2)[: len(cell.states)]],
            dinputs,
            dinitial,
            call.options,
            call.sequences(d)[3],
            *rest_of_call,
            sums,
        )
    return tuple(gradients)


def _fake_solve_backward(*args: Any) -> Tensors:
    return returnable(new_gradients(args[:_DIFFERENTIABLE], args[-1]), args[0])


# ---- Rules ---------------------------------------------------------------------------------------


def _parts(
    call: _Call, d: int, tensors: Sequence[OptTensor], bias: OptTensor
) -> tuple[list[Any], list[Any]]:
    """A direction's inputs and initial states, in the accumulation dtype; 0 in padding.

    The bias is added to in0's blocks.
    """
    full, vectors = call.places(d)

    def block(slot: int, i: int) -> OptTensor:
        t = tensors[slot]
        if t is not None:
            t = t.narrow(-1, i * call.D, call.D).to(ACCUMULATION[t.dtype])
        if slot == 0 and bias is not None:
            own = bias[d, i % call.blocks].to(ACCUMULATION[bias.dtype])
            t = own.expand(*call.u.shape[:2], call.D) if t is None else t + own
        if t is not None and call.lengths is not None:  # so that no NaN passes from there
            t = torch.where(valid_steps(t, call.lengths, call.left_padded), t, 0)
        return t

    def row(slot: int, i: int) -> OptTensor:
        t = tensors[slot]
        return None if t is None else t[d, i].to(ACCUMULATION[t.dtype])

    inputs = [block(*at) for at in full] + [None if at is None else row(*at) for at in vectors]
    states = tensors[_INITIAL : _INITIAL + len(call.cell.states)]
    return inputs, [None if t is None else t[d].to(ACCUMULATION[t.dtype]) for t in states]


def _slopes(
    call: _Call, inputs: Sequence[OptTensor], before: Sequence[Tensor]
) -> list[list[OptTensor]]:
    """Derivatives of output and states by each input and each state before, (B, T, D)."""
    at = [i for i, t in enumerate(inputs) if t is not None]
    full = [t.expand(before[0].shape) for t in inputs if t is not None] + [*before]

    def step(*some: Tensor) -> Tensors:
        own = list(inputs)
        for i, t in zip(at, some, strict=False):
            own[i] = t
        y, after = call.cell.equations(some[len(at) :], *own, *call.options)
        return (y, *after)

    outputs, pullback, *_ = torch.func.vjp(step, *full)
    rows: list[list[OptTensor]] = []
    # One number in each place depends on those in the same place alone.
    for j in range(len(outputs)):
        found = pullback(tuple(torch.full_like(y, float(i == j)) for i, y in enumerate(outputs)))
        row: list[OptTensor] = [None] * len(inputs) + [*found[len(at) :]]
        for i, t in zip(at, found, strict=False):
            row[i] = t
        rows.append(row)
    return rows


def _sum_of_products(slopes: Sequence[OptTensor], tangents: Sequence[OptTensor]) -> Any:
    total: Any = 0
    for s, t in zip(slopes, tangents, strict=True):
        if s is not None and t is not None:
            total = total + s * t
    return total


def _linear(
    gains: Sequence[Sequence[Any]],
    offsets: Sequence[Tensor],
    initial: Sequence[OptTensor],
    sequences: tuple[OptTensor, OptTensor, OptTensor, bool, bool],
) -> tuple[list[Tensor], list[Tensor]]:
    """s_t = gains_t s_{t-1} + offsets_t for states of one number or several: states and finals."""
    if len(offsets) == 1:
        states, last = scan(gains[0][0], offsets[0], initial[0], *sequences)
        return [states], [last]
    # Hillis and Steele's scan: log2 T rounds of products of small matrices.
    cu_seqlens, lengths, reset, reverse, left_padded = sequences
    zero = torch.zeros_like(offsets[0])
    start = torch.stack([previous_state(zero, s, *sequences) for s in initial], -1)
    cut, _ = entry_steps(zero, cu_seqlens, lengths, reverse, left_padded)
    if reset is not None:
        cut = cut | reset.bool().unsqueeze(-1)
    gain = torch.stack([torch.stack([*row], -1) for row in gains], -2)
    offset = torch.stack([*offsets], -1) + (gain @ start.unsqueeze(-1)).squeeze(-1)
    gain = gain.masked_fill(cut[..., None, None], 0)
    if reverse:
        gain, offset = gain.flip(1), offset.flip(1)
    T, width = zero.shape[1], 1
    while width < T:
        before = torch.cat([torch.zeros_like(offset[:, :width]), offset[:, :-width]], 1)
        offset = offset + (gain @ before.unsqueeze(-1)).squeeze(-1)
        gain = gain @ torch.cat([torch.zeros_like(gain[:, :width]), gain[:, :-width]], 1)
        width *= 2
    if reverse:
        offset = offset.flip(1)
    if lengths is not None:
        offset = torch.where(valid_steps(zero, lengths, left_padded)[..., None], offset, 0)
    found = offset.unbind(-1)
    pairs = zip(found, initial, strict=True)
    return [*found], [last_state(s, first, *sequences) for s, first in pairs]


def _tangents(
    call: _Call, tangents: Sequence[OptTensor], y: OptTensor, kept: OptTensor
) -> tuple[Tensor, OptTensor, Tensor, OptTensor]:
    """Tangents of y, kept, last and last2, linear in those of the tensors.

    They are a linear recurrence around the states, which have been found.
    """
    cell, D = call.cell, call.D
    dys, dkepts = [], []
    dlasts: list[list[Tensor]] = [[] for _ in cell.states]
    found = {cell.output_state: y, cell.kept_state: kept}
    bias = call.tensors[_BIAS]
    if bias is not None:  # which in0 has already
        bias = bias - bias.detach()
    for d in range(call.directions):
        sequences = call.sequences(d)
        inputs, initial = _parts(call, d, call.tensors, bias)
        dinputs, dinitial = _parts(call, d, tangents, tangents[_BIAS])
        before = []
        for s, start in enumerate(initial):
            state = found[s]
            assert state is not None
            state = state.narrow(-1, d * D, D).to(ACCUMULATION[state.dtype])
            before.append(previous_state(state, start, *sequences))
        of_y, *of_states = _slopes(call, inputs, before)
        n = len(inputs)
        zero = torch.zeros_like(before[0])
        offsets = [zero + _sum_of_products(row[:n], dinputs) for row in of_states]
        dstates, last = _linear([row[n:] for row in of_states], offsets, dinitial, sequences)
        if cell.output_state >= 0:
            dy = dstates[cell.output_state]
        else:
            dbefore = [
                previous_state(ds, start, *sequences)
                for ds, start in zip(dstates, dinitial, strict=True)
            ]
            dy = _sum_of_products(of_y, (*dinputs, *dbefore))
            if call.lengths is not None:
                dy = torch.where(valid_steps(dy, call.lengths, call.left_padded), dy, 0)
        dys.append(dy)
        if cell.kept_state >= 0:
            dkepts.append(dstates[cell.kept_state])
        for finals, t in zip(dlasts, last, strict=True):
            finals.append(t)
    dtype = call.u.dtype
    dlast, *more = [torch.stack(finals) for finals in dlasts]
    dkept = torch.cat(dkepts, -1).to(dtype) if dkepts else None
    return torch.cat(dys, -1).to(dtype), dkept, dlast, more[0] if more else None


def _compose_backward(dkept: OptTensor, *args: Any) -> Tensors:
    """The operator solve_backward, for a gradient of kept too, as the transpose of `_tangents`."""
    tensors, (y, kept, dy, dlast, dlast2) = args[:_DIFFERENTIABLE], args[_DIFFERENTIABLE:_SEQUENCES]
    *rest, _, _, _, wanted = args[_SEQUENCES + 5 :]
    call = _Call(tensors, args[_SEQUENCES : _SEQUENCES + 5], *rest)
    at = [i for i, (t, w) in enumerate(zip(tensors, wanted, strict=True)) if w and t is not None]
    cotangents = [(k, ct) for k, ct in enumerate((dy, dkept, dlast, dlast2)) if ct is not None]
    gradients: list[OptTensor] = [None] * _DIFFERENTIABLE
    if not at:
        return returnable(gradients, call.u)

    def of_some(*some: Tensor) -> Tensors:
        tangents: list[OptTensor] = [None] * _DIFFERENTIABLE
        for i, t in zip(at, some, strict=True):
            tangents[i] = t
        found = _tangents(call, tangents, y, kept)
        return tuple(out for k, _ in cotangents if (out := found[k]) is not None)

    _, pullback, *_ = torch.func.vjp(of_some, *(torch.zeros_like(tensors[i]) for i in at))
    for i, g in zip(at, pullback(tuple(ct for _, ct in cotangents)), strict=True):
        gradients[i] = g
    return returnable(gradients, call.u)


def _groups(args: Sequence[Any]) -> list[int]:
    """How many times each differentiable tensor has all channels side by side."""
    blocks, directions = args[-6:-4]
    return [blocks * directions, *[directions] * (SLOTS - 1), *[1] * (3 + STATES)]


def _for_samples(
    fn: Callable[..., Tensors],
    samples: int,
    in_dims: Sequence[int | None],
    args: Sequence[Any],
    groups: Sequence[int],
    of_outputs: Sequence[int | None],
) -> tuple[Tensors, tuple[int | None, ...]]:
    """An operator for torch.vmap: the samples of every channel are neighbouring channels.

    Where samples are cut into sequences in different ways, there is one call for each.

    Args:
        fn: the operator.
        samples: how many there are.
        in_dims: the axis of the samples in each argument.
        args: the arguments: as many tensors with channels as there are groups, and the rest.
        groups: how many times a tensor has all channels side by side.
        of_outputs: the same for the outputs; None for those without channels.

    Returns:
        The outputs, and the axis of the samples in each.
    """
    n = len(groups)
    if in_dims[n] is not None:
        raise NotImplementedError(
            "solve: torch.vmap over cu_seqlens is not supported, expected the same for all samples"
        )
    if in_dims[n + 1] is not None or in_dims[n + 2] is not None:
        pairs = [
            (t, dim if isinstance(t, Tensor) else None)
            for t, dim in zip(args, in_dims, strict=True)
        ]
        calls = [
            fn(*(t if dim is None else t.select(dim, k) for t, dim in pairs))
            for k in range(samples)
        ]
        return tuple(torch.stack(parts) for parts in zip(*calls, strict=True)), (0,) * len(calls[0])

    def folded(t: OptTensor, dim: int | None, count: int) -> OptTensor:
        if t is None or t.ndim == 1:  # without elements
            return t
        if dim is None:
            t = t.unsqueeze(-2).expand(*t.shape[:-1], samples, t.shape[-1])
        else:
            t = t.movedim(dim, -2)
        parts: Tensor = t.unflatten(-1, (count, t.shape[-1] // count))
        return parts.transpose(-3, -2).flatten(-3)

    own = [folded(*of) for of in zip(args, in_dims, groups, strict=False)]
    outputs = fn(*own, *args[n:])
    results: list[Tensor] = []
    dims: list[int | None] = []
    for t, count in zip(outputs, of_outputs, strict=True):
        if count is None or t.ndim == 1:
            results.append(t)
            dims.append(None)
        else:
            parts = t.unflatten(-1, (count, samples, t.shape[-1] // (count * samples)))
            results.append(parts.movedim(-2, 0).flatten(-2))
            dims.append(0)
    return tuple(results), tuple(dims)


class _Solve(Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        tensors, sequences = inputs[:_DIFFERENTIABLE], inputs[_DIFFERENTIABLE : _DIFFERENTIABLE + 3]
        ctx.options = inputs[_DIFFERENTIABLE + 3 : -1]
        cell = CELLS[ctx.options[2]]
        y, kept, _, last2, report = output
        states = (
            y if cell.output_state >= 0 else None,
            kept if cell.kept_state >= 0 else None,
        )
        ctx.save_for_backward(*tensors, *states, *sequences)
        ctx.save_for_forward(*tensors, *states, *sequences)
        empty = [t for t in (kept, last2) if t.numel() == 0]
        ctx.mark_non_differentiable(report, *empty)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any,
        dy: OptTensor,
        dkept: OptTensor,
        dlast: OptTensor,
        dlast2: OptTensor,
        _: None,
    ) -> tuple[OptTensor, ...]:
        rest = (None,) * (len(ctx.options) + 4)
        if dy is dkept is dlast is dlast2 is None:
            return (*(None,) * _DIFFERENTIABLE, *rest)
        saved = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:_DIFFERENTIABLE]
        states, sequences = saved[:-3], saved[-3:]
        args = (*states, dy, dlast, dlast2, *sequences, *ctx.options, wanted)
        gradients = solve_backward(*args) if dkept is None else _compose_backward(dkept, *args)
        return (*only(gradients, wanted), *rest)

    @staticmethod
    def jvp(ctx: Any, *tangents: OptTensor) -> tuple[OptTensor, ...]:
        *tensors, y, kept, cu_seqlens, lengths, reset = ctx.saved_tensors
        reverse, left_padded, *rest = ctx.options[:-3]
        call = _Call(tensors, (cu_seqlens, lengths, reset, reverse, left_padded), *rest)
        return (*_tangents(call, tangents[:_DIFFERENTIABLE], y, kept), None)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        groups, d = _groups(args), args[-5]
        return _for_samples(
            _solve_again, info.batch_size, in_dims, args, groups, [d, d, 1, 1, None]
        )


class _SolveBackward(Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[: _SEQUENCES + 3])
        ctx.options = inputs[_SEQUENCES + 3 :]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: OptTensor) -> tuple[OptTensor, ...]:
        args = (None, *ctx.saved_tensors, *ctx.options)
        at = [i + 1 for i, need in enumerate(ctx.needs_input_grad) if need]
        return tuple(pull(_compose_backward, args, at, cotangents)[1:])

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        groups, d = _groups(args), args[-5]
        own = [*groups, d, d, d, 1, 1]
        return _for_samples(_solve_backward_again, info.batch_size, in_dims, args, own, groups)


# ---- Operators -----------------------------------------------------------------------------------

_TENSORS = "Tensor in0, Tensor? in1, Tensor? in2, Tensor? in3, Tensor weights, Tensor? more, " + (
    "Tensor? bias, Tensor? first, Tensor? second"
)
_OPTIONS = (
    f"{SEQUENCES}, int kind, float[] options, bool[] given, int blocks, int directions, "
    "float tolerance, int max_passes, int segment"
)

_solve_as = define(
    "solve",
    f"({_TENSORS}, {_OPTIONS}, bool keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _solve,
    _fake_solve,
    _Solve,
)
_solve_backward_as = define(
    "solve_backward",
    f"({_TENSORS}, Tensor? y, Tensor? kept, Tensor? dy, Tensor? dlast, Tensor? dlast2, {_OPTIONS}, "
    f"bool[{_DIFFERENTIABLE}] wanted) -> ({', '.join(['Tensor'] * _DIFFERENTIABLE)})",
    _solve_backward,
    _fake_solve_backward,
    _SolveBackward,
)


def _solve_again(*args: Any) -> Tensors:
    return _solve_as(situation(*args), *args)


def _solve_backward_again(*args: Any) -> Tensors:
    return returnable(solve_backward(*args), args[0])


def solve(*args: Any) -> tuple[Tensor, list[Tensor], Tensor]:
    """(in0 ... second, *as in scan, kind ... segment) -> y, a final state for each, report."""
    how = situation(*args)
    keep = how == RECORDED or (how == GENERALLY and asks_for_gradients(args))
    if how == GENERALLY and not torch.compiler.is_compiling():
        keep = keep or in_forward_mode() or torch._C._are_functorch_transforms_active()
    y, _, last, last2, report = _solve_as(how, *args, keep)
    states = len(CELLS[args[_DIFFERENTIABLE + 5]].states)
    return y, [last, last2][:states], report


def solve_backward(*args: Any) -> tuple[OptTensor, ...]:
    """(in0 ... second, y, kept, dy, dlast, dlast2, *as in scan, kind ..., wanted) -> gradients.

    Those not wanted have no elements, or are None.
    """
    how = situation(*args)
    if how == GENERALLY and not torch.compiler.is_compiling() and in_forward_mode():
        return _compose_backward(None, *args)
    return _solve_backward_as(how, *args)
