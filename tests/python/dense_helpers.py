"""What tests of dense layers share: networks of all kinds of memory, and comparisons."""

import torch
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
