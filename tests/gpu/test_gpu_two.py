"""M01: two devices, the one that is not current among them. Skipped where there are fewer."""

# ruff: noqa: E402
import pytest

torch = pytest.importorskip("torch")

import scanrnn.torch as srt
from gpu_helpers import LAYOUTS, scan_and_gradients
from scanrnn import _core
from scanrnn.debug import merge_trace

ONE = "cuda:1"
#: Every kernel, and both ways that need a workspace.
SHAPES = [(2, 5, 3), (3, 40, 16), (2, 5000, 40), (1, 20_001, 3)]


@pytest.fixture(autouse=True)
def _two_devices(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    assert torch.cuda.current_device() == 0
    yield
    assert torch.cuda.current_device() == 0


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def problem(shape, layout="btd"):
    """a, x, h0 and dh on the CPU."""
    B, _, D = shape
    a, x, dh = (LAYOUTS[layout](random(*shape, seed=i)) for i in range(3))
    return a, x, random(B, D, seed=3), dh


def run(arrays, device):
    a, x, h0, dh = (t.to(device) for t in arrays)
    return scan_and_gradients(a, x, h0, dh, None)


@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_m01_both_devices_give_the_same_bits(shape, layout):
    arrays = problem(shape, layout)
    for _ in range(3):
        here, there = run(arrays, "cuda:0"), run(arrays, ONE)
        for one, other in zip(here, there, strict=True):
            assert other.device == torch.device(ONE)
            assert torch.equal(one.cpu(), other.cpu())


def test_m01_nothing_is_taken_from_the_current_device():
    """Workspaces and results are on the arrays' device."""
    arrays = [t.to(ONE) for t in problem((2, 20_001, 64))]
    torch.cuda.synchronize(0)
    before = torch.cuda.memory_stats(0).get("allocation.all.allocated", 0)
    torch.cuda.reset_peak_memory_stats(1)
    base = torch.cuda.memory_allocated(1)
    run(arrays, ONE)
    assert torch.cuda.memory_stats(0).get("allocation.all.allocated", 0) == before
    # Results of forward and backward, and a workspace of about a hundredth.
    assert torch.cuda.max_memory_allocated(1) - base >= 3 * arrays[0].nbytes


def test_m01_no_context_is_made_on_the_current_device(run_python):
    """A device that nobody has used keeps its memory."""
    code = (
        "import torch, scanrnn.torch as srt\n"
        "used = torch._C._cuda_hasPrimaryContext\n"
        "x = torch.ones(2, 5000, 40, device='cuda:1', requires_grad=True)\n"
        "assert used(1) and not used(0), 'PyTorch itself made a context'\n"
        "for _ in range(3):\n"
        "    h = srt.scan(0.5, x)\n"
        "    h.sum().backward()\n"
        "    assert not used(0)\n"
        "assert torch.cuda.current_device() == 0\n"
        "print(float(h[0, -1, 0]), h.device)\n"
    )
    assert run_python(code).split() == ["2.0", "cuda:1"]


@pytest.mark.parametrize("visible", ["0", "1"])
def test_m01_one_visible_device(run_python, visible):
    code = (
        "import torch, scanrnn.torch as srt\n"
        "x = torch.ones(2, 5000, 40, device='cuda')\n"
        "print(torch.cuda.device_count(), float(srt.scan(0.5, x)[0, -1, 0]))\n"
    )
    assert run_python(code, CUDA_VISIBLE_DEVICES=visible).split() == ["1", "2.0"]


@pytest.mark.parametrize("first", [0, 1])
def test_m01_kernels_are_made_ready_on_each_device(run_python, first):
    """What a device must be told of a kernel once is told to both, whichever comes first."""
    code = (
        "import torch, scanrnn.torch as srt\n"
        f"for d in ({first}, {1 - first}, {first}):\n"
        "    x = torch.ones(2, 5000, 64, dtype=torch.float64, device=f'cuda:{d}')\n"
        "    for y in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):\n"
        "        y = y.clone().requires_grad_()\n"
        "        h = srt.scan(0.5, y)\n"
        "        h.sum().backward()\n"
        "        print(float(h[0, -1, 0]), float(y.grad[0, 0, 0]))\n"
    )
    assert set(run_python(code).split()) == {"2.0"}


def test_m01_streams_of_both_devices():
    """Work waits on the stream that is current on its own device, not on the other's."""
    shapes = dict.fromkeys((0, 1), (2, 20001, 16))
    streams = {d: torch.cuda.Stream(device=d) for d in shapes}
    arrays = {d: problem(shape) for d, shape in shapes.items()}
    expected = {d: run(arrays[d], f"cuda:{d}")[0] for d in shapes}
    for d in (0, 1):
        torch.cuda.synchronize(d)
    for i in range(20):
        results = {}
        for d in (1, 0) if i % 2 else (0, 1):
            with torch.cuda.stream(streams[d]):  # which makes d the current device
                a, x, h0, _ = (t.to(f"cuda:{d}") for t in arrays[d])
                late = torch.full_like(x, 1e4)
                torch.cuda._sleep(1_000_000)
                late.copy_(x)
                results[d] = srt.scan(a, late, h0)
        # From the other device: the current stream of cuda:1 is asked for, not of cuda:0.
        torch.cuda._sleep(1_000_000)
        for d in (0, 1):
            torch.cuda.synchronize(d)
            assert torch.equal(results[d], expected[d])


def test_m01_a_side_stream_of_the_other_device():
    a, x, h0, _ = (t.to(ONE) for t in problem((2, 20_001, 16)))
    expected = srt.scan(a, x, h0)
    side = torch.cuda.Stream(device=1)
    torch.cuda.synchronize(1)
    late = torch.full_like(x, 1e4)
    torch.cuda.synchronize(1)
    torch.cuda.set_stream(side)  # and cuda:1 becomes current
    try:
        torch.cuda._sleep(10_000_000)
        late.copy_(x)
        torch.cuda.set_device(0)
        h = srt.scan(a, late, h0)  # cuda:0 is current, its default stream idle
        h.record_stream(side)
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream(1))
        torch.cuda.set_device(0)
    torch.cuda.synchronize(1)
    assert torch.equal(h, expected)


