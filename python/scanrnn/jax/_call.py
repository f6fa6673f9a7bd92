"""From the user's arguments to the operands of a cell: checks, which compute nothing, and axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._array import type_name
from .._array.options import check_sequence_options, listed, time_axis
from .._array.values import check_lengths, check_offsets
from ._cell import (
    ACCUMULATION,
    CHANNELS_INNERMOST,
    TIME_INNERMOST,
    TIME_OUTERMOST,
    Options,
    absent,
)

DType: TypeAlias = np.dtype[Any]

DTYPES = tuple(ACCUMULATION)
REAL_DTYPES = tuple(dtype for dtype in DTYPES if not jnp.issubdtype(dtype, jnp.complexfloating))


# ---- Checks --------------------------------------------------------------------------------------


def _listing(dtypes: Sequence[DType]) -> str:
    return listed(dict.fromkeys(dtype.name for dtype in dtypes))


def check_params(fn: str, params: object, names: Sequence[str]) -> None:
    """Check that a layer's parameters are there.

    Raises:
        TypeError: params maps nothing to anything.
        ValueError: one of those names is missing.
    """
    if not isinstance(params, Mapping):
        kind = type(params).__name__
        raise TypeError(f"{fn}: params is a {kind}, expected a mapping from names to arrays")
    for name in names:
        if name not in params:
            raise ValueError(f"{fn}: params has {sorted(params)}, expected {name} too")


def as_array(fn: str, name: str, value: Any) -> Array:
    """An argument as a JAX array. On a mesh with explicit axes it is gathered.

    Raises:
        TypeError: JAX does not take it for one.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        given = type_name(value)
        if isinstance(value, np.ndarray):
            given += f" of dtype {value.dtype}"
        raise TypeError(
            f"{fn}: {name} is a {given}, expected an array that JAX takes ({error})"
        ) from error
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"{fn}: {name} has dtype {array.dtype}, expected numbers")
    # There its sharding is part of an array's type, and of its gradient's. Gathered in a step of
    # its own, it gets the gradient back from JAX as it was.
    sharding: Any = jax.typeof(array).sharding
    if any(sharding.spec):
        whole = sharding.update(spec=PartitionSpec())  # type: ignore[no-untyped-call]
        array = jax.reshard(array, whole)  # type: ignore[no-untyped-call]
    return array


def as_step(fn: str, name: str, value: Any) -> Array:
    """An argument of one step as a JAX array; ValueError if it has no channel axis."""
    array = as_array(fn, name, value)
    if array.ndim == 0:
        raise ValueError(f"{fn}: {name} has shape (), expected at least a channel axis")
    return array


def expect_dtype(fn: str, name: str, array: Array, expected: Sequence[DType]) -> None:
    """TypeError unless an array has one of the dtypes, or is weakly typed and would take one."""
    if array.dtype in expected:
        return
    if array.weak_type and jnp.result_type(array, expected[-1]) == expected[-1]:
        return
    raise TypeError(f"{fn}: {name} has dtype {array.dtype.name}, expected {_listing(expected)}")


def expect_shape(fn: str, name: str, array: Array, expected: Sequence[int]) -> None:
    """ValueError unless an array has the shape."""
    if array.shape != tuple(expected):
        raise ValueError(f"{fn}: {name} has shape {array.shape}, expected {tuple(expected)}")


def _is_on_host(value: Any) -> bool:
    if not isinstance(value, jax.Array):
        return True
    if isinstance(value, jax.core.Tracer) or not value.is_fully_addressable:
        return False
    return all(device.platform == "cpu" for device in value.devices())


def _index(fn: str, name: str, value: Any) -> tuple[Array, np.ndarray[Any, Any] | None]:
    """An index array, and its values if they can be had without waiting for a device."""
    if isinstance(value, (list, tuple)) and not len(value):
        value = np.zeros(0, np.int32)  # an empty list makes a float array
    array = as_array(fn, name, value)
    values = np.asarray(value) if _is_on_host(value) else None
    if array.dtype not in (np.int32, np.int64):
        raise TypeError(f"{fn}: {name} has dtype {array.dtype.name}, expected int32 or int64")
    return array, values


