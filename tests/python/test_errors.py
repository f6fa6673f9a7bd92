"""Wrong arguments: the error names them, and nothing is written."""

import re

import numpy as np
import pytest
from reference import BFLOAT16, assert_same_bits
from scanrnn import scan, scan_vjp, set_num_threads
from scanrnn.cells import sru, sru_step, sru_vjp

F32, F64 = np.float32, np.float64


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


def unaligned(*shape):
    memory = np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)
    return memory[1:].view(F32).reshape(shape)


def odd_strides(*shape):
    """A float field of packed records: strides that are no multiple of 4 bytes."""
    return np.zeros(shape, np.dtype([("flag", "u1"), ("value", "f4")]))["value"]


def torch_tensor():
    return pytest.importorskip("torch").ones(2, 5, 3)


def jax_array():
    return pytest.importorskip("jax.numpy").ones((2, 5, 3), np.float32)


# (arguments that differ from a good call, error, text) for (2, 5, 3) arrays.
SHAPES = [
    ({"a": ones(2, 5, 4)}, ValueError, "a has shape (2, 5, 4), expected a shape that broadcasts"),
    ({"a": ones(2, 4, 3)}, ValueError, "a has shape (2, 4, 3), expected a shape that broadcasts"),
    ({"a": ones(3, 5, 3)}, ValueError, "a has shape (3, 5, 3)"),
    ({"a": ones(5)}, ValueError, "a has shape (5,)"),
    ({"a": ones(1, 2, 5, 3)}, ValueError, "a has shape (1, 2, 5, 3)"),
    ({"a": ones(0, 5, 3)}, ValueError, "a has shape (0, 5, 3)"),
    ({"h0": ones(3, 3)}, ValueError, "h0 has shape (3, 3), expected (2, 3)"),
    ({"h0": ones(3)}, ValueError, "h0 has shape (3,), expected (2, 3)"),
    ({"h0": ones(2, 4)}, ValueError, "h0 has shape (2, 4), expected (2, 3)"),
    ({"h0": ones(1, 2, 3)}, ValueError, "h0 has shape (1, 2, 3), expected (2, 3)"),
    ({"h0": ones(1, 3)}, ValueError, "h0 has shape (1, 3), expected (2, 3)"),
]
DTYPES = [
    ({"a": ones(2, 5, 3, dtype=F64)}, TypeError, "a has dtype float64, expected float32"),
    ({"a": ones(2, 5, 3, dtype=np.float16)}, TypeError, "a has dtype float16, expected float32"),
    ({"a": ones(2, 5, 3, dtype=BFLOAT16)}, TypeError, "a has dtype bfloat16, expected float32"),
    ({"a": ones(2, 5, 3, dtype=np.complex64)}, TypeError, "a has dtype complex64"),
    ({"a": ones(2, 5, 3, dtype=int)}, TypeError, "a has dtype int64"),
    ({"a": ones(2, 5, 3, dtype=bool)}, TypeError, "a has dtype bool"),
    ({"a": ones(2, 5, 3, dtype=">f4")}, TypeError, "a has dtype >f4"),
    ({"a": np.float64(1)}, TypeError, "a has dtype float64"),
    ({"a": [[1.0]]}, TypeError, "a is a list, expected an array"),
    ({"a": None}, TypeError, "a is a NoneType, expected an array"),
    ({"a": "gate"}, TypeError, "a is a str"),
    ({"a": np.ma.masked_array(ones(2, 5, 3))}, TypeError, "a is a masked array"),
    ({"h0": ones(2, 3, dtype=F64)}, TypeError, "h0 has dtype float64, expected float32"),
    ({"h0": ones(2, 3, dtype=np.float16)}, TypeError, "h0 has dtype float16, expected float32"),
    ({"h0": 0.0}, ValueError, "h0 has shape (), expected (2, 3)"),
    ({"h0": [0.0]}, TypeError, "h0 is a list, expected an array"),
]
MEMORY = [
    ({"a": odd_strides(2, 5, 3)}, ValueError, "a has strides"),
    ({"a": unaligned(2, 5, 3)}, ValueError, "a is not aligned"),
    ({"h0": odd_strides(2, 3)}, ValueError, "h0 has strides"),
]
SEQUENCES = [
    ({"lengths": [5, 5, 5]}, ValueError, "lengths has shape (3,), expected (2,)"),
    ({"lengths": [5]}, ValueError, "lengths has shape (1,), expected (2,)"),
    ({"lengths": [[5, 5]]}, ValueError, "lengths has shape (1, 2), expected (2,)"),
    ({"lengths": 5}, ValueError, "lengths has shape (), expected (2,)"),
    ({"lengths": [6, 5]}, ValueError, "lengths"),
    ({"lengths": [5, -1]}, ValueError, "lengths"),
    ({"lengths": np.array([2**32 + 1, 5])}, ValueError, "lengths"),
    ({"lengths": [5.0, 5.0]}, TypeError, "lengths has dtype float64, expected int32 or int64"),
    ({"lengths": np.array([5, 5], np.int16)}, TypeError, "lengths has dtype int16"),
    ({"lengths": np.array([5, 5], np.uint64)}, TypeError, "lengths has dtype uint64"),
    ({"lengths": [True, True]}, TypeError, "lengths has dtype bool"),
    ({"lengths": ["5", "5"]}, TypeError, "lengths has dtype"),
    ({"lengths": [5, 5], "cu_seqlens": [0, 5]}, ValueError, "cu_seqlens and lengths were both"),
    ({"cu_seqlens": [0, 5]}, ValueError, "x has shape (2, 5, 3), expected a batch size of 1"),
    ({"reset": ones(2, 4, dtype=bool)}, ValueError, "reset has shape (2, 4), expected (2, 5)"),
    ({"reset": ones(5, 2, dtype=bool)}, ValueError, "reset has shape (5, 2), expected (2, 5)"),
    ({"reset": ones(2, 5, 3, dtype=bool)}, ValueError, "reset has shape (2, 5, 3)"),
    ({"reset": ones(5, dtype=bool)}, ValueError, "reset has shape (5,), expected (2, 5)"),
    ({"reset": ones(2, 5, dtype=np.int64)}, TypeError, "reset has dtype int64, expected bool"),
    ({"reset": ones(2, 5, dtype=complex)}, TypeError, "reset has dtype complex128"),
    ({"padding_side": "top"}, ValueError, "padding_side is 'top', expected 'left' or 'right'"),
    ({"axis": 3}, ValueError, "axis is 3, expected -3..2"),
    ({"axis": -4}, ValueError, "axis is -4, expected -3..2"),
]
# For x of shape (1, 5, 3).
PACKED = [
    ({"cu_seqlens": [0, 4]}, ValueError, "cu_seqlens"),
    ({"cu_seqlens": [0, 6]}, ValueError, "cu_seqlens"),
    ({"cu_seqlens": [1, 5]}, ValueError, "cu_seqlens"),
    ({"cu_seqlens": [0, 4, 2, 5]}, ValueError, "cu_seqlens"),
    ({"cu_seqlens": [0, -1, 5]}, ValueError, "cu_seqlens"),
    ({"cu_seqlens": [0, 7, 5]}, ValueError, "cu_seqlens"),
    ({"cu_seqlens": []}, ValueError, "cu_seqlens has shape (0,), expected (N + 1,)"),
    ({"cu_seqlens": 5}, ValueError, "cu_seqlens has shape (), expected (N + 1,)"),
    ({"cu_seqlens": [[0, 5]]}, ValueError, "cu_seqlens has shape (1, 2), expected (N + 1,)"),
    ({"cu_seqlens": [0.0, 5.0]}, TypeError, "cu_seqlens has dtype float64, expected int32 or"),
    ({"cu_seqlens": [0, 2, 5], "h0": ones(1, 3)}, ValueError, "h0 has shape (1, 3), expected (2,"),
    ({"cu_seqlens": [0, 2, 5], "h0": ones(3, 3)}, ValueError, "h0 has shape (3, 3), expected (2,"),
]


