"""From the public functions' arguments to the core's: which of its cells, inputs in its order."""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

from ..cells import SruActivation
from ._fused import activation_number

#: Arguments of `run`: the public function's name, the cell's in the core's table, its inputs in the
#: table's order by their public names, the state before the first step, and the cell's options.
CellCall: TypeAlias = tuple[str, str, dict[str, Any], tuple[str, Any], tuple[float, ...]]

_FORGET, _UPDATE = 0.0, 1.0  # what the first input of gilr gates


def sru_call(
    fn: str,
    u: Any,
    f: Any,
    r: Any,
    skip: Any,
    bias_f: Any,
    bias_r: Any,
    c0: Any,
    activation: str,
) -> CellCall:
    inputs = {"u": u, "f": f, "r": r, "skip": skip, "bias_f": bias_f, "bias_r": bias_r}
    return (
        fn,
        "sru",
        inputs,
        ("c0", c0),
        (activation_number(fn, activation, get_args(SruActivation)),),
    )


def gilr_call(fn: str, f: Any, z: Any, h0: Any, activation: str) -> CellCall:
    return hgrn_call(fn, f, z, None, h0, activation)


def hgrn_call(fn: str, f: Any, z: Any, bound: Any, h0: Any, activation: str) -> CellCall:
    inputs = {"f": f, "z": z, "bound": bound}
    return fn, "gilr", inputs, ("h0", h0), (_FORGET, activation_number(fn, activation))


def min_gru_call(fn: str, z: Any, v: Any, h0: Any, activation: str) -> CellCall:
    inputs = {"z": z, "v": v, "bound": None}
    return fn, "gilr", inputs, ("h0", h0), (_UPDATE, activation_number(fn, activation))


def min_lstm_call(fn: str, f: Any, i: Any, v: Any, h0: Any, activation: str) -> CellCall:
    inputs = {"f": f, "i": i, "v": v}
    return fn, "min_lstm", inputs, ("h0", h0), (activation_number(fn, activation),)


def qrnn_call(fn: str, z: Any, f: Any, o: Any, i: Any, c0: Any, activation: str) -> CellCall:
    number = activation_number(fn, activation)
    if o is None:
        if i is not None:
            raise ValueError(f"{fn}: i was given and o was not, expected both, o alone or neither")
        return fn, "gilr", {"f": f, "z": z, "bound": None}, ("c0", c0), (_FORGET, number)
    return fn, "qrnn", {"z": z, "f": f, "o": o, "i": i}, ("c0", c0), (number,)


def rg_lru_call(fn: str, x: Any, r: Any, i: Any, lam: Any, h0: Any, c: float) -> CellCall:
    if not c > 0:
        raise ValueError(f"{fn}: c is {c}, expected a positive number")
    return fn, "rg_lru", {"x": x, "r": r, "i": i, "lam": lam}, ("h0", h0), (float(c),)
