"""Text from a trained network, one character at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanrnn.cells import sru_step

from .model import forward, layer_count, split
from .text import encode

__all__ = ["generate"]


def generate(
    weights: dict[str, NDArray[Any]],
    characters: str,
    prompt: str,
    length: int,
    *,
    temperature: float = 0.7,
    rng: np.random.Generator | None = None,
) -> Iterator[str]:
    """Continues a text.

    The prompt is read by the scan, in parallel over its characters; what follows is written with
    :func:`scanrnn.cells.sru_step`, each character from the states that the one before left.

    Args:
        weights: See :func:`scanrnn.demo.model.initial_weights`.
        characters: The alphabet, see :class:`scanrnn.demo.text.Corpus`.
        prompt: What to continue; a newline if it is empty.
        length: How many characters to write.
        temperature: 1 samples from the network's own distribution, less makes likely characters
            likelier, 0 always takes the likeliest.
        rng: Where the random numbers come from.

    Yields:
        The characters, without the prompt.

    Raises:
        ValueError: ``temperature`` or ``length`` is negative.
    """
    if temperature < 0 or length < 0:
        raise ValueError(f"temperature {temperature} and length {length} must not be negative")
    rng = rng or np.random.default_rng()
    tokens = encode(prompt or "\n", characters)
    logits, state = forward(weights, tokens[None])
    logits = logits[:, -1]
    for _ in range(length):
        token = choose(logits[0], temperature, rng)
        yield characters[token]
        logits, state = step(weights, token, state)


def step(
    weights: dict[str, NDArray[Any]], token: int, state: list[NDArray[Any]]
) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """One character in, logits ``(1, V)`` of the next one and the new states out."""
    x = weights["embedding"][token][None]
    new_state = []
    for i in range(layer_count(weights)):
        u, f, r = split(x @ weights[f"layers.{i}.weight"])
        bias_f, bias_r = weights[f"layers.{i}.bias_f"], weights[f"layers.{i}.bias_r"]
        x, c = sru_step(u, f, r, x, bias_f, bias_r, state[i])
        new_state.append(c)
    return x @ weights["projection.weight"] + weights["projection.bias"], new_state


def choose(logits: NDArray[Any], temperature: float, rng: np.random.Generator) -> int:
    """Draws a token. Token 0, which stands for unknown characters, is never drawn."""
    logits = logits[1:].astype(np.float64)
    if temperature == 0:
        return 1 + int(logits.argmax())
    p = np.exp((logits - logits.max()) / temperature)
    return 1 + int(rng.choice(len(p), p=p / p.sum()))
