"""The cells' equations out of JAX operators, for the derivatives that no kernel computes.

Every linear cell is a recurrence of its state c whose gate and input depend on the step's
pre-activations alone: c_t = a_t * c_{t-1} + x_t, and an output of c_t. A composed form gives a, x
and that output. A nonlinear cell's is one step. The equations are those of the core's headers, in
its table's order of arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid, sigmoid

OptArray: TypeAlias = Array | None
#: a, x, and the cell's output of its states.
Composed: TypeAlias = tuple[Array, Array, Callable[[Array], Array]]


def _positive(x: Array) -> Array:
    return jnp.where(x >= 0, x + 0.5, sigmoid(x))


#: The activations by name, in the order of the core's numbers.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "sigmoid": sigmoid,
    "positive": _positive,
}


def _activate(number: float, x: Array) -> Array:
    return list(ACTIVATIONS.values())[int(number)](x)


def _plus(x: Array, bias: OptArray) -> Array:
    return x if bias is None else x + bias


def _is_state(c: Array) -> Array:
    return c


def _sru(
    u: Array,
    f: Array,
    r: Array,
    skip: OptArray,
    bias_f: OptArray,
    bias_r: OptArray,
    activation: float,
) -> Composed:
    f, r = _plus(f, bias_f), _plus(r, bias_r)

    def output(c: Array) -> Array:
        h = sigmoid(r) * _activate(activation, c)
        return h if skip is None else h + sigmoid(-r) * skip

    return sigmoid(f), sigmoid(-f) * u, output


def _gilr(f: Array, z: Array, bound: OptArray, gate: float, activation: float) -> Composed:
    f = -f if gate else f
    keep, take = sigmoid(f), sigmoid(-f)
    if bound is not None:
        keep, take = bound + (1 - bound) * keep, (1 - bound) * take
    return keep, take * _activate(activation, z), _is_state


def _qrnn(z: Array, f: Array, o: Array, i: OptArray, activation: float) -> Composed:
    take = sigmoid(-f) if i is None else sigmoid(i)
    return sigmoid(f), take * _activate(activation, z), lambda c: sigmoid(o) * c


def _min_lstm(f: Array, i: Array, z: Array, activation: float) -> Composed:
    # s(f) / (s(f) + s(i)) by the difference of logarithms, which no size of f and i spoils.
    difference = log_sigmoid(f) - log_sigmoid(i)
    return sigmoid(difference), sigmoid(-difference) * _activate(activation, z), _is_state


#: The largest derivative of the root of 1 - a^2 with respect to 1 - a^2: RG-LRU's, which is
#: unbounded as a nears 1 (De et al. bound it too).
_STEEPEST_ROOT = 1000.0


@jax.custom_jvp
def _root(x: Array) -> Array:
    return jnp.sqrt(x)


@_root.defjvp
def _root_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    flattest = (0.5 / _STEEPEST_ROOT) ** 2
    return _root(x), 0.5 * jax.lax.rsqrt(jnp.maximum(x, flattest)) * dx


def _rg_lru(x: Array, r: Array, i: Array, lam: Array, c: float) -> Composed:
    log_a = -c * jax.nn.softplus(lam) * sigmoid(r)
    return jnp.exp(log_a), _root(-jnp.expm1(2 * log_a)) * (sigmoid(i) * x), _is_state


#: By the name in the core's table: inputs in its order (None where absent), then its options.
COMPOSED: dict[str, Callable[..., Composed]] = {
    "sru": _sru,
    "gilr": _gilr,
    "qrnn": _qrnn,
    "min_lstm": _min_lstm,
    "rg_lru": _rg_lru,
}


# ---- Nonlinear cells -----------------------------------------------------------------------------

States: TypeAlias = tuple[Array, ...]
#: States before the step, inputs, options -> states after it, and the output.
Step: TypeAlias = Callable[..., tuple[States, Array]]


def _diagonal_gru(
    states: States,
    r: Array,
    z: Array,
    n: Array,
    u_r: Array,
    u_z: Array,
    u_n: Array,
    b_n: OptArray,
) -> tuple[States, Array]:
    (h,) = states
    r, z = sigmoid(r + u_r * h), sigmoid(z + u_z * h)
    n = jnp.tanh(n + r * _plus(u_n * h, b_n))
    h = n + z * (h - n)
    return (h,), h


def _diagonal_lstm(
    states: States,
    f: Array,
    g: Array,
    o: Array,
    i: OptArray,
    u_f: Array,
    u_g: Array,
    u_o: Array,
    u_i: OptArray,
    w_f: OptArray,
    w_o: OptArray,
    w_i: OptArray,
) -> tuple[States, Array]:
    h, c = states

    def gate(x: Array, u: OptArray, w: OptArray, c: Array) -> Array:
        x = x if u is None else x + u * h
        return sigmoid(x if w is None else x + w * c)

    forget, g = gate(f, u_f, w_f, c), jnp.tanh(g + u_g * h)
    c = g + forget * (c - g) if i is None else forget * c + gate(i, u_i, w_i, c) * g
    h = gate(o, u_o, w_o, c) * jnp.tanh(c)
    return (h, c), h


def _indrnn(states: States, p: Array, u: Array, activation: float) -> tuple[States, Array]:
    h = _activate(activation, p + u * states[0])
    return (h,), h


def _recurrent_sru(
    states: States,
    u: Array,
    f: Array,
    r: Array,
    skip: OptArray,
    v_f: Array,
    v_r: Array,
    bias_f: OptArray,
    bias_r: OptArray,
    activation: float,
) -> tuple[States, Array]:
    (c,) = states
    f, r = _plus(f, bias_f) + v_f * c, _plus(r, bias_r) + v_r * c
    c = u + sigmoid(f) * (c - u)
    h = sigmoid(r) * _activate(activation, c)
    return (c,), h if skip is None else h + sigmoid(-r) * skip


#: By the name in the core's table, as `COMPOSED`.
STEPS: dict[str, Step] = {
    "diagonal_gru": _diagonal_gru,
    "diagonal_lstm": _diagonal_lstm,
    "indrnn": _indrnn,
    "recurrent_sru": _recurrent_sru,
}
