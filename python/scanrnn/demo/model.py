"""The demo's network and its gradient in NumPy, or in CuPy: the arrays decide.

.. code-block:: text

    x = embedding[token]
    in each layer:  u, f, r = x @ weight;  x = sru(u, f, r, skip=x)
    logits = x @ projection.weight + projection.bias

The recurrence is scanrnn's, forward and backward. Everything else is a few lines of array code.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanrnn.cells import sru, sru_vjp

__all__ = ["Adam", "NumpyModel", "forward", "initial_weights"]

Array = Any  # numpy.ndarray, cupy.ndarray, jax.Array: one code for all of them
Weights = dict[str, Array]


def initial_weights(
    rng: np.random.Generator, characters: int, width: int, layers: int
) -> dict[str, NDArray[np.float32]]:
    """Draws the weights of an untrained network: the starting point in every framework.

    Args:
        rng: Where the random numbers come from.
        characters: Size V of the alphabet.
        width: Channels D.
        layers: SRU layers.

    Returns:
        ``embedding`` (V, D); for each layer i ``layers.i.weight`` (D, 3D), whose columns give u, f
        and r, and ``layers.i.bias_f``, ``layers.i.bias_r`` (D,); ``projection.weight`` (D, V) and
        ``projection.bias`` (V,). All float32.
    """

    def normal(rows: int, columns: int, scale: float) -> NDArray[np.float32]:
        return scale * rng.standard_normal((rows, columns), dtype=np.float32)

    weights = {"embedding": normal(characters, width, 1.0)}
    for i in range(layers):
        weights[f"layers.{i}.weight"] = normal(width, 3 * width, width**-0.5)
        # A forget gate of n / (n + 1) remembers some n steps: channels start out with 1 to 64.
        weights[f"layers.{i}.bias_f"] = np.log(np.geomspace(1, 64, width, dtype=np.float32))
        weights[f"layers.{i}.bias_r"] = np.zeros(width, np.float32)
    weights["projection.weight"] = normal(width, characters, width**-0.5)
    weights["projection.bias"] = np.zeros(characters, np.float32)
    return weights


def layer_count(weights: Weights) -> int:
    """The number of SRU layers that a set of weights is for."""
    return sum(name.endswith(".bias_f") for name in weights)


def forward(
    weights: Weights,
    tokens: Array,
    state: list[Array] | None = None,
    tape: list[tuple[Array, ...]] | None = None,
) -> tuple[Array, list[Array]]:
    """Runs the network over a batch of windows. NumPy, CuPy and JAX arrays alike.

    Args:
        weights: See :func:`initial_weights`.
        tokens: Integers, shape ``(B, T)``.
        state: The final states of the window before, one ``(B, D)`` a layer; None starts from zero.
        tape: If given, what the backward pass needs is appended to it, a tuple a layer.

    Returns:
        Logits ``(B, T, V)`` of the next character at every step, and the final states.
    """
    x = weights["embedding"][tokens]
    final = []
    for i in range(layer_count(weights)):
        u, f, r = split(x @ weights[f"layers.{i}.weight"])
        inputs = (
            *(u, f, r, x, weights[f"layers.{i}.bias_f"], weights[f"layers.{i}.bias_r"]),
            None if state is None else state[i],
        )
        if tape is None:
            h, c = sru(*inputs, return_final=True)
        else:
            h, c, checkpoints = sru(*inputs, return_final=True, return_checkpoints=True)
            tape.append((*inputs, checkpoints, h))
        final.append(c)
        x = h
    return x @ weights["projection.weight"] + weights["projection.bias"], final


def split(projected: Array) -> tuple[Array, Array, Array]:
    """The three column blocks of a layer's projection: views, the cells take any strides."""
    d = projected.shape[-1] // 3
    return projected[..., :d], projected[..., d : 2 * d], projected[..., 2 * d :]


