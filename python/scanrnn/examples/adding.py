"""Long context: add two numbers that are marked among 16,384.

    python -m scanrnn.examples.adding [--steps 16384] [--seed 0]

The adding problem (Hochreiter & Schmidhuber, "Long Short-Term Memory", 1997): each step has a
random number from 0 to 1 and a mark, which is 1 in two steps, one in each half, and 0 elsewhere.
The target is the sum of the two marked numbers; answering 1 every time has a mean squared error of
1/6.
A layer of minimal LSTMs solves it: its channels begin with memories of very different lengths
("chrono initialisation": Tallec & Ollivier, "Can Recurrent Neural Networks Warp Time?", 2018), and
sequences grow from 64 steps by factors of 4, each time the error is small.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import scanrnn.torch as srt

__all__ = ["Adder", "main", "problem", "train"]


class Adder(nn.Module):
    """The sum of the marked numbers, (B,), for (B, T, 2)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rnn = srt.MinLSTM(2, width, batch_first=True)
        self.sum = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))
        with torch.no_grad():
            forget, add, _ = self.rnn.get_parameter("bias_ih_l0").chunk(3)
            forget.copy_(torch.linspace(2, 8, width))
            add.copy_(-forget)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        _, last = self.rnn(x)
        total: Tensor = self.sum(last[0])
        return total.squeeze(-1)


def problem(batch: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs (B, T, 2) and targets (B,)."""
    numbers = torch.rand(batch, steps, generator=generator)
    half = steps // 2
    marks = torch.zeros(batch, steps)
    for first, end in ((0, half), (half, steps)):
        marks.scatter_(1, torch.randint(first, end, (batch, 1), generator=generator), 1.0)
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(1)


def train(steps: int, seed: int = 0, error: float = 0.005, seconds: float = 600) -> Adder:
    """Train on sequences that grow to this many steps, until the mean squared error is small.

    Args:
        steps: of the longest sequences.
        seed: of the numbers.
        error: running mean of the squared error at which sequences grow, and training ends.
        seconds: the longest that it may take.
    """
    model, numbers = Adder(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    start, T, mean, updates = time.perf_counter(), min(64, steps), 1 / 6, 0
    while time.perf_counter() - start < seconds:
        x, y = problem(min(64, max(8, 16384 // T)), T, numbers)
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        mean, updates = 0.95 * mean + 0.05 * loss.item(), updates + 1
        if mean < error:
            print(f"{T} steps: error {mean:.4f} after {updates} updates", flush=True)
            if steps <= T:
                break
            T, mean = min(4 * T, steps), 0.01
            optimiser.param_groups[0]["lr"] *= 0.8
    return model


def main(arguments: Sequence[str] | None = None) -> float:
    """Run the example, and return the mean squared error on 64 new sequences."""
    parser = argparse.ArgumentParser(
        prog="python -m scanrnn.examples.adding", description="Solve the adding problem."
    )
    parser.add_argument("--steps", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    start = time.perf_counter()
    model = train(given.steps, given.seed)
    x, y = problem(64, given.steps, torch.Generator().manual_seed(given.seed + 1))
    with torch.no_grad():
        error: float = (model(x) - y).square().mean().item()
    seconds = time.perf_counter() - start
    print(f"{given.steps} steps: error {error:.4f} on new sequences, {seconds:.0f} s")
    return error


if __name__ == "__main__":
    main()
