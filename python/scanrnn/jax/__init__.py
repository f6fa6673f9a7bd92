"""Recurrences as JAX functions, under jit, grad, vmap, jvp and shard_map.

`scan` and `sru` are the differentiable versions of `scanrnn.scan` and `scanrnn.cells.sru`;
`sru_init` and `sru_layer` are a layer, with its parameters in a dictionary. `lstm`, `gru` and `rnn`
are torch.nn's layers, parallel in time (under jit, reverse mode once, and vmap).
"""

try:
    import jax
except ImportError as error:
    raise ImportError("scanrnn.jax needs JAX: pip install 'scanrnn[jax]' or 'jax'") from error

from .. import _core

if not _core.ffi_targets():
    raise RuntimeError(
        "scanrnn.jax: this build of scanrnn has no JAX handlers, because it was compiled without "
        "XLA's headers. They come with jaxlib: install it, then scanrnn from source by "
        "'pip install --no-binary scanrnn --force-reinstall scanrnn'"
    )
for _platform in ("cpu", "CUDA"):  # JAX keeps those for CUDA until it finds a GPU
    for _name, _handler in _core.ffi_targets(_platform).items():
        jax.ffi.register_ffi_target(_name, _handler, platform=_platform)

from ._dense import DenseParams, DenseReport, gru, lstm, rnn  # noqa: E402
from ._scan import scan  # noqa: E402
from ._sru import SruParams, sru, sru_init, sru_layer, sru_step  # noqa: E402

__all__ = [
    "DenseParams",
    "DenseReport",
    "SruParams",
    "gru",
    "lstm",
    "rnn",
    "scan",
    "sru",
    "sru_init",
    "sru_layer",
    "sru_step",
]
