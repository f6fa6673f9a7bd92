"""The demo's network in JAX: the forward pass is that of `model`, the gradient is `jax.grad`'s."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from .model import BETAS, EPSILON, forward, layer_count

__all__ = ["JaxModel"]

Weights: TypeAlias = dict[str, jax.Array]
State: TypeAlias = list[jax.Array]


class JaxModel:
    """The network with its optimiser.

    Args:
        weights: Initial weights, see :func:`scanrnn.demo.model.initial_weights`.
        device: A JAX platform, ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, weights: dict[str, NDArray[np.float32]], device: str) -> None:
        self._device = jax.devices(device)[0]
        self._weights: Weights = jax.device_put(weights, self._device)
        zeros = jax.tree.map(jnp.zeros_like, self._weights)
        self._moments = (zeros, zeros)
        self._steps = 0
        self._state: State | None = None

    def learn(
        self, inputs: NDArray[Any], targets: NDArray[Any], rate: float, restart: bool
    ) -> jax.Array:
        """See :meth:`scanrnn.demo.model.NumpyModel.learn`."""
        state = self._zero_state(len(inputs)) if restart or self._state is None else self._state
        self._steps += 1
        loss: jax.Array
        self._weights, self._moments, self._state, loss = train_step(
            self._weights, self._moments, self._steps, state, self._put(inputs, targets), rate
        )
        return loss

    def loss(
        self, inputs: NDArray[Any], targets: NDArray[Any], state: State | None
    ) -> tuple[jax.Array, State]:
        """See :meth:`scanrnn.demo.model.NumpyModel.loss`."""
        state = self._zero_state(len(inputs)) if state is None else state
        result: tuple[jax.Array, State] = jitted_loss(
            self._weights, state, self._put(inputs, targets)
        )
        return result

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The current weights as NumPy arrays."""
        return {name: np.array(value) for name, value in self._weights.items()}

    def _zero_state(self, batch: int) -> State:
        zeros = np.zeros((batch, self._weights["embedding"].shape[1]), np.float32)
        return [jax.device_put(zeros, self._device)] * layer_count(self._weights)

    def _put(self, inputs: NDArray[Any], targets: NDArray[Any]) -> tuple[jax.Array, jax.Array]:
        pair: tuple[jax.Array, jax.Array] = jax.device_put((inputs, targets), self._device)
        return pair


def mean_loss(
    weights: Weights, state: State, window: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, State]:
    """Mean loss in nats per character, and the final states."""
    inputs, targets = window
    logits, final = forward(weights, inputs, state)
    at_target = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -at_target.mean(), final


jitted_loss = jax.jit(mean_loss)


@jax.jit
def train_step(
    weights: Weights,
    moments: tuple[Weights, Weights],
    steps: jax.Array,
    state: State,
    window: tuple[jax.Array, jax.Array],
    rate: jax.Array,
) -> tuple[Weights, tuple[Weights, Weights], State, jax.Array]:
    """One step of Adam with the gradient's global norm clipped to 1."""
    (loss, final), gradients = jax.value_and_grad(mean_loss, has_aux=True)(weights, state, window)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
    gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradients)
    beta1, beta2 = BETAS
    m = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, moments[0], gradients)
    v = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, moments[1], gradients)
    rate = rate * jnp.sqrt(1 - beta2**steps) / (1 - beta1**steps)
    weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + EPSILON), weights, m, v)
    return weights, (m, v), final, loss
