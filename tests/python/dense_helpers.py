"""What tests of dense layers share: networks of all kinds of memory, and comparisons."""

import copy
import hashlib

import scanrnn.torch as srt
import torch
from scanrnn.torch._relax import costs
from torch import nn
from torch.nn.utils.rnn import PackedSequence

#: Layers of all kinds: class, keywords beside input size 5 and hidden size 6.
KINDS = {
    "lstm": ("LSTM", {}),
    "lstm deep": ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm projected": ("LSTM", {"proj_size": 3, "num_layers": 2, "bidirectional": True}),
    "lstm no bias": ("LSTM", {"bias": False, "batch_first": True}),
    "gru": ("GRU", {}),
    "gru deep": ("GRU", {"num_layers": 3, "bidirectional": True}),
    "gru no bias": ("GRU", {"bias": False}),
    "rnn": ("RNN", {"bidirectional": True}),
    "rnn relu": ("RNN", {"nonlinearity": "relu", "num_layers": 2, "batch_first": True}),
}


def network(cls, inputs=5, hidden=6, *, gain=1.0, gate=0.0, seed=0, dtype=torch.float64, **options):
    """torch.nn's layer, weights scaled, and the bias of LSTM's f or GRU's z shifted."""
    torch.manual_seed(seed)
    module = getattr(nn, cls)(inputs, hidden, dtype=dtype, **options)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.mul_(gain)
            if name.startswith("bias_ih") and cls != "RNN":
                p[hidden : 2 * hidden] += gate
    return module


def parts(result):
    """Outputs and states of a layer's result, flat."""
    output, states = result[:2]
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *(states if isinstance(states, tuple) else (states,))]


def outcome(module, x, hx=None, *, which=None, inputs=()):
    """Outputs, states, and the gradients of a random linear functional of (some of) them."""
    for t in (*module.parameters(), *inputs):
        t.grad = None
    values = parts(module(x, hx))
    generator = torch.Generator(values[0].device).manual_seed(7)
    loss = 0
    for i, v in enumerate(values):
        r = torch.randn(v.shape, generator=generator, dtype=v.dtype, device=v.device)
        if which is None or i in which:
            loss = loss + (v * r).sum()
    loss.backward()
    tensors = (*module.parameters(), *inputs)
    grads = [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in tensors]
    return [v.detach().clone() for v in values], grads


def by_steps(module, x, prefill):
    """Outputs (B, T, features) and states: a first part at once, the rest step by step."""
    y, hx = module(x[:, :prefill])
    outputs = [y]
    for t in range(prefill, x.shape[1]):
        y, hx = module.step(x[:, t], hx)
        outputs.append(y[:, None])
    return torch.cat(outputs, 1), hx


def assert_steps(module, reference, x, dtype):
    """In 16 bits a sequence and its steps agree, are repeatable, and are as good as torch.nn's."""
    with torch.no_grad():
        (steps, hx), (again, _) = by_steps(module, x, 100), by_steps(module, x, 100)
        whole, final, report = module(x, return_report=True)
        torchs = parts(reference(x))
        with torch.autocast(x.device.type, enabled=False):
            exact = parts(copy.deepcopy(reference).double()(x.double()))
    assert torch.equal(steps, again)
    ours = parts((steps, hx)), parts((whole, final))
    for a, b, c, truth in zip(*ours, torchs, exact, strict=True):
        assert a.dtype == b.dtype == c.dtype
        assert distance(a, b) <= costs.TOLERANCE[dtype]
        # A step rounds its state, which a sequence's kernel may keep wider.
        rounding = 2 * distance(c.double(), truth) + torch.finfo(dtype).eps
        assert max(distance(a.double(), truth), distance(b.double(), truth)) <= rounding
    return report


def digest(device="cpu", *, gradients=True):
    """Of the bits of relaxed layers' values and gradients: the same in every process."""
    bits = hashlib.sha256()
    for cls in ("LSTM", "GRU", "RNN"):
        reference = network(cls, 5, 16, num_layers=2, bidirectional=True, dtype=torch.float32)
        module = getattr(srt, cls).from_torch(reference.to(device), parallel=True)
        x = torch.randn(4097, 2, 5, generator=torch.Generator().manual_seed(3)).to(device)
        x.requires_grad_()
        values, grads = outcome(module, x, inputs=(x,))
        assert module.last_report.status == "converged"
        for t in (*values, *(grads if gradients else ())):
            bits.update(t.cpu().numpy().tobytes())
    return bits.hexdigest()


#: A program that prints its digest, after two processes that it started found the same.
PROCESSES = """
import multiprocessing, sys
sys.path[:0] = {path!r}
from dense_helpers import digest

expected = digest({device!r}, gradients={gradients})
with multiprocessing.get_context({start!r}).Pool(1, maxtasksperchild=1) as pool:
    for _ in range(2):
        assert pool.apply(digest, ({device!r},), {{"gradients": {gradients}}}) == expected
print(expected)
"""


def distance(a, b):
    """Largest difference, relative to the larger of 1 and the largest value."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item() if b.numel() else 0.0


def assert_same(ours, reference, tolerance, gradient_tolerance=None):
    """Values and gradients, each to a tolerance."""
    for which, limit in ((0, tolerance), (1, gradient_tolerance or 10 * tolerance)):
        for a, b in zip(ours[which], reference[which], strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            assert distance(a, b) <= limit
