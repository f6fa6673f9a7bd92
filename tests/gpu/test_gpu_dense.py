"""Dense LSTM, GRU and RNN on the device, against cuDNN's: values, gradients, reports, graphs."""

# ruff: noqa: E402
import copy
import sys

import pytest

torch = pytest.importorskip("torch")

import scanrnn.torch as srt
from dense_helpers import (
    KINDS,
    PROCESSES,
    assert_same,
    assert_steps,
    distance,
    network,
    outcome,
)
from torch import nn
from torch.nn.utils.rnn import pack_sequence

# cuDNN's own float32 kernels are off float64 by 3e-7 to 1.5e-5, those for few units most.
TOLERANCE = {torch.float64: (3e-12, 1e-11), torch.float32: (2e-5, 1e-4)}


@pytest.fixture(autouse=True)
def _float32_is_float32():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def ours(reference, **options):
    options = {"parallel": True} | options
    return getattr(srt, type(reference).__name__).from_torch(reference, **options)


def sequences(reference, T, B, device, *, requires_grad=True):
    torch.manual_seed(3)
    dtype = reference.weight_ih_l0.dtype
    shape = (B, T) if reference.batch_first else (T, B)
    x = torch.randn(*shape, reference.input_size, dtype=dtype, device=device)
    return x.requires_grad_(requires_grad)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [True, False])
def test_g02_values_and_gradients_are_cudnns(device, kind, dtype, recompute):
    cls, options = KINDS[kind]
    reference = network(cls, 5, 16, dtype=dtype, **options).to(device)
    module = ours(reference, recompute=recompute)
    x = sequences(reference, 1003, 3, device)
    got, want = (outcome(m, x, inputs=(x,)) for m in (module, reference))
    assert_same(got, want, *TOLERANCE[dtype])
    assert module.last_report.status == "converged"


def test_w02_packed_sequences(device):
    reference = network("LSTM", num_layers=2, bidirectional=True).to(device)
    module = ours(reference, width=20)
    torch.manual_seed(5)
    pieces = [
        torch.randn(n, 5, dtype=torch.float64, device=device, requires_grad=True)
        for n in (50, 200, 17, 1, 125, 200, 40)
    ]

    def run(m):
        return outcome(m, pack_sequence(pieces, enforce_sorted=False), inputs=pieces)

    assert_same(run(module), run(reference), *TOLERANCE[torch.float64])
    assert module.last_report.status == "converged"


@pytest.mark.parametrize("T", [65535, 65536, 100003])
def test_s01_more_steps_than_cudnn_takes(device, T):
    reference = network("LSTM", 8, 32, dtype=torch.float32).to(device)
    x = sequences(reference, T, 1, device, requires_grad=False)
    relaxed = ours(reference)
    serial = ours(reference, parallel=False)
    got, want = (outcome(m, x) for m in (relaxed, serial))
    assert relaxed.last_report.status == "converged"
    assert serial.last_report.status == "serial"
    assert_same(got, want, 2e-5, 1e-3)
    h = relaxed(x.half().float())[1][0]
    assert h.shape == (1, 1, 32)


def test_deep_modules_share_weights_without_a_notice(device, recwarn):
    reference = network("GRU", num_layers=2, bidirectional=True, dtype=torch.float32).to(device)
    module = ours(reference)
    x = sequences(reference, 500, 2, device)
    module(x)[0].sum().backward()
    ours(reference, parallel=False)(x)
    assert not [w for w in recwarn if "contiguous chunk" in str(w.message)]


def test_n11_fallback(device):
    reference = network("LSTM", 5, 16, gate=5).to(device)
    module = ours(reference, width=50, burn_in=16)
    x = sequences(reference, 2000, 2, device)
    got, want = (outcome(m, x, inputs=(x,)) for m in (module, reference))
    report = module.last_report
    assert report.status == "fell_back"
    assert report.first_unconverged_step >= 50
    assert_same(got, want, 1e-9, 1e-8)


def test_the_serial_case_has_cudnns_bits(device):
    reference = network("LSTM", num_layers=2, bidirectional=True, dtype=torch.float32).to(device)
    module = ours(reference, parallel=None)
    x = sequences(reference, 40, 2, device)
    for _ in range(3):
        got, want = (outcome(m, x, inputs=(x,)) for m in (module, reference))
        assert all(torch.equal(a, b) for k in (0, 1) for a, b in zip(got[k], want[k]))  # noqa: B905
        assert module.last_report.status == "serial"


def test_g05_backward_in_eval_mode(device):
    # cuDNN refuses that in torch.nn.
    reference = network("LSTM", dtype=torch.float32).to(device)
    x = sequences(reference, 600, 2, device)
    want = outcome(reference, x, inputs=(x,))
    reference.eval()
    for parallel in (True, False, None):
        module = ours(reference, parallel=parallel)
        assert_same(outcome(module, x, inputs=(x,)), want, *TOLERANCE[torch.float32])


