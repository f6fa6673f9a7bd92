"""The recurrences as plain differentiable loops in PyTorch, and inputs to compare on."""

import itertools

import torch
from torch.nn.functional import linear

#: Ways to cut (B, T) = (2, 5), or (1, 10) for packed sequences, into sequences.
OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "packed": {"cu_seqlens": [0, 3, 4, 4, 10]},
    "packed-reverse-reset": {
        "cu_seqlens": [0, 3, 4, 4, 10],
        "reverse": True,
        "reset": [[0, 1, 0, 0, 0, 0, 1, 0, 0, 1]],
    },
    "lengths": {"lengths": [3, 0]},
    "left-reverse": {"lengths": [3, 5], "padding_side": "left", "reverse": True},
    "lengths-reset": {"lengths": [4, 5], "reset": [[0, 0, 1, 0, 1], [1, 0, 0, 0, 1]]},
    "left-reset": {
        "lengths": [4, 2],
        "padding_side": "left",
        "reset": [[0, 0, 1, 0, 0], [1, 0, 0, 0, 1]],
    },
}


def size_of(options):
    """(B, T, N) that fit an entry of OPTIONS."""
    return (1, 10, 4) if "cu_seqlens" in options else (2, 5, 2)


def as_tensors(options):
    """Options with tensors in place of lists: reset as bool."""
    out = dict(options)
    for name in ("cu_seqlens", "lengths"):
        if name in out:
            out[name] = torch.tensor(out[name])
    if "reset" in out:
        out["reset"] = torch.tensor(out["reset"]).bool()
    return out


def runs(B, T, *, cu_seqlens=None, lengths=None, padding_side="right", reverse=False):
    """For every sequence its batch row and its steps, in the order of the recurrence."""
    if cu_seqlens is not None:
        bounds = [(0, int(i), int(j)) for i, j in itertools.pairwise(cu_seqlens)]
    elif lengths is not None and padding_side == "left":
        bounds = [(b, T - int(n), T) for b, n in enumerate(lengths)]
    elif lengths is not None:
        bounds = [(b, 0, int(n)) for b, n in enumerate(lengths)]
    else:
        bounds = [(b, 0, T) for b in range(B)]
    return [(b, list(range(i, j))[:: -1 if reverse else 1]) for b, i, j in bounds]


def _stack(steps, x):
    """(B, T, D) from {(b, t): (D,)}, 0 where there is none."""
    B, T, D = x.shape
    zero = x.new_zeros(D)
    if 0 in x.shape:
        return torch.zeros_like(x)
    return torch.stack([torch.stack([steps.get((b, t), zero) for t in range(T)]) for b in range(B)])


def scan_loop(a, x, h0=None, *, reset=None, **options):
    """h_t = a_t h_{t-1} + x_t, one step after the other: (h, final)."""
    B, T, D = x.shape
    a = a.expand(x.shape)
    h, final = {}, []
    for n, (b, steps) in enumerate(runs(B, T, **options)):
        state = x.new_zeros(D) if h0 is None else h0[n]
        for t in steps:
            state = x[b, t] if reset is not None and reset[b][t] else a[b, t] * state + x[b, t]
            h[b, t] = state
        final.append(state)
    return _stack(h, x), torch.stack(final) if final else x.new_zeros(0, D)


ACTIVATIONS = {"identity": lambda c: c, "tanh": torch.tanh, "relu": torch.relu}


def sru_loop(
    u, f, r, skip=None, bias_f=None, bias_r=None, c0=None, *, activation="identity", reset=None,
    **options,
):  # fmt: skip
    """The SRU's equations, one step after the other: (h, final)."""
    B, T, D = u.shape
    zero = u.new_zeros(D)
    h, final = {}, []
    for n, (b, steps) in enumerate(runs(B, T, **options)):
        c = zero if c0 is None else c0[n]
        for t in steps:
            forget = torch.sigmoid(f[b, t] + (zero if bias_f is None else bias_f))
            show = torch.sigmoid(r[b, t] + (zero if bias_r is None else bias_r))
            before = zero if reset is not None and reset[b][t] else c
            c = forget * before + (1 - forget) * u[b, t]
            through = zero if skip is None else skip[b, t]
            h[b, t] = show * ACTIVATIONS[activation](c) + (1 - show) * through
        final.append(c)
    return _stack(h, u), torch.stack(final) if final else u.new_zeros(0, D)


def module_loop(module, x, hx=None, *, masks=None, **options):
    """What an SRU module computes, from its parameters: x and output (B, T, features).

    masks are factors on the output of every layer but the last.
    """
    D, directions = module.hidden_size, 2 if module.bidirectional else 1
    finals = []
    for layer in range(module.num_layers):
        weight = getattr(module, f"weight_ih_l{layer}")
        products = linear(x, weight).unflatten(-1, (directions, -1, D))
        outputs = []
        for d in range(directions):
            u, f, r, *projection = products[..., d, :, :].unbind(-2)
            if projection:
                (skip,) = projection
            elif module.highway == "none":
                skip = None
            else:
                skip = x.unflatten(-1, (directions, D))[..., d, :] * module.highway_scale
            biases = (None, None)
            if module.bias:
                biases = getattr(module, f"bias_ih_l{layer}").view(directions, 2, D)[d]
            h, final = sru_loop(
                u, f, r, skip, *biases,
                None if hx is None else hx[layer * directions + d],
                activation=module.activation, reverse=d == 1, **options,
            )  # fmt: skip
            outputs.append(h)
            finals.append(final)
        x = torch.cat(outputs, -1)
        if masks is not None and layer < module.num_layers - 1:
            x = x * masks[layer]
    return x, torch.stack(finals)


def leaf(*shape, dtype=torch.float64, unit=False):
    """Random tensor that requires a gradient; in (0, 1) with unit."""
    t = torch.rand(shape, dtype=dtype) if unit else torch.randn(shape, dtype=dtype)
    return t.requires_grad_()


def gradients(outputs, inputs, *, seed=1, retain_graph=False):
    """Gradients of a random linear function of the outputs that are not None."""
    generator = torch.Generator().manual_seed(seed)
    outputs = [y for y in outputs if y is not None]
    weights = [torch.randn(y.shape, generator=generator, dtype=y.real.dtype) for y in outputs]
    loss = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    loss = loss.real + loss.imag if loss.is_complex() else loss
    return torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=retain_graph)


def assert_gradients_match(ours, theirs, **tolerance):
    """Compare two tuples of gradients, where None counts as zeros."""
    for i, (g, e) in enumerate(zip(ours, theirs, strict=True)):
        if g is None or e is None:
            present = g if e is None else e
            assert present is None or not present.any(), f"gradient {i} is None on one side"
        else:
            assert g.dtype == e.dtype
            torch.testing.assert_close(g, e, **tolerance)
