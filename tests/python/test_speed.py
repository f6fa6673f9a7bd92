"""Shapes where parallel scans elsewhere were slower than a loop; tests/bench/cpu.py has figures."""

import time

import numpy as np
import pytest
import scanrnn
from scanrnn import scan, scan_vjp


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def assert_not_slower(ours, theirs, factor=1.0, rounds=30):
    """The least times of both, run in turn until ours is within the factor: machines are noisy."""
    best = [np.inf, np.inf]
    for _ in range(rounds):
        best = [min(b, seconds(run)) for b, run in zip(best, (ours, theirs), strict=True)]
        if best[0] <= factor * best[1]:
            return
    raise AssertionError(f"{best[0]:.4f} s against {best[1]:.4f} s")


def loop(a, x, out):
    """The recurrence over the time axis in NumPy, which is vectorised over all others."""
    h = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        np.multiply(a[:, t], h, out=h)
        np.add(h, x[:, t], out=h)
        out[:, t] = h


def loop_vjp(a, h, dh, da, dx):
    """Its gradients, likewise."""
    g = np.zeros_like(h[:, 0])
    for t in reversed(range(h.shape[1])):
        np.add(g, dh[:, t], out=g)
        dx[:, t] = g
        da[:, t] = g * h[:, t - 1] if t else 0
        np.multiply(g, a[:, t], out=g)


def arrays(rng, shape):
    return rng.uniform(0.5, 1, shape).astype(np.float32), np.ones(shape, np.float32)


@pytest.mark.parametrize("shape", [(64, 1000, 100), (4096, 16, 64), (32, 128, 512), (1, 100, 64)])
def test_p01_short_or_small_work(rng, shape):
    a, x = arrays(rng, shape)
    h, da, dx = (np.empty_like(x) for _ in range(3))

    def ours():
        scan_vjp(a, scan(a, x), x)

    def theirs():
        loop(a, x, h)
        loop_vjp(a, h, x, da, dx)

    assert_not_slower(ours, theirs)


@pytest.mark.parametrize("count", [1, 8])
def test_p02_wide_work_is_faster_than_a_loop(rng, threads, count):
    threads(count)
    a, x = arrays(rng, (8, 320, 2048))
    h = np.empty_like(x)
    assert_not_slower(lambda: scan(a, x, out=h), lambda: loop(a, x, h))


def test_p02_threads_do_not_slow_one_channel(rng, threads):
    a, x = arrays(rng, (1, 4_000_000, 1))
    h = np.empty_like(x)
    count = scanrnn.get_num_threads()

    def on(n):
        threads(n)
        scan(a, x, out=h)

    # Beside other programs a thread waits for a core while all others wait for it.
    assert_not_slower(lambda: on(count), lambda: on(1), factor=1.5)
