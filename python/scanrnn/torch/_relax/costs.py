"""What a step of the framework's kernel takes, and what counts as agreement: measured."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kernel import Kernel

# ---- Agreement -----------------------------------------------------------------------------------

# Relative to max(1, |state|). Runs from different states end in states that differ by this much
# because sums are rounded differently: in float32 by 1e-7 to 1e-6 (LSTM, GRU and RNN of 64 to 512
# units, gains 1 to 2). TF32 rounds states to 11 bits before each product: 5e-7 to 2e-5.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
TF32_TOLERANCE = 5e-4
ROUNDING = 8.0  # tolerances are rounding, if a further pass leaves them as they are

# Relative to the largest cotangent of a sequence.
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

ROWS = (1, 8, 64, 256, 384, 448, 1024, 4096)


class Steps(NamedTuple):
    """Microseconds of one step, by `ROWS`."""

    forward: tuple[float, ...]
    both: tuple[float, ...]  # forward and backward


class Machine(NamedTuple):
    """What a kind of device takes."""

    steps: dict[str, dict[int, Steps]]  # by mode and hidden size, with as many features
    call: tuple[float, float]  # one call of the kernel, at least: forward, both
    relaxation: tuple[float, float]  # everything around the kernel, of one relaxation
    rate: float  # operations a microsecond, for features that the table doesn't have


# `python tests/bench/dense.py costs` measures these, but for what a call takes at least, whatever
# its steps: that hides what the steps of small layers take, which are from sections long and grid.
# An RNN takes what an LSTM of half its size does.
# fmt: off
MACHINES = {
    # H200, PyTorch 2.11, cuDNN 9.19, float32 without TF32. A step of 256 units takes as much for
    # 384 rows as for 256, and a fifth more from 408 on; other sizes' 448 are between 384 and 512.
    "cuda": Machine(
        steps={
            "LSTM": {
                32: Steps(
                    (0.53, 0.57, 0.62, 1.5, 1.9, 2.1, 4.0, 10.5),
                    (1.15, 1.2, 1.9, 4.5, 5.6, 6.15, 11, 41),
                ),
                64: Steps(
                    (0.59, 0.62, 1.2, 2.3, 3.1, 3.45, 6.8, 23.5),
                    (1.28, 1.45, 2.6, 6.5, 8.6, 9.65, 19, 70),
                ),
                96: Steps(
                    (1.0, 1.0, 2.0, 4.0, 5.4, 6.1, 12.5, 45),
                    (2.2, 2.3, 4.5, 11, 14.5, 16.2, 32, 115),
                ),
                128: Steps(
                    (2.0, 2.1, 2.7, 7.5, 10.5, 12, 25.5, 93),
                    (3.9, 4.3, 5.6, 15, 20.9, 23.8, 48, 200),
                ),
                192: Steps(
                    (6.0, 6.1, 12.5, 45, 65, 73.5, 164, 631),
                    (17, 17, 34, 60, 91, 103, 210, 765),
                ),
                256: Steps(
                    (12.0, 12.5, 16.5, 22, 24, 24.5, 43.5, 129),
                    (26, 31, 48, 57, 59, 71, 112, 340),
                ),
                384: Steps(
                    (13.0, 13.0, 18.0, 30, 42, 43.5, 73, 261),
                    (29, 35, 50, 86, 134, 134, 210, 690),
                ),
                512: Steps(
                    (12.5, 13.5, 22.0, 41, 56, 59.5, 112, 404),
                    (27, 35, 55, 110, 161, 177, 335, 1115),
                ),
                768: Steps(
                    (13.0, 16.0, 36.0, 81, 112, 119, 245, 831),
                    (29, 41, 88, 220, 324, 360, 686, 2408),
                ),
                1024: Steps(
                    (12.5, 17.7, 45.0, 107, 156, 176, 363, 1435),
                    (25, 50, 128, 315, 467, 526, 1117, 4150),
                ),
            },
            "GRU": {
                64: Steps(
                    (0.6, 0.65, 1.2, 2.4, 3.2, 3.6, 7.4, 22.7),
                    (1.2, 1.3, 2.5, 15, 21, 24.5, 52, 195),
                ),
                128: Steps(
                    (1.1, 1.1, 2.2, 5.0, 7, 8, 16.5, 56.5),
                    (2.2, 2.3, 4.5, 18, 26, 30, 66, 255),
                ),
                256: Steps(
                    (12.0, 11.6, 16.0, 17, 21.5, 22, 36, 104),
                    (27, 29, 48, 56, 61, 69.5, 118, 375),
                ),
                512: Steps(
                    (12.0, 12.0, 21.0, 36, 51, 54.5, 91, 334),
                    (26, 35, 60, 103, 147, 156, 270, 934),
                ),
                1024: Steps(
                    (14.0, 18.0, 46.0, 100, 135, 145, 305, 1083),
                    (27, 45, 122, 280, 409, 448, 915, 3170),
                ),
            },
        },
        call=(250.0, 1400.0),
        relaxation=(1100.0, 1700.0),
        rate=40e6,
    ),
    # Two cores with AVX-512, PyTorch 2.13. Above 128 units, more rows take as much more time.
    "cpu": Machine(
        steps={
            "LSTM": {
                32: Steps(
                    (6.2, 10.3, 17.9, 50, 75, 87.5, 200, 800),
                    (18.7, 29, 88, 350, 525, 612, 1400, 5600),
                ),
                64: Steps(
                    (8.6, 15.2, 59, 238, 357, 416, 950, 3800),
                    (22.7, 46, 250, 1000, 1500, 1750, 4000, 16000),
                ),
                128: Steps(
                    (15, 26, 500, 2000, 3000, 3500, 8000, 32000),
                    (41, 300, 1400, 5600, 8300, 9650, 22000, 90000),
                ),
            },
        },
        call=(50.0, 300.0),
        relaxation=(2000.0, 6000.0),
        rate=4e4,
    ),
}
# fmt: on

# Of float32's time (few rows, many rows); not measured, on the careful side.
DTYPE_FACTOR = {torch.float64: (1.0, 2.0), torch.float16: (0.3, 1.0), torch.bfloat16: (0.3, 1.0)}


def machine(device_type: str) -> Machine:
    """The costs of a kind of device."""
    return MACHINES.get(device_type, MACHINES["cuda"])


def run_us(
    kernel: Kernel,
    steps: float,
    rows: float,
    device_type: str,
    dtype: torch.dtype,
    grad: bool,
    many: bool,
) -> float:
    """Microseconds of one call of the kernel.

    Between sizes that were measured, few rows take what the smaller one did and many rows what the
    larger one did, which is on the careful side.

    Args:
        kernel: the layer.
        steps: of the sequences, or chunks.
        rows: how many of them at once.
        device_type: "cuda" or "cpu".
        dtype: of states.
        grad: forward and backward, not forward alone.
        many: rows are chunks.
    """
    by_rows, per_row, call = _step(kernel, device_type, dtype, grad, many)
    us = _interpolate(rows, by_rows) + rows * per_row
    return max(call, 0.1 * call + steps * us)


@lru_cache(maxsize=256)
def _step(
    kernel: Kernel, device_type: str, dtype: torch.dtype, grad: bool, many: bool
) -> tuple[tuple[float, ...], float, float]:
    """Microseconds of a step by `ROWS`, of more features by row, and of a call, at least."""
    costs = machine(device_type)
    table = costs.steps.get(kernel.mode, costs.steps["LSTM"])
    hidden = kernel.hidden // 2 if kernel.mode.startswith("RNN") else kernel.hidden
    sizes = sorted(table)
    at = bisect_left(sizes, hidden)
    if not many and at > 0 and (at == len(sizes) or sizes[at] != hidden):
        at -= 1
    at = min(at, len(sizes) - 1)
    measured = table[sizes[at]]
    factor = DTYPE_FACTOR.get(dtype, (1.0, 1.0))[many]
    more = max(0.0, kernel.flops - kernel.square_flops)
    per_row = factor * more * (3 if grad else 1) / costs.rate
    if many and hidden > sizes[-1]:
        factor *= (hidden / sizes[-1]) ** 2
    by_rows = tuple(factor * us for us in (measured.both if grad else measured.forward))
    return by_rows, per_row, costs.call[grad]


def _interpolate(rows: float, values: tuple[float, ...]) -> float:
    if rows <= ROWS[0]:
        return values[0]
    if rows >= ROWS[-1]:
        return values[-1] * rows / ROWS[-1]
    i = bisect_left(ROWS, rows)
    share = (rows - ROWS[i - 1]) / (ROWS[i] - ROWS[i - 1])
    return values[i - 1] + share * (values[i] - values[i - 1])
