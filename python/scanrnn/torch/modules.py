"""Layers with the conventions of torch.nn's recurrent layers.

Their signature begins like torch.nn.GRU's, they take and give what it does (tensors in either
order, a PackedSequence, one sequence without a batch axis), and besides `lengths`, `reset`,
`cu_seqlens` and `step`. What they have in common:

- parameters ``weight_ih_l[k]`` and ``bias_ih_l[k]`` of layer k belong to one matrix product for all
  gates and directions: its rows are, direction by direction, the blocks that the class names, of
  hidden_size each. A layer is this product and one fused operator that reads its output, and writes
  its gradient, in place;
- weights are initialised from U(-s, s), s = sqrt(3 / input features), for outputs of the input's
  variance, and biases to 0, unless the class says otherwise;
- the state, hx and h_n, is (num_layers * directions, B, hidden_size), or a tuple of several parts
  where the class says so. Final states are in float32 for a layer in float16 or bfloat16, and may
  be passed back as they are. Under autocast the products and the output have the autocast dtype,
  the states float32;
- with proj_size P > 0, the output is projected to P features a direction by ``weight_hr_l[k]``,
  (directions * P, hidden_size), as torch.nn.LSTM calls it; the state is not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from scanrnn import _docs
from scanrnn._array.options import real_number, whole_number
from scanrnn.cells import Activation, SruActivation

from ._arguments import Sequences, activation_code, state_dtype, without_padding
from ._ops import OptTensor, entry_steps, last_state, name_of, previous_state, scan
from ._recurrent import Recurrent
from ._solved import Solved

__all__ = ["GILR", "GILRLSTM", "HGRN", "LRU", "QRNN", "RGLRU", "S5", "SRU", "MinGRU", "MinLSTM"]

_documented = functools.partial(_docs.documented_layer, _docs.TORCH_LAYER)

Highway: TypeAlias = Literal["auto", "projection", "none"]
Pooling: TypeAlias = Literal["f", "fo", "ifo"]


@_documented("sru", equations=True)
class SRU(Solved[Tensor]):
    """Simple recurrent units in layers, with torch.nn.GRU's signature and conventions.

    Here u, f and r are W x, W_f x and W_r x of the layer's input x, and skip is the highway
    connection x'. Beside inputs, products and outputs, one state in 32 steps is saved for backward.
    See the module for what all layers have in common, and `scanrnn.torch.sru` for the function.

    v_f and v_r are there with recurrent=True, as in the paper and the SRU package's default. Then
    `last_report` says how the recurrence was solved, and all states are saved for backward.

    Unlike torch.nn.GRU's, the state is not the output: hx and h_n hold c.

    Args:
        highway: "auto" takes the layer's input for x' if it is as wide as the layer's output, each
            direction taking its half, and a learned projection of it if not; "projection" always
            learns one; "none" leaves (1 - r_t) * x'_t out.
        highway_scale: x' is the layer's input times this (not where it is a projection). The paper
            uses sqrt(3) for an even variance from layer to layer.
        recurrent: whether the gates see c.

    Attributes:
        weight_ih_l[k]: (directions * G * D, input features) of layer k, direction by direction the
            rows W, W_f, W_r and, for a projection, those of x': G is 3 or 4. Initialised from
            U(-s, s), s = sqrt(3 / input features), for outputs of the input's variance.
        bias_ih_l[k]: (directions * 2 * D), direction by direction b_f, b_r; initialised to 0.
        weight_c_l[k]: (directions * 2 * D), direction by direction v_f, v_r, only with
            recurrent=True; initialised from U(-s, s), s = sqrt(3 / 2), as in the SRU package.

    Example:
        >>> import torch
        >>> rnn = SRU(10, 20, num_layers=2)
        >>> output, c_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, c_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    _defaults: ClassVar[dict[str, Any]] = {
        "activation": "identity",
        "highway": "auto",
        "highway_scale": 1.0,
        "recurrent": False,
    }

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
        activation: SruActivation = "identity",
        highway: Highway = "auto",
        highway_scale: float = 1.0,
        variational: bool = False,
        recurrent: bool = False,
        tolerance: float | None = None,
        max_passes: int = 8,
        segment: int | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            variational=variational,
        )  # fmt: skip
        self._require_one_of("highway", highway, ("auto", "projection", "none"))
        self.activation = activation
        self.highway = highway
        self.highway_scale = real_number(self._fn, "highway_scale", highway_scale)
        self._activation = activation_code(self._fn, activation, SruActivation)
        self.recurrent = recurrent
        self._solve_by(tolerance, max_passes, segment)
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        rows = self._directions * self.hidden_size
        blocks = 4 if self.projects_highway(features) else 3
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows * blocks, features)}
        if self.bias:
            shapes["bias_ih"] = (rows * 2,)
        if self.recurrent:
            shapes["weight_c"] = (rows * 2,)
        return shapes

    def _initialise(self, name: str, parameter: Tensor) -> None:
        if name == "weight_c":
            nn.init.uniform_(parameter, -math.sqrt(1.5), math.sqrt(1.5))
        else:
            super()._initialise(name, parameter)

    def _whole(self, finals: Sequence[Tensor]) -> Tensor:
        # A linear recurrence has no reports.
        return super()._whole(finals) if self.recurrent else Recurrent._whole(self, finals)

    def projects_highway(self, features: int) -> bool:
        """Whether x' is a learned projection, in a layer with that many input features.

        Args:
            features: of the layer's input, input_size or, but for the first layer, as many as a
                layer's output has.

        Returns:
            What the layer's `highway` and sizes make of it.
        """
        same = features == self._directions * self.hidden_size
        return self.highway == "projection" or (self.highway == "auto" and not same)

    def uses_input_as_highway(self, features: int) -> bool:
        """Whether x' is the input itself, in a layer with that many input features.

        Args:
            features: of the layer's input, input_size or, but for the first layer, as many as a
                layer's output has.

        Returns:
            What the layer's `highway` and sizes make of it.
        """
        return self.highway == "auto" and not self.projects_highway(features)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        products = F.linear(x, self._of("weight_ih", layer))
        skip = None
        if self.uses_input_as_highway(x.shape[-1]):
            skip = x if x.dtype is products.dtype else x.to(products.dtype)
            skip = self._swap(skip if self.highway_scale == 1 else skip * self.highway_scale)
        bias = self._of("bias_ih", layer) if self.bias else None
        blocks = products.shape[-1] // (self._directions * self.hidden_size)
        full, numbers = (self._swap(products), None, None, skip), [self._activation]
        if self.recurrent:
            vectors, given = (self._of("weight_c", layer), bias), (True, True, self.bias, self.bias)
            h, finals = self._solve(
                "recurrent_sru", full, vectors, given, states, options, numbers, blocks
            )
            return self._swap(h), finals
        bias = state_dtype(self._fn, "bias", bias, products)
        h, final = self._cell("sru", (*full, bias), states[0], options, numbers, blocks)
        return self._swap(h), (final,)


