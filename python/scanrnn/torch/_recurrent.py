"""What all layers have in common: torch.nn.GRU's conventions around one cell."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import PackedSequence

from scanrnn._array.layout import PaddingSide
from scanrnn._array.options import check_padding_side, real_number, whole_number

from . import _cells
from ._arguments import (
    Sequences,
    autocast_applies,
    flag_tensor,
    index_tensor,
    require_tensor,
    state_dtype,
    to_device_of,
    without_padding,
)
from ._ops import OptTensor, check_devices, check_shape, name_of

#: A tensor, or a tuple of them for a layer with several parts of the state.
StateT = TypeVar("StateT")


class Recurrent(nn.Module, Generic[StateT]):
    """Base of the layers: everything but the cell.

    A subclass says which parameters a layer has (`_shapes`), how they begin (`_initialise`), and
    what a layer computes (`_layer`). Its constructor ends with `_build`.
    """

    #: The keywords of the constructor that `extra_repr` shows where they differ from these.
    _defaults: ClassVar[dict[str, Any]] = {}
    _common_defaults: ClassVar[dict[str, Any]] = {
        "num_layers": 1,
        "bias": True,
        "batch_first": False,
        "dropout": 0.0,
        "bidirectional": False,
        "proj_size": 0,
        "variational": False,
    }
    #: The parts of the state, by the names that errors call them.
    _states: tuple[str, ...] = ("hx",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        *,
        proj_size: int = 0,
        variational: bool = False,
    ) -> None:
        super().__init__()
        self._fn = type(self).__name__
        for name, size, least in (
            ("input_size", input_size, 1),
            ("hidden_size", hidden_size, 1),
            ("num_layers", num_layers, 1),
            ("proj_size", proj_size, 0),
        ):
            if whole_number(self._fn, name, size) < least:
                raise ValueError(f"{self._fn}: {name} is {size}, expected at least {least}")
        self._require_probability("dropout", dropout)
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"{self._fn}: dropout follows all layers but the last, and num_layers is 1",
                stacklevel=3,
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self.variational = variational

    # ---- What a subclass defines -----------------------------------------------------------------

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        """The parameters of a layer with that many input features, in order."""
        raise NotImplementedError

    def _initialise(self, name: str, parameter: Tensor) -> None:
        """Initialise a parameter, called by its name without the layer's number."""
        if name.startswith("weight"):
            bound = math.sqrt(3 / parameter.shape[-1])
            nn.init.uniform_(parameter, -bound, bound)
        else:
            nn.init.zeros_(parameter)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer.

        Args:
            layer: its number.
            x: as forward got it, (T, B, features) or (B, T, features).
            states: its share of each part of the state.
            options: the sequences.

        Returns:
            The output, laid out as x, and the final states.
        """
        raise NotImplementedError

    def _state_sizes(self) -> list[tuple[int, int]]:
        """Rows and features of each part of the state, (rows, N, features)."""
        return [(self.num_layers * self._directions, self.hidden_size)] * len(self._states)

    def _by_layer(self, part: int, state: Tensor) -> Sequence[Tensor]:
        """A part of the state, (rows, N, features), as one tensor a layer: (directions, N, D)."""
        layers: tuple[Tensor, ...] = state.unflatten(0, (self.num_layers, -1)).unbind(0)
        return layers

    def _join(self, part: int, states: Sequence[Tensor]) -> Tensor:
        """Undo `_by_layer`."""
        return states[0] if len(states) == 1 else torch.cat([*states])

    # ---- Tools for it ----------------------------------------------------------------------------

    def _build(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Make and initialise the parameters."""
        self._first = f"{next(iter(self._shapes(self.input_size)))}_l0"
        for layer in range(self.num_layers):
            for name, shape in self._shapes(self._features(layer)).items():
                tensor = torch.empty(shape, device=device, dtype=dtype)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(tensor))
        self.reset_parameters()

    def _require_probability(self, name: str, value: float) -> None:
        if not 0 <= real_number(self._fn, name, value) <= 1:
            raise ValueError(f"{self._fn}: {name} is {value}, expected a probability")

    def _require_one_of(self, name: str, value: object, allowed: Sequence[object]) -> None:
        if value not in allowed:
            *others, last = map(repr, allowed)
            expected = f"{', '.join(others)} or {last}"
            raise ValueError(f"{self._fn}: {name} is {value!r}, expected {expected}")

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _features(self, layer: int) -> int:
        """Input features of a layer."""
        return self.input_size if layer == 0 else self._directions * self._output_size

    def _of(self, name: str, layer: int) -> Any:
        """A layer's parameter, None if there is none of that name."""
        # Not from self._parameters: it may be parametrised, or replaced by a plain tensor.
        return getattr(self, f"{name}_l{layer}", None)

    def _affine_shapes(self, blocks: int, features: int) -> dict[str, tuple[int, ...]]:
        """One matrix product for all gates and directions, its bias, the output's projection."""
        rows, D = self._directions * blocks * self.hidden_size, self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, features)}
        if self.bias:
            shapes["bias_ih"] = (rows,)
        if self.proj_size:
            shapes["weight_hr"] = (self._directions * self.proj_size, D)
        return shapes

    def _swap(self, t: Tensor) -> Tensor:
        """From the layer's layout, (T, B, ...) or (B, T, ...), to (B, T, ...), or back."""
        return t if self.batch_first else t.transpose(0, 1)

    def _affine(self, layer: int, x: Tensor) -> Tensor:
        """The matrix product for all gates and directions, as (B, T, rows)."""
        return self._swap(F.linear(x, self._of("weight_ih", layer), self._of("bias_ih", layer)))

    def _cell(
        self,
        kind: str,
        inputs: Sequence[OptTensor],
        state: OptTensor,
        options: Sequences,
        numbers: Sequence[float],
        blocks: int,
        directions: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A fused cell on (B, T, ...) inputs in the operators' form: output and final state."""
        u = inputs[0]
        assert u is not None
        y, final = _cells.cell(
            *inputs,
            *(None,) * (_cells.SLOTS - len(inputs)),
            state_dtype(self._fn, "hx", state, u),
            *options,
            _cells.KINDS[kind],
            numbers,
            blocks,
            self._directions if directions is None else directions,
        )
        return y, final

    def _project(self, layer: int, y: Tensor) -> Tensor:
        """The output (B, T, directions * D) in the layer's layout, projected if it shall be."""
        y = self._swap(y)
        if not self.proj_size:
            return y
        parts = zip(
            y.chunk(self._directions, -1),
            self._of("weight_hr", layer).chunk(self._directions),
            strict=True,
        )
        outputs = [F.linear(part, weight) for part, weight in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    # ---- The public layer ------------------------------------------------------------------------

    def reset_parameters(self) -> None:
        """Initialise all parameters, as the class says."""
        for name, parameter in self.named_parameters():
            self._initialise(name.rsplit("_l", 1)[0], parameter)

    def extra_repr(self) -> str:
        """What differs from the defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for name, default in (self._common_defaults | self._defaults).items():
            if (value := getattr(self, name)) != default:
                parts.append(f"{name}={value!r}")
        return ", ".join(parts)

    @overload
    def forward(
        self,
        input: Tensor,
        hx: StateT | None = None,
        *,
        lengths: Any = None,
        reset: Any = None,
        cu_seqlens: Any = None,
        padding_side: PaddingSide = "right",
    ) -> tuple[Tensor, StateT]: ...
    @overload
    def forward(
        self, input: PackedSequence, hx: StateT | None = None
    ) -> tuple[PackedSequence, StateT]: ...
    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: StateT | None = None,
        *,
        lengths: Any = None,
        reset: Any = None,
        cu_seqlens: Any = None,
        padding_side: PaddingSide = "right",
    ) -> tuple[Tensor | PackedSequence, StateT]:
        """Run all layers over sequences.

        Args:
            input: (T, B, input_size), or (B, T, input_size) with batch_first, or (T, input_size)
                for one sequence, or a PackedSequence, sorted or not.
            hx: states before the first step, (num_layers * directions, B, hidden_size), without B
                for one sequence; None means zeros. In the input's dtype or its accumulation dtype.
                A tuple for a layer whose state has several parts, as the class says.
            lengths: (B,) int32 or int64, valid steps of each sequence; output is 0 beyond.
            reset: bool, uint8 or 0/1 floats in the shape of input without its features; where set,
                the state that enters the step is dropped.
            cu_seqlens: (N + 1,) int32 or int64, offsets of N sequences that follow one another in
                the time axis; B must be 1 (or absent). hx and h_n then have N in place of B.
            padding_side: "left" if the valid steps of `lengths` are the last ones.

        Returns:
            output, (T, B, directions * features) or as input is; a PackedSequence if input is one.
            The features are hidden_size, or proj_size if that is not 0. h_n, the states after each
            sequence's last step, in hx's shape.

        Raises:
            ValueError: a shape, length, offset, option or device is wrong.
            TypeError: a dtype is wrong.
        """
        fn, states = self._fn, self._parts(hx)
        if not isinstance(input, PackedSequence):
            y, finals = self._run(input, states, lengths, reset, cu_seqlens, padding_side)
            return y, self._whole(finals)
        sequences = {"lengths": lengths, "reset": reset, "cu_seqlens": cu_seqlens}
        for name, value in sequences.items():
            if value is not None:
                raise ValueError(f"{fn}: {name} was given beside a PackedSequence, expected None")
        order, back, offsets = (
            to_device_of(fn, "input.batch_sizes", t, input.data)
            for t in _sequence_major(input.batch_sizes)
        )
        if input.sorted_indices is not None:
            self._check_states(states, (len(input.sorted_indices),))
            states = [
                None if s is None else s.index_select(1, input.sorted_indices) for s in states
            ]
        x = input.data.index_select(0, order)
        y, finals = self._run(x, states, None, None, offsets, "right")
        if input.unsorted_indices is not None:
            finals = [s.index_select(1, input.unsorted_indices) for s in finals]
        packed = PackedSequence(
            y.index_select(0, back),
            input.batch_sizes,
            input.sorted_indices,
            input.unsorted_indices,
        )
        return packed, self._whole(finals)

    def step(self, input: Tensor, state: StateT | None = None) -> tuple[Tensor, StateT]:
        """Run one step, for decoding: the same numbers as one step of a sequence, to rounding.

        Args:
            input: (B, input_size), or (input_size,).
            state: (num_layers, B, hidden_size), or without B: hx at first, then what the last step
                returned; None means zeros. A tuple where hx is one.

        Returns:
            output, (B, features) or (features,), and the state after the step.

        Raises:
            ValueError: the layer is bidirectional, or a shape is wrong.
            TypeError: a dtype is wrong.
        """
        if self.bidirectional:
            raise ValueError(
                f"{self._fn}: a bidirectional layer has no step, expected one direction: the "
                "second needs the whole sequence"
            )
        require_tensor(self._fn, "input of step", input)
        if input.ndim not in (1, 2):
            raise ValueError(f"{self._fn}: input of step has {input.ndim} axes, expected 1 or 2")
        axis = 1 if self.batch_first and input.ndim == 2 else 0
        x = input.unsqueeze(axis)
        y, finals = self._run(x, self._parts(state), None, None, None, "right")
        return y.squeeze(axis), self._whole(finals)

    # ---- States ----------------------------------------------------------------------------------

    def _parts(self, hx: StateT | None) -> list[OptTensor]:
        """The parts of a state that a caller passed."""
        if hx is None:
            return [None] * len(self._states)
        parts: Any = (hx,) if len(self._states) == 1 else hx
        if not isinstance(parts, (tuple, list)) or len(parts) != len(self._states):
            raise TypeError(
                f"{self._fn}: hx is a {type(hx).__name__}, expected ({', '.join(self._states)})"
            )
        for name, part in zip(self._states, parts, strict=True):
            if not isinstance(part, Tensor):
                raise TypeError(
                    f"{self._fn}: {name} is a {type(part).__name__}, expected a torch.Tensor"
                )
        return [*parts]

    def _whole(self, finals: Sequence[Tensor]) -> StateT:
        return cast(StateT, finals[0] if len(finals) == 1 else tuple(finals))

    def _check_states(self, states: Sequence[OptTensor], batch: tuple[int, ...]) -> None:
        for name, state, (rows, features) in zip(
            self._states, states, self._state_sizes(), strict=True
        ):
            check_shape(self._fn, name, state, (rows, *batch, features))

    # ---- All layers ------------------------------------------------------------------------------

    def _run(
        self,
        input: Tensor,
        states: Sequence[OptTensor],
        lengths: Any,
        reset: Any,
        cu_seqlens: Any,
        padding_side: str,
    ) -> tuple[Tensor, list[Tensor]]:
        fn = self._fn
        require_tensor(fn, "input", input)
        if input.ndim not in (2, 3):
            raise ValueError(f"{fn}: input has {input.ndim} axes, expected 2 or 3")
        if input.shape[-1] != self.input_size:
            raise ValueError(
                f"{fn}: input has shape {tuple(input.shape)}, expected {self.input_size} features"
            )
        weight: Tensor = getattr(self, self._first)
        if input.device != weight.device:
            raise ValueError(
                f"{fn}: input is on device {input.device}, expected {weight.device} (the device of "
                "the weights)"
            )
        dtype = weight.dtype
        if input.dtype != dtype and not autocast_applies(input):
            raise TypeError(
                f"{fn}: input has dtype {name_of(input.dtype)}, expected {name_of(dtype)} "
                "(the dtype of the weights)"
            )
        check_padding_side(fn, padding_side)

        single = input.ndim == 2
        time_axis, batch_axis = (1, 0) if self.batch_first else (0, 1)
        time = input.shape[0 if single else time_axis]
        lengths = index_tensor(fn, "lengths", lengths, input, time)
        cu_seqlens = index_tensor(fn, "cu_seqlens", cu_seqlens, input, time)
        reset = flag_tensor(fn, "reset", reset, input)
        check_shape(fn, "reset", reset, input.shape[:-1])
        if reset is not None and self.bidirectional:
            raise ValueError(
                f"{fn}: reset was given to a bidirectional layer, whose second direction comes "
                "from the other side; expected cu_seqlens for sequences end to end"
            )
        x = input.unsqueeze(batch_axis) if single else input
        if reset is not None:
            reset = reset.unsqueeze(0) if single else reset if self.batch_first else reset.T
        if lengths is not None:
            check_shape(fn, "lengths", lengths, () if single else (x.shape[batch_axis],))
            lengths = lengths.unsqueeze(0) if single else lengths
            # A NaN in the padding would reach the weights' gradients, which are 0 * NaN there.
            x = self._swap(without_padding(self._swap(x), lengths, padding_side == "left"))
        N = x.shape[batch_axis] if cu_seqlens is None else len(cu_seqlens) - 1
        without_batch = single and cu_seqlens is None
        shares: Sequence[tuple[OptTensor, ...]] = [(None,) * len(states)] * self.num_layers
        if states[0] is not None:  # then there are all
            self._check_states(states, () if without_batch else (N,))
            check_devices(fn, input=input, **dict(zip(self._states, states, strict=True)))
            by_part = [
                self._by_layer(i, s.unsqueeze(1) if without_batch else s)
                for i, s in enumerate(states)
                if s is not None
            ]
            shares = [*zip(*by_part, strict=True)]

        options = (cu_seqlens, lengths, reset, False, padding_side == "left")
        finals = []
        for layer in range(self.num_layers):
            if layer > 0:
                x = self._drop(x, cu_seqlens)
            x, final = self._layer(layer, x, shares[layer], options)
            finals.append(final)
        h_n = [self._join(i, part) for i, part in enumerate(zip(*finals, strict=True))]
        return (
            x.squeeze(batch_axis) if single else x,
            [h.squeeze(1) for h in h_n] if without_batch else h_n,
        )

    def _drop(self, x: Tensor, cu_seqlens: OptTensor) -> Tensor:
        """Dropout between layers."""
        if not (self.variational and self.training):
            return F.dropout(x, self.dropout, self.training)
        time_axis, batch_axis = (1, 0) if self.batch_first else (0, 1)
        N = x.shape[batch_axis] if cu_seqlens is None else len(cu_seqlens) - 1
        mask = F.dropout(x.new_ones(N, x.shape[-1]), self.dropout)
        if cu_seqlens is None:
            return x * mask.unsqueeze(time_axis)
        steps = mask.repeat_interleave(cu_seqlens.diff(), 0, output_size=x.shape[time_axis])
        return x * steps.unsqueeze(batch_axis)


def _sequence_major(sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How to lay the steps of packed sequences end to end, in their packed order.

    Computed on the CPU, where PyTorch keeps the sizes: a GPU need not be waited for.

    Args:
        sizes: rows of each step, which do not increase.

    Returns:
        The place in the packed data of each step, the inverse of that, and the offsets of the
        sequences, all int64.
    """
    device = sizes.device  # not the default one
    first_row = sizes.cumsum(0) - sizes
    ends_here = sizes - torch.cat([sizes[1:], sizes.new_zeros(1)])
    lengths = torch.arange(len(sizes), 0, -1, device=device).repeat_interleave(ends_here.flip(0))
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    steps = torch.arange(int(offsets[-1]), device=device)
    step = steps - offsets[:-1].repeat_interleave(lengths)
    rank = torch.arange(len(lengths), device=device)
    order = first_row[step] + rank.repeat_interleave(lengths)
    back = torch.empty_like(order).index_copy_(0, order, steps)
    return order, back, offsets
