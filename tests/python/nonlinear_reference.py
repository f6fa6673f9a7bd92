"""The nonlinear cells' papers as serial loops in double precision.

A cell is one function of a step, from its arguments and the states before it to the states after
and the output. Derivatives are taken by the complex step, as in cell_reference.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cell_reference import ACTIVATIONS, STEP, sigmoid
from reference import double, initial, sequences


def _zero(array):
    return 0 if array is None else array


def _gru(r, z, n, u_r, u_z, u_n, b_n, h):
    r, z = sigmoid(r + u_r * h), sigmoid(z + u_z * h)
    n = np.tanh(n + r * (u_n * h + _zero(b_n)))
    h = (1 - z) * n + z * h
    return (h,), h


def _lstm(i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o, h, c):
    f = sigmoid(f + u_f * h + _zero(w_f) * c)
    i = 1 - f if i is None else sigmoid(i + u_i * h + _zero(w_i) * c)
    c = f * c + i * np.tanh(g + u_g * h)
    h = sigmoid(o + u_o * h + _zero(w_o) * c) * np.tanh(c)
    return (h, c), h


def _indrnn(p, u, h, *, activation="relu"):
    h = ACTIVATIONS[activation](p + u * h)
    return (h,), h


def _sru(u, f, r, skip, bias_f, bias_r, v_f, v_r, c, *, activation="identity"):
    f = sigmoid(f + _zero(bias_f) + v_f * c)
    r = sigmoid(r + _zero(bias_r) + v_r * c)
    c = f * c + (1 - f) * u
    return (c,), r * ACTIVATIONS[activation](c) + (1 - r) * _zero(skip)


@dataclass(frozen=True)
class Cell:
    """A cell: its equations, and its arguments in order, the states last."""

    step: Callable
    arguments: tuple[str, ...]
    vectors: tuple[str, ...]
    states: tuple[str, ...] = ("h0",)
    optional: tuple[tuple[str, ...], ...] = ()  # which go together
    activations: tuple[str, ...] = ()

    @property
    def inputs(self):
        return self.arguments[: -len(self.states)]

    def is_vector(self, name):
        return name in self.vectors


CELLS = {
    "diagonal_gru": Cell(
        _gru,
        ("r", "z", "n", "u_r", "u_z", "u_n", "b_n", "h0"),
        ("u_r", "u_z", "u_n", "b_n"),
        optional=(("b_n",),),
    ),
    "diagonal_lstm": Cell(
        _lstm,
        (*"ifgo", "u_i", "u_f", "u_g", "u_o", "w_i", "w_f", "w_o", "h0", "c0"),
        ("u_i", "u_f", "u_g", "u_o", "w_i", "w_f", "w_o"),
        ("h0", "c0"),
        optional=(("w_i",), ("w_f",), ("w_o",), ("i", "u_i", "w_i")),
    ),
    "indrnn": Cell(_indrnn, ("p", "u", "h0"), ("u",), activations=("identity", "tanh", "relu")),
    "sru": Cell(
        _sru,
        ("u", "f", "r", "skip", "bias_f", "bias_r", "v_f", "v_r", "c0"),
        ("bias_f", "bias_r", "v_f", "v_r"),
        ("c0",),
        optional=(("skip",), ("bias_f",), ("bias_r",)),
        activations=("identity", "tanh", "relu"),
    ),
}


class Run:
    """One call of a cell, step by step.

    Args:
        name: the cell.
        values: its arguments by name: (B, T, D), (D,) and (N, D), or None.
        reset: (B, T) flags.
        options: the cell's option, and how sequences lie.
    """

    def __init__(self, name, values, *, reset=None, **options):
        self.cell, self.reset = CELLS[name], reset
        self.option = {k: options.pop(k) for k in ("activation",) if k in options}
        self.values = {n: None if v is None else double(v) for n, v in values.items()}
        main = next(v for n, v in self.values.items() if v is not None)
        self.shape = B, T, D = main.shape
        self.runs = sequences(B, T, **options)
        self.first = [
            initial(self.values[n], len(self.runs), D, np.float64) for n in self.cell.states
        ]

    def step(self, b, t, states, seed=None):
        """(states, output) of a step, one input or state of which has an imaginary part."""
        arguments = []
        for name in self.cell.inputs:
            v = self.values[name]
            if v is not None and not self.cell.is_vector(name):
                v = v[b, t]
            arguments.append(v if v is None else v + (1j * STEP if name == seed else 0))
        for name, state in zip(self.cell.states, states, strict=True):
            arguments.append(state + (1j * STEP if name == seed else 0j))
        return self.cell.step(*arguments, **self.option)

    def forward(self):
        """(h, finals)."""
        h, finals = np.zeros(self.shape), [first.copy() for first in self.first]
        for n, (b, steps) in enumerate(self.runs):
            states = [final[n] for final in finals]
            for t in steps:
                if self.reset is not None and self.reset[b, t]:
                    states = [np.zeros_like(s) for s in states]
                states, y = self.step(b, t, states)
                states, h[b, t] = [s.real for s in states], y.real
            for final, s in zip(finals, states, strict=True):
                final[n] = s
        return h, finals

    def vjp(self, dh, dfinals):
        """Gradients by name; None for arguments that are None, but for the states."""
        dh = np.zeros(self.shape) if dh is None else double(dh)
        grads = {n: None if v is None else np.zeros(v.shape) for n, v in self.values.items()}
        dfirst = [
            np.zeros_like(f) if d is None else double(d).copy()
            for f, d in zip(self.first, dfinals, strict=True)
        ]
        for n, (b, steps) in enumerate(self.runs):
            before, states = [], [first[n] for first in self.first]
            for t in steps:
                if self.reset is not None and self.reset[b, t]:
                    states = [np.zeros_like(s) for s in states]
                before.append(states)
                states = [s.real for s in self.step(b, t, states)[0]]
            adjoint = [d[n].copy() for d in dfirst]
            for k in reversed(range(len(steps))):
                t = steps[k]

                def gradient(seed, t=t, k=k, adjoint=adjoint, b=b, before=before):
                    after, y = self.step(b, t, before[k], seed)
                    total = dh[b, t] * y.imag
                    for a, s in zip(adjoint, after, strict=True):
                        total = total + a * s.imag
                    return total / STEP

                for name in self.cell.inputs:
                    if grads[name] is None:
                        continue
                    if self.cell.is_vector(name):
                        grads[name] += gradient(name)
                    else:
                        grads[name][b, t] = gradient(name)
                dropped = self.reset is not None and self.reset[b, t]
                adjoint = [
                    np.zeros_like(a) if dropped else gradient(s)
                    for a, s in zip(adjoint, self.cell.states, strict=True)
                ]
            for d, a in zip(dfirst, adjoint, strict=True):
                d[n] = a
        return grads | dict(zip(self.cell.states, dfirst, strict=True))
