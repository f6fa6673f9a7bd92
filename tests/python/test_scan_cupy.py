"""The CuPy adapter, by a stand-in for CuPy whose device memory is NumPy's: no GPU is needed.

What is tested is what the core is told: pointers, strides, devices and streams.
"""

import sys
import types

import numpy as np
import pytest
import scanrnn
from reference import assert_same_bits, gates, normal
from scanrnn import _array, _core, scan, scan_vjp
from scanrnn._array import cupy as adapter
from scanrnn.cells import sru, sru_vjp

STREAM = 4096


class Device:
    current = 0

    def __init__(self, ordinal):
        self.id = ordinal
        self.before = []

    def __enter__(self):
        self.before.append(Device.current)
        Device.current = self.id

    def __exit__(self, *_):
        Device.current = self.before.pop()


class ndarray:  # noqa: N801
    def __init__(self, array, device=None):
        self.array = array
        self.device = Device(Device.current if device is None else device)
        self.data = types.SimpleNamespace(ptr=array.ctypes.data)

    def __getattr__(self, name):
        value = getattr(self.array, name)
        if not callable(value) or name == "dtype":
            return value
        return lambda *args, **options: ndarray(value(*args, **options), self.device.id)

    def __getitem__(self, index):
        return ndarray(self.array[index], self.device.id)

    def __setitem__(self, index, value):
        self.array[index] = value

    def __ne__(self, other):
        return ndarray(self.array != other, self.device.id)

    __hash__ = None


def asarray(value):
    return value if isinstance(value, ndarray) else ndarray(np.asarray(value))


