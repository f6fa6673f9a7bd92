"""The demo: trains the network, saves it, samples from it, and times the scan."""

from __future__ import annotations

import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

import scanrnn
from scanrnn import _core

from . import checkpoint, speed
from .model import NumpyModel, initial_weights
from .sample import generate
from .text import Corpus, Tokens, batches, load

__all__ = ["History", "Model", "Options", "make_model", "run", "train"]

WIDTH, LAYERS = 256, 2
STREAMS, WINDOW = 16, 256  # batch size B, and steps T of a window
RATE = 0.01
PASSES, MINUTES = 6, 4.0  # the limits when none is given; more passes overfit the default text
EVALUATIONS = 20  # a run, but no more than one in 20 steps
HELD_OUT_WINDOW = 8192
PROMPT = "The "


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        text: A text file; None for the prose in ``pydoc_data.topics``.
        framework: ``"numpy"``, ``"torch"``, ``"jax"`` or ``"cupy"``.
        device: ``"cpu"`` or ``"cuda"``; None for the CPU, and for the GPU with CuPy.
        minutes: Train that long. With neither this nor ``steps``: six passes over the text, but no
            longer than four minutes.
        steps: Train for that many steps.
        out: Folder for weights and plot.
        seed: Of the initial weights and of the sample.
    """

    text: Path | None = None
    framework: str = "numpy"
    device: str | None = None
    minutes: float | None = None
    steps: int | None = None
    out: Path = Path("scanrnn-demo")
    seed: int = 0


class Model(Protocol):
    """What the loop needs of a network; see :class:`scanrnn.demo.model.NumpyModel`."""

    def learn(self, inputs: Tokens, targets: Tokens, rate: float, restart: bool) -> Any:
        """One optimiser step; returns the loss in nats per character, a number on any device."""

    def loss(self, inputs: Tokens, targets: Tokens, state: Any) -> tuple[Any, Any]:
        """The loss and the final state, without learning."""

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The weights as NumPy arrays."""


@dataclass
class History:
    """How training went: losses in bits per character, after so many characters.

    Attributes:
        train: ``(characters read, bits per character)``, the mean since the point before.
        held_out: The same on the held-out text, by the weights at that moment.
        read: Characters read in training.
        seconds: How long training took, evaluations included.
        interrupted: Whether Ctrl-C ended it.
    """

    train: list[tuple[int, float]] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    read: int = 0
    seconds: float = 0.0
    interrupted: bool = False


def pick_device(framework: str, device: str | None) -> str:
    """The device to train on.

    Raises:
        RuntimeError: The framework or this build of scanrnn can't use it; says why.
    """
    device = device or ("cuda" if framework == "cupy" else "cpu")
    if framework == "numpy" and device == "cuda":
        raise RuntimeError("NumPy has no GPU arrays: use --framework torch, jax or cupy")
    if framework == "cupy" and device == "cpu":
        raise RuntimeError("CuPy has no CPU arrays: use --framework numpy")
    if device == "cuda" and not scanrnn.cuda_available():
        raise RuntimeError(f"no {framework} on cuda: {_core.cuda_unavailable_reason()}")
    return device


def make_model(framework: str, device: str, weights: dict[str, NDArray[np.float32]]) -> Model:
    """The network in a framework, starting from the given weights.

    Raises:
        ImportError: The framework is not installed.
    """
    if framework == "torch":
        from .torch_model import TorchModel

        return TorchModel(weights, device)
    if framework == "jax":
        from .jax_model import JaxModel

        return JaxModel(weights, device)
    if framework == "cupy":
        import cupy

        return NumpyModel(weights, cupy)
    return NumpyModel(weights)


