"""Arrays of any other library, through DLPack: memory is shared, results go back the same way.

An array in CPU memory becomes a NumPy view, one in CUDA memory a CuPy view (and needs CuPy). A
result returns through the producer's `from_dlpack`. A bare capsule names no library, and NumPy
can't export bfloat16: both get the NumPy (or CuPy) array itself.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .. import _core
from ._types import BFLOAT16, ITEMSIZES, NAMES, Producer
from .numpy import numpy_dtype

# DLPack's device types.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13

PRODUCER = Producer()


def owns(obj: object) -> bool:
    """Whether obj is a DLPack producer or a capsule."""
    return hasattr(obj, "__dlpack__") or type(obj).__name__ == "PyCapsule"


class _View:
    """Memory of a DLPack capsule, as NumPy's array interface; keeps the owner alive."""

    def __init__(self, descriptor: tuple[Any, ...], owner: object) -> None:
        pointer, code, shape, strides, _ = descriptor
        itemsize = ITEMSIZES[code]
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (pointer, True),  # the producer may share it: read only
            "shape": shape,
            "strides": tuple(itemsize * stride for stride in strides),
            "typestr": "<u2" if code == BFLOAT16 else np.dtype(NAMES[code]).str,
        }


def load(fn: str, name: str, obj: Any) -> Any:
    """View of a producer's or capsule's memory: a NumPy or a CuPy array, never a copy.

    Raises:
        TypeError: the dtype is not one of the core's.
        ValueError: the memory is on a device other than the CPU or CUDA, or is CUDA memory and
            CuPy is not installed.
    """
    kind = int(obj.__dlpack_device__()[0]) if hasattr(obj, "__dlpack_device__") else _CPU
    if kind in (_CUDA, _CUDA_MANAGED):
        try:
            import cupy
        except ImportError:
            raise ValueError(
                f"{fn}: {name} is a {type(obj).__name__} in CUDA memory, which needs CuPy to be "
                "installed"
            ) from None
        return cupy.from_dlpack(obj)
    if kind not in (_CPU, _CUDA_HOST):
        raise ValueError(
            f"{fn}: {name} is a {type(obj).__name__} on DLPack device type {kind}, expected the "
            "CPU (1) or CUDA (2)"
        )
    try:
        descriptor, owner = _core.from_dlpack(obj)
    except TypeError as error:
        raise TypeError(f"{fn}: {name}: {error}") from None
    if descriptor[4] != -1:
        raise ValueError(f"{fn}: {name} is a capsule of CUDA memory, expected CPU memory")
    array = np.asarray(_View(descriptor, owner))
    return array.view(numpy_dtype(BFLOAT16)) if descriptor[1] == BFLOAT16 else array


def give_back(result: Any, like: Any) -> Any:
    """A result as an array of the library that like belongs to, sharing memory."""
    if hasattr(like, "__array_namespace__"):
        namespace = like.__array_namespace__()
    else:
        namespace = sys.modules.get(type(like).__module__.partition(".")[0])
    importer = getattr(namespace, "from_dlpack", None)
    if importer is None or result.dtype.name == "bfloat16":
        return result
    return importer(result)
