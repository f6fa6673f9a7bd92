"""The command line: what it prints, where it fails, and with which exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scanrnn
from scanrnn import _core, _info
from scanrnn.__main__ import main
from scanrnn.demo import checkpoint, speed
from scanrnn.demo.model import initial_weights


def test_info(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("scanrnn")
    for part in (
        scanrnn.__version__,
        _core.cpu_isa(),
        f"{scanrnn.get_num_threads()} threads",
        f"numpy {np.__version__}",
        _core.build_info()["compiler"],
    ):
        assert part in printed
    if not scanrnn.cuda_available():
        assert f"not available: {_core.cuda_unavailable_reason()}" in printed


def test_info_json(capsys):
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["version"] == scanrnn.__version__
    assert info["cpu"]["threads"] == scanrnn.get_num_threads()
    assert info["cpu"]["instruction_set"] in info["cpu"]["built_instruction_sets"]
    assert info["cuda"]["available"] == scanrnn.cuda_available()
    assert info["cuda"]["available"] == (info["cuda"]["reason"] == "")
    assert info["frameworks"]["numpy"] == np.__version__


class Driver:
    """libcuda, with two devices."""

    def cuInit(self, flags):  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = 10 + ordinal

    def cuDeviceGetName(self, name, length, device):  # noqa: N802
        name.value = f"GPU {device.value}".encode()

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802
        value._obj.value = {75: 9, 76: device.value - 10}[attribute]


def test_info_names_the_gpus(capsys, monkeypatch):
    monkeypatch.setattr(_info.ctypes, "CDLL", lambda name: Driver())
    main(["info"])
    assert "GPU 10 (9.0), GPU 11 (9.1)" in capsys.readouterr().out
    monkeypatch.setattr(Driver, "cuInit", lambda self, flags: 100)
    main(["info"])
    assert "none found" in capsys.readouterr().out


def test_info_imports_no_framework(run_python):
    printed = run_python(
        "import sys; from scanrnn.__main__ import main; main(['info'])\n"
        "print(*{'torch', 'jax', 'cupy', 'matplotlib'} & set(sys.modules), sep=',', end='|')"
    )
    assert printed.endswith("\n|")


def test_info_names_what_is_missing(capsys, monkeypatch):
    def nothing(name):
        raise _info.PackageNotFoundError(name)

    monkeypatch.setattr(_info, "version", nothing)
    main(["info"])
    assert "not found     numpy, torch, jax, cupy, ml_dtypes" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"scanrnn {scanrnn.__version__}\n"


def test_no_command_prints_the_commands(capsys):
    assert main([]) == 2
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("info", "demo", "sample", "bench", "--cmake-dir"))


def test_cmake_dir(capsys, monkeypatch, tmp_path):
    package = tmp_path / "scanrnn"
    monkeypatch.setattr(_info, "__file__", str(package / "_info.py"))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert main(["--cmake-dir"]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith(f"scanrnn: no CMake package beside {package}")
    folder = package / "lib" / "cmake" / "scanrnn"
    folder.mkdir(parents=True)
    (folder / "scanrnnConfig.cmake").touch()
    assert main(["--cmake-dir"]) == 0
    assert Path(capsys.readouterr().out.strip()) == folder.resolve()


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--framework", "torch", "--device", "cuda"],
        ["demo", "--framework", "jax", "--device", "cuda"],
        ["demo", "--framework", "cupy"],
        ["bench", "--framework", "torch", "--device", "cuda"],
        ["bench", "--framework", "cupy"],
    ],
)
def test_no_gpu_is_a_line_that_says_why(arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scanrnn, "cuda_available", lambda: False)
    monkeypatch.setattr(_core, "cuda_unavailable_reason", lambda: "no reason at all")
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.err == f"scanrnn: no {arguments[2]} on cuda: no reason at all\n"
    assert not printed.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--steps", "0"], "0 is not above 0"),
        (["demo", "--seed", "-1"], "-1 is below 0"),
        (["bench", "--width", "0"], "0 is not above 0"),
        (["demo", "--minutes", "0"], "0 is not above 0"),
        (["demo", "--minutes", "nan"], "nan is not above 0"),
        (["demo", "--minutes", "1", "--steps", "1"], "not allowed with"),
        (["demo", "--framework", "mxnet"], "invalid choice"),
        (["sample"], "checkpoint"),
        (["train"], "invalid choice"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["demo", "--text", "missing.txt"], ["sample", "missing.npz"]]
)
def test_missing_files(arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert arguments[-1] in line


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_sample(kind, capsys, rng, tmp_path):
    checkpoint.save(tmp_path, initial_weights(rng, 4, 8, 1), "\ufffdabc")
    arguments = ["sample", str(tmp_path / f"weights.{kind}"), "--length", "25", "--seed", "3"]
    outputs = []
    for _ in range(2):
        assert main([*arguments, "--prompt", "ab"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("ab")
    assert len(outputs[0]) == 2 + 25 + 1
    assert set(outputs[0]) == set("abc\n")


def test_bench(capsys, monkeypatch):
    monkeypatch.setattr(speed.table, "__defaults__", ("numpy", "cpu", 256, (4, 16)))
    assert main(["bench", "--width", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "D = 8, numpy on cpu" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["4", "16"]
    assert all(line.endswith("x") for line in lines[2:])


def test_interrupt_exits_without_a_traceback(capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "table", interrupted)
    assert main(["bench"]) == 130
    assert capsys.readouterr().err == "\n"


@pytest.mark.parametrize("command", [["info"], ["info", "--json"], ["--cmake-dir"]])
def test_nobody_reads(command):
    """As with `| head`: no traceback, and no error."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = os.environ | {"PYTHONPATH": str(Path(scanrnn.__file__).parents[1])}
    environment.pop("PYTHONUNBUFFERED", None)
    with open(writer, "wb") as output:
        run = [sys.executable, "-m", "scanrnn", *command]
        done = subprocess.run(run, stdout=output, stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (141, b"")
