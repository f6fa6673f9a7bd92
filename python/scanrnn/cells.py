"""Recurrent cells as fused functions: pre-activations in, outputs out, one pass over memory.

The matrix products before a cell belong to the framework. Arrays are as in `scanrnn.scan`: any
library in, the same one out; PyTorch and JAX arrays go to `scanrnn.torch` and `scanrnn.jax`.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, overload

from . import _core
from ._array import (
    ACCUMULATION,
    REAL,
    Array,
    Descriptor,
    Frontend,
    adopt,
    device_options,
    give_back,
    owner_of,
    require_one_framework,
)
from ._array.layout import Descriptors, Layout, PaddingSide, expect_dtype, expect_shape

__all__ = ["SruGrads", "sru", "sru_step", "sru_vjp"]

Activation: TypeAlias = Literal["identity", "tanh", "relu"]
ArrayT = TypeVar("ArrayT")

_ACTIVATIONS = {"identity": 0, "tanh": 1, "relu": 2}


class SruGrads(NamedTuple):
    """Gradients of `sru`, each in the shape and dtype of its argument; None where that was None."""

    u: Any
    f: Any
    r: Any
    skip: Any
    bias_f: Any
    bias_r: Any
    c0: Any


@overload
def sru(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None = None,
    bias_f: Array | None = None,
    bias_r: Array | None = None,
    c0: Array | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[False] = False,
    return_checkpoints: Literal[False] = False,
) -> ArrayT: ...
@overload
def sru(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None = None,
    bias_f: Array | None = None,
    bias_r: Array | None = None,
    c0: Array | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[True],
    return_checkpoints: Literal[False] = False,
) -> tuple[ArrayT, ArrayT]: ...
@overload
def sru(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None = None,
    bias_f: Array | None = None,
    bias_r: Array | None = None,
    c0: Array | None = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_checkpoints: bool = False,
) -> Any: ...
def sru(
    u: Any,
    f: Any,
    r: Any,
    skip: Any = None,
    bias_f: Any = None,
    bias_r: Any = None,
    c0: Any = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    return_checkpoints: bool = False,
) -> Any:
    """Simple recurrent unit, without the v * c_{t-1} terms: its recurrence is linear in c.

        f'_t = sigmoid(f_t + bias_f),  r'_t = sigmoid(r_t + bias_r)
        c_t = f'_t * c_{t-1} + (1 - f'_t) * u_t
        h_t = r'_t * g(c_t) + (1 - r'_t) * skip_t

    Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", 2018, with v = 0.
    Gates, recurrence and output are one kernel: no gate is ever stored.

    Args:
        u: candidates W x, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by
            default. float16, bfloat16, float32 or float64, with any strides.
        f: forget gates before bias and sigmoid, u's shape and dtype.
        r: reset (highway) gates before bias and sigmoid, u's shape and dtype.
        skip: highway input, u's shape and dtype; None means zeros.
        bias_f: (D,) in u's dtype or its accumulation dtype; None means zeros.
        bias_r: likewise.
        c0: states before the first step, u's shape without the time axis, in u's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        activation: g, "identity", "tanh" or "relu".
        axis: the time axis of u.
        reverse: run from the end of each sequence.
        cu_seqlens: offsets of packed sequences, as in `scanrnn.scan`.
        lengths: valid steps of each sequence, as in `scanrnn.scan`; h is 0 elsewhere.
        reset: as in `scanrnn.scan`: where set, the state that enters the step is dropped.
        padding_side: as in `scanrnn.scan`.
        return_final: return the final states too.
        return_checkpoints: return what `sru_vjp` needs: one state in 32 steps.

    Returns:
        h, with u's shape and dtype, and what was asked for after it: (h, c_T), (h, checkpoints) or
        (h, c_T, checkpoints). c_T has c0's shape and the accumulation dtype, float32 for 16-bit
        floats; checkpoints is an opaque array.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """
    fn = "sru"
    required = {"u": u, "f": f, "r": r}
    optional = {"skip": skip, "bias_f": bias_f, "bias_r": bias_r, "c0": c0}
    sequences = {"cu_seqlens": cu_seqlens, "lengths": lengths, "reset": reset}
    owner = owner_of(fn, "u", u)
    if isinstance(owner, Frontend):
        require_one_framework(fn, required, optional)
        if return_checkpoints:
            raise TypeError(
                f"{fn}: return_checkpoints is True, expected False for a {owner.type_name}, which "
                "differentiates sru itself"
            )
        return owner.module().sru(
            *required.values(),
            *optional.values(),
            activation=activation,
            axis=axis,
            reverse=reverse,
            padding_side=padding_side,
            return_final=return_final,
            **sequences,
        )
    call = _Sru(fn, required, optional, activation, axis, reverse, sequences, padding_side)
    layout, library = call.layout, call.library
    with library.guard(call.u):
        dtype = library.dtype(ACCUMULATION[layout.code])
        h = library.empty_like(call.u)
        final = library.empty(layout.state_shape, dtype, call.u) if return_final else None
        checkpoints = None
        if return_checkpoints:
            checkpoints = library.empty(call.checkpoints_shape, dtype, call.u)
        outputs = [
            layout.full("h", h),
            layout.state("final", final),
            call.describe_checkpoints(checkpoints),
        ]
        _core.sru_forward(*call.describe_arguments(call.arrays), *outputs, **call.keywords)
        results = [call.restore("u", h)]
        if final is not None:
            results.append(call.restore("c0", final))
        if checkpoints is not None:
            results.append(checkpoints)
    results = [give_back(result, u) for result in results]
    return tuple(results) if len(results) > 1 else results[0]


def sru_vjp(
    u: Any,
    f: Any,
    r: Any,
    skip: Any,
    bias_f: Any,
    bias_r: Any,
    c0: Any,
    checkpoints: Any,
    dh: Any,
    dfinal: Any = None,
    *,
    activation: Activation = "identity",
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
) -> SruGrads:
    """Gradients of `sru`, for NumPy, CuPy and DLPack arrays (PyTorch and JAX differentiate it).

    States and gates are recomputed from the checkpoints. Sums over batch and time (the biases')
    have a fixed order.

    Args:
        u: as given to `sru`, and likewise all up to c0.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: see u.
        bias_r: see u.
        c0: see u.
        checkpoints: what `sru` returned with return_checkpoints for the same arguments and options.
        dh: gradient of the loss with respect to h, u's shape and dtype; None means zeros.
        dfinal: gradient with respect to c_T, in c0's shape, in u's dtype or its accumulation dtype;
            None means zeros.
        activation: as given to `sru`, and likewise all that follow.
        axis: see activation.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        padding_side: see activation.

    Returns:
        One gradient an argument, in its shape and dtype; None for arguments that were None.

    Raises:
        ValueError: a shape, stride, length, offset, option or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    fn = "sru_vjp"
    required = {"u": u, "f": f, "r": r}
    optional = {"skip": skip, "bias_f": bias_f, "bias_r": bias_r, "c0": c0}
    sequences = {"cu_seqlens": cu_seqlens, "lengths": lengths, "reset": reset}
    owner = owner_of(fn, "u", u)
    if isinstance(owner, Frontend):
        raise TypeError(
            f"{fn}: u is a {owner.type_name}, which differentiates sru itself; expected a NumPy, "
            "CuPy or DLPack array"
        )
    if checkpoints is None:
        raise TypeError(f"{fn}: checkpoints is None, expected what sru returned")
    extra = {"checkpoints": checkpoints, "dh": dh, "dfinal": dfinal}
    call = _Sru(fn, required, optional, activation, axis, reverse, sequences, padding_side, extra)
    layout, library = call.layout, call.library
    with library.guard(call.u):
        grads = {n: None if v is None else library.empty_like(v) for n, v in call.arrays.items()}
        inputs = [
            *call.describe_arguments(call.arrays),
            call.describe_checkpoints(call.extra["checkpoints"]),
            layout.full("dh", call.extra["dh"]),
            layout.state("dfinal", call.extra["dfinal"]),
        ]
        _core.sru_backward(*inputs, *call.describe_arguments(grads), **call.keywords)
        return SruGrads(
            *(None if v is None else give_back(call.restore(n, v), u) for n, v in grads.items())
        )


def sru_step(
    u: ArrayT,
    f: Array,
    r: Array,
    skip: Array | None,
    bias_f: Array | None,
    bias_r: Array | None,
    c: Array | None,
    *,
    activation: Activation = "identity",
) -> tuple[ArrayT, ArrayT]:
    """One step of `sru`, for decoding: what a sequence of one step gives.

    Args:
        u: (..., D), as in `sru` without the time axis; likewise f, r and skip.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: (D,), as in `sru`.
        bias_r: (D,), as in `sru`.
        c: (..., D), the state before the step; None means zeros.
        activation: as in `sru`.

    Returns:
        (h, c): the output in u's dtype, and the state after the step in the accumulation dtype.

    Raises:
        ValueError: a shape, stride, option or device is wrong.
        TypeError: a dtype or a framework is wrong, or the frameworks differ.
    """

    def one_step(array: Any) -> Any:
        return None if array is None else array[..., None, :]

    def without_time(array: Any) -> Any:
        return array[..., 0, :]

    u_: ArrayT = one_step(u)
    h, final = sru(
        u_,
        one_step(f),
        one_step(r),
        one_step(skip),
        bias_f,
        bias_r,
        c,
        activation=activation,
        return_final=True,
    )
    return without_time(h), final


class _Sru:
    """Arguments of one call of the core's sru.

    Several batch axes are merged into one: a view where the strides allow it, else a copy. (`scan`
    loops over them instead; here forward and backward must agree on one checkpoints array.)
    """

    _FULL = ("u", "f", "r", "skip", "dh")
    _STATE = ("c0", "dfinal")

    def __init__(
        self,
        fn: str,
        required: dict[str, Any],
        optional: dict[str, Any],
        activation: str,
        axis: int,
        reverse: bool,
        sequences: dict[str, Any],
        padding_side: PaddingSide,
        extra: dict[str, Any] | None = None,
    ) -> None:
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"{fn}: activation is {activation!r}, expected 'identity', 'tanh' or 'relu'"
            )
        names = [*required, *optional, *(extra or {})]
        library, arrays = adopt(fn, required, optional | (extra or {}))
        named = dict(zip(names, arrays, strict=True))
        self.fn = fn
        self.library = library
        self._split: Layout | None = None
        with library.guard(named["u"]):
            layout = Layout(
                fn, "u", library, named["u"], axis, **sequences, padding_side=padding_side
            )
            expect_dtype(fn, "u", named["u"], layout.code, REAL)
            if len(layout.batch) > 1:
                self._split = layout
                named = {n: self._merge(n, v) for n, v in named.items()}
                rows = math.prod(layout.batch)
                for n, shape in (("lengths", (rows,)), ("reset", (rows, layout.time))):
                    if sequences[n] is not None:
                        value = library.auxiliary(sequences[n], named["u"])
                        sequences = sequences | {n: value.reshape(shape)}
                layout = Layout(
                    fn, "u", library, named["u"], -2, **sequences, padding_side=padding_side
                )
        self.layout = layout
        self.arrays = {n: named[n] for n in (*required, *optional)}
        self.extra = {n: named[n] for n in extra or ()}
        self.u = self.arrays["u"]
        B, D = math.prod(layout.batch), math.prod(layout.channels)
        N = B if layout.cu_seqlens is None else layout.state_shape[0]
        self.checkpoints_shape = (_core.sru_checkpoint_rows(B, layout.time, N), D)
        self.keywords: dict[str, Any] = {
            "activation": _ACTIVATIONS[activation],
            "reverse": bool(reverse),
            "cu_seqlens": layout.cu_seqlens,
            "lengths": layout.lengths,
            "reset": layout.reset,
            "left_padded": layout.left_padded,
            **device_options(library, self.u),
        }

    def _merge(self, name: str, array: Any) -> Any:
        split = self._split
        assert split is not None
        if array is None:
            return None
        rows = math.prod(split.batch)
        if name in self._FULL:
            expect_shape(self.fn, name, array.shape, split.shape)
            return array.transpose(split.order).reshape(rows, split.time, *split.channels)
        if name in self._STATE:
            expect_shape(self.fn, name, array.shape, split.state_shape)
            return array.reshape(rows, *split.channels)
        return array

    def restore(self, name: str, array: Any) -> Any:
        """A result in the axes of the argument of that name: undo the merging of batch axes."""
        split = self._split
        if split is None:
            return array
        if name in self._FULL:
            inverse = sorted(range(len(split.order)), key=split.order.__getitem__)
            return array.reshape(*split.batch, split.time, *split.channels).transpose(inverse)
        return array.reshape(split.state_shape) if name in self._STATE else array

    def describe_arguments(self, arrays: dict[str, Any]) -> Descriptors:
        """Descriptors of u to c0, or of their gradients, in the core's order."""
        full, state, bias = self.layout.full, self.layout.state, self._describe_bias
        describe = {"bias_f": bias, "bias_r": bias, "c0": state}
        return [describe.get(name, full)(name, array) for name, array in arrays.items()]

    def _describe_bias(self, name: str, array: Any) -> Descriptor | None:
        if array is None:
            return None
        layout = self.layout
        descriptor = layout.describe(name, array)
        expect_dtype(self.fn, name, array, descriptor[1], [layout.code, ACCUMULATION[layout.code]])
        expect_shape(self.fn, name, descriptor[2], layout.channels)
        pointer, code, _, _, device = descriptor
        return descriptor if layout.channels else (pointer, code, (1,), (1,), device)

    def describe_checkpoints(self, array: Any) -> Any:
        """Descriptor of the checkpoints, checked."""
        if array is None:
            return None
        descriptor = self.layout.describe("checkpoints", array)
        expect_dtype(self.fn, "checkpoints", array, descriptor[1], [ACCUMULATION[self.layout.code]])
        expect_shape(self.fn, "checkpoints", descriptor[2], self.checkpoints_shape)
        return descriptor
