"""`scanrnn.jax` on the device: values, gradients, transformations, command buffers."""

# ruff: noqa: E402, F811
import time

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import reference
import scanrnn.jax as srj
from jax.sharding import Mesh, PartitionSpec
from jax_helpers import LARGE, assert_close, kernels, sizes, x64  # noqa: F401
from jax_nonlinear import NONLINEAR, arguments, call, loop, loss_of
from reference import DTYPES, REAL_DTYPES, accumulation, assert_matches, gates, normal


@pytest.fixture(autouse=True)
def _on_the_device(device):
    try:
        place = jax.devices("cuda" if device == "cuda" else "cpu")[0]
    except RuntimeError:
        pytest.skip("this JAX has no CUDA plugin")
    with jax.default_device(place):
        yield


def value_and_gradients(a, x, h0, dh, dfinal, **options):
    """h, final and the gradients, jitted."""

    @jax.jit
    def run(a, x, h0, seeds):
        outputs, pullback = jax.vjp(lambda *v: srj.scan(*v, return_final=True, **options), a, x, h0)
        return outputs, pullback(seeds)

    return jax.tree.map(np.asarray, run(a, x, h0, (dh, dfinal)))


# Each of them is compiled, which takes a while: no full product.
@pytest.mark.parametrize(
    ("name", "dtype", "axis"),
    [
        *((name, np.dtype(np.float32), (-2, -1, 0)[i % 3]) for i, name in enumerate(LARGE)),
        *(
            (name, dtype, (-1, 0, -2)[i % 3])
            for i, dtype in enumerate(DTYPES)
            for name in ("plain", "reset-reverse-lengths")
        ),
    ],
)
def test_values_and_gradients(rng, name, dtype, axis, x64):
    options = LARGE[name]
    B, N = sizes(options, 3)
    a, x, dh = gates(rng, (B, 37, 5), dtype), *normal_pair(rng, (B, 37, 5), dtype)
    wide = accumulation(dtype)
    h0, dfinal = normal_pair(rng, (N, 5), wide)
    where = axis % 3
    moved = [np.moveaxis(v, 1, where) for v in (a, x, dh)]
    if axis == 0:
        moved = [np.ascontiguousarray(v.transpose(1, 0, 2)) for v in (a, x, dh)]
    (h, final), (da, dx, dh0) = value_and_gradients(
        *moved[:2], h0, moved[2], dfinal, axis=axis, **options
    )
    back = [np.moveaxis(v, where, 1) for v in (h, da, dx)]
    expected, last = reference.scan(a, x, h0, **options)
    assert_matches(back[0], expected)
    assert_matches(final, last)
    wanted = reference.scan_vjp(a, x, h0, dh, dfinal, h=back[0], conj=False, **options)
    for got, value in zip((*back[1:], dh0), wanted, strict=True):
        assert_matches(got, value)


def normal_pair(rng, shape, dtype):
    return normal(rng, shape, dtype), normal(rng, shape, dtype)


@pytest.mark.parametrize("T", [256, 257, 2049, 16385, 100_003])
@pytest.mark.parametrize("axis", [-2, -1])
def test_long_sequences(rng, T, axis):
    from gpu_helpers import previous, serial_adjoint, serial_scan

    a, x, dh = gates(rng, (2, T, 3), "f"), *normal_pair(rng, (2, T, 3), np.float32)
    zeros = np.zeros((2, 3), np.float32)
    arrays = [v if axis == -2 else v.swapaxes(1, 2) for v in (a, x, dh)]
    (h, _), (da, dx, _) = value_and_gradients(*arrays[:2], zeros, arrays[2], zeros, axis=axis)
    h, da, dx = (v if axis == -2 else v.swapaxes(1, 2) for v in (h, da, dx))
    g, _ = serial_adjoint(a, dh)
    assert_matches(h, serial_scan(a, x)[0])
    assert_matches(dx, g)
    assert_matches(da, g * previous(h))


@pytest.mark.parametrize("shape", [(1, 1, 5), (3, 1, 1), (1, 300, 1), ()])
def test_broadcast_gates(rng, shape, x64):
    a, x = rng.uniform(0, 0.9, shape), rng.standard_normal((3, 300, 5))
    got = jax.jit(jax.grad(lambda a: srj.scan(a, x).sum()))(a)
    whole = np.broadcast_to(a, x.shape)
    expected, *_ = reference.scan_vjp(whole, x, None, np.ones_like(x))
    assert_matches(np.asarray(got), reference.sum_to(expected, shape))


