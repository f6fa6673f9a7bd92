"""Chunks of sequences as rows of one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .kernel import State


class Layout:
    """How the chunks of several sequences follow one another as rows of one batch.

    Rows are ordered by chunk, then by sequence. A state is known at every sequence's start and at
    every row's end; each of these is the start of a row or the final state of a sequence.

    Args:
        counts: chunks of each sequence.
        device: where states are.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.counts = tuple(counts)
        self.sequences = len(self.counts)
        n = np.asarray(self.counts, dtype=np.int64)
        self.most = int(n.max(initial=0))
        chunk, sequence = np.nonzero(np.arange(self.most)[:, None] < n)
        self.chunk, self.sequence = chunk, sequence
        self.rows = len(chunk)
        self.device = device
        self.even = bool((n == self.most).all())
        self._order = self._inverse = None
        if not self.even:
            row = np.full((self.most + 1, self.sequences), -1, dtype=np.int64)
            row[0] = np.arange(self.sequences)
            row[chunk + 1, sequence] = self.sequences + np.arange(self.rows)
            order = np.concatenate([row[chunk, sequence], row[n, np.arange(self.sequences)]])
            self._order = torch.from_numpy(order).to(device)
            self._inverse = torch.from_numpy(np.argsort(order)).to(device)

    def _permute(self, parts: tuple[State, State], order: Tensor | None) -> list[Tensor]:
        joined = [torch.cat(pair) for pair in zip(*parts, strict=True)]
        return joined if order is None else [t.index_select(0, order) for t in joined]

    def split(self, first: State, ends: State) -> tuple[State, State]:
        """Start states of the rows, and final states of the sequences."""
        joined = self._permute((first, ends), self._order)
        return tuple(t[: self.rows] for t in joined), tuple(t[self.rows :] for t in joined)

    def join(self, starts: State, final: State) -> tuple[State, State]:
        """The transpose: cotangents of the sequences' first states, and of the rows' ends."""
        joined = self._permute((starts, final), self._inverse)
        b = self.sequences
        return tuple(t[:b] for t in joined), tuple(t[b:] for t in joined)

    def kept(self, moved: np.ndarray) -> list[int]:
        """Chunks of each sequence before the first that moved."""
        counts = np.asarray(self.counts)
        np.minimum.at(counts, self.sequence[moved], self.chunk[moved])
        return [int(n) for n in counts]
