"""Layers of nonlinear cells with diagonal recurrent weights, with torch.nn.GRU's conventions.

They are as the layers of `scanrnn.torch.modules`: a matrix product for all gates and directions,
and one operator that reads its output in place. Backward, it sums the gradient of the product's
bias on the way: a reduction of its own would take 0.15 ms of the LSTM's 3.0 on an H200, and 0.12 of
the GRU's 2.5 (16 x 4096 steps, 512 units). It solves the recurrence in parallel over time, to a
tolerance, as `scanrnn.torch.diagonal` says; `last_report` says how that went, layer by layer and
direction by direction, and nothing waits for it. Recurrent weights and biases are vectors over the
directions and channels: direction by direction the rows that the class names, of hidden_size each.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from scanrnn.cells import SruActivation

from ._arguments import Sequences, activation_code
from ._ops import OptTensor
from ._recurrent import StateT
from ._solved import Solved

__all__ = ["DiagonalGRU", "DiagonalLSTM", "IndRNN"]


class _Diagonal(Solved[StateT]):
    """A layer that is one matrix product, whose blocks the cell takes, and vectors."""

    def _initialise(self, name: str, parameter: Tensor) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        nn.init.uniform_(parameter, -bound, bound)

    def _gates(self, layer: int, x: Tensor) -> tuple[tuple[Tensor], OptTensor]:
        """The matrix product, and its bias, whose gradient is found with the product's."""
        bias = self._of("bias_ih", layer)
        product = F.linear(x, self._of("weight_ih", layer), None if bias is None else bias.detach())
        return (self._swap(product),), bias

    def _diagonal_shapes(
        self, features: int, blocks: int, **rows: int
    ) -> dict[str, tuple[int, ...]]:
        """The product's parameters and vectors of that many rows, in order."""
        shapes = self._affine_shapes(blocks, features)
        width = self._directions * self.hidden_size
        return shapes | {name: (n * width,) for name, n in rows.items()}


