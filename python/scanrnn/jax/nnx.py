"""The layers of `scanrnn.jax` as Flax NNX modules: stacked, in one direction or in both.

A module maps x, (..., T, input_size) in its parameters' dtype, and the states before the first step
to its outputs and the states after the last step:

    rnn = scanrnn.jax.nnx.SRU(256, 512, num_layers=2, rngs=flax.nnx.Rngs(0))
    y, states = rnn(x)

Dropout and zoneout draw from `rngs=` of the call, which changes them: in a training step under
`nnx.jit` and `nnx.grad` the streams are an argument of each function, as Flax asks.

    @nnx.jit
    def train(rnn, optimizer, x, target, rngs):
        def loss(rnn, rngs):
            y, _ = rnn(x, rngs=rngs)
            return ((y - target) ** 2).mean()

        value, grads = nnx.value_and_grad(loss)(rnn, rngs)
        optimizer.update(rnn, grads)
        return value

The parameters are those of the layers' functions, under names like weight_l0 and, of the second
direction, weight_l0_reverse. This module needs Flax: pip install 'scanrnn[flax]'.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Unpack

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from .. import _docs
from .._array.options import real_number, whole_number
from ..cells import Activation, SequenceOptions, SolveOptions, SruActivation
from . import _layers
from ._call import as_array, as_step

try:
    from flax import nnx
except ImportError as error:
    raise ImportError(
        "scanrnn.jax.nnx needs Flax: pip install 'scanrnn[flax]' or 'flax'"
    ) from error

__all__ = [
    "GILR",
    "GILRLSTM",
    "HGRN",
    "LRU",
    "QRNN",
    "RGLRU",
    "S5",
    "SRU",
    "DiagonalGRU",
    "DiagonalLSTM",
    "IndRNN",
    "MinGRU",
    "MinLSTM",
]

_Module: Any = nnx.Module
_documented = functools.partial(
    _docs.documented_layer,
    _docs.NNX,
    errors={"ValueError": "a size, a count or a probability is out of range."},
)


class _Recurrent(_Module):  # type: ignore[misc]
    """A stack of layers.

    Args:
        input_size: features of the input.
        hidden_size: as the layer's function takes it.
        width: features of the output of each direction.
        num_layers: layers, each on the one before.
        bidirectional: whether each layer runs in both directions and concatenates the outputs.
        dropout: probability that a value between two layers is zeroed.
        rngs: Flax's random streams; "params" is used.
        options: of the function that makes a layer's parameters.
    """

    #: What makes the parameters of a layer, and what runs it.
    _init: ClassVar[Callable[..., Any]]
    _run: ClassVar[Callable[..., Any]]
    #: Attributes that are arguments of `_run`.
    _arguments: ClassVar[tuple[str, ...]] = ("activation",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        width: int,
        num_layers: int,
        bidirectional: bool,
        dropout: float,
        rngs: Any,
        **options: Any,
    ) -> None:
        fn = type(self).__name__
        if whole_number(fn, "num_layers", num_layers) < 1:
            raise ValueError(f"{fn}: num_layers is {num_layers}, expected at least 1")
        if not 0 <= real_number(fn, "dropout", dropout) <= 1:
            raise ValueError(f"{fn}: dropout is {dropout}, expected 0 to 1")
        self.num_layers = num_layers
        self.directions = 2 if bidirectional else 1
        self.dropout = dropout
        size = input_size
        for layer in range(num_layers):
            for reverse in range(self.directions):
                params = self._init(rngs.params(), size, hidden_size, **options)
                for name, value in params.items():
                    setattr(self, _name(name, layer, reverse), nnx.Param(value))
            self.names = tuple(params)
            size = width * self.directions

    def _layer(
        self,
        layer: int,
        params: Any,
        x: Array,
        state: Any,
        rngs: Any,
        **options: Any,
    ) -> Any:
        arguments = {name: getattr(self, name) for name in self._arguments}
        return self._run(params, x, state, **arguments, **options)

    def __call__(
        self,
        x: ArrayLike,
        states: Sequence[Any] | None = None,
        *,
        rngs: Any = None,
        **options: Unpack[SequenceOptions],
    ) -> tuple[Array, tuple[Any, ...]]:
        """Run all layers.

        Args:
            x: (..., T, input_size) in the parameters' dtype.
            states: one a layer and direction, the first layer's first: what an earlier call
                returned, or None for zeros. They continue a sequence in the forward direction.
            rngs: Flax's random streams, for dropout ("dropout") and zoneout ("zoneout"); None, as
                in evaluation, means that there are none.
            options: axis, reverse, cu_seqlens, lengths, reset and padding_side, as in
                `scanrnn.jax.sru_layer`.

        Returns:
            (y, states): the last layer's outputs, with those of both directions concatenated, and
            the states after the last steps.

        Raises:
            ValueError: a shape, an option, a value of cu_seqlens or lengths, or the number of
                states is wrong.
            TypeError: a dtype is wrong.
        """
        y, final, _ = self._stack(x, states, rngs, dict(options))
        return y, final

    def _stack(
        self, x: ArrayLike, states: Sequence[Any] | None, rngs: Any, options: dict[str, Any]
    ) -> tuple[Array, tuple[Any, ...], tuple[Any, ...]]:
        """Run all layers: outputs, states, and what else the layers return."""
        fn = type(self).__name__
        count = self.num_layers * self.directions
        given = (None,) * count if states is None else tuple(states)
        if len(given) != count:
            raise ValueError(f"{fn}: states has {len(given)} entries, expected {count}")
        reverse = bool(options.get("reverse", False))
        y = as_array(fn, "x", x)
        final: list[Any] = []
        more: list[Any] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and rngs is not None:
                y = nnx.Dropout(self.dropout, deterministic=False)(y, rngs=rngs)
            outputs = []
            for direction in range(self.directions):
                params = {n: getattr(self, _name(n, layer, direction))[...] for n in self.names}
                own = {**options, "reverse": reverse != bool(direction)}
                output, state, *rest = self._layer(layer, params, y, given[len(final)], rngs, **own)
                outputs.append(output)
                final.append(state)
                more += rest
            y = jnp.concatenate(outputs, -1) if len(outputs) > 1 else outputs[0]
        return y, tuple(final), tuple(more)

    def step(
        self, x: ArrayLike, states: Sequence[Any] | None = None
    ) -> tuple[Array, tuple[Any, ...]]:
        """One step, for decoding: what a sequence of one step gives.

        Args:
            x: (..., input_size) in the parameters' dtype.
            states: those before the step, from the step or the call before; None means zeros.

        Returns:
            (y, states): the output (..., output size), and the states after the step.

        Raises:
            ValueError: a shape or the number of states is wrong, or the module runs in both
                directions.
            TypeError: a dtype is wrong.
        """
        fn = type(self).__name__
        if self.directions == 2:
            raise ValueError(
                f"{fn}: step was called on a bidirectional module, expected one direction"
            )
        y, final = self(as_step(fn, "x", x)[..., None, :], states)
        return y[..., 0, :], final


def _name(name: str, layer: int, reverse: int) -> str:
    return f"{name}_l{layer}{'_reverse' * reverse}"


class _Solved(_Recurrent):
    """A stack of layers whose recurrence is solved, if it is nonlinear."""

    _arguments: ClassVar[tuple[str, ...]] = ("activation", "tolerance", "max_passes")

    def _layer(
        self,
        layer: int,
        params: Any,
        x: Array,
        state: Any,
        rngs: Any,
        **options: Any,
    ) -> Any:
        arguments = {name: getattr(self, name) for name in self._arguments} | options
        states = state if isinstance(state, tuple) else (state,)
        return self._run(params, x, *states, **arguments)

    def __call__(
        self,
        x: ArrayLike,
        states: Sequence[Any] | None = None,
        *,
        rngs: Any = None,
        return_report: bool = False,
        **options: Unpack[SolveOptions],
    ) -> Any:
        """Run all layers.

        Args:
            x: (..., T, input_size) in the parameters' dtype.
            states: one a layer and direction, the first layer's first: what an earlier call
                returned, or None for zeros. They continue a sequence in the forward direction.
            rngs: Flax's random streams, for dropout ("dropout"); None, as in evaluation, means that
                there are none.
            return_report: return the reports too, as in `scanrnn.jax.diagonal_gru`.
            options: axis, reverse, cu_seqlens, lengths, reset and padding_side, as in
                `scanrnn.jax.sru_layer`; tolerance, max_passes and segment in place of the
                module's, as in `scanrnn.jax.diagonal_gru`.

        Returns:
            (y, states): the last layer's outputs, with those of both directions concatenated, and
            the states after the last steps; with return_report also a report for every state.

        Raises:
            ValueError: a shape, an option, a value of cu_seqlens or lengths, or the number of
                states is wrong, or the recurrence is linear and reports were asked for.
            TypeError: a dtype is wrong.
        """
        own = {**options, "return_report": return_report}
        y, final, reports = self._stack(x, states, rngs, own)
        return (y, final, reports) if return_report else (y, final)


@_documented("sru")
class SRU(_Solved):
    """Layers of simple recurrent units: see `scanrnn.jax.sru_layer`.

    Args:
        highway_bias: as in `scanrnn.jax.sru_init`.
        recurrent: as in `scanrnn.jax.sru_init`.
        tolerance: with recurrent weights, as in `scanrnn.jax.diagonal_gru`.
        max_passes: likewise.
    """

    _init = staticmethod(_layers.sru_init)
    _run = staticmethod(_layers.sru_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        activation: SruActivation = "identity",
        highway_bias: float = 0.0,
        recurrent: bool = False,
        tolerance: float | None = None,
        max_passes: int = 8,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            highway_bias=highway_bias,
            recurrent=recurrent,
            dtype=dtype,
        )
        self.activation = activation
        self.tolerance = tolerance
        self.max_passes = max_passes


@_documented("gilr")
class GILR(_Recurrent):
    """Layers of gated impulse linear recurrences: see `scanrnn.jax.gilr_layer`."""

    _init = staticmethod(_layers.gilr_init)
    _run = staticmethod(_layers.gilr_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        activation: Activation = "tanh",
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            bias=bias,
            dtype=dtype,
        )
        self.activation = activation


@_documented("hgrn")
class HGRN(_Recurrent):
    """The token mixers of HGRN layers, with lower bounds that grow from layer to layer.

    See `scanrnn.jax.hgrn_layer` and `scanrnn.jax.hgrn_bounds`, whose logits are the parameter
    `bounds`, (num_layers, hidden_size), 0 at first.
    """

    _init = staticmethod(_layers.hgrn_init)
    _run = staticmethod(_layers.hgrn_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        activation: Activation = "silu",
        bias: bool = False,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            bias=bias,
            dtype=dtype,
        )
        self.activation = activation
        self.bounds = nnx.Param(jnp.zeros((num_layers, hidden_size), dtype))

    def _layer(
        self,
        layer: int,
        params: Any,
        x: Array,
        state: Any,
        rngs: Any,
        **options: Any,
    ) -> Any:
        bound = _layers.hgrn_bounds(self.bounds[...])[layer]
        activation = self.activation
        return self._run(params, x, state, bound=bound, activation=activation, **options)


@_documented("min_gru")
class MinGRU(_Recurrent):
    """Layers of minimal GRUs: see `scanrnn.jax.min_gru_layer`."""

    _init = staticmethod(_layers.min_gru_init)
    _run = staticmethod(_layers.min_gru_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        activation: Activation = "identity",
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            bias=bias,
            dtype=dtype,
        )
        self.activation = activation


@_documented("min_lstm")
class MinLSTM(_Recurrent):
    """Layers of minimal LSTMs: see `scanrnn.jax.min_lstm_layer`."""

    _init = staticmethod(_layers.min_lstm_init)
    _run = staticmethod(_layers.min_lstm_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        activation: Activation = "identity",
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            bias=bias,
            dtype=dtype,
        )
        self.activation = activation


@_documented("qrnn")
class QRNN(_Recurrent):
    """Layers of quasi-recurrent networks: see `scanrnn.jax.qrnn_layer`.

    The state of a layer is a pair: c, and with a window of 2 the last input, else None.

    Args:
        window: as in `scanrnn.jax.qrnn_init`.
        pooling: as in `scanrnn.jax.qrnn_init`.
        zoneout: as in `scanrnn.jax.qrnn_layer`.

    Raises:
        ValueError: a size, a count, a probability or an option is wrong.
    """

    _init = staticmethod(_layers.qrnn_init)
    _run = staticmethod(_layers.qrnn_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        window: Literal[1, 2] = 1,
        pooling: Literal["f", "fo", "ifo"] = "fo",
        activation: Activation = "tanh",
        zoneout: float = 0.0,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            window=window,
            pooling=pooling,
            bias=bias,
            dtype=dtype,
        )
        self.activation = activation
        self.zoneout = zoneout

    def _layer(
        self,
        layer: int,
        params: Any,
        x: Array,
        state: Any,
        rngs: Any,
        **options: Any,
    ) -> Any:
        options["activation"] = self.activation
        if self.zoneout and rngs is not None:
            options |= {"zoneout": self.zoneout, "key": rngs.zoneout()}
        return self._run(params, x, *(state or (None, None)), **options)


@_documented("rg_lru")
class RGLRU(_Recurrent):
    """Layers of real-gated linear recurrent units: see `scanrnn.jax.rg_lru_layer`.

    Args:
        min_decay: as in `scanrnn.jax.rg_lru_init`.
        max_decay: as in `scanrnn.jax.rg_lru_init`.
        c: as in `scanrnn.jax.rg_lru`.

    Raises:
        ValueError: a size, a count, a probability or a decay is out of range.
    """

    _init = staticmethod(_layers.rg_lru_init)
    _run = staticmethod(_layers.rg_lru_layer)
    _arguments = ("c",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        min_decay: float = 0.9,
        max_decay: float = 0.999,
        c: float = 8.0,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            min_decay=min_decay,
            max_decay=max_decay,
            c=c,
            bias=bias,
            dtype=dtype,
        )
        self.c = c


@_documented("lru")
class LRU(_Recurrent):
    """Layers of linear recurrent units, with complex states: see `scanrnn.jax.lru_layer`.

    Args:
        input_size: features of the input, and of the output of each direction.
        hidden_size: complex numbers in the state of each direction.
        min_radius: as in `scanrnn.jax.lru_init`.
        max_radius: as in `scanrnn.jax.lru_init`.
        max_phase: as in `scanrnn.jax.lru_init`.
        dtype: of the parameters, float32 or float64.

    Raises:
        ValueError: a size, a count, a probability or a radius is out of range.
    """

    _init = staticmethod(_layers.lru_init)
    _run = staticmethod(_layers.lru_layer)
    _arguments = ()

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        min_radius: float = 0.0,
        max_radius: float = 1.0,
        max_phase: float = 2 * math.pi,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            input_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            output_size=input_size,
            min_radius=min_radius,
            max_radius=max_radius,
            max_phase=max_phase,
            dtype=dtype,
        )


@_documented("gilr_lstm")
class GILRLSTM(_Recurrent):
    """Layers of GILR-LSTM: see `scanrnn.jax.gilr_lstm_layer`. The state of a layer is a pair."""

    _init = staticmethod(_layers.gilr_lstm_init)
    _run = staticmethod(_layers.gilr_lstm_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            bias=bias,
            dtype=dtype,
        )

    def _layer(
        self,
        layer: int,
        params: Any,
        x: Array,
        state: Any,
        rngs: Any,
        **options: Any,
    ) -> Any:
        return self._run(params, x, *(state or (None, None)), **options)


@_documented("s5")
class S5(_Recurrent):
    """Layers of S5 in diagonal form, with complex states: see `scanrnn.jax.s5_layer`.

    Args:
        input_size: features of the input, and of the output of each direction.
        hidden_size: complex numbers in the state of each direction.
        min_step: as in `scanrnn.jax.s5_init`.
        max_step: as in `scanrnn.jax.s5_init`.
        dtype: of the parameters, float32 or float64.

    Raises:
        ValueError: a size, a count, a probability or a step is out of range.
    """

    _init = staticmethod(_layers.s5_init)
    _run = staticmethod(_layers.s5_layer)
    _arguments = ()

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        min_step: float = 0.001,
        max_step: float = 0.1,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            input_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            output_size=input_size,
            min_step=min_step,
            max_step=max_step,
            dtype=dtype,
        )


@_documented("diagonal_gru")
class DiagonalGRU(_Solved):
    """Layers of diagonal GRUs: see `scanrnn.jax.diagonal_gru_layer`."""

    _init = staticmethod(_layers.diagonal_gru_init)
    _run = staticmethod(_layers.diagonal_gru_layer)
    _arguments = ("tolerance", "max_passes")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        tolerance: float | None = None,
        max_passes: int = 8,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            bias=bias,
            dtype=dtype,
        )
        self.tolerance = tolerance
        self.max_passes = max_passes


@_documented("diagonal_lstm")
class DiagonalLSTM(_Solved):
    """Layers of diagonal LSTMs: see `scanrnn.jax.diagonal_lstm_layer`.

    The state of a layer is the pair of h and c.

    Args:
        coupled: as in `scanrnn.jax.diagonal_lstm_init`.
        peephole: as in `scanrnn.jax.diagonal_lstm_init`.
    """

    _init = staticmethod(_layers.diagonal_lstm_init)
    _run = staticmethod(_layers.diagonal_lstm_layer)
    _arguments = ("tolerance", "max_passes")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        coupled: bool = False,
        peephole: bool = False,
        bias: bool = True,
        tolerance: float | None = None,
        max_passes: int = 8,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            coupled=coupled,
            peephole=peephole,
            bias=bias,
            dtype=dtype,
        )
        self.tolerance = tolerance
        self.max_passes = max_passes


@_documented("indrnn")
class IndRNN(_Solved):
    """Layers of independently recurrent networks: see `scanrnn.jax.indrnn_layer`.

    Args:
        max_recurrent: as in `scanrnn.jax.indrnn_init`.
    """

    _init = staticmethod(_layers.indrnn_init)
    _run = staticmethod(_layers.indrnn_layer)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        activation: SruActivation = "relu",
        max_recurrent: float = 1.0,
        bias: bool = True,
        tolerance: float | None = None,
        max_passes: int = 8,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: Any,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            hidden_size,
            num_layers,
            bidirectional,
            dropout,
            rngs,
            max_recurrent=max_recurrent,
            bias=bias,
            dtype=dtype,
        )
        self.activation = activation
        self.tolerance = tolerance
        self.max_passes = max_passes
