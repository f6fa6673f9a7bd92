"""From the public functions' arguments to the core's: which of its cells, inputs in its order."""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

from .._array.options import real_number
from ..cells import SruActivation
from ._fused import activation_number

#: Arguments of `run`: the public function's name, the cell's in the core's table, its inputs in the
#: table's order by their public names, the state before the first step, and the cell's options.
CellCall: TypeAlias = tuple[str, str, dict[str, Any], tuple[str, Any], tuple[float, ...]]

#: Arguments of `solve`: likewise, with all states before the first step by their public names.
SolveCall: TypeAlias = tuple[str, str, dict[str, Any], dict[str, Any], tuple[float, ...]]

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
    factor = real_number(fn, "c", c)
    if not factor > 0:
        raise ValueError(f"{fn}: c is {c}, expected a positive number")
    return fn, "rg_lru", {"x": x, "r": r, "i": i, "lam": lam}, ("h0", h0), (factor,)


# ---- Nonlinear cells -----------------------------------------------------------------------------


def recurrent_sru_call(
    fn: str,
    u: Any,
    f: Any,
    r: Any,
    skip: Any,
    bias_f: Any,
    bias_r: Any,
    c0: Any,
    activation: str,
    v_f: Any,
    v_r: Any,
) -> SolveCall:
    for name, other, value in (("v_f", "v_r", v_f), ("v_r", "v_f", v_r)):
        if value is None:
            raise ValueError(
                f"{fn}: {other} was given and {name} was not, expected both or neither"
            )
    inputs = {"u": u, "f": f, "r": r, "skip": skip, "v_f": v_f, "v_r": v_r}
    inputs |= {"bias_f": bias_f, "bias_r": bias_r}
    number = activation_number(fn, activation, get_args(SruActivation))
    return fn, "recurrent_sru", inputs, {"c0": c0}, (number,)


def diagonal_gru_call(
    fn: str, r: Any, z: Any, n: Any, u_r: Any, u_z: Any, u_n: Any, b_n: Any, h0: Any
) -> SolveCall:
    inputs = {"r": r, "z": z, "n": n, "u_r": u_r, "u_z": u_z, "u_n": u_n, "b_n": b_n}
    return fn, "diagonal_gru", inputs, {"h0": h0}, ()


def diagonal_lstm_call(
    fn: str,
    i: Any,
    f: Any,
    g: Any,
    o: Any,
    u_i: Any,
    u_f: Any,
    u_g: Any,
    u_o: Any,
    w_i: Any,
    w_f: Any,
    w_o: Any,
    h0: Any,
    c0: Any,
) -> SolveCall:
    if (i is None) != (u_i is None):
        given, missing = ("i", "u_i") if u_i is None else ("u_i", "i")
        raise ValueError(f"{fn}: {given} was given and {missing} was not, expected both or neither")
    if i is None and w_i is not None:
        raise ValueError(f"{fn}: w_i was given and i was not, expected none of both")
    inputs = {"f": f, "g": g, "o": o, "i": i}
    inputs |= {"u_f": u_f, "u_g": u_g, "u_o": u_o, "u_i": u_i}
    inputs |= {"w_f": w_f, "w_o": w_o, "w_i": w_i}
    return fn, "diagonal_lstm", inputs, {"h0": h0, "c0": c0}, ()


def indrnn_call(fn: str, p: Any, u: Any, h0: Any, activation: str) -> SolveCall:
    number = activation_number(fn, activation, get_args(SruActivation))
    return fn, "indrnn", {"p": p, "u": u}, {"h0": h0}, (number,)
