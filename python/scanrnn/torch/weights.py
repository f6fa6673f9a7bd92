"""Weights from other packages."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ._ops import check_shape
from .modules import SRU

__all__ = ["load_sru_package_weights"]


def load_sru_package_weights(module: SRU, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights of an ``sru.SRU`` or ``sru.SRUCell`` of the SRU package into a layer.

    The package (``pip install sru``, versions 2.x) computes the same cell if it was made with
    ``v1=True``. Its default cell lets the gates see v * c_{t-1}, with v in ``weight_c``; that is
    another, nonlinear recurrence, so weights with a nonzero ``weight_c`` are refused.

    Where the package keeps what, for a layer with n input features and hidden size D in d
    directions:

    - ``weight``, (n, d * D * k): for each direction and channel k neighbouring columns, which are
      W, W_f, W_r and, if n != d * D, the highway's projection (k = 4, else 3). With ``n_proj`` it
      is the second of two factors, after ``weight_proj``; their product is taken.
    - ``bias``, (2 * d * D): b_f of all directions, then b_r of all directions.
    - ``weight_c``, (2 * d * D): must be 0 (or missing).
    - ``scale_x``, (1,): factor of the highway where that is the input itself; goes to the layer's
      ``highway_scale``.

    States are laid out differently too: the package's are (layers, B, d * D), this layer's
    (layers * d, B, D), as with the package's ``nn_rnn_compatible_return=True``.

    Args:
        module: the layer to fill, with the package's sizes, layers, directions and biases. Give it
            activation="tanh" for ``use_tanh=True``, and highway="none" for
            ``has_skip_term=False``. ``dropout`` on the package's layers is inside a layer and is
            not taken over: it makes no difference in evaluation.
        state_dict: ``state_dict()`` of the package's module.

    Raises:
        ValueError: a weight is missing, has another shape than the layer needs, or does what the
            layer can't: a nonzero ``weight_c``, layer normalisation, a custom module for the
            products, a projection before the first layer, or different scales in the layers.
            Nothing has been copied.
    """
    fn = "load_sru_package_weights"
    if not module.bias:
        raise ValueError(f"{fn}: module has no biases, expected one made with bias=True")
    rest = dict(state_dict)
    stacked = any(key.startswith("rnn_lst.") for key in rest)
    d, D = 2 if module.bidirectional else 1, module.hidden_size
    copies: list[tuple[Tensor, Tensor]] = []
    scales = set()
    for layer in range(module.num_layers):
        prefix = f"rnn_lst.{layer}." if stacked else ""

        def take(name: str, shape: tuple[int, ...], key: str = prefix) -> Tensor:
            if key + name not in rest:
                raise ValueError(f"{fn}: state_dict has no {key + name}, expected shape {shape}")
            value = rest.pop(key + name)
            check_shape(fn, key + name, value, shape)
            return value

        to_weight: Tensor = getattr(module, f"weight_ih_l{layer}")
        rows, n = to_weight.shape
        factor = rest.pop(f"{prefix}weight_proj", None)
        weight = take("weight", (n if factor is None else factor.shape[1], rows))
        if factor is not None:
            check_shape(fn, f"{prefix}weight_proj", factor, (n, weight.shape[0]))
            weight = factor @ weight
        weight = weight.reshape(n, d, D, -1).permute(1, 3, 2, 0).reshape(rows, n)
        bias = take("bias", (2 * d * D,)).reshape(2, d, D).transpose(0, 1).flatten()
        copies += [(to_weight, weight), (getattr(module, f"bias_ih_l{layer}"), bias)]
        if torch.any(rest.pop(f"{prefix}weight_c", bias.new_zeros(1)) != 0):
            raise ValueError(
                f"{fn}: {prefix}weight_c is not 0, expected the weights of a layer made with "
                "v1=True: otherwise its gates depend on the state, and it is another recurrence"
            )
        scale = float(rest.pop(f"{prefix}scale_x", 1.0))
        if module.uses_input_as_highway(n):
            scales.add(scale)
    if rest:
        raise ValueError(f"{fn}: state_dict has {', '.join(rest)}, which the layer can't use")
    if len(scales) > 1:
        raise ValueError(f"{fn}: scale_x differs between layers: {sorted(scales)}")
    with torch.no_grad():
        for target, value in copies:
            target.copy_(value)
    module.highway_scale = scales.pop() if scales else module.highway_scale