def ids(cases):
    return [f"{'+'.join(change)}: {text}" for change, _, text in cases]


def unchanged(arrays):
    """A function that checks that arrays still hold what they hold now."""
    arrays = [v for v in arrays if isinstance(v, np.ndarray) and v.dtype != object]
    before = [array.copy() for array in arrays]

    def check():
        for array, copy in zip(arrays, before, strict=True):
            assert_same_bits(array, copy)

    return check


def refuse(error, text, function, *arguments, **options):
    check = unchanged([*arguments, *options.values()])
    # What the core finds carries the core's name of the call.
    names = {"scan_vjp": "(scan_vjp|scan backward)", "sru_vjp": "(sru_vjp|sru backward)"}
    name = names.get(function.__name__, function.__name__)
    with pytest.raises(error, match=f"^{name}: {re.escape(text)}"):
        function(*arguments, **options)
    check()


def refuse_scan(change, error, text, batch):
    good = {"a": ones(batch, 5, 3), "x": ones(batch, 5, 3), "h0": None}
    call = {**good, **change}
    a, x, h0 = call.pop("a"), call.pop("x"), call.pop("h0")
    out = np.full((batch, 5, 3), 7, F32)
    refuse(error, text, scan, a, x, h0, out=out, return_final=True, **call)
    refuse(error, text, scan, a, x, h0, **call)
    # The gradient has the same rules; its main array is h.
    text = text.replace("x has shape", "h has shape")
    refuse(error, text, scan_vjp, a, x, x, None, h0, **call)


