"""Weights from other packages, as parameters of the layers here.

Each function takes a state dict, whose values may be anything that NumPy takes (PyTorch's tensors,
what `safetensors.numpy.load_file` gives), and returns new arrays, or raises. The docstrings say
where the package keeps what, how to call the layer, and where the package computes something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from ._layers import Params, SruParams

__all__ = [
    "fla_hgrn_params",
    "min_gru_params",
    "min_lstm_params",
    "pytorch_qrnn_params",
    "recurrentgemma_params",
    "sru_package_params",
]

Values: TypeAlias = np.ndarray[Any, Any]


class _Source:
    """What of a state dict has not been used yet."""

    def __init__(self, fn: str, state_dict: Mapping[str, Any]) -> None:
        self.fn = fn
        self.rest = dict(state_dict)

    def take(self, key: str, shape: tuple[int, ...], default: float | None = None) -> Values:
        """An array of that shape, which is used now; where it is missing, full of the default."""
        if key not in self.rest:
            if default is not None:
                return np.full(shape, default)
            raise ValueError(f"{self.fn}: state_dict has no {key}, expected shape {shape}")
        value = np.asarray(self.rest.pop(key))
        if value.shape != shape:
            raise ValueError(f"{self.fn}: {key} has shape {value.shape}, expected {shape}")
        return value

    def finish(self) -> None:
        """Raise ValueError if something was not used."""
        if self.rest:
            unused = ", ".join(self.rest)
            raise ValueError(f"{self.fn}: state_dict has {unused}, which the layers can't use")


def _parts(value: Values, count: int) -> Values:
    """(input, parts, output) of a linear layer's weight, (parts * output, input)."""
    return value.reshape(count, -1, value.shape[-1]).transpose(2, 0, 1)


def sru_package_params(
    state_dict: Mapping[str, Any],
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    highway: bool = True,
) -> list[SruParams]:
    """Parameters of an ``sru.SRU`` or ``sru.SRUCell`` of the SRU package (2.x).

    Where the package keeps what, for a layer with n input features and hidden size D in d
    directions:

    - ``weight``, (n, d * D * k): for each direction and channel k neighbouring columns, which are
      W, W_f, W_r and, if n != d * D, the highway's projection (k = 4, else 3). With ``n_proj`` it
      is the second of two factors, after ``weight_proj``; their product is taken.
    - ``bias``, (2 * d * D): b_f of all directions, then b_r of all directions.
    - ``weight_c``, (2 * d * D): v_f of all directions, then v_r of all directions; 0 for layers
      made with ``v1=True``, whose recurrence is linear.
    - ``scale_x``, (1,): factor of the highway where that is the input itself.

    Call `scanrnn.jax.sru_layer` with activation="tanh" for ``use_tanh=True``. ``dropout`` on the
    package's layers makes no difference in evaluation.

    Args:
        state_dict: ``state_dict()`` of the package's module.
        input_size: the package's, as all that follow.
        hidden_size: see input_size.
        num_layers: see input_size.
        bidirectional: see input_size.
        highway: ``has_skip_term``.

    Returns:
        One for each layer and direction, the first layer's first. Where the highway is not the
        whole input as it is, it is a projection.

    Raises:
        ValueError: a weight is missing, has another shape, or does what the layers don't: layer
            normalisation, a custom module for the products, a projection before the first layer.
    """
    source = _Source("sru_package_params", state_dict)
    stacked = any(key.startswith("rnn_lst.") for key in state_dict)
    d, D, n = 2 if bidirectional else 1, hidden_size, input_size
    params = []
    for layer in range(num_layers):
        prefix = f"rnn_lst.{layer}." if stacked else ""
        projected = highway and n != d * D
        columns = d * D * (4 if projected else 3)
        factor = source.rest.get(f"{prefix}weight_proj")
        inner = n if factor is None else np.shape(factor)[1]
        weight = source.take(f"{prefix}weight", (inner, columns))
        if factor is not None:
            weight = source.take(f"{prefix}weight_proj", (n, inner)) @ weight
        by_direction = weight.reshape(n, d, D, -1).transpose(1, 0, 3, 2)
        bias = source.take(f"{prefix}bias", (2 * d * D,)).reshape(2, d, D)
        v = source.take(f"{prefix}weight_c", (2 * d * D,), 0).reshape(2, d, D)
        scale = source.take(f"{prefix}scale_x", (1,), 1)[0]
        for k, matrix in enumerate(by_direction):
            if not projected and (d > 1 or not highway or scale != 1):
                taken = np.eye(n, d * D)[:, k * D : (k + 1) * D] * (scale if highway else 0)
                matrix = np.concatenate([matrix, taken[:, None]], 1)
            one = SruParams(
                weight=jnp.asarray(matrix, weight.dtype),
                bias_f=jnp.asarray(bias[0, k]),
                bias_r=jnp.asarray(bias[1, k]),
            )
            if v.any():
                one["v_f"], one["v_r"] = (jnp.asarray(w[k], weight.dtype) for w in v)
            params.append(one)
        n = d * D
    source.finish()
    return params