class NumpyModel:
    """The network with its optimiser, on NumPy or CuPy arrays.

    Args:
        weights: Initial weights, NumPy arrays. Copied.
        xp: The array module, ``numpy`` or ``cupy``.
    """

    def __init__(self, weights: Weights, xp: ModuleType = np) -> None:
        self.xp = xp
        self._weights: Weights = {name: xp.array(value) for name, value in weights.items()}
        self._adam = Adam(self._weights, xp)
        self._state: list[Array] | None = None

    def learn(self, inputs: Array, targets: Array, rate: float, restart: bool) -> Array:
        """One step of Adam on one window. Returns the mean loss in nats per character.

        Args:
            inputs: Characters, shape ``(B, T)``.
            targets: The characters that follow them, ``(B, T)``.
            rate: Learning rate.
            restart: Start from the zero state, not from where the last window ended.
        """
        xp, weights = self.xp, self._weights
        inputs, targets = xp.asarray(inputs), xp.asarray(targets)
        tape: list[tuple[Array, ...]] = []
        state = None if restart else self._state
        logits, self._state = forward(weights, inputs, state, tape)
        loss, dlogits = cross_entropy(logits, targets, xp)

        top = tape[-1][-1]
        gradients = {
            "projection.weight": rows(top).T @ rows(dlogits),
            "projection.bias": rows(dlogits).sum(0),
        }
        dh = dlogits @ weights["projection.weight"].T
        for i in reversed(range(len(tape))):
            u, f, r, x, bias_f, bias_r, c0, checkpoints, _ = tape[i]
            d = sru_vjp(u, f, r, x, bias_f, bias_r, c0, checkpoints, dh)
            dprojected = xp.concatenate((d.u, d.f, d.r), -1)
            gradients[f"layers.{i}.weight"] = rows(x).T @ rows(dprojected)
            gradients[f"layers.{i}.bias_f"] = d.bias_f
            gradients[f"layers.{i}.bias_r"] = d.bias_r
            dh = d.skip + dprojected @ weights[f"layers.{i}.weight"].T
        gradients["embedding"] = xp.zeros_like(weights["embedding"])
        xp.add.at(gradients["embedding"], inputs.reshape(-1), rows(dh))
        self._adam.update(weights, gradients, rate)
        return loss

    def loss(
        self, inputs: Array, targets: Array, state: list[Array] | None
    ) -> tuple[Array, list[Array]]:
        """The mean loss in nats per character, and the final states, without learning."""
        xp = self.xp
        logits, state = forward(self._weights, xp.asarray(inputs), state)
        return cross_entropy(logits, xp.asarray(targets), xp)[0], state

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The current weights as NumPy arrays."""
        return {
            name: value if self.xp is np else value.get() for name, value in self._weights.items()
        }


def rows(x: Array) -> Array:
    """Flattens ``(B, T, n)`` to ``(B * T, n)``."""
    return x.reshape(-1, x.shape[-1])


def cross_entropy(logits: Array, targets: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Mean softmax cross-entropy in nats, and its gradient with respect to the logits."""
    at_target = (*xp.ogrid[: targets.shape[0], : targets.shape[1]], targets)
    logits = logits - logits.max(-1, keepdims=True)
    p = xp.exp(logits)
    total = p.sum(-1, keepdims=True)
    loss = (xp.log(total[..., 0]) - logits[at_target]).mean()
    p /= total
    p[at_target] -= 1
    p /= targets.size
    return loss, p


class Adam:
    """Adam (Kingma and Ba, arXiv:1412.6980) with the gradient's global norm clipped to 1.

    Args:
        weights: The arrays to optimise; only their shapes are used here.
        xp: The array module.
    """

    def __init__(self, weights: Weights, xp: ModuleType = np) -> None:
        self._xp = xp
        self._steps = 0
        self._m = {name: xp.zeros_like(value) for name, value in weights.items()}
        self._v = {name: xp.zeros_like(value) for name, value in weights.items()}

    def update(self, weights: Weights, gradients: Weights, rate: float) -> None:
        """Moves the weights, in place."""
        self._steps += 1
        xp, beta1, beta2 = self._xp, *BETAS
        norm = xp.sqrt(sum((g * g).sum() for g in gradients.values()))
        clip = 1 / xp.maximum(norm, 1)
        rate *= math.sqrt(1 - beta2**self._steps) / (1 - beta1**self._steps)
        for name, g in gradients.items():
            g *= clip
            m, v = self._m[name], self._v[name]
            m += (1 - beta1) * (g - m)
            v += (1 - beta2) * (g * g - v)
            weights[name] -= rate * m / (xp.sqrt(v) + EPSILON)


BETAS = (0.9, 0.99)
EPSILON = 1e-8
