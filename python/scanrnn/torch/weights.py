"""Weights from other packages.

Each function copies a state dict into a layer of the same shape, or raises and copies nothing. The
docstrings say what the layer must be made with, where the package keeps what, and where the package
computes something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._weights import (
    Source,
    fla_hgrn,
    min_gru_pytorch,
    pytorch_qrnn,
    recurrentgemma,
    sru_package,
)
from ._recurrent import Recurrent
from .modules import HGRN, QRNN, RGLRU, SRU, MinGRU, MinLSTM

__all__ = [
    "load_fla_hgrn_weights",
    "load_min_gru_weights",
    "load_min_lstm_weights",
    "load_pytorch_qrnn_weights",
    "load_recurrentgemma_weights",
    "load_sru_package_weights",
]


class _Transfer:
    """A state dict, and the copies to make once all of it is understood."""

    def __init__(self, fn: str, state_dict: Mapping[str, Tensor]) -> None:
        self.fn = fn
        self.source = Source(fn, state_dict, "layer")
        self.copies: list[tuple[Tensor, Tensor]] = []

    def require(self, module: Recurrent[Any], **expected: object) -> None:
        """Raise ValueError unless the layer was made with these."""
        for name, value in expected.items():
            if getattr(module, name) != value:
                raise ValueError(
                    f"{self.fn}: module has {name}={getattr(module, name)!r}, expected {value!r}"
                )

    def put(self, target: Tensor, value: Tensor) -> None:
        """Plan to copy a value into a parameter of its shape."""
        self.copies.append((target, value.reshape(target.shape)))

    def finish(self) -> None:
        """Make the copies, unless something of the state dict was not used."""
        self.source.finish()
        with torch.no_grad():
            for target, value in self.copies:
                target.copy_(value)


def load_sru_package_weights(module: SRU, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights of an ``sru.SRU`` or ``sru.SRUCell`` of the SRU package into a layer.

    The package (``pip install sru``, versions 2.x) lets the gates see v * c_{t-1}, with v in
    ``weight_c``, as a layer with recurrent=True does. A layer without takes the weights of one that
    was made with ``v1=True``, whose ``weight_c`` is 0.

    Where the package keeps what, for a layer with n input features and hidden size D in d
    directions:

    - ``weight``, (n, d * D * k): for each direction and channel k neighbouring columns, which are
      W, W_f, W_r and, if n != d * D, the highway's projection (k = 4, else 3). With ``n_proj`` it
      is the second of two factors, after ``weight_proj``; their product is taken.
    - ``bias``, (2 * d * D): b_f of all directions, then b_r of all directions.
    - ``weight_c``, (2 * d * D): v_f of all directions, then v_r of all directions; missing means 0.
    - ``scale_x``, (1,): factor of the highway where that is the input itself; goes to the layer's
      ``highway_scale``.

    States are laid out differently too: the package's are (layers, B, d * D), this layer's
    (layers * d, B, D), as with the package's ``nn_rnn_compatible_return=True``.

    Args:
        module: the layer to fill, with the package's sizes, layers, directions and biases. Give it
            recurrent=True, but for ``v1=True``, activation="tanh" for ``use_tanh=True``, and
            highway="none" for ``has_skip_term=False``. ``dropout`` on the package's layers is
            inside a layer and is not taken over: it makes no difference in evaluation.
        state_dict: ``state_dict()`` of the package's module.

    Raises:
        ValueError: a weight is missing, has another shape than the layer needs, or does what the
            layer can't: a nonzero ``weight_c`` without recurrent=True, layer normalisation, a
            custom module for the products, a projection before the first layer, or different scales
            in the layers. Nothing has been copied.
    """
    transfer = _Transfer("load_sru_package_weights", state_dict)
    fn = transfer.fn
    if not module.bias:
        raise ValueError(f"{fn}: module has no biases, expected one made with bias=True")
    d, D = 2 if module.bidirectional else 1, module.hidden_size
    targets: list[Tensor] = [getattr(module, f"weight_ih_l{k}") for k in range(module.num_layers)]
    sizes = [(target.shape[1], target.shape[0] // (d * D)) for target in targets]
    scales = set()
    for k, layer in enumerate(sru_package(transfer.source, sizes, d, D)):
        transfer.put(targets[k], layer.weight.permute(1, 3, 2, 0))
        transfer.put(getattr(module, f"bias_ih_l{k}"), layer.bias.transpose(0, 1))
        v = torch.zeros_like(layer.bias) if layer.v is None else layer.v
        if module.recurrent:
            transfer.put(getattr(module, f"weight_c_l{k}"), v.transpose(0, 1))
        elif torch.any(v != 0):
            raise ValueError(
                f"{fn}: {layer.prefix}weight_c is not 0: the gates see the state, expected a "
                "module made with recurrent=True"
            )
        if module.uses_input_as_highway(sizes[k][0]):
            scales.add(layer.scale)
    if len(scales) > 1:
        raise ValueError(f"{fn}: scale_x differs between layers: {sorted(scales)}, expected one")
    transfer.finish()
    module.highway_scale = scales.pop() if scales else module.highway_scale


def load_pytorch_qrnn_weights(module: QRNN, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights of a ``QRNN`` or ``QRNNLayer`` of pytorch-qrnn (torchqrnn) into a layer.

    Where the package keeps what, for a layer with n input features and hidden size D:

    - ``linear.weight``, (3 * D, window * n), rows W_z, W_f, W_o (no W_o with output_gate=False, for
      which the layer has pooling="f"); columns of x_t, then of x_{t-1};
    - ``linear.bias``, (3 * D,), likewise.

    The package's f is an update gate, c = f z + (1 - f) c: f and its bias change their sign here,
    since 1 - sigmoid(f) = sigmoid(-f).

    With ``zoneout``, the package multiplies f by 1 - zoneout in evaluation; this layer does not, as
    the paper says nothing of it. The package's hidden is (layers, B, D), as hx.

    Args:
        module: the layer to fill, with the package's sizes, layers and window, one direction,
            pooling="fo" (or "f"), activation="tanh", biases and no proj_size.
        state_dict: ``state_dict()`` of the package's module.

    Raises:
        ValueError: a weight is missing, has another shape than the layer needs, or is not used, or
            the layer was made with other options. Nothing has been copied.
    """
    transfer = _Transfer("load_pytorch_qrnn_weights", state_dict)
    transfer.require(module, bias=True, bidirectional=False, proj_size=0, activation="tanh")
    if module.pooling == "ifo":
        raise ValueError(f"{transfer.fn}: module has pooling='ifo', expected 'fo' or 'f'")
    n, D, parts = module.input_size, module.hidden_size, 2 if module.pooling == "f" else 3
    layers = pytorch_qrnn(transfer.source, module.num_layers, n, D, module.window, parts)
    for layer, values in enumerate(layers):
        for to, blocks in zip(("weight_ih", "bias_ih"), values, strict=True):
            # The layer without an output gate has the forget gate first.
            ordered = blocks if parts == 3 else blocks[::-1]
            transfer.put(getattr(module, f"{to}_l{layer}"), torch.cat(ordered))
    transfer.finish()


def _load_minimal(
    fn: str, module: MinGRU | MinLSTM, state_dict: Mapping[str, Tensor], key: str, parts: int
) -> None:
    transfer = _Transfer(fn, state_dict)
    transfer.require(module, num_layers=1, bias=False, bidirectional=False, activation="positive")
    sizes = module.input_size, module.hidden_size, module.proj_size
    matrices, out = min_gru_pytorch(transfer.source, key, parts, *sizes)
    transfer.put(module.get_parameter("weight_ih_l0"), torch.cat(matrices))
    if out is not None:
        transfer.put(module.get_parameter("weight_hr_l0"), out)
    transfer.finish()


def load_min_gru_weights(module: MinGRU, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights of a ``minGRU`` of minGRU-pytorch into a layer.

    Where the package keeps what, for ``minGRU(dim, expansion_factor)`` with D = dim *
    expansion_factor:

    - ``to_hidden_and_gate.weight``, (2 * D, dim): the candidate's rows, then the update gate's;
    - ``to_out.weight``, (dim, D), where the factor is not 1: a projection of the output.

    The package computes in log space for more than one step, where it applies the candidate's
    activation to the state that was passed to it too; this layer takes the state as it is, as the
    package does for one step. From no state, both compute the same.

    Args:
        module: the layer to fill: MinGRU(dim, D, bias=False, activation="positive"), with
            proj_size=dim where there is a projection.
        state_dict: ``state_dict()`` of the package's module.

    Raises:
        ValueError: a weight is missing, has another shape than the layer needs, or is not used, or
            the layer was made with other options. Nothing has been copied.
    """
    _load_minimal("load_min_gru_weights", module, state_dict, "to_hidden_and_gate", 2)


def load_min_lstm_weights(module: MinLSTM, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights of a ``minLSTM`` of minGRU-pytorch into a layer.

    Where the package keeps what, for ``minLSTM(dim, expansion_factor)`` with D = dim *
    expansion_factor:

    - ``to_hidden_and_f_i_gate.weight``, (3 * D, dim): the rows of the candidate, the forget gate
      and the input gate;
    - ``to_out.weight``, (dim, D), where there is one: a projection of the output.

    States are as `load_min_gru_weights` says.

    Args:
        module: the layer to fill: MinLSTM(dim, D, bias=False, activation="positive"), with
            proj_size=dim where there is a projection.
        state_dict: ``state_dict()`` of the package's module.

    Raises:
        ValueError: a weight is missing, has another shape than the layer needs, or is not used, or
            the layer was made with other options. Nothing has been copied.
    """
    _load_minimal("load_min_lstm_weights", module, state_dict, "to_hidden_and_f_i_gate", 3)


def load_recurrentgemma_weights(module: RGLRU, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights of an ``RGLRU`` of RecurrentGemma (its PyTorch code) into a layer.

    Where the package keeps what, for ``RGLRU(width, num_heads)`` with blocks of b = width /
    num_heads:

    - ``a_param``, (width,): lambda;
    - ``a_gate.w``, (num_heads, b, b) by input and output feature, and ``a_gate.b``, (num_heads, b):
      the recurrence gate;
    - ``input_gate.w`` and ``input_gate.b``: the input gate, likewise.

    The package does not scale the input of a step without a state before it, as the layer does not
    with scale_start=False; the paper scales every step. Its ``segment_pos == 0`` is `reset`.

    Args:
        module: the layer to fill: RGLRU(width, width, num_heads=num_heads, scale_start=False).
        state_dict: ``state_dict()`` of the package's module.

    Raises:
        ValueError: a weight is missing, has another shape than the layer needs, or is not used, or
            the layer was made with other options. Nothing has been copied.
    """
    transfer = _Transfer("load_recurrentgemma_weights", state_dict)
    width, heads = module.hidden_size, module.num_heads
    transfer.require(module, num_layers=1, input_size=width, bias=True, bidirectional=False, c=8.0)
    layer = recurrentgemma(transfer.source, width, heads)
    transfer.put(module.get_parameter("weight_gate_l0"), torch.stack(layer.weights))
    transfer.put(module.get_parameter("bias_gate_l0"), torch.stack(layer.biases))
    transfer.put(module.get_parameter("lambda_l0"), layer.lam)
    transfer.finish()


def load_fla_hgrn_weights(module: HGRN, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights of an ``HGRNAttention`` of flash-linear-attention into a layer.

    Where the package keeps what, for hidden_size n and D = n * expand_ratio:

    - ``f_proj.weight`` and ``i_proj.weight``, (D, n): forget gate and candidate;
    - ``g_proj.weight``, (D, n), and ``g_norm.weight``, (D,): the output gate and its norm;
    - ``o_proj.weight``, (n, D): a projection of the output.

    The lower bounds belong to the package's model. Its layer k > 0 has
    ``lower_bounds.softmax(0).cumsum(0)[k] - lower_bounds.softmax(0)[0]``, layer 0 none: give that
    row to the layer.

    Args:
        module: the layer to fill: HGRN(n, D, bias=False, output_gate=True, proj_size=n,
            lower_bounds=row[None]), with norm_eps as the package's.
        state_dict: ``state_dict()`` of the package's module, without short convolutions.

    Raises:
        ValueError: a weight is missing, has another shape than the layer needs, or is not used, or
            the layer was made with other options. Nothing has been copied.
    """
    transfer = _Transfer("load_fla_hgrn_weights", state_dict)
    n, D = module.input_size, module.hidden_size
    transfer.require(
        module, num_layers=1, bias=False, bidirectional=False, output_gate=True, proj_size=n,
        activation="silu",
    )  # fmt: skip
    layer = fla_hgrn(transfer.source, n, D)
    transfer.put(module.get_parameter("weight_ih_l0"), torch.cat(layer.products))
    transfer.put(module.get_parameter("weight_gate_l0"), layer.gate)
    transfer.put(module.get_parameter("weight_norm_l0"), layer.norm)
    transfer.put(module.get_parameter("weight_hr_l0"), layer.out)
    transfer.finish()