class _Gated(Recurrent[Tensor]):
    """A layer that is one matrix product and one cell, whose inputs are the product's blocks."""

    _defaults: ClassVar[dict[str, Any]] = {"activation": "identity"}
    #: The cell's name in the table, its number of blocks, and its options before the activation.
    _row: tuple[str, int, tuple[float, ...]]

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
        activation: Activation | None = None,
        proj_size: int = 0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size=proj_size, variational=variational,
        )  # fmt: skip
        self.activation = self._defaults["activation"] if activation is None else activation
        self._activation = activation_code(self._fn, self.activation)
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        return self._affine_shapes(self._row[1], features)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        kind, blocks, numbers = self._row
        products = self._affine(layer, x)
        numbers = (*numbers, self._activation)
        h, final = self._cell(kind, (products,), states[0], options, numbers, blocks)
        return self._project(layer, h), (final,)


@_documented("gilr", equations=True)
class GILR(_Gated):
    """Gated impulse linear recurrence in layers, with torch.nn.GRU's signature and conventions.

    Here f and z are W_f x + b_f and W_z x + b_z of the layer's input x, the rows of
    ``weight_ih_l[k]`` in this order. See the module for what all layers have in common, and
    `scanrnn.torch.gilr` for the function.

    Args:
        activation: g, "tanh" unless given; as in `scanrnn.torch.gilr`.
    """

    _defaults: ClassVar[dict[str, Any]] = {"activation": "tanh"}
    _row = ("gilr", 2, (0,))


@_documented("min_gru", equations=True)
class MinGRU(_Gated):
    """Minimal gated recurrent units in layers, with torch.nn.GRU's signature and conventions.

    Here z and v are W_z x + b_z and W_v x + b_v of the layer's input x, the rows of
    ``weight_ih_l[k]`` in this order. See the module for what all layers have in common, and
    `scanrnn.torch.min_gru` for the function.

    Args:
        activation: g, "identity" unless given; as in `scanrnn.torch.gilr`.

    Example:
        >>> import torch
        >>> rnn = MinGRU(10, 20, bidirectional=True)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 40]), torch.Size([2, 3, 20]))
    """

    _row = ("gilr", 2, (1,))


@_documented("min_lstm", equations=True)
class MinLSTM(_Gated):
    """Minimal LSTM with normalised gates in layers, with torch.nn.GRU's conventions.

    Here f, i and v are W_f x + b_f, W_i x + b_i and W_v x + b_v of the layer's input x, the rows of
    ``weight_ih_l[k]`` in this order. The state is one tensor, as there is no cell beside the
    output. See the module for what all layers have in common, and `scanrnn.torch.min_lstm` for the
    function.

    Args:
        activation: g, "identity" unless given; as in `scanrnn.torch.gilr`.
    """

    _row = ("min_lstm", 3, ())


