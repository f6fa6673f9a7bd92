"""scan on NumPy arrays: carried states, packed and padded sequences, resets."""

from itertools import pairwise

import numpy as np
import pytest
import reference
from reference import assert_matches, assert_same_bits, gates, normal
from scanrnn import scan, scan_vjp


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("chunks", [1, 2, 7, 50])
@pytest.mark.parametrize("reverse", [False, True])
def test_w01_state_across_chunks(rng, dtype, chunks, reverse):
    shape = (2, 1000, 3)
    a, x, dh = gates(rng, shape, dtype), normal(rng, shape, dtype), normal(rng, shape, dtype)
    h0, dfinal = normal(rng, (2, 3), dtype), normal(rng, (2, 3), dtype)
    h, final = scan(a, x, h0, reverse=reverse, return_final=True)
    grads = scan_vjp(a, h, dh, dfinal, h0, reverse=reverse)

    cuts = [0, *np.sort(rng.choice(np.arange(1, 1000), chunks - 1, replace=False)), 1000]
    parts = [slice(i, j) for i, j in pairwise(cuts)][:: -1 if reverse else 1]
    states, outputs = [h0], {}
    for part in parts:
        outputs[part.start], state = scan(
            a[:, part], x[:, part], states[-1], reverse=reverse, return_final=True
        )
        states.append(state)
    rtol = 1e-6 if dtype == np.float32 else None
    joined = np.concatenate([outputs[i] for i in sorted(outputs)], axis=1)
    assert_matches(joined, h.astype(np.float64), rtol=rtol)
    assert_matches(states[-1], final.astype(np.float64), rtol=rtol)

    gradient, pieces = dfinal, {}
    for part, state in zip(parts[::-1], states[-2::-1], strict=True):
        *pieces[part.start], gradient = scan_vjp(
            a[:, part], outputs[part.start], dh[:, part], gradient, state, reverse=reverse
        )
    for i in (0, 1):
        joined = np.concatenate([pieces[start][i] for start in sorted(pieces)], axis=1)
        assert_matches(joined, grads[i].astype(np.float64))
    assert_matches(gradient, grads[2].astype(np.float64))


OFFSETS = [
    [0, 3, 4, 4, 10],
    [0, 10],
    [0, 0, 10, 10],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    [0, 31, 63, 63, 96, 130, 2300, 2301],
]


@pytest.mark.parametrize("offsets", OFFSETS, ids=lambda c: f"{len(c) - 1} of {c[-1]}")
@pytest.mark.parametrize("index", [np.int32, np.int64, list, tuple])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch", [(1,), ()], ids=["batch of 1", "no batch"])
def test_w02_packed_sequences(rng, offsets, index, reverse, batch):
    N, T, D = len(offsets) - 1, offsets[-1], 3
    shape = (*batch, T, D)
    cu_seqlens = index(offsets) if index in (list, tuple) else np.array(offsets, index)
    a, x, dh = gates(rng, shape, np.float32), *normal(rng, (2, *shape), np.float32)
    h0, dfinal = normal(rng, (2, N, D), np.float32)
    options = {"cu_seqlens": cu_seqlens, "reverse": reverse}
    h, final = scan(a, x, h0, return_final=True, **options)
    assert (h.shape, final.shape) == (x.shape, (N, D))
    da, dx, dh0 = scan_vjp(a, h, dh, dfinal, h0, **options)
    for n, (i, j) in enumerate(pairwise(offsets)):
        part = np.s_[..., i:j, :]
        state = h0[n].reshape(*batch, D)
        alone, last = scan(a[part], x[part], state, reverse=reverse, return_final=True)
        assert_same_bits(h[part], alone)
        assert_same_bits(final[n], last.ravel())
        grads = scan_vjp(
            a[part], alone, dh[part], dfinal[n].reshape(*batch, D), state, reverse=reverse
        )
        assert_same_bits(da[part], grads[0])
        assert_same_bits(dx[part], grads[1])
        assert_same_bits(dh0[n], grads[2].ravel())


def test_w02_packed_without_states(rng):
    a, x = gates(rng, (10, 2), np.float64), normal(rng, (10, 2), np.float64)
    offsets = OFFSETS[0]
    h, final = scan(a, x, cu_seqlens=offsets, return_final=True)
    expected, expected_final = reference.scan(a[None], x[None], cu_seqlens=offsets)
    assert_matches(h, expected[0])
    assert_matches(final, expected_final)


def test_w02_packed_on_another_axis(rng):
    a, x = gates(rng, (2, 10), np.float64), normal(rng, (2, 10), np.float64)
    h, final = scan(a, x, cu_seqlens=OFFSETS[0], axis=-1, return_final=True)
    expected, expected_final = scan(a.T, x.T, cu_seqlens=OFFSETS[0], return_final=True)
    assert_same_bits(h, expected.T)
    assert_same_bits(final, expected_final)
    h, final = scan(a[0], x[0], cu_seqlens=OFFSETS[0], return_final=True)
    assert_same_bits(h, expected[:, 0])
    assert_same_bits(final, expected_final[:, 0])


def test_w02_packed_with_one_gate(rng):
    """The gate's gradient is summed over the sequences, and no border leaks into it."""
    a, x, dh = gates(rng, (1, 3), np.float64), *normal(rng, (2, 10, 3), np.float64)
    options = {"cu_seqlens": OFFSETS[0]}
    h = scan(a, x, **options)
    da, _, _ = scan_vjp(a, h, dh, **options)
    expected, _, _ = reference.scan_vjp(a, x[None], dh=dh[None], **options)
    assert_matches(da, expected)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("index", [np.int32, np.int64, list, tuple])
