"""Arrays of libraries that speak DLPack, and capsules made by hand."""

import ctypes
import gc

import numpy as np
import pytest
from reference import BFLOAT16, DTYPES, assert_same_bits, gates, normal
from scanrnn import _core, scan, scan_vjp
from scanrnn.cells import sru, sru_vjp

CPU = (1, 0)


class Foreign:
    """An array of a made-up library with the array API's functions; memory is NumPy's."""

    def __init__(self, array, device=CPU):
        self.array = array
        self.device = device
        self.streams = []

    @property
    def shape(self):
        return self.array.shape

    @property
    def dtype(self):
        return self.array.dtype

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        self.streams.append(stream)
        return self.array.__dlpack__(max_version=max_version)

    def __array_namespace__(self):
        return Foreign

    @staticmethod
    def from_dlpack(array):
        return Foreign(np.from_dlpack(array))


class Plain(Foreign):
    """Without an array namespace; its module has no from_dlpack."""

    __array_namespace__ = None

    def __getattribute__(self, name):
        if name == "__array_namespace__":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != BFLOAT16], ids=str)
def test_results_go_back(rng, dtype):
    shape = (2, 40, 3)
    a, x, h0 = gates(rng, shape, dtype), normal(rng, shape, dtype), normal(rng, (2, 3), dtype)
    expected, last = scan(a, x, h0, return_final=True)
    h, final = scan(Foreign(a), Foreign(x), Foreign(h0), return_final=True)
    assert type(h) is type(final) is Foreign
    assert_same_bits(h.array, expected)
    assert_same_bits(final.array, last)
    grads = scan_vjp(Foreign(a), h, h, None, Foreign(h0))
    for got, value in zip(grads, scan_vjp(a, expected, expected, None, h0), strict=True):
        assert_same_bits(got.array, value)


def test_sru(rng):
    u, f, r = normal(rng, (3, 2, 40, 3), np.float32)
    expected, saved = sru(u, f, r, return_checkpoints=True)
    h, checkpoints = sru(Foreign(u), Foreign(f), Foreign(r), return_checkpoints=True)
    assert_same_bits(h.array, expected)
    none = (None,) * 4
    grads = sru_vjp(Foreign(u), Foreign(f), Foreign(r), *none, checkpoints, h)
    wanted = sru_vjp(u, f, r, *none, saved, expected)
    for got, value in zip(grads[:3], wanted[:3], strict=True):
        assert_same_bits(got.array, value)


def test_memory_is_shared_with_any_strides(rng):
    base = normal(rng, (3, 80, 2), np.float32)
    x = base[:, ::-2].transpose(2, 1, 0)
    h = scan(Foreign(gates(rng, x.shape, np.float32)), Foreign(x))
    assert h.shape == x.shape
    assert_same_bits(scan(0.5, Foreign(x)).array, scan(0.5, x))


def test_i06_no_stream_for_the_cpu(rng):
    x = Foreign(normal(rng, (2, 5, 3), np.float32))
    scan(0.5, x)
    assert set(x.streams) == {None}


def test_without_a_namespace_the_result_is_numpy(rng):
    x = normal(rng, (2, 5, 3), np.float32)
    h = scan(0.5, Plain(x))
    assert type(h) is np.ndarray
    assert_same_bits(h, scan(0.5, x))


def test_m02_other_devices():
    x = Foreign(np.ones((2, 5, 3), np.float32), device=(8, 0))
    with pytest.raises(ValueError, match="scan: x is a Foreign on DLPack device type 8"):
        scan(0.5, x)
    with pytest.raises(ValueError, match="scan: a is a Foreign on DLPack device type 8"):
        scan(x, np.ones((2, 5, 3), np.float32))


@pytest.mark.parametrize("kind", [2, 13])
def test_m02_cuda_needs_cupy(kind):
    try:
        import cupy  # noqa: F401
    except ImportError:
        x = Foreign(np.ones((2, 5, 3), np.float32), device=(kind, 0))
        with pytest.raises(ValueError, match="scan: x is a Foreign in CUDA memory"):
            scan(0.5, x)
    else:
        pytest.skip("CuPy is installed")


