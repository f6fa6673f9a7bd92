"""The core's cells as JAX primitives, and one way to call them all.

What a cell's arguments are is in the core's table; its equations, which give the derivatives that
no kernel computes, are in `_compose`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from .. import _core
from .._array.options import ACTIVATIONS
from .._array.options import activation_number as number_of
from ._call import (
    REAL_DTYPES,
    Call,
    as_array,
    as_step,
    check_call,
    check_main,
    check_state,
    expect_dtype,
    expect_shape,
)
from ._cell import ACCUMULATION, Arrays, Cell, Steps, absent, present
from ._compose import COMPOSED
from ._scan import SCAN

_TABLE = {row["name"]: row for row in _core.cell_table()}


# ---- Primitives ----------------------------------------------------------------------------------


def _compose(name: str, inputs: Arrays, steps: Steps) -> tuple[Array, Array]:
    """A cell out of JAX operators and a scan."""
    *arrays, c0 = inputs
    dtype, valid = ACCUMULATION[arrays[0].dtype], steps.valid()

    def value(array: Array, optional: bool) -> Array | None:
        if optional and not present(array):
            return None
        array = array.astype(dtype)
        # Whatever is in the padding stays there.
        return jnp.where(valid, array, 0) if array.ndim == 3 else array

    row = _TABLE[name]
    values = [value(x, spec["optional"]) for x, spec in zip(arrays, row["inputs"], strict=True)]
    a, x, output = COMPOSED[name](*values, *steps.options.values)
    options = replace(steps.options, values=())
    states, final = SCAN((a, x, c0.astype(dtype)), steps.index, steps.reset, options)
    return jnp.where(valid, output(states), 0).astype(arrays[0].dtype), final


def _function_of(
    name: str, inputs: Arrays, chosen: Sequence[bool], steps: Steps
) -> tuple[Callable[..., tuple[Array, Array]], list[Array]]:
    """The composed cell as a function of some of its inputs, and these."""

    def function(*values: Array) -> tuple[Array, Array]:
        rest = iter(values)
        merged = [next(rest) if c else x for x, c in zip(inputs, chosen, strict=True)]
        return _compose(name, merged, steps)

    return function, [x for x, c in zip(inputs, chosen, strict=True) if c]


def _tangent(name: str, residuals: Arrays, directions: Arrays, steps: Steps) -> tuple[Array, Array]:
    chosen = [present(direction) for direction in directions]
    function, values = _function_of(name, residuals[:-1], chosen, steps)
    out: tuple[Array, Array] = jax.jvp(function, values, [d for d in directions if present(d)])[1]
    return out


def _backward(
    name: str,
    residuals: Arrays,
    cotangents: Arrays,
    steps: Steps,
    wanted: Sequence[bool],
) -> list[Array]:
    function, values = _function_of(name, residuals[:-1], wanted, steps)
    results, pullback = jax.vjp(function, *values)
    given = zip(cotangents, results, strict=True)
    grads = iter(pullback(tuple(g if present(g) else jnp.zeros_like(y) for g, y in given)))
    return [
        next(grads) if want else absent().astype(x.dtype)
        for want, x in zip(wanted, residuals, strict=False)
    ]


def _cell(row: Mapping[str, Any]) -> Cell:
    """A row of the core's table as primitives.

    Operands: the row's inputs, (B, T, D) or (D,), and c0 (N, D). Residuals: the same, and h or the
    checkpoints.
    """
    name = row["name"]
    saved = 0 if row["state_is_output"] else 2
    roles = (*("d" if spec["vector"] else "btd" for spec in row["inputs"]), "bd")
    return Cell(
        name=name,
        roles=roles,
        residual_roles=(*roles, "btd" if row["state_is_output"] else ""),
        main=0,
        residuals=lambda inputs, results: (*inputs, results[saved]),
        tangent=functools.partial(_tangent, name),
        backward=functools.partial(_backward, name),
        kind=row["kind"],
    )


CELLS = {name: _cell(row) for name, row in _TABLE.items()}


# ---- Calls ---------------------------------------------------------------------------------------


def activation_number(fn: str, name: str, among: Sequence[str] = ACTIVATIONS) -> float:
    """The core's number of an activation. ValueError if there is none of that name."""
    return float(number_of(fn, "activation", name, among))


Specs: TypeAlias = Sequence[Mapping[str, Any]]  # inputs of a row of the core's tables