def train(
    model: Model,
    corpus: Corpus,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    streams: int,
    window: int,
    output: TextIO | None = None,
) -> History:
    """Trains until ``steps`` steps or ``minutes`` minutes are over, whichever is first.

    Ctrl-C ends the run after the step in progress; a second one raises KeyboardInterrupt.

    Args:
        model: What to train.
        corpus: What to train it on.
        steps: Limit on optimiser steps; None for no limit.
        minutes: Limit on the time; None for no limit.
        streams: Batch size B.
        window: Steps T of a window.
        output: Where progress is written; standard output by default.

    Returns:
        The losses. The last held-out one is that of the final weights.
    """
    max_steps = math.inf if steps is None else steps
    max_seconds = math.inf if minutes is None else 60 * minutes
    history, progress = History(), Progress(output or sys.stdout)
    losses: list[Any] = []  # since the last evaluation
    evaluations = EVALUATIONS if steps is None else max(1, min(EVALUATIONS, steps // 20))
    start, next_evaluation = time.monotonic(), 0.0
    with interrupt_requests() as interrupted:
        for step, (inputs, targets, restart) in enumerate(batches(corpus.train, streams, window)):
            history.seconds = time.monotonic() - start
            done = min(1.0, max(step / max_steps, history.seconds / max_seconds))
            last = done == 1 or interrupted.is_set()
            if done >= next_evaluation or last:
                if losses:
                    history.train.append((history.read, bits(losses)))
                    losses.clear()
                history.held_out.append((history.read, held_out_bits(model, corpus.held_out)))
                next_evaluation = math.floor(done * evaluations + 1) / evaluations
                progress.evaluated(done, history, last)
            if last:
                break
            losses.append(model.learn(inputs, targets, learning_rate(done), restart))
            history.read += inputs.size
            history.seconds = time.monotonic() - start
            progress.learnt(done, history, losses)
    history.interrupted = done < 1
    return history


def learning_rate(done: float) -> float:
    """Rises over the first twentieth of the run, then falls along a cosine to 2% of its height."""
    return RATE * min(1, 0.02 + 20 * done) * (0.51 + 0.49 * math.cos(math.pi * done))


def bits(losses: list[Any]) -> float:
    """The mean of losses in nats, in bits."""
    return sum(float(loss) for loss in losses) / len(losses) / math.log(2)


def held_out_bits(model: Model, tokens: Tokens) -> float:
    """Bits per character on a text that is read once from start to end, as one sequence."""
    state, nats = None, 0.0
    for start in range(0, len(tokens) - 1, HELD_OUT_WINDOW):
        window = tokens[None, start : start + HELD_OUT_WINDOW + 1]
        loss, state = model.loss(window[:, :-1], window[:, 1:], state)
        nats += float(loss) * (window.shape[1] - 1)
    return nats / (len(tokens) - 1) / math.log(2)


class Progress:
    """A bar that rewrites its line on a terminal; elsewhere, a line an evaluation."""

    BAR = 8  # so that the line fits into 80 columns

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._rewrites = output.isatty()
        self._shown = 0.0

    def learnt(self, done: float, history: History, losses: list[Any]) -> None:
        """Shows how far a run is, on a terminal, ten times a second."""
        now = time.monotonic()
        if self._rewrites and now - self._shown > 0.1:
            self._shown = now
            self._write(done, history, bits(losses[-20:]), "")

    def evaluated(self, done: float, history: History, last: bool) -> None:
        """Shows an evaluation."""
        train = history.train[-1][1] if history.train else math.nan
        self._write(done, history, train, "\n" if last or not self._rewrites else "")

    def _write(self, done: float, history: History, train: float, end: str) -> None:
        full = round(done * self.BAR)
        speed = history.read / max(history.seconds, 1e-9)
        left = history.seconds * (1 / done - 1) if done else math.nan
        text = (
            f"[{'#' * full}{'-' * (self.BAR - full)}] {done:4.0%} bits/char train {number(train)} "
            f"held out {number(history.held_out[-1][1])}  {speed:,.0f} tokens/s "
            f"{minutes_seconds(left)} left"
        )
        if self._rewrites:
            columns = shutil.get_terminal_size().columns
            text = f"\r{text[: columns - 1]}\x1b[K"  # a line that wraps can't be rewritten
        self._output.write(text + end)
        self._output.flush()


def number(value: float) -> str:
    """Three decimals, or a dash for what is not known yet."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def minutes_seconds(seconds: float) -> str:
    """For example 2:05."""
    return "-:--" if math.isnan(seconds) else f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@contextmanager
def interrupt_requests() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C into an event, so that it never cuts a step in half."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested  # only the main thread may set handlers
        return
    before = signal.getsignal(signal.SIGINT)

    def request(signum: int, frame: FrameType | None) -> None:
        requested.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, request)
    try:
        yield requested
    finally:
        signal.signal(signal.SIGINT, before)


def plot(history: History, path: Path) -> bool:
    """Draws the losses as a PNG. Returns whether matplotlib is there to do it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, points in (("train", history.train), ("held out", history.held_out)):
        read, loss = zip(*points, strict=True) if points else ((), ())
        axes.plot(read, loss, marker=".", label=name)
    axes.set(xlabel="characters read", ylabel="bits per character", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    return True


def run(options: Options) -> int:
    """Runs the demo.

    Returns:
        The exit status: 0, or 130 when Ctrl-C ended training.

    Raises:
        RuntimeError: The device can't be used; says why.
        ImportError: The framework is not installed.
        OSError: The text can't be read or the results can't be written.
        ValueError: The text is too short.
    """
    device = pick_device(options.framework, options.device)
    corpus = load(options.text)
    rng = np.random.default_rng(options.seed)
    weights = initial_weights(rng, len(corpus.characters), WIDTH, LAYERS)
    model = make_model(options.framework, device, weights)
    options.out.mkdir(parents=True, exist_ok=True)
    steps, minutes = options.steps, options.minutes
    if steps is None and minutes is None:
        steps, minutes = math.ceil(PASSES * len(corpus.train) / (STREAMS * WINDOW)), MINUTES
    print(
        f"{corpus.name}: {len(corpus.train):,} characters to learn from, {len(corpus.held_out):,} "
        f"held out, an alphabet of {len(corpus.characters)}\n"
        f"{LAYERS} SRU layers of {WIDTH} channels, {sum(w.size for w in weights.values()):,} "
        f"weights; {options.framework} on {device}, {scanrnn.get_num_threads()} threads"
    )
    history = train(model, corpus, steps=steps, minutes=minutes, streams=STREAMS, window=WINDOW)

    weights = model.weights()
    files = checkpoint.save(options.out, weights, corpus.characters)
    if plot(history, options.out / "loss.png"):
        files.append(options.out / "loss.png")
    print(
        f"{history.read:,} characters in {minutes_seconds(history.seconds)}; held out: "
        f"{history.held_out[-1][1]:.3f} bits per character\nsaved {', '.join(map(str, files))}"
    )
    if history.interrupted:
        return 130
    print(f"\n{PROMPT}", end="")
    for character in generate(weights, corpus.characters, PROMPT, 400, rng=rng):
        print(character, end="", flush=True)
    print(f"\n\n{speed.table(options.framework, device, WIDTH)}")
    return 0
