"""The demo's network in PyTorch: `torch.nn` around `scanrnn.torch.SRU`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from scanrnn.torch import SRU

from .model import BETAS, EPSILON, layer_count

__all__ = ["TorchModel"]


class Network(nn.Module):
    """Characters ``(B, T)`` to logits ``(B, T, V)`` and final states ``(layers, B, D)``."""

    def __init__(self, characters: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.rnn = SRU(width, width, layers, batch_first=True)
        self.projection = nn.Linear(width, characters)

    def forward(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """See the class."""
        h, final = self.rnn(self.embedding(tokens), state)
        return self.projection(h), final


class TorchModel:
    """The network with its optimiser.

    Args:
        weights: Initial weights, see :func:`scanrnn.demo.model.initial_weights`.
        device: A torch device, ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, weights: dict[str, NDArray[np.float32]], device: str) -> None:
        characters, width = weights["embedding"].shape
        self._device = device
        self._network = Network(characters, width, layer_count(weights)).to(device)
        self._network.load_state_dict(to_torch(weights))
        self._parameters = list(self._network.parameters())
        self._adam = torch.optim.Adam(self._parameters, betas=BETAS, eps=EPSILON)
        self._state: Tensor | None = None

    def learn(
        self, inputs: NDArray[Any], targets: NDArray[Any], rate: float, restart: bool
    ) -> Tensor:
        """See :meth:`scanrnn.demo.model.NumpyModel.learn`."""
        loss, state = self._forward(inputs, targets, None if restart else self._state)
        self._state = state.detach()
        self._adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        return loss.detach()

    @torch.no_grad()
    def loss(
        self, inputs: NDArray[Any], targets: NDArray[Any], state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`scanrnn.demo.model.NumpyModel.loss`."""
        return self._forward(inputs, targets, state)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The current weights as NumPy arrays, with the names and shapes of `initial_weights`."""
        return from_torch(self._network.state_dict())

    def _forward(
        self, inputs: NDArray[Any], targets: NDArray[Any], state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logits, final = self._network(self._tensor(inputs), state)
        return F.cross_entropy(logits.flatten(0, 1), self._tensor(targets).flatten()), final

    def _tensor(self, tokens: NDArray[Any]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=self._device)


def to_torch(weights: dict[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    """The demo's weights by the names of `Network`, whose matrices are W where ours are W^T."""
    arrays = {
        "embedding.weight": weights["embedding"],
        "projection.weight": weights["projection.weight"].T,
        "projection.bias": weights["projection.bias"],
    }
    for i in range(layer_count(weights)):
        biases = (weights[f"layers.{i}.bias_f"], weights[f"layers.{i}.bias_r"])
        arrays[f"rnn.weight_ih_l{i}"] = weights[f"layers.{i}.weight"].T
        arrays[f"rnn.bias_ih_l{i}"] = np.concatenate(biases)
    return {name: torch.tensor(np.ascontiguousarray(array)) for name, array in arrays.items()}


def from_torch(state: dict[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """The inverse of :func:`to_torch`."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in state.items()}
    weights = {"embedding": arrays["embedding.weight"]}
    for i in range(sum(name.startswith("rnn.weight_ih_l") for name in arrays)):
        weights[f"layers.{i}.weight"] = arrays[f"rnn.weight_ih_l{i}"].T
        bias_f, bias_r = np.split(arrays[f"rnn.bias_ih_l{i}"], 2)
        weights |= {f"layers.{i}.bias_f": bias_f, f"layers.{i}.bias_r": bias_r}
    weights["projection.weight"] = arrays["projection.weight"].T
    weights["projection.bias"] = arrays["projection.bias"]
    return {name: np.array(array, order="C") for name, array in weights.items()}
