"""Who is speaking? Classify recordings of unequal length with a bidirectional layer.

    python -m scanrnn.examples.japanese_vowels [--folder FOLDER] [--cell MinGRU] [--seed 0]

The Japanese Vowels data (Kudo et al., "Multidimensional Curve Classification Using Passing-Through
Regions", 1999) are 640 recordings of nine speakers that say two vowels, as 12 linear prediction
coefficients in 7 to 29 steps: 270 for training, 370 for the test. They ship in the package aeon
(``pip install aeon``), whose files are read without importing it. The layer takes a PackedSequence;
the mean of its outputs over each recording's steps decides.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import scanrnn.torch as srt

__all__ = ["Classifier", "load", "main", "train"]

#: Recordings, (T, 12) float32 each, and their speakers, (N,) from 0.
Recordings = tuple[list[Tensor], Tensor]
CELLS = ["SRU", "MinGRU", "MinLSTM", "QRNN", "GILR", "HGRN", "RGLRU"]


def default_folder() -> Path:
    """Where aeon keeps the data.

    Raises:
        FileNotFoundError: aeon is not installed, or has no such data.
    """
    spec = importlib.util.find_spec("aeon")
    places = [] if spec is None else [*(spec.submodule_search_locations or ())]
    for place in places:
        folder = Path(place, "datasets", "data", "JapaneseVowels")
        if folder.is_dir():
            return folder
    raise FileNotFoundError("the Japanese Vowels data are not there: pip install aeon")


def load(folder: Path) -> tuple[Recordings, Recordings]:
    """Read the recordings for training and for the test.

    Args:
        folder: has JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts. In a line of these after
            ``@data``, colons separate the 12 coefficients and the speaker's number, and commas the
            steps.

    Raises:
        FileNotFoundError: a file is not there.
    """
    parts = []
    for name in ("TRAIN", "TEST"):
        lines = (folder / f"JapaneseVowels_{name}.ts").read_text().splitlines()
        sequences, speakers = [], []
        for line in lines[lines.index("@data") + 1 :]:
            *channels, speaker = line.split(":")
            steps = torch.tensor([[float(v) for v in channel.split(",")] for channel in channels])
            sequences.append(steps.T)
            speakers.append(int(speaker) - 1)
        parts.append((sequences, torch.tensor(speakers)))
    train, test = parts
    return train, test


class Classifier(nn.Module):
    """Scores of the speakers, (N, 9), for a PackedSequence of N recordings."""

    def __init__(self, cell: str = "MinGRU", width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.rnn = getattr(srt, cell)(12, width, layers, bidirectional=True, dropout=0.3)
        self.scores = nn.Linear(2 * width, 9)

    def forward(self, recordings: PackedSequence) -> Tensor:
        """See the class."""
        outputs, _ = self.rnn(recordings)
        padded, lengths = pad_packed_sequence(outputs)
        scores: Tensor = self.scores(padded.sum(0) / lengths.to(padded).unsqueeze(-1))
        return scores


def pack(recordings: Sequence[Tensor], mean: Tensor, scale: Tensor) -> PackedSequence:
    """Normalised recordings as one PackedSequence."""
    return pack_sequence([(x - mean) / scale for x in recordings], enforce_sorted=False)


def train(
    model: nn.Module, data: Recordings, test: Recordings, epochs: int = 20, seed: int = 0
) -> float:
    """Train a classifier, and return its share of right answers on the test's recordings."""
    recordings, speakers = data
    everything = torch.cat(recordings)
    mean, scale = everything.mean(0), everything.std(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        model.train()
        for some in torch.randperm(len(recordings), generator=shuffle).split(30):
            scores = model(pack([recordings[i] for i in some.tolist()], mean, scale))
            loss = F.cross_entropy(scores, speakers[some])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        answers = model(pack(test[0], mean, scale)).argmax(-1)
    right: float = (answers == test[1]).double().mean().item()
    return right


def main(arguments: Sequence[str] | None = None) -> float:
    """Run the example, and return the share of right answers."""
    parser = argparse.ArgumentParser(
        prog="python -m scanrnn.examples.japanese_vowels", description="Classify recordings."
    )
    parser.add_argument("--folder", type=Path, help="of the data, if aeon is not installed")
    parser.add_argument("--cell", choices=CELLS, default="MinGRU")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)  # the matrices are small: threads would wait more than work
    data, test = load(given.folder or default_folder())
    model = Classifier(given.cell)
    start = time.perf_counter()
    accuracy = train(model, data, test, given.epochs, given.seed)
    seconds = time.perf_counter() - start
    print(f"{given.cell}: {accuracy:.1%} of {len(test[0])} recordings right, {seconds:.0f} s")
    return accuracy


if __name__ == "__main__":
    main()
