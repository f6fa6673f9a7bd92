"""Recurrences as JAX functions, under jit, grad, vmap, jvp and shard_map.

`scan` and the cells (`sru`, `gilr`, `hgrn`, `min_gru`, `min_lstm`, `qrnn`, `rg_lru`, `lru`) are the
differentiable versions of `scanrnn.scan` and of those in `scanrnn.cells`. `diagonal_gru`,
`diagonal_lstm`, `indrnn` and `sru` with recurrent weights are nonlinear: they are solved in
parallel over time, and can report how. Of every cell there are also one step for decoding
(`sru_step`), and a layer with its parameters in a dictionary (`sru_init` and `sru_layer`); of
`gilr_lstm` and `s5`, which are made of others, there is the layer alone. `scanrnn.jax.nnx` has the
layers as Flax modules. `lstm`, `gru` and `rnn` are torch.nn's layers, parallel in time (under jit,
reverse mode once, and vmap). `weights` makes layers' parameters of other packages' weights.

jax.export vouches for JAX's own custom calls alone. Of these, whose names are in `CUSTOM_CALLS`, it
wants to be told, by disabled_checks: a jax.export.DisabledSafetyCheck.custom_call(name) for each.
To run such a program, import scanrnn.jax first, of the version that it was exported with.
"""

import importlib.metadata
import re
from pathlib import Path
from typing import Any

try:
    import jax
    import jaxlib
except ImportError as error:
    raise ImportError("scanrnn.jax needs JAX: pip install 'scanrnn[jax]' or 'jax'") from error

from .. import _core

if not _core.ffi_targets():
    raise RuntimeError(
        "scanrnn.jax: this build of scanrnn has no JAX handlers, because it was compiled without "
        "XLA's headers. They come with jaxlib: install it, then scanrnn from source by "
        "'pip install --no-binary scanrnn --force-reinstall scanrnn'"
    )


def _ffi_version_of_jaxlib() -> tuple[int, ...] | None:
    """That of XLA's interface for handlers. Only the headers tell it."""
    header = Path(jaxlib.__file__).parent / "include/xla/ffi/api/c_api.h"
    if not header.is_file():
        return None
    text = header.read_text()
    found = [re.search(rf"define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    return tuple(int(match[1]) for match in found if match)


# XLA takes handlers of its own version and older ones. Given newer ones, no computation of JAX runs
# on the CPU any more, and on GPUs they are missing only when they are called.
_version = _ffi_version_of_jaxlib()
if _version and _version < _core.ffi_version:
    raise RuntimeError(
        "scanrnn.jax: the JAX handlers of this build of scanrnn were compiled with XLA's headers "
        f"of version {'.'.join(map(str, _core.ffi_version))}; those of the installed jaxlib "
        f"{importlib.metadata.version('jaxlib')} are older, {'.'.join(map(str, _version))}. "
        "Install a newer jaxlib, or scanrnn anew: without --no-build-isolation it takes headers "
        "of an old one"
    )


def _register_handlers() -> tuple[str, ...]:
    registered: dict[str, None] = {}
    families = {
        "_cell_": [row["name"] for row in _core.cell_table()],
        "_solve_": [row["name"] for row in _core.nonlinear_cell_table()],
    }
    for platform in ("cpu", "CUDA"):  # JAX keeps those for CUDA until it finds a GPU
        for target, handler in _core.ffi_targets(platform).items():
            # One handler serves all cells of a family, each under its name.
            names = [
                target.replace(family, f"_{cell}_")
                for family, cells in families.items()
                for cell in cells
                if family in target
            ]
            for name in names or [target]:
                jax.ffi.register_ffi_target(name, handler, platform=platform)
                registered[name] = None
    return (*registered,)


#: Names of the custom calls that compiled programs with these functions have.
CUSTOM_CALLS = _register_handlers()

from .._solve_report import SolveReport  # noqa: E402
from ..cells import SequenceOptions, SolveOptions  # noqa: E402
from . import weights  # noqa: E402
from ._cells import (  # noqa: E402
    gilr,
    gilr_step,
    hgrn,
    hgrn_step,
    min_gru,
    min_gru_step,
    min_lstm,
    min_lstm_step,
    qrnn,
    qrnn_step,
    rg_lru,
    rg_lru_step,
    sru,
    sru_step,
)
from ._dense import DenseParams, DenseReport, gru, lstm, rnn  # noqa: E402
from ._layers import (  # noqa: E402
    Params,
    SruParams,
    diagonal_gru_init,
    diagonal_gru_layer,
    diagonal_lstm_init,
    diagonal_lstm_layer,
    gilr_init,
    gilr_layer,
    gilr_lstm_init,
    gilr_lstm_layer,
    hgrn_bounds,
    hgrn_init,
    hgrn_layer,
    indrnn_init,
    indrnn_layer,
    lru_init,
    lru_layer,
    min_gru_init,
    min_gru_layer,
    min_lstm_init,
    min_lstm_layer,
    qrnn_init,
    qrnn_layer,
    rg_lru_init,
    rg_lru_layer,
    s5_init,
    s5_layer,
    sru_init,
    sru_layer,
)
from ._lru import lru, lru_step  # noqa: E402
from ._nonlinear import (  # noqa: E402
    diagonal_gru,
    diagonal_gru_step,
    diagonal_lstm,
    diagonal_lstm_step,
    indrnn,
    indrnn_step,
)
from ._scan import scan  # noqa: E402

__all__ = [
    "CUSTOM_CALLS",
    "DenseParams",
    "DenseReport",
    "Params",
    "SequenceOptions",
    "SolveOptions",
    "SolveReport",
    "SruParams",
    "diagonal_gru",
    "diagonal_gru_init",
    "diagonal_gru_layer",
    "diagonal_gru_step",
    "diagonal_lstm",
    "diagonal_lstm_init",
    "diagonal_lstm_layer",
    "diagonal_lstm_step",
    "gilr",
    "gilr_init",
    "gilr_layer",
    "gilr_lstm_init",
    "gilr_lstm_layer",
    "gilr_step",
    "gru",
    "hgrn",
    "hgrn_bounds",
    "hgrn_init",
    "hgrn_layer",
    "hgrn_step",
    "indrnn",
    "indrnn_init",
    "indrnn_layer",
    "indrnn_step",
    "lru",
    "lru_init",
    "lru_layer",
    "lru_step",
    "lstm",
    "min_gru",
    "min_gru_init",
    "min_gru_layer",
    "min_gru_step",
    "min_lstm",
    "min_lstm_init",
    "min_lstm_layer",
    "min_lstm_step",
    "qrnn",
    "qrnn_init",
    "qrnn_layer",
    "qrnn_step",
    "rg_lru",
    "rg_lru_init",
    "rg_lru_layer",
    "rg_lru_step",
    "rnn",
    "s5_init",
    "s5_layer",
    "scan",
    "sru",
    "sru_init",
    "sru_layer",
    "sru_step",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name == "nnx":  # needs Flax, which little else does
        return importlib.import_module(".nnx", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
