"""Every path of the kernels on little data: what runs under compute-sanitizer, by `run.sh`.

Sizes are just large enough for several tiles, blocks and levels of the tree.
"""

# ruff: noqa: E402
import pytest

torch = pytest.importorskip("torch")

import scanrnn.torch as srt
from gpu_helpers import LAYOUTS, leaf
from test_gpu_solve import STEPS as NONLINEAR
from test_gpu_solve import Problem
from torch_helpers import cells

STEPS = (1, 33, 257, 2500)
OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": lambda B, T: torch.arange(B) * T // max(B - 1, 1)},
    "left": {"lengths": lambda B, T: torch.arange(B) * T // B, "padding_side": "left"},
    "packed": {"cu_seqlens": lambda B, T: torch.tensor([0, 0, T // 3, T // 3, T // 2, T])},
    "reset": {"reset": lambda B, T: torch.rand(B, T) < 0.05},
}
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}


def cases():
    """A layout, a dtype and an option for each number of steps; each of them several times."""
    layouts, dtypes = list(LAYOUTS), list(srt._ops.ACCUMULATION)
    for i, (name, T) in enumerate((name, T) for name in OPTIONS for T in STEPS):
        for j in range(2):
            yield (
                name,
                T,
                (1, 3, 40)[(i + j) % 3],
                layouts[(5 * i + j) % 12],
                dtypes[(i + 3 * j) % 6],
            )


def both(f, inputs, devices, options):
    """Results and gradients on each device, the second in double precision."""
    results = []
    for place, wide in zip(devices, (False, True), strict=True):
        moved = {k: v.to(place) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        tensors = []
        for t in inputs:
            t = t.to(place)
            if wide:
                t = t.to(torch.complex128 if t.is_complex() else torch.float64)
            tensors.append(leaf(t))
        outputs = f(*tensors, return_final=True, **moved)
        seeds = [torch.ones_like(y) for y in outputs]
        results.append(
            [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, tensors, seeds)]
        )
    return results


@pytest.mark.parametrize(("name", "T", "D", "layout", "dtype"), list(cases()))
def test_scan(device, name, T, D, layout, dtype):
    torch.manual_seed(0)
    B = 1 if name == "packed" else 3
    options = {k: v(B, T) if callable(v) else v for k, v in OPTIONS[name].items()}
    N = 5 if name == "packed" else B
    a, x, h0 = (torch.randn(*s, dtype=dtype) for s in ((B, T, D), (B, T, D), (N, D)))
    a = a / (1 + a.abs())
    arrange = LAYOUTS[layout]

    def scan(a, x, h0, **options):
        return srt.scan(arrange(a), arrange(x), h0, **options)

    got, expected = both(scan, (a, x, h0), (device, "cpu"), options)
    tolerance = TOLERANCE.get(dtype, 1e-5 if dtype == torch.complex64 else 1e-11)
    for one, other in zip(got, expected, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(
            one.cpu().to(other.dtype), other, rtol=tolerance, atol=tolerance * max(scale, 1)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize(("layout", "shape"), [("btd", (3, 32768, 64)), ("bdt", (1, 32768, 3))])
def test_whole_tiles(cuda, layout, shape, dtype):
    """Kernels that stay and take tile after tile: more of them than run at once."""
    torch.manual_seed(0)
    a, x = (torch.randn(*shape, dtype=dtype) for _ in range(2))
    a, h0 = a / (1 + a.abs()), torch.randn(shape[0], shape[2], dtype=dtype)

    def scan(a, x, h0, **options):
        return srt.scan(LAYOUTS[layout](a), LAYOUTS[layout](x), h0, **options)

    got, expected = both(scan, (a, x, h0), (cuda, "cpu"), {})
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(
            one.cpu().to(other.dtype),
            other,
            rtol=TOLERANCE.get(dtype, 1e-5),
            atol=TOLERANCE.get(dtype, 1e-5) * max(float(other.abs().max()), 1),
        )


@pytest.mark.parametrize("name", ["sru", "min_gru", "rg_lru"])
def test_whole_tiles_of_cells(cuda, name):
    """The same, of cells that keep and read different things."""
    torch.manual_seed(0)
    cell, shape = cells()[name], (3, 32768, 64)
    inputs = cell.inputs_of(*shape[:2], shape[0], shape[2], requires_grad=False)
    inputs = [t.to(torch.bfloat16 if t.ndim == 3 else torch.float32) for t in inputs]
    got, expected = both(lambda *t, return_final: cell.both(*t), inputs, (cuda, "cpu"), {})
    for one, other in zip(got, expected, strict=True):
        scale = float(other.abs().max()) * (4 if one.ndim == 1 else 1)
        torch.testing.assert_close(one.cpu().to(other.dtype), other, rtol=0, atol=3e-2 * scale)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 7), (1, 300, 1), (2, 1, 7)])
@pytest.mark.parametrize("layout", ["btd", "bdt"])
def test_broadcast_gates(device, shape, layout):
    torch.manual_seed(0)
    a, x, h0 = torch.rand(shape), torch.randn(2, 300, 7), torch.randn(2, 7)

    def scan(a, x, h0, **options):
        return srt.scan(a, LAYOUTS[layout](x), h0, **options)

    got, expected = both(scan, (a, x, h0), (device, "cpu"), {})
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("T", STEPS)
def test_sru(device, name, T):
    torch.manual_seed(0)
    B, D = 1 if name == "packed" else 3, 40 if T % 2 else 3
    options = {k: v(B, T) if callable(v) else v for k, v in OPTIONS[name].items()}
    N = 5 if name == "packed" else B
    full = [torch.randn(B, T, D) for _ in range(4)]
    inputs = (*full, torch.randn(D), torch.randn(D), torch.randn(N, D))
    got, expected = both(
        lambda *t, **o: srt.sru(*t, activation="tanh", **o), inputs, (device, "cpu"), options
    )
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", NONLINEAR)
@pytest.mark.parametrize("max_passes", [0, 2, 8])
def test_solver(cuda, name, max_passes):
    """Several passes, channels that fall back, blocks that wait for the queue."""
    options = {"d": 33, "t": 600, "gain": 0.5, "segment": 32, "max_passes": max_passes}
    options |= {
        "b": 3,
        "lengths": torch.tensor([600, 0, 517]),
        "bias": 0 if name == "indrnn" else 3,
    }
    Problem(name, **options).forward().backward().check()
