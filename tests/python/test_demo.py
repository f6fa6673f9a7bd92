"""The demo: it learns in every framework, the same way, and its files and samples are right."""

import io
import math
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import scanrnn
from scanrnn.demo import checkpoint, speed, text, train
from scanrnn.demo.model import forward, initial_weights
from scanrnn.demo.sample import generate

FRAMEWORKS = ["numpy", "torch", "jax"]
WIDTH, LAYERS = 24, 2


@pytest.fixture(scope="module")
def corpus():
    """Little of the default text."""
    whole = text.load()
    return text.Corpus("some text", whole.characters, whole.train[:20_000], whole.held_out[:2_000])


@pytest.fixture
def weights(corpus, rng):
    return initial_weights(rng, len(corpus.characters), WIDTH, LAYERS)


@pytest.fixture
def model(request, weights):
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return train.make_model(request.param, "cpu", weights)


# ---- Text ----------------------------------------------------------------------------------------


def test_default_text_repeats_no_paragraph():
    paragraphs = text.default_text().split("\n\n")
    assert len(paragraphs) > 1000
    assert len(paragraphs) == len(set(paragraphs))


def test_without_default_text_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(FileNotFoundError, match="--text FILE"):
        text.load()


def test_characters_come_from_the_training_text_alone(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(("ab\N{GREEK SMALL LETTER ALPHA}" * 600 + "z" * 199).encode() + b"\xff")
    corpus = text.load(path)
    assert corpus.characters == "\ufffdab\N{GREEK SMALL LETTER ALPHA}"
    assert len(corpus.train) + len(corpus.held_out) == 2000
    assert corpus.train[:4].tolist() == [1, 2, 3, 1]
    assert set(corpus.held_out.tolist()) == {0}


def test_short_text_is_an_error(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("too short")
    with pytest.raises(ValueError, match="9 characters: too short"):
        text.load(path)
    with pytest.raises(ValueError, match="do not fill 16 streams"):
        next(text.batches(np.arange(16, dtype=np.int32), 16, 4))


def test_batches_continue_their_streams():
    tokens = np.arange(101, dtype=np.int32)
    windows = text.batches(tokens, streams=4, steps=10)
    for first in (True, False, True):
        inputs, targets, restart = next(windows)
        assert restart is first
        assert inputs.shape == (4, 10)
        np.testing.assert_array_equal(targets, inputs + 1)
        np.testing.assert_array_equal(inputs[:, 0], np.arange(0, 100, 25) + (0 if first else 10))


# ---- Training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", FRAMEWORKS, indirect=True)
def test_it_learns(model, corpus):
    output = io.StringIO()
    history = train.train(model, corpus, steps=80, streams=4, window=32, output=output)
    read, losses = zip(*history.held_out, strict=True)
    assert read == (0, 2560, 5120, 7680, 10240)
    assert history.read == 80 * 4 * 32
    assert losses[0] > math.log2(len(corpus.characters))
    assert losses[-1] < losses[0] - 2
    assert [count for count, _ in history.train] == list(read[1:])
    assert not history.interrupted
    lines = output.getvalue().splitlines()
    assert len(lines) == len(losses)
    assert f"held out {losses[-1]:.3f}" in lines[-1]
    assert "tokens/s" in lines[-1]


def test_frameworks_agree(corpus, weights):
    """Same weights, same text: the same losses and the same weights, step after step."""
    results = {}
    for framework in FRAMEWORKS:
        if framework != "numpy":
            pytest.importorskip(framework)
        model = train.make_model(framework, "cpu", weights)
        windows = text.batches(corpus.train, streams=3, steps=40)
        losses = [
            float(model.learn(inputs, targets, 1e-3, restart))
            for inputs, targets, restart in islice(windows, 5)
        ]
        losses.append(train.held_out_bits(model, corpus.held_out))
        results[framework] = losses, model.weights()
    losses, learnt = results.pop("numpy")
    for other_losses, other_weights in results.values():
        np.testing.assert_allclose(other_losses, losses, rtol=1e-4)
        assert other_weights.keys() == learnt.keys() == weights.keys()
        for name, value in learnt.items():
            assert value.shape == weights[name].shape
            # Adam's steps have the gradient's sign where the gradient is nearly zero.
            np.testing.assert_allclose(other_weights[name], value, rtol=0, atol=2e-3)
            assert np.mean(np.abs(other_weights[name] - value)) < 1e-5


def test_evaluation_does_not_depend_on_its_window(corpus, weights, monkeypatch):
    model = train.make_model("numpy", "cpu", weights)
    whole = train.held_out_bits(model, corpus.held_out)
    monkeypatch.setattr(train, "HELD_OUT_WINDOW", 77)
    assert train.held_out_bits(model, corpus.held_out) == pytest.approx(whole, rel=1e-6)


def test_time_limit(corpus, weights):
    model = train.make_model("numpy", "cpu", weights)
    output = io.StringIO()
    history = train.train(model, corpus, minutes=0.01, streams=2, window=16, output=output)
    assert 0.6 <= history.seconds < 10
    assert "100%" in output.getvalue().splitlines()[-1]


def test_progress_rewrites_its_line_on_a_terminal(corpus, weights):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    model = train.make_model("numpy", "cpu", weights)
    output = Terminal()
    train.train(model, corpus, steps=3, streams=2, window=16, output=output)
    assert output.getvalue().count("\n") == 1
    assert output.getvalue().count("\r") >= 2


@pytest.mark.parametrize(
    ("framework", "device", "message"),
    [
        ("numpy", "cuda", "NumPy has no GPU arrays"),
        ("cupy", "cpu", "CuPy has no CPU arrays"),
        *((framework, "cuda", f"no {framework} on cuda: ") for framework in ("torch", "jax")),
        ("cupy", None, "no cupy on cuda: "),
    ],
)
def test_impossible_devices(framework, device, message, monkeypatch):
    monkeypatch.setattr(scanrnn, "cuda_available", lambda: False)
    with pytest.raises(RuntimeError, match=message):
        train.pick_device(framework, device)


# ---- The whole -----------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """A demo that takes a second."""
    monkeypatch.setattr(train, "WIDTH", 16)
    monkeypatch.setattr(train, "WINDOW", 32)
    table = speed.table
    monkeypatch.setattr(speed, "table", lambda *args: table(*args, lengths=(8, 64)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_run(framework, small, tmp_path, capsys):
    if framework != "numpy":
        pytest.importorskip(framework)
    out = tmp_path / "new" / "folder"
    assert train.run(train.Options(framework=framework, steps=2, out=out)) == 0
    printed = capsys.readouterr().out
    assert "held out:" in printed
    assert "serial loop" in printed
    assert f"{framework} on cpu" in printed
    weights, characters = checkpoint.load(out / "weights.npz")
    assert weights["embedding"].shape == (len(characters), 16)
    assert (out / "weights.safetensors").is_file()


def test_same_seed_same_run(small, tmp_path):
    runs = []
    for name in "ab":
        train.run(train.Options(steps=3, seed=5, out=tmp_path / name))
        runs.append(checkpoint.load(tmp_path / name / "weights.npz")[0])
    for name, value in runs[0].items():
        np.testing.assert_array_equal(runs[1][name], value)


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    history = train.History(train=[(10, 3.0)], held_out=[(0, 6.0), (10, 3.5)])
    assert train.plot(history, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_no_plot(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not train.plot(train.History(), tmp_path / "loss.png")
    assert not (tmp_path / "loss.png").exists()


def test_interrupt_saves(tmp_path):
    """Ctrl-C ends the run after the step in progress, with what was learnt saved."""
    package = str(Path(scanrnn.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "scanrnn", "demo", "--minutes", "5", "--out", str(tmp_path)]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while "  0%" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "saved" in printed
    assert not errors
    checkpoint.load(tmp_path / "weights.npz")


# ---- Checkpoints and samples ---------------------------------------------------------------------


def test_checkpoint_round_trip(corpus, weights, tmp_path):
    files = checkpoint.save(tmp_path, weights, corpus.characters)
    assert [file.name for file in files] == ["weights.npz", "weights.safetensors"]
    for file in files:
        read, characters = checkpoint.load(file)
        assert characters == corpus.characters
        assert read.keys() == weights.keys()
        for name, value in weights.items():
            assert read[name].dtype == value.dtype
            np.testing.assert_array_equal(read[name], value)


def test_safetensors_are_what_the_package_reads(corpus, weights, tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    checkpoint.save(tmp_path, weights, corpus.characters)
    read = package.load_file(tmp_path / "weights.safetensors")
    assert read.keys() == weights.keys() | {"characters"}
    for name, value in weights.items():
        np.testing.assert_array_equal(read[name], value)
    package.save_file(read, tmp_path / "theirs.safetensors", metadata={"format": "np"})
    assert checkpoint.load(tmp_path / "theirs.safetensors")[1] == corpus.characters


def test_what_is_not_a_checkpoint(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    (tmp_path / "other.safetensors").write_bytes(b"\x10" + 30 * b"\0")
    (tmp_path / "other.txt").write_text("text")
    for name, message in {
        "other.npz": "is not a checkpoint of the demo",
        "other.safetensors": "is not a safetensors file",
        "other.txt": r"a \.npz or \.safetensors file",
    }.items():
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "missing.npz")


def test_sampling_by_steps_is_what_the_scan_says(corpus, weights):
    """The likeliest continuation, against the network run over the whole text so far."""
    written = "".join(generate(weights, corpus.characters, "The ", 30, temperature=0))
    so_far = "The "
    for character in written:
        logits, _ = forward(weights, text.encode(so_far, corpus.characters)[None])
        assert corpus.characters[1 + logits[0, -1, 1:].argmax()] == character
        so_far += character


def test_samples(corpus, weights):
    def sample(prompt="The ", seed=0, length=40, temperature=1.0):
        characters = generate(
            weights,
            corpus.characters,
            prompt,
            length,
            temperature=temperature,
            rng=np.random.default_rng(seed),
        )
        return "".join(characters)

    assert sample() == sample()
    assert sample() != sample(seed=1)
    assert len(sample("", length=7)) == 7
    assert text.UNKNOWN not in sample("\N{SNOWMAN}", length=200)
    assert sample(length=0) == ""
    with pytest.raises(ValueError, match="must not be negative"):
        sample(temperature=-1)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_speed_compares_the_same_numbers(framework, rng):
    if framework != "numpy":
        pytest.importorskip(framework)
    a = rng.uniform(0.9, 1, (1, 50, 8)).astype(np.float32)
    x = rng.standard_normal((1, 50, 8)).astype(np.float32)
    make = {"numpy": speed.numpy_calls, "torch": speed.torch_calls, "jax": speed.jax_calls}
    serial, scan = (np.asarray(call()) for call in make[framework](a, x, "cpu"))
    np.testing.assert_allclose(scan, serial, rtol=1e-5, atol=1e-6)
