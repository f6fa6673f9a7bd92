"""`scan` and its gradient for NumPy and CuPy, and the way to the other frameworks."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, overload

from . import _core
from ._array import (
    ACCUMULATION,
    COMPUTE,
    LIBRARIES,
    NUMPY,
    Array,
    Frontend,
    adopt,
    device_options,
    give_back,
    owner_of,
    require_one_framework,
)
from ._array.layout import Layout, PaddingSide, check_out, needs_split

ArrayT = TypeVar("ArrayT")


@overload
def scan(
    a: Array | complex,
    x: ArrayT,
    h0: Array | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[False] = False,
    out: ArrayT | None = None,
) -> ArrayT: ...
@overload
def scan(
    a: Array | complex,
    x: ArrayT,
    h0: Array | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: Literal[True],
    out: ArrayT | None = None,
) -> tuple[ArrayT, ArrayT]: ...
@overload
def scan(
    a: Array | complex,
    x: ArrayT,
    h0: Array | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool,
    out: ArrayT | None = None,
) -> ArrayT | tuple[ArrayT, ArrayT]: ...
def scan(
    a: Any,
    x: Any,
    h0: Any = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    return_final: bool = False,
    out: Any = None,
) -> Any:
    """Diagonal linear recurrence h_t = a_t * h_{t-1} + x_t over one axis, in parallel over time.

    The result is the serial loop's, to rounding, for every a: gates may be zero, tiny, negative or
    complex. The same inputs give the same bits on any number of threads and in any batch. The
    method is divide and conquer over time by merging affine maps (Blelloch, "Prefix Sums and Their
    Applications", 1990; Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence
    Length", 2018).

    Arrays of any library come back as arrays of the same one. PyTorch and JAX arrays go to
    `scanrnn.torch` and `scanrnn.jax` and are differentiable there. Arrays of a library that only
    speaks DLPack are shared, not copied, and results are given back through its `from_dlpack`;
    where it has none, and for bare capsules, the result is a NumPy (or CuPy) array.

    Args:
        a: gates, in any shape that broadcasts to x by NumPy's rules, or a Python number.
        x: inputs, (batch..., channel) with the time axis inserted at `axis`: (B, T, D) by default.
            (T, D) is one sequence, and (T,) one sequence of one channel. float16, bfloat16 (in
            NumPy by ml_dtypes), float32, float64, complex64 or complex128, with any strides; a and
            x have one dtype.
        h0: states before the first step, x's shape without the time axis, in x's dtype or its
            accumulation dtype; None means zeros. (N, D) with cu_seqlens.
        axis: the time axis of x.
        reverse: run from the end, h_t = a_t * h_{t+1} + x_t.
        cu_seqlens: (N + 1,) int32 or int64, packed sequences: sequence n is the steps
            cu_seqlens[n]:cu_seqlens[n + 1] of x, which is (1, T, D) or (T, D). It starts at 0, does
            not decrease and ends at T.
        lengths: int32 or int64 in x's batch shape, the valid steps of each sequence, 0 to T. Steps
            beyond are not read, and h is 0 there.
        reset: bool, uint8 or 0/1 floats in x's batch shape plus (T,); where set, the state that
            enters this step (h0 too) is dropped: h_t = x_t.
        padding_side: "left" if the valid steps of `lengths` are the last ones, not the first.
        return_final: return the final states too.
        out: array for h (NumPy and CuPy only) with x's shape and dtype; it may not overlap an
            input.

    Returns:
        h, with x's shape and dtype; with return_final (h, final), where final is the state after
        the last valid step of each sequence, in h0's shape and the accumulation dtype: float32 for
        16-bit floats, which also carry their states in float32, and x's dtype for all others.

    Raises:
        ValueError: a shape, stride, length, offset or device is wrong; nothing has been written.
        TypeError: a dtype or a framework is wrong, or the frameworks differ; likewise.

    Example:
        >>> import numpy as np
        >>> import scanrnn
        >>> scanrnn.scan(np.array([0.5, 0.5, 2.0]), np.array([1.0, 2.0, 3.0]))
        array([1. , 2.5, 8. ])
    """
    # Small calls are common: well-formed (B, T, D) arrays of NumPy and CuPy skip the general path.
    kind = type(x)
    quick = LIBRARIES.get(kind)
    if (
        quick is not None
        and type(a) is kind
        and (h0 is None or type(h0) is kind)
        and (out is None or type(out) is kind)
        and x.ndim == 3
        and axis == -2
        and cu_seqlens is lengths is reset is None
        and padding_side == "right"
    ):
        x_ = quick.describe("scan", "x", x)
        a_ = quick.describe("scan", "a", a)
        h0_ = None if h0 is None else quick.describe("scan", "h0", h0)
        h: Any = quick.empty_like(x) if out is None else out
        h_ = quick.describe("scan", "out", h)
        code, shape = x_[1:3]
        state = shape[::2]
        if (
            a_[1:3] == h_[1:3] == (code, shape)
            and code in COMPUTE
            and (h0_ is None or (h0_[2] == state and h0_[1] in (code, ACCUMULATION[code])))
        ):
            if out is not None:
                check_out("scan", quick, out, "x", {"a": a, "x": x, "h0": h0})
            final: Any = None
            final_ = None
            if return_final:
                final = quick.empty(state, quick.dtype(ACCUMULATION[code]), x)
                final_ = quick.describe("scan", "final", final)
            where = {} if quick is NUMPY else device_options(quick, x)
            _core.scan_forward(a_, x_, h0_, h_, final_, bool(reverse), **where)
            return (h, final) if return_final else h

    owner = owner_of("scan", "x", x)
    if isinstance(owner, Frontend):
        require_one_framework("scan", {"x": x, "a": a}, {"h0": h0})
        if out is not None:
            raise TypeError(f"scan: out was given, expected None for a {owner.type_name}")
        return owner.module().scan(
            a,
            x,
            h0,
            axis=axis,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            reset=reset,
            padding_side=padding_side,
            return_final=return_final,
        )

    library, (x_, a_, h0_) = adopt("scan", {"x": x, "a": a}, {"h0": h0})
    with library.guard(x_):
        layout = Layout("scan", "x", library, x_, axis, cu_seqlens, lengths, reset, padding_side)
        inputs = [layout.gate("a", a_), layout.full("x", x_), layout.state("h0", h0_)]
        if out is None:
            h = library.empty_like(x_)
        else:
            h = out
            check_out("scan", library, out, "x", {"a": a_, "x": x_, "h0": h0_})
        final = None
        if return_final:
            final = library.empty(layout.state_shape, library.dtype(ACCUMULATION[layout.code]), x_)
        arrays = [*inputs, layout.full("out", h), layout.state("final", final)]
        calls = layout.calls(arrays, reverse=bool(reverse), **device_options(library, x_))
        for parts, keywords in calls:
            _core.scan_forward(*parts, **keywords)
    if out is None:
        h = give_back(h, x)
    return (h, give_back(final, x)) if return_final else h


def scan_vjp(
    a: Array | complex,
    h: ArrayT,
    dh: ArrayT | None = None,
    dfinal: Array | None = None,
    h0: Array | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: PaddingSide = "right",
    conj: bool = True,
) -> tuple[ArrayT, ArrayT, ArrayT | None]:
    """Gradients of `scan`, for NumPy, CuPy and DLPack arrays (PyTorch and JAX differentiate it).

    The adjoint of a recurrence is a recurrence in the other direction,
    g_t = dh_t + a_{t+1} g_{t+1}; then dx_t = g_t and da_t = g_t h_{t-1}. It costs one more scan,
    and needs no x.

    Args:
        a: the gates that were given to `scan`.
        h: what `scan` returned.
        dh: gradient of the loss with respect to h, in h's shape and dtype; None means zeros.
        dfinal: gradient with respect to the final states, in h0's shape, in h's dtype or its
            accumulation dtype; None means zeros.
        h0: the initial states that were given to `scan`.
        axis: as in `scan`.
        reverse: as in `scan`.
        cu_seqlens: as in `scan`.
        lengths: as in `scan`; da and dx are 0 at invalid steps.
        reset: as in `scan`; no gradient passes a reset.
        padding_side: as in `scan`.
        conj: for complex dtypes, PyTorch's convention: the gradient is that with respect to the
            conjugate, so gradients point uphill. False gives JAX's.

    Returns:
        (da, dx, dh0): da in a's shape, summed (in a fixed order) over the axes that were broadcast;
        dx in h's shape; dh0 in h0's shape and dtype, or None if h0 is None.

    Raises:
        ValueError: a shape, stride, length, offset or device is wrong.
        TypeError: a dtype or a framework is wrong.
    """
    fn = "scan_vjp"
    owner = owner_of(fn, "h", h)
    if isinstance(owner, Frontend):
        raise TypeError(
            f"{fn}: h is a {owner.type_name}, which differentiates scan itself; expected a NumPy, "
            "CuPy or DLPack array"
        )
    library, (h_, a_, dh_, dfinal_, h0_) = adopt(
        fn, {"h": h, "a": a}, {"dh": dh, "dfinal": dfinal, "h0": h0}
    )
    with library.guard(h_):
        layout = Layout(fn, "h", library, h_, axis, cu_seqlens, lengths, reset, padding_side)
        inputs = [
            layout.gate("a", a_),
            layout.full("h", h_),
            layout.state("h0", h0_),
            layout.full("dh", dh_),
            layout.state("dfinal", dfinal_),
        ]
        da, dx = library.empty_like(a_), library.empty_like(h_)
        dh0 = None if h0_ is None else library.empty_like(h0_)

        def arrays() -> list[Any]:
            outputs = [layout.gate("da", da), layout.full("dx", dx), layout.state("dh0", dh0)]
            return inputs + outputs

        gradient = arrays()
        # When several calls share what da sums over, each batch row first gets its own.
        partial = layout.broadcasts_batch(inputs[0]) and needs_split(layout.batch, gradient)
        if partial:
            shape = layout.with_full_batch(a_.shape)
            inputs[0] = layout.gate("a", library.xp.broadcast_to(a_, shape))
            da = library.empty(shape, a_.dtype, a_)
            gradient = arrays()
        if 0 in layout.batch:
            da[...] = 0  # a sum over no rows
        calls = layout.calls(
            gradient, reverse=bool(reverse), conj=bool(conj), **device_options(library, h_)
        )
        for parts, keywords in calls:
            _core.scan_backward(*parts, **keywords)
        if partial:
            da = layout.sum_to(da, a_.shape)
    return give_back(da, h), give_back(dx, h), None if dh0 is None else give_back(dh0, h)
