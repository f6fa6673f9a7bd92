"""Peak memory of calls, measured in processes of their own."""

import pytest

pytest.importorskip("resource")

MEASURE = """
import resource
import numpy as np, scanrnn
from scanrnn.cells import sru, sru_vjp

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def filled(*shape):
    return np.full(shape, 0.5, np.float32)

# Threads, workspaces and code pages are there before anything is measured.
small = filled(2, 300, 64)
h = scanrnn.scan(small, small)
scanrnn.scan_vjp(small, h, h)
h, c = sru(small, small, small, return_checkpoints=True)
sru_vjp(small, small, small, None, None, None, None, c, h)

B, T, D = SHAPE
unit = 4 * B * T * D
"""

SHAPES = [(1, 2**18, 64), (8, 2**15, 64), (1, 2**24, 1)]
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def measure(run_python, code, shape):
    out = run_python(MEASURE.replace("SHAPE", str(shape)) + code)
    return float(out)


@by_shape
def test_p05_forward(run_python, shape):
    """One output, and 1% beside it."""
    code = """
a, x = filled(B, T, D), filled(B, T, D)
before = peak()
h = scanrnn.scan(a, x)
print((peak() - before) / unit)
"""
    assert measure(run_python, code, shape) <= 1.01 + 0.02


@by_shape
def test_p05_forward_into_out(run_python, shape):
    code = """
a, x, out = filled(B, T, D), filled(B, T, D), filled(B, T, D)
before = peak()
scanrnn.scan(a, x, out=out)
print((peak() - before) / unit)
"""
    assert measure(run_python, code, shape) <= 0.01 + 0.02


@by_shape
def test_p05_backward(run_python, shape):
    """The two gradients; nothing is saved between forward and backward but a, h and h0."""
    code = """
a, x, dh = filled(B, T, D), filled(B, T, D), filled(B, T, D)
h = scanrnn.scan(a, x)
before = peak()
scanrnn.scan_vjp(a, h, dh)
print((peak() - before) / unit)
"""
    assert measure(run_python, code, shape) <= 2.05


def test_p05_broadcast_gate(run_python):
    """The gradient of one gate for all steps needs no array of all steps."""
    code = """
a, x, dh = filled(D), filled(B, T, D), filled(B, T, D)
h = scanrnn.scan(a, x)
before = peak()
scanrnn.scan_vjp(a, h, dh)
print((peak() - before) / unit)
"""
    assert measure(run_python, code, SHAPES[0]) <= 1.05


def test_p05_sru(run_python):
    """Forward: one output and the checkpoints. Backward: one gradient an argument."""
    code = """
u, f, r = filled(B, T, D), filled(B, T, D), filled(B, T, D)
before = peak()
h, c = sru(u, f, r, return_checkpoints=True)
forward = peak() - before
before = peak()
sru_vjp(u, f, r, None, None, None, None, c, h)
backward = peak() - before
print(max(forward - 1.05 * unit, backward - 3.05 * unit) / unit)
"""
    assert measure(run_python, code, SHAPES[0]) <= 0.02


def test_no_leak(run_python):
    """Ten thousand calls, also failing ones, leave nothing behind."""
    code = """
import gc
def work(n):
    for _ in range(n):
        h, final = scanrnn.scan(small, small, return_final=True, lengths=[300, 200])
        try:
            scanrnn.scan(small, small, lengths=[300, 301])
        except ValueError:
            pass
work(200)
gc.collect()
before = peak()
work(2000)
print((peak() - before) / 2**20)
"""
    assert measure(run_python, code, (1, 1, 1)) <= 1
