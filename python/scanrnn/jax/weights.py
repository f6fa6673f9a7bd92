"""Weights from other packages, as parameters of the layers here.

Each function takes a state dict, whose values may be anything that NumPy takes (PyTorch's tensors,
also of bfloat16, what `safetensors.numpy.load_file` gives), and returns new arrays, or raises. The
docstrings say where the package keeps what, how to call the layer, and where the package computes
something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._array import type_name
from .._weights import (
    Source,
    fla_hgrn,
    min_gru_pytorch,
    pytorch_qrnn,
    recurrentgemma,
    sru_package,
)
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


def _numpy(value: Any) -> Values:
    """NumPy does not take PyTorch's bfloat16, JAX does."""
    try:
        return np.asarray(value)
    except TypeError:
        return np.asarray(jnp.from_dlpack(value))


def _source(fn: str, state_dict: object) -> Source:
    if not isinstance(state_dict, Mapping):
        kind = type_name(state_dict)
        raise TypeError(f"{fn}: state_dict is a {kind}, expected a mapping from names to arrays")
    return Source(fn, state_dict, "layers", _numpy)


def _matrices(parts: list[Values]) -> Array:
    """(input, parts, output) of matrices (output, input)."""
    return jnp.asarray(np.stack([part.T for part in parts], 1))


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
    source = _source("sru_package_params", state_dict)
    d, D = 2 if bidirectional else 1, hidden_size
    features = [input_size, *[d * D] * (num_layers - 1)][:num_layers]
    sizes = [(n, 4 if highway and n != d * D else 3) for n in features]
    params = []
    for (n, k), layer in zip(sizes, sru_package(source, sizes, d, D), strict=True):
        dtype, scale = layer.weight.dtype, layer.scale
        for direction, matrix in enumerate(layer.weight.transpose(1, 0, 3, 2)):
            if k == 3 and (d > 1 or not highway or scale != 1):
                columns = slice(direction * D, (direction + 1) * D)
                taken = np.eye(n, d * D)[:, columns] * (scale if highway else 0)
                matrix = np.concatenate([matrix, taken[:, None]], 1)
            bias_f, bias_r = layer.bias[:, direction]
            one = SruParams(
                weight=jnp.asarray(matrix, dtype),
                bias_f=jnp.asarray(bias_f),
                bias_r=jnp.asarray(bias_r),
            )
            if layer.v is not None and layer.v.any():
                one["v_f"], one["v_r"] = (jnp.asarray(v, dtype) for v in layer.v[:, direction])
            params.append(one)
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
    source = _source("pytorch_qrnn_params", state_dict)
    parts, D = 3 if output_gate else 2, hidden_size
    params = []
    for weights, biases in pytorch_qrnn(source, num_layers, input_size, D, window, parts):
        weight = np.stack(weights).reshape(parts, D, window, -1).transpose(2, 3, 0, 1)
        params.append({"weight": jnp.asarray(weight), "bias": jnp.asarray(np.stack(biases))})
    source.finish()
    return params


def _minimal(
    fn: str, state_dict: Mapping[str, Any], key: str, parts: int, sizes: tuple[int, int]
) -> tuple[Params, Array | None]:
    """Parameters of minGRU-pytorch, and the matrix of the output or None."""
    (n, D), source = sizes, _source(fn, state_dict)
    size = n if "to_out.weight" in state_dict else 0
    matrices, out = min_gru_pytorch(source, key, parts, n, D, size)
    return {"weight": _matrices(matrices)}, None if out is None else jnp.asarray(out.T)


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
    layer, b = recurrentgemma(_source(fn, state_dict), width, num_heads), width // num_heads
    weight = np.zeros((num_heads, b, 2, num_heads, b), layer.weights[0].dtype)
    heads = np.arange(num_heads)
    weight[heads, :, :, heads] = np.stack(layer.weights, 2)
    return {
        "weight": jnp.asarray(weight.reshape(width, 2, width)),
        "bias": jnp.asarray(np.stack(layer.biases).reshape(2, width)),
        "lam": jnp.asarray(layer.lam),
    }


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
    layer = fla_hgrn(_source("fla_hgrn_params", state_dict), input_size, hidden_size)
    more = {
        "gate": jnp.asarray(layer.gate.T),
        "norm": jnp.asarray(layer.norm),
        "out": jnp.asarray(layer.out.T),
    }
    return {"weight": _matrices(layer.products)}, more
