"""Checkpoints of the demo: one set of arrays, as .npz and as .safetensors.

The alphabet is stored beside the weights as the array ``characters`` of code points. The
safetensors format (https://huggingface.co/docs/safetensors) is simple enough to need no package:
eight bytes that give the length of a JSON header, the header, the arrays' bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["load", "save"]

Arrays = dict[str, NDArray[Any]]

SAFETENSORS_DTYPES = {"F32": "<f4", "I32": "<i4"}


def save(directory: Path, weights: Arrays, characters: str) -> list[Path]:
    """Writes ``weights.npz`` and ``weights.safetensors``.

    Args:
        directory: Where to; made if it is not there.
        weights: float32 arrays.
        characters: The alphabet, see :class:`scanrnn.demo.text.Corpus`.

    Returns:
        The files written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    arrays: Arrays = {**weights, "characters": np.array([ord(c) for c in characters], np.int32)}
    npz, safetensors = directory / "weights.npz", directory / "weights.safetensors"
    np.savez(npz, allow_pickle=False, **arrays)
    write_safetensors(safetensors, arrays)
    return [npz, safetensors]


def load(path: Path) -> tuple[Arrays, str]:
    """Reads a checkpoint of either kind.

    Returns:
        The weights and the alphabet.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a checkpoint of the demo.
    """
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            arrays: Arrays = dict(file)
    elif path.suffix == ".safetensors":
        arrays = read_safetensors(path)
    else:
        raise ValueError(f"{path}: a checkpoint is a .npz or .safetensors file")
    if "characters" not in arrays or "embedding" not in arrays:
        raise ValueError(f"{path} is not a checkpoint of the demo: it holds {sorted(arrays)}")
    return arrays, "".join(map(chr, arrays.pop("characters")))


def write_safetensors(path: Path, arrays: Arrays) -> None:
    """Writes float32 and int32 arrays in the safetensors format."""
    names = {np.dtype(code): name for name, code in SAFETENSORS_DTYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": names[array.dtype],
            "shape": array.shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data start aligned, so that a reader can map them
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())


def read_safetensors(path: Path) -> Arrays:
    """Reads the float32 and int32 arrays of a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        return {
            name: np.frombuffer(
                data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
                SAFETENSORS_DTYPES[entry["dtype"]],
            ).reshape(entry["shape"])
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a safetensors file that the demo wrote") from error
