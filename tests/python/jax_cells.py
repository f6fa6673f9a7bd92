"""The published equations of every cell of `scanrnn.jax`, and a loop over them.

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
from jax_helpers import sizes, values

# ---- The cells and their equations ---------------------------------------------------------------

ACTIVATIONS = {
    "identity": lambda x: x,
    "tanh": jnp.tanh,
    "relu": lambda x: jnp.where(x > 0, x, 0),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "positive": lambda x: jnp.where(x >= 0, x + 0.5, sigmoid(x)),
}


def sru(c, u, f, r, skip, bias_f, bias_r, activation="identity"):
    f, r = sigmoid(f + bias_f), sigmoid(r + bias_r)
    c = f * c + (1 - f) * u
    return c, r * ACTIVATIONS[activation](c) + (1 - r) * skip


def gilr(h, f, z, activation="tanh"):
    f = sigmoid(f)
    h = f * h + (1 - f) * ACTIVATIONS[activation](z)
    return h, h


def hgrn(h, f, z, bound, activation="silu"):
    f = bound + (1 - bound) * sigmoid(f)
    h = f * h + (1 - f) * ACTIVATIONS[activation](z)
    return h, h


def min_gru(h, z, v, activation="identity"):
    z = sigmoid(z)
    h = (1 - z) * h + z * ACTIVATIONS[activation](v)
    return h, h


def min_lstm(h, f, i, v, activation="identity"):
    f, i = sigmoid(f), sigmoid(i)
    h = f / (f + i) * h + i / (f + i) * ACTIVATIONS[activation](v)
    return h, h


def qrnn_f(c, z, f, activation="tanh"):
    f = sigmoid(f)
    c = f * c + (1 - f) * ACTIVATIONS[activation](z)
    return c, c


def qrnn_fo(c, z, f, o, activation="tanh"):
    c, _ = qrnn_f(c, z, f, activation)
    return c, sigmoid(o) * c


def qrnn_ifo(c, z, f, o, i, activation="tanh"):
    c = sigmoid(f) * c + sigmoid(i) * ACTIVATIONS[activation](z)
    return c, sigmoid(o) * c


def rg_lru(h, x, r, i, lam, c=8.0):
    a = jnp.exp(-c * jax.nn.softplus(lam) * sigmoid(r))
    h = a * h + jnp.sqrt(1 - a**2) * sigmoid(i) * x
    return h, h


def lru(h, u, nu, theta, gamma):
    h = jnp.exp(-jnp.exp(nu) + 1j * jnp.exp(theta)) * h + gamma * u
    return h, h


@dataclass(frozen=True)
class Case:
    """A cell: its equations, its functions, and what they take."""

    loop: Callable
    function: Callable
    step: Callable
    #: Inputs over steps, then vectors, in the function's order.
    names: tuple[str, ...]
    vectors: tuple[str, ...] = ()
    state: str = "h0"
    #: Name of its kernels.
    kernel: str = "gilr"
    options: dict = field(default_factory=dict)
    complex: bool = False

    @property
    def every(self):
        return tuple(range(len(self.names) + 1))


CASES = {
    "sru": Case(
        sru,
        srj.sru,
        srj.sru_step,
        ("u", "f", "r", "skip", "bias_f", "bias_r"),
        ("bias_f", "bias_r"),
        "c0",
        "sru",
        {"activation": "tanh"},
    ),
    "gilr": Case(gilr, srj.gilr, srj.gilr_step, ("f", "z")),
    "hgrn": Case(hgrn, srj.hgrn, srj.hgrn_step, ("f", "z", "bound"), ("bound",)),
    "min_gru": Case(
        min_gru, srj.min_gru, srj.min_gru_step, ("z", "v"), options={"activation": "positive"}
    ),
    "min_lstm": Case(min_lstm, srj.min_lstm, srj.min_lstm_step, ("f", "i", "v"), kernel="min_lstm"),
    "qrnn-f": Case(
        qrnn_f, srj.qrnn, partial(srj.qrnn_step, o=None, i=None), ("z", "f"), state="c0"
    ),
    "qrnn-fo": Case(
        qrnn_fo,
        srj.qrnn,
        partial(srj.qrnn_step, i=None),
        ("z", "f", "o"),
        state="c0",
        kernel="qrnn",
    ),
    "qrnn-ifo": Case(
        qrnn_ifo,
        srj.qrnn,
        srj.qrnn_step,
        ("z", "f", "o", "i"),
        state="c0",
        kernel="qrnn",
        options={"activation": "sigmoid"},
    ),
    "rg_lru": Case(
        rg_lru,
        srj.rg_lru,
        srj.rg_lru_step,
        ("x", "r", "i", "lam"),
        ("lam",),
        kernel="rg_lru",
        options={"c": 2.5},
    ),
    "lru": Case(
        lru,
        srj.lru,
        srj.lru_step,
        ("u", "nu", "theta", "gamma"),
        ("nu", "theta", "gamma"),
        kernel="scan",
        complex=True,
    ),
}
REAL = [name for name, case in CASES.items() if not case.complex]


def loop(case, arrays, *, reset=None, **options):
    """h and the final states of a cell, all sequences side by side."""
    rows = {n: a for n, a in zip(case.names, arrays, strict=False) if n not in case.vectors}
    vectors = {n: a for n, a in zip(case.names, arrays, strict=False) if n in case.vectors}
    state = arrays[-1]
    B, T, _ = arrays[0].shape
    own = {n: options.pop(n) for n in case.options if n in options}
    runs = reference.sequences(B, T, **options)
    length = max(len(steps) for _, steps in runs)
    row = np.array([[b] for b, _ in runs])
    at = np.array([steps + [0] * (length - len(steps)) for _, steps in runs])
    valid = np.array([[k < len(steps) for k in range(length)] for _, steps in runs])
    dropped = np.zeros(at.shape, bool) if reset is None else reset[row, at] != 0

    def step(carry, now):
        dropped, valid, values = now
        before = jnp.where(dropped[:, None], 0, carry)
        after, out = case.loop(before, **values, **vectors, **own)
        return jnp.where(valid[:, None], after, carry), out

    values = {n: a[row, at].swapaxes(0, 1) for n, a in rows.items()}
    final, out = jax.lax.scan(step, state, (dropped.T, valid.T, values))
    h = jnp.zeros(arrays[0].shape, state.dtype)
    return h.at[row.repeat(length, 1)[valid], at[valid]].set(out.swapaxes(0, 1)[valid]), final


def call(case, arrays, **options):
    """The library's function on the same arguments."""
    named = dict(zip((*case.names, case.state), arrays, strict=True))
    return case.function(**named, **{"return_final": True, **options})


def arguments(rng, case, options, B, T, D, dtype="float64"):
    """Arrays for every argument; with cu_seqlens B is 1."""
    B, N = sizes(options, B)
    dtype = np.dtype(dtype)
    wide = {"float32": "complex64", "float64": "complex128"}[dtype.name] if case.complex else dtype
    arrays = []
    for n in case.names:
        if n in case.vectors:
            array = rng.uniform(0.1, 0.9, D).astype(dtype)
        else:
            array = values(rng, B, T, D, dtype=wide)
        arrays.append(array)
    return [*arrays, values(rng, N, D, dtype=wide)]


def double(arrays):
    return [jnp.asarray(reference.double(a)) for a in arrays]


def loss_of(run):
    """A real loss of h and final in which every entry counts differently."""

    def loss(*arrays):
        h, final = run(arrays)
        parts = [jnp.real(h), jnp.imag(h), jnp.real(final), jnp.imag(final)]
        return sum(jnp.sum(jnp.sin(k + part)) for k, part in enumerate(parts))

    return loss
