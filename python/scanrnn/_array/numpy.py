"""NumPy arrays: bfloat16 by the ml_dtypes package."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ._types import (
    ALIGNMENTS,
    BFLOAT16,
    COMPUTE,
    INT32,
    INT64,
    ITEMSIZES,
    NAMES,
    UINT8,
    Descriptor,
)
from .options import listed

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

# Byte order counts in a NumPy dtype, so that these are the native ones only.
_CODES: dict[np.dtype[Any], int] = {
    np.dtype(NAMES[code]): code for code in (*COMPUTE, INT32, INT64, UINT8) if code != BFLOAT16
}


def dtype_code(dtype: np.dtype[Any]) -> int | None:
    """The core's code for a NumPy dtype, or None."""
    code = _CODES.get(dtype)
    # bfloat16 is ml_dtypes' own type object: known by name, so that its package stays optional.
    if code is None and dtype.name == "bfloat16" and dtype.itemsize == 2:
        code = _CODES[dtype] = BFLOAT16
    return code


def numpy_dtype(code: int) -> np.dtype[Any]:
    """The NumPy dtype for a code; TypeError if bfloat16 needs ml_dtypes and it is not there."""
    if code != BFLOAT16:
        return np.dtype(NAMES[code])
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("NumPy has bfloat16 only with the ml_dtypes package installed") from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def owns(obj: object) -> bool:
    """Whether obj is a NumPy array or scalar."""
    return isinstance(obj, (np.ndarray, np.generic))


class NumPy:
    """`Library` for NumPy."""

    type_name = "numpy.ndarray"
    xp: Any = np

    def describe(self, fn: str, name: str, array: Any) -> Descriptor:
        """Descriptor of an array; see `Library`."""
        # Through DLPack it takes a fifth of the time of array.ctypes and array.strides. What DLPack
        # can't express, or NumPy doesn't export, gets the way that knows why.
        try:
            descriptor: Descriptor = _core.from_dlpack(array)[0]
        except (TypeError, BufferError):
            descriptor = self.describe_fields(fn, name, array)
        if descriptor[0] % ALIGNMENTS[descriptor[1]]:
            raise ValueError(
                f"{fn}: {name} is not aligned, expected an address that is a multiple of "
                f"{ALIGNMENTS[descriptor[1]]}"
            )
        return descriptor

    def describe_fields(self, fn: str, name: str, array: Any) -> Descriptor:
        """Descriptor from the array's own attributes; what NumPy and CuPy have in common."""
        code = dtype_code(array.dtype)
        if code is None:
            names = listed(NAMES[c] for c in COMPUTE)
            raise TypeError(f"{fn}: {name} has dtype {array.dtype}, expected {names}")
        itemsize = ITEMSIZES[code]
        shape, strides = array.shape, array.strides
        for size, stride in zip(shape, strides, strict=True):
            if stride % itemsize and size > 1:
                raise ValueError(
                    f"{fn}: {name} has strides {strides} in bytes, expected multiples of its "
                    f"itemsize {itemsize}"
                )
        elements = tuple([stride // itemsize for stride in strides])
        return self.pointer(array), code, shape, elements, self.device(array)

    def pointer(self, array: Any) -> int:
        """Address of the first element."""
        address: int = array.ctypes.data
        return address

    def device(self, array: Any) -> int:
        """Device as in a descriptor."""
        return -1

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, like: Any) -> Any:
        """New array; see `Library`."""
        return np.empty(shape, dtype)

    def empty_like(self, array: Any) -> Any:
        """New array; see `Library`."""
        return np.empty_like(array, subok=False)

    def dtype(self, code: int) -> DTypeLike:
        """Dtype for a code; see `Library`."""
        return numpy_dtype(code)

    def stream(self, array: Any) -> int:
        """0: the CPU has no streams."""
        return 0

    def allocate(self, size: int, ordinal: int) -> tuple[int, object]:
        """See `Library`. On the CPU the core has memory of its own."""
        raise NotImplementedError

    def guard(self, array: Any) -> AbstractContextManager[object]:
        """See `Library`."""
        return nullcontext()

    def check_writable(self, fn: str, name: str, array: Any) -> None:
        """See `Library`."""
        if not array.flags.writeable:
            raise ValueError(f"{fn}: {name} is read-only, expected a writable array")

    def may_overlap(self, one: Any, other: Any) -> bool:
        """See `Library`. Interleaved views of one array are told apart, within limits."""
        # NumPy's stubs know fewer values of max_work than NumPy.
        return np.may_share_memory(one, other, max_work=10_000)  # type: ignore[arg-type]

    def auxiliary(self, value: object, like: Any) -> Any:
        """Lengths, offsets or flags as an array; see `Library`."""
        return np.asarray(value)

    def host(self, value: object) -> np.ndarray[Any, Any] | None:
        """None: arrays stay in CPU memory, and the core checks their values."""
        return None
