"""What the tests and their fixtures share."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]


def pip(*arguments: str | Path) -> Sequence[str | Path]:
    """A pip command line."""
    return (sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)
