"""PyTorch on the device: autograd, transforms, compilation, graphs, streams, memory, overhead."""

# ruff: noqa: E402
import contextlib
import gc
import itertools
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import scanrnn
import scanrnn.torch as srt
from gpu_helpers import leaf, to_numpy
from reference import assert_matches
from scanrnn.torch import _cells, _ops
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import pack_padded_sequence
from torch_helpers import OPTIONS, as_tensors, cells, scan_loop, size_of


def on(device, options):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}


def random(*shape, device, dtype=torch.float32, low=-1.0, high=1.0):
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, device=device) * 0.5
    return torch.empty(shape, dtype=dtype, device=device).uniform_(low, high)


def double(*shape, device, dtype=torch.float64):
    return leaf(random(*shape, device=device, dtype=dtype))


# ---- Autograd ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", OPTIONS)
def test_g08_first_and_second_derivatives_of_scan(device, name, dtype):
    options = on(device, as_tensors(OPTIONS[name]))
    B, T, N = size_of(options)
    shape = (B, T, 2)
    inputs = (
        double(*shape, device=device, dtype=dtype),
        double(*shape, device=device, dtype=dtype),
        double(N, 2, device=device, dtype=dtype),
    )

    def f(a, x, h0):
        return srt.scan(a, x, h0, return_final=True, **options)

    assert gradcheck(f, inputs, check_forward_ad=True)
    if dtype == torch.float64 or name == "plain":
        assert gradgradcheck(f, inputs, fast_mode=True)


@pytest.mark.parametrize("activation", ["identity", "tanh"])
@pytest.mark.parametrize("name", ["plain", "packed-reverse-reset", "left-reset"])
def test_g08_first_and_second_derivatives_of_sru(device, name, activation):
    options = on(device, as_tensors(OPTIONS[name]))
    B, T, N = size_of(options)
    inputs = (
        *(double(B, T, 2, device=device) for _ in range(4)),
        double(2, device=device),
        double(2, device=device),
        double(N, 2, device=device),
    )

    def f(*tensors):
        return srt.sru(*tensors, activation=activation, return_final=True, **options)

    assert gradcheck(f, inputs)
    assert gradgradcheck(f, inputs, fast_mode=True)


def test_g09_vmap_and_forward_mode(device):
    a, x, da = (random(4, 2, 30, 3, device=device, dtype=torch.float64) for _ in range(3))

    def loss(a, x):
        return srt.scan(a, x).square().sum()

    per_example = torch.vmap(torch.func.grad(loss, argnums=(0, 1)))(a, x)
    for i in range(4):
        expected = torch.func.grad(loss, argnums=(0, 1))(a[i], x[i])
        for got, value in zip(per_example, expected, strict=True):
            torch.testing.assert_close(got[i], value)
    tangent = torch.func.jvp(lambda a: srt.scan(a, x), (a,), (da,))[1]
    expected = torch.func.jvp(lambda a: srt.scan(a, x.cpu()), (a.cpu(),), (da.cpu(),))[1]
    torch.testing.assert_close(tangent.cpu(), expected)
    batched = torch.vmap(lambda u: srt.sru(u, u, u, u))(x)
    torch.testing.assert_close(batched, torch.stack([srt.sru(u, u, u, u) for u in x]))


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"lengths": [37, 9]}])
def test_opcheck(device, options):
    # 37 steps fill the last row of checkpoints too: rows without steps are not written.
    lengths = None
    if "lengths" in options:
        lengths = torch.tensor(options["lengths"], device=device)
    reverse = options.get("reverse", False)
    a, x = random(2, 37, 3, device=device), random(2, 37, 3, device=device)
    h0 = random(2, 3, device=device)
    sequences = (None, lengths, None, reverse, False)
    arguments = (leaf(a), leaf(x), leaf(h0), *sequences)
    torch.library.opcheck(torch.ops.scanrnn.scan.default, arguments)
    arguments = (a, x, h0, x, h0, *sequences, [True, True, True])
    torch.library.opcheck(torch.ops.scanrnn.scan_backward.default, arguments)
    if lengths is not None:
        return
    inputs = [leaf(random(2, 37, 3, device=device)) for _ in range(4)]
    biases = [leaf(random(3, device=device)) for _ in range(2)]
    c0 = leaf(random(1, 2, 3, device=device))
    row = (_cells.KINDS["sru"], [1.0], 1, 1)
    arguments = (*inputs, *biases, c0, *sequences, *row, True)
    torch.library.opcheck(torch.ops.scanrnn.cell.default, arguments)
    detached = [t.detach() for t in (*inputs, *biases, c0)]
    checkpoints = torch.ops.scanrnn.cell.default(*detached, *sequences, *row, True)[2]
    arguments = (*detached, checkpoints, x, None, *sequences, *row, [True] * 7)
    torch.library.opcheck(torch.ops.scanrnn.cell_backward.default, arguments)


