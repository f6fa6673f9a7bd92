"""The command line: ``python -m scanrnn info | demo | sample | bench``, or ``--cmake-dir``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from . import __version__, _info

__all__ = ["main"]


def positive_float(text: str) -> float:
    """An argument that must be a number above 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def natural(text: str) -> int:
    """An argument that must be a whole number, 0 or more."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def positive_int(text: str) -> int:
    """An argument that must be a whole number, 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line's arguments."""
    top = argparse.ArgumentParser(prog="python -m scanrnn", description="Parallel recurrences.")
    top.add_argument("--version", action="version", version=f"scanrnn {__version__}")
    top.add_argument(
        "--cmake-dir",
        action="store_true",
        help="print the folder of the CMake package, for CMAKE_PREFIX_PATH or scanrnn_DIR",
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    info = commands.add_parser("info", help="version, backends, instruction set, frameworks")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(command=run_info)

    demo = commands.add_parser(
        "demo",
        help="train a character-level language model and sample from it",
        description="Trains a character-level SRU language model on English text, writes weights "
        "and a loss plot, samples from the model, and times a serial loop against the scan.",
    )
    demo.add_argument("--text", type=Path, metavar="FILE", help="default: Python's documentation")
    add_framework(demo)
    limit = demo.add_mutually_exclusive_group()
    limit.add_argument("--minutes", type=positive_float, metavar="M", help="train for M minutes")
    limit.add_argument("--steps", type=positive_int, metavar="N", help="train for N steps")
    demo.add_argument(
        "--out", type=Path, default=Path("scanrnn-demo"), metavar="DIR", help="default: %(default)s"
    )
    demo.add_argument("--seed", type=natural, default=0, help="default: %(default)s")
    demo.set_defaults(command=run_demo)

    sample = commands.add_parser("sample", help="continue a prompt with the demo's weights")
    sample.add_argument("checkpoint", type=Path, help=".npz or .safetensors file that demo wrote")
    sample.add_argument("--prompt", default="The ", help="default: %(default)r")
    sample.add_argument("--length", type=natural, default=1000, help="characters to write")
    sample.add_argument(
        "--temperature", type=float, default=0.7, help="0 takes the likeliest; default: %(default)s"
    )
    sample.add_argument("--seed", type=natural, default=None, help="for the same text again")
    sample.set_defaults(command=run_sample)

    bench = commands.add_parser("bench", help="time a serial loop over time against the scan")
    add_framework(bench)
    bench.add_argument(
        "--width", type=positive_int, default=256, help="channels; default: %(default)s"
    )
    bench.set_defaults(command=run_bench)
    return top


def add_framework(command: argparse.ArgumentParser) -> None:
    """Adds --framework and --device."""
    command.add_argument(
        "--framework", choices=("numpy", "torch", "jax", "cupy"), default="numpy",
        help="default: %(default)s",
    )  # fmt: skip
    command.add_argument("--device", choices=("cpu", "cuda"), help="default: cpu; cuda with cupy")


def run_info(arguments: argparse.Namespace) -> int:
    """Prints what this build and this machine have."""
    info = _info.gather()
    print(json.dumps(info, indent=2) if arguments.json else _info.text(info))
    return 0


def run_demo(arguments: argparse.Namespace) -> int:
    """Trains, saves, samples and times."""
    from .demo.train import Options, run

    return run(Options(**{field.name: getattr(arguments, field.name) for field in fields(Options)}))


def run_sample(arguments: argparse.Namespace) -> int:
    """Continues a prompt."""
    import numpy as np

    from .demo.checkpoint import load
    from .demo.sample import generate

    weights, characters = load(arguments.checkpoint)
    print(arguments.prompt, end="")
    for character in generate(
        weights,
        characters,
        arguments.prompt,
        arguments.length,
        temperature=arguments.temperature,
        rng=np.random.default_rng(arguments.seed),
    ):
        print(character, end="", flush=True)
    print()
    return 0


def run_bench(arguments: argparse.Namespace) -> int:
    """Prints the demo's table of times."""
    from .demo.speed import table
    from .demo.train import pick_device

    device = pick_device(arguments.framework, arguments.device)
    print(table(arguments.framework, device, arguments.width))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The arguments, without the program's name; those of the process by default.

    Returns:
        The exit status: 0, 1 after an error that is explained in one line, 2 for wrong arguments,
        130 after Ctrl-C, 141 if nobody reads what is printed any more.
    """
    top = parser()
    arguments = top.parse_args(argv)
    try:
        if arguments.cmake_dir:
            print(_info.cmake_dir(), flush=True)
            return 0
        if "command" not in arguments:
            top.print_help()
            return 2
        status: int = arguments.command(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python would complain of it once more at its end, about what is still to be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, ImportError, RuntimeError, ValueError) as error:
        print(f"scanrnn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
