"""The dtype codes and array descriptors that the compiled core understands."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: (pointer, dtype code, shape, strides in elements, device: -1 for the CPU or a CUDA ordinal)
Descriptor: TypeAlias = tuple[int, int, tuple[int, ...], tuple[int, ...], int]

#: Dtype codes, in the core's order: a code is an index into these tables.
NAMES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "int32",
    "int64",
    "uint8",
)
ITEMSIZES = (2, 2, 4, 8, 8, 16, 4, 8, 1)
#: Complex numbers are aligned like their parts.
ALIGNMENTS = (2, 2, 4, 8, 4, 8, 4, 8, 1)
FLOAT16, BFLOAT16, FLOAT32, FLOAT64, COMPLEX64, COMPLEX128, INT32, INT64, UINT8 = range(9)

#: Accumulation dtype of each dtype that can be scanned.
ACCUMULATION = (FLOAT32, FLOAT32, FLOAT32, FLOAT64, COMPLEX64, COMPLEX128)
COMPUTE = range(6)
REAL = range(4)


class Array(Protocol):
    """What every array of a supported library has."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True)
class Frontend:
    """A framework that has its own version of this package's functions."""

    #: Name of its array type, for error texts.
    type_name: str
    module_name: str

    def module(self) -> ModuleType:
        """The module with the functions, imported now."""
        return importlib.import_module(self.module_name)


@dataclass(frozen=True)
class Producer:
    """A library that is known by DLPack alone."""

    type_name: str = "DLPack producer"


class Library(Protocol):
    """A library whose arrays the core works on in place: NumPy or CuPy."""

    #: Name of its array type, for error texts.
    type_name: str
    #: The library's module, with NumPy's functions.
    xp: Any

    def describe(self, fn: str, name: str, array: Any) -> Descriptor:
        """Descriptor of an array; ValueError or TypeError if the core can't read it."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, like: Any) -> Any:
        """New array on the device of like."""

    def empty_like(self, array: Any) -> Any:
        """New dense array with the shape, dtype, device and axis order in memory of array."""

    def dtype(self, code: int) -> DTypeLike:
        """The library's dtype for a code."""

    def stream(self, array: Any) -> int:
        """Stream on which the library runs work on array now; 0 on the CPU."""

    def allocate(self, size: int, ordinal: int) -> tuple[int, object]:
        """Lend the core memory of a device, as `_core.Allocate`; not called on the CPU."""

    def guard(self, array: Any) -> AbstractContextManager[object]:
        """Makes array's device the current one, for the library's own functions."""

    def check_writable(self, fn: str, name: str, array: Any) -> None:
        """ValueError if the array may not be written."""

    def may_overlap(self, one: Any, other: Any) -> bool:
        """False only if two arrays certainly share no element."""

    def auxiliary(self, value: object, like: Any) -> Any:
        """Lengths, offsets or flags of any library (or a list) as an array on like's device."""

    def host(self, value: object) -> np.ndarray[Any, Any] | None:
        """The same in CPU memory, for one that goes from there to another device; else None."""
