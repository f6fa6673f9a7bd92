"""What the tests of `scanrnn.jax` share: cases, comparisons, two fixtures."""

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec


def _flags(B, T):
    return np.arange(B * T).reshape(B, T) % 5 == 2


#: Options of a call on (3, 37, D), or (1, 37, D) with cu_seqlens; and on (2, 6, D) or (1, 6, D).
LARGE = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": np.array([37, 0, 9])},
    "left": {"lengths": np.array([1, 37, 33]), "padding_side": "left"},
    "left-reverse": {"lengths": np.array([0, 37, 33]), "padding_side": "left", "reverse": True},
    "packed": {"cu_seqlens": np.array([0, 3, 4, 4, 37])},
    "packed-reverse": {"cu_seqlens": np.array([0, 0, 33, 36, 37, 37]), "reverse": True},
    "reset": {"reset": _flags(3, 37)},
    "reset-reverse-lengths": {
        "reset": _flags(3, 37),
        "reverse": True,
        "lengths": np.array([30, 1, 37]),
    },
    "packed-reset": {"cu_seqlens": np.array([0, 3, 4, 4, 37]), "reset": _flags(1, 37)},
}
SMALL = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": np.array([6, 2])},
    "left": {"lengths": np.array([4, 6]), "padding_side": "left"},
    "left-reverse": {"lengths": np.array([0, 5]), "padding_side": "left", "reverse": True},
    "packed": {"cu_seqlens": np.array([0, 1, 1, 6])},
    "packed-reverse": {"cu_seqlens": np.array([0, 2, 6, 6]), "reverse": True},
    "reset": {"reset": _flags(2, 6)},
    "reset-reverse-lengths": {
        "reset": _flags(2, 6),
        "reverse": True,
        "lengths": np.array([6, 4]),
    },
    "packed-reset": {"cu_seqlens": np.array([0, 1, 1, 6]), "reset": _flags(1, 6)},
}


def spread(names, others, each=1):
    """Pairs of every name with `each` of the others, which take turns: a part of the product.

    For properties of code that all names share, where every compilation takes a second.
    """
    repeated = (n for n in names for _ in range(each))
    return list(zip(repeated, itertools.cycle(others), strict=False))


def sizes(options, B):
    """B and N of a call."""
    return (1, len(options["cu_seqlens"]) - 1) if "cu_seqlens" in options else (B, B)


def values(rng, *shape, dtype="float64"):
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return x.astype(dtype)


def gates(rng, *shape, dtype="float64"):
    """Values of magnitude 0 to 1, a tenth of them exactly 0."""
    a = values(rng, *shape, dtype=dtype)
    a = a / np.maximum(1, np.abs(a))
    return np.where(rng.random(shape) < 0.1, 0, a).astype(dtype)


def assert_close(got, expected, tolerance=1e-10):
    """Check that two pytrees of arrays are equal to a tolerance, absolute and relative."""
    jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), got, expected)


def batched(rng, array, axis, size=3):
    """Several versions of an array, stacked along an axis; the array itself if that is None."""
    if array is None or axis is None:
        return array
    return np.stack([array * factor for factor in rng.uniform(0.5, 1.0, size)], axis)


def stacked(f, in_axes, arrays, size=3):
    """`jax.vmap` as a loop."""

    def example(i):
        return [
            v if v is None or d is None else jnp.take(v, i, d)
            for v, d in zip(arrays, in_axes, strict=True)
        ]

    return jax.tree.map(lambda *v: jnp.stack(v), *(f(*example(i)) for i in range(size)))


def check_vmap(rng, run, loss_of, arrays, chosen):
    """`jax.vmap` over the chosen arrays, of values and gradients, against a loop."""
    every = tuple(range(len(arrays)))
    axes = [
        (k % 2 if a.ndim > 1 else 0) if c else None
        for k, (a, c) in enumerate(zip(arrays, chosen, strict=True))
    ]
    many = [batched(rng, a, d) for a, d in zip(arrays, axes, strict=True)]
    one = jax.jit(lambda *a: run(a))
    assert_close(jax.vmap(one, axes)(*many), stacked(one, axes, many))
    gradient = jax.jit(jax.grad(loss_of(run), every))
    want = stacked(gradient, axes, many)
    assert_close(jax.jit(jax.vmap(gradient, axes))(*many), want)

    @jax.jit
    def total(*many):
        return jnp.sum(jax.vmap(loss_of(run), axes)(*many))

    moved = [
        w.sum(0) if d is None else np.moveaxis(w, 0, d) for w, d in zip(want, axes, strict=True)
    ]
    assert_close(jax.grad(total, every)(*many), tuple(moved))


def check_sharding(mesh, check, run, loss_of, arrays):
    """Values and gradients with the batch over a mesh's devices, vectors on all of them."""
    every = tuple(range(len(arrays)))
    data, whole = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        lambda *a: run(a),
        mesh=mesh,
        in_specs=tuple(data if a.ndim > 1 else whole for a in arrays),
        out_specs=data,
        check_vma=check,
    )
    assert_close(jax.jit(sharded)(*arrays), run(arrays))
    gradients = [jax.jit(jax.grad(loss_of(f), every)) for f in (lambda a: sharded(*a), run)]
    assert_close(gradients[0](*arrays), gradients[1](*arrays))


def kernels(f, *arrays):
    """Names of the core's kernels that a compiled function calls, sorted."""
    text = jax.jit(f).lower(*arrays).compile().as_text()
    return sorted(re.findall(r'custom_call_target="scanrnn_(\w+)"', text))


@pytest.fixture
def x64():
    """Double precision for a test, and for no others."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def mesh():
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices: --xla_force_host_platform_device_count=2 in XLA_FLAGS")
    return Mesh(jax.devices()[:2], ("data",))


@pytest.fixture
def explicit_mesh(mesh):
    """With shardings in the types of arrays."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(jax.sharding.AxisType.Explicit,))
