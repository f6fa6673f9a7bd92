"""CuPy arrays, and other libraries' arrays in CUDA memory: results, streams, DLPack."""

# ruff: noqa: E402
import numpy as np
import pytest

cupy = pytest.importorskip("cupy")

import reference
import scanrnn
from gpu_helpers import to_torch
from reference import BFLOAT16, DTYPES, REAL_DTYPES, accumulation, assert_matches, gates, normal
from scanrnn.cells import sru, sru_step, sru_vjp


@pytest.fixture(autouse=True)
def _needs_cuda(cuda):
    pass


def to_cupy(array):
    """On the device; bfloat16 where CuPy has it."""
    try:
        return cupy.asarray(array)
    except (TypeError, ValueError):
        if np.asarray(array).dtype != BFLOAT16:
            raise
        pytest.skip("this CuPy has no bfloat16")


OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": [700, 0, 257]},
    "left": {"lengths": [1, 700, 511], "padding_side": "left"},
    "packed": {"cu_seqlens": [0, 3, 4, 4, 260, 517, 700]},
    "reset": {"reset": np.arange(2100).reshape(3, 700) % 97 == 11},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_scan_and_gradients(rng, name, dtype):
    options = OPTIONS[name]
    B, D = 1 if name == "packed" else 3, 5
    N = 6 if name == "packed" else B
    wide = accumulation(dtype)
    a, x, dh = gates(rng, (B, 700, D), dtype), *(normal(rng, (B, 700, D), dtype) for _ in "xd")
    h0, dfinal = normal(rng, (N, D), wide), normal(rng, (N, D), wide)
    a_, x_, dh_, h0_, dfinal_ = (to_cupy(v) for v in (a, x, dh, h0, dfinal))
    for values in (lambda v: v, cupy.asarray):
        there = {
            k: values(v) if k in ("lengths", "cu_seqlens", "reset") else v
            for k, v in options.items()
        }
        h, final = scanrnn.scan(a_, x_, h0_, return_final=True, **there)
        gradients = scanrnn.scan_vjp(a_, h, dh_, dfinal_, h0_, **there)
        assert all(isinstance(v, cupy.ndarray) for v in (h, final, *gradients))
        expected, last = reference.scan(a, x, h0, **options)
        assert_matches(h.get(), expected)
        assert_matches(final.get(), last)
        wanted = reference.scan_vjp(a, x, h0, dh, dfinal, h=h.get(), **options)
        for got, value in zip(gradients, wanted, strict=True):
            assert_matches(got.get(), value)


@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
def test_sru(rng, dtype):
    wide = accumulation(dtype)
    full = [normal(rng, (2, 300, 5), dtype) for _ in range(5)]
    small = [normal(rng, s, wide) for s in ((5,), (5,), (2, 5))]
    inputs, dh = (*full[:4], *small), full[4]
    there = [to_cupy(v) for v in inputs]
    h, final, checkpoints = sru(*there, return_final=True, return_checkpoints=True)
    expected, last = reference.sru(*inputs)
    rtol = 2e-5 if dtype.itemsize < 8 else None
    assert_matches(h.get(), expected, rtol=rtol)
    assert_matches(final.get(), last, rtol=rtol)
    gradients = sru_vjp(*there, checkpoints, to_cupy(dh))
    wanted = reference.sru_vjp(*inputs, dh)
    for got, value in zip(gradients, wanted.values(), strict=True):
        rtol = {2: 1e-2, 4: 1e-4, 8: None}[dtype.itemsize]
        assert_matches(got.get(), value, units=4, rtol=rtol)
    h_, final_ = sru_step(*(v[:, 0] for v in there[:4]), *there[4:])
    assert_matches(h_.get(), expected[:, 0], rtol=2e-5 if dtype.itemsize < 8 else None)
    assert final_.shape == (2, 5)