@_documented("qrnn", equations=True)
class QRNN(Recurrent[Any]):
    """Quasi-recurrent network in layers, with torch.nn.GRU's signature and conventions.

    Here z_t, f_t, o_t and i_t are W_z x'_t + b_z and so on, where x'_t is the layer's input x_t, or
    (x_t, x_{t-1}) for a window of 2. See the module for what all layers have in common, and
    `scanrnn.torch.qrnn` for the function.

    The state is c. With a window of 2 it is a pair (c, previous), where previous has the inputs
    before the first step of all layers side by side, (directions, B, input_size + (num_layers - 1)
    * directions * output features): a run in pieces that passes it on equals one run. The second
    direction's comes from the end. `reset` drops both parts.

    Zoneout keeps, in training, each channel's state from the step before with the given
    probability: c_t = c_{t-1}, with a new mask for each step. Evaluation ignores it.

    Args:
        window: width of the convolution over time, 1 or 2.
        pooling: "f", "fo" or "ifo".
        zoneout: probability of zoneout, not with ifo-pooling.

    Attributes:
        weight_ih_l[k]: (directions * G * hidden_size, window * input features), direction by
            direction the rows W_f, W_z for pooling "f", W_z, W_f, W_o for "fo", and W_z, W_f, W_o,
            W_i for "ifo". The columns of a window of 2 are those of x_t, then those of x_{t-1}.
        bias_ih_l[k]: likewise, without columns.
    """

    _defaults: ClassVar[dict[str, Any]] = {
        "window": 1,
        "pooling": "fo",
        "zoneout": 0.0,
        "activation": "tanh",
    }
    #: Cell, blocks, the place of f among them, and options before the activation.
    _POOLING: ClassVar[dict[str, tuple[str, int, int, tuple[float, ...]]]] = {
        "f": ("gilr", 2, 0, (0,)),
        "fo": ("qrnn", 3, 1, ()),
        "ifo": ("qrnn", 4, 1, ()),
    }

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
        window: Literal[1, 2] = 1,
        pooling: Pooling = "fo",
        zoneout: float = 0.0,
        activation: Activation = "tanh",
        proj_size: int = 0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size=proj_size, variational=variational,
        )  # fmt: skip
        self._require_one_of("window", window, (1, 2))
        self._require_one_of("pooling", pooling, [*self._POOLING])
        self._require_probability("zoneout", zoneout)
        if zoneout > 0 and pooling == "ifo":
            raise ValueError(
                f"{self._fn}: zoneout is {zoneout} with ifo-pooling, expected 0: its input gate "
                "would add to a state that is kept"
            )
        self.window = window
        self.pooling = pooling
        self.zoneout = float(zoneout)
        self.activation = activation
        self._activation = activation_code(self._fn, activation)
        if window == 2:
            self._states = ("c", "previous")
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        return self._affine_shapes(self._POOLING[self.pooling][1], self.window * features)

    def _state_sizes(self) -> list[tuple[int, int]]:
        sizes = [(self.num_layers * self._directions, self.hidden_size)]
        if self.window == 2:
            sizes.append((self._directions, sum(map(self._features, range(self.num_layers)))))
        return sizes

    def _by_layer(self, part: int, state: Tensor) -> Sequence[Tensor]:
        if part == 0:
            return super()._by_layer(part, state)
        parts: tuple[Tensor, ...] = state.split([*map(self._features, range(self.num_layers))], -1)
        return parts

    def _join(self, part: int, states: Sequence[Tensor]) -> Tensor:
        return super()._join(part, states) if part == 0 else torch.cat([*states], -1)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.window == 1:
            h, final = self._pool(self._affine(layer, x), states[0], options)
            return self._project(layer, h), (final,)
        # Each direction has another step before, so each has a product and a call of its own.
        weights = self._of("weight_ih", layer).chunk(self._directions)
        biases = (None,) * self._directions
        if self.bias:
            biases = self._of("bias_ih", layer).chunk(self._directions)
        steps = self._swap(x)
        outputs, finals, lasts = [], [], []
        for d, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            c0, start = (None if s is None else s[d] for s in states)
            own = (*options[:3], d == 1, options[4])
            before = self._swap(previous_state(steps, start, *own))
            products = self._swap(F.linear(torch.cat([x, before], -1), weight, bias))
            c0 = None if c0 is None else c0.unsqueeze(0)
            h, final = self._pool(products, c0, own, directions=1)
            outputs.append(h)
            finals.append(final)
            lasts.append(last_state(steps, start, *own))
        h = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        return self._project(layer, h), (torch.cat(finals), torch.stack(lasts))

    def _pool(
        self, products: Tensor, c0: OptTensor, options: Sequences, directions: int | None = None
    ) -> tuple[Tensor, Tensor]:
        kind, blocks, forget, numbers = self._POOLING[self.pooling]
        if self.zoneout > 0 and self.training:
            # sigmoid(inf) = 1: the state is kept, and nothing is added.
            blocks_of = products.unflatten(-1, (-1, blocks, self.hidden_size))
            keep = torch.zeros_like(blocks_of, dtype=torch.bool)
            keep[..., forget, :].bernoulli_(self.zoneout)
            products = products.masked_fill(keep.flatten(-3), math.inf)
        numbers = (*numbers, self._activation)
        return self._cell(kind, (products,), c0, options, numbers, blocks, directions)