ALL = SHAPES + DTYPES + MEMORY + SEQUENCES


@pytest.mark.parametrize(("change", "error", "text"), ALL, ids=ids(ALL))
def test_s08_scan(change, error, text):
    refuse_scan(change, error, text, 2)


@pytest.mark.parametrize(("change", "error", "text"), PACKED, ids=ids(PACKED))
def test_w02_bad_offsets(change, error, text):
    refuse_scan(change, error, text, 1)


@pytest.mark.parametrize("lengths", [[[5, 5, 5], [5, 9, 5]], [[5, 5, 5], [5, 5, -1]]])
def test_several_calls_are_checked_before_the_first(lengths):
    """Batch axes that don't merge are several calls of the core: a late error must come early."""
    x = ones(2, 6, 5, 3)[:, ::2]
    out = np.full(x.shape, 7, F32)
    refuse(ValueError, "lengths", scan, x, x, out=out, lengths=lengths)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (np.float32(1), ValueError, "x has shape (), expected at least a time axis"),
        ([1.0, 2.0], TypeError, "x is a list, expected an array"),
        (1.0, TypeError, "x is a float, expected an array"),
        (None, TypeError, "x is a NoneType, expected an array"),
        (odd_strides(2, 5, 3), ValueError, "x has strides"),
        (unaligned(2, 5, 3), ValueError, "x is not aligned"),
        (ones(2, 5, 3, dtype=object), TypeError, "x has dtype object"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_main_array(x, error, text):
    refuse(error, text, scan, 1.0, x)
    refuse(error, text.replace("x ", "h ", 1), scan_vjp, 1.0, x, x)
    refuse(error, text.replace("x ", "u ", 1), sru, x, x, x)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"dh": ones(2, 5, 4)}, ValueError, "dh has shape (2, 5, 4), expected (2, 5, 3)"),
        ({"dh": ones(5, 3)}, ValueError, "dh has shape (5, 3), expected (2, 5, 3)"),
        ({"dh": ones(2, 5, 3, dtype=F64)}, TypeError, "dh has dtype float64, expected float32"),
        ({"dfinal": ones(3, 3)}, ValueError, "dfinal has shape (3, 3), expected (2, 3)"),
        ({"dfinal": ones(2, 3, dtype=F64)}, TypeError, "dfinal has dtype float64"),
        ({"dfinal": ones(2, 3, dtype=BFLOAT16)}, TypeError, "dfinal has dtype bfloat16"),
        ({"dh": [1.0]}, TypeError, "dh is a list"),
    ],
)
def test_scan_vjp(change, error, text):
    refuse(error, text, scan_vjp, ones(2, 5, 3), ones(2, 5, 3), **change)