def test_s07_strides(rng):
    """Flipped, sliced, permuted, broadcast; PyTorch has no negative strides."""
    a, x = gates(rng, (3, 900, 6), "f"), normal(rng, (3, 900, 6), "f")
    a_, x_ = cupy.asarray(a), cupy.asarray(x)
    for part in (
        np.s_[:, ::-1],
        np.s_[::-1, ::2, ::-1],
        np.s_[..., 1:],
        np.s_[:, 1:, ::3],
        np.s_[:1, ::-3],
    ):
        expected, _ = reference.scan(a[part], x[part])
        assert_matches(scanrnn.scan(a_[part], x_[part]).get(), expected)
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        axis = order.index(1)
        batch_first = [i for i in range(3) if i != axis]
        moved = [v.transpose(order) for v in (a_, x_)]
        h = scanrnn.scan(*moved, axis=axis)
        assert h.shape == moved[1].shape
        back = np.moveaxis(h.get(), [*batch_first, axis], [0, 2, 1])
        given = [np.moveaxis(v.get(), [*batch_first, axis], [0, 2, 1]) for v in moved]
        assert_matches(back, reference.scan(*given)[0])
    wide = cupy.broadcast_to(x_[:1], (4, 900, 6))
    assert_matches(scanrnn.scan(0.5, wide).get(), reference.scan(0.5, wide.get())[0])
    deep = x_.reshape(3, 1, 30, 30, 6)
    h = scanrnn.scan(a_.reshape(deep.shape)[:, :, ::2], deep[:, :, ::2])
    pairs = [v.reshape(3, 30, 30, 6)[:, ::2].reshape(45, 30, 6) for v in (a, x)]
    assert_matches(h.get().reshape(45, 30, 6), reference.scan(*pairs)[0])
    da, *_ = scanrnn.scan_vjp(cupy.full((3, 1, 1, 1, 6), 0.5, "f"), deep, deep)
    assert da.shape == (3, 1, 1, 1, 6)


def test_i07_the_current_stream(rng):
    a, source = (cupy.asarray(v) for v in (gates(rng, (2, 3000, 40), "f"),
                                           normal(rng, (2, 3000, 40), "f")))  # fmt: skip
    expected = scanrnn.scan(a, source)
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) '
        "{ long long s = clock64(); while (clock64() - s < n); }",
        "spin",
    )
    cupy.cuda.Device().synchronize()
    results = []
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for i in range(200):
            x = cupy.full(source.shape, np.nan, "f")
            spin((1,), (1,), (np.int64(1_000_000 if i % 20 == 0 else 1000),))
            x[...] = source
            h = scanrnn.scan(a, x)
            del x
            cupy.full(source.shape, np.nan, "f")
            if i % 20 == 0:
                results.append(h)
        stream.synchronize()
    assert all(bool((h == expected).all()) for h in results)


def test_m03_graphs(rng):
    a, x = (cupy.asarray(gates(rng, (2, 3000, 40), "f")) for _ in range(2))
    stream = cupy.cuda.Stream(non_blocking=True)
    out = cupy.empty_like(x)
    with stream:
        scanrnn.scan(a, x, out=out)
        stream.synchronize()
        stream.begin_capture()
        scanrnn.scan(a, x, out=out)
        graph = stream.end_capture()
        for _ in range(5):
            x *= -0.5
            out.fill(np.nan)
            graph.launch(stream)
            stream.synchronize()
            assert bool((out == scanrnn.scan(a, x)).all())


class Recorder:
    """A DLPack producer in CUDA memory that notes the streams it is asked for."""

    def __init__(self, array):
        self.array, self.streams = array, []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        self.streams.append(stream)
        return self.array.__dlpack__(stream=stream, **options)


