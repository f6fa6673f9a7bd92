"""torch.nn's LSTM, GRU and RNN, weight for weight, parallel in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, Self, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import _VF, Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import PackedSequence

from scanrnn import _docs
from scanrnn._array.options import real_number, whole_number

from ._arguments import require_tensor
from ._ops import in_forward_mode, name_of
from ._relax import costs, plan
from ._relax.adjoint import Relax
from ._relax.forward import Call
from ._relax.kernel import Kernel, State
from ._relax.plan import History, Plan
from ._relax.report import FixedReport, Report, worst
from ._relax.rows import Layout

__all__ = ["GRU", "LSTM", "RNN", "Report"]

_documented = _docs.documented_layer(
    _docs.TORCH_DENSE,
    errors={
        "ValueError": "an argument is out of range.",
        "TypeError": "an argument is of a wrong type, or unknown.",
    },
)

Index = NDArray[np.int64]

_CUDNN_LIMIT = 65536  # cuDNN refuses this many steps
_LONGEST = 32768  # steps of a call where there are more


def _autocasts(x: Tensor) -> bool:
    # Tensors without data are on a device that PyTorch's question does not know.
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def _transforms(x: Tensor) -> bool:
    """Whether the framework does something with this call that chunks have no rules for."""
    return _autocasts(x) or torch._C._are_functorch_transforms_active() or in_forward_mode()


class Options(TypedDict, total=False):
    """What LSTM, GRU and RNN take beside torch.nn's arguments; `LSTM` documents it."""

    parallel: bool | None
    tol: float | None
    passes: int | None
    width: int | None
    burn_in: int | None
    recompute: bool