def _check_offsets(fn: str, value: Any, time: int) -> Array:
    array, values = _index(fn, "cu_seqlens", value)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{fn}: cu_seqlens has shape {array.shape}, expected (N + 1,)")
    if values is not None:
        check_offsets(fn, values, time)
    return array


def _check_lengths(fn: str, value: Any, batch: tuple[int, ...], time: int) -> Array:
    array, values = _index(fn, "lengths", value)
    expect_shape(fn, "lengths", array, batch)
    if values is not None:
        check_lengths(fn, values, time)
    return array


def _check_reset(fn: str, value: Any, batch: tuple[int, ...], time: int) -> Array:
    array = as_array(fn, "reset", value)
    if isinstance(value, (list, tuple)):
        array = array != 0
    if array.dtype not in (np.bool_, np.uint8) and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{fn}: reset has dtype {array.dtype.name}, expected bool, uint8 or a float"
        )
    expect_shape(fn, "reset", array, (*batch, time))
    return array


def check_main(
    fn: str, arrays: Mapping[str, Array], dtypes: Sequence[DType]
) -> tuple[tuple[int, ...], DType]:
    """Shape and dtype of a call, from the arrays that determine them.

    Args:
        fn: the public function, for error texts.
        arrays: arguments by name, the main one first. Weakly typed ones adapt to the others.
        dtypes: what the function takes.

    Raises:
        TypeError: an array has a dtype that is not taken, or not the first one's.
    """
    (name, main), *others = arrays.items()
    dtype = np.dtype(jnp.result_type(*arrays.values())) if main.weak_type else main.dtype
    if dtype not in dtypes:
        raise TypeError(f"{fn}: {name} has dtype {dtype.name}, expected {_listing(dtypes)}")
    for name, array in others:
        expect_dtype(fn, name, array, [dtype])
    return main.shape, dtype


# ---- A call --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What is static about a call. `check_call` makes one.

    The main array has axes (batch..., channel) with the time axis inserted at `axis`; without a
    batch or a channel axis these are 1. The methods take arrays to the operands of a cell, and
    back. Where the time axis is the first, the last or the last but one, no data is moved for that.
    """

    shape: tuple[int, ...]
    dtype: DType
    axis: int
    options: Options
    #: Shape of a state as the user sees it.
    state_shape: tuple[int, ...]

    @property
    def channel_shape(self) -> tuple[int, ...]:
        """The channel axis, if there is one."""
        return tuple(n for i, n in enumerate(self.shape) if i != self.axis)[-1:]

    @property
    def size(self) -> tuple[int, int, int]:
        """B, T and D."""
        return _size(self.shape, self.axis)

    # To operands

    def whole(self, array: Array | None) -> Array:
        """(B, T, D) of an array with the main one's shape."""
        if array is None:
            return absent()
        array = array.astype(self.dtype)
        batch, time, channels = _size(array.shape, self.axis)
        if array.ndim == 1:
            return array.reshape(1, time, 1)
        if self.options.order == TIME_INNERMOST:
            return array.reshape(batch, channels, time).swapaxes(1, 2)
        if self.options.order == TIME_OUTERMOST:
            return array.reshape(time, batch, channels).swapaxes(0, 1)
        return jnp.moveaxis(array, self.axis, -2).reshape(batch, time, channels)

    def broadcast(self, array: Array) -> Array:
        """The same of an array that broadcasts to the main one's shape; sizes may be 1."""
        array = array.reshape((1,) * (len(self.shape) - array.ndim) + array.shape)
        batch = _batch_axes(len(self.shape), self.axis)
        if any(
            array.shape[i] != 1 for i in batch
        ):  # operands broadcast over all of B or not at all
            shape = [self.shape[i] if i in batch else n for i, n in enumerate(array.shape)]
            array = jnp.broadcast_to(array, shape)
        return self.whole(array)

    def state(self, array: Array | None) -> Array:
        """(N, D) of a state."""
        if array is None:
            return absent()
        if array.dtype != self.dtype:
            array = array.astype(ACCUMULATION[self.dtype])
        return array.reshape(math.prod(self.state_shape[:-1]), self.size[2])

    def index(self, array: Array | None) -> Array:
        """cu_seqlens or lengths."""
        return absent() if array is None else array.reshape(-1)

    def reset(self, array: Array | None) -> Array:
        """(B, T) flags."""
        if array is None:
            return absent()
        return array.astype(bool).astype(jnp.uint8).reshape(self.size[:2])

    # From results

    def unwhole(self, array: Array) -> Array:
        """An array of the main one's shape from (B, T, D)."""
        if self.options.order == TIME_INNERMOST:
            return array.swapaxes(1, 2).reshape(self.shape)
        if self.options.order == TIME_OUTERMOST:
            return array.swapaxes(0, 1).reshape(self.shape)
        if len(self.shape) == 1:
            return array.reshape(self.shape)
        shape = list(self.shape)
        time = shape.pop(self.axis)
        return jnp.moveaxis(array.reshape(*shape[:-1], time, shape[-1]), -2, self.axis)

    def unstate(self, array: Array) -> Array:
        """A state as the user sees it."""
        return array.reshape(self.state_shape)


