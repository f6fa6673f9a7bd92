"""The nonlinear cells of scanrnn.torch on the device: the CPU's own tests, and what is CUDA's.

Layers are among those of `test_gpu_cells`.
"""

# ruff: noqa: E402
import inspect

import pytest

torch = pytest.importorskip("torch")

pytest.register_assert_rewrite("test_torch_solve")

import scanrnn.torch as srt
import test_torch_solve as on_the_cpu
from gpu_helpers import LAYOUTS
from test_torch_solve import CELLS, SAME, _seed, by_cell, on  # noqa: F401 (a fixture)

# Every test there that takes a device.
globals().update(
    (name, test)
    for name, test in vars(on_the_cpu).items()
    if name.startswith("test_") and "device" in inspect.signature(test).parameters
)

HALVES = (torch.float16, torch.bfloat16)
#: Errors in units of the largest value; sums over many steps get four times as much.
TOLERANCE = {torch.float16: 6e-3, torch.bfloat16: 4e-2, torch.float32: 1e-4, torch.float64: 1e-9}


def arranged(args, place, dtype, arrange):
    """Arguments as leaves on a device, vectors and states in the accumulation dtype."""
    wide = torch.float32 if dtype in HALVES else dtype
    return [
        (arrange(t.detach().to(place, dtype)) if t.ndim == 3 else t.detach().to(place, wide))
        .detach()
        .requires_grad_()
        for t in args
    ]


def coarse(t):
    """Multiples of 1/64 up to 2, which are exact in every dtype: one reference serves them all."""
    return (t.detach() * 64).round().clamp(-128, 128) / 64


def differentiated(outputs, args, seeds):
    """Values and gradients in double precision on the CPU."""
    seeds = [s.to(y.device, y.dtype) for s, y in zip(seeds, outputs, strict=True)]
    grads = torch.autograd.grad(outputs, args, seeds)
    return [t.detach().cpu().double() for t in (*outputs, *grads)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(2, 3000, 40), (1, 40_001, 3), (16, 300, 130), (300, 9, 8)])
@by_cell
def test_g11_as_on_the_cpu(device, name, shape, dtype):
    """Long and short sequences in several layouts, against the CPU backend in double precision."""
    cell = CELLS[name]
    B, T, D = shape
    args = [coarse(t).requires_grad_() for t in cell.inputs_of(B, T, B, D)]
    # Rounding takes relu across its kink, where its derivative jumps.
    options = {"activation": "tanh"} if name == "indrnn" else {}
    outputs = cell.both(*args, **options)
    seeds = [coarse(torch.randn_like(y)) for y in outputs]
    wanted = differentiated(outputs, args, seeds)
    for layout in ("btd", "bdt", "tbd"):
        own = arranged(args, device, dtype, LAYOUTS[layout])
        got = differentiated(cell.both(*own, **options), own, seeds)
        for one, want in zip(got, wanted, strict=True):
            assert one.isfinite().all()
            scale = max(float(want.abs().max()), 1e-3) * (4 if one.ndim == 1 else 1)
            torch.testing.assert_close(one, want, rtol=0, atol=TOLERANCE[dtype] * scale)


def captured(f):
    """A graph of f, and its results: what a replay writes to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = f()
    return graph, results


@pytest.mark.parametrize("shape", [(2, 3000, 40), (100, 33, 8)], ids=str)
@by_cell
def test_m03_graphs(cuda, name, shape):
    """Capture forward and backward, replay with new data: the bits and reports of eager calls."""
    cell, (B, T, D) = CELLS[name], shape
    args = on(cuda, cell.inputs_of(B, T, B, D, torch.float32))
    seed = torch.randn(B, T, D, device=cuda)

    def f():
        y, _, report = cell.call(*args, return_final=True, return_report=True)
        return (y.detach(), report.rows, *torch.autograd.grad(y, args, seed))

    graph, results = captured(f)
    for _ in range(5):
        with torch.no_grad():
            for t in args[: len(cell.full)]:
                t.copy_(torch.randn_like(t))
        graph.replay()
        torch.testing.assert_close(results, f(), **SAME)


def test_m03_graphs_of_the_layer_of_sru(cuda):
    module = srt.SRU(16, 32, 2, recurrent=True, device=cuda)
    x = torch.randn(500, 4, 16, device=cuda)

    def f():
        y, _ = module(x)
        return (y.detach(), *torch.autograd.grad(y.sum(), list(module.parameters())))

    graph, results = captured(f)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(results, f(), **SAME)
    assert len(module.last_report) == 2


@by_cell
def test_nothing_waits_for_the_device(cuda, name):
    cell = CELLS[name]
    args = on(cuda, cell.inputs_of(2, 3000, 2, 16, torch.float32))
    lengths = torch.tensor([3000, 1234], device=cuda)
    module = srt.DiagonalLSTM(8, 16, 2, bidirectional=True, device=cuda)
    x = torch.randn(3000, 2, 8, device=cuda)
    cell.call(*args, lengths=lengths).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        y, report = cell.call(*args, lengths=lengths, return_report=True)
        y.sum().backward()
        z, _ = module(x, lengths=lengths)
        z.sum().backward()
        reports = module.last_report
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(report.status) == 2
    assert all(len(r.passes) == 2 for r in reports)


def test_p05_memory(cuda):
    """Nothing of the size of T times a Jacobian: output, and what is kept where that is a state."""
    B, T, D = 1, 65_536, 256
    for name, cell in CELLS.items():
        args = [t.detach() for t in on(cuda, cell.inputs_of(B, T, B, D, torch.float32))]
        cell.call(*args)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = cell.call(*args)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak <= 1.5 * y.numel() * y.element_size(), name
        del args, y


@pytest.mark.parametrize("recurrent", [True, False])
def test_layers_of_sru_as_on_the_cpu(device, recurrent):
    torch.manual_seed(0)
    keywords = {"bidirectional": True, "activation": "tanh", "recurrent": recurrent}
    module = srt.SRU(7, 12, 2, **keywords).double()
    other = srt.SRU(7, 12, 2, **keywords).double()
    other.load_state_dict(module.state_dict())
    x = torch.randn(400, 5, 7, dtype=torch.float64)
    results = []
    for one, place in ((module, "cpu"), (other.to(device), device)):
        y, h_n = one(x.to(place))
        grads = torch.autograd.grad(y.square().sum() + h_n.sum(), list(one.parameters()))
        results.append([t.cpu() for t in (y, h_n, *grads)])
    torch.testing.assert_close(*results)