def pytorch_qrnn_params(
    state_dict: Mapping[str, Any],
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    window: int = 1,
    output_gate: bool = True,
) -> list[Params]:
    """Parameters of a ``QRNN`` or ``QRNNLayer`` of pytorch-qrnn (torchqrnn).

    Where the package keeps what, for a layer with n input features and hidden size D:

    - ``linear.weight``, (3 * D, window * n), rows W_z, W_f, W_o (no W_o with output_gate=False);
      columns of x_t, then of x_{t-1};
    - ``linear.bias``, (3 * D,), likewise.

    The package's f is an update gate, c = f z + (1 - f) c: f and its bias change their sign here,
    since 1 - sigmoid(f) = sigmoid(-f). With ``zoneout``, the package multiplies f by 1 - zoneout in
    evaluation, of which the paper says nothing.

    Args:
        state_dict: ``state_dict()`` of the package's module.
        input_size: the package's, as all that follow.
        hidden_size: see input_size.
        num_layers: see input_size.
        window: see input_size.
        output_gate: see input_size.

    Returns:
        One for each layer, for `scanrnn.jax.qrnn_layer`.

    Raises:
        ValueError: a weight is missing, has another shape, or is not used.
    """
    source = _Source("pytorch_qrnn_params", state_dict)
    stacked = any(key.startswith("layers.") for key in state_dict)
    parts, D, n = 3 if output_gate else 2, hidden_size, input_size
    signs = np.array([1, -1, 1][:parts])
    params = []
    for layer in range(num_layers):
        prefix = f"layers.{layer}." if stacked else ""
        weight = source.take(f"{prefix}linear.weight", (parts * D, window * n))
        bias = source.take(f"{prefix}linear.bias", (parts * D,)).reshape(parts, D)
        weight = weight.reshape(parts, D, window, n).transpose(2, 3, 0, 1)
        weight, bias = weight * signs[:, None], bias * signs[:, None]
        params.append({"weight": jnp.asarray(weight), "bias": jnp.asarray(bias)})
        n = D
    source.finish()
    return params


def _minimal(
    fn: str, state_dict: Mapping[str, Any], key: str, parts: int, sizes: tuple[int, int]
) -> tuple[Params, Array | None]:
    """Parameters of minGRU-pytorch, whose first part is the candidate, the layer's last."""
    (n, D), source = sizes, _Source(fn, state_dict)
    weight = _parts(source.take(f"{key}.weight", (parts * D, n)), parts)
    out = None
    if "to_out.weight" in source.rest:
        out = jnp.asarray(source.take("to_out.weight", (n, D)).T)
    source.finish()
    return {"weight": jnp.asarray(np.roll(weight, -1, 1))}, out


def min_gru_params(
    state_dict: Mapping[str, Any], input_size: int, hidden_size: int
) -> tuple[Params, Array | None]:
    """Parameters of a ``minGRU`` of minGRU-pytorch.

    Where the package keeps what, for ``minGRU(dim, expansion_factor)`` with D = dim *
    expansion_factor:

    - ``to_hidden_and_gate.weight``, (2 * D, dim): the candidate's rows, then the update gate's;
    - ``to_out.weight``, (dim, D), where the factor is not 1: a projection of the output.

    Call `scanrnn.jax.min_gru_layer` with activation="positive". The package computes in log space
    for more than one step, where it applies the candidate's activation to the state that was passed
    to it too; the layer takes the state as it is, as the package does for one step. From no state,
    both compute the same.

    Args:
        state_dict: ``state_dict()`` of the package's module.
        input_size: dim.
        hidden_size: D.

    Returns:
        The layer's parameters, and the matrix (D, dim) by which its outputs are to be multiplied,
        or None.

    Raises:
        ValueError: a weight is missing, has another shape, or is not used.
    """
    sizes = input_size, hidden_size
    return _minimal("min_gru_params", state_dict, "to_hidden_and_gate", 2, sizes)