class _Parallel(nn.RNNBase):
    """What LSTM, GRU and RNN share: torch.nn's layer, and relaxation over time.

    Args:
        args: torch.nn's.
        parallel: as in `LSTM`, likewise the other options.
        tol: see parallel.
        passes: see parallel.
        width: see parallel.
        burn_in: see parallel.
        recompute: see parallel.
        kwargs: torch.nn's.

    Attributes:
        last_report: of the last call (see `Report`), None before the first.
    """

    def __init__(
        self,
        *args: Any,
        parallel: bool | None,
        tol: float | None,
        passes: int | None,
        width: int | None,
        burn_in: int | None,
        recompute: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        name = type(self).__name__
        if not (parallel is None or isinstance(parallel, bool)):
            raise TypeError(f"{name}: parallel is {parallel!r}, expected None, True or False")
        if tol is not None and not real_number(name, "tol", tol) > 0:
            raise ValueError(f"{name}: tol is {tol}, expected a positive number")
        for key, value in (("passes", passes), ("width", width), ("burn_in", burn_in)):
            if value is not None and whole_number(name, key, value) < 1:
                raise ValueError(f"{name}: {key} is {value}, expected at least 1")
        self.parallel = parallel
        self.tol = tol
        self.passes = passes
        self.width = width
        self.burn_in = burn_in
        self.recompute = recompute
        self.last_report: Report | None = None
        directions = 2 if self.bidirectional else 1
        self._history = [History() for _ in range(self.num_layers * directions)]
        self._serial_cases: dict[tuple[Any, ...], Report | None] = {}

    @classmethod
    def from_torch(cls, module: nn.Module, **options: Unpack[Options]) -> Self:
        """A layer that shares the parameters of torch.nn's layer of the same name.

        Args:
            module: a torch.nn.LSTM, GRU or RNN.
            options: parallel, tol, passes, width, burn_in, recompute.

        Raises:
            TypeError: module is not torch.nn's layer of that name, or its weights are parametrised.
        """
        if not isinstance(module, nn.RNNBase) or not cls._accepts(module):
            raise TypeError(
                f"{cls.__name__}.from_torch: module is a {type(module).__name__}, expected a "
                f"torch.nn.{cls.__name__}"
            )
        new = cls(
            module.input_size,
            module.hidden_size,
            module.num_layers,
            bias=module.bias,
            batch_first=module.batch_first,
            dropout=module.dropout,
            bidirectional=module.bidirectional,
            device="meta",
            **cls._own_arguments(module),
            **options,
        )
        for name in module._flat_weights_names:
            weight = getattr(module, name)
            if not isinstance(weight, nn.Parameter):
                raise TypeError(
                    f"{cls.__name__}.from_torch: {name} of module is a {type(weight).__name__}, "
                    "expected a torch.nn.Parameter: parametrise the new layer"
                )
            setattr(new, name, weight)
        new._init_flat_weights()  # or the first call would
        return new.train(module.training)

    @classmethod
    def _accepts(cls, module: nn.RNNBase) -> bool:
        return module.mode == cls.__name__

    @classmethod
    def _own_arguments(cls, module: nn.RNNBase) -> dict[str, Any]:
        return {}

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        *,
        return_report: bool = False,
    ) -> tuple[Any, ...]:
        """Run all layers over sequences, as torch.nn's layer does.

        Under torch.compile it is a graph break.

        Args:
            input: (T, B, input_size), or (B, T, input_size) with batch_first, or (T, input_size)
                for one sequence, or a PackedSequence, sorted or not. Any T.
            hx: states before the first step, (num_layers * directions, B, features), without B for
                one sequence; for the LSTM the pair (h, c). None means zeros.
            return_report: return the report too.

        Returns:
            output and final states, as torch.nn's layer; with return_report also the `Report`.

        Raises:
            ValueError: a shape or device is wrong.
            TypeError: a dtype is wrong.
            RuntimeError: a CUDA graph is captured, and the number of passes is not fixed.
        """
        result: tuple[Any, ...]
        grad = torch.is_grad_enabled()
        plain = hx is None and (self.training or not grad) and not torch.compiler.is_compiling()
        if plain and isinstance(input, Tensor):
            case = (input.shape, input.dtype, input.device, grad, self.parallel)
            report = self._serial_cases.get(case)
            if report is not None:  # nothing beside torch.nn's layer
                self.__dict__["last_report"] = report
                result = super().forward(input, hx)
                return (*result, report) if return_report else result
        if torch.compiler.is_dynamo_compiling() or "torch._dynamo" in sys.modules:
            # How often a layer runs is up to the data: graphs break here.
            from scanrnn.torch._uncompiled import uncompiled

            return uncompiled(self._run, input, hx, return_report)  # type: ignore[no-any-return]
        return self._run(input, hx, return_report)

    def _run(self, input: Tensor | PackedSequence, hx: Any, return_report: bool) -> tuple[Any, ...]:
        self._update_flat_weights()  # parametrised ones, or others in their place
        packed = isinstance(input, PackedSequence)
        batch_sizes = order = back = None
        if isinstance(input, PackedSequence):
            x, batch_sizes, order, back = input
        else:
            x = input
        self._check_input(x, packed)
        single = not packed and x.ndim == 2
        time_axis, batch_axis = (1, 0) if self.batch_first else (0, 1)
        if single:
            x = x.unsqueeze(batch_axis)
        batch = int(batch_sizes[0]) if batch_sizes is not None else x.shape[batch_axis]
        state = self._initial(hx, batch, single, x, order)

        steps = x.shape[time_axis] if batch_sizes is None else len(batch_sizes)
        case = self._serial_case(x, steps, batch_sizes is not None)
        if case is not None:
            report = case
            y, final = self._framework(x, state, batch_sizes)
            if isinstance(input, Tensor) and not (report.pause or _transforms(x)):
                grad = torch.is_grad_enabled()
                key = (input.shape, input.dtype, input.device, grad, self.parallel)
                self._serial_cases[key] = report
        else:
            dense = x if packed or not self.batch_first else x.transpose(0, 1)
            y, final, report = self._layered(dense, state, batch_sizes)
            if not packed and self.batch_first:
                y = y.transpose(0, 1)
        self.last_report = report

        if back is not None:
            final = tuple(s.index_select(1, back) for s in final)
        if single:
            y, final = y.squeeze(batch_axis), tuple(s.squeeze(1) for s in final)
        output: Any = y
        if isinstance(input, PackedSequence):
            output = PackedSequence(y, input.batch_sizes, input.sorted_indices, back)
        states: Any = final if self.mode == "LSTM" else final[0]
        return (output, states, report) if return_report else (output, states)

    def step(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Run one step, for decoding: one step of a sequence in the framework's kernel.

        Args:
            input: (B, input_size), or (input_size,).
            hx: states before the step, as for a sequence; None means zeros.

        Returns:
            output, (B, features) or (features,), and the states after the step.

        Raises:
            ValueError: the layer is bidirectional, or a shape is wrong.
            TypeError: a dtype is wrong.
        """
        name = type(self).__name__
        if self.bidirectional:
            raise ValueError(
                f"{name}: a bidirectional layer has no step, expected one direction: the second "
                "needs the whole sequence"
            )
        require_tensor(name, "input of step", input)
        if input.ndim not in (1, 2):
            raise ValueError(f"{name}: input of step has {input.ndim} axes, expected 1 or 2")
        axis = 1 if self.batch_first and input.ndim == 2 else 0
        output, states = self(input.unsqueeze(axis), hx)
        return output.squeeze(axis), states

    # ---- Arguments -------------------------------------------------------------------------------

    def _weights(self) -> list[Tensor]:
        return [w for w in self._flat_weights if w is not None]

    def _check_input(self, x: Tensor, packed: bool) -> None:
        name, weight = type(self).__name__, self._weights()[0]
        require_tensor(name, "input", x)
        if not packed and x.ndim not in (2, 3):
            raise ValueError(f"{name}: input has {x.ndim} axes, expected 2 or 3")
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"{name}: input has shape {tuple(x.shape)}, expected {self.input_size} features"
            )
        if x.shape[1 if self.batch_first and x.ndim == 3 else 0] == 0:
            raise ValueError(
                f"{name}: input has shape {tuple(x.shape)}, expected at least one step"
            )
        if x.device != weight.device:
            raise ValueError(
                f"{name}: input is on device {x.device}, expected {weight.device} (the device of "
                "the weights)"
            )
        if x.dtype != weight.dtype and not _autocasts(x):
            raise TypeError(
                f"{name}: input has dtype {name_of(x.dtype)}, expected {name_of(weight.dtype)} "
                "(the dtype of the weights)"
            )

    def _initial(self, hx: Any, batch: int, single: bool, x: Tensor, order: Tensor | None) -> State:
        """(layers * directions, B, features) of h, and of c."""
        name = type(self).__name__
        stacked = len(self._history)
        sizes = self._kernel(0).sizes
        if hx is None:
            return tuple(x.new_zeros(stacked, batch, n) for n in sizes)
        several = len(sizes) > 1 and isinstance(hx, (tuple, list))
        parts = tuple(hx) if several else (hx,)
        if len(parts) != len(sizes) or not all(isinstance(p, Tensor) for p in parts):
            of = f" of {len(hx)}" if isinstance(hx, (tuple, list)) else ""
            raise ValueError(
                f"{name}: hx is a {type(hx).__name__}{of}, expected "
                f"{'a pair of tensors' if len(sizes) > 1 else 'a tensor'}"
            )
        labels = ("hx[0]", "hx[1]") if len(sizes) > 1 else ("hx",)
        for label, part, n in zip(labels, parts, sizes, strict=True):
            require_tensor(name, label, part)
            expected = (stacked, n) if single else (stacked, batch, n)
            if tuple(part.shape) != expected:
                raise ValueError(
                    f"{name}: {label} has shape {tuple(part.shape)}, expected {expected}"
                )
            if part.device != x.device:
                raise ValueError(f"{name}: {label} is on device {part.device}, expected {x.device}")
            if part.dtype != x.dtype and not _autocasts(x):
                raise TypeError(
                    f"{name}: {label} has dtype {name_of(part.dtype)}, expected {name_of(x.dtype)} "
                    "(the dtype of the input)"
                )
        if single:
            parts = tuple(p.unsqueeze(1) for p in parts)
        if order is not None:
            parts = tuple(p.index_select(1, order) for p in parts)
        return tuple(p.contiguous() for p in parts)  # cuDNN wants them so

    # ---- The serial kernel -----------------------------------------------------------------------

    def _serial_case(self, x: Tensor, steps: int, packed: bool) -> Report | None:
        """The report, if all layers run in one call of the framework's."""
        if x.is_cuda and steps >= _CUDNN_LIMIT:
            return None
        if (
            self.parallel is False
            or x.numel() == 0
            or x.is_meta
            or _transforms(x)
            or x.dtype not in costs.TOLERANCE
        ):
            return Report(depth=steps)
        if self.parallel:
            return None
        total = x.numel() // x.shape[-1]
        batch = max(1, total // steps)
        total = total if packed else batch * steps
        known = False
        for history, layer in zip(self._history, self._layers(), strict=True):
            known = known or history.burn_in > 0
            choice = plan.choose(
                self._kernel(layer),
                batch,
                steps,
                total,
                x.device.type,
                x.dtype,
                torch.is_grad_enabled(),
                self.burn_in or history.burn_in or plan.LIKELY,
                self.width,
                keeps=not self.recompute,
            )
            if choice is not None:
                break
        else:
            return Report(depth=steps, pause=known)
        if self.passes is None and all(h.pause for h in self._history):
            for history in self._history:
                history.pause -= 1
            return Report(depth=steps, pause=True)
        return None

    def _layers(self) -> list[int]:
        """The layer of each history."""
        directions = 2 if self.bidirectional else 1
        return [i // directions for i in range(len(self._history))]

    def _framework(
        self, x: Tensor, state: State, batch_sizes: Tensor | None
    ) -> tuple[Tensor, State]:
        """All layers in the framework's own kernel."""
        grad = torch.is_grad_enabled()
        tensors = (x, *state, *self._weights())
        train = self.training or (grad and any(t.requires_grad for t in tensors))
        hx: Any = state if len(state) > 1 else state[0]
        options = (
            self.bias,
            self.num_layers,
            self.dropout if self.training else 0.0,
            train,
            self.bidirectional,
        )
        call: Callable[..., Any] = getattr(_VF, self.mode.lower())
        if batch_sizes is None:
            y, *final = call(x, hx, self._flat_weights, *options, self.batch_first)
        else:
            y, *final = call(x, batch_sizes, hx, self._flat_weights, *options)
        return y, tuple(final)

    # ---- Layer by layer --------------------------------------------------------------------------

    def _kernel(self, layer: int) -> Kernel:
        h = self.proj_size or self.hidden_size
        features = self.input_size if layer == 0 else h * (2 if self.bidirectional else 1)
        return Kernel(self.mode, features, self.hidden_size, self.proj_size, self.bias)

    def _layered(
        self, x: Tensor, state: State, batch_sizes: Tensor | None
    ) -> tuple[Tensor, State, Report]:
        """Layers and directions one by one, x (T, B, features) or the data of packed sequences."""
        sequences = Sequences(x, batch_sizes)
        directions = 2 if self.bidirectional else 1
        per = len(self._flat_weights) // len(self._history)
        reports: list[Report] = []
        finals: list[State] = []
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout and self.training:
                x = F.dropout(x, self.dropout, True)
            kernel = self._kernel(layer)
            outputs = []
            for direction in range(directions):
                i = layer * directions + direction
                weights = self._weights()[i * per : (i + 1) * per]
                run = _Run(self, kernel, weights, self._history[i])
                first = tuple(s[i] for s in state)
                y, final, report = run(sequences, x, first, reverse=direction == 1)
                outputs.append(y)
                finals.append(final)
                reports.append(report)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        final = tuple(torch.stack(part) for part in zip(*finals, strict=True))
        return x, final, worst(reports)


class Sequences:
    """Where the steps of sequences are: in (T, B, features), or in the data of packed ones."""

    def __init__(self, x: Tensor, batch_sizes: Tensor | None) -> None:
        self.batch_sizes = batch_sizes
        if batch_sizes is None:
            self.steps, self.batch = x.shape[0], x.shape[1]
            self.total = self.steps * self.batch
            self.lengths = np.full(self.batch, self.steps)
        else:
            sizes = batch_sizes.numpy()
            self.steps, self.batch = len(sizes), int(sizes[0])
            self.total = int(sizes.sum())
            self.lengths = (sizes[:, None] > np.arange(self.batch)).sum(0)

    @cached_property
    def offsets(self) -> Index:
        """Where each step begins in flat data, (steps * B, features) or packed."""
        if self.batch_sizes is None:
            return np.arange(0, self.total, self.batch)
        sizes: Index = self.batch_sizes.numpy()
        return np.cumsum(sizes) - sizes

    def reverse(self, x: Tensor) -> Tensor:
        """Each sequence from its end. The inverse is the same."""
        if self.batch_sizes is None:
            return x.flip(0)
        t, b = self._steps_of(self.lengths)
        index = np.empty(len(t), dtype=np.int64)
        index[self.offsets[t] + b] = self.offsets[self.lengths[b] - 1 - t] + b
        return x.index_select(0, torch.from_numpy(index).to(x.device))

    @staticmethod
    def _steps_of(lengths: Index) -> tuple[Index, Index]:
        """All (step, sequence), in the order of packed data."""
        longest = int(lengths.max(initial=0))
        t, b = np.nonzero(np.arange(longest)[:, None] < lengths)
        return t, b

    def take(self, x: Tensor, t: Index, b: Index) -> Tensor:
        """Steps t of sequences b, in the shape of both."""
        if self.batch_sizes is None:
            return x[torch.from_numpy(t).to(x.device), torch.from_numpy(b).to(x.device)]
        index = self.offsets[t] + b
        flat = x.index_select(0, torch.from_numpy(index.reshape(-1)).to(x.device))
        return flat.view(*index.shape, x.shape[-1])

    def rows(self, x: Tensor, layout: Layout, width: int) -> Tensor:
        """Chunks as rows, (width, rows, features)."""
        if self.batch_sizes is None and layout.even:
            n = layout.most
            chunks = x[: n * width].view(n, width, *x.shape[1:]).transpose(0, 1)
            return chunks.reshape(width, n * self.batch, x.shape[-1])
        return self.take(x, *self._steps_of_rows(layout, width))

    @staticmethod
    def _steps_of_rows(layout: Layout, width: int) -> tuple[Index, Index]:
        return layout.chunk * width + np.arange(width)[:, None], layout.sequence[None]

    def assemble(self, y: Tensor | None, layout: Layout, width: int, rest: list[_Piece]) -> Tensor:
        """Outputs of rows and of what came after them, in the order of the input."""
        if self.batch_sizes is None and layout.even and len(rest) <= 1:
            parts = [piece.y for piece in rest]
            if y is not None:
                n = layout.most
                whole = y.unflatten(1, (n, self.batch)).transpose(0, 1)
                parts.insert(0, whole.reshape(n * width, self.batch, y.shape[-1]))
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        where, values = [], []
        if y is not None:
            t, b = self._steps_of_rows(layout, width)
            where.append((self.offsets[t] + b).reshape(-1))
            values.append(y.flatten(0, 1))
        for piece in rest:
            where.append((self.offsets[piece.t] + piece.b).reshape(-1))
            values.append(piece.y.reshape(-1, piece.y.shape[-1]))
        index = torch.from_numpy(np.argsort(np.concatenate(where))).to(values[0].device)
        flat = torch.cat(values).index_select(0, index)
        return flat if self.batch_sizes is not None else flat.unflatten(0, (self.steps, self.batch))


class _Piece:
    """Outputs y of steps t of sequences b."""

    def __init__(self, t: Index, b: Index, y: Tensor) -> None:
        self.t, self.b = np.broadcast_arrays(t, b)
        self.y = y


class _Flatten(torch.autograd.Function):
    """Weights in one piece of memory (see `Kernel.flat`), differentiable."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(kernel.flat(weights))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, *grads)


def _apply(function: type[torch.autograd.Function], *args: Any) -> tuple[Tensor, ...]:
    """function.apply, which PyTorch does not annotate."""
    apply: Callable[..., tuple[Tensor, ...]] = getattr(function, "apply")  # noqa: B009
    return apply(*args)


class _Run:
    """One layer and direction of a module, once."""

    def __init__(
        self, module: _Parallel, kernel: Kernel, weights: Sequence[Tensor], history: History
    ) -> None:
        self.module, self.kernel, self.weights = module, kernel, weights
        fresh = torch.are_deterministic_algorithms_enabled()
        self.history = History() if fresh else history

    def __call__(
        self, sequences: Sequences, x: Tensor, first: State, *, reverse: bool
    ) -> tuple[Tensor, State, Report]:
        if reverse:
            x = sequences.reverse(x)
        choice = self._plan(sequences, x)
        if choice is None:
            report = Report()
            layout = Layout([0] * sequences.batch, x.device)
            y, final, width = None, first, 0
        else:
            width = choice.width
            y, final, layout, report = self._relax(choice, sequences, x, first)
        rest, final = self._continue(sequences, x, layout, width, final)
        report.depth += max((piece.t.max() - piece.t.min() + 1 for piece in rest), default=0)
        output = sequences.assemble(y, layout, width, rest)
        return sequences.reverse(output) if reverse else output, final, report

    # ---- Relaxation ------------------------------------------------------------------------------

    def _plan(self, sequences: Sequences, x: Tensor) -> Plan | None:
        module, kernel, history = self.module, self.kernel, self.history
        force = module.parallel is True
        if module.parallel is False or not sequences.batch:
            return None

        call = (
            kernel,
            sequences.batch,
            sequences.steps,
            sequences.total,
            x.device.type,
            x.dtype,
            torch.is_grad_enabled(),
        )

        def choose(burn_in: int) -> Plan | None:
            adjoint = 0 if module.burn_in else history.adjoint
            keeps = not module.recompute
            return plan.choose(*call, burn_in, module.width, force, keeps, adjoint)

        burn_in = module.burn_in or history.burn_in
        if not burn_in and module.passes is not None:
            burn_in = plan.BURN_IN
        if not burn_in and history.pause and not force:
            history.pause -= 1
            return None
        if choose(burn_in or plan.LIKELY) is None:
            return None
        if x.is_cuda and module.passes is None and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{type(module).__name__}: a CUDA graph is being captured, which can't wait for "
                "convergence; expected a fixed number of passes (passes=1, after a first call "
                "outside the capture) or parallel=False"
            )
        if not burn_in and not history.slow:
            self._probe(sequences, x, choose)
            burn_in = history.burn_in
        if not burn_in and not force:
            slow = history.slow
            trial = plan.choose_trial(*call, slow, module.width) if slow else None
            if trial is None:
                history.fail()
                return None
            return trial
        return choose(burn_in or plan.BURN_IN)

    def _probe(self, sequences: Sequences, x: Tensor, choose: Callable[[int], Plan | None]) -> None:
        longest = plan.probe_steps(
            self.kernel, sequences.batch, sequences.steps, x, torch.is_grad_enabled()
        )
        long = np.nonzero(sequences.lengths >= longest)[0]
        place = np.arange(plan.PROBE_PLACES)
        b = long[place % len(long)]
        t = ((sequences.lengths[b] - longest) * (place / (len(place) - 1))).astype(np.int64)

        def windows(start: int, stop: int) -> Tensor:
            return sequences.take(x.detach(), t + np.arange(start, stop)[:, None], b)

        with torch.no_grad():
            weights = self.kernel.flat(self.weights)
            tolerance = self._tolerance(x)
            found = plan.probe(self.kernel, windows, weights, longest, tolerance, choose)
        if found is not None and found.sure:
            self.history.learn(found.steps, probe=True)
        elif found is not None:
            self.history.slow = found.steps

    def _tolerance(self, x: Tensor) -> float:
        return self.module.tol or costs.tolerance_of(x)

    def _relax(
        self, choice: Plan, sequences: Sequences, x: Tensor, first: State
    ) -> tuple[Tensor, State, Layout, Report]:
        module = self.module
        call = Call(
            choice,
            Layout([int(n) // choice.width for n in sequences.lengths], x.device),
            self._tolerance(x),
            max(costs.adjoint_tolerance_of(x), module.tol or 0.0),
            module.passes,
            module.recompute,
            self.history,
            Report() if module.passes is None else FixedReport(),
            rounding=costs.ROUNDING if module.tol is None else 1.0,
        )
        rows = sequences.rows(x, call.layout, choice.width)
        y, *final = _apply(Relax, call, rows, *first, *self.weights)
        return y, tuple(final), call.layout, call.report

    # ---- The serial kernel -----------------------------------------------------------------------

    def _continue(
        self, sequences: Sequences, x: Tensor, layout: Layout, width: int, state: State
    ) -> tuple[list[_Piece], State]:
        """Run what follows each sequence's chunks, from the states after them."""
        starts = np.asarray(layout.counts, dtype=np.int64) * width
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (start, length) in enumerate(zip(starts, sequences.lengths, strict=True)):
            if start < length:
                groups.setdefault((int(start), int(length)), []).append(row)
        if not groups:
            return [], state
        weights = self._flat_weights()
        if len(groups) > (4 if sequences.batch_sizes is None else 1):
            return self._continue_packed(sequences, x, starts, state, weights)
        pieces = []
        for (start, length), members in groups.items():
            b = np.asarray(members)
            t = np.arange(start, length)[:, None]
            everyone = len(members) == sequences.batch
            if sequences.batch_sizes is None and everyone:
                part = x[start:] if start else x
            else:
                part = sequences.take(x, t, b)
            if everyone:
                y, state = self._chain(part, state, weights)
            else:
                index = torch.from_numpy(b).to(x.device)
                begin = tuple(s.index_select(0, index) for s in state)
                y, end = self._chain(part, begin, weights)
                pairs = zip(state, end, strict=True)
                state = tuple(s.index_copy(0, index, e) for s, e in pairs)
            pieces.append(_Piece(t, b, y))
        return pieces, state

    def _continue_packed(
        self,
        sequences: Sequences,
        x: Tensor,
        starts: Index,
        state: State,
        weights: Sequence[Tensor],
    ) -> tuple[list[_Piece], State]:
        lengths = sequences.lengths - starts
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] > 0]
        t, b = Sequences._steps_of(lengths[order])
        sizes = torch.from_numpy(np.bincount(t))
        b = order[b]
        t = t + starts[b]
        index = torch.from_numpy(order).to(x.device)
        begin = tuple(s.index_select(0, index) for s in state)
        y, end = self._chain(sequences.take(x, t, b), begin, weights, sizes)
        state = tuple(s.index_copy(0, index, e) for s, e in zip(state, end, strict=True))
        return [_Piece(t, b, y)], state

    def _flat_weights(self) -> Sequence[Tensor]:
        flat = self.kernel.flat(self.weights)
        if all(f.data_ptr() == w.data_ptr() for f, w in zip(flat, self.weights, strict=True)):
            return self.weights
        return _apply(_Flatten, self.kernel, *self.weights)

    def _chain(
        self,
        x: Tensor,
        state: State,
        weights: Sequence[Tensor],
        batch_sizes: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The serial kernel, in as many calls as it needs for the length."""
        grad = torch.is_grad_enabled()
        train = grad and any(t.requires_grad for t in (x, *state, *weights))
        steps = x.shape[0] if batch_sizes is None else len(batch_sizes)
        if not x.is_cuda or steps < _CUDNN_LIMIT:
            return self.kernel(x, state, weights, train, batch_sizes)
        outputs = []
        if batch_sizes is None:
            for part in x.split(_LONGEST):
                y, state = self.kernel(part, state, weights, train)
                outputs.append(y)
            return torch.cat(outputs), state
        at = 0
        for sizes in batch_sizes.split(_LONGEST):
            n, total = int(sizes[0]), int(sizes.sum())
            y, end = self.kernel(
                x[at : at + total], tuple(s[:n] for s in state), weights, train, sizes
            )
            state = tuple(torch.cat([e, s[n:]]) for e, s in zip(end, state, strict=True))
            outputs.append(y)
            at += total
        return torch.cat(outputs), state


@_documented
class LSTM(_Parallel, nn.LSTM):
    """torch.nn.LSTM, parallel in time: the same arguments, weights, inputs and results.

        i, f, o = sigmoid(W x_t + b + U h_{t-1} + b')   (each its own),  g = tanh(likewise)
        c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t)

    Hochreiter and Schmidhuber, "Long short-term memory", 1997. Chunks of time run at once in the
    framework's own kernel (cuDNN on a GPU) from estimates of their start states, until these agree
    (see `_relax`): results are those of torch.nn.LSTM to the tolerance, or come from its kernel.
    `last_report` says which, and how far off they may be. Gradients likewise, with weight gradients
    from the full Jacobians; they exist once (cuDNN has no second derivatives either).

    T may be anything: cuDNN alone refuses 65,536 steps. Memory saved for backward is the input, and
    the states at chunks' starts; backward runs the chunks again. Where relaxing is not predicted to
    win (short sequences, many of them, networks that do not forget), the framework's kernel runs
    all layers in one call. Networks that forget slowly or never, e.g. with forget gates near 1, are
    noticed by a probe of up to 4% of the cost, which is made again after ever more calls.

    Repeated calls choose the same chunks, and give the same bits, unless what they learned no
    longer fits the weights. The first call knows what its probe saw, the second what the first one
    learned, where memory is long the third maybe more: their last bits may differ, within the
    tolerance. With `burn_in` calls that converge learn nothing, and those on one input have the
    same bits, the first too; so they have with torch.use_deterministic_algorithms, where every call
    probes anew. Rows of a batch have the bits that the framework's kernel gives them, which depend
    on the batch.

    Differences to torch.nn.LSTM: dropout between layers draws other masks on a GPU where layers run
    one by one. Under autocast, torch.func and forward mode the framework's kernel runs.

    Example:
        >>> import torch
        >>> lstm = LSTM(10, 20, num_layers=2)
        >>> output, (h_n, c_n) = lstm(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape, lstm.last_report.status
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]), 'serial')
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        parallel: bool | None = None,
        tol: float | None = None,
        passes: int | None = None,
        width: int | None = None,
        burn_in: int | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias=bias, batch_first=batch_first,
            dropout=dropout, bidirectional=bidirectional, proj_size=proj_size,
            device=device, dtype=dtype, parallel=parallel, tol=tol, passes=passes, width=width,
            burn_in=burn_in, recompute=recompute,
        )  # fmt: skip

    @classmethod
    def _own_arguments(cls, module: nn.RNNBase) -> dict[str, Any]:
        return {"proj_size": module.proj_size}