@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
def test_sru(rng, dtype, x64):
    inputs = [normal(rng, (3, 300, 5), dtype) for _ in range(4)]
    inputs += [normal(rng, (5,), accumulation(dtype)) for _ in range(2)]
    inputs.append(normal(rng, (3, 5), accumulation(dtype)))
    dh = normal(rng, (3, 300, 5), dtype)

    @jax.jit
    def run(*inputs):
        h, pullback = jax.vjp(lambda *v: srj.sru(*v, activation="tanh"), *inputs)
        return h, pullback(dh)

    h, gradients = run(*inputs)
    expected, _ = reference.sru(*inputs, activation="tanh")
    assert_matches(np.asarray(h), expected, rtol=2e-5 if dtype.itemsize < 8 else None)
    wanted = reference.sru_vjp(*inputs, dh, activation="tanh")
    for got, value in zip(gradients, wanted.values(), strict=True):
        rtol = {2: 1e-2, 4: 1e-4, 8: None}[dtype.itemsize]
        assert_matches(np.asarray(got), value, units=4, rtol=rtol)


@pytest.mark.parametrize("where", ["plain", "left-reverse", "packed-reset"])
@pytest.mark.parametrize("name", NONLINEAR)
def test_nonlinear_cells(rng, name, where, x64):
    case = NONLINEAR[name]
    options = LARGE[where] | case.options
    arrays = arguments(rng, case, options, 3, 37, 5)
    solve = jax.jit(lambda *a: jax.vjp(lambda *b: call(case, b, segment=8, **options), *a))
    want = jax.jit(lambda *a: jax.vjp(lambda *b: loop(case, b, **options), *a))
    (got, pullback), (want, expected) = solve(*arrays), want(*arrays)
    assert_close(got, want, 1e-9)
    seeds = jax.tree.map(jnp.cos, got)
    assert_close(pullback(seeds), expected(seeds), 1e-9)


@pytest.mark.parametrize("name", NONLINEAR)
def test_long_nonlinear_cells(rng, name):
    """Gradients, bits and reports of what is solved in parallel, in single precision."""
    case = NONLINEAR[name]
    arrays = arguments(rng, case, {}, 2, 20_000, 5, np.float32)
    # Weights with which no two ways of rounding part.
    arrays = [np.clip(a, -0.9, 0.9) if a.ndim == 1 else a for a in arrays]
    named = dict(zip(case.arguments, arrays, strict=True))
    solve = jax.jit(lambda named: case.function(**named, **case.options, return_report=True))
    h, report = solve(named)
    assert set(report.status) == {"converged"}
    assert report.rows.shape == (2, 6)
    want, _ = jax.jit(lambda a: loop(case, a, **case.options))(arrays)
    np.testing.assert_allclose(h, want, rtol=1e-4, atol=1e-5)
    solved, serial = (
        jax.jit(jax.grad(loss_of(lambda a, f=f: f(case, a, **case.options)), case.every))
        for f in (call, loop)
    )
    grads = solved(*arrays)
    for g, e in zip(grads, serial(*arrays), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-3, atol=1e-3 * np.abs(e).max())
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, solve(named)[0], h)
        jax.tree.map(np.testing.assert_array_equal, solved(*arrays), grads)


def test_w07_transformations(rng, x64):
    a, x = rng.uniform(-1, 1, (2, 4, 3, 50, 5))

    def loss(a, x):
        return (srj.scan(a, x) ** 2).sum()

    gradient = jax.grad(loss, (0, 1))
    stacked = [jnp.stack(v) for v in zip(*(gradient(a[i], x[i]) for i in range(4)), strict=True)]
    for f in (jax.vmap(gradient), jax.jit(jax.vmap(gradient))):
        for got, value in zip(f(a, x), stacked, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-10, atol=1e-10)
    checkpointed = jax.grad(jax.checkpoint(loss), (0, 1))(a[0], x[0])
    for got, value in zip(checkpointed, stacked, strict=True):
        np.testing.assert_allclose(got, value[0], rtol=1e-10, atol=1e-10)

    def body(h, ax):
        return srj.scan(*ax, h, return_final=True)[::-1]

    _, h = jax.jit(lambda a, x: jax.lax.scan(body, jnp.zeros((3, 5)), (a, x)))(a, x)
    joined = [np.concatenate(list(v), 1) for v in (a, x)]
    np.testing.assert_allclose(np.concatenate(list(h), 1), srj.scan(*joined), rtol=1e-10)
    tangent = jax.jvp(lambda a: srj.scan(a, x[0]), (a[0],), (x[1],))[1]
    step = 1e-6
    difference = (srj.scan(a[0] + step * x[1], x[0]) - srj.scan(a[0] - step * x[1], x[0])) / step
    np.testing.assert_allclose(tangent, difference / 2, rtol=1e-5, atol=1e-5)
    donating = jax.jit(srj.scan, donate_argnums=1)
    expected = srj.scan(a[0], x[0])
    np.testing.assert_array_equal(donating(a[0], jnp.array(x[0])), expected)


