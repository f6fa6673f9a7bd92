"""scanrnn.torch under torch.compile, torch.export and the operator checks of PyTorch."""

import io

import pytest
import torch
from scanrnn.torch import SRU, scan, sru
from torch import nn
from torch_helpers import OPTIONS, as_tensors, assert_gradients_match, gradients, leaf, size_of

OPS = torch.ops.scanrnn
NO_SEQUENCES = (None, None, None, False, False)


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def sequences(options):
    """The operators' arguments for options of the functions."""
    options = as_tensors(options)
    return (
        *(options.get(name) for name in ("cu_seqlens", "lengths", "reset")),
        options.get("reverse", False),
        options.get("padding_side") == "left",
    )


# ---- W06: the operators --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "packed-reverse-reset", "left-reset"])
def test_w06_opcheck_of_scan(name):
    B, T, N = size_of(OPTIONS[name])
    x, h0 = leaf(B, T, 3), leaf(N, 3)
    for a in (leaf(B, T, 3, unit=True), leaf(1, 1, 3, unit=True)):
        options = sequences(OPTIONS[name])
        torch.library.opcheck(OPS.scan.default, (a, x, h0, *options))
        args = (a, x, h0, leaf(B, T, 3), leaf(N, 3), *options)
        torch.library.opcheck(OPS.scan_backward.default, (*args, [True, True, True]))
        torch.library.opcheck(OPS.scan_backward.default, (*args, [False, True, False]))


def test_w06_opcheck_of_scan_with_batch_axes_and_strides():
    x = torch.randn(3, 5, 2, 4).permute(2, 0, 1, 3).requires_grad_()
    a = leaf(2, 1, 5, 1, dtype=torch.float32, unit=True)
    torch.library.opcheck(OPS.scan.default, (a, x, None, *NO_SEQUENCES))
    args = (a, x, None, x, None, *NO_SEQUENCES, [True, True, True])
    torch.library.opcheck(OPS.scan_backward.default, args)


# ---- W06: torch.compile --------------------------------------------------------------------------

DYNAMIC = {
    "scan": (
        lambda a, x, h0: scan(torch.sigmoid(a), x, h0, return_final=True),
        [(2, "T", 3), (2, "T", 3), (2, 3)],
    ),
    "scan of broadcast gates over the last axis": (
        lambda a, x: scan(torch.sigmoid(a), x, axis=-1, return_final=True),
        [(3, 1), (2, 3, "T")],
    ),
    "sru": (
        lambda u, f, r, b: sru(u, f, r, u, b, b, activation="tanh", return_final=True),
        [(2, "T", 3), (2, "T", 3), (2, "T", 3), (3,)],
    ),
    "SRU": (SRU(4, 3, 2, bidirectional=True), [("T", 2, 4), (4, 2, 3)]),
    "SRU, batch first": (SRU(3, 3, batch_first=True), [(2, "T", 3)]),
}


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
@pytest.mark.parametrize("name", DYNAMIC)
def test_w06_one_graph_for_all_lengths(name, marked):
    function, shapes = DYNAMIC[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    parameters = [*function.parameters()] if isinstance(function, nn.Module) else []
    for T in (7, 9, 33, 64):
        args = [leaf(*(T if n == "T" else n for n in s), dtype=torch.float32) for s in shapes]
        for t, shape in zip(args, shapes, strict=True):
            if marked and "T" in shape:
                torch._dynamo.mark_dynamic(t, shape.index("T"))
        ours, eager = compiled(*args), function(*args)
        torch.testing.assert_close(ours, eager)
        args += parameters
        assert_gradients_match(gradients(ours, args), gradients(eager, args))
    assert graphs() <= (1 if marked else 2)


@pytest.mark.parametrize("name", OPTIONS)
def test_w06_options(name):
    options = as_tensors(OPTIONS[name])
    B, T, N = size_of(options)

    def function(a, x, h0):
        h, final = scan(torch.sigmoid(a), x, h0, return_final=True, **options)
        return sru(h, a, x, x, c0=final, **options)

    args = leaf(B, T, 3), leaf(B, T, 3), leaf(N, 3)
    ours = torch.compile(function, fullgraph=True, backend="aot_eager")(*args)
    eager = function(*args)
    torch.testing.assert_close(ours, eager)
    assert_gradients_match(gradients([ours], args), gradients([eager], args))


def test_w06_autocast_and_dropout():
    module = SRU(4, 3, 2, dropout=1.0)

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            y, h_n = module(x)
            return scan(0.5, y), h_n

    x = leaf(5, 2, 4, dtype=torch.float32)
    ours, eager = torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x)
    assert ours[0].dtype == torch.bfloat16
    torch.testing.assert_close(ours, eager)


def test_w06_no_grad():
    module = SRU(4, 3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 2, 4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.slow
def test_w06_inductor():
    module = SRU(4, 3, bidirectional=True)

    def function(x):
        y, h_n = module(torch.tanh(x))
        return scan(torch.sigmoid(y), y * 2).square(), h_n

    x = leaf(5, 2, 4, dtype=torch.float32)
    ours, eager = torch.compile(function, fullgraph=True)(x), function(x)
    torch.testing.assert_close(ours, eager)
    args = [x, *module.parameters()]
    assert_gradients_match(gradients(ours, args), gradients(eager, args))


def test_transforms_inside_of_compile():
    x = torch.randn(3, 2, 5, 4)
    inside = torch.compile(torch.vmap(lambda x: scan(0.5, x)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(inside(x), scan(0.5, x))
    for transform in (
        lambda f: torch.func.grad(f),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    ):
        compiled = torch.compile(
            transform(lambda x: scan(0.5, x).sum()), fullgraph=True, backend="aot_eager"
        )
        with pytest.raises(Exception, match="not supported inside of torch"):
            compiled(x[0])


# ---- W06: torch.export ---------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_w06_export_round_trip(strict):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = SRU(4, 3, 2, bidirectional=True, batch_first=True)

        def forward(self, x, hx):
            y, h_n = self.rnn(x, hx)
            return scan(torch.sigmoid(y), y), h_n

    model = Model()
    steps = torch.export.Dim("steps", min=2, max=4096)
    exported = torch.export.export(
        model,
        (torch.randn(2, 5, 4), torch.randn(4, 2, 3)),
        dynamic_shapes={"x": {1: steps}, "hx": None},
        strict=strict,
    )
    stored = io.BytesIO()
    torch.export.save(exported, stored)
    stored.seek(0)
    loaded = torch.export.load(stored).module()
    for T in (5, 70):
        args = torch.randn(2, T, 4), torch.randn(4, 2, 3)
        torch.testing.assert_close(loaded(*args), model(*args))
