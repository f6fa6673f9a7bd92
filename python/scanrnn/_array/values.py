"""Checks of the values of index arrays, for those that are in CPU memory.

The core checks them itself when it runs on the CPU. On a GPU nothing does: reading the values would
wait for the device, so kernels only hold them within bounds. What the caller has on the CPU, where
reading is free, is checked here before it is copied to the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def check_offsets(fn: str, values: np.ndarray[Any, Any], time: int) -> None:
    """ValueError unless cu_seqlens starts at 0, does not decrease and ends at time."""
    if values[0] != 0:
        raise ValueError(f"{fn}: cu_seqlens starts at {values[0]}, expected 0")
    drops = np.flatnonzero(values[1:] < values[:-1])
    if drops.size:
        i = int(drops[0])
        raise ValueError(
            f"{fn}: cu_seqlens decreases from {values[i]} to {values[i + 1]} at index {i + 1}, "
            "expected offsets that don't decrease"
        )
    if values[-1] != time:
        raise ValueError(f"{fn}: cu_seqlens ends at {values[-1]}, expected {time}")


def check_lengths(fn: str, values: np.ndarray[Any, Any], time: int) -> None:
    """ValueError unless all lengths are from 0 to time."""
    if values.size and not 0 <= values.min() <= values.max() <= time:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(f"{fn}: lengths has the value {wrong}, expected 0..{time}")