@_documented("rg_lru", equations=True)
class RGLRU(Recurrent[Tensor]):
    """Real-gated linear recurrent units in layers, with torch.nn.GRU's conventions.

    Here r and i are W_r x + b_r and W_i x + b_i, where W_r and W_i are block-diagonal, with
    num_heads blocks a direction. x is the layer's input if it is as wide as the layer's output,
    each direction taking its half, and a learned projection of it if not (Griffin has a linear
    layer and a short convolution there). See the module for what all layers have in common, and
    `scanrnn.torch.rg_lru` for the function.

    Args:
        num_heads: blocks H of the gates' matrices, a divisor of hidden_size.
        c: factor of the exponent.
        scale_start: whether a step without a state before it (the first one where hx is None, and
            one with `reset`) has its input scaled too. The paper scales it, RecurrentGemma's code
            does not.

    Attributes:
        weight_ih_l[k]: (directions * D, input features), only where x is a projection; bias_ih_l[k]
            likewise.
        weight_gate_l[k]: (2, directions * H, D / H, D / H), blocks of W_r and of W_i by input and
            output feature; initialised from N(0, H / D).
        bias_gate_l[k]: (2, directions * D), b_r and b_i.
        lambda_l[k]: (directions * D,), initialised so that a_t^(1 / r_t) = exp(-c softplus(lambda))
            is from U(0.9, 0.999).
    """

    _defaults: ClassVar[dict[str, Any]] = {"num_heads": 1, "c": 8.0, "scale_start": True}

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
        num_heads: int = 1,
        c: float = 8.0,
        scale_start: bool = True,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            variational=variational,
        )  # fmt: skip
        if whole_number(self._fn, "num_heads", num_heads) < 1 or hidden_size % num_heads:
            raise ValueError(
                f"{self._fn}: num_heads is {num_heads}, expected a divisor of {hidden_size}"
            )
        if not real_number(self._fn, "c", c) > 0:
            raise ValueError(f"{self._fn}: c is {c}, expected a positive number")
        self.num_heads = num_heads
        self.c = float(c)
        self.scale_start = scale_start
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        D, d = self.hidden_size, self._directions
        shapes = self._affine_shapes(1, features) if features != d * D else {}
        block = D // self.num_heads
        shapes["weight_gate"] = (2, d * self.num_heads, block, block)
        if self.bias:
            shapes["bias_gate"] = (2, d * D)
        return shapes | {"lambda": (d * D,)}

    def _initialise(self, name: str, parameter: Tensor) -> None:
        if name == "weight_gate":
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif name == "lambda":
            with torch.no_grad():
                decay = torch.empty_like(parameter, dtype=torch.float64).uniform_(0.9, 0.999)
                parameter.copy_(torch.log(torch.expm1(-torch.log(decay) / self.c)))
        else:
            super()._initialise(name, parameter)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self._of("weight_ih", layer) is not None:
            x = F.linear(x, self._of("weight_ih", layer), self._of("bias_ih", layer))
        weights = self._of("weight_gate", layer)
        biases = self._of("bias_gate", layer) if self.bias else None
        _, blocks, block, _ = weights.shape
        parts = x.reshape(-1, blocks, block).transpose(0, 1)
        gates = []
        for g in range(2):
            gate = (
                torch.bmm(parts, weights[g])
                if biases is None
                else torch.baddbmm(biases[g].view(blocks, 1, block), parts, weights[g])
            )
            gates.append(self._swap(gate.transpose(0, 1).reshape(x.shape)))
        r, i = gates
        rates = state_dtype(self._fn, "lambda", self._of("lambda", layer), r)
        x = self._swap(x.to(r.dtype))
        if not self.scale_start:
            x = self._without_scale(x, r, rates, states[0] is None, options)
        h, final = self._cell("rg_lru", (x, r, i, rates), states[0], options, [self.c], 1)
        return self._swap(h), (final,)

    def _without_scale(
        self, x: Tensor, r: Tensor, rates: Any, from_none: bool, options: Sequences
    ) -> Tensor:
        """Divide x, (B, T, directions * D), by its scale where no state enters."""
        cu_seqlens, lengths, reset, _, left_padded = options
        start = torch.zeros(1, dtype=torch.bool, device=x.device)
        if reset is not None:
            start = reset.bool().unsqueeze(-1)
        parts = []
        log_a = -self.c * F.softplus(rates) * torch.sigmoid(r.to(rates.dtype))
        scale = torch.sqrt((-torch.expm1(2 * log_a)).clamp(min=torch.finfo(log_a.dtype).tiny))
        for d, (part, own) in enumerate(
            zip(*(t.chunk(self._directions, -1) for t in (x, scale)), strict=True)
        ):
            here = start
            if from_none:
                here = start | entry_steps(part, cu_seqlens, lengths, d == 1, left_padded)[0]
            parts.append((part / torch.where(here, own, 1)).to(x.dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


@_documented("hgrn", equations=True)
class HGRN(Recurrent[Tensor]):
    """Hierarchically gated recurrent network in layers, with torch.nn.GRU's conventions.

    Here f and z are W_f x + b_f and W_z x + b_z of the layer's input x, the rows of
    ``weight_ih_l[k]`` in this order. The lower bounds grow from layer to layer, so that upper
    layers remember for longer. With an output gate, the output is norm(h_t) * silu(W_o x_t), where
    norm is the root mean square norm over a direction's channels, with a learned scale. See the
    module for what all layers have in common, and `scanrnn.torch.hgrn` for the function.

    Args:
        lower_bounds: "learned": that of layer k is the sum over layers 1 to k of the softmax, over
            layers, of the parameter ``lower_bounds``, so that the first layer has none; or what the
            bounds are: one number from 0 to 1 a layer, or a tensor (num_layers, directions * D),
            which becomes a buffer; or None for no bounds.
        output_gate: whether there is an output gate.
        norm_eps: added to the mean square in the output gate's norm.

    Attributes:
        lower_bounds: (num_layers, directions * D), initialised to 0.
        weight_gate_l[k]: (directions * D, input features), W_o, only with an output gate.
        weight_norm_l[k]: (directions * D,), the norm's scale, initialised to 1; likewise.
    """

    _defaults: ClassVar[dict[str, Any]] = {
        "output_gate": False,
        "norm_eps": 1e-5,
        "activation": "silu",
    }
    lower_bounds: Tensor | None

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
        lower_bounds: Literal["learned"] | Sequence[float] | Tensor | None = "learned",
        output_gate: bool = False,
        norm_eps: float = 1e-5,
        activation: Activation = "silu",
        proj_size: int = 0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size=proj_size, variational=variational,
        )  # fmt: skip
        self.output_gate = output_gate
        self.norm_eps = real_number(self._fn, "norm_eps", norm_eps)
        self.activation = activation
        self._activation = activation_code(self._fn, activation)
        shape = (num_layers, self._directions * hidden_size)
        # Asked of the parameter, it would be forgotten where a plain tensor takes its place.
        self._learns_bounds = isinstance(lower_bounds, str)
        if lower_bounds is None:
            self.register_buffer("lower_bounds", None)
        elif isinstance(lower_bounds, str):
            self._require_one_of("lower_bounds", lower_bounds, ("learned", None))
            self.lower_bounds = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        else:
            weights = torch.empty(0, device=device, dtype=dtype)  # in whatever default there is
            bounds = torch.as_tensor(lower_bounds).to(weights)
            bounds = bounds.unsqueeze(-1) if bounds.ndim == 1 else bounds
            if bounds.shape not in (shape, (num_layers, 1)):
                raise ValueError(
                    f"{self._fn}: lower_bounds has shape {tuple(bounds.shape)}, expected {shape} "
                    f"or ({num_layers},)"
                )
            if not bounds.is_meta and not ((bounds >= 0) & (bounds <= 1)).all():
                least, most = bounds.min().item(), bounds.max().item()
                raise ValueError(
                    f"{self._fn}: lower_bounds has values from {least:g} to {most:g}, expected 0 "
                    "to 1"
                )
            self.register_buffer("lower_bounds", bounds.expand(shape).clone())
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        shapes = self._affine_shapes(2, features)
        if self.output_gate:
            rows = self._directions * self.hidden_size
            shapes |= {"weight_gate": (rows, features), "weight_norm": (rows,)}
        return shapes

    def _initialise(self, name: str, parameter: Tensor) -> None:
        if name == "weight_norm":
            nn.init.ones_(parameter)
        elif name != "lower_bounds":
            super()._initialise(name, parameter)
        else:
            nn.init.zeros_(parameter)

    def bounds(self) -> Tensor | None:
        """The lower bounds of all layers, (num_layers, directions * D), or None."""
        if self.lower_bounds is None or not self._learns_bounds:
            return self.lower_bounds
        shares = self.lower_bounds.softmax(0)
        return shares.cumsum(0) - shares[0]

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        products = self._affine(layer, x)
        bounds = self.bounds()
        bound = None if bounds is None else state_dtype(self._fn, "bound", bounds[layer], products)
        inputs = (products, None, bound)
        h, final = self._cell("gilr", inputs, states[0], options, (0, self._activation), 2)
        if self.output_gate:
            gate = F.silu(self._swap(F.linear(x, self._of("weight_gate", layer))))
            parts = h.unflatten(-1, (self._directions, self.hidden_size))
            norm = F.rms_norm(parts, (self.hidden_size,), eps=self.norm_eps).flatten(-2)
            h = (norm * self._of("weight_norm", layer)).to(gate.dtype) * gate
        return self._project(layer, h), (final,)


@_documented()
class GILRLSTM(Recurrent[tuple[Tensor, Tensor]]):
    """GILR-LSTM in layers: an LSTM whose gates see a linear surrogate of its state.

        f'_t = sigmoid(V_f x_t + a_f)
        s_t = f'_t * s_{t-1} + (1 - f'_t) * tanh(V_z x_t + a_z)
        z_t = tanh(W_z x_t + U_z s_{t-1} + b_z);  f_t, o_t, i_t = sigmoid(W_f x_t + ...), ...
        c_t = f_t * c_{t-1} + i_t * z_t
        h_t = o_t * c_t

    Martin & Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", 2018. Two
    scans: `scanrnn.torch.gilr` for the surrogate s, and `scanrnn.torch.qrnn`'s ifo-pooling
    for c. The state is the pair (s, c). See the module for what all layers have in common.

    Args:
        hidden_size: features D of each part of the state of each direction.

    Attributes:
        weight_ih_l[k]: (directions * 4 * D, input features), rows W_z, W_f, W_o, W_i.
        bias_ih_l[k]: (directions * 4 * D), likewise.
        weight_hh_l[k]: (directions * 4 * D, D), rows U_z, U_f, U_o, U_i.
        weight_gilr_l[k]: (directions * 2 * D, input features), rows V_f, V_z.
        bias_gilr_l[k]: (directions * 2 * D), likewise.
    """

    _states = ("s", "c")

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
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size=proj_size, variational=variational,
        )  # fmt: skip
        self._build(device, dtype)

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        D, rows = self.hidden_size, self._directions * self.hidden_size
        shapes = self._affine_shapes(4, features)
        shapes |= {"weight_hh": (4 * rows, D), "weight_gilr": (2 * rows, features)}
        return shapes | {"bias_gilr": (2 * rows,)} if self.bias else shapes

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        s0, c0 = states
        tanh = activation_code(self._fn, "tanh")
        surrogate = F.linear(x, self._of("weight_gilr", layer), self._of("bias_gilr", layer))
        s, s_n = self._cell("gilr", (self._swap(surrogate),), s0, options, (0, tanh), 2)
        products = self._affine(layer, x)
        weights = self._of("weight_hh", layer).chunk(self._directions)
        recurrent = []
        for d, (part, weight) in enumerate(
            zip(s.chunk(self._directions, -1), weights, strict=True)
        ):
            own = (*options[:3], d == 1, options[4])
            before = previous_state(part, None if s0 is None else s0[d], *own)
            recurrent.append(F.linear(before, weight))
        products = products + (recurrent[0] if len(recurrent) == 1 else torch.cat(recurrent, -1))
        h, c_n = self._cell("qrnn", (products,), c0, options, (tanh,), 4)
        return self._project(layer, h), (s_n, c_n)