class DiagonalGRU(_Diagonal[Tensor]):
    """Gated recurrent units with diagonal recurrent weights, with torch.nn.GRU's conventions.

        r_t = sigmoid(W_r x_t + b_r + u_r * h_{t-1}),  z_t = sigmoid(W_z x_t + b_z + u_z * h_{t-1})
        n_t = tanh(W_n x_t + b_n + r_t * (u_n * h_{t-1} + b'_n))
        h_t = (1 - z_t) * n_t + z_t * h_{t-1}

    Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, in torch.nn.GRU's
    form, with vectors u in place of the recurrent matrices. See the module for how it is computed,
    `scanrnn.torch.modules` for what all layers have in common, and `scanrnn.torch.diagonal_gru` for
    the function.

    Args:
        input_size: features of the input.
        hidden_size: features D of the state of each direction.
        num_layers: layers, each of which takes the output of the one before.
        bias: whether there are biases.
        batch_first: input and output are (B, T, features), not (T, B, features).
        dropout: probability of dropout on the outputs of all layers but the last, in training.
        bidirectional: run a second direction from the end; outputs are concatenated.
        device: of the parameters.
        dtype: of the parameters.
        proj_size: features of the output of each direction, 0 for hidden_size.
        variational: dropout keeps one mask for all steps of a sequence.
        tolerance: as in `scanrnn.torch.diagonal`, likewise max_passes and segment.
        max_passes: see tolerance.
        segment: see tolerance.

    Attributes:
        weight_ih_l[k]: (directions * 3 * D, input features), direction by direction the rows W_r,
            W_z, W_n. All parameters are initialised from U(-s, s), s = sqrt(1 / D), as
            torch.nn.GRU's.
        bias_ih_l[k]: (directions * 3 * D,), likewise b_r, b_z, b_n.
        weight_hh_l[k]: (directions * 3 * D,), likewise u_r, u_z, u_n.
        bias_hh_l[k]: (directions * D,), b'_n.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import torch
        >>> rnn = DiagonalGRU(10, 20, num_layers=2)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape, len(rnn.last_report)
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]), 2)
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
        proj_size: int = 0,
        variational: bool = False,
        tolerance: float | None = None,
        max_passes: int = 8,
        segment: int | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size=proj_size, variational=variational,
        )  # fmt: skip
        self._solve_by(tolerance, max_passes, segment)
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        vectors = {"weight_hh": 3} | ({"bias_hh": 1} if self.bias else {})
        return self._diagonal_shapes(features, 3, **vectors)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        vectors = [self._of("weight_hh", layer), self._of("bias_hh", layer)]
        given = [True, True, True, self.bias]
        inputs, bias = self._gates(layer, x)
        h, finals = self._solve(
            "diagonal_gru", inputs, vectors, given, states, options, [], 3, bias
        )
        return self._project(layer, h), finals


class DiagonalLSTM(_Diagonal[tuple[Tensor, Tensor]]):
    """Long short-term memory with diagonal recurrent weights, with torch.nn.LSTM's conventions.

        f_t, i_t, o_t = sigmoid(W x_t + b + u * h_{t-1})   (each its own),  g_t = tanh(likewise)
        c_t = f_t * c_{t-1} + i_t * g_t,  h_t = o_t * tanh(c_t)

    Hochreiter & Schmidhuber, "Long short-term memory", 1997, in torch.nn.LSTM's form, with vectors
    u in place of the recurrent matrices. With peepholes, f_t and i_t see w * c_{t-1} too, and o_t
    sees w_o * c_t (Gers et al., "Learning precise timing with LSTM recurrent networks", 2002).
    Coupled, i_t = 1 - f_t (Greff et al., "LSTM: a search space odyssey", 2017). See the module for
    how it is computed, `scanrnn.torch.modules` for what all layers have in common, and
    `scanrnn.torch.diagonal_lstm` for the function.

    The state, hx and the final one, is a pair (h, c), each (num_layers * directions, B, D).

    Args:
        input_size: features of the input.
        hidden_size: features D of the state of each direction.
        num_layers: layers, each of which takes the output of the one before.
        bias: whether there are biases.
        batch_first: input and output are (B, T, features), not (T, B, features).
        dropout: probability of dropout on the outputs of all layers but the last, in training.
        bidirectional: run a second direction from the end; outputs are concatenated.
        device: of the parameters.
        dtype: of the parameters.
        peephole: whether the gates see c.
        coupled: whether i_t = 1 - f_t.
        proj_size: features of the output of each direction, 0 for hidden_size. The state is not
            projected, other than torch.nn.LSTM's h.
        variational: dropout keeps one mask for all steps of a sequence.
        tolerance: as in `scanrnn.torch.diagonal`, likewise max_passes and segment.
        max_passes: see tolerance.
        segment: see tolerance.

    Attributes:
        weight_ih_l[k]: (directions * 4 * D, input features), direction by direction the rows W_f,
            W_g, W_o, W_i; no W_i, and 3 for 4, if coupled. All parameters are initialised from
            U(-s, s), s = sqrt(1 / D), as torch.nn.LSTM's.
        bias_ih_l[k]: (directions * 4 * D,), likewise.
        weight_hh_l[k]: (directions * 4 * D,), likewise u_f, u_g, u_o, u_i.
        weight_ch_l[k]: (directions * 3 * D,), only with peepholes: likewise w_f, w_o, w_i.

    Raises:
        ValueError: an argument is out of range.
    """

    _defaults: ClassVar[dict[str, Any]] = {"peephole": False, "coupled": False}
    _states = ("h", "c")

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
        peephole: bool = False,
        coupled: bool = False,
        proj_size: int = 0,
        variational: bool = False,
        tolerance: float | None = None,
        max_passes: int = 8,
        segment: int | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size=proj_size, variational=variational,
        )  # fmt: skip
        self.peephole = peephole
        self.coupled = coupled
        self._solve_by(tolerance, max_passes, segment)
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        blocks = 3 if self.coupled else 4
        vectors = {"weight_hh": blocks} | ({"weight_ch": blocks - 1} if self.peephole else {})
        return self._diagonal_shapes(features, blocks, **vectors)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        vectors = [self._of("weight_hh", layer), self._of("weight_ch", layer)]
        separate, peep = not self.coupled, self.peephole
        given = [True, True, True, separate, peep, peep, peep and separate]
        inputs, bias = self._gates(layer, x)
        h, finals = self._solve(
            "diagonal_lstm", inputs, vectors, given, states, options, [], 3 + separate, bias
        )
        return self._project(layer, h), finals


class IndRNN(_Diagonal[Tensor]):
    """Independently recurrent networks in layers, with torch.nn.RNN's conventions.

        h_t = g(W x_t + b + u * h_{t-1})

    Li et al., "Independently recurrent neural network (IndRNN): building a longer and deeper RNN",
    2018, equation 2. See the module for how it is computed, `scanrnn.torch.modules` for what all
    layers have in common, and `scanrnn.torch.indrnn` for the function.

    With relu and identity, states grow without a bound where abs(u) is above 1: the paper keeps it
    to at most 2^(1/T) for sequences of T steps (``rnn.weight_hh_l0.data.clamp_(-bound, bound)``
    after each step of training).

    Args:
        input_size: features of the input.
        hidden_size: features D of the state of each direction.
        num_layers: layers, each of which takes the output of the one before.
        bias: whether there are biases.
        batch_first: input and output are (B, T, features), not (T, B, features).
        dropout: probability of dropout on the outputs of all layers but the last, in training.
        bidirectional: run a second direction from the end; outputs are concatenated.
        device: of the parameters.
        dtype: of the parameters.
        nonlinearity: g, "relu", "tanh" or "identity".
        proj_size: features of the output of each direction, 0 for hidden_size.
        variational: dropout keeps one mask for all steps of a sequence.
        tolerance: as in `scanrnn.torch.diagonal`, likewise max_passes and segment.
        max_passes: see tolerance.
        segment: see tolerance.

    Attributes:
        weight_ih_l[k]: (directions * D, input features), initialised from U(-s, s), s = sqrt(3 /
            input features), for products of the input's variance; bias_ih_l[k], (directions * D,),
            to 0.
        weight_hh_l[k]: (directions * D,), u, initialised from U(0, 1): the paper's range for relu
            from 0 to 2^(1/T), for long sequences.

    Raises:
        ValueError: an argument is out of range.
    """

    _defaults: ClassVar[dict[str, Any]] = {"nonlinearity": "relu"}

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
        nonlinearity: SruActivation = "relu",
        proj_size: int = 0,
        variational: bool = False,
        tolerance: float | None = None,
        max_passes: int = 8,
        segment: int | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size=proj_size, variational=variational,
        )  # fmt: skip
        self.nonlinearity = nonlinearity
        self._activation = activation_code(self._fn, nonlinearity, SruActivation, "nonlinearity")
        self._solve_by(tolerance, max_passes, segment)
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        return self._diagonal_shapes(features, 1, weight_hh=1)

    def _initialise(self, name: str, parameter: Tensor) -> None:
        if name == "weight_hh":
            nn.init.uniform_(parameter)
        else:
            super(_Diagonal, self)._initialise(name, parameter)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (inputs, bias), vectors = self._gates(layer, x), [self._of("weight_hh", layer)]
        numbers = [self._activation]
        h, finals = self._solve(
            "indrnn", inputs, vectors, [True], states, options, numbers, 1, bias
        )
        return self._project(layer, h), finals