def min_lstm_params(
    state_dict: Mapping[str, Any], input_size: int, hidden_size: int
) -> tuple[Params, Array | None]:
    """Parameters of a ``minLSTM`` of minGRU-pytorch.

    Where the package keeps what, for ``minLSTM(dim, expansion_factor)`` with D = dim *
    expansion_factor:

    - ``to_hidden_and_f_i_gate.weight``, (3 * D, dim): the rows of the candidate, the forget gate
      and the input gate;
    - ``to_out.weight``, (dim, D), where there is one: a projection of the output.

    Call `scanrnn.jax.min_lstm_layer` with activation="positive". States are as `min_gru_params`
    says.

    Args:
        state_dict: ``state_dict()`` of the package's module.
        input_size: dim.
        hidden_size: D.

    Returns:
        As `min_gru_params`.

    Raises:
        ValueError: a weight is missing, has another shape, or is not used.
    """
    sizes = input_size, hidden_size
    return _minimal("min_lstm_params", state_dict, "to_hidden_and_f_i_gate", 3, sizes)


def recurrentgemma_params(state_dict: Mapping[str, Any], width: int, num_heads: int = 1) -> Params:
    """Parameters of an ``RGLRU`` of RecurrentGemma (its PyTorch code).

    Where the package keeps what, for ``RGLRU(width, num_heads)`` with blocks of b = width /
    num_heads:

    - ``a_param``, (width,): lambda;
    - ``a_gate.w``, (num_heads, b, b) by input and output feature, and ``a_gate.b``, (num_heads, b):
      the recurrence gate;
    - ``input_gate.w`` and ``input_gate.b``: the input gate, likewise.

    The blocks become matrices of which the rest is 0. The package does not scale the input of a
    step without a state before it, the paper scales every step: call `scanrnn.jax.rg_lru_layer`
    with scale_start=False. The package's ``segment_pos == 0`` is `reset`.

    Args:
        state_dict: ``state_dict()`` of the package's module.
        width: the package's.
        num_heads: the package's, a divisor of width.

    Returns:
        The layer's parameters.

    Raises:
        ValueError: a weight is missing, has another shape, or is not used.
    """
    fn = "recurrentgemma_params"
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"{fn}: num_heads is {num_heads}, expected a divisor of {width}")
    source, b = _Source(fn, state_dict), width // num_heads
    gates = ("a_gate", "input_gate")
    blocks = [source.take(f"{gate}.w", (num_heads, b, b)) for gate in gates]
    biases = [source.take(f"{gate}.b", (num_heads, b)).reshape(width) for gate in gates]
    weight = np.zeros((num_heads, b, 2, num_heads, b), blocks[0].dtype)
    heads = np.arange(num_heads)
    weight[heads, :, :, heads] = np.stack(blocks, 2)
    params = {
        "weight": jnp.asarray(weight.reshape(width, 2, width)),
        "bias": jnp.asarray(np.stack(biases)),
        "lam": jnp.asarray(source.take("a_param", (width,))),
    }
    source.finish()
    return params


def fla_hgrn_params(
    state_dict: Mapping[str, Any], input_size: int, hidden_size: int
) -> tuple[Params, Params]:
    """Parameters of an ``HGRNAttention`` of flash-linear-attention.

    Where the package keeps what, for hidden_size n and D = n * expand_ratio:

    - ``f_proj.weight`` and ``i_proj.weight``, (D, n): forget gate and candidate;
    - ``g_proj.weight``, (D, n), and ``g_norm.weight``, (D,): the output gate and its norm;
    - ``o_proj.weight``, (n, D): a projection of the output.

    `scanrnn.jax.hgrn_layer` is what the package has before the output gate. After it come, with the
    second of the results as `more`:

        h = h * rsqrt(mean(h^2) + eps) * more["norm"]
        y = (h * silu(x @ more["gate"])) @ more["out"]

    The lower bounds belong to the package's model: `scanrnn.jax.hgrn_bounds` of its
    ``lower_bounds`` gives the layers' rows.

    Args:
        state_dict: ``state_dict()`` of the package's module, without short convolutions.
        input_size: n.
        hidden_size: D.

    Returns:
        The layer's parameters; and "gate" (n, D), "norm" (D,) and "out" (D, n).

    Raises:
        ValueError: a weight is missing, has another shape, or is not used.
    """
    (n, D), source = (input_size, hidden_size), _Source("fla_hgrn_params", state_dict)
    products = [source.take(f"{name}_proj.weight", (D, n)).T for name in ("f", "i")]
    more = {
        "gate": jnp.asarray(source.take("g_proj.weight", (D, n)).T),
        "norm": jnp.asarray(source.take("g_norm.weight", (D,))),
        "out": jnp.asarray(source.take("o_proj.weight", (n, D)).T),
    }
    source.finish()
    return {"weight": jnp.asarray(np.stack(products, 1))}, more