class _Diagonal(Recurrent[Tensor]):
    """A complex diagonal recurrence between two complex matrices, real outside."""

    #: y = _output_scale * Re(C h) + ...
    _output_scale = 1.0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        dtype: torch.dtype | None,
        state_size: int | None,
        variational: bool,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            variational=variational,
        )  # fmt: skip
        self.state_size = hidden_size if state_size is None else state_size
        if whole_number(self._fn, "state_size", self.state_size) < 1:
            raise ValueError(f"{self._fn}: state_size is {state_size}, expected at least 1")
        self._require_wide(torch.get_default_dtype() if dtype is None else dtype)

    def _require_wide(self, dtype: torch.dtype) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"{self._fn}: dtype is {name_of(dtype)}, expected float32 or float64: there are no "
                "complex numbers of 16-bit floats"
            )

    def _rates(self) -> dict[str, tuple[int, ...]]:
        """The parameters that `_discretise` reads."""
        raise NotImplementedError

    def _discretise(self, layer: int) -> tuple[Tensor, Tensor]:
        """The factors of the state and of the input, complex, (directions * state_size,)."""
        raise NotImplementedError

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        d, N, H = self._directions, self.state_size, self.hidden_size
        shapes = self._rates() | {"weight_b": (d * N, features, 2), "weight_c": (d * H, N, 2)}
        shapes["weight_d"] = (d * H,) if features == H else (d * H, features)
        return shapes | {"bias": (d * H,)} if self.bias else shapes

    def _state_sizes(self) -> list[tuple[int, int]]:
        return [(self.num_layers * self._directions, self.state_size)]

    def _initialise(self, name: str, parameter: Tensor) -> None:
        if name == "weight_b":
            nn.init.normal_(parameter, std=(2 * parameter.shape[1]) ** -0.5)
        elif name == "weight_c":
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif name == "weight_d" and parameter.ndim == 1:
            nn.init.normal_(parameter)
        else:
            super()._initialise(name, parameter)

    def _layer(
        self, layer: int, x: Tensor, states: tuple[OptTensor, ...], options: Sequences
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        self._require_wide(self._of("weight_b", layer).dtype)  # module.half() may have been called
        lam, factor = self._discretise(layer)
        weight_b = torch.view_as_complex(self._of("weight_b", layer)) * factor.unsqueeze(-1)
        # Real rows in pairs, so that the product is complex numbers without a copy.
        rows = torch.view_as_real(weight_b).transpose(-1, -2).flatten(0, 1)
        products = self._swap(F.linear(x, rows))
        u = torch.view_as_complex(products.to(rows.dtype).unflatten(-1, (-1, 2)))
        # Re(C h) as a real product: of the conjugate's real and imaginary parts.
        real, imaginary = self._of("weight_c", layer).unbind(-1)
        weights = torch.stack([real, -imaginary], -1)
        outputs, finals = [], []
        shares = [(lam, 0), (u, -1), (weights, 0)]
        parts = zip(*(t.chunk(self._directions, axis) for t, axis in shares), strict=True)
        for d, (a, part, weight) in enumerate(parts):
            h0 = None if states[0] is None else state_dtype(self._fn, "hx", states[0][d], u)
            h, final = scan(a[None, None], part, h0, *options[:3], d == 1, options[4])
            flat = self._swap(torch.view_as_real(h).flatten(-2))
            outputs.append(F.linear(flat, self._output_scale * weight.flatten(1)))
            finals.append(final)
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        through = self._of("weight_d", layer)
        if through.ndim == 1:
            y = y + through * (x if self._directions == 1 else torch.cat([x, x], -1))
        else:
            y = y + F.linear(x, through)
        if self.bias:
            y = y + self._of("bias", layer)
        if options[1] is not None:
            y = self._swap(without_padding(self._swap(y), options[1], options[4]))
        return y.to(products.dtype), (torch.stack(finals),)


@_documented("lru", equations=True)
class LRU(_Diagonal):
    """Linear recurrent units in layers, with torch.nn.GRU's signature and conventions.

    Here u is B x of the layer's input x, gamma is exp(gamma_log), and the output is
    y_t = Re(C h_t) + D x_t. h is complex, and so are hx and h_n, (num_layers * directions, batch,
    state_size); x and y are real. D is diagonal where the layer's input is as wide as a direction's
    output, and a matrix elsewhere. See `scanrnn.torch.lru` for the function.

    Args:
        hidden_size: features H of the output of each direction.
        num_layers: layers, each of which takes the output of the one before. They are linear: put a
            nonlinearity between single layers for a deep network.
        bias: whether the output has a bias (the paper's has none).
        dtype: of the parameters, float32 or float64.
        state_size: complex channels N of the state of each direction; hidden_size unless given.
        r_min: least |lambda| at initialisation.
        r_max: largest |lambda| at initialisation; lambda is uniform on the ring between.
        max_phase: largest phase of lambda at initialisation, in radians a step.

    Attributes:
        nu_l[k]: (directions * N,); theta_l[k] and gamma_log_l[k] likewise, gamma_log initialised to
            log(sqrt(1 - |lambda|^2)).
        weight_b_l[k]: (directions * N, input features, 2), real and imaginary parts of B,
            initialised from N(0, 1 / (2 input features)).
        weight_c_l[k]: (directions * H, N, 2), likewise C, from N(0, 1 / N).
        weight_d_l[k]: (directions * H,) from N(0, 1), or (directions * H, input features).
        bias_l[k]: (directions * H,), 0; only with bias.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the dtype is not float32 or float64.
    """

    _defaults: ClassVar[dict[str, Any]] = {
        "bias": False,
        "r_min": 0.0,
        "r_max": 1.0,
        "max_phase": 2 * math.pi,
    }

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        state_size: int | None = None,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype,
            state_size, variational,
        )  # fmt: skip
        self.r_min = real_number(self._fn, "r_min", r_min)
        self.r_max = real_number(self._fn, "r_max", r_max)
        self.max_phase = real_number(self._fn, "max_phase", max_phase)
        if not 0 <= r_min <= r_max <= 1:
            raise ValueError(
                f"{self._fn}: r_min and r_max are {r_min} and {r_max}, "
                "expected 0 <= r_min <= r_max <= 1"
            )
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"{self._fn}: max_phase is {max_phase}, expected up to 2 pi, above 0")
        self._build(device, dtype)

    def _rates(self) -> dict[str, tuple[int, ...]]:
        rows = (self._directions * self.state_size,)
        return {"nu": rows, "theta": rows, "gamma_log": rows}

    def reset_parameters(self) -> None:
        """Initialise all parameters, as the class says."""
        super().reset_parameters()
        for layer in range(self.num_layers):
            nu, theta, gamma_log = (self._of(name, layer) for name in ("nu", "theta", "gamma_log"))
            with torch.no_grad():
                # |lambda|^2 is uniform, as the area of the ring is; kept off 0 and 1, where nu and
                # gamma_log are infinite.
                area = torch.rand_like(nu, dtype=torch.float64)
                square = self.r_min**2 + area * (self.r_max**2 - self.r_min**2)
                square = square.clamp(1e-12, 1 - 1e-7)
                nu.copy_(torch.log(-0.5 * torch.log(square)))
                phase = torch.rand_like(nu, dtype=torch.float64) * self.max_phase
                theta.copy_(torch.log(phase.clamp(min=1e-12)))
                gamma_log.copy_(0.5 * torch.log1p(-square))

    def _discretise(self, layer: int) -> tuple[Tensor, Tensor]:
        nu, theta, gamma_log = (self._of(name, layer) for name in ("nu", "theta", "gamma_log"))
        lam = torch.exp(torch.complex(-torch.exp(nu), torch.exp(theta)))
        return lam, torch.exp(gamma_log).to(lam.dtype)


