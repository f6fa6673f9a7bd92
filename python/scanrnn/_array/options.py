"""Checks of the options that every framework's functions have."""

from __future__ import annotations

import operator
from collections.abc import Sequence


def time_axis(fn: str, name: str, shape: Sequence[int], axis: int) -> int:
    """The time axis of an array, counted from its first.

    Of an array that has no other, it is -2 too, which is the default.

    Raises:
        ValueError: there is none, or no such.
    """
    ndim = len(shape)
    if ndim == 0:
        raise ValueError(f"{fn}: {name} has shape (), expected at least a time axis")
    axis = operator.index(axis)
    if ndim == 1 and axis == -2:
        return 0
    if not -ndim <= axis < ndim:
        raise ValueError(
            f"{fn}: axis is {axis}, expected {-ndim}..{ndim - 1} for {name} of shape {tuple(shape)}"
        )
    return axis % ndim


def check_padding_side(fn: str, padding_side: str) -> None:
    """ValueError unless it is a side."""
    if padding_side not in ("left", "right"):
        raise ValueError(f"{fn}: padding_side is {padding_side!r}, expected 'left' or 'right'")


def check_sequence_options(fn: str, cu_seqlens: object, lengths: object, padding_side: str) -> None:
    """ValueError unless they go together."""
    check_padding_side(fn, padding_side)
    if cu_seqlens is not None and lengths is not None:
        raise ValueError(f"{fn}: cu_seqlens and lengths were both given, expected at most one")