def test_m01_a_graph_of_the_other_device():
    a, x, h0, _ = (t.to(ONE) for t in problem((2, 20_001, 16)))
    expected = srt.scan(a, x, h0)
    with torch.cuda.device(1):
        srt.scan(a, x, h0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # PyTorch's own stream for captures is one of the device that captured first.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(device=1)):
            h = srt.scan(a, x, h0)
    h.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize(1)
    assert torch.equal(h, expected)


@pytest.mark.parametrize("layer", [srt.SRU, srt.MinGRU])
def test_m01_layers(layer):
    torch.manual_seed(0)
    module, x = layer(6, 8, batch_first=True), random(3, 500, 6)
    expected = module(x)[0]
    module.to(ONE)
    y = module(x.to(ONE))[0]
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-4)
    y.sum().backward()
    assert all(p.grad.device == torch.device(ONE) for p in module.parameters())


def test_m01_arguments_on_two_devices():
    there = torch.ones(1, 50, 3, device=ONE)
    here = there.to("cuda:0")
    with pytest.raises(ValueError, match="a is on device cuda:0, expected cuda:1"):
        srt.scan(here, there)
    with pytest.raises(ValueError, match="h0 is on device cuda:0, expected cuda:1"):
        srt.scan(there, there, here[:, 0])
    for name, values in (("lengths", [50]), ("cu_seqlens", [0, 50])):
        with pytest.raises(ValueError, match=f"{name} is on device cuda:0, expected cuda:1"):
            srt.scan(there, there, **{name: torch.tensor(values, device="cuda:0")})
    reset = torch.zeros(1, 50, dtype=torch.bool, device="cuda:0")
    with pytest.raises(ValueError, match="reset is on device cuda:0, expected cuda:1"):
        srt.scan(there, there, reset=reset)
    with pytest.raises(ValueError, match="f is on device cuda:0, expected cuda:1"):
        srt.sru(there, here, there)
    assert float(srt.scan(there, there)[0, -1, 0]) == 50


@pytest.mark.skipif(not _core.build_info()["debug_merge"], reason="needs a build with DEBUG_MERGE")
def test_m01_a_trace_on_the_other_device():
    cupy = pytest.importorskip("cupy")
    a, x, _, _ = problem((2, 3000, 5))
    here = merge_trace(a.cuda(), x.cuda())
    there = merge_trace(a.to(ONE), x.to(ONE))
    assert here.tolist() == there.tolist()
    assert cupy.cuda.runtime.getDevice() == 0
