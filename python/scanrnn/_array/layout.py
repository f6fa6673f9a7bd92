"""How arrays with any axes become the (B, T, D) arrays of the core.

All of it is arithmetic on descriptors: axes are reordered, broadcast and merged by their strides,
so that no array is copied. Several batch axes that don't merge into one (a sliced middle axis, a
gate that is broadcast over some of them) become several calls of the core.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from . import owner_of
from ._types import ACCUMULATION, COMPUTE, ITEMSIZES, NAMES, Descriptor, Library
from .options import check_sequence_options, listed, time_axis
from .values import check_lengths, check_offsets

PaddingSide: TypeAlias = Literal["left", "right"]
# Which of them are None depends on the call, so the core's signatures can't be checked further.
Descriptors: TypeAlias = list[Any]


def expect_shape(fn: str, name: str, got: Sequence[int], expected: Sequence[int]) -> None:
    """ValueError unless both shapes are equal."""
    if tuple(got) != tuple(expected):
        raise ValueError(f"{fn}: {name} has shape {tuple(got)}, expected {tuple(expected)}")


def expect_dtype(fn: str, name: str, array: Any, code: int, expected: Sequence[int]) -> None:
    """TypeError unless the dtype code of an array is one of those expected."""
    if code not in expected:
        names = listed(NAMES[c] for c in dict.fromkeys(expected))
        raise TypeError(f"{fn}: {name} has dtype {array.dtype}, expected {names}")


def check_out(fn: str, library: Library, out: Any, name: str, inputs: Mapping[str, Any]) -> None:
    """Check that a caller's output array can be written.

    Args:
        fn: the public function, for error texts.
        library: the library of the call's arrays.
        out: the array; its shape and dtype are left to `Layout.full`.
        name: the main array's name, for error texts.
        inputs: arrays by name that it may not share memory with, or None.

    Raises:
        TypeError: it is not an array of the library.
        ValueError: it is read-only, its elements overlap, or it overlaps an input.
    """
    owner = owner_of(fn, "out", out)
    if owner is not library:
        raise TypeError(
            f"{fn}: out is a {owner.type_name}, expected a {library.type_name} like {name}"
        )
    library.check_writable(fn, "out", out)
    if 0 in out.strides and any(
        n > 1 and s == 0 for n, s in zip(out.shape, out.strides, strict=True)
    ):
        raise ValueError(f"{fn}: out has strides {out.strides}, expected no stride of 0")
    for other, array in inputs.items():
        if array is not None and library.may_overlap(out, array):
            raise ValueError(f"{fn}: out overlaps {other}, expected memory of its own")


class Layout:
    """The axes of one call, and its sequences.

    Args:
        fn: the public function, for error texts.
        name: the main array's name, for error texts.
        library: the library of all arrays of the call.
        main: the array whose shape counts; its axes are (batch..., channel) with the time axis
            inserted at `axis`. Without a channel or a batch axis these are 1.
        axis: the time axis.
        cu_seqlens: offsets of packed sequences, as the user gave them.
        lengths: valid steps of each sequence, likewise.
        reset: reset flags, likewise.
        padding_side: where the invalid steps are.

    Raises:
        ValueError: the axis, a shape, a device or a combination of arguments is wrong.
        TypeError: a dtype is wrong.
    """

    def __init__(
        self,
        fn: str,
        name: str,
        library: Library,
        main: Any,
        axis: int,
        cu_seqlens: object = None,
        lengths: object = None,
        reset: object = None,
        padding_side: str = "right",
    ) -> None:
        self.fn, self.name, self.library = fn, name, library
        self.main = library.describe(fn, name, main)
        self.code = self.main[1]
        expect_dtype(fn, name, main, self.code, COMPUTE)
        self.shape = shape = tuple(main.shape)
        time = time_axis(fn, name, shape, axis)
        rest = [i for i in range(len(shape)) if i != time]
        #: The axes in the core's order: batch axes, time, and the channel if there is one.
        self.order = (*rest[:-1], time, *rest[-1:])
        self.batch = tuple(shape[i] for i in rest[:-1])
        self.time = shape[time]
        self.channels = tuple(shape[i] for i in rest[-1:])

        check_sequence_options(fn, cu_seqlens, lengths, padding_side)
        # The library's arrays must outlive the call: descriptors don't own memory.
        self._keep: list[Any] = []
        self.cu_seqlens = self._offsets(cu_seqlens, main)
        self.lengths = self._lengths(lengths, main)
        self.reset = self._reset(reset, main)
        self.left_padded = padding_side == "left" and lengths is not None

        #: Shape of a state as the user sees it.
        self.state_shape = (*self.batch, *self.channels)
        if self.cu_seqlens is not None:
            self.state_shape = (self.cu_seqlens[2][0] - 1, *self.channels)

    # What the core needs besides arrays

    def describe(self, name: str, array: Any) -> Descriptor:
        """Descriptor of an array, which must be on the main one's device."""
        descriptor = self.library.describe(self.fn, name, array)
        if descriptor[4] != self.main[4]:
            raise ValueError(
                f"{self.fn}: {name} is on cuda:{descriptor[4]}, expected cuda:{self.main[4]} like "
                f"{self.name}"
            )
        return descriptor

    def _index(self, name: str, value: object, main: Any) -> tuple[Any, Descriptor]:
        host = self.library.host(value)
        if host is not None and host.size and host.dtype.kind == "i":
            if name == "lengths":
                check_lengths(self.fn, host, self.time)
            elif host.ndim == 1:
                check_offsets(self.fn, host, self.time)
        array = self.library.auxiliary(value, main)
        if array.size == 0 and isinstance(value, (list, tuple)):  # NumPy makes [] a float array
            array = array.astype("int64")
        if array.dtype not in ("int32", "int64"):
            raise TypeError(f"{self.fn}: {name} has dtype {array.dtype}, expected int32 or int64")
        self._keep.append(array)
        return array, self.describe(name, array)

    def _offsets(self, value: object, main: Any) -> Descriptor | None:
        if value is None:
            return None
        if self.batch not in ((), (1,)):
            raise ValueError(
                f"{self.fn}: {self.name} has shape {self.shape}, expected a batch size of 1 or no "
                "batch axis with cu_seqlens"
            )
        array, descriptor = self._index("cu_seqlens", value, main)
        if array.ndim != 1 or array.size == 0:
            raise ValueError(f"{self.fn}: cu_seqlens has shape {array.shape}, expected (N + 1,)")
        return descriptor

    def _lengths(self, value: object, main: Any) -> Descriptor | None:
        if value is None:
            return None
        array, descriptor = self._index("lengths", value, main)
        expect_shape(self.fn, "lengths", array.shape, self.batch)
        # The core checks values too, but of one call at a time: here before the first one writes.
        if len(self.batch) > 1 and self.main[4] < 0:
            check_lengths(self.fn, array, self.time)
        return descriptor if self.batch else _insert_axis(descriptor)

    def _reset(self, value: object, main: Any) -> Descriptor | None:
        if value is None:
            return None
        array = self.library.auxiliary(value, main)
        kind = array.dtype.kind
        if kind == "f" or array.dtype.name == "bfloat16" or isinstance(value, (list, tuple)):
            array = array != 0
        elif kind != "b" and array.dtype != "uint8":
            raise TypeError(
                f"{self.fn}: reset has dtype {array.dtype}, expected bool, uint8 or a float"
            )
        expect_shape(self.fn, "reset", array.shape, (*self.batch, self.time))
        array = array.view("uint8")
        self._keep.append(array)
        descriptor = self.describe("reset", array)
        return descriptor if self.batch else _insert_axis(descriptor)

    # Arguments as (batch..., T, D) and (batch..., D) descriptors; None stays None

    def full(self, name: str, array: Any) -> Any:
        """An array of the main one's shape and dtype as (batch..., T, D), at least 3 axes."""
        if array is None:
            return None
        descriptor = self.describe(name, array)
        expect_dtype(self.fn, name, array, descriptor[1], [self.code])
        expect_shape(self.fn, name, descriptor[2], self.shape)
        return self._ordered(descriptor)

    def gate(self, name: str, array: Any) -> Any:
        """An array that broadcasts to the main one's shape, likewise; axes may be 1."""
        if array is None:
            return None
        pointer, code, shape, strides, device = self.describe(name, array)
        expect_dtype(self.fn, name, array, code, [self.code])
        missing = len(self.shape) - len(shape)
        padded = (1,) * missing + shape
        if missing < 0 or any(n not in (1, m) for n, m in zip(padded, self.shape, strict=True)):
            raise ValueError(
                f"{self.fn}: {name} has shape {shape}, expected a shape that broadcasts to "
                f"{self.shape}"
            )
        return self._ordered((pointer, code, padded, (0,) * missing + strides, device))

    def state(self, name: str, array: Any) -> Any:
        """An array of `state_shape` as (batch..., D), or (N, D) for packed sequences."""
        if array is None:
            return None
        descriptor = self.describe(name, array)
        expect_dtype(self.fn, name, array, descriptor[1], [self.code, ACCUMULATION[self.code]])
        expect_shape(self.fn, name, descriptor[2], self.state_shape)
        if not self.channels:
            descriptor = _append_axis(descriptor)
        return descriptor if self.batch or self.cu_seqlens else _insert_axis(descriptor)

    def _ordered(self, descriptor: Descriptor) -> Descriptor:
        if self.order == (0, 1, 2):
            return descriptor
        pointer, code, shape, strides, device = descriptor
        order = self.order
        ordered = (
            pointer,
            code,
            tuple(shape[i] for i in order),
            tuple(strides[i] for i in order),
            device,
        )
        if not self.channels:
            ordered = _append_axis(ordered)
        return ordered if self.batch else _insert_axis(ordered)

    # Gates that are broadcast over some of the batch axes

    def broadcasts_batch(self, gate: Descriptor) -> bool:
        """Whether a gate is broadcast over a batch axis."""
        return any(n == 1 != m for n, m in zip(gate[2], self.batch, strict=False))

    def with_full_batch(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A gate's shape with the batch axes no longer broadcast."""
        full = [1] * (len(self.shape) - len(shape)) + list(shape)
        for i, size in zip(self.order, self.batch, strict=False):
            full[i] = size
        return tuple(full)

    def sum_to(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Sum an array of `with_full_batch` to a gate's shape, in the accumulation dtype."""
        padded = (1,) * (array.ndim - len(shape)) + shape
        axes = tuple(i for i, n in enumerate(padded) if n != array.shape[i])
        dtype = self.library.dtype(ACCUMULATION[self.code])
        return array.sum(axis=axes, dtype=dtype).astype(array.dtype).reshape(shape)

    # Calls

    def calls(
        self, arrays: Descriptors, **keywords: Any
    ) -> Iterator[tuple[Descriptors, dict[str, Any]]]:
        """Arguments of the core's calls that do the work.

        Args:
            arrays: what `full`, `gate` and `state` made.
            keywords: more keywords for every call.

        Yields:
            The arrays of one call, and its keywords.
        """
        keywords.update(cu_seqlens=self.cu_seqlens, left_padded=self.left_padded)
        sequences = [self.lengths, self.reset]
        if len(self.batch) > 1:
            calls = split_batch(self.batch, [*arrays, *sequences])
        else:
            calls = iter([[*arrays, *sequences]])
        for *parts, lengths, reset in calls:
            yield parts, {**keywords, "lengths": lengths, "reset": reset}


def _insert_axis(descriptor: Descriptor) -> Descriptor:
    pointer, code, shape, strides, device = descriptor
    return pointer, code, (1, *shape), (0, *strides), device


def _append_axis(descriptor: Descriptor) -> Descriptor:
    pointer, code, shape, strides, device = descriptor
    return pointer, code, (*shape, 1), (*strides, 1), device


def _groups(batch: tuple[int, ...], arrays: Descriptors) -> list[list[int]]:
    """The batch axes longer than 1, neighbours that one stride can walk over grouped together."""
    given = [d for d in arrays if d is not None]
    groups: list[list[int]] = []
    for i, size in enumerate(batch):
        if size == 1:
            continue
        if groups and all(
            (d[2][groups[-1][-1]] == 1) == (d[2][i] == 1)
            and (d[2][i] == 1 or d[3][groups[-1][-1]] == d[3][i] * size)
            for d in given
        ):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def needs_split(batch: tuple[int, ...], arrays: Descriptors) -> bool:
    """Whether the batch axes do not merge into one."""
    return 0 not in batch and len(_groups(batch, arrays)) > 1


def split_batch(batch: tuple[int, ...], arrays: Descriptors) -> Iterator[Descriptors]:
    """Merge the batch axes that merge, and loop over the others.

    Args:
        batch: sizes of the batch axes.
        arrays: descriptors that start with the batch axes, or None. A size of 1 is broadcast.

    Yields:
        The same descriptors with one batch axis.
    """
    if 0 in batch:
        n = len(batch)
        yield [
            None if d is None else (d[0], d[1], (0, *d[2][n:]), (0, *d[3][n:]), d[4])
            for d in arrays
        ]
        return
    groups = _groups(batch, arrays)
    sizes = [math.prod(batch[i] for i in group) for group in groups]
    # The longest group is the core's batch: the fewest calls.
    inner = groups.pop(sizes.index(max(sizes))) if groups else []
    for index in itertools.product(*(range(math.prod(batch[i] for i in g)) for g in groups)):
        yield [None if d is None else _part(batch, d, inner, groups, index) for d in arrays]


def _part(
    batch: tuple[int, ...],
    descriptor: Descriptor,
    inner: list[int],
    outer: list[list[int]],
    index: tuple[int, ...],
) -> Descriptor:
    pointer, code, shape, strides, device = descriptor
    n = len(batch)
    for i, group in zip(index, outer, strict=True):
        if shape[group[-1]] != 1:
            pointer += i * strides[group[-1]] * ITEMSIZES[code]
    size, stride = 1, 0
    if inner and shape[inner[-1]] != 1:
        size, stride = math.prod(batch[i] for i in inner), strides[inner[-1]]
    return pointer, code, (size, *shape[n:]), (stride, *strides[n:]), device
