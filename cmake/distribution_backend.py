"""scikit-build-core, with the name of a released distribution on what it builds.

The environment variable SCANRNN_DISTRIBUTION names one of distributions.json, and is all that it
takes to build it: `SCANRNN_DISTRIBUTION=scanrnn-cu13 pip wheel .`. CMake reads the same variable
(Distributions.cmake). Without it everything is as scikit-build-core does it, and the name is
scanrnn. The source distribution is always called scanrnn.

The standard wants a project's name to be static, so a wheel is built as scanrnn and renamed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

DISTRIBUTIONS = Path(__file__).with_name("distributions.json")
PROJECT = "scanrnn"

Settings = dict[str, Any] | None


def chosen() -> str:
    """The distribution that SCANRNN_DISTRIBUTION names; scanrnn without it."""
    name = os.environ.get("SCANRNN_DISTRIBUTION") or PROJECT
    known = list(json.loads(DISTRIBUTIONS.read_text()))
    if name not in known:
        raise SystemExit(
            f"scanrnn: SCANRNN_DISTRIBUTION is {name!r}, expected one of {', '.join(known)}"
        )
    return name


def file_name(name: str) -> str:
    """A distribution's name as wheels and dist-info folders have it."""
    return name.replace("-", "_")


def rename_metadata(text: str, name: str) -> str:
    """METADATA of another name, whose extras refer to itself."""
    head, separator, body = text.partition("\n\n")
    head = re.sub(rf"(?m)^Name: {PROJECT}$", f"Name: {name}", head)
    head = re.sub(rf"(?m)^Requires-Dist: {PROJECT}(?=\[)", f"Requires-Dist: {name}", head)
    return head + separator + body


def record_line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"


def rename_wheel(wheel: Path, name: str) -> Path:
    """Rewrites a wheel of scanrnn under another name, beside it; the first is gone then."""
    version = wheel.name.split("-")[1]
    old, new = (f"{file_name(each)}-{version}.dist-info/" for each in (PROJECT, name))
    renamed = wheel.with_name(file_name(name) + wheel.name.removeprefix(PROJECT))
    record: list[str] = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(renamed, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.startswith(old):
                entry.filename = new + entry.filename.removeprefix(old)
            if entry.filename == f"{new}METADATA":
                content = rename_metadata(content.decode(), name).encode()
            if entry.filename == f"{new}RECORD":
                content = "\n".join([*record, f"{new}RECORD,,", ""]).encode()
            elif not entry.is_dir():
                record.append(record_line(entry.filename, content))
            target.writestr(entry, content)
    wheel.unlink()
    return renamed


def _build_as(hook: Any, directory: str, settings: Settings, metadata: str | None) -> str:
    name = chosen()
    if name == PROJECT:
        built: str = hook(directory, settings, metadata)
        return built
    return rename_wheel(Path(directory, hook(directory, settings, None)), name).name


def _prepare_as(hook: Any, directory: str, settings: Settings) -> str:
    name = chosen()
    prepared = Path(directory, hook(directory, settings))
    if name == PROJECT:
        return prepared.name
    renamed = prepared.with_name(file_name(name) + prepared.name.removeprefix(PROJECT))
    shutil.rmtree(renamed, ignore_errors=True)
    prepared.rename(renamed)
    metadata = renamed / "METADATA"
    metadata.write_text(rename_metadata(metadata.read_text("utf-8"), name), "utf-8")
    return renamed.name


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return _build_as(_build.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return _build_as(_build.build_editable, wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    hook = _build.prepare_metadata_for_build_wheel
    return _prepare_as(hook, metadata_directory, config_settings)


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    hook = _build.prepare_metadata_for_build_editable
    return _prepare_as(hook, metadata_directory, config_settings)