def test_grad_runs_two_kernels(rng):
    x = jnp.ones((2, 300, 5))
    names = kernels(jax.grad(lambda a, x: srj.scan(a, x).sum(), (0, 1)), x, x)
    assert names == ["scan_backward", "scan_forward"]


def test_w07_time_to_compile_does_not_grow(rng):
    def seconds(T):
        x = jax.ShapeDtypeStruct((1, T, 8), jnp.float32)
        start = time.perf_counter()
        jax.jit(jax.grad(lambda a, x: srj.scan(a, x).sum())).lower(x, x).compile()
        return time.perf_counter() - start

    seconds(100)
    short, long = seconds(1 << 10), seconds(1 << 20)
    assert long < max(2 * short, 1)
    assert long < 2


def test_w07_dispatch_does_not_wait(cuda):
    a, x = jnp.full((8, 16384, 512), 0.5), jnp.ones((8, 16384, 512))

    @jax.jit
    def f(x):
        for _ in range(16):
            x = srj.scan(a, x)
        return x

    def seconds():
        start, y = time.perf_counter(), x
        for _ in range(8):
            y = f(y)
        dispatched = time.perf_counter() - start
        y.block_until_ready()
        return dispatched, time.perf_counter() - start

    seconds()  # compiles, and takes the memory: from then on the allocator has it
    dispatched, done = seconds()
    assert dispatched < done / 2


def test_m06_the_same_bits(rng):
    a, x = gates(rng, (4, 5000, 64), "f"), normal(rng, (4, 5000, 64), "f")
    f = jax.jit(jax.value_and_grad(lambda a, x: srj.scan(a, x).sum(), (0, 1)))
    expected = jax.tree.map(np.asarray, f(a, x))
    for _ in range(20):
        jax.tree.map(np.testing.assert_array_equal, f(a, x), expected)


def test_m03_command_buffers(cuda, run_python):
    """XLA records the calls into CUDA graphs and replays them with other data."""
    printed = run_python(
        "import jax, jax.numpy as jnp, numpy as np, scanrnn.jax as srj\n"
        "def loss(a, x):\n"
        "    for _ in range(6): x = jnp.tanh(srj.scan(a, x))\n"
        "    return x.sum()\n"
        "f = jax.jit(jax.value_and_grad(loss, (0, 1)))\n"
        "g = jax.value_and_grad(loss, (0, 1))\n"
        "for i in range(20):\n"
        "    a, x = jax.random.uniform(jax.random.key(i), (2, 2, 3000, 40))\n"
        "    for one, other in zip(jax.tree.leaves(f(a, x)), jax.tree.leaves(g(a, x))):\n"
        "        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)\n"
        "print(jax.devices()[0].platform)\n",
        XLA_FLAGS="--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL",
    )
    assert printed.strip() in ("gpu", "cuda")


def test_m01_two_devices(cuda, rng):
    devices = jax.devices("cuda")
    if len(devices) < 2:
        pytest.skip("needs two devices")
    a, x = gates(rng, (4, 3000, 8), "f"), normal(rng, (4, 3000, 8), "f")
    expected = np.asarray(srj.scan(a, x))
    other = srj.scan(*(jax.device_put(v, devices[1]) for v in (a, x)))
    assert other.devices() == {devices[1]}
    np.testing.assert_array_equal(other, expected)
    spec = PartitionSpec("data")
    sharded = jax.shard_map(
        srj.scan, mesh=Mesh(devices[:2], ("data",)), in_specs=(spec, spec), out_specs=spec
    )
    np.testing.assert_array_equal(jax.jit(sharded)(a, x), expected)


def test_s03_empty_axes():
    for shape in [(2, 0, 3), (0, 5, 3), (2, 5, 0)]:
        x = jnp.ones(shape)
        h, final = srj.scan(x, x, return_final=True)
        assert h.shape == shape
        assert final.shape == shape[::2]
        assert jax.grad(lambda a, x=x: srj.scan(a, x).sum())(x).shape == shape
        assert srj.scan(jnp.ones((1, 5, 3)), jnp.ones((1, 5, 3)))[0, -1, 0] == 5