@pytest.fixture
def cupy(monkeypatch):
    module = types.ModuleType("cupy")
    module.ndarray = ndarray
    module.asarray = asarray
    module.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))
    module.empty_like = lambda a: ndarray(np.empty_like(a.array))
    module.broadcast_to = lambda a, shape: ndarray(np.broadcast_to(a.array, shape), a.device.id)
    module.may_share_memory = lambda a, b: np.may_share_memory(a.array, b.array)
    module.cuda = types.SimpleNamespace(
        Device=Device,
        alloc=lambda size: types.SimpleNamespace(ptr=4096, size=size, device=Device.current),
        get_current_stream=lambda ordinal: types.SimpleNamespace(ptr=STREAM + ordinal),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    adapter.library.cache_clear()
    yield module
    adapter.library.cache_clear()
    _array._owners.pop(ndarray, None)
    _array.LIBRARIES.pop(ndarray, None)


@pytest.fixture
def calls(monkeypatch):
    """Run the core's calls on the CPU, and keep what they were told."""
    told = []

    def on_the_cpu(function):
        def call(*arrays, stream=0, allocate=None, **keywords):
            def moved(value):
                if not isinstance(value, list | tuple):
                    return value
                if len(value) != 5 or not isinstance(value[2], tuple):  # no descriptor
                    return [moved(item) for item in value]
                devices.add(value[4])
                return (*value[:4], -1)

            devices = set()
            arrays = [moved(value) for value in arrays]
            keywords = {name: moved(value) for name, value in keywords.items()}
            (ordinal,) = devices
            if ordinal >= 0:
                pointer, owner = allocate(1024, ordinal)
                assert (pointer, owner.size, owner.device) == (owner.ptr, 1024, ordinal)
            told.append((devices, stream))
            function(*arrays, **keywords)

        return call

    for name in ("scan_forward", "scan_backward", "cell_forward", "cell_backward"):
        monkeypatch.setattr(_core, name, on_the_cpu(getattr(_core, name)))
    return told


@pytest.mark.parametrize("ordinal", [0, 1])
def test_arrays_stay_on_their_device_and_stream(cupy, calls, rng, ordinal):
    arrays = gates(rng, (2, 40, 3), "f"), normal(rng, (2, 40, 3), "f"), normal(rng, (2, 3), "f")
    expected, last = scan(*arrays, return_final=True, lengths=[40, 7])
    wanted = scan_vjp(arrays[0], expected, arrays[1], last, arrays[2], lengths=[40, 7])
    calls.clear()
    a, x, h0 = (ndarray(array, ordinal) for array in arrays)
    h, final = scan(a, x, h0, return_final=True, lengths=[40, 7])
    grads = scan_vjp(a, h, x, final, h0, lengths=[40, 7])
    for got, value in zip((h, final, *grads), (expected, last, *wanted), strict=True):
        assert isinstance(got, ndarray)
        assert got.device.id == ordinal
        assert_same_bits(got.array, value)
    assert calls == [({ordinal}, STREAM + ordinal)] * 2
    assert Device.current == 0


def test_sru(cupy, calls, rng):
    arrays = normal(rng, (3, 2, 40, 3), np.float32)
    expected, saved = sru(*arrays, return_checkpoints=True)
    wanted = sru_vjp(*arrays, None, None, None, None, saved, expected)
    calls.clear()
    views = [ndarray(array, 1) for array in arrays]
    h, checkpoints = sru(*views, return_checkpoints=True)
    grads = sru_vjp(*views, None, None, None, None, checkpoints, h)
    assert_same_bits(h.array, expected)
    for got, value in zip(grads[:3], wanted[:3], strict=True):
        assert_same_bits(got.array, value)
    assert calls == [({1}, STREAM + 1)] * 2


def test_strided_views_flags_and_out(cupy, calls, rng):
    memory = normal(rng, (3, 80, 2), np.float32)
    x = memory[:, ::-2].transpose(2, 1, 0)
    reset = rng.random((2, 40)) < 0.3
    expected = scan(0.5, x, reset=reset)
    out = ndarray(np.empty_like(expected))
    for flags in (ndarray(reset), reset, reset.tolist(), ndarray(reset.astype(np.float32))):
        assert scan(0.5, ndarray(x), reset=flags, out=out) is out
        assert_same_bits(out.array, expected)
    with pytest.raises(ValueError, match="scan: out overlaps x"):
        scan(0.5, ndarray(x), out=ndarray(x))


def test_m02_mixed_devices(cupy, calls):
    x = np.ones((2, 5, 3), np.float32)
    with pytest.raises(ValueError, match="scan: a is on cuda:0, expected cuda:1 like x"):
        scan(ndarray(x, 0), ndarray(x, 1))
    with pytest.raises(ValueError, match="scan: h0 is on cuda:1, expected cuda:0 like x"):
        scan(0.5, ndarray(x, 0), ndarray(x[:, 0], 1))
    with pytest.raises(ValueError, match="scan: lengths is on cuda:1, expected cuda:0 like x"):
        scan(0.5, ndarray(x, 0), lengths=ndarray(np.array([5, 5]), 1))
    with pytest.raises(ValueError, match="scan: out is on cuda:1, expected cuda:0 like x"):
        scan(0.5, ndarray(x, 0), out=ndarray(x.copy(), 1))
    with pytest.raises(TypeError, match=r"scan: a is a numpy\.ndarray, expected a cupy\.ndarray"):
        scan(x, ndarray(x))
    with pytest.raises(TypeError, match=r"scan: a is a cupy\.ndarray, expected a numpy\.ndarray"):
        scan(ndarray(x), x)
    assert not calls


def test_values_on_the_cpu_are_checked_before_they_are_copied(cupy, calls):
    x = ndarray(np.ones((1, 5, 3), np.float32))
    with pytest.raises(ValueError, match="scan: cu_seqlens ends at 4, expected 5"):
        scan(0.5, x, cu_seqlens=[0, 4])
    with pytest.raises(ValueError, match="scan: cu_seqlens decreases from 3 to 2 at index 2"):
        scan(0.5, x, cu_seqlens=np.array([0, 3, 2, 5]))
    with pytest.raises(ValueError, match=r"scan: lengths has the value 6, expected 0\.\.5"):
        scan(0.5, x, lengths=[6])
    assert not calls
    scan(0.5, x, cu_seqlens=[0, 4, 5])
    assert len(calls) == 1


@pytest.mark.skipif(scanrnn.cuda_available(), reason="is for machines without CUDA")
def test_b05_without_cuda_the_error_says_why(cupy):
    x = ndarray(np.ones((2, 5, 3), np.float32))
    with pytest.raises(RuntimeError, match="CUDA"):
        scan(0.5, x)
