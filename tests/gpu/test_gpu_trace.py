"""merge_trace on a device: the levels are those of the kernels, the states those of the scan."""

# ruff: noqa: E402
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import scanrnn
import scanrnn.torch as srt
from gpu_helpers import LAYOUTS, TORCH_DTYPES
from scanrnn import _core
from scanrnn.debug import TRACE_DTYPE, merge_trace
from scanrnn.torch._ops import describe

BUILT = _core.build_info()["debug_merge"]
needs_trace = pytest.mark.skipif(not BUILT, reason="needs a build with DEBUG_MERGE")
VECTOR_BYTES, WARP, WARPS, RADIX, LINE = 16, 32, 8, 8, 8


def random(device, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator).to(device, dtype)


def case(device, shape, layout, dtype=torch.float32):
    """Gates around 0.9, inputs, initial states."""
    a, x = (LAYOUTS[layout](random(device, *shape, dtype=dtype, seed=s)) for s in (1, 2))
    return a * 0.05 + 0.9, x, random(device, shape[0], shape[2], dtype=dtype, seed=3)


def traced(a, x, h0, reverse=False):
    """The levels, and what the traced run wrote."""
    h = torch.empty_like(x)
    stream = torch.cuda.current_stream(x.device).cuda_stream
    levels = _core.merge_trace(*map(describe, (a, x, h0, h)), reverse, stream)
    return np.array(levels, dtype=TRACE_DTYPE), h


@pytest.mark.skipif(BUILT, reason="is for builds without DEBUG_MERGE")
def test_a_build_without_it_says_so(cuda):
    with pytest.raises(RuntimeError, match="merge_trace: this build has no merge trace; configure"):
        traced(*case(cuda, (1, 100, 2), "btd"))


# ---- The tree, counted from its description in scanrnn/trace.hpp ---------------------------------


def lane_merges(leaves, band, level):
    """Of `leaves` leaves in bands: each is merged that has as many before it in its band."""
    return sum(max(0, min(band, leaves - b) - 2**level) for b in range(0, leaves, band))


