"""The demo's text: where it is from, its characters as integers, and how it is cut into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Corpus", "batches", "default_text", "load", "read_text"]

UNKNOWN = "\ufffd"  # stands for every character that the training text lacks

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Corpus:
    """A text as integers, split into a training part and a held-out part.

    Attributes:
        name: Where the text is from, for messages.
        characters: The alphabet: token ``i`` is ``characters[i]``. ``characters[0]`` is U+FFFD, for
            characters that the training part lacks.
        train: Tokens to learn from, shape ``(n_train,)``.
        held_out: Tokens that are never learnt from, shape ``(n_held_out,)``. They follow ``train``
            in the text.
    """

    name: str
    characters: str
    train: Tokens
    held_out: Tokens


def default_text() -> str:
    """The language reference's prose that CPython carries for ``help()``, some 400,000 characters.

    Topics quote each other at length. A paragraph is kept where it stands first and dropped
    everywhere else: otherwise the held-out text would be half memorised from the training text.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise FileNotFoundError(
            "this Python comes without pydoc_data.topics, the demo's default text: "
            "pass a text with --text FILE"
        ) from None
    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(p.strip("\n") for p in paragraphs))


def read_text(path: Path) -> str:
    """Reads a UTF-8 text file; bytes that are not UTF-8 become U+FFFD."""
    return path.read_text(encoding="utf-8", errors="replace")


def encode(text: str, characters: str) -> Tokens:
    """Maps characters to their index in ``characters``, unknown ones to 0."""
    # A table over code points: one gather instead of a Python loop over the text.
    table = np.zeros(0x110000, np.int32)
    table[[ord(c) for c in characters]] = np.arange(len(characters), dtype=np.int32)
    return table[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]


def load(path: Path | None = None, held_out: float = 0.1, most_held_out: int = 100_000) -> Corpus:
    """Loads a text and splits its end off as held-out text.

    Args:
        path: A text file, or None for :func:`default_text`.
        held_out: The held-out share of the text.
        most_held_out: No more than this many characters are held out.

    Raises:
        FileNotFoundError: No such file, or no default text in this Python.
        ValueError: The text is too short to train on.
    """
    text = default_text() if path is None else read_text(path)
    name = "pydoc_data.topics" if path is None else str(path)
    cut = len(text) - min(int(held_out * len(text)), most_held_out)
    if len(text) - cut < 100:
        raise ValueError(f"{name} has {len(text)} characters: too short, the demo needs 1000")
    characters = UNKNOWN + "".join(sorted(set(text[:cut]) - {UNKNOWN}))
    tokens = encode(text, characters)
    return Corpus(name, characters, tokens[:cut], tokens[cut:])


def batches(tokens: Tokens, streams: int, steps: int) -> Iterator[tuple[Tokens, Tokens, bool]]:
    """Cuts a text into parallel streams and yields them window by window, for ever.

    Stream ``i`` of a batch continues stream ``i`` of the batch before, so a state that is carried
    from batch to batch has read everything since the start of its stream (truncated
    back-propagation through time with carried state).

    Args:
        tokens: The text, shape ``(n,)``.
        streams: Batch size B; the text is cut into B pieces of equal length.
        steps: Window length T. It is shortened to the piece's length when the text is short.

    Yields:
        ``(inputs, targets, first)``: two arrays of shape ``(B, T)``, targets one character ahead
        of inputs, and whether the streams start over, so that the state must too.
    """
    length = (len(tokens) - 1) // streams
    if length < 1:
        raise ValueError(f"{len(tokens)} characters do not fill {streams} streams")
    steps = min(steps, length)
    inputs = tokens[: streams * length].reshape(streams, length)
    targets = tokens[1 : streams * length + 1].reshape(streams, length)
    while True:
        for t in range(0, length - steps + 1, steps):
            yield inputs[:, t : t + steps], targets[:, t : t + steps], t == 0
