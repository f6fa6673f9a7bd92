"""CuPy arrays: work goes to CuPy's current stream."""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ._types import ITEMSIZES, Descriptor
from .numpy import _CODES, NumPy

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_SHIFTS = [size.bit_length() - 1 for size in ITEMSIZES]


def owns(obj: object) -> bool:
    """Whether obj is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(obj, cupy.ndarray)


class CuPy(NumPy):
    """`Library` for CuPy, which has NumPy's dtypes and strides."""

    type_name = "cupy.ndarray"

    def __init__(self) -> None:
        self.xp = importlib.import_module("cupy")

    def describe(self, fn: str, name: str, array: Any) -> Descriptor:
        """Descriptor of an array: from its attributes, since a DLPack export would synchronise."""
        code = _CODES.get(array.dtype)
        strides, apart = array.strides, 0
        for stride in strides:
            apart |= stride
        # Itemsizes are powers of two.
        if code is None or apart & (ITEMSIZES[code] - 1):
            return self.describe_fields(fn, name, array)
        shift = _SHIFTS[code]
        elements = tuple([stride >> shift for stride in strides])
        return array.data.ptr, code, array.shape, elements, array.device.id

    def pointer(self, array: Any) -> int:
        """Address of the first element, in device memory."""
        address: int = array.data.ptr
        return address

    def device(self, array: Any) -> int:
        """CUDA ordinal."""
        ordinal: int = array.device.id
        return ordinal

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, like: Any) -> Any:
        """New array; see `Library`."""
        with like.device:
            return self.xp.empty(shape, dtype)

    def empty_like(self, array: Any) -> Any:
        """New array; see `Library`."""
        with array.device:
            if array.flags.c_contiguous:  # a third of the time
                return self.xp.empty(array.shape, array.dtype)
            return self.xp.empty_like(array)

    def stream(self, array: Any) -> int:
        """CuPy's current stream on the array's device."""
        handle: int = self.xp.cuda.get_current_stream(array.device.id).ptr
        return handle

    def allocate(self, size: int, ordinal: int) -> tuple[int, object]:
        """Lend the core memory from CuPy's pool, which belongs to the current stream."""
        with self.xp.cuda.Device(ordinal):
            memory = self.xp.cuda.alloc(size)
        return memory.ptr, memory

    def guard(self, array: Any) -> AbstractContextManager[object]:
        """See `Library`."""
        device: AbstractContextManager[object] = array.device
        return device

    def check_writable(self, fn: str, name: str, array: Any) -> None:
        """CuPy arrays always are."""

    def may_overlap(self, one: Any, other: Any) -> bool:
        """See `Library`. By their bounds alone: more would be work for the device."""
        overlap: bool = self.xp.may_share_memory(one, other)
        return overlap

    def auxiliary(self, value: object, like: Any) -> Any:
        """Lengths, offsets or flags as an array; see `Library`."""
        with like.device:
            return self.xp.asarray(value)

    def host(self, value: object) -> np.ndarray[Any, Any] | None:
        """Lists and NumPy arrays, before they are copied to the device."""
        return np.asarray(value) if isinstance(value, (list, tuple, np.ndarray)) else None


@cache
def library() -> CuPy:
    """The one `CuPy`; imports CuPy if nobody has."""
    return CuPy()
