"""Serial loops fast enough for long sequences, layouts, and the way to PyTorch and back."""

import numpy as np
import scanrnn.torch as srt
import torch
from reference import BFLOAT16, double

TORCH_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}


def to_torch(array, device):
    """A NumPy array of any dtype as a tensor."""
    array = np.array(array, order="C")
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).to(device).view(torch.bfloat16)
    return torch.from_numpy(array).to(device)


def to_numpy(t):
    """A tensor of any dtype as a NumPy array."""
    t = t.detach().cpu().resolve_conj()
    if t.dtype == torch.bfloat16:
        return t.contiguous().view(torch.int16).numpy().view(BFLOAT16)
    return t.numpy()


# Serial loops over time, for all rows and channels at once


def _time_first(array):
    return np.ascontiguousarray(np.moveaxis(array, 1, 0))


def serial_scan(a, x, h0=None, *, reverse=False):
    """h_t = a_t h_{t-1} + x_t in double precision, (B, T, D): (h, final)."""
    x = double(x)
    a, x = _time_first(np.broadcast_to(double(a), x.shape)), _time_first(x)
    h = np.empty_like(x)
    state = np.zeros_like(x[0]) if h0 is None else double(h0)
    steps = range(len(x))
    for t in reversed(steps) if reverse else steps:
        state = a[t] * state + x[t]
        h[t] = state
    return np.moveaxis(h, 0, 1), state


def serial_adjoint(a, dh, dfinal=None, *, reverse=False):
    """g_t = dh_t + conj(a_{t+1}) g_{t+1}, the gradient of x: (g, gradient of h0)."""
    dh = double(dh)
    a, dh = _time_first(np.broadcast_to(double(a), dh.shape)).conj(), _time_first(dh)
    g = np.empty_like(dh)
    state = np.zeros_like(dh[0]) if dfinal is None else double(dfinal)
    steps = range(len(dh))
    for t in steps if reverse else reversed(steps):
        g[t] = state + dh[t]
        state = a[t] * g[t]
    return np.moveaxis(g, 0, 1), state


def previous(h, h0=None, *, reverse=False):
    """The state before each step, in double precision."""
    h = double(h)
    first = np.zeros_like(h[:, :1]) if h0 is None else double(h0)[:, None].astype(h.dtype)
    return np.concatenate([h[:, 1:], first] if reverse else [first, h[:, :-1]], 1)


# Layouts: the same (B, T, D) values in other memory


def _permuted(*order):
    inverse = np.argsort(order).tolist()
    return lambda t: t.permute(order).contiguous().permute(inverse)


def _into(shape_of, view_of):
    def lay_out(t):
        base = t.new_full(shape_of(*t.shape), 1e4)  # what is beside the view must not count
        view = view_of(base, *t.shape)
        view.copy_(t)
        return view

    return lay_out


LAYOUTS = {
    "btd": _permuted(0, 1, 2),
    "bdt": _permuted(0, 2, 1),
    "tbd": _permuted(1, 0, 2),
    "tdb": _permuted(1, 2, 0),
    "dbt": _permuted(2, 0, 1),
    "dtb": _permuted(2, 1, 0),
    "every-second-step": _into(lambda B, T, D: (B, 2 * T, D), lambda m, *_: m[:, ::2]),
    "every-third-channel": _into(lambda B, T, D: (B, T, 3 * D), lambda m, *_: m[..., ::3]),
    "channels-from-1": _into(lambda B, T, D: (B, T, D + 4), lambda m, B, T, D: m[..., 1 : D + 1]),
    "steps-from-1": _into(lambda B, T, D: (B, T + 3, D), lambda m, B, T, D: m[:, 1 : T + 1]),
    "odd-rows-bdt": _into(
        lambda B, T, D: (B, D, T + 3), lambda m, B, T, D: m[..., 1 : T + 1].transpose(1, 2)
    ),
    "offset": _into(
        lambda B, T, D: (B * T * D + 1,), lambda m, B, T, D: m[1:].view(B, T, D)
    ),
}  # fmt: skip


def leaf(t):
    """The tensor, in the same memory, as one to differentiate with respect to."""
    return t.detach().requires_grad_()


def scan_and_gradients(a, x, h0, dh, dfinal, **options):
    """h, final, and the gradients (da, dx, dh0) for given ones of h and final."""
    inputs = [leaf(a), leaf(x)] + ([] if h0 is None else [leaf(h0)])
    h, final = srt.scan(*inputs, return_final=True, **options)
    outputs, seeds = [h], [dh]
    if dfinal is not None:
        outputs, seeds = [h, final], [dh, dfinal]
    gradients = torch.autograd.grad(outputs, inputs, seeds)
    return h.detach(), final.detach(), *gradients, *(() if h0 is not None else (None,))
