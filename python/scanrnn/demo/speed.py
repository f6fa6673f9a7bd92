"""A serial loop over time against the scan, on this machine: the table at the demo's end."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import scanrnn

__all__ = ["LENGTHS", "table"]

LENGTHS = (256, 4096, 65536)

# A function of no arguments that returns what it computed.
Call = Callable[[], Any]


def table(
    framework: str = "numpy",
    device: str = "cpu",
    width: int = 256,
    lengths: tuple[int, ...] = LENGTHS,
) -> str:
    """Times h_t = a_t h_{t-1} + x_t, float32, one sequence of ``width`` channels.

    The serial loop is what one writes without this package: a loop over T whose steps are
    vectorised over the channels (in JAX `jax.lax.scan`, compiled).

    Args:
        framework: ``"numpy"``, ``"torch"``, ``"jax"`` or ``"cupy"``.
        device: ``"cpu"`` or ``"cuda"``.
        width: Channels D.
        lengths: The T to measure.

    Returns:
        The table as text: medians and their ratio.
    """
    make = {"numpy": numpy_calls, "torch": torch_calls, "jax": jax_calls, "cupy": cupy_calls}
    lines = [
        f"h_t = a_t h_(t-1) + x_t, float32, B = 1, D = {width}, {framework} on {device}",
        f"{'T':>8} {'serial loop':>14} {'scan':>12} {'faster':>8}",
    ]
    rng = np.random.default_rng(0)
    for T in lengths:
        a = rng.uniform(0.9, 1, (1, T, width)).astype(np.float32)
        x = rng.standard_normal((1, T, width), dtype=np.float32)
        serial, scan = make[framework](a, x, device)
        serial_s, scan_s = seconds(serial), seconds(scan)
        lines.append(
            f"{T:>8,} {serial_s * 1e3:>11.3f} ms {scan_s * 1e3:>9.3f} ms {serial_s / scan_s:>7.1f}x"
        )
    return "\n".join(lines)


def seconds(call: Call, budget: float = 0.5) -> float:
    """The median time of 3 to 50 calls, which take some ``budget`` seconds, after a warm-up."""
    call()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 50):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def numpy_calls(a: Any, x: Any, device: str) -> tuple[Call, Call]:
    h = np.empty_like(x)

    def serial() -> Any:
        state = np.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            np.multiply(a[:, t], state, out=h[:, t])
            h[:, t] += x[:, t]
            state = h[:, t]
        return h

    return serial, lambda: scanrnn.scan(a, x, out=h)


def torch_calls(a: Any, x: Any, device: str) -> tuple[Call, Call]:
    import torch

    import scanrnn.torch

    a, x = torch.tensor(a, device=device), torch.tensor(x, device=device)
    h = torch.empty_like(x)

    def finished(result: Any) -> Any:
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    def serial() -> Any:
        state = torch.zeros_like(x[:, 0])
        for a_t, x_t, h_t in zip(a.unbind(1), x.unbind(1), h.unbind(1), strict=True):
            state = torch.addcmul(x_t, a_t, state, out=h_t)
        return finished(h)

    return serial, lambda: finished(scanrnn.torch.scan(a, x))


def jax_calls(a: Any, x: Any, device: str) -> tuple[Call, Call]:
    import jax

    import scanrnn.jax

    @jax.jit
    def loop(a: jax.Array, x: jax.Array) -> jax.Array:
        def step(h: jax.Array, ax: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            h = ax[0] * h + ax[1]
            return h, h

        return jax.lax.scan(step, jax.numpy.zeros_like(x[0, 0]), (a[0], x[0]))[1][None]

    scan = jax.jit(scanrnn.jax.scan)
    a, x = jax.device_put((a, x), jax.devices(device)[0])
    return lambda: loop(a, x).block_until_ready(), lambda: scan(a, x).block_until_ready()


def cupy_calls(a: Any, x: Any, device: str) -> tuple[Call, Call]:
    import cupy

    a, x = cupy.asarray(a), cupy.asarray(x)
    serial, scan = numpy_calls(a, x, device)

    def finished(call: Call) -> Any:
        result = call()
        cupy.cuda.get_current_stream().synchronize()
        return result

    return lambda: finished(serial), lambda: finished(scan)