def expected_levels(shape, leaf, band, tile_leaves, with_warps):
    B, T, D = shape
    leaves, tiles = -(-T // leaf), -(-T // (leaf * tile_leaves))
    counts = [leaves]
    counts += [lane_merges(leaves, band, level) for level in range(band.bit_length() - 1)]
    levels = 0
    while RADIX**levels < tiles:
        levels += 1
    if levels and with_warps:
        bands = -(-leaves // band)
        # Pairs of bands within a tile; one counts if its later half has a step.
        counts += [(bands + by - 1) // (2 * by) for by in (1, 2, 4)]
    counts += [tiles // RADIX ** (level + 1) for level in range(levels)]
    counts.append(leaves)
    return {level - 1: count * B * D for level, count in enumerate(counts) if count}


def rows(shape, itemsize, leaf=8):
    vectors = -(-shape[2] // (VECTOR_BYTES // itemsize))
    across = min(LINE, 1 << (vectors - 1).bit_length())
    return expected_levels(shape, leaf, WARP // across, WARPS * WARP // across, True)


def columns(shape, itemsize):
    leaf = min(32, 128 // itemsize)
    leaves = -(-shape[1] // leaf)
    each = min(WARP, 1 << (leaves - 1).bit_length())
    return expected_levels(shape, leaf, each, each, False)


def merges(trace):
    return dict(zip(trace["level"].tolist(), trace["merges"].tolist(), strict=True))


@needs_trace
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(
    "shape",
    [(2, 5000, 40), (1, 40_000, 3), (3, 2048, 64), (1, 2049, 64), (1, 20_001, 8)],
    ids=str,
)
def test_levels_where_channels_are_contiguous(cuda, shape, dtype, reverse):
    arrays = case(cuda, shape, "btd", TORCH_DTYPES[dtype])
    trace, _ = traced(*arrays, reverse)
    assert merges(trace) == rows(shape, TORCH_DTYPES[dtype].itemsize)


@needs_trace
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128"])
@pytest.mark.parametrize(
    "shape", [(2, 5000, 3), (1, 300_000, 2), (3, 700, 5), (1, 9000, 1), (1, 8192, 2)], ids=str
)
def test_levels_where_steps_are_contiguous(cuda, shape, dtype):
    trace, _ = traced(*case(cuda, shape, "bdt", TORCH_DTYPES[dtype]))
    assert merges(trace) == columns(shape, TORCH_DTYPES[dtype].itemsize)


@needs_trace
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("B", "D"), [(3, 64), (3, 1000), (1, 17_000)])
def test_levels_of_short_sequences(cuda, B, D, dtype):
    """Sequences share a block. A single one has wide rows there, and the same merges are made in
    shared memory."""
    shape = (B, 100, D)
    arrays = case(cuda, shape, "btd", TORCH_DTYPES[dtype])
    trace, h = traced(*arrays)
    leaves = -(-shape[1] // 8)
    expected = [leaves, lane_merges(leaves, 4, 0), lane_merges(leaves, 4, 1), leaves]
    assert merges(trace) == {i - 1: n * B * D for i, n in enumerate(expected)}
    assert torch.equal(h, srt.scan(*arrays))


@needs_trace
def test_one_thread_for_a_sequence(cuda):
    trace, _ = traced(*case(cuda, (2, 5, 3), "btd"))
    assert merges(trace) == {-1: 6, 0: 6}
    assert trace["max_serial_error"].max() < 1e-5


# ---- States --------------------------------------------------------------------------------------


@needs_trace
@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
@pytest.mark.parametrize("layout", ["btd", "bdt", "every-third-channel"])
@pytest.mark.parametrize("shape", [(2, 20_000, 5), (3, 257, 70), (1, 7, 9)], ids=str)
def test_states_are_the_scans(cuda, shape, layout, dtype):
    a, x, h0 = case(cuda, shape, layout, dtype)
    for reverse in (False, True):
        trace, h = traced(a, x, h0, reverse)
        assert torch.equal(h, srt.scan(a, x, h0, reverse=reverse))
        # Going up, states change less; at the top all that is left is rounding.
        scale = float(h.abs().max())
        last = trace[-1]
        eps = torch.finfo(torch.float64 if dtype.itemsize == 16 else dtype).eps
        eps = min(
            eps, torch.finfo(torch.float32).eps
        )  # states are carried in the accumulation type
        assert last["max_serial_error"] < 100 * eps * scale
        if len(trace) > 3:
            assert trace["max_serial_error"][0] > 1e-3 * scale


@needs_trace
def test_changes_are_what_came_before(cuda):
    """With gates of 1 and inputs of 1 states are numbers of steps."""
    T, leaf = 100_000, 8
    one = torch.ones(1, T, 64, device=cuda)
    trace, h = traced(one, one, None)
    assert float(h[0, -1, 0]) == T
    changes = dict(zip(trace["level"].tolist(), trace["max_change"].tolist(), strict=True))
    tile = 256
    expected = [0, leaf, 2 * leaf]  # a leaf; one before it; two (the band has four)
    expected += [4 * leaf, 8 * leaf, 16 * leaf]  # bands in pairs
    expected += [7 * tile, 7 * 8 * tile, 0][: len(changes) - 7]
    got = [changes[level] for level in sorted(changes)][: len(expected)]
    assert got == expected
    assert trace["max_change"][-1] == (T - 1) // leaf * leaf  # the last leaf's beginning
    assert trace["max_serial_error"][-1] == 0


@needs_trace
def test_python_takes_every_library(cuda):
    cupy = pytest.importorskip("cupy")
    a, x, h0 = case(cuda, (2, 3000, 5), "btd")
    trace = merge_trace(a, x.requires_grad_(), h0)
    x = x.detach()
    assert trace.dtype == TRACE_DTYPE
    there = merge_trace(*(cupy.from_dlpack(t) for t in (a, x, h0)))
    np.testing.assert_array_equal(trace, there)
    on_cpu = merge_trace(a.cpu(), x.cpu(), h0.cpu())
    assert on_cpu["max_serial_error"][-1] < 1e-4
    assert merges(on_cpu)[-1] == 2 * 5 * -(-3000 // 32)
    assert merges(merge_trace(0.5, x))[-1] == 2 * 5 * 375


@needs_trace
def test_errors(cuda):
    a, x, h0 = case(cuda, (1, 100, 2), "btd")
    with pytest.raises(ValueError, match=r"h0 has shape \(1, 3\), expected \(1, 2\)"):
        traced(a, x, torch.zeros(1, 3, device=cuda))
    with pytest.raises(ValueError, match="a is on the CPU, expected cuda:0, where x is"):
        traced(a.cpu(), x, h0)
    assert scanrnn.cuda_available()
