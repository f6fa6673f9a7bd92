"""Which of the distributions of scanrnn are installed: two of them overwrite each other's files."""

from __future__ import annotations

import os
from collections.abc import Iterable

NAMES = ("scanrnn", "scanrnn-cu12", "scanrnn-cu13")


def beside(folder: str) -> list[str]:
    """The distributions whose dist-info lies in a folder, which is listed once and not read."""
    try:
        entries = os.listdir(folder)
    except OSError:  # imported from an archive
        return []
    found = {entry.partition("-")[0] for entry in entries if entry.endswith(".dist-info")}
    return [name for name in NAMES if name.replace("-", "_") in found]


def installed() -> dict[str, str]:
    """The versions of all distributions that this Python finds, on the whole of its path."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for name in NAMES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def conflict(names: Iterable[str]) -> str:
    """What to do about distributions that are installed together; "" if there is one at most."""
    names = list(names)
    if len(names) < 2:
        return ""
    together = " and ".join([", ".join(names[:-1]), names[-1]])
    # All of them, since uninstalling one takes files of the others with it.
    return (
        f"{together} are installed together and overwrite each other's files: run "
        f"'pip uninstall {' '.join(names)}', then install one of them (scanrnn for the CPU alone)"
    )


def check(folder: str = os.path.dirname(os.path.dirname(__file__))) -> None:
    """Warns of distributions that were installed into the same folder, that of this package."""
    if message := conflict(beside(folder)):
        import warnings

        warnings.warn(f"scanrnn: {message}", RuntimeWarning, stacklevel=3)