def check_inputs(
    fn: str,
    specs: Specs,
    arguments: Mapping[str, Any],
    values: tuple[float, ...],
    **options: Any,
) -> tuple[list[Array | None], Call, Array | None, Array | None]:
    """Check the arguments of a cell.

    Args:
        fn: the public function, for error texts.
        specs: the inputs in the core's table.
        arguments: the inputs by their public names, in the table's order; None for absent ones.
        values: the cell's options, in the table's order.
        options: of the sequences, as the user gave them.

    Returns:
        The inputs as arrays; the call; the index array and the reset array, as `check_call`.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong, or a required argument is missing.
    """
    arrays = {
        argument: as_array(fn, argument, value)
        for (argument, value), spec in zip(arguments.items(), specs, strict=True)
        if value is not None or not spec["optional"]
    }
    vectors = [n for n, spec in zip(arguments, specs, strict=True) if spec["vector"]]
    whole = {n: array for n, array in arrays.items() if n not in vectors}
    main = next(iter(whole))
    shape, dtype = check_main(fn, whole, REAL_DTYPES)
    for argument, array in whole.items():
        expect_shape(fn, argument, array, shape)
    call, index, flags = check_call(fn, main, shape, dtype, values=values, **options)
    for argument in filter(arrays.__contains__, vectors):
        expect_dtype(fn, argument, arrays[argument], [dtype, ACCUMULATION[dtype]])
        expect_shape(fn, argument, arrays[argument], call.channel_shape)
    return [arrays.get(argument) for argument in arguments], call, index, flags


def operands_of(arrays: Sequence[Array | None], specs: Specs, call: Call) -> list[Array]:
    """The operands of a cell: (B, T, D), and (D,) for vectors."""
    return [
        x.reshape(-1) if spec["vector"] and x is not None else call.whole(x)
        for x, spec in zip(arrays, specs, strict=True)
    ]


@functools.partial(jax.jit, static_argnames=("name", "call"))
def _run(
    arrays: Sequence[Array | None],
    state: Array | None,
    index: Array | None,
    reset: Array | None,
    *,
    name: str,
    call: Call,
) -> tuple[Array, Array]:
    inputs = operands_of(arrays, _TABLE[name]["inputs"], call)
    h, final = CELLS[name](
        (*inputs, call.state(state)), call.index(index), call.reset(reset), call.options
    )
    return call.unwhole(h), call.unstate(final)


def run(
    fn: str,
    name: str,
    arguments: Mapping[str, Any],
    state: tuple[str, Any],
    values: tuple[float, ...],
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: str = "right",
) -> tuple[Array, Array]:
    """Check the arguments of a cell, and call it.

    Args:
        fn: the public function, for error texts.
        name: the cell's, in the core's table.
        arguments: its inputs by their public names, in the table's order; None for absent ones.
        state: name and value of the state before the first step.
        values: the cell's options, in the table's order.
        axis: as the user gave it, and likewise all that follow.
        reverse: see axis.
        cu_seqlens: see axis.
        lengths: see axis.
        reset: see axis.
        padding_side: see axis.

    Returns:
        h and the final states, as the public functions return them.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong, or a required argument is missing.
    """
    arrays, call, index, flags = check_inputs(
        fn,
        _TABLE[name]["inputs"],
        arguments,
        values,
        axis=axis,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
        reset=reset,
        padding_side=padding_side,
    )
    checked = check_state(fn, *state, call)
    h, final = _run(arrays, checked, index, flags, name=name, call=call)
    return h, final


def one_step(fn: str, specs: Specs, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of one step, which share a shape, as inputs of a sequence of one step."""
    shape: tuple[int, ...] | None = None

    def sequence(argument: str, value: Any) -> Array:
        nonlocal shape
        array = as_step(fn, argument, value)
        if shape is None:
            shape = array.shape
        expect_shape(fn, argument, array, shape)
        return array[..., None, :]

    return {
        argument: value if value is None or spec["vector"] else sequence(argument, value)
        for (argument, value), spec in zip(arguments.items(), specs, strict=True)
    }


def run_step(
    fn: str,
    name: str,
    arguments: Mapping[str, Any],
    state: tuple[str, Any],
    values: tuple[float, ...],
) -> tuple[Array, Array]:
    """`run` on one step: arguments have no time axis."""
    sequences = one_step(fn, _TABLE[name]["inputs"], arguments)
    state_name, value = state
    h, final = run(fn, name, sequences, (state_name.removesuffix("0"), value), values)
    return h[..., 0, :], final