def test_pinned_memory_is_cpu_memory(rng):
    x = normal(rng, (2, 5, 3), np.float32)
    assert_same_bits(scan(0.5, Foreign(x, device=(3, 0))).array, scan(0.5, x))


def test_d01_bfloat16(rng):
    torch = pytest.importorskip("torch")
    x = normal(rng, (2, 40, 3), BFLOAT16)

    class Tensor:
        """A producer that is not torch's, with torch's bfloat16."""

        def __init__(self, array):
            self.tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

        def __dlpack_device__(self):
            return CPU

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__()

    h = scan(Tensor(x), Tensor(x))
    assert h.dtype == BFLOAT16
    assert_same_bits(h, scan(x, x))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_d01_same_bits_in_every_framework(rng, framework):
    a, x = gates(rng, (2, 300, 5), BFLOAT16), normal(rng, (2, 300, 5), BFLOAT16)
    expected, last = scan(a, x, return_final=True)
    module = pytest.importorskip(framework)
    if framework == "torch":
        kind = module.Tensor

        def make(array):
            return module.from_numpy(array.view(np.int16)).view(module.bfloat16)

        def bits(array):
            return array.view(module.int16).numpy()
    else:
        kind, make = module.Array, module.numpy.asarray

        def bits(array):
            return np.asarray(array).view(np.int16)

    h, final = scan(make(a), make(x), return_final=True)
    assert isinstance(h, kind)
    assert isinstance(final, kind)
    np.testing.assert_array_equal(bits(h), expected.view(np.int16))
    assert_same_bits(np.asarray(final), last)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_w02_index_arrays_of_other_libraries(rng, framework):
    """Lengths, offsets and flags may come from anywhere."""
    if framework == "torch":
        make = pytest.importorskip("torch").tensor
    else:
        make = pytest.importorskip("jax.numpy").asarray
    x = normal(rng, (2, 10, 3), np.float32)
    flags = rng.random((2, 10)) < 0.3
    assert_same_bits(scan(0.5, x, lengths=make([10, 4])), scan(0.5, x, lengths=[10, 4]))
    assert_same_bits(scan(0.5, x, reset=make(flags.tolist())), scan(0.5, x, reset=flags))
    packed = scan(0.5, x[0], cu_seqlens=make([0, 3, 4, 4, 10]))
    assert_same_bits(packed, scan(0.5, x[0], cu_seqlens=[0, 3, 4, 4, 10]))


# Capsules


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


