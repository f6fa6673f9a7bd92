"""PyTorch tensors: calls go to `scanrnn.torch`, which is differentiable and compilable."""

from __future__ import annotations

import sys

from ._types import Frontend

FRONTEND = Frontend("torch.Tensor", "scanrnn.torch")


def owns(obj: object) -> bool:
    """Whether obj is a tensor, a parameter or another subclass."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)
