"""Threads, processes, and the same bits on all of them."""

import hashlib
import os
import threading
import time

import numpy as np
import pytest
import reference
import scanrnn
from reference import DTYPES, REAL_DTYPES, assert_matches, assert_same_bits, gates, normal
from scanrnn import scan, scan_vjp
from scanrnn.cells import sru, sru_vjp


def everything(seed, B, T, D, dtype, **options):
    """Outputs and gradients of scan (with a gate per channel) and of sru, from a seed."""
    rng = np.random.default_rng(seed)
    a, x, h0 = gates(rng, (D,), dtype), normal(rng, (B, T, D), dtype), normal(rng, (B, D), dtype)
    h, final = scan(a, x, h0, return_final=True, **options)
    results = [h, final, *scan_vjp(a, h, x, final, h0, **options)]
    if np.dtype(dtype).kind != "c":
        bias = normal(rng, (D,), dtype)
        u, f, r = x, x[:, ::-1], h
        rest = (x, bias, bias, h0)
        h, checkpoints = sru(u, f, r, *rest, return_checkpoints=True, **options)
        results += [h, *sru_vjp(u, f, r, *rest, checkpoints, x, **options)]
    return results


def test_m04_many_threads():
    """Calls of different shapes and dtypes at once: each gives its own result."""
    jobs = [
        (seed, 1 + seed % 3, (5, 40, 700, 2100)[seed % 4], 1 + seed % 9, DTYPES[seed % 6])
        for seed in range(8)
    ]
    expected = [everything(*job) for job in jobs]
    failures = []

    def work(job, wanted):
        try:
            for _ in range(500 if job[2] < 100 else 50):
                for got, value in zip(everything(*job), wanted, strict=True):
                    assert_same_bits(got, value)
        except BaseException as error:
            failures.append(error)

    workers = [
        threading.Thread(target=work, args=pair) for pair in zip(jobs, expected, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_m04_gil_is_free(threads):
    threads(1)
    x = np.ones((4, 2**18, 16))
    stamps, done = [], threading.Event()

    def count():
        while not done.wait(0.001):
            stamps.append(time.perf_counter())

    counter = threading.Thread(target=count)
    counter.start()
    try:
        start = time.perf_counter()
        scan(0.5, x)
        end = time.perf_counter()
    finally:
        done.set()
        counter.join()
    # In the middle of the call, where only a free GIL lets another thread run.
    middle = [s for s in stamps if start + 0.25 * (end - start) < s < end - 0.25 * (end - start)]
    assert len(middle) >= 2


def test_m04_exit_during_a_call(run_python):
    run_python(
        """
import threading, time
import numpy as np, scanrnn
x = np.ones((4, 100000, 16), np.float32)
started = threading.Event()
def work():
    while True:
        started.set()
        scanrnn.scan(0.5, x)
threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.05)
""",
        "-X",
        "dev",
    )


def test_m04_clean_exit(run_python):
    run_python(
        """
import numpy as np, scanrnn
from scanrnn.cells import sru
x = np.ones((4, 3000, 16), np.float32)
h, final = scanrnn.scan(0.5, x, return_final=True)
sru(x, x, x, return_checkpoints=True)
try:
    scanrnn.scan(x, x, x)
except ValueError as error:
    kept = error
""",
        "-X",
        "dev",
    )


def test_import_starts_no_thread_and_no_framework(run_python):
    run_python(
        """
import os, sys
import numpy
before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
import scanrnn
after = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
assert before == after, (before, after)
loaded = {"torch", "jax", "cupy", "matplotlib", "ml_dtypes"} & set(sys.modules)
assert not loaded, loaded
"""
    )


FORK = """
import os, signal, sys, threading, time
import numpy as np, scanrnn
x = np.ones((4, 100000, 16), np.float32)
expected = scanrnn.scan(0.5, x)
stop = threading.Event()
def work():
    while not stop.is_set():
        scanrnn.scan(0.5, x)
other = threading.Thread(target=work)
if BUSY:
    other.start()
    time.sleep(0.05)
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        same = np.array_equal(scanrnn.scan(0.5, x), expected)
        os._exit(0 if same else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
stop.set()
if BUSY:
    other.join()
assert np.array_equal(scanrnn.scan(0.5, x), expected)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "during a call"])
def test_fork(run_python, busy):
    # From Python 3.12 on, forking a process with threads warns.
    options = ["-W", "ignore::DeprecationWarning"]
    run_python(FORK.replace("BUSY", str(busy)), *options, SCANRNN_NUM_THREADS="4")


DIGEST = """
import hashlib, sys
sys.path.insert(0, {tests!r})
import numpy as np
from test_threads import everything
for dtype in (np.float32, np.complex128):
    for array in everything(0, 8, 4097, 32, dtype):
        print(hashlib.sha256(np.ascontiguousarray(array).data).hexdigest())
"""


def test_m06_processes(run_python):
    code = DIGEST.format(tests=os.path.dirname(__file__))
    first, *others = [run_python(code, SCANRNN_NUM_THREADS=n) for n in ("1", "3", "8")]
    assert len(first.split()) == 5 + 8 + 5
    for other in others:
        assert other == first


def digests(arrays):
    return [hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() for array in arrays]


def test_m06_repeats():
    expected = digests(everything(1, 8, 4097, 64, np.float32))
    for _ in range(20):
        assert digests(everything(1, 8, 4097, 64, np.float32)) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 4097, 3), (3, 2000, 40), (1, 100000, 1), (20, 33, 7)])
@pytest.mark.parametrize("reverse", [False, True])
def test_m06_threads(threads, shape, dtype, reverse):
    results = []
    for n in (1, 3, 8):
        threads(n)
        assert scanrnn.get_num_threads() == n
        results.append(everything(2, *shape, dtype, reverse=reverse))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_same_bits(one, two)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("T", [7, 33, 1000, 5000])
def test_m06_batch_and_channel_companions(rng, dtype, T):
    """A row alone, or some channels alone, have the bits that they have among others."""
    shape = (5, T, 19)
    a, x, dh = gates(rng, shape, dtype), *normal(rng, (2, *shape), dtype)
    h0, dfinal = normal(rng, (2, 5, 19), dtype)
    h, final = scan(a, x, h0, return_final=True)
    grads = scan_vjp(a, h, dh, dfinal, h0)
    for rows, channels in [
        (2, slice(None)),
        (slice(1, 3), slice(None)),
        (slice(None), slice(2, 19)),
    ]:
        part = np.s_[rows, :, channels]
        state = np.s_[rows, channels]
        alone, last = scan(a[part], x[part], h0[state], return_final=True)
        assert_same_bits(alone, h[part])
        assert_same_bits(last, final[state])
        own = scan_vjp(a[part], alone, dh[part], dfinal[state], h0[state])
        assert_same_bits(own[0], grads[0][part])
        assert_same_bits(own[1], grads[1][part])
        assert_same_bits(own[2], grads[2][state])


def test_every_instruction_set(rng):
    """Each that this machine has gives the right numbers."""
    core = scanrnn._core
    before = core.cpu_isa()
    try:
        for isa in core.build_info()["isas"]:
            core.set_cpu_isa(isa)
            assert core.cpu_isa() == isa
            for dtype in DTYPES:
                for shape in [(3, 70, 5), (2, 1100, 33)]:
                    a, x = gates(rng, shape, dtype), normal(rng, shape, dtype)
                    h = scan(a, x)
                    assert_matches(h, reference.scan(a, x)[0])
                    da, dx, _ = scan_vjp(a, h, x)
                    wanted = reference.scan_vjp(a, x, dh=x, h=h)
                    assert_matches(da, wanted[0])
                    assert_matches(dx, wanted[1])
                    if dtype in REAL_DTYPES:
                        got = sru(x, a, x, activation="tanh")
                        wide = dtype.itemsize < 8
                        expected, _ = reference.sru(x, a, x, activation="tanh")
                        assert_matches(got, expected, rtol=2e-5 if wide else None)
    finally:
        core.set_cpu_isa(before)


def test_unknown_instruction_set():
    with pytest.raises(ValueError, match="quantum"):
        scanrnn._core.set_cpu_isa("quantum")


def test_environment_sets_threads(run_python):
    out = run_python("import scanrnn; print(scanrnn.get_num_threads())", SCANRNN_NUM_THREADS="3")
    assert out.strip() == "3"


WRONG_VARIABLE = """
import numpy, scanrnn
one = numpy.ones((2, 3))
for call in (lambda: scanrnn.scan(one, one), scanrnn.get_num_threads):
    try:
        call()
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("value", ["0", "-1", "many", "2.5", "5000"])
def test_s08_an_environment_that_makes_no_sense(run_python, value):
    text = f"SCANRNN_NUM_THREADS is '{value}', expected a whole number from 1 to 4096"
    assert run_python(WRONG_VARIABLE, SCANRNN_NUM_THREADS=value).splitlines() == [text] * 2
    out = run_python(WRONG_VARIABLE, SCANRNN_CPU_ISA="quantum")
    assert out.startswith("SCANRNN_CPU_ISA: 'quantum' is not built")
