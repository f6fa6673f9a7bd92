"""The framework's serial kernel, for one layer and direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import _VF, Tensor

State = tuple[Tensor, ...]  # (h,), or (h, c) of the LSTM; each (rows, features)


@dataclass(frozen=True)
class Kernel:
    """One layer and direction of the framework's recurrent network.

    Attributes:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU".
        features: of the input.
        hidden: of c, and of h unless projected.
        proj: features of a projected h, or 0.
        bias: whether the weights have biases.
    """

    mode: str
    features: int
    hidden: int
    proj: int = 0
    bias: bool = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """Features of each part of the state."""
        h = self.proj or self.hidden
        return (h, self.hidden) if self.mode == "LSTM" else (h,)

    @property
    def flops(self) -> float:
        """Operations of one step of one sequence."""
        gates = {"LSTM": 4, "GRU": 3}.get(self.mode, 1)
        h = self.proj or self.hidden
        return 2.0 * self.hidden * (gates * (self.features + h) + self.proj)

    @property
    def square_flops(self) -> float:
        """The same with as many features as hidden units, and no projection."""
        return replace(self, features=self.hidden, proj=0).flops

    def zeros(self, rows: int, x: Tensor) -> State:
        """States before any step."""
        return tuple(x.new_zeros(rows, n) for n in self.sizes)

    def __call__(
        self,
        x: Tensor,
        state: State,
        weights: Sequence[Tensor],
        train: bool,
        batch_sizes: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Run x, (steps, rows, features), or packed, from a state: outputs and the last state."""
        call: Callable[..., Any] = getattr(_VF, self.mode.lower())
        hx: Any = tuple(s.unsqueeze(0) for s in state)
        hx = hx if len(hx) > 1 else hx[0]
        head = (x, hx) if batch_sizes is None else (x, batch_sizes, hx)
        tail = (False,) if batch_sizes is None else ()
        y, *end = call(*head, list(weights), self.bias, 1, 0.0, train, False, *tail)
        return y, tuple(s.squeeze(0) for s in end)

    def flat(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The weights without their history, in one piece of memory where cuDNN wants them so.

        cuDNN's buffer is that of one layer and direction, while a module's holds all of them.
        """
        detached = [w.detach() for w in weights]
        x = detached[0]
        if not x.is_cuda or not torch.backends.cudnn.is_acceptable(x):
            return detached
        size = sum(w.numel() for w in detached) * x.element_size()
        whole = x.untyped_storage()
        if whole.nbytes() == size and all(
            w.untyped_storage().data_ptr() == whole.data_ptr() for w in detached
        ):
            return detached
        from torch.backends.cudnn import rnn

        flat = [w.clone() for w in detached]
        with torch.no_grad():
            torch._cudnn_rnn_flatten_weight(
                flat,
                (4 if self.bias else 2) + (self.proj > 0),
                self.features,
                rnn.get_cudnn_mode(self.mode),
                self.hidden,
                self.proj,
                1,
                False,
                False,
            )
        return flat
