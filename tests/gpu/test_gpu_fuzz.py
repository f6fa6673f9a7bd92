"""`scan` on the device with whatever Hypothesis thinks of, against the serial loop."""

# ruff: noqa: E402
import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis")
torch = pytest.importorskip("torch")

import reference
from gpu_helpers import LAYOUTS, scan_and_gradients, to_numpy, to_torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import DTYPES, accumulation, assert_matches, gates, normal


@st.composite
def problems(draw):
    """Shapes, dtype, layouts, options and a seed for the values."""
    B = draw(st.integers(0, 3))
    T = draw(st.one_of(st.integers(0, 70), st.integers(0, 600)))
    D = draw(st.one_of(st.integers(0, 9), st.sampled_from([16, 31, 32, 33, 64])))
    options, N = {"reverse": draw(st.booleans())}, B
    kind = draw(st.sampled_from(["none", "lengths", "cu_seqlens"]))
    if kind == "lengths":
        options["lengths"] = draw(st.lists(st.integers(0, T), min_size=B, max_size=B))
        options["padding_side"] = draw(st.sampled_from(["left", "right"]))
    elif kind == "cu_seqlens":
        B = 1
        cuts = sorted(draw(st.lists(st.integers(0, T), max_size=6)))
        options["cu_seqlens"] = [0, *cuts, T]
        N = len(cuts) + 1
    dims = [draw(st.sampled_from([n, n, n, 1])) for n in (B, T, D)]
    return {
        "shape": (B, T, D),
        "gate": tuple(dims),
        "N": N,
        "dtype": draw(st.sampled_from(DTYPES)),
        "layouts": draw(st.tuples(*[st.sampled_from(list(LAYOUTS))] * 3)),
        "options": options,
        "index": draw(st.sampled_from([torch.int32, torch.int64])),
        "reset": draw(st.booleans()),
        "h0": draw(st.booleans()),
        "dfinal": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31)),
    }


@settings(
    max_examples=500,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(problem=problems())
def test_scan_and_gradients(device, problem):
    rng = np.random.default_rng(problem["seed"])
    (B, T, D), dtype, N = problem["shape"], problem["dtype"], problem["N"]
    wide = accumulation(dtype)
    a = gates(rng, problem["gate"], dtype)
    a[rng.random(a.shape) < 0.1] = 0
    x, dh = normal(rng, (B, T, D), dtype), normal(rng, (B, T, D), dtype)
    h0 = normal(rng, (N, D), wide) if problem["h0"] else None
    dfinal = normal(rng, (N, D), wide) if problem["dfinal"] else None
    options = dict(problem["options"])
    if problem["reset"]:
        options["reset"] = rng.random((B, T)) < 0.1
    there = {
        k: torch.as_tensor(v, device=device, dtype=None if k == "reset" else problem["index"])
        if k in ("reset", "lengths", "cu_seqlens")
        else v
        for k, v in options.items()
    }
    arranged = [
        LAYOUTS[layout](to_torch(v, device))
        for layout, v in zip(problem["layouts"], (a, x, dh), strict=True)
    ]
    states = [None if v is None else to_torch(v, device) for v in (h0, dfinal)]
    h, final, da, dx, dh0 = (
        None if t is None else to_numpy(t)
        for t in scan_and_gradients(*arranged[:2], states[0], arranged[2], states[1], **there)
    )
    expected, last = reference.scan(a, x, h0, **options)
    assert_matches(h, expected)
    assert_matches(final, last)
    da_, dx_, dh0_ = reference.scan_vjp(a, x, h0, dh, dfinal, h=h, **options)
    assert_matches(dx, dx_)
    if h0 is not None:
        assert_matches(dh0, dh0_)
    if a.shape == x.shape:
        assert_matches(da, da_)
    else:  # sums, whose terms may cancel: their magnitudes count
        states = np.abs(reference.double(h)).max(initial=0)
        if h0 is not None:
            states = max(states, np.abs(h0).max(initial=0))
        scale = np.abs(dx_).max(initial=0) * states
        allowed = 2**-8 if dtype.itemsize == 2 else 1e-5
        error = np.abs(reference.double(da) - da_)
        assert (error <= allowed * (np.abs(da_) + scale)).all()
