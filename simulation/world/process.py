"""Processes of the simulated world: crash domains, carried by a context variable.

Whatever a process's tasks start inherits its context, so every task and callback knows whose it is.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any


class ProcessEnded(BaseException):
    """Raised in whatever a dead process still tries; never seen by code that can act on it."""


class Process:
    """One life of one server or client: the owner of its tasks."""

    __slots__ = ("alive", "context", "held", "incarnation", "name", "paused", "tasks")

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.paused = False
        self.held: list[Any] = []
        """Callbacks that wait for the process to go on; the loop's own handles."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def check(self) -> None:
        """Raise `ProcessEnded` unless the process lives."""
        if not self.alive:
            raise ProcessEnded(self.name)


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