def test_w02_padded_sequences(rng, side, reverse, index):
    B, T, D = 5, 70, 3
    lengths = [0, 70, 1, 33, 64]
    given = index(lengths) if index in (list, tuple) else np.array(lengths, index)
    a, x, dh = gates(rng, (B, T, D), np.float64), *normal(rng, (2, B, T, D), np.float64)
    h0, dfinal = normal(rng, (2, B, D), np.float64)
    options = {"reverse": reverse, "padding_side": side}
    h, final = scan(a, x, h0, return_final=True, lengths=given, **options)
    grads = scan_vjp(a, h, dh, dfinal, h0, lengths=given, **options)
    expected, expected_final = reference.scan(a, x, h0, lengths=lengths, **options)
    assert_matches(h, expected)
    assert_matches(final, expected_final)
    wanted = reference.scan_vjp(a, x, h0, dh, dfinal, lengths=lengths, **options)
    for got, value in zip(grads, wanted, strict=True):
        assert_matches(got, value)
    assert_same_bits(final[0], h0[0])


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32, np.float16, reference.BFLOAT16, list])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("T", [9, 1500])
def test_w03_resets(rng, kind, reverse, padded, T):
    B, D = 3, 2
    a, x, dh = gates(rng, (B, T, D), np.float32), *normal(rng, (2, B, T, D), np.float32)
    h0, dfinal = normal(rng, (2, B, D), np.float32)
    flags = rng.random((B, T)) < 0.2
    flags[0, 0] = True
    flags[1] = False
    options = {"reverse": reverse, "lengths": np.array([T, T // 2, 3]) if padded else None}
    reset = flags.tolist() if kind is list else flags.astype(kind)
    h, final = scan(a, x, h0, reset=reset, return_final=True, **options)
    expected, expected_final = reference.scan(a, x, h0, reset=flags, **options)
    assert_matches(h, expected)
    assert_matches(final, expected_final)
    got = scan_vjp(a, h, dh, dfinal, h0, reset=reset, **options)
    wanted = reference.scan_vjp(a, x, h0, dh, dfinal, reset=flags, **options)
    for value, other in zip(got, wanted, strict=True):
        assert_matches(value, other)


def test_w03_reset_drops_the_state(rng):
    a, x, h0 = np.ones((1, 4, 1)), np.arange(1.0, 5).reshape(1, 4, 1), np.full((1, 1), 100.0)

    def run(*flags, **options):
        return scan(a, x, h0, reset=np.array([flags], bool), **options).ravel().tolist()

    assert run(0, 0, 0, 0) == [101, 103, 106, 110]
    assert run(1, 0, 0, 0) == [1, 3, 6, 10]
    assert run(0, 0, 1, 0) == [101, 103, 3, 7]
    assert run(1, 1, 1, 1) == [1, 2, 3, 4]
    assert run(0, 0, 1, 0, reverse=True) == [6, 5, 3, 104]
    assert run(0, 0, 0, 1, reverse=True) == [10, 9, 7, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("T", [40, 2000])
def test_w03_nothing_before_a_reset_leaks(rng, bad, T):
    shape, at = (2, T, 3), T // 2
    a, x, dh = gates(rng, shape, np.float64), *normal(rng, (2, *shape), np.float64)
    reset = np.zeros((2, T), bool)
    reset[:, at] = True
    alone = scan(a[:, at:], x[:, at:], reset=reset[:, at:])
    late = scan_vjp(a[:, at:], alone, dh[:, at:], reset=reset[:, at:])
    a[:, at - 1] = x[:, at - 3] = bad
    a[:, at] = bad  # the gate of a reset step is not used
    h = scan(a, x, np.full((2, 3), bad), reset=reset)
    assert_matches(h[:, at:], alone)
    dh[:, :at] = 0
    da, dx, _ = scan_vjp(a, h, dh, reset=reset)
    assert (da[:, at] == 0).all()
    assert_matches(da[:, at + 1 :], late[0][:, 1:])
    assert_matches(dx[:, at:], late[1])
    assert (dx[:, :at] == 0).all() or np.isnan(bad * 0)
    # Nor does a gradient pass it: what comes before gets none from what comes after.
    a, x = gates(rng, shape, np.float64), normal(rng, shape, np.float64)
    dh[:, at:] = bad
    _, dx, _ = scan_vjp(a, scan(a, x, reset=reset), dh, reset=reset)
    assert (dx[:, :at] == 0).all()


def test_w03_resets_of_packed_sequences(rng):
    a, x = gates(rng, (10, 2), np.float64), normal(rng, (10, 2), np.float64)
    reset = rng.random(10) < 0.3
    h = scan(a, x, cu_seqlens=OFFSETS[0], reset=reset)
    expected, _ = reference.scan(a[None], x[None], cu_seqlens=OFFSETS[0], reset=reset[None])
    assert_matches(h, expected[0])


def test_w05_steps(rng):
    """One step at a time, with the state carried: the same numbers, every time the same bits."""
    shape = (2, 200, 3)
    for dtype, rtol in ((np.float32, 1e-5), (np.float64, 1e-12)):
        a, x = gates(rng, shape, dtype), normal(rng, shape, dtype)
        whole = scan(a, x)

        def steps(start, state, a=a, x=x):
            out = []
            for t in range(start, 200):
                h, state = scan(a[:, t : t + 1], x[:, t : t + 1], state, return_final=True)
                out.append(h)
            return np.concatenate(out, axis=1)

        assert_matches(steps(0, None), whole.astype(np.float64), rtol=rtol)
        assert_same_bits(steps(0, None), steps(0, None))
        _, state = scan(a[:, :100], x[:, :100], return_final=True)
        assert_matches(steps(100, state), whole[:, 100:].astype(np.float64), rtol=rtol)