@_documented
class GRU(_Parallel, nn.GRU):
    """torch.nn.GRU, parallel in time: the same arguments, weights, inputs and results.

        r, z = sigmoid(W x_t + b + U h_{t-1} + b')   (each its own)
        n = tanh(W x_t + b + r * (U h_{t-1} + b')),  h_t = (1 - z) * n + z * h_{t-1}

    Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, with r as cuDNN
    has it. Everything else is as in `LSTM`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        parallel: bool | None = None,
        tol: float | None = None,
        passes: int | None = None,
        width: int | None = None,
        burn_in: int | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias=bias, batch_first=batch_first,
            dropout=dropout, bidirectional=bidirectional, device=device, dtype=dtype,
            parallel=parallel, tol=tol, passes=passes, width=width, burn_in=burn_in,
            recompute=recompute,
        )  # fmt: skip


@_documented
class RNN(_Parallel, nn.RNN):
    """torch.nn.RNN, parallel in time: the same arguments, weights, inputs and results.

        h_t = tanh(W x_t + b + U h_{t-1} + b'), or relu in place of tanh

    Elman, "Finding structure in time", 1990. Everything else is as in `LSTM`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        parallel: bool | None = None,
        tol: float | None = None,
        passes: int | None = None,
        width: int | None = None,
        burn_in: int | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, nonlinearity=nonlinearity, bias=bias,
            batch_first=batch_first, dropout=dropout, bidirectional=bidirectional,
            device=device, dtype=dtype, parallel=parallel, tol=tol, passes=passes, width=width,
            burn_in=burn_in, recompute=recompute,
        )  # fmt: skip

    @classmethod
    def _accepts(cls, module: nn.RNNBase) -> bool:
        return module.mode.startswith("RNN_")

    @classmethod
    def _own_arguments(cls, module: nn.RNNBase) -> dict[str, Any]:
        return {"nonlinearity": module.mode.removeprefix("RNN_").lower()}
