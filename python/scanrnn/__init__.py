"""Recurrent networks in logarithmic parallel depth, by divide and conquer over time.

`scan` is the diagonal linear recurrence h_t = a_t h_{t-1} + x_t for arrays of any library, exact
and with the same bits on any number of threads. `scanrnn.cells` has fused cells built on it.
`scanrnn.torch` and `scanrnn.jax` have the differentiable versions, and layers; they are imported
when they are needed and not before.
"""

from . import _core, _distributions, cells, debug
from ._core import cuda_available, get_num_threads, set_num_threads
from ._scan import scan, scan_vjp
from ._solve_report import SolveReport

__version__: str = _core.build_info()["version"]

_distributions.check()

__all__ = [
    "SolveReport",
    "__version__",
    "cells",
    "cuda_available",
    "debug",
    "get_num_threads",
    "scan",
    "scan_vjp",
    "set_num_threads",
]
