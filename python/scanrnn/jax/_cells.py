"""The cells as functions: pre-activations in, outputs and states out."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from jax import Array
from jax.typing import ArrayLike

from .. import _docs
from .._array.layout import PaddingSide
from ..cells import Activation, SequenceOptions, SolveOptions, SruActivation
from ._arguments import (
    gilr_call,
    hgrn_call,
    min_gru_call,
    min_lstm_call,
    qrnn_call,
    recurrent_sru_call,
    rg_lru_call,
    sru_call,
)
from ._fused import run, run_step
from ._solve import results, run_sru, solve_step

_documented = _docs.documented(_docs.JAX)

# ---- sru -----------------------------------------------------------------------------------------


@overload
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    return_final: Literal[False] = False,
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> Array: ...
@overload
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    return_final: Literal[True],
    return_report: Literal[False] = False,
    **options: Unpack[SolveOptions],
) -> tuple[Array, Array]: ...
@overload
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    return_final: bool = False,
    return_report: bool = False,
    **options: Unpack[SolveOptions],
) -> Any: ...
@_documented
def sru(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None = None,
    bias_f: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_report: bool = False,
    **solver: Any,
) -> Any:
    """Simple recurrent unit. Without the v * c_{t-1} terms its recurrence is linear in c."""
    return results(
        *run_sru(
            "sru",
            (u, f, r, skip, bias_f, bias_r, c0, activation),
            v_f,
            v_r,
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
            return_report=return_report,
            **solver,
        ),
        return_final,
        return_report,
    )


@_documented
def sru_step(
    u: ArrayLike,
    f: ArrayLike,
    r: ArrayLike,
    skip: ArrayLike | None,
    bias_f: ArrayLike | None,
    bias_r: ArrayLike | None,
    c: ArrayLike | None,
    *,
    activation: SruActivation = "identity",
    v_f: ArrayLike | None = None,
    v_r: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """One step of `sru`, for decoding: what a sequence of one step gives."""
    inputs = "sru_step", u, f, r, skip, bias_f, bias_r, c, activation
    if v_f is None and v_r is None:
        return run_step(*sru_call(*inputs))
    h, (state,) = solve_step(*recurrent_sru_call(*inputs, v_f, v_r))
    return h, state


# ---- gilr ----------------------------------------------------------------------------------------


@overload
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
@_documented
def gilr(
    f: ArrayLike,
    z: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Gated impulse linear recurrent layer."""
    h, final = run(
        *gilr_call("gilr", f, z, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


@_documented
def gilr_step(
    f: ArrayLike,
    z: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: Activation = "tanh",
) -> tuple[Array, Array]:
    """One step of `gilr`, for decoding: what a sequence of one step gives."""
    return run_step(*gilr_call("gilr_step", f, z, h, activation))


# ---- hgrn ----------------------------------------------------------------------------------------


@overload
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
@_documented
def hgrn(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Hierarchically gated recurrent network: forget gates with a lower bound."""
    h, final = run(
        *hgrn_call("hgrn", f, z, bound, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


@_documented
def hgrn_step(
    f: ArrayLike,
    z: ArrayLike,
    bound: ArrayLike | None,
    h: ArrayLike | None,
    *,
    activation: Activation = "silu",
) -> tuple[Array, Array]:
    """One step of `hgrn`, for decoding: what a sequence of one step gives."""
    return run_step(*hgrn_call("hgrn_step", f, z, bound, h, activation))


# ---- min_gru -------------------------------------------------------------------------------------


@overload
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
@_documented
def min_gru(
    z: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Minimal GRU: gates that see the input alone."""
    h, final = run(
        *min_gru_call("min_gru", z, v, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


@_documented
def min_gru_step(
    z: ArrayLike,
    v: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: Activation = "identity",
) -> tuple[Array, Array]:
    """One step of `min_gru`, for decoding: what a sequence of one step gives."""
    return run_step(*min_gru_call("min_gru_step", z, v, h, activation))


# ---- min_lstm ------------------------------------------------------------------------------------


@overload
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
@_documented
def min_lstm(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Minimal LSTM: forget and input gates that see the input alone and add up to one."""
    h, final = run(
        *min_lstm_call("min_lstm", f, i, v, h0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


@_documented
def min_lstm_step(
    f: ArrayLike,
    i: ArrayLike,
    v: ArrayLike,
    h: ArrayLike | None,
    *,
    activation: Activation = "identity",
) -> tuple[Array, Array]:
    """One step of `min_lstm`, for decoding: what a sequence of one step gives."""
    return run_step(*min_lstm_call("min_lstm_step", f, i, v, h, activation))


# ---- qrnn ----------------------------------------------------------------------------------------


@overload
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
@_documented
def qrnn(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None = None,
    i: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    *,
    activation: Activation = "tanh",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Quasi-recurrent network: f-, fo- or ifo-pooling of what a convolution over time gives."""
    h, final = run(
        *qrnn_call("qrnn", z, f, o, i, c0, activation),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


@_documented
def qrnn_step(
    z: ArrayLike,
    f: ArrayLike,
    o: ArrayLike | None,
    i: ArrayLike | None,
    c: ArrayLike | None,
    *,
    activation: Activation = "tanh",
) -> tuple[Array, Array]:
    """One step of `qrnn`, for decoding: what a sequence of one step gives."""
    return run_step(*qrnn_call("qrnn_step", z, f, o, i, c, activation))


# ---- rg_lru --------------------------------------------------------------------------------------


@overload
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[False] = False,
    **options: Unpack[SequenceOptions],
) -> Array: ...
@overload
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    return_final: Literal[True],
    **options: Unpack[SequenceOptions],
) -> tuple[Array, Array]: ...
@overload
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    return_final: bool,
    **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, Array]: ...
@_documented
def rg_lru(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
) -> Array | tuple[Array, Array]:
    """Real-gated linear recurrent unit of Griffin."""
    h, final = run(
        *rg_lru_call("rg_lru", x, r, i, lam, h0, c),
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    return (h, final) if return_final else h


@_documented
def rg_lru_step(
    x: ArrayLike,
    r: ArrayLike,
    i: ArrayLike,
    lam: ArrayLike,
    h: ArrayLike | None,
    *,
    c: float = 8.0,
) -> tuple[Array, Array]:
    """One step of `rg_lru`, for decoding: what a sequence of one step gives."""
    return run_step(*rg_lru_call("rg_lru_step", x, r, i, lam, h, c))
