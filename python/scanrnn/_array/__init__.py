"""Array libraries: which one an argument belongs to, found without importing any of them.

NumPy and CuPy arrays are read and written in place by the core (`Library`). PyTorch and JAX have
front ends of their own, which take part in automatic differentiation and compilation (`Frontend`).
Everything else that speaks DLPack is viewed as a NumPy or CuPy array and given back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from . import cupy as _cupy
from . import dlpack as _dlpack
from . import jax as _jax
from . import numpy as _numpy
from . import torch as _torch
from ._types import (
    ACCUMULATION,
    COMPUTE,
    REAL,
    Array,
    Descriptor,
    Frontend,
    Library,
    Producer,
)

__all__ = [
    "ACCUMULATION",
    "COMPUTE",
    "LIBRARIES",
    "NUMPY",
    "REAL",
    "Array",
    "Descriptor",
    "Frontend",
    "Library",
    "Owner",
    "Producer",
    "adopt",
    "device_options",
    "give_back",
    "is_scalar",
    "owner_of",
    "require_one_framework",
    "type_name",
]

Owner: TypeAlias = Library | Frontend | Producer

NUMPY: Library = _numpy.NumPy()

# In the order of asking: everything speaks DLPack.
_FRAMEWORKS: tuple[tuple[Callable[[object], bool], Callable[[], Owner]], ...] = (
    (_numpy.owns, lambda: NUMPY),
    (_torch.owns, lambda: _torch.FRONTEND),
    (_jax.owns, lambda: _jax.FRONTEND),
    (_cupy.owns, _cupy.library),
    (_dlpack.owns, lambda: _dlpack.PRODUCER),
)
# By exact type; two arguments belong together if this gives the same object.
_owners: dict[type, Owner] = {np.ndarray: NUMPY}
#: Those of them that the core works on in place.
LIBRARIES: dict[type, Library] = {np.ndarray: NUMPY}


def owner_of(fn: str, name: str, obj: object) -> Owner:
    """What handles an argument.

    Args:
        fn: the public function, for the error text.
        name: the argument's name, for the error text.
        obj: the argument.

    Raises:
        TypeError: obj is not an array of any library.
    """
    owner = _owners.get(type(obj))
    if owner is not None:
        return owner
    if isinstance(obj, np.ma.MaskedArray):
        raise TypeError(f"{fn}: {name} is a masked array, expected an array without a mask")
    for owns, find in _FRAMEWORKS:
        if owns(obj):
            owner = _owners[type(obj)] = find()
            if type(owner) is _cupy.CuPy and type(obj) is owner.xp.ndarray:
                LIBRARIES[type(obj)] = owner
            return owner
    raise TypeError(
        f"{fn}: {name} is a {type_name(obj)}, expected an array: NumPy, PyTorch, JAX, CuPy, or "
        "anything with __dlpack__"
    )


def type_name(obj: object) -> str:
    """Full name of an argument's type, for error texts."""
    kind = type(obj)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return prefix + kind.__qualname__


def is_scalar(obj: object) -> bool:
    """Whether obj is a Python number, which takes the dtype of the arrays it meets."""
    return type(obj) in (bool, int, float, complex)


def require_one_framework(
    fn: str, required: Mapping[str, object], optional: Mapping[str, object]
) -> None:
    """Check that all arrays belong to the first one's framework.

    Args:
        fn: the public function, for error texts.
        required: arguments by name; Python numbers are skipped.
        optional: likewise; None is skipped too.

    Raises:
        TypeError: one is not an array, or two belong to different frameworks.
    """
    (first, reference), *others = required.items()
    expected = owner_of(fn, first, reference)
    for name, array in [*others, *optional.items()]:
        if is_scalar(array) or (array is None and name in optional):
            continue
        owner = owner_of(fn, name, array)
        if owner is not expected:
            raise TypeError(
                f"{fn}: {name} is a {owner.type_name}, expected a {expected.type_name} like {first}"
            )


def adopt(
    fn: str, required: Mapping[str, Any], optional: Mapping[str, Any]
) -> tuple[Library, list[Any]]:
    """View arguments as arrays of one library that the core can work on.

    Args:
        fn: the public function, for error texts.
        required: arguments by name; the first is the reference for framework, device, and the
            dtype of Python numbers.
        optional: arguments by name; None stays None.

    Returns:
        The library, and the arrays in order.

    Raises:
        TypeError: an argument is not an array, or belongs to another library than the first.
        ValueError: an argument is on another device than the first.
    """
    first = next(iter(required))
    library: Library | None = None
    out: list[Any] = []
    for name, array in [*required.items(), *optional.items()]:
        if array is None and name in optional:
            out.append(None)
            continue
        if library is not None and is_scalar(array):
            out.append(library.auxiliary(_typed_number(fn, name, array, out[0].dtype), out[0]))
            continue
        owner = owner_of(fn, name, array)
        if isinstance(owner, Producer):
            array = _dlpack.load(fn, name, array)
            owner = owner_of(fn, name, array)
        if library is None:
            if isinstance(owner, (Frontend, Producer)):
                raise TypeError(
                    f"{fn}: {name} is a {owner.type_name}, expected a NumPy or CuPy array"
                )
            library = owner
        elif owner is not library:
            raise TypeError(
                f"{fn}: {name} is a {owner.type_name}, expected a {library.type_name} like {first}"
            )
        out.append(np.asarray(array) if isinstance(array, np.generic) else array)
    assert library is not None
    return library, out


def _typed_number(fn: str, name: str, value: complex, dtype: Any) -> Any:
    """A Python number in the dtype of the arrays it meets."""
    if type(value) is complex and dtype.kind != "c":
        raise TypeError(f"{fn}: {name} is complex, expected a real number for dtype {dtype}")
    return np.asarray(value, dtype)


def device_options(library: Library, array: Any) -> dict[str, Any]:
    """Keywords of the core's functions: where work on array goes, and what lends it memory."""
    return {"stream": library.stream(array), "allocate": library.allocate}


def give_back(result: Any, like: object) -> Any:
    """A result in the library of the argument like."""
    foreign = isinstance(_owners[type(like)], Producer)
    return _dlpack.give_back(result, like) if foreign else result
