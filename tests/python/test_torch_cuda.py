"""The CUDA side of the PyTorch operators, by stand-ins: no GPU is needed.

What is tested is what the core is told, and how small arrays get to the device. `tests/gpu` has the
tests on a device.
"""

import contextlib
import types

import pytest
import torch
from scanrnn import _core
from scanrnn.torch import _arguments, _cells, _ops

STREAM = 4096
DEVICE = torch.device("cuda", 1)


class OnCuda(torch.Tensor):
    """A tensor of the CPU that says that it is on cuda:1."""

    is_cuda = True

    def get_device(self):
        return 1


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def flat(arguments):
    """Arguments with the members of lists in place of these."""
    return [v for a in arguments for v in (a if isinstance(a, list) else [a])]


def moved(v):
    """A descriptor, or all in a list, as on the CPU."""
    if isinstance(v, list):
        return [moved(each) for each in v]
    return (*v[:4], -1) if isinstance(v, tuple) else v


def assert_same(one, other):
    """Equal, or both None: a gradient that wasn't wanted."""
    assert (one is None) == (other is None)
    assert one is None or torch.equal(one.as_subclass(torch.Tensor), other)


@pytest.fixture
def calls(monkeypatch):
    """Run the core's calls on the CPU, and keep what they were told."""
    told = []

    def on_the_cpu(function):
        def call(*arguments):
            *arguments, stream, allocate = arguments
            devices = {v[4] for v in flat(arguments) if isinstance(v, tuple)}
            pointer, memory = allocate(1000, 1)
            assert (memory.dtype, memory.numel()) == (torch.uint8, 1000)
            assert memory.data_ptr() == pointer
            told.append((devices, stream))
            function(*map(moved, arguments))

        return call

    for name in ("scan_forward", "scan_backward", "cell_forward", "cell_backward"):
        monkeypatch.setattr(_core, name, on_the_cpu(getattr(_core, name)))
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda ordinal: STREAM + ordinal, raising=False
    )
    monkeypatch.setattr(_ops, "_cuda", lambda ordinal: torch.device("cpu"))
    # The exchange API tells where a tensor is.
    monkeypatch.setattr(_ops, "_EXCHANGES", False)
    return told


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
@pytest.mark.parametrize("with_state", [False, True])
def test_scan_on_the_device_and_stream_of_its_tensors(calls, batch, with_state):
    a, x = random(*batch, 40, 5).tanh(), random(*batch, 40, 5)
    h0 = random(*batch, 5) if with_state else None
    options = (None, None, None, False, False)
    expected = _ops._scan(a, x, h0, *options)
    gradients = _ops._scan_backward(a, expected[0], h0, x, None, *options, [True] * 3)
    calls.clear()
    a_, x_, h0_ = (None if t is None else t.as_subclass(OnCuda) for t in (a, x, h0))
    got = _ops._scan(a_, x_, h0_, *options)
    back = _ops._scan_backward(a_, got[0], h0_, x_, None, *options, [True] * 3)
    for one, other in zip((*got, *back), (*expected, *gradients), strict=True):
        assert_same(one, other)
    assert calls == [({1}, STREAM + 1)] * 2


@pytest.mark.parametrize(
    ("cell", "numbers", "blocks"),
    [("sru", [1.0], 4), ("gilr", [0.0, 1.0], 2), ("qrnn", [1.0], 4), ("min_lstm", [0.0], 3)],
)
def test_a_cell_on_the_device_and_stream_of_its_tensors(calls, monkeypatch, cell, numbers, blocks):
    u, c0, dy = random(2, 40, 2 * blocks * 5), random(2, 2, 5), random(2, 40, 10)
    inputs = [u, *[None] * (_cells.SLOTS - 1), c0]
    if cell == "sru":
        inputs[4] = random(4 * 5)
    options = (None, None, None, False, False, _cells.KINDS[cell], numbers, blocks, 2)
    state_is_output = _cells.CELLS[_cells.KINDS[cell]].state_is_output

    def saved(outputs):
        return outputs[0] if state_is_output else outputs[2]

    expected = _cells._cell(*inputs, *options, True)
    tail = (dy, None, *options, [True] * 7)
    gradients = _cells._cell_backward(*inputs, saved(expected), *tail)
    calls.clear()
    zeros = []
    monkeypatch.setattr(OnCuda, "new_zeros", lambda *args, **_: zeros.append(args), raising=False)
    inputs = [None if t is None else t.as_subclass(OnCuda) for t in inputs]
    got = _cells._cell(*inputs, *options, True)
    back = _cells._cell_backward(*inputs, saved(got), dy.as_subclass(OnCuda), *tail[1:])
    for one, other in zip((*got[:2], *back), (*expected[:2], *gradients), strict=True):
        assert_same(one, other)
    assert calls == [({1}, STREAM + 1)] * 4  # two directions
    assert not zeros  # checkpoints are not cleared: that would be another kernel


# ---- Small arrays on their way to the device -----------------------------------------------------


class Small:
    """A tensor of the CPU that notes how it is moved."""

    device, pinned = torch.device("cpu"), False

    def pin_memory(self):
        self.pinned = True
        return self

    def to(self, device, non_blocking=False):
        return types.SimpleNamespace(device=device, pinned=self.pinned, non_blocking=non_blocking)


MAIN = types.SimpleNamespace(device=DEVICE, is_cuda=True)


def test_an_index_goes_to_the_device_without_waiting(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "device", lambda d: asked.append(d) or contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    moved = _arguments.to_device_of("scan", "lengths", Small(), MAIN)
    assert (moved.device, moved.pinned, moved.non_blocking) == (DEVICE, True, True)
    assert _arguments.to_device_of("scan", "lengths", moved, MAIN) is moved
    assert asked == [DEVICE]


def test_an_index_on_the_cpu_can_not_be_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="lengths is on the CPU, expected a tensor on cuda:1"):
        _arguments.to_device_of("scan", "lengths", Small(), MAIN)


def test_an_index_on_another_device_is_an_error():
    there = types.SimpleNamespace(device=torch.device("cuda", 0))
    with pytest.raises(ValueError, match=r"lengths is on device cuda:0, expected cuda:1 \(the"):
        _arguments.to_device_of("scan", "lengths", there, MAIN)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cu_seqlens", [0, 4], "cu_seqlens ends at 4, expected 5"),
        ("cu_seqlens", torch.tensor([1, 5]), "cu_seqlens starts at 1, expected 0"),
        ("cu_seqlens", [0, 3, 2, 5], "cu_seqlens decreases from 3 to 2 at index 2"),
        ("lengths", [5, 6], "lengths has the value 6, expected 0"),
        ("lengths", torch.tensor([-1], dtype=torch.int32), "lengths has the value -1"),
    ],
)
def test_values_on_the_cpu_are_checked_before_they_are_copied(name, value, text):
    with pytest.raises(ValueError, match=text):
        _arguments.index_tensor("scan", name, value, MAIN, 5)