SRU = [
    ({"f": ones(2, 5, 4)}, ValueError, "f has shape (2, 5, 4), expected (2, 5, 3)"),
    ({"r": ones(1, 5, 3)}, ValueError, "r has shape (1, 5, 3), expected (2, 5, 3)"),
    ({"skip": ones(2, 6, 3)}, ValueError, "skip has shape (2, 6, 3), expected (2, 5, 3)"),
    ({"f": None}, TypeError, "f is a NoneType, expected an array"),
    ({"f": ones(2, 5, 3, dtype=F64)}, TypeError, "f has dtype float64, expected float32"),
    ({"r": ones(2, 5, 3, dtype=np.float16)}, TypeError, "r has dtype float16, expected float32"),
    ({"skip": ones(2, 5, 3, dtype=F64)}, TypeError, "skip has dtype float64"),
    ({"bias_f": ones(4)}, ValueError, "bias_f has shape (4,), expected (3,)"),
    ({"bias_r": ones(1, 3)}, ValueError, "bias_r has shape (1, 3), expected (3,)"),
    ({"bias_f": ones(3, dtype=F64)}, TypeError, "bias_f has dtype float64, expected float32"),
    ({"bias_f": odd_strides(3)}, ValueError, "bias_f has strides"),
    ({"c0": ones(3)}, ValueError, "c0 has shape (3,), expected (2, 3)"),
    ({"c0": ones(2, 3, dtype=F64)}, TypeError, "c0 has dtype float64, expected float32"),
    ({"activation": "gelu"}, ValueError, "activation is 'gelu', expected 'identity', 'tanh' or"),
    ({"activation": None}, ValueError, "activation is None"),
    *SEQUENCES,
]


@pytest.mark.parametrize(("change", "error", "text"), SRU, ids=ids(SRU))
def test_s08_sru(change, error, text):
    names = ("u", "f", "r", "skip", "bias_f", "bias_r", "c0")
    arrays = dict.fromkeys(names) | {name: ones(2, 5, 3) for name in "ufr"}
    call = {**arrays, **change}
    given = [call.pop(name) for name in names]
    text = text.replace("x has shape", "u has shape")
    refuse(error, text, sru, *given, **call)
    _, checkpoints = sru(*arrays.values(), return_checkpoints=True)
    refuse(error, text, sru_vjp, *given, checkpoints, ones(2, 5, 3), **call)


def test_sru_vjp():
    u, f, r = ones(2, 5, 3), ones(2, 5, 3), ones(2, 5, 3)
    given = (u, f, r, None, None, None, None)
    _, checkpoints = sru(*given, return_checkpoints=True)
    text = f"checkpoints has shape {checkpoints[1:].shape}, expected {checkpoints.shape}"
    refuse(ValueError, text, sru_vjp, *given, checkpoints[1:], u)
    refuse(TypeError, "checkpoints is None", sru_vjp, *given, None, u)
    text = "checkpoints has dtype float64, expected float32"
    refuse(TypeError, text, sru_vjp, *given, checkpoints.astype(F64), u)
    refuse(ValueError, "checkpoints", sru_vjp, *given, checkpoints[:, ::-1], u)
    text = "dh has shape (2, 5, 2), expected (2, 5, 3)"
    refuse(ValueError, text, sru_vjp, *given, checkpoints, u[..., 1:])
    text = "dfinal has shape (3, 3), expected (2, 3)"
    refuse(ValueError, text, sru_vjp, *given, checkpoints, u, ones(3, 3))


