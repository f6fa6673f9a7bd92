"""Where other packages keep the weights of their layers, for the layers of any framework.

Arrays are NumPy's or PyTorch's: here they are only reshaped, sliced, negated and multiplied, and
each framework lays out what it gets as its layers want it. The public functions document what the
packages have: `scanrnn.torch.load_*_weights` and `scanrnn.jax.weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = Any


class Source:
    """What of a state dict has not been used yet."""

    def __init__(
        self,
        fn: str,
        state_dict: Mapping[str, Any],
        layers: str,
        convert: Callable[[Any], Array] = lambda value: value,
    ) -> None:
        self.fn = fn
        self.rest = dict(state_dict)
        self.layers = layers
        self.convert = convert

    def take(self, key: str, shape: tuple[int, ...]) -> Array:
        """An array of that shape, which is used now."""
        if key not in self.rest:
            raise ValueError(f"{self.fn}: state_dict has no {key}, expected shape {shape}")
        value = self.convert(self.rest.pop(key))
        if tuple(value.shape) != shape:
            raise ValueError(f"{self.fn}: {key} has shape {tuple(value.shape)}, expected {shape}")
        return value

    def take_if_there(self, key: str, shape: tuple[int, ...]) -> Array | None:
        return self.take(key, shape) if key in self.rest else None

    def finish(self) -> None:
        """Raise ValueError if something was not used."""
        if self.rest:
            unused = ", ".join(self.rest)
            raise ValueError(
                f"{self.fn}: state_dict has {unused}, which the {self.layers} can't use, expected "
                f"none but what they have"
            )

    def prefixes(self, name: str, count: int) -> list[str]:
        """Of the keys of each layer: none in the state dict of a single one."""
        stacked = any(key.startswith(f"{name}.") for key in self.rest)
        return [f"{name}.{layer}." if stacked else "" for layer in range(count)]


class SruLayer(NamedTuple):
    #: Of the layer's keys.
    prefix: str
    #: (n, d, D, k): W, W_f, W_r and, for k = 4, the highway's projection.
    weight: Array
    #: (2, d, D): b_f and b_r.
    bias: Array
    #: (2, d, D): v_f and v_r; or None.
    v: Array | None
    #: Factor of a highway that is the input itself.
    scale: float


def sru_package(
    source: Source, sizes: Iterable[tuple[int, int]], d: int, D: int
) -> Iterator[SruLayer]:
    """The layers of the SRU package, of n features and k products a channel each."""
    sizes = list(sizes)
    for prefix, (n, k) in zip(source.prefixes("rnn_lst", len(sizes)), sizes, strict=True):
        factor = source.rest.get(f"{prefix}weight_proj")
        inner = n if factor is None else np.shape(factor)[1]
        weight = source.take(f"{prefix}weight", (inner, d * D * k))
        if factor is not None:
            weight = source.take(f"{prefix}weight_proj", (n, inner)) @ weight
        bias = source.take(f"{prefix}bias", (2 * d * D,))
        v = source.take_if_there(f"{prefix}weight_c", (2 * d * D,))
        scale = source.take_if_there(f"{prefix}scale_x", (1,))
        yield SruLayer(
            prefix,
            weight.reshape(n, d, D, k),
            bias.reshape(2, d, D),
            None if v is None else v.reshape(2, d, D),
            1.0 if scale is None else float(scale[0]),
        )


def pytorch_qrnn(
    source: Source, layers: int, n: int, D: int, window: int, parts: int
) -> Iterator[tuple[list[Array], list[Array]]]:
    """Weights (D, window * n) and biases (D,) of z, f and o in the layers of pytorch-qrnn.

    The package's f is an update gate: here it is the forget gate, 1 - sigmoid(f) = sigmoid(-f).
    """
    for prefix in source.prefixes("layers", layers):
        weight = source.take(f"{prefix}linear.weight", (parts * D, window * n))
        bias = source.take(f"{prefix}linear.bias", (parts * D,))
        (z, f, *o), (b_z, b_f, *b_o) = _split(weight, parts), _split(bias, parts)
        yield [z, -f, *o], [b_z, -b_f, *b_o]
        n = D


def min_gru_pytorch(
    source: Source, key: str, parts: int, n: int, D: int, out: int
) -> tuple[list[Array], Array | None]:
    """The gates' matrices and, last, the candidate's, (D, n); the output's (out, D) if out > 0."""
    candidate, *gates = _split(source.take(f"{key}.weight", (parts * D, n)), parts)
    projection = source.take("to_out.weight", (out, D)) if out else None
    source.finish()
    return [*gates, candidate], projection


class RgLruLayer(NamedTuple):
    """Each gate's: the recurrence gate's first."""

    #: (num_heads, b, b), by input and output feature.
    weights: list[Array]
    #: (num_heads, b)
    biases: list[Array]
    #: (width,)
    lam: Array


def recurrentgemma(source: Source, width: int, num_heads: int) -> RgLruLayer:
    b, gates = width // num_heads, ("a_gate", "input_gate")
    layer = RgLruLayer(
        [source.take(f"{gate}.w", (num_heads, b, b)) for gate in gates],
        [source.take(f"{gate}.b", (num_heads, b)) for gate in gates],
        source.take("a_param", (width,)),
    )
    source.finish()
    return layer


class HgrnLayer(NamedTuple):
    #: (D, n): the forget gate's and the candidate's.
    products: list[Array]
    #: (D, n)
    gate: Array
    #: (D,)
    norm: Array
    #: (n, D)
    out: Array


def fla_hgrn(source: Source, n: int, D: int) -> HgrnLayer:
    layer = HgrnLayer(
        [source.take(f"{name}_proj.weight", (D, n)) for name in ("f", "i")],
        source.take("g_proj.weight", (D, n)),
        source.take("g_norm.weight", (D,)),
        source.take("o_proj.weight", (n, D)),
    )
    source.finish()
    return layer


def _split(array: Array, parts: int) -> list[Array]:
    """Equal parts of the first axis."""
    rows = array.shape[0] // parts
    return [array[i * rows : (i + 1) * rows] for i in range(parts)]