def _batch_axes(ndim: int, axis: int) -> list[int]:
    return [i for i in range(ndim) if i != axis][:-1]


def _size(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    *batch, channels = [n for i, n in enumerate(shape) if i != axis] or [1]
    return math.prod(batch), shape[axis], channels


def check_call(
    fn: str,
    name: str,
    shape: tuple[int, ...],
    dtype: DType,
    *,
    axis: int = -2,
    reverse: bool = False,
    cu_seqlens: Any = None,
    lengths: Any = None,
    reset: Any = None,
    padding_side: str = "right",
    values: tuple[float, ...] = (),
) -> tuple[Call, Array | None, Array | None]:
    """Check the options of a call, and its index and reset arrays.

    Args:
        fn: the public function, for error texts.
        name: the main array's name, for error texts.
        shape: the main array's shape.
        dtype: the main array's dtype.
        axis: the time axis, as given.
        reverse: as given.
        cu_seqlens: as given.
        lengths: as given.
        reset: as given.
        padding_side: as given.
        values: the cell's own options as numbers.

    Returns:
        The call, the index array (cu_seqlens or lengths) and the reset array.

    Raises:
        ValueError: the axis, a shape, a combination of arguments, or a value that is known already
            is wrong. Values that are traced are checked by the core.
        TypeError: a dtype is wrong.
    """
    ndim, axis = len(shape), time_axis(fn, name, shape, axis)
    check_sequence_options(fn, cu_seqlens, lengths, padding_side)

    batch = tuple(shape[i] for i in _batch_axes(ndim, axis))
    channels = tuple(shape[i] for i in range(ndim) if i != axis)[len(batch) :]
    index = None
    state_shape = (*batch, *channels)
    if cu_seqlens is not None:
        if batch not in ((), (1,)):
            raise ValueError(
                f"{fn}: {name} has shape {shape}, expected a batch size of 1 or no batch axis with "
                "cu_seqlens"
            )
        index = _check_offsets(fn, cu_seqlens, shape[axis])
        state_shape = (index.shape[0] - 1, *channels)
    elif lengths is not None:
        index = _check_lengths(fn, lengths, batch, shape[axis])
    if reset is not None:
        reset = _check_reset(fn, reset, batch, shape[axis])

    order = CHANNELS_INNERMOST
    if ndim > 1 and axis == ndim - 1:
        order = TIME_INNERMOST
    elif ndim > 2 and axis == 0:
        order = TIME_OUTERMOST
    options = Options(
        reverse=bool(reverse),
        packed=cu_seqlens is not None,
        left_padded=padding_side == "left" and lengths is not None,
        order=order,
        values=values,
    )
    return Call(shape, dtype, axis, options, state_shape), index, reset


def check_state(fn: str, name: str, value: Any, call: Call) -> Array | None:
    """Check a state that may be None."""
    if value is None:
        return None
    array = as_array(fn, name, value)
    expect_dtype(fn, name, array, [call.dtype, ACCUMULATION[call.dtype]])
    expect_shape(fn, name, array, call.state_shape)
    return array
