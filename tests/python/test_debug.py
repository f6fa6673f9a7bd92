"""merge_trace, in builds with DEBUG_MERGE and without."""

import numpy as np
import pytest
import scanrnn
from reference import gates, normal
from scanrnn.debug import TRACE_DTYPE, merge_trace, plot_merge_trace

BUILT = scanrnn._core.build_info()["debug_merge"]
needs_trace = pytest.mark.skipif(not BUILT, reason="needs a build with DEBUG_MERGE")
LEAF = scanrnn._core.build_info()["leaf_steps"]


@pytest.mark.skipif(BUILT, reason="is for builds without DEBUG_MERGE")
def test_a_build_without_it_says_so():
    with pytest.raises(RuntimeError, match="DEBUG_MERGE"):
        merge_trace(0.5, np.ones((1, 100, 2)))


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"merge_trace: a has shape \(3,\)"):
        merge_trace(np.ones(3), np.ones((1, 100, 2)))
    with pytest.raises(ValueError, match=r"merge_trace: x has shape .* one batch axis"):
        merge_trace(0.5, np.ones((2, 1, 100, 2)))


@needs_trace
@pytest.mark.parametrize("reverse", [False, True])
def test_levels(rng, reverse):
    B, D, leaves = 2, 3, 8
    shape = (B, leaves * LEAF, D)
    a, x = gates(rng, shape, np.float32, 0.9, 1), normal(rng, shape, np.float32)
    trace = merge_trace(a, x, normal(rng, (B, D), np.float32), reverse=reverse)
    assert trace.dtype == TRACE_DTYPE
    assert trace["level"].tolist() == list(range(-1, 3))
    # Every level joins half as many segments.
    merges = trace["merges"][trace["level"] >= 0]
    assert (merges[:-1] == 2 * merges[1:]).all()
    assert (trace["max_serial_error"] >= 0).all()
    # At the top all states are known: what is left is rounding.
    assert trace["max_serial_error"][-1] < 1e-4
    assert trace["max_serial_error"][-1] < trace["max_serial_error"][0]


@needs_trace
def test_short_sequence(rng):
    trace = merge_trace(0.5, normal(rng, (1, 5, 2), np.float64))
    assert trace["max_serial_error"].max(initial=0) < 1e-12


@needs_trace
def test_pytorch_and_jax(rng):
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    a, x = gates(rng, (2, 100, 3), np.float32), normal(rng, (2, 100, 3), np.float32)
    expected = merge_trace(a, x)
    tensors = torch.from_numpy(a), torch.from_numpy(x).requires_grad_()
    np.testing.assert_array_equal(merge_trace(*tensors), expected)
    np.testing.assert_array_equal(merge_trace(jnp.asarray(a), jnp.asarray(x)), expected)


def test_plot():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    trace = np.array([(-1, 8, 0.0, 0.5), (0, 4, 0.25, 0.0)], TRACE_DTYPE)
    axes = plot_merge_trace(trace)
    assert len(axes.lines) == 2
    _, own = pyplot.subplots()
    assert plot_merge_trace(trace, own) is own
    pyplot.close("all")
