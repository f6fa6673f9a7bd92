"""The published equations of the nonlinear cells of `scanrnn.jax`, and a loop over them.

The loop is `jax.lax.scan`; its derivatives are JAX's. Tests run it in double precision.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import reference
import scanrnn.jax as srj
from jax.nn import sigmoid
from jax_cells import ACTIVATIONS
from jax_helpers import sizes, values


def diagonal_gru(states, r, z, n, u_r, u_z, u_n, b_n):
    (h,) = states
    r, z = sigmoid(r + u_r * h), sigmoid(z + u_z * h)
    h = (1 - z) * jnp.tanh(n + r * (u_n * h + b_n)) + z * h
    return (h,), h


def diagonal_lstm(states, i, f, g, o, u_i, u_f, u_g, u_o, w_i, w_f, w_o):
    h, c = states
    i, f = sigmoid(i + u_i * h + w_i * c), sigmoid(f + u_f * h + w_f * c)
    c = f * c + i * jnp.tanh(g + u_g * h)
    h = sigmoid(o + u_o * h + w_o * c) * jnp.tanh(c)
    return (h, c), h


def plain_lstm(states, i, f, g, o, u_i, u_f, u_g, u_o):
    return diagonal_lstm(states, i, f, g, o, u_i, u_f, u_g, u_o, 0, 0, 0)


def coupled_lstm(states, f, g, o, u_f, u_g, u_o, w_f, w_o):
    h, c = states
    f = sigmoid(f + u_f * h + w_f * c)
    c = f * c + (1 - f) * jnp.tanh(g + u_g * h)
    h = sigmoid(o + u_o * h + w_o * c) * jnp.tanh(c)
    return (h, c), h


def indrnn(states, p, u, activation="relu"):
    h = ACTIVATIONS[activation](p + u * states[0])
    return (h,), h


def sru(states, u, f, r, skip, v_f, v_r, bias_f, bias_r, activation="identity"):
    (c,) = states
    f, r = sigmoid(f + v_f * c + bias_f), sigmoid(r + v_r * c + bias_r)
    c = f * c + (1 - f) * u
    return (c,), r * ACTIVATIONS[activation](c) + (1 - r) * skip


@dataclass(frozen=True)
class Nonlinear:
    """A cell: its equations, its functions, and what they take."""

    equations: Callable
    function: Callable
    step: Callable
    names: tuple[str, ...]
    #: Those of the names that are vectors.
    vectors: tuple[str, ...]
    states: tuple[str, ...] = ("h0",)
    #: Name of its kernels.
    kernel: str = "diagonal_lstm"
    options: dict = field(default_factory=dict)

    @property
    def arguments(self):
        return (*self.names, *self.states)

    @property
    def every(self):
        return tuple(range(len(self.arguments)))


_PAIR = ("h0", "c0")
_coupled = {"i": None, "u_i": None}

NONLINEAR = {
    "gru": Nonlinear(
        diagonal_gru,
        srj.diagonal_gru,
        srj.diagonal_gru_step,
        ("r", "z", "n", "u_r", "u_z", "u_n", "b_n"),
        ("u_r", "u_z", "u_n", "b_n"),
        kernel="diagonal_gru",
    ),
    "lstm": Nonlinear(
        plain_lstm,
        srj.diagonal_lstm,
        srj.diagonal_lstm_step,
        ("i", "f", "g", "o", "u_i", "u_f", "u_g", "u_o"),
        ("u_i", "u_f", "u_g", "u_o"),
        _PAIR,
    ),
    "lstm-peephole": Nonlinear(
        diagonal_lstm,
        srj.diagonal_lstm,
        srj.diagonal_lstm_step,
        ("i", "f", "g", "o", "u_i", "u_f", "u_g", "u_o", "w_i", "w_f", "w_o"),
        ("u_i", "u_f", "u_g", "u_o", "w_i", "w_f", "w_o"),
        _PAIR,
    ),
    "lstm-coupled": Nonlinear(
        coupled_lstm,
        partial(srj.diagonal_lstm, **_coupled),
        partial(srj.diagonal_lstm_step, **_coupled),
        ("f", "g", "o", "u_f", "u_g", "u_o", "w_f", "w_o"),
        ("u_f", "u_g", "u_o", "w_f", "w_o"),
        _PAIR,
    ),
    "indrnn": Nonlinear(
        indrnn,
        srj.indrnn,
        srj.indrnn_step,
        ("p", "u"),
        ("u",),
        kernel="indrnn",
        options={"activation": "tanh"},
    ),
    "recurrent_sru": Nonlinear(
        sru,
        srj.sru,
        srj.sru_step,
        ("u", "f", "r", "skip", "v_f", "v_r", "bias_f", "bias_r"),
        ("v_f", "v_r", "bias_f", "bias_r"),
        ("c0",),
        "recurrent_sru",
        {"activation": "tanh"},
    ),
}


def arguments(rng, case, options, B, T, D, dtype="float64"):
    """Arrays for every argument; with cu_seqlens B is 1."""
    B, N = sizes(options, B)
    shapes = [(D,) if n in case.vectors else (B, T, D) for n in case.names]
    shapes += [(N, D)] * len(case.states)
    return [values(rng, *shape, dtype=np.dtype(dtype)) for shape in shapes]


def call(case, arrays, **options):
    """The library's function on all arguments: h and a tuple of the final states."""
    named = dict(zip(case.arguments, arrays, strict=True))
    h, final = case.function(**named, **options, return_final=True)
    return h, final if len(case.states) > 1 else (final,)


def loop(case, arrays, *, reset=None, **options):
    """h and the final states of a cell, all sequences side by side."""
    count = len(case.names)
    named = dict(zip(case.names, arrays, strict=False))
    states = tuple(map(jnp.asarray, arrays[count:]))
    vectors = {n: named.pop(n) for n in case.vectors}
    own = {n: options.pop(n) for n in case.options if n in options}
    B, T, _ = arrays[0].shape
    runs = reference.sequences(B, T, **options)
    length = max(len(steps) for _, steps in runs)
    row = np.array([[b] for b, _ in runs])
    at = np.array([steps + [0] * (length - len(steps)) for _, steps in runs])
    valid = np.array([[k < len(steps) for k in range(length)] for _, steps in runs])
    dropped = np.zeros(at.shape, bool) if reset is None else reset[row, at] != 0

    def step(carry, now):
        dropped, valid, rows = now
        before = tuple(jnp.where(dropped[:, None], 0, s) for s in carry)
        after, out = case.equations(before, **rows, **vectors, **own)
        carry = tuple(jnp.where(valid[:, None], a, s) for a, s in zip(after, carry, strict=True))
        return carry, out

    rows = {n: a[row, at].swapaxes(0, 1) for n, a in named.items()}
    final, out = jax.lax.scan(step, states, (dropped.T, valid.T, rows))
    h = jnp.zeros(arrays[0].shape, states[0].dtype)
    return h.at[row.repeat(length, 1)[valid], at[valid]].set(out.swapaxes(0, 1)[valid]), final


def loss_of(run):
    """A real loss of h and the final states in which every entry counts differently."""

    def loss(*arrays):
        h, final = run(arrays)
        return sum(jnp.sum(jnp.sin(k + part)) for k, part in enumerate((h, *final)))

    return loss