@_documented()
class S5(_Diagonal):
    """Diagonal state space layers (S5), with torch.nn.GRU's signature and conventions.

        lambda = exp(Lambda * step),  Lambda = -exp(rate) + i frequency,  step = exp(log_step)
        h_t = lambda * h_{t-1} + (lambda - 1) / Lambda * (B x_t)
        y_t = 2 Re(C h_t) + D x_t

    Smith et al., "Simplified State Space Layers for Sequence Modeling", 2023, in its diagonal form
    with zero-order hold, one eigenvalue of each conjugate pair being kept (hence the factor 2).
    Lambda is initialised as -1/2 + i pi n, n = 0 ... state_size - 1 (S4D-Lin in Gu et al., "On the
    Parameterization and Initialization of Diagonal State Space Models", 2022). The state and
    everything else is as in `LRU`.

    Args:
        hidden_size: features H of the output of each direction.
        bias: whether the output has a bias.
        dtype: of the parameters, float32 or float64.
        state_size: complex channels N of the state of each direction; hidden_size unless given.
        dt_min: least step at initialisation.
        dt_max: largest step; log_step is uniform between their logarithms.

    Attributes:
        rate_l[k]: (directions * N,); frequency_l[k] and log_step_l[k] likewise.
        weight_b_l[k]: as in `LRU`, likewise weight_c_l[k], weight_d_l[k] and bias_l[k].

    Raises:
        ValueError: an argument is out of range.
        TypeError: the dtype is not float32 or float64.
    """

    _defaults: ClassVar[dict[str, Any]] = {"bias": False, "dt_min": 0.001, "dt_max": 0.1}
    _output_scale = 2.0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        state_size: int | None = None,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype,
            state_size, variational,
        )  # fmt: skip
        self.dt_min = real_number(self._fn, "dt_min", dt_min)
        self.dt_max = real_number(self._fn, "dt_max", dt_max)
        if not 0 < dt_min <= dt_max:
            raise ValueError(
                f"{self._fn}: dt_min and dt_max are {dt_min} and {dt_max}, "
                "expected 0 < dt_min <= dt_max"
            )
        self._build(device, dtype)

    def _rates(self) -> dict[str, tuple[int, ...]]:
        rows = (self._directions * self.state_size,)
        return {"rate": rows, "frequency": rows, "log_step": rows}

    def _initialise(self, name: str, parameter: Tensor) -> None:
        with torch.no_grad():
            if name == "rate":
                parameter.fill_(math.log(0.5))
            elif name == "frequency":
                n = torch.arange(self.state_size, device=parameter.device)
                parameter.copy_(math.pi * n.repeat(self._directions))
            elif name == "log_step":
                parameter.uniform_(math.log(self.dt_min), math.log(self.dt_max))
            else:
                super()._initialise(name, parameter)

    def _discretise(self, layer: int) -> tuple[Tensor, Tensor]:
        rate, frequency, log_step = (
            self._of(name, layer) for name in ("rate", "frequency", "log_step")
        )
        continuous = torch.complex(-torch.exp(rate), frequency)
        scaled = continuous * torch.exp(log_step)
        return torch.exp(scaled), torch.expm1(scaled) / continuous