class HandMade:
    """A capsule of an array, with whatever dtype it is told to have; counts deleter calls."""

    def __init__(self, array, code, bits, lanes=1, device=1, with_strides=True, byte_offset=0):
        self.array = array
        self.deleted = 0
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = [s // array.itemsize for s in array.strides]
        self.fields = shape, (ctypes.c_int64 * array.ndim)(*strides)
        tensor = DLTensor(
            array.ctypes.data - byte_offset, device, 0, array.ndim, code, bits, lanes, shape
        )
        tensor.byte_offset = byte_offset
        if with_strides:
            tensor.strides = self.fields[1]
        self.deleter = DLManagedTensor._fields_[2][1](self.delete)
        self.managed = DLManagedTensor(tensor, None, self.deleter)

    def delete(self, _):
        self.deleted += 1

    def deletions(self, capsule):
        """Calls of the deleter, with the destructor's: it makes one if nobody took the capsule."""
        valid = ctypes.pythonapi.PyCapsule_IsValid
        valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
        gc.collect()
        return self.deleted + valid(capsule, b"dltensor")

    def capsule(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b"dltensor", None)


FLOAT, INT, UINT, BFLOAT, COMPLEX, BOOL, FLOAT8 = 2, 0, 1, 4, 5, 6, 10


def test_capsule(rng):
    x = normal(rng, (2, 40, 3), np.float32)
    for options in ({}, {"with_strides": False}, {"byte_offset": 24}):
        made = HandMade(x, FLOAT, 32, **options)
        capsule = made.capsule()
        h = scan(0.5, capsule)
        assert type(h) is np.ndarray
        assert_same_bits(h, scan(0.5, x))
        assert made.deletions(capsule) == 1


def test_capsule_of_bfloat16(rng):
    x = normal(rng, (2, 40, 3), BFLOAT16)
    made = HandMade(x, BFLOAT, 16)
    h = scan(made.capsule(), x)
    assert_same_bits(h, scan(x, x))
    gc.collect()
    assert made.deleted == 1


@pytest.mark.parametrize(
    ("code", "bits", "lanes", "text"),
    [
        (FLOAT8, 8, 1, "float8"),
        (INT, 32, 1, "int32"),
        (UINT, 8, 1, "uint8"),
        (BOOL, 8, 1, "uint8"),  # to the core flags are bytes
        (FLOAT, 32, 2, "lanes"),
        (FLOAT, 128, 1, "float128"),
        (99, 32, 1, "99"),
    ],
)
def test_d01_capsules_of_unsupported_dtypes(code, bits, lanes, text):
    made = HandMade(np.ones((2, 40, 3), np.float32), code, bits, lanes)
    capsule = made.capsule()
    with pytest.raises(TypeError, match=text):
        scan(0.5, capsule)
    assert made.deletions(capsule) == 1


def test_d01_a_used_capsule():
    made = HandMade(np.ones((2, 40, 3), np.float32), FLOAT, 32)
    capsule = made.capsule()
    scan(0.5, capsule)
    with pytest.raises(TypeError, match="scan: x"):
        scan(0.5, capsule)
    assert made.deletions(capsule) == 1


def test_capsule_of_cuda_memory():
    made = HandMade(np.ones((2, 40, 3), np.float32), FLOAT, 32, device=2)
    capsule = made.capsule()
    with pytest.raises(ValueError, match="CUDA"):
        scan(0.5, capsule)
    assert made.deletions(capsule) == 1


def test_results_outlive_their_producers(rng):
    x = normal(rng, (2, 40, 3), np.float32)
    h = scan(0.5, Foreign(x.copy()))
    gc.collect()
    assert_same_bits(h.array, scan(0.5, x))


# ---- The exchange API, in place of descriptors ---------------------------------------------------


def tensors(*shapes, dtype=None):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange API")
    return [torch.rand(shape, dtype=dtype or torch.float32) for shape in shapes]


def test_tensors_stand_for_their_descriptors():
    import torch
    from scanrnn.torch._ops import describe

    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex128):
        a, x, h, expected = tensors(*4 * [(2, 50, 6)], dtype=dtype)
        reset = torch.zeros(2, 50, dtype=torch.bool)
        reset[:, 20] = True
        views = [t[:, ::2, 1:].transpose(0, 1)[::2].transpose(0, 1) for t in (a, x, h, expected)]
        flags = reset[:, ::4]
        arrays = views[0], views[1], None, views[2], None
        _core.scan_forward(*arrays, False, None, None, flags)
        described = views[0], views[1], None, views[3], None
        _core.scan_forward(*map(describe, described), False, None, None, describe(flags))
        assert torch.equal(views[2], views[3])


def test_what_is_wrong_with_a_tensor_is_said():
    import torch

    a, x, h = tensors(*3 * [(2, 5, 3)])
    with pytest.raises(ValueError, match="a has 2 axes, expected 3"):
        _core.scan_forward(a[0], x, None, h, None)
    with pytest.raises(TypeError, match="dtype int16 is not supported"):
        _core.scan_forward(a.to(torch.int16), x, None, h, None)
    with pytest.raises(TypeError, match="a has dtype float64, expected float32"):
        _core.scan_forward(a.double(), x, None, h, None)
    with pytest.raises(TypeError, match="x is not an array descriptor"):
        _core.scan_forward(a, x.numpy(), None, h, None)
    with pytest.raises(RuntimeError, match="meta"):
        _core.scan_forward(a, x.to("meta"), None, h, None)
