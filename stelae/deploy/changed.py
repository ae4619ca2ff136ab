"""What a change of a cluster's servers needs of a connection to it: of `stelae.Database`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.core.messages.operators import ServerProgress


class Connected(Protocol):
    """Calls to the cluster, on the loop of the connection."""

    @property
    def _loop(self) -> Loop: ...

    @property
    def _database(self) -> AsyncDatabase: ...


class ChangedCluster(Connected, Protocol):
    """A cluster whose servers are started and ended, each time in its turn."""

    cluster: str
    ray_address: str
    home: str

    def turn(
        self, what: str, by: str = "", *, tries_again: bool = False
    ) -> AbstractContextManager[Callable[[], None]]: ...

    def retire_server(
        self,
        server: str,
        *,
        wait: bool = True,
        cancel: bool = False,
        progress: Callable[[ServerProgress], None] | None = None,
        timeout: float = ...,
    ) -> ServerProgress: ...

    def set_safekeeper_status(self, safekeeper: int | str, status: str) -> object: ...


def masters_status(database: Connected, *, timeout: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
    """The status document, of the masters alone, for whatever polls it.

    `Database.status` adds for people what `stelae.database.deployed` asks of an actor for up to
    seconds while a server is dead: a loop that waits for a restart would wait for that each time.
    """
    return database._loop.run(database._database.status(timeout=timeout))
