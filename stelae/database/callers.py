"""Who uses a connection, for the audit log: the user, the host, the process, and by which door.

It is what the process says of itself. `called_by` says the door for connections that are opened
within it; a program that opens one without it is Python.
"""

from __future__ import annotations

import enum
import getpass
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stelae.client.admin.call_log import Caller


class Door(enum.StrEnum):
    """By which way calls come that do not go over HTTP."""

    CLI = "cli"
    PYTHON = "python"
    APPLIER = "applier"
    """Stelae's own actor: operations that were begun over HTTP, and servers that it replaces."""


_door: ContextVar[tuple[Door, str]] = ContextVar("door", default=(Door.PYTHON, ""))


@contextmanager
def called_by(door: Door, command: str = "") -> Iterator[None]:
    """Connections that are opened within it are of this door. ``command``: its words, without
    arguments, which may be secret."""
    before = _door.set((door, command))
    try:
        yield
    finally:
        _door.reset(before)


def caller() -> Caller:
    """Return who opens a connection now."""
    door, command = _door.get()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    host = socket.gethostname()
    details = [f"process {os.getpid()}"]
    if command:
        details.insert(0, command)
    if job := _ray_job():
        details.append(f"Ray job {job}")
    return Caller(f"{user}@{host}", door.value, host, ", ".join(details))


def _ray_job() -> str:
    """The job of Ray that this process belongs to; empty: none. Imports nothing."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().get_job_id())
