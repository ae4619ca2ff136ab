"""Calls of `os` that are replaced for the files of one test, and of nobody else.

A worker that runs several tests may have a whole cluster beside them, in threads of the same
process: what fails for one test's files must not fail for the cluster's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def path_of(descriptor: int) -> str:
    """Of an open file or folder."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def of_files_in(folder: Path, real: Callable[..., T], other: Callable[..., T]) -> Callable[..., T]:
    """``other`` for descriptors of files in ``folder``, ``real`` for all others. The descriptor is
    the first argument of both."""

    def call(descriptor: int, *rest: object) -> T:
        chosen = other if path_of(descriptor).startswith(str(folder)) else real
        return chosen(descriptor, *rest)

    return call