def test_m06_calls_repeat_their_bits(device):
    reference = network("LSTM", 64, 256, dtype=torch.float32).to(device)
    module = ours(reference, parallel=None)
    x = sequences(reference, 8192, 2, device)
    first = outcome(module, x, inputs=(x,))
    assert module.last_report.status == "converged" or device == "cpu"
    for _ in range(3):
        again = outcome(module, x, inputs=(x,))
        assert all(torch.equal(a, b) for a, b in zip(first[0], again[0], strict=True))
        for a, b in zip(first[1], again[1], strict=True):
            assert distance(a, b) < 1e-5  # cuDNN itself need not repeat its bits


def test_m06_processes(cuda, run_python):
    code = PROCESSES.format(path=sys.path, device=cuda, gradients=False, start="spawn")
    assert run_python(code) == run_python(code)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cls", ["LSTM", "GRU", "RNN"])
def test_w05_steps_in_half_precision(device, cls, dtype):
    reference = network(cls, 5, 16, num_layers=2, batch_first=True).to(device, dtype)
    module = ours(reference)
    x = sequences(reference, 200, 3, device, requires_grad=False)
    assert assert_steps(module, reference, x, dtype).status == "converged"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cls", ["LSTM", "GRU", "RNN"])
def test_w05_steps_under_autocast(cuda, cls, dtype):
    reference = network(cls, 5, 16, num_layers=2, batch_first=True, dtype=torch.float32).to(cuda)
    module = ours(reference)
    x = sequences(reference, 200, 3, cuda, requires_grad=False)
    with torch.autocast(cuda, dtype):
        report = assert_steps(module, reference, x, dtype)
    assert report.status == "serial"


def test_long_training_is_torchs(device):
    # The same losses, step by step, as with torch.nn's layer.
    def losses(layer, out):
        optimizer = torch.optim.Adam([*layer.parameters(), *out.parameters()], 1e-3)
        generator = torch.Generator(device).manual_seed(0)
        values = []
        for _ in range(8):
            x = torch.rand(4096, 2, 2, generator=generator, device=device)
            loss = (out(layer(x)[0][-1]) - x.sum((0, 2))[:, None] / 4096).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    reference = network("LSTM", 2, 64, dtype=torch.float32).to(device)
    out = nn.Linear(64, 1).to(device)
    module = ours(copy.deepcopy(reference))
    want, got = losses(reference, copy.deepcopy(out)), losses(module, out)
    assert got == pytest.approx(want, rel=1e-3, abs=1e-6)
    assert module.last_report.status == "converged"


def test_m03_cuda_graphs_record_a_fixed_number_of_passes(cuda):
    reference = network("LSTM", 16, 64, dtype=torch.float32).to(cuda)
    module = ours(reference, passes=2, burn_in=64, width=128)
    x = torch.randn(4096, 1, 16, device=cuda, requires_grad=True)
    gy = torch.randn(4096, 1, 64, device=cuda)

    def step():
        (gx,) = torch.autograd.grad(module(x)[0], x, gy)
        return module(x)[0].detach(), gx

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, gx = step()
    for _ in range(3):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        want = reference(x)[0]
        (want_gx,) = torch.autograd.grad(want, x, gy)
        assert distance(y, want) < 2e-5
        assert distance(gx, want_gx) < 1e-4
    assert module.last_report.status == "converged"


def test_m03_adaptive_passes_refuse_to_be_recorded(cuda):
    module = ours(network("LSTM", 16, 64, dtype=torch.float32).to(cuda), burn_in=64)
    x = torch.randn(4096, 1, 16, device=cuda)
    module(x)
    with (
        pytest.raises(RuntimeError, match="a CUDA graph is being captured"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        module(x)
    torch.cuda.synchronize()


def test_few_waits_for_the_device(cuda):
    reference = network("LSTM", 16, 64, dtype=torch.float32, num_layers=2).to(cuda)
    module = ours(reference, passes=1, burn_in=64)
    x = torch.randn(4096, 2, 16, device=cuda, requires_grad=True)
    module(x)[0].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        module(x)[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_blocks_of_rows_give_the_same(device, monkeypatch):
    from scanrnn.torch._relax.forward import Call

    reference = network("LSTM", num_layers=2).to(device)
    x = sequences(reference, 2000, 3, device)
    want = outcome(ours(reference), x, inputs=(x,))

    def blocks(self, rows, steps, x):
        return [slice(i, min(i + 7, rows)) for i in range(0, rows, 7)]

    monkeypatch.setattr(Call, "blocks", blocks)
    assert_same(outcome(ours(reference), x, inputs=(x,)), want, *TOLERANCE[torch.float64])
