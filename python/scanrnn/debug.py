"""What the merges of a scan do: for builds with the CMake option DEBUG_MERGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from ._array import Frontend, adopt, dlpack, is_scalar, owner_of
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
    """Run `scanrnn.scan` where its arrays are and report every level of its merge tree.

    A merge joins two neighbouring segments. The state at the end of the later one is known before
    the merge as if nothing came before that segment, and after it as if nothing came before the
    pair. On the CPU a merge at level l joins two segments of 2**l leaves of 32 steps. On CUDA the
    levels are those of the kernel that the scan gets: the lanes of a warp, the warps of a block,
    blocks by eights, and last, as one more level, the states of the leaves' ends that the scan
    returns (scanrnn/trace.hpp says more). Either way the last level's max_serial_error is what
    rounding leaves.

    Args:
        a: as in `scanrnn.scan`, of any array library. CUDA memory of others than CuPy is viewed
            through CuPy.
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
    x, a, h0 = _view(fn, "x", x), _view(fn, "a", a), _view(fn, "h0", h0)
    library, (x_, a_, h0_) = adopt(fn, {"x": x, "a": a}, {"h0": h0})
    with library.guard(x_):
        layout = Layout(fn, "x", library, x_, axis)
        if len(layout.batch) > 1:
            raise ValueError(f"{fn}: x has shape {layout.shape}, expected at most one batch axis")
        gate, full, state = layout.gate("a", a_), layout.full("x", x_), layout.state("h0", h0_)
        h = library.empty_like(x_)
        out, stream = layout.full("h", h), library.stream(x_)
        levels = _core.merge_trace(gate, full, state, out, bool(reverse), stream)
    return np.array(levels, dtype=TRACE_DTYPE)


def _view(fn: str, name: str, array: Any) -> Any:
    """The array, or a NumPy or CuPy view of a PyTorch or JAX one."""
    if array is None or is_scalar(array):
        return array
    if not isinstance(owner_of(fn, name, array), Frontend):
        return array
    detach = getattr(array, "detach", lambda: array)  # PyTorch shares nothing that has gradients
    return dlpack.load(fn, name, detach())


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
