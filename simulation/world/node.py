"""Nodes of the simulated world, what they run, and how a run fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stelae.core.ids import Address
from stelae.core.tasks import Tasks
from stelae.simulation.world.disk import SimDisk
from stelae.simulation.world.instance import SimRuntime
from stelae.simulation.world.process import Process


class Server(Protocol):
    """What the world runs: every server of Stelae is one."""

    @property
    def tasks(self) -> Tasks: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


Factory = Callable[[SimRuntime], Server]


class SimulationFailure(Exception):
    """A run that broke a rule; ``__cause__`` is the error, the text is the evidence."""

    def __init__(self, seed: str, error: BaseException, story: str) -> None:
        super().__init__(seed, error, story)
        self.seed = seed
        self.error = error
        self.story = story

    def __str__(self) -> str:
        notes = "".join(f"\n  {note}" for note in getattr(self.error, "__notes__", ()))
        return (
            f"seed {self.seed}: {type(self.error).__name__}: {self.error}{notes}\n"
            f"--- story ---\n{self.story}"
        )


class Node:
    """One place where processes live, one after the other, over one disk."""

    def __init__(self, name: str, kind: str, machine: str, port: int, disk: SimDisk) -> None:
        self.name = name
        self.host = name
        self.kind = kind
        self.machine = machine
        self.port = port
        self.disk = disk
        self.factory: Factory | None = None
        self.auto_restart = True
        self.fixed_port = True
        self.exits: tuple[type[BaseException], ...] = ()
        self.lives = 0
        self.process: Process | None = None
        self.runtime: SimRuntime | None = None
        self.server: Server | None = None
        self.ready = False
        self.disks_lost = 0

    @property
    def address(self) -> Address:
        return Address(f"{self.host}:{self.port}")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive
