"""What a step of the framework's kernel takes, and what counts as agreement: measured."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kernel import Kernel

# ---- Agreement -----------------------------------------------------------------------------------

# Relative to max(1, |state|). Runs from different states end in states that differ by this much
# because sums are rounded differently: in float32 by 2e-7 to 8e-7 (LSTM, GRU and RNN of 64 to 512
# units, gains 1 to 2). TF32 rounds states to 11 bits before each product: 5e-7 to 2e-5.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
TF32_TOLERANCE = 5e-4

# Relative to the largest cotangent.
ADJOINT_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.float16: 1e-2,
    torch.bfloat16: 1e-1,
}
TF32_ADJOINT_TOLERANCE = 2e-3


def uses_tf32(x: Tensor) -> bool:
    """Whether cuDNN may round the operands of float32 products."""
    if x.dtype != torch.float32 or not x.is_cuda:
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # set by the newer interface, to what the older can't express
        newer: Any = torch.backends.cudnn
        return bool(newer.rnn.fp32_precision == "tf32")


def tolerance_of(x: Tensor) -> float:
    """The default mismatch of states that counts as agreement."""
    return TF32_TOLERANCE if uses_tf32(x) else TOLERANCE[x.dtype]


def adjoint_tolerance_of(x: Tensor) -> float:
    """The same for cotangents, relative to the largest."""
    return TF32_ADJOINT_TOLERANCE if uses_tf32(x) else ADJOINT_TOLERANCE[x.dtype]


# ---- Time ----------------------------------------------------------------------------------------

ROWS = (1, 8, 64, 256, 1024, 4096)


class Steps(NamedTuple):
    """Microseconds of one step of an LSTM, by `ROWS`."""

    forward: tuple[float, ...]
    both: tuple[float, ...]  # forward and backward


class Machine(NamedTuple):
    """What a kind of device takes."""

    steps: dict[int, Steps]  # by hidden size, with as many features
    call: tuple[float, float]  # one call of the kernel, whatever its steps: forward, both
    relaxation: tuple[float, float]  # everything around the kernel, of one relaxation
    rate: float  # operations a microsecond, for features that the table doesn't have


# `python tests/bench/dense.py costs` measures these. GRUs take 0.8 to 1.1 of an LSTM; an RNN takes
# what an LSTM of half its size does.
MACHINES = {
    # H200, PyTorch 2.11, cuDNN 9.19, float32 without TF32.
    "cuda": Machine(
        steps={
            32: Steps((0.5, 0.5, 2.7, 3.9, 9.4, 26.0), (1.2, 1.2, 15.0, 16.7, 23.0, 79.0)),
            64: Steps(
                (0.46, 0.98, 2.72, 3.86, 9.42, 26.18), (1.3, 2.02, 15.30, 16.69, 23.12, 78.78)
            ),
            128: Steps(
                (2.12, 2.56, 5.70, 9.62, 28.06, 93.98), (4.18, 4.49, 16.25, 18.39, 56.35, 205.19)
            ),
            256: Steps(
                (15.09, 14.33, 21.02, 21.19, 42.50, 126.25),
                (25.45, 31.12, 53.88, 61.62, 117.09, 341.70),
            ),
            512: Steps(
                (11.2, 14.9, 25.0, 40.0, 115.0, 430.0), (25.0, 30.6, 65.0, 110.0, 310.0, 1100.0)
            ),
        },
        call=(250.0, 1300.0),
        relaxation=(800.0, 1500.0),
        rate=40e6,
    ),
    # Two cores with AVX-512, PyTorch 2.13. Above 128 units, more rows take as much more time.
    "cpu": Machine(
        steps={
            32: Steps(
                (6.2, 10.3, 17.9, 50.0, 200.0, 800.0), (18.7, 29.4, 88.5, 350.0, 1400.0, 5600.0)
            ),
            64: Steps((8.6, 15.2, 59.0, 238.0, 950.0, 3800.0), (22.7, 45.8, 250.0, 1e3, 4e3, 16e3)),
            128: Steps(
                (15.4, 26.2, 500.0, 2e3, 8e3, 32e3), (40.6, 300.0, 1400.0, 5600.0, 22e3, 9e4)
            ),
        },
        call=(20.0, 100.0),
        relaxation=(500.0, 1500.0),
        rate=4e4,
    ),
}

# Of float32's time (few rows, many rows); not measured, on the careful side.
DTYPE_FACTOR = {torch.float64: (1.0, 2.0), torch.float16: (0.3, 1.0), torch.bfloat16: (0.3, 1.0)}


def machine(device_type: str) -> Machine:
    """The costs of a kind of device."""
    return MACHINES.get(device_type, MACHINES["cuda"])


def step_us(
    kernel: Kernel, rows: float, device_type: str, dtype: torch.dtype, grad: bool, many: bool
) -> float:
    """Microseconds of one step of that many rows.

    Between sizes that were measured, few rows take what the smaller one did and many rows what the
    larger one did, which is on the careful side.

    Args:
        kernel: the layer.
        rows: sequences, or chunks, at once.
        device_type: "cuda" or "cpu".
        dtype: of states.
        grad: forward and backward, not forward alone.
        many: rows are chunks.
    """
    costs = machine(device_type)
    hidden = kernel.hidden // 2 if kernel.mode.startswith("RNN") else kernel.hidden
    sizes = sorted(costs.steps)
    at = bisect_left(sizes, hidden)
    exact = at < len(sizes) and sizes[at] == hidden
    if not many and not exact and at > 0:
        at -= 1
    at = min(at, len(sizes) - 1)
    steps = costs.steps[sizes[at]]
    us = _interpolate(rows, steps.both if grad else steps.forward)
    if many and hidden > sizes[-1]:
        us *= (hidden / sizes[-1]) ** 2
    us += rows * max(0.0, kernel.flops - kernel.square_flops) * (3 if grad else 1) / costs.rate
    return us * DTYPE_FACTOR.get(dtype, (1.0, 1.0))[many]


def _interpolate(rows: float, values: tuple[float, ...]) -> float:
    if rows <= ROWS[0]:
        return values[0]
    if rows >= ROWS[-1]:
        return values[-1] * rows / ROWS[-1]
    i = bisect_left(ROWS, rows)
    share = (rows - ROWS[i - 1]) / (ROWS[i] - ROWS[i - 1])
    return values[i - 1] + share * (values[i] - values[i - 1])
