"""The examples in PyTorch do what they say."""

import os

import pytest
import torch
from scanrnn.examples import adding, japanese_vowels


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def folder():
    try:
        return japanese_vowels.default_folder()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_recordings_are_what_the_archive_says():
    train, test = japanese_vowels.load(folder())
    assert (len(train[0]), len(test[0])) == (270, 370)
    for sequences, speakers in (train, test):
        assert set(speakers.tolist()) == set(range(9))
        assert all(x.ndim == 2 and x.shape[1] == 12 and 7 <= len(x) <= 29 for x in sequences)
    assert train[0][0][:2, 0].tolist() == pytest.approx([1.860936, 1.891651])


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["SRU", "MinGRU"])
def test_speakers_are_recognised(cell, capsys):
    where = folder()
    assert japanese_vowels.main(["--folder", str(where), "--cell", cell]) >= 0.95
    assert "of 370 recordings right" in capsys.readouterr().out


def test_files_are_read_without_aeon(tmp_path):
    for name in ("TRAIN", "TEST"):
        lines = ["@classLabel true 1 2", "@data"]
        for speaker in (1, 2):
            channels = [",".join(str(speaker + t / 10) for t in range(7 + speaker))] * 12
            lines.append(":".join([*channels, str(speaker)]))
        (tmp_path / f"JapaneseVowels_{name}.ts").write_text("\n".join(lines))
    train, test = japanese_vowels.load(tmp_path)
    assert [len(x) for x in train[0]] == [8, 9]
    assert train[1].tolist() == test[1].tolist() == [0, 1]
    model = japanese_vowels.Classifier("SRU", width=8)
    assert 0 <= japanese_vowels.train(model, train, test, epochs=2) <= 1


def test_adding_at_few_steps():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = adding.train(64, error=0.01, seconds=60)
    x, y = adding.problem(256, 64, torch.Generator().manual_seed(1))
    assert x[..., 1].sum(1).eq(2).all()
    torch.testing.assert_close(y, (x[..., 0] * x[..., 1]).sum(1))
    assert (model(x) - y).square().mean() < 0.02


@pytest.mark.slow
@pytest.mark.skipif(
    "SCANRNN_LONG_TESTS" not in os.environ, reason="minutes: asked for by SCANRNN_LONG_TESTS=1"
)
def test_adding_at_16384_steps():
    assert adding.main(["--seed", "0"]) < 0.01
