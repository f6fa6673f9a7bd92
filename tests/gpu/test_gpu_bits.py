"""The same bits: run after run, in any batch, beside other work, and in every process."""

# ruff: noqa: E402
import sys

import pytest

torch = pytest.importorskip("torch")

import scanrnn.torch as srt
from gpu_helpers import LAYOUTS, TORCH_DTYPES, leaf, scan_and_gradients
from scanrnn.torch._ops import ACCUMULATION


def random(device, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator(device).manual_seed(seed)
    wide = torch.complex64 if dtype.is_complex else torch.float32
    return torch.randn(shape, dtype=wide, device=device, generator=generator).to(dtype)


def scan_case(device, shape, layout, dtype=torch.float32, broadcast=False):
    """A function that runs scan forward and backward and returns all results."""
    B, _, D = shape
    arrange = LAYOUTS[layout]
    a = random(device, *((1, 1, D) if broadcast else shape), dtype=dtype, seed=1)
    a = a / (1 + a.abs())
    x, dh = (arrange(random(device, *shape, dtype=dtype, seed=s)) for s in (2, 3))
    h0 = random(device, B, D, dtype=dtype, seed=4)
    return lambda: scan_and_gradients(a if broadcast else arrange(a), x, h0, dh, None)


def sru_case(device, shape):
    B, T, D = shape
    u = random(device, B, T, 3 * D, seed=5)
    bias = random(device, 2, D, seed=6)
    dh = random(device, B, T, D, seed=7)

    def run():
        inputs = [leaf(v) for v in (*u.chunk(3, -1), u[..., :D], *bias)]
        h = srt.sru(*inputs, activation="tanh")
        return (h.detach(), *torch.autograd.grad(h, inputs, dh))

    return run


CASES = {
    "btd": lambda d: scan_case(d, (8, 4097, 512), "btd"),
    "whole tiles": lambda d: scan_case(d, (8, 4096, 512), "btd"),
    "bdt": lambda d: scan_case(d, (8, 4097, 512), "bdt"),
    "whole columns": lambda d: scan_case(d, (2, 65_536, 64), "bdt"),
    "tbd": lambda d: scan_case(d, (8, 4097, 512), "tbd"),
    "strided": lambda d: scan_case(d, (4, 3001, 96), "every-third-channel"),
    "thin": lambda d: scan_case(d, (1, 300_001, 2), "btd"),
    "whole tiles, half": lambda d: scan_case(d, (8, 4096, 512), "btd", torch.bfloat16),
    "half": lambda d: scan_case(d, (4, 4097, 256), "btd", torch.bfloat16),
    "complex": lambda d: scan_case(d, (4, 4097, 64), "bdt", torch.complex64),
    "broadcast gate": lambda d: scan_case(d, (8, 4097, 512), "btd", broadcast=True),
    "broadcast gate bdt": lambda d: scan_case(d, (8, 4097, 512), "bdt", broadcast=True),
    "sru": lambda d: sru_case(d, (8, 4097, 128)),
}


def assert_equal(results, expected):
    for i, (got, value) in enumerate(zip(results, expected, strict=True)):
        if value is not None:
            assert torch.equal(got, value), f"result {i} has other bits"


@pytest.mark.parametrize("name", CASES)
def test_m06_a_hundred_runs(device, name):
    run = CASES[name](device)
    expected = run()
    for _ in range(100 if device == "cuda" else 2):
        assert_equal(run(), expected)


@pytest.mark.parametrize("name", CASES)
def test_m06_beside_work_that_disturbs_the_schedule(cuda, name):
    """Blocks start late and in another order while other kernels hold multiprocessors."""
    run = CASES[name](cuda)
    expected = run()
    torch.cuda.synchronize()
    side, matrix = torch.cuda.Stream(), random(cuda, 2048, 2048)
    small = random(cuda, 1000)
    for i in range(20):
        with torch.cuda.stream(side):
            for _ in range(5):
                matrix @ matrix if i % 2 else small.sin()
            torch.cuda._sleep(10_000 * i)
        assert_equal(run(), expected)


def test_m06_many_streams_at_once(cuda):
    runs = [CASES[name](cuda) for name in ("btd", "bdt", "thin", "half", "broadcast gate", "sru")]
    expected = [run() for run in runs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(len(runs))]
    for _ in range(20):
        results = []
        for stream, run in zip(streams, runs, strict=True):
            with torch.cuda.stream(stream):
                results.append(run())
        torch.cuda.synchronize()
        for got, value in zip(results, expected, strict=True):
            assert_equal(got, value)


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
@pytest.mark.parametrize("layout", ["btd", "bdt", "tbd", "channels-from-1"])
@pytest.mark.parametrize(("T", "D"), [(1, 7), (300, 3), (2500, 40), (17, 1), (20_000, 1)])
def test_a_row_alone_has_the_bits_it_has_in_a_batch(device, T, D, layout, dtype):
    B = 5
    a, x, dh = (
        LAYOUTS[layout](random(device, B, T, D, dtype=dtype, seed=i) * 0.7) for i in range(3)
    )
    h0 = random(device, B, D, dtype=dtype, seed=9)
    whole = scan_and_gradients(a, x, h0, dh, None)
    for part in (slice(0, 1), slice(3, 4), slice(2, 5)):
        some = scan_and_gradients(a[part], x[part], h0[part], dh[part], None)
        assert_equal(some, [v[part] for v in whole])


def check_against_resets_that_never_come(device, shape, layout, dtype, reverse):
    """With them no call takes a kernel that tests nothing."""
    B, T, D = shape
    a, x, dh = (
        LAYOUTS[layout](random(device, *shape, dtype=dtype, seed=i) * 0.4) for i in range(3)
    )
    h0, dfinal = (random(device, B, D, dtype=dtype, seed=i) for i in (3, 4))
    wide = dfinal.to(ACCUMULATION[dtype])
    never = torch.zeros(B, T, dtype=torch.bool, device=device)
    whole = scan_and_gradients(a, x, h0, dh, wide, reverse=reverse)
    others = scan_and_gradients(a, x, h0, dh, wide, reverse=reverse, reset=never)
    assert_equal(whole, others)


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_whole_tiles_have_the_bits_that_others_have(device, reverse, dtype):
    """Calls without resets whose tiles are all whole have a kernel of their own, and another one,
    of clusters, where there are many tiles and eight or a multiple in every sequence."""
    shapes = (
        *((2, 4096, 128), (1, 256 * 66, 64), (3, 256, 64), (8, 2048, 256), (1, 256 * 72, 256)),
        *((3, 512 * 5, 32), (1, 4096 * 33, 32)),  # half a line in the types of 16 bits
    )
    for B, T, D in shapes:
        check_against_resets_that_never_come(device, (B, T, D), "btd", dtype, reverse)


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_whole_columns_have_the_bits_that_others_have(device, reverse, dtype):
    """The same where steps lie side by side: several channels a warp, several sequences a block, a
    block a sequence, one and more levels of the tree, with and without blocks that stay."""
    shapes = ((2, 256, 64), (2, 2048, 40), (3, 3072, 5), (1, 4096, 24), (2, 8192, 8))
    for B, T, D in (*shapes, (2, 16_384, 6), (1, 1 << 17, 33), (1, 1 << 20, 1)):
        check_against_resets_that_never_come(device, (B, T, D), "bdt", dtype, reverse)


@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize("reverse", [False, True])
def test_arrays_that_start_anywhere_have_the_bits_of_others(device, reverse, layout):
    """Calls without resets have kernels of their own there."""
    for B, T, D in ((2, 777, 37), (8, 2001, 45), (1, 70_001, 33), (2, 2000, 40), (1, 1025, 3)):
        a, x, dh = (LAYOUTS[layout](random(device, B, T, D, seed=i) * 0.4) for i in range(3))
        h0, dfinal = (random(device, B, D, seed=i) for i in (3, 4))
        never = torch.zeros(B, T, dtype=torch.bool, device=device)
        these = scan_and_gradients(a, x, h0, dh, dfinal, reverse=reverse)
        others = scan_and_gradients(a, x, h0, dh, dfinal, reverse=reverse, reset=never)
        assert_equal(these, others)


def test_a_sequence_has_the_same_bits_packed_and_alone(device):
    """Where a sequence starts in a pack makes no difference."""
    T, D = 3000, 24
    a, x, dh = (random(device, 1, T, D, seed=i) * 0.7 for i in range(3))
    parts = {}
    for ends in ([0, 100, 2100, 3000], [0, 1, 100, 2100, 2101, 3000]):
        cu_seqlens = torch.tensor(ends, device=device)
        h, _, da, dx, _ = scan_and_gradients(a, x, None, dh, None, cu_seqlens=cu_seqlens)
        parts[len(ends)] = [v[:, 100:2100] for v in (h, da, dx)]
    for one, other in zip(*parts.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


SHORT = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": lambda B, T: torch.arange(B) * T // max(B - 1, 1)},
    "left": {"lengths": lambda B, T: torch.arange(B) * T // B, "padding_side": "left"},
    "reset": {"reset": lambda B, T: torch.rand(B, T) < 0.1},
}


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize("name", SHORT)
def test_one_thread_a_channel_has_the_bits_of_the_tree(cuda, monkeypatch, name, layout, dtype):
    """Which kernel a short sequence gets depends on the size of the batch: results must not."""
    torch.manual_seed(0)
    shapes = ((9, 5), (20, 300), (33, 40), (57, 16), (64, 3), (64, 64), (100, 2), (64, 1))
    for T, D in (*shapes, (130, 16), (256, 20), (300, 40)):  # several bands of few leaves
        B = 3
        options = {k: v(B, T).to(cuda) if callable(v) else v for k, v in SHORT[name].items()}
        a, x, dh = (
            LAYOUTS[layout](random(cuda, B, T, D, dtype=dtype, seed=i) * 0.4) for i in range(3)
        )
        h0, dfinal = (random(cuda, B, D, dtype=dtype, seed=i) for i in (3, 4))
        a = a / (1 + a.abs())  # constant gates above 1 would overflow
        # A gate for every step, or one for all: then its gradient is a sum.
        for gate in (a, a[:, :1]):
            results = {}
            for kernel in ("ordered", "columns" if layout == "bdt" or D == 1 else "rows"):
                monkeypatch.setenv("SCANRNN_CUDA_KERNEL", kernel)
                wide = dfinal.to(ACCUMULATION[dtype])
                results[kernel] = scan_and_gradients(gate, x, h0, dh, wide, **options)
            monkeypatch.delenv("SCANRNN_CUDA_KERNEL")
            first, second = results.values()
            assert_equal(first, second)


@pytest.mark.parametrize("layout", ["btd", "bdt"])
@pytest.mark.parametrize(
    ("T", "D"),
    [(12, 64), (16, 16), (24, 64), (32, 16), (33, 16), (40, 64), (64, 16), (64, 100), (128, 16)],
)
def test_a_short_row_alone_has_the_bits_it_has_among_thousands(device, T, D, layout):
    B = 65536 // D
    a, x, dh = (LAYOUTS[layout](random(device, B, T, D, seed=i) * 0.7) for i in range(3))
    whole = scan_and_gradients(a, x, None, dh, None)
    for part in (slice(0, 1), slice(B // 2, B // 2 + 40)):
        some = scan_and_gradients(a[part], x[part], None, dh[part], None)
        assert_equal(some[:4], [v[part] for v in whole[:4]])


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
@pytest.mark.parametrize("T", [30, 64, 100])
def test_channels_alone_have_the_bits_they_have_among_thousands(device, T, dtype):
    """Blocks take more of them where threads are left over and there are few sequences."""
    B, D = 1, 20_000
    a, x, dh = (random(device, B, T, D, dtype=dtype, seed=i) * 0.4 for i in range(3))
    for gate in (a, a[:, :1]):  # the gradient of the latter is a sum
        whole = scan_and_gradients(gate, x, None, dh, None)
        some = slice(128, 128 + 100)
        part = scan_and_gradients(*(v[..., some] for v in (gate, x)), None, dh[..., some], None)
        for i in (0, 2, 3):
            assert_equal(part[i : i + 1], [whole[i][..., some]])


def test_m06_in_other_processes(cuda, run_python):
    code = (
        "import sys, hashlib, torch\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from test_gpu_bits import CASES\n"
        "digest = hashlib.sha256()\n"
        "for name in ('btd', 'bdt', 'broadcast gate', 'sru'):\n"
        "    for t in CASES[name]('cuda')():\n"
        "        digest.update(t.cpu().numpy().tobytes())\n"
        "print(digest.hexdigest())\n"
    )
    assert run_python(code) == run_python(code)


def test_m06_with_pytorchs_deterministic_mode(device):
    run = CASES["broadcast gate"](device)
    expected = run()
    torch.use_deterministic_algorithms(True)
    try:
        assert_equal(run(), expected)
    finally:
        torch.use_deterministic_algorithms(False)
