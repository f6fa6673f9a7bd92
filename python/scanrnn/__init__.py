"""Recurrent networks in logarithmic parallel depth, by divide and conquer over time.

`scan` is the diagonal linear recurrence h_t = a_t h_{t-1} + x_t for arrays of any library, exact
and with the same bits on any number of threads. `scanrnn.cells` has fused cells built on it.
`scanrnn.torch` and `scanrnn.jax` have the differentiable versions, and layers. All of these are
imported when they are needed and not before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _core, _distributions
from ._core import cuda_available, get_num_threads, set_num_threads
from ._scan import scan, scan_vjp
from ._solve_report import SolveReport

if TYPE_CHECKING:
    from . import cells, debug

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


def __getattr__(name: str) -> Any:
    if name in ("cells", "debug"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
