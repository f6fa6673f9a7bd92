"""What the merges of a scan do: for builds with the CMake option DEBUG_MERGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from ._array import adopt
from ._array.layout import Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from ._array import Array

__all__ = ["TRACE_DTYPE", "merge_trace", "plot_merge_trace"]

#: One record a merge level of `merge_trace`.
TRACE_DTYPE = np.dtype(
    [
        ("level", np.int64),
        ("merges", np.int64),
        ("max_change", np.float64),
        ("max_serial_error", np.float64),
    ]
)


def merge_trace(
    a: Array | complex,
    x: Array,
    h0: Array | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
) -> NDArray[np.void]:
    """Run `scanrnn.scan` on the CPU and report every level of its merge tree.

    A merge at level l joins two neighbouring segments of 2**l leaves. The state at the end of the
    later one is known before the merge as if nothing came before that segment, and after it as if
    nothing came before the pair.

    Args:
        a: as in `scanrnn.scan`: NumPy, or CPU memory through DLPack.
        x: as in `scanrnn.scan`, with at most one batch axis.
        h0: as in `scanrnn.scan`.
        axis: the time axis of x.
        reverse: run from the end.

    Returns:
        Structured array of `TRACE_DTYPE`, one record a level from the leaves (level -1) up: level;
        merges, their number; max_change, the largest |state after - state before|; and
        max_serial_error, the largest difference from the serial float64 state at the same step.

    Raises:
        RuntimeError: the core was built without DEBUG_MERGE.
        ValueError: a shape, a stride or a device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    fn = "merge_trace"
    library, (x_, a_, h0_) = adopt(fn, {"x": x, "a": a}, {"h0": h0})
    layout = Layout(fn, "x", library, x_, axis)
    if len(layout.batch) > 1:
        raise ValueError(f"{fn}: x has shape {layout.shape}, expected at most one batch axis")
    gate, full, state = layout.gate("a", a_), layout.full("x", x_), layout.state("h0", h0_)
    h = library.empty_like(x_)
    levels = _core.merge_trace(gate, full, state, layout.full("h", h), bool(reverse))
    return np.array(levels, dtype=TRACE_DTYPE)


def plot_merge_trace(trace: NDArray[np.void], ax: Axes | None = None) -> Axes:
    """Plot both magnitudes of a `merge_trace` over its levels; needs matplotlib.

    Args:
        trace: what `merge_trace` returned.
        ax: axes to draw into; None makes a figure.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots()
    for field, label in (
        ("max_change", "largest change of a state"),
        ("max_serial_error", "largest error against serial float64"),
    ):
        # Exact levels have an error of 0, which a logarithmic axis can't show.
        values: Any = np.where(trace[field] > 0, trace[field], np.nan)
        ax.plot(trace["level"], values, marker="o", label=label)
    ax.set_yscale("log")
    ax.set_xlabel("merge level")
    ax.set_ylabel("magnitude")
    ax.legend()
    return ax
