"""JAX arrays and tracers: calls go to `scanrnn.jax`, which works under jit, grad and vmap."""

from __future__ import annotations

import sys

from ._types import Frontend

FRONTEND = Frontend("jax.Array", "scanrnn.jax")


def owns(obj: object) -> bool:
    """Whether obj is a JAX array or a tracer."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(obj, jax.Array)
