"""The fused cells' papers as serial loops in double precision.

A cell is two functions of one step: its map (a, x), with which c_t = a c_{t-1} + x, and its output.
Their derivatives are taken by the complex step, which is exact to double precision: with functions
written for complex numbers, f'(v) = Im f(v + ih) / h (Squire & Trapp 1998, "Using complex variables
to estimate derivatives of real functions").
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from reference import double, initial, sequences

STEP = 1e-40


def sigmoid(v):
    e = np.exp(np.where(v.real < 0, v, -v))
    return np.where(v.real < 0, e, 1) / (1 + e)


def softplus(v):
    return np.where(v.real > 0, v, 0) + np.log1p(np.exp(np.where(v.real > 0, -v, v)))


ACTIVATIONS = {
    "identity": lambda v: v,
    "tanh": np.tanh,
    "relu": lambda v: np.where(v.real > 0, v, 0),
    "silu": lambda v: v * sigmoid(v),
    "sigmoid": sigmoid,
    "positive": lambda v: np.where(v.real >= 0, v + 0.5, sigmoid(v)),
}


def _gated(keep, candidate):
    return keep, (1 - keep) * candidate


def _qrnn(z, f, o, i, g):
    keep = sigmoid(f)
    return keep, (1 - keep if i is None else sigmoid(i)) * g(z)


def _min_lstm(f, i, v, g):
    total = sigmoid(f) + sigmoid(i)
    return sigmoid(f) / total, sigmoid(i) / total * g(v)


def _rg_lru(x, r, i, lam, c):
    log_a = -c * softplus(lam) * sigmoid(r)
    return np.exp(log_a), np.sqrt(-np.expm1(2 * log_a)) * sigmoid(i) * x


@dataclass(frozen=True)
class Cell:
    """A cell: names of its arguments, of which those in `vectors` are (D,), and its equations."""

    arguments: tuple[str, ...]
    map: Callable
    output: Callable = lambda c, *_: c
    vectors: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    state: str = "h0"
    options: dict = field(default_factory=lambda: {"activation": "identity"})


def _skip(array, like):
    return np.zeros_like(like) if array is None else array


CELLS = {
    "sru": Cell(
        ("u", "f", "r", "skip", "bias_f", "bias_r"),
        lambda u, f, r, skip, bf, br, g: _gated(sigmoid(f + _skip(bf, f)), u),
        lambda c, u, f, r, skip, bf, br, g: (
            sigmoid(r + _skip(br, r)) * g(c) + (1 - sigmoid(r + _skip(br, r))) * _skip(skip, r)
        ),
        vectors=("bias_f", "bias_r"),
        optional=("skip", "bias_f", "bias_r"),
        state="c0",
    ),
    "gilr": Cell(
        ("f", "z"), lambda f, z, g: _gated(sigmoid(f), g(z)), options={"activation": "tanh"}
    ),
    "hgrn": Cell(
        ("f", "z", "bound"),
        lambda f, z, bound, g: _gated(
            sigmoid(f) if bound is None else bound + (1 - bound) * sigmoid(f), g(z)
        ),
        vectors=("bound",),
        optional=("bound",),
        options={"activation": "silu"},
    ),
    "min_gru": Cell(("z", "v"), lambda z, v, g: _gated(sigmoid(-z), g(v))),
    "min_lstm": Cell(("f", "i", "v"), _min_lstm),
    "qrnn": Cell(
        ("z", "f", "o", "i"),
        _qrnn,
        lambda c, z, f, o, i, g: c if o is None else sigmoid(o) * c,
        optional=("o", "i"),
        state="c0",
        options={"activation": "tanh"},
    ),
    "rg_lru": Cell(("x", "r", "i", "lam"), _rg_lru, vectors=("lam",), options={"c": 8.0}),
}


def _option(options):
    return options["c"] if "c" in options else ACTIVATIONS[options["activation"]]


class Run:
    """One call of a cell, step by step.

    Args:
        name: the cell.
        arrays: its arguments in order, and the initial state: (B, T, D), (D,) and (N, D), or None.
        reset: (B, T) flags.
        options: the cell's option, and how sequences lie.
    """

    def __init__(self, name, *arrays, reset=None, **options):
        self.cell = CELLS[name]
        values = {n: options.pop(n, v) for n, v in self.cell.options.items()}
        self.option = _option(values)
        *arrays, state = (None if v is None else double(v) for v in arrays)
        self.arrays, self.reset = arrays, reset
        self.shape = B, T, D = arrays[0].shape
        self.runs = sequences(B, T, **options)
        self.first = initial(state, len(self.runs), D, np.float64)

    def _values(self, b, t, seed=None):
        """The inputs of a step, one of them with an imaginary part."""
        for k, (name, v) in enumerate(zip(self.cell.arguments, self.arrays, strict=True)):
            if v is not None and name not in self.cell.vectors:
                v = v[b, t]
            yield v if v is None else v + (1j * STEP if k == seed else 0)

    def map(self, b, t, seed=None):
        return self.cell.map(*self._values(b, t, seed), self.option)

    def output(self, c, b, t, seed=None):
        return self.cell.output(c, *self._values(b, t, seed), self.option)

    def forward(self):
        """(h, final)."""
        h, final = np.zeros(self.shape), self.first.copy()
        for n, (b, steps) in enumerate(self.runs):
            c = final[n]
            for t in steps:
                a, x = (v.real for v in self.map(b, t))
                c = x if self.reset is not None and self.reset[b, t] else a * c + x
                h[b, t] = self.output(c + 0j, b, t).real
            final[n] = c
        return h, final

    def vjp(self, dh, dfinal, h=None):
        """Gradients in the order of the arguments; None for those that are None.

        With h, what a forward call stored where that is the state, its rounding is not counted as
        an error of these.
        """
        dh = np.zeros(self.shape) if dh is None else double(dh)
        dfinal = np.zeros_like(self.first) if dfinal is None else double(dfinal)
        h = None if h is None else double(h)
        grads = [None if v is None else np.zeros_like(v) for v in self.arrays]
        dfirst = dfinal.copy()
        for n, (b, steps) in enumerate(self.runs):
            before, after = [], []
            c = stored = self.first[n]
            for t in steps:
                if self.reset is not None and self.reset[b, t]:
                    c = stored = np.zeros_like(c)
                before.append(c if h is None else stored)
                a, x = (v.real for v in self.map(b, t))
                c = a * c + x
                after.append(c)
                stored = None if h is None else h[b, t]
            g = dfirst[n].copy()
            for k in reversed(range(len(steps))):
                t = steps[k]
                g = g + dh[b, t] * self.output(after[k] + 1j * STEP, b, t).imag / STEP
                for i, gradient in enumerate(grads):
                    if gradient is None:
                        continue
                    a, x = (v.imag / STEP for v in np.broadcast_arrays(*self.map(b, t, i)))
                    y = np.asarray(self.output(after[k] + 0j, b, t, i)).imag / STEP
                    term = g * (a * before[k] + x) + dh[b, t] * y
                    if gradient.ndim == 1:
                        gradient += term
                    else:
                        gradient[b, t] = term
                dropped = self.reset is not None and self.reset[b, t]
                g = np.zeros_like(g) if dropped else g * self.map(b, t)[0].real
            dfirst[n] = g
        return [*grads, dfirst]
