"""What a change of a cluster's servers needs of a connection to it: of `stelae.Database`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
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

    def status(self, *, timeout: float = ...) -> dict[str, Any]: ...

    def turn(self, what: str, by: str = "") -> AbstractContextManager[Callable[[], None]]: ...

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
