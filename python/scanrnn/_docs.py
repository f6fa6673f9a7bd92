"""What the frontends' docstrings have in common, said once.

A cell is the same for NumPy, PyTorch and JAX: its equations, where they come from, and what its
arguments are. `CELLS` says it, as include/scanrnn/core/cells says it to the compiler, and
`documented` completes the docstrings of a frontend's functions from it: under a function stands its
first line, and what is true of this function alone. `help` shows all of it. `documented_layer` does
the same for layers, which share most of their arguments.

A docstring is completed by what its function's signature asks for, and an argument that nothing is
said of is an error, at import.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

DocumentedT = TypeVar("DocumentedT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Cell:
    """What there is to say of a cell."""

    equations: str
    #: Who described it, and what else a user should know.
    source: str
    #: Inputs over time by name, the main one, whose shape and dtype count, first. What follows a
    #: semicolon comes after the shape.
    inputs: Mapping[str, str]
    #: Inputs with one value a channel.
    vectors: Mapping[str, str] = field(default_factory=dict)
    #: States before the first step.
    states: Mapping[str, str] = field(default_factory=lambda: {"h0": "states"})
    options: Mapping[str, str] = field(default_factory=dict)
    #: What is kept for backward beside the inputs.
    saved: str = "h"
    #: Whether nothing but a solver can run it in parallel.
    nonlinear: bool = False
    #: Whether there is a kernel for it, and not `scan` alone.
    fused: bool = True
    #: Instead of real floats: of the main input, and of the states and h.
    dtypes: str = ""
    state_dtypes: str = ""

    @property
    def main(self) -> str:
        return next(iter(self.inputs))


_ACTIVATION = (
    'g, "identity", "tanh", "relu", "silu", "sigmoid" or "positive" (x + 1/2 for x >= 0, sigmoid(x)'
    " below)"
)
_BOUNDED_ACTIVATION = 'g, "identity", "tanh" or "relu"'

CELLS = {
    "sru": Cell(
        """
        f'_t = sigmoid(f_t + v_f * c_{t-1} + bias_f),  r'_t = sigmoid(r_t + v_r * c_{t-1} + bias_r)
        c_t = f'_t * c_{t-1} + (1 - f'_t) * u_t
        h_t = r'_t * g(c_t) + (1 - r'_t) * skip_t
        """,
        'Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", 2018. Without '
        "v_f and v_r the recurrence is linear in c; with them it is solved as that of "
        "`diagonal_gru`, to a tolerance.",
        {
            "u": "candidates W x",
            "f": "forget gates before bias and sigmoid",
            "r": "reset (highway) gates before bias and sigmoid",
            "skip": "highway input; None means zeros",
        },
        {
            "bias_f": "bias of the forget gate; None means zeros",
            "bias_r": "bias of the reset gate; None means zeros",
            "v_f": "recurrent weights of the forget gate; None, with v_r, means none",
            "v_r": "recurrent weights of the reset gate; None, with v_f, means none",
        },
        {"c0": "states"},
        {"activation": _BOUNDED_ACTIVATION},
        saved="one state in 32 steps, or with v_f and v_r all states",
    ),
    "gilr": Cell(
        """
        f'_t = sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)
        """,
        'Martin & Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", 2018, '
        "section 3.1. With g = tanh it is the f-pooling of the QRNN too.",
        {"f": "forget gates before the sigmoid", "z": "candidates before g"},
        options={"activation": _ACTIVATION},
    ),
    "hgrn": Cell(
        """
        f'_t = bound + (1 - bound) * sigmoid(f_t)
        h_t = f'_t * h_{t-1} + (1 - f'_t) * g(z_t)
        """,
        'Qin et al., "Hierarchically Gated Recurrent Neural Network for Sequence Modeling", 2023, '
        "equations 2 to 5, for real states and before the output gate.",
        {"f": "forget gates before the sigmoid", "z": "candidates before g"},
        {"bound": "lower bounds of the gates, from 0 to 1 (not checked); None means zeros"},
        options={"activation": _ACTIVATION},
    ),
    "min_gru": Cell(
        """
        z'_t = sigmoid(z_t)
        h_t = (1 - z'_t) * h_{t-1} + z'_t * g(v_t)
        """,
        'Feng et al., "Were RNNs All We Needed?", 2024, section 3.1, in plain space: states and h0 '
        'may have any sign. Their log-space form has g "positive", and applies g to h0 as well; '
        "here h0 is the state itself.",
        {"z": "update gates before the sigmoid", "v": "candidates before g"},
        options={"activation": _ACTIVATION},
    ),
    "min_lstm": Cell(
        """
        f'_t = sigmoid(f_t) / (sigmoid(f_t) + sigmoid(i_t)),  i'_t = 1 - f'_t
        h_t = f'_t * h_{t-1} + i'_t * g(v_t)
        """,
        'Feng et al., "Were RNNs All We Needed?", 2024, section 3.2, in plain space: states and h0 '
        "may have any sign, and gates any size, also infinite: their ratio is computed without "
        'overflow. Their log-space form has g "positive", and applies g to h0 as well; here h0 is '
        "the state itself.",
        {
            "f": "forget gates before the sigmoid",
            "i": "input gates before the sigmoid",
            "v": "candidates before g",
        },
        options={"activation": _ACTIVATION},
    ),
    "qrnn": Cell(
        """
        f'_t = sigmoid(f_t),  o'_t = sigmoid(o_t) or 1,  i'_t = sigmoid(i_t) or 1 - f'_t
        c_t = f'_t * c_{t-1} + i'_t * g(z_t)
        h_t = o'_t * c_t
        """,
        'Bradbury et al., "Quasi-Recurrent Neural Networks", 2017, equations 3 to 5: f-pooling '
        "without o and i, fo-pooling without i, ifo-pooling with both. Zoneout keeps a state where "
        "f is +inf (and i, if given, -inf): there c_t = c_{t-1} exactly.",
        {
            "z": "candidates before g",
            "f": "forget gates before the sigmoid",
            "o": "output gates before the sigmoid; None means 1",
            "i": "input gates before the sigmoid; None means 1 - f'. It needs o",
        },
        states={"c0": "states"},
        options={"activation": _ACTIVATION},
        saved="one state in 32 steps, or without o, h",
    ),
    "rg_lru": Cell(
        """
        log a_t = -c * softplus(lam) * sigmoid(r_t)
        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * (sigmoid(i_t) * x_t)
        """,
        'De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient '
        'Language Models", 2024, section 2.4, with lam = -Lambda (there a = sigmoid(Lambda)), as '
        "RecurrentGemma's ``a_param``. 1 - a^2 is computed by expm1, so that it keeps its digits "
        "where a is close to 1. The derivative of its root, 1 / (2 sqrt(1 - a^2)), which has no "
        "bound there, is taken to be 1000 where it is more (1 - a^2 < 2.5e-7), as in the authors' "
        "code: gradients are finite for a = 1 too.",
        {
            "x": "inputs",
            "r": "recurrence gates before the sigmoid",
            "i": "input gates before the sigmoid",
        },
        {"lam": "decay rates before softplus"},
        options={"c": "factor of the exponent, a positive number"},
    ),
    "lru": Cell(
        """
        lambda = exp(-exp(nu) + i * exp(theta))
        h_t = lambda * h_{t-1} + gamma * u_t
        """,
        'Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023, section'
        " 3. |lambda| < 1 for every nu. It is `scan` with gates broadcast over batch and time, "
        "whose gradients are summed in the kernel. Complex gradients follow the framework's "
        "convention.",
        {"u": "inputs B x"},
        {
            "nu": "logarithms of the decay rates, float32 or float64 like the parts of u",
            "theta": "logarithms of the phases in radians a step, in nu's dtype",
            "gamma": "factor of the inputs, in nu's dtype; None means sqrt(1 - |lambda|^2). It "
            "makes a scaled copy of u: where B is a weight of yours, scale its rows and pass ones",
        },
        saved="lambda and h",
        fused=False,
        dtypes="complex64 or complex128, or float32 or float64",
        state_dtypes="complex64 or complex128",
    ),
    "diagonal_gru": Cell(
        """
        r'_t = sigmoid(r_t + u_r * h_{t-1}),  z'_t = sigmoid(z_t + u_z * h_{t-1})
        n'_t = tanh(n_t + r'_t * (u_n * h_{t-1} + b_n))
        h_t = (1 - z'_t) * n'_t + z'_t * h_{t-1}
        """,
        'Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, in the form'
        " of torch.nn.GRU, with vectors in place of the recurrent matrices.",
        {
            "r": "reset gates before the sigmoid, the input's part of them with all biases",
            "z": "update gates before the sigmoid, likewise",
            "n": "candidates before the tanh, likewise",
        },
        {
            "u_r": "recurrent weights of the reset gate",
            "u_z": "recurrent weights of the update gate",
            "u_n": "recurrent weights of the candidate",
            "b_n": "bias beside u_n, inside of the reset gate; None means zeros",
        },
        nonlinear=True,
    ),
    "diagonal_lstm": Cell(
        """
        i'_t = sigmoid(i_t + u_i * h_{t-1} + w_i * c_{t-1})
        f'_t = sigmoid(f_t + u_f * h_{t-1} + w_f * c_{t-1}),  g'_t = tanh(g_t + u_g * h_{t-1})
        c_t = f'_t * c_{t-1} + i'_t * g'_t
        o'_t = sigmoid(o_t + u_o * h_{t-1} + w_o * c_t)
        h_t = o'_t * tanh(c_t)
        """,
        'Hochreiter & Schmidhuber, "Long Short-Term Memory", 1997, with torch.nn.LSTM\'s gates and '
        "vectors in place of the recurrent matrices; peepholes w: Gers et al., "
        '"Learning Precise Timing with LSTM Recurrent Networks", 2002; without i the gates are '
        "coupled, i' = 1 - f': Greff et al., \"LSTM: A Search Space Odyssey\", 2017.",
        {
            "f": "forget gates before the sigmoid, the input's part of them with all biases",
            "i": "input gates before the sigmoid, likewise; None, with u_i, couples the gates",
            "g": "candidates before the tanh, likewise",
            "o": "output gates before the sigmoid, likewise",
        },
        {
            "u_i": "recurrent weights of the input gate; None where i is",
            "u_f": "recurrent weights of the forget gate",
            "u_g": "recurrent weights of the candidate",
            "u_o": "recurrent weights of the output gate",
            "w_i": "peephole of the input gate; None means zeros, as where i is None",
            "w_f": "peephole of the forget gate; None means zeros",
            "w_o": "peephole of the output gate; None means zeros",
        },
        {"h0": "outputs", "c0": "cells"},
        saved="h and c",
        nonlinear=True,
    ),
    "indrnn": Cell(
        "h_t = g(p_t + u * h_{t-1})",
        'Li et al., "Independently Recurrent Neural Network (IndRNN): Building A Longer and Deeper '
        'RNN", 2018, equation 2.',
        {"p": "pre-activations, the input's part of them with the bias"},
        {"u": "recurrent weights: where |u| > 1, states may grow as u^T"},
        options={"activation": _BOUNDED_ACTIVATION},
        nonlinear=True,
    ),
}

_FUSED = "Gates, recurrence and output are one kernel, which recomputes the gates for gradients. "
_SOLVED = (
    "Steps depend on one another nonlinearly. They are solved in parallel by multiple shooting "
    '(Bock & Plitt, "A Multiple Shooting Algorithm for Direct Solution of Optimal Control '
    'Problems", 1984): segments of time run at once from guesses of their starts, the starts are '
    "corrected by the segments' tangents, and what moved runs again. The result is the serial one's"
    " to the tolerance; what does not come to rest is run serially, and the report says so. 1 "
    "minus a gate is taken of the rounded gate: where that is 1, it is 0, as are its gradients."
)

#: Options that several functions have. {main} is the input whose shape counts.
_OPTIONS = {
    "axis": "the time axis of {main}.",
    "reverse": "run from the end of each sequence.",
    "cu_seqlens": "offsets of packed sequences, as in `{scan}`.",
    "lengths": "valid steps of each sequence, as in `{scan}`; h is 0 in padding.",
    "reset": "as in `{scan}`: where set, the state that enters the step is dropped.",
    "padding_side": "as in `{scan}`.",
    "tolerance": "a segment's start rests once it moves by no more than this times max(1, its "
    "size); None means 1e-6, for float64 1e-13.",
    "max_passes": "runs of the segments before the rest is run serially; 0: serial at once.",
    "segment": "steps of a segment; None: chosen from T and D, on the CPU often the whole "
    "sequence.",
    "solver": "tolerance, max_passes and segment, as in `diagonal_gru`.",
    "return_final": "return the final states too.",
    "return_checkpoints": "return what `{fn}_vjp` needs: {saved}.",
    "return_report": "return a `SolveReport` too.",
}
_OF_SOLVER = ("tolerance", "max_passes", "segment", "return_report", "solver")


@dataclass(frozen=True)
class Frontend:
    """What is true of all cells of a frontend."""

    #: The name of its scan, which says what sequences are.
    scan: str
    #: What it takes beyond a dtype, and a paragraph about derivatives.
    strides: str
    derivatives: str
    value_error: str
    type_error: str
    more_errors: Mapping[str, str] = field(default_factory=dict)
    report: str = ""


NUMPY = Frontend(
    scan="scanrnn.scan",
    strides=", with any strides",
    derivatives="`{fn}_vjp` has the gradients.",
    value_error="a shape, stride, length, offset, option or device is wrong; nothing has been "
    "written.",
    type_error="a dtype or a framework is wrong, or the frameworks differ.",
)
TORCH = Frontend(
    scan="scanrnn.torch.scan",
    strides=", with any strides",
    derivatives="What is saved for backward beside the inputs: {saved}. See the module for "
    "derivatives, dtypes and layouts.",
    value_error="a shape, length, offset, option or device is wrong.",
    type_error="a dtype is wrong.",
    more_errors={
        "RuntimeError": "CUDA tensors, and this build has no CUDA backend or no kernel for the "
        "device."
    },
)
JAX = Frontend(
    scan="scanrnn.jax.scan",
    strides="",
    derivatives="Beside the inputs, reverse mode keeps {saved}. Transformations work as for "
    "`scanrnn.jax.scan`.",
    value_error="a shape, the axis, an option or a value of cu_seqlens or lengths is wrong, as in "
    "`scanrnn.jax.scan`.",
    type_error="a dtype is wrong.",
    more_errors={"NotImplementedError": "as in `scanrnn.jax.scan`."},
    report=" It is a pytree of one array, `rows`, (N, 6), in the widest float that JAX allows; N "
    "is the number of sequences.",
)


# ---- Functions of cells --------------------------------------------------------------------------


def _shaped(text: str, shape: str) -> str:
    """What an argument is, and its shape before what follows a semicolon."""
    what, _, rest = text.partition(";")
    return f"{what}, {shape}{';' if rest else ''}{rest}."


def _arguments(name: str, cell: Cell, frontend: Frontend) -> dict[str, str]:
    main = cell.main
    dtypes = cell.dtypes or "float16, bfloat16, float32 or float64"
    vector = f"(D,) in {main}'s dtype or its accumulation dtype"
    state = cell.state_dtypes or f"in {main}'s dtype or its accumulation dtype"
    texts = {n: _shaped(text, f"{main}'s shape and dtype") for n, text in cell.inputs.items()}
    texts[main] = (
        f"{cell.inputs[main]}, (batch..., channel) with the time axis inserted at `axis`: (B, T, D)"
        f" by default. {dtypes}{frontend.strides}."
    )
    texts |= {
        n: f"(D,), {text}." if cell.dtypes else _shaped(text, vector)
        for n, text in cell.vectors.items()
    }
    texts |= {
        n: f"{text} before the first step, {main}'s shape without the time axis, {state}; None "
        "means zeros. (N, D) with cu_seqlens."
        for n, text in cell.states.items()
    }
    options = dict(_OPTIONS)
    options["return_report"] += frontend.report
    if not cell.nonlinear:  # but sru may have v_f and v_r
        options |= {n: f"with v_f and v_r: {options[n]}" for n in _OF_SOLVER}
    words = {"main": main, "scan": frontend.scan, "fn": name, "saved": cell.saved}
    texts |= {n: f"{text}." for n, text in cell.options.items()}
    return texts | {n: text.format(**words) for n, text in options.items()}


def _last(cell: Cell) -> str:
    """The final states."""
    finals = [n.replace("0", "_T") for n in cell.states]
    return finals[0] if len(finals) == 1 else f"({', '.join(finals)})"


def _forward(name: str, cell: Cell, frontend: Frontend, parameters: Mapping[str, Any]) -> _Parts:
    last, first = _last(cell), next(iter(cell.states))
    kept = cell.state_dtypes or "the accumulation dtype, float32 for 16-bit floats"
    more = {"return_final": last, "return_checkpoints": "checkpoints", "return_report": "report"}
    asked = [what for n, what in more.items() if n in parameters]
    returns = f"h, with {cell.main}'s shape and dtype"
    if cell.state_dtypes:
        returns = f"h, with {cell.main}'s shape, {cell.state_dtypes}"
    if len(asked) == 1:
        returns += f"; with return_final (h, {last})."
    else:
        returns += (
            ", and with it what was asked for, in the order (" + ", ".join(["h", *asked]) + ")."
        )
    have = "have" if len(cell.states) > 1 else "has"
    returns += f" {last} {have} {first}'s shape, in {kept}."
    if "checkpoints" in asked:
        returns += " The checkpoints are an opaque array."
    words = {"fn": name, "saved": cell.saved}
    paragraphs = [cell.source, _FUSED * cell.fused + frontend.derivatives.format(**words)]
    if cell.nonlinear:
        paragraphs.insert(1, _SOLVED)
    return _Parts(
        [_equations(cell), *map(_wrapped, paragraphs)],
        _arguments(name, cell, frontend),
        returns,
        {
            "ValueError": frontend.value_error,
            "TypeError": frontend.type_error,
            **frontend.more_errors,
        },
    )


def _vjp(name: str, cell: Cell, frontend: Frontend, _: Mapping[str, Any]) -> _Parts:
    main, first = cell.main, next(iter(cell.states))
    given = f"as given to `{name}`."
    pair = ", for both or for one." if len(cell.states) > 1 else "."
    texts = dict.fromkeys(_arguments(name, cell, frontend), given)
    texts |= {
        "h": f"what `{name}` returned for the same arguments and options.",
        "checkpoints": f"what `{name}` returned with return_checkpoints for the same arguments and "
        "options.",
        "dh": f"gradient of the loss with respect to h, {main}'s shape and dtype; None means "
        "zeros.",
        "dfinal": f"gradient with respect to {_last(cell)}, in {first}'s shape, in {main}'s dtype "
        "or its accumulation dtype; None means zeros" + pair,
        "sequences": "axis, reverse, cu_seqlens, lengths, reset and padding_side, " + given,
    }
    about = (
        f"PyTorch and JAX differentiate `{name}` itself. Gates, and states that were not saved, "
        "are recomputed. Sums over batch and time have a fixed order."
    )
    if cell.nonlinear:
        about += (
            " The adjoint at the states that were found is a linear recurrence, solved exactly."
        )
    return _Parts(
        [_wrapped(about)],
        texts,
        "One gradient an argument, in its shape and dtype; None for arguments that were None.",
        {"ValueError": frontend.value_error, "TypeError": frontend.type_error},
    )


def _step(name: str, cell: Cell, frontend: Frontend, _: Mapping[str, Any]) -> _Parts:
    texts = dict.fromkeys(cell.inputs, f"(..., D), as in `{name}` without the time axis.")
    texts |= dict.fromkeys(cell.vectors, f"(D,), as in `{name}`.")
    texts |= dict.fromkeys(cell.options, f"as in `{name}`.")
    states = {n.removesuffix("0"): text.removesuffix("s") for n, text in cell.states.items()}
    texts |= {
        n: f"(..., D), the {text} before the step; None means zeros." for n, text in states.items()
    }
    after = ", ".join(states)
    after = f"({after})" if len(states) > 1 else after
    kept = cell.state_dtypes or "the accumulation dtype"
    return _Parts(
        [],
        texts,
        f"(h, {after}): the output in {'h' if cell.state_dtypes else cell.main}'s dtype, and what "
        f"to pass to the next step, in {kept}.",
        {"ValueError": frontend.value_error, "TypeError": frontend.type_error},
    )


_KINDS = {"": _forward, "vjp": _vjp, "step": _step}


def documented(frontend: Frontend) -> Callable[[DocumentedT], DocumentedT]:
    """A decorator that completes the docstring of a cell's function, its vjp or its step."""

    def decorate(function: DocumentedT) -> DocumentedT:
        name, _, kind = function.__name__.rpartition("_")
        if kind not in ("vjp", "step"):
            name, kind = function.__name__, ""
        parameters = inspect.signature(function).parameters
        parts = _KINDS[kind](name, CELLS[name], frontend, parameters)
        function.__doc__ = complete(function.__doc__, parameters, parts)
        return function

    return decorate


# ---- Layers --------------------------------------------------------------------------------------

#: Arguments of torch's layers. {name} is the function of the cell.
TORCH_LAYER = {
    "input_size": "features of the input.",
    "hidden_size": "features D of the state of each direction.",
    "num_layers": "layers, each of which takes the output of the one before.",
    "bias": "whether there are biases.",
    "batch_first": "input and output are (B, T, features), not (T, B, features). hx and h_n are "
    "not affected.",
    "dropout": "probability of dropout on the outputs of all layers but the last, in training.",
    "bidirectional": "run a second direction from the end; outputs are concatenated.",
    "device": "of the parameters.",
    "dtype": "of the parameters.",
    "activation": "g, as in `scanrnn.torch.{name}`.",
    "proj_size": "features of the output of each direction, 0 for hidden_size.",
    "variational": "dropout keeps one mask for all steps of a sequence.",
    "tolerance": "with recurrent=True, as in `scanrnn.torch.{name}`.",
    "max_passes": "with recurrent=True, as in `scanrnn.torch.{name}`.",
    "segment": "with recurrent=True, as in `scanrnn.torch.{name}`.",
}

#: Arguments of torch.nn's layers, parallel in time.
TORCH_DENSE = {
    **TORCH_LAYER,
    "nonlinearity": '"tanh" or "relu".',
    "parallel": "None chooses per call, layer and direction what is predicted to be faster. True "
    "relaxes wherever a sequence has two chunks, and still falls back to the serial kernel where "
    "that does not converge. False always takes the serial kernel.",
    "tol": "mismatch between chunks, relative to max(1, |state|), that counts as agreement. None "
    "means 1e-12, 2e-6, 4e-3 and 3e-2 for float64, float32, float16 and bfloat16, and 5e-4 where "
    "cuDNN may use TF32 (torch.backends.cudnn.allow_tf32).",
    "passes": "a fixed number of passes over all chunks, beside the burn-in: nothing waits for the "
    "device, and CUDA graphs can record the call. Nothing is checked either: the report says "
    "whether it converged, when it is asked.",
    "width": "steps of a chunk. None chooses.",
    "burn_in": "steps that yield the first estimate of a chunk's start state. None chooses, and "
    "learns from call to call.",
    "recompute": "run chunks again in backward, which saves only inputs, outputs and the states at "
    "chunks' starts, and takes about a quarter more time. False keeps what cuDNN needs of them, as "
    "torch.nn's layer does, where an eighth of the device's memory has room for it.",
}

#: Arguments of the functions that make a layer's parameters in JAX.
JAX_INIT = {
    "key": "a JAX random key.",
    "input_size": "features of the input.",
    "hidden_size": "features of the output.",
    "output_size": "features of the output; None means input_size.",
    "bias": "whether there are biases.",
    "dtype": "of the parameters.",
}

#: Arguments of JAX's layers as functions.
JAX_LAYER = {
    "params": "from `{name}_init`.",
    "x": "(..., T, input_size) in the parameters' dtype.",
    "h0": "(..., hidden_size), as in `{name}`.",
    "c0": "(..., hidden_size), as in `{name}`.",
    "activation": "as in `{name}`.",
    "c": "as in `{name}`.",
    "return_report": "return a report too, as in `diagonal_gru`.",
    "options": "axis, reverse, cu_seqlens, lengths, reset and padding_side, as in "
    "`scanrnn.jax.scan`. The axis of the features is the last.",
}
JAX_SOLVED_LAYER = JAX_LAYER | {
    "options": JAX_LAYER["options"] + " Also tolerance, max_passes and segment, as in "
    "`diagonal_gru`."
}
JAX_LAYER_RETURNS = (
    "(h, hT): the outputs (..., T, hidden_size), and the states after the last steps in h0's shape "
    "and the accumulation dtype."
)
JAX_LAYER_ERRORS = {
    "ValueError": "a shape, an option or a value of cu_seqlens or lengths is wrong.",
    "TypeError": "a dtype is wrong.",
}

#: Arguments of Flax's modules.
NNX = {
    "input_size": "features of the input.",
    "hidden_size": "features of the output of each direction.",
    "num_layers": "layers, each on the one before.",
    "bidirectional": "whether each layer runs in both directions and concatenates the outputs.",
    "activation": "as in `scanrnn.jax.{name}`.",
    "bias": "whether there are biases.",
    "tolerance": "as in `scanrnn.jax.diagonal_gru`.",
    "max_passes": "as in `scanrnn.jax.diagonal_gru`.",
    "dropout": "probability that a value between two layers is zeroed.",
    "dtype": "of the parameters.",
    "rngs": 'Flax\'s random streams; "params" is used.',
}


def documented_layer(
    texts: Mapping[str, str],
    cell: str = "",
    *,
    equations: bool = False,
    returns: str = "",
    errors: Mapping[str, str] = MappingProxyType({"ValueError": "an argument is out of range."}),
) -> Callable[[DocumentedT], DocumentedT]:
    """A decorator that completes the docstring of a layer: a class, or a function in JAX.

    Args:
        texts: what is said of arguments.
        cell: the function of its cell, which a function's own name begins with.
        equations: whether to say what the cell computes.
        returns: what is returned, if anything.
        errors: what is raised.
    """

    def decorate(layer: DocumentedT) -> DocumentedT:
        name = cell or layer.__name__.rpartition("_")[0]
        # Of a class's constructor, not of a metaclass that calls it, as Flax's does.
        function = layer.__init__ if isinstance(layer, type) else layer  # type: ignore[misc]
        parameters = dict(inspect.signature(function).parameters)
        parameters.pop("self", None)
        parts = _Parts(
            [_equations(CELLS[cell]), _wrapped(CELLS[cell].source)] if equations else [],
            {n: text.format(name=name) for n, text in texts.items()},
            returns,
            errors,
        )
        layer.__doc__ = complete(layer.__doc__, parameters, parts)
        return layer

    return decorate


# ---- Docstrings ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """What completes a docstring: paragraphs, arguments by name, what is returned and raised."""

    paragraphs: list[str] = field(default_factory=list)
    arguments: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)