def test_g10_inputs_are_left_alone(device):
    inputs = [leaf(random(2, 500, 3, device=device)) for _ in range(2)]
    copies = [t.detach().clone() for t in inputs]
    h = srt.scan(*inputs)
    h.square().sum().backward()
    assert all(torch.equal(t, copy) for t, copy in zip(inputs, copies, strict=True))
    a, x = inputs
    h = srt.scan(a, x)
    with torch.no_grad():
        a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()
    for mode in (False, True):
        a, x = (leaf(t) for t in copies)
        h = torch.utils.checkpoint.checkpoint(srt.scan, a, x, use_reentrant=mode)
        h.sum().backward()
        b, y = (leaf(t) for t in copies)
        srt.scan(b, y).sum().backward()
        assert torch.equal(a.grad, b.grad)
        assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize("dtype", _ops.ACCUMULATION, ids=str)
def test_g11_gradients_as_on_the_cpu(device, dtype):
    torch.manual_seed(0)
    a, x, dh = (random(2, 3000, 20, device="cpu", dtype=dtype) for _ in range(3))
    a = a / (1 + a.abs())
    h0 = random(2, 20, device="cpu", dtype=dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    results = []
    for place, kind in ((device, dtype), ("cpu", wide)):
        inputs = [leaf(t.to(place, kind)) for t in (a, x, h0)]
        h = srt.scan(*inputs)
        results.append(torch.autograd.grad(h, inputs, dh.to(place, kind)))
    for got, expected in zip(*results, strict=True):
        assert got.dtype == dtype
        assert (got != 0).float().mean() > 0.9
        if dtype.itemsize == 2:  # the stored states are rounded too
            torch.testing.assert_close(got.cpu().to(wide), expected, rtol=0.05, atol=0.05)
        else:
            assert_matches(to_numpy(got), to_numpy(expected), rtol=1e-4)


def test_g11_a_failure_is_raised(cuda, run_python):
    """After an error of the device nothing may look like a result."""
    printed = run_python(
        "import os, torch, scanrnn.torch as srt\n"
        "from scanrnn.torch._ops import _core, describe\n"
        "a, x, h = arrays = torch.ones(3, 1, 300, 64, device='cuda').unbind()\n"
        "spare = torch.empty(1 << 20, dtype=torch.uint8, device='cuda')\n"
        "lend = lambda size, ordinal: (spare.data_ptr(), spare)\n"
        "a, x, h = map(describe, arrays)\n"
        "_core.scan_forward(a, x, None, h, None, allocate=lend)\n"
        "torch.cuda.synchronize()\n"
        "assert arrays[2][0, -1, 0].item() == 300\n"
        "try:\n"
        "    arrays[0].flatten()[torch.tensor([10**6], device='cuda')]\n"
        "    torch.cuda.synchronize()\n"
        "except RuntimeError: pass\n"
        "try: _core.scan_forward(a, x, None, h, None, allocate=lend)\n"
        "except RuntimeError as error: print('raised:', error, flush=True)\n"
        "os._exit(0)\n"
    )
    assert "raised:" in printed


@pytest.mark.parametrize("pieces", [2, 7, 50])
def test_w01_in_pieces(device, pieces):
    torch.manual_seed(1)
    a, x = random(2, 1000, 5, device=device), random(2, 1000, 5, device=device)
    cuts = sorted(torch.randperm(999)[: pieces - 1].add(1).tolist())
    results = []
    for bounds in ([0, 1000], [0, *cuts, 1000]):
        a_, x_ = leaf(a), leaf(x)
        outputs, state = [], None
        for i, j in itertools.pairwise(bounds):
            h, state = srt.scan(a_[:, i:j], x_[:, i:j], state, return_final=True)
            outputs.append(h)
        h = torch.cat(outputs, 1)
        results.append((h, *torch.autograd.grad(h.square().sum(), (a_, x_))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# ---- Index arrays --------------------------------------------------------------------------------


def test_w02_index_arrays_of_any_kind(device):
    a, x = random(1, 10, 3, device=device), random(1, 10, 3, device=device)
    h0 = random(4, 3, device=device)
    expected, _ = scan_loop(a, x, h0, cu_seqlens=[0, 3, 4, 4, 10])
    for dtype in (torch.int32, torch.int64):
        ends = torch.tensor([0, 3, 4, 4, 10], dtype=dtype)
        for kind in (ends.to(device), ends, ends.numpy(), ends.tolist(), tuple(ends.tolist())):
            torch.testing.assert_close(srt.scan(a, x, h0, cu_seqlens=kind), expected)
    for wrong in ([0, 3, 2, 10], [1, 10], [0, 9], [0, 11]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            srt.scan(a, x, cu_seqlens=wrong)
    with pytest.raises(ValueError, match="lengths"):
        srt.scan(a, x, lengths=[11])
    with pytest.raises(TypeError, match="lengths has dtype float32"):
        srt.scan(a, x, lengths=torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_wrong_values_on_the_device_stay_within_bounds(cuda, dtype):
    """They are not found, but nothing is read or written outside, and later calls work."""
    x = torch.ones(1, 1000, 5, device=cuda)
    for ends in ([0, 2000, 1000], [5, -7, 10**6], [0, 900, 100, 1000], [3, 3]):
        cu_seqlens = torch.tensor(ends, dtype=dtype, device=cuda)
        a = leaf(x)
        srt.scan(a, x, cu_seqlens=cu_seqlens).sum().backward()
        srt.sru(a, x, x, x, cu_seqlens=cu_seqlens).sum().backward()
    for n in (-5, 1001, 2**30):
        for side in ("left", "right"):
            lengths = torch.tensor([n], dtype=dtype, device=cuda)
            a = leaf(x)
            srt.scan(a, x, lengths=lengths, padding_side=side).sum().backward()
            srt.sru(a, x, x, x, lengths=lengths, padding_side=side).sum().backward()
    torch.cuda.synchronize()
    assert srt.scan(x, x)[0, -1, 0] == 1000


def test_w03_reset_flags_of_any_kind(device):
    a, x = random(2, 50, 3, device=device), random(2, 50, 3, device=device)
    flags = torch.rand(2, 50) < 0.2
    flags[0, 0] = True
    h0 = random(2, 3, device=device)
    expected, _ = scan_loop(a, x, h0, reset=flags)
    kinds = [flags, flags.to(torch.uint8), flags.float(), flags.to(device), flags.numpy(),
             flags.tolist(), flags.to(device).half()]  # fmt: skip
    for kind in kinds:
        torch.testing.assert_close(srt.scan(a, x, h0, reset=kind), expected)
    assert torch.equal(srt.scan(a, x, h0, reset=torch.ones_like(flags)), x)


# ---- Compilation, graphs -------------------------------------------------------------------------


def model_and_input(device):
    torch.manual_seed(0)
    return srt.SRU(16, 32, num_layers=2, device=device), random(100, 4, 16, device=device)


def test_w06_compile(device):
    layer, x = model_and_input(device)

    def step(x):
        y, h_n = layer(x)
        a = torch.sigmoid(y)
        return srt.scan(a, y, axis=0).square().mean() + h_n.sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for T in (100, 77, 131):
        part = leaf(torch.cat([x, x])[:T])
        expected = torch.autograd.grad(step(part), [part, *layer.parameters()])
        got = torch.autograd.grad(compiled(part), [part, *layer.parameters()])
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_m03_compile_with_graphs(cuda):
    pytest.importorskip("triton")
    layer, x = model_and_input(cuda)

    def loss(x):
        return layer(x)[0].square().mean()

    compiled = torch.compile(loss, fullgraph=True, mode="reduce-overhead")
    for i in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        y = leaf(x + i)
        got = [g.clone() for g in torch.autograd.grad(compiled(y), [y, *layer.parameters()])]
        expected = torch.autograd.grad(loss(y), [y, *layer.parameters()])
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def graph_cases(device):
    lengths = torch.tensor([3000, 17], device=device)
    ends = torch.tensor([0, 500, 500, 3000], device=device)
    reset = torch.rand(2, 3000, device=device) < 0.01
    layer = srt.SRU(40, 40, num_layers=2, bidirectional=True, batch_first=True, device=device)
    return {
        "scan": lambda a, x: srt.scan(a, x),
        "reverse": lambda a, x: srt.scan(a, x, reverse=True),
        "lengths": lambda a, x: srt.scan(a, x, lengths=lengths),
        "packed": lambda a, x: srt.scan(a[:1], x[:1], cu_seqlens=ends),
        "reset": lambda a, x: srt.scan(a, x, reset=reset),
        "broadcast": lambda a, x: srt.scan(a[:1, :1], x),
        "sru": lambda a, x: srt.sru(x, a, x, x),
        "layer": lambda a, x: layer(x)[0] * a.mean(),
    }


@pytest.mark.parametrize("name", graph_cases("meta"))
def test_m03_graphs(cuda, name):
    """Capture forward and backward, replay with new data: the bits of eager calls."""
    torch.manual_seed(0)
    f = graph_cases(cuda)[name]
    a, x = leaf(random(2, 3000, 40, device=cuda)), leaf(random(2, 3000, 40, device=cuda))
    seed = random(*f(a, x).shape, device=cuda)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(f(a, x), (a, x), seed, allow_unused=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h = f(a, x)
        gradients = torch.autograd.grad(h, (a, x), seed, allow_unused=True)
    for _ in range(10):
        with torch.no_grad():
            a.uniform_(-1, 1)
            x.uniform_(-1, 1)
        graph.replay()
        again = f(a, x)
        expected = (again, *torch.autograd.grad(again, (a, x), seed, allow_unused=True))
        for one, other in zip((h, *gradients), expected, strict=True):
            if other is not None:
                if name == "layer":  # cuBLAS may choose another algorithm
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
                else:
                    assert torch.equal(one, other)


def test_m03_graphed_callables(cuda):
    layer, x = model_and_input(cuda)
    graphed = torch.cuda.make_graphed_callables(layer, (leaf(x),))
    for i in range(3):
        y = leaf(x * (i + 1))
        got = torch.autograd.grad(graphed(y)[0].sum(), [y, *layer.parameters()])
        assert all(g.isfinite().all() for g in got)


def test_m03_index_on_the_cpu_during_capture(cuda):
    x = torch.ones(1, 100, 3, device=cuda)
    srt.scan(x, x, cu_seqlens=[0, 100])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="cu_seqlens is on the CPU"), torch.cuda.graph(graph):
        srt.scan(x, x, cu_seqlens=[0, 100])
    assert srt.scan(x, x)[0, -1, 0] == 100


# ---- Streams, devices, threads -------------------------------------------------------------------


def test_i07_work_is_ordered_by_the_current_stream(cuda):
    """The input is written late, and its memory is reused at once."""
    torch.manual_seed(0)
    shape = (2, 3000, 40)
    a, source = random(*shape, device=cuda), random(*shape, device=cuda)
    expected = srt.scan(a, source)
    (gradient,) = torch.autograd.grad(srt.scan(leaf(a), w := leaf(source)).sum(), w)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(200):
            x = torch.full(shape, float("nan"), device=cuda)
            torch.cuda._sleep(200_000 if i % 10 == 0 else 1000)
            x.copy_(source)
            x.requires_grad_()
            h = srt.scan(a, x)
            (dx,) = torch.autograd.grad(h.sum(), x)
            del x
            torch.full(shape, float("nan"), device=cuda)
            if i % 10 == 0:
                assert torch.equal(h, expected)
                assert torch.equal(dx, gradient)


def test_m04_threads_with_streams(cuda):
    torch.manual_seed(0)
    problems = []
    for i in range(8):
        shape = (1 + i % 3, 1000 + 300 * i, 8 + 5 * i)
        dtype = (torch.float32, torch.bfloat16, torch.float64)[i % 3]
        a, x = random(*shape, device=cuda, dtype=dtype), random(*shape, device=cuda, dtype=dtype)
        problems.append((a, x, srt.scan(a, x)))
    torch.cuda.synchronize()
    failed = []

    def work(a, x, expected):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                if not torch.equal(srt.scan(a, x), expected):
                    failed.append(expected.shape)

    threads = [threading.Thread(target=work, args=problem) for problem in problems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.fixture
def two(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    return "cuda:0", "cuda:1"


def test_m01_the_other_device(two):
    torch.manual_seed(0)
    inputs = [random(2, 3000, 40, device="cpu") for _ in range(2)]
    expected = srt.scan(*inputs)
    before = torch.cuda.memory_allocated(0)
    for device in two * 50:
        a, x = (leaf(t.to(device)) for t in inputs)
        h = srt.scan(a, x)
        assert h.device == torch.device(device)
        (dx,) = torch.autograd.grad(h.sum(), x)
        assert dx.device == h.device
        torch.testing.assert_close(h.cpu(), expected, rtol=1e-5, atol=1e-5)
        assert torch.cuda.current_device() == 0
    del a, x, h, dx
    assert torch.cuda.memory_allocated(0) <= before
    layer = srt.SRU(40, 8, batch_first=True, device=two[1])
    y, _ = layer(inputs[1].to(two[1]))
    y.sum().backward()
    assert layer.weight_ih_l0.grad.device == torch.device(two[1])

    def work(device, results):
        a, x = (t.to(device) for t in inputs)
        results.extend(srt.scan(a, x).cpu() for _ in range(50))

    outcomes = [[], []]
    threads = [threading.Thread(target=work, args=p) for p in zip(two, outcomes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in outcomes:
        assert len(results) == 50
        assert all(torch.equal(h, results[0]) for h in results)


def test_m02_devices_must_agree(cuda):
    x = torch.ones(2, 5, 3, device=cuda)
    cpu = torch.ones(2, 5, 3)
    with pytest.raises(ValueError, match="a is on device cpu, expected cuda:0"):
        srt.scan(cpu, x)
    with pytest.raises(ValueError, match="a is on device cuda:0, expected cpu"):
        srt.scan(x, cpu)
    with pytest.raises(ValueError, match="h0 is on device cpu, expected cuda:0"):
        srt.scan(x, x, torch.ones(2, 3))
    with pytest.raises(ValueError, match="r is on device cpu, expected cuda:0"):
        srt.sru(x, x, cpu)
    with pytest.raises(ValueError, match="lengths is on device cuda:0, expected cpu"):
        srt.scan(cpu, cpu, lengths=torch.tensor([5, 5], device=cuda))
    with pytest.raises(ValueError, match="meta"):
        srt.scan(x, x, torch.ones(2, 3, device="meta"))
    pinned = torch.ones(2, 5, 3).pin_memory()
    assert srt.scan(pinned, pinned).device.type == "cpu"
    if torch.cuda.device_count() > 1:
        other = x.to("cuda:1")
        with pytest.raises(ValueError, match="a is on device cuda:1, expected cuda:0"):
            srt.scan(other, x)
        with pytest.raises(ValueError, match="lengths is on device cuda:1, expected cuda:0"):
            srt.scan(x, x, lengths=torch.tensor([5, 5], device="cuda:1"))


def test_b04_architectures(cuda):
    """The build says what it is for, and a device that is not among it is told apart."""
    info = scanrnn._core.build_info()
    assert info["cuda"]
    assert info["cuda_architectures"]
    assert scanrnn._core.cuda_unavailable_reason() == ""


# ---- What a call costs ---------------------------------------------------------------------------


@contextlib.contextmanager
def no_waiting():
    """Any wait for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_waits_for_the_device(cuda):
    a, x = leaf(random(2, 3000, 40, device=cuda)), leaf(random(2, 3000, 40, device=cuda))
    lengths = torch.tensor([3000, 5], device=cuda)
    flags = torch.rand(2, 3000) < 0.01
    on_device = flags.to(cuda)
    layer = srt.SRU(40, 8, 2, bidirectional=True, dropout=0.5, variational=True, device=cuda)
    packed = pack_padded_sequence(x.detach(), [2, 1, 2] + [1] * 2997, enforce_sorted=False)
    hx = random(4, 3000, 8, device=cuda)
    with no_waiting():
        for options in (
            {},
            {"lengths": lengths},
            {"lengths": [3000, 5]},
            {"reset": on_device},
            {"reset": flags},
        ):
            torch.autograd.grad(srt.scan(a, x, **options).sum(), (a, x))
            torch.autograd.grad(srt.sru(x, a, x, x, **options).sum(), (a, x))
        torch.autograd.grad(srt.scan(a[:1], x[:1], cu_seqlens=[0, 17, 3000]).sum(), (a, x))
        (dx,) = torch.autograd.grad(srt.scan(a, x).sum(), x, create_graph=True)
        torch.autograd.grad(dx.sum(), a)
        layer(x)[0].sum().backward()
        layer(packed, hx)[0].data.sum().backward()


def kernels_of(f):
    """Names of what the device runs in a call."""
    f()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        f()
        torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA
    names = [e.name for e in profile.events() if e.device_type == kind]
    if not names:
        pytest.skip("PyTorch's profiler sees no kernels on this machine")
    return names


def is_ours(name):
    """PyTorch fills and copies by kernels; a memset can only be the workspace's."""
    return "scanrnn" in name or name.startswith("Memset")


@pytest.mark.parametrize(
    "shape", [(64, 1000, 100), (4096, 16, 64), (32, 128, 512), (1, 65536, 512)]
)
def test_p01_launches_of_short_and_small_work(cuda, shape):
    """Three launches at most, whatever kernel is chosen (`gpu.py choice` has the times)."""
    a, x = (random(*shape, device=cuda) for _ in range(2))
    names = kernels_of(lambda: srt.scan(a, x))
    assert len(names) <= 3, names
    for name, cell in cells().items():
        if name == "lru":  # operators around a scan, which is the one above
            continue
        full = [random(*shape, device=cuda) for _ in cell.full]
        vectors = [random(shape[-1], device=cuda, low=0.1) for _ in cell.vectors]
        names = kernels_of(lambda f=cell.function, args=(*full, *vectors): f(*args))
        assert len(names) <= 3, (name, names)


@pytest.mark.parametrize("layout", ["btd", "bdt", "tbd", "strided"])
def test_no_passes_beside_the_scan(cuda, layout):
    """A call, forward and backward, runs the library's kernels and nothing else."""
    shape = {"bdt": (4, 64, 5000), "tbd": (5000, 4, 64), "strided": (4, 5000, 130)}
    axis = {"bdt": -1, "tbd": 0}.get(layout, 1)
    a, x = (random(*shape.get(layout, (4, 5000, 64)), device=cuda) for _ in range(2))
    if layout == "strided":
        a, x = a[..., 1:65], x[..., :128:2]
    h0 = leaf(random(*srt.scan(a, x, axis=axis, return_final=True)[1].shape, device=cuda))
    dh = torch.ones((), device=cuda).expand(x.shape)  # as h.sum().backward() gives it
    a, x = leaf(a), leaf(x)

    def both():
        h, final = srt.scan(a, x, h0, axis=axis, return_final=True)
        torch.autograd.grad([h, final], [a, x, h0], [dh, h0])

    names = kernels_of(both)
    assert all(is_ours(name) for name in names), names
    assert len(names) <= 4, names  # a launch each; one more may clear the workspace or reduce

    def forward():
        srt.scan(a.detach(), x.detach(), axis=axis)

    assert len(kernels_of(forward)) <= 2


def test_no_passes_beside_the_sru(cuda):
    u = leaf(random(4, 5000, 3 * 64, device=cuda))
    skip = leaf(random(4, 5000, 64, device=cuda))
    bias = leaf(random(2 * 64, device=cuda))
    dh = random(4, 5000, 64, device=cuda)

    def both():
        sequences = (None, None, None, False, False)
        row = (_cells.KINDS["sru"], [0.0], 3, 1)
        h, _ = _cells.cell(u, None, None, skip, bias, None, None, *sequences, *row)
        torch.autograd.grad(h, [u, skip, bias], dh)

    names = kernels_of(both)
    assert all(is_ours(name) for name in names), names
    # Forward and backward clear the workspace and run; then a sum for each of the two biases.
    assert len(names) <= 6, names


def peak(f):
    """Bytes that a call takes at most beside what was there before, and its result."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = f()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result


@pytest.mark.parametrize("shape", [(1, 1 << 20, 256), (8, 4096, 1024)])
def test_p05_memory(cuda, shape):
    a, x = random(*shape, device=cuda, low=0.9), random(*shape, device=cuda)
    one = x.numel() * x.element_size()
    with torch.inference_mode():
        extra, _ = peak(lambda: srt.scan(a, x))
    assert extra <= 1.01 * one
    a, x = leaf(a), leaf(x)
    dh = torch.ones((), device=cuda).expand(shape)

    def both():
        h = srt.scan(a, x)
        return torch.autograd.grad(h, (a, x), dh)

    extra, _ = peak(both)
    assert extra <= 1.05 * 3 * one  # h, da and dx


def test_p05_workspace_is_given_back(cuda):
    x = random(1, 100_000, 16, device=cuda)
    h = srt.scan(x, x)
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        h = srt.scan(x, x)
    assert torch.cuda.memory_allocated() == before
    assert h.shape == x.shape


def test_numpy_results_agree(device):
    """What the device computes is what the CPU backend computes, to rounding."""
    torch.manual_seed(0)
    a, x = random(3, 5000, 11, device="cpu"), random(3, 5000, 11, device="cpu")
    expected = scanrnn.scan(a.numpy(), x.numpy())
    got = srt.scan(a.to(device), x.to(device))
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-4, atol=1e-5)
