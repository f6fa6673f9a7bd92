# SPDX-License-Identifier: Apache-2.0
"""Calls that a compiler must not look into.

Importing this imports all of Dynamo, which makes a folder for its caches: those who have it do.
"""

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def uncompiled(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
