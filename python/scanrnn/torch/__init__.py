"""PyTorch: the recurrences as differentiable functions, and layers made of them.

`scan` and `sru` are functions of tensors, `SRU` is a layer with torch.nn.GRU's conventions, and
`load_sru_package_weights` brings the weights of the SRU package. `LSTM`, `GRU` and `RNN` are
torch.nn's layers, weight for weight, parallel in time. What they have not of the following, their
docstrings say.

Everything works with autograd of any order, torch.func, autocast, torch.export and torch.compile
(``fullgraph=True``, a dynamic number of steps).

Loading an exported program needs ``import scanrnn.torch`` first, which registers the operators.

ONNX: not supported. It has no operator for a parallel recurrence, so `torch.onnx.export` refuses
models with these. Export the model with `torch.export`, or run `SRU.step` in a loop of your own.
"""

from .dense import GRU, LSTM, RNN, Report
from .functional import scan, sru
from .modules import SRU
from .weights import load_sru_package_weights

__all__ = ["GRU", "LSTM", "RNN", "SRU", "Report", "load_sru_package_weights", "scan", "sru"]