def test_sru_step():
    with pytest.raises(ValueError, match=r"sru_step: c has shape \(3, 3\), expected \(2, 3\)"):
        sru_step(*(ones(2, 3),) * 3, None, None, None, ones(3, 3))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda x: ones(2, 5, 4), ValueError, "out has shape (2, 5, 4), expected (2, 5, 3)"),
        (lambda x: ones(5, 3), ValueError, "out has shape (5, 3), expected (2, 5, 3)"),
        (lambda x: ones(2, 5, 3, dtype=F64), TypeError, "out has dtype float64, expected float32"),
        (lambda x: odd_strides(2, 5, 3), ValueError, "out has strides"),
        (lambda x: np.broadcast_to(F32(1), (2, 5, 3)), ValueError, "out is read-only"),
        (
            lambda x: np.lib.stride_tricks.as_strided(ones(5, 3), (2, 5, 3), (0, 12, 4)),
            ValueError,
            "out has strides (0, 12, 4), expected no stride of 0",
        ),
        (lambda x: x, ValueError, "out overlaps x"),
        (lambda x: x[::-1], ValueError, "out overlaps x"),
        (lambda x: [1.0], TypeError, "out is a list, expected"),
    ],
)
def test_out(make, error, text):
    x = ones(2, 5, 3)
    refuse(error, text, scan, ones(2, 5, 3), x, out=make(x))


def test_out_overlaps_the_gate_or_the_state():
    memory = ones(2, 7, 3)
    out = memory[:, :5]
    refuse(ValueError, "out overlaps a", scan, memory[:, 2:], ones(2, 5, 3), out=out)
    refuse(ValueError, "out overlaps h0", scan, 1.0, ones(2, 5, 3), memory[:, 3], out=out)


@pytest.mark.parametrize("make", [torch_tensor, jax_array], ids=["torch", "jax"])
def test_m02_mixed_frameworks(make):
    x, other = ones(2, 5, 3), make()
    kind = "torch.Tensor" if "torch" in type(other).__module__ else "jax.Array"
    text = f"a is a {kind}, expected a numpy.ndarray like x"
    refuse(TypeError, text, scan, other, x)
    refuse(TypeError, f"a is a numpy.ndarray, expected a {kind} like x", scan, x, other)
    refuse(TypeError, f"h0 is a {kind}, expected a numpy.ndarray like x", scan, x, x, other[:, 0])
    refuse(TypeError, f"f is a {kind}, expected a numpy.ndarray like u", sru, x, other, x)
    refuse(TypeError, f"f is a numpy.ndarray, expected a {kind} like u", sru, other, x, other)
    refuse(TypeError, f"dh is a {kind}, expected a numpy.ndarray like h", scan_vjp, x, x, other)
    refuse(TypeError, f"out is a {kind}, expected a numpy.ndarray like x", scan, x, x, out=other)
    refuse(TypeError, "out was given", scan, other, other, out=x)
    refuse(TypeError, f"h is a {kind}, which differentiates scan itself", scan_vjp, other, other)
    rest = (None,) * 5
    text = f"u is a {kind}, which differentiates sru itself"
    refuse(TypeError, text, sru_vjp, other, other, other, *rest, other)
    text = "return_checkpoints is True, expected False"
    refuse(TypeError, text, sru, other, other, other, return_checkpoints=True)


@pytest.mark.parametrize("n", [0, -1])
def test_threads(n):
    with pytest.raises(ValueError, match="threads"):
        set_num_threads(n)


def test_a_good_call_works_after_a_bad_one():
    refuse(ValueError, "h0", scan, ones(2, 5, 3), ones(2, 5, 3), ones(9, 9))
    np.testing.assert_array_equal(scan(1.0, ones(3)), [1, 2, 3])
