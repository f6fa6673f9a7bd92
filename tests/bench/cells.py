"""The fused cells, as the benchmarks need them: what to fill their inputs with, and the equations.

`gpu.py` compares them with loops in PyTorch, `cpu.py` with the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Ranges of uniform random inputs. Rates make RG-LRU's gains 0.86 to 0.997 where its gate is open.
RANGES = {"value": (-1.0, 1.0), "gate": (-2.0, 4.0), "bound": (0.8, 1.0), "rate": (-8.0, -4.0)}


@dataclass(frozen=True)
class Cell:
    """A public function and its layer.

    `arrays` and `vectors` have the range of each argument, (B, T, D) and (D,), in the function's
    order; `map` gives (a, x) of a c_{t-1} + x = c_t for tensors of all steps, and `output` h_t.
    """

    arrays: Mapping[str, str]
    map: Callable[..., tuple[Any, Any]]
    vectors: Mapping[str, str] = field(default_factory=dict)
    output: Callable[..., Any] = lambda c, *_: c
    #: The core's cell, and options that aren't its defaults.
    core: str = ""
    options: Mapping[str, float] = field(default_factory=dict)
    #: The function, where that isn't the cell's own name.
    function: str = ""
    #: The layer in scanrnn.torch, its options, and the arguments that are the layer's input itself:
    #: the rest are its projections.
    layer: str = ""
    layer_options: Mapping[str, Any] = field(default_factory=dict)
    unprojected: tuple[str, ...] = ()


def sigmoid(v: Any) -> Any:
    return v.sigmoid()


def gated(keep: Any, candidate: Any) -> tuple[Any, Any]:
    return keep, (1 - keep) * candidate


def sru_output(c: Any, u: Any, f: Any, r: Any, skip: Any, bias_f: Any, bias_r: Any) -> Any:
    reset = sigmoid(r + bias_r)
    return reset * c + (1 - reset) * skip


def hgrn_map(f: Any, z: Any, bound: Any) -> tuple[Any, Any]:
    return gated(bound + (1 - bound) * sigmoid(f), z * sigmoid(z))


def min_lstm_map(f: Any, i: Any, v: Any) -> tuple[Any, Any]:
    forget, update = sigmoid(f), sigmoid(i)
    total = forget + update
    return forget / total, update / total * v


def rg_lru_map(x: Any, r: Any, i: Any, lam: Any) -> tuple[Any, Any]:
    log_a = -8 * lam.exp().log1p() * sigmoid(r)
    return log_a.exp(), (-(2 * log_a).expm1()).sqrt() * sigmoid(i) * x


CELLS = {
    "sru": Cell(
        {"u": "value", "f": "gate", "r": "gate", "skip": "value"},
        lambda u, f, r, skip, bias_f, bias_r: gated(sigmoid(f + bias_f), u),
        {"bias_f": "value", "bias_r": "value"},
        sru_output,
        core="sru",
        layer="SRU",
        unprojected=("skip",),
    ),
    "gilr": Cell(
        {"f": "gate", "z": "value"},
        lambda f, z: gated(sigmoid(f), z.tanh()),
        core="gilr",
        layer="GILR",
    ),
    "hgrn": Cell(
        {"f": "gate", "z": "value"},
        hgrn_map,
        {"bound": "bound"},
        core="gilr",
        options={"activation": 3},
        layer="HGRN",
    ),
    "min_gru": Cell(
        {"z": "gate", "v": "value"},
        lambda z, v: gated(1 - sigmoid(z), v),
        core="gilr",
        options={"gate": 1, "activation": 0},
        layer="MinGRU",
    ),
    "min_lstm": Cell(
        {"f": "gate", "i": "gate", "v": "value"},
        min_lstm_map,
        core="min_lstm",
        layer="MinLSTM",
    ),
    "qrnn, fo": Cell(
        {"z": "value", "f": "gate", "o": "gate"},
        lambda z, f, o: gated(sigmoid(f), z.tanh()),
        output=lambda c, z, f, o: sigmoid(o) * c,
        core="qrnn",
        function="qrnn",
        layer="QRNN",
    ),
    "qrnn, ifo": Cell(
        {"z": "value", "f": "gate", "o": "gate", "i": "gate"},
        lambda z, f, o, i: (sigmoid(f), sigmoid(i) * z.tanh()),
        output=lambda c, z, f, o, i: sigmoid(o) * c,
        core="qrnn",
        function="qrnn",
        layer="QRNN",
        layer_options={"pooling": "ifo"},
    ),
    "rg_lru": Cell(
        {"x": "value", "r": "gate", "i": "gate"},
        rg_lru_map,
        {"lam": "rate"},
        core="rg_lru",
        layer="RGLRU",
        unprojected=("x",),
    ),
}

#: Layers of scanrnn.torch and their options. The last three are scans of complex numbers, and two
#: cells one after the other.
LAYERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    " ".join([cell.layer, *cell.layer_options.values()]): (cell.layer, cell.layer_options)
    for cell in CELLS.values()
} | {name: (name, {}) for name in ("LRU", "S5", "GILRLSTM")}
