"""Layers with the conventions of torch.nn's recurrent layers."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import PackedSequence

from . import _ops
from ._ops import OptTensor, check_shape, name_of
from .functional import (
    Activation,
    PaddingSide,
    activation_code,
    autocast_applies,
    flag_tensor,
    index_tensor,
    state_dtype,
    to_device_of,
)

__all__ = ["SRU"]

Highway: TypeAlias = Literal["auto", "projection", "none"]


class SRU(nn.Module):
    """Simple recurrent units in layers, with torch.nn.GRU's signature and conventions.

    Each layer and direction computes, from its input x,

        f_t = sigmoid(W_f x_t + b_f),  r_t = sigmoid(W_r x_t + b_r)
        c_t = f_t * c_{t-1} + (1 - f_t) * (W x_t)
        h_t = r_t * g(c_t) + (1 - r_t) * x'_t

    where x' is the highway connection (Lei et al., "Simple Recurrent Units for Highly
    Parallelizable Recurrence", 2018, with v = 0: gates do not see c, which makes the recurrence
    linear and parallel in time). A layer is one matrix product for all gates and directions, and
    one fused operator that reads its output, and writes its gradient, in place. Beside inputs,
    products and outputs, one state in 32 steps is saved for backward.

    Unlike torch.nn.GRU's, the state is not the output: hx and h_n hold c. Final states are in
    float32 for a layer in float16 or bfloat16, and may be passed back as they are. Under autocast
    the products and the output have the autocast dtype, the states float32.

    Args:
        input_size: features of the input.
        hidden_size: features D of the state and output of each direction.
        num_layers: layers, each of which takes the output of the one before.
        bias: whether the gates have biases.
        batch_first: input and output are (B, T, features), not (T, B, features). hx and h_n are
            not affected. Neither order is faster.
        dropout: probability of dropout on the outputs of all layers but the last, in training.
        bidirectional: run a second direction from the end; outputs are concatenated.
        device: of the parameters.
        dtype: of the parameters.
        activation: g, "identity", "tanh" or "relu".
        highway: "auto" takes the layer's input for x' if it is as wide as the layer's output, each
            direction taking its half, and a learned projection of it if not; "projection" always
            learns one; "none" leaves (1 - r_t) * x'_t out.
        highway_scale: x' is the layer's input times this (not where it is a projection). The paper
            uses sqrt(3) for an even variance from layer to layer.
        variational: dropout keeps one mask for all steps of a sequence.

    Attributes:
        weight_ih_l[k]: (directions * G * D, input features) of layer k, direction by direction the
            rows W, W_f, W_r and, for a projection, those of x': G is 3 or 4. Initialised from
            U(-s, s), s = sqrt(3 / input features), for outputs of the input's variance.
        bias_ih_l[k]: (directions * 2 * D), direction by direction b_f, b_r; initialised to 0.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import torch
        >>> rnn = SRU(10, 20, num_layers=2)
        >>> output, c_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, c_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Activation = "identity",
        highway: Highway = "auto",
        highway_scale: float = 1.0,
        variational: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (
            ("input_size", input_size),
            ("hidden_size", hidden_size),
            ("num_layers", num_layers),
        ):
            if size < 1:
                raise ValueError(f"SRU: {name} is {size}, expected at least 1")
        if not 0 <= dropout <= 1:
            raise ValueError(f"SRU: dropout is {dropout}, expected a probability")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "SRU: dropout follows all layers but the last, and num_layers is 1", stacklevel=2
            )
        if highway not in ("auto", "projection", "none"):
            raise ValueError(
                f"SRU: highway is {highway!r}, expected 'auto', 'projection' or 'none'"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.activation = activation
        self.highway = highway
        self.highway_scale = float(highway_scale)
        self.variational = variational
        self._activation = activation_code("SRU", activation)
        directions = self._directions
        for layer in range(num_layers):
            features = input_size if layer == 0 else directions * hidden_size
            blocks = directions * (4 if self.projects_highway(features) else 3)
            weight = torch.empty(blocks * hidden_size, features, device=device, dtype=dtype)
            self.register_parameter(f"weight_ih_l{layer}", nn.Parameter(weight))
            if bias:
                biases = torch.empty(directions * 2 * hidden_size, device=device, dtype=dtype)
                self.register_parameter(f"bias_ih_l{layer}", nn.Parameter(biases))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def projects_highway(self, features: int) -> bool:
        """Whether x' is a learned projection, in a layer with that many input features."""
        same = features == self._directions * self.hidden_size
        return self.highway == "projection" or (self.highway == "auto" and not same)

    def uses_input_as_highway(self, features: int) -> bool:
        """Whether x' is the input itself, in a layer with that many input features."""
        return self.highway == "auto" and not self.projects_highway(features)

    def reset_parameters(self) -> None:
        """Initialise all parameters, as the class says."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                bound = math.sqrt(3 / parameter.shape[1])
                nn.init.uniform_(parameter, -bound, bound)
            else:
                nn.init.zeros_(parameter)

    def extra_repr(self) -> str:
        """What differs from the defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "activation": "identity",
            "highway": "auto",
            "highway_scale": 1.0,
            "variational": False,
        }
        parts += [f"{k}={getattr(self, k)!r}" for k, v in defaults.items() if getattr(self, k) != v]
        return ", ".join(parts)

    @overload
    def forward(
        self,
        input: Tensor,
        hx: Tensor | None = None,
        *,
        lengths: Any = None,
        reset: Any = None,
        cu_seqlens: Any = None,
        padding_side: PaddingSide = "right",
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(
        self, input: PackedSequence, hx: Tensor | None = None
    ) -> tuple[PackedSequence, Tensor]: ...
    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        *,
        lengths: Any = None,
        reset: Any = None,
        cu_seqlens: Any = None,
        padding_side: PaddingSide = "right",
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Run all layers over sequences.

        Args:
            input: (T, B, input_size), or (B, T, input_size) with batch_first, or (T, input_size)
                for one sequence, or a PackedSequence, sorted or not.
            hx: states before the first step, (num_layers * directions, B, hidden_size), without B
                for one sequence; None means zeros. In the input's dtype or its accumulation dtype.
            lengths: (B,) int32 or int64, valid steps of each sequence; output is 0 beyond.
            reset: bool, uint8 or 0/1 floats in the shape of input without its features; where set,
                the state that enters the step is dropped.
            cu_seqlens: (N + 1,) int32 or int64, offsets of N sequences that follow one another in
                the time axis; B must be 1 (or absent). hx and h_n then have N in place of B.
            padding_side: "left" if the valid steps of `lengths` are the last ones.

        Returns:
            output, (T, B, directions * hidden_size) or as input is; a PackedSequence if input is
            one. h_n, the states after each sequence's last step, in hx's shape.

        Raises:
            ValueError: a shape, length, offset or option is wrong.
            TypeError: a dtype is wrong.
        """
        if not isinstance(input, PackedSequence):
            return self._run(input, hx, lengths, reset, cu_seqlens, padding_side)
        if not (lengths is reset is cu_seqlens is None):
            raise ValueError("SRU: lengths, reset or cu_seqlens was given beside a PackedSequence")
        order, back, offsets = (
            to_device_of("SRU", "input.batch_sizes", t, input.data)
            for t in _sequence_major(input.batch_sizes)
        )
        if hx is not None and input.sorted_indices is not None:
            check_shape("SRU", "hx", hx, self._state_shape((len(input.sorted_indices),)))
            hx = hx.index_select(1, input.sorted_indices)
        x = input.data.index_select(0, order)
        output, h_n = self._run(x, hx, None, None, offsets, "right")
        if input.unsorted_indices is not None:
            h_n = h_n.index_select(1, input.unsorted_indices)
        packed = PackedSequence(
            output.index_select(0, back),
            input.batch_sizes,
            input.sorted_indices,
            input.unsorted_indices,
        )
        return packed, h_n

    def step(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run one step, for decoding: the same numbers as one step of a sequence, to rounding.

        Args:
            input: (B, input_size), or (input_size,).
            state: (num_layers, B, hidden_size), or without B: hx at first, then what the last step
                returned; None means zeros.

        Returns:
            output, (B, hidden_size) or (hidden_size,), and the state after the step.

        Raises:
            ValueError: the layer is bidirectional, or a shape is wrong.
            TypeError: a dtype is wrong.
        """
        if self.bidirectional:
            raise ValueError("SRU: a bidirectional layer has no step, it needs the whole sequence")
        if input.ndim not in (1, 2):
            raise ValueError(f"SRU: input of step has {input.ndim} axes, expected 1 or 2")
        axis = 1 if self.batch_first and input.ndim == 2 else 0
        x = input.unsqueeze(axis)
        output, state = self._run(x, state, None, None, None, "right")
        return output.squeeze(axis), state

    def _run(
        self,
        input: Tensor,
        hx: OptTensor,
        lengths: Any,
        reset: Any,
        cu_seqlens: Any,
        padding_side: str,
    ) -> tuple[Tensor, Tensor]:
        if input.ndim not in (2, 3):
            raise ValueError(f"SRU: input has {input.ndim} axes, expected 2 or 3")
        if input.shape[-1] != self.input_size:
            raise ValueError(
                f"SRU: input has shape {tuple(input.shape)}, expected {self.input_size} features"
            )
        weight: Any = self.weight_ih_l0
        if input.dtype != weight.dtype and not autocast_applies(input):
            raise TypeError(
                f"SRU: input has dtype {name_of(input.dtype)}, expected {name_of(weight.dtype)} "
                "(the dtype of the weights)"
            )
        if padding_side not in ("right", "left"):
            raise ValueError(f"SRU: padding_side is {padding_side!r}, expected 'right' or 'left'")

        single = input.ndim == 2
        time_axis, batch_axis = (1, 0) if self.batch_first else (0, 1)
        time = input.shape[0 if single else time_axis]
        lengths = index_tensor("SRU", "lengths", lengths, input, time)
        cu_seqlens = index_tensor("SRU", "cu_seqlens", cu_seqlens, input, time)
        reset = flag_tensor("SRU", "reset", reset, input)
        check_shape("SRU", "reset", reset, input.shape[:-1])
        if reset is not None and self.bidirectional:
            raise ValueError(
                "SRU: reset was given to a bidirectional layer, whose second direction comes from "
                "the other side; expected cu_seqlens for sequences end to end"
            )
        x = input.unsqueeze(batch_axis) if single else input
        if reset is not None:
            reset = reset.unsqueeze(0) if single else reset if self.batch_first else reset.T
        N = x.shape[batch_axis] if cu_seqlens is None else len(cu_seqlens) - 1
        without_batch = single and cu_seqlens is None
        states = self._initial_states(hx, N, without_batch)

        options = (cu_seqlens, lengths, reset, False, padding_side == "left")
        finals = []
        for layer, c0 in enumerate(states):
            if layer > 0:
                x = self._drop(x, cu_seqlens)
            x, final = self._layer(layer, x, c0, options)
            finals.append(final)
        h_n = finals[0] if len(finals) == 1 else torch.cat(finals)
        return (
            x.squeeze(batch_axis) if single else x,
            h_n.squeeze(1) if without_batch else h_n,
        )

    def _state_shape(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        return (self.num_layers * self._directions, *batch, self.hidden_size)

    def _initial_states(self, hx: OptTensor, N: int, without_batch: bool) -> tuple[OptTensor, ...]:
        """(directions, N, D) for each layer."""
        if hx is None:
            return (None,) * self.num_layers
        check_shape("SRU", "hx", hx, self._state_shape(() if without_batch else (N,)))
        hx = hx.unsqueeze(1) if without_batch else hx
        layers: tuple[Tensor, ...] = hx.unflatten(0, (self.num_layers, -1)).unbind(0)
        return layers

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

    def _layer(
        self, layer: int, x: Tensor, c0: OptTensor, options: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor]:
        """One layer on x as forward got it, (T, B, features) or (B, T, features)."""
        products = F.linear(x, getattr(self, f"weight_ih_l{layer}"))
        skip = None
        if self.uses_input_as_highway(x.shape[-1]):
            skip = x.to(products.dtype)
            skip = skip if self.highway_scale == 1 else skip * self.highway_scale
        bias = getattr(self, f"bias_ih_l{layer}") if self.bias else None
        if not self.batch_first:
            products = products.transpose(0, 1)
            skip = None if skip is None else skip.transpose(0, 1)
        h, final = _ops.sru(
            products,
            None,
            None,
            skip,
            state_dtype("SRU", "bias", bias, products),
            None,
            state_dtype("SRU", "hx", c0, products),
            *options,
            self._activation,
            products.shape[-1] // self.hidden_size,
        )
        return h if self.batch_first else h.transpose(0, 1), final


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
