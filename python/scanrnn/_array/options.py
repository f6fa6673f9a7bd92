"""Checks of the options that every framework's functions have."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence


def listed(values: Iterable[object]) -> str:
    """Values as error texts list what is expected: a, b or c."""
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last


def place_of(fn: str, name: str, value: object, among: Sequence[str]) -> int:
    """The index of an option's value; ValueError if it is not among those."""
    if value not in among:
        raise ValueError(f"{fn}: {name} is {value!r}, expected {listed(map(repr, among))}")
    return among.index(value)


#: The activations in the order of the core's numbers. A cell may have the first few of them alone.
ACTIVATIONS = ("identity", "tanh", "relu", "silu", "sigmoid", "positive")


def activation_number(fn: str, name: str, value: object, among: Sequence[str]) -> int:
    """The core's number of an activation; ValueError if it is not among those."""
    place_of(fn, name, value, among)
    return ACTIVATIONS.index(str(value))


def whole_number(fn: str, name: str, value: int) -> int:
    """The value of an option that is an integer; TypeError if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{fn}: {name} is {value!r}, expected a whole number") from None


def real_number(fn: str, name: str, value: object) -> float:
    """The value of an option that is a real number; TypeError if it is none."""
    try:
        if not isinstance(value, str):
            return float(value)  # type: ignore[arg-type]
    except TypeError:  # also JAX's, of a number that is traced
        pass
    raise TypeError(f"{fn}: {name} is {value!r}, expected a number")


def solver_numbers(
    fn: str, tolerance: float | None, max_passes: int, segment: int | None
) -> tuple[float, int, int]:
    """The core's tolerance, max_passes and segment, where 0 means a default.

    Raises:
        TypeError: one of them is no such number.
        ValueError: one of them is out of range.
    """
    change = 0.0
    if tolerance is not None:
        change = real_number(fn, "tolerance", tolerance)
        if not 0 < change < math.inf:
            raise ValueError(f"{fn}: tolerance is {tolerance}, expected a positive number")
    passes = whole_number(fn, "max_passes", max_passes)
    steps = 0 if segment is None else whole_number(fn, "segment", segment)
    if passes < 0:
        raise ValueError(f"{fn}: max_passes is {max_passes}, expected at least 0")
    if segment is not None and steps < 1:
        raise ValueError(f"{fn}: segment is {segment}, expected at least 1")
    # More than the core's types hold is as good as endless.
    return change, min(passes, 2**31 - 1), min(steps, 2**63 - 1)


def time_axis(fn: str, name: str, shape: Sequence[int], axis: int) -> int:
    """The time axis of an array, counted from its first.

    Of an array that has no other, it is -2 too, which is the default.

    Raises:
        TypeError: axis is no integer.
        ValueError: there is none, or no such.
    """
    ndim = len(shape)
    if ndim == 0:
        raise ValueError(f"{fn}: {name} has shape (), expected at least a time axis")
    axis = whole_number(fn, "axis", axis)
    if ndim == 1 and axis == -2:
        return 0
    if not -ndim <= axis < ndim:
        raise ValueError(
            f"{fn}: axis is {axis}, expected {-ndim}..{ndim - 1} for {name} of shape {tuple(shape)}"
        )
    return axis % ndim


def check_padding_side(fn: str, padding_side: str) -> None:
    """ValueError unless it is a side."""
    place_of(fn, "padding_side", padding_side, ("left", "right"))


def check_sequence_options(fn: str, cu_seqlens: object, lengths: object, padding_side: str) -> None:
    """ValueError unless they go together."""
    check_padding_side(fn, padding_side)
    if cu_seqlens is not None and lengths is not None:
        raise ValueError(f"{fn}: cu_seqlens and lengths were both given, expected at most one")
