"""PyTorch: the recurrences as differentiable functions, and layers made of them.

Functions of tensors: `scan`, the diagonal linear recurrence, and the fused cells `sru`, `gilr`,
`hgrn`, `min_gru`, `min_lstm`, `qrnn`, `rg_lru` and `lru`, each with a `*_step` for decoding. Layers
with torch.nn.GRU's conventions: `SRU`, `QRNN`, `MinGRU`, `MinLSTM`, `RGLRU`, `HGRN`, `GILR`,
`GILRLSTM`, `LRU` and `S5`. Nonlinear cells with diagonal recurrent weights, solved in parallel to a
tolerance: `diagonal_gru`, `diagonal_lstm`, `indrnn` and `sru` with v; layers `DiagonalGRU`,
`DiagonalLSTM`, `IndRNN` and `SRU` with recurrent=True. `LSTM`, `GRU` and `RNN` are torch.nn's
layers, weight for weight, parallel in time; what they have not of the following, their docstrings
say. The `load_*_weights` functions bring the weights of other packages.

Everything works with autograd of any order, torch.func, autocast, torch.export and torch.compile
(``fullgraph=True``, a dynamic number of steps).

Loading an exported program needs ``import scanrnn.torch`` first, which registers the operators.

ONNX: not supported. It has no operator for a parallel recurrence, so `torch.onnx.export` refuses
models with these. Export the model with `torch.export`, or run a layer's `step` in a loop of your
own.
"""

from .cells import (
    gilr,
    gilr_step,
    hgrn,
    hgrn_step,
    lru,
    lru_step,
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
from .dense import GRU, LSTM, RNN, Report
from .diagonal import (
    SolveReport,
    diagonal_gru,
    diagonal_gru_step,
    diagonal_lstm,
    diagonal_lstm_step,
    indrnn,
    indrnn_step,
)
from .diagonal_modules import DiagonalGRU, DiagonalLSTM, IndRNN
from .functional import scan
from .modules import GILR, GILRLSTM, HGRN, LRU, QRNN, RGLRU, S5, SRU, MinGRU, MinLSTM
from .weights import (
    load_fla_hgrn_weights,
    load_min_gru_weights,
    load_min_lstm_weights,
    load_pytorch_qrnn_weights,
    load_recurrentgemma_weights,
    load_sru_package_weights,
)

__all__ = [
    "GILR",
    "GILRLSTM",
    "GRU",
    "HGRN",
    "LRU",
    "LSTM",
    "QRNN",
    "RGLRU",
    "RNN",
    "S5",
    "SRU",
    "DiagonalGRU",
    "DiagonalLSTM",
    "IndRNN",
    "MinGRU",
    "MinLSTM",
    "Report",
    "SolveReport",
    "diagonal_gru",
    "diagonal_gru_step",
    "diagonal_lstm",
    "diagonal_lstm_step",
    "gilr",
    "gilr_step",
    "hgrn",
    "hgrn_step",
    "indrnn",
    "indrnn_step",
    "load_fla_hgrn_weights",
    "load_min_gru_weights",
    "load_min_lstm_weights",
    "load_pytorch_qrnn_weights",
    "load_recurrentgemma_weights",
    "load_sru_package_weights",
    "lru",
    "lru_step",
    "min_gru",
    "min_gru_step",
    "min_lstm",
    "min_lstm_step",
    "qrnn",
    "qrnn_step",
    "rg_lru",
    "rg_lru_step",
    "scan",
    "sru",
    "sru_step",
]