_INDENT = " " * 4
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):\n", re.MULTILINE)
_ENTRY = re.compile(r"^    \**(\w+): ", re.MULTILINE)


#: The sources' 100 columns without the indentation of a function's docstring.
_WIDTH = 96


@functools.cache
def _wrapped(text: str, first: str = "", rest: str = "") -> str:
    """What textwrap.fill does, in a tenth of its time: this runs at import."""
    if len(first) + len(text) <= _WIDTH:
        return first + text
    lines, line = [], first
    for word in text.split():
        if len(line) + len(word) > _WIDTH and line.strip():
            lines.append(line.rstrip())
            line = rest
        line += word + " "
    return "\n".join([*lines, line.rstrip()])


def _equations(cell: Cell) -> str:
    lines = inspect.cleandoc(cell.equations).splitlines()
    return "\n".join(_INDENT + line for line in lines)


def _entry(name: str, text: str) -> str:
    """A line of a section and those that belong to it."""
    return _wrapped(f"{name}: {text}", _INDENT, 2 * _INDENT)


def complete(doc: str | None, parameters: Mapping[str, Any], parts: _Parts) -> str | None:
    """A docstring with what it leaves out.

    Args:
        doc: a docstring in Google's style; its own sections and entries count. None stays None.
        parameters: of the signature, in order.
        parts: what is said of it elsewhere.

    Raises:
        KeyError: nothing is said of a parameter.
    """
    if doc is None:  # python -OO
        return None
    head, *found = _SECTION.split(inspect.cleandoc(doc))
    summary, *more = head.rstrip().split("\n\n", 1)
    sections = {n: text.rstrip() for n, text in zip(found[::2], found[1::2], strict=True)}
    _, *entries = _ENTRY.split(sections.pop("Args", ""))
    own = dict(zip(entries[::2], entries[1::2], strict=True))
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    sections["Args"] = "\n".join(
        f"    {stars.get(p.kind, '')}{n}: {own[n].rstrip()}"
        if n in own
        else _entry(f"{stars.get(p.kind, '')}{n}", parts.arguments[n])
        for n, p in parameters.items()
    )
    if parts.returns:
        sections.setdefault("Returns", _wrapped(parts.returns, _INDENT, _INDENT))
    if parts.errors:
        errors = [_entry(name, text) for name, text in parts.errors.items()]
        sections.setdefault("Raises", "\n".join(errors))
    order = [n for n in ("Args", "Attributes", "Returns", "Raises", "Example") if n in sections]
    body = [summary, *parts.paragraphs, *more, *(f"{n}:\n{sections[n]}" for n in order)]
    return "\n\n".join(body)