def test_i06_stream_numbers(rng):
    array = cupy.asarray(normal(rng, (2, 30, 3), "f"))
    producer = Recorder(array)
    h = scanrnn.scan(0.5, producer)
    assert isinstance(h, cupy.ndarray)
    assert producer.streams == [1]  # the legacy default stream is 1, and never 0
    with cupy.cuda.Stream(non_blocking=True) as stream:
        assert bool((scanrnn.scan(0.5, producer) == h).all())
        assert producer.streams[1:] == [stream.ptr]
    other = cupy.cuda.Stream()
    for number in (None, 1, 2, -1, other.ptr):
        h.__dlpack__(stream=number)


def test_other_libraries_by_dlpack(rng):
    """A PyTorch tensor that hides behind the protocol: results are CuPy's."""
    torch = pytest.importorskip("torch")
    values = normal(rng, (2, 500, 3), "f")
    h = scanrnn.scan(0.5, Recorder(to_torch(values, "cuda")))
    assert isinstance(h, cupy.ndarray)
    assert_matches(h.get(), reference.scan(0.5, values)[0])
    assert torch.from_dlpack(h).is_cuda


def test_d01_the_same_bits_from_every_library(rng):
    torch = pytest.importorskip("torch")
    for dtype in (BFLOAT16, np.dtype(np.float32)):
        a, x = gates(rng, (2, 3000, 40), dtype), normal(rng, (2, 3000, 40), dtype)
        ours = scanrnn.scan(*(to_cupy(v) for v in (a, x)))
        assert ours.dtype == dtype
        expected = ours.get().view(np.uint8)
        tensor = scanrnn.scan(*(to_torch(v, "cuda") for v in (a, x)))
        got = tensor.cpu().view(torch.uint8).numpy()
        np.testing.assert_array_equal(got, expected)
        jax = pytest.importorskip("jax")
        try:
            place = jax.devices("cuda")[0]
        except RuntimeError:
            continue
        array = scanrnn.scan(*(jax.device_put(v, place) for v in (a, x)))
        assert array.dtype == dtype
        np.testing.assert_array_equal(np.asarray(array).view(np.uint8), expected)


def test_d01_unsupported_dtypes():
    for dtype in ("int32", "uint8", "bool", "complex64"):
        x = cupy.zeros((1, 2, 3), dtype)
        if dtype != "complex64":
            with pytest.raises(TypeError, match=dtype):
                scanrnn.scan(x, x)
        else:
            with pytest.raises(TypeError, match=dtype):
                sru(x, x, x)


def test_m02_devices_and_libraries_must_agree():
    x = cupy.ones((2, 5, 3), "f")
    with pytest.raises(TypeError, match=r"a is a numpy\.ndarray, expected a cupy\.ndarray"):
        scanrnn.scan(np.ones((2, 5, 3), "f"), x)
    with pytest.raises(ValueError, match="cu_seqlens ends at 4, expected 5"):
        scanrnn.scan(x[:1], x[:1], cu_seqlens=[0, 4])
    managed = cupy.ndarray((2, 5, 3), "f", cupy.cuda.malloc_managed(120))
    managed[...] = 1
    assert scanrnn.scan(managed, managed)[0, -1, 0] == 5


def test_m01_the_other_device(rng):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    values = normal(rng, (2, 3000, 5), "f")
    with cupy.cuda.Device(1):
        x = cupy.asarray(values)
        a = cupy.full_like(x, 0.5)
    h, final = scanrnn.scan(a, x, return_final=True, lengths=[3000, 7])
    da, dx, _ = scanrnn.scan_vjp(a, h, x, final)
    assert {v.device.id for v in (h, final, da, dx)} == {1}
    assert cupy.cuda.runtime.getDevice() == 0
    assert_matches(h.get(), reference.scan(0.5, values, lengths=[3000, 7])[0])


def test_p05_memory(rng):
    """Nothing but the result is kept, and little is borrowed."""
    pool = cupy.get_default_memory_pool()
    x = cupy.ones((1, 1 << 18, 64), "f")
    scanrnn.scan(0.5, x)
    before = pool.used_bytes()
    h = scanrnn.scan(0.5, x)
    assert pool.used_bytes() - before <= 1.01 * h.nbytes
